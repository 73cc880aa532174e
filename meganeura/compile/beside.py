"""Independent reductions as one node, whose workgroups run in one dispatch (ops/beside.py).

In: nodes that need nothing of one another. Out: a node that makes what all of them make, or None where the device would
not run it in one dispatch. Whether they may run at one place is the caller's question.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

from .. import kernels
from ..kernels.kernel import Profile
from ..ops.archetype import Beside, Part, Reduce
from ..ops.beside import beside_op
from ..ops.table import ATTR, SCALAR, Inferred
from ..provenance import together
from .ir import Node, Operand
from .lower import call_of, operand_cells

MOST = 8  # parts of a node, each of which has its text in the kernel


class _Member(NamedTuple):
    """A part of a node: its operands, the values of its scalars, its structural attributes."""

    part: Part
    operands: list[Operand]
    scalars: list[Any]
    attrs: Any


def may_stand_beside(node: Node) -> bool:
    """Whether a node is a reduction of tensors into new cells, or several."""
    if not isinstance(node.op.archetype, (Beside, Reduce)) or node.in_place:
        return False
    return all(p.kind in (ATTR, SCALAR) or v is None or isinstance(v, Operand) for p, v in zip(node.op.params, node.args, strict=True))


def beside(nodes: Sequence[Node], profile: Profile) -> Node | None:
    """The nodes as one."""
    members = [m for node in nodes for m in _members(node)]
    if len(members) > MOST:
        return None
    op = beside_op(*(m.part for m in members))
    args = [*(o for m in members for o in m.operands), *(v for m in members for v in m.scalars)]
    made = Node(op, args, together([n.place for n in nodes]))
    compute = tuple(d for n in nodes for d in n.inferred.compute)
    attrs = {"parts": tuple(m.attrs for m in members)}
    made.inferred = Inferred(tuple(s for n in nodes for s in n.inferred.outputs), compute, attrs)
    made.outputs = tuple(o for n in nodes for o in n.outputs)
    made.previous = tuple(p for n in nodes for p in n.previous)
    made.region = nodes[0].region
    made.parts = tuple(p for n in nodes for p in n.parts)
    lowered = kernels.lower(call_of(made, operand_cells(made)), profile)
    return made if len(lowered.launches) == 1 else None


def _members(node: Node) -> list[_Member]:
    kind = node.op.archetype
    operands = list(node.reads())
    scalars = [v for p, v in zip(node.op.params, node.args, strict=True) if p.kind == SCALAR]
    if isinstance(kind, Beside):
        left, values = iter(operands), iter(scalars)
        return [
            _Member(part, list(islice(left, len(part.inputs))), list(islice(values, len(part.scalars))), attrs)
            for part, attrs in zip(kind.parts, node.inferred.attrs["parts"], strict=True)
        ]
    named = [(p, v) for p, v in zip(node.op.params, node.args, strict=True) if p.kind != ATTR and v is not None]
    inputs = tuple(p.name for p, _ in named if p.kind != SCALAR)
    part = Part(node.op, inputs, tuple((p.name, p.scalar) for p, _ in named if p.kind == SCALAR), len(node.outputs))
    return [_Member(part, operands, scalars, dict(node.inferred.attrs))]
