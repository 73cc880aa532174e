"""Dead code and common subexpressions. In: a graph. Out: the same graph with fewer nodes; host scalars are all kept, so
random numbers do not depend on what was pruned."""

from __future__ import annotations

from typing import Any

from .ir import Graph, Node, Operand, Value


def prune(graph: Graph) -> None:
    """Drop nodes whose results nothing reads and nothing outlives."""
    needed: set[Value] = set(graph.kept)
    alive: list[Node] = []
    for node in reversed(graph.nodes):
        if any(out.value in needed for out in node.outputs):
            alive.append(node)
            needed.update(node.values_read())
    alive.reverse()
    _make_anew(graph.nodes, alive)
    graph.nodes = alive


def _make_anew(before: list[Node], alive: list[Node]) -> None:
    """Where the node that made a cell is gone because another overwrites all of it, that other one makes the cell."""
    kept = set(alive)
    gone = {o.value.cell for n in before if n not in kept for o, v in zip(n.outputs, n.previous, strict=True) if v is None}
    for node in alive if gone else ():
        if any(v is not None and v.cell in gone for v in node.previous):
            node.previous = tuple(None if v is not None and v.cell in gone else v for v in node.previous)
            gone.difference_update(o.value.cell for o in node.outputs)


def merge_equal(graph: Graph) -> None:
    """Compute equal things once: pure ops on the same values, none of which is changed in place before or after."""
    changed = {v.cell for n in graph.nodes for v in n.previous if v is not None} | {v.cell for v in graph.kept}
    known: dict[Any, Node] = {}
    replaced: dict[Value, Value] = {}
    alive: list[Node] = []
    for node in graph.nodes:
        if replaced:
            node.replace(replaced)
        twin = known.setdefault(_key(node), node) if _is_pure(node, changed) else node
        if twin is node:
            alive.append(node)
        else:
            replaced.update(zip((o.value for o in node.outputs), (o.value for o in twin.outputs), strict=True))
    graph.nodes = alive


def _is_pure(node: Node, changed: set[Any]) -> bool:
    if node.op.random or node.in_place or any(o.value.cell in changed for o in node.outputs):
        return False
    return not any(o.value.cell in changed for o in node.reads())


def _key(node: Node) -> Any:
    return node.op, tuple(_argument(v) for v in node.args)


def _argument(v: Any) -> Any:
    if isinstance(v, Operand):
        return id(v.value), v.layout
    if isinstance(v, tuple) and v and isinstance(v[0], Operand):
        return tuple(_argument(x) for x in v)
    return type(v), repr(v) if isinstance(v, float) else v
