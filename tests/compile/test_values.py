"""Values of compiled code by name, the first that is not finite, and why one cannot be read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import nn, optim


class Net(nn.Module):
    """Four layers; the third divides by what may be zero."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(4)])
        self.scale = 1.0

    def forward(self, x: Any) -> Any:
        for i, layer in enumerate(self.layers):
            x = mg.named(layer(x).tanh(), f"state{i}")
            if i == 2:
                x = x * (mg.zeros(4) / (x.sum() * 0.0))
        return x


def test_the_first_value_that_is_not_finite() -> None:
    net, x = Net(), mg.randn(3, 4)
    compiled = mg.compile(net)
    with mg.debug() as d:
        compiled(x)
    found = d.step_debug()
    assert found is not None and found.nans == 4 and "div" in found.name and not found.given
    assert "test_values.py" in str(found) and "mg.zeros(4)" in str(found)
    bad = mg.tensor([[1.0, np.inf, np.nan, np.nan]])
    with mg.debug() as d:
        mg.compile(net.layers[0])(bad)
    found = d.step_debug()
    assert found is not None and found.given and (found.nans, found.infs, found.elements) == (2, 1, 4)
    with mg.debug() as d:
        mg.compile(lambda x: x.exp().sum())(x)
    assert d.step_debug() is None


def test_values_by_name_in_a_training_step() -> None:
    layer = nn.Linear(4, 3)
    opt = optim.SGD(layer.parameters(), lr=0.5)

    @mg.compile
    def step(x: Any) -> Any:
        opt.zero_grad()
        hidden = mg.named(layer(x), "hidden")
        loss = hidden.square().sum()
        loss.backward()
        opt.step()
        return loss

    x = mg.randn(5, 4)
    step(x)
    weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    with mg.debug() as d:
        loss = step(x)
    want = x.numpy() @ weight.T + bias
    np.testing.assert_allclose(d.read_node_by_name("hidden"), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(d.read_node_by_name("argument0").reshape(5, 4), x.numpy())
    assert d.read_node_by_name("sum") == pytest.approx(loss.item())
    assert "weight'" in d.value_names and d.step_debug() is None
    with pytest.raises(mg.MeganeuraError, match=r"'weight' of step cannot be read: .* changed it in place\n  at .*test_values\.py"):
        d.read_node_by_name("weight")
    np.testing.assert_array_equal(d.read_node_by_name("bias'"), layer.bias.detach().numpy())


def test_why_a_value_cannot_be_read() -> None:
    compiled = mg.compile(lambda x: mg.named(mg.named(x * 2, "twice").exp(), "grown").sum())
    x = mg.randn(4, 5)
    with pytest.raises(mg.MeganeuraError, match="has not run yet"):
        compiled.session(x).read_node_by_name("twice")
    compiled(x)
    with pytest.raises(mg.MeganeuraError, match=r"(?s)'twice' is no value of its own .* fused .*test_values\.py.*meganeura\.debug"):
        compiled.session(x).read_node_by_name("twice")
    with pytest.raises(mg.MeganeuraError, match=r"no value named 'twise'; there are .*'twice'"):
        compiled.session(x).read_node_by_name("twise")
    chain = mg.compile(lambda x: mg.named(x @ x, "first").softmax(-1) @ x @ x @ x, rewrite="off")
    y = mg.randn(40, 40)
    chain(y)
    with pytest.raises(mg.MeganeuraError, match=r"(?s)'first' .* its memory was used again .*meganeura\.debug"):
        chain.session(y).read_node_by_name("first")
    with mg.debug() as d:
        chain(y)
    np.testing.assert_allclose(d.read_node_by_name("first"), (y @ y).numpy(), rtol=1e-5, atol=1e-5)


def test_debugging_leaves_the_function_as_it_was() -> None:
    compiled = mg.compile(lambda x: (x * 2).exp().sum())
    x = mg.randn(3)
    want = compiled(x).item()
    launches = len(compiled.session(x).frozen.steps)
    with mg.debug():
        assert compiled(x).item() == pytest.approx(want)
        assert len(compiled.session(x).frozen.steps) > launches
    traces = compiled.traces
    assert compiled(x).item() == want and len(compiled.session(x).frozen.steps) == launches and compiled.traces == traces
    with pytest.raises(mg.MeganeuraError, match="no compiled function ran inside"), mg.debug() as d:
        d.step_debug()


def test_forward_and_backward_sessions_are_both_there() -> None:
    layer = nn.Linear(3, 3)
    compiled = mg.compile(layer)
    with mg.debug() as d:
        (compiled(mg.randn(2, 3)) * float("nan")).sum().backward()
    found = d.step_debug()
    assert len(d.sessions) == 2 and found is not None and found.name == "gradient0" and found.given
