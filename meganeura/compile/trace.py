"""Trace: the interpreter that notes ops instead of running them.

In: ops bound by ordinary code on symbolic tensors (a Storage without a buffer). Out: nodes over cells, and the concrete
tensors that were met, as state. It keeps values by storage uid and never a symbolic Storage: whether a gradient may be
taken over is decided by reference counts, and a symbolic tensor that is still alive at the end has escaped.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from .. import autodiff, dispatch
from ..dispatch import HostScalar, Interpreter, located
from ..dtype import DType
from ..errors import MeganeuraError, TraceError
from ..ops.infer import check_inplace, infer
from ..ops.pointwise import clone
from ..ops.table import ATTR, Op
from ..provenance import Site, is_inside, site
from ..shape import numel
from ..storage import Layout, Storage
from ..tensor import Tensor
from .arguments import hooks_of
from .ir import Cell, Node, Numbers, Operand, Value
from .names import is_library

READ = "code that is compiled is traced once, on tensors without values: it cannot read them\n  "
OUTSIDE = "return it and read it outside, or do not compile this part"
# What to write instead, by the function of this package through which the code asked for values; the first that is found counts.
INSTEAD = {
    "nonzero": "how many there are depends on values: keep all elements and a mask, where(mask, x, 0)",
    "masked_select": "how many there are depends on values: keep all elements and a mask, where(mask, x, 0)",
    "unique": "how many there are depends on values: " + OUTSIDE,
    "_found": "the size of x[mask] depends on values: write where(mask, x, 0), x * mask, or x[mask] = number, which keep the shape",
    "__bool__": "in place of `if`, `and`, `not` and `while` on a tensor choose with where() or masks, on the device; or " + OUTSIDE,
    "__contains__": "write (x == value).any(), which is a tensor, and go on with where()",
    "__index__": "as index, size or bound of a slice an integer tensor would have to be known: x[i] and x[i] = y with a tensor i work, "
    "as do index_select, index_copy_ and masks such as arange(n) < length; pass lengths as Python ints",
    "__int__": "keep it a tensor: arithmetic with numbers is the same, and where() chooses; or " + OUTSIDE,
    "__float__": "keep it a tensor: arithmetic with numbers is the same, and where() chooses; or " + OUTSIDE,
    "__format__": "print and format it outside: return it",
    "item": "keep it a tensor of no dimensions: arithmetic is the same, and where() chooses; or " + OUTSIDE,
    "__array__": "use this package's functions in place of numpy's; or " + OUTSIDE,
    "numpy": "use this package's functions in place of numpy's; where() chooses; or " + OUTSIDE,
}
ANYTHING = "keep the value on the device (where(), masks, tensor arithmetic), " + OUTSIDE


def _instead() -> str:
    """Advice by the outermost function of this package that the code called."""
    frame: Any = sys._getframe(2)
    called = []
    while frame is not None and is_inside(frame.f_code, frame.f_globals.get("__name__") or ""):
        called.append(frame.f_code.co_name)
        frame = frame.f_back
    return next((INSTEAD[n] for n in INSTEAD if n in called), ANYTHING)


_PICKED = "picked"


def user_line() -> Site:
    """The innermost frame outside this package and the libraries that called it (copy, pickle, json)."""
    where, frame = site(), sys._getframe(1)
    while frame.f_back is not None and (frame.f_code is not where.code or is_library(where.file)):
        frame = frame.f_back
        if is_library(where.file) and not is_inside(frame.f_code, frame.f_globals.get("__name__") or ""):
            where = Site(frame.f_code, frame.f_lasti)
    return where


class State:
    """A concrete tensor that the traced code met. `tensor` is the first seen with its storage."""

    __slots__ = ("cell", "tensor", "uid")

    def __init__(self, cell: Cell, tensor: Tensor) -> None:
        self.cell, self.tensor, self.uid = cell, tensor, tensor._storage.uid


_FIELDS = ("_base", "_hooks", "_index", "_leaf", "_node", "_rewrites", "_seen", "_storage", "_view", "layout")


class Trace(Interpreter):
    """Notes ops as nodes. One object a traced signature; `world` of its symbolic storages."""

    name = "trace"
    reads = False

    def __init__(self) -> None:
        self.over = False
        self.start = autodiff.Node("trace", [], [], site()).seq  # tape nodes after this one belong to the trace
        self.numbers = Numbers()
        self.nodes: list[Node] = []
        self.cells: dict[int, Cell] = {}  # by storage uid; an argument and its stand-in share one
        self.values: dict[Cell, Value] = {}  # what each holds now
        self.shared: dict[Cell, Tensor] = {}  # arguments that the code also met as concrete tensors
        self.states: dict[Cell, State] = {}
        self.constants: dict[Cell, Tensor] = {}
        self.hosts: list[tuple[Callable[[], Sequence[float | int]], int]] = []
        self.host_count = 0
        self.region = self.regions = 0  # the recomputation that runs now, and how many there were
        self.observed: dict[int, tuple[Any, Any]] = {}  # id -> owner and its fingerprint when first used
        self.paths: dict[int, str] = {}  # names of state, by storage uid
        self.labels: dict[str, list[Cell]] = {}  # cells named by the user
        self.born: list[tuple[weakref.ref[Storage], str, Site]] = []
        self.versions: dict[int, tuple[Storage, int]] = {}  # version counts before the trace, by storage uid
        self.hooks: dict[int, tuple[Any, ...]] = {}  # of the tensors seen
        self.seen: dict[int, tuple[Tensor, tuple[Any, ...]]] = {}  # concrete tensors and their Python state before

    @property
    def device(self) -> Any:
        """Where the traced code will run; asked for by Tensor.device."""
        return getattr(dispatch.hooks.eager(), "device", "traced")

    # ---- the interpreter's interface ----

    def apply(self, op: Op, values: Sequence[Any], out: Tensor | None) -> Any:
        where = site()
        for t in (out,) if out is not None else self._mutated(op, values):
            self._check_written(op, t, where)
            if self.operand(t).value.cell.role == "constant":
                self.own(t)
        args = [self._argument(v) if p.kind != ATTR else v for p, v in zip(op.params, values, strict=True)]
        node = Node(op, args, where)
        try:
            node.inferred = infer(op, node.named())
            if out is not None:
                check_inplace(node.inferred.outputs[0], out.layout)
        except MeganeuraError as e:
            raise located(e, op, where) from None
        node.region = self.region
        self.nodes.append(node)
        if out is not None:
            self._overwrite(node, [out])
            return out
        if op.mutates:
            written = self._mutated(op, values)
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

    @contextlib.contextmanager
    def recomputing(self) -> Iterator[None]:
        """Nodes of the block are a region of their own: equal nodes elsewhere are not merged with them."""
        before = self.region
        self.regions += 1
        self.region = self.regions
        try:
            yield
        finally:
            self.region = before

    def observe(self, owner: Any) -> None:
        if isinstance(owner, Tensor):  # it is about to get a hook
            if owner._storage.world is not self:
                self._remember(owner)
        elif id(owner) not in self.observed:
            fingerprint = getattr(owner, "_fingerprint", None)
            self.observed[id(owner)] = (owner, None if fingerprint is None else fingerprint())
            for name in ("named_parameters", "named_buffers"):
                for path, tensor in getattr(owner, name, tuple)():
                    self.paths.setdefault(tensor._storage.uid, path)

    def named(self, tensor: Tensor, name: str) -> None:
        """Label the cell that a symbolic tensor lies in; labels are unique in a trace."""
        cell = self.cells.get(tensor._storage.uid)
        if cell is None or tensor._storage.world is not self:
            return
        taken = self.labels.setdefault(name, [])
        if cell not in taken:
            cell.label = f"{name}_{len(taken)}" if taken else name
            taken.append(cell)

    def picked(self, tensor: Tensor) -> Tensor:
        """x[i] with a tensor i: a copy here, so that writing to it would not write to x."""
        (tensor if tensor._base is None else tensor._base)._view = _PICKED
        return tensor

    def _check_written(self, op: Op, t: Tensor, where: Site) -> None:
        if _PICKED in (t._view, None if t._base is None else t._base._view):
            raise TraceError(
                f"{op.name}_ would change x[i] in place, where i is a tensor: while tracing that is a copy of a part of x\n  at {where}\n"
                f"  write x[i] = x[i] + ... with an out-of-place op, or x.index_copy_, x.index_add_ with i.view(1)"
            )

    def upload(self, dtype: DType, array: Any) -> Tensor:
        """Host data becomes a constant of the session, uploaded once."""
        with dispatch.use(None):
            concrete = dispatch.hooks.eager().upload(dtype, array)
        storage = concrete._storage
        cell = self.numbers.cell(storage.dtype, storage.elements, "constant")
        self.constants[cell] = concrete
        return Tensor._make(self.new_storage(cell, "tensor", site()), concrete.layout)

    def read(self, tensor: Tensor) -> NoReturn:
        if self.over:
            raise TraceError(f"{self.describe(tensor)} outlived the trace and has no values\n  at {user_line()}\n  return it instead")
        node = self._maker(tensor)
        made = f"\n  made by {node.op.name} at {node.site}" if node is not None else ""
        raise TraceError(
            f"the values of a tensor ({tensor.layout}) were asked for while tracing\n  at {user_line()}{made}\n  {READ}{_instead()}"
        )

    # ---- storages and values ----

    def new_storage(self, cell: Cell, what: str, where: Site) -> Storage:
        """A symbolic storage for a cell."""
        storage = Storage(cell.dtype, cell.elements, None, self)
        self.cells[storage.uid] = cell
        self.values.setdefault(cell, Value(cell))
        self.born.append((weakref.ref(storage), what, where))
        return storage

    def operand(self, t: Tensor) -> Operand:
        """What a tensor reads now; a concrete tensor becomes state."""
        storage = t._storage
        cell = self.cells.get(storage.uid)
        if storage.world is not self:
            self._remember(t)
            if cell is not None and cell.role == "input":
                self.shared[cell] = t
        if cell is None:
            cell = self._capture(t)
        return Operand(self.values[cell], t.layout)

    def _mutated(self, op: Op, values: Sequence[Any]) -> list[Tensor]:
        """The tensors an op writes, in the order of its roles."""
        return [t for role in op.mutates for t in values[op.names.index(role)]]

    def _argument(self, v: Any) -> Any:
        if isinstance(v, Tensor):
            return self.operand(v)
        if isinstance(v, (list, tuple)) and v and isinstance(v[0], Tensor):
            return tuple(self.operand(t) for t in v)
        return tuple(v) if isinstance(v, list) else v

    def _capture(self, t: Tensor) -> Cell:
        storage = t._storage
        if isinstance(storage.world, Trace):
            raise TraceError(f"{storage.world.describe(t)} in an earlier trace was used\n  at {site()}\n  return it from there instead")
        if storage.world is not dispatch.hooks.eager():
            raise TraceError(f"a tensor ({t.layout}) of {storage.world!r} cannot be used in compiled code\n  at {site()}")
        cell = self.numbers.cell(storage.dtype, storage.elements, "state", t._name or self.paths.get(storage.uid, ""))
        self.states[cell] = State(cell, t if t._base is None else t._base)
        self.cells[storage.uid], self.values[cell] = cell, Value(cell)
        return cell

    def _remember(self, t: Tensor) -> None:
        """Note a concrete tensor's Python state before the trace changes it."""
        if dispatch.state.grad and t._node is not None and t._node.seq <= self.start:
            raise TraceError(
                f"a tensor ({t.layout}) computed outside the compiled function, with history for backward, was used inside\n  at {site()}\n"
                f"  made by {t._node.name} at {t._node.site}\n  pass it as an argument, or detach() it"
            )
        for known in (t, t._base):
            if known is not None and id(known) not in self.seen:
                self.hooks[id(known)] = hooks_of(known)
                self.seen[id(known)] = (known, tuple(getattr(known, f) for f in _FIELDS))
                self.versions.setdefault(known._storage.uid, (known._storage, known._storage.version))

    def _fresh(self, node: Node) -> Any:
        cells = [self.numbers.cell(s.dtype, numel(s.shape), "value") for s in node.inferred.outputs]
        tensors, outs = [], []
        for cell, spec in zip(cells, node.inferred.outputs, strict=True):
            storage = self.new_storage(cell, node.op.name, node.site)
            value = self.values[cell] = Value(cell, 1, node)
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
            if before.node is not node:
                made[before.cell] = (before, Value(before.cell, before.version + 1, node))
                self.values[before.cell] = made[before.cell][1]
            old, new = made[before.cell]
            outs.append(Operand(new, t.layout))
            previous.append(old)
        node.outputs, node.previous = tuple(outs), tuple(previous)

    def own(self, t: Tensor) -> Operand:
        """Give a tensor's storage a copy of what it holds: of a constant that is changed, which every run must start from,
        or of something that is handed out and must not be shared."""
        source = self.operand(t).value
        cell = self.numbers.cell(source.cell.dtype, source.cell.elements, "value")
        whole = Layout(cell.dtype, (cell.elements,))
        copy = Node(clone, [Operand(source, whole)], site())
        copy.inferred = infer(clone, copy.named())
        value = self.values[cell] = Value(cell, 1, copy)
        copy.outputs, copy.previous = (Operand(value, whole),), (None,)
        self.nodes.append(copy)
        self.cells[t._storage.uid] = cell
        return Operand(value, t.layout)

    def describe(self, t: Tensor) -> str:
        """A symbolic tensor in words, for errors."""
        for ref, what, where in self.born:
            storage = ref()
            if storage is t._storage:
                return f"a traced tensor ({t.layout}) made by {what} at {where}"
        return f"a traced tensor ({t.layout})"

    def _maker(self, t: Tensor) -> Node | None:
        cell = self.cells.get(t._storage.uid)
        return None if cell is None else self.values[cell].node

    # ---- ending ----

    def restore(self) -> None:
        """Put back the Python state of every concrete tensor that was met, and the version counts."""
        for t, fields in self.seen.values():
            for name, value in zip(_FIELDS, fields, strict=True):
                setattr(t, name, value)
            if t._hooks:
                t._hooks[:] = self.hooks[id(t)]
        for storage, version in self.versions.values():
            storage.version = version

    def changed_history(self) -> Tensor | None:
        """A concrete tensor that the trace gave a place on the tape or another storage, if there is one."""
        for t, fields in self.seen.values():
            before = dict(zip(_FIELDS, fields, strict=True))
            if hooks_of(t) != self.hooks[id(t)]:
                return t
            if t._storage is not before["_storage"] or t._leaf != before["_leaf"]:
                return t
            if t._node is not before["_node"] and t._base is None:
                return t
        return None

    def escaped(self) -> list[tuple[str, Site]]:
        """(op, line) of every symbolic storage that is still alive."""
        return [(what, where) for ref, what, where in self.born if ref() is not None]
