"""Elementwise functions against PyTorch: trigonometry, rounding, bits, comparisons, blends, out= and in-place forms, aliases."""

from __future__ import annotations

import numpy as np
import pytest

import meganeura as mg
from tests.surface.compare import SPECIAL, bools, check, floats, ints

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

ANY = ("sin", "cos", "tan", "atan", "sinh", "cosh", "asinh", "sinc", "deg2rad", "rad2deg", "exp2")  # defined for all numbers
UNIT = ("asin", "acos", "atanh")  # of [-1, 1]
POSITIVE = ("log2", "log10", "acosh", "rsqrt", "sqrt")


def numbers(name: str, *shape: int, seed: int = 0) -> np.ndarray:
    low, high = (-0.95, 0.95) if name in UNIT else (1.1, 5.0) if name == "acosh" else (0.1, 5.0) if name in POSITIVE else (-2.5, 2.5)
    return floats(*shape, low=low, high=high, seed=seed)


@pytest.mark.parametrize("name", [*ANY, *UNIT, *POSITIVE])
def test_functions_that_give_floats(name: str) -> None:
    check(name, numbers(name, 5, 7))
    check("." + name, numbers(name), layouts=("plain",), half=False)
    check(name, numbers(name, 0, 3), layouts=("plain",), half=False)
    special = SPECIAL if name != "sinc" else SPECIAL[~np.isinf(SPECIAL)]
    check(name, special, layouts=("plain",), half=False, grad=False)
    check(name, ints(6, low=-3, high=4), layouts=("plain",), grad=False)
    check(name, bools(6), layouts=("plain",), grad=False)


@pytest.mark.parametrize(
    "name", ["round", "trunc", "floor", "ceil", "frac", "sgn", "sign", "abs", "neg", "square", "signbit", "isposinf", "isneginf"]
)
def test_functions_that_keep_the_dtype(name: str) -> None:
    check(name, floats(5, 7, low=-9, high=9), grad=name != "sgn")  # PyTorch's gradient of sgn has no values to read
    check(name, SPECIAL, layouts=("plain",), grad=False)
    for values in (ints(6), ints(6, low=0).astype(np.uint8), ints(6).astype(np.int8), ints(6).astype(np.int32), bools(6)):
        if name in ("abs", "trunc", "floor", "ceil", "round", "neg", "frac") and values.dtype.kind == "b":
            continue  # PyTorch has no such kernel, and raises
        if not (name == "frac" and values.dtype.kind != "f"):
            check(name, values, layouts=("plain",))
    check("." + name, floats(), layouts=("plain",), grad=False)


def test_round() -> None:
    check("round", np.float32([0.5, 1.5, 2.5, -0.5, -1.5, 3.49]), layouts=("plain",))
    for decimals in (2, 1, -1, -2):
        check("round", floats(5, 7, low=-300, high=300), decimals=decimals, layouts=("plain",), half=False)
    check("round", ints(4), decimals=1)
    check("frac", ints(4))
    check("fix", floats(4))
    check("positive", floats(4))
    check("positive", bools(4))


PAIRS = (
    "atan2",
    "hypot",
    "logaddexp",
    "logaddexp2",
    "copysign",
    "fmax",
    "fmin",
    "maximum",
    "minimum",
    "fmod",
    "remainder",
    "xlogy",
    "nextafter",
)


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_floats(name: str) -> None:
    grad = name != "nextafter"
    low = 0.2 if name == "xlogy" else -2.5
    check(name, floats(5, 7, low=low), floats(5, 7, low=low, seed=1), grad=grad)
    check(name, floats(5, 7, low=low), floats(7, low=low, seed=1), layouts=("plain", "stepped"), grad=grad, half=False)
    check(name, floats(3, 1, low=low), floats(1, 4, low=low, seed=1), layouts=("plain",), grad=grad)
    check("." + name, floats(low=low), floats(low=low, seed=1), layouts=("plain",), grad=grad)
    a, b = (x.ravel() for x in np.meshgrid(SPECIAL, SPECIAL))
    if name == "xlogy":
        b = np.abs(b)
    check(name, a, b, layouts=("plain",), grad=False, half=False)
    check(name, floats(0, 3), floats(3), layouts=("plain",), grad=grad)


