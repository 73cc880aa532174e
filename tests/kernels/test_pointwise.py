"""Pointwise and Chain kernels of both families: layouts, dtypes, aliasing, limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meganeura import dtype as D
from meganeura.dtype import DType
from meganeura.errors import DeviceError
from meganeura.kernels import pointwise, template
from meganeura.ops.archetype import Chain, Pointwise
from meganeura.storage import Layout
from tests.kernels.run_call import FAMILIES, STORED, apply, download, make_call, profile, run, strided, upload

F = D.float32
pytestmark = pytest.mark.parametrize("family", FAMILIES)


def numbers(count: int, dtype: DType = F, seed: int = 0) -> np.ndarray:
    """Stored values of a dtype, small enough for every conversion to be exact or well defined."""
    rng = np.random.default_rng(seed)
    if dtype.kind == "b":
        return rng.integers(0, 2, count).astype(np.uint32)
    if dtype.kind == "f":
        values = (rng.standard_normal(count) * 3).astype(np.float32)
        return bf16(values) if dtype is D.bfloat16 else values.astype(STORED[dtype.storage])
    return rng.integers(0 if dtype.kind == "u" else -100, 100, count).astype(STORED[dtype.storage])


def bf16(x: np.ndarray) -> np.ndarray:
    b = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    return (((b + 0x7FFF + ((b >> 16) & 1)) & 0xFFFF0000).astype(np.uint32)).view(np.float32)


def check(family: str, expr: str, fn: Any, layouts: list[Layout], shape: tuple[int, ...], out: Layout | None = None) -> None:
    """Runs expr over {a}, {b}... on strided layouts (own storages) and compares with fn; nothing else may be written."""
    out = out or Layout(F, shape)
    bases = [numbers(x.span()[1] + 3 if x.numel else 4, x.dtype, i) for i, x in enumerate(layouts)]
    call = make_call(Pointwise(expr), {"abcdefgh"[i]: x for i, x in enumerate(layouts)}, (out,))
    before = np.full(out.span()[1] + 6, 77, STORED[out.dtype.storage])
    target = upload(before, out.dtype)
    run(pointwise.lower(call, profile(family)), [*(upload(b, x.dtype) for b, x in zip(bases, layouts)), target])
    want = before.copy()
    if out.numel:
        strided(want, out)[...] = fn(*(strided(b, x) for b, x in zip(bases, layouts)))
    np.testing.assert_allclose(download(target, out.dtype, before.size), want, rtol=1e-6)


# --- layouts

ADD = ("{a} + {b}", lambda a, b: a + b)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 255, 1023, 4096, 5000])
def test_sizes(family: str, n: int) -> None:
    check(family, *ADD, [Layout(F, (n,)), Layout(F, (n,))], (n,))


@pytest.mark.parametrize("n", [1, 3, 4, 97, 128, 129, 130, 131, 255, 2047, 2048, 4103])
def test_runs_whose_guard_is_one_test(family: str, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Software Vulkan makes long runs four quads an invocation; these end anywhere in one."""
    monkeypatch.setattr(pointwise, "LONG", 0)
    check(family, *ADD, [Layout(F, (n,)), Layout(F, (n,), offset=4)], (n,))
    check(family, "{a} * {b}", lambda a, b: a * b, [Layout(D.float16, (n,)), Layout(F, (n,), (0,))], (n,))
    check(family, "{a} * 2.0", lambda a: a * 2, [Layout(F, (n,), offset=1)], (n,))


