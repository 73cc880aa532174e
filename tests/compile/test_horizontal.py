"""Products of one input with several weights run as one, on packed weights that follow the weights they came from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import nn, optim
from meganeura.compile.horizontal import NAME, moved
from meganeura.dtype import float32
from meganeura.storage import Layout

F = nn.functional


class Gated(nn.Module):
    """silu(gate(x)) * up(x)."""

    def __init__(self, bias: bool, width: int = 12, hidden: int = 20) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, hidden, bias=bias), nn.Linear(width, hidden, bias=bias)

    def forward(self, x: Any) -> Any:
        return F.silu(self.gate(x)) * self.up(x)


class Heads(nn.Module):
    """Query of 4 heads, key and value of 2, split and multiplied."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(12, 32, bias=bias), nn.Linear(12, 16, bias=bias), nn.Linear(12, 16, bias=bias)

    def forward(self, x: Any) -> Any:
        b, n, _ = x.shape
        q, k, v = (f(x).reshape(b, n, -1, 8).transpose(1, 2) for f in (self.q, self.k, self.v))
        k, v = (t.repeat_interleave(2, 1) for t in (k, v))
        return (q @ k.transpose(-1, -2)).softmax(-1) @ v


def fired(compiled: Any, *args: Any) -> int:
    """How many products were merged."""
    return int(getattr(compiled, "compiled", compiled).report(*args)[0].count(NAME))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [Gated, Heads])
def test_one_product_equals_several(kind: Any, bias: bool) -> None:
    model, x = kind(bias), mg.randn(2, 5, 12)
    compiled = mg.compile(model, debug=True)
    with mg.no_grad():
        np.testing.assert_allclose(compiled(x).numpy(), model(x).numpy(), rtol=1e-5, atol=1e-6)
        assert fired(compiled, x) == (2 if kind is Gated else 3)


def test_packed_weights_follow_their_sources() -> None:
    model, x = Gated(True), mg.randn(3, 12)
    compiled = mg.compile(model)
    with mg.no_grad():
        compiled(x)
        model.gate.weight.mul_(2)
        model.up.bias[3] = 7.0
        np.testing.assert_allclose(compiled(x).numpy(), model(x).numpy(), rtol=1e-5, atol=1e-6)
        model.load_state_dict(Gated(True).state_dict())
        np.testing.assert_allclose(compiled(x).numpy(), model(x).numpy(), rtol=1e-5, atol=1e-6)
        model.up.weight = nn.Parameter(mg.randn(20, 12))
        np.testing.assert_allclose(compiled(x).numpy(), model(x).numpy(), rtol=1e-5, atol=1e-6)


def test_unchanged_weights_are_packed_once() -> None:
    model, x = Gated(True), mg.randn(3, 12)
    compiled = mg.compile(model)
    with mg.no_grad():
        compiled(x), compiled(x)
        before = mg.device().counters.dispatches
        compiled(x)
        assert mg.device().counters.dispatches - before == len(compiled.session(x).frozen.steps)


def test_weights_of_the_other_orientation() -> None:
    a, b, x = mg.randn(12, 20), mg.randn(12, 7), mg.randn(5, 12)
    compiled = mg.compile(lambda x: (x @ a, (x @ b).relu(), ((x @ a) * 1.0)), debug=True)
    for got, want in zip(compiled(x), (x @ a, (x @ b).relu(), x @ a), strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5, atol=1e-6)
    compiled = mg.compile(lambda x: (x @ a).sum(0) + (x @ a.relu()).sum(0), debug=True)
    assert fired(compiled, x) == 0
    compiled = mg.compile(lambda x: (x @ a)[:, 2:9].relu() + (x @ b).exp(), debug=True)
    np.testing.assert_allclose(compiled(x).numpy(), ((x @ a)[:, 2:9].relu() + (x @ b).exp()).numpy(), rtol=1e-5, atol=1e-6)
    assert fired(compiled, x) == 2


def test_the_order_of_their_biases_does_not_matter() -> None:
    model, x = Gated(True), mg.randn(3, 12)

    def crossed(x: Any) -> Any:
        g, u = x @ model.gate.weight.T, x @ model.up.weight.T
        u = (u + model.up.bias).exp()
        return u * (g + model.gate.bias)

    compiled = mg.compile(crossed, debug=True)
    with mg.no_grad():
        np.testing.assert_allclose(compiled(x).numpy(), crossed(x).numpy(), rtol=1e-5, atol=1e-6)
        assert fired(compiled, x) == 2


def test_what_is_handed_out_or_trained_is_left_alone() -> None:
    model, x = Gated(True), mg.randn(3, 12)
    compiled = mg.compile(model)
    compiled(x).sum().backward()
    assert fired(compiled, x) == 0
    opt = optim.SGD(model.parameters(), lr=0.1)

    @mg.compile
    def step(x: Any) -> Any:
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        opt.step()
        return loss

    step(x)
    assert fired(step, x) == 0
    with mg.no_grad():
        both = mg.compile(lambda x: (model.gate(x), model.up(x)))
        g, u = both(x)
        g.zero_()
        np.testing.assert_allclose(u.numpy(), model.up(x).numpy(), rtol=1e-5, atol=1e-6)


def test_layouts_over_columns_of_wider_rows() -> None:
    rows = Layout(float32, (2, 3, 4, 5), (60, 20, 5, 1))  # [2, 3] rows of 4 * 5 columns
    assert moved(rows, 20, 50, 10).strides == (150, 50, 5, 1) and moved(rows, 20, 50, 10).offset == 10  # type: ignore[union-attr]
    assert moved(Layout(float32, (120,)), 20, 50, 0) is None
    assert moved(Layout(float32, (20, 6), (1, 20)), 20, 50, 30).strides == (1, 50)  # type: ignore[union-attr]
    assert moved(Layout(float32, (6, 8), (20, 1), 25), 20, 50, 30).offset == 50 + 5 + 30  # type: ignore[union-attr]
    assert moved(Layout(float32, (6, 8), (20, 1), 13), 20, 50, 30) is None
