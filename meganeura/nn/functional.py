"""Every op and composite of the table as a function, as torch.nn.functional has them: nothing is written twice.

Imported by name is only what has another meaning here than as a method of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..ops.alias import ALIASES
from ..ops.sliding import fold, unfold
from ..ops.table import COMPOSITES, REGISTRY
from .linear_loss import linear_cross_entropy

__all__ = ["fold", "linear_cross_entropy", "unfold"]


def __getattr__(name: str) -> Callable[..., Any]:
    found: Any = COMPOSITES.get(ALIASES.get(name, name))
    if found is None:
        found = REGISTRY.get(ALIASES.get(name, name))
    if found is None or not getattr(found, "public", True):
        raise AttributeError(f"module {__name__!r} has no function {name!r}")
    return found  # type: ignore[no-any-return]


def __dir__() -> list[str]:
    return sorted({*__all__, *COMPOSITES, *(name for name, row in REGISTRY.items() if row.public)})
