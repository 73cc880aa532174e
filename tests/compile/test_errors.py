"""Code that cannot be traced says so, with the user's line and what to write instead, and leaves everything as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import nn
from tests.compile.training import batch, setup, weights

READS = {
    "item": lambda x: x.sum().item(),
    "numpy": lambda x: x.numpy(),
    "bool": lambda x: x if x.sum() > 0 else -x,
    "float": lambda x: float(x.sum()),
    "loop": lambda x: [x for _ in range(int(x.sum()))],
    "tolist": lambda x: x.tolist(),
}


@pytest.mark.parametrize("name", READS)
def test_values_cannot_be_read(name: str) -> None:
    with pytest.raises(mg.TraceError, match=r"test_errors.py:\d+(.|\n)*where\(\)"):
        mg.compile(READS[name])(mg.ones(3))


def test_tensor_that_outlives_the_trace() -> None:
    kept: list[Any] = []

    def f(x: Any) -> Any:
        kept.append(x * 2)  # the line to name
        return x + 1

    with pytest.raises(mg.TraceError, match=r"outlived the trace.*made by mul at .*the line to name"):
        mg.compile(f)(mg.ones(3))
    with pytest.raises(mg.TraceError, match="made by mul"):
        kept[0] + 1


def test_module_attribute_that_outlives_the_trace() -> None:
    class Cached(nn.Module):
        def forward(self, x: Any) -> Any:
            self.last = x.relu()
            return x

    with pytest.raises(mg.TraceError, match="made by relu"):
        mg.compile(Cached())(mg.ones(3))


def test_captured_tensor_with_history() -> None:
    w = mg.ones(3, requires_grad=True)
    h = w * 2
    f = mg.compile(lambda x: x * h)
    with pytest.raises(mg.TraceError, match=r"pass it as an argument"):
        f(mg.ones(3))
    with mg.no_grad():
        assert f(mg.ones(3)).tolist() == [2, 2, 2]


def test_assigning_data() -> None:
    w = mg.ones(3)

    def f(x: Any) -> Any:
        w.data = x * 2

    with pytest.raises(mg.TraceError, match="copy_"):
        mg.compile(f)(mg.ones(3))
    assert w.tolist() == [1, 1, 1]


def test_numpy_argument() -> None:
    with pytest.raises(mg.TraceError, match=r"meganeura.tensor"):
        mg.compile(lambda x: x)(np.ones(3))


def test_failed_trace_changes_nothing() -> None:
    """Weights, .grad, version counts, history and random numbers are as before."""
    s = setup(dropout=0.5)
    x, y = batch()
    s.step(x, y)
    loss = nn.functional.cross_entropy(s.model(x), y)
    loss.backward()
    before, versions = weights(s.model), [p._version for p in s.model.parameters()]
    grads = [p.grad for p in s.model.parameters()]
    steps = [v["step"] for v in s.opt.state.values()]
    state = mg.random.get_rng_state().tolist()

    def step() -> Any:
        s.opt.zero_grad()
        value = nn.functional.cross_entropy(s.model(x), y)
        value.backward()
        s.opt.step()
        return value.item()

    compiled = mg.compile(step)
    with pytest.raises(mg.TraceError, match="item"):
        compiled()
    assert [p.grad for p in s.model.parameters()] == grads
    assert all(p.is_leaf and p.requires_grad for p in s.model.parameters())
    assert [p._version for p in s.model.parameters()] == versions
    assert mg.random.get_rng_state().tolist() == state
    assert [v["step"] for v in s.opt.state.values()] == steps
    assert compiled.sessions == 0
    for a, b in zip(before, weights(s.model), strict=True):
        np.testing.assert_array_equal(a, b)


def test_user_errors_pass_through() -> None:
    def f(x: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        mg.compile(f)(mg.ones(2))
    with pytest.raises(mg.ShapeError, match=r"test_errors.py:\d+"):
        mg.compile(lambda x: x @ x)(mg.ones(2, 3))


@pytest.mark.parametrize("use", [float, lambda n: n * 2.0, lambda n: 1 - n, lambda n: n > 0])
def test_host_numbers_cannot_be_computed_with(use: Any) -> None:
    def f(x: Any) -> Any:
        (number,) = mg.dispatch.current().host_scalars(lambda: [2.0], 1)
        return x * use(number)

    with pytest.raises(mg.TraceError, match="Python number"):
        mg.compile(f)(mg.ones(2))


def test_options() -> None:
    with pytest.raises(mg.MeganeuraError, match="precision"):
        mg.compile(lambda x: x, precision="medium")
    with pytest.raises(mg.MeganeuraError, match="rewrite"):
        mg.compile(lambda x: x, rewrite="clever")
    with pytest.raises(TypeError, match="function or a Module"):
        mg.compile(3)


def test_seed_inside() -> None:
    def f(x: Any) -> Any:
        mg.manual_seed(3)
        return x + mg.rand(2)

    state = mg.random.get_rng_state().tolist()
    with pytest.raises(mg.TraceError, match="manual_seed"):
        mg.compile(f)(mg.ones(2))
    assert mg.random.get_rng_state().tolist() == state


def test_inplace_result_of_another_kind() -> None:
    with pytest.raises(mg.DTypeError, match="in place"):
        mg.compile(lambda x: x.to(mg.int32).add_(1.5))(mg.ones(2))
