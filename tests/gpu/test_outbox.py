"""What was handed over is submitted in order, none of it twice, none lost, and nothing overtakes it, whatever fails."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import numpy as np
import pytest

from meganeura import gpu
from meganeura.errors import DeviceError
from meganeura.gpu import replay
from meganeura.gpu.recorder import SHARED
from meganeura.gpu.replay import COPIES, Frozen

from .handed_over import pair, sent_away
from .handmade import copy, floats, scale, scale_launch, upload
from .test_replay_shared import refused


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pause is a short one."""
    monkeypatch.setattr(replay, "QUICK", 1e9)


def test_a_batch_is_submitted_when_the_next_is_handed_over(device: gpu.Device) -> None:
    frozen, x, _ = pair(device)
    device.flush()
    before, epoch = device.counters.submits, device.recorder.epoch
    for batch in range(3):
        for _ in range(SHARED):
            frozen.run()
        assert (device.counters.submits, device.recorder.epoch) == (before + batch, epoch + batch + 1)
        assert device.recorder.unsent == epoch + batch
        assert device.pool.submitted == epoch + batch - 1
    device.flush()
    assert device.counters.submits == before + 3
    assert device.recorder.unsent == device.recorder.epoch == epoch + 3
    assert floats(device, x, 64).tolist() == [2 + 6 * SHARED] * 64


@pytest.mark.parametrize("act", ["read", "write", "record", "another list", "close", "synchronize"])
def test_nothing_overtakes_it(device: gpu.Device, act: str) -> None:
    frozen, x, y = pair(device)
    sent_away(device, frozen)
    total = 2.0 + 2 * SHARED
    if act == "write":
        device.write(x, 0, np.full(64, 100, np.float32))
        total = 100
    elif act == "record":
        device.record(device.prepare(scale(64)), (x, y), (2.0, 0.0), None, "twice")
        device.record(device.prepare(copy(64)), (y, x), (), None, "copy")
        total *= 2
    elif act == "another list":
        other = Frozen(device, [(scale_launch(64), (x, y), None), (scale_launch(64), (y, x), None)])
        other.set_scalars(0, (2.0, 0.0))
        other.set_scalars(1, (1.0, 3.0))
        other.run()
        total = 2 * total + 3
    elif act == "close":
        frozen.close()
    elif act == "synchronize":
        device.synchronize()
        assert device.recorder.outbox.away is None
    assert floats(device, x, 64).tolist() == [total] * 64


def test_uploads_into_other_memory_need_not_wait(device: gpu.Device) -> None:
    frozen, x, _ = pair(device)
    other = upload(device, np.zeros(64, np.float32))
    sent_away(device, frozen)
    device.write(other, 0, np.ones(64, np.float32))
    assert device.recorder.outbox.away is not None
    for _ in range(SHARED):  # with the next submit
        assert device.recorder.uploaded > 0
        frozen.run()
    assert device.recorder.uploaded == 0
    assert floats(device, x, 1)[0] == 2 + 4 * SHARED
    assert floats(device, other, 1)[0] == 1


def test_memory_that_it_uses_is_handed_out_to_no_upload(device: gpu.Device) -> None:
    frozen, x, y = pair(device)
    sent_away(device, frozen)
    device.free(x)
    assert device.alloc(256, idle=True) is not x
    assert floats(device, x, 1)[0] == 2 + 2 * SHARED
    device.free(y)


def test_numbers_of_what_is_away_stay(device: gpu.Device) -> None:
    """Each run reads the numbers that it was noted with, though those noted since had others written."""
    frozen, x, _ = pair(device)
    device.flush()
    total, before = 2.0, device.counters.submits
    for i in range(5 * SHARED + 3):
        frozen.set_scalars(0, (1.0, float(i)))
        frozen.run()
        total += i + 1
    assert device.counters.submits - before == 4  # and one is away: none was needed to have numbers written
    assert frozen.noted == 5 * SHARED + 3
    assert set(frozen.notes) == set(range(1, COPIES + 1))
    assert floats(device, x, 1)[0] == total


