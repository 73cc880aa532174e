"""Logical dtypes apart from storage: range checks, result dtypes, promotion as in PyTorch."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura.dtype import ALL
from meganeura.errors import DTypeError

NAMES = [d.name for d in ALL]


def _torch(torch: Any, name: str) -> Any:
    return getattr(torch, name)


def _name(t: Any) -> str:
    """The dtype that holds a PyTorch result here: int16 is held as int32, float64 as float32."""
    name = str(getattr(t, "dtype", t)).removeprefix("torch.")
    return {"int16": "int32", "float64": "float32"}.get(name, name)


PAIRS = [(a, b) for a, b in itertools.product(NAMES, NAMES) if a == b or "uint32" not in (a, b) or "float" in a + b]


@pytest.mark.parametrize("ranks", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_promotion_of_pairs(torch: Any, ranks: tuple[int, int]) -> None:
    """Every pair of dtypes, with and without dimensions. PyTorch has no promotion of uint32 with integers."""
    shapes = [(2,) if r else () for r in ranks]
    wrong = []
    for a, b in PAIRS:
        want = _name(torch.result_type(torch.ones(shapes[0], dtype=_torch(torch, a)), torch.ones(shapes[1], dtype=_torch(torch, b))))
        got = mg.where(
            mg.tensor(True), mg.ones(*shapes[0], dtype=a) if ranks[0] else mg.tensor(1, dtype=a), mg.tensor([1] if ranks[1] else 1, dtype=b)
        )
        if got.dtype.name != want:
            wrong.append((a, b, want, got.dtype.name))
    assert not wrong


@pytest.mark.parametrize("rank", [0, 1])
def test_promotion_with_numbers(torch: Any, rank: int) -> None:
    wrong = []
    for name, value in itertools.product(NAMES, (True, 2, 2.5)):
        want = _name(torch.result_type(torch.ones((2,) if rank else (), dtype=_torch(torch, name)), value))
        x = mg.tensor([1] if rank else 1, dtype=name)
        for got in (mg.where(mg.tensor(True), x, value), mg.where(mg.tensor(True), value, x)):
            if got.dtype.name != want:
                wrong.append((name, value, want, got.dtype.name))
    assert not wrong


RESULTS = {
    "argmax": lambda lib, x: x.argmax(1),
    "argmin of all": lambda lib, x: x.argmin(),
    "max's places": lambda lib, x: x.max(1)[1],
    "arange": lambda lib, x: lib.arange(5),
    "arange of floats": lambda lib, x: lib.arange(0.0, 5.0),
    "sum of bools": lambda lib, x: (x > 0).sum(),
    "sum of int32": lambda lib, x: x.to(lib.int32).sum(1),
    "sum of int8": lambda lib, x: x.to(lib.int8).sum(),
    "sum of uint8": lambda lib, x: (x > 0).to(lib.uint8).sum(),
    "sum of half": lambda lib, x: x.half().sum(),
    "mean of half": lambda lib, x: x.half().mean(1),
    "comparison": lambda lib, x: x > x.half(),
    "any": lambda lib, x: x.any(),
    "quotient of ints": lambda lib, x: lib.arange(5) / 2,
    "floor quotient of ints": lambda lib, x: lib.arange(5) // 2,
    "ints and a float": lambda lib, x: lib.arange(5) * 2.5,
    "bools plus bools": lambda lib, x: (x > 0) + (x < 0),
    "bool times int": lambda lib, x: (x > 0) * 3,
    "sqrt of ints": lambda lib, x: lib.arange(5).sqrt(),
    "half times a number": lambda lib, x: x.half() * 2.5,
    "half with 0-d float": lambda lib, x: x.half() * lib.tensor(2.5),
    "0-d int with float": lambda lib, x: x * lib.tensor(2),
    "int with 0-d float": lambda lib, x: lib.arange(4) * lib.tensor(2.5),
    "tensor of ints": lambda lib, x: lib.tensor([1, 2]),
    "tensor of bools": lambda lib, x: lib.tensor([True, False]),
    "tensor of floats": lambda lib, x: lib.tensor([1.0]),
    "joined": lambda lib, x: lib.cat([x.half(), x]),
    "chosen": lambda lib, x: lib.where(x > 0, 1, 0),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_have_pytorchs_dtype(torch: Any, name: str) -> None:
    values = np.random.default_rng(0).integers(-3, 4, (3, 4)).astype(np.float32)
    want, got = RESULTS[name](torch, torch.tensor(values)), RESULTS[name](mg, mg.tensor(values))
    assert got.dtype.name == _name(want)
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-6)


@pytest.mark.parametrize("value", [1 << 31, -(1 << 31) - 1, 1 << 40, 3_000_000_000])
def test_int64_beyond_its_storage_is_refused_by_value(value: int) -> None:
    values = np.array([[1, 2], [3, value]], np.int64)
    with pytest.raises(DTypeError, match=rf"value {value} at \[1, 1\] does not fit int64"):
        mg.tensor(values)
    with pytest.raises(DTypeError, match=str(value)):
        mg.tensor(value)


def test_int64_at_the_edges_is_exact() -> None:
    values = np.array([-(1 << 31), (1 << 31) - 1, 123456789, 16777217], np.int64)
    x = mg.tensor(values)
    assert x.dtype is mg.int64
    assert x.tolist() == values.tolist()
    assert x.numpy().dtype == np.int64
    assert (x[2:] + 1).tolist() == [123456790, 16777218]


@pytest.mark.parametrize("value", [-1, 1 << 32])
def test_uint32_beyond_its_storage_is_refused(value: int) -> None:
    with pytest.raises(DTypeError, match=str(value)):
        mg.tensor(np.array([value], np.int64), dtype=mg.uint32)
    assert mg.tensor(np.array([(1 << 32) - 1], np.int64), dtype=mg.uint32).tolist() == [(1 << 32) - 1]


def test_small_integers_wrap_as_in_pytorch(torch: Any) -> None:
    values = np.array([0, 100, 127, -128, 5], np.int8)
    for act in (lambda x: x + x, lambda x: x * 3, lambda x: x - 100):
        assert act(mg.tensor(values)).tolist() == act(torch.tensor(values)).tolist()
    bytes_ = np.array([0, 100, 200, 255], np.uint8)
    for act in (lambda x: x + x, lambda x: x * 3, lambda x: x - 101):
        assert act(mg.tensor(bytes_)).tolist() == act(torch.tensor(bytes_)).tolist()


def test_bfloat16_rounds_to_nearest_even(torch: Any) -> None:
    values = np.concatenate([np.random.default_rng(0).standard_normal(500) * 100, [1.00390625, 1.01171875, np.inf, np.nan, 3.4e38]]).astype(
        np.float32
    )
    x, t = mg.tensor(values, dtype=mg.bfloat16), torch.tensor(values).bfloat16()
    np.testing.assert_array_equal(x.float().numpy(), t.float().numpy())
    np.testing.assert_array_equal((x * x).float().numpy(), (t * t).float().numpy())


def test_shape_arithmetic_is_exact_on_the_host() -> None:
    x = mg.zeros(3, 5)
    n = x.shape[0] * (1 << 40) + x.numel()
    assert isinstance(n, int)
    assert n == 3 * (1 << 40) + 15


def test_in_place_results_keep_the_targets_dtype(torch: Any) -> None:
    for act in (lambda lib: lib.ones(3).half().add_(lib.ones(3)), lambda lib: lib.ones(3).mul_(2), lambda lib: lib.arange(3).add_(True)):
        assert act(mg).dtype.name == _name(act(torch))
    with pytest.raises(DTypeError, match="in place"):
        mg.arange(3).mul_(0.5)
