"""Combinations of three tensors: addcmul, addcdiv, lerp. Shapes broadcast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..dtype import bool_
from ..errors import DTypeError
from ..provenance import site
from ..shape import broadcast_shapes
from ..storage import Layout
from .archetype import Pointwise
from .arithmetic import add
from .infer import common_dtype
from .inplace import inplace
from .pointwise import mul
from .samples import with_numbers
from .table import Inferred, Operand, Scalar, Spec, composite, op

if TYPE_CHECKING:
    from ..tensor import Tensor


@op(
    Pointwise({"f": "{input} + {value} * {tensor1} * {tensor2}"}),
    ref=lambda input, tensor1, tensor2, value: input + value * tensor1 * tensor2,
    public=False,
    torch=None,
    samples=with_numbers(0.75, arrays=3),
    grad={
        "input": lambda grad: grad,
        "tensor1": lambda grad, tensor2, value: grad * tensor2 * value,
        "tensor2": lambda grad, tensor1, value: grad * tensor1 * value,
    },
    shown="addcmul",
)
def add_product(input: Tensor, tensor1: Tensor, tensor2: Tensor, value: Scalar) -> Tensor:
    """input + value * tensor1 * tensor2. [*], [*], [*] -> [*]."""


def _quotient_rule(input: Layout, tensor1: Layout, tensor2: Layout, value: float) -> Inferred:
    common = common_dtype([input, tensor1, tensor2])
    if not common_dtype([tensor1, tensor2]).is_floating_point:
        raise DTypeError(f"addcdiv divides no integers ({tensor1}, {tensor2}); convert them with .float(), or see div's rounding_mode")
    shape = broadcast_shapes(input.shape, tensor1.shape, tensor2.shape)
    return Inferred((Spec(common, shape),), (common, common, common), {})


@op(
    Pointwise({"f": "{input} + {value} * ({tensor1} / {tensor2})"}),
    rule=_quotient_rule,
    ref=lambda input, tensor1, tensor2, value: input + value * (tensor1 / tensor2),
    public=False,
    torch=None,
    samples=with_numbers(0.75, arrays=3, low=0.3, high=3.0),
    grad={
        "input": lambda grad: grad,
        "tensor1": lambda grad, tensor2, value: grad * value / tensor2,
        "tensor2": lambda grad, tensor1, tensor2, value: grad * (tensor1 / (tensor2 * tensor2)) * value * -1.0,
    },
    shown="addcdiv",
)
def add_quotient(input: Tensor, tensor1: Tensor, tensor2: Tensor, value: Scalar) -> Tensor:
    """input + value * tensor1 / tensor2. [*], [*], [*] -> [*]."""


@inplace
@composite
def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Any = 1) -> Tensor:
    """input + value * tensor1 * tensor2. [*], [*], [*] -> [*]."""
    kind = common_dtype([t.layout for t in (input, tensor1, tensor2)])
    if kind.is_floating_point:
        return add_product(input, tensor1, tensor2, value)  # type: ignore[no-any-return]
    if kind is bool_:
        raise DTypeError(f"addcmul is not defined for bools ({input.layout})\n  at {site()}")
    return add(input, mul(tensor1, tensor2), alpha=int(value))


@inplace
@composite
def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Any = 1) -> Tensor:
    """input + value * tensor1 / tensor2. [*], [*], [*] -> [*]."""
    return add_quotient(input, tensor1, tensor2, value)  # type: ignore[no-any-return]


def _lerp_rule(input: Layout, end: Layout, weight: Any) -> Inferred:
    kind = input.dtype
    if not kind.is_floating_point:
        raise DTypeError(f"lerp takes floating point tensors, got {input}")
    for name, x in (("end", end), ("weight", weight)):
        if isinstance(x, Layout) and x.dtype is not kind:
            raise DTypeError(f"lerp: expected dtype {kind.name} for {name}, got {x}")
    shape = broadcast_shapes(*(x.shape for x in (input, end, weight) if isinstance(x, Layout)))
    return Inferred((Spec(kind, shape),), (kind, kind, kind), {})


def _lerp_ref(input: Any, end: Any, weight: Any) -> Any:
    return np.where(np.abs(weight) < 0.5, input + weight * (end - input), end - (end - input) * (1 - weight))


@op(
    Pointwise("select({end} - ({end} - {input}) * (1.0 - {weight}), {input} + {weight} * ({end} - {input}), abs({weight}) < 0.5)"),
    rule=_lerp_rule,
    ref=_lerp_ref,
    samples=with_numbers(arrays=3, low=0.1, high=0.9),
    grad={
        "input": lambda grad, weight: grad * (1.0 - weight),
        "end": lambda grad, weight: grad * weight,
        "weight": lambda grad, input, end: grad * (end - input),
    },
)
def lerp(input: Tensor, end: Tensor, weight: Operand) -> Tensor:
    """input + weight * (end - input). [*], [*], [*] -> [*]."""
