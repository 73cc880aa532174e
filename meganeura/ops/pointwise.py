"""Pointwise rows: one expression, one numpy reference and one gradient rule an input. Shapes broadcast; [*], [*] -> [*]."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ..dtype import DType, bool_, scalar_dtype
from ..errors import DTypeError
from ..shape import broadcast_shapes
from ..storage import Layout
from .archetype import Pointwise
from .creation import fill
from .infer import common_dtype
from .table import Inferred, IntScalar, Operand, Sample, Spec, op

if TYPE_CHECKING:
    from ..tensor import Tensor

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _nothing(grad: Any) -> Any:
    """The gradient of what is constant almost everywhere: zeros, also where the gradient that arrives is infinite."""
    return fill(0.0, grad.shape, grad.dtype)


def _where_rule(condition: Layout, input: Any, other: Any) -> Inferred:
    if condition.dtype.kind not in "bu":
        raise DTypeError(f"the condition must be a bool tensor, got {condition}")
    common = common_dtype([input, other])
    shape = broadcast_shapes(*(x.shape for x in (condition, input, other) if isinstance(x, Layout)))
    return Inferred((Spec(common, shape),), (bool_, common, common), {})


def _cast_rule(input: Layout, dtype: DType) -> Spec:
    return Spec(dtype, input.shape)


# ---- copies ----


@op(Pointwise("{input}", "first"), ref=lambda input: input, grad={"input": lambda grad: grad})
def clone(input: Tensor) -> Tensor:
    """A row-major copy. [*] -> [*]."""


@op(
    Pointwise("{input}"),
    rule=_cast_rule,
    method=True,
    public=True,
    torch=None,
    ref=lambda input, dtype: input,
    grad={"input": lambda grad, input_meta: grad.to(input_meta.dtype)},
)
def cast(input: Tensor, dtype: DType) -> Tensor:
    """The values in another dtype; floats truncate toward zero when they become integers. [*] -> [*]."""


_EITHER = (("input", (0, 1)), ("other", (0, 1)))  # numbers that may be literals


@op(
    Pointwise("select({other}, {input}, {condition})", literals=_EITHER),
    rule=_where_rule,
    ref=lambda condition, input, other: np.where(condition, input, other),
    grad={
        "input": lambda grad, condition: where(condition, grad, 0.0),
        "other": lambda grad, condition: where(condition, 0.0, grad),
    },
)
def where(condition: Tensor, input: Operand, other: Operand) -> Tensor:
    """`input` where the condition holds, else `other`. [*], [*], [*] -> [*]."""


# ---- arithmetic ----


@op(
    Pointwise({"f": "{input} + {other}", "i": "{input} + {other}", "u": "{input} + {other}", "b": "{input} || {other}"}),
    ref=lambda input, other: input + other,
    grad={"input": lambda grad: grad, "other": lambda grad: grad},
    commutes=True,
)
def add(input: Operand, other: Operand) -> Tensor:
    """input + other. [*], [*] -> [*]."""


def check_no_bool(*operands: Any, where: Any = None) -> None:
    """Raise DTypeError if a layout or number is a bool: PyTorch subtracts none."""
    if any((x.dtype if isinstance(x, Layout) else scalar_dtype(x)) is bool_ for x in operands):
        shown, at = ", ".join(str(x) for x in operands), f"\n  at {where}" if where else ""
        raise DTypeError(f"bools cannot be subtracted (operands {shown}); use ^ or logical_xor(), or ~ to invert a mask{at}")


def _sub_rule(input: Any, other: Any) -> Inferred:
    check_no_bool(input, other)
    common = common_dtype([input, other])
    return Inferred((Spec(common, broadcast_shapes(*(x.shape for x in (input, other) if isinstance(x, Layout)))),), (common, common), {})


@op(
    Pointwise("{input} - {other}"),
    rule=_sub_rule,
    ref=lambda input, other: input - other,
    grad={"input": lambda grad: grad, "other": lambda grad: -grad},
)
def sub(input: Operand, other: Operand) -> Tensor:
    """input - other. [*], [*] -> [*]."""


@op(
    Pointwise({"f": "{input} * {other}", "i": "{input} * {other}", "u": "{input} * {other}", "b": "{input} && {other}"}),
    ref=lambda input, other: input * other,
    grad={"input": lambda grad, other: grad * other, "other": lambda grad, input: grad * input},
    commutes=True,
)
def mul(input: Operand, other: Operand) -> Tensor:
    """input * other. [*], [*] -> [*]."""


@op(
    Pointwise("div_({input}, {other})", "float", (("input", (1,)),)),
    ref=lambda input, other: input / other,
    grad={"input": lambda grad, other: grad / other, "other": lambda grad, input, other: -grad * input / (other * other)},
)
def div(input: Operand, other: Operand) -> Tensor:
    """True division; integers give float32. [*], [*] -> [*]."""


_FLOORED = Pointwise({"f": "floor_div({input}, {other})", "i": "idiv_floor({input}, {other})", "u": "{input} / {other}"})


@op(_FLOORED, ref=lambda input, other: np.floor_divide(input, other))
def floor_divide(input: Operand, other: Operand) -> Tensor:
    """The quotient rounded toward minus infinity; has no gradient, as in PyTorch. [*], [*] -> [*]."""


@op(
    _FLOORED,
    ref=lambda input, other: np.floor_divide(input, other),
    public=False,
    torch=None,
    grad={"input": _nothing, "other": _nothing},
    shown="div",
)
def floored_quotient(input: Operand, other: Operand) -> Tensor:
    """The quotient rounded toward minus infinity, with a gradient of 0. [*], [*] -> [*]."""


@op(
    Pointwise({"f": "trunc_div({input}, {other})", "i": "{input} / {other}", "u": "{input} / {other}"}),
    ref=lambda input, other: np.trunc(np.true_divide(input, other)),
    public=False,
    torch=None,
    grad={"input": _nothing, "other": _nothing},
    shown="div",
)
def trunc_divide(input: Operand, other: Operand) -> Tensor:
    """The quotient rounded toward zero. [*], [*] -> [*]."""


@op(
    Pointwise({"f": "remainder_({input}, {other})", "i": "imod_floor({input}, {other})", "u": "{input} % {other}"}),
    ref=lambda input, other: np.remainder(input, other),
    grad={"input": lambda grad: grad, "other": lambda grad, input, other: -grad * floor_divide(input, other)},
)
def remainder(input: Operand, other: Operand) -> Tensor:
    """Python's modulus: the result has the sign of `other`. [*], [*] -> [*]."""


