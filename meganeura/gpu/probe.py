"""What a device must be asked by running something: how many lanes its subgroups have."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from ..kernels.kernel import Kernel, Launch, Lowered, Profile

if TYPE_CHECKING:
    from .device import Device

_BODY = """
@group(0) @binding(0) var<storage, read_write> sizes: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(subgroup_size) size: u32, @builtin(local_invocation_index) i: u32, @builtin(workgroup_id) w: vec3<u32>) {
  sizes[w.x * 64u + i] = size;
}
"""


def _source(profile: Profile) -> str:
    return ("enable subgroups;\n" if profile.backend == "dawn" else "") + _BODY


def subgroup_size(device: Device) -> int:
    """Lanes a subgroup of four workgroups of 64; 0 if they differ."""
    kernel = Kernel(("probe", "subgroup"), _source, ("read_write",), "probe subgroup size", params=False)
    prepared = device.prepare(Lowered((Launch(kernel, (0,), (4, 1, 1)),)))
    buffer = device.alloc(1024)
    device.record(prepared, [buffer], (), None, "probe")
    found = set(struct.unpack("<256I", device.read(buffer, 0, 1024)))
    device.free(buffer)
    return found.pop() if len(found) == 1 else 0
