"""Pointwise chains: neighbouring elementwise ops become one kernel that keeps what only it needs in registers.

In: a graph. Out: the graph with groups of pointwise nodes replaced by Chain rows (ops/chain.py). A group runs at the
place of its last node, so a node may join only while nothing in between reads what the group writes or writes what it
reads. All nodes of a group walk one shape; a value of the group is read inside it only at the element it was made at.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from ..dispatch import HostScalar
from ..dtype import scalar_dtype
from ..ops.archetype import Pointwise
from ..ops.chain import chain_op, statement
from ..ops.table import ATTR, SCALAR, Inferred, Spec
from ..provenance import together
from ..shape import Shape
from ..storage import Layout
from .ir import Cell, Graph, Node, Operand, Value

MOST_STATEMENTS = 48  # a chain's shader compiles in the time of its statements
MOST_SCALARS = 60  # a dispatch's scalar block holds 64 words
ROUNDED = ("int8", "uint8", "bfloat16")  # storing these changes the value, which a register would not show


class Group:
    """Nodes that run as one. `reads`: layouts by which each cell from outside is read; `writes`: the layout of each cell
    written."""

    def __init__(self, node: Node) -> None:
        self.nodes = [node]
        self.shape: Shape = node.outputs[0].layout.shape
        self.reads: dict[Cell, set[Layout]] = defaultdict(set)
        self.writes: dict[Cell, Layout] = {}
        self.open = True
        self._add(node)

    def _add(self, node: Node) -> None:
        for operand in node.reads():
            if operand.value.cell not in self.writes:
                self.reads[operand.value.cell].add(operand.layout)
        out = node.outputs[0]
        self.writes[out.value.cell] = out.layout

    def join(self, others: list[Group], node: Node, order: dict[Node, int]) -> None:
        """Take in other groups and a node after all of them."""
        members = sorted((n for g in (self, *others) for n in g.nodes), key=order.__getitem__)
        for g in others:
            g.open = False
        self.nodes, self.reads, self.writes = [], defaultdict(set), {}
        for n in (*members, node):
            self.nodes.append(n)
            self._add(n)


def fuse_chains(graph: Graph, max_storage_buffers: int) -> None:
    """Replace groups of pointwise nodes by chains that bind at most so many storage buffers."""
    groups = _Grouping(graph, max_storage_buffers).groups
    owner = {n: g for g in groups for n in g.nodes if len(g.nodes) > 1}
    nodes: list[Node] = []
    users = _outside_users(graph, owner)
    for node in graph.nodes:
        group = owner.get(node)
        if group is None:
            nodes.append(node)
        elif group.nodes[-1] is node:
            nodes.append(_chain(group, users))
    graph.nodes = nodes


def is_fusable(node: Node) -> bool:
    """Whether a node may be a statement of a chain."""
    kind = node.op.archetype
    if not isinstance(kind, Pointwise) or node.outputs[0].layout.numel == 0:
        return False
    first = (*node.inferred.compute, node.outputs[0].layout.dtype)[0]
    if not isinstance(kind.expr, str) and first.kind not in kind.expr:
        return False  # lowering says what is wrong
    dtypes = [*node.inferred.compute, node.outputs[0].layout.dtype, node.inferred.outputs[0].dtype]
    if any(d.name in ROUNDED for d in dtypes):
        return False
    return not (node.outputs[0].layout.dtype.value == "u32" and any(d.kind == "f" for d in node.inferred.compute))


def as_chain(node: Node) -> Node:
    """A pointwise node or chain as a chain. The graph is not changed."""
    if not isinstance(node.op.archetype, Pointwise):
        return node
    builder = _Builder(Group(node))
    builder.add(node)
    return builder.finish({node.outputs[0].value: {node}})


class _Grouping:
    """One walk over the graph that forms groups."""

    def __init__(self, graph: Graph, limit: int) -> None:
        self.limit = limit
        self.order = {n: i for i, n in enumerate(graph.nodes)}
        self.groups: list[Group] = []
        self.made_by: dict[Value, Group] = {}
        self.touching: dict[Cell, set[Group]] = defaultdict(set)  # open groups that read or write a cell
        for node in graph.nodes:
            self._place(node)

    def _place(self, node: Node) -> None:
        mine: Group | None = None
        if is_fusable(node):
            makers = dict.fromkeys(self.made_by[o.value] for o in node.reads() if o.value in self.made_by)
            mine = self._join([g for g in makers if g.open and self._fits(g, node)], node)
        self._close(node, mine)
        if mine is None and is_fusable(node):
            mine = Group(node)
            self.groups.append(mine)
        if mine is not None:
            for out in node.outputs:
                self.made_by[out.value] = mine
            for cell in (*mine.reads, *mine.writes):
                self.touching[cell].add(mine)

    def _fits(self, group: Group, node: Node) -> bool:
        """Whether a node, run elementwise together with the group, sees and leaves what it would alone."""
        out = node.outputs[0]
        if group.shape != out.layout.shape or len(group.nodes) >= MOST_STATEMENTS:
            return False
        for operand in node.reads():
            written = group.writes.get(operand.value.cell)
            if written is not None and written is not operand.layout:
                return False
        before = group.writes.get(out.value.cell, out.layout)
        return before is out.layout and all(layout is out.layout for layout in group.reads.get(out.value.cell, ()))

    def _join(self, candidates: list[Group], node: Node) -> Group | None:
        """The group that a node joined, with all candidates merged into it, or as many as the binding limit lets."""
        candidates.sort(key=lambda g: -len(g.nodes))
        chosen: list[Group] = []
        for g in candidates:
            if self._compatible([*chosen, g]) and self._size([*chosen, g], node) <= self.limit:
                chosen.append(g)
        if not chosen:
            return None
        first, *rest = chosen
        first.join(rest, node, self.order)
        for g in rest:
            self.groups.remove(g)
            for n in g.nodes:
                for o in n.outputs:
                    self.made_by[o.value] = first
        return first

    def _compatible(self, groups: list[Group]) -> bool:
        """Whether groups touch no common cell in ways that depend on their order."""
        if sum(len(g.nodes) for g in groups) >= MOST_STATEMENTS:
            return False
        for i, a in enumerate(groups):
            for b in groups[:i]:
                if any(c in b.writes or c in b.reads for c in a.writes) or any(c in a.reads for c in b.writes):
                    return False
        scalars = sum(1 for g in groups for n in g.nodes for _ in n.numbers())
        return scalars < MOST_SCALARS - 8

    def _size(self, groups: list[Group], node: Node) -> int:
        """Storage buffers that the merged group binds, at most: distinct operands from outside, and cells written."""
        writes = {c for g in groups for c in g.writes} | {node.outputs[0].value.cell}
        reads = {(c, x) for g in groups for c, layouts in g.reads.items() for x in layouts}
        reads |= {(o.value.cell, o.layout) for o in node.reads()}
        return len(writes) + len({r for r in reads if r[0] not in writes})

    def _close(self, node: Node, mine: Group | None) -> None:
        """Close the groups that cannot run after this node any more."""
        for operand in node.reads():
            for g in list(self.touching[operand.value.cell]):
                if g is not mine and operand.value.cell in g.writes:
                    self._end(g)
        for out in node.outputs:
            for g in list(self.touching[out.value.cell]):
                if g is not mine:
                    self._end(g)

    def _end(self, group: Group) -> None:
        group.open = False
        for cell in (*group.reads, *group.writes):
            self.touching[cell].discard(group)


def _outside_users(graph: Graph, owner: dict[Node, Group]) -> dict[Value, set[Any]]:
    """Who needs each value: groups, single nodes, or the graph itself."""
    users: dict[Value, set[Any]] = defaultdict(set)
    for node in graph.nodes:
        for value in node.values_read():
            users[value].add(owner.get(node, node))
    for value in graph.kept:
        users[value].add(graph.name)
    return users


def _chain(group: Group, users: dict[Value, set[Any]]) -> Node:
    """The chain node of a group."""
    builder = _Builder(group)
    for node in group.nodes:
        builder.add(node)
    chain = builder.finish(users)
    for out in chain.outputs:
        out.value.node = chain
    return chain


class _Builder:
    """Turns a group's nodes into statements."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.texts: dict[tuple[Value, Layout], tuple[str, str]] = {}  # operand -> text and WGSL type
        self.inputs: list[tuple[str, Operand]] = []
        self.scalars: list[tuple[str, str, Any]] = []
        self.statements: list[tuple[str, str, str]] = []
        self.first: dict[Cell, Value | None] = {}  # what the cells written held before

    def add(self, node: Node) -> None:
        """One statement."""
        arguments: dict[str, tuple[str, str]] = {}
        compute: dict[str, Any] = {}
        dtypes = iter(node.inferred.compute)
        for p, v in zip(node.op.params, node.args, strict=True):
            if p.kind == ATTR or v is None:
                continue
            if p.kind == SCALAR:
                arguments[p.name] = (self._scalar(v, p.scalar), p.scalar)
                continue
            compute[p.name] = dtype = next(dtypes)
            if isinstance(v, Operand):
                arguments[p.name] = self._operand(v)
            else:
                kind = {"f": "f32", "i": "i32", "u": "u32", "b": "u32"}[dtype.kind]
                arguments[p.name] = (self._literal(node, p.name, v, kind) or self._scalar(v, kind), kind)
        out, before = node.outputs[0], node.previous[0]
        name = f"t{len(self.statements)}"
        self.statements.append(statement(node.op, name, arguments, compute, out.layout.dtype))
        self.texts[out.value, out.layout] = ("{" + name + "}", out.layout.dtype.value)
        self.first.setdefault(out.value.cell, before)

    def _operand(self, operand: Operand) -> tuple[str, str]:
        known = self.texts.get(operand)
        if known is None:
            name = f"i{len(self.inputs)}"
            self.inputs.append((name, operand))
            known = self.texts[operand] = ("{" + name + "}", operand.layout.dtype.value)
        return known

    def _literal(self, node: Node, name: str, value: Any, kind: str) -> str:
        """A number as WGSL text where the row allows it, else ''. Not where an operand is read by a statement that this one reads, too:
        drivers take select(x, c, x < c) for max, which drops NaN."""
        archetype, text = node.op.archetype, literal(value, kind)
        assert isinstance(archetype, Pointwise)
        if not text or int(value) not in dict(archetype.literals).get(name, ()):
            return ""
        texts = [self._operand(v)[0] for v in node.args if isinstance(v, Operand)]
        read = "".join(expr for t, _, expr in self.statements if "{" + t + "}" in texts)
        return "" if any(t in read for t in texts) else text

    def _scalar(self, value: Any, kind: str) -> str:
        for name, have, known in self.scalars:
            if have == kind and same_number(known, value):
                return "{" + name + "}"
        name = f"s{len(self.scalars)}"
        self.scalars.append((name, kind, value))
        return "{" + name + "}"

    def finish(self, users: dict[Value, set[Any]]) -> Node:
        """The node: stores the last value of every cell that something outside the group needs."""
        last: dict[Cell, Operand] = {}
        for node in self.group.nodes:
            last[node.outputs[0].value.cell] = node.outputs[0]
        stored = [o for cell, o in last.items() if self.first[cell] is not None or users[o.value] - {self.group}]
        dtypes = [o.layout.dtype for o in stored]
        inputs = [name for name, _ in self.inputs]
        results = [self.texts[o][0][1:-1] for o in stored]
        op = chain_op(self.statements, results, inputs, [(n, k) for n, k, _ in self.scalars], dtypes)
        chain = Node(op, [o for _, o in self.inputs] + [v for _, _, v in self.scalars], together([n.place for n in self.group.nodes]))
        chain.inferred = Inferred(tuple(Spec(d, self.group.shape) for d in dtypes), tuple(o.layout.dtype for _, o in self.inputs), {})
        chain.outputs = tuple(stored)
        chain.previous = tuple(self.first[o.value.cell] for o in stored)
        chain.parts = tuple(p for n in self.group.nodes for p in n.parts)
        return chain


def literal(value: Any, kind: str) -> str:
    """0 and 1 as WGSL text, '' for other numbers."""
    if isinstance(value, HostScalar) or repr(value) not in ("0", "1", "0.0", "1.0", "False", "True"):
        return ""
    return {"f32": f"{float(value)}", "i32": f"{int(value)}", "u32": f"{int(value)}u"}[kind]


def same_number(a: Any, b: Any) -> bool:
    """Whether two numbers of a graph are one: host scalars by identity, others by type and value."""
    if isinstance(a, HostScalar) or isinstance(b, HostScalar):
        return a is b
    return scalar_dtype(a) is scalar_dtype(b) and repr(a) == repr(b)
