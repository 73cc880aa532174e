"""A device: memory, prepared kernels, recording, transfers. Everything above talks to the GPU through this interface.

In: Lowered kernels, buffers, bytes. Out: submitted work, bytes, and errors that name the op and the user's line.
Must not know tensors, ops or graphs. One lock a device; finalizers only append to `graveyard`.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from .. import config as configuration
from ..config import Config
from ..errors import DeviceError, OutOfMemoryError
from ..kernels.kernel import Kernel, Launch, Lowered, Profile
from . import adapter, native
from .pipelines import MAX_BINDINGS, Pipelines, Prepared
from .pool import Buffer, Pool
from .recorder import Recorder, at
from .transfer import STATUS_BYTES, Status, Transfer

BATCH = {"gpu": 64, "cpu": 64}  # dispatches a submit
IDLE_LIMIT = {"gpu": 4 << 30, "cpu": 1 << 30}  # bytes kept in the pool
_LOST = re.compile(r"device\W{1,3}(\(unlabeled\)\W)?(is |was )?(lost|destroyed)", re.IGNORECASE)
_GUARDED = ("alloc", "free", "adopt", "write", "read", "prepare", "prepare_all", "step", "record", "flush", "synchronize", "drain")


@dataclass(slots=True)
class Counters:
    """What was made and done since the device was opened."""

    pipelines: int = 0
    buffers: int = 0
    bind_groups: int = 0
    dropped_groups: int = 0
    dispatches: int = 0
    submits: int = 0
    uploads: int = 0


@dataclass(slots=True)
class Faults:
    """Switches for tests: let the next n buffer creations fail, or skip our own checks so that the driver's are met."""

    fail_alloc: int = 0
    skip_checks: bool = False


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes in use, bytes kept for reuse, the highest sum of both; counts of what exists now."""

    live: int
    pooled: int
    peak: int
    buffers: int
    bind_groups: int
    pipelines: int
    uniforms: int


class Device:
    """An open GPU device. Thread-safe; unusable in a forked child and after the driver lost it (`lost` says why)."""

    def __init__(self, wgpu_device: Any, config: Config | None = None) -> None:
        self.config = config or configuration.current()
        self.wgpu = wgpu_device
        self.native = native.load(native.backend_of(wgpu_device))
        self.handle, self.queue = native.handle_of(wgpu_device), native.handle_of(wgpu_device.queue)
        self.lock = threading.RLock()
        self.lost: str | None = None
        self.refusal = ""  # why nothing works any more: the device was lost, or this is a forked child
        self.counters, self.faults = Counters(), Faults()
        self.info = dict(wgpu_device.adapter.info)
        self.name: str = self.info["device"]
        self.backend = self.native.backend
        self.limits: dict[str, int] = dict(wgpu_device.limits)
        self.max_binding = self.limits["max-storage-buffer-binding-size"] & ~15
        self.graveyard: deque[Buffer] = deque()
        self.graves: deque[Any] = deque()  # what dead owners left: uniforms' handles, bind groups, and (release, handle)
        self.adopted: weakref.WeakSet[Buffer] = weakref.WeakSet()
        self.adopts = False  # whether it ever did: a quick look before every run of a frozen list
        self.family = "cpu" if self.info["adapter_type"] in ("CPU", "unknown") and self.info["backend_type"] != "Metal" else "gpu"
        self.profile = self._profile()
        self._open()
        _devices.add(self)

    def _open(self) -> None:
        self._uids = 0
        self.pool = Pool(self._create, self._destroy, IDLE_LIMIT[self.family], self.max_binding)
        self.pipelines = Pipelines(self)
        self.recorder = Recorder(self, 1 if self.config.serial_dispatch else BATCH[self.family])
        self.transfer = Transfer(self)
        self.status = Status(self.pool.take(STATUS_BYTES, -1, False))
        self.record = self.recorder.record
        self.flush = self.recorder.flush
        if self.profile.subgroups:
            from .probe import subgroup_size

            size = subgroup_size(self)
            self.profile = self._profile(size)

    def _profile(self, subgroup_size: int = 0) -> Profile:
        """What kernels may know; the subgroup size is measured, because adapters report a range."""
        features, limits = self.wgpu.features, self.limits
        return Profile(
            family=self.family,
            backend=self.backend,
            subgroups="subgroup" in features or "subgroups" in features,
            subgroup_size=subgroup_size,
            f16="shader-f16" in features,
            max_binding=self.max_binding,
            max_storage_buffers=min(limits["max-storage-buffers-per-shader-stage"], MAX_BINDINGS - 1),
            max_workgroup_memory=limits["max-compute-workgroup-storage-size"],
            max_workgroup_size=limits["max-compute-invocations-per-workgroup"],
            max_groups=limits["max-compute-workgroups-per-dimension"],
            vendor=self.info["vendor"],
            winograd=not self.config.no_winograd,
        )

    # memory

    def alloc(self, nbytes: int, idle: bool = False, exact: bool = False) -> Buffer:
        """A buffer of at least nbytes with undefined contents. idle: one that no unsubmitted work uses, for an upload.
        exact: no more than padding, for what stays long."""
        with self.lock:
            if self.graveyard:
                self.drain()
            recorder = self.recorder
            buffer = self.pool.take(nbytes, recorder.unsent, idle, exact)
            if not idle:
                recorder.issued.append((len(recorder.records), buffer))
            return buffer

    def free(self, buffer: Buffer) -> None:
        """Give a buffer back. It may be handed out at once: later dispatches run behind the ones that used it."""
        with self.lock:
            self.pool.give(buffer)

    def drain(self) -> None:
        """Take in what finalizers left behind."""
        with self.lock:
            while self.graveyard:
                self.pool.give(self.graveyard.popleft())
            while self.graves:
                grave = self.graves.popleft()
                if hasattr(grave, "forget"):
                    self.recorder.drop(grave)
                elif isinstance(grave, tuple):
                    release, handle = grave
                    release(handle)
                else:
                    self.native.release_buffer(grave)

    def make_handle(self, size: int, usage: int) -> Any:
        """A raw buffer; on failure lets go of everything idle, waits, and tries once more."""
        try:
            return self._try_handle(size, usage)
        except self.native.errors as error:
            if self.is_lost(error):
                raise self.mark_lost(str(error)) from error
        self._release_idle()
        try:
            return self._try_handle(size, usage)
        except self.native.errors as error:
            m = self.memory()
            raise OutOfMemoryError(
                f"the device cannot hold {size} more bytes: {m.live} bytes are in use and {m.pooled} idle on {self.name} "
                f"(largest buffer {self.limits['max-buffer-size']}); free tensors or use smaller batches\n{error}"
            ) from error

    def _try_handle(self, size: int, usage: int) -> Any:
        if self.faults.fail_alloc > 0:
            self.faults.fail_alloc -= 1
            raise self.native.errors[0]("injected by faults.fail_alloc")
        handle = self.native.create_buffer(self.handle, size, usage)
        self.counters.buffers += 1
        return handle

    def _release_idle(self) -> None:
        self.drain()
        self.pool.trim()
        self.transfer.trim()
        self.recorder._flush()
        epoch = self.recorder.unsent - 1
        self.native.wait(self.handle, self.native.work_done(self.queue))
        self.recorder.mark_retired(epoch)
        self.pool.reap(epoch)

    def _create(self, size: int) -> Buffer:
        if size > self.limits["max-buffer-size"]:
            raise OutOfMemoryError(f"a buffer of {size} bytes is larger than {self.name} allows ({self.limits['max-buffer-size']} bytes)")
        handle = self.make_handle(size, native.STORAGE_USAGE)
        self._uids += 1
        return Buffer(self, handle, size, self._uids)

    def adopt(self, wgpu_buffer: Any) -> Buffer:
        """A Buffer over somebody else's GPUBuffer (usage STORAGE, COPY_SRC and COPY_DST); never pooled, never destroyed here."""
        if wgpu_buffer.usage & native.STORAGE_USAGE != native.STORAGE_USAGE:
            raise DeviceError("a shared buffer needs the usages STORAGE, COPY_SRC and COPY_DST")
        with self.lock:
            self._uids += 1
            buffer = Buffer(self, native.handle_of(wgpu_buffer), wgpu_buffer.size, self._uids)
            buffer.shared, buffer.idle = wgpu_buffer, True
            self.adopts = True
            self.adopted.add(buffer)
            return buffer

    def unusable(self) -> dict[Buffer, str]:
        """Adopted buffers that their owner destroyed or mapped, and which of it: wgpu ends the process at a submit that uses one."""
        out: dict[Buffer, str] = {}
        for buffer in list(self.adopted):
            if buffer.shared.map_state != "unmapped":
                out[buffer] = "mapped"
            elif not self.native.alive(self.handle, self.pipelines.probe_layout(), buffer.handle, buffer.size):
                out[buffer] = "destroyed"
        return out

    def _destroy(self, buffer: Buffer) -> None:
        for group in list(buffer.groups):
            self.recorder.drop(group)
        handle, buffer.handle = buffer.handle, None
        self.native.destroy_buffer(handle)
        self.native.release_buffer(handle)

    def memory(self) -> Memory:
        """Bytes and counts now."""
        p, q = self.pool, self.pipelines
        groups = self.counters.bind_groups - self.counters.dropped_groups
        return Memory(p.live, p.pooled, p.peak, p.count, groups, len(q.pipelines), len(q.uniforms))

    # work

    def prepare(self, lowered: Lowered) -> Prepared:
        """Pipelines, uniforms and checks of a Lowered, for `record`."""
        with self.lock:
            return self._prepare(lowered)

    def _prepare(self, lowered: Lowered) -> Prepared:
        try:
            return self.pipelines.prepare(lowered)
        except self.native.errors as error:
            raise self.translate(error, "preparing a kernel", None) from error

    def prepare_all(self, many: Sequence[Lowered]) -> list[Prepared]:
        """The same for many at once: their pipelines are built on several threads."""
        with self.lock:
            kernels: list[Kernel] = [launch.kernel for lowered in many for launch in lowered.launches]
            self.pipelines.build_all(kernels)
            return [self._prepare(lowered) for lowered in many]

    def step(self, launch: Launch) -> Any:
        """One launch made ready, for frozen lists."""
        with self.lock:
            return self.pipelines.step(launch)

    def write(self, buffer: Buffer, offset: int, data: Any) -> None:
        """Upload bytes at a multiple of 4; they arrive after everything recorded so far and before what comes next."""
        with self.lock:
            self.transfer.write(buffer, offset, data)

    def read(self, buffer: Buffer, offset: int = 0, nbytes: int | None = None) -> memoryview:
        """The bytes of a buffer after everything recorded so far."""
        with self.lock:
            return self.transfer.read(buffer, offset, buffer.size - offset if nbytes is None else nbytes)

    def synchronize(self) -> None:
        """Wait for everything recorded so far; raises what went wrong in it."""
        with self.lock:
            self.transfer.settle()

    # errors

    def is_lost(self, error: Exception) -> bool:
        """Whether a driver error means that the device is gone."""
        return self.lost is not None or _LOST.search(str(error)) is not None

    def mark_lost(self, message: str) -> DeviceError:
        """Note the loss, refuse all later work, and return the error to raise."""
        if self.lost is None:
            self.lost = message
            self._forbid(f"the device {self.name} was lost: {message}\nsave what is on the host and start a new process")
        return DeviceError(self.refusal)

    def translate(self, error: Exception, what: str, site: Any) -> DeviceError:
        """A driver's error as ours, with the op and the user's line."""
        if self.is_lost(error):
            return self.mark_lost(str(error))
        return DeviceError(f"{what}{at(site)}\n{error}")

    def _forbid(self, message: str) -> None:
        """Make every entry point raise; costs nothing while all is well."""

        self.refusal = message

        def refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
            raise DeviceError(message)

        for name in _GUARDED:
            setattr(self, name, refuse)
        self.graveyard = deque(maxlen=0)

    def __repr__(self) -> str:
        return f"<Device {self.name}, {self.info['backend_type']} through {self.backend}>"


