"""Gradients of attention on GPUs: one kernel for the queries, one for keys and values, no atomics, a fixed order of additions.

Weights are computed again from the scores and the log of their sum. A workgroup of the first kernel takes a tile of queries
and walks the keys; of the second, a tile of keys, and walks the queries. Heads that share keys write to temporaries which
are then added up, unless there are workgroups enough to walk the group one head after another.

Where the gradient of the scores is not too large, the kernel over keys keeps it, and a product of it and the keys
(attention_product) does for the first kernel: five products instead of seven.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from ..dtype import DType, float32
from ..storage import Layout
from . import attention_problem as A
from . import attention_tile as G
from . import template as T
from .attention_gpu import masking
from .attention_problem import Problem, Rules, Source
from .attention_product import Product, across, product, whole
from .attention_tile import Staged, Tile, Weights
from .kernel import TEMP, Kernel, Launch, Lowered, Profile

KEPT = 256 << 20  # bytes of score gradients that may be kept
ENOUGH = 1056  # workgroups from which a workgroup walks all heads of a group


@dataclass(frozen=True, slots=True)
class Form:
    """Everything the text of a kernel depends on. size, width: of heads, as multiples of 16; rows are queries or keys."""

    keys: bool  # rows are keys
    tile: Tile
    size: int
    width: int
    rules: Rules
    dtype: DType
    made: DType  # of the results
    wide: tuple[bool, ...]  # q, k, v, grad, results
    exact: tuple[bool, bool]
    walk: bool = False  # rows are keys: the heads of a group one after another
    keep: bool = False  # rows are keys: keeps the gradient of the scores, [B, heads, keys, rows padded to vec4s]

    def memory(self) -> int:
        """Bytes of workgroup memory."""
        t, size, width = self.tile, self.size // 4, self.width // 4
        first = self.room(size) if self.keys else t.cols * size
        return (t.rows * (size + width) + first + self.room(width)) * 16

    def room(self, quads: int) -> int:
        """vec4s that a streamed operand takes in workgroup memory, where weights take its place later."""
        return max(self.tile.cols * quads, self.tile.rows * self.tile.cols // 4)

    def fits(self, profile: Profile) -> bool:
        """Whether a device can run it."""
        t = self.tile
        spread = t.fits(self.size // 4) and (not self.keys or t.fits(self.width // 4))
        return spread and self.memory() <= profile.max_workgroup_memory and t.size <= profile.max_workgroup_size


FEW = 264  # workgroups of 64 rows below which smaller tiles do better
SHORT = Tile(32, 32, 2, 4, 8)
QUERIES = (
    Tile(64, 32, 4, 4, 8),
    Tile(32, 32, 4, 4, 8),
    Tile(32, 16, 4, 4, 16),
    Tile(16, 16, 2, 4, 8),
    Tile(16, 16, 1, 4, 4),
    Tile(8, 8, 1, 4, 4),
    Tile(8, 4, 1, 4, 4),
    Tile(4, 4, 1, 4, 4),
)
KEYS = (
    Tile(64, 32, 4, 4, 8),
    Tile(32, 32, 2, 4, 8),
    Tile(32, 32, 4, 4, 8),
    Tile(32, 16, 4, 4, 16),
    Tile(16, 16, 2, 4, 8),
    Tile(16, 16, 1, 4, 4),
    Tile(8, 8, 1, 4, 4),
    Tile(8, 4, 1, 4, 4),
    Tile(4, 4, 1, 4, 4),
)


def lower(p: Problem, operands: Mapping[str, Source], profile: Profile) -> Lowered | None:
    """Launches, or None where nothing fits the device."""
    grad, out, lse = operands["grad"], operands["out"], operands["lse"]
    bound = 7 + len(A.rules_arrays(p.rules))
    if max(p.batch, p.heads) > profile.max_groups or bound > profile.max_storage_buffers:
        return None
    results = [operands[f"out.{j}"] for j in range(3)]
    wide = [x.wide() for x in (p.q, p.k, p.v, grad)]
    size, width = G.classes(p.size), G.classes(p.width)
    exact = (size == p.size, width == p.width)
    dtype = p.q.layout.dtype
    first = Form(False, QUERIES[0], size, width, p.rules, dtype, dtype, (*wide, results[0].wide()), exact)
    second = replace(first, keys=True, wide=(*wide, results[1].wide(), results[2].wide()))
    groups = p.batch * p.heads * -(-max(p.rows, p.keys) // 64)
    short = (SHORT,) if groups < FEW else ()
    made = [_chosen(first, (*short, *QUERIES), profile), _chosen(second, (*short, *KEYS), profile)]
    if made[0] is None or made[1] is None:
        return None
    stats = TEMP(0)
    temps = [-(-p.batch * p.heads * p.rows // 2) * 16]
    launches = [_statistics(p, grad, out, lse, stats, profile)]
    form, kept = made[1], p.batch * p.heads * p.keys * -(-p.rows // 4) * 16
    last = Product(size, p.rules, dtype, (wide[1], results[0].wide()), exact[0])
    fits = kept <= min(KEPT, profile.max_binding) and last.memory() <= profile.max_workgroup_memory
    extra: tuple[int, ...] = ()
    if fits and bound < profile.max_storage_buffers:
        temps.append(kept)
        extra = (TEMP(1),)
        form = replace(form, keep=True)
    else:
        launches.append(_launch(p, made[0], grad, stats, [results[0]], p.heads, p.rows))
    tiles = -(-p.keys // form.tile.rows)
    if p.group == 1 or tiles * p.kv * p.batch >= ENOUGH:
        launches.append(_launch(p, replace(form, walk=p.group > 1), grad, stats, results[1:], p.kv, p.keys, extra))
    else:
        each = []
        for n in (p.size, p.width):
            quads = -(-n // 4)
            temps.append(p.batch * p.heads * p.keys * quads * 16)
            each.append(Source(TEMP(len(temps) - 1), Layout(float32, (p.batch, p.heads, p.keys, quads * 4))))
        form = replace(form, made=float32, wide=(*form.wide[:4], True, True))
        launches.append(_launch(p, form, grad, stats, each, p.heads, p.keys, extra))
        launches += [_added(x, y, p.group) for x, y in zip(each, results[1:], strict=True)]
    if extra:
        launches.append(product(p, last, extra[0], results[0]))
    return Lowered(tuple(launches), tuple(temps))


def _chosen(form: Form, tiles: tuple[Tile, ...], profile: Profile) -> Form | None:
    return next((f for t in tiles if (f := replace(form, tile=t)).fits(profile)), None)


FIELDS = [*A.FIELDS, *(f for n in "qkvg" for f in A.steps(n)), "tiles"]
IN_FIELDS = [*FIELDS, *A.steps("x")[:4]]
OUT_FIELDS = [*FIELDS, *A.steps("x")[:4], *A.steps("y")[:4]]


def _words(p: Problem, f: Form, grad: Source, tiles: int, results: list[Source]) -> bytes:
    operands = (p.q, p.k, p.v, grad)
    words = [*p.words(), *(w for x, wide in zip(operands, f.wide, strict=False) for w in x.words(wide)), tiles]
    return T.pack([*words, *(w for x, wide in zip(results, f.wide[4:], strict=True) for w in x.words(wide)[:4])])


def _launch(
    p: Problem, f: Form, grad: Source, stats: int, results: list[Source], heads: int, extent: int, kept: tuple[int, ...] = ()
) -> Launch:
    tiles = -(-extent // f.tile.rows)
    access = (*["read"] * 5, *["read_write"] * (len(results) + len(kept)), *("read" for _ in A.rules_arrays(p.rules)))
    numbers = (p.q.number, p.k.number, p.v.number, grad.number, stats, *(x.number for x in results), *kept, *A.rules_numbers(p))
    kernel = Kernel(("attention grad", f), partial(_source, f), access, repr(p.call.op), scalars=True, trusted=True)
    return Launch(kernel, numbers, (heads, tiles, p.batch), _words(p, f, grad, tiles, results), p.scalars())


# --- statistics of queries ----------------------------------------------------------------------------------------------


def _statistics(p: Problem, grad: Source, out: Source, lse: Source, stats: int, profile: Profile) -> Launch:
    """(log2 of the sum of weights, sum(grad * out)) a query; +inf for a query that sees no key: its weights become 0."""
    wide = (grad.wide(), out.wide())
    together = 8 if profile.subgroups and profile.subgroup_size >= 8 else 1
    x = lse.layout
    words = [p.heads, p.rows, p.width, x.numel, *grad.words(wide[0]), *out.words(wide[1]), x.offset, *x.strides]
    form = (grad.layout.dtype, out.layout.dtype, x.dtype, wide, together)
    access = ("read", "read", "read", "read_write")
    kernel = Kernel(("attention statistics", form), partial(_statistics_source, form), access, "<attention statistics>", trusted=True)
    grid = T.grid(-(-x.numel * together // 128))
    return Launch(kernel, (grad.number, out.number, lse.number, stats), grid, T.pack(words))


def _statistics_source(form: tuple[DType, DType, DType, tuple[bool, bool], int], profile: Profile) -> str:
    da, db, dl, wide, together = form
    declared = [("a", T.element(da, 4 if wide[0] else 1), "read"), ("b", T.element(db, 4 if wide[1] else 1), "read")]
    declared += [("lse", T.element(dl), "read"), ("stats", "vec2<f32>", "read_write")]
    code = A.reader("a", da, wide[0], True, "width") + A.reader("b", db, wide[1], True, "width")
    code += T.entry(profile, 128) + f"  let all = group * 128u + local; let id = min(all / {together}u, p.total - 1u);\n"
    code += "  let r = id % p.rows; let h = id / p.rows % p.heads; let n = id / (p.rows * p.heads);\n"
    code += "".join(f"  let at_{x} = p.{x}_at + n * p.{x}_b + h * p.{x}_h + r * p.{x}_r;\n" for x in "ab")
    code += f"  var sum = vec4<f32>();\n  for (var c = all % {together}u; c * 4u < p.width; c += {together}u) {{\n"
    code += "    sum += a_quad(at_a, c) * b_quad(at_b, c);\n  }\n  var d = (sum.x + sum.y) + (sum.z + sum.w);\n"
    code += "".join(f"  d += subgroupShuffleXor(d, {h}u);\n" for h in (1, 2, 4) if h < together)
    code += f"  if (all % {together}u == 0u && all / {together}u < p.total) {{\n"
    code += "    let l = f32(lse[p.l_at + n * p.l_b + h * p.l_h + r * p.l_r]);\n"
    code += f"    stats[id] = vec2<f32>(select(l * {A.LOG2E}, inf(), l < -1e37), d);\n  }}\n}}\n"
    fields = ["heads", "rows", "width", "total", *A.steps("a"), *A.steps("b"), *A.steps("l")[:4]]
    shuffles = together > 1 or T.lanes(profile) > 0
    return A.module(profile, code, A.arrays(declared), fields, 4, (da, db, dl), shuffles, scalars=False)


# --- sums over the heads of a group -------------------------------------------------------------------------------------


def _added(x: Source, out: Source, group: int) -> Launch:
    """out [B, kv, S, n] = sum over `group` neighbouring heads of x [B, kv * group, S, n padded to vec4s]."""
    (batch, kv, keys, n), quads = out.layout.shape, x.layout.shape[3] // 4
    wide = out.wide()
    words = [batch * kv * keys * quads, keys * quads, quads, group, kv, n, *out.words(wide)[:4]]
    form = (out.layout.dtype, wide)
    kernel = Kernel(("attention added", form), partial(_added_source, form), ("read", "read_write"), "<attention heads>", trusted=True)
    return Launch(kernel, (x.number, out.number), T.grid(-(-words[0] // 128)), T.pack(words))


def _added_source(form: tuple[DType, bool], profile: Profile) -> str:
    dtype, wide = form
    declared = [("x", "vec4<f32>", "read"), ("o", T.element(dtype, 4 if wide else 1), "read_write")]
    code = A.writer("o", dtype, wide, True, "width") + T.entry(profile, 128)
    code += "  let id = group * 128u + local;\n  if (id >= p.total) { return; }\n"
    code += "  let head = id / p.matrix; let i = id % p.matrix; var sum = vec4<f32>();\n"
    code += "  for (var g = 0u; g < p.group; g += 1u) { sum += x[(head * p.group + g) * p.matrix + i]; }\n"
    code += "  let at = p.o_at + head / p.kv * p.o_b + head % p.kv * p.o_h + i / p.quads * p.o_r;\n"
    code += "  o_put(at, i % p.quads, sum);\n}\n"
    fields = ["total", "matrix", "quads", "group", "kv", "width", *A.steps("o")[:4]]
    return A.module(profile, code, A.arrays(declared), fields, 2, (dtype,), T.lanes(profile) > 0, scalars=False)


# --- the kernels ----------------------------------------------------------------------------------------------------------


def _source(f: Form, profile: Profile) -> str:
    names = "qkvg"
    declared = [(n, T.element(f.dtype, 4 if x else 1), "read") for n, x in zip(names, f.wide, strict=False)]
    outs = "xy" if f.keys else "x"
    declared += [("stats", "vec2<f32>", "read")]
    declared += [(n, T.element(f.made, 4 if x else 1), "read_write") for n, x in zip(outs, f.wide[4:], strict=True)]
    declared += [("kept", "vec4<f32>", "read_write")] if f.keep else []
    declared += A.rules_arrays(f.rules)
    limits = {"q": "size", "k": "size", "v": "width", "g": "width", "x": "size", "y": "width"}
    whole = {"size": f.exact[0], "width": f.exact[1]}
    code = ""
    for n, x in zip(names, f.wide, strict=False):
        code += A.reader(n, f.dtype, x, whole[limits[n]], limits[n])
    for n, x in zip(outs, f.wide[4:], strict=True):
        code += A.writer(n, f.made, x, whole[limits[n]], limits[n])
    code += A.rules_text(f.rules)
    code += across(f.rules) if f.keys else ""
    memory, body = (_keys_body if f.keys else _queries_body)(f)
    code += memory
    args = "@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) tid: u32"
    code += f"@compute @workgroup_size({f.tile.size}) fn main({args}) {{\n" + "\n".join([*G.places(f.tile), *body]) + "\n}\n"
    dtypes = [f.dtype, f.made, float32, *([f.rules.mask] if f.rules.mask else [])]
    return A.module(profile, code, A.arrays(declared), OUT_FIELDS if f.keys else IN_FIELDS, len(declared), dtypes, False)


def _stats(at: str) -> str:
    return f"stats[(b * p.heads + h) * p.rows + {at}]"


def _queries_body(f: Form) -> tuple[str, list[str]]:
    """Rows are queries: gradient of the queries."""
    t = f.tile
    q, g = Staged("sq", t.rows, f.size // 4, 0, t.teams), Staged("sg", t.rows, f.width // 4, 0, t.teams)
    k, v, w = Staged("sk", t.cols, f.size // 4, t.tc), Staged("sv", t.cols, f.width // 4, t.tc), Weights("sv", t)
    memory = q.declare() + g.declare() + k.declare() + v.declare(f.room(v.quads))
    body = ["let b = w.z; let h = w.x; let kvh = h / p.group; let tile = p.tiles - 1u - w.y;", f"let row0 = tile * {t.rows}u;"]
    body += [f"let scale = s.v_scale * {A.LOG2E}; let origin = start(b); let low = origin + i32(row0);"]
    body += [f"let high = origin + i32(min(row0 + {t.rows}u, p.rows)) - 1; let from_ = begin(low) / 4u * 4u; let to_ = end(high);"]
    for i in range(t.tr):
        body.append(f"let i{i} = min(row0 + tq + {i * t.teams}u, p.rows - 1u); let place{i} = origin + i32(i{i});")
        body.append(f"let st{i} = {_stats(f'i{i}')};")
        if f.rules.mask is not None:
            body.append(f"let mr{i} = {A.mask_row('h', f'i{i}')};")
    body += [f"let {n}_base = p.{n}_at + b * p.{n}_b + {'kvh' if n in 'kv' else 'h'} * p.{n}_h;" for n in "qkvg"]
    body += G.score_places([q, g], [k, v])
    for x, n, factor in ((q, "q", " * scale"), (g, "g", "")):
        read, put = x.fetch(t.size, f"{n}_quad({n}_base + min(row0 + {{row}}, p.rows - 1u) * p.{n}_r, {{col}}){factor}", f"l{n}")
        body += [*read, *put]
    names = [f"x{i}_{c}" for i in range(t.out_rows) for c in range(k.quads // t.over)]
    body += G.zeros(names, True)
    body += [*G.walk(t.cols), "workgroupBarrier();"]
    fetched = [
        x.fetch(t.size, f"{n}_quad({n}_base + min(t + {{row}}, to_ - 1u) * p.{n}_r, {{col}})", f"l{n}") for x, n in ((k, "k"), (v, "v"))
    ]
    body += [line for read, _ in fetched for line in read] + [line for _, put in fetched for line in put] + ["workgroupBarrier();"]
    body += G.zeros([f"{x}{i}_{j}" for x in "sd" for i in range(t.tr) for j in range(t.tc)])
    body += [*G.scores(t, q, k, "s"), *G.scores(t, g, v, "d"), *masking(t, f.rules)]
    body += [f"d{i}_{j} = exp2(s{i}_{j} - st{i}.x) * (d{i}_{j} - st{i}.y);" for i in range(t.tr) for j in range(t.tc)]
    body += ["workgroupBarrier();", *w.put("d"), "workgroupBarrier();", *w.times(k, "x", True), "}"]
    for i in range(t.out_rows):
        row = f"(row0 + no + {i * t.spread}u)"
        puts = " ".join(f"x_put(at, lo + {c * t.over}u, x{i}_{c} * s.v_scale);" for c in range(k.quads // t.over))
        body.append(f"if ({row} < p.rows) {{ let at = p.x_at + b * p.x_b + h * p.x_h + {row} * p.x_r; {puts} }}")
    return memory, body


def _keys_body(f: Form) -> tuple[str, list[str]]:
    """Rows are keys, columns queries: gradients of keys and values."""
    t = f.tile
    k, v = Staged("sk", t.rows, f.size // 4, 0, t.teams), Staged("sv", t.rows, f.width // 4, 0, t.teams)
    q, g = Staged("sq", t.cols, f.size // 4, t.tc), Staged("sg", t.cols, f.width // 4, t.tc)
    weights, slopes = Weights("sq", t), Weights("sg", t)  # in the place of queries, which then return, and of gradients
    memory = k.declare() + v.declare() + q.declare(f.room(q.quads)) + g.declare(f.room(g.quads))
    body = [f"let b = w.z; let row0 = w.y * {t.rows}u; let scale = s.v_scale * {A.LOG2E}; let origin = start(b);"]
    body += ["let kvh = w.x;" if f.walk else "let kvh = w.x / p.group;"]
    low, high = "0", "i32(p.rows)"
    if f.rules.causal:
        low = "i32(row0) - origin"
    elif f.rules.window:
        low = "i32(row0) - i32(p.window) + 1 - origin"
    if f.rules.window:
        high = f"i32(row0) + {t.rows - 1} + i32(p.window) - origin"
    body += [f"let from_ = u32(clamp({low}, 0, i32(p.rows))) / 4u * 4u; let to_ = u32(clamp({high}, 0, i32(p.rows)));"]
    body += [f"let key{i} = row0 + tq + {i * t.teams}u;" for i in range(t.tr)]
    body += [f"let {n}_base = p.{n}_at + b * p.{n}_b + kvh * p.{n}_h;" for n in "kv"]
    body += G.score_places([k, v], [q, g])
    for x, n, factor in ((k, "k", " * scale"), (v, "v", "")):
        read, put = x.fetch(t.size, f"{n}_quad({n}_base + min(row0 + {{row}}, p.keys - 1u) * p.{n}_r, {{col}}){factor}", f"l{n}")
        body += [*read, *put]
    outs = (("x", q), ("y", g))
    body += G.zeros([f"{o}{i}_{c}" for o, x in outs for i in range(t.out_rows) for c in range(x.quads // t.over)], True)
    if f.walk:
        body += ["for (var e = 0u; e < p.group; e += 1u) { let h = kvh * p.group + e;"]
    else:
        body += ["let h = w.x;"]
    body += [f"let {n}_base = p.{n}_at + b * p.{n}_b + h * p.{n}_h;" for n in "qg"]
    body += [f"let m_base = {A.mask_row('h', '0u')};"] if f.rules.mask is not None else []
    body += [*G.walk(t.cols), "workgroupBarrier();"]
    fetched = [
        x.fetch(t.size, f"{n}_quad({n}_base + min(t + {{row}}, p.rows - 1u) * p.{n}_r, {{col}})", f"l{n}") for x, n in ((q, "q"), (g, "g"))
    ]
    body += [line for read, _ in fetched for line in read] + [line for _, put in fetched for line in put]
    body += [f"let st{j} = {_stats(f'min(t + tk * {t.tc}u + {j}u, p.rows - 1u)')};" for j in range(t.tc)]
    body += ["workgroupBarrier();", *G.zeros([f"{x}{i}_{j}" for x in "sd" for i in range(t.tr) for j in range(t.tc)])]
    body += [*G.scores(t, k, q, "s"), *_masking_by(f)]
    body += [f"s{i}_{j} = exp2(s{i}_{j} - st{j}.x);" for i in range(t.tr) for j in range(t.tc)]
    body += ["workgroupBarrier();", *weights.put("s"), *G.scores(t, v, g, "d"), "workgroupBarrier();", *weights.times(g, "y", True)]
    body += [f"d{i}_{j} = s{i}_{j} * (d{i}_{j} - st{j}.y);" for i in range(t.tr) for j in range(t.tc)]
    body += _kept(f) if f.keep else []
    body += ["workgroupBarrier();", *slopes.put("d"), *fetched[0][1], "workgroupBarrier();", *slopes.times(q, "x", True)]
    body += ["}", *(["}"] if f.walk else [])]
    head = "kvh" if f.walk else "w.x"
    for i in range(t.out_rows):
        row = f"(row0 + no + {i * t.spread}u)"
        text = f"if ({row} < p.keys) {{ "
        for o, x in outs:
            text += f"let at_{o} = p.{o}_at + b * p.{o}_b + {head} * p.{o}_h + {row} * p.{o}_r; "
            factor = " * s.v_scale" if o == "x" else ""
            text += " ".join(f"{o}_put(at_{o}, lo + {c * t.over}u, {o}{i}_{c}{factor});" for c in range(x.quads // t.over)) + " "
        body.append(text + "}")
    return memory, body


def _kept(f: Form) -> list[str]:
    """Stores the gradient of the scores."""
    t = f.tile
    lines = ["let quads = (p.rows + 3u) / 4u;"]
    for i in range(t.tr):
        for g in range(t.tc // 4):
            four = ", ".join(f"d{i}_{g * 4 + j}" for j in range(4))
            lines.append(f"{{ let quad = t / 4u + tk * {t.tc // 4}u + {g}u; if (key{i} < p.keys && quad < quads) {{")
            lines.append(f"kept[((b * p.heads + h) * p.keys + key{i}) * quads + quad] = vec4<f32>({four}); }} }}")
    return lines


def _masking_by(f: Form) -> list[str]:
    """Masks the scores s{i}_{j} of keys key{i} and queries from t on."""
    t, lines = f.tile, []
    for i in range(t.tr):
        for g in range(t.tc // 4):
            if f.rules.mask is not None:
                lines.append(f"{{ let x = mask_by(m_base, t + tk * {t.tc}u + {g * 4}u, key{i}); ")
                lines.append(" ".join(f"s{i}_{g * 4 + j} += x.{z};" for j, z in enumerate(T.LANES)) + " }")
    lines.append(f"if (!({whole(f.rules, 'row0', t.rows, 't', t.cols)})) {{")
    for i in range(t.tr):
        for g in range(t.tc // 4):
            four = ", ".join(f"s{i}_{g * 4 + j}" for j in range(4))
            lines.append(f"{{ let x = seen_by(vec4<f32>({four}), -inf(), i32(key{i}), origin, t + tk * {t.tc}u + {g * 4}u); ")
            lines.append(" ".join(f"s{i}_{g * 4 + j} = x.{z};" for j, z in enumerate(T.LANES)) + " }")
    return [*lines, "}"]
