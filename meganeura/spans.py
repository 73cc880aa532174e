"""Spans of host time, for whoever listens: an open profile, or nobody.

In: `with span("trace", detail):` around slow things. Out: calls to `listener`, which a profile sets while it is open.
When nobody listens a span is one shared object that does nothing.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Listener(Protocol):
    """Who wants to know."""

    def span(self, name: str, detail: str) -> AbstractContextManager[Any]:
        """Time a block."""

    def named(self, uid: int, name: str) -> None:
        """The value last written to this storage got a name."""


listener: Listener | None = None
_QUIET: AbstractContextManager[Any] = contextlib.nullcontext()


def span(name: str, detail: str = "") -> AbstractContextManager[Any]:
    """Time a block of host work under a name."""
    return _QUIET if listener is None else listener.span(name, detail)
