"""Further reductions with PyTorch's names: products, norms, variances, logsumexp, NaN-skipping sums, covariances, histograms.

Rows are Reduce or Row kernels with a gradient of their own; the rest are composites. `dim` is an int, a tuple, or None for all.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import dispatch
from ..dispatch import is_grad_enabled
from ..dtype import DType, float32, int64
from ..dtype import dtype as as_dtype
from ..errors import DTypeError, ShapeError
from ..provenance import site
from ..shape import Shape, normalize_dim, normalize_dims, numel
from . import creation, pointwise, reduce
from .archetype import Reduce, Row, Stage
from .arithmetic import copy_
from .factorization import svdvals
from .index import segment_sum
from .norm import softmax_row
from .products import mm
from .reduce import Dim, spread
from .table import Sample, Scalar, composite, op
from .views import expand, located, movedim, permute, reshape, squeeze

if TYPE_CHECKING:
    from ..tensor import Tensor

EXACT = 512  # elements of a product up to which its gradient can be differentiated again where several are 0


def _axis(dim: Dim) -> Any:
    return None if dim is None or dim == () else dim


def _to(input: Tensor, dtype: Any) -> Tensor:
    return input if dtype is None else input.to(as_dtype(dtype))


def _floating(input: Tensor, what: str, dtype: Any = None) -> Tensor:
    x = _to(input, dtype)
    if not x.is_floating_point():
        raise DTypeError(f"{what} expects a floating point tensor, got {input.layout}; convert it with .float() first\n  at {site()}")
    return x


def _dims(input: Tensor, dim: Dim) -> Shape:
    return located(normalize_dims, dim, input.ndim)  # type: ignore[no-any-return]


# ---- products ----


def _product_grad(grad: Any, input: Any, dim: Dim, keepdim: bool) -> Any:
    """The product of the others: others / input, or, where one element is 0, the product of the rest for that one."""
    if is_grad_enabled() and reduce.count(input.shape, dim) <= EXACT:
        return spread(grad, input.shape, dim, keepdim) * _others(input, dim)
    zero = input == 0
    safe = input.masked_fill(zero, 1)
    share = pointwise.where(zero.sum(dim, True) == zero, product(safe, dim, True) / safe, 0.0)
    return spread(grad, input.shape, dim, keepdim) * share


def _others(input: Any, dim: Dim) -> Any:
    """For each element the product of the others along dim, without a division: n * n elements a row."""
    dims = normalize_dims(dim, input.ndim)
    order = [d for d in range(input.ndim) if d not in dims] + list(dims)
    turned = permute(input, order) if order else input
    n = reduce.count(input.shape, dim)
    rows = reshape(turned, *turned.shape[: input.ndim - len(dims)], 1, n)
    own = reshape(creation.ramp(0, 1, (n,), int64), n, 1) == creation.ramp(0, 1, (n,), int64)
    made = product(pointwise.where(own, 1.0, rows), rows.ndim - 1)
    back = [order.index(d) for d in range(input.ndim)]
    return permute(reshape(made, turned.shape), back) if order else reshape(made, ())


@op(
    Reduce("prod"),
    ref=lambda input, dim, keepdim: np.prod(input, axis=_axis(dim), keepdims=keepdim),
    grad={"input": _product_grad},
    public=False,
    torch=None,
    shown="prod",
)
def product(input: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Product; integers multiply in int64 (over int32 storage). [*] -> [*]."""


