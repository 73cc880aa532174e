"""How graphs and plans show themselves in a notebook. In: a Graph or a Plan. Out: HTML."""

from __future__ import annotations

import html

from .. import svg
from .ir import Graph, Node, Value

LINES = 400  # of text shown under a picture


def graph_html(graph: Graph) -> str:
    """A picture of the nodes, arguments above them, and the text of the graph. State is named in what pointing at a box shows."""
    given = [c for c in graph.inputs if c.role in ("input", "gradient")]
    boxes = [svg.Box(repr(c), f"{c.dtype.name}[{c.elements}]", c.role) for c in given]
    number: dict[Value, int] = {}
    maker: dict[object, int] = {c: i for i, c in enumerate(given)}
    edges = []
    for node in graph.nodes:
        me = len(boxes)
        boxes.append(svg.Box(node.title, _shapes(node), type(node.op.archetype).__name__.lower(), f"{node!r}\n{node.site}"))
        sources = {number.get(v, maker.get(v.cell)) for v in node.values_read()}
        edges += [(s, me) for s in sources if s is not None]
        number.update((o.value, me) for o in node.outputs)
    lines = str(graph).split("\n")
    text = "\n".join(lines[:LINES]) + (f"\n… {len(lines) - LINES} more lines" if len(lines) > LINES else "")
    return (
        f"<div><b>{html.escape(graph.name)}</b>: {len(graph.nodes)} nodes{svg.layered(boxes, edges)}"
        f"<details><summary>as text</summary><pre style='font-size:11px'>{html.escape(text)}</pre></details></div>"
    )


def _shapes(node: Node) -> str:
    return ", ".join(f"{list(o.layout.shape)}" for o in dict.fromkeys(node.outputs))
