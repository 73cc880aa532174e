"""Arguments and results as trees: lists, tuples, dicts and dataclasses of tensors and constants.

`flatten` gives the tensors in order and a hashable spec of everything else; `rebuild` replaces all leaves of a kind.
Constants are part of the spec (a session is valid for them); objects that are no constants count by identity.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import TraceError
from ..provenance import site
from ..tensor import Tensor

_CONSTANTS = (bool, int, float, complex, str, bytes, type(None))


class Identity:
    """An object that counts by identity; kept alive so that its id cannot come back."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and other.value is self.value


def number(value: Any) -> Any:
    """Something equal for what computes the same: NaN is NaN, and 0.0 is not -0.0."""
    if isinstance(value, float):
        return value if value and not math.isnan(value) else repr(value)
    return repr(value) if isinstance(value, complex) else value


def is_record(tree: Any) -> bool:
    """Whether a value is a dataclass of arguments or results."""
    return dataclasses.is_dataclass(tree) and not isinstance(tree, type) and not hasattr(tree, "_fingerprint")


def flatten(tree: Any, leaves: list[Tensor]) -> Any:
    """The spec of a tree; its tensors are appended to `leaves`. Raises TraceError for numpy arrays."""
    if isinstance(tree, Tensor):
        leaves.append(tree)
        return Tensor
    kind = type(tree)
    if kind in _CONSTANTS:
        return kind, number(tree)
    if isinstance(tree, (list, tuple)):
        return kind, tuple([flatten(v, leaves) for v in tree])
    if isinstance(tree, dict):
        return kind, tuple([(k, flatten(v, leaves)) for k, v in tree.items()])
    if isinstance(tree, np.ndarray):
        raise TraceError(f"a compiled function got a numpy array of shape {list(tree.shape)}; pass meganeura.tensor(array)\n  at {site()}")
    if isinstance(tree, np.generic):
        return kind, number(tree.item())
    if kind is range:
        return kind, tree
    if kind is slice:
        return kind, tuple([flatten(v, leaves) for v in (tree.start, tree.stop, tree.step)])
    if isinstance(tree, (set, frozenset)):
        return kind, frozenset([(type(v), number(v)) if type(v) in _CONSTANTS else Identity(v) for v in tree])
    if is_record(tree):
        return kind, tuple([(f.name, flatten(getattr(tree, f.name), leaves)) for f in dataclasses.fields(tree) if f.init])
    return kind, Identity(tree)


def rebuild(tree: Any, kind: type, replace: Callable[[Any], Any]) -> Any:
    """The same tree with every leaf of a kind replaced; containers are new, everything else is kept."""
    if isinstance(tree, kind):
        return replace(tree)
    if isinstance(tree, (list, tuple)):
        items = [rebuild(v, kind, replace) for v in tree]
        if hasattr(tree, "_fields"):
            return type(tree)(*items)
        return items if type(tree) is list else type(tree)(items)
    if isinstance(tree, dict):
        copy = tree.copy()
        copy.update((k, rebuild(v, kind, replace)) for k, v in tree.items())
        return copy
    if is_record(tree):
        return dataclasses.replace(
            tree, **{f.name: rebuild(getattr(tree, f.name), kind, replace) for f in dataclasses.fields(tree) if f.init}
        )
    return tree


def difference(before: Any, now: Any) -> Any:
    """The container, if there is one, that does not hold what it held `before` (the same tree, copied)."""
    if isinstance(before, (list, tuple)):
        pairs = list(zip(before, now, strict=False)) if type(before) is type(now) and len(before) == len(now) else None
    elif isinstance(before, dict):
        pairs = [(before[k], now[k]) for k in before] if isinstance(now, dict) and list(before) == list(now) else None
    elif is_record(before):
        names = [f.name for f in dataclasses.fields(before) if f.init]
        pairs = [(getattr(before, n), getattr(now, n, before)) for n in names]
    else:
        return None
    if pairs is None:
        return before
    for old, new in pairs:
        if old is not new and not _holds_items(old):
            return before
        found = difference(old, new)
        if found is not None:
            return found
    return None


def _holds_items(value: Any) -> bool:
    return isinstance(value, (list, tuple, dict)) or is_record(value)
