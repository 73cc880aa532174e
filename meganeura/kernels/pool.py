"""Windows over up to three trailing dimensions: pooling, resampling, and their gradients, which gather instead of scattering.

In: a Call of Kernel 'window' (options: `kind` and `reach`). Out: one launch, an invocation a result; several where an operand exceeds
a binding. A result is a maximum or a weighted sum of its source over a box of neighbours, one range an axis. Ranges come from
window sizes ('strided'), from those turned round ('spread': the windows that an element is in), from a division of the axis
('adaptive', its own reverse), or from tables ('table').
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import DeviceError
from ..shape import Shape, collapse, numel
from ..storage import Layout
from . import template as T
from .kernel import Call, Kernel, Launch, Lowered, Profile
from .operand import Bound, Operand, bind
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
    if profile.family == "cpu":
        call, reach = _divided(call, reach, source_sizes, inner)
        attrs = call.attrs
    operands = [(Operand(call.names[i], x.dtype, call.compute[i]), i, x) for i, x in enumerate(call.inputs) if x is not None]
    operands += [(Operand(f"out.{j}", x.dtype, write=True), len(call.inputs) + j, x) for j, x in enumerate(call.outputs)]
    bound = bind(operands, call.alias, profile, call.op.name, narrow)
    rows = ROWS if lead and lead[0] >= ROWS and out.numel >= MANY[profile.family] else 1
    near = _near(reach, call, images, bound, rows) if profile.family == "cpu" and out.numel >= MANY["cpu"] else None
    if near:
        rows = near.rows
        operands = [(replace(o, width=4) if near.wide_operand(o) else o, i, x) for o, i, x in operands]
        bound = bind(operands, call.alias, profile, call.op.name, narrow)
    across = 4 if near else 1
    shifts = dict(zip((o.name for o in bound.operands), bound.shifts, strict=True))
    summed = profile.family == "cpu" and not near and _summed(options["kind"], reach, call, images, shifts[call.names[images[0][0]]])
    if summed:
        operands = [(replace(o, width=4) if i == images[0][0] else o, i, x) for o, i, x in operands]
        bound = bind(operands, call.alias, profile, call.op.name, narrow)
    count = lead[0] if lead else 1
    teams = (-(-count // rows), *lead[1:]) if lead else ()
    items = out.numel // count // across * (teams[0] if teams else 1)
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
        fast=profile.family == "cpu" and max(items, _largest(reach, call, source_sizes, inner)) < T.MAX_RECIPROCAL,
        rows=rows,
        summed=summed,
        **(near.form() if near else {}),
    )
    words = [items, count, out.numel // count // across, *teams, *inner, *source_sizes[:-1], source_sizes[-1] // (4 if summed else 1)]
    if form.fast:
        steps_ = [w[1] for w in attrs["windows"]] if reach in ("strided", "spread") else [1] * axes
        words += [T.reciprocal(n) for n in (*teams, *inner, *steps_)]
    if near:
        words += [inner[-1] // 4, T.reciprocal(inner[-1] // 4)]
    if reach in ("strided", "spread"):
        words += [v for w in attrs["windows"][:-1] for v in w]
        k, s, p, d = attrs["windows"][-1]
        words += [k // 4, s // 4, p, d] if summed else [k, s, p, d]
    at = first = 0
    for size, taps in zip(attrs["size"], attrs.get("taps", ()), strict=False):
        words += [taps, first, at]
        first, at = first + size, at + size * taps
    for (i, x), st in zip(images, steps, strict=True):
        unit = 4 if summed or (near and near.wide) else 1
        words += [v // unit for v in (x.offset - shifts[call.names[i]], *st, *x.strides[-axes:-1])] + [x.strides[-1]]
    words += [v for name, x in _tables(call) for v in (x.offset - shifts[name], x.strides[0])]
    words += [(x.offset - shifts[f"out.{j}"]) // across for j, x in enumerate(call.outputs)]
    kernel = Kernel(("window", form), lambda profile: source(form, profile), bound.access, call.op.name, trusted=True)
    return Launch(kernel, bound.numbers, T.grid(-(-items // T.WORKGROUP)), T.pack(words), ranges=bound.ranges)


SHORT = 4  # elements along the last axis up to which four neighbours are made at once
LOADS = 32  # of elements that an invocation then makes in a line: more takes long to build


@dataclass(frozen=True, slots=True)
class Near:
    """How an invocation makes four neighbours along the last axis: what WindowForm says of it."""

    rows: int
    taps: int
    masked: bool
    window: tuple[int, int, int, int] | None
    wide: bool
    lined: bool
    span: bool
    exact: bool

    def form(self) -> dict[str, Any]:
        names = ("taps", "masked", "window", "lined", "span", "exact")
        return {**{n: getattr(self, n) for n in names}, "wide": self.wide and not self.span}

    def wide_operand(self, o: Operand) -> bool:
        """Whether an operand is read or written as vec4s."""
        return o.write or (self.lined if o.name in ("first", "weight") else self.wide)


def _near(reach: str, call: Call, images: Sequence[tuple[int, Layout]], bound: Bound, rows: int) -> Near | None:
    """Four neighbours at once, where windows are short and rows of results whole vec4s."""
    axes, out = len(call.attrs["size"]), call.outputs[0]
    source, size = images[0][1].shape[-1], out.shape[-1]
    shifts = dict(zip((o.name for o in bound.operands), bound.shifts, strict=True))
    if size % 4 or any((x.offset - shifts[f"out.{j}"]) % 4 for j, x in enumerate(call.outputs)):
        return None
    window, masked, lined = None, True, False
    if reach == "table":
        taps, masked = call.attrs["taps"][-1], False
        before = (sum(call.attrs["size"][:-1]), sum(a * b for a, b in zip(call.attrs["size"][:-1], call.attrs["taps"], strict=False)))
        lined = all(x.strides[0] == 1 and (x.offset - shifts[name] + before[name == "weight"]) % 4 == 0 for name, x in _tables(call))
    elif reach == "adaptive":
        taps = -(-source // size) + (source % size > 0)
    else:
        k, s, p, d = call.attrs["windows"][-1]
        taps = k if reach == "strided" else (k - 1) * d // s + 1
        if reach == "strided":
            window, masked = (k, s, p, d), p > 0 or (size - 1) * s + (k - 1) * d >= source
        elif 4 % s == 0:
            window, masked = (k, s, p, d), (k, p, size) != (s, 0, source * s)
    if taps > SHORT or (window and window[1] * 4 > 16):
        return None
    strides = [v for _, x in images for v in (x.offset - shifts[call.names[images[0][0]]], *x.strides[:-1])]
    plain = source % 4 == 0 and all(x.strides[-1] == 1 for _, x in images) and not any(v % 4 for v in strides)
    span = reach == "table" and plain and len(images) == 1 and _rising(call)
    wide = span or (window is not None and reach == "strided" and plain and len(images) == 1)
    form = WindowForm("", reach, False, "", (), (), 0, axes, False, False, 1, taps, masked, window)
    loads = len({name for _, name, _ in form.uses()}) * len(images)
    return Near(
        max(1, min(rows, LOADS // (loads // 4 if wide else loads))),
        taps,
        masked,
        window,
        wide,
        lined,
        span,
        reach == "table" and _nearest(call),
    )


def _nearest(call: Call) -> bool:
    """Whether resizing an image copies elements."""
    plan = call.attrs.get("plan")
    return plan is not None and not call.attrs["back"] and all(mode in ("nearest", "nearest-exact") for mode, *_ in plan)


def _rising(call: Call) -> bool:
    """Whether neighbours along the last axis of a resized image begin at most one element apart."""
    plan = call.attrs.get("plan")
    if plan is None or call.attrs["back"]:
        return False
    _, n, m, scale, _ = plan[-1]
    if n == m:
        return scale in (None, 1.0)
    return bool(n <= SLOPE * m and m < FAR and (scale is None or scale >= 1 / SLOPE))


SLOPE, FAR = 0.998, 16384  # of places against results, and results, for which rounding moves no place by a whole element


def _divided(call: Call, reach: str, sources: Shape, sizes: Shape) -> tuple[Call, str]:
    """A division of axes into equal parts is one into windows."""
    back = call.op.archetype.options.get("back", "") == "yes"  # type: ignore[attr-defined]
    whole, parts = (sizes, sources) if back else (sources, sizes)
    if reach != "adaptive" or any(n % m for n, m in zip(whole, parts, strict=True)):
        return call, reach
    windows = tuple((n // m, n // m, 0, 1) for n, m in zip(whole, parts, strict=True))
    return replace(call, attrs={**call.attrs, "windows": windows}), "spread" if back else "strided"


def _summed(kind: str, reach: str, call: Call, images: Sequence[tuple[int, Layout]], shift: int) -> bool:
    """Whether windows of a sum are whole vec4s along the last axis."""
    x = images[0][1]
    if (
        kind != "sum"
        or reach != "strided"
        or x.strides[-1] != 1
        or x.shape[-1] % 4
        or any(v % 4 for v in (x.offset - shift, *x.strides[:-1]))
    ):
        return False
    k, s, p, d = call.attrs["windows"][-1]
    return bool(k % 4 == 0 and s % 4 == 0 and p == 0 and d == 1 and (call.outputs[0].shape[-1] - 1) * s + k <= x.shape[-1])


def _largest(reach: str, call: Call, sources: Shape, sizes: Shape) -> int:
    """The largest number that is divided by a step or a size."""
    if reach == "adaptive":
        return max([(n + 1) * (m + 1) for n, m in zip(sources, sizes, strict=True)])
    if reach == "spread":
        return max(int(m + k + p) for m, (k, _, p, _) in zip(sizes, call.attrs["windows"], strict=True))
    return 0


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
