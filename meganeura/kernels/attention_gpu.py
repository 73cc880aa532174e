"""Attention on GPUs: a workgroup takes a tile of queries and walks the keys, keeping maxima, sums and results in registers.

Scores go through workgroup memory (in the place of the keys) to the invocations that hold the results. Tiles that see no
key are skipped. A few queries (decoding) take the heads of a group as rows of one tile, and parts of the keys go to different
workgroups. Source: arXiv:2205.14135, arXiv:2307.08691.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from ..dtype import DType, float32
from ..storage import Layout
from . import attention_problem as A
from . import attention_tile as G
from . import template as T
from .attention_combine import combine
from .attention_problem import Problem, Rules, Source
from .attention_tile import Staged, Tile, Weights
from .kernel import TEMP, Kernel, Launch, Lowered, Profile

ENOUGH = 264  # workgroups from which keys are not cut
WRAP = False
FEW_ROWS = 16  # queries of a group up to which its heads share a tile


@dataclass(frozen=True, slots=True)
class Form:
    """Everything the text depends on: the pipeline key. size, width: of heads, as multiples of 16."""

    tile: Tile
    size: int
    width: int
    rules: Rules
    dtype: DType
    wide: tuple[bool, bool, bool, bool]  # q, k, v, result
    exact: tuple[bool, bool]  # heads are of these sizes
    merged: bool  # the heads of a group share a tile
    part: bool  # keys are cut; results are float32 temporaries
    shuffle: bool  # lanes of a row lie in one subgroup
    wrap: bool = False

    def memory(self) -> int:
        """Bytes of workgroup memory."""
        t = self.tile
        quads = t.rows * self.size // 4 + max(t.cols * self.size // 4, t.rows * t.cols // 4) + t.cols * self.width // 4
        return quads * 16 + (0 if t.same else t.rows * 4) + (0 if self.shuffle else t.rows * t.lanes * 4)


# Best first; a device takes the first that fits its workgroup memory.
TILES = (
    Tile(64, 64, 8, 4, 16),
    Tile(32, 32, 4, 4, 8),
    Tile(32, 16, 4, 4, 16),
    Tile(16, 16, 2, 4, 8),
    Tile(16, 16, 1, 4, 4),
    Tile(8, 16, 1, 4, 4),
    Tile(8, 8, 1, 4, 4),
    Tile(4, 8, 1, 4, 4),
)
SHORT = (Tile(8, 64, 1, 4, 16), Tile(16, 64, 2, 4, 16), Tile(8, 32, 1, 4, 8), Tile(16, 32, 2, 4, 8), *TILES)
FEW = (Tile(4, 64, 1, 4, 16), Tile(4, 32, 1, 4, 8), Tile(4, 16, 1, 4, 4), *TILES[-3:])


def lower(p: Problem, operands: Mapping[str, Source], profile: Profile) -> Lowered | None:
    """Launches, or None where nothing fits the device."""
    if p.batch > profile.max_groups or p.heads > profile.max_groups:
        return None
    merged = p.group > 1 and p.group * p.rows <= FEW_ROWS
    rows = p.rows * (p.group if merged else 1)
    heads = p.heads // p.group if merged else p.heads
    out, lse = operands["out.0"], operands["out.1"]
    size, width = G.classes(p.size), G.classes(p.width)
    for tile in _candidates(p, rows, heads):
        form = Form(
            tile, size, width, p.rules, p.q.layout.dtype, (p.q.wide(), p.k.wide(), p.v.wide(), out.wide()),
            (size == p.size, width == p.width), merged, False, profile.subgroups and profile.subgroup_size >= tile.lanes, WRAP,
        )  # fmt: skip
        if form.memory() <= profile.max_workgroup_memory and tile.size <= profile.max_workgroup_size and tile.fits(width // 4):
            return _lowered(p, form, rows, heads, out, lse, profile)
    return None


def _candidates(p: Problem, rows: int, heads: int) -> Iterator[Tile]:
    if rows <= 4:
        yield from FEW
    elif rows <= 16 or heads * p.batch * -(-rows // 64) < ENOUGH // 2:
        yield from SHORT
    yield from TILES


def _lowered(p: Problem, form: Form, rows: int, heads: int, out: Source, lse: Source, profile: Profile) -> Lowered:
    tiles = -(-rows // form.tile.rows)
    parts = 1
    groups = tiles * heads * p.batch
    if rows <= 64 and groups < ENOUGH:
        parts = max(1, min(2 * ENOUGH // groups, p.keys // (2 * form.tile.cols)))
    temps: list[int] = []
    target, sums = out, lse
    if parts > 1:
        quads = -(-p.width // 4)
        temps = [parts * lse.layout.numel * quads * 16, -(-parts * lse.layout.numel // 4) * 16]
        target = Source(TEMP(0), Layout(float32, (*out.layout.shape[:3], quads * 4)))
        sums = Source(TEMP(1), lse.layout.with_(offset=0))
        form = replace(form, part=True, wide=(*form.wide[:3], True))
    words = [*p.words(), *p.q.words(form.wide[0]), *p.k.words(form.wide[1]), *p.v.words(form.wide[2])]
    words += [
        *target.words(form.wide[3])[:4],
        sums.layout.offset,
        tiles,
        parts,
        rows,
        lse.layout.numel,
        lse.layout.numel * -(-p.width // 4),
    ]
    access = ("read", "read", "read", "read_write", "read_write", *("read" for _ in A.rules_arrays(p.rules)))
    numbers = (p.q.number, p.k.number, p.v.number, target.number, sums.number, *A.rules_numbers(p))
    kernel = Kernel(("attention gpu", form), partial(_source, form), access, repr(p.call.op), scalars=True, trusted=True)
    launches = [Launch(kernel, numbers, (heads, tiles * parts, p.batch), T.pack(words), p.scalars())]
    if parts > 1:
        launches.append(combine(TEMP(0), TEMP(1), parts, out, lse, p.rules.blank))
    return Lowered(tuple(launches), tuple(temps))


FIELDS = [
    *A.FIELDS, *A.steps("q"), *A.steps("k"), *A.steps("v"), *A.steps("o")[:4], "lse_at",
    "tiles", "parts", "tile_rows", "all_rows", "o_part",
]  # fmt: skip


def _source(f: Form, profile: Profile) -> str:
    t = f.tile
    made = float32 if f.part else f.dtype
    q, k = Staged("sq", t.rows, f.size // 4, 0, t.teams), Staged("sk", t.cols, f.size // 4, t.tc, 0)
    v, w = Staged("sv", t.cols, f.width // 4, flat=True), Weights("sk", t)
    declared = [(n, T.element(f.dtype, 4 if x else 1), "read") for n, x in zip("qkv", f.wide, strict=False)]
    declared += [("o", T.element(made, 4 if f.wide[3] else 1), "read_write"), ("lse", "f32", "read_write"), *A.rules_arrays(f.rules)]
    code = A.reader("q", f.dtype, f.wide[0], f.exact[0], "size", f.wrap) + A.reader("k", f.dtype, f.wide[1], f.exact[0], "size", f.wrap)
    code += A.reader("v", f.dtype, f.wide[2], f.exact[1], "width", f.wrap) + A.writer("o", made, f.wide[3], f.exact[1], "width", f.wrap)
    code += A.rules_text(f.rules, f.wrap)
    code += f"var<workgroup> sq: array<vec4<f32>, {t.rows * q.quads}>;\n"
    code += f"var<workgroup> sk: array<vec4<f32>, {max(t.cols * k.quads, t.rows * w.quads)}>;\n"
    code += f"var<workgroup> sv: array<vec4<f32>, {t.cols * v.quads}>;\n"
    code += "" if t.same else f"var<workgroup> st: array<f32, {t.rows}>;\n"
    code += "" if f.shuffle else f"var<workgroup> red: array<f32, {t.rows * t.lanes}>;\n"
    body = [*G.places(t), *_setup(f), *G.score_places([q], [k])]
    read, put = q.fetch(t.size, "q_tile(b, row0, {row}, {col}) * scale", "lq")
    body += read + put
    body += [f"var m{i} = {A.LOWEST}; var l{i} = 0.0;" for i in range(t.tr)]
    body += G.zeros([f"o{i}_{x}" for i in range(t.out_rows) for x in range(v.quads // t.over)], True)
    body += [*G.walk(t.cols), "workgroupBarrier();"]
    read_k, put_k = k.fetch(t.size, "k_quad(k_base + min(t + {row}, to_ - 1u) * p.k_r, {col})", "lk")
    read_v, put_v = v.fetch(t.size, "v_quad(v_base + min(t + {row}, to_ - 1u) * p.v_r, {col})", "lv")
    body += [*read_k, *read_v, *put_k, *put_v, "workgroupBarrier();"]
    body += G.zeros([f"s{i}_{j}" for i in range(t.tr) for j in range(t.tc)])
    body += G.scores(t, q, k, "s")
    body += masking(t, f.rules)
    body += _online(f, w)
    body += ["workgroupBarrier();"]
    body += [] if t.same else [f"let f{i} = st[no + {i * t.spread}u];" for i in range(t.out_rows)]
    scale = "a" if t.same else "f"
    body += [f"o{i}_{x} *= {scale}{i};" for i in range(t.out_rows) for x in range(v.quads // t.over)]
    body += w.times(v, "o", False)
    body += ["}", *_results(f, v)]
    code += _q_tile(f)
    args = "@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) tid: u32"
    code += f"@compute @workgroup_size({t.size}) fn main({args}) {{\n" + "\n".join(body) + "\n}\n"
    dtypes = [f.dtype, float32, *([f.rules.mask] if f.rules.mask else [])]
    return A.module(profile, code, A.arrays(declared, f.wrap), FIELDS, len(declared), dtypes, f.shuffle)


def _q_tile(f: Form) -> str:
    """The function that reads a quad of a row of the tile, the last row again past the end."""
    head = "w_head * p.group + r / p.rows" if f.merged else "w_head"
    i = "r % p.rows" if f.merged else "r"
    return (
        "var<private> w_head: u32;\nfn q_tile(b: u32, row0: u32, row: u32, c: u32) -> vec4<f32> {\n"
        f"  let r = min(row0 + row, p.tile_rows - 1u); let h = {head}; let i = {i};\n"
        "  return q_quad(p.q_at + b * p.q_b + h * p.q_h + i * p.q_r, c);\n}\n"
    )


def _setup(f: Form) -> list[str]:
    """Which queries and keys this workgroup has; late tiles, which see more keys, come first."""
    t = f.tile
    lines = ["w_head = w.x; let b = w.z; let tile = p.tiles - 1u - w.y % p.tiles; let part = w.y / p.tiles;"]
    lines += [f"let row0 = tile * {t.rows}u; let scale = s.v_scale * {A.LOG2E}; let origin = start(b);"]
    if f.merged:
        lines += ["let kvh = w.x; let low = origin; let high = origin + i32(p.rows) - 1;"]
    else:
        lines += ["let kvh = w.x / p.group; let low = origin + i32(row0);", f"let high = origin + i32(min(row0 + {t.rows}u, p.rows)) - 1;"]
    for i in range(t.tr):
        row = f"min(row0 + tq + {i * t.teams}u, p.tile_rows - 1u)"
        if f.merged:
            lines.append(f"let r{i} = {row}; let h{i} = kvh * p.group + r{i} / p.rows; let i{i} = r{i} % p.rows;")
        else:
            lines.append(f"let h{i} = w.x; let i{i} = {row};")
        lines.append(f"let place{i} = origin + i32(i{i});")
        if f.rules.mask is not None:
            lines.append(f"let mr{i} = {A.mask_row(f'h{i}', f'i{i}')};")
    lines += ["let k_base = p.k_at + b * p.k_b + kvh * p.k_h; let v_base = p.v_at + b * p.v_b + kvh * p.v_h;"]
    lines += ["let first = begin(low) / 4u * 4u; let last = end(high);"]
    if f.part:
        lines += [
            f"let depth = ((max(last, first) - first + p.parts - 1u) / p.parts + {t.cols - 1}u) / {t.cols}u * {t.cols}u;",
            "let from_ = first + part * depth; let to_ = min(last, from_ + depth);",
        ]
    else:
        lines += ["let from_ = first; let to_ = last;"]
    return lines


def masking(t: Tile, rules: Rules) -> list[str]:
    """Masks the scores s{i}_{j} of rows with place{i} (and mask rows mr{i}) and columns from t on."""
    lines = []
    for i in range(t.tr):
        for g in range(t.tc // 4):
            if rules.mask is not None:
                lines.append(f"{{ let x = mask_quad(mr{i}, t + tk * {t.tc}u + {g * 4}u); ")
                lines.append(" ".join(f"s{i}_{g * 4 + j} += x.{z};" for j, z in enumerate(T.LANES)) + " }")
    whole = [f"t + {t.cols}u <= p.keys"]
    if rules.causal:
        whole.append(f"i32(t) + {t.cols - 1} <= low")
    if rules.window:
        whole.append("i32(t) > high - i32(p.window)")
        if not rules.causal:
            whole.append(f"i32(t) + {t.cols - 1} < low + i32(p.window)")
    lines.append(f"if (!({' && '.join(whole)})) {{")
    for i in range(t.tr):
        for g in range(t.tc // 4):
            four = ", ".join(f"s{i}_{g * 4 + j}" for j in range(4))
            lines.append(f"{{ let x = seen(vec4<f32>({four}), place{i}, t + tk * {t.tc}u + {g * 4}u); ")
            lines.append(" ".join(f"s{i}_{g * 4 + j} = x.{z};" for j, z in enumerate(T.LANES)) + " }")
    return [*lines, "}"]


def _online(f: Form, w: Weights) -> list[str]:
    """Scores to weights: running maxima and sums, factors for the results so far; weights go to workgroup memory."""
    t = f.tile
    rows = range(t.tr)
    lines = []
    for i in rows:
        x = f"s{i}_0"
        for j in range(1, t.tc):
            x = f"max({x}, s{i}_{j})"
        lines.append(f"var x{i} = {x};")
    lines += reduced(f, "x", "max({}, {})")
    if f.shuffle:
        lines.append("workgroupBarrier();")
    for i in rows:
        lines.append(f"let n{i} = max(m{i}, x{i}); let a{i} = exp2(m{i} - n{i}); m{i} = n{i};")
        lines += [f"s{i}_{j} = exp2(s{i}_{j} - n{i});" for j in range(t.tc)]
        lines.append(f"l{i} = fma(l{i}, a{i}, {' + '.join(f's{i}_{j}' for j in range(t.tc))});")
    lines += w.put("s")
    if not t.same:
        lines.append("if (tk == 0u) { " + " ".join(f"st[tq + {i * t.teams}u] = a{i};" for i in rows) + " }")
    return lines


def reduced(f: Form, name: str, merge: str) -> list[str]:
    """Lines that bring {name}i together over the lanes of a row."""
    t, lines = f.tile, []
    if f.shuffle:
        h = 1
        while h < t.lanes:
            lines += [f"{name}{i} = {merge.format(f'{name}{i}', f'subgroupShuffleXor({name}{i}, {h}u)')};" for i in range(t.tr)]
            h *= 2
        return lines
    lines += [f"red[(tq + {i * t.teams}u) * {t.lanes}u + tk] = {name}{i};" for i in range(t.tr)] + ["workgroupBarrier();"]
    for i in range(t.tr):
        other = f"red[(tq + {i * t.teams}u) * {t.lanes}u + ((tk + j) % {t.lanes}u)]"
        lines.append(f"for (var j = 1u; j < {t.lanes}u; j += 1u) {{ {name}{i} = {merge.format(f'{name}{i}', other)}; }}")
    return lines


def _results(f: Form, v: Staged) -> list[str]:
    t = f.tile
    rows = range(t.tr)
    lines = [] if f.shuffle else ["workgroupBarrier();"]
    lines += reduced(f, "l", "{} + {}")
    part, blank = ("part * p.all_rows + ", "0.0") if f.part else ("", f.rules.blank)
    lse = "lse_all.d" if f.wrap else "lse"
    lines += [f"let d{i} = select(1.0 / l{i}, {blank}, l{i} == 0.0);" for i in rows]
    lines.append("if (tk == 0u) {")
    for i in rows:
        lines.append(
            f"if (row0 + tq + {i * t.teams}u < p.tile_rows) {{ {lse}[p.lse_at + {part}(b * p.heads + h{i}) * p.rows + i{i}] = "
            f"select((m{i} + log2(l{i})) * {A.LN2}, -inf(), l{i} == 0.0); }}"
        )
    lines.append("}")
    if not t.same:
        lines += ["workgroupBarrier();", "if (tk == 0u) { " + " ".join(f"st[tq + {i * t.teams}u] = d{i};" for i in rows) + " }"]
        lines += ["workgroupBarrier();"]
    for i in range(t.out_rows):
        row = f"row0 + no + {i * t.spread}u"
        where = f"let r = {row}; let h = kvh * p.group + r / p.rows; let i = r % p.rows;" if f.merged else f"let h = w.x; let i = {row};"
        at = "p.o_at + b * p.o_b + h * p.o_h + i * p.o_r" + (" + part * p.o_part" if f.part else "")
        over = f"d{i}" if t.same else f"st[no + {i * t.spread}u]"
        puts = " ".join(f"o_put(at, lo + {x * t.over}u, o{i}_{x} * over);" for x in range(v.quads // t.over))
        lines.append(f"if ({row} < p.tile_rows) {{ {where} let at = {at}; let over = {over}; {puts} }}")
    return lines
