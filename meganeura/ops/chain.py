"""Several pointwise ops as one: builds the Chain rows that fusion uses, in eager gradients and in compiled graphs.

Structurally equal chains are one row, so that kernels and plans made for one serve all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..dispatch import p_empty
from ..dtype import DType, float16
from ..shape import Shape, broadcast_shapes
from ..storage import Layout
from .archetype import Chain, Pointwise
from .table import OPERAND, SCALAR, Inferred, Op, Param, Spec

_NAME = re.compile(r"\{(\w+)\}")
Statement = tuple[str, str, str]  # name, WGSL type, expression

_cache: dict[Any, Op] = {}


def converted(expr: str, source: str, target: str) -> str:
    """WGSL that converts an expression between value types (f32, i32, u32, bool) as storing and loading would."""
    if source == target:
        return expr
    if target == "bool":  # by bits, since drivers may take NaN != 0 as false
        return f"truth({expr})" if source == "f32" else f"({expr} != {source}(0))"
    if source == "bool":
        one, zero = {"f32": ("1.0", "0.0"), "i32": ("1", "0"), "u32": ("1u", "0u")}[target]
        return f"select({zero}, {one}, {expr})"
    return f"f32_to_u32({expr})" if (source, target) == ("f32", "u32") else f"{target}({expr})"


def expression_type(kind: Pointwise, compute: Sequence[DType], output: DType) -> str:
    """The WGSL type that a pointwise expression has."""
    if kind.types in ("compare", "bool"):
        return "bool"
    return compute[-1].value if compute else output.value


# x - x, which drivers fold to 0 whatever x is.
_VANISHED = "select(0.0, nan(), (bitcast<u32>({input}) & 0x7fffffffu) >= 0x7f800000u)"


def statement(op: Op, name: str, arguments: Mapping[str, tuple[str, str]], compute: Mapping[str, DType], output: DType) -> Statement:
    """One pointwise op as a statement. `arguments`: input or scalar name -> (text, WGSL type of it)."""
    kind = op.archetype
    assert isinstance(kind, Pointwise)
    types = tuple(compute.values())
    texts = {}
    for key, (text, have) in arguments.items():
        texts[key] = converted(text, have, compute[key].value) if key in compute else text
    body = kind.expression(types[0].kind if types else output.kind)
    if op.name == "sub" and types[0].kind == "f" and texts["input"] == texts["other"]:
        body = _VANISHED
    body = converted("(" + _NAME.sub(lambda m: texts.get(m[1], m[0]), body) + ")", expression_type(kind, types, output), output.value)
    if output is float16 and types and types[0] is not float16:
        body = f"round_f16({body})"  # a cast was asked for; between float16 ops a register may keep more
    return name, output.value, body


def chain_op(
    statements: Sequence[Statement],
    results: Sequence[str],
    inputs: Sequence[str],
    scalars: Sequence[tuple[str, str]],
    outputs: Sequence[DType],
    parts: Sequence[str] = (),
) -> Op:
    """The row of a chain. Its arguments are the inputs (each loaded in its own dtype), then the scalars (name, WGSL type).
    `parts`: the names of what it fused, for those who look at it.

    All outputs have the broadcast shape of the inputs. The row has no gradient: it is made after differentiation.
    """
    key = (tuple(statements), tuple(results), tuple(inputs), tuple(scalars), tuple(outputs))
    found = _cache.get(key)
    if found is not None:
        return found
    dtypes = tuple(outputs)

    def rule(**args: Any) -> Inferred:
        layouts = [args[n] for n in inputs]
        shape: Shape = broadcast_shapes(*(x.shape for x in layouts if isinstance(x, Layout)))
        return Inferred(tuple(Spec(d, shape) for d in dtypes), tuple(x.dtype for x in layouts), {})

    params = [Param(n, OPERAND, "", p_empty) for n in inputs] + [Param(n, SCALAR, t, p_empty) for n, t in scalars]
    archetype = Chain(tuple(statements), tuple(results))
    name = f"chain{len(_cache)}"
    fields = {"rule": rule, "public": False, "method": False, "shown": "+".join(parts) or name, "built": (chain_op, *key, tuple(parts))}
    row = Op(name, __name__, "Fused pointwise ops.", archetype, params, **fields)
    if len(_cache) > 4096:
        _cache.clear()
    _cache[key] = row
    return row
