"""Uploads and readback. Uploads never overtake noted work; reads go through our own mapped staging buffer.

Also the status words: kernels that check indices read from data write the first violation there, and whoever waits for
the device next fetches it in the same copy.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from ..errors import DeviceError, IndexOutOfRangeError
from ..spans import span
from . import native as raw
from .pool import Buffer, size_class
from .recorder import MAX_TOKENS, MAX_UPLOAD, at

if TYPE_CHECKING:
    from .device import Device

STATUS_BYTES = 256  # of the buffer; a violation is its first three words: dispatch number, value, limit
_VIOLATION = struct.Struct("<Iii")
SMALL = 64 << 10  # bytes of the staging buffer that always stays
CHUNK = 64 << 20  # most bytes in flight of one read
MAX_NOTED = 1 << 16  # names of dispatches kept between two checks of the status words


class Status:
    """The status words of a device and which dispatch each number stands for."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.pending = False  # an index kernel was noted since the last check
        self.kept: dict[int, tuple[str, Any]] = {}  # frozen dispatches: for as long as their list lives
        self.noted: dict[int, tuple[str, Any]] = {}
        self._last = 0

    def number(self, op_name: str, site: Any, keep: bool = False) -> int:
        """A number for one dispatch (or for one that will be replayed), to be found in the status words."""
        self._last = self._last % 0x7FFFFFFF + 1
        if len(self.noted) >= MAX_NOTED:
            self.noted.pop(next(iter(self.noted)), None)
        (self.kept if keep else self.noted)[self._last] = (op_name, site)
        return self._last

    def check(self, words: bytes | memoryview) -> IndexOutOfRangeError | None:
        """The error that fetched words stand for, if any."""
        self.pending = False
        number, value, limit = _VIOLATION.unpack_from(words)
        noted, self.noted = self.noted, {}
        if number == 0:
            return None
        op_name, site = noted.get(number) or self.kept.get(number) or ("an indexing op", None)
        return IndexOutOfRangeError(f"{op_name}: index {value} is out of range for a dimension of size {limit}{at(site)}")


