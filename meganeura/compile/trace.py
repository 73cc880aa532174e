"""Trace: the interpreter that notes ops instead of running them.

In: ops bound by ordinary code on symbolic tensors (a Storage without a buffer). Out: nodes over cells, and the concrete
tensors that were met, as state. It keeps values by storage uid and never a symbolic Storage: whether a gradient may be
taken over is decided by reference counts, and a symbolic tensor that is still alive at the end has escaped.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from .. import autodiff, dispatch
from ..dispatch import HostScalar, Interpreter, located
from ..dtype import DType
from ..errors import MeganeuraError, ShapeError, TraceError
from ..ops.infer import infer
from ..ops.pointwise import clone
from ..ops.table import ATTR, Op
from ..provenance import Site, site
from ..shape import numel
from ..storage import Layout, Storage
from ..tensor import Tensor
from .ir import Cell, Node, Numbers, Operand, Value

READ = (
    "code that is compiled is traced once, on tensors without values: it cannot read them\n"
    "  keep the value on the device (where(), masks, tensor arithmetic), return it and read it outside,"
    " or do not compile this part"
)


class State:
    """A concrete tensor that the traced code met. `tensor` is the first seen with its storage."""

    __slots__ = ("cell", "storage", "tensor", "version")

    def __init__(self, cell: Cell, tensor: Tensor) -> None:
        self.cell, self.tensor, self.storage, self.version = cell, tensor, tensor._storage, tensor._storage.version


_FIELDS = ("_base", "_hooks", "_index", "_leaf", "_node", "_rewrites", "_seen", "_storage", "_view", "layout")


class Trace(Interpreter):
    """Notes ops as nodes. One object a traced signature; `world` of its symbolic storages."""

    name = "trace"

    def __init__(self) -> None:
        self.start = autodiff.Node("trace", [], [], site()).seq  # tape nodes after this one belong to the trace
        self.numbers = Numbers()
        self.nodes: list[Node] = []
        self.values: dict[int, Value] = {}  # storage uid -> what it holds now
        self.states: dict[Cell, State] = {}
        self.constants: dict[Cell, Tensor] = {}
        self.hosts: list[tuple[Callable[[], Sequence[float | int]], int]] = []
        self.host_count = 0
        self.observed: dict[int, tuple[Any, Any]] = {}  # id -> owner and its fingerprint when first used
        self.born: list[tuple[weakref.ref[Storage], str, Site]] = []
        self.seen: dict[int, tuple[Tensor, tuple[Any, ...]]] = {}  # concrete tensors and their Python state before

    @property
    def device(self) -> Any:
        """Where the traced code will run; asked for by Tensor.device."""
        return getattr(dispatch.hooks.eager(), "device", "traced")

    # ---- the interpreter's interface ----

    def apply(self, op: Op, values: Sequence[Any], out: Tensor | None) -> Any:
        where = site()
        args = [self._argument(v) if p.kind != ATTR else v for p, v in zip(op.params, values, strict=True)]
        node = Node(op, args, where)
        try:
            node.inferred = infer(op, node.named())
            if out is not None and node.inferred.outputs[0].shape != out.shape:
                raise ShapeError(f"the result has shape {list(node.inferred.outputs[0].shape)}, the tensor to change {list(out.shape)}")
        except MeganeuraError as e:
            raise located(e, op, where) from None
        self.nodes.append(node)
        if out is not None:
            self._overwrite(node, [out])
            return out
        if op.mutates:
            written = [t for name in op.names if name in op.mutates for t in values[op.names.index(name)]]
            self._overwrite(node, written)
            return tuple(written)
        return self._fresh(node)

    def host_scalars(self, fn: Callable[[], Sequence[float | int]], count: int) -> Sequence[Any]:
        first = self.host_count
        self.hosts.append((fn, count))
        self.host_count += count
        return [HostScalar(fn, first + i) for i in range(count)]

    def persistent(self, fn: Callable[[], Any]) -> Any:
        with dispatch.use(None):
            return fn()

    def observe(self, owner: Any) -> None:
        if id(owner) not in self.observed:
            fingerprint = getattr(owner, "_fingerprint", None)
            self.observed[id(owner)] = (owner, None if fingerprint is None else fingerprint())

    def upload(self, dtype: DType, array: Any) -> Tensor:
        """Host data becomes a constant of the session, uploaded once."""
        with dispatch.use(None):
            concrete = dispatch.hooks.eager().upload(dtype, array)
        storage = concrete._storage
        cell = self.numbers.cell(storage.dtype, storage.elements, "constant")
        self.constants[cell] = concrete
        return Tensor._make(self.new_storage(cell, "tensor", site()), concrete.layout)

    def read(self, tensor: Tensor) -> NoReturn:
        node = self._maker(tensor)
        made = f"\n  made by {node.op.name} at {node.site}" if node is not None else ""
        raise TraceError(f"the values of a tensor ({tensor.layout}) were asked for while tracing\n  at {site()}{made}\n  {READ}")

    # ---- storages and values ----

    def new_storage(self, cell: Cell, what: str, where: Site) -> Storage:
        """A symbolic storage for a cell."""
        storage = Storage(cell.dtype, cell.elements, None, self)
        self.values[storage.uid] = Value(cell)
        self.born.append((weakref.ref(storage), what, where))
        return storage

    def operand(self, t: Tensor) -> Operand:
        """What a tensor reads now; a concrete tensor becomes state."""
        storage = t._storage
        if storage.world is not self:
            self._remember(t)
        value = self.values.get(storage.uid)
        if value is None:
            value = self._capture(t)
        return Operand(value, t.layout)

    def _argument(self, v: Any) -> Any:
        if isinstance(v, Tensor):
            return self.operand(v)
        if isinstance(v, (list, tuple)) and v and isinstance(v[0], Tensor):
            return tuple(self.operand(t) for t in v)
        return tuple(v) if isinstance(v, list) else v

    def _capture(self, t: Tensor) -> Value:
        storage = t._storage
        if isinstance(storage.world, Trace):
            raise TraceError(f"a tensor ({t.layout}) of an earlier trace was used\n  at {site()}\n  it was kept beyond that trace; return it instead")
        cell = self.numbers.cell(storage.dtype, storage.elements, "state", t._name or "")
        self.states[cell] = State(cell, t if t._base is None else t._base)
        value = self.values[storage.uid] = Value(cell)
        return value

    def _remember(self, t: Tensor) -> None:
        """Note a concrete tensor's Python state before the trace changes it."""
        if dispatch.state.grad and t._node is not None and t._node.seq <= self.start:
            raise TraceError(
                f"a tensor ({t.layout}) computed outside the compiled function, with history for backward, was used inside\n  at {site()}\n"
                f"  made by {t._node.name} at {t._node.site}\n  pass it as an argument, or detach() it"
            )
        for known in (t, t._base):
            if known is not None and id(known) not in self.seen:
                self.seen[id(known)] = (known, tuple(getattr(known, f) for f in _FIELDS))

    def _fresh(self, node: Node) -> Any:
        cells = [self.numbers.cell(s.dtype, numel(s.shape), "value") for s in node.inferred.outputs]
        tensors, outs = [], []
        for cell, spec in zip(cells, node.inferred.outputs, strict=True):
            storage = self.new_storage(cell, node.op.name, node.site)
            value = self.values[storage.uid] = Value(cell, 1, node)
            layout = Layout(spec.dtype, spec.shape)
            outs.append(Operand(value, layout))
            tensors.append(Tensor._make(storage, layout))
        node.outputs, node.previous = tuple(outs), (None,) * len(outs)
        return tensors[0] if len(tensors) == 1 else tuple(tensors)

    def _overwrite(self, node: Node, tensors: Sequence[Tensor]) -> None:
        """New values of the tensors' cells, one a cell."""
        made: dict[Cell, tuple[Value, Value]] = {}
        outs, previous = [], []
        for t in tensors:
            before = self.operand(t).value
            if before.cell.role == "constant":
                before = self._own(t, node)
            if before.node is not node:
                made[before.cell] = (before, Value(before.cell, before.version + 1, node))
                self.values[t._storage.uid] = made[before.cell][1]
            old, new = made[before.cell]
            outs.append(Operand(new, t.layout))
            previous.append(old)
        node.outputs, node.previous = tuple(outs), tuple(previous)

    def _own(self, t: Tensor, node: Node) -> Value:
        """A constant is about to be changed: every run must start from it, so a copy is changed instead."""
        constant = self.values[t._storage.uid]
        cell = self.numbers.cell(constant.cell.dtype, constant.cell.elements, "value")
        whole = Layout(cell.dtype, (cell.elements,))
        copy = Node(clone, [Operand(constant, whole)], node.site)
        copy.inferred = infer(clone, copy.named())
        value = self.values[t._storage.uid] = Value(cell, 1, copy)
        copy.outputs, copy.previous = (Operand(value, whole),), (None,)
        self.nodes.insert(len(self.nodes) - 1, copy)
        node.replace({constant: value})
        return value

    def _maker(self, t: Tensor) -> Node | None:
        value = self.values.get(t._storage.uid)
        return None if value is None else value.node

    # ---- ending ----

    def restore(self) -> None:
        """Put back the Python state of every concrete tensor that was met, and the version counts."""
        for t, fields in self.seen.values():
            for name, value in zip(_FIELDS, fields, strict=True):
                setattr(t, name, value)
        for state in self.states.values():
            state.storage.version = state.version

    def changed_history(self) -> Tensor | None:
        """A concrete tensor that the trace gave a place on the tape or another storage, if there is one."""
        for t, fields in self.seen.values():
            before = dict(zip(_FIELDS, fields, strict=True))
            if t._storage is not before["_storage"] or t._leaf != before["_leaf"]:
                return t
            if t._node is not before["_node"] and t._base is None:
                return t
        return None

    def escaped(self) -> list[tuple[str, Site]]:
        """(op, line) of every symbolic storage that is still alive."""
        return [(what, where) for ref, what, where in self.born if ref() is not None]


