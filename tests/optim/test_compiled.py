"""Optimizers inside compiled steps: the same bits as eager, and nothing retraced while numbers change."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import nn, optim

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "dampened": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
    "adamw": lambda p: optim.AdamW(p, lr=0.01),
    "amsgrad": lambda p: optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.1),
    "laprop": lambda p: optim.LaProp(p, lr=0.01),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True, eps=1e-3),
    "lion": lambda p: optim.Lion(p, lr=0.01),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.01, initial_accumulator_value=0.1),
    "adadelta": lambda p: optim.Adadelta(p),
    "adamax": lambda p: optim.Adamax(p, lr=0.01),
    "nadam": lambda p: optim.NAdam(p, lr=0.01),
    "radam": lambda p: optim.RAdam(p, lr=0.01, betas=(0.9, 0.9)),
}
RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((6, 8, 5)).astype(np.float32), RNG.integers(0, 3, (6, 8))


def _training(make: Any) -> tuple[Any, Any, Any]:
    """A network, its optimizer and a function that takes one step."""
    mg.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 8), nn.SiLU(), nn.Linear(8, 3))
    opt = make(net.parameters())

    def step(x: Any, y: Any) -> Any:
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 0.7)
        opt.step()
        opt.zero_grad()
        return loss, norm

    return net, opt, step


def _run(step: Any, opt: Any, steps: range) -> list[Any]:
    out = []
    for i in steps:
        opt.param_groups[0]["lr"] *= 0.9
        out.append([t.item() for t in step(mg.tensor(X[i]), mg.tensor(Y[i]))])
    return out


def _values(net: Any) -> list[Any]:
    return [p.detach().numpy() for p in net.parameters()]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_bits_of_eager_without_retracing(name: str) -> None:
    net, opt, step = _training(OPTIMIZERS[name])
    expected = _run(step, opt, range(6))
    other, other_opt, plain = _training(OPTIMIZERS[name])
    compiled = mg.compile(plain)
    assert _run(compiled, other_opt, range(6)) == expected
    assert (compiled.traces, compiled.retraces) == (1, 0)
    for a, b in zip(_values(net), _values(other), strict=True):
        np.testing.assert_array_equal(a, b)
    for p, q in zip(net.parameters(), other.parameters(), strict=True):
        assert opt.state[p].get("step") == other_opt.state[q].get("step")
        assert q.grad is None


def test_loading_state_reaches_the_session() -> None:
    net, opt, step = _training(OPTIMIZERS["adamw"])
    compiled = mg.compile(step)
    _run(compiled, opt, range(2))
    saved = copy.deepcopy((net.state_dict(), opt.state_dict()))
    first = _run(compiled, opt, range(2, 4))
    net.load_state_dict(saved[0])
    opt.load_state_dict(saved[1])
    assert _run(compiled, opt, range(2, 4)) == first
    assert compiled.traces == 1


def test_structure_retraces() -> None:
    net, opt, step = _training(OPTIMIZERS["dampened"])
    other, other_opt, plain = _training(OPTIMIZERS["dampened"])
    compiled = mg.compile(plain)
    for o, f in ((opt, step), (other_opt, compiled)):
        _run(f, o, range(2))
        o.param_groups[0].update(dampening=0.0, nesterov=True)
        _run(f, o, range(2, 4))
    assert compiled.traces == 2
    for a, b in zip(_values(net), _values(other), strict=True):
        np.testing.assert_array_equal(a, b)


def test_lr_multipliers() -> None:
    """Other factors need no new trace, other members of a dispatch do."""

    def make(p: Any) -> Any:
        opt = optim.AdamW(zip("abcd", p, strict=True), lr=0.05)
        opt.set_lr_multipliers({"a": 0.5, "b": 0.25})
        return opt

    net, opt, step = _training(make)
    other, other_opt, plain = _training(make)
    compiled = mg.compile(plain)
    for o, f in ((opt, step), (other_opt, compiled)):
        _run(f, o, range(2))
        o.param_groups[0]["lr_multipliers"]["b"] = 0.75
        _run(f, o, range(2, 4))
    assert compiled.traces == 1
    for o, f in ((opt, step), (other_opt, compiled)):
        o.param_groups[0]["lr_multipliers"]["b"] = 0.5
        _run(f, o, range(4, 6))
    assert compiled.traces == 2
    for a, b in zip(_values(net), _values(other), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (None, {"": 0.5}),
        ({}, {"": 0.5}),
        ({"": 0.5}, {}),
        ({"": 0.5}, {"w": 0.25, "b": 0.25}),
        ({"w": 0.5}, {"we": 0.25}),
        ({"w": 0.5}, {"b": 0.25}),
        ({"w": 0.5, "b": 0.25}, {"we": 0.5, "bi": 0.25}),
    ],
)
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_lr_multipliers_by_other_prefixes(kind: str, first: dict[str, float] | None, then: dict[str, float]) -> None:
    """A step that was traced with a prefix does not go on with it, nor without one."""
    found = []
    for compiled in (False, True):
        net = nn.Linear(1, 1)
        nn.init.ones_(net.weight)
        nn.init.ones_(net.bias)
        opt = OPTIMIZERS[kind](net.named_parameters())

        def plain(net: Any = net, opt: Any = opt) -> None:
            opt.zero_grad()
            (net.weight.sum() + net.bias.sum()).backward()
            opt.step()

        step = mg.compile(plain) if compiled else plain
        for table in (first, then):
            if table is not None:
                opt.set_lr_multipliers(table)
            for _ in range(3):
                step()
        found.append(_values(net))
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)
