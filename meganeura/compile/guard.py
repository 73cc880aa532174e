"""When a traced program is valid: the Python state that its trace read, checked before every call.

Argument shapes, dtypes and constants are in the signature (api.py); here is what the function reached by itself: the
tensors it met, `.grad` it read, modules and optimizers it used; names.py adds globals, closures and attributes. A counter
(tensor.state_epoch) that grows with every change of a module or of a tensor's facts makes the usual check short; optimizers'
groups are plain dicts, so they are compared every time.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any

from ..storage import Storage
from ..tensor import Tensor, state_epoch
from .arguments import hooks_of, is_whole
from .record import Concrete, Record


def target_of(target: int | Tensor, leaves: Sequence[Tensor]) -> Tensor:
    """The tensor whose `.grad` is meant: an argument by its number, or another."""
    return leaves[target] if isinstance(target, int) else target


class Guard:
    """The state a trace read. `broken(leaves)` says what changed, '' if nothing did."""

    def __init__(self, record: Record, epoch: int) -> None:
        self.epoch = epoch
        self.grads = [e for e in record.effects if e.read]
        self.pattern = _pattern([e.grad for e in self.grads])
        paths = {e.grad._storage.uid for e in self.grads if e.grad is not None}
        self.tensors = [
            (s.tensor, s.tensor.layout, s.tensor.requires_grad, hooks_of(s.tensor))
            for s in record.trace.states.values()
            if s.uid not in paths
        ]
        self.owners = [(o, f) for o, f in record.trace.observed.values() if not hasattr(o, "param_groups")]
        self.optimizers = [(o, f) for o, f in record.trace.observed.values() if hasattr(o, "param_groups")]
        numbers = {c: i for i, c in reversed(list(enumerate(record.argument_cells)))}
        self.shared = {numbers[c]: t for c, t in record.trace.shared.items()}
        self.uids = {t._storage.uid for t, *_ in self.tensors}
        self.names = record.names
        self.shown = [pair for t in _as_they_are(record) for pair in _sharers(t)]

    def broken(self, leaves: Sequence[Tensor]) -> str:
        """What changed since the trace, or which argument the trace knows otherwise."""
        if reason := self.changed(leaves):
            return reason
        for number, tensor in enumerate(leaves):
            if tensor._storage.uid in self.uids and number not in self.shared and is_whole(tensor):
                return f"argument tensor {number} is also used inside"
        return ""

    def changed(self, leaves: Sequence[Tensor]) -> str:
        """What changed since the trace."""
        if self.grads and (reason := self._other_grads(leaves)):
            return reason
        if self.names is not None and (reason := self.names.changed()):
            return reason
        for owner, fingerprint in self.optimizers:
            if owner._fingerprint() != fingerprint:
                return f"the groups or state of {type(owner).__name__}"
        for number, tensor in self.shared.items():
            if leaves[number]._storage is not tensor._storage:
                return f"argument tensor {number} is another than the one used inside"
        return self._slow() if state_epoch[0] != self.epoch else ""

    def _other_grads(self, leaves: Sequence[Tensor]) -> str:
        """What changed about the `.grad`s that are read."""
        found = []
        for e in self.grads:
            target = target_of(e.target, leaves)
            grad = target.grad
            found.append(grad)
            now = None if grad is None else grad.layout
            if now is not e.before:
                return f"the .grad of a tensor of shape {list(target.shape)} is {now}, it was {e.before}"
        return "which gradients share their memory" if len(found) > 1 and _pattern(found) != self.pattern else ""

    def _slow(self) -> str:
        """Everything that moves the counter."""
        epoch = state_epoch[0]
        for tensor, layout, requires_grad, hooks in self.tensors:
            if tensor.layout is not layout:
                return f"a tensor of layout {layout} is now {tensor.layout}"
            if tensor.requires_grad != requires_grad:
                return f"requires_grad of a tensor of shape {list(tensor.shape)} is now {tensor.requires_grad}"
            if hooks_of(tensor) != hooks:
                return f"the hooks of a tensor of shape {list(tensor.shape)}"
        for known, storage in self.shown:
            other = known()
            if other is not None and other._storage is not storage:
                return f"a tensor of shape {list(other.shape)} has other memory, and what the function returned shows the old one"
        for owner, fingerprint in self.owners:
            if _fingerprint(owner) != fingerprint:
                return f"the attributes of a {type(owner).__name__}"
        self.epoch = epoch
        self.uids = {t._storage.uid for t, *_ in self.tensors}
        return ""


def _as_they_are(record: Record) -> list[Tensor]:
    """Tensors that every call hands out as they are: from outside, or views of these that the function made."""
    handed = (*record.results, *(e.after for e in record.effects))
    return [r.tensor for r in handed if isinstance(r, Concrete) and r.tensor is not None]


def _sharers(t: Tensor) -> list[tuple[Any, Storage]]:
    """Weakly, the other tensors over a tensor's memory, and that: it may be a view of one of them, whose `.data` may be replaced."""
    return [(weakref.ref(o), t._storage) for o in gc.get_referrers(t._storage) if isinstance(o, Tensor) and o is not t]


def _pattern(grads: Sequence[Tensor | None]) -> list[int]:
    """For each gradient the first with the same storage."""
    first: dict[int, int] = {}
    return [-1 if g is None else first.setdefault(g._storage.uid, i) for i, g in enumerate(grads)]


def _fingerprint(owner: Any) -> Any:
    method = getattr(owner, "_fingerprint", None)
    return None if method is None else method()
