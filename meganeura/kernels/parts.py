"""Calls on operands larger than a binding, cut into calls of the same op that each fit: rows of a Row op, and of gather.

In: a Call, a Profile. Out: Calls that together do the same work; the call itself where it fits or cannot be cut, and then
its kernel says what is too large. Pointwise ops, reductions and products cut in their own ways.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from ..ops.archetype import Row
from ..shape import extent, numel
from ..storage import Layout
from . import template as T
from .kernel import Call, Profile
from .operand import stride_over


def parts(call: Call, profile: Profile) -> list[Call]:
    """The call, or calls on fewer rows each."""
    if not T.large(call, profile):
        return [call]
    arch = call.op.archetype
    if isinstance(arch, Row):
        where = next(i for i, name in enumerate(call.names) if name == arch.full[0])
        shape = call.inputs[where]
        rows = None if shape is None else _rows(call, arch, shape.shape)
    elif getattr(arch, "name", "") == "gather" and call.inputs[1] is not None:
        rows = _Rows(call, call.inputs[1].shape, {call.attrs["dim"] % max(len(call.outputs[0].shape), 1)}, {0, 1, 2})
    else:
        rows = None
    if rows is None or not rows.helps(profile):
        return [call]
    return rows.halves(call, rows.count, profile.max_binding - 512)


def _rows(call: Call, arch: Row, shape: Sequence[int]) -> _Rows | None:
    """How a Row op is cut: operands with the row's shape along a kept dimension, those with a value a row along all of them."""
    full, flat = set(), set()
    dims = set(call.attrs["dim"])
    rows = numel(tuple(s for d, s in enumerate(shape) if d not in dims))
    operands = (*call.inputs, *call.outputs)
    for i, x in enumerate(operands):
        output = i - len(call.inputs)
        if x is None or (output < 0 and call.names[i] in arch.column):
            continue
        if call.names[i] in arch.full if output < 0 else output < len(arch.element):
            full.add(i)
        elif x.numel == rows and rows > 1:
            if stride_over(x.shape, x.strides) is None:
                return None
            flat.add(i)
    return _Rows(call, shape, dims, full, flat)


class _Rows:
    """Where a call can be cut: along `dim`, the first dimension with more than one index, if it is not one of `dims`."""

    def __init__(self, call: Call, shape: Sequence[int], dims: set[int], full: Set[int], flat: Set[int] = frozenset()) -> None:
        self.call, self.full, self.flat = call, full, flat
        self.dim = next((d for d, n in enumerate(shape) if n > 1), -1)
        self.possible = self.dim >= 0 and self.dim not in dims
        self.count = shape[self.dim] if self.possible else 0
        self.within = numel(tuple(n for d, n in enumerate(shape) if d not in dims and d != self.dim))  # rows an index

    def helps(self, profile: Profile) -> bool:
        """Whether one index of the dimension fits a binding."""
        limit = profile.max_binding - 512
        return self.possible and not _too_large(self._part(self.call, 0, 1), limit)

    def halves(self, call: Call, count: int, limit: int) -> list[Call]:
        if not _too_large(call, limit):
            return [call]
        half = -(-count // 2)
        pieces = ((0, half), (half, count))
        return [part for low, high in pieces for part in self.halves(self._part(call, low, high), high - low, limit)]

    def _part(self, call: Call, low: int, high: int) -> Call:
        """The call on indices low..high of the dimension."""
        cut = [self._cut(i, x, low, high) for i, x in enumerate((*call.inputs, *call.outputs))]
        n = len(call.inputs)
        return replace(call, inputs=tuple(cut[:n]), outputs=tuple(x for x in cut[n:] if x is not None))

    def _cut(self, i: int, x: Layout | None, low: int, high: int) -> Layout | None:
        if x is not None and i in self.full and x.shape[self.dim] == 1:
            return x  # broadcast: pieces are cut from two indices or more
        if x is not None and i in self.full:
            shape = (*x.shape[: self.dim], high - low, *x.shape[self.dim + 1 :])
            return x.with_(shape=shape, strides=x.strides, offset=x.offset + low * x.strides[self.dim])
        if x is not None and i in self.flat:
            step = stride_over(x.shape, x.strides) or 0
            return x.with_(shape=((high - low) * self.within,), strides=(step,), offset=x.offset + low * self.within * step)
        return x


def _too_large(call: Call, limit: int) -> bool:
    """Whether an operand spans more bytes than a binding."""
    for x in (*call.inputs, *call.outputs):
        if x is not None:
            low, high = extent(x.shape, x.strides)
            if (high - low + 1) * x.dtype.itemsize > limit:
                return True
    return False
