"""Gradients that a compiled step overwrites in place of making new ones: tensor, storage and buffer stay what they are. And
nodes of the tape that serve the results of call after call.

In: a tensor whose `.grad` the step replaces without reading it. Out: the gradient, if nobody but `.grad` knows it: then
nobody can tell an overwritten one from a new one. Views, saved tensors, other names and weak references all count. Another
thread that takes a parameter's gradient while a step over it runs may get either values, as it may with PyTorch.
"""

from __future__ import annotations

import sys
from typing import Any
from weakref import getweakrefcount

from ..storage import Layout
from ..tensor import Tensor

_references = sys.getrefcount


class _Probe:
    __slots__ = ("_storage", "grad")

    _storage: Any
    grad: Any


def _counts(owner: Any) -> tuple[int, int]:
    """How often the gradient and its storage are referenced, counted as `own_gradient` counts."""
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


def idle_node(owner: Any) -> Any:
    """`owner.spent`, the node that the results of an earlier call had, if nobody knows it any more; else None."""
    node = owner.spent
    if node is None or _references(node) > _TENSOR or getweakrefcount(node):
        return None
    return node if node.hooks is None and node.retain is None and not node.freed else None


def own_gradient(owner: Any, buffer: Any, layout: Layout) -> Any:
    """The `.grad` of a tensor, if it is a plain tensor of this layout over this buffer that nobody else knows; else None."""
    g = owner.grad
    if g is None or _references(g) > _TENSOR or g.layout is not layout or _references(g._storage) > _STORAGE:
        return None
    if g._storage.buffer is not buffer or type(g) is not Tensor or getweakrefcount(g) or getweakrefcount(g._storage):
        return None
    plain = g.grad is None and g._node is None and g._base is None and g._name is None and not g._leaf and not g._hooks
    return g if plain else None
