"""Attention on software Vulkan: one subgroup of 8 lanes takes some queries and walks the keys 128 at a time.

Scores: lanes load different queries, whose elements are broadcast; every lane has four keys of its own. Scores go through
memory that the subgroup alone uses, because lanes then stand for queries, which is cheap for masks, maxima and sums, and at
last for columns of the values: every lane has vec4s of the result, and weights are broadcast. No barriers. Lanes run in
step, so what one wrote the others read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from ..dtype import DType, float32
from ..storage import Layout
from . import attention_problem as A
from . import template as T
from .attention_combine import combine
from .attention_problem import Problem, Rules, Source
from .kernel import TEMP, Kernel, Launch, Lowered, Profile

LANES = 8
KEYS = 32  # at a time in the product with the queries
BLOCK = 128  # keys whose scores are in memory at a time: with 32 queries 16 KiB
LOOPS = 60000  # Mesa ends an invocation after 65,535 turns of its loops
GROUPS = 64  # workgroups from which keys need not be cut for the second core
MAX_WIDTH = 512
# The y-th of p.tiles tiles of queries. Late ones see more keys, and the first half of all workgroups runs on one core, the second on
# another: tiles 0, 3, 4, 7 and so on come first, then 1, 2, 5, 6.
TURN = (
    "let half_ = p.tiles / 2u + select(0u, 1u, p.tiles % 4u == 1u); let nth = select(y - half_, y, y < half_); "
    "let tile = 2u * nth + select(1u - nth % 2u, nth % 2u, y < half_);"
)


@dataclass(frozen=True, slots=True)
class Form:
    """Everything the text depends on: the pipeline key. `tile` queries a subgroup, `units` vec4s of the result a lane."""

    rules: Rules
    dtype: DType
    tile: int
    units: int
    wide: tuple[bool, bool, bool, bool]  # q, k, v, result
    exact: bool  # the result's width is a whole number of units
    merged: bool  # the heads of a group share a tile
    part: bool  # keys are cut; results are float32 temporaries


def lower(p: Problem, operands: Mapping[str, Source], profile: Profile) -> Lowered | None:
    """Launches, or None for heads that are too wide."""
    if p.width > MAX_WIDTH or p.batch > profile.max_groups or p.heads > profile.max_groups:
        return None
    units = -(-p.width // 32)
    merged = p.group > 1 and p.rows < 8
    rows = p.rows * (p.group if merged else 1)
    heads = p.heads // p.group if merged else p.heads
    tile = _tile(rows, units, heads * p.batch)
    tiles = -(-rows // tile)
    parts = max(-(-p.keys * (-(-p.size // 4) + 20) // (KEYS * LOOPS)), 1)
    if tiles * heads * p.batch < GROUPS and p.keys >= 1024:
        parts = max(parts, min(p.keys // 512, GROUPS // (tiles * heads * p.batch)))
    out, lse = operands["out.0"], operands["out.1"]
    temps: list[int] = []
    if parts > 1:
        quads = -(-p.width // 4)
        temps = [parts * lse.layout.numel * quads * 16, -(-parts * lse.layout.numel // 4) * 16]
        target = Source(TEMP(0), Layout(float32, (*out.layout.shape[:3], quads * 4)))
        sums = Source(TEMP(1), lse.layout.with_(offset=0))
    else:
        target, sums = out, lse
    wide = (p.q.wide(), p.k.wide(), p.v.wide(), target.wide())
    form = Form(p.rules, p.q.layout.dtype, tile, units, wide, p.width % 32 == 0, merged, parts > 1)
    words = [*p.words(), *p.q.words(wide[0]), *p.k.words(wide[1]), *p.v.words(wide[2]), *target.words(wide[3])[:4], sums.layout.offset]
    words += [tiles, parts, rows, lse.layout.numel, lse.layout.numel * -(-p.width // 4)]
    access = ("read", "read", "read", "read_write", "read_write", *("read" for _ in A.rules_arrays(p.rules)))
    numbers = (p.q.number, p.k.number, p.v.number, target.number, sums.number, *A.rules_numbers(p))
    kernel = Kernel(("attention cpu", form), partial(_source, form), access, repr(p.call.op), scalars=True, trusted=True)
    launches = [Launch(kernel, numbers, (heads, tiles * parts, p.batch), T.pack(words), p.scalars())]
    if parts > 1:
        launches.append(combine(TEMP(0), TEMP(1), parts, out, lse, p.rules.blank))
    return Lowered(tuple(launches), tuple(temps))


def _tile(rows: int, units: int, times: int) -> int:
    """Queries a subgroup: loads of keys and values serve all of them, and about 256 numbers of the result a lane fit the registers
    and the stack well. 16 are 1.15 times as slow as 32, but leave fewer rows empty and make more workgroups."""
    tile = next(n for n in (1, 2, 4, 8, 16, 32) if n >= min(rows, 32))
    halves = -(-rows // 16)
    if tile == 32 and (halves * 1.15 < -(-rows // 32) * 2 or -(-rows // 32) * times == 1):
        tile = 16
    return min(tile, 32 if units <= 2 else 16 if units <= 4 else 8 if units <= 8 else 4)


FIELDS = [
    *A.FIELDS, *A.steps("q"), *A.steps("k"), *A.steps("v"), *A.steps("o")[:4], "lse_at",
    "tiles", "parts", "tile_rows", "all_rows", "o_part",
]  # fmt: skip


def _source(f: Form, profile: Profile) -> str:
    made = float32 if f.part else f.dtype
    names = zip("qkv", f.wide, strict=False)
    declared = [(n, T.element(f.dtype, 4 if w else 1), "read") for n, w in names]
    declared += [("o", T.element(made, 4 if f.wide[3] else 1), "read_write"), ("lse", "f32", "read_write"), *A.rules_arrays(f.rules)]
    code = "".join(A.reader(n, f.dtype, w, True, "width" if n == "v" else "size") for n, w in zip("qk", f.wide, strict=False))
    code += A.reader("v", f.dtype, f.wide[2], f.exact, "width") + A.writer("o", made, f.wide[3], f.exact, "width")
    code += A.rules_text(f.rules) + f"var<workgroup> weights: array<vec4<f32>, {f.tile * BLOCK // 4}>;\n"
    body = _setup(f)
    body += [f"var m{n} = {A.LOWEST}; var l{n} = 0.0;" for n in _eights(f)]
    body += [f"var o{i}_{u} = vec4<f32>();" for i in range(f.tile) for u in range(f.units)]
    body += [f"if (from_ < to_) {{ var t = from_; loop {{ let stop = min(to_, t + {BLOCK}u); let turns = (stop - t + 3u) / 4u;"]
    body += _scores(f) + _tops(f) + _values(f)
    body += [f"continuing {{ t += {BLOCK}u; break if t >= to_; }} }} }}"]
    body += _results(f)
    args = "@builtin(workgroup_id) w: vec3<u32>, @builtin(subgroup_invocation_id) lane: u32"
    code += f"@compute @workgroup_size({LANES}) fn main({args}) {{\n" + "\n".join(body) + "\n}\n"
    dtypes = [f.dtype, float32, *([f.rules.mask] if f.rules.mask else [])]
    return A.module(profile, code, A.arrays(declared), FIELDS, len(declared), dtypes, True)


def _eights(f: Form) -> range:
    """Rows of a tile in eights: each lane has one of them."""
    return range(-(-f.tile // LANES))


def _chain(pairs: list[tuple[str, str]], start: str) -> str:
    for a, b in pairs:
        start = f"fma({a}, {b}, {start})"
    return start


def products(tile: int) -> list[str]:
    """Adds to s{i} of each row i the products of its quad, which is x{i / 8} in lane i % 8, with this lane's y0 to y3."""
    lines = []
    for i in range(tile):
        text = "".join(f"let e{i}{z} = subgroupBroadcast(x{i // LANES}.{z}, {i % LANES}u); " for z in T.LANES)
        for j, z in enumerate(T.LANES):
            text += f"s{i}.{z} = " + _chain([(f"e{i}{q}", f"y{j}.{q}") for q in T.LANES], f"s{i}.{z}") + "; "
        lines.append(text)
    return lines


