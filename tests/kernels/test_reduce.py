"""Reductions against numpy in float64: kinds, dtypes, layouts, sizes, NaN, accuracy; both kernel families."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meganeura import dtype as D
from meganeura.dtype import DType
from meganeura.kernels import reduce
from meganeura.kernels.kernel import Lowered
from meganeura.ops.archetype import Reduce
from meganeura.shape import contiguous_strides
from meganeura.storage import Layout

from .run_call import FAMILIES, download, make_call, profile, run, strided, upload

RNG = np.random.default_rng(0)
OUT = {"argmax": D.int64, "argmin": D.int64, "any": D.bool_, "all": D.bool_}
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((1000,), (0,)),
    ((1,), (0,)),
    ((3, 1, 2), (1,)),
    ((7, 33), (1,)),
    ((7, 33), (0,)),
    ((17, 5), (0, 1)),
    ((64, 1024), (1,)),
    ((64, 1024), (0,)),
    ((500, 64), (0,)),
    ((5000, 8), (0,)),
    ((8, 6, 7, 9), (0, 2, 3)),
    ((8, 6, 16, 32), (0, 2, 3)),
    ((3, 4, 5, 6), (1, 3)),
    ((2, 3, 2, 3, 2, 3, 2, 3), (1, 3, 4, 7)),
    ((2, 70001), (1,)),
    ((70000, 2), (0,)),
    ((70000, 3), (1,)),
    ((6, 6, 6), ()),
]


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """Every test draws the same numbers, whichever tests ran before."""
    global RNG
    RNG = np.random.default_rng(0)


def lowered(family: str, arch: Reduce, layout: Layout, dims: tuple[int, ...], out: DType, **fields: Any) -> Lowered:
    kept = tuple(n for d, n in enumerate(layout.shape) if d not in dims)
    call = make_call(arch, {"input": layout}, (Layout(out, kept),), attrs={"dim": dims, "keepdim": False}, **fields)
    return reduce.lower(call, profile(family))


def apply(
    family: str,
    arch: Reduce,
    base: np.ndarray,
    layout: Layout,
    dims: tuple[int, ...],
    out: DType,
    values: tuple[float, ...] = (),
    **fields: Any,
) -> np.ndarray:
    """The result of reducing a layout of a flat array."""
    kept = tuple(n for d, n in enumerate(layout.shape) if d not in dims)
    count = int(np.prod(kept))
    target = upload(np.full(max(count, 1), 77), out)
    run(lowered(family, arch, layout, dims, out, **fields), [upload(base, layout.dtype), target], values)
    return download(target, out, count).reshape(kept)


def expected(kind: str, x: np.ndarray, dims: tuple[int, ...]) -> np.ndarray:
    if kind == "moments":
        return np.asarray(np.var(x, axis=dims))
    if kind in ("argmax", "argmin"):
        kept = [d for d in range(x.ndim) if d not in dims]
        rows = x.transpose([*kept, *dims]).reshape(*(x.shape[d] for d in kept), -1)
        return np.asarray(getattr(np, kind)(rows, axis=-1))
    return np.asarray(getattr(np, kind)(x, axis=dims))


def layouts(shape: tuple[int, ...]) -> dict[str, Layout]:
    strides = contiguous_strides(shape)
    return {
        "contiguous": Layout(D.float32, shape),
        "transposed": Layout(D.float32, shape, tuple(reversed(contiguous_strides(shape[::-1]))), 4),
        "every second": Layout(D.float32, shape, tuple(2 * s for s in strides), 3),
        "repeated": Layout(D.float32, shape, (0, *strides[1:]), 8),
    }


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("shape", "dims"), SHAPES, ids=str)
def test_layouts(shape: tuple[int, ...], dims: tuple[int, ...], family: str) -> None:
    base = RNG.normal(size=2 * int(np.prod(shape)) + 8).astype(np.float32)
    kinds = ("sum", "max", "argmin", "moments") if dims else ("sum", "argmin")
    for name, layout in layouts(shape).items():
        x = strided(base, layout).astype(np.float64)
        for kind in kinds:
            post = "{m2} / {n}" if kind == "moments" else "{acc}"
            got = apply(family, Reduce(kind, post=post), base, layout, dims, OUT.get(kind, D.float32))
            want = expected(kind, x, dims)
            scale = np.abs(x).sum(axis=dims).max() if kind == "sum" else np.abs(want).max()
            error = np.abs(got - want).max()
            assert error <= (1e-5 if kind == "moments" else 1e-6) * max(scale, 1e-6), (kind, name)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [D.int32, D.uint32, D.float16, D.bfloat16, D.bool_, D.uint8, D.int8], ids=lambda d: d.name)
def test_dtypes(dtype: DType, family: str) -> None:
    shape = (9, 132)
    low, high = (0, 2) if dtype.kind == "b" else (0, 9) if dtype.kind == "u" else (-9, 9)
    x = RNG.integers(low, high, shape).astype(dtype.numpy)
    layout = Layout(dtype, shape)
    total = dtype if dtype.kind == "f" else D.int64
    for dims in ((0,), (1,), (0, 1)):
        got = apply(family, Reduce("sum"), x, layout, dims, total, compute=(total,))
        want = x.astype(np.int64).sum(axis=dims)
        assert np.allclose(got, want, rtol=2.0**-8 if dtype.kind == "f" else 0, atol=0), dims
        for kind in ("max", "min", "argmax", "argmin"):
            got = apply(family, Reduce(kind), x, layout, dims, OUT.get(kind, dtype))
            assert np.array_equal(got, expected(kind, x, dims)), (kind, dims)
        for kind in ("any", "all"):
            got = apply(family, Reduce(kind), x, layout, dims, D.bool_, compute=(D.bool_,))
            assert np.array_equal(got, expected(kind, x != 0, dims)), (kind, dims)
    if dtype.kind != "b":
        got = apply(family, Reduce("prod"), x % 2 + 1, layout, (0,), total, compute=(total,))
        assert np.array_equal(got, (x % 2 + 1).astype(np.int64).prod(axis=0))


@pytest.mark.parametrize("family", FAMILIES)
def test_nan_and_ties(family: str) -> None:
    nan, inf = np.nan, np.inf
    x = np.array([[1, nan, 3, nan], [-inf, -inf, -inf, -inf], [inf, 1, inf, 2], [0.0, -0.0, 0.0, -1.0], [-0.0, 0.0, -0.0, 0.0]], np.float32)
    wide = np.tile(x, (1, 64))
    for values in (x, wide, np.ascontiguousarray(x.T), np.ascontiguousarray(wide.T)):
        dims = (1,) if values.shape[0] == 5 else (0,)
        for kind in ("max", "min", "argmax", "argmin"):
            got = apply(family, Reduce(kind), values, Layout(D.float32, values.shape), dims, OUT.get(kind, D.float32))
            assert np.array_equal(got, expected(kind, values, dims), equal_nan=True), kind
        got = apply(family, Reduce("any"), values, Layout(D.float32, values.shape), dims, D.bool_, compute=(D.bool_,))
        assert got.tolist() == [True, True, True, True, False]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("n", [8, 1000, 70000])
def test_moments_keep_nan(n: int, family: str) -> None:
    x = RNG.normal(size=(4, n)).astype(np.float32)
    x[0, 3], x[1, 3], x[2, 3] = np.nan, np.inf, -np.inf
    for values, dim in ((x, 1), (np.ascontiguousarray(x.T), 0)):
        got = apply(family, Reduce("moments", post="{m2} / {n}"), values, Layout(D.float32, values.shape), (dim,), D.float32)
        assert np.isnan(got[:3]).all()
        assert np.allclose(got[3], x[3].astype(np.float64).var(), rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_integer_extremes_are_values_too(family: str) -> None:
    lowest = np.full((2, 40), -(2**31), np.int32)
    for kind, x in (("argmax", lowest), ("argmin", ~lowest), ("max", lowest), ("min", ~lowest)):
        got = apply(family, Reduce(kind), x, Layout(D.int32, x.shape), (1,), OUT.get(kind, D.int32))
        assert np.array_equal(got, expected(kind, x, (1,))), kind


@pytest.mark.parametrize("family", FAMILIES)
def test_no_elements(family: str) -> None:
    for kind, want in (("sum", 0), ("prod", 1), ("any", False), ("all", True)):
        got = apply(family, Reduce(kind), np.zeros(0, np.float32), Layout(D.float32, (3, 0, 2)), (1,), OUT.get(kind, D.float32))
        assert np.array_equal(got, np.full((3, 2), want)), kind
    assert lowered(family, Reduce("sum"), Layout(D.float32, (0, 5)), (1,), D.float32).launches == ()


@pytest.mark.parametrize("family", FAMILIES)
def test_expressions_and_scalars(family: str) -> None:
    x = RNG.normal(size=(40, 36)).astype(np.float32)
    layout = Layout(D.float32, x.shape)
    arch = Reduce("sum", pre="{input} * {input}", post="sqrt({acc} / {n})")
    want = np.sqrt((x.astype(np.float64) ** 2).mean(axis=1))
    assert np.allclose(apply(family, arch, x, layout, (1,), D.float32), want, rtol=1e-6)
    arch = Reduce("moments", post="{m2} / ({n} - {correction})")
    got = apply(family, arch, x, layout, (0,), D.float32, (1.0,), scalars=(("correction", "f32"),))
    assert np.allclose(got, x.astype(np.float64).var(axis=0, ddof=1), rtol=1e-5)
    arch = Reduce("sum", pre="{input} > 0.5")
    got = apply(family, arch, x, layout, (0, 1), D.int64)
    assert got == (x > 0.5).sum()


@pytest.mark.parametrize("family", FAMILIES)
def test_two_inputs_broadcast(family: str) -> None:
    a, b = RNG.normal(size=(30, 64)).astype(np.float32), RNG.normal(size=64).astype(np.float32)
    for dims in ((0,), (1,), (0, 1)):
        kept = tuple(n for d, n in enumerate(a.shape) if d not in dims)
        out = Layout(D.float32, kept)
        inputs = {"input": Layout(D.float32, a.shape), "other": Layout(D.float32, b.shape)}
        call = make_call(Reduce("sum", pre="{input} * {other}"), inputs, (out,), attrs={"dim": dims, "keepdim": False})
        target = upload(np.zeros(max(out.numel, 1)), D.float32)
        run(reduce.lower(call, profile(family)), [upload(a, D.float32), upload(b, D.float32), target])
        want = (a.astype(np.float64) * b).sum(axis=dims)
        assert np.allclose(download(target, D.float32, out.numel).reshape(kept), want, rtol=1e-5, atol=1e-5), dims


@pytest.mark.parametrize("family", FAMILIES)
def test_accuracy_of_long_sums(family: str) -> None:
    n = 1 << 24
    x = np.full(n, 0.1, np.float32)
    exact = float(np.float64(np.float32(0.1)) * n)
    got = apply(family, Reduce("sum"), x, Layout(D.float32, (n,)), (0,), D.float32)
    assert abs(got - exact) <= 5e-7 * exact
    got = apply(family, Reduce("sum"), x, Layout(D.float32, (n // 8, 8)), (0,), D.float32)
    assert np.abs(got - exact / 8).max() <= 5e-7 * exact / 8


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shape", [(6, 4000), (4000, 8), (2, 100000), (3, 30)], ids=str)
def test_moments_of_a_large_mean(shape: tuple[int, int], family: str) -> None:
    x = (RNG.normal(size=shape) + 1e4).astype(np.float32)
    dim = int(shape[0] < shape[1])
    got = apply(family, Reduce("moments", post="{m2} / {n}"), x, Layout(D.float32, shape), (dim,), D.float32)
    assert np.allclose(got, x.astype(np.float64).var(axis=dim), rtol=2e-5)
    got = apply(family, Reduce("moments", post="{mean}"), x, Layout(D.float32, shape), (dim,), D.float32)
    assert np.allclose(got, x.astype(np.float64).mean(axis=dim), rtol=1e-7)


def test_results_repeat_bit_for_bit() -> None:
    x = RNG.normal(size=(3, 50000)).astype(np.float32)
    layout = Layout(D.float32, x.shape)
    for dims in ((0,), (1,), (0, 1)):
        first, second = (apply("gpu", Reduce("sum"), x, layout, dims, D.float32) for _ in range(2))
        assert np.array_equal(first, second)


def test_without_subgroups() -> None:
    x = RNG.normal(size=(5, 3000)).astype(np.float32)
    call = make_call(Reduce("sum"), {"input": Layout(D.float32, x.shape)}, (Layout(D.float32, (5,)),), attrs={"dim": (1,)})
    for family in FAMILIES:
        target = upload(np.zeros(5), D.float32)
        run(reduce.lower(call, profile(family, subgroups=False)), [upload(x, D.float32), target])
        assert np.allclose(download(target, D.float32, 5), x.astype(np.float64).sum(axis=1), atol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "shape_dims",
    [((9000,), (0,)), ((3, 9000), (1,)), ((5000, 2), (0,)), ((700, 40), (1,)), ((5, 9, 700), (0, 2)), ((300, 100), (0, 1))],
    ids=str,
)
def test_inputs_larger_than_a_binding(shape_dims: tuple[tuple[int, ...], tuple[int, ...]], family: str) -> None:
    shape, dims = shape_dims
    x = RNG.normal(size=shape).astype(np.float32) + 3
    kept = tuple(n for d, n in enumerate(shape) if d not in dims)
    for kind in ("sum", "argmax", "moments"):
        out = Layout(OUT.get(kind, D.float32), kept)
        arch = Reduce(kind, post="{m2} / {n}" if kind == "moments" else "{acc}")
        call = make_call(arch, {"input": Layout(D.float32, shape)}, (out,), attrs={"dim": dims, "keepdim": False})
        small = reduce.lower(call, profile(family, max_binding=16384))
        assert all(size <= 16384 for launch in small.launches for _, size in launch.ranges or ())
        target = upload(np.full(max(out.numel, 1), 77), out.dtype)
        run(small, [upload(x, D.float32), target])
        want = expected(kind, x.astype(np.float64), dims)
        assert np.allclose(download(target, out.dtype, out.numel).reshape(kept), want, rtol=1e-5), kind
