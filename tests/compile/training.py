"""What the tests of compiled training share: a small model, a training step as plain code, and what a device was asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import meganeura as mg
from meganeura import gpu, nn, optim

FEATURES, HIDDEN, CLASSES = 8, 32, 4


class Setup(NamedTuple):
    """A model, its optimizer and a training step on both."""

    model: Any
    opt: Any
    step: Callable[..., Any]


def setup(
    make: Callable[[Any], Any] = lambda ps: optim.AdamW(ps, lr=1e-2),
    dropout: float = 0.0,
    clip: float = 0.0,
    zero_first: bool = False,
    seed: int = 0,
) -> Setup:
    """The same start for the same seed."""
    mg.manual_seed(seed)
    layers = [nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, CLASSES)]
    if dropout:
        layers.insert(2, nn.Dropout(dropout))
    model = nn.Sequential(*layers)
    opt = make(model.parameters())

    def step(x: Any, y: Any) -> Any:
        if zero_first:
            opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        if clip:
            nn.clip.clip_grad_norm_(model.parameters(), clip)
        opt.step()
        if not zero_first:
            opt.zero_grad()
        return loss

    return Setup(model, opt, step)


def batch(seed: int = 0, rows: int = 16) -> tuple[Any, Any]:
    """Inputs [rows, FEATURES] and classes [rows]."""
    rng = np.random.default_rng(seed)
    return mg.tensor(rng.standard_normal((rows, FEATURES)).astype(np.float32)), mg.tensor(rng.integers(0, CLASSES, rows))


def weights(model: Any) -> list[Any]:
    """All parameters as arrays."""
    return [p.detach().numpy() for p in model.parameters()]


def counts() -> tuple[int, int, int]:
    """Pipelines, buffers and bind groups that the device made so far."""
    c = gpu.current().counters
    return c.pipelines, c.buffers, c.bind_groups
