"""Views (no kernel) and rows that move elements: cat, pad. Views share storage; their layout rules are pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..dtype import promote
from ..errors import DTypeError, ShapeError
from ..shape import Shape, broadcast_strides, extent, normalize_dim, numel, view_strides
from ..storage import Layout
from .archetype import Kernel, View
from .creation import fill
from .table import Inferred, Sample, Scalar, Spec, op

if TYPE_CHECKING:
    from ..tensor import Tensor


def resolve_shape(shape: Sequence[int], elements: int) -> Shape:
    """Replace one -1 by the size that makes the element count fit."""
    sizes = tuple(int(s) for s in shape)
    if sizes.count(-1) > 1:
        raise ShapeError(f"only one size of {list(sizes)} may be -1")
    if -1 in sizes:
        known = numel([s for s in sizes if s != -1])
        if known == 0 or elements % known:
            raise ShapeError(f"shape {list(sizes)} does not fit {elements} elements")
        sizes = tuple(elements // known if s == -1 else s for s in sizes)
    if numel(sizes) != elements or min(sizes, default=0) < 0:
        raise ShapeError(f"shape {list(sizes)} does not fit {elements} elements")
    return sizes


def _view(input: Layout, shape: Shape) -> Layout:
    sizes = resolve_shape(shape, input.numel)
    strides = view_strides(input.shape, input.strides, sizes)
    if strides is None:
        raise ShapeError(f"view({list(sizes)}) of {input} needs a copy; use reshape()")
    return input.with_(shape=sizes, strides=strides)


@op(
    View(),
    layout=_view,
    ref=lambda input, shape: np.reshape(input, shape),
    grad={"input": lambda grad, input_meta: grad.reshape(input_meta.shape)},
    public=False,
    shown="reshape",
)
def view_as_shape(input: Tensor, shape: Shape) -> Tensor:
    """Another shape over the same elements. [*] -> [shape]."""


def _expand(input: Layout, shape: Shape) -> Layout:
    pad = len(shape) - len(input.shape)
    if pad < 0:
        raise ShapeError(f"expand to {list(shape)} has fewer dimensions than {list(input.shape)}")
    sizes = tuple(input.shape[d - pad] if s == -1 and d >= pad else s for d, s in enumerate(shape))
    for d, n in enumerate(input.shape):
        if n != sizes[d + pad] and n != 1:
            raise ShapeError(f"expand of {list(input.shape)} to {list(shape)}: size {n} at dimension {d} must match or be 1")
    if min(sizes, default=0) < 0:
        raise ShapeError(f"expand to {list(shape)}: -1 is not allowed for a new dimension")
    return input.with_(shape=sizes, strides=broadcast_strides(input.shape, input.strides, sizes))


@op(
    View(),
    layout=_expand,
    ref=lambda input, shape: np.broadcast_to(input, shape),
    grad={"input": lambda grad, input_meta: grad.sum_to_size(input_meta.shape)},
    public=False,
    shown="expand",
)
def expand_to(input: Tensor, shape: Shape) -> Tensor:
    """Repeat dimensions of size 1 without copying. [*] -> [shape]."""


def _permute(input: Layout, dims: Shape) -> Layout:
    order = tuple(normalize_dim(d, len(input.shape)) for d in dims)
    if sorted(order) != list(range(len(input.shape))):
        raise ShapeError(f"permute dims {list(dims)} must name each of the {len(input.shape)} dimensions once")
    return input.with_(shape=tuple(input.shape[d] for d in order), strides=tuple(input.strides[d] for d in order))


def _inverse(dims: Shape) -> Shape:
    order = [d % len(dims) for d in dims]
    return tuple(order.index(d) for d in range(len(dims)))


@op(
    View(),
    layout=_permute,
    ref=lambda input, dims: np.transpose(input, dims),
    grad={"input": lambda grad, dims: permute_to(grad, _inverse(dims))},
    public=False,
    shown="permute",
)
def permute_to(input: Tensor, dims: Shape) -> Tensor:
    """Dimensions in another order. [*] -> [* permuted]."""


def _slice(input: Layout, dim: int, start: int, length: int, step: int) -> Layout:
    d = normalize_dim(dim, len(input.shape))
    shape, strides = list(input.shape), list(input.strides)
    shape[d] = length
    strides[d] *= step
    offset = input.offset + (start * input.strides[d] if length else 0)
    return input.with_(shape=tuple(shape), strides=tuple(strides), offset=offset)


def embed(grad: Any, shape: Shape, strides: Shape, offset: int) -> Any:
    """Zeros of `shape` with `grad` written through a view of them: the gradient of any view that picks elements."""
    out = fill(0, shape, grad.dtype)
    out.as_strided(grad.shape, strides, offset).copy_(grad)
    return out


def _unslice(grad: Any, input_meta: Layout, dim: int, start: int, length: int, step: int) -> Any:
    whole = Layout(input_meta.dtype, input_meta.shape)
    part = _slice(whole, dim, start, length, step)
    return embed(grad, whole.shape, part.strides, part.offset)


def _take(input: Any, dim: int, start: int, length: int, step: int) -> Any:
    index: list[Any] = [slice(None)] * np.ndim(input)
    index[dim] = slice(start, start + (length - 1) * step + 1 if length else start, step)
    return input[tuple(index)]


@op(View(), layout=_slice, ref=_take, grad={"input": _unslice}, public=False)
def slice_dim(input: Tensor, dim: int, start: int, length: int, step: int) -> Tensor:
    """`length` elements along dim from `start`, every `step`-th. [*, n, *] -> [*, length, *]."""


def _strided(input: Layout, size: Shape, stride: Shape, storage_offset: int) -> Layout:
    if len(size) != len(stride):
        raise ShapeError(f"as_strided: {len(size)} sizes but {len(stride)} strides")
    out = input.with_(shape=tuple(size), strides=tuple(stride), offset=storage_offset)
    low, _ = extent(out.shape, out.strides)
    if storage_offset < 0 or (out.numel and storage_offset + low < 0) or min((*size, *stride), default=0) < 0:
        raise ShapeError(f"as_strided: size {list(size)}, stride {list(stride)}, offset {storage_offset} reach before the storage")
    return out


def _unstrided(grad: Any, input_meta: Layout, size: Shape, stride: Shape, storage_offset: int) -> Any:
    if not input_meta.contiguous:
        raise ShapeError("the gradient of as_strided needs a contiguous input")
    return embed(grad, input_meta.shape, stride, storage_offset - input_meta.offset)


@op(View(), layout=_strided, grad={"input": _unstrided}, public=False, shown="as_strided")
def strided(input: Tensor, size: Shape, stride: Shape, storage_offset: int) -> Tensor:
    """Any layout over the same storage, offset counted from the storage's start. [*] -> [size]."""


