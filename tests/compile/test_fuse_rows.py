"""Pointwise work before and after reductions and rows, and sums made together: what is fused, and that results are as near to
float64 as unfused ones, on every family of kernels: odd sizes, broadcast operands, several results, in-place writes, f16."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import dispatch, gpu, nn
from meganeura.compile.lower import lower
from meganeura.kernels import reduce
from meganeura.kernels.kernel import Profile
from meganeura.kernels.reduce_wgsl import source
from meganeura.ops.norm import layer_norm_row

F = nn.functional
Fired = dict[str, int]
RULES = ("reduction prologue", "reduction epilogue", "row prologue", "row epilogue", "column sums together")
BEFORE, AFTER, ROW_BEFORE, ROW_AFTER, TOGETHER = RULES


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def _tuple(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def check(f: Callable[..., Any], *arrays: np.ndarray, fired: Fired | None = None, dtype: str = "float32") -> Any:
    """f compiled against f unfused and in float64; returns the compiled graph. `fired`: how often which rule did."""
    args = [mg.tensor(a).to(getattr(mg, dtype)) if a.dtype == np.float32 else mg.tensor(a) for a in arrays]
    g, off = mg.compile(f, debug=True), mg.compile(f, rewrite="off")
    got, plain = ([t.numpy().astype(np.float64) for t in _tuple(h(*args))] for h in (g, off))
    again = [t.numpy() for t in _tuple(g(*args))]
    found = {rule: n for rule in RULES if (n := sum(r.count(rule) for r in g.report(*args)))}
    graph = g.graph(*args)
    held = [a.numpy() for a in args]
    with dispatch.use(mg.Reference(precise=True)):
        want = [t.numpy().astype(np.float64) for t in _tuple(f(*(mg.tensor(a) for a in held)))]
    eps = {"float32": 1e-6, "float16": 1e-3}[dtype]
    for a, b, c, w in zip(got, plain, again, want, strict=True):
        assert a.shape == w.shape
        finite = np.isfinite(w)
        np.testing.assert_array_equal(a[~finite], w[~finite])
        scale = np.abs(w[finite]).max(initial=1)
        wrong, before = (np.abs(v[finite] - w[finite]).max(initial=0) for v in (a, b))
        assert wrong <= 2 * before + eps * scale
        np.testing.assert_array_equal(a, c)
    if fired is not None:
        assert found == fired, graph
    return graph


SIZES = ((1, 1), (3, 5), (17, 33), (64, 64), (300, 12), (9, 1500), (130, 256))


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_chain_before_a_reduction(family: str, size: tuple[int, int]) -> None:
    x, y, row, column = draw(*size), draw(*size, seed=1), draw(size[1]), draw(size[0], 1)
    check(lambda x, y: ((x - y) * (x - y)).mean(), x, y, fired={BEFORE: 1})
    check(lambda x, y: (x * 2 - y).sum(1), x, y, fired={BEFORE: 1})
    check(lambda x, y, r: (x * r + y).amax(0), x, y, row)
    check(lambda x, y, c: (x * c - y).exp().sum(0), x, y, column)
    check(lambda x, r, c: (x * r - c).var(1), x, row, column)


def test_kinds_of_reductions(family: str) -> None:
    x, y = draw(13, 40), draw(13, 40, seed=1)
    for f in (
        lambda x, y: (x > y).sum(1),
        lambda x, y: (x > y).any(1),
        lambda x, y: (x < y + 5).all(0),
        lambda x, y: (x - y).abs().argmax(1),
        lambda x, y: (x * y).argmin(),
        lambda x, y: (x * 0.1 + 1).prod(1),
        lambda x, y: (x * y).amin(0),
        lambda x, y: (x + y).norm(),
        lambda x, y: (x * 3).to(mg.int32).sum(0),
        lambda x, y: (x.log() + y).amax(1),
        lambda x, y: (x * y).mean((0, 1), keepdim=True),
    ):
        graph = check(f, x, y, fired={BEFORE: 1})
        assert len(graph.nodes) == 1


def test_chain_through_a_view(family: str) -> None:
    x, b = draw(2, 6, 40), draw(40)
    check(lambda x, b: (x * b).reshape(12, 40).sum(0), x, b, fired={BEFORE: 1})
    check(lambda x, b: (x * b).reshape(-1).sum(), x, b)
    check(lambda x, b: (x * 2).transpose(1, 2).sum(2), x, b)
    check(lambda x, b: (x * 2)[:, :4].sum(1), x, b, fired={})


def test_what_others_read_stays(family: str) -> None:
    def f(x: Any) -> Any:
        y = x * 2 + 1
        return y, y.sum(0)

    check(f, draw(20, 8), fired={})


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_chain_after_a_reduction(family: str, size: tuple[int, int]) -> None:
    x, s, t = draw(*size), draw(size[1]), draw(size[0])
    check(lambda x, s: (x.sum(0) * 0.5 + s).tanh(), x, s, fired={AFTER: 1})
    check(lambda x, t: (x.mean(1) + 1e-3, (x.mean(1) + 1e-3) * t), x, t)
    check(lambda x, y: ((x - y) * (x - y)).mean().sqrt() * 3, x, draw(*size, seed=2), fired={BEFORE: 1, AFTER: 1})

    def f(x: Any, s: Any) -> Any:
        total = x.sum(0)
        return total, (total + s).exp()

    check(f, x, s, fired={AFTER: 1})


def test_accumulating_in_place(family: str) -> None:
    def f(x: Any, s: Any) -> Any:
        total = s * 1
        total.add_(x.sum(0))
        total.add_((x * x).sum(0))
        return total

    check(f, draw(33, 12), draw(12))


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_chain_before_a_row(family: str, size: tuple[int, int]) -> None:
    x, y, w, b = draw(*size), draw(*size, seed=1), draw(size[1], seed=2), draw(size[1], seed=3)
    mask = np.tril(np.ones(size, bool))
    graph = check(lambda x, m: F.softmax(mg.where(m, x * 0.125, -1e30), -1), x, mask, fired={ROW_BEFORE: 1})
    assert len(graph.nodes) == 1

    def norm(x: Any, y: Any, w: Any, b: Any) -> Any:
        z = x + y * w
        return z, F.layer_norm(z, (size[1],), w, b), z * 2

    if size[1] > 1:
        check(norm, x, y, w, b, fired={ROW_BEFORE: 1})
        check(lambda x, w: F.rms_norm(x * 2 + 1, (size[1],), w), x, w, fired={ROW_BEFORE: 1})
    target = np.arange(size[0]) % size[1]
    check(lambda x, b, t: F.cross_entropy(x * 2 + b, t, reduction="none"), x, b, target, fired={ROW_BEFORE: 1})


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_chain_after_a_row(family: str, size: tuple[int, int]) -> None:
    x, y, w, b, c = draw(*size), draw(*size, seed=1), draw(size[1], seed=2), draw(size[1], seed=3), draw(size[0], 1)
    check(lambda x, y, c: F.softmax(x, -1) * y + c, x, y, c, fired={ROW_AFTER: 1})
    if size[1] > 1:
        check(lambda x, w, b, y: y + F.silu(F.layer_norm(x, (size[1],), w, b)), x, w, b, y, fired={ROW_AFTER: 1})
        check(lambda x, w, b: F.silu(F.rms_norm(x, (size[1],), w)) * b, x, w, b, fired={ROW_AFTER: 1})

    def f(x: Any, y: Any) -> Any:
        p = F.softmax(x * 0.5, -1)
        q = p * y
        return p, q, (q + 1).log(), p > 0.1

    check(f, x, np.abs(y), fired={ROW_BEFORE: 1, ROW_AFTER: 2})


def test_rows_of_other_dimensions(family: str) -> None:
    x, m = draw(3, 20, 36), draw(20, 36)
    check(lambda x, m: F.softmax(x * 0.5 + m, 1) * 2, x, m)
    check(lambda x, m: F.layer_norm(x * 2 + m, (20, 36)) + m, x, m)
    check(lambda x, m: F.softmax(x.reshape(60, 36) * 0.5, -1).reshape(3, 20, 36) * 3, x, m, fired={ROW_BEFORE: 1, ROW_AFTER: 1})


@pytest.mark.parametrize("size", [(2, 8, 6, 6), (3, 6, 5, 3), (2, 4, 8, 8)], ids=str)
def test_norms_of_channels(family: str, size: tuple[int, ...]) -> None:
    """One weight serves all places of a channel, and several channels are in one row."""
    x, w, b = draw(*size), draw(size[1]), draw(size[1], seed=1)
    graph = check(lambda x, w, b: F.silu(F.group_norm(x, 2, w, b)), x, w, b, fired={ROW_AFTER: 1})
    assert len(graph.nodes) == 1
    check(lambda x, w, b: F.group_norm(x * 2 + b.reshape(-1, 1, 1), 2, w) + x, x, w, b, fired={ROW_BEFORE: 1, ROW_AFTER: 1})
    check(lambda x, w, b: F.softmax((x * w.reshape(-1, 1, 1)).reshape(size[0], -1), -1), x, w, b, fired={ROW_BEFORE: 1})
    check(lambda x, w, b: (x * w.reshape(-1, 1, 1)).reshape(size[0], -1).sum(0), x, w, b, fired={BEFORE: 1})


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_values_of_rows(family: str, size: tuple[int, int]) -> None:
    """What a row reports goes on, and what it is given once a row was computed from something."""
    x, w, t = draw(*size), draw(size[0]), np.arange(size[0]) % size[1]

    def loss(x: Any, w: Any, t: Any) -> Any:
        rows = F.cross_entropy(x, t, reduction="none")
        return rows, (rows * w).exp() - 1, rows > w

    assert len(check(loss, x, w, t, fired={ROW_AFTER: 2}).nodes) == 1
    check(lambda x, w, t: F.cross_entropy(x, t, reduction="none") + w.sum(), x, w, t, fired={ROW_AFTER: 1})

    def gradient(x: Any, w: Any, t: Any) -> Any:
        x = x.detach().requires_grad_()
        rows = F.cross_entropy(x, t, reduction="none", label_smoothing=0.1)
        return mg.autograd.grad((rows * w.exp() * 2).sum(), (x,))

    check(gradient, x, w, t, fired={ROW_BEFORE: 1})  # costly ones too: they are computed once a row
    check(lambda x, t: _mean_gradient(x, t), x, t)


def _mean_gradient(x: Any, t: Any, **options: Any) -> Any:
    x = x.detach().requires_grad_()
    loss = F.cross_entropy(x, t, **options)
    return loss.detach(), *mg.autograd.grad(loss, (x,))


def test_a_mean_loss_and_its_gradient(family: str) -> None:
    """Rows, their ratio with one over what it divides by, and the gradient, which is scaled by that."""
    x, t, w = draw(70, 12), np.arange(70) % 12, draw(12) ** 2 + 0.1
    t[::5] = -100
    graph = check(_mean_gradient, x, t, fired={ROW_BEFORE: 1, ROW_AFTER: 1})
    assert len(graph.nodes) == 3
    check(lambda x, t, w: _mean_gradient(x, t, weight=w), x, t, w, fired={ROW_BEFORE: 1, ROW_AFTER: 1})
    check(lambda x, t: _mean_gradient(x, t), x.reshape(7, 10, 12).transpose(0, 2, 1).copy(), t.reshape(7, 10))
    check(_mean_gradient, x, t, dtype="float16")


def test_values_of_long_rows(family: str) -> None:
    """Few long rows, which several workgroups of a GPU share: what they report goes on in the launch that merges their parts."""
    x, w = draw(3, 9000), draw(3)

    def f(x: Any, w: Any) -> Any:
        y, mean, rstd = layer_norm_row(x, None, None, (1,), 1e-5)
        return y * 2, mean, rstd * w + 1

    check(f, x, w, fired={ROW_AFTER: 2})


def test_written_over_values_of_rows(family: str) -> None:
    def f(x: Any, w: Any, t: Any) -> Any:
        total = w * 1
        total.add_(F.cross_entropy(x, t, reduction="none"))
        rows = F.cross_entropy(x * 2, t, reduction="none")
        rows.mul_(total)
        return total, rows

    check(f, draw(20, 9), draw(20), np.arange(20) % 9)


def test_random_programs(family: str) -> None:
    """Pointwise ops, rows, reductions, in-place writes and views in any order."""
    for seed in range(6):
        check(_program(seed), draw(6, 12), draw(6, 12, seed=1))


def _program(seed: int) -> Callable[..., Any]:
    def run(a: Any, b: Any) -> Any:
        rng = np.random.default_rng(seed)
        live, small = [a * 1, b * 1], []
        for _ in range(16):
            x, y = (live[int(rng.integers(len(live)))] for _ in range(2))
            match int(rng.integers(9)):
                case 0:
                    live.append(x * 0.5 + y)
                case 1:
                    live.append(F.softmax(x, -1))
                case 2:
                    live.append(F.layer_norm(x, (12,)) * 0.5)
                case 3:
                    live.append(mg.where(x > y, x, y.tanh()))
                case 4:
                    small.append((x * y).sum(0) * 0.1)
                case 5:
                    small.append(y.mean(0))
                case 6:
                    live.append(x - (x + y).mean(1, keepdim=True))
                case 7:
                    x.add_(y, alpha=0.5)
                case 8:
                    live.append(F.softmax(x.reshape(12, 6) * 0.5, -1).reshape(6, 12) + (small[-1] if small else 1))
        return (*live, *small)

    return run


def test_gradients_of_rows(family: str) -> None:
    x, w, b, mask = draw(24, 40), draw(40), draw(40, seed=1), np.tril(np.ones((24, 40), bool))

    def f(x: Any, w: Any, b: Any, m: Any) -> Any:
        x, w, b = (t.detach().requires_grad_() for t in (x, w, b))
        y = x + F.layer_norm(x, (40,), w, b)
        z = F.softmax(mg.where(m, y * 0.3, float("-inf")), -1)
        loss = (z * z).mean()
        return (loss.detach(), *mg.autograd.grad(loss, (x, w, b)))

    check(f, x, w, b, mask)


def test_sums_of_columns_together(family: str) -> None:
    x, y, z = draw(70, 24), draw(70, 24, seed=1), draw(70, 24, seed=2)
    shared = check(lambda x, y: ((x * y).sum(0), y.sum(0)), x, y, fired={TOGETHER: 1, BEFORE: 1})
    assert len(shared.nodes) == 1
    apart = {} if gpu.current().profile.family == "cpu" else {TOGETHER: 2}
    check(lambda x, y, z: (x.sum(0), y.mean(0), z.sum(0)), x, y, z, fired=apart)
    check(lambda x, y: (x.sum(0), x.reshape(35, 2, 24).sum((0, 1)) * 2, (y - x).sum(0)), x, y)
    check(lambda x, y: (x.sum(0), (y * x.sum(0)).sum(0)), x, y)
    both = check(lambda x, y: ((x + y).exp().sum(0), ((x + y).exp() * y).sum(0)), x, y, fired={TOGETHER: 1, BEFORE: 1})
    assert len(both.nodes) == 1


def test_many_sums_of_columns_together(family: str) -> None:
    """More accumulators than workgroup memory holds at a time."""
    check(lambda *xs: tuple(x.sum(0) for x in xs), *(draw(200, 40, seed=i) for i in range(7)))


def test_reductions_in_one_dispatch(family: str) -> None:
    """On GPUs, reductions of anything that need nothing of one another."""
    x, y, z = draw(130, 24), draw(70, 9), draw(50, 64)
    together = gpu.current().profile.family != "cpu"

    def f(x: Any, y: Any, z: Any) -> Any:
        return x.sum(0), (y * 0.5).amax(0) * 2, z.var(0), z.argmin(0)

    assert len(check(f, x, y, z).nodes) == (1 if together else 4)
    after = check(lambda x, y: ((x.sum(0) * 2).tanh(), (y * y).mean(0), y.sum(0) * x.sum()), x, y)
    assert len(after.nodes) == (2 if together else 3), after

    def apart(x: Any, y: Any) -> Any:  # the second needs the first, the third is written over
        y, a = y * 1, x.sum(0)
        b = (x * a).amax(0)
        c = y.sum(0)
        y.mul_(2)
        return a, b, c, y.sum(0)

    check(apart, x, y)


def test_kernels_tried_beside_others_are_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reduction is tried beside up to twelve others, which must not take the time of writing all their texts each time."""
    device = gpu.current()
    monkeypatch.setattr(device, "profile", dataclasses.replace(device.profile, family="gpu"))
    written = []
    monkeypatch.setattr(reduce, "source", lambda form, profile: written.append(form) or source(form, profile))
    xs = [mg.tensor(draw(60 + 10 * i, 12)) for i in range(8)]
    graph = mg.compile(lambda *xs: tuple(f(x) for x in xs for f in (lambda x: x.amax(0), lambda x: (x * 2).prod(0)))).graph(*xs)
    assert len(graph.nodes) < len(xs) and len(written) == len(set(written))


