"""Rotary position embedding, and writing keys and values into a cache at a position that lies on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..dispatch import is_grad_enabled
from ..dtype import float32
from ..errors import DTypeError, GradientError, ShapeError
from ..provenance import site
from ..shape import broadcast_shapes
from ..storage import Layout
from .archetype import Kernel
from .creation import ramp
from .move import check_dtype
from .table import Inferred, Sample, Spec, composite, op
from .views import cat

if TYPE_CHECKING:
    from ..tensor import Tensor


def _rule(input: Layout, cos: Layout, sin: Layout, interleaved: bool) -> Inferred:
    if len(input.shape) != 4 or input.shape[-1] % 2:
        raise ShapeError(f"rotary_embedding expects [.., L, D] with an even D, got {list(input.shape)}")
    wanted = (*input.shape[:3], input.shape[3] // 2)
    for name, t in (("cos", cos), ("sin", sin)):
        if len(t.shape) > 4 or broadcast_shapes(t.shape, wanted) != wanted or t.shape[-1:] != wanted[-1:]:
            raise ShapeError(f"rotary_embedding: {name} of shape {list(t.shape)} does not fit pairs {list(wanted)}")
    if not all(x.dtype.is_floating_point for x in (input, cos, sin)):
        raise DTypeError(f"rotary_embedding is not defined for {input.dtype.name}, {cos.dtype.name}, {sin.dtype.name}")
    outs = (Spec(input.dtype, input.shape),)
    return Inferred(outs, (input.dtype, cos.dtype, sin.dtype), {"interleaved": bool(interleaved)})


def _pairs(x: Any, interleaved: bool) -> tuple[Any, Any]:
    """First and second elements of all pairs."""
    n = x.shape[-1] // 2
    return (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :n], x[..., n:])


def _ref(input: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
    a, b = _pairs(input, interleaved)
    out = np.empty(input.shape, np.result_type(input, cos, sin))
    first, second = _pairs(out, interleaved)
    first[...], second[...] = a * cos - b * sin, b * cos + a * sin
    return out


def _dot(grad: Any, input: Any, interleaved: bool, turned: bool) -> Any:
    (g, h), (a, b) = _pairs(grad, interleaved), _pairs(input, interleaved)
    return h * a - g * b if turned else g * a + h * b


def _draw(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@op(
    Kernel("rotary"),
    rule=_rule,
    ref=_ref,
    grad={
        "input": lambda grad, cos, sin, interleaved: rotary_row(grad, cos, -sin, interleaved),
        "cos": lambda grad, input, interleaved: _dot(grad, input, interleaved, False),
        "sin": lambda grad, input, interleaved: _dot(grad, input, interleaved, True),
    },
    samples=lambda: [
        Sample.of(_draw(1, 1, 2, 3, 8), _draw(2, 3, 4), _draw(3, 3, 4), False),
        Sample.of(_draw(1, 1, 2, 3, 8), _draw(2, 3, 4), _draw(3, 3, 4), True),
        Sample.of(_draw(1, 2, 1, 3, 6), _draw(2, 2, 1, 3, 3), _draw(3, 1, 1, 3, 3), False),
        Sample.of(_draw(1, 2, 1, 3, 6), _draw(2, 2, 1, 3, 3), _draw(3, 3), True),
        Sample.of(_draw(1, 2, 5, 7, 64), _draw(2, 7, 32), _draw(3, 7, 32), False),
    ],
    public=False,
    torch=None,
    shown="rotary_embedding",
)
def rotary_row(input: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """Pairs (a, b) to (a cos - b sin, b cos + a sin). [B, H, L, D], tables broadcast to [B, H, L, D / 2] -> [B, H, L, D].

    A pair is an element and its like in the other half, or (interleaved) two neighbours. Source: arXiv:2104.09864.
    """


@composite(method=False)
def rotary_embedding(input: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """Turn pairs of elements by the angles of a table. [..., L, D], [..., L, R / 2] twice -> [..., L, D].

    Pairs are the halves of the first R elements (as Llama's) or neighbours (interleaved, as GPT-J's); elements from R on stay.
    """
    turned = 2 * cos.shape[-1] if cos.ndim else 0
    if not input.ndim or not 0 < turned <= input.shape[-1]:
        raise ShapeError(f"rotary_embedding: tables of shape {list(cos.shape)} do not fit input {list(input.shape)}\n  at {site()}")
    rest = input[..., turned:] if turned < input.shape[-1] else None
    x = input if rest is None else input[..., :turned]
    if x.ndim > 4 and max(cos.ndim, sin.ndim) > 2:
        cos, sin = (t.expand((*x.shape[:-1], turned // 2)).reshape((-1, 1, x.shape[-2], turned // 2)) for t in (cos, sin))
        y = rotary_row(x.reshape((-1, 1, *x.shape[-2:])), cos, sin, interleaved)
    elif x.ndim > 4:
        y = rotary_row(x.reshape((-1, 1, *x.shape[-2:])), cos, sin, interleaved)
    else:
        y = rotary_row(x.reshape((1,) * (4 - x.ndim) + x.shape), cos, sin, interleaved)
    y = y.reshape(x.shape)
    return y if rest is None else cat([y, rest], -1)


@composite(method=False)
def rotary_tables(positions: int, dim: int, base: float = 10000.0, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """cos and sin of position * scale / base^(2 i / dim). -> [positions, dim / 2] twice."""
    if dim % 2 or dim < 2:
        raise ShapeError(f"rotary tables need an even number of elements, got {dim}\n  at {site()}")
    place = ramp(0.0, 1.0, (positions,), float32).reshape((positions, 1)) * scale
    angle = place * (ramp(0.0, 2.0 / dim, (dim // 2,), float32) * -float(np.log(base))).exp()
    return angle.cos(), angle.sin()


# ---- caches ----


def _cache_rule(caches: Sequence[Layout], values: Sequence[Layout], position: Layout) -> Inferred:
    check_dtype(position, "position")
    if len(caches) != len(values):
        raise ShapeError(f"{len(caches)} caches but {len(values)} values")
    for c, v in zip(caches, values, strict=True):
        fits = len(c.shape) == len(v.shape) == 4 and c.shape[:2] == v.shape[:2] and c.shape[3] == v.shape[3] and v.shape[2] <= c.shape[2]
        if not fits or c.dtype is not v.dtype:
            raise ShapeError(f"cache_write_: {v!r} does not fit into {c!r} ([B, H, S, E] takes [B, H, L, E])")
        if position.shape not in ((), (1,), (c.shape[0],)):
            raise ShapeError(f"cache_write_: position must have shape [] or [{c.shape[0]}], got {list(position.shape)}")
    dtypes = (*(x.dtype for x in caches), *(x.dtype for x in values), position.dtype)
    return Inferred(tuple(Spec(c.dtype, c.shape) for c in caches), dtypes, {})


def _cache_ref(caches: Any, values: Any, position: Any) -> tuple[list[Any]]:
    out = []
    for c, v in zip(caches, values, strict=True):
        made = c.copy()
        for b, at in enumerate(np.broadcast_to(np.reshape(position, -1), c.shape[:1])):
            made[b, :, int(at) : int(at) + v.shape[2]] = v[b]
        out.append(made)
    return (out,)


@op(
    Kernel("cache_write"),
    rule=_cache_rule,
    ref=_cache_ref,
    mutates=("caches",),
    static_index=False,
    samples=lambda: [
        Sample.of([_draw(1, 2, 3, 7, 8)], [_draw(2, 2, 3, 2, 8)], np.array(4)),
        Sample.of([_draw(1, 2, 1, 9, 5), _draw(4, 2, 1, 9, 3)], [_draw(2, 2, 1, 3, 5), _draw(3, 2, 1, 3, 3)], np.array([0, 6])),
    ],
    public=False,
    method=False,
    torch=None,
    shown="cache_write_",
)
def cache_write(caches: Sequence[Tensor], values: Sequence[Tensor], position: Tensor) -> Tensor:
    """In place: values [B, H, L, E] into caches [B, H, S, E] from row `position` ([] or [B] whole numbers) on."""


@composite(method=False)
def cache_write_(caches: Sequence[Tensor], values: Sequence[Tensor], position: Tensor) -> Sequence[Tensor]:
    """In place: each of values [B, H, L, E] into its cache [B, H, S, E], rows position to position + L.

    position [] or [B] lies on the device, so writing further on needs no new kernel; rows beyond the cache raise at the next sync.
    For inference: what is written is not differentiated.
    """
    if is_grad_enabled() and any(t.requires_grad for t in (*caches, *values)):
        raise GradientError(f"cache_write_ has no gradient; use it under no_grad()\n  at {site()}")
    cache_write(list(caches), list(values), position)
    return caches
