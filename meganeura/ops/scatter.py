"""Writing by index, as PyTorch has it: scatter, index_add and their relatives, out of place and in place (names ending in _).

Everything is one of three rows (segment.py) on rows [S, D] of the input: the dimensions up to the indexed one are counted
together, those after it are columns. Results do not depend on the order in which a device runs: several writes to one place
leave the last, sums add in order. An index that lies outside is reported at the next sync.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import dispatch
from ..dtype import int64
from ..errors import DTypeError, IndexOutOfRangeError, ShapeError
from ..provenance import site
from ..shape import Shape, broadcast_shapes, normalize_dim, numel
from . import creation, pointwise, segment
from .arithmetic import copy_
from .factory import representable
from .move import check_dtype
from .table import composite
from .views import expand, located, narrow, reshape, view

if TYPE_CHECKING:
    from ..tensor import Tensor


class Writing(NamedTuple):
    """Values [T, D] that go to the rows `keys` [T] of an input seen as [S, D]."""

    rows: int
    values: Tensor
    keys: Tensor


def _is_tensor(value: Any) -> bool:
    return isinstance(value, dispatch.hooks.tensor)


# ---- the three rows, on any input ----


def _write(input: Tensor, writing: Writing, row: Any, extra: tuple[Any, ...] = (), inplace: bool = False) -> Tensor:
    """A row of segment.py applied to an input of any shape and layout."""
    shape = (writing.rows, writing.values.shape[1])
    values, keys = writing.values, writing.keys
    if inplace and input.is_contiguous():
        values, keys = (t.clone() if t._storage is input._storage else t for t in (values, keys))
        target = input if input.shape == shape else view(input, shape)
        dispatch.bind(row, (target, values, keys, *extra), {}, out=target)
        return input
    if inplace:
        return copy_(input, _write(pointwise.clone(input), writing, row, extra, True))
    return reshape(row(reshape(input, shape), values, keys, *extra), input.shape)


_COMBINE = {"prod": "prod", "amax": "max", "amin": "min"}


def _reduce(input: Tensor, writing: Writing, reduce: str, include_self: bool, inplace: bool) -> Tensor:
    """sum, prod, mean, amax or amin of values that meet."""
    if reduce in _COMBINE:
        return _write(input, writing, segment.segment_reduce, (_COMBINE[reduce], include_self), inplace)
    if reduce == "sum" and include_self:
        return _write(input, writing, segment.segment_add, (), inplace)
    cleared = writing._replace(values=_constant(0, writing.values))
    out = _write(input if include_self else _write(input, cleared, segment.segment_put), writing, segment.segment_add)
    if reduce == "mean":
        counts = creation.fill(1, input.shape, input.dtype)
        counts = counts if include_self else _write(counts, cleared, segment.segment_put)
        counts = _write(counts, writing._replace(values=_constant(1, writing.values)), segment.segment_add).clamp(min=1)
        out = out / counts if input.is_floating_point() else pointwise.floor_divide(out, counts)
    return copy_(input, out) if inplace else out


def _constant(value: Any, like: Tensor) -> Tensor:
    return expand(creation.fill(representable(value, like.dtype), (1, 1), like.dtype), like.shape)


# ---- one index for every element ----


def _scatter_writing(input: Tensor, dim: int, index: Tensor, src: Any, what: str) -> Writing:
    """`index` has the input's shape but along dim; so has src, or is larger."""
    lead, n, inner = numel(input.shape[:dim]), input.shape[dim], numel(input.shape[dim + 1 :])
    total = lead * n * inner
    if not n and index.numel():
        raise IndexOutOfRangeError(f"{what}: an index into dimension {dim} of size 0 (shape {list(input.shape)})\n  at {site()}")
    keys = index
    if lead > 1 or inner > 1:
        rest = reshape(creation.ramp(0, 1, (inner,), int64), 1, 1, inner)
        if lead > 1:
            outer = reshape(creation.ramp(0, n * inner, (lead,), int64), lead, 1, 1)
            rest = outer if inner == 1 else outer + rest
        keys = segment.place(reshape(index, lead, index.shape[dim], inner), rest, n, inner, 0, total)
    if _is_tensor(src):
        for d, size in enumerate(index.shape):
            src = src if src.shape[d] == size else narrow(src, d, 0, size)
        values = reshape(src, src.numel(), 1)
    else:
        values = expand(creation.fill(representable(src, input.dtype), (1, 1), input.dtype), index.numel(), 1)
    return Writing(total, values, reshape(keys, index.numel()))


