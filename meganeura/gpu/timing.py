"""GPU time by timestamp queries: of everything submitted in a block, as a whole or dispatch by dispatch.

In: a device, a block of work. Out: nanoseconds. Needs the feature 'timestamp-query'. Only what was really submitted is
timed: what did not encode, or was given up before its submission, leaves no row.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..errors import DeviceError
from . import native as raw
from .device import Device
from .pipelines import Step
from .pool import Buffer
from .recorder import Record

PAIRS = 2048  # timestamp pairs a query set


@dataclass(slots=True, eq=False)
class Row:
    """One timed pass: begin and end in nanoseconds of the device's clock; names and step only when every dispatch is timed.

    `submitted` and `thread`: when the host submitted it (time.perf_counter_ns) and from where; 0 as long as it did not.
    """

    op: str
    kernel: str
    site: Any
    dispatches: int
    grid: tuple[int, int, int]
    step: Step | None = None
    begin: float = 0.0
    end: float = 0.0
    submitted: int = 0
    thread: int = 0

    @property
    def ns(self) -> float:
        return self.end - self.begin


def available(device: Device) -> bool:
    """Whether the device has timestamp queries."""
    return "timestamp-query" in device.wgpu.features


def _require(device: Device) -> None:
    if not available(device):
        raise DeviceError(f"{device.name} has no timestamp queries")


class Timer:
    """Times the passes that a recorder encodes while it is installed. `rows` is complete after `collect`."""

    def __init__(self, device: Device, each: bool) -> None:
        _require(device)
        self.device, self.each = device, each
        self.rows: list[Row] = []  # one a pair of queries
        self.sets: list[Any] = []
        self._encoded: list[Row] = []  # since the last finished command buffer
        self._finished: dict[Any, list[Row]] = {}  # by command buffer, not submitted yet

    @property
    def ns(self) -> float:
        """Nanoseconds of GPU work: the sum over passes."""
        return sum(r.ns for r in self.rows)

    @property
    def span(self) -> float:
        """Nanoseconds from the first pass's begin to the last one's end."""
        return max(r.end for r in self.rows) - min(r.begin for r in self.rows) if self.rows else 0.0

    def install(self) -> None:
        """Time what the device's recorder encodes from now on. DeviceError if another timer does."""
        recorder = self.device.recorder
        with self.device.lock:
            if recorder.timer is not None:
                raise DeviceError("the work of this device is being timed already")
            self.device.flush()
            recorder.timer = self

    def remove(self) -> None:
        """Submit what is noted, still timed, and stop timing."""
        with self.device.lock:
            try:
                self.device.flush()
            finally:
                self.device.recorder.timer = None

    # what the recorder calls

    def encode(self, encoder: Any, records: Sequence[Record]) -> None:
        """Encode records as one timed pass, or as one a dispatch."""
        self._encoded = []
        for part in ([r] for r in records) if self.each else (records,):
            self._encode_pass(encoder, part)

    def _encode_pass(self, encoder: Any, records: Sequence[Record]) -> None:
        n = self.device.native
        index = len(self.rows) % PAIRS
        if index == 0:
            self.sets.append(self.device.wgpu.create_query_set(type="timestamp", count=2 * PAIRS))
        first = records[0]
        if len(records) == 1:
            row = Row(first[9], first[6].label, first[8], 1, first[3:6], first[6])
        else:
            row = Row("", "", None, len(records), first[3:6])
        self.rows.append(row)
        self._encoded.append(row)
        descriptor, _keep = n.pass_timestamps(self.sets[-1], 2 * index)
        cpass = n.begin_pass(encoder, descriptor)
        try:
            for pipeline, group, place, x, y, z, *_ in records:
                n.set_pipeline(cpass, pipeline)
                n.set_bind_group(cpass, 0, group, 0, n.NULL)
                if place is not None:
                    n.set_bind_group(cpass, 1, place[0], 1, place[1])
                n.dispatch(cpass, x, y, z)
            n.end_pass(cpass)
        finally:
            n.release_pass(cpass)

    def finished(self, commands: Any) -> None:
        """What was encoded last became this command buffer."""
        self._finished[commands], self._encoded = self._encoded, []

    def submitting(self, commands: Sequence[Any]) -> None:
        """These command buffers are about to be submitted."""
        now, thread = time.perf_counter_ns(), threading.get_ident()
        for c in commands:
            for row in self._finished.pop(c, ()):
                row.submitted, row.thread = now, thread

    # the result

    def collect(self) -> None:
        """Fetch the timestamps of all rows that were submitted; the others are dropped."""
        with self.device.lock:
            period = self.device.native.timestamp_period(self.device.queue)
            for s, queries in enumerate(self.sets):
                for first, rows in _runs(self.rows[s * PAIRS : (s + 1) * PAIRS]):
                    ticks = _fetch(self.device, queries, 2 * first, 2 * len(rows))
                    for i, row in enumerate(rows):
                        row.begin, row.end = ticks[2 * i] * period, ticks[2 * i + 1] * period
            self.rows = [r for r in self.rows if r.submitted]
            self.sets.clear()


