"""A small language model with tied weights and dropout, trained compiled: the shapes of code that people write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import nn, optim

VOCABULARY, WIDTH, HEADS, LENGTH = 17, 16, 2, 6


class Block(nn.Module):
    """Causal attention and a gated MLP, both residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.RMSNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.gate, self.up, self.down = nn.Linear(WIDTH, 24), nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)
        self.drop = nn.Dropout(0.1)
        self.register_buffer("mask", mg.tensor(np.triu(np.full((LENGTH, LENGTH), -1e9, np.float32), 1)))

    def forward(self, x: Any) -> Any:
        b, n, d = x.shape
        q, k, v = (t.reshape(b, n, HEADS, d // HEADS).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        scores = q @ k.transpose(-2, -1) / (d // HEADS) ** 0.5 + self.mask[:n, :n]
        x = x + self.drop(self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d)))
        h = self.norm2(x)
        return x + self.drop(self.down(nn.functional.silu(self.gate(h)) * self.up(h)))


class Model(nn.Module):
    """Embedding, two blocks, and the embedding again as the head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, ids: Any) -> Any:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return x @ self.embedding.weight.T


def _setup() -> tuple[Any, Any]:
    mg.manual_seed(0)
    model = Model()
    opt = optim.AdamW(
        [{"params": [p for p in model.parameters() if p.ndim > 1]}, {"params": [p for p in model.parameters() if p.ndim < 2]}], lr=1e-2
    )

    def step(tokens: Any) -> Any:
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))
        loss.backward()
        nn.clip.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        return loss

    return model, step


@pytest.mark.parametrize("rewrite", ["off", "greedy"])
def test_trains_as_eager(rewrite: str) -> None:
    (eager, a), (compiled, plain) = _setup(), _setup()
    b = mg.compile(plain, rewrite=rewrite, debug=rewrite == "greedy")
    rng = np.random.default_rng(0)
    losses: tuple[list[float], list[float]] = ([], [])
    batches = [mg.tensor(rng.integers(0, VOCABULARY, (3, LENGTH + 1))) for _ in range(4)]
    for step, out in zip((a, b), losses, strict=True):
        mg.manual_seed(1)
        out.extend([float(step(tokens)) for tokens in batches])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    for p, q in zip(eager.parameters(), compiled.parameters(), strict=True):
        np.testing.assert_allclose(q.detach().numpy(), p.detach().numpy(), rtol=1e-3, atol=2e-5)
    assert b.traces == 1


def test_generates_as_eager() -> None:
    """Inference on growing inputs: one session a length."""
    model, _ = _setup()
    model.eval()
    compiled = mg.compile(model)
    ids = mg.tensor([[1]])
    with mg.no_grad():
        for _ in range(LENGTH - 1):
            want, got = model(ids), compiled(ids)
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5, atol=1e-6)
            ids = mg.cat([ids, got[:, -1].argmax(-1, keepdim=True)], 1)
    assert compiled.compiled.sessions == LENGTH - 1
