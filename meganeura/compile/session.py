"""A session: one graph made ready for a device and replayed.

In: at every run the storages of the graph's inputs and the host's numbers. Out: storages for the cells that outlive it.
Buffers that come and go (arguments, outputs the caller still holds) are rebound; everything else is fixed at building.
"""

from __future__ import annotations

import itertools
import json
import re
import weakref
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import spans
from ..dispatch import HostScalar
from ..errors import MeganeuraError
from ..gpu.replay import Frozen
from ..kernels.kernel import STATUS
from ..quiet import paused
from ..storage import Storage
from . import debugging
from .cache import planned
from .export import export
from .ir import Cell, Graph
from .plan import Plan
from .values import Inspector, NotFinite, names_of
from .verify_plan import verify_plan

EXACT = 1 << 16  # bytes from which a block has no size class
SPARE = 2  # buffers kept for an output whose tensors take turns


class Block:
    """A buffer that sessions share for values of their own: sessions run one after the other, so they never meet.
    Large ones are as large as asked for: size classes would waste up to a quarter of what planning saved."""

    __slots__ = ("__weakref__", "buffer", "device")

    def __init__(self, device: Any, nbytes: int) -> None:
        self.device, self.buffer = device, device.alloc(nbytes, exact=nbytes >= EXACT)

    def __del__(self) -> None:
        buffer = getattr(self, "buffer", None)
        if buffer is not None:
            self.device.graveyard.append(buffer)


_shared: weakref.WeakKeyDictionary[Any, weakref.WeakSet[Block]] = weakref.WeakKeyDictionary()


def take_blocks(device: Any, sizes: Sequence[int], shared: bool = True) -> list[Block]:
    """A block for each size: those that other sessions have, where they fit, and new ones."""
    if device.config.pin_bufs or not shared:  # what a session computed stays to be read after other sessions ran
        return [Block(device, n) for n in sizes]
    known = _shared.setdefault(device, weakref.WeakSet())
    idle = sorted(known, key=lambda b: b.buffer.size)
    out: list[Block | None] = [None] * len(sizes)
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        fitting = next((k for k, b in enumerate(idle) if b.buffer.size >= sizes[i]), None)
        if fitting is not None and idle[fitting].buffer.size <= 2 * max(sizes[i], 256):
            out[i] = idle.pop(fitting)
        else:
            out[i] = Block(device, sizes[i])
            known.add(out[i])  # type: ignore[arg-type]
    return out  # type: ignore[return-value]


class Output:
    """The buffers of one cell that outlives the session's runs. What the caller dropped comes back through `returned`,
    to which a dying Storage appends."""

    __slots__ = ("cell", "closed", "device", "free", "returned", "world")

    def __init__(self, cell: Cell, device: Any, world: Any) -> None:
        self.cell, self.device, self.world = cell, device, world
        self.returned: deque[Any] = deque()
        self.closed = False
        self.free: list[Any] = [device.alloc(cell.nbytes)]

    def next(self, bound: Any) -> Any:
        """The buffer of the next run: the one bound now, if its tensors are gone."""
        free = self.free
        while self.returned:
            free.append(self.returned.popleft())
        if not free:
            return self.device.alloc(self.cell.nbytes)
        if free[-1] is bound:
            buffer = free.pop()
        elif bound in free:
            free.remove(bound)
            buffer = bound
        else:
            buffer = free.pop()
        buffer.error = None  # of an earlier run that failed
        while len(free) > SPARE:
            self.device.free(free.pop(0))
        return buffer

    def storage(self, buffer: Any) -> Storage:
        """A storage for the caller; its buffer comes back when it dies."""
        return Storage(self.cell.dtype, self.cell.elements, buffer, self.world, self._take_back)

    def _take_back(self, buffer: Any) -> None:
        """Called by a dying Storage, maybe after the session died: only appends."""
        (self.device.graveyard if self.closed else self.returned).append(buffer)

    def __del__(self) -> None:
        self.closed = True
        for buffer in (*getattr(self, "free", ()), *self.returned):
            self.device.graveyard.append(buffer)


class _Varying:
    """Numbers of one step of the frozen list, some of which the host computes anew each run: those at `slots` of `values` are
    the run's numbers `sources`. `now`: what they were last."""

    __slots__ = ("now", "slots", "sources", "step", "values")

    def __init__(self, step: int, values: list[Any], slots: list[int], sources: list[int]) -> None:
        self.step, self.values, self.slots, self.sources = step, values, slots, sources
        self.now: list[Any] = []