@composite
def prod(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Product; integers multiply in int64 (over int32 storage). [*] -> [*]."""
    return _to(product(_to(input, dtype), dim, keepdim), dtype)


# ---- sums that skip NaN, counts ----


@op(
    Reduce("sum", pre="select({input}, 0.0, is_nan({input}))"),
    ref=lambda input, dim, keepdim: np.nansum(input, axis=_axis(dim), keepdims=keepdim),
    grad={"input": lambda grad, input, dim, keepdim: pointwise.where(pointwise.isnan(input), 0.0, spread(grad, input.shape, dim, keepdim))},
    public=False,
    torch=None,
    shown="nansum",
)
def number_sum(input: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Sum of what is not NaN. [*] -> [*]."""


@composite
def nansum(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Sum of what is not NaN. [*] -> [*]."""
    x = input if input.is_floating_point() else _to(input, dtype)
    out = number_sum(x, dim, keepdim) if x.is_floating_point() else reduce.sum(x, dim, keepdim)
    return _to(out, dtype)


@composite
def nanmean(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Mean of what is not NaN; NaN of nothing. [*] -> [*]."""
    x = _to(_floating(input, "nanmean"), dtype)
    counts = reduce.sum(pointwise.logical_not(pointwise.isnan(x)), dim, keepdim)
    return number_sum(x, dim, keepdim) / counts  # type: ignore[no-any-return]


@composite
def count_nonzero(input: Tensor, dim: Any = None) -> Tensor:
    """How many elements are not 0. [*] -> [*] int64."""
    return reduce.sum(input if input.dtype.kind == "b" else pointwise.ne(input, 0), dim)  # type: ignore[no-any-return]


# ---- extremes ----


@composite
def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The minimum and the maximum; NaN wins. [*] -> [*], [*]."""
    return reduce.amin(input, dim, keepdim), reduce.amax(input, dim, keepdim)


# ---- logsumexp ----


def _logsumexp_ref(input: Any, dim: Any) -> Any:
    top = np.max(input, axis=dim, keepdims=True, initial=-np.inf)
    top = np.where(np.isinf(top), 0, top)
    return np.squeeze(np.log(np.sum(np.exp(input - top), axis=dim, keepdims=True)) + top, dim)


def _logsumexp_grad(grad: Any, input: Any, result: Any, dim: Any) -> Any:
    level = spread(result.masked_fill(pointwise.isinf(result), 0.0), input.shape, dim, False)
    return spread(grad, input.shape, dim, False) * pointwise.exp(input - level)


_LEVEL = "select({m}, 0.0, is_inf({m}))"  # what is taken off, so that no exponential overflows


@op(
    Row(
        full=("input",),
        stages=(Stage("m", "max", "{input}"), Stage("s", "sum", f"exp_({{input}} - {_LEVEL})")),
        per_row=(f"log_({{s}}) + {_LEVEL}",),
    ),
    ref=_logsumexp_ref,
    grad={"input": _logsumexp_grad},
    public=False,
    torch=None,
    shown="logsumexp",
)
def logsumexp_row(input: Tensor, dim: Shape) -> Tensor:
    """log(sum(exp(input))) along neighbouring dimensions. [*, n, *] -> [*, *] float32."""


@composite
def logsumexp(input: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    """log(sum(exp(input))), without overflow; -inf of nothing. [*] -> [*]."""
    x = input if input.is_floating_point() else input.to(float32)
    dims = _dims(x, dim)
    if not x.ndim:
        return pointwise.clone(x)  # type: ignore[no-any-return]
    kept = [d for d in range(x.ndim) if d not in dims]
    shape = tuple(1 if d in dims else n for d, n in enumerate(x.shape))
    if numel([x.shape[d] for d in dims]) == 0:
        out = x.sum(dims) - math.inf
    else:
        neighbours = dims[-1] - dims[0] == len(dims) - 1
        rows, where = (x, dims) if neighbours else (permute(x, *kept, *dims), tuple(range(len(kept), x.ndim)))
        out = logsumexp_row(rows, where).to(x.dtype)
    return reshape(out, shape) if keepdim else out


# ---- norms ----


def _two_grad(grad: Any, input: Any, result: Any, dim: Dim, keepdim: bool) -> Any:
    return spread(pointwise.where(result == 0, 0.0, grad / result), input.shape, dim, keepdim) * input


@op(
    Reduce("sum", pre="{input} * {input}", post="sqrt_({acc})"),
    ref=lambda input, dim, keepdim: np.sqrt(np.sum(input * input, axis=_axis(dim), keepdims=keepdim)),
    grad={"input": _two_grad},
    public=False,
    torch=None,
    shown="vector_norm",
)
def norm_two(input: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """sqrt(sum(input**2)). [*] -> [*]."""


@op(
    Reduce("sum", pre="abs({input})"),
    ref=lambda input, dim, keepdim: np.sum(np.abs(input), axis=_axis(dim), keepdims=keepdim),
    grad={"input": lambda grad, input, dim, keepdim: spread(grad, input.shape, dim, keepdim) * pointwise.sign(input)},
    public=False,
    torch=None,
    shown="vector_norm",
)
def norm_one(input: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """sum(|input|). [*] -> [*]."""


@op(
    Reduce("sum", pre="select(0.0, 1.0, truth({input}))"),
    ref=lambda input, dim, keepdim: np.sum(input != 0, axis=_axis(dim), keepdims=keepdim).astype(np.float64),
    grad={"input": lambda grad, input_meta: creation.fill(0.0, input_meta.shape, input_meta.dtype)},
    public=False,
    torch=None,
    shown="vector_norm",
)
def norm_zero(input: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """The number of elements that are not 0, as a float. [*] -> [*]."""


def _power_grad(grad: Any, input: Any, result: Any, p: float, dim: Dim, keepdim: bool) -> Any:
    """sign(x) |x|^(p-1) / norm^(p-1); 0 where x, or the norm, is 0."""
    whole = spread(result, input.shape, dim, keepdim)
    nothing = (whole == 0) | (input == 0) if p < 2 else whole == 0
    ratio = pointwise.abs(input / whole.masked_fill(whole == 0, 1.0)).masked_fill(nothing, 1.0)
    share = pointwise.sign(input) * pointwise.pow(ratio, p - 1)
    return spread(grad, input.shape, dim, keepdim) * share.masked_fill(nothing, 0.0)


@op(
    Reduce("sum", pre="pow_(abs({input}), {p})", post="pow_({acc}, 1.0 / {p})"),
    rule=lambda input, p, dim, keepdim: reduce._floating(input, dim, keepdim),
    ref=lambda input, p, dim, keepdim: np.sum(np.abs(input) ** p, axis=_axis(dim), keepdims=keepdim) ** (1 / p),
    grad={"input": _power_grad},
    samples=lambda: [
        Sample.of(np.random.default_rng(3).uniform(0.3, 2.0, (4, 7)).astype(np.float32), p, dim, keepdim)
        for p, dim, keepdim in ((3.0, 1, False), (1.5, None, False), (0.5, 0, True), (-2.0, (0, 1), False))
    ],
    public=False,
    torch=None,
    shown="vector_norm",
)
def norm_power(input: Tensor, p: Scalar, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """sum(|input|^p)^(1/p). [*] -> [*]."""


@composite(method=False)
def linalg_vector_norm(x: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The p-norm of order `ord` (any number, inf, -inf, 0) over dimensions, all for None. [*] -> [*]."""
    x = _floating(x, "vector_norm", dtype)
    if isinstance(ord, bool) or not isinstance(ord, (int, float)):
        raise DTypeError(f"vector_norm expects a number as ord, got {ord!r}\n  at {site()}")
    if ord < 0 and not reduce.count(x.shape, _dims(x, dim)):
        raise ShapeError(f"the norm of order {ord} of no elements has no value (shape {list(x.shape)}, dim={dim})\n  at {site()}")
    if ord == 2:
        return norm_two(x, dim, keepdim)  # type: ignore[no-any-return]
    if ord == 1:
        return norm_one(x, dim, keepdim)  # type: ignore[no-any-return]
    if ord == 0:
        return norm_zero(x, dim, keepdim)  # type: ignore[no-any-return]
    if math.isinf(ord):
        return (reduce.amax if ord > 0 else reduce.amin)(pointwise.abs(x), dim, keepdim)  # type: ignore[no-any-return]
    return norm_power(x, float(ord), dim, keepdim)  # type: ignore[no-any-return]


@composite(method=False)
def linalg_matrix_norm(A: Tensor, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """A matrix norm: 'fro', 1, -1, inf or -inf; 2, -2 and 'nuc' from singular values (eager only). [*, n, m] -> [*]."""
    x = _floating(A, "matrix_norm", dtype)
    if not isinstance(dim, (tuple, list)) or len(dim) != 2 or x.ndim < 2:
        raise ShapeError(f"matrix_norm expects two dimensions, got dim={dim!r} for shape {list(A.shape)}\n  at {site()}")
    a, b = (located(normalize_dim, d, x.ndim) for d in dim)
    if a == b:
        raise ShapeError(f"matrix_norm expects two different dimensions, got {tuple(dim)}\n  at {site()}")
    if ord == "fro":
        return norm_two(x, (a, b), keepdim)  # type: ignore[no-any-return]
    if ord in (2, -2, "nuc"):
        return _singular_norm(x, ord, a, b, keepdim)
    if isinstance(ord, str) or abs(ord) not in (1, math.inf):
        raise DTypeError(f"matrix_norm expects ord 'fro', 1, -1, inf or -inf, got {ord!r}\n  at {site()}")
    inner, outer = (a, b) if abs(ord) == 1 else (b, a)
    out = (reduce.amax if ord > 0 else reduce.amin)(norm_one(x, inner, True), outer, True)
    return out if keepdim else squeeze(out, (a, b))


def _singular_norm(x: Tensor, ord: Any, a: int, b: int, keepdim: bool) -> Tensor:
    values = svdvals(movedim(x, (a, b), (-2, -1)))
    out = reduce.sum(values, -1) if ord == "nuc" else (reduce.amax if ord > 0 else reduce.amin)(values, -1)
    return reshape(out, tuple(1 if d in (a, b) else n for d, n in enumerate(x.shape))) if keepdim else out


@composite(method=False)
def linalg_norm(A: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """A vector norm over one dimension (or all, for ord None), a matrix norm over two. [*] -> [*]."""
    if ord is None and (dim is None or isinstance(dim, int) or len(dim) > 2):
        return linalg_vector_norm(A, 2, dim, keepdim, dtype=dtype)
    if dim is None:
        if A.ndim not in (1, 2):
            raise ShapeError(f"norm with ord={ord!r} and without dim expects 1 or 2 dimensions, got {list(A.shape)}\n  at {site()}")
        dim = tuple(range(A.ndim))
    if isinstance(dim, int) or len(dim) == 1:
        return linalg_vector_norm(A, 2 if ord is None else ord, dim, keepdim, dtype=dtype)
    return linalg_matrix_norm(A, "fro" if ord is None else ord, dim, keepdim, dtype=dtype)


@composite
def norm(input: Tensor, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """PyTorch's norm: 'fro' and numbers are vector norms over the dimensions, all for None. [*] -> [*]."""
    if p == "nuc":
        return linalg_matrix_norm(input, p, (0, 1) if dim is None else dim, keepdim, dtype=dtype)
    if isinstance(p, str) and p != "fro":
        raise DTypeError(f"norm expects p to be a number or 'fro', got {p!r}\n  at {site()}")
    return linalg_vector_norm(input, 2 if p is None or p == "fro" else p, dim, keepdim, dtype=dtype)


@composite
def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """input with each slice along dim scaled down to a p-norm of at most maxnorm. [*] -> [*]."""
    d = located(normalize_dim, dim, input.ndim)
    if input.ndim < 2:
        raise ShapeError(f"renorm expects at least 2 dimensions, got shape {list(input.shape)}\n  at {site()}")
    if p <= 0 or maxnorm < 0:
        raise ShapeError(f"renorm expects p > 0 and maxnorm >= 0, got {p} and {maxnorm}\n  at {site()}")
    norms = linalg_vector_norm(input, p, tuple(e for e in range(input.ndim) if e != d), True)
    return input * pointwise.where(norms > maxnorm, maxnorm / (norms + 1e-7), 1.0)  # type: ignore[no-any-return]


@composite
def renorm_(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """In place: renorm."""
    return copy_(input, renorm(input, p, dim, maxnorm))


# ---- variances ----


def _correction(dim: Any, unbiased: Any, correction: Any) -> tuple[Any, float]:
    """(dim, correction) of PyTorch's spellings: var(dim, unbiased), var(unbiased), var(dim, correction=)."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if correction is not None:
        return dim, correction
    return dim, float(unbiased is None or unbiased)


@composite
def var(input: Tensor, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None) -> Tensor:
    """Variance with n - correction in the denominator (1 unless given); unbiased=False is correction 0. [*] -> [*]."""
    dim, correction = _correction(dim, unbiased, correction)
    return reduce.var(_floating(input, "var"), dim, correction, keepdim)  # type: ignore[no-any-return]


@composite
def std(input: Tensor, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None) -> Tensor:
    """Square root of var; no gradient where it is 0. [*] -> [*]."""
    return pointwise.deviation(var(input, dim, unbiased, keepdim, correction=correction))  # type: ignore[no-any-return]


@composite(method=False)
def var_mean(
    input: Tensor, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None
) -> tuple[Tensor, Tensor]:
    """Variance and mean. [*] -> [*], [*]."""
    out = var(input, dim, unbiased, keepdim, correction=correction)
    return out, reduce.mean(input, None if isinstance(dim, bool) else dim, keepdim)


@composite(method=False)
def std_mean(
    input: Tensor, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None
) -> tuple[Tensor, Tensor]:
    """Standard deviation and mean. [*] -> [*], [*]."""
    found, mean = var_mean(input, dim, unbiased, keepdim, correction=correction)
    return pointwise.deviation(found), mean


@composite
def cov(input: Tensor, *, correction: Any = 1, fweights: Tensor | None = None, aweights: Tensor | None = None) -> Tensor:
    """Covariances of rows of observations, with frequencies and weights of the observations. [n, k] -> [n, n] ([k] -> [])."""
    if input.ndim > 2:
        raise ShapeError(f"cov expects at most 2 dimensions, got shape {list(input.shape)}\n  at {site()}")
    x = input if input.is_floating_point() else input.to(float32)
    x = reshape(x, 1, -1) if x.ndim < 2 else x
    k = x.shape[1]
    weights: Any = None
    for w, kinds, what in ((fweights, "iu", "fweights"), (aweights, "f", "aweights")):
        if w is not None:
            if w.shape != (k,) or w.dtype.kind not in kinds:
                kind = "integer" if what == "fweights" else "floating point"
                raise ShapeError(f"cov expects {what} to be {k} {kind} weights, got {w.layout}\n  at {site()}")
            weights = w if weights is None else weights * w
    total: Any = k if weights is None else weights.sum()
    weighted = x if weights is None else x * weights
    centred = x - reduce.sum(weighted, 1, True) / total
    if weights is not None and aweights is not None and correction:
        factor = total - correction * (weights * aweights).sum() / total
    else:
        factor = total - correction
    factor = factor.clamp(min=0) if isinstance(factor, dispatch.hooks.tensor) else max(factor, 0)
    out = mm(centred, (centred if weights is None else centred * weights).t()) / factor
    return squeeze(out)


@composite
def corrcoef(input: Tensor) -> Tensor:
    """Correlation coefficients of rows of observations. [n, k] -> [n, n] ([k] -> [])."""
    c = cov(input)
    if not c.ndim:
        return c / c
    n = c.shape[0]
    deviations = pointwise.sqrt(c.as_strided((n,), (n + 1,), c.storage_offset()))
    return (c / reshape(deviations, n, 1) / deviations).clamp(-1, 1)  # type: ignore[no-any-return]


# ---- histograms ----


@composite
def histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """Counts in `bins` equal steps of [min, max] (of the values' own range where both are equal); others count nowhere.
    [*] -> [bins]."""
    x = reshape(_floating(input.detach(), "histc"), input.numel()).to(float32)
    if bins < 1 or min > max:
        raise ShapeError(f"histc expects bins > 0 and min <= max, got {bins}, {min} and {max}\n  at {site()}")
    low, high = _range(x, float(min), float(max))
    place = pointwise.floor((x - low) * (bins / (high - low)))
    place = pointwise.where(x == high, float(bins - 1), place).clamp(0, bins - 1)
    inside = pointwise.logical_and(x >= low, x <= high)
    found = pointwise.where(inside, place, float(bins)).to(int64)
    ones = expand(creation.fill(1.0, (1, 1), float32), x.numel(), 1)
    return reshape(segment_sum(ones, found, bins, bins), bins).to(input.dtype)


def _range(x: Tensor, low: Any, high: Any) -> tuple[Any, Any]:
    if low != high:
        return low, high
    if x.numel():
        low, high = aminmax(x)
        same = (low == high).to(x.dtype)
        return low - same, high + same
    return low - 1, high + 1


@composite
def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each number occurs, or the sum of its weights. The length is the largest number + 1, which is read on the host:
    waits for the device, and cannot be compiled. [n] -> [length]."""
    if input.ndim != 1 or input.dtype.kind not in "iu":
        raise DTypeError(f"bincount expects a vector of integers, got {input.layout}\n  at {site()}")
    if weights is not None and weights.shape != input.shape:
        raise ShapeError(f"bincount expects one weight a number, got {list(weights.shape)} and {list(input.shape)}\n  at {site()}")
    if minlength < 0:
        raise ShapeError(f"bincount expects minlength >= 0, got {minlength}\n  at {site()}")
    kind: DType = int64 if weights is None else weights.dtype if weights.is_floating_point() else float32
    if not input.numel():
        return creation.fill(0, (minlength,), int64 if weights is None else kind)  # type: ignore[no-any-return]
    low, high = (int(t.item()) for t in aminmax(input))
    if low < 0:
        raise ShapeError(f"bincount expects numbers of 0 or more, got {low}\n  at {site()}")
    size = high + 1 if high + 1 > minlength else minlength
    ones = expand(creation.fill(1, (1, 1), int64), input.numel(), 1)
    values = ones if weights is None else reshape(weights.detach().to(kind), input.numel(), 1)
    return reshape(segment_sum(values, input, size, None), size)


# ---- softmin ----


@composite(method=False)
def softmin(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """softmax(-input) along dim. [*] -> [*]."""
    x = _to(-input, dtype)
    return softmax_row(x, located(normalize_dim, dim, x.ndim))  # type: ignore[no-any-return]
