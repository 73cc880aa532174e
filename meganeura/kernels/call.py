"""From a bound op to a Call: operand names, layouts, scalars and aliasing, the same for Eager and for compiled sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..ops.table import ATTR, LIST, OPERAND, SCALAR, Inferred, Op
from ..storage import Layout
from .kernel import Call

_SCALAR_TYPE = {"f": "f32", "i": "i32", "u": "u32", "b": "u32"}


def make_call(op: Op, args: Mapping[str, Any], inferred: Inferred, outputs: Sequence[Layout], alias: tuple[int, ...] = ()) -> Call:
    """A Call from named layouts (ops.infer.named), what was inferred, and the outputs' layouts."""
    names: list[str] = []
    inputs: list[Layout | None] = []
    scalars: list[tuple[str, str]] = []
    for p in op.params:
        v = args[p.name]
        if p.kind in (ATTR, SCALAR) or v is None:
            continue
        if p.kind == LIST:
            names.extend(f"{p.name}.{i}" for i in range(len(v)))
            inputs.extend(v)
        elif isinstance(v, Layout):
            names.append(p.name)
            inputs.append(v)
        else:
            scalars.append((p.name, _SCALAR_TYPE[inferred.compute[len(inputs)].kind]))
            names.append(p.name)
            inputs.append(None)
    scalars.extend((p.name, p.scalar) for p in op.params if p.kind == SCALAR)
    return Call(op, tuple(names), tuple(inputs), tuple(outputs), inferred.compute, inferred.attrs, tuple(scalars), alias)


def scalar_values(op: Op, values: Sequence[Any], tensor: type) -> list[Any]:
    """The numbers of a call in the order of Call.scalars: number operands, then scalar attributes."""
    first = [v for p, v in zip(op.params, values, strict=True) if p.kind == OPERAND and not isinstance(v, tensor)]
    return first + [v for p, v in zip(op.params, values, strict=True) if p.kind == SCALAR]
