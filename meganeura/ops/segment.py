"""Rows that write by index into a base: add, put and reduce. Deterministic (no float atomics); the scatter family is made of them.

All take a base [S, D], values [T, D] and indices [T] into the S rows; values of one index are taken in their order.
`place` makes such indices from those along one dimension.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..dtype import int64
from ..errors import IndexOutOfRangeError, ShapeError
from ..shape import broadcast_shapes
from ..storage import Layout
from .archetype import Kernel, Pointwise
from .creation import fill
from .index import index_select
from .move import check_dtype
from .table import Inferred, IntScalar, Operand, Sample, Spec, op

if TYPE_CHECKING:
    from ..tensor import Tensor


def _rule(base: Layout, input: Layout, index: Layout, **attrs: Any) -> Inferred:
    check_dtype(index, "index")
    if len(base.shape) != 2 or input.shape != (*index.shape, base.shape[1]) or len(index.shape) != 1 or base.dtype is not input.dtype:
        raise ShapeError(f"expected a base [S, D], values [T, D] and indices [T], got {base}, {input} and {index}")
    if not base.shape[0] and index.numel:
        raise IndexOutOfRangeError(f"an index of shape {list(index.shape)} into no rows")
    return Inferred((Spec(base.dtype, base.shape),), (base.dtype, input.dtype, index.dtype), {"size": base.shape[0], **attrs})


def _f32(*shape: int) -> Any:
    return np.random.default_rng(2).uniform(0.3, 2.0, shape).astype(np.float32)


def _ints(high: int, *shape: int) -> Any:
    return np.random.default_rng(4).integers(0, high, shape)


def _added(base: Any, input: Any, index: Any) -> Any:
    out = np.array(base)
    (np.logical_or if out.dtype.kind == "b" else np.add).at(out, index, input)
    return out


@op(
    Kernel("segment_sum", {"include": "base"}),
    rule=_rule,
    static_index=False,
    ref=_added,
    grad={"base": lambda grad: grad, "input": lambda grad, index: index_select(grad, 0, index)},
    samples=lambda: [
        Sample.of(_f32(5, 4), _f32(9, 4), _ints(5, 9)),
        Sample.of(_f32(70, 3), _f32(300, 3), _ints(70, 300)),
        Sample.of(_f32(6, 1), _f32(7, 1), _ints(6, 7)),
    ],
    public=False,
    torch=None,
    shown="index_add",
)
def segment_add(base: Tensor, input: Tensor, index: Tensor) -> Tensor:
    """base plus the rows of input by index. [S, D], [T, D], [T] -> [S, D]."""


def _written(base: Any, input: Any, index: Any) -> Any:
    out = np.array(base)
    out[index] = input
    return out


def _kept(grad: Any, index: Any) -> Any:
    """grad, but 0 in the rows that the index names."""
    return segment_put(grad, fill(0.0, (1, 1), grad.dtype).expand((index.shape[0], grad.shape[1])), index)


@op(
    Kernel("segment_sum", {"combine": "last"}),
    rule=_rule,
    static_index=False,
    ref=_written,
    grad={"base": lambda grad, index: _kept(grad, index), "input": lambda grad, index: index_select(grad, 0, index)},
    samples=lambda: [
        Sample.of(_f32(9, 4), _f32(3, 4), np.array([7, 0, 3])),
        Sample.of(_f32(70, 3), _f32(40, 3), np.random.default_rng(1).permutation(70)[:40]),
        Sample.of(_f32(6, 1), _f32(1, 1), np.array([5])),
    ],
    public=False,
    torch=None,
    shown="index_copy",
)
def segment_put(base: Tensor, input: Tensor, index: Tensor) -> Tensor:
    """base with the rows of input written by index; of several for one index the last stays. [S, D], [T, D], [T] -> [S, D]."""


_UFUNC = {"prod": np.multiply, "max": np.maximum, "min": np.minimum}


def _reduced(base: Any, input: Any, index: Any, combine: str, include: bool) -> Any:
    out = np.array(base)
    if not include:
        kind = out.dtype
        low, high = (-np.inf, np.inf) if kind.kind == "f" else (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
        out[index] = {"prod": 1, "max": low, "min": high}[combine]
    (np.logical_and if out.dtype.kind == "b" and combine == "prod" else _UFUNC[combine]).at(out, index, input)
    return out


def _base_grad(grad: Any, result: Any, base: Any, input: Any, index: Any, combine: str, include: bool) -> Any:
    if not include:
        return _kept(grad, index)
    if combine == "prod":
        safe = base.masked_fill(base == 0, 1)
        return grad * segment_reduce(safe, input, index, combine, True) / safe
    mine, _, share = _winners(grad, result, base, input, index, include)
    return mine * share


def _input_grad(grad: Any, result: Any, base: Any, input: Any, index: Any, combine: str, include: bool) -> Any:
    if combine != "prod":
        _, his, share = _winners(grad, result, base, input, index, include)
        return his * index_select(share, 0, index)
    zero = input == 0
    zeros = segment_add(fill(0.0, base.shape, input.dtype), zero.to(input.dtype), index)
    alone = zero & (index_select(zeros, 0, index) == 1)
    others = segment_reduce(base, input.masked_fill(alone, 1), index, combine, include)
    rest = index_select(grad * result, 0, index) / input.masked_fill(zero, 1)
    return alone.where(index_select(grad * others, 0, index), rest)


def _winners(grad: Any, result: Any, base: Any, input: Any, index: Any, include: bool) -> tuple[Any, Any, Any]:
    """1 where the base and where the values are extreme, else 0, and the share of the gradient that each of them gets."""
    mine = (base == result).to(grad.dtype)
    if not include:
        mine = _kept(mine, index)
    his = (input == index_select(result, 0, index)).to(grad.dtype)
    return mine, his, grad / segment_add(mine, his, index)


@op(
    Kernel("segment_sum"),
    rule=_rule,
    static_index=False,
    ref=_reduced,
    grad={"base": _base_grad, "input": _input_grad},
    samples=lambda: (
        [Sample.of(_f32(5, 4), _f32(9, 4) * 0.9, _ints(5, 9), combine, include) for combine in _UFUNC for include in (True, False)]
        + [Sample.of(_f32(20, 3), _f32(300, 3), _ints(20, 300), "max", True)]
    ),
    public=False,
    torch=None,
    shown="index_reduce",
)
def segment_reduce(base: Tensor, input: Tensor, index: Tensor, combine: str, include: bool) -> Tensor:
    """'prod', 'max' or 'min' (NaN wins) of the rows of input by index, and of the base where `include`; rows that no index names
    stay. [S, D], [T, D], [T] -> [S, D]."""


def _place_ref(input: Any, rest: Any, size: int, step: int, below: int, limit: int) -> Any:
    found = np.where(input < 0, input + below, input)
    return np.where((found >= 0) & (found < size), found * step + rest, limit)


_FOUND = "({input} + select(0, {below}, {input} < 0))"


@op(
    Pointwise(f"select({{limit}}, {_FOUND} * {{step}} + {{rest}}, {_FOUND} >= 0 && {_FOUND} < {{size}})"),
    rule=lambda input, rest, **scalars: Inferred(
        (Spec(int64, broadcast_shapes(*(x.shape for x in (input, rest) if isinstance(x, Layout)))),), (int64, int64), {}
    ),
    ref=_place_ref,
    samples=lambda: [
        Sample.of(np.array([0, 3, -1, -9, 4]), 0, 4, 5, 4, 20),
        Sample.of(np.array([[1], [7], [-2]]), np.arange(3), 7, 3, 0, 21),
    ],
    public=False,
    torch=None,
)
def place(input: Tensor, rest: Operand, size: IntScalar, step: IntScalar, below: IntScalar, limit: IntScalar) -> Tensor:
    """input * step + rest, or `limit` where the input lies outside [0, size); `below` is added to negative ones. [*], [*] -> [*] int64."""
