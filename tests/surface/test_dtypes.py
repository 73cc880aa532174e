"""Promotion equals torch.result_type; conversions, ranges, wrapping and half precision."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura.ops.factory import below

torch = pytest.importorskip("torch")

NAMES = ("bool", "uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32")
PAIRS = list(itertools.product(NAMES, NAMES))
SCALARS = (True, 3, 2.5)
SHAPES = ((2,), ())


def of(lib: Any, name: str) -> Any:
    return getattr(lib, "bool" if name == "bool" else name)


def name_of(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    return {"int16": "int32"}.get(name, name)  # int16 is held as int32


def made(lib: Any, name: str, shape: tuple[int, ...]) -> Any:
    return lib.ones(shape, dtype=of(lib, name))


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_pairs(a: str, b: str) -> None:
    for sa, sb in itertools.product(SHAPES, SHAPES):
        want = name_of(torch.result_type(made(torch, a, sa), made(torch, b, sb)))
        x, y = made(mg, a, sa), made(mg, b, sb)
        assert (x + y).dtype.name == (x * y).dtype.name == mg.maximum(x, y).dtype.name == want, (a, sa, b, sb)
        assert mg.where(mg.tensor(True), x, y).dtype.name == want
        assert (x == y).dtype is mg.bool_
        assert (x / y).dtype.name == name_of((made(torch, a, sa) / made(torch, b, sb)).dtype)


@pytest.mark.parametrize("a", NAMES)
@pytest.mark.parametrize("value", SCALARS)
def test_python_numbers(a: str, value: Any) -> None:
    for shape in SHAPES:
        t, x = made(torch, a, shape), made(mg, a, shape)
        want = name_of(torch.result_type(t, value))
        assert (x * value).dtype.name == (value * x).dtype.name == (x + value).dtype.name == want, (a, shape, value)
        assert (x / value).dtype.name == name_of((t / value).dtype)
        assert (x * np.float32(value) if isinstance(value, float) else x * np.int64(value)).dtype.name in (want, "int64")


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_in_place_follows_pytorch(a: str, b: str) -> None:
    def outcome(lib: Any) -> Any:
        x = made(lib, a, (2,))
        try:
            x += made(lib, b, (2,))
        except (TypeError, RuntimeError):
            return "refused"
        return name_of(x.dtype) if lib is torch else x.dtype.name

    assert outcome(mg) == outcome(torch)


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_conversions(a: str, b: str) -> None:
    values = [0, 1, 2, 100] if a != "bool" else [0, 1, 1, 0]
    got = mg.tensor(values, dtype=of(mg, a)).to(of(mg, b))
    want = torch.tensor(values, dtype=of(torch, a)).to(of(torch, b))
    assert got.dtype.name == name_of(want.dtype)
    np.testing.assert_array_equal(got.float().numpy(), want.float().numpy())


def test_truncation_and_truth() -> None:
    x = mg.tensor([-2.9, -0.5, 0.0, 0.5, 2.9])
    assert x.int().tolist() == [-2, 0, 0, 0, 2]
    assert x.bool().tolist() == [True, True, False, True, True]
    assert mg.tensor([float("nan"), float("inf"), -0.0]).bool().tolist() == [True, True, False]
    assert mg.tensor([True, False]).float().tolist() == [1.0, 0.0]
    assert (mg.tensor([3, 0, -1]).bool()).tolist() == [True, False, True]


def test_bytes_wrap() -> None:
    x = mg.tensor([250, 5], dtype=mg.uint8)
    assert (x + 10).tolist() == [4, 15]
    assert (-x).tolist() == [6, 251]
    assert (x * x).tolist() == [(250 * 250) % 256, 25]
    assert mg.tensor([300, -1]).to(mg.uint8).tolist() == [44, 255]
    assert mg.tensor([-1, 255], dtype=mg.uint8).tolist() == [255, 255]
    y = mg.tensor([127, -128], dtype=mg.int8)
    assert (y + 1).tolist() == [-128, -127]
    assert (-y).tolist() == [-127, -128]
    assert mg.tensor([200, -200]).to(mg.int8).tolist() == [-56, 56]
    assert x.sum().dtype is mg.int64 and x.sum().item() == 255


def test_integers_of_32_bits() -> None:
    top = 2**31 - 1
    x = mg.tensor([top, -top - 1])
    assert x.dtype is mg.int64 and x.tolist() == [top, -top - 1]
    assert mg.full((2,), top).tolist() == [top, top]
    assert mg.tensor([2**32 - 1], dtype=mg.uint32).tolist() == [2**32 - 1]
    assert mg.arange(top - 2, top).tolist() == [top - 2, top - 1]


@pytest.mark.parametrize(
    ("make", "value"),
    [
        (lambda: mg.tensor([0, 2**31]), "2147483648"),
        (lambda: mg.tensor(np.array([-(2**40)])), "-1099511627776"),
        (lambda: mg.full((2,), 2**31), "2147483648"),
        (lambda: mg.arange(2**31 - 1, 2**31 + 2), "2147483649"),
        (lambda: mg.zeros(2, dtype=mg.int64).fill_(-(2**31) - 1), "-2147483649"),
        (lambda: mg.tensor([2**32], dtype=mg.uint32), "4294967296"),
        (lambda: mg.tensor([3.0e9], dtype=mg.int32), "3000000000"),
        (lambda: mg.tensor([128], dtype=mg.int8), "128"),
        (lambda: mg.tensor([-256], dtype=mg.uint8), "-256"),
    ],
)
def test_range_checks_name_the_value(make: Any, value: str) -> None:
    with pytest.raises(mg.DTypeError) as caught:
        make()
    assert value in str(caught.value) and __file__ in str(caught.value)


def test_float16() -> None:
    a = np.array([1.0, 2.0**-24, 65504.0, 1e-8, 1 / 3], np.float16)
    x = mg.tensor(a)
    assert x.dtype is mg.float16 and x.itemsize == 2
    np.testing.assert_array_equal(x.numpy(), a)
    assert (x * 2).dtype is mg.float16
    assert (x * 2).tolist()[2] == float("inf")
    assert (x * mg.tensor(3.0)).dtype is mg.float16  # a 0-d tensor does not widen
    assert (x * mg.ones(5)).dtype is mg.float32
    assert mg.ones(70000, dtype=mg.float16).sum().item() == float("inf")
    assert mg.ones(5000, dtype=mg.float16).sum().item() == 5000.0  # accumulated in float32
    np.testing.assert_array_equal(x.float().half().numpy(), a)


def test_bfloat16_rounds_to_nearest_even() -> None:
    values = np.float32([1.0, 1.00390625, 1.01171875, 3.14159265, -1e-39, 3.4e38, np.nan, np.inf])
    want = torch.from_numpy(values).to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(mg.tensor(values).to(mg.bfloat16).float().numpy(), want)
    np.testing.assert_array_equal(mg.tensor(values, dtype=mg.bfloat16).float().numpy(), want)


def test_what_stands_for_a_dtype() -> None:
    for given, dtype in ((float, mg.float32), (int, mg.int64), (bool, mg.bool_), (np.float32, mg.float32), ("half", mg.float16)):
        assert mg.zeros(1, dtype=given).dtype is dtype
    assert mg.tensor(np.zeros(2)).dtype is mg.float32  # float64 arrays
    assert mg.tensor([1, 2.5]).dtype is mg.float32 and mg.tensor([1, 2]).dtype is mg.int64 and mg.tensor([True]).dtype is mg.bool_


def test_reductions_of_integers() -> None:
    for name in ("bool", "uint8", "int8", "int32", "int64"):
        t, x = made(torch, name, (3,)), made(mg, name, (3,))
        assert x.sum().dtype.name == name_of(t.sum().dtype)
        assert x.amax().dtype.name == name_of(t.amax().dtype)
        assert x.any().dtype.name == name_of(t.any().dtype)
        assert x.argmax().dtype is mg.int64


def test_randint_is_exact_for_large_ranges() -> None:
    mg.manual_seed(0)
    low, high = -(2**31), 2**31
    x = mg.randint(low, high, (4096,)).numpy()
    assert x.min() < low // 2 and x.max() > high // 2
    assert len(np.unique(x & 0xFF)) == 256  # float32 would leave the low bits 0
    y = mg.randint(2**30, 2**30 + 3, (3000,)).numpy()
    counts = np.bincount(y - 2**30, minlength=3)
    assert counts.sum() == 3000 and counts.min() > 850
    assert mg.randint(5, 6, (10,)).tolist() == [5] * 10


def test_the_largest_number_below() -> None:
    for kind in (mg.float16, mg.bfloat16, mg.float32):
        for high in (1.0, 0.5, 3.0, -1.0, 1000.0):
            top = below(high, -1e4, kind)
            assert top < high
            assert mg.tensor([top], dtype=kind).item() == top
        assert mg.rand(3000, dtype=kind).max().item() < 1.0
