"""Runs of short frozen lists in quick succession share a submit: same results in the same order, nothing outlives its use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import gpu, nn, optim
from meganeura.compile import session
from meganeura.errors import DeviceError
from meganeura.gpu import replay, timing
from meganeura.gpu.recorder import SHARED
from meganeura.gpu.replay import Frozen

from .handed_over import pair
from .handmade import copy, floats, scale_launch, upload
from .test_lifetimes import lives


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pause is a short one."""
    monkeypatch.setattr(replay, "QUICK", 1e9)


def counter(device: gpu.Device, **options: Any) -> tuple[Frozen, gpu.Buffer]:
    """A list that adds 1 twice to a buffer of zeros, proved by one run; and that."""
    return pair(device, **options)[:2]


def test_runs_share_a_submit(device: gpu.Device) -> None:
    frozen, x = counter(device)
    before = device.counters.submits, device.counters.dispatches
    for _ in range(3 * SHARED):
        frozen.run()
    device.flush()
    assert (device.counters.submits, device.counters.dispatches) == (before[0] + 3, before[1] + 6 * SHARED)
    frozen.run()
    assert floats(device, x, 64).tolist() == [2 * (3 * SHARED + 2)] * 64


def test_noted_runs_read_constants_that_steps_share(device: gpu.Device) -> None:
    """Each in the copy of the numbers that its run reads."""
    x, y, z = upload(device, np.zeros(64, np.float32)), device.alloc(256), device.alloc(256)
    steps = [(scale_launch(64), pair, None) for pair in ((x, y), (y, z), (z, x))]
    frozen = Frozen(device, steps, [("f", f"c.py:{i}") for i in range(3)], ahead=True)
    frozen.set_scalars(0, (1.0, 1.0))
    frozen.set_scalars(1, (1.0, 1.0))
    frozen.share_constants({2})
    assert frozen.slots == [0, 0, 2]
    total = 0.0
    for i in range(3 * SHARED):
        frozen.set_scalars(2, (1.0, float(i)))
        frozen.run()
        total += 2.0 + i
    assert frozen.noted > 2 * SHARED
    assert frozen._place(0, 3) is frozen._place(1, 3)
    assert floats(device, x, 64).tolist() == [total] * 64


@pytest.mark.parametrize("options", [{"ahead": False}, {"chunk": 1}])
def test_lists_that_are_not_patient(device: gpu.Device, options: dict[str, Any]) -> None:
    frozen, x = counter(device, **options)
    before = device.counters.submits
    for _ in range(4):
        frozen.run()
    assert device.counters.submits == before + 4 * len(frozen.chunks)
    assert floats(device, x, 1)[0] == 10


def test_who_waits_for_every_run_gets_it_at_once(device: gpu.Device) -> None:
    frozen, x = counter(device)
    for i in range(4):
        assert floats(device, x, 1)[0] == 2 * i + 2
        before = device.counters.submits
        frozen.run()
        assert device.counters.submits == before + 1


