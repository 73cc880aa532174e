"""Copies that only lay out anew what attention made: it stores its result where they would be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import dispatch, gpu, nn
from meganeura.compile.lower import lower

F = nn.functional
NAME = "stored where a copy would be"


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def check(f: Callable[..., Any], *arrays: np.ndarray, stored: int = 1, dtype: str = "float32") -> Any:
    """f compiled against float64; returns the graph."""
    args = [mg.tensor(a).to(getattr(mg, dtype)) if a.dtype == np.float32 else mg.tensor(a) for a in arrays]
    compiled = mg.compile(f, debug=True)
    made = compiled(*args)
    with dispatch.use(mg.Reference(precise=True)):
        want = f(*(mg.tensor(a.numpy()) for a in args))
    made, want = (x if isinstance(x, tuple) else (x,) for x in (made, want))
    for a, b in zip(made, want, strict=True):
        np.testing.assert_allclose(
            a.numpy(), b.numpy(), rtol=5e-3 if dtype == "float16" else 2e-5, atol=5e-3 if dtype == "float16" else 2e-5
        )
    assert sum(r.count(NAME) for r in compiled.report(*args)) == stored
    return compiled.graph(*args)


def tokens(q: Any, k: Any, v: Any, **how: Any) -> Any:
    """Attention over heads, then a row a token."""
    out = F.scaled_dot_product_attention(q, k, v, **how)
    return out.transpose(1, 2).reshape(q.shape[0], q.shape[2], -1)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    "size", [(1, 1, 1, 1, 1, 1), (2, 3, 3, 7, 7, 5), (2, 4, 2, 33, 40, 16), (1, 4, 2, 1, 1400, 64), (3, 2, 1, 5, 1100, 12)]
)
def test_a_row_a_token(size: tuple[int, ...], dtype: str, family: str) -> None:
    b, h, kv, rows, keys, e = size
    alone = h == 1 or rows == 1  # then there is nothing to copy
    graph = check(
        lambda q, k, v: tokens(q, k, v, enable_gqa=True) + 0.0,
        draw(b, h, rows, e), draw(b, kv, keys, e), draw(b, kv, keys, e), stored=not alone, dtype=dtype,
    )  # fmt: skip
    if family == "gpu" and not alone and keys < 1000:
        assert len([x for s in lower(graph.nodes, gpu.current().profile) for x in s.lowered.launches]) == 2


def test_masked_spelled_out_and_projected(family: str) -> None:
    """The spelling's NaN for a query without keys comes out at its place."""

    def f(x: Any, mask: Any) -> Any:
        q, k, v = (x.reshape(2, 9, 3, 8).transpose(1, 2) * s for s in (1, 2, 3))
        weights = F.softmax(mg.where(mask, q @ k.transpose(-1, -2) * 0.5, float("-inf")), -1)
        return (weights @ v).transpose(1, 2).reshape(2, 9, 24).contiguous()

    mask = np.random.default_rng(0).random((9, 9)) > 0.4
    mask[4] = False
    graph = check(f, draw(2, 9, 24), mask)
    assert " = attention(" in str(graph)


@pytest.mark.usefixtures("family")
def test_other_readers_and_other_orders() -> None:
    q, k, v = draw(2, 3, 7, 8), draw(2, 3, 9, 8), draw(2, 3, 9, 8)

    def both(q: Any, k: Any, v: Any) -> Any:
        out = F.scaled_dot_product_attention(q, k, v)
        return out.transpose(1, 2).contiguous(), out * 2

    check(both, q, k, v, stored=0)  # another reader
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v).transpose(2, 3).contiguous(), q, k, v, stored=0)  # columns apart
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v).permute(2, 0, 1, 3).contiguous(), q, k, v)
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v)[:, 1:].contiguous(), q, k, v, stored=0)  # a part


@pytest.mark.usefixtures("family")
@pytest.mark.parametrize(("heads", "kv", "size"), [(4, 4, 8), (4, 2, 8), (3, 1, 5)])
def test_training(heads: int, kv: int, size: int) -> None:
    """The gradient reads the result where it is, and its own results become rows a token too."""

    def step(x: Any, y: Any, w: Any) -> Any:
        x, y, w = (t.detach().requires_grad_() for t in (x, y, w))
        q, k, v = (t.reshape(2, -1, n, size).transpose(1, 2) for t, n in ((x, heads), (y, kv), (y, kv)))
        out = tokens(q, k, v, is_causal=True, enable_gqa=True)
        loss = ((out @ w) ** 2).sum()
        return (loss.detach(), *mg.grad(loss, [x, y, w]))

    arrays = draw(2, 70, heads * size), draw(2, 70, kv * size), draw(heads * size, 3)
    args = [mg.tensor(a) for a in arrays]
    compiled = mg.compile(step, debug=True)
    for a, b in zip(compiled(*args), step(*args), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-4, atol=2e-4)
    assert sum(r.count(NAME) for r in compiled.report(*args)) >= 2


@pytest.mark.usefixtures("family")
def test_positions() -> None:
    q, k, v = (mg.tensor(draw(2, 4, n, 8)) for n in (5, 6, 6))
    at = mg.tensor(np.array(3))
    f = mg.compile(lambda q, k, v, at: F.attention(q, k, v, position=at, causal=True).transpose(1, 2).reshape(2, 5, 32) + 0.0, debug=True)
    want = F.attention(q, k, v, position=at, causal=True).transpose(1, 2).reshape(2, 5, 32)
    np.testing.assert_allclose(f(q, k, v, at).numpy(), want.numpy(), rtol=2e-5, atol=2e-5)
