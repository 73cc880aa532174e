"""ferrotensor (Rust, wgpu). It has no way to wait but reading a value, so each case reads one element."""

from __future__ import annotations

import ferrotensor as ft
import ferrotensor.nn.functional as F
import numpy as np
import protocol as p
from ferrotensor import nn, optim

PEER = "ferrotensor"
DEVICE = ft.Device("gpu")
NAME = str(DEVICE)


def tensor(values: p.Array) -> ft.Tensor:
    return ft.tensor(values.tolist(), device=DEVICE)


def training(batch: int) -> None:
    x, y = p.data(batch)
    inputs, labels = tensor(x), [int(i) for i in y]
    model = nn.Sequential(nn.Linear(784, 128, device=DEVICE), nn.ReLU(), nn.Linear(128, 10, device=DEVICE))
    values = p.weights().values()
    model.load_state_dict({k: tensor(v) for k, v in zip(model.state_dict().keys(), values, strict=True)})
    optimizer = optim.SGD(model.parameters(), lr=p.LEARNING_RATE)

    def step() -> ft.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        return loss

    p.training(PEER, NAME, batch, step, lambda loss: loss.item())


a, b = tensor(p.A), tensor(p.B)
p.matmul(PEER, NAME, lambda: a @ b, lambda c: c.flatten().narrow(0, 0, 1).item(), lambda c: np.array(c.tolist()))
for batch in p.BATCHES:
    training(batch)
