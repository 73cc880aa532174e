"""Scans along a dimension, PyTorch's cumulative functions made of them, and what sums or subtracts neighbours. [*] -> [*]."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import dispatch
from ..dtype import dtype as as_dtype
from ..dtype import int64
from ..errors import DTypeError, ShapeError
from ..provenance import site
from ..shape import normalize_dim
from ..storage import Layout
from . import creation, index, move, pointwise
from .archetype import Scan
from .arithmetic import Extreme
from .factory import whole
from .inplace import inplace
from .table import Inferred, Sample, Spec, composite, op
from .views import cat, located, reshape, unsqueeze

if TYPE_CHECKING:
    from ..tensor import Tensor


def _added_up(input: Layout, dim: int, reverse: bool = False) -> Inferred:
    """Sums and products of integers are int64."""
    out = input.dtype if input.dtype.is_floating_point else int64
    return Inferred((Spec(out, input.shape),), (out,), {"dim": normalize_dim(dim, len(input.shape)), "reverse": reverse})


def _f32(*shape: int, low: float = -2.5, high: float = 2.5) -> Any:
    return np.random.default_rng(5).uniform(low, high, shape).astype(np.float32)


def _samples(*last: Any) -> Any:
    return lambda: [
        Sample.of(_f32(3, 5, 4), 1, *last),
        Sample.of(_f32(3, 5, 4), -1, *last),
        Sample.of(_f32(3, 8), 0, *last),
        Sample.of(_f32(2, 130), 1, *last),
        Sample.of(_f32(33), 0, *last),
        Sample.of(_f32(), 0, *last),
        Sample.of(_f32(0, 3), 1, *last),
    ]


def _accumulated(fn: Any, input: Any, dim: int, reverse: bool = False) -> Any:
    values = np.asarray(input, input.dtype if input.dtype.kind == "f" else np.int64)
    if not values.ndim:
        return values
    return np.flip(fn.accumulate(np.flip(values, dim), axis=dim), dim) if reverse else fn.accumulate(values, axis=dim)


@op(
    Scan("sum"),
    rule=_added_up,
    ref=lambda input, dim, reverse: _accumulated(np.add, input, dim, reverse),
    grad={"input": lambda grad, dim, reverse: scan_sum(grad, dim, not reverse)},
    samples=lambda: [*_samples(False)(), *_samples(True)()],
    public=False,
    torch=None,
)
def scan_sum(input: Tensor, dim: int, reverse: bool = False) -> Tensor:
    """Sums of the elements up to each along dim, itself included (from each on for reverse). [*] -> [*]."""


def _prod_grad(grad: Any, input: Any, dim: int, result: Any) -> Any:
    """Without division by zero: elements before the first zero of a row divide by themselves, the first zero gets what
    the product without it gives, and those behind get nothing. The derivative of that is wrong at zeros, so a gradient
    that will be differentiated again is taken from all products of all elements but one."""
    if not input.shape or not input.numel():
        return grad
    if dispatch.is_grad_enabled():
        return _prod_grad_smooth(grad, input, dim)
    zero = input == 0
    seen = scan_sum(zero, dim)
    first = pointwise.logical_and(zero, seen == 1)
    ahead = scan_sum(pointwise.where(seen == 0, grad * result, 0.0), dim, True) / input
    without = scan_prod(pointwise.where(first, 1.0, input), dim)
    behind = scan_sum(pointwise.where(seen == 1, grad * without, 0.0), dim, True)
    return pointwise.where(seen == 0, ahead, pointwise.where(first, behind, 0.0))


def _prod_grad_smooth(grad: Any, input: Any, dim: int) -> Any:
    """sum over j >= k of grad[j] * product over i <= j, i != k, of input[i]: n products of n elements a row."""
    x, g = input.movedim(dim, -1), grad.movedim(dim, -1)
    n = x.shape[-1]
    places = creation.ramp(0, 1, (n,), int64)
    row = unsqueeze(places, 1)
    others = scan_prod(pointwise.where(row == places, 1.0, unsqueeze(x, -2)), x.ndim)
    kept = pointwise.where(places >= row, others, 0.0)
    return (kept * unsqueeze(g, -2)).sum(-1).movedim(-1, dim)


@op(
    Scan("prod"),
    rule=lambda input, dim: _added_up(input, dim),
    ref=lambda input, dim: _accumulated(np.multiply, input, dim),
    grad={"input": _prod_grad},
    samples=lambda: [Sample.of(*s.args) for s in _samples()() if np.size(s.args[0]) < 100],
    public=False,
    torch=None,
)
def scan_prod(input: Tensor, dim: int) -> Tensor:
    """Products of the elements up to each along dim, itself included. [*] -> [*]."""


def _log_rule(input: Layout, dim: int, reverse: bool) -> Inferred:
    if not input.dtype.is_floating_point:
        raise DTypeError(f"expected a floating point tensor, got {input}; convert it with .float() first")
    return _added_up(input, dim, reverse)


def _log_grad(grad: Any, input: Any, dim: int, reverse: bool, result: Any) -> Any:
    """The sum of grad[j] * exp(input[k] - result[j]) over the results j that k is part of, scanned in logarithms, since
    results may lie too far apart for one scale; positive and negative gradients apart."""

    def part(weight: Any) -> Any:
        some = weight > 0
        logs = pointwise.where(some, pointwise.log(pointwise.where(some, weight, 1.0)), -math.inf)
        return pointwise.exp(scan_logsumexp(logs - result, dim, not reverse) + input)

    if not input.numel():
        return grad
    return pointwise.where(result == -math.inf, 0.0, part(grad) - part(-grad))


@op(
    Scan("logsumexp"),
    rule=_log_rule,
    ref=lambda input, dim, reverse: _accumulated(np.logaddexp, input, dim, reverse),
    grad={"input": _log_grad},
    samples=lambda: [*_samples(False)(), *_samples(True)()],
    public=False,
    torch=None,
)
def scan_logsumexp(input: Tensor, dim: int, reverse: bool = False) -> Tensor:
    """log of the sum of exp of the elements up to each along dim, itself included; from each on for reverse. [*] -> [*]."""


def _extreme_rule(input: Layout, dim: int) -> Inferred:
    d = normalize_dim(dim, len(input.shape))
    return Inferred((Spec(input.dtype, input.shape), Spec(int64, input.shape)), (input.dtype,), {"dim": d})


def _extreme_ref(sign: int) -> Any:
    def ref(input: Any, dim: int) -> Any:
        rows = np.moveaxis(np.atleast_1d(input), dim, 0) * 1
        places = np.zeros(rows.shape, np.int64)
        for i in range(1, len(rows)):
            before, x = rows[i - 1], rows[i]
            take = np.isnan(x) | (~np.isnan(before) & (x >= before if sign > 0 else x <= before))
            places[i] = np.where(take, i, places[i - 1])
            rows[i] = np.where(take, x, before)
        out = np.moveaxis(rows, 0, dim), np.moveaxis(places, 0, dim)
        return tuple(o.reshape(np.shape(input)) for o in out)

    return ref


def _extreme_grad(grad: Any, input_meta: Layout, dim: int, result1: Any) -> Any:
    rule: Any = index.gather.grad["input"]
    return rule(grad=grad, input_meta=input_meta, dim=dim, index=result1)


@op(
    Scan("max"),
    rule=_extreme_rule,
    ref=_extreme_ref(1),
    grad={"input": _extreme_grad},
    differentiable=(True, False),
    samples=_samples(),
    public=False,
    torch=None,
)
def scan_max(input: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The largest element up to each along dim and its place, the last of equals; NaN beats all. [*] -> [*], [*] int64."""