def _pow_base(grad: Any, input: Any, other: Any) -> Any:
    if hasattr(other, "layout"):
        return where(other == 0, 0.0, grad * other * pow(input, other - 1))
    if other in (0, 2):
        return grad * input * 2.0 if other == 2 else _nothing(grad)
    return grad * (other * pow(input, other - 1))


def _pow_exponent(grad: Any, input: Any, other: Any, result: Any) -> Any:
    if not hasattr(input, "layout"):
        if input == 0:
            return where(other >= 0, 0.0, grad * result * -math.inf)
        return grad * result * (math.log(input) if input > 0 else math.nan)
    return where(logical_and(input == 0, other >= 0), 0.0, grad * result * log(input))


def _power_ref(input: Any, other: Any) -> Any:
    """numpy's power, but for bools, and for negative powers of integers: 0 unless the base is 1 or -1."""
    if np.result_type(input, other).kind == "b":
        return np.logical_or(input, np.logical_not(other))
    if np.result_type(input, other).kind == "f":
        return np.power(input, other)
    other = np.asarray(other)
    even = np.where(other % 2 == 0, 1, input)
    return np.where(other >= 0, np.power(input, np.maximum(other, 0)), np.where(np.abs(input) == 1, even, 0))


@op(
    Pointwise({"f": "pow_({input}, {other})", "i": "ipow({input}, {other})", "u": "upow({input}, {other})", "b": "{input} || !{other}"}),
    ref=_power_ref,
    domain=(0.1, 3.0),
    grad={"input": _pow_base, "other": _pow_exponent},
)
def pow(input: Operand, other: Operand) -> Tensor:
    """input to the power other; 0**0 is 1, a negative base with a fractional exponent NaN. [*], [*] -> [*]."""


