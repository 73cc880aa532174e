"""Results of a compiled function that its next call overwrites in place, and sets of buffers that it takes up again: only where
nobody could tell."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import nn, optim
from meganeura.gpu import replay
from tests.compile.holders import HOLDS


def double(x: mg.Tensor) -> mg.Tensor:
    return x * 2


def full(value: float) -> mg.Tensor:
    return mg.full((3, 5), value)


@pytest.fixture
def f() -> Any:
    """`double`, compiled and called before."""
    made = mg.compile(double)
    for i in range(3):
        made(full(float(i)))
    return made


def test_a_result_nobody_knows_is_overwritten(f: Any) -> None:
    y = f(full(1.0))
    uid, buffer = y._storage.uid, y._storage.buffer
    del y
    y = f(full(4.0))
    assert y._storage.buffer is buffer
    assert y._storage.uid != uid
    assert y._storage.version == 0
    assert y.tolist() == [[8.0] * 5] * 3


def test_a_loop_that_holds_its_last_result_takes_two_in_turns(f: Any) -> None:
    y = f(full(1.0))
    buffers = []
    for i in range(8):
        y = f(full(float(i)))
        assert y.tolist() == [[2.0 * i] * 5] * 3
        buffers.append(y._storage.buffer)
    assert len(set(buffers)) == 2
    assert buffers[2:] == buffers[:-2]
    kept = [f(full(float(i))) for i in range(4)]
    assert [k[0, 0].item() for k in kept] == [0.0, 2.0, 4.0, 6.0]
    assert y.tolist() == [[14.0] * 5] * 3


@pytest.mark.parametrize("hold", HOLDS.values(), ids=HOLDS)
def test_a_result_that_is_held_stays(f: Any, hold: Callable[[Any], Any]) -> None:
    y = f(full(1.0))
    held, known, layout = hold(y), weakref.ref(y._storage), y.layout
    del y
    for i in range(3):
        assert f(full(i + 5.0)).tolist() == [[2 * i + 10.0] * 5] * 3
    stored = known()
    assert stored is not None
    assert mg.Tensor._make(stored, layout).tolist() == [[2.0] * 5] * 3
    del held


CHANGES: dict[str, Callable[[Any], Any]] = {
    "in place": lambda y: y.mul_(3.0),
    "wants a gradient": lambda y: y.requires_grad_(),
    "named": lambda y: setattr(y, "_name", "y"),
    "has a gradient": lambda y: setattr(y, "grad", full(1.0)),
    "a hook": lambda y: y.requires_grad_().register_hook(lambda g: None),
    "a history": lambda y: y.mul_(mg.ones(3, 5, requires_grad=True)),
    "other data": lambda y: setattr(y, "data", full(7.0)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_result_that_was_changed(f: Any, change: Callable[[Any], Any]) -> None:
    for i in range(3):
        change(f(full(float(i))))
        y = f(full(4.0))
        assert y.tolist() == [[8.0] * 5] * 3
        assert (y.name, y.grad, y.grad_fn, y.requires_grad, y._hooks) == (None, None, None, False, None)


def test_a_result_dies_when_it_is_dropped(f: Any) -> None:
    died: list[str] = []
    y, scale = f(full(1.0)), full(1.0)
    weakref.finalize(y, died.append, "result")
    weakref.finalize(scale, died.append, "closure")
    y.requires_grad_().register_hook(scale.mul)
    del y, scale
    assert sorted(died) == ["closure", "result"]


def test_a_storage_that_is_known_weakly_is_not_overwritten(f: Any) -> None:
    y = f(full(1.0))
    storage, layout = weakref.ref(y._storage), y.layout
    del y
    f(full(2.0))
    stored = storage()
    assert stored is None or mg.Tensor._make(stored, layout).tolist() == [[2.0] * 5] * 3
    del stored
    kept = [f(full(float(i))) for i in range(3)]
    assert storage() is None
    assert len(kept) == 3


def test_a_result_inside_a_checkpoint() -> None:
    f, u = mg.compile(lambda x: x * 3), mg.full((3,), 2.0, requires_grad=True)
    for i in range(3):
        x = mg.full((3,), i + 1.0)
        u.grad = None
        mg.checkpoint(lambda x: (f(x) * u).sum(), x).backward()
        assert u.grad.tolist() == [3.0 * (i + 1)] * 3


def test_a_call_from_a_callback_that_a_call_sets_off() -> None:
    """What dies in a call may call the function again."""
    p, q = nn.Parameter(mg.ones(3)), nn.Parameter(mg.ones(3))
    kept: list[Any] = []

    @mg.compile
    def step(x: mg.Tensor) -> Any:
        p.grad = q.grad = None
        y = p * x + q * x * 2
        y.sum().backward()
        return y, x * 2

    for i in range(4):
        step(mg.full((3,), float(i)))
    for i in range(4):
        (p, q)[i % 2].grad = g = mg.ones(3)
        weakref.finalize(g, lambda i=i: kept.append(step(mg.full((3,), 100.0 + i))))
        del g
        y, z = step(mg.full((3,), 7.0))
        assert [y.tolist(), z.tolist()] == [[21.0] * 3, [14.0] * 3]
        assert [p.grad.tolist(), q.grad.tolist()] == [[7.0] * 3, [14.0] * 3]
        for k, (a, b) in enumerate(kept):
            assert [a.tolist(), b.tolist()] == [[300.0 + 3 * k] * 3, [200.0 + 2 * k] * 3]
            assert a.grad_fn is not y.grad_fn
    assert len(kept) == 4


def test_a_call_from_the_numbers_of_a_call() -> None:
    """What computes a step's numbers may call the function again."""
    p, kept, begun = nn.Parameter(mg.ones(3)), [], []

    class Rate(float):
        def __float__(self) -> float:
            if len(begun) < 3:
                begun.append(None)
                kept.append(step(mg.full((3,), 100.0)))
            return 0.0

    opt = optim.SGD([p], lr=0.5)

    @mg.compile
    def step(x: mg.Tensor) -> Any:
        opt.zero_grad()
        (p * x).sum().backward()
        opt.step()
        return x * 2

    for i in range(3):
        step(mg.full((3,), float(i)))
    opt.param_groups[0]["lr"] = Rate(0.0)
    for i in range(3):
        assert step(mg.full((3,), 5.0 + i)).tolist() == [10.0 + 2 * i] * 3
        assert p.grad.tolist() == [5.0 + i] * 3
        assert all(y.tolist() == [200.0] * 3 for y in kept)
    assert len(kept) == 3


