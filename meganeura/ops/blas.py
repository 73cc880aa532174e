"""Matrix products under the names of BLAS, their forms that add, and chains of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..dtype import promote
from ..errors import DTypeError, ShapeError
from ..provenance import site
from ..shape import normalize_dim
from . import factory, reduce, views
from .contraction import outer
from .factory import whole
from .joining import tensors_of
from .matmul import batched_matmul
from .products import bmm, mm
from .rearrange import roll
from .table import COMPOSITES, composite

if TYPE_CHECKING:
    from ..tensor import Tensor


@composite
def mv(input: Tensor, vec: Tensor) -> Tensor:
    """Matrix times vector. [n, m], [m] -> [n]."""
    if input.ndim != 2 or vec.ndim != 1 or input.shape[1] != vec.shape[0]:
        raise ShapeError(f"mv takes a matrix and a vector that fits, got shapes {list(input.shape)} and {list(vec.shape)}\n  at {site()}")
    return views.squeeze(batched_matmul(input, views.unsqueeze(vec, 1)), 1)


@composite
def dot(input: Tensor, tensor: Tensor) -> Tensor:
    """Sum of products of two vectors. [n], [n] -> []."""
    if input.ndim != 1 or tensor.ndim != 1 or input.shape != tensor.shape:
        raise ShapeError(f"dot takes two vectors of one size, got shapes {list(input.shape)} and {list(tensor.shape)}\n  at {site()}")
    return views.reshape(batched_matmul(views.unsqueeze(input, 0), views.unsqueeze(tensor, 1)))


@composite
def vdot(input: Tensor, other: Tensor) -> Tensor:
    """dot (numbers here are real). [n], [n] -> []."""
    return dot(input, other)


# ---- products that add ----


def _added(input: Tensor, product: Tensor, beta: Any, alpha: Any, what: str) -> Tensor:
    """beta * input + alpha * product; an input times 0 does not count, not even its NaN."""
    if product.dtype is not input.dtype:
        raise DTypeError(f"{what} adds a {input.dtype.name} tensor to a {product.dtype.name} product\n  at {site()}")
    if not input.dtype.is_floating_point:
        beta, alpha = int(beta), int(alpha)  # PyTorch drops fractions here
    wide = views.expand(input, *product.shape)
    scaled = product if _is(alpha, 1) else product * alpha
    if _is(beta, 0):
        return scaled
    return scaled + (wide if _is(beta, 1) else wide * beta)


def _is(value: Any, number: int) -> bool:
    return isinstance(value, (int, float)) and value == number


@composite
def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * input + alpha * (mat1 @ mat2). [n, m], [n, k], [k, m] -> [n, m]."""
    return _added(input, mm(mat1, mat2), beta, alpha, "addmm")


@composite
def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * input + alpha * (mat @ vec). [n], [n, m], [m] -> [n]."""
    return _added(input, mv(mat, vec), beta, alpha, "addmv")


@composite
def addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * input + alpha * the sum of batch1[i] @ batch2[i]. [n, m], [b, n, k], [b, k, m] -> [n, m]."""
    if batch1.ndim != 3 or batch2.ndim != 3 or batch1.shape[0] != batch2.shape[0] or batch1.shape[2] != batch2.shape[1]:
        raise ShapeError(f"addbmm: batches of shapes {list(batch1.shape)} and {list(batch2.shape)} do not fit\n  at {site()}")
    b, n, k = batch1.shape
    flat = views.reshape(views.permute(batch1, 1, 0, 2), n, b * k)  # the sum over the batch is one longer product
    return _added(input, batched_matmul(flat, views.reshape(batch2, b * k, batch2.shape[2])), beta, alpha, "addbmm")


@composite
def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * input + alpha * (batch1 @ batch2). [b, n, m], [b, n, k], [b, k, m] -> [b, n, m]."""
    return _added(input, _bmm(batch1, batch2), beta, alpha, "baddbmm")


def _bmm(batch1: Tensor, batch2: Tensor) -> Tensor:
    if batch1.shape[:1] != batch2.shape[:1]:
        raise ShapeError(f"batches of shapes {list(batch1.shape)} and {list(batch2.shape)} differ in size\n  at {site()}")
    return bmm(batch1, batch2)


@composite
def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * input + alpha * outer(vec1, vec2). [n, m], [n], [m] -> [n, m]."""
    product = outer(vec1, vec2)
    kind = promote(input.dtype, product.dtype)
    if not kind.is_floating_point and not (isinstance(beta, int) and isinstance(alpha, int)):
        raise DTypeError(f"addr: beta={beta} and alpha={alpha} must be whole for {kind.name}\n  at {site()}")
    return _added(input.to(kind), product.to(kind), beta, alpha, "addr")


