"""Gradients that a compiled step overwrites in place: only where nobody could tell."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import nn, optim


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


HOLDS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda g: g,
    "a list": lambda g: [g],
    "a row": lambda g: g[1],
    "the transpose": lambda g: g.T,
    "detached": lambda g: g.detach(),
    "its storage": lambda g: g._storage,
    "what another op saved": lambda g: g * mg.ones(3, 5, requires_grad=True),
}


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


def test_accumulated_gradients_are_read_and_made_anew() -> None:
    p = nn.Parameter(mg.randn(4))

    @mg.compile
    def add(x: mg.Tensor) -> Any:
        (p * x).sum().backward()

    add(mg.ones(4))
    add(mg.ones(4))
    held = p.grad
    add(mg.full((4,), 5.0))
    assert p.grad.tolist() == [7.0] * 4
    assert held.tolist() in ([2.0] * 4, [7.0] * 4)  # as PyTorch's, which adds in place


def test_a_failing_run_leaves_the_gradient(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    values = training.weight.grad.numpy()
    session = training.step.session()
    frozen = session.frozen

    def fails() -> None:
        raise mg.DeviceError("made up")

    with monkeypatch.context() as patch:
        patch.setattr(frozen, "run", fails)
        with pytest.raises(mg.DeviceError, match="made up"):
            training.step()
    np.testing.assert_array_equal(training.weight.grad.numpy(), values)
    training.checked()


def test_the_losses_of_steps_share_no_hooks(training: Training) -> None:
    seen = []
    first = training.step()
    first.register_hook(lambda g: seen.append(1))
    second = training.step()
    assert second.requires_grad
    with pytest.raises(mg.GradientError, match="second time"):
        second.backward()
    with pytest.raises(mg.GradientError, match="second time"):
        first.backward()
    assert second.grad_fn.hooks is None
