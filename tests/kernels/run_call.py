"""Runs kernels on numpy arrays: a call is lowered for a device family and executed on the default device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from meganeura import dtype as D
from meganeura.dtype import DType
from meganeura.gpu import Device, current
from meganeura.kernels import pointwise
from meganeura.kernels.kernel import Call, Lowered, Profile
from meganeura.ops.archetype import Archetype, Pointwise
from meganeura.storage import Layout, padded_bytes

STORED = {"f32": np.float32, "f16": np.float16, "i32": np.int32, "u32": np.uint32}
FAMILIES = ("cpu", "gpu")


@dataclass(frozen=True)
class FakeOp:
    """As much of an op row as kernels look at."""

    archetype: Archetype
    name: str = "test"

    def __repr__(self) -> str:
        return f"<op {self.name}>"


def device() -> Device:
    return current()


def profile(family: str, **changes: Any) -> Profile:
    """The default device's profile with another family: both kernel families are right on every device."""
    return replace(device().profile, family=family, **changes)


EIGHT = "for subgroups of eight lanes"  # a reason to skip, which tests/conftest.py lets only GPUs have


def eight_lanes() -> bool:
    """Whether the device has the subgroups that the CPU family's own forms are for; elsewhere its portable ones run."""
    return device().profile.subgroups and device().profile.subgroup_size == 8


def upload(values: np.ndarray, dtype: DType) -> Any:
    """A buffer of the storage form of a flat array; bfloat16 values must already be rounded."""
    raw = np.ascontiguousarray(values).reshape(-1).astype(STORED[dtype.storage], copy=False)
    buffer = device().alloc(padded_bytes(raw.size, dtype))
    data = raw.tobytes()
    device().write(buffer, 0, data + b"\xff" * (padded_bytes(raw.size, dtype) - len(data)))
    return buffer


def download(buffer: Any, dtype: DType, count: int) -> np.ndarray:
    """`count` stored elements of a buffer, as logical values."""
    raw = np.frombuffer(device().read(buffer, 0, -(-count * dtype.itemsize // 4) * 4), STORED[dtype.storage])[:count]
    return raw.astype(dtype.numpy)


def run(lowered: Lowered, buffers: Sequence[Any], scalars: Sequence[Any] = ()) -> None:
    device().record(device().prepare(lowered), buffers, scalars)


def strided(base: np.ndarray, layout: Layout) -> np.ndarray:
    """A layout's view of a flat numpy array."""
    if layout.numel == 0:
        return np.zeros(layout.shape, base.dtype)
    size = base.itemsize
    return np.lib.stride_tricks.as_strided(base.reshape(-1)[layout.offset :], layout.shape, [s * size for s in layout.strides])


def make_call(archetype: Archetype, inputs: Mapping[str, Layout | None], outputs: Sequence[Layout], **fields: Any) -> Call:
    """A Call whose compute dtypes default to the inputs' own."""
    compute = fields.pop("compute", None) or tuple(D.float32 if x is None else x.dtype for x in inputs.values())
    return Call(cast(Any, FakeOp(archetype)), tuple(inputs), tuple(inputs.values()), tuple(outputs), compute, **fields)


def apply(
    expr: str | Archetype, family: str, out: DType, *arrays: tuple[np.ndarray, DType], shape: tuple[int, ...] | None = None, **fields: Any
) -> np.ndarray:
    """The result of a pointwise expression over {a}, {b}... on contiguous arrays."""
    inputs = {"abcdefgh"[i]: Layout(d, x.shape) for i, (x, d) in enumerate(arrays)}
    shape = np.broadcast_shapes(*(x.shape for x, _ in arrays)) if shape is None else shape
    archetype = Pointwise(expr) if isinstance(expr, str) else expr
    scalars = fields.pop("values", ())
    call = make_call(archetype, inputs, (Layout(out, shape),), **fields)
    count = int(np.prod(shape))
    target = upload(np.full(count, 77), out)
    run(pointwise.lower(call, profile(family)), [*(upload(x, d) for x, d in arrays), target], scalars)
    return download(target, out, count).reshape(shape)
