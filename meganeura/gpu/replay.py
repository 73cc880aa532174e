"""A frozen list of dispatches, replayed with the least host work: compiled sessions own one.

In: steps with their buffers, in binding order. Out: submitted work, ordered behind what was recorded before. The list
owns its bind groups and its scalar blocks; the first run finishes every command buffer before it submits any, so a list
that cannot run leaves nothing half done.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Container, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..errors import DeviceError
from ..kernels.kernel import STATUS, Launch
from ..quiet import stopping
from . import native as raw
from .pipelines import SCALAR_BLOCK, Step
from .pool import Buffer
from .recorder import MAX_TOKENS, SHARED, Group, Record
from .scalars import pack_scalars

if TYPE_CHECKING:
    from .device import Device

CHUNK = {"gpu": 100, "cpu": 1024}  # dispatches a submit: on GPUs recording overlaps execution
CALM = 2  # runs without change after which a chunk is recorded ahead
ALTERNATIVES = 3 * SHARED  # bind groups kept a step, for buffers that take turns: uploads of two submits are under way
SETS = 3 * SHARED  # and sets of buffers kept a short list
COPIES = 2 * SHARED  # of the numbers that noted runs read: of those that are away, and of those noted since
SHORT = 32  # dispatches up to which a list's runs may share a submit
QUICK = 5e-4  # seconds between two runs up to which they may

Entry = tuple[Any, Any, Any, int, int, int]  # pipeline or None (as before), bind group, offset pointer or None, x, y, z


class Frozen:
    """Dispatches to replay. `steps`: (Step or Launch, buffers in the order of Launch.bindings, scalar slot or None).

    A None buffer stands for the status words. Steps with scalars get a 256-byte slot each, or share the slot named.
    `labels`: (op name, site) a step, for errors and timings. `ahead`: finish the next run's command buffers right after
    submitting this one's, which hides that work behind the GPU when the caller then waits; chunks whose buffers keep
    changing are left out. And let runs of short lists that follow one another quickly, nobody waiting between, share a submit.
    """

    def __init__(
        self,
        device: Device,
        steps: Sequence[tuple[Step | Launch, Sequence[Buffer | None], int | None]],
        labels: Sequence[tuple[str, Any]] = (),
        chunk: int = 0,
        ahead: bool = False,
    ) -> None:
        self.device, self.ahead = device, ahead
        self.chunk = chunk or (1 if device.config.serial_dispatch else CHUNK[device.family])
        self.labels = list(labels) or [("", None)] * len(steps)
        self.broken = ""
        self.lost: dict[int, str] = {}  # steps with a destroyed buffer
        self.proved = False
        self.marked = -1  # the epoch that the buffers in use know of
        self.made: Sequence[Buffer] = ()  # buffers that hold nothing unless the next run succeeds
        self.noted = 0  # runs that were noted rather than submitted at once
        self.ready: dict[int, Any] = {}  # finished command buffers of the next run, by chunk
        self.patient = ahead and len(steps) <= min(SHORT, self.chunk)  # whether runs may wait for the next
        self.last, self.waits = 0.0, -1  # when the last run was, and how often the host had waited for the device then
        with device.lock:
            self.steps = [s if isinstance(s, Step) else device.pipelines.step(s) for s, _, _ in steps]
            self._assign_slots([slot for _, _, slot in steps])
            self.buffers = [self._fill(step, given) for step, (_, given, _) in zip(self.steps, steps, strict=True)]
            self.using: dict[Buffer, set[int]] = {}  # the steps that bind a buffer
            for i, buffers in enumerate(self.buffers):
                for b in buffers:
                    self.using.setdefault(b, set()).add(i)
            self.caches: list[dict[Any, Group]] = [{} for _ in self.steps]
            self.groups = [self._group(i, buffers) for i, buffers in enumerate(self.buffers)]
        self.uses_status = any(s.status for s in self.steps)
        self.notes: dict[int, list[Record]] = {}  # records of a run, by the copy of the numbers that they read
        self.stale: dict[int, set[int]] = {}  # which of them were made for other buffers
        self.sets: dict[Any, list[Any]] = {}  # what depends on the buffers, as it was remembered; last what was then `marked`
        self.present: Any = None  # which of them was remembered or recalled last,
        self.kept = False  # and whether that is what is used now, and must be copied before it changes
        self.chunks: list[list[Entry]] = []
        self.calm = [CALM] * -(-len(self.steps) // self.chunk)  # runs since a chunk's buffers last changed
        self._build()

    def _fill(self, step: Step, given: Sequence[Buffer | None]) -> tuple[Buffer, ...]:
        """Buffers in binding order, the status words put in."""
        if len(given) != len(step.launch.bindings):
            raise DeviceError(f"kernel {step.label} has {len(step.launch.bindings)} bindings, got {len(given)} buffers")
        status = self.device.status.buffer
        return tuple(status if n == STATUS else b for n, b in zip(step.launch.bindings, given, strict=True))  # type: ignore[misc]

    # scalars

    def _assign_slots(self, asked: Sequence[int | None]) -> None:
        used = [s for s in asked if s is not None]
        count = max(used, default=-1) + 1
        self.slots: list[int | None] = []
        for step, slot in zip(self.steps, asked, strict=True):
            if step.pack is None:
                slot = None
            elif slot is None:
                slot, count = count, count + 1
            self.slots.append(slot)
        self.ring: Any = None
        self.scalar_group: Any = None
        self.host = bytearray(count * SCALAR_BLOCK)
        self.dirty = (0, len(self.host))
        self.read: dict[int, int] = {}  # the epoch of the last noted run that reads a copy of the numbers
        self.copy, self.copied = 0, not count  # the copy of the numbers that was written last, and whether it is what they are
        self.numbers: list[int] = []
        self.places: dict[int, Any] = {}
        if not count:
            return
        device, ffi = self.device, self.device.native.ffi
        blocks = count * (1 + COPIES if self.patient else 1)  # the numbers once, and copies for runs that share a submit
        self.ring = device.make_handle(blocks * SCALAR_BLOCK, raw.UNIFORM_USAGE)
        layout = raw.handle_of(device.pipelines.scalar_layout)
        self.scalar_group = device.native.create_bind_group(device.handle, layout, [(self.ring, 0, SCALAR_BLOCK)])
        self._offsets = ffi.new("uint32_t[]", [i * SCALAR_BLOCK for i in range(blocks)])
        self._number()

    def _number(self) -> None:
        """Give each step that reports to the status words its lasting number."""
        self.number_of: dict[int, int] = {}
        for i, step in enumerate(self.steps):
            if step.numbered:
                name, site = self.labels[i]
                self.number_of[i] = self.device.status.number(name or step.label, site, keep=True)
                self.numbers.append(self.number_of[i])
                if step.chosen is not None and set(step.chosen) == {-1}:
                    self.set_scalars(i, ())

    def set_scalars(self, step: int, values: Sequence[Any]) -> None:
        """The numbers that a step reads from its next run on (values: those of the call, as for Device.record)."""
        slot = self.slots[step]
        if slot is None:
            raise DeviceError(f"step {step} ({self.steps[step].label}) has no scalars")
        number = self.number_of.get(step) if self.steps[step].numbered else None
        start = slot * SCALAR_BLOCK
        pack_scalars(self.steps[step], self.host, start, values if number is None else [*values, number])
        self.copied = False
        low, high = self.dirty
        end = start + SCALAR_BLOCK
        self.dirty = (min(low, start), max(high, end)) if high > low else (start, end)

    def share_constants(self, varying: Container[int]) -> None:
        """From now on only the numbers of the steps `varying` change: others whose numbers begin those of the step with numbers before
        them read these, which need not be bound again. Before the first run."""
        assert not self.ready and not self.notes
        before, known = -1, b""
        for i, slot in enumerate(self.slots):
            if slot is None:
                continue
            start = slot * SCALAR_BLOCK
            mine = bytes(self.host[start : start + 4 * len(self.steps[i].launch.scalars)])
            if i not in varying and before >= 0 and known.startswith(mine):
                self.slots[i] = self.slots[before]
            else:
                before, known = i, b"" if i in varying else mine
        self.chunks = []
        self._build()

    # bindings

    def _group(self, i: int, buffers: tuple[Buffer, ...]) -> Group:
        """The bind group of a step for these buffers, from the step's few alternatives."""
        cache = self.caches[i]
        found = cache.get(buffers)
        if found is None:
            if len(cache) >= ALTERNATIVES:
                self.device.recorder.drop(next(g for g in cache.values() if g is not self.groups[i]))
            name, site = self.labels[i]
            found = self.device.recorder.make_group(self.steps[i], buffers, cache, name, site)
            found.owner = weakref.ref(self)  # buffers know their groups: they must not keep the list alive
        return found

    def rebind(self, old: Buffer, new: Buffer) -> None:
        """Let every step that uses `old` use `new`; buffers that take turns make no new bind groups."""
        self.rebind_all({old: new})

    def rebind_all(self, changes: Mapping[Buffer, Buffer]) -> None:
        """Let every step that uses a key use its value, all at once: buffers may also trade places."""
        with self.device.lock:
            epoch, using, get = self.device.recorder.epoch - 1, self.using, changes.get
            touched: set[int] = set()
            for old in changes:
                old.epoch = max(old.epoch, epoch)
                touched.update(using.get(old, ()))
            bound = [(i, tuple([get(b, b) for b in self.buffers[i]])) for i in touched]
            groups = [self._group(i, buffers) for i, buffers in bound]
            intact, self.broken = self.broken, "Ctrl-C struck while it was rebound"
            if self.kept:
                self.buffers, self.groups, self.using = list(self.buffers), list(self.groups), dict(self.using)
                self.chunks, self.notes = [list(c) for c in self.chunks], {copy: list(r) for copy, r in self.notes.items()}
                self.stale = {copy: set(stale) for copy, stale in self.stale.items()}
                self.kept = False
            self._follow(changes, bound, groups)
            self.broken = intact

    def remember(self, key: Any) -> None:
        """Note the present buffers of a short list as `key`."""
        if self.patient:
            while len(self.sets) >= SETS:
                del self.sets[next(iter(self.sets))]
            self.sets[key] = [self.buffers, self.groups, self.using, self.chunks, self.notes, self.stale, -1]
            self.present, self.kept = key, True

    def recall(self, key: Any) -> bool:
        """Use the buffers that were noted as `key`, unless one of them was destroyed since. Returns whether they are used."""
        with self.device.lock:
            found = None if self.lost else self.sets.pop(key, None)
            if found is None:
                return False
            epoch, marked = self.device.recorder.epoch - 1, self.marked
            if marked < epoch:  # they may not know of the last submit
                for b in self.using:
                    if b.epoch < epoch:  # noqa: PLR1730  max() takes three times as long, at every call of a compiled step
                        b.epoch = epoch
            if self.kept and self.present in self.sets:
                self.sets[self.present][-1] = marked
            intact, self.broken = self.broken, "Ctrl-C struck while it was rebound"
            self.sets[key] = found
            self.buffers, self.groups, self.using, self.chunks, self.notes, self.stale, self.marked = found
            self.present, self.kept = key, True
            self.calm = [0] * len(self.calm)
            self._discard_ready()
            self.broken = intact
            return True

    def _follow(self, changes: Mapping[Buffer, Buffer], bound: Sequence[tuple[int, tuple[Buffer, ...]]], groups: Sequence[Group]) -> None:
        """Let steps use these buffers and groups, and bring what is derived from them up to date."""
        using = self.using
        moved = [(new, using.pop(old)) for old, new in changes.items() if old in using]
        for new, where in moved:
            there = using.get(new)
            using[new] = where if there is None else there | where
        self.marked = -1
        for (i, buffers), group in zip(bound, groups):
            self.buffers[i], self.groups[i] = buffers, group
            c, j = divmod(i, self.chunk)
            entry = self.chunks[c][j]
            self.chunks[c][j] = (entry[0], group.handle, *entry[2:])
            self.calm[c] = 0
            if self.ready:
                self._discard(c)
        touched = [i for i, _ in bound]
        for stale in self.stale.values():
            stale.update(touched)
        if self.lost:
            for i in touched:
                self.lost.pop(i, None)

    def lose(self, group: Group) -> None:
        """A buffer of this list was destroyed: its steps cannot run until they are rebound."""
        sets = getattr(self, "sets", {})  # making the first groups may drop others already
        for key in [k for k, noted in sets.items() if group in noted[1]]:
            del sets[key]
        for i, g in enumerate(getattr(self, "groups", ())):
            if g is group:
                self.lost[i] = f"a buffer of step {i} ({self.steps[i].label}) was destroyed"
                self._discard_ready()

    def _build(self) -> None:
        """The entries, chunk by chunk; a pipeline is named only where it changes."""
        for start in range(0, len(self.steps), self.chunk):
            entries: list[Entry] = []
            last = None
            for i in range(start, min(start + self.chunk, len(self.steps))):
                pipeline = self.steps[i].pipeline.handle
                entries.append((None if pipeline is last else pipeline, self.groups[i].handle, self._pointer(i), *self.steps[i].grid))
                last = pipeline
            self.chunks.append(entries)

    def _pointer(self, i: int) -> Any:
        place = self._place(i)
        return None if place is None else place[1]

    def _place(self, i: int, copy: int = 0) -> Any:
        """Where a step's numbers are, in a copy of them: the same object for steps that share them."""
        slot = self.slots[i]
        if slot is None:
            return None
        at = copy * len(self.host) // SCALAR_BLOCK + slot
        found = self.places.get(at)
        if found is None:
            found = self.places[at] = (self.scalar_group, self._offsets + at)
        return found

    # running

    def run(self) -> None:
        """Replay the list behind everything recorded so far.

        Raises DeviceError. If the first run fails, nothing of it ran; a later one submits chunk by chunk, so the
        chunks before the failing one did. A run that waits for others fails at the next synchronising call, as a whole.
        Ctrl-C stops a run before its first chunk or after its last one.
        """
        with self.device.lock:
            self.run_locked()

    def run_locked(self) -> None:
        """The same for who holds the device's lock."""
        device, recorder = self.device, self.device.recorder
        if device.refusal:
            raise DeviceError(device.refusal)
        if device.graveyard or device.graves:
            device.drain()
        if self.broken or self.lost:
            raise DeviceError(f"this frozen list cannot run any more: {self.broken or next(iter(self.lost.values()))}")
        adopted = device.adopts and bool(device.adopted)
        if adopted:
            taken = next((how for b, how in device.unusable().items() if b in self.using), None)
            if taken is not None:
                raise DeviceError(f"this frozen list uses a buffer that its owner {taken}")
        if len(recorder.tokens) > MAX_TOKENS:
            recorder.throttle()
        if self.uses_status:
            device.status.pending = True
        now = perf_counter()
        if self.patient and not adopted and self._may_wait(now):
            self._note()
        else:
            self._run_now()
            now = perf_counter()
        self.last, self.waits = now, recorder.waits

    def _may_wait(self, now: float) -> bool:
        """Whether a run may share a submit with what follows: runs come quickly, and nobody waited for the last one."""
        recorder = self.device.recorder
        return self.proved and recorder.timer is None and recorder.waits == self.waits and now - self.last < QUICK

    def _note(self) -> None:
        """Note a run, to be submitted with others. Numbers that changed go into a copy that no noted run reads."""
        recorder = self.device.recorder
        if not self.copied:
            copy, size = self.copy % COPIES + 1, len(self.host)
            if self.read.get(copy, -1) >= recorder.unsent:  # after an error or Ctrl-C in a submit
                recorder._flush()
            recorder.write_numbers(self.ring, copy * size, self.host, size)
            self.copy, self.copied = copy, True
        records = self._noted()
        epoch = recorder.epoch
        if self.marked != epoch:
            for b in self.using:
                b.epoch = epoch
            self.marked = epoch
        self.read[self.copy] = epoch
        self.noted += 1
        recorder.note_run(self, records)

    def still_read(self, epoch: int, later: int) -> None:
        """Copies of the numbers that were to be read in a submit are in a later one."""
        self.read.update({copy: later for copy, last in self.read.items() if last == epoch})

    def _noted(self) -> list[Record]:
        """The records of a run that reads the present copy of the numbers."""
        records, stale = self.notes.get(self.copy), self.stale.setdefault(self.copy, set())
        if records is None:
            stale.clear()
            records = self.notes[self.copy] = [self._record(i, self.copy) for i in range(len(self.steps))]
        elif stale:
            for i in stale:
                old = records[i]
                records[i] = (old[0], self.groups[i].handle, *old[2:7], self.buffers[i], *old[8:])
            stale.clear()
        return records

    def _run_now(self) -> None:
        """Submit a run."""
        device, recorder = self.device, self.device.recorder
        if recorder.timer is not None:
            recorder._flush()  # timed rows come in the order of the work
            self._discard_ready()
        if not self.proved or recorder.timer is not None:
            self._finish_all()
        try:
            self._submit()
        except BaseException:
            self._discard_ready()
            raise
        recorder.written(self.using)
        device.counters.dispatches += len(self.steps)
        if self.ahead and recorder.timer is None:
            self._finish_calm()

    def _finish_all(self) -> None:
        """Finish the command buffers of a whole run, or none."""
        try:
            for c in range(len(self.chunks)):
                if c not in self.ready:
                    self.ready[c] = self._encode(c)
        except BaseException:
            self._discard_ready()
            raise
        self.proved = True

    def _finish_calm(self) -> None:
        """Finish the next run's command buffers of the chunks that do not change from run to run. What cannot be finished is
        told at that run: this one went well."""
        for c, runs in enumerate(self.calm):
            self.calm[c] = runs + 1
            if runs >= CALM and c not in self.ready:
                try:
                    self.ready[c] = self._encode(c)
                except DeviceError:
                    self.calm[c] = 0

    def _before(self) -> list[Any]:
        """What must be submitted ahead of the first chunk: noted eager work, and the scalars that changed."""
        recorder = self.device.recorder
        refused = recorder.deliver()
        low, high = self.dirty
        if high > low:
            recorder.write_numbers(self.ring, low, memoryview(self.host)[low:high], high - low)
            self.dirty = (0, 0)
        commands, failure = recorder.finished() if recorder.records else (None, None)
        failure = failure or refused
        first = [] if commands is None else [commands]
        lost = next((b for b in self.using if b.error is not None), None) if failure is not None else None
        if lost is not None:  # what this list reads was never written
            if first:
                recorder.submit(first)
            if recorder.error is failure:
                recorder.error = None  # it is raised now
            lost.check()
        return first

    def _submit(self) -> None:
        """Submit chunk after chunk: the device works on one while the next is encoded."""
        recorder = self.device.recorder
        interrupt: KeyboardInterrupt | None = None
        first, start = self._before(), recorder.epoch  # which grows by one a chunk
        while recorder.epoch < start + len(self.chunks):
            try:
                self._submit_from(start, first)
            except BaseException as error:
                if not isinstance(error, KeyboardInterrupt) or recorder.epoch == start:
                    raise
                interrupt, first = error, []  # half a training step is worse than a late Ctrl-C
        if interrupt is not None:
            raise interrupt

    def _submit_from(self, start: int, first: list[Any]) -> None:
        """Submit the chunks that are not out yet, `first` before chunk 0."""
        recorder = self.device.recorder
        while (c := recorder.epoch - start) < len(self.chunks):
            commands = self.ready.pop(c, None)
            if commands is None:
                commands = self._encode(c)
            recorder.submit([*first, commands] if c == 0 else [commands])

    def _encode(self, c: int) -> Any:
        """One chunk as a finished command buffer."""
        device = self.device
        try:
            if device.recorder.timer is not None:
                return device.recorder.encode(self._records(c))
            return self._encode_fast(self.chunks[c])
        except device.native.errors as error:
            raise self._explain(c, error) from error

    def _encode_fast(self, entries: list[Entry]) -> Any:
        n, null, scalars = self.device.native, self.device.native.NULL, self.scalar_group
        set_pipeline, set_group, dispatch = n.set_pipeline, n.set_bind_group, n.dispatch
        encoder: Any = None
        quiet: list[bool] = []
        try:
            quiet.extend(stopping())
            encoder = n.create_encoder(self.device.handle, null)
            cpass = n.begin_pass(encoder, null)
            try:
                last = None
                for pipeline, group, pointer, x, y, z in entries:
                    if pipeline is not None:
                        set_pipeline(cpass, pipeline)
                    set_group(cpass, 0, group, 0, null)
                    if pointer is not None and pointer is not last:
                        set_group(cpass, 1, scalars, 1, pointer)
                        last = pointer
                    dispatch(cpass, x, y, z)
                n.end_pass(cpass)
            finally:
                n.release_pass(cpass)
            return n.finish(encoder)
        finally:
            if True in quiet:
                gc.enable()
            if encoder is not None:
                n.release_encoder(encoder)

    def _records(self, c: int) -> list[Record]:
        return [self._record(i) for i in range(c * self.chunk, min((c + 1) * self.chunk, len(self.steps)))]

    def _record(self, i: int, copy: int = 0) -> Record:
        """A step as the recorder notes it, reading its numbers from a copy of them."""
        step, (name, site) = self.steps[i], self.labels[i]
        return (step.pipeline.handle, self.groups[i].handle, self._place(i, copy), *step.grid, step, self.buffers[i], site, name)

    def _explain(self, c: int, error: Exception) -> DeviceError:
        """Which step of a chunk does not encode."""
        device = self.device
        for record in self._records(c):
            try:
                device.native.release_commands(device.recorder.encode([record]))
            except device.native.errors as e:
                return device.translate(e, f"{record[9] or record[6].label} (kernel {record[6].label}) could not be recorded", record[8])
        return device.translate(error, f"{len(self.chunks[c])} frozen dispatches could not be recorded together", None)

    # ending

    def _discard(self, c: int) -> None:
        commands = self.ready.pop(c, None)
        if commands is not None:
            self.device.native.release_commands(commands)

    def _discard_ready(self) -> None:
        while self.ready:
            self.device.native.release_commands(self.ready.popitem()[1])

    def close(self) -> None:
        """Let go of bind groups, scalar memory and status numbers; the buffers stay the caller's."""
        device = self.device
        if device.refusal:
            return
        with device.lock:
            self.broken = self.broken or "it was closed"
            if any(run.frozen is self for run in device.recorder.runs):
                device.recorder._flush()
            self._discard_ready()
            status, numbers, self.numbers = device.status, self.numbers, []
            for number in numbers:
                status.noted[number] = status.kept.pop(number)
            for cache in self.caches:
                for group in list(cache.values()):
                    for b in group.buffers:
                        b.epoch = max(b.epoch, device.recorder.epoch - 1)
                    group.owner = None
                    device.recorder.drop(group)
            if self.scalar_group is not None:
                device.recorder.dead.append(self.scalar_group)
                device.graves.append(self.ring)
                self.scalar_group = self.ring = None

    def __del__(self) -> None:
        # Runs on any thread, maybe inside the lock: only leave things to the next drain.
        graves, status = self.device.graves, self.device.status
        for number in getattr(self, "numbers", ()):
            status.noted[number] = status.kept.pop(number)  # until the next check: the last run may have met a bad index
        for cache in getattr(self, "caches", ()):
            for group in list(cache.values()):
                group.owner = None
                graves.append(group)
        native = self.device.native
        graves.extend((native.release_commands, commands) for commands in getattr(self, "ready", {}).values())
        if getattr(self, "scalar_group", None) is not None:
            graves.append((native.release_bind_group, self.scalar_group))
        if getattr(self, "ring", None) is not None:
            graves.append(self.ring)
