"""Gradients that a compiled function overwrites in place of making new ones: tensor, storage and buffer stay what they are. And
storages of results, and the node of the tape that these have, which serve call after call.

In: a tensor whose `.grad` the step replaces without reading it, and what the last calls handed out. Out: what of it nobody
else knows: then nobody can tell an overwritten one from a new one. Views, saved tensors, other names and weak references
all count. Another thread that takes a parameter's gradient while a step over it runs may get either values, as it may with PyTorch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from ..storage import Layout, Storage
from ..tensor import Tensor
from .record import Made

_references = sys.getrefcount


class _Probe:
    __slots__ = ("_storage", "grad")

    _storage: Any
    grad: Any


def _counts(owner: Any) -> tuple[int, int]:
    """How often the gradient and its storage are referenced, counted as `keep_gradients` counts."""
    g = owner.grad
    s = g._storage
    return _references(g), _references(s)


def _calibrated() -> tuple[int, int]:
    """The same where nobody else knows them. The counting itself adds a local name and an argument at most, fewer in newer
    Pythons; a debugger that looks at the frame meanwhile must not pass for either."""
    owner = _Probe()
    owner.grad = _Probe()
    owner.grad._storage = _Probe()
    tensor, storage = _counts(owner)
    return min(tensor, 3), min(storage, 3)


_ALONE, _INSIDE = _calibrated()  # of what a slot, a local name and the counting know


class Handed:
    """A result of a function that is a memory of its own: its `number`, by which of the session's outputs, what it is, and the storages
    that the last calls handed out, the latest first: two, so that a loop which holds a result until it has the next one makes none."""

    __slots__ = ("number", "own", "result", "storages")

    def __init__(self, number: int, own: int, result: Made) -> None:
        self.number, self.own, self.result = number, own, result
        self.storages: list[Storage] = []

    def note(self, storage: Storage) -> None:
        """It was handed out."""
        if not self.storages or self.storages[0] is not storage:
            self.storages = [storage, *self.storages[:1]]

    def hand_out(self, storage: Storage, node: Any) -> Tensor:
        """A tensor over a storage, and the node of its history."""
        self.note(storage)
        return self.result.tensor(storage, node)


Replaced = tuple[Any, int, Layout]  # whose `.grad` (an argument by its number), by which output, and how it lies


def keep_gradients(owners: Sequence[Replaced], leaves: Sequence[Tensor], buffers: Sequence[Any], kept: list[Storage | None]) -> None:
    """Put into `kept`, by outputs, the storages of those `.grad`s that are plain tensors over the `buffers` which these outputs have now,
    and that nobody else knows; take the others off their owners, which may set off callbacks, and these further calls."""
    while True:
        for owner, own, layout in owners:
            if type(owner) is int:
                owner = leaves[owner]
            g = owner.grad
            if g is None:
                continue
            s = g._storage
            if (
                own >= 0 and _references(g) <= _ALONE and g.layout is layout and _references(s) <= _INSIDE and s.buffer is buffers[own]
                and type(g) is Tensor and g.__weakref__ is None and s.__weakref__ is None and g._node is None and g._base is None
                and g.grad is None and g._name is None and not g._leaf and not g._hooks
            ):  # fmt: skip
                kept[own] = s
                continue
            kept[:] = [None] * len(kept)
            owner.grad = g = s = None
            break
        else:
            return


def keep_results(handed: Sequence[Handed], kept: list[Storage | None]) -> None:
    """Put into `kept`, by outputs, storages that the last calls handed out and nobody knows any more: as good as new ones."""
    for last in handed:
        for s in last.storages:
            if _references(s) <= _ALONE and s.__weakref__ is None and not s.generation:
                s.renew()
                kept[last.own] = s
                break


def idle_node(nodes: Sequence[Any]) -> Any:
    """One of these nodes, which results of the last calls had, if nobody knows it any more; else None."""
    for node in nodes:
        alone = _references(node) <= _ALONE and node.__weakref__ is None
        if alone and node.hooks is None and node.retain is None and not node.freed:
            return node
    return None
