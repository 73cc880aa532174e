"""The intermediate representation: ops in program order over cells of memory.

A Cell is a piece of memory (what a Storage is to eager); a Value is what a cell holds between two writes. In-place ops
give a cell a new Value, so program order alone says what is read. Views are layouts of operands, never nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ..dispatch import HostScalar
from ..dtype import DType
from ..ops.infer import named
from ..ops.table import ATTR, LIST, Inferred, Op
from ..provenance import Site, named_value
from ..shape import numel
from ..storage import Layout, Storage, padded_bytes

if TYPE_CHECKING:
    from .cache import Entry
    from .derived import Derived


class Cell:
    """A piece of memory of `elements` elements. `role`: 'value' (made by the graph), 'input' (an argument), 'state' (a
    tensor met while tracing), 'derived' (made from state), 'constant' (made from host data while tracing), 'saved' or
    'gradient' (of a backward graph)."""

    __slots__ = ("dtype", "elements", "id", "label", "role")

    def __init__(self, number: int, dtype: DType, elements: int, role: str, label: str = "") -> None:
        self.id, self.dtype, self.elements, self.role, self.label = number, dtype, elements, role, label

    @property
    def nbytes(self) -> int:
        """Of its buffer, padding included."""
        return padded_bytes(self.elements, self.dtype)

    def __repr__(self) -> str:
        return self.label or f"%{self.id}"


class Value:
    """What a cell holds after its `version`-th write (0: what it held at first)."""

    __slots__ = ("cell", "node", "version")

    def __init__(self, cell: Cell, version: int = 0, node: Node | None = None) -> None:
        self.cell, self.version, self.node = cell, version, node

    def __repr__(self) -> str:
        return f"{self.cell}" + (f"'{self.version}" if self.version > (self.cell.role == "value") else "")


class Operand(NamedTuple):
    """A value seen through a layout."""

    value: Value
    layout: Layout

    def __repr__(self) -> str:
        return f"{self.value!r}: {self.layout}"


class Node:
    """One op application. `args` holds a value for every parameter of the op, tensors as Operands. `previous[i]` is the
    value that output i overwrites (None: the output's cell is new). `parts` names the ops of a fused chain. `region`: 0, or
    the number of the recomputation (mg.checkpoint) that the node belongs to."""

    __slots__ = ("args", "inferred", "op", "outputs", "parts", "previous", "region", "site")

    inferred: Inferred

    def __init__(self, op: Op, args: Sequence[Any], where: Site) -> None:
        self.op, self.args, self.site = op, tuple(args), where
        self.outputs: tuple[Operand, ...] = ()
        self.previous: tuple[Value | None, ...] = ()
        self.parts: tuple[str, ...] = (op.shown,)
        self.region = 0

    def reads(self) -> Iterator[Operand]:
        """Operands in the order of Call.inputs, without numbers."""
        found: list[Operand] = []
        for v in self.args:
            kind = type(v)
            if kind is Operand:
                found.append(v)
            elif kind is tuple and v and type(v[0]) is Operand:
                found += v
        return iter(found)

    def values_read(self) -> Iterator[Value]:
        """What must be computed before this node: operands, and what a partial overwrite leaves standing."""
        for operand in self.reads():
            yield operand.value
        for out, before in zip(self.outputs, self.previous, strict=True):
            if before is not None and not covers(out):
                yield before

    def numbers(self) -> Iterator[Any]:
        """Python numbers and host scalars among the arguments."""
        for p, v in zip(self.op.params, self.args, strict=True):
            if p.kind not in (ATTR, LIST) and v is not None and not isinstance(v, Operand):
                yield v

    @property
    def in_place(self) -> bool:
        """Whether it writes into a cell that held a value before."""
        return any(v is not None for v in self.previous)

    @property
    def title(self) -> str:
        """The op's name in messages, or the names of all that was fused."""
        return "+".join(self.parts)

    @property
    def place(self) -> Site:
        """The user's line, with the names of the values that this node makes."""
        labels = [o.value.cell.label for o in self.outputs if o.value.cell.role == "value"]
        names = dict.fromkeys(filter(None, [*self.site.value.split("+"), *labels]))
        return named_value(self.site, "+".join(names)) if names else self.site

    def replace(self, values: Mapping[Value, Value]) -> None:
        """Read other values through the same layouts."""
        self.args = tuple(_replaced(v, values) for v in self.args)

    def named(self) -> dict[str, Any]:
        """Arguments by name, tensors as layouts (see ops.infer.named)."""
        return named(self.op, self.args)

    def __repr__(self) -> str:
        return text_of(self)


def _replaced(arg: Any, values: Mapping[Value, Value]) -> Any:
    if isinstance(arg, Operand):
        return Operand(values.get(arg.value, arg.value), arg.layout)
    if isinstance(arg, tuple) and arg and isinstance(arg[0], Operand):
        return tuple(_replaced(a, values) for a in arg)
    return arg


def covers(out: Operand) -> bool:
    """Whether writing this operand leaves nothing of the cell's earlier contents."""
    layout, cell = out.layout, out.value.cell
    return layout.contiguous and layout.offset == 0 and layout.numel == cell.elements


def show(value: Any) -> str:
    """An argument as text."""
    if isinstance(value, Operand):
        return repr(value.value)
    if isinstance(value, tuple) and any(isinstance(v, Operand) for v in value):
        return "[" + ", ".join(show(v) for v in value) + "]"
    if isinstance(value, HostScalar):
        return f"host[{value.index}]"
    return repr(value)


def text_of(node: Node) -> str:
    """One line: outputs with layouts, op, arguments, the user's line."""
    outs = ", ".join(repr(o) for o in dict.fromkeys(node.outputs))
    args = ", ".join(show(v) for v in node.args)
    return f"{outs} = {node.title}({args})"


class Once(NamedTuple):
    """An op application whose results were computed when the program was made."""

    op: Op
    args: tuple[Any, ...]
    values: tuple[Value, ...]


@dataclass
class Graph:
    """Nodes in program order and the cells they start from and must leave behind.

    `inputs`: cells that are given, in binding order. `outputs`: cells made by the graph that outlive it (what the caller
    gets or a backward graph needs). `kept`: the last values of all cells that outlive it, given ones included.
    `hosts`: (function, count) of the numbers computed by the host at every run, in order. `inference`: nothing
    differentiates through it. `derived`: how cells of the role 'derived' are made from state.
    `constants`: what cells of that role hold. `saved`: outputs that only a backward graph reads.
    `traced`: names and lines of the values before any pass, for who asks for one that was fused away.
    `once`: what made the constants that passes found, in order, and `folded`: which cell holds which of its values.
    `entry`: the graph's place in the cache on disk (cache.py), until its plan is made.
    """

    name: str
    nodes: list[Node]
    inputs: list[Cell]
    outputs: list[Cell] = field(default_factory=list)
    kept: list[Value] = field(default_factory=list)
    hosts: list[tuple[Callable[[], Sequence[float | int]], int]] = field(default_factory=list)
    inference: bool = False
    derived: dict[Cell, Derived] = field(default_factory=dict)
    constants: dict[Cell, Storage] = field(default_factory=dict)
    saved: set[Cell] = field(default_factory=set)
    traced: Mapping[str, Site] = field(default_factory=dict)
    once: list[Once] = field(default_factory=list)
    folded: dict[Cell, Value] = field(default_factory=dict)
    entry: Entry | None = None

    def written_inputs(self) -> set[Cell]:
        """Given cells that the graph overwrites."""
        given = set(self.inputs)
        return {o.value.cell for n in self.nodes for o in n.outputs if o.value.cell in given}

    def cells(self) -> list[Cell]:
        """Cells that the graph makes itself, in order of their first write."""
        given = set(self.inputs)
        return list(dict.fromkeys(o.value.cell for n in self.nodes for o in n.outputs if o.value.cell not in given))

    def __str__(self) -> str:
        lines = [f"graph {self.name}: {len(self.nodes)} nodes"]
        lines += [f"  {c!r}: {c.dtype.name}[{c.elements}] {c.role}" for c in self.inputs]
        width = max((len(repr(n)) for n in self.nodes), default=0)
        lines += [f"  {n!r:<{min(width, 100)}}  # {n.site}" for n in self.nodes]
        lines.append("  keep " + ", ".join(repr(v) for v in self.kept))
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from .picture import graph_html

        return graph_html(self)


def traffic(nodes: Iterable[Node]) -> int:
    """Bytes that nodes read and write, each operand of a node once."""
    return sum(_distinct(o.layout) * o.layout.dtype.itemsize for n in nodes for o in dict.fromkeys((*n.reads(), *n.outputs)))


def _distinct(layout: Layout) -> int:
    """Elements of a layout, each repeated one once."""
    return numel([n for n, step in zip(layout.shape, layout.strides, strict=True) if step]) if layout.numel else 0


class Numbers:
    """Hands out cell numbers."""

    def __init__(self) -> None:
        self._next = itertools.count()

    def cell(self, dtype: DType, elements: int, role: str, label: str = "") -> Cell:
        return Cell(next(self._next), dtype, elements, role, label)
