"""Listens while a profile is open: host spans, eager ops, names of values, and the device's timer.

In: a device and its eager interpreter. Out: lists of Spans and timed rows. Eager's `apply` is exchanged for one that notes
times, so that it costs nothing while no profile is open; everything slower asks `spans.listener`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .. import provenance, spans
from ..errors import DeviceError, MeganeuraError
from ..gpu import timing
from ..provenance import Place, scope
from .clock import Pair

MOMENTS = 4  # clock pairs taken at either end; the first is slow


@dataclass(slots=True)
class Span:
    """Host time from `begin` to `end` (time.perf_counter_ns) on a thread. kind: 'op', 'trace', 'rewrite', 'plan', 'pipeline',
    'pipelines', 'replay', 'backward', 'optimizer', 'read', 'synchronize', 'wait' or 'user'."""

    kind: str
    detail: str
    thread: int
    begin: int
    end: int = 0
    place: Place | None = None

    @property
    def ns(self) -> int:
        return self.end - self.begin

    @property
    def title(self) -> str:
        return self.detail if self.kind in ("op", "user") else f"{self.kind} {self.detail}".rstrip()


class Capture:
    """What happens between `start` and `stop`."""

    def __init__(self, device: Any, eager: Any, gpu: bool | None) -> None:
        """gpu: whether to take GPU times; None: if the device gives any."""
        self.device, self.eager, self.must = device, eager, bool(gpu)
        wanted = timing.available(device) if gpu is None else gpu
        self.timer = timing.Timer(device, each=True) if wanted else None
        self.spans: list[Span] = []
        self.threads: dict[int, str] = {}
        self.begin = self.end = 0
        self.first: list[Pair] = []
        self.last: list[Pair] = []
        self.trouble = "gpu=False was asked for" if gpu is False else "" if wanted else "it has no timestamp queries"  # why no GPU times
        self._makers: dict[int, Place] = {}  # by storage uid
        self._busy: set[int] = set()  # threads inside an eager op

    # what the package calls

    @contextlib.contextmanager
    def span(self, kind: str, detail: str) -> Iterator[Span]:
        thread = self._thread()
        found = Span(kind, detail, thread, time.perf_counter_ns())
        self.spans.append(found)
        try:
            yield found
        finally:
            found.end = time.perf_counter_ns()

    def named(self, uid: int, name: str) -> None:
        place = self._makers.get(uid)
        if place is not None:
            place.value = name

    def _thread(self) -> int:
        thread = threading.get_ident()
        if thread not in self.threads:
            self.threads[thread] = threading.current_thread().name
        return thread

    def _apply(self, op: Any, values: Any, out: Any) -> Any:
        """Eager.apply with its times."""
        thread = self._thread()
        if thread in self._busy:  # it calls itself with other attributes
            return type(self.eager).apply(self.eager, op, values, out)
        found = Span("op", op.shown, thread, time.perf_counter_ns())
        self.spans.append(found)
        self._busy.add(thread)
        scope.last = None
        try:
            result = type(self.eager).apply(self.eager, op, values, out)
        finally:
            self._busy.discard(thread)
            found.end = time.perf_counter_ns()
            found.place = scope.last
        if found.place is not None:
            for t in result if isinstance(result, tuple) else (result,):
                self._makers[t._storage.uid] = found.place
        return result

    # opening and closing

    def start(self) -> None:
        self._thread()
        self.device.flush()
        self._start_timer()
        provenance.watch(1)
        spans.listener = self
        vars(self.eager)["apply"] = self._apply
        self.begin = time.perf_counter_ns()

    def _start_timer(self) -> None:
        if self.timer is None:
            return
        try:
            self.first = [timing.clock_pair(self.device) for _ in range(MOMENTS)]
        except DeviceError as e:
            if self.must:
                raise
            self.timer, self.trouble = None, str(e)
            return
        self.timer.install()

    def stop(self) -> Exception | None:
        """Stop listening, wait for the device, fetch the times. Returns what the waiting raised."""
        vars(self.eager).pop("apply", None)
        spans.listener = None
        provenance.watch(-1)
        error: Exception | None = None
        for settle in (*((self.timer.remove,) if self.timer is not None else ()), self.device.synchronize):
            try:
                settle()
            except MeganeuraError as e:
                error = error or e
        self.end = time.perf_counter_ns()
        for s in self.spans:  # of threads that are still at it
            s.end = s.end or self.end
        if self.timer is not None:
            try:
                self.last = [timing.clock_pair(self.device) for _ in range(MOMENTS)]
                self.timer.collect()
            except MeganeuraError as e:
                self.trouble, self.timer = str(e), None
                error = error or e
        self._makers.clear()
        return error