@pytest.mark.parametrize(
    "name", ["atan2", "copysign", "fmax", "fmin", "fmod", "xlogy", "logaddexp", "hypot", "floor_divide", "true_divide"]
)
def test_pairs_of_whole_numbers(name: str) -> None:
    a, b = ints(4, 5, seed=1), ints(4, 5, low=1, seed=2)
    for p, q in ((a, b), (a.astype(np.int32), b), (np.abs(a).astype(np.uint8), b.astype(np.uint8)), (a.astype(np.int8), b.astype(np.int8))):
        check(name, p, q, layouts=("plain", "transposed"))
    check(name, a, floats(4, 5, low=0.3), layouts=("plain",), half=False)
    if name in ("copysign", "fmod", "xlogy", "floor_divide", "true_divide"):
        check(name, a, 3, layouts=("plain",))
        check(name, floats(6), 2.5, layouts=("plain",))


def test_division_by_zero() -> None:
    for name in ("fmod", "remainder", "floor_divide"):
        check(name, ints(4), 0)
        check(name, floats(4), 0, layouts=("plain",), half=False, grad=False)


# ---- bits ----


@pytest.mark.parametrize("name", ["bitwise_left_shift", "bitwise_right_shift"])
@pytest.mark.parametrize("dtype", ["int32", "int8", "uint8"])
def test_shifts(name: str, dtype: str) -> None:
    values = np.array([0, 1, -1, 5, 100, -100, 127], np.int64).astype(dtype)
    places = np.array([0, 1, 3, 7, 8, 31, 32, 40], np.int64).astype(dtype)
    if dtype != "uint8":
        places = np.concatenate([places, np.array([-1, -5], dtype)])
    a, b = (x.ravel() for x in np.meshgrid(values, places))
    check(name, a, b, layouts=("plain",))
    check(name, values, 3)


def test_shift_operators() -> None:
    a = ints(5)
    for ours, theirs in (
        (lambda x: x << 2, lambda x: x << 2),
        (lambda x: x >> 1, lambda x: x >> 1),
        (lambda x: 3 << x.abs(), lambda x: 3 << x.abs()),
        (lambda x: 1000 >> x.abs(), lambda x: 1000 >> x.abs()),
    ):
        check((ours, theirs), a, layouts=("plain",))
    x = mg.tensor([1, 2, 3])
    x <<= 2
    assert x.tolist() == [4, 8, 12]
    check("bitwise_left_shift", floats(3), floats(3))
    check("bitwise_left_shift", bools(3), bools(3))


@pytest.mark.parametrize("name", ["gcd", "lcm"])
def test_divisors(name: str) -> None:
    a, b = ints(6, 7, low=-60, high=60), ints(6, 7, low=-60, high=60, seed=1)
    check(name, a, b)
    check(name, a.astype(np.int8), b.astype(np.int8), layouts=("plain",))
    check(name, np.abs(a).astype(np.uint8), np.abs(b).astype(np.uint8), layouts=("plain",))
    check(name, a.astype(np.int32), b[0], layouts=("plain",))
    check(name, np.array([0, 0, 5]), np.array([0, 7, 0]), layouts=("plain",))
    check(name, floats(3), floats(3))
    check(name, bools(3), bools(3))


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor"])
def test_logic_of_any_dtype(name: str) -> None:
    for a in (floats(5), SPECIAL[:5], ints(5), bools(5), ints(5).astype(np.int8)):
        for b in (ints(5, low=0, high=2), np.float32([0, 1, np.nan, -0.0, 2])):
            check(name, a, b, layouts=("plain",), half=False)
    check("logical_not", SPECIAL, layouts=("plain",))


# ---- comparisons ----


