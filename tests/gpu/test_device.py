from __future__ import annotations

import numpy as np
import pytest

from meganeura import gpu
from meganeura.errors import DeviceError, IndexOutOfRangeError, OutOfMemoryError
from meganeura.kernels.kernel import Launch, Lowered

from .handmade import BROKEN, COPY, SCALE, copy, floats, params, scale, take, twice, upload


def test_record_and_read(device: gpu.Device) -> None:
    x, y = upload(device, np.arange(64, dtype=np.float32)), device.alloc(256)
    device.record(device.prepare(scale(64)), (x, y), (2.0, 1.0), None, "scale")
    assert floats(device, y, 64).tolist() == [2 * i + 1 for i in range(64)]


def test_profile_is_measured(device: gpu.Device) -> None:
    assert device.profile.subgroup_size in (0, 4, 8, 16, 32, 64, 128)
    assert device.profile.max_binding >= 128 << 20
    assert device.family in ("cpu", "gpu")
    assert gpu.adapters()[0]["name"]


def test_temporaries_return_to_the_pool(device: gpu.Device) -> None:
    x, y = upload(device, np.ones(64, np.float32)), device.alloc(256)
    p = device.prepare(twice(64))
    device.record(p, (x, y), (3.0, 1.0), None, "twice")
    before = device.memory()
    for _ in range(100):
        device.record(p, (x, y), (3.0, 1.0), None, "twice")
    after = device.memory()
    assert (after.live, after.buffers, after.bind_groups) == (before.live, before.buffers, before.bind_groups)
    assert floats(device, y, 64)[0] == 13


def test_warm_calls_make_nothing(device: gpu.Device) -> None:
    p = device.prepare(scale(64))
    x = upload(device, np.ones(64, np.float32))

    def chain() -> None:
        a = x
        for i in range(10):
            b = device.alloc(256)
            device.record(p, (a, b), (1.0, float(i)), None, "scale")
            if a is not x:
                device.free(a)
            a = b
        device.read(a, 0, 4)
        device.free(a)

    for _ in range(3):
        chain()
    c = device.counters
    before = (c.pipelines, c.buffers, c.bind_groups)
    for _ in range(50):
        chain()
    assert (c.pipelines, c.buffers, c.bind_groups) == before


def test_a_full_scalar_ring_flushes(device: gpu.Device) -> None:
    recorder, batch = device.recorder, device.recorder.batch
    recorder.batch = 10_000
    try:
        x = upload(device, np.zeros(64, np.float32))
        outs = [device.alloc(256) for _ in range(600)]
        p = device.prepare(scale(64))
        for i, o in enumerate(outs):
            device.record(p, (x, o), (1.0, float(i)), None, "scale")
        assert [floats(device, o, 1)[0] for o in outs] == list(range(600))
    finally:
        recorder.batch = batch
    for o in outs:
        device.free(o)


def test_uploads_do_not_overtake(device: gpu.Device) -> None:
    p = device.prepare(copy(64))
    x, y, z = upload(device, np.full(64, 1, np.float32)), device.alloc(256), device.alloc(256)
    device.record(p, (x, y), (), None, "copy")
    device.write(x, 0, np.full(64, 2, np.float32))
    device.record(p, (x, z), (), None, "copy")
    assert floats(device, y, 1)[0] == 1
    assert floats(device, z, 1)[0] == 2


def test_idle_allocations_are_not_in_use(device: gpu.Device) -> None:
    p = device.prepare(copy(64))
    x, y = upload(device, np.full(64, 1, np.float32)), device.alloc(256)
    device.flush()
    device.record(p, (x, y), (), None, "copy")
    device.free(x)
    submits = device.counters.submits
    other = upload(device, np.full(64, 2, np.float32))
    assert other is not x
    assert device.counters.submits == submits
    assert floats(device, y, 1)[0] == 1


def test_partial_and_odd_transfers(device: gpu.Device) -> None:
    b = device.alloc(64)
    device.write(b, 0, bytes(range(64)))
    assert bytes(device.read(b, 4, 7)) == bytes(range(4, 11))
    device.write(b, 8, b"\xff\xfe\xfd")
    assert bytes(device.read(b, 0, 16)) == bytes(range(8)) + b"\xff\xfe\xfd\x00" + bytes(range(12, 16))
    assert len(device.read(b, 0, 0)) == 0
    device.write(b, 0, np.zeros((0, 3), np.float32))
    device.write(b, 0, np.float16(1.0).reshape(()))
    assert bytes(device.read(b, 0, 4)) == b"\x00\x3c\x00\x00"
    with pytest.raises(DeviceError, match="read of bytes"):
        device.read(b, 0, b.size + 4)
    with pytest.raises(DeviceError, match="upload of bytes"):
        device.write(b, b.size, bytes(4))
    with pytest.raises(DeviceError, match="multiples of 4"):
        device.write(b, 2, bytes(4))