def _setup(f: Form) -> list[str]:
    """Which queries and keys this subgroup has."""
    lines = [
        "let b = w.z; let y = w.y % p.tiles; let part = w.y / p.tiles;",
        TURN,
        f"let row0 = tile * {f.tile}u;",
        "let scale = s.v_scale * " + A.LOG2E + "; let quads = (p.size + 3u) / 4u; let origin = start(b);",
    ]
    if f.merged:
        lines += ["let kvh = w.x; let low = origin; let high = origin + i32(p.rows) - 1;"]
    else:
        lines += [f"let kvh = w.x / p.group; let low = origin + i32(row0); let high = origin + i32(min(row0 + {f.tile}u, p.rows)) - 1;"]
    for n in _eights(f):
        mine = f"min(lane, {f.tile - 1}u)" if f.tile < LANES else f"lane + {n * LANES}u"
        lines.append(f"let at{n} = ({mine}) * {BLOCK // 4}u;")
        lines += _row(f, f"min(row0 + {mine}, p.tile_rows - 1u)", f"q{n}")
        lines.append(f"let qr{n} = p.q_at + b * p.q_b + hq{n} * p.q_h + iq{n} * p.q_r; let place{n} = origin + i32(iq{n});")
        if f.rules.mask is not None:
            lines.append(f"let mr{n} = {A.mask_row(f'hq{n}', f'iq{n}')};")
    lines += ["let k_base = p.k_at + b * p.k_b + kvh * p.k_h; let v_base = p.v_at + b * p.v_b + kvh * p.v_h;"]
    lines += ["let first = begin(low) / 4u * 4u; let last = end(high);"]
    if f.part:
        lines += [
            f"let depth = ((max(last, first) - first + p.parts - 1u) / p.parts + {KEYS - 1}u) / {KEYS}u * {KEYS}u;",
            "let from_ = first + part * depth; let to_ = min(last, from_ + depth);",
        ]
    else:
        lines += ["let from_ = first; let to_ = last;"]
    return lines


