"""Sorting and what follows from it: order statistics, quantiles, searches in sorted rows, distinct elements.

One row gives the order of each row's elements (stable; NaN largest; -0 equal to 0); values are gathered by it, so that
gradients go back through the places they came from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import dispatch
from ..dtype import bool_, float32, int32, int64, promote
from ..errors import DTypeError, ShapeError
from ..provenance import site
from ..shape import normalize_dim
from ..storage import Layout
from . import creation, factory, index, move, pointwise, reduce
from .archetype import Kernel
from .arithmetic import Extreme
from .factory import limits, whole
from .rounding import round_whole
from .scan import scan_max, scan_sum
from .table import Inferred, Sample, Spec, composite, op
from .views import cat, expand, located, movedim, reshape, squeeze

if TYPE_CHECKING:
    from ..tensor import Tensor


def _order_rule(input: Layout, descending: bool) -> Inferred:
    return Inferred((Spec(int64, input.shape),), (input.dtype,), {"descending": bool(descending)})


def _order_ref(input: Any, descending: bool) -> Any:
    x = np.asarray(input)
    if not x.ndim:
        return np.int64(0)
    if not descending:
        return np.argsort(x, axis=-1, kind="stable")
    backwards = np.argsort(np.flip(x, -1), axis=-1, kind="stable")  # read backwards, equals come in order again
    return x.shape[-1] - 1 - np.flip(backwards, -1)


def _f32(*shape: int) -> Any:
    return np.random.default_rng(6).standard_normal(shape).astype(np.float32)


@op(
    Kernel("sort"),
    rule=_order_rule,
    ref=_order_ref,
    samples=lambda: [
        Sample.of(x, d)
        for x in (
            _f32(3, 7),
            np.round(_f32(2, 3, 130)),
            np.round(_f32(3000) * 9),
            np.array([np.nan, 1, -0.0, 0.0, -np.inf, np.nan, np.inf, -0.0, 1, -3], np.float32),
            np.random.default_rng(0).integers(-5, 5, (4, 33)),
            np.arange(12).reshape(2, 6) % 2 == 0,
            _f32(),
            _f32(0, 3),
        )
        for d in (False, True)
    ],
    public=False,
    torch=None,
)
def sort_order(input: Tensor, descending: bool) -> Tensor:
    """Places of the elements along the last dimension in order; equals keep theirs. [*, n] -> [*, n] int64."""


def _top_rule(input: Layout, k: int, descending: bool) -> Inferred:
    if not input.shape or not 0 <= k <= input.shape[-1]:
        raise ShapeError(f"the first {k} places of rows of shape {list(input.shape)}")
    return Inferred((Spec(int64, (*input.shape[:-1], k)),), (input.dtype,), {"k": k, "descending": bool(descending)})


def _draws() -> list[Any]:
    """Rows to select from: short and long, with ties, NaN and zeros of both signs."""
    special = np.array([np.nan, 1, -0.0, 0.0, -np.inf, np.nan, np.inf, -0.0, 1, -3], np.float32)
    whole = np.arange(40).reshape(2, 20) % 7
    return [_f32(3, 7), np.round(_f32(2, 3, 130)), np.round(_f32(3000) * 9), np.resize(special, (2, 2500)), whole]


@op(
    Kernel("top"),
    rule=_top_rule,
    ref=lambda input, k, descending: _order_ref(input, descending)[..., :k],
    samples=lambda: [Sample.of(x, k, d) for x in _draws() for k in (1, 5) for d in (False, True)],
    public=False,
    torch=None,
)
def top_order(input: Tensor, k: int, descending: bool) -> Tensor:
    """The first k places of sort_order. [*, n] -> [*, k] int64."""


def _rank_rule(input: Layout, rank: Layout) -> Inferred:
    if not input.shape or not input.shape[-1] or rank.shape != (*input.shape[:-1], 1) or rank.dtype.kind != "i":
        raise ShapeError(f"the places of ranks {rank} in rows of {input}")
    return Inferred((Spec(int64, rank.shape),), (input.dtype, rank.dtype), {})


def _rank_ref(input: Any, rank: Any) -> Any:
    return np.take_along_axis(_order_ref(input, False), np.clip(rank, 0, np.shape(input)[-1] - 1).astype(np.int64), -1)


@op(
    Kernel("rank"),
    rule=_rank_rule,
    ref=_rank_ref,
    samples=lambda: [
        Sample.of(x, np.arange(int(np.prod(x.shape[:-1]))).reshape(*x.shape[:-1], 1) * 5 + first) for x in _draws() for first in (0, 4)
    ],
    public=False,
    torch=None,
)
def rank_place(input: Tensor, rank: Tensor) -> Tensor:
    """The place in sort_order at each row's rank, which is limited to the row. [*, n], [*, 1] -> [*, 1] int64."""


