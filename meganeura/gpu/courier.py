"""A thread for the one slow call of a submit, while the caller's thread goes on.

That is finishing the encoder in wgpu, a third of the host's time for a small network's step on the H200, and submitting it in Dawn. The
library works without the interpreter's lock, so the caller's thread may note what comes next.

The thread runs no bytecode and makes no containers: all of its loop is in C. So the cycle collector runs no finalizers in it, which might
use the device, and wait here for who waits for this thread. Only where the library has an error to tell, or logs its calls, is its
callback Python: then a finalizer run there may wait for good.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from itertools import filterfalse, starmap
from queue import Empty, SimpleQueue
from threading import Thread, get_ident
from typing import TYPE_CHECKING, Any

from ..errors import DeviceError

if TYPE_CHECKING:
    from .native import Native


SLICE = 0.05  # seconds between two looks whether the thread still lives


class Courier:
    """Does one order at a time. Whoever calls it holds the device's lock."""

    def __init__(self, native: Native) -> None:
        """Starts the thread. Raises RuntimeError where Python cannot."""
        self._orders: SimpleQueue[Any] = SimpleQueue()
        self._begun: SimpleQueue[Any] = SimpleQueue()
        self._results: SimpleQueue[Any] = SimpleQueue()
        queues = self._orders, self._begun, self._results
        self._thread = Thread(target=_serve, args=(native, *queues), name="meganeura courier", daemon=True)
        self._thread.start()
        begun = self._next(self._begun)
        if not begun:
            raise RuntimeError("the courier's thread ended before it began")
        self.errors: list[str] = begun[0]  # what was wrong with the last order

    def ended(self) -> bool:
        """Whether the thread will do nothing any more: when Python exits, daemon threads stop wherever they are."""
        return sys.is_finalizing() or not self._thread.is_alive()

    def _next(self, queue: Any) -> list[Any]:
        """What comes next from the thread; nothing if it ended."""
        found: list[Any] = []
        while not found and not self.ended():
            with suppress(Empty):
                found.extend(map(queue.get, (True,), (SLICE,)))
        return found

    def send(self, order: tuple[Any, ...], sent: list[None]) -> None:
        """Hand an order over. `sent` grows once that is done, whatever strikes then; returns when the thread is at it: it could not
        begin while this one computes."""
        self.errors.clear()
        sent.extend(map(self._orders.put, (order,)))
        begun = self._next(self._begun)
        while begun and begun[0] is not order:  # one before, whose begin Ctrl-C kept from being seen
            begun = self._next(self._begun)

    def take(self, results: list[Any]) -> bool:
        """Wait for the order that was sent and put what the library returned into `results`, unless it is there. Returns whether it is
        now."""
        if get_ident() == self._thread.ident:
            raise DeviceError("a finalizer used the device while an error in its work was told; it would wait for itself")
        while not results and not self.ended():
            with suppress(Empty):
                results.extend(map(self._results.get, (True,), (SLICE,)))
        return bool(results)

    def __del__(self) -> None:
        self._orders.put(None)


def _serve(native: Native, orders: Any, begun: Any, results: Any) -> None:
    """The thread: arguments of the slow call from `orders`, noted in `begun`, what it returns to `results`; until None comes."""
    with native.kept_errors() as errors:
        begun.put(errors)
        any(map(results.put, starmap(native.slow_call, filterfalse(begun.put, iter(orders.get, None)))))
