"""Gradients and results that a compiled function overwrites in place of making new ones: tensor, storage and buffer stay what
they are, and the node of the tape that the results have.

In: a tensor whose `.grad` the step replaces without reading it, or a result of the last call. Out: the tensor, if nobody
else knows it: then nobody can tell an overwritten one from a new one. Views, saved tensors, other names and weak references
all count. Another thread that takes a parameter's gradient while a step over it runs may get either values, as it may with PyTorch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from ..storage import Layout
from ..tensor import Tensor

_references = sys.getrefcount


class _Probe:
    __slots__ = ("_storage", "grad")

    _storage: Any
    grad: Any


def _counts(owner: Any) -> tuple[int, int]:
    """How often the gradient and its storage are referenced, counted as `keep_own` counts."""
    g = owner.grad
    return _references(g), _references(g._storage)


def _calibrated() -> tuple[int, int]:
    """The same where nobody else knows them. The counting itself adds a local name and an argument at most, fewer in newer
    Pythons; a debugger that looks at the frame meanwhile must not pass for either."""
    owner = _Probe()
    owner.grad = _Probe()
    owner.grad._storage = _Probe()
    tensor, storage = _counts(owner)
    return min(tensor, 3), min(storage, 2)


_TENSOR, _STORAGE = _calibrated()


class Handed:
    """A result of a function, by its `number`, that is a memory of its own. `grad`: the tensor that the last call handed out."""

    __slots__ = ("grad", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.grad: Tensor | None = None


Own = tuple[Any, int, Layout, bool]  # whose `.grad` (an argument by its number), by which output, how it lies, and whether it has the node


def keep_own(owners: Sequence[Own], leaves: Sequence[Tensor], outputs: Sequence[Any], kept: list[Any], node: Any) -> int:
    """Put into `kept`, by outputs, the storages of those `.grad`s that are plain tensors over the buffers that these outputs have now, and
    that nobody else knows; take the others off their owners. Returns how many of them have the node."""
    held = 0
    for owner, own, layout, rooted in owners:
        if type(owner) is int:
            owner = leaves[owner]
        g = owner.grad
        if g is None:
            continue
        if (
            own >= 0 and _references(g) <= _TENSOR and g.layout is layout and _references(g._storage) <= _STORAGE
            and g._storage.buffer is outputs[own].bound and type(g) is Tensor and g.__weakref__ is None
            and g._storage.__weakref__ is None and g._node is (node if rooted else None) and g._base is None
            and g.grad is None and g._name is None and not g._leaf and not g._hooks
        ):  # fmt: skip
            kept[own] = g._storage
            held += rooted
        else:
            owner.grad = None
    return held


def is_idle(owner: Any, held: int) -> bool:
    """Whether nobody knows `owner.spent`, the node of an earlier call's results, but so many of these which nobody knows either."""
    node = owner.spent
    if _references(node) > _TENSOR + held or node.__weakref__ is not None:
        return False
    return node.hooks is None and node.retain is None and not node.freed
