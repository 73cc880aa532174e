"""What fusion must not change: NaN in conversions, x - x, scaled operands; and how few kernels a loss takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura.nn import functional as F

SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.5, 3e38, 2e-38], np.float32)  # none subnormal: GPUs flush those to 0

CHAINS: dict[str, Callable[[Any], Any]] = {
    "truth": lambda x: (x * 2.0).bool().float() + 1.0,
    "logical_not": lambda x: mg.logical_not(x * 1.0).float() * 3.0,
    "and": lambda x: mg.logical_and(x + 0.0, x * 1.0).float() - 1.0,
    "unsigned": lambda x: (mg.where(x > -2.0, x, 1.0).clamp(-4.0, 4.0) * 1.0).to(mg.uint32) + 1,
    "x - x": lambda x: (x + 1.0) - (x + 1.0),
    "x == x": lambda x: ((x * 1.5) == (x * 1.5)).float() + 1.0,
    "x != x": lambda x: ((x * 1.5) != (x * 1.5)).float() + 1.0,
    "x <= x": lambda x: ((x * 1.5) <= (x * 1.5)).float() + 1.0,
    "x >= x": lambda x: ((x * 1.5) >= (x * 1.5)).float() + 1.0,
    "x < x": lambda x: ((x * 1.5) < (x * 1.5)).float() + 1.0,
    "x is close to x": lambda x: mg.isclose(x * 1.5, x * 1.5).float() + 1.0,
    "maximum": lambda x: mg.maximum(x * 1.0, 0.5) + 1.0,
    "clamp": lambda x: (x * 1.0).clamp(-1.0, 1.0) + 1.0,
    "sign": lambda x: (x * 1.0).sign() + 1.0,
    "relu": lambda x: (x * 1.0).relu() + 1.0,
    "where": lambda x: mg.where(x > 0.0, x * 1.0, 7.0) + 1.0,
}


@pytest.mark.parametrize("fn", CHAINS.values(), ids=CHAINS)
def test_compiled_chains_treat_nan_as_single_ops_do(fn: Callable[[Any], Any]) -> None:
    x = mg.tensor(SPECIAL)
    with mg.no_grad():
        got = mg.compile(fn)(x).numpy()
    with np.errstate(all="ignore"):
        want = reference(fn)
    np.testing.assert_array_equal(got, want)


def reference(fn: Callable[[Any], Any]) -> Any:
    """The function in numpy, op by op."""
    from meganeura import dispatch

    with dispatch.use(mg.Reference()):
        return fn(mg.tensor(SPECIAL)).numpy()


def test_x_minus_itself_in_place() -> None:
    for change in (lambda x: x.sub_(x), lambda x: x.__isub__(x)):
        x = mg.tensor(SPECIAL)
        change(x)
        np.testing.assert_array_equal(np.isnan(x.numpy()), ~np.isfinite(SPECIAL))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_takes_few_kernels(reduction: str) -> None:
    x, target = mg.randn(8, 5), mg.tensor([0, 1, 2, 3, 4, -100, 0, 1])
    fn = mg.compile(lambda x, t: F.cross_entropy(x, t, reduction=reduction))
    np.testing.assert_allclose(fn(x, target).numpy(), F.cross_entropy(x, target, reduction=reduction).numpy(), rtol=1e-6)
    assert len(fn.plan(x, target).lines) == (1 if reduction == "none" else 2)


@pytest.mark.torch
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(6, 5), (5,), (3, 4, 7)])
@pytest.mark.parametrize("ignored", ["some", "all", "none"])
def test_cross_entropy_equals_pytorch(reduction: str, shape: tuple[int, ...], ignored: str, torch: Any, rng: np.random.Generator) -> None:
    a = rng.standard_normal(shape).astype(np.float32)
    classes = shape[1] if len(shape) > 1 else shape[0]
    t = rng.integers(0, classes, (shape[0], *shape[2:]) if len(shape) > 1 else ())
    if ignored == "all":
        t = np.full_like(t, 2)
    ignore = -100 if ignored == "none" else 2
    out = []
    for lib, functional in ((torch, torch.nn.functional), (mg, F)):
        x = lib.tensor(a, requires_grad=True)
        loss = functional.cross_entropy(x, lib.tensor(t), ignore_index=ignore, reduction=reduction)
        (loss * 2.0).sum().backward()
        out.append((loss.detach().numpy(), x.grad.numpy()))
    for want, got in zip(*out, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_alpha_keeps_the_dtype() -> None:
    half, bools = mg.ones(2, dtype=mg.float16), mg.tensor([True, False])
    assert half.add(mg.tensor([1, 2]), alpha=0.5).dtype is mg.float16
    assert bools.add(bools, alpha=-1).tolist() == [True, False]
    assert mg.tensor([5]).sub(mg.tensor([2]), alpha=2).tolist() == [1]
    assert mg.tensor([5]).add_(3, alpha=2).tolist() == [11]


def test_a_loss_may_be_changed_in_place() -> None:
    """Only what gradients need is kept: neither a norm's nor a loss's own result."""
    for fn in (
        lambda x: F.layer_norm(x, (4,)),
        lambda x: F.rms_norm(x, (4,)),
        lambda x: F.cross_entropy(x, mg.tensor([0, 1]), reduction="none"),
    ):
        x = mg.randn(2, 4, requires_grad=True)
        y = fn(x)
        y.mul_(2.0)
        y.sum().backward()
        twice = x.grad.numpy()
        x.grad = None
        (fn(x) * 2.0).sum().backward()
        np.testing.assert_array_equal(twice, x.grad.numpy())


@pytest.mark.parametrize("name", ["eq", "le", "ge", "ne"])
def test_comparisons_ask_for_nan(name: str) -> None:
    """Drivers may fold x == x, which then is true for NaN; this one does not, so the text is looked at."""
    from meganeura.ops import REGISTRY

    kind: Any = REGISTRY[name].archetype
    assert "is_nan({input})" in kind.expr["f"]