@pytest.mark.parametrize(
    ("a", "b", "shape"),
    [
        (Layout(F, ()), Layout(F, ()), ()),
        (Layout(F, (6, 8)), Layout(F, ()), (6, 8)),
        (Layout(F, (6, 8)), Layout(F, (8,)), (6, 8)),
        (Layout(F, (6, 8)), Layout(F, (6, 1)), (6, 8)),
        (Layout(F, (6, 7)), Layout(F, (7,)), (6, 7)),
        (Layout(F, (6, 1)), Layout(F, (1, 7)), (6, 7)),
        (Layout(F, (6, 1)), Layout(F, (1, 8)), (6, 8)),
        (Layout(F, (3, 1, 5, 4)), Layout(F, (2, 1, 4)), (3, 2, 5, 4)),
        (Layout(F, (8, 12)), Layout(F, (8, 12), (1, 8)), (8, 12)),  # transposed
        (Layout(F, (8, 12), (1, 8), 4), Layout(F, (8, 1)), (8, 12)),
        (Layout(F, (8, 12), (1, 8)), Layout(F, (12,)), (8, 12)),
        (Layout(F, (8, 12), (1, 8)), Layout(F, (8, 12), (1, 8), 8), (8, 12)),
        (Layout(F, (8, 12), (1, 8)), Layout(F, (8, 12), (1, 8), 3), (8, 12)),
        (Layout(F, (3, 8, 5, 12), (480, 1, 96, 8)), Layout(F, (3, 8, 5, 12)), (3, 8, 5, 12)),
        (Layout(F, (8, 3, 12), (1, 96, 8)), Layout(F, (3, 12)), (8, 3, 12)),
        (Layout(F, (7, 12)), Layout(F, (7, 12), (1, 7)), (7, 12)),
        (Layout(F, (12, 7)), Layout(F, (12, 7), (1, 12)), (12, 7)),
        (Layout(F, (16,), (2,)), Layout(F, (16,)), (16,)),  # [::2]
        (Layout(F, (15,), (2,)), Layout(F, (15,)), (15,)),
        (Layout(F, (16,), None, 3), Layout(F, (16,)), (16,)),  # offset
        (Layout(F, (16,), None, 4), Layout(F, (16,), None, 8), (16,)),
        (Layout(F, (13,), None, 4), Layout(F, (13,)), (13,)),
        (Layout(F, (6, 8), (0, 0)), Layout(F, (6, 8), (0, 1)), (6, 8)),  # stride 0
        (Layout(F, (6, 8), (16, 2), 1), Layout(F, (6, 8), (9, 1)), (6, 8)),
        (Layout(F, (2, 3, 4, 5, 6), (1, 2, 6, 24, 120)), Layout(F, (2, 3, 4, 5, 6)), (2, 3, 4, 5, 6)),
        (Layout(F, (2, 2, 2, 2, 2, 2, 2, 4), (4, 8, 16, 32, 64, 128, 256, 1)), Layout(F, (2,) * 7 + (4,)), (2,) * 7 + (4,)),
        (Layout(F, (0, 4)), Layout(F, (4,)), (0, 4)),
    ],
)
def test_layouts(family: str, a: Layout, b: Layout, shape: tuple[int, ...]) -> None:
    check(family, *ADD, [a, b], shape)


@pytest.mark.parametrize(
    "out",
    [
        Layout(F, (6, 8), (16, 1)),
        Layout(F, (6, 8), (1, 6)),
        Layout(F, (6, 8), (20, 2), 3),
        Layout(F, (6, 8), None, 5),
        Layout(F, (6, 8), (9, 1), 4),
        Layout(F, (3, 16), None, 4),
    ],
)
def test_written_views(family: str, out: Layout) -> None:
    check(family, *ADD, [Layout(F, out.shape), Layout(F, out.shape[1:])], out.shape, out)


@pytest.mark.parametrize("n", [5, 6, 7])
def test_a_tail_leaves_what_lies_behind_it(family: str, n: int) -> None:
    check(family, *ADD, [Layout(F, (n,)), Layout(F, (n,))], (n,), Layout(F, (n,), None, 8))


# --- dtypes


@pytest.mark.parametrize("target", D.ALL, ids=lambda d: d.name)
@pytest.mark.parametrize("source", D.ALL, ids=lambda d: d.name)
def test_conversions(family: str, source: DType, target: DType) -> None:
    x = numbers(37, source)
    got = apply("{a}", family, target, (x.reshape(37), source))
    if target.kind == "b":
        want = x != 0
    elif target is D.bfloat16:
        want = bf16(x.astype(np.float32))
    elif target.kind == "f":
        want = x.astype(target.numpy)
    else:
        want = np.trunc(x.astype(np.float64)).astype(np.int64).astype(target.numpy)
    np.testing.assert_array_equal(got, want)


