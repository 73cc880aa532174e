"""Winograd convolutions of GPUs against float64: geometry, slices, parts of a batch, layouts, dtypes, limits, infinities."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from meganeura import dtype as D
from meganeura.kernels import conv_choices, conv_winograd_choices, conv_winograd_gpu
from meganeura.kernels.conv import lower
from meganeura.kernels.conv_problem import Weigh, problem
from meganeura.kernels.conv_winograd_gpu import Way
from meganeura.kernels.kernel import Call, Lowered, Profile
from meganeura.kernels.winograd_transforms import transforms
from tests import tint

from . import test_conv
from .run_call import download, run, upload
from .test_conv import REFS, ROLES, Case, call_of, check, device, run_poisoned

PLAIN = ("plain",) * 3
CASES = {
    "same": Case(2, 32, 36, (9, 12), (3, 3), 1, 1),
    "odd": Case(3, 17, 33, (7, 11), (3, 3), 1, (0, 2)),
    "one tile": Case(1, 9, 10, (3, 3), (3, 3), 1, 1),
    "one pixel": Case(3, 16, 8, (3, 3), (3, 3)),
    "thin": Case(1, 12, 7, (21, 1), (3, 3), 1, 1),
    "more padding": Case(1, 8, 20, (4, 5), (3, 3), 1, (2, 4)),
    "groups": Case(3, 32, 24, (8, 8), (3, 3), 1, 0, 1, 2),
    "odd groups": Case(2, 21, 27, (5, 14), (3, 3), 1, 2, 1, 3),
    "wide": Case(1, 64, 72, (16, 16), (3, 3), 1, 1),
}


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Winograd wherever it is possible, with a tile that is quickly built."""
    monkeypatch.setattr(conv_winograd_choices, "GAIN", 0.0)
    for name in ("TILES", "DEEP"):
        monkeypatch.setattr(conv_winograd_choices, name, (conv_choices.Candidate(conv_choices.MID, 1.0),))


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporaries hold NaN before a call."""
    monkeypatch.setattr(test_conv, "run", run_poisoned)


def used(made: Lowered) -> bool:
    return any(x.kernel.label == "conv_patch" for x in made.launches)


def forced(split: int = 0, images: int = 0) -> Any:
    """lower() by Winograd, with so many slices of K and images at a time."""

    def made(call: Call, profile: Profile) -> Lowered:
        p, temps = problem(call, call.op.archetype.role, profile), []  # type: ignore[attr-defined, var-annotated]
        assert conv_winograd_gpu.possible(p)
        how = conv_winograd_gpu.forced(p, profile)
        assert how is not None
        how = Way(how.tile, split or how.split, images or how.images)
        plan = conv_winograd_gpu.weigh(p, how, temps) if isinstance(p, Weigh) else conv_winograd_gpu.gather(p, how, temps)
        return Lowered(tuple(plan), tuple(temps))

    return made


@pytest.mark.parametrize("case", CASES)
def test_geometry(case: str, always: None, poisoned: None) -> None:
    for role in ROLES:
        assert used(check(device("gpu"), CASES[case], role, bias=role != "weight", lowered=forced()))


@pytest.mark.parametrize(("case", "split", "images"), [("same", 2, 1), ("wide", 4, 0), ("groups", 1, 2), ("odd", 1, 1), ("groups", 2, 1)])
def test_slices_and_parts_of_a_batch(case: str, split: int, images: int, always: None, poisoned: None) -> None:
    for role in ROLES:
        depth = {"output": CASES[case].shapes["weight"][1], "input": CASES[case].shapes["weight"][0] // CASES[case].groups}.get(role, 16)
        check(device("gpu"), CASES[case], role, lowered=forced(split if depth % (4 * split) == 0 else 1, images))


@pytest.mark.parametrize(
    "kinds", [("offset", "second", "plain"), ("last", "last", "last"), ("second", "offset", "offset"), ("repeated", "plain", "second")]
)
def test_strides_and_offsets(kinds: tuple[str, str, str], always: None) -> None:
    for role in ROLES:
        assert used(check(device("gpu"), CASES["same"], role, kinds=kinds))


@pytest.mark.parametrize("dtype", [D.float16, D.bfloat16], ids=str)
def test_dtypes(dtype: Any, always: None) -> None:
    for role in ROLES:
        assert used(check(device("gpu"), CASES["odd"], role, dtype, bias=role != "weight"))


def test_small_devices(always: None) -> None:
    for role in ROLES:
        check(device("small"), CASES["same"], role)


def test_temporaries_fit_bindings(always: None, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(8, 16, 16, (16, 16), (3, 3), 1, 1)
    for limit in (100000, 30000):  # what two images take, and what not even one takes
        for role in ROLES:
            made = check(device("gpu", max_binding=limit), case, role, bias=role != "weight")
            assert used(made) == (limit > 50000)
            assert not used(made) or max(made.temps) <= limit
    monkeypatch.setattr(conv_winograd_gpu, "WORKSPACE", 100000)
    assert sum(x.kernel.label == "conv_patch" for x in check(device("gpu"), case, "output").launches) > 1


@pytest.mark.parametrize("role", ROLES)
def test_grids_fit_the_device(role: str, always: None) -> None:
    """A grid has a layer for each of 36 products a group and slice of K."""
    case = Case(2, 32, 64, (16, 16), (3, 3), 1, 1, 1, 2)
    for most in (71, 72, 143, 200):
        made = check(device("gpu", max_groups=most), case, role)
        assert used(made) == (most > 71) and max(max(x.grid) for x in made.launches) <= most


def test_tensors_larger_than_a_binding(always: None) -> None:
    case = Case(6, 16, 16, (24, 24), (3, 3), 1, 1)
    for role in ROLES:
        made = check(device("gpu", max_binding=200000), case, role, bias=role != "weight")
        assert used(made) and any(x.ranges for x in made.launches)


def test_other_convolutions_are_left_alone(always: None) -> None:
    for case in (
        Case(1, 16, 16, (9, 9), (3, 3), 2, 1),
        Case(1, 16, 16, (9, 9), (3, 3), 1, 2, 2),
        Case(1, 16, 16, (9, 9), (3, 2)),
        Case(1, 16, 16, (3, 9, 9), (3, 3, 3), 1, 1),
        Case(1, 16, 16, (3, 9, 9), (1, 3, 3), 1, (0, 1, 1)),
        Case(1, 16, 16, (9,), (3,), 1, 1),
    ):
        assert not any(used(lower(call_of(case, role, D.float32, PLAIN, False)[0], device("gpu"))) for role in ROLES)
    call = call_of(CASES["wide"], "output", D.float32, PLAIN, False)[0]
    assert not used(lower(call, device("gpu", winograd=False)))


def test_choice() -> None:
    """Many channels and tiles go by it, small or narrow convolutions do not."""
    where = device("gpu", max_binding=1 << 30, max_workgroup_memory=49152)
    for sizes, want in (((32, 128, 28), True), ((4, 640, 32), True), ((1, 512, 7), False), ((32, 8, 56), False), ((1, 16, 16), False)):
        n, c, size = sizes
        for role in ROLES:
            call = call_of(Case(n, c, c, (size, size), (3, 3), 1, 1), role, D.float32, PLAIN, False)[0]
            assert used(lower(call, where)) == want, (sizes, role)


def test_new_sizes_need_no_new_pipelines(always: None) -> None:
    sizes = [Case(2, 32, 64, (8, 8), (3, 3), 1, 1), Case(3, 64, 96, (12, 16), (3, 3), 1, 1)]
    for role in ROLES:
        keys = [[x.kernel.key for x in forced(1)(call_of(c, role, D.float32, PLAIN, False)[0], device("gpu")).launches] for c in sizes]
        if role == "weight":
            keys = [[k for k in x if "gemm" not in k] for x in keys]  # small images: fewer tiles than a whole slice
        assert [str(k) for k in keys[0]] == [str(k) for k in keys[1]]


@pytest.mark.parametrize("role", ROLES)
def test_nan_and_infinities_reach_only_their_neighbours(role: str, always: None) -> None:
    """As tap by tap: also where values are too large for a transform, and at borders that some taps do not meet."""
    case = Case(2, 16, 20, (15, 20), (3, 3), 1, 1)
    call, sizes = call_of(case, role, D.float32, PLAIN, role != "weight")
    rng = np.random.default_rng(0)
    given = [rng.uniform(-1, 1, x.shape).astype(np.float32) for x in call.inputs if x is not None]
    x = given[0]
    x[0, 3, 4, 5], x[0, 7, 11, 12], x[1, 1, 14, 19], x[1, 5, 3, 3] = np.nan, np.inf, -np.inf, 2e38
    target = upload(np.full(sizes[-1], 77), D.float32)
    made = lower(call, device("gpu"))
    assert used(made)
    run(made, [*(upload(a, D.float32) for a in given), target])
    attrs = [call.attrs[k] for k in ("stride", "padding", "dilation", "groups", "size")]
    with np.errstate(invalid="ignore", over="ignore"):
        want = REFS[role](*given, *attrs)
    got = download(target, D.float32, sizes[-1]).reshape(want.shape)
    finite = np.isfinite(want)
    assert finite.any() and not finite.all()
    small = finite & (abs(want) < 1e6)
    np.testing.assert_array_equal(np.isfinite(got), finite)
    np.testing.assert_allclose(got[~finite], want[~finite])
    np.testing.assert_allclose(got[finite & ~small], want[finite & ~small], rtol=1e-3)
    np.testing.assert_allclose(got[small], want[small], rtol=1e-4, atol=2e-5)


def test_accuracy(always: None) -> None:
    """rms errors of normal data against rms of the result, as documented in winograd_transforms."""
    case = Case(1, 96, 16, (24, 24), (3, 3), 1, 1)
    for role in ROLES:
        call, sizes = call_of(case, role, D.float32, PLAIN, False)
        rng = np.random.default_rng(0)
        given = [rng.standard_normal(x.shape).astype(np.float32) for x in call.inputs if x is not None]
        target = upload(np.full(sizes[-1], np.nan), D.float32)
        run(lower(call, device("gpu")), [*(upload(a, D.float32) for a in given), target])
        attrs = [call.attrs[k] for k in ("stride", "padding", "dilation", "groups", "size")]
        want = REFS[role](*(a.astype(np.float64) for a in given), *([] if role == "weight" else [None]), *attrs)
        error = (download(target, D.float32, sizes[-1]).reshape(want.shape) - want) / np.sqrt((want**2).mean())
        assert np.sqrt((error**2).mean()) < 1.2e-6 and abs(error).max() < 2e-5, role


@pytest.mark.parametrize(("m", "r"), [(4, 3), (3, 4)])
def test_transforms_are_exact(m: int, r: int) -> None:
    t = transforms(m, r)
    rng = np.random.default_rng(0)
    d, k = ([Fraction(int(x)) for x in rng.integers(-9, 9, n)] for n in (m + r - 1, r))

    def times(matrix: Any, v: list[Fraction]) -> list[Fraction]:
        return [sum((a * b for a, b in zip(row, v, strict=True)), Fraction(0)) for row in matrix]

    made = times(t.results, [a * b for a, b in zip(times(t.taps, k), times(t.patch, d), strict=True)])
    assert made == [sum(d[i + j] * k[j] for j in range(r)) for i in range(m)]


TINT = """
import sys
import wgpudawn
from meganeura import dtype as D
from meganeura.kernels import conv_winograd_choices
from meganeura.kernels.kernel import Profile
from tests.kernels.test_conv_winograd import CASES, ROLES, call_of, forced
adapter = wgpudawn.gpu.request_adapter_sync()
device = adapter.request_device_sync(required_features=["subgroups", "shader-f16"])
seen = set()
profile = Profile(family="gpu", backend="dawn", subgroup_size=32, max_workgroup_memory=32768)
for dtype in (D.float32, D.float16):
    for name, case in CASES.items():
        for role in ROLES:
            for split in (1, 2) if name == "wide" else (1,):
                for launch in forced(split)(call_of(case, role, dtype, ("plain",) * 3, role != "weight")[0], profile).launches:
                    if launch.kernel.key not in seen:
                        seen.add(launch.kernel.key)
                        device.create_shader_module(code=launch.kernel.source(profile))
print("accepted", len(seen))
"""


def test_tint_accepts_what_naga_does() -> None:
    assert "accepted" in tint.printed(TINT)
