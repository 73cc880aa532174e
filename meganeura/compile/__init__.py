"""`meganeura.compile(fn)`: eager code, traced once a signature and replayed as a frozen list of dispatches.

In: a function or Module of ordinary eager code. Out: one that does the same with less work, in this order:
api.py finds or makes the program of a signature (tree.py, arguments.py, guard.py, names.py: when it is valid); record.py runs the
function once under trace.py, which notes ops as ir.py, with watch.py on `.grad` and differentiate.py for the backward;
passes rewrite the graph (rule.py, egraph/, chains.py; verify.py checks); lower.py and plan.py give it kernels and buffers;
cache.py keeps both on disk (written.py, loaded.py); session.py replays it; program.py is one call, node.py that call as one
node of the caller's tape, again.py its second derivative.
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