def _search_rule(rows: Layout, values: Layout, right: bool, nan_last: bool) -> Inferred:
    if len(rows.shape) != 1 and (len(rows.shape) != len(values.shape) or rows.shape[:-1] != values.shape[:-1]):
        raise ShapeError(
            f"searchsorted: sorted rows of shape {list(rows.shape)} must have 1 dimension or all but the last of {list(values.shape)}"
        )
    kind = promote(rows.dtype, values.dtype)
    return Inferred((Spec(int64, values.shape),), (kind, kind), {"right": bool(right), "nan_last": bool(nan_last)})


def _search_ref(rows: Any, values: Any, right: bool, nan_last: bool) -> Any:
    x, v = np.asarray(rows), np.asarray(values)
    if x.ndim == 1:
        return _searched(x, v, right, nan_last)
    out = np.zeros(v.shape, np.int64)
    for place in np.ndindex(*v.shape[:-1]):
        out[place] = _searched(x[place], v[place], right, nan_last)
    return out


def _searched(x: Any, v: Any, right: bool, nan_last: bool) -> Any:
    if nan_last:
        return np.searchsorted(x, v, side="right" if right else "left")
    low, left = np.zeros(v.shape, np.int64), np.full(v.shape, len(x), np.int64)
    while np.any(left > 0):
        half = left // 2
        m = x[np.minimum(low + half, len(x) - 1)]
        behind = (left > 0) & ~(m > v if right else m >= v)
        low, left = np.where(behind, low + half + 1, low), np.where(behind, left - half - 1, np.where(left > 0, half, 0))
    return low


@op(
    Kernel("searchsorted"),
    rule=_search_rule,
    ref=_search_ref,
    samples=lambda: [
        Sample.of(x, v, right, last)
        for x, v in (
            (np.sort(np.round(_f32(9) * 4) / 4), np.round(_f32(4, 5) * 4) / 4),
            (np.sort(np.round(_f32(3, 20) * 4) / 4, -1), np.round(_f32(3, 7) * 4) / 4),
            (np.array([1, 3, 3, 5]), np.array(3)),
            (_f32(0), _f32(4)),
        )
        for right, last in ((False, False), (True, True))
    ],
    public=False,
    torch=None,
)
def search_order(rows: Tensor, values: Tensor, right: bool, nan_last: bool) -> Tensor:
    """How many elements of a sorted row are less than each value (not greater, for right). [n] or [*, n], [*, m] -> [*, m] int64."""


# ---- sorting ----


def _order(input: Tensor, dim: int, descending: bool) -> Tensor:
    """Places in order along any dimension."""
    if not input.ndim or dim == input.ndim - 1:
        return sort_order(input, descending)  # type: ignore[no-any-return]
    return movedim(sort_order(movedim(input, dim, -1), descending), -1, dim).contiguous()


def _dim(input: Tensor, dim: int) -> int:
    return located(normalize_dim, dim, input.ndim)  # type: ignore[no-any-return]


def _pick(input: Tensor, dim: int, places: Tensor) -> Tensor:
    return index.gather(input, dim, places) if input.ndim else input.clone()  # type: ignore[no-any-return]


@composite
def sort(input: Tensor, dim: Any = -1, descending: bool = False, stable: bool = False) -> Extreme:
    """(values, indices) in order along dim; always stable; NaN is largest. [*] -> [*], [*] int64."""
    if isinstance(dim, bool):  # sort(stable) in front is PyTorch's other form; a bool is no dimension
        raise TypeError(f"dim must be an int, got {dim}\n  at {site()}")
    d = _dim(input, dim)
    order = _order(input, d, descending)
    return Extreme(_pick(input, d, order), order)


@composite
def argsort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    """Indices that sort along dim; always stable. [*] -> [*] int64."""
    return _order(input, _dim(input, dim), descending)


