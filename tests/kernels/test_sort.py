"""Orders of rows and searches in sorted rows against numpy, in both families: every way to sort, dtypes, layouts, NaN, ties."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meganeura import dtype as D
from meganeura.dtype import DType
from meganeura.kernels import sort, sort_rows, sort_search
from meganeura.ops.archetype import Kernel
from meganeura.storage import Layout

from .run_call import FAMILIES, download, make_call, profile, run, strided, upload


def order(family: str, base: np.ndarray, layout: Layout, descending: bool = False, **changes: Any) -> np.ndarray:
    """The order of each row of a layout of a flat array."""
    out = Layout(D.int64, layout.shape)
    call = make_call(Kernel("sort"), {"input": layout}, (out,), attrs={"descending": descending})
    target = upload(np.full(max(out.numel, 1), 77), D.int64)
    run(sort_rows.lower(call, profile(family, **changes)), [upload(base, layout.dtype), target])
    return download(target, D.int64, out.numel).reshape(out.shape)


def wanted(x: np.ndarray, descending: bool = False) -> np.ndarray:
    if not descending:
        return np.argsort(x, axis=-1, kind="stable")
    return x.shape[-1] - 1 - np.flip(np.argsort(np.flip(x, -1), axis=-1, kind="stable"), -1)


def coarse(*shape: int) -> np.ndarray:
    return np.round(np.random.default_rng(0).normal(size=shape) * 50).astype(np.float32)


SHAPES = [(1,), (2,), (7,), (64,), (128,), (129,), (1000,), (1500,), (5000,), (70001,), (3, 5), (5, 128), (9, 129), (40, 300), (3, 4, 33)]
SHAPES += [(16, 1025), (2, 2049), (3, 5000), (1, 3000), (2000, 3)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("descending", [False, True])
def test_shapes(descending: bool, family: str) -> None:
    for shape in SHAPES:
        x = coarse(*shape)
        assert np.array_equal(order(family, x, Layout(D.float32, shape), descending), wanted(x, descending)), shape


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", ["ranked", "digits of 4 bits", "digits of 8 bits", "whole"])
def test_every_way_on_the_same_rows(way: str, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = sort.plan

    def forced(*args: Any) -> sort.SortPlan:
        made = replace(plan(*args), ranked=way == "ranked", whole=way == "whole", digit=4 if "4" in way else 8)
        return replace(made, run=256) if family == "cpu" else made

    monkeypatch.setattr(sort, "plan", forced)
    for shape in ((1,), (5,), (100,), (1030,), (7, 10), (5, 1000), (130, 66)):
        x = coarse(*shape)
        assert np.array_equal(order(family, x, Layout(D.float32, shape)), wanted(x)), shape


def test_little_workgroup_memory() -> None:
    for shape in ((1200,), (3, 1200), (3, 5000)):
        x = coarse(*shape)
        assert np.array_equal(order("gpu", x, Layout(D.float32, shape), max_workgroup_memory=8192), wanted(x))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", D.ALL, ids=lambda d: d.name)
def test_dtypes(dtype: DType, family: str) -> None:
    rng = np.random.default_rng(0)
    for n in (40, 3000):
        x = rng.integers(0, 2 if dtype.kind == "b" else 120, (2, n)).astype(dtype.numpy)
        if dtype.kind in "if":
            x = (x - 60).astype(dtype.numpy)
        if dtype.kind == "f" and dtype is not D.bfloat16:
            x = (x / 64).astype(dtype.numpy)
            x[:, ::7] *= np.array(1e-4, dtype.numpy)
        if dtype.kind in "iu" and dtype.bits >= 32:
            x[0, :4] = [2**31 - 1, 0, 2**31 - 2, 1] if dtype.kind == "i" else [2**32 - 1, 0, 2**31, 1]
            x[1, 3] = -(2**31) if dtype.kind == "i" else 5
        for descending in (False, True):
            assert np.array_equal(order(family, x, Layout(dtype, x.shape), descending), wanted(x, descending))


LAYOUTS = {
    "transposed": Layout(D.float32, (12, 40), (1, 12), 4),
    "every second": Layout(D.float32, (12, 40), (160, 2), 3),
    "offset": Layout(D.float32, (12, 40), (40, 1), 1),
    "repeated": Layout(D.float32, (12, 40), (0, 1)),
    "one column": Layout(D.float32, (12, 40), (1, 0)),
    "backwards": Layout(D.float32, (12, 40), (-40, -1), 479),
    "long rows transposed": Layout(D.float32, (3, 3000), (1, 3), 2),
    "four dimensions": Layout(D.float32, (4, 6, 3, 7), (8, 640, 64, 1)),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str, family: str) -> None:
    layout = LAYOUTS[name]
    base = coarse(layout.span()[1] + 1)
    assert np.array_equal(order(family, base, layout), wanted(strided(base, layout)))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [D.float32, D.float16], ids=lambda d: d.name)
def test_nan_infinities_and_zeros(dtype: DType, family: str) -> None:
    special = np.array([np.nan, 1, -0.0, 0.0, -np.inf, -np.nan, np.inf, -0.0, 6e-8, -6e-8, -3, 65504], np.float32).astype(dtype.numpy)
    for n in (12, 50, 1500):
        x = np.resize(special, (2, n))
        x[1] = np.roll(x[0], 5)
        for descending in (False, True):
            assert np.array_equal(order(family, x, Layout(dtype, x.shape), descending), wanted(x, descending))


@pytest.mark.parametrize("family", FAMILIES)
def test_many_rows_and_many_keys(family: str) -> None:
    for shape in ((20000, 7), (600, 700), (400_000,)):
        x = coarse(*shape)
        assert np.array_equal(order(family, x, Layout(D.float32, shape)), wanted(x)), shape


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
def test_sixteen_million(family: str) -> None:
    x = np.random.default_rng(0).normal(size=1 << 24).astype(np.float32)
    assert np.array_equal(order(family, x, Layout(D.float32, x.shape)), wanted(x))


# ---- searches ----


def search(family: str, rows: tuple[np.ndarray, Layout], values: tuple[np.ndarray, Layout], **attrs: Any) -> np.ndarray:
    out = Layout(D.int64, values[1].shape)
    call = make_call(
        Kernel("searchsorted"), {"rows": rows[1], "values": values[1]}, (out,), attrs={"right": False, "nan_last": True} | attrs
    )
    target = upload(np.full(max(out.numel, 1), 77), D.int64)
    run(sort_search.lower(call, profile(family)), [upload(rows[0], rows[1].dtype), upload(values[0], values[1].dtype), target])
    return download(target, D.int64, out.numel).reshape(out.shape)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("right", [False, True])
def test_search(right: bool, family: str) -> None:
    side: Any = "right" if right else "left"
    for n in (1, 2, 3, 100, 5000):
        x, v = np.sort(coarse(n)), coarse(30, 10)
        x[-(n // 4) :] = np.nan
        x = np.sort(x)
        v[0, 0] = np.nan
        got = search(family, (x, Layout(D.float32, (n,))), (v, Layout(D.float32, v.shape)), right=right)
        assert np.array_equal(got, np.searchsorted(x, v, side))
        turned = Layout(D.float32, (10, 30), (1, 10))
        got = search(family, (np.repeat(x, 3), Layout(D.float32, (n,), (3,), 1)), (v, turned), right=right)
        assert np.array_equal(got, np.searchsorted(x, v.T, side))
        rows = np.sort(coarse(6, n), -1)
        got = search(family, (rows, Layout(D.float32, (6, n))), (v[:6], Layout(D.float32, (6, 10))), right=right)
        assert np.array_equal(got, [np.searchsorted(a, b, side) for a, b in zip(rows, v[:6], strict=True)])
    none = search(family, (np.zeros(1, np.float32), Layout(D.float32, (0,))), (v, Layout(D.float32, v.shape)), right=right)
    assert not none.any()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [d for d in D.ALL if d is not D.bfloat16], ids=lambda d: d.name)
def test_search_dtypes(dtype: DType, family: str) -> None:
    rng = np.random.default_rng(0)
    x, v = (rng.integers(0, 2 if dtype.kind == "b" else 100, n).astype(dtype.numpy) for n in (33, 50))
    x.sort()
    for right in (False, True):
        got = search(family, (x, Layout(dtype, x.shape)), (v, Layout(dtype, v.shape)), right=right, nan_last=False)
        assert np.array_equal(got, np.searchsorted(x, v, "right" if right else "left"))