@op(Pointwise({"f": "-{input}", "i": "-{input}", "u": "0u - {input}"}), ref=lambda input: -input, grad={"input": lambda grad: -grad})
def neg(input: Tensor) -> Tensor:
    """-input. [*] -> [*]."""


@op(
    Pointwise({"f": "abs({input})", "i": "abs({input})", "u": "{input}"}),
    ref=lambda input: np.abs(input),
    grad={"input": lambda grad, input: grad * sign(input)},
)
def abs(input: Tensor) -> Tensor:
    """Absolute value. [*] -> [*]."""


@op(
    Pointwise({"f": "select(sign({input}), 0.0, is_nan({input}))", "i": "sign({input})", "u": "min({input}, 1u)", "b": "{input}"}),
    ref=lambda input: np.where(np.isnan(input), 0, np.sign(input)),
    grad={"input": _nothing},
)
def sign(input: Tensor) -> Tensor:
    """-1, 0 or 1 by sign; 0 for NaN, as in PyTorch. [*] -> [*]."""


# ---- exponentials and friends (integers give float32) ----


@op(Pointwise("exp_({input})", "float"), ref=np.exp, grad={"input": lambda grad, result: grad * result})
def exp(input: Tensor) -> Tensor:
    """e**input. [*] -> [*]."""


@op(Pointwise("log_({input})", "float"), ref=np.log, domain=(0.05, 4.0), grad={"input": lambda grad, input: grad / input})
def log(input: Tensor) -> Tensor:
    """Natural logarithm. [*] -> [*]."""


@op(Pointwise("log1p_({input})", "float"), ref=np.log1p, domain=(-0.9, 4.0), grad={"input": lambda grad, input: grad / (input + 1.0)})
def log1p(input: Tensor) -> Tensor:
    """log(1 + input), accurate near 0. [*] -> [*]."""


@op(Pointwise("expm1_({input})", "float"), ref=np.expm1, grad={"input": lambda grad, result: grad * (result + 1.0)})
def expm1(input: Tensor) -> Tensor:
    """exp(input) - 1, accurate near 0. [*] -> [*]."""


@op(Pointwise("sqrt_({input})", "float"), ref=np.sqrt, domain=(0.05, 4.0), grad={"input": lambda grad, result: grad * 0.5 / result})
def sqrt(input: Tensor) -> Tensor:
    """Square root; NaN below 0. [*] -> [*]."""


@op(
    Pointwise({"f": "sqrt_({input})"}),
    ref=np.sqrt,
    domain=(0.05, 4.0),
    public=False,
    torch=None,
    grad={"input": lambda grad, result: where(result == 0, 0.0, grad * 0.5 / result)},
)
def deviation(input: Tensor) -> Tensor:
    """Square root of a variance; its gradient at 0 is 0. [*] -> [*]."""


@op(
    Pointwise("1.0 / sqrt_({input})", "float"),
    ref=lambda input: 1 / np.sqrt(input),
    domain=(0.05, 4.0),
    grad={"input": lambda grad, result: grad * -0.5 * result * result * result},
)
def rsqrt(input: Tensor) -> Tensor:
    """1 / sqrt(input). [*] -> [*]."""


@op(
    Pointwise("1.0 / {input}", "float"),
    ref=lambda input: 1 / input,
    domain=(0.2, 4.0),
    grad={"input": lambda grad, result: -grad * result * result},
)
def reciprocal(input: Tensor) -> Tensor:
    """1 / input. [*] -> [*]."""


@op(Pointwise("sin_({input})", "float"), ref=np.sin, grad={"input": lambda grad, input: grad * cos(input)})
def sin(input: Tensor) -> Tensor:
    """Sine of radians. [*] -> [*]."""


@op(Pointwise("cos_({input})", "float"), ref=np.cos, grad={"input": lambda grad, input: -grad * sin(input)})
def cos(input: Tensor) -> Tensor:
    """Cosine of radians. [*] -> [*]."""


@op(Pointwise("tanh_({input})", "float"), ref=np.tanh, grad={"input": lambda grad, result: grad * (1.0 - result * result)})
def tanh(input: Tensor) -> Tensor:
    """Hyperbolic tangent. [*] -> [*]."""


