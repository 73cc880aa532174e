"""Epilogues of products: pointwise work on the result of a matrix product or a convolution moves into the kernel that makes it.

In: a graph whose pointwise nodes were made chains. Out: the graph with products that go on to add biases and residuals,
apply activations and masks, or store through another layout. A chain is absorbed by the last product that it reads, if it
walks the product's elements in an order that comes from it by splitting, merging and permuting dimensions. The fused node
runs at the place of the chain, or of the product where something between them reads the product. A convolution or its input
gradient counts as products of an image each, with channels as rows and all spatial dimensions as columns.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..dtype import uint32
from ..kernels import conv_fusion, matmul
from ..kernels.kernel import Profile
from ..ops.archetype import Chain, Conv, Epilogue, Matmul
from ..ops.fused_conv import fused_conv_op
from ..ops.fused_matmul import fused_matmul_op
from ..ops.table import SCALAR, Inferred, Spec
from ..provenance import together
from ..shape import Shape, broadcast_strides, collapse, numel
from ..storage import Layout
from .chains import ROUNDED, as_chain, is_fusable
from .ir import Cell, Graph, Node, Operand, Value
from .lower import call_of, operand_cells

if TYPE_CHECKING:
    from .passes import Context


def fuse_matmul(graph: Graph, context: Context) -> None:
    """Move chains that read a product or convolution into it."""
    work = _Work(graph, context.profile)
    for i, node in enumerate(graph.nodes):
        if isinstance(node.op.archetype, Chain) or is_fusable(node):
            fused = work.absorb(i, node)
            if fused is not None:
                context.report.note("matmul epilogue" if isinstance(fused.op.archetype, Matmul) else "convolution epilogue", node.site)
    graph.nodes = [n for n in work.slots if n is not None]


_NUMBERED = re.compile(r"\{(?:index|block|lane)\}")


class _Work:
    """One walk over the graph. `slots`: the nodes by place, None where one moved away."""

    def __init__(self, graph: Graph, profile: Profile) -> None:
        self.profile = profile
        self.slots: list[Node | None] = list(graph.nodes)
        self.kept = set(graph.kept)
        self.made: dict[Value, int] = {o.value: i for i, n in enumerate(graph.nodes) for o in n.outputs}
        self.users: dict[Value, set[Node]] = defaultdict(set)
        for node in graph.nodes:
            for value in node.values_read():
                self.users[value].add(node)

    def absorb(self, at: int, chain: Node) -> Node | None:
        """The node that took the place of a chain and a product that it reads."""
        places = {self.made[o.value] for o in chain.reads() if o.value in self.made}
        for j in sorted(places, reverse=True):
            product = self.slots[j]
            if product is not None and is_open(product) and product.region == chain.region:
                fused = self._fuse(j, product, at, chain)
                if fused is not None:
                    return fused
        return None

    def _fuse(self, j: int, product: Node, at: int, chain: Node) -> Node | None:
        result = product.outputs[0]
        over = next((i for i, o in enumerate(chain.outputs) if o.value.cell is result.value.cell), None)  # written over
        others = self.users[result.value] - {chain}
        stored = bool(others) or result.value in self.kept
        if stored and over is not None:
            return None
        to = self._place(j, product, at, chain)
        if to is None:
            return None
        read = {o.layout for o in chain.reads() if o.value is result.value}
        if len(read) != 1 or (over is not None and chain.outputs[over].layout not in read):
            return None
        view = _View.of(product, read.pop(), chain.outputs[0].layout.shape)
        fused = None if view is None else self._node(product, chain, view, stored)
        if fused is None:
            return None
        self.slots[j] = self.slots[at] = None
        self.slots[to] = fused
        for out in fused.outputs:
            out.value.node = fused
            self.made[out.value] = to
        for value in {*product.values_read(), *chain.values_read()}:
            self.users[value] -= {product, chain}
            self.users[value].add(fused)
        return fused

    def _place(self, j: int, product: Node, at: int, chain: Node) -> int | None:
        """Where the fused node may run: the chain's place if nothing between needs the product or changes what it reads,
        the product's place if all that the chain needs is there by then."""
        between = [n for n in self.slots[j + 1 : at] if n is not None]
        written = {o.value.cell for n in between for o in n.outputs}
        touched = written | {o.value.cell for n in between for o in n.reads()}
        if product.outputs[0].value.cell not in touched and not _cells(product) & written:
            return at
        if not _cells(chain) & written and not {o.value.cell for o in chain.outputs} & touched:
            return j
        return None

    def _node(self, product: Node, chain: Node, view: _View, stored: bool) -> Node | None:
        """The fused node, if the kernels can run it."""
        result = product.outputs[0].value
        one = as_chain(chain)
        kind = one.op.archetype
        assert isinstance(kind, Chain)
        operands = dict(zip((p.name for p in one.op.params), one.args, strict=True))
        scalars = [(p.name, p.scalar) for p in one.op.params if p.kind == SCALAR]
        inputs = {n: o for n, o in operands.items() if isinstance(o, Operand)}
        name = next(n for n, o in inputs.items() if o.value is result)
        del inputs[name]
        outputs = [*chain.outputs, *([product.outputs[0]] if stored else [])]
        layouts = [view.through(o.layout) for o in (*inputs.values(), *chain.outputs)]
        made = [view.own()] if stored else []
        numbered = any(_NUMBERED.search(expr) for _, _, expr in kind.statements)
        number = [view.through(Layout(uint32, view.shape))] if numbered else []
        laid = view.laid([*layouts, *made, *number])
        if laid is None:
            return None
        rows, cols, shown = laid
        results = (*kind.results, *([name] if stored else []))
        epilogue = Epilogue(kind.statements, results, name, rows, cols)
        convolution = isinstance(product.op.archetype, Conv)
        build = fused_conv_op if convolution else fused_matmul_op
        op = build(product.op, epilogue, list(inputs), scalars, [o.layout.dtype for o in outputs], numbered)
        attrs = {"index": shown.pop().strides} if numbered else {}
        n = len(inputs)
        extra = [Operand(o.value, x) for o, x in zip(inputs.values(), shown[:n], strict=True)]
        own = product.args if convolution else [Operand(o.value, x) for o, x in zip(product.reads(), view.matrices(), strict=True)]
        node = Node(op, [*own, *extra, *(operands[n] for n, _ in scalars), *attrs.values()], together([product.place, chain.place]))
        specs = tuple(Spec(o.layout.dtype, x.shape) for o, x in zip(outputs, shown[n:], strict=True))
        compute = tuple(o.layout.dtype for o in (*product.reads(), *extra))
        node.inferred = Inferred(specs, compute, {**product.inferred.attrs, **attrs})
        node.outputs = tuple(Operand(o.value, x) for o, x in zip(outputs, shown[n:], strict=True))
        before = [None if v is result else v for v in chain.previous]
        node.previous = (*before, *([None] if stored else []))
        node.region = chain.region
        node.parts = (*product.parts, *chain.parts)
        problem = conv_fusion.fused_problem if convolution else matmul.fused_problem
        fits = problem(call_of(node, operand_cells(node)), epilogue, self.profile)
        return node if fits is not None else None


