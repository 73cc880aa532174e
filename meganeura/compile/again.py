"""Backward with create_graph=True through a compiled call: the function runs once more as plain code, and is differentiated.

In: a call's arguments and the gradients of its results. Out: gradients of arguments and parameters that have history
themselves. A graph of the second derivative would need everything the first run saw, so nothing is gained by keeping
more than the arguments (weakly) and the position of the random numbers.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .. import autodiff, dispatch
from ..autodiff import Edge, Node, edge_of
from ..errors import GradientError
from ..random import default_generator
from ..storage import Layout, Storage
from ..tensor import Tensor
from .tree import rebuild

if TYPE_CHECKING:
    from .node import CompiledNode
    from .program import Program

_Weak: Any = weakref.ref


class Boundary(Node):
    """Keeps the first differentiation inside the function; afterwards it lets gradients through to the caller's history."""

    __slots__ = ("open",)

    def __init__(self, edge: Edge, meta: Layout, node: CompiledNode) -> None:
        super().__init__("argument", [edge], [meta], node.site)
        self.open = False

    def backward(self, grads: list[Tensor | None], create_graph: bool) -> Sequence[Tensor | None]:
        return [grads[0] if self.open else None]


class Again:
    """What one call needs to run again."""

    __slots__ = ("args", "draws", "leaves", "program", "versions")

    def __init__(self, program: Program, args: Any, kwargs: Any, leaves: Sequence[Tensor], states: Iterable[Storage]) -> None:
        self.program = program
        self.leaves = [weakref.ref(t) for t in leaves]
        self.args = rebuild((args, kwargs), Tensor, weakref.ref)
        self.versions = sum([t._storage.version for t in leaves]) + sum([s.version for s in states])
        self.draws = default_generator.get_state() if program.hosts else None

    def forget(self) -> None:
        """The call's node was freed."""
        self.args, self.leaves = ((), {}), []

    def gradients(self, node: CompiledNode, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Gradients for the edges of a call's node, with history."""
        leaves = self._checked(node)
        stand_ins, boundaries = self._stand_ins(node, leaves)
        roots = self._run(stand_ins)
        if len(roots) != len(grads):
            raise _refused(node, f"the function now has {len(roots)} results with history, it had {len(grads)}", "call it without compile")
        targets = [stand_ins[t] if isinstance(t, int) else t for t in self.program.leaves]
        hooks = [t._hooks for t in targets]
        for t in targets:
            t._hooks = None  # they run when the gradients arrive
        try:
            pairs = [(r, g) for r, g in zip(roots, grads, strict=True) if g is not None]
            found = autodiff.grad([r for r, _ in pairs], targets, [g for _, g in pairs], create_graph=True, allow_unused=True)
        finally:
            for t, h in zip(targets, hooks, strict=True):
                t._hooks = h
        for boundary in boundaries:
            boundary.open = True
        return list(found)

    def _checked(self, node: CompiledNode) -> list[Tensor]:
        program = self.program
        if program.written:
            names = ", ".join(map(repr, program.written))
            raise _refused(node, f"it changes {names} in place", "differentiate twice inside the compiled function")
        leaves = [t for ref in self.leaves if (t := ref()) is not None]
        if len(leaves) != len(self.leaves):
            raise _refused(node, "an argument of the call is gone", "keep a reference to its arguments until then")
        if sum(t._storage.version for t in (*leaves, *(t for _, t in program.state_of))) != self.versions:
            raise _refused(node, "an argument or parameter was changed in place since", "call backward() before changing them")
        return leaves

    def _stand_ins(self, node: CompiledNode, leaves: Sequence[Tensor]) -> tuple[list[Tensor], list[Boundary]]:
        made: dict[int, Tensor] = {}
        boundaries = []
        for t in leaves:
            if id(t) in made:
                continue
            s = made[id(t)] = Tensor._make(t._storage, t.layout)
            edge = edge_of(t)
            if edge is not None:
                s._node = Boundary(edge, t.layout, node)
                boundaries.append(s._node)
        return [made[id(t)] for t in leaves], boundaries

    def _run(self, stand_ins: Sequence[Tensor]) -> list[Tensor]:
        """The results with history, in the order of the compiled call's."""
        given = iter(stand_ins)
        args, kwargs = rebuild(self.args, _Weak, lambda _: next(given))
        after = default_generator.get_state()
        if self.draws is not None:
            default_generator.set_state(self.draws)
        try:
            with dispatch.enable_grad():
                result = self.program.fn(*args, **kwargs)
        finally:
            default_generator.set_state(after)
        known = {id(s) for s in stand_ins}
        roots: dict[int, Tensor] = {}

        def visit(t: Tensor) -> Tensor:
            if id(t) not in known and t.grad_fn is not None:
                roots.setdefault(id(t), t)
            return t

        rebuild(result, Tensor, visit)
        return list(roots.values())


def _refused(node: CompiledNode, why: str, instead: str) -> GradientError:
    return GradientError(f"backward with create_graph=True through {node.name}: {why}\n  called at {node.site}\n  {instead}")
