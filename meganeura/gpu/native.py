"""The one shim for what the WebGPU packages do not offer publicly: their cffi libraries, handles and error-raising calls.

In: the package `wgpu` (wgpu-native) or `wgpudawn` (Dawn). Out: a Native with the C functions the rest of gpu/ calls.
Raw functions (`set_pipeline`, `dispatch`, ...) are used while encoding only, where errors wait for `finish`; whatever
creates, finishes or submits goes through the package's error-raising form, so that no failure reaches a submit; but for the courier's
`slow_call`, whose errors are kept for who waits for it.
"""

from __future__ import annotations

import importlib
import itertools
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import DeviceError

STORAGE_USAGE = 0x80 | 0x04 | 0x08  # STORAGE | COPY_SRC | COPY_DST
UNIFORM_USAGE = 0x40 | 0x08  # UNIFORM | COPY_DST
STAGING_USAGE = 0x01 | 0x08  # MAP_READ | COPY_DST
QUERY_USAGE = 0x200 | 0x04  # QUERY_RESOLVE | COPY_SRC
_MAP_READ = 1

_PACKAGES = {"wgpu": ("wgpu", "wgpu.backends.wgpu_native._api", "0.32."), "dawn": ("wgpudawn", "wgpudawn.backends.dawn._api", "0.32.")}
_NEEDED = (
    "wgpuDeviceCreateCommandEncoder",
    "wgpuCommandEncoderBeginComputePass",
    "wgpuComputePassEncoderSetPipeline",
    "wgpuComputePassEncoderSetBindGroup",
    "wgpuComputePassEncoderDispatchWorkgroups",
    "wgpuComputePassEncoderEnd",
    "wgpuComputePassEncoderRelease",
    "wgpuCommandEncoderFinish",
    "wgpuCommandEncoderRelease",
    "wgpuCommandBufferRelease",
    "wgpuQueueSubmit",
    "wgpuQueueWriteBuffer",
    "wgpuQueueOnSubmittedWorkDone",
    "wgpuDeviceCreateBuffer",
    "wgpuBufferDestroy",
    "wgpuBufferRelease",
    "wgpuBufferMapAsync",
    "wgpuBufferGetConstMappedRange",
    "wgpuBufferUnmap",
    "wgpuDeviceCreateBindGroup",
    "wgpuBindGroupRelease",
    "wgpuCommandEncoderCopyBufferToBuffer",
    "wgpuCommandEncoderResolveQuerySet",
)
_NEEDED_BY = {
    "wgpu": ("wgpuDevicePoll", "wgpuDeviceCreateShaderModuleTrusted", "wgpuQueueGetTimestampPeriod"),
    "dawn": ("wgpuInstanceWaitAny", "wgpuInstanceProcessEvents"),
}


class Token:
    """An asynchronous completion: `done` once its callback ran, then `ok` and `message`."""

    __slots__ = ("done", "future", "message", "ok")

    def __init__(self) -> None:
        self.done = False
        self.ok = False
        self.message = ""
        self.future: Any = None

    def finish(self, ok: bool, message: str) -> None:
        self.ok, self.message, self.done = ok, message, True


class _Scratch(threading.local):
    """The C structs that calls are put together in, for each thread its own: devices have a lock each, and share the library."""

    def __init__(self, ffi: Any) -> None:
        self.buffer = ffi.new("WGPUBufferDescriptor *")
        self.group = ffi.new("WGPUBindGroupDescriptor *")
        self.entries = ffi.new("WGPUBindGroupEntry[]", 64)
        self.commands = ffi.new("WGPUCommandBuffer[]", 64)
        self.group.entries = self.entries


