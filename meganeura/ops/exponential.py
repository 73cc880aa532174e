"""Exponentials and logarithms beyond exp and log. Integers give float32, but where PyTorch has none. Shapes broadcast."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..dtype import float32, int32
from ..errors import DTypeError
from ..storage import Layout
from .archetype import Pointwise
from .inplace import inplace
from .pointwise import eq, exp, log, log1p, logical_and, pow, where
from .samples import with_numbers
from .table import Inferred, Operand, Scalar, Spec, composite, op

if TYPE_CHECKING:
    from ..tensor import Tensor


def where_zero(test: Any, value: Any, other: Any) -> Any:
    """`value` where `test` is 0, else `other`."""
    return where(eq(test, 0), value, other)


@op(Pointwise("exp2_({input})", "float"), ref=np.exp2, grad={"input": lambda grad, result: grad * result * math.log(2)})
def exp2(input: Tensor) -> Tensor:
    """2**input. [*] -> [*]."""


@op(Pointwise("log2_({input})", "float"), ref=np.log2, domain=(0.05, 4.0), grad={"input": lambda grad, input: grad / (input * math.log(2))})
def log2(input: Tensor) -> Tensor:
    """Logarithm to base 2. [*] -> [*]."""


@op(
    Pointwise("log10_({input})", "float"),
    ref=np.log10,
    domain=(0.05, 4.0),
    grad={"input": lambda grad, input: grad / (input * math.log(10))},
)
def log10(input: Tensor) -> Tensor:
    """Logarithm to base 10. [*] -> [*]."""


@op(
    Pointwise({"f": "logaddexp_({input}, {other})"}),
    ref=np.logaddexp,
    grad={
        "input": lambda grad, input, other: grad / (1.0 + exp(other - input)),
        "other": lambda grad, input, other: grad / (1.0 + exp(input - other)),
    },
)
def logaddexp(input: Tensor, other: Tensor) -> Tensor:
    """log(exp(input) + exp(other)), without overflow. [*], [*] -> [*]."""


@op(
    Pointwise({"f": "logaddexp2_({input}, {other})"}),
    ref=np.logaddexp2,
    grad={
        "input": lambda grad, input, other: grad / (1.0 + exp2(other - input)),
        "other": lambda grad, input, other: grad / (1.0 + exp2(input - other)),
    },
)
def logaddexp2(input: Tensor, other: Tensor) -> Tensor:
    """log2(2**input + 2**other), without overflow. [*], [*] -> [*]."""


def _times_log(log_of: Any) -> Any:
    """x log(y), 0 where x is 0 and y no NaN."""
    return lambda input, other: np.where(np.isnan(other), np.nan, np.where(input == 0, 0, input * log_of(other)))


def _log_factor(grad: Any, input: Any, other: Any, logarithm: Any) -> Any:
    """grad * logarithm, 0 where input is 0 and other is <= 0 (where PyTorch masks the infinite slope)."""
    return where(logical_and(eq(input, 0), other <= 0), 0.0, grad * logarithm)


def _is_tensor(x: Any) -> bool:
    return hasattr(x, "layout")


def _xlogy_input(grad: Any, input: Any, other: Any) -> Any:
    if not _is_tensor(other):
        return grad * (math.log(other) if other > 0 else -math.inf if other == 0 else math.nan)
    return _log_factor(grad, input, other, log(other))


def _xlog1py_input(grad: Any, input: Any, other: Any) -> Any:
    if not _is_tensor(other):
        return grad * (math.log1p(other) if other > -1 else -math.inf if other == -1 else math.nan)
    return _log_factor(grad, input, other + 1.0, log1p(other))


@op(
    Pointwise("xlogy_({input}, {other})", "float"),
    ref=_times_log(np.log),
    domain=(0.2, 3.0),
    grad={"input": _xlogy_input, "other": lambda grad, input, other: grad * input / other},
)
def xlogy(input: Operand, other: Operand) -> Tensor:
    """input * log(other); 0 where input is 0, unless other is NaN. [*], [*] -> [*]."""


@op(
    Pointwise("xlog1py_({input}, {other})", "float"),
    ref=_times_log(np.log1p),
    domain=(0.2, 3.0),
    public=False,
    torch="special.xlog1py",
    grad={"input": _xlog1py_input, "other": lambda grad, input, other: grad * input / (other + 1.0)},
)
def xlog1py(input: Operand, other: Operand) -> Tensor:
    """input * log1p(other); 0 where input is 0, unless other is NaN. [*], [*] -> [*]."""


@op(
    Pointwise("entr_({input})", "float"),
    ref=lambda input: np.where(np.isnan(input), np.nan, np.where(input > 0, -input * np.log(input), np.where(input == 0, 0, -np.inf))),
    domain=(0.1, 3.0),
    public=False,
    torch="special.entr",
    grad={"input": lambda grad, input: grad * (-log(input) - 1.0)},
)
def entr(input: Tensor) -> Tensor:
    """-input * log(input): 0 at 0, -inf below. [*] -> [*]."""


@op(
    Pointwise("logit_({input})", "float"),
    ref=lambda input: np.log(input / (1 - input)),
    domain=(0.05, 0.95),
    public=False,
    torch="logit",
    grad={"input": lambda grad, input: where(logical_and(input >= 0.0, input <= 1.0), grad / (input * (1.0 - input)), grad * math.nan)},
    shown="logit",
)
def logit_open(input: Tensor) -> Tensor:
    """log(input / (1 - input)); NaN outside [0, 1]. [*] -> [*]."""


def _logit_clamped(input: Any, eps: Any) -> Any:
    z = np.where(input < eps, eps, np.where(input > 1 - eps, 1 - eps, input))
    return np.log(z / (1 - z))


@op(
    Pointwise("logit_(nan_min(nan_max({input}, {eps}), 1.0 - {eps}))", "float"),
    ref=_logit_clamped,
    public=False,
    torch=None,
    samples=with_numbers(0.1, low=0.01, high=0.99),
    grad={"input": lambda grad, input, eps: where(logical_and(input >= eps, input <= 1.0 - eps), grad / (input * (1.0 - input)), 0.0)},
    shown="logit",
)
def logit_within(input: Tensor, eps: Scalar) -> Tensor:
    """log(z / (1 - z)) of z = input limited to [eps, 1 - eps]. [*] -> [*]."""


@inplace
@composite
def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """log(z / (1 - z)) of z = input, limited to [eps, 1 - eps] where eps is given. [*] -> [*]."""
    return logit_open(input) if eps is None else logit_within(input, eps)  # type: ignore[no-any-return]


@op(
    Pointwise("ldexp_({input}, {other})", "float"),
    ref=lambda input, other: np.where((input == 0) & (np.abs(other) <= 1000), input, input * np.exp2(other)),
    grad={
        "input": lambda grad, other: ldexp(grad, other),
        "other": lambda grad, result: grad * result * math.log(2),
    },
)
def ldexp(input: Tensor, other: Tensor) -> Tensor:
    """input * 2**other, without overflow on the way. [*], [*] -> [*]."""


@inplace
@composite
def float_power(input: Any, exponent: Any) -> Tensor:
    """input to the power exponent, both taken as float32 (PyTorch: float64). [*], [*] -> [*]."""
    base, power = (x.to(float32) if _is_tensor(x) else float(x) for x in (input, exponent))
    return pow(base, power)  # type: ignore[no-any-return]


# ---- mantissa and exponent ----


def _floats_only(input: Layout) -> None:
    if not input.dtype.is_floating_point:
        raise DTypeError(f"frexp takes floating point tensors, got {input}")


def _mantissa_rule(input: Layout) -> Spec:
    _floats_only(input)
    return Spec(input.dtype, input.shape)


def _exponent_rule(input: Layout) -> Inferred:
    _floats_only(input)
    return Inferred((Spec(int32, input.shape),), (input.dtype,), {})


@op(
    Pointwise("frexp_mantissa({input})"),
    rule=_mantissa_rule,
    ref=lambda input: np.frexp(input)[0],
    public=False,
    torch=None,
    grad={"input": lambda grad, input: grad / exp2(frexp_exponent(input))},
    shown="frexp",
)
def frexp_mantissa(input: Tensor) -> Tensor:
    """The mantissa, in [0.5, 1). [*] -> [*]."""


@op(
    Pointwise("frexp_exponent({input})"),
    rule=_exponent_rule,
    ref=lambda input: np.where(np.isfinite(input), np.frexp(input)[1], 0),
    public=False,
    torch=None,
    shown="frexp",
)
def frexp_exponent(input: Tensor) -> Tensor:
    """The power of two that goes with the mantissa. [*] -> [*] int32."""


class Frexp(NamedTuple):
    """What frexp returns: input is mantissa * 2**exponent."""

    mantissa: Any
    exponent: Any


@composite
def frexp(input: Tensor) -> Frexp:
    """(mantissa in [0.5, 1), int32 exponent) with input = mantissa * 2**exponent. [*] -> [*], [*]."""
    return Frexp(frexp_mantissa(input), frexp_exponent(input))
