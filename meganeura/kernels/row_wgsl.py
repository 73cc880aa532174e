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
from .monoid import Monoid, Team
from .operand import Operand, declare
from .row_stages import MAKERS, Entry
from .statements import Functions, Statement


@dataclass(frozen=True, slots=True)
class RowForm:
    """Everything the source depends on: the pipeline key."""

    stages: tuple[Stage, ...]
    element: tuple[str, ...]
    per_row: tuple[str, ...]
    statements: tuple[Statement, ...]
    defaults: tuple[tuple[str, str], ...]
    # an operand: full, fixed (one element of it serves the row), group (one serves neighbours), column, row, element, per_row
    roles: tuple[str, ...]
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
    runs: tuple[str, ...] = ()  # operands whose rows are several runs
    apart: int = 1  # entries a turn of walks that take the rows of a team one after the other; 1: always together

    def fields(self) -> list[str]:
        """Parameter names, in the order of row._values."""
        out = ["rows", "n", "entries", *(f"size{d}" for d in range(self.rank))]
        for o, role in zip(self.operands, self.roles, strict=True):
            rank = self.rank if role in ("full", "fixed", "group", "element") else 0
            out += [f"{o.tag}_at", *(f"{o.tag}_s{d}" for d in range(rank)), f"{o.tag}_step"]
            out += [f"{o.tag}_part"] if role == "group" else []
            out += [f"{o.tag}_run", f"{o.tag}_gap"] if o.name in self.runs else []
        return out


Body = Callable[[list[Entry]], str]


def source(form: RowForm, profile: Profile) -> str:
    """The WGSL of a row kernel."""
    return Source(form, profile).text()


