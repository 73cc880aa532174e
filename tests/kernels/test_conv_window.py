"""Convolutions of few channels a group on GPUs, from windows in registers, against float64: geometry, blocks, slices, layouts, dtypes,
infinities."""

from __future__ import annotations

import numpy as np
import pytest

from meganeura import dtype as D
from meganeura.dtype import DType
from meganeura.kernels import conv_window
from meganeura.kernels.conv import lower
from meganeura.kernels.kernel import Lowered
from tests import tint

from . import test_conv
from .run_call import download, run, upload
from .test_conv import REFS, ROLES, Case, call_of, check, device, run_poisoned

PLAIN = ("plain",) * 3
CASES = {
    "depthwise": Case(2, 19, 19, (8, 9), (3, 3), 1, 1, 1, 19),
    "stride": Case(2, 12, 12, (15, 11), (3, 3), 2, 1, 1, 12),
    "uneven stride": Case(1, 6, 6, (12, 17), (3, 5), (1, 3), (0, 2), 1, 6),
    "tall stride": Case(1, 5, 5, (16, 9), (3, 2), (5, 3), 1, 1, 5),
    "stride past the kernel": Case(1, 6, 6, (9, 10), (2, 2), 3, 0, 1, 6),
    "wide kernel": Case(1, 9, 9, (13, 10), (5, 5), 1, 2, 1, 9),
    "dilated": Case(1, 8, 8, (17, 14), (3, 3), 1, 2, 2, 8),
    "dilated stride": Case(1, 7, 7, (13, 16), (3, 2), 2, 1, (3, 2), 7),
    "multiplied": Case(2, 5, 15, (9, 8), (3, 3), (2, 1), 1, 1, 5),
    "small groups": Case(2, 16, 24, (9, 7), (3, 3), 1, 1, 1, 4),
    "more padding": Case(1, 5, 5, (4, 6), (3, 3), 1, 4, 1, 5),
    "one tap": Case(2, 10, 10, (5, 7), (1, 1), 1, 0, 1, 10),
    "line": Case(2, 6, 6, (50,), (5,), 2, 2, 1, 6),
    "many blocks": Case(3, 4, 4, (40, 41), (3, 3), 1, 1, 1, 4),
}
FEW = {
    ("few outputs", "output"): Case(2, 40, 3, (11, 13), (3, 3), 1, 1),
    ("many outputs", "output"): Case(1, 21, 8, (6, 9), (3, 3), 1, 1),
    ("one output", "output"): Case(2, 33, 1, (9, 10), (3, 3), 2, 1),
    ("one tap", "output"): Case(1, 30, 4, (6, 5), (1, 2)),
    ("dilated", "output"): Case(1, 17, 3, (12, 9), (3, 3), 1, 2, 2),
    ("first layer", "input"): Case(2, 3, 40, (12, 15), (7, 7), 2, 3),
    ("first line", "input"): Case(2, 2, 33, (31,), (4,), 3, 1),
    ("first odd layer", "input"): Case(1, 4, 36, (11, 9), (3, 3), 1, 1),
}


