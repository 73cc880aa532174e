"""Estimates from samples: gradients of sampled functions, histograms over edges, distances of all pairs, places of what is not zero."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import dispatch
from ..dtype import float32, int64
from ..errors import DTypeError, ShapeError
from ..provenance import site
from ..shape import normalize_dim, numel
from . import creation, index, pointwise, views
from .distance import cdist
from .factory import linspace, tensor, whole
from .scan import cumsum
from .sorting import searchsorted
from .table import composite

if TYPE_CHECKING:
    from ..tensor import Tensor


def _is_tensor(value: Any) -> bool:
    return isinstance(value, dispatch.hooks.tensor)


# ---- gradients of samples ----


@composite(method=False)
def gradient(input: Tensor, *, spacing: Any = 1, dim: Any = None, edge_order: int = 1) -> list[Tensor]:
    """The slope of samples along each dim, of second order inside and of `edge_order` (1 or 2) at the ends. Spacing: a number, one a dim,
    or a vector of places a dim. [*] -> [*] each."""
    dims = _each_dim(input, dim)
    if edge_order not in (1, 2):
        raise ShapeError(f"gradient: edge_order must be 1 or 2, got {edge_order}\n  at {site()}")
    steps = list(spacing) if isinstance(spacing, (tuple, list)) else [spacing] * len(dims)
    if len(steps) != len(dims) or (_is_tensor(spacing) and spacing.ndim == 0):
        raise ShapeError(f"gradient: {len(steps)} spacings for the {len(dims)} dimensions {list(dims)}\n  at {site()}")
    x = input if input.is_floating_point() else input.float()
    return [_slope(x, d, step, edge_order) for d, step in zip(dims, steps, strict=True)]


def _each_dim(input: Tensor, dim: Any) -> list[int]:
    """Distinct dimensions in the order given; None means all."""
    given = list(range(input.ndim)) if dim is None else list(dim) if isinstance(dim, (tuple, list)) else [dim]
    dims = [views.located(normalize_dim, d, input.ndim) for d in given]
    if len(set(dims)) != len(dims):
        raise ShapeError(f"gradient: dim {given} names a dimension twice\n  at {site()}")
    return dims


def _slope(x: Tensor, d: int, step: Any, edge_order: int) -> Tensor:
    n = x.shape[d]
    if n <= edge_order:
        raise ShapeError(f"gradient: dimension {d} of shape {list(x.shape)} needs more than {edge_order} elements\n  at {site()}")
    if _is_tensor(step):
        if step.ndim != 1 or step.shape[0] != n:
            raise ShapeError(f"gradient: {step.layout} are no places of the {n} elements of dimension {d}\n  at {site()}")
        place = views.view(step.contiguous(), n, *(1,) * (x.ndim - 1 - d))
        widths: Any = views.narrow(place, 0, 1, n - 1) - views.narrow(place, 0, 0, n - 1)
        return _between(x, d, lambda i, m: views.narrow(widths, 0, i, m), edge_order)
    return _between(x, d, lambda i, m: step, edge_order)


def _between(x: Tensor, d: int, width: Any, edge_order: int) -> Tensor:
    """The slopes: inside from both sides, weighted by the other side's width, and at the two ends. `width(i, m)`: of the strips from i."""
    n = x.shape[d]
    secants = views.narrow(x, d, 1, n - 1) - views.narrow(x, d, 0, n - 1)

    def one(i: int) -> Any:
        return views.narrow(secants, d, i, 1) / width(i, 1)

    first, last = one(0), one(n - 2)
    if edge_order == 2:
        a, b, c, e = width(0, 1), width(1, 1), width(n - 2, 1), width(n - 3, 1)
        first, last = first + (first - one(1)) * a / (a + b), last + (last - one(n - 3)) * c / (c + e)
    if n == 2:
        return views.cat([first, last], d)
    a, b = width(0, n - 2), width(1, n - 2)
    left, right = views.narrow(secants, d, 0, n - 2) / a, views.narrow(secants, d, 1, n - 2) / b
    return views.cat([first, (left * b + right * a) / (a + b), last], d)


# ---- histograms ----


class Histogram(NamedTuple):
    """Counts, and the edges between the bins."""

    hist: Tensor
    bin_edges: Any


@composite
def histogram(input: Tensor, bins: Any, *, range: Any = None, weight: Tensor | None = None, density: bool = False) -> Histogram:
    """Counts (or sums of weights) in bins: a number of equal ones over `range` or the values' own, or a vector of edges, the last one
    inside. density divides by total and width. [*] -> [bins], [bins + 1]."""
    x = _samples(input, "histogram")
    edges = _edges(x, bins, None if range is None else (float(range[0]), float(range[1])))
    counts, shape = _counted([views.reshape(x, x.numel())], [edges], weight)
    return Histogram(_density(views.reshape(counts, shape), [edges]) if density else views.reshape(counts, shape), edges)


@composite
def histogramdd(
    input: Tensor, bins: Any, *, range: Sequence[float] | None = None, weight: Tensor | None = None, density: bool = False
) -> Histogram:
    """histogram of points with one bin count, or one vector of edges, a coordinate. [*, d] -> [bins...], (edges...)."""
    x = _samples(input, "histogramdd")
    if x.ndim < 2:
        raise ShapeError(f"histogramdd takes points [*, d], got shape {list(x.shape)}\n  at {site()}")
    d = x.shape[-1]
    flat = views.reshape(x, numel(x.shape[:-1]), d)
    each = list(bins) if isinstance(bins, (tuple, list)) else [bins] * d
    if len(each) != d or (range is not None and len(range) != 2 * d):
        raise ShapeError(f"histogramdd: {len(each)} bins and range {range} do not fit points of {d} coordinates\n  at {site()}")
    columns = [views.select(flat, 1, i) for i in builtins.range(d)]
    edges = [
        _edges(c, b, None if range is None else (float(range[2 * i]), float(range[2 * i + 1])))
        for i, (c, b) in enumerate(zip(columns, each, strict=True))
    ]
    counts, shape = _counted(columns, edges, weight)
    hist = views.reshape(counts, shape)
    return Histogram(_density(hist, edges) if density else hist, tuple(edges))


