"""A session's graph and plan as plain data, for JSON: memory timelines and other tools read it.

In: a graph and its plan. Out: a dictionary; its keys are described at `export`.
"""

from __future__ import annotations

from typing import Any

from ..kernels.kernel import STATUS
from .ir import Cell, Graph
from .lower import Step
from .plan import Plan


def export(graph: Graph, plan: Plan) -> dict[str, Any]:
    """Everything in bytes and step numbers.

    `totals`: peak, own, outputs, bound (alive at the worst step), demanded (own, without reuse), given.
    `blocks`: number, bytes, `output` (the value it is handed out as, or None).
    `values`: number, name, role, dtype, elements, bytes, block (None: the caller's buffer), first and last step,
    `over` (the value in whose memory it is made, or None).
    `steps`: number, title, op, site, reads and writes (values), temps (blocks), bytes read and written, `launches`
    (kernel label, grid, blocks or values bound).
    """
    values = list(dict.fromkeys((*graph.inputs, *graph.outputs, *plan.lives)))
    number = {c: i for i, c in enumerate(values)}
    over = {made: c for s in plan.steps for made, c in s.over.items()}
    lives = dict(plan.lives)
    for i, step in enumerate(plan.steps):
        for c in step.touched():
            lives[c] = (lives[c][0] if c in lives else i, max(i, lives[c][1] if c in lives else i))
    return {
        "name": graph.name,
        "order": plan.order,
        "totals": {
            "peak": plan.peak,
            "own": plan.nbytes,
            "outputs": plan.outputs,
            "bound": plan.bound,
            "demanded": plan.demanded,
            "given": sum(c.nbytes for c in graph.inputs),
        },
        "blocks": [
            {"number": k, "bytes": n, "output": number[graph.outputs[k]] if k < plan.results else None} for k, n in enumerate(plan.blocks)
        ],
        "values": [_value(c, number, plan, lives, over) for c in values],
        "steps": [_step(i, s, plan, number) for i, s in enumerate(plan.steps)],
    }


def _value(cell: Cell, number: dict[Cell, int], plan: Plan, lives: dict[Cell, tuple[int, int]], over: dict[Cell, Cell]) -> dict[str, Any]:
    first, last = lives.get(cell, (None, None))
    return {
        "number": number[cell],
        "name": repr(cell),
        "role": cell.role,
        "dtype": cell.dtype.name,
        "elements": cell.elements,
        "bytes": cell.nbytes,
        "block": plan.place.get(cell),
        "first": first,
        "last": last,
        "over": number[over[cell]] if cell in over else None,
    }


def _step(i: int, step: Step, plan: Plan, number: dict[Cell, int]) -> dict[str, Any]:
    node, temps = step.node, plan.temps[i]

    def bound(n: int) -> dict[str, int] | str:
        if n == STATUS:
            return "status"
        cell = None if n < 0 else step.cells[n]
        return {"block": temps[-1 - n]} if cell is None else {"value": number[cell]}

    return {
        "number": i,
        "title": node.title,
        "op": node.op.name,
        "parts": list(node.parts),
        "site": str(node.site),
        "reads": [number[c] for c in dict.fromkeys(c for c in step.reads if c is not None)],
        "writes": [number[c] for c in dict.fromkeys(step.writes)],
        "temps": list(temps),
        "bytes": sum(o.layout.numel * o.layout.dtype.itemsize for o in dict.fromkeys((*node.reads(), *node.outputs))),
        "launches": [
            {"kernel": x.kernel.label or str(x.kernel.key[0]), "grid": list(x.grid), "bound": [bound(n) for n in x.bindings]}
            for x in step.lowered.launches
        ],
    }
