"""What a session is valid for: signature, modes, requires_grad, groups; and what changes without a retrace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import nn, optim
from tests.compile.training import batch, counts, setup


def test_train_and_eval() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    f = mg.compile(lambda x: model(x))
    x, _ = batch()
    model.eval()
    quiet = f(x).detach().numpy()
    np.testing.assert_allclose(quiet, model(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    model.train()
    assert (f(x).detach().numpy() == 0).any()
    model.eval()
    np.testing.assert_array_equal(f(x).detach().numpy(), quiet)
    assert f.traces == 2


def test_plain_attribute_of_a_module() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = 2.0

        def forward(self, x: Any) -> Any:
            return x * self.scale

    model = Scaled()
    f = mg.compile(model)
    x = mg.ones(3)
    assert f(x).tolist() == [2, 2, 2]
    model.scale = 3.0
    assert f(x).tolist() == [3, 3, 3]
    assert f.compiled.traces == 2


def test_requires_grad_of_a_parameter() -> None:
    s = setup()
    step = mg.compile(s.step)
    x, y = batch()
    step(x, y)
    s.model[0].weight.requires_grad_(False)
    frozen = s.model[0].weight.detach().numpy()
    moving = s.model[2].weight.detach().numpy()
    step(x, y)
    np.testing.assert_array_equal(s.model[0].weight.detach().numpy(), frozen)
    assert (s.model[2].weight.detach().numpy() != moving).any()
    assert step.traces == 2


def test_numbers_of_a_group_change_without_a_retrace() -> None:
    eager, compiled = setup(), setup()
    step = mg.compile(compiled.step)
    x, y = batch()
    for lr, decay in ((1e-2, 0.0), (3e-2, 0.1), (0.0, 0.5)):
        for s in (eager, compiled):
            s.opt.param_groups[0]["lr"], s.opt.param_groups[0]["weight_decay"] = lr, decay
        assert float(step(x, y)) == pytest.approx(float(eager.step(x, y)), rel=1e-5)
    assert step.traces == 1


def test_momentum_structure_retraces() -> None:
    eager, compiled = (setup(lambda ps: optim.SGD(ps, lr=0.1)) for _ in range(2))
    step = mg.compile(compiled.step)
    x, y = batch()
    for momentum in (0.0, 0.9, 0.9, 0.5):
        for s in (eager, compiled):
            s.opt.param_groups[0]["momentum"] = momentum
        assert float(step(x, y)) == pytest.approx(float(eager.step(x, y)), rel=1e-5)
    assert step.traces == 2


def test_loading_state_is_seen() -> None:
    """load_state_dict of model and optimizer between two calls."""
    s = setup()
    step = mg.compile(s.step)
    x, y = batch()
    model, opt = {k: v.numpy() for k, v in s.model.state_dict().items()}, s.opt.state_dict()
    first = [float(step(x, y)) for _ in range(3)]
    s.model.load_state_dict(model)
    s.opt.load_state_dict(opt)
    np.testing.assert_allclose([float(step(x, y)) for _ in range(3)], first, rtol=1e-6)


def test_data_of_a_parameter() -> None:
    w = nn.Parameter(mg.ones(3))
    f = mg.compile(lambda x: x * w)
    with mg.no_grad():
        assert f(mg.ones(3)).tolist() == [1, 1, 1]
        w.data = mg.full((3,), 5.0)
        assert f(mg.ones(3)).tolist() == [5, 5, 5]


def test_constants_and_containers() -> None:
    @dataclass
    class Pair:
        left: Any
        right: Any
        scale: float = 1.0

    @mg.compile
    def f(x: Any, pair: Pair, *, names: dict[str, Any], flip: bool = False) -> Any:
        out = x + pair.left * pair.scale - pair.right + names["a"][0]
        return {"out": -out if flip else out, "same": x, "n": 3, "pair": Pair(out, x)}

    one = mg.ones(2)
    got = f(one, Pair(one, one), names={"a": [one]})
    assert got["out"].tolist() == [2, 2]
    assert got["same"] is one
    assert got["n"] == 3
    assert got["pair"].left is got["out"]
    assert f(one, Pair(one, one), names={"a": [one]}, flip=True)["out"].tolist() == [-2, -2]
    assert f(one, Pair(one, one, 3.0), names={"a": [one]})["out"].tolist() == [4, 4]
    assert f.traces == 3
    f(one, Pair(one, one), names={"a": [one]})
    assert f.traces == 3


def test_number_that_keeps_changing_warns() -> None:
    f = mg.compile(lambda x, n: x * n)
    x = mg.ones(2)
    with pytest.warns(UserWarning, match=r"argument 1 .*pass a tensor"):
        for n in range(12):
            assert f(x, n).tolist() == [n, n]


def test_cache_is_bounded() -> None:
    f = mg.compile(lambda x: x + 1)
    for n in range(1, 80):
        f(mg.ones(n))
    assert f.sessions == 64


@pytest.mark.parametrize("make", [lambda x: x.T, lambda x: x[::2], lambda x: x[1:], lambda x: x[:2], lambda x: x[0].expand(3, 4)])
def test_strided_arguments(make: Any) -> None:
    base = mg.tensor(np.arange(16, dtype=np.float32).reshape(4, 4))
    f = mg.compile(lambda x: x * 2 + x.sum(), debug=True)
    x = make(base)
    np.testing.assert_allclose(f(x).numpy(), (x * 2 + x.sum()).numpy())


def test_slices_of_one_tensor_share_a_session() -> None:
    data = mg.randn(32, 8)
    f = mg.compile(lambda x: x.sum())
    for i in range(4):
        assert float(f(data[8 * i : 8 * i + 8])) == pytest.approx(float(data[8 * i : 8 * i + 8].sum()), rel=1e-5, abs=1e-5)
    assert f.traces == 1
    before = counts()
    f(data[8:16])
    assert counts()[:2] == before[:2]


def test_grad_mode_is_part_of_the_signature() -> None:
    f = mg.compile(lambda x: x * 2)
    x = mg.ones(2, requires_grad=True)
    assert f(x).requires_grad
    with mg.no_grad():
        assert not f(x).requires_grad
    assert f.traces == 2


def test_methods_and_nesting() -> None:
    class Model:
        def __init__(self, by: float) -> None:
            self.by = by

        @mg.compile
        def scaled(self, x: Any) -> Any:
            return x * self.by

    a, b = Model(2.0), Model(3.0)
    x = mg.ones(2)
    assert a.scaled(x).tolist() == [2, 2]
    assert b.scaled(x).tolist() == [3, 3]
    outer = mg.compile(lambda x: a.scaled(x) + b.scaled(x))
    assert outer(x).tolist() == [5, 5]


def test_attribute_changed_by_the_code_itself() -> None:
    """Python side effects happen when the code is traced; what depends on them is traced again, and said so."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: Any) -> Any:
            self.calls += 1
            return x * self.calls

    f = mg.compile(Counting())
    x = mg.ones(2)
    with pytest.warns(UserWarning, match="attributes of a Counting"):
        for n in range(1, 12):
            assert f(x).tolist() == [n, n]


def test_values_are_named_by_their_path() -> None:
    s = setup()
    assert "0.weight" in str(mg.compile(s.model).graph(batch()[0]))
