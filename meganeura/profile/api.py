"""Profile: the context manager, and the views of what it saw."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .. import dispatch, gpu, spans
from ..errors import MeganeuraError
from ..provenance import site
from . import cost
from .capture import Capture, Span
from .clock import Clock, fit
from .limits import Ceiling, ceiling
from .page import page
from .perfetto import trace
from .rows import FIELDS, Dispatch, Group, dispatches, grouped, host_only
from .table import table

_lock = threading.Lock()
_open: list[Profile] = []  # one at most


class Profile:
    """Times what happens in its block: `with meganeura.profile() as p:`; afterwards `p.table()`, `p.json()`, `p.trace(path)`.

    `dispatches`: every dispatch with its GPU time, op, kernel, phase, module, line and size; `spans`: what the host did.
    gpu: True asks for GPU times (DeviceError on a device without timestamp queries), False does without, None takes them
    where there are any; `p.gpu` says which it was. Each timed dispatch is a pass of its own, which costs (see `overhead`) and
    keeps dispatches from overlapping on the device. Profiles do not nest.
    """

    def __init__(self, gpu: bool | None = None) -> None:
        self._asked = gpu
        self.gpu = False
        self.device: Any = None
        self.begin = self.end = 0
        self.dispatches: list[Dispatch] = []
        self.spans: list[Span] = []
        self.threads: dict[int, str] = {}
        self.clock: Clock | None = None
        self.trouble = ""
        self._capture: Capture | None = None
        self._overhead: cost.Overhead | None = None
        self._done = False

    # ---- the block ----

    def __enter__(self) -> Profile:
        with _lock:
            if _open:
                raise MeganeuraError(f"a profile is open already; profiles do not nest\n  at {site()}")
            if self._done:
                raise MeganeuraError(f"this profile was taken already; make a new one\n  at {site()}")
            _open.append(self)
        try:
            self.device = gpu.current()
            self._capture = Capture(self.device, dispatch.hooks.eager(), self._asked)
            self._capture.start()
            self.gpu = self._capture.timer is not None
        except BaseException:
            _open.clear()
            raise
        return self

    def __exit__(self, kind: Any, error: BaseException | None, where: Any) -> None:
        if self._capture is None:
            raise MeganeuraError(f"this profile is not open\n  at {site()}")
        capture, self._capture, self._done = self._capture, None, True
        try:
            late = capture.stop()
            self._take(capture)
        finally:
            _open.clear()
        if late is not None and error is None:
            raise late

    def _take(self, capture: Capture) -> None:
        self.begin, self.end, self.spans, self.threads = capture.begin, capture.end, capture.spans, capture.threads
        self.trouble = capture.trouble
        if capture.timer is None:
            self.gpu = False
            self.dispatches = host_only(self.spans)
            return
        rows = capture.timer.rows
        self.clock = fit(capture.first, capture.last, ((r.begin, r.end, r.submitted) for r in rows), capture.end)
        self.dispatches = dispatches(rows, self.clock, self.device.profile)

    @staticmethod
    def span(name: str) -> AbstractContextManager[Any]:
        """Name a stretch of host work: `with p.span("epoch 3"):`. Does nothing while no profile is open."""
        return spans.span("user", name)

    def _need(self) -> None:
        if not self._done:
            raise MeganeuraError(f"this profile has not been taken yet: its block must end first\n  at {site()}")

    # ---- numbers ----

    @property
    def wall_ns(self) -> int:
        """Nanoseconds from the beginning of the block until all its work was done."""
        return self.end - self.begin

    @property
    def total_ns(self) -> float:
        """Nanoseconds of all dispatches (of host time where there are no GPU times)."""
        return sum(r.ns for r in self.dispatches)

    @property
    def overhead(self) -> cost.Overhead:
        """What profiling cost, estimated: the first call measures what a timed dispatch costs on this device.
        `meganeura.profile.overhead(step)` measures it for a step that can be repeated."""
        self._need()
        if self._overhead is None:
            self._overhead = cost.estimate(self)
        return self._overhead

    @property
    def ceiling(self) -> Ceiling | None:
        """The device's measured limits, once a device; None without GPU times."""
        return ceiling(self.device) if self.gpu and not _open else None

    def groups(self, by: Sequence[str] | str = ("op", "kernel"), sort_by: str = "total") -> list[Group]:
        """Dispatches gathered by fields: op, kernel, family, variant, phase, path (of the module), value (its name), line,
        grid, workgroup."""
        self._need()
        return grouped(self.dispatches, (by,) if isinstance(by, str) else tuple(by), sort_by)

    # ---- views ----

    def table(self, sort_by: str = "total", limit: int = 20, by: Sequence[str] | str = ("op", "kernel"), ceiling: bool = True) -> str:
        """The dispatches as text, gathered `by` fields. sort_by: total, mean, min, max, calls, gbs or gflops.

        GB/s and GFLOP/s come from what the calls must move and compute at least; `of ceiling` sets the nearer of both beside
        the device's measured copy bandwidth and matrix product (above 100 % where data comes from a cache).
        """
        groups = self.groups(by, sort_by)
        names = (by,) if isinstance(by, str) else tuple(by)
        limits = self.ceiling if ceiling else None
        return table(groups, names, self._head(limits), limit, limits, self._unit(), self.total_ns)

    def json(self, path: Any = None) -> dict[str, Any]:
        """Everything as plain data, written to `path` if one is given. Times in nanoseconds; those of `begin` count from the
        beginning of the profile."""
        self._need()
        groups = []
        begins: dict[Any, list[float]] = {}
        for r in self.dispatches:
            begins.setdefault(tuple(getattr(r, f) for f in FIELDS), []).append(round(r.begin - self.begin, 1))
        for g in grouped(self.dispatches, FIELDS):
            row: dict[str, Any] = dict(zip(FIELDS, (list(v) if isinstance(v, tuple) else v for v in g.key), strict=True))
            row |= {"calls": g.calls, "total": g.total, "mean": g.mean, "min": g.min, "bytes": int(g.nbytes), "flops": int(g.flops)}
            groups.append({**row, "samples": [round(n, 1) for n in g.samples], "begin": begins[g.key]})
        limits, spent = self.ceiling, self.overhead
        found = {
            "device": {"name": self.device.name, "backend": self.device.backend, "family": self.device.family},
            "times": self._unit(),
            "wall": self.wall_ns,
            "total": self.total_ns,
            "clock_error": self.clock.error if self.clock is not None else None,
            "overhead": {**asdict(spent), "factor": spent.factor},
            "ceiling": None if limits is None else asdict(limits),
            "dispatches": groups,
            "spans": [
                {"kind": s.kind, "detail": s.detail, "thread": self.threads[s.thread], "begin": s.begin - self.begin, "ns": s.ns}
                for s in self.spans
            ],
        }
        if path is not None:
            Path(path).write_text(json.dumps(found))
        return found

    def trace(self, path: Any) -> None:
        """Write a trace for ui.perfetto.dev: host threads and the device on one clock, each dispatch with op, kernel, line and
        bytes. Needs the package perfetto (pip install 'meganeura[profile]')."""
        self._need()
        Path(path).write_bytes(trace(self.device.name, self.spans, self.dispatches if self.gpu else [], self.threads))

    def _unit(self) -> str:
        return "GPU" if self.gpu else "CPU"

    def _head(self, limits: Ceiling | None = None) -> str:
        head = f"{self.device.name}: {len(self.dispatches)} dispatches, {self.total_ns / 1e6:.3f} ms of {self._unit()} time"
        head += f" in {self.wall_ns / 1e6:.3f} ms"
        if not self.gpu:
            head += f"; CPU times only: {self.trouble}"
        if limits is not None:
            head += f"; ceiling {limits.gbs:.0f} GB/s, {limits.gflops:.0f} GFLOP/s"
        return head

    def __str__(self) -> str:
        return self.table() if self._done else repr(self)

    def __repr__(self) -> str:
        return f"<Profile: {self._head() if self._done else 'open' if self in _open else 'not taken yet'}>"

    def _repr_html_(self) -> str:
        if not self._done:
            return f"<i>{repr(self)[1:-1]}</i>"
        return page(self.dispatches, self.spans, (self.begin, self.end), self._unit(), self._head())
