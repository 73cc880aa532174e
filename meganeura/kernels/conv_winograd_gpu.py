"""3x3 convolutions of stride 1 by Winograd's algorithm, for GPUs: 36 matrix products where 144 would be needed.

A result and an input gradient go by F(4x4, 3x3): every 4x4 tile comes from a 6x6 patch of the source. Patches and kernels are
transformed, their 36 values multiplied as matrices over channels, the products transformed back. A weight gradient goes by
F(3x3, 4x4): 4x4 tiles of the output's gradient are the kernels that meet the same patches, and K runs over tiles.
K may be cut into slices that the last transform adds up, in their order. A batch whose temporaries would be too large is done
some images at a time. Results that are NaN or vast are made anew, tap by tap: a transform would spread them, or their rounding errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .. import dtype as D
from ..dtype import DType
from . import matmul_gpu
from . import template as T
from .choices import Tile
from .conv_fusion import closing, dtypes, launch
from .conv_phases import Phase, phases
from .conv_problem import Field, Gather, Triple, Weigh
from .conv_winograd_choices import Products, choose, gather_pays, weigh_pays
from .kernel import TEMP, Kernel, Launch, Profile
from .matmul_fusion import Epilogue
from .matmul_problem import Problem, Result, Side
from .matmul_wgsl import Form
from .winograd_transforms import LIMIT, Matrix, apply, both_axes, transforms

TILE = 4  # results of a tile along an axis
PATCH = 6
VALUES = PATCH * PATCH
GATHER = transforms(4, 3)
WEIGH = transforms(3, 4)
SIZE = 256  # invocations a workgroup
SLICES = 32  # of K at most
WORKSPACE = 256 << 20  # bytes that one temporary may take


@dataclass(frozen=True, slots=True)
class Way:
    """How it is done: the tile of the products, slices of K, images at a time."""

    tile: Tile
    split: int
    images: int


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of n images, `down` rows of `across` each; `wide`: their number, filled up."""

    n: int
    down: int
    across: int
    wide: int

    @staticmethod
    def of(n: int, size: Triple, multiple: int) -> Tiles:
        down, across = -(-size[1] // TILE), -(-size[2] // TILE)
        return Tiles(n, down, across, -(-n * down * across // multiple) * multiple)

    def words(self) -> list[int]:
        """TILES."""
        return [self.wide, self.n * self.down * self.across, self.down * self.across, self.across]


TILES = ["wide", "tiles", "plane", "across"]


# --- choice -----------------------------------------------------------------------------------------------------------------


def way(p: Gather | Weigh, profile: Profile) -> Way | None:
    """How to do a convolution this way, None where it is impossible or slower than direct sums."""
    how = forced(p, profile) if profile.winograd and possible(p) else None
    if how is None:
        return None
    g = p.geometry
    parts, sizes = -(-g.n // how.images), _sizes(p, g.n)
    if isinstance(p, Gather):
        pays = gather_pays(how.tile, how.split, sizes, g, p.source.dtype.itemsize, parts)
    else:
        pays = weigh_pays(how.tile, how.split, sizes, g, p.input.dtype.itemsize, parts)
    return how if pays else None


def _sizes(p: Gather | Weigh, n: int) -> Products:
    """The products of n images."""
    g = p.geometry
    if isinstance(p, Gather):
        return Products(p.rows, Tiles.of(n, p.size, 4).wide, p.depth, VALUES * g.groups)
    return Products(g.m, g.c, Tiles.of(n, g.output, 4).wide, VALUES * g.groups, True)


def possible(p: Gather | Weigh) -> bool:
    """Whether it is a plane convolution with 3x3 neighbouring taps and stride 1."""
    g = p.geometry
    return g.kernel == (1, 3, 3) and g.stride[1:] == g.dilation[1:] == (1, 1) and g.input[0] == g.output[0] == 1 and g.padding[0] == 0


def forced(p: Gather | Weigh, profile: Profile) -> Way | None:
    """How to do it, faster than direct sums or not; None where temporaries or tiles do not fit the device."""
    g = p.geometry
    most = min(profile.max_binding, WORKSPACE)
    wide, narrow = (max(p.rows, p.depth), p.size) if isinstance(p, Gather) else (max(g.m, g.c), g.output)
    image = VALUES * 4 * g.groups * wide * Tiles.of(1, narrow, 4).wide
    kernels = VALUES * 4 * g.groups * g.m * g.c if isinstance(p, Weigh) else VALUES * 4 * g.groups * _padded(p)
    each = profile.max_groups // (VALUES * g.groups)  # slices of K that a grid has room for
    if kernels > profile.max_binding or image > most or not each:
        return None
    parts = -(-g.n // (most // image))
    images = -(-g.n // parts)
    splits: tuple[int, ...] = ()
    if isinstance(p, Gather):
        splits = tuple(s for s in (1, 2, 4) if p.depth % (16 * s) == 0 and s * images * image <= most and s <= each) or (1,)
    elif parts * kernels > profile.max_binding:
        return None
    slices = max(1, min(SLICES, most // (parts * kernels), each))
    problem = _products(p, images, 1, (0, 0, 0), 0)[0]
    form = Form.of(problem, problem.a.form(problem.k), problem.b.form(problem.k), problem.stores())
    found = choose(_sizes(p, images), splits, slices, lambda tile: matmul_gpu.usable(tile, form, problem, profile))
    return found and Way(*found, images)


# --- launches ---------------------------------------------------------------------------------------------------------------


def gather(p: Gather, how: Way, temps: list[int]) -> list[Launch]:
    """The launches of a convolution's output or input gradient."""
    g, phase = p.geometry, phases(p)[0]
    problem, tiles = _products(p, how.images, how.split, (0, 0, 0), 0)
    kernels, patches, products = (TEMP(len(temps) + i) for i in range(3))
    temps.append(VALUES * g.groups * _padded(p) * 4)
    temps.append(VALUES * g.groups * p.depth * tiles.wide * 4)
    temps.append(how.split * VALUES * g.groups * problem.m * tiles.wide * 4)
    launches = [_kernels(p, phase, kernels)]
    for low in range(0, g.n, how.images):
        q = p.batch(low, min(low + how.images, g.n))
        problem, tiles = _products(q, q.geometry.n, how.split, (kernels, patches, products), 0)
        front = (phase.axes[1].front, phase.axes[2].front)
        launches.append(_transformed(q.source, "patch", GATHER.patch, tiles, q.reach, front, p.depth * g.groups, patches))
        launches += matmul_gpu.tiled(problem, how.tile, 1, temps)
        launches.append(_results(q, phase, tiles, problem.m, how.split, products))
    return launches


def weigh(p: Weigh, how: Way, temps: list[int]) -> list[Launch]:
    """The launches of a weight gradient."""
    g = p.geometry
    parts = -(-g.n // how.images)
    _, tiles = _products(p, how.images, how.split, (0, 0, 0), 0)
    grads, patches, products = (TEMP(len(temps) + i) for i in range(3))
    slices = parts * how.split
    temps.append(VALUES * g.groups * g.m * tiles.wide * 4)
    temps.append(VALUES * g.groups * g.c * tiles.wide * 4)
    temps.append(slices * VALUES * g.groups * g.m * g.c * 4)
    launches = []
    for part in range(parts):
        q = p.batch(part * how.images, min((part + 1) * how.images, g.n))
        problem, tiles = _products(q, q.geometry.n, how.split, (grads, patches, products), part * how.split)
        launches.append(_transformed(q.grad, "grad", WEIGH.taps, tiles, g.output, (0, 0), g.m * g.groups, grads))
        front = (-g.padding[1], -g.padding[2])
        launches.append(_transformed(q.input, "patch", WEIGH.patch, tiles, g.input, front, g.c * g.groups, patches))
        launches += matmul_gpu.tiled(problem, how.tile, 1, temps)
    return [*launches, _weights(p, slices, products)]


def _padded(p: Gather) -> int:
    """Elements of transformed kernels, one value and group."""
    return (p.rows if _along_k(p) else -(-p.rows // 4) * 4) * p.depth


def _along_k(p: Gather) -> bool:
    """Whether transformed kernels lie with neighbours in K: in the order in which the weights lie, if these are whole vec4s."""
    return p.depth % 4 == 0 and (p.weight.c < p.weight.n or p.rows % 4 != 0)


def _products(p: Gather | Weigh, n: int, split: int, bindings: tuple[int, int, int], first: int) -> tuple[Problem, Tiles]:
    """The products of n images, K in `split` slices from slice `first` on, and the tiles.

    bindings: transformed kernels or gradients, patches, results.
    """
    g = p.geometry
    batch = (VALUES * g.groups, split)
    if isinstance(p, Gather):
        tiles = Tiles.of(n, p.size, 4)
        wide, depth, k = -(-p.rows // 4) * 4, p.depth, p.depth // split
        if _along_k(p):
            rows = p.rows
            a = Side(bindings[0], D.float32, 0, depth, 1, (depth * rows, k), rows)
        else:
            rows = wide
            a = Side(bindings[0], D.float32, 0, 1, wide, (depth * wide, k * wide), wide)
        b = Side(bindings[1], D.float32, 0, 1, tiles.wide, (depth * tiles.wide, k * tiles.wide), tiles.wide)
        steps = (rows * tiles.wide, VALUES * g.groups * rows * tiles.wide)
        out = Result(bindings[2], D.float32, 0, tiles.wide, 1, steps)
        return Problem(rows, tiles.wide, k, batch, a, b, out), tiles
    tiles = Tiles.of(n, g.output, 4 * split)
    k, all_ = tiles.wide // split, VALUES * g.groups * g.m * g.c
    a = Side(bindings[0], D.float32, 0, tiles.wide, 1, (g.m * tiles.wide, k), g.m)
    b = Side(bindings[1], D.float32, 0, tiles.wide, 1, (g.c * tiles.wide, k), g.c)
    out = Result(bindings[2], D.float32, first * all_, g.c, 1, (g.m * g.c, all_))
    return Problem(g.m, g.c, k, batch, a, b, out), tiles


def _launch(
    name: str,
    key: object,
    source: Callable[[Profile], str],
    bindings: tuple[int, ...],
    fields: Sequence[Field | int],
    count: int,
    words: list[int],
) -> Launch:
    """fields: of the bindings, bytes for temporaries."""
    access = ("read",) * (len(bindings) - 1) + ("read_write",)
    kernel = Kernel(("conv", "winograd gpu", name, key), source, access, label=f"conv_{name}", trusted=True)
    whole = all(isinstance(x, int) or x.part is None for x in fields)
    parts = None if whole else tuple((0, x) if isinstance(x, int) else x.part or (0, 0) for x in fields)
    return Launch(kernel, bindings, T.grid(-(-count // SIZE)), T.pack(words), ranges=parts)


def _begin(profile: Profile) -> list[str]:
    return [T.entry(profile, SIZE), f"let i = group * {SIZE}u + local;", "if (i >= p.count) { return; }"]


def _tile_lines() -> list[str]:
    """Lets: channel `ch`, tile number `spot`, whether it is one (`live`), image n, place ty, tx."""
    return [
        "let ch = i / p.wide; let spot = i - ch * p.wide; let live = spot < p.tiles; let tile = min(spot, p.tiles - 1u);",
        "let n = tile / p.plane; let inner = tile - n * p.plane; let ty = inner / p.across; let tx = inner - ty * p.across;",
    ]


def _module(profile: Profile, arrays: list[tuple[str, DType, int]], fields: list[str], lines: list[str], before: str = "") -> str:
    """arrays: (name, dtype, width), the last one written."""
    out = T.header(profile, [d for _, d, _ in arrays], T.lanes(profile) > 0)
    for i, (name, dtype, width) in enumerate(arrays):
        out += T.storage(i, name, T.element(dtype, width), "read_write" if i == len(arrays) - 1 else "read")
    text = "\n".join(lines) + "\n"
    return out + T.uniform(len(arrays), fields) + before + T.prelude(text) + text


# --- transforms of images and gradients ---------------------------------------------------------------------------------------


def _transformed(
    x: Field, name: str, matrix: Matrix, tiles: Tiles, reach: Triple, front: tuple[int, int], channels: int, target: int
) -> Launch:
    """[36, channels, tiles.wide]: M d M^T of every patch d of a tensor, zero outside it and for tiles that fill up.

    A patch has as many elements an axis as the matrix has columns; the first tile's begins at `front`.
    """
    count = channels * tiles.wide
    words = [count, *tiles.words(), reach[1], reach[2], *front, x.offset, x.n, x.c, x.spatial[1], x.spatial[2]]
    key = (name, x.dtype)
    return _launch(
        name, key, lambda profile: _patch_source(x.dtype, matrix, profile), (x.binding, target), [x, VALUES * count * 4], count, words
    )


PATCHES = ["count", *TILES, "reach_y", "reach_x", "front_y", "front_x", "x_off", "x_n", "x_c", "x_y", "x_x"]


def _patch_source(dtype: DType, matrix: Matrix, profile: Profile) -> str:
    size = len(matrix[0])
    lines = [*_begin(profile), *_tile_lines(), "let x_at = p.x_off + n * p.x_n + ch * p.x_c;"]
    lines += _reach_lines("y", "ty", size, "p.front_y", "live && ") + _reach_lines("x", "tx", size, "p.front_x", "")
    names = [[f"d{r}_{c}" for c in range(size)] for r in range(size)]
    for r in range(size):
        lines += [f"let d{r}_{c} = {_masked('x', dtype, f'x_at + at_y{r} + at_x{c}', f'in_y{r} && in_x{c}')};" for c in range(size)]
    made, out = both_axes(matrix, names, "v")
    lines += made
    lines += [f"o[i + {PATCH * r + c}u * p.count] = {v};" for r, row in enumerate(out) for c, v in enumerate(row)]
    return _module(profile, [("x", dtype, 1), ("o", D.float32, 1)], PATCHES, [*lines, "}"])


def _reach_lines(axis: str, tile: str, size: int, front: str, also: str) -> list[str]:
    """Lets of every row (or column) of a patch: whether it lies inside, and its place."""
    lines = [f"let start_{axis} = {tile} * {TILE}u + {front};"]
    for k in range(size):
        lines.append(f"let in_{axis}{k} = {also}start_{axis} + {k}u < p.reach_{axis};")
        lines.append(f"let at_{axis}{k} = min(start_{axis} + {k}u, p.reach_{axis} - 1u) * p.x_{axis};")
    return lines


def _masked(array: str, dtype: DType, at: str, inside: str) -> str:
    return f"select(0.0, {T.load(dtype, f'{array}[{at}]', D.float32)}, {inside})"


# --- transforms of kernels ----------------------------------------------------------------------------------------------------

KERNELS = ["count", "inner", "outer", "inner_real", "w_off", "w_g", "w_inner", "w_outer", "w_y", "w_x"]


def _kernels(p: Gather, phase: Phase, target: int) -> Launch:
    """[36, groups, rows, depth] or [36, groups, depth, rows filled up]: G k G^T of every 3x3 kernel k."""
    w, g = p.weight, p.geometry
    first, steps = phase.kernel(w)
    if _along_k(p):
        inner, outer, real, strides = p.depth, p.rows, p.depth, (w.c, w.n)
    else:
        inner, outer, real, strides = -(-p.rows // 4) * 4, p.depth, p.rows, (w.n, w.c)
    count = g.groups * inner * outer
    words = [count, inner, outer, real, w.offset + first, p.group, *strides, *steps[1:]]
    return _launch(
        "kernels", w.dtype, lambda profile: _kernels_source(w.dtype, profile), (w.binding, target), [w, VALUES * count * 4], count, words
    )


def _kernels_source(dtype: DType, profile: Profile) -> str:
    lines = [
        *_begin(profile),
        "let line = i / p.inner; let a = i - line * p.inner;",
        "let grp = line / p.outer; let b = line - grp * p.outer;",
    ]
    lines += ["let at = p.w_off + grp * p.w_g + min(a, p.inner_real - 1u) * p.w_inner + b * p.w_outer;"]
    names = [[f"k{y}_{x}" for x in range(3)] for y in range(3)]
    for y in range(3):
        lines += [f"let k{y}_{x} = {T.load(dtype, f'weight[at + {y}u * p.w_y + {x}u * p.w_x]', D.float32)};" for x in range(3)]
    made, out = both_axes(GATHER.taps, names, "u")
    lines += made
    lines += [f"o[i + {PATCH * r + c}u * p.count] = {v};" for r, row in enumerate(out) for c, v in enumerate(row)]
    return _module(profile, [("weight", dtype, 1), ("o", D.float32, 1)], KERNELS, [*lines, "}"])


# --- results ------------------------------------------------------------------------------------------------------------------

VAST = f"fn vast(v: f32) -> bool {{ return (bitcast<u32>(v) & 0x7f800000u) >= {LIMIT}; }}\n"


def _sums(at: str, split: bool) -> list[str]:
    """Lets (vars where K has slices) m{row}_{column}: the 36 products of which the first lies at `at`.

    Slices are added up in their order, two a turn, and all of a turn's are loaded before the first is added: else loads wait for sums.
    """
    names = [f"{r}_{c}" for r in range(PATCH) for c in range(PATCH)]
    places = [f"{k}u * p.step" for k in range(VALUES)]
    lines = [f"{'var' if split else 'let'} m{n} = t[{at} + {k}];" for n, k in zip(names, places, strict=True)]
    if not split:
        return lines
    lines += [f"var place = {at} + p.slice; var left = p.slices - 1u; while (left >= 2u) {{ let next = place + p.slice;"]
    lines += [f"let a{n} = t[place + {k}];" for n, k in zip(names, places, strict=True)]
    lines += [f"let b{n} = t[next + {k}];" for n, k in zip(names, places, strict=True)]
    lines += [*(f"m{n} = (m{n} + a{n}) + b{n};" for n in names), "place = next + p.slice; left -= 2u; }", "if (left > 0u) {"]
    lines += [f"let a{n} = t[place + {k}];" for n, k in zip(names, places, strict=True)]
    return [*lines, *(f"m{n} += a{n};" for n in names), "}"]


def _transposed_back(matrix: Matrix) -> tuple[list[str], list[list[str]]]:
    """Statements for matrix @ m @ matrix^T and the names of the result's rows."""
    high, lines = len(matrix), []
    for c in range(PATCH):
        lines += apply(matrix, [f"m{r}_{c}" for r in range(PATCH)], [f"h{r}_{c}" for r in range(high)])
    for r in range(high):
        lines += apply(matrix, [f"h{r}_{c}" for c in range(PATCH)], [f"y{r}_{c}" for c in range(high)])
    return lines, [[f"y{r}_{c}" for c in range(high)] for r in range(high)]


def _any_vast(names: list[list[str]]) -> str:
    """Whether any of the values is NaN or as large as LIMIT."""
    return " || ".join(f"vast({v})" for row in names for v in row)


@dataclass(frozen=True, slots=True)
class ResultForm:
    """What decides the text of `_results`. `quads`: a tile's row is stored as one vec4."""

    target: DType
    source: DType
    weight: DType
    bias: DType | None
    quads: bool
    split: bool
    epilogue: Epilogue | None = None


RESULTS = [
    "count", *TILES, "step", "slices", "slice", "rows_wide", "rows", "depth", "size_y", "size_x", "o_off", "o_n", "o_c", "o_y", "o_x",
    "b_off", "b_c", "x_off", "x_n", "x_c", "x_y", "x_x", "reach_y", "reach_x", "front_y", "front_x",
    "w_off", "w_g", "w_n", "w_c", "w_y", "w_x",
]  # fmt: skip


def _results(p: Gather, phase: Phase, tiles: Tiles, rows: int, split: int, products: int) -> Launch:
    """The target: A^T m A of every patch m of products, the bias, and what is fused. rows: of the products, a group."""
    g, o, x, w = p.geometry, p.target, p.source, p.weight
    count = g.groups * rows * tiles.wide
    quads = p.quads and o.spatial[2] == 1 and p.size[2] % 4 == 0 and not any(v % 4 for v in (o.offset, o.n, o.c, o.spatial[1]))
    f = ResultForm(o.dtype, x.dtype, w.dtype, p.bias.dtype if p.bias else None, quads, split > 1, p.epilogue(quads))
    unit = 4 if quads else 1
    words = [count, *tiles.words(), count, split, VALUES * count, rows, p.rows, p.depth, p.size[1], p.size[2]]
    words += [*(v // unit for v in (o.offset, o.n, o.c, o.spatial[1])), o.spatial[2]]
    words += [p.bias.offset, p.bias.c] if p.bias else [0, 0]
    words += [x.offset, x.n, x.c, x.spatial[1], x.spatial[2], p.reach[1], p.reach[2], phase.axes[1].front, phase.axes[2].front]
    first, taps = phase.kernel(w)
    words += [w.offset + first, p.group, w.n, w.c, *taps[1:]]
    narrow = any(v is not None and v.part for v in (x, w, p.bias, o))
    sums = Field(products, D.float32, 0, 0, 0, (0, 0, 0), (0, split * VALUES * count * 4) if narrow else None)
    inputs, grid = [sums, x, w, *([p.bias] if p.bias else [])], T.grid(-(-count // SIZE))
    key = ("conv", "winograd gpu", "results", f)
    return launch(o, p.fusion, quads, key, lambda profile: _results_source(f, profile), inputs, grid, words, "conv_results")


def _results_source(f: ResultForm, profile: Profile) -> str:
    lines = [*_begin(profile), *_tile_lines()]
    lines += ["let grp = ch / p.rows_wide; let row = ch - grp * p.rows_wide; let to_ch = grp * p.rows + row;"]
    lines += ["if (!live || row >= p.rows) { return; }", *_sums("i", f.split)]
    shift = "0.0"
    if f.bias:
        lines.append(f"let shift = {T.load(f.bias, 'b[p.b_off + to_ch * p.b_c]', D.float32)};")
        shift = "shift"
    lines += [f"let y = ty * {TILE}u; let x0 = tx * {TILE}u; let to = p.o_off + n * p.o_n + to_ch * p.o_c + y * p.o_y;"]
    made, names = _transposed_back(GATHER.results)
    lines += made
    lines += [f"if ({_any_vast(names)}) {{", *_again(f, shift), "return; }"]
    for r, row in enumerate(names):
        values = [f"{v} + {shift}" if f.bias else v for v in row]
        lines.append(f"if (y + {r}u < p.size_y) {{ {_store_row(f, f'{r}u', values)} }}")
    arrays = [("t", D.float32), ("x", f.source), ("weight", f.weight), *([("b", f.bias)] if f.bias else [])]
    out = T.header(profile, [*(d for _, d in arrays), *dtypes(f.target, f.epilogue)], T.lanes(profile) > 0)
    out += "".join(T.storage(i, name, T.element(dtype), "read") for i, (name, dtype) in enumerate(arrays)) + VAST
    text = "\n".join([*lines, "}"]) + "\n"
    return out + closing(f.target, f.epilogue, len(arrays), 4 if f.quads else 1, RESULTS, text)


def _store_row(f: ResultForm, line: str, values: list[str]) -> str:
    """Store a row of a tile, by its number in the tile."""
    place = f"to + {line} * p.o_y"
    if f.epilogue is not None:
        pixel = f"(y + {line}) * p.size_x + x0"
        if f.quads:
            return f"finish(n, to_ch, {pixel}, vec4<f32>({', '.join(values)}));"
        return " ".join(f"if (x0 + {c}u < p.size_x) {{ finish(n, to_ch, {pixel} + {c}u, {v}); }}" for c, v in enumerate(values))
    stored = [T.store("f32", v, f.target) for v in values]
    if f.quads:
        return f"o[{place} + tx] = {T.element(f.target, 4)}({', '.join(stored)});"
    return " ".join(f"if (x0 + {c}u < p.size_x) {{ o[{place} + (x0 + {c}u) * p.o_x] = {v}; }}" for c, v in enumerate(stored))


def _again(f: ResultForm, shift: str) -> list[str]:
    """The tile tap by tap, a row at a time."""
    lines = [f"for (var r = 0u; r < {TILE}u && y + r < p.size_y; r++) {{", *(f"var s{c} = {shift};" for c in range(TILE))]
    lines += _reach_lines("x", "tx", PATCH, "p.front_x", "")
    lines += ["for (var c = 0u; c < p.depth; c++) { let w_at = p.w_off + grp * p.w_g + row * p.w_n + c * p.w_c;"]
    lines += ["for (var k = 0u; k < 3u; k++) { let from_y = y + r + k + p.front_y; let in_y = from_y < p.reach_y;"]
    lines += ["let x_at = p.x_off + n * p.x_n + (grp * p.depth + c) * p.x_c + min(from_y, p.reach_y - 1u) * p.x_y;"]
    lines += [f"let a{c} = {_masked('x', f.source, f'x_at + at_x{c}', f'in_y && in_x{c}')};" for c in range(PATCH)]
    lines += [f"let k{j} = {T.load(f.weight, f'weight[w_at + k * p.w_y + {j}u * p.w_x]', D.float32)};" for j in range(3)]
    lines += [f"s{c} = fma(a{c + j}, k{j}, s{c});" for c in range(TILE) for j in range(3)]
    return [*lines, "} }", _store_row(f, "r", [f"s{c}" for c in range(TILE)]), "}"]


# --- weights ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WeightForm:
    """What decides the text of `_weights`. `plain`: kernels lie one after another in the target."""

    target: DType
    input: DType
    grad: DType
    plain: bool
    split: bool


WEIGHTS = [
    "count", "step", "slices", "slice", "m", "c", "n", "size_y", "size_x", "o_off", "o_n", "o_c", "o_y", "o_x",
    "x_off", "x_n", "x_c", "x_y", "x_x", "reach_y", "reach_x", "pad_y", "pad_x", "g_off", "g_n", "g_c", "g_y", "g_x",
]  # fmt: skip


def _weights(p: Weigh, slices: int, products: int) -> Launch:
    """The target: A^T m A of every pair of channels."""
    g, o, x, d = p.geometry, p.target, p.input, p.grad
    count = g.groups * g.m * g.c
    f = WeightForm(o.dtype, x.dtype, d.dtype, p.plain, slices > 1)
    words = [count, count, slices, VALUES * count, g.m, g.c, g.n, g.output[1], g.output[2]]
    words += [o.offset, o.n, o.c, *o.spatial[1:], x.offset, x.n, x.c, *x.spatial[1:], *g.input[1:], *g.padding[1:]]
    words += [d.offset, d.n, d.c, *d.spatial[1:]]
    bindings = (products, x.binding, d.binding, o.binding)
    return _launch(
        "weights", f, lambda profile: _weights_source(f, profile), bindings, [slices * VALUES * count * 4, x, d, o], count, words
    )


def _weights_source(f: WeightForm, profile: Profile) -> str:
    """With `plain`, a workgroup turns its kernels so that neighbours store neighbours."""
    lines = [T.entry(profile, SIZE), f"let i = group * {SIZE}u + local;", "if (i < p.count) {"]
    lines += ["let line = i / p.c; let c = i - line * p.c; let grp = line / p.m; let row = line - grp * p.m;", *_sums("i", f.split)]
    made, names = _transposed_back(WEIGH.results)
    lines += [*made, *(f"var {v}_ = {v};" for row in names for v in row)]
    lines += [f"if ({_any_vast(names)}) {{", *_weigh_again(f, names), "}"]
    flat = [f"{v}_" for row in names for v in row]
    if f.plain:
        lines += [f"made[local * 9u + {k}u] = {v};" for k, v in enumerate(flat)]
        lines += ["}", "workgroupBarrier();", f"let base = group * {9 * SIZE}u; let to = p.o_off + base;"]
        value = T.store("f32", "made[k]", f.target)
        lines += [f"for (var k = local; k < {9 * SIZE}u && base + k < 9u * p.count; k += {SIZE}u) {{ o[to + k] = {value}; }}"]
    else:
        lines += ["let to = p.o_off + line * p.o_n + c * p.o_c;"]
        lines += [f"o[to + {k // 3}u * p.o_y + {k % 3}u * p.o_x] = {T.store('f32', v, f.target)};" for k, v in enumerate(flat)]
        lines += ["}"]
    arrays = [("t", D.float32, 1), ("x", f.input, 1), ("g", f.grad, 1), ("o", f.target, 1)]
    shared = f"var<workgroup> made: array<f32, {9 * SIZE}>;\n" if f.plain else ""
    return _module(profile, arrays, WEIGHTS, [*lines, "}"], VAST + shared)


def _weigh_again(f: WeightForm, names: list[list[str]]) -> list[str]:
    """The kernel pixel by pixel; taps outside the image are left out."""
    lines = [f"{v}_ = 0.0;" for row in names for v in row]
    lines += ["for (var n = 0u; n < p.n; n++) { for (var y = 0u; y < p.size_y; y++) {"]
    lines += ["let g_at = p.g_off + n * p.g_n + line * p.g_c + y * p.g_y; let x_at = p.x_off + n * p.x_n + (grp * p.c + c) * p.x_c;"]
    lines += ["for (var q = 0u; q < p.size_x; q++) {", f"let d = {T.load(f.grad, 'g[g_at + q * p.g_x]', D.float32)};"]
    for r, row in enumerate(names):
        lines += [f"{{ let fy = y + {r}u - p.pad_y; if (fy < p.reach_y) {{"]
        for c, v in enumerate(row):
            value = T.load(f.input, "x[x_at + fy * p.x_y + fx * p.x_x]", D.float32)
            lines += [f"{{ let fx = q + {c}u - p.pad_x; if (fx < p.reach_x) {{ {v}_ = fma(d, {value}, {v}_); }} }}"]
        lines += ["} }"]
    return [*lines, "} } }"]