@composite
def msort(input: Tensor) -> Tensor:
    """Values in order along the first dimension. [*] -> [*]."""
    return sort(input, 0).values  # type: ignore[no-any-return]


def _no_bools(input: Tensor, what: str) -> None:
    if input.dtype.kind == "b":
        raise DTypeError(f"{what} of a bool tensor ({input.layout})\n  at {site()}")


@composite
def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Extreme:
    """The k largest (smallest) elements along dim, in order, and their places; the first of equals. [*, n, *] -> [*, k, *] twice."""
    _no_bools(input, "topk")
    d, count = _dim(input, dim), whole(k, "k")
    n = input.shape[d] if input.ndim else 1
    if not 0 <= count <= n:
        raise ShapeError(f"topk of {count} elements along dimension {dim} of {n} (shape {list(input.shape)})\n  at {site()}")
    if count == 1 and n > 1 and largest:
        places = reduce.argmax(input, d, True)  # NaN wins and the first of equals, as in the order
        return Extreme(_pick(input, d, places), places)
    if not input.ndim:
        return Extreme(input.clone(), sort_order(input, largest))
    last = d == input.ndim - 1
    order = top_order(input if last else movedim(input, d, -1), count, largest)
    order = order if last else movedim(order, -1, d).contiguous()
    return Extreme(_pick(input, d, order), order)


# ---- order statistics ----


def _sized(input: Tensor, dim: int, what: str) -> tuple[int, int]:
    """The dimension and its size, which must not be 0."""
    d = _dim(input, dim)
    n = input.shape[d] if input.ndim else 1
    if n == 0:
        raise ShapeError(f"{what} along dimension {dim} of size 0 (shape {list(input.shape)}) has no value\n  at {site()}")
    return d, n


def _at(input: Tensor, dim: int, order: Tensor, rank: Tensor, keepdim: bool) -> Extreme:
    """The elements of a rank (a tensor with size 1 along dim) in an order, and their places."""
    places = index.gather(order, dim, rank)
    values = index.gather(input, dim, places)
    return Extreme(values, places) if keepdim else Extreme(squeeze(values, dim), squeeze(places, dim))


@composite
def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Extreme:
    """The k-th smallest element along dim and its place; NaN is largest. [*, n, *] -> [*, *] twice."""
    _no_bools(input, "kthvalue")
    d, n = _sized(input, dim, "kthvalue")
    if not 1 <= whole(k, "k") <= n:
        raise ShapeError(f"kthvalue: k={k} is outside [1, {n}] for dimension {dim} of shape {list(input.shape)}\n  at {site()}")
    return _ranked(input, d, k - 1, keepdim)


def _ranked(input: Tensor, dim: int, rank: Any, keepdim: bool) -> Extreme:
    """The elements of a rank (a number, or a tensor with size 1 along dim) along dim, and their places."""
    if not input.ndim:
        return Extreme(input.clone(), sort_order(input, False))
    if isinstance(rank, int):
        rank = factory.full(tuple(1 if e == dim else n for e, n in enumerate(input.shape)), rank, dtype=int64)
    last = dim == input.ndim - 1
    places = rank_place(*(t if last else movedim(t, dim, -1) for t in (input, rank)))
    places = places if last else movedim(places, -1, dim).contiguous()
    values = index.gather(input, dim, places)
    return Extreme(values, places) if keepdim else Extreme(squeeze(values, dim), squeeze(places, dim))


def _nans(input: Tensor, dim: int) -> Tensor:
    """How many elements are NaN along dim, which stays with size 1."""
    return pointwise.isnan(input).sum(dim, True)  # type: ignore[no-any-return]


@composite
def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower median of all elements, or (values, indices) along dim; NaN if there is one. [*] -> [] or [*] twice."""
    return _median(input, dim, keepdim, False)


@composite
def nanmedian(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower median of all elements that are not NaN, or (values, indices) along dim. [*] -> [] or [*] twice."""
    return _median(input, dim, keepdim, True)


