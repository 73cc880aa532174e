"""What a compiled function may return: arguments, captured tensors, views of them, constants, nothing; and what stays alive."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import meganeura as mg
from meganeura import nn


def test_zero_size_and_no_tensors() -> None:
    a, b, c = mg.compile(lambda x: (x * 2, x.sum(0), x.sum()))(mg.zeros(0, 3))
    assert (a.shape, b.tolist(), c.item()) == ((0, 3), [0, 0, 0], 0)
    assert mg.compile(lambda: mg.ones(2) + 1)().tolist() == [2, 2]
    assert mg.compile(lambda x: None)(mg.ones(2)) is None


def test_constants_are_fresh_every_time() -> None:
    f = mg.compile(lambda x: mg.tensor([1.0, 2.0]))
    f(mg.ones(1)).zero_()
    assert f(mg.ones(1)).tolist() == [1, 2]


def test_captured_tensor_and_argument_are_themselves() -> None:
    w, x = mg.ones(3), mg.ones(3, requires_grad=True)
    f = mg.compile(lambda x: (x, w, x * 2))
    a, b, c = f(x)
    assert a is x
    assert b is w
    (a.sum() + c.sum()).backward()
    assert x.grad.tolist() == [3, 3, 3]


def test_views_of_what_was_given() -> None:
    f = mg.compile(lambda x: x.reshape(-1))
    x = mg.ones(2, 2)
    f(x).zero_()
    assert x.tolist() == [[0, 0], [0, 0]]
    y = mg.ones(2, 2, requires_grad=True)
    flat = f(y)
    (flat * flat).sum().backward()
    assert y.grad.tolist() == [[2, 2], [2, 2]]
    w = mg.ones(2, 3, requires_grad=True)
    turned = mg.compile(lambda: w.T)()
    assert turned.shape == (3, 2)
    (turned * turned).sum().backward()
    assert w.grad.tolist() == [[2, 2, 2], [2, 2, 2]]


def test_one_result_in_two_places() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        return {"a": y, "b": [y]}

    out = mg.compile(f)(mg.ones(2))
    assert out["a"] is out["b"][0]


def test_nothing_outlives_its_users() -> None:
    """Dropping a compiled module frees module, session and memory."""
    device = mg.gpu.current()
    gc.collect()
    before = device.memory().live

    def use() -> Any:
        model = mg.compile(nn.Linear(64, 64))
        model(mg.ones(8, 64)).sum().backward()
        return weakref.ref(model.weight), weakref.ref(model.compiled)

    found = use()
    gc.collect()
    device.drain()
    assert [ref() for ref in found] == [None, None]
    assert device.memory().live <= before


def test_printing_inside_shows_shapes() -> None:
    seen: list[str] = []

    def f(x: Any) -> Any:
        y = x * 2
        seen.append(repr(y))
        return y

    mg.compile(f)(mg.ones(2))
    assert "float32[2]" in seen[0]
