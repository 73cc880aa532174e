"""Updates of many parameters in one dispatch, in both families."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from meganeura import dtype as D
from meganeura.dtype import DType
from meganeura.errors import DeviceError
from meganeura.kernels import update
from meganeura.kernels.kernel import Lowered
from meganeura.ops.archetype import Update
from meganeura.storage import Layout
from tests.kernels.run_call import FAMILIES, STORED, download, make_call, profile, run, upload

F, H = D.float32, D.float16
SGD = Update(
    ("param", "grad", "buf"),
    (("b", "f32", "{momentum} * {buf} + {grad}"), ("p", "f32", "{param} - {lr} * {b}")),
    {"param": "p", "buf": "b"},
)
SCALARS = (("lr", "f32"), ("momentum", "f32"))
pytestmark = pytest.mark.parametrize("family", FAMILIES)


@dataclass
class Role:
    """The tensors of one role: each in its own storage, or all in an arena with gaps (the gaps hold 9)."""

    dtype: DType
    sizes: list[int]
    arena: bool
    step: int  # arena offsets are multiples of this
    start: int

    def __post_init__(self) -> None:
        rng = np.random.default_rng(len(self.sizes) + self.start)
        self.values = [rng.standard_normal(n).astype(STORED[self.dtype.storage]) for n in self.sizes]
        self.offsets, end = [], self.start
        for n in self.sizes:
            self.offsets.append(end if self.arena else 0)
            end += -(-n // self.step) * self.step
        self.base = np.full(end + 5, 9, STORED[self.dtype.storage])
        for at, v in zip(self.offsets, self.values):
            self.base[at : at + v.size] = v
        if self.arena:
            self.buffers = [upload(self.base, self.dtype)] * len(self.sizes)
        else:
            self.buffers = [upload(v, self.dtype) for v in self.values]

    def layouts(self) -> list[Layout]:
        return [Layout(self.dtype, (n,), None, at) for n, at in zip(self.sizes, self.offsets)]

    def check(self, want: list[np.ndarray], tolerance: float) -> None:
        if self.arena:
            expected = self.base.copy()
            for at, v in zip(self.offsets, want):
                expected[at : at + v.size] = v
            np.testing.assert_allclose(download(self.buffers[0], self.dtype, expected.size), expected, atol=tolerance)
            return
        for buffer, v in zip(self.buffers, want):
            np.testing.assert_allclose(download(buffer, self.dtype, v.size), v.astype(self.dtype.numpy), atol=tolerance)


def sgd(
    family: str, sizes: list[int], arena: bool = False, step: int = 4, start: int = 0, dtypes: Any = (F, F, F), **limits: int
) -> Lowered:
    """Runs one momentum step, checks it, and returns what it was lowered to."""
    roles = [Role(d, sizes, arena, step, start) for d in dtypes]
    k = len(sizes)
    inputs = {f"{name}.{i}": x for name, r in zip(SGD.roles, roles) for i, x in enumerate(r.layouts())}
    own = [r * k if arena else r * k + i for r in range(3) for i in range(k)]
    outs = [*roles[0].layouts(), *roles[2].layouts()]
    call = make_call(SGD, inputs, outs, scalars=SCALARS, alias=(*own, *own[:k], *own[2 * k :]), compute=(F,) * (3 * k))
    lowered = update.lower(call, profile(family, **limits))
    buffers = [b for r in roles for b in r.buffers]
    run(lowered, [*buffers, *roles[0].buffers, *roles[2].buffers], (0.1, 0.9))
    moments = [np.float32(0.9) * m.astype(np.float32) + g.astype(np.float32) for m, g in zip(roles[2].values, roles[1].values)]
    params = [p.astype(np.float32) - np.float32(0.1) * m for p, m in zip(roles[0].values, moments)]
    roles[0].check(params, 1e-6 if dtypes[0] is F else 3e-3)
    roles[1].check(roles[1].values, 0)
    roles[2].check(moments, 1e-6)
    return lowered


@pytest.mark.parametrize("sizes", [[1], [5], [4096], [4096, 3, 1, 30000, 77], [0, 8, 0], [7] * 9])
def test_own_storages(family: str, sizes: list[int]) -> None:
    sgd(family, sizes)


@pytest.mark.parametrize(("step", "start"), [(4, 0), (64, 128), (1, 0), (1, 3)])
def test_arenas_leave_their_gaps_alone(family: str, step: int, start: int) -> None:
    assert len(sgd(family, [5, 7, 4096, 33333, 1, 2, 3], arena=True, step=step, start=start).launches) == 1


@pytest.mark.parametrize("dtypes", [(F, H, F), (H, H, F), (D.bfloat16, F, F)])
@pytest.mark.parametrize("arena", [False, True])
def test_dtypes(family: str, dtypes: Any, arena: bool) -> None:
    if dtypes[0] is not D.bfloat16:
        sgd(family, [5, 7, 2050], arena, dtypes=dtypes)
        sgd(family, [5, 7, 3], arena, step=1, start=3, dtypes=dtypes)
        return
    call = make_call(
        Update(("param", "grad"), (("p", "f32", "{param} + {grad}"),), {"param": "p"}),
        {"param.0": Layout(D.bfloat16, (3,)), "grad.0": Layout(F, (3,))},
        (Layout(D.bfloat16, (3,)),),
        alias=(0, 1, 0),
    )
    buffer = upload(np.float32([1, 2, 3]), D.bfloat16)
    run(update.lower(call, profile(family)), [buffer, upload(np.float32([1e-3, 0.01, 0.02]), F), buffer])
    np.testing.assert_array_equal(download(buffer, D.bfloat16, 3), np.float32([1, 2.015625, 3.015625]))


def test_sizes_are_not_in_the_key(family: str) -> None:
    keys = [sgd(family, sizes, arena=True).launches[0].kernel.key for sizes in ([5, 9, 100], [77, 1, 4000], [8, 8, 8, 8])]
    assert keys[0] == keys[1] == keys[2]


def test_limits_split_the_work(family: str) -> None:
    assert len(sgd(family, [10] * 3, max_storage_buffers=4).launches) == 3
    with pytest.raises(DeviceError, match=r"3 storage buffers.*2"):
        sgd(family, [10], max_storage_buffers=2)
    for arena in (False, True):
        lowered = sgd(family, [30000, 5000], arena=arena, max_binding=65536)
        assert all(x.ranges and max(size for _, size in x.ranges) <= 65536 for x in lowered.launches) and len(lowered.launches) > 1


def test_many_segments(family: str) -> None:
    lowered = sgd(family, [3] * 600, arena=True)
    assert len(lowered.launches) == 2 and all(len(x.params) <= 65536 for x in lowered.launches)


def test_layouts_that_are_not_contiguous_are_refused(family: str) -> None:
    strided = Layout(F, (4,), (2,))
    call = make_call(SGD, {"param.0": strided, "grad.0": Layout(F, (4,)), "buf.0": Layout(F, (4,))}, (strided,), scalars=SCALARS)
    with pytest.raises(DeviceError, match="contiguous"):
        update.lower(call, profile(family))


SCALE = Update(("x",), (("y", "f32", "{x} * {factor} + {more}"),), {"x": "y"}, ("factor", "more"))


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("arena", [False, True])
def test_values_of_segments(family: str, arena: bool, each: bool) -> None:
    """A number a segment from one tensor, or one for all; read from views with strides and offsets too."""
    role = Role(F, [5, 4096, 0, 33, 7], arena, 4, 0)
    k = len(role.sizes)
    factors = np.random.default_rng(0).standard_normal(3 * k + 2).astype(np.float32)
    at = Layout(F, (k,), (3,), 2) if each else Layout(F, (), (), 2)
    inputs = {**{f"x.{i}": x for i, x in enumerate(role.layouts())}, "factor": at, "more": Layout(H, ())}
    own = [0] * k if arena else list(range(k))
    call = make_call(SCALE, inputs, role.layouts(), alias=(*own, k, k + 1, *own), compute=(F,) * (k + 2))
    lowered = update.lower(call, profile(family))
    run(lowered, [*role.buffers, upload(factors, F), upload(np.float16([0.5]), H), *role.buffers])
    used = factors[2::3][:k] if each else [factors[2]] * k
    role.check([v * f + np.float32(0.5) for v, f in zip(role.values, used, strict=True)], 1e-6)


def test_values_may_not_lie_in_what_is_updated(family: str) -> None:
    layout = Layout(F, (4,))
    call = make_call(
        SCALE, {"x.0": layout, "factor": Layout(F, ()), "more": Layout(F, ())}, (layout,), alias=(0, 0, 2, 0), compute=(F,) * 3
    )
    with pytest.raises(DeviceError, match="factor and more may not share memory"):
        update.lower(call, profile(family))
