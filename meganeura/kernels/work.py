"""What a call has to move and compute at least: an estimate from its layouts and its archetype, for rates in profiles.

In: a Call. Out: bytes that its operands hold (each read or written once; an expanded dimension counts as one element) and
arithmetic operations as its expressions are written (a function call counts as one). Temporaries are not counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ..ops.archetype import Beside, Chain, Conv, Kernel, Matmul, Pointwise, Reduce, Row, Scan, Update
from ..storage import Layout
from . import beside
from .kernel import Call

_OPERATION = re.compile(r"[-+*/%]|\b[A-Za-z_]\w*(?=\()")
_FREE = {"f32", "i32", "u32", "bool", "bitcast", "select", "vec2", "vec4"}
_STAGES = {"sum": 1, "max": 1, "softmax": 3, "moments": 4, "pick": 0}  # operations an element beside the stage's expression
_REDUCTIONS = {"moments": 4}
_PICKING = ("index_select", "gather")  # kernels that read of their source no more than they write


@dataclass(frozen=True, slots=True)
class Work:
    """Bytes moved and operations done, at least."""

    nbytes: int = 0
    flops: int = 0


def work(call: Call) -> Work:
    """The estimate for a call."""
    return Work(_nbytes(call), _flops(call))


def elements(layout: Layout) -> int:
    """Elements that lie in memory: expanded dimensions count once."""
    count = 1
    for size, stride in zip(layout.shape, layout.strides, strict=True):
        count *= size if stride else min(size, 1)
    return count


def _nbytes(call: Call) -> int:
    written = sum(elements(x) * x.dtype.itemsize for x in call.outputs)
    kind = call.op.archetype
    most = max((x.numel for x in call.outputs), default=0) if isinstance(kind, Kernel) and kind.name in _PICKING else None
    read = 0
    for x in call.inputs:
        if x is not None:
            n = elements(x)
            read += (n if most is None else min(n, most)) * x.dtype.itemsize
    return read + written


def operations(expression: str) -> int:
    """Operators and calls in a WGSL expression; conversions and selections are free."""
    return sum(1 for found in _OPERATION.findall(expression) if found not in _FREE)


def _flops(call: Call) -> int:
    kind: Any = call.op.archetype
    size = max((x.numel for x in call.outputs), default=0)
    whole = max((x.numel for x in call.inputs if x is not None), default=0)
    if isinstance(kind, Pointwise):
        dtype = (*call.compute, *(x.dtype for x in call.outputs))[0]
        return size * operations(kind.expression(dtype.kind))
    if isinstance(kind, Chain):
        return size * _statements(kind.statements)
    if isinstance(kind, Reduce):
        return whole * (_REDUCTIONS.get(kind.kind, 1) + operations(kind.pre)) + size * operations(kind.post)
    if isinstance(kind, Beside):
        return sum(_flops(piece) for piece, _, _ in beside.parts(call))
    if isinstance(kind, Scan):
        return whole
    if isinstance(kind, Matmul):
        first = call.inputs[0]
        return 0 if first is None else 2 * first.shape[-1] * size
    if isinstance(kind, Conv):
        return _convolution(kind.role, call)
    if isinstance(kind, Row):
        return whole * (sum(_STAGES.get(s.kind, 1) + operations(s.expr) for s in kind.stages) + sum(map(operations, kind.element)))
    if isinstance(kind, Update):
        role = kind.roles[0] + "."
        members = [x.numel for n, x in zip(call.names, call.inputs, strict=True) if n.startswith(role) and x is not None]
        return sum(members) * _statements(kind.statements)
    return 0


def _convolution(role: str, call: Call) -> int:
    """A multiplication and an addition for every weight and output pixel."""
    first, second = call.inputs[:2]
    if first is None or second is None or not second.numel:
        return 0
    output, weight = {"output": (call.outputs[0], second), "input": (first, second), "weight": (second, call.outputs[0])}[role]
    return 2 * output.numel * weight.numel // weight.shape[0]


def _statements(statements: tuple[tuple[str, str, str], ...]) -> int:
    return sum(operations(expression) for _, _, expression in statements)
