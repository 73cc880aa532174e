"""Values of graphs as plain data and back: numbers, texts, tuples, dtypes, op rows and what fused rows are built from.

In: a value. Out: what JSON can hold, or Unplain for what has no such form (rows and objects from outside the package).
A row of the table is its name; a row that fusion built is the function that built it and its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from ..dispatch import HostScalar
from ..dtype import DType, dtype
from ..ops.archetype import Epilogue, Part, Reduce, Row, Stage
from ..ops.beside import beside_op
from ..ops.chain import chain_op
from ..ops.fused_conv import fused_conv_op
from ..ops.fused_matmul import fused_matmul_op
from ..ops.fused_rows import fused_op
from ..ops.table import REGISTRY, Op

_BUILDERS: dict[str, Callable[..., Op]] = {f.__name__: f for f in (beside_op, chain_op, fused_conv_op, fused_matmul_op, fused_op)}
_CLASSES: dict[str, type] = {c.__name__: c for c in (Epilogue, Part, Reduce, Row, Stage)}
_FIELDS = {c: tuple(f.name for f in fields(c)) for c in _CLASSES.values()}
_SIMPLE = (type(None), bool, int, float, str)
_PACKAGE = __package__.partition(".")[0]


class Unplain(Exception):
    """A value that has no form as plain data."""


class Packing:
    """Values as data. Op rows are numbered in `ops`; host scalars met are in `hosts`, by index."""

    def __init__(self) -> None:
        self.ops: dict[Op, int] = {}
        self.rows: list[Any] = []
        self.hosts: dict[int, HostScalar] = {}

    def op(self, op: Op) -> int:
        """The number of a row."""
        found = self.ops.get(op)
        if found is None:
            row = self._row(op)  # first: it may number the rows that this one is built from
            found = self.ops[op] = len(self.rows)
            self.rows.append(row)
        return found

    def _row(self, op: Op) -> Any:
        if op.built:
            build, *args = op.built
            return [build.__name__, *map(self.pack, args)]
        if REGISTRY.get(op.name) is not op or op.module.partition(".")[0] != _PACKAGE:
            raise Unplain(f"row {op.name} of {op.module}")
        return op.name

    def pack(self, value: Any) -> Any:
        """A value as data: containers are lists that begin with a letter."""
        kind = type(value)
        if kind in _SIMPLE:
            return value
        if kind is tuple or kind is list:
            return ["t" if kind is tuple else "l", *map(self.pack, value)]
        if kind is DType:
            return ["d", value.name]
        if kind is HostScalar:
            self.hosts.setdefault(value.index, value)
            return ["h", value.index]
        if kind is Op:
            return ["op", self.op(value)]
        if kind in _FIELDS:
            return ["c", kind.__name__, *(self.pack(getattr(value, name)) for name in _FIELDS[kind])]
        if isinstance(value, (np.number, np.bool_)):
            return ["n", value.dtype.str, value.item()]
        if isinstance(value, Mapping):
            return ["m", *([self.pack(k), self.pack(v)] for k, v in value.items())]
        raise Unplain(f"{kind.__name__} {value!r}")


class Unpacking:
    """The way back. `hosts`: this trace's host scalars by index."""

    def __init__(self, rows: Sequence[Any], hosts: Mapping[int, HostScalar]) -> None:
        self.hosts = hosts
        self.ops: list[Op] = []
        for row in rows:
            self.ops.append(REGISTRY[row] if isinstance(row, str) else _BUILDERS[row[0]](*map(self.unpack, row[1:])))

    def unpack(self, data: Any) -> Any:
        """A value from its data."""
        if type(data) is not list:
            return data
        kind, *items = data
        if kind == "t":
            return tuple(map(self.unpack, items))
        if kind == "l":
            return list(map(self.unpack, items))
        if kind == "d":
            return dtype(items[0])
        if kind == "h":
            return self.hosts[items[0]]
        if kind == "op":
            return self.ops[items[0]]
        if kind == "n":
            return np.dtype(items[0]).type(items[1])
        if kind == "c":
            return _CLASSES[items[0]](*map(self.unpack, items[1:]))
        if kind == "m":
            return {self.unpack(k): self.unpack(v) for k, v in items}
        raise ValueError(f"no data of kind {kind!r}")


def content(op: Op) -> Any:
    """What a row says that passes and kernels read, beyond its name."""
    return [op.module, repr(op.archetype), op.shown, list(op.kinds), list(op.mutates), op.random, op.commutes, op.static_index]
