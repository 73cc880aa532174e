"""WGSL of a scan kernel. In: a ScanForm (all that the text depends on). Out: the source.

Stages: 'whole' scans rows from their start; 'sums' reduces each part of a row to one accumulator; 'carry' turns those into
what comes before each part; 'final' scans each part from there. An accumulator is a Monoid value, kept in the temporary
as u32 words: all first fields, then all second ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from . import template as T
from .kernel import Profile
from .monoid import HIGHEST, LOWEST, Monoid, product, total
from .operand import Operand, declare

_NAN = "((bitcast<u32>({}) & 0x7fffffffu) > 0x7f800000u)"


def _latest(kind: str, type_: str) -> Monoid:
    """The largest (smallest) value and the last place where it stands; NaN beats all. An empty one has place -1."""
    sign = ">" if kind == "max" else "<"
    lowest = (LOWEST if kind == "max" else HIGHEST)[type_]
    beats, ties = f"b.v {sign} a.v", "b.v == a.v"
    if type_ == "f32":
        nan_a, nan_b = _NAN.format("a.v"), _NAN.format("b.v")
        beats = f"select({beats} && !{nan_a}, !{nan_a}, {nan_b})"
        ties = f"select({ties}, {nan_a}, {nan_b})"
    merge = (
        f"let beats = {beats}; let ties = {ties}; let second = beats || (ties && b.i > a.i); "
        "return Latest(select(a.v, b.v, second), select(a.i, b.i, second));"
    )
    return Monoid(f"latest_{kind}_{type_}", (("v", type_), ("i", "i32")), f"Latest({lowest}, -1i)", merge, struct="Latest")


# log(sum(exp)): the largest value m, never NaN, and the sum s of exp(value - m), which a NaN makes NaN. m may be infinite.
_EXPONENTIALS = Monoid(
    "exponentials",
    (("m", "f32"), ("s", "f32")),
    "Exponentials(-inf(), 0.0)",
    "let d = select(exp_(-abs(a.m - b.m)), 1.0, a.m == b.m); let first = a.m >= b.m; "
    "return Exponentials(select(b.m, a.m, first), select(a.s * d + b.s, a.s + b.s * d, first));",
    struct="Exponentials",
    extra=(
        f"fn exponential(x: f32) -> Exponentials {{ let bad = {_NAN.format('x')}; "
        "return Exponentials(select(x, -inf(), bad), select(1.0, nan(), bad)); }\n"
    ),
)


def monoid_of(kind: str, type_: str) -> Monoid:
    """The accumulator of a scan kind over values of a WGSL type."""
    if kind in ("max", "min"):
        return _latest(kind, type_)
    return _EXPONENTIALS if kind == "logsumexp" else (total if kind == "sum" else product)(type_)


@dataclass(frozen=True, slots=True)
class ScanForm:
    """Everything the source depends on: the pipeline key.

    `team`: invocations that share a row, 1 if each has its own. `width`: elements an array entry, along the row or, for
    `across`, over neighbouring rows. `items`: entries an invocation takes at a time.
    """

    kind: str
    stage: str
    accumulator: str  # WGSL type of the values
    operands: tuple[Operand, ...]  # input, outputs, accumulators of the parts; as the stage needs them
    access: tuple[str, ...]
    team: int
    workgroup: int
    subgroups: bool
    width: int
    across: bool
    items: int
    rank: int  # collapsed dimensions of the rows
    reverse: bool

    def fields(self) -> list[str]:
        """Parameter names, in the order of scan._words."""
        out = ["rows", "total", "count", "parts", "chunk", "parts_total", "row_step", "part_step"]
        if self.stage == "carry":
            return out
        dims = range(self.rank)
        return [*out, *(f"size{d}" for d in dims), "x_at", "x_step", *(f"x{d}" for d in dims), "o_at", "o_step", *(f"o{d}" for d in dims)]


def source(form: ScanForm, profile: Profile) -> str:
    """The WGSL of a scan kernel."""
    return _Source(form, profile).text()


class _Source:
    def __init__(self, form: ScanForm, profile: Profile) -> None:
        self.form, self.profile = form, profile
        self.monoid = monoid_of(form.kind, form.accumulator)
        self.named = {o.name: o for o in form.operands}
        self.accs = form.width if form.across else 1
        self.lane = form.team == 1

    def text(self) -> str:
        form = self.form
        code = self.monoid.declarations() + ("" if self.lane else self.exclusive())
        body = (self.carry() if form.stage == "carry" else self.rows()) + "}\n"
        code += f"@compute @workgroup_size({form.workgroup})\nfn main({self.builtins()}) {{\n{body}"
        front = T.header(self.profile, (o.dtype for o in form.operands), not self.lane and form.subgroups)
        front += declare(form.operands, form.access) + T.uniform(len(form.access), form.fields())
        return front + T.prelude(code) + code

    def builtins(self) -> str:
        out = "@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32"
        if self.lane or not self.form.subgroups:
            return out
        return out + ", @builtin(subgroup_invocation_id) lane: u32, @builtin(subgroup_size) size: u32"

    def merge(self, a: str, b: str) -> str:
        """a, then b."""
        return f"merge_{self.monoid.name}({a}, {b})"

    # --- a team brings its accumulators together ---

    def exclusive(self) -> str:
        """`before(v)`: what the invocations in front of this one hold together; `team_all`: what all hold."""
        m, w = self.monoid, self.form.team
        names = [f"shared_{p}" for p, _ in m.parts]
        out = "".join(f"var<workgroup> {n}: array<{t}, {w}>;\n" for n, (_, t) in zip(names, m.parts, strict=True))
        put = "".join(f"{n}[{{}}] = {m.field('a', p)}; " for n, (p, _) in zip(names, m.parts, strict=True))
        get = m.make(*(f"{n}[{{}}]" for n in names))
        out += f"var<private> team_all: {m.type};\n"
        if not self.form.subgroups:
            return out + (
                f"fn before(v: {m.type}, thread: u32) -> {m.type} {{\n  var a = v;\n  {put.format(*['thread'] * len(names))}\n"
                f"  workgroupBarrier();\n  for (var h = 1u; h < {w}u; h = h << 1u) {{\n"
                f"    if (thread >= h) {{ a = {self.merge(get.replace('{}', 'thread - h'), 'a')}; }}\n"
                f"    workgroupBarrier();\n    {put.format(*['thread'] * len(names))}\n    workgroupBarrier();\n  }}\n"
                f"  team_all = {get.replace('{}', f'{w - 1}u')};\n  var front = {m.identity};\n"
                f"  if (thread > 0u) {{ front = {get.replace('{}', 'thread - 1u')}; }}\n  workgroupBarrier();\n  return front;\n}}\n"
            )
        from_lane = m.make(*(f"subgroupShuffle({m.field('a', p)}, {{}})" for p, _ in m.parts))
        return out + (
            f"fn before(v: {m.type}, thread: u32, lane: u32, size: u32) -> {m.type} {{\n  var a = v;\n"
            f"  let most = min(size, {w}u);\n  for (var h = 1u; h < most; h = h << 1u) {{\n"
            f"    let other = {from_lane.replace('{}', 'select(lane, lane - h, lane >= h)')};\n"
            f"    if (lane >= h) {{ a = {self.merge('other', 'a')}; }}\n  }}\n"
            f"  let near = {from_lane.replace('{}', 'select(lane, lane - 1u, lane >= 1u)')};\n"
            f"  let mine = thread / size;\n  if (lane == most - 1u) {{ {put.replace('{}', 'mine')}}}\n  workgroupBarrier();\n"
            f"  var all = {m.identity};\n  var front = {m.identity};\n  let teams = {w}u / most;\n"
            f"  for (var i = 0u; i < teams; i = i + 1u) {{\n    if (i == mine) {{ front = all; }}\n"
            f"    all = {self.merge('all', get.replace('{}', 'i'))};\n  }}\n"
            f"  team_all = all;\n  workgroupBarrier();\n"
            f"  if (lane > 0u) {{ front = {self.merge('front', 'near')}; }}\n  return front;\n}}\n"
        )

    def bring(self, value: str) -> str:
        return f"before({value}, thread{', lane, size' if self.form.subgroups else ''})"

    # --- accumulators of parts, in the temporary ---

    def kept(self, a: int, row: str, part: str) -> list[str]:
        """The words of accumulator a of a row's part."""
        o = self.named["sums"]
        at = f"({row}) * p.row_step + ({part}) * p.part_step"
        if self.accs > 1:
            at = f"(({row}) * {self.accs}u + {a}u) * p.row_step + ({part}) * p.part_step"
        return [o.entry(f"{c}u * p.parts_total + {at}") for c in range(len(self.monoid.parts))]

    def fetch(self, words: list[str]) -> str:
        parts = [w if t == "u32" else f"bitcast<{t}>({w})" for w, (_, t) in zip(words, self.monoid.parts, strict=True)]
        return self.monoid.make(*parts)

    def keep(self, words: list[str], value: str) -> str:
        out = ""
        for w, (part, type_) in zip(words, self.monoid.parts, strict=True):
            field = self.monoid.field(value, part)
            out += f"{w} = {field if type_ == 'u32' else f'bitcast<u32>({field})'}; "
        return out

    def carry(self) -> str:
        """Exclusive scan of each row's accumulators, in place."""
        m = self.monoid
        words = self.kept(0, "row", "i")
        if self.lane:
            return (
                f"let row = (group.y * {T.FOLD}u + group.x) * {self.form.workgroup}u + thread;\nif (row >= p.rows) {{ return; }}\n"
                f"var acc = {m.identity};\nvar i = 0u;\nloop {{\n  let mine = {self.fetch(words)};\n  {self.keep(words, 'acc')}\n"
                f"  acc = {self.merge('acc', 'mine')};\n  continuing {{ i = i + 1u; break if i >= p.parts; }}\n}}\n"
            )
        return (
            f"let row = group.y * {T.FOLD}u + group.x;\nif (row >= p.rows) {{ return; }}\nvar carry = {m.identity};\n"
            f"for (var from_ = 0u; from_ < p.parts; from_ = from_ + {self.form.team}u) {{\n  let i = from_ + thread;\n"
            f"  var mine = {m.identity};\n  if (i < p.parts) {{ mine = {self.fetch(words)}; }}\n"
            f"  let front = {self.merge('carry', self.bring('mine'))};\n"
            f"  if (i < p.parts) {{ {self.keep(words, 'front')} }}\n  carry = {self.merge('carry', 'team_all')};\n}}\n"
        )

    # --- rows ---

    def rows(self) -> str:
        form = self.form
        number = f"(group.y * {T.FOLD}u + group.x) * {form.workgroup}u + thread" if self.lane else f"group.y * {T.FOLD}u + group.x"
        out = f"let id = {number};\nif (id >= p.total) {{ return; }}\n"
        if form.stage == "whole":
            out += "let row = id;\nlet part = 0u;\n"
        elif self.lane:  # neighbours have neighbouring rows
            out += "let part = id / p.rows;\nlet row = id - part * p.rows;\n"
        else:
            out += "let row = id / p.parts;\nlet part = id - row * p.parts;\n"
        out += T.decompose("row", [f"p.size{d}" for d in range(form.rank)], "c") + "\n"
        for name in "xo":
            out += f"let {name}_b = p.{name}_at{''.join(f' + c{d} * p.{name}{d}' for d in range(form.rank))};\n"
        out += "let lo = part * p.chunk;\nlet hi = min(p.count, lo + p.chunk);\n"
        for a in range(self.accs):
            start = self.fetch(self.kept(a, "row", "part")) if form.stage == "final" else self.monoid.identity
            out += f"var acc{a} = {start};\n"
        out += self.walk() if self.lane else self.tiles()
        if form.stage != "sums":
            return out
        stores = "".join(f"{self.keep(self.kept(a, 'row', 'part'), f'acc{a}')}\n" for a in range(self.accs))
        return out + (stores if self.lane else f"if (thread == 0u) {{\n{stores}}}\n")

    def place(self, index: str) -> str:
        """The entry along the row that is visited as number `index`."""
        return f"(p.count - 1u - ({index}))" if self.form.reverse else f"({index})"

    def order(self) -> list[int]:
        """The elements of an entry, as visited."""
        lanes = list(range(1 if self.form.across else self.form.width))
        return lanes[::-1] if self.form.reverse else lanes

    def item(self, entry: str, lane: int, place: str) -> str:
        """Element `lane` of a loaded entry as an accumulator."""
        x = self.named["input"]
        value = x.part(entry, lane)
        if x.compute is not None and x.compute.kind == "b":
            value = f"select(0u, 1u, {value})"
        if self.form.kind == "logsumexp":
            return f"exponential({value})"
        if self.form.kind in ("max", "min"):
            along = 1 if self.form.across else self.form.width
            return f"Latest({value}, i32({place}{f' * {along}u + {lane}u' if along > 1 else ''}))"
        return value

    def result(self, value: str) -> str:
        """The scanned value of an accumulator."""
        if self.form.kind == "logsumexp":
            return f"({value}.m + log_({value}.s))"
        return f"{value}.v" if self.form.kind in ("max", "min") else value

    def load(self, u: int) -> str:
        return f"let x{u} = {self.named['input'].entry(f'x_b + e{u} * p.x_step')};"

    def store(self, u: int, values: list[str]) -> str:
        """Store entry u from its accumulators, in memory order."""
        at = f"o_b + e{u} * p.o_step"
        out = self.named["out"].put(at, self.form.accumulator, [self.result(v) for v in values])
        if "places" in self.named:
            out += " " + self.named["places"].put(at, "i32", [f"{v}.i" for v in values])
        return out

    # --- an invocation a row: it walks alone ---

    def walk(self) -> str:
        n = self.form.items
        out = "var i = lo;\n"
        if n > 1:
            out += (
                f"if (i + {n - 1}u < hi) {{ loop {{\n{self.turn(n)}  continuing {{ i = i + {n}u; break if i + {n - 1}u >= hi; }}\n}} }}\n"
            )
        return out + f"if (i < hi) {{ loop {{\n{self.turn(1)}  continuing {{ i = i + 1u; break if i >= hi; }}\n}} }}\n"

    def turn(self, count: int) -> str:
        """Load, take in and store `count` entries. Float sums are added up within the turn first, so that few additions
        follow one another over the whole row."""
        apart = self.form.kind == "sum" and self.form.accumulator == "f32" and (count > 1 or not self.form.across)
        into = "near" if apart else "acc"
        out = ""
        for u in range(count):
            out += f"  let e{u} = {self.place(f'i + {u}u')}; {self.load(u)}\n"
        if apart:
            out += "".join(f"  var near{a} = 0.0;\n" for a in range(self.accs))
        for u in range(count):
            values = [f"acc{a} + near{a}" if apart else f"acc{a}" for a in range(self.accs)]
            if self.form.across:
                for a in range(self.accs):
                    out += f"  {into}{a} = {self.merge(f'{into}{a}', self.item(f'x{u}', a, f'e{u}'))};\n"
            else:
                values = [""] * self.form.width
                for lane in self.order():
                    out += f"  {into}0 = {self.merge(f'{into}0', self.item(f'x{u}', lane, f'e{u}'))};\n"
                    if self.form.stage != "sums":
                        out += f"  let r{u}_{lane} = {'acc0 + near0' if apart else 'acc0'};\n"
                    values[lane] = f"r{u}_{lane}"
            if self.form.stage != "sums":
                out += f"  {self.store(u, [f'({v})' for v in values])}\n"
        return out + ("".join(f"  acc{a} = acc{a} + near{a};\n" for a in range(self.accs)) if apart else "")

    # --- a workgroup a row: tiles of items an invocation ---

    def tiles(self) -> str:
        """Entries of a tile are loaded at once, neighbours by neighbours; then each round of them is scanned by the team. For
        'sums' the team meets only in the end."""
        m, n, w = self.monoid, self.form.items, self.form.team
        sums = self.form.stage == "sums"
        out = f"var mine = {m.identity};\n" if sums else ""
        out += f"for (var from_ = lo; from_ < hi; from_ = from_ + {n * w}u) {{\n  let i = from_ + thread;\n"
        for u in range(n):
            out += f"  let e{u} = {self.place(f'i + {u * w}u')};\n"
            for lane in range(self.form.width):
                out += f"  var r{u}_{lane} = {m.identity};\n"
            items = "".join(f"r{u}_{lane} = {self.item(f'x{u}', lane, f'e{u}')}; " for lane in range(self.form.width))
            out += f"  if (i + {u * w}u < hi) {{ {self.load(u)} {items}}}\n"
        for u in range(n):
            order = self.order()
            for before, lane in pairwise(order):
                out += f"  r{u}_{lane} = {self.merge(f'r{u}_{before}', f'r{u}_{lane}')};\n"
            last = f"r{u}_{order[-1]}"
            if sums:
                out += f"  mine = {self.merge('mine', last)};\n"
                continue
            out += f"  let front{u} = {self.merge('acc0', self.bring(last))};\n  acc0 = {self.merge('acc0', 'team_all')};\n"
            values = [self.merge(f"front{u}", f"r{u}_{lane}") for lane in range(self.form.width)]
            sets = "".join(f"let f{u}_{lane} = {v}; " for lane, v in enumerate(values))
            out += f"  if (i + {u * w}u < hi) {{ {sets}{self.store(u, [f'f{u}_{lane}' for lane in range(self.form.width)])} }}\n"
        return out + "}\n" + (f"let unused = {self.bring('mine')};\nacc0 = team_all;\n" if sums else "")
