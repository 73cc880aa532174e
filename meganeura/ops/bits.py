"""Functions of the bits of integers and floats: shifts, divisors, signs and neighbours. Shapes broadcast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DTypeError
from ..shape import broadcast_shapes
from ..storage import Layout
from .archetype import Pointwise
from .exponential import where_zero
from .infer import common_dtype
from .inplace import inplace
from .pointwise import _nothing
from .samples import draw, integers
from .table import Inferred, Operand, Sample, Spec, composite, op

if TYPE_CHECKING:
    from ..tensor import Tensor


def _shift_left(input: Any, other: Any) -> Any:
    a, n = np.asarray(input), np.asarray(other)
    inside = (n >= 0) & (n < 32)
    return np.where(inside, a << np.where(inside, n, 0), 0)


def _shift_right(input: Any, other: Any) -> Any:
    a, n = np.asarray(input), np.asarray(other)
    inside = (n >= 0) & (n < 32)
    return np.where(inside, a >> np.where(inside, n, 0), np.where(a < 0, -1, 0))


_SHIFTS = ((-99, 99), (0, 12))


@op(
    Pointwise({"i": "shift_left({input}, {other})", "u": "ushift_left({input}, {other})"}),
    ref=_shift_left,
    samples=integers(*_SHIFTS),
)
def bitwise_left_shift(input: Operand, other: Operand) -> Tensor:
    """The bits of input moved up by other places; 0 where other is negative or too large. [*], [*] -> [*]."""


@op(
    Pointwise({"i": "shift_right({input}, {other})", "u": "ushift_right({input}, {other})"}),
    ref=_shift_right,
    samples=integers(*_SHIFTS),
)
def bitwise_right_shift(input: Operand, other: Operand) -> Tensor:
    """The bits of input moved down by other places, the sign filling in. [*], [*] -> [*]."""


@op(Pointwise({"i": "igcd({input}, {other})", "u": "ugcd({input}, {other})"}), ref=np.gcd, samples=integers((-60, 60), (-60, 60)))
def gcd(input: Tensor, other: Tensor) -> Tensor:
    """Greatest common divisor, not negative; gcd(0, 0) is 0. [*], [*] -> [*]."""


@op(Pointwise({"i": "ilcm({input}, {other})", "u": "ulcm({input}, {other})"}), ref=np.lcm, samples=integers((-60, 60), (-60, 60)))
def lcm(input: Tensor, other: Tensor) -> Tensor:
    """Least common multiple, not negative. [*], [*] -> [*]."""


@op(
    Pointwise({"f": "is_negative({input})", "i": "{input} < 0", "u": "false && {input} == 0u", "b": "false && {input}"}, "compare"),
    ref=lambda input: np.signbit(input) if np.asarray(input).dtype.kind == "f" else np.asarray(input) < 0,
)
def signbit(input: Tensor) -> Tensor:
    """Whether the sign is minus, of -0.0 and NaN too. [*] -> [*] bool."""


@op(
    Pointwise("copy_sign({input}, {other})", "float"),
    ref=np.copysign,
    grad={"input": lambda grad, input, result: grad * where_zero(input, 0.0, result / input), "other": _nothing},
)
def copysign(input: Tensor, other: Operand) -> Tensor:
    """The size of input with the sign of other. [*], [*] -> [*]."""


def _next_rule(input: Layout, other: Layout) -> Inferred:
    common = common_dtype([input, other])
    if not common.is_floating_point or common.name == "bfloat16":
        raise DTypeError(f"nextafter takes float32 or float16 tensors, got {input} and {other}")
    return Inferred((Spec(common, broadcast_shapes(input.shape, other.shape)),), (common, common), {})


@op(
    Pointwise("nextafter_({input}, {other})"),
    rule=_next_rule,
    ref=lambda a, b: np.nextafter(np.float32(a), np.float32(b)),
    public=False,
    torch=None,
)
def next_single(input: Tensor, other: Tensor) -> Tensor:
    """The next float32 after input towards other. [*], [*] -> [*]."""


def _next_half(a: Any, b: Any) -> Any:
    return np.nextafter(np.asarray(a).astype(np.float16), np.asarray(b).astype(np.float16))


@op(
    Pointwise("nextafter_half({input}, {other})"),
    rule=_next_rule,
    ref=_next_half,
    public=False,
    torch=None,
    samples=lambda: [Sample.of(draw((3, 5)).astype(np.float16), draw((5,), seed=1).astype(np.float16))],
)
def next_half(input: Tensor, other: Tensor) -> Tensor:
    """The next float16 after input towards other. [*], [*] -> [*]."""


@inplace
@composite
def nextafter(input: Tensor, other: Tensor) -> Tensor:
    """The next number of the dtype after input towards other. [*], [*] -> [*]."""
    half = common_dtype([input.layout, other.layout]).name == "float16"
    return (next_half if half else next_single)(input, other)  # type: ignore[no-any-return]
