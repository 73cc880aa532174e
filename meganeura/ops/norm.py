"""Rows along trailing or single dimensions: softmax, log_softmax, layer norm, rms norm, and their backward kernels.

Gradients use one fused row kernel each; when the backward pass is itself recorded, the same formula in plain ops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..dispatch import is_grad_enabled
from ..shape import Shape, normalize_dims
from .archetype import Row, Stage
from .reduce import spread
from .table import Scalar, op

if TYPE_CHECKING:
    from ..tensor import Tensor


def _lse(x: Any, dim: Any) -> Any:
    top = np.max(x, axis=dim, keepdims=True, initial=-np.inf)
    return np.log(np.sum(np.exp(x - top), axis=dim, keepdims=True)) + top


def softmax_backward(grad: Any, result: Any, dim: int) -> Any:
    """(grad - sum(grad * result)) * result."""
    if is_grad_enabled():
        return (grad - (grad * result).sum(dim, True)) * result
    return softmax_grad(grad, result, dim)


@op(
    Row(full=("input",), stages=(Stage("z", "softmax", "{input}"),), element=("exp({input} - {z_max}) / {z_sum}",)),
    ref=lambda input, dim: np.exp(input - _lse(input, dim)),
    grad={"input": lambda grad, result, dim: softmax_backward(grad, result, dim)},
    torch="softmax",
    public=False,
    shown="softmax",
)
def softmax_row(input: Tensor, dim: int) -> Tensor:
    """exp(input) / sum(exp(input)) along dim. [*] -> [*]."""


@op(
    Row(full=("grad", "result"), stages=(Stage("d", "sum", "{grad} * {result}"),), element=("({grad} - {d}) * {result}",)),
    ref=lambda grad, result, dim: (grad - np.sum(grad * result, axis=dim, keepdims=True)) * result,
    public=False,
    torch=None,
)
def softmax_grad(grad: Tensor, result: Tensor, dim: int) -> Tensor:
    """Backward of softmax from its result. [*], [*] -> [*]."""


def log_softmax_backward(grad: Any, result: Any, dim: int) -> Any:
    """grad - exp(result) * sum(grad)."""
    if is_grad_enabled():
        return grad - result.exp() * grad.sum(dim, True)
    return log_softmax_grad(grad, result, dim)


@op(
    Row(full=("input",), stages=(Stage("z", "softmax", "{input}"),), element=("({input} - {z_max}) - log_({z_sum})",)),
    ref=lambda input, dim: input - _lse(input, dim),
    grad={"input": lambda grad, result, dim: log_softmax_backward(grad, result, dim)},
    torch="log_softmax",
    public=False,
    shown="log_softmax",
)
def log_softmax_row(input: Tensor, dim: int) -> Tensor:
    """input - log(sum(exp(input))) along dim. [*] -> [*]."""


@op(
    Row(full=("grad", "result"), stages=(Stage("d", "sum", "{grad}"),), element=("{grad} - exp({result}) * {d}",)),
    ref=lambda grad, result, dim: grad - np.exp(result) * np.sum(grad, axis=dim, keepdims=True),
    public=False,
    torch=None,
)
def log_softmax_grad(grad: Tensor, result: Tensor, dim: int) -> Tensor:
    """Backward of log_softmax from its result. [*], [*] -> [*]."""


# ---- layer norm ----


def _affine(x: Any, weight: Any, bias: Any) -> Any:
    if weight is not None:
        x = x * weight
    return x if bias is None else x + bias


def _layer_norm_ref(input: Any, weight: Any, bias: Any, dim: Shape, eps: float) -> Any:
    mean = np.mean(input, axis=dim, keepdims=True)
    rstd = 1 / np.sqrt(np.var(input, axis=dim, keepdims=True) + eps)
    return _affine((input - mean) * rstd, weight, bias), np.squeeze(mean, dim), np.squeeze(rstd, dim)


def _over_rows(x: Any, dim: Any) -> Any:
    """The sum over all dimensions but `dim`."""
    dims = normalize_dims(dim, x.ndim)
    rows = tuple(d for d in range(x.ndim) if d not in dims)
    return x.sum(rows) if rows else x


def _layer_norm_input(grad: Any, input: Any, weight: Any, result1: Any, result2: Any, dim: Shape) -> Any:
    if not is_grad_enabled():
        return layer_norm_grad(grad, input, weight, result1, result2, dim)
    centred = input - input.mean(dim, True)
    rstd = (_mean_square(centred, dim) + _eps_of(result2, input, dim)).rsqrt()
    h = centred * rstd
    g = grad if weight is None else grad * weight
    return (g - g.mean(dim, True) - h * (g * h).mean(dim, True)) * rstd


def _mean_square(x: Any, dim: Shape) -> Any:
    return (x * x).mean(dim, True)


def _eps_of(rstd: Any, input: Any, dim: Shape) -> Any:
    """eps as the forward saw it: 1/rstd^2 - var, a constant of the graph."""
    rstd = spread(rstd.detach(), input.shape, dim, False).narrow(dim[0], 0, 1)
    for d in dim:
        rstd = rstd.narrow(d, 0, 1)
    centred = input.detach() - input.detach().mean(dim, True)
    return (rstd * rstd).reciprocal() - _mean_square(centred, dim)


def _normalised(input: Any, mean: Any, rstd: Any, dim: Shape) -> Any:
    if is_grad_enabled():
        centred = input - input.mean(dim, True)
        return centred * (_mean_square(centred, dim) + _eps_of(rstd, input, dim)).rsqrt()
    return (input - spread(mean, input.shape, dim, False)) * spread(rstd, input.shape, dim, False)


@op(
    Row(
        full=("input",),
        column=("weight", "bias"),
        stages=(Stage("v", "moments", "{input}"),),
        element=("({input} - {v_mean}) * inverseSqrt({v_var} + {eps}) * {weight} + {bias}",),
        per_row=("{v_mean}", "inverseSqrt({v_var} + {eps})"),
        defaults={"weight": "1.0", "bias": "0.0"},
    ),
    ref=_layer_norm_ref,
    grad={
        "input": _layer_norm_input,
        "weight": lambda grad, input, result1, result2, dim: _over_rows(grad * _normalised(input, result1, result2, dim), dim),
        "bias": lambda grad, dim: _over_rows(grad, dim),
    },
    differentiable=(True, False, False),
    public=False,
    torch=None,
    shown="layer_norm",
)
def layer_norm_row(input: Tensor, weight: Tensor | None, bias: Tensor | None, dim: Shape, eps: Scalar) -> Tensor:
    """Layer norm over `dim`, with the rows' mean and 1/std. [*, n], [n], [n] -> [*, n], [*], [*]. Source: arXiv:1607.06450."""


