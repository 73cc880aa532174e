"""A rewrite rule: a pair of traced functions, found in graphs by its left side and replaced by its right.

In: a function of tensors and attributes that returns both sides. Out: `Rule.matches(node, ...)`, which yields the nodes
that compute the left side with the traced right side to put in their place. Views are layouts of operands, so a pattern
cannot say by itself what shapes and strides it is about; matching therefore has two halves:
1. a loose match, backwards from the result, by op, argument place and commutativity, which binds tensors and attributes;
2. a proof: both sides are traced anew on what was bound, with its real shapes, strides and dtypes, and the left side must
   come out node by node as what the graph holds. The right side of that trace is what replaces it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, overload

import numpy as np

from .. import dispatch
from ..dispatch import HostScalar
from ..dtype import DType, float16, float32, int32
from ..errors import MeganeuraError
from ..ops.archetype import Reduce
from ..ops.table import ATTR, LIST, OPTIONAL, SCALAR, Op
from ..provenance import site
from ..shape import Shape
from ..storage import Layout
from ..tensor import Tensor
from .ir import Node, Operand, Value
from .trace import Trace

# What keyword-only parameters of a rule stand for: one dimension, several, a number, a dtype.
AXIS, AXES, NUMBER, DTYPE = "Axis", "Axes", "Number", "Dtype"
Axis = int
Axes = tuple[int, ...]
Number = Any
Dtype = DType

SHAPES: tuple[Shape, Shape] = ((2, 3, 5), (3, 2, 7, 4))  # what patterns are traced on; a pattern may depend on neither
# Values of the attributes for the two traces, for the first, second... attribute of a kind.
_DRAWN: dict[str, tuple[tuple[Any, Any], ...]] = {
    AXIS: ((-1, -2), (-2, -1)),
    AXES: (((-1,), (-2, -1)),),
    NUMBER: ((0.7310009, 0.2690017), (0.6180013, 0.3820021), (0.5770003, 0.4230031)),
    DTYPE: ((float16, float32), (int32, float16)),
}


Guard = Callable[..., bool]
Shapes = Mapping[str, Callable[..., Shape]]


class Leaf(NamedTuple):
    """A tensor of the rule. `whole`: the pattern reads it as it is given, not through a view."""

    name: str
    whole: bool


class Inner(NamedTuple):
    """The k-th output of the i-th node of the pattern."""

    node: int
    output: int


class Variable(NamedTuple):
    """An attribute of the rule."""

    name: str


class _Free:
    """An argument that depends on shapes: compared by the proof only."""


class PatternNode(NamedTuple):
    """One op of the left side. `args`: a Leaf, Inner, tuple of them, Variable, number, None or FREE for each parameter."""

    op: Op
    args: tuple[Any, ...]


FREE = _Free()


class Match(NamedTuple):
    """A place where a rule holds. `nodes`: the graph's nodes of the left side, in the pattern's order; `old` and `new`:
    the results of both sides, `old` over the graph's values, `new` over the graph's and those that `added` make."""

    rule: Rule
    nodes: list[Node]
    old: list[Operand]
    new: list[Operand]
    added: list[Node]


class Bound:
    """What a loose match found so far."""

    __slots__ = ("leaves", "nodes", "variables")

    def __init__(self, leaves: dict[str, Operand], variables: dict[str, Any], nodes: dict[int, Node]) -> None:
        self.leaves, self.variables, self.nodes = leaves, variables, nodes

    def copy(self) -> Bound:
        return Bound(dict(self.leaves), dict(self.variables), dict(self.nodes))


class Rule:
    """A named pair of sides.

    `fn(*tensors, **attributes)` returns (left, right): tensors, or tuples of as many. `guard`, of the same arguments, says
    where it holds. `shapes`: for a tensor whose shape is not that of the first, a function from the first one's shape and
    the attributes; `dtypes`: of those that are not of floating point. `exact`: both sides have the same values, NaN and
    infinities included; otherwise they differ by rounding.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        guard: Guard | None = None,
        shapes: Shapes | None = None,
        exact: bool = False,
        name: str = "",
        dtypes: Mapping[str, DType] | None = None,
    ) -> None:
        self.fn, self.guard, self.shapes, self.exact = fn, guard, dict(shapes or {}), exact
        self.dtypes = dict(dtypes or {})
        self.name = name or fn.__name__
        parameters = inspect.signature(fn).parameters.values()
        self.tensors = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
        self.attributes = {p.name: str(p.annotation) for p in parameters if p.kind is p.KEYWORD_ONLY}

    def __repr__(self) -> str:
        return f"<rule {self.name}>"

    @functools.cached_property
    def _traced(self) -> tuple[list[PatternNode], int]:
        return self._pattern()

    @property
    def pattern(self) -> list[PatternNode]:
        """The ops of the left side, in order."""
        return self._traced[0]

    @property
    def root(self) -> int:
        """The number of the pattern's node that makes the last result of the left side."""
        return self._traced[1]

    @property
    def op(self) -> Op:
        """The op that makes the last result of the left side."""
        return self.pattern[self.root].op

    # ---- the pattern ----

    def drawn(self, k: int) -> dict[str, Any]:
        """The k-th sample of the attributes."""
        rows = {kind: iter(rows) for kind, rows in _DRAWN.items()}
        return {name: next(rows[kind])[k] for name, kind in self.attributes.items()}

    def sample(self, shape: Shape, attributes: Mapping[str, Any]) -> dict[str, Shape]:
        """Shapes of the tensors when the first one's is given."""
        return {n: self.shapes[n](shape, **attributes) if n in self.shapes else shape for n in self.tensors}

    def trace(self, leaves: Mapping[str, Operand], attributes: Mapping[str, Any]) -> Traced | None:
        """Both sides on tensors with these layouts; tensors of one value share memory. None where the guard refuses."""
        return Traced.of(self, leaves, attributes)

    def _pattern(self) -> tuple[list[PatternNode], int]:
        samples: list[tuple[Traced, dict[str, Any]]] = []
        for k, shape in enumerate(SHAPES):
            attributes = self.drawn(k)
            sizes = self.sample(shape, attributes)
            leaves = {n: Operand(Value(None), Layout(self.dtypes.get(n, float32), s)) for n, s in sizes.items()}  # type: ignore[arg-type]
            traced = Traced.of(self, leaves, attributes, guarded=False)
            assert traced is not None
            samples.append((traced, attributes))
        (a, given_a), (b, given_b) = samples
        if [n.op for n in a.left] != [n.op for n in b.left]:
            raise TypeError(f"rule {self.name}: its left side depends on the shapes: {a.left} or {b.left}")
        numbers = {n: i for i, n in enumerate(a.left)}
        nodes = []
        for x, y in zip(a.left, b.left, strict=True):
            args = []
            for p, u, v in zip(x.op.params, x.args, y.args, strict=True):
                if p.kind == ATTR:
                    args.append(self._attribute(x, y, p.name, given_a, given_b))
                else:
                    args.append(self._argument(u, v, a, numbers, given_a, given_b))
            nodes.append(PatternNode(x.op, tuple(args)))
        root = max(numbers[a.makers[o.value]] for o in a.old)
        self._check(nodes, root, a, numbers)
        return nodes, root

    def _argument(self, u: Any, v: Any, a: Traced, numbers: Mapping[Node, int], given_a: Any, given_b: Any) -> Any:
        if isinstance(u, Operand):
            maker = a.makers.get(u.value)
            if maker is not None:
                return Inner(numbers[maker], [o.value for o in maker.outputs].index(u.value))
            name, layout = next((n, o.layout) for n, o in a.leaves.items() if o.value is u.value)
            return Leaf(name, layout is u.layout)
        if isinstance(u, tuple):
            return tuple(self._argument(x, y, a, numbers, given_a, given_b) for x, y in zip(u, v, strict=True))
        if isinstance(u, float):
            for name, kind in self.attributes.items():
                if kind == NUMBER and u == given_a[name] and v == given_b[name]:
                    return Variable(name)
        return u if u is None or same_number(u, v, True) else FREE

    def _attribute(self, x: Node, y: Node, name: str, given_a: Any, given_b: Any) -> Any:
        u, v = x.inferred.attrs.get(name), y.inferred.attrs.get(name)
        for variable, kind in self.attributes.items():
            if kind == NUMBER:
                continue
            if _attribute(kind, u, x) == given_a[variable] and _attribute(kind, v, y) == given_b[variable]:
                return Variable(variable)
        return FREE

    def _check(self, nodes: list[PatternNode], root: int, a: Traced, numbers: Mapping[Node, int]) -> None:
        reached: set[int] = set()
        found: set[str] = set()
        todo = [root]
        while todo:
            i = todo.pop()
            if i in reached:
                continue
            reached.add(i)
            for arg in nodes[i].args:
                for v in arg if type(arg) is tuple else (arg,):
                    if isinstance(v, Inner):
                        todo.append(v.node)
                    elif isinstance(v, Leaf) and v.whole or isinstance(v, Variable):
                        found.add(v.name)
        if missing := {*self.tensors, *self.attributes} - found:
            raise TypeError(f"rule {self.name}: {sorted(missing)} cannot be told from the left side")
        if len(reached) < len(nodes):
            raise TypeError(f"rule {self.name}: some results are not needed for the last one")
        if any(n.op.random or n.op.mutates for n in nodes) or any(n.in_place for n in numbers):
            raise TypeError(f"rule {self.name}: random ops and ops that change tensors have no place in rules")

    # ---- matching ----

    def matches(self, node: Node, maker: Callable[[Value], Node | None]) -> Iterator[Match]:
        """The ways in which a node is the last of the left side. `maker` gives the node of a value, None if it may not be looked into."""
        for bound in self._match(self.root, node, Bound({}, {}, {}), maker):
            found = self._prove(bound)
            if found is not None:
                yield found

    def _match(self, i: int, node: Node, bound: Bound, maker: Callable[[Value], Node | None]) -> Iterator[Bound]:
        known = bound.nodes.get(i)
        if known is not None:
            if known is node:
                yield bound
            return
        wanted = self.pattern[i]
        if node.op is not wanted.op or len(node.parts) > 1:
            return
        orders = [wanted.args]
        if wanted.op.commutes and wanted.args[0] != wanted.args[1]:
            orders.append((wanted.args[1], wanted.args[0], *wanted.args[2:]))
        for args in orders:
            if self._plausible(args, node, maker):
                b = bound.copy()
                b.nodes[i] = node
                yield from self._match_args(wanted, args, node, 0, b, maker)

    def _plausible(self, args: Sequence[Any], node: Node, maker: Callable[[Value], Node | None]) -> bool:
        """A quick look at a node's arguments, which is enough nearly everywhere."""
        for arg, have in zip(args, node.args, strict=True):
            if isinstance(arg, Inner):
                made = maker(have.value) if isinstance(have, Operand) else None
                if made is None or made.op is not self.pattern[arg.node].op:
                    return False
            elif isinstance(arg, Leaf):
                if not isinstance(have, Operand):
                    return False
            elif arg.__class__ in (int, float) and isinstance(have, Operand):
                return False
        return True

    def _match_args(
        self, wanted: PatternNode, args: Sequence[Any], node: Node, at: int, bound: Bound, maker: Callable[[Value], Node | None]
    ) -> Iterator[Bound]:
        if at == len(args):
            yield bound
            return
        p = wanted.op.params[at]
        for b in self._match_one(args[at], node.args[at], node, p.name if p.kind == ATTR else "", bound, maker):
            yield from self._match_args(wanted, args, node, at + 1, b, maker)

    def _match_one(
        self, arg: Any, have: Any, node: Node, attr: str, bound: Bound, maker: Callable[[Value], Node | None]
    ) -> Iterator[Bound]:
        if arg is FREE:
            yield bound
        elif isinstance(arg, Variable):
            yield from self._bind_variable(arg.name, node.inferred.attrs.get(attr) if attr else have, node, bound)
        elif isinstance(arg, Leaf):
            if isinstance(have, Operand):
                yield from self._bind_leaf(arg, have, bound)
        elif isinstance(arg, Inner):
            if isinstance(have, Operand):
                made = maker(have.value)
                if made is not None and made.outputs[arg.output if arg.output < len(made.outputs) else 0].value is have.value:
                    yield from self._match(arg.node, made, bound, maker)
        elif type(arg) is tuple:
            if type(have) is tuple and len(have) == len(arg):
                yield from self._match_list(arg, have, node, 0, bound, maker)
        elif arg is None:
            if have is None:
                yield bound
        elif not isinstance(have, Operand) and have is not None and same_number(arg, have, True):
            yield bound

    def _match_list(
        self, args: tuple[Any, ...], have: tuple[Any, ...], node: Node, at: int, bound: Bound, maker: Callable[[Value], Node | None]
    ) -> Iterator[Bound]:
        if at == len(args):
            yield bound
            return
        for b in self._match_one(args[at], have[at], node, "", bound, maker):
            yield from self._match_list(args, have, node, at + 1, b, maker)

    def _bind_leaf(self, leaf: Leaf, have: Operand, bound: Bound) -> Iterator[Bound]:
        known = bound.leaves.get(leaf.name)
        if known is not None:
            if known.value is have.value and (not leaf.whole or same_place(known.layout, have.layout)):
                yield bound
        elif leaf.whole:
            bound = bound.copy()
            bound.leaves[leaf.name] = have
            yield bound
        else:
            yield bound  # read through a view: bound where it is read as it is; the proof compares the views

    def _bind_variable(self, name: str, have: Any, node: Node, bound: Bound) -> Iterator[Bound]:
        kind = self.attributes[name]
        value = have if kind == NUMBER else _attribute(kind, have, node)
        if value is None or isinstance(value, Operand):
            return
        known = bound.variables.get(name)
        if known is None:
            bound = bound.copy()
            bound.variables[name] = value
            yield bound
        elif same_number(known, value, True) if kind == NUMBER else known == value:
            yield bound

    # ---- the proof ----

    def _prove(self, bound: Bound) -> Match | None:
        if len(bound.leaves) < len(self.tensors) or len(bound.variables) < len(self.attributes):
            return None
        try:
            traced = self.trace(bound.leaves, bound.variables)
        except (MeganeuraError, TypeError, ValueError):
            return None  # the pair makes no sense on these shapes, dtypes or attributes
        if traced is None or len(traced.left) != len(self.pattern):
            return None
        values: dict[Value, Value] = {o.value: bound.leaves[n].value for n, o in traced.leaves.items()}
        nodes = [bound.nodes[i] for i in range(len(self.pattern))]
        for made, node in zip(traced.left, nodes, strict=True):
            if not same_node(made, node, values):
                return None
            values.update((a.value, b.value) for a, b in zip(made.outputs, node.outputs, strict=True))
        for a, b in zip(traced.old, traced.new, strict=True):
            if a.layout.shape != b.layout.shape or a.layout.dtype is not b.layout.dtype or not covers(a):
                return None
        for node in traced.right:
            node.replace(values)
        old = [Operand(values[o.value], o.layout) for o in traced.old]
        new = [Operand(values.get(o.value, o.value), o.layout) for o in traced.new]
        return Match(self, nodes, old, new, traced.right)


