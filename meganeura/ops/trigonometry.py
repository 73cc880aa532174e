"""Trigonometric and hyperbolic functions and their inverses, of radians. Integers give float32. Shapes broadcast."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .archetype import Pointwise
from .exponential import where_zero
from .pointwise import cos, rsqrt, sin
from .table import op

if TYPE_CHECKING:
    from ..tensor import Tensor


@op(
    Pointwise("tan_({input})", "float"), ref=np.tan, domain=(-1.3, 1.3), grad={"input": lambda grad, result: grad * (1.0 + result * result)}
)
def tan(input: Tensor) -> Tensor:
    """Tangent. [*] -> [*]."""


@op(
    Pointwise("asin_({input})", "float"),
    ref=np.arcsin,
    domain=(-0.9, 0.9),
    grad={"input": lambda grad, input: grad * rsqrt(1.0 - input * input)},
)
def asin(input: Tensor) -> Tensor:
    """Inverse sine, in [-pi/2, pi/2]; NaN outside [-1, 1]. [*] -> [*]."""


@op(
    Pointwise("acos_({input})", "float"),
    ref=np.arccos,
    domain=(-0.9, 0.9),
    grad={"input": lambda grad, input: -grad * rsqrt(1.0 - input * input)},
)
def acos(input: Tensor) -> Tensor:
    """Inverse cosine, in [0, pi]; NaN outside [-1, 1]. [*] -> [*]."""


@op(Pointwise("atan_({input})", "float"), ref=np.arctan, grad={"input": lambda grad, input: grad / (input * input + 1.0)})
def atan(input: Tensor) -> Tensor:
    """Inverse tangent, in [-pi/2, pi/2]. [*] -> [*]."""


def _over_square(grad: Any, part: Any, input: Any, other: Any) -> Any:
    """grad * part / (input^2 + other^2), 0 at the origin."""
    square = input * input + other * other
    return grad * where_zero(square, 0.0, part / square)


@op(
    Pointwise("atan2_({input}, {other})", "float"),
    ref=np.arctan2,
    domain=(0.2, 2.5),
    grad={
        "input": lambda grad, input, other: _over_square(grad, other, input, other),
        "other": lambda grad, input, other: _over_square(grad, -input, input, other),
    },
)
def atan2(input: Tensor, other: Tensor) -> Tensor:
    """The angle of the point (other, input), in [-pi, pi]. [*], [*] -> [*]."""


@op(Pointwise("sinh_({input})", "float"), ref=np.sinh, grad={"input": lambda grad, input: grad * cosh(input)})
def sinh(input: Tensor) -> Tensor:
    """Hyperbolic sine. [*] -> [*]."""


@op(Pointwise("cosh_({input})", "float"), ref=np.cosh, grad={"input": lambda grad, input: grad * sinh(input)})
def cosh(input: Tensor) -> Tensor:
    """Hyperbolic cosine. [*] -> [*]."""


@op(Pointwise("asinh_({input})", "float"), ref=np.arcsinh, grad={"input": lambda grad, input: grad * rsqrt(input * input + 1.0)})
def asinh(input: Tensor) -> Tensor:
    """Inverse hyperbolic sine. [*] -> [*]."""


@op(
    Pointwise("acosh_({input})", "float"),
    ref=np.arccosh,
    domain=(1.2, 4.0),
    grad={"input": lambda grad, input: grad * rsqrt(input * input - 1.0)},
)
def acosh(input: Tensor) -> Tensor:
    """Inverse hyperbolic cosine; NaN below 1. [*] -> [*]."""


@op(
    Pointwise("atanh_({input})", "float"),
    ref=np.arctanh,
    domain=(-0.9, 0.9),
    grad={"input": lambda grad, input: grad / (1.0 - input * input)},
)
def atanh(input: Tensor) -> Tensor:
    """Inverse hyperbolic tangent; NaN outside [-1, 1]. [*] -> [*]."""


def _sinc_grad(grad: Any, input: Any) -> Any:
    angle = input * math.pi
    return grad * where_zero(input, 0.0, (cos(angle) * angle - sin(angle)) / (angle * input))


@op(
    Pointwise("sinc_({input})", "float"),
    ref=lambda input: np.where(np.isinf(input), np.nan, np.sinc(np.where(np.isinf(input), 0, input))),
    grad={"input": _sinc_grad},
)
def sinc(input: Tensor) -> Tensor:
    """sin(pi input) / (pi input), 1 at 0. [*] -> [*]."""


@op(
    Pointwise({"f": "hypot_({input}, {other})"}),
    ref=np.hypot,
    domain=(0.2, 2.5),
    grad={"input": lambda grad, input, result: grad * (input / result), "other": lambda grad, other, result: grad * (other / result)},
)
def hypot(input: Tensor, other: Tensor) -> Tensor:
    """sqrt(input^2 + other^2) without overflow. [*], [*] -> [*]."""


@op(
    Pointwise("{input} * 0.0174532925", "float"),
    ref=lambda input: input * (math.pi / 180),
    grad={"input": lambda grad: grad * (math.pi / 180)},
)
def deg2rad(input: Tensor) -> Tensor:
    """Degrees as radians. [*] -> [*]."""


@op(
    Pointwise("{input} * 57.2957795", "float"),
    ref=lambda input: input * (180 / math.pi),
    grad={"input": lambda grad: grad * (180 / math.pi)},
)
def rad2deg(input: Tensor) -> Tensor:
    """Radians as degrees. [*] -> [*]."""
