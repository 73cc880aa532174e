"""A window as an e-graph: terms for values, operands and ops, grown by matches of rules that were proved.

The language has three sorts. V is what a value holds, flat: `(Given k)` names value k and is united with `(Result n i)`,
output i of an application n, which is of sort N: an op of the table on operands, attributes and its checkpoint region. O is an
operand: `(At v layout)`, `(Number exact single)` or `(Nothing)`. Layouts, attributes and numbers are numbered things.

Egglog swaps operands of ops that commute and finds where the left side of a rule may be, by op and argument place. Whether it is
there depends on shapes and strides: each place found is traced as greedy rewriting does, the trace's left side looked up among the
terms, and only then its right side united with it. So all equalities in the e-graph are proved.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any, NamedTuple

import numpy as np

from ...dispatch import HostScalar
from ...dtype import DType
from ...errors import MeganeuraError
from ...ops.archetype import Reduce
from ...ops.table import ATTR, LIST, SCALAR, Op
from ...storage import Layout
from ..ir import Cell, Node, Operand, Value
from ..rule import AXES, AXIS, DTYPE, FREE, NUMBER, Inner, Leaf, Rule, Traced, Variable, _attribute, covers, same_place
from .windows import Window

ROUNDS = 12  # of matching; what a round adds may match in the next
BATCH = 150  # facts that egglog takes at once: every command has it look through all tables
GROWTH = 4  # times a window's applications may become of it

At = tuple[int, int]  # value number, layout number


class Applied(NamedTuple):
    """An application that the e-graph holds. `outputs`: value numbers. `original`: it stands in the window."""

    node: Node
    outputs: tuple[int, ...]
    original: bool


class Rewrite(NamedTuple):
    """A proved match. `left`, `added`: applications by number, in the rule's order. `old`: value numbers of the results. `new`:
    value numbers too, with the operands that now read the same for results that were there already. `pure`: all it adds is elementwise."""

    rule: Rule
    left: tuple[int, ...]
    added: tuple[int, ...]
    old: tuple[int, ...]
    new: tuple[int, ...]
    moved: tuple[tuple[At, At], ...]
    pure: bool


class Saturation:
    """The e-graph of a window, grown until no rule adds anything or a limit is met (`complete` tells)."""

    def __init__(self, window: Window, rules: Sequence[Rule], deadline: float) -> None:
        from egglog.bindings import EGraph

        self.window, self.rules, self.deadline = window, rules, deadline
        self.values: list[Value] = list(window.values)
        self.applied: list[Applied] = []
        self.numbers_of: list[dict[Value, int]] = []  # value numbers of what each application reads
        self.rewrites: list[Rewrite] = []
        self.things: list[Any] = []
        self.complete = False
        self._ids: dict[Any, int] = {}
        self._ops: dict[str, tuple[Op, tuple[str, ...]]] = {}  # by name of the constructor: row and sorts of the arguments
        self._by_op: dict[Op, set[str]] = defaultdict(set)
        self._declared: dict[int, str] = {}  # rules by number: name of the relation of their matches
        self._known: dict[Any, int] = {}
        self._seen: set[Any] = set()
        self._text: list[str] = [_LANGUAGE]
        self._facts: list[str] = []
        self._batches = 0
        self._egraph: Any = EGraph()
        for node, outputs in window.open:
            self._apply(node, node.region, window.numbers.__getitem__, outputs)
        self._ats = [(k, self._layout(layout)) for k, layout in window.reads]
        self._facts += [f"(At (Given {k}) {n})" for k, n in self._ats]
        self.classes = self._grow()

    # ---- numbered things ----

    def _id(self, key: Any, thing: Any) -> int:
        found = self._ids.setdefault(key, len(self.things))
        if found == len(self.things):
            self.things.append(thing)
        return found

    def _layout(self, layout: Layout) -> int:
        """A layout's number; the stride of a dimension of size 1 says nothing."""
        strides = tuple(0 if n == 1 else s for n, s in zip(layout.shape, layout.strides, strict=True))
        return self._id(("layout", layout.dtype.name, layout.shape, strides, layout.offset), layout)

    def _number(self, v: Any, real: bool) -> tuple[int, int]:
        """A Python number as what a kernel makes of it, and as a float32."""
        if isinstance(v, HostScalar):
            k = self._id(("host", id(v)), v)
            return k, k
        if not isinstance(v, (int, float, np.number)):
            k = self._id(("other", repr(v)), v)
            return k, k
        with np.errstate(over="ignore"):
            single = self._id(("single", np.float32(v).tobytes()), v)
        return (single if real else self._id(("exact", v), v)), single

    def _attribute(self, node: Node, name: str) -> int:
        value = node.inferred.attrs.get(name)
        if name == "keepdim" and isinstance(node.op.archetype, Reduce):
            return self._id("keepdim", None)  # layouts tell how a result is read
        dims = _attribute(AXES, value, node)
        if dims is not None:
            return self._id(("dims", dims), dims)
        return self._id(("attribute", value if isinstance(value, DType) else repr(value)), value)

    # ---- terms ----

    def _items(self, node: Node) -> Iterator[Any]:
        """A node's arguments: (value, layout number), (exact, single) of a number as a list, None, or an attribute's number."""
        real = any(d.is_floating_point for d in node.inferred.compute)
        for p, v in zip(node.op.params, node.args, strict=True):
            if p.kind == ATTR:
                yield self._attribute(node, p.name)
            elif p.kind == LIST:
                yield from ((x.value, self._layout(x.layout)) for x in v)
            elif isinstance(v, Operand):
                yield v.value, self._layout(v.layout)
            elif v is None:
                yield None
            else:
                yield [*self._number(v, real or p.kind == SCALAR)]

    def _constructor(self, op: Op, sorts: tuple[str, ...]) -> str:
        name = f"op_{op.name}_{len(sorts)}"
        if name not in self._ops:
            self._ops[name] = op, sorts
            self._by_op[op].add(name)
            self._text.append(f"(constructor {name} (i64 {' '.join(sorts)}) N)")
            if op.commutes:
                rest = " ".join(f"x{i}" for i in range(2, len(sorts)))
                self._text.append(f"(rewrite ({name} r a b {rest}) ({name} r b a {rest}) :ruleset swap)")
        return name

    def _apply(self, node: Node, region: int, number: Callable[[Value], int], outputs: Sequence[int] = ()) -> int:
        """Add an application to the e-graph, unless it was added before. Returns its number."""
        items = list(self._items(node))
        texts = [_text(i, number) for i in items]
        name = self._constructor(node.op, tuple("i64" if isinstance(i, int) else "O" for i in items))
        key = name, region, *texts
        k = self._known.get(key)
        if k is not None and not outputs:
            return k
        k = len(self.applied)
        self._known.setdefault(key, k)
        if not outputs:
            outputs = range(len(self.values), len(self.values) + len(node.outputs))
            self.values += [Value(Cell(-1, o.layout.dtype, o.value.cell.elements, "value")) for o in node.outputs]
        self.numbers_of.append({o.value: number(o.value) for o in node.reads()})
        self.applied.append(Applied(node, tuple(outputs), k < len(self.window.open)))
        self._facts.append(f"(union (Node {k}) ({name} {region} {' '.join(texts)}))")
        self._facts += [f"(union (Given {v}) (Result (Node {k}) {i}))" for i, v in enumerate(outputs)]
        return k

    # ---- rules ----

    def _declare(self) -> None:
        """Give egglog the patterns of all rules whose ops are there by now."""
        for k, rule in enumerate(self.rules):
            if k in self._declared or not all(self._by_op.get(n.op) for n in rule.pattern):
                continue
            facts = _Facts(rule, self._by_op, lambda v: self._number(v, True)[1]).lines
            if facts is None:
                continue
            columns = [f"o_{n}" for n in rule.tensors] + [f"a_{n}" for n in rule.attributes] + [f"n{i}" for i in range(len(rule.pattern))]
            sorts = ["O"] * len(rule.tensors) + ["i64"] * len(rule.attributes) + ["N"] * len(rule.pattern)
            self._declared[k] = f"match_{k}"
            self._text.append(f"(relation match_{k} (i64 {' '.join(sorts)}))")
            self._text.append(f"(rule ({' '.join(facts)}) ((match_{k} r{rule.root} {' '.join(columns)})) :ruleset find)")

    def _grow(self) -> Classes:
        limit = GROWTH * len(self.applied) + 64
        for _ in range(ROUNDS):
            self._declare()
            classes = self._run()
            before = len(self.rewrites)
            for k, relation in self._declared.items():
                for row in classes.rows(relation, self.rules[k]):
                    if len(self.applied) > limit or monotonic() > self.deadline:
                        return self._run()
                    self._match(k, row, classes)
            if len(self.rewrites) == before:
                self.complete = True
                return classes
        return self._run()

    def _run(self) -> Classes:
        """Run what is to be run once, and read the e-graph."""
        for k in range(0, len(self._facts), BATCH):
            facts, name = " ".join(self._facts[k : k + BATCH]), f"batch{self._batches}"
            self._text.append(f"(ruleset {name}) (rule () ({facts}) :ruleset {name}) (run {name} 1)")
            self._batches += 1
        program = "\n".join([*self._text, "(run-schedule (saturate (run swap)) (run find))"])
        self._text, self._facts = [], []
        self._egraph.run_program(*self._egraph.parse_program(program))
        return Classes(self._egraph, self._ops)

    # ---- proofs ----

    def _match(self, number: int, row: tuple[Any, ...], classes: Classes) -> None:
        key = number, *row
        if key in self._seen:
            return
        self._seen.add(key)
        rule = self.rules[number]
        region, t, a = row[0], len(rule.tensors), len(rule.attributes)
        if not all(o in classes.places for o in row[1 : 1 + t]):
            return  # a number where the rule has a tensor
        places = [classes.places[o][0] for o in row[1 : 1 + t]]
        leaves = {n: Operand(self.values[v], self.things[layout]) for n, (v, layout) in zip(rule.tensors, places, strict=True)}
        attributes = {n: _bound(rule.attributes[n], self.things[k]) for n, k in zip(rule.attributes, row[1 + t : 1 + t + a], strict=True)}
        if any(v is None for v in attributes.values()):
            return
        try:
            traced = rule.trace(leaves, attributes)
        except (MeganeuraError, TypeError, ValueError):
            return  # the pair makes no sense on these shapes, dtypes or attributes
        if traced is not None:
            numbers = {traced.leaves[n].value: v for n, (v, _) in zip(rule.tensors, places, strict=True)}
            self._add(rule, traced, region, row[1 + t + a :], numbers, classes)

    def _add(self, rule: Rule, traced: Traced, region: int, nodes: Sequence[Any], numbers: dict[Value, int], classes: Classes) -> None:
        """Unite both sides, if the traced left side is what egglog found."""
        if len(traced.left) != len(nodes):
            return
        for made, node in zip(traced.left, nodes, strict=True):
            if self._find(made, region, numbers, classes) != node:
                return
            for i, o in enumerate(made.outputs):
                numbers[o.value] = classes.values[classes.results[node, i]][0]
        for a, b in zip(traced.old, traced.new, strict=True):
            if a.layout.shape != b.layout.shape or a.layout.dtype is not b.layout.dtype or not covers(a):
                return
        made_new = {o.value for n in traced.right for o in n.outputs}
        if any(b.value in made_new and not covers(b) for b in traced.new):
            return
        added = []
        for node in traced.right:
            k = self._apply(node, region, numbers.__getitem__)
            added.append(k)
            numbers.update((o.value, v) for o, v in zip(node.outputs, self.applied[k].outputs, strict=True))
        moved = self._unite(traced, numbers, classes)
        found = Rewrite(
            rule,
            tuple(classes.applied[n][0] for n in nodes),
            tuple(added),
            tuple(numbers[o.value] for o in traced.old),
            tuple(numbers[o.value] for o in traced.new),
            moved,
            all(n.op.archetype.fusable for n in traced.right),
        )
        if found not in self.rewrites[-64:]:
            self.rewrites.append(found)

    def _find(self, node: Node, region: int, numbers: Mapping[Value, int], classes: Classes) -> Any:
        """The application that a traced node is, by the classes of its arguments; None if it is not there."""
        key: list[Any] = [region]
        sorts = []
        for item in self._items(node):
            if isinstance(item, tuple):
                value = numbers.get(item[0])
                key.append(None if value is None else classes.at.get((classes.given[value], item[1])))
            elif isinstance(item, list):
                key.append(classes.numbers.get(tuple(item)))
            else:
                key.append(classes.nothing if item is None else item)
            sorts.append("i64" if isinstance(item, int) else "O")
        return classes.nodes.get((f"op_{node.op.name}_{len(sorts)}", *key))

    def _unite(self, traced: Traced, numbers: Mapping[Value, int], classes: Classes) -> tuple[tuple[At, At], ...]:
        """Make old and new results equal. Returns which operands may read which others, where a result is a view of what is there."""
        moved = []
        for a, b in zip(traced.old, traced.new, strict=True):
            old, new = numbers[a.value], numbers[b.value]
            if covers(b):
                self._facts.append(f"(union (Given {old}) (Given {new}))")
                continue
            for layout in classes.layouts[classes.given[old]]:
                seen = self.things[layout]
                if same_place(seen, a.layout):
                    target = self._layout(b.layout)
                elif b.layout.contiguous:
                    target = self._layout(Layout(seen.dtype, seen.shape, seen.strides, seen.offset + b.layout.offset))
                else:
                    continue
                self._facts.append(f"(union (At (Given {old}) {layout}) (At (Given {new}) {target}))")
                moved.append(((old, layout), (new, target)))
        return tuple(moved)


