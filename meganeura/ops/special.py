"""Special functions: error functions, the normal distribution, gamma and Bessel functions. Integers give float32. [*] -> [*]."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DTypeError, ShapeError
from ..provenance import site
from .archetype import Pointwise
from .exponential import where_zero
from .inplace import inplace
from .pointwise import exp, sign
from .samples import with_numbers
from .table import Op, Scalar, composite, op

if TYPE_CHECKING:
    from ..tensor import Tensor

_ROOT_PI = math.sqrt(math.pi)
_ROOT_TWO_PI = math.sqrt(2 * math.pi)


def _each(fn: Callable[..., float]) -> Callable[..., Any]:
    """A function of Python floats, applied to arrays."""

    def one(*x: float) -> float:
        try:
            return fn(*map(float, x))
        except OverflowError:
            return math.inf

    return np.vectorize(one, otypes=[np.float64])


# ---- error functions ----


def _erfcx(x: float) -> float:
    if x < 25:
        return math.exp(x * x) * math.erfc(x) if x > -26.6 else math.inf
    return (1 - 0.5 / (x * x) * (1 - 1.5 / (x * x))) / (x * _ROOT_PI)


def _erfinv(a: float) -> float:
    if not abs(a) < 1:
        return math.copysign(math.inf, a) if abs(a) == 1 else math.nan
    x = NormalDist().inv_cdf(0.5 * a + 0.5) / math.sqrt(2) if a > -1 else -math.inf
    return x - (math.erf(x) - a) * 0.5 * _ROOT_PI * math.exp(x * x)


@op(
    Pointwise("erfc_({input})", "float"),
    ref=_each(math.erfc),
    grad={"input": lambda grad, input: grad * (-2.0 / _ROOT_PI) * exp(-input * input)},
)
def erfc(input: Tensor) -> Tensor:
    """1 - erf(input), accurate where it is small. [*] -> [*]."""


@op(
    Pointwise("erfcx_({input})", "float"),
    ref=_each(_erfcx),
    public=False,
    torch="special.erfcx",
    grad={"input": lambda grad, input, result: grad * (input * result * 2.0 - 2.0 / _ROOT_PI)},
)
def erfcx(input: Tensor) -> Tensor:
    """exp(input^2) * erfc(input). [*] -> [*]."""


@op(
    Pointwise("erfinv_({input})", "float"),
    ref=_each(_erfinv),
    domain=(-0.95, 0.95),
    grad={"input": lambda grad, result: grad * (0.5 * _ROOT_PI) * exp(result * result)},
)
def erfinv(input: Tensor) -> Tensor:
    """The inverse of erf; NaN outside [-1, 1]. [*] -> [*]."""


# ---- the normal distribution ----


def _ndtri(p: float) -> float:
    if 0 < p < 1:
        return NormalDist().inv_cdf(p)
    return {0.0: -math.inf, 1.0: math.inf}.get(p, math.nan)


def _log_ndtr(x: float) -> float:
    if x > -1:
        return math.log1p(-0.5 * math.erfc(x / math.sqrt(2)))
    return math.log(0.5 * _erfcx(-x / math.sqrt(2))) - 0.5 * x * x if x > -math.inf else x


@op(
    Pointwise("ndtr_({input})", "float"),
    ref=_each(lambda x: 0.5 * math.erfc(-x / math.sqrt(2))),
    public=False,
    torch="special.ndtr",
    grad={"input": lambda grad, input: grad * (1 / _ROOT_TWO_PI) * exp(input * input * -0.5)},
)
def ndtr(input: Tensor) -> Tensor:
    """The area of the standard normal distribution below input. [*] -> [*]."""


@op(
    Pointwise("ndtri_({input})", "float"),
    ref=_each(_ndtri),
    domain=(0.05, 0.95),
    public=False,
    torch="special.ndtri",
    grad={"input": lambda grad, result: grad * _ROOT_TWO_PI * exp(result * result * 0.5)},
)
def ndtri(input: Tensor) -> Tensor:
    """The inverse of ndtr; NaN outside [0, 1]. [*] -> [*]."""


@op(
    Pointwise("log_ndtr_({input})", "float"),
    ref=_each(_log_ndtr),
    public=False,
    torch="special.log_ndtr",
    grad={"input": lambda grad, input: grad * math.sqrt(2 / math.pi) / erfcx(input * -math.sqrt(0.5))},
)
def log_ndtr(input: Tensor) -> Tensor:
    """log(ndtr(input)), accurate in both tails. [*] -> [*]."""


# ---- gamma functions ----


def _lgamma(x: float) -> float:
    return math.inf if math.isinf(x) or (x <= 0 and x == math.floor(x)) else math.lgamma(x)


def _digamma(x: float) -> float:
    if math.isnan(x) or x in (math.inf, 0.0):
        return x if x else math.copysign(math.inf, -x)
    if x < 0:
        return math.nan if math.isinf(x) or x == math.floor(x) else _digamma(1 - x) - math.pi / math.tan(math.pi * math.fmod(x, 1))
    out = 0.0
    while x < 12:
        out, x = out - 1 / x, x + 1
    s = 1 / (x * x)
    return out + math.log(x) - 0.5 / x - s * (1 / 12 - s * (1 / 120 - s * (1 / 252 - s * (1 / 240 - s / 132))))


def _zeta_right(s: float, x: float) -> float:
    out = math.fsum((x + k) ** -s for k in range(12))
    a = x + 12
    tail: float = a**-s
    b, c, d = ((s + k) * (s + k + 1) / (a * a) for k in (1, 3, 5))
    return out + tail * (a / (s - 1) + 0.5 + s / a * (1 / 12 - b * (1 / 720 - c * (1 / 30240 - d / 1209600))))


def _zeta(s: float, x: float) -> float:
    """The sum of (x + k)^-s over k >= 0, for a whole s > 1."""
    if math.isnan(x) or x == math.inf:
        return 0.0 if x > 0 else x
    if x <= 0 and x == math.floor(x):
        return math.inf
    if x > 0:
        return _zeta_right(s, x)
    f = x - math.floor(x)
    sign_of = 1 - 2 * (int(s) % 2)
    return _zeta_right(s, f) + sign_of * (_zeta_right(s, 1 - f) - _zeta_right(s, 1 - x))


@op(
    Pointwise("lgamma_({input})", "float"), ref=_each(_lgamma), domain=(0.2, 5.0), grad={"input": lambda grad, input: grad * digamma(input)}
)
def lgamma(input: Tensor) -> Tensor:
    """log|gamma(input)|. [*] -> [*]."""


@op(
    Pointwise("digamma_({input})", "float"),
    ref=_each(_digamma),
    domain=(0.2, 5.0),
    grad={"input": lambda grad, input: grad * polygamma(1, input)},
)
def digamma(input: Tensor) -> Tensor:
    """The derivative of lgamma. [*] -> [*]."""


@op(
    Pointwise("{factor} * zeta_({n} + 1.0, {input})", "float"),
    ref=_each(lambda x, n, factor: factor * _zeta(n + 1, x)),
    public=False,
    torch=None,
    samples=with_numbers(1, 1.0, low=0.3, high=4.0),
    grad={"input": lambda grad, input, n: grad * polygamma(int(n) + 1, input)},
    shown="polygamma",
)
def polygamma_of(input: Tensor, n: Scalar, factor: Scalar) -> Tensor:
    """factor * zeta(n + 1, input) with factor (-1)^(n + 1) n!. [*] -> [*]."""


@inplace
@composite
def polygamma(n: int, input: Tensor) -> Tensor:
    """The n-th derivative of digamma; as a method input.polygamma(n). [*] -> [*]."""
    if hasattr(n, "layout"):
        n, input = input, n  # type: ignore[assignment]
    if not isinstance(n, int) or n < 0:
        raise DTypeError(f"polygamma: n must be a whole number from 0 on, got {n!r}\n  at {site()}")
    if n == 0:
        return digamma(input)  # type: ignore[no-any-return]
    factor = (-1) ** (n + 1) * (float(math.factorial(n)) if n < 35 else math.inf)
    return polygamma_of(input, n, factor)  # type: ignore[no-any-return]


def _zeta_any(s: float, x: float) -> float:
    if math.isnan(s) or s < 1 or (x < 0 and x != math.floor(x) and s != math.floor(s)):
        return math.nan
    return math.inf if s == 1 else _zeta(s, x)


@op(
    Pointwise("zeta_any({input}, {other})", "float"),
    ref=_each(_zeta_any),
    torch="special.zeta",
    method=False,
    samples=with_numbers(arrays=2, low=1.2, high=5.0),
    grad={"other": lambda grad, input, other: -grad * input * zeta(input + 1.0, other)},
)
def zeta(input: Tensor, other: Tensor) -> Tensor:
    """The Hurwitz zeta function, the sum of (other + k)^-input over k >= 0. [*], [*] -> [*]."""


@inplace
@composite
def mvlgamma(input: Tensor, p: int) -> Tensor:
    """log of the multivariate gamma function of dimension p. [*] -> [*]."""
    if p < 1:
        raise ShapeError(f"mvlgamma: p must be at least 1, got {p}\n  at {site()}")
    out = lgamma(input)
    for j in range(1, p):
        out = out + lgamma(input - 0.5 * j)
    return out + p * (p - 1) / 4 * math.log(math.pi)  # type: ignore[no-any-return]


# ---- Bessel functions ----


def _scaled_bessel(order: int, x: float) -> float:
    """exp(-|x|) I_order(x) for order 0 or 1."""
    t, out, term = abs(x), 0.0, 1.0
    if math.isinf(x):
        return 0.0
    if t < 30:
        term = math.exp(-t) * (0.5 * t) ** order
        for k in range(1, 90):
            out, term = out + term, term * (0.25 * t * t) / (k * (k + order))
    else:
        term = 1 / math.sqrt(2 * math.pi * t)
        for k in range(1, 12):
            out, term = out + term, -term * (4 * order * order - (2 * k - 1) ** 2) / (8 * t * k)
    return math.copysign(out, x) if order else out


def _bessel(order: int, x: float) -> float:
    return (
        math.copysign(math.inf, x) if math.isinf(x) and order else abs(x) if math.isinf(x) else math.exp(abs(x)) * _scaled_bessel(order, x)
    )


def _bessel_row(name: str, order: int, scaled: bool, grad: Callable[..., Any], what: str) -> Op:
    fn = _scaled_bessel if scaled else _bessel

    def row(input: Tensor) -> Tensor: ...

    row.__name__, row.__module__ = name, __name__
    row.__doc__ = f"{what} [*] -> [*]."
    return op(
        Pointwise(f"{name}_({{input}})", "float"),
        ref=_each(lambda x: math.nan if math.isnan(x) else _signed(fn, order, x)),
        public=name == "i0",
        torch=f"special.{name}",
        grad={"input": grad},
    )(row)


def _signed(fn: Callable[[int, float], float], order: int, x: float) -> float:
    try:
        return fn(order, x)
    except OverflowError:
        return math.copysign(math.inf, x) if order else math.inf


i0 = _bessel_row("i0", 0, False, lambda grad, input: grad * i1(input), "The modified Bessel function of order 0.")
i0e = _bessel_row("i0e", 0, True, lambda grad, input, result: grad * (i1e(input) - sign(input) * result), "exp(-|input|) * i0(input).")
i1 = _bessel_row(
    "i1",
    1,
    False,
    lambda grad, input, result: grad * where_zero(input, 0.5, i0(input) - result / input),
    "The modified Bessel function of order 1.",
)
i1e = _bessel_row(
    "i1e",
    1,
    True,
    lambda grad, input, result: grad * where_zero(input, 0.5, i0e(input) - result * (sign(input) + 1.0 / input)),
    "exp(-|input|) * i1(input).",
)
