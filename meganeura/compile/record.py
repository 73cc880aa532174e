"""Runs a function once under Trace and describes what it did: nodes, state, results, `.grad` effects, backward graphs.

In: a function and its arguments. Out: a Record without any symbolic tensor in it. Whatever happens, the Python state of
the tensors that the function met is as it was before.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import dispatch
from ..errors import TraceError
from ..provenance import Site, site
from ..provenance import watching as places
from ..random import changes, default_generator
from ..spans import span
from ..storage import Layout, Storage
from ..tensor import Tensor
from .arguments import hooks_of, is_whole
from .differentiate import Backward, differentiate, tape_leaves
from .ir import Cell, Node, Operand
from .names import Names
from .trace import Trace
from .tree import difference, rebuild
from .watch import Use, Watch, grad_of, watching


@dataclass(frozen=True)
class Argument:
    """A result that is the argument itself."""

    number: int


@dataclass(frozen=True)
class Concrete:
    """A result that is a tensor which existed before."""

    tensor: Tensor | None


@dataclass(frozen=True)
class OldGrad:
    """A result that is what `.grad` of `target` (an argument number or a tensor) held before the call."""

    target: int | Tensor


@dataclass
class Made:
    """A result that the graph makes, or a view of something given. `root`: its number among the results with history.
    `leaf`: it is a leaf that wants a gradient."""

    operand: Operand
    root: int = -1
    leaf: bool = False

    def tensor(self, storage: Storage, node: Any) -> Tensor:
        """It over the storage that a call put it into. `node`: of the results with history, or None."""
        t = Tensor._make(storage, self.operand.layout)
        if self.leaf:
            t._leaf = True
        if node is not None and self.root >= 0:
            t._node, t._index = node, self.root
        return t


Result = Argument | Concrete | OldGrad | Made


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
    names: Names | None = None  # what the function read by name
    mode: bool | None = None  # the gradient mode that it leaves on or off
    flags: dict[int, bool] = field(default_factory=dict)  # arguments whose requires_grad it sets


def record(fn: Callable[..., Any], args: Any, leaves: Sequence[Tensor], sources: Sequence[int]) -> Record:
    """Trace fn(*args[0], **args[1]). `leaves` are the tensors in args; `sources[i]` is the first of them bound as i is."""
    trace = Trace()
    watch = Watch(trace)
    draws = _Draws()
    names = Names(fn, args)
    for owner in names.owners:
        trace.observe(owner)
    recording, frame = dispatch.state.grad, dispatch.state.frame
    dispatch.state.frame = None  # a checkpoint around the call sees the call, not what is traced
    try:
        with watching(watch), places(), dispatch.use(trace), span("trace", getattr(fn, "__name__", "")):
            made = _run(fn, args, leaves, sources, trace, watch)
        made.mode = None if dispatch.state.grad == recording else dispatch.state.grad
    finally:
        trace.over = True
        dispatch.state.grad, dispatch.state.frame = recording, frame
        watch.settle()
        changed = trace.changed_history()
        made_by = getattr(getattr(changed, "_node", None), "site", None)
        trace.restore()
        seeded = draws.restore()
    if seeded:
        raise TraceError(
            f"a random seed or state was set inside compiled code, which would set it once only\n  at {site()}\n"
            f"  call manual_seed() and make Generators outside"
        )
    if changed is not None:
        where = site() if made_by is None else made_by
        raise TraceError(
            f"the traced code gave a tensor ({changed.layout}) from outside a history, other memory, a hook or requires_grad\n"
            f"  at {where}\n"
            f"  change such tensors under no_grad() or through detach()"
        )
    effects = [_effect(use, watch, trace, leaves) for use in watch.uses.values()]
    made.effects = [e for e in effects if e is not None]
    _check_twice(made, leaves)
    names.settle()
    made.names = names
    watch.uses.clear()
    trace.seen.clear()
    _check_escapes(trace)
    return made


def _check_twice(made: Record, leaves: Sequence[Tensor]) -> None:
    """A tensor that is an argument and used by itself too is two tensors here, with half its gradient each."""
    for cell, t in made.trace.shared.items():
        number = made.argument_cells.index(cell)
        if leaves[number].requires_grad and any(e.target is t or (isinstance(e.target, int) and e.target == number) for e in made.effects):
            raise TraceError(
                f"argument tensor {number} ({leaves[number].layout}) is also used inside, and its .grad is changed\n  at {site()}\n"
                f"  pass it, or use it inside, but not both"
            )


class _Draws:
    """The default generator before a trace. Setting its seed inside cannot be repeated at every call."""

    def __init__(self) -> None:
        self.before, self.changes = default_generator.get_state(), changes.count

    def restore(self) -> bool:
        """Whether the seed or position was set; then both are as before."""
        if changes.count == self.changes:
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
            f"{len(lost)} tensor(s) outlived the trace: the first was made by {what} at {where}{_holder(trace)}\n"
            f"  compiled code cannot keep tensors in attributes, lists or closures; return them, or copy_() into a tensor made before"
        )


def _holder(trace: Trace) -> str:
    """Where the first tensor that is still alive is kept, as far as it can be found."""
    storage = next((s for ref, *_ in trace.born if (s := ref()) is not None), None)
    for t in gc.get_referrers(storage):
        for held in gc.get_referrers(t) if isinstance(t, Tensor) else ():
            if not isinstance(held, dict):
                continue
            name = next((k for k, v in held.items() if v is t), None)
            for owner in gc.get_referrers(held):
                fields = owner if isinstance(owner, dict) else getattr(owner, "__dict__", None)
                if fields is held:
                    return f"\n  kept as attribute {name!r} of a {type(owner).__name__}"
                module = next((o for o, _ in trace.observed.values() if getattr(o, "_buffers", None) is held), None)
                if module is not None:
                    return f"\n  kept as buffer {name!r} of a {type(module).__name__}, which is changed with self.{name}.copy_(...)"
    return ""


def _run(fn: Callable[..., Any], args: Any, leaves: Sequence[Tensor], sources: Sequence[int], trace: Trace, watch: Watch) -> Record:
    stand_ins = _stand_ins(trace, leaves, sources)
    numbers = {id(s): i for i, s in reversed(list(enumerate(stand_ins)))}
    watch.stand_ins = numbers
    given = iter(stand_ins)
    positional, named = rebuild(args, Tensor, lambda _: next(given))
    before = rebuild((positional, named), Tensor, lambda t: t)
    result = fn(*positional, **named)
    _check_arguments(before, (positional, named))
    del before
    roots: list[Tensor] = []
    found: dict[int, Result] = {}

    def describe(t: Tensor) -> Result:
        if id(t) not in found:
            found[id(t)] = _shown_by_grad(t, trace, watch) or describe_result(trace, t, numbers, roots)
        return found[id(t)]

    _check_result(result)
    template = rebuild(result, Tensor, describe)
    if any(isinstance(found.get(id(t)), Made) for t in tape_leaves(roots)):
        raise TraceError(
            f"compiled code returned a leaf that it made, and a result with history that depends on it\n  at {site()}\n"
            f"  make the leaf outside and pass it, or call backward() inside"
        )
    settle_grads(trace, watch)
    _forget_owners(trace)
    for use in watch.uses.values():
        use.result = found.get(id(use.current()))
    forward = list(trace.nodes)
    backward, error = differentiate(trace, roots, numbers) if roots else ([], None)
    for i, s in enumerate(stand_ins):
        if s._node is not None:
            raise TraceError(
                f"argument tensor {i} ({s.layout}) was changed in place with history, by {s._node.name}\n  at {s._node.site}\n"
                f"  clone() it first"
            )
        if hooks_of(s) != hooks_of(leaves[i]):
            raise TraceError(
                f"a hook was left on argument tensor {i} ({s.layout})\n  at {site()}\n  register it outside, or remove() it again"
            )
    cells = [trace.cells[s._storage.uid] for s in stand_ins]
    flags = {i: s._leaf for i, (s, t) in enumerate(zip(stand_ins, leaves, strict=True)) if t.grad_fn is None and s._leaf != t.requires_grad}
    return Record(trace, forward, template, list(found.values()), [], backward, cells, error, flags=flags)


def _forget_owners(trace: Trace) -> None:
    """Modules made by the traced code are gone after it, as in plain code. Optimizers would have to start anew every time."""
    for key, (owner, _) in list(trace.observed.items()):
        groups = getattr(owner, "param_groups", None)
        tensors = owner.parameters() if groups is None else (p for g in groups for p in g["params"])
        if any(t._storage.world is trace for t in tensors):
            if groups is not None:
                raise TraceError(
                    f"{type(owner).__name__} steps tensors that were made inside compiled code\n  at {site()}\n"
                    f"  make the optimizer and its parameters outside"
                )
            del trace.observed[key]


def _check_arguments(before: Any, now: Any) -> None:
    """The code got copies of lists, dicts and dataclasses; what it puts into them would be lost."""
    changed = difference(before, now)
    if changed is not None:
        raise TraceError(
            f"compiled code changed a {type(changed).__name__} that was passed to it\n  at {site()}\n"
            f"  return what is new, or copy_() it into a tensor that the {type(changed).__name__} holds"
        )


def _check_result(tree: Any) -> None:
    """Iterators would run after the trace."""
    if isinstance(tree, (list, tuple)):
        for part in tree:
            _check_result(part)
    elif isinstance(tree, dict):
        _check_result(list(tree.values()))
    elif isinstance(tree, Iterator):
        raise TraceError(
            f"compiled code returned a {type(tree).__name__}, which would run after the trace\n  at {site()}\n  return a list of its items"
        )


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
        stand_in._hooks = list(t._hooks) if t._hooks else None
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
    if t._leaf and t._storage.world is trace:
        return Made(operand, leaf=True)
    if t.requires_grad and not any(r is t for r in roots):
        roots.append(t)
    root = next((k for k, r in enumerate(roots) if r is t), -1)
    return Made(operand, root)


def _shown_by_grad(t: Tensor, trace: Trace, watch: Watch) -> Result | None:
    """A tensor that is what some `.grad` that was read held before, or shows its memory: a call has another one. None for others."""
    for use in watch.uses.values():
        before, target = use.before, _target(use, trace, watch.stand_ins)
        if before is None or target is None or not use.read or before._storage is not t._storage:
            continue
        if before is t:
            return OldGrad(target)
        if not t.requires_grad:
            return Made(trace.operand(t))
    return None


def _target(use: Use, trace: Trace, stand_ins: dict[int, int]) -> int | Tensor | None:
    """Whose `.grad` is used: an argument number or a tensor; None for tensors that the trace itself made."""
    number = stand_ins.get(id(use.tensor))
    if number is None:
        return None if use.tensor._storage.world is trace else use.tensor
    return number


def _effect(use: Use, watch: Watch, trace: Trace, leaves: Sequence[Tensor]) -> GradEffect | None:
    """A `.grad` use as something to check and repeat; None for tensors that the trace itself made."""
    target = _target(use, trace, watch.stand_ins)
    if target is None:
        return None
    number = target if isinstance(target, int) else None
    before = None if use.before is None else use.before.layout
    effect = GradEffect(target, use.read, before, use.before)
    if use.after is not use.before or (use.written and not use.read):  # the next call may find another one
        after = use.after
        if number is not None and leaves[number].grad_fn is not None:
            if after is use.before:
                return effect
            raise TraceError(
                f"backward() inside compiled code reached argument tensor {number}, computed outside with history\n  at {site()}\n"
                f"  detach() it, or return the loss and call backward() outside"
            )
        if after is None or after._storage.world is not trace:
            effect.after = Concrete(None) if after is None else _shown_by_grad(after, trace, watch) or Concrete(after)
        else:
            effect.after = use.result if isinstance(use.result, Made) else Made(trace.operand(after))
    return effect
