"""Functions of complex numbers as they act on real ones, the only ones here: `real`, `conj` and the like return their input."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .archetype import Pointwise
from .pointwise import _nothing
from .table import composite, op

if TYPE_CHECKING:
    from ..tensor import Tensor


@composite
def is_conj(input: Tensor) -> bool:
    """False: there are no complex numbers. [*] -> bool."""
    return False


@composite
def is_neg(input: Tensor) -> bool:
    """False: negation is always carried out. [*] -> bool."""
    return False


@op(
    Pointwise("select(select(0.0, 3.14159265, {input} < 0.0), {input}, is_nan({input}))", "float"),
    ref=lambda input: np.where(np.isnan(input), np.nan, np.where(input < 0, math.pi, 0.0)),
    grad={"input": _nothing},
)
def angle(input: Tensor) -> Tensor:
    """pi below 0, else 0; NaN stays NaN. [*] -> [*]."""


def _itself(name: str) -> None:
    def fn(input: Tensor) -> Any:
        return input

    fn.__name__, fn.__doc__ = name, "input itself: there are no complex numbers. [*] -> [*]."
    composite(method=name != "real")(fn)


for _name in ("conj", "conj_physical", "real", "resolve_conj", "resolve_neg"):
    _itself(_name)
