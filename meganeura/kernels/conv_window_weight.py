"""Weight gradients of few channels a group (depthwise) for GPUs: a workgroup makes the taps of one output channel and a few input
channels. Its invocations walk blocks of pixels, each reading a window of the image once for all taps, and add up at the end.

Where groups are few the pixels are cut into slices that a second launch adds up, always in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .. import dtype as D
from ..dtype import DType
from . import template as T
from .conv_problem import Field, Weigh, ranges
from .conv_sum import add_slices, partial, slice_elements
from .conv_window import SIZE, Span, Walk, flat, places, walk, window
from .kernel import TEMP, Kernel, Launch

SUMS = 50  # sums of an invocation at most
GROUPS = 1056  # workgroups that fill a device
TURNS = 4  # of an invocation at least


@dataclass(frozen=True, slots=True)
class Form:
    """What decides the text. `channels`: input channels of a workgroup; `whole`: blocks fill the image along y."""

    input: DType
    grad: DType
    target: DType
    channels: int
    y: Span
    x: Span
    whole: bool

    @property
    def sums(self) -> list[tuple[int, int, int]]:
        return [(c, ty, tx) for c in range(self.channels) for ty in range(self.y.taps) for tx in range(self.x.taps)]


FIELDS = (
    "m", "parts", "items", "per", "blocks", "by_blocks", "wide", "by_wide", "c", "o_slice",
    "size_y", "reach_y", "reach_x", "front_y", "front_x", "step_y", "step_x", "results",
    *Field.names("x"), *Field.names("g"), *Field.names("o"),
)  # fmt: skip


def _walks(p: Weigh) -> tuple[Walk, Walk]:
    g = p.geometry
    repeat = 4 if g.taps <= 25 and g.output[1] > 1 else 1
    return walk(g, 1, False, repeat), walk(g, 2, False, 1)


def suits(p: Weigh) -> bool:
    """Whether this kernel is for the problem, given that it has few channels a group."""
    g = p.geometry
    y, x = _walks(p)
    return flat(g) and g.taps <= SUMS and g.n * y.blocks * x.blocks < T.MAX_RECIPROCAL


def weigh(p: Weigh, temps: list[int]) -> list[Launch]:
    """The launches of a problem that suits; `temps` is extended by what they need."""
    g = p.geometry
    y, x = _walks(p)
    channels = next(k for k in (4, 3, 2, 1) if g.c % k == 0 and (k == 1 or k * g.taps <= SUMS))
    items = g.n * y.blocks * x.blocks
    results = g.groups * g.m * (g.c // channels)
    per = -(-items // max(1, min(-(-GROUPS // results), items // (TURNS * SIZE))))
    slices = -(-items // per)
    shape, temp, target = (g.groups * g.m, g.c, g.kernel), TEMP(len(temps)), p.target
    if slices > 1:
        temps.append(slice_elements(shape) * 4 * slices)
        target = partial(g.c, g.kernel, temp, 0, temps[-1] if p.target.part else 0)
    f = Form(p.input.dtype, p.grad.dtype, target.dtype, channels, y.span, x.span, g.output[1] % y.span.block == 0)
    blocks = y.blocks * x.blocks
    words = [g.m, g.c // channels, items, per, blocks, T.reciprocal(blocks), x.blocks, T.reciprocal(x.blocks), g.c]
    words += [slice_elements(shape), g.output[1], *g.input[1:], y.front, x.front, y.step, x.step, results]
    words += [*p.input.words(), *p.grad.words(), *target.words()]
    fields = [p.input, p.grad, target]
    kernel = Kernel(
        ("conv", "window weight", f), lambda _: _source(f), ("read", "read", "read_write"), label="conv_window_weight", trusted=True
    )  # fmt: skip
    across, down, _ = T.grid(results)
    launch = Launch(kernel, tuple(v.binding for v in fields), (across, down, slices), T.pack(words), ranges=ranges(fields))
    return [launch, add_slices(p.target, None, shape, temp, slices)] if slices > 1 else [launch]


def _source(f: Form) -> str:
    dtypes = [f.input, f.grad, f.target]
    body = "\n".join(_lines(f)) + "\n"
    out = "enable f16;\n" if any(d.storage == "f16" for d in dtypes) else ""
    for i, (name, dtype) in enumerate(zip("xgo", dtypes, strict=True)):
        out += T.storage(i, name, T.element(dtype), "read_write" if name == "o" else "read")
    return out + T.uniform(3, FIELDS) + T.prelude(body) + body


def _lines(f: Form) -> Iterator[str]:
    names = [f"s{c}_{ty}_{tx}" for c, ty, tx in f.sums]
    yield f"var<workgroup> sums: array<array<f32, {SIZE // 2}>, {len(names)}>;"
    yield f"@compute @workgroup_size({SIZE}) fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) local: u32) {{"
    yield f"let number = w.y * {T.FOLD}u + w.x; if (number >= p.results) {{ return; }}"
    yield f"let row = number / p.parts; let c0 = number % p.parts * {f.channels}u;"
    yield "let x_at = p.x_off + (row / p.m * p.c + c0) * p.x_c; let g_at = p.g_off + row * p.g_c;"
    yield from (f"var {name} = 0.0;" for name in names)
    yield f"let last = min((w.z + 1u) * p.per, p.items); for (var item = w.z * p.per + local; item < last; item += {SIZE}u) {{"
    yield "let n = u32(f32(item) * bitcast<f32>(p.by_blocks)); let in_plane = item - n * p.blocks;"
    yield "let by = u32(f32(in_plane) * bitcast<f32>(p.by_wide)); let bx = in_plane - by * p.wide;"
    yield from places(f.y, "y", "by")
    yield from places(f.x, "x", "bx")
    yield f"let y0 = by * {f.y.block}u; let g_first = g_at + n * p.g_n + y0 * p.g_y + bx * p.g_x;"
    for u in range(f.y.block):
        place = "g_first"
        if u:
            place = f"g_first + {u}u * p.g_y" if f.whole else f"g_first + select(0u, {u}u * p.g_y, y0 + {u}u < p.size_y)"
        yield f"let g{u} = {T.load(f.grad, f'g[{place}]', D.float32)};"
    for c in range(f.channels):
        yield "{"
        yield from window(f.y, f.x, f.input, f"x_at + n * p.x_n + {c}u * p.x_c" if c else "x_at + n * p.x_n")
        for u in range(f.y.block):  # what lies below the image has no products: its window may hold infinities
            guard = u > 0 and not f.whole
            yield f"if (y0 + {u}u < p.size_y) {{" if guard else ""
            for _, ty, a in (x for x in f.y.meets if x[0] == u):
                for _, tx, b in f.x.meets:
                    yield f"s{c}_{ty}_{tx} = fma(v{a}_{b}, g{u}, s{c}_{ty}_{tx});"
            yield "}" if guard else ""
        yield "}"
    yield "}"
    half = SIZE // 2
    while half:
        give = " ".join(f"sums[{k}][local - {half}u] = {name};" for k, name in enumerate(names))
        take = " ".join(f"{name} += sums[{k}][local];" for k, name in enumerate(names))
        yield f"workgroupBarrier(); if (local >= {half}u && local < {2 * half}u) {{ {give} }}"
        yield f"workgroupBarrier(); if (local < {half}u) {{ {take} }}"
        half //= 2
    yield "if (local == 0u) { let o_at = p.o_off + w.z * p.o_slice + row * p.o_n + c0 * p.o_c;"
    for (c, ty, tx), name in zip(f.sums, names, strict=True):
        yield f"o[o_at + {c}u * p.o_c + {ty}u * p.o_y + {tx}u * p.o_x] = {T.store('f32', name, f.target)};"
    yield "} }"
