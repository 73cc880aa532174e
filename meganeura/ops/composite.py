"""Composites: plain functions of ops with PyTorch's names, arguments and defaults. No kernel, no gradient rule."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import dispatch
from .. import random as _random
from ..dtype import DType, float32, int64, scalar_dtype
from ..dtype import dtype as as_dtype
from ..errors import DTypeError, ShapeError
from ..provenance import site
from ..shape import Shape, normalize_dim, normalize_dims, numel
from . import creation, index, matmul as _matmul_rows, move, norm, pointwise, reduce
from .table import composite

if TYPE_CHECKING:
    from ..tensor import Tensor


def _sizes(size: tuple[Any, ...]) -> Shape:
    if len(size) == 1 and isinstance(size[0], (tuple, list)):
        size = tuple(size[0])
    return tuple(int(s) for s in size)


def _shaped(*size: Any) -> Shape:
    sizes = _sizes(size)
    if builtins.min(sizes, default=0) < 0:
        raise ShapeError(f"a size of {list(sizes)} is negative\n  at {site()}")
    return sizes


# ---- creation ----


def _leaf(t: Tensor, requires_grad: bool) -> Tensor:
    return t.requires_grad_() if requires_grad else t


def tensor(data: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of the given values. Python floats give float32, integers int64, float64 arrays float32."""
    from ..tensor import Tensor, upload

    if isinstance(data, Tensor):
        out = data.detach().clone() if dtype is None else data.detach().clone().to(as_dtype(dtype))
        return _leaf(out, requires_grad)
    if isinstance(data, (list, tuple)) and any(isinstance(x, Tensor) for x in data):
        data = [x.tolist() if isinstance(x, Tensor) else x for x in data]
    array = np.asarray(data)
    if array.dtype == object or array.dtype.kind not in "biuf":
        raise DTypeError(f"cannot make a tensor of {type(data).__name__} with numpy dtype {array.dtype}\n  at {site()}")
    if dtype is None:
        dtype = float32 if array.size == 0 and not isinstance(data, np.ndarray) else as_dtype(array.dtype)
    return _leaf(upload(array, as_dtype(dtype)), requires_grad)


def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor with a copy of the array's values (no shared memory: they go to the device)."""
    return tensor(array)


