"""Scans, sorting, order statistics, searches and distinct elements beside PyTorch: values, places, gradients, layouts, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meganeura as mg

from .compare import SPECIAL, bools, check, floats, ints

torch = pytest.importorskip("torch")
PLAIN = ("plain",)
VARIED = ("plain", "transposed", "stepped", "shifted")  # nothing repeated: PyTorch orders equals as it likes


def distinct(*shape: int, seed: int = 0) -> Any:
    """float32 values without equals."""
    n = int(np.prod(shape))
    return (np.random.default_rng(seed).permutation(n).astype(np.float32) - n // 2).reshape(shape) / 4


def coarse(*shape: int, seed: int = 0) -> Any:
    """float32 values with many equals."""
    return (np.random.default_rng(seed).integers(-4, 5, shape) / 2).astype(np.float32)


SHAPES: list[tuple[tuple[int, ...], int]] = [
    ((7,), 0), ((3, 5), -1), ((3, 5), 0), ((4, 3, 8), 1), ((2, 4, 12), -1), ((2, 300), 1), ((300, 2), 0), ((1,), 0), ((), 0), ((), -1),
    ((0, 3), 0), ((0, 3), 1),
]  # fmt: skip


# ---- scans ----


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"])
def test_scans(name: str) -> None:
    for i, (shape, dim) in enumerate(SHAPES):
        x = floats(*shape, low=-1.4, high=1.4) if name == "cumprod" else coarse(*shape) if name[3] == "m" else floats(*shape)
        check(name, x, dim, layouts=("plain", "transposed", "stepped", "shifted", "expanded") if i == 3 else ("plain", "transposed"))
    check(name, floats(3, 4), 2)
    check(name, floats(3, 4), -3)
    check(name, ints(3, 40), 1)
    check(name, bools(3, 40), 1)
    check(name, ints(3, 4).astype(np.uint8), 0)
    check(name, ints(3, 4).astype(np.int32), 0)


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"])
def test_scans_of_nan_and_infinities(name: str) -> None:
    for shift in range(len(SPECIAL)):
        check(name, np.roll(SPECIAL, shift), 0, layouts=PLAIN, grad=False, half=False)


def test_scans_in_a_dtype_and_in_place() -> None:
    for name in ("cumsum", "cumprod"):
        check(name, ints(3, 4), 1, dtype="@float32", grad=False)
        check(name, floats(3, 4), 1, dtype="@int32", grad=False)
        check(name, bools(3, 4), 1, dtype="@float32", grad=False)
        check(f".{name}_", floats(3, 4), 0, grad=False)
        check(f".{name}_", ints(3, 4), 0, grad=False)


@pytest.mark.parametrize("zeros", [0, 1, 2, 5])
def test_cumprod_with_zeros(zeros: int) -> None:
    x = floats(4, 6)
    x[1, :zeros] = 0
    x[2, 6 - zeros :] = 0
    x[3, 1 : 1 + zeros] = 0
    check("cumprod", x, 1, half=False)
    check("cumprod", x, 0, half=False)


def test_second_gradients() -> None:
    x, g = floats(3, 5), floats(3, 5, seed=1)
    x[1, 2] = x[2, 1] = x[2, 3] = 0
    for name in ("cumprod", "logcumsumexp", "cumsum", "cummax"):
        got = []
        for lib in (mg, torch):
            t = lib.tensor(x).requires_grad_()
            out = getattr(t, name)(1)
            y = (out[0] if isinstance(out, tuple) else out) * lib.tensor(g)
            (first,) = lib.autograd.grad((y * y).sum(), t, create_graph=True)
            (second,) = lib.autograd.grad((first * lib.tensor(floats(3, 5, seed=2))).sum(), t)
            got.append(second.numpy())
        np.testing.assert_allclose(got[0], got[1], rtol=1e-4, atol=1e-4, err_msg=name)


def test_diff() -> None:
    for n in range(5):
        check("diff", floats(3, 4), n)
    check("diff", floats(3, 4), 1, 0)
    check("diff", ints(5), 2)
    check("diff", bools(6))
    check("diff", floats(3, 4), prepend=floats(3, 2), append=floats(3, 1))
    check("diff", floats(3, 4), 1, 0, floats(1, 4), None)
    for bad in ((floats(), 1), (floats(3), -1), (floats(3), 1, 1), (floats(3), 1, 0, floats())):
        check("diff", *bad, layouts=PLAIN)
    check("diff", floats(0))
    check("diff", floats(0, 3))


@pytest.mark.parametrize("name", ["trapezoid", "cumulative_trapezoid"])
def test_trapezoid(name: str) -> None:
    check(name, floats(3, 5))
    check(name, floats(3, 5), dim=0)
    check(name, floats(3, 5), dx=0.5)
    check(name, floats(3, 5), floats(5))
    check(name, floats(3, 5), floats(3), dim=0)
    check(name, floats(3, 5), floats(3, 5))
    check(name, floats(2, 3, 5), floats(3, 5))
    check(name, floats(3, 5), floats(1, 5))
    check(name, ints(4))
    check(name, ints(4), dx=2)
    check(name, floats(1))
    check(name, floats(3, 0))
    check(name, bools(4))
    check(name, floats(3, 5), floats(4), layouts=PLAIN)
    check(name, floats(3, 5), floats(4, 5), layouts=PLAIN)


# ---- sorting ----


@pytest.mark.parametrize("descending", [False, True])
def test_sort(descending: bool) -> None:
    for i, (shape, dim) in enumerate(SHAPES):
        layouts = ("plain", "transposed", "stepped", "shifted", "expanded") if i == 3 else ("plain", "transposed")
        check("sort", coarse(*shape), dim=dim, descending=descending, stable=True, layouts=layouts)
        check("argsort", coarse(*shape), dim=dim, descending=descending, stable=True, layouts=PLAIN)
    check("sort", floats(3, 4), dim=2)
    check("msort", coarse(4, 3))
    check("msort", coarse())


@pytest.mark.parametrize("descending", [False, True])
def test_sort_dtypes_and_special_values(descending: bool) -> None:
    special = np.concatenate([SPECIAL, SPECIAL[::-1], np.full(3, np.nan, np.float32)])
    for values in (special, np.resize(special, (2, 300))):
        check("sort", values, dim=-1, descending=descending, stable=True, grad=False)
        got = [lib.tensor(values).sort(dim=-1, descending=descending, stable=True).values.numpy() for lib in (mg, torch)]
        np.testing.assert_array_equal(np.signbit(got[0])[~np.isnan(got[0])], np.signbit(got[1])[~np.isnan(got[1])])
    low, high = -(2**31), 2**31 - 1
    edges = np.array([0, -1, high, low, 5, low + 1, high - 1, 0], np.int64)
    for values in (edges, edges.astype(np.int32), ints(200).astype(np.int8), ints(200).astype(np.uint8), bools(200), edges % 7):
        check("sort", values, dim=0, descending=descending, stable=True)
    wide = mg.tensor(np.array([2**32 - 1, 0, 2**31, 7], np.uint32)).sort(descending=descending).values.numpy()
    assert wide.tolist() == sorted([2**32 - 1, 0, 2**31, 7], reverse=descending)
    rounded = coarse(300).astype(np.float32)
    got = mg.tensor(rounded, dtype="bfloat16").argsort(descending=descending).numpy()
    assert np.array_equal(got, torch.tensor(rounded).argsort(stable=True, descending=descending).numpy())


@pytest.mark.parametrize("shape", [(1000,), (2500,), (70000,), (5, 1500), (3, 2100), (300, 129), (20000, 7)], ids=str)
def test_sort_of_long_and_of_many_rows(shape: tuple[int, ...]) -> None:
    check("sort", coarse(*shape), dim=-1, stable=True, layouts=PLAIN, grad=False)
    check("sort", floats(*shape), dim=0, stable=True, layouts=PLAIN, grad=False, half=False)


def test_topk() -> None:
    for shape, dim in SHAPES[:10]:
        for k in (0, 1, shape[dim] // 2 if shape else 1, shape[dim] if shape else 1):
            for largest in (True, False):
                check("topk", distinct(*shape), k, dim, largest, layouts=("plain", "transposed"), half=False)
    check("topk", distinct(5), 6, layouts=PLAIN)
    check("topk", distinct(5), -1, layouts=PLAIN)
    check("topk", bools(5), 2, layouts=PLAIN)
    check("topk", np.arange(20)[::-1].copy(), 3, layouts=VARIED)
    check("topk", distinct(3, 0), 0, half=False)
    a = mg.tensor(np.array([np.nan, 1, np.inf, 3], np.float32)).topk(2)
    assert np.isnan(a.values.numpy()[0]) and a.indices.tolist() == [0, 2]


def test_kthvalue() -> None:
    for shape, dim in SHAPES[:10]:
        for k in (1, (shape[dim] + 1) // 2 if shape else 1, shape[dim] if shape else 1):
            check("kthvalue", distinct(*shape), k, dim, layouts=("plain", "transposed"), half=False)
            check("kthvalue", distinct(*shape), k, dim, True, layouts=PLAIN, half=False)
    for k in (0, 6):
        check("kthvalue", distinct(5), k, layouts=PLAIN)
    check("kthvalue", distinct(0), 1, layouts=PLAIN)
    check("kthvalue", bools(5), 1, layouts=PLAIN)
    check("kthvalue", np.array([3, np.nan, 1], np.float32), 3, grad=False, layouts=VARIED)


@pytest.mark.parametrize("name", ["median", "nanmedian"])
def test_median(name: str) -> None:
    for shape, dim in SHAPES[:10]:
        check(name, distinct(*shape), layouts=("plain", "stepped"), half=False)
        check(name, distinct(*shape), dim, layouts=("plain", "transposed"), half=False)
        check(name, distinct(*shape), dim, True, layouts=PLAIN, half=False)
    check(name, coarse(30), half=False)
    check(name, np.arange(7) * 3 % 7, 0, layouts=VARIED)
    check(name, np.arange(7) * 3 % 7)
    check(name, floats(0))
    check(name, floats(0, 3), 0, layouts=PLAIN)
    check(name, bools(5), layouts=PLAIN)
    holed = distinct(4, 5)
    holed[0, 3] = holed[1] = np.nan
    holed[2, 1:3] = np.nan
    if name == "nanmedian":
        holed[1] = [1, np.nan, np.nan, 3, np.nan]
    check(name, holed, 1, half=False, layouts=VARIED)
    check(name, holed, layouts=PLAIN, half=False)
    check(name, np.full((2, 3), np.nan, np.float32), layouts=PLAIN, grad=False)


def test_mode() -> None:
    for shape, dim in SHAPES[:10]:
        if not shape or shape[dim] < 16:  # PyTorch's place among equals is the last only where its sort is stable
            check("mode", coarse(*shape), dim, layouts=("plain", "transposed"))
            check("mode", coarse(*shape), dim, True, layouts=PLAIN)
    for values in (coarse(3, 300), ints(4, 50), bools(3, 70)):
        got, want = mg.tensor(values).mode(1), torch.tensor(values).mode(1)
        assert np.array_equal(got.values.numpy(), want.values.numpy())
        last = [max(np.flatnonzero(row == v)) for row, v in zip(values, got.values.numpy(), strict=True)]
        assert got.indices.tolist() == last
    check("mode", floats(0, 3), 0, layouts=PLAIN)


@pytest.mark.parametrize("name", ["quantile", "nanquantile"])
def test_quantile(name: str) -> None:
    x, levels = floats(4, 9), np.array([0.1, 0.5, 0.77, 1.0, 0.0], np.float32)
    x[1, 3] = np.nan
    x[3] = np.nan
    for how in ("linear", "lower", "higher", "midpoint", "nearest"):
        for q in (0.0, 0.25, 0.5, 0.8125, 1.0):
            check(name, x, q, dim=1, interpolation=how, layouts=("plain", "transposed"), half=False)
        check(name, floats(4, 9), levels, dim=0, keepdim=True, interpolation=how, layouts=PLAIN, half=False, grad=False)
    check(name, floats(3, 4), 0.3, half=False)
    check(name, floats(3, 4), 0.3, keepdim=True, half=False)
    check(name, floats(3, 4, 5), levels, dim=-2, keepdim=False, half=False, layouts=PLAIN, grad=False)
    check(name, floats(), 0.3, half=False)
    check(name, floats(3, 4), 1.5, layouts=PLAIN)
    check(name, ints(3, 4), 0.5, layouts=PLAIN)
    check(name, floats(0), 0.5, layouts=PLAIN)
    check(name, floats(4), 0.5, interpolation="cubic", layouts=PLAIN, half=False)


# ---- searches ----


@pytest.mark.filterwarnings("ignore:torch.searchsorted")
def test_searchsorted() -> None:
    one, rows = np.sort(coarse(11)), np.sort(coarse(3, 12), -1)
    for side in ({}, {"right": True}, {"side": "left"}, {"side": "right"}, {"out_int32": True}):
        check("searchsorted", one, coarse(2, 5, seed=1), grad=False, **side)
        check("searchsorted", rows, coarse(3, 7, seed=1), grad=False, layouts=("plain", "transposed", "stepped"), **side)
        check("searchsorted", one, 0.5, grad=False, **side)
        check("searchsorted", np.sort(ints(9)), ints(4), grad=False, **side)
        check("bucketize", coarse(3, 5), np.unique(one), grad=False, **{k: v for k, v in side.items() if k != "side"})
    check("searchsorted", one[::-1].copy(), coarse(4), sorter=np.arange(11)[::-1].copy(), grad=False, layouts=PLAIN)
    check("searchsorted", np.sort(SPECIAL), SPECIAL, grad=False, layouts=PLAIN)
    check("searchsorted", np.sort(SPECIAL), SPECIAL, right=True, grad=False, layouts=PLAIN)
    check("searchsorted", coarse(0), coarse(3), grad=False)
    check("searchsorted", rows, coarse(2, 3), layouts=PLAIN)
    check("searchsorted", rows, 0.5, layouts=PLAIN)
    check("searchsorted", one, coarse(2), side="left", right=True, layouts=PLAIN)
    check("searchsorted", np.arange(4), 0.5, grad=False)
    check("searchsorted", np.arange(4), coarse(3), grad=False)
    check("bucketize", 0.5, np.arange(4), grad=False)
    check("bucketize", coarse(3), rows, layouts=PLAIN)


def test_isin() -> None:
    check("isin", ints(4, 5), ints(6, low=0), grad=False)
    check("isin", ints(4, 5), ints(6, low=0), invert=True, grad=False)
    check("isin", coarse(40), coarse(7, seed=1), grad=False)
    check("isin", SPECIAL, SPECIAL[::2].copy(), grad=False, layouts=PLAIN)
    check("isin", ints(5), np.array([2.0, -3.0], np.float32), grad=False)
    check("isin", ints(5), 2, grad=False)
    check("isin", 2, ints(50), grad=False)
    check("isin", ints(5), ints(0), grad=False)
    check("isin", ints(0), ints(5), grad=False)


# ---- distinct elements ----


@pytest.mark.parametrize("name", ["unique", "unique_consecutive"])
def test_unique(name: str) -> None:
    for values in (ints(30), coarse(4, 9), bools(7), ints(1), coarse(0), np.array(3), coarse(0, 3), SPECIAL):
        for flags in ({}, {"return_inverse": True}, {"return_counts": True}, {"return_inverse": True, "return_counts": True}):
            check(name, values, grad=False, layouts=("plain", "stepped"), half=False, **flags)
    for values in (bools(9, 2), ints(20, 3, low=0, high=2), coarse(6, 1), ints(5, 2, 2, low=0, high=2), np.zeros((0, 3), np.float32)):
        for dim in (0, 1, -1):
            check(name, values, return_inverse=True, return_counts=True, dim=dim, grad=False, layouts=("plain", "transposed"), half=False)
    check(name, ints(5), dim=1, layouts=PLAIN)


def test_results_are_named_pairs() -> None:
    x = mg.tensor(coarse(3, 4))
    for pair in (x.sort(), x.topk(2), x.cummax(1), x.kthvalue(1), x.median(1), x.mode()):
        assert pair.values is pair[0] and pair.indices is pair[1]


def test_compiled_as_eager() -> None:
    def fn(x: Any) -> Any:
        y = x.cumsum(1) + x.sort(1, True).values + x.cumprod(0) + x.logcumsumexp(1)
        return y, x.topk(2, 1).indices, x.median(0).values, x.quantile(0.3, 1), x.mode(1).values, mg.isin(x, x[0])

    x = mg.tensor(coarse(5, 8))
    for got, want in zip(mg.compile(fn)(x), fn(x), strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-6)
