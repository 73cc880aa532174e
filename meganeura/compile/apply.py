"""Applies rewrite rules (rule.py, rules/) to a graph, greedily, until none holds any more.

In: a graph without chains, and rules. Out: the graph with matches replaced. Results keep their cells, so kept values and
names stay. A replacement must cost less than what it makes unnecessary; inner values that something else needs stay.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..dtype import DType
from ..storage import Layout
from .ir import Cell, Graph, Node, Operand, Value, traffic
from .rule import Match, Rule, covers, same_place

if TYPE_CHECKING:
    from .passes import Context

MOST = 8  # rewrites a node of the graph, before a set of rules is taken to go round in circles

Key = tuple[int, ...]  # places in program order; what is put at a place gets longer keys


def rewrite_rules(graph: Graph, context: Context) -> None:
    """Apply the list of rules."""
    from .rules import rules  # made when first needed: tracing the patterns takes some time

    apply(graph, rules(), lambda match: context.report.note(match.rule.name, match.nodes[match.rule.root].site))


def apply(graph: Graph, rules: Sequence[Rule], note: Any = lambda match: None) -> int:
    """Apply rules until none holds; returns how often one did."""
    by_op: dict[Any, list[Rule]] = defaultdict(list)
    for r in rules:
        by_op[r.op].append(r)
    index = Index(graph)
    todo = deque(n for n in graph.nodes if n.op in by_op)
    limit = MOST * max(len(graph.nodes), 16)
    count = 0
    while todo and count < limit:
        node = todo.popleft()
        if node not in index.keys:
            continue
        match = next((m for r in by_op[node.op] for m in r.matches(node, index.maker) if index.replace(m)), None)
        if match is not None:
            count += 1
            note(match)
            near = [n for o in (*match.old, *match.new) for n in index.users(o.value)]
            todo.extend(n for n in dict.fromkeys((*match.added, *near)) if n.op in by_op)
    if count:
        graph.nodes = index.nodes()
    return count


class Index:
    """A graph's nodes by place, readers by value, and the writes of every cell that is changed in place."""

    def __init__(self, graph: Graph) -> None:
        self.kept = set(graph.kept)
        self.keys: dict[Node, Key] = {n: (i,) for i, n in enumerate(graph.nodes)}
        self.readers: dict[Value, dict[Node, None]] = defaultdict(dict)
        self.changed: set[Cell] = set()
        self.writes: dict[Cell, list[Node]] = defaultdict(list)
        for node in graph.nodes:
            self._read(node)
            for out, before in zip(node.outputs, node.previous, strict=True):
                self.writes[out.value.cell].append(node)
                if before is not None:
                    self.changed.add(out.value.cell)
        self.last_id = max((c.id for n in graph.nodes for c in _cells(n)), default=0)

    def nodes(self) -> list[Node]:
        """The nodes in program order."""
        return sorted(self.keys, key=self.keys.__getitem__)

    def maker(self, value: Value) -> Node | None:
        """The node of a value, unless the value is one of several that its cell holds in turn."""
        node = value.node
        return node if node in self.keys and value.cell not in self.changed else None

    def users(self, value: Value) -> list[Node]:
        """Nodes that read a value now."""
        return list(self.readers[value])

    # ---- replacing ----

    def replace(self, match: Match, chosen: bool = False) -> bool:
        """Put the right side in place of the left, if that is right and good here. `chosen`: that it is good is known."""
        roots = [o.value for o in match.old]
        if any(self.maker(v) is None for v in roots) or len({n.region for n in match.nodes}) > 1:
            return False
        moves = self._moves(match)
        if moves is None:
            return False
        removed = self._removed(match)
        if not all(o.value.node in removed for o in match.old) or not (chosen or self._pays(match, removed)):
            return False
        at = self._place(match, roots, removed)
        if at is None:
            return False
        self._insert(match, at, moves)
        for node in removed:
            self._drop(node)
        return True

    def _moves(self, match: Match) -> dict[Value, tuple[Operand, Operand]] | None:
        """Results that something else already holds, with what their readers shall read; None if these cannot."""
        made = {o.value for n in match.added for o in n.outputs}
        moves: dict[Value, tuple[Operand, Operand]] = {}
        taken: set[Value] = set()
        for old, new in zip(match.old, match.new, strict=True):
            if new.value in made:
                if not covers(new) or new.value in taken:
                    return None
                taken.add(new.value)
            elif old.value in self.kept or not self._readable(old, new):
                return None
            else:
                moves[old.value] = (old, new)
        return moves

    def _readable(self, old: Operand, new: Operand) -> bool:
        """Whether all readers of a result can read another operand for it. Only one elementwise reader takes a strided one:
        others may be faster on the copy that they have now."""
        users = self.users(old.value)
        if not new.layout.contiguous:
            if len(users) > 1 or not all(n.op.archetype.fusable for n in users):
                return False
            for node in users:
                if not all(same_place(o.layout, old.layout) for o in node.reads() if o.value is old.value):
                    return False
        return self._holds(new.value, users, self.keys[old.value.node])  # type: ignore[index]

    def _holds(self, value: Value, users: Iterable[Node], now: Key) -> bool:
        """Whether a value is made before `now` and still stands whenever one of the users runs, itself included."""
        writes = [self.keys[n] for n in self.writes[value.cell] if n in self.keys]
        made = (-1,) if value.node is None else self.keys.get(value.node, (-1,))
        last = max((self.keys[n] for n in users), default=now)
        return made <= now and not any(made < k <= max(last, now) for k in writes)

    def _removed(self, match: Match) -> list[Node]:
        """Nodes of the left side that nothing needs any more."""
        needed = {o.value for n in match.added for o in n.reads()} | {o.value for o in match.new}
        roots = {o.value for o in match.old}
        gone: dict[Node, None] = {}
        for node in reversed(match.nodes):
            values = [o.value for o in node.outputs]
            if any(v in needed or v.cell in self.changed for v in values):
                continue
            if all(v in roots or (v not in self.kept and all(n in gone for n in self.readers[v])) for v in values):
                gone[node] = None
        return list(gone)

    def _pays(self, match: Match, removed: Sequence[Node]) -> bool:
        """Whether a replacement is less work. One with kernels of its own must make the whole left side unnecessary."""
        if len(removed) < len(match.nodes) - self._shared(match) and not all(n.op.archetype.fusable for n in match.added):
            return False
        return (len(match.added), traffic(match.added)) < (len(removed), traffic(removed))

    @staticmethod
    def _shared(match: Match) -> int:
        """Nodes of the left side that the right side uses too."""
        used = {o.value for n in match.added for o in n.reads()} | {o.value for o in match.new}
        return sum(any(o.value in used for o in n.outputs) for n in match.nodes)

    def _place(self, match: Match, roots: Sequence[Value], removed: Sequence[Node]) -> Key | None:
        """Where the new nodes can run: at the first result of the left side, or at the last."""
        makers = sorted(self.keys[v.node] for v in roots)  # type: ignore[index]
        made = {o.value for n in match.added for o in n.outputs}
        reads = {o.value for n in match.added for o in n.reads()} - made
        users = [self.keys[n] for v in roots for n in self.users(v) if n not in removed]
        for at in dict.fromkeys((makers[0], makers[-1])):
            if all(at < k for k in users) and all(self._holds(v, (), at) for v in reads):
                return at
        return None

    def _insert(self, match: Match, at: Key, moves: dict[Value, tuple[Operand, Operand]]) -> None:
        results = {new.value: old for old, new in zip(match.old, match.new, strict=True) if old.value not in moves}
        last = match.nodes[match.rule.root]
        renamed: dict[Value, Value] = {}
        for i, node in enumerate(match.added):
            node.site, node.region = last.site, last.region
            node.replace(renamed)
            outputs = []
            for out in node.outputs:
                old = results.get(out.value)
                value = old.value if old is not None else Value(self._cell(out.layout.dtype, out.value.cell.elements), 1)
                value.node, renamed[out.value] = node, value
                outputs.append(Operand(value, out.layout))
            node.outputs = tuple(outputs)
            self.keys[node] = (*at, i)
            self._read(node)
            for out in outputs:
                self.writes[out.value.cell] = [node]
        for old, new in moves.values():
            for node in self.users(old.value):
                node.args = tuple(_moved(v, old, new) for v in node.args)
                self._read(node)
            self.readers[old.value].clear()

    def _cell(self, dtype: DType, elements: int) -> Cell:
        self.last_id += 1
        return Cell(self.last_id, dtype, elements, "value")

    def _read(self, node: Node) -> None:
        for value in node.values_read():
            self.readers[value][node] = None

    def _drop(self, node: Node) -> None:
        del self.keys[node]
        for value in node.values_read():
            self.readers[value].pop(node, None)


def _cells(node: Node) -> Iterable[Cell]:
    return (o.value.cell for o in (*node.reads(), *node.outputs))


def _moved(v: Any, old: Operand, new: Operand) -> Any:
    """An argument that reads `old`, as one that reads `new`."""
    if isinstance(v, Operand):
        if v.value is not old.value:
            return v
        x = v.layout
        layout = new.layout if same_place(x, old.layout) else Layout(x.dtype, x.shape, x.strides, x.offset + new.layout.offset)
        return Operand(new.value, layout)
    if isinstance(v, tuple):
        return tuple(_moved(x, old, new) for x in v)
    return v
