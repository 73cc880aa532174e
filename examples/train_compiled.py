"""A training step compiled: forward, backward and the optimizer replay as one list of dispatches."""

import time

import numpy as np

import meganeura as mg
from meganeura import nn, optim

rng = np.random.default_rng(0)
x = mg.tensor(rng.standard_normal((64, 32)).astype(np.float32))
y = mg.tensor(rng.integers(0, 4, 64))


def train(compiled):
    """Ten losses of the same training, and milliseconds a step after the first."""
    mg.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)

    def step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    run = mg.compile(step) if compiled else step
    losses = [run(x, y).item()]
    start = time.perf_counter()
    losses += [run(x, y).item() for _ in range(9)]
    return losses, (time.perf_counter() - start) * 1e3 / 9


eager, eager_ms = train(compiled=False)
compiled, compiled_ms = train(compiled=True)
print(f"eager    {eager[0]:.4f} -> {eager[-1]:.4f}, {eager_ms:.2f} ms a step")
print(f"compiled {compiled[0]:.4f} -> {compiled[-1]:.4f}, {compiled_ms:.2f} ms a step")
np.testing.assert_allclose(eager, compiled, rtol=1e-4)