@op(
    Pointwise("erf({input})", "float"),
    ref=_erf,
    grad={"input": lambda grad, input: grad * (2.0 / math.sqrt(math.pi)) * exp(-input * input)},
)
def erf(input: Tensor) -> Tensor:
    """Error function. [*] -> [*]."""


@op(
    Pointwise("sigmoid_({input})", "float"),
    ref=lambda input: 1 / (1 + np.exp(-input)),
    grad={"input": lambda grad, result: grad * result * (1.0 - result)},
)
def sigmoid(input: Tensor) -> Tensor:
    """1 / (1 + exp(-input)). [*] -> [*]."""


# ---- activations ----


@op(
    Pointwise({"f": "relu_({input})", "i": "max({input}, 0)", "u": "{input}"}),
    ref=lambda input: np.where(input < 0, 0, input),
    grad={"input": lambda grad, result: where(result <= 0, 0.0, grad)},
)
def relu(input: Tensor) -> Tensor:
    """max(input, 0); NaN stays NaN. [*] -> [*]."""


@op(
    Pointwise({"f": "gelu_({input})"}),
    ref=lambda input: input * 0.5 * (1 + _erf(input / math.sqrt(2))),
    public=False,
    torch="nn.functional.gelu",
    grad={
        "input": lambda grad, input: (
            grad * (0.5 * (1.0 + erf(input * math.sqrt(0.5))) + input * exp(input * input * -0.5) * (1 / math.sqrt(2 * math.pi)))
        )
    },
    shown="gelu",
)
def gelu_erf(input: Tensor) -> Tensor:
    """Gaussian error linear unit, input * Phi(input). [*] -> [*]. Source: arXiv:1606.08415."""


_G = math.sqrt(2 / math.pi)


def _gelu_tanh_grad(grad: Any, input: Any) -> Any:
    t = tanh((input + input * input * input * 0.044715) * _G)
    return grad * (0.5 * (1.0 + t) + 0.5 * input * (1.0 - t * t) * (_G + input * input * (3 * 0.044715 * _G)))


@op(
    Pointwise({"f": "gelu_tanh({input})"}),
    ref=lambda input: 0.5 * input * (1 + np.tanh(_G * (input + 0.044715 * input**3))),
    public=False,
    torch=None,
    grad={"input": _gelu_tanh_grad},
)
def gelu_tanh(input: Tensor) -> Tensor:
    """The tanh approximation of gelu. [*] -> [*]. Source: arXiv:1606.08415."""


@op(
    Pointwise({"f": "{input} * sigmoid_({input})"}),
    ref=lambda input: input / (1 + np.exp(-input)),
    torch="nn.functional.silu",
    grad={"input": lambda grad, input: grad * (sigmoid(input) * (1.0 + input * (1.0 - sigmoid(input))))},
)
def silu(input: Tensor) -> Tensor:
    """Sigmoid linear unit, input * sigmoid(input). [*] -> [*]. Source: arXiv:1702.03118."""


@op(
    Pointwise({"f": "nan_max({input}, 0.0) + log1p_(exp_(-abs({input})))"}),
    ref=lambda input: np.logaddexp(input, 0),
    public=False,
    torch="nn.functional.softplus",
    grad={"input": lambda grad, input: grad * sigmoid(input)},
)
def softplus(input: Tensor) -> Tensor:
    """log(1 + exp(input)), without overflow. [*] -> [*]."""


def _bce_ref(input: Any, target: Any) -> Any:
    return (target - 1) * np.maximum(np.log1p(-input), -100) - target * np.maximum(np.log(input), -100)


@op(
    Pointwise({"f": "({target} - 1.0) * nan_max(log1p_(-{input}), -100.0) - {target} * nan_max(log_({input}), -100.0)"}),
    ref=_bce_ref,
    domain=(0.05, 0.95),
    public=False,
    torch=None,
    grad={
        "input": lambda grad, input, target: grad * (input - target) / clamp_both(input * (1.0 - input), 1e-12, math.inf),
        "target": lambda grad, input: grad * (log1p(-input) - log(input)),
    },
    shown="binary_cross_entropy",
)
def bce_rows(input: Tensor, target: Tensor) -> Tensor:
    """Binary cross entropy of probabilities; logarithms are cut at -100. [*], [*] -> [*]."""