class Traced:
    """Both sides of a rule on certain operands. `left`, `right`: nodes that only the one side, or only the right one,
    needs, in order; `makers`: nodes by value."""

    def __init__(self, leaves: dict[str, Operand], nodes: Sequence[Node], old: list[Operand], new: list[Operand]) -> None:
        self.leaves, self.old, self.new = leaves, old, new
        self.makers = {o.value: n for n in nodes for o in n.outputs}
        left = self._ancestors(old)
        right = self._ancestors(new) - left
        self.left, self.right = [n for n in nodes if n in left], [n for n in nodes if n in right]

    def _ancestors(self, operands: Sequence[Operand]) -> set[Node]:
        found: set[Node] = set()
        todo = [self.makers.get(o.value) for o in operands]
        while todo:
            node = todo.pop()
            if node is not None and node not in found:
                found.add(node)
                todo.extend(self.makers.get(o.value) for o in node.reads())
        return found

    @staticmethod
    def of(rule: Rule, leaves: Mapping[str, Operand], attributes: Mapping[str, Any], guarded: bool = True) -> Traced | None:
        """Trace a rule."""
        trace = Trace()
        made: dict[Value, Any] = {}
        tensors: dict[str, Tensor] = {}
        for name in rule.tensors:
            value, layout = leaves[name]
            if value not in made:
                elements = value.cell.elements if value.cell is not None else layout.numel
                made[value] = trace.new_storage(trace.numbers.cell(layout.dtype, elements, "input", name), name, site())
            tensors[name] = Tensor._make(made[value], layout)
        with dispatch.use(trace), dispatch.no_grad():
            if guarded and rule.guard is not None and not rule.guard(*tensors.values(), **attributes):
                return None
            sides = rule.fn(*tensors.values(), **attributes)
        old, new = ([trace.operand(t) for t in (s if isinstance(s, tuple) else (s,))] for s in sides)
        return Traced({n: trace.operand(t) for n, t in tensors.items()}, trace.nodes, old, new)


