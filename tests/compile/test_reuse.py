"""Gradients that a compiled step overwrites in place: only where nobody could tell."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import nn, optim
from tests.compile.holders import HOLDS


class Training:
    """A compiled step of y = x W + b without momentum, and the gradients that numpy finds for it."""

    def __init__(self) -> None:
        mg.manual_seed(0)
        self.model = nn.Linear(5, 3)
        self.opt = optim.SGD(self.model.parameters(), lr=0.1)
        self.x = mg.randn(7, 5)

        def step() -> Any:
            self.opt.zero_grad()
            loss = (self.model(self.x) ** 2).sum()
            loss.backward()
            self.opt.step()
            return loss

        self.step = mg.compile(step)

    @property
    def weight(self) -> Any:
        return self.model.weight

    def expected(self) -> Any:
        """The gradient of the weight that the next step must leave."""
        x, w, b = (t.detach().numpy().astype(np.float64) for t in (self.x, self.weight, self.model.bias))
        return 2 * (x @ w.T + b).T @ x

    def checked(self) -> None:
        """Take a step; its gradient is right."""
        want = self.expected()
        self.step()
        np.testing.assert_allclose(self.weight.grad.numpy(), want, rtol=1e-5, atol=1e-5)


@pytest.fixture
def training() -> Training:
    made = Training()
    for _ in range(3):
        made.checked()
    return made


def test_a_gradient_nobody_knows_is_overwritten(training: Training) -> None:
    before, version = id(training.weight.grad), training.weight.grad._storage.version
    buffer = training.weight.grad._storage.buffer
    training.checked()
    assert id(training.weight.grad) == before
    assert training.weight.grad._storage.version == version + 1
    assert training.weight.grad._storage.buffer is buffer


@pytest.mark.parametrize("hold", HOLDS.values(), ids=HOLDS)
def test_a_gradient_that_is_held_stays(training: Training, hold: Callable[[Any], Any]) -> None:
    held = hold(training.weight.grad)
    storage, values = training.weight.grad._storage, training.weight.grad.numpy()
    version = storage.version
    known = weakref.ref(storage)
    del storage
    training.checked()
    stored = known()
    assert stored is not None
    assert stored is not training.weight.grad._storage
    assert stored.version == version
    kept = mg.Tensor._make(stored, training.weight.grad.layout)
    np.testing.assert_array_equal(kept.numpy(), values)
    del held, stored, kept
    gc.collect()
    training.checked()


def test_what_was_saved_from_a_gradient_gives_right_gradients(training: Training) -> None:
    scale = mg.ones(3, 5, requires_grad=True)
    values = training.weight.grad.numpy()
    y = (training.weight.grad * scale).sum()
    training.checked()
    y.backward()
    np.testing.assert_array_equal(scale.grad.numpy(), values)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "none": lambda p: setattr(p, "grad", None),
    "another": lambda p: setattr(p, "grad", mg.ones(3, 5)),
    "another view of it": lambda p: setattr(p, "grad", mg.Tensor._make(p.grad._storage, p.grad.T.contiguous().T.layout)),
    "in place": lambda p: p.grad.mul_(3.0),
    "wants a gradient": lambda p: p.grad.requires_grad_(),
    "named": lambda p: setattr(p.grad, "_name", "g"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_gradient_that_was_changed(training: Training, change: Callable[[Any], Any]) -> None:
    for _ in range(2):
        change(training.weight)
        training.checked()
        assert training.weight.grad.shape == (3, 5)
        assert training.weight.grad.is_contiguous()
    training.checked()
    assert training.weight.grad.name is None
    assert not training.weight.grad.requires_grad


def test_gradients_that_the_function_also_returns_are_new() -> None:
    p = nn.Parameter(mg.randn(4))

    @mg.compile
    def step(x: mg.Tensor) -> Any:
        p.grad = None
        (p * x).sum().backward()
        return p.grad

    first = step(mg.ones(4))
    second = step(mg.full((4,), 2.0))
    third = step(mg.full((4,), 3.0))
    assert [first[0].item(), second[0].item(), third[0].item()] == [1.0, 2.0, 3.0]
    del first, second
    fourth = step(mg.full((4,), 4.0))
    assert [third[0].item(), fourth[0].item(), p.grad[0].item()] == [3.0, 4.0, 4.0]


def test_gradients_are_accumulated_in_place_as_pytorch_does() -> None:
    p = nn.Parameter(mg.randn(4))

    @mg.compile
    def add(x: mg.Tensor) -> Any:
        (p * x).sum().backward()

    add(mg.ones(4))
    add(mg.ones(4))
    held = p.grad
    add(mg.full((4,), 5.0))
    assert p.grad.tolist() == [7.0] * 4
    assert held.tolist() == p.grad.tolist() == [7.0] * 4


def test_two_signatures_take_turns() -> None:
    """Each has buffers of its own: a gradient that the other made is not overwritten in place of one."""
    p = nn.Parameter(mg.randn(4))

    @mg.compile
    def step(x: mg.Tensor) -> Any:
        p.grad = None
        (p * x.sum(0)).sum().backward()

    for i in range(1, 7):
        step(mg.full((1 + i % 2, 4), float(i)))
        assert p.grad.tolist() == [float(i) * (1 + i % 2)] * 4
        assert p.grad._storage.buffer is step.session(mg.full((1 + i % 2, 4), 0.0)).results[0]


def test_a_failing_run_leaves_the_gradient(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    values = training.weight.grad.numpy()
    session = training.step.session()
    frozen = session.frozen

    def fails() -> None:
        raise mg.DeviceError("made up")

    with monkeypatch.context() as patch:
        patch.setattr(frozen, "run_locked", fails)
        with pytest.raises(mg.DeviceError, match="made up"):
            training.step()
    np.testing.assert_array_equal(training.weight.grad.numpy(), values)
    training.checked()


def test_the_losses_of_steps_share_no_hooks(training: Training) -> None:
    seen = []
    first, second = training.step(), training.step()
    first.register_hook(lambda g: seen.append(1))
    with pytest.raises(mg.GradientError, match="second time"):
        (second * 3).backward()
    assert not seen
    assert first.grad_fn is not second.grad_fn


def test_ctrl_c_after_the_work_was_submitted_tells_the_versions(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = training.step.session().frozen
    run, grad, weight = frozen.run_locked, training.weight.grad._storage, training.weight._storage
    before = grad.version, weight.version
    del grad

    def late() -> None:
        run()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(frozen, "run_locked", late)
        with pytest.raises(KeyboardInterrupt):
            training.step()
    assert weight.version == before[1] + 1
    training.checked()


def test_a_gradient_that_is_known_weakly_dies(training: Training) -> None:
    known, storage = weakref.ref(training.weight.grad), weakref.ref(training.weight.grad._storage)
    training.checked()
    assert known() is None
    assert storage() is None


@pytest.mark.parametrize("change", [lambda p: nn.Parameter(p.grad, False), lambda p: nn.Buffer(p.grad)], ids=["parameter", "buffer"])
def test_a_gradient_of_another_type_is_replaced(training: Training, change: Callable[[Any], Any]) -> None:
    training.weight.grad = change(training.weight)
    training.checked()
    assert type(training.weight.grad) is mg.Tensor


def test_a_debugger_that_looks_at_frames_hides_no_holder() -> None:
    """Reading a frame's locals, as debuggers do, holds what they name: also while references are counted at import."""
    code = """
import sys
import numpy.typing  # not while its names are looked at: Python 3.12 refuses that
def look(frame, event, arg):
    frame.f_locals
    return look
sys.settrace(look)
import meganeura as mg
from meganeura.compile import reuse
sys.settrace(None)
p = mg.nn.Parameter(mg.ones(4))
@mg.compile
def step(x):
    p.grad = None
    (p * x).sum().backward()
for i in range(3):
    step(mg.full((4,), i + 1.0))
held = p.grad
step(mg.full((4,), 9.0))
assert held.tolist() == [3.0] * 4 and p.grad.tolist() == [9.0] * 4
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == 0, done.stderr


# ---- gradients that only move ----


@pytest.fixture
def pair() -> tuple[Any, Any]:
    return nn.Parameter(mg.ones(3)), nn.Parameter(mg.ones(3))


def test_gradients_are_handed_out_as_they_are_at_the_call(pair: tuple[Any, Any]) -> None:
    p, q = pair

    @mg.compile
    def look() -> Any:
        q.grad = p.grad
        return p.grad, p.grad.detach(), p.grad * 2

    for i in range(3):
        p.grad = mg.full((3,), 1.0 + i)
        same, view, double = look()
        assert same is p.grad
        assert q.grad is p.grad
        assert [t[0].item() for t in (view, double)] == [1.0 + i, 2.0 + 2 * i]
        assert view._storage is p.grad._storage


def test_a_tensor_that_was_a_gradient_is_itself(pair: tuple[Any, Any]) -> None:
    """The code names it, and does not ask `.grad` for it."""
    p, _ = pair
    kept = p.grad = mg.full((3,), 7.0)

    @mg.compile
    def step(x: Any) -> Any:
        p.grad = None
        (p * x).sum().backward()
        return kept

    for i in range(3):
        assert step(mg.full((3,), float(i))) is kept
        assert p.grad.tolist() == [float(i)] * 3
    assert kept.tolist() == [7.0] * 3


def test_gradients_trade_places(pair: tuple[Any, Any]) -> None:
    p, q = pair

    @mg.compile
    def swap() -> None:
        p.grad, q.grad = q.grad, p.grad

    for i in range(3):
        a, b = p.grad, q.grad = mg.full((3,), 1.0 + i), mg.full((3,), 10.0 + i)
        swap()
        assert p.grad is b
        assert q.grad is a


def test_gradients_of_one_memory_and_of_two(pair: tuple[Any, Any]) -> None:
    opt = optim.SGD(pair, lr=1.0)
    step = mg.compile(opt.step)
    p, q = pair
    p.grad = q.grad = mg.ones(3)
    step()
    p.grad, q.grad = mg.full((3,), 10.0), mg.full((3,), 20.0)
    step()
    assert [p[0].item(), q[0].item()] == [-10.0, -20.0]
    q.grad = p.grad
    step()
    assert [p[0].item(), q[0].item()] == [-20.0, -30.0]
    assert step.traces == 2


def test_an_argument_that_is_used_inside_too_is_refused_with_its_gradient(pair: tuple[Any, Any]) -> None:
    p, q = pair

    @mg.compile
    def step(a: Any, x: Any) -> None:
        p.grad = a.grad = None
        ((a * x).sum() + (p * x * x).sum()).backward()

    step(q, mg.full((3,), 2.0))
    assert [p.grad[0].item(), q.grad[0].item()] == [4.0, 2.0]
    with pytest.raises(mg.TraceError, match="also used inside"):
        step(p, mg.full((3,), 2.0))


@pytest.mark.parametrize("recorded", [True, False])
def test_a_gradient_is_dropped_though_there_was_none_when_traced(recorded: bool) -> None:
    p = nn.Parameter(mg.ones(3))

    @mg.compile
    def drop(x: Any) -> Any:
        p.grad = None
        return p * x

    for _ in range(3):
        with mg.set_grad_enabled(recorded):
            drop(mg.ones(3))
        assert p.grad is None
        p.grad = mg.ones(3)


def test_a_gradient_is_set_to_what_it_was_when_traced() -> None:
    p, kept = nn.Parameter(mg.ones(3)), mg.full((3,), 5.0)
    p.grad = kept

    @mg.compile
    def put(x: Any) -> Any:
        p.grad = kept
        return x * 2

    for _ in range(3):
        put(mg.ones(3))
        assert p.grad is kept
        p.grad = None


def test_a_gradient_of_an_argument_with_history_is_dropped() -> None:
    @mg.compile
    def drop(x: Any) -> Any:
        x.grad = None
        return x * 2

    for _ in range(3):
        assert drop(mg.ones(3, requires_grad=True) * 2).tolist() == [4.0] * 3


def test_ctrl_c_while_versions_are_counted(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    session, weight = training.step.session(), training.weight._storage
    counted, before = type(session)._changed, weight.version

    def struck(*args: Any) -> None:
        monkeypatch.setattr(type(session), "_changed", counted)
        raise KeyboardInterrupt

    monkeypatch.setattr(type(session), "_changed", struck)
    with pytest.raises(KeyboardInterrupt):
        training.step()
    assert weight.version == before + 1
    training.checked()
