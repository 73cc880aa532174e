"""Convolutions of small images with many channels, for software Vulkan: products with the weights as they lie.

Where there are fewer pixels than channels, bringing the weights into another order takes as long as half of the products. Here they stay:
an output is the product of columns, the taps of every pixel in the order of the weights, and an input gradient adds up the products of
the gradient's pixels with all taps. The other parts are those of `conv_blocks.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..dtype import DType, float32
from . import template as T
from .conv_blocks import DISPATCH, LANES, PANEL, SIZE, Products, Rows, Weights, begin, image, launch, product, row_time
from .conv_fusion import closing, dtypes
from .conv_fusion import launch as stored
from .conv_phases import Phase
from .conv_problem import Field, Gather
from .kernel import TEMP, Launch, Profile
from .matmul_fusion import Epilogue

TAPS = 9  # of a kernel, at most: an invocation has all of four channels
MOST = 60000  # turns of a product, under what lavapipe stops an invocation at


def suits(p: Gather, parts: list[Phase]) -> bool:
    """Whether the kernels here can make it: whole vec4s of weights, one phase with all taps."""
    g, w = p.geometry, p.weight
    if len(parts) != 1 or p.reach[0] != 1 or p.size[0] != 1 or p.target.part or p.source.part or w.dtype is not float32:
        return False
    taps = g.taps
    if g.kernel[0] != 1 or not 1 < taps <= TAPS or parts[0].of("every") != (1, 1, 1) or parts[0].taps.number != taps:
        return False
    steps = (w.c, w.n) if p.transposed else (w.n, w.c)  # between channels of the output, and of the input
    plain = w.spatial[1:] == (g.kernel[2], 1) and steps == (g.c * taps, taps) and w.offset % 4 == 0
    whole = g.c % PANEL == 0 and g.m % 4 == 0 if p.transposed else g.m % PANEL == 0 and g.c % 4 == 0
    return plain and whole and -(-p.depth // 4) * taps <= MOST


def time(p: Gather) -> float:
    """Nanoseconds that one core takes, about."""
    g, taps = p.geometry, p.geometry.taps
    pixels = g.n * (p.reach[1] * p.reach[2] if p.transposed else p.size[1] * p.size[2])
    turns = g.m // 4 * (g.c * taps // PANEL) if p.transposed else g.c // 4 * taps * (g.m // PANEL)
    moving = pixels * (g.m + g.c) * 5.0 + pixels * g.c * taps * (5.0 if p.transposed else 2.0)
    waiting = g.m * g.c * taps * 2.5 if p.transposed else 0.0  # for weights that lie a row apart from turn to turn
    return 4 * DISPATCH + g.groups * (turns * row_time(pixels) + moving + waiting)


def nbytes(p: Gather) -> int:
    """Of the largest temporary for one image."""
    g = p.geometry
    pixels = p.reach[1] * p.reach[2] if p.transposed else p.size[1] * p.size[2]
    return g.groups * (pixels + 49) * max(g.c * g.taps, g.m) * 4


def gather(p: Gather, phase: Phase, temps: list[int]) -> list[Launch]:
    """The launches."""
    return _input(p, phase, temps) if p.transposed else _output(p, phase, temps)


def _output(p: Gather, phase: Phase, temps: list[int]) -> list[Launch]:
    g, taps = p.geometry, p.geometry.taps
    front = tuple(-v for v in phase.of("front"))
    (_, sy, sx), (_, dy, dx), (_, ky, kx) = phase.of("stride"), phase.of("spread"), g.kernel
    size = ((p.size[1] - 1) * sy + (ky - 1) * dy + 1, (p.size[2] - 1) * sx + (kx - 1) * dx + 1)
    x, copied = image(p.source, (g.n, g.groups, p.depth), p.reach, (0, front[1], front[2]), size, temps)
    pixels, deep, columns = g.n * p.size[1] * p.size[2], x.deep * taps, TEMP(len(temps))
    temps.append(g.groups * deep * pixels * 16)
    count = g.groups * x.deep * pixels
    f = ColumnForm(taps, kx, count < T.MAX_RECIPROCAL)
    words = [count, x.deep, g.n, p.size[1], p.size[2], g.groups, x.plane, sy * x.width, sx, dy * x.width, dx, pixels]
    words += [T.reciprocal(v) for v in (x.deep, g.n, p.size[1], p.size[2])]
    sorted_ = launch("columns", f, lambda profile: _columns_source(f, profile), (x.binding, columns), count, words)
    each = deep  # vec4s of a result channel's weights
    weights = Weights(p.weight.binding, "k", p.weight.offset // 4, 0, g.m * each, PANEL * each, each, 4 * each, 1)
    rows = Rows(columns, pixels, 0, deep * pixels, pixels)
    made, multiplied = product(rows, weights, (1, g.groups, deep, g.m // PANEL), temps)
    return [copied, sorted_, multiplied, _stored(p, made, (p.size[1], p.size[2]), None)]


def _input(p: Gather, phase: Phase, temps: list[int]) -> list[Launch]:
    g, taps = p.geometry, p.geometry.taps
    down, across = p.reach[1:]
    x, copied = image(p.source, (g.n, g.groups, g.m), p.reach, (0, 0, 0), (down, across), temps)
    each = g.c * taps // 4  # vec4s of a source channel's weights
    weights = Weights(p.weight.binding, "m", p.weight.offset // 4, 0, g.m * each, LANES, each, 1, 4 * each)
    rows = Rows(x.binding, g.n * x.plane, 0, x.deep * x.plane, x.plane, x.plane, g.groups * x.deep * x.plane)
    made, multiplied = product(rows, weights, (1, g.groups, x.deep, g.c * taps // PANEL), temps)
    return [copied, multiplied, _stored(p, made, (down, across), phase)]


@dataclass(frozen=True, slots=True)
class ColumnForm:
    taps: int
    taps_x: int
    small: bool


COLUMNS = (
    "count", "deep", "n", "size_y", "size_x", "groups", "plane", "x_y", "x_x", "d_y", "d_x", "pixels", "by_deep", "by_n", "by_y", "by_x",
)  # fmt: skip


def _columns_source(f: ColumnForm, profile: Profile) -> str:
    """[groups, depth * taps / 4, pixels]: the taps of four channels, channel by channel."""
    by = ["", "p.by_deep", "p.by_n", "p.by_y", "p.by_x"] if f.small else []
    body = begin(profile) + "  " + T.decompose("i", ["0", "p.deep", "p.n", "p.size_y", "p.size_x"], reciprocals=by) + "\n"
    body += "  let at = ((c2 * p.groups + c0) * p.deep + c1) * p.plane + c3 * p.x_y + c4 * p.x_x;\n"
    for t in range(f.taps):
        body += f"  let v{t} = x[at + {t // f.taps_x}u * p.d_y + {t % f.taps_x}u * p.d_x];\n"
    body += f"  let to = (c0 * p.deep + c1) * {f.taps}u * p.pixels + (c2 * p.size_y + c3) * p.size_x + c4;\n"
    for j in range(f.taps):
        spots = (4 * j + q for q in range(4))
        values = ", ".join(f"v{s % f.taps}.{T.LANES[s // f.taps]}" for s in spots)
        body += f"  o[to + {j}u * p.pixels] = vec4<f32>({values});\n"
    body += "}\n"
    out = T.header(profile, [], T.lanes(profile) > 0) + T.storage(0, "x", "vec4<f32>", "read")
    return out + T.storage(1, "o", "vec4<f32>", "read_write") + T.uniform(2, COLUMNS) + body


@dataclass(frozen=True, slots=True)
class StoreForm:
    """`taps`: of an input gradient, (all, along x), whose products are added up; () where products are results."""

    target: DType
    bias: DType | None
    taps: tuple[int, ...]
    small: bool
    epilogue: Epilogue | None = None


STORE = (
    "count", "quads", "n", "size_y", "size_x", "rows", "wide", "group", "o_off", "o_n", "o_c", "o_y", "o_x", "b_off", "b_c", "by_quads",
    "by_n", "by_y", "by_x", "reach_y", "reach_x", "front_y", "front_x", "d_y", "d_x",
)  # fmt: skip


def _stored(p: Gather, t: Products, reach: tuple[int, int], phase: Phase | None) -> Launch:
    """Store products [groups, pixels, channels / 4] as the target, with the bias; with a phase, the sums over its taps."""
    o: Field = p.target
    g, (_, down, across), quads = p.geometry, p.size, p.rows // 4
    count = g.groups * quads * g.n * down * across
    taps = (g.taps, g.kernel[2]) if phase else ()
    f = StoreForm(o.dtype, p.bias.dtype if p.bias else None, taps, count < T.MAX_RECIPROCAL, p.epilogue(False))
    words = [count, quads, g.n, down, across, p.rows, t.wide, t.group, o.offset, o.n, o.c, *o.spatial[1:]]
    words += [p.bias.offset, p.bias.c] if p.bias else [0, 0]
    words += [T.reciprocal(v) for v in (quads, g.n, down, across)]
    words += [*reach, *phase.of("front")[1:], *phase.of("spread")[1:]] if phase else []
    words += [0] * (len(STORE) - len(words))
    inputs: list[Field] = [Field(t.binding, float32, 0, 0, 0, (0, 0, 0)), *([p.bias] if p.bias else [])]
    key, grid = ("conv", "stored", f), T.grid(-(-count // SIZE))
    return stored(o, p.fusion, False, key, lambda profile: _store_source(f, profile), inputs, grid, words, "conv_stored")


def _store_source(f: StoreForm, profile: Profile) -> str:
    by = ["", "p.by_quads", "p.by_n", "p.by_y", "p.by_x"] if f.small else []
    body = begin(profile) + "  " + T.decompose("i", ["0", "p.quads", "p.n", "p.size_y", "p.size_x"], reciprocals=by) + "\n"
    body += "  let ch = c0 * p.rows + c1 * 4u;\n"
    if f.taps:
        body += _folded(*f.taps)
    else:
        body += "  var sum = t[c0 * p.group + ((c2 * p.size_y + c3) * p.size_x + c4) * p.wide + c1];\n"
    if f.bias:
        body += f"  sum += vec4<f32>({', '.join(T.load(f.bias, f'b[p.b_off + (ch + {k}u) * p.b_c]', float32) for k in range(4))});\n"
    if f.epilogue is not None:
        body += "  let pixel = c3 * p.size_x + c4;\n"
        body += "".join(f"  finish(c2, ch + {k}u, pixel, sum.{T.LANES[k]});\n" for k in range(4)) + "}\n"
    else:
        body += "  let to = p.o_off + c2 * p.o_n + ch * p.o_c + c3 * p.o_y + c4 * p.o_x;\n"
        body += "".join(f"  o[to + {k}u * p.o_c] = {T.store('f32', f'sum.{T.LANES[k]}', f.target)};\n" for k in range(4)) + "}\n"
    out = T.header(profile, [*dtypes(f.target, f.epilogue), *([f.bias] if f.bias else [])], T.lanes(profile) > 0)
    out += T.storage(0, "t", "vec4<f32>" if not f.taps else "f32", "read") + (
        T.storage(1, "b", T.element(f.bias), "read") if f.bias else ""
    )
    return out + closing(f.target, f.epilogue, 2 if f.bias else 1, 1, STORE, body)


def _folded(taps: int, across: int) -> str:
    """sum: over taps of what the pixels that they meet have for four channels. Taps go from the last to the first."""
    body = "  var sum = vec4<f32>(); let first = c0 * p.group * 4u + c1 * 4u * TAPSu;\n".replace("TAPS", str(taps))
    for j in range(taps):
        t, ty, tx = taps - 1 - j, j // across, j % across
        body += f"  {{ let y = c3 + p.front_y + {ty}u * p.d_y; let x = c4 + p.front_x + {tx}u * p.d_x;\n"
        body += "    if (y < p.reach_y && x < p.reach_x) {\n"
        body += f"      let at = first + ((c2 * p.reach_y + y) * p.reach_x + x) * p.wide * 4u + {t}u;\n"
        body += f"      sum += vec4<f32>({', '.join(f't[at + {k * taps}u]' for k in range(4))});\n    }}\n  }}\n"
    return body