def test_results_that_go_back_in() -> None:
    f = mg.compile(lambda x: x + 1)
    x = mg.zeros(4)
    for _ in range(6):
        x = f(x)
    assert f(f(f(x))).tolist() == [9.0] * 4


def test_one_of_two_results_is_held() -> None:
    f = mg.compile(lambda x: (x * 2, x + 1))
    kept = []
    for i in range(6):
        a, b = f(full(float(i)))
        kept.append((a, b)[i % 2])
        assert [a[0, 0].item(), b[0, 0].item()] == [2 * i, i + 1]
        del a, b
    assert [t[0, 0].item() for t in kept] == [0, 2, 4, 4, 8, 6]


def test_results_of_one_memory_are_new() -> None:
    f = mg.compile(lambda x: (y := x * 2, y[0], y.T))
    first = f(full(1.0))[1]
    f(full(5.0))
    assert first.tolist() == [2.0] * 5


class Step:
    """A compiled training step that gives its loss and how far it is off."""

    def __init__(self) -> None:
        mg.manual_seed(0)
        self.model = nn.Linear(5, 3)
        opt = optim.SGD(self.model.parameters(), lr=0.1)

        def step(x: mg.Tensor) -> Any:
            opt.zero_grad()
            loss = (self.model(x) ** 2).sum()
            loss.backward()
            opt.step()
            return loss, loss.detach().sqrt()

        self.plain, self.step = step, mg.compile(step)


