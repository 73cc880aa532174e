"""Reference: every op by its numpy reference. The oracle for kernels, fusion and gradients; needs no GPU.

With precise=True all floating point values are float64, whatever their logical dtype: the numeric side of gradcheck and
of the error bounds for compiled code. Device tensors met inside are shadowed: writes stay in this interpreter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import dispatch
from .dispatch import Interpreter
from .dtype import DType
from .errors import DTypeError, MeganeuraError
from .ops.infer import freeze, infer, named
from .ops.table import ATTR, LIST, SCALAR, Op
from .provenance import site
from .storage import Layout, Storage
from .tensor import Tensor


class Reference(Interpreter):
    """`with dispatch.use(Reference(precise=True)):` runs a block in numpy."""

    name = "reference"

    def __init__(self, precise: bool = False) -> None:
        self.precise = precise
        self.shadows: dict[int, tuple[Storage, Any]] = {}

    def __repr__(self) -> str:
        return f"reference({'float64' if self.precise else 'float32'})"

    def kept_as(self, dtype: DType) -> Any:
        """The numpy dtype that holds a logical dtype here."""
        return np.dtype(np.float64) if self.precise and dtype.is_floating_point else dtype.numpy

    # ---- memory ----
    def _memory(self, storage: Storage) -> Any:
        if storage.world is self:
            return storage.buffer
        if storage.uid not in self.shadows:
            whole = Tensor._make(storage, Layout(storage.dtype, (storage.elements,)))
            self.shadows[storage.uid] = (storage, np.array(storage.world.read(whole), dtype=self.kept_as(storage.dtype)))
        return self.shadows[storage.uid][1]

    def array(self, t: Tensor) -> Any:
        """A numpy view of a tensor's values."""
        memory, layout = self._memory(t._storage), t.layout
        step = memory.itemsize
        return np.lib.stride_tricks.as_strided(memory[layout.offset :], layout.shape, tuple(s * step for s in layout.strides))

    def make(self, array: Any, dtype: DType) -> Tensor:
        """A tensor of this world that owns a copy of the array."""
        flat = np.array(array, dtype=self.kept_as(dtype)).reshape(-1)
        storage = Storage(dtype, flat.size, flat if flat.size else np.zeros(1, flat.dtype), self)
        return Tensor._make(storage, Layout(dtype, np.shape(array)))

    def upload(self, dtype: DType, array: Any) -> Tensor:
        return self.make(rounded(np.asarray(array), dtype, self.precise), dtype)

    def read(self, tensor: Tensor) -> Any:
        out = np.array(self.array(tensor))
        return out if self.precise else out.astype(tensor.dtype.numpy)

    # ---- ops ----
    def _argument(self, value: Any, dtype: DType | None) -> Any:
        if not isinstance(value, Tensor):
            return value
        a = self.array(value)
        kind = self.kept_as(dtype or value.dtype)
        return a.astype(np.float32 if kind == np.float16 else kind)

    def apply(self, op: Op, values: Sequence[Any], out: Tensor | None) -> Any:
        args = named(op, values)
        try:
            inferred = infer(op, args)
        except MeganeuraError as e:
            raise dispatch.located(e, op, site()) from None
        if op.ref is None:
            raise DTypeError(f"op {op.name} has no reference\n  at {site()}")
        with np.errstate(all="ignore"):
            got = op.ref(*self._arguments(op, values, inferred).values())
        if op.mutates:
            return self._mutate(op, values, got)
        results = got if isinstance(got, tuple) else (got,)
        specs = inferred.outputs
        made = []
        for r, spec in zip(results, specs, strict=True):
            if np.shape(r) != spec.shape:
                raise DTypeError(f"the reference of {op.name} gave shape {np.shape(r)} where {spec.shape} was inferred")
            made.append(rounded(np.asarray(r), out.dtype if out is not None else spec.dtype, self.precise))
        if out is not None:
            self.array(out)[...] = made[0]
            return out
        tensors = tuple(self.make(m, s.dtype) for m, s in zip(made, specs, strict=True))
        return tensors if len(tensors) > 1 else tensors[0]

    def _arguments(self, op: Op, values: Sequence[Any], inferred: Any) -> dict[str, Any]:
        out: dict[str, Any] = {}
        at = 0
        for p, v in zip(op.params, values, strict=True):
            if p.kind in (SCALAR, ATTR):
                out[p.name] = freeze(v)
            elif p.kind == LIST:
                out[p.name] = [self._argument(t, d) for t, d in zip(v, inferred.compute[at : at + len(v)], strict=True)]
                at += len(v)
            elif v is None:
                out[p.name] = None
            else:
                out[p.name] = (
                    self._number(v, inferred.compute[at]) if not isinstance(v, Tensor) else self._argument(v, inferred.compute[at])
                )
                at += 1
        return out

    def _number(self, value: Any, dtype: DType) -> Any:
        kind = self.kept_as(dtype)
        return np.asarray(value).astype(np.float32 if kind == np.float16 else kind)[()]

    def _mutate(self, op: Op, values: Sequence[Any], got: Any) -> Any:
        written = []
        for role, arrays in zip(op.mutates, got, strict=True):
            for t, a in zip(values[op.names.index(role)], arrays, strict=True):
                self.array(t)[...] = a
                written.append(t)
        return tuple(written)


def rounded(a: Any, dtype: DType, precise: bool = False) -> Any:
    """Values as storing them in a dtype leaves them (int32 storage wraps; bfloat16 rounds to nearest even)."""
    if dtype.is_floating_point and precise:
        return a.astype(np.float64)
    with np.errstate(all="ignore"):
        if dtype.name == "bfloat16":
            bits = np.ascontiguousarray(a, np.float32).view(np.uint32)
            kept = ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)).view(np.float32)
            return np.where(np.isnan(a), np.float32(np.nan), kept)
        return a.astype(dtype.numpy)
