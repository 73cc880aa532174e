"""`meganeura.compile(fn)`: eager code, traced once a signature and replayed as a frozen list of dispatches.

In: a function or Module of ordinary eager code. Out: one that does the same with less work: trace.py notes the ops as
IR (ir.py), passes rewrite it (prune.py, chains.py; verify.py checks), lower.py and plan.py give it kernels and buffers,
session.py replays it; guard.py says when that is still valid, node.py makes it one node of the caller's tape.
Must not know: eager's interpreter (it reaches device and world through dispatch hooks), and no op by name.
This package is callable: the module itself is `meganeura.compile`.
"""

from __future__ import annotations

import inspect
import sys
import types
from typing import Any

from .api import Compiled, compile

__all__ = ["Compiled", "compile"]


class _Callable(types.ModuleType):
    """A package that is also the function of its name."""

    def __call__(self, fn: Any = None, **options: Any) -> Any:
        return compile(fn, **options)


_module = sys.modules[__name__]
_module.__class__ = _Callable
_module.__signature__ = inspect.signature(compile)  # type: ignore[attr-defined]
_module.__wrapped__ = compile  # type: ignore[attr-defined]
