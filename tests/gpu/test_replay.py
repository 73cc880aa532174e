from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from meganeura import gpu
from meganeura.errors import DeviceError, IndexOutOfRangeError
from meganeura.gpu.replay import Frozen
from meganeura.kernels.kernel import Launch

from .handmade import COPY, copy, floats, scale, scale_launch, take_launch, upload


def chain(device: gpu.Device, n: int, **options: object) -> tuple[Frozen, list[gpu.Buffer]]:
    """n steps, each x*1 + 1 into the next buffer."""
    buffers = [device.alloc(256) for _ in range(n + 1)]
    steps = [(scale_launch(64), (buffers[i], buffers[i + 1]), None) for i in range(n)]
    frozen = Frozen(device, steps, [("step", f"f.py:{i}") for i in range(n)], **options)  # type: ignore[arg-type]
    for i in range(n):
        frozen.set_scalars(i, (1.0, 1.0))
    return frozen, buffers


@pytest.mark.parametrize("options", [{}, {"chunk": 7}, {"ahead": True}, {"chunk": 7, "ahead": True}])
def test_runs_again_and_again(device: gpu.Device, options: dict[str, object]) -> None:
    frozen, b = chain(device, 20, **options)
    for start in (0.0, 5.0, 7.0):
        device.write(b[0], 0, np.full(64, start, np.float32))
        frozen.run()
        assert floats(device, b[20], 64).tolist() == [start + 20] * 64


def test_a_replay_makes_nothing(device: gpu.Device) -> None:
    frozen, _ = chain(device, 10)
    frozen.run()
    c = device.counters
    before = (c.pipelines, c.buffers, c.bind_groups, device.memory())
    for _ in range(20):
        frozen.run()
    assert (c.pipelines, c.buffers, c.bind_groups, device.memory()) == before


@pytest.mark.parametrize("ahead", [False, True])
def test_scalars_change_between_runs_and_never_overtake(device: gpu.Device, ahead: bool) -> None:
    frozen, b = chain(device, 3, ahead=ahead)
    p = device.prepare(copy(64))
    device.write(b[0], 0, np.zeros(64, np.float32))
    outs = []
    for i in range(5):
        frozen.set_scalars(1, (1.0, 10.0 * i))
        frozen.run()
        out = device.alloc(256)
        device.record(p, (b[3], out), (), None, "copy")
        outs.append(out)
    assert [floats(device, o, 1)[0] for o in outs] == [2, 12, 22, 32, 42]


