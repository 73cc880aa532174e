"""Reductions that nothing reads wait for the pointwise ops right after them, so that those find their neighbours.

In: a graph. Out: the same graph in another order. A loss is taken of values from which its gradient is made at once: where the
sum stands between the two, they would be two chains, and what both read would be stored and read again. Other sums stay where
they are: a longer chain before them would store what they now make from its operands themselves.
"""

from __future__ import annotations

from ..ops.archetype import Reduce
from .chains import is_fusable
from .ir import Graph, Node


def let_reductions_wait(graph: Graph) -> None:
    """Move every reduction whose result only leaves the graph behind the pointwise nodes that follow it, as far as they allow."""
    nodes = graph.nodes
    read = {v for n in nodes for v in n.values_read()}
    for i in range(len(nodes) - 1, -1, -1):
        node = nodes[i]
        if not isinstance(node.op.archetype, Reduce) or node.in_place or any(o.value in read for o in node.outputs):
            continue
        j = i + 1
        while j < len(nodes) and nodes[j].region == node.region and is_fusable(nodes[j]) and _may_pass(nodes[j], node):
            j += 1
        nodes[i : j - 1], nodes[j - 1] = nodes[i + 1 : j], node


def _may_pass(later: Node, earlier: Node) -> bool:
    """Whether a node may run before the one that it follows."""
    written = {o.value.cell for o in later.outputs}
    made = {o.value.cell for o in earlier.outputs}
    return not written & (made | {v.cell for v in earlier.values_read()}) and not made & {v.cell for v in later.values_read()}