def test_a_large_read_comes_in_pieces(device: gpu.Device) -> None:
    n = (65 << 20) // 4
    b = device.alloc(4 * n)
    values = np.arange(n, dtype=np.uint32)
    device.write(b, 0, values)
    assert np.array_equal(np.frombuffer(device.read(b, 0, 4 * n), np.uint32), values)
    device.free(b)


def test_index_reports_name_op_value_and_line(device: gpu.Device) -> None:
    x, y = upload(device, np.arange(8, dtype=np.float32)), device.alloc(16)
    good, bad = upload(device, np.array([1, 7], np.int32)), upload(device, np.array([1, 8], np.int32))
    p = device.prepare(take(8, 2))
    device.record(p, (x, good, y), (), "a.py:1", "index_select")
    device.synchronize()
    device.record(p, (x, good, y), (), "a.py:2", "index_select")
    device.record(p, (x, bad, y), (), "a.py:3", "gather")
    with pytest.raises(IndexOutOfRangeError, match=r"gather: index 8 is out of range for a dimension of size 8\n  at a.py:3"):
        device.read(y, 0, 8)
    device.record(p, (x, good, y), (), "a.py:4", "index_select")
    assert floats(device, y, 2).tolist() == [1, 7]
    device.record(p, (x, bad, y), (), "a.py:5", "gather")
    with pytest.raises(IndexOutOfRangeError, match=r"a\.py:5"):
        device.synchronize()


def test_scalars_out_of_range_behave_as_on_the_device(device: gpu.Device) -> None:
    x, y = upload(device, np.ones(64, np.float32)), device.alloc(256)
    device.record(device.prepare(scale(64)), (x, y), (1e300, True), None, "scale")
    assert floats(device, y, 1)[0] == np.inf


def test_shader_errors_show_label_and_line(device: gpu.Device) -> None:
    with pytest.raises(DeviceError, match=r"kernel broken .*\n  line \d+: .*x\[g.x\] \+ 1i"):
        device.prepare(Lowered((Launch(BROKEN, (0, 1), (1, 1, 1)),)))
    with pytest.raises(DeviceError, match="kernel broken"):
        device.prepare(Lowered((Launch(BROKEN, (0, 1), (1, 1, 1)),)))
    test_record_and_read(device)


