"""From timed passes to rows: what ran, for whom, how long, and how much it had to move and compute.

In: the rows of a gpu Timer, a Clock. Out: Dispatches on the host's clock, and Groups of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import MeganeuraError
from ..gpu.timing import Row
from ..kernels.work import Work, work
from ..ops.archetype import Kernel
from ..provenance import Site
from .capture import Span
from .clock import Clock

_SIZE = re.compile(r"@workgroup_size\(([^)]*)\)")
FIELDS = ("op", "kernel", "family", "variant", "phase", "path", "value", "line", "grid", "workgroup")


@dataclass(slots=True)
class Dispatch:
    """One dispatch. Times in nanoseconds of time.perf_counter_ns; `nbytes` and `flops` are its part, by time, of what its call
    needs. `family` is the kind of kernel, `variant` all that its pipeline was specialised on."""

    op: str
    kernel: str
    family: str
    variant: str
    phase: str
    path: str
    value: str
    line: str
    grid: tuple[int, int, int]
    workgroup: tuple[int, ...]
    begin: float
    end: float
    submitted: int
    thread: int
    nbytes: float = 0.0
    flops: float = 0.0

    @property
    def ns(self) -> float:
        return self.end - self.begin


def dispatches(rows: Sequence[Row], clock: Clock, profile: Any) -> list[Dispatch]:
    """The rows of a timer, in their order."""
    known: dict[Any, tuple[str, str, tuple[int, ...]]] = {}
    lines: dict[Any, str] = {}
    out: list[Dispatch] = []
    for call in _calls(rows):
        estimate = _estimate(call[0])
        total = sum(r.ns for r in call)
        for r in call:
            assert r.step is not None
            share = r.ns / total if total > 0 else 1 / len(call)
            kernel = r.step.launch.kernel
            if kernel.key not in known:
                known[kernel.key] = (family(r), variant(kernel.key), workgroup(kernel, profile))
            shape = known[kernel.key]
            label = shape[0] if kernel.label.startswith("<") else kernel.label or shape[0]  # some are labelled by their op
            begin = clock.host(r.begin)
            place = r.site if isinstance(r.site, Site) else None
            out.append(
                Dispatch(
                    _title(r), label, *shape[:2],
                    *((place.phase, place.path, place.value, _line(place, lines)) if place is not None else ("forward", "", "", "")),
                    r.grid, shape[2], begin, begin + r.ns * clock.rate, r.submitted, r.thread,
                    estimate.nbytes * share, estimate.flops * share,
                )
            )  # fmt: skip
    return out


def host_only(spans: Iterable[Span]) -> list[Dispatch]:
    """Where the device has no timestamps: eager ops and replays as rows of host time."""
    lines: dict[Any, str] = {}
    out = []
    for s in spans:
        if s.kind in ("op", "replay"):
            place = s.place
            about = ("forward", "", "", "") if place is None else (place.phase, place.path, place.value, _line(place, lines))
            out.append(Dispatch(s.title, "", "host", "", *about, (0, 0, 0), (), s.begin, s.end, s.begin, s.thread))
    return out


def _calls(rows: Sequence[Row]) -> Iterable[list[Row]]:
    """Rows that belong to one call, together."""
    call: list[Row] = []
    for r in rows:
        if call and (r.step is None or r.step.part == 0 or r.step.call is not call[0].step.call):  # type: ignore[union-attr]
            yield call
            call = []
        call.append(r)
    if call:
        yield call


def _estimate(row: Row) -> Work:
    call = row.step.call if row.step is not None else None
    return Work() if call is None else work(call)


def _title(row: Row) -> str:
    """The op's name; for what eager fused, its parts."""
    call = row.step.call if row.step is not None else None
    return call.op.shown if call is not None and row.op == call.op.name else row.op or row.kernel


def _line(site: Site, known: dict[Any, str]) -> str:
    """file:line: source, looked up once a place."""
    key = (site.code, site.instruction)
    if key not in known:
        known[key] = Site.__str__(site)
    return known[key]


def family(row: Row) -> str:
    """The archetype of the op, or the kernel's name for ops with a kernel of their own."""
    call = row.step.call if row.step is not None else None
    if call is None:
        return row.kernel
    kind = call.op.archetype
    return kind.name if isinstance(kind, Kernel) else type(kind).__name__.lower()


def variant(key: tuple[Any, ...]) -> str:
    """What a pipeline was specialised on, as text."""
    return ", ".join(str(part) for part in key[1:])


def workgroup(kernel: Any, profile: Any) -> tuple[int, ...]:
    """Invocations of a workgroup along x, y, z, as its shader declares them; () if they are not plain numbers."""
    try:
        found = _SIZE.search(kernel.source(profile))
    except MeganeuraError:
        return ()
    sizes = [part.strip().rstrip("u") for part in found[1].split(",")] if found else []
    return tuple(int(s) for s in sizes if s) if all(s.isdigit() for s in sizes if s) else ()


@dataclass(slots=True)
class Group:
    """Dispatches that agree in `key`: one value for each field asked for."""

    key: tuple[Any, ...]
    samples: list[float] = field(default_factory=list)  # nanoseconds
    nbytes: float = 0.0
    flops: float = 0.0

    @property
    def calls(self) -> int:
        return len(self.samples)

    @property
    def total(self) -> float:
        return sum(self.samples)

    @property
    def mean(self) -> float:
        return self.total / len(self.samples)

    @property
    def min(self) -> float:
        return min(self.samples)

    @property
    def max(self) -> float:
        return max(self.samples)

    @property
    def gbs(self) -> float:
        """Bytes a nanosecond, which is GB/s."""
        return self.nbytes / self.total if self.total else 0.0

    @property
    def gflops(self) -> float:
        """Operations a nanosecond, which is GFLOP/s."""
        return self.flops / self.total if self.total else 0.0


SORTS = ("total", "mean", "min", "max", "calls", "gbs", "gflops")


def grouped(rows: Iterable[Dispatch], by: Sequence[str], sort_by: str = "total") -> list[Group]:
    """Rows gathered by fields, the largest first. ValueError for unknown names."""
    if wrong := [f for f in by if f not in FIELDS]:
        raise ValueError(f"cannot group by {wrong[0]!r}; fields are {', '.join(FIELDS)}")
    if sort_by not in SORTS:
        raise ValueError(f"cannot sort by {sort_by!r}; choose from {', '.join(SORTS)}")
    found: dict[tuple[Any, ...], Group] = {}
    for r in rows:
        key = tuple(getattr(r, f) for f in by)
        group = found.get(key)
        if group is None:
            group = found[key] = Group(key)
        group.samples.append(r.ns)
        group.nbytes += r.nbytes
        group.flops += r.flops
    return sorted(found.values(), key=lambda g: -getattr(g, sort_by))
