"""Writes: state changed by the function, arguments changed in place, views, constants, aliases, order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import nn

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def _chain(x: Any) -> Any:
    y = x * 2
    y.add_(1)
    y.mul_(x)
    return y


def _view_of_value(x: Any) -> Any:
    y = x + 0
    y[1:, ::2] = 7.0
    y[0].add_(x[1])
    return y, y.T


def _argument(x: Any) -> Any:
    x.mul_(2)
    return x.sum()


def _argument_view(x: Any) -> Any:
    before = x[0] + 0
    x[0].fill_(5.0)
    return before + x[0]


def _old_and_new(x: Any) -> Any:
    y = x.exp()
    z = y + 1
    y.add_(10)
    return z + y, z


def _overlapping(x: Any) -> Any:
    y = x.reshape(-1) + 0
    y[1:].copy_(y[:-1])
    return y


def _swap(x: Any) -> Any:
    y = x + 0
    a, b = y[0], y[1]
    t = a.clone()
    a.copy_(b)
    b.copy_(t)
    return y


def _read_after_later_write(x: Any) -> Any:
    y = x * 1.5
    total = y.sum()
    y.sub_(total)
    s = y * 2
    y.zero_()
    return s + y


def _constant(x: Any) -> Any:
    c = mg.tensor([[1.0, 2.0, 3.0, 4.0]])
    c.add_(x[0])
    return c * x, mg.tensor([3.0])


def _transposed(x: Any) -> Any:
    y = x + 1
    y.T.mul_(mg.arange(3))
    return (y.T + x.T).T + y


ALL = [_chain, _view_of_value, _argument, _argument_view, _old_and_new, _overlapping, _swap, _read_after_later_write, _constant]
CASES: dict[str, Callable[[Any], Any]] = {f.__name__: f for f in (*ALL, _transposed)}


def _all(out: Any) -> list[Any]:
    return [t.numpy() for t in (out if isinstance(out, tuple) else (out,))]


@pytest.mark.parametrize("rewrite", ["off", "greedy"])
@pytest.mark.parametrize("name", CASES)
def test_as_eager(name: str, rewrite: str) -> None:
    """Three calls in a row, results and arguments."""
    f = CASES[name]
    g = mg.compile(f, rewrite=rewrite, debug=True)
    for scale in (1.0, -2.0, 0.5):
        a, b = mg.tensor(X * scale), mg.tensor(X * scale)
        for want, got in zip(_all(f(a)), _all(g(b)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6)
        np.testing.assert_allclose(b.numpy(), a.numpy(), rtol=1e-6)
        assert a._version == 0 or b._version > 0
    assert g.traces == 1


def test_argument_in_strided_memory_is_changed() -> None:
    base = mg.tensor(X)
    mg.compile(_argument)(base.T)
    np.testing.assert_array_equal(base.numpy(), X * 2)
    mg.compile(_argument)(base[1:])
    np.testing.assert_array_equal(base.numpy(), X * [[2], [4], [4]])


def test_one_tensor_twice() -> None:
    def f(a: Any, b: Any) -> Any:
        a.add_(1)
        return a * b

    g = mg.compile(f, debug=True)
    x, y = mg.tensor(X), mg.tensor(X)
    np.testing.assert_array_equal(g(x, x).numpy(), (X + 1) ** 2)
    np.testing.assert_array_equal(g(y, mg.tensor(X)).numpy(), (X + 1) * X)
    np.testing.assert_array_equal(g(x, x).numpy(), (X + 2) ** 2)
    assert g.traces == 2


def test_overlapping_arguments_that_are_changed_are_refused() -> None:
    def f(a: Any, b: Any) -> Any:
        a.add_(1)
        return b * 1

    x = mg.tensor(X)
    with pytest.raises(mg.TraceError, match="clone"):
        mg.compile(f)(x, x[1:])


def test_argument_that_is_also_captured() -> None:
    w = mg.tensor(X)

    def f(x: Any) -> Any:
        w.add_(1)
        return x * 1

    g = mg.compile(f)
    np.testing.assert_array_equal(g(w).numpy(), X + 1)
    np.testing.assert_array_equal(g(mg.tensor(X)).numpy(), X)
    np.testing.assert_array_equal(g(w).numpy(), X + 3)


def test_buffers_of_a_module() -> None:
    """Running statistics, kept by in-place writes."""

    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", mg.zeros(4))
            self.register_buffer("count", mg.zeros((), dtype="int64"))

        def forward(self, x: Any) -> Any:
            with mg.no_grad():
                self.count.add_(1)
                self.mean.mul_(0.9).add_(x.mean(0) * 0.1)
            return x - self.mean

    eager, compiled = Mean(), Mean()
    f = mg.compile(compiled, debug=True)
    for i in range(4):
        x = mg.tensor(X + i)
        np.testing.assert_allclose(f(x).numpy(), eager(x).numpy(), rtol=1e-6)
    np.testing.assert_allclose(compiled.mean.numpy(), eager.mean.numpy(), rtol=1e-6)
    assert int(compiled.count) == 4
    assert f.compiled.traces == 1


def test_state_that_is_a_view() -> None:
    """A cache, written at a moving place given by a tensor."""
    cache = mg.zeros(8, 4)
    half = cache[4:]

    def f(x: Any) -> Any:
        half[:3].copy_(x)
        return cache.sum() + half[0]

    g = mg.compile(f, debug=True)
    want = X.sum() + X[0]
    np.testing.assert_allclose(g(mg.tensor(X)).numpy(), want)
    np.testing.assert_allclose(g(mg.tensor(X)).numpy(), want)
    np.testing.assert_array_equal(cache.numpy()[4:7], X)


def test_eager_work_before_and_after_is_in_order() -> None:
    w = mg.zeros(4)
    g = mg.compile(lambda x: w.add_(x) * 1)
    one = mg.ones(4)
    total = mg.zeros(4)
    for _ in range(3):
        w.mul_(2)
        total = total + g(one) * 10
        w.add_(1)
    assert w.tolist() == [14.0] * 4
    assert total.tolist() == [10.0 * (1 + 5 + 13)] * 4


def test_results_are_the_callers() -> None:
    """Changing a result in place leaves the session's next results alone, and views of one result share memory."""
    g = mg.compile(lambda x: (x * 2, (x * 3).T))
    x = mg.tensor(X)
    a, b = g(x)
    a.zero_()
    b.zero_()
    c, d = g(x)
    np.testing.assert_array_equal(c.numpy(), X * 2)
    np.testing.assert_array_equal(d.numpy(), (X * 3).T)
    assert not a.numpy().any()

    def with_a_row(x: Any) -> Any:
        y = x * 2
        return y, y[0]

    y, row = mg.compile(with_a_row)(x)
    row.fill_(-1.0)
    assert (y.numpy()[0] == -1).all()


