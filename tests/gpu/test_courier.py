"""What a thread of its own finishes: submitted in order, none twice, none lost, and nothing overtakes it."""

from __future__ import annotations

import contextlib
import gc
import random
import threading
from typing import Any

import numpy as np
import pytest

from meganeura import gpu
from meganeura.errors import DeviceError
from meganeura.gpu import replay
from meganeura.gpu.courier import Courier
from meganeura.gpu.recorder import SHARED
from meganeura.gpu.replay import Frozen

from .handmade import child, copy, floats, scale, scale_launch, upload
from .test_lifetimes import lives


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pause is a short one."""
    monkeypatch.setattr(replay, "QUICK", 1e9)


def pair(device: gpu.Device, value: float = 0.0) -> tuple[Frozen, gpu.Buffer, gpu.Buffer]:
    """A list that adds 1 twice to a buffer, by way of another, proved by one run; and both."""
    x, y = upload(device, np.full(64, value, np.float32)), device.alloc(256)
    steps = [(scale_launch(64), (x, y), None), (scale_launch(64), (y, x), None)]
    frozen = Frozen(device, steps, [("there", "c.py:1"), ("back", "c.py:2")], ahead=True)
    for i in range(2):
        frozen.set_scalars(i, (1.0, 1.0))
    frozen.run()
    return frozen, x, y


def sent_away(device: gpu.Device, frozen: Frozen, runs: int = SHARED) -> None:
    """So many runs, the last batch of them with the courier."""
    device.flush()
    for _ in range(runs):
        frozen.run()
    assert device.recorder.away is not None
    assert device.recorder.records == []


def test_a_batch_is_submitted_when_the_next_is_handed_over(device: gpu.Device) -> None:
    frozen, x, _ = pair(device)
    device.flush()
    before, epoch = device.counters.submits, device.recorder.epoch
    for batch in range(3):
        for _ in range(SHARED):
            frozen.run()
        assert (device.counters.submits, device.recorder.epoch) == (before + batch, epoch + batch + 1)
        assert device.recorder.unsent == epoch + batch
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
        assert device.recorder.away is None
    assert floats(device, x, 64).tolist() == [total] * 64


def test_uploads_into_other_memory_need_not_wait(device: gpu.Device) -> None:
    frozen, x, _ = pair(device)
    other = upload(device, np.zeros(64, np.float32))
    sent_away(device, frozen)
    device.write(other, 0, np.ones(64, np.float32))
    assert device.recorder.away is not None
    assert upload(device, np.zeros(64, np.float32)) not in frozen.using
    assert (floats(device, x, 1)[0], floats(device, other, 1)[0]) == (2 + 2 * SHARED, 1)


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
    total, first = 2.0, len(frozen.host)
    for i in range(5 * SHARED + 3):
        frozen.set_scalars(0, (1.0, float(i)))
        frozen.run()
        total += i + 1
    assert frozen.noted == 5 * SHARED + 3
    assert set(frozen.notes) == set(range(1, 2 * SHARED + 1)), first
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
    device.recorder._deliver()
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
        assert device.recorder.away is None
        other.run()  # the batch is full
    finally:
        device.faults.skip_checks = False
    assert (device.recorder.away is not None) == device.native.finishes_late  # Dawn knows it at once
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
    assert (device.recorder.away is not None) == device.native.finishes_late
    with pytest.raises(DeviceError, match="bad"):
        device.record(device.prepare(copy(64)), (out, late), (), "r.py:1", "reader")
        device.synchronize()
    with contextlib.suppress(DeviceError):  # Dawn's, which the reader met before
        device.synchronize()
    for buffer in (out, late) if device.native.finishes_late else (out,):
        with pytest.raises(DeviceError, match="bad"):
            buffer.check()
    y.check()


@pytest.mark.parametrize("noted", [0, 3])
def test_a_refused_submit_marks_what_it_would_have_written(device: gpu.Device, noted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen, _, y = pair(device)
    other, z, _ = pair(device, 50.0)
    frozen.made = [y]
    sent_away(device, frozen)
    for _ in range(noted):
        other.run()
    submit, courier = device.native.submit, device.recorder.courier
    assert courier is not None

    def refuse(queue: Any, commands: list[Any], sent: list[None]) -> None:
        monkeypatch.setattr(device.native, "submit", submit)
        for c in commands:
            device.native.release_commands(c)
        sent.append(None)
        raise device.native.errors[0]("injected")

    def told() -> str:
        monkeypatch.setattr(courier, "failure", failure)
        return "injected"

    if device.native.finishes_late:
        monkeypatch.setattr(device.native, "submit", refuse)
    else:
        failure = courier.failure
        monkeypatch.setattr(courier, "failure", told)
    with pytest.raises(DeviceError, match="injected"):
        device.synchronize()
    with pytest.raises(DeviceError, match="injected"):
        y.check()
    assert floats(device, z, 1)[0] == 52 + 2 * noted


def test_ctrl_c_at_any_call_neither_loses_nor_repeats_work() -> None:
    """In runs that are noted, handed over and delivered, at every call of Python and every return of C below them."""
    done = child("""
        from meganeura.gpu import replay
        replay.QUICK = 1e9
        d = gpu.current()
        a, b = upload(d, np.zeros(64, np.float32)), d.alloc(256)
        frozen = replay.Frozen(d, [(scale_launch(64), (a, b), None), (scale_launch(64), (b, a), None)], ahead=True)
        for i in range(2):
            frozen.set_scalars(i, (1.0, 1.0))
        frozen.run()
        def strike(at, runs):
            "So many runs with Ctrl-C at the at-th call below; how many were begun, and whether it came so far."
            left, begun = at, 0
            def profile(frame, event, argument):
                nonlocal left
                if "/gpu/" not in frame.f_code.co_filename and "wgpu" not in frame.f_code.co_filename:
                    return
                if event in ("call", "c_return") and frame.f_code.co_name not in ("finish", "_text", "release_commands", "run"):
                    left -= 1
                    if left == 0:
                        sys.setprofile(None)
                        raise KeyboardInterrupt
            sys.setprofile(profile)
            try:
                for _ in range(runs):
                    begun += 1
                    frozen.run()
            except KeyboardInterrupt:
                return begun, True
            finally:
                sys.setprofile(None)
            return begun, False
        total, struck, outcomes = floats(d, a, 1)[0], 0, set()
        for at in [*range(1, 500), *range(500, 4000, 7)]:
            begun, came = strike(at, 20)
            for _ in range(9):
                frozen.run()
            now = floats(d, a, 1)[0]
            did = (now - total) / 2 - 9
            assert did in (begun - 1, begun), (at, begun, did, came)
            outcomes.add((came, did == begun))
            struck += came
            total = now
            if not came:
                break
        assert not came and struck > 300, (came, struck)
        assert outcomes == {(True, True), (True, False), (False, True)}, outcomes
        print("alive", struck)
    """, timeout=200)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split()[:1] == ["alive"], done.stdout + done.stderr


def test_ctrl_c_while_the_courier_is_waited_for(device: gpu.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its begin was seen, and before its work was taken: both are there at the next call."""
    frozen, x, _ = pair(device)
    sent_away(device, frozen)
    send, take = Courier.send, Courier.take
    struck: list[str] = []

    def no_begin(self: Courier, order: Any, sent: list[None]) -> None:
        self._orders.put(order)
        sent.append(None)
        struck.append("begin")
        raise KeyboardInterrupt

    def no_take(self: Courier, results: list[Any]) -> None:
        struck.append("take")
        raise KeyboardInterrupt

    for _ in range(SHARED - 1):
        frozen.run()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Courier, "send", no_begin)
        frozen.run()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Courier, "take", no_take)
        device.flush()
    assert struck == ["begin", "take"]
    assert (Courier.send, Courier.take) == (send, take)
    for _ in range(3 * SHARED):
        frozen.run()
    assert floats(device, x, 1)[0] == 2 + 2 * 5 * SHARED


