"""Text of the Winograd kernels of software Vulkan: kernels, patches and products of F(4x4, 3x3) transformed (winograd_transforms.py).

An invocation has four channels of one kernel or tile, a vec4, and goes over a patch in two turns of a loop, half of it each: code
that is longer runs from outside the instruction cache, at half the speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .. import dtype as D
from ..dtype import DType
from . import template as T
from .conv_blocks import PANEL, begin, places
from .conv_fusion import closing, dtypes
from .kernel import Profile
from .matmul_fusion import Epilogue
from .winograd_transforms import LIMIT, Matrix, apply, transforms

M = 4  # results of a tile along each axis
N = M + 2  # values of a patch along each axis
VALUES = N * N
GATHER = transforms(M, 3)
WEIGH = transforms(3, M)  # the weight gradient: 3x3 results of a "kernel" of 4x4 gradients
VEC = "vec4<f32>"


def _columns(matrix: Matrix, values: Sequence[Sequence[str]], stem: str) -> tuple[str, list[list[str]]]:
    """Lets of matrix * values, and their names."""
    names = [[f"{stem}{y}_{x}" for x in range(len(values[0]))] for y in range(len(matrix))]
    lines = (apply(matrix, [row[x] for row in values], [row[x] for row in names], VEC) for x in range(len(values[0])))
    return "".join(f"  {' '.join(line)}\n" for line in lines), names


def _take(matrix: Matrix, rows: int, width: int, load: Callable[[int, int], str], step: str) -> tuple[str, list[list[str]]]:
    """Variables of values * matrix^T: each turn reads half the rows, `load(y, x)`, and `step` moves on to the others."""
    half, wide = rows // 2, len(matrix)
    names = [[f"d{y}{x}" for x in range(wide)] for y in range(rows)]
    text = "".join("  " + " ".join(f"var {n} = vec4<f32>();" for n in row) + "\n" for row in names)
    text += "  var turn = 0u;\n  loop {\n" + "".join("    " + _moved(names[y], names[y + half]) + "\n" for y in range(half))
    for y in range(half):
        made = [f"q{y}{x}" for x in range(wide)]
        text += "    " + " ".join(f"let l{y}{x} = {load(y, x)};" for x in range(width)) + "\n"
        text += f"    {' '.join(apply(matrix, [f'l{y}{x}' for x in range(width)], made, VEC))} {_moved(names[y + half], made)}\n"
    return text + f"    {step}\n    continuing {{ turn += 1u; break if turn >= p.turns; }}\n  }}\n", names


def _moved(names: Sequence[str], values: Sequence[str]) -> str:
    return " ".join(f"{n} = {v};" for n, v in zip(names, values, strict=True))


def _put(matrix: Matrix, values: Sequence[Sequence[str]], at: str) -> str:
    """Stores of matrix * values, one value after the other `p.step` vec4s apart from `at` on."""
    text, made = _columns(matrix, values, "v")
    names = [[f"o{v}" for v in row] for row in made]
    half = len(names) // 2
    text += "".join("  " + " ".join(f"var {n} = {v};" for n, v in zip(*row, strict=True)) + "\n" for row in zip(names, made, strict=True))
    text += f"  var to = {at}; turn = 0u;\n  loop {{\n"
    text += "".join("    " + "".join(f"o[to] = {n}; to += p.step; " for n in names[y]) + "\n" for y in range(half))
    text += "".join("    " + _moved(names[y], names[y + half]) + "\n" for y in range(half))
    return text + "    continuing { turn += 1u; break if turn >= p.turns; }\n  }\n"


# --- kernels -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WeightForm:
    """`along`: of which neighbours a vec4 of kernels holds the taps, "k" (source channels) or "m" (result channels); `run`: the
    taps of such neighbours are one run of vec4s, `flipped` where they lie from the last to the first."""

    weight: DType
    along: str
    run: bool
    flipped: bool


WEIGHTS = ("count", "panels", "deep", "depth", "rows", "group", "w_off", "w_m", "w_k", "w_y", "w_x", "step", "turns")


def weights_source(f: WeightForm, profile: Profile) -> str:
    """[values, groups, panels, depth / 4, 32] of vec4s: G k G^T of every kernel k."""
    body = begin(profile) + "  " + T.decompose("i", ["0", "p.panels", "p.deep", f"{PANEL}u"]) + "\n"
    body += places(f.along)
    if f.run:
        body += f"  let first = (start{' - 8u' if f.flipped else ''}) / 4u;\n" + "".join(
            f"  let w{j} = weight[select(0u, first + {j}u, all(mask))];\n" for j in range(9)
        )
    names = []
    for y in range(3):
        names.append([f"g{y}{x}" for x in range(3)])
        for x in range(3):
            if f.run:
                tap = 8 - (3 * y + x) if f.flipped else 3 * y + x
                spots = [9 * j + tap for j in range(4)]
                parts = [f"w{s // 4}.{T.LANES[s % 4]}" for s in spots]
            else:
                parts = [T.load(f.weight, f"weight[at{j} + {y}u * p.w_y + {x}u * p.w_x]", D.float32) for j in range(4)]
            body += f"  let g{y}{x} = select(vec4<f32>(), vec4<f32>({', '.join(parts)}), mask);\n"
    wide = [[f"h{y}{x}" for x in range(N)] for y in range(3)]
    body += "".join(f"  {' '.join(apply(GATHER.taps, given, made, VEC))}\n" for given, made in zip(names, wide, strict=True))
    body += "  var turn = 0u;\n" + _put(GATHER.taps, wide, "i") + "}\n"
    out = T.header(profile, [f.weight], T.lanes(profile) > 0) + T.storage(0, "weight", T.element(f.weight, 4 if f.run else 1), "read")
    return out + T.storage(1, "o", "vec4<f32>", "read_write") + T.uniform(2, WEIGHTS) + T.prelude(body) + body


@dataclass(frozen=True, slots=True)
class PatchForm:
    """What is transformed: "source" (6x6 patches that overlap), or "grad" (4x4 tiles, as a weight gradient's kernels)."""

    what: str
    small: bool


PATCHES = ("count", "n", "down", "across", "deep", "groups", "plane", "width", "step", "by_n", "by_down", "by_across", "by_deep", "turns")


def patches_source(f: PatchForm, profile: Profile) -> str:
    """[values, groups, depth / 4, tiles] of four channels: B^T d B of every patch d of an image, or G d G^T of every tile."""
    matrix, size = (GATHER.patch, N) if f.what == "source" else (WEIGH.taps, M)
    by = ["", "p.by_deep", "p.by_n", "p.by_down", "p.by_across"] if f.small else []
    body = begin(profile) + "  " + T.decompose("i", ["0", "p.deep", "p.n", "p.down", "p.across"], reciprocals=by) + "\n"
    body += f"  var at = ((c2 * p.groups + c0) * p.deep + c1) * p.plane + c3 * {M}u * p.width + c4 * {M}u;\n"
    text, names = _take(matrix, size, size, lambda y, x: f"x[at + {y}u * p.width + {x}u]", f"at += {size // 2}u * p.width;")
    body += text + _put(matrix, names, "i") + "}\n"
    out = T.header(profile, [], T.lanes(profile) > 0) + T.storage(0, "x", "vec4<f32>", "read")
    return out + T.storage(1, "o", "vec4<f32>", "read_write") + T.uniform(2, PATCHES) + body


@dataclass(frozen=True, slots=True)
class ResultForm:
    target: DType
    weight: DType
    bias: DType | None
    whole: bool  # the results of a tile's row are stored at once
    small: bool
    epilogue: Epilogue | None = None


RESULTS = (
    "count", "quads", "n", "down", "across", "rows", "wide", "group", "step", "size_y", "size_x", "o_off", "o_n", "o_c", "o_y", "o_x",
    "b_off", "b_c", "by_quads", "by_n", "by_down", "by_across", "w_group", "w_off", "w_m", "w_k", "w_y", "w_x", "depth", "deep", "groups",
    "plane", "width", "turns",
)  # fmt: skip


def results_source(f: ResultForm, profile: Profile) -> str:
    """The target: A^T p A of every patch p of products, and the bias. An invocation has four channels of one tile."""
    by = ["", "p.by_quads", "p.by_n", "p.by_down", "p.by_across"] if f.small else []
    body = begin(profile) + "  " + T.decompose("i", ["0", "p.quads", "p.n", "p.down", "p.across"], reciprocals=by) + "\n"
    body += "  var at = c0 * p.group + ((c2 * p.down + c3) * p.across + c4) * p.wide + c1;\n"
    text, names = _take(GATHER.results, N, N, lambda y, x: f"t[at + {y * N + x}u * p.step]", f"at += {N // 2 * N}u * p.step;")
    lets, made = _columns(GATHER.results, names, "v")
    body += text + lets + "  let first = c1 * 4u; let ch = c0 * p.rows + first;\n"
    if f.bias:
        shifts = (T.load(f.bias, f"b[p.b_off + (ch + min({k}u, p.rows - 1u - first)) * p.b_c]", D.float32) for k in range(4))
        body += f"  let shift = vec4<f32>({', '.join(shifts)});\n"
    for y in range(M):
        body += "  " + " ".join(f"var a{y}{x} = {v}{' + shift' if f.bias else ''};" for x, v in enumerate(made[y])) + "\n"
    every = [f"a{y}{x}" for y in range(M) for x in range(M)]
    body += f"  let y = c3 * {M}u; let x = c4 * {M}u; let end = min(4u, p.rows - first); let total = {' + '.join(every)};\n"
    body += f"  if (vast(total)) {{\n{_again(f)}    return;\n  }}\n"
    body += "  var k = 0u; var to = p.o_off + c2 * p.o_n + ch * p.o_c + y * p.o_y;\n  loop {\n"
    for y in range(M):
        body += f"    if (y + {y}u < p.size_y) {{ {_store_row(f, f'{y}u', [f'a{y}{x}.x' for x in range(M)])} }}\n"
    body += "    " + " ".join(f"{v} = {v}.yzwx;" for v in every) + "\n"
    body += "    continuing { to += p.o_c; k += 1u; break if k >= end; }\n  }\n}\n"
    out = T.header(profile, [f.weight, *dtypes(f.target, f.epilogue), *([f.bias] if f.bias else [])], T.lanes(profile) > 0)
    out += T.storage(0, "t", "vec4<f32>", "read") + T.storage(1, "image", "vec4<f32>", "read")
    out += T.storage(2, "weight", T.element(f.weight), "read") + (T.storage(3, "b", T.element(f.bias), "read") if f.bias else "")
    return out + VAST + closing(f.target, f.epilogue, 4 if f.bias else 3, M if f.whole else 1, RESULTS, body)


def _store_row(f: ResultForm, line: str, values: list[str]) -> str:
    """Stores of a row of a tile, of the channel that `k` says."""
    pixel = f"(y + {line}) * p.size_x + x"
    if f.whole:
        if f.epilogue is not None:
            text = f"finish(c2, ch + k, {pixel}, vec4<f32>({', '.join(values)}));"
        else:
            stored = ", ".join(T.store("f32", v, f.target) for v in values)
            text = f"o[(to + {line} * p.o_y) / {M}u + c4] = {T.element(f.target, M)}({stored});"
        return f"if (x < p.size_x) {{ {text} }}"
    texts = []
    for i, v in enumerate(values):
        place = f"to + {line} * p.o_y + (x + {i}u) * p.o_x"
        put = f"finish(c2, ch + k, {pixel} + {i}u, {v});" if f.epilogue is not None else f"o[{place}] = {T.store('f32', v, f.target)};"
        texts.append(f"if (x + {i}u < p.size_x) {{ {put} }}")
    return " ".join(texts)


def _again(f: ResultForm) -> str:
    """Results made tap by tap, a row of a channel at a time: transforms spread NaN, and rounding errors of what is vast, over a patch."""
    body = f"    for (var s = 0u; s < {M}u * end; s++) {{\n      let line = s % {M}u; let k = s / {M}u;\n"
    body += "      if (y + line >= p.size_y) { continue; }\n"
    body += "      var sum = vec4<f32>(); let wi = p.w_off + c0 * p.w_group + (first + k) * p.w_m;\n"
    body += "      let corner = (c2 * p.groups + c0) * p.deep * p.plane + (y + line) * p.width + x;\n"
    body += "      for (var step = 0u; step < p.depth * 3u; step++) {\n        let c = step / 3u; let ty = step % 3u;\n"
    body += "        let here = corner + c / 4u * p.plane + ty * p.width; let tap = wi + c * p.w_k + ty * p.w_y;\n"
    body += "".join(f"        let e{x} = image[here + {x}u][c % 4u];\n" for x in range(N))
    for x in range(3):
        weight = T.load(f.weight, f"weight[tap + {x}u * p.w_x]", D.float32)
        body += f"        sum += vec4<f32>({', '.join(f'e{x + i}' for i in range(M))}) * {weight};\n"
    body += f"      }}\n{'      sum += shift[k];' if f.bias else ''}\n"
    body += "      let to = p.o_off + c2 * p.o_n + (ch + k) * p.o_c + y * p.o_y;\n"
    return body + f"      {_store_row(f, 'line', [f'sum.{T.LANES[i]}' for i in range(M)])}\n    }}\n"


VAST = f"fn vast(v: vec4<f32>) -> bool {{ return any((bitcast<vec4<u32>>(v) & vec4<u32>(0x7f800000u)) >= vec4<u32>({LIMIT})); }}\n"


# --- weight gradients ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GradForm:
    target: DType
    small: bool


GRADS = (
    "count", "rows", "quads", "columns", "wide", "group", "step", "o_off", "o_n", "o_c", "o_y", "o_x", "by_rows", "by_quads", "n", "groups",
    "size_y", "size_x", "deep_x", "plane_x", "width_x", "deep_g", "plane_g", "width_g", "pixels", "turns",
)  # fmt: skip


def grads_source(f: GradForm, profile: Profile) -> str:
    """The target: A^T p A of every product p, for one channel of the output and four of the input."""
    by = ["", "p.by_rows", "p.by_quads"] if f.small else []
    body = begin(profile) + "  " + T.decompose("i", ["0", "p.rows", "p.quads"], reciprocals=by) + "\n"
    body += "  var at = c0 * p.group + c1 * p.wide + c2;\n"
    text, names = _take(WEIGH.results, N, N, lambda y, x: f"t[at + {y * N + x}u * p.step]", f"at += {N // 2 * N}u * p.step;")
    lets, made = _columns(WEIGH.results, names, "v")
    body += text + lets
    every = [f"a{y}{x}" for y in range(3) for x in range(3)]
    body += "".join("  " + " ".join(f"var a{y}{x} = {v};" for x, v in enumerate(made[y])) + "\n" for y in range(3))
    body += f"  let total = {' + '.join(every)};\n  if (vast(total)) {{\n"
    body += "    " + " ".join(f"{v} = vec4<f32>();" for v in every) + "\n"
    body += "    for (var s = 0u; s < p.pixels; s++) {\n"
    body += "      let line = s / p.size_x; let n = line / p.size_y; let y = line - n * p.size_y; let x = s - line * p.size_x;\n"
    body += "      let from_ = ((n * p.groups + c0) * p.deep_x + c2) * p.plane_x + y * p.width_x + x;\n"
    body += "      let g = grad[((n * p.groups + c0) * p.deep_g + c1 / 4u) * p.plane_g + y * p.width_g + x][c1 % 4u];\n"
    body += "".join(f"      a{y}{x} += image[from_ + {y}u * p.width_x + {x}u] * g;\n" for y in range(3) for x in range(3))
    body += "    }\n  }\n"
    body += (
        "  var to = p.o_off + (c0 * p.rows + c1) * p.o_n + c2 * 4u * p.o_c; var k = 0u; let end = min(4u, p.columns - c2 * 4u);\n  loop {\n"
    )
    for y in range(3):
        stores = (f"o[to + {y}u * p.o_y + {x}u * p.o_x] = {T.store('f32', f'a{y}{x}.x', f.target)};" for x in range(3))
        body += f"    {' '.join(stores)}\n"
    body += "    " + " ".join(f"{v} = {v}.yzwx;" for v in every) + "\n"
    body += "    continuing { to += p.o_c; k += 1u; break if k >= end; }\n  }\n}\n"
    out = T.header(profile, [f.target], T.lanes(profile) > 0) + VAST
    out += "".join(T.storage(i, name, "vec4<f32>", "read") for i, name in enumerate(("t", "image", "grad")))
    return out + T.storage(3, "o", T.element(f.target), "read_write") + T.uniform(4, GRADS) + T.prelude(body) + body
