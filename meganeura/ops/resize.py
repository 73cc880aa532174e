"""Images of another size: interpolate and what PyTorch makes of it. One row, tables of weights an axis, and its transpose as gradient.

A plan has (mode, size, new size, scale or None, align_corners) for every axis. Weights are computed on the host as PyTorch does, in
float32; an axis is a band matrix [new size, taps] with the first source element of every row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import dispatch
from ..dtype import float32, int64, uint8
from ..errors import DTypeError, ShapeError
from ..provenance import site
from ..shape import Shape, numel
from ..storage import Layout
from . import arithmetic, pooling, rounding
from .archetype import Kernel
from .table import Inferred, Sample, Spec, composite, op

if TYPE_CHECKING:
    from ..tensor import Tensor

Axis = tuple[str, int, int, float | None, bool]
Plan = tuple[Axis, ...]
_AT_ONCE = 64  # elements a result from which axes are resampled one after another
_CUBIC, _CUBIC_SMOOTH = -0.75, -0.5  # PyTorch's coefficient without and with antialias
MODES = {"nearest": (3, 4, 5), "nearest-exact": (3, 4, 5), "area": (3, 4, 5), "linear": (3,), "bilinear": (4,), "bicubic": (4,),
         "trilinear": (5,), "lanczos": (4,)}  # fmt: skip

# ---- tables ----


def _scale(n: int, m: int, scale: float | None, align: bool) -> Any:
    """Source elements a result element, as PyTorch computes it."""
    if align:
        return np.float32((n - 1) / (m - 1)) if m > 1 else np.float32(0)
    return np.float32(1.0 / scale) if scale is not None and scale > 0 else np.float32(n) / np.float32(m)


def _cubic(x: Any, a: float) -> Any:
    """Keys' cubic kernel."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    return np.where(x < 1, near, np.where(x < 2, ((x - 5) * x + 8) * x * a - 4 * a, 0))


def _smooth(kind: str, n: int, m: int, scale: Any) -> tuple[Any, Any]:
    """Antialiased: the filter is as wide as what a result covers, and weights sum to 1."""
    half = {"linear": 1.0, "cubic": 2.0, "lanczos": 3.0}[kind]
    wide = np.float32(half) * scale if scale >= 1 else np.float32(half)
    inverse = np.float32(1) / scale if scale >= 1 else np.float32(1)
    centre = scale * (np.arange(m, dtype=np.float32) + np.float32(0.5))
    low = np.maximum((centre - wide + np.float32(0.5)).astype(np.int64), 0)
    count = np.minimum((centre + wide + np.float32(0.5)).astype(np.int64), n) - low
    taps = np.arange(max(int(count.max()), 1))
    x = (taps + low[:, None] - centre[:, None] + 0.5) * inverse
    if kind == "linear":
        w = np.maximum(1 - np.abs(x), 0)
    elif kind == "cubic":
        w = _cubic(x, _CUBIC_SMOOTH)
    else:
        w = np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)
    w = np.where(taps < count[:, None], w, 0)
    total = w.sum(1, keepdims=True)
    return low, w / np.where(total == 0, 1, total)


def _taps(axis: Axis) -> tuple[Any, Any]:
    """The source elements of each result [m, taps], perhaps repeated, and their weights."""
    mode, n, m, given, align = axis
    scale = _scale(n, m, given, align)
    o = np.arange(m, dtype=np.float32)
    if mode in ("nearest", "nearest-exact"):
        at = np.floor((o + np.float32(0.5)) * scale) if mode == "nearest-exact" else np.floor(o * scale)
        return np.minimum(at.astype(np.int64), n - 1)[:, None], np.ones((m, 1))
    if mode.startswith("smooth "):
        low, w = _smooth(mode[7:], n, m, scale)
        return np.minimum(low[:, None] + np.arange(w.shape[1]), n - 1), w
    x = o * scale if align else (o + np.float32(0.5)) * scale - np.float32(0.5)
    if mode == "linear" and n == m:  # whatever the factor, as in PyTorch
        return np.arange(n)[:, None], np.ones((n, 1))
    if mode == "linear":
        x = np.maximum(x, np.float32(0))
        low = np.minimum(x.astype(np.int64), n - 1)
        part = np.clip(x - low.astype(np.float32), 0, 1)
        return np.stack([low, np.minimum(low + 1, n - 1)], 1), np.stack([1 - part, part], 1)
    low = np.floor(x).astype(np.int64)
    part = (x - low.astype(np.float32))[:, None]
    around = np.arange(-1, 3)
    return np.clip(low[:, None] + around, 0, n - 1), _cubic(part - around, _CUBIC)


@lru_cache(256)
def _forward(axis: Axis) -> tuple[Any, Any]:
    """(first source element [m], weights [m, taps]) of an axis; first + taps lies inside."""
    at, w = _taps(axis)
    n, m = axis[1], axis[2]
    first = at.min(1)
    taps = int((at.max(1) - first).max()) + 1
    first = np.minimum(first, n - taps)
    out = np.zeros((m, taps), np.float64)
    np.add.at(out, (np.arange(m)[:, None], at - first[:, None]), w)
    return first, out.astype(np.float32)


