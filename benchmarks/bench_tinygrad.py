"""tinygrad on WebGPU (Dawn, from the package dawn-python), every case under TinyJit. TINYGRAD_DEV names another device."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

os.environ["DEV"] = os.environ.get("TINYGRAD_DEV", "WEBGPU")
spec = importlib.util.find_spec("pydawn")
if spec and spec.submodule_search_locations:
    library = Path(spec.submodule_search_locations[0]) / "lib" / f"libwebgpu_dawn_{os.uname().machine}.so"
    os.environ.setdefault("WEBGPU_PATH", str(library))

import numpy as np  # noqa: E402
import protocol as p  # noqa: E402
from tinygrad import Context, Device, Tensor, TinyJit, nn  # noqa: E402

PEER = f"tinygrad-{Device.DEFAULT.lower()}"
NAME = Device.DEFAULT
synchronize = Device[Device.DEFAULT].synchronize


def tensor(values: p.Array) -> Tensor:
    return Tensor(np.ascontiguousarray(values)).realize()


def training(batch: int) -> None:
    x, y = p.data(batch)
    inputs, labels = tensor(x), tensor(y.astype(np.int32))
    w = {k: tensor(v) for k, v in p.weights().items()}
    for value in w.values():
        if callable(value.requires_grad_ if hasattr(value, "requires_grad_") else None):
            value.requires_grad_(True)
        else:
            value.requires_grad = True
    optimizer = nn.optim.SGD(list(w.values()), lr=p.LEARNING_RATE)

    @TinyJit
    def step() -> Tensor:
        with Context(TRAINING=1):
            optimizer.zero_grad()
            logits = (inputs @ w["w1"] + w["b1"]).relu() @ w["w2"] + w["b2"]
            loss = logits.sparse_categorical_crossentropy(labels)
            loss.backward()
            return loss.realize(*optimizer.schedule_step())

    p.training(PEER, NAME, batch, step, lambda loss: loss.item())


def block() -> None:
    x, t = (tensor(v) for v in p.block_data())
    w, still = ({k: tensor(v) for k, v in p.block_weights().items()} for _ in range(2))
    for value in w.values():
        if callable(value.requires_grad_ if hasattr(value, "requires_grad_") else None):
            value.requires_grad_(True)
        else:
            value.requires_grad = True
    optimizer = nn.optim.SGD(list(w.values()), lr=p.LEARNING_RATE)

    def forward(w: dict[str, Tensor]) -> Tensor:
        h = x.layernorm() * w["g1"] + w["n1"]
        q, k, v = ((h @ w["w" + n] + w["b" + n]).reshape(1, p.LENGTH, p.HEADS, -1).transpose(1, 2) for n in "qkv")
        a = q.scaled_dot_product_attention(k, v, is_causal=True).transpose(1, 2).reshape(1, p.LENGTH, p.WIDTH)
        y = x + a @ w["wo"] + w["bo"]
        u = (y.layernorm() * w["g2"] + w["n2"]) @ w["w1"] + w["b1"]
        return y + (u * 0.5 * (1 + (u / 2**0.5).erf())) @ w["w2"] + w["b2"]

    @TinyJit
    def infer() -> Tensor:
        return forward(still).realize()

    @TinyJit
    def step() -> Tensor:
        with Context(TRAINING=1):
            optimizer.zero_grad()
            loss = ((forward(w) - t) ** 2).mean()
            loss.backward()
            return loss.realize(*optimizer.schedule_step())

    p.block(PEER, NAME, infer, lambda _: synchronize(), lambda y: y.numpy(), step, lambda loss: loss.item())


a, b = tensor(p.A), tensor(p.B)
product = TinyJit(lambda a, b: (a @ b).realize())
p.matmul(PEER, NAME, lambda: product(a, b), lambda _: synchronize(), lambda c: c.numpy())
for batch in p.BATCHES:
    training(batch)
block()
