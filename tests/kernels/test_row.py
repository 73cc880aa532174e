"""Row kernels against float64: softmax, norms, cross-entropy and their gradients; layouts, lengths, NaN; both families."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from meganeura import dtype as D
from meganeura.dtype import DType
from meganeura.errors import IndexOutOfRangeError
from meganeura.kernels import row
from meganeura.kernels.kernel import Call
from meganeura.ops.archetype import Row, Stage
from meganeura.shape import contiguous_strides
from meganeura.storage import Layout

from .run_call import FAMILIES, device, download, make_call, profile, run, strided, upload

SOFTMAX = Row(("input",), stages=(Stage("s", "softmax", "{input}"),), element=("exp({input} - {s_max}) / {s_sum}",))
SOFTMAX_GRAD = Row(("grad", "result"), stages=(Stage("d", "sum", "{grad} * {result}"),), element=("({grad} - {d}) * {result}",))
LAYER_NORM = Row(
    ("input",),
    ("weight", "bias"),
    (Stage("m", "moments", "{input}"),),
    ("({input} - {m_mean}) * inverseSqrt({m_var} + {eps}) * {weight} + {bias}",),
    ("{m_mean}", "inverseSqrt({m_var} + {eps})"),
    {"weight": "1.0", "bias": "0.0"},
)
LAYER_NORM_GRAD = Row(
    ("grad", "input"),
    ("weight",),
    (
        Stage("a", "sum", "{grad} * {weight}"),
        Stage("b", "sum", "{grad} * {weight} * ({input} - {mean}) * {rstd}"),
    ),
    ("({grad} * {weight} - {a} / {n} - ({input} - {mean}) * {rstd} * ({b} / {n})) * {rstd}",),
    (),
    {"weight": "1.0"},
)
CROSS_ENTROPY = Row(
    ("input",),
    stages=(Stage("s", "softmax", "{input}"), Stage("t", "pick", "{input} - {s_max} - log({s_sum})", index="target")),
    per_row=("-{t}", "{s_max} + log({s_sum})"),
)
CROSS_ENTROPY_GRAD = Row(
    ("input",),
    element=("select((exp({input} - {lse}) - select(0.0, 1.0, i32({column}) == {target})) * {grad}, 0.0, {target} == {ignore_index})",),
)
# (rows, n): one element, fewer than lanes, ragged, whole turns, registers of 1 to 16 vec4s, longer than registers
SIZES = [
    (1, 1),
    (3, 5),
    (128, 10),
    (9, 33),
    (64, 64),
    (300, 64),
    (2, 256),
    (64, 1024),
    (7, 999),
    (5, 3000),
    (3, 4096),
    (2, 5000),
    (3, 8192),
    (2, 9001),
    (2, 66000),
]

EPS = (("eps", "f32"),)
IGNORE = (("ignore_index", "i32"),)


def call_of(arch: Row, inputs: Mapping[str, Layout | None], dims: tuple[int, ...], out: DType = D.float32, **fields: Any) -> Call:
    shape = next(x for n, x in inputs.items() if x is not None and n in arch.full).shape
    kept = tuple(n for d, n in enumerate(shape) if d not in dims)
    outs = [Layout(out, shape)] * len(arch.element) + [Layout(D.float32, kept)] * len(arch.per_row)
    return make_call(arch, inputs, outs, attrs={"dim": dims, "absent": ()}, **fields)


def execute(family: str, call: Call, arrays: list[np.ndarray], values: tuple[float, ...] = ()) -> list[np.ndarray]:
    """The outputs of a call on flat arrays."""
    targets = [upload(np.full(max(o.numel, 1), 77), o.dtype) for o in call.outputs]
    ins = [upload(a, layout.dtype) for a, layout in zip(arrays, call.inputs, strict=True) if layout is not None]
    run(row.lower(call, profile(family)), [*ins, *targets], values)
    return [download(t, o.dtype, o.numel).reshape(o.shape) for t, o in zip(targets, call.outputs, strict=True)]


def apply(family: str, arch: Row, arrays: Mapping[str, np.ndarray], values: tuple[float, ...] = (), **fields: Any) -> list[np.ndarray]:
    """The outputs for contiguous arrays, rows along the last dimension."""
    inputs: dict[str, Layout | None] = {n: Layout(D.dtype(a.dtype), a.shape) for n, a in arrays.items()}
    dims = fields.pop("dims", None) or (arrays[arch.full[0]].ndim - 1,)
    return execute(family, call_of(arch, inputs, dims, **fields), list(arrays.values()), values)


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def softmax(x: np.ndarray, axis: int | tuple[int, ...] = -1) -> np.ndarray:
    x = x.astype(np.float64)
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(e / e.sum(axis=axis, keepdims=True))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_softmax_and_gradient(size: tuple[int, int], family: str) -> None:
    x, g = 3 * numbers(*size), numbers(*size, seed=1)
    (y,) = apply(family, SOFTMAX, {"input": x})
    want = softmax(x)
    assert np.allclose(y, want, rtol=5e-6, atol=0)
    (got,) = apply(family, SOFTMAX_GRAD, {"grad": g, "result": y})
    want = (g - (g * want).sum(axis=1, keepdims=True)) * want
    assert np.allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_layer_norm_and_gradient(size: tuple[int, int], family: str) -> None:
    rows, n = size
    x, w, b, g = numbers(rows, n) * 2 + 1, numbers(n, seed=1), numbers(n, seed=2), numbers(rows, n, seed=3)
    y, mean, rstd = apply(family, LAYER_NORM, {"input": x, "weight": w, "bias": b}, (1e-5,), scalars=EPS)
    exact = x.astype(np.float64)
    mu, r = exact.mean(axis=1, keepdims=True), 1 / np.sqrt(exact.var(axis=1, keepdims=True) + 1e-5)
    assert np.allclose(y, (exact - mu) * r * w + b, rtol=1e-5, atol=1e-5)
    assert np.allclose(mean, mu[:, 0], rtol=1e-6, atol=1e-6)
    assert np.allclose(rstd, r[:, 0], rtol=1e-5)
    arrays = {"grad": g, "input": x, "weight": w, "mean": mean, "rstd": rstd}
    (got,) = apply(family, LAYER_NORM_GRAD, arrays)
    gw, h = g * w, (exact - mu) * r
    want = (gw - gw.mean(axis=1, keepdims=True) - h * (gw * h).mean(axis=1, keepdims=True)) * r
    assert np.allclose(got, want, rtol=1e-4, atol=2e-5 * np.abs(r).max())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_cross_entropy_and_gradient(size: tuple[int, int], family: str) -> None:
    rows, n = size
    x, g = 3 * numbers(rows, n), numbers(rows, seed=1)
    t = np.random.default_rng(2).integers(0, n, rows)
    t[rows // 2] = -100
    loss, lse = apply(family, CROSS_ENTROPY, {"input": x, "target": t}, (-100,), scalars=IGNORE)
    exact = x.astype(np.float64)
    want = np.log(np.exp(exact).sum(axis=1))
    assert np.allclose(lse, want, rtol=1e-6, atol=1e-6)
    want = np.where(t < 0, 0, want - np.take_along_axis(exact, np.maximum(t, 0)[:, None], 1)[:, 0])
    assert np.allclose(loss, want, rtol=1e-5, atol=1e-5)
    (got,) = apply(family, CROSS_ENTROPY_GRAD, {"input": x, "lse": lse, "target": t, "grad": g}, (-100,), scalars=IGNORE)
    want = (softmax(x) - (np.arange(n) == t[:, None])) * g[:, None] * (t >= 0)[:, None]
    assert np.allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_target_out_of_range_is_reported(family: str) -> None:
    for n in (10, 300):
        for bad in (n, -1):
            arrays = {"input": numbers(40, n), "target": np.array([bad] * 40)}
            with pytest.raises(IndexOutOfRangeError, match=f"index {bad} .* size {n}"):
                apply(family, CROSS_ENTROPY, arrays, (-100,), scalars=IGNORE)
            device().synchronize()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("n", [4, 5, 64, 200, 2048, 70000])
def test_not_finite(n: int, family: str) -> None:
    x = numbers(6, n)
    x[0, 1], x[1, 2], x[2, :], x[3, 1:], x[4, 0] = np.nan, np.inf, -np.inf, -np.inf, -np.inf
    (y,) = apply(family, SOFTMAX, {"input": x})
    assert np.isnan(y[:3]).all()
    assert np.array_equal(y[3], [1.0] + [0.0] * (n - 1))
    assert np.allclose(y[4:], softmax(x[4:]), rtol=5e-6)
    largest = Row(("input",), stages=(Stage("m", "max", "{input}"),), per_row=("{m}",))
    (m,) = apply(family, largest, {"input": x})
    assert np.array_equal(m, x.max(axis=1), equal_nan=True)
    mean, var = apply(family, Row(("input",), stages=(Stage("m", "moments", "{input}"),), per_row=("{m_mean}", "{m_var}")), {"input": x})
    assert np.isnan(mean[0])
    assert np.isnan(var[:4]).all()
    assert np.allclose(var[5], x[5].astype(np.float64).var(), rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_large_mean(family: str) -> None:
    for rows, n in ((40, 12), (8, 1024), (4, 1001), (2, 70000)):
        x = numbers(rows, n) + np.float32(1e4)
        _, mean, rstd = apply(family, LAYER_NORM, {"input": x}, (1e-5,), scalars=EPS)
        assert np.allclose(mean, x.astype(np.float64).mean(axis=1), rtol=3e-7)
        assert np.allclose(rstd, 1 / np.sqrt(x.astype(np.float64).var(axis=1) + 1e-5), rtol=1e-5)


LAYOUTS = {
    "transposed": (Layout(D.float32, (48, 100), (1, 48), 4), (1,)),
    "columns": (Layout(D.float32, (48, 100)), (0,)),
    "every second": (Layout(D.float32, (48, 100), (400, 2), 3), (1,)),
    "offset": (Layout(D.float32, (48, 100), (100, 1), 1), (1,)),
    "padded rows": (Layout(D.float32, (48, 100), (112, 1), 8), (1,)),
    "repeated row": (Layout(D.float32, (48, 100), (0, 1)), (1,)),
    "backwards": (Layout(D.float32, (48, 100), (-100, -1), 4799), (1,)),
    "channels": (Layout(D.float32, (3, 20, 9, 8)), (1,)),
    "two dimensions": (Layout(D.float32, (3, 20, 9, 8)), (1, 2)),
    "torn row": (Layout(D.float32, (6, 20, 8), (200, 10, 1)), (1, 2)),
    "inner rows": (Layout(D.float32, (4, 6, 20, 8), (8, 640, 32, 1)), (2, 3)),
    "many rows": (Layout(D.float32, (70000, 4)), (1,)),
    "everything": (Layout(D.float32, (6, 20)), (0, 1)),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str, family: str) -> None:
    layout, dims = LAYOUTS[name]
    base = numbers(max(layout.span()[1] + 1, layout.numel))
    x = strided(base, layout)
    (y,) = execute(family, call_of(SOFTMAX, {"input": layout}, dims), [base])
    assert np.allclose(y, softmax(x, dims), rtol=5e-6, atol=0)
    inside = tuple(layout.shape[d] for d in dims)
    w = numbers(2 * int(np.prod(inside)), seed=1)
    weight = Layout(D.float32, inside, tuple(2 * s for s in contiguous_strides(inside)), 1)
    y, mean, _ = execute(family, call_of(LAYER_NORM, {"input": layout, "weight": weight}, dims, scalars=EPS), [base, w], (1e-5,))
    exact = x.astype(np.float64)
    mu, var = exact.mean(axis=dims, keepdims=True), exact.var(axis=dims, keepdims=True)
    scale = strided(w, weight).reshape([n if d in dims else 1 for d, n in enumerate(layout.shape)])
    assert np.allclose(y, (exact - mu) / np.sqrt(var + 1e-5) * scale, rtol=1e-4, atol=1e-4)
    assert np.allclose(mean, mu.reshape(mean.shape), atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [D.float16, D.bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("n", [7, 128, 1000])
def test_half_precision(n: int, dtype: DType, family: str) -> None:
    x = numbers(12, n).astype(np.float16).astype(np.float32)
    x = (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    call = call_of(SOFTMAX, {"input": Layout(dtype, x.shape)}, (1,), dtype)
    (y,) = execute(family, call, [x])
    assert np.allclose(y, softmax(x), rtol=2.0**-8, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_in_place(family: str) -> None:
    for layout in (
        Layout(D.float32, (9, 100)),
        Layout(D.float32, (4, 2000)),
        Layout(D.float32, (64, 12)),
        Layout(D.float32, (6, 4, 8), (80, 10, 1)),
    ):
        dims = tuple(range(1, len(layout.shape)))
        base = numbers(layout.span()[1] + 1)
        call = make_call(SOFTMAX, {"input": layout}, (layout,), attrs={"dim": dims, "absent": ()}, alias=(0, 0))
        buffer = upload(base, D.float32)
        run(row.lower(call, profile(family)), [buffer, buffer])
        got = download(buffer, D.float32, base.size)
        assert np.allclose(strided(got, layout), softmax(strided(base, layout), dims), rtol=5e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_operands_of_one_storage(family: str) -> None:
    x, arena = numbers(32, 64), numbers(300, seed=1)
    for start in (0, 3):
        w, b = Layout(D.float32, (64,), (1,), start), Layout(D.float32, (64,), (1,), start + 100)
        call = call_of(
            LAYER_NORM, {"input": Layout(D.float32, x.shape), "weight": w, "bias": b}, (1,), scalars=EPS, alias=(0, 1, 1, 3, 4, 5)
        )
        shared = upload(arena, D.float32)
        targets = [upload(np.zeros(o.numel), o.dtype) for o in call.outputs]
        run(row.lower(call, profile(family)), [upload(x, D.float32), shared, shared, *targets], (1e-5,))
        exact = x.astype(np.float64)
        want = (exact - exact.mean(axis=1, keepdims=True)) / np.sqrt(exact.var(axis=1, keepdims=True) + 1e-5)
        want = want * arena[start : start + 64] + arena[start + 100 : start + 164]
        assert np.allclose(download(targets[0], D.float32, x.size).reshape(x.shape), want, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_elements(family: str) -> None:
    empty = call_of(SOFTMAX, {"input": Layout(D.float32, (0, 5))}, (1,))
    assert row.lower(empty, profile(family)).launches == ()
    assert row.lower(call_of(SOFTMAX, {"input": Layout(D.float32, (5, 0))}, (1,)), profile(family)).launches == ()
    total = Row(("input",), stages=(Stage("t", "sum", "{input}"),), per_row=("{t}",))
    (y,) = execute(family, call_of(total, {"input": Layout(D.float32, (5, 0))}, (1,)), [np.zeros(0)])
    assert np.array_equal(y, np.zeros(5))


@pytest.mark.parametrize("n", [4096, 5000, 8192])
def test_rows_of_one_input_are_held_by_512_invocations(n: int) -> None:
    call = call_of(SOFTMAX, {"input": Layout(D.float32, (1000, n))}, (1,))
    two = call_of(SOFTMAX_GRAD, {"grad": Layout(D.float32, (1000, n)), "result": Layout(D.float32, (1000, n))}, (1,))
    forms = [
        row.lower(c, profile("gpu", max_workgroup_size=most)).launches[0].kernel.key[1]
        for c, most in ((call, 1024), (two, 1024), (call, 256))
    ]
    assert [x.team.width for x in forms] == [512, 256, 256]
    assert forms[0].registers == (2 if n == 4096 else 4) and forms[0].exact == (n != 5000)


def test_without_subgroups() -> None:
    for n in (5, 300, 3000):
        x = numbers(40, n)
        call = call_of(LAYER_NORM, {"input": Layout(D.float32, x.shape)}, (1,), scalars=EPS)
        for family in FAMILIES:
            targets = [upload(np.zeros(o.numel), o.dtype) for o in call.outputs]
            run(row.lower(call, profile(family, subgroups=False)), [upload(x, D.float32), *targets], (1e-5,))
            exact = x.astype(np.float64)
            want = (exact - exact.mean(axis=1, keepdims=True)) / np.sqrt(exact.var(axis=1, keepdims=True) + 1e-5)
            assert np.allclose(download(targets[0], D.float32, x.size).reshape(x.shape), want, atol=1e-5)