def _median(input: Tensor, dim: int | None, keepdim: bool, ignore: bool) -> Any:
    _no_bools(input, "median")
    if dim is None:
        return _median_of_all(reshape(input, -1), ignore)
    d, n = _sized(input, dim, "median")
    if input.dtype.kind != "f" or not input.ndim:
        return _ranked(input, d, (n - 1) // 2, keepdim)
    nans = _nans(input, d)
    if ignore:
        rank = pointwise.floor_divide(n - 1 - nans, 2).clamp(0)
    else:
        rank = pointwise.where(nans > 0, n - nans, (n - 1) // 2)
    return _ranked(input, d, rank, keepdim)


def _median_of_all(flat: Tensor, ignore: bool) -> Tensor:
    """As a maximum of the elements that equal it, so that equals share its gradient."""
    if not flat.numel():
        return reduce.mean(flat) if flat.dtype.kind == "f" else factory.full((), limits(flat.dtype, False)[0], dtype=flat.dtype)
    with dispatch.no_grad():
        found = _median(flat.detach(), 0, False, ignore).values
    if not flat.requires_grad:
        return found  # type: ignore[no-any-return]
    equal = pointwise.logical_or(flat == found, pointwise.logical_and(pointwise.isnan(flat), pointwise.isnan(found)))
    return reduce.amax(pointwise.where(equal, flat, -math.inf))  # type: ignore[no-any-return]


@composite
def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> Extreme:
    """The most frequent element along dim, the smallest of equally frequent ones, and its last place. [*, n, *] -> [*, *] twice."""
    d, n = _sized(input, dim, "mode")
    order = _order(input, d, False)
    if not input.ndim:
        return Extreme(input.clone(), order)
    with dispatch.no_grad():
        values = index.gather(input.detach(), d, order)
        places = reshape(creation.ramp(0, 1, (n,), int64), *(n if e == d else 1 for e in range(input.ndim)))
        begins = pointwise.where(_starts(values, d), places, 0)
        length = places - scan_max(begins, d)[0]
        rank = reduce.argmax(length, d, True)
    return _at(input, d, order, rank, keepdim)


def _starts(values: Tensor, dim: int) -> Tensor:
    """Whether each element differs from the one before it along dim; the first does."""
    n = values.shape[dim]
    if n < 2:
        return pointwise.cast(values, bool_) | True  # type: ignore[no-any-return]
    changed = pointwise.ne(move.slice_dim(values, dim, 1, n - 1, 1), move.slice_dim(values, dim, 0, n - 1, 1))
    first = factory.ones(tuple(1 if e == dim else s for e, s in enumerate(values.shape)), dtype=bool_)
    return cat([first, changed], dim)


# ---- quantiles ----


@composite
def quantile(input: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear") -> Tensor:
    """Quantiles q (a number, or a vector whose dimension comes first) along dim, or of all elements; NaN if there is one."""
    return _quantile(input, q, dim, keepdim, interpolation, False)


@composite
def nanquantile(input: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear") -> Tensor:
    """Quantiles of the elements that are not NaN; NaN where there are none."""
    return _quantile(input, q, dim, keepdim, interpolation, True)


_INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


def _quantile(input: Tensor, q: Any, dim: int | None, keepdim: bool, interpolation: str, ignore: bool) -> Tensor:
    if input.dtype is not float32:
        raise DTypeError(f"quantile expects a float32 tensor, got {input.layout}\n  at {site()}")
    if interpolation not in _INTERPOLATIONS:
        raise ShapeError(f"interpolation must be one of {', '.join(_INTERPOLATIONS)}, not {interpolation!r}\n  at {site()}")
    if not input.numel():
        raise ShapeError(f"quantile of a tensor of no elements (shape {list(input.shape)})\n  at {site()}")
    levels = _levels(q)
    shape = tuple(1 for _ in input.shape)
    if dim is None:
        rows = reshape(input, -1)
    else:
        d = _dim(input, dim)
        rows = movedim(input, d, -1) if input.ndim else reshape(input, 1)
        shape = tuple(1 if e == d else n for e, n in enumerate(input.shape))
    found = _interpolated(rows, levels, interpolation, ignore)  # [*, levels]
    found = movedim(found, -1, 0)
    kept = shape if keepdim else tuple(rows.shape[:-1])
    return reshape(found, *levels.shape, *kept)


def _levels(q: Any) -> Tensor:
    """The quantiles asked for, checked where they are numbers: values on the device are not looked at."""
    if not isinstance(q, dispatch.hooks.tensor):
        if not 0 <= q <= 1:
            raise ShapeError(f"q must be in [0, 1], got {q}\n  at {site()}")
        return factory.full((), float(q))
    if q.ndim > 1:
        raise ShapeError(f"q must be a number or a vector, got shape {list(q.shape)}\n  at {site()}")
    if q.dtype is not float32:
        raise DTypeError(f"q must have the input's dtype float32, got {q.layout}\n  at {site()}")
    return q  # type: ignore[no-any-return]


def _interpolated(rows: Tensor, levels: Tensor, interpolation: str, ignore: bool) -> Tensor:
    """Values at fractional ranks of the sorted rows. [*, n], levels -> [*, levels]."""
    n = rows.shape[-1]
    ordered = sort(rows, -1).values
    at = reshape(levels, -1)
    nans = _nans(rows, rows.ndim - 1)
    if ignore:
        ranks = (at * (n - 1 - nans)).clamp(0.0)
    else:
        ranks = pointwise.where(nans > 0, float(n - 1), expand(at * (n - 1), *rows.shape[:-1], at.shape[0]))
    if interpolation == "lower":
        ranks = pointwise.floor(ranks)
    elif interpolation == "higher":
        ranks = pointwise.ceil(ranks)
    elif interpolation == "nearest":
        ranks = round_whole(ranks)
    below = pointwise.floor(ranks)
    low = index.gather(ordered, -1, below.to(int64))
    if interpolation not in ("linear", "midpoint"):
        return low  # type: ignore[no-any-return]
    weight = 0.5 if interpolation == "midpoint" else ranks - below
    high = index.gather(ordered, -1, pointwise.ceil(ranks).to(int64))
    step = high - low
    if interpolation == "midpoint":
        return high - step * 0.5  # type: ignore[no-any-return]
    return pointwise.where(weight < 0.5, low + weight * step, high - step * (1.0 - weight))  # type: ignore[no-any-return]


# ---- searching ----


@composite(method=False)
def searchsorted(
    sorted_sequence: Tensor,
    input: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """Where values would go in rows sorted along the last dimension; `sorter` gives the order of unsorted rows.
    [n] or [*, n], [*, m] -> [*, m]."""
    if side not in (None, "left", "right"):
        raise ShapeError(f"side must be 'left' or 'right', not {side!r}\n  at {site()}")
    if side == "left" and right:
        raise ShapeError(f"side 'left' and right=True contradict each other\n  at {site()}")
    rows = sorted_sequence
    if not rows.ndim:
        raise ShapeError(f"searchsorted in a 0-d tensor\n  at {site()}")
    if sorter is not None:
        if sorter.shape != rows.shape or sorter.dtype is not int64:
            raise ShapeError(f"the sorter must be int64{list(rows.shape)}, got {sorter.layout}\n  at {site()}")
        rows = index.gather(rows, -1, sorter)
    values = _value(input, rows)
    if not values.ndim and rows.ndim != 1:
        raise ShapeError(f"a single value can be searched in one row only, not in shape {list(rows.shape)}\n  at {site()}")
    out: Tensor = search_order(rows, values, right or side == "right", False)
    return out.to(int32) if out_int32 else out


def _value(value: Any, like: Tensor) -> Tensor:
    """A number as a 0-d tensor that promotes like a number."""
    if isinstance(value, dispatch.hooks.tensor):
        return value  # type: ignore[no-any-return]
    fits = like.dtype.kind == "f" or (not isinstance(value, float) and like.dtype.kind != "b")
    return factory.full((), value, dtype=like.dtype if fits else None)


@composite(method=False)
def bucketize(input: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """The number of the bucket between sorted boundaries that each value falls in. [*], [n] -> [*]."""
    if boundaries.ndim != 1:
        raise ShapeError(f"boundaries must be a vector, got shape {list(boundaries.shape)}\n  at {site()}")
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


@composite(method=False)
def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Whether each element is among the test elements. [*], [*] -> [*] bool."""
    given = isinstance(elements, dispatch.hooks.tensor), isinstance(test_elements, dispatch.hooks.tensor)
    if not any(given):
        raise TypeError(f"isin expects a tensor among its arguments\n  at {site()}")
    x = elements if given[0] else _value(elements, test_elements)
    test = test_elements if given[1] else _value(test_elements, elements)
    kind = promote(x.dtype, test.dtype)
    x, test = x.detach().to(kind), reshape(test.detach().to(kind), -1)
    if not test.numel():
        found = factory.zeros(x.shape, dtype=bool_)
    else:
        ordered = sort(test).values
        place = search_order(ordered, x, False, True).clamp(max=test.numel() - 1)
        near = reshape(index.index_select(ordered, 0, reshape(place, -1)), *x.shape)
        found = pointwise.eq(near, x)
    return pointwise.logical_not(found) if invert else found


# ---- distinct elements ----


@composite
def unique(input: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None) -> Any:
    """The distinct elements in order, or the distinct slices along dim; with the number of each element's value among them
    and how often each occurs. The size of the result depends on the values, so this waits for the device, cannot be
    traced, and has no gradient; with dim it is the host that sorts the slices. Every NaN is a value of its own."""
    if dim is not None:
        return _unique_slices(input.detach(), _dim(input, dim), return_inverse, return_counts)
    flat = reshape(input.detach(), -1)
    order = _order(flat, 0, False)
    values = index.gather(flat, 0, order)
    group, at, counts = _groups(_starts(values, 0)) if flat.numel() else (order, order, order)
    out: list[Any] = [index.index_select(values, 0, at)]
    if return_inverse:
        out.append(reshape(index.gather(group, 0, _order(order, 0, False)), *input.shape))
    return _results(out, counts, return_counts)


@composite
def unique_consecutive(input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None) -> Any:
    """The elements (slices along dim) that differ from the one before, with numbers and counts as unique gives them. Waits
    for the device, cannot be traced, and has no gradient."""
    x = input.detach()
    d = 0 if dim is None else _dim(x, dim)
    rows = reshape(x, -1) if dim is None else movedim(x, d, 0) if x.ndim else reshape(x, 1)
    _no_empty_slices(rows, dim)
    if not rows.shape[0]:
        none = factory.zeros((0,), dtype=int64)
        out: list[Any] = [x.clone() if dim is not None else rows]
        return _results([*out, *([reshape(none, *input.shape) if dim is None else none] if return_inverse else [])], none, return_counts)
    starts = _starts(rows, 0)
    if rows.ndim > 1:
        starts = reduce.any(reshape(starts, rows.shape[0], -1), 1)
    group, at, counts = _groups(starts)
    found = index.index_select(rows, 0, at)
    out = [movedim(found, 0, d) if dim is not None and x.ndim else found]
    if return_inverse:
        out.append(reshape(group, *input.shape) if dim is None else group)
    return _results(out, counts, return_counts)


def _results(out: Sequence[Any], counts: Any, return_counts: bool) -> Any:
    made = (*out, counts) if return_counts else tuple(out)
    return made if len(made) > 1 else made[0]


def _groups(starts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The number of each element's group, where each group starts, and its size. [n] bool -> [n], [k], [k]."""
    n = starts.shape[0]
    group = scan_sum(starts, 0) - 1
    count = int(group[n - 1].item()) + 1
    at = search_order(group, creation.ramp(0, 1, (count,), int64), False, False)
    ends = cat([move.slice_dim(at, 0, 1, count - 1, 1), factory.full((1,), n)])
    return group, at, ends - at


def _no_empty_slices(rows: Tensor, dim: int | None) -> None:
    if dim is not None and 0 in rows.shape[1:]:
        raise ShapeError(f"unique of slices along dimension {dim} that have no elements\n  at {site()}")


def _unique_slices(x: Tensor, dim: int, return_inverse: bool, return_counts: bool) -> Any:
    rows = movedim(x, dim, 0) if x.ndim else reshape(x, 1)
    _no_empty_slices(rows, dim)
    n = rows.shape[0]
    values = rows.numpy().reshape(n, -1) if n else np.zeros((0, 1))
    order = np.lexsort(values.T[::-1]) if n else np.zeros(0, np.int64)
    starts = np.ones(n, bool)
    starts[1:] = (values[order[1:]] != values[order[:-1]]).any(1)
    at = np.flatnonzero(starts)
    found = index.index_select(rows, 0, factory.tensor(order[at].astype(np.int64)))
    out: list[Any] = [movedim(found, 0, dim) if x.ndim else found]
    if return_inverse:
        inverse = np.zeros(n, np.int64)
        inverse[order] = np.cumsum(starts) - 1
        out.append(factory.tensor(inverse))
    return _results(out, factory.tensor(np.diff(np.append(at, n)).astype(np.int64)), return_counts)
