"""Window kernels of both families against the rows' references: few and many results, several rows an invocation, parts of a binding."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from meganeura import dtype as D
from meganeura.dtype import DType
from meganeura.kernels import lower
from meganeura.ops import REGISTRY
from meganeura.ops.resize import tables
from meganeura.storage import Layout

from .run_call import FAMILIES, download, make_call, profile, run, strided, upload

WINDOWS: dict[str, tuple[tuple[int, ...], Any, tuple[int, ...]]] = {
    "rows": ((3, 7, 9, 8), ((3, 2, 1, 1), (2, 1, 0, 1)), (5, 7)),
    "many": ((9, 31, 33), ((3, 2, 1, 1), (3, 2, 1, 1)), (16, 17)),
    "volumes": ((5, 6, 7, 9), ((2, 2, 0, 1), (3, 1, 1, 1), (2, 3, 1, 1)), (3, 7, 4)),
    "lines": ((13, 401), ((5, 3, 2, 1),), (134,)),
    "parts": ((6, 17, 11), ((), ()), (5, 4)),
    "quads": ((6, 9, 16), ((3, 2, 1, 1), (3, 2, 1, 1)), (5, 8)),
    "pairs": ((6, 8, 16), ((2, 2, 0, 1), (2, 2, 0, 1)), (4, 8)),
    "dilated quads": ((7, 9, 20), ((2, 1, 0, 1), (3, 1, 2, 2)), (8, 20)),
    "steps of four": ((5, 8, 33), ((2, 2, 0, 1), (4, 4, 0, 1)), (4, 8)),
    "steps of three": ((9, 6, 24), ((2, 2, 0, 1), (3, 3, 1, 1)), (3, 8)),
    "quad lines": ((13, 400), ((4, 2, 1, 1),), (200,)),
    "equal parts": ((9, 6, 16), ((), ()), (3, 4)),
    "parts of vectors": ((9, 10, 24), ((), ()), (5, 3)),
    "vectors": ((7, 9, 32), ((3, 2, 1, 1), (8, 4, 0, 1)), (5, 7)),
    "parts of quads": ((9, 7, 10), ((), ()), (5, 4)),
}


def apply(name: str, family: str, ins: dict[str, tuple[np.ndarray, Layout]], outs: list[Layout], attrs: Any, **changes: Any) -> list[Any]:
    """The outputs of a row's kernel on layouts of flat arrays."""
    layouts = {n: x for n, (_, x) in ins.items()}
    compute = tuple(D.float32 if x.dtype.is_floating_point else x.dtype for x in layouts.values())
    call = make_call(REGISTRY[name].archetype, layouts, outs, attrs=attrs, compute=compute)
    targets = [upload(np.full(o.numel, 77), o.dtype) for o in outs]
    run(lower(call, profile(family, **changes)), [*(upload(a, x.dtype) for a, x in ins.values()), *targets])
    return [download(t, o.dtype, o.numel).reshape(o.shape) for t, o in zip(targets, outs, strict=True)]


def _laid_out(shape: tuple[int, ...], dtype: DType, how: str, seed: int) -> tuple[np.ndarray, Layout]:
    n = int(np.prod(shape))
    base = (np.random.default_rng(seed).permutation(2 * n + 8) / 64 - 3).astype(dtype.numpy)
    if how == "plain":
        return base, Layout(dtype, shape)
    if how == "stepped":
        return base, Layout(dtype, shape, tuple(2 * s for s in Layout(dtype, shape).strides), 3)
    order = Layout(dtype, (shape[-1], *shape[:-1])).strides
    return base, Layout(dtype, shape, (*order[1:], order[0]), 1)