# ---- the thread ----


def test_the_collector_never_runs_in_it(device: gpu.Device) -> None:
    """A finalizer there might use the device, and wait for who waits for the thread."""
    frozen, x, _ = pair(device)
    sent_away(device, frozen)
    where: set[str] = set()

    class Cycle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            where.add(threading.current_thread().name)

    thresholds = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        for _ in range(100 * SHARED):
            Cycle()
            frozen.run()
    finally:
        gc.set_threshold(*thresholds)
    assert where == {threading.current_thread().name}
    assert floats(device, x, 1)[0] == 2 + 2 * 101 * SHARED


def test_it_runs_no_bytecode(device: gpu.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the interpreter would run finalizers, and answer other threads."""
    frozen, x, _ = pair(device)
    device.flush()
    seen: list[str] = []
    monkeypatch.setattr(device.recorder, "courier", None)
    threading.setprofile(lambda frame, event, argument: seen.append(event))
    try:
        sent_away(device, frozen)
    finally:
        threading.setprofile(None)
    device.flush()
    assert seen
    before = len(seen)
    sent_away(device, frozen, 10 * SHARED)
    assert floats(device, x, 1)[0] == 2 + 2 * 11 * SHARED
    assert seen[before:] == []


def test_several_threads_use_one_device(device: gpu.Device) -> None:
    made = [pair(device, 100.0 * k) for k in range(4)]
    failures: list[BaseException] = []

    def work(k: int) -> None:
        frozen, x, _ = made[k]
        try:
            for i in range(60):
                for _ in range(k + 1):
                    frozen.run()
                if i % 13 == k:
                    now = floats(device, x, 64)
                    assert now.tolist() == [100.0 * k + 2 + 2 * (i + 1) * (k + 1)] * 64
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not failures, failures
    assert [floats(device, x, 1)[0] for _, x, _ in made] == [100 * k + 2 + 120 * (k + 1) for k in range(4)]


def test_it_ends_with_its_device() -> None:
    lives("""
    from meganeura.gpu import replay
    replay.QUICK = 1e9
    def couriers():
        return [t for t in threading.enumerate() if t.name == "meganeura courier"]
    for _ in range(3):
        d = opened()
        x, y = upload(d, np.zeros(64, np.float32)), d.alloc(256)
        f = replay.Frozen(d, [(scale_launch(64), (x, y), None), (scale_launch(64), (y, x), None)], ahead=True)
        for k in range(2):
            f.set_scalars(k, (1.0, 1.0))
        for _ in range(20):
            f.run()
        assert floats(d, x, 1)[0] == 40
        thread, = couriers()
        del d, x, y, f
        gc.collect()
        thread.join(10)
        assert not couriers()
    """)


@pytest.mark.parametrize("runs", [SHARED + 1, 2 * SHARED + 1, 2 * SHARED + 3])
def test_a_program_that_ends_while_it_is_at_work(runs: int) -> None:
    lives(f"""
    from meganeura.gpu import replay
    replay.QUICK = 1e9
    d = gpu.current()
    x, y = upload(d, np.zeros(64, np.float32)), d.alloc(256)
    f = replay.Frozen(d, [(scale_launch(64), (x, y), None), (scale_launch(64), (y, x), None)], ahead=True)
    for k in range(2):
        f.set_scalars(k, (1.0, 1.0))
    for _ in range({runs}):
        f.run()
    assert d.recorder.away is not None
    """)


def test_where_no_thread_can_be_started(device: gpu.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when Python exits."""

    def refuse(self: Any) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    frozen, x, _ = pair(device)
    device.flush()
    monkeypatch.setattr(device.recorder, "courier", None)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    before = device.counters.submits
    for _ in range(3 * SHARED):
        frozen.run()
    assert device.counters.submits == before + 3
    assert floats(device, x, 1)[0] == 2 + 6 * SHARED


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
