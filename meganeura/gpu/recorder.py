"""The one hot path: eager dispatches are noted in a list and encoded, finished and submitted together.

In: Prepared calls with their buffers and scalars. Out: submitted command buffers, in order. Nothing native is called
per dispatch except on a miss of the bind group cache, so an error can never leave a half-recorded pass behind; the list
is kept until `finish` succeeded, so that one bad dispatch is found, dropped and reported, and the others still run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import DeviceError
from ..quiet import paused
from ..spans import span
from . import native as raw
from .outbox import Outbox
from .pipelines import SCALAR_BLOCK, Prepared, Step
from .pool import Buffer
from .scalars import pack_scalars

if TYPE_CHECKING:
    from .device import Device

SLOTS = 256  # of SCALAR_BLOCK bytes: one 64 KiB uniform buffer
MAX_GROUPS = 16384  # cached bind groups of one device
TOKEN_EVERY = 16  # submits between two completion tokens
MAX_TOKENS = 4  # tokens not done before the host waits: it runs at most 80 submits ahead
MAX_ISSUED = 1024  # buffers handed out since the last submit that are remembered
MAX_UPLOAD = 64 << 20  # bytes of queued uploads before they are pushed with an empty submit
SHARED = 8  # runs of frozen lists that share a submit at most: from a batch of dispatches on nothing waits

# A record: (pipeline, bind group, (bind group of the scalars, pointer to its offset) or None, x, y, z, step, buffers, site, op name)
Record = tuple[Any, Any, Any, int, int, int, Step, tuple[Buffer, ...], Any, str]
Copy = tuple[Any, int, Any, int, int]  # source, offset, destination, offset, bytes


class Run(NamedTuple):
    """A noted run of a frozen list, which must outlive it: its records are those from `start` to before `end`. `made`: the buffers
    that hold nothing unless it runs."""

    frozen: Any
    start: int
    end: int
    made: Sequence[Buffer]


class Group:
    """A cached bind group: where it is cached, what it names, and its handle. `owner`: weakly, the frozen list it belongs to."""

    __slots__ = ("__weakref__", "buffers", "cache", "handle", "key", "owner", "uniform")

    def __init__(self, cache: dict[Any, Group], key: Any, buffers: tuple[Buffer, ...], handle: Any, uniform: Any) -> None:
        self.cache, self.key, self.buffers, self.handle, self.uniform = cache, key, buffers, handle, uniform
        self.owner: Any = None

    def forget(self) -> None:
        """Leave the cache and the buffers' lists."""
        self.cache.pop(self.key, None)
        for b in self.buffers:
            b.groups.discard(self)


