"""Matrix products that go on computing with what they have summed up: builds the rows that fusion uses in compiled graphs.

Structurally equal ones are one row, so that kernels and plans made for one serve all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..dispatch import p_empty
from ..dtype import DType
from .archetype import Epilogue, Matmul
from .table import ATTR, OPERAND, SCALAR, Inferred, Op, Param, Spec

_cache: dict[Any, Op] = {}


def fused_matmul_op(
    base: Op,
    epilogue: Epilogue,
    inputs: Sequence[str],
    scalars: Sequence[tuple[str, str]],
    outputs: Sequence[DType],
    numbered: bool = False,
) -> Op:
    """The row of a product `base` with an epilogue. Its arguments are the two matrices, the epilogue's inputs (each loaded
    in its own dtype and laid out as Epilogue says), the scalars (name, WGSL type), and if `numbered`, which statements are
    that name {index}, the attribute `index`: by how much an element's number grows along each dimension.

    The row has no gradient: it is made after differentiation.
    """
    key = (base, epilogue, tuple(inputs), tuple(scalars), tuple(outputs), numbered)
    found = _cache.get(key)
    if found is not None:
        return found
    dtypes = tuple(outputs)
    left, right = (p.name for p in base.params)

    def rule(**args: Any) -> Inferred:
        a, b = args[left], args[right]
        lead = a.shape[:-2] if len(a.shape) >= len(b.shape) else b.shape[:-2]
        full = [args[n].shape for n in inputs]
        shape = full[0] if full else (*lead, a.shape[-2], b.shape[-1])
        attrs = {"index": args["index"]} if numbered else {}
        return Inferred(tuple(Spec(d, shape) for d in dtypes), (a.dtype, b.dtype, *(args[n].dtype for n in inputs)), attrs)

    params = [*base.params, *(Param(n, OPERAND, "", p_empty) for n in inputs), *(Param(n, SCALAR, t, p_empty) for n, t in scalars)]
    params += [Param("index", ATTR, "", p_empty)] * numbered
    name = f"{base.name}_fused{len(_cache)}"
    doc, built = "A matrix product with an epilogue.", (fused_matmul_op, *key)
    row = Op(name, __name__, doc, Matmul(epilogue), params, rule=rule, public=False, method=False, built=built)
    if len(_cache) > 4096:
        _cache.clear()
    _cache[key] = row
    return row
