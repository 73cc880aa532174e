"""A Reduce or Row node taken apart, so that chains and other sums can be put in, and put together again.

In: nodes. Out: a fused node, or None where its kernel could not run it or would run it badly. Operands of a chain are shown
in the shape of what they join: elements in the shape that is reduced, results in the shape of the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from ..dtype import DType
from ..kernels.kernel import Profile
from ..kernels.operand import grouped, stride_over
from ..ops.archetype import Chain, Reduce, Row
from ..ops.chain import Statement
from ..ops.fused_rows import BY_VALUE, as_type, fed, fused_op, joined, names_of, opened, renamed
from ..ops.table import ATTR, LIST, SCALAR, Inferred, Spec
from ..provenance import together
from ..shape import Shape, broadcast_shapes, broadcast_strides, numel, view_strides
from ..storage import Layout
from .chains import MOST_SCALARS, MOST_STATEMENTS, same_number
from .ir import Node, Operand, Value

WIDE = 128  # elements that a broadcast operand must run along before it starts again


def viewed(layout: Layout, shape: Shape, target: Shape) -> Layout | None:
    """A layout that is broadcast to a shape, as elements of another shape in the same order; None if no strides do that."""
    strides = broadcast_strides(layout.shape, layout.strides, shape)
    found = strides if shape == target else view_strides(shape, strides, target)
    return None if found is None else layout.with_(shape=target, strides=found)


def same_place(a: Layout | None, b: Layout) -> bool:
    """Whether two layouts of one shape are the same elements in the same order."""
    if a is None or a.shape != b.shape or a.offset != b.offset:
        return False
    return all(x == y for n, x, y in zip(a.shape, a.strides, b.strides, strict=True) if n != 1)


def _ends(shape: Shape) -> list[int]:
    """Elements in the last d dimensions, for every d."""
    return [numel(shape[d:]) for d in range(len(shape) + 1)]


class Taken:
    """The parts of a node. `shape` is that of the elements, `base` the layout that its kernel walks best; names of inputs and
    scalars are those of the row; inputs `of_rows` have one value a row (a result)."""

    def __init__(self, node: Node, inputs: dict[str, tuple[Operand, DType]], scalars: dict[str, tuple[str, Any]]) -> None:
        self.first, self.inputs, self.scalars = node, inputs, scalars
        kind = node.op.archetype
        assert isinstance(kind, (Reduce, Row))
        self.kind: Reduce | Row = kind
        self.outputs: list[tuple[Operand, Value | None]] = list(zip(node.outputs, node.previous, strict=True))
        self.dims: Shape = node.inferred.attrs["dim"]
        walked = kind.full if isinstance(kind, Row) else [n for n in inputs if n not in kind.once]
        layouts = [inputs[n][0].layout for n in walked if n in inputs]
        self.of_rows = {n for n in inputs if n not in walked and not (isinstance(kind, Row) and n in kind.column)}
        self.shape = broadcast_shapes(*(x.shape for x in layouts))
        self.base = next((x for x in layouts if x.shape == self.shape and x.contiguous), layouts[0])
        for n in walked if isinstance(kind, Row) else ():
            if n in inputs and inputs[n][0].layout.shape != self.shape:  # broadcast
                operand, compute = inputs[n]
                shown = viewed(operand.layout, self.shape, self.shape)
                inputs[n] = (operand if shown is None else Operand(operand.value, shown), compute)
        if isinstance(kind, Reduce):
            (name, (_, compute)) = next(iter(inputs.items()))
            self.kind = opened(kind, name, compute, node.outputs[0].layout.dtype)

    @classmethod
    def of(cls, node: Node) -> Taken | None:
        """The parts of a node, if its operands are single tensors."""
        inputs: dict[str, tuple[Operand, DType]] = {}
        scalars: dict[str, tuple[str, Any]] = {}
        compute = iter(node.inferred.compute)
        for p, v in zip(node.op.params, node.args, strict=True):
            if p.kind == LIST or (p.kind not in (ATTR, SCALAR) and v is not None and not isinstance(v, Operand)):
                return None
            if p.kind == SCALAR:
                scalars[p.name] = (p.scalar, v)
            elif p.kind != ATTR and v is not None:
                inputs[p.name] = (v, next(compute))
        kind = node.op.archetype
        if isinstance(kind, Row) and kind.full[0] not in inputs:
            return None
        return cls(node, inputs, scalars)

    def refine(self, shape: Shape) -> bool:
        """Take dimensions apart until every boundary of another shape of as many elements is one of these too."""
        ends, old = sorted({*_ends(shape), *_ends(self.shape)}), self.shape
        if ends[-1] != numel(old) or any(b % a for a, b in pairwise(ends)):
            return False
        new = tuple(b // a for a, b in pairwise(ends))[::-1]
        starts = [numel(old[d + 1 :]) for d in range(len(old))]
        self.dims = tuple(i for i in range(len(new)) if any(starts[d] <= numel(new[i + 1 :]) < starts[d] * old[d] for d in self.dims))
        self.shape = new
        walked = self._walked()
        inputs = dict(self.inputs)
        outputs = list(self.outputs)
        for name in walked:
            operand, compute = inputs[name]
            layout = viewed(operand.layout, old, new)
            if layout is None:
                return False
            inputs[name] = (Operand(operand.value, layout), compute)
        for k in range(len(self.kind.element) if isinstance(self.kind, Row) else 0):
            operand, before = outputs[k]
            layout = viewed(operand.layout, old, new)
            if layout is None:
                return False
            outputs[k] = (Operand(operand.value, layout), before)
        base = viewed(self.base, old, new)
        self.inputs, self.outputs = inputs, outputs
        self.base = self.base if base is None else base
        return base is not None and bool(self.dims)

    def _walked(self) -> list[str]:
        """Names of the inputs with elements."""
        kind = self.kind
        return [n for n in self.inputs if (n in kind.full if isinstance(kind, Row) else n not in kind.once)]

    def walks(self, chain: Node) -> bool:
        """Whether a chain makes inputs with elements."""
        made = {o.value for o in chain.outputs}
        return any(self.inputs[n][0].value in made for n in self._walked())

    # --- taking in ---

    def before(self, one: Node, chain: Node, stored: Sequence[bool]) -> bool:
        """Compute inputs from a chain (`one` as a Chain, `chain` as it stands in the graph), storing those of its results
        that others need. The inputs have elements, or all have one value a row. False if that cannot be done."""
        shape = chain.outputs[0].layout.shape
        texts: dict[str, int] = {}
        for name, (operand, _) in self.inputs.items():
            k = next((k for k, o in enumerate(chain.outputs) if o.value is operand.value), None)
            if k is not None:
                texts[name] = k
        walked = [n for n in texts if n in self._walked()]
        once = isinstance(self.kind, Row) and not walked and self._by_row(texts)
        if not texts or (len(walked) < len(texts) and not once) or (any(stored) and (once or not isinstance(self.kind, Row))):
            return False
        target = self.kept if once else self.shape
        if numel(shape) != numel(target):  # the node reads a part of what the chain makes, or shows it to several rows
            return False
        for name, k in texts.items():
            layout = self.inputs[name][0].layout
            here = viewed(layout, layout.shape, target) if once else layout if layout.shape == target else None
            if here is None or not same_place(viewed(chain.outputs[k].layout, shape, target), here):
                return False
        taken = self._statements(one, shape, target, {}, once=once)
        if taken is None:
            return False
        statements, results, added = taken
        kind, given = one.op.archetype, {}
        assert isinstance(kind, Chain)
        types = {n: t for n, t, _ in statements}
        for name, k in texts.items():
            _, compute = self.inputs.pop(name)
            given[name] = as_type("{" + results[k] + "}", types[results[k]], compute)
        self.kind = fed(self.kind, given, statements, added)
        if isinstance(self.kind, Row) and not once:
            return self._store_elements(one, [r for r, s in zip(results, stored, strict=True) if s], stored, shape)
        return True

    @property
    def kept(self) -> Shape:
        """The shape of what has one value a row (a result)."""
        return tuple(n for d, n in enumerate(self.shape) if d not in self.dims)

    def _by_row(self, names: Iterable[str]) -> bool:
        """Whether inputs have one value a row, and are read by their values only."""
        assert isinstance(self.kind, Row)
        others = {*self.kind.full, *self.kind.column, *(s.index for s in self.kind.stages)}
        return all(n not in others and self.inputs[n][0].layout.numel == numel(self.kept) for n in names)

    def _store_elements(self, one: Node, results: Sequence[str], stored: Sequence[bool], shape: Shape) -> bool:
        assert isinstance(self.kind, Row)
        outs = [(o, p) for o, p, s in zip(one.outputs, one.previous, stored, strict=True) if s]
        shown = self._shown([o for o, _ in outs], shape, self.shape)
        if shown is None:
            return False
        at = len(self.kind.element)
        self.kind = replace(self.kind, element=(*self.kind.element, *("{" + r + "}" for r in results)))
        self.outputs[at:at] = [(o, p) for o, (_, p) in zip(shown, outs, strict=True)]
        return True

    def after(self, k: int, one: Node, read: Operand, drop: bool) -> bool:
        """Apply a chain that reads output k through an operand, which is not stored any more if `drop`."""
        out = self.outputs[k][0]
        shape, target = one.outputs[0].layout.shape, out.layout.shape
        if numel(shape) != numel(target) or not same_place(viewed(read.layout, shape, target), out.layout):
            return False
        kind = self.kind
        of_row = isinstance(kind, Row) and k >= len(kind.element)
        once = of_row or isinstance(kind, Reduce)
        if isinstance(kind, Row):
            expr = (*kind.element, *kind.per_row)[k]
        else:
            expr = kind.results[k][1]
        value, made = self._named(expr, k, out.layout.dtype)
        names = {p.name: value for p, v in zip(one.op.params, one.args, strict=True) if isinstance(v, Operand) and v.value is read.value}
        taken = self._statements(one, shape, target, names, once=once, later=made)
        shown = self._shown(one.outputs, shape, target, once)
        if taken is None or shown is None:
            return False
        statements, results, added = taken
        news = list(zip(shown, one.previous, strict=True))
        texts = ["{" + r + "}" for r in results]
        mine = (*kind.statements, *made, *statements)
        if isinstance(kind, Reduce):
            stored = list(kind.results)
            stored[k] = (stored[k][0], value)
            stored[k : k + drop] = [(stored[k][0], t) for t in texts]
            self.kind = replace(kind, results=tuple(stored), statements=mine, once=(*kind.once, *added))
        elif of_row:
            j = k - len(kind.element)
            per_row = list(kind.per_row)
            per_row[j] = value
            per_row[j : j + drop] = texts
            self.kind = replace(kind, per_row=tuple(per_row), statements=mine)
        else:
            element = list(kind.element)
            element[k] = value
            element[k : k + drop] = texts
            self.kind = replace(kind, element=tuple(element), statements=mine, full=(*kind.full, *added))
        self.outputs[k : k + drop] = news
        return True

    def _named(self, expr: str, k: int, dtype: DType) -> tuple[str, list[Statement]]:
        """An output's expression as a name, with the statement that gives it one."""
        if expr[:1] == "{" and names_of([expr]) == {expr[1:-1]} and any(n == expr[1:-1] for n, _, _ in self.kind.statements):
            return expr, []
        type_ = dtype.value
        if isinstance(self.kind, Reduce):
            have = self.kind.type if expr == "{acc}" and self.kind.kind not in BY_VALUE else type_
            expr = as_type(expr, have, dtype)
        name = self._fresh("t", {n for n, _, _ in self.kind.statements})
        return "{" + name + "}", [(name, type_, expr)]

    def is_column_sum(self) -> bool:
        """Whether this is a sum of floats over leading dimensions."""
        kind = self.kind
        if not isinstance(kind, Reduce) or kind.kind != "sum" or kind.type != "f32" or len(self.dims) == len(self.shape):
            return False
        return self.dims == tuple(range(len(self.dims)))

    def with_sums_of(self, other: Taken) -> bool:
        """Make another column sum too. False if it is over other elements, or reads what this one writes."""
        if not other.is_column_sum():
            return False
        n = numel([self.shape[d] for d in self.dims])
        if numel(self.shape) != numel(other.shape) or n != numel([other.shape[d] for d in other.dims]):
            return False
        assert isinstance(self.kind, Reduce) and isinstance(other.kind, Reduce)
        texts: dict[str, str] = {}
        for name, (operand, compute) in other.inputs.items():
            once = name in other.kind.once
            layout = operand.layout if once else viewed(operand.layout, other.shape, self.shape)
            if layout is None or not (once or self._walkable(layout)):
                return False
            texts[name] = self._input(Operand(operand.value, layout), compute, once)
        for name, (type_, value) in other.scalars.items():
            texts[name] = self._scalar(type_, value)
        used = {n for n, _, _ in self.kind.statements}
        for name, _, _ in other.kind.statements:
            texts[name] = self._fresh("t", used)
            used.add(texts[name])
        self.kind = joined(self.kind, other.kind, texts)
        self.outputs += other.outputs
        return True

    # --- names ---

    def _statements(
        self, one: Node, shape: Shape, target: Shape, given: dict[str, str], once: bool, later: Sequence[Statement] = ()
    ) -> tuple[list[Statement], list[str], list[str]] | None:
        """A chain's statements under free names, the names of its results, and the names of the inputs added."""
        kind = one.op.archetype
        assert isinstance(kind, Chain)
        texts, before = dict(given), set(self.inputs)
        for p, v in zip(one.op.params, one.args, strict=True):
            if p.name in texts:
                continue
            if p.kind == SCALAR:
                texts[p.name] = "{" + self._scalar(p.scalar, v) + "}"
                continue
            layout = viewed(v.layout, shape, target)
            if layout is None or not (self._once(layout) if once else self._walkable(layout)):
                return None
            texts[p.name] = "{" + self._input(Operand(v.value, layout), v.layout.dtype, once) + "}"
        used = {n for n, _, _ in (*self.kind.statements, *later)}
        if len(used) + len(kind.statements) > MOST_STATEMENTS:
            return None
        out: list[Statement] = []
        for name, type_, expr in kind.statements:
            if names_of([expr]) - texts.keys():
                return None  # it numbers its elements, which another shape would number otherwise
            new = self._fresh("t", used)
            used.add(new)
            out.append((new, type_, renamed(expr, texts)))
            texts[name] = "{" + new + "}"
        return out, [texts[r][1:-1] for r in kind.results], [n for n in self.inputs if n not in before]

    def _fresh(self, stem: str, used: set[str] | dict[str, Any]) -> str:
        i = len(used)
        while f"{stem}{i}" in used:
            i += 1
        return f"{stem}{i}"

    def _input(self, operand: Operand, compute: DType, once: bool) -> str:
        """The name of an input, an equal one if there is one."""
        kind = self.kind
        for name, known in self.inputs.items():
            alike = (name in (kind.once if isinstance(kind, Reduce) else self.of_rows)) == once
            if known == (operand, compute) and alike and not (isinstance(kind, Row) and name in kind.column):
                return name
        name = self._fresh("x", self.inputs)
        self.inputs[name] = (operand, compute)
        if once:
            self.of_rows.add(name)
        return name

    def _scalar(self, type_: str, value: Any) -> str:
        for name, (have, known) in self.scalars.items():
            if have == type_ and same_number(known, value):
                return name
        name = self._fresh("s", self.scalars)
        self.scalars[name] = (type_, value)
        return name

    # --- layouts ---

    def _shown(self, outs: Sequence[Operand], shape: Shape, target: Shape, once: bool = False) -> list[Operand] | None:
        """Outputs of a chain in the shape of what they join: elements, or one value a row (a result) where `once`."""
        out = []
        for o in outs:
            layout = viewed(o.layout, shape, target)
            good = layout is not None and (layout.contiguous if once else self._walkable(layout))
            if layout is None or not good:
                return None
            out.append(Operand(o.value, layout))
        return out

    @staticmethod
    def _once(layout: Layout) -> bool:
        return layout.numel == 1 or stride_over(layout.shape, layout.strides) is not None

    def _walkable(self, layout: Layout) -> bool:
        """Whether an elementwise operand is read as well as the one that is there: by vectors where that one is, or as one
        element where it is broadcast; and not in short runs."""
        base = self.base
        for d, n in enumerate(self.shape):
            if n == 1 or base.strides[d] != 1 or layout.strides[d] == 0:
                continue
            if layout.strides[d] != 1:
                return False
            if n % 4 == 0 and (layout.offset % 4 or any(s % 4 for e, s in enumerate(layout.strides) if e != d and self.shape[e] != 1)):
                return False
        inside, strides = [self.shape[d] for d in self.dims], [layout.strides[d] for d in self.dims]
        if stride_over(inside, strides) is not None:
            return True
        if isinstance(self.kind, Row) and all(layout.strides[d] == base.strides[d] for d in self.dims if self.shape[d] != 1):
            return True  # in the same runs
        if isinstance(self.kind, Reduce):
            return self.shape[-1] >= WIDE
        found = grouped(inside, strides)
        return found is not None and (found[1] % 4 == 0 or numel(inside) % 4 != 0)

    # --- putting together ---

    def node(self, parts: Sequence[Node], profile: Profile) -> Node | None:
        """The fused node, if the device can run it."""
        kind = self.kind
        if isinstance(kind, Row) and (not kind.full or self.inputs[kind.full[0]][0].layout.shape != self.shape):
            return None
        if not any(self.inputs[n][0].layout.shape == self.shape for n in self._walked()):
            return None
        reports = isinstance(kind, Row) and any(s.kind == "pick" for s in kind.stages)
        if len(self.inputs) + len(self.outputs) + reports > profile.max_storage_buffers or len(self.scalars) > MOST_SCALARS:
            return None
        operands = [o for o, _ in (*self.inputs.values(), *self.outputs)]
        if any(o.value.cell.nbytes > profile.max_binding for o in operands) or not self._separate(reports):
            return None
        op = fused_op(self.first.op, kind, list(self.inputs), [(n, t) for n, (t, _) in self.scalars.items()])
        node = Node(op, [*(o for o, _ in self.inputs.values()), *(v for _, v in self.scalars.values())], together([n.place for n in parts]))
        specs = tuple(Spec(o.layout.dtype, o.layout.shape) for o, _ in self.outputs)
        node.inferred = Inferred(specs, tuple(c for _, c in self.inputs.values()), {**self.first.inferred.attrs, "dim": self.dims})
        node.outputs = tuple(o for o, _ in self.outputs)
        node.previous = tuple(p for _, p in self.outputs)
        node.region = self.first.region
        node.parts = tuple(p for n in parts for p in n.parts)
        return node

    def _separate(self, reports: bool) -> bool:
        """Whether every cell written is written once, and read by the invocation that writes it only."""
        kind = self.kind
        written = {o.value.cell: o.layout for o, _ in self.outputs}
        made = {o.value for o, _ in self.outputs}
        if len(written) < len(self.outputs) or any(o.value in made for o, _ in self.inputs.values()):
            return False
        for name, (operand, _) in self.inputs.items():
            layout = written.get(operand.value.cell)
            if layout is None:
                continue
            alike = name in kind.once if isinstance(kind, Reduce) else name in kind.full
            if not alike or reports or not same_place(operand.layout, layout):
                return False
        return True
