"""A thread for the one slow call of a submit, while the caller's thread goes on.

That is finishing the encoder in wgpu, a third of the host's time for a small network's step on the H200, and submitting it in Dawn. The
library works without the interpreter's lock, so the caller's thread may note what comes next.

The thread runs no bytecode and makes no containers: all of its loop is in C. So the cycle collector runs no finalizers in it, which might
use the device, and wait here for who waits for this thread. Only where the library has an error to tell its callback is Python.
"""

from __future__ import annotations

from itertools import filterfalse, starmap
from queue import SimpleQueue
from threading import Thread, get_ident
from typing import TYPE_CHECKING, Any

from ..errors import DeviceError

if TYPE_CHECKING:
    from .native import Native


class Courier:
    """Does one order at a time. Whoever calls it holds the device's lock."""

    def __init__(self, native: Native) -> None:
        """Starts the thread. Raises RuntimeError where Python cannot, as when it exits."""
        self._orders: SimpleQueue[Any] = SimpleQueue()
        self._begun: SimpleQueue[Any] = SimpleQueue()
        self._results: SimpleQueue[Any] = SimpleQueue()
        queues = self._orders, self._begun, self._results
        self._thread = Thread(target=_serve, args=(native, *queues), name="meganeura courier", daemon=True)
        self._thread.start()
        self.errors: list[str] = self._begun.get()  # what was wrong with the last order

    def send(self, order: tuple[Any, ...], sent: list[None]) -> None:
        """Hand an order over. `sent` grows once that is done, whatever strikes then; returns when the thread is at it: it could not
        begin while this one computes."""
        self.errors.clear()
        sent.extend(map(self._orders.put, (order,)))
        while self._begun.get() is not order:  # one before, whose begin Ctrl-C kept from being seen
            pass

    def take(self, results: list[Any]) -> None:
        """Wait for the order that was sent and put what the library returned into `results`, unless it is there."""
        if not results:
            if get_ident() == self._thread.ident:
                raise DeviceError("a finalizer used the device while an error in its work was told; it would wait for itself")
            results.extend(map(self._results.get, (True,)))

    def __del__(self) -> None:
        self._orders.put(None)


def _serve(native: Native, orders: Any, begun: Any, results: Any) -> None:
    """The thread: arguments of the slow call from `orders`, noted in `begun`, what it returns to `results`; until None comes."""
    with native.kept_errors() as errors:
        begun.put(errors)
        any(map(results.put, starmap(native.slow_call, filterfalse(begun.put, iter(orders.get, None)))))
