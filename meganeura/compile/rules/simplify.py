"""Algebra: ops that change nothing, and ops that undo one another. All keep the values, NaN and infinities included, but for
the sign of a zero where a rule says so. Reassociation, x * 0 and the like would change results, and are not here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...dtype import DType, bfloat16, float16, float32
from ...ops.pointwise import cast, clone, logical_not, neg, relu, where
from ..rule import Dtype, Rule, rule

if TYPE_CHECKING:
    from ...tensor import Tensor

Pair = tuple[Any, Any]


@rule(exact=True)
def copy_of_what_is_only_read(x: Tensor) -> Pair:
    return clone(x), x


# ---- numbers that do nothing ----


@rule  # -0 + 0 is +0; Python's sum() starts from 0
def plus_zero(x: Tensor) -> Pair:
    return x + 0, x


@rule(exact=True)
def minus_zero(x: Tensor) -> Pair:
    return x - 0, x


@rule(exact=True)
def times_one(x: Tensor) -> Pair:
    return x * 1, x


@rule(exact=True)
def over_one(x: Tensor) -> Pair:
    return x / 1, x


# ---- ops that undo or repeat one another ----


def _signed(x: Any) -> bool:
    """Whether a dtype has the negative of every number: -x of uint8 wraps."""
    return x.dtype.kind in "fi"


def _same_ring(x: Any, y: Any) -> bool:
    """Whether -y is worth the same where x and y meet: integers wrap in their own dtype, before a wider one takes them."""
    return x.dtype is y.dtype or y.dtype.kind == "f"


def _both_ways(x: Any, y: Any) -> bool:
    return _same_ring(x, y) and _same_ring(y, x)


@rule(exact=True)
def negated_twice(x: Tensor) -> Pair:
    return neg(neg(x)), x


@rule(exact=True, guard=_same_ring)
def plus_negated(x: Tensor, y: Tensor) -> Pair:
    return x + (-y), x - y


@rule(exact=True, guard=_same_ring)
def minus_negated(x: Tensor, y: Tensor) -> Pair:
    return x - (-y), x + y


@rule(exact=True, guard=_both_ways)
def negated_times_negated(x: Tensor, y: Tensor) -> Pair:
    return (-x) * (-y), x * y


@rule(exact=True, guard=_signed)
def absolute_of_negated(x: Tensor) -> Pair:
    return neg(x).abs(), x.abs()


@rule(exact=True)
def absolute_twice(x: Tensor) -> Pair:
    return x.abs().abs(), x.abs()


@rule(exact=True)
def relu_twice(x: Tensor) -> Pair:
    return relu(relu(x)), relu(x)


@rule(exact=True, guard=lambda x: x.dtype.kind == "b")
def not_twice(x: Tensor) -> Pair:
    return logical_not(logical_not(x)), x


@rule(exact=True, shapes={"condition": lambda shape: shape})
def where_of_equals(condition: Tensor, x: Tensor) -> Pair:
    return where(condition > 0, x, x), x


# ---- dtypes ----

_WIDER: dict[DType, tuple[DType, ...]] = {float16: (float32,), bfloat16: (float32,)}


def _keeps(source: DType, between: DType) -> bool:
    """Whether a dtype holds every value of another."""
    return source is between or between in _WIDER.get(source, ()) or (source.kind == "b" and between.kind != "b")


@rule(exact=True, guard=lambda x, between, dtype: _keeps(x.dtype, between))
def cast_through_wider(x: Tensor, *, between: Dtype, dtype: Dtype) -> Pair:
    return cast(cast(x, between), dtype), x.to(dtype)


RULES: tuple[Rule, ...] = tuple(r for r in list(globals().values()) if isinstance(r, Rule))
