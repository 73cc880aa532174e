"""Copies that only lay out anew what one kernel made are not made: the kernel stores its result where the copy would be.

In: a graph after fusion. Out: the same without such copies. Attention over heads, whose result becomes one row a token, is the
case that matters; its gradient may read the result too, and then reads it where it is.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ..ops.archetype import Kernel, Pointwise
from ..storage import Layout
from .ir import Graph, Node, Operand, Value, covers

if TYPE_CHECKING:
    from .passes import Context


def store_copies(graph: Graph, context: Context) -> None:
    """Let makers store what only a copy reads."""
    users: dict[Value, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        for value in node.values_read():
            users[value].append(node)
    changed = {v.cell for n in graph.nodes for v in n.previous if v is not None}  # what others read there must stay
    kept, gone = set(graph.kept), set()
    for node in graph.nodes:
        if not isinstance(node.op.archetype, Kernel):
            continue
        for k in node.op.archetype.anywhere:
            out = node.outputs[k]
            others = [n for n in users[out.value] if _reads_anywhere(n, out)]
            copies = [n for n in users[out.value] if n not in others]
            if len(copies) != 1 or out.value in kept or node.previous[k] is not None or not covers(out):
                continue
            copy = copies[0]
            layout = _target(out.layout, copy) if all(n.region == node.region for n in (copy, *others)) else None
            if layout is None or (others and copy.outputs[0].value.cell in changed):
                continue
            made = copy.outputs[0].value
            there = Operand(made, layout)
            node.outputs = (*node.outputs[:k], there, *node.outputs[k + 1 :])
            for n in others:
                n.args = tuple(there if v == out else v for v in n.args)
            made.node = node
            gone.add(copy)
            context.report.note("stored where a copy would be", copy.site)
    graph.nodes = [n for n in graph.nodes if n not in gone]


def _reads_anywhere(node: Node, out: Operand) -> bool:
    """Whether a kernel reads all of an operand, of which it takes any order of dimensions."""
    kind = node.op.archetype
    whole = [v for v in node.args if isinstance(v, Operand) and v.value is out.value]
    return isinstance(kind, Kernel) and bool(kind.anywhere) and whole == [out] and sum(o.value is out.value for o in node.reads()) == 1


def _target(source: Layout, copy: Node) -> Layout | None:
    """How something contiguous must be laid out to be what a copy makes of it; None if the node is no such copy."""
    if not isinstance(copy.op.archetype, Pointwise) or copy.op.archetype.expr != "{input}" or len(copy.args) != 1:
        return None
    (read,), out = copy.reads(), copy.outputs[0]
    if copy.previous[0] is not None or not covers(out) or {source.dtype} != {read.layout.dtype, out.layout.dtype, *copy.inferred.compute}:
        return None
    if read.layout.offset or read.layout.numel != source.numel:
        return None
    place = {s: t for n, s, t in zip(read.layout.shape, read.layout.strides, out.layout.strides, strict=True) if n != 1}
    sizes = {s: n for n, s in zip(read.layout.shape, read.layout.strides, strict=True) if n != 1}
    own = {s: n for n, s in zip(source.shape, source.strides, strict=True) if n != 1}
    if sizes != own or (source.shape[-1] != 1 and place[1] != 1):
        return None
    strides = (place[s] if n != 1 else source.numel for n, s in zip(source.shape, source.strides, strict=True))
    return source.with_(strides=tuple(strides))
