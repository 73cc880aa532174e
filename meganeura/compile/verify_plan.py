"""A check of plans that shares no code with the planner: it runs the steps on names instead of numbers.

In: a graph and its plan. Out: nothing, or InvalidPlan. Run in debug mode and in tests.
"""

from __future__ import annotations

from typing import Any

from ..errors import MeganeuraError
from ..kernels.kernel import STATUS
from .ir import Cell, Graph, Operand, Value
from .lower import Step
from .plan import Plan


class InvalidPlan(MeganeuraError, AssertionError):
    """A plan lets one value overwrite another that is still needed. A bug of this package."""


def verify_plan(graph: Graph, plan: Plan) -> None:
    """Raise InvalidPlan unless every step finds in its blocks what it reads and every result is in its block at the end."""
    held: dict[Cell, Value] = {}
    content: dict[int, Cell | None] = {}
    given = set(graph.inputs)
    for i, step in enumerate(plan.steps):
        try:
            _check_order(step, held, given)
            _check_reads(step, plan, content, given)
            _check_bindings(step, plan, plan.temps[i])
        except InvalidPlan as e:
            raise InvalidPlan(f"{e}\n  in step {i}, {step.node!r}\n  of {graph.name}") from None
        content.update(dict.fromkeys(plan.temps[i]))
        content.update((plan.place[c], c) for c in step.writes if c not in given)
    for k, cell in enumerate(graph.outputs):
        if cell.elements and (plan.place.get(cell) != k or content.get(k) is not cell):
            raise InvalidPlan(f"the buffer of output {cell!r} holds {content.get(k)!r} at the end of {graph.name}")
    for value in graph.kept:
        if value.cell.elements and held.get(value.cell, value) is not value:
            raise InvalidPlan(f"{value!r} must outlive {graph.name}, but its cell holds {held[value.cell]!r}")


def _check_order(step: Step, held: dict[Cell, Value], given: set[Cell]) -> None:
    """Every read sees the value it names, every overwrite finds the one before."""
    before = [o.value for o in step.node.reads()] + [v for v in step.node.previous if v is not None]
    for value in before:
        if not value.cell.elements:
            continue
        if held.setdefault(value.cell, value if value.cell in given else Value(value.cell, -1)) is not value:
            raise InvalidPlan(f"{value!r} is needed, but its cell holds {held[value.cell]!r}")
    held.update((o.value.cell, o.value) for o in step.node.outputs)


def _check_reads(step: Step, plan: Plan, content: dict[int, Cell | None], given: set[Cell]) -> None:
    """The blocks of operands hold them, and are large enough."""
    fresh = {o.value.cell for o, v in zip(step.node.outputs, step.node.previous, strict=True) if v is None}
    for cell in {c for c in step.cells if c is not None and c not in given}:
        block = plan.place.get(cell)
        if block is None or plan.blocks[block] < cell.nbytes:
            raise InvalidPlan(f"{cell!r} has no block of its size")
        if cell.elements and cell not in fresh and content.get(block) is not cell:
            raise InvalidPlan(f"{cell!r} is needed, but block {block} holds {content.get(block)!r}")


def _check_bindings(step: Step, plan: Plan, temps: tuple[int, ...]) -> None:
    """No block is bound twice where it is written, and none holds two cells unless the row may write over that operand."""
    places: dict[Any, Cell | None] = {}
    for cell in dict.fromkeys(c for c in step.cells if c is not None):
        at: Any = plan.place.get(cell, cell)
        known = places.setdefault(at, cell)
        if known is not cell:
            _check_over(step, cell, known)
    for block in temps:
        if block in places:
            raise InvalidPlan(f"a temporary shares block {block} with {places[block]!r}")
        places[block] = None
    for launch in step.lowered.launches:
        bound = [None if n == STATUS else _at(n, step, plan, temps) for n in launch.bindings]
        for i, a in enumerate(launch.kernel.access):
            if a != "read" and bound[i] is not None and bound.count(bound[i]) > 1:
                raise InvalidPlan(f"kernel {launch.kernel.label} binds block {bound[i]} twice and writes it")


def _at(number: int, step: Step, plan: Plan, temps: tuple[int, ...]) -> Any:
    if number < 0:
        return temps[-1 - number]
    cell = step.cells[number]
    return None if cell is None else plan.place.get(cell, cell)


def _check_over(step: Step, cell: Cell, known: Cell | None) -> None:
    """A cell shares a block with an earlier operand of the step: only by writing over it, element by element."""
    pair = (cell, known) if cell in step.over else (known, cell)
    if known is None or step.over.get(pair[0]) is not pair[1]:  # type: ignore[arg-type]
        raise InvalidPlan(f"{cell!r} and {known!r} share a block")
    made = next(o for o in step.node.outputs if o.value.cell is pair[0])
    operands = iter(step.node.reads())
    named: list[tuple[str, Operand | None]] = [
        (n, None if c is None else next(operands)) for n, c in zip(step.call.names, step.reads, strict=True)
    ]
    for name, operand in named:
        if operand is not None and operand.value.cell is pair[1]:
            if operand.layout is not made.layout or not step.node.op.archetype.inplace_ok(name.partition(".")[0]):
                raise InvalidPlan(f"{step.node.title} must not write {made!r} over its {name}, {operand!r}")
    roots = [step.call.alias[i] for i, c in enumerate(step.cells) if c in pair] if step.call.alias else []
    if len(set(roots)) != 1:
        raise InvalidPlan(f"the kernel of {step.node.title} does not know that {cell!r} and {known!r} are one buffer")