def test_bind_groups_live_until_what_is_noted_was_submitted(device: gpu.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen, _, _ = pair(device)
    released: list[Any] = []
    release = device.native.release_bind_group
    monkeypatch.setattr(device.native, "release_bind_group", lambda handle: (released.append(handle), release(handle)))
    sent_away(device, frozen)
    away = [g.handle for g in frozen.groups]
    second, z, _ = pair(device, 5.0)
    sent_away(device, frozen)
    for _ in range(3):
        second.run()
    noted = [g.handle for g in second.groups]
    frozen.close()  # submits both
    assert not set(released) & {*away, *noted}
    second.run()
    sent_away(device, second, 2 * SHARED)
    second.run()
    for group in list(second.groups):
        device.recorder.drop(group)
    device.recorder.deliver()
    assert not set(released) & set(noted)
    device.flush()
    assert set(noted) <= set(released)
    assert floats(device, z, 1)[0] == 5 + 2 * (1 + 3 + 1 + 2 * SHARED + 1)


# ---- failures ----


def test_what_the_driver_cannot_finish_is_found_and_the_rest_runs(device: gpu.Device) -> None:
    """A run that reads what it writes, past our own checks; what reads its results does not run, other lists do."""
    frozen, x, y = pair(device)
    other, z, _ = pair(device, 50.0)
    device.flush()
    for _ in range(SHARED - 2):
        frozen.run()
    device.faults.skip_checks = True
    try:
        frozen.rebind(x, y)
        frozen.run()
        assert device.recorder.outbox.away is None
        other.run()  # the batch is full
    finally:
        device.faults.skip_checks = False
    assert (device.recorder.outbox.away is not None) == device.native.finishes_late  # Dawn knows it at once
    for _ in range(3):
        other.run()
    with pytest.raises(DeviceError, match=r"could not be recorded(?s:.)*c\.py"):
        device.synchronize()
    assert (floats(device, x, 1)[0], floats(device, z, 1)[0]) == (2 + 2 * (SHARED - 2), 50 + 2 * 5)
    other.run()
    assert floats(device, z, 1)[0] == 50 + 2 * 6


def test_what_reads_lost_results_does_not_run(device: gpu.Device) -> None:
    """Noted after it was handed over, before anybody knew."""
    frozen, x, y = pair(device)
    out, late = device.alloc(256), device.alloc(256)
    device.flush()
    device.faults.skip_checks = True
    try:
        frozen.made = [out]
        bad = Frozen(device, [(scale_launch(64), (x, out), None)], [("bad", "b.py:1")], ahead=True)
        bad.set_scalars(0, (1.0, 1.0))
        bad.run()
        bad.made = [out]
        bad.rebind(x, out)
        for _ in range(SHARED):
            bad.run()
    finally:
        device.faults.skip_checks = False
    assert (device.recorder.outbox.away is not None) == device.native.finishes_late
    with pytest.raises(DeviceError, match="bad"):
        device.record(device.prepare(copy(64)), (out, late), (), "r.py:1", "reader")
        device.synchronize()
    with contextlib.suppress(DeviceError):  # Dawn's, which the reader met before
        device.synchronize()
    for buffer in (out, late) if device.native.finishes_late else (out,):
        with pytest.raises(DeviceError, match="bad"):
            buffer.check()
    y.check()


def injected(device: gpu.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver refuses what is away."""
    submit, courier = device.native.submit, device.recorder.outbox.courier
    assert courier is not None

    def refuse(queue: Any, commands: list[Any], sent: list[None]) -> None:
        monkeypatch.setattr(device.native, "submit", submit)
        for c in commands:
            device.native.release_commands(c)
        sent.append(None)
        raise device.native.errors[0]("injected")

    if device.native.finishes_late:
        monkeypatch.setattr(device.native, "submit", refuse)
    else:
        courier.errors.append("injected")


@pytest.mark.parametrize("noted", [0, 3])
def test_a_refused_submit_marks_what_it_would_have_written(device: gpu.Device, noted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen, _, y = pair(device)
    other, z, _ = pair(device, 50.0)
    frozen.made = [y]
    sent_away(device, frozen)
    for _ in range(noted):
        other.run()
    injected(device, monkeypatch)
    with pytest.raises(DeviceError, match="injected"):
        device.synchronize()
    with pytest.raises(DeviceError, match="injected"):
        y.check()
    assert floats(device, z, 1)[0] == 52 + 2 * noted


@pytest.mark.parametrize("how", ["noted", "handed over", "run at once"])
def test_lists_do_not_run_on_what_a_refused_submit_was_to_write(device: gpu.Device, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen, _, y = pair(device)
    w = upload(device, np.full(64, 7, np.float32))
    reader = Frozen(device, [(scale_launch(64), (y, w), None)], [("reader", "r.py:1")], ahead=how != "run at once")
    reader.set_scalars(0, (1.0, 0.0))
    reader.run()
    device.write(w, 0, np.full(64, 7, np.float32))
    frozen.run()
    device.flush()
    frozen.made = [y]
    sent_away(device, frozen)
    injected(device, monkeypatch)
    if how == "run at once":
        with pytest.raises(DeviceError, match="injected"):
            reader.run()
    else:
        for _ in range(SHARED if how == "handed over" else 3):
            reader.run()
        with pytest.raises(DeviceError, match="injected"):
            device.synchronize()
    y.error = None
    assert floats(device, w, 1)[0] == 7
    device.synchronize()


def test_a_bad_run_noted_since_fails_alone(device: gpu.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was away is encoded again together with it."""
    frozen, x, _ = pair(device)
    bad, z, _ = pair(device, 50.0)
    sent_away(device, frozen)
    courier = device.recorder.outbox.courier
    assert courier is not None
    if device.native.finishes_late:
        courier.errors.append("injected")
    for run in (frozen, bad, frozen):
        run.run()
    with refused(device, bad.groups[1].handle, monkeypatch), pytest.raises(DeviceError, match=r"could not be recorded(?s:.)*c\.py:2"):
        device.synchronize()
    assert (floats(device, x, 1)[0], floats(device, z, 1)[0]) == (2 + 2 * (SHARED + 2), 52)


def test_memory_written_by_what_is_away_is_not_blamed(device: gpu.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dispatch that fails later, over a buffer handed out before, leaves it as it was."""
    frozen, x, _ = pair(device)
    device.flush()
    out, p = device.alloc(256), device.prepare(copy(64))
    device.record(p, (x, out), (), None, "first")
    for _ in range(SHARED):
        frozen.run()
    assert device.recorder.outbox.away is not None
    second = upload(device, np.full(64, 9, np.float32))
    device.record(p, (second, out), (), None, "second")
    with refused(device, device.recorder.records[-1][1], monkeypatch), pytest.raises(DeviceError, match="second"):
        device.synchronize()
    out.check()
    assert floats(device, out, 1)[0] == 2


def test_uploads_wait_for_what_is_noted_again(device: gpu.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C strikes when it is encoded anew."""
    frozen, x, _ = pair(device)
    sent_away(device, frozen)
    courier = device.recorder.outbox.courier
    assert courier is not None

    def strike(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        if device.native.finishes_late:
            courier.errors.append("injected")
        else:
            frozen.run()
        patch.setattr(device.native, "end_pass", strike)
        device.flush()
    device.write(x, 0, np.zeros(64, np.float32))
    assert floats(device, x, 1)[0] == 0


# ---- anything in any order ----


@pytest.mark.parametrize("seed", range(12))
def test_any_order_of_anything(device: gpu.Device, seed: int) -> None:
    """Lists, numbers, rebinding, uploads, eager work, reads, freed memory: as on the host, one after the other."""
    rng = random.Random(seed)
    lists = [[*pair(device, 10.0 * k), np.float32(10 * k + 2), 1.0] for k in range(3)]
    spare = upload(device, np.full(64, -7, np.float32))
    waiting, value = spare, np.float32(-7)
    prepared = device.prepare(scale(64))
    for _ in range(400):
        entry = rng.choice(lists)
        frozen, x, y, now, term = entry
        act = rng.choices(["run", "numbers", "rebind", "write", "eager", "read", "free", "flush"], [60, 12, 6, 4, 4, 3, 6, 2])[0]
        if act == "run":
            for _ in range(rng.choice((1, 3, SHARED, 2 * SHARED))):
                frozen.run()
                now = np.float32(now + np.float32(term) + 1)
        elif act == "numbers":
            term = float(rng.randrange(5))
            frozen.set_scalars(0, (1.0, term))
        elif act == "rebind":
            frozen.rebind(x, waiting)
            x, waiting, now, value = waiting, x, value, now
        elif act == "write":
            device.write(x, 0, np.full(64, 3, np.float32))
            now = np.float32(3)
        elif act == "eager":
            device.record(prepared, (x, y), (1.0, 5.0), None, "f")
            device.record(prepared, (y, x), (1.0, 0.0), None, "f")
            now = np.float32(now + 5)
        elif act == "read":
            assert floats(device, x, 64).tolist() == [now] * 64
        elif act == "free":
            temporary = upload(device, np.full(64, 1000 + rng.randrange(9), np.float32))
            device.record(prepared, (temporary, y), (1.0, 0.0), None, "f")
            device.free(temporary)
        else:
            device.flush()
        now = np.float32(now) if now < 1e6 else now
        entry[:] = frozen, x, y, now, term
    for _, x, _, now, _ in lists:
        assert floats(device, x, 64).tolist() == [now] * 64
    assert floats(device, waiting, 64).tolist() == [value] * 64