def covers(operand: Operand) -> bool:
    """Whether an operand is all of its cell, row-major."""
    layout = operand.layout
    return layout.contiguous and layout.offset == 0 and layout.numel == operand.value.cell.elements


def same_place(a: Layout, b: Layout) -> bool:
    """Whether two layouts show the same elements in one order; the stride of a dimension of size 1 says nothing."""
    if a is b:
        return True
    if a.dtype is not b.dtype or a.shape != b.shape or a.offset != b.offset:
        return False
    return all(n == 1 or s == t for n, s, t in zip(a.shape, a.strides, b.strides, strict=True))


def same_number(a: Any, b: Any, real: bool) -> bool:
    """Whether two Python numbers are one to a kernel. `real`: it may compute in float32."""
    if isinstance(a, HostScalar) or isinstance(b, HostScalar):
        return a is b
    if not isinstance(a, (int, float, np.number)) or not isinstance(b, (int, float, np.number)):
        return bool(a == b)
    if real and (isinstance(a, (float, np.floating)) or isinstance(b, (float, np.floating))):
        with np.errstate(over="ignore"):
            return np.float32(a).tobytes() == np.float32(b).tobytes()
    return bool(a == b)


def same_node(made: Node, node: Node, values: Mapping[Value, Value]) -> bool:
    """Whether a node of the graph is what the proof traced. `values`: traced values as those of the graph."""
    if made.op is not node.op or made.inferred.compute != node.inferred.compute:
        return False
    if any(a.layout.dtype is not b.layout.dtype or a.layout.numel != b.layout.numel for a, b in zip(made.outputs, node.outputs)):
        return False
    if made.op.commutes and not _same_args(made, made.args, node, values):
        first, second, *rest = made.args
        return _same_args(made, (second, first, *rest), node, values)
    return made.op.commutes or _same_args(made, made.args, node, values)


