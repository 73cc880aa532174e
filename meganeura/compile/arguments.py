"""How argument tensors lie in memory: sessions bind dense ones as they are and copy the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import dispatch
from ..ops.pointwise import clone
from ..tensor import Tensor


def is_dense(t: Tensor) -> bool:
    """Whether a tensor lies row-major from the start of its storage."""
    return t.layout.contiguous and t.layout.offset == 0


def is_whole(t: Tensor) -> bool:
    """Whether a tensor is all of its storage, row-major."""
    return is_dense(t) and t.layout.numel == t._storage.elements


def hooks_of(t: Tensor) -> tuple[Any, ...]:
    """The hooks of a leaf."""
    return tuple(t._hooks) if t._hooks else ()


def dense(t: Tensor) -> Tensor:
    """A row-major copy without history."""
    with dispatch.no_grad():
        return clone(t.detach())  # type: ignore[no-any-return]


def same_storage(leaves: Sequence[Tensor]) -> list[int]:
    """For each tensor the first that shows the same storage through the same dense layout (itself, usually)."""
    if len({t._storage for t in leaves}) == len(leaves):
        return list(range(len(leaves)))
    first: dict[Any, int] = {}
    return [first.setdefault((t._storage.uid, t.layout), i) if is_dense(t) else i for i, t in enumerate(leaves)]