@pytest.mark.parametrize("how", ["plain", "stepped", "turned"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", WINDOWS)
def test_windows(case: str, family: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meganeura.kernels.pool.MANY", {"cpu": 500, "gpu": 500})
    shape, windows, size = WINDOWS[case]
    for dtype in (D.float32, D.float16):
        lead = shape[: len(shape) - len(size)]
        base, layout = _laid_out(shape, dtype, how, 1)
        x = strided(base, layout).astype(np.float64)
        attrs = {"windows": windows, "size": size}
        small, inner = (*lead, *size), shape[len(lead) :]
        outs = [Layout(dtype, small), Layout(D.int64, small)]
        values, places = apply("max_windows", family, {"input": (base, layout)}, outs, attrs)
        want, where = REGISTRY["max_windows"].ref(x, windows, size)  # type: ignore[misc]
        np.testing.assert_array_equal(values, want)
        np.testing.assert_array_equal(places, where)
        gbase, glayout = _laid_out(small, dtype, how, 2)
        g = strided(gbase, glayout).astype(np.float64)
        index = (where.reshape(-1), Layout(D.int64, small))
        (got,) = apply(
            "max_windows_grad", family, {"grad": (gbase, glayout), "places": index}, [Layout(dtype, shape)], {**attrs, "size": inner}
        )
        close(got, REGISTRY["max_windows_grad"].ref(g, where, windows, inner), dtype)  # type: ignore[misc]
        if any(w[3] > 1 for w in windows if w):
            continue  # no mean has dilation
        for count in ("all", "inside", "") if windows[0] else ("inside",):
            (got,) = apply("mean_windows", family, {"input": (base, layout)}, outs[:1], {**attrs, "count": count})
            close(got, REGISTRY["mean_windows"].ref(x, windows, size, count), dtype)  # type: ignore[misc]
            more = {"windows": windows, "size": inner, "count": count}
            (got,) = apply("mean_windows_grad", family, {"grad": (gbase, glayout)}, [Layout(dtype, shape)], more)
            close(got, REGISTRY["mean_windows_grad"].ref(g, windows, inner, count), dtype)  # type: ignore[misc]


def close(got: Any, want: Any, dtype: DType) -> None:
    tolerance = 2e-3 if dtype is D.float16 else 1e-5
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * float(np.abs(want).max()))


@pytest.mark.parametrize("family", FAMILIES)
def test_resample(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meganeura.kernels.pool.MANY", {"cpu": 500, "gpu": 500})
    narrow: tuple[Any, ...] = ("linear", 9, 23, None, False), ("cubic", 14, 6, None, False)
    wide: tuple[Any, ...] = ("cubic", 9, 8, None, False), ("linear", 12, 28, None, True)
    scaled: tuple[Any, ...] = ("nearest", 5, 9, None, False), ("cubic", 16, 40, 2.5, False)
    copied: tuple[Any, ...] = ("nearest-exact", 5, 9, None, False), ("nearest", 8, 16, 2.0, False)
    plans = (narrow, wide, scaled, copied, (("linear", 7, 7, None, False), ("nearest", 8, 16, 2.0, False)))
    for plan, back in itertools.product(plans, (False, True)):
        first, weight, size, taps = tables(plan, back)
        sizes = tuple(a[2] if back else a[1] for a in plan)
        for lead in ((1,), (7, 2), (3, 5)):
            base, layout = _laid_out((*lead, *sizes), D.float32, "turned" if lead[0] == 7 else "plain", 3)
            ins = {
                "input": (base, layout),
                "first": (first, Layout(D.int64, first.shape)),
                "weight": (weight, Layout(D.float32, weight.shape)),
            }
            (got,) = apply(
                "resample", family, ins, [Layout(D.float32, (*lead, *size))], {"size": size, "taps": taps, "plan": plan, "back": back}
            )
            close(got, REGISTRY["resample"].ref(strided(base, layout).astype(np.float64), first, weight, size, taps, plan, back), D.float32)  # type: ignore[misc]


@pytest.mark.parametrize("family", FAMILIES)
def test_parts_of_what_exceeds_a_binding(family: str) -> None:
    shape, windows, size = (7, 5, 64, 33), ((3, 2, 1, 1), (2, 2, 0, 1)), (32, 16)
    base, layout = _laid_out(shape, D.float32, "plain", 4)
    outs = [Layout(D.float32, (7, 5, *size)), Layout(D.int64, (7, 5, *size))]
    attrs = {"windows": windows, "size": size}
    values, places = apply("max_windows", family, {"input": (base, layout)}, outs, attrs, max_binding=1 << 16)
    want, where = REGISTRY["max_windows"].ref(strided(base, layout), windows, size)  # type: ignore[misc]
    np.testing.assert_array_equal(values, want)
    np.testing.assert_array_equal(places, where)