def test_trusted_modules_run(device: gpu.Device) -> None:
    import dataclasses

    kernel = dataclasses.replace(SCALE, key=("handmade", "trusted"), trusted=True)
    x, y = upload(device, np.ones(64, np.float32)), device.alloc(256)
    prepared = device.prepare(Lowered((Launch(kernel, (0, 1), (1, 1, 1), params(64), ((0, "f"), (1, "f"))),)))
    device.record(prepared, (x, y), (2.0, 3.0), None, "trusted")
    assert floats(device, y, 1)[0] == 5


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        (Launch(COPY, (0, 1), (65536, 1, 1)), "grid"),
        (Launch(COPY, (0, 1), (0, 1, 1)), "grid"),
        (Launch(COPY, (0,), (1, 1, 1)), "1 bindings for 2"),
        (Launch(COPY, (0, 1), (1, 1, 1), params(1)), "bytes of parameters"),
        (Launch(SCALE, (0, 1), (1, 1, 1), params(1)), "0 scalars"),
        (Launch(COPY, (0, -1), (1, 1, 1)), "temporary"),
        (Launch(COPY, (0, 1), (1, 1, 1), ranges=((4, 16), (0, 16))), "aligned"),
        (Launch(COPY, (0, 1), (1, 1, 1), ranges=((0, 1 << 40), (0, 16))), "binds at most"),
    ],
)
def test_launches_are_checked_when_prepared(device: gpu.Device, launch: Launch, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        device.prepare(Lowered((launch,)))


def test_buffers_are_checked_when_bound(device: gpu.Device) -> None:
    p = device.prepare(copy(64))
    x, y = device.alloc(256), device.alloc(256)
    with pytest.raises(DeviceError, match=r"writes a buffer that it also binds elsewhere[\s\S]*b.py:7"):
        device.record(p, (x, x), (), "b.py:7", "copy_")
    with pytest.raises(DeviceError, match="has no buffer"):
        device.record(p, (x, None), (), None, "copy")
    ranged = device.prepare(Lowered((Launch(COPY, (0, 1), (1, 1, 1), ranges=((256, 256), (0, 256))),)))
    with pytest.raises(DeviceError, match="ends after the buffer"):
        device.record(ranged, (x, y), (), None, "copy")


def test_parts_of_a_large_buffer_can_be_bound(device: gpu.Device) -> None:
    big, y = device.alloc(device.max_binding + 4096), device.alloc(256)
    device.write(big, 0, np.full(64, 2, np.float32))
    device.record(device.prepare(copy(64)), (big, y), (), None, "copy")  # without ranges: from the start, as far as a binding goes
    assert floats(device, y, 1)[0] == 2
    device.write(big, device.max_binding, np.full(64, 3, np.float32))
    p = device.prepare(Lowered((Launch(COPY, (0, 1), (1, 1, 1), ranges=((device.max_binding - device.max_binding % 256, 256), (0, 256))),)))
    device.record(p, (big, y), (), None, "copy")
    if device.max_binding % 256 == 0:
        assert floats(device, y, 1)[0] == 3
    device.free(big)


def test_out_of_memory_once_is_survived_and_twice_is_reported(device: gpu.Device) -> None:
    size = 3 << 20
    device.faults.fail_alloc = 1
    device.free(device.alloc(size))
    device.pool.trim()
    device.faults.fail_alloc = 2
    with pytest.raises(OutOfMemoryError, match=r"3145728 more bytes: \d+ bytes are in use and \d+ idle"):
        device.alloc(size)
    assert device.faults.fail_alloc == 0
    device.free(device.alloc(size))
    with pytest.raises(OutOfMemoryError, match="larger than"):
        device.alloc(device.limits["max-buffer-size"] + 4096)
    test_record_and_read(device)


def test_finalizers_only_append(device: gpu.Device) -> None:
    b = device.alloc(12345)
    live = device.memory().live
    device.graveyard.append(b)
    assert device.memory().live == live
    device.alloc(16)
    assert b.idle


def test_freeing_twice_is_harmless(device: gpu.Device) -> None:
    b = device.alloc(54321)
    device.free(b)
    pooled = device.memory().pooled
    device.free(b)
    assert device.memory().pooled == pooled


def test_destroying_waits_for_the_last_submit(device: gpu.Device) -> None:
    p = device.prepare(copy(64))
    x, y = upload(device, np.full(64, 5, np.float32)), device.alloc(1 << 16)
    device.record(p, (x, y), (), None, "copy")
    device.free(y)
    device.pool.trim()
    assert y.handle is not None
    device.pool.reap(device.recorder.retired)
    assert y.handle is not None
    device.synchronize()
    assert y.handle is None
    assert not y.groups
    with pytest.raises(DeviceError, match="destroyed buffer"):
        device.record(p, (x, y), (), None, "copy")


def test_uniforms_are_shared_and_bounded(device: gpu.Device) -> None:
    first, again = device.prepare(scale(63)), device.prepare(scale(63))
    assert first.steps[0].uniform is again.steps[0].uniform
    kept = device.pipelines.most_recent
    device.pipelines.most_recent = 4
    try:
        for n in range(1000, 1100):
            device.prepare(scale(n))
        x, y = upload(device, np.ones(64, np.float32)), device.alloc(256)
        device.record(first, (x, y), (2.0, 0.0), None, "scale")
        assert floats(device, y, 63)[62] == 2
    finally:
        device.pipelines.most_recent = kept


def test_many_pipelines_are_built_at_once(device: gpu.Device) -> None:
    import dataclasses

    kernels = [dataclasses.replace(COPY, key=("handmade", "many", i)) for i in range(6)]
    before = device.counters.pipelines
    with pytest.raises(DeviceError, match="kernel broken"):
        device.prepare_all([Lowered((Launch(k, (0, 1), (1, 1, 1)),)) for k in (kernels[0], BROKEN, kernels[1])])
    assert device.counters.pipelines == before + 2
    prepared = device.prepare_all([Lowered((Launch(k, (0, 1), (1, 1, 1)),)) for k in kernels])
    assert device.counters.pipelines == before + 6
    x, y = upload(device, np.full(64, 4, np.float32)), device.alloc(256)
    device.record(prepared[5], (x, y), (), None, "copy")
    assert floats(device, y, 1)[0] == 4
