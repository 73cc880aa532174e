"""The thread that makes the slow call of a submit: whose errors are whose, Ctrl-C while it is waited for, its beginning and its end."""

from __future__ import annotations

import contextlib
import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from meganeura import gpu
from meganeura.errors import DeviceError
from meganeura.gpu import courier, recorder, replay
from meganeura.gpu.courier import Courier
from meganeura.gpu.outbox import Outbox
from meganeura.gpu.recorder import SHARED
from meganeura.gpu.replay import COPIES

from .handed_over import pair, sent_away
from .handmade import child, floats
from .test_lifetimes import lives


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pause is a short one."""
    monkeypatch.setattr(replay, "QUICK", 1e9)


def test_errors_are_those_of_their_thread(device: gpu.Device) -> None:
    """What the library tells in the courier's thread is not raised here, and the other way round."""
    frozen, x, _ = pair(device)
    sent_away(device, frozen)
    mine, told = device.recorder.outbox.courier, device.native.api.error_handler
    assert mine is not None
    results: list[list[str]] = []

    def work() -> None:
        with device.native.kept_errors() as errors:
            told.handle_error("Validation", "theirs")
            results.append(errors)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    device.native.release_buffer(device.native.create_buffer(device.handle, 256, 0x80))  # raises what is pending
    assert results == [["theirs"]]
    assert mine.errors == []
    assert thread.ident not in device.native._kept
    assert floats(device, x, 1)[0] == 2 + 2 * SHARED


@pytest.mark.parametrize(
    ("late", "features", "allowed"), [(True, set(), True), (False, set(), False), (False, {"implicit-device-synchronization"}, True)]
)
def test_devices_for_one_thread_have_none(late: bool, features: set[str], allowed: bool) -> None:
    fake = SimpleNamespace(
        native=SimpleNamespace(finishes_late=late), device=SimpleNamespace(wgpu=SimpleNamespace(features=features)), slot=0
    )
    outbox = Outbox(fake)  # type: ignore[arg-type]
    assert outbox.allowed == allowed
    if not allowed:
        assert not outbox.hand_over()


