"""WGSL of a reduction kernel. In: a ReduceForm (all that the text depends on). Out: the source.

A kernel reads elements of the inputs or partial results, and writes results or partial results. Partial results are
u32 words: all first parts of the accumulators, then all second parts, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import template as T
from .kernel import Profile
from .monoid import ALL, ANY, PLACE, REFERRED, Monoid, Team, extremum, order_key, product, total, tree
from .operand import Operand, declare
from .statements import Functions, Statement

BLOCK = 16  # turns of a loop whose sum is added up apart


@dataclass(frozen=True, slots=True)
class ReduceForm:
    """Everything the source depends on: the pipeline key."""

    kind: str
    accumulator: str  # WGSL type
    truth: bool  # the accumulator is a bool kept as a word
    values: tuple[str, ...]  # what is reduced: an expression over an element of the inputs each
    results: tuple[tuple[int, str], ...]  # an output: the value it is made of, expression over that one's accumulator
    statements: tuple[Statement, ...]
    operands: tuple[Operand, ...]  # inputs (or the partial results), inputs with one value a result, outputs
    once: int  # how many of the second kind
    outs: int  # how many of the third
    access: tuple[str, ...]
    scalars: tuple[tuple[str, str], ...]
    team: Team
    width: int  # elements an entry: along the reduced dimensions for a team, along the kept ones for a lane
    nested: bool  # a loop over the outer reduced dimensions around one over the innermost
    unroll: int
    exact: bool  # every part is a whole number of unrolled turns
    blocked: bool  # a float sum long enough to be added up in blocks
    split: bool  # the work of a result is divided in parts
    ranks: tuple[int, int]  # collapsed kept and reduced dimensions
    partial: bool  # writes partial results
    partials: bool  # reads partial results

    def fields(self) -> list[str]:
        """Parameter names, in the order of reduce._first and reduce._second."""
        out = ["kept", "teams", "n", "number", "outer_parts", "inner_parts", "outer_chunk", "inner_chunk"]
        kept, inner = self.ranks
        if self.partials:
            out += ["total", "parts", "kept_step", "part_step", "each"]
        else:
            out += [*(f"size{d}" for d in range(kept)), *(f"inner{d}" for d in range(inner))]
            for o in self.elements:
                out += [f"{o.tag}_at", *(f"{o.tag}_s{d}" for d in range(kept)), *(f"{o.tag}_r{d}" for d in range(inner))]
        if self.partial:
            return [*out, "out_at", "total", "results", "parts", "lanes", "values"]
        rest = self.operands[len(self.elements) :]
        return [*out, *(f"{o.tag}_{what}" for o in rest for what in ("at", "step"))]

    @property
    def elements(self) -> tuple[Operand, ...]:
        """The inputs that are walked (or the partial results)."""
        return self.operands[: len(self.operands) - self.once - self.outs]


def monoid_of(kind: str, type_: str) -> Monoid:
    """The accumulator of a reduction kind."""
    if kind in ("max", "min"):
        return extremum(kind, type_)
    named = {"any": ANY, "all": ALL, "argmax": PLACE, "argmin": PLACE, "moments": REFERRED}
    return named.get(kind) or (total if kind == "sum" else product)(type_)


def source(form: ReduceForm, profile: Profile) -> str:
    """The WGSL of a reduction kernel."""
    return _Source(form, profile).text()


def ahead(turns: int, step: str) -> str:
    """The number `turns` steps after i."""
    if turns == 0:
        return "i"
    return f"i + {turns * int(step[:-1])}u" if step[:-1].isdigit() else f"i + {turns}u * {step}"


class _Source:
    def __init__(self, form: ReduceForm, profile: Profile) -> None:
        self.form, self.profile = form, profile
        self.monoid = monoid_of(form.kind, form.accumulator)
        self.column = form.team.form == "column"
        self.lane = form.team.form == "lane" or self.column  # entries lie along the kept dimensions
        self.inputs = form.elements
        self.once = form.operands[len(self.inputs) : len(self.inputs) + form.once]
        self.outs = form.operands[len(self.inputs) + form.once :]
        self.known = {n: f"s.{T.identifier(n)}" for n, _ in form.scalars}
        self.made = Functions(form.statements, self.known)
        self.leaves = {"n": "f32"} | {o.name: o.compute.value for o in form.operands if o.compute}
        self.types = dict(form.scalars) | self.leaves | self.made.types
        # accumulators an invocation carries: one an element of an entry, merged at the end unless they are separate results
        self.count = 1 if form.partials else len(form.values)
        self.accs = 4 if form.partials and form.unroll > 1 else form.width * self.count

    def text(self) -> str:
        form, team = self.form, self.form.team
        functions = "".join(team.functions(self.monoid, k, k == 0) for k in range(self.count))
        functions += team.memory(self.monoid, len(self.batches()[0])) if self.column else ""
        if form.kind in ("argmax", "argmin"):
            functions += order_key(form.kind, form.accumulator)
        main = f"@compute @workgroup_size({team.workgroup})\nfn main({team.builtins()}) {{\n{self.body()}}}\n"
        code = functions + self.made.source(self.leaves | self.exposed("x")[1]) + main
        front = T.header(self.profile, (o.dtype for o in form.operands), not self.lane and team.subgroups)
        front += declare(form.operands, form.access) + T.uniform(len(form.access), form.fields()) + T.scalar_block(form.scalars)
        return front + T.prelude(code) + code

    def body(self) -> str:
        number, first = self.form.team.place()
        place = f"(group.y * {T.FOLD}u + group.x) * {self.form.team.rows}u + {number}"
        if self.column:  # all stay until the last barrier
            out = f"let place = {place};\nlet id = min(place, p.teams - 1u);\nlet first = {first};\n"
        else:
            out = f"let id = {place};\nif (id >= p.teams) {{ return; }}\nlet first = {first};\n"
        out += self.split() + self.bases()
        out += "".join(self.begin(a) for a in range(self.accs)) + self.walk() + self.finish()
        return out

    # --- where ---

    def split(self) -> str:
        """`result`, the number of the (group of) results, and `part`."""
        if self.form.partials or not self.form.split:
            return "let result = id;\nlet part = 0u;\n"
        if self.lane:
            return "let part = id / p.kept;\nlet result = id - part * p.kept;\n"
        return "let parts = p.outer_parts * p.inner_parts;\nlet result = id / parts;\nlet part = id - result * parts;\n"

    def bases(self) -> str:
        """Where the reduced elements of this result start in each input."""
        if self.form.partials:
            return ""
        rank = self.form.ranks[0]
        out = T.decompose("result", [f"p.size{d}" for d in range(rank)], "k") + "\n"
        for o in self.inputs:
            steps = "".join(f" + k{d} * p.{o.tag}_s{d}" for d in range(rank))
            out += f"let {o.tag}_b = p.{o.tag}_at{steps};\n"
        return out

    def at(self, o: Operand, index: str, outer: str) -> str:
        """Array index of a reduced entry; for several reduced dimensions `index` is split unless loops are nested."""
        rank = self.form.ranks[1]
        if rank == 0:
            return f"{o.tag}_b"
        if rank == 1 or self.form.nested:
            near = o.width == 4 and not self.lane  # entries lie side by side
            return f"{o.tag}_b{outer} + {index}" if near else f"{o.tag}_b{outer} + ({index}) * p.{o.tag}_r{rank - 1}"
        return f"{o.tag}_b + " + " + ".join(f"{index}{d} * p.{o.tag}_r{d}" for d in range(rank))

    # --- the walk ---

    def walk(self) -> str:
        """Loops over the part's reduced entries: `unroll` at a time, then one at a time."""
        if self.form.partials:
            start, step = ("0u", "1u") if self.lane else ("first", f"{self.form.team.width}u")
            return self.loops(start, "p.parts", step)
        if self.column:
            width = f"{self.form.team.width}u"
            return self.loops(f"part * {width} + first", "p.n", f"(p.inner_parts * {width})" if self.form.split else width)
        if self.lane:
            return self.loops("part", "p.n", "p.inner_parts" if self.form.split else "1u")
        step = f"{self.form.team.width}u"
        entries = "p.n" if self.form.width == 1 else "(p.n / 4u)"
        if not self.form.nested:
            lo, hi = "part * p.inner_chunk", f"min({entries}, (part + 1u) * p.inner_chunk)"
            return f"let lo = {lo};\nlet hi = {hi};\n" + self.loops("lo + first", "hi", step)
        rank = self.form.ranks[1]
        inner = f"p.inner{rank - 1}" if rank else "1u"
        out = "let part_o = part / p.inner_parts;\nlet part_i = part - part_o * p.inner_parts;\n"
        out += f"let lo = part_i * p.inner_chunk;\nlet hi = min({inner}, lo + p.inner_chunk);\n"
        if rank < 2:
            return out + "let from_o = 0u;\n" + self.loops("lo + first", "hi", step)
        out += f"let outer = {entries} / {inner};\nlet from_o = part_o * p.outer_chunk;\nlet to_o = min(outer, from_o + p.outer_chunk);\n"
        out += f"for (var o = from_o; o < to_o; o = o + 1u) {{\n{T.decompose('o', [f'p.inner{d}' for d in range(rank - 1)], 'o')}\n"
        for x in self.inputs:
            out += f"let {x.tag}_o = " + " + ".join(f"o{d} * p.{x.tag}_r{d}" for d in range(rank - 1)) + ";\n"
        return out + self.loops("lo + first", "hi", step) + "}\n"

    def loops(self, start: str, end: str, step: str) -> str:
        """From start to end by step; loops test at their end (see docs/kernels.md)."""
        out = f"{{ var i = {start}; let end = {end};\n"
        unroll = self.form.unroll
        if self.form.exact:
            return out + self.blocks(unroll, step) + "}\n"
        if unroll > 1:
            out += f"if ({ahead(unroll - 1, step)} < end) {{ {self.blocks(unroll, step)} }}\n"
        return out + f"if (i < end) {{ {self.blocks(1, step)} }}\n}}\n"

    def blocks(self, count: int, step: str) -> str:
        """The loop itself; long float sums in blocks, whose sums are added up apart, so that rounding stays small."""
        if not self.form.blocked:
            return self.loop(count, step, "end")
        inner = f"let stop = min(end, {ahead(BLOCK * count, step)});\n{self.loop(count, step, 'stop')}"
        flush = "".join(f"high{a} = high{a} + acc{a}; acc{a} = 0.0; " for a in range(self.accs))
        return f"loop {{\n{inner}{flush}\n  continuing {{ break if {ahead(count - 1, step)} >= end; }}\n}}\n"

    def loop(self, count: int, step: str, end: str) -> str:
        body = self.turn([ahead(u, step) for u in range(count)])
        return f"loop {{\n{body}\n  continuing {{ i = {ahead(count, step)}; break if {ahead(count - 1, step)} >= {end}; }}\n}}\n"

    def load(self, index: str, u: int) -> str:
        """Statements that load entry `index` of every input as `{tag}_u`."""
        rank, nested = self.form.ranks[1], self.form.nested
        out = ""
        if rank > 1 and not nested:
            sizes = [f"p.inner{d}" for d in range(rank)]
            out += f"let j{u} = {index}; {T.decompose(f'j{u}', sizes, f'j{u}_')} "
        outer = " + {}_o" if rank > 1 and nested else ""
        for o in self.inputs:
            out += f"let {o.tag}_{u} = {o.entry(self.at(o, f'j{u}_' if rank > 1 and not nested else index, outer.replace('{}', o.tag)))}; "
        return out

    def value(self, u: int, lane: int, k: int = 0) -> str:
        """Value k at element `lane` of loaded entry u, in the accumulator's type (bool for any and all)."""
        names = self.known | {o.name: o.part(f"{o.tag}_{u}", lane) for o in self.inputs} | {"n": "f32(p.n)"}
        code = f"({self.made.text(self.form.values[k], names)})"
        found = T.type_of(self.form.values[k], self.types)
        if self.form.kind in ("any", "all"):
            return code if found == "bool" else f"truth({code})" if found == "f32" else f"({code} != {found}(0))"
        if found == self.form.accumulator:
            return code
        return f"select(0u, 1u, {code})" if found == "bool" and self.form.accumulator == "u32" else f"{self.form.accumulator}({code})"

    def number(self, index: str, lane: int) -> str:
        """The row-major number of an element within the reduced dimensions."""
        rank = self.form.ranks[1]
        entry = f"(o * p.inner{rank - 1} + {index})" if self.form.nested and rank > 1 else f"({index})"
        return f"(p.number + {entry} * 4u + {lane}u)" if self.form.width == 4 and not self.lane else f"(p.number + {entry})"

    # --- accumulating ---

    def begin(self, a: int) -> str:
        kind, type_ = self.form.kind, self.form.accumulator
        high = f"var high{a} = 0.0;\n" if self.form.blocked else ""
        if self.form.partials:
            return f"{high}var acc{a} = {self.monoid.identity};\n"
        if kind == "moments":
            return self.begin_moments(a)
        out = f"{high}var acc{a} = {self.monoid.identity};\n"
        return out + (f"var bits{a} = 0u;\n" if kind in ("max", "min") and type_ == "f32" else "")

    def begin_moments(self, a: int) -> str:
        """Each invocation shifts by the result's first element, loaded once; that is also the reference of the merge."""
        lane = a if self.lane else 0
        out = ""
        if a == 0:
            for o in self.inputs:
                out += f"var {o.tag}_9: {T.element(o.dtype, o.width)}; if (p.n > 0u) {{ {o.tag}_9 = {o.entry(f'{o.tag}_b')}; }}\n"
        return out + f"let near{a} = {self.value(9, lane)}; var sum{a} = 0.0; var square{a} = 0.0; var count{a} = 0.0;\n"

    def turn(self, indices: list[str]) -> str:
        """The statements that take in loaded entries."""
        if self.form.partials:
            return "  " + self.take(indices)
        loads = "  " + "\n  ".join(self.load(i, u) for u, i in enumerate(indices))
        adds = "\n  ".join(self.add(a, indices) for a in range(self.accs))
        return f"{loads}\n  {adds}"

    def take(self, indices: list[str]) -> str:
        """Merge partial results."""
        (o,) = self.inputs
        out = []
        for u, index in enumerate(indices):
            words = [
                f"{o.entry(f'{c}u * p.total + result * p.kept_step + ({index}) * p.part_step')}" for c in range(len(self.monoid.parts))
            ]
            parts = [w if t == "u32" else f"bitcast<{t}>({w})" for w, (_, t) in zip(words, self.monoid.parts, strict=True)]
            out.append(f"acc{u} = merge_{self.monoid.name}(acc{u}, {self.monoid.make(*parts)});")
        return "\n  ".join(out)

    def add(self, a: int, indices: list[str]) -> str:
        kind = self.form.kind
        k, lane = divmod(a, self.form.width)
        values = [self.value(u, lane, k) for u in range(len(indices))]
        if kind == "sum":
            return f"acc{a} = acc{a} + {tree(values)};"
        if kind == "prod":
            return f"acc{a} = acc{a} * {tree(values, '*')};"
        if kind in ("any", "all"):
            sign = "|" if kind == "any" else "&"
            return f"acc{a} = acc{a} {sign} select(0u, 1u, {f' {sign}{sign} '.join(values)});"
        if kind in ("max", "min"):
            return " ".join(self.extreme(a, v) for v in values)
        if kind == "moments":
            lets = "".join(f"let d{u} = {v} - near{a}; " for u, v in enumerate(values))
            sums = tree([f"d{u}" for u in range(len(values))])
            squares = tree([f"d{u} * d{u}" for u in range(len(values))])
            return f"{{ {lets}sum{a} = sum{a} + {sums}; square{a} = square{a} + {squares}; count{a} = count{a} + {len(values)}.0; }}"
        out = ""
        for v, index in zip(values, indices, strict=True):
            out += f"{{ let k = order_key({v}); if (k > acc{a}.k) {{ acc{a} = Place(k, {self.number(index, a)}); }} }} "
        return out

    def extreme(self, a: int, value: str) -> str:
        """max and min drop NaN, so the largest magnitude's bits are kept beside them."""
        kind = self.form.kind
        if self.form.accumulator != "f32":
            return f"acc{a} = {kind}(acc{a}, {value});"
        return f"{{ let x = {value}; acc{a} = {kind}(acc{a}, x); bits{a} = max(bits{a}, bitcast<u32>(x) & 0x7fffffffu); }}"

    # --- results ---

    def settled(self, a: int) -> str:
        """Accumulator a as a value of the monoid."""
        if self.form.blocked:
            return f"high{a}"
        if self.form.partials:
            return f"acc{a}"
        if self.form.kind == "moments":
            mean = f"sum{a} / max(count{a}, 1.0)"
            return f"Referred(count{a}, {mean}, square{a} - sum{a} * ({mean}), near{a})"
        if self.form.kind in ("max", "min") and self.form.accumulator == "f32":
            return f"select(acc{a}, bitcast<f32>(bits{a}), bits{a} > 0x7f800000u)"
        return f"acc{a}"

    def finish(self) -> str:
        """Merge what belongs together and store."""
        values = [self.settled(a) for a in range(self.accs)]
        width = self.form.width
        if self.column:
            out = "".join(f"var all{a} = {v};\n" for a, v in enumerate(values))
            out += "".join(self.form.team.merged(self.monoid, [f"all{a}" for a in batch]) for batch in self.batches())
            stores = [self.put(f"all{a}", a % width, a // width) for a in range(self.accs)]
            return f"{out}if (first == 0u && place < p.teams) {{\n{''.join(f'{{ {x} }}' for x in stores)}\n}}\n"
        if self.lane and not self.form.partials:
            stores = [f"let all{a} = {v};\n{self.put(f'all{a}', a % width, a // width)}" for a, v in enumerate(values)]
            return "\n".join(stores) + "\n"
        out, puts = "".join(f"let own{a} = {v};\n" for a, v in enumerate(values)), ""
        each = self.accs // self.count
        for k in range(self.count):
            merged = [f"own{a}" for a in range(k * each, (k + 1) * each)]
            while len(merged) > 1:
                merged = [f"merge_{self.monoid.name}({x}, {y})" for x, y in zip(merged[::2], merged[1::2], strict=True)]
            out += f"let all{k} = {self.form.team.bring(self.monoid, k, merged[0])};\n"
            puts += self.put(f"all{k}", 0, k)
        return out + (puts if self.lane else f"if (first == 0u) {{\n{puts} }}\n")

    def batches(self) -> list[range]:
        """Accumulators that a column merges at a time: as many as workgroup memory holds."""
        most = max(1, self.profile.max_workgroup_memory // (4 * self.form.team.workgroup * len(self.monoid.parts)))
        return [range(i, min(self.accs, i + most)) for i in range(0, self.accs, most)]

    def put(self, value: str, a: int, k: int) -> str:
        """Store a result of value k (lane a of its entry), or a partial result, from a value of the monoid."""
        if self.form.partial:
            out = []
            for c, (part, type_) in enumerate(self.monoid.parts):
                field = self.monoid.field(value, part)
                word = field if type_ == "u32" else f"bitcast<u32>({field})"
                at = f"{c}u * p.total + p.out_at + result * p.results + part * p.parts + {a}u * p.lanes"
                out.append(f"{self.outs[0].entry(at + (f' + {k}u * p.values' if k else ''))} = {word};")
            return " ".join(out)
        many = len(self.form.values)
        if not self.form.partials or many == 1:
            width = self.form.width if self.lane and not self.form.partials else 1
            return self.store(value, f"result * {width}u + {a}u", k)
        cases = "".join(f"case {i}u: {{ {self.store(value, 'place', i)} }}\n" for i in range(many))
        return f"let which = result / p.each;\nlet place = result - which * p.each;\nswitch which {{\n{cases}default: {{ }}\n}}\n"

    def store(self, value: str, place: str, k: int) -> str:
        """Store the outputs made of value k, from its accumulator."""
        mine = [(o, expr) for o, (of, expr) in zip(self.outs, self.form.results, strict=True) if of == k]
        exposed, types = self.exposed(value)
        used = self.made.names(expr for _, expr in mine)
        names = self.known | exposed
        for o in self.once:
            if o.name in used:
                names[o.name] = o.part(o.entry(f"p.{o.tag}_at + ({place}) * p.{o.tag}_step"), 0)
        made = [o.part_of(T.type_of(expr, self.types | types), f"({self.made.text(expr, names)})") for o, expr in mine]
        if len(mine) == 1:
            return f"{mine[0][0].entry(f'p.{mine[0][0].tag}_at + {place}')} = {made[0]};"
        lets = "".join(
            f"let made{i} = {code}; " for i, code in enumerate(made)
        )  # all before any store: one may overwrite what another reads
        return "{ " + lets + " ".join(f"{o.entry(f'p.{o.tag}_at + {place}')} = made{i};" for i, (o, _) in enumerate(mine)) + " }"

    def exposed(self, value: str) -> tuple[dict[str, str], dict[str, str]]:
        """What results may name, and the types."""
        kind, n = self.form.kind, {"n": "f32(p.n)"}
        if kind == "moments":
            names = {"mean": f"({value}.near + {value}.mean)", "m2": f"not_negative({value}.m2)"}
            return names | n, {"mean": "f32", "m2": "f32"}
        if kind in ("argmax", "argmin"):  # no key beats the lowest one: then all are equal and the first counts
            return {"acc": f"select(i32({value}.i), 0i, {value}.i == 0xffffffffu)"} | n, {"acc": "i32"}
        if self.form.truth:
            return {"acc": f"({value} != 0u)"} | n, {"acc": "bool"}
        return {"acc": value} | n, {"acc": self.form.accumulator}