@pytest.fixture(params=[False, True], ids=["small", "large"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Blocks and slices as for few results, or the largest blocks in one slice; temporaries hold NaN."""
    if request.param:
        monkeypatch.setattr(conv_window, "ENOUGH", 0)
        monkeypatch.setattr(conv_window, "FILL", 1)
    monkeypatch.setattr(test_conv, "run", run_poisoned)
    return bool(request.param)


def labels(made: Lowered) -> list[str]:
    return [x.kernel.label.removeprefix("conv_") for x in made.launches]


@pytest.mark.parametrize("case", CASES)
def test_few_channels_a_group(case: str, blocks: bool) -> None:
    for role in ROLES:
        made = labels(check(device("gpu"), CASES[case], role, bias=role != "weight"))
        assert made[0] == ("window_weight" if role == "weight" else "window")
        assert len(made) == 1 + (role == "weight" and case == "many blocks")


@pytest.mark.parametrize(("name", "role"), FEW)
def test_one_group_of_few_channels(name: str, role: str, blocks: bool) -> None:
    case = FEW[name, role]
    for bias in (False, True):
        made = labels(check(device("gpu"), case, role, bias=bias))
        assert made == (["window"] if blocks else ["window", "sum"])


def test_weight_gradients_of_few_channels() -> None:
    for case in (Case(2, 3, 4, (20, 17), (3, 3), 1, 1), Case(1, 2, 9, (9, 30), (1, 7), (1, 2), (0, 3)), Case(40, 1, 1, (30, 30), (5, 5))):
        assert labels(check(device("gpu"), case, "weight"))[0] == "window_weight"


@pytest.mark.parametrize(
    "kinds", [("offset", "second", "plain"), ("last", "last", "last"), ("second", "offset", "offset"), ("repeated", "plain", "second")]
)
def test_strides_and_offsets(kinds: tuple[str, str, str]) -> None:
    for role in ROLES:
        check(device("gpu"), CASES["stride"], role, kinds=kinds)
    for (_, role), case in list(FEW.items())[::5]:
        check(device("gpu"), case, role, kinds=kinds, bias=True)


@pytest.mark.parametrize("dtype", [D.float16, D.bfloat16], ids=str)
def test_dtypes(dtype: DType, blocks: bool) -> None:
    for role in ROLES:
        check(device("gpu"), CASES["small groups"], role, dtype, bias=role != "weight")
    for (_, role), case in list(FEW.items())[::5]:
        check(device("gpu"), case, role, dtype, bias=True)


def test_small_devices() -> None:
    for role in ROLES:
        check(device("small"), CASES["wide kernel"], role, bias=role != "weight")
    for (_, role), case in list(FEW.items())[::5]:
        check(device("small"), case, role, bias=True)


def test_batches_larger_than_a_binding_are_cut() -> None:
    case = Case(8, 16, 16, (16, 16), (3, 3), 1, 1, 1, 16)
    for role in ROLES:
        made = check(device("gpu", max_binding=8 * 16 * 16 * 16 * 4 // 3), case, role, bias=role != "weight")
        assert sum(x.startswith("window") for x in labels(made)) > 2


@pytest.mark.parametrize("role", ROLES)
def test_nan_and_infinities_reach_only_what_they_meet(role: str, blocks: bool) -> None:
    """At borders, in the last row, which fills no block, and through weights."""
    for case in (
        Case(2, 9, 9, (13, 10), (3, 3), 1, 1, 1, 9),
        Case(2, 8, 8, (11, 12), (3, 3), 2, 1, 1, 8),
        Case(1, 20, 3, (13, 10), (3, 3), 1, 1),
        Case(1, 3, 20, (13, 10), (3, 3), 2, 1),
    ):
        call, sizes = call_of(case, role, D.float32, PLAIN, False)
        rng = np.random.default_rng(0)
        given = [rng.uniform(-1, 1, x.shape).astype(np.float32) for x in call.inputs if x is not None]
        for value, x in zip((np.nan, np.inf, -np.inf), (given[0],) * 3, strict=True):
            x[tuple(rng.integers(0, n) for n in x.shape)] = value
        given[0][0, 0, -1, -1] = np.inf
        if role != "weight":
            given[1][-1, 0, 1, 1] = np.inf  # the middle tap lies in the image for every result
        target = upload(np.full(sizes[-1], 77), D.float32)
        run(lower(call, device("gpu")), [*(upload(a, D.float32) for a in given), target])
        attrs = [call.attrs[k] for k in ("stride", "padding", "dilation", "groups", "size")]
        with np.errstate(invalid="ignore"):
            want = REFS[role](*given, *([] if role == "weight" else [None]), *attrs)
        assert not np.isfinite(want).all()
        got = download(target, D.float32, sizes[-1]).reshape(want.shape)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5)


def test_new_sizes_need_no_new_pipelines() -> None:
    sizes = [Case(2, 32, 32, (8, 8), (3, 3), 1, 1, 1, 32), Case(3, 64, 64, (12, 16), (3, 3), 1, 1, 1, 64)]
    for role in ROLES:
        a, b = ([x.kernel.key for x in lower(call_of(c, role, D.float32, PLAIN, False)[0], device("gpu")).launches] for c in sizes)
        assert a == b


def test_choice() -> None:
    """Tiles take over where groups have many channels, and where the image has three axes."""
    for case, role in (
        (Case(1, 64, 64, (9, 9), (3, 3), 1, 1), "output"),
        (Case(1, 64, 64, (9, 9), (3, 3), 1, 1, 1, 2), "input"),
        (Case(1, 16, 32, (9, 9), (3, 3), 1, 1, 1, 2), "weight"),
        (Case(1, 32, 3, (3, 9, 9), (3, 3, 3), 1, 1), "output"),
    ):
        call = call_of(case, role, D.float32, PLAIN, False)[0]
        assert not any(x.startswith("window") for x in labels(lower(call, device("gpu")))), role
    few, many = (call_of(Case(n, 128, 4, (64, 64), (3, 3), 1, 1), "output", D.float32, PLAIN, False)[0] for n in (1, 128))
    where = device("gpu", max_binding=1 << 30)
    assert labels(lower(few, where)) == ["window", "sum"] and labels(lower(many, where)) == ["window"]


TINT = """
import wgpudawn
from meganeura import dtype as D
from meganeura.kernels.conv import lower
from meganeura.kernels.kernel import Profile
from tests.kernels.test_conv_window import CASES, FEW, PLAIN, ROLES, call_of
adapter = wgpudawn.gpu.request_adapter_sync()
device = adapter.request_device_sync(required_features=["subgroups", "shader-f16"])
seen = set()
profile = Profile(family="gpu", backend="dawn", subgroup_size=32, max_workgroup_memory=32768)
for dtype in (D.float32, D.float16):
    for case, role in [*((c, r) for c in CASES.values() for r in ROLES), *((c, r) for (_, r), c in FEW.items())]:
        for launch in lower(call_of(case, role, dtype, PLAIN, role != "weight")[0], profile).launches:
            if launch.kernel.key not in seen:
                seen.add(launch.kernel.key)
                device.create_shader_module(code=launch.kernel.source(profile))
print("accepted", len(seen))
"""


def test_tint_accepts_what_naga_does() -> None:
    assert "accepted" in tint.printed(TINT)
