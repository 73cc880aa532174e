"""Attention and its gradient: which kernels do it, on which device.

In: a Call of Kernel 'attention' or 'attention_grad'. Out: one launch, or one for each part of the keys and one that combines
them (attention_cpu, attention_gpu); gradients on GPUs are two launches (attention_grad). What does not fit a device's
workgroup memory or has no kernel there goes through scores in memory (attention_parts).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ..storage import Layout
from . import attention_cpu, attention_gpu, attention_grad, attention_parts, pointwise
from . import template as T
from .attention_problem import find
from .kernel import Call, Launch, Lowered, Profile

if TYPE_CHECKING:
    from ..ops.table import Op


class _Fill:
    """Stands for the op of a fill that no op row asked for."""

    archetype = None

    def __repr__(self) -> str:
        return "<fill>"


_FILL = cast("Op", _Fill())


def lower(call: Call, profile: Profile) -> Lowered:
    """Launches for one call."""
    p, operands = find(call)
    backward = getattr(call.op.archetype, "name", "") == "attention_grad"
    if not (p.batch and p.heads and p.rows and p.keys and p.width):
        return Lowered(tuple(x for j, out in enumerate(call.outputs) for x in _fill(out, len(call.inputs) + j, j, backward, profile)))
    family = profile.family
    made: Lowered | None = None
    if backward:
        made = attention_grad.lower(p, operands, profile) if family == "gpu" else None
        return made or attention_parts.backward(p, operands, profile)
    if family == "gpu":
        made = attention_gpu.lower(p, operands, profile)
    elif T.lanes(profile) == attention_cpu.LANES:
        made = attention_cpu.lower(p, operands, profile)
    return made or attention_parts.forward(p, operands, profile)


def _fill(out: Layout, number: int, position: int, backward: bool, profile: Profile) -> tuple[Launch, ...]:
    """Results without any key or query: zeros, and the log of an empty sum."""
    value = "-inf()" if position == 1 and not backward else "0.0"
    call = Call(_FILL, (), (), (out,), ())
    made = pointwise.launches(call, (("result", "f32", value),), ("result",), profile)
    return tuple(_at(x, number) for x in made)


def _at(launch: Launch, number: int) -> Launch:
    return replace(launch, bindings=tuple(number for _ in launch.bindings))
