"""Windows of a graph: runs of nodes in program order that one e-graph takes.

In: nodes in program order. Out: slices of them, and for each one what an e-graph must know: values by number, which nodes
are open to rules, what is needed afterwards, and a signature that equal windows share.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from ...dispatch import HostScalar
from ...ops.table import Op
from ...storage import Layout
from ..apply import Index
from ..ir import Node, Operand, Value

WHOLE = 4  # times the cutoff is the largest graph that one e-graph takes whole
SHORTEST = 3  # nodes of a region that is worth finding twice

Slice = tuple[int, int]


class TooLargeForOne(UserWarning):
    """A graph is rewritten in windows though one e-graph was asked for."""


class Window:
    """Nodes that one e-graph takes.

    `values`: by number, what open nodes read and make and what others read of it. `open`: nodes that rules may change,
    with the numbers of their outputs. `reads`: (value number, layout) that other nodes read of what open nodes make.
    `kept`: numbers of made values that must stay in their own cells. `signature`: equal for windows that are alike.
    """

    def __init__(self, nodes: Sequence[Node], index: Index, ops: Collection[Op]) -> None:
        self.values: list[Value] = []
        self.numbers: dict[Value, int] = {}
        self.open: list[tuple[Node, list[int]]] = []
        self.reads: dict[tuple[int, Layout], None] = {}
        self.kept: list[int] = []
        self._hosts: dict[HostScalar, int] = {}
        self._regions: dict[int, int] = {}
        parts: list[Any] = []
        own = set(nodes)
        made: dict[int, None] = {}
        for node in nodes:
            if self._is_open(node, index, ops):
                args = tuple(self._argument(v) for v in node.args)
                outputs = [self.number(o.value) for o in node.outputs]
                made.update(dict.fromkeys(outputs))
                self.open.append((node, outputs))
                parts.append((node.op, self._regions.setdefault(node.region, len(self._regions)), args, tuple(outputs)))
            else:
                seen = [(self.numbers[o.value], o.layout) for o in node.reads() if self.numbers.get(o.value, -1) in made]
                self.reads.update(dict.fromkeys(seen))
                parts.append(tuple(seen))
        for k in made:
            value = self.values[k]
            if value in index.kept:
                self.kept.append(k)
            outside = [o.layout for n in index.users(value) if n not in own for o in n.reads() if o.value is value]
            self.reads.update(dict.fromkeys((k, layout) for layout in outside))
        needed = frozenset((k, id(layout)) for k, layout in self.reads)
        self.signature: Any = (tuple(parts), needed, tuple(self.kept), tuple(_facts(v) for v in self.values))

    @staticmethod
    def _is_open(node: Node, index: Index, ops: Collection[Op]) -> bool:
        if node.op not in ops or node.op.random or node.op.mutates or node.in_place or len(node.parts) > 1:
            return False
        return all(index.maker(o.value) is node for o in node.outputs)

    def number(self, value: Value) -> int:
        """A value's number, given now if it has none."""
        k = self.numbers.setdefault(value, len(self.values))
        if k == len(self.values):
            self.values.append(value)
        return k

    def _argument(self, v: Any) -> Any:
        if isinstance(v, Operand):
            return self.number(v.value), v.layout
        if isinstance(v, tuple) and v and isinstance(v[0], Operand):
            return tuple(self._argument(x) for x in v)
        if isinstance(v, HostScalar):
            return "host", self._hosts.setdefault(v, len(self._hosts))
        return type(v), repr(v)


def _facts(value: Value) -> Any:
    return value.cell.dtype.name, value.cell.elements


# ---- where windows begin and end ----


