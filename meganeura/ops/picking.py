"""Reading by index and by mask, and writing into the places that a view shows.

What a mask holds decides the shape of masked_select, nonzero and argwhere: they count on the host, so they wait for the device,
cannot be traced by compile, and raise TraceError there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..dtype import int64
from ..errors import DTypeError, IndexOutOfRangeError, ShapeError
from ..provenance import site
from ..shape import broadcast_shapes
from . import index as rows
from . import pointwise
from .arithmetic import copy_
from .factory import tensor
from .move import check_dtype, slice_dim
from .scatter import put_at
from .table import COMPOSITES, composite
from .triangular import diagonal
from .views import expand, located, reshape, select

if TYPE_CHECKING:
    from ..tensor import Tensor


@composite
def take(input: Tensor, index: Tensor) -> Tensor:
    """Elements by flat indices; negative ones count from the end. [*], [k...] -> [k...]."""
    check_dtype(index, "take: the index")
    if not input.numel() and index.numel():
        raise IndexOutOfRangeError(f"take from a tensor of no elements ({input.layout})\n  at {site()}")
    flat = reshape(input, input.numel())
    at = pointwise.wrapped_index(reshape(index, index.numel()), input.numel())
    return reshape(rows.index_select(flat, 0, at), index.shape)


@composite
def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """gather after broadcasting all dimensions but `dim`; of the flattened tensors for None. [*], [*] -> [*]."""
    if indices.dtype is not int64:
        raise DTypeError(f"take_along_dim expects int64 indices, got {indices.layout}\n  at {site()}")
    if dim is None:
        return rows.gather(reshape(input, input.numel()), 0, reshape(indices, indices.numel()))  # type: ignore[no-any-return]
    if input.ndim != indices.ndim:
        raise ShapeError(
            f"take_along_dim expects as many dimensions of both, got {list(input.shape)} and {list(indices.shape)}\n  at {site()}"
        )
    d = located(_dimension, dim, input.ndim)
    try:
        common = broadcast_shapes(*((*t.shape[:d], 1, *t.shape[d + 1 :]) for t in (input, indices)))
    except ShapeError as e:
        raise ShapeError(f"take_along_dim: {e}\n  at {site()}") from None
    wide = [expand(t, *common[:d], t.shape[d], *common[d + 1 :]) for t in (input, indices)]
    return rows.gather(wide[0], d, wide[1])  # type: ignore[no-any-return]


def _dimension(dim: int, rank: int) -> int:
    if not -rank <= dim < rank:
        raise ShapeError(f"dim={dim} is out of range for a tensor of rank {rank}")
    return dim % rank


# ---- through the host ----


def where_true(mask: Tensor) -> list[Tensor]:
    """The indices of the nonzero elements, one vector a dimension, in row-major order; waits for the device."""
    return [tensor(at.astype(np.int64)) for at in np.nonzero(mask.detach().numpy())]


@composite
def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """Indices of the nonzero elements. Waits for the device; cannot be compiled. [*] -> [count, rank], or a vector a dimension."""
    if as_tuple:
        return tuple(where_true(input if input.ndim else reshape(input, 1)))
    found = np.argwhere(input.detach().numpy()).astype(np.int64)
    return tensor(found)


@composite
def argwhere(input: Tensor) -> Tensor:
    """Indices of the nonzero elements. Waits for the device; cannot be compiled. [*] -> [count, rank]."""
    return nonzero(input)  # type: ignore[no-any-return]


def _check_mask(mask: Tensor, what: str) -> None:
    if mask.dtype.kind != "b":
        raise DTypeError(f"{what} expects a bool mask, got {mask.layout}\n  at {site()}")


@composite
def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """The elements where the mask holds, after broadcasting. Waits for the device; cannot be compiled. [*], [*] -> [count]."""
    _check_mask(mask, "masked_select")
    try:
        shape = broadcast_shapes(input.shape, mask.shape)
    except ShapeError as e:
        raise ShapeError(f"masked_select: {e}\n  at {site()}") from None
    at = tensor(np.flatnonzero(np.broadcast_to(mask.detach().numpy(), shape)).astype(np.int64))
    wide = expand(input, shape)
    return rows.index_select(reshape(wide, wide.numel()), 0, at)  # type: ignore[no-any-return]


# ---- by mask, on the device ----


@composite
def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """input with the places where the mask holds taken from source, in order. [*], [*], [k...] -> [*]."""
    _check_mask(mask, "masked_scatter")
    if source.dtype is not input.dtype:
        raise DTypeError(f"masked_scatter expects a source of the input's dtype {input.dtype.name}, got {source.layout}\n  at {site()}")
    try:
        shape = broadcast_shapes(input.shape, mask.shape)
    except ShapeError as e:
        raise ShapeError(f"masked_scatter: {e}\n  at {site()}") from None
    if not input.numel() or not source.numel():
        return expand(input, shape).clone()  # type: ignore[no-any-return]
    wide = expand(mask, shape)
    order = COMPOSITES["cumsum"](reshape(wide, wide.numel()).to(int64), 0) - 1
    safe = pointwise.where(reshape(wide, wide.numel()), order, 0)
    taken = rows.index_select(reshape(source, source.numel()), 0, safe)
    return pointwise.where(wide, reshape(taken, shape), expand(input, shape))  # type: ignore[no-any-return]


@composite
def masked_scatter_(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """In place: masked_scatter."""
    return copy_(input, masked_scatter(input, mask, source))


# ---- index_put ----


def _index_put(input: Tensor, indices: Sequence[Any], values: Tensor, accumulate: bool, inplace: bool) -> Tensor:
    lookups: list[tuple[int, Tensor]] = []
    d = 0
    for k in indices:
        if k is None:
            d += 1
            continue
        if k.dtype.kind not in "biu":
            raise IndexOutOfRangeError(f"index_put expects integer or bool tensors as indices, got {k.layout}\n  at {site()}")
        found = where_true(k) if k.dtype.kind == "b" or k.dtype.name == "uint8" else [k]
        if len(found) + d > input.ndim or (k.dtype.kind == "b" and k.shape != input.shape[d : d + k.ndim]):
            raise IndexOutOfRangeError(
                f"index_put: indices {[getattr(x, 'shape', x) for x in indices]} do not fit {input.layout}\n  at {site()}"
            )
        lookups += [(d + i, t) for i, t in enumerate(found)]
        d += len(found)
    if values.dtype is not input.dtype:
        raise DTypeError(f"index_put expects values of the input's dtype {input.dtype.name}, got {values.layout}\n  at {site()}")
    if not lookups:
        raise IndexOutOfRangeError(f"index_put needs at least one index tensor\n  at {site()}")
    return put_at(input, lookups, values, accumulate, inplace)


@composite
def index_put(input: Tensor, indices: Sequence[Any], values: Tensor, accumulate: bool = False) -> Tensor:
    """input with values written (or added) where index tensors, broadcast together, say; the last write stays. [*] -> [*]."""
    return _index_put(input, indices, values, accumulate, False)


@composite
def index_put_(input: Tensor, indices: Sequence[Any], values: Tensor, accumulate: bool = False) -> Tensor:
    """In place: index_put."""
    return _index_put(input, indices, values, accumulate, True)


# ---- into what a view shows ----


def _into(input: Tensor, part: Any, src: Tensor, what: str) -> Tensor:
    """A copy of input with src written through part(copy)."""
    out = pointwise.clone(input)
    place = part(out)
    if place.shape != src.shape:
        raise ShapeError(f"{what}: src of shape {list(src.shape)} does not fit the part of shape {list(place.shape)}\n  at {site()}")
    copy_(place, src)
    return out  # type: ignore[no-any-return]


@composite
def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """input with src as its slice `index` along dim. [*, n, *], [*, *] -> [*, n, *]."""
    return _into(input, lambda x: select(x, dim, index), src, "select_scatter")


@composite
def slice_scatter(input: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Tensor:
    """input with src as its slices start:end:step along dim. [*, n, *], [*, k, *] -> [*, n, *]."""
    d = located(_dimension, dim, input.ndim)
    if step < 1:
        raise ShapeError(f"slice_scatter expects a positive step, got {step}\n  at {site()}")
    first, stop, _ = slice(start, end, step).indices(input.shape[d])
    length = len(range(first, stop, step))
    return _into(input, lambda x: slice_dim(x, d, first, length, step), src, "slice_scatter")


@composite
def diagonal_scatter(input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """input with src as its diagonal. [*, n, m], [*, k] -> [*, n, m]."""
    return _into(input, lambda x: diagonal(x, offset, dim1, dim2), src, "diagonal_scatter")
