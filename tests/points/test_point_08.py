"""In-place ops and views, beyond tests/test_autodiff.py: versions, regenerated histories, refusals; always as PyTorch."""

# ruff: noqa: PLC3002

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meganeura as mg

VALUES = np.random.default_rng(5).standard_normal((4, 6)).astype(np.float32)

CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "a view of a view of a view": lambda y, x: y[1:].t()[2:5].t()[0].mul_(x[0, :3]),
    "two views that overlap": lambda y, x: (y[:3].mul_(x[:3]), y[1:].add_(x[1:]), y[2, 2:4].copy_(x[0, :2])),
    "a view changed after its base": lambda y, x: (lambda v: (y.mul_(x), v.add_(x[0])))(y[1]),
    "a base changed after its view": lambda y, x: (lambda v: (v.mul_(x[1]), y.add_(x)))(y[1]),
    "a diagonal": lambda y, x: y.as_strided((4,), (7,), 0).mul_(x[0, :4]),
    "columns by steps": lambda y, x: y[:, ::2].copy_(x[:, 1::2] * 2),
    "a column from a scalar": lambda y, x: y[:, 1].fill_(x[0, 0].item()),
    "assignment broadcast": lambda y, x: y.__setitem__((slice(None), slice(1, 3)), x[0, 0] * x[0, 1]),
    "reshaped view": lambda y, x: y.view(2, 12)[0].mul_(x.reshape(-1)[:12]),
    "unsqueezed view": lambda y, x: y.unsqueeze(1)[:, 0, 2].add_(x[:, 0]),
    "in place of a chain": lambda y, x: y[0].sub_(x[0]).mul_(x[1]).add_(1),
    "under no_grad": lambda y, x: _quiet(y),
    "a detached view": lambda y, x: y.detach()[0].mul_(2),
    "to itself": lambda y, x: y.add_(y),
}


REFUSED: dict[str, Callable[[Any, Any], Any]] = {
    "assignment of an expression of itself": lambda y, x: y.__setitem__(slice(1, None), y[:-1] * x[1:]),
    "a row to the others": lambda y, x: y[1:].mul_(y[0]),
    "a factor changed through its view": lambda y, x: (lambda v: (y.mul_(v), v.add_(1)))(x[0] * 1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_overwrites_what_it_saved_is_refused_as_in_pytorch(torch: Any, name: str) -> None:
    """One version a storage: a change of another part counts too."""
    for lib, error in ((torch, RuntimeError), (mg, mg.GradientError)):
        x = lib.tensor(VALUES.copy(), requires_grad=True)
        y = x * 2
        REFUSED[name](y, x)
        with pytest.raises(error):
            y.sum().backward()


def _quiet(y: Any) -> None:
    lib: Any = mg if isinstance(y, mg.Tensor) else pytest.importorskip("torch")
    with lib.no_grad():
        y[0].mul_(2)


@pytest.mark.parametrize("name", CHANGES)
def test_changes_through_views_as_in_pytorch(torch: Any, name: str) -> None:
    found = []
    for lib in (torch, mg):
        x = lib.tensor(VALUES.copy(), requires_grad=True)
        y = x * 2
        CHANGES[name](y, x)
        weight = lib.tensor(np.arange(24, dtype=np.float32).reshape(4, 6) / 10)
        (y * weight).sum().backward()
        found.append((y.detach().numpy(), x.grad.numpy(), y._version))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=2e-4, atol=1e-4)


def test_one_version_counter_a_storage(torch: Any) -> None:
    for lib in (torch, mg):
        x = lib.tensor(VALUES.copy())
        views = [x, x[0], x.t(), x.detach(), x.view(24), x[1:][0]]
        assert [v._version for v in views] == [0] * 6
        for i, v in enumerate(views):
            v.add_(1)
            assert [w._version for w in views] == [i + 1] * 6
        x.clone().add_(1)
        assert x._version == 6


def test_a_saved_value_changed_through_any_view_is_refused(torch: Any) -> None:
    for lib, error in ((torch, RuntimeError), (mg, mg.GradientError)):
        for change in (
            lambda y: y.add_(1),
            lambda y: y[0].add_(1),
            lambda y: y.detach().t()[1].zero_(),
            lambda y: y.view(24)[3:4].fill_(1.0),
        ):
            x = lib.tensor(VALUES.copy(), requires_grad=True)
            y = x * 1
            z = (y * y).sum()
            with lib.no_grad():
                change(y)
            with pytest.raises(error):
                z.backward()


def test_a_change_before_use_is_fine_and_after_backward_too(torch: Any) -> None:
    for lib in (torch, mg):
        x = lib.tensor(VALUES.copy(), requires_grad=True)
        y = x * 1
        y.add_(1)
        z = (y * y).sum()
        z.backward()
        y.detach().zero_()
        np.testing.assert_allclose(x.grad.numpy(), 2 * (VALUES + 1), rtol=1e-5)


def test_an_optimizer_step_between_forward_and_backward_is_refused() -> None:
    w = mg.nn.Parameter(mg.ones(6, 2))
    opt = mg.optim.SGD([w], lr=0.1)
    x = mg.tensor(VALUES, requires_grad=True)
    loss = (x @ w).sum()
    w.grad = mg.ones(6, 2)
    opt.step()
    with pytest.raises(mg.GradientError, match="changed in place"):
        loss.backward()


MULTI: dict[str, Callable[[Any], Any]] = {
    "split": lambda y: y.split(2, 1)[1],
    "chunk": lambda y: y.chunk(2, 0)[0],
    "unbind": lambda y: y.unbind(0)[2],
}


@pytest.mark.parametrize("name", MULTI)
def test_outputs_of_several_views_refuse(torch: Any, name: str) -> None:
    for lib, error in ((torch, RuntimeError), (mg, mg.GradientError)):
        x = lib.tensor(VALUES.copy(), requires_grad=True)
        with pytest.raises(error):
            MULTI[name](x * 1).mul_(2)
        y = lib.tensor(VALUES.copy())
        MULTI[name](y).mul_(2)
        assert abs(y.numpy()).sum() > abs(VALUES).sum(), "without history it is a plain write"


def test_an_old_view_has_the_history_of_the_new_base(torch: Any) -> None:
    for lib in (torch, mg):
        x = lib.tensor(VALUES.copy(), requires_grad=True)
        y = x * 1
        old = y[1]
        assert old.grad_fn is not None
        y.mul_(3)
        (old * old).sum().backward()
        want = np.zeros_like(VALUES)
        want[1] = 18 * VALUES[1]
        np.testing.assert_allclose(x.grad.numpy(), want, rtol=1e-5)
