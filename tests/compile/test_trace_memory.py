"""Memory while tracing: views, in-place changes, aliased arguments and results, as plain code does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meganeura as mg
from tests.compile.agree import agree, numbers
from tests.points.test_point_08 import CHANGES as VIEWS

A, B = numbers(3, 4), numbers(3, 4, seed=1)
CALLS = [(A,), (B,), (A * 2,)]


def slices(x: Any) -> Any:
    y = x.clone()
    y[0, 1:3] = 5
    y[..., -1] += 1
    y[:, ::2].mul_(2)
    y[1:].copy_(y[:-1].clone())
    y.narrow(1, 0, 2).zero_()
    y.select(0, 2).fill_(3)
    return y


def shapes(x: Any) -> Any:
    y = x.clone()
    y.view(-1)[2:5] = 9
    y.T[0] = x.sum()
    y.unsqueeze(0).squeeze(0).add_(1)
    y.reshape(2, 6)[1, :2].neg_()
    y.flatten()[0] = -4
    y.view(3, 2, 2).transpose(1, 2)[:, 0].mul_(x[:, :2])
    y.diagonal().fill_(1)
    y.unfold(1, 2, 2)[:, 0].add_(10)
    return y


def multiple(x: Any) -> Any:
    y = x.clone()
    a, b = y.split(2, 1)
    a.add_(b)
    for i, row in enumerate(y.unbind(0)):
        row.mul_(i + 1)
    for part in y.chunk(2):
        part.sub_(1)
    return y, a, b


def chained(x: Any) -> Any:
    y = x.clone()
    v = y[1:]
    w = v[:, 1:]
    w.add_(y[0, 1:])
    y.mul_(2)
    v[0] = w[1].sum()
    return y, v, w


def by_index(x: Any) -> Any:
    y = x.clone()
    at = mg.tensor([2, 0])
    y[at] = y[at] * 3
    y[at, mg.tensor([1, 3])] += 1
    y[:, at] = 7.0
    y[y > 5] = 0
    y.index_add_(0, at, x[:2])
    y.scatter_(1, mg.tensor([[0], [1], [2]]), 8.0)
    y.masked_fill_(x > 1, -1.0)
    y.index_fill_(0, mg.tensor([1]), 2.0)
    y.index_copy_(0, mg.tensor([0]), x[2:])
    return y


def outputs(x: Any) -> Any:
    out = mg.empty(3, 4)
    mg.add(x, 1, out=out)
    row = mg.zeros(4)
    mg.sum(x, 0, out=row)
    return out, row


def swapped(x: Any) -> Any:
    y = x.clone()
    y[0], y[1] = y[1].clone(), y[0].clone()
    return y


def cast(x: Any) -> Any:
    h = x.half()
    h[0] = x[1]
    i = (x * 10).long()
    i[i > 3] = 7
    i.clamp_(-2, 5)
    b = x > 0
    b[0] = True
    b.logical_not_()
    return h, i, b


@pytest.mark.parametrize("rewrite", ["off", "greedy"])
@pytest.mark.parametrize("program", [slices, shapes, multiple, chained, by_index, outputs, swapped, cast], ids=lambda f: f.__name__)
def test_in_place(program: Any, rewrite: str) -> None:
    agree(lambda: program, CALLS, rewrite=rewrite)


def recorded(change: Any) -> Any:
    """A program that changes a product in place and goes backward through it."""

    def f(x: Any) -> Any:
        w = x.detach().clone().requires_grad_()
        y = w * 2
        change(y, w)
        (y * y.detach().cos()).sum().backward()
        return w.grad, y.detach()

    return f


CHANGES: dict[str, Any] = {
    "scale": lambda y, w: y.mul_(3),
    "row": lambda y, w: y[0].mul_(w[1]),
    "assign": lambda y, w: y.__setitem__(1, w[0] * w[2]),
    "number": lambda y, w: y.__setitem__((slice(None), 0), 4.0),
    "view of a view": lambda y, w: y.T[1:][0].add_(w[:, 2]),
    "base after view": lambda y, w: (v := y[1], y.mul_(2), v.add_(w[0])),
    "flat": lambda y, w: y.view(-1)[1:5].copy_(w.view(-1)[:4]),
    "index": lambda y, w: y.__setitem__(mg.tensor([0, 2]), w[1:] * 3),
    "masked": lambda y, w: y.masked_fill_(w > 0, 0.5),
    "diagonal": lambda y, w: y.diagonal().mul_(w[0, :3]),
    "detached": lambda y, w: y.detach().mul_(1.0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_in_place_with_history(name: str) -> None:
    agree(lambda: recorded(CHANGES[name]), CALLS)


@pytest.mark.parametrize("name", VIEWS)
def test_changes_through_views(name: str) -> None:
    """The cases that eager code is compared with PyTorch on."""

    def f(x: Any) -> Any:
        w = x.detach().clone().requires_grad_()
        y = w * 2
        VIEWS[name](y, w)
        (y * mg.arange(24).view(4, 6)).sum().backward()
        return w.grad, y.detach()

    if name == "a column from a scalar":  # which it reads
        with pytest.raises(mg.TraceError, match="item"):
            mg.compile(f)(mg.tensor(numbers(4, 6)))
        return
    agree(lambda: f, [(numbers(4, 6, seed=i),) for i in range(2)])


def test_result_of_in_place_goes_backward_outside() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        y[0].mul_(x[1])
        y[:, 1:].add_(1)
        return y

    g = mg.compile(f, debug=True)
    for scale in (1.0, 2.0):
        grads = []
        for call in (f, g):
            x = mg.tensor(A * scale).requires_grad_()
            (call(x) * mg.tensor(B)).sum().backward()
            grads.append(x.grad.numpy())
        np.testing.assert_allclose(grads[1], grads[0], rtol=1e-6)


# ---- aliases ----


def test_one_tensor_for_several_arguments() -> None:
    def f(a: Any, b: Any, c: Any) -> Any:
        return a * b + c, a.sum()

    g = mg.compile(f, debug=True)
    x, y = mg.tensor(A), mg.tensor(B)
    for given in ((x, x, x), (x, y, x), (y, x, x), (x, y, y), (y, y, y)):
        for got, want in zip(g(*given), f(*given), strict=True):
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-6)


def test_one_leaf_twice_and_its_detached_self() -> None:
    def f(a: Any, b: Any) -> Any:
        return (a * b.exp()).sum()

    g = mg.compile(f, debug=True)
    for make in (lambda x: (x, x), lambda x: (x, x.detach()), lambda x: (x.detach(), x), lambda x: (x, x.clone())):
        grads = []
        for call in (f, g):
            x = mg.tensor(A).requires_grad_()
            call(*make(x)).backward()
            grads.append(x.grad.numpy())
        np.testing.assert_allclose(grads[1], grads[0], rtol=1e-6)


@pytest.mark.parametrize("rewrite", ["off", "greedy"])
def test_views_of_one_storage_as_arguments(rewrite: str) -> None:
    def f(a: Any, b: Any, c: Any) -> Any:
        return a.sum(0) * b.sum() - c.mean(), a

    g = mg.compile(f, debug=True, rewrite=rewrite)
    x = mg.tensor(numbers(6, 4))
    for given in ((x[:3], x[3:], x), (x[:3], x[1:4], x.T), (x, x[0], x[::2]), (x.T, x[:2], x[:2])):
        for got, want in zip(g(*given), f(*given), strict=True):
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5)


def test_argument_changed_through_one_of_its_views() -> None:
    """Of arguments that share memory, the changed one must be the whole, or alone."""
    base = mg.tensor(numbers(6, 4))
    want = base.numpy()

    def f(a: Any) -> Any:
        a.mul_(2)
        return a.sum()

    g = mg.compile(f, debug=True)
    g(base[2:4])
    want[2:4] *= 2
    np.testing.assert_array_equal(base.numpy(), want)
    g(base[:, 1])
    want[:, 1] *= 2
    np.testing.assert_array_equal(base.numpy(), want)
    g(base.T[::2])
    want.T[::2] *= 2
    np.testing.assert_array_equal(base.numpy(), want)


def test_captured_tensor_and_view_of_it_as_argument() -> None:
    w = mg.tensor(numbers(6, 4))

    def f(x: Any) -> Any:
        return x * 2 + w[:3], w.sum()

    g = mg.compile(f, debug=True)
    for x in (w[:3], mg.tensor(A), w[3:], w[::2]):
        for got, want in zip(g(x), f(x), strict=True):
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5)


def tied(call: Any, change: Any) -> Any:
    """Gradients through two results of which one is a part of the other, one of them changed in place between."""
    x = mg.tensor(A).requires_grad_()
    y, row = call(x)
    try:
        change(y, row)
    except mg.GradientError:
        return "refused"
    ((y * y.detach()).sum() + (row * 3).sum()).backward()
    return x.grad.numpy()


@pytest.mark.parametrize("name", ["nothing", "whole", "part"])
def test_results_that_share_memory(name: str) -> None:
    """Gradients are right, or the change is refused; never wrong."""

    def f(x: Any) -> Any:
        y = x * 2
        return y, y[0]

    changes: dict[str, Any] = {"nothing": lambda y, r: None, "whole": lambda y, r: y.mul_(2), "part": lambda y, r: r.mul_(2)}
    want, got = tied(f, changes[name]), tied(mg.compile(f), changes[name])
    if isinstance(got, str):
        assert name == "part"
    else:
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_views_of_arguments_as_results() -> None:
    """In-place changes of a returned view are seen by the argument, and never with a wrong gradient."""
    g = mg.compile(lambda x: x[0])
    x = mg.tensor(A)
    g(x).fill_(5.0)
    assert (x.numpy()[0] == 5).all()
    w = mg.tensor(A).requires_grad_()
    h = w * 2
    row = g(h)
    with pytest.raises(mg.GradientError, match="in place"):
        row.mul_(2)
    h.mul_(3)
    (row.sum() + h[1].sum()).backward()
    np.testing.assert_array_equal(w.grad.numpy(), np.array([[6.0] * 4, [6.0] * 4, [0.0] * 4], np.float32))


def test_result_changed_in_place_before_backward() -> None:
    def grads(call: Any) -> Any:
        x = mg.tensor(A).requires_grad_()
        y = call(x)
        y.mul_(3)
        y[0].add_(x[1])
        y.sum().backward(retain_graph=True)
        y.sum().backward()
        return x.grad.numpy()

    def f(x: Any) -> Any:
        return x * 2

    np.testing.assert_allclose(grads(mg.compile(f)), grads(f))