def test_a_loss_waits_for_its_gradient(family: str) -> None:
    """Nothing is read twice because a sum stands in between."""

    def f(x: Any, y: Any) -> Any:
        d = x.exp() - y
        return (d * d).mean(), d * 0.25

    assert len(check(f, draw(30, 20), draw(30, 20, seed=1)).nodes) == 2

    def written(x: Any, y: Any) -> Any:
        d = x.exp() - y
        loss = (d * d).mean()
        d.mul_(loss)
        total = d.sum()
        d.add_(1)
        return loss, total, d

    check(written, draw(30, 20), draw(30, 20, seed=1))


def test_in_place_around_rows(family: str) -> None:
    def f(x: Any, y: Any) -> Any:
        z = x * 1
        z.add_(F.softmax(y * 2, -1))
        y = F.softmax(z, -1)
        y.mul_(2)
        w = y.sum(1)
        y.add_(1)
        return z, y, w

    check(f, draw(20, 36), draw(20, 36, seed=1))


def test_half(family: str) -> None:
    x, y, w = draw(30, 44), draw(30, 44, seed=1), draw(44)
    check(lambda x, y: F.softmax(x * 0.5 + y, -1) * y, x, y, dtype="float16", fired={ROW_BEFORE: 1, ROW_AFTER: 1})
    check(lambda x, y, w: F.layer_norm(x + y, (44,), w) + x, x, y, w, dtype="float16")
    check(lambda x, y: (x * y).mean(0) * 3, x, y, dtype="float16", fired={BEFORE: 1, AFTER: 1})
    check(lambda x, y: ((x * y).float().sum(1), x.sum(0), (x * y).sum(0)), x, y, dtype="float16")