class Source:
    def __init__(self, form: RowForm, profile: Profile) -> None:
        self.form, self.profile = form, profile
        by_role = {
            r: [o for o, role in zip(form.operands, form.roles, strict=True) if role == r]
            for r in ("full", "fixed", "group", "column", "row", "element", "per_row")
        }
        self.full, self.columns, self.row_inputs = by_role["full"], by_role["column"], by_role["row"]
        self.element, self.per_row, self.fixed = by_role["element"], by_role["per_row"], by_role["fixed"]
        self.groups = by_role["group"]
        self.known = {n: f"s.{T.identifier(n)}" for n, _ in form.scalars} | {n: f"({t})" for n, t in form.defaults}
        self.once, self.statements = self._once()
        self.made = self._functions()
        staged = self.names(s.expr for s in form.stages)
        self.held_inputs = [o for o in self.full if not form.stages or o.name in staged] if form.registers else []
        self.functions: list[str] = []
        self.seen: set[str] = set()
        self.uses = 0
        self.step = form.team.width
        self.now = range(form.rows)  # rows of the team that a walk takes

    # --- frame ---

    def text(self) -> str:
        form, team = self.form, self.form.team
        body = self.body()
        count = len(form.access)
        main = f"@compute @workgroup_size({team.workgroup})\nfn main({team.builtins()}) {{\n{body}}}\n"
        code = self.made.source(self.types()) + "".join(self.functions) + main
        front = T.header(self.profile, (o.dtype for o in form.operands), team.form != "lane" and team.subgroups)
        if self.profile.backend == "dawn" and team.form == "cluster":  # whole clusters leave early, so shuffles stay within live lanes
            front += "diagnostic(off, subgroup_uniformity);\n"
        front += declare(form.operands, form.access) + T.uniform(count + form.report, form.fields())
        front += T.scalar_block(form.scalars, form.report)
        if form.report:
            front += T.status(count)
        return front + T.prelude(code) + code

    def types(self) -> dict[str, str]:
        """WGSL types of what expressions may name."""
        inputs = self.full + self.fixed + self.groups + self.columns + self.row_inputs
        types = dict.fromkeys(self.scope(0), "f32") | {o.name: o.compute.value for o in inputs if o.compute} | {"column": "u32"}
        return types | {n: t for n, t, _ in self.once} | {o.name: o.dtype.value for o in self.per_row}

    def body(self) -> str:
        form, team = self.form, self.form.team
        number, first = team.place()
        out = f"let start = ((group.y * {T.FOLD}u + group.x) * {team.rows}u + {number}) * {form.rows}u;\n"
        out += f"if (start >= p.rows) {{ return; }}\nlet first = {first};\nlet n = f32(p.n);\nlet entries = p.entries;\n"
        out += "".join(f"let {o.tag}_b = p.{o.tag}_at;\n" for o in self.columns)  # out of the loops: not every compiler moves loads
        out += "".join(self.base(r) for r in range(form.rows))
        if form.registers:
            out += self.fill()
        for level in self.levels():
            out += self.stages(level)
        for r in range(form.rows):
            for o, expr in zip(self.per_row, form.per_row, strict=True):
                out += f"let {o.tag}_{r} = {self.made.text(expr, self.scope(r))};\n"
        if self.element:
            out += self.walk(self.store_elements, self.names(form.element))
        puts = [o.put(f"p.{o.tag}_at + row{r}", o.dtype.value, [f"{o.tag}_{r}"]) for r in range(form.rows) for o in self.per_row]
        if puts:
            out += "{\n" if team.form == "lane" else "if (first == 0u) {\n"
            out += "".join(f"{{ {put} }}\n" for put in puts) + "}\n"
        return out

    def _once(self) -> tuple[list[Statement], list[Statement]]:
        """The form's statements that are the same all along a row, and the others."""
        given = {*self.known, "n", *(o.name for o in self.row_inputs + self.fixed)}
        once: list[Statement] = []
        others: list[Statement] = []
        for name, type_, expr in self.form.statements:
            if given.issuperset(T.names_in(expr)):
                given.add(name)
                once.append((name, type_, expr))
            else:
                others.append((name, type_, expr))
        return once, others

    def _functions(self) -> Functions:
        """The statements on elements; those that neither stages nor reports need name what the row reports, too."""
        made = Functions(self.statements, self.known)
        early = made.statements_of([*(s.expr for s in self.form.stages), *self.form.per_row])
        return Functions([(n, t, e if n in early else self.element_of(e)) for n, t, e in self.statements], self.known)

    def element_of(self, expr: str) -> str:
        """An element output's expression, naming what the row reports rather than computing it for every element again."""
        for o, reported in zip(self.per_row, self.form.per_row, strict=True):
            expr = expr.replace(reported, f"{{{o.name}}}")
        return expr

    def base(self, r: int) -> str:
        """Where row r of the team starts in each operand, and the row inputs' values."""
        out = f"let row{r} = start + {r}u;\n"
        out += T.decompose(f"row{r}", [f"p.size{d}" for d in range(self.form.rank)], f"k{r}_") + "\n"
        for o in self.full + self.fixed + self.groups + self.element:
            steps = "".join(f" + k{r}_{d} * p.{o.tag}_s{d}" for d in range(self.form.rank))
            out += f"let {o.tag.replace('.', '_')}_b{r} = p.{o.tag}_at{steps};\n"
        for o in self.fixed:
            out += f"let {o.tag}_{r} = {o.part(o.entry(f'{o.tag}_b{r}'), 0)};\n"
        for o in self.row_inputs:
            out += f"let {o.tag}_{r} = {o.part(o.entry(f'p.{o.tag}_at + row{r} * p.{o.tag}_step'), 0)};\n"
        for name, type_, expr in self.once:
            out += f"let row_{T.identifier(name)}_{r}: {type_} = {T.substitute(expr, self.scope(r))};\n"
        return out

    # --- values ---

    def scope(self, r: int) -> dict[str, str]:
        """What names outside of elements mean for row r of the team."""
        out = self.known | {"n": "n"} | {o.name: f"{o.tag}_{r}" for o in self.row_inputs + self.fixed + self.per_row}
        out |= {name: f"row_{T.identifier(name)}_{r}" for name, _, _ in self.once}
        for s in self.form.stages:
            parts = {"softmax": ("_max", "_sum"), "moments": ("_mean", "_var")}.get(s.kind, ("",))
            out |= {s.name + x: f"st_{s.name}{x}_{r}" for x in parts}
        return out

    def value(self, expr: str, e: Entry, r: int, lane: int) -> str:
        """The expression at element `lane` of an entry."""
        names = self.scope(r)
        for o in self.full:
            names[o.name] = o.part(f"{o.tag}{e.tag}_{r}", lane)
        names |= {o.name: f"{o.tag}{e.tag}_{r}" for o in self.groups}
        for o in self.columns:
            names[o.name] = o.part(f"{o.tag}{e.tag}", lane)
        names["column"] = f"({e.index})" if self.form.width == 1 else f"(({e.index}) * 4u + {lane}u)"
        return f"({self.made.text(expr, names)})"

    def values(self, expr: str, e: Entry, r: int) -> str:
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

    def names(self, expressions: Iterable[str]) -> set[str]:
        """Names that expressions use."""
        return self.made.names(expressions)

    # --- walks ---

    def loads(self, e: Entry, used: set[str]) -> str:
        """Statements that load an entry of each operand used, but for what registers hold."""
        out = ""
        for o in self.columns:
            if o.name in used:
                index = e.index if o.width == 4 else f"({e.index}) * p.{o.tag}_step"
                out += f"let {o.tag}{e.tag} = {o.entry(f'{o.tag}_b + {index}')}; "
        for o in self.full:
            if o.name in used and o not in self.held_inputs:
                out += "".join(f"let {o.tag}{e.tag}_{r} = {o.entry(self.at(o, e.index, r))}; " for r in self.now)
        for o in self.groups:
            if o.name in used:
                out += "".join(f"let {o.tag}{e.tag}_{r} = {self.one_of(o, e.index, r)}; " for r in self.now)
        return out

    def one_of(self, o: Operand, index: str, r: int) -> str:
        """The element of a grouped operand that serves entry `index` of row r."""
        return o.part(o.entry(f"{o.tag}_b{r} + u32(f32({index}) * bitcast<f32>(p.{o.tag}_part)) * p.{o.tag}_step"), 0)

    def at(self, o: Operand, index: str, r: int) -> str:
        """Array index of entry `index` of row r."""
        if o.name in self.form.runs:
            step = "" if o.width == 4 else f" * p.{o.tag}_step"
            return f"{o.tag}_b{r} + ({index}){step} + u32(f32({index}) * bitcast<f32>(p.{o.tag}_run)) * p.{o.tag}_gap"
        return f"{o.tag}_b{r} + {index}" if o.width == 4 else f"{o.tag}_b{r} + ({index}) * p.{o.tag}_step"

    def fill(self) -> str:
        """Load the row's entries into registers."""
        out = ""
        for o in self.held_inputs:
            for v in range(self.form.registers):
                index = self.held(v).index
                if self.form.exact:
                    out += f"let {o.tag}_{v}_0 = {o.entry(self.at(o, index, 0))};\n"
                else:
                    out += f"var {o.tag}_{v}_0: {T.element(o.dtype, o.width)};\n"
                    out += f"if ({index} < p.entries) {{ {o.tag}_{v}_0 = {o.entry(self.at(o, index, 0))}; }}\n"
        return out

    def held(self, v: int) -> Entry:
        """The entry in register v."""
        return Entry(f"first + {v * self.step}u" if v else "first", f"_{v}")

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

    def gather(self, body: Body, used: set[str]) -> str:
        """The walk of stages. Rows that share no operand are walked one after the other, several entries a turn."""
        if self.form.apart == 1 or any(o.name in used for o in self.columns):
            return self.walk(body, used)
        out, count = "", self.form.apart
        for r in range(self.form.rows):
            self.now = range(r, r + 1)
            out += "{ var i = first;\nloop {\n"
            for u in range(count):
                e = Entry(f"i + {u * self.step}u" if u else "i", "")
                out += f"  {{ {self.loads(e, used)}{body([e])} }}\n"
            out += f"  continuing {{ i = i + {count * self.step}u; break if i >= entries; }}\n}}\n}}\n"
        self.now = range(self.form.rows)
        return out

    def loop(self, body: Body, used: set[str], count: int, last: str) -> str:
        """A loop that tests at its end: the extra masked turn of a `for` costs a turn on software Vulkan."""
        entries = [Entry(f"i + {u * self.step}u" if u else "i", f"_{u}") for u in range(count)]
        loads = "\n  ".join(self.loads(e, used) for e in entries)
        end = f"continuing {{ i = i + {count * self.step}u; break if {last} >= entries; }}"
        return f"loop {{\n  {loads}\n  {body(entries)}\n  {end}\n}}\n"

    # --- stages ---

    def levels(self) -> list[list[Stage]]:
        """Stages grouped so that each group needs only earlier groups."""
        depth: dict[str, int] = {}
        out: list[list[Stage]] = []
        for s in self.form.stages:
            level = max((depth[n] for n in self.names([s.expr]) if n in depth), default=-1) + 1
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
            makers = [MAKERS[s.kind](self, s) for s in walked]
            out += "".join(m.begin() for m in makers)
            out += self.gather(lambda entries: "\n  ".join(m.turn(entries) for m in makers), used)
            out += "".join(m.end() for m in makers)
        for s in level:
            if s.kind == "pick":
                out += "".join(self.pick(s, r) for r in range(self.form.rows))
        return out

    def pick(self, s: Stage, r: int) -> str:
        """The expression at one column, its number checked against the row length."""
        name, used = f"st_{s.name}_{r}", self.names([s.expr])
        index = next(o for o in self.row_inputs if o.name == s.index)
        names = self.scope(r) | {"column": "pick"} | {o.name: f"{o.tag}_pick" for o in self.groups}
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
        out += "".join(f"let {o.tag}_pick = {self.one_of(o, where, r)}; " for o in self.groups if o.name in used)
        leader = "true" if self.form.team.form == "lane" else "first == 0u"
        found = f"let pick = u32({index.tag}_{r}); {out}{name} = {self.made.text(s.expr, names)};"
        wrong = f"if ({leader}) {{ status_report(i32({index.tag}_{r}), i32(p.n)); }}"
        ignored = f"i32({index.tag}_{r}) != {self.known['ignore_index']}" if "ignore_index" in self.known else "true"
        return f"var {name} = 0.0;\nif ({ignored}) {{\n  if (u32({index.tag}_{r}) < p.n) {{ {found} }} else {{ {wrong} }}\n}}\n"

    def bring(self, monoid: Monoid, value: str) -> str:
        """Merge a value over the team, declaring the functions this takes."""
        self.functions.append(self.form.team.functions(monoid, self.uses, monoid.name not in self.seen))
        self.seen.add(monoid.name)
        self.uses += 1
        return self.form.team.bring(monoid, self.uses - 1, value)

    def store_elements(self, entries: list[Entry]) -> str:
        """Store the element outputs of entries."""
        out = []
        for e in entries:
            for r in range(self.form.rows):
                for o, expr in zip(self.element, self.form.element, strict=True):
                    lanes = [self.value(self.element_of(expr), e, r, i) for i in range(self.form.width)]
                    out.append(o.put(self.at(o, e.index, r), o.dtype.value, lanes))
        return "\n  ".join(out)
