"""Where in the user's code something was asked for.

A Site keeps the code object and the instruction offset of the first frame outside this package: taking one costs
under a microsecond, keeps no frame alive, and turns into file, line and source only when it is shown.
"""

from __future__ import annotations

import linecache
import sys
from types import CodeType, FrameType

_ROOT = __file__[: -len("provenance.py")]
_INSIDE: dict[CodeType, bool] = {}


class Site:
    """A place in user code. `str(site)` is 'file.py:12: source text'."""

    __slots__ = ("code", "instruction")

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
            return Site(code, frame.f_lasti)
        frame = frame.f_back
    return Site(None, 0)
