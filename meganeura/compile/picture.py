"""How graphs and plans show themselves in a notebook. In: a Graph or a Plan. Out: HTML."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from .. import svg
from .ir import Graph, Node, Value

if TYPE_CHECKING:
    from .plan import Plan
    from .session import Session

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


def plan_html(plan: Plan) -> str:
    """Memory over the steps of a session: a lane a block, as high as it is large, and the values that take turns in it."""
    spans = []
    lives = {c: life for c, life in plan.lives.items() if c in plan.place}
    for cell, (first, last) in lives.items():
        block = plan.place[cell]
        kind = "output" if block < plan.results else "value"
        title = f"{cell!r}: {cell.dtype.name}[{cell.elements}], {cell.nbytes:,} bytes, steps {first} to {last}, block {block}"
        spans.append(svg.Span(block, first, last + 1, repr(cell), kind, title))
    for i, temps in enumerate(plan.temps):
        for block in temps:
            spans.append(svg.Span(block, i, i + 1, "", "temporary", f"temporary of step {i}, {plan.steps[i].node.title}"))
    head = (
        f"<b>plan</b>: {len(plan.steps)} steps, {len(plan.place)} values in {len(plan.blocks)} blocks, {plan.peak:,} bytes; "
        f"{plan.demanded + plan.outputs:,} if nothing were reused, {plan.bound:,} alive at the worst step"
    )
    return f"<div>{head}{svg.lanes(spans, plan.blocks, 'step', 'B')}</div>"


def session_html(session: Session) -> str:
    """One line, the plan, and the graph folded away."""
    graph = f"<details><summary>graph</summary>{graph_html(session.graph)}</details>"
    return f"<div>{html.escape(str(session))}{plan_html(session.plan)}{graph}</div>"
