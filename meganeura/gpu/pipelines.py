"""From Lowered to Prepared: pipelines with explicit layouts, uniforms by content, and checks that need no buffers.

A pipeline is keyed by its kernel's key alone, a uniform by its bytes. Both outlive the calls that asked for them; a
uniform that nothing references any more stays for a while in a bounded list, because shapes tend to come back.
"""

from __future__ import annotations

import re
import struct
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DeviceError
from ..kernels.kernel import STATUS, Call, Kernel, Launch, Lowered
from ..spans import span
from . import native as raw

if TYPE_CHECKING:
    from .device import Device

SCALAR_BLOCK = 256  # bytes a dispatch's scalars may take; also the dynamic offset's alignment
MAX_BINDINGS = 64


class Pipeline:
    """A compute pipeline, its bind group layout and the objects that keep both alive."""

    __slots__ = ("handle", "keep", "kernel", "layout")

    def __init__(self, kernel: Kernel, handle: Any, layout: Any, keep: tuple[Any, ...]) -> None:
        self.kernel, self.handle, self.layout, self.keep = kernel, handle, layout, keep


class Uniform:
    """An immutable uniform buffer with one content. Its memory goes back when the last reference drops."""

    __slots__ = ("__weakref__", "bury", "handle", "size")

    def __init__(self, handle: Any, size: int, bury: Callable[[Any], None]) -> None:
        self.handle, self.size, self.bury = handle, size, bury

    def __del__(self) -> None:
        self.bury(self.handle)


class Step:
    """One launch made ready: what the recorder needs and nothing it must compute again.

    `pick(operands)` gives the bound buffers in binding order (a lone one bare), which is the key of `groups`, the step's
    bind groups. Operands are the call's buffers, then the status buffer, then the temporaries backwards, so that the
    negative numbers of temporaries count from the end.
    """

    __slots__ = (
        "__weakref__",
        "call",
        "chosen",
        "grid",
        "groups",
        "label",
        "launch",
        "numbered",
        "pack",
        "part",
        "pick",
        "pipeline",
        "ranges",
        "scalar_count",
        "status",
        "uniform",
        "writes",
    )

    def __init__(self, launch: Launch, pipeline: Pipeline, uniform: Uniform | None, temps: int = 0) -> None:
        kernel = launch.kernel
        self.call: Call | None = None  # what it is for, and which of that call's launches it is
        self.part = 0
        self.launch, self.pipeline, self.uniform = launch, pipeline, uniform
        self.label = kernel.label or str(kernel.key[0])
        self.grid = launch.grid
        self.groups: dict[Any, Any] = {}
        self.ranges = launch.ranges
        self.status = STATUS in launch.bindings
        self.pick = itemgetter(*(-1 - temps if b == STATUS else b for b in launch.bindings))
        self.writes = tuple(i for i, a in enumerate(kernel.access) if a != "read")
        self.pack = struct.Struct("<" + "".join(f for _, f in launch.scalars)) if launch.scalars else None
        numbers = [i for i, _ in launch.scalars]
        self.numbered = -1 in numbers
        self.chosen = None if numbers == list(range(len(numbers))) else numbers
        self.scalar_count = len(numbers)


class Prepared:
    """A Lowered bound to a device: its steps, its temporaries, and `simple`, whether it is one step on operands only."""

    __slots__ = ("__weakref__", "simple", "steps", "temps")

    def __init__(self, steps: tuple[Step, ...], temps: tuple[int, ...]) -> None:
        self.steps, self.temps = steps, temps
        self.simple = len(steps) == 1 and not temps and not steps[0].status


def shader_error(kernel: Kernel, source: str, error: Exception) -> DeviceError:
    """What the shader compiler said, with the kernel's label and the line it points at."""
    message = str(error).strip()
    where = re.search(r":(\d+):\d+", message)
    lines = source.splitlines()
    shown = ""
    if where and 1 <= int(where[1]) <= len(lines):
        shown = f"\n  line {where[1]}: {lines[int(where[1]) - 1].strip()}"
    return DeviceError(f"kernel {kernel.label or kernel.key} was refused by the shader compiler{shown}\n{message}")