@op(
    Scan("min"),
    rule=_extreme_rule,
    ref=_extreme_ref(-1),
    grad={"input": _extreme_grad},
    differentiable=(True, False),
    samples=_samples(),
    public=False,
    torch=None,
)
def scan_min(input: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The smallest element up to each along dim and its place, the last of equals; NaN beats all. [*] -> [*], [*] int64."""


# ---- PyTorch's names ----


def _scanned(row: Any, input: Tensor, dim: int, dtype: Any) -> Tensor:
    kind = None if dtype is None else as_dtype(dtype)
    out: Tensor = row(input if kind is None else input.to(kind), dim)
    return out if kind is None else out.to(kind)


@inplace
@composite
def cumsum(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """Cumulative sum along dim; integers and bools give int64. [*] -> [*]."""
    return _scanned(scan_sum, input, dim, dtype)


@inplace
@composite
def cumprod(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """Cumulative product along dim; integers and bools give int64. [*] -> [*]."""
    return _scanned(scan_prod, input, dim, dtype)


@composite
def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """Logarithm of the cumulative sum of exp along dim, without overflow. [*] -> [*]."""
    return scan_logsumexp(input, dim)  # type: ignore[no-any-return]


@composite
def cummax(input: Tensor, dim: int) -> Extreme:
    """(values, indices) of the largest element up to each along dim; the last of equals. [*] -> [*], [*] int64."""
    return Extreme(*scan_max(input, dim))


@composite
def cummin(input: Tensor, dim: int) -> Extreme:
    """(values, indices) of the smallest element up to each along dim; the last of equals. [*] -> [*], [*] int64."""
    return Extreme(*scan_min(input, dim))


# ---- neighbours ----


@composite
def diff(input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None) -> Tensor:
    """n-th differences of neighbours along dim (exclusive or of bools). [*, m, *] -> [*, m - n, *]."""
    if not input.shape:
        raise ShapeError(f"diff expects a tensor of at least 1 dimension\n  at {site()}")
    times = whole(n, "n")
    if times < 0:
        raise ShapeError(f"diff expects n >= 0, got {times}\n  at {site()}")
    d = located(normalize_dim, dim, input.ndim)
    if times == 0:
        return input
    parts = [_border(x, input, d) for x in (prepend, input, append) if x is not None]
    out = cat(parts, d) if len(parts) > 1 else input
    for _ in range(min(times, out.shape[d])):
        m = out.shape[d]
        if m == 0:
            break
        left, right = move.slice_dim(out, d, 0, m - 1, 1), move.slice_dim(out, d, 1, m - 1, 1)
        out = pointwise.logical_xor(right, left) if out.dtype.kind == "b" else right - left
    return out


def _border(x: Tensor, input: Tensor, dim: int) -> Tensor:
    """What diff joins to input: of its shape but along dim."""
    if x.ndim != input.ndim:
        raise ShapeError(f"diff: prepend and append need {input.ndim} dimensions as input has, got shape {list(x.shape)}\n  at {site()}")
    return x


@composite(method=False)
def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: Any = None, dim: int = -1) -> Tensor:
    """Integral along dim by the trapezoidal rule, at points x or dx apart. [*, n, *] -> [*]."""
    d, areas = _areas(y, x, dx, dim)
    if not y.shape[d]:
        areas = areas.detach()  # as in PyTorch: nothing to go back to
    return areas.sum(d)  # type: ignore[no-any-return]


@composite(method=False)
def cumulative_trapezoid(y: Tensor, x: Tensor | None = None, *, dx: Any = None, dim: int = -1) -> Tensor:
    """Integrals up to each point but the first, by the trapezoidal rule. [*, n, *] -> [*, n - 1, *]."""
    d, areas = _areas(y, x, dx, dim)
    return cumsum(areas, d)  # type: ignore[no-any-return]


def _areas(y: Tensor, x: Tensor | None, dx: Any, dim: int) -> tuple[int, Tensor]:
    """The dimension (from the end) and the area of each strip along it."""
    if x is not None and dx is not None:
        raise TypeError(f"trapezoid takes x or dx, not both\n  at {site()}")
    if not y.shape:
        raise ShapeError(f"trapezoid of a 0-d tensor\n  at {site()}")
    d = located(normalize_dim, dim, y.ndim) - y.ndim
    if y.dtype.kind == "b":
        raise DTypeError(f"trapezoid of bools\n  at {site()}")
    left, right = _neighbours(y, d)
    if x is None:
        return d, (left + right) * ((1 if dx is None else dx) / 2)
    if x.ndim == 1 and x.shape[0] != y.shape[d]:
        raise ShapeError(f"trapezoid: {x.shape[0]} points for {y.shape[d]} values along {dim}\n  at {site()}")
    points = reshape(x, *x.shape, *(1,) * (-d - 1)) if x.ndim == 1 else x
    if points.ndim < -d:
        raise ShapeError(f"trapezoid: points of shape {list(x.shape)} have no dimension {d}\n  at {site()}")
    low, high = _neighbours(points, d)
    return d, (left + right) * (high - low) / 2


def _neighbours(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """All elements but the last, and all but the first."""
    n = max(x.shape[dim] - 1, 0)
    d = dim % x.ndim
    return move.slice_dim(x, d, 0, n, 1), move.slice_dim(x, d, min(1, n), n, 1)
