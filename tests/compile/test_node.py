"""A compiled function without backward() inside is one node of the caller's tape."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import nn
from meganeura.ops.chain import chain_op
from tests.compile.training import batch, counts, setup


def _grads(model: Any) -> list[Any]:
    return [p.grad.numpy() for p in model.parameters()]


def _same(a: Any, b: Any) -> None:
    for p, q in zip(a, b, strict=True):
        np.testing.assert_allclose(q, p, rtol=2e-5, atol=1e-6)


def _loss(out: Any, y: Any) -> Any:
    return nn.functional.cross_entropy(out, y)


def test_module_with_eager_loss_and_backward() -> None:
    eager, compiled = setup(dropout=0.2), setup(dropout=0.2)
    model = mg.compile(compiled.model, debug=True)
    for i in range(3):
        x, y = batch(i)
        mg.manual_seed(i)
        _loss(eager.model(x), y).backward()
        mg.manual_seed(i)
        out = model(x)
        assert out.requires_grad
        assert "compiled" in repr(out.grad_fn)
        _loss(out, y).backward()
        _same(_grads(eager.model), _grads(compiled.model))
        for s in (eager, compiled):
            s.opt.step()
            s.opt.zero_grad()
    assert model.compiled.traces == 1


def test_two_forwards_before_one_backward() -> None:
    eager, compiled = setup(), setup()
    model = mg.compile(compiled.model)
    (x, y), (u, v) = batch(1), batch(2)
    (_loss(eager.model(x), y) + 2 * _loss(eager.model(u), v)).backward()
    (_loss(model(x), y) + 2 * _loss(model(u), v)).backward()
    _same(_grads(eager.model), _grads(compiled.model))


def test_backward_in_any_order_and_twice() -> None:
    eager, compiled = setup(), setup()
    model = mg.compile(compiled.model)
    for m in (eager.model, model):
        a, b = (_loss(m(x), y) for x, y in (batch(1), batch(2)))
        b.backward(retain_graph=True)
        a.backward()
        b.backward()
    _same(_grads(eager.model), _grads(compiled.model))


def test_steady_state_makes_nothing() -> None:
    s = setup()
    model = mg.compile(s.model)
    x, y = batch()

    def once() -> None:
        s.opt.zero_grad()
        _loss(model(x), y).backward()

    for _ in range(4):
        once()
    before = counts()
    for _ in range(4):
        once()
    assert counts()[:2] == before[:2]  # the eager loss rotates through the pool, so bind groups settle later


def test_gradient_reaches_arguments_and_what_came_before() -> None:
    def f(x: Any, w: Any) -> Any:
        return (x @ w).tanh() * x.sum()

    def run(g: Any) -> list[Any]:
        mg.manual_seed(3)
        w = mg.randn(4, 4, requires_grad=True)
        x = mg.randn(2, 4, requires_grad=True)
        out = g(x * 2, w)
        (out * out).mean().backward()
        return [x.grad.numpy(), w.grad.numpy()]

    _same(run(f), run(mg.compile(f, debug=True)))


@pytest.mark.parametrize("used", [(True, False), (False, True), (True, True)])
def test_results_that_are_not_used(used: tuple[bool, bool]) -> None:
    """Parameters behind an unused result get no gradient at all."""

    def run(wrap: Any) -> list[Any]:
        mg.manual_seed(0)
        one, two = nn.Linear(4, 3), nn.Linear(4, 2)
        f = wrap(lambda x: (one(x).relu(), two(x)))
        outs = f(mg.ones(5, 4))
        sum(o.sum() for o, u in zip(outs, used, strict=True) if u).backward()
        return [None if p.grad is None else p.grad.numpy() for p in (one.weight, one.bias, two.weight, two.bias)]

    for a, b in zip(run(lambda f: f), run(mg.compile), strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)


def test_no_grad_saves_nothing() -> None:
    model = mg.compile(setup().model)
    x, _ = batch()
    with mg.no_grad():
        assert not model(x).requires_grad
        alone = model.session(x).plan.outputs
    assert model(x).requires_grad
    assert model.session(x).plan.outputs > alone
    assert model.compiled.sessions == 2


def test_changed_parameter_between_forward_and_backward_raises() -> None:
    s = setup()
    model = mg.compile(s.model)
    x, y = batch()
    loss = _loss(model(x), y)
    with mg.no_grad():
        s.model[2].weight.add_(1.0)
    with pytest.raises(mg.GradientError, match="changed in place"):
        loss.backward()


def test_double_backward_runs_the_code_again() -> None:
    f = mg.compile(lambda x: x * x * x)
    x = mg.ones(3, requires_grad=True)
    (slope,) = mg.grad(f(x).sum(), x, create_graph=True)
    (bend,) = mg.grad(slope.sum(), x)
    assert slope.tolist() == [3, 3, 3] and bend.tolist() == [6, 6, 6]


def test_double_backward_that_is_refused() -> None:
    w, x = mg.ones(3), mg.ones(3, requires_grad=True)

    def counting(x: object) -> object:
        w.add_(1)
        return x * x

    cases = [(counting, lambda: None, "changes (.|\n)* in place"), (lambda x: x * x, lambda: w.add_(1), "in place since")]
    for fn, change, message in cases:
        y = mg.compile(lambda x, fn=fn: fn(x) * w)(x).sum()
        change()
        with pytest.raises(mg.GradientError, match=f"create_graph(.|\n)*{message}"):
            mg.grad(y, x, create_graph=True)
    y = mg.compile(lambda x, z: (x * z).sum())(x, mg.ones(3))
    with pytest.raises(mg.GradientError, match=r"create_graph(.|\n)*argument of the call is gone"):
        mg.grad(y, x, create_graph=True)


def test_no_gradient_raises_only_in_backward() -> None:
    double = chain_op([("t", "f32", "({i} * 2.0)")], ["t"], ["i"], [], [mg.float32])  # a row without a rule
    out = mg.compile(lambda x: double(x) + 1)(mg.ones(3, requires_grad=True))
    assert out.tolist() == [3, 3, 3]
    with pytest.raises(mg.NoGradientError, match=double.name):
        out.sum().backward()


def test_compiled_module_is_a_module() -> None:
    s = setup()
    model = mg.compile(s.model)
    assert isinstance(model, nn.Sequential)
    assert list(model.state_dict()) == list(s.model.state_dict())
    model.eval()
    assert not s.model.training
    x, _ = batch()
    np.testing.assert_allclose(model(x).detach().numpy(), s.model(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    other = copy.deepcopy(model)
    np.testing.assert_allclose(other(x).detach().numpy(), model(x).detach().numpy(), rtol=1e-6)
    assert other[0].weight is not model[0].weight


def test_hooks_run_once_outside() -> None:
    calls: list[Any] = []
    w = mg.ones(3, requires_grad=True)
    w.register_hook(lambda g: calls.append(g) or g * 2)
    f = mg.compile(lambda x: x * w)
    f(mg.full((3,), 2.0)).sum().backward()
    assert len(calls) == 1
    np.testing.assert_array_equal(w.grad.numpy(), [4.0, 4.0, 4.0])


def test_second_derivatives_inside() -> None:
    """A gradient penalty, differentiated by the outer backward."""

    def penalty(x: Any, w: Any) -> Any:
        y = (x @ w).tanh().sum()
        (g,) = mg.grad(y, x, create_graph=True)
        return (g * g).sum() + y

    def run(f: Any) -> list[Any]:
        mg.manual_seed(1)
        x, w = mg.randn(3, 4, requires_grad=True), mg.randn(4, 2, requires_grad=True)
        f(x, w).backward()
        return [x.grad.numpy(), w.grad.numpy()]

    _same(run(penalty), run(mg.compile(penalty, debug=True)))
