"""Convolutions that go on computing with what they have summed up: builds the rows that fusion uses in compiled graphs.

Structurally equal ones are one row, so that kernels and plans made for one serve all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..dispatch import p_empty
from ..dtype import DType
from ..shape import numel
from .archetype import Conv, Epilogue
from .table import ATTR, OPERAND, SCALAR, Inferred, Op, Param, Spec

_cache: dict[Any, Op] = {}


def fused_conv_op(
    base: Op,
    epilogue: Epilogue,
    inputs: Sequence[str],
    scalars: Sequence[tuple[str, str]],
    outputs: Sequence[DType],
    numbered: bool = False,
) -> Op:
    """The row of a convolution `base` (or input gradient) with an epilogue. Its arguments are those of `base`, the epilogue's
    inputs (each loaded in its own dtype and laid out as Epilogue says), the scalars (name, WGSL type), and if `numbered`,
    which statements are that name {index}, the attribute `index`: by how much an element's number grows along each dimension.

    The row has no gradient: it is made after differentiation.
    """
    key = (base, epilogue, tuple(inputs), tuple(scalars), tuple(outputs), numbered)
    found = _cache.get(key)
    if found is not None:
        return found
    dtypes, kind = tuple(outputs), base.archetype
    assert isinstance(kind, Conv)

    def rule(**args: Any) -> Inferred:
        own = [args[n] for n in base.inputs if args[n] is not None]
        weight, full = own[1], [args[n] for n in inputs]
        channels = weight.shape[0] if kind.role == "output" else weight.shape[1] * args["groups"]
        shape = full[0].shape if full else (own[0].shape[0], channels, numel(args["size"]))
        attrs = {"index": args["index"]} if numbered else {}
        return Inferred(tuple(Spec(d, shape) for d in dtypes), tuple(x.dtype for x in (*own, *full)), attrs)

    params = [*base.params, *(Param(n, OPERAND, "", p_empty) for n in inputs), *(Param(n, SCALAR, t, p_empty) for n, t in scalars)]
    params += [Param("index", ATTR, "", p_empty)] * numbered
    name = f"{base.name}_fused{len(_cache)}"
    doc, built = "A convolution with an epilogue.", (fused_conv_op, *key)
    row = Op(name, __name__, doc, replace(kind, epilogue=epilogue), params, rule=rule, public=False, method=False, built=built)
    if len(_cache) > 4096:
        _cache.clear()
    _cache[key] = row
    return row
