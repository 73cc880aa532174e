"""Activation functions of torch.nn.functional. All keep the shape, [*] -> [*]; `inplace` writes over the input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DTypeError, ShapeError
from ..provenance import site
from . import pointwise
from .archetype import Pointwise
from .factory import rand_like
from .inplace import over
from .pointwise import logical_and, neg, sigmoid, tanh, where
from .samples import with_numbers
from .table import Scalar, composite, op
from .views import reshape

if TYPE_CHECKING:
    from ..tensor import Tensor


@composite(method=False)
def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """max(input, 0); NaN stays NaN. [*] -> [*]."""
    return over(pointwise.relu, input, inplace=inplace)


@composite(method=False)
def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """Sigmoid linear unit, input * sigmoid(input). [*] -> [*]. Source: arXiv:1702.03118."""
    return over(pointwise.silu, input, inplace=inplace)


# ---- bounded ----


@op(
    Pointwise(
        {
            "f": "nan_min(nan_max({input}, {min_val}), {max_val})",
            "i": "min(max({input}, i32({min_val})), i32({max_val}))",
            "u": "min(max({input}, u32({min_val})), u32({max_val}))",
        }
    ),
    ref=lambda input, min_val, max_val: np.clip(input, min_val, max_val),
    public=False,
    torch=None,
    samples=with_numbers(-1.1, 1.3),
    grad={"input": lambda grad, input, min_val, max_val: where(logical_and(input > min_val, input < max_val), grad, 0.0)},
    shown="hardtanh",
)
def bounded(input: Tensor, min_val: Scalar, max_val: Scalar) -> Tensor:
    """input limited to [min_val, max_val], without a gradient on and outside the bounds. [*] -> [*]."""


@composite(method=False)
def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """input limited to [min_val, max_val]. [*] -> [*]."""
    if min_val > max_val:
        raise ShapeError(f"hardtanh: min_val {min_val} is above max_val {max_val}\n  at {site()}")
    return over(bounded, input, min_val, max_val, inplace=inplace)


@composite(method=False)
def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """min(max(input, 0), 6). [*] -> [*]."""
    return over(bounded, input, 0.0, 6.0, inplace=inplace)


@op(
    Pointwise({"f": "nan_min(nan_max({input} + 3.0, 0.0), 6.0) / 6.0"}),
    ref=lambda input: np.clip(input + 3, 0, 6) / 6,
    public=False,
    torch="nn.functional.hardsigmoid",
    grad={"input": lambda grad, input: where(logical_and(input > -3.0, input < 3.0), grad * (1 / 6), 0.0)},
    shown="hardsigmoid",
)
def hard_sigmoid(input: Tensor) -> Tensor:
    """clamp(input + 3, 0, 6) / 6. [*] -> [*]."""


@composite(method=False)
def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """clamp(input + 3, 0, 6) / 6. [*] -> [*]."""
    return over(hard_sigmoid, input, inplace=inplace)


@op(
    Pointwise({"f": "{input} * nan_min(nan_max({input} + 3.0, 0.0), 6.0) / 6.0"}),
    ref=lambda input: input * np.clip(input + 3, 0, 6) / 6,
    public=False,
    torch="nn.functional.hardswish",
    grad={"input": lambda grad, input: where(input > 3.0, grad, where(input < -3.0, 0.0, grad * (input * (1 / 3) + 0.5)))},
    shown="hardswish",
)
def hard_swish(input: Tensor) -> Tensor:
    """input * clamp(input + 3, 0, 6) / 6. [*] -> [*]. Source: arXiv:1905.02244."""


@composite(method=False)
def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """input * clamp(input + 3, 0, 6) / 6. [*] -> [*]. Source: arXiv:1905.02244."""
    return over(hard_swish, input, inplace=inplace)


@op(
    Pointwise({"f": "select({input}, {value}, {input} <= {threshold})"}),
    ref=lambda input, threshold, value: np.where(input <= threshold, value, input),
    public=False,
    torch=None,
    samples=with_numbers(0.2, -0.7),
    grad={"input": lambda grad, input, threshold: where(input <= threshold, 0.0, grad)},
    shown="threshold",
)
def above(input: Tensor, threshold: Scalar, value: Scalar) -> Tensor:
    """input where it is above the threshold, else value. [*] -> [*]."""


@composite(method=False)
def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """input where it is above the threshold, else value. [*] -> [*]."""
    if input.is_floating_point():
        return over(above, input, threshold, value, inplace=inplace)
    out = where(input <= threshold, int(value), input)
    return input.copy_(out) if inplace else out  # type: ignore[no-any-return]


# ---- leaky and exponential ----


@op(
    Pointwise({"f": "select({input} * {negative_slope}, {input}, {input} > 0.0)"}),
    ref=lambda input, negative_slope: np.where(input > 0, input, input * negative_slope),
    public=False,
    torch=None,
    samples=with_numbers(0.07),
    grad={"input": lambda grad, input, negative_slope: where(input > 0.0, grad, grad * negative_slope)},
    shown="leaky_relu",
)
def leaky(input: Tensor, negative_slope: Scalar) -> Tensor:
    """input where it is positive, else input * negative_slope. [*] -> [*]."""


@composite(method=False)
def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """input where it is positive, else input * negative_slope. [*] -> [*]."""
    return over(leaky, input, negative_slope, inplace=inplace)


@op(
    Pointwise({"f": "select({input} * {weight}, {input}, {input} > 0.0)"}),
    ref=lambda input, weight: np.where(input > 0, input, input * weight),
    public=False,
    torch=None,
    grad={
        "input": lambda grad, input, weight: where(input > 0.0, grad, grad * weight),
        "weight": lambda grad, input: where(input > 0.0, 0.0, grad * input),
    },
    shown="prelu",
)
def leaky_by(input: Tensor, weight: Tensor) -> Tensor:
    """input where it is positive, else input * weight. [*], [*] -> [*]."""


@composite
def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """input where it is positive, else input * weight, one weight or one a channel (dimension 1). [N, C, *], [C] -> [N, C, *]."""
    if input.dtype is not weight.dtype:
        raise DTypeError(f"prelu takes an input and a weight of one dtype, got {input.layout} and {weight.layout}\n  at {site()}")
    n = weight.numel()
    if n != 1:
        channels = input.shape[1] if input.ndim > 1 else 1
        if weight.ndim != 1 or n != channels:
            raise ShapeError(f"prelu: {list(weight.shape)} weights do not fit {channels} channels of {list(input.shape)}\n  at {site()}")
        weight = reshape(weight, *(n if d == 1 else 1 for d in range(input.ndim)))
    elif weight.ndim > 1:
        raise ShapeError(f"prelu: weight must be a number or a vector, got shape {list(weight.shape)}\n  at {site()}")
    else:
        weight = reshape(weight, ())
    return leaky_by(input, weight)  # type: ignore[no-any-return]


@composite(method=False)
def rrelu(input: Tensor, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False, inplace: bool = False) -> Tensor:
    """leaky_relu with slopes drawn from [lower, upper] while training, their mean otherwise. [*] -> [*]. Source: arXiv:1505.00853."""
    if lower > upper:
        raise ShapeError(f"rrelu: lower {lower} is above upper {upper}\n  at {site()}")
    if not training:
        return over(leaky, input, (lower + upper) / 2, inplace=inplace)
    return over(leaky_by, input, rand_like(input) * (upper - lower) + lower, inplace=inplace)


@op(
    Pointwise({"f": "select({alpha} * {scale} * expm1_({input} * {input_scale}), {input} * {scale}, {input} > 0.0)"}),
    ref=lambda input, alpha, scale, input_scale: scale * np.where(input > 0, input, alpha * np.expm1(input * input_scale)),
    public=False,
    torch=None,
    samples=with_numbers(0.8, 1.1, 0.9),
    grad={
        "input": lambda grad, input, result, alpha, scale, input_scale: where(
            input > 0.0, grad * scale, (grad * result + grad * alpha * scale) * input_scale
        )
    },
    shown="elu",
)
def exponential_unit(input: Tensor, alpha: Scalar, scale: Scalar, input_scale: Scalar) -> Tensor:
    """scale * (input where it is positive, else alpha * expm1(input * input_scale)). [*] -> [*]."""


@composite(method=False)
def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """input where it is positive, else alpha * expm1(input). [*] -> [*]. Source: arXiv:1511.07289."""
    return over(exponential_unit, input, alpha, 1.0, 1.0, inplace=inplace)


_SELU = (1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1.0)


@composite(method=False)
def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """elu with the scale and alpha that keep mean 0 and variance 1. [*] -> [*]. Source: arXiv:1706.02515."""
    return over(exponential_unit, input, *_SELU, inplace=inplace)


@composite(method=False)
def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """input where it is positive, else alpha * expm1(input / alpha). [*] -> [*]. Source: arXiv:1704.07483."""
    if alpha == 0:
        raise ShapeError(f"celu: alpha must not be 0\n  at {site()}")
    return over(exponential_unit, input, alpha, 1.0, 1.0 / alpha, inplace=inplace)


# ---- shrinking ----


@op(
    Pointwise({"f": "select({input}, 0.0, abs({input}) <= {lambd})"}),
    ref=lambda input, lambd: np.where(np.abs(input) <= lambd, 0, input),
    public=False,
    torch=None,
    samples=with_numbers(0.7),
    grad={"input": lambda grad, input, lambd: where(pointwise.abs(input) <= lambd, 0.0, grad)},
    shown="hardshrink",
)
def hard_shrunk(input: Tensor, lambd: Scalar) -> Tensor:
    """0 where |input| <= lambd, else input. [*] -> [*]."""


@composite
def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """0 where |input| <= lambd, else input. [*] -> [*]."""
    return hard_shrunk(input, lambd)  # type: ignore[no-any-return]


@op(
    Pointwise({"f": "select(select({input} - copy_sign({lambd}, {input}), 0.0, abs({input}) <= {lambd}), {input}, is_nan({input}))"}),
    ref=lambda input, lambd: np.where(np.abs(input) <= lambd, 0, input - np.copysign(lambd, input)),
    public=False,
    torch=None,
    samples=with_numbers(0.7),
    grad={"input": lambda grad, input, lambd: where(pointwise.abs(input) <= lambd, 0.0, grad)},
    shown="softshrink",
)
def soft_shrunk(input: Tensor, lambd: Scalar) -> Tensor:
    """input moved towards 0 by lambd, at most to 0. [*] -> [*]."""


@composite(method=False)
def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """input moved towards 0 by lambd, at most to 0. [*] -> [*]."""
    if lambd < 0:
        raise ShapeError(f"softshrink: lambd must not be negative, got {lambd}\n  at {site()}")
    return soft_shrunk(input, lambd)  # type: ignore[no-any-return]


@composite(method=False)
def tanhshrink(input: Tensor) -> Tensor:
    """input - tanh(input). [*] -> [*]."""
    return input - tanh(input)  # type: ignore[no-any-return]


@composite(method=False)
def softsign(input: Tensor) -> Tensor:
    """input / (1 + |input|). [*] -> [*]."""
    return input / (pointwise.abs(input) + 1)  # type: ignore[no-any-return]


# ---- smooth ----


@op(
    Pointwise({"f": "softplus_({input}, {beta}, {threshold})"}),
    ref=lambda input, beta, threshold: np.where(input * beta > threshold, input, np.logaddexp(0, input * beta) / beta),
    public=False,
    torch=None,
    samples=with_numbers(1.5, 20.0),
    grad={
        "input": lambda grad, input, beta, threshold: where(input * beta > threshold, grad, grad * sigmoid(input * beta)),
    },
    shown="softplus",
)
def softplus_above(input: Tensor, beta: Scalar, threshold: Scalar) -> Tensor:
    """log(1 + exp(beta * input)) / beta; input itself where beta * input is above the threshold. [*] -> [*]."""


@composite(method=False)
def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta * input)) / beta; input itself where beta * input is above the threshold. [*] -> [*]."""
    return softplus_above(input, beta, threshold)  # type: ignore[no-any-return]