def _runs(rows: Sequence[Row]) -> Iterator[tuple[int, list[Row]]]:
    """Stretches of submitted rows and where they start: queries that nothing wrote must not be resolved."""
    run: list[Row] = []
    for i, row in enumerate(rows):
        if row.submitted:
            run.append(row)
        elif run:
            yield i - len(run), run
            run = []
    if run:
        yield len(rows) - len(run), run


def _fetch(device: Device, queries: Any, first: int, count: int) -> tuple[int, ...]:
    """The ticks in `count` written queries."""
    native = device.native
    size = -(-8 * count // 256) * 256
    buffer = Buffer(device, device.make_handle(size, raw.QUERY_USAGE), size, 0)
    try:
        encoder = native.create_encoder(device.handle, native.NULL)
        try:
            native.resolve(encoder, raw.handle_of(queries), first, count, buffer.handle, 0)
            commands = native.finish(encoder)
        finally:
            native.release_encoder(encoder)
        device.recorder.submit([commands])
        return struct.unpack(f"<{count}Q", device.read(buffer, 0, 8 * count))
    finally:
        native.destroy_buffer(buffer.handle)
        native.release_buffer(buffer.handle)


@contextmanager
def timestamps(device: Device, each: bool = False) -> Iterator[Timer]:
    """Time what is recorded in the block. each: a pass and a row a dispatch (adds 15-45 us a pass to the wall time)."""
    timer = Timer(device, each)
    with device.lock:
        timer.install()
        try:
            yield timer
        finally:
            timer.remove()
        timer.collect()


def measure(device: Device, fn: Callable[[], Any]) -> float:
    """GPU nanoseconds of the work that fn records."""
    with timestamps(device) as timer:
        fn()
    return timer.ns


def clock_pair(device: Device) -> tuple[int, float, int]:
    """One moment on both clocks: a device time in nanoseconds, and host times (time.perf_counter_ns) before and after it."""
    _require(device)
    native = device.native
    with device.lock:
        device.flush()
        queries = device.wgpu.create_query_set(type="timestamp", count=2)
        descriptor, _keep = native.pass_timestamps(queries, 0)
        encoder = native.create_encoder(device.handle, native.NULL)
        try:
            cpass = native.begin_pass(encoder, descriptor)
            native.end_pass(cpass)
            native.release_pass(cpass)
            commands = native.finish(encoder)
        finally:
            native.release_encoder(encoder)
        device.native.wait(device.handle, native.work_done(device.queue))
        before = time.perf_counter_ns()
        device.recorder.submit([commands])
        native.wait(device.handle, native.work_done(device.queue))
        after = time.perf_counter_ns()
        begin, end = _fetch(device, queries, 0, 2)
        if not begin or not end:
            raise DeviceError(f"{device.name} wrote no timestamps for an empty pass")
        return before, (begin + end) / 2 * native.timestamp_period(device.queue), after
