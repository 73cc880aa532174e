"""Rows without tensor inputs: fills, ranges and random numbers. [size] is given, the values come from the index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..dtype import DType, int64
from ..random import bits, normal, uniform
from ..shape import Shape, numel
from ..storage import Layout
from .archetype import Pointwise
from .table import Inferred, IntScalar, Operand, Sample, Scalar, Spec, UIntScalar, op

if TYPE_CHECKING:
    from ..tensor import Tensor


def _draw(kind: Any, size: Shape, words: tuple[int, int, int, int]) -> Any:
    return kind(numel(size), words).reshape(size)


def _filled(value: Any, size: Shape, dtype: DType) -> Inferred:
    return Inferred((Spec(dtype, size),), (dtype,), {})


@op(
    Pointwise("{value}"),
    rule=_filled,
    public=False,
    torch=None,
    ref=lambda value, size, dtype: np.full(size, value),
    samples=lambda: [
        Sample.of(2.5, (3, 5), "float32"),
        Sample.of(-7, (2,), "int64"),
        Sample.of(True, (), "bool"),
        Sample.of(1.0, (0, 3), "float16"),
    ],
)
def fill(value: Operand, size: Shape, dtype: DType) -> Tensor:
    """One value everywhere. -> [size]."""


@op(
    Pointwise({"f": "{start} + {step} * f32({index})", "i": "{start} + {step} * i32({index})", "u": "{start} + {step} * {index}"}),
    rule=lambda start, step, size, dtype: Inferred((Spec(dtype, size),), (dtype, dtype), {}),
    public=False,
    torch=None,
    ref=lambda start, step, size, dtype: start + step * np.arange(size[0]),
    samples=lambda: [Sample.of(0, 1, (7,), "int64"), Sample.of(-1.0, 0.25, (9,), "float32"), Sample.of(5, -2, (4,), "int32")],
)
def ramp(start: Operand, step: Operand, size: Shape, dtype: DType) -> Tensor:
    """start + step * index. -> [n]."""


_WORDS = "philox({block}, vec2<u32>({seed0}, {seed1}), vec2<u32>({offset0}, {offset1}))"
_SEEDS = [(3, 0, 5, 0), (0xDEADBEEF, 7, 0xFFFFFFFF, 1)]


@op(
    Pointwise("min({low} + ({high} - {low}) * uniform_(" + _WORDS + "[{lane}]), {top})"),
    rule=lambda seed0, seed1, offset0, offset1, low, high, top, size, dtype: Spec(dtype, size),
    public=False,
    torch=None,
    random=True,
    ref=lambda seed0, seed1, offset0, offset1, low, high, top, size, dtype: np.minimum(
        _draw(uniform, size, (seed0, seed1, offset0, offset1)) * (high - low) + low, top
    ),
    samples=lambda: [Sample.of(*s, -1.0, 3.0, 2.9999997, size, "float32") for s in _SEEDS for size in ((33,), (4, 8), ())],
)
def uniform_bits(
    seed0: UIntScalar,
    seed1: UIntScalar,
    offset0: UIntScalar,
    offset1: UIntScalar,
    low: Scalar,
    high: Scalar,
    top: Scalar,
    size: Shape,
    dtype: DType,
) -> Tensor:
    """Uniform numbers in [low, high), cut at top, the last number below high, from Philox4x32-10. -> [size].
    Source: Salmon et al., SC 2011."""


def _integers(seed0: int, seed1: int, offset0: int, offset1: int, low: int, span: int, size: Shape) -> Any:
    words = _draw(bits, size, (seed0, seed1, offset0, offset1)).astype(np.uint64)
    return (words if span == 0 else words * np.uint64(span) >> np.uint64(32)).astype(np.int64) + low


@op(
    Pointwise(f"{{low}} + bitcast<i32>(scaled_word({_WORDS}[{{lane}}], {{span}}))"),
    rule=lambda seed0, seed1, offset0, offset1, low, span, size: Spec(int64, size),
    public=False,
    torch=None,
    random=True,
    ref=_integers,
    samples=lambda: [Sample.of(*s, *r, (33,)) for s in _SEEDS for r in ((-5, 11), (0, 1), (-(2**31), 0), (7, 2**31 + 9))],
)
def integer_bits(
    seed0: UIntScalar, seed1: UIntScalar, offset0: UIntScalar, offset1: UIntScalar, low: IntScalar, span: UIntScalar, size: Shape
) -> Tensor:
    """Integers in [low, low + span), a span of 0 meaning 2^32, from whole Philox words. -> [size]. Source: arXiv:1805.10941."""


@op(
    Pointwise("{mean} + {std} * normal_(" + _WORDS + ", {lane})"),
    rule=lambda seed0, seed1, offset0, offset1, mean, std, size, dtype: Spec(dtype, size),
    public=False,
    torch=None,
    random=True,
    ref=lambda seed0, seed1, offset0, offset1, mean, std, size, dtype: _draw(normal, size, (seed0, seed1, offset0, offset1)) * std + mean,
    samples=lambda: [Sample.of(*s, 1.0, 2.0, size, "float32") for s in _SEEDS for size in ((33,), (4, 8), ())],
)
def normal_bits(
    seed0: UIntScalar, seed1: UIntScalar, offset0: UIntScalar, offset1: UIntScalar, mean: Scalar, std: Scalar, size: Shape, dtype: DType
) -> Tensor:
    """Normal numbers by Box and Muller from Philox4x32-10. -> [size]."""


def _dropout_ref(input: Any, seed0: int, seed1: int, offset0: int, offset1: int, p: float, scale: float) -> Any:
    keep = _draw(uniform, np.shape(input), (seed0, seed1, offset0, offset1)) >= p
    return np.where(keep, np.asarray(input) * scale, 0)


def _same(input: Layout, **attrs: Any) -> Spec:
    return Spec(input.dtype, input.shape)


@op(
    Pointwise("select(0.0, {input} * {scale}, uniform_(" + _WORDS + "[{lane}]) >= {p})"),
    rule=_same,
    public=False,
    torch=None,
    random=True,
    ref=_dropout_ref,
    grad={
        "input": lambda grad, seed0, seed1, offset0, offset1, p, scale: drop(grad.contiguous(), seed0, seed1, offset0, offset1, p, scale)
    },
    samples=lambda: [Sample.of(np.random.default_rng(0).standard_normal((5, 9)).astype(np.float32), *s, 0.3, 1 / 0.7) for s in _SEEDS],
)
def drop(input: Tensor, seed0: UIntScalar, seed1: UIntScalar, offset0: UIntScalar, offset1: UIntScalar, p: Scalar, scale: Scalar) -> Tensor:
    """Zero each element with probability p, scale the rest; backward draws the same bits again. [*] -> [*]."""
