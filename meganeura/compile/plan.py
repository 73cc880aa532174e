"""The memory planner: in which order steps run and which buffer holds which cell. Whole buffers are reused by liveness.

In: lowered steps, and the cells that outlive the graph. Out: a Plan. Three ways to need less, taken together:
an elementwise step writes over an operand that dies there; cells whose lives do not meet share a block, largest first;
and the buffer of a result holds other cells until the result itself is made. A buffer is never bound twice in one step
for different cells. Several orders are tried and the one that needs least is taken, unless it is slower.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from ..errors import MeganeuraError
from . import order as orders
from .ir import Cell, Graph, Operand, covers
from .lower import Lowering, Step
from .order import Order

GAIN = 0.97  # another order than the program's must need so much of its bytes at most
EXTRA = 1.15  # GPUs: the late order may need so much more than the least; training steps of 12 layers run 4 to 6 % faster in it
SHARED = 4096  # bytes from which a result's buffer holds other cells before: rebinding touches every step that uses it


@dataclass
class Plan:
    """`steps` in the order in which they run. `blocks`: bytes of each; the first ones are the buffers of the graph's
    outputs, in their order, the others the session's own. `place`: the block of every cell; `temps`: blocks of each step's
    temporaries; `lives`: first and last step of each cell. All in bytes: `demanded` for the session's own values if nothing
    were reused, `bound` alive at the worst step in this order, outputs included once made."""

    steps: list[Step] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    results: int = 0
    place: dict[Cell, int] = field(default_factory=dict)
    temps: list[tuple[int, ...]] = field(default_factory=list)
    lives: dict[Cell, tuple[int, int]] = field(default_factory=dict)
    demanded: int = 0
    bound: int = 0
    order: str = "program"

    @property
    def nbytes(self) -> int:
        """Bytes of the session's own blocks."""
        return sum(self.blocks[self.results :])

    @property
    def outputs(self) -> int:
        """Bytes of the outputs, which are the caller's."""
        return sum(self.blocks[: self.results])

    @property
    def peak(self) -> int:
        """Bytes of all blocks."""
        return sum(self.blocks)

    @property
    def over(self) -> int:
        """How many cells are made in the memory of an operand."""
        return sum(len(s.over) for s in self.steps)

    @property
    def lines(self) -> list[str]:
        """A line a step: what it reads and writes, and where that is."""
        return [_line(i, s, self) for i, s in enumerate(self.steps)]

    def __str__(self) -> str:
        own = len(self.place) - self.results
        head = f"plan: {own} values in {len(self.blocks) - self.results} buffers, {self.nbytes} bytes ({self.demanded} without reuse)"
        head += f", outputs {self.outputs} bytes; {self.bound} bytes alive at the worst step; {self.order} order, {self.over} in place"
        return "\n".join([head, *self.lines])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from .picture import plan_html

        return plan_html(self)


def plan(graph: Graph, steps: Sequence[Step], reuse: bool = True, lowering: Lowering | None = None) -> Plan:
    """The plan of a graph's steps. Without `reuse` every cell has a block of its own and steps stay as they are; without
    `lowering` no step is lowered again to write over an operand."""
    if not reuse or len(steps) < 3:
        return _placed(graph, list(steps), "program", reuse, lowering)
    return _best(candidates(graph, steps, lowering), lowering is not None and lowering.profile.family == "gpu")


def candidates(graph: Graph, steps: Sequence[Step], lowering: Lowering | None) -> list[Plan]:
    """A plan an order, the program's first."""
    before = orders.dependencies(steps)
    given, lasting = set(graph.inputs), set(graph.outputs)
    tried: list[tuple[str, Order]] = [
        ("program", list(range(len(steps)))),
        ("late", orders.backward(steps, before, given, lasting)),
        ("early", orders.forward(steps, before, given, lasting)),
    ]
    return [_placed(graph, [steps[i] for i in order], name, True, lowering) for name, order in tried]


def _best(found: Sequence[Plan], gpu: bool) -> Plan:
    """The plan that needs least: another order than the program's only if it is worth it. On GPUs the late order, which
    leaves independent products beside each other, unless it needs much more."""
    program, late, _ = found
    least = min(found, key=lambda p: p.peak)
    if gpu and late.peak <= EXTRA * least.peak:
        return late
    return least if least.peak < GAIN * program.peak else program


def _placed(graph: Graph, steps: list[Step], name: str, reuse: bool, lowering: Lowering | None) -> Plan:
    """Steps in this order with blocks for their cells."""
    given, lasting = set(graph.inputs), set(graph.outputs)
    lives = lives_of(steps, given)
    out = Plan(steps, order=name, lives=lives, results=len(graph.outputs), blocks=[c.nbytes for c in graph.outputs])
    roots: dict[Cell, Cell] = {}
    if reuse and lowering is not None:
        out.steps, roots = _overwriting(steps, lives, lasting, lowering)
    _place(out, graph.outputs, roots, reuse)
    out.demanded = sum(c.nbytes for c in lives if c not in lasting) + sum(n for s in out.steps for n in s.lowered.temps)
    return out


def lives_of(steps: Sequence[Step], given: Container[Cell]) -> dict[Cell, tuple[int, int]]:
    """First and last step that touches each cell that is not given."""
    lives: dict[Cell, tuple[int, int]] = {}
    for i, step in enumerate(steps):
        for cell in step.touched():
            if cell not in given:
                lives[cell] = (lives[cell][0] if cell in lives else i, i)
    return lives


# ---- writing over an operand ----


