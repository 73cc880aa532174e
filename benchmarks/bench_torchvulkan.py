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


a, b = torch.from_numpy(p.A).to(DEVICE), torch.from_numpy(p.B).to(DEVICE)
p.matmul(PEER, NAME, lambda: a @ b, lambda _: synchronize(), lambda c: c.cpu().numpy())
for batch in p.BATCHES:
    training(batch)
