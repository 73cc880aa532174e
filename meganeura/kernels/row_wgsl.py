"""WGSL of a row kernel. In: a RowForm (all that the text depends on). Out: the source.

The body walks the row several times: once a level of stages (a stage that names an earlier one is a level later), and
once for the element outputs. A walk is a loop whose step is the team's width, or unrolled over registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..ops.archetype import Stage
from . import template as T
from .kernel import Profile
from .monoid import HUGE, MOMENTS, SOFTMAX, Monoid, Team, extremum, total
from .operand import Operand, declare


@dataclass(frozen=True, slots=True)
class RowForm:
    """Everything the source depends on: the pipeline key."""

    stages: tuple[Stage, ...]
    element: tuple[str, ...]
    per_row: tuple[str, ...]
    defaults: tuple[tuple[str, str], ...]
    roles: tuple[str, ...]  # an operand: full, column, row, element, per_row
    operands: tuple[Operand, ...]
    access: tuple[str, ...]
    scalars: tuple[tuple[str, str], ...]
    team: Team
    registers: int  # entries an invocation keeps, 0: none, loop
    unroll: int  # entries an invocation handles in one turn of a loop
    exact: bool  # the row is a whole number of turns (or fills the registers)
    rows: int  # rows a team handles together
    width: int  # elements an entry
    rank: int  # collapsed kept dimensions
    report: bool  # whether indices are checked

    def fields(self) -> list[str]:
        """Parameter names, in the order of row._values."""
        out = ["rows", "n", "entries", *(f"size{d}" for d in range(self.rank))]
        for o, role in zip(self.operands, self.roles, strict=True):
            rank = self.rank if role in ("full", "element") else 0
            out += [f"{o.tag}_at", *(f"{o.tag}_s{d}" for d in range(rank)), f"{o.tag}_step"]
        return out


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry of a walk: its number in the row (WGSL) and a suffix for names."""

    index: str
    tag: str


Body = Callable[[list[_Entry]], str]


def source(form: RowForm, profile: Profile) -> str:
    """The WGSL of a row kernel."""
    return _Source(form, profile).text()