def _overwriting(
    steps: Sequence[Step], lives: dict[Cell, tuple[int, int]], lasting: Container[Cell], lowering: Lowering
) -> tuple[list[Step], dict[Cell, Cell]]:
    """Steps that make outputs in the memory of operands that die there, and for each such output the cell it goes back to."""
    out: list[Step] = []
    roots: dict[Cell, Cell] = {}
    for i, step in enumerate(steps):
        over = _candidates(i, step, lives, lasting)
        if over:
            try:
                step = lowering.over(step, over)
                roots.update((made, roots.get(c, c)) for made, c in over.items())
            except MeganeuraError:
                pass  # the kernel cannot: it stays as it is
        out.append(step)
    return out, roots


def _candidates(i: int, step: Step, lives: dict[Cell, tuple[int, int]], lasting: Container[Cell]) -> dict[Cell, Cell]:
    """Output cell -> operand cell for what a step may write over."""
    node = step.node
    kind = node.op.archetype
    made = [o for o, v in zip(node.outputs, node.previous, strict=True) if v is None and covers(o)]
    if not made:
        return {}
    dying: dict[Cell, Operand] = {}
    barred: set[Cell] = set()
    for name, operand in zip(step.call.names, _operands(step), strict=True):
        if operand is None:
            continue
        cell = operand.value.cell
        known = dying.setdefault(cell, operand)
        ok = lives.get(cell, (0, -1))[1] == i and cell not in lasting
        if not ok or known.layout is not operand.layout or not covers(operand) or not kind.inplace_ok(name.partition(".")[0]):
            barred.add(cell)
    over: dict[Cell, Cell] = {}
    for o in made:
        for cell, operand in dying.items():
            if operand.layout is o.layout and cell not in barred and cell not in step.writes and cell not in over.values():
                over[o.value.cell] = cell
                break
    return over


def _operands(step: Step) -> list[Operand | None]:
    """Operands in the order of the call's inputs; None for numbers."""
    operands = iter(step.node.reads())
    return [None if c is None else next(operands) for c in step.reads]


# ---- blocks ----


@dataclass
class _Block:
    """A block while planning: the steps in which it is taken, as bits."""

    nbytes: int
    taken: int


def _place(out: Plan, outputs: Sequence[Cell], roots: dict[Cell, Cell], reuse: bool) -> None:
    """Blocks by size, largest first: each interval goes to the smallest block that is free throughout."""
    n = len(out.steps)
    spans: dict[Cell, tuple[int, int]] = {}  # of cells that live in one place, by the first of them
    home: dict[Cell, int] = {c: k for k, c in enumerate(outputs)}
    members: dict[Cell, list[Cell]] = {}
    for cell, (first, last) in out.lives.items():
        root = roots.get(cell, cell)
        low, high = spans.get(root, (first, last))
        spans[root] = min(low, first), max(high, last)
        members.setdefault(root, []).append(cell)
    alive = [0] * (n + 1)
    blocks = [_Block(size, 0) for size in out.blocks]
    items: list[tuple[int, int, int, Cell | int]] = []  # bytes, first, last, cell or number of a temporary
    for k, c in enumerate(outputs):
        if c not in out.lives:  # no step makes it
            spans[c], members[c] = (0, n - 1), [c]
        if not reuse or c.nbytes < SHARED:
            blocks[k].taken = _bits(0, n)
    for root, (first, last) in spans.items():
        kept = next((home[c] for c in members[root] if c in home), None)
        last = n - 1 if kept is not None else last
        alive[first] += root.nbytes
        alive[last + 1] -= root.nbytes
        if kept is None:
            items.append((root.nbytes, first, last, root))
        else:
            blocks[kept].taken |= _bits(first, last)
            out.place.update(dict.fromkeys(members[root], kept))
    temps: list[tuple[int, int]] = []  # step and number of each temporary
    for i, step in enumerate(out.steps):
        for t, nbytes in enumerate(step.lowered.temps):
            items.append((nbytes, i, i, len(temps)))
            temps.append((i, t))
            alive[i] += nbytes
            alive[i + 1] -= nbytes
    chosen: list[list[int]] = [[0] * len(s.lowered.temps) for s in out.steps]
    items.sort(key=lambda item: (-item[0], item[1]))
    for nbytes, first, last, what in items:
        k = _fit(blocks, nbytes, _bits(first, last)) if reuse else -1
        if k < 0:
            k = len(blocks)
            blocks.append(_Block(nbytes, 0))
        blocks[k].taken |= _bits(first, last)
        if isinstance(what, Cell):
            out.place.update(dict.fromkeys(members[what], k))
        else:
            i, t = temps[what]
            chosen[i][t] = k
    out.blocks = [b.nbytes for b in blocks]
    out.temps = [tuple(c) for c in chosen]
    total = 0
    for grown in alive:
        total += grown
        out.bound = max(out.bound, total)


def _bits(first: int, last: int) -> int:
    return ((1 << (last - first + 1)) - 1) << first


def _fit(blocks: Sequence[_Block], nbytes: int, bits: int) -> int:
    """The smallest block of enough bytes that is free in all these steps, or -1."""
    best, size = -1, 0
    for k, b in enumerate(blocks):
        if (best < 0 or b.nbytes < size) and b.nbytes >= nbytes and not b.taken & bits:
            best, size = k, b.nbytes
            if size == nbytes:
                break
    return best


def _line(i: int, step: Step, out: Plan) -> str:
    def where(cell: Cell) -> str:
        return f"{cell!r}@{out.place[cell]}" if cell in out.place else repr(cell)

    reads = ", ".join(where(c) for c in step.reads if c is not None)
    writes = ", ".join(where(c) for c in dict.fromkeys(step.writes))
    return f"  {i:4} {step.node.title}: {reads} -> {writes}"
