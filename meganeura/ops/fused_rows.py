"""Reductions and rows together with the pointwise ops before and after them: the rows that fusion uses in compiled graphs.

In: an archetype (Reduce or Row) and statements as in ops/chain.py. Out: an archetype that takes the statements in, and its
row. Structurally equal ones are one row, so that kernels made for one serve all. Texts are expressions over names in braces.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from ..dispatch import p_empty
from ..dtype import DType
from .archetype import Reduce, Row
from .chain import Statement, converted
from .table import OPERAND, SCALAR, Op, Param

_NAME = re.compile(r"\{([\w.]+)\}")
_CALLED = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
_CHEAP = re.compile("abs|bitcast|bool|ceil|clamp|f32|floor|fract|i32|is_nan|(nan_)?(max|min)|select|sign|sqrt_?|truth|u32")
BY_VALUE = ("argmax", "argmin")

_cache: dict[Any, Op] = {}


def renamed(expr: str, texts: Mapping[str, str]) -> str:
    """The expression with names replaced by texts; other names stay."""
    return _NAME.sub(lambda m: texts.get(m[1], m[0]), expr)


def names_of(expressions: Iterable[str]) -> set[str]:
    """Names in braces."""
    return {n for e in expressions for n in _NAME.findall(e)}


def is_costly(statements: Iterable[Statement]) -> bool:
    """Whether statements take more time than loading their operands again, as exponentials and the like do without a GPU."""
    return any(_CHEAP.fullmatch(f) is None for _, _, expr in statements for f in _CALLED.findall(expr))


def opened(kind: Reduce, name: str, compute: DType, made: DType) -> Reduce:
    """The same reduction of input `name` (computed in `compute`, result `made`) with its elements and results named."""
    if kind.values:
        return kind
    type_ = compute.value if kind.kind in BY_VALUE else made.value
    return replace(kind, pre="", values=(kind.pre or "{" + name + "}",), results=((0, kind.post),), type=type_)


def fed(kind: Reduce | Row, texts: Mapping[str, str], statements: Sequence[Statement], inputs: Sequence[str]) -> Reduce | Row:
    """An archetype whose inputs named in `texts` are computed from statements over further `inputs`, which have elements if
    those have."""
    own = tuple((n, t, renamed(e, texts)) for n, t, e in kind.statements)
    if isinstance(kind, Reduce):
        return replace(kind, values=tuple(renamed(v, texts) for v in kind.values), statements=(*statements, *own))
    walked = not texts.keys().isdisjoint(kind.full)
    return replace(
        kind,
        full=(*(n for n in kind.full if n not in texts), *(inputs if walked else ())),
        stages=tuple(replace(s, expr=renamed(s.expr, texts)) for s in kind.stages),
        element=tuple(renamed(e, texts) for e in kind.element),
        per_row=tuple(renamed(e, texts) for e in kind.per_row),
        statements=(*statements, *own),
    )


def joined(first: Reduce, second: Reduce, texts: Mapping[str, str]) -> Reduce:
    """Two opened reductions of one kind over the same elements; `texts` renames inputs, scalars and statements of the second."""
    rename = {name: "{" + text + "}" for name, text in texts.items()}
    n = len(first.values)
    return replace(
        first,
        values=(*first.values, *(renamed(v, rename) for v in second.values)),
        results=(*first.results, *((n + k, renamed(e, rename)) for k, e in second.results)),
        statements=(*first.statements, *((texts.get(s, s), t, renamed(e, rename)) for s, t, e in second.statements)),
        once=(*first.once, *(texts.get(o, o) for o in second.once)),
    )


def as_type(text: str, have: str, compute: DType) -> str:
    """A text of one WGSL type as a value of a compute dtype."""
    return converted(text, have, compute.value)


def fused_op(base: Op, kind: Reduce | Row, inputs: Sequence[str], scalars: Sequence[tuple[str, str]]) -> Op:
    """The row of a fused archetype. Its arguments are the inputs, then the scalars (name, WGSL type); it has no gradient."""
    key = (type(kind), tuple(_plain(getattr(kind, f.name)) for f in fields(kind)), tuple(inputs), tuple(scalars), base.static_index)
    found = _cache.get(key)
    if found is not None:
        return found
    params = [Param(n, OPERAND, "", p_empty) for n in inputs] + [Param(n, SCALAR, t, p_empty) for n, t in scalars]
    doc = "A reduction or row with the pointwise ops around it."
    row = Op(
        f"{base.name.split('.')[0]}.{len(_cache)}",
        __name__,
        doc,
        kind,
        params,
        static_index=base.static_index,
        public=False,
        method=False,
        shown=base.shown,
        built=(fused_op, base, kind, tuple(inputs), tuple(scalars)),
    )
    if len(_cache) > 4096:
        _cache.clear()
    _cache[key] = row
    return row


def _plain(value: Any) -> Any:
    return tuple(value.items()) if isinstance(value, Mapping) else value
