"""A profile as a trace for ui.perfetto.dev: a track a host thread and one for the device, on one clock.

In: spans and dispatches. Out: the bytes of a Perfetto trace. Needs the package `perfetto` (pip install meganeura[profile]).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import UnsupportedError
from .capture import Span
from .rows import Dispatch

PROCESS, DEVICE, THREADS = 1, 2, 16  # track numbers
SEQUENCE = 1
STATE_CLEARED, NEEDS_STATE = 1, 2


def trace(device: str, spans: Sequence[Span], rows: Sequence[Dispatch], threads: Mapping[int, str]) -> bytes:
    """The bytes to write to a .pftrace file. UnsupportedError without the package."""
    try:
        from perfetto.trace_builder.proto_builder import TraceProtoBuilder
    except ImportError as e:
        raise UnsupportedError(f"a trace needs the package perfetto: pip install 'meganeura[profile]' ({e})") from e
    writer = _Writer(TraceProtoBuilder())
    writer.tracks(device, threads)
    tracks = {thread: THREADS + i for i, thread in enumerate(threads)}
    flows = writer.submissions(rows, tracks)
    for thread, track in tracks.items():
        writer.host(track, [s for s in spans if s.thread == thread])
    writer.device(rows, flows)
    return bytes(writer.builder.serialize())


class _Writer:
    """Packets of one trace."""

    def __init__(self, builder: Any) -> None:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

        self.builder, self.event = builder, protos.TrackEvent

    def packet(self, timestamp: float | None = None) -> Any:
        p = self.builder.add_packet()
        p.trusted_packet_sequence_id = SEQUENCE
        if timestamp is not None:
            p.timestamp = int(timestamp)
        return p

    def tracks(self, device: str, threads: Mapping[int, str]) -> None:
        first = self.packet()
        first.sequence_flags = STATE_CLEARED
        first.track_descriptor.uuid = PROCESS
        first.track_descriptor.process.pid = os.getpid()
        first.track_descriptor.process.process_name = "meganeura"
        gpu = self.packet().track_descriptor
        gpu.uuid, gpu.parent_uuid, gpu.name = DEVICE, PROCESS, _encodable(f"GPU: {device}")
        for i, name in enumerate(threads.values()):
            thread = self.packet().track_descriptor
            thread.uuid, thread.parent_uuid = THREADS + i, PROCESS
            thread.thread.pid, thread.thread.tid, thread.thread.thread_name = os.getpid(), os.getpid() + i, _encodable(name)

    def submissions(self, rows: Sequence[Dispatch], tracks: Mapping[int, int]) -> dict[tuple[int, int], int]:
        """An instant a submission, from which an arrow goes to the first dispatch of it."""
        flows: dict[tuple[int, int], int] = {}
        for r in rows:
            key = (r.thread, r.submitted)
            if key not in flows and r.thread in tracks:
                flows[key] = len(flows) + 1
                p = self.packet(r.submitted)
                p.track_event.type, p.track_event.track_uuid = self.event.TYPE_INSTANT, tracks[r.thread]
                p.track_event.name, p.track_event.categories[:] = "submit", ["host"]
                p.track_event.flow_ids.append(flows[key])
        return flows

    def begin(self, timestamp: float, track: int, name: str, category: str) -> Any:
        p = self.packet(timestamp)
        event = p.track_event
        event.type, event.track_uuid, event.name = self.event.TYPE_SLICE_BEGIN, track, _encodable(name)
        event.categories.append(category)
        return event

    def end(self, timestamp: float, track: int) -> None:
        p = self.packet(timestamp)
        p.track_event.type, p.track_event.track_uuid = self.event.TYPE_SLICE_END, track

    def host(self, track: int, spans: Sequence[Span]) -> None:
        """Nested slices of one thread."""
        ends: list[int] = []
        for s in sorted(spans, key=lambda s: (s.begin, -s.end)):
            while ends and ends[-1] <= s.begin:
                self.end(ends.pop(), track)
            event = self.begin(s.begin, track, s.title, s.kind)
            if s.place is not None:
                _annotate(event, {"line": str(s.place), "phase": s.place.phase})
            ends.append(min(s.end, ends[-1]) if ends else s.end)
        while ends:
            self.end(ends.pop(), track)

    def device(self, rows: Sequence[Dispatch], flows: dict[tuple[int, int], int]) -> None:
        """One slice a dispatch; where passes overlap, the later one is drawn from the end of the earlier."""
        done = 0
        for r in sorted(rows, key=lambda r: r.begin):
            begin = max(int(r.begin), done)
            done = max(begin, int(r.end))
            event = self.begin(begin, DEVICE, r.op, r.phase)
            flow = flows.pop((r.thread, r.submitted), None)
            if flow is not None:
                event.terminating_flow_ids.append(flow)
            facts = {"op": r.op, "kernel": r.kernel, "line": r.line, "module": r.path, "value": r.value, "phase": r.phase}
            facts |= {"variant": r.variant, "grid": "x".join(map(str, r.grid)), "workgroup": "x".join(map(str, r.workgroup))}
            _annotate(event, {**facts, "bytes": int(r.nbytes), "flops": int(r.flops), "submitted": r.submitted})
            self.end(done, DEVICE)


def _annotate(event: Any, facts: Mapping[str, Any]) -> None:
    for name, value in facts.items():
        if value == "":
            continue
        note = event.debug_annotations.add()
        note.name = name
        if isinstance(value, int):
            note.int_value = value
        else:
            note.string_value = _encodable(value)


def _encodable(text: str) -> str:
    """Text without lone surrogates, which protobuf refuses."""
    return text.encode("utf-8", "replace").decode()
