"""The order of the elements of each row: for sort, argsort, topk and whatever else wants ranks.

In: a Call named 'sort', rows along the last dimension. Out: a launch that maps elements to u32 keys of the same order,
then those of sort.py. Keys hold no more bits than the dtype needs, as every few bits cost a pass.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ..dtype import DType, uint32
from ..errors import DeviceError
from ..shape import contiguous_strides, numel
from ..storage import Layout
from . import pointwise, sort
from .kernel import TEMP, Call, Launch, Lowered, Profile

if TYPE_CHECKING:
    from ..ops.table import Op


class _Keys:
    """Stands for the op of the launch that makes the keys."""

    archetype = None

    def __repr__(self) -> str:
        return "<sort keys>"


_KEYS = cast("Op", _Keys())
_BITS = "bitcast<u32>({source})"


def key_of(dtype: DType, descending: bool) -> tuple[int, str]:
    """Bits of a key, and the expression that makes it from {source}: larger elements have larger keys (smaller ones for
    `descending`), NaN the largest, and -0 the key of 0."""
    if dtype.kind == "f":
        # float16 leaves the low 13 bits of a float32 alone, bfloat16 16 of them
        bits = {"float16": 19, "bfloat16": 16}.get(dtype.name, 32)
        ordered = f"select({_BITS} | 0x80000000u, ~{_BITS}, {_BITS} > 0x80000000u)"
        code = f"select({ordered}, 0xffffffffu, ({_BITS} & 0x7fffffffu) > 0x7f800000u) >> {32 - bits}u"
    elif dtype.kind == "b":
        bits, code = 1, "select(0u, 1u, {source})"
    elif dtype.kind == "u":
        bits, code = dtype.bits, "{source}"
    elif dtype.bits == 8:
        bits, code = 8, "u32({source} + 128)"
    else:
        bits, code = 32, f"{_BITS} ^ 0x80000000u"
    return bits, f"({code}) ^ {hex((1 << bits) - 1)}u" if descending else code


def keys(x: Layout, pitch: int, descending: bool, target: int, profile: Profile) -> list[Launch]:
    """Launches that write the keys of operand 0, laid out as x, to binding `target`: rows of the last dimension, `pitch` apart."""
    _, code = key_of(x.dtype, descending)
    strides = (*(s * pitch for s in contiguous_strides(x.shape[:-1])), 1) if x.shape else ()
    made = Call(_KEYS, ("source",), (x,), (Layout(uint32, x.shape, strides),), (x.dtype,))
    return [
        replace(launch, bindings=tuple((0, target)[b] for b in launch.bindings))
        for launch in pointwise.launches(made, (("result", "u32", code),), ("result",), profile)
    ]


def lower(call: Call, profile: Profile) -> Lowered:
    """Launches for sort: the place of each element in order, int64."""
    x, out = call.inputs[0], call.outputs[0]
    assert x is not None
    if out.numel == 0:
        return Lowered(())
    if not out.contiguous or out.offset or call.alias:
        raise DeviceError(f"{call.op.name}: the output must be a tensor of its own, not {out!r}")
    count, rows = (x.shape[-1], numel(x.shape[:-1])) if x.shape else (1, 1)
    descending = call.attrs["descending"]
    plan = sort.plan(count, key_of(x.dtype, descending)[0], profile, rows)
    first = keys(x, plan.pitch, descending, TEMP(0), profile)
    last = plan.passes % 2  # the passes write their positions to two buffers in turn; the last one to the output
    temps = (TEMP(1), 1 if last else TEMP(2), TEMP(2) if last else 1, TEMP(3))
    sizes = plan.temps()
    launches, _, _ = sort.launches(plan, TEMP(0), temps, profile)
    return Lowered((*first, *launches), (sizes[0], sizes[0], sizes[2], sizes[3]))
