"""Finalizers that the garbage collector runs in the middle of a call, and that call the same function again or use the device."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import nn, optim
from meganeura.gpu import recorder

ROUNDS = 120


@pytest.fixture(autouse=True)
def few_objects() -> Iterator[None]:
    """Collections that only look at what a test makes."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


class Cycle:
    """What only the collector can free; it calls `action` then."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self.action, self.me = action, self

    def __del__(self) -> None:
        self.action()


@contextmanager
def collecting_after(allocations: int, action: Callable[[], Any]) -> Iterator[None]:
    """The collector runs after so many allocations, and `action` with it."""
    before = gc.get_threshold()
    gc.collect()
    Cycle(action)
    gc.set_threshold(allocations)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def full(value: float) -> mg.Tensor:
    return mg.full((3,), value)


def test_a_compiled_call_inside_the_same_one() -> None:
    f = mg.compile(lambda x: x * 2)
    xs = [full(float(i)) for i in range(8)]
    for x in xs:
        f(x)
    inner: list[mg.Tensor] = []
    for k in range(ROUNDS):
        x = xs[k % 7]
        with collecting_after(1 + k % 40, lambda: inner.append(f(xs[7]))):
            result = f(x)
        assert result.tolist() == [2.0 * (k % 7)] * 3
    gc.collect()
    assert len(inner) == ROUNDS
    assert all(t.tolist() == [14.0] * 3 for t in inner)


def test_a_training_step_inside_the_same_one() -> None:
    """Each of the two is whole: parameters moved twice, and `.grad` and loss belong to one of them."""
    weight = nn.Parameter(full(0.0))
    opt = optim.SGD([weight], lr=1.0)

    def plain(x: mg.Tensor) -> mg.Tensor:
        opt.zero_grad()
        loss = (weight * x).sum()
        loss.backward()
        opt.step()
        return x.sum()

    step = mg.compile(plain)
    outer, other = full(1.0), full(16.0)
    for _ in range(4):
        step(outer)
    for k in range(ROUNDS):
        before, inner = weight.detach().numpy(), []
        with collecting_after(1 + k % 60, lambda inner=inner: inner.append(step(other))):
            loss = step(outer)
        gc.collect()
        assert loss.item() == 3.0
        assert [t.item() for t in inner] == [48.0]
        np.testing.assert_array_equal(before - weight.detach().numpy(), [17.0] * 3)
        assert weight.grad.tolist() in ([1.0] * 3, [16.0] * 3)


@pytest.mark.parametrize("on", [True, False])
def test_the_collector_stays_as_it_was(on: bool) -> None:
    f = mg.compile(lambda x: x * 2)
    try:
        if not on:
            gc.disable()
        assert f(full(2.0)).tolist() == [4.0] * 3
        assert gc.isenabled() == on
    finally:
        gc.enable()


def test_an_eager_call_whose_numbers_lost_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A submit while they are packed starts the places anew."""
    pack, struck = recorder.pack_scalars, []

    def packs(*args: Any) -> None:
        pack(*args)
        if not struck:
            struck.append(1)
            mg.device().flush()
            (full(1.0) * 7.0).tolist()

    x = full(1.0)
    (x * 2.0).tolist()
    a = x * 3.0
    with monkeypatch.context() as patch:
        patch.setattr(recorder, "pack_scalars", packs)
        b = x * 5.0
    assert struck
    assert [t.tolist() for t in (a, b, x * 11.0)] == [[v] * 3 for v in (3.0, 5.0, 11.0)]
