"""Kernels: from a Call (op row + layouts) and a device Profile to WGSL launches. Touches no device.

In: kernel.Call, kernel.Profile. Out: kernel.Lowered. One module an archetype, each with `lower(call, profile)`.
Must not know tensors, tapes, traces or the gpu package.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module

from ..errors import DeviceError
from ..storage import Layout
from .kernel import Call, Launch, Lowered, Profile
from .parts import parts

_MODULES = {
    "Pointwise": "pointwise",
    "Chain": "pointwise",
    "Reduce": "reduce",
    "Beside": "beside",
    "Scan": "scan",
    "Row": "row",
    "Matmul": "matmul",
    "Conv": "conv",
    "Update": "update",
}
_NAMED = {
    "attention": "attention",
    "attention_grad": "attention",
    "rotary": "rotary",
    "cache_write": "rotary",
    "tensor_norms": "norms",
    "cat": "move",
    "pad": "move",
    "index_select": "index",
    "gather": "index",
    "segment_sum": "index",
    "sort": "sort_rows",
    "top": "topk",
    "rank": "topk",
    "recurrence": "recurrent",
    "ctc": "ctc",
    "searchsorted": "sort_search",
    "window": "pool",
}


def lower(call: Call, profile: Profile) -> Lowered:
    """Choose kernels for a call on a device of this profile."""
    kind = type(call.op.archetype).__name__
    module = _NAMED.get(getattr(call.op.archetype, "name", ""), "") if kind == "Kernel" else _MODULES.get(kind, "")
    if not module:
        raise DeviceError(f"op {call.op.name} has no kernel (archetype {kind})")
    kernels, pieces = import_module(f".{module}", __name__), parts(call, profile)
    made = [kernels.lower(piece, profile) for piece in pieces]
    for piece, lowered in zip(pieces, made, strict=True):
        _check_reach(piece, lowered, profile)
    return replace(made[0] if len(made) == 1 else _joined(made), call=call)


def _joined(made: Sequence[Lowered]) -> Lowered:
    """All launches, one after another, with temporaries of their own."""
    launches: list[Launch] = []
    temps: list[int] = []
    for lowered in made:
        n = len(temps)
        launches += [replace(x, bindings=tuple(b - n if b < 0 else b for b in x.bindings)) for x in lowered.launches]
        temps += lowered.temps
    return Lowered(tuple(launches), tuple(temps))


def _check_reach(call: Call, lowered: Lowered, profile: Profile) -> None:
    """A launch without ranges binds each storage from its start, as far as one binding goes: nothing may lie beyond."""
    operands: list[Layout | None] = [*call.inputs, *call.outputs]
    far = {i for i, x in enumerate(operands) if x is not None and (x.span()[1] + 1) * x.dtype.itemsize > profile.max_binding}
    if not far and all(n <= profile.max_binding for n in lowered.temps):
        return
    far |= {-1 - i for i, n in enumerate(lowered.temps) if n > profile.max_binding}
    roots = {call.alias[i] if call.alias and i >= 0 else i for i in far}
    for launch in lowered.launches:
        bound = {call.alias[i] if call.alias and 0 <= i < len(call.alias) else i for i in launch.bindings}
        if launch.ranges is None and bound & roots:
            whole = [((x.span()[1] + 1) * x.dtype.itemsize, repr(x)) for x in operands if x is not None]
            size, what = max([*whole, *((n, "a temporary") for n in lowered.temps)])
            raise DeviceError(
                f"{call.op.name} must bind {size} bytes of one tensor ({what}), but the limit is {profile.max_binding} bytes; "
                "use smaller tensors"
            )