@lru_cache(256)
def _backward(axis: Axis) -> tuple[Any, Any]:
    """The transpose: for every source element the first result that it takes part in, and its weights there."""
    first, w = _forward(axis)
    n, (m, taps) = axis[1], w.shape
    order = np.maximum.accumulate(first)  # it never falls, but for rounding
    i = np.arange(n)
    low, high = np.searchsorted(order, i - taps, "right"), np.searchsorted(order, i, "right")
    count = max(int((high - low).max()), 1)
    low = np.minimum(low, m - count)
    o = low[:, None] + np.arange(count)
    tap = i[:, None] - first[o]
    inside = (tap >= 0) & (tap < taps)
    return low, np.where(inside, w[o, np.clip(tap, 0, taps - 1)], 0).astype(np.float32)


@lru_cache(256)
def tables(plan: Plan, back: bool) -> tuple[Any, Any, Shape, Shape]:
    """First elements [sum of sizes] and weights [sum of sizes * taps], axis after axis; the result's sizes; taps an axis."""
    made = [_backward(a) if back else _forward(a) for a in plan]
    first = np.concatenate([f for f, _ in made]).astype(np.int64)
    weight = np.concatenate([w.reshape(-1) for _, w in made])
    return first, weight, tuple(len(f) for f, _ in made), tuple(w.shape[1] for _, w in made)


# ---- the row ----


def _ref(input: Any, first: Any, weight: Any, size: Shape, taps: Shape, plan: Plan, back: bool) -> Any:
    x, axes, at, start = input, len(size), 0, 0
    for a, (m, t) in enumerate(zip(size, taps, strict=True)):
        d = x.ndim - axes + a
        w = weight[at : at + m * t].reshape(m, t)
        low = np.minimum(first[start : start + m], x.shape[d] - t)
        taken = np.moveaxis(np.take(x, low[:, None] + np.arange(t), axis=d), (d, d + 1), (-2, -1))
        x = np.moveaxis(np.sum(np.where(w == 0, 0, taken * w), -1), -1, d)
        at, start = at + m * t, start + m
    return x


def _rule(input: Layout, first: Layout, weight: Layout, size: Shape, taps: Shape, plan: Plan, back: bool) -> Inferred:
    lead = input.shape[: len(input.shape) - len(size)]
    return Inferred((Spec(input.dtype, (*lead, *size)),), (input.dtype, first.dtype, float32), {})


def _case(shape: Shape, plan: Plan, back: bool) -> Sample:
    first, weight, size, taps = tables(plan, back)
    x = np.random.default_rng(8).uniform(-2, 2, shape).astype(np.float32)
    return Sample.of(x, first, weight, size, taps, plan, back)


def _samples() -> list[Sample]:
    linear: Plan = (("linear", 4, 7, None, False), ("linear", 5, 3, None, True))
    return [
        _case((2, 3, 4, 5), linear, False),
        _case((2, 3, 7, 3), linear, True),
        _case((2, 5), (("nearest", 5, 8, 1.7, False),), False),
        _case((2, 6, 5), (("cubic", 6, 5, None, False), ("cubic", 5, 9, 1.9, False)), False),
        _case((1, 5, 9), (("cubic", 6, 5, None, False), ("cubic", 5, 9, 1.9, False)), True),
        _case((1, 3, 2, 4), (("linear", 3, 4, None, False), ("nearest-exact", 2, 3, None, False), ("linear", 4, 2, None, False)), False),
        _case((2, 13), (("smooth cubic", 13, 5, None, False),), False),
    ]


@op(
    Kernel("window", {"kind": "sum", "reach": "table"}),
    rule=_rule,
    ref=_ref,
    grad={"input": lambda grad, plan, back: resampled(grad, plan, not back)},
    samples=_samples,
    public=False,
    torch=None,
    shown="interpolate",
)
def resample(input: Tensor, first: Tensor, weight: Tensor, size: Shape, taps: Shape, plan: Plan, back: bool) -> Tensor:
    """The last dimensions each times a band matrix: `taps` weights from element `first` on for every element of the result; the
    transposes of plan's where `back`. [*, axes], [sum of size], [sum of size * taps] -> [*, size]."""


def resampled(input: Any, plan: Plan, back: bool = False) -> Any:
    """resample by a plan, axis after axis where windows are large."""
    first, weight, size, taps = tables(plan, back)
    if len(plan) > 1 and numel(taps) > _AT_ONCE:
        x = input.float()
        for a in reversed(range(len(plan))):
            x = resampled(x.movedim(a - len(plan), -1), plan[a : a + 1], back).movedim(-1, a - len(plan))
        return x.contiguous().to(input.dtype)
    top = dispatch.current()
    return resample(input, top.upload(int64, first), top.upload(float32, weight), size, taps, plan, back)