def whole(nodes: Sequence[Node], cutoff: int, name: str) -> list[Slice]:
    """The whole graph; windows of it, with a warning, if it is too large."""
    if len(nodes) <= WHOLE * cutoff:
        return [(0, len(nodes))] if nodes else []
    warnings.warn(
        f"{name} has {len(nodes)} nodes, and egglog-whole takes {WHOLE} times MEGANEURA_EGRAPH_CUTOFF={cutoff}: it is rewritten in windows",
        TooLargeForOne,
        stacklevel=2,
    )
    return windowed(nodes, cutoff)


def windowed(nodes: Sequence[Node], cutoff: int) -> list[Slice]:
    """At most `cutoff` nodes each, ending where few values cross."""
    return _split(0, len(nodes), crossing(nodes), cutoff)


def outlined(nodes: Sequence[Node], cutoff: int) -> list[Slice]:
    """Regions that come several times in a row (layers) as windows of their own, and windows of what lies between."""
    crossings = crossing(nodes)
    kinds: dict[Any, int] = {}
    signs = np.array([kinds.setdefault(_kind(n), len(kinds)) for n in nodes], np.int64)
    out: list[Slice] = []
    _outline(signs, 0, len(nodes), crossings, cutoff, out)
    return sorted(out)


def crossing(nodes: Sequence[Node]) -> list[int]:
    """For every place between nodes how many values are made before and read after it."""
    made: dict[Value, int] = {}
    last: dict[Value, int] = {}
    for i, node in enumerate(nodes):
        for o in node.reads():
            if o.value in made:
                last[o.value] = i
        made.update((o.value, i) for o in node.outputs)
    change = np.zeros(len(nodes) + 2, np.int64)
    for value, end in last.items():
        change[made[value] + 1] += 1
        change[end + 1] -= 1
    return [int(n) for n in np.cumsum(change)]


def _split(begin: int, end: int, crossings: Sequence[int], cutoff: int) -> list[Slice]:
    out = []
    while end - begin > cutoff:
        latest = begin + cutoff
        at = min(range(latest - cutoff // 4, latest + 1), key=lambda i: (crossings[i], -i)) if cutoff > 3 else latest
        out.append((begin, at))
        begin = at
    return [*out, (begin, end)] if end > begin else out


def _outline(signs: Any, begin: int, end: int, crossings: Sequence[int], cutoff: int, out: list[Slice]) -> None:
    found = _repeat(signs[begin:end])
    if found is None:
        out += _split(begin, end, crossings, cutoff)
        return
    start, period, run = found
    count = run // period + 1
    first = min(range(begin + start, begin + start + run - (count - 1) * period + 1), key=lambda i: (crossings[i], i))
    parts = _split(first, first + period, crossings, cutoff)
    out += [(a + k * period, b + k * period) for k in range(count) for a, b in parts]
    _outline(signs, begin, first, crossings, cutoff, out)
    _outline(signs, first + count * period, end, crossings, cutoff, out)


def _repeat(signs: Any) -> tuple[int, int, int] | None:
    """(start, period, run): from `start`, `run` signs equal those a period later, covering the most; None if nothing repeats."""
    best, found = 0, None
    for period in range(SHORTEST, len(signs) // 2 + 1):
        equal = np.concatenate(([0], signs[:-period] == signs[period:], [0])).astype(np.int8)
        edges = np.flatnonzero(np.diff(equal))
        for start, stop in zip(edges[::2], edges[1::2], strict=True):
            run = int(stop - start)
            covered = (run // period + 1) * period
            if run >= period and covered > best:
                best, found = covered, (int(start), period, run)
    return found


def _kind(node: Node) -> Any:
    """What two nodes of repeated regions have in common, wherever their operands come from."""
    return node.op, node.parts, node.in_place, tuple(_shown(v) for v in node.args), tuple(o.layout for o in node.outputs)


def _shown(v: Any) -> Any:
    if isinstance(v, Operand):
        return v.layout
    if isinstance(v, tuple) and v and isinstance(v[0], Operand):
        return tuple(x.layout for x in v)
    return "host" if isinstance(v, HostScalar) else (type(v), repr(v))