def _samples(input: Tensor, what: str) -> Tensor:
    if not input.is_floating_point():
        raise DTypeError(f"{what} takes floating point values, got {input.layout}\n  at {site()}")
    return input.detach()


def _edges(x: Tensor, bins: Any, between: Any) -> Tensor:
    if _is_tensor(bins):
        if bins.ndim != 1 or bins.shape[0] < 2:
            raise ShapeError(f"histogram: {bins.layout} are no edges of bins\n  at {site()}")
        return bins  # type: ignore[no-any-return]
    count = whole(bins, "bins")
    if count < 1 or (between is not None and not between[0] <= between[1]):
        raise ShapeError(f"histogram needs bins > 0 and a rising range, got {bins} and {between}\n  at {site()}")
    if between is not None:
        low, high = between
        return linspace(low - 0.5, high + 0.5, count + 1) if low == high else linspace(low, high, count + 1)
    if not x.numel():
        return linspace(0.0, 1.0, count + 1)
    low, high = x.amin(), x.amax()
    same = (low == high).to(float32) * 0.5
    t = linspace(0.0, 1.0, count + 1)
    return (low - same) * (1.0 - t) + (high + same) * t  # type: ignore[no-any-return]


def _counted(columns: list[Tensor], edges: list[Tensor], weight: Tensor | None) -> tuple[Tensor, tuple[int, ...]]:
    """Sums in all cells, row by row, from the place of each coordinate; what lies outside goes to a cell that is left off."""
    shape = tuple(e.shape[0] - 1 for e in edges)
    cell: Any = 0
    inside: Any = None
    for x, e, bins in zip(columns, edges, shape, strict=True):
        last = views.select(e, 0, bins)
        place = pointwise.where(x == last, bins - 1, searchsorted(e, x.contiguous(), right=True) - 1)
        kept = pointwise.logical_and(place >= 0, place < bins)
        cell = cell * bins + place
        inside = kept if inside is None else pointwise.logical_and(inside, kept)
    total, count = numel(shape), columns[0].numel()
    at = pointwise.where(inside, cell, total).to(int64)
    if weight is None:
        rows = views.expand(creation.fill(1.0, (1, 1), float32), count, 1)
    else:
        if weight.numel() != count:
            raise ShapeError(f"histogram: {weight.layout} are no weights of {count} values\n  at {site()}")
        rows = views.reshape(weight.detach(), count, 1)
    return views.reshape(index.segment_sum(rows, at, total, total), total).to(columns[0].dtype), shape


def _density(hist: Tensor, edges: list[Tensor]) -> Tensor:
    out = hist / hist.sum()
    for d, e in enumerate(edges):
        widths = views.narrow(e, 0, 1, e.shape[0] - 1) - views.narrow(e, 0, 0, e.shape[0] - 1)
        out = out / views.view(widths, e.shape[0] - 1, *(1,) * (hist.ndim - 1 - d))
    return out  # type: ignore[no-any-return]


# ---- pairs and places ----


@composite(method=False)
def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """The p-norm of the difference of every pair of rows, i < j, pair by pair. [n, m] -> [n (n - 1) / 2]."""
    if input.ndim != 2 or not input.is_floating_point():
        raise ShapeError(f"pdist takes a floating point matrix, got {input.layout}\n  at {site()}")
    n = input.shape[0]
    i, j = np.triu_indices(n, 1)
    if not len(i):
        return views.narrow(views.reshape(input, input.numel()), 0, 0, 0).clone()  # type: ignore[no-any-return]
    all_pairs = cdist(input, input, p, "donot_use_mm_for_euclid_dist")
    return index.index_select(views.reshape(all_pairs, n * n), 0, tensor(i * n + j))  # type: ignore[no-any-return]


@composite
def nonzero_static(input: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """The indices of the first `size` elements that are not zero, and rows of fill_value where there are fewer. Unlike nonzero it reads
    nothing on the host. [*] -> [size, ndim]."""
    rows = whole(size, "size")
    if rows < 0:
        raise ShapeError(f"nonzero_static needs size >= 0, got {size}\n  at {site()}")
    count = input.numel()
    if not (input.ndim and count and rows):
        made = creation.fill(fill_value, (rows, input.ndim), int64)
        return made  # type: ignore[no-any-return]
    found = views.reshape(input, count) != 0
    rank = cumsum(found, 0) - 1
    kept = pointwise.logical_and(found, rank < rows)
    at = pointwise.where(kept, rank, rows)
    flat = creation.ramp(0, 1, (count,), int64)
    columns, step = [], count
    for n in input.shape:
        step //= n
        columns.append(pointwise.remainder(pointwise.floor_divide(flat, step), n))
    table = creation.fill(fill_value, (rows + 1, input.ndim), int64)
    return views.narrow(table.index_copy_(0, at, views.stack(columns, 1)), 0, 0, rows).clone()  # type: ignore[no-any-return]
