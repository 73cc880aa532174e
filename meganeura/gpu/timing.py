"""GPU time by timestamp queries: of everything submitted in a block, as a whole or dispatch by dispatch.

In: a device, a block of work. Out: nanoseconds. Needs the feature 'timestamp-query'.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..errors import DeviceError
from . import native as raw
from .device import Device
from .pool import Buffer
from .recorder import Record

PAIRS = 2048  # timestamp pairs a query set


@dataclass(slots=True)
class Row:
    """One timed pass: begin and end in nanoseconds of the device's clock; names only when every dispatch is timed."""

    op: str
    kernel: str
    site: Any
    dispatches: int
    grid: tuple[int, int, int]
    begin: float = 0.0
    end: float = 0.0

    @property
    def ns(self) -> float:
        return self.end - self.begin


class Timer:
    """Times the passes that a recorder encodes while it is installed. `rows` is filled when the block ends."""

    def __init__(self, device: Device, each: bool) -> None:
        if "timestamp-query" not in device.wgpu.features:
            raise DeviceError(f"{device.name} has no timestamp queries")
        self.device, self.each = device, each
        self.rows: list[Row] = []
        self.sets: list[Any] = []

    @property
    def ns(self) -> float:
        """Nanoseconds of GPU work: the sum over passes."""
        return sum(r.ns for r in self.rows)

    @property
    def span(self) -> float:
        """Nanoseconds from the first pass's begin to the last one's end."""
        return max(r.end for r in self.rows) - min(r.begin for r in self.rows) if self.rows else 0.0

    def encode(self, encoder: Any, records: Sequence[Record], ring: Any) -> None:
        """Encode records as one timed pass, or as one a dispatch."""
        for part in ([r] for r in records) if self.each else (records,):
            self._encode_pass(encoder, part, ring)

    def _encode_pass(self, encoder: Any, records: Sequence[Record], ring: Any) -> None:
        n = self.device.native
        index = len(self.rows) % PAIRS
        if index == 0:
            self.sets.append(self.device.wgpu.create_query_set(type="timestamp", count=2 * PAIRS))
        first = records[0]
        name, label = (first[9], first[6].label) if len(records) == 1 else ("", "")
        self.rows.append(Row(name, label, first[8] if len(records) == 1 else None, len(records), first[3:6]))
        descriptor, _keep = n.pass_timestamps(self.sets[-1], 2 * index)
        cpass = n.begin_pass(encoder, descriptor)
        try:
            for pipeline, group, pointer, x, y, z, *_ in records:
                n.set_pipeline(cpass, pipeline)
                n.set_bind_group(cpass, 0, group, 0, n.NULL)
                if pointer is not None:
                    n.set_bind_group(cpass, 1, ring, 1, pointer)
                n.dispatch(cpass, x, y, z)
            n.end_pass(cpass)
        finally:
            n.release_pass(cpass)

    def collect(self) -> None:
        """Fetch the timestamps of all rows."""
        device = self.device
        period = device.native.timestamp_period(device.queue)
        for s, queries in enumerate(self.sets):
            rows = self.rows[s * PAIRS : (s + 1) * PAIRS]
            size = -(-16 * len(rows) // 256) * 256
            buffer = Buffer(device, device.make_handle(size, raw.QUERY_USAGE), size, 0)
            encoder = device.native.create_encoder(device.handle, device.native.NULL)
            device.native.resolve(encoder, raw.handle_of(queries), 0, 2 * len(rows), buffer.handle, 0)
            device.recorder.submit([device.native.finish(encoder)])
            device.native.release_encoder(encoder)
            ticks = struct.unpack(f"<{2 * len(rows)}Q", device.read(buffer, 0, 16 * len(rows)))
            for i, row in enumerate(rows):
                row.begin, row.end = ticks[2 * i] * period, ticks[2 * i + 1] * period
            device.native.destroy_buffer(buffer.handle)
            device.native.release_buffer(buffer.handle)


@contextmanager
def timestamps(device: Device, each: bool = False) -> Iterator[Timer]:
    """Time what is recorded in the block. each: a pass and a row a dispatch (adds 15-45 us a pass to the wall time)."""
    timer = Timer(device, each)
    with device.lock:
        device.flush()
        device.recorder.timer = timer
        try:
            yield timer
            device.flush()
        finally:
            device.recorder.timer = None
        timer.collect()


def measure(device: Device, fn: Callable[[], Any]) -> float:
    """GPU nanoseconds of the work that fn records."""
    with timestamps(device) as timer:
        fn()
    return timer.ns
