"""PyTorch: on Vulkan through torchvulkan (default), or plain, TORCH_DEVICE=cpu or cuda."""

from __future__ import annotations

import os

import protocol as p
import torch
from torch import nn

DEVICE = os.environ.get("TORCH_DEVICE", "vulkan")
PEER = "torchvulkan" if DEVICE == "vulkan" else f"torch-{DEVICE}"

if DEVICE == "vulkan":
    import torchvulkan

    NAME, synchronize = torchvulkan.get_device_name(), torchvulkan.synchronize
elif DEVICE == "cuda":
    NAME, synchronize = torch.cuda.get_device_name(), torch.cuda.synchronize
    torch.backends.cuda.matmul.allow_tf32 = False
else:
    NAME, synchronize = "cpu", lambda: None


def training(batch: int) -> None:
    x, y = (torch.from_numpy(v).to(DEVICE) for v in p.data(batch))
    w = p.weights()
    model = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    values = (w["w1"].T, w["b1"], w["w2"].T, w["b2"])
    model.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in zip(model.state_dict(), values, strict=True)})
    model = model.to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=p.LEARNING_RATE)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    p.training(PEER, NAME, batch, step, lambda loss: loss.item())


class Block(nn.Module):
    """The transformer block of the protocol."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(p.WIDTH), nn.LayerNorm(p.WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(p.WIDTH, p.WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(p.WIDTH, 4 * p.WIDTH), nn.Linear(4 * p.WIDTH, p.WIDTH)
        w = {k: torch.from_numpy(v.copy()) for k, v in p.block_weights().items()}
        for part, k in zip((self.q, self.k, self.v, self.o, self.up, self.down), "qkvo12", strict=True):
            part.load_state_dict({"weight": w["w" + k].T.contiguous(), "bias": w["b" + k]})
        for part, k in ((self.norm1, "1"), (self.norm2, "2")):
            part.load_state_dict({"weight": w["g" + k], "bias": w["n" + k]})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm1(x)
        q, k, v = (f(h).reshape(1, p.LENGTH, p.HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(x.shape))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


def block() -> None:
    x, t = (torch.from_numpy(v).to(DEVICE) for v in p.block_data())
    model, still = Block().to(DEVICE), Block().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=p.LEARNING_RATE)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), t)
        loss.backward()
        optimizer.step()
        return loss

    def infer() -> torch.Tensor:
        with torch.no_grad():
            return still(x)

    p.block(PEER, NAME, infer, lambda _: synchronize(), lambda y: y.cpu().numpy(), step, lambda loss: loss.item())


a, b = torch.from_numpy(p.A).to(DEVICE), torch.from_numpy(p.B).to(DEVICE)
p.matmul(PEER, NAME, lambda: a @ b, lambda _: synchronize(), lambda c: c.cpu().numpy())
for batch in p.BATCHES:
    training(batch)
block()
