"""Constant folding: what needs no input is computed once, when the program is made.

In: a graph and the tensors of its constant cells. Out: the graph with fewer nodes. Three things happen:
1. a tensor of one value (a fill, arithmetic on fills) is read as a number wherever an op takes numbers;
2. other nodes without inputs run now, eagerly, and what they make becomes constants of the session: masks, positions,
   tables. Not random ones, nor what is handed out or changed in place, nor what a chain computes in registers anyway;
3. rows that can do without an input of known values say so (Op.known): attention without a causal mask.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import dispatch
from ..dispatch import HostScalar
from ..dtype import DType
from ..errors import MeganeuraError
from ..ops.archetype import Pointwise
from ..ops.creation import fill
from ..ops.infer import infer
from ..ops.table import ATTR, LIST, OPERAND, SCALAR
from ..storage import Storage
from ..tensor import Tensor
from .ir import Cell, Graph, Node, Once, Operand, Value
from .prune import prune

if TYPE_CHECKING:
    from .passes import Context

LARGEST = 16 << 20  # bytes of one constant
MOST = 64 << 20  # bytes of all that one graph gets
NUMBERS, ONCE, KNOWN = "a tensor of one value as a number", "computed once", "an input of known values left out"

_PLACES = re.compile(r"\{(index|block|lane)\}")
_NAME = re.compile(r"\{(\w+)\}")


def fold_constants(graph: Graph, context: Context) -> None:
    """Both kinds of folding, and without what they made unnecessary."""
    folding = _Folding(graph, context)
    folding.numbers()
    folding.constants()
    folding.known()
    if folding.found:
        prune(graph)


class _Folding:
    def __init__(self, graph: Graph, context: Context) -> None:
        self.graph, self.context = graph, context
        self.found = False
        self.lasting = {v.cell for v in graph.kept} - graph.saved
        self.changed = {v.cell for n in graph.nodes for v in n.previous if v is not None}

    def _pure(self, node: Node) -> bool:
        if node.op.random or node.op.mutates or node.in_place or len(node.parts) > 1:
            return False
        if any(isinstance(v, HostScalar) for v in node.args):
            return False
        return not any(o.value.cell in self.changed for o in node.outputs)

    # ---- tensors of one value ----

    def numbers(self) -> None:
        """Read tensors of one value as numbers; such tensors themselves become fills."""
        known: dict[Value, Any] = {}
        for node in self.graph.nodes:
            value = self._value(node, known) if self._pure(node) else None
            if value is not None:
                known[node.outputs[0].value] = value
                if node.op is fill:  # a chain would keep in a register what float16 cannot hold
                    node.args = (value.item(), *node.args[1:])
                elif any(True for _ in node.reads()):
                    self._become_fill(node, value)
            elif known:
                self._take_numbers(node, known)

    def _value(self, node: Node, known: dict[Value, Any]) -> Any:
        """The one value that all elements of a node's result have; None if there is none or it is not known."""
        kind = node.op.archetype
        if not isinstance(kind, Pointwise) or len(node.outputs) != 1 or node.outputs[0].layout.numel == 0:
            return None
        out, reads = node.outputs[0].layout.dtype, list(node.reads())
        if not reads:  # a source: its expression is the number itself, or tells elements apart
            name = _NAME.fullmatch(kind.expr) if isinstance(kind.expr, str) else None
            return _rounded(node.args[node.op.names.index(name[1])], out) if name and name[1] in node.op.inputs else None
        texts = (kind.expr,) if isinstance(kind.expr, str) else kind.expr.values()
        if node.op.ref is None or any(_PLACES.search(t) for t in texts) or not all(o.value in known for o in reads):
            return None
        args, dtypes = [], iter(node.inferred.compute)
        for p, v in zip(node.op.params, node.args, strict=True):
            if p.kind in (ATTR, SCALAR):
                args.append(v)
            elif v is not None:
                args.append(_rounded(known[v.value] if isinstance(v, Operand) else v, next(dtypes)))
            else:
                args.append(None)
        with np.errstate(all="ignore"):
            found = node.op.ref(*args)
        return _rounded(found, out) if np.ndim(found) == 0 else None

    def _become_fill(self, node: Node, value: Any) -> None:
        spec = node.inferred.outputs[0]
        node.op, node.args, node.parts = fill, (value.item(), spec.shape, spec.dtype), (fill.name,)
        node.inferred = infer(fill, node.named())
        self._note(NUMBERS, node)

    def _take_numbers(self, node: Node, known: dict[Value, Any]) -> None:
        """Replace operands of one value by that number where shape and dtypes of the op stay as they are."""
        if node.in_place or node.op.mutates or len(node.parts) > 1:
            return
        for i, (p, v) in enumerate(zip(node.op.params, node.args, strict=True)):
            if p.kind != OPERAND or not isinstance(v, Operand) or v.value not in known:
                continue
            args, before = node.args, node.inferred
            node.args = (*args[:i], known[v.value].item(), *args[i + 1 :])
            try:
                node.inferred = infer(node.op, node.named())
            except MeganeuraError:
                node.args = args
                continue
            if node.inferred == before:
                self._note(NUMBERS, node)
            else:
                node.args, node.inferred = args, before

    # ---- constants ----

    def constants(self) -> None:
        """Run nodes without inputs now, where a later node needs what they make."""
        readers: dict[Value, list[tuple[Node, Operand]]] = defaultdict(list)
        for node in self.graph.nodes:
            for operand in node.reads():
                readers[operand.value].append((node, operand))
        fixed = self._fixed()
        wanted = [
            o
            for n in fixed
            for o in n.outputs
            if (o.value.cell in self.graph.saved or any(user not in fixed for user, _ in readers[o.value]))
            and o.value.cell.nbytes <= LARGEST
            and not self._free(n, o, [r for r in readers[o.value] if r[0] not in fixed])
        ]
        tensors: dict[Value, Tensor] = {}
        moved: dict[Value, Value] = {}
        total = 0
        number = max((o.value.cell.id for n in self.graph.nodes for o in (*n.reads(), *n.outputs)), default=0)
        for out in wanted:
            total += out.value.cell.nbytes
            if total > MOST:
                break
            self._note(ONCE, out.value.node)
            made, cell = self._run(out, tensors)._storage, out.value.cell
            if cell in self.graph.saved:
                self._settle(out.value)
            else:
                number += 1
                cell = Cell(number, cell.dtype, cell.elements, "constant", cell.label)
                moved[out.value] = Value(cell)
            self.graph.constants[cell], self.graph.folded[cell] = made, out.value
        for node in self.graph.nodes if moved else ():
            node.replace(moved)

    def _settle(self, value: Value) -> None:
        """A value that is kept for backward only becomes a constant under its own cell, by which the backward graph knows it."""
        self.graph.nodes.remove(value.node)  # type: ignore[arg-type]
        self.graph.kept.remove(value)
        self.graph.outputs.remove(value.cell)
        value.node, value.cell.role = None, "constant"

    def _fixed(self) -> dict[Node, None]:
        """Nodes that make the same at every run and whose results stay inside."""
        values: set[Value] = set()
        fixed: dict[Node, None] = {}
        for node in self.graph.nodes:
            cells = [o.value.cell for o in node.outputs]
            if not self._pure(node) or any(c in self.lasting or (c in self.graph.saved and len(cells) > 1) for c in cells):
                continue
            if all(o.value in values or o.value.cell in self.graph.constants for o in node.reads()):
                values.update(o.value for o in node.outputs)
                fixed[node] = None
        return fixed

    def _free(self, node: Node, out: Operand, users: list[tuple[Node, Operand]]) -> bool:
        """Whether every reader is elementwise over the same shape and the node has no inputs: a chain keeps it in a register."""
        if any(True for _ in node.reads()):
            return False
        return all(n.op.archetype.fusable and o.layout is out.layout and n.outputs[0].layout.shape == o.layout.shape for n, o in users)

    def _run(self, out: Operand, tensors: dict[Value, Tensor]) -> Tensor:
        """The tensor of a fixed value, made with all it needs."""
        todo = [out.value.node]
        while todo:
            node = todo[-1]
            assert node is not None
            missing = [
                o.value.node for o in node.reads() if o.value not in tensors and o.value.node is not None and o.value.cell.role == "value"
            ]
            if missing:
                todo.extend(missing)
                continue
            todo.pop()
            if node.outputs[0].value in tensors:
                continue
            step = Once(node.op, node.args, tuple(o.value for o in node.outputs))
            run_once(step, tensors, self.graph.constants)
            self.graph.once.append(step)
        return tensors[out.value]

    # ---- inputs of known values ----

    def known(self) -> None:
        """Let rows change their arguments where they know what an input holds."""
        for node in self.graph.nodes:
            if node.op.known is None or node.in_place or len(node.parts) > 1:
                continue
            given = dict(zip(node.op.names, node.args, strict=True))
            arrays = {n: self._array(v) for n, v in given.items() if isinstance(v, Operand) and v.value.cell in self.graph.constants}
            changed = node.op.known(**{**given, **arrays}) if arrays else None
            if changed is not None:
                node.args = tuple(({**given, **changed}).values())
                node.inferred = infer(node.op, node.named())
                self._note(KNOWN, node)

    def _array(self, operand: Operand) -> np.ndarray[Any, Any]:
        return Tensor._make(self.graph.constants[operand.value.cell], operand.layout).numpy()

    def _note(self, what: str, node: Node | None) -> None:
        assert node is not None
        self.found = True
        self.context.report.note(what, node.site)


def run_once(step: Once, tensors: dict[Value, Tensor], constants: Mapping[Cell, Storage]) -> None:
    """Compute what a node makes from constants and from `tensors`, eagerly, into `tensors`."""

    def tensor(v: Any, kind: int) -> Any:
        if isinstance(v, Operand):
            storage = tensors[v.value]._storage if v.value in tensors else constants[v.value.cell]
            return Tensor._make(storage, v.layout)
        return [tensor(x, kind) for x in v] if kind == LIST else v

    args = [tensor(v, p.kind) for p, v in zip(step.op.params, step.args, strict=True)]
    with dispatch.use(None), dispatch.no_grad():
        made = dispatch.current().apply(step.op, args, None)
    tensors.update(zip(step.values, made if isinstance(made, tuple) else (made,), strict=True))


def _rounded(value: Any, dtype: DType) -> Any:
    """A number as a dtype holds it, as a numpy scalar."""
    from ..reference import rounded

    return rounded(np.asarray(value), dtype)[()]
