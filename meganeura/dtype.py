"""Logical dtypes, how they are stored on the device, and PyTorch's promotion rules.

A logical dtype says what a user sees; `storage` says which WGSL array element holds it. int64 is logical over
i32 storage with range checks; bool takes 4 bytes and float16 needs the device's 16-bit storage, so that two
invocations never write parts of one word.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import DTypeError
from .provenance import site

STORAGE_BYTES = {"f32": 4, "f16": 2, "i32": 4, "u32": 4}


class DType:
    """A logical dtype. `kind` is one of b u i f; `storage` one of f32 f16 i32 u32; `value` the WGSL type in kernels."""

    __slots__ = ("bits", "kind", "name", "numpy", "rank", "storage", "value")

    def __init__(self, name: str, kind: str, bits: int, storage: str, numpy: Any, rank: int) -> None:
        self.name, self.kind, self.bits, self.storage, self.rank = name, kind, bits, storage, rank
        self.numpy = np.dtype(numpy)
        self.value = {"b": "bool", "u": "u32", "i": "i32", "f": "f32"}[kind]

    @property
    def itemsize(self) -> int:
        """Bytes an element takes on the device."""
        return STORAGE_BYTES[self.storage]

    @property
    def is_floating_point(self) -> bool:
        return self.kind == "f"

    def __repr__(self) -> str:
        return f"meganeura.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return dtype, (self.name,)


bool_ = DType("bool", "b", 1, "u32", np.bool_, 0)
uint8 = DType("uint8", "u", 8, "u32", np.uint8, 1)
int8 = DType("int8", "i", 8, "i32", np.int8, 2)
int32 = DType("int32", "i", 32, "i32", np.int32, 4)
uint32 = DType("uint32", "u", 32, "u32", np.uint32, 5)
int64 = DType("int64", "i", 64, "i32", np.int64, 6)
float16 = DType("float16", "f", 16, "f16", np.float16, 7)
bfloat16 = DType("bfloat16", "f", 16, "f32", np.float32, 8)
float32 = DType("float32", "f", 32, "f32", np.float32, 9)

ALL = (bool_, uint8, int8, int32, uint32, int64, float16, bfloat16, float32)
_BY_NAME = {d.name: d for d in ALL} | {
    "float": float32,
    "half": float16,
    "long": int64,
    "int": int32,
    "float64": float32,
    "double": float32,
}
_BY_NUMPY = {d.numpy: d for d in ALL if d is not bfloat16} | {
    np.dtype(np.float64): float32, np.dtype(np.int16): int32, np.dtype(np.uint16): int32, np.dtype(np.uint64): int64,
}  # fmt: skip


def dtype(value: Any) -> DType:
    """The DType that a DType, a name, a Python type or a numpy dtype stands for. float64 stands for float32."""
    if isinstance(value, DType):
        return value
    if value is float:
        return float32
    if value is int:
        return int64
    if value is bool:
        return bool_
    if isinstance(value, str) and value in _BY_NAME:
        return _BY_NAME[value]
    try:
        return _BY_NUMPY[np.dtype(value)]
    except (KeyError, TypeError):
        raise DTypeError(f"no dtype {value!r}; there are {', '.join(d.name for d in ALL)}\n  at {site()}") from None


_KIND_ORDER = {"b": 0, "u": 1, "i": 1, "f": 2}


def promote(a: DType, b: DType) -> DType:
    """The dtype that holds both, by PyTorch's table."""
    if a is b:
        return a
    ka, kb = _KIND_ORDER[a.kind], _KIND_ORDER[b.kind]
    if ka != kb:
        return a if ka > kb else b
    if a.kind == "f":
        return float32  # float16 with bfloat16 or anything with float32
    if a.kind == b.kind:
        return a if a.bits >= b.bits else b
    signed, unsigned = (a, b) if a.kind == "i" else (b, a)
    if signed.bits > unsigned.bits:
        return signed
    if unsigned is uint32:
        return int64
    return int32  # uint8 with int8: PyTorch gives int16, which is held as int32 here


def scalar_dtype(value: Any) -> DType:
    """The dtype a Python number stands for before promotion."""
    if isinstance(value, (bool, np.bool_)):
        return bool_
    if isinstance(value, (int, np.integer)):
        return int64
    return float32


def result_type(dims: list[DType], zeros: list[DType], scalars: list[DType]) -> DType:
    """PyTorch's result type of tensors with dimensions, 0-d tensors and Python numbers, in falling priority."""
    out: DType | None = None
    for group, default in ((dims, None), (zeros, None), (scalars, "scalar")):
        if not group:
            continue
        acc = group[0]
        for d in group[1:]:
            acc = promote(acc, d)
        if out is None:
            out = acc
        elif _KIND_ORDER[acc.kind] > _KIND_ORDER[out.kind]:
            out = promote(out, acc) if default is None else (float32 if acc.kind == "f" else acc)
    if out is None:
        raise DTypeError("no operand to take a dtype from")
    return out
