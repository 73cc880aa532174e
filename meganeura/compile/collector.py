"""Python's cycle collector, kept quiet while graphs are built.

Building makes many objects that stay, so the collector runs over all of them some twenty times and finds nothing: half of
the time of a trace of 12 transformer layers (0.14 s with it, 0.05 s without).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """No collections inside a block; reference counts free what they can, as always."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