def test_the_node_of_results_serves_again() -> None:
    made, x = Step(), mg.randn(7, 5)
    for _ in range(3):
        made.step(x)
    loss, _ = made.step(x)
    node = loss.grad_fn
    del loss
    loss, _ = made.step(x)
    assert loss.grad_fn is not node
    del node
    number = id(loss.grad_fn)
    del loss
    loss, _ = made.step(x)
    assert id(loss.grad_fn) == number
    loss.register_hook(lambda g: None)
    del loss
    loss, _ = made.step(x)
    assert loss.grad_fn.hooks is None
    with pytest.raises(mg.GradientError, match="second time"):
        loss.backward()


@pytest.mark.parametrize("hold", ["nothing", "the last", "all", "every other"])
def test_losses_are_those_of_plain_code(hold: str) -> None:
    made, same = Step(), Step()
    x = [mg.randn(7, 5) for _ in range(5)]
    kept: list[Any] = []
    want: list[Any] = []
    for i in range(12):
        loss, off = made.step(x[i % 5])
        plain, root = same.plain(x[i % 5])
        np.testing.assert_allclose([loss.item(), off.item()], [plain.item(), root.item()], rtol=1e-5)
        if hold in ("all", "the last") or (hold == "every other" and i % 2):
            kept = [loss] if hold == "the last" else [*kept, loss]
            want.append(plain.item())
        del loss, off
    np.testing.assert_allclose([t.item() for t in kept], want[-len(kept) :] if kept else [], rtol=1e-5)