def _same_args(made: Node, args: Sequence[Any], node: Node, values: Mapping[Value, Value]) -> bool:
    real = any(d.is_floating_point for d in made.inferred.compute)
    for p, u, v in zip(made.op.params, args, node.args, strict=True):
        if p.kind == ATTR:
            if not (p.name == "keepdim" and isinstance(made.op.archetype, Reduce)):  # layouts tell how a result is read
                if _canonical(made, p.name) != _canonical(node, p.name):
                    return False
        elif p.kind == LIST:
            if len(u) != len(v) or not all(_same_operand(x, y, values) for x, y in zip(u, v, strict=True)):
                return False
        elif isinstance(u, Operand) or isinstance(v, Operand):
            if not _same_operand(u, v, values):
                return False
        elif u is None or v is None:
            if u is not v or p.kind not in (OPTIONAL, SCALAR):
                return False
        elif not same_number(u, v, real or p.kind == SCALAR):
            return False
    return True


def _same_operand(a: Any, b: Any, values: Mapping[Value, Value]) -> bool:
    if not isinstance(a, Operand) or not isinstance(b, Operand):
        return False
    return values.get(a.value) is b.value and same_place(a.layout, b.layout)


def _canonical(node: Node, name: str) -> Any:
    """An attribute as the row's rule left it; single dimensions counted from the start."""
    value = node.inferred.attrs.get(name)
    if name == "dim" and type(value) is int:
        return value % max(_rank(node), 1)
    return value


