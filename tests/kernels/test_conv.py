"""Convolutions of every kernel family against the numpy references in float64: geometry, layouts, dtypes, tiles, limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meganeura import dtype as D
from meganeura.dtype import DType
from meganeura.gpu import Buffer
from meganeura.kernels import conv_choices, conv_columns, conv_gpu, conv_weigh, conv_winograd
from meganeura.kernels.conv import lower
from meganeura.kernels.conv_phases import phases
from meganeura.kernels.conv_problem import Gather, Weigh, problem
from meganeura.kernels.kernel import Call, Lowered, Profile
from meganeura.ops import conv as rows
from meganeura.shape import contiguous_strides
from meganeura.storage import Layout
from tests import tint

from . import run_call
from .run_call import EIGHT, STORED, download, eight_lanes, profile, run, strided, upload

DEVICES = {
    "cpu": ("cpu", {}),
    "portable": ("cpu", {"subgroup_size": 4}),
    "gpu": ("gpu", {}),
    "small": ("gpu", {"subgroups": False, "subgroup_size": 0, "max_workgroup_memory": 16384, "max_workgroup_size": 256}),
}
ROLES = ("output", "input", "weight")
OPS = {"output": rows.conv, "input": rows.conv_input, "weight": rows.conv_weight}
REFS = {"output": rows._conv_ref, "input": rows._conv_input_ref, "weight": rows._conv_weight_ref}
GEOMETRY = ("stride", "padding", "dilation", "groups", "size")
TOLERANCE = {"float32": 3e-6, "float16": 2e-3, "bfloat16": 8e-3}


def device(name: str, **changes: Any) -> Profile:
    family, own = DEVICES[name]
    return profile(family, **{**own, **changes})


def layout(shape: tuple[int, ...], kind: str, dtype: DType) -> tuple[Layout, int]:
    """A layout by name, and the elements its storage needs."""
    n = int(np.prod(shape))
    if kind == "offset":
        return Layout(dtype, shape, None, 3), n + 3
    if kind == "last":  # channels last
        order = (0, *range(2, len(shape)), 1)
        strides = contiguous_strides(tuple(shape[i] for i in order))
        return Layout(dtype, shape, tuple(strides[order.index(i)] for i in range(len(shape)))), n
    if kind == "second":
        return Layout(dtype, shape, tuple(2 * s for s in contiguous_strides(shape)), 1), 2 * n + 1
    if kind == "repeated":
        return Layout(dtype, shape, (0,) * len(shape)), 1
    return Layout(dtype, shape), n


class Case:
    """Sizes of one convolution: n, input channels, output channels, image, kernel, stride, padding, dilation, groups, extra."""

    def __init__(
        self, n: int, c: int, m: int, image: Any, kernel: Any, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
    ) -> None:
        dims = len(image)
        self.stride, self.padding, self.dilation = ((v,) * dims if isinstance(v, int) else v for v in (stride, padding, dilation))
        self.groups, self.image, self.kernel = groups, image, kernel
        out = zip(image, kernel, self.stride, self.padding, self.dilation, strict=True)
        self.out = tuple((i + 2 * p - d * (k - 1) - 1) // s + 1 for i, k, s, p, d in out)
        self.shapes = {"input": (n, c, *image), "weight": (m, c // groups, *kernel), "output": (n, m, *self.out)}

    def size(self, role: str) -> tuple[int, ...]:
        return tuple(self.shapes[role][2:])


CASES = {
    "same 3x3": Case(2, 20, 36, (9, 12), (3, 3), 1, 1),
    "odd": Case(1, 17, 33, (7, 11), (3, 2), (2, 1), (1, 0), (1, 2)),
    "one tap": Case(2, 24, 40, (6, 6), (1, 1)),
    "one tap, stride": Case(2, 24, 20, (7, 8), (1, 1), 2),
    "patches": Case(2, 13, 20, (12, 8), (4, 4), 4),
    "stem": Case(1, 3, 20, (21, 18), (7, 7), 2, 3),
    "groups": Case(2, 32, 48, (5, 8), (3, 3), 1, 1, 1, 2),
    "small groups": Case(2, 8, 16, (6, 5), (3, 3), 2, 1, 1, 4),
    "depthwise": Case(2, 19, 19, (8, 9), (3, 5), 1, (1, 2), 1, 19),
    "multiplied": Case(1, 5, 15, (6, 8), (3, 3), (1, 2), 1, 1, 5),
    "line": Case(3, 16, 24, (50,), (5,), 2, 2),
    "dilated line": Case(1, 12, 8, (40,), (3,), 1, 4, 4),
    "volume": Case(1, 14, 18, (4, 5, 6), (2, 3, 3), (1, 2, 1), (0, 1, 1)),
    "wide taps": Case(1, 6, 10, (5, 30), (2, 9), 1, (0, 4)),
    "far taps": Case(1, 12, 12, (20, 30), (2, 3), 1, 6, 6),
    "more padding": Case(1, 16, 12, (4, 5), (3, 3), 1, 5),
    "tall stride": Case(1, 16, 12, (16, 9), (3, 2), (5, 3), 1),
}


def call_of(case: Case, role: str, dtype: DType, kinds: tuple[str, str, str], bias: bool) -> tuple[Call, list[int]]:
    """The call, and the elements that each operand's storage needs."""
    names = {"output": ("input", "weight"), "input": ("output", "weight"), "weight": ("input", "output")}[role]
    made = [layout(case.shapes[n], k, dtype) for n, k in zip(names, kinds, strict=False)]
    target = layout(case.shapes[role], kinds[2], dtype)
    if bias:
        made.append(layout((case.shapes[role][1],), "plain", dtype))
    attrs = {"stride": case.stride, "padding": case.padding, "dilation": case.dilation, "groups": case.groups, "size": case.size(role)}
    op = OPS[role]
    layouts = tuple(x for x, _ in made)
    return Call(op, op.names[: len(layouts)], layouts, (target[0],), (dtype,) * len(layouts), attrs), [n for _, n in (*made, target)]