class _Source:
    def __init__(self, form: RowForm, profile: Profile) -> None:
        self.form, self.profile = form, profile
        by_role = {r: [o for o, role in zip(form.operands, form.roles, strict=True) if role == r] for r in ("full", "column", "row", "element", "per_row")}
        self.full, self.columns, self.row_inputs = by_role["full"], by_role["column"], by_role["row"]
        self.element, self.per_row = by_role["element"], by_role["per_row"]
        self.known = {n: f"s.{T.identifier(n)}" for n, _ in form.scalars} | {n: f"({t})" for n, t in form.defaults}
        self.functions: list[str] = []
        self.seen: set[str] = set()
        self.uses = 0
        self.step = form.team.width

    # --- frame ---

    def text(self) -> str:
        form, team = self.form, self.form.team
        body = self.body()
        count = len(form.access)
        code = "".join(self.functions) + (
            f"@compute @workgroup_size({team.workgroup})\nfn main({team.builtins()}) {{\n{body}}}\n"
        )
        front = T.header(self.profile, (o.dtype for o in form.operands), team.form != "lane" and team.subgroups)
        front += declare(form.operands, form.access) + T.uniform(count + form.report, form.fields())
        front += T.scalar_block(form.scalars, form.report)
        if form.report:
            front += T.status(count)
        return front + T.prelude(code) + code

    def body(self) -> str:
        form, team = self.form, self.form.team
        number, first = team.place()
        out = f"let start = ((group.y * {T.FOLD}u + group.x) * {team.rows}u + {number}) * {form.rows}u;\n"
        out += f"if (start >= p.rows) {{ return; }}\nlet first = {first};\nlet n = f32(p.n);\n"
        out += "".join(self.base(r) for r in range(form.rows))
        if form.registers:
            out += self.fill()
        for level in self.levels():
            out += self.stages(level)
        if self.element:
            out += self.walk(self.store_elements, self.names(form.element))
        leader = "" if team.form == "lane" else "if (first == 0u) "
        for r in range(form.rows):
            for o, expr in zip(self.per_row, form.per_row, strict=True):
                value = o.put(f"p.{o.tag}_at + row{r}", o.dtype.value, [T.substitute(expr, self.scope(r))])
                out += f"{leader}{{ {value} }}\n"
        return out

    def base(self, r: int) -> str:
        """Where row r of the team starts in each operand, and the row inputs' values."""
        out = f"let row{r} = start + {r}u;\n"
        out += T.decompose(f"row{r}", [f"p.size{d}" for d in range(self.form.rank)], f"k{r}_") + "\n"
        for o in self.full + self.element:
            steps = "".join(f" + k{r}_{d} * p.{o.tag}_s{d}" for d in range(self.form.rank))
            out += f"let {o.tag.replace('.', '_')}_b{r} = p.{o.tag}_at{steps};\n"
        for o in self.row_inputs:
            out += f"let {o.tag}_{r} = {o.part(o.entry(f'p.{o.tag}_at + row{r} * p.{o.tag}_step'), 0)};\n"
        return out

    # --- values ---

    def scope(self, r: int) -> dict[str, str]:
        """What names outside of elements mean for row r of the team."""
        out = self.known | {"n": "n"} | {o.name: f"{o.tag}_{r}" for o in self.row_inputs}
        for s in self.form.stages:
            parts = {"softmax": ("_max", "_sum"), "moments": ("_mean", "_var")}.get(s.kind, ("",))
            out |= {s.name + x: f"st_{s.name}{x}_{r}" for x in parts}
        return out

    def value(self, expr: str, e: _Entry, r: int, lane: int) -> str:
        """The expression at element `lane` of an entry."""
        names = self.scope(r)
        for o in self.full:
            names[o.name] = o.part(f"{o.tag}{e.tag}_{r}", lane)
        for o in self.columns:
            names[o.name] = o.part(f"{o.tag}{e.tag}", lane)
        names["column"] = f"({e.index})" if self.form.width == 1 else f"(({e.index}) * 4u + {lane}u)"
        return f"({T.substitute(expr, names)})"

    def values(self, expr: str, e: _Entry, r: int) -> str:
        """The expression at all elements of an entry: f32 or vec4<f32>."""
        lanes = [self.value(expr, e, r, i) for i in range(self.form.width)]
        return lanes[0] if len(lanes) == 1 else f"vec4<f32>({', '.join(lanes)})"

    @property
    def vector(self) -> str:
        """The type of `values`."""
        return "f32" if self.form.width == 1 else "vec4<f32>"

    def fold(self, value: str, how: str = "+") -> str:
        """One f32 from the elements of an entry: their sum or maximum."""
        if self.form.width == 1:
            return value
        if how == "+":
            return f"(({value}.x + {value}.y) + ({value}.z + {value}.w))"
        return f"max(max({value}.x, {value}.y), max({value}.z, {value}.w))"

    @staticmethod
    def names(expressions: Iterable[str]) -> set[str]:
        """Names that expressions use."""
        return {n for e in expressions for n in T.names_in(e)}

    # --- walks ---

    def loads(self, e: _Entry, used: set[str]) -> str:
        """Statements that load an entry of each operand used, but for what registers hold."""
        out = ""
        for o in self.columns:
            if o.name in used:
                index = e.index if o.width == 4 else f"({e.index}) * p.{o.tag}_step"
                out += f"let {o.tag}{e.tag} = {o.entry(f'p.{o.tag}_at + {index}')}; "
        if not self.form.registers:
            for o in self.full:
                if o.name in used:
                    out += "".join(f"let {o.tag}{e.tag}_{r} = {o.entry(self.at(o, e.index, r))}; " for r in range(self.form.rows))
        return out

    def at(self, o: Operand, index: str, r: int) -> str:
        """Array index of entry `index` of row r."""
        return f"{o.tag}_b{r} + {index}" if o.width == 4 else f"{o.tag}_b{r} + ({index}) * p.{o.tag}_step"

    def fill(self) -> str:
        """Load the row's entries into registers."""
        out = ""
        for o in self.full:
            for v in range(self.form.registers):
                index = self.held(v).index
                if self.form.exact:
                    out += f"let {o.tag}_{v}_0 = {o.entry(self.at(o, index, 0))};\n"
                else:
                    out += f"var {o.tag}_{v}_0: {T.element(o.dtype, o.width)};\n"
                    out += f"if ({index} < p.entries) {{ {o.tag}_{v}_0 = {o.entry(self.at(o, index, 0))}; }}\n"
        return out

    def held(self, v: int) -> _Entry:
        """The entry in register v."""
        return _Entry(f"first + {v * self.step}u" if v else "first", f"_{v}")

    def walk(self, body: Body, used: set[str]) -> str:
        """Run `body` over the row: lists of up to `unroll` entries."""
        form = self.form
        if form.registers:
            out = ""
            for v in range(form.registers):
                e = self.held(v)
                guard = "" if form.exact else f"if ({e.index} < p.entries) "
                out += f"{guard}{{ {self.loads(e, used)}\n  {body([e])} }}\n"
            return out
        out = "{ var i = first;\n"
        if form.unroll > 1:
            last = f"i + {(form.unroll - 1) * self.step}u"
            main = self.loop(body, used, form.unroll, last)
            out += main if form.exact else f"if ({last} < p.entries) {{ {main} }}\n"
        if form.unroll == 1 and form.exact:
            out += self.loop(body, used, 1, "i")
        elif not form.exact:
            out += f"if (i < p.entries) {{ {self.loop(body, used, 1, 'i')} }}\n"
        return out + "}\n"

    def loop(self, body: Body, used: set[str], count: int, last: str) -> str:
        """A loop that tests at its end: the extra masked turn of a `for` costs a turn on software Vulkan."""
        entries = [_Entry(f"i + {u * self.step}u" if u else "i", f"_{u}") for u in range(count)]
        loads = "\n  ".join(self.loads(e, used) for e in entries)
        end = f"continuing {{ i = i + {count * self.step}u; break if {last} >= p.entries; }}"
        return f"loop {{\n  {loads}\n  {body(entries)}\n  {end}\n}}\n"

    # --- stages ---

    def levels(self) -> list[list[Stage]]:
        """Stages grouped so that each group needs only earlier groups."""
        depth: dict[str, int] = {}
        out: list[list[Stage]] = []
        for s in self.form.stages:
            level = max((depth[n] for n in T.names_in(s.expr) if n in depth), default=-1) + 1
            for suffix in ("", "_max", "_sum", "_mean", "_var"):
                depth[s.name + suffix] = level
            out += [[] for _ in range(level + 1 - len(out))]
            out[level].append(s)
        return out

    def stages(self, level: list[Stage]) -> str:
        """The stages of one level: one walk for those that are sums of some kind, then the picks."""
        walked = [s for s in level if s.kind != "pick"]
        out = ""
        if walked:
            used = self.names(s.expr for s in walked)
            makers = [_MAKERS[s.kind](self, s) for s in walked]
            out += "".join(m.begin() for m in makers)
            out += self.walk(lambda entries: "\n  ".join(m.turn(entries) for m in makers), used)
            out += "".join(m.end() for m in makers)
        for s in level:
            if s.kind == "pick":
                out += "".join(self.pick(s, r) for r in range(self.form.rows))
        return out

    def pick(self, s: Stage, r: int) -> str:
        """The expression at one column, its number checked against the row length."""
        name, used = f"st_{s.name}_{r}", T.names_in(s.expr)
        index = next(o for o in self.row_inputs if o.name == s.index)
        names = self.scope(r) | {"column": "pick"}
        out, where = "", "pick / 4u" if self.form.width == 4 else "pick"
        for o in self.full + self.columns:
            if o.name not in used:
                continue
            if o in self.full:
                at = self.at(o, where, r)
            else:
                at = f"p.{o.tag}_at + {where}" + ("" if o.width == 4 else f" * p.{o.tag}_step")
            out += f"let {o.tag}_pick = {o.entry(at)}; "
            entry = f"{o.tag}_pick" + ("[pick & 3u]" if o.width == 4 else "")
            names[o.name] = T.load(o.dtype, entry, o.compute)
        leader = "true" if self.form.team.form == "lane" else "first == 0u"
        found = f"let pick = u32({index.tag}_{r}); {out}{name} = {T.substitute(s.expr, names)};"
        wrong = f"if ({leader}) {{ status_report(i32({index.tag}_{r}), i32(p.n)); }}"
        ignored = f"i32({index.tag}_{r}) != {self.known['ignore_index']}" if "ignore_index" in self.known else "true"
        return (
            f"var {name} = 0.0;\nif ({ignored}) {{\n"
            f"  if (u32({index.tag}_{r}) < p.n) {{ {found} }} else {{ {wrong} }}\n}}\n"
        )

    def bring(self, monoid: Monoid, value: str) -> str:
        """Merge a value over the team, declaring the functions this takes."""
        self.functions.append(self.form.team.functions(monoid, self.uses, monoid.name not in self.seen))
        self.seen.add(monoid.name)
        self.uses += 1
        return self.form.team.bring(monoid, self.uses - 1, value)

    def store_elements(self, entries: list[_Entry]) -> str:
        """Store the element outputs of entries."""
        out = []
        for e in entries:
            for r in range(self.form.rows):
                for o, expr in zip(self.element, self.form.element, strict=True):
                    lanes = [self.value(expr, e, r, i) for i in range(self.form.width)]
                    out.append(o.put(self.at(o, e.index, r), o.dtype.value, lanes))
        return "\n  ".join(out)


