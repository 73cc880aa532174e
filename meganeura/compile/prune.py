"""Dead code and common subexpressions. In: a graph. Out: the same graph with fewer nodes; host scalars are all kept, so
random numbers do not depend on what was pruned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .ir import Cell, Graph, Node, Operand, Value, covers


def prune(graph: Graph) -> None:
    """Drop nodes whose results nothing reads and nothing outlives."""
    needed: set[Value] = set(graph.kept)
    alive: list[Node] = []
    for node in reversed(graph.nodes):
        if any(out.value in needed for out in node.outputs):
            alive.append(node)
            needed.update(node.values_read())
    alive.reverse()
    graph.nodes = alive


def make_anew(nodes: Sequence[Node], own: set[Cell]) -> None:
    """Where what a node overwrites all of is gone (pruned, or fused into its reader), it overwrites what is there instead, or
    makes the cell if that is one of the graph's `own` and nothing is."""
    held: dict[Cell, Value] = {}
    for node in nodes:
        held.update((o.value.cell, o.value) for o in node.reads())
        if node.in_place:
            node.previous = tuple(_there(o, v, held, own) for o, v in zip(node.outputs, node.previous, strict=True))
        held.update((o.value.cell, o.value) for o in node.outputs)


def _there(out: Operand, before: Value | None, held: Mapping[Cell, Value], own: set[Cell]) -> Value | None:
    if before is None or not covers(out):
        return before
    return held.get(before.cell, None if before.cell in own else before)


def merge_equal(graph: Graph) -> None:
    """Compute equal things once: pure ops on the same values, none of which is changed in place before or after. What one
    region computes is not taken from another: it is computed again so that the first result need not be kept."""
    changed = {v.cell for n in graph.nodes for v in n.previous if v is not None}
    kept = {v.cell for v in graph.kept}
    known: dict[Any, Node] = {}
    replaced: dict[Value, Value] = {}
    alive: list[Node] = []
    for node in graph.nodes:
        if replaced:
            node.replace(replaced)
        twin = known.setdefault(_key(node), node) if _is_pure(node, changed) else node
        if twin is node or any(o.value.cell in kept for o in node.outputs):  # a result of the graph has memory of its own
            alive.append(node)
        else:
            replaced.update(zip((o.value for o in node.outputs), (o.value for o in twin.outputs), strict=True))
    graph.nodes = alive


def _is_pure(node: Node, changed: set[Any]) -> bool:
    if node.op.random or node.in_place or any(o.value.cell in changed for o in node.outputs):
        return False
    return not any(o.value.cell in changed for o in node.reads())


def _key(node: Node) -> Any:
    args = [_argument(v) for v in node.args]
    if node.op.commutes:
        args[:2] = sorted(args[:2], key=hash)
    return node.op, node.region, *args


def _argument(v: Any) -> Any:
    if isinstance(v, Operand):
        return id(v.value), v.layout
    if isinstance(v, tuple) and v and isinstance(v[0], Operand):
        return tuple(_argument(x) for x in v)
    return type(v), repr(v) if isinstance(v, float) else v
