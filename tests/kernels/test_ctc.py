"""The rows of ctc_loss against float64 on both kernel families."""

from __future__ import annotations

import numpy as np
import pytest

from meganeura.ops.ctc import ctc_backward, ctc_forward

from .run_call import FAMILIES
from .run_row import compare


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("t", "n", "c", "s"), [(1, 1, 2, 1), (5, 3, 4, 2), (40, 5, 30, 17), (20, 2, 300, 70)])
def test_loss_and_gradient(family: str, t: int, n: int, c: int, s: int) -> None:
    rng = np.random.default_rng(t)
    x = rng.uniform(-2, 2, (t, n, c))
    x = (x - np.log(np.exp(x).sum(-1, keepdims=True))).astype(np.float32)
    targets, labels = rng.integers(1, c, (n, s)), rng.integers(0, min(s, t // 3) + 1, n)
    inputs = np.maximum(rng.integers(t // 2, t + 1, n), 2 * labels)
    nll, alpha = compare(ctc_forward, [x, targets, inputs, labels, 0, False], family, tolerance=5e-5)
    grad = rng.uniform(0.5, 1, n).astype(np.float32)
    args = [grad, x, targets, inputs, labels, nll.astype(np.float32), alpha.astype(np.float32), 0, False]
    compare(ctc_backward, args, family, tolerance=2e-4)