class Transfer:
    """Uploads and reads of one device, under its lock."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.staging: dict[int, Any] = {}  # size -> raw buffer, unmapped

    def write(self, buffer: Buffer, offset: int, data: Any) -> None:
        """Copy bytes into a buffer at a multiple of 4. A length that is not one is padded with zeros."""
        view = memoryview(data)
        if view.nbytes == 0:
            return
        view = view.cast("B")
        size = len(view)
        if size % 4:
            view, size = memoryview(bytes(view) + bytes(-size % 4)), size + -size % 4
        self._check_range(buffer, offset, size, "upload")
        device, recorder = self.device, self.device.recorder
        if len(recorder.tokens) > MAX_TOKENS:
            recorder.throttle()
        if buffer.epoch >= recorder.unsent:
            recorder._flush()
        for start in range(0, size, MAX_UPLOAD):
            part = view[start : start + MAX_UPLOAD]
            try:
                device.native.write(device.queue, buffer.handle, offset + start, part, len(part))
            except device.native.errors as error:
                raise device.translate(error, f"uploading {size} bytes", None) from error
            recorder.uploaded += len(part)
            if recorder.uploaded >= MAX_UPLOAD:
                recorder._flush()
        device.counters.uploads += 1

    def read(self, buffer: Buffer, offset: int, nbytes: int) -> memoryview:
        """Submit what is noted, wait, and return a copy of the bytes. Raises what the index kernels reported."""
        self._check_range(buffer, offset, -(-nbytes // 4) * 4, "read")
        with span("read", f"{nbytes} bytes"):
            return self._read(buffer, offset, nbytes)

    def _read(self, buffer: Buffer, offset: int, nbytes: int) -> memoryview:
        if nbytes == 0:
            self.settle()
            return memoryview(bytearray())
        if nbytes <= CHUNK:
            return self._chunk(buffer, offset, nbytes)
        out = bytearray(nbytes)
        for start in range(0, nbytes, CHUNK):
            part = min(CHUNK, nbytes - start)
            out[start : start + part] = self._chunk(buffer, offset + start, part)
        return memoryview(out)

    def settle(self) -> None:
        """Submit, wait for everything, and raise what went wrong on the way."""
        with span("synchronize"):
            self._settle()

    def _settle(self) -> None:
        device = self.device
        if device.status.pending:
            self._chunk(device.status.buffer, 0, 16)
            return
        recorder = device.recorder
        recorder.waits += 1
        recorder._flush()
        epoch = recorder.unsent - 1
        token = device.native.work_done(device.queue)
        device.native.wait(device.handle, token)
        self._landed(token, epoch)

    def _landed(self, token: raw.Token, epoch: int) -> None:
        """After a wait: note what retired, and raise what had to wait."""
        device = self.device
        if not token.ok:
            raise device.mark_lost(token.message or "waiting for the device failed")
        device.recorder.mark_retired(epoch)
        device.recorder.raise_pending()

    def _check_range(self, buffer: Buffer, offset: int, size: int, what: str) -> None:
        if buffer.handle is None:
            raise DeviceError(f"{what} of a destroyed buffer")
        if buffer.shared is not None and (taken := self.device.unusable().get(buffer)) is not None:
            raise DeviceError(f"{what} of a buffer that its owner {taken}")
        if offset < 0 or offset % 4 or offset + size > buffer.size:
            raise DeviceError(f"{what} of bytes {offset}..{offset + size} of a buffer of {buffer.size} bytes (offsets are multiples of 4)")

    def _chunk(self, buffer: Buffer, offset: int, nbytes: int) -> memoryview:
        device = self.device
        size = -(-nbytes // 4) * 4
        status = device.status if device.status.pending else None
        tail = size if status is None else size + 16
        room, staging = self._stage(tail)
        copies = [(buffer.handle, offset, staging, 0, size)]
        if status is not None:
            copies.append((status.buffer.handle, 0, staging, size, 16))
        ready = False
        device.recorder.waits += 1
        try:
            device.recorder._flush(copies)
            epoch = device.recorder.unsent - 1
            token = device.native.map_read(staging, tail)
            device.native.wait(device.handle, token)
            if token.ok:
                mapped = device.native.mapped(staging, tail)
                out = bytearray(mapped[:nbytes]) if nbytes < 4096 else self._copy(mapped, nbytes)
                words = mapped[size : size + 16] if status is not None else b""
                device.native.unmap(staging)
                ready = True
        finally:
            self._unstage(room, staging, ready)
        self._landed(token, epoch)
        if status is not None:
            self._raise_status(words)
        return memoryview(out)

    def _copy(self, mapped: Any, nbytes: int) -> bytearray:
        """Mapped bytes in one copy."""
        out = bytearray(nbytes)
        self.device.native.ffi.memmove(out, mapped, nbytes)
        return out

    def _raise_status(self, words: bytes) -> None:
        error = self.device.status.check(words)
        if error is not None:
            self.write(self.device.status.buffer, 0, bytes(16))
            raise error

    def _stage(self, nbytes: int) -> tuple[int, Any]:
        """A staging buffer, taken out of the store while in use."""
        device = self.device
        room = max(SMALL, size_class(nbytes))
        found = self.staging.pop(room, None)
        if found is None:
            found = device.make_handle(room, raw.STAGING_USAGE)
        return room, found

    def _unstage(self, room: int, staging: Any, ready: bool) -> None:
        """Put a staging buffer back; one whose map was interrupted, or a second large one, is destroyed."""
        if ready and (room == SMALL or len(self.staging) < 3):
            self.staging[room] = staging
            return
        self.device.native.destroy_buffer(staging)
        self.device.native.release_buffer(staging)

    def trim(self) -> None:
        """Destroy the staging buffers that are not in use."""
        for staging in self.staging.values():
            self.device.native.destroy_buffer(staging)
            self.device.native.release_buffer(staging)
        self.staging.clear()
