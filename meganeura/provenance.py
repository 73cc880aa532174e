"""Where in the user's code something was asked for, and while somebody watches also in which phase and module.

A Site keeps the code object and the instruction offset of the first frame outside this package: taking one costs
under a microsecond, keeps no frame alive, and turns into file, line and source only when it is shown. Traces and open
profiles watch: then every Site is a Place, which adds the phase (forward, backward, optimizer) and the module's path.
"""

from __future__ import annotations

import contextlib
import linecache
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, FrameType
from typing import Any

_ROOT = __file__[: -len("provenance.py")]
_INSIDE: dict[CodeType, bool] = {}
WATCHERS = [0]  # traces and profiles that want Places; read on hot paths


class Site:
    """A place in user code. `str(site)` is 'file.py:12: source text'."""

    __slots__ = ("code", "instruction")
    phase = "forward"  # a Place says more
    path = ""
    value = ""

    def __init__(self, code: CodeType | None, instruction: int) -> None:
        self.code, self.instruction = code, instruction

    @property
    def line(self) -> int:
        """Line number, or 0 when unknown."""
        if self.code is None:
            return 0
        for start, end, line in self.code.co_lines():
            if start <= self.instruction < end:
                return line or 0
        return self.code.co_firstlineno

    @property
    def file(self) -> str:
        return "<unknown>" if self.code is None else self.code.co_filename

    def __str__(self) -> str:
        text = linecache.getline(self.file, self.line).strip()
        return f"{self.file}:{self.line}" + (f": {text}" if text else "")


class Place(Site):
    """A Site that also knows its phase, the dotted path of the module that was running, and the name of the value made."""

    __slots__ = ("path", "phase", "value")

    def __init__(self, code: CodeType | None, instruction: int, phase: str = "forward", path: str = "", value: str = "") -> None:
        self.code, self.instruction = code, instruction
        self.phase, self.path, self.value = phase, path, value

    def __str__(self) -> str:
        about = [f"in {self.path}"] * bool(self.path) + [f"makes {self.value}"] * bool(self.value)
        return Site.__str__(self) + (f"  ({', '.join(about)})" if about else "")


class _Scope(threading.local):
    """What this thread is doing now. `names`: the paths of the modules below the outermost one running, by identity."""

    phase = "forward"
    path = ""
    names: Mapping[int, str] | None = None
    last: Place | None = None  # the latest Place taken


scope = _Scope()
_lock = threading.Lock()


@contextlib.contextmanager
def watching() -> Iterator[None]:
    """Let every Site taken in the block (on any thread) be a Place."""
    watch(1)
    try:
        yield
    finally:
        watch(-1)


def watch(change: int) -> None:
    """One more who wants Places, or with -1 one less."""
    with _lock:
        WATCHERS[0] += change


class phase:
    """Ops in the block belong to this phase: `with phase("backward")`."""

    __slots__ = ("before", "name", "path")

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        self.before, self.path = scope.phase, scope.path
        scope.phase = self.name

    def __exit__(self, *exc: object) -> None:
        scope.phase, scope.path = self.before, self.path


def named_value(where: Site, value: str) -> Place:
    """The same place, which makes the value of this name."""
    return Place(where.code, where.instruction, where.phase, where.path, value)


def together(sites: Iterable[Any]) -> Site:
    """The place of what was fused from several: the last one's line, and everyone's phase, path and value."""
    members = list(sites)
    last = members[-1]
    if not any(isinstance(s, Place) for s in members):
        return last  # type: ignore[no-any-return]
    return Place(last.code, last.instruction, *(_joined(getattr(s, part) for s in members) for part in ("phase", "path", "value")))


def _joined(texts: Iterable[str]) -> str:
    """Each text once, also those that were joined before."""
    return "+".join(dict.fromkeys(part for text in texts for part in text.split("+") if part))


def is_inside(code: CodeType, module: str) -> bool:
    """Whether a code object, run in a module of this name, belongs to this package. Generated code has no file."""
    inside = _INSIDE.get(code)
    if inside is None:
        name = code.co_filename
        inside = _INSIDE[code] = name.startswith(_ROOT) or (name == "<string>" and module.partition(".")[0] == __package__)
    return inside


def site() -> Site:
    """The innermost frame outside the package."""
    frame: FrameType | None = sys._getframe(1)
    inside = _INSIDE
    while frame is not None:
        code = frame.f_code
        known = inside.get(code)
        if known is None:
            known = is_inside(code, frame.f_globals.get("__name__") or "")
        if not known:
            if WATCHERS[0]:
                place = scope.last = Place(code, frame.f_lasti, scope.phase, scope.path)
                return place
            return Site(code, frame.f_lasti)
        frame = frame.f_back
    return Site(None, 0)
