"""Rows that read by index: index_select, gather, embedding; and segment_sum, the deterministic sum by index (no float atomics)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..dtype import int64
from ..errors import IndexOutOfRangeError, ShapeError
from ..shape import normalize_dim, numel
from ..storage import Layout
from .archetype import Kernel
from .creation import ramp
from .move import check_dtype
from .table import Inferred, Sample, Spec, op

if TYPE_CHECKING:
    from ..tensor import Tensor


def _check_size(input: Layout, dim: int, index: Layout) -> None:
    """No index fits a dimension of size 0: known before any value is."""
    if input.shape and not input.shape[dim] and index.numel:
        raise IndexOutOfRangeError(f"an index of shape {list(index.shape)} into dimension {dim} of size 0 (shape {list(input.shape)})")


def _select_rule(input: Layout, dim: int, index: Layout) -> Inferred:
    check_dtype(index, "index")
    if not input.shape:
        raise ShapeError("index_select of a 0-d tensor")
    d = normalize_dim(dim, len(input.shape))
    if len(index.shape) != 1:
        raise ShapeError(f"index_select expects a 1-D index, got shape {list(index.shape)}")
    _check_size(input, d, index)
    shape = (*input.shape[:d], index.shape[0], *input.shape[d + 1 :])
    return Inferred((Spec(input.dtype, shape),), (input.dtype, index.dtype), {"dim": d})


def _unselect(grad: Any, input_meta: Layout, dim: int, index: Any) -> Any:
    d = dim % len(input_meta.shape)
    rows = grad.movedim(d, 0)
    rest = tuple(rows.shape[1:])
    summed = segment_sum(rows.reshape((rows.shape[0], numel(rest))), index, input_meta.shape[d])
    return summed.reshape((input_meta.shape[d], *rest)).movedim(0, d)


def _f32(*shape: int) -> Any:
    return np.random.default_rng(2).standard_normal(shape).astype(np.float32)


def _ints(high: int, *shape: int) -> Any:
    return np.random.default_rng(4).integers(0, high, shape)


@op(
    Kernel("index_select"),
    rule=_select_rule,
    static_index=False,
    ref=lambda input, dim, index: np.take(input, index, axis=dim),
    grad={"input": _unselect},
    samples=lambda: [
        Sample.of(_f32(5, 3), 0, np.array([4, 0, 0, 2])),
        Sample.of(_f32(3, 7, 2), 1, np.array([6, 6, 1])),
        Sample.of(_f32(4, 8), 0, np.zeros(0, np.int64)),
    ],
)
def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """Slices of input along dim by a 1-D index; out of range raises at the next sync. [*, n, *], [k] -> [*, k, *]."""


def _gather_rule(input: Layout, dim: int, index: Layout) -> Inferred:
    check_dtype(index, "index")
    d = normalize_dim(dim, len(input.shape))
    if len(index.shape) != len(input.shape) or any(i > n for e, (i, n) in enumerate(zip(index.shape, input.shape, strict=True)) if e != d):
        raise ShapeError(f"gather along {dim}: index shape {list(index.shape)} does not fit input shape {list(input.shape)}")
    _check_size(input, d, index)
    return Inferred((Spec(input.dtype, index.shape),), (input.dtype, index.dtype), {"dim": d})


def _gather_ref(input: Any, dim: int, index: Any) -> Any:
    crop = tuple(slice(None) if e == dim % np.ndim(input) else slice(n) for e, n in enumerate(np.shape(index)))
    return np.take_along_axis(input[crop], index, dim)


def _ungather(grad: Any, input_meta: Layout, dim: int, index: Any) -> Any:
    shape, d = input_meta.shape, dim % max(len(input_meta.shape), 1)
    flat: Any = 0
    step = 1
    for e in range(len(shape) - 1, -1, -1):
        place = index if e == d else ramp(0, 1, (index.shape[e],), int64).reshape(tuple(-1 if k == e else 1 for k in range(len(shape))))
        flat = place * step + flat
        step *= shape[e]
    flat = flat.expand(index.shape).reshape((-1,)) if shape else index.reshape((1,))
    return segment_sum(grad.reshape((grad.numel(), 1)), flat, numel(shape)).reshape(shape)


@op(
    Kernel("gather"),
    rule=_gather_rule,
    static_index=False,
    ref=_gather_ref,
    grad={"input": _ungather},
    samples=lambda: [Sample.of(_f32(5, 3), 1, _ints(3, 5, 4)), Sample.of(_f32(4, 6), 0, _ints(4, 2, 6))],
)
def gather(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """out[i, j] = input[index[i, j], j] for dim 0, and so on. [*], [*] -> [* of index]."""


def _segment_rule(input: Layout, index: Layout, size: int, ignore: int | None) -> Inferred:
    check_dtype(index, "index")
    if len(input.shape) != 2 or index.shape != input.shape[:1]:
        raise ShapeError(f"segment_sum expects [T, D] values and [T] indices, got {list(input.shape)} and {list(index.shape)}")
    return Inferred((Spec(input.dtype, (size, input.shape[1])),), (input.dtype, index.dtype), {"size": size, "ignore": ignore})


def _segment_ref(input: Any, index: Any, size: int, ignore: int | None) -> Any:
    out = np.zeros((size, np.shape(input)[1]), np.asarray(input).dtype)
    keep = np.ones(len(index), bool) if ignore is None else index != ignore
    np.add.at(out, index[keep], input[keep])
    return out


@op(
    Kernel("segment_sum"),
    rule=_segment_rule,
    static_index=False,
    ref=_segment_ref,
    public=False,
    torch=None,
    grad={"input": lambda grad, index, ignore: _segment_grad(grad, index, ignore)},
    samples=lambda: [
        Sample.of(_f32(9, 4), _ints(5, 9), 5, None),
        Sample.of(_f32(300, 3), _ints(2, 300), 70, 1),
        Sample.of(_f32(64, 8), np.full(64, 3), 4, None),
        Sample.of(_f32(0, 4), np.zeros(0, np.int64), 3, None),
    ],
)
def segment_sum(input: Tensor, index: Tensor, size: int, ignore: int | None = None) -> Tensor:
    """Sum of the rows by index, in order; rows whose index is `ignore` count nothing. [T, D], [T] -> [size, D]."""


def _segment_grad(grad: Any, index: Any, ignore: int | None) -> Any:
    rows = index_select(grad, 0, index)
    return rows if ignore is None else rows * (index != ignore).to(rows.dtype).unsqueeze(1)


def _unembed(grad: Any, input_meta: Layout, index: Any, padding_idx: int | None) -> Any:
    return segment_sum(grad.contiguous(), index, input_meta.shape[0], padding_idx)


@op(
    Kernel("index_select"),
    rule=lambda input, dim, index, padding_idx: _select_rule(input, dim, index),
    static_index=False,
    ref=lambda input, dim, index, padding_idx: np.take(input, index, axis=dim),
    grad={"input": _unembed},
    samples=lambda: [Sample.of(_f32(5, 3), 0, np.array([4, 0, 0, 2]), None), Sample.of(_f32(6, 8), 0, np.array([1, 5, 1]), 1)],
    public=False,
    torch=None,
    shown="embedding",
)
def embedding_rows(input: Tensor, dim: int, index: Tensor, padding_idx: int | None) -> Tensor:
    """Rows of a table by index; the row `padding_idx` gets no gradient. [V, D], [T] -> [T, D]."""