def test_special_values(family: str) -> None:
    x = draw(8, 20)
    x[1, 2], x[2, 3], x[3, :], x[4, 0] = np.nan, np.inf, -np.inf, -np.inf
    check(lambda x: ((x * 2).amax(1), (x + 1).amin(0), (x * 0.5).sum(0), F.softmax(x * 2, -1) + 1), x)


def test_zero_dimensional(family: str) -> None:
    x, s = draw(9, 12), np.float32(1.5)
    check(lambda x, s: ((x * s).sum() * s, F.softmax(x * s, -1) * s, (x.sum() + s).exp()), x, np.asarray(s))


def test_scalars_are_no_literals(family: str) -> None:
    """Kernels with other numbers in the chain are the same kernels."""

    def kernels(a: float) -> list[Any]:
        x = mg.tensor(draw(10, 12))
        g = mg.compile(lambda x: (F.softmax(x * a, -1) + a, (x * a).sum(0) * a))
        return [n.op for n in g.graph(x).nodes]

    assert kernels(0.5) == kernels(0.25)


def test_lowers_for_any_profile() -> None:
    x = mg.tensor(draw(40, 24))
    graph = mg.compile(lambda x: (F.softmax(x * 2, -1) + 1, ((x * x).sum(0) + 1).sqrt(), (x + 1).mean())).graph(x)
    for profile in (Profile(), Profile(backend="dawn"), Profile(family="cpu", subgroup_size=8), Profile(subgroups=False, subgroup_size=0)):
        for step in lower(graph.nodes, profile):
            for launch in step.lowered.launches:
                assert launch.kernel.source(profile)


def test_a_part_of_what_a_chain_makes_is_not_all_of_it() -> None:
    x = mg.randn(2, 5, 5)

    def both(x: Any) -> Any:
        y = x * 2 + 1
        return y[0].softmax(-1), y[1] @ y[0], y[1].sum(-1)

    for got, want in zip(mg.compile(both, debug=True)(x), both(x), strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5, atol=1e-6)
