"""Graphs and plans as plain data, for the cache on disk.

In: a graph as traced, which gives numbers to its cells, values and places; then the same graph rewritten, and its plan.
Out: what JSON can hold. What was traced is referred to by its number, so that it can be loaded onto another trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..dispatch import HostScalar
from ..ops.table import LIST, Inferred
from ..provenance import Site
from ..storage import Layout
from .derived import Derived
from .ir import Cell, Graph, Node, Once, Operand, Value
from .plain import Packing, Unplain, content
from .plan import Plan
from .report import Report


class References:
    """Numbers of cells, values and places, in the order in which they are met."""

    def __init__(self) -> None:
        self.cells: dict[Cell, int] = {}
        self.values: dict[Value, int] = {}
        self.places: dict[tuple[int, int], int] = {}  # (code object's id, instruction) -> number of the first node there

    def cell(self, cell: Cell) -> int:
        return self.cells.setdefault(cell, len(self.cells))

    def value(self, value: Value) -> int:
        found = self.values.get(value)
        if found is None:
            self.cell(value.cell)
            found = self.values[value] = len(self.values)
        return found


class Writing(Packing):
    """Nodes as rows of numbers, which point into tables of what they have in common."""

    def __init__(self, known: References) -> None:
        super().__init__()
        self.known = known
        self.layouts: dict[Layout, int] = {}
        self.operands: dict[Operand, int] = {}
        self.plain: dict[Any, int] = {}
        self.inferred: dict[Any, int] = {}
        self.sites: dict[tuple[int, str, str, str], int] = {}
        self.parts: dict[tuple[str, ...], int] = {}
        self.tables: dict[str, list[Any]] = {"layouts": [], "operands": [], "plain": [], "inferred": []}

    def layout(self, x: Layout) -> int:
        found = self.layouts.get(x)
        if found is None:
            found = self.layouts[x] = len(self.layouts)
            self.tables["layouts"].append([x.dtype.name, x.shape, x.strides, x.offset])
        return found

    def operand(self, o: Operand) -> int:
        found = self.operands.get(o)
        if found is None:
            found = self.operands[o] = len(self.operands)
            self.tables["operands"].append([self.known.value(o.value), self.layout(o.layout)])
        return found

    def argument(self, v: Any) -> int:
        """What is no tensor: numbers below zero."""
        key = v if isinstance(v, HostScalar) else (type(v), repr(v))
        found = self.plain.get(key)
        if found is None:
            data = self.pack(v)
            found = self.plain[key] = len(self.plain)
            self.tables["plain"].append(data)
        return ~found

    def arguments(self, node: Node | Once) -> list[Any]:
        out: list[Any] = []
        for kind, v in zip(node.op.kinds, node.args, strict=True):
            if type(v) is Operand:
                out.append(self.operand(v))
            elif kind == LIST:
                out.append([self.operand(o) for o in v])
            else:
                out.append(self.argument(v))
        return out

    def infer(self, found: Inferred) -> int:
        key = (found.outputs, found.compute, repr(found.attrs))
        known = self.inferred.get(key)
        if known is None:
            row = [[[s.dtype.name, s.shape] for s in found.outputs], [d.name for d in found.compute], self.pack(found.attrs)]
            known = self.inferred[key] = len(self.inferred)
            self.tables["inferred"].append(row)
        return known

    def site(self, where: Site) -> int:
        at = self.known.places.get((id(where.code), where.instruction))
        if at is None:
            raise Unplain(f"place {where}, which no traced node has")
        key = at, where.phase, where.path, where.value
        return self.sites.setdefault(key, len(self.sites))

    def ends(self, node: Node) -> list[Any]:
        """What nodes have besides op and arguments."""
        previous = [-1 if v is None else self.known.value(v) for v in node.previous]
        return [[self.operand(o) for o in node.outputs], previous, node.region, self.site(node.site)]

    def node(self, node: Node) -> list[Any]:
        parts = self.parts.setdefault(node.parts, len(self.parts))
        return [self.op(node.op), self.arguments(node), self.infer(node.inferred), parts, *self.ends(node)]

    def common(self) -> dict[str, Any]:
        """The tables."""
        return {**self.tables, "ops": self.rows, "sites": list(self.sites), "parts": list(self.parts)}


class Traced:
    """A graph as it was traced. `data` is all that rewriting and planning can know of it; `nodes` as they were."""

    def __init__(self, graph: Graph) -> None:
        self.nodes = list(graph.nodes)
        self.known = known = References()
        for i, node in enumerate(self.nodes):
            known.places.setdefault((id(node.site.code), node.site.instruction), i)
        work = Writing(known)
        nodes = [[work.op(n.op), work.arguments(n), *work.ends(n)] for n in self.nodes]
        kept, outputs = [known.value(v) for v in graph.kept], [known.cell(c) for c in graph.outputs]
        self.cells, self.values = list(known.cells), list(known.values)
        self.roles = [c.role for c in self.cells]
        self.hosts = work.hosts
        rows = [[*_cell(c), c in graph.constants, c in graph.saved] for c in self.cells]
        values = [[known.cells[v.cell], v.version] for v in self.values]
        ops = [content(op) for op in work.ops]
        self.data = [nodes, work.common(), ops, rows, values, kept, outputs, graph.inference]


def _cell(c: Cell) -> list[Any]:
    return [c.id, c.dtype.name, c.elements, c.role, c.label]


def graph_data(graph: Graph, report: Report, traced: Traced) -> dict[str, Any]:
    """A rewritten graph, and what its report says. Raises Unplain."""
    known = traced.known
    work = Writing(known)
    first_cell, first_value = len(traced.cells), len(traced.values)
    nodes = [work.node(n) for n in graph.nodes]
    out: dict[str, Any] = {
        "nodes": nodes,
        "inputs": [known.cell(c) for c in graph.inputs],
        "outputs": [known.cell(c) for c in graph.outputs],
        "kept": [known.value(v) for v in graph.kept],
        "once": [[work.op(s.op), work.arguments(s), [known.value(v) for v in s.values]] for s in graph.once],
        "folded": [[known.cell(c), known.value(v)] for c, v in graph.folded.items()],
        "derived": [_derived(c, d, work) for c, d in graph.derived.items()],
        "notes": [[rule, work.site(where), times] for rule, where, times in report.notes],
        "report": [list(report.nodes), list(report.nbytes)],
        "engine": report.engine,
    }
    cells, values = list(known.cells)[first_cell:], list(known.values)[first_value:]
    out["cells"] = [_cell(c) for c in cells]
    out["values"] = [[known.cells[v.cell], v.version] for v in values]
    out["roles"] = [[i, c.role] for i, (c, role) in enumerate(zip(traced.cells, traced.roles, strict=True)) if c.role != role]
    return out | work.common()


def _derived(cell: Cell, recipe: Derived, work: Writing) -> list[Any]:
    known = work.known
    return [known.cell(cell), [known.cell(s) for s in recipe.sources], [work.layout(x) for x in recipe.layouts], recipe.dim]


def plan_data(plan: Plan, nodes: Sequence[Node], cells: Mapping[Cell, int]) -> dict[str, Any]:
    """A plan of the graph of these nodes. Launches are left out: they are made again from the nodes."""
    number = {n: i for i, n in enumerate(nodes)}
    return {
        "steps": [[number[s.node], _pairs((cells[a], cells[b]) for a, b in s.over.items())] for s in plan.steps],
        "blocks": plan.blocks,
        "results": plan.results,
        "place": _pairs((cells[c], k) for c, k in plan.place.items()),
        "temps": plan.temps,
        "lives": [[cells[c], first, last] for c, (first, last) in plan.lives.items()],
        "numbers": [plan.demanded, plan.bound, plan.order],
    }


def _pairs(items: Iterable[tuple[int, int]]) -> list[list[int]]:
    return [[a, b] for a, b in items]