def test_a_failing_run_leaves_results_that_are_held(f: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = full(1.0)
    held = f(x)
    frozen = f.session(x).frozen

    def fails() -> None:
        raise mg.DeviceError("made up")

    with monkeypatch.context() as patch:
        patch.setattr(frozen, "run_locked", fails)
        for _ in range(2):
            with pytest.raises(mg.DeviceError, match="made up"):
                f(full(2.0))
    assert held.tolist() == [[2.0] * 5] * 3
    assert f(full(3.0)).tolist() == [[6.0] * 5] * 3


# ---- sets of buffers ----


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists that keep sets of buffers, which they do on GPUs."""
    plain = replay.Frozen.__init__

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs | {"ahead": True})

    monkeypatch.setattr(replay.Frozen, "__init__", made)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("count", [2, replay.SETS, replay.SETS + 3, replay.ALTERNATIVES * 2 + 1])
def test_arguments_take_turns(count: int) -> None:
    f = mg.compile(lambda x, y: (x + y) * y)
    xs, ys = [full(float(i)) for i in range(count)], [full(i + 0.5) for i in range(3)]
    for i in range(3 * count):
        assert f(xs[i % count], ys[i % 3])[0, 0].item() == (i % count + i % 3 + 0.5) * (i % 3 + 0.5)
    sets = f.session(xs[0], ys[0]).frozen.sets
    assert 1 < len(sets) <= replay.SETS


@pytest.mark.usefixtures("patient")
def test_a_set_that_turns_up_again_makes_nothing_new() -> None:
    f = mg.compile(double)
    xs = [full(float(i)) for i in range(4)]
    for x in (*xs, *xs):
        f(x)
    before = mg.device().counters.bind_groups
    made = [f(x)[0, 0].item() for x in (*xs, *reversed(xs))]
    assert made == [0, 2, 4, 6, 6, 4, 2, 0]
    assert mg.device().counters.bind_groups == before


@pytest.mark.usefixtures("patient")
def test_destroyed_buffers_leave_the_sets() -> None:
    f = mg.compile(double)
    xs = [full(float(i)) for i in range(4)]
    for x in xs:
        f(x)
    frozen, device = f.session(xs[0]).frozen, mg.device()
    device.synchronize()
    gone = [x._storage.buffer for x in xs[:2]]
    assert [key for key in frozen.sets if any(b in key for b in gone)]
    del xs[:2], x
    gc.collect()
    device.drain()
    device.pool.trim()
    device.synchronize()
    device.pool.reap(device.recorder.retired)
    assert all(b.handle is None for b in gone)
    assert not [key for key in frozen.sets if any(b in key for b in gone)]
    for _ in range(2):
        assert [f(x)[0, 0].item() for x in (*xs, full(9.0))] == [4, 6, 18]


@pytest.mark.usefixtures("patient")
def test_ctrl_c_while_a_set_is_taken_up(monkeypatch: pytest.MonkeyPatch) -> None:
    f = mg.compile(double)
    xs = [full(float(i)) for i in range(3)]
    for x in (*xs, *xs):
        f(x)

    def struck(*_: Any) -> None:
        raise KeyboardInterrupt

    for name in ("recall", "_discard_ready"):
        with monkeypatch.context() as patch:
            patch.setattr(replay.Frozen, name, struck)
            with pytest.raises(KeyboardInterrupt):
                f(xs[1])
        assert [f(x)[0, 0].item() for x in (*xs, *xs)] == [0, 2, 4, 0, 2, 4]


@pytest.mark.usefixtures("patient")
def test_buffers_of_sets_in_turns_know_the_submits_that_use_them() -> None:
    """What was marked when a set was last used still holds when it is taken up again, and only then."""
    f, recorder = mg.compile(double), mg.device().recorder
    held, alone, since = None, set(), 0  # buffers of a run that was submitted alone, and that submit
    for i in range(40):
        held = f(full(float(i)))
        frozen = f.session(held).frozen
        if recorder.runs:
            assert {b.epoch for b in frozen.using} == {recorder.epoch}
        assert all(b.epoch >= since for b in alone)
        if i % 7 == 3:
            mg.device().flush()
        if i % 11 == 5:
            frozen._run_now()
            alone, since = set(frozen.using), recorder.epoch - 1
    assert since > 0
    assert held is not None
    assert held.tolist() == [[78.0] * 5] * 3


def test_a_run_that_fails_after_it_was_submitted(f: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = full(1.0)
    frozen = f.session(x).frozen
    run = frozen.run_locked

    def late() -> None:
        run()
        raise mg.DeviceError("made up")

    for i in range(3):
        f(x)
        with monkeypatch.context() as patch:
            patch.setattr(frozen, "run_locked", late)
            with pytest.raises(mg.DeviceError, match="made up"):
                f(full(2.0))
        y = f(full(3.0 + i))
        assert y.tolist() == [[6.0 + 2 * i] * 5] * 3
        assert y._storage.version == 0
        del y


@pytest.mark.parametrize("forced", [False, True])
def test_ctrl_c_in_a_rebinding_and_the_last_result_as_argument(monkeypatch: pytest.MonkeyPatch, request: Any, forced: bool) -> None:
    """The list is made anew then: not over the buffer of a result that is given back."""
    if forced:
        request.getfixturevalue("patient")
    w1, w2 = mg.randn(4, 4), mg.randn(4, 4)

    def plain(x: mg.Tensor) -> mg.Tensor:
        return (x @ w1).softmax(-1) @ w2

    def struck(*_: Any) -> None:
        raise KeyboardInterrupt

    f, g, y, z = mg.compile(plain), mg.compile(double), mg.ones(4, 4), mg.ones(4, 4)
    for _ in range(4):
        y, z = f(mg.randn(4, 4)), g(mg.ones(4, 4))
    with monkeypatch.context() as patch:
        for name in ("recall", "rebind_all"):
            patch.setattr(replay.Frozen, name, struck)
        for compiled in (f, g):
            with pytest.raises(KeyboardInterrupt):
                compiled(mg.randn(4, 4))
    np.testing.assert_allclose(f(y).numpy(), plain(y).numpy(), rtol=1e-5)
    assert g(z).tolist() == [[4.0] * 4] * 4
