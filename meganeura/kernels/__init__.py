"""Kernels: from a Call (op row + layouts) and a device Profile to WGSL launches. Touches no device.

In: kernel.Call, kernel.Profile. Out: kernel.Lowered. One module an archetype, each with `lower(call, profile)`.
Must not know tensors, tapes, traces or the gpu package.
"""

from __future__ import annotations

from importlib import import_module

from ..errors import DeviceError
from ..storage import Layout
from .kernel import Call, Lowered, Profile

_MODULES = {
    "Pointwise": "pointwise",
    "Chain": "pointwise",
    "Reduce": "reduce",
    "Scan": "scan",
    "Row": "row",
    "Matmul": "matmul",
    "Update": "update",
}
_NAMED = {
    "tensor_norms": "norms",
    "cat": "move",
    "pad": "move",
    "index_select": "index",
    "gather": "index",
    "segment_sum": "index",
    "sort": "sort_rows",
    "searchsorted": "sort_search",
}


def lower(call: Call, profile: Profile) -> Lowered:
    """Choose kernels for a call on a device of this profile."""
    kind = type(call.op.archetype).__name__
    module = _NAMED.get(getattr(call.op.archetype, "name", ""), "") if kind == "Kernel" else _MODULES.get(kind, "")
    if not module:
        raise DeviceError(f"op {call.op.name} has no kernel (archetype {kind})")
    lowered: Lowered = import_module(f".{module}", __name__).lower(call, profile)
    _check_reach(call, lowered, profile)
    return lowered


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
            raise DeviceError(
                f"{call.op.name} reaches beyond the {profile.max_binding} bytes that one binding shows on this device "
                f"({', '.join(repr(x) for x in operands if x is not None)}); use smaller tensors"
            )
