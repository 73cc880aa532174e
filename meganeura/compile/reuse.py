"""Gradients that a compiled step overwrites in place of making new ones: tensor, storage and buffer stay what they are.

In: a tensor whose `.grad` the step replaces without reading it. Out: the gradient, if nobody but `.grad` knows it: then
nobody can tell an overwritten one from a new one. Views, saved tensors and other names all count as references.
"""

from __future__ import annotations

import sys
from typing import Any

from ..storage import Layout

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
    """The same where nobody else knows them: how many the counting itself adds differs between Python's versions."""
    owner = _Probe()
    owner.grad = _Probe()
    owner.grad._storage = _Probe()
    return _counts(owner)


_TENSOR, _STORAGE = _calibrated()


def own_gradient(owner: Any, buffer: Any, layout: Layout) -> Any:
    """The `.grad` of a tensor, if it is a plain tensor of this layout over this buffer that nobody else knows; else None."""
    g = owner.grad
    if g is None or _references(g) != _TENSOR or g.layout is not layout or _references(g._storage) != _STORAGE:
        return None
    if g._storage.buffer is not buffer or g._leaf or g._node is not None or g._base is not None or g._hooks or g._name is not None:
        return None
    return g
