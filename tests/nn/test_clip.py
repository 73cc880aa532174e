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