# --- the process's device ------------------------------------------------------------------------------------------

_devices: weakref.WeakSet[Device] = weakref.WeakSet()
_lock = threading.Lock()
_current: Device | None = None
_forked = False


def current() -> Device:
    """The default device, opened at the first call. Raises DeviceError."""
    global _current
    device = _current
    if device is not None:
        return device
    with _lock:
        if _forked:
            raise DeviceError(_FORK)
        if _current is None:
            config = configuration.current()
            _current = Device(adapter.open_device(config), config)
        return _current


def use_device(wgpu_device: Any) -> Device:
    """Make a GPUDevice of wgpu or wgpudawn the default device (to share it with a renderer). Returns its Device."""
    global _current
    with _lock:
        if _forked:
            raise DeviceError(_FORK)
        if _current is None or _current.wgpu is not wgpu_device:
            _current = wgpu_device if isinstance(wgpu_device, Device) else Device(wgpu_device)
        return _current


def adapters() -> list[dict[str, Any]]:
    """The adapters that may be opened, best first: id, name, type, backend, driver."""
    return [adapter.describe(a) for a in adapter.find(configuration.current())]


_FORK = (
    "the GPU device was opened before this process was forked and cannot be used in the child; "
    "start children with multiprocessing.get_context('spawn')"
)


def _after_fork() -> None:
    global _forked, _lock
    _lock = threading.Lock()
    if _devices:
        _forked = True
        for device in list(_devices):
            device.lock = threading.RLock()  # another thread of the parent may have held it
            device._forbid(_FORK)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _settle_at_exit() -> None:
    """Wait for work still under way: a driver whose process is torn down around it crashes. Says what it failed with."""
    for device in list(_devices):
        if device.refusal:
            continue
        try:
            device.synchronize()
        except Exception as error:
            print(f"{device} reported at exit, unread by the program: {type(error).__name__}: {error}", file=sys.stderr)


atexit.register(_settle_at_exit)