def test_it_does_not_wait_for_itself(device: gpu.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finalizer may run in its thread while the library tells of an error."""
    frozen, x, _ = pair(device)
    sent_away(device, frozen)
    with monkeypatch.context() as patch, pytest.raises(DeviceError, match="wait for itself"):
        patch.setattr(device.recorder.outbox.courier, "_thread", threading.current_thread())
        device.flush()
    assert floats(device, x, 1)[0] == 2 + 2 * SHARED


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
        begun = 0
        def twenty():
            global begun
            for begun in range(1, 21):
                frozen.run()
        total, strikes, outcomes = floats(d, a, 1)[0], 0, set()
        for at in [*range(1, 500), *range(500, 4000, 7)]:
            came = struck(twenty, at)
            for _ in range(9):
                frozen.run()
            now = floats(d, a, 1)[0]
            did = (now - total) / 2 - 9
            assert did in (begun - 1, begun), (at, begun, did, came)
            outcomes.add((came, did == begun))
            strikes += came
            total = now
            if not came:
                break
        assert not came and strikes > 300, (came, strikes)
        assert outcomes == {(True, True), (True, False), (False, True)}, outcomes
        print("alive", strikes)
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


def test_ctrl_c_after_the_submit_keeps_the_bind_groups_to_release(device: gpu.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen, x, _ = pair(device)
    device.flush()
    doomed = [g.handle for g in pair(device)[0].groups]
    released: list[Any] = []
    release = device.native.release_bind_group
    monkeypatch.setattr(device.native, "release_bind_group", lambda handle: (released.append(handle), release(handle)))
    device.drain()  # the groups of the list that is gone
    assert set(doomed) <= {*device.recorder.dead, *released}
    for _ in range(SHARED):
        frozen.run()
    assert device.recorder.outbox.away is not None

    def strike(_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(device.recorder, "is_out", strike)
        device.flush()
    assert device.recorder.outbox.away is None
    frozen.run()
    device.flush()
    assert set(doomed) <= set(released)
    assert len(released) == len(set(released))
    assert floats(device, x, 1)[0] == 2 + 2 * (SHARED + 1)


def test_a_begin_that_was_not_seen_is_not_the_next_ones(device: gpu.Device) -> None:
    frozen, x, _ = pair(device)
    sent_away(device, frozen)
    mine = device.recorder.outbox.courier
    assert mine is not None
    mine._begun.put(("stale",))
    for _ in range(SHARED):
        frozen.run()
    assert floats(device, x, 1)[0] == 2 + 4 * SHARED
    assert mine._begun.empty()


def test_numbers_of_what_is_noted_again_stay(device: gpu.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C strikes in the submit of what was away, and in the flush that follows."""
    frozen, x, _ = pair(device)
    device.flush()
    total = 2.0
    for i in range(SHARED):
        frozen.set_scalars(0, (1.0, float(i)))
        frozen.run()
        total += i + 1

    def strike(queue: Any, commands: list[Any], sent: list[None]) -> None:
        for c in commands:
            device.native.release_commands(c)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(device.native, "submit", strike)
        for _ in range(2):
            with contextlib.suppress(KeyboardInterrupt):
                device.flush()
    for i in range(3 * SHARED):
        frozen.set_scalars(0, (1.0, float(i)))
        frozen.run()
        total += i + 1
    assert floats(device, x, 1)[0] == total


def test_numbers_of_many_runs_that_could_not_be_handed_over(device: gpu.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than there are copies of the numbers."""
    frozen, x, _ = pair(device)
    total, most = 2.0, COPIES + 6

    def strike(*_: Any) -> None:
        raise KeyboardInterrupt

    for i in range(most):
        frozen.set_scalars(0, (1.0, float(i)))
        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            if i < COPIES - 1:
                patch.setattr(device.native, "end_pass", strike)
            frozen.run()
        total += i + 1
        if i == COPIES - 2:
            assert len(device.recorder.runs) == COPIES - 1
            monkeypatch.setattr(device.recorder.outbox, "allowed", False)
            monkeypatch.setattr(recorder, "SHARED", 1000)
            device.recorder.batch, batch = 1000, device.recorder.batch
    device.recorder.batch = batch
    assert floats(device, x, 1)[0] == total


def test_it_runs_no_bytecode(device: gpu.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the interpreter would run finalizers, and answer other threads."""
    frozen, x, _ = pair(device)
    device.flush()
    seen: list[str] = []
    monkeypatch.setattr(device.recorder.outbox, "courier", None)
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
    from tests.gpu.handed_over import pair
    replay.QUICK = 1e9
    def couriers():
        return [t for t in threading.enumerate() if t.name == "meganeura courier"]
    for _ in range(3):
        d = opened()
        f, x, _ = pair(d)
        for _ in range(20):
            f.run()
        assert floats(d, x, 1)[0] == 42
        thread, = couriers()
        del d, x, _, f
        gc.collect()
        thread.join(10)
        assert not couriers()
    """)


@pytest.mark.parametrize("runs", [SHARED, 2 * SHARED, 2 * SHARED + 2])
def test_a_program_that_ends_while_it_is_at_work(runs: int) -> None:
    lives(f"""
    from meganeura.gpu import replay
    from tests.gpu.handed_over import pair
    replay.QUICK = 1e9
    d = gpu.current()
    f, x, _ = pair(d)
    for _ in range({runs}):
        f.run()
    assert d.recorder.outbox.away is not None
    """)


@pytest.mark.parametrize("how", ["refused", "dies at once"])
def test_where_no_thread_can_be_started(device: gpu.Device, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any) -> None:
        raise RuntimeError("can't start new thread")

    frozen, x, _ = pair(device)
    device.flush()
    outbox = device.recorder.outbox
    monkeypatch.setattr(outbox, "courier", None)
    monkeypatch.setattr(outbox, "allowed", True)
    with monkeypatch.context() as patch:
        if how == "refused":
            patch.setattr(threading.Thread, "start", refuse)
        else:
            patch.setattr(courier, "_serve", lambda *_: None)
        before = device.counters.submits
        for _ in range(3 * SHARED):
            frozen.run()
    assert device.counters.submits == before + 3
    assert not outbox.allowed
    assert floats(device, x, 1)[0] == 2 + 6 * SHARED


def test_libraries_that_log_every_call_do_so_in_the_callers_thread(device: gpu.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Handlers have locks, which who waits for the courier may hold."""
    frozen, x, _ = pair(device)
    device.flush()
    monkeypatch.setattr(device.native, "logger", SimpleNamespace(isEnabledFor=lambda level: level >= logging.DEBUG))
    for _ in range(SHARED):
        frozen.run()
    assert device.recorder.outbox.away is None
    assert floats(device, x, 1)[0] == 2 + 2 * SHARED


@pytest.mark.parametrize("where", ["send", "take"])
def test_nobody_uses_the_device_in_the_middle_of_it(device: gpu.Device, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal's handler gets an error, and the work around it is whole."""
    frozen, x, _ = pair(device)
    sent_away(device, frozen)
    plain = getattr(Courier, where)

    def interrupted(self: Courier, *arguments: Any) -> Any:
        with pytest.raises(DeviceError, match="in the middle of a submit"):
            device.flush()
        return plain(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Courier, where, interrupted)
        for _ in range(SHARED):
            frozen.run()
    assert floats(device, x, 1)[0] == 2 + 4 * SHARED


@pytest.mark.parametrize("before", [0, 20])
def test_finalizers_at_the_very_end(before: int) -> None:
    """When Python exits its threads stop, and none can be started."""
    lives(f"""
    import builtins
    from meganeura.gpu import replay
    from tests.gpu.handed_over import pair
    replay.QUICK = 1e9
    d = gpu.current()
    f, x, _ = pair(d)
    class Last:
        def __del__(self, f=f, d=d, x=x, floats=floats, os=os):
            for _ in range(17):
                f.run()
            if floats(d, x, 1)[0] != 2 * (18 + {before}):
                os._exit(3)
    builtins.last = Last()
    for _ in range({before}):
        f.run()
    """)
