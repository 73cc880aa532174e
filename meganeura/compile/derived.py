"""Derived state: tensors made from a session's state, made again only when what they come from was changed.

In: cells of state and how they lie side by side. Out: at every run a storage for each derived cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .. import dispatch
from ..ops.views import cat
from ..storage import Layout, Storage
from ..tensor import Tensor
from .ir import Cell


class Derived(NamedTuple):
    """`sources`, each seen through its layout, concatenated along `dim`."""

    sources: tuple[Cell, ...]
    layouts: tuple[Layout, ...]
    dim: int


class DerivedState:
    """The derived cells of one graph and what they were last made from."""

    def __init__(self, derived: Mapping[Cell, Derived]) -> None:
        self.derived = derived
        self.known: dict[Cell, tuple[Any, Tensor]] = {}

    def storages(self, given: Sequence[Storage], slot: Mapping[Cell, int]) -> list[Storage]:
        """Storages of all derived cells; `given[slot[c]]` is that of a source."""
        out = []
        for cell, recipe in self.derived.items():
            sources = [given[slot[c]] for c in recipe.sources]
            now = [(s.uid, s.generation, s.version) for s in sources]
            known = self.known.get(cell)
            if known is None or known[0] != now:
                with dispatch.no_grad():
                    made = cat([Tensor._make(s, x) for s, x in zip(sources, recipe.layouts, strict=True)], recipe.dim)
                known = self.known[cell] = (now, made)
            out.append(known[1]._storage)
        return out