class _Sum:
    """Stage 'sum'."""

    def __init__(self, src: _Source, stage: Stage) -> None:
        self.src, self.stage = src, stage
        self.rows = range(src.form.rows)

    def name(self, r: int, suffix: str = "") -> str:
        return f"st_{self.stage.name}{suffix}_{r}"

    def acc(self, r: int, suffix: str = "") -> str:
        return f"acc_{self.stage.name}{suffix}_{r}"

    def begin(self) -> str:
        return "".join(f"var {self.acc(r)} = {self.src.vector}();\n" for r in self.rows)

    def turn(self, entries: list[_Entry]) -> str:
        return " ".join(self.add(r, [self.src.values(self.stage.expr, e, r) for e in entries]) for r in self.rows)

    def add(self, r: int, values: list[str]) -> str:
        return f"{self.acc(r)} = {self.acc(r)} + {tree(values)};"

    def end(self) -> str:
        return "".join(f"let {self.name(r)} = {self.src.bring(total('f32'), self.src.fold(self.acc(r)))};\n" for r in self.rows)


class _Max(_Sum):
    """Stage 'max'; NaN wins."""

    def begin(self) -> str:
        low = extremum("max", "f32").identity
        return "".join(f"var {self.acc(r)} = {low};\n" for r in self.rows)

    def turn(self, entries: list[_Entry]) -> str:
        width = range(self.src.form.width)
        out = []
        for r in self.rows:
            for e in entries:
                out += [f"{self.acc(r)} = merge_max_f32({self.acc(r)}, {self.src.value(self.stage.expr, e, r, i)});" for i in width]
        return "\n  ".join(out)

    def end(self) -> str:
        return "".join(f"let {self.name(r)} = {self.src.bring(extremum('max', 'f32'), self.acc(r))};\n" for r in self.rows)


