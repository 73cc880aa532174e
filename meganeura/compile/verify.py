"""Checks of a graph after every pass, in debug mode and in tests: what a pass must not break."""

from __future__ import annotations

from ..dispatch import HostScalar
from ..errors import MeganeuraError
from ..ops.infer import infer
from .ir import Cell, Graph, Node, Value


class InvalidGraph(MeganeuraError, AssertionError):
    """A pass left a graph that does not compute what it should. A bug of this package."""


def verify(graph: Graph, after: str = "") -> None:
    """Raise InvalidGraph unless every read sees the value it names, layouts fit their cells and shapes follow the rules."""
    held: dict[Cell, Value | None] = dict.fromkeys(graph.inputs)
    hosts = sum(count for _, count in graph.hosts)
    for node in graph.nodes:
        try:
            _check_reads(node, held)
            _check_writes(node, held)
            _check_rule(node)
            for v in node.numbers():
                if isinstance(v, HostScalar) and not 0 <= v.index < hosts:
                    raise InvalidGraph(f"host scalar {v.index} of {hosts}")
        except InvalidGraph as e:
            raise InvalidGraph(f"{e}\n  in {node!r}\n  traced at {node.site}\n  after {after}, in {graph.name}") from None
    for value in graph.kept:
        now = held.get(value.cell)
        if value.cell not in held or (now or value) is not value:
            raise InvalidGraph(f"{value!r} must outlive {graph.name}, but its cell holds {now!r}\n  after {after}")


def _check_reads(node: Node, held: dict[Cell, Value | None]) -> None:
    for operand in node.reads():
        cell = operand.value.cell
        if cell not in held:
            raise InvalidGraph(f"{operand!r} is read before it is made")
        now = held[cell]
        if now is None:
            held[cell] = now = operand.value
        if now is not operand.value:
            raise InvalidGraph(f"{operand!r} is read, but its cell holds {now!r}")
        low, high = operand.layout.span()
        if (low < 0 and operand.layout.numel) or high >= max(cell.elements, 1):
            raise InvalidGraph(f"{operand!r} reaches outside the {cell.elements} elements of its cell")
        if operand.layout.dtype is not cell.dtype:
            raise InvalidGraph(f"{operand!r} has another dtype than its cell ({cell.dtype.name})")


def _check_writes(node: Node, held: dict[Cell, Value | None]) -> None:
    for out, before in zip(node.outputs, node.previous, strict=True):
        cell = out.value.cell
        if before is None and cell in held:
            raise InvalidGraph(f"{out!r} is made a second time")
        if before is not None and (cell not in held or held[cell] not in (None, before, out.value)):
            raise InvalidGraph(f"{out!r} overwrites {before!r}, but its cell holds {held.get(cell)!r}")
        if out.value.node is not node:
            raise InvalidGraph(f"{out!r} names another node as its maker")
        held[cell] = out.value


def _check_rule(node: Node) -> None:
    if len(node.parts) > 1:
        return  # a chain's shape comes from its parts, which were checked before
    specs = infer(node.op, node.named()).outputs
    for spec, out in zip(specs, node.outputs, strict=True):
        if spec.shape != out.layout.shape or (spec.dtype is not out.layout.dtype and not node.in_place):
            raise InvalidGraph(f"the rule gives {spec.dtype.name}{list(spec.shape)}, the output is {out.layout}")
