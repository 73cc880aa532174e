"""3x3 convolutions of stride 1 by Winograd's F(2x2, 3x3), for software Vulkan: 16 matrix products where 36 would be needed.

Every 2x2 tile of the result comes from a 4x4 patch of the source: patches and kernels are transformed, their 16 values multiplied
as matrices over channels, and the products transformed back. A lane has four tiles side by side. Sums that are not finite are
made anew, tap by tap: a transform would spread NaN and infinities over whole patches. Source: arXiv:1509.09308.
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import dtype as D
from ..dtype import DType
from . import matmul_cpu
from . import template as T
from .conv_border import Bordered, bordered
from .conv_phases import Phase
from .conv_problem import Gather
from .kernel import TEMP, Kernel, Launch, Profile
from .matmul_problem import Problem, Result, Side

LEAST, MOST = 16, 4000  # channels from which it pays, and up to which making sums anew stays under 65,535 turns
SIZE = 64  # invocations a workgroup
VALUES = 16  # of a patch
APART = 36  # elements between what is stored for one value and for the next, so that equal places do not share cache sets
TILES = 48  # from which it pays


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of the result: `down` rows of `across` in each of n images; across is a multiple of 4."""

    n: int
    down: int
    across: int

    @property
    def count(self) -> int:
        return self.n * self.down * self.across