class _Softmax(_Sum):
    """Stage 'softmax': running maximum and sum of exponentials in one walk, or two walks over registers.

    The maximum starts at the lowest finite number, so that a row of -inf sums to 0 and log gives -inf; NaN and inf
    elements make the sum NaN through exp(x - maximum).
    """

    def begin(self) -> str:
        return "".join(f"var {self.acc(r, 'm')} = {HUGE}; var {self.acc(r, 's')} = 0.0;\n" for r in self.rows)

    def turn(self, entries: list[_Entry]) -> str:
        if self.src.form.registers:
            value = self.src.values(self.stage.expr, entries[0], 0)
            return f"{{ let x = {value}; {self.acc(0, 'm')} = max({self.acc(0, 'm')}, {self.src.fold('x', 'max')}); }}"
        return " ".join(f"{{ {self.online(entries, r)} }}" for r in self.rows)

    def online(self, entries: list[_Entry], r: int) -> str:
        m, s = self.acc(r, "m"), self.acc(r, "s")
        out = "".join(f"let x{i} = {self.src.values(self.stage.expr, e, r)}; " for i, e in enumerate(entries))
        high = "x0"
        for i in range(1, len(entries)):
            high = f"max({high}, x{i})"
        powers = tree([f"exp(x{i} - top)" for i in range(len(entries))])
        return (
            f"{out}let high = {high}; let top = max({m}, {self.src.fold('high', 'max')}); let powers = {powers}; "
            f"{s} = {s} * exp({m} - top) + {self.src.fold('powers')}; {m} = top;"
        )

    def end(self) -> str:
        if self.src.form.registers:
            return self.second()
        out = ""
        for r in self.rows:
            both = f"both_{self.stage.name}_{r}"
            value = f"Softmax({self.acc(r, 'm')}, {self.acc(r, 's')})"
            out += f"let {both} = {self.src.bring(SOFTMAX, value)};\n"
            out += f"let {self.name(r, '_max')} = {both}.m; let {self.name(r, '_sum')} = {both}.s;\n"
        return out

    def second(self) -> str:
        top, s = self.name(0, "_max"), self.acc(0, "s")
        out = f"let {top} = {self.src.bring(_LARGEST, self.acc(0, 'm'))};\nvar {s}v = {self.src.vector}();\n"

        def add(entries: list[_Entry]) -> str:
            return f"{s}v = {s}v + exp({self.src.values(self.stage.expr, entries[0], 0)} - {top});"

        out += self.src.walk(add, set(T.names_in(self.stage.expr)))
        return out + f"let {self.name(0, '_sum')} = {self.src.bring(total('f32'), self.src.fold(f'{s}v'))};\n"