@op(
    Pointwise({"f": "nan_min({input}, 0.0) - log1p_(exp_(-abs({input})))"}),
    ref=lambda input: -np.logaddexp(0, -input),
    public=False,
    torch="nn.functional.logsigmoid",
    grad={"input": lambda grad, input: grad * sigmoid(neg(input))},
)
def log_sigmoid(input: Tensor) -> Tensor:
    """log(sigmoid(input)), without overflow. [*] -> [*]."""


@composite(method=False)
def logsigmoid(input: Tensor) -> Tensor:
    """log(sigmoid(input)), without overflow. [*] -> [*]."""
    return log_sigmoid(input)  # type: ignore[no-any-return]


def _mish_grad(grad: Any, input: Any) -> Any:
    t = tanh(pointwise.softplus(input))
    return grad * (t + input * sigmoid(input) * (1.0 - t * t))


@op(
    Pointwise({"f": "mish_({input})"}),
    ref=lambda input: input * np.tanh(np.logaddexp(0, input)),
    public=False,
    torch="nn.functional.mish",
    grad={"input": _mish_grad},
    shown="mish",
)
def mish_of(input: Tensor) -> Tensor:
    """input * tanh(softplus(input)). [*] -> [*]. Source: arXiv:1908.08681."""


@composite(method=False)
def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """input * tanh(softplus(input)). [*] -> [*]. Source: arXiv:1908.08681."""
    return over(mish_of, input, inplace=inplace)


def _underscored(name: str, fn: Any) -> None:
    """Enter torch's in-place spelling of an activation."""

    def call(input: Tensor, *args: Any) -> Tensor:
        return fn(input, *args, inplace=True)  # type: ignore[no-any-return]

    call.__name__, call.__doc__ = name, f"In place: {fn.__doc__}"
    composite(method=False)(call)


for _name, _fn in (
    ("celu_", celu), ("elu_", elu), ("hardtanh_", hardtanh), ("leaky_relu_", leaky_relu), ("relu_", relu), ("rrelu_", rrelu),
    ("selu_", selu), ("threshold_", threshold),
):  # fmt: skip
    _underscored(_name, _fn)
