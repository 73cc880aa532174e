"""Horizontal fusion: products of one input with several weights (query, key and value; gate and up) become one product.

In: a graph without history. Out: the graph with such products, and the pointwise ops with a vector each that all of them
go through (biases), done at once on packed weights. Packed weights are derived state (derived.py): made again only when
a weight was changed. Graphs that change their weights, or whose backward reads them, are left alone: packing at every
step costs more than it saves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..ops.archetype import Matmul, Pointwise
from ..ops.infer import infer
from ..storage import Layout
from .derived import Derived
from .ir import Cell, Graph, Node, Operand, Value

if TYPE_CHECKING:
    from .passes import Context

NAME = "products of one input together"


def fuse_horizontal(graph: Graph, context: Context) -> None:
    """Merge all groups."""
    if not graph.inference:
        return
    pack = _Packing(graph)
    for members in pack.groups():
        context.report.note(NAME, members[0].site, len(members))
        levels = pack.levels(members)
        columns = [n.outputs[0].layout.shape[-1] for n in members]
        for level in levels:
            pack.replace(level, columns)


class Level(NamedTuple):
    """Nodes that do the same to the columns of each member. `columns`: the argument that holds them, -1 for the products.
    `packed`: the arguments that are packed."""

    nodes: list[Node]
    columns: int
    packed: tuple[int, ...]


class _Packing:
    """One run over a graph. `users`: the nodes that read a value."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.users: dict[Value, list[Node]] = defaultdict(list)
        for node in graph.nodes:
            for value in dict.fromkeys(o.value for o in node.reads()):
                self.users[value].append(node)
        self.lasting = {*graph.outputs, *(v.cell for v in graph.kept)}
        self.last_id = max((o.value.cell.id for n in graph.nodes for o in (*n.reads(), *n.outputs)), default=0)

    # ---- what may be packed ----

    def groups(self) -> list[list[Node]]:
        """Products that share their first operand, in program order."""
        found: dict[Any, list[Node]] = defaultdict(list)
        for node in self.graph.nodes:
            if (key := self._key(node)) is not None:
                found[key].append(node)
        return [g for g in found.values() if len(g) > 1]

    def _key(self, node: Node) -> Any:
        if not isinstance(node.op.archetype, Matmul) or len(node.args) != 2 or not self._is_packable(node):
            return None
        a, b = node.reads()
        if len(a.layout.shape) != 2 or not self._is_weight(b):
            return None
        return node.op, node.region, a, b.layout.contiguous, b.layout.shape[0], b.layout.dtype

    def _is_packable(self, node: Node) -> bool:
        """Whether a node's only result may become columns of another."""
        out = node.outputs[0]
        if len(node.outputs) > 1 or node.in_place or out.value.cell in self.lasting:
            return False
        if not out.layout.contiguous or out.layout.offset or not out.layout.numel:
            return False
        n = out.layout.shape[-1]
        reads = [o.layout for user in self.users[out.value] for o in user.reads() if o.value is out.value]
        return bool(reads) and all(moved(layout, n, n, 0) is not None for layout in reads)

    def _is_weight(self, b: Operand) -> bool:
        """A whole matrix that nobody changes here, as it lies or transposed."""
        layout = b.layout
        if not self._is_state(b.value) or len(layout.shape) != 2 or layout.offset or layout.numel != b.value.cell.elements:
            return False
        return layout.contiguous or layout.strides == (1, layout.shape[0])

    def _is_state(self, value: Value) -> bool:
        return value.cell.role == "state" and not value.version and value.cell not in self.lasting

    def levels(self, members: list[Node]) -> list[Level]:
        """The products, then pointwise ops that all of them go through, each as its product's only reader."""
        out = [Level(members, -1, (1,))]
        while (level := self._followers(out[-1].nodes)) is not None:
            out.append(level)
        return out

    def _followers(self, nodes: list[Node]) -> Level | None:
        found: list[Node] = []
        keys = set()
        for node in nodes:
            before = node.outputs[0]
            users = self.users[before.value]
            if len(users) != 1 or not isinstance(users[0].op.archetype, Pointwise) or not self._is_packable(users[0]):
                return None
            found.append(users[0])
            keys.add(self._follower_key(users[0], before))
        if len(keys) != 1 or None in keys or len(set(found)) != len(found):
            return None
        kinds = next(iter(keys))[2]
        return Level(found, kinds.index("columns"), tuple(i for i, k in enumerate(kinds) if k == "vector"))

    def _follower_key(self, node: Node, before: Operand) -> Any:
        """What must be the same for all: the op, dtypes, numbers and which argument is what."""
        n, out = before.layout.shape[-1], node.outputs[0].layout
        if out.numel != before.layout.numel or out.shape[-1] != n:
            return None
        kinds: list[Any] = []
        dtypes = [out.dtype]
        for v in node.args:
            if not isinstance(v, Operand):
                kinds.append((type(v), repr(v)))
                continue
            dtypes.append(v.layout.dtype)
            if v.value is before.value and v.layout.contiguous and not v.layout.offset and v.layout.numel == out.numel:
                kinds.append("columns")
            elif self._is_vector(v, n):
                kinds.append("vector")
            else:
                return None
        return (node.op, tuple(dtypes), tuple(kinds)) if kinds.count("columns") == 1 else None

    def _is_vector(self, v: Operand, n: int) -> bool:
        layout = v.layout
        if not self._is_state(v.value) or v.value.cell.elements != n or layout.offset or layout.shape[-1:] != (n,):
            return False
        *rows, last = zip(layout.shape, layout.strides, strict=True)
        return last[1] == 1 and all(size == 1 or stride == 0 for size, stride in rows)

    # ---- packing ----

    def replace(self, level: Level, columns: list[int]) -> None:
        """One node in the place of the level's first, and the readers of all read its columns."""
        first, total = level.nodes[0], sum(columns)
        args = list(first.args)
        for i in level.packed:
            args[i] = self._packed([n.args[i] for n in level.nodes], level.columns < 0)
        if level.columns >= 0:
            value = first.args[level.columns].value
            args[level.columns] = Operand(value, Layout(value.cell.dtype, (value.cell.elements // total, total)))
        node = self._node(first, args, [n.outputs[0].value.cell for n in level.nodes])
        gone = set(level.nodes)
        earliest = next(n for n in self.graph.nodes if n in gone)  # weights are state: what it can read, all can
        self.graph.nodes = [node if n is earliest else n for n in self.graph.nodes if n is earliest or n not in gone]
        moves = {}
        for old, n, start in zip(level.nodes, columns, _starts(columns), strict=True):
            moves[old.outputs[0].value] = (node.outputs[0].value, n, total, start)
        for user in dict.fromkeys(u for n in level.nodes for u in self.users[n.outputs[0].value]):
            user.args = tuple(_redirect(v, moves) for v in user.args)

    def _node(self, like: Node, args: list[Any], cells: Sequence[Cell]) -> Node:
        node = Node(like.op, args, like.site)
        node.inferred = infer(node.op, node.named())
        node.parts = like.parts
        spec = node.inferred.outputs[0]
        label = "+".join(c.label for c in cells) if all(c.label for c in cells) else ""
        cell = self._cell(spec.dtype, sum(c.elements for c in cells), "value", label)
        node.outputs, node.previous = (Operand(Value(cell, 1, node), Layout(spec.dtype, spec.shape)),), (None,)
        return node

    def _packed(self, sources: Sequence[Operand], matrices: bool) -> Operand:
        """Matrices side by side along their columns, or vectors one after the other, as derived state."""
        cells, layouts = [s.value.cell for s in sources], [s.layout for s in sources]
        total = sum(x.shape[-1] for x in layouts)
        cell = self._cell(cells[0].dtype, sum(c.elements for c in cells), "derived", "cat(" + ", ".join(map(repr, cells)) + ")")
        if not matrices:
            self.graph.derived[cell] = Derived(tuple(cells), tuple(Layout(c.dtype, (c.elements,)) for c in cells), 0)
            return Operand(Value(cell), Layout(cell.dtype, (total,)))
        rows, upright = layouts[0].shape[0], layouts[0].contiguous
        stored = [x.shape if upright else x.shape[::-1] for x in layouts]
        self.graph.derived[cell] = Derived(tuple(cells), tuple(Layout(cell.dtype, s) for s in stored), int(upright))
        return Operand(Value(cell), Layout(cell.dtype, (rows, total), (total, 1) if upright else (1, rows)))

    def _cell(self, dtype: Any, elements: int, role: str, label: str) -> Cell:
        self.last_id += 1
        return Cell(self.last_id, dtype, elements, role, label)


def _starts(columns: Sequence[int]) -> list[int]:
    return [sum(columns[:i]) for i in range(len(columns))]


def _redirect(v: Any, moves: dict[Value, tuple[Value, int, int, int]]) -> Any:
    if isinstance(v, Operand) and v.value in moves:
        value, n, total, start = moves[v.value]
        layout = moved(v.layout, n, total, start)
        assert layout is not None, "looked at before"
        return Operand(value, layout)
    if isinstance(v, tuple) and not isinstance(v, Operand):
        return tuple(_redirect(x, moves) for x in v)
    return v


def moved(layout: Layout, n: int, total: int, start: int) -> Layout | None:
    """A layout over rows of n elements as one over columns [start, start + n) of rows of `total`; None if a dimension
    walks over the end of a row."""
    row, column = divmod(layout.offset, n)
    strides = []
    reach = column
    for size, stride in zip(layout.shape, layout.strides, strict=True):
        if stride % n == 0:
            strides.append(stride // n * total)
        elif 0 < stride < n or size == 1:
            reach += (size - 1) * stride
            strides.append(stride)
        else:
            return None
    if reach >= n:
        return None
    return layout.with_(shape=layout.shape, strides=tuple(strides), offset=row * total + column + start)
