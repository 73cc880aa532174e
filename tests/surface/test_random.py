"""Random tensors: moments and distributions, the same bits everywhere, PyTorch's arguments and errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from tests.surface.compare import check, floats, torch

N = 20000


def seeded(fn: Callable[..., Any], *args: Any) -> Any:
    mg.manual_seed(5)
    return fn(*args).numpy()


WEIGHTS = np.array([[0.1, 0.0, 0.6, 0.3], [2.0, 1.0, 1.0, 4.0]], np.float32)
# Every draw as a function of a tensor; `exact`: bits that no arithmetic touches, equal everywhere.
DRAWS: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "rand": (lambda x: mg.rand(7, 9), True),
    "randint": (lambda x: mg.randint(-5, 11, (7, 9)), True),
    "randperm": (lambda x: mg.randperm(77), True),
    "randint_like": (lambda x: mg.randint_like(x, 3, 9), True),
    "bernoulli": (lambda x: mg.bernoulli(x.sigmoid().detach() * 0 + 0.3), True),
    "bernoulli_p": (lambda x: mg.bernoulli(x, 0.3), True),
    "bernoulli_": (lambda x: mg.zeros(7, 9).bernoulli_(0.4), True),
    "random_": (lambda x: mg.zeros(7, 9, dtype=mg.int64).random_(3, 300), True),
    "multinomial": (lambda x: mg.multinomial(mg.tensor(WEIGHTS), 3), True),
    "multinomial with replacement": (lambda x: mg.multinomial(mg.tensor(WEIGHTS), 9, True), True),
    "dropout1d": (lambda x: mg.dropout1d(x.reshape(7, 9, 1), 0.4), True),
    "feature_dropout": (lambda x: mg.feature_dropout(x, 0.4), True),
    "alpha_dropout": (lambda x: mg.alpha_dropout(x, 0.4, True), False),
    "randn": (lambda x: mg.randn(7, 9), False),
    "normal": (lambda x: mg.normal(x, 2.0), False),
    "exponential_": (lambda x: mg.zeros(7, 9).exponential_(2.0), False),
    "geometric_": (lambda x: mg.zeros(7, 9).geometric_(0.3), True),
    "cauchy_": (lambda x: mg.zeros(7, 9).cauchy_(1.0, 2.0), False),
    "log_normal_": (lambda x: mg.zeros(7, 9).log_normal_(0.5, 0.5), False),
}


@pytest.mark.parametrize("name", list(DRAWS))
def test_eager_compiled_and_reference_draw_the_same(name: str) -> None:
    fn, exact = DRAWS[name]
    x = floats(7, 9)
    eager = seeded(lambda: fn(mg.tensor(x)))
    again = seeded(lambda: fn(mg.tensor(np.ascontiguousarray(x.T)).T))
    assert np.array_equal(eager, again, equal_nan=True), "the layout of an input changed the draw"
    compiled = mg.compile(lambda x: fn(x))
    first = seeded(compiled, mg.tensor(x))
    with mg.dispatch.use(mg.Reference()):
        reference = seeded(lambda: fn(mg.tensor(x)))
    for got in (first, reference):
        if exact:
            np.testing.assert_array_equal(got, eager)
        else:
            np.testing.assert_allclose(got, eager, rtol=2e-5, atol=1e-6)
    if name != "randperm":
        assert not np.array_equal(compiled(mg.tensor(x)).numpy(), first), "a second run must draw anew"


def test_layouts_written_in_place() -> None:
    for fill in (lambda t: t.exponential_(), lambda t: t.random_(0, 100), lambda t: t.geometric_(0.2), lambda t: t.bernoulli_(0.5)):
        plain = seeded(lambda f=fill: f(mg.zeros(6, 8)))
        turned = seeded(lambda f=fill: f(mg.zeros(8, 6).T))
        stepped = seeded(lambda f=fill: f(mg.zeros(6, 16)[:, ::2]))
        assert np.array_equal(plain, turned)
        assert np.array_equal(plain, stepped)


def moments(x: Any, mean: float, var: float) -> None:
    x = x.astype(np.float64).reshape(-1)
    assert abs(x.mean() - mean) < 5 * math.sqrt(var / x.size), (x.mean(), mean)
    assert abs(x.var() / var - 1) < 0.15, (x.var(), var)


def test_moments() -> None:
    mg.manual_seed(1)
    moments(mg.empty(N).exponential_(2.0).numpy(), 0.5, 0.25)
    moments(mg.empty(N).geometric_(0.3).numpy(), 1 / 0.3, 0.7 / 0.09)
    moments(mg.empty(N, dtype=mg.int32).geometric_(0.3).numpy(), 1 / 0.3, 0.7 / 0.09)
    moments(mg.empty(N).log_normal_(0.0, 0.25).log().numpy(), 0.0, 0.0625)
    moments(mg.normal(mg.full((N,), 3.0), mg.full((1,), 2.0)).numpy(), 3.0, 4.0)
    moments(mg.normal(3.0, 2.0, (N,)).numpy(), 3.0, 4.0)
    moments(mg.empty(N).bernoulli_(0.3).numpy(), 0.3, 0.21)
    moments(mg.bernoulli(mg.full((N,), 0.7)).numpy(), 0.7, 0.21)
    moments(mg.empty(N).random_(10).numpy(), 4.5, 8.25)
    moments(mg.empty(N).random_(-4, 6).numpy(), 0.5, 8.25)
    moments(mg.randint(0, 10, (N,)).numpy(), 4.5, 8.25)
    x = mg.empty(N).cauchy_(1.0, 2.0).numpy()
    low, middle, high = np.quantile(x, [0.25, 0.5, 0.75])
    assert abs(middle - 1) < 0.15 and abs(low + 1) < 0.25 and abs(high - 3) < 0.25
    assert np.isfinite(mg.empty(N).exponential_().numpy()).all()
    assert mg.empty(N).geometric_(0.99).numpy().min() == 1


def test_random_ranges() -> None:
    mg.manual_seed(2)
    for dtype, top in ((mg.uint8, 255), (mg.bool_, 1), (mg.int8, 127), (mg.float16, 2**11), (mg.float32, 2**24), (mg.int32, 2**31 - 1)):
        x = mg.zeros(4000, dtype=dtype).random_().numpy().astype(np.float64)
        assert 0 <= x.min() <= top * 0.01 and top * 0.99 <= x.max() <= top, dtype
        assert np.array_equal(x, np.floor(x))
    for bad in ((5, 5), (6, 2)):
        check((lambda x, b=bad: x.random_(*b),) * 2, floats(3), layouts=("plain",), grad=False)
    with pytest.raises(mg.DTypeError):
        mg.zeros(3, dtype=mg.uint8).random_(0, 300)


def test_permutations() -> None:
    mg.manual_seed(3)
    for n in (0, 1, 2, 300):
        p = mg.randperm(n)
        assert p.dtype is mg.int64 and sorted(p.tolist()) == list(range(n))
    assert mg.randperm(5, dtype=mg.int32).dtype is mg.int32
    assert mg.randperm(5, dtype=mg.float32).dtype is mg.float32
    with pytest.raises(mg.ShapeError):
        mg.randperm(-1)
    where = np.stack([mg.randperm(4).numpy() for _ in range(400)])
    counts = np.stack([np.bincount(where[:, i], minlength=4) for i in range(4)])
    assert (np.abs(counts - 100) < 45).all()


def test_multinomial_frequencies() -> None:
    mg.manual_seed(4)
    p = np.array([0.1, 0.0, 0.6, 0.3], np.float32)
    for count in (N, 1 << 21):  # raced, and searched in cumulative weights
        drawn = mg.multinomial(mg.tensor(p * 7), count, replacement=True).numpy()
        assert drawn.dtype == np.int64 and not (drawn == 1).any()
        assert np.abs(np.bincount(drawn, minlength=4) / count - p).max() < 0.02
    rows = mg.multinomial(mg.tensor(np.tile(p, (4000, 1))), 2).numpy()
    assert (rows[:, 0] != rows[:, 1]).all() and not (rows == 1).any()
    assert np.abs(np.bincount(rows[:, 0], minlength=4) / 4000 - p).max() < 0.04
    second = p[0] * 0 + sum(p[i] * np.where(np.arange(4) == i, 0, p) / (1 - p[i]) for i in (0, 2, 3))
    assert np.abs(np.bincount(rows[:, 1], minlength=4) / 4000 - second).max() < 0.04
    for args in ((5,), (0,), (5, True), (4,)):
        check((lambda x, a=args: mg.multinomial(x, *a) * 0, lambda x, a=args: torch.multinomial(x, *a) * 0), np.ones(4, np.float32))
    check("multinomial", np.ones((2, 2, 2), np.float32), 1, layouts=("plain",))
    check("multinomial", np.ones(4, np.int64), 1, layouts=("plain",))
    assert mg.multinomial(mg.ones(2, 4, dtype=mg.float16), 2).shape == (2, 2)


def test_refusals() -> None:
    cases: list[Callable[[Any], Any]] = [
        lambda x: x.exponential_(0.0),
        lambda x: x.exponential_(-1.0),
        lambda x: x.geometric_(0.0),
        lambda x: x.geometric_(1.0),
        lambda x: x.cauchy_(0.0, 0.0),
        lambda x: x.log_normal_(0.0, 0.0),
        lambda x: x.bernoulli_(1.5),
        lambda x: x.normal_(0.0, -1.0),
        lambda x: x.uniform_(2.0, 1.0),
        lambda x: x.long().exponential_(),
        lambda x: x.long().cauchy_(),
        lambda x: x.long().log_normal_(),
        lambda x: x.long().bernoulli(),
        lambda x: x.requires_grad_().exponential_(),
    ]
    for case in cases:
        check((case, case), floats(3), layouts=("plain",), grad=False, half=False)
    for lib in (mg, torch):
        with pytest.raises((mg.MeganeuraError, RuntimeError)):
            lib.normal(lib.zeros(3), -1.0)
        with pytest.raises((mg.MeganeuraError, RuntimeError)):
            lib.normal(lib.zeros(3), lib.ones(2))


def test_generators() -> None:
    a, b = mg.Generator(9), mg.Generator(9)
    for fn in (
        lambda g: mg.rand(5, generator=g),
        lambda g: mg.randperm(50, generator=g),
        lambda g: mg.multinomial(mg.ones(9), 3, generator=g),
        lambda g: mg.zeros(5).exponential_(generator=g),
        lambda g: mg.zeros(5).random_(generator=g),
        lambda g: mg.bernoulli(mg.full((50,), 0.5), generator=g),
        lambda g: mg.normal(0.0, 1.0, (5,), generator=g),
        lambda g: mg.randint(0, 99, (5,), generator=g),
    ):
        first, second = fn(a), fn(b)
        assert first.tolist() == second.tolist()
        assert fn(a).tolist() != first.tolist()
        fn(b)


def test_states() -> None:
    mg.manual_seed(8)
    assert mg.initial_seed() == 8
    state = mg.get_rng_state()
    first = mg.rand(4).tolist()
    mg.set_rng_state(state)
    assert mg.rand(4).tolist() == first
    mg.set_rng_state(state)
    with mg.random.fork_rng():
        mg.rand(3)
        mg.manual_seed(77)
    assert mg.rand(4).tolist() == first
    mg.set_rng_state(state)
    with mg.random.fork_rng(enabled=False):
        mg.rand(4)
    assert mg.rand(4).tolist() != first


# ---- dropout ----


def test_dropout_of_elements_and_channels() -> None:
    mg.manual_seed(6)
    x = mg.ones(40, 50, 3)
    for fn in (mg.dropout1d, mg.dropout2d, mg.feature_dropout):
        out = fn(x, 0.25).numpy()
        assert ((out == 0) | np.isclose(out, 1 / 0.75)).all()
        assert (out == out[:, :, :1]).all() and abs((out == 0).mean() - 0.25) < 0.05
        assert fn(x, 0.25, training=False) is x
        assert not fn(x, 1.0).numpy().any()
    three = mg.dropout3d(mg.ones(9, 8, 2, 3, 4), 0.5).numpy().reshape(9, 8, -1)
    assert (three == three[:, :, :1]).all()
    single = mg.dropout1d(mg.ones(60, 4), 0.5).numpy()
    assert (single == single[:, :1]).all() and 0.2 < (single == 0).mean() < 0.8
    for fn in (mg.dropout, mg.dropout1d, mg.alpha_dropout, mg.feature_alpha_dropout):
        with pytest.raises(mg.ShapeError):
            fn(x, 1.5)
    for fn, bad in ((mg.dropout1d, mg.ones(3)), (mg.dropout1d, mg.ones(2, 2, 2, 2)), (mg.dropout3d, mg.ones(2, 2, 2))):
        with pytest.raises(mg.ShapeError):
            fn(bad, 0.5)


def test_dropout_gradients_use_the_same_mask() -> None:
    for fn in (mg.dropout, mg.dropout1d, lambda x, p: mg.alpha_dropout(x, p, True), lambda x, p: mg.feature_alpha_dropout(x, p, True)):
        x = mg.full((6, 8, 3), 2.0).requires_grad_()
        out = fn(x, 0.5)
        out.sum().backward()
        kept = np.isclose(out.detach().numpy(), out.detach().numpy().max())
        assert x.grad is not None
        assert np.array_equal(x.grad.numpy() != 0, kept)


def test_alpha_dropout_keeps_moments() -> None:
    mg.manual_seed(6)
    x = mg.randn(200, 500)
    for fn in (mg.alpha_dropout, mg.feature_alpha_dropout):
        out = fn(x, 0.3, True).numpy()
        assert abs(out.mean()) < 0.02 and abs(out.var() - 1) < 0.03
        assert fn(x, 0.3) is x
    assert not mg.alpha_dropout(x, 1.0, True).numpy().any()


def test_dropout_modules() -> None:
    x = mg.ones(8, 6, 3)
    for name in ("Dropout", "Dropout1d", "Dropout2d", "AlphaDropout", "FeatureAlphaDropout"):
        layer = getattr(mg.nn, name)(0.5)
        assert repr(layer) == repr(getattr(torch.nn, name)(0.5))
        assert (layer(x).numpy() != 1).any()
        assert layer.eval()(x) is x
        y = x.clone()
        inplace = getattr(mg.nn, name)(0.5, inplace=True)
        assert inplace(y) is y and (y.numpy() != 1).any()
    assert mg.nn.Dropout3d(0.5)(mg.ones(2, 3, 2, 2, 2)).shape == (2, 3, 2, 2, 2)
