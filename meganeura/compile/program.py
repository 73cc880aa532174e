"""A traced function as graphs and sessions, and what a call of it does besides replaying them.

In: a Record. Out: `run(leaves)`: binds arguments and state, replays, repeats what the function did to `.grad`, hands
out results, and puts a node on the caller's tape where results have history.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .. import dispatch
from ..autodiff import Node as TapeNode
from ..autodiff import edge_of
from ..errors import TraceError
from ..provenance import site
from ..quiet import stopping
from ..storage import Layout, Storage
from ..tensor import Tensor
from .again import Again
from .arguments import dense, is_dense
from .cache import rewritten
from .derived import DerivedState
from .differentiate import Backward
from .guard import Guard, target_of
from .ir import Cell, Graph, Node, Value, covers
from .node import CompiledNode, SpentNode
from .options import Options
from .record import Argument, Concrete, GradEffect, Made, OldGrad, Record, Result
from .report import Report
from .reuse import Handed, idle_node, keep_gradients, keep_results
from .session import Session
from .tree import rebuild


class BackwardProgram:
    """One backward graph; its session is made when it first runs."""

    def __init__(self, part: Backward, graph: Graph) -> None:
        self.part, self.graph = part, graph
        self.session: Session | None = None


class Program:
    """One signature of a compiled function."""

    def __init__(self, name: str, record: Record, guard: Guard, options: Options, world: Any, fn: Any = None) -> None:
        self.name, self.guard, self.options, self.world, self.fn = name, guard, options, world, fn
        self.title = f"compiled[{name}]"
        self.spent: list[SpentNode] = []  # of the last calls' results, without a backward; the latest first
        self.template, self.results, self.effects, self.error = record.template, record.results, record.effects, record.error
        self.hosts, self.mode, self.flags = record.trace.hosts, record.mode, record.flags
        self.reports: list[Report] = []  # of the backward graphs, then of the forward one
        self.cache_hits = 0  # graphs that were loaded from the plan cache
        self.roots = sorted((r for r in self.results if isinstance(r, Made) and r.root >= 0), key=lambda r: r.root)
        self._sources(record)
        self.overlapping = _overlapping(self.results)
        self.backward = {part.pattern: BackwardProgram(part, self._backward_graph(part)) for part in record.backward}
        self.leaves = record.backward[0].leaves if record.backward else []
        self.saved = self._saved()
        self.graph = self._forward_graph(record)
        self.derived = DerivedState(self.graph.derived)
        self.written = self.graph.written_inputs()
        self.forward_hosts = _host_calls(self.hosts, 0, record.backward[0].hosts[0] if record.backward else None)
        self.session: Session | None = None
        for effect in self.effects:
            effect.grad = None  # known by its tensor from now on; last call's gradients need not live
        self._slots(len(record.argument_cells))
        self._handing()

    # ---- graphs ----

    def _sources(self, record: Record) -> None:
        """Where each given cell's storage comes from at a call."""
        self.argument_of = {c: i for i, c in reversed(list(enumerate(record.argument_cells)))}
        grads = {e.grad._storage.uid: e for e in record.effects if e.read and e.grad is not None}
        states = record.trace.states.items()
        self.state_of = [(c, s.tensor) for c, s in states if s.uid not in grads]
        self.grad_of = [(c, grads[s.uid]) for c, s in states if s.uid in grads]
        self.constant_of = {c: t._storage for c, t in record.trace.constants.items()}

    def _slots(self, leaves: int) -> None:
        """Where each cell's storage lies in a call's list: of states, `.grad`s, constants, derived state, arguments, results."""
        parts = ([c for c, _ in self.state_of], [c for c, _ in self.grad_of], list(self.constant_of), list(self.derived.derived))
        slot: dict[Cell, int] = {c: i for i, c in enumerate(c for part in parts for c in part)}
        first = sum(map(len, parts))
        slot.update((c, first + i) for c, i in self.argument_of.items())
        slot.update((c, first + leaves + i) for i, c in enumerate(self.graph.outputs))
        self.slot, self.states = slot, [t for _, t in self.state_of]
        self.constants = list(self.constant_of.values())
        self.input_slots = [slot[c] for c in self.graph.inputs]

    def _handing(self) -> None:
        """What a call hands out: results by number, `.grad`s as they were before it, and changes of `.grad`."""
        self.number_of = {id(r): i for i, r in enumerate(self.results)}
        everything = (*self.results, *(e.after for e in self.effects))
        handed = [r for r in everything if isinstance(r, OldGrad)]
        self.old, self.old_number = [r.target for r in handed], {id(r): i for i, r in enumerate(handed)}  # whose `.grad` is handed out
        self.single = self.number_of[id(self.template)] if isinstance(self.template, _RESULTS) else -1
        own = self._own_outputs()
        self.grads = [
            _Grad(e, e.after, self.number_of.get(id(e.after), -1), -1 if e.read else own.get(id(e.after), -1))
            for e in self.effects
            if e.after is not None
        ]
        self.foreign = any(g.own < 0 for g in self.grads)  # whether some are no outputs of their own
        self.replaced = [
            (e.target, own.get(id(e.after), -1), e.after.operand.layout) for e in self.effects if isinstance(e.after, Made) and not e.read
        ]  # whose `.grad` is replaced unread, by which output of its own, and how it lies
        self.handed = [Handed(i, own[id(r)], r) for i, r in enumerate(self.results) if isinstance(r, Made) and id(r) in own]
        happens = (self.old, self.flags, self.grad_of, self.derived.derived, self.overlapping, self.foreign, self.mode is not None)
        self.usual = not any(happens) and len(self.handed) == len(self.results) and (not self.roots or self.error is not None)

    def _own_outputs(self) -> dict[int, int]:
        """By identity of results and new `.grad`s: the number of the output that is this and nothing else."""
        made = [r for r in (*self.results, *(e.after for e in self.effects)) if isinstance(r, Made)]
        uses, saved = Counter(r.operand.value.cell for r in made), set(self.saved)
        number = {c: i for i, c in enumerate(self.graph.outputs) if uses[c] == 1 and c not in saved}
        return {id(r): number[r.operand.value.cell] for r in made if r.operand.value.cell in number}

    def _backward_graph(self, part: Backward) -> Graph:
        graph = Graph(f"{self.name} backward", part.nodes, [], hosts=self.hosts, constants=self.constant_of)
        own = _made_in(part.nodes)
        graph.kept = [g.value for g in part.grads if g is not None and g.value.cell in own]
        graph.outputs = list(dict.fromkeys(v.cell for v in graph.kept))
        self._rewrite(graph)
        if changed := graph.written_inputs():
            names = ", ".join(map(repr, changed))
            raise TraceError(f"the backward of {self.name} changes {names} in place; use out-of-place ops in hooks and gradients")
        return graph

    def _saved(self) -> list[Cell]:
        """Cells that some backward graph reads and a call must keep: made by the forward nodes, or given to them."""
        cells = (c for b in self.backward.values() for c in b.graph.inputs)
        return list(dict.fromkeys(c for c in cells if c.role not in ("gradient", "constant")))

    def _forward_graph(self, record: Record) -> Graph:
        graph = Graph(self.name, record.forward, [], hosts=self.hosts, constants=self.constant_of)
        now: dict[Cell, Value] = {o.value.cell: o.value for n in record.forward for o in n.outputs}
        handed = [r.operand.value.cell for r in self.results if isinstance(r, Made)]
        handed += [e.after.operand.value.cell for e in self.effects if isinstance(e.after, Made)]
        lasting = [c for c in dict.fromkeys((*handed, *self.saved)) if c.role == "value"]
        graph.outputs, graph.inference, graph.saved = lasting, not self.backward, set(lasting) - set(handed)
        graph.kept = [v for c, v in now.items() if c.role in ("input", "state") or c in set(lasting)]
        self._rewrite(graph)
        return graph

    def _rewrite(self, graph: Graph) -> None:
        """Run the passes; what they did is in `reports`."""
        self.reports.append(rewritten(graph, self.world.device, self.options))
        self.cache_hits += graph.entry is not None and graph.entry.hit

    # ---- calls ----

    def ensure_session(self) -> Session:
        """The forward session, made when first asked for."""
        if self.session is None:
            self.session = Session(self.graph, self.world, self.options.reuse)
        return self.session

    def run(
        self, leaves: Sequence[Tensor], sources: Sequence[int], args: Any = (), kwargs: Any = None, bound: list[Storage] | None = None
    ) -> Any:
        """One call. `args` and `kwargs`: the trees that the leaves come from, in case it is differentiated twice. `bound`: the
        storages of the leaves, if they are dense and share no memory with each other or with the function's own tensors."""
        session = self.ensure_session()
        quiet: list[bool] = []
        try:
            quiet.extend(stopping())  # a finalizer might call this again, and reuse what is about to be
            if bound is not None and self.usual:
                return self._run_usual(session, leaves, bound)
            return self._run_any(session, leaves, sources, args, kwargs or {}, bound)
        finally:
            if True in quiet:
                gc.enable()

    def _run_any(
        self, session: Session, leaves: Sequence[Tensor], sources: Sequence[int], args: Any, kwargs: Any, bound: list[Storage] | None
    ) -> Any:
        old = [target_of(t, leaves).grad for t in self.old]
        for number, wanted in self.flags.items():
            leaves[number].requires_grad_(wanted)
        given = [t._storage for t in self.states]  # it grows in the order of `_slots`
        again = Again(self, args, kwargs, leaves, given) if self.roots and self.error is None else None
        copied: list[bool] = []
        if bound is None or self.grad_of:
            given += [_grad_storage(effect, leaves) for _, effect in self.grad_of]
            bound, copied = self._bind(leaves, sources, given)
        assert bound is not None
        numbers = self._numbers()
        given += self.constants
        if self.derived.derived:
            given += self.derived.storages(given, self.slot)
        given += bound
        kept: list[Storage | None] = [None] * len(session.outputs)
        keep_gradients(self.replaced, leaves, session.results, kept)  # last: what it sets off, or a function above, may call this again
        keep_results(self.handed, kept)
        given += session.run_quiet([given[k] for k in self.input_slots], numbers, kept)
        if True in copied:
            self._copy_back(leaves, bound, copied)
        node = self._node(leaves, given, numbers, again) if self.roots else None
        tensors = [self._result(r, leaves, given, node, old) for r in self.results]
        for last in self.handed:
            last.note(tensors[last.number]._storage)
        if self.overlapping:
            self._tie(tensors, leaves, copied or [False] * len(leaves))
        if self.foreign or None in kept:
            for effect, after, known, own in self.grads:
                if own < 0 or kept[own] is None:
                    target_of(effect.target, leaves).grad = self._result(after, leaves, given, None, old) if known < 0 else tensors[known]
        if self.mode is not None:
            dispatch.state.grad = self.mode
        return tensors[self.single] if self.single >= 0 else self._as_returned(tensors)

    def _run_usual(self, session: Session, leaves: Sequence[Tensor], bound: list[Storage]) -> Any:
        """The same where results and new `.grad`s are memories of their own, and a call does nothing else: as most training steps."""
        given = [t._storage for t in self.states]
        given += self.constants
        given += bound
        numbers = self._numbers()
        kept: list[Storage | None] = [None] * len(session.outputs)
        keep_gradients(self.replaced, leaves, session.results, kept)
        keep_results(self.handed, kept)
        made = session.run_quiet([given[k] for k in self.input_slots], numbers, kept)
        node = self._spent_node() if self.roots else None
        tensors = [last.hand_out(made[last.own], node) for last in self.handed]
        if None in kept:
            for effect, after, _, own in self.grads:
                if kept[own] is None:
                    assert isinstance(after, Made)
                    target_of(effect.target, leaves).grad = after.tensor(made[own], None)
        return tensors[self.single] if self.single >= 0 else self._as_returned(tensors)

    def _as_returned(self, tensors: Sequence[Any]) -> Any:
        """Results in the containers that the function returned them in."""
        return rebuild(self.template, _RESULTS, lambda r: tensors[self.number_of[id(r)]])

    def _numbers(self) -> list[Any]:
        """The host's numbers of a call; a checkpoint around it repeats them when it runs again."""
        if not self.forward_hosts:
            return []
        frame = dispatch.state.frame
        if frame is None:
            return [v for fn, _ in self.forward_hosts for v in fn()]
        return frame.draw(lambda: [v for fn, _ in self.forward_hosts for v in fn()])  # type: ignore[no-any-return]

    def _bind(self, leaves: Sequence[Tensor], sources: Sequence[int], states: list[Storage]) -> tuple[list[Storage], list[bool]]:
        """A storage an argument, holding it densely from its start: its own where possible, else a copy. `states`: of states
        and `.grad`s, which an argument may not share."""
        taken = self.guard.uids if not self.grad_of else self.guard.uids | {s.uid for s in states}
        mine: set[int] = set()
        out: list[Storage] = []
        copied = []
        for i, t in enumerate(leaves):
            if sources[i] < i:
                out.append(out[sources[i]])
                copied.append(False)
                continue
            uid = t._storage.uid
            shared = uid in mine or (uid in taken and i not in self.guard.shared)
            if shared:
                self._refuse_overlap(i, leaves, states)
            direct = not shared and is_dense(t)
            mine.add(uid)
            out.append(t._storage if direct else dense(t)._storage)
            copied.append(not direct)
        return out, copied

    def _refuse_overlap(self, number: int, leaves: Sequence[Tensor], states: list[Storage]) -> None:
        """An argument that shares memory with what the graph changes could be neither bound nor copied rightly."""
        slots = self.slot
        changed = {(leaves[self.argument_of[c]]._storage if c in self.argument_of else states[slots[c]]).uid for c in self.written}
        if leaves[number]._storage.uid in changed:
            raise TraceError(
                f"argument tensor {number} shares memory with a tensor that {self.name} changes in place\n  at {site()}\n"
                f"  clone() the argument first"
            )

    def _copy_back(self, leaves: Sequence[Tensor], bound: list[Storage], copied: list[bool]) -> None:
        """What was changed in a copy of an argument goes to the argument."""
        for cell, i in self.argument_of.items():
            if copied[i] and cell in self.written:
                with dispatch.no_grad():
                    leaves[i].copy_(Tensor._make(bound[i], Layout(leaves[i].dtype, leaves[i].shape)))

    def _node(self, leaves: Sequence[Tensor], given: list[Storage], numbers: list[Any], again: Again | None) -> TapeNode:
        """The node of a call's results."""
        if again is None:
            return self._spent_node()
        edges = [edge_of(target_of(t, leaves)) for t in self.leaves]
        return CompiledNode(self, edges, self._metas(), site(), {c: given[self.slot[c]] for c in self.saved}, numbers, again)

    def _spent_node(self) -> TapeNode:
        """A node without a backward: one that the last calls' results had, where nobody knows it any more."""
        node: SpentNode | None = idle_node(self.spent)
        if node is None:
            assert self.error is not None
            node = SpentNode(self.title, self._metas(), site(), self.error)
        if not self.spent or self.spent[0] is not node:
            self.spent = [node, *self.spent[:1]]
        return node

    def _metas(self) -> list[Layout | None]:
        return [r.operand.layout for r in self.roots]

    def _result(self, result: Result, leaves: Sequence[Tensor], given: list[Storage], node: TapeNode | None, old: list[Any]) -> Any:
        if isinstance(result, Made):
            return result.tensor(given[self.slot[result.operand.value.cell]], node)
        if isinstance(result, Argument):
            return leaves[result.number]
        return result.tensor if isinstance(result, Concrete) else old[self.old_number[id(result)]]

    def _tie(self, tensors: Sequence[Any], leaves: Sequence[Tensor], copied: Sequence[bool]) -> None:
        """Results that lie in one memory, with each other or with something given, are views of one base: a change in place
        of the base is seen by their histories, one of a view is refused while recording."""
        states = dict(self.state_of)
        for cell, results in self.overlapping.items():
            number = self.argument_of.get(cell)
            base: Any = states.get(cell) if number is None or copied[number] else leaves[number]
            if base is None:
                base = next((tensors[self.number_of[id(r)]] for r in results if covers(r.operand)), None)
            if base is None:
                storage = tensors[self.number_of[id(results[0])]]._storage
                base = Tensor._make(storage, Layout(storage.dtype, (storage.elements,)))
            base = base if base._base is None else base._base
            for r in results:
                t = tensors[self.number_of[id(r)]]
                if t is not base and t._storage is base._storage:
                    t._base, t._seen, t._view = base, base._rewrites, "multi"

    def run_backward(self, grads: Sequence[Tensor | None], saved: dict[Cell, Storage], numbers: list[Any]) -> list[Tensor | None]:
        """Gradients of the leaves from those of the results."""
        found = self.backward[tuple(g is not None for g in grads)]
        if found.session is None:
            found.session = Session(found.graph, self.world, self.options.reuse)
        given: dict[Cell, Storage] = {**self.constant_of, **saved}
        for cell, g in zip(found.part.arriving, grads, strict=True):
            if cell is not None and g is not None:
                given[cell] = self._gradient_storage(g, given)
        calls = _host_calls(self.hosts, *found.part.hosts)
        first = found.part.hosts[0]
        every = [*numbers, *([None] * (first - len(numbers))), *(v for fn, _ in calls for v in fn())]
        made = found.session.run([given[c] for c in found.graph.inputs], every, [None] * len(found.graph.outputs))
        given.update(zip(found.graph.outputs, made, strict=True))
        return [None if g is None else Tensor._make(given[g.value.cell], g.layout) for g in found.part.grads]

    def _gradient_storage(self, g: Tensor, given: dict[Cell, Storage]) -> Storage:
        with dispatch.no_grad():
            if is_dense(g) and all(s is not g._storage for s in given.values()):
                return g._storage
            return dense(g)._storage

    def sessions(self) -> list[Session]:
        """The sessions made so far."""
        return [s for s in (self.session, *(b.session for b in self.backward.values())) if s is not None]


