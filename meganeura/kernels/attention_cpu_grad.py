"""Weights of attention and the gradient of its scores on software Vulkan: two products and what follows them in one kernel.

In: queries, keys, values and the result's gradient, the log of the sums and sum(grad * out) a row. Out: one launch that fills
two matrices of scores. A subgroup of 8 lanes takes 32 queries and walks the keys that they see 32 at a time, as a product does
(lanes have four keys each); both sums go through memory that it alone uses, so that what follows is a short loop over rows.
Keys that no query of the tile sees get zeros without a product.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ..dtype import DType, float32
from . import attention_problem as A
from . import template as T
from .attention_cpu import LANES, LOOPS, TURN, products
from .attention_problem import Problem, Rules, Source
from .kernel import Kernel, Launch, Profile

TILE = 32  # queries and keys
NAMES = ("q", "k", "g", "v")


@dataclass(frozen=True, slots=True)
class Form:
    """Everything the text depends on: dtypes of queries, keys, gradient and values, and whether their rows are vec4s."""

    rules: Rules
    dtypes: tuple[DType, ...]
    wide: tuple[bool, ...]


def lower(p: Problem, operands: tuple[Source, ...], first: tuple[int, int], results: tuple[Source, ...],
          profile: Profile) -> Launch | None:  # fmt: skip
    """One launch, or None where it has no kernel. operands: q, k, grad, v, each [b, kv, rows, columns] for some batch entries and
    key heads from `first` on, with the queries of a group under each other; then the log of the sums and sum(grad * out)
    [B, H, L]. results: weights and gradient of the scores [b, kv, rows, keys], rows padded to vec4s."""
    parts, lse = operands[:4], operands[4]
    batch, kv, rows, _ = parts[0].layout.shape
    access = ("read",) * 6 + ("read_write",) * 2 + ("read",) * len(A.rules_arrays(p.rules))
    grid = (1, -(-rows // TILE), batch * kv)
    turns = -(-p.keys // TILE) * (-(-p.size // 4) + -(-p.width // 4) + TILE + 3)
    if profile.family != "cpu" or T.lanes(profile) != LANES or len(access) > profile.max_storage_buffers or max(grid) > profile.max_groups:
        return None
    if turns > LOOPS or rows < TILE // 4:  # products have tiles for few rows
        return None
    wide = tuple(x.wide() for x in parts)
    form = Form(p.rules, tuple(x.layout.dtype for x in parts), wide)
    words = [*p.words(), *(n for x, w in zip(parts, wide, strict=True) for n in x.words(w)), lse.layout.offset, rows, kv, *first, grid[1]]
    kernel = Kernel(("attention cpu grad", form), partial(_source, form), access, repr(p.call.op), scalars=True, trusted=True)
    numbers = (*(x.number for x in (*operands, *results)), *A.rules_numbers(p))
    return Launch(kernel, numbers, grid, T.pack(words), p.scalars())


FIELDS = [*A.FIELDS, *(x for n in NAMES for x in A.steps(n)), "lse_at", "tile_rows", "kv_here", "first_b", "first_h", "tiles"]


def _source(f: Form, profile: Profile) -> str:
    arrays = [(n, T.element(d, 4 if w else 1), "read") for n, d, w in zip(NAMES, f.dtypes, f.wide, strict=True)]
    arrays += [("lse", "f32", "read"), ("dots", "f32", "read"), *((n, "vec4<f32>", "read_write") for n in ("scores", "other"))]
    arrays += A.rules_arrays(f.rules)
    limits = ("size", "size", "width", "width")
    code = "".join(A.reader(n, d, w, True, x) for n, d, w, x in zip(NAMES, f.dtypes, f.wide, limits, strict=True)) + A.rules_text(f.rules)
    code += "".join(f"var<workgroup> {n}_tile: array<vec4<f32>, {TILE * LANES}>;\n" for n in "sd")
    code += f"var<workgroup> row_tile: array<vec4<u32>, {TILE}>;\n"
    body = _setup(f)
    body += ["if (from_ < to_) { t = from_; loop {", *_tile(), *_product("s", "q", "k", "size"), *_product("d", "g", "v", "width")]
    body += [*_weights(f), f"continuing {{ t += {TILE}u; break if t >= to_; }} }} }}"]
    body += _zeros("0u", "from_") + _zeros("max(from_, to_)", "p.keys")
    args = "@builtin(workgroup_id) w: vec3<u32>, @builtin(subgroup_invocation_id) lane: u32"
    code += f"@compute @workgroup_size({LANES}) fn main({args}) {{\n" + "\n".join(body) + "\n}\n"
    dtypes = [*f.dtypes, float32, *([f.rules.mask] if f.rules.mask else [])]
    return A.module(profile, code, A.arrays(arrays), FIELDS, len(arrays), dtypes, True)


def _setup(f: Form) -> list[str]:
    """Queries and keys of this subgroup."""
    lines = [
        "let zb = w.z / p.kv_here; let zh = w.z % p.kv_here; let b = p.first_b + zb; let kvh = p.first_h + zh;",
        f"let y = w.y; {TURN}",
        f"let row0 = tile * {TILE}u; let quads = (p.keys + 3u) / 4u; let inside = min(p.tile_rows - row0, {TILE}u);",
        f"let to_row = (w.z * p.tile_rows + row0) * quads; let scale = s.v_scale * {A.LOG2E}; let origin = start(b); var t = 0u;",
    ]
    lines += [f"let {n}_base = p.{n}_at + zb * p.{n}_b + zh * p.{n}_h;" for n in NAMES]
    for n in range(TILE // LANES):
        lines += [
            f"let r{n} = min(row0 + lane + {n * LANES}u, p.tile_rows - 1u); let h{n} = kvh * p.group + r{n} / p.rows;",
            f"let i{n} = r{n} % p.rows; let place{n} = origin + i32(i{n}); let at{n} = (b * p.heads + h{n}) * p.rows + i{n};",
        ]
        if f.rules.mask is not None:
            lines.append(f"let mr{n} = {A.mask_row(f'h{n}', f'i{n}')};")
    for name in ("min", "max"):
        pairs = [f"{name}(place{n}, place{n + 1})" for n in (0, 2)]
        lines.append(f"let {'low' if name == 'min' else 'high'} = subgroup{name.title()}({name}({pairs[0]}, {pairs[1]}));")
    for n in range(TILE // LANES):
        mask = f"mr{n}" if f.rules.mask is not None else "0u"
        lines += [
            f"let sum{n} = select(lse[p.lse_at + at{n}] * {A.LOG2E}, inf(), lse[p.lse_at + at{n}] < -1e37);",
            f"row_tile[lane + {n * LANES}u] = vec4<u32>(bitcast<u32>(sum{n}), bitcast<u32>(dots[at{n}]), bitcast<u32>(place{n}), {mask});",
        ]
    lines.append(f"let from_ = min(begin(low), p.keys) / {TILE}u * {TILE}u; let to_ = (end(high) + {TILE - 1}u) / {TILE}u * {TILE}u;")
    return lines


def _tile() -> list[str]:
    """Where 32 keys from t on lie for this lane."""
    return ["let col0 = t + lane * 4u; let q0 = t / 4u + lane; let to = to_row + q0;"]


def _product(to: str, a: str, b: str, limit: str) -> list[str]:
    """Sums over the columns of `a` and `b` to the tile `to`: rows of `a` are broadcast, a lane has four rows of `b`."""
    rows, loads = range(TILE), range(TILE // LANES)
    lines = ["{"] + [f"let a{n} = {a}_base + r{n} * p.{a}_r;" for n in loads]
    lines += [f"let b{j} = {b}_base + min(col0 + {j}u, p.keys - 1u) * p.{b}_r;" for j in range(4)]
    lines += [f"var s{i} = vec4<f32>();" for i in rows] + [f"let columns = (p.{limit} + 3u) / 4u; var c = 0u; loop {{"]
    lines += [f"let x{n} = {a}_quad(a{n}, c);" for n in loads] + [f"let y{j} = {b}_quad(b{j}, c);" for j in range(4)]
    lines += products(TILE)
    lines.append("continuing { c += 1u; break if c >= columns; } }")
    return [*lines, *(f"{to}_tile[{i * LANES}u + lane] = s{i};" for i in rows), "}"]


def _weights(f: Form) -> list[str]:
    """Weights and gradients, row by row. What a row needs was found with a row a lane and comes through memory."""
    add = " + mask_quad(row.w, col0)" if f.rules.mask is not None else ""
    return [
        "var i = 0u; loop { let row = row_tile[i]; let at = i * 8u + lane;",
        f"let x = seen(s_tile[at] * scale{add}, bitcast<i32>(row.z), col0); let weight = exp2(x - bitcast<f32>(row.x));",
        "let gradient = weight * (d_tile[at] - bitcast<f32>(row.y)) * s.v_scale;",
        "if (q0 < quads) { scores[to + i * quads] = weight; other[to + i * quads] = gradient; }",
        "continuing { i += 1u; break if i >= inside; } }",
    ]


def _zeros(first: str, last: str) -> list[str]:
    """Zeros for keys from `first` on, which is a multiple of the tile."""
    return [
        f"t = {first}; while (t < {last}) {{",
        *_tile(),
        "var i = 0u; loop {",
        "if (q0 < quads) { scores[to + i * quads] = vec4<f32>(); other[to + i * quads] = vec4<f32>(); }",
        f"continuing {{ i += 1u; break if i >= inside; }} }} t += {TILE}u; }}",
    ]
