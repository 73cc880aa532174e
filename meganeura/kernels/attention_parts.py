"""Attention through scores in memory, by the matrix product kernels and one row kernel: right on every device.

Software Vulkan takes its gradients this way: products there are several times faster than kernels that share workgroup
memory. Heads that share keys are one matrix with their queries under each other. A few (batch, head) pairs are done at a
time, so that scores stay in caches and within a binding. Rows of scores are padded to whole vec4s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast

from ..dtype import DType, float32
from ..errors import DeviceError
from ..ops.archetype import Matmul
from ..storage import Layout
from . import attention_cpu_grad, matmul
from . import attention_problem as A
from . import template as T
from .attention_problem import Problem, Rules, Source
from .kernel import TEMP, Call, Kernel, Launch, Lowered, Profile
from .monoid import Team, extremum, total
from .move import contiguous, copies

if TYPE_CHECKING:
    from ..ops.table import Op

AT_ONCE = 4 << 20  # bytes of scores: what caches hold


class _Product:
    """Stands for the op of a product that no op row asked for."""

    archetype = Matmul()

    def __repr__(self) -> str:
        return "<attention product>"


_PRODUCT = cast("Op", _Product())


class _Work:
    """Launches and temporaries of one call, as they are added."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.launches: list[Launch] = []
        self.temps: list[int] = []

    def temp(self, nbytes: int) -> int:
        self.temps.append(-(-nbytes // 16) * 16)
        return TEMP(len(self.temps) - 1)

    def dense(self, out: Source) -> Source:
        """What products write for a result: itself, or a temporary that `lay_out` copies to it."""
        if out.layout.contiguous:
            return out
        plain = Layout(out.layout.dtype, out.layout.shape)
        return Source(self.temp(plain.numel * plain.dtype.itemsize), plain)

    def lay_out(self, made: Source, out: Source) -> None:
        if made is not out:
            self.launches += copies(made.layout, out.layout, (made.number, out.number), self.profile)

    def product(self, a: Source, b: Source, out: Source) -> None:
        """out = a @ b."""
        call = Call(_PRODUCT, ("a", "b"), (a.layout, b.layout), (out.layout,), (float32, float32))
        made = matmul.lower(call, self.profile)
        n, numbers = len(self.temps), (a.number, b.number, out.number)
        self.launches += [replace(x, bindings=tuple(numbers[i] if i >= 0 else i - n for i in x.bindings)) for x in made.launches]
        self.temps += made.temps

    def merged(self, x: Source, kv: int) -> Source:
        """[B, H, L, E] as [B, kv, H / kv * L, E], copied if it does not lie so."""
        batch, heads, rows, size = x.layout.shape
        group, strides = heads // kv, x.layout.strides
        if group > 1 and rows > 1 and strides[1] != rows * strides[2]:
            launch, nbytes = contiguous(x.layout, x.number, len(self.temps), self.profile)
            self.launches.append(launch)
            x = Source(self.temp(nbytes), Layout(x.layout.dtype, x.layout.shape))
            strides = x.layout.strides
        row = strides[2] if rows > 1 else strides[1]
        shape = (batch, kv, group * rows, size)
        return Source(x.number, x.layout.with_(shape=shape, strides=(strides[0], strides[1] * group, row, strides[3])))


def _part(x: Source, b: slice, h: slice) -> Source:
    """Some batch entries and heads."""
    s = x.layout.strides
    shape = (b.stop - b.start, h.stop - h.start, *x.layout.shape[2:])
    return Source(x.number, x.layout.with_(shape=shape, strides=s, offset=x.layout.offset + b.start * s[0] + h.start * s[1]))


def _turned(x: Source) -> Source:
    """The last two dimensions exchanged."""
    (b, h, r, c), s = x.layout.shape, x.layout.strides
    return Source(x.number, x.layout.with_(shape=(b, h, c, r), strides=(s[0], s[1], s[3], s[2])))


def _parts(p: Problem, limit: int) -> Iterator[tuple[slice, slice]]:
    """Batch entries and key heads done together."""
    one = p.group * p.rows * -(-p.keys // 4) * 16
    if one > limit:
        raise DeviceError(
            f"attention needs {one} bytes of scores a head here, more than a binding's {limit} bytes; use fewer queries at once"
        )
    count = max(1, min(limit, AT_ONCE) // one)
    if count >= p.kv:
        step = min(count // p.kv, p.batch)
        yield from ((slice(b, min(b + step, p.batch)), slice(0, p.kv)) for b in range(0, p.batch, step))
        return
    for b in range(p.batch):
        yield from ((slice(b, b + 1), slice(h, min(h + count, p.kv))) for h in range(0, p.kv, count))


def _scores(p: Problem, b: slice, h: slice, number: int) -> Source:
    n = -(-p.keys // 4) * 4
    shape = (b.stop - b.start, h.stop - h.start, p.group * p.rows, p.keys)
    return Source(number, Layout(float32, shape, (shape[1] * shape[2] * n, shape[2] * n, n, 1)))


def forward(p: Problem, operands: Mapping[str, Source], profile: Profile) -> Lowered:
    """Launches for attention: scores, weights in their place, values."""
    w = _Work(profile)
    result = w.dense(operands["out.0"])
    q, out = w.merged(p.q, p.kv), w.merged(result, p.kv)
    parts = list(_parts(p, profile.max_binding))
    memory = w.temp(_bytes(p, *parts[0]))
    values = _written(p, w) if p.rules.position and (p.rules.causal or p.rules.window) else p.v
    for b, h in parts:
        s = _scores(p, b, h, memory)
        w.product(_part(q, b, h), _turned(_part(p.k, b, h)), s)
        w.launches.append(_rows(p, "weights", b, h, [s, operands["out.1"]], profile))
        w.product(s, _part(values, b, h), _part(out, b, h))
    w.lay_out(result, operands["out.0"])
    return Lowered(tuple(w.launches), tuple(w.temps))


def _bytes(p: Problem, b: slice, h: slice) -> int:
    return int((b.stop - b.start) * (h.stop - h.start)) * p.group * p.rows * -(-p.keys // 4) * 16


def backward(p: Problem, operands: Mapping[str, Source], profile: Profile) -> Lowered:
    """Launches for the gradient: weights again, their gradient, and products with both."""
    w = _Work(profile)
    grad, q, out = (w.merged(x, p.kv) for x in (operands["grad"], p.q, operands["out"]))
    results = [operands[f"out.{i}"] for i in range(3)]
    made = [w.dense(x) for x in results]
    dq, dk, dv = w.merged(made[0], p.kv), made[1], made[2]
    lse = operands["lse"]
    if not lse.layout.contiguous or lse.layout.dtype is not float32:
        plain = Layout(float32, lse.layout.shape)
        number = w.temp(plain.numel * 4)
        w.launches += copies(lse.layout, plain, (lse.number, number), profile)
        lse = Source(number, plain)
    dots = Source(w.temp(p.batch * p.heads * p.rows * 4), Layout(float32, lse.layout.shape))
    w.launches.append(row_dots(grad, out, dots))
    parts = list(_parts(p, profile.max_binding))
    memory = [w.temp(_bytes(p, *parts[0])) for _ in range(2)]
    for b, h in parts:
        s, d = (_scores(p, b, h, m) for m in memory)
        some = tuple(_part(x, b, h) for x in (q, p.k, grad, p.v))
        together = attention_cpu_grad.lower(p, (*some, lse, dots), (b.start, h.start), (s, d), profile)
        if together:
            w.launches.append(together)
        else:
            w.product(some[0], _turned(some[1]), s)
            w.product(some[2], _turned(some[3]), d)
            w.launches.append(_rows(p, "gradient", b, h, [s, d, lse, dots], profile))
        w.product(_turned(s), _part(grad, b, h), _part(dv, b, h))
        w.product(d, _part(p.k, b, h), _part(dq, b, h))
        w.product(_turned(d), _part(q, b, h), _part(dk, b, h))
    for x, out_ in zip(made, results, strict=True):
        w.lay_out(x, out_)
    return Lowered(tuple(w.launches), tuple(w.temps))


# --- values of a cache -----------------------------------------------------------------------------------------------


def _written(p: Problem, w: _Work) -> Source:
    """The values with zeros in place of those that no query sees: behind the last position a cache may never have been written,
    and a weight of 0 does not take away a NaN."""
    quads, wide = -(-p.width // 4), p.v.wide()
    strides = (p.kv * p.keys * quads * 4, p.keys * quads * 4, quads * 4, 1)
    out = Source(w.temp(p.batch * strides[0] * 4), Layout(float32, (p.batch, p.kv, p.keys, p.width), strides))
    assert p.position is not None
    count = p.batch * p.kv * p.keys * quads
    words = [*p.words(), count, quads, p.kv, *p.v.words(wide)]
    form = (replace(p.rules, mask=None, form=""), p.v.layout.dtype, wide)
    kernel = Kernel(
        ("attention values", form), partial(_written_source, form), ("read", "read_write", "read"), "<attention values>", trusted=True
    )
    w.launches.append(Launch(kernel, (p.v.number, out.number, p.position.number), T.grid(-(-count // 64)), T.pack(words)))
    return out


def _written_source(form: tuple[Rules, DType, bool], profile: Profile) -> str:
    rules, dtype, wide = form
    declared = [("v", T.element(dtype, 4 if wide else 1), "read"), ("o", "vec4<f32>", "read_write"), *A.rules_arrays(rules)]
    code = A.rules_text(rules) + A.reader("v", dtype, wide, False, "width")
    code += T.entry(profile, 64) + "  let id = group * 64u + local;\n  if (id >= p.total) { return; }\n"
    code += "  let c = id % p.quads; let t = id / p.quads % p.keys; let matrix = id / (p.quads * p.keys);\n"
    code += "  let h = matrix % p.kv; let b = matrix / p.kv;\n  var x = vec4<f32>();\n"
    code += "  if (t < end(start(b) + i32(p.rows) - 1)) { x = v_quad(p.v_at + b * p.v_b + h * p.v_h + t * p.v_r, c); }\n  o[id] = x;\n}\n"
    fields = [*A.FIELDS, "total", "quads", "kv", *A.steps("v")]
    return A.module(profile, code, A.arrays(declared), fields, len(declared), [dtype, float32], T.lanes(profile) > 0, scalars=False)


# --- rows of scores -------------------------------------------------------------------------------------------------

RULE_FIELDS = ("total", "first_b", "first_h", "kv_here", "lse_at")


@dataclass(frozen=True, slots=True)
class RowsForm:
    """Everything the text of `_rows` depends on."""

    what: str  # 'weights' or 'gradient'
    rules: Rules
    team: Team


def _team(profile: Profile) -> Team:
    lanes = T.lanes(profile)
    if lanes:
        return Team("subgroup", lanes, lanes * 8)
    return Team("group", 128, 128, subgroups=profile.subgroups)


def _rows(p: Problem, what: str, b: slice, h: slice, arrays: list[Source], profile: Profile) -> Launch:
    """One launch over rows of scores (in place). Weights: [scores, lse]. Gradient: [scores, gradient of weights, lse, dots]."""
    team = _team(profile)
    form = RowsForm(what, p.rules, team)
    access = ("read_write", "read_write") if what == "weights" else ("read_write", "read_write", "read", "read")
    access = (*access, *("read" for _ in A.rules_arrays(p.rules)))
    rows = p.group * p.rows
    total_rows = (b.stop - b.start) * (h.stop - h.start) * rows
    lse = next(x for x in arrays if len(x.layout.shape) == 3)
    words = [*p.words(), total_rows, b.start, h.start, h.stop - h.start, lse.layout.offset]
    kernel = Kernel(
        ("attention rows", form), partial(_rows_source, form), access, repr(p.call.op), scalars=True, trusted=True
    )  # fmt: skip
    numbers = (*(x.number for x in arrays), *A.rules_numbers(p))
    return Launch(kernel, numbers, T.grid(-(-total_rows // team.rows)), T.pack(words), p.scalars())


def _rows_source(form: RowsForm, profile: Profile) -> str:
    team, rules = form.team, form.rules
    names = ["scores", "lse"] if form.what == "weights" else ["scores", "other", "lse", "dots"]
    types = {"scores": "vec4<f32>", "other": "vec4<f32>", "lse": "f32", "dots": "f32"}
    reading = {"lse", "dots"} if form.what == "gradient" else set()
    declared = [(n, types[n], "read" if n in reading else "read_write") for n in names] + A.rules_arrays(rules)
    highest, sums = extremum("max", "f32"), total("f32")
    code = A.rules_text(rules)
    if form.what == "weights":
        code += team.functions(highest, 0, True) + team.functions(sums, 1, True)
    number, first = team.place()
    body = f"  let id = (group.y * {T.FOLD}u + group.x) * {team.rows}u + {number};\n  if (id >= p.total) {{ return; }}\n"
    body += "  let merged = p.group * p.rows; let pair = id / merged; let r = id % merged;\n"
    body += "  let b = p.first_b + pair / p.kv_here; let kvh = p.first_h + pair % p.kv_here;\n"
    body += "  let i = r % p.rows; let head = kvh * p.group + r / p.rows; let place = start(b) + i32(i);\n"
    body += f"  let from_ = {first}; let quads = (p.keys + 3u) / 4u; let row = id * quads;\n  let scale = s.v_scale * {A.LOG2E};\n"
    body += "  let at = p.lse_at + (b * p.heads + head) * p.rows + i;\n"
    if rules.mask is not None:
        body += f"  let m_row = {A.mask_row('head', 'i')};\n"
    add = " + mask_quad(m_row, c * 4u)" if rules.mask is not None else ""
    value = f"seen(scores[row + c] * scale{add}, place, c * 4u)"
    walk = f"for (var c = from_; c < quads; c += {team.width}u)"
    if form.what == "weights":
        body += f"  var top = {A.LOWEST};\n  {walk} {{\n    let x = {value};\n"
        body += "    top = merge_max_f32(top, merge_max_f32(merge_max_f32(x.x, x.y), merge_max_f32(x.z, x.w)));\n  }\n"
        body += f"  top = {team.bring(highest, 0, 'top')};\n  var sum = 0.0;\n  {walk} {{\n"
        body += f"    let w = exp2({value} - top);\n    scores[row + c] = w;\n    sum += (w.x + w.y) + (w.z + w.w);\n  }}\n"
        body += f"  sum = {team.bring(sums, 1, 'sum')};\n  let over = select(1.0 / sum, {rules.blank}, sum == 0.0);\n"
        body += f"  {walk} {{ scores[row + c] = scores[row + c] * over; }}\n"
        body += f"  if (from_ == 0u) {{ lse[at] = select((top + log2(sum)) * {A.LN2}, -inf(), sum == 0.0); }}\n"
    else:
        body += f"  let sum = select(lse[at] * {A.LOG2E}, inf(), lse[at] < -1e37); let dot_ = dots[at - p.lse_at];\n  {walk} {{\n"
        body += f"    let w = exp2({value} - sum);\n    scores[row + c] = w;\n"
        body += "    other[row + c] = w * (other[row + c] - dot_) * s.v_scale;\n  }\n"
    code += f"@compute @workgroup_size({team.workgroup})\nfn main({team.builtins()}) {{\n{body}}}\n"
    dtypes = [float32] if rules.mask is None else [float32, rules.mask]
    return A.module(profile, code, A.arrays(declared), [*A.FIELDS, *RULE_FIELDS], len(declared), dtypes, team.subgroups)


# --- sum(grad * out) a row --------------------------------------------------------------------------------------------


def row_dots(a: Source, b: Source, out: Source) -> Launch:
    """sum(a * b) over the last of four dimensions, contiguous in `out`: an invocation a row."""
    shape = a.layout.shape
    wide = (a.wide(), b.wide())
    words = [shape[1], shape[2], shape[3], shape[0] * shape[1] * shape[2], *a.words(wide[0]), *b.words(wide[1]), out.layout.offset]
    form = (a.layout.dtype, b.layout.dtype, wide)
    kernel = Kernel(("attention dots", form), partial(_dots_source, form), ("read", "read", "read_write"), "<attention dots>", trusted=True)
    return Launch(kernel, (a.number, b.number, out.number), T.grid(-(-words[3] // 64)), T.pack(words))


def _dots_source(form: tuple[DType, DType, tuple[bool, bool]], profile: Profile) -> str:
    da, db, wide = form
    declared = [("a", T.element(da, 4 if wide[0] else 1), "read"), ("b", T.element(db, 4 if wide[1] else 1), "read")]
    code = A.reader("a", da, wide[0], True, "size") + A.reader("b", db, wide[1], True, "size")
    code += T.entry(profile, 64) + "  let id = group * 64u + local;\n  if (id >= p.total) { return; }\n"
    code += "  let r = id % p.rows; let h = id / p.rows % p.heads; let n = id / (p.rows * p.heads);\n"
    code += "".join(f"  let at_{x} = p.{x}_at + n * p.{x}_b + h * p.{x}_h + r * p.{x}_r;\n" for x in "ab")
    code += "  var sum = vec4<f32>();\n  for (var c = 0u; c * 4u < p.size; c += 1u) { sum += a_quad(at_a, c) * b_quad(at_b, c); }\n"
    code += "  dots[p.dots_at + id] = (sum.x + sum.y) + (sum.z + sum.w);\n}\n"
    fields = ["heads", "rows", "size", "total", *A.steps("a"), *A.steps("b"), "dots_at"]
    text = A.arrays([*declared, ("dots", "f32", "read_write")])
    return A.module(profile, code, text, fields, 3, (da, db), T.lanes(profile) > 0, scalars=False)
