"""Epilogues of matrix products: what is fused, and that results are as near to float64 as unfused ones, on every family of
kernels: odd sizes, batches, transposed operands, several outputs, sums made in pieces, single rows, half precision."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import gpu, nn
from meganeura.compile.lower import lower
from meganeura.kernels.kernel import Profile
from tests import tint

from . import epilogues
from .epilogues import draw

F = nn.functional
NAME = "matmul epilogue"
check = functools.partial(epilogues.check, NAME)


SIZES = ((33, 17, 29), (64, 48, 64), (1, 40, 52), (1, 64, 300), (50, 36, 1), (132, 20, 140))


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_bias_activation_and_residual(family: str, size: tuple[int, int, int]) -> None:
    m, k, n = size
    x, w, b, r, s = draw(m, k), draw(k, n), draw(n), draw(m, n), draw(m, 1)
    check(lambda x, w, b, r, s: F.gelu(x @ w + b) * s + r * 0.5, x, w, b, r, s)
    check(lambda x, w, b: F.relu(b + x @ w.T), x, draw(n, k), b)


def test_transposed_operands_and_results(family: str) -> None:
    x, w, r = draw(24, 33), draw(24, 40), draw(33, 40)
    check(lambda x, w, r: x.T @ w + r, x, w, r)
    check(lambda x, w, r: (x.T @ w).T * r, x, w, draw(40, 33))
    check(lambda x, w: (x.T @ w).T.contiguous(), x, w)


def test_several_results(family: str) -> None:
    x, w, b = draw(30, 12), draw(12, 20), draw(20)

    def f(x: Any, w: Any, b: Any) -> Any:
        y = x @ w
        z = y + b
        return y, z, F.silu(z), (z > 0).to(mg.int32)

    check(f, x, w, b)


def test_heads_are_stored_side_by_side(family: str) -> None:
    """[B, H, S, D] stored as [B, S, H, D], also from products of three dimensions, and a batch of rows taken apart."""
    a, v = draw(2, 3, 9, 9), draw(2, 3, 9, 8)
    check(lambda a, v: (a @ v).transpose(1, 2).reshape(2, 9, 24), a, v)
    check(lambda a, v: (a @ v).reshape(2, 3, 9, 8).transpose(1, 2).reshape(18, 24), draw(6, 9, 9), draw(6, 9, 8))
    check(lambda x, w: (x @ w).reshape(2, 9, 3, 8).transpose(1, 2).contiguous(), draw(18, 12), draw(12, 24))
    check(lambda x, w, p: (x @ w).reshape(2, 9, 24) + p, draw(18, 12), draw(12, 24), draw(9, 24))
    check(lambda x, w, p: (x @ w).reshape(18, 3, 7) * p, draw(18, 12), draw(12, 21), draw(3, 1))


def test_masked_scores(family: str) -> None:
    q, k = draw(2, 3, 17, 8), draw(2, 3, 17, 8, seed=1)
    mask = np.tril(np.ones((17, 17), bool))

    def scores(q: Any, k: Any, mask: Any) -> Any:
        return mg.where(mask, (q @ k.transpose(-1, -2)) * 0.35, float("-inf"))

    check(scores, q, k, mask)
    check(scores, q, k, mask[None, None, :1])


def test_sums_in_pieces(family: str) -> None:
    """Few results and a long sum: the kernel that adds up the pieces has the epilogue."""
    check(lambda x, w, b, r: (x @ w + b).tanh() + r, draw(8, 4099), draw(4099, 12), draw(12), draw(8, 12))
    check(lambda x, w, b: (x @ w + b).T.contiguous(), draw(7, 2048), draw(2048, 9), draw(9))


def test_half(family: str) -> None:
    x, w, b, r = draw(33, 24), draw(24, 36), draw(36), draw(33, 36)
    check(lambda x, w, b, r: F.gelu(x @ w + b) + r, x, w, b, r, dtype="float16")
    check(lambda x, w, b: (x @ w + b).float(), x, w, b, dtype="float16")
    check(lambda x, w, b: x[:1] @ w + b, x, w, b, dtype="float16")


def test_integers(family: str) -> None:
    x, w = np.arange(30, dtype=np.int32).reshape(5, 6), np.arange(24, dtype=np.int32).reshape(6, 4)
    check(lambda x, w: (x @ w) * 3 - 1, x, w)


def test_nothing_to_sum(family: str) -> None:
    check(lambda x, w, b: x @ w + b, draw(4, 0), draw(0, 8), draw(8))


def test_the_last_of_several_products_adds_up(family: str) -> None:
    xs = [draw(20, 8, seed=i) for i in range(3)]
    ws = [draw(8, 24, seed=i) for i in range(3)]
    graph = check(lambda a, b, c, u, v, w: a @ u + b @ v + c @ w, *xs, *ws)
    assert len(graph.nodes) == 3


def test_adding_in_place(family: str) -> None:
    """Outputs over operands: every result is made once, even where tiles could overlap."""

    def f(total: Any, x: Any, w: Any) -> Any:
        total = total * 1
        s = total.sum()
        total.add_(x @ w)
        return total, s

    check(f, draw(132, 140), draw(132, 20), draw(20, 140))

    def g(cache: Any, x: Any, w: Any) -> Any:
        cache = cache * 1
        s = cache.sum()
        cache[2:5] = x @ w
        return cache, s

    check(g, draw(9, 12), draw(3, 8), draw(8, 12))


def test_results_over_dying_operands(family: str) -> None:
    """The planner makes results in the memory of operands that an epilogue reads, even where tiles could overlap."""

    def f(x: Any, w: Any, r: Any) -> Any:
        r = r.exp()
        return r.sum(0), (x @ w).tanh() * r

    for m, n in ((132, 140), (33, 29), (1, 300)):
        args = [mg.tensor(a) for a in (draw(m, 20), draw(20, n), draw(m, n))]
        loose, tight = mg.compile(f, debug=True), mg.compile(f)
        for a, b in zip(loose(*args), tight(*args), strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-6, atol=2e-6)
        assert sum(r.count(NAME) for r in tight.report(*args)) == 1


@pytest.mark.parametrize("size", [(33, 20, 36), (7, 9, 11), (1, 64, 300)], ids=str)
def test_dropout_draws_as_it_does_alone(family: str, size: tuple[int, int, int]) -> None:
    m, k, n = size

    check(lambda x, w, b: F.dropout(x @ w + b, 0.4), draw(m, k), draw(k, n), draw(n))
    check(lambda x, w: F.dropout((x @ w).T, 0.3) * 2, draw(m, k), draw(k, n))


def test_numbers_are_not_in_the_shader() -> None:
    def sources(scale: float) -> list[Any]:
        g = mg.compile(lambda x, w: (x @ w) * scale + 1)
        args = mg.tensor(draw(8, 8)), mg.tensor(draw(8, 8))
        g(*args)
        return [x.kernel for step in lower(g.graph(*args).nodes, gpu.current().profile) for x in step.lowered.launches]

    assert sources(0.5) == sources(0.25)


def test_a_training_step_of_a_network() -> None:
    def step(x: Any, w: Any, b: Any, v: Any, c: Any, t: Any) -> Any:
        leaves = [y.detach().requires_grad_() for y in (w, b, v, c)]
        w, b, v, c = leaves
        loss = F.mse_loss(F.linear(F.gelu(F.linear(x, w, b)), v, c) + x, t)
        loss.backward()
        return loss.detach(), *(y.grad for y in leaves)

    x, w, b, v, c, t = draw(2, 9, 12), draw(20, 12), draw(20), draw(12, 20), draw(12), draw(2, 9, 12, seed=1)
    graph = check(step, x, w, b, v, c, t, fused=3)
    assert any("erf" in n.parts and "matmul" in n.parts for n in graph.nodes)


def test_what_is_not_fused() -> None:
    x, w = draw(12, 8), draw(8, 12)
    check(lambda x, w: (x @ w) + (x @ w).T, x, w, fused=0)  # read in two ways
    check(lambda x, w: (x @ w)[:, :6] * 2, x, w, fused=0)  # a part
    check(lambda x, w, y: (x @ w) * y, x, w, draw(3, 12, 12), fused=0)  # repeated
    check(lambda x, w: (x @ w).reshape(9, 16).T.contiguous(), x, w, fused=0)  # rows and columns mixed


def test_order_of_reads_and_writes_is_kept() -> None:
    def between(x: Any, w: Any, b: Any) -> Any:
        w = w * 1
        y = x @ w
        w.add_(1)
        s = w.sum()
        b = b + s
        return y + b, w

    check(between, draw(12, 8), draw(8, 12), draw(12), fused=0)

    def early(x: Any, w: Any, b: Any) -> Any:
        y = x @ w
        s = y.sum(0)
        return s, y.sum(1), (y + b).exp()

    check(early, draw(12, 8), draw(8, 12), draw(12), fused=1)

    def kept(x: Any, w: Any, b: Any) -> Any:
        b = b * 1
        y = x @ w
        s = (y @ y.T).sum(0)
        b.add_(s)
        return (y + b) * 2, y

    check(kept, draw(12, 8), draw(8, 12), draw(12), fused=0)


def test_binding_limit() -> None:
    x, w, rest = draw(12, 8), draw(8, 12), [draw(12, 12, seed=i) for i in range(9)]

    def f(x: Any, w: Any, *rest: Any) -> Any:
        y = x @ w
        for r in rest:
            y = y + r
        return y

    check(f, x, w, *rest, fused=1 if gpu.current().profile.max_storage_buffers >= 12 else 0)


def test_lowers_for_other_devices() -> None:
    g = mg.compile(lambda x, w, b: F.gelu(x @ w + b))
    args = mg.tensor(draw(64, 32)), mg.tensor(draw(32, 64)), mg.tensor(draw(64))
    nodes = g.graph(*args).nodes
    for profile in (Profile(), Profile(backend="dawn"), Profile(family="cpu", subgroup_size=8), Profile(subgroups=False, subgroup_size=0)):
        for step in lower(nodes, profile):
            for launch in step.lowered.launches:
                assert "fn fused" in launch.kernel.source(profile)


def test_fuzzed_programs() -> None:
    """Random programs of products, pointwise ops, views, reductions and in-place writes: compiled equals eager."""
    rng = np.random.default_rng(3)
    fired = 0
    for _ in range(7):
        f = _program(int(rng.integers(1 << 30)))
        args = mg.tensor(draw(6, 8)), mg.tensor(draw(8, 8))
        for debug in (True, False):
            g = mg.compile(f, debug=debug)
            for got, want in zip(g(*args), f(*args), strict=True):
                np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-4, atol=1e-5)
        fired += sum(r.count(NAME) for r in g.report(*args))
    assert fired > 5


def _program(seed: int) -> Callable[..., Any]:
    """A program over matrices [6, 8] and [8, 8]."""

    def run(x: Any, w: Any) -> Any:
        rng = np.random.default_rng(seed)
        values = [x * 1, x.sin()]
        for _ in range(12):
            a, b = (values[int(rng.integers(len(values)))] for _ in range(2))
            kind = int(rng.integers(8))
            if kind < 3:
                values.append((a @ w) * 0.3 if kind else (a.reshape(2, 3, 8) @ w).transpose(0, 1).reshape(6, 8) * 0.3)
            elif kind == 3:
                values.append((a + b).tanh())
            elif kind == 4:
                values.append(a - b.mean(0))
            elif kind == 5:
                a.mul_(0.5).add_(b)
            elif kind == 6:
                a[int(rng.integers(6))].sub_(b[int(rng.integers(6))])
            else:
                values.append((w.T @ a.T).T * 0.3 + b)
        return tuple(values)

    return run


TINT = """
import dataclasses
import meganeura as mg
from meganeura import gpu
F, device, fused = mg.nn.functional, gpu.current(), 0
own = device.profile
for changes in ({"family": "gpu", "subgroup_size": 32, "subgroups": True}, {"family": "cpu", "subgroup_size": 8, "subgroups": True}):
    device.profile = dataclasses.replace(own, **changes)
    for m, k, n in ((64, 48, 64), (33, 17, 29), (1, 64, 300), (8, 4099, 12)):
        x, w, b, r, v = mg.zeros(m, k), mg.zeros(k, n), mg.zeros(n), mg.zeros(m, n), mg.zeros(n, k)
        for f in (
            lambda: F.gelu(x @ w + b) + r,
            lambda: F.dropout(x @ v.T, 0.5),
            lambda: ((x @ w).T.contiguous(), x @ w),
            lambda: (x.half() @ w.half() + b.half()).float(),
        ):
            g = mg.compile(f)
            g()
            fused += sum(r.count("matmul epilogue") for r in g.report())
print(device.backend, fused)
"""


def test_tint_accepts_epilogues() -> None:
    """A single row turned needs no copy."""
    assert tint.printed(TINT, MEGANEURA_BACKEND="wgpudawn-null") == ["dawn", "30"]
