"""Rows of the table that users' code spells out in several ops: activations, softmax, norms.

Both sides compute the same function; results differ by rounding. Spellings that overflow where the row does not (a softmax
without its maximum, say) are other functions and stay as written. Attention is recognised where there is an op for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ...ops.index import gather
from ...ops.norm import layer_norm_row, log_softmax_row, rms_norm_row, softmax_row
from ...ops.pointwise import erf, exp, gelu_erf, gelu_tanh, log, rsqrt, sigmoid, silu, tanh
from ...ops.reduce import amax, amin, argmax, argmin, count, mean, var
from ...ops.reduce import sum as total
from ...shape import Shape
from ..rule import Axes, Axis, Number, Rule, rule

if TYPE_CHECKING:
    from ...tensor import Tensor

Pair = tuple[Any, Any]
Spelling = Callable[..., Any]


# ---- activations ----


def _is_float(x: Any, **_: Any) -> bool:
    """Integers wrap on the way (-x, 2 * x, x**3) where the row does not."""
    return bool(x.dtype.is_floating_point)


@rule(guard=_is_float)
def sigmoid_from_exp(x: Tensor) -> Pair:
    return 1 / (1 + exp(-x)), sigmoid(x)


@rule(guard=_is_float)
def sigmoid_from_reciprocal(x: Tensor) -> Pair:
    return (1 + exp(-x)).reciprocal(), sigmoid(x)


@rule(guard=_is_float)
def silu_from_sigmoid(x: Tensor) -> Pair:
    return x * sigmoid(x), silu(x)


@rule(guard=_is_float)
def silu_from_exp(x: Tensor) -> Pair:
    return x / (1 + exp(-x)), silu(x)


@rule(guard=_is_float)
def tanh_from_sigmoid(x: Tensor) -> Pair:
    return 2 * sigmoid(2 * x) - 1, tanh(x)


# 0.5 * x * factor in every order that code is written in; mul commutes by itself.
_PRODUCTS: tuple[Spelling, ...] = (
    lambda x, factor: (x * 0.5) * factor,
    lambda x, factor: x * (factor * 0.5),
    lambda x, factor: (x * factor) * 0.5,
)


def _gelus() -> Iterator[Rule]:
    for i, product in enumerate(_PRODUCTS):
        for name, inner in (("", lambda x: x / math.sqrt(2)), ("_scaled", lambda x: x * math.sqrt(0.5))):
            yield Rule(_gelu(product, lambda x, inner=inner: 1 + erf(inner(x)), gelu_erf), _is_float, name=f"gelu_from_erf{name}{i}")
        for name, cube in (("", lambda x: x**3), ("_product", lambda x: x * x * x), ("_square", lambda x: x * (x * x))):
            factor = lambda x, cube=cube: _tanh(x + 0.044715 * cube(x))  # noqa: E731
            yield Rule(_gelu(product, factor, gelu_tanh), _is_float, name=f"gelu_from_tanh{name}{i}")
        yield Rule(_gelu(product, _fast, gelu_tanh), _is_float, name=f"gelu_from_tanh_fast{i}")


_G = math.sqrt(2 / math.pi)


def _tanh(inner: Any) -> Any:
    return 1 + tanh(_G * inner)


def _fast(x: Any) -> Any:
    return 1 + tanh(x * _G * (1 + 0.044715 * x * x))


def _gelu(product: Spelling, factor: Spelling, row: Spelling) -> Callable[..., Pair]:
    def pair(x: Tensor) -> Pair:
        return product(x, factor(x)), row(x)

    return pair


# ---- softmax ----


@rule(guard=_is_float)
def softmax_from_exp(x: Tensor, *, dim: Axis) -> Pair:
    e = exp(x - amax(x, dim, True))
    return e / total(e, dim, True), softmax_row(x, dim)


@rule(guard=_is_float)
def log_softmax_from_exp(x: Tensor, *, dim: Axis) -> Pair:
    z = x - amax(x, dim, True)
    return z - log(total(exp(z), dim, True)), log_softmax_row(x, dim)


# ---- means and extremes ----


@rule
def mean_from_sum(x: Tensor, *, dim: Axes) -> Pair:
    return total(x, dim, False) / count(x.shape, dim), mean(x, dim, False)


@rule
def mean_from_sum_kept(x: Tensor, *, dim: Axes) -> Pair:
    return total(x, dim, True) / count(x.shape, dim), mean(x, dim, True)


# What max(dim) and min(dim) are where nobody uses the indices. Of a 0 and a -0 another one may be taken.


@rule
def amax_from_its_place(x: Tensor, *, dim: Axis) -> Pair:
    return gather(x, dim, argmax(x, dim, True)), amax(x, dim, True)


@rule
def amin_from_its_place(x: Tensor, *, dim: Axis) -> Pair:
    return gather(x, dim, argmin(x, dim, True)), amin(x, dim, True)


# ---- norms ----


def _is_row(x: Any, dim: Any, **_: Any) -> bool:
    """Whether dimensions are a row of a norm kernel: trailing ones, of a floating dtype."""
    return x.dtype.is_floating_point and tuple(sorted(dim)) == tuple(range(-len(dim), 0)) and len(dim) <= x.ndim


def _columns(shape: Shape, dim: Shape, **_: Any) -> Shape:
    return shape[len(shape) - len(dim) :]


def _fits(x: Any, weight: Any, dim: Any, **_: Any) -> bool:
    """Whether a weight has one value a column."""
    return _is_row(x, dim) and weight.shape == x.shape[x.ndim - len(dim) :] and weight.dtype.is_floating_point


_SCALINGS: dict[str, Spelling] = {
    "rsqrt": lambda x, v: x * rsqrt(v),
    "sqrt": lambda x, v: x / v.sqrt(),
    "over": lambda x, v: x * (1 / v.sqrt()),
    "reciprocal": lambda x, v: x * v.sqrt().reciprocal(),
}

_VARIANCES: dict[str, Spelling] = {
    "var": lambda x, centred, dim: var(x, dim, 0, True),
    "square": lambda x, centred, dim: mean(centred * centred, dim, True),
}


def _layer_norms() -> Iterator[Rule]:
    for scaling, scaled in _SCALINGS.items():
        for variance, of in _VARIANCES.items():
            yield Rule(_layer_norm(scaled, of), _is_row, name=f"layer_norm_from_{variance}_{scaling}")


def _layer_norm(scaled: Spelling, variance: Spelling) -> Callable[..., Pair]:
    def pair(x: Tensor, *, dim: Axes, eps: Number) -> Pair:
        centred = x - mean(x, dim, True)
        return scaled(centred, variance(x, centred, dim) + eps), layer_norm_row(x, None, None, dim, eps)[0]

    return pair


def _rms_norms() -> Iterator[Rule]:
    for scaling, scaled in _SCALINGS.items():
        yield Rule(_rms_norm(scaled), _is_row, name=f"rms_norm_from_{scaling}")


def _rms_norm(scaled: Spelling) -> Callable[..., Pair]:
    def pair(x: Tensor, *, dim: Axes, eps: Number) -> Pair:
        return scaled(x, mean(x * x, dim, True) + eps), rms_norm_row(x, None, dim, eps)[0]

    return pair


@rule(guard=_fits, shapes={"weight": _columns})
def weight_into_layer_norm(x: Tensor, weight: Tensor, *, dim: Axes, eps: Number) -> Pair:
    y, m, r = layer_norm_row(x, None, None, dim, eps)
    return (m, r, y * weight), _reordered(*layer_norm_row(x, weight, None, dim, eps))


@rule(
    guard=lambda x, weight, bias, **attributes: _fits(x, weight, **attributes) and _fits(x, bias, **attributes),
    shapes={"weight": _columns, "bias": _columns},
)
def bias_into_layer_norm(x: Tensor, weight: Tensor, bias: Tensor, *, dim: Axes, eps: Number) -> Pair:
    y, m, r = layer_norm_row(x, weight, None, dim, eps)
    return (m, r, y + bias), _reordered(*layer_norm_row(x, weight, bias, dim, eps))


@rule(guard=_fits, shapes={"weight": _columns})
def weight_into_rms_norm(x: Tensor, weight: Tensor, *, dim: Axes, eps: Number) -> Pair:
    y, r = rms_norm_row(x, None, dim, eps)
    return (r, y * weight), _reordered(*rms_norm_row(x, weight, dim, eps))


def _reordered(y: Any, *rest: Any) -> tuple[Any, ...]:
    return (*rest, y)


RULES: tuple[Rule, ...] = (
    *(r for r in list(globals().values()) if isinstance(r, Rule)),
    *_gelus(),
    *_layer_norms(),
    *_rms_norms(),
)
