"""Watches `.grad` and `.data` of tensors while a function is traced, so that compiled calls can repeat what it did.

In: a trace. Out: for every tensor whose `.grad` was touched: what it held before, whether it was read before it was
written, and what it holds at the end. `.grad` is a plain slot; while a trace runs, a property stands in for it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import TraceError
from ..provenance import site
from ..tensor import Tensor

_class: Any = Tensor
_slot: Any = Tensor.__dict__["grad"]
_data: Any = Tensor.__dict__["data"]
_lock = threading.Lock()
_active = 0


class _Thread(threading.local):
    watch: Watch | None = None


_thread = _Thread()


class Use:
    """`.grad` of one tensor: `before` the trace, whether it was `read` first, whether it was `written`, and `after` it."""

    __slots__ = ("after", "before", "read", "result", "tensor", "written")

    def __init__(self, tensor: Tensor, before: Tensor | None, read: bool) -> None:
        self.tensor, self.before, self.read, self.written = tensor, before, read, not read
        self.after = before
        self.result: Any = None  # where the same tensor is also returned

    def current(self) -> Tensor | None:
        """What `.grad` holds now."""
        return unwatched(self.tensor)


class Watch:
    """What a trace did to `.grad`. `symbolic` is the world whose tensors are not watched, but for its stand-ins."""

    def __init__(self, symbolic: Any) -> None:
        self.symbolic = symbolic
        self.stand_ins: dict[int, int] = {}  # id -> argument number
        self.uses: dict[int, Use] = {}

    def note(self, t: Tensor, read: bool) -> None:
        """`t.grad` is about to be read or written."""
        key = id(t)
        if key in self.uses:
            self.uses[key].written |= not read
            return
        if t._storage.world is self.symbolic and key not in self.stand_ins:
            return
        try:
            before = _slot.__get__(t)
        except AttributeError:  # the tensor is being made
            return
        self.uses[key] = Use(t, before, read)

    def settle(self) -> None:
        """Take down what every `.grad` holds now and put back what it held before."""
        for use in self.uses.values():
            use.after = use.current()
            _slot.__set__(use.tensor, use.before)


def grad_of(t: Tensor) -> Tensor | None:
    """What `.grad` holds, read unnoticed: a tensor that is only an argument must not become part of the guards."""
    return _slot.__get__(t)  # type: ignore[no-any-return]


def unwatched(t: Tensor) -> Tensor | None:
    """`.grad`, without noting that it was read."""
    return _slot.__get__(t)  # type: ignore[no-any-return]


def _get(t: Tensor) -> Any:
    watch = _thread.watch
    if watch is not None:
        watch.note(t, True)
    return _slot.__get__(t)


def _set(t: Tensor, value: Any) -> None:
    watch = _thread.watch
    if watch is not None:
        watch.note(t, False)
    _slot.__set__(t, value)


def _set_data(t: Tensor, value: Tensor) -> None:
    if _thread.watch is not None:
        raise TraceError(f".data was assigned while tracing\n  at {site()}\n  change the tensor in place under no_grad(): t.copy_(value)")
    _data.__set__(t, value)


_grad_property = property(_get, _set)
_data_property = property(_data.fget, _set_data)


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Route `.grad` of this thread's tensors through a watch; other threads see the plain slot's behaviour."""
    global _active
    with _lock:
        _active += 1
        if _active == 1:
            _class.grad, _class.data = _grad_property, _data_property
    before, _thread.watch = _thread.watch, watch
    try:
        yield
    finally:
        _thread.watch = before
        with _lock:
            _active -= 1
            if _active == 0:
                _class.grad, _class.data = _slot, _data
