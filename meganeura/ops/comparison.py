"""Comparisons beyond the operators: nearness, infinities, and extrema that ignore NaN. Shapes broadcast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..dtype import bool_
from ..errors import DTypeError, ShapeError
from ..provenance import site
from ..shape import broadcast_shapes
from ..storage import Layout
from .archetype import Pointwise
from .arithmetic import clamp
from .factory import ones_like
from .inplace import inplace
from .pointwise import isnan, logical_or, where
from .samples import draw
from .table import Inferred, IntScalar, Sample, Scalar, Spec, composite, op

if TYPE_CHECKING:
    from ..tensor import Tensor


# ---- nearness ----


def _close_rule(input: Layout, other: Layout, rtol: float, atol: float, equal_nan: int) -> Inferred:
    if input.dtype is not other.dtype:
        raise DTypeError(f"isclose takes two tensors of one dtype, got {input} and {other}")
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value < 0:
            raise ShapeError(f"isclose: {name} must not be negative, got {value}")
    return Inferred((Spec(bool_, broadcast_shapes(input.shape, other.shape)),), (input.dtype, input.dtype), {})


def _close_ref(input: Any, other: Any, rtol: Any, atol: Any, equal_nan: Any) -> Any:
    if np.asarray(input).dtype.kind != "f":
        return np.abs(input.astype(np.float64) - other) <= atol + np.abs(rtol * other.astype(np.float64))
    close = (input == other) | (np.isfinite(input) & np.isfinite(other) & (np.abs(input - other) <= atol + np.abs(rtol * other)))
    return close | (np.isnan(input) & np.isnan(other)) if equal_nan else close


_WHOLE = "f32({a}) <= {{atol}} + abs({{rtol}} * f32({{other}}))"


@op(
    Pointwise(
        {
            "f": "({input} == {other} && !is_nan({input}))"
            " || (is_finite({input}) && is_finite({other}) && abs({input} - {other}) <= {atol} + abs({rtol} * {other}))"
            " || ({equal_nan} == 1 && is_nan({input}) && is_nan({other}))",
            "i": _WHOLE.format(a="abs({input} - {other})"),
            "u": _WHOLE.format(a="max({input}, {other}) - min({input}, {other})"),
            "b": "u32({input}) == u32({other}) || {atol} + {rtol} * f32(u32({other})) >= 1.0",
        },
        "compare",
    ),
    rule=_close_rule,
    ref=_close_ref,
    public=False,
    torch=None,
    samples=lambda: [Sample.of(draw((3, 5)), np.where(draw((5,)) > 0, draw((5,)), draw((3, 5))), 1e-5, 1e-8, 0)],
    shown="isclose",
)
def close_rows(input: Tensor, other: Tensor, rtol: Scalar, atol: Scalar, equal_nan: IntScalar) -> Tensor:
    """|input - other| <= atol + rtol |other|. [*], [*] -> [*] bool."""


@composite
def isclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Tensor:
    """Whether |input - other| <= atol + rtol |other|; NaN is near NaN if equal_nan. [*], [*] -> [*] bool."""
    return close_rows(input, other, rtol, atol, int(equal_nan))  # type: ignore[no-any-return]


@composite
def allclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    """isclose of all elements, as a Python bool: waits for the device. [*], [*] -> bool."""
    return bool(isclose(input, other, rtol, atol, equal_nan).all().item())


@composite
def equal(input: Tensor, other: Tensor) -> bool:
    """Whether shapes and all values are equal, as a Python bool: waits for the device. [*], [*] -> bool."""
    if not hasattr(other, "layout"):
        raise DTypeError(f"equal: argument 'other' must be a tensor, got {other!r}\n  at {site()}")
    return input.shape == other.shape and bool((input == other).all().item())


# ---- infinities ----


def _infinite(name: str, bits: str, ref: Any, sign: str) -> Any:
    def row(input: Tensor) -> Tensor: ...

    row.__name__, row.__module__ = name, __name__
    row.__doc__ = f"Whether an element is {sign} infinity. [*] -> [*] bool."
    never = {"i": "false && {input} == 0", "u": "false && {input} == 0u", "b": "false && {input}"}
    return op(Pointwise({"f": f"bitcast<u32>({{input}}) == {bits}", **never}, "compare"), ref=ref)(row)


isposinf = _infinite("isposinf", "0x7f800000u", lambda input: np.equal(input, np.inf), "plus")
isneginf = _infinite("isneginf", "0xff800000u", lambda input: np.equal(input, -np.inf), "minus")


@composite
def isreal(input: Tensor) -> Tensor:
    """True everywhere: there are no complex numbers. [*] -> [*] bool."""
    return ones_like(input, dtype=bool_)  # type: ignore[no-any-return]


# ---- extrema that ignore NaN ----


@op(
    Pointwise(
        {
            "f": "select(select(max({input}, {other}), {input}, is_nan({other})), {other}, is_nan({input}))",
            "i": "max({input}, {other})",
            "u": "max({input}, {other})",
            "b": "{input} || {other}",
        }
    ),
    ref=np.fmax,
    grad={
        "input": lambda grad, input, other: where(logical_or(input >= other, isnan(other)), grad, 0.0),
        "other": lambda grad, input, other: where(logical_or(input >= other, isnan(other)), 0.0, grad),
    },
)
def fmax(input: Tensor, other: Tensor) -> Tensor:
    """The larger; NaN only where both are. [*], [*] -> [*]."""


@op(
    Pointwise(
        {
            "f": "select(select(min({input}, {other}), {input}, is_nan({other})), {other}, is_nan({input}))",
            "i": "min({input}, {other})",
            "u": "min({input}, {other})",
            "b": "{input} && {other}",
        }
    ),
    ref=np.fmin,
    grad={
        "input": lambda grad, input, other: where(logical_or(input <= other, isnan(other)), grad, 0.0),
        "other": lambda grad, input, other: where(logical_or(input <= other, isnan(other)), 0.0, grad),
    },
)
def fmin(input: Tensor, other: Tensor) -> Tensor:
    """The smaller; NaN only where both are. [*], [*] -> [*]."""


@inplace
@composite
def clamp_min(input: Tensor, min: Any) -> Tensor:
    """The larger of input and min; NaN stays. [*], [*] -> [*]."""
    return clamp(input, min)


@inplace
@composite
def clamp_max(input: Tensor, max: Any) -> Tensor:
    """The smaller of input and max; NaN stays. [*], [*] -> [*]."""
    return clamp(input, None, max)
