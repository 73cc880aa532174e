"""Two optimizers fed the same gradients: this package's, and PyTorch's or one in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

import meganeura as mg
from meganeura import nn

SHAPES = ((3, 5), (7,), (), (2, 2, 2))


def starts() -> list[Any]:
    """Start values of the parameters."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s).astype(np.float32) for s in SHAPES]


def gradients(step: int) -> list[Any]:
    """Gradients of a step; their sizes differ by three orders of magnitude."""
    rng = np.random.default_rng(100 + step)
    return [(10.0 ** (i - 2) * rng.standard_normal(s)).astype(np.float32) for i, s in enumerate(SHAPES)]


def parameters() -> list[Any]:
    """The parameters, as this package's."""
    return [nn.Parameter(mg.tensor(a)) for a in starts()]


def twins(torch: Any) -> list[Any]:
    """The parameters, as PyTorch's."""
    return [torch.nn.Parameter(torch.tensor(a)) for a in starts()]


def give(params: Any, step: int, make: Any) -> None:
    """Set every parameter's gradient of a step."""
    for p, g in zip(params, gradients(step), strict=True):
        p.grad = make(g)


def same(ours: Any, theirs: Any, rtol: float = 2e-5, atol: float = 2e-6) -> None:
    """Parameters agree."""
    for i, (p, q) in enumerate(zip(ours, theirs, strict=True)):
        expected = q.detach().numpy() if hasattr(q, "detach") else q
        np.testing.assert_allclose(p.detach().numpy(), expected, rtol=rtol, atol=atol, err_msg=f"parameter {i}")