def test_conversions_wrap_and_truncate_as_pytorch(family: str) -> None:
    torch = pytest.importorskip("torch")
    x = np.float32([300.7, -300.7, -1.5, 255.9, 128, -129, 1e9, -0.5])
    np.testing.assert_array_equal(apply("{a}", family, D.uint8, (x, F)), torch.from_numpy(x).to(torch.int32).to(torch.uint8).numpy())
    np.testing.assert_array_equal(apply("{a}", family, D.int8, (x, F)), torch.from_numpy(x).to(torch.int32).to(torch.int8).numpy())
    special = np.float32([0, -0.0, np.nan, np.inf, 1e-45, -1])
    np.testing.assert_array_equal(apply("{a}", family, D.bool_, (special, F)), special != 0)
    halves = torch.from_numpy(np.float32([1.0001, 65504, 65519.9, 1e-7, 5.96e-8, 2049, np.nan, np.inf, -1e9]))
    np.testing.assert_array_equal(apply("{a}", family, D.float16, (halves.numpy(), F)), halves.half().numpy())
    rounded = torch.from_numpy(np.float32([1.00390625, 1.01171875, 3.4e38, np.nan, -np.inf, 1e-40]))
    np.testing.assert_array_equal(apply("{a}", family, D.bfloat16, (rounded.numpy(), F)), rounded.bfloat16().float().numpy())


def test_int8_addition_wraps(family: str) -> None:
    a, b = np.int32([100, -100, 127]), np.int32([100, -100, 1])
    np.testing.assert_array_equal(apply("{a} + {b}", family, D.int8, (a, D.int8), (b, D.int8)), np.int8([-56, 56, -128]))
    u = np.uint32([200, 0, 255])
    np.testing.assert_array_equal(
        apply("{a} - {b}", family, D.uint8, (u, D.uint8), (np.uint32([1, 1, 255]), D.uint8)), np.uint8([199, 255, 0])
    )


@pytest.mark.parametrize("n", [1, 5, 33, 1023])
def test_odd_float16_sizes_store_each_element(family: str, n: int) -> None:
    check(family, *ADD, [Layout(D.float16, (n,)), Layout(D.float16, (n,))], (n,), Layout(D.float16, (n,), None, 4))
    check(family, "{a}", lambda a: a, [Layout(D.float16, (n,), (2,))], (n,), Layout(D.float16, (n,), (3,), 1))


def test_compute_dtypes_and_kinds(family: str) -> None:
    a, b = np.int32([5, -7, 2]), np.float32([0.5, 0.5, 2.5])
    call = {"compute": (F, F)}
    np.testing.assert_allclose(apply("{a} * {b}", family, F, (a, D.int32), (b, F), **call), a * b)
    division = Pointwise({"f": "floor_div({a}, {b})", "i": "idiv_floor({a}, {b})"})
    np.testing.assert_array_equal(apply(division, family, D.int32, (a, D.int32), (np.int32([2, 2, 2]), D.int32)), [2, -4, 1])
    np.testing.assert_array_equal(apply(division, family, F, (b, F), (b, F)), [1, 1, 1])


def test_nan_and_inf_pass(family: str) -> None:
    x = np.float32([np.nan, np.inf, -np.inf, 1, -1])
    np.testing.assert_array_equal(apply("{a} * 2.0", family, F, (x, F)), x * 2)
    np.testing.assert_array_equal(apply("nan_max({a}, 0.0)", family, F, (x, F)), np.maximum(x, 0))
    np.testing.assert_array_equal(apply("is_nan({a})", family, D.bool_, (x, F)), np.isnan(x))


def test_python_numbers_are_scalars(family: str) -> None:
    a = Layout(D.int32, (6,))
    call = make_call(
        Pointwise("{a} * {b} + {c}"), {"a": a, "b": None}, (a,), compute=(D.int32, D.int32), scalars=(("b", "i32"), ("c", "i32"))
    )
    target, lowered = upload(np.zeros(6), D.int32), pointwise.lower(call, profile(family))
    run(lowered, [upload(np.arange(6), D.int32), None, target], (-3, 10))
    np.testing.assert_array_equal(download(target, D.int32, 6), np.arange(6) * -3 + 10)
    assert "-3" not in lowered.launches[0].kernel.source(profile(family))