def _row(f: Form, row: str, tag: str) -> list[str]:
    """Head and query of a row of the tile: h{tag}, i{tag}."""
    if f.merged:
        return [f"let r{tag} = {row}; let h{tag} = kvh * p.group + r{tag} / p.rows; let i{tag} = r{tag} % p.rows;"]
    return [f"let h{tag} = w.x; let i{tag} = {row};"]


def _scores(f: Form) -> list[str]:
    """Scores of a block to memory: lanes load different queries, each has four keys of its own."""
    rows = range(f.tile)
    lines = ["var u = t; var c = 0u; loop { let col = u + lane * 4u;"]
    lines += [f"let kr{j} = k_base + min(col + {j}u, to_ - 1u) * p.k_r;" for j in range(4)]
    lines += [f"var s{i} = vec4<f32>();" for i in rows] + ["c = 0u; loop {"]
    lines += [f"let x{n} = q_quad(qr{n}, c);" for n in _eights(f)] + [f"let y{j} = k_quad(kr{j}, c);" for j in range(4)]
    lines += products(f.tile)
    lines += ["continuing { c += 1u; break if c >= quads; } }", "let to_lane = (u - t) / 4u + lane;"]
    lines += [f"weights[{i * BLOCK // 4}u + to_lane] = s{i} * scale;" for i in rows]
    return [*lines, f"continuing {{ u += {KEYS}u; break if u >= stop; }} }}"]


