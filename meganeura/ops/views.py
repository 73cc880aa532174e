"""Composites that show or arrange the same elements: views, joining and splitting, padding. Views cost no kernel."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import dispatch
from ..errors import IndexOutOfRangeError, ShapeError
from ..provenance import site
from ..shape import normalize_dim, normalize_dims, numel, view_strides
from . import move, reduce
from .factory import sizes_of, whole
from .table import composite

if TYPE_CHECKING:
    from ..tensor import Tensor


def located(rule: Any, *args: Any) -> Any:
    """A rule of shape.py with the user's line in its error."""
    try:
        return rule(*args)
    except ShapeError as e:
        raise ShapeError(f"{e}\n  at {site()}") from None


def _dim(input: Tensor, dim: int) -> int:
    return located(normalize_dim, dim, input.ndim)  # type: ignore[no-any-return]


def _sized(input: Tensor, dim: int, what: str) -> tuple[int, int]:
    """A dimension that must exist, and its size."""
    if not input.shape:
        raise ShapeError(f"{what} of a 0-d tensor\n  at {site()}")
    d = _dim(input, dim)
    return d, input.shape[d]


@composite
def reshape(input: Tensor, *shape: Any) -> Tensor:
    """Another shape: a view where the strides allow, else a copy. [*] -> [shape]."""
    sizes = sizes_of(shape)
    if not input.is_contiguous():
        try:
            sizes = move.resolve_shape(sizes, input.numel())
        except ShapeError as e:
            raise ShapeError(f"reshape of {input.layout}: {e}\n  at {site()}") from None
        if view_strides(input.shape, input.layout.strides, sizes) is None:
            input = input.clone()
    return move.view_as_shape(input, sizes)  # type: ignore[no-any-return]


@composite
def view(input: Tensor, *shape: Any) -> Tensor:
    """Another shape over the same memory. [*] -> [shape]."""
    return move.view_as_shape(input, sizes_of(shape))  # type: ignore[no-any-return]


@composite
def view_as(input: Tensor, other: Tensor) -> Tensor:
    """view(other.shape)."""
    return view(input, other.shape)


@composite
def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Merge the dimensions from start_dim to end_dim. [*] -> [*]."""
    a, b = _dim(input, start_dim), _dim(input, end_dim)
    if not input.shape:
        return reshape(input, 1)
    if a == b:
        return input
    if a > b:
        raise ShapeError(f"flatten: start_dim {start_dim} comes after end_dim {end_dim} in shape {list(input.shape)}\n  at {site()}")
    return reshape(input, *input.shape[:a], numel(input.shape[a : b + 1]), *input.shape[b + 1 :])


@composite
def unflatten(input: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """Split a dimension. [*, n, *] -> [*, *sizes, *]."""
    d = _dim(input, dim)
    try:
        inner = move.resolve_shape(sizes_of((sizes,)), input.shape[d])
    except ShapeError as e:
        raise ShapeError(f"unflatten of dimension {d} of {input.layout}: {e}\n  at {site()}") from None
    return reshape(input, *input.shape[:d], *inner, *input.shape[d + 1 :])


@composite
def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """A new dimension of size 1. [*] -> [*, 1, *]."""
    d = located(normalize_dim, dim, input.ndim + 1)
    return view(input, *input.shape[:d], 1, *input.shape[d:])


@composite
def squeeze(input: Tensor, dim: Any = None) -> Tensor:
    """Without dimensions of size 1 (all of them, or those named). [*] -> [*]."""
    if dim is not None and not isinstance(dim, int) and not len(dim):
        return view(input, input.shape)
    dims = located(normalize_dims, dim, input.ndim)
    return view(input, *(n for d, n in enumerate(input.shape) if not (d in dims and n == 1)))


@composite
def expand(input: Tensor, *shape: Any) -> Tensor:
    """Repeat dimensions of size 1 without copying; -1 keeps a size. [*] -> [shape]."""
    sizes = sizes_of(shape)
    return input if sizes == input.shape else move.expand_to(input, sizes)


@composite
def expand_as(input: Tensor, other: Tensor) -> Tensor:
    """expand(other.shape)."""
    return expand(input, other.shape)


@composite
def broadcast_to(input: Tensor, shape: Sequence[int]) -> Tensor:
    """expand(shape)."""
    return expand(input, shape)


@composite
def permute(input: Tensor, *dims: Any) -> Tensor:
    """Dimensions in another order. [*] -> [*]."""
    return move.permute_to(input, sizes_of(dims))  # type: ignore[no-any-return]


@composite
def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Swap two dimensions. [*] -> [*]."""
    order = list(range(input.ndim))
    a, b = _dim(input, dim0), _dim(input, dim1)
    if order:
        order[a], order[b] = b, a
    return permute(input, order)


