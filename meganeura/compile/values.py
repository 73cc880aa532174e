"""Looking at what a session computed: values by name, and the first one that is not finite.

In: a session that ran. Out: numpy arrays, or an error that says why a value is not there: no such name, fused away by a
rewrite, or its memory used again by another value. Compile with debug=True (or inside `meganeura.debug()`) and everything
is there.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import dispatch
from ..errors import MeganeuraError
from ..provenance import Site
from ..storage import Layout, Storage
from ..tensor import Tensor
from .ir import Cell, Graph, Node, Operand

if TYPE_CHECKING:
    from .session import Session

ADVICE = "call it inside `with meganeura.debug():`, or compile with rewrite='off', debug=True, to keep every value"


class Named(NamedTuple):
    """A value of a graph: its name, the node that makes it (None: it is given), and how it lies in its cell."""

    name: str
    node: Node | None
    operand: Operand


class NotFinite(NamedTuple):
    """What `step_debug` found: the first value with NaN or Inf, in the order in which values are computed."""

    name: str
    op: str
    site: Site | None
    nans: int
    infs: int
    elements: int
    given: bool

    def __str__(self) -> str:
        what = " and ".join(f"{n} {kind}" for n, kind in ((self.nans, "NaN"), (self.infs, "Inf")) if n)
        source = "given to the step" if self.given else f"made by {self.op}"
        return f"{self.name}: {what} of {self.elements} elements, {source}" + (f"\n  at {self.site}" if self.site else "")


def names_of(graph: Graph) -> list[Named]:
    """Every value of a graph in the order of computation, given ones first. Names: what the user said, or the module's
    path and the op, or the op; equal ones are numbered from the second on: 'layers.0.relu', 'layers.0.relu#2'."""
    out: list[Named] = []
    seen: dict[str, int] = {}
    said = {_base(n, c) for n in graph.nodes for o in n.outputs if (c := o.value.cell).label}  # the user's names come first
    taken: set[str] = set()

    def unique(base: str, mine: bool) -> str:
        """The name, or the first of `base#2`, `base#3`... that nothing has."""
        name = base
        while name in taken or (name in said and not mine):
            seen[base] = seen.get(base, 1) + 1
            name = f"{base}#{seen[base]}"
        taken.add(name)
        return name

    given = {o.value.cell: o.value for n in graph.nodes for o in n.reads() if o.value.node is None}
    for cell, value in given.items():
        out.append(Named(unique(repr(cell), False), None, Operand(value, Layout(cell.dtype, (cell.elements,)))))
    for node in graph.nodes:
        for operand in dict.fromkeys(node.outputs):
            cell = operand.value.cell
            out.append(Named(unique(_base(node, cell), bool(cell.label)), node, operand))
    return out


def _base(node: Node, cell: Cell) -> str:
    if cell.label:
        return cell.label + ("'" if node.in_place else "")
    where = node.place
    return where.value or ".".join(filter(None, (where.path, node.title)))


def traced_names(graph: Graph) -> dict[str, Site]:
    """Names and lines of a graph as it was traced: what a rewritten one may no longer have."""
    return {n.name: n.node.site for n in names_of(graph) if n.node is not None}


class Inspector:
    """The values of one session after a run."""

    def __init__(self, session: Session) -> None:
        if not session.runs:
            raise MeganeuraError(f"{session.graph.name} has not run yet: call it first")
        self.session = session
        self.known = names_of(session.graph)

    def find(self, name: str) -> Named:
        """The value of a name. Raises MeganeuraError for names that are unknown or were fused away."""
        if not isinstance(name, str):
            raise MeganeuraError(f"a value's name is text, got {name!r}")
        for known_as in (lambda n: n.name, lambda n: repr(n.operand.value.cell)):
            for named in self.known:
                if name == known_as(named):
                    return named
        graph = self.session.graph
        if name in graph.traced:
            raise MeganeuraError(
                f"{name!r} is no value of its own in {graph.name}: a rewrite fused it into another op\n  computed at {graph.traced[name]}\n"
                f"  {ADVICE}"
            )
        names = [n.name for n in self.known]
        close = difflib.get_close_matches(name, [*names, *graph.traced], 4) or names[:6]
        raise MeganeuraError(f"{graph.name} has no value named {name!r}; there are {', '.join(map(repr, close))}")

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """The values under a name, as a numpy array."""
        named = self.find(name)
        if reason := self._overwritten(named):
            raise MeganeuraError(f"{name!r} of {self.session.graph.name} cannot be read: {reason}\n  {ADVICE}")
        return np.asarray(self.tensor(named).numpy())

    def tensor(self, named: Named) -> Tensor:
        """A tensor over a value's memory, valid until the session runs again."""
        cell = named.operand.value.cell
        storage = Storage(cell.dtype, cell.elements, self.session.buffer_of(cell), self.session.world)
        return Tensor._make(storage, named.operand.layout)

    def _overwritten(self, named: Named) -> str:
        """Why a value is no longer in memory; '' if it is."""
        session, value = self.session, named.operand.value
        run = session.debugged() if session.debugged is not None else None
        if value.cell.role in ("input", "gradient") and run is None:
            return "what a call is given is not kept"
        if run is not None and (number := self._number(value.cell)) is not None and run.changed(number):
            return "it was changed in place after the run"
        for other in self.known:
            if other.operand.value.cell is value.cell and other.operand.value.version > value.version and other.node is not None:
                return f"{other.node.title} changed it in place\n  at {other.node.site}"
        plan = session.plan
        block = plan.place.get(value.cell)
        if block is None:
            return ""
        last = plan.lives.get(value.cell, (0, 0))[1]
        for cell, (first, _) in plan.lives.items():
            if cell is not value.cell and plan.place.get(cell) == block and first >= last:
                maker = next((n.node for n in self.known if n.operand.value.cell is cell), None)
                return f"its memory was used again for {cell!r}" + (f", made by {maker.title}\n  at {maker.site}" if maker else "")
        if any(block in temps for temps in plan.temps[last:]):
            return "its memory was used again while a later op ran"
        return ""

    def _number(self, cell: Cell) -> int | None:
        """Which of the inputs or, counted on, the outputs of a run a cell is."""
        graph = self.session.graph
        if cell in graph.inputs:
            return graph.inputs.index(cell)
        return len(graph.inputs) + graph.outputs.index(cell) if cell in graph.outputs else None

    def first_not_finite(self) -> NotFinite | None:
        """The first value in the order of computation that holds NaN or Inf, of those still in memory."""
        floating = [n for n in self._readable() if n.operand.layout.dtype.is_floating_point and n.operand.layout.numel]
        with dispatch.no_grad(), dispatch.use(None):
            for named in self._suspects(floating):
                values = self.tensor(named).numpy()
                nans, infs = int(np.isnan(values).sum()), int(np.isinf(values).sum())
                node = named.node
                title, where = ("", None) if node is None else (node.title, node.place)
                return NotFinite(named.name, title, where, nans, infs, values.size, node is None)
        return None

    def _readable(self) -> Iterator[Named]:
        return (n for n in self.known if not self._overwritten(n))

    def _suspects(self, values: list[Named]) -> list[Named]:
        """Those with something not finite; one read for all."""
        from ..ops.views import stack

        if not values:
            return []
        flags = stack([self.tensor(n).isfinite().all() for n in values]).numpy()
        return [n for n, fine in zip(values, flags, strict=True) if not fine]
