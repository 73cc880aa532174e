"""A device that checks limits and consistency and runs nothing: golden tests of WGSL and plans need no GPU.

It has Device's interface. Buffers hold what was written to them; `log` lists what would have run.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from ..config import Config
from ..errors import DeviceError, OutOfMemoryError
from ..kernels.kernel import Kernel, Launch, Lowered, Profile
from .device import Counters, Faults, Memory
from .pipelines import Pipeline, Prepared, Step, check_launch
from .pool import Buffer, Pool
from .recorder import check_buffers
from .scalars import pack_scalars

_MAX_BUFFER = 1 << 31


class Entry:
    """One dispatch that would have run."""

    __slots__ = ("buffers", "grid", "label", "op", "params", "scalars")

    def __init__(self, op: str, step: Step, buffers: tuple[Buffer, ...], scalars: bytes) -> None:
        self.op, self.label, self.grid = op, step.label, step.grid
        self.params, self.scalars = step.launch.params, scalars
        self.buffers = tuple(b.uid for b in buffers)

    def __repr__(self) -> str:
        return f"{self.op or '-'}: {self.label} {self.grid} on {self.buffers}"


class NullDevice:
    """Everything of Device except results. `sources` maps a kernel's key to its WGSL."""

    backend = "null"
    name = "Null"
    lost: str | None = None

    def __init__(self, profile: Profile | None = None, config: Config | None = None) -> None:
        self.profile = profile or Profile()
        self.config = config or Config()
        self.family = self.profile.family
        self.info: dict[str, Any] = {"device": "Null", "adapter_type": "Null", "backend_type": "Null", "vendor": self.profile.vendor}
        self.limits = {
            "max-compute-workgroups-per-dimension": self.profile.max_groups,
            "max-storage-buffers-per-shader-stage": self.profile.max_storage_buffers,
            "max-storage-buffer-binding-size": self.profile.max_binding,
            "max-buffer-size": _MAX_BUFFER,
        }
        self.max_binding = self.profile.max_binding & ~15
        self.lock = threading.RLock()
        self.graveyard: deque[Buffer] = deque()
        self.counters, self.faults = Counters(), Faults()
        self.pool = Pool(self._create, lambda b: setattr(b, "handle", None), 1 << 40, self.max_binding)
        self.sources: dict[Any, str] = {}
        self.log: list[Entry] = []
        self._status = self.pool.take(256, -1, False)

    def _create(self, size: int) -> Buffer:
        if size > _MAX_BUFFER:
            raise OutOfMemoryError(f"a buffer of {size} bytes is larger than {self.name} allows ({_MAX_BUFFER} bytes)")
        self.counters.buffers += 1
        return Buffer(self, b"", size, self.counters.buffers)

    def alloc(self, nbytes: int, idle: bool = False) -> Buffer:
        """A buffer; its bytes read as zero until written."""
        self.drain()
        return self.pool.take(nbytes, 0, idle)

    def free(self, buffer: Buffer) -> None:
        self.pool.give(buffer)

    def drain(self) -> None:
        while self.graveyard:
            self.pool.give(self.graveyard.popleft())

    def _pipeline(self, kernel: Kernel) -> Pipeline:
        if kernel.key not in self.sources:
            source = self.sources[kernel.key] = kernel.source(self.profile)
            if "fn main" not in source:
                raise DeviceError(f"kernel {kernel.label}: no entry point main")
            self.counters.pipelines += 1
        return Pipeline(kernel, None, None, ())

    def prepare(self, lowered: Lowered) -> Prepared:
        """Check a Lowered and make its sources."""
        for launch in lowered.launches:
            if any(b < 0 and -1 - b >= len(lowered.temps) for b in launch.bindings):
                raise DeviceError(f"kernel {launch.kernel.label}: bindings {launch.bindings} name a temporary beyond {len(lowered.temps)}")
        return Prepared(tuple(self.step(launch, len(lowered.temps)) for launch in lowered.launches), lowered.temps)

    def prepare_all(self, many: Sequence[Lowered]) -> list[Prepared]:
        return [self.prepare(lowered) for lowered in many]

    def step(self, launch: Launch, temps: int = 0) -> Step:
        check_launch(launch, self.limits)
        return Step(launch, self._pipeline(launch.kernel), None, temps)

    def record(
        self, prepared: Prepared, buffers: Sequence[Buffer | None], scalars: Sequence[Any] = (), site: Any = None, op_name: str = ""
    ) -> None:
        """Check what would be recorded and log it."""
        temps = [self.alloc(n) for n in prepared.temps]
        operands = [*buffers, self._status, *reversed(temps)]
        for step in prepared.steps:
            key = step.pick(operands)
            bound = key if isinstance(key, tuple) else (key,)
            check_buffers(self, step, bound, op_name, site)
            block = bytearray(4 * step.scalar_count)
            if step.pack is not None:
                pack_scalars(step, block, 0, [*scalars, 1] if step.numbered else scalars)
            self.log.append(Entry(op_name, step, bound, bytes(block)))
            self.counters.dispatches += 1
        for t in temps:
            self.free(t)

    def write(self, buffer: Buffer, offset: int, data: Any) -> None:
        raw = bytes(data)
        if offset % 4 or offset + len(raw) > buffer.size:
            raise DeviceError(f"upload of bytes {offset}..{offset + len(raw)} of a buffer of {buffer.size} bytes")
        held = bytearray(buffer.handle.ljust(offset + len(raw), b"\0"))
        held[offset : offset + len(raw)] = raw
        buffer.handle = bytes(held)
        self.counters.uploads += 1

    def read(self, buffer: Buffer, offset: int = 0, nbytes: int | None = None) -> memoryview:
        nbytes = buffer.size - offset if nbytes is None else nbytes
        return memoryview(bytearray(buffer.handle[offset : offset + nbytes].ljust(nbytes, b"\0")))

    def flush(self) -> None:
        self.counters.submits += 1

    def synchronize(self) -> None:
        self.flush()

    def memory(self) -> Memory:
        p = self.pool
        return Memory(p.live, p.pooled, p.peak, p.count, 0, len(self.sources), 0)
