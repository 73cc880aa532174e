"""Pointwise work around reductions and rows moves into their kernels: what feeds them, what uses their results.

In: a graph whose pointwise nodes were made chains. Out: the graph with Reduce and Row nodes that took chains in, and with
sums over the same elements made in one node, on GPUs reductions of different things too. A fused node runs at the place of the
later of its parts, or of the earlier one where something between needs that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..kernels.kernel import Profile
from ..ops.archetype import Chain, Reduce, Row
from ..ops.fused_rows import is_costly
from .beside import beside, may_stand_beside
from .chains import ROUNDED, as_chain, is_fusable
from .ir import Cell, Graph, Node, Value
from .taken import Taken

if TYPE_CHECKING:
    from .passes import Context

NEAR = 12  # nodes by which a sum may be delayed to run with another: what it reads is kept so long


def fuse_rows(graph: Graph, context: Context) -> None:
    """Let Reduce and Row nodes take in the chains before and after them, then each other."""
    work = _Work(graph, context)
    work.each(work.epilogue, Row, "row epilogue")
    work.each(work.epilogue, Reduce, "reduction epilogue")
    work.each(work.prologue, Row, "row prologue")
    work.each(work.sums_together, Reduce, "column sums together")
    work.each(work.prologue, Reduce, "reduction prologue")
    if context.profile.family != "cpu":  # a software device would walk the text of all for each
        work.each(work.side_by_side, Reduce, "reductions in one dispatch")
    graph.nodes = [n for n in work.slots if n is not None]


class _Work:
    """The graph while it changes. `slots`: nodes by place, None where one moved away."""

    def __init__(self, graph: Graph, context: Context) -> None:
        self.profile: Profile = context.profile
        self.report = context.report
        self.slots: list[Node | None] = list(graph.nodes)
        self.kept = set(graph.kept)
        self.place: dict[Node, int] = {n: i for i, n in enumerate(graph.nodes)}
        self.maker: dict[Value, Node] = {o.value: n for n in graph.nodes for o in n.outputs}
        self.users: dict[Value, dict[Node, None]] = defaultdict(dict)
        for node in graph.nodes:
            for value in node.values_read():
                self.users[value][node] = None

    def each(self, step: Callable[[Node], Node | None], kind: type[Reduce | Row], rule: str) -> None:
        """Apply a step to every node of an archetype, again to what it made."""
        for i in range(len(self.slots)):
            node = self.slots[i]
            while node is not None and isinstance(node.op.archetype, kind) and is_open(node):
                made = step(node)
                if made is None:
                    break
                self.report.note(rule, made.site)
                node = made if self.place[made] >= i else None

    # --- the ways ---

    def epilogue(self, node: Node) -> Node | None:
        """Take in a chain that reads a result of the node."""
        for k, out in enumerate(node.outputs):
            for chain in self.users[out.value]:
                if is_pointwise(chain) and chain.region == node.region:
                    at = self.meeting(node, chain)
                    made = None if at is None else self._after(node, k, chain)
                    if made is not None and at is not None:
                        return self.put(made, at, (node, chain))
        return None

    def _after(self, node: Node, k: int, chain: Node) -> Node | None:
        out = node.outputs[k]
        if out.layout.dtype.name in ROUNDED or node.previous[k] is not None:
            return None
        if made_by(chain) & made_by(node):
            return None
        reads = [o for o in chain.reads() if o.value.cell in made_by(node)]
        if any(o.value is not out.value or o != reads[0] for o in reads):
            return None
        drop, one = not self.needed(out.value, (chain,)), as_chain(chain)
        for taken in views_of(node, chain):
            if taken.after(k, one, reads[0], drop):
                return taken.node((node, chain), self.profile)
        return None

    def prologue(self, node: Node) -> Node | None:
        """Take in a chain that makes an input of the node."""
        for operand in node.reads():
            chain = self.maker.get(operand.value)
            if chain is not None and is_pointwise(chain) and chain.region == node.region:
                at = self.meeting(chain, node)
                made = None if at is None else self._before(node, chain)
                if made is not None and at is not None:
                    return self.put(made, at, (chain, node))
        return None

    def _before(self, node: Node, chain: Node) -> Node | None:
        if any(o.layout.dtype.name in ROUNDED for o in chain.outputs):
            return None
        if made_by(chain) & made_by(node):
            return None
        one = as_chain(chain)
        kind = one.op.archetype
        assert isinstance(kind, Chain)
        costly = self.profile.family == "cpu" and isinstance(node.op.archetype, Row) and is_costly(kind.statements)
        stored = [self.needed(o.value, (node,)) or p is not None for o, p in zip(chain.outputs, chain.previous, strict=True)]
        for taken in views_of(node, chain):
            if costly and taken.walks(chain):
                return None  # each walk over the row would do it again
            if taken.before(one, chain, stored):
                return taken.node((chain, node), self.profile)
        return None

    def sums_together(self, node: Node) -> Node | None:
        """Take in an earlier sum over the same elements."""
        taken = Taken.of(node)
        if taken is None or not taken.is_column_sum():
            return None
        end = self.place[node]
        for i in range(end - 1, max(-1, end - 1 - NEAR), -1):
            other = self.slots[i]
            if other is None or not isinstance(other.op.archetype, Reduce) or not is_open(other) or other.region != node.region:
                continue
            related = self._related(node, other)
            if (related or self.profile.family != "cpu") and self.meeting(other, node) == end:
                second = Taken.of(other)
                if second is not None and taken.with_sums_of(second):
                    made = taken.node((other, node), self.profile)
                    if made is not None:
                        return self.put(made, end, (other, node))
                taken = Taken.of(node)
                assert taken is not None
        return None

    def side_by_side(self, node: Node) -> Node | None:
        """Run in one dispatch with an earlier reduction, of whatever it is one."""
        if not may_stand_beside(node):
            return None
        end = self.place[node]
        for i in range(end - 1, max(-1, end - 1 - NEAR), -1):
            other = self.slots[i]
            if other is None or not may_stand_beside(other) or other.region != node.region:
                continue
            if not made_by(other) & needed_by(node) and self.meeting(other, node) == end:
                made = beside((other, node), self.profile)
                if made is not None:
                    return self.put(made, end, (other, node))
        return None

    def _related(self, a: Node, b: Node) -> bool:
        """Whether two nodes read a common value, or values of one chain."""
        return bool(self._sources(a) & self._sources(b))

    def _sources(self, node: Node) -> set[object]:
        """Values that a node reads, itself or through a chain that it may take in."""
        out: set[object] = set()
        for o in node.reads():
            out.add(o.value)
            chain = self.maker.get(o.value)
            if chain is not None and is_pointwise(chain):
                out.add(chain)
                if all(set(self.users[x.value]) == {node} for x in chain.outputs):
                    out.update(x.value for x in chain.reads() if x.layout.numel == o.layout.numel)
        return out

    # --- the graph ---

    def needed(self, value: Value, besides: Sequence[Node]) -> bool:
        """Whether a value is read by others, or outlives the graph."""
        return value in self.kept or any(n not in besides for n in self.users[value])

    def meeting(self, first: Node, second: Node) -> int | None:
        """Where two nodes may run as one: at the second's place, or else the first's, or nowhere."""
        i, j = self.place[first], self.place[second]
        if i > j:
            return None
        between = [n for n in self.slots[i + 1 : j] if n is not None]
        written = {o.value.cell for n in between for o in n.outputs}
        touched = written | {o.value.cell for n in between for o in n.reads()}
        if not made_by(first) & touched and not needed_by(first) & written:
            return j
        if not made_by(second) & touched and not needed_by(second) & written:
            return i
        return None

    def put(self, made: Node, at: int, parts: Iterable[Node]) -> Node:
        """Put a fused node in the place of its parts."""
        for node in parts:
            self.slots[self.place.pop(node)] = None
            for value in node.values_read():
                self.users[value].pop(node, None)
        self.slots[at], self.place[made] = made, at
        for value in made.values_read():
            self.users[value][made] = None
        for out in made.outputs:
            out.value.node = self.maker[out.value] = made
        return made


def views_of(node: Node, chain: Node) -> Iterator[Taken]:
    """A node taken apart: as it is, then with dimensions taken apart as those of a chain are."""
    shape = chain.outputs[0].layout.shape
    for finer in (False, True):
        taken = Taken.of(node)
        if taken is not None and (not finer or (taken.shape != shape and taken.refine(shape))):
            yield taken


def is_open(node: Node) -> bool:
    """Whether a Reduce or Row node has something to do and can be taken apart."""
    return all(o.layout.numel for o in node.outputs) and all(o.layout.numel for o in node.reads())


def is_pointwise(node: Node) -> bool:
    """Whether a node is a chain, or could be one."""
    return isinstance(node.op.archetype, Chain) or is_fusable(node)


def made_by(node: Node) -> set[Cell]:
    """Cells that a node writes."""
    return {o.value.cell for o in node.outputs}


def needed_by(node: Node) -> set[Cell]:
    """Cells whose contents a node needs."""
    return {v.cell for v in node.values_read()}
