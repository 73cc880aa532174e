"""The rows of ops/optimizer.py: device against numpy in float64, for odd sizes, unaligned views, shared storages and float16."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import dispatch
from meganeura.ops.archetype import Update
from meganeura.ops.table import REGISTRY, Op, Sample

ROWS = [row for row in REGISTRY.values() if isinstance(row.archetype, Update)]
SAMPLES = [(row, sample) for row in ROWS for sample in row.samples()]  # type: ignore[misc]
_ids = [row.name for row, _ in SAMPLES]


def _alone(array: Any, dtype: Any) -> Any:
    return mg.tensor(array, dtype=dtype)


def _unaligned(array: Any, dtype: Any) -> Any:
    """The values at an odd offset of a larger storage, whose other elements must stay as they are."""
    flat = np.concatenate([[7.0], np.ravel(array), [7.0, 7.0]]).astype(np.float32)
    return mg.tensor(flat, dtype=dtype)[1 : 1 + array.size].view(array.shape)


def _shared(arrays: list[Any], dtype: Any) -> list[Any]:
    """All values in one storage, at multiples of 4."""
    sizes = [-(-a.size // 4) * 4 for a in arrays]
    flat = np.zeros(sum(sizes), np.float32)
    starts = np.cumsum([0, *sizes])
    for a, start in zip(arrays, starts, strict=False):
        flat[start : start + a.size] = np.ravel(a)
    whole = mg.tensor(flat, dtype=dtype)
    return [whole[int(s) : int(s) + a.size].view(a.shape) for a, s in zip(arrays, starts, strict=False)]


LAYOUTS: dict[str, Any] = {
    "alone": lambda arrays, dtype: [_alone(a, dtype) for a in arrays],
    "unaligned": lambda arrays, dtype: [_unaligned(a, dtype) for a in arrays],
    "shared": _shared,
}


def _applied(row: Op, sample: Sample, layout: Any, dtype: Any) -> dict[str, list[Any]]:
    """Every role's arrays after the row ran on a sample; params and grads in dtype, moments and values in float32."""
    values = row.archetype.values  # type: ignore[attr-defined]
    roles = [
        layout(v, dtype if name in ("params", "grads") else mg.float32) if isinstance(v, list) else mg.tensor(v) if name in values else v
        for name, v in zip(row.names, sample.args, strict=True)
    ]
    row(*roles)
    return {n: [t.numpy() for t in v] for n, v in zip(row.names, roles, strict=True) if isinstance(v, list)}


@pytest.mark.parametrize(("row", "sample"), SAMPLES, ids=_ids)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_against_numpy(row: Op, sample: Sample, layout: str) -> None:
    got = _applied(row, sample, LAYOUTS[layout], mg.float32)
    with dispatch.use(mg.Reference(precise=True)):
        expected = _applied(row, sample, LAYOUTS["alone"], mg.float32)
    for role, arrays in expected.items():
        for a, b in zip(got[role], arrays, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6, err_msg=role)


@pytest.mark.parametrize(("row", "sample"), SAMPLES, ids=_ids)
def test_float16(row: Op, sample: Sample) -> None:
    got = _applied(row, sample, LAYOUTS["alone"], mg.float16)
    with dispatch.use(mg.Reference()):
        expected = _applied(row, sample, LAYOUTS["alone"], mg.float16)
    for role, arrays in expected.items():
        for a, b in zip(got[role], arrays, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3, err_msg=role)


def test_what_lies_beside_a_view_is_kept() -> None:
    whole = mg.tensor(np.arange(12, dtype=np.float32))
    params = [whole[1:4], whole[5:6], whole[7:11]]
    REGISTRY["sgd_update"](params, [mg.ones(n) for n in (3, 1, 4)], 100.0, 1.0, 0.0)
    assert whole.tolist() == [0, -99, -98, -97, 4, -95, 6, -93, -92, -91, -90, 11]


def test_roles_must_match() -> None:
    row = REGISTRY["sgd_momentum_update"]
    p, g = [mg.zeros(2), mg.zeros(3)], [mg.zeros(2), mg.zeros(3)]
    with pytest.raises(mg.ShapeError, match="sgd_momentum_update: 2 params but 1 momentum_buffers"):
        row(p, g, [mg.zeros(2)], 0.1, 1.0, 0.0, 0.9, 1.0)
    with pytest.raises(mg.ShapeError, match=r"grads\[1\] has shape \[4\], params\[1\] \[3\]"):
        row(p, [g[0], mg.zeros(4)], p, 0.1, 1.0, 0.0, 0.9, 1.0)
    with pytest.raises(mg.DTypeError, match=r"grads\[0\] is int32"):
        row(p, [mg.zeros(2, dtype=mg.int32), g[1]], p, 0.1, 1.0, 0.0, 0.9, 1.0)


def test_zero_size_and_none() -> None:
    empty = [mg.zeros(0, 3)]
    REGISTRY["sgd_update"](empty, [mg.zeros(0, 3)], 0.1, 1.0, 0.0)
    p = [mg.zeros(0), mg.ones(2)]
    REGISTRY["sgd_update"](p, [mg.zeros(0), mg.ones(2)], 0.5, 1.0, 0.0)
    assert p[1].tolist() == [0.5, 0.5]
