"""Runs rows of the op table on numpy arrays, lowered for either device family, beside their float64 reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meganeura import dtype as D
from meganeura import kernels
from meganeura.dtype import DType
from meganeura.kernels.call import make_call, scalar_values
from meganeura.kernels.kernel import Call
from meganeura.ops.infer import infer, named
from meganeura.ops.table import Op
from meganeura.storage import Layout

from .run_call import download, profile, run, upload


def row_call(op: Op, args: Sequence[Any], dtype: DType = D.float32) -> Call:
    """The call of a row on contiguous tensors of these arrays' shapes: integers are int64, floats `dtype`."""
    given = named(op, [_layout(a, dtype) for a in args])
    inferred = infer(op, given)
    return make_call(op, given, inferred, [Layout(s.dtype, s.shape) for s in inferred.outputs])


def _layout(x: Any, dtype: DType) -> Any:
    if isinstance(x, list):
        return [_layout(y, dtype) for y in x]
    return Layout(_dtype(x, dtype), x.shape) if isinstance(x, np.ndarray) else x


def _dtype(x: Any, dtype: DType) -> DType:
    return D.int64 if x.dtype.kind == "i" else dtype


def execute(op: Op, args: Sequence[Any], family: str, dtype: DType = D.float32, **changes: Any) -> list[Any]:
    """The row's outputs as arrays."""
    call = row_call(op, args, dtype)
    arrays = [x for a in args for x in (a if isinstance(a, list) else [a]) if isinstance(x, np.ndarray)]
    inputs = [upload(a, _dtype(a, dtype)) for a in arrays]
    outputs = [upload(np.full(max(1, o.numel), 77), o.dtype) for o in call.outputs]
    run(kernels.lower(call, profile(family, **changes)), [*inputs, *outputs], scalar_values(op, args, np.ndarray))
    return [download(b, o.dtype, o.numel).reshape(o.shape) for b, o in zip(outputs, call.outputs, strict=True)]


def precise(op: Op, args: Sequence[Any]) -> list[Any]:
    """The row's float64 reference."""
    assert op.ref is not None
    with np.errstate(all="ignore"):
        made = op.ref(*[_wide(a) for a in args])
    return list(made) if isinstance(made, tuple) else [made]


def _wide(x: Any) -> Any:
    if isinstance(x, list):
        return [_wide(y) for y in x]
    return x.astype(np.float64) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x


def compare(op: Op, args: Sequence[Any], family: str, dtype: DType = D.float32, tolerance: float = 2e-5, **changes: Any) -> list[Any]:
    """Assert that the kernels give what the reference gives; returns the reference's outputs."""
    want = precise(op, args)
    for i, (g, w) in enumerate(zip(execute(op, args, family, dtype, **changes), want, strict=True)):
        np.testing.assert_allclose(g, np.reshape(w, g.shape), rtol=tolerance, atol=tolerance, err_msg=f"{op.name} output {i}")
    return want
