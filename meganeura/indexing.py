"""Tensor indexing: ints, slices, None, Ellipsis as views; one integer tensor as index_select. Assignment writes through views."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import ShapeError
from .ops import index, move
from .ops.composite import copy_, fill_, reshape, tensor, view
from .provenance import site
from .tensor import Tensor


def get(x: Tensor, key: Any) -> Tensor:
    """x[key]."""
    out, lookup = _views(x, key)
    if lookup is None:
        return out
    dim, idx = lookup
    n = out.shape[dim]
    flat = reshape(idx, -1)
    picked = index.index_select(out, dim, (flat + (flat < 0).to(flat.dtype) * n).to(flat.dtype))
    return reshape(picked, *out.shape[:dim], *idx.shape, *out.shape[dim + 1 :])


def put(x: Tensor, key: Any, value: Any) -> None:
    """x[key] = value."""
    if isinstance(key, Tensor) and key.dtype.kind == "b":
        _put_masked(x, key, value)
        return
    out, lookup = _views(x, key)
    if lookup is not None:
        raise ShapeError(f"assignment through an integer tensor does not exist here yet; use where() or index with ints and slices\n  at {site()}")
    if isinstance(value, (int, float, bool)):
        fill_(out, value)
    else:
        copy_(out, value if isinstance(value, Tensor) else tensor(value, out.dtype))


def _put_masked(x: Tensor, mask: Tensor, value: Any) -> None:
    """x[mask] = number or 0-d tensor: every masked element gets the value."""
    if isinstance(value, Tensor) and value.numel() != 1:
        raise ShapeError(f"assignment of several values through a mask does not exist here yet; use where()\n  at {site()}")
    wide = view(mask, *mask.shape, *(1,) * (x.ndim - mask.ndim))
    copy_(x, x.masked_fill(wide, value if not isinstance(value, Tensor) else reshape(value)))


def _views(x: Tensor, key: Any) -> tuple[Tensor, tuple[int, Tensor] | None]:
    parts = list(key) if isinstance(key, tuple) else [key]
    used = sum(1 for k in parts if k is not None and k is not Ellipsis)
    if used > x.ndim:
        raise ShapeError(f"{used} indices for a tensor of shape {list(x.shape)}\n  at {site()}")
    if parts.count(Ellipsis) > 1 if not any(isinstance(k, Tensor) for k in parts) else False:
        raise ShapeError(f"an index may hold one Ellipsis\n  at {site()}")
    at = next((i for i, k in enumerate(parts) if k is Ellipsis), len(parts))
    fill = [slice(None)] * (x.ndim - used)
    parts = parts[:at] + fill + parts[at + 1 :]
    dim, lookup = 0, None
    for k in parts:
        if isinstance(k, (list, np.ndarray)):
            k = tensor(k)
        if isinstance(k, Tensor) and (k.ndim or k.dtype.kind == "b"):
            if k.dtype.kind not in "iu" or lookup is not None:
                raise ShapeError(f"indexing by {k.layout} does not exist here yet: one integer tensor an index\n  at {site()}")
            lookup = (dim, k)
            dim += 1
            continue
        x, dim = _one(x, dim, k)
    return x, lookup


def _one(x: Tensor, dim: int, k: Any) -> tuple[Tensor, int]:
    if k is None:
        return view(x, *x.shape[:dim], 1, *x.shape[dim:]), dim + 1
    if isinstance(k, slice):
        if k.step is not None and k.step < 0:
            raise ShapeError(f"slice steps must be positive, got {k.step}\n  at {site()}")
        start, stop, step = k.indices(x.shape[dim])
        length = len(range(start, stop, step))
        whole = length == x.shape[dim] and step == 1
        return (x if whole else move.slice_dim(x, dim, start, length, step)), dim + 1
    try:
        i = k.__index__()
    except (AttributeError, TypeError):
        raise ShapeError(f"cannot index with {type(k).__name__}: use ints, slices, None, Ellipsis or an integer tensor\n  at {site()}") from None
    n = x.shape[dim]
    if not -n <= i < n:
        raise ShapeError(f"index {i} is out of range for dimension {dim} of size {n} (shape {list(x.shape)})\n  at {site()}")
    one = move.slice_dim(x, dim, i % n, 1, 1)
    return view(one, *x.shape[:dim], *x.shape[dim + 1 :]), dim
