"""Convolutions as products of images with four channels a vec4, for software Vulkan: the parts that Winograd and implicit products share.

An image [n, groups, depth / 4, height, width] holds four channels a vec4 and a border of zeros, so that every tap of a pixel is one
load. In a product lanes load different pixels (or tiles), which are then broadcast, and the weights of four result channels each; what
comes out is [pixels, channels / 4] of four channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .. import dtype as D
from ..dtype import DType
from . import template as T
from .conv_problem import Field, Triple
from .kernel import TEMP, Kernel, Launch, Profile

SIZE = 64  # invocations a workgroup
LANES = 8
PANEL = 32  # result channels a subgroup
DISPATCH = 20e3  # nanoseconds of a launch
ROWS = (4, 8, 16, 25, 28, 32, 40, 49)  # pixels of a subgroup's product


def begin(profile: Profile) -> str:
    """Opens `main` with i, the number of the invocation."""
    return T.entry(profile, SIZE) + f"  let i = group * {SIZE}u + local;\n  if (i >= p.count) {{ return; }}\n"


def inside(name: str, j: int, size: str) -> str:
    return f"{name} + {j}u < p.{size}"


def launch(
    name: str, key: object, source: Callable[[Profile], str], bindings: tuple[int, ...], count: int, words: Sequence[int]
) -> Launch:  # fmt: skip
    """A launch of `count` invocations, the last binding its result."""
    access = ("read",) * (len(bindings) - 1) + ("read_write",)
    kernel = Kernel(("conv", name, key), source, access, label=f"conv_{name}", trusted=True)
    return Launch(kernel, bindings, T.grid(-(-count // SIZE)), T.pack(words))


def places(along: str) -> str:
    """For invocation (group, panel, depth / 4, 32) of what makes weights: `at0` to `at3` of four neighbours along "k" or "m", `start` of
    the first, and `mask`, which of them exist. Parameters: depth, rows, group, w_off, w_m, w_k."""
    if along == "k":
        body = f"  let m = c1 * {PANEL}u + c3; let k = c2 * 4u;\n"
        near, far, size, rest = "k", "m", "depth", "rows"
    else:
        body = f"  let m = c1 * {PANEL}u + (c3 % {LANES}u) * 4u; let k = c2 * 4u + c3 / {LANES}u;\n"
        near, far, size, rest = "m", "k", "rows", "depth"
    body += f"  let line = p.w_off + c0 * p.group + min({far}, p.{rest} - 1u) * p.w_{far}; let start = line + {near} * p.w_{near};\n"
    body += "".join(f"  let at{j} = line + min({near} + {j}u, p.{size} - 1u) * p.w_{near};\n" for j in range(4))
    return body + f"  let mask = vec4<bool>({far} < p.{rest}) & vec4<bool>({', '.join(inside(near, j, size) for j in range(4))});\n"


# --- images -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Image:
    """A copy of a source with its border. `deep`: vec4s of channels a group."""

    binding: int
    deep: int
    height: int
    width: int

    @property
    def plane(self) -> int:
        return self.height * self.width


def image(
    x: Field, shape: tuple[int, int, int], reach: Triple, front: Triple, size: tuple[int, int], temps: list[int]
) -> tuple[Image, Launch]:  # fmt: skip
    """The copy of a source [n, groups * depth, *reach], shape = (n, groups, depth), with `front` zeros before each axis."""
    n, groups, depth = shape
    height, width = size
    made = Image(TEMP(len(temps)), -(-depth // 4), height, width)
    temps.append(n * groups * made.deep * made.plane * 16)
    quads = x.spatial[2] == 1 and x.dtype is not D.float16 and reach[2] % 4 == 0
    quads = quads and not any(v % 4 for v in (x.offset, x.n, x.c, x.spatial[1]))
    unit, wide = 4 if quads else 1, -(-width // 4)
    parts = -(-wide // STRETCH)
    count = n * groups * made.deep * height * parts
    f = ImageForm(x.dtype, quads, -front[2] % 4, count < T.MAX_RECIPROCAL)
    words = [count, groups, made.deep, height, parts, depth, wide, width, reach[1], reach[2] // unit]
    words += [front[1], -front[2] // 4 if quads else front[2], *(v // unit for v in (x.offset, x.n, x.c, x.spatial[1])), x.spatial[2]]
    words += [T.reciprocal(v) for v in (groups, made.deep, height, parts)]
    return made, launch("image", f, lambda profile: _image_source(f, profile), (x.binding, made.binding), count, words)


@dataclass(frozen=True, slots=True)
class ImageForm:
    source: DType
    quads: bool  # rows of the source are whole vec4s
    turn: int  # by how much the copy's vec4s are turned against the source's
    small: bool


IMAGE = (
    "count", "groups", "deep", "height", "parts", "depth", "quads", "width", "reach_y", "reach_x", "front_y", "front_x",
    "x_off", "x_n", "x_c", "x_y", "x_x", "by_groups", "by_deep", "by_height", "by_parts",
)  # fmt: skip
STRETCH = 8  # vec4s of a row that an invocation copies


def _image_source(f: ImageForm, profile: Profile) -> str:
    """[n, groups, depth / 4, height, width] of four channels: a copy with a border of zeros."""
    by = ["", "p.by_groups", "p.by_deep", "p.by_height", "p.by_parts"] if f.small else []
    body = begin(profile) + "  " + T.decompose("i", ["0", "p.groups", "p.deep", "p.height", "p.parts"], reciprocals=by) + "\n"
    body += "  let y = c3 - p.front_y; let here = y < p.reach_y;\n"
    body += "  let row = p.x_off + c0 * p.x_n + select(0u, y * p.x_y, here);\n"
    for k in range(4):
        body += f"  let z{k} = c2 * 4u + {k}u; let at{k} = row + (c1 * p.depth + min(z{k}, p.depth - 1u)) * p.x_c;"
        body += f" let h{k} = here && z{k} < p.depth;\n"
    body += f"  var q = c4 * {STRETCH}u; let end = min(q + {STRETCH}u, p.quads);\n"
    body += "  let line = (((c0 * p.groups + c1) * p.deep + c2) * p.height + c3) * p.width;\n"
    quad = "select(vec4<f32>(), x[at{0} + min({1}, p.reach_x - 1u)], h{0} && {1} < p.reach_x)"
    if f.quads:
        body += "  var e = q + p.front_x;\n"
        if f.turn:
            body += "".join(f"  var last{k} = {quad.format(k, 'e')};\n" for k in range(4))
        body += "  loop {\n"
        if f.turn:
            body += "    e += 1u;\n" + "".join(f"    let next{k} = {quad.format(k, 'e')};\n" for k in range(4))
        else:
            body += "".join(f"    let next{k} = {quad.format(k, 'e')};\n" for k in range(4))
        for j in range(4):
            name = "last" if f.turn and j + f.turn < 4 else "next"
            parts = [f"{name}{k}.{T.LANES[(j + f.turn) % 4]}" for k in range(4)]
            body += f"    if (q * 4u + {j}u < p.width) {{ o[line + q * 4u + {j}u] = vec4<f32>({', '.join(parts)}); }}\n"
        body += "".join(f"    last{k} = next{k};\n" for k in range(4)) if f.turn else "    e += 1u;\n"
        body += "    continuing { q += 1u; break if q >= end; }\n  }\n}\n"
    else:
        body += "  var c = q * 4u; let stop = min(end * 4u, p.width);\n  loop {\n    let e = c - p.front_x;\n"
        for k in range(4):
            value = T.load(f.source, f"x[at{k} + min(e, p.reach_x - 1u) * p.x_x]", D.float32)
            body += f"    let v{k} = select(0.0, {value}, h{k} && e < p.reach_x);\n"
        body += "    o[line + c] = vec4<f32>(v0, v1, v2, v3);\n    continuing { c += 1u; break if c >= stop; }\n  }\n}\n"
    out = T.header(profile, [f.source], T.lanes(profile) > 0) + T.storage(0, "x", T.element(f.source, 4 if f.quads else 1), "read")
    return out + T.storage(1, "o", "vec4<f32>", "read_write") + T.uniform(2, IMAGE) + T.prelude(body) + body


# --- products -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProductForm:
    """`along`: a vec4 of weights holds source channels ("k") or result channels ("m"). `pixels`: rows are pixels of images with planes
    of their own. `fours`: a vec4 holds four rows."""

    rows: int
    along: str
    pixels: bool
    small: bool
    fours: bool


@dataclass(frozen=True, slots=True)
class Rows:
    """Where rows lie, in vec4s: between values, groups, turns and images. `count` rows, `plane` of an image. `fours`: a vec4 holds four
    rows instead of four source channels, and the next four rows lie a plane further."""

    binding: int
    count: int
    value: int
    group: int
    deep: int
    plane: int = 1
    image: int = 0
    fours: bool = False


@dataclass(frozen=True, slots=True)
class Weights:
    """Where weights lie, in vec4s: from the first, between values, groups, panels of 32 result channels, the four vec4s that a lane
    loads in a turn, lanes and turns."""

    binding: int
    along: str
    offset: int
    value: int
    group: int
    panel: int
    four: int
    lane: int
    turn: int


def panelled(binding: int, along: str, value: int, group: int, deep: int) -> Weights:
    """Weights [values, groups, panels, deep, 32]."""
    four, lane = (1, 4) if along == "k" else (LANES, 1)
    return Weights(binding, along, 0, value, group, deep * PANEL, four, lane, PANEL)


@dataclass(frozen=True, slots=True)
class Products:
    """[values, groups, high, wide] of four channels: all rows that subgroups have together, and vec4s a row."""

    binding: int
    high: int
    wide: int
    value: int

    @property
    def group(self) -> int:
        return self.high * self.wide


FOURS = (4, 8, 16, 32)  # rows of a subgroup whose vec4s hold four
APART = 5  # vec4s between what is stored for one value and for the next, so that equal places do not share cache sets


def product(x: Rows, weights: Weights, sizes: tuple[int, int, int, int], temps: list[int]) -> tuple[Products, Launch]:
    """For each value and group the product of rows and weights. sizes: values, groups, vec4s of source channels, panels."""
    values, groups, deep, panels = sizes
    rows, wide = next(r for r in FOURS if r >= min(x.count, FOURS[-1])) if x.fours else rows_of(x.count), panels * LANES
    high = -(-x.count // rows) * rows  # so that no store needs a guard
    made = Products(TEMP(len(temps)), high, wide, groups * high * wide + APART)
    temps.append(values * made.value * 16)
    f = ProductForm(rows, weights.along, x.image > 0, x.count < T.MAX_RECIPROCAL, x.fours)
    w = weights
    words = [x.count, deep, groups, x.value, x.group, x.deep, x.plane, x.image, T.reciprocal(x.plane)]
    words += [w.offset, w.value, w.group, w.panel, w.four, w.lane, w.turn, made.value, made.group, wide]
    kernel = Kernel(
        ("conv", "product", f), lambda profile: _product_source(f, profile), ("read", "read", "read_write"), label="conv_product",
        trusted=True,
    )  # fmt: skip
    grid = (-(-x.count // rows), panels, values * groups)
    return made, Launch(kernel, (x.binding, w.binding, made.binding), grid, T.pack(words))


PRODUCT = (
    "rows", "turns", "groups", "a_value", "a_group", "a_turn", "plane", "a_image", "by_plane", "b_off", "b_value", "b_group", "b_panel",
    "b_four", "b_lane", "b_turn", "o_value", "o_group", "wide",
)  # fmt: skip


def _product_source(f: ProductForm, profile: Profile) -> str:
    """Grid: (all rows / `rows`, panels of 32 channels, values * groups)."""
    rows, loads = f.rows, -(-f.rows // LANES)
    args = "@builtin(workgroup_id) w: vec3<u32>, @builtin(subgroup_invocation_id) lane: u32"
    body = f"@compute @workgroup_size({LANES}) fn main({args}) {{\n"
    body += f"  let r = w.x * {rows}u; let v = w.z / p.groups; let g = w.z - v * p.groups;\n"
    body += "  var at = v * p.a_value + g * p.a_group; var left = p.turns;\n"
    if f.fours:
        body += "  let a = min(r / 4u + lane, (p.rows + 3u) / 4u - 1u) * p.plane;\n"
    for i in range(0 if f.fours else loads):
        row = f"min(r + lane + {i * LANES}u, p.rows - 1u)"
        if f.pixels:
            body += f"  let row{i} = {row}; " + T.decompose(f"row{i}", ["0", "p.plane"], f"e{i}_", ["", "p.by_plane"] if f.small else [])
            body += f" let a{i} = e{i}_0 * p.a_image + e{i}_1;\n"
        else:
            body += f"  let a{i} = {row};\n"
    body += "  var b = p.b_off + v * p.b_value + g * p.b_group + w.y * p.b_panel + lane * p.b_lane;\n"
    body += "".join("  " + " ".join(f"var c{i}_{j} = 0.0;" for j in range(4)) + "\n" for i in range(rows)) + "  loop {\n"
    body += (
        "    " + " ".join(f"let x{i} = x[{f'a + at + {i}u' if f.fours else f'a{i} + at'}];" for i in range(4 if f.fours else loads)) + "\n"
    )
    body += "    " + " ".join(f"let y{q} = weight[b + {q}u * p.b_four];" for q in range(4)) + "\n"
    for i in range(rows):
        text = ""
        for q in range(4):
            value, lane = (f"x{q}.{T.LANES[i % 4]}", i // 4) if f.fours else (f"x{i // LANES}.{T.LANES[q]}", i % LANES)
            text += f"let s{i}_{q} = subgroupBroadcast({value}, {lane}u); "
        for j in range(4):
            for q in range(4):
                y = f"y{j}.{T.LANES[q]}" if f.along == "k" else f"y{q}.{T.LANES[j]}"
                text += f"c{i}_{j} = fma(s{i}_{q}, {y}, c{i}_{j}); "
        body += f"    {text}\n"
    body += "    continuing { at += p.a_turn; b += p.b_turn; left -= 1u; break if left == 0u; }\n  }\n"
    body += f"  let to = v * p.o_value + g * p.o_group + r * p.wide + w.y * {LANES}u + lane;\n"
    for i in range(rows):
        body += f"  o[to + {i}u * p.wide] = vec4<f32>({', '.join(f'c{i}_{j}' for j in range(4))});\n"
    body += "}\n"
    out = T.header(profile, [], True) + T.storage(0, "x", "vec4<f32>", "read") + T.storage(1, "weight", "vec4<f32>", "read")
    return out + T.storage(2, "o", "vec4<f32>", "read_write") + T.uniform(3, PRODUCT) + body


def rows_of(count: int) -> int:
    """Rows a subgroup makes, by the time that all take: loads and products of a turn, in nanoseconds."""
    return min(ROWS, key=lambda r: row_time(count, r))


def row_time(count: int, rows: int = 0) -> float:
    """Nanoseconds that one core takes for a turn of all rows: four source channels, 32 result channels."""
    r = rows or rows_of(count)
    return -(-count // r) * (40 + 12 * (4 + -(-r // LANES)) + 4.0 * r)