def suits(p: Gather, parts: list[Phase]) -> bool:
    """Whether it is such a convolution, with enough channels."""
    if (
        len(parts) != 1
        or p.reach[0] != 1
        or p.size[0] != 1
        or min(p.rows, p.depth) < LEAST
        or p.depth > MOST
        or p.target.part
        or p.source.part
    ):
        return False
    phase = parts[0]
    if p.geometry.n * -(-p.size[1] // 2) * -(-p.size[2] // 2) < TILES:
        return False
    return phase.of("count") == (1, 3, 3) and all(phase.of(x) == (1, 1, 1) for x in ("stride", "spread", "every"))


def gather(p: Gather, phase: Phase, profile: Profile, temps: list[int]) -> list[Launch]:
    """The launches."""
    g = p.geometry
    tiles = Tiles(g.n, -(-p.size[1] // 2), -(-p.size[2] // 8) * 4)
    front = (-phase.axes[0].front, -phase.axes[1].front, -phase.axes[2].front)
    size = (1, 2 * tiles.down + 2, -(-(2 * tiles.across + 2) // 4) * 4)
    source, launches = bordered(p.source, g.n, p.depth * g.groups, p.reach, front, size, temps)
    wide = -(-p.rows // 4) * 4
    names, steps = [], []
    for elements in (g.groups * p.depth * wide, g.groups * p.depth * tiles.count, g.groups * wide * tiles.count):
        names.append(TEMP(len(temps)))
        steps.append(elements + APART)
        temps.append(VALUES * steps[-1] * 4)
    kernels, patches, products = names
    launches += [_weights(p, phase, kernels, steps[0] // 4), _patches(source, tiles, patches, steps[1] // 4)]
    batch = (VALUES, g.groups)
    a = Side(kernels, D.float32, 0, 1, wide, (steps[0], p.depth * wide), wide)
    b = Side(patches, D.float32, 0, 1, tiles.count, (steps[1], p.depth * tiles.count), tiles.count)
    out = Result(products, D.float32, 0, tiles.count, 1, (steps[2], wide * tiles.count))
    launches += matmul_cpu.plan(Problem(wide, tiles.count, p.depth, batch, a, b, out), profile, temps)
    return [*launches, _results(p, phase, tiles, source, products, steps[2] // 4)]


def _launch(name: str, key: object, source: object, bindings: tuple[int, ...], count: int, words: list[int]) -> Launch:
    assert callable(source)
    access = ("read",) * (len(bindings) - 1) + ("read_write",)
    kernel = Kernel(("conv", "winograd", name, key), source, access, label=f"conv_{name}", trusted=True)
    return Launch(kernel, bindings, T.grid(-(-count // SIZE)), T.pack(words))


def _begin(profile: Profile) -> str:
    return T.entry(profile, SIZE) + f"  let i = group * {SIZE}u + local;\n  if (i >= p.count) {{ return; }}\n"


# --- kernels ----------------------------------------------------------------------------------------------------------------


def _weights(p: Gather, phase: Phase, target: int, step: int) -> Launch:
    """[16, groups, depth, wide]: G k G^T of every 3x3 kernel k."""
    quads = -(-p.rows // 4)
    count = p.geometry.groups * p.depth * quads
    words = [count, p.depth, quads, p.rows, *_weight_words(p, phase), step]
    w, dtype = p.weight, p.weight.dtype
    return _launch("weights", dtype, lambda profile: _weights_source(dtype, profile), (w.binding, target), count, words)


def _weight_words(p: Gather, phase: Phase) -> list[int]:
    """Where the taps of a kernel lie: WEIGHT_FIELDS."""
    w = p.weight
    first = sum(a * b for a, b in zip(phase.of("first"), w.spatial, strict=True))
    steps = [a * b for a, b in zip(phase.of("step"), w.spatial, strict=True)]
    return [p.group, w.offset + first, w.n, w.c, steps[1], steps[2]]


WEIGHT_FIELDS = ("group", "w_off", "w_n", "w_c", "w_y", "w_x")


def _weights_source(dtype: DType, profile: Profile) -> str:
    fields = ["count", "depth", "quads", "rows", *WEIGHT_FIELDS, "step"]
    body = _begin(profile) + "  " + T.decompose("i", ["0", "p.depth", "p.quads"]) + "\n"
    body += "  let at = p.w_off + c0 * p.group + c1 * p.w_c; let row = c2 * 4u;\n"
    body += "".join(f"  let a{k} = at + min(row + {k}u, p.rows - 1u) * p.w_n; let k{k} = row + {k}u < p.rows;\n" for k in range(4))
    for y in range(3):
        for x in range(3):
            values = (T.load(dtype, f"weight[a{k} + {y}u * p.w_y + {x}u * p.w_x]", D.float32) for k in range(4))
            body += f"  let g{y}{x} = vec4<f32>({', '.join(f'select(0.0, {v}, k{k})' for k, v in enumerate(values))});\n"
    for x in range(3):
        body += f"  let h0{x} = g0{x}; let s{x} = g0{x} + g2{x}; let h1{x} = 0.5 * (s{x} + g1{x}); let h2{x} = 0.5 * (s{x} - g1{x});"
        body += f" let h3{x} = g2{x};\n"
    for y in range(4):
        body += f"  o[{4 * y}u * p.step + i] = h{y}0; o[{4 * y + 3}u * p.step + i] = h{y}2; let e{y} = h{y}0 + h{y}2;\n"
        body += f"  o[{4 * y + 1}u * p.step + i] = 0.5 * (e{y} + h{y}1); o[{4 * y + 2}u * p.step + i] = 0.5 * (e{y} - h{y}1);\n"
    body += "}\n"
    out = T.header(profile, [dtype], T.lanes(profile) > 0) + T.storage(0, "weight", T.element(dtype), "read")
    return out + T.storage(1, "o", "vec4<f32>", "read_write") + T.uniform(2, fields) + T.prelude(body) + body


def _patches(x: Bordered, tiles: Tiles, target: int, step: int) -> Launch:
    """[16, channels, tiles]: B^T d B of every 4x4 patch d."""
    across = tiles.across // 4
    count = tiles.n * x.channels * tiles.down * across
    words = [count, step, tiles.n, tiles.down, across, x.offset // 4, x.channels * x.plane // 4, x.plane // 4, x.size[2] // 4]
    words += [T.reciprocal(v) for v in (tiles.n, tiles.down, across)]
    small = count < T.MAX_RECIPROCAL
    return _launch("patches", small, lambda profile: _patches_source(small, profile), (x.binding, target), count, words)


def _patches_source(small: bool, profile: Profile) -> str:
    fields = ["count", "step", "n", "down", "across", "x_off", "x_n", "x_c", "x_y", "by_n", "by_down", "by_across"]
    by = ["", "p.by_n", "p.by_down", "p.by_across"] if small else []
    body = _begin(profile) + "  " + T.decompose("i", ["0", "p.n", "p.down", "p.across"], reciprocals=by) + "\n"
    body += "  let at = p.x_off + c1 * p.x_n + c0 * p.x_c + c2 * 2u * p.x_y + c3 * 2u;\n"
    for y in range(4):
        body += f"  let r{y} = at + {y}u * p.x_y; let u{y} = x[r{y}]; let v{y} = x[r{y} + 1u]; let w{y} = x[r{y} + 2u].xy;\n"
    rows = ("{0}0 - {0}2", "{0}1 + {0}2", "{0}2 - {0}1", "{0}1 - {0}3")
    for y, row in enumerate(rows):
        body += f"  let U{y} = {row.format('u')}; let V{y} = {row.format('v')}; let W{y} = {row.format('w')};\n"
        body += f"  let e{y} = vec4<f32>(U{y}.x, U{y}.z, V{y}.x, V{y}.z); let f{y} = vec4<f32>(U{y}.z, V{y}.x, V{y}.z, W{y}.x);\n"
        body += f"  let o{y} = vec4<f32>(U{y}.y, U{y}.w, V{y}.y, V{y}.w); let q{y} = vec4<f32>(U{y}.w, V{y}.y, V{y}.w, W{y}.y);\n"
        values = (f"e{y} - f{y}", f"o{y} + f{y}", f"f{y} - o{y}", f"o{y} - q{y}")
        body += "".join(f"  o[{4 * y + k}u * p.step + i] = {v};\n" for k, v in enumerate(values))
    body += "}\n"
    out = T.header(profile, [], T.lanes(profile) > 0) + T.storage(0, "x", "vec4<f32>", "read")
    return out + T.storage(1, "o", "vec4<f32>", "read_write") + T.uniform(2, fields) + body


@dataclass(frozen=True, slots=True)
class ResultForm:
    target: DType
    weight: DType
    bias: DType | None
    quads: bool
    small: bool


def _results(p: Gather, phase: Phase, tiles: Tiles, x: Bordered, products: int, step: int) -> Launch:
    """The target: A^T m A of every patch m of products, and the bias."""
    g, o = p.geometry, p.target
    across = tiles.across // 4
    count = g.groups * p.rows * tiles.n * tiles.down * across
    quads = o.spatial[2] == 1 and p.size[2] % 4 == 0 and not any(v % 4 for v in (o.offset, o.n, o.c, o.spatial[1]))
    f = ResultForm(o.dtype, p.weight.dtype, p.bias.dtype if p.bias else None, quads, count < T.MAX_RECIPROCAL)
    unit = 4 if quads else 1
    words = [count, tiles.n, tiles.down, across, p.rows, -(-p.rows // 4) * 4, step, p.size[1], p.size[2]]
    words += [*(v // unit for v in (o.offset, o.n, o.c, o.spatial[1])), o.spatial[2]]
    words += [p.bias.offset, p.bias.c] if p.bias else [0, 0]
    words += [T.reciprocal(v) for v in (p.rows, tiles.n, tiles.down, across)]
    words += [*_weight_words(p, phase), p.depth, x.offset, x.channels * x.plane, x.plane, x.size[2]]
    bindings = (products, x.binding, p.weight.binding, *([p.bias.binding] if p.bias else []), o.binding)
    return _launch("results", f, lambda profile: _results_source(f, profile), bindings, count, words)


def _results_source(f: ResultForm, profile: Profile) -> str:
    fields = ["count", "n", "down", "across", "rows", "wide", "step", "size_y", "size_x", "o_off", "o_n", "o_c", "o_y", "o_x"]
    fields += ["b_off", "b_c", "by_rows", "by_n", "by_down", "by_across", *WEIGHT_FIELDS, "depth", "x_off", "x_n", "x_c", "x_y"]
    by = ["", "p.by_rows", "p.by_n", "p.by_down", "p.by_across"] if f.small else []
    body = _begin(profile) + "  " + T.decompose("i", ["0", "p.rows", "p.n", "p.down", "p.across"], reciprocals=by) + "\n"
    body += "  let at = (((c0 * p.wide + c1) * p.n + c2) * p.down + c3) * p.across + c4; let ch = c0 * p.rows + c1;\n"
    body += "".join(f"  let m{k} = t[at + {k}u * p.step];\n" for k in range(VALUES))
    for k in range(4):
        body += f"  let s{k} = m{k} + m{4 + k} + m{8 + k}; let d{k} = m{4 + k} - m{8 + k} - m{12 + k};\n"
    shift = ""
    if f.bias:
        body += f"  let shift = {T.load(f.bias, 'b[p.b_off + ch * p.b_c]', D.float32)};\n"
        shift = " + shift"
    body += "  let y = c3 * 2u; let to = p.o_off + c2 * p.o_n + ch * p.o_c + y * p.o_y;\n"
    for r, v in enumerate("sd"):
        body += f"  var a{r} = {v}0 + {v}1 + {v}2{shift}; var b{r} = {v}1 - {v}2 - {v}3{shift};\n"
    body += f"  if ({' || '.join(f'endless({v})' for v in ('a0', 'b0', 'a1', 'b1'))}) {{\n    var made: array<f32, 16>;\n"
    body += "    for (var k = 0u; k < 16u; k++) {\n      var sum = 0.0; var wi = p.w_off + c0 * p.group + c1 * p.w_n;\n"
    body += "      var xi = p.x_off + c2 * p.x_n + c0 * p.depth * p.x_c + (y + k / 8u) * p.x_y + c4 * 8u + k % 8u;\n"
    body += "      for (var c = 0u; c < p.depth; c++) {\n"
    for y in range(3):
        for x in range(3):
            weight = T.load(f.weight, f"weight[wi + {y}u * p.w_y + {x}u * p.w_x]", D.float32)
            body += f"        sum = fma(element(xi + {y}u * p.x_y + {x}u), {weight}, sum);\n"
    body += f"        xi += p.x_c; wi += p.w_c;\n      }}\n      made[k] = sum{shift};\n    }}\n"
    for r in range(2):
        for name, odd in (("a", 0), ("b", 1)):
            body += f"    {name}{r} = vec4<f32>({', '.join(f'made[{8 * r + 2 * k + odd}]' for k in range(4))});\n"
    body += "  }\n"
    for r in range(2):
        row = "to" if r == 0 else "to + p.o_y"
        text = ""
        for h, (i, j) in enumerate((("x", "y"), ("z", "w"))):
            values = [T.store("f32", v, f.target) for v in (f"a{r}.{i}", f"b{r}.{i}", f"a{r}.{j}", f"b{r}.{j}")]
            if f.quads:
                text += (
                    f"if (c4 * 8u + {4 * h}u < p.size_x) {{ o[{row} + c4 * 2u + {h}u] = {T.element(f.target, 4)}({', '.join(values)}); }} "
                )
            else:
                places = (f"c4 * 8u + {4 * h + k}u" for k in range(4))
                text += "".join(f"if ({x} < p.size_x) {{ o[{row} + ({x}) * p.o_x] = {v}; }} " for x, v in zip(places, values, strict=True))
        body += f"  {text}\n" if r == 0 else f"  if (y + 1u < p.size_y) {{ {text}}}\n"
    body += "}\n"
    dtypes = [f.target, f.weight, *([f.bias] if f.bias else [])]
    out = T.header(profile, dtypes, T.lanes(profile) > 0) + T.storage(0, "t", "vec4<f32>", "read") + T.storage(1, "x", "vec4<f32>", "read")
    out += T.storage(2, "weight", T.element(f.weight), "read") + (T.storage(3, "b", T.element(f.bias), "read") if f.bias else "")
    n = 4 if f.bias else 3
    out += T.storage(n, "o", T.element(f.target, 4 if f.quads else 1), "read_write")
    return out + T.uniform(n + 1, fields) + T.prelude(body) + FUNCTIONS + body


FUNCTIONS = """fn endless(v: vec4<f32>) -> bool { return any((bitcast<vec4<u32>>(v) & vec4<u32>(0x7f800000u)) == vec4<u32>(0x7f800000u)); }
fn element(i: u32) -> f32 { return x[i / 4u][i % 4u]; }
"""
