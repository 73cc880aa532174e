"""Composites of elementwise ops and reductions, with PyTorch's extra arguments and its (values, indices) results."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import dispatch
from ..dtype import dtype as as_dtype
from ..errors import DTypeError, ShapeError
from ..provenance import site
from . import creation, index, pointwise, reduce
from .factory import representable, tensor
from .infer import common_dtype
from .inplace import inplace
from .table import composite
from .views import expand, squeeze

if TYPE_CHECKING:
    from ..tensor import Tensor


def _is_tensor(value: Any) -> bool:
    return isinstance(value, dispatch.hooks.tensor)


# ---- in place ----


@composite
def fill_(input: Tensor, value: Any) -> Tensor:
    """Fill in place. [*] -> [*]."""
    if _is_tensor(value):
        if value.ndim:
            raise ShapeError(f"fill_ expects a number or a 0-d tensor, got shape {list(value.shape)}\n  at {site()}")
        return copy_(input, value)
    dispatch.bind(creation.fill, (representable(value, input.dtype), input.shape, input.dtype), {}, out=input)
    return input


@composite
def copy_(input: Tensor, src: Any) -> Tensor:
    """Overwrite with src, broadcast and converted. [*] -> [*]."""
    source = src if _is_tensor(src) else tensor(src)
    dispatch.bind(pointwise.cast, (expand(source, input.shape), input.dtype), {}, out=input)
    return input


@composite
def add_(input: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:
    """In place: input += alpha * other."""
    dispatch.bind(pointwise.add, (input, _scaled(input, other, alpha)), {}, out=input)
    return input


@composite
def sub_(input: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:
    """In place: input -= alpha * other."""
    if other is input:
        other = other.clone()  # drivers fold x - x to 0 whatever x is
    dispatch.bind(pointwise.sub, (input, _subtracted(input, other, alpha)), {}, out=input)
    return input


@composite
def div_(input: Tensor, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    """In place: input /= other; rounding_mode 'floor' or 'trunc' rounds the quotient."""
    dispatch.bind(*_quotient(input, other, rounding_mode), {}, out=input)
    return input


@composite
def floor_divide_(input: Tensor, other: Any) -> Tensor:
    """In place: input //= other."""
    dispatch.bind(pointwise.floor_divide, (input, _divisor(input, other)), {}, out=input)
    return input


@composite
def remainder_(input: Tensor, other: Any) -> Tensor:
    """In place: input %= other."""
    dispatch.bind(pointwise.remainder, (input, _divisor(input, other)), {}, out=input)
    return input


