"""Observable state: what a traced function read of Python's world is guarded; what it only held is not."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import nn, optim
from meganeura.tensor import state_epoch

X = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        mg.manual_seed(0)
        self.layer = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)
        self.scale = 1.0
        self.register_buffer("shift", mg.zeros(4))

    def forward(self, x: Any) -> Any:
        return self.drop(self.layer(x)) * self.scale + self.shift


def _set(obj: Any, name: str, value: Any) -> None:
    setattr(obj, name, value)


CHANGES: dict[str, Any] = {
    "training": lambda net: net.eval(),
    "training of a part": lambda net: net.drop.eval(),
    "an attribute": lambda net: _set(net, "scale", 3.0),
    "an attribute of a part": lambda net: _set(net.drop, "p", 0.25),
    "another part": lambda net: _set(net, "layer", nn.Linear(4, 4, bias=False)),
    "a parameter replaced": lambda net: _set(net.layer, "weight", nn.Parameter(mg.ones(4, 4))),
    "a buffer replaced": lambda net: _set(net, "shift", mg.ones(4)),
    "a bias removed": lambda net: _set(net.layer, "bias", None),
    "requires_grad": lambda net: net.layer.weight.requires_grad_(False),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_module_is_seen(name: str) -> None:
    """The compiled call does what eager code does after the change, forward and backward."""
    net, twin = Net(), Net()
    f = mg.compile(lambda x: net(x))
    x = mg.tensor(X)
    f(x)
    f(x)
    assert f.traces == 1
    for n in (net, twin):
        mg.manual_seed(4)
        CHANGES[name](n)
    mg.manual_seed(7)
    want = twin(x)
    want.sum().backward()
    mg.manual_seed(7)
    got = f(x)
    got.sum().backward()
    np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=1e-5, atol=1e-6)
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None)
        if p.grad is not None:
            np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-5, atol=1e-6)


CHEAP: dict[str, Any] = {
    "weights in place": lambda net: net.layer.weight.data.mul_(2),
    "a state dict": lambda net: net.load_state_dict({k: v * 2 for k, v in net.state_dict().items()}),
    "another module's attribute": lambda net: _set(Net(), "scale", 5.0),
}


@pytest.mark.parametrize("name", CHEAP)
def test_values_are_state_not_structure(name: str) -> None:
    """New values of parameters and buffers are used without a new trace."""
    net = Net().eval()
    f = mg.compile(lambda x: net(x))
    x = mg.tensor(X)
    f(x)
    with mg.no_grad():
        CHEAP[name](net)
    np.testing.assert_allclose(f(x).detach().numpy(), net(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    assert f.traces == 1


def _step(p: Any, opt: Any) -> Any:
    def step(x: Any) -> Any:
        loss = (p * x).sum()
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss

    return step


GROUPS: dict[str, tuple[Any, int]] = {
    "lr": (lambda opt: opt.param_groups[0].update(lr=0.3), 1),
    "weight decay": (lambda opt: opt.param_groups[0].update(weight_decay=0.2), 1),
    "momentum switched on": (lambda opt: opt.param_groups[0].update(momentum=0.9), 2),
    "another group": (lambda opt: opt.add_param_group({"params": [nn.Parameter(mg.ones(2))], "lr": 0.1}), 2),
    "a group emptied": (lambda opt: opt.param_groups[0].update(params=[]), 3),  # the third because .grad stays from then on
}


@pytest.mark.parametrize("name", GROUPS)
def test_groups_and_hyperparameters_are_guarded(name: str) -> None:
    """Structure traces again, numbers do not; both are right."""
    change, traces = GROUPS[name]
    found = []
    for wrap in (lambda f: f, mg.compile):
        p = nn.Parameter(mg.ones(3))
        opt = optim.SGD([p], lr=0.1)
        step = wrap(_step(p, opt))
        x = mg.tensor([1.0, 2.0, 3.0])
        step(x)
        change(opt)
        step(x)
        step(x)
        found.append(p.detach().numpy())
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)
    assert step.traces == traces


def test_moments_are_made_for_real_inside_a_trace() -> None:
    """The first traced step allocates state that outlives it and that eager code can go on with."""
    p, q = nn.Parameter(mg.ones(3)), nn.Parameter(mg.ones(3))
    a, b = optim.AdamW([p], lr=0.1), optim.AdamW([q], lr=0.1)
    x = mg.tensor([1.0, -2.0, 3.0])
    compiled, eager = mg.compile(_step(p, a)), _step(q, b)
    for i in range(4):
        (compiled if i < 2 else _step(p, a))(x)
        eager(x)
    np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), rtol=1e-6)
    assert a.state[p]["step"] == 4
    assert all(t._storage.buffer is not None for t in a.state[p].values() if isinstance(t, mg.Tensor))


@pytest.mark.parametrize("change", ["requires_grad", "data", "attribute", "train"])
def test_every_change_moves_the_epoch(change: str) -> None:
    net = Net()
    before = state_epoch[0]
    {
        "requires_grad": lambda: net.layer.weight.requires_grad_(False),
        "data": lambda: _set(net.layer.weight, "data", mg.ones(4, 4)),
        "attribute": lambda: _set(net, "scale", 2.0),
        "train": lambda: net.train(False),
    }[change]()
    assert state_epoch[0] > before


def test_arguments_are_not_kept() -> None:
    """A session holds no tensor that was only passed to it, and does not guard what such a tensor carries."""
    f = mg.compile(lambda t: t * 2)
    x = mg.ones(3, requires_grad=True)
    f(x).sum().backward()
    f(mg.ones(3, requires_grad=True))
    assert f.traces == 1
    dead = weakref.ref(x._storage)
    del x
    gc.collect()
    assert dead() is None
