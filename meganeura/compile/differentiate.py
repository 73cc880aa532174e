"""The backward half of a function that is compiled without backward() inside: the tape's engine, run on symbolic tensors.

In: a trace and its results with history. Out: for each combination of results whose gradients may arrive, the nodes that
turn them into the gradients of the leaves (arguments and parameters).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import autodiff
from ..autodiff import Node as TapeNode
from ..errors import GradientError, MeganeuraError, NoGradientError
from ..provenance import site
from ..storage import Layout
from ..tensor import Tensor
from .ir import Cell, Node, Operand
from .trace import Trace

ALL_PATTERNS = 2  # up to so many results every combination gets its own backward graph
SINGLE_PATTERNS = 4  # up to so many every single one does, and beyond that the first, which is usually the one used


@dataclass
class Backward:
    """Gradients of the leaves for one combination of arriving gradients. `arriving`: their cells, None where none arrives.
    `leaves`: argument numbers and tensors; `hosts`: first and end of the host scalars that it asks for itself."""

    arriving: list[Cell | None]
    leaves: list[int | Tensor]
    grads: list[Operand | None]
    nodes: list[Node]
    hosts: tuple[int, int]

    @property
    def pattern(self) -> tuple[bool, ...]:
        return tuple(c is not None for c in self.arriving)


def differentiate(trace: Trace, roots: Sequence[Tensor], stand_ins: dict[int, int]) -> tuple[list[Backward], MeganeuraError | None]:
    """A Backward for all roots, then for parts of them; or the error that backward() has to raise."""
    leaves = [t for t in tape_leaves(roots) if id(t) in stand_ins or t._storage.world is not trace]  # not those made inside
    targets: list[int | Tensor] = [stand_ins.get(id(t), t) for t in leaves]
    hooks = [t._hooks for t in leaves]
    for t in leaves:
        t._hooks = None  # they run outside, when the gradient leaves the compiled node
    try:
        return [_backward(trace, roots, pattern, leaves, targets) for pattern in patterns(len(roots))], None
    except (GradientError, NoGradientError) as e:
        return [], type(e)(*e.args)  # without the traceback, whose frames hold symbolic tensors
    finally:
        for t, h in zip(leaves, hooks, strict=True):
            t._hooks = h


def patterns(count: int) -> list[tuple[bool, ...]]:
    """Combinations to prepare: all results, then every other combination of few, or single ones. Others count as all, with
    zeros for what does not arrive."""
    full = (True,) * count
    if count <= ALL_PATTERNS:
        return [full, *(p for p in itertools.product((True, False), repeat=count) if any(p) and not all(p))]
    return [full, *(tuple(i == k for i in range(count)) for k in range(count if count <= SINGLE_PATTERNS else 1))]


def tape_leaves(roots: Sequence[Tensor]) -> list[Tensor]:
    """The leaf tensors that roots depend on, in the order in which the tape meets them."""
    found: dict[int, Tensor] = {}
    seen: set[int] = set()
    stack: list[Any] = [autodiff.edge_of(t) for t in roots]
    while stack:
        edge = stack.pop()
        if edge is None:
            continue
        target = edge[0]
        if isinstance(target, Tensor):
            found.setdefault(id(target), target)
        elif isinstance(target, TapeNode) and id(target) not in seen:
            seen.add(id(target))
            stack.extend(reversed(target.edges))
    return list(found.values())


def _backward(
    trace: Trace, roots: Sequence[Tensor], pattern: tuple[bool, ...], leaves: list[Tensor], targets: list[int | Tensor]
) -> Backward:
    first, host = len(trace.nodes), trace.host_count
    arriving: list[Cell | None] = []
    outputs, gradients = [], []
    for k, (t, wanted) in enumerate(zip(roots, pattern, strict=True)):
        if not wanted:
            arriving.append(None)
            continue
        layout = Layout(t.dtype, t.shape)
        cell = trace.numbers.cell(t.dtype, layout.numel, "gradient", f"gradient{k}")
        gradients.append(Tensor._make(trace.new_storage(cell, f"gradient {k}", site()), layout))
        outputs.append(t)
        arriving.append(cell)
    found = autodiff.grad(outputs, leaves, gradients, retain_graph=True, allow_unused=True)
    made = set(trace.nodes[first:])
    grads = [None if g is None else _own(trace, g, made) for g in found]
    return Backward(arriving, targets, grads, trace.nodes[first:], (host, trace.host_count))


def _own(trace: Trace, g: Tensor, made: set[Node]) -> Operand:
    """A gradient that the backward graph made itself, or an arriving one; anything else is copied."""
    operand = trace.operand(g)
    return operand if operand.value.node in made or operand.value.cell.role == "gradient" else trace.own(g)
