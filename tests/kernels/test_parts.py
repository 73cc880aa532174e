"""Ops on a device whose bindings reach 16 KiB only, so that kernels work in parts: the same results, both families."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import dispatch
from meganeura.eager.interpreter import Eager
from meganeura.nn import functional as F

from .run_call import FAMILIES

LIMIT = 16384


class Small:
    """The default device with smaller bindings as far as kernels know."""

    def __init__(self, family: str) -> None:
        self.whole = mg.device()
        self.profile = replace(self.whole.profile, family=family, max_binding=LIMIT)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole, name)


RNG = np.random.default_rng(0)
TALL, WIDE = RNG.normal(size=(300, 40)).astype(np.float32), RNG.normal(size=(20, 900)).astype(np.float32)
CUBE = RNG.normal(size=(6, 50, 45)).astype(np.float32)
ROWS = RNG.integers(0, 300, 17)

OPS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "row and column": lambda t, w, c: t + t[0] * 2 + t[:, :1],
    "transposed": lambda t, w, c: t.T.contiguous() + w[:, :300].repeat(2, 1),
    "stepped": lambda t, w, c: t.view(-1)[1::3] * 2,
    "middle": lambda t, w, c: c * c[:, :1] + c[..., 1:2],
    "permuted": lambda t, w, c: c.permute(2, 0, 1) * 3,
    "odd start": lambda t, w, c: t.view(-1)[3:] + t.view(-1)[:-3],
    "flipped": lambda t, w, c: w.flip(1) + w,
    "reshaped copy": lambda t, w, c: c.transpose(0, 2).reshape(-1),
    "cat": lambda t, w, c: mg.cat([t, t * 2], 1),
    "sum 0": lambda t, w, c: t.sum(0),
    "sum 1": lambda t, w, c: w.sum(1),
    "sum outer": lambda t, w, c: c.sum((0, 2)),
    "max": lambda t, w, c: t.max(1)[0],
    "argmax": lambda t, w, c: c.argmax(1),
    "var": lambda t, w, c: c.var((0, 1)),
    "softmax": lambda t, w, c: F.softmax(t, 1),
    "log_softmax": lambda t, w, c: F.log_softmax(c, 2),
    "softmax of middle": lambda t, w, c: F.softmax(c, 1),
    "layer_norm": lambda t, w, c: F.layer_norm(w, (900,), w[0], w[1]),
    "layer_norm of two": lambda t, w, c: F.layer_norm(c, (50, 45)),
    "rms_norm": lambda t, w, c: F.rms_norm(t, (40,), t[3]),
    "cross_entropy": lambda t, w, c: F.cross_entropy(t, mg.arange(300) % 40, reduction="none"),
    "index_select": lambda t, w, c: t.index_select(0, mg.tensor(ROWS)),
    "index_select 1": lambda t, w, c: w[:4].index_select(1, mg.tensor(ROWS)),
    "gather 0": lambda t, w, c: t.gather(0, mg.tensor(np.stack([ROWS] * 40, 1))),
    "gather 1": lambda t, w, c: t.gather(1, mg.arange(900).view(300, 3) % 40),
    "index_add": lambda t, w, c: t.index_add(0, mg.tensor(ROWS), t[:17]),
    "matmul": lambda t, w, c: t @ t[:40].T,
    "outer": lambda t, w, c: t[:, :1] @ w[:1, :200],
    "long": lambda t, w, c: w @ w.T,
    "vectors": lambda t, w, c: t @ t[0],
    "batches": lambda t, w, c: c @ c.transpose(1, 2),
    "one matrix": lambda t, w, c: c @ t[:45, :40],
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", OPS)
def test_results_in_parts(name: str, family: str) -> None:
    def run() -> Any:
        return OPS[name](*(mg.tensor(x) for x in (TALL, WIDE, CUBE))).numpy()

    want = run()
    with dispatch.use(Eager(Small(family))):
        got = run()
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


GRADIENTS: dict[str, Callable[[Any], Any]] = {
    "softmax": lambda t: (F.softmax(t, 1) * t).sum(),
    "layer_norm": lambda t: (F.layer_norm(t, (40,)) ** 2 * t).sum(),
    "cross_entropy": lambda t: F.cross_entropy(t, mg.arange(300) % 40),
    "embedding": lambda t: (F.embedding(mg.tensor(ROWS), t) ** 2).sum(),
    "gather": lambda t: (t.gather(1, mg.arange(900).view(300, 3) % 40) ** 2).sum(),
    "matmul": lambda t: ((t @ t.T[:, :30]) ** 2).sum(),
    "broadcast": lambda t: ((t * t[:1] + t[:, :1]) ** 2).sum(),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_in_parts(name: str, family: str) -> None:
    def run() -> Any:
        t = mg.tensor(TALL, requires_grad=True)
        GRADIENTS[name](t).backward()
        assert t.grad is not None
        return t.grad.numpy()

    want = run()
    with dispatch.use(Eager(Small(family))):
        got = run()
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4 * np.abs(want).max())