def test_sizes_strides_and_offsets_are_not_in_the_key(family: str) -> None:
    def key(*layouts: Layout) -> Any:
        call = make_call(Pointwise("{a} + {b}"), {"a": layouts[0], "b": layouts[1]}, (Layout(F, layouts[0].shape),))
        return pointwise.lower(call, profile(family)).launches[0].kernel.key

    assert key(Layout(F, (8, 8)), Layout(F, (8,))) == key(Layout(F, (4, 40)), Layout(F, (40,)))
    assert key(Layout(F, (8, 8), (1, 8)), Layout(F, (8, 8))) == key(Layout(F, (12, 40), (1, 12)), Layout(F, (12, 40)))
    assert key(Layout(F, (7, 8), (1, 7)), Layout(F, (7, 8))) == key(Layout(F, (4, 40), (3, 20)), Layout(F, (4, 40)))
    assert key(Layout(F, (8,), None, 4), Layout(F, (8,))) == key(Layout(F, (80,), None, 40), Layout(F, (80,)))


# --- index, block, lane


@pytest.mark.parametrize("shape", [(7,), (8,), (3, 5), (3, 8), (2, 3, 4)])
def test_index_is_row_major_in_the_output(family: str, shape: tuple[int, ...]) -> None:
    n = int(np.prod(shape))
    for out in (Layout(F, shape), Layout(F, shape, tuple(2 * s for s in Layout(F, shape).strides))):
        call = make_call(Pointwise("f32({index}) * 100.0 + f32({block}) * 10.0 + f32({lane})"), {}, (out,))
        target = upload(np.zeros(2 * n + 4), F)
        run(pointwise.lower(call, profile(family)), [target])
        i = np.arange(n)
        np.testing.assert_array_equal(strided(download(target, F, 2 * n), out).ravel(), i * 100 + i // 4 * 10 + i % 4)


# --- chains


def test_chain_with_two_results(family: str) -> None:
    chain = Chain((("t", "f32", "{a} * {k}"), ("u", "f32", "{t} + {b}"), ("big", "bool", "{u} > 1.0")), ("u", "big"))
    a, b = numbers(13), numbers(13, D.float16, 1)
    outs = (Layout(F, (13,)), Layout(D.bool_, (13,)))
    call = make_call(chain, {"a": Layout(F, (13,)), "b": Layout(D.float16, (13,))}, outs, scalars=(("k", "f32"),))
    targets = [upload(np.zeros(13), d.dtype) for d in outs]
    run(pointwise.lower(call, profile(family)), [upload(a, F), upload(b, D.float16), *targets], (2.0,))
    want = a * np.float32(2) + b.astype(np.float32)
    np.testing.assert_allclose(download(targets[0], F, 13), want, rtol=1e-6)
    np.testing.assert_array_equal(download(targets[1], D.bool_, 13), want > 1)


# --- aliasing


@pytest.mark.parametrize(
    ("a", "out"),
    [
        (Layout(F, (9,)), Layout(F, (9,))),
        (Layout(F, (8,), None, 4), Layout(F, (8,), None, 4)),
        (Layout(F, (4, 8), (1, 4)), Layout(F, (4, 8), (1, 4))),
        (Layout(F, (6,)), Layout(F, (6,), None, 8)),  # another part of one storage
        (Layout(F, (4, 4), (8, 2)), Layout(F, (4, 4), (8, 2), 1)),  # interleaved
        (Layout(F, (), (), 7), Layout(F, (4,))),
    ],
)
def test_in_place(family: str, a: Layout, out: Layout) -> None:
    base = numbers(40)
    b = numbers(64, F, 1)
    other = Layout(F, out.shape)
    call = make_call(Pointwise("{a} * 2.0 + {b}"), {"a": a, "b": other}, (out,), alias=(0, 1, 0))
    lowered = pointwise.lower(call, profile(family))
    (launch,) = lowered.launches
    assert launch.bindings == (0, 1) and launch.kernel.access == ("read_write", "read")
    buffer = upload(base, F)
    run(lowered, [buffer, upload(b, F), buffer])
    want = base.copy()
    strided(want, out)[...] = strided(base, a) * np.float32(2) + strided(b, other)
    np.testing.assert_allclose(download(buffer, F, 40), want, rtol=1e-6)


def test_one_tensor_under_two_names_is_read_once(family: str) -> None:
    a = Layout(F, (8,))
    call = make_call(Pointwise("{a} * {b}"), {"a": a, "b": a}, (a,), alias=(0, 0, 2))
    lowered = pointwise.lower(call, profile(family))
    assert lowered.launches[0].bindings == (0, 2)
    x, target = upload(np.arange(8), F), upload(np.zeros(8), F)
    run(lowered, [x, x, target])
    np.testing.assert_array_equal(download(target, F, 8), np.arange(8) ** 2)


def test_one_storage_read_as_vectors_and_as_one_value(family: str) -> None:
    call = make_call(Pointwise("{a} - {b}"), {"a": Layout(F, (8,)), "b": Layout(F, (), (), 3)}, (Layout(F, (8,)),), alias=(0, 0, 2))
    x, target = upload(np.arange(8), F), upload(np.zeros(8), F)
    run(pointwise.lower(call, profile(family)), [x, x, target])
    np.testing.assert_array_equal(download(target, F, 8), np.arange(8) - 3)


def test_unused_inputs_are_not_bound(family: str) -> None:
    call = make_call(Pointwise("0.0"), {"a": Layout(F, (8,))}, (Layout(F, (8,)),))
    assert pointwise.lower(call, profile(family)).launches[0].bindings == (1,)


# --- limits


def test_more_than_65535_workgroups(family: str) -> None:
    n = 65536 * 256 + 5  # elements at stride 2: one an invocation for the scalar form
    out = Layout(D.float16, (n, 1), (1, 1)) if profile(family).f16 else Layout(F, (n,))
    source = Layout(out.dtype, out.shape, (0, 0) if len(out.shape) == 2 else (0,))
    call = make_call(Pointwise("{a} + f32({index} % 1000u)"), {"a": source}, (out,))
    lowered = pointwise.lower(call, profile(family))
    target = upload(np.zeros(n, np.float32), out.dtype)
    run(lowered, [upload(np.ones(1), out.dtype), target])
    got = download(target, out.dtype, n)
    np.testing.assert_array_equal(got, (np.arange(n) % 1000 + 1).astype(got.dtype))


def test_reciprocals_divide_exactly(family: str) -> None:
    i = np.arange(template.MAX_RECIPROCAL, dtype=np.uint32)
    for size in (1, 2, 3, 5, 7, 10, 127, 128, 144, 641, 1000, 4097, 46341, 999983, 2097151):
        factor = np.array(template.reciprocal(size), np.uint32).view(np.float32)
        np.testing.assert_array_equal((i.astype(np.float32) * factor).astype(np.uint32), i // np.uint32(size))


def test_folded_grid_covers(family: str) -> None:
    for groups in (1, 65535, 65536, 70000, 3_000_000):
        x, y, z = template.grid(groups)
        assert x <= 65535 and y <= 65535 and z == 1 and x * y >= groups
        assert y == 1 or x == template.FOLD


@pytest.mark.parametrize("n", [10000, 10003])
def test_tensors_over_the_binding_limit_run_in_parts(family: str, n: int) -> None:
    small = profile(family, max_binding=16384)
    layouts = {"a": Layout(F, (n,)), "b": Layout(D.float16, (n,), None, 4), "c": Layout(F, ())}
    call = make_call(Pointwise("{a} + {b} * {c} + f32({index})"), layouts, (Layout(F, (n,)),))
    lowered = pointwise.lower(call, small)
    assert len(lowered.launches) > 1 and len({x.kernel.key for x in lowered.launches}) <= 2
    for launch in lowered.launches:
        assert launch.ranges and all(at % 256 == 0 and size <= 16384 for at, size in launch.ranges)
    a, b, target = numbers(n), numbers(n + 4, D.float16, 1), upload(np.zeros(n), F)
    run(lowered, [upload(a, F), upload(b, D.float16), upload(np.float32([2]), F), target])
    want = a + b[4:].astype(np.float32) * 2 + np.arange(n, dtype=np.float32)
    np.testing.assert_allclose(download(target, F, n), want, rtol=1e-6)


def test_strided_tensors_over_the_limit_run_in_parts(family: str) -> None:
    small = profile(family, max_binding=16384)
    layouts = {"a": Layout(F, (100, 100), (1, 100)), "b": Layout(F, (100, 1)), "c": Layout(F, (100,), (2,))}
    call = make_call(Pointwise("{a} + {b} * {c}"), layouts, (Layout(F, (100, 100)),))
    lowered = pointwise.lower(call, small)
    assert len(lowered.launches) > 3
    assert all(launch.ranges and all(size <= 16384 for _, size in launch.ranges) for launch in lowered.launches)
    a, b, c, target = numbers(10000), numbers(100, F, 1), numbers(200, F, 2), upload(np.zeros(10000), F)
    run(lowered, [upload(a, F), upload(b, F), upload(c, F), target])
    want = a.reshape(100, 100).T + b[:, None] * c[::2]
    # where the sum nearly cancels, a device that adds and multiplies in one rounds otherwise
    np.testing.assert_allclose(download(target, F, 10000).reshape(100, 100), want, rtol=1e-6, atol=1e-6)


def test_numbered_elements_over_the_limit_are_refused_with_bytes(family: str) -> None:
    small = profile(family, max_binding=16384)
    call = make_call(Pointwise("{a} + f32({index})"), {"a": Layout(F, (100, 100), (1, 100))}, (Layout(F, (100, 100)),))
    with pytest.raises(DeviceError, match=r"40000.*16384"):
        pointwise.lower(call, small)


def test_a_far_part_of_a_storage(family: str) -> None:
    small = profile(family, max_binding=16384)
    far = make_call(Pointwise("{a}"), {"a": Layout(F, (10, 10), (1, 10), 9000)}, (Layout(F, (10, 10)),))
    target = upload(np.zeros(100), F)
    run(pointwise.lower(far, small), [upload(np.arange(9100), F), target])
    np.testing.assert_array_equal(download(target, F, 100).reshape(10, 10), np.arange(9000, 9100).reshape(10, 10).T)


def test_too_many_bindings_are_refused(family: str) -> None:
    names = "abcdefgh"
    call = make_call(Pointwise(" + ".join(f"{{{n}}}" for n in names)), {n: Layout(F, (4,)) for n in names}, (Layout(F, (4,)),))
    with pytest.raises(DeviceError, match=r"9 storage buffers.*8"):
        pointwise.lower(call, profile(family, max_storage_buffers=8))


def test_without_subgroups_or_float16(family: str) -> None:
    plain = profile(family, subgroups=False, subgroup_size=0)
    call = make_call(Pointwise("{a} + 1.0"), {"a": Layout(F, (4099,))}, (Layout(F, (4099,)),))
    target = upload(np.zeros(4099), F)
    assert "subgroup" not in pointwise.lower(call, plain).launches[0].kernel.source(plain)
    x = numbers(4099)
    run(pointwise.lower(call, profile("gpu", subgroups=False, subgroup_size=0)), [upload(x, F), target])
    np.testing.assert_array_equal(download(target, F, 4099), x + np.float32(1))
    half = make_call(Pointwise("{a}"), {"a": Layout(D.float16, (4,))}, (Layout(F, (4,)),))
    with pytest.raises(TypeError, match="shader-f16"):
        kernel = pointwise.lower(half, profile(family, f16=False)).launches[0].kernel
        kernel.source(profile(family, f16=False))


# --- types of expressions


@pytest.mark.parametrize(
    ("expr", "want"),
    [
        ("select({a}, 0.0, {a} < 0.0)", "f32"),
        ("{a} < 0.0", "bool"),
        ("-{i}", "i32"),
        ("1 - {a}", "f32"),
        ("1", "i32"),
        ("bitcast<u32>({a}) & 5u", "u32"),
        ("is_nan({a}) || {b}", "bool"),
        ("philox({u}, x, y)[{lane}]", "u32"),
        ("max(0, {i})", "i32"),
        ("(({a} + 1.0) * 2.0)", "f32"),
        ("f32({i}) / 2.0", "f32"),
        ("{i} << 2u", "i32"),
        ("select(1, 0, {b})", "i32"),
        ("normal_pair({u}, {u}).x", "f32"),
        ("!{b}", "bool"),
        ("inf()", "f32"),
    ],
)
def test_type_of(family: str, expr: str, want: str) -> None:
    assert template.type_of(expr, {"a": "f32", "i": "i32", "u": "u32", "b": "bool", "lane": "u32"}) == want
