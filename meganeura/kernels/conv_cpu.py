"""Convolutions for software Vulkan (lavapipe), whose subgroups are 8 lanes of one SIMD register.

A gather's subgroup makes `rows` channels of 32 pixels: every lane holds 4 neighbouring pixels of a row of the image, lanes
load different channels' weights, which are then broadcast. Taps along x share the vec4s that they are read from, so the
source is first copied with its border and rows of whole vec4s. A weight gradient's subgroup makes `rows` x 8 channels for up
to 4 taps along x. No barriers, no workgroup memory; every loop counts down one number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ..dtype import DType
from ..shape import numel
from . import conv_columns, conv_winograd
from . import template as T
from .conv_blocks import DISPATCH
from .conv_border import Bordered, bordered, packed
from .conv_fusion import closing, dtypes, launch
from .conv_phases import Phase, phases
from .conv_problem import Field, Gather, Triple, Weigh, ranges
from .conv_sum import add_slices, partial, slice_elements
from .kernel import TEMP, Kernel, Launch, Profile
from .matmul_fusion import Epilogue

LANES = 8
TURNS = 60000  # of a loop, under what lavapipe stops an invocation at
ROWS = (1, 2, 4, 8, 16, 32)
SPAN = 16  # elements of a row that may be held for one group of taps
TAPS = 7  # taps along x that one turn does, at most
TEAM = 4  # subgroups of a workgroup
ARGS = "@builtin(workgroup_id) w: vec3<u32>, @builtin(subgroup_invocation_id) lane: u32, @builtin(subgroup_id) sub: u32"


def suits(profile: Profile) -> bool:
    """Whether subgroups are what these kernels are written for."""
    return profile.family == "cpu" and profile.subgroups and profile.subgroup_size == LANES


@dataclass(frozen=True, slots=True)
class Window:
    """What a lane reads of a row: `taps` taps `spread` apart at each of 4 pixels `stride` apart, the first `shift` elements after
    a vec4 begins. `quads`: as vec4s that taps share; otherwise element by element, from a row's element on."""

    taps: int
    stride: int
    spread: int
    shift: int
    quads: bool

    @staticmethod
    def of(taps: int, stride: int, spread: int, start: int) -> Window:
        """For rows read from element `start` on."""
        shift = start % 4
        if taps <= TAPS and shift + 3 * stride + (taps - 1) * spread < SPAN:
            return Window(taps, stride, spread, shift, True)
        return Window(1, 0, 0, 0, False)

    def loads(self, at: str, stride: str) -> list[str]:
        """Lets of what is read at `at`, of the array x."""
        if not self.quads:
            return [f"let x{j} = x[{at} + {j}u * {stride}];" for j in range(4)]
        last = self.shift + 3 * self.stride + (self.taps - 1) * self.spread
        return [f"let x{i} = x[{at} + {i}u];" for i in range(last // 4 + 1)]

    def element(self, pixel: int, tap: int) -> str:
        if not self.quads:
            return f"x{pixel}"
        at = self.shift + pixel * self.stride + tap * self.spread
        return f"x{at // 4}.{T.LANES[at % 4]}"


@dataclass(frozen=True, slots=True)
class Form:
    """What decides the text of a gather."""

    rows: int
    window: Window
    deep: bool  # taps along z
    target: DType
    bias: DType | None
    quads: bool  # four pixels are stored as one vec4
    small: bool  # tiles and pixels are few enough to divide by reciprocals
    epilogue: Epilogue | None = None


# --- loops over several counters -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Level:
    """A loop level, innermost first: its turns, and how far one takes each address."""

    count: int
    steps: tuple[int, ...]


def _walk(names: Sequence[str], levels: int) -> str:
    """The statements that move addresses one turn on."""
    out, wrapped = "".join(f"{n} += p.{n}_0; " for n in names), ""
    for i in range(levels - 1):
        out += f"let next{i} = k{i} + 1u; let wrap{i} = {wrapped}next{i} == p.turns_{i}; "
        out += f"k{i} = select({f'select(k{i}, next{i}, wrap{i - 1})' if i else f'next{i}'}, 0u, wrap{i}); "
        out += "".join(f"{n} += select(0u, p.{n}_{i + 1}, wrap{i}); " for n in names)
        wrapped = f"wrap{i} && "
    return out


def _walk_names(names: Sequence[str], levels: int) -> list[str]:
    return [f"turns_{i}" for i in range(levels)] + [f"{n}_{i}" for n in names for i in range(levels)]


def _walk_words(levels: Sequence[Level]) -> list[int]:
    words = [x.count for x in levels]
    for j in range(len(levels[0].steps)):
        words.append(levels[0].steps[j])
        words += [b.steps[j] - a.count * a.steps[j] for a, b in pairwise(levels)]
    return words


GATHER_DIVISORS = ("pixels", "tiles_m", "groups", "across", "size_y")
WEIGH_DIVISORS = ("tiles_c", "tiles_m", "chunks", "k_y", "k_z", "groups", "size_y", "size_z")


def _reciprocals(names: Sequence[str], words: Sequence[int], divisors: Sequence[str]) -> list[int]:
    """Words of the reciprocals of some parameters."""
    values = dict(zip(names, words, strict=True))
    return [T.reciprocal(values[d]) for d in divisors]


def _divide(name: str, rest: str, quotient: str, divisor: str, small: bool) -> str:
    """Lets `name` and `quotient`: the rest and the quotient of a number. `small`: numbers are below what a reciprocal divides
    exactly; this device divides integers lane by lane."""
    made = f"u32(f32({rest}) * bitcast<f32>(p.by_{divisor}))" if small else f"{rest} / p.{divisor}"
    return f"let {quotient} = {made}; let {name} = {rest} - {quotient} * p.{divisor};"


def _number() -> list[str]:
    return [f"let number = (w.y * {T.FOLD}u + w.x) * {TEAM}u + sub; if (number >= p.tiles) {{ return; }}"]


# --- gather ---------------------------------------------------------------------------------------------------------------


def gather(p: Gather, profile: Profile, temps: list[int]) -> list[Launch]:
    """The launches of a convolution's output or input gradient."""
    parts = phases(p)
    ways = {"tiles": _time(p, parts)}
    if profile.winograd and conv_winograd.suits(p, parts) and conv_winograd.nbytes(p) <= profile.max_binding:
        ways["winograd"] = conv_winograd.time(p)
    if conv_columns.suits(p, parts) and conv_columns.nbytes(p) <= profile.max_binding:
        ways["columns"] = conv_columns.time(p)
    way = min(ways, key=lambda name: ways[name])
    if way == "winograd":
        return conv_winograd.gather(p, parts[0], temps)
    if way == "columns":
        return conv_columns.gather(p, parts[0], temps)
    return tiled_gather(p, parts, temps)


def _time(p: Gather, parts: list[Phase]) -> float:
    """Nanoseconds that one core takes for `tiled_gather`, about."""
    total = DISPATCH
    for phase in parts:
        size, (cz, cy, cx) = phase.of("size"), phase.of("count")
        rows = _rows(p.rows, cx)
        turn = 25 + 13 * (2 + cx) + rows * cx
        tiles = -(-size[0] * size[1] * -(-size[2] // 4) // LANES) * p.geometry.n * -(-p.rows // rows)
        total += p.geometry.groups * p.depth * cz * cy * (tiles * turn + (3.0 if p.transposed else 2.0) * p.rows * cx) + 2 * DISPATCH
    return total


def tiled_gather(p: Gather, parts: list[Phase], temps: list[int]) -> list[Launch]:
    """The launches that multiply tap by tap."""
    g = p.geometry
    front: Triple = tuple(-min(a.of("front")[i] for a in parts) for i in range(3))  # type: ignore[assignment]
    ends = [max(1, max(_end(a, i) for a in parts) + front[i]) for i in range(3)]
    x, launches = bordered(p.source, g.n, p.depth * g.groups, p.reach, front, (ends[0], ends[1], -(-ends[2] // 4) * 4), temps)
    per = max(1, TURNS // max(_turns(a, front) for a in parts))
    cuts = [(low, min(low + per, p.depth)) for low in range(0, p.depth, per)]
    shape, temp = (g.n, p.channels, p.size), 0
    if len(cuts) > 1:
        temp = TEMP(len(temps))
        temps.append(slice_elements(shape) * 4 * len(cuts))
    nbytes = temps[-1] if p.target.part else 0
    for phase in parts:
        panel = max(4, _rows(p.rows, _window(phase, front).taps))
        weight, made = packed(p.weight, p.group, (g.groups, p.rows, p.depth), phase.taps, temps, panel)
        launches += made
        for i, (low, high) in enumerate(cuts):
            q = p
            if temp:
                q = p.into(partial(p.channels, p.size, temp, i * slice_elements(shape), nbytes))
            launches.append(_gather(q, phase, x, front, weight, low, high))
    return [*launches, add_slices(p.target, p.bias, shape, temp, len(cuts), p.fusion)] if temp else launches


def _turns(phase: Phase, front: Triple) -> int:
    """Turns of the loop for each source channel, at least 1."""
    counts = phase.of("count")
    return max(1, counts[0] * counts[1] * (1 if _window(phase, front).quads else counts[2]))


def _end(phase: Phase, i: int) -> int:
    """One past the last source element that a phase reads along an axis."""
    a = phase.axes[i]
    return a.front + (a.size - 1) * a.stride + max(a.count - 1, 0) * a.spread + 1


def _window(phase: Phase, front: Triple) -> Window:
    x = phase.axes[2]
    return Window.of(max(x.count, 1), x.stride, x.spread, x.front + front[2])


def _rows(rows: int, taps: int) -> int:
    """Channels a tile, by the time that all tiles take: loads and products of a turn, in nanoseconds."""
    if rows <= 2:
        return rows  # not more than a vec4's worth: every lane loads it
    most = 32 if taps <= 4 else 16

    def cost(r: int) -> float:
        return -(-rows // r) * (25 + 13 * (2 + taps) + 0.8 * r * taps)

    return min((r for r in ROWS if 4 <= r <= most), key=cost)


def _gather(p: Gather, phase: Phase, x: Bordered, front: Triple, weight: Field, low: int, high: int) -> Launch:
    g = p.geometry
    window = _window(phase, front)
    counts, size = phase.of("count"), phase.of("size")
    target = phase.part(p.target)
    spread, first = phase.of("spread"), [a + b for a, b in zip(phase.of("front"), front, strict=True)]
    strides = target.spatial
    quads = (
        p.quads
        and target.spatial[2] == 1
        and size[2] % 4 == 0
        and not any(v % 4 for v in (target.offset, target.n, target.c, *strides[:2]))
    )
    rows, across = _rows(p.rows, window.taps), -(-size[2] // 4)
    pixels, tiles_m = -(-size[0] * size[1] * across // LANES), -(-p.rows // rows)
    small = max(pixels * tiles_m * g.n * g.groups, pixels * LANES) < T.MAX_RECIPROCAL
    f = Form(rows, window, counts[0] > 1, target.dtype, p.bias.dtype if p.bias else None, quads, small, p.epilogue(quads))
    unit = 4 if window.quads else 1
    line, plane = x.size[2] // unit, x.size[1] * x.size[2] // unit
    levels = [] if window.quads else [Level(counts[2], (spread[2],))]
    levels += [Level(counts[1], (spread[1] * line,))] + [Level(counts[0], (spread[0] * plane,))] * f.deep
    levels.append(Level(high - low, (x.plane // unit,)))
    stride = phase.of("stride")
    turns = numel([v.count for v in levels]) if phase.taps.number else 0
    at = x.offset // unit + first[0] * plane + first[1] * line + first[2] // unit + low * (x.plane // unit)
    count, n4 = pixels * tiles_m * g.n * g.groups, size[0] * size[1] * across
    words = [count, pixels, tiles_m, g.groups, n4, size[1], across, turns, p.rows, size[2], at]
    words += [x.channels * x.plane // unit, p.depth * x.plane // unit]
    words += [stride[0] * plane, stride[1] * line, stride[2] * 4 // unit, stride[2]]
    wide, each = max(1, rows // 4), p.depth * phase.taps.number
    words += [each * wide * tiles_m, each * wide, low * phase.taps.number * wide, wide]
    o = 4 if quads else 1
    words += [v // o for v in (target.offset, target.n, target.c, *target.spatial[:2])] + [target.spatial[2]]
    words += [p.bias.offset, p.bias.c] if p.bias else [0, 0]
    words += [*_walk_words(levels), *_reciprocals(GATHER, words, GATHER_DIVISORS)]
    inputs = [x.field(p.source.part is not None), weight, *([p.bias] if p.bias else [])]
    grid, key = T.grid(-(-words[0] // TEAM)), ("conv", "gather cpu", f)
    return launch(target, p.fusion, quads, key, lambda profile: _gather_source(f, profile), inputs, grid, words, "conv_gather")


GATHER = (
    "tiles", "pixels", "tiles_m", "groups", "quads", "size_y", "across", "turns", "rows", "size_x", "x_off", "x_n", "x_g", "x_z", "x_y",
    "x_x", "x_px", "w_g", "w_m", "w_off", "w_quads", *Field.names("o"), "b_off", "b_c",
)  # fmt: skip


def _gather_source(f: Form, profile: Profile) -> str:
    taps, rows = f.window.taps, f.rows
    levels = 2 + f.deep + (not f.window.quads)
    per = max(1, rows // 4)
    body = [f"@compute @workgroup_size({LANES * TEAM}) fn main({ARGS}) {{", *_number()]
    body += [_divide("pg", "number", "rest", "pixels", f.small), _divide("tm", "rest", "mat", "tiles_m", f.small)]
    body += [_divide("grp", "mat", "n", "groups", f.small), f"let px = pg * {LANES}u + lane; let r = tm * {rows}u;"]
    body += ["let quad = min(px, p.quads - 1u);", _divide("qx", "quad", "line", "across", f.small)]
    body += [_divide("qy", "line", "qz", "size_y", f.small)]
    body += ["var at = p.x_off + n * p.x_n + grp * p.x_g + qz * p.x_z + qy * p.x_y + qx * p.x_x;"]
    body += [f"var wt = grp * p.w_g + tm * p.w_m + p.w_off + {f'lane % {per}u' if rows >= 4 else '0u'};"]
    body += ["".join(f"var c{i}_{j} = 0.0; " for j in range(4)) for i in range(rows)]
    body += ["".join(f"var k{i} = 0u; " for i in range(levels - 1)), "var left = p.turns;", "if (left > 0u) { loop {"]
    body += f.window.loads("at", "p.x_px")
    if rows >= 4:  # lanes hold channels
        body += [f"let w{t} = weight[wt + {t}u * p.w_quads];" for t in range(taps)]
    else:  # lanes hold taps
        body.append(f"let w0 = weight[wt + min(lane, {taps - 1}u)];")
    for i in range(rows):
        places = [(t, i // 4) if rows >= 4 else (0, t) for t in range(taps)]
        text = "".join(f"let a{i}_{t} = subgroupBroadcast(w{v}.{T.LANES[i % 4]}, {at}u); " for t, (v, at) in enumerate(places))
        for j in range(4):
            text += "".join(f"c{i}_{j} = fma(a{i}_{t}, {f.window.element(j, t)}, c{i}_{j}); " for t in range(taps))
        body.append(text)
    body += [f"continuing {{ wt += {taps}u * p.w_quads; {_walk(['at'], levels)}"]
    body += ["left -= 1u; break if left == 0u; } } }"]
    body += _gather_stores(f)
    text = "\n".join([*body, "}\n"])
    out = T.header(profile, [*dtypes(f.target, f.epilogue), *([f.bias] if f.bias else [])], True)
    out += T.storage(0, "x", "vec4<f32>" if f.window.quads else "f32", "read") + T.storage(1, "weight", "vec4<f32>", "read")
    out += T.storage(2, "b", T.element(f.bias), "read") if f.bias else ""
    fields = [*GATHER, *_walk_names(["at"], levels), *(f"by_{d}" for d in GATHER_DIVISORS)]
    return out + closing(f.target, f.epilogue, 3 if f.bias else 2, 4 if f.quads else 1, fields, text)


def _gather_stores(f: Form) -> list[str]:
    body = ["if (px < p.quads) {", "let line_at = p.o_off + qz * p.o_z + qy * p.o_y; let to = line_at + n * p.o_n;"]
    for i in range(f.rows):
        shift = f" + {T.load(f.bias, 'b[p.b_off + ch * p.b_c]')}" if f.bias else ""
        lets = f"let ch = grp * p.rows + r + {i}u; let row = to + ch * p.o_c; " + (f"let shift = 0.0{shift}; " if f.bias else "")
        sums = [f"c{i}_{j}{' + shift' if f.bias else ''}" for j in range(4)]
        stored = [T.store("f32", v, f.target) for v in sums]
        if f.epilogue is not None and f.quads:
            text = f"finish(n, ch, (line_at + qx) * 4u, vec4<f32>({', '.join(sums)}));"
        elif f.epilogue is not None:
            places = [f"qx * 4u + {j}u" for j in range(4)]
            text = " ".join(
                f"if ({x} < p.size_x) {{ finish(n, ch, line_at + ({x}) * p.o_x, {v}); }}" for x, v in zip(places, sums, strict=True)
            )
        elif f.quads:
            text = f"o[row + qx] = {T.element(f.target, 4)}({', '.join(stored)});"
        else:
            text = " ".join(f"if (qx * 4u + {j}u < p.size_x) {{ o[row + (qx * 4u + {j}u) * p.o_x] = {v}; }}" for j, v in enumerate(stored))
        body.append(f"if (r + {i}u < p.rows) {{ {lets}{text} }}")
    return [*body, "}"]


# --- weight gradient -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WeighForm:
    """What decides the text of a weight gradient. `alone`: one input channel a group, so that lanes are output channels. `ragged`:
    rows of pixels end inside a vec4, so that what lies beyond (zero times infinity) must be left out."""

    rows: int
    window: Window
    deep: bool
    alone: bool
    ragged: bool
    target: DType
    small: bool


CHUNK = 4  # taps along x that one tile makes, at most
LONG = 8192  # vec4s of an image's only row from which it is walked as several


def weigh(p: Weigh, profile: Profile, temps: list[int]) -> list[Launch]:
    """The launches of a weight gradient."""
    if profile.winograd and conv_winograd.suits_weigh(p) and conv_winograd.weigh_nbytes(p) <= profile.max_binding:
        if conv_winograd.weigh_time(p) < _weigh_time(p):
            return conv_winograd.weigh(p, temps)
    return tiled_weigh(p, temps)


def _weigh_time(p: Weigh) -> float:
    """Nanoseconds that one core takes for `tiled_weigh`, about."""
    rows, taps = _weigh_rows(p), _weigh_window(p).taps
    turn = 25 + 13 * (2 + rows / LANES) + rows * taps
    return 3 * DISPATCH + _tiles(p) * p.geometry.n * p.geometry.output[0] * p.geometry.output[1] * -(-p.geometry.output[2] // 4) * turn


def tiled_weigh(p: Weigh, temps: list[int]) -> list[Launch]:
    """The launches that multiply tap by tap."""
    g = p.geometry
    o, s, k, d, window = g.output, g.stride, g.kernel, g.dilation, _weigh_window(p)
    across = -(-o[2] // 4)
    if o[0] * o[1] == 1 and across > LONG:
        across = -(-across // LONG) * LONG
    reach = [(o[i] - 1) * s[i] + (k[i] - 1) * d[i] + 1 for i in range(2)]
    width = (across * 4 - 1) * s[2] + (-(-k[2] // window.taps) * window.taps - 1) * d[2] + 1
    x, launches = bordered(p.input, g.n, g.c * g.groups, g.input, g.padding, (reach[0], reach[1], -(-width // 4) * 4), temps)
    grad, more = bordered(p.grad, g.n, g.m * g.groups, o, (0, 0, 0), (o[0], o[1], across * 4), temps)
    launches += more
    rows = (o[0], across // LONG, LONG) if o[0] * o[1] == 1 and across > LONG else (o[0], o[1], across)
    lines, tiles = g.n * rows[0] * rows[1], _tiles(p)
    per = max(1, min(lines, TURNS // rows[2], -(-lines // -(-TILES // tiles))))
    slices = -(-lines // per)
    shape, temp = (g.groups * g.m, g.c, g.kernel), TEMP(len(temps))
    if slices == 1:
        return [*launches, _weigh(p, x, grad, rows, (1, lines, 0))]
    temps.append(slice_elements(shape) * 4 * slices)
    target = partial(g.c, g.kernel, temp, 0, temps[-1] if p.target.part else 0)
    launches.append(_weigh(replace(p, target=target), x, grad, rows, (slices, per, slice_elements(shape))))
    return [*launches, add_slices(p.target, None, shape, temp, slices)]


TILES = 8  # to share among cores, at least


def _weigh_window(p: Weigh) -> Window:
    """What a lane reads: a chunk of taps from vec4s, if chunks begin at whole ones, otherwise one tap's elements."""
    g = p.geometry
    taps = min(g.kernel[2], CHUNK)
    while taps > 1 and 3 * g.stride[2] + (taps - 1) * g.dilation[2] >= SPAN:
        taps -= 1
    if (taps == g.kernel[2] or taps * g.dilation[2] % 4 == 0) and 3 * g.stride[2] < SPAN:
        return Window(taps, g.stride[2], g.dilation[2], 0, True)
    return Window(1, 0, 0, 0, False)


def _weigh_rows(p: Weigh) -> int:
    return 1 if p.geometry.c == 1 else _rows(p.geometry.m, _weigh_window(p).taps)


def _tiles(p: Weigh) -> int:
    g = p.geometry
    taps = g.kernel[0] * g.kernel[1] * -(-g.kernel[2] // _weigh_window(p).taps)
    if g.c == 1:
        return taps * -(-g.groups * g.m // LANES)
    return taps * g.groups * -(-g.c // LANES) * -(-g.m // _weigh_rows(p))


def _weigh(p: Weigh, x: Bordered, grad: Bordered, rows: Triple, slices: tuple[int, int, int]) -> Launch:
    """rows: the output as (z, y, vec4s across); slices: their number, lines of each, elements from one to the next."""
    g, window = p.geometry, _weigh_window(p)
    s, k, d = g.stride, g.kernel, g.dilation
    fold = 0 if rows[2] == grad.size[2] // 4 else rows[2]
    small = max(_tiles(p) * slices[0], g.n * rows[0] * rows[1]) < T.MAX_RECIPROCAL
    f = WeighForm(_weigh_rows(p), window, rows[0] > 1, g.c == 1, g.output[2] % 4 > 0 or fold > 0, p.target.dtype, small)
    unit = 4 if window.quads else 1
    line, plane = x.size[2] // unit, x.size[1] * x.size[2] // unit
    down = rows[2] * 4 * s[2] // unit if fold else s[1] * line
    batch = (x.channels * x.plane // unit, grad.channels * grad.plane // 4)
    # addresses: of the input in its units, of the gradient in vec4s
    levels = [Level(rows[2], (s[2] * 4 // unit, 1)), Level(rows[1], (down, rows[2]))]
    levels += [Level(rows[0], (s[0] * plane, rows[1] * rows[2]))] * f.deep
    levels.append(Level(g.n, batch))
    channels, groups = (g.groups * g.m, 1) if f.alone else (g.c, g.groups)
    tiles_c, tiles_m, chunks = -(-channels // LANES), 1 if f.alone else -(-g.m // f.rows), -(-k[2] // window.taps)
    tiles = tiles_c * tiles_m * k[0] * k[1] * chunks * groups * slices[0]
    words = [tiles, tiles_c, tiles_m, chunks, k[1], k[0], groups, g.n * rows[0] * rows[1], slices[1], rows[2], channels, g.m, g.c, k[2]]
    words += [x.offset // unit, x.plane // unit, d[0] * plane, d[1] * line, window.taps * d[2] // unit if window.quads else d[2], s[2]]
    words += [grad.offset // 4, grad.plane // 4, slices[2], rows[1], rows[0], *p.target.words()]
    words += [down, s[0] * plane, *batch, rows[1] * rows[2], fold, g.output[2]]
    words += [*_walk_words(levels), *_reciprocals(WEIGH, words, WEIGH_DIVISORS)]
    fields = [x.field(p.input.part is not None), grad.field(p.input.part is not None), p.target]
    kernel = Kernel(
        ("conv", "weigh cpu", f), lambda profile: _weigh_source(f, profile), ("read", "read", "read_write"), label="conv_weigh",
        trusted=True,
    )  # fmt: skip
    return Launch(kernel, tuple(v.binding for v in fields), T.grid(-(-tiles // TEAM)), T.pack(words), ranges=ranges(fields))


WEIGH = (
    "tiles", "tiles_c", "tiles_m", "chunks", "k_y", "k_z", "groups", "lines", "per", "across", "channels", "m", "c", "k_x", "x_off", "x_c",
    "x_tz", "x_ty", "x_tx", "x_px", "g_off", "g_c", "o_slice", "size_y", "size_z", *Field.names("o"), "x_y", "x_z", "x_n", "g_n", "g_z",
    "fold", "size_x",
)  # fmt: skip


def _weigh_source(f: WeighForm, profile: Profile) -> str:
    taps, rows, levels = f.window.taps, f.rows, 3 + f.deep
    loads = -(-rows // LANES)
    body = [f"@compute @workgroup_size({LANES * TEAM}) fn main({ARGS}) {{", *_number()]
    order = (("tc", "r1", "tiles_c"), ("tm", "r2", "tiles_m"), ("chunk", "r3", "chunks"), ("ty", "r4", "k_y"), ("tz", "r5", "k_z"))
    rest = "number"
    for name, quotient, divisor in (*order, ("grp", "slice", "groups")):
        body, rest = [*body, _divide(name, rest, quotient, divisor, f.small)], quotient
    body += ["let start = slice * p.per; let lines = min(p.per, p.lines - start);"]
    body += [_divide("y0", "start", "zn", "size_y", f.small), _divide("z0", "zn", "n0", "size_z", f.small)]
    body += [f"let ch = tc * {LANES}u + lane; let c = min(ch, p.channels - 1u); let r = tm * {rows}u;"]
    channel = "(c / p.m)" if f.alone else "(grp * p.c + c)"
    body += [f"var at = p.x_off + {channel} * p.x_c + tz * p.x_tz + ty * p.x_ty + chunk * p.x_tx + n0 * p.x_n + z0 * p.x_z + y0 * p.x_y;"]
    body += ["var gat = p.g_off + n0 * p.g_n + z0 * p.g_z + y0 * p.across;"]
    if f.alone:
        body += ["let g0 = c * p.g_c;"]
    else:
        body += [f"let g{i} = (grp * p.m + min(r + {i * LANES}u + lane, p.m - 1u)) * p.g_c;" for i in range(loads)]
    body += ["".join(f"var c{i}_{t} = 0.0; " for t in range(taps)) for i in range(rows)]
    body += [f"var k0 = 0u; var k1 = y0; {'var k2 = z0; ' if f.deep else ''}var left = lines * p.across;", "loop {"]
    body += f.window.loads("at", "p.x_px")
    if f.ragged:
        body.append("let first = (k1 * p.fold + k0) * 4u;")
        body += [f"let z{q}_{t} = select(0.0, {f.window.element(q, t)}, first + {q}u < p.size_x);" for q in range(4) for t in range(taps)]
    body += [f"let v{i} = g[gat + g{i}];" for i in range(loads)]
    for i in range(rows):
        text = ""
        for q in range(4):
            value = f"v0.{T.LANES[q]}" if f.alone else f"subgroupBroadcast(v{i // LANES}.{T.LANES[q]}, {i % LANES}u)"
            text += f"let a{i}_{q} = {value}; "
            text += "".join(
                f"c{i}_{t} = fma(a{i}_{q}, {f'z{q}_{t}' if f.ragged else f.window.element(q, t)}, c{i}_{t}); " for t in range(taps)
            )
        body.append(text)
    body += [f"continuing {{ {_walk(['at', 'gat'], levels)}left -= 1u; break if left == 0u; }} }}"]
    body += ["if (ch < p.channels) {", f"let to = p.o_off + slice * p.o_slice + tz * p.o_z + ty * p.o_y + chunk * {taps}u * p.o_x;"]
    for i in range(rows):
        row = "ch * p.o_n" if f.alone else f"(grp * p.m + r + {i}u) * p.o_n + ch * p.o_c"
        text = f"let row = to + {row}; "
        for t in range(taps):
            text += f"if (chunk * {taps}u + {t}u < p.k_x) {{ o[row + {t}u * p.o_x] = {T.store('f32', f'c{i}_{t}', f.target)}; }} "
        body.append(f"{{ {text} }}" if f.alone else f"if (r + {i}u < p.m) {{ {text} }}")
    text = "\n".join([*body, "}", "}\n"])
    out = T.header(profile, [f.target], True) + T.storage(0, "x", "vec4<f32>" if f.window.quads else "f32", "read")
    out += T.storage(1, "g", "vec4<f32>", "read") + T.storage(2, "o", T.element(f.target), "read_write")
    fields = [*WEIGH, *_walk_names(["at", "gat"], levels), *(f"by_{d}" for d in WEIGH_DIVISORS)]
    return out + T.uniform(3, fields) + T.prelude(text) + text
