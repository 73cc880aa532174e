"""The tape against PyTorch: views, in-place ops, versions, hooks, double backward, memory. Each case runs the same code in both."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import meganeura as mg


def _mm(x: Any, lib: Any) -> Any:
    return x.mm(x.t())


CASES = {
    "add_ on a view": lambda x, lib: _then(x * 1, lambda y: y[0].add_(x[1])),
    "mul_ on a view": lambda x, lib: _then(x * 1, lambda y: y[1].mul_(x[0])),
    "fill_ a view": lambda x, lib: _then(x * 2, lambda y: y[:, 1].fill_(3.0)),
    "zero_ then read": lambda x, lib: _then(x * 2, lambda y: y[0].zero_()) * x,
    "copy_ into a slice": lambda x, lib: _then(x * 2, lambda y: y[:, ::2].copy_(x[:, 1:3] * 3)),
    "setitem": lambda x, lib: _set(x * 2, (slice(None), 0), x[:, 1] * 5),
    "setitem broadcast": lambda x, lib: _set(x * 2, 1, x[0, 0] * 7),
    "setitem number": lambda x, lib: _set(x * 2, (0, slice(1, 3)), 4.0),
    "view made before the write": lambda x, lib: _before(x * 2, x),
    "view of a view": lambda x, lib: _then(x * 2, lambda y: y.t()[1:3].t()[0].mul_(x[0, 1:3])),
    "chained in-place": lambda x, lib: (x * 1).add_(1).mul_(2).exp_(),
    "relu_": lambda x, lib: (x * 3).relu_(),
    "mul_ of a variable": lambda x, lib: (x * 1).mul_(x).mul_(x * 2),
    "div_ of a variable": lambda x, lib: (x * 1).div_(x * x + 1),
    "sub_ alpha": lambda x, lib: (x * 1).sub_(x, alpha=3),
    "in-place of the base, read through an old view": lambda x, lib: _old_view(x * 2),
    "transpose in place": lambda x, lib: _then(x * 2, lambda y: y.t().add_(1)) * x,
    "expand": lambda x, lib: (x[:, :1].expand(3, 4) * x).sum(0),
    "reshape of a transpose": lambda x, lib: x.t().reshape(2, 6) * 3,
    "matmul": _mm,
    "shared leaf": lambda x, lib: x * x + x.exp() * x.sum(),
    "mean var": lambda x, lib: (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + 1e-3).sqrt(),
    "cat stack": lambda x, lib: lib.cat([x, lib.stack([x[0], x[2]]) * 2], 0),
    "split chunk unbind": lambda x, lib: x.split(2, 1)[0] * x.chunk(2, 1)[1] + x.unbind(0)[0][:2],
    "max dim": lambda x, lib: x.max(1)[0] * x.min(0)[0].sum(),
    "amax ties": lambda x, lib: (x * 0).amax(1) + x.amin(0).sum(),
    "where clamp": lambda x, lib: lib.where(x > 0, x * 2, x * 3) + x.clamp(-0.5, 0.5),
    "gather": lambda x, lib: x.gather(1, (x.argmax(1, keepdim=True))) * x,
    "index by tensor": lambda x, lib: x[lib.tensor([2, 0, 0])] * 2,
    "softmax": lambda x, lib: x.softmax(1) * x.log_softmax(0),
    "select squeeze": lambda x, lib: x[:, None].squeeze(1).unsqueeze(0) * x[1],
    "pow": lambda x, lib: (x * x + 1) ** 1.5 + 2.0 ** x,
    "div": lambda x, lib: x / (x * x + 1) + 1 / (x + 9),
    "half": lambda x, lib: (x.half() * 2).float() * x,
    "as_strided": lambda x, lib: (x * 2).as_strided((2, 2), (4, 2), 1) * 3,
    "repeat": lambda x, lib: x.repeat(2, 1) * 2,
    "detach": lambda x, lib: x.detach() * x,
    "masked_fill": lambda x, lib: x.masked_fill(x > 0, 2.0) * x,
    "flatten movedim": lambda x, lib: x.reshape(3, 2, 2).movedim(0, 2).flatten(1) * 2,
}  # fmt: skip


def _then(y: Any, change: Any) -> Any:
    change(y)
    return y


def _set(y: Any, key: Any, value: Any) -> Any:
    y[key] = value
    return y


def _before(y: Any, x: Any) -> Any:
    view = y[1]
    y.mul_(x)
    return y.sum() + (view * 3).sum()


def _old_view(y: Any) -> Any:
    view = y.t()
    y.add_(5)
    view.mul_(2)
    return view * y.t()


VALUES = np.random.default_rng(5).standard_normal((3, 4)).astype(np.float32)


@pytest.mark.parametrize("name", CASES)
def test_same_as_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    found = []
    for lib in (torch, mg):
        x = lib.tensor(VALUES.copy(), requires_grad=True)
        y = CASES[name](x, lib)
        weight = lib.tensor(np.random.default_rng(1).standard_normal(tuple(y.shape)).astype(np.float32))
        (y * weight).sum().backward()
        found.append((y.detach().numpy(), x.grad.numpy()))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=2e-4, atol=1e-4)


ERRORS = {
    "leaf in place": (lambda x: x.add_(1), mg.GradientError, "leaf"),
    "view of a leaf in place": (lambda x: x[0].add_(1), mg.GradientError, "view of a leaf"),
    "saved result changed": (lambda x: _then(x.exp(), lambda y: (y * y, y.mul_(2))).sum().backward(), mg.GradientError, "changed in place"),
    "saved input changed": (lambda x: _saved(x), mg.GradientError, "changed in place"),
    "result of exp changed": (lambda x: _result(x), mg.GradientError, "result"),
    "multi-output view in place": (lambda x: (x * 1).split(2, 1)[0].add_(1), mg.GradientError, "several views"),
    "no_grad view in place": (lambda x: _no_grad_view(x * 1), mg.GradientError, "no_grad"),
    "expanded in place": (lambda x: (x[:, :1] * 1).expand(3, 4).add_(1), mg.ShapeError, "expanded"),
    "backward of a matrix": (lambda x: (x * 2).backward(), mg.GradientError, "one element"),
    "backward without history": (lambda x: x.detach().sum().backward(), mg.GradientError, "require grad"),
    "backward twice": (lambda x: _twice(x), mg.GradientError, "retain_graph"),
    "numpy of a variable": (lambda x: x.numpy(), mg.GradientError, "detach"),
    "integer requires grad": (lambda x: mg.tensor([1, 2]).requires_grad_(), mg.DTypeError, "floating"),
    "gradient of another shape": (lambda x: (x * 2).backward(mg.ones(3)), mg.ShapeError, "shape"),
    "in-place to a smaller dtype": (lambda x: mg.tensor([1, 2]).add_(1.5), mg.DTypeError, "in place"),
    "in-place broadcast": (lambda x: mg.ones(3).add_(mg.ones(2, 3)), mg.ShapeError, "fit"),
    "no rule": (lambda x: (x // 2).sum().backward(), mg.NoGradientError, "floor_divide"),
}  # fmt: skip


def _saved(x: Any) -> None:
    y = x * 1
    z = y * y
    y.add_(1)
    z.sum().backward()


def _result(x: Any) -> None:
    y = x.exp()
    y.add_(1)
    y.sum().backward()


def _no_grad_view(y: Any) -> None:
    with mg.no_grad():
        v = y[0]
    v.add_(1)


def _twice(x: Any) -> None:
    y = (x * x).sum()
    y.backward()
    y.backward()


@pytest.mark.parametrize("name", ERRORS)
def test_refused(name: str) -> None:
    act, error, word = ERRORS[name]
    x = mg.tensor(VALUES, requires_grad=True)
    with pytest.raises(error, match=word) as caught:
        act(x)
    assert "test_autodiff.py" in str(caught.value), "the message names the user's line"
    # and nothing is poisoned
    fresh = mg.tensor(VALUES, requires_grad=True)
    (fresh * fresh).sum().backward()
    np.testing.assert_allclose(fresh.grad.numpy(), 2 * VALUES, rtol=1e-6)


def test_double_backward_of_every_smooth_function() -> None:
    torch = pytest.importorskip("torch")
    functions = [
        lambda x, lib: x.exp() * x.sin(), lambda x, lib: x.tanh() * x.sigmoid(), lambda x, lib: x.softmax(1),
        lambda x, lib: x.log_softmax(1),
        lambda x, lib: (x @ x.t()).tanh(), lambda x, lib: x.var(1), lambda x, lib: x / (x * x + 1),
        lambda x, lib: lib.nn.functional.layer_norm(x, (4,), x[0], x[1]), lambda x, lib: lib.nn.functional.rms_norm(x, (4,), x[0]),
        lambda x, lib: lib.nn.functional.cross_entropy(x, lib.tensor([1, 3, 0])), lambda x, lib: lib.nn.functional.gelu(x),
        lambda x, lib: x[lib.tensor([2, 0, 0])] ** 3, lambda x, lib: lib.cat([x, x * x], 1) ** 2, lambda x, lib: lib.nn.functional.silu(x),
    ]  # fmt: skip
    for i, f in enumerate(functions):
        found = []
        for lib, grad in ((torch, torch.autograd.grad), (mg, mg.grad)):
            x = lib.tensor(VALUES.copy(), requires_grad=True)
            (g,) = grad(f(x, lib).sum() * 1.5 + (f(x, lib) * f(x, lib)).sum(), x, create_graph=True)
            (g * g).sum().backward()
            found.append(x.grad.numpy())
        np.testing.assert_allclose(found[1], found[0], rtol=2e-3, atol=2e-3 * np.abs(found[0]).max(), err_msg=f"function {i}")


def test_hooks_retain_grad_and_accumulation() -> None:
    x = mg.tensor(VALUES, requires_grad=True)
    y = x * 2
    seen = []
    handle = y.register_hook(lambda g: seen.append(g.numpy()) or g * 10)
    y.retain_grad()
    x.register_hook(lambda g: g + 1)
    y.sum().backward()
    np.testing.assert_array_equal(seen[0], np.ones_like(VALUES))
    np.testing.assert_array_equal(y.grad.numpy(), np.full_like(VALUES, 10))
    np.testing.assert_array_equal(x.grad.numpy(), np.full_like(VALUES, 21))
    handle.remove()
    before = x.grad
    (x * 3).sum().backward()
    assert x.grad is before, "accumulation is in place"
    np.testing.assert_array_equal(x.grad.numpy(), np.full_like(VALUES, 25))


def test_gradients_do_not_share_memory() -> None:
    a, b = mg.ones(3, requires_grad=True), mg.ones(3, requires_grad=True)
    (a + b).sum().backward()
    a.grad.add_(5)
    np.testing.assert_array_equal(b.grad.numpy(), np.ones(3))
    c = mg.ones(3, requires_grad=True)
    seed = mg.ones(3)
    (c + 0).backward(seed)
    c.grad.zero_()
    np.testing.assert_array_equal(seed.numpy(), np.ones(3))


def test_only_what_a_rule_names_is_kept() -> None:
    x = mg.ones(4, requires_grad=True)
    a = x + 1
    kept = weakref.ref(a._storage)
    b = a + 2  # add's rules name neither input
    del a
    gc.collect()
    assert kept() is None
    c = b * b  # mul's name both
    kept = weakref.ref(b._storage)
    del b
    gc.collect()
    assert kept() is not None
    c.sum().backward()
    del c
    gc.collect()
    assert kept() is None, "backward frees what was saved"


def test_value_and_grad_checkpoint_of_state() -> None:
    value, g = mg.value_and_grad(lambda t: (t * t).sum())(mg.tensor([1.0, 2.0]))
    assert value.item() == 5
    np.testing.assert_array_equal(g.numpy(), [2, 4])
    with mg.no_grad():
        assert not (mg.ones(2, requires_grad=True) * 2).requires_grad
        with mg.enable_grad():
            assert (mg.ones(2, requires_grad=True) * 2).requires_grad
