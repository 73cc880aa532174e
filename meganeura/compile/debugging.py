"""`with meganeura.debug() as d:`: compiled functions called inside keep every value, to be looked at by name.

In: calls of compiled functions. Out: their sessions, unfused and without reuse of memory; nothing of it stays in the
sessions that the functions use outside.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import MeganeuraError
from .options import Options

if TYPE_CHECKING:
    from ..storage import Storage
    from .session import Session
    from .values import NotFinite

OPTIONS = Options("off", debug=True, reuse=False)


class Run:
    """What one run of a session was given, kept readable, and what it handed out, with their versions at its end."""

    def __init__(self, inputs: Sequence[Storage], outputs: Sequence[Storage]) -> None:
        self.inputs = list(inputs)
        self._stamps = [(weakref.ref(s), s.version) for s in (*inputs, *outputs)]

    def changed(self, number: int) -> bool:
        """Whether an input, or an output (their numbers go on), was changed in place since."""
        ref, version = self._stamps[number]
        storage = ref()
        return storage is not None and storage.version != version


class _Active(threading.local):
    debug: Debug | None = None


_active = _Active()


class Debug:
    """Looks inside compiled calls made in its block: `read_node_by_name`, `value_names`, `step_debug`. Made by
    `meganeura.debug()`. Values are those of the last run of each session, and stay after the block."""

    def __init__(self) -> None:
        self.sessions: list[Session] = []  # that ran inside, the one that ran last at the end
        self._runs: dict[Session, Run] = {}
        self._outer: list[Debug | None] = []  # what was active before; the block may be entered again

    def __enter__(self) -> Debug:
        self._outer.append(_active.debug)
        _active.debug = self
        return self

    def __exit__(self, *exc: object) -> None:
        _active.debug = self._outer.pop()

    def ran(self, session: Session, run: Run) -> None:
        """A session ran."""
        if session in self.sessions:
            self.sessions.remove(session)
        self.sessions.append(session)
        self._runs[session] = run

    @property
    def value_names(self) -> list[str]:
        """Names of all values of the sessions that ran, in the order of computation."""
        return [name for s in self._all() for name in s.value_names]

    def read_node_by_name(self, name: str) -> Any:
        """A value as a numpy array, of the session that ran last among those that have it. Raises MeganeuraError."""
        for session in reversed(self._all()):
            if name in session.value_names:
                return session.read_node_by_name(name)
        return self.sessions[-1].read_node_by_name(name)  # which says what is near

    def step_debug(self) -> NotFinite | None:
        """The first value with NaN or Inf in the order in which sessions ran, with its op and line; None if all are finite."""
        return next((found for s in self._all() if (found := s.step_debug()) is not None), None)

    def _all(self) -> list[Session]:
        if not self.sessions:
            raise MeganeuraError("no compiled function ran inside meganeura.debug(); eager values are at hand as they are")
        return self.sessions


def debug() -> Debug:
    """Let compiled functions called in the block keep every value: `with meganeura.debug() as d: step(x, y)`."""
    return Debug()


def active() -> Debug | None:
    """The innermost block that this thread is in."""
    return _active.debug