def check_launch(launch: Launch, limits: dict[str, int]) -> None:
    """Raise DeviceError for what a launch alone shows to be wrong: counts, grid, parameters, scalars, ranges."""
    k = launch.kernel
    name = k.label or k.key
    n = len(launch.bindings)
    most = limits["max-compute-workgroups-per-dimension"]
    if len(k.access) != n:
        raise DeviceError(f"kernel {name}: {n} bindings for {len(k.access)} declared accesses")
    if n > min(limits["max-storage-buffers-per-shader-stage"], MAX_BINDINGS - 1):
        raise DeviceError(f"kernel {name} binds {n} storage buffers; this device allows {limits['max-storage-buffers-per-shader-stage']}")
    if not all(1 <= g <= most for g in launch.grid):
        raise DeviceError(f"kernel {name}: grid {launch.grid} is outside 1..{most} workgroups a dimension")
    if bool(launch.params) != k.params or len(launch.params) % 16 or len(launch.params) > 65536:
        raise DeviceError(f"kernel {name}: {len(launch.params)} bytes of parameters (declared: {k.params}; multiples of 16 up to 65536)")
    if bool(launch.scalars) != k.scalars or 4 * len(launch.scalars) > SCALAR_BLOCK:
        raise DeviceError(f"kernel {name}: {len(launch.scalars)} scalars (declared: {k.scalars}; at most {SCALAR_BLOCK // 4})")
    if launch.ranges is not None:
        _check_ranges(launch, limits["max-storage-buffer-binding-size"])


def _check_ranges(launch: Launch, limit: int) -> None:
    if launch.ranges is None or len(launch.ranges) != len(launch.bindings):
        raise DeviceError(f"kernel {launch.kernel.label}: one range a binding is needed")
    for offset, size in launch.ranges:
        if offset % 256 or size % 4 or size < 4 or offset < 0:
            raise DeviceError(f"kernel {launch.kernel.label}: range ({offset}, {size}) is not aligned to 256 and 4 bytes")
        if size > limit:
            raise DeviceError(f"kernel {launch.kernel.label} binds {size} bytes; this device binds at most {limit}")


