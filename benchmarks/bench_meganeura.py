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


class Block(nn.Module):
    """The transformer block of the protocol."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(p.WIDTH), nn.LayerNorm(p.WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(p.WIDTH, p.WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(p.WIDTH, 4 * p.WIDTH), nn.Linear(4 * p.WIDTH, p.WIDTH)
        w = p.block_weights()
        parts = zip((self.q, self.k, self.v, self.o, self.up, self.down), "qkvo12", strict=True)
        values = {f: (w["w" + k].T, w["b" + k]) for f, k in parts}
        values |= {f: (w["g" + k], w["n" + k]) for f, k in ((self.norm1, "1"), (self.norm2, "2"))}
        for part, (weight, bias) in values.items():
            part.load_state_dict({"weight": mg.tensor(weight), "bias": mg.tensor(bias)})

    def forward(self, x: mg.Tensor) -> mg.Tensor:
        h = self.norm1(x)
        q, k, v = (f(h).reshape(1, p.LENGTH, p.HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(x.shape))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


def block(compiled: bool) -> None:
    x, t = (mg.from_numpy(v) for v in p.block_data())
    model = Block()
    optimizer = optim.SGD(model.parameters(), lr=p.LEARNING_RATE)

    def step() -> mg.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), t)
        loss.backward()
        optimizer.step()
        return loss

    still = Block()
    run, forward = (mg.compile(step), mg.compile(still)) if compiled else (step, still)

    def infer() -> mg.Tensor:
        with mg.no_grad():
            return forward(x)

    p.block(
        "meganeura compiled" if compiled else "meganeura", NAME, infer, lambda _: mg.synchronize(), lambda y: y.numpy(), run,
        lambda loss: loss.item(),
    )  # fmt: skip


a, b = mg.from_numpy(p.A), mg.from_numpy(p.B)
for compiled in (False, True):
    product = mg.compile(lambda a, b: a @ b) if compiled else (lambda a, b: a @ b)
    name = "meganeura compiled" if compiled else "meganeura"
    p.matmul(name, NAME, lambda: product(a, b), lambda _: mg.synchronize(), lambda c: c.numpy())
    for batch in p.BATCHES:
        training(batch, compiled)
    block(compiled)
