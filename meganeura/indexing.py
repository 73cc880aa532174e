"""Tensor indexing: ints, slices, None, Ellipsis as views; integer tensors, lists and bool masks as copies, as in PyTorch.

A bool mask is counted on the host (its number of elements decides the shape), so it waits for the device and cannot be
traced. Assignment writes through views, and through one bool mask.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .errors import IndexOutOfRangeError, ShapeError
from .ops import index, move
from .ops.arithmetic import copy_, fill_
from .ops.factory import tensor
from .ops.pointwise import clone, wrapped_index
from .ops.views import permute, reshape, view
from .provenance import site
from .shape import broadcast_shapes, numel
from .tensor import Tensor


class _Lookup(NamedTuple):
    """An integer tensor that picks along a dimension."""

    dim: int
    at: Tensor


class _Taken(NamedTuple):
    """The view that the simple parts of a key make, the look-ups that remain on it, and whether reading copies in any case
    (bools are masks)."""

    view: Tensor
    lookups: list[_Lookup]
    copies: bool


def get(x: Tensor, key: Any) -> Tensor:
    """x[key]."""
    taken = _take(x, key)
    if not taken.lookups:
        if taken.copies:
            return clone(taken.view)
        return taken.view if taken.view is not x else view(x, x.shape)
    if len(taken.lookups) == 1:
        return _pick(taken.view, *taken.lookups[0])
    return _pick_together(taken)


def put(x: Tensor, key: Any, value: Any) -> None:
    """x[key] = value."""
    if isinstance(key, Tensor) and key.dtype.kind == "b":
        _put_masked(x, key, value)
        return
    taken = _take(x, key)
    if taken.lookups:
        raise ShapeError(f"assignment through an index tensor does not exist here yet; use where(), ints or slices\n  at {site()}")
    if isinstance(value, (int, float, np.number, np.bool_)):
        fill_(taken.view, value)
        return
    source = value if isinstance(value, Tensor) else tensor(value, taken.view.dtype)
    while source.ndim > taken.view.ndim and source.shape[0] == 1:  # PyTorch drops leading sizes of 1
        source = source[0]
    copy_(taken.view, source)


def _put_masked(x: Tensor, mask: Tensor, value: Any) -> None:
    """x[mask] = number or tensor of one element: every masked element gets the value."""
    if isinstance(value, Tensor) and value.numel() != 1:
        raise ShapeError(f"assignment of several values through a mask does not exist here yet; use where()\n  at {site()}")
    if mask.shape != x.shape[: mask.ndim]:
        raise ShapeError(f"a mask of shape {list(mask.shape)} does not fit a tensor of shape {list(x.shape)}\n  at {site()}")
    wide = view(mask, *mask.shape, *(1,) * (x.ndim - mask.ndim))
    x.masked_fill_(wide, reshape(value) if isinstance(value, Tensor) else value)


# ---- integer tensors ----


def _pick(x: Tensor, dim: int, idx: Tensor) -> Tensor:
    n = x.shape[dim]
    if n == 0 and idx.numel():
        raise IndexOutOfRangeError(f"an index into dimension {dim} of size 0 of a tensor of shape {list(x.shape)}\n  at {site()}")
    picked = index.index_select(x, dim, wrapped_index(reshape(idx, -1), n))
    return reshape(picked, *x.shape[:dim], *idx.shape, *x.shape[dim + 1 :])


def _pick_together(taken: _Taken) -> Tensor:
    """Several look-ups, broadcast together: one look-up in their dimensions merged into one. An index outside its own
    dimension becomes one outside the merged dimension."""
    x, lookups = taken.view, taken.lookups
    try:
        common = broadcast_shapes(*(k.at.shape for k in lookups))
    except ShapeError as e:
        raise ShapeError(f"index tensors: {e}\n  at {site()}") from None
    dims = [k.dim for k in lookups]
    rest = [d for d in range(x.ndim) if d not in dims]
    at = dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0  # look-ups apart put their result first
    order = [*rest[:at], *dims, *rest[at:]]
    sizes = [x.shape[d] for d in order]
    total = numel([x.shape[d] for d in dims])
    merged = reshape(permute(x, order), *sizes[:at], total, *sizes[at + len(dims) :])
    flat: Any = None
    outside: Any = None
    for k in lookups:
        n = x.shape[k.dim]
        i = wrapped_index(k.at, n)
        wrong = (i < 0) | (i >= n)
        flat = i if flat is None else flat * n + i
        outside = wrong if outside is None else outside | wrong
    if total == 0 and numel(common):
        raise IndexOutOfRangeError(f"an index into dimensions {dims} of no elements of a tensor of shape {list(x.shape)}\n  at {site()}")
    return _pick(merged, at, flat.masked_fill(outside, total).expand(common))


# ---- the key ----


def _take(x: Tensor, key: Any) -> _Taken:
    parts = [_part(k) for k in (key if isinstance(key, tuple) else (key,))]
    used = sum(_consumed(k) for k in parts)
    if used > x.ndim:
        raise IndexOutOfRangeError(f"{used} indices for a tensor of shape {list(x.shape)}\n  at {site()}")
    parts = _without_ellipsis(parts, x.ndim - used)
    dim = 0
    lookups: list[_Lookup] = []
    flags = False
    for k in parts:
        if isinstance(k, (bool, np.bool_)) or (isinstance(k, Tensor) and _is_mask(k) and k.ndim == 0):
            x, dim, flags = _flag(x, dim, bool(k)), dim + 1, True
        elif isinstance(k, Tensor) and k.ndim:
            found = _found(x, dim, k)
            lookups, dim = lookups + found, dim + len(found)
        else:
            x, dim = _one(x, dim, k)
    return _Taken(x, lookups, flags)


def _part(k: Any) -> Any:
    if isinstance(k, (list, range, np.ndarray)):
        a = np.asarray(k)
        return tensor(a.astype(np.int64) if a.size == 0 else a)
    return k


def _consumed(k: Any) -> int:
    """How many dimensions an element of a key uses up."""
    if k is None or k is Ellipsis or isinstance(k, (bool, np.bool_)):
        return 0
    return k.ndim if isinstance(k, Tensor) and _is_mask(k) else 1


def _is_mask(k: Tensor) -> bool:
    return k.dtype.kind == "b" or k.dtype.name == "uint8"


def _without_ellipsis(parts: list[Any], missing: int) -> list[Any]:
    at = [i for i, k in enumerate(parts) if k is Ellipsis]
    first = at[0] if at else len(parts)
    kept = [k for k in parts[first:] if k is not Ellipsis]
    return parts[:first] + [slice(None)] * missing + kept


def _found(x: Tensor, dim: int, k: Tensor) -> list[_Lookup]:
    """The look-ups of an integer tensor or a mask at `dim`; a mask is one a dimension, of where it holds."""
    if not _is_mask(k):
        if k.dtype.kind not in "iu":
            raise ShapeError(f"an index tensor must hold integers or bools, got {k.layout}\n  at {site()}")
        return [_Lookup(dim, k)]
    if k.shape != x.shape[dim : dim + k.ndim]:
        raise IndexOutOfRangeError(
            f"a mask of shape {list(k.shape)} does not fit dimension {dim} of a tensor of shape {list(x.shape)}\n  at {site()}"
        )
    return [_Lookup(dim + d, tensor(where)) for d, where in enumerate(np.nonzero(k.detach().numpy()))]


def _flag(x: Tensor, dim: int, on: bool) -> Tensor:
    """x[True] and x[False]: a new dimension of size 1 or 0."""
    wide = view(x, *x.shape[:dim], 1, *x.shape[dim:])
    return wide if on else move.slice_dim(wide, dim, 0, 0, 1)


def _one(x: Tensor, dim: int, k: Any) -> tuple[Tensor, int]:
    if k is None:
        return view(x, *x.shape[:dim], 1, *x.shape[dim:]), dim + 1
    if isinstance(k, slice):
        return _sliced(x, dim, k), dim + 1
    try:
        i = k.__index__()
    except (AttributeError, TypeError):
        raise IndexOutOfRangeError(
            f"cannot index with {k!r} ({type(k).__name__}): use ints, slices, None, Ellipsis, integer tensors or masks\n  at {site()}"
        ) from None
    n = x.shape[dim]
    if not -n <= i < n:
        raise IndexOutOfRangeError(f"index {i} is out of range for dimension {dim} of size {n} (shape {list(x.shape)})\n  at {site()}")
    one = move.slice_dim(x, dim, i % n, 1, 1)
    return view(one, *x.shape[:dim], *x.shape[dim + 1 :]), dim


def _sliced(x: Tensor, dim: int, k: slice) -> Tensor:
    try:
        start, stop, step = k.indices(x.shape[dim])
    except (TypeError, ValueError):
        raise ShapeError(f"slices take ints and a step of at least 1, got {k}\n  at {site()}") from None
    if step < 0:
        raise ShapeError(f"slice steps must be positive, got {step}\n  at {site()}")
    length = len(range(start, stop, step))
    whole = length == x.shape[dim] and step == 1
    return x if whole else move.slice_dim(x, dim, start, length, step)
