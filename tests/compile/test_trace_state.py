"""State while tracing: caches, running statistics, averages, optimizers, gradients kept over calls, and what is made inside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import nn, optim
from tests.compile.agree import agree, numbers

A, B = numbers(3, 4), numbers(3, 4, seed=1)
CALLS = [(A,), (B,), (A * 2,)]


def test_cache_written_at_a_moving_position() -> None:
    """A key-value cache: the position is a tensor, so no step of decoding is traced again."""

    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.proj = nn.Linear(4, 4)
            self.register_buffer("keys", mg.zeros(8, 4))
            self.register_buffer("at", mg.zeros((), dtype="int64"))

        def forward(self, x: Any) -> Any:
            with mg.no_grad():
                k = self.proj(x)
                self.keys[self.at] = k
                self.keys.index_add_(0, self.at.view(1), k.view(1, 4) * 0.5)
                self.at.add_(1)
                seen = mg.arange(8) < self.at
                scores = (self.keys @ k).masked_fill(~seen, float("-inf"))
            return scores.softmax(0) @ self.keys

    def make() -> Any:
        mg.manual_seed(0)
        m = Cached()
        return m, lambda: [m.keys, m.at]

    agree(make, [(numbers(4, seed=i),) for i in range(6)])


def test_cache_as_argument_with_a_position() -> None:
    def f(cache: Any, x: Any, at: Any) -> Any:
        cache.index_copy_(0, at.view(1), x.view(1, -1))
        cache[:, -1].zero_()
        return cache.sum(0), cache

    g = mg.compile(f, debug=True)
    a, b = mg.zeros(5, 4), mg.zeros(5, 4)
    for i in range(5):
        x, at = mg.tensor(numbers(4, seed=i)), mg.tensor(i)
        total, same = g(a, x, at)
        assert same is a
        np.testing.assert_allclose(total.numpy(), f(b, x, at)[0].numpy(), rtol=1e-6)
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert g.traces == 1


@pytest.mark.parametrize("momentum", [0.1, None])
def test_batch_norm(momentum: Any) -> None:
    def make() -> Any:
        mg.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, momentum=momentum), nn.ReLU(), nn.Linear(6, 2))
        opt = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

        def step(x: Any) -> Any:
            loss = net(x).square().mean()
            loss.backward()
            opt.step()
            opt.zero_grad()
            return loss.detach()

        return step, lambda: [*net.parameters(), *net.buffers()]

    agree(make, CALLS * 2)


def test_batch_norm_in_both_modes() -> None:
    def make() -> Any:
        mg.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)) if hasattr(nn, "Conv2d") else nn.Sequential(nn.BatchNorm2d(2))

        def f(x: Any) -> Any:
            return net(x)

        f.net = net  # type: ignore[attr-defined]
        return f, lambda: list(net.buffers())

    image = numbers(2, 2, 5, 5)
    agree(make, [(image * i,) for i in range(1, 7)], traces=2, between=lambda i, f: f.net.train(i % 2 == 0))


def test_averages() -> None:
    def make() -> Any:
        mg.manual_seed(0)
        net = nn.Linear(4, 2)
        opt = optim.AdamW(net.parameters(), lr=0.1)
        ema, mean = optim.EMA(net, decay=0.9), optim.swa_utils.AveragedModel(net)

        def step(x: Any) -> Any:
            loss = net(x).square().mean()
            loss.backward()
            opt.step()
            opt.zero_grad()
            ema.update_parameters(net)
            mean.update_parameters(net)
            return loss.detach(), ema(x).detach()

        return step, lambda: [*ema.parameters(), *mean.parameters(), mean.n_averaged]

    agree(make, CALLS * 2)


def test_accumulation() -> None:
    def make() -> Any:
        mg.manual_seed(0)
        net = nn.Linear(4, 2)
        accumulation = optim.GradientAccumulation(optim.Adam(net.parameters(), lr=0.1), steps=2, max_norm=0.5)

        def step(x: Any) -> Any:
            loss = net(x).square().mean()
            accumulation.backward(loss)
            accumulation.step()
            return loss.detach()

        return step, lambda: [*net.parameters()]

    agree(make, CALLS * 2, traces=2)


def test_half_precision_module() -> None:
    def make() -> Any:
        mg.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2)).half()
        opt = optim.SGD(net.parameters(), lr=0.1)

        def step(x: Any) -> Any:
            loss = net(x.half()).float().square().mean()
            loss.backward()
            opt.step()
            opt.zero_grad()
            return loss.detach()

        return step

    plain, compiled = make(), mg.compile(make(), debug=True)
    for (x,) in CALLS:
        assert float(compiled(mg.tensor(x))) == pytest.approx(float(plain(mg.tensor(x))), rel=5e-3, abs=1e-3)


STRIDED: dict[str, Any] = {
    "transposed": lambda g: (g * 2).T,
    "view": lambda g: g.T,
    "expanded": lambda g: (g + 1)[0].expand(4, 4),
    "every other": lambda g: (g * 2).repeat(1, 2)[:, ::2],
}


@pytest.mark.parametrize("rewrite", ["off", "greedy"])
@pytest.mark.parametrize("grad", STRIDED)
@pytest.mark.parametrize("kind", ["SGD", "AdamW", "Muon"])
def test_steps_on_strided_gradients(kind: str, grad: str, rewrite: str) -> None:
    def make() -> Any:
        p = nn.Parameter(mg.tensor(numbers(4, 4)))
        opt = getattr(optim, kind)([p], lr=0.1)

        def step(g: Any) -> None:
            p.grad = STRIDED[grad](g)
            opt.step()

        return step, lambda: p

    agree(make, [(numbers(4, 4, seed=i),) for i in range(3)], rewrite=rewrite)


def test_views_of_parameters_and_tied_weights() -> None:
    def make() -> Any:
        mg.manual_seed(0)
        table = nn.Embedding(8, 4)
        head = nn.Linear(4, 8, bias=False)
        head.weight = table.weight
        opt = optim.AdamW({id(p): p for p in [*table.parameters(), *head.parameters()]}.values(), lr=0.1)

        def step(ids: Any) -> Any:
            h = table(ids) + table.weight[0] * 0.5
            loss = nn.functional.cross_entropy(head(h), ids)
            loss.backward()
            opt.step()
            opt.zero_grad()
            return loss.detach()

        return step, lambda: head.weight

    agree(make, [(np.array([1, 2, 3]),), (np.array([0, 7, 3]),)])


def test_state_swapped_between_calls() -> None:
    """load_state_dict, in-place changes and .data of what a session uses are seen."""
    net = nn.Linear(4, 2)
    f = mg.compile(lambda x: net(x))
    x = mg.tensor(A)
    for change in (
        lambda: net.weight.data.mul_(2), lambda: net.load_state_dict({"weight": numbers(2, 4), "bias": numbers(2)}),
        lambda: setattr(net, "weight", nn.Parameter(mg.tensor(numbers(2, 4, seed=3)))), lambda: setattr(net, "bias", None),
        lambda: setattr(net.weight, "data", mg.ones(2, 4)), lambda: net.half().float(),
    ):  # fmt: skip
        with mg.no_grad():
            change()
        np.testing.assert_allclose(f(x).detach().numpy(), net(x).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_optimizer_step_alone() -> None:
    """mg.compile(opt.step): gradients come from outside."""

    def make() -> Any:
        mg.manual_seed(0)
        net = nn.Linear(4, 2)
        opt = optim.AdamW(net.parameters(), lr=0.1)
        return net, opt

    (net, opt), (other, same) = make(), make()
    step = mg.compile(same.step)
    for i in range(4):
        for m, take, zero in ((net, opt.step, opt.zero_grad), (other, step, same.zero_grad)):
            m(mg.tensor(numbers(3, 4, seed=i))).square().mean().backward()
            take()
            zero()
    for p, q in zip(net.parameters(), other.parameters(), strict=True):
        np.testing.assert_allclose(q.detach().numpy(), p.detach().numpy(), rtol=1e-6)
    assert step.traces == 1


def test_step_with_a_closure() -> None:
    def make() -> Any:
        mg.manual_seed(0)
        net = nn.Linear(4, 2)
        opt = optim.SGD(net.parameters(), lr=0.1, momentum=0.5)

        def step(x: Any) -> Any:
            def closure() -> Any:
                opt.zero_grad()
                loss = net(x).square().mean()
                loss.backward()
                return loss

            return opt.step(closure).detach()

        return step, lambda: list(net.parameters())

    agree(make, CALLS, traces=None)


@pytest.mark.parametrize("rewrite", ["off", "greedy"])
def test_gradients_that_are_filled_with_zeros_again(rewrite: str) -> None:
    """A value that is fused into its reader, and whose memory is then overwritten and handed out."""

    def make() -> Any:
        mg.manual_seed(0)
        net = nn.Linear(4, 3)

        def step(x: Any) -> Any:
            net(x).square().sum().backward()
            with mg.no_grad():
                for p in net.parameters():
                    p.data.add_(p.grad, alpha=-0.01)
                    p.grad.zero_()
            return net.weight.sum().detach()

        return step, lambda: [*net.parameters(), *(p.grad for p in net.parameters())]

    agree(make, CALLS, traces=2, rewrite=rewrite)

    def reused(x: Any) -> Any:
        y = x * 2
        z = y + 1
        y.fill_(3.0)
        return y, z

    agree(lambda: reused, CALLS, rewrite=rewrite)


def test_modules_and_leaves_made_inside() -> None:
    def module(x: Any) -> Any:
        net = nn.Sequential(nn.Linear(4, 2), nn.ReLU())
        return net(x)

    def leaves(x: Any) -> Any:
        w = x.clone().requires_grad_()
        return (w * 2).sum(), (w.exp() * x).sum()

    def one(x: Any) -> Any:
        return x.clone().requires_grad_()

    for f in (module, leaves, one):
        agree(lambda f=f: f, CALLS)
    w = mg.compile(one)(mg.tensor(A))
    assert w.is_leaf and w.requires_grad
    (w * 2).sum().backward()
    assert (w.grad.numpy() == 2).all()
    x = mg.tensor(A).requires_grad_()
    plain, compiled = (mg.autograd.grad(f(x)[1], [x])[0].numpy() for f in (leaves, mg.compile(leaves)))
    np.testing.assert_allclose(compiled, plain, rtol=1e-6)