def _layer_norm_grad_ref(grad: Any, input: Any, weight: Any, mean: Any, rstd: Any, dim: Shape) -> Any:
    m, r = np.expand_dims(mean, dim), np.expand_dims(rstd, dim)
    h, g = (input - m) * r, grad if weight is None else grad * weight
    return (g - np.mean(g, axis=dim, keepdims=True) - h * np.mean(g * h, axis=dim, keepdims=True)) * r


@op(
    Row(
        full=("grad", "input"),
        column=("weight",),
        stages=(Stage("a", "sum", "{grad} * {weight}"), Stage("b", "sum", "{grad} * {weight} * ({input} - {mean}) * {rstd}")),
        element=("({grad} * {weight} - ({a} + ({input} - {mean}) * {rstd} * {b}) / {n}) * {rstd}",),
        defaults={"weight": "1.0"},
    ),
    ref=_layer_norm_grad_ref,
    public=False,
    torch=None,
)
def layer_norm_grad(grad: Tensor, input: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor, dim: Shape) -> Tensor:
    """Backward of layer norm for its input. [*, n], [*, n], [n], [*], [*] -> [*, n]."""


# ---- rms norm ----


def _rms_norm_ref(input: Any, weight: Any, dim: Shape, eps: float) -> Any:
    rstd = 1 / np.sqrt(np.mean(input * input, axis=dim, keepdims=True) + eps)
    return _affine(input * rstd, weight, None), np.squeeze(rstd, dim)


