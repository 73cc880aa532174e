"""The eager interpreter: one plan per (op, layouts, attributes), then a dictionary look-up, an allocation and a record a call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import dispatch, gpu, kernels
from ..dispatch import Interpreter
from ..dtype import DType
from ..errors import DeviceError, DTypeError, MeganeuraError, OutOfMemoryError, TraceError
from ..kernels.call import make_call
from ..ops.infer import check_inplace, freeze, infer, named
from ..ops.table import ATTR, LIST, OPERAND, SCALAR, Op
from ..provenance import site
from ..reference import rounded
from ..spans import span
from ..storage import Layout, Storage, padded_bytes
from ..tensor import Tensor
from .check import check_against_reference
from .fuse import FusedRules

_make = Tensor._make


class Plan:
    """What a call of this signature does: prepared launches, and dtype, element count and bytes of each output."""

    __slots__ = ("inplace", "outputs", "prepared")

    def __init__(self, prepared: Any, outputs: tuple[tuple[DType, int, int, Layout], ...], inplace: bool) -> None:
        self.prepared, self.outputs, self.inplace = prepared, outputs, inplace


class Eager(Interpreter):
    """Runs ops on one device."""

    name = "eager"

    def __init__(self, device: Any) -> None:
        self.device = device
        self.plans: dict[Any, Plan] = {}
        self.rules = FusedRules()
        self.checking = device.config.check
        self._release = device.graveyard.append

    def __repr__(self) -> str:
        return str(self.device.name)

    def apply(self, op: Op, values: Sequence[Any], out: Tensor | None) -> Any:
        key: list[Any] = [op]
        tensors: list[Tensor] = []
        numbers: list[Any] = []
        scalars: list[Any] = []
        for kind, v in zip(op.kinds, values, strict=True):
            if isinstance(v, Tensor):
                key.append(v.layout)
                tensors.append(v)
            elif kind == SCALAR:
                scalars.append(v)
            elif kind == OPERAND:
                key.append(v.__class__)
                numbers.append(v)
            elif kind == LIST:
                key.append(len(v))
                for t in v:
                    key.append(t.layout)
                    tensors.append(t)
            else:
                key.append(v)
        if out is not None or op.mutates:
            key.append(self._aliases(op, values, tensors, out))
        signature = tuple(key)
        try:
            plan = self.plans.get(signature)
        except TypeError:  # an attribute given as a list
            return self.apply(op, [freeze(v) if k == ATTR else v for k, v in zip(op.kinds, values, strict=True)], out)
        if plan is None:
            plan = self._plan(op, values, tensors, out, signature)
        buffers = self._buffers(op, values, tensors, numbers)
        result, outs = self._outputs(op, values, plan, out)
        buffers.extend(outs)
        if plan.prepared is not None:
            self.device.record(plan.prepared, buffers, numbers + scalars if scalars or numbers else (), site(), op.name)
        if self.checking:
            check_against_reference(self, op, values, result)
        return result

    # ---- the warm path ----
    def _buffers(self, op: Op, values: Sequence[Any], tensors: list[Tensor], numbers: list[Any]) -> list[Any]:
        if not numbers:
            return [t._storage.buffer if t._storage.world is self else self._foreign(op, t) for t in tensors]
        buffers: list[Any] = []
        for kind, v in zip(op.kinds, values, strict=True):
            if isinstance(v, Tensor):
                buffers.append(v._storage.buffer if v._storage.world is self else self._foreign(op, v))
            elif kind == OPERAND:
                buffers.append(None)
            elif kind == LIST:
                buffers.extend(t._storage.buffer if t._storage.world is self else self._foreign(op, t) for t in v)
        return buffers

    def _outputs(self, op: Op, values: Sequence[Any], plan: Plan, out: Tensor | None) -> tuple[Any, list[Any]]:
        if out is not None:
            return out, [out._storage.buffer if out._storage.world is self else self._foreign(op, out)]
        if op.mutates:
            written = tuple(t for role in op.mutates for t in values[op.names.index(role)])
            return written, [t._storage.buffer for t in written]
        made, buffers = [], []
        alloc, release = self.device.alloc, self._release
        for dtype, elements, nbytes, layout in plan.outputs:
            try:
                buffer = alloc(nbytes)
            except DeviceError as e:
                raise dispatch.located(e, op, site()) from None
            made.append(_make(Storage(dtype, elements, buffer, self, release), layout))
            buffers.append(buffer)
        return (made[0] if len(made) == 1 else tuple(made)), buffers

    def _foreign(self, op: Op, t: Tensor) -> Any:
        world = t._storage.world
        if t._storage.buffer is None:
            raise TraceError(
                f"{op.name}: {world.describe(t)} outlived the trace that made it; return it from the compiled function\n  at {site()}"
            )
        raise DeviceError(
            f"{op.name}: a tensor of {world!r} cannot be used on {self!r}; copy it with meganeura.tensor(t.numpy())\n  at {site()}"
        )

    def _aliases(self, op: Op, values: Sequence[Any], tensors: list[Tensor], out: Tensor | None) -> tuple[Any, ...]:
        if out is None:
            written = [t for role in op.mutates for t in values[op.names.index(role)]]
            return _alias([*tensors, *written])
        return (out.layout, _alias([*tensors, out]))

    # ---- planning ----
    def _plan(self, op: Op, values: Sequence[Any], tensors: list[Tensor], out: Tensor | None, signature: Any) -> Plan:
        args = named(op, values)
        try:
            inferred = infer(op, args)
            outputs = self._output_layouts(op, values, inferred.outputs, out)
            alias = self._operand_aliases(op, values, out)
            if out is None and not op.mutates:
                self._check_size(outputs)
            call = make_call(op, args, inferred, outputs, alias)
            empty = all(o.numel == 0 for o in outputs)
            with span("plan", op.shown):
                lowered = None if empty else kernels.lower(call, self.device.profile)
                prepared = self.device.prepare(lowered) if lowered is not None and lowered.launches else None
        except MeganeuraError as e:
            raise dispatch.located(e, op, site()) from None
        facts = tuple((x.dtype, x.numel, padded_bytes(x.numel, x.dtype), x) for x in outputs)
        plan = Plan(prepared, facts, out is not None)
        if len(self.plans) > 16384:
            self.plans.clear()
        self.plans[signature] = plan
        return plan

    def _check_size(self, outputs: Sequence[Layout]) -> None:
        """Refuse what no buffer can hold before a plan of very many parts is made."""
        limit = self.device.limits["max-buffer-size"]
        for o in outputs:
            size = padded_bytes(o.numel, o.dtype)
            if size > limit:
                raise OutOfMemoryError(f"{o} takes {size} bytes, but the largest buffer of {self.device.name} holds {limit}")

    def _output_layouts(self, op: Op, values: Sequence[Any], specs: Any, out: Tensor | None) -> list[Layout]:
        if op.mutates:
            return [t.layout for role in op.mutates for t in values[op.names.index(role)]]
        if out is None:
            return [Layout(s.dtype, s.shape) for s in specs]
        (spec,) = specs
        check_inplace(spec, out.layout)
        return [out.layout]

    def _operand_aliases(self, op: Op, values: Sequence[Any], out: Tensor | None) -> tuple[int, ...]:
        if out is None and not op.mutates:
            return ()
        operands: list[Any] = []
        for kind, v in zip(op.kinds, values, strict=True):
            if kind == LIST:
                operands.extend(v)
            elif kind not in (SCALAR, ATTR) and v is not None:
                operands.append(v)
        written = [out] if out is not None else [t for role in op.mutates for t in values[op.names.index(role)]]
        return _alias([*operands, *written])

    # ---- the rest of an interpreter ----
    def gradient(self, op: Op, name: str, rule: Callable[..., Any], args: dict[str, Any]) -> Any:
        return self.rules.evaluate(self, op, name, rule, args)

    def upload(self, dtype: DType, array: Any) -> Tensor:
        a = np.asarray(array)
        layout = Layout(dtype, a.shape)
        try:
            buffer = self.device.alloc(padded_bytes(layout.numel, dtype), idle=True)
        except DeviceError as e:
            raise type(e)(f"{e}\n  at {site()}") from None
        storage = Storage(dtype, layout.numel, buffer, self, self._release)
        if layout.numel:
            raw = device_bytes(a, dtype)
            self.device.write(storage.buffer, 0, raw)
        return _make(storage, layout)

    def read(self, tensor: Tensor) -> Any:
        storage, layout = tensor._storage, tensor.layout
        if storage.world is not self:
            if storage.buffer is None:
                raise TraceError(
                    f"{storage.world.describe(tensor)} outlived the trace that made it; return it from the compiled function\n  at {site()}"
                )
            return storage.world.read(tensor)
        storage.buffer.check()
        low, high = layout.span()
        count = high - low + 1
        if count > 4 * layout.numel + 1024:
            return self.read(dense_copy(tensor))
        if layout.numel == 0:
            return np.zeros(layout.shape, layout.dtype.numpy)
        size = layout.dtype.itemsize
        first = low * size // 4 * 4
        last = -(-(high + 1) * size // 4) * 4
        raw = self.device.read(storage.buffer, first, last - first)
        flat = np.frombuffer(raw, _STORED[layout.dtype.storage])[low - first // size :]
        strided = np.lib.stride_tricks.as_strided(flat[layout.offset - low :], layout.shape, tuple(s * size for s in layout.strides))
        return strided.astype(layout.dtype.numpy)


_STORED = {"f32": np.float32, "f16": np.float16, "i32": np.int32, "u32": np.uint32}


def dense_copy(tensor: Tensor) -> Tensor:
    """A contiguous copy without history, made by the interpreter that the tensor lives on."""
    from ..ops.pointwise import clone

    with dispatch.no_grad(), dispatch.use(tensor._storage.world):
        return clone(tensor.detach())  # type: ignore[no-any-return]


def device_bytes(a: Any, dtype: DType) -> bytes:
    """The bytes to store, padded to 4. Raises DTypeError naming the first value outside int32 or uint32 storage."""
    if dtype.kind in "iu" and a.size and a.dtype.kind in "iuf":
        if a.dtype.kind == "f":
            a = np.where(np.isnan(a), np.float64(-(2**31) if dtype.kind == "i" else 0), np.trunc(a))
        if dtype.bits >= 32:
            _check_range(a, dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        stored = (
            rounded(a, dtype) if dtype.name == "bfloat16" else (a.astype(np.int64) if a.dtype.kind == "f" and dtype.kind in "iu" else a)
        )
        raw = np.ascontiguousarray(stored.astype(dtype.numpy), _STORED[dtype.storage]).tobytes()
    return raw + b"\0" * (-len(raw) % 4)


def _check_range(a: Any, dtype: DType) -> None:
    low, high = (0, 2**32 - 1) if dtype.storage == "u32" else (-(2**31), 2**31 - 1)
    bad = np.atleast_1d((a < low) | (a > high))
    if bad.any():
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        value = np.atleast_1d(a)[place]
        raise DTypeError(
            f"value {value} at {list(place)} does not fit {dtype.name}, stored in 32 bits on the device ({low} to {high})\n  at {site()}"
        )


def _alias(operands: Sequence[Any]) -> tuple[int, ...]:
    first: dict[int, int] = {}
    out = []
    for i, t in enumerate(operands):
        if isinstance(t, Tensor):
            out.append(first.setdefault(t._storage.uid, i))
        else:
            out.append(i)
    return tuple(out)


_lock = threading.Lock()
_defaults: dict[Any, Eager] = {}  # by device


def default() -> Eager:
    """The interpreter of the current device, opened when first needed."""
    device = gpu.current()
    found = _defaults.get(device)
    if found is None:
        with _lock:
            found = _defaults.setdefault(device, Eager(device))
    return found


dispatch.hooks.eager = default
