"""Activations against PyTorch: functions, modules, in-place forms and their gradients."""

from __future__ import annotations

import numpy as np
import pytest

import meganeura as mg
from tests.surface.compare import SPECIAL, check, floats, ints

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

FUNCTIONS = {
    "relu": [{}], "relu6": [{}], "elu": [{}, {"alpha": 0.7}], "selu": [{}], "celu": [{}, {"alpha": 0.6}],
    "leaky_relu": [{}, {"negative_slope": 0.2}],
    "hardtanh": [{}, {"min_val": -0.3, "max_val": 1.7}], "hardswish": [{}], "hardsigmoid": [{}], "hardshrink": [{}, {"lambd": 0.9}],
    "softshrink": [{}, {"lambd": 0.9}], "tanhshrink": [{}], "softsign": [{}], "softplus": [{}, {"beta": 2.0, "threshold": 3.0}],
    "logsigmoid": [{}], "mish": [{}], "silu": [{}], "gelu": [{}, {"approximate": "tanh"}], "rrelu": [{}, {"lower": 0.2, "upper": 0.6}],
    "threshold": [{"threshold": 0.4, "value": -3.0}], "sigmoid": [{}], "tanh": [{}],
}  # fmt: skip
INPLACE = (
    "relu",
    "relu6",
    "elu",
    "selu",
    "celu",
    "leaky_relu",
    "hardtanh",
    "hardswish",
    "hardsigmoid",
    "mish",
    "silu",
    "rrelu",
    "threshold",
)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name: str) -> None:
    for kwargs in FUNCTIONS[name]:
        check(f"nn.functional.{name}", floats(5, 7, low=-4, high=4), **kwargs)
    kwargs = FUNCTIONS[name][-1]
    check(f"nn.functional.{name}", floats(), layouts=("plain",), half=False, **kwargs)
    check(f"nn.functional.{name}", floats(0, 3), layouts=("plain",), half=False, **kwargs)
    special = (
        SPECIAL[np.isfinite(SPECIAL) | np.isnan(SPECIAL)]
        if name in ("tanhshrink", "softsign", "hardswish", "gelu", "silu", "mish")
        else SPECIAL
    )
    check(f"nn.functional.{name}", special, layouts=("plain",), half=False, grad=False, **kwargs)


@pytest.mark.parametrize("name", INPLACE)
def test_in_place(name: str) -> None:
    kwargs = FUNCTIONS[name][-1]

    def call(lib, x):
        y = x * 1.3
        out = getattr(lib.nn.functional, name)(y, **kwargs, inplace=True)
        assert out is y
        return y

    check((lambda x: call(mg, x), lambda x: call(torch, x)), floats(5, 7), layouts=("plain", "stepped"), half=False)


def test_underscored() -> None:
    for name in ("elu_", "celu_", "selu_", "leaky_relu_", "hardtanh_", "threshold_"):
        args = (0.2, 0.1) if name == "threshold_" else ()
        check(f"nn.functional.{name}", floats(5), *args, layouts=("plain",), half=False, grad=False)


def test_prelu() -> None:
    x = floats(2, 3, 4)
    check("nn.functional.prelu", x, np.float32([0.1, 0.3, -0.2]), layouts=("plain", "transposed"))
    check("nn.functional.prelu", x, np.float32([0.25]), layouts=("plain", "transposed"))
    check("nn.functional.prelu", floats(7), np.float32([0.25]), layouts=("plain",))
    check("nn.functional.prelu", x, np.float32([0.1, 0.3]))
    check("nn.functional.prelu", x, np.float32([0.1, 0.3, -0.2]).astype(np.float16), half=False)


def test_glu_and_softmin() -> None:
    check("nn.functional.glu", floats(3, 6))
    check("nn.functional.glu", floats(4, 6), 0, layouts=("plain",))
    check("nn.functional.glu", floats(3, 5))
    check("nn.functional.softmin", floats(3, 5), 1)
    check("nn.functional.softmin", floats(3, 5), dim=0, layouts=("plain",))


def test_normalize() -> None:
    check("nn.functional.normalize", floats(3, 5))
    check("nn.functional.normalize", floats(3, 5, 2), 1.0, 2, layouts=("plain",))
    check("nn.functional.normalize", floats(3, 5), 3.0, 0, layouts=("plain",), half=False)
    check("nn.functional.normalize", floats(3, 5), float("inf"), -1, layouts=("plain",), half=False)
    check("nn.functional.normalize", np.zeros((2, 3), np.float32), layouts=("plain",), half=False)


