"""Which module is running: dotted paths for the places of ops, kept only while a trace or a profile watches.

In: modules being entered. Out: `provenance.scope.path`, the path below the outermost module that is running.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..provenance import scope

if TYPE_CHECKING:
    from .module import Module

Before = tuple[Mapping[int, str] | None, str]


def enter(module: Module) -> Before:
    """The module starts to run; returns what `leave` puts back."""
    before = scope.names, scope.path
    if scope.names is None:  # compiled modules share the attributes of the plain ones, so these tell modules apart
        scope.names = {id(vars(m)): path for path, m in module.named_modules()}
    path = scope.names.get(id(vars(module)))
    if path is None:  # reached past the attributes, from a list or a closure
        path = ".".join(filter(None, (scope.path, type(module).__name__)))
    scope.path = path
    return before


def leave(before: Before) -> None:
    """It is done."""
    scope.names, scope.path = before
