"""Windows over up to three trailing dimensions: pooling, resampling, and their gradients, which gather instead of scattering.

In: a Call of Kernel 'window' (options: `kind` and `reach`). Out: one launch, an invocation a result; several where an operand exceeds
a binding. A result is a maximum or a weighted sum of its source over a box of neighbours, one range an axis. Ranges come from
window sizes ('strided'), from those turned round ('spread': the windows that an element is in), from a division of the axis
('adaptive', its own reverse), or from tables ('table').
"""

from __future__ import annotations

from dataclasses import replace

from ..errors import DeviceError
from ..shape import Shape, collapse, numel
from ..storage import Layout
from . import template as T
from .kernel import Call, Kernel, Launch, Lowered, Profile
from .operand import Operand, bind
from .pool_wgsl import WindowForm, source

LONGEST = 60000  # turns of loops after which software Vulkan stops an invocation
ROWS = 4  # results an invocation makes, in as many rows: their places and windows are found once
MANY = {"cpu": 4096, "gpu": 1 << 19}  # results from which that leaves invocations enough
WIDEST = 1 << 32  # numbers that divisions of an axis reach


def lower(call: Call, profile: Profile) -> Lowered:
    """The launches of a window kernel."""
    out = call.outputs[0]
    if out.numel == 0:
        return Lowered(())
    if any(not x.contiguous for x in call.outputs):
        raise DeviceError(f"{call.op.name}: results must be contiguous, not {call.outputs!r}")
    pieces = _pieces(call, profile)
    return Lowered(tuple(_launch(piece, profile, len(pieces) > 1 or T.large(call, profile)) for piece in pieces))


def _pieces(call: Call, profile: Profile) -> list[Call]:
    """The call, or calls on parts of a leading dimension whose operands each fit a binding."""
    axes = len(call.attrs["size"])
    layouts = [x for x in (*call.inputs, *call.outputs) if x is not None]
    if all((b - a + 1) * x.dtype.itemsize + 512 <= profile.max_binding for x in layouts for a, b in [x.span()]):
        return [call]
    lead = call.outputs[0].shape[:-axes]
    d = next((d for d, n in enumerate(lead) if n > 1), -1)
    if d < 0:
        return [call]
    half = lead[d] // 2
    out = []
    for first, count in ((0, half), (half, lead[d] - half)):
        ins = tuple(_part(x, d, first, count) if x is not None and _is_image(call, i) else x for i, x in enumerate(call.inputs))
        outs = tuple(_part(x, d, first, count) for x in call.outputs)
        out += _pieces(replace(call, inputs=ins, outputs=outs), profile)
    return out


def _is_image(call: Call, i: int) -> bool:
    return call.names[i] not in ("first", "weight")


def _part(x: Layout, d: int, first: int, count: int) -> Layout:
    shape = (*x.shape[:d], count, *x.shape[d + 1 :])
    return x.with_(shape=shape, strides=x.strides, offset=x.offset + first * x.strides[d])


def _launch(call: Call, profile: Profile, narrow: bool) -> Launch:
    options, attrs, out = call.op.archetype.options, call.attrs, call.outputs[0]  # type: ignore[attr-defined]
    axes = len(attrs["size"])
    reach = options["reach"]
    if reach in ("strided", "spread") and not attrs["windows"][0]:
        reach = "adaptive"
    images = [(i, x) for i, x in enumerate(call.inputs) if x is not None and _is_image(call, i)]
    lead_shape, inner = out.shape[:-axes], out.shape[-axes:]
    lead, steps = collapse(lead_shape, *(x.strides[:-axes] for _, x in images))
    source_sizes = images[0][1].shape[-axes:]
    _check(call, reach, source_sizes, inner, profile)
    operands = [(Operand(call.names[i], x.dtype, call.compute[i]), i, x) for i, x in enumerate(call.inputs) if x is not None]
    operands += [(Operand(f"out.{j}", x.dtype, write=True), len(call.inputs) + j, x) for j, x in enumerate(call.outputs)]
    bound = bind(operands, call.alias, profile, call.op.name, narrow)
    rows = ROWS if lead and lead[0] >= ROWS and out.numel >= MANY[profile.family] else 1
    count = lead[0] if lead else 1
    teams = (-(-count // rows), *lead[1:]) if lead else ()
    items = out.numel // count * (teams[0] if teams else 1)
    form = WindowForm(
        kind=options["kind"],
        reach=reach,
        back=options.get("back", "") == "yes",
        count=attrs.get("count", ""),
        operands=bound.operands,
        access=bound.access,
        lead=len(lead),
        axes=axes,
        dilated=any(w[3] > 1 for w in attrs.get("windows", ()) if w),
        fast=profile.family == "cpu" and items < T.MAX_RECIPROCAL,
        rows=rows,
    )
    words = [items, count, out.numel // count, *teams, *inner, *source_sizes]
    if form.fast:
        words += [T.reciprocal(n) for n in (*teams, *inner)]
    if reach in ("strided", "spread"):
        words += [v for w in attrs["windows"] for v in w]
    at = first = 0
    for size, taps in zip(attrs["size"], attrs.get("taps", ()), strict=False):
        words += [taps, first, at]
        first, at = first + size, at + size * taps
    shifts = dict(zip((o.name for o in bound.operands), bound.shifts, strict=True))
    for (i, x), st in zip(images, steps, strict=True):
        words += [x.offset - shifts[call.names[i]], *st, *x.strides[-axes:]]
    words += [v for name, x in _tables(call) for v in (x.offset - shifts[name], x.strides[0])]
    words += [x.offset - shifts[f"out.{j}"] for j, x in enumerate(call.outputs)]
    kernel = Kernel(("window", form), lambda profile: source(form, profile), bound.access, call.op.name, trusted=True)
    return Launch(kernel, bound.numbers, T.grid(-(-items // T.WORKGROUP)), T.pack(words), ranges=bound.ranges)


def _tables(call: Call) -> list[tuple[str, Layout]]:
    return [(n, x) for n, x in zip(call.names, call.inputs, strict=True) if n in ("first", "weight") and x is not None]


def _check(call: Call, reach: str, source_sizes: Shape, sizes: Shape, profile: Profile) -> None:
    """Refuse what would overflow or be cut short without a word."""
    if reach == "adaptive" and any((n + 1) * (m + 1) >= WIDEST for n, m in zip(source_sizes, sizes, strict=True)):
        raise DeviceError(f"{call.op.name}: {source_sizes} to {sizes} is too large a division of an axis")
    if profile.family != "cpu":
        return
    if reach == "table":
        turns = numel(call.attrs["taps"])
    elif reach == "strided":
        turns = numel([min(w[0], n) for w, n in zip(call.attrs["windows"], source_sizes, strict=True)])
    elif reach == "spread":
        turns = numel([min(n, (w[0] - 1) * w[3] // w[1] + 1) for w, n in zip(call.attrs["windows"], source_sizes, strict=True)])
    else:
        turns = numel([-(-n // m) + 1 for n, m in zip(source_sizes, sizes, strict=True)])
    if turns > LONGEST:
        raise DeviceError(f"{call.op.name}: windows of {turns} elements are too large for software Vulkan; pool in several steps")
