"""Tensor indexing: ints, slices, None, Ellipsis as views; integer tensors, lists and bool masks as copies, as in PyTorch.

A bool mask is counted on the host (its number of elements decides the shape), so it waits for the device and cannot be
traced, unless one number or element is assigned through it. Assignment writes through views, and through integer tensors and
masks by index (ops/scatter.py).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .dispatch import current
from .errors import IndexOutOfRangeError, ShapeError
from .ops import index, move
from .ops.arithmetic import copy_, fill_
from .ops.factory import tensor
from .ops.pointwise import clone, wrapped_index
from .ops.scatter import put_at
from .ops.segment import place
from .ops.views import expand, permute, reshape, view
from .provenance import site
from .shape import Shape, broadcast_shapes, numel
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
    taken = _take(x, key, True)
    if not taken.lookups:
        if taken.copies and taken.view._storage is x._storage:
            return clone(taken.view)  # type: ignore[no-any-return]
        return taken.view if taken.view is not x else view(x, x.shape)
    if len(taken.lookups) == 1:
        return _pick(taken.view, *taken.lookups[0])
    return _pick_together(taken)


def put(x: Tensor, key: Any, value: Any) -> None:
    """x[key] = value."""
    if isinstance(key, Tensor) and key.dtype.kind == "b" and _is_single(value) and key.shape == x.shape[: key.ndim]:
        wide = view(key, *key.shape, *(1,) * (x.ndim - key.ndim))  # needs no count of the mask
        x.masked_fill_(wide, reshape(value) if isinstance(value, Tensor) else value)
        return
    taken = _take(x, key, False)
    if taken.lookups:
        _put_looked_up(taken, value)
    elif isinstance(value, _NUMBERS):
        fill_(taken.view, value)
    else:
        copy_(taken.view, _fitting(value, taken.view, taken.view.ndim))


_NUMBERS = (int, float, np.number, np.bool_)


def _is_single(value: Any) -> bool:
    return value.numel() == 1 if isinstance(value, Tensor) else isinstance(value, _NUMBERS)


def _fitting(value: Any, target: Tensor, rank: int) -> Tensor:
    """What is assigned, as a tensor; PyTorch drops leading sizes of 1."""
    source = value if isinstance(value, Tensor) else tensor(value, target.dtype)
    while source.ndim > rank and source.shape[0] == 1:
        source = source[0]
    return source


def _put_looked_up(taken: _Taken, value: Any) -> None:
    """Assignment through integer tensors and masks; of several values for one place the last stays."""
    x, lookups = taken.view, taken.lookups
    source = _fitting(value, x, x.ndim - len(lookups) + len(_common(lookups)))
    put_at(x, [(k.dim, k.at) for k in lookups], source.to(x.dtype))


# ---- integer tensors ----


def _pick(x: Tensor, dim: int, idx: Tensor) -> Tensor:
    n = x.shape[dim]
    if n == 0 and idx.numel():
        raise IndexOutOfRangeError(f"an index into dimension {dim} of size 0 of a tensor of shape {list(x.shape)}\n  at {site()}")
    picked = index.index_select(x, dim, wrapped_index(reshape(idx, -1), n))
    return reshape(picked, *x.shape[:dim], *idx.shape, *x.shape[dim + 1 :])


def _common(lookups: list[_Lookup]) -> Shape:
    try:
        return broadcast_shapes(*(k.at.shape for k in lookups))
    except ShapeError as e:
        raise ShapeError(f"index tensors: {e}\n  at {site()}") from None


def _arranged(x: Tensor, lookups: list[_Lookup]) -> tuple[list[int], list[int], int]:
    """Looked-up dimensions, the rest, and how many of the rest come before the result of the look-ups."""
    dims = [k.dim for k in lookups]
    rest = [d for d in range(x.ndim) if d not in dims]
    return dims, rest, dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0  # look-ups apart put their result first


def _pick_together(taken: _Taken) -> Tensor:
    """Several look-ups, broadcast together: one look-up in their dimensions merged into one. An index outside its own
    dimension becomes one outside the merged dimension."""
    x, lookups = taken.view, taken.lookups
    common = _common(lookups)
    dims, rest, at = _arranged(x, lookups)
    order = [*rest[:at], *dims, *rest[at:]]
    sizes = [x.shape[d] for d in order]
    total = numel([x.shape[d] for d in dims])
    merged = reshape(permute(x, order), *sizes[:at], total, *sizes[at + len(dims) :])
    if total == 0 and numel(common):
        raise IndexOutOfRangeError(f"an index into dimensions {dims} of no elements of a tensor of shape {list(x.shape)}\n  at {site()}")
    flat: Any = 0
    for i, k in enumerate(lookups):
        n = x.shape[k.dim]
        flat = place(k.at, flat, n, numel([x.shape[d] for d in dims[i + 1 :]]), n, total)
    return _pick(merged, at, expand(flat, common))


# ---- the key ----


def _take(x: Tensor, key: Any, reading: bool) -> _Taken:
    parts = [_part(k) for k in (key if isinstance(key, tuple) else (key,))]
    used = sum(_consumed(k) for k in parts)
    if used > x.ndim:
        raise IndexOutOfRangeError(f"{used} indices for a tensor of shape {list(x.shape)}\n  at {site()}")
    parts = _without_ellipsis(parts, x.ndim - used)
    source, at, dim = x, 0, 0  # `at` counts the dimensions of the source that are used up
    lookups: list[_Lookup] = []
    flags = False
    for k in parts:
        if isinstance(k, (bool, np.bool_)) or (isinstance(k, Tensor) and _is_mask(k) and k.ndim == 0):
            x, dim, flags = _flag(x, dim, bool(k)), dim + 1, True
        elif isinstance(k, Tensor) and k.ndim:
            found = _found(x, dim, k)
            lookups, dim = lookups + found, dim + len(found)
        elif isinstance(k, Tensor) and (k._storage.buffer is None or not current().reads) and (reading or not lookups):
            # traced: an int that is known at run time only, so that reading it copies
            if reading:
                x, flags = current().picked(_pick(x, dim, k)), True
            else:
                lookups, dim = [_Lookup(dim, k)], dim + 1
        elif k is None:
            x, dim = view(x, *x.shape[:dim], 1, *x.shape[dim:]), dim + 1
        elif isinstance(k, slice):
            x, dim = _sliced(x, dim, k), dim + 1
        else:
            x = _one(x, dim, _whole(k, at, source))
        at += _consumed(k)
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
    return [_Lookup(dim + d, tensor(places)) for d, places in enumerate(np.nonzero(k.detach().numpy()))]


def _flag(x: Tensor, dim: int, on: bool) -> Tensor:
    """x[True] and x[False]: a new dimension of size 1 or 0."""
    wide = view(x, *x.shape[:dim], 1, *x.shape[dim:])
    return wide if on else move.slice_dim(wide, dim, 0, 0, 1)


def _whole(k: Any, dim: int, source: Tensor) -> int:
    """An int of a key, counted from the front of the dimension `dim` of the indexed tensor."""
    try:
        i = int(k.__index__())
    except (AttributeError, TypeError):
        raise IndexOutOfRangeError(
            f"cannot index with {k!r} ({type(k).__name__}): use ints, slices, None, Ellipsis, integer tensors or masks\n  at {site()}"
        ) from None
    n = source.shape[dim]
    if not -n <= i < n:
        raise IndexOutOfRangeError(f"index {i} is out of range for dimension {dim} of size {n} (shape {list(source.shape)})\n  at {site()}")
    return i % n


def _one(x: Tensor, dim: int, i: int) -> Tensor:
    return view(move.slice_dim(x, dim, i, 1, 1), *x.shape[:dim], *x.shape[dim + 1 :])


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
