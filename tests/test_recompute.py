"""Checkpoints: the same numbers as without, from less memory, eagerly, by the references and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import dispatch, nn
from meganeura.errors import GradientError
from meganeura.reference import Reference

F = nn.functional
WIDTH = 32


def layers(count: int = 4) -> list[Any]:
    mg.manual_seed(0)
    return [nn.Linear(WIDTH, WIDTH) for _ in range(count)]


def block(layer: Any, x: Any, scale: float = 1.0) -> Any:
    return x + F.dropout(F.gelu(layer(x)), 0.3) * scale


def run(stack: list[Any], x: Any, saving: bool) -> Any:
    for layer in stack:
        x = mg.checkpoint(block, layer, x, scale=0.5) if saving else block(layer, x, scale=0.5)
    return (x * x).mean()


def gradients(stack: list[Any], x: Any, saving: bool, step: Any = None) -> list[Any]:
    """Loss and gradients, of a fresh start and a fixed seed."""
    for layer in stack:
        layer.zero_grad()
    mg.manual_seed(3)
    loss = run(stack, x, saving) if step is None else step(x, saving)
    loss.backward()
    return [loss.detach().numpy(), *(p.grad.numpy() for layer in stack for p in layer.parameters())]


def test_equals_plain_code_bit_by_bit() -> None:
    stack, x = layers(), mg.randn(8, WIDTH)
    for a, b in zip(gradients(stack, x, True), gradients(stack, x, False), strict=True):
        np.testing.assert_array_equal(a, b)


def test_draws_go_on_as_without() -> None:
    stack, x = layers(), mg.randn(8, WIDTH)
    after = []
    for saving in (True, False):
        gradients(stack, x, saving)
        after.append(mg.get_rng_state())
    np.testing.assert_array_equal(*after)


def test_nothing_is_kept_until_backward() -> None:
    x = mg.randn(8, WIDTH, requires_grad=True)
    y = mg.checkpoint(lambda x: (x.exp() * x).sin(), x)
    node, seen = y.grad_fn, []
    while node is not None and hasattr(node, "args"):
        seen.append(node.args)
        node = node.edges[0][0] if node.edges and node.edges[0] else None
    assert len(seen) > 1 and not any(seen)
    y.sum().backward()
    v = x.detach().numpy()
    np.testing.assert_allclose(x.grad.numpy(), np.cos(np.exp(v) * v) * np.exp(v) * (1 + v), rtol=1e-3, atol=1e-3)


def test_by_the_references() -> None:
    with dispatch.use(Reference(precise=True)):
        x = mg.tensor(np.linspace(-1, 1, 5)).requires_grad_()
        mg.checkpoint(lambda x: x.tanh() * x, x).sum().backward()
        v = np.linspace(-1, 1, 5)
        np.testing.assert_allclose(x.grad.numpy(), np.tanh(v) + v * (1 - np.tanh(v) ** 2))


def test_second_derivatives() -> None:
    x = mg.tensor([0.5, -1.0], requires_grad=True)
    y = mg.checkpoint(lambda x: x * x * x, x).sum()
    (g,) = mg.autograd.grad(y, [x], create_graph=True)
    (h,) = mg.autograd.grad(g.sum(), [x])
    np.testing.assert_allclose(h.numpy(), [3.0, -6.0], rtol=1e-6)


def test_backward_twice() -> None:
    x = mg.tensor([0.5, -1.0], requires_grad=True)
    y = mg.checkpoint(lambda x: x.exp() * x, x).sum()
    y.backward(retain_graph=True)
    y.backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * np.exp([0.5, -1.0]) * [1.5, 0.0], rtol=1e-5)
    with pytest.raises(GradientError, match="second time"):
        y.backward()


def test_without_gradients_it_is_a_call() -> None:
    with mg.no_grad():
        assert not mg.checkpoint(lambda x: x * 2, mg.ones(3)).requires_grad


def test_a_checkpoint_within_a_checkpoint() -> None:
    x = mg.tensor([0.5, -1.0], requires_grad=True)

    def inner(x: Any) -> Any:
        return x.exp() * x

    mg.checkpoint(lambda x: mg.checkpoint(inner, x).sin() * x, x).sum().backward()
    other = mg.tensor([0.5, -1.0], requires_grad=True)
    (inner(other).sin() * other).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), other.grad.numpy(), rtol=1e-6)


def test_what_cannot_be_computed_again_is_an_error() -> None:
    x = mg.ones(3, requires_grad=True)
    calls: list[int] = []

    def other_each_time(x: Any) -> Any:
        calls.append(1)
        return x.exp() if len(calls) > 1 else x.sin() * x

    with pytest.raises(GradientError, match="something else the second time"):
        mg.checkpoint(other_each_time, x).sum().backward()
    y = x * 1
    out = mg.checkpoint(lambda y: y.exp() * y, y).sum()
    with mg.no_grad():
        y.add_(1)
    with pytest.raises(GradientError, match="changed in place before backward"):
        out.backward()


# ---- compiled ----


@pytest.mark.parametrize("inside", [True, False], ids=["whole step", "backward outside"])
def test_compiled_equals_eager(inside: bool) -> None:
    stack, x = layers(), mg.randn(8, WIDTH)
    want = gradients(stack, x, False)
    if inside:

        def step(x: Any, saving: bool) -> Any:
            loss = run(stack, x, saving)
            loss.backward()
            return loss.detach()

        compiled = mg.compile(step, debug=True)
        for layer in stack:
            layer.zero_grad()
        mg.manual_seed(3)
        got = [compiled(x, True).numpy(), *(p.grad.numpy() for layer in stack for p in layer.parameters())]
    else:
        got = gradients(stack, x, True, mg.compile(lambda x, saving: run(stack, x, saving), debug=True))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6)


def test_recomputation_is_not_merged_back() -> None:
    """The plan needs less memory at its peak, although every value is computed twice."""
    stack, x = layers(8), mg.randn(256, WIDTH)

    def step(x: Any, saving: bool) -> Any:
        loss = run(stack, x, saving)
        loss.backward()
        return loss

    for layer in stack:
        layer.zero_grad()
    compiled = mg.compile(step)
    plain, saving = (compiled.plan(x, s) for s in (False, True))
    assert saving.nbytes < 0.75 * plain.nbytes
    assert len(compiled.graph(x, True).nodes) > len(compiled.graph(x, False).nodes)


def test_a_compiled_forward_saves_less() -> None:
    stack, x = layers(4), mg.randn(256, WIDTH)
    compiled = mg.compile(lambda x, saving: run(stack, x, saving))
    plain, saving = (compiled.graph(x, s).outputs for s in (False, True))
    assert sum(c.nbytes for c in saving) < 0.75 * sum(c.nbytes for c in plain)