_LANGUAGE = """
(sort V) (sort N) (sort O)
(constructor Given (i64) V) (constructor Result (N i64) V) (constructor Node (i64) N)
(constructor At (V i64) O) (constructor Number (i64 i64) O) (constructor Nothing () O)
(ruleset swap) (ruleset find)
"""


def _text(item: Any, number: Callable[[Value], int]) -> str:
    if isinstance(item, tuple):
        return f"(At (Given {number(item[0])}) {item[1]})"
    if isinstance(item, list):
        return f"(Number {item[0]} {item[1]})"
    return "(Nothing)" if item is None else str(item)


def _bound(kind: str, thing: Any) -> Any:
    """A thing as a rule's attribute of a kind; None if it is none."""
    if kind == NUMBER:
        return thing
    if kind == DTYPE:
        return thing if isinstance(thing, DType) else None
    if not isinstance(thing, tuple):
        return None
    return (thing[0] if len(thing) == 1 else None) if kind == AXIS else thing


class _Facts:
    """The left side of a rule as egglog's facts. Regions are compared by the proof: as one variable of all facts they would make
    egglog's joins start from it, which takes minutes. `lines` is None where an op has arguments in a form that is not in the window."""

    def __init__(self, rule: Rule, names: Mapping[Op, set[str]], single: Callable[[Any], int]) -> None:
        self._count, self._single = 0, single
        viewed = dict.fromkeys(v.name for n in rule.pattern for v in n.args if isinstance(v, Leaf) and not v.whole)
        self.lines: list[str] | None = [f"(= o_{n} (At v_{n} l_{n}))" for n in viewed]
        for i, node in enumerate(rule.pattern):
            args = [self._item(v, p.kind == ATTR) for p, v in zip(node.op.params, node.args, strict=True)]
            count = sum(len(v) if p.kind == LIST else 1 for p, v in zip(node.op.params, node.args, strict=True))
            name = f"op_{node.op.name}_{count}"
            if name not in names[node.op]:
                self.lines = None
                return
            self.lines.append(f"(= n{i} ({name} r{i} {' '.join(args)}))")

    def _any(self) -> str:
        self._count += 1
        return f"w{self._count}"

    def _item(self, v: Any, attribute: bool) -> str:
        if v is FREE:
            return self._any()
        if isinstance(v, Variable):
            return f"a_{v.name}" if attribute else f"(Number {self._any()} a_{v.name})"
        if isinstance(v, Leaf):
            return f"o_{v.name}" if v.whole else f"(At v_{v.name} {self._any()})"
        if isinstance(v, Inner):
            return f"(At (Result n{v.node} {v.output}) {self._any()})"
        if type(v) is tuple:
            return " ".join(self._item(x, False) for x in v)
        return "(Nothing)" if v is None else f"(Number {self._any()} {self._single(v)})"


