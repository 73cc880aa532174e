"""The prelude's functions against float64, in units in the last place, and its random numbers against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from meganeura import dtype as D
from meganeura import gpu
from meganeura import random as R
from meganeura.kernels import template
from tests import tint
from tests.kernels.run_call import FAMILIES, apply

torch = pytest.importorskip("torch")
F = D.float32
SPECIAL = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, -0.5, 2, -2], np.float32)


def both(low: float, high: float, n: int = 20000) -> np.ndarray:
    """Numbers spread evenly over the exponents from low to high, with either sign."""
    x = np.geomspace(low, high, n).astype(np.float32)
    return np.concatenate([x, -x])


def above(low: float, high: float) -> np.ndarray:
    return np.geomspace(low, high, 40000).astype(np.float32)


def ulps(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Distance in units in the last place of the exact result; 0 where it is outside the normal range and matches."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float32)
        normal = np.isfinite(rounded) & (np.abs(rounded) > 1.2e-38)
        space = np.spacing(np.abs(np.where(normal, rounded, 1))).astype(np.float64)
        far = np.abs(got.astype(np.float64) - exact) / space
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded)) | (np.isfinite(rounded) & (np.abs(got) <= 1.2e-38))
    return np.where(normal, np.where(np.isfinite(got), far, np.inf), np.where(same, 0, np.inf))


def in64(fn):
    return lambda x: fn(torch.from_numpy(x)).numpy()


UNARY = {
    "erf": (in64(torch.erf), both(1e-30, 20), 3),
    "exp_": (np.exp, np.concatenate([both(1e-10, 88.7), np.float32([89, -104, 200, -200, 3e38, -3e38])]), 2),
    "expm1_": (np.expm1, both(1e-30, 88.7), 2),
    "tanh_": (np.tanh, both(1e-30, 100), 2),
    "sinh_": (np.sinh, both(1e-30, 89), 3),
    "cosh_": (np.cosh, both(1e-30, 89), 4),
    "log_": (np.log, np.concatenate([above(1.2e-38, 3e38), np.linspace(0.5, 2, 40000, dtype=np.float32)]), 2),
    "exp2_": (np.exp2, both(1e-10, 125), 2),
    "log2_": (np.log2, np.concatenate([above(1.2e-38, 3e38), np.linspace(0.5, 2, 40000, dtype=np.float32)]), 2),
    "log10_": (np.log10, np.concatenate([above(1.2e-38, 3e38), np.linspace(0.5, 2, 40000, dtype=np.float32)]), 3),
    "log1p_": (np.log1p, np.concatenate([above(1e-30, 3e38), -above(1e-30, 0.99999)]), 2),
    "sigmoid_": (lambda x: 1 / (1 + np.exp(-x)), both(1e-5, 80), 4),
    "sqrt_": (np.sqrt, above(1.2e-38, 3e38), 3),
    "rsqrt_": (lambda x: 1 / np.sqrt(x), above(1.2e-38, 3e38), 4),
    "asin_": (np.arcsin, both(1e-20, 1), 4),
    "acos_": (np.arccos, both(1e-20, 1), 4),
    "atan_": (np.arctan, both(1e-20, 1e20), 3),
    "asinh_": (np.arcsinh, both(1e-20, 1e20), 4),
    "acosh_": (np.arccosh, 1 + above(1e-6, 1e20), 5),
    "atanh_": (np.arctanh, both(1e-20, 0.999999), 4),
    "sin_": (np.sin, np.concatenate([both(1e-10, 3e38), np.linspace(-1e4, 1e4, 40000, dtype=np.float32)]), 4),
    "cos_": (np.cos, np.concatenate([both(1e-10, 3e38), np.linspace(-1e4, 1e4, 40000, dtype=np.float32)]), 4),
    "tan_": (np.tan, both(1e-10, 1e6), 6),
}

SPECIAL_FUNCTIONS = {
    "erfc_": (in64(torch.erfc), np.concatenate([both(1e-8, 9.1), np.linspace(-3, 9, 40000, dtype=np.float32)]), 4),
    "erfcx_": (in64(torch.special.erfcx), np.concatenate([both(1e-8, 9), above(9, 1e20)]), 4),
    "erfinv_": (in64(torch.erfinv), np.concatenate([both(1e-20, 0.99999994), 1 - above(6e-8, 0.5)]), 4),
    "ndtr_": (lambda x: 0.5 * torch.erfc(-torch.from_numpy(x) / 2**0.5).numpy(), both(1e-8, 12.8), 4),
    "ndtri_": (in64(torch.special.ndtri), np.concatenate([above(1.2e-38, 0.5), np.linspace(0.01, 0.99, 40000, dtype=np.float32)]), 5),
    "log_ndtr_": (in64(torch.special.log_ndtr), np.concatenate([both(1e-8, 12.8), -above(1, 1e10)]), 5),
    "lgamma_": (in64(torch.lgamma), np.concatenate([above(1e-38, 4e36), np.linspace(0.1, 4, 80000, dtype=np.float32)]), 5),
    "digamma_": (in64(torch.digamma), np.concatenate([above(1e-30, 1.4), above(1.5, 1e30)]), 4),
    "i0_": (in64(torch.special.i0), both(1e-10, 91), 4),
    "i0e_": (in64(torch.special.i0e), both(1e-10, 1e10), 4),
    "i1_": (in64(torch.special.i1), both(1e-10, 91), 4),
    "i1e_": (in64(torch.special.i1e), both(1e-10, 1e10), 4),
    "entr_": (in64(torch.special.entr), above(1e-37, 1e20), 4),
    "logit_": (
        lambda x: np.log(x) - np.log1p(-x),
        np.concatenate([above(1e-37, 0.999999), np.linspace(0.4, 0.6, 999, dtype=np.float32)]),
        4,
    ),
    "sinc_": (
        np.sinc,
        np.concatenate([both(1e-10, 0.9), np.linspace(1.1, 1.9, 999), np.linspace(300.2, 300.8, 999)]).astype(np.float32),
        4,
    ),
    "mish_": (in64(torch.nn.functional.mish), both(1e-10, 80), 5),
}
INFINITE = {"i0_": np.inf, "i1_": np.inf}  # where PyTorch gives NaN


@pytest.mark.parametrize("name", SPECIAL_FUNCTIONS)
def test_special_function(name: str) -> None:
    exact, values, bound = SPECIAL_FUNCTIONS[name]
    x = np.concatenate([values, SPECIAL if name not in INFINITE else SPECIAL[np.isfinite(SPECIAL)]]).astype(np.float32)
    with np.errstate(all="ignore"):
        want = exact(x.astype(np.float64))
    if name == "sinc_":
        want[np.abs(x) == 1] = want[np.abs(x) == 2] = 0
    got = apply(f"{name}({{a}})", "cpu", F, (x, F))
    far = np.where(flushed(x), 0, ulps(got, want))
    assert far.max() <= bound, (x[far.argmax()], got[far.argmax()], want[far.argmax()], far.max())


def flushed(x: np.ndarray) -> np.ndarray:
    """Denormal numbers on a GPU: WebGPU lets arithmetic take them for 0."""
    return (np.abs(x) < 1.1754944e-38) & (x != 0) & (gpu.current().profile.family == "gpu")


def test_gamma_near_zeros_and_below() -> None:
    """Where terms cancel, the error is a few units of the largest term; digamma keeps its relative error at its root."""
    x = np.linspace(1.4, 1.52, 20001, dtype=np.float32)
    want = torch.digamma(torch.from_numpy(x).double()).numpy()
    assert np.abs(apply("digamma_({a})", "cpu", F, (x, F)) - want).max() < 2e-8
    x = -np.linspace(0.01, 30, 40001, dtype=np.float32)
    x = x[np.abs(x - np.round(x)) > 1e-3]
    for name, fn in (("lgamma_", torch.lgamma), ("digamma_", torch.digamma)):
        want = fn(torch.from_numpy(x).double()).numpy()
        got = apply(f"{name}({{a}})", "cpu", F, (x, F))
        largest = np.abs(want) + np.abs(fn(torch.from_numpy(1 - x).double()).numpy()) + 1
        assert (np.abs(got - want) / largest).max() < 5e-7


def test_zeta() -> None:
    x = np.concatenate([np.geomspace(1e-3, 1e4, 3001), -np.linspace(0.01, 20, 3001)]).astype(np.float32)
    x = x[(x > 0) | (np.abs(x - np.round(x)) > 1e-2)]
    for n in (1, 2, 3, 6):
        want = torch.polygamma(n, torch.from_numpy(x).double()).numpy() * (-1) ** (n + 1) / math.factorial(n)
        got = apply(f"zeta_({n + 1}.0, {{a}})", "cpu", F, (x, F))
        place = x.astype(np.float64) - np.floor(x)
        with np.errstate(divide="ignore"):  # terms on either side of a pole cancel
            largest = np.where(x > 0, np.abs(want), place ** -(n + 1) + (1 - place) ** -(n + 1))
        assert (np.abs(got - want) / largest).max() < (n + 4) * 2.5e-7


def test_powers_of_two_and_ten() -> None:
    n = np.arange(-126, 128)
    np.testing.assert_array_equal(apply("exp2_({a})", "cpu", F, (n.astype(np.float32), F)), np.ldexp(np.float32(1), n))
    np.testing.assert_array_equal(apply("log2_({a})", "cpu", F, (np.ldexp(np.float32(1), n), F)), n)
    tens = np.array([10.0**k for k in range(-37, 39)], np.float32)
    np.testing.assert_allclose(apply("log10_({a})", "cpu", F, (tens, F)), np.arange(-37, 39), atol=0, rtol=1.2e-7)


def test_pairs_of_floats() -> None:
    rng = np.random.default_rng(0)
    a, b = (np.exp(rng.uniform(-60, 60, 40000)).astype(np.float32) * rng.choice([-1, 1], 40000).astype(np.float32) for _ in "ab")
    assert ulps(apply("hypot_({a}, {b})", "cpu", F, (a, F), (b, F)), np.hypot(a.astype(np.float64), b)).max() <= 3
    huge, small = np.float32([3e38, 1e-38, 2e38, 5e-39]), np.float32([1e38, 1e-38, 2e38, 1e-39])
    np.testing.assert_allclose(apply("hypot_({a}, {b})", "cpu", F, (huge, F), (small, F)), np.hypot(huge, small), rtol=3e-7, atol=2e-38)
    u, v = rng.uniform(-90, 90, 40000).astype(np.float32), rng.uniform(-90, 90, 40000).astype(np.float32)
    for name, fn in (("logaddexp_", np.logaddexp), ("logaddexp2_", np.logaddexp2)):
        np.testing.assert_allclose(
            apply(f"{name}({{a}}, {{b}})", "cpu", F, (u, F), (v, F)), fn(u.astype(np.float64), v), rtol=4e-7, atol=1e-7
        )
    p, q = pairs(1e-45, -1e-45, 3.4028235e38)
    with np.errstate(all="ignore"):
        want = np.nextafter(p, q)
    np.testing.assert_array_equal(apply("nextafter_({a}, {b})", "cpu", F, (p, F), (q, F)), want)
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    for end in (np.inf, -np.inf, 0.0):
        with np.errstate(all="ignore"):
            want = np.nextafter(halves, np.float16(end)).astype(np.float32)
        got = apply("nextafter_half({a}, {b})", "cpu", F, (halves.astype(np.float32), F), (np.full(65536, end, np.float32), F))
        np.testing.assert_array_equal(got, want)
    x = np.concatenate([SPECIAL, a, np.float32([1e-45, -3e-40, 3.4e38])])
    with np.errstate(all="ignore"):
        mantissa, exponent = np.frexp(x)
    np.testing.assert_array_equal(apply("frexp_mantissa({a})", "cpu", F, (x, F)), mantissa)
    np.testing.assert_array_equal(apply("frexp_exponent({a})", "cpu", F, (x, F)), np.where(np.isfinite(x), exponent, 0))


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    exact, values, bound = UNARY[name]
    x = np.concatenate([values, SPECIAL]).astype(np.float32)
    with np.errstate(all="ignore"):
        want = exact(x.astype(np.float64))
    far = ulps(apply(f"{name}({{a}})", "cpu", F, (x, F)), want)
    assert far.max() <= bound, (x[far.argmax()], far.max())


def test_gelu_is_as_exact_as_pytorch() -> None:
    x = np.linspace(-12, 12, 50001, dtype=np.float32)
    for name, kind in (("gelu_", "none"), ("gelu_tanh", "tanh")):
        want = torch.nn.functional.gelu(torch.from_numpy(x).double(), approximate=kind).numpy()
        np.testing.assert_allclose(apply(f"{name}({{a}})", "cpu", F, (x, F)), want, rtol=2e-6, atol=3e-7)


def test_softplus() -> None:
    x = np.concatenate([both(1e-6, 90), SPECIAL])
    want = torch.nn.functional.softplus(torch.from_numpy(x).double(), 2.0, 20.0).numpy()
    assert ulps(apply("softplus_({a}, 2.0, 20.0)", "cpu", F, (x, F)), want).max() <= 5


def test_pow() -> None:
    rng = np.random.default_rng(0)
    x = np.exp(rng.uniform(-80, 80, 100000)).astype(np.float32)
    y = (rng.uniform(-88, 88, x.size) / np.log(x.astype(np.float64))).astype(np.float32)
    near, steep = (1 + rng.uniform(-0.5, 1, x.size)).astype(np.float32), rng.uniform(-120, 120, x.size).astype(np.float32)
    for a, b in ((x, y), (near, steep)):
        with np.errstate(all="ignore"):
            want = np.power(a.astype(np.float64), b.astype(np.float64))
        far = ulps(apply("pow_({a}, {b})", "cpu", F, (a, F), (b, F)), want)
        assert far.max() <= 4, (a[far.argmax()], b[far.argmax()], far.max())


def pairs(*extra: float) -> tuple[np.ndarray, np.ndarray]:
    values = np.concatenate([SPECIAL, np.float32([3, -3, 2.5, -2.5, 1e30, -1e30, *extra])])
    a, b = np.meshgrid(values, values)
    return a.ravel().astype(np.float32), b.ravel().astype(np.float32)


@pytest.mark.parametrize("name", ["pow_", "nan_max", "nan_min", "atan2_", "fmod_", "remainder_", "floor_div", "trunc_div"])
def test_special_pairs_agree_with_pytorch(name: str) -> None:
    a, b = pairs(16777216, 5e9)
    fn = {
        "pow_": torch.pow,
        "nan_max": torch.maximum,
        "nan_min": torch.minimum,
        "atan2_": torch.atan2,
        "fmod_": torch.fmod,
        "remainder_": torch.remainder,
        "floor_div": lambda p, q: torch.div(p, q, rounding_mode="floor"),
        "trunc_div": lambda p, q: torch.div(p, q, rounding_mode="trunc"),
    }[name]
    want = fn(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    if name in ("fmod_", "remainder_", "floor_div"):  # PyTorch's own float32 remainders lose digits of huge quotients
        with np.errstate(all="ignore"):
            exact = {"fmod_": np.fmod, "remainder_": np.remainder, "floor_div": np.floor_divide}[name](a, b)
            want = np.where(np.abs(a / np.where(b == 0, 1, b)) > 1e6, exact, want)
    np.testing.assert_allclose(apply(f"{name}({{a}}, {{b}})", "cpu", F, (a, F), (b, F)), want, rtol=4e-7)


@pytest.mark.parametrize(("name", "fn"), [("fmod_", np.fmod), ("remainder_", np.remainder), ("floor_div", np.floor_divide)])
def test_remainders_are_exact(name: str, fn) -> None:
    rng = np.random.default_rng(1)
    a = (rng.standard_normal(50000) * np.exp(rng.uniform(-30, 60, 50000))).astype(np.float32)
    b = (rng.standard_normal(50000) * np.exp(rng.uniform(-30, 30, 50000))).astype(np.float32)
    with np.errstate(all="ignore"):
        want = fn(a, b)
    got = apply(f"{name}({{a}}, {{b}})", "cpu", F, (a, F), (b, F))
    exact = np.abs(want) < 2**20 if name == "floor_div" else np.ones(len(want), bool)
    np.testing.assert_array_equal(got[exact], want[exact])
    np.testing.assert_allclose(got, want, rtol=4e-7)  # Vulkan's division may be off by 2.5 ulp: it shows in huge quotients only


@pytest.mark.parametrize("off", [-3, -2, -1, 0, 1, 2, 3])
def test_truncated_quotients_are_exact_whatever_the_division(off: int) -> None:
    """Devices divide to within 2.5 ulp: the quotient is what IEEE's division, truncated, gives all the same."""
    rng = np.random.default_rng(4)
    n = np.concatenate([np.arange(1, 4000), rng.integers(1, 2**18, 20000), rng.integers(2**18, 2**21, 4000)]).astype(np.float32)
    n *= rng.choice(np.float32([-1, 1]), n.size)
    b = (rng.standard_normal(n.size) * np.exp(rng.uniform(-60, 60, n.size))).astype(np.float32)
    short = (b.view(np.uint32) & 0xFFFFF000).view(np.float32)  # so that many products are exact
    huge = np.float32([2.5e38, 3.4e38, 1e-37, 2.5]), np.float32([1.3e38, 1.3e38, 3e-38, 1e-3])
    pairs = [(n * b, b), (n * short, short), ((n + np.float32(0.5)) * b, b), (n * b * np.float32(rng.random()), b), huge]
    pairs += [(np.nextafter(a, np.float32(to)), d) for a, d in pairs[:2] for to in (0, np.inf)]
    for a, d in pairs:
        want = np.trunc(a / d)
        q = ((a / d).view(np.int32) + off).view(np.float32)
        got = apply("trunc_quotient({a}, {b}, {c})", "cpu", F, (a, F), (d, F), (q, F))
        known = np.abs(want) < 2**21
        np.testing.assert_array_equal(got[known], want[known])