def is_open(node: Node) -> bool:
    """Whether a node is a product or convolution without an epilogue whose result is a new cell, in a type that registers hold
    as storage does."""
    kind = node.op.archetype
    if not isinstance(kind, (Matmul, Conv)) or kind.epilogue is not None or node.in_place:
        return False
    if isinstance(kind, Conv) and kind.role == "weight":
        return False
    out = node.outputs[0]
    whole = out.layout.contiguous and out.layout.offset == 0 and out.layout.numel == out.value.cell.elements > 0
    return whole and out.layout.dtype.name not in ROUNDED and out.layout.dtype.kind != "b"


def _cells(node: Node) -> set[Cell]:
    """Cells whose contents a node needs."""
    return {v.cell for v in node.values_read()}


@dataclass(frozen=True)
class _Piece:
    """A part of a dimension of a chain that is a part of a dimension of the product too."""

    size: int
    dim: int  # of the chain
    step: int  # elements of that dimension that one step of the piece takes


class _View:
    """A product as a chain sees it. `pieces`: for every dimension of the product, outermost first."""

    def __init__(self, product: Node, shape: Shape, pieces: Sequence[Sequence[_Piece]]) -> None:
        self.product, self.shape, self.pieces = product, shape, pieces
        self.lead = tuple(p.size for dim in pieces[:-2] for p in dim)

    @classmethod
    def of(cls, product: Node, read: Layout, shape: Shape) -> _View | None:
        """The view of a chain that walks `shape` and reads the product through a layout; None if it does not walk each
        element once in an order of dimensions."""
        whole = product.outputs[0].layout
        if numel(shape) != whole.numel or read.offset:
            return None
        strides = broadcast_strides(read.shape, read.strides, shape)
        dims = sorted((st, d) for d, (n, st) in enumerate(zip(shape, strides, strict=True)) if n != 1)
        step = 1
        for st, d in dims:
            if st != step:
                return None
            step *= shape[d]
        pieces: list[list[_Piece]] = []
        todo = [(d, shape[d], 1) for _, d in reversed(dims)]  # (dimension, what is left of it, step); the innermost is last
        sizes = whole.shape
        if isinstance(product.op.archetype, Conv):
            sizes = (*sizes[:2], numel(sizes[2:]))
        for size in reversed(sizes):
            found: list[_Piece] = []
            while size > 1:
                d, left, step = todo.pop()
                n = min(size, left)
                if size % n or left % n:
                    return None
                found.insert(0, _Piece(n, d, step))
                size //= n
                if left > n:
                    todo.append((d, left // n, step * n))
            pieces.insert(0, found)
        return cls(product, shape, pieces)

    def through(self, layout: Layout) -> Layout:
        """An operand of the chain over the pieces."""
        strides = broadcast_strides(layout.shape, layout.strides, self.shape)
        pieces = [p for dim in self.pieces for p in dim]
        return layout.with_(shape=tuple(p.size for p in pieces), strides=tuple(strides[p.dim] * p.step for p in pieces))

    def own(self) -> Layout:
        """The product's own result over the pieces."""
        return self.product.outputs[0].layout.with_(shape=tuple(p.size for dim in self.pieces for p in dim))

    def laid(self, layouts: Sequence[Layout]) -> tuple[int, int, list[Layout]] | None:
        """Dimensions of rows and of columns, and layouts over the pieces as layouts over the lead, rows and columns, merged
        as far as all allow; None if more than two of either remain."""
        ends = len(self.lead), len(self.lead) + len(self.pieces[-2])
        groups = []
        for low, high in (ends, (ends[1], None)):
            shape, strides = collapse(layouts[0].shape[low:high], *(x.strides[low:high] for x in layouts))
            groups.append((shape or (1,), [s or (0,) for s in strides]))
        (rows, by_rows), (cols, by_cols) = groups
        if len(rows) > 2 or len(cols) > 2:
            return None
        shown = [
            x.with_(shape=(*self.lead, *rows, *cols), strides=(*x.strides[: ends[0]], *r, *c))
            for x, r, c in zip(layouts, by_rows, by_cols, strict=True)
        ]
        return len(rows), len(cols), shown

    def matrices(self) -> list[Layout]:
        """The product's operands over the lead's pieces."""
        out = []
        for operand in self.product.reads():
            x = operand.layout
            lead = self.product.outputs[0].layout.shape[:-2]
            strides = broadcast_strides(x.shape[:-2], x.strides[:-2], lead)
            split: list[int] = []
            for dim, st in zip(self.pieces[:-2], strides, strict=True):
                inner = 1
                steps: list[int] = []
                for p in reversed(dim):
                    steps.insert(0, st * inner)
                    inner *= p.size
                split += steps
            out.append(x.with_(shape=(*self.lead, *x.shape[-2:]), strides=(*split, *x.strides[-2:])))
        return out