# ---- extrema ----


def _share(grad: Any, loses: Any, ties: Any) -> Any:
    return where(ties, grad * 0.5, where(loses, 0.0, grad))


@op(
    Pointwise({"f": "nan_max({input}, {other})", "i": "max({input}, {other})", "u": "max({input}, {other})", "b": "{input} || {other}"}),
    ref=lambda input, other: np.maximum(input, other),
    grad={
        "input": lambda grad, input, other: _share(grad, input < other, eq(input, other)),
        "other": lambda grad, input, other: _share(grad, other < input, eq(input, other)),
    },
    commutes=True,
)
def maximum(input: Operand, other: Operand) -> Tensor:
    """The larger; NaN wins. [*], [*] -> [*]."""


@op(
    Pointwise({"f": "nan_min({input}, {other})", "i": "min({input}, {other})", "u": "min({input}, {other})", "b": "{input} && {other}"}),
    ref=lambda input, other: np.minimum(input, other),
    grad={
        "input": lambda grad, input, other: _share(grad, input > other, eq(input, other)),
        "other": lambda grad, input, other: _share(grad, other > input, eq(input, other)),
    },
    commutes=True,
)
def minimum(input: Operand, other: Operand) -> Tensor:
    """The smaller; NaN wins. [*], [*] -> [*]."""


@op(
    Pointwise(
        {"f": "nan_min(nan_max({input}, {min}), {max})", "i": "min(max({input}, {min}), {max})", "u": "min(max({input}, {min}), {max})"}
    ),
    ref=lambda input, min, max: np.minimum(np.maximum(input, min), max),
    public=False,
    torch=None,
    grad={
        "input": lambda grad, input, min, max: where(logical_and(input >= min, input <= max), grad, 0.0),
        "min": lambda grad, input, min, max: where(logical_and(input < min, min < max), grad, 0.0),
        "max": lambda grad, input, min, max: where(logical_or(input > max, min > max), grad, 0.0),
    },
    shown="clamp",
)
def clamp_both(input: Tensor, min: Operand, max: Operand) -> Tensor:
    """input limited to [min, max]; NaN stays. [*], [*], [*] -> [*]."""


@op(
    Pointwise({"i": "select({input}, {input} + {size}, {input} < 0 && {input} >= -{size})", "u": "{input}"}, "first"),
    ref=lambda input, size: np.where((input < 0) & (input >= -size), input + size, input),
    public=False,
    torch=None,
    samples=lambda: [Sample.of(np.array([0, -1, 3, -4, -9]), 4), Sample.of(np.arange(3, dtype=np.int32), 7)],
)
def wrapped_index(input: Tensor, size: IntScalar) -> Tensor:
    """Negative indices counted from the end; those before the beginning stay, to be reported as they were given. [*] -> [*]."""


# ---- rounding ----


@op(Pointwise({"f": "floor({input})", "i": "{input}", "u": "{input}"}), ref=np.floor, grad={"input": _nothing})
def floor(input: Tensor) -> Tensor:
    """Rounded toward minus infinity. [*] -> [*]."""


@op(Pointwise({"f": "ceil({input})", "i": "{input}", "u": "{input}"}), ref=np.ceil, grad={"input": _nothing})
def ceil(input: Tensor) -> Tensor:
    """Rounded toward plus infinity. [*] -> [*]."""


@op(Pointwise({"f": "trunc({input})", "i": "{input}", "u": "{input}"}), ref=np.trunc, grad={"input": _nothing})
def trunc(input: Tensor) -> Tensor:
    """Rounded toward zero. [*] -> [*]."""


# ---- comparisons and logic ----