class Pipelines:
    """The pipelines, bind group layouts and uniforms of one device. Called under its lock."""

    def __init__(self, device: Device, uniforms: int = 2048) -> None:
        self.device = device
        self.pipelines: dict[Any, Pipeline] = {}
        self.layouts: dict[Any, Any] = {}
        self.uniforms: weakref.WeakValueDictionary[bytes, Uniform] = weakref.WeakValueDictionary()
        self.recent: OrderedDict[bytes, Uniform] = OrderedDict()
        self.most_recent = uniforms
        self.scalar_layout = self._group_layout([{"type": "uniform", "has_dynamic_offset": True}])

    def prepare(self, lowered: Lowered) -> Prepared:
        """Everything a Lowered needs; raises DeviceError and keeps nothing of a pipeline that failed."""
        for launch in lowered.launches:
            if any(b < 0 and -1 - b >= len(lowered.temps) for b in launch.bindings):
                raise DeviceError(f"kernel {launch.kernel.label}: bindings {launch.bindings} name a temporary beyond {len(lowered.temps)}")
        steps = tuple(self.step(launch, len(lowered.temps)) for launch in lowered.launches)
        for i, step in enumerate(steps):
            step.call, step.part = lowered.call, i
        return Prepared(steps, lowered.temps)

    def step(self, launch: Launch, temps: int = 0) -> Step:
        """One launch made ready."""
        if not self.device.faults.skip_checks:
            check_launch(launch, self.device.limits)
        return Step(launch, self.pipeline(launch.kernel), self.uniform(launch.params) if launch.params else None, temps)

    def uniform(self, content: bytes) -> Uniform:
        """The uniform buffer with this content."""
        found = self.uniforms.get(content)
        if found is None:
            device = self.device
            handle = device.native.create_buffer(device.handle, len(content), raw.UNIFORM_USAGE)
            device.native.write(device.queue, handle, 0, content, len(content))
            found = self.uniforms[content] = Uniform(handle, len(content), device.graves.append)
            device.counters.buffers += 1
        self.recent[content] = found
        self.recent.move_to_end(content)
        if len(self.recent) > self.most_recent:
            self.recent.popitem(last=False)
        return found

    def pipeline(self, kernel: Kernel) -> Pipeline:
        """The pipeline of a kernel, built when first asked for."""
        found = self.pipelines.get(kernel.key)
        if found is None:
            with span("pipeline", kernel.label):
                found = self.pipelines[kernel.key] = self._build(kernel)
            self.device.counters.pipelines += 1
        return found

    def build_all(self, kernels: Iterable[Kernel], workers: int = 8) -> None:
        """Build many pipelines at once: shader compilers run outside the interpreter lock. Keeps those that succeed."""
        missing = {k.key: k for k in kernels if k.key not in self.pipelines}
        if self.device.native.backend == "dawn":
            self._build_promised(list(missing.values()))
            return
        from concurrent.futures import ThreadPoolExecutor  # 10 ms of import that only compiled sessions need

        for k in missing.values():
            self._layout(k)
        first = None
        with ThreadPoolExecutor(workers, thread_name_prefix="meganeura-pipelines") as pool:
            futures = {key: pool.submit(self._build, k) for key, k in missing.items()}
        for key, future in futures.items():
            if (error := future.exception()) is not None:
                first = first or error
                continue
            self.pipelines[key] = future.result()
            self.device.counters.pipelines += 1
        if first is not None:
            raise first

    def _build_promised(self, kernels: list[Kernel]) -> None:
        """Dawn's objects belong to one thread at a time, but it compiles promised pipelines on threads of its own."""
        first: Exception | None = None
        started = []
        for k in kernels:
            try:
                source, compute, layout = self._parts(k)
                make = self.device.wgpu.create_compute_pipeline_async
                started.append((k, source, make(label=k.label, layout=layout, compute=compute)))
            except DeviceError as error:
                first = first or error
        for k, source, promise in started:
            try:
                self.pipelines[k.key] = self._pipeline(k, promise.sync_wait())
                self.device.counters.pipelines += 1
            except Exception as error:  # a promise fails with whatever the package chose
                first = first or shader_error(k, source, error)
        if first is not None:
            raise first

    def _group_layout(self, buffers: list[dict[str, Any]]) -> Any:
        entries = [{"binding": i, "visibility": 4, "buffer": b} for i, b in enumerate(buffers)]
        return self.device.wgpu.create_bind_group_layout(entries=entries)

    def probe_layout(self) -> Any:
        """A bind group layout of one storage buffer."""
        if "probe" not in self.layouts:
            self.layouts["probe"] = self._group_layout([{"type": "read-only-storage"}])
        return raw.handle_of(self.layouts["probe"])

    def _layout(self, kernel: Kernel) -> tuple[Any, Any]:
        """(bind group layout, pipeline layout) of a kernel's interface; kernels with equal interfaces share them."""
        key = (kernel.access, kernel.params, kernel.scalars)
        if key not in self.layouts:
            buffers = [{"type": "read-only-storage" if a == "read" else "storage"} for a in kernel.access]
            if kernel.params:
                buffers.append({"type": "uniform"})
            group = self._group_layout(buffers)
            groups = [group, self.scalar_layout] if kernel.scalars else [group]
            self.layouts[key] = (group, self.device.wgpu.create_pipeline_layout(bind_group_layouts=groups))
        return self.layouts[key]  # type: ignore[no-any-return]

    def _parts(self, kernel: Kernel) -> tuple[str, dict[str, Any], Any]:
        """The source, the compute stage and the pipeline layout of a kernel; raises DeviceError for bad WGSL."""
        device = self.device
        source = kernel.source(device.profile)
        if device.config.dump_wgsl:
            _dump(Path(device.config.dump_wgsl), kernel, source)
        label = kernel.label or str(kernel.key[0])
        try:
            if kernel.trusted and device.config.trusted_modules:
                module = device.native.create_trusted_module(device.wgpu, label, source)
            else:
                module = device.wgpu.create_shader_module(label=label, code=source)
            return source, {"module": module, "entry_point": "main"}, self._layout(kernel)[1]
        except device.native.errors as error:
            raise shader_error(kernel, source, error) from error

    def _build(self, kernel: Kernel) -> Pipeline:
        source, compute, layout = self._parts(kernel)
        try:
            made = self.device.wgpu.create_compute_pipeline(label=kernel.label, layout=layout, compute=compute)
        except self.device.native.errors as error:
            raise shader_error(kernel, source, error) from error
        return self._pipeline(kernel, made)

    def _pipeline(self, kernel: Kernel, made: Any) -> Pipeline:
        group, layout = self._layout(kernel)
        return Pipeline(kernel, raw.handle_of(made), raw.handle_of(group), (made, group, layout))


def _dump(folder: Path, kernel: Kernel, source: str) -> None:
    """Write a shader beside its fellows, named by label and a digest of the key."""
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w.-]+", "_", kernel.label or str(kernel.key[0]))
    (folder / f"{name}-{zlib.crc32(repr(kernel.key).encode()):08x}.wgsl").write_text(source)
