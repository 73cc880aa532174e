"""A transformer under compile: dispatches, bytes, planned memory, time to the first result and time a step.

Run: python benchmarks/transformer.py [--layers N] [--backend dawn] [--json FILE]. PyTorch on CUDA beside it where there is one.
"""

from __future__ import annotations

import meganeura as mg
from meganeura import nn

F = nn.functional


class Attention(nn.Module):
    """Self-attention of [batch, sequence, width] with a causal mask."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: mg.Tensor) -> mg.Tensor:
        batch, length, width = x.shape
        q, k, v = (f(x).reshape(batch, length, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = (q @ k.transpose(-1, -2)) * (width // self.heads) ** -0.5
        mask = mg.ones(length, length, dtype="bool").tril()
        weights = F.softmax(mg.where(mask, scores, float("-inf")), -1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Attention and a feed-forward network, each after a layer norm and around a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: mg.Tensor) -> mg.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))