def test_overlapping_arguments_beside_changed_state() -> None:
    """Tokens and targets are usually two views of one tensor; what is changed is something else."""
    w = mg.zeros(3, 3)

    def f(a: Any, b: Any) -> Any:
        w.add_(1)
        return a * w - b

    g = mg.compile(f, debug=True)
    x = mg.tensor(X)
    for n in (1, 2):
        np.testing.assert_array_equal(g(x[:, :-1], x[:, 1:]).numpy(), X[:, :-1] * n - X[:, 1:])
    assert g.traces == 1


def test_expanded_gradient_through_a_changed_part() -> None:
    """The gradient that arrives at an in-place change may be a view with fewer elements than its shape."""

    def f(x: Any) -> Any:
        z = x.clone()
        z[1].mul_(x[0])
        (g,) = mg.grad((z.sum(1, keepdim=True).expand(3, 4) * mg.tensor(X)).sum(), x)
        return g

    def leaf() -> Any:
        return mg.tensor(X).requires_grad_()

    rows = X.sum(1, keepdims=True)
    want = np.concatenate([rows[:1] + rows[1] * X[1], rows[1:2] * X[0], rows[2:] + 0 * X[2]])
    np.testing.assert_allclose(f(leaf()).numpy(), want)
    np.testing.assert_allclose(mg.compile(f, debug=True)(leaf()).numpy(), want)
