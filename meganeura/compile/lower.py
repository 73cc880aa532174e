"""From nodes to launches: the same calls and kernels that eager uses.

In: nodes, a device profile. Out: for each node its Lowered, the cells of its operands, and its numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import kernels
from ..errors import MeganeuraError
from ..kernels.call import make_call, scalar_values
from ..kernels.kernel import Call, Lowered, Profile
from ..ops.table import ATTR, LIST, SCALAR
from .ir import Cell, Node, Operand


class Step:
    """One node made ready: `cells` of the operands in the call's order (None: a number), `scalars` of the call.
    `over`: output cell -> operand cell in whose memory it is made, where the planner found that good."""

    __slots__ = ("call", "cells", "lowered", "node", "over", "scalars")

    def __init__(self, node: Node, cells: list[Cell | None], scalars: list[Any], call: Call, lowered: Lowered) -> None:
        self.node, self.cells, self.scalars, self.call, self.lowered = node, cells, scalars, call, lowered
        self.over: Mapping[Cell, Cell] = {}

    @property
    def reads(self) -> list[Cell | None]:
        """Cells of the inputs."""
        return self.cells[: len(self.cells) - len(self.node.outputs)]

    @property
    def writes(self) -> list[Cell]:
        """Cells of the outputs."""
        return [o.value.cell for o in self.node.outputs]

    def touched(self) -> dict[Cell, None]:
        """Every cell once."""
        return dict.fromkeys(c for c in self.cells if c is not None)


class Lowering:
    """Kernels for calls on a profile; equal calls (layers repeat) are lowered once."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.known: dict[Call, Lowered] = {}

    def step(self, node: Node) -> Step | None:
        """A node made ready; None if it needs no kernel, as without elements."""
        if all(o.layout.numel == 0 for o in node.outputs):
            return None
        cells = operand_cells(node)
        try:
            call = call_of(node, cells)
            lowered = self.lowered(call)
        except MeganeuraError as e:
            raise type(e)(f"{node.op.name}: {e}\n  at {node.site}") from e
        return Step(node, cells, scalar_values(node.op, node.args, Operand), call, lowered) if lowered.launches else None

    def steps(self, nodes: Sequence[Node]) -> list[Step]:
        """Nodes made ready, without those that need no kernel."""
        return [step for node in nodes if (step := self.step(node)) is not None]

    def lowered(self, call: Call) -> Lowered:
        """The kernels of a call."""
        found = self.known.get(call)
        if found is None:
            found = self.known[call] = kernels.lower(call, self.profile)
        return found

    def over(self, step: Step, over: Mapping[Cell, Cell]) -> Step:
        """The same step with outputs made in the memory of operands, which the kernel then binds once."""
        cells = [over.get(c, c) if c is not None else None for c in step.cells]
        return self.made(step.node, step.cells, call_of(step.node, cells, True), over)

    def made(self, node: Node, cells: list[Cell | None], call: Call, over: Mapping[Cell, Cell]) -> Step:
        """A node made ready for a call that is known."""
        step = Step(node, cells, scalar_values(node.op, node.args, Operand), call, self.lowered(call))
        step.over = dict(over)
        return step


def lower(nodes: Sequence[Node], profile: Profile) -> list[Step]:
    """Kernels for nodes; nodes without elements need none and are left out."""
    return Lowering(profile).steps(nodes)


def operand_cells(node: Node) -> list[Cell | None]:
    """The cells of inputs (numbers: None), then outputs."""
    cells: list[Cell | None] = []
    for p, v in zip(node.op.params, node.args, strict=True):
        if p.kind == LIST:
            cells.extend(o.value.cell for o in v)
        elif p.kind not in (ATTR, SCALAR) and v is not None:
            cells.append(v.value.cell if isinstance(v, Operand) else None)
    return cells + [o.value.cell for o in node.outputs]


def call_of(node: Node, cells: Sequence[Cell | None], shared: bool = False) -> Call:
    """The kernels' view of a node; operands on one cell are marked where it is written (`shared`: in any case)."""
    alias: tuple[int, ...] = ()
    if shared or node.in_place:
        first: dict[Cell, int] = {}
        alias = tuple(i if c is None else first.setdefault(c, i) for i, c in enumerate(cells))
    return make_call(node.op, node.named(), node.inferred, [o.layout for o in node.outputs], alias)
