"""Kernels: from a Call (op row + layouts) and a device Profile to WGSL launches. Touches no device.

In: kernel.Call, kernel.Profile. Out: kernel.Lowered. One module an archetype, each with `lower(call, profile)`.
Must not know tensors, tapes, traces or the gpu package.
"""

from __future__ import annotations

from importlib import import_module

from ..errors import DeviceError
from .kernel import Call, Lowered, Profile

_MODULES = {
    "Pointwise": "pointwise",
    "Chain": "pointwise",
    "Reduce": "reduce",
    "Row": "row",
    "Matmul": "matmul",
    "Update": "update",
}
_NAMED = {"cat": "move", "pad": "move", "index_select": "index", "gather": "index", "segment_sum": "index", "sort": "index"}


def lower(call: Call, profile: Profile) -> Lowered:
    """Choose kernels for a call on a device of this profile."""
    kind = type(call.op.archetype).__name__
    module = _NAMED.get(getattr(call.op.archetype, "name", ""), "") if kind == "Kernel" else _MODULES.get(kind, "")
    if not module:
        raise DeviceError(f"op {call.op.name} has no kernel (archetype {kind})")
    return import_module(f".{module}", __name__).lower(call, profile)  # type: ignore[no-any-return]
