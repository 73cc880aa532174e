"""Gradient clipping against PyTorch, and that it does not wait for the device."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import nn


def _pair(torch: Any, scale: float) -> tuple[list[Any], list[Any]]:
    rng = np.random.default_rng(0)
    ours, theirs = [], []
    for shape in ((3, 4), (5,), (), (2, 2)):
        g = (scale * rng.standard_normal(shape)).astype(np.float32)
        p, q = nn.Parameter(mg.zeros(shape)), torch.nn.Parameter(torch.zeros(shape))
        p.grad, q.grad = mg.tensor(g), torch.tensor(g)
        ours.append(p)
        theirs.append(q)
    ours.append(nn.Parameter(mg.zeros(2)))
    theirs.append(torch.nn.Parameter(torch.zeros(2)))
    return ours, theirs


@pytest.mark.torch
@pytest.mark.parametrize("norm_type", [2.0, 1.0, 3.0, math.inf])
@pytest.mark.parametrize("scale", [10.0, 0.01])
def test_norm(torch: Any, norm_type: float, scale: float) -> None:
    ours, theirs = _pair(torch, scale)
    total = nn.utils.clip_grad_norm_(ours, 1.0, norm_type)
    expected = torch.nn.utils.clip_grad_norm_(theirs, 1.0, norm_type)
    assert total.item() == pytest.approx(expected.item(), rel=1e-5)
    for p, q in zip(ours, theirs, strict=True):
        if q.grad is None:
            assert p.grad is None
        else:
            np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-5, atol=1e-8)


@pytest.mark.torch
def test_value(torch: Any) -> None:
    ours, theirs = _pair(torch, 1.0)
    nn.utils.clip_grad_value_(ours, 0.5)
    torch.nn.utils.clip_grad_value_(theirs, 0.5)
    for p, q in zip(ours[:-1], theirs[:-1], strict=True):
        np.testing.assert_array_equal(p.grad.numpy(), q.grad.numpy())


def test_no_readback(monkeypatch: pytest.MonkeyPatch) -> None:
    p = nn.Parameter(mg.zeros(4))
    p.grad = mg.ones(4)
    monkeypatch.setattr(mg.Tensor, "_read", lambda self: pytest.fail("clipping waited for the device"))
    total = nn.utils.clip_grad_norm_([p], 1.0)
    monkeypatch.undo()
    assert total.item() == pytest.approx(2.0)
    np.testing.assert_allclose(p.grad.numpy(), 0.5, rtol=1e-5)


def test_nonfinite_and_empty() -> None:
    from meganeura.nn.utils import clip_grad_norm_

    p = nn.Parameter(mg.zeros(2))
    assert clip_grad_norm_(p, 1.0).item() == 0.0
    p.grad = mg.tensor([math.nan, 1.0])
    with pytest.raises(mg.GradientError, match="total norm of the gradients is nan"):
        clip_grad_norm_([p], 1.0, error_if_nonfinite=True)
    assert p.grad[1].item() == 1.0
    assert math.isnan(clip_grad_norm_([p], 1.0).item())


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_adaptive(compiled: bool) -> None:
    """Each gradient times min(1, clip * max(pmin, |p|) / |g|)."""
    rng = np.random.default_rng(0)
    shapes, scales = [(3, 4), (5,), (), (2, 2), (0, 3)], [5.0, 1e-4, 3.0, 2.0, 1.0]
    params = [nn.Parameter(mg.tensor((i * 0.5 * rng.standard_normal(s)).astype(np.float32))) for i, s in enumerate(shapes)]
    grads = [(c * rng.standard_normal(s)).astype(np.float32) for c, s in zip(scales, shapes, strict=True)]
    for p, g in zip(params, grads, strict=True):
        p.grad = mg.tensor(g)
    params[3].grad = params[3].grad.t()  # not contiguous
    grads[3] = grads[3].T
    clip = lambda: nn.utils.adaptive_clip_grad_([*params, nn.Parameter(mg.ones(2))], 0.1, 0.05)
    (mg.compile(clip) if compiled else clip)()
    for p, g in zip(params, grads, strict=True):
        factor = min(1.0, 0.1 * max(0.05, np.linalg.norm(p.detach().numpy())) / max(np.linalg.norm(g), 1e-6))
        np.testing.assert_allclose(p.grad.numpy(), g * factor, rtol=1e-5, atol=1e-9)
    with pytest.raises(ValueError, match="clip > 0"):
        nn.utils.adaptive_clip_grad_(params, 0.0)


def test_few_dispatches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clipping 300 gradients takes tens of dispatches, not hundreds, and half-precision gradients may be among them."""
    params = [nn.Parameter(mg.zeros(3 + i % 5, dtype=mg.float16 if i % 7 == 0 else mg.float32)) for i in range(300)]
    for i, p in enumerate(params):
        p.grad = mg.full_like(p.detach(), 0.01 * (i % 3))
    expected = math.sqrt(sum(float((p.grad.numpy().astype(np.float64) ** 2).sum()) for p in params))
    device = params[0].device
    before = device.counters.dispatches
    total = nn.utils.clip_grad_norm_(params, 0.5)
    assert device.counters.dispatches - before <= 70
    assert total.item() == pytest.approx(expected, rel=1e-4)
    after = math.sqrt(sum(float((p.grad.numpy().astype(np.float64) ** 2).sum()) for p in params))
    assert after == pytest.approx(0.5, rel=2e-3)
