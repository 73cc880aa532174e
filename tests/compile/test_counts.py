"""How many dispatches compiled code runs: no more than noted here, and how many fewer than without rewriting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import meganeura as mg
from meganeura import gpu, nn, optim
from meganeura.compile.lower import lower
from meganeura.kernels.kernel import Profile

F = nn.functional
PROFILES = {"cpu": Profile(family="cpu", subgroup_size=8, max_storage_buffers=32), "gpu": Profile(max_storage_buffers=32)}
MOST = {  # case -> dispatches with all rewrites, on software Vulkan and on GPUs, and their share of those without
    "MLP step": (12, 12, 0.6),  # three of them belong to the loss
    "transformer block forward": (7, 8, 0.31),
    "transformer block training": (54, 38, 0.55),
}


class Block(nn.Module):
    """Width 384, 6 heads, causal; attention spelled out."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(384), nn.LayerNorm(384)
        self.q, self.k, self.v, self.out = (nn.Linear(384, 384) for _ in range(4))
        self.up, self.down = nn.Linear(384, 1536), nn.Linear(1536, 384)

    def forward(self, x: Any) -> Any:
        batch, length, _ = x.shape
        h = self.norm1(x)
        q, k, v = (f(h).reshape(batch, length, 6, 64).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = (q @ k.transpose(-1, -2)) * 64**-0.5
        scores = mg.where(mg.ones(length, length, dtype="bool").tril(), scores, float("-inf"))
        x = x + self.out((F.softmax(scores, -1) @ v).transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def _training(model: Any, optimizer: Any, loss_of: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def case(name: str) -> tuple[Any, tuple[Any, ...]]:
    """Plain code and its arguments."""
    if name == "MLP step":
        mlp = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
        return _training(mlp, optim.SGD(mlp.parameters(), lr=0.01), F.cross_entropy), (mg.randn(128, 784), mg.randint(0, 10, (128,)))
    block, x = Block(), mg.randn(1, 256, 384)
    if name == "transformer block forward":
        return block, (x,)
    return _training(block, optim.AdamW(block.parameters(), lr=1e-3), F.mse_loss), (x, mg.randn(1, 256, 384))


def dispatches(name: str, profile: Profile, rewrite: str) -> int:
    """Launches of one call."""
    device, (fn, args) = gpu.current(), case(name)
    own, device.profile = device.profile, profile
    try:
        with mg.set_grad_enabled("forward" not in name):
            graph = mg.compile(fn, rewrite=rewrite).graph(*args)
    finally:
        device.profile = own
    return sum(len(step.lowered.launches) for step in lower(graph.nodes, profile))


@pytest.mark.parametrize("family", PROFILES)
@pytest.mark.parametrize("name", MOST)
def test_dispatches(name: str, family: str) -> None:
    off, greedy = (dispatches(name, PROFILES[family], mode) for mode in ("off", "greedy"))
    assert greedy <= MOST[name][list(PROFILES).index(family)], f"{greedy} dispatches, {off} without rewriting"
    assert greedy <= MOST[name][2] * off, f"{greedy} dispatches, {off} without rewriting"
