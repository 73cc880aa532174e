"""Cross-entropy rows on both kernel families, over vocabularies that no workgroup holds in registers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meganeura import dtype as D
from meganeura import kernels
from meganeura.ops import cross_entropy as rows
from meganeura.ops.table import Op

from .run_call import FAMILIES, profile
from .run_row import compare, row_call

SIZES = [(5, 7), (3, 1000), (2, 4097), (2, 16384), (1, 50257), (33, 49152)]


def logits(n: int, c: int, dtype: D.DType) -> Any:
    x = (np.random.default_rng(c).standard_normal((n, c)) * 3 + 20).astype(np.float32)
    return x.astype(np.float16).astype(np.float32) if dtype is D.float16 else x


def seeds(n: int, made: list[Any]) -> Any:
    grad = np.random.default_rng(n).uniform(0.5, 1, n).astype(np.float32)
    return [np.asarray(m, np.float32) for m in made[1:]], grad


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [D.float32, D.float16], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_class_indices(family: str, dtype: D.DType, size: tuple[int, int]) -> None:
    n, c = size
    x, target = logits(n, c, dtype), np.random.default_rng(1).integers(0, c, n)
    target[0] = c - 1
    target[n // 2] = -100 if n > 1 else target[n // 2]
    tolerance = 2e-5 if dtype is D.float32 else 2e-3
    made = compare(rows.cross_entropy_row, [x, None, target, 1, -100], family, dtype, tolerance)
    more, grad = seeds(n, made)
    assert dtype is D.float32 or np.all(np.isfinite(made[0]))
    if dtype is D.float32:
        compare(rows.cross_entropy_grad, [x, target, more[0], grad, 1, -100], family)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [(5, 7), (2, 4097), (3, 49152)], ids=str)
def test_weights_smoothing_and_probabilities(family: str, size: tuple[int, int]) -> None:
    n, c = size
    rng = np.random.default_rng(2)
    x, w, target = logits(n, c, D.float32), rng.uniform(0.5, 2, c).astype(np.float32), rng.integers(0, c, n)
    target[1] = -100
    compare(rows.cross_entropy_row, [x, w, target, 1, -100], family)
    for weight in (w, None):
        made = compare(rows.smooth_cross_entropy_row, [x, weight, target, 1, -100, 0.1], family, tolerance=4e-5)
        (lse, kept, total), grad = seeds(n, made)
        compare(rows.smooth_cross_entropy_grad, [x, weight, target, lse, kept, total, grad, 1, -100, 0.1], family)
        dense = rng.dirichlet(np.ones(c), n).astype(np.float32)
        made = compare(rows.dense_cross_entropy_row, [x, dense, weight, 1, 0.1], family, tolerance=4e-5)
        (lse, total), grad = seeds(n, made)
        compare(rows.dense_cross_entropy_grad, [x, dense, weight, lse, total, grad, 1, 0.1], family)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("op", [rows.cross_entropy_row, rows.cross_entropy_grad], ids=lambda r: r.name)
def test_one_dispatch_and_no_temporaries_of_the_logits_size(family: str, op: Op) -> None:
    x, target, row = np.zeros((512, 50257), np.float32), np.zeros(512, np.int64), np.zeros(512, np.float32)
    args = [x, None, target, 1, -100] if op is rows.cross_entropy_row else [x, target, row, row, 1, -100]
    lowered = kernels.lower(row_call(op, args), profile(family))
    assert len(lowered.launches) <= 2
    assert sum(lowered.temps) < x.nbytes / 100