def test_isclose() -> None:
    a, b = floats(5, 7), floats(5, 7, seed=1)
    near = np.where(b > 0, a * (1 + 3e-6), b).astype(np.float32)
    check("isclose", a, near, half=False)
    check("isclose", a, b, rtol=0.5, atol=0.1, layouts=("plain",), half=False)
    p, q = (x.ravel() for x in np.meshgrid(SPECIAL, SPECIAL))
    for equal_nan in (False, True):
        check("isclose", p, q, equal_nan=equal_nan, layouts=("plain",), half=False)
    check("isclose", ints(8), ints(8, seed=1), rtol=0.3, layouts=("plain",))
    check("isclose", bools(8), bools(8, seed=1), layouts=("plain",))
    check("isclose", ints(3), floats(3))
    check("isclose", a, b, rtol=-1.0)
    for one, two in ((a, near), (a, a), (a, b), (a[:0], a[:0])):
        assert mg.allclose(mg.tensor(one), mg.tensor(two)) is torch.allclose(torch.tensor(one), torch.tensor(two))
        assert mg.equal(mg.tensor(one), mg.tensor(two)) is torch.equal(torch.tensor(one), torch.tensor(two))
    assert not mg.equal(mg.tensor([1]), mg.tensor([[1]])) and mg.equal(mg.tensor([1]), mg.tensor([1.0]))


def test_heaviside() -> None:
    check("heaviside", np.where(bools(5, 7), floats(5, 7), 0).astype(np.float32), floats(7), grad=False)
    check("heaviside", SPECIAL, np.float32(3), layouts=("plain",), grad=False)
    check("heaviside", ints(6, low=-1, high=2), ints(6), layouts=("plain",))
    check("heaviside", floats(3), ints(3))


def test_nan_to_num() -> None:
    check("nan_to_num", SPECIAL, layouts=("plain", "stepped"))
    check("nan_to_num", SPECIAL, nan=1.5, posinf=7.0, neginf=-3.0, layouts=("plain",))
    check("nan_to_num", ints(4), layouts=("plain",))
    check("nan_to_num", bools(4), layouts=("plain",))
    check("isreal", floats(4), layouts=("plain",))


def test_clamps() -> None:
    check("clip", floats(5, 7), -0.7, 0.9)
    check("clamp_min", floats(5, 7), -0.7)
    check("clamp_max", floats(5, 7), 0.9)
    check("clamp_min", floats(5, 7), floats(7, seed=1), layouts=("plain",))
    check("clamp_max", ints(5), 3, layouts=("plain",))


# ---- blends ----


def test_addcmul_and_addcdiv() -> None:
    a, b, c = floats(5, 7), floats(7, seed=1), floats(5, 1, low=0.3, seed=2)
    for name in ("addcmul", "addcdiv"):
        check(name, a, b, c)
        check(name, a, b, c, value=-0.75, layouts=("plain",))
        check("." + name, a, b, c, value=2, layouts=("plain",), half=False)
        check(name, ints(4), ints(4), ints(4, low=1), value=2, layouts=("plain",))
        check(name, ints(4), ints(4), floats(4, low=1), layouts=("plain",), half=False)
        check(name, bools(4), bools(4), bools(4))


def test_lerp() -> None:
    a, b, w = floats(5, 7), floats(5, 7, seed=1), floats(5, 7, low=0.05, high=0.95, seed=2)
    check("lerp", a, b, w)
    check("lerp", a, b[0], w[:, :1], layouts=("plain",))
    check("lerp", a, b, 0.3)
    check("lerp", a, b, 1.7, layouts=("plain",))
    check("lerp", a, ints(5, 7), 0.3)
    check("lerp", ints(4), ints(4), 0.5)
    check("lerp", a, b, ints(5, 7))


