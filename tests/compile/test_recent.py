"""Calls like the last one are not looked up (api._Recent), and nodes without a backward serve again (reuse.idle_node): what changes
between equal calls must still be seen."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import nn, optim

FACTOR = 2.0


def warm(fn: Callable[..., Any], *args: Any) -> Any:
    """Compiled, and called often enough that the next equal call is not looked up."""
    compiled = mg.compile(fn)
    for _ in range(3):
        compiled(*args)
    assert compiled._recent is not None
    assert compiled._recent.storages(args) is not None
    return compiled


def double(x: mg.Tensor) -> mg.Tensor:
    return x * 2


def test_gradients_wanted_or_not() -> None:
    x = mg.ones(4)
    f = warm(double, x)
    x.requires_grad_(True)
    y = f(x)
    assert y.requires_grad
    y.sum().backward()
    assert x.grad.tolist() == [2] * 4
    assert not f(x.detach()).requires_grad
    with mg.no_grad():
        assert not f(x).requires_grad


@pytest.mark.parametrize(
    "other",
    [lambda: mg.arange(8.0)[:4], lambda: mg.ones(4, 1).expand(4, 4)[0], lambda: mg.ones(4, dtype=mg.float16), lambda: mg.ones(2, 2).T],
)
def test_other_layouts(other: Callable[[], mg.Tensor]) -> None:
    f, x = warm(double, mg.ones(4)), other()
    np.testing.assert_array_equal(f(x).numpy(), double(x).numpy())
    assert f(x).dtype == x.dtype


def test_an_argument_that_is_state() -> None:
    w = mg.ones(4)
    f = warm(lambda x: x + w, mg.full((4,), 3.0))
    assert f(w).tolist() == [2] * 4
    assert f(mg.full((4,), 5.0)).tolist() == [6] * 4


def test_one_tensor_twice() -> None:
    def add(a: mg.Tensor, b: mg.Tensor) -> mg.Tensor:
        return a.add_(1) + b

    f, p = warm(add, mg.zeros(4), mg.zeros(4)), mg.zeros(4)
    assert f(p, p).tolist() == [2] * 4
    assert p.tolist() == [1] * 4


def test_no_arguments_and_other_kinds() -> None:
    w = mg.ones(3)
    f = warm(lambda: w * 2)
    w.add_(1)
    assert f().tolist() == [4] * 3
    g = warm(lambda a, s=1.0: a * s, w)
    assert [g(w, 2.0)[0].item(), g(w, s=3.0)[0].item(), g(w)[0].item(), g(w, mg.tensor(4.0))[0].item()] == [4, 6, 2, 8]


def test_globals_and_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    x = mg.ones(3)
    f = warm(lambda x: x * FACTOR, x)
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    assert f(x).tolist() == [5] * 3
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    c = mg.compile(model)
    for _ in range(3):
        c(x)
    model.eval()
    np.testing.assert_array_equal(c(x).detach().numpy(), c(x).detach().numpy())


def test_debugging() -> None:
    x = mg.ones(4)
    f = warm(double, x)
    with mg.debug():
        f(x)
        seen = f.session(x)
    f(x)
    assert f.session(x) is not seen


def test_a_reference_is_another_world() -> None:
    f = warm(double, mg.ones(4))
    with mg.dispatch.use(mg.Reference()):
        assert f(mg.ones(4)).tolist() == [2] * 4


def test_what_a_call_passed_by_is_dropped_last() -> None:
    """The signature used all the time is not the one unused for longest."""
    f = warm(double, mg.ones(2))
    for n in range(3, 70):
        f(mg.ones(n))
        f(mg.ones(2))
        f(mg.ones(2))
    before = f.traces
    f(mg.ones(2))
    assert f.traces == before


def test_threads() -> None:
    f, wrong = mg.compile(lambda x: x * 2 + 1), []

    def go(n: int) -> None:
        for i in range(30):
            if set(f(mg.full((n,), float(i))).tolist()) != {2 * i + 1}:
                wrong.append((n, i))

    threads = [threading.Thread(target=go, args=(n,)) for n in (4, 5, 4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.fixture
def step() -> Any:
    """A training step that goes back through its loss itself, and its argument."""
    model = nn.Linear(3, 3)
    opt = optim.SGD(model.parameters(), lr=0.1)

    def run(x: mg.Tensor) -> mg.Tensor:
        opt.zero_grad()
        loss = model(x).sum()
        loss.backward()
        opt.step()
        return loss

    x = mg.ones(2, 3)
    return warm(run, x), x


def test_nodes_that_nobody_knows_serve_again(step: Any) -> None:
    f, x = step
    first = id(f(x).grad_fn)
    assert id(f(x).grad_fn) == first
    with pytest.raises(mg.GradientError, match="second time"):
        f(x).backward()


@pytest.mark.parametrize("hold", [lambda y: y, lambda y: y.grad_fn, lambda y: y * 2, lambda y: weakref.ref(y.grad_fn)])
def test_nodes_that_somebody_knows_do_not(step: Any, hold: Callable[[mg.Tensor], Any]) -> None:
    f, x = step
    y = f(x)
    node, held = id(y.grad_fn), hold(y)
    del y
    assert id(f(x).grad_fn) != node or held() is None
    gc.collect()


def test_hooks_stay_with_their_result(step: Any) -> None:
    f, x = step
    seen: list[int] = []
    f(x).register_hook(lambda g: seen.append(1))
    later = f(x)
    assert later.grad_fn.hooks is None
    with pytest.raises(mg.GradientError):
        later.backward()
    assert not seen


def test_another_kind_of_argument_where_gradients_are_read() -> None:
    def f(x: Any) -> Any:
        return x * 2 if isinstance(x, mg.Tensor) and x.grad is None else x + 1

    g = warm(f, mg.ones(3))
    assert g(5.0) == 6.0
    assert g(mg.ones(3)).tolist() == [2] * 3


VIEWS: dict[str, Callable[[Any], Any]] = {
    "detached": lambda w: w.detach(),
    "a slice": lambda w: w[:2],
    "a view": lambda w: w.view(2, 2),
    "itself": lambda w: w,
}


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_results_that_show_a_tensor_from_outside(view: Callable[[Any], Any], alone: bool) -> None:
    """They follow it to other memory."""
    w = nn.Parameter(mg.ones(4))
    f = warm((lambda x: (view(w), x * 2)) if alone else (lambda x: (view(w), x + w)), mg.zeros(4))
    for value in (5.0, 6.0):
        with mg.no_grad():
            w.data = mg.full((4,), value)
        shown, made = f(mg.zeros(4))
        assert set(shown.detach().reshape(-1).tolist()) == {value}
        assert set(made.detach().tolist()) == {0.0 if alone else value}
        if not alone:
            made.sum().backward()
            assert w.grad.tolist() == [1.0] * 4
            w.grad = None