def _rank(node: Node) -> int:
    """Dimensions of a node's first operand."""
    first = next(iter(node.reads()), None)
    return 0 if first is None else len(first.layout.shape)


def _attribute(kind: str, value: Any, node: Node) -> Any:
    """A node's canonical attribute as a rule's attribute of a kind: dimensions counted from the end. None if it is none."""
    if kind == DTYPE:
        return value if isinstance(value, DType) else None
    rank = _rank(node)
    dims = (value,) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(dims, tuple) or not dims or not all(isinstance(d, int) for d in dims):
        return None
    negative = tuple(d - rank if d >= 0 else d for d in dims)
    if kind == AXES:
        return negative
    return negative[0] if len(negative) == 1 else None


@overload
def rule(fn: Callable[..., Any]) -> Rule: ...
@overload
def rule(*, guard: Guard | None = None, shapes: Shapes | None = None, exact: bool = False) -> Callable[[Callable[..., Any]], Rule]: ...
def rule(fn: Callable[..., Any] | None = None, *, guard: Guard | None = None, shapes: Shapes | None = None, exact: bool = False) -> Any:
    """Make a Rule of a function that returns its two sides (see Rule)."""
    return (lambda f: Rule(f, guard, shapes, exact)) if fn is None else Rule(fn, guard, shapes, exact)
