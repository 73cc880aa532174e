"""Parts of numbers and replacements of special ones: round, frac, fmod, heaviside, nan_to_num. Shapes broadcast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..dtype import bool_
from ..errors import DTypeError
from ..provenance import site
from ..shape import broadcast_shapes
from ..storage import Layout
from .archetype import Pointwise
from .inplace import inplace
from .pointwise import _nothing, clone, isfinite, trunc_divide, where
from .samples import draw
from .table import Inferred, IntScalar, Operand, Sample, Scalar, Spec, composite, op

if TYPE_CHECKING:
    from ..tensor import Tensor


@op(
    Pointwise({"f": "round({input})", "i": "{input}", "u": "{input}"}),
    ref=np.round,
    public=False,
    torch="round",
    grad={"input": _nothing},
    shown="round",
)
def round_whole(input: Tensor) -> Tensor:
    """The nearest whole number, ties to even. [*] -> [*]."""


def _rounded(input: Any, scale: Any, above: Any) -> Any:
    return np.round(input / scale) * scale if above else np.round(input * scale) / scale


@op(
    Pointwise({"f": "select(round({input} * {scale}) / {scale}, round({input} / {scale}) * {scale}, {above} == 1)"}),
    ref=_rounded,
    public=False,
    torch=None,
    samples=lambda: [Sample.of(draw((3, 5)), 10.0, 0), Sample.of(draw((7,), -200, 200), 100.0, 1)],
    grad={"input": _nothing},
    shown="round",
)
def round_digits(input: Tensor, scale: Scalar, above: IntScalar) -> Tensor:
    """The nearest multiple of 1 / scale, or (above = 1) of scale; ties to even. [*] -> [*]."""


@inplace
@composite
def round(input: Tensor, *, decimals: int = 0) -> Tensor:
    """The nearest number with so many decimals, ties to even; negative decimals round to tens, hundreds... [*] -> [*]."""
    if decimals == 0:
        return round_whole(input)  # type: ignore[no-any-return]
    return round_digits(input, 10.0 ** abs(decimals), int(decimals < 0))  # type: ignore[no-any-return]


@op(
    Pointwise({"f": "frac_({input})"}),
    ref=lambda input: np.where(np.isfinite(input), input - np.trunc(input), np.nan),
    grad={"input": lambda grad: grad},
)
def frac(input: Tensor) -> Tensor:
    """input - trunc(input). [*] -> [*]."""


@op(
    Pointwise({"f": "fmod_({input}, {other})", "i": "{input} - ({input} / {other}) * {other}", "u": "{input} % {other}"}),
    ref=np.fmod,
    public=False,
    torch="fmod",
    grad={"input": lambda grad: grad, "other": lambda grad, input, other: -grad * trunc_divide(input, other)},
    shown="fmod",
)
def fmod_by(input: Tensor, other: Operand) -> Tensor:
    """The remainder of the quotient rounded toward zero; the sign of input. [*], [*] -> [*]."""


@inplace
@composite
def fmod(input: Tensor, other: Any) -> Tensor:
    """The remainder of the quotient rounded toward zero: the result has the sign of input. [*], [*] -> [*]."""
    if other.__class__ in (int, bool) and not other and not input.is_floating_point():
        raise DTypeError(f"fmod: integer division by zero of {input.layout}\n  at {site()}")
    return fmod_by(input, other)  # type: ignore[no-any-return]


@inplace
@composite
def fix(input: Tensor) -> Tensor:
    """Rounded toward zero, as trunc. [*] -> [*]."""
    return input.trunc()  # type: ignore[no-any-return]


@composite
def positive(input: Tensor) -> Tensor:
    """input itself, as + does. [*] -> [*]."""
    if input.dtype is bool_:
        raise DTypeError(f"positive: + is not defined for bools ({input.layout})\n  at {site()}")
    return input


@op(
    Pointwise({"f": "select(sign({input}), 0.0, is_nan({input}))", "i": "sign({input})", "u": "min({input}, 1u)", "b": "{input}"}),
    ref=lambda input: np.where(np.isnan(input), 0, np.sign(input)),
    grad={"input": _nothing},
)
def sgn(input: Tensor) -> Tensor:
    """-1, 0 or 1 by sign, as sign: there are no complex numbers. [*] -> [*]."""


def _heaviside_rule(input: Layout, values: Layout) -> Inferred:
    if input.dtype is not values.dtype:
        raise DTypeError(f"heaviside takes two tensors of one dtype, got {input} and {values}")
    return Inferred((Spec(input.dtype, broadcast_shapes(input.shape, values.shape)),), (input.dtype, input.dtype), {})


@op(
    Pointwise(
        {
            "f": "select(select(0.0, 1.0, {input} > 0.0), {values}, !truth({input}))",
            "i": "select(select(0, 1, {input} > 0), {values}, {input} == 0)",
            "u": "select(1u, {values}, {input} == 0u)",
            "b": "{input} || {values}",
        }
    ),
    rule=_heaviside_rule,
    ref=lambda input, values: np.where(input == 0, values, np.where(input > 0, 1, 0)),
    samples=lambda: [Sample.of(np.where(draw(s) > 1, 0, draw(s)).astype(np.float32), draw(s, seed=1)) for s in ((3, 5), (7,), (), (0, 2))],
)
def heaviside(input: Tensor, values: Tensor) -> Tensor:
    """0 below 0, 1 above and `values` at 0. [*], [*] -> [*]."""


@op(
    Pointwise(
        {
            "f": "select(select(select({input}, {neginf}, is_inf({input}) && {input} < 0.0), {posinf}, is_inf({input}) && {input} > 0.0),"
            " {nan}, is_nan({input}))"
        }
    ),
    ref=lambda input, nan, posinf, neginf: np.where(
        np.isnan(input), nan, np.where(input == np.inf, posinf, np.where(input == -np.inf, neginf, input))
    ),
    public=False,
    torch=None,
    samples=lambda: [Sample.of(draw(s), 0.5, 9.0, -9.0) for s in ((3, 5), (7,), (), (0, 2))],
    grad={"input": lambda grad, input: where(isfinite(input), grad, 0.0)},
    shown="nan_to_num",
)
def replace_special(input: Tensor, nan: Scalar, posinf: Scalar, neginf: Scalar) -> Tensor:
    """NaN and the infinities replaced by numbers. [*] -> [*]."""


_LARGEST = {"float16": 65504.0, "float32": float(np.finfo(np.float32).max), "bfloat16": 3.3895313892515355e38}


@inplace
@composite
def nan_to_num(input: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """NaN replaced by `nan`, infinities by posinf and neginf or the dtype's largest numbers. [*] -> [*]."""
    if not input.is_floating_point():
        return clone(input)  # type: ignore[no-any-return]
    top = _LARGEST[input.dtype.name]
    low, high = -top if neginf is None else neginf, top if posinf is None else posinf
    return replace_special(input, 0.0 if nan is None else nan, high, low)  # type: ignore[no-any-return]
