"""The first places of rows' orders, and the places at ranks, against numpy, in both families: by sorting and by selection."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meganeura import dtype as D
from meganeura.dtype import DType
from meganeura.kernels import topk
from meganeura.kernels.kernel import Lowered
from meganeura.ops.archetype import Kernel
from meganeura.storage import Layout

from .run_call import FAMILIES, download, make_call, profile, run, strided, upload
from .test_sort import LAYOUTS, coarse, wanted


def labels(lowered: Lowered) -> set[str]:
    return {launch.kernel.label for launch in lowered.launches}


def lowered_top(family: str, layout: Layout, k: int, descending: bool, **changes: Any) -> Lowered:
    out = Layout(D.int64, (*layout.shape[:-1], k))
    call = make_call(Kernel("top"), {"input": layout}, (out,), attrs={"k": k, "descending": descending})
    return topk.lower(call, profile(family, **changes))


def top(family: str, base: np.ndarray, layout: Layout, k: int, descending: bool = False, **changes: Any) -> np.ndarray:
    """The first k places of each row of a layout of a flat array."""
    shape = (*layout.shape[:-1], k)
    count = int(np.prod(shape))
    target = upload(np.full(max(count, 1), 77), D.int64)
    run(lowered_top(family, layout, k, descending, **changes), [upload(base, layout.dtype), target])
    return download(target, D.int64, count).reshape(shape)


def at_ranks(family: str, base: np.ndarray, layout: Layout, ranks: np.ndarray, rank_layout: Layout) -> np.ndarray:
    out = Layout(D.int64, rank_layout.shape)
    call = make_call(Kernel("rank"), {"input": layout, "rank": rank_layout}, (out,))
    target = upload(np.full(out.numel, 77), D.int64)
    run(topk.lower(call, profile(family)), [upload(base, layout.dtype), upload(ranks, D.int64), target])
    return download(target, D.int64, out.numel).reshape(out.shape)


SHAPES = [(1,), (7,), (129,), (2500,), (5001,), (70003,), (3, 5), (9, 130), (3, 5000), (21, 3001), (200, 2102), (5, 2, 2600)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("values", ["ties", "NaN", "equal"])
def test_top(values: str, descending: bool, family: str) -> None:
    for shape in SHAPES:
        x = coarse(*shape) if values != "equal" else np.ones(shape, np.float32)
        if values == "NaN":
            x[..., ::3] = np.nan
            x[..., 1::5] = -0.0
            x[..., 2::5] = 0.0
        expected = wanted(x, descending)
        for k in {1, min(5, shape[-1]), -(-shape[-1] // 9), shape[-1] // 4, shape[-1]}:
            assert np.array_equal(top(family, x, Layout(D.float32, shape), k, descending), expected[..., :k]), (shape, k)


@pytest.mark.parametrize("family", FAMILIES)
def test_ranks(family: str) -> None:
    for shape in SHAPES:
        x = coarse(*shape)
        layout = Layout(D.float32, shape)
        wide = np.random.default_rng(1).integers(-2, shape[-1] + 2, (*shape[:-1], 3))
        ranks = np.clip(wide[..., 1:2], 0, shape[-1] - 1)
        expected = np.take_along_axis(wanted(x), ranks, -1)
        one = Layout(D.int64, ranks.shape)
        assert np.array_equal(at_ranks(family, x, layout, wide[..., 1:2], one), expected), shape
        spread = Layout(D.int64, ranks.shape, Layout(D.int64, wide.shape).strides, 1)
        assert np.array_equal(at_ranks(family, x, layout, wide, spread), expected), shape


def test_long_rows_are_not_sorted() -> None:
    for family in FAMILIES:
        for layout, k in ((Layout(D.float32, (64, 50257)), 50), (Layout(D.float32, (1 << 20,)), 100)):
            made = labels(lowered_top(family, layout, k, True))
            assert not made & {"sort count", "sort row"}, made
    assert "topk sift" in labels(lowered_top("cpu", Layout(D.float32, (64, 50257)), 50, True))
    assert "topk digits" in labels(lowered_top("gpu", Layout(D.float32, (64, 50257)), 50, True))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [d for d in D.ALL if d.kind != "b"], ids=lambda d: d.name)
def test_dtypes(dtype: DType, family: str) -> None:
    x = np.random.default_rng(0).integers(0, 120, (3, 3001)).astype(dtype.numpy)
    if dtype.kind in "if":
        x = (x - 60).astype(dtype.numpy)
    if dtype.bits == 32 and dtype.kind in "iu":
        x[0, :4] = [2**31 - 1, 0, 2**31 - 2, 1] if dtype.kind == "i" else [2**32 - 1, 0, 2**31, 1]
    for k in (40, 700):
        for descending in (False, True):
            assert np.array_equal(top(family, x, Layout(dtype, x.shape), k, descending), wanted(x, descending)[..., :k])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str, family: str) -> None:
    layout = LAYOUTS[name]
    base = coarse(layout.span()[1] + 1)
    for k in (1, layout.shape[-1] // 4):
        assert np.array_equal(top(family, base, layout, k), wanted(strided(base, layout))[..., :k])


def test_without_subgroups() -> None:
    for shape in ((3, 5000), (1500,)):
        x = coarse(*shape)
        layout = Layout(D.float32, shape)
        assert np.array_equal(top("gpu", x, layout, 30, True, subgroups=False), wanted(x, True)[..., :30])
        assert np.array_equal(top("gpu", x, layout, shape[-1], True, subgroups=False), wanted(x, True))


@pytest.mark.parametrize("family", FAMILIES)
def test_sorted_input_where_most_is_small(family: str) -> None:
    """The first part holds all that is wanted, or every part does."""
    n = 40000
    for x in (np.arange(n), -np.arange(n), np.arange(n) % 7, np.minimum(np.arange(n), 50)):
        y = x.astype(np.float32)
        assert np.array_equal(top(family, y, Layout(D.float32, (n,)), 60), wanted(y)[:60])
