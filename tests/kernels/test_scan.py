"""Scans of every kind, layout and length against numpy, in both families, with and without subgroups; NaN, infinities, ties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meganeura import dtype as D
from meganeura.dtype import DType
from meganeura.kernels import scan
from meganeura.ops.archetype import Scan
from meganeura.storage import Layout

from .run_call import FAMILIES, download, make_call, profile, run, strided, upload

KINDS = ("sum", "prod", "max", "min", "logsumexp")


def apply(
    family: str, kind: str, base: np.ndarray, dim: int, layout: Layout, out: DType | None = None, reverse: bool = False, **changes: Any
) -> list[np.ndarray]:
    """The outputs of a scan over a layout of a flat array."""
    outs = [Layout(out or layout.dtype, layout.shape)]
    if kind in ("max", "min"):
        outs.append(Layout(D.int64, layout.shape))
    attrs = {"dim": dim, "reverse": reverse}
    call = make_call(Scan(kind), {"input": layout}, outs, compute=(outs[0].dtype,), attrs=attrs)
    targets = [upload(np.full(o.numel, 77), o.dtype) for o in outs]
    run(scan.lower(call, profile(family, **changes)), [upload(base, layout.dtype), *targets])
    return [download(t, o.dtype, o.numel).reshape(o.shape) for t, o in zip(targets, outs, strict=True)]


def latest(x: np.ndarray, axis: int, sign: int) -> tuple[np.ndarray, np.ndarray]:
    """PyTorch's cummax (sign 1) or cummin (-1): the last of equals, NaN beats all."""
    x = np.moveaxis(x, axis, 0)
    values, places = x.copy(), np.zeros(x.shape, np.int64)
    for i in range(1, x.shape[0]):
        with np.errstate(invalid="ignore"):
            take = np.isnan(x[i]) | (~np.isnan(values[i - 1]) & (x[i] >= values[i - 1] if sign > 0 else x[i] <= values[i - 1]))
        values[i] = np.where(take, x[i], values[i - 1])
        places[i] = np.where(take, i, places[i - 1])
    return np.moveaxis(values, 0, axis), np.moveaxis(places, 0, axis)


def wanted(kind: str, x: np.ndarray, axis: int) -> list[np.ndarray]:
    wide = x.astype(np.float64 if x.dtype.kind == "f" else np.int64)
    if kind in ("max", "min"):
        return list(latest(x, axis, 1 if kind == "max" else -1))
    with np.errstate(all="ignore"):
        fn: Any = {"sum": np.add, "prod": np.multiply, "logsumexp": np.logaddexp}[kind]
        return [fn.accumulate(wide, axis=axis)]


def compare(kind: str, got: list[np.ndarray], want: list[np.ndarray], what: Any = "") -> None:
    if kind in ("max", "min"):
        assert np.array_equal(got[0], want[0], equal_nan=True), what
        assert np.array_equal(got[1], want[1]), what
        return
    scale = np.max(np.abs(want[0][np.isfinite(want[0])]), initial=1.0)
    rtol = 1e-4 if kind == "prod" else 1e-5  # every factor rounds
    np.testing.assert_allclose(got[0], want[0], rtol=rtol, atol=rtol / 5 * scale, err_msg=str(what))


def numbers(kind: str, *shape: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    if kind == "prod":
        return rng.choice([-1.01, 0.99, 1.0], shape).astype(np.float32)
    if kind in ("max", "min"):
        return (np.round(rng.normal(size=shape) * 4) / 4).astype(np.float32)
    return rng.normal(size=shape).astype(np.float32)


SHAPES = [(1,), (5,), (64,), (1000,), (8, 12), (7, 5), (3, 4, 5), (2, 33, 8), (70, 3), (3, 4100), (130, 128), (2, 1, 3)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_shapes_and_dimensions(kind: str, family: str) -> None:
    for shape in SHAPES:
        x = numbers(kind, *shape)
        for dim in range(len(shape)):
            compare(kind, apply(family, kind, x, dim, Layout(D.float32, shape)), wanted(kind, x, dim), (shape, dim))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(40000,), (40001,), (1 << 17,), (5000, 3), (9000, 8), (2, 20002)], ids=str)
def test_long_rows_in_parts(shape: tuple[int, ...], kind: str, family: str) -> None:
    x = numbers(kind, *shape)
    dim = int(np.argmax(shape))
    compare(kind, apply(family, kind, x, dim, Layout(D.float32, shape)), wanted(kind, x, dim))