# ---- cat and pad ----


def _cat_rule(tensors: Sequence[Layout], dim: int) -> Inferred:
    if not tensors:
        raise ShapeError("cat of no tensors")
    first = tensors[0]
    d = normalize_dim(dim, len(first.shape))
    dtype = first.dtype
    for i, t in enumerate(tensors):
        dtype = promote(dtype, t.dtype)
        if len(t.shape) != len(first.shape) or any(a != b for e, (a, b) in enumerate(zip(t.shape, first.shape, strict=True)) if e != d):
            raise ShapeError(f"cat along {dim}: tensor {i} has shape {list(t.shape)}, tensor 0 {list(first.shape)}")
    shape = tuple(sum(t.shape[d] for t in tensors) if e == d else n for e, n in enumerate(first.shape))
    return Inferred((Spec(dtype, shape),), (dtype,) * len(tensors), {"dim": d})


def _uncat(grad: Any, tensors_meta: Sequence[Layout], dim: int) -> Any:
    out, at = [], 0
    for t in tensors_meta:
        n = t.shape[dim]
        out.append(slice_dim(grad, dim, at, n, 1))
        at += n
    return out


@op(
    Kernel("cat"),
    rule=_cat_rule,
    ref=lambda tensors, dim: np.concatenate(tensors, dim),
    grad={"tensors": _uncat},
    method=False,
    public=False,
    shown="cat",
)
def cat_tensors(tensors: Sequence[Tensor], dim: int) -> Tensor:
    """Join along a dimension. [*, n_i, *]... -> [*, sum n_i, *]."""


def _pad_rule(input: Layout, pad: Sequence[tuple[int, int]], value: float) -> Inferred:
    shape = tuple(n + a + b for n, (a, b) in zip(input.shape, pad, strict=True))
    if any(n + min(a, 0) + min(b, 0) < 0 for n, (a, b) in zip(input.shape, pad, strict=True)):
        raise ShapeError(f"padding {list(pad)} cuts off more than shape {list(input.shape)} has")
    return Inferred((Spec(input.dtype, shape),), (input.dtype,), {"pad": tuple(pad)})


def _pad_ref(input: Any, pad: Sequence[tuple[int, int]], value: float) -> Any:
    crop = tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(np.shape(input), pad, strict=True))
    return np.pad(input[crop], [(max(a, 0), max(b, 0)) for a, b in pad], constant_values=value)


def _f32(*shape: int) -> Any:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


@op(
    Kernel("pad"),
    rule=_pad_rule,
    ref=_pad_ref,
    grad={"input": lambda grad, pad: pad_constant(grad, tuple((-a, -b) for a, b in pad), 0.0)},
    samples=lambda: [
        Sample.of(_f32(3, 5), ((1, 2), (0, 3)), 0.5),
        Sample.of(_f32(4, 6), ((-1, 0), (2, -2)), -1.0),
        Sample.of(_f32(2, 0), ((0, 0), (1, 1)), 3.0),
    ],
    method=False,
    public=False,
    torch=None,
    shown="pad",
)
def pad_constant(input: Tensor, pad: Sequence[tuple[int, int]], value: Scalar) -> Tensor:
    """A border of `value` around (negative amounts crop), (before, after) a dimension. [*] -> [* + before + after]."""


def check_dtype(input: Any, what: str) -> None:
    """Raise DTypeError unless integers."""
    if input.dtype.kind not in "iu":
        raise DTypeError(f"{what} must be an integer tensor, got {input}")