class _Moments(_Sum):
    """Stage 'moments': two walks over registers, otherwise one walk in which each invocation shifts by its first entry.

    Chan's combination then merges means counted from a reference that the whole row shares, so that a large mean
    does not cost the small differences their digits.
    """

    def begin(self) -> str:
        if self.src.form.registers:
            return super().begin()
        used, e = set(T.names_in(self.stage.expr)), _Entry("first", "_z")
        out = ""
        for r in self.rows:
            out += f"var {self.acc(r, 'c')} = {self.src.vector}(); var {self.acc(r, 'd')} = {self.src.vector}(); "
            out += f"var {self.acc(r, 'q')} = {self.src.vector}();\n"
        first = " ".join(f"{self.acc(r, 'c')} = {self.src.values(self.stage.expr, e, r)};" for r in self.rows)
        out += f"if (first < p.entries) {{ {self.src.loads(e, used)}{first} }}\n"
        return out + "".join(self.reference(r) for r in self.rows)

    def reference(self, r: int) -> str:
        """A value near the row's elements, the same for all of the team."""
        c = self.acc(r, "c") + (".x" if self.src.form.width == 4 else "")
        form = self.src.form.team.form
        if form == "subgroup":
            return f"let {self.acc(r, 'z')} = subgroupBroadcastFirst({c});\n"
        if form == "lane":
            return f"let {self.acc(r, 'z')} = {c};\n"
        e = _Entry("0u", "_y")
        value = f"{self.acc(r, 'z')} = {self.src.value(self.stage.expr, e, r, 0)};"
        loads = self.src.loads(e, set(T.names_in(self.stage.expr)))
        return f"var {self.acc(r, 'z')} = 0.0; if (p.entries > 0u) {{ {loads}{value} }}\n"

    def turn(self, entries: list[_Entry]) -> str:
        if self.src.form.registers:
            return super().turn(entries)
        out = []
        for r in self.rows:
            c, d, q = (self.acc(r, x) for x in "cdq")
            lets = "".join(f"let d{i} = {self.src.values(self.stage.expr, e, r)} - {c}; " for i, e in enumerate(entries))
            sums = tree([f"d{i}" for i in range(len(entries))])
            squares = tree([f"d{i} * d{i}" for i in range(len(entries))])
            out.append(f"{{ {lets}{d} = {d} + {sums}; {q} = {q} + {squares}; }}")
        return "\n  ".join(out)

    def end(self) -> str:
        if self.src.form.registers:
            return self.second()
        out = ""
        for r in self.rows:
            both, count = f"both_{self.stage.name}_{r}", f"count_{self.stage.name}_{r}"
            c, d, q = (self.acc(r, x) for x in "cdq")
            turns = f"(p.entries + {self.src.step - 1}u - first) / {self.src.step}u"
            out += f"let {count} = f32({turns}); let {c}t = {d} / max({count}, 1.0); let {c}m = ({c} - {self.acc(r, 'z')}) + {c}t; let {c}q = {q} - {d} * {c}t;\n"
            if self.src.form.width == 1:
                value = f"Moments({count}, {c}m, {c}q)"
            else:
                out += f"let {c}a = {self.src.fold(f'{c}m')} * 0.25; let {c}e = {c}m - {c}a;\n"
                value = f"Moments({count} * 4.0, {c}a, {self.src.fold(f'{c}q')} + {count} * dot({c}e, {c}e))"
            out += f"let {both} = {self.src.bring(MOMENTS, value)};\n"
            var = f"{both}.m2 / n"
            out += f"let {self.name(r, '_mean')} = {self.acc(r, 'z')} + {both}.mean; let {self.name(r, '_var')} = select({var}, 0.0, {var} < 0.0);\n"
        return out

    def second(self) -> str:
        mean, q = self.name(0, "_mean"), self.acc(0, "q")
        out = f"let {mean} = {self.src.bring(total('f32'), self.src.fold(self.acc(0)))} / n;\nvar {q} = {self.src.vector}();\n"

        def add(entries: list[_Entry]) -> str:
            return f"{{ let d = {self.src.values(self.stage.expr, entries[0], 0)} - {mean}; {q} = {q} + d * d; }}"

        out += self.src.walk(add, set(T.names_in(self.stage.expr)))
        return out + f"let {self.name(0, '_var')} = {self.src.bring(total('f32'), self.src.fold(q))} / n;\n"


_LARGEST = Monoid("largest", (("v", "f32"),), HUGE, "max(a, b)", "subgroupMax")  # for softmax, whose sum carries the NaN
_MAKERS = {"sum": _Sum, "max": _Max, "softmax": _Softmax, "moments": _Moments}


def tree(values: list[str], sign: str = "+") -> str:
    """A sum (or product) taken pairwise."""
    while len(values) > 1:
        values = [f"({a} {sign} {b})" for a, b in zip(values[::2], values[1::2], strict=False)] + values[len(values) // 2 * 2 :]
    return values[0]