def test_where_and_masked_fill() -> None:
    m = bools(5, 7)
    check("where", m, floats(5, 7), floats(7, seed=1))
    check("where", m, 1.0, 0.0, layouts=("plain",))
    check("where", m, 1, 0, layouts=("plain",))
    check("where", m, 1, 2.5, layouts=("plain",))
    check("where", m, ints(5, 7).astype(np.int8), 2.5, layouts=("plain",))
    check("where", m, floats(5, 7), -3, layouts=("plain",))
    check("where", ints(5), 1, 2)
    check(".masked_fill", floats(5, 7), m, 2.5)


def test_ldexp_and_frexp() -> None:
    check("ldexp", floats(5, 7), ints(5, 7, low=0))  # PyTorch's gradient is 0 for negative powers that are integers
    check("ldexp", floats(5, 7), floats(7, seed=1), layouts=("plain",))
    check("ldexp", floats(3), ints(3, low=-30, high=30), layouts=("plain",), grad=False, half=False)
    check("ldexp", np.float32([1e-30, 1e30, 0, np.nan]), np.array([140, -160, 500, 1]), layouts=("plain",), grad=False, half=False)
    check("ldexp", ints(3), ints(3), layouts=("plain",))
    check("ldexp", floats(3), 2)
    check("frexp", floats(5, 7, low=-1e5, high=1e5), half=False, grad=False)
    check("frexp", np.concatenate([SPECIAL, np.float32([1e-42, 3e38, -7e-39])]), layouts=("plain",), half=False, grad=False)
    check("frexp", floats(5), layouts=("plain",))
    check("frexp", ints(4))
    assert mg.frexp(mg.tensor([3.0])).exponent.dtype is mg.int32


def test_float_power() -> None:
    for a, p in ((floats(5, low=0.2), 2.5), (ints(5), 2), (ints(5, low=1), floats(5))):
        want = torch.float_power(torch.tensor(a), torch.tensor(p) if isinstance(p, np.ndarray) else p).float().numpy()
        got = mg.float_power(mg.tensor(a), mg.tensor(p) if isinstance(p, np.ndarray) else p)
        assert got.dtype is mg.float32
        np.testing.assert_allclose(got.numpy(), want, rtol=2e-6)


# ---- aliases, in place, out ----


