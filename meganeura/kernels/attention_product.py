"""Gradient of the queries where that of the scores was kept: a product with the keys that skips what queries do not see.

In: the gradient of the scores, [B, heads, keys, rows padded to vec4s], of which only what some query sees was written. Out:
one launch. A workgroup takes 32 queries and walks their keys 32 at a time; an invocation has 4 queries and some columns.
Also the text about four queries and a key, which the kernel over keys shares.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ..dtype import DType, float32
from . import attention_problem as A
from . import attention_tile as G
from . import template as T
from .attention_problem import Problem, Rules, Source
from .attention_tile import Staged
from .kernel import Kernel, Launch, Profile

ROWS = 32  # queries a workgroup, and keys a turn


@dataclass(frozen=True, slots=True)
class Product:
    """Everything the text depends on. size: of heads, a multiple of 16."""

    size: int
    rules: Rules
    dtype: DType
    wide: tuple[bool, bool]  # keys, result
    exact: bool

    @property
    def over(self) -> int:
        """Invocations along the columns."""
        return 8 if self.size % 32 == 0 else 4

    def memory(self) -> int:
        """Bytes of workgroup memory."""
        return ROWS * (ROWS + self.size) * 4


FIELDS = [*A.FIELDS, *A.steps("k"), *A.steps("x")[:4], "tiles", "quads"]


def product(p: Problem, f: Product, kept: int, dq: Source) -> Launch:
    """The launch that makes the gradient of the queries from `kept`, that of the scores."""
    tiles = -(-p.rows // ROWS)
    words = [*p.words(), *p.k.words(f.wide[0]), *dq.words(f.wide[1])[:4], tiles, -(-p.rows // 4)]
    access = ("read", "read", "read_write", *("read" for _ in A.rules_arrays(p.rules)))
    numbers = (kept, p.k.number, dq.number, *A.rules_numbers(p))
    kernel = Kernel(("attention product", f), partial(_source, f), access, repr(p.call.op), scalars=True, trusted=True)
    return Launch(kernel, numbers, (p.heads, tiles, p.batch), T.pack(words), p.scalars())


def _source(f: Product, profile: Profile) -> str:
    quads, over = f.size // 4, f.over
    size, columns = ROWS // 4 * over, range(quads // over)
    declared = [("kept", "vec4<f32>", "read"), ("k", T.element(f.dtype, 4 if f.wide[0] else 1), "read")]
    declared += [("x", T.element(f.dtype, 4 if f.wide[1] else 1), "read_write"), *A.rules_arrays(f.rules)]
    code = A.reader("k", f.dtype, f.wide[0], f.exact, "size") + A.writer("x", f.dtype, f.wide[1], f.exact, "size")
    code += A.rules_text(f.rules) + across(f.rules)
    d, k = Staged("sd", ROWS, ROWS // 4, flat=True), Staged("sk", ROWS, quads, flat=True)
    code += d.declare() + k.declare()
    body = [f"let b = w.z; let h = w.x; let kvh = h / p.group; let row0 = (p.tiles - 1u - w.y) * {ROWS}u;"]
    body += [f"let lo = tid % {over}u; let tq = tid / {over}u; let origin = start(b); let low = origin + i32(row0);"]
    body += [f"let high = origin + i32(min(row0 + {ROWS}u, p.rows)) - 1; let from_ = begin(low); let to_ = end(high);"]
    body += ["let k_base = p.k_at + b * p.k_b + kvh * p.k_h; let d_base = (b * p.heads + h) * p.keys;"]
    body += G.zeros([f"x{j}_{c}" for j in range(4) for c in columns], True)
    body += [*G.walk(ROWS), "workgroupBarrier();"]
    quad = "min(row0 / 4u + {col}, p.quads - 1u)"
    read_d, put_d = d.fetch(size, f"kept[(d_base + min(t + {{row}}, to_ - 1u)) * p.quads + {quad}]", "ld")
    read_k, put_k = k.fetch(size, "k_quad(k_base + min(t + {row}, to_ - 1u) * p.k_r, {col})", "lk")
    body += [line.replace("let ", "var ", 1) for line in read_d] + read_k
    body.append(f"if (!({whole(f.rules, 't', ROWS, 'row0', ROWS)} && t + {ROWS}u <= to_)) {{")
    for e in range(len(read_d)):
        at = f"(tid + {e * size}u)"
        seen = f"seen_by(ld{e}, 0.0, i32(t + {at} / {ROWS // 4}u), origin, row0 + {at} % {ROWS // 4}u * 4u)"
        body.append(f"ld{e} = select({seen}, vec4<f32>(), t + {at} / {ROWS // 4}u >= to_);")
    body += ["}", *put_d, *put_k, "workgroupBarrier();", *G.steps("c", ROWS, 4)]
    for u in range(4):
        body.append(f"let a{u} = sd[(c + {u}u) * {ROWS // 4}u + tq];")
        for c in columns:
            body.append(f"let y{u}_{c} = sk[(c + {u}u) * {quads}u + lo + {c * over}u];")
            body += [f"x{j}_{c} = fma(vec4<f32>(a{u}.{z}), y{u}_{c}, x{j}_{c});" for j, z in enumerate(T.LANES)]
    body += ["}", "}"]
    for j in range(4):
        row = f"(row0 + tq * 4u + {j}u)"
        puts = " ".join(f"x_put(at, lo + {c * over}u, x{j}_{c} * s.v_scale);" for c in columns)
        body.append(f"if ({row} < p.rows) {{ let at = p.x_at + b * p.x_b + h * p.x_h + {row} * p.x_r; {puts} }}")
    args = "@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) tid: u32"
    code += f"@compute @workgroup_size({size}) fn main({args}) {{\n" + "\n".join(body) + "\n}\n"
    dtypes = [f.dtype, float32, *([f.rules.mask] if f.rules.mask else [])]
    return A.module(profile, code, A.arrays(declared), FIELDS, len(declared), dtypes, False)


def across(rules: Rules) -> str:
    """`seen_by(x, fill, key, origin, row)`: values of a key for four queries from `row` on, `fill` for those that do not see it;
    `mask_by(at, row, key)`: what the mask adds to them."""
    ok = "i < vec4<i32>(i32(p.rows))"
    if rules.causal:
        ok = f"({ok}) & (vec4<i32>(key) <= at)"
    if rules.window:
        ok = f"({ok}) & (vec4<i32>(key) > at - vec4<i32>(i32(p.window)))"
        if not rules.causal:
            ok = f"({ok}) & (vec4<i32>(key) < at + vec4<i32>(i32(p.window)))"
    out = "fn seen_by(x: vec4<f32>, fill: f32, key: i32, origin: i32, row: u32) -> vec4<f32> {\n"
    out += "  let i = vec4<i32>(i32(row)) + vec4<i32>(0, 1, 2, 3); let at = vec4<i32>(origin) + i;\n"
    out += f"  return select(vec4<f32>(fill), x, ({ok}) & vec4<bool>(key < i32(p.keys)));\n}}\n"
    if rules.mask is None:
        return out
    column = "min(key, p.keys - 1u) / 4u][min(key, p.keys - 1u) % 4u" if rules.form == "quad" else "min(key, p.keys - 1u) * p.m_c"
    parts = [f"mask[at + min(row + {j}u, p.rows - 1u) * p.m_r + {column}]" for j in range(4)]
    out += f"fn mask_by(at: u32, row: u32, key: u32) -> vec4<f32> {{\n  let x = vec4<{rules.mask.storage}>({', '.join(parts)});\n"
    return out + f"  {A.mask_value(rules.mask)}\n}}\n"


def whole(rules: Rules, key: str, keys: int, row: str, rows: int) -> str:
    """Whether all `rows` queries from `row` on exist and see all `keys` keys from `key` on."""
    parts = [f"{row} + {rows}u <= p.rows", f"{key} + {keys}u <= p.keys"]
    if rules.causal:
        parts.append(f"i32({key}) + {keys - 1} <= origin + i32({row})")
    if rules.window:
        parts.append(f"i32({key}) > origin + i32({row}) + {rows - 1} - i32(p.window)")
        if not rules.causal:
            parts.append(f"i32({key}) + {keys - 1} < origin + i32({row}) + i32(p.window)")
    return " && ".join(parts)