def _inplace(fn: Callable[..., Any]) -> Callable[..., Any]:
    def call(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        result = fn(input, *args, **kwargs)
        if result.shape != input.shape:
            raise ShapeError(f"{fn.__name__}_: a result of shape {list(result.shape)} for {list(input.shape)}\n  at {site()}")
        return input.copy_(result)  # type: ignore[no-any-return]

    call.__name__ = fn.__name__ + "_"
    call.__doc__ = f"In-place {fn.__name__}. {fn.__doc__}"
    return composite(call)


for _fn in (addmm, addmv, addbmm, baddbmm, addr):
    _inplace(_fn)


# ---- chains ----


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """Product of matrices in the cheapest order; the first and last may be vectors. [n, k], ..., [l, m] -> [n, m]."""
    parts = tensors_of([tensors])
    if len(parts) < 2:
        raise ShapeError(f"multi_dot needs at least 2 tensors, got {len(parts)}\n  at {site()}")
    first, last = parts[0].ndim == 1, parts[-1].ndim == 1
    mats = list(parts)
    if first:
        mats[0] = views.unsqueeze(mats[0], 0)
    if last:
        mats[-1] = views.unsqueeze(mats[-1], 1)
    for a, b in itertools.pairwise(mats):
        if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
            raise ShapeError(f"multi_dot: shapes {list(a.shape)} and {list(b.shape)} do not fit\n  at {site()}")
    out = _product(mats, _order([m.shape[0] for m in mats] + [mats[-1].shape[1]]), 0, len(mats) - 1)
    shape = out.shape[1 if first else 0 : 1 if last else 2]
    return views.reshape(out, *shape)


def _order(sizes: Sequence[int]) -> dict[tuple[int, int], int]:
    """Where to split each run of matrices: the textbook dynamic program over sizes[i] x sizes[i + 1]."""
    count = len(sizes) - 1
    cost = {(i, i): 0 for i in range(count)}
    best: dict[tuple[int, int], int] = {}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            work = [(cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1], k) for k in range(i, j)]
            cost[i, j], best[i, j] = min(work)
    return best


def _product(mats: Sequence[Tensor], best: dict[tuple[int, int], int], i: int, j: int) -> Tensor:
    if i == j:
        return mats[i]
    k = best[i, j]
    return batched_matmul(_product(mats, best, i, k), _product(mats, best, k + 1, j))  # type: ignore[no-any-return]


@composite(method=False)
def chain_matmul(*matrices: Any) -> Tensor:
    """multi_dot of matrices given one by one. [n, k], ..., [l, m] -> [n, m]."""
    parts = tensors_of(matrices)
    if wrong := [m for m in parts if m.ndim != 2]:
        raise ShapeError(f"chain_matmul takes matrices, got shape {list(wrong[0].shape)}\n  at {site()}")
    return parts[0] if len(parts) == 1 else multi_dot(parts)


@composite
def matrix_power(input: Tensor, n: int) -> Tensor:
    """A square matrix times itself, n times; of the inverse for negative n. [*, k, k] -> same."""
    square(input, "matrix_power")
    count = whole(n, "n")
    if count == 0:
        return views.expand(factory.eye(input.shape[-1], dtype=input.dtype), *input.shape).clone()  # type: ignore[no-any-return]
    power = COMPOSITES["inverse"](input) if count < 0 else input
    count = abs(count)
    out: Any = None
    while count:
        if count & 1:
            out = power if out is None else batched_matmul(out, power)
        count >>= 1
        if count:
            power = batched_matmul(power, power)
    return out.clone() if out is input else out  # type: ignore[no-any-return]


def square(input: Tensor, what: str) -> Tensor:
    """ShapeError unless a batch of square matrices."""
    if input.ndim < 2 or input.shape[-1] != input.shape[-2]:
        raise ShapeError(f"{what} takes square matrices, got shape {list(input.shape)}\n  at {site()}")
    return input


# ---- vectors of three ----


@composite
def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """Cross product along a dimension of size 3, the first such by default. [*, 3, *], [*, 3, *] -> [*, 3, *]."""
    if dim is None:
        dim = next((d for d, n in enumerate(input.shape) if n == 3), None)
        if dim is None:
            raise ShapeError(f"cross: no dimension of shape {list(input.shape)} has size 3\n  at {site()}")
        if input.shape != other.shape:  # PyTorch broadcasts before it looks for the dimension only in linalg.cross
            dim -= input.ndim
    return cross_along(input, other, dim)


def cross_along(input: Tensor, other: Tensor, dim: int = -1) -> Tensor:
    """Cross product along dim. [*, 3, *], [*, 3, *] -> [*, 3, *]."""
    if input.ndim != other.ndim:
        raise ShapeError(f"cross takes tensors of one rank, got shapes {list(input.shape)} and {list(other.shape)}\n  at {site()}")
    d = views.located(normalize_dim, dim, input.ndim)
    if not input.ndim or input.shape[d] != 3 or other.shape[d] != 3:
        raise ShapeError(f"cross along {dim} needs sizes of 3, got shapes {list(input.shape)} and {list(other.shape)}\n  at {site()}")
    return roll(input, -1, d) * roll(other, -2, d) - roll(input, -2, d) * roll(other, -1, d)


def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """Products summed along dim. [*, n, *], [*, n, *] -> [*, *]."""
    return reduce.sum(x * y, dim)  # type: ignore[no-any-return]
