"""From nodes to launches: the same calls and kernels that eager uses.

In: nodes, a device profile. Out: for each node its Lowered, the cells of its operands, and its numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import kernels
from ..errors import MeganeuraError
from ..kernels.call import make_call, scalar_values
from ..kernels.kernel import Call, Lowered, Profile
from ..ops.table import ATTR, LIST, SCALAR
from .ir import Cell, Node, Operand


class Step:
    """One node made ready: `cells` of the operands in the call's order (None: a number), `scalars` of the call."""

    __slots__ = ("cells", "lowered", "node", "scalars")

    def __init__(self, node: Node, cells: list[Cell | None], scalars: list[Any], lowered: Lowered) -> None:
        self.node, self.cells, self.scalars, self.lowered = node, cells, scalars, lowered


def lower(nodes: Sequence[Node], profile: Profile) -> list[Step]:
    """Kernels for nodes; nodes without elements need none and are left out."""
    out = []
    known: dict[Call, Lowered] = {}  # layers repeat
    for node in nodes:
        if all(o.layout.numel == 0 for o in node.outputs):
            continue
        cells = operand_cells(node)
        try:
            call = call_of(node, cells)
            lowered = known.get(call) or known.setdefault(call, kernels.lower(call, profile))
        except MeganeuraError as e:
            raise type(e)(f"{node.op.name}: {e}\n  at {node.site}") from e
        if lowered.launches:
            out.append(Step(node, cells, scalar_values(node.op, node.args, Operand), lowered))
    return out


def operand_cells(node: Node) -> list[Cell | None]:
    """The cells of inputs (numbers: None), then outputs."""
    cells: list[Cell | None] = []
    for p, v in zip(node.op.params, node.args, strict=True):
        if p.kind == LIST:
            cells.extend(o.value.cell for o in v)
        elif p.kind not in (ATTR, SCALAR) and v is not None:
            cells.append(v.value.cell if isinstance(v, Operand) else None)
    return cells + [o.value.cell for o in node.outputs]


def call_of(node: Node, cells: Sequence[Cell | None]) -> Call:
    """The kernels' view of a node; operands on one cell are marked where it is written."""
    alias: tuple[int, ...] = ()
    if node.in_place:
        first: dict[Cell, int] = {}
        alias = tuple(i if c is None else first.setdefault(c, i) for i, c in enumerate(cells))
    return make_call(node.op, node.named(), node.inferred, [o.layout for o in node.outputs], alias)