@composite
def clamp_(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """In place: limit to [min, max]. [*] -> [*]."""
    dispatch.bind(pointwise.clamp_both, (input, *_bounds(input, min, max)), {}, out=input)
    return input


@composite
def masked_fill_(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    """In place: value where the mask holds. [*], [*] -> [*]."""
    dispatch.bind(pointwise.where, (mask, _filling(input, value), input), {}, out=input)
    return input


@composite
def pow_(input: Tensor, exponent: Any) -> Tensor:
    """In place: input to the power exponent. [*], [*] -> [*]."""
    dispatch.bind(pointwise.pow, (input, _power(input, exponent)), {}, out=input)
    return input


# ---- arithmetic ----


def _scaled(input: Any, other: Any, alpha: Any) -> Any:
    """alpha * other in the dtype of the result, which alpha does not decide."""
    if alpha.__class__ is int and alpha == 1:
        return other
    if not isinstance(alpha, (int, float, np.number)):
        raise DTypeError(f"alpha must be a number, got {alpha!r} ({type(alpha).__name__})\n  at {site()}")
    kind = common_dtype([getattr(x, "layout", x) for x in (input, other)])
    if isinstance(alpha, bool) and kind.kind != "b":
        raise DTypeError(f"alpha must be a number for a {kind.name} result, got {alpha}\n  at {site()}")
    if isinstance(alpha, float) and kind.kind != "f":
        raise DTypeError(f"alpha must be a whole number for a {kind.name} result, got {alpha}\n  at {site()}")
    if kind.kind == "b":
        alpha = bool(alpha)
    return (other.to(kind) if _is_tensor(other) else other) * alpha


def _subtracted(input: Any, other: Any, alpha: Any) -> Any:
    """_scaled, after the check that subtraction makes of its operands: a scaled bool is none any more."""
    if not (alpha.__class__ is int and alpha == 1):
        pointwise.check_no_bool(*(getattr(x, "layout", x) for x in (input, other)), where=site())
    return _scaled(input, other, alpha)


@composite
def add(input: Any, other: Any, *, alpha: Any = 1) -> Tensor:
    """input + alpha * other."""
    return pointwise.add(input, _scaled(input, other, alpha))  # type: ignore[no-any-return]


@composite
def sub(input: Any, other: Any, *, alpha: Any = 1) -> Tensor:
    """input - alpha * other."""
    return pointwise.sub(input, _subtracted(input, other, alpha))  # type: ignore[no-any-return]


@composite
def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    """input / other; rounding_mode 'floor' or 'trunc' rounds the quotient."""
    row, operands = _quotient(input, other, rounding_mode)
    return dispatch.bind(row, operands, {})  # type: ignore[no-any-return]


def _quotient(input: Any, other: Any, rounding_mode: str | None) -> tuple[Any, tuple[Any, Any]]:
    """The row of a rounding mode, and its operands."""
    if rounding_mode is None:
        return pointwise.div, (input, other)
    if rounding_mode not in ("floor", "trunc"):
        raise DTypeError(f"rounding_mode must be None, 'floor' or 'trunc', not {rounding_mode!r}\n  at {site()}")
    return pointwise.floored_quotient if rounding_mode == "floor" else pointwise.trunc_divide, (input, _divisor(input, other))


def _divisor(input: Any, other: Any) -> Any:
    """A divisor that is a number: integers cannot be divided by 0. (A 0 inside a tensor is not looked for.)"""
    if other.__class__ in (int, bool) and not other and not (_is_tensor(input) and input.is_floating_point()):
        raise DTypeError(f"integer division by zero of {input.layout if _is_tensor(input) else input}\n  at {site()}")
    return other


@composite
def floor_divide(input: Any, other: Any) -> Tensor:
    """The quotient rounded toward minus infinity. [*], [*] -> [*]."""
    return pointwise.floor_divide(input, _divisor(input, other))  # type: ignore[no-any-return]


@composite
def remainder(input: Any, other: Any) -> Tensor:
    """Python's modulus: the result has the sign of `other`. [*], [*] -> [*]."""
    return pointwise.remainder(input, _divisor(input, other))  # type: ignore[no-any-return]


def _power(input: Any, exponent: Any) -> Any:
    if isinstance(exponent, int) and exponent < 0 and not (_is_tensor(input) and input.is_floating_point()):
        raise DTypeError(
            f"integers to the negative power {exponent} are no integers ({input.layout if _is_tensor(input) else input}); "
            f"convert the base with .float()\n  at {site()}"
        )
    return exponent


# Powers that PyTorch computes another way: cheaper, and NaN for the roots of -inf.
_POWERS: dict[Any, Any] = {0.5: pointwise.sqrt, -0.5: pointwise.rsqrt, 2: lambda x: pointwise.mul(x, x)}


@composite
def pow(input: Any, exponent: Any) -> Tensor:
    """input to the power exponent; 0**0 is 1, a negative base with a fractional exponent NaN. [*], [*] -> [*]."""
    if exponent.__class__ in (int, float) and exponent in _POWERS and _is_tensor(input) and input.is_floating_point():
        return _POWERS[exponent](input)  # type: ignore[no-any-return]
    return pointwise.pow(input, _power(input, exponent))  # type: ignore[no-any-return]


@inplace
@composite
def square(input: Tensor) -> Tensor:
    """input * input. [*] -> [*]."""
    return pow(input, 2) if input.dtype.kind == "b" else pointwise.mul(input, input)


def _bounds(input: Tensor, min: Any, max: Any) -> tuple[Any, Any]:
    low: float
    high: float
    if min is None and max is None:
        raise ShapeError(f"clamp needs min or max\n  at {site()}")
    given = [getattr(x, "layout", x) for x in (input, min, max) if x is not None]
    kind = common_dtype(given)
    if kind.kind == "f":
        low, high = -math.inf, math.inf
    else:
        bits = 32 if kind.bits == 64 else kind.bits
        low, high = (0, 2**bits - 1) if kind.kind == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return low if min is None else min, high if max is None else max


@composite
def clamp(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """input limited to [min, max]; either may be None. [*] -> [*]."""
    return pointwise.clamp_both(input, *_bounds(input, min, max))  # type: ignore[no-any-return]


def _filling(input: Tensor, value: Any) -> Any:
    return value.to(input.dtype) if _is_tensor(value) else representable(value, input.dtype)


@composite
def masked_fill(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    """value where the mask holds. [*], [*] -> [*]."""
    return pointwise.where(mask, _filling(input, value), input)  # type: ignore[no-any-return]


# ---- reductions ----


@composite
def sum(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Sum; integers add up in int64 (over int32 storage), float16 in float32. [*] -> [*]."""
    if dtype is None:
        return reduce.sum(input, dim, keepdim)  # type: ignore[no-any-return]
    kind = as_dtype(dtype)
    return reduce.sum(input.to(kind), dim, keepdim).to(kind)  # type: ignore[no-any-return]


@composite
def mean(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Mean of floating point values; NaN of nothing. [*] -> [*]."""
    return reduce.mean(input if dtype is None else input.to(as_dtype(dtype)), dim, keepdim)  # type: ignore[no-any-return]


class Extreme(NamedTuple):
    """What max and min along a dimension return."""

    values: Any
    indices: Any


@composite
def max(input: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """The maximum of all elements; with an int dim (values, indices); with a tensor the elementwise maximum."""
    return _extreme(input, dim, keepdim, reduce.amax, reduce.argmax, pointwise.maximum)


@composite
def min(input: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """The minimum of all elements; with an int dim (values, indices); with a tensor the elementwise minimum."""
    return _extreme(input, dim, keepdim, reduce.amin, reduce.argmin, pointwise.minimum)


def _extreme(input: Tensor, dim: Any, keepdim: bool, value: Any, place: Any, pair: Any) -> Any:
    if _is_tensor(dim):
        return pair(input, dim)
    if dim is None:
        return value(input)
    at = place(input, dim, True)
    out = index.gather(input, dim, at) if input.ndim else input.clone()
    if not keepdim and input.ndim:
        out, at = squeeze(out, dim), squeeze(at, dim)
    return Extreme(out, at)