@pytest.mark.parametrize("name", ["trunc_div", "floor_div"])
def test_rounded_quotients(name: str) -> None:
    n = np.arange(-3000, 3001).astype(np.float32)
    for b in (4.0, 3.0, 0.3, 1e4, -7.7, 1e-20):
        b = np.full_like(n, b)
        a = n * b
        whole = a.astype(np.float64) == n.astype(np.float64) * b
        got = apply(f"{name}({{a}}, {{b}})", "cpu", F, (a, F), (b, F))
        np.testing.assert_array_equal(got[whole], n[whole])
        if name == "trunc_div":
            np.testing.assert_array_equal(got, np.trunc(a / b))


def test_integer_division() -> None:
    rng = np.random.default_rng(2)
    a = rng.integers(-1000, 1000, 4096).astype(np.int32)
    b = np.where((d := rng.integers(-30, 30, 4096)) == 0, 7, d).astype(np.int32)
    np.testing.assert_array_equal(apply("idiv_floor({a}, {b})", "cpu", D.int32, (a, D.int32), (b, D.int32)), a // b)
    np.testing.assert_array_equal(apply("imod_floor({a}, {b})", "cpu", D.int32, (a, D.int32), (b, D.int32)), a % b)


def test_integer_powers() -> None:
    rng = np.random.default_rng(3)
    a = np.concatenate([rng.integers(-9, 10, 4096), [1, -1, -1, 0, 0, 3, -3, 2**31 - 1, 3]]).astype(np.int32)
    n = np.concatenate([rng.integers(0, 14, 4096), [-3, -3, -4, 0, -1, -1, 40, 3, 2**31 - 1]]).astype(np.int32)
    exact = [pow(int(x), int(k), 2**32) if k >= 0 else (int(x) ** int(k) if abs(x) == 1 else 0) for x, k in zip(a, n, strict=True)]
    wrapped = np.array([int(v) % 2**32 for v in exact], np.uint32)
    np.testing.assert_array_equal(apply("ipow({a}, {b})", "cpu", D.int32, (a, D.int32), (n, D.int32)), wrapped.view(np.int32))
    keep = n >= 0
    unsigned = apply("upow({a}, {b})", "cpu", D.uint32, (a[keep].view(np.uint32), D.uint32), (n[keep].view(np.uint32), D.uint32))
    np.testing.assert_array_equal(unsigned, wrapped[keep])


def test_bit_tests() -> None:
    x = np.concatenate([SPECIAL, np.float32([1e-45, 3.4e38])])
    for name, fn in (("is_nan", np.isnan), ("is_inf", np.isinf), ("is_finite", np.isfinite), ("truth", lambda v: v != 0)):
        np.testing.assert_array_equal(apply(f"{name}({{a}})", "cpu", D.bool_, (x, F)), fn(x))


# --- random numbers

SCALARS = (("sl", "u32"), ("sh", "u32"), ("ol", "u32"), ("oh", "u32"))
WORDS = (123456789, 987654321, 77, 3)
BLOCK = "philox({block}, vec2<u32>({sl}, {sh}), vec2<u32>({ol}, {oh}))"


def test_philox_known_answers() -> None:
    zeros, ones = np.zeros((1, 4), np.uint32), np.full((1, 4), 0xFFFFFFFF, np.uint32)
    digits = np.array([[0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]], np.uint32)
    assert R.philox4x32_10(zeros, (0, 0)).tolist() == [[0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]]
    assert R.philox4x32_10(ones, (0xFFFFFFFF, 0xFFFFFFFF)).tolist() == [[0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]]
    assert R.philox4x32_10(digits, (0xA4093822, 0x299F31D0)).tolist() == [[0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shape", [(4096,), (1001,), (3,), (7, 5, 3)])
def test_draws_are_those_of_numpy(family: str, shape: tuple[int, ...]) -> None:
    n = int(np.prod(shape))
    draw = {"shape": shape, "scalars": SCALARS, "values": WORDS}
    np.testing.assert_array_equal(apply(f"{BLOCK}[{{lane}}]", family, D.uint32, **draw).ravel(), R.bits(n, WORDS))
    np.testing.assert_array_equal(apply(f"uniform_({BLOCK}[{{lane}}])", family, F, **draw).ravel(), R.uniform(n, WORDS))
    np.testing.assert_allclose(apply(f"normal_({BLOCK}, {{lane}})", family, F, **draw).ravel(), R.normal(n, WORDS), rtol=2e-6, atol=5e-7)


def test_moments() -> None:
    u, z = R.uniform(200000, WORDS), R.normal(200000, WORDS)
    assert u.min() >= 0 and u.max() < 1 and abs(u.mean() - 0.5) < 3e-3
    assert abs(z.mean()) < 0.01 and abs(z.std() - 1) < 0.01 and np.isfinite(z).all()


def test_generator() -> None:
    g = R.Generator(5)
    first = g.reserve(10)
    state = g.get_state()
    second = g.reserve(1 << 35)
    third = g.reserve(0)
    assert first == (5, 0, 0, 0) and second == (5, 0, 1, 0) and third == (5, 0, 3, 0)
    g.set_state(state)
    assert g.reserve(1) == second
    assert R.Generator(-1).reserve(1)[:2] == (0xFFFFFFFF, 0xFFFFFFFF)
    assert R.manual_seed(3) is R.default_generator and R.initial_seed() == 3


TINT = """
import wgpudawn, dataclasses
from meganeura import dtype as D
from meganeura.kernels import pointwise, template
from meganeura.kernels.kernel import Call, Profile
from meganeura.ops.archetype import Pointwise
from meganeura.storage import Layout
adapter = wgpudawn.gpu.request_adapter_sync()
device = adapter.request_device_sync(required_features=["subgroups", "shader-f16"])
main = "@compute @workgroup_size(1) fn main() {}"
try:
    device.create_shader_module(code="fn f() -> f32 { return 1; " + main)
    raise SystemExit("errors go unnoticed")
except wgpudawn.GPUError:
    pass
device.create_shader_module(code="".join(template._prelude().values()) + main)
device.create_shader_module(code=template.scalar_block((), True) + template.status(0) + main)
@dataclasses.dataclass
class Op:
    archetype: object
for family in ("cpu", "gpu"):
    profile = Profile(family=family, backend="dawn", subgroup_size=8)
    for source in (Layout(D.float32, (8, 12), (1, 8)), Layout(D.float16, (8, 13)), Layout(D.bool_, (8, 12)), Layout(D.int8, (8, 1))):
        for target in D.ALL:
            call = Call(Op(Pointwise("{a}")), ("a",), (source,), (Layout(target, source.shape),), (source.dtype,))
            for launch in pointwise.lower(call, profile).launches:
                device.create_shader_module(code=launch.kernel.source(profile))
print("accepted")
"""


def test_tint_accepts_what_naga_does() -> None:
    assert "accepted" in tint.printed(TINT)


def test_only_named_functions_are_included() -> None:
    text = template.prelude("let y = tanh_(x);")
    assert "fn exp_scaled(" in text and "fn copy_sign(" in text and "fn philox(" not in text
    assert template.prelude("let y = x + 1.0;") == ""
