"""The numbers of a call, as its kernels read them from a scalar block."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .pipelines import Step


def pack_scalars(step: Step, target: Any, offset: int, values: Sequence[Any]) -> None:
    """Write a call's numbers into a scalar block. Too large floats become infinite, integers wrap, as on the device."""
    pack = step.pack
    assert pack is not None
    chosen = step.chosen
    if chosen is not None:
        values = [values[i] for i in chosen]
    elif len(values) != step.scalar_count:
        values = values[: step.scalar_count]
    try:
        pack.pack_into(target, offset, *values)
    except (struct.error, OverflowError, TypeError):
        pack.pack_into(target, offset, *(_fit(v, f) for v, (_, f) in zip(values, step.launch.scalars, strict=True)))


def _fit(value: Any, form: str) -> float | int:
    """A number brought into the range of a 4-byte field."""
    if form == "f":
        number = float(value)
        try:
            struct.pack("<f", number)
        except OverflowError:
            return float("inf") if number > 0 else float("-inf")
        return number
    word = int(value) & 0xFFFFFFFF
    return word - (1 << 32) if form == "i" and word >= 1 << 31 else word