class Native:
    """One backend's C interface. Made once a process by `load`; a device's methods are called under its lock."""

    def __init__(self, backend: str) -> None:
        package, api_name, version = _PACKAGES[backend]
        try:
            self.package = importlib.import_module(package)
            api = importlib.import_module(api_name)
        except ImportError as error:
            hint = "pip install 'meganeura[dawn]'" if backend == "dawn" else "pip install 'wgpu==0.32.*'"
            raise DeviceError(f"the WebGPU package {package!r} cannot be imported ({error}); {hint}") from error
        self.backend = backend
        self.api = api
        self.logger = logging.getLogger(package)
        self.interrupt: BaseException | None = None
        self._numbers = itertools.count(1)
        self._awaited: dict[int, Token] = {}  # what callbacks find by number: the library may call back after a wait was given up
        self._kept: dict[int, list[str]] = {}  # errors of threads that have theirs kept
        self._check(package, version)
        self.lib, self.ffi, self.safe = api.lib, api.ffi, api.libf
        self.errors: tuple[type[Exception], ...] = (self.package.GPUError,)
        self._bind_functions()
        self._make_structs()
        self._keep_errors()

    def _check(self, package: str, version: str) -> None:
        """Start-up check: the pinned version and every private name used here."""
        found = self.package.__version__
        if not found.startswith(version):
            raise DeviceError(f"{package} {found} is installed; meganeura needs {package}=={version}*")
        lost = [n for n in ("lib", "ffi", "libf", "GPUShaderModule", "error_handler") if not hasattr(self.api, n)]
        if not lost and not hasattr(self.api.libf, "_make_proxy_func"):
            lost = ["libf._make_proxy_func"]
        if not lost and not hasattr(self.api.error_handler, "handle_error"):
            lost = ["error_handler.handle_error"]
        if not lost:
            lost = [n for n in _NEEDED + _NEEDED_BY[self.backend] if not hasattr(self.api.lib, n) or not hasattr(self.api.libf, n)]
        if lost:
            raise DeviceError(f"{package} {found} lacks {', '.join(lost)}; reinstall {package}=={version}*")

    def _bind_functions(self) -> None:
        lib, safe = self.lib, self.safe
        self.create_encoder = lib.wgpuDeviceCreateCommandEncoder
        self.begin_pass = lib.wgpuCommandEncoderBeginComputePass
        self.set_pipeline = lib.wgpuComputePassEncoderSetPipeline
        self.set_bind_group = lib.wgpuComputePassEncoderSetBindGroup
        self.dispatch = lib.wgpuComputePassEncoderDispatchWorkgroups
        self.end_pass = safe.wgpuComputePassEncoderEnd
        self.release_pass = lib.wgpuComputePassEncoderRelease
        self.release_encoder = lib.wgpuCommandEncoderRelease
        self.release_commands = lib.wgpuCommandBufferRelease
        self.release_bind_group = lib.wgpuBindGroupRelease
        self.release_buffer = lib.wgpuBufferRelease
        self.destroy_buffer = safe.wgpuBufferDestroy
        self.finishes_late = self.backend == "wgpu"  # the library does at finishing what Dawn does at submitting
        self.slow_call = lib.wgpuCommandEncoderFinish if self.finishes_late else lib.wgpuQueueSubmit
        self._submit = safe._make_proxy_func("wgpuQueueSubmit", self._noted_submit)
        self.copy = safe.wgpuCommandEncoderCopyBufferToBuffer
        self.resolve = safe.wgpuCommandEncoderResolveQuerySet

    def _make_structs(self) -> None:
        ffi, lib = self.ffi, self.lib
        self.NULL = ffi.NULL
        self._scratch = _Scratch(ffi)
        if self.backend == "wgpu":
            self._map_callback = self._callback("WGPUMapAsyncStatus", lib.WGPUMapAsyncStatus_Success)
            self._done_callback = self._callback("WGPUQueueWorkDoneStatus", lib.WGPUQueueWorkDoneStatus_Success)
            mode = lib.WGPUCallbackMode_AllowProcessEvents
        else:
            from wgpudawn.backends.dawn import _ffi  # the package's registry of static callbacks

            self._registry, mode = _ffi.callbacks, _ffi.CALLBACK_MODE
            self._map_callback = _ffi.c_callback("WGPUBufferMapCallback")
            self._done_callback = _ffi.c_callback("WGPUQueueWorkDoneCallback")
        self._mode = mode

    def _callback(self, status_type: str, success: int) -> Any:
        """A C callback for wgpu-native that finishes the Token whose number is userdata1."""
        ffi = self.ffi

        def finish(userdata: Any, ok: bool, text: str) -> None:
            number = int(ffi.cast("uintptr_t", userdata))
            token = self._awaited.get(number)
            if token is not None:
                token.finish(ok, text)
                self._awaited.pop(number, None)

        def run(status: int, message: Any, userdata: Any, _unused: Any) -> None:
            finish(userdata, status == success, self._text(message))

        def interrupted(_kind: Any, error: BaseException, trace: Any) -> None:
            # Ctrl-C came while the library was polling: Python raises it in here, where it would be lost and the token
            # would never be done. Finish the token and let `wait` raise.
            self.interrupt = error
            names = trace.tb_frame.f_locals if trace is not None else {}
            if "userdata" in names:
                finish(names["userdata"], names["status"] == success, "")

        return ffi.callback(f"void({status_type}, WGPUStringView, void *, void *)", run, onerror=interrupted)

    def _text(self, view: Any) -> str:
        if view.data == self.ffi.NULL or view.length == 0:
            return ""
        whole = view.length > 1 << 40  # WGPU_STRLEN: zero-terminated
        raw = self.ffi.string(view.data) if whole else self.ffi.buffer(view.data, view.length)[:]
        return str(raw.decode(errors="replace"))

    # creating

    def create_buffer(self, device: Any, size: int, usage: int) -> Any:
        """A raw WGPUBuffer; raises the package's GPUError."""
        descriptor = self._scratch.buffer
        descriptor.size, descriptor.usage = size, usage
        return self.safe.wgpuDeviceCreateBuffer(device, descriptor)

    def create_bind_group(self, device: Any, layout: Any, bindings: list[tuple[Any, int, int]]) -> Any:
        """A raw WGPUBindGroup of (buffer, offset, size) in binding order; raises the package's GPUError."""
        group, entries = self._scratch.group, self._scratch.entries
        for i, (buffer, offset, size) in enumerate(bindings):
            entry = entries[i]
            entry.binding, entry.buffer, entry.offset, entry.size = i, buffer, offset, size
        group.layout, group.entryCount = layout, len(bindings)
        return self.safe.wgpuDeviceCreateBindGroup(device, group)

    def alive(self, device: Any, layout: Any, buffer: Any, size: int) -> bool:
        """Whether a buffer can still be bound (wgpu refuses destroyed ones here; Dawn raises at the submit)."""
        try:
            self.release_bind_group(self.create_bind_group(device, layout, [(buffer, 0, size)]))
        except self.errors:
            return False
        return True

    def create_trusted_module(self, device: Any, label: str, code: str) -> Any:
        """A shader module without naga's bounds clamps (wgpu-native), or an ordinary one (Dawn decides per device)."""
        if self.backend != "wgpu":
            return device.create_shader_module(label=label, code=code)
        ffi = self.ffi
        raw, name = code.encode(), label.encode()
        text, title = ffi.new("char[]", raw), ffi.new("char[]", name)
        source = ffi.new("WGPUShaderSourceWGSL *")
        source.chain.sType = self.lib.WGPUSType_ShaderSourceWGSL
        source.code.data, source.code.length = text, len(raw)
        descriptor = ffi.new("WGPUShaderModuleDescriptor *")
        descriptor.nextInChain = ffi.cast("WGPUChainedStruct *", source)
        descriptor.label.data, descriptor.label.length = title, len(name)
        handle = self.safe.wgpuDeviceCreateShaderModuleTrusted(handle_of(device), descriptor, 0)
        return self.api.GPUShaderModule(label, handle, device)

    def pass_timestamps(self, query_set: Any, first: int) -> tuple[Any, Any]:
        """A compute pass descriptor that writes timestamps `first` and `first + 1`; keep both values alive."""
        writes = self.ffi.new("WGPUPassTimestampWrites *")
        writes.querySet = handle_of(query_set)
        writes.beginningOfPassWriteIndex, writes.endOfPassWriteIndex = first, first + 1
        descriptor = self.ffi.new("WGPUComputePassDescriptor *")
        descriptor.timestampWrites = writes
        return descriptor, writes

    # queue

    def finish(self, encoder: Any) -> Any:
        """A raw WGPUCommandBuffer; raises the package's GPUError for anything wrong that was recorded."""
        return self.safe.wgpuCommandEncoderFinish(encoder, self.ffi.NULL)

    def order(self, queue: Any, encoder: Any, handles: list[tuple[Any, Any]]) -> tuple[Any, ...]:
        """The arguments of `slow_call` for an encoder; what must be released after it goes to `handles`."""
        if self.finishes_late:
            return encoder, self.NULL
        commands = self.finish(encoder)
        handles.append((self.release_commands, commands))
        return queue, 1, self.ffi.new("WGPUCommandBuffer[1]", [commands])

    @contextmanager
    def kept_errors(self) -> Iterator[list[str]]:
        """Errors of raw calls in this thread are put into the list, neither logged nor raised at somebody's next call."""
        kept: list[str] = []
        self._kept[threading.get_ident()] = kept
        try:
            yield kept
        finally:
            del self._kept[threading.get_ident()]

    def _keep_errors(self) -> None:
        """Let the package's callback ask whose error it is."""
        handler, kept = self.api.error_handler, self._kept
        known = handler.handle_error

        def handle_error(kind: str, message: str) -> None:
            mine = kept.get(threading.get_ident())
            if mine is None:
                known(kind, message)
            else:
                mine.append(message)

        handler.handle_error = handle_error

    def submit(self, queue: Any, commands: list[Any], sent: list[None]) -> None:
        """Submit finished command buffers in one call and release them, whatever happens; `sent` grows if the call was made."""
        try:
            array = self._scratch.commands if len(commands) <= 64 else self.ffi.new("WGPUCommandBuffer[]", len(commands))
            for i, c in enumerate(commands):
                array[i] = c
            self._submit(queue, len(commands), array, sent)
        finally:
            for c in commands:
                self.release_commands(c)

    def _noted_submit(self, queue: Any, count: int, array: Any, sent: list[None]) -> None:
        """Submit and note it within one call from the interpreter's view: Ctrl-C is raised before both or after both."""
        sent.extend(map(self.lib.wgpuQueueSubmit, (queue,), (count,), (array,)))

    def write(self, queue: Any, buffer: Any, offset: int, data: Any, nbytes: int) -> None:
        """queue.write_buffer of a contiguous bytes-like; runs before everything submitted later."""
        self.safe.wgpuQueueWriteBuffer(queue, buffer, offset, self.ffi.from_buffer(data), nbytes)

    def _callback_info(self, type_: str, callback: Any, token: Token) -> Any:
        """The struct that asks for a callback which finishes the token."""
        info = self.ffi.new(f"{type_} *")
        info.mode, info.callback = self._mode, callback
        if self.backend == "wgpu":
            number = next(self._numbers)
            self._awaited[number] = token
            info.userdata1 = self.ffi.cast("void *", number)
        else:
            ok = self.lib.WGPUMapAsyncStatus_Success  # 1, as WGPUQueueWorkDoneStatus_Success
            info.userdata1 = self._registry.register(lambda status, text, _a, _b: token.finish(status == ok, self._text(text)))
        return info[0]

    def work_done(self, queue: Any) -> Token:
        """A token that is done when everything submitted so far has run."""
        token = Token()
        info = self._callback_info("WGPUQueueWorkDoneCallbackInfo", self._done_callback, token)
        token.future = self.safe.wgpuQueueOnSubmittedWorkDone(queue, info)
        return token

    def map_read(self, buffer: Any, nbytes: int) -> Token:
        """Start mapping the first bytes of a staging buffer."""
        token = Token()
        info = self._callback_info("WGPUBufferMapCallbackInfo", self._map_callback, token)
        token.future = self.safe.wgpuBufferMapAsync(buffer, _MAP_READ, 0, nbytes, info)
        return token

    def mapped(self, buffer: Any, nbytes: int) -> Any:
        """A cffi buffer over a mapped range; dead after `unmap`."""
        address = self.lib.wgpuBufferGetConstMappedRange(buffer, 0, nbytes)
        if address == self.ffi.NULL:
            raise DeviceError(f"the device could not map {nbytes} bytes")
        return self.ffi.buffer(address, nbytes)

    def unmap(self, buffer: Any) -> None:
        self.safe.wgpuBufferUnmap(buffer)

    def wait(self, device: Any, token: Token) -> None:
        """Wait in slices, so that Ctrl-C is answered. Spins first: short kernels finish within a scheduler tick."""
        if self.backend == "dawn":
            self._wait_dawn(token)
            return
        poll, null = self.lib.wgpuDevicePoll, self.ffi.NULL
        start = time.perf_counter()
        while not token.done:
            poll(device, 0, null)
            spent = time.perf_counter() - start
            if spent > 2e-4 and not token.done:
                time.sleep(min(1e-3, spent / 16))
            if self.interrupt is not None:
                error, self.interrupt = self.interrupt, None
                raise error

    def _wait_dawn(self, token: Token) -> None:
        info = self.ffi.new("WGPUFutureWaitInfo *")
        while not token.done:
            info.future.id, info.completed = token.future.id, 0
            status = self.safe.wgpuInstanceWaitAny(self._instance(), 1, info, 20_000_000)
            if status not in (self.lib.WGPUWaitStatus_Success, self.lib.WGPUWaitStatus_TimedOut):
                token.finish(False, f"wgpuInstanceWaitAny gave status {status}")
            elif info.completed and not token.done:  # Ctrl-C struck inside the callback, which cffi only prints
                token.finish(True, "")

    def _instance(self) -> Any:
        return self.api.get_wgpu_instance()

    def timestamp_period(self, queue: Any) -> float:
        """Nanoseconds a timestamp tick."""
        return float(self.lib.wgpuQueueGetTimestampPeriod(queue)) if self.backend == "wgpu" else 1.0


_loaded: dict[str, Native] = {}


def load(backend: str) -> Native:
    """The Native of 'wgpu' or 'dawn'."""
    if backend not in _loaded:
        _loaded[backend] = Native(backend)
    return _loaded[backend]


def handle_of(wrapper: Any) -> Any:
    """The C handle inside an object of the package."""
    handle = getattr(wrapper, "_internal", None)
    if handle is None:
        raise DeviceError(f"{type(wrapper).__module__}.{type(wrapper).__name__} has no handle here; meganeura needs the 0.32 releases")
    return handle


def backend_of(wgpu_device: Any) -> str:
    """Which backend made a GPUDevice object."""
    return "dawn" if type(wgpu_device).__module__.startswith("wgpudawn") else "wgpu"