@pytest.mark.parametrize("kind", KINDS)
def test_without_subgroups(kind: str) -> None:
    for shape in ((300,), (20001,), (4, 64)):
        x = numbers(kind, *shape)
        for size in (32, 256):
            got = apply("gpu", kind, x, len(shape) - 1, Layout(D.float32, shape), subgroups=False, max_workgroup_size=size)
            compare(kind, got, wanted(kind, x, len(shape) - 1))
    got = apply("cpu", kind, x, 1, Layout(D.float32, shape), subgroups=False)
    compare(kind, got, wanted(kind, x, 1))


LAYOUTS = {
    "transposed": Layout(D.float32, (12, 40), (1, 12), 4),
    "every second": Layout(D.float32, (12, 40), (160, 2), 3),
    "offset": Layout(D.float32, (12, 40), (40, 1), 1),
    "padded": Layout(D.float32, (12, 40), (48, 1), 8),
    "repeated": Layout(D.float32, (12, 40), (0, 1)),
    "one column": Layout(D.float32, (12, 40), (1, 0)),
    "backwards": Layout(D.float32, (12, 40), (-40, -1), 479),
    "four dimensions": Layout(D.float32, (4, 6, 3, 8), (8, 640, 64, 1)),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str, family: str) -> None:
    layout = LAYOUTS[name]
    base = numbers("max", layout.span()[1] + 1)
    x = strided(base, layout)
    for kind in ("sum", "max"):
        for dim in range(x.ndim):
            compare(kind, apply(family, kind, base, dim, layout), wanted(kind, x, dim), dim)


@pytest.mark.parametrize("family", FAMILIES)
def test_reversed(family: str) -> None:
    for shape in ((5,), (64,), (40000,), (40001,), (6, 8), (7, 5), (4, 2000), (9000, 8)):
        x = numbers("sum", *shape)
        for dim in range(len(shape)):
            got = apply(family, "sum", x, dim, Layout(D.float32, shape), reverse=True)
            compare("sum", got, [np.flip(np.cumsum(np.flip(x, dim), dim, dtype=np.float64), dim)], (shape, dim))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", D.ALL, ids=lambda d: d.name)
def test_dtypes(dtype: DType, family: str) -> None:
    x = np.random.default_rng(0).integers(0, 2 if dtype.kind == "b" else 6, (3, 50)).astype(dtype.numpy)
    if dtype.kind == "i":
        x -= 3
    for kind in ("max", "min"):
        got = apply(family, kind, x, 1, Layout(dtype, x.shape))
        compare(kind, got, [v.astype(dtype.numpy) if i == 0 else v for i, v in enumerate(wanted(kind, x.astype(np.float32), 1))])
    out = dtype if dtype.kind == "f" else D.int64
    compare("sum", apply(family, "sum", x, 1, Layout(dtype, x.shape), out), wanted("sum", x, 1))
    if dtype.kind in "iu":
        assert np.array_equal(
            apply(family, "prod", x + 1, 1, Layout(dtype, x.shape), out)[0][:, :4], np.cumprod((x + 1)[:, :4], 1, np.int64)
        )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [12, 41, 3000])
def test_nan_and_infinities(n: int, kind: str, family: str) -> None:
    special = np.array([0.0, -0.0, 1.0, -np.inf, 1.0, np.inf, 2.0, np.nan, 3.0, np.inf, -np.inf, np.nan], np.float32)
    for start in range(12):
        x = np.resize(special, (2, n))
        x[:, : n // 3] = -np.inf if start % 2 else np.roll(x, start, 1)[:, : n // 3]
        x[1, : n - 12] = np.linspace(0, 1, n - 12)
        compare(kind, apply(family, kind, x, 1, Layout(D.float32, x.shape)), wanted(kind, x, 1), (n, start))


@pytest.mark.parametrize("family", FAMILIES)
def test_many_short_rows(family: str) -> None:
    x = numbers("sum", 70000, 7)
    compare("sum", apply(family, "sum", x, 1, Layout(D.float32, x.shape)), wanted("sum", x, 1))
    compare("max", apply(family, "max", x, 1, Layout(D.float32, x.shape)), wanted("max", x, 1))


@pytest.mark.parametrize("family", FAMILIES)
def test_sums_repeat_and_stay_accurate(family: str) -> None:
    x = np.full(1 << 20, 0.1, np.float32)
    first, second = (apply(family, "sum", x, 0, Layout(D.float32, x.shape))[0] for _ in range(2))
    assert np.array_equal(first, second)
    np.testing.assert_allclose(first, np.cumsum(x, dtype=np.float64), rtol=2e-5)