def test_refusals() -> None:
    for name, kwargs in (
        ("hardtanh", {"min_val": 2.0, "max_val": 1.0}), ("softshrink", {"lambd": -1.0}), ("celu", {"alpha": 0.0}),
    ):  # fmt: skip
        check(f"nn.functional.{name}", floats(3), **kwargs)
    check("nn.functional.elu", ints(3))
    check("nn.functional.hardswish", ints(3))
    check("nn.functional.threshold", ints(5), 2, 7, layouts=("plain",))


def test_rrelu_draws_slopes() -> None:
    mg.manual_seed(0)
    x = mg.full((10000,), -1.0).requires_grad_()
    y = mg.nn.functional.rrelu(x, 0.2, 0.4, training=True)
    slopes = -y.detach().numpy()
    assert 0.2 <= slopes.min() < 0.21 and 0.39 < slopes.max() <= 0.4 and abs(slopes.mean() - 0.3) < 0.005
    y.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), slopes, rtol=1e-6)
    z = mg.full((10000,), -1.0)
    assert mg.nn.functional.rrelu_(z, 0.2, 0.4, True) is z


def test_gumbel_softmax() -> None:
    mg.manual_seed(0)
    logits = mg.tensor(np.log(np.float32([0.1, 0.2, 0.7]))).expand(20000, 3).clone().requires_grad_()
    hard = mg.nn.functional.gumbel_softmax(logits, hard=True)
    values = hard.detach().numpy()
    assert np.allclose(values.sum(1), 1) and np.allclose(np.sort(values, 1), [0, 0, 1])
    np.testing.assert_allclose(values.mean(0), [0.1, 0.2, 0.7], atol=0.015)
    (hard * mg.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert np.isfinite(logits.grad.numpy()).all() and np.abs(logits.grad.numpy()).max() > 0
    soft = mg.nn.functional.gumbel_softmax(logits.detach(), tau=0.5, dim=0)
    np.testing.assert_allclose(soft.numpy().sum(0), 1, rtol=1e-4)


MODULES = {
    "ReLU": (), "ReLU6": (), "ELU": (0.7,), "SELU": (), "CELU": (0.7,), "LeakyReLU": (0.2,), "Hardtanh": (-0.5, 1.5), "Hardswish": (),
    "Hardsigmoid": (), "Hardshrink": (0.7,), "Softshrink": (0.7,), "Tanhshrink": (), "Softsign": (), "Softplus": (2.0, 5.0),
    "LogSigmoid": (), "Mish": (), "SiLU": (), "GELU": ("tanh",), "Sigmoid": (), "Tanh": (),
    "Threshold": (0.3, -2.0), "GLU": (1,), "Softmin": (1,),
    "Softmax": (1,), "LogSoftmax": (1,), "PReLU": (6, 0.3), "RReLU": (0.1, 0.4),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_module(name: str) -> None:
    ours, theirs = (getattr(lib.nn, name)(*MODULES[name]) for lib in (mg, torch))
    assert repr(ours) == repr(theirs)
    assert [tuple(p.shape) for p in ours.parameters()] == [tuple(p.shape) for p in theirs.parameters()]
    ours.eval(), theirs.eval()
    check((ours, theirs), floats(4, 6), layouts=("plain", "transposed"), half=False)
    if name in ("ReLU", "ELU", "LeakyReLU", "Hardtanh", "RReLU"):
        twice = [getattr(lib.nn, name)(*MODULES[name], inplace=True).eval() for lib in (mg, torch)]
        assert repr(twice[0]) == repr(twice[1])
        check((lambda x: twice[0](x * 1.0), lambda x: twice[1](x * 1.0)), floats(4, 6), layouts=("plain",), half=False)


def test_softmax2d() -> None:
    check((mg.nn.Softmax2d(), torch.nn.Softmax2d()), floats(2, 3, 4, 5), layouts=("plain",))
    check((mg.nn.Softmax2d(), torch.nn.Softmax2d()), floats(4, 5))


def test_compiled_training() -> None:
    model = mg.nn.Sequential(mg.nn.Linear(6, 8), mg.nn.ELU(inplace=True), mg.nn.PReLU(8), mg.nn.Linear(8, 8), mg.nn.Mish(), mg.nn.GLU(),
                             mg.nn.Hardswish(), mg.nn.Softplus())  # fmt: skip
    x = mg.tensor(floats(5, 6))

    def loss(a):
        for p in model.parameters():
            p.grad = None
        out = model(a).sum()
        out.backward()
        return out, [p.grad for p in model.parameters()]

    want, want_grads = loss(x)
    want_grads = [g.numpy() for g in want_grads]
    step = mg.compile(loss)
    for _ in range(2):
        got, grads = step(x)
        np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=1e-5)
        for g, w in zip(grads, want_grads, strict=True):
            np.testing.assert_allclose(g.numpy(), w, rtol=1e-4, atol=1e-5)
