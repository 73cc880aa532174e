"""This library, eager and compiled, by the protocol of the others. MEGANEURA_BACKEND=wgpudawn for Dawn."""

from __future__ import annotations

import protocol as p

import meganeura as mg
from meganeura import nn, optim

NAME = mg.device().name


def training(batch: int, compiled: bool) -> None:
    x, y = (mg.from_numpy(v) for v in p.data(batch))
    w = p.weights()
    model = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    values = (w["w1"].T, w["b1"], w["w2"].T, w["b2"])
    model.load_state_dict({k: mg.tensor(v) for k, v in zip(model.state_dict(), values, strict=True)})
    optimizer = optim.SGD(model.parameters(), lr=p.LEARNING_RATE)

    def step() -> mg.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    run = mg.compile(step) if compiled else step
    p.training("meganeura compiled" if compiled else "meganeura", NAME, batch, run, lambda loss: loss.item())


a, b = mg.from_numpy(p.A), mg.from_numpy(p.B)
for compiled in (False, True):
    product = mg.compile(lambda a, b: a @ b) if compiled else (lambda a, b: a @ b)
    name = "meganeura compiled" if compiled else "meganeura"
    p.matmul(name, NAME, lambda: product(a, b), lambda _: mg.synchronize(), lambda c: c.numpy())
    for batch in p.BATCHES:
        training(batch, compiled)