def _dump(folder: str, session: Session) -> None:
    """Write graph and plan beside those of other sessions."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w.-]+", "_", session.graph.name)
    stem = f"{name}-{next(_dumped)}"
    (path / f"{stem}.txt").write_text(f"{session.graph}\n{session.plan}\n")
    (path / f"{stem}.json").write_text(session.plan_json() + "\n")


_dumped = itertools.count()


class Session:
    """A graph on a device. `run` replays it; counters of the device show what a run costs."""

    def __init__(self, graph: Graph, world: Any, reuse: bool = True) -> None:
        self.graph, self.world, self.device = graph, world, world.device
        self.runs = 0
        self.debugged: Any = None  # a weak reference to the last run's record, if it was inside meganeura.debug(), which keeps it
        with paused():
            self.plan: Plan
            self.plan, self.plan_loaded = planned(graph, self.device, reuse)
        self.steps = self.plan.steps
        if self.device.config.debug:
            verify_plan(graph, self.plan)
        self.outputs = [Output(c, self.device, world) for c in graph.outputs]
        self.blocks = take_blocks(self.device, self.plan.blocks[self.plan.results :], reuse)
        written = graph.written_inputs()
        self.written = [i for i, c in enumerate(graph.inputs) if c in written]
        self.bound: list[Any] = []  # buffers of the inputs, once frozen
        self.results = [o.free[0] for o in self.outputs]  # and of the outputs
        self.frozen: Frozen | None = None
        if folder := self.device.config.dump_plan:
            _dump(folder, self)

    # ---- building, at the first run: only then are the inputs' buffers known ----

    def _freeze(self, inputs: list[Any], outputs: list[Any]) -> None:
        buffers: dict[Cell, Any] = dict(zip(self.graph.inputs, inputs, strict=True))
        blocks = [*outputs, *(b.buffer for b in self.blocks)]
        buffers.update((c, blocks[k]) for c, k in self.plan.place.items())
        launches: list[tuple[Any, list[Any], int | None]] = []
        labels: list[tuple[str, Any]] = []
        scalars: list[list[Any]] = []
        with spans.span("pipelines", self.graph.name):
            prepared = self.device.prepare_all([s.lowered for s in self.steps])
        for step, ready, temps in zip(self.steps, prepared, self.plan.temps, strict=True):
            operands = [None if c is None else buffers[c] for c in step.cells]
            for part in ready.steps:
                bound = [None if n == STATUS else blocks[temps[-1 - n]] if n < 0 else operands[n] for n in part.launch.bindings]
                launches.append((part, bound, None))
                labels.append((step.node.title, step.node.place))
                scalars.append(step.scalars if part.launch.scalars else [])
        frozen = Frozen(self.device, launches, labels, ahead=self.device.family == "gpu")
        self.bound, self.results = inputs, outputs
        self._scalars(frozen, scalars)
        self.frozen = frozen

    def _scalars(self, frozen: Frozen, scalars: list[list[Any]]) -> None:
        """Constant numbers are written once, those with host scalars whenever these change."""
        self.varying: list[_Varying] = []
        for i, values in enumerate(scalars):
            places = {k: v.index for k, v in enumerate(values) if isinstance(v, HostScalar)}
            if places:
                self.varying.append(_Varying(i, list(values), list(places), list(places.values())))
            elif values:
                frozen.set_scalars(i, values)
        frozen.share_constants({v.step for v in self.varying})

    # ---- running ----

    def run(self, inputs: Sequence[Storage], numbers: Sequence[Any], kept: Sequence[Storage | None]) -> list[Storage]:
        """Replay on these inputs (in the order of graph.inputs) and host numbers. Returns a storage an output cell: that of
        `kept`, which this session made in a run before and which is overwritten now, or a new one; `kept` itself if none is new."""
        with paused():  # a finalizer might call this again, and what is bound would be its
            return self.run_quiet(inputs, numbers, kept)

    def run_quiet(self, inputs: Sequence[Storage], numbers: Sequence[Any], kept: Sequence[Storage | None]) -> list[Storage]:
        """The same where no collections happen."""
        device = self.device
        with device.lock:
            now, recorder = [s.buffer for s in inputs], device.recorder
            if recorder.marked:  # some buffer holds nothing, since what was to write it failed
                for buffer in now:
                    buffer.check()
            outputs: list[Any] = []
            fresh, frozen = None in kept, None
            try:
                if fresh:
                    for o, storage, buffer in zip(self.outputs, kept, self.results):
                        outputs.append(o.next(buffer) if storage is None else storage.buffer)
                else:
                    outputs = [s.buffer for s in kept]  # type: ignore[union-attr]
                if self.frozen is None:
                    self._freeze(now, outputs)
                elif now != self.bound or outputs != self.results:
                    self._rebind(now, outputs)
                assert self.frozen is not None
                begun = recorder.epoch, self.frozen.noted
                frozen = self.frozen
                if self.varying:
                    self._renumber(numbers)
                if recorder.marked:
                    for buffer in outputs:
                        buffer.error = None
                frozen.made = outputs
                if spans.listener is not None:
                    self._replay()
                elif self.steps:
                    frozen.run_locked()
                self._changed(inputs, kept)
            except BaseException:  # also Ctrl-C: the buffers are for the next run
                if frozen is not None and (recorder.epoch, frozen.noted) != begun:  # some of it was submitted, or noted
                    self._changed(inputs, kept)
                for o, buffer, storage in zip(self.outputs, outputs, kept):
                    if storage is None:
                        o.free.append(buffer)
                raise
            self.runs += 1
            made: list[Any] = kept  # type: ignore[assignment]
            if fresh:
                made = [o.storage(b) if old is None else old for o, b, old in zip(self.outputs, outputs, kept)]
            self.debugged = None
            if (debug := debugging.active()) is not None:
                run = debugging.Run(inputs, made)
                self.debugged = weakref.ref(run)
                debug.ran(self, run)
            return made

    def _changed(self, inputs: Sequence[Storage], kept: Sequence[Storage | None]) -> None:
        """A run wrote to these."""
        for i in self.written:
            inputs[i].version += 1
        for storage in kept:
            if storage is not None:
                storage.version += 1

    def _replay(self) -> None:
        """Replay where somebody listens."""
        if self.steps:
            assert self.frozen is not None
            with spans.span("replay", self.graph.name):
                self.frozen.run_locked()

    def _renumber(self, numbers: Sequence[Any]) -> None:
        """Write the host's numbers where they changed."""
        assert self.frozen is not None
        for v in self.varying:
            now = [numbers[n] for n in v.sources]
            if now != v.now:
                v.now = []
                for k, number in zip(v.slots, now, strict=True):
                    v.values[k] = number
                self.frozen.set_scalars(v.step, v.values)
                v.now = now  # last: what Ctrl-C cut short is written at the next run

    def _rebind(self, inputs: list[Any], outputs: list[Any]) -> None:
        """Let the frozen list use the inputs' and outputs' present buffers."""
        frozen, self.frozen = self.frozen, None  # made anew should this fail, or be cut short by Ctrl-C
        assert frozen is not None
        key = (*inputs, *outputs)
        if not frozen.recall(key):
            pairs = (*zip(self.bound, inputs, strict=True), *zip(self.results, outputs, strict=True))
            frozen.rebind_all({old: new for old, new in pairs if old is not new})
            frozen.remember(key)
        self.bound, self.results = inputs, outputs
        self.frozen = frozen

    # ---- looking inside ----

    def buffer_of(self, cell: Cell) -> Any:
        """The buffer that holds a cell, or held it, in the last run."""
        k = self.plan.place.get(cell)
        if k is None:
            return self.bound[self.graph.inputs.index(cell)]
        return self.results[k] if k < self.plan.results else self.blocks[k - self.plan.results].buffer

    def read_node_by_name(self, name: str) -> Any:
        """A value of the last run as a numpy array, by the name that graphs and plans show. Raises MeganeuraError that says
        why for values that are unknown, fused into others, or overwritten."""
        return Inspector(self).read(name)

    def step_debug(self) -> NotFinite | None:
        """The first value of the last run with NaN or Inf, with its op and the user's line; None if all are finite."""
        return Inspector(self).first_not_finite()

    @property
    def value_names(self) -> list[str]:
        """The names that read_node_by_name knows, in the order of computation."""
        return [n.name for n in names_of(self.graph)]

    def export(self) -> dict[str, Any]:
        """Graph, plan and dispatches as plain data (see export.py)."""
        return export(self.graph, self.plan)

    def plan_json(self) -> str:
        """The same as JSON."""
        return json.dumps(self.export())

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise MeganeuraError(f"the session of {self.graph.name} holds device memory and cannot be copied or pickled; see export()")

    def __str__(self) -> str:
        launches = len(self.frozen.steps) if self.frozen is not None else sum(len(s.lowered.launches) for s in self.steps)
        return (
            f"session of {self.graph.name} on {self.world}: {launches} dispatches, {self.runs} runs, "
            f"{self.plan.nbytes} bytes of its own, {self.plan.outputs} bytes of outputs"
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from .picture import session_html

        return session_html(self)
