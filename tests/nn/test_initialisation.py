"""Initialisations: bounds, moments and default distributions are PyTorch's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import dispatch, nn

SHAPE = (120, 80)
ROOT = math.sqrt


@pytest.fixture(autouse=True)
def _numpy_world() -> Iterator[None]:
    with dispatch.use(mg.Reference()):
        mg.manual_seed(0)
        yield


# name, arguments, bound (None: not bounded), standard deviation
UNIFORM = [
    ("uniform_", (-0.5, 1.5), (-0.5, 1.5), 2 / ROOT(12)),
    ("kaiming_uniform_", (), (-ROOT(6 / 80), ROOT(6 / 80)), ROOT(2 / 80)),
    ("kaiming_uniform_", (ROOT(5),), (-1 / ROOT(80), 1 / ROOT(80)), 1 / ROOT(240)),
    ("kaiming_uniform_", (0, "fan_out", "relu"), (-ROOT(6 / 120), ROOT(6 / 120)), ROOT(2 / 120)),
    ("xavier_uniform_", (2.0,), (-2 * ROOT(6 / 200), 2 * ROOT(6 / 200)), 2 * ROOT(2 / 200)),
    ("normal_", (0.0, 3.0), None, 3.0),
    ("kaiming_normal_", (0, "fan_out", "tanh"), None, 5 / 3 / ROOT(120)),
    ("xavier_normal_", (), None, ROOT(2 / 200)),
    ("trunc_normal_", (0.0, 1.0, -1.0, 1.0), (-1.0, 1.0), 0.5395),
    ("trunc_normal_", (0.0, 0.02), (-2.0, 2.0), 0.02),
    ("trunc_normal_", (0.0, 1.0, -0.1, 0.1), (-0.1, 0.1), 0.0577),
]


@pytest.mark.parametrize(("name", "args", "bounds", "std"), UNIFORM)
def test_distribution(name: str, args: Any, bounds: Any, std: float) -> None:
    t = mg.zeros(*SHAPE)
    assert getattr(nn.init, name)(t, *args) is t
    values = t.numpy().astype(np.float64)
    middle = 0.0 if bounds is None else sum(bounds) / 2
    assert values.mean() == pytest.approx(middle, abs=4 * std / ROOT(values.size))
    assert values.std() == pytest.approx(std, rel=0.03)
    if bounds is not None:
        low, high = bounds
        assert low <= values.min()
        assert values.max() <= high
        if name != "trunc_normal_" or std > 0.05:
            assert values.max() > high - 0.05 * (high - low)


def test_constants_and_parameters() -> None:
    p = nn.Parameter(mg.zeros(3))
    nn.init.ones_(p)
    assert p.tolist() == [1, 1, 1]
    nn.init.constant_(p, 2.5)
    assert p.tolist() == [2.5] * 3
    nn.init.zeros_(p)
    assert p.tolist() == [0] * 3
    assert p.is_leaf
    assert p.requires_grad
    with pytest.raises(mg.ShapeError, match="at least 2 dimensions"):
        nn.init.xavier_uniform_(p)
    with pytest.raises(ValueError, match="no gain"):
        nn.init.calculate_gain("softsign")
    with pytest.warns(UserWarning, match="outside"):
        nn.init.trunc_normal_(p, 5.0, 1.0, -1.0, 1.0)
    assert nn.init.kaiming_uniform_(mg.zeros(0, 3)).shape == (0, 3)


def test_seed_decides() -> None:
    def draw() -> Any:
        mg.manual_seed(5)
        return nn.Linear(4, 3).weight.tolist(), nn.init.trunc_normal_(mg.zeros(4)).tolist()

    assert draw() == draw()
    assert nn.Linear(4, 3).weight.tolist() != nn.Linear(4, 3).weight.tolist()


@pytest.mark.torch
def test_gains(torch: Any) -> None:
    for name in ("linear", "conv2d", "sigmoid", "tanh", "relu", "selu", "leaky_relu"):
        assert nn.init.calculate_gain(name) == pytest.approx(torch.nn.init.calculate_gain(name))
    assert nn.init.calculate_gain("leaky_relu", 0.3) == pytest.approx(torch.nn.init.calculate_gain("leaky_relu", 0.3))


@pytest.mark.torch
@pytest.mark.parametrize(("name", "args"), [("Linear", (90, 70)), ("Embedding", (90, 70)), ("LayerNorm", (400,)), ("RMSNorm", (400,))])
def test_defaults(torch: Any, name: str, args: Any) -> None:
    """Mean, deviation and extremes of every parameter as PyTorch's."""
    torch.manual_seed(0)
    ours, theirs = getattr(nn, name)(*args), getattr(torch.nn, name)(*args)
    for (key, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        a, b = p.detach().numpy(), q.detach().numpy()
        std = b.std()
        assert abs(a.mean() - b.mean()) <= 6 * std / ROOT(a.size), key
        assert a.std() == pytest.approx(std, rel=0.2), key
        assert np.abs(a).max() == pytest.approx(np.abs(b).max(), rel=0.25), key


@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4), (5, 2, 3, 3), (3, 1), (1, 7)])
def test_orthogonal(shape: Any) -> None:
    t = mg.zeros(*shape)
    assert nn.init.orthogonal_(t, 2.0) is t
    m = t.numpy().astype(np.float64).reshape(shape[0], -1)
    gram = m @ m.T if m.shape[0] <= m.shape[1] else m.T @ m
    np.testing.assert_allclose(gram, 4 * np.eye(len(gram)), atol=1e-5)


def test_orthogonal_is_uniform() -> None:
    """A column's signs and its mean are those of a random direction."""
    firsts = np.array([nn.init.orthogonal_(mg.zeros(3, 3)).numpy()[:, 0] for _ in range(600)])
    assert np.abs(firsts.mean(0)).max() < 0.1
    np.testing.assert_allclose((firsts**2).mean(0), 1 / 3, atol=0.06)


def test_eye_and_wrong_shapes() -> None:
    p = nn.Parameter(mg.ones(2, 3))
    assert nn.init.eye_(p).tolist() == [[1, 0, 0], [0, 1, 0]]
    assert p.is_leaf
    with pytest.raises(mg.ShapeError, match="eye_ needs 2 dimensions"):
        nn.init.eye_(mg.zeros(2))
    with pytest.raises(mg.ShapeError, match="at least 2 dimensions"):
        nn.init.orthogonal_(mg.zeros(2))
    assert nn.init.orthogonal_(mg.zeros(0, 3)).shape == (0, 3)