def _scattered(input: Tensor, dim: int, index: Tensor, src: Any, what: str, inplace: bool, write: Any) -> Tensor:
    """Check and prepare a scatter, then call write(input, writing, inplace)."""
    check_dtype(index, f"{what}: the index")
    if not input.ndim:
        wide = [reshape(t, 1) if _is_tensor(t) and not t.ndim else t for t in (input, index, src)]
        out = _scattered(wide[0], dim, wide[1], wide[2], what, inplace, write)
        return input if inplace else reshape(out, ())
    d = located(normalize_dim, dim, input.ndim)
    if index.numel() == 0:
        return input if inplace else pointwise.clone(input)
    _check_scatter(input, d, index, src, what)
    others = [(e, n) for e, n in enumerate(index.shape) if e != d and n != input.shape[e]]
    if not others:
        return write(input, _scatter_writing(input, d, index, src, what), inplace)  # type: ignore[no-any-return]
    out = input if inplace else pointwise.clone(input)
    part = out
    for e, n in others:
        part = narrow(part, e, 0, n)
    write(part, _scatter_writing(part, d, index, src, what), True)
    return out


def _check_scatter(input: Tensor, dim: int, index: Tensor, src: Any, what: str) -> None:
    fits = index.ndim == input.ndim and all(e == dim or n <= input.shape[e] for e, n in enumerate(index.shape))
    if _is_tensor(src):
        fits &= src.ndim == index.ndim and all(n <= m for n, m in zip(index.shape, src.shape, strict=False))
        if src.dtype is not input.dtype:
            raise DTypeError(f"{what} expects src of the input's dtype {input.dtype.name}, got {src.layout}\n  at {site()}")
    if not fits:
        shown = f" and src {list(src.shape)}" if _is_tensor(src) else ""
        raise ShapeError(
            f"{what} along {dim}: index shape {list(index.shape)} does not fit input shape {list(input.shape)}{shown}\n  at {site()}"
        )


_OLD_NAMES = {"add": "sum", "multiply": "prod"}


def _scatter(input: Tensor, dim: int, index: Tensor, src: Any, value: Any, reduce: str | None, inplace: bool) -> Tensor:
    if (src is None) == (value is None):
        raise TypeError(f"scatter expects either src or value\n  at {site()}")
    if reduce is not None and reduce not in _OLD_NAMES:
        raise ShapeError(f"scatter: reduce must be 'add' or 'multiply', not {reduce!r}\n  at {site()}")
    given = value if src is None else src
    if reduce is None:
        return _scattered(input, dim, index, given, "scatter", inplace, lambda x, w, i: _write(x, w, segment.segment_put, (), i))
    return _scattered(input, dim, index, given, "scatter", inplace, lambda x, w, i: _reduce(x, w, _OLD_NAMES[reduce], True, i))


@composite
def scatter(input: Tensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None, reduce: str | None = None) -> Tensor:
    """input with out[index[i, j], j] = src[i, j] for dim 0, and so on; the last write stays. [*], [*], [*] -> [*]."""
    return _scatter(input, dim, index, src, value, reduce, False)


@composite
def scatter_(input: Tensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None, reduce: str | None = None) -> Tensor:
    """In place: scatter."""
    return _scatter(input, dim, index, src, value, reduce, True)


def _scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor, inplace: bool) -> Tensor:
    return _scattered(input, dim, index, src, "scatter_add", inplace, lambda x, w, i: _write(x, w, segment.segment_add, (), i))


@composite
def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """input with out[index[i, j], j] += src[i, j] for dim 0, and so on. [*], [*], [*] -> [*]."""
    return _scatter_add(input, dim, index, src, False)