class Classes:
    """An e-graph as it is now. `given`: the class of each value number, `values` the other way round; `applied`: numbers of
    applications by class; `results`: classes of values by application and output; `at`, `numbers`, `nothing`: classes of operands;
    `places`: (value number, layout number) of the operands of a class; `layouts`: those through which a class of values is read."""

    def __init__(self, egraph: Any, ops: Mapping[str, tuple[Op, tuple[str, ...]]]) -> None:
        self._functions, self._int = egraph.freeze().functions, egraph.value_to_i64
        self.given: dict[int, Any] = {}
        self.values: dict[Any, list[int]] = defaultdict(list)
        for (k,), v in self._read("Given"):
            self.given[self._int(k)] = v
        for k in sorted(self.given):
            self.values[self.given[k]].append(k)
        self.node_of: dict[int, Any] = {self._int(k): n for (k,), n in self._read("Node")}
        self.applied: dict[Any, list[int]] = defaultdict(list)
        for k in sorted(self.node_of):
            self.applied[self.node_of[k]].append(k)
        self.results = {(n, self._int(i)): v for (n, i), v in self._read("Result")}
        self.at = {(v, self._int(n)): o for (v, n), o in self._read("At")}
        self.places: dict[Any, list[At]] = defaultdict(list)
        self.layouts: dict[Any, list[int]] = defaultdict(list)
        for (v, n), o in sorted(self.at.items(), key=lambda r: (self.values[r[0][0]], r[0][1])):
            self.places[o].append((self.values[v][0], n))
            self.layouts[v].append(n)
        self.numbers = {(self._int(a), self._int(b)): o for (a, b), o in self._read("Number")}
        self.nothing = next((o for _, o in self._read("Nothing")), None)
        self.nodes: dict[Any, Any] = {}
        for name, (_, sorts) in ops.items():
            for args, n in self._read(name):
                plain = (v if s == "O" else self._int(v) for s, v in zip(("i64", *sorts), args, strict=True))
                self.nodes[name, *plain] = n

    def _read(self, name: str) -> list[tuple[list[Any], Any]]:
        found = self._functions.get(name)
        return [] if found is None else [(r.inputs, r.output) for r in found.rows]

    def rows(self, relation: str, rule: Rule) -> Iterator[tuple[Any, ...]]:
        """The rows of a relation of matches: region, operands, numbers of things, applications."""
        first = 1 + len(rule.tensors)
        last = first + len(rule.attributes)
        for row, _ in self._read(relation):
            yield self._int(row[0]), *row[1:first], *map(self._int, row[first:last]), *row[last:]