def _compare(name: str, symbol: str, ref: Any) -> Any:
    def fn(input: Operand, other: Operand) -> Tensor: ...

    fn.__name__, fn.__module__ = name, __name__
    fn.__doc__ = f"input {symbol} other, as bool; false where either is NaN, but for ne. [*], [*] -> [*]."
    texts = dict.fromkeys("fiu", f"{{input}} {symbol} {{other}}")
    texts["b"] = f"u32({{input}}) {symbol} u32({{other}})"
    if symbol == "!=":  # drivers may take != as ordered, which is false for NaN
        texts["f"] = "is_nan({input}) || is_nan({other}) || {input} != {other}"
    elif symbol not in {"<", ">"}:  # drivers may take x == x as true, which is false for NaN
        texts["f"] = f"{{input}} {symbol} {{other}} && !is_nan({{input}})"
    commutes = symbol in ("==", "!=")
    return op(Pointwise(texts, "compare", () if commutes else _EITHER), ref=ref, commutes=commutes)(fn)


eq = _compare("eq", "==", np.equal)
ne = _compare("ne", "!=", np.not_equal)
lt = _compare("lt", "<", np.less)
le = _compare("le", "<=", np.less_equal)
gt = _compare("gt", ">", np.greater)
ge = _compare("ge", ">=", np.greater_equal)


@op(
    Pointwise({"f": "is_nan({input})", "i": "false && {input} == 0", "u": "false && {input} == 0u", "b": "false && {input}"}, "compare"),
    ref=np.isnan,
)
def isnan(input: Tensor) -> Tensor:
    """Whether an element is NaN. [*] -> [*] bool."""


_BITS = "(bitcast<u32>({input}) & 0x7fffffffu)"


@op(
    Pointwise(
        {"f": f"{_BITS} == 0x7f800000u", "i": "false && {input} == 0", "u": "false && {input} == 0u", "b": "false && {input}"}, "compare"
    ),
    ref=np.isinf,
)
def isinf(input: Tensor) -> Tensor:
    """Whether an element is plus or minus infinity. [*] -> [*] bool."""


@op(
    Pointwise(
        {"f": f"{_BITS} < 0x7f800000u", "i": "true || {input} == 0", "u": "true || {input} == 0u", "b": "true || {input}"}, "compare"
    ),
    ref=np.isfinite,
)
def isfinite(input: Tensor) -> Tensor:
    """Whether an element is neither NaN nor infinite. [*] -> [*] bool."""


@op(Pointwise("{input} && {other}", "bool"), ref=np.logical_and, commutes=True)
def logical_and(input: Tensor, other: Tensor) -> Tensor:
    """Both nonzero. [*], [*] -> [*] bool."""


@op(Pointwise("{input} || {other}", "bool"), ref=np.logical_or, commutes=True)
def logical_or(input: Tensor, other: Tensor) -> Tensor:
    """Either nonzero. [*], [*] -> [*] bool."""


@op(Pointwise("{input} != {other}", "bool"), ref=np.logical_xor, commutes=True)
def logical_xor(input: Tensor, other: Tensor) -> Tensor:
    """Exactly one nonzero. [*], [*] -> [*] bool."""


@op(Pointwise("!{input}", "bool"), ref=np.logical_not)
def logical_not(input: Tensor) -> Tensor:
    """Zero. [*] -> [*] bool."""


@op(Pointwise({"i": "{input} & {other}", "u": "{input} & {other}", "b": "{input} && {other}"}), ref=np.bitwise_and, commutes=True)
def bitwise_and(input: Operand, other: Operand) -> Tensor:
    """Bitwise and of integers or bools. [*], [*] -> [*]."""


@op(Pointwise({"i": "{input} | {other}", "u": "{input} | {other}", "b": "{input} || {other}"}), ref=np.bitwise_or, commutes=True)
def bitwise_or(input: Operand, other: Operand) -> Tensor:
    """Bitwise or of integers or bools. [*], [*] -> [*]."""


@op(Pointwise({"i": "{input} ^ {other}", "u": "{input} ^ {other}", "b": "{input} != {other}"}), ref=np.bitwise_xor, commutes=True)
def bitwise_xor(input: Operand, other: Operand) -> Tensor:
    """Bitwise exclusive or of integers or bools. [*], [*] -> [*]."""


@op(Pointwise({"i": "~{input}", "u": "~{input}", "b": "!{input}"}), ref=np.bitwise_not)
def bitwise_not(input: Tensor) -> Tensor:
    """Bitwise complement of integers or bools. [*] -> [*]."""