@composite
def scatter_add_(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """In place: scatter_add."""
    return _scatter_add(input, dim, index, src, True)


def _scatter_reduce(input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool, inplace: bool) -> Tensor:
    _check_reduce(reduce, ("sum", "prod", "mean", "amax", "amin"), "scatter_reduce")
    return _scattered(input, dim, index, src, "scatter_reduce", inplace, lambda x, w, i: _reduce(x, w, reduce, include_self, i))


def _check_reduce(reduce: str, known: Sequence[str], what: str) -> None:
    if reduce not in known:
        raise ShapeError(f"{what}: reduce must be one of {', '.join(map(repr, known))}, not {reduce!r}\n  at {site()}")


@composite
def scatter_reduce(input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    """scatter where values that meet are reduced: 'sum', 'prod', 'mean', 'amax' or 'amin', with the input's unless include_self is
    False. [*], [*], [*] -> [*]."""
    return _scatter_reduce(input, dim, index, src, reduce, include_self, False)


@composite
def scatter_reduce_(input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    """In place: scatter_reduce."""
    return _scatter_reduce(input, dim, index, src, reduce, include_self, True)


# ---- slices along one dimension by a vector of indices ----


def _slices(input: Tensor, dim: int, index: Tensor, source: Any, what: str, wrap: bool = False) -> Writing:
    """`source` [*, k, *], or a number or 0-d tensor for all, goes to the slices index [k] of input [*, n, *]."""
    check_dtype(index, f"{what}: the index")
    if index.ndim > 1:
        raise IndexOutOfRangeError(f"{what} expects a 1-D index, got shape {list(index.shape)}\n  at {site()}")
    d = located(normalize_dim, dim, input.ndim)
    shape = input.shape or (1,)
    lead, n, inner = numel(shape[:d]), shape[d], numel(shape[d + 1 :])
    k = index.numel()
    if not n and k:
        raise IndexOutOfRangeError(f"{what}: an index into dimension {d} of size 0 (shape {list(shape)})\n  at {site()}")
    keys = reshape(index, k)
    if lead > 1:
        keys = reshape(segment.place(keys, reshape(creation.ramp(0, n, (lead,), int64), lead, 1), n, 1, n * wrap, lead * n), lead * k)
    elif wrap:
        keys = pointwise.wrapped_index(keys, n)
    if not _is_tensor(source):
        source = creation.fill(representable(source, input.dtype), (), input.dtype)
    elif what == "index_fill":
        source = source.to(input.dtype)
    if source.dtype is not input.dtype:
        raise DTypeError(f"{what} expects a source of the input's dtype {input.dtype.name}, got {source.layout}\n  at {site()}")
    if what == "index_fill":
        return Writing(lead * n, expand(reshape(source, 1, 1), lead * k, inner), keys)
    expected = (*shape[:d], k, *shape[d + 1 :])
    if (source.shape or (1,)) != expected or (source.ndim != input.ndim and what != "index_copy"):
        raise ShapeError(
            f"{what} along {dim}: a source of shape {list(source.shape)} does not fit input {list(input.shape)} "
            f"with {k} indices: expected {list(expected)}\n  at {site()}"
        )
    return Writing(lead * n, reshape(source, lead * k, inner), keys)


def _index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, alpha: Any, inplace: bool) -> Tensor:
    writing = _slices(input, dim, index, source, "index_add")
    if not (alpha.__class__ is int and alpha == 1):
        if isinstance(alpha, float) and not input.is_floating_point():
            raise DTypeError(f"alpha must be a whole number for a {input.dtype.name} result, got {alpha}\n  at {site()}")
        writing = writing._replace(values=writing.values * alpha)
    return _write(input, writing, segment.segment_add, (), inplace)


@composite
def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
    """input plus alpha times the slices of source by a 1-D index. [*, n, *], [k], [*, k, *] -> [*, n, *]."""
    return _index_add(input, dim, index, source, alpha, False)


@composite
def index_add_(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
    """In place: index_add."""
    return _index_add(input, dim, index, source, alpha, True)


@composite
def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """input with the slices of source written by a 1-D index; the last write stays. [*, n, *], [k], [*, k, *] -> [*, n, *]."""
    return _write(input, _slices(input, dim, index, source, "index_copy"), segment.segment_put)


@composite
def index_copy_(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """In place: index_copy."""
    return _write(input, _slices(input, dim, index, source, "index_copy"), segment.segment_put, (), True)


def _index_fill(input: Tensor, dim: int, index: Tensor, value: Any, inplace: bool) -> Tensor:
    if _is_tensor(value) and value.ndim:
        raise ShapeError(f"index_fill expects a number or a 0-d tensor, got shape {list(value.shape)}\n  at {site()}")
    return _write(input, _slices(input, dim, index, value, "index_fill", wrap=True), segment.segment_put, (), inplace)


@composite
def index_fill(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """input with the slices that a 1-D index names filled; negative indices count from the end. [*, n, *], [k] -> [*, n, *]."""
    return _index_fill(input, dim, index, value, False)


@composite
def index_fill_(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """In place: index_fill."""
    return _index_fill(input, dim, index, value, True)


def _index_reduce(input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool, inplace: bool) -> Tensor:
    _check_reduce(reduce, ("prod", "mean", "amax", "amin"), "index_reduce")
    return _reduce(input, _slices(input, dim, index, source, "index_reduce"), reduce, include_self, inplace)


@composite
def index_reduce(input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    """input with the slices of source reduced into it by a 1-D index: 'prod', 'mean', 'amax' or 'amin'.
    [*, n, *], [k], [*, k, *] -> [*, n, *]."""
    return _index_reduce(input, dim, index, source, reduce, include_self, False)


@composite
def index_reduce_(input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    """In place: index_reduce."""
    return _index_reduce(input, dim, index, source, reduce, include_self, True)


# ---- index tensors in any dimensions: what an assignment through a key comes to ----


def put_at(input: Tensor, lookups: Sequence[tuple[int, Tensor]], values: Tensor, accumulate: bool = False, inplace: bool = True) -> Tensor:
    """Write values at the places that index tensors name along some dimensions, in rising order. `lookups`: (dimension, indices);
    they broadcast together, negative ones count from the end. `values` broadcast to the shape that reading there would give."""
    dims = [d for d, _ in lookups]
    last = dims[-1]
    try:
        common = broadcast_shapes(*(i.shape for _, i in lookups))
    except ShapeError as e:
        raise IndexOutOfRangeError(f"index tensors: {e}\n  at {site()}") from None
    together = last - dims[0] == len(dims) - 1
    free = [d for d in range(last) if d not in dims]
    sizes = tuple(input.shape[d] for d in free)
    trailing = input.shape[last + 1 :]
    key_shape = (*sizes, *common) if together else (*common, *sizes)  # look-ups that stand apart put their dimensions first
    expected = (*key_shape, *trailing)
    keys = _keys(input, lookups, free, len(common), together, numel(expected) > 0)
    values = _fitted(values, expected)
    rows, count = numel(input.shape[: last + 1]), numel(key_shape)
    writing = Writing(rows, reshape(values, count, numel(trailing)), reshape(expand(keys, key_shape), count))
    return _write(input, writing, segment.segment_add if accumulate else segment.segment_put, (), inplace)


def _fitted(values: Tensor, shape: Shape) -> Tensor:
    while values.ndim > len(shape) and values.shape[0] == 1:  # PyTorch drops leading sizes of 1
        values = reshape(values, values.shape[1:])
    try:
        fits = broadcast_shapes(values.shape, shape) == shape
    except ShapeError:
        fits = False
    if not fits:
        raise ShapeError(f"values of shape {list(values.shape)} cannot be written to indexed places of shape {list(shape)}\n  at {site()}")
    return expand(values, shape)


def _keys(input: Tensor, lookups: Sequence[tuple[int, Tensor]], free: Sequence[int], rank: int, together: bool, used: bool) -> Tensor:
    """Row numbers: the place along all dimensions up to the last look-up."""
    last = lookups[-1][0]
    total = numel(input.shape[: last + 1])
    if not total and used:
        raise IndexOutOfRangeError(f"an index into a dimension of size 0 of a tensor of shape {list(input.shape)}\n  at {site()}")
    if len(lookups) == 1 and not free:
        return pointwise.wrapped_index(lookups[0][1], total)  # type: ignore[no-any-return]
    found: Any = 0
    for i, d in enumerate(free):
        ones = [1] * len(free)
        ones[i] = input.shape[d]
        ramp = creation.ramp(0, numel(input.shape[d + 1 : last + 1]), (input.shape[d],), int64)
        ramp = reshape(ramp, *ones, *(1,) * rank) if together else reshape(ramp, *ones)
        found = ramp if i == 0 else found + ramp
    for d, index in lookups:
        wide = index if together else reshape(index, *(1,) * (rank - index.ndim), *index.shape, *(1,) * len(free))
        n = input.shape[d]
        found = segment.place(wide, found, n, numel(input.shape[d + 1 : last + 1]), n, total)
    return found  # type: ignore[no-any-return]


def _put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool, inplace: bool) -> Tensor:
    check_dtype(index, "put: the index")
    if source.dtype is not input.dtype:
        raise DTypeError(f"put expects a source of the input's dtype {input.dtype.name}, got {source.layout}\n  at {site()}")
    if index.numel() != source.numel():
        raise ShapeError(f"put expects as many indices as values, got {list(index.shape)} and {list(source.shape)}\n  at {site()}")
    if not input.numel() and index.numel():
        raise IndexOutOfRangeError(f"put into a tensor of no elements ({input.layout})\n  at {site()}")
    keys = pointwise.wrapped_index(reshape(index, index.numel()), input.numel())
    writing = Writing(input.numel(), reshape(source, source.numel(), 1), keys)
    return _write(input, writing, segment.segment_add if accumulate else segment.segment_put, (), inplace)


@composite
def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """input with the values of source written (or added) at flat indices; the last write stays. [*], [k], [k] -> [*]."""
    return _put(input, index, source, accumulate, False)


@composite
def put_(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """In place: put."""
    return _put(input, index, source, accumulate, True)