def full(*size: Any, fill_value: Any = None, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of one value: full((2, 3), 1.5). -> [size]."""
    if fill_value is None:
        *head, fill_value = size
        size = tuple(head)
    kind = as_dtype(dtype) if dtype is not None else scalar_dtype(fill_value)
    return _leaf(creation.fill(fill_value, _shaped(*size), kind), requires_grad)


def zeros(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Zeros. -> [size]."""
    return full(_shaped(*size), 0, dtype=dtype or float32, requires_grad=requires_grad)


def ones(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Ones. -> [size]."""
    return full(_shaped(*size), 1, dtype=dtype or float32, requires_grad=requires_grad)


def empty(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor whose values do not matter (zeros here). -> [size]."""
    return zeros(*size, dtype=dtype, requires_grad=requires_grad)


def arange(start: Any, end: Any = None, step: Any = 1, dtype: Any = None, device: Any = None) -> Tensor:
    """start, start + step, ... before end. int64 for integers, else float32. -> [ceil((end - start) / step)]."""
    if end is None:
        start, end = 0, start
    if step == 0 or (end - start) / step < 0:
        raise ShapeError(f"arange({start}, {end}, {step}): the step must be nonzero and lead from start to end\n  at {site()}")
    kind = as_dtype(dtype) if dtype is not None else (int64 if all(isinstance(v, (int, np.integer)) for v in (start, end, step)) else float32)
    return creation.ramp(start, step, (math.ceil((end - start) / step),), kind)  # type: ignore[no-any-return]


def linspace(start: float, end: float, steps: int, dtype: Any = None) -> Tensor:
    """`steps` values from start to end, both included. -> [steps]."""
    return tensor(np.linspace(start, end, steps), dtype or float32)


def eye(n: int, m: int | None = None, dtype: Any = None) -> Tensor:
    """Ones on the diagonal. -> [n, m]."""
    m = n if m is None else m
    return (arange(n).unsqueeze(1) == arange(m)).to(as_dtype(dtype or float32))


def _like(fn: Any) -> Any:
    def make(input: Tensor, *args: Any, dtype: Any = None, requires_grad: bool = False, **kwargs: Any) -> Tensor:
        kwargs.pop("device", None)
        out: Tensor = fn(input.shape, *args, dtype=dtype or input.dtype, **kwargs)
        return _leaf(out, requires_grad)

    make.__name__ = fn.__name__ + "_like"
    make.__doc__ = f"{fn.__name__} with the shape and dtype of input. [*] -> [*]."
    return composite(make)


def _bits(elements: int, generator: Any) -> Sequence[Any]:
    gen = generator or _random.default_generator
    return dispatch.current().host_scalars(lambda: gen.reserve(elements), 4)


def _float(dtype: Any) -> DType:
    kind = as_dtype(dtype or float32)
    if not kind.is_floating_point:
        raise DTypeError(f"random numbers need a floating point dtype, not {kind.name}\n  at {site()}")
    return kind


def rand(*size: Any, generator: Any = None, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Uniform numbers in [0, 1). -> [size]."""
    shape = _shaped(*size)
    return _leaf(creation.uniform_bits(*_bits(numel(shape), generator), 0.0, 1.0, shape, _float(dtype)), requires_grad)


def randn(*size: Any, generator: Any = None, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Standard normal numbers. -> [size]."""
    shape = _shaped(*size)
    return _leaf(creation.normal_bits(*_bits(numel(shape), generator), 0.0, 1.0, shape, _float(dtype)), requires_grad)


def randint(low: int, high: Any = None, size: Any = None, generator: Any = None, dtype: Any = None, device: Any = None) -> Tensor:
    """Integers in [low, high). -> [size]."""
    if size is None:
        low, high, size = 0, low, high
    if high <= low:
        raise ShapeError(f"randint needs low < high, got {low} and {high}\n  at {site()}")
    shape = _shaped(*((size,) if isinstance(size, int) else size))
    u = creation.uniform_bits(*_bits(numel(shape), generator), 0.0, 1.0, shape, float32)
    return pointwise.clamp_both((u * float(high - low)).to(as_dtype(dtype or int64)) + low, low, high - 1)  # type: ignore[no-any-return]


zeros_like, ones_like, full_like, rand_like, randn_like, empty_like = (_like(f) for f in (zeros, ones, full, rand, randn, empty))


@composite
def uniform_(input: Tensor, a: float = 0.0, b: float = 1.0, generator: Any = None) -> Tensor:
    """Fill in place with uniform numbers in [a, b). [*] -> [*]."""
    bits = _bits(input.numel(), generator)
    dispatch.bind(creation.uniform_bits, (*bits, a, b, input.shape, input.dtype), {}, out=input)
    return input


@composite
def normal_(input: Tensor, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> Tensor:
    """Fill in place with normal numbers. [*] -> [*]."""
    bits = _bits(input.numel(), generator)
    dispatch.bind(creation.normal_bits, (*bits, mean, std, input.shape, input.dtype), {}, out=input)
    return input


@composite
def fill_(input: Tensor, value: Any) -> Tensor:
    """Fill in place. [*] -> [*]."""
    if hasattr(value, "layout"):
        return copy_(input, value)
    dispatch.bind(creation.fill, (value, input.shape, input.dtype), {}, out=input)
    return input


@composite
def zero_(input: Tensor) -> Tensor:
    """Fill in place with zeros. [*] -> [*]."""
    return fill_(input, 0)


@composite
def copy_(input: Tensor, src: Any) -> Tensor:
    """Overwrite with src, broadcast and converted. [*] -> [*]."""
    source = src if hasattr(src, "layout") else tensor(src)
    dispatch.bind(pointwise.cast, (source.expand(input.shape), input.dtype), {}, out=input)
    return input


# ---- shape ----


@composite
def reshape(input: Tensor, *shape: Any) -> Tensor:
    """Another shape: a view where the strides allow, else a copy. [*] -> [shape]."""
    sizes = move.resolve_shape(_sizes(shape), input.numel()) if not input.is_contiguous() else _sizes(shape)
    from ..shape import view_strides

    if not input.is_contiguous() and view_strides(input.shape, input.layout.strides, sizes) is None:
        input = input.clone()
    return move.view_as_shape(input, sizes)  # type: ignore[no-any-return]


@composite
def view(input: Tensor, *shape: Any) -> Tensor:
    """Another shape over the same memory. [*] -> [shape]."""
    return move.view_as_shape(input, _sizes(shape))  # type: ignore[no-any-return]


@composite
def view_as(input: Tensor, other: Tensor) -> Tensor:
    """view(other.shape)."""
    return view(input, other.shape)


@composite
def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Merge the dimensions from start_dim to end_dim. [*] -> [*]."""
    if not input.shape:
        return reshape(input, 1)
    a, b = normalize_dim(start_dim, input.ndim), normalize_dim(end_dim, input.ndim)
    return reshape(input, *input.shape[:a], numel(input.shape[a : b + 1]), *input.shape[b + 1 :])


@composite
def unflatten(input: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """Split a dimension. [*, n, *] -> [*, *sizes, *]."""
    d = normalize_dim(dim, input.ndim)
    return reshape(input, *input.shape[:d], *move.resolve_shape(sizes, input.shape[d]), *input.shape[d + 1 :])


@composite
def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """A new dimension of size 1. [*] -> [*, 1, *]."""
    d = normalize_dim(dim, input.ndim + 1)
    return view(input, *input.shape[:d], 1, *input.shape[d:])


@composite
def squeeze(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Without dimensions of size 1 (all of them, or those named). [*] -> [*]."""
    dims = normalize_dims(dim, input.ndim)
    return view(input, *(n for d, n in enumerate(input.shape) if not (d in dims and n == 1)))


@composite
def expand(input: Tensor, *shape: Any) -> Tensor:
    """Repeat dimensions of size 1 without copying; -1 keeps a size. [*] -> [shape]."""
    sizes = _sizes(shape)
    return input if sizes == input.shape else move.expand_to(input, sizes)  # type: ignore[no-any-return]


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
    return move.permute_to(input, _sizes(dims))  # type: ignore[no-any-return]


@composite
def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Swap two dimensions. [*] -> [*]."""
    order = list(range(input.ndim))
    a, b = normalize_dim(dim0, input.ndim), normalize_dim(dim1, input.ndim)
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
def movedim(input: Tensor, source: int, destination: int) -> Tensor:
    """Move one dimension. [*] -> [*]."""
    order = list(range(input.ndim))
    order.insert(normalize_dim(destination, input.ndim), order.pop(normalize_dim(source, input.ndim)))
    return permute(input, order)


@composite
def narrow(input: Tensor, dim: int, start: int, length: int) -> Tensor:
    """`length` elements along dim from start. [*, n, *] -> [*, length, *]."""
    d = normalize_dim(dim, input.ndim)
    n = input.shape[d]
    first = start + n if start < 0 else start
    if not (0 <= first <= n and 0 <= length <= n - first):
        raise ShapeError(f"narrow(dim={dim}, start={start}, length={length}) leaves dimension {d} of shape {list(input.shape)}\n  at {site()}")
    return move.slice_dim(input, d, first, length, 1)  # type: ignore[no-any-return]


@composite
def select(input: Tensor, dim: int, index: int) -> Tensor:
    """One slice along dim, without that dimension. [*, n, *] -> [*, *]."""
    d = normalize_dim(dim, input.ndim)
    n = input.shape[d]
    if not -n <= index < n:
        raise ShapeError(f"index {index} is out of range for dimension {d} of size {n}\n  at {site()}")
    one = move.slice_dim(input, d, index % n, 1, 1)
    return view(one, *input.shape[:d], *input.shape[d + 1 :])


@composite
def as_strided(input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Tensor:
    """Any layout over the same storage. [*] -> [size]."""
    offset = input.storage_offset() if storage_offset is None else storage_offset
    return move.strided(input, tuple(size), tuple(stride), offset)  # type: ignore[no-any-return]


@composite
def as_strided_scatter(input: Tensor, shape: Sequence[int], stride: Sequence[int], storage_offset: int) -> Tensor:
    """Zeros of `shape` with input written at a strided place of them. [*] -> [shape]."""
    return move.embed(input, tuple(shape), tuple(stride), storage_offset)  # type: ignore[no-any-return]


@composite
def split(input: Tensor, split_size: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Views of consecutive parts along dim."""
    d = normalize_dim(dim, input.ndim)
    n = input.shape[d]
    sizes = [builtins.min(split_size, n - i) for i in range(0, n, split_size)] if isinstance(split_size, int) else list(split_size)
    if sum(sizes) != n:
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
    return split(input, builtins.max(-(-input.shape[normalize_dim(dim, input.ndim)] // chunks), 1), dim)


@composite
def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of all slices along dim."""
    out = tuple(select(input, dim, i) for i in range(input.shape[normalize_dim(dim, input.ndim)]))
    for part in out:
        part._view = "multi"
    return out


@composite(method=False)
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Join along a dimension. [*, n_i, *]... -> [*, sum n_i, *]."""
    parts = list(tensors)
    rank = builtins.max((p.ndim for p in parts), default=0)
    kept = [p for p in parts if not (p.shape == (0,) and rank > 1)]  # PyTorch ignores empty vectors
    return move.cat_tensors(kept or parts, dim)  # type: ignore[no-any-return]


@composite(method=False)
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Join along a new dimension. [*]... -> [*, n, *]."""
    return cat([unsqueeze(x, dim) for x in tensors], normalize_dim(dim, tensors[0].ndim + 1))


@composite
def repeat(input: Tensor, *sizes: Any) -> Tensor:
    """Tile. [*] -> [* times sizes]."""
    reps = _sizes(sizes)
    x = view(input, *(1,) * (len(reps) - input.ndim), *input.shape)
    inter = [v for n in x.shape for v in (1, n)]
    wide = [v for r, n in zip(reps, x.shape, strict=True) for v in (r, n)]
    return reshape(expand(view(x, *inter), *wide), *(r * n for r, n in zip(reps, x.shape, strict=True)))


@composite
def sum_to_size(input: Tensor, *size: Any) -> Tensor:
    """Sum over what broadcasting repeated. [*] -> [size]."""
    shape = _sizes(size)
    lead = input.ndim - len(shape)
    dims = tuple(range(lead)) + tuple(d + lead for d, n in enumerate(shape) if n == 1 and input.shape[d + lead] != 1)
    if lead < 0 or any(n not in (1, input.shape[d + lead]) for d, n in enumerate(shape)):
        raise ShapeError(f"shape {list(input.shape)} is no broadcast of {list(shape)}\n  at {site()}")
    if not dims:
        return input
    if len(dims) == lead:
        return reduce.sum(input, dims)  # type: ignore[no-any-return]
    out = reduce.sum(input, dims, True)
    return reshape(out, *shape) if lead else out  # type: ignore[no-any-return]


# ---- arithmetic with PyTorch's extra arguments ----


@composite
def add(input: Any, other: Any, *, alpha: Any = 1) -> Tensor:
    """input + alpha * other."""
    return pointwise.add(input, other if alpha == 1 else other * alpha)  # type: ignore[no-any-return]


@composite
def sub(input: Any, other: Any, *, alpha: Any = 1) -> Tensor:
    """input - alpha * other."""
    return pointwise.sub(input, other if alpha == 1 else other * alpha)  # type: ignore[no-any-return]


@composite
def add_(input: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:
    """In place: input += alpha * other."""
    dispatch.bind(pointwise.add, (input, other if alpha == 1 else other * alpha), {}, out=input)
    return input


@composite
def sub_(input: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:
    """In place: input -= alpha * other."""
    dispatch.bind(pointwise.sub, (input, other if alpha == 1 else other * alpha), {}, out=input)
    return input


@composite
def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    """input / other; rounding_mode 'floor' or 'trunc' rounds the quotient."""
    if rounding_mode is None:
        return pointwise.div(input, other)  # type: ignore[no-any-return]
    if rounding_mode == "floor":
        return pointwise.floor_divide(input, other)  # type: ignore[no-any-return]
    if rounding_mode != "trunc":
        raise DTypeError(f"rounding_mode must be None, 'floor' or 'trunc', not {rounding_mode!r}\n  at {site()}")
    out = pointwise.trunc(pointwise.div(input, other))
    return out.to(input.dtype) if not input.is_floating_point() else out  # type: ignore[no-any-return]


@composite
def square(input: Tensor) -> Tensor:
    """input * input. [*] -> [*]."""
    return pointwise.mul(input, input)  # type: ignore[no-any-return]


@composite
def clamp(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """input limited to [min, max]; either may be None. [*] -> [*]."""
    if min is None and max is None:
        raise ShapeError(f"clamp needs min or max\n  at {site()}")
    whole = input.dtype.kind in "iu"
    low = (-(2**31) if input.dtype.kind == "i" else 0) if whole else -math.inf
    high = 2**31 - 1 if whole else math.inf
    return pointwise.clamp_both(input, low if min is None else min, high if max is None else max)  # type: ignore[no-any-return]


@composite
def masked_fill(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    """value where the mask holds. [*], [*] -> [*]."""
    out: Tensor = pointwise.where(mask, value, input)
    return out.to(input.dtype)


@composite
def lerp(input: Tensor, end: Any, weight: Any) -> Tensor:
    """input + weight * (end - input). [*] -> [*]."""
    return input + (end - input) * weight  # type: ignore[no-any-return]


@composite
def max(input: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """The maximum of all elements; with an int dim (values, indices); with a tensor the elementwise maximum."""
    return _extreme(input, dim, keepdim, reduce.amax, reduce.argmax, pointwise.maximum)


@composite
def min(input: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """The minimum of all elements; with an int dim (values, indices); with a tensor the elementwise minimum."""
    return _extreme(input, dim, keepdim, reduce.amin, reduce.argmin, pointwise.minimum)


def _extreme(input: Tensor, dim: Any, keepdim: bool, value: Any, place: Any, pair: Any) -> Any:
    if hasattr(dim, "layout"):
        return pair(input, dim)
    if dim is None:
        return value(input)
    at = place(input, dim, True)
    out = index.gather(input, dim, at) if input.ndim else input
    if not keepdim and input.ndim:
        out, at = squeeze(out, dim), squeeze(at, dim)
    return out, at


@composite
def std(input: Tensor, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> Tensor:
    """Square root of var. [*] -> [*]."""
    return reduce.var(input, dim, correction, keepdim).sqrt()  # type: ignore[no-any-return]


# ---- products ----


@composite
def matmul(input: Tensor, other: Tensor) -> Tensor:
    """PyTorch's matmul: vectors, matrices and batches. [*, M, K], [*, K, N] -> [*, M, N]."""
    a = input if input.ndim != 1 else unsqueeze(input, 0)
    b = other if other.ndim != 1 else unsqueeze(other, 1)
    if not (a.shape and b.shape):
        raise ShapeError(f"matmul needs at least 1 dimension each, got shapes {list(input.shape)} and {list(other.shape)}\n  at {site()}")
    if b.ndim == 2 and a.ndim > 2 and a.shape[-1] == b.shape[0]:
        out = _matmul_rows.batched_matmul(reshape(a, numel(a.shape[:-1]), a.shape[-1]), b)
        out = reshape(out, *a.shape[:-1], b.shape[-1])
    else:
        out = _matmul_rows.batched_matmul(a, b)
    if input.ndim == 1:
        out = squeeze(out, -2)
    return squeeze(out, -1) if other.ndim == 1 else out  # type: ignore[no-any-return]


@composite
def mm(input: Tensor, mat2: Tensor) -> Tensor:
    """Product of two matrices. [M, K], [K, N] -> [M, N]."""
    if input.ndim != 2 or mat2.ndim != 2:
        raise ShapeError(f"mm expects two matrices, got shapes {list(input.shape)} and {list(mat2.shape)}\n  at {site()}")
    return _matmul_rows.batched_matmul(input, mat2)  # type: ignore[no-any-return]


@composite
def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    """Batched product. [B, M, K], [B, K, N] -> [B, M, N]."""
    if input.ndim != 3 or mat2.ndim != 3:
        raise ShapeError(f"bmm expects two 3-D tensors, got shapes {list(input.shape)} and {list(mat2.shape)}\n  at {site()}")
    return _matmul_rows.batched_matmul(input, mat2)  # type: ignore[no-any-return]


@composite(method=False)
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input @ weight.T + bias. [*, in], [out, in], [out] -> [*, out]."""
    if input.shape[-1:] != weight.shape[1:]:
        raise ShapeError(f"linear: input of shape {list(input.shape)} needs {weight.shape[-1]} features for weight {list(weight.shape)}\n  at {site()}")
    out = matmul(input, transpose(weight, 0, 1))
    return out if bias is None else out + bias  # type: ignore[no-any-return]


# ---- activations, normalisation, losses ----


@composite(method=False)
def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """Gaussian error linear unit; approximate 'none' (erf) or 'tanh'. [*] -> [*]."""
    if approximate not in ("none", "tanh"):
        raise DTypeError(f"approximate must be 'none' or 'tanh', not {approximate!r}\n  at {site()}")
    return pointwise.gelu_erf(input) if approximate == "none" else pointwise.gelu_tanh(input)  # type: ignore[no-any-return]


@composite(method=False)
def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta * input)) / beta; the identity above the threshold. [*] -> [*]."""
    if beta == 1.0:
        return pointwise.softplus(input)  # type: ignore[no-any-return]
    return pointwise.softplus(input * beta) / beta  # type: ignore[no-any-return]


@composite
def softmax(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """exp(input) / sum(exp(input)) along dim. [*] -> [*]."""
    x = input if dtype is None else input.to(as_dtype(dtype))
    return norm.softmax_row(x, normalize_dim(dim, x.ndim))  # type: ignore[no-any-return]


@composite
def log_softmax(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """log(softmax(input)) along dim. [*] -> [*]."""
    x = input if dtype is None else input.to(as_dtype(dtype))
    return norm.log_softmax_row(x, normalize_dim(dim, x.ndim))  # type: ignore[no-any-return]


def _trailing(input: Tensor, shape: Any, what: str, *params: Tensor | None) -> Shape:
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if not sizes or tuple(input.shape[-len(sizes) :]) != sizes or any(p is not None and p.shape != sizes for p in params):
        got = [list(p.shape) for p in params if p is not None]
        raise ShapeError(f"{what}: normalized_shape {list(sizes)} does not fit input {list(input.shape)} or parameters {got}\n  at {site()}")
    return tuple(range(input.ndim - len(sizes), input.ndim))


@composite(method=False)
def layer_norm(input: Tensor, normalized_shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Layer norm over the trailing dimensions. [*, normalized_shape] -> same."""
    dims = _trailing(input, normalized_shape, "layer_norm", weight, bias)
    return norm.layer_norm_row(input, weight, bias, dims, eps)[0]  # type: ignore[no-any-return]


@composite(method=False)
def rms_norm(input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """Root mean square norm over the trailing dimensions; eps defaults to the dtype's epsilon. [*, normalized_shape] -> same."""
    dims = _trailing(input, normalized_shape, "rms_norm", weight)
    eps = float(np.finfo(np.float16 if input.dtype.name == "float16" else np.float32).eps) if eps is None else eps
    return norm.rms_norm_row(input, weight, dims, eps)[0]  # type: ignore[no-any-return]


@composite(method=False)
def dropout(input: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Zero each element with probability p and scale the rest by 1/(1-p), while training. [*] -> [*]."""
    if not 0.0 <= p <= 1.0:
        raise ShapeError(f"dropout probability must lie in [0, 1], got {p}\n  at {site()}")
    if not training or p == 0.0:
        return input
    if p == 1.0:
        return input * 0.0  # type: ignore[no-any-return]
    return creation.drop(input, *_bits(input.numel(), None), p, 1.0 / (1.0 - p))  # type: ignore[no-any-return]


@composite(method=False)
def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """Rows of weight by index; the row padding_idx gets no gradient. [*], [V, D] -> [*, D]."""
    if weight.ndim != 2:
        raise ShapeError(f"embedding expects a [V, D] weight, got shape {list(weight.shape)}\n  at {site()}")
    if padding_idx is not None:
        padding_idx = normalize_dim(padding_idx, weight.shape[0], "padding_idx")
    rows = index.embedding_rows(weight, 0, reshape(input, -1) if input.numel() else reshape(input, 0), padding_idx)
    return reshape(rows, *input.shape, weight.shape[1])


def _reduced(values: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return values
    if reduction not in ("mean", "sum"):
        raise ShapeError(f"reduction must be 'none', 'mean' or 'sum', not {reduction!r}\n  at {site()}")
    return values.mean() if reduction == "mean" else values.sum()  # type: ignore[no-any-return]


def _classes(input: Tensor, target: Tensor) -> int:
    dim = 1 if input.ndim > 1 else 0
    expected = (*input.shape[:dim], *input.shape[dim + 1 :])
    if not input.ndim or target.shape != expected:
        raise ShapeError(f"target of shape {list(target.shape)} does not fit input {list(input.shape)}: expected {list(expected)}\n  at {site()}")
    move.check_dtype(target, "target")
    return dim


@composite(method=False)
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross entropy of logits. [N, C, *] with class indices [N, *] or probabilities [N, C, *] -> [] (or [N, *] for 'none')."""
    dim = 1 if input.ndim > 1 else 0
    if target.is_floating_point():
        return _dense_cross_entropy(input, target, weight, reduction, label_smoothing, dim)
    _classes(input, target)
    if weight is not None or label_smoothing:
        logp = log_softmax(input, dim)
        loss = nll_loss(logp, target, weight, ignore_index, reduction)
        if not label_smoothing:
            return loss
        return _smoothed(loss, logp, target, weight, ignore_index, reduction, label_smoothing, dim)
    rows = norm.cross_entropy_row(input, target, dim, ignore_index)[0]
    if reduction != "mean":
        return _reduced(rows, reduction)
    return _mean_kept(rows, target, ignore_index)


def _mean_kept(rows: Tensor, target: Tensor, ignore_index: int) -> Tensor:
    return rows.sum() / (target != ignore_index).to(rows.dtype).sum()  # type: ignore[no-any-return]


def _smoothed(
    loss: Tensor, logp: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, smoothing: float, dim: int
) -> Tensor:
    spread = logp if weight is None else logp * reshape(weight, *(-1 if d == dim else 1 for d in range(logp.ndim)))
    kept = (target != ignore_index).to(logp.dtype)
    flat = -spread.sum(dim) * kept
    if reduction == "mean":
        total = kept.sum() if weight is None else (_class_weights(weight, target, ignore_index) * kept).sum()
        flat = flat.sum() / total
    elif reduction == "sum":
        flat = flat.sum()
    return loss * (1.0 - smoothing) + flat * (smoothing / logp.shape[dim])  # type: ignore[no-any-return]


def _dense_cross_entropy(input: Tensor, target: Tensor, weight: Tensor | None, reduction: str, smoothing: float, dim: int) -> Tensor:
    if target.shape != input.shape:
        raise ShapeError(f"probability target of shape {list(target.shape)} does not fit input {list(input.shape)}\n  at {site()}")
    if smoothing:
        target = target * (1.0 - smoothing) + smoothing / input.shape[dim]
    terms = log_softmax(input, dim) * target
    if weight is not None:
        terms = terms * reshape(weight, *(-1 if d == dim else 1 for d in range(input.ndim)))
    rows = -terms.sum(dim)
    if reduction == "mean":
        return rows.sum() / (rows.numel() or 1)  # type: ignore[no-any-return]
    return _reduced(rows, reduction)


def _class_weights(weight: Tensor, target: Tensor, ignore_index: int) -> Tensor:
    safe = pointwise.where(target == ignore_index, 0, target).to(target.dtype)
    return reshape(index.index_select(weight, 0, reshape(safe, -1)), *target.shape)


@composite(method=False)
def nll_loss(input: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean") -> Tensor:
    """Negative log likelihood from log probabilities. [N, C, *], [N, *] -> [] (or [N, *] for 'none')."""
    dim = _classes(input, target)
    kept = (target != ignore_index).to(input.dtype)
    safe = pointwise.where(target == ignore_index, 0, target).to(target.dtype)
    rows = -squeeze(index.gather(input, dim, unsqueeze(safe, dim)), dim) * kept
    if weight is not None:
        scale = _class_weights(weight, target, ignore_index)
        rows, kept = rows * scale, kept * scale
    return rows.sum() / kept.sum() if reduction == "mean" else _reduced(rows, reduction)  # type: ignore[no-any-return]


@composite(method=False)
def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """(input - target)**2. [*], [*] -> [] (or [*] for 'none')."""
    return _reduced(square(input - target), reduction)


@composite(method=False)
def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """|input - target|. [*], [*] -> [] (or [*] for 'none')."""
    return _reduced((input - target).abs(), reduction)


@composite(method=False)
def binary_cross_entropy_with_logits(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean", pos_weight: Tensor | None = None
) -> Tensor:
    """Binary cross entropy of logits, without overflow. [*], [*] -> [] (or [*] for 'none')."""
    log_weight = 1.0 if pos_weight is None else (pos_weight - 1.0) * target + 1.0
    rows = (1.0 - target) * input + log_weight * pointwise.softplus(-input)
    return _reduced(rows if weight is None else rows * weight, reduction)


@composite(method=False)
def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """PyTorch's pad: (before, after) pairs from the last dimension backwards; constant mode. [*] -> [*]."""
    if mode != "constant":
        raise ShapeError(f"pad mode {mode!r} does not exist here yet; there is 'constant'\n  at {site()}")
    if len(pad) % 2 or len(pad) > 2 * input.ndim:
        raise ShapeError(f"pad {list(pad)} does not fit shape {list(input.shape)}\n  at {site()}")
    pairs = [(0, 0)] * (input.ndim - len(pad) // 2) + [(int(pad[i]), int(pad[i + 1])) for i in range(len(pad) - 2, -1, -2)]
    return move.pad_constant(input, tuple(pairs), float(value or 0.0))  # type: ignore[no-any-return]


@composite
def one_hot(input: Tensor, num_classes: int) -> Tensor:
    """int64 ones at the class indices. [*] -> [*, num_classes]."""
    return (unsqueeze(input, -1) == arange(num_classes)).to(int64)


@composite
def bernoulli(input: Tensor, generator: Any = None) -> Tensor:
    """1 with the probability given by each element, else 0. [*] -> [*]."""
    return (rand(input.shape, generator=generator) < input).to(input.dtype)
