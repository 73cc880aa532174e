"""Graphs and plans from plain data (written.py), on the cells and values of another trace of the same code.

In: the data, and the graph as it was traced now. Out: the graph as if the passes had run on it, and its plan. Nothing of
the trace is changed before all of the data was understood.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..dtype import dtype
from ..ops.table import Inferred, Spec
from ..provenance import Place, Site
from ..storage import Layout
from ..tensor import Tensor
from .constants import run_once
from .derived import Derived
from .ir import Cell, Graph, Node, Once, Operand, Value
from .lower import Lowering, Step, call_of, operand_cells
from .plain import Unpacking
from .plan import Plan
from .report import Report
from .values import traced_names
from .written import Traced


class Names(Mapping[str, Site]):
    """Names of traced values, found when somebody asks."""

    def __init__(self, find: Callable[[], Mapping[str, Site]]) -> None:
        self._find: Callable[[], Mapping[str, Site]] | None = find
        self._known: Mapping[str, Site] = {}

    def _names(self) -> Mapping[str, Site]:
        if self._find is not None:
            self._known, self._find = self._find(), None
        return self._known

    def __getitem__(self, name: str) -> Site:
        return self._names()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())


class _Reading(Unpacking):
    """The tables, as objects."""

    def __init__(self, data: Mapping[str, Any], traced: Traced) -> None:
        super().__init__(data["ops"], traced.hosts)
        cells, values = traced.cells, traced.values
        self.cells = [*cells, *(Cell(n, dtype(d), elements, role, label) for n, d, elements, role, label in data["cells"])]
        self.values = [*values, *(Value(self.cells[c], version) for c, version in data["values"])]
        self.layouts = [Layout(dtype(d), tuple(shape), tuple(strides), offset) for d, shape, strides, offset in data["layouts"]]
        self.operands = [Operand(self.values[v], self.layouts[x]) for v, x in data["operands"]]
        self.plain = list(map(self.unpack, data["plain"]))
        self.inferred = [self._inferred(row) for row in data["inferred"]]
        self.parts = [tuple(p) for p in data["parts"]]
        self.sites = [_site(traced.nodes[at].site, phase, path, value) for at, phase, path, value in data["sites"]]

    def _inferred(self, row: Any) -> Inferred:
        outputs, compute, attrs = row
        specs = tuple(Spec(dtype(d), tuple(shape)) for d, shape in outputs)
        return Inferred(specs, tuple(map(dtype, compute)), self.unpack(attrs))

    def arguments(self, row: Sequence[Any]) -> list[Any]:
        operands, plain = self.operands, self.plain
        return [tuple(operands[x] for x in a) if type(a) is list else operands[a] if a >= 0 else plain[~a] for a in row]

    def node(self, row: Sequence[Any]) -> Node:
        op, args, inferred, parts, outputs, previous, region, where = row
        node = Node(self.ops[op], self.arguments(args), self.sites[where])
        node.inferred, node.parts, node.region = self.inferred[inferred], self.parts[parts], region
        node.outputs = tuple([self.operands[o] for o in outputs])
        node.previous = tuple([None if v < 0 else self.values[v] for v in previous])
        return node


def _site(where: Site, phase: str, path: str, value: str) -> Site:
    alike = (where.phase, where.path, where.value) == (phase, path, value)
    return where if alike else Place(where.code, where.instruction, phase, path, value)


def load_graph(graph: Graph, data: Mapping[str, Any], traced: Traced) -> tuple[Report, list[Cell]]:
    """Make a traced graph what the passes made of it. Returns their report, and the cells by number."""
    work = _Reading(data, traced)
    cells, values = work.cells, work.values
    nodes = [work.node(row) for row in data["nodes"]]
    inputs, outputs = [cells[c] for c in data["inputs"]], [cells[c] for c in data["outputs"]]
    kept = [values[v] for v in data["kept"]]
    once = [Once(work.ops[op], tuple(work.arguments(args)), tuple(values[v] for v in made)) for op, args, made in data["once"]]
    folded = {cells[c]: values[v] for c, v in data["folded"]}
    derived = {
        cells[c]: Derived(tuple(cells[s] for s in sources), tuple(work.layouts[x] for x in layouts), dim)
        for c, sources, layouts, dim in data["derived"]
    }
    roles = [(cells[c], role) for c, role in data["roles"]]
    report = Report(graph.name, [(rule, work.sites[where], times) for rule, where, times in data["notes"]])
    report.nodes, report.nbytes = map(tuple, data["report"])
    report.engine = data["engine"]
    tensors: dict[Value, Tensor] = {}
    for step in once:
        run_once(step, tensors, graph.constants)
    # From here on the trace changes, and nothing can fail.
    before = traced.nodes
    graph.traced = Names(lambda: traced_names(Graph(graph.name, before, [])))
    graph.nodes, graph.inputs, graph.outputs, graph.kept = nodes, inputs, outputs, kept
    graph.once, graph.folded = once, folded
    graph.derived.update(derived)
    graph.constants.update((cell, tensors[value]._storage) for cell, value in folded.items())
    for value in folded.values():
        if value.cell in folded:  # kept for backward only: it holds the constant itself
            value.node = None
    for cell, role in roles:
        cell.role = role
    for node in nodes:
        for out in node.outputs:
            out.value.node = node
    return report, cells


def load_plan(graph: Graph, data: Mapping[str, Any], cells: Sequence[Cell], lowering: Lowering) -> Plan:
    """The plan of a loaded graph, its steps with kernels. Raises ValueError where they need other memory than was planned."""
    numbers = data["numbers"]
    plan = Plan(
        [_step(graph.nodes[i], {cells[a]: cells[b] for a, b in over}, lowering) for i, over in data["steps"]],
        data["blocks"],
        data["results"],
        {cells[c]: k for c, k in data["place"]},
        [tuple(t) for t in data["temps"]],
        {cells[c]: (first, last) for c, first, last in data["lives"]},
        *numbers,
    )
    for step, temps in zip(plan.steps, plan.temps, strict=True):
        sizes = step.lowered.temps
        if len(sizes) != len(temps) or any(plan.blocks[k] < n for k, n in zip(temps, sizes, strict=True)):
            raise ValueError(f"{step.node.title} needs other temporaries than were planned")
    return plan


def _step(node: Node, over: dict[Cell, Cell], lowering: Lowering) -> Step:
    cells = operand_cells(node)
    shared = [over.get(c, c) if c is not None else None for c in cells] if over else cells
    return lowering.made(node, cells, call_of(node, shared, bool(over)), over)
