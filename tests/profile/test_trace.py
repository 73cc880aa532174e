"""The Perfetto trace of a step, read back with Perfetto's own messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import meganeura as mg
from meganeura.profile.perfetto import DEVICE

from .test_profile import training

trace_pb2 = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")


@pytest.fixture(params=[False, True], ids=["eager", "compiled"])
def step(request: pytest.FixtureRequest) -> Callable[[], Any]:
    return training(request.param)


def slices(trace: Any) -> dict[int, list[tuple[int, int, Any]]]:
    """(begin, end, event) of every slice by track; fails where they do not nest."""
    found: dict[int, list[tuple[int, int, Any]]] = defaultdict(list)
    stacks: dict[int, list[tuple[int, Any]]] = defaultdict(list)
    for p in trace.packet:
        event = p.track_event
        if not p.HasField("track_event") or event.type == event.TYPE_INSTANT:
            continue
        stack = stacks[event.track_uuid]
        if event.type == event.TYPE_SLICE_BEGIN:
            stack.append((p.timestamp, event))
        else:
            begin, opened = stack.pop()
            assert begin <= p.timestamp
            found[event.track_uuid].append((begin, p.timestamp, opened))
    assert not any(stacks.values())
    return found


def test_trace_of_a_step(step: Callable[[], Any], tmp_path: Path) -> None:
    path = tmp_path / "step.pftrace"
    with mg.profile() as p:
        with p.span("one step"):
            step()
        step().item()
    p.trace(path)
    trace = trace_pb2.Trace()
    trace.ParseFromString(path.read_bytes())
    names = {d.uuid: d.name or d.thread.thread_name for d in (q.track_descriptor for q in trace.packet if q.HasField("track_descriptor"))}
    assert names[DEVICE].startswith("GPU")
    found = slices(trace)
    gpu = found.pop(DEVICE)
    assert len(gpu) == len(p.dispatches)
    assert set(found) <= set(names)
    facts = [{a.name: a.string_value or a.int_value for a in event.debug_annotations} for _, _, event in gpu]
    for (begin, end, event), fact in zip(gpu, facts, strict=True):
        assert p.begin <= fact["submitted"] <= begin <= end <= p.end + 1
        assert event.name == fact["op"]
        assert "test_profile.py" in fact["line"]
        assert "bytes" in fact
        assert fact["kernel"]
    host = [s for track in found.values() for s in track]
    assert {"one step"} <= {event.name for _, _, event in host}
    assert all(p.begin <= begin <= end <= p.end for begin, end, _ in host)
    last = max(gpu, key=lambda s: s[1])
    read = max((s for s in host if s[2].name.startswith("read")), key=lambda s: s[1])
    assert last[1] <= read[1]  # the value arrived after the work that made it
    starts = [f for q in trace.packet for f in q.track_event.flow_ids]
    ends = [f for q in trace.packet for f in q.track_event.terminating_flow_ids]
    assert starts
    assert sorted(starts) == sorted(ends)
