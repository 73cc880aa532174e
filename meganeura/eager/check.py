"""MEGANEURA_CHECK=1: every eager op is compared with its numpy reference right after it ran."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import dispatch
from ..errors import MeganeuraError
from ..ops.table import Op
from ..provenance import site
from ..reference import Reference
from ..tensor import Tensor


def check_against_reference(eager: Any, op: Op, values: Sequence[Any], result: Any) -> None:
    """Raise if a result differs from the reference beyond float32 accuracy. In-place results are not compared: their inputs are gone."""
    results = result if isinstance(result, tuple) else (result,)
    if op.ref is None or op.mutates or any(r._storage is v._storage for r in results for v in values if isinstance(v, Tensor)):
        return
    reference = Reference(precise=True)
    with dispatch.use(reference), dispatch.no_grad():
        expected = reference.apply(op, values, None)
    for got, want in zip(results, expected if isinstance(expected, tuple) else (expected,), strict=True):
        a, b = np.asarray(eager.read(got), np.float64), np.asarray(reference.read(want), np.float64)
        tolerance = 2e-2 if got.dtype.bits == 16 else 1e-4
        scale = np.max(np.abs(b[np.isfinite(b)]), initial=1.0)
        bad = ~np.isclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
        if bad.any():
            place = tuple(int(i) for i in np.argwhere(bad)[0])
            raise MeganeuraError(f"check: {op.name} gave {a[place]} at {list(place)}, its reference {b[place]}\n  at {site()}")
