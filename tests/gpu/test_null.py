from __future__ import annotations

import pytest

from meganeura.errors import DeviceError, OutOfMemoryError
from meganeura.gpu.null import NullDevice
from meganeura.kernels.kernel import Launch, Lowered, Profile

from .handmade import COPY, copy, scale, twice


def test_runs_nothing_and_logs_everything() -> None:
    device = NullDevice()
    x, y = device.alloc(256), device.alloc(256)
    device.write(x, 0, b"abcd")
    device.record(device.prepare(twice(64)), (x, y), (1.0, 2.0), None, "twice")
    assert [(e.op, e.label, e.grid) for e in device.log] == [("twice", "scale", (1, 1, 1))] * 2
    assert device.log[0].buffers[1] == device.log[1].buffers[0]
    assert bytes(device.read(x, 0, 8)) == b"abcd\0\0\0\0"
    assert list(device.sources) == [("handmade", "scale")]


def test_checks_what_a_device_checks() -> None:
    device = NullDevice(Profile(max_binding=1024))
    x = device.alloc(256)
    with pytest.raises(DeviceError, match="writes a buffer"):
        device.record(device.prepare(copy(64)), (x, x), (), None, "copy")
    with pytest.raises(DeviceError, match="grid"):
        device.prepare(scale(64, grid=(1 << 20, 1, 1)))
    with pytest.raises(DeviceError, match="bindings"):
        device.prepare(Lowered((Launch(COPY, (0,), (1, 1, 1)),)))
    with pytest.raises(OutOfMemoryError):
        device.alloc(1 << 40)
