"""The memory planner: which buffer holds which cell. Whole buffers are reused by liveness.

In: lowered steps, and the cells that outlive the graph. Out: a Plan. A buffer is never bound twice in one step for
different cells, so a cell's buffer is free for others only after the step that reads it last.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field

from .ir import Cell, Graph
from .lower import Step

WASTE = 1.25  # a reused buffer may be so much larger than what it holds


@dataclass
class Plan:
    """`place`: the block of every cell that the session keeps to itself; `temps`: blocks of each step's temporaries;
    `blocks`: their sizes in bytes. `demanded`: bytes if nothing were reused."""

    place: dict[Cell, int] = field(default_factory=dict)
    temps: list[tuple[int, ...]] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    demanded: int = 0
    outputs: int = 0
    lines: list[str] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks: what the session's own values take at the peak."""
        return sum(self.blocks)

    def __str__(self) -> str:
        own = f"{len(self.place)} values in {len(self.blocks)} buffers, {self.nbytes} bytes ({self.demanded} without reuse)"
        return "\n".join([f"plan: {own}, outputs {self.outputs} bytes", *self.lines])

    __repr__ = __str__


def plan(graph: Graph, steps: Sequence[Step], reuse: bool = True) -> Plan:
    """Give every cell that does not outlive the graph a block, by best fit among the blocks free at its first step."""
    out = Plan()
    given = {*graph.inputs, *graph.outputs}
    last: dict[Cell, int] = {}
    for i, step in enumerate(steps):
        for cell in step.cells:
            if cell is not None and cell not in given:
                last[cell] = i
    free = _Free(out.blocks, reuse)
    for i, step in enumerate(steps):
        for cell in step.cells:
            if cell is not None and cell not in given and cell not in out.place:
                out.place[cell] = free.take(cell.nbytes)
                out.demanded += cell.nbytes
        temps = tuple(free.take(n) for n in step.lowered.temps)
        out.demanded += sum(step.lowered.temps)
        out.temps.append(temps)
        ending = dict.fromkeys(c for c in step.cells if c is not None and last.get(c) == i)
        for block in (*temps, *(out.place[c] for c in ending)):
            free.give(block)
        out.lines.append(_line(i, step, out))
    out.outputs = sum(c.nbytes for c in graph.outputs)
    return out


class _Free:
    """Blocks that no living value holds, by size."""

    def __init__(self, blocks: list[int], reuse: bool) -> None:
        self.blocks, self.reuse = blocks, reuse
        self.idle: list[tuple[int, int]] = []

    def take(self, nbytes: int) -> int:
        """The smallest idle block that fits within the waste allowed, or a new one."""
        at = bisect.bisect_left(self.idle, (nbytes, -1))
        if at < len(self.idle) and self.idle[at][0] <= max(nbytes * WASTE, 256):
            return self.idle.pop(at)[1]
        self.blocks.append(nbytes)
        return len(self.blocks) - 1

    def give(self, block: int) -> None:
        if self.reuse:
            bisect.insort(self.idle, (self.blocks[block], block))


def _line(i: int, step: Step, out: Plan) -> str:
    def where(cell: Cell) -> str:
        return f"{cell!r}@{out.place[cell]}" if cell in out.place else repr(cell)

    n = len(step.node.outputs)
    reads = ", ".join(where(c) for c in step.cells[: len(step.cells) - n] if c is not None)
    writes = ", ".join(where(c) for c in dict.fromkeys(step.cells[len(step.cells) - n :]) if c is not None)
    return f"  {i:4} {step.node.title}: {reads} -> {writes}"