def check(
    where: Profile, case: Case, role: str, dtype: DType = D.float32, kinds: tuple[str, str, str] = ("plain",) * 3, bias: bool = False,
    lowered: Any = lower,
) -> Lowered:  # fmt: skip
    """Run on the device, the result's storage starting as NaN, and compare with float64."""
    rng = np.random.default_rng(0)
    call, sizes = call_of(case, role, dtype, kinds, bias)
    arrays = [rng.uniform(-1, 1, n).astype(STORED[dtype.storage]) for n in sizes[:-1]]
    if dtype is D.bfloat16:
        arrays = [(a.view(np.uint32) & 0xFFFF0000).view(np.float32) for a in arrays]
    target = upload(np.full(sizes[-1], np.nan), dtype)
    made = lowered(call, where)
    run(made, [*(upload(a, dtype) for a in arrays), target])
    given = [strided(a, x).astype(np.float64) for a, x in zip(arrays, call.inputs, strict=True) if x is not None]
    if role != "weight" and not bias:
        given.append(None)
    attrs = [call.attrs[k] for k in GEOMETRY]
    want = REFS[role](*given, *attrs)
    most = REFS[role](*(None if x is None else abs(x) for x in given), *attrs)
    got = strided(download(target, dtype, sizes[-1]), call.outputs[0]).astype(np.float64)
    error = float(np.max(abs(got - want) / np.maximum(most.max(), 1e-30), initial=0))
    assert error <= TOLERANCE[dtype.name], (role, dtype, kinds, error, [x.kernel.key for x in made.launches])
    return made