def _rms_rstd(input: Any, rstd: Any, dim: Shape) -> Any:
    rstd = spread(rstd, input.shape, dim, False)
    if not is_grad_enabled():
        return rstd
    square = _mean_square(input, dim)
    return (square - square.detach() + (rstd.detach() * rstd.detach()).reciprocal()).rsqrt()


def _rms_norm_input(grad: Any, input: Any, weight: Any, result1: Any, dim: Shape) -> Any:
    if not is_grad_enabled():
        return rms_norm_grad(grad, input, weight, result1, dim)
    rstd = _rms_rstd(input, result1, dim)
    g = grad if weight is None else grad * weight
    h = input * rstd
    return (g - h * (g * h).mean(dim, True)) * rstd


@op(
    Row(
        full=("input",),
        column=("weight",),
        stages=(Stage("q", "sum", "{input} * {input}"),),
        element=("{input} * inverseSqrt({q} / {n} + {eps}) * {weight}",),
        per_row=("inverseSqrt({q} / {n} + {eps})",),
        defaults={"weight": "1.0"},
    ),
    ref=_rms_norm_ref,
    grad={
        "input": _rms_norm_input,
        "weight": lambda grad, input, result1, dim: _over_rows(grad * input * _rms_rstd(input, result1, dim), dim),
    },
    differentiable=(True, False),
    public=False,
    torch=None,
    shown="rms_norm",
)
def rms_norm_row(input: Tensor, weight: Tensor | None, dim: Shape, eps: Scalar) -> Tensor:
    """Root mean square norm over `dim`, with the rows' 1/rms. [*, n], [n] -> [*, n], [*]. Source: arXiv:1910.07467."""


def _rms_norm_grad_ref(grad: Any, input: Any, weight: Any, rstd: Any, dim: Shape) -> Any:
    r = np.expand_dims(rstd, dim)
    h, g = input * r, grad if weight is None else grad * weight
    return (g - h * np.mean(g * h, axis=dim, keepdims=True)) * r


@op(
    Row(
        full=("grad", "input"),
        column=("weight",),
        stages=(Stage("b", "sum", "{grad} * {weight} * {input} * {rstd}"),),
        element=("({grad} * {weight} - {input} * {rstd} * {b} / {n}) * {rstd}",),
        defaults={"weight": "1.0"},
    ),
    ref=_rms_norm_grad_ref,
    public=False,
    torch=None,
)
def rms_norm_grad(grad: Tensor, input: Tensor, weight: Tensor | None, rstd: Tensor, dim: Shape) -> Tensor:
    """Backward of rms norm for its input. [*, n], [*, n], [n], [*] -> [*, n]."""


# ---- weighted means ----


def _ratio_input(grad: Any, input_meta: Any, result1: Any, dim: int) -> Any:
    return spread(grad / result1.detach(), input_meta.shape, dim, False)


@op(
    Row(
        full=("input", "other"),
        stages=(Stage("a", "sum", "{input}"), Stage("b", "sum", "{other}")),
        per_row=("{a} / {b}", "{b}"),
    ),
    ref=lambda input, other, dim: (np.sum(input, axis=dim) / np.sum(other, axis=dim), np.sum(other, axis=dim)),
    grad={"input": _ratio_input},
    differentiable=(True, False),
    public=False,
    torch=None,
)
def ratio_row(input: Tensor, other: Tensor, dim: int) -> Tensor:
    """sum(input) / sum(other) along dim, and sum(other). [*, n], [*, n] -> [*], [*]."""