def _tops(f: Form) -> list[str]:
    """Masks, running maxima; sums and results so far are scaled. A lane has rows now. The first `sure` quads are seen by all rows."""
    rules = f.rules
    lines = [f"var z{n} = vec4<f32>({A.LOWEST});" for n in _eights(f)] + ["c = 0u;"]
    if rules.mask is None:
        seen = "i32(p.keys)"
        if rules.causal:
            seen = f"min({seen}, low + 1)"
        elif rules.window:
            seen = f"min({seen}, low + i32(p.window))"
        lines.append(
            f"let sure = u32(clamp({seen} - i32(t), 0, i32(stop - t))) / 4u;"
            if not rules.window
            else f"let sure = select(u32(clamp({seen} - i32(t), 0, i32(stop - t))) / 4u, 0u, i32(t) <= high - i32(p.window));"
        )
        lines.append("if (sure > 0u) { loop {")
        lines += [f"z{n} = max(z{n}, weights[at{n} + c]);" for n in _eights(f)]
        lines.append("continuing { c += 1u; break if c >= sure; } } }")
    lines.append("if (c < turns) { loop { let col = t + c * 4u;")
    for n in _eights(f):
        add = f" + mask_quad(mr{n}, col)" if rules.mask is not None else ""
        lines.append(f"let x{n} = seen(weights[at{n} + c]{add}, place{n}, col); weights[at{n} + c] = x{n}; z{n} = max(z{n}, x{n});")
    lines.append("continuing { c += 1u; break if c >= turns; } } }")
    for n in _eights(f):
        lines.append(
            f"let n{n} = max(m{n}, max(max(z{n}.x, z{n}.y), max(z{n}.z, z{n}.w))); let f{n} = exp2(m{n} - n{n}); m{n} = n{n}; l{n} *= f{n};"
        )
    for i in range(f.tile):
        lines.append(
            f"let f_{i} = subgroupBroadcast(f{i // LANES}, {i % LANES}u); " + " ".join(f"o{i}_{u} *= f_{i};" for u in range(f.units))
        )
    return lines


def _values(f: Form) -> list[str]:
    """Adds weights times values, four keys a turn: lanes are columns, weights are broadcast."""
    lines = ["c = 0u; loop {"]
    for n in _eights(f):
        lines.append(f"let w{n} = exp2(weights[at{n} + c] - m{n}); l{n} += (w{n}.x + w{n}.y) + (w{n}.z + w{n}.w);")
    for q in range(4):
        lines.append(f"let vr{q} = v_base + min(t + c * 4u + {q}u, to_ - 1u) * p.v_r;")
        lines += [f"let y{q}_{u} = v_quad(vr{q}, lane + {u * LANES}u);" for u in range(f.units)]
    for i in range(f.tile):
        text = "".join(f"let b{i}_{q} = subgroupBroadcast(w{i // LANES}.{z}, {i % LANES}u); " for q, z in enumerate(T.LANES))
        for u in range(f.units):
            text += f"o{i}_{u} = " + _chain([(f"vec4<f32>(b{i}_{q})", f"y{q}_{u}") for q in range(4)], f"o{i}_{u}") + "; "
        lines.append(text)
    return [*lines, "continuing { c += 1u; break if c >= turns; } }"]


def _results(f: Form) -> list[str]:
    lines = []
    part, blank = ("p.all_rows * part + ", "0.0") if f.part else ("", f.rules.blank)
    for n in _eights(f):
        inside = f"row0 + lane + {n * LANES}u < p.tile_rows" + (f" && lane < {f.tile}u" if f.tile < LANES else "")
        lines += [
            f"let over{n} = select(1.0 / l{n}, {blank}, l{n} == 0.0);",
            f"if ({inside}) {{ lse[p.lse_at + {part}(b * p.heads + hq{n}) * p.rows + iq{n}] = "
            f"select((m{n} + log2(l{n})) * {A.LN2}, -inf(), l{n} == 0.0); }}",
        ]
    for i in range(f.tile):
        at = f"p.o_at + b * p.o_b + h{i} * p.o_h + i{i} * p.o_r"
        if f.part:
            at += " + part * p.o_part"
        put = " ".join(f"o_put(to{i}, lane + {u * LANES}u, o{i}_{u} * over{i}_);" for u in range(f.units))
        lines += [f"let over{i}_ = subgroupBroadcast(over{i // LANES}, {i % LANES}u);", f"if (row0 + {i}u < p.tile_rows) {{"]
        lines += _row(f, f"row0 + {i}u", str(i))
        lines += [f"let to{i} = {at}; {put} }}"]
    return lines
