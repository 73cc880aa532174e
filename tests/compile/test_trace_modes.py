"""Recording inside compiled code: modes, hooks, retained gradients, checkpoints, second derivatives, gradients of .grad."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import nn, optim
from tests.compile.agree import agree, numbers, same

A, B = numbers(3, 4), numbers(3, 4, seed=1)
CALLS = [(A,), (B,), (A * 2,)]


def leaf(array: Any) -> Any:
    return mg.tensor(array).requires_grad_()


def test_modes() -> None:
    def f(x: Any) -> Any:
        w = x.detach().clone().requires_grad_()
        with mg.no_grad():
            a = w * 2
            with mg.enable_grad():
                b = w * 3
            with mg.set_grad_enabled(False):
                c = w * 4
        with mg.set_grad_enabled(True):
            d = (w * a).sum() + (b * c).sum()
        d.backward()
        assert not a.requires_grad and b.requires_grad and not c.requires_grad and mg.is_grad_enabled()
        return w.grad, d.detach()

    agree(lambda: f, CALLS)


def test_mode_of_a_decorated_function() -> None:
    @mg.no_grad()
    def f(x: Any) -> Any:
        return x * 2

    g = mg.compile(f)
    assert not g(leaf(A)).requires_grad
    h = mg.no_grad()(mg.compile(lambda x: x * 2))
    assert not h(leaf(A)).requires_grad


def test_mode_that_is_left_changed_is_put_back() -> None:
    def f(x: Any) -> Any:
        mg.set_grad_enabled(False).__enter__()
        return x.item()

    with pytest.raises(mg.TraceError):
        mg.compile(f)(mg.ones(1))
    assert mg.is_grad_enabled()


def test_tensor_hooks_and_retain_grad() -> None:
    def f(x: Any) -> Any:
        w = x.detach().clone().requires_grad_()
        seen = []
        h = w * 2
        h.retain_grad()
        h.register_hook(lambda g: g * 3)
        handle = w.register_hook(lambda g: g + 1)
        w.register_hook(lambda g: seen.append(g * 1))
        y = h.exp().sum()
        y.backward(retain_graph=True)
        handle.remove()
        first = w.grad.clone()
        w.grad = None
        y.backward()
        return first, w.grad, h.grad, seen

    agree(lambda: f, CALLS)


def test_hooks_of_parameters_outside() -> None:
    """Registered outside, they run inside a compiled step, and outside for a compiled call that is one node."""

    def make() -> Any:
        mg.manual_seed(0)
        layer = nn.Linear(4, 2)
        layer.weight.register_hook(lambda g: g * 2)

        def step(x: Any) -> Any:
            layer.zero_grad()
            layer(x).square().sum().backward()
            return layer.weight.grad, layer.bias.grad

        return step

    agree(make, CALLS)


def test_module_hooks() -> None:
    def make() -> Any:
        mg.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        net[0].register_forward_pre_hook(lambda m, args: (args[0] * 2,))
        net[1].register_forward_hook(lambda m, args, out: out + 1)
        return lambda x: net(x)

    agree(make, CALLS)


def test_a_hook_added_later_retraces() -> None:
    net = nn.Linear(4, 2)
    f = mg.compile(lambda x: net(x))
    x = mg.tensor(A)
    plain = f(x).detach().numpy()
    handle = net.register_forward_hook(lambda m, args, out: out * 2)
    np.testing.assert_allclose(f(x).detach().numpy(), plain * 2, rtol=1e-6)
    handle.remove()
    np.testing.assert_allclose(f(x).detach().numpy(), plain, rtol=1e-6)


def test_tensor_hook_added_later_retraces() -> None:
    w = leaf(A)

    def step() -> Any:
        w.grad = None
        (w * w).sum().backward()
        return w.grad

    f = mg.compile(step)
    np.testing.assert_allclose(f().numpy(), 2 * A, rtol=1e-6)
    handle = w.register_hook(lambda g: g * 5)
    np.testing.assert_allclose(f().numpy(), 10 * A, rtol=1e-6)
    handle.remove()
    np.testing.assert_allclose(f().numpy(), 2 * A, rtol=1e-6)


def test_double_backward_inside() -> None:
    def f(x: Any) -> Any:
        w = x.detach().clone().requires_grad_()
        y = (w.tanh() * w).sum()
        (g,) = mg.autograd.grad(y, [w], create_graph=True)
        penalty = (g * g).sum()
        (h,) = mg.autograd.grad(penalty, [w], create_graph=True)
        h.sum().backward()
        return g.detach(), h.detach(), w.grad

    agree(lambda: f, CALLS)


def test_gradient_penalty_step() -> None:
    def make() -> Any:
        mg.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        opt = optim.Adam(net.parameters(), lr=0.01)

        def step(x: Any) -> Any:
            x = x.detach().requires_grad_()
            out = net(x).sum()
            (g,) = mg.autograd.grad(out, [x], create_graph=True)
            loss = out + (g.square().sum(1).sqrt() - 1).square().mean()
            loss.backward()
            opt.step()
            opt.zero_grad()
            return loss.detach()

        return step, lambda: list(net.parameters())

    agree(make, CALLS * 2)


def test_function_transforms() -> None:
    def f(x: Any) -> Any:
        value, g = mg.value_and_grad(lambda t: (t.sin() * t).sum())(x)
        return value, g, mg.grad((y := x.detach().requires_grad_()).square().sum(), y)

    agree(lambda: f, CALLS)


def test_gradient_of_a_compiled_gradient() -> None:
    """create_graph=True through a compiled call."""
    w = leaf(B)

    def f(x: Any) -> Any:
        return (x * x * w).exp().sum() * 0.1, (x * w).sin()

    g = mg.compile(f)
    for scale in (0.3, 0.5):
        out = []
        for call in (f, g):
            x = leaf(A * scale)
            a, b = call(x)
            gx, gw = mg.autograd.grad((a * b).sum(), [x, w], create_graph=True)
            hx, hw = mg.autograd.grad((gx * gx).sum() + gw.sum(), [x, w])
            w.grad = None
            out.append([t.detach().numpy() for t in (gx, gw, hx, hw)])
        same(out[1], out[0], rtol=1e-4, atol=1e-5)


def test_gradient_of_a_compiled_gradient_draws_the_same() -> None:
    g = mg.compile(lambda x: (nn.functional.dropout(x, 0.5) * x).square().sum())
    x = leaf(A)
    y = g(x)
    mg.rand(3)
    (gx,) = mg.autograd.grad(y, [x], create_graph=True)
    kept = gx.detach().numpy() != 0
    (hx,) = mg.autograd.grad(gx.sum(), [x])
    np.testing.assert_allclose(gx.detach().numpy(), np.where(kept, 16 * A**3, 0), rtol=1e-5)
    np.testing.assert_allclose(hx.numpy(), np.where(kept, 48 * A**2, 0), rtol=1e-5)
    assert 0 < kept.sum() < kept.size


def test_function_with_a_rule_of_its_own() -> None:
    class Clipped(mg.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, limit: float) -> Any:
            ctx.save_for_backward(x)
            ctx.limit = limit
            return x.clamp(-limit, limit)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return g * (x.abs() < ctx.limit) * 10, None

    def f(x: Any) -> Any:
        w = x.detach().clone().requires_grad_()
        (Clipped.apply(w * 2, 1.0) * w).sum().backward()
        return w.grad

    agree(lambda: f, CALLS)
    w = leaf(A)
    out = mg.compile(lambda w: Clipped.apply(w * 2, 1.0) * w)(w)
    out.sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), f(mg.tensor(A)).numpy(), rtol=1e-6)


@pytest.mark.parametrize("inside", [True, False])
def test_checkpoint(inside: bool) -> None:
    def make() -> Any:
        mg.manual_seed(0)
        layers = [nn.Linear(4, 4) for _ in range(3)]

        def step(x: Any) -> Any:
            for layer in layers:
                layer.zero_grad()
            for layer in layers:
                x = mg.checkpoint(lambda layer, x: nn.functional.dropout(layer(x).tanh(), 0.3) + x, layer, x)
            loss = x.square().mean()
            if inside:
                loss.backward()
                loss = loss.detach()
            return loss

        return step, lambda: [p.grad for layer in layers for p in layer.parameters()]

    agree(make, CALLS)


def test_accumulated_over_calls_and_micro_batches() -> None:
    def make() -> Any:
        mg.manual_seed(0)
        net = nn.Linear(4, 2)

        def add(x: Any) -> Any:
            for part in x.chunk(3):
                (net(part).square().mean() / 3).backward()
            return net.weight.grad.norm()

        return add, lambda: [p.grad for p in net.parameters()]

    agree(make, CALLS, traces=2)  # without .grad first, then with


def test_set_grad_of_an_argument_and_of_state() -> None:
    w = leaf(A)

    def f(x: Any, g: Any) -> Any:
        x.grad = g * 2
        w.grad = g.clone()
        return x.grad

    h = mg.compile(f)
    for n in (1.0, 2.0):
        x = leaf(A)
        out = h(x, mg.full((3, 4), n))
        assert x.grad is out and (out.numpy() == 2 * n).all() and (w.grad.numpy() == n).all()


def test_compiled_call_in_a_checkpoint_draws_the_same_again() -> None:
    g = mg.compile(lambda x: nn.functional.dropout(x, 0.5))
    x = leaf(np.ones((8, 8), np.float32))
    for _ in range(2):
        x.grad = None
        y = mg.checkpoint(lambda x: g(x).exp() * g(x), x)
        after = mg.get_rng_state().tolist()
        y.sum().backward()
        assert mg.get_rng_state().tolist() == after
        a_and_b = [(0, 0), (0, 2), (2, 2)]  # y = exp(a x) b x, whose slope at 1 is exp(a) b (a + 1)
        want = sorted({float(np.float32(np.exp(a) * b * (a + 1))) for a, b in a_and_b})
        np.testing.assert_allclose(np.unique(x.grad.numpy().round(3)), want, rtol=1e-4)


def test_requires_grad_of_an_argument_set_inside() -> None:
    def f(x: Any) -> Any:
        x.requires_grad_()
        x.grad = None
        (x * x).sum().backward()
        return x.grad, x * 3

    g = mg.compile(f)
    for n in (1.0, 2.0):
        x = mg.full((2,), n)
        for _ in range(2):
            slope, y = g(x)
            assert x.requires_grad and x.grad is slope and slope.tolist() == [2 * n] * 2
            assert y.requires_grad
        y.sum().backward()
        assert x.grad.tolist() == [2 * n + 3] * 2
    assert g.traces == 2


def test_hooks_left_behind_are_refused() -> None:
    w = leaf(A)

    def on_argument(x: Any) -> Any:
        x.register_hook(lambda g: g * 2)
        return x * 2

    def on_state(x: Any) -> Any:
        y = x * w
        w.register_hook(lambda g: g * 2)
        return y

    def removed(x: Any) -> Any:
        handles = [t.register_hook(lambda g: g * 2) for t in (x, w)]
        (gx, gw) = mg.autograd.grad((x * w).sum(), [x, w])
        for h in handles:
            h.remove()
        return gx, gw

    for f in (on_argument, on_state):
        with pytest.raises(mg.TraceError, match="hook"):
            mg.compile(f)(leaf(B))
        assert not w._hooks
    gx, gw = mg.compile(removed)(leaf(B))
    np.testing.assert_allclose(gx.numpy(), 2 * A, rtol=1e-6)
    np.testing.assert_allclose(gw.numpy(), 2 * B, rtol=1e-6)


def test_hooks_of_arguments() -> None:
    def f(x: Any) -> Any:
        x.grad = None
        (x * 3).sum().backward()

    g = mg.compile(f)
    x = leaf(A)
    g(x)
    assert (x.grad.numpy() == 3).all()
    handle = x.register_hook(lambda g: g * 2)
    g(x)
    assert (x.grad.numpy() == 6).all()
    handle.remove()
    g(x)
    assert (x.grad.numpy() == 3).all()
    assert g.traces == 2