def run_poisoned(made: Lowered, buffers: list[Buffer], scalars: Any = ()) -> None:
    """run() with temporaries that hold NaN before."""
    n = len(buffers)
    launches = tuple(replace(x, bindings=tuple(n - 1 - b if b < 0 else b for b in x.bindings)) for x in made.launches)
    temps = [upload(np.full(-(-size // 4), np.nan), D.float32) for size in made.temps]
    run_call.run(Lowered(launches), [*buffers, *temps], scalars)


FEW = ("odd", "groups", "stem")  # what a second device of the same family makes, and all that f16 needs


@pytest.mark.parametrize(("name", "case"), [(name, case) for name in DEVICES for case in (FEW if name == "small" else CASES)])
def test_geometry(name: str, case: str) -> None:
    for role in ROLES:
        check(device(name), CASES[case], role, bias=role != "weight")


@pytest.mark.parametrize("name", ["cpu", "portable", "gpu"])
@pytest.mark.parametrize(
    "kinds", [("offset", "second", "plain"), ("last", "last", "last"), ("second", "offset", "offset"), ("repeated", "plain", "second")]
)
def test_strides_and_offsets(name: str, kinds: tuple[str, str, str]) -> None:
    for case in ("odd", "one tap") if name == "gpu" else ("same 3x3", "one tap", "odd"):
        for role in ROLES:
            check(device(name), CASES[case], role, kinds=kinds)


@pytest.mark.parametrize("name", ["cpu", "portable", "gpu"])
@pytest.mark.parametrize("dtype", [D.float16, D.bfloat16], ids=str)
def test_dtypes(name: str, dtype: DType) -> None:
    for case in ("odd", "depthwise") if name == "gpu" else ("same 3x3", "odd", "depthwise", "one tap"):
        for role in ROLES:
            check(device(name), CASES[case], role, dtype, bias=role != "weight")


TILES = {x.tile: None for x in (*conv_choices.GATHER, *conv_choices.WEIGH)}


# case, slices of K, weights packed, K flat, arrays in structs
VARIANTS = (
    ("same 3x3", 1, True, False, False), ("odd", 1, False, False, True), ("groups", 3, True, False, False),
    ("volume", 2, False, False, False),
    ("stem", 1, False, True, False), ("patches", 1, True, False, False), ("line", 2, False, True, True),
)  # fmt: skip


@pytest.mark.parametrize(
    "number",
    [i if i < 2 else pytest.param(i, marks=pytest.mark.full) for i in range(len(TILES))],  # each builds large shaders
    ids=lambda i: f"{[*TILES][i].bm}x{[*TILES][i].bn}x{[*TILES][i].groups}",
)
def test_tiles(number: int) -> None:
    """Every tile, K whole and in slices, weights packed and as they lie: two variants a tile."""
    tile = [*TILES][number]
    where = device("gpu")

    def forced(split: int, pack: bool, flat: bool, wrap: bool) -> Any:
        def made(call: Call, profile: Profile) -> Lowered:
            p, temps = problem(call, call.op.archetype.role, profile), []  # type: ignore[attr-defined, var-annotated]
            t = replace(tile, wrap=wrap)
            if isinstance(p, Weigh):
                return Lowered(tuple(conv_weigh.tiled_weigh(p, t, split, temps)), tuple(temps))
            parts = phases(p)
            launches = conv_gpu.tiled_gather(p, parts, t, split if len(parts) == 1 else 1, pack and not flat, flat, temps)
            return Lowered(tuple(launches), tuple(temps))

        return made

    for name, split, pack, flat, wrap in (VARIANTS[number % 7], VARIANTS[(number + 3) % 7]):
        case = CASES[name]
        for role in ROLES:
            if role == "input" and any(not x.taps.number for x in phases(_gather(case, role, where))):
                continue
            made = check(where, case, role, bias=role != "weight", lowered=forced(split, pack, flat, wrap))
            assert split == 1 or len(made.launches) > 1 or min(case.stride) > 1 or role != "weight"


def _gather(case: Case, role: str, where: Profile) -> Gather:
    p = problem(_call(case, role), role, where)
    assert isinstance(p, Gather)
    return p


def test_new_sizes_need_no_new_pipelines() -> None:
    sizes = [Case(2, 32, 64, (8, 8), (3, 3), 1, 1), Case(3, 64, 96, (12, 16), (3, 3), 1, 1)]
    for role in ROLES:
        for name in ("portable", "cpu"):
            a, b = ({x.kernel.key for x in lower(_call(c, role), device(name)).launches} for c in sizes)
            assert a == b or name == "cpu"
        keys = []
        for c in sizes:
            p, temps = problem(_call(c, role), role, device("gpu")), []  # type: ignore[var-annotated]
            if isinstance(p, Weigh):
                made = conv_weigh.tiled_weigh(p, conv_choices.MID, 1, temps)
            else:
                made = conv_gpu.tiled_gather(p, phases(p), conv_choices.NARROW, 1, True, False, temps)
            keys.append([x.kernel.key for x in made])
        assert keys[0] == keys[1] or role == "weight"


@pytest.mark.parametrize("name", DEVICES)
def test_strides_that_leave_elements_without_taps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements that no tap meets are zero, or the bias, however the others are summed: also where there are no others."""
    monkeypatch.setitem(globals(), "run", run_poisoned)
    for case in (
        Case(1, 13, 59, (12, 9), (3, 4), (3, 1), 1, (3, 1)),  # one phase with taps, in slices on a GPU
        Case(2, 14, 20, (8, 7), (1, 3), (3, 2), (1, 0), (1, 2)),
        Case(1, 12, 20, (3, 5), (1, 3), (4, 1), 1, (2, 1)),  # the only output pixels lie in the padding
    ):
        for kind in ("plain", "last"):
            check(device(name), case, "input", kinds=("plain", "plain", kind), bias=True)


def _call(case: Case, role: str) -> Call:
    return call_of(case, role, D.float32, ("plain",) * 3, False)[0]


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_batches_larger_than_a_binding_are_cut(name: str) -> None:
    case = Case(8, 16, 16, (16, 16), (3, 3), 1, 1)
    for role in ROLES:
        made = check(device(name, max_binding=8 * 16 * 16 * 16 * 4 // 3), case, role, bias=role != "weight")
        assert len(made.launches) > 3


def test_more_groups_than_a_grid_has_layers() -> None:
    for role in ROLES:
        made = check(device("gpu", max_groups=2), Case(1, 36, 30, (5, 5), (3, 3), 1, 1, 1, 3), role)
        assert all(x.grid[2] <= 2 for x in made.launches)


@pytest.mark.parametrize("name", ["cpu", "portable"])
def test_long_loops_are_cut(name: str) -> None:
    """lavapipe ends an invocation after 65,535 turns of its loops."""
    check(device(name), Case(1, 33000, 2, (1, 3), (2, 3), 1, (1, 0)), "output")
    check(device(name), Case(1, 1, 2, (1 << 18,), (3,), 4, 1), "weight")
    check(device(name), Case(1, 2, 3, (700, 400), (1, 2)), "weight")


def test_nan_and_infinities_reach_only_their_neighbours() -> None:
    case = Case(1, 20, 18, (15, 20), (3, 3), 1, 1)
    call, sizes = call_of(case, "output", D.float32, ("plain",) * 3, True)
    rng = np.random.default_rng(0)
    x, weight, bias = (rng.uniform(-1, 1, s).astype(np.float32) for s in ((1, 20, 15, 20), (18, 20, 3, 3), (18,)))
    x[0, 3, 4, 5], x[0, 7, 11, 12], x[0, 1, 14, 19] = np.nan, np.inf, -np.inf
    for name in ("cpu", "gpu"):
        target = upload(np.full(sizes[-1], 77), D.float32)
        run(lower(call, device(name)), [*(upload(a, D.float32) for a in (x, weight, bias)), target])
        got = download(target, D.float32, sizes[-1]).reshape(1, 18, 15, 20)
        with np.errstate(invalid="ignore"):
            want = rows._conv_ref(x, weight, bias, (1, 1), (1, 1), (1, 1), 1, (15, 20))
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_weight_gradients_leave_out_what_no_tap_meets() -> None:
    """An infinity in the last column is met by some taps only; rows of 13 pixels end inside a vec4."""
    case = Case(1, 9, 10, (6, 13), (3, 3), 1, 1)
    call, sizes = call_of(case, "weight", D.float32, ("plain",) * 3, False)
    rng = np.random.default_rng(0)
    x, grad = (rng.uniform(-1, 1, case.shapes[s]).astype(np.float32) for s in ("input", "output"))
    x[0, 2, 3, 12] = np.inf
    with np.errstate(invalid="ignore"):
        want = rows._conv_weight_ref(x, grad, (1, 1), (1, 1), (1, 1), 1, (3, 3))
    assert np.isfinite(want[:, 2]).any() and not np.isfinite(want[:, 2]).all()
    for name in ("cpu", "gpu"):
        target = upload(np.full(sizes[-1], 77), D.float32)
        run(lower(call, device(name)), [upload(x, D.float32), upload(grad, D.float32), target])
        np.testing.assert_allclose(download(target, D.float32, sizes[-1]).reshape(want.shape), want, rtol=1e-4, atol=1e-5)


TINT = """
import sys
import wgpudawn
from meganeura import dtype as D
from meganeura.kernels.conv import lower
from meganeura.kernels.kernel import Profile
from tests.kernels.test_conv import CASES, COLUMNS, ROLES, WINOGRAD, _way, call_of, conv_columns, conv_winograd
adapter = wgpudawn.gpu.request_adapter_sync()
device = adapter.request_device_sync(required_features=["subgroups", "shader-f16"])
seen = set()
for family in ("cpu", "gpu"):
    profile = Profile(family=family, backend="dawn", subgroup_size=8 if family == "cpu" else 32, max_workgroup_memory=32768)
    for dtype in (D.float32, D.float16):
        for name, case in CASES.items():
            for role in ROLES:
                for launch in lower(call_of(case, role, dtype, ("plain",) * 3, role != "weight")[0], profile).launches:
                    if launch.kernel.key not in seen:
                        seen.add(launch.kernel.key)
                        device.create_shader_module(code=launch.kernel.source(profile))
profile = Profile(family="cpu", backend="dawn", subgroup_size=8)
for way, cases in ((conv_winograd, WINOGRAD), (conv_columns, COLUMNS)):
    for case in cases:
        for role in ROLES if way is conv_winograd else ROLES[:2]:
            for kinds in (("plain",) * 3, ("last", "plain", "last")):
                for launch in _way(way)(call_of(case, role, D.float32, kinds, role != "weight")[0], profile).launches:
                    device.create_shader_module(code=launch.kernel.source(profile))
print("accepted", len(seen))
"""


def test_tint_accepts_what_naga_does() -> None:
    assert "accepted" in tint.printed(TINT)


def _way(way: Any) -> Any:
    """A lowering that takes one of the ways of software Vulkan, whatever it estimates."""

    def made(call: Call, profile: Profile) -> Lowered:
        p, temps = problem(call, call.op.archetype.role, profile), []  # type: ignore[attr-defined, var-annotated]
        if isinstance(p, Weigh):
            assert way.suits_weigh(p)
            return Lowered(tuple(way.weigh(p, temps)), tuple(temps))
        assert way.suits(p, phases(p))
        launches = way.gather(p, phases(p)[0], temps)
        return Lowered(tuple(launches), tuple(temps))

    return made


WINOGRAD = (
    Case(2, 16, 18, (13, 17), (3, 3), 1, 1),
    Case(1, 40, 32, (16, 16), (3, 3), 1, (0, 2), 1, 2),
    Case(3, 17, 20, (15, 9), (3, 3), 1, 4),
)
COLUMNS = (
    Case(2, 64, 64, (7, 7), (3, 3), 1, 1, 1, 2),
    Case(1, 32, 32, (9, 6), (2, 3), 1, (0, 2), (2, 1)),
    Case(2, 32, 64, (7, 8), (3, 2), 1, 3),
)


@pytest.mark.skipif(not eight_lanes(), reason=EIGHT)
def test_ways_of_software_vulkan() -> None:
    """Odd sizes, groups, a bias, flipped kernels, every layout: Winograd, and products with the weights as they lie."""
    for way, cases in ((conv_winograd, WINOGRAD), (conv_columns, COLUMNS)):
        for case in cases:
            for role in ROLES if way is conv_winograd else ROLES[:2]:
                check(device("cpu"), case, role, bias=role != "weight", lowered=_way(way))
                check(device("cpu"), case, role, kinds=("last", "plain", "second"), lowered=_way(way))
                if way is conv_winograd:
                    check(device("cpu"), case, role, D.float16, ("last", "second", "last"), lowered=_way(way))
    check(device("cpu"), Case(1, 32, 64, (8, 9), (3, 3), 2, 1), "output", bias=True, lowered=_way(conv_columns))


@pytest.mark.skipif(not eight_lanes(), reason=EIGHT)
def test_the_way_is_chosen_by_its_time() -> None:
    def labels(case: Case, role: str, **changes: Any) -> str:
        return " ".join(x.kernel.label for x in lower(_call(case, role), device("cpu", **changes)).launches)

    large, deep, few = (Case(1, c, c, (n, n), (3, 3), 1, 1) for c, n in ((64, 56), (512, 7), (8, 20)))
    for role in ROLES:
        assert "patches" in labels(large, role) and "patches" not in labels(large, role, winograd=False)
        assert ("weigh" if role == "weight" else "stored") in labels(deep, role)
        assert ("weigh" if role == "weight" else "gather") in labels(few, role)
        assert "patches" not in labels(large, role, max_binding=1 << 20)


@pytest.mark.skipif(not eight_lanes(), reason=EIGHT)
@pytest.mark.parametrize("role", ROLES)
def test_winograd_spreads_no_rounding_errors_of_vast_values(role: str) -> None:
    case = Case(1, 17, 20, (9, 10), (3, 3), 1, 1)
    call, sizes = call_of(case, role, D.float32, ("plain",) * 3, False)
    rng = np.random.default_rng(0)
    given = [rng.uniform(-1, 1, x.shape).astype(np.float32) for x in call.inputs if x is not None]
    given[0][0, 3, 4, 5], given[0][0, 5, 0, 9] = 2e38, -1e20
    target = upload(np.full(sizes[-1], 77), D.float32)
    run(_way(conv_winograd)(call, device("cpu")), [*(upload(a, D.float32) for a in given), target])
    want = REFS[role](*(a.astype(np.float64) for a in given), *([] if role == "weight" else [None]), *[call.attrs[k] for k in GEOMETRY])
    got, small = download(target, D.float32, sizes[-1]).reshape(want.shape), abs(want) < 1e6
    assert small.any() and not small.all()
    np.testing.assert_allclose(got[small], want[small], rtol=1e-4, atol=2e-5)


@pytest.mark.skipif(not eight_lanes(), reason=EIGHT)
def test_winograd_spreads_no_infinities() -> None:
    """Through groups, and channels that fill no vec4."""
    case = Case(1, 34, 38, (9, 10), (3, 3), 1, 1, 1, 2)
    for role in ("output", "input"):
        call, sizes = call_of(case, role, D.float32, ("plain",) * 3, False)
        source = "input" if role == "output" else "output"
        rng = np.random.default_rng(0)
        x, weight = (rng.uniform(-1, 1, case.shapes[s]).astype(np.float32) for s in (source, "weight"))
        x[0, 3, 4, 5], x[0, 16, 8, 9], x[0, 20, 0, 0] = np.nan, np.inf, -np.inf
        weight[5, 2, 1, 1] = np.inf
        target = upload(np.full(sizes[-1], 77), D.float32)
        run(_way(conv_winograd)(call, device("cpu")), [upload(x, D.float32), upload(weight, D.float32), target])
        with np.errstate(invalid="ignore"):
            want = REFS[role](x, weight, None, (1, 1), (1, 1), (1, 1), 2, (9, 10))
        np.testing.assert_allclose(download(target, D.float32, sizes[-1]).reshape(want.shape), want, rtol=1e-4, atol=1e-5)
    x, grad = (np.random.default_rng(1).uniform(-1, 1, case.shapes[s]).astype(np.float32) for s in ("input", "output"))
    x[0, 3, 4, 9], grad[0, 20, 4, 5] = np.inf, np.nan
    call, sizes = call_of(case, "weight", D.float32, ("plain",) * 3, False)
    target = upload(np.full(sizes[-1], 77), D.float32)
    run(_way(conv_winograd)(call, device("cpu")), [upload(x, D.float32), upload(grad, D.float32), target])
    with np.errstate(invalid="ignore"):
        want = REFS["weight"](x, grad, (1, 1), (1, 1), (1, 1), 2, (3, 3))
    assert np.isfinite(want[:, 3]).any() and not np.isfinite(want[:, 3]).all()
    np.testing.assert_allclose(download(target, D.float32, sizes[-1]).reshape(want.shape), want, rtol=1e-4, atol=1e-5)
