"""Whole programs compiled, against the same code in float64: no further from it than eager code is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import dispatch, nn, optim
from meganeura.reference import Reference
from tests.compile.test_transformer import LENGTH, VOCABULARY, WIDTH, Block
from tests.compile.training import batch, setup


def _plain(name: str) -> Callable[[Any], Any]:
    return lambda p: getattr(optim, name)(p, lr=0.01)


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "SGD momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    **{n: _plain(n) for n in ("Adagrad", "Adam", "AdamW", "Adamax", "LaProp", "Lion", "NAdam", "RAdam", "RMSprop", "Rprop")},
    "Adadelta": optim.Adadelta,
    "Muon": lambda p: optim.Muon([q for q in p if q.ndim == 2], lr=0.01),
    "Adam amsgrad": lambda p: optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.1),
}
# The first step of these moves by about lr * sign(gradient), however small the gradient: rounding decides near zero.
SIGNS = {"Lion", "Adam", "AdamW", "Adamax", "NAdam", "LaProp", "RMSprop", "Adagrad", "Adam amsgrad", "RAdam", "Adadelta", "Rprop"}


def check(run: Callable[[bool], list[Any]], eps: float = 3e-6) -> None:
    """`run(compiled)` gives arrays; compiled ones are as near to float64 as eager ones."""
    eager, compiled = run(False), run(True)
    with dispatch.use(Reference(precise=True)):
        exact = run(False)
    for number, (e, c, x) in enumerate(zip(eager, compiled, exact, strict=True)):
        scale = np.abs(x).max(initial=1e-3)
        near, far = np.abs(c - x).max(initial=0), np.abs(e - x).max(initial=0)
        assert near <= 2 * far + eps * scale, f"result {number}: {near} from float64, eager {far}, at {scale}"


def test_every_optimizer_is_here() -> None:
    classes = {n for n in optim.__all__ if isinstance(c := getattr(optim, n), type) and issubclass(c, optim.Optimizer)}
    assert classes - {"Optimizer"} == {n.split()[0] for n in OPTIMIZERS}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str) -> None:
    def run(compiled: bool) -> list[Any]:
        model, _, step = setup(OPTIMIZERS[name])
        step = mg.compile(step) if compiled else step
        losses = [step(*batch(i)).detach().numpy() for i in range(1 if name in SIGNS else 4)]
        return losses if name in SIGNS else losses + [p.detach().numpy() for p in model.parameters()]

    check(run)
    if name in SIGNS:  # where the gradient is well away from zero the step is the same
        check(lambda compiled: _first_step(OPTIMIZERS[name], compiled))


def _first_step(make: Callable[[Any], Any], compiled: bool) -> list[Any]:
    p = nn.Parameter(mg.linspace(-1, 1, 37))
    opt = make([p])

    def step(x: Any) -> Any:
        opt.zero_grad()
        loss = ((p * x).sin() * 3 + p).sum()
        loss.backward()
        opt.step()
        return loss

    step = mg.compile(step) if compiled else step
    return [step(mg.full((37,), 0.3)).detach().numpy(), p.detach().numpy(), step(mg.full((37,), 0.2)).detach().numpy(), p.detach().numpy()]


class Loop(nn.Module):
    """A recurrent network written as a Python loop."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer, self.head = nn.Linear(12, 12), nn.Linear(5, 12), nn.Linear(12, 3)

    def forward(self, x: Any) -> Any:
        h, states = mg.zeros(x.shape[0], 12), []
        for t in range(x.shape[1]):
            gate = mg.sigmoid(h[:, :1] * 2)
            h = gate * mg.tanh(self.inner(h) + self.outer(x[:, t])) + (1 - gate) * h
            states.append(h)
        return self.head(mg.stack(states, 1))


class Deep(nn.Module):
    """A transformer of 4 layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(4)))

    def forward(self, ids: Any) -> Any:
        return self.blocks(self.embedding(ids)) @ self.embedding.weight.T


@pytest.mark.parametrize("debug", [True, False])
def test_a_recurrent_loop(debug: bool) -> None:
    x = np.random.default_rng(0).standard_normal((4, 9, 5)).astype(np.float32)

    def run(compiled: bool) -> list[Any]:
        mg.manual_seed(2)
        model = Loop()
        opt = optim.SGD(model.parameters(), lr=0.1)

        def step(x: Any) -> Any:
            opt.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            nn.clip.clip_grad_norm_(model.parameters(), 0.5)
            opt.step()
            return loss

        step = mg.compile(step, debug=debug) if compiled else step
        return [step(mg.tensor(x)).detach().numpy() for _ in range(3)] + [p.detach().numpy() for p in model.parameters()]

    check(run)


@pytest.mark.parametrize("debug", [True, False])
def test_a_transformer_of_four_layers(debug: bool) -> None:
    ids = np.random.default_rng(0).integers(0, VOCABULARY, (2, LENGTH + 1))

    def run(compiled: bool) -> list[Any]:
        mg.manual_seed(1)
        model = Deep()

        def step(ids: Any) -> Any:
            logits = model(ids[:, :-1])
            loss = nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))
            return loss.detach(), logits.detach(), mg.grad(loss, list(model.parameters()))

        step = mg.compile(step, debug=debug) if compiled else step
        loss, logits, grads = step(mg.tensor(ids))
        return [loss.numpy(), logits.numpy(), *(g.numpy() for g in grads)]

    check(run)
