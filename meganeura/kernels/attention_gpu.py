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
FEW_ROWS = 16  # queries of a group up to which its heads share a tile
GROUP = 8  # heads of a group up to which their number is a literal, not a parameter to divide by


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
    whole: tuple[bool, bool]  # rows, keys are whole tiles
    group: int  # query heads that share a head of keys; 0: a parameter

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
            (size == p.size, width == p.width), merged, False, profile.subgroups and profile.subgroup_size >= tile.lanes,
            _whole(p, tile, rows), p.group if p.group <= GROUP else 0,
        )  # fmt: skip
        if form.memory() <= profile.max_workgroup_memory and tile.size <= profile.max_workgroup_size and tile.fits(width // 4):
            return _lowered(p, form, rows, heads, out, lse, profile)
    return None


def _whole(p: Problem, tile: Tile, rows: int) -> tuple[bool, bool]:
    """Whether rows and keys are whole tiles, so that no clamp is needed. Keys that no query sees may never have been written."""
    rules = p.rules
    seen = not (rules.window or rules.position) and (not rules.causal or p.call.attrs["offset"] + p.rows >= p.keys)
    return rows % tile.rows == 0, seen and p.keys % tile.cols == 0


def _candidates(p: Problem, rows: int, heads: int) -> Iterator[Tile]:
    if rows <= 4:
        yield from FEW
    elif rows <= 16 or heads * p.batch * -(-rows // 64) < ENOUGH // 2:
        yield from SHORT
    yield from TILES


def _parts(p: Problem, tile: Tile, rows: int, groups: int) -> int:
    """Workgroups that share the keys of a tile of queries."""
    if rows > 64 or groups >= ENOUGH:
        return 1
    return max(1, min(2 * ENOUGH // groups, p.keys // (2 * tile.cols)))


def _lowered(p: Problem, form: Form, rows: int, heads: int, out: Source, lse: Source, profile: Profile) -> Lowered:
    tiles = -(-rows // form.tile.rows)
    parts = _parts(p, form.tile, rows, tiles * heads * p.batch)
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
    t, plain = f.tile, profile.backend == "wgpu"
    made = float32 if f.part else f.dtype
    q, k = Staged("sq", t.rows, f.size // 4, 0, t.teams, plain=plain), Staged("sk", t.cols, f.size // 4, t.tc, plain=plain)
    v, w = Staged("sv", t.cols, f.width // 4, flat=True, plain=plain), Weights("sk", t, plain)
    declared = [(n, T.element(f.dtype, 4 if x else 1), "read") for n, x in zip("qkv", f.wide, strict=False)]
    declared += [("o", T.element(made, 4 if f.wide[3] else 1), "read_write"), ("lse", "f32", "read_write"), *A.rules_arrays(f.rules)]
    code = A.reader("q", f.dtype, f.wide[0], f.exact[0], "size") + A.reader("k", f.dtype, f.wide[1], f.exact[0], "size")
    code += A.reader("v", f.dtype, f.wide[2], f.exact[1], "width") + A.writer("o", made, f.wide[3], f.exact[1], "width")
    code += A.rules_text(f.rules)
    code += q.declare() + k.declare(t.rows * w.quads) + v.declare()
    code += "" if t.same else f"var<workgroup> st: array<f32, {t.rows}>;\n"
    code += "" if f.shuffle else f"var<workgroup> red: array<f32, {t.rows * t.lanes}>;\n"
    code += _q_tile(f)
    args = "@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) tid: u32"
    code += f"@compute @workgroup_size({t.size}) fn main({args}) {{\n" + "\n".join(_body(f, q, k, v, w)) + "\n}\n"
    dtypes = [f.dtype, float32, *([f.rules.mask] if f.rules.mask else [])]
    return A.module(profile, code, A.arrays(declared), FIELDS, len(declared), dtypes, f.shuffle)


def _body(f: Form, q: Staged, k: Staged, v: Staged, w: Weights) -> list[str]:
    t = f.tile
    body = [*G.places(t), *_setup(f), *G.score_places([q], [k])]
    read, put = q.fetch(t.size, "q_tile(b, row0, {row}, {col}) * scale", "lq")
    body += read + put
    body += [f"var m{i} = {A.LOWEST}; var l{i} = 0.0;" for i in range(t.tr)]
    body += G.zeros([f"o{i}_{c}" for i in range(t.out_rows) for c in range(v.quads // t.over)], True)
    body += _streamed(f, k, v)
    body += G.zeros([f"s{i}_{j}" for i in range(t.tr) for j in range(t.tc)])
    body += G.scores(t, q, k, "s", 8 if t.tr < 8 else 4)  # with 8 rows an invocation, 8 take 2 % longer
    body += masking(t, f.rules) if f.rules.window else _cut(f)
    body += _online(f, w, v)
    body += ["workgroupBarrier();"]
    if not t.same:
        body += [f"let f{i} = st[no + {i * t.spread}u];" for i in range(t.out_rows)] + _scaled(t, "f", v)
    return [*body, *w.times(v, "o", False), "}", *_results(f, v)]


def _streamed(f: Form, k: Staged, v: Staged) -> list[str]:
    """The head of the loop over tiles of keys, up to where keys and values lie in workgroup memory."""
    t, whole = f.tile, f.whole[1]
    before: list[str] = []
    reads: list[str] = []
    puts: list[str] = []
    for n, staged in (("k", k), ("v", v)):
        row = "(t + {row})" if whole else "min(t + {row}, to_ - 1u)"
        address = f"{n}_quad({n}_base + {row} * p.{n}_r, {{col}})"
        if whole and staged.even(t.size):
            before.append(f"let {n}_from = {n}_base + tid / {staged.quads}u * p.{n}_r; let {n}_col = tid % {staged.quads}u;")
            address = f"{n}_quad({n}_from + (t + {{down}}u) * p.{n}_r, {n}_col)"
        read, put = staged.fetch(t.size, address, f"l{n}")
        reads += read
        puts += put
    return [*before, *G.walk(t.cols, k.plain), "workgroupBarrier();", *reads, *puts, "workgroupBarrier();"]


def _scaled(t: Tile, factor: str, v: Staged) -> list[str]:
    """Results so far times the factor of their row."""
    return [f"o{i}_{x} *= {factor}{i};" for i in range(t.out_rows) for x in range(v.quads // t.over)]


def _q_tile(f: Form) -> str:
    """The function that reads a quad of a row of the tile, the last row again past the end."""
    head = f"w_head * {_group(f)} + r / p.rows" if f.merged else "w_head"
    i = "r % p.rows" if f.merged else "r"
    r = "row0 + row" if f.whole[0] else "min(row0 + row, p.tile_rows - 1u)"
    return (
        "var<private> w_head: u32;\nfn q_tile(b: u32, row0: u32, row: u32, c: u32) -> vec4<f32> {\n"
        f"  let r = {r}; let h = {head}; let i = {i};\n"
        "  return q_quad(p.q_at + b * p.q_b + h * p.q_h + i * p.q_r, c);\n}\n"
    )


def _group(f: Form) -> str:
    return f"{f.group}u" if f.group else "p.group"


def _setup(f: Form) -> list[str]:
    """Which queries and keys this workgroup has; late tiles, which see more keys, come first."""
    t = f.tile
    if f.part:
        lines = ["w_head = w.x; let b = w.z; let tile = p.tiles - 1u - w.y % p.tiles; let part = w.y / p.tiles;"]
    else:
        lines = ["w_head = w.x; let b = w.z; let tile = p.tiles - 1u - w.y;"]
    lines += [f"let row0 = tile * {t.rows}u; let scale = s.v_scale * {A.LOG2E}; let origin = start(b);"]
    if f.merged:
        lines += ["let kvh = w.x; let low = origin; let high = origin + i32(p.rows) - 1;"]
    else:
        kvh = "w.x" if f.group == 1 else f"w.x / {_group(f)}"
        lines += [f"let kvh = {kvh}; let low = origin + i32(row0);", f"let high = origin + i32(min(row0 + {t.rows}u, p.rows)) - 1;"]
    for i in range(t.tr):
        row = f"row0 + tq + {i * t.teams}u"
        if f.rules.mask is not None and not f.whole[0]:  # else rows past the end do no harm: they are never stored
            row = f"min({row}, p.tile_rows - 1u)"
        if f.merged:
            lines.append(f"let r{i} = {row}; let h{i} = kvh * {_group(f)} + r{i} / p.rows; let i{i} = r{i} % p.rows;")
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
    lines = [f"if (!({' && '.join(_in_sight(t, rules, False))})) {{"]
    for i in range(t.tr):
        for g in range(t.tc // 4):
            four = ", ".join(f"s{i}_{g * 4 + j}" for j in range(4))
            lines.append(f"{{ let x = seen(vec4<f32>({four}), place{i}, t + tk * {t.tc}u + {g * 4}u); ")
            lines.append(" ".join(f"s{i}_{g * 4 + j} = x.{z};" for j, z in enumerate(T.LANES)) + " }")
    return [*_masked(t, rules), *lines, "}"]


def _cut(f: Form) -> list[str]:
    """As `masking`, without a window: one comparison a score, with the last column that the row sees."""
    t, rules = f.tile, f.rules
    ends = [*(["place{i}"] if rules.causal else []), *([] if f.whole[1] else ["i32(p.keys) - 1"])]
    if not ends:
        return _masked(t, rules)
    end = f"min({', '.join(ends)})" if len(ends) > 1 else ends[0]
    lines = [f"if (!({' && '.join(_in_sight(t, rules, f.whole[1]))})) {{ let col = i32(t + tk * {t.tc}u); let lowest = -inf();"]
    for i in range(t.tr):
        cuts = " ".join(f"s{i}_{j} = select(lowest, s{i}_{j}, e >= {j});" for j in range(t.tc))
        lines.append(f"{{ let e = {end.format(i=i)} - col; {cuts} }}")
    return [*_masked(t, rules), *lines, "}"]


def _masked(t: Tile, rules: Rules) -> list[str]:
    """Adds a mask tensor to the scores."""
    lines: list[str] = []
    if rules.mask is None:
        return lines
    for i in range(t.tr):
        for g in range(t.tc // 4):
            lines.append(f"{{ let x = mask_quad(mr{i}, t + tk * {t.tc}u + {g * 4}u); ")
            lines.append(" ".join(f"s{i}_{g * 4 + j} += x.{z};" for j, z in enumerate(T.LANES)) + " }")
    return lines


def _in_sight(t: Tile, rules: Rules, whole_keys: bool) -> list[str]:
    """Conditions under which every row of the tile sees every key from t on."""
    out = [] if whole_keys else [f"t + {t.cols}u <= p.keys"]
    if rules.causal:
        out.append(f"i32(t) + {t.cols - 1} <= low")
    if rules.window:
        out.append("i32(t) > high - i32(p.window)")
        if not rules.causal:
            out.append(f"i32(t) + {t.cols - 1} < low + i32(p.window)")
    return out


def _online(f: Form, w: Weights, v: Staged) -> list[str]:
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
    lines += _scaled(t, "a", v) if t.same else []
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
    lines += [f"let d{i} = select(1.0 / l{i}, {blank}, l{i} == 0.0);" for i in rows]
    lines.append("if (tk == 0u) {")
    for i in rows:
        guard = "" if f.whole[0] else f"if (row0 + tq + {i * t.teams}u < p.tile_rows) "
        lines.append(
            f"{guard}{{ lse[p.lse_at + {part}(b * p.heads + h{i}) * p.rows + i{i}] = "
            f"select((m{i} + log2(l{i})) * {A.LN2}, -inf(), l{i} == 0.0); }}"
        )
    lines.append("}")
    if not t.same:
        lines += ["workgroupBarrier();", "if (tk == 0u) { " + " ".join(f"st[tq + {i * t.teams}u] = d{i};" for i in rows) + " }"]
        lines += ["workgroupBarrier();"]
    for i in range(t.out_rows):
        row = f"row0 + no + {i * t.spread}u"
        where = (
            f"let r = {row}; let h = kvh * {_group(f)} + r / p.rows; let i = r % p.rows;" if f.merged else f"let h = w.x; let i = {row};"
        )
        at = "p.o_at + b * p.o_b + h * p.o_h + i * p.o_r" + (" + part * p.o_part" if f.part else "")
        over = f"d{i}" if t.same else f"st[no + {i * t.spread}u]"
        puts = " ".join(f"o_put(at, lo + {x * t.over}u, o{i}_{x} * over);" for x in range(v.quads // t.over))
        guard = "" if f.whole[0] else f"if ({row} < p.tile_rows) "
        lines.append(f"{guard}{{ {where} let at = {at}; let over = {over}; {puts} }}")
    return lines