ALIASES = ("absolute", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctanh", "negative")


def test_aliases() -> None:
    for name in ALIASES:
        check(name, floats(5, low=1.1) if name == "arccosh" else floats(5, low=-0.9, high=0.9), layouts=("plain",), half=False)
        assert hasattr(mg.Tensor, name) and hasattr(mg.Tensor, name + "_") == hasattr(torch.Tensor, name + "_")
    for name in ("arctan2", "divide", "multiply", "subtract", "true_divide", "greater", "greater_equal", "less", "less_equal", "not_equal"):
        check(name, floats(5), floats(5, seed=1), layouts=("plain",), half=False)
        check("." + name, floats(5), floats(5, seed=1), layouts=("plain",), half=False)
    assert mg.nn.functional.arccos is not None


INPLACE = {
    "addcmul_": (floats(5), floats(5, seed=1)), "lerp_": (floats(5), 0.3), "fmod_": (1.3,), "copysign_": (-1.0,), "round_": (), "frac_": (),
    "nan_to_num_": (), "atan2_": (floats(5),), "hypot_": (floats(5),), "clamp_min_": (0.2,), "clip_": (-1, 1), "erfinv_": (), "sinc_": (),
    "arctan_": (), "xlogy_": (floats(5, low=0.3),), "logit_": (0.1,), "fix_": (), "ldexp_": (ints(5, low=0),), "square_": (),
}  # fmt: skip


@pytest.mark.parametrize("name", INPLACE)
def test_in_place(name: str) -> None:
    x = floats(5, low=-0.9, high=0.9, seed=4)

    def call(x, *args):
        y = x * 1.5 if name != "erfinv_" else x * 1.0
        out = getattr(y, name)(*args)
        assert out is y
        return y

    check((call, call), x, *INPLACE[name], layouts=("plain", "stepped"), half=False)


def test_out() -> None:
    a, b = floats(4, 5), floats(4, 5, seed=1)
    x, y = mg.tensor(a), mg.tensor(b)
    out = mg.zeros(4, 5)
    for name, args in (
        ("exp", (x,)),
        ("atan2", (x, y)),
        ("lerp", (x, y, 0.5)),
        ("round", (x,)),
        ("sum", (x, 1)),
        ("add", (x, y)),
        ("div", (x, y)),
    ):
        target = mg.zeros(4) if name == "sum" else out
        assert getattr(mg, name)(*args, out=target) is target
        theirs = [torch.tensor(v.numpy()) if isinstance(v, mg.Tensor) else v for v in args]
        np.testing.assert_allclose(target.numpy(), getattr(torch, name)(*theirs).numpy(), rtol=1e-5, atol=1e-6)
    wide = mg.zeros(4, 10)
    mg.exp(x, out=wide[:, ::2])
    np.testing.assert_allclose(wide.numpy()[:, ::2], np.exp(a), rtol=1e-6)
    mg.exp(x, out=x)
    np.testing.assert_allclose(x.numpy(), np.exp(a), rtol=1e-6)
    empty = mg.empty(0)
    mg.add(x, y, out=empty)
    assert empty.shape == (4, 5)
    half = mg.zeros(4, 5, dtype=mg.float16)
    assert mg.mul(x, y, out=half) is half and half.dtype is mg.float16
    values, places = mg.zeros(4), mg.zeros(4, dtype=mg.int64)
    found = mg.max(y, 1, out=(values, places))
    assert found.values is values and places.tolist() == b.argmax(1).tolist()


def test_out_refuses() -> None:
    x = mg.ones(3)
    with pytest.raises(mg.DTypeError):
        mg.exp(x, out=mg.zeros(3, dtype=mg.int64))
    with pytest.raises(mg.DTypeError):
        mg.round(x, out=mg.zeros(3, dtype=mg.int64))
    with pytest.raises(mg.ShapeError):
        mg.exp(x, out=mg.zeros(4))
    with pytest.raises(mg.ShapeError):
        mg.round(x, out=mg.zeros(4))
    with pytest.raises(mg.GradientError):
        mg.exp(mg.ones(3).requires_grad_(), out=x)
    with pytest.raises(mg.DTypeError):
        mg.exp(x, out=3)


def test_unsupported() -> None:
    for name in ("fft", "complex", "view_as_real", "sparse_coo_tensor", "polar", "stft", "complex64"):
        with pytest.raises(mg.UnsupportedError, match=name):
            getattr(mg, name)
        assert not hasattr(mg, name)


def test_complex_functions_of_real_numbers() -> None:
    for name in ("angle", "conj", "real", "resolve_conj", "resolve_neg", "conj_physical"):
        check(name, SPECIAL, layouts=("plain",), grad=False, half=name != "angle")
        check(name, ints(4), layouts=("plain",))
    x = mg.ones(2)
    assert not mg.is_complex(x) and not x.is_complex() and not x.is_conj() and not x.is_neg()


def test_compiled() -> None:
    x, y = floats(6, 7), floats(6, 7, low=0.3, seed=1)

    def f(a, b):
        c = mg.atan2(a, b) + mg.hypot(a, b).log2() + mg.lerp(a, b, 0.25) + mg.addcmul(a, b, b, value=0.5)
        c = c + mg.round(a, decimals=1) + mg.frac(a) + mg.fmod(a, 0.7) + mg.copysign(b, a) + mg.fmax(a, b) + mg.nan_to_num(a)
        c = c + mg.where(mg.isclose(a, b, atol=0.5), 1.0, 0.0) + mg.ldexp(a, mg.tensor(3)) + mg.logaddexp(a, b)
        return c, mg.clamp_min(a, 0.1).neg_(), (a * 4).to(mg.int64) << 2

    run = mg.compile(f)
    for _ in range(2):
        for got, want in zip(run(mg.tensor(x), mg.tensor(y)), f(mg.tensor(x), mg.tensor(y)), strict=True):
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5, atol=1e-6)