def test_pauses_end_it(device: gpu.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen, _ = counter(device)
    monkeypatch.setattr(replay, "QUICK", -1.0)
    before = device.counters.submits
    frozen.run()
    assert device.counters.submits == before + 1


def test_numbers_change_between_noted_runs(device: gpu.Device) -> None:
    frozen, x = counter(device)
    total = 2.0
    for i in range(3 * SHARED + 2):
        if i % 5:
            frozen.set_scalars(0, (1.0, float(i)))
        frozen.run()
        total += (i if i % 5 else max(i - 1, 1)) + 1
        if i == 2:  # an eager reader between
            device.synchronize()
    assert floats(device, x, 1)[0] == total


def test_order_with_eager_work_and_uploads(device: gpu.Device) -> None:
    frozen, x = counter(device)
    p, outs = device.prepare(copy(64)), []
    for i in range(6):
        if i == 3:
            device.write(x, 0, np.full(64, 100, np.float32))
        frozen.run()
        outs.append(device.alloc(256))
        device.record(p, (x, outs[-1]), (), None, "copy")
    assert [floats(device, o, 1)[0] for o in outs] == [4, 6, 8, 102, 104, 106]


def test_rebinding_between_noted_runs(device: gpu.Device) -> None:
    frozen, x = counter(device)
    other = upload(device, np.full(64, 50, np.float32))
    for i in range(8):
        frozen.run()
        frozen.rebind(*((x, other) if i % 2 == 0 else (other, x)))
    for b, first in ((x, 2), (other, 50)):
        assert floats(device, b, 1)[0] == first + 2 * 4


def test_buffers_given_back_while_a_run_is_noted(device: gpu.Device) -> None:
    frozen, x = counter(device)
    out, p = device.alloc(256), device.prepare(copy(64))
    frozen.run()
    device.record(p, (x, out), (), None, "copy")
    frozen.close()
    device.free(x)
    device.pool.trim()
    device.drain()
    assert floats(device, out, 1)[0] == 4


def test_a_list_dropped_while_its_run_is_noted() -> None:
    lives("""
    from meganeura.gpu import replay
    replay.QUICK = 1e9
    d = gpu.current()
    launch = scale(64).launches[0]
    for i in range(30):
        x, y = upload(d, np.zeros(64, np.float32)), d.alloc(256)
        f = replay.Frozen(d, [(launch, (x, y), None), (launch, (y, x), None)], ahead=True)
        for k in range(2):
            f.set_scalars(k, (1.0, 1.0))
        f.run()
        f.run()
        assert [r.frozen for r in d.recorder.runs] == [f]
        if i % 2:
            f.close()
        del f
        d.drain()
        assert floats(d, x, 1)[0] == 4
    d.synchronize()
    assert d.memory().bind_groups < 8, d.memory()
    """)


def test_the_profiler_sees_every_run(device: gpu.Device) -> None:
    frozen, x = counter(device)
    frozen.run()
    with timing.timestamps(device, each=True) as timer:
        frozen.run()
        frozen.run()
    assert [r.op for r in timer.rows] == ["there", "back"] * 2
    frozen.run()
    assert floats(device, x, 1)[0] == 10


@pytest.mark.parametrize("where", ["submitting", "noting"])
def test_ctrl_c_mixes_no_numbers(device: gpu.Device, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen, x = counter(device)
    numbers = [2.0**i for i in range(1, SHARED + 4)]
    for i, number in enumerate(numbers):
        frozen.set_scalars(0, (1.0, number))
        if i != SHARED - 1:
            frozen.run()
            continue
        struck: list[int] = []

        def strike(*args: Any, struck: list[int] = struck) -> Any:
            struck.append(1)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(*((device.native, "end_pass") if where == "submitting" else (device.recorder, "note_run")), strike)
            frozen.run()
        assert struck
    left_out = 0.0 if where == "submitting" else numbers[SHARED - 1] + 1
    assert floats(device, x, 1)[0] == 2 + sum(numbers) + len(numbers) - left_out


@contextlib.contextmanager
def refused(device: gpu.Device, bad: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The driver refuses this bind group."""
    bind = device.native.set_bind_group

    def refuse(work: Any, index: int, group: Any, *rest: Any) -> Any:
        if index == 0 and group == bad:
            raise device.native.errors[0]("injected")
        return bind(work, index, group, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(device.native, "set_bind_group", refuse)
        yield


def test_a_noted_run_fails_as_a_whole(device: gpu.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen, x = counter(device)
    y = frozen.buffers[0][1]
    frozen.set_scalars(0, (1.0, 5.0))
    with refused(device, frozen.groups[1].handle, monkeypatch):
        frozen.run()
        frozen.run()
        with pytest.raises(DeviceError, match="injected"):
            device.synchronize()
    assert (floats(device, x, 1)[0], floats(device, y, 1)[0]) == (2, 1)
    frozen.run()
    assert floats(device, x, 1)[0] == 8


def test_other_runs_of_a_list_do_not_fail_with_one(device: gpu.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen, x = counter(device)
    other = upload(device, np.full(64, 50, np.float32))
    frozen.run()
    frozen.rebind(x, other)
    bad = frozen.groups[0].handle
    frozen.run()
    frozen.rebind(other, x)
    frozen.run()
    with refused(device, bad, monkeypatch), pytest.raises(DeviceError, match="injected"):
        device.synchronize()
    assert (floats(device, x, 1)[0], floats(device, other, 1)[0]) == (6, 50)


def test_ctrl_c_after_a_submit_leaves_no_run_behind(device: gpu.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen, _ = counter(device)
    frozen.run()
    release = device.native.release_commands

    def strike(commands: Any) -> None:
        release(commands)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(device.native, "release_commands", strike)
        device.flush()
    assert not device.recorder.records
    assert not device.recorder.runs


@pytest.mark.parametrize("courier", [False, True])
def test_results_of_a_failed_run_may_serve_again(courier: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "Frozen", lambda *args, ahead: Frozen(*args, ahead=True))
    device = mg.device()
    outbox = device.recorder.outbox
    monkeypatch.setattr(outbox, "allowed", courier)
    f, x = mg.compile(lambda x: x * 2 + 1), mg.ones(64)
    for _ in range(3):
        f(x)
    mg.synchronize()
    f(x)
    finish = device.native.finish

    def refuse(encoder: Any) -> Any:
        monkeypatch.setattr(device.native, "finish", finish)
        raise device.native.errors[0]("injected")

    if not courier:
        monkeypatch.setattr(device.native, "finish", refuse)
    outs = [f(x) for _ in range(SHARED)]
    if courier:
        assert outbox.courier is not None
        outbox.courier.errors.append("injected")
        if device.native.finishes_late:  # it is encoded again
            monkeypatch.setattr(device.native, "finish", refuse)
    with pytest.raises(DeviceError, match=r"recorded|submitting"):
        mg.synchronize()
    for out in outs:
        with pytest.raises(DeviceError, match=r"recorded|submitting"):
            out.numpy()
    del out, outs
    for _ in range(2 * SHARED):
        assert f(x)[0].item() == 3


def test_ctrl_c_while_bind_groups_are_released(device: gpu.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is released twice, which crashes in the driver."""
    p, released = device.prepare(copy(64)), []
    for _ in range(4):
        device.record(p, (upload(device, np.zeros(64, np.float32)), device.alloc(256)), (), None, "copy")
    for group in list(device.recorder.groups)[-4:]:
        device.recorder.drop(group)
    release = device.native.release_bind_group

    def strike(handle: Any) -> None:
        released.append(handle)
        release(handle)
        if len(released) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(device.native, "release_bind_group", strike)
    with pytest.raises(KeyboardInterrupt):
        device.flush()
    device.record(p, (upload(device, np.zeros(64, np.float32)), device.alloc(256)), (), None, "copy")
    device.synchronize()
    assert len(released) == len(set(released)) >= 4


@pytest.mark.parametrize("kind", [optim.SGD, optim.AdamW])
def test_a_training_loop_is_the_same(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh batches, losses that are kept, and AdamW's numbers, which change at every step."""
    monkeypatch.setattr(session, "Frozen", lambda *args, ahead: Frozen(*args, ahead=True))
    batches = np.random.default_rng(0).standard_normal((3 * SHARED + 3, 8, 5)).astype(np.float32)

    def losses(compiled: bool) -> tuple[list[float], list[float]]:
        mg.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
        opt = kind(model.parameters(), lr=0.05)

        def step(x: mg.Tensor) -> mg.Tensor:
            opt.zero_grad()
            loss = (model(x) ** 2).mean()
            loss.backward()
            opt.step()
            return loss

        run = mg.compile(step) if compiled else step
        before = mg.device().counters.submits
        kept = [run(mg.tensor(b)) for b in batches]
        if compiled:
            assert mg.device().counters.submits < before + len(batches)
        return [x.item() for x in kept], [float(p.sum().item()) for p in model.parameters()]

    eager, made = losses(False), losses(True)
    np.testing.assert_allclose(made[0], eager[0], rtol=2e-6)
    np.testing.assert_allclose(made[1], eager[1], rtol=1e-5, atol=1e-6)