@composite
def t(input: Tensor) -> Tensor:
    """The transpose of a matrix; vectors and scalars as they are. [n, m] -> [m, n]."""
    if input.ndim > 2:
        raise ShapeError(f"t() expects at most 2 dimensions, got shape {list(input.shape)}\n  at {site()}")
    return transpose(input, 0, 1) if input.ndim == 2 else input


@composite
def movedim(input: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Move one dimension, or several. [*] -> [*]."""
    if isinstance(source, int) and isinstance(destination, int):
        source, destination = (source,), (destination,)
    assert not isinstance(source, int) and not isinstance(destination, int)
    taken, places = [_dim(input, d) for d in source], [_dim(input, d) for d in destination]
    if len(taken) != len(places) or len(set(taken)) != len(taken) or len(set(places)) != len(places):
        raise ShapeError(f"movedim from {list(source)} to {list(destination)}: each must name distinct dimensions\n  at {site()}")
    if not input.shape:
        return view(input)
    order = [d for d in range(input.ndim) if d not in taken]
    for place, d in sorted(zip(places, taken, strict=True)):
        order.insert(place, d)
    return permute(input, order)


@composite
def narrow(input: Tensor, dim: int, start: int, length: int) -> Tensor:
    """`length` elements along dim from start. [*, n, *] -> [*, length, *]."""
    d, n = _sized(input, dim, "narrow")
    start, length = whole(start, "start"), whole(length, "length")
    first = start + n if start < 0 else start
    if not (0 <= first <= n and 0 <= length <= n - first):
        raise ShapeError(
            f"narrow(dim={dim}, start={start}, length={length}) leaves dimension {d} of shape {list(input.shape)}\n  at {site()}"
        )
    return move.slice_dim(input, d, first, length, 1)  # type: ignore[no-any-return]


@composite
def select(input: Tensor, dim: int, index: int) -> Tensor:
    """One slice along dim, without that dimension. [*, n, *] -> [*, *]."""
    d, n = _sized(input, dim, "select")
    index = whole(index, "index")
    if not -n <= index < n:
        raise IndexOutOfRangeError(
            f"index {index} is out of range for dimension {d} of size {n} (shape {list(input.shape)})\n  at {site()}"
        )
    one = move.slice_dim(input, d, index % n, 1, 1)
    return view(one, *input.shape[:d], *input.shape[d + 1 :])


@composite
def as_strided(input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Tensor:
    """Any layout over the same storage. [*] -> [size]."""
    offset = input.storage_offset() if storage_offset is None else storage_offset
    out = move.strided(input, tuple(size), tuple(stride), offset)
    if out.numel() and out.layout.span()[1] >= input._storage.elements:
        raise ShapeError(
            f"as_strided: size {list(size)}, stride {list(stride)}, offset {offset} reach beyond the storage of "
            f"{input._storage.elements} elements\n  at {site()}"
        )
    return out  # type: ignore[no-any-return]


@composite
def as_strided_scatter(input: Tensor, shape: Sequence[int], stride: Sequence[int], storage_offset: int) -> Tensor:
    """Zeros of `shape` with input written at a strided place of them. [*] -> [shape]."""
    return move.embed(input, tuple(shape), tuple(stride), storage_offset)  # type: ignore[no-any-return]


@composite
def split(input: Tensor, split_size: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Views of consecutive parts along dim."""
    d, n = _sized(input, dim, "split")
    if isinstance(split_size, (tuple, list)):
        sizes = list(sizes_of((split_size,)))
    else:
        step = whole(split_size, "split_size")
        if step < 0 or (step == 0 and n):
            raise ShapeError(f"split size {step} must be positive for dimension {d} of shape {list(input.shape)}\n  at {site()}")
        sizes = [builtins.min(step, n - i) for i in range(0, n, step)] if n else [0]
    if sum(sizes) != n or builtins.min(sizes, default=0) < 0:
        raise ShapeError(f"split sizes {sizes} do not add up to {n}, dimension {d} of shape {list(input.shape)}\n  at {site()}")
    out, at = [], 0
    for s in sizes:
        part = narrow(input, d, at, s)
        part._view = "multi"
        out.append(part)
        at += s
    return tuple(out)


@composite
def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of at most `chunks` parts of equal size (the last may be smaller)."""
    _, n = _sized(input, dim, "chunk")
    if whole(chunks, "chunks") < 1:
        raise ShapeError(f"chunk expects at least 1 part, got {chunks}\n  at {site()}")
    return split(input, -(-n // chunks), dim) if n else split(input, [0] * chunks, dim)


@composite
def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of all slices along dim."""
    _, n = _sized(input, dim, "unbind")
    out = tuple(select(input, dim, i) for i in range(n))
    for part in out:
        part._view = "multi"
    return out


@composite(method=False)
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Join along a dimension. [*, n_i, *]... -> [*, sum n_i, *]."""
    parts = _tensors(tensors, "cat")
    first = builtins.max(parts, key=lambda p: p.ndim)
    if not first.ndim:
        raise ShapeError(f"cat of 0-d tensors; use stack\n  at {site()}")
    if first.ndim > 1:  # PyTorch lets empty vectors join anything
        d = _dim(first, dim)
        nothing = tuple(0 if e == d else n for e, n in enumerate(first.shape))
        parts = [reshape(p, nothing) if p.shape == (0,) else p for p in parts]
    return move.cat_tensors(parts, dim)  # type: ignore[no-any-return]


@composite(method=False)
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Join along a new dimension. [*]... -> [*, n, *]."""
    parts = _tensors(tensors, "stack")
    first = parts[0].shape
    for i, p in enumerate(parts):
        if p.shape != first:
            raise ShapeError(f"stack expects tensors of one shape: tensor {i} has {list(p.shape)}, tensor 0 {list(first)}\n  at {site()}")
    return cat([unsqueeze(x, dim) for x in parts], located(normalize_dim, dim, len(first) + 1))


def _tensors(tensors: Any, what: str) -> list[Tensor]:
    kind = dispatch.hooks.tensor
    if isinstance(tensors, kind) or not all(isinstance(t, kind) for t in tensors):
        shown = type(tensors).__name__ if isinstance(tensors, kind) else [type(t).__name__ for t in tensors]
        raise TypeError(f"{what} expects a sequence of tensors, got {shown}\n  at {site()}")
    parts = list(tensors)
    if not parts:
        raise ShapeError(f"{what} of no tensors\n  at {site()}")
    return parts


@composite
def repeat(input: Tensor, *sizes: Any) -> Tensor:
    """Tile. [*] -> [* times sizes]."""
    reps = sizes_of(sizes)
    if len(reps) < input.ndim or builtins.min(reps, default=0) < 0:
        raise ShapeError(f"repeat{reps} needs a count of 0 or more for each dimension of shape {list(input.shape)}\n  at {site()}")
    x = view(input, *(1,) * (len(reps) - input.ndim), *input.shape)
    inter = [v for n in x.shape for v in (1, n)]
    wide = [v for r, n in zip(reps, x.shape, strict=True) for v in (r, n)]
    tiled = expand(reshape(x, *inter), *wide).clone()  # always a copy, also of sizes of 1
    return view(tiled, *(r * n for r, n in zip(reps, x.shape, strict=True)))


@composite
def sum_to_size(input: Tensor, *size: Any) -> Tensor:
    """Sum over what broadcasting repeated. [*] -> [size]."""
    shape = sizes_of(size)
    lead = input.ndim - len(shape)
    if lead < 0 or any(n not in (1, input.shape[d + lead]) for d, n in enumerate(shape)):
        raise ShapeError(f"shape {list(input.shape)} is no broadcast of {list(shape)}\n  at {site()}")
    dims = tuple(range(lead)) + tuple(d + lead for d, n in enumerate(shape) if n == 1 and input.shape[d + lead] != 1)
    if not dims:
        return input
    if len(dims) == lead:
        return reduce.sum(input, dims)  # type: ignore[no-any-return]
    out = reduce.sum(input, dims, True)
    return reshape(out, *shape) if lead else out
