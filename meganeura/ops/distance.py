"""Distances between vectors, pair by pair or each with each."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..errors import DTypeError, ShapeError
from ..provenance import site
from ..shape import broadcast_shapes
from . import reduce, views
from .matmul import batched_matmul
from .table import composite

if TYPE_CHECKING:
    from ..tensor import Tensor

DIRECT = 25  # more rows than this go through a matrix product, unless asked not to, as in PyTorch
_MODES = ("use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist")


def _root(x: Tensor, p: float) -> Tensor:
    """x ** (1 / p) of what is not negative, with a gradient of 0 at 0."""
    zero = x == 0
    safe = x.masked_fill(zero, 1.0)
    return (safe.sqrt() if p == 2 else safe.pow(1.0 / p)).masked_fill(zero, 0.0)  # type: ignore[no-any-return]


def p_norm(x: Tensor, p: float, dim: int = -1, keepdim: bool = False) -> Tensor:
    """(sum |x|^p)^(1/p) along dim, with a gradient of 0 at 0. [*, n, *] -> [*, *]."""
    if p == 0:
        return reduce.sum((x != 0).to(x.dtype), dim, keepdim)  # type: ignore[no-any-return]
    if p == 1:
        return reduce.sum(x.abs(), dim, keepdim)  # type: ignore[no-any-return]
    if p == math.inf:
        return reduce.amax(x.abs(), dim, keepdim)  # type: ignore[no-any-return]
    if p == 2:
        return _root(reduce.sum(x * x, dim, keepdim), 2)
    zero = x == 0
    powers = x.abs().masked_fill(zero, 1.0).pow(p).masked_fill(zero, 0.0)
    return _root(reduce.sum(powers, dim, keepdim), p)


@composite(method=False)
def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str | None = None) -> Tensor:
    """The p-norm of every difference of a row of x1 and a row of x2. [*, n, k], [*, m, k] -> [*, n, m].

    p=2 of more than 25 rows goes through a matrix product, which is quicker and less exact for rows that nearly agree.
    """
    for t in (x1, x2):
        if t.ndim < 2 or not t.dtype.is_floating_point:
            raise ShapeError(f"cdist takes floating point tensors of at least 2 dimensions, got {t.layout}\n  at {site()}")
    if x1.dtype is not x2.dtype:
        raise DTypeError(f"cdist takes tensors of one dtype, got {x1.layout} and {x2.layout}\n  at {site()}")
    if x1.shape[-1] != x2.shape[-1]:
        raise ShapeError(f"cdist: rows of {x1.shape[-1]} and of {x2.shape[-1]} elements\n  at {site()}")
    if not p >= 0 or compute_mode not in (None, *_MODES):
        raise ShapeError(f"cdist: p={p} must not be negative, compute_mode={compute_mode!r} one of {', '.join(_MODES)}\n  at {site()}")
    views.located(broadcast_shapes, x1.shape[:-2], x2.shape[:-2])
    if not x1.shape[-1]:
        return reduce.sum(views.unsqueeze(x1, -2) - views.unsqueeze(x2, -3), -1)  # type: ignore[no-any-return]
    many = x1.shape[-2] > DIRECT or x2.shape[-2] > DIRECT
    if p == 2 and (compute_mode == _MODES[1] or (many and compute_mode != _MODES[2])):
        squares = reduce.sum(x1 * x1, -1, True) + views.transpose(reduce.sum(x2 * x2, -1, True), -2, -1)
        cross: Any = batched_matmul(x1, views.transpose(x2, -2, -1))
        return _root((squares - cross * 2.0).clamp(min=0.0), 2)
    return p_norm(views.unsqueeze(x1, -2) - views.unsqueeze(x2, -3), p)


@composite
def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """The p-norm of the difference. [*], [*] -> []."""
    apart = input - other
    return p_norm(views.reshape(apart, apart.numel()), p)


@composite(method=False)
def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """The p-norm of x1 - x2 + eps along the last dimension. [*, n], [*, n] -> [*]."""
    return p_norm(x1 - x2 + eps, p, -1, keepdim)


@composite(method=False)
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """x1 . x2 / (max(|x1|, eps) * max(|x2|, eps)) along dim. [*, n, *], [*, n, *] -> [*, *]."""
    shape = views.located(broadcast_shapes, x1.shape, x2.shape)
    a, b = (views.expand(x, *shape) for x in (x1, x2))
    a, b = (x / p_norm(x, 2, dim, True).clamp(min=eps) for x in (a, b))
    return reduce.sum(a * b, dim)  # type: ignore[no-any-return]
