"""Independent rows as one: builds the rows by which compiled graphs run several small reductions in one dispatch.

Structurally equal ones are one row, so that kernels and plans made for one serve all.
"""

from __future__ import annotations

from ..dispatch import p_empty
from .archetype import Beside, Part
from .table import OPERAND, SCALAR, Op, Param

_cache: dict[tuple[Part, ...], Op] = {}


def beside_op(*parts: Part) -> Op:
    """The row of several parts. Its arguments are the inputs of all, then the scalars of all, named by part; its outputs are
    theirs in order. The attribute `parts` holds the structural attributes of each. It has no gradient."""
    found = _cache.get(parts)
    if found is not None:
        return found
    params = [Param(f"{i}.{n}", OPERAND, "", p_empty) for i, part in enumerate(parts) for n in part.inputs]
    params += [Param(f"{i}.{n}", SCALAR, t, p_empty) for i, part in enumerate(parts) for n, t in part.scalars]
    name, shown = f"beside{len(_cache)}", "+".join(part.op.shown for part in parts)
    fields = {"public": False, "method": False, "shown": shown, "built": (beside_op, *parts)}
    row = Op(name, __name__, "Several reductions in one dispatch.", Beside(parts), params, **fields)
    if len(_cache) > 4096:
        _cache.clear()
    _cache[parts] = row
    return row
