"""Runs a function once under Trace and describes what it did: nodes, state, results, `.grad` effects, backward graphs.

In: a function and its arguments. Out: a Record without any symbolic tensor in it. Whatever happens, the Python state of
the tensors that the function met is as it was before.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .. import dispatch
from ..errors import TraceError
from ..provenance import Site, site
from ..random import default_generator
from ..storage import Layout
from ..tensor import Tensor
from .arguments import is_whole
from .differentiate import Backward, differentiate
from .ir import Cell, Node, Operand
from .trace import Trace
from .tree import rebuild
from .watch import Use, Watch, grad_of, watching


@dataclass(frozen=True)
class Argument:
    """A result that is the argument itself."""

    number: int


@dataclass(frozen=True)
class Concrete:
    """A result that is a tensor which existed before."""

    tensor: Tensor | None


@dataclass
class Made:
    """A result that the graph makes, or a view of something given. `root`: its number among the results with history."""

    operand: Operand
    root: int = -1


Result = Argument | Concrete | Made


@dataclass
class GradEffect:
    """`.grad` of `target` (an argument number or a tensor): what it must have been before (checked only if `read`), and
    what it becomes (None: it is left alone)."""

    target: int | Tensor
    read: bool
    before: Layout | None
    grad: Tensor | None
    after: Result | None = None


@dataclass
class Record:
    """What one run of a function did. `template` is its result with Made and others in place of tensors."""

    trace: Trace
    forward: list[Node]
    template: Any
    results: list[Result]
    effects: list[GradEffect]
    backward: list[Backward]
    argument_cells: list[Cell]
    error: Exception | None = None  # why results with history cannot be differentiated


def record(fn: Callable[..., Any], args: Any, leaves: Sequence[Tensor], sources: Sequence[int]) -> Record:
    """Trace fn(*args[0], **args[1]). `leaves` are the tensors in args; `sources[i]` is the first of them bound as i is."""
    trace = Trace()
    watch = Watch(trace)
    draws = _Draws()
    try:
        with watching(watch), dispatch.use(trace):
            made = _run(fn, args, leaves, sources, trace, watch)
    finally:
        watch.settle()
        changed = trace.changed_history()
        trace.restore()
        seeded = draws.restore()
    if seeded:
        raise TraceError(
            f"the random seed was set inside compiled code, which would set it once only\n  at {site()}\n  call manual_seed() outside"
        )
    if changed is not None:
        raise TraceError(
            f"the traced code gave a tensor ({changed.layout}) from outside a history, other memory or requires_grad\n  at {site()}\n"
            f"  change such tensors under no_grad() or through detach()"
        )
    effects = [_effect(use, trace, leaves, watch.stand_ins) for use in watch.uses.values()]
    made.effects = [e for e in effects if e is not None]
    watch.uses.clear()
    trace.seen.clear()
    _check_escapes(trace)
    return made


class _Draws:
    """The default generator before a trace. Setting its seed inside cannot be repeated at every call."""

    def __init__(self) -> None:
        self.before = default_generator.get_state()

    def restore(self) -> bool:
        """Whether the seed or position was set; then both are as before."""
        (seed, offset), (old_seed, old_offset) = default_generator.get_state(), self.before
        if seed == old_seed and offset >= old_offset:
            return False
        default_generator.set_state(self.before)
        return True


def _check_escapes(trace: Trace) -> None:
    if not trace.escaped():
        return
    gc.collect()
    lost: list[tuple[str, Site]] = trace.escaped()
    if lost:
        what, where = lost[0]
        raise TraceError(
            f"{len(lost)} tensor(s) outlived the trace: the first was made by {what} at {where}\n"
            f"  compiled code cannot keep tensors in attributes, lists or closures; return them, or copy_() into a tensor made before"
        )


def _run(fn: Callable[..., Any], args: Any, leaves: Sequence[Tensor], sources: Sequence[int], trace: Trace, watch: Watch) -> Record:
    stand_ins = _stand_ins(trace, leaves, sources)
    numbers = {id(s): i for i, s in reversed(list(enumerate(stand_ins)))}
    watch.stand_ins = numbers
    given = iter(stand_ins)
    positional, named = rebuild(args, Tensor, lambda _: next(given))
    result = fn(*positional, **named)
    roots: list[Tensor] = []
    found: dict[int, Result] = {}

    def describe(t: Tensor) -> Result:
        if id(t) not in found:
            found[id(t)] = describe_result(trace, t, numbers, roots)
        return found[id(t)]

    template = rebuild(result, Tensor, describe)
    settle_grads(trace, watch)
    forward = list(trace.nodes)
    backward, error = differentiate(trace, roots, numbers) if roots else ([], None)
    for i, s in enumerate(stand_ins):
        if s._node is not None:
            raise TraceError(f"argument tensor {i} ({s.layout}) was changed in place with history; clone() it first\n  at {site()}")
    cells = [trace.cells[s._storage.uid] for s in stand_ins]
    return Record(trace, forward, template, list(found.values()), [], backward, cells, error)


def settle_grads(trace: Trace, watch: Watch) -> None:
    """Tensors left in `.grad` that are constants of the trace get memory of their own: every call hands out new ones."""
    for use in list(watch.uses.values()):
        grad = use.current()
        if grad is not None and grad._storage.world is trace and trace.operand(grad).value.cell.role == "constant":
            trace.own(grad)


def _stand_ins(trace: Trace, leaves: Sequence[Tensor], sources: Sequence[int]) -> list[Tensor]:
    """A symbolic tensor an argument; arguments that are one tensor, or share one storage, do so here too."""
    out: list[Tensor] = []
    for i, t in enumerate(leaves):
        first = sources[i]
        if first < i and leaves[first] is t:
            out.append(out[first])
            continue
        layout = Layout(t.dtype, t.shape)
        if first < i:
            storage = out[first]._storage
        else:
            cell = trace.numbers.cell(t.dtype, layout.numel, "input", f"argument{i}")
            storage = trace.new_storage(cell, f"argument {i}", site())
            if is_whole(t):
                trace.cells[t._storage.uid] = cell
        stand_in = Tensor._make(storage, layout)
        stand_in._leaf = t.requires_grad
        stand_in.grad = grad_of(t)
        out.append(stand_in)
    return out


def describe_result(trace: Trace, t: Tensor, numbers: dict[int, int], roots: list[Tensor]) -> Result:
    """Where a returned tensor comes from at every call."""
    if id(t) in numbers:
        return Argument(numbers[id(t)])
    inside = t._node is not None and t._node.seq > trace.start
    if t._storage.world is not trace and not inside:
        return Concrete(t)
    operand = trace.operand(t)
    if operand.value.cell.role == "constant":
        operand = trace.own(t)
    if t.requires_grad and not any(r is t for r in roots):
        roots.append(t)
    root = next((k for k, r in enumerate(roots) if r is t), -1)
    return Made(operand, root)


def _effect(use: Use, trace: Trace, leaves: Sequence[Tensor], stand_ins: dict[int, int]) -> GradEffect | None:
    """A `.grad` use as something to check and repeat; None for tensors that the trace itself made."""
    number = stand_ins.get(id(use.tensor))
    if number is None and use.tensor._storage.world is trace:
        return None
    target: int | Tensor = use.tensor if number is None else number
    before = None if use.before is None else use.before.layout
    effect = GradEffect(target, use.read, before, use.before)
    if use.after is not use.before:
        after = use.after
        if number is not None and leaves[number].grad_fn is not None:
            raise TraceError(
                f"backward() inside compiled code reached argument tensor {number}, computed outside with history\n  at {site()}\n"
                f"  detach() it, or return the loss and call backward() outside"
            )
        if after is None or after._storage.world is not trace:
            effect.after = Concrete(after)
        else:
            effect.after = Made(trace.operand(after))
    return effect
