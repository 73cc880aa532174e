"""Reductions over dimensions. [*] -> [* without dim], or with sizes 1 where keepdim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DTypeError
from ..shape import Shape, normalize_dims, numel
from ..storage import Layout
from .archetype import Reduce
from .infer import reduced_shape
from .pointwise import where
from .table import Inferred, Scalar, Spec, op

if TYPE_CHECKING:
    from ..tensor import Tensor

Dim = int | Shape | None


def spread(value: Any, shape: Shape, dim: Dim, keepdim: bool) -> Any:
    """A reduced value broadcast back to the shape it was reduced from."""
    dims = normalize_dims(dim, len(shape))
    if not keepdim:
        value = value.reshape(tuple(1 if d in dims else n for d, n in enumerate(shape)))
    return value.expand(shape)


def count(shape: Shape, dim: Dim) -> int:
    """Number of elements reduced into one."""
    return numel([shape[d] for d in normalize_dims(dim, len(shape))])


def _floating(input: Layout, dim: Dim, keepdim: bool) -> Inferred:
    if not input.dtype.is_floating_point:
        raise DTypeError(f"expected a floating point tensor, got {input}; convert it with .float() first")
    dims = normalize_dims(dim, len(input.shape))
    return Inferred((Spec(input.dtype, reduced_shape(input.shape, dims, keepdim)),), (input.dtype,), {"dim": dims})


def _axis(dim: Dim) -> Any:
    return None if dim is None or dim == () else dim


@op(
    Reduce("sum"),
    ref=lambda input, dim, keepdim: np.sum(input, axis=_axis(dim), keepdims=keepdim),
    grad={"input": lambda grad, input_meta, dim, keepdim: spread(grad, input_meta.shape, dim, keepdim)},
)
def sum(input: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Sum; integers add up in int64 (over int32 storage), float16 in float32. [*] -> [*]."""


@op(
    Reduce("sum", post="{acc} / {n}"),
    ref=lambda input, dim, keepdim: np.sum(input, axis=_axis(dim), keepdims=keepdim) / np.float64(count(np.shape(input), dim)),
    grad={
        "input": lambda grad, input_meta, dim, keepdim: spread(
            grad * (1.0 / max(count(input_meta.shape, dim), 1)), input_meta.shape, dim, keepdim
        )
    },
    rule=_floating,
)
def mean(input: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Mean of floating point values; NaN of nothing. [*] -> [*]."""


def _extreme_grad(grad: Any, input: Any, result: Any, dim: Dim, keepdim: bool) -> Any:
    hits = (input == spread(result, input.shape, dim, keepdim)) | input.isnan()  # where there is a NaN, it is the extreme value
    shared = hits.to(grad.dtype).sum(dim, True).reciprocal()
    return where(hits, spread(grad, input.shape, dim, keepdim) * shared, 0.0)


@op(Reduce("max"), ref=lambda input, dim, keepdim: np.max(input, axis=_axis(dim), keepdims=keepdim), grad={"input": _extreme_grad})
def amax(input: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Maximum; NaN wins; equal maxima share the gradient. [*] -> [*]."""


@op(Reduce("min"), ref=lambda input, dim, keepdim: np.min(input, axis=_axis(dim), keepdims=keepdim), grad={"input": _extreme_grad})
def amin(input: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Minimum; NaN wins; equal minima share the gradient. [*] -> [*]."""


@op(Reduce("any"), ref=lambda input, dim, keepdim: np.any(input, axis=_axis(dim), keepdims=keepdim))
def any(input: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Whether any element is nonzero. [*] -> [*] bool."""


@op(Reduce("all"), ref=lambda input, dim, keepdim: np.all(input, axis=_axis(dim), keepdims=keepdim))
def all(input: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Whether all elements are nonzero. [*] -> [*] bool."""


def _first(fn: Any) -> Any:
    def ref(input: Any, dim: int | None, keepdim: bool) -> Any:
        if dim is None:
            out = fn(input)
            return np.reshape(out, (1,) * np.ndim(input)) if keepdim else out
        out = fn(input, axis=dim)
        return np.expand_dims(out, dim) if keepdim else out

    return ref


@op(Reduce("argmax"), ref=_first(np.argmax))
def argmax(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Index of the first maximum along dim (of the flattened tensor for None); NaN wins. [*] -> [*] int64."""


@op(Reduce("argmin"), ref=_first(np.argmin))
def argmin(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Index of the first minimum along dim (of the flattened tensor for None); NaN wins. [*] -> [*] int64."""


def _var_ref(input: Any, dim: Dim, correction: float, keepdim: bool) -> Any:
    n = count(np.shape(input), dim)
    m2 = np.sum((input - np.mean(input, axis=_axis(dim), keepdims=True)) ** 2, axis=_axis(dim), keepdims=keepdim)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(m2) / max(n - correction, 0.0)


def _var_rule(input: Layout, dim: Dim, correction: Any, keepdim: bool) -> Inferred:
    return _floating(input, dim, keepdim)


def _var_grad(grad: Any, input: Any, dim: Dim, correction: Any, keepdim: bool) -> Any:
    n = count(input.shape, dim)
    return (
        spread(grad, input.shape, dim, keepdim)
        * (input - mean(input, dim, True))
        * (2.0 / max(n - correction, 0.0) if n > correction else float("nan"))
    )


@op(Reduce("moments", post="{m2} / max({n} - {correction}, 0.0)"), ref=_var_ref, grad={"input": _var_grad}, rule=_var_rule)
def var(input: Tensor, dim: Dim = None, correction: Scalar = 1, keepdim: bool = False) -> Tensor:
    """Variance with n - correction in the denominator. [*] -> [*]."""
