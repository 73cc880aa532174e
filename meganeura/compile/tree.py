"""Arguments and results as trees: lists, tuples, dicts and dataclasses of tensors and constants.

`flatten` gives the tensors in order and a hashable spec of everything else; `rebuild` puts tensors back into a spec.
Constants are part of the spec (a compiled session is valid for them); objects that do not hash count by identity.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import TraceError
from ..provenance import site
from ..tensor import Tensor

LEAF = "tensor"


class Identity:
    """An object that counts by identity; kept alive so that its id cannot come back."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and other.value is self.value


def flatten(tree: Any, leaves: list[Tensor], what: str = "an argument") -> Any:
    """The spec of a tree; its tensors are appended to `leaves`. Raises TraceError for numpy arrays."""
    if isinstance(tree, Tensor):
        leaves.append(tree)
        return LEAF
    kind = type(tree)
    if kind in (bool, int, float, str, type(None)):
        return kind, tree if tree == tree else "nan"
    if isinstance(tree, (list, tuple)):
        return kind, tuple(flatten(v, leaves, what) for v in tree)
    if isinstance(tree, dict):
        return kind, tuple((k, flatten(v, leaves, what)) for k, v in tree.items())
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type) and not hasattr(tree, "_fingerprint"):
        return kind, tuple((f.name, flatten(getattr(tree, f.name), leaves, what)) for f in dataclasses.fields(tree)), Identity(tree)
    if isinstance(tree, np.ndarray):
        raise TraceError(f"{what} of a compiled function is a numpy array of shape {list(tree.shape)}; pass meganeura.tensor(array)\n  at {site()}")
    if isinstance(tree, np.generic):
        return kind, tree.item()
    return kind, Identity(tree)


def rebuild(tree: Any, replace: Callable[[Tensor], Any]) -> Any:
    """The same tree with every tensor replaced; containers are new, everything else is kept."""
    if isinstance(tree, Tensor):
        return replace(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(rebuild(v, replace) for v in tree))
    if isinstance(tree, (list, tuple)):
        items = [rebuild(v, replace) for v in tree]
        return items if type(tree) is list else type(tree)(items)
    if isinstance(tree, dict):
        copy = tree.copy()
        for k, v in tree.items():
            copy[k] = rebuild(v, replace)
        return copy
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type) and not hasattr(tree, "_fingerprint"):
        return dataclasses.replace(tree, **{f.name: rebuild(getattr(tree, f.name), replace) for f in dataclasses.fields(tree) if f.init})
    return tree


class Places:
    """A result whose tensors were replaced by places (see `template`); `fill` makes the caller's copy."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


def template(tree: Any, number: Callable[[Tensor], int]) -> Any:
    """The tree with every tensor replaced by its Places."""
    return rebuild(tree, lambda t: Places(number(t)))


def fill(tree: Any, tensors: Sequence[Any]) -> Any:
    """A template with its places filled."""
    if isinstance(tree, Places):
        return tensors[tree.number]
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(fill(v, tensors) for v in tree))
    if isinstance(tree, (list, tuple)):
        items = [fill(v, tensors) for v in tree]
        return items if type(tree) is list else type(tree)(items)
    if isinstance(tree, dict):
        copy = tree.copy()
        for k, v in tree.items():
            copy[k] = fill(v, tensors)
        return copy
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type) and not hasattr(tree, "_fingerprint"):
        return dataclasses.replace(tree, **{f.name: fill(getattr(tree, f.name), tensors) for f in dataclasses.fields(tree) if f.init})
    return tree
