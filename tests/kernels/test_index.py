"""index_select, gather, segment_sum and the sort under it, against numpy; layouts, dtypes, bad indices; both families."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meganeura import dtype as D
from meganeura.dtype import DType
from meganeura.errors import IndexOutOfRangeError
from meganeura.kernels import index, sort
from meganeura.kernels.kernel import TEMP, Lowered
from meganeura.ops.archetype import Kernel
from meganeura.storage import Layout

from .run_call import FAMILIES, device, download, make_call, profile, run, strided, upload


def apply(
    family: str,
    name: str,
    out: Layout,
    table: tuple[np.ndarray, Layout],
    at: tuple[np.ndarray, Layout],
    max_binding: int = 0,
    **attrs: Any,
) -> np.ndarray:
    """The result of an indexing kernel on flat arrays."""
    first = "values" if name == "segment_sum" else "input"
    call = make_call(Kernel(name), {first: table[1], "index": at[1]}, (out,), attrs=attrs)
    target = upload(np.full(max(out.numel, 1), 77), out.dtype)
    used = profile(family, max_binding=max_binding) if max_binding else profile(family)
    run(index.lower(call, used), [upload(table[0], table[1].dtype), upload(at[0], at[1].dtype), target])
    return download(target, out.dtype, out.numel).reshape(out.shape)


def select(family: str, x: np.ndarray, at: np.ndarray, dim: int, layout: Layout | None = None, **fields: Any) -> np.ndarray:
    layout = layout or Layout(D.dtype(x.dtype), x.shape)
    shape = (*layout.shape[:dim], at.size, *layout.shape[dim + 1 :])
    return apply(
        family, "index_select", Layout(layout.dtype, shape), (x, layout), (at, Layout(D.dtype(at.dtype), at.shape)), dim=dim, **fields
    )


def gather(
    family: str, x: np.ndarray, at: np.ndarray, dim: int, layout: Layout | None = None, at_layout: Layout | None = None
) -> np.ndarray:
    layout, at_layout = layout or Layout(D.dtype(x.dtype), x.shape), at_layout or Layout(D.int64, at.shape)
    return apply(family, "gather", Layout(layout.dtype, at_layout.shape), (x, layout), (at, at_layout), dim=dim)


def segments(
    family: str, values: np.ndarray, at: np.ndarray, size: int, layout: Layout | None = None, at_layout: Layout | None = None, **fields: Any
) -> np.ndarray:
    layout, at_layout = layout or Layout(D.dtype(values.dtype), values.shape), at_layout or Layout(D.dtype(at.dtype), at.shape)
    rest = layout.shape[len(at_layout.shape) :]
    return apply(family, "segment_sum", Layout(layout.dtype, (size, *rest)), (values, layout), (at, at_layout), size=size, **fields)


def summed(values: np.ndarray, at: np.ndarray, size: int) -> np.ndarray:
    out = np.zeros((size, *values.shape[at.ndim :]))
    np.add.at(out, at, values.astype(np.float64))
    return out


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def indices(size: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, size, shape)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shape", [(50, 64), (50, 576), (7, 5), (3, 4, 5), (3, 40, 8), (1, 1), (9,), (2, 3, 4, 8)], ids=str)
def test_index_select(shape: tuple[int, ...], family: str) -> None:
    x = numbers(*shape)
    for dim in range(len(shape)):
        at = indices(shape[dim], 33)
        assert np.array_equal(select(family, x, at, dim), np.take(x, at, axis=dim)), dim


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", D.ALL, ids=lambda d: d.name)
def test_dtypes_move_unchanged(dtype: DType, family: str) -> None:
    x = np.random.default_rng(0).integers(0, 2 if dtype.kind == "b" else 100, (20, 32)).astype(dtype.numpy)
    for of in (D.int64, D.int32, D.uint8):
        at = indices(20, 9).astype(of.numpy)
        assert np.array_equal(select(family, x, at, 0, Layout(dtype, x.shape)), x[at])
        assert np.array_equal(select(family, x, at, 1, Layout(dtype, x.shape)), x[:, at])


LAYOUTS = {
    "transposed": Layout(D.float32, (12, 40), (1, 12), 4),
    "every second": Layout(D.float32, (12, 40), (160, 2), 3),
    "offset": Layout(D.float32, (12, 40), (40, 1), 1),
    "padded": Layout(D.float32, (12, 40), (48, 1), 8),
    "repeated": Layout(D.float32, (12, 40), (0, 1)),
    "backwards": Layout(D.float32, (12, 40), (-40, -1), 479),
    "four dimensions": Layout(D.float32, (4, 6, 3, 8), (8, 640, 64, 1)),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str, family: str) -> None:
    layout = LAYOUTS[name]
    base = numbers(layout.span()[1] + 1)
    x = strided(base, layout)
    for dim in range(x.ndim):
        at = indices(x.shape[dim], 21)
        assert np.array_equal(select(family, base, at, dim, layout), np.take(x, at, axis=dim))
        at = indices(x.shape[dim], *(n if d != dim else 5 for d, n in enumerate(x.shape)))
        assert np.array_equal(gather(family, base, at, dim, layout), np.take_along_axis(x, at, dim))
    rows = indices(7, x.shape[0])
    assert np.allclose(segments(family, base, rows, 7, layout), summed(x, rows, 7), atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_index_layouts(family: str) -> None:
    x = numbers(30, 8)
    at = indices(8, 30, 10)
    every = Layout(D.int64, (30, 5), (10, 2), 1)
    turned = Layout(D.int64, (10, 30), (1, 10))
    assert np.array_equal(gather(family, x, at, 1, at_layout=every), np.take_along_axis(x, at[:, 1::2], 1))
    assert np.array_equal(
        gather(family, x, at, 0, at_layout=turned.with_(shape=(10, 8), strides=(1, 10))), np.take_along_axis(x, at.T[:, :8], 0)
    )
    out = Layout(D.float32, (30, 5, 8))
    got = apply(family, "index_select", out, (x, Layout(D.float32, x.shape)), (at, every), dim=0)
    assert np.array_equal(got, x[at[:, 1::2]])
    values = numbers(30, 5, 4)
    assert np.allclose(segments(family, values, at, 8, at_layout=every), summed(values, at[:, 1::2], 8), atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_gather_smaller_than_input(family: str) -> None:
    x = numbers(9, 7, 6)
    at = indices(7, 4, 11, 5)
    assert np.array_equal(gather(family, x, at, 1), np.take_along_axis(x[:4, :, :5], at, 1))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("width", [3, 64])
def test_out_of_range(width: int, family: str) -> None:
    x = numbers(10, width)
    for bad in (10, -1, 2**31 - 1, -(2**31)):
        at = np.array([1, bad, 3])
        with pytest.raises(IndexOutOfRangeError, match=rf"index {bad} .* size 10"):
            select(family, x, at, 0)
        with pytest.raises(IndexOutOfRangeError, match=rf"index {bad} .* size 10"):
            segments(family, numbers(3, width), at, 10)
    assert np.array_equal(select(family, x, np.array([-1, -10, 9]), 0, wrap=True), x[[-1, -10, 9]])
    with pytest.raises(IndexOutOfRangeError, match=r"index -11 .* size 10"):
        select(family, x, np.array([-11]), 0, wrap=True)
    device().synchronize()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_bad_index_reads_zero(family: str) -> None:
    for width in (3, 64):
        x, at = numbers(10, width), np.array([2, 10])
        call = make_call(
            Kernel("index_select"),
            {"input": Layout(D.float32, x.shape), "index": Layout(D.int64, (2,))},
            (Layout(D.float32, (2, width)),),
            attrs={"dim": 0},
        )
        target = upload(np.full(2 * width, 77), D.float32)
        run(index.lower(call, profile(family)), [upload(x, D.float32), upload(at, D.int64), target])
        with pytest.raises(IndexOutOfRangeError):
            device().synchronize()
        assert np.array_equal(download(target, D.float32, 2 * width).reshape(2, width), [x[2], 0 * x[2]])


@pytest.mark.parametrize("family", FAMILIES)
def test_table_larger_than_a_binding(family: str) -> None:
    for width in (5, 64):
        x = numbers(1000, width)
        at = indices(1000, 300)
        limit = 32768 if width == 64 else 4096
        assert np.array_equal(
            select(family, x, at, 0, max_binding=limit * 3) if width == 64 else select(family, x, at, 0, max_binding=8192), x[at]
        )
        with pytest.raises(IndexOutOfRangeError, match=r"index 1000 .* size 1000"):
            select(family, x[:, :4].copy(), np.array([1000]), 0, max_binding=8192)
    values, at = numbers(40, 64), indices(1000, 40)
    assert np.allclose(segments(family, values, at, 1000, max_binding=40000), summed(values, at, 1000), atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_to_do(family: str) -> None:
    none = np.zeros(0, np.int64)
    assert select(family, numbers(4, 3), none, 0).shape == (0, 3)
    assert np.array_equal(segments(family, numbers(0, 3), none, 4), np.zeros((4, 3)))
    assert segments(family, numbers(2, 0), np.array([0, 1]), 4).shape == (4, 0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "case", [(1, 4, 3), (5, 7, 100), (16, 64, 50), (17, 3, 2), (300, 12, 9), (1000, 64, 5000), (6000, 8, 1 << 20), (9000, 5, 40)], ids=str
)
def test_segment_sum(case: tuple[int, int, int], family: str) -> None:
    count, columns, size = case
    values, at = numbers(count, columns), indices(size, count)
    want = summed(values, at, size)
    for of in (np.int64, np.uint32):
        assert np.allclose(segments(family, values, at.astype(of), size), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_segment_sum_of_few_or_one_index(family: str) -> None:
    for count in (1, 15, 16, 17, 31, 32, 33, 100, 257, 5000):
        values = numbers(count, 4)
        for at in (np.full(count, 2), np.arange(count) // 16 % 3, np.sort(indices(3, count)), np.arange(count) % 2):
            got = segments(family, values, at, 3)
            assert np.allclose(got, summed(values, at, 3), rtol=1e-5, atol=1e-4), count


@pytest.mark.parametrize("family", FAMILIES)
def test_segment_sum_ignores_and_wraps(family: str) -> None:
    values, at = numbers(500, 8), indices(10, 500)
    want = summed(values, at, 10)
    want[3] = 0
    assert np.allclose(segments(family, values, at, 10, ignore=3), want, atol=1e-4)
    assert np.allclose(segments(family, values, np.where(at == 3, -100, at), 10, ignore=-100), want, atol=1e-4)
    assert np.allclose(segments(family, values, at - 10, 10, wrap=True), summed(values, at, 10), atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [D.float16, D.int32, D.uint32], ids=lambda d: d.name)
def test_segment_sum_dtypes(dtype: DType, family: str) -> None:
    values = np.random.default_rng(0).integers(0, 9, (200, 12)).astype(dtype.numpy)
    at = indices(20, 200)
    assert np.array_equal(segments(family, values, at, 20), summed(values, at, 20))


def test_segment_sum_repeats_bit_for_bit() -> None:
    values, at = numbers(3000, 16), indices(7, 3000)
    first, second = (segments("gpu", values, at, 7) for _ in range(2))
    assert np.array_equal(first, second)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("ranked", [True, False])
@pytest.mark.parametrize("count", [1, 3, 64, 65, 1000, 70000])
def test_sort_is_stable(count: int, ranked: bool, family: str) -> None:
    if ranked and count > 2000:
        return
    used = profile(family)
    for bits in (3, 4, 17, 32):
        keys = np.random.default_rng(0).integers(0, 2**bits, count, dtype=np.uint32)
        plan = replace(sort.plan(count, bits, used), ranked=ranked)
        padded = np.full(-(-count // 4) * 4, 0xFFFFFFFF, np.uint32)
        padded[:count] = keys
        launches, got, positions = sort.launches(plan, 0, (TEMP(0), 1, 2, TEMP(1)), used)
        size = max(plan.temps())
        buffers = [upload(padded, D.uint32), *(upload(np.zeros(size // 4), D.uint32) for _ in range(2))]
        other = upload(np.zeros(size // 4), D.uint32)
        launches = [replace(x, bindings=tuple(3 if b == TEMP(0) else b for b in x.bindings)) for x in launches]
        launches = [replace(x, bindings=tuple(TEMP(0) if b == TEMP(1) else b for b in x.bindings)) for x in launches]
        run(Lowered(tuple(launches), (size,)), [*buffers, other])
        order = np.argsort(keys, kind="stable")
        at = {0: buffers[0], 1: buffers[1], 2: buffers[2], TEMP(0): other}
        assert np.array_equal(download(at[positions], D.uint32, count), order), bits
        assert np.array_equal(download(at[got], D.uint32, count), keys[order]), bits


COMBINED = {
    "sum": lambda a, b: a + b,
    "prod": lambda a, b: a * b,
    "max": np.maximum,
    "min": np.minimum,
    "last": lambda a, b: b,
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("combine", COMBINED)
@pytest.mark.parametrize("columns", [3, 8])
def test_combined_with_a_base(columns: int, combine: str, family: str) -> None:
    """Every way to combine, by the definition: in order, from the base or from the first value. NaN wins max and min."""
    for dtype, include, count in ((D.float32, True, 700), (D.float32, False, 700), (D.int32, True, 90), (D.bool_, False, 40)):
        size = 6 if count > 100 else 11
        values, at = np.random.default_rng(1).uniform(0.9, 1.1, (count, columns)), indices(size, count)
        if dtype is not D.float32:
            values = np.random.default_rng(2).integers(0 if dtype is D.bool_ else -1, 2, (count, columns))
        elif combine in ("max", "min"):
            values[5, 0] = np.nan
        values = values.astype(dtype.numpy)
        base = np.ones((size, columns)).astype(dtype.numpy) * dtype.numpy.type(1)
        want: dict[int, np.ndarray] = {k: base[k].astype(np.float64) for k in range(size)} if include else {}
        for k, row in zip(at, values.astype(np.float64), strict=True):
            want[k] = COMBINED[combine](want[k], row) if k in want else row
        layout = Layout(dtype, (size, columns))
        call = make_call(
            Kernel("segment_sum"),
            {"base": layout, "input": Layout(dtype, values.shape), "index": Layout(D.int64, at.shape)},
            (layout,),
            attrs={"size": size, "combine": combine, "include": include},
        )
        target = upload(np.full(base.size, 0), dtype)
        run(index.lower(call, profile(family)), [upload(base, dtype), upload(values, dtype), upload(at, D.int64), target])
        got = download(target, dtype, base.size).reshape(base.shape)
        expected = np.stack([want.get(k, base[k].astype(np.float64)) for k in range(size)]).astype(dtype.numpy)
        np.testing.assert_allclose(got, expected, rtol=1e-4, err_msg=f"{combine} {dtype} {include}")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [D.float32, D.float16, D.int32], ids=lambda d: d.name)
@pytest.mark.parametrize("columns", [1, 2, 4, 32])
def test_many_tokens_of_few_columns(columns: int, dtype: DType, family: str) -> None:
    """Runs inside and across the blocks of a workgroup; single words are sorted along with their indices, which change their order."""
    rng = np.random.default_rng(3)
    for size, count in ((1, 9001), (3, 6000), (700, 9001), (30000, 5000)):
        at, values = indices(size, count), rng.integers(-3, 4, (count, columns)).astype(dtype.numpy)
        base = rng.integers(-5, 6, (size, columns)).astype(dtype.numpy)
        layouts = {"base": Layout(dtype, base.shape), "input": Layout(dtype, values.shape), "index": Layout(D.int64, at.shape)}
        for combine, include in (("sum", True), ("max", True), ("last", False)):
            attrs = {"size": size, "combine": combine, "include": include}
            call = make_call(Kernel("segment_sum"), layouts, (layouts["base"],), attrs=attrs)
            target = upload(np.full(base.size, 0), dtype)
            run(index.lower(call, profile(family)), [upload(base, dtype), upload(values, dtype), upload(at, D.int64), target])
            want = base.astype(np.float64)
            if combine == "last":
                want[at] = values
            else:
                {"sum": np.add, "max": np.maximum}[combine].at(want, at, values)
            got = download(target, dtype, base.size).reshape(base.shape)
            np.testing.assert_array_equal(got, want.astype(dtype.numpy), err_msg=f"{combine} {size}")