class Recorder:
    """Notes dispatches of one device and submits them. Every method takes the device's lock or is called under it."""

    def __init__(self, device: Device, batch: int) -> None:
        self.device, self.batch = device, batch
        self.native, self.lock, self.counters = device.native, device.lock, device.counters
        self.records: list[Record] = []
        self.epoch = 0  # of the submit that the noted records will go into
        self.retired = -1  # the last epoch known to have run
        self.tokens: deque[tuple[int, raw.Token]] = deque()
        self.uploaded = 0
        self.groups: deque[Group] = deque()
        self.dead: list[Any] = []  # bind group handles to release after the next submit,
        self.gone: list[Any] = []  # and those that nothing needs any more
        self.error: Exception | None = None  # of a dispatch that did not encode, raised at the next synchronising call
        self.issued: deque[tuple[int, Buffer]] = deque(maxlen=MAX_ISSUED)  # buffers handed out before record number i
        self.timer: Any = None
        self.runs: list[Run] = []  # of frozen lists, among the records
        self.waits = 0  # times that the host waited for results
        self.marked = False  # whether a buffer was ever marked with what kept it from being written
        self.outbox = Outbox(self)
        self._make_ring()

    def _make_ring(self) -> None:
        device, ffi = self.device, self.native.ffi
        self.ring = self.native.create_buffer(device.handle, SLOTS * SCALAR_BLOCK, raw.UNIFORM_USAGE)
        layout = raw.handle_of(device.pipelines.scalar_layout)
        self.ring_group = self.native.create_bind_group(device.handle, layout, [(self.ring, 0, SCALAR_BLOCK)])
        self.host = bytearray(SLOTS * SCALAR_BLOCK)
        self._offsets = ffi.new("uint32_t[]", [i * SCALAR_BLOCK for i in range(SLOTS)])
        self.places = [(self.ring_group, self._offsets + i) for i in range(SLOTS)]
        self.slot = 0

    # noting

    def record(
        self, prepared: Prepared, buffers: Sequence[Buffer | None], scalars: Sequence[Any] = (), site: Any = None, op_name: str = ""
    ) -> None:
        """Note a call on `buffers` (inputs, then outputs); `scalars` are its numbers in the order of Call.scalars."""
        with self.lock:
            device = self.device
            if device.graveyard or device.graves:
                device.drain()
            if len(self.tokens) > MAX_TOKENS:
                self.throttle()
            if self.slot + len(prepared.steps) > SLOTS:  # first: it may drop bind groups, and a call goes into one submit
                self._flush()
            if prepared.simple:
                self._note(prepared.steps[0], buffers, scalars, site, op_name)
            else:
                self._note_steps(prepared, buffers, scalars, site, op_name)
            if len(self.records) >= self.batch:
                self._flush()

    def _note(self, step: Step, operands: Sequence[Any], scalars: Sequence[Any], site: Any, op_name: str) -> None:
        epoch = self.epoch
        key = step.pick(operands)
        group = step.groups.get(key)
        if group is None:
            group = self.bind(step, key, op_name, site)
        place = None
        if step.pack is not None:
            slot = self.slot
            self.slot = slot + 1
            pack_scalars(step, self.host, slot * SCALAR_BLOCK, scalars)
            place = self.places[slot]
        buffers = group.buffers
        for b in buffers:
            b.epoch = epoch
        x, y, z = step.grid
        record = (step.pipeline.handle, group.handle, place, x, y, z, step, buffers, site, op_name)
        if self.epoch != epoch:  # a finalizer that the garbage collector ran has submitted: the place of the numbers is another's now
            self._note(step, operands, scalars, site, op_name)
            return
        self.records.append(record)
        self.counters.dispatches += 1

    def _note_steps(self, prepared: Prepared, buffers: Sequence[Any], scalars: Sequence[Any], site: Any, op_name: str) -> None:
        """Several steps, temporaries or status words. A call is noted whole or not at all."""
        device = self.device
        temps: list[Buffer] = []
        noted, epoch = len(self.records), self.epoch
        try:
            for n in prepared.temps:
                temps.append(device.alloc(n))  # may submit, when memory is short
            noted, epoch = len(self.records), self.epoch
            operands = [*buffers, device.status.buffer, *reversed(temps)]
            for step in prepared.steps:
                if self.slot == SLOTS:  # a call with more numbers than the ring holds
                    self._flush()
                values: Sequence[Any] = scalars
                if step.numbered:
                    values = [*scalars, device.status.number(op_name, site)]
                if step.status:
                    device.status.pending = True
                self._note(step, operands, values, site, op_name)
        except BaseException:
            del self.records[noted if self.epoch == epoch else 0 :]
            raise
        finally:
            for t in temps:
                device.free(t)

    def note_run(self, frozen: Any, records: Sequence[Record]) -> None:
        """Note a run of a frozen list. Ctrl-C may strike: it is noted whole or not at all."""
        start = len(self.records)
        while self.runs and self.runs[-1].end > start:  # Ctrl-C struck below, before the next two lines were both done
            self.runs.pop()
        self.runs.append(Run(frozen, start, start + len(records), frozen.made))
        self.records.extend(records)
        self.counters.dispatches += len(records)
        if len(self.runs) >= SHARED or len(self.records) >= self.batch:
            with paused():
                if not self.outbox.hand_over():
                    self._flush()

    # binding

    def bind(self, step: Step, key: Any, op_name: str, site: Any) -> Group:
        """The bind group of a step for these buffers, cached until it is evicted or a buffer dies."""
        group = self.make_group(step, key, step.groups, op_name, site)
        self.groups.append(group)
        if len(self.groups) > MAX_GROUPS:
            self._evict()
        return group

    def make_group(self, step: Step, key: Any, cache: dict[Any, Group], op_name: str, site: Any) -> Group:
        """A new bind group, after checking what depends on the buffers: their state, sizes, and aliasing."""
        buffers: tuple[Buffer, ...] = key if isinstance(key, tuple) else (key,)
        if not self.device.faults.skip_checks:
            check_buffers(self.device, step, buffers, op_name, site)
        try:
            handle = self.native.create_bind_group(self.device.handle, step.pipeline.layout, self._bindings(step, buffers))
        except self.native.errors as error:
            raise self.device.translate(error, f"{op_name or step.label} could not bind its buffers", site) from error
        group = cache[key] = Group(cache, key, buffers, handle, step.uniform)
        for b in buffers:
            b.groups.add(group)
        self.counters.bind_groups += 1
        return group

    def _bindings(self, step: Step, buffers: tuple[Buffer, ...]) -> list[tuple[Any, int, int]]:
        limit = self.device.max_binding
        if step.ranges is None:
            out = [(b.handle, 0, b.size if b.size <= limit else limit) for b in buffers]
        else:
            out = [(b.handle, offset, size) for b, (offset, size) in zip(buffers, step.ranges, strict=True)]
        if step.uniform is not None:
            out.append((step.uniform.handle, 0, step.uniform.size))
        return out

    def _evict(self) -> None:
        """Drop the older half of the cached bind groups; noted records may still name their handles."""
        for _ in range(len(self.groups) // 2):
            self.drop(self.groups.popleft())

    def drop(self, group: Group) -> None:
        """Forget a bind group; its handle is released after the next submit."""
        if group.handle is not None:
            group.forget()
            handle, group.handle = group.handle, None
            self.dead.append(handle)
            owner = group.owner() if group.owner is not None else None
            if owner is not None:
                owner.lose(group)
            self.counters.dropped_groups += 1

    # submitting

    def flush(self) -> None:
        """Submit what is noted. Raises DeviceError for a dispatch that could not be encoded; the others ran."""
        with self.lock:
            self._flush()
            self.raise_pending()

    def raise_pending(self) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error

    def _flush(self, copies: Sequence[Copy] = ()) -> None:
        """Submit what is noted, also inside another op's record: what does not encode waits for the next synchronising call."""
        with paused():  # what a finalizer notes must not come between what is encoded and what counts as sent
            self.outbox.deliver()
            if self.records or copies:
                self.submit([self.finished(copies)[0]])
            elif self.uploaded > 0:
                self.submit([])

    def finished(self, copies: Sequence[Copy] = ()) -> tuple[Any, Exception | None]:
        """The noted records as a command buffer to submit now, without those that do not encode, and their error."""
        failure = self._leave_out_unusable() if self.device.adopted else None
        try:
            return self.encode(self.records, copies), failure
        except self.native.errors as error:
            if self.device.is_lost(error):
                self.records, self.slot, self.runs = [], 0, []
                raise self.device.translate(error, "submitting", None) from error
            noted = len(self.records)
            failure = self._sort_out(self.records, error)
            self.error = self.error or failure
            self._keep_unrecorded(noted, len(self.records))
            try:
                return self.encode(self.records, copies), failure
            except self.native.errors as again:
                raise self.device.translate(again, "submitting", None) from again

    def _leave_out_unusable(self) -> Exception | None:
        """Drop the records on adopted buffers that their owners took back; the first one's error."""
        gone = self.device.unusable()
        failures: dict[int, Exception] = {}
        for i, r in enumerate(self.records):
            taken = next((gone[b] for b in r[7] if b in gone), None)
            if taken is not None:
                failures[i] = DeviceError(f"{r[9] or r[6].label} (kernel {r[6].label}) uses a buffer that its owner {taken}{at(r[8])}")
        if not failures:
            return None
        return self.drop_records(failures)

    def drop_records(self, failures: dict[int, Exception]) -> Exception:
        """Go on without the noted records that failed, by their numbers, and what depends on them. Returns the first one's error, which
        waits for the next synchronising call."""
        failure = next(iter(failures.values()))
        noted = len(self.records)
        self._leave_out(self.records, failures)
        self._keep_unrecorded(noted, len(self.records))
        self.error = self.error or failure
        return failure

    def encode(self, records: Sequence[Record], copies: Sequence[Copy] = ()) -> Any:
        """One finished command buffer of one pass (and copies after it). Raises the package's GPUError; leaks nothing."""
        n = self.native
        encoder = n.create_encoder(self.device.handle, n.NULL)
        try:
            if records and self.timer is not None:
                self.timer.encode(encoder, records)
            elif records:
                self.fill(encoder, records)
            for source, offset, target, target_offset, size in copies:
                n.copy(encoder, source, offset, target, target_offset, size)
            commands = n.finish(encoder)
            if self.timer is not None:
                self.timer.finished(commands)
            return commands
        finally:
            n.release_encoder(encoder)

    def fill(self, encoder: Any, records: Sequence[Record]) -> None:
        """Record a pass of these."""
        n, null = self.native, self.native.NULL
        set_pipeline, set_group, dispatch = n.set_pipeline, n.set_bind_group, n.dispatch
        cpass = n.begin_pass(encoder, null)
        try:
            last = numbers = None
            for pipeline, group, place, x, y, z, _, _, _, _ in records:
                if pipeline is not last:
                    set_pipeline(cpass, pipeline)
                    last = pipeline
                set_group(cpass, 0, group, 0, null)
                if place is not None and place is not numbers:
                    set_group(cpass, 1, place[0], 1, place[1])
                    numbers = place
                dispatch(cpass, x, y, z)
            n.end_pass(cpass)
        finally:
            n.release_pass(cpass)

    def submit(self, commands: list[Any]) -> None:
        """Submit finished commands, with the scalars that their dispatches read. The commands are used up.

        Ctrl-C may strike at any call: the records are gone if and only if the driver has them.
        """
        device = self.device
        assert self.outbox.away is None, "submits are in order"
        if self.slot:
            self.write_numbers(self.ring, 0, self.host, self.slot * SCALAR_BLOCK)
        if self.timer is not None:
            self.timer.submitting(commands)
        sent: list[None] = []
        records, slot, runs = self.records, self.slot, self.runs
        self.records, self.slot, self.runs = [], 0, []
        try:
            self.native.submit(device.queue, commands, sent)
        except self.native.errors as error:
            failure = device.translate(error, "submitting", None)
            if not device.lost:
                self.runs = runs
                self._leave_out(records, dict.fromkeys(range(len(records)), failure))
            raise failure from error
        finally:
            if sent:
                device.pool.submitted = self.epoch
                self.epoch += 1
                self.uploaded = 0
            else:
                self.records, self.slot, self.runs = records, slot, runs
        self._keep_unrecorded(len(records))
        self.gone, self.dead = [*self.gone, *self.dead], []
        self.is_out(self.epoch - 1)

    def is_out(self, epoch: int) -> None:
        """The driver has a submit."""
        self.counters.submits += 1
        while self.gone:  # Ctrl-C may strike: none is released twice
            self.native.release_bind_group(self.gone.pop())
        if (epoch + 1) % TOKEN_EVERY == 0:
            self.tokens.append((epoch, self.native.work_done(self.device.queue)))

    # by way of the courier

    @property
    def unsent(self) -> int:
        """The epoch of the first submit that the driver is not known to have."""
        away = self.outbox.away
        return self.epoch if away is None else away.epoch

    def deliver(self) -> Exception | None:
        """See that what was handed over is out, or noted again. Returns the error of what the driver refused."""
        if self.outbox.away is None and not self.outbox.busy:
            return None
        with paused():
            return self.outbox.deliver()

    def write_numbers(self, ring: Any, offset: int, data: Any, nbytes: int) -> None:
        """Bytes into a buffer of scalar blocks, ahead of the next submit."""
        try:
            self.native.write(self.device.queue, ring, offset, data, nbytes)
        except self.native.errors as error:
            raise self.device.translate(error, "writing the numbers of dispatches", None) from error

    def _keep_unrecorded(self, noted: int, left: int = 0) -> None:
        """Of the buffers handed out since the last submit remember those that none of the `noted` records came after."""
        issued = self.issued
        while issued and issued[0][0] < noted:
            issued.popleft()
        for i, (_, buffer) in enumerate(issued):
            issued[i] = (left, buffer)

    def written(self, buffers: Container[Buffer]) -> None:
        """These were written by work that went past the records."""
        if self.issued:
            self.issued = deque((entry for entry in self.issued if entry[1] not in buffers), MAX_ISSUED)

    def throttle(self) -> None:
        """Keep the host from running away. Called before anything is noted, so that Ctrl-C in this wait loses nothing."""
        while len(self.tokens) > MAX_TOKENS:
            epoch, token = self.tokens[0]
            with span("wait", "the device is behind"):
                self.native.wait(self.device.handle, token)
            self.tokens.popleft()
            self.mark_retired(epoch)
        while self.tokens and self.tokens[0][1].done:
            self.mark_retired(self.tokens.popleft()[0])

    def mark_retired(self, epoch: int) -> None:
        """Note that everything up to a submit has run; buffers that waited for it are destroyed."""
        self.retired = max(self.retired, epoch)
        self.device.pool.reap(self.retired)

    def _sort_out(self, records: list[Record], error: Exception) -> Exception:
        """Leave out the records that do not encode. Returns the error of the first bad one."""
        failures: dict[int, Exception] = {}
        for i, r in enumerate(records):
            try:
                self.native.release_commands(self.encode([r]))
            except self.native.errors as e:
                failures[i] = self.device.translate(e, f"{r[9] or r[6].label} (kernel {r[6].label}) could not be recorded", r[8])
        if not failures:  # each encodes alone, all together do not: nothing can be said to be good
            whole = self.device.translate(error, f"{len(records)} dispatches could not be recorded together", records[0][8])
            failures = dict.fromkeys(range(len(records)), whole)
        self._leave_out(records, failures)
        return next(iter(failures.values()))

    def _leave_out(self, records: list[Record], failures: dict[int, Exception]) -> None:
        """Keep the records that neither failed nor bind what a failed one was to write.

        What is dropped leaves memory as it was: an in-place target keeps its value, a new buffer holds nothing and is
        marked with the error. All launches of one call (one site) share its fate, and all of a frozen list's run.
        """
        while True:
            bad, lost = self._spread(records, failures)
            halves = [run for run in self.runs if 0 < sum(i in bad for i in range(run.start, run.end)) < run.end - run.start]
            if not halves:
                break
            failures = bad | {i: next(bad[j] for j in range(r.start, r.end) if j in bad) for r in halves for i in range(r.start, r.end)}
        whole = [run for run in self.runs if run.start not in bad]
        runs = [
            run._replace(start=run.start - sum(j < run.start for j in bad), end=run.end - sum(j < run.start for j in bad)) for run in whole
        ]
        self.records, self.runs = [r for i, r in enumerate(records) if i not in bad], runs
        self._report(lost)

    def _spread(self, records: list[Record], failures: dict[int, Exception]) -> tuple[dict[int, Exception], dict[Buffer, Exception]]:
        """Errors of the records that failed, and of those that then cannot run; and of the buffers that then hold nothing."""
        inside = {i: n for n, run in enumerate(self.runs) for i in range(run.start, run.end)}  # runs of a list share its sites
        calls = {(inside.get(i), id(records[i][8])): e for i, e in failures.items() if records[i][8] is not None}
        bad: dict[int, Exception] = {}
        fresh: set[Buffer] = set()
        lost: dict[Buffer, Exception] = {}
        issued = sorted([*self.issued, *((run.start, b) for run in self.runs for b in run.made)], key=lambda entry: entry[0], reverse=True)
        for i, r in enumerate(records):
            while issued and issued[-1][0] <= i:
                buffer = issued.pop()[1]
                fresh.add(buffer)
                lost.pop(buffer, None)
            step, buffers = r[6], r[7]
            error = failures.get(i) or calls.get((inside.get(i), id(r[8]))) or next((lost[b] for b in buffers if b in lost), None)
            written = [buffers[k] for k in step.writes]
            if error is None:
                fresh.difference_update(written)
            else:
                bad[i] = error
                lost.update((b, error) for b in written if b in fresh)
        return bad, lost

    def _report(self, lost: dict[Buffer, Exception]) -> None:
        """Mark buffers that hold nothing; what is bound anew meets the mark."""
        for buffer, error in lost.items():
            self.marked = True
            buffer.error = type(error)(*error.args)
            for group in [g for g in buffer.groups if g.owner is None]:
                self.drop(group)


def check_buffers(device: Any, step: Step, buffers: Sequence[Any], op_name: str, site: Any) -> None:
    """Raise DeviceError for buffers that a step cannot bind: missing, destroyed, foreign, never written, too small, aliased.

    A buffer larger than one binding is no error: it is bound from its start, and `kernels.lower` sees to it that a
    launch without ranges reaches no further.
    """
    what = f"{op_name or step.label} (kernel {step.label})"
    for i, b in enumerate(buffers):
        operand = step.launch.bindings[i]
        if b is None:
            raise DeviceError(f"{what}: operand {operand} has no buffer{at(site)}")
        if b.handle is None:
            raise DeviceError(f"{what}: operand {operand} is a destroyed buffer{at(site)}")
        if b.device is not device:
            raise DeviceError(f"{what}: operand {operand} lives on another device{at(site)}")
        b.check()
        if step.ranges is not None and sum(step.ranges[i]) > b.size:
            raise DeviceError(f"{what}: range {step.ranges[i]} ends after the buffer's {b.size} bytes{at(site)}")
    for i in step.writes:
        if any(b is buffers[i] for j, b in enumerate(buffers) if j != i):
            raise DeviceError(f"{what} writes a buffer that it also binds elsewhere; copy one of them first{at(site)}")


def at(site: Any) -> str:
    """The user line, as the tail of a message."""
    return f"\n  at {site}" if site is not None else ""
