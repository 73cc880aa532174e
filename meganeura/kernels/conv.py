"""Conv: convolutions and their gradients, in f32 sums.

lower() brings a call to a problem over three spatial axes, cuts the batch where an operand does not fit a binding, and hands
each part to the kernels of the device's family.
"""

from __future__ import annotations

from dataclasses import replace

from ..errors import DeviceError
from ..ops.archetype import Conv
from ..storage import Layout
from . import (
    conv_cpu,
    conv_direct,
    conv_gpu,
    conv_single,
    conv_tiled,
    conv_weigh,
    conv_window,
    conv_window_weight,
    conv_winograd_gpu,
    move,
    pointwise,
)
from . import template as T
from .conv_fusion import fused_problem
from .conv_problem import Gather, Problem, Weigh, problem
from .conv_sum import add_slices, partial, slice_elements
from .kernel import TEMP, Call, Launch, Lowered, Profile


def lower(call: Call, profile: Profile) -> Lowered:
    """Launches for one call."""
    assert isinstance(call.op.archetype, Conv)
    role = call.op.archetype.role
    if call.outputs[0].numel == 0:
        return Lowered(())
    if any(x is not None and x.numel == 0 for x in call.inputs):
        return Lowered(_nothing(call, profile))
    launches: list[Launch] = []
    temps: list[int] = []
    if call.op.archetype.epilogue is not None:
        fused = fused_problem(call, call.op.archetype.epilogue, profile)
        if fused is None:
            raise DeviceError(f"{call.op} does not fit this device")
        for piece in _pieces(fused, profile):
            launches += _plan(piece, profile, temps)
        return Lowered(tuple(launches), tuple(temps))
    pieces = [problem(x, role, profile) for x in _cut(call, role, profile)]
    first = pieces[0]
    if isinstance(first, Weigh) and len(pieces) > 1:
        _summed(pieces, profile, launches, temps)
    else:
        for p in pieces:
            launches += _plan(p, profile, temps)
    return Lowered(tuple(launches), tuple(temps))


FEW = 64  # products of input and output channels a group under which tiles do not pay


def _plan(p: Problem, profile: Profile, temps: list[int]) -> list[Launch]:
    """The launches of a problem that fits; `temps` is extended by what they need."""
    g = p.geometry
    if g.single and profile.family == "cpu":
        launches = conv_single.plan(p, profile, temps)
        if launches is not None:
            return launches
    if conv_cpu.suits(profile):
        return conv_cpu.weigh(p, profile, temps) if isinstance(p, Weigh) else conv_cpu.gather(p, profile, temps)
    if profile.family == "gpu" and isinstance(p, Gather) and conv_window.suits(p):
        return conv_window.gather(p, temps)
    if profile.family == "gpu" and isinstance(p, Weigh) and g.m * g.c < FEW and conv_window_weight.suits(p):
        return conv_window_weight.weigh(p, temps)
    if profile.family == "cpu" or g.m * g.c < FEW or g.groups > profile.max_groups or not conv_tiled.possible(profile):
        return conv_direct.weigh(p) if isinstance(p, Weigh) else conv_direct.gather(p, temps)
    how = conv_winograd_gpu.way(p, profile)
    if isinstance(p, Weigh):
        return conv_winograd_gpu.weigh(p, how, temps) if how else conv_weigh.weigh(p, profile, temps)
    if how:
        return conv_winograd_gpu.gather(p, how, temps)
    return conv_gpu.gather(p, profile, temps)


def _nothing(call: Call, profile: Profile) -> tuple[Launch, ...]:
    """A result without products: the bias, or zero."""
    out, n = call.outputs[0], len(call.inputs)
    bias = call.inputs[call.names.index("bias")] if "bias" in call.names else None
    if bias is not None:
        spread = bias.with_(shape=out.shape, strides=(0, bias.strides[0], *(0,) * (len(out.shape) - 2)))
        return move.copies(spread, out, (call.names.index("bias"), n), profile)
    empty = replace(call, names=(), inputs=(), compute=(), attrs={}, scalars=(), alias=())
    made = pointwise.launches(empty, (("result", "f32", "0.0"),), ("result",), profile)
    return tuple(replace(x, bindings=tuple(n if b == 0 else b for b in x.bindings)) for x in made)


# --- parts that fit a binding -------------------------------------------------------------------------------------------


def _cut(call: Call, role: str, profile: Profile) -> list[Call]:
    """The call, or calls on fewer entries of the batch each, whose operands and temporaries fit a binding."""
    batched = [x for x in ((*call.inputs[:2],) if role == "weight" else (call.inputs[0], call.outputs[0])) if x is not None]
    n = batched[0].shape[0]
    if n == 1 or (not T.large(call, profile) and _temporaries(call, role, profile) <= profile.max_binding):
        return [call]
    if all((x.span()[1] - x.span()[0] + 1) * x.dtype.itemsize <= profile.max_binding - 512 for x in batched):
        if _temporaries(call, role, profile) <= profile.max_binding:
            return [call]
    half = n // 2
    return [part for low, high in ((0, half), (half, n)) for part in _cut(_part(call, role, low, high), role, profile)]


def _temporaries(call: Call, role: str, profile: Profile) -> int:
    """Bytes of the largest temporary."""
    temps: list[int] = []
    _plan(problem(call, role, profile), profile, temps)
    return max(temps, default=0)


def _pieces(p: Gather, profile: Profile) -> list[Gather]:
    """The problem, or problems on fewer entries of the batch each, whose temporaries fit a binding."""
    temps: list[int] = []
    _plan(p, profile, temps)
    n = p.geometry.n
    if n == 1 or max(temps, default=0) <= profile.max_binding:
        return [p]
    return [*_pieces(p.batch(0, n // 2), profile), *_pieces(p.batch(n // 2, n), profile)]


def _part(call: Call, role: str, low: int, high: int) -> Call:
    """The call on entries low to high of the batch."""

    def cut(x: Layout | None) -> Layout | None:
        return x and x.with_(shape=(high - low, *x.shape[1:]), strides=x.strides, offset=x.offset + low * x.strides[0])

    first, second, *rest = call.inputs
    if role == "weight":
        return replace(call, inputs=(cut(first), cut(second)))
    out = cut(call.outputs[0])
    assert out is not None
    return replace(call, inputs=(cut(first), second, *rest), outputs=(out,))


def _summed(pieces: list[Problem], profile: Profile, launches: list[Launch], temps: list[int]) -> None:
    """Weight gradients of parts of the batch, each into its slice of a temporary, and their sum."""
    first = pieces[0]
    assert isinstance(first, Weigh)
    g = first.geometry
    shape = (g.groups * g.m, g.c, g.kernel)
    index = TEMP(len(temps))
    temps.append(slice_elements(shape) * 4 * len(pieces))
    for i, p in enumerate(pieces):
        assert isinstance(p, Weigh)
        target = partial(g.c, g.kernel, index, i * slice_elements(shape), temps[-1 - index] if p.target.part else 0)
        launches += _plan(replace(p, target=target), profile, temps)
    launches.append(add_slices(first.target, None, shape, index, len(pieces)))
