"""Attention on software Vulkan: one subgroup of 8 lanes takes some queries and walks the keys 32 at a time.

Scores: lanes load different queries, whose elements are broadcast; every lane has four keys of its own. Weights go through
a few words of memory that the subgroup alone uses, because lanes then stand for columns of the values: every lane has
vec4s of the result, and weights are broadcast. No barriers. Lanes run in step, so what one wrote the others read.
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
KEYS = 32  # a turn
LOOPS = 60000  # Mesa ends an invocation after 65,535 turns of its loops
GROUPS = 64  # workgroups from which keys need not be cut for the second core
MAX_WIDTH = 512


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
    most = 16 if units <= 2 else 8 if units <= 4 else 4
    if p.rules.form in ("quad", "each"):
        most = min(most, 8 if p.rules.form == "quad" else 4)
    tile = min(most, next(n for n in (1, 2, 4, 8, 16) if n >= min(rows, 16)))
    heads = p.heads // p.group if merged else p.heads
    tiles = -(-rows // tile)
    parts = max(-(-p.keys * (-(-p.size // 4) + 10) // (KEYS * LOOPS)), 1)
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
    words += [tiles, parts, rows, lse.layout.numel, lse.layout.numel * -(-p.width // 4), LANES]
    access = ("read", "read", "read", "read_write", "read_write", *("read" for _ in A.rules_arrays(p.rules)))
    numbers = (p.q.number, p.k.number, p.v.number, target.number, sums.number, *A.rules_numbers(p))
    kernel = Kernel(("attention cpu", form), partial(_source, form), access, repr(p.call.op), scalars=True, trusted=True)
    launches = [Launch(kernel, numbers, (heads, tiles * parts, p.batch), T.pack(words), p.scalars())]
    if parts > 1:
        launches.append(combine(TEMP(0), TEMP(1), parts, out, lse))
    return Lowered(tuple(launches), tuple(temps))


FIELDS = [
    *A.FIELDS, *A.steps("q"), *A.steps("k"), *A.steps("v"), *A.steps("o")[:4], "lse_at",
    "tiles", "parts", "tile_rows", "all_rows", "o_part", "eight",
]  # fmt: skip


def _source(f: Form, profile: Profile) -> str:
    rows, loads = range(f.tile), range(-(-f.tile // LANES))
    made = float32 if f.part else f.dtype
    names = zip("qkv", f.wide, strict=False)
    declared = [(n, T.element(f.dtype, 4 if w else 1), "read") for n, w in names]
    declared += [("o", T.element(made, 4 if f.wide[3] else 1), "read_write"), ("lse", "f32", "read_write"), *A.rules_arrays(f.rules)]
    code = "".join(A.reader(n, f.dtype, w, True, "width" if n == "v" else "size") for n, w in zip("qk", f.wide, strict=False))
    code += A.reader("v", f.dtype, f.wide[2], f.exact, "width") + A.writer("o", made, f.wide[3], f.exact, "width")
    code += A.rules_text(f.rules) + f"var<workgroup> weights: array<vec4<f32>, {max(f.tile, 1) * LANES}>;\n"
    body = _setup(f)
    body += [f"var m{i} = {A.LOWEST}; var l{i} = 0.0;" for i in rows]
    body += [f"var o{i}_{u} = vec4<f32>();" for i in rows for u in range(f.units)]
    body += ["if (from_ < to_) { var t = from_; loop {", "let col = t + lane * 4u;"]
    body += [f"let kr{j} = k_base + min(col + {j}u, to_ - 1u) * p.k_r;" for j in range(4)]
    body += [f"var s{i} = vec4<f32>();" for i in rows] + ["var c = 0u; loop {"]
    body += [f"let x{n} = q_quad(qr{n}, c);" for n in loads] + [f"let y{j} = k_quad(kr{j}, c);" for j in range(4)]
    for i in rows:
        text = "".join(f"let a{i}{z} = subgroupBroadcast(x{i // LANES}.{z}, {i % LANES}u); " for z in T.LANES)
        for j, z in enumerate(T.LANES):
            text += f"s{i}.{z} = " + _chain([(f"a{i}{q}", f"y{j}.{q}") for q in T.LANES], f"s{i}.{z}") + "; "
        body.append(text)
    body += ["continuing { c += 1u; break if c >= quads; } }"]
    body += _weights(f)
    body += _values(f)
    body += [f"continuing {{ t += {KEYS}u; break if t >= to_; }} }} }}"]
    body += _results(f)
    args = "@builtin(workgroup_id) w: vec3<u32>, @builtin(subgroup_invocation_id) lane: u32"
    code += f"@compute @workgroup_size({LANES}) fn main({args}) {{\n" + "\n".join(body) + "\n}\n"
    dtypes = [f.dtype, float32, *([f.rules.mask] if f.rules.mask else [])]
    return A.module(profile, code, A.arrays(declared), FIELDS, len(declared), dtypes, True)


def _chain(pairs: list[tuple[str, str]], start: str) -> str:
    for a, b in pairs:
        start = f"fma({a}, {b}, {start})"
    return start


def _setup(f: Form) -> list[str]:
    """Which queries and keys this subgroup has. Late tiles see more keys, and the first half of all workgroups runs on one core,
    the second on another: odd tiles come first, then even ones."""
    lines = [
        "let b = w.z; let y = w.y % p.tiles; let half_ = p.tiles / 2u; let part = w.y / p.tiles;",
        "let tile = select((y - half_) * 2u, y * 2u + 1u, y < half_);",
        f"let row0 = tile * {f.tile}u;",
    ]
    lines += ["let scale = s.v_scale * " + A.LOG2E + "; let quads = (p.size + 3u) / 4u; let place0 = start(b);"]
    if f.merged:
        lines += ["let kvh = w.x; let low = place0; let high = place0 + i32(p.rows) - 1;"]
    else:
        lines += [f"let kvh = w.x / p.group; let low = place0 + i32(row0); let high = place0 + i32(min(row0 + {f.tile}u, p.rows)) - 1;"]
    for i in range(f.tile):
        lines += _row(f, f"min(row0 + {i}u, p.tile_rows - 1u)", str(i))
        if f.rules.mask is not None:
            lines.append(f"let mr{i} = {A.mask_row(f'h{i}', f'i{i}')};")
        lines.append(f"let place{i}r = place0 + i32(i{i});")
    for n in range(-(-f.tile // LANES)):
        lines += _row(f, f"min(row0 + lane + {n * LANES}u, p.tile_rows - 1u)", f"q{n}")
        lines.append(f"let qr{n} = p.q_at + b * p.q_b + hq{n} * p.q_h + iq{n} * p.q_r;")
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


def _weights(f: Form) -> list[str]:
    """Scores to weights, running maxima and sums; results so far are scaled."""
    rows = range(f.tile)
    lines = []
    if f.rules.mask is not None and f.rules.form == "row":
        lines.append("let add = mask_quad(mr0, col);" if not f.merged else "")
    for i in rows:
        add = ""
        if f.rules.mask is not None:
            same = f.rules.form == "row" and not f.merged
            add = " + add" if same else f" + mask_quad(mr{i}, col)"
        lines.append(f"s{i} = s{i} * scale{add};")
    whole = " && ".join(
        [f"t + {KEYS}u <= p.keys"]
        + ([f"i32(t) + {KEYS - 1} <= low"] if f.rules.causal else [])
        + (["i32(t) > high - i32(p.window)"] if f.rules.window else [])
        + ([f"i32(t) + {KEYS - 1} < low + i32(p.window)"] if f.rules.window and not f.rules.causal else [])
    )
    checks = " ".join(f"s{i} = seen(s{i}, place{i}r, col);" for i in rows)
    lines.append(f"if (!({whole})) {{ {checks} }}")
    for i in rows:
        lines.append(
            f"let n{i} = max(m{i}, subgroupMax(max(max(s{i}.x, s{i}.y), max(s{i}.z, s{i}.w)))); let f{i} = exp2(m{i} - n{i}); m{i} = n{i}; "
            f"let e{i} = exp2(s{i} - vec4<f32>(n{i})); l{i} = l{i} * f{i} + ((e{i}.x + e{i}.y) + (e{i}.z + e{i}.w)); "
            f"weights[{i * LANES}u + lane] = e{i}; " + " ".join(f"o{i}_{u} *= f{i};" for u in range(f.units))
        )
    return lines


def _values(f: Form) -> list[str]:
    """Adds weights times values, four keys a turn."""
    loads = range(-(-f.tile // LANES))
    lines = ["let turns = min(p.eight, (to_ - t + 3u) / 4u); c = 0u; loop {"]
    for n in loads:
        row = f"(lane + {n * LANES}u)" if n else f"min(lane, {f.tile - 1}u)" if f.tile < LANES else "lane"
        lines.append(f"let w{n} = weights[{row} * {LANES}u + c];")
    for q, z in enumerate(T.LANES):
        lines.append(f"let vr{q} = v_base + min(t + c * 4u + {q}u, to_ - 1u) * p.v_r;")
        lines += [f"let y{q}_{u} = v_quad(vr{q}, lane + {u * LANES}u);" for u in range(f.units)]
        for i in range(f.tile):
            lines.append(
                f"let b{i}_{q} = vec4<f32>(subgroupBroadcast(w{i // LANES}.{z}, {i % LANES}u)); "
                + " ".join(f"o{i}_{u} = fma(b{i}_{q}, y{q}_{u}, o{i}_{u});" for u in range(f.units))
            )
    return [*lines, "continuing { c += 1u; break if c >= turns; } }"]


def _results(f: Form) -> list[str]:
    lines = []
    part = "p.all_rows * part + " if f.part else ""
    for i in range(f.tile):
        at = f"p.o_at + b * p.o_b + h{i} * p.o_h + i{i} * p.o_r"
        if f.part:
            at += " + part * p.o_part"
        lines += [
            f"if (row0 + {i}u < p.tile_rows) {{ let sum{i} = subgroupAdd(l{i}); let over{i} = select(1.0 / sum{i}, 0.0, sum{i} == 0.0);",
            f"let at{i} = {at}; " + " ".join(f"o_put(at{i}, lane + {u * LANES}u, o{i}_{u} * over{i});" for u in range(f.units)),
            f"if (lane == 0u) {{ lse[p.lse_at + {part}(b * p.heads + h{i}) * p.rows + i{i}] = "
            f"select((m{i} + log2(sum{i})) * {A.LN2}, -inf(), sum{i} == 0.0); }} }}",
        ]
    return lines
