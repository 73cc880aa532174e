"""Attention against PyTorch's: head sizes, groups, lengths, masks, gradients; what goes beyond it against its plain formula."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura.errors import GradientError, IndexOutOfRangeError

from .compare import bools, check, floats

torch = pytest.importorskip("torch")
F = mg.nn.functional
SDPA = "nn.functional.scaled_dot_product_attention"
TF = torch.nn.functional
RNG = np.random.default_rng(0)


def draw(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def qkv(b: int, h: int, kv: int, rows: int, keys: int, e: int, d: int | None = None) -> tuple[Any, Any, Any]:
    return draw(b, h, rows, e), draw(b, kv, keys, e), draw(b, kv, keys, d or e)


def seen(*shape: int) -> Any:
    """A random bool mask that shows every query its first key."""
    out = bools(*shape, seed=3)
    out[..., 0] = True
    return out


@pytest.mark.parametrize("size", [1, 3, 4, 32, 40, 64, 80, 96, 100, 128, 192, 256])
def test_head_sizes(size: int) -> None:
    check(SDPA, *qkv(1, 2, 2, 19, 37, size), layouts=("plain", "transposed"), grad_rtol=1e-4)


@pytest.mark.parametrize("length", [1, 2, 7, 31, 33, 64, 129, 1025])
@pytest.mark.parametrize("causal", [False, True])
def test_lengths(length: int, causal: bool) -> None:
    batch = 2 if length < 1000 else 1
    check(SDPA, *qkv(batch, 2, 2, length, length, 32), is_causal=causal, layouts=("plain",), half=length < 100, grad_rtol=2e-4)


@pytest.mark.parametrize(("heads", "kv"), [(2, 1), (4, 2), (9, 3), (6, 6), (8, 1)])
def test_groups(heads: int, kv: int) -> None:
    check(SDPA, *qkv(2, heads, kv, 17, 23, 16), enable_gqa=True, layouts=("plain", "stepped"), grad_rtol=1e-4)
    check(SDPA, *qkv(1, heads, kv, 9, 9, 64), enable_gqa=True, is_causal=True, layouts=("plain",), grad_rtol=1e-4)


@pytest.mark.parametrize("shape", [(3, 2, 9, 13), (3, 1, 9, 13), (1, 2, 9, 13), (9, 13), (1, 13), (3, 1, 1, 13), (3, 1, 9, 1)])
def test_masks(shape: tuple[int, ...]) -> None:
    args = qkv(3, 2, 2, 9, 13, 8)
    check(SDPA, *args, seen(*shape), layouts=("plain", "transposed"), half=False, grad_rtol=1e-4)
    check(SDPA, *args, draw(*shape), layouts=("plain", "shifted"), half=False, grad_rtol=1e-4)
    check(SDPA, *args, np.where(seen(*shape), 0, -np.inf).astype(np.float32), layouts=("plain",), half=False, grad=False)
    wide = qkv(3, 2, 2, 9, 16, 8)
    check(SDPA, *wide, seen(*shape[:-1], 16 if shape[-1] > 1 else 1), layouts=("plain",), half=False, grad_rtol=1e-4)


@pytest.mark.parametrize("rank", [2, 3, 5])
def test_ranks(rank: int) -> None:
    lead = (2, 3, 2)[: rank - 2]
    check(SDPA, draw(*lead, 5, 8), draw(*lead, 7, 8), draw(*lead, 7, 4), layouts=("plain",), grad_rtol=1e-4)


def test_options() -> None:
    args = qkv(2, 2, 2, 5, 7, 8, 3)
    check(SDPA, *args, scale=0.3, layouts=("plain", "expanded"), grad_rtol=1e-4)
    check(SDPA, *qkv(2, 2, 2, 7, 5, 8), is_causal=True, layouts=("plain",), grad_rtol=1e-4)
    check(SDPA, draw(2, 3, 4, 8), draw(2, 1, 5, 8), draw(2, 1, 5, 8), layouts=("plain",), half=False)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((draw(1, 2, 3, 8), draw(1, 2, 4, 6), draw(1, 2, 4, 8)), {}),
        ((draw(1, 2, 3, 8), draw(1, 2, 4, 8), draw(1, 2, 5, 8)), {}),
        ((draw(1, 2, 3, 8), draw(1, 2, 4, 8), draw(1, 2, 4, 8).astype(np.float16)), {}),
        ((draw(8), draw(8), draw(8)), {}),
        (qkv(1, 3, 2, 3, 4, 8), {"enable_gqa": True}),
        (qkv(1, 3, 2, 3, 4, 8), {}),
        (qkv(1, 2, 2, 3, 4, 8), {"attn_mask": seen(3, 4), "is_causal": True}),
        (qkv(1, 2, 2, 3, 4, 8), {"attn_mask": seen(3, 5)}),
        (qkv(1, 2, 2, 3, 4, 8), {"attn_mask": np.ones((3, 4), np.int64)}),
    ],
)
def test_refusals(args: Any, kwargs: Any) -> None:
    given = {k: mg.tensor(v) if hasattr(v, "shape") else v for k, v in kwargs.items()}
    with pytest.raises(mg.MeganeuraError, match=r"attention|mask|shape"):
        F.scaled_dot_product_attention(*map(mg.tensor, args), **given)


# ---- beyond PyTorch ----


def plain(q: Any, k: Any, v: Any, show: Any) -> Any:
    """Attention where `show` [.., L, S] says so, in float64; rows that see nothing are 0."""
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x.astype(np.float64), group, 1) for x in (k, v))
    s = np.where(show, q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1]), -np.inf)
    e = np.exp(s - np.maximum(s.max(-1, keepdims=True), -1e30))
    total = e.sum(-1, keepdims=True)
    return e / np.where(total == 0, 1, total) @ v


def places(rows: int, keys: int, start: Any) -> tuple[Any, Any]:
    return np.arange(rows)[:, None] + np.reshape(start, (-1, 1, 1, 1)), np.arange(keys)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [0, 1, 5, 40])
@pytest.mark.parametrize("position", [0, 11, (0, 30)])
def test_windows_and_positions(causal: bool, window: int, position: Any) -> None:
    args = qkv(2, 4, 2, 9, 41, 16)
    place, col = places(9, 41, position)
    show = np.ones(np.broadcast_shapes(place.shape, (41,)), bool)
    show &= (col <= place) if causal else True
    show &= ((col > place - window) & (col < place + window)) if window else True
    got = F.attention(*map(mg.tensor, args), causal=causal, window=window, position=mg.tensor(np.array(position)))
    np.testing.assert_allclose(got.numpy(), plain(*args, show), rtol=2e-5, atol=2e-6)
    if position == 11:
        fixed = F.attention(*map(mg.tensor, args), causal=causal, window=window, offset=11)
        np.testing.assert_array_equal(fixed.numpy(), got.numpy())


def test_bottom_right() -> None:
    args = qkv(1, 2, 2, 5, 12, 8)
    got = F.attention(*map(mg.tensor, args), causal=True, offset=12 - 5).numpy()
    place, col = places(5, 12, 7)
    np.testing.assert_allclose(got, plain(*args, col <= place), rtol=2e-5, atol=2e-6)


def test_queries_that_see_nothing() -> None:
    args = [mg.tensor(x, requires_grad=True) for x in qkv(1, 2, 1, 4, 6, 8)]
    mask = np.ones((4, 6), bool)
    mask[1] = False
    for m in (mg.tensor(mask), mg.tensor(np.where(mask, 0, -np.inf).astype(np.float32))):
        out = F.scaled_dot_product_attention(*args, m, enable_gqa=True)
        assert not out.detach().numpy()[:, :, 1].any()
        assert np.isfinite(out.detach().numpy()).all()
        grads = mg.grad([out.sum()], args)
        assert not grads[0].numpy()[:, :, 1].any()
        assert all(np.isfinite(g.numpy()).all() for g in grads)
    early = F.attention(*args, causal=True, offset=-2)
    assert not early.detach().numpy()[:, :, :2].any()


def test_nan_stays_in_its_row() -> None:
    q, k, v = qkv(1, 1, 1, 4, 6, 8)
    q[0, 0, 2, 3] = np.nan
    out = F.scaled_dot_product_attention(*map(mg.tensor, (q, k, v))).numpy()
    assert np.isnan(out[0, 0, 2]).all()
    assert np.isfinite(np.delete(out, 2, 2)).all()


def test_empty() -> None:
    for rows, keys in ((0, 5), (5, 0), (0, 0)):
        args = [mg.tensor(x, requires_grad=True) for x in qkv(2, 2, 2, rows, keys, 8, 4)]
        out = F.scaled_dot_product_attention(*args)
        assert out.shape == (2, 2, rows, 4)
        assert not out.detach().numpy().any()
        assert all(not g.numpy().any() and g.shape == a.shape for g, a in zip(mg.grad([out.sum()], args), args, strict=True))


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_gradients(causal: bool) -> None:
    args = [draw(1, 2, 3, 4), draw(1, 1, 4, 4), draw(1, 1, 4, 3)]

    def slope(*args: Any) -> Any:
        with mg.enable_grad():
            q, k, v = (x if x.requires_grad else x.detach().requires_grad_() for x in args)
            out = F.attention(q, k, v, causal=causal, scale=0.6)
            slopes = mg.autograd.grad([(out * out).sum()], [q, k, v], create_graph=True)
        return slopes if args[0].requires_grad else tuple(x.detach() for x in slopes)

    assert mg.autograd.gradcheck(slope, args)


def test_gradient_of_a_mask() -> None:
    check(SDPA, *qkv(2, 2, 2, 5, 7, 8), draw(2, 1, 5, 7), layouts=("plain",), half=False, grad_rtol=1e-4)


def test_dropout() -> None:
    q, k, v = (mg.tensor(x, requires_grad=True) for x in qkv(1, 2, 2, 40, 50, 8))
    mg.manual_seed(3)
    out = F.scaled_dot_product_attention(q, k, mg.ones(1, 2, 50, 8), dropout_p=0.5)
    assert abs(float(out.mean().item()) - 1) < 0.15
    assert float(out.std().item()) > 0.05
    mg.grad([F.scaled_dot_product_attention(q, k, v, dropout_p=0.25).sum()], [q, k, v])
    np.testing.assert_allclose(F.scaled_dot_product_attention(q, k, v, dropout_p=1.0).detach().numpy(), 0)


def test_changed_in_place() -> None:
    q, k, v = (mg.tensor(x, requires_grad=True) for x in qkv(1, 1, 1, 3, 3, 4))
    hidden = k * 1
    out = F.scaled_dot_product_attention(q, hidden, v)
    hidden.add_(1)
    with pytest.raises(GradientError, match="qkv"):
        out.sum().backward()


# ---- rotary embedding and caches ----


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("shape", "pairs"), [((2, 3, 5, 8), 4), ((2, 3, 5, 8), 3), ((5, 6), 3), ((2, 2, 2, 5, 8), 4), ((3, 7, 64), 32)])
def test_rotary(shape: tuple[int, ...], pairs: int, interleaved: bool) -> None:
    x, angle = draw(*shape), floats(shape[-2], pairs)

    def turned(lib: Any) -> Any:
        def call(x: Any, angle: Any) -> Any:
            c, s = angle.cos(), angle.sin()
            if lib is mg:
                return F.rotary_embedding(x, c, s, interleaved)
            part = x[..., : 2 * pairs]
            a, b = (part[..., ::2], part[..., 1::2]) if interleaved else (part[..., :pairs], part[..., pairs:])
            both = (a * c - b * s, b * c + a * s)
            part = torch.stack(both, -1).flatten(-2) if interleaved else torch.cat(both, -1)
            return torch.cat([part, x[..., 2 * pairs :]], -1)

        return call

    check((turned(mg), turned(torch)), x, angle, half=False, grad_rtol=1e-4)


def test_rotary_tables() -> None:
    cos, sin = F.rotary_tables(50, 16, 10000.0)
    angle = np.arange(50)[:, None] / 10000.0 ** (np.arange(0, 16, 2) / 16)
    np.testing.assert_allclose(cos.numpy(), np.cos(angle), atol=2e-5)
    np.testing.assert_allclose(sin.numpy(), np.sin(angle), atol=2e-5)


def test_cache_write() -> None:
    caches = [mg.tensor(x) for x in (draw(2, 3, 9, 8), draw(2, 3, 9, 5))]
    want = [c.numpy().copy() for c in caches]
    values = [draw(2, 3, 2, 8), draw(2, 3, 2, 5)]
    F.cache_write_(caches, [mg.tensor(v) for v in values], mg.tensor(np.array([6, 1])))
    for c, w, v in zip(caches, want, values, strict=True):
        w[0, :, 6:8], w[1, :, 1:3] = v[0], v[1]
        np.testing.assert_array_equal(c.numpy(), w)
    with pytest.raises(IndexOutOfRangeError):
        F.cache_write_(caches, [mg.tensor(v) for v in values], mg.tensor(8))
        mg.synchronize()


def test_decoding_is_compiled_once() -> None:
    """Prefill, then one query at a time against caches, equals causal attention over everything."""
    q, k, v = qkv(1, 4, 2, 12, 12, 16)
    want = F.attention(*map(mg.tensor, (q, k, v)), causal=True).numpy()
    caches = [mg.zeros(1, 2, 16, 16), mg.zeros(1, 2, 16, 16)]

    @mg.compile
    def step(q: Any, k: Any, v: Any, position: Any) -> Any:
        F.cache_write_(caches, [k, v], position)
        return F.attention(q, *caches, position=position, causal=True)

    with mg.no_grad():
        got = [step(*(mg.tensor(x[:, :, i : i + 1]) for x in (q, k, v)), mg.tensor(i)).numpy() for i in range(12)]
    np.testing.assert_allclose(np.concatenate(got, 2), want, rtol=2e-5, atol=2e-6)
    assert step.sessions == 1


def test_compiled_training() -> None:
    args = [mg.tensor(x, requires_grad=True) for x in qkv(2, 4, 2, 17, 17, 24)]

    def loss(*args: Any) -> Any:
        return F.scaled_dot_product_attention(*args, is_causal=True, enable_gqa=True).square().sum()

    def step(q: Any, k: Any, v: Any) -> Any:
        return mg.grad([loss(q, k, v)], [q, k, v])

    for a, b in zip(mg.compile(step)(*args), step(*args), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-6)


def test_recognised() -> None:
    """Spelled-out attention becomes the row when nobody reads its weights; a training step keeps its products."""
    q, k, v = (mg.tensor(x) for x in qkv(2, 4, 4, 17, 21, 24))
    mask = mg.tensor(seen(2, 1, 17, 21))

    def spelled(q: Any, k: Any, v: Any) -> Any:
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(24)
        return mg.softmax(scores.masked_fill(mask.logical_not(), -math.inf), -1) @ v

    compiled = mg.compile(spelled)
    np.testing.assert_allclose(compiled(q, k, v).numpy(), spelled(q, k, v).numpy(), rtol=1e-5, atol=1e-6)
    assert "= attention(" in str(compiled.graph(q, k, v).nodes)

    def step(q: Any, k: Any, v: Any) -> Any:
        return mg.grad([spelled(q, k, v).square().sum()], [q, k, v])

    leaves = [x.requires_grad_() for x in (q, k, v)]
    training = mg.compile(step)
    for a, b in zip(training(*leaves), step(*leaves), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-6)
    assert "= attention(" not in str(training.graph(*leaves).nodes)


def test_masks_of_the_least_float() -> None:
    """A row of them has equal weights, as in PyTorch."""
    q, k, v = qkv(1, 2, 2, 3, 5, 8)
    mask = np.zeros((3, 5), np.float32)
    mask[1], mask[2, 2:] = np.finfo(np.float32).min, np.finfo(np.float32).min
    check(SDPA, q, k, v, mask, layouts=("plain",), half=False, grad=False)