def _grad_storage(effect: GradEffect, leaves: Sequence[Tensor]) -> Storage:
    grad = target_of(effect.target, leaves).grad
    assert grad is not None, "a guard checks it"
    return grad._storage


class _Grad(NamedTuple):
    """A change of `.grad`: to which result (`known`: its number among the function's, or -1); `own`: see _own_outputs, or -1."""

    effect: GradEffect
    after: Result
    known: int
    own: int


_RESULTS: Any = (Argument, Concrete, OldGrad, Made)


def _overlapping(results: Iterable[Result]) -> dict[Cell, list[Made]]:
    """Results by cell, of those that share memory with others or with what is given."""
    found: dict[Cell, list[Made]] = {}
    for r in results:
        if isinstance(r, Made):
            found.setdefault(r.operand.value.cell, []).append(r)
    return {c: rs for c, rs in found.items() if len(rs) > 1 or c.role in ("input", "state")}


def _made_in(nodes: Iterable[Node]) -> set[Cell]:
    return {o.value.cell for n in nodes for o, v in zip(n.outputs, n.previous, strict=True) if v is None}


def _host_calls(hosts: Sequence[tuple[Any, int]], first: int, end: int | None) -> list[tuple[Any, int]]:
    """The host functions whose numbers lie in [first, end)."""
    out, at = [], 0
    for fn, count in hosts:
        if at >= first and (end is None or at < end):
            out.append((fn, count))
        at += count
    return out
