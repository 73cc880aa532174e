"""A thread for the one slow call of a submit, while the caller's thread goes on.

That is finishing the encoder in wgpu, on the H200 18 of the 52 us of a small network's step, and submitting it in Dawn. The library
works without the interpreter's lock, so the caller's thread may note what comes next.

The thread runs no bytecode and makes no containers: all of its loop is in C. So the cycle collector never runs in it, and no
finalizer that would use the device, and wait here for who waits for this thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import filterfalse, starmap
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .native import Native


class Courier:
    """Does one order at a time. Whoever calls it holds the device's lock."""

    def __init__(self, native: Native) -> None:
        """Starts the thread. Raises RuntimeError where Python cannot, as when it exits."""
        self._orders: SimpleQueue[Any] = SimpleQueue()
        self._begun: SimpleQueue[Any] = SimpleQueue()
        self._results: SimpleQueue[Any] = SimpleQueue()
        Thread(target=_serve, args=(native, self._orders, self._begun, self._results), name="meganeura courier", daemon=True).start()
        self.failure = self._begun.get()  # the text of what was wrong with the last order, or ''; told once

    def send(self, order: tuple[Any, ...], sent: list[None]) -> None:
        """Hand an order over. `sent` grows once that is done, whatever strikes then; returns when the thread is at it: it could not
        begin while this one computes."""
        sent.extend(map(self._orders.put, (order,)))
        while self._begun.get() is not order:  # one before, whose begin Ctrl-C kept from being seen
            pass

    def take(self, results: list[Any]) -> None:
        """Wait for the order that was sent and put what the library returned into `results`, unless it is there."""
        if not results:
            results.extend(map(self._results.get, (True,)))

    def __del__(self) -> None:
        self._orders.put(None)


def _serve(native: Native, orders: Any, begun: Any, results: Any) -> None:
    """The thread: arguments of the slow call from `orders`, noted in `begun`, what it returns to `results`; until None comes."""
    begun.put(native.kept_errors())
    any(map(results.put, starmap(native.slow_call, filterfalse(begun.put, iter(orders.get, None)))))


class Away:
    """What was handed to the courier: records, their runs and epoch. `issued`: see Recorder; `dead`: handles of bind groups to release
    once it was submitted. `handles`: (release, handle) of what only the order needs. `results`: what the courier brought; `lost`: it
    must be encoded anew."""

    __slots__ = ("dead", "epoch", "handles", "issued", "lost", "records", "results", "runs")

    def __init__(self, records: list[Any], runs: list[Any], epoch: int, issued: Sequence[Any], dead: list[Any]) -> None:
        self.records, self.runs, self.epoch, self.issued, self.dead = records, runs, epoch, issued, dead
        self.handles: list[tuple[Any, Any]] = []
        self.results: list[Any] = []
        self.lost = False

    def release(self) -> None:
        """Let go of the handles. Ctrl-C may strike: none is released twice."""
        while self.handles:
            release, handle = self.handles.pop()
            release(handle)
