"""Norms of many tensors in few launches, in both families."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meganeura import dtype as D
from meganeura.errors import DeviceError
from meganeura.kernels import norms
from meganeura.kernels.kernel import Lowered
from meganeura.ops.archetype import Kernel
from meganeura.storage import Layout
from tests.kernels.run_call import FAMILIES, STORED, download, make_call, profile, run, upload

F, H = D.float32, D.float16
pytestmark = pytest.mark.parametrize("family", FAMILIES)


def _expected(x: Any, kind: str) -> float:
    x = np.abs(x.astype(np.float64))
    return float(x.max(initial=0.0)) if kind == "inf" else float(x.sum()) if kind == "1" else float(np.sqrt((x * x).sum()))


def _run(
    family: str, values: list[Any], layouts: list[Layout], buffers: list[Any], kind: str = "2", alias: Any = (), **limits: int
) -> Lowered:
    inputs = {f"tensors.{i}": x for i, x in enumerate(layouts)}
    call = make_call(Kernel("tensor_norms"), inputs, (Layout(F, (len(layouts),)),), attrs={"kind": kind}, alias=alias)
    lowered = norms.lower(call, profile(family, **limits))
    out = upload(np.full(len(layouts), 77, np.float32), F)
    run(lowered, [*buffers, out])
    want = [_expected(v, kind) for v in values]
    tolerance = 2e-6 if all(x.dtype is F for x in layouts) else 1e-3
    np.testing.assert_allclose(download(out, F, len(layouts)), want, rtol=tolerance, atol=1e-7)
    return lowered


def _own(family: str, sizes: list[int], dtypes: Any = None, **more: Any) -> Lowered:
    rng = np.random.default_rng(len(sizes))
    dtypes = dtypes or [F] * len(sizes)
    values = [rng.standard_normal(n).astype(STORED[d.storage]) for n, d in zip(sizes, dtypes, strict=True)]
    layouts = [Layout(d, (n,)) for n, d in zip(sizes, dtypes, strict=True)]
    return _run(family, values, layouts, [upload(v, d) for v, d in zip(values, dtypes, strict=True)], **more)


@pytest.mark.parametrize("kind", ["1", "2", "inf"])
@pytest.mark.parametrize("sizes", [[1], [5], [0, 7, 0], [16384, 16385, 3, 100001, 64]])
def test_own_storages(family: str, sizes: list[int], kind: str) -> None:
    _own(family, sizes, kind=kind)


def test_many_tensors_few_launches(family: str) -> None:
    lowered = _own(family, [1 + i % 9 for i in range(100)])
    assert len(lowered.launches) <= {"cpu": 9, "gpu": 5}[family] + 100 // (profile(family).max_storage_buffers - 1)
    assert len({x.kernel.key for x in _own(family, [2 + i for i in range(28)]).launches}) <= 3


def test_dtypes(family: str) -> None:
    _own(family, [33, 70, 9], [F, H, H])


def test_arena_with_odd_offsets_and_strides(family: str) -> None:
    base = np.random.default_rng(0).standard_normal(400).astype(np.float32)
    layouts = [
        Layout(F, (7,), None, 1),
        Layout(F, (9,), None, 20),
        Layout(F, (5, 4), (1, 5), 40),
        Layout(F, (6,), (0,), 3),
        Layout(F, (8,), (-2,), 90),
    ]
    values = [np.lib.stride_tricks.as_strided(base[x.offset :], x.shape, [4 * s for s in x.strides]) for x in layouts]
    buffer = upload(base, F)
    _run(family, values, layouts, [buffer] * 5, alias=(0, 0, 0, 0, 0, 5))


def test_limits_split_the_work(family: str) -> None:
    lowered = _own(family, [50000, 300, 100000], max_binding=65536 + 512)
    assert all(size <= 65536 + 512 for x in lowered.launches if x.ranges for _, size in x.ranges)
    assert len(_own(family, [10] * 9, max_storage_buffers=4).launches) == 4


def test_not_finite(family: str) -> None:
    values = [np.float32([1, np.nan, 2]), np.float32([np.inf, 1]), np.float32([3e38, 3e38])]
    for kind in ("1", "2"):
        layouts = [Layout(F, (v.size,)) for v in values]
        inputs = {f"tensors.{i}": x for i, x in enumerate(layouts)}
        call = make_call(Kernel("tensor_norms"), inputs, (Layout(F, (3,)),), attrs={"kind": kind})
        out = upload(np.zeros(3), F)
        run(norms.lower(call, profile(family)), [*(upload(v, F) for v in values), out])
        got = download(out, F, 3)
        assert np.isnan(got[0]) and np.isinf(got[1:]).all()


def test_two_dtypes_in_one_storage_are_refused(family: str) -> None:
    call = make_call(
        Kernel("tensor_norms"), {"a": Layout(F, (4,)), "b": Layout(H, (4,))}, (Layout(F, (2,)),), attrs={"kind": "2"}, alias=(0, 0, 2)
    )
    with pytest.raises(DeviceError, match="several dtypes"):
        norms.lower(call, profile(family))