# ---- PyTorch's functions ----


def _numbers(value: Any, dims: int, what: str, kinds: tuple[type, ...]) -> list[Any]:
    found = list(value) if isinstance(value, (tuple, list)) else [value] * dims
    if len(found) != dims:
        raise ShapeError(f"interpolate: {what} {value!r} does not have one number for each of {dims} dimensions\n  at {site()}")
    if any(not isinstance(v, kinds) or isinstance(v, bool) for v in found):
        raise DTypeError(f"interpolate: {what} must be numbers, got {value!r}\n  at {site()}")
    return found


def _check_mode(input: Tensor, mode: str, align_corners: bool | None, antialias: bool) -> None:
    if mode not in MODES:
        raise ShapeError(f"interpolate: mode {mode!r} does not exist; there are {', '.join(MODES)}\n  at {site()}")
    if align_corners is not None and mode in ("nearest", "area", "nearest-exact"):
        raise ShapeError(f"interpolate: align_corners has no meaning for mode {mode!r}\n  at {site()}")
    if input.ndim not in MODES[mode]:
        raise ShapeError(
            f"interpolate: mode {mode!r} takes tensors of {' or '.join(map(str, MODES[mode]))} dimensions [N, C, *], got shape "
            f"{list(input.shape)}\n  at {site()}"
        )
    if antialias and mode not in ("bilinear", "bicubic", "lanczos"):
        raise ShapeError(f"interpolate: antialias is for bilinear, bicubic and lanczos, not {mode!r}\n  at {site()}")
    if mode == "lanczos" and (align_corners or not antialias):
        raise ShapeError(f"interpolate: lanczos needs antialias and no align_corners\n  at {site()}")


@composite(method=False)
def interpolate(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None, antialias: bool = False,
) -> Tensor:  # fmt: skip
    """The image at another size, given as such or by factors. [N, C, *] -> [N, C, *new].

    mode: nearest (as PyTorch and OpenCV have it), nearest-exact (scikit-image, PIL), linear, bilinear, trilinear, bicubic, area, lanczos.
    """
    _check_mode(input, mode, align_corners, antialias)
    dims = input.ndim - 2
    if (size is None) == (scale_factor is None):
        raise ValueError(f"interpolate needs either size or scale_factor\n  at {site()}")
    factors = None if scale_factor is None else _numbers(scale_factor, dims, "scale_factor", (int, float))
    if recompute_scale_factor and factors is None:
        raise ValueError(f"interpolate: recompute_scale_factor has no meaning with a size\n  at {site()}")
    if factors is None:
        wanted = _numbers(size, dims, "size", (int,))
    else:
        wanted = [math.floor(n * f) for n, f in zip(input.shape[2:], factors, strict=True)]
    return _resized(input, wanted, None if recompute_scale_factor else factors, mode, bool(align_corners), antialias)


def _resized(input: Tensor, wanted: Sequence[int], factors: Any, mode: str, align: bool, antialias: bool) -> Tensor:
    if min(wanted) < 1 or 0 in input.shape[1:]:
        raise ShapeError(f"interpolate: sizes must be at least 1, got {list(input.shape)} to {list(wanted)}\n  at {site()}")
    dims = len(wanted)
    if mode == "area":
        pools = (pooling.adaptive_avg_pool1d, pooling.adaptive_avg_pool2d, pooling.adaptive_avg_pool3d)
        return pools[dims - 1](input, tuple(wanted))
    if not input.is_floating_point():
        if input.dtype is not uint8 or dims == 3 and mode == "trilinear":
            raise DTypeError(f"interpolate takes floating point tensors, and uint8 in some modes, got {input.layout}\n  at {site()}")
        out = _resized(input.float(), wanted, factors, mode, align, antialias)
        return arithmetic.clamp(rounding.round(out), 0, 255).to(uint8)
    kind = {"bilinear": "linear", "trilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    name = f"smooth {kind}" if antialias else kind
    if tuple(wanted) == input.shape[2:] and factors is None and not antialias:
        return input.clone()  # type: ignore[no-any-return]
    scales = factors or [None] * dims
    plan = tuple((name, n, m, None if f is None else float(f), align) for n, m, f in zip(input.shape[2:], wanted, scales, strict=True))
    return resampled(input, plan)  # type: ignore[no-any-return]


@composite(method=False)
def upsample(input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None) -> Tensor:
    """interpolate under its old name. [N, C, *] -> [N, C, *new]."""
    return interpolate(input, size, scale_factor, mode, align_corners)


@composite(method=False)
def upsample_nearest(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """interpolate with mode 'nearest'. [N, C, *] -> [N, C, *new]."""
    return interpolate(input, size, scale_factor, "nearest")


@composite(method=False)
def upsample_bilinear(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """interpolate with mode 'bilinear' and align_corners. [N, C, H, W] -> [N, C, H', W']."""
    return interpolate(input, size, scale_factor, "bilinear", True)
