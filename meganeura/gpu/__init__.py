"""The GPU: adapters, memory, pipelines, recording, transfers, replay, timing.

In: Lowered kernels (kernels/kernel.py), buffers, bytes. Out: bytes, and errors with the op's name and the user's line.
Must not know ops, tensors, tapes or graphs; the rest of the package must not know which WebGPU backend runs below.
"""

from __future__ import annotations

from .device import Counters, Device, Memory, adapters, current, use_device
from .pipelines import Prepared, Step
from .pool import Buffer

__all__ = ["Buffer", "Counters", "Device", "Memory", "Prepared", "Step", "adapters", "current", "use_device"]
