"""A compiled call as one node of the caller's tape: its backward runs a second session, on what the call saved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import dispatch
from ..autodiff import Edge, Node
from ..errors import GradientError
from ..ops.factory import zeros
from ..provenance import Site
from ..storage import Layout, Storage
from ..tensor import Tensor
from .again import Again
from .ir import Cell

if TYPE_CHECKING:
    from .program import Program


class SpentNode(Node):
    """The history of results that have no backward, usually since the function went back through them itself: it raises `error`,
    which names the line. Results of later calls may have the same one once nobody knows it (reuse.py): `site` is the first call's."""

    __slots__ = ("error",)

    def __init__(self, name: str, metas: list[Layout | None], where: Site, error: Exception) -> None:
        super().__init__(name, [], metas, where)
        self.error = error

    def backward(self, grads: list[Tensor | None], create_graph: bool) -> Sequence[Tensor | None]:
        raise type(self.error)(*self.error.args)


class CompiledNode(Node):
    """`saved`: the storages that the backward graphs read, with their version at the call; `numbers`: the host's numbers
    of the call (dropout draws the same bits again)."""

    __slots__ = ("again", "numbers", "program", "saved")

    def __init__(
        self, program: Program, edges: list[Edge], metas: list[Layout | None], where: Site, saved: dict[Cell, Storage], numbers: list[Any],
        again: Again,
    ) -> None:  # fmt: skip
        super().__init__(program.title, edges, metas, where)
        self.program, self.numbers, self.again = program, numbers, again
        self.saved = {cell: (storage, storage.version) for cell, storage in saved.items()}

    def backward(self, grads: list[Tensor | None], create_graph: bool) -> Sequence[Tensor | None]:
        if create_graph:
            return self.again.gradients(self, grads)
        for storage, version in self.saved.values():
            if storage.version != version:
                raise GradientError(
                    f"a tensor that a compiled call saved for backward was changed in place {storage.version - version} time(s) since\n"
                    f"  called at {self.site}\n  call backward() before changing parameters or arguments"
                )
        given = tuple(g is not None for g in grads)
        if given not in self.program.backward:
            grads = [self._zeros(k) if g is None else g for k, g in enumerate(grads)]
        storages = {cell: storage for cell, (storage, _) in self.saved.items()}
        return self.program.run_backward(grads, storages, self.numbers)

    def _zeros(self, k: int) -> Tensor:
        meta = self.metas[k]
        assert meta is not None
        with dispatch.no_grad():
            return zeros(meta.shape, dtype=meta.dtype)

    def release(self) -> None:
        self.freed = True
        self.saved = {}
        self.again.forget()