@pytest.mark.parametrize("options", [{}, {"chunk": 2}, {"ahead": True}])
def test_steps_share_numbers_that_do_not_change(device: gpu.Device, options: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    frozen, b = chain(device, 6, **options)
    for i, added in enumerate((1.0, 1.0, 2.0, 1.0, 1.0, 1.0)):
        frozen.set_scalars(i, (1.0, added))
    frozen.share_constants({4})
    assert frozen.slots == [0, 0, 2, 3, 4, 5]  # step 4 has the numbers of step 3, but they may change; step 5 has those of step 4
    bound: list[int] = []
    set_group = device.native.set_bind_group

    def counted(work: object, number: int, *rest: object) -> None:
        bound.append(number)
        set_group(work, number, *rest)

    for turn in range(6):  # each waited for, so that none is noted: test_replay_shared.py has those
        device.write(b[0], 0, np.full(64, turn, np.float32))
        frozen.set_scalars(4, (1.0, 10.0 * turn))
        with monkeypatch.context() as patch:
            patch.setattr(device.native, "set_bind_group", counted)
            frozen.run()
            device.synchronize()
        assert floats(device, b[6], 1)[0] == turn + 6 + 10 * turn
    assert 6 * bound.count(1) == 5 * bound.count(0)  # of six steps five bind their numbers
    spare = device.alloc(256)
    frozen.rebind(b[6], spare)
    frozen.run()
    assert floats(device, spare, 1)[0] == 5 + 6 + 50


@pytest.mark.parametrize("ahead", [False, True])
def test_order_with_eager_work_is_kept(device: gpu.Device, ahead: bool) -> None:
    frozen, b = chain(device, 2, ahead=ahead)
    p = device.prepare(scale(64))
    x, out = upload(device, np.full(64, 3, np.float32)), device.alloc(256)
    for i in range(4):
        device.record(p, (x, b[0]), (1.0, float(i)), None, "scale")
        frozen.run()
        device.record(p, (b[2], out), (10.0, 0.0), None, "scale")
        assert floats(device, out, 1)[0] == 10 * (3 + i + 2)


@pytest.mark.parametrize("ahead", [False, True])
def test_rebinding_alternates_without_new_bind_groups(device: gpu.Device, ahead: bool) -> None:
    frozen, b = chain(device, 3, chunk=2, ahead=ahead)
    other = device.alloc(256)
    device.write(b[0], 0, np.zeros(64, np.float32))
    now, spare = b[3], other
    groups = 0
    for i in range(6):
        frozen.set_scalars(0, (1.0, float(i)))
        frozen.run()
        assert floats(device, now, 1)[0] == i + 2
        frozen.rebind(now, spare)
        now, spare = spare, now
        if i == 1:
            groups = device.counters.bind_groups
    assert device.counters.bind_groups == groups


def test_only_chunks_that_do_not_change_are_recorded_ahead(device: gpu.Device) -> None:
    frozen, b = chain(device, 6, chunk=2, ahead=True)
    other = device.alloc(256)
    device.write(b[0], 0, np.zeros(64, np.float32))
    now, spare = b[6], other
    for _ in range(4):
        frozen.run()
        assert floats(device, now, 1)[0] == 6
        frozen.rebind(now, spare)
        now, spare = spare, now
        assert 2 not in frozen.ready
    assert sorted(frozen.ready) == [0, 1]
    for _ in range(3):
        frozen.run()
    assert sorted(frozen.ready) == [0, 1, 2]
    assert floats(device, now, 1)[0] == 6


def test_a_refused_rebind_changes_nothing(device: gpu.Device) -> None:
    frozen, b = chain(device, 2)
    with pytest.raises(DeviceError, match="writes a buffer"):
        frozen.rebind(b[2], b[1])
    device.write(b[0], 0, np.zeros(64, np.float32))
    frozen.run()
    assert floats(device, b[2], 1)[0] == 2


def test_status_words_keep_their_names(device: gpu.Device) -> None:
    x, y = upload(device, np.arange(8, dtype=np.float32)), device.alloc(16)
    index = upload(device, np.array([2, 3], np.int32))
    kept = set(device.status.kept)  # of sessions that other tests left
    frozen = Frozen(device, [(take_launch(8, 2), (x, index, y, None), None)], [("gather", "g.py:4")])
    frozen.run()
    assert floats(device, y, 2).tolist() == [2, 3]
    device.write(index, 0, np.array([2, -1], np.int32))
    for _ in range(2):
        frozen.run()
        with pytest.raises(IndexOutOfRangeError, match=r"gather: index -1 is out of range for a dimension of size 8\n  at g.py:4"):
            device.synchronize()
    frozen.close()
    assert set(device.status.kept) <= kept


def test_a_destroyed_buffer_stops_the_list_not_the_process(device: gpu.Device) -> None:
    frozen, b = chain(device, 3)
    frozen.run()
    device.synchronize()
    device.free(b[1])
    device.pool.trim()
    device.synchronize()
    with pytest.raises(DeviceError, match=r"cannot run any more: a buffer of step [01]"):
        frozen.run()


def test_bad_steps_are_refused_before_anything_runs(device: gpu.Device) -> None:
    x, y = upload(device, np.full(64, 9, np.float32)), upload(device, np.zeros(64, np.float32))
    device.faults.skip_checks = True
    try:
        steps = [(Launch(COPY, (0, 1), (1, 1, 1)), (x, y), None), (Launch(COPY, (0, 1), (70000, 1, 1)), (y, x), None)]
        frozen = Frozen(device, steps, [("fine", None), ("wide", "h.py:2")], chunk=1)
        with pytest.raises(DeviceError, match=r"wide \(kernel copy\) could not be recorded\n  at h.py:2"):
            frozen.run()
    finally:
        device.faults.skip_checks = False
    assert floats(device, y, 1)[0] == 0


def test_closing_and_dropping_lets_go(device: gpu.Device) -> None:
    gc.collect()
    device.drain()
    frozen, _ = chain(device, 5)
    frozen.run()
    groups = device.memory().bind_groups
    frozen.close()
    assert device.memory().bind_groups == groups - 5
    with pytest.raises(DeviceError, match="closed"):
        frozen.run()
    frozen, _ = chain(device, 5)
    frozen.run()
    del frozen
    gc.collect()
    device.drain()
    assert device.memory().bind_groups == groups - 5
    device.flush()


def test_numbers_that_cannot_be_written(device: gpu.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's refusal is a DeviceError, and what was noted goes with the next submit."""
    x = upload(device, np.ones(64, np.float32))
    y = device.alloc(256)
    frozen = Frozen(device, [(scale_launch(64), (x, y), None)], [("scale", "x.py:1")])
    frozen.set_scalars(0, (3.0, 0.0))

    def refused(*_: Any) -> None:
        raise device.native.errors[0]("made up")

    with monkeypatch.context() as patch:
        patch.setattr(device.native, "write", refused)
        with pytest.raises(DeviceError, match="numbers of dispatches\nmade up"):
            frozen.run()
    frozen.run()
    assert floats(device, y, 64).tolist() == [3.0] * 64
