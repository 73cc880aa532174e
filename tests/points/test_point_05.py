"""Parameters of a dispatch: numbers that vary build no pipeline, no plan and no uniform, in eager and compiled code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import dispatch, gpu, optim

F = mg.nn.functional
X = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)


def _grad(f: Callable[[Any], Any], x: Any) -> Any:
    x = x.detach().requires_grad_()
    f(x).sum().backward()
    return x.grad


NUMBERS: dict[str, Callable[[Any, float], Any]] = {
    "operand": lambda x, v: x * v + v,
    "left operand": lambda x, v: v - x,
    "power": lambda x, v: x.abs() ** v,
    "clamp": lambda x, v: x.clamp(-v, v),
    "fill": lambda x, v: mg.full((6, 8), v),
    "fill in place": lambda x, v: x.clone().fill_(v),
    "assignment": lambda x, v: x.clone().__setitem__((slice(None), 1), v),
    "masked": lambda x, v: x.masked_fill(x > 0, v),
    "where": lambda x, v: mg.where(x > v, x, v),
    "alpha": lambda x, v: x.add(x, alpha=v),
    "softplus": lambda x, v: F.softplus(x, v, 20 * v),
    "eps": lambda x, v: F.layer_norm(x, (8,), eps=v),
    "rms eps": lambda x, v: F.rms_norm(x, (8,), eps=v),
    "dropout": lambda x, v: mg.dropout(x, v / 10),
    "random": lambda x, v: mg.rand(6, 8),
    "uniform in place": lambda x, v: x.clone().uniform_(-v, v),
    "normal in place": lambda x, v: x.clone().normal_(0.0, v),
    "range": lambda x, v: mg.arange(v, v + 4, 1.0),
    "pad": lambda x, v: F.pad(x, (1, 1), value=v),
    "smoothing": lambda x, v: F.cross_entropy(x, mg.tensor([0, 1, 2, 3, 4, 5]), label_smoothing=v / 10),
    "gradient of a product": lambda x, v: _grad(lambda t: t * v, x),
    "gradient of a power": lambda x, v: _grad(lambda t: t.abs() ** v, x),
    "gradient of softplus": lambda x, v: _grad(lambda t: F.softplus(t, v, 20 * v), x),
    "gradient of a norm": lambda x, v: _grad(lambda t: F.layer_norm(t, (8,), eps=v), x),
    "gradient of clamp": lambda x, v: _grad(lambda t: t.clamp(-v, v), x),
    "gradient of dropout": lambda x, v: _grad(lambda t: mg.dropout(t, v / 10), x),
    "gradient of a product with a number tensor": lambda x, v: _grad(lambda t: (t * v).tanh() / v, x),
}


def made() -> tuple[int, ...]:
    """Pipelines, uniforms ever asked for, plans and fused gradient rules."""
    device, eager = gpu.current(), dispatch.current()
    return device.counters.pipelines, len(device.pipelines.uniforms), len(eager.plans), len(eager.rules.known)


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_that_varies_makes_nothing(name: str) -> None:
    x = mg.tensor(X)
    for v in (0.5, 0.75):
        NUMBERS[name](x, v)
    before = made()
    for v in np.linspace(0.51, 2.9, 12):
        NUMBERS[name](x, float(v))
    assert made() == before


@pytest.mark.parametrize("name", ["operand", "power", "clamp", "alpha", "softplus", "eps"])
def test_a_number_is_the_one_of_this_call(name: str) -> None:
    x = mg.tensor(X)
    outs = [(v, NUMBERS[name](x, v)) for v in (0.5, 1.25, 2.0)]
    reference = mg.Reference()
    with dispatch.use(reference):
        y = mg.tensor(X)
        wanted = [reference.read(NUMBERS[name](y, v)) for v, _ in outs]
    for (_, out), want in zip(outs, wanted, strict=True):
        np.testing.assert_allclose(out.numpy(), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [optim.SGD, optim.AdamW, optim.LaProp], ids=lambda c: c.__name__)
def test_a_schedule_makes_nothing_in_eager(make: Any) -> None:
    p = mg.nn.Parameter(mg.ones(7))
    opt = make([p], lr=0.1)

    def step(lr: float) -> None:
        opt.param_groups[0]["lr"] = lr
        p.grad = mg.ones(7)
        opt.step()

    for lr in (0.1, 0.2):
        step(lr)
    before = made()
    for lr in np.linspace(0.01, 0.3, 10):
        step(float(lr))
    assert made() == before


def test_a_schedule_and_draws_make_nothing_compiled() -> None:
    p = mg.nn.Parameter(mg.ones(7))
    opt = optim.AdamW([p], lr=0.1)

    @mg.compile
    def step(x: Any) -> Any:
        loss = (mg.dropout(p * x, 0.5) ** 2).sum()
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss

    x = mg.ones(7)
    for _ in range(3):
        step(x)
    device = gpu.current()
    before = device.counters.pipelines, len(device.pipelines.uniforms), device.counters.buffers, step.traces
    for lr in np.linspace(0.01, 0.3, 10):
        opt.param_groups[0]["lr"] = float(lr)
        step(x)
    assert (device.counters.pipelines, len(device.pipelines.uniforms), device.counters.buffers, step.traces) == before


def test_uniforms_are_shared_by_content_and_never_written_again() -> None:
    device = gpu.current()
    x = mg.tensor(X)
    first = x * 2
    y = mg.tensor(X + 1)
    _ = y * 3, x.exp(), first
    before = len(device.pipelines.uniforms)
    for _ in range(5):
        z = mg.tensor(X)
        _ = z * 2, z.exp()
    assert len(device.pipelines.uniforms) == before


def test_no_kernel_source_holds_a_number_of_its_call() -> None:
    """Whatever the value, the WGSL is the same text: numbers come from the scalar block."""
    from meganeura.gpu import pipelines

    seen: list[str] = []
    build = pipelines.Pipelines._build

    def spy(self: Any, kernel: Any) -> Any:
        seen.append(kernel.source(self.device.profile))
        return build(self, kernel)

    pipelines.Pipelines._build = spy  # type: ignore[method-assign]
    try:
        x = mg.tensor(X)
        _ = (x * 0.123456789).log1p() * 0.987654321
        _ = F.layer_norm(x.view(2, 3, 8)[:, :2], (8,), eps=0.0123456789)
        _ = mg.compile(lambda t: (t * 0.3141592).tanh() + 0.2718281)(x)
    finally:
        pipelines.Pipelines._build = build  # type: ignore[method-assign]
    assert not [s for s in seen if any(n in s for n in ("0.1234567", "0.9876543", "0.0123456", "0.314159", "0.271828"))]


@pytest.mark.parametrize("name", ["power", "left operand of a division"])
def test_truth_values_are_told_apart_in_gradients(name: str) -> None:
    """True and False have one dtype, but a gradient rule that met one of them may not serve the other."""
    act: Callable[[Any, bool], Any] = {"power": lambda x, v: x.pow(v), "left operand of a division": lambda x, v: v / x}[name]
    x = mg.tensor([2.0, 4.0])
    grads = {v: _grad(lambda t, v=v: act(t, v), x).tolist() for v in (True, False)}
    assert grads[False] == [0, 0]
    assert grads[True] == ([1, 1] if name == "power" else [-0.25, -0.0625])


def test_caches_of_plans_and_rules_are_bounded() -> None:
    from meganeura.eager import fuse

    rules = dispatch.current().rules
    most, fuse.MAX_RULES = fuse.MAX_RULES, 20
    try:
        for n in range(1, 60):
            _grad(lambda t: t.tanh(), mg.ones(n))
        assert len(rules.known) <= 20
    finally:
        fuse.MAX_RULES = most
