"""Matrix products for GPUs: tiles of a and b go through workgroup memory, every invocation makes a block of results in registers.

What the measurements said (docs/kernels.md): k unrolled by hand inside a tile, the next tile fetched into registers
before the products, workgroup arrays nested so that every index in the unrolled text is a constant or a loop-invariant let.
The first tile takes the rest of K (filled up with zeros), so the loop needs no checks; a matrix at least as large as the
tile shifts its last tiles inwards instead of checking edges (neighbours then write equal values twice).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from ..dtype import DType
from .choices import Tile, choose
from .kernel import TEMP, Kernel, Launch, Profile
from .matmul_problem import Problem
from .matmul_sum import add_slices, partial, slice_elements
from .matmul_wgsl import XYZW, Form, Types, finish, finish4, load, mac, matrix_place, module, zero

WARP = 32  # invocations that share a fragment pattern; nothing depends on the real subgroup size


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand's way from storage to workgroup memory, loaded by `threads` invocations numbered `who`."""

    name: str  # 'a' or 'b'
    form: str
    turn: str  # 'direct' for operands that are contiguous along their free dimension
    block: int  # tile size along the free dimension
    origin: str
    extent: str
    dtype: DType
    value: str
    tile: Tile
    full: bool
    threads: int
    who: str
    registers: tuple[str, ...] = field(default=())

    @property
    def quads(self) -> int:
        """vec4s of K in a tile row."""
        return self.tile.span // 4

    @property
    def units(self) -> int:
        return self.block * self.tile.span // (16 if self.turn == "quad" else 4)

    @property
    def per(self) -> int:
        """Units an invocation loads."""
        return -(-self.units // self.threads)

    @property
    def loads(self) -> int:
        """vec4 registers needed."""
        return self.per * (4 if self.turn == "quad" else 1)

    @property
    def along_k(self) -> bool:
        return self.turn != "direct"

    @property
    def spread(self) -> int:
        """Factor of the xor swizzle, so that few K quads still reach 8 banks groups."""
        return max(1, 8 // self.quads)

    # workgroup memory

    def words(self) -> int:
        """4-byte words of workgroup memory."""
        if self.turn == "row":
            return self.block * (self.quads + 1) * 4
        return self.tile.span * (self.block + (4 if self.turn == "s4" else 0))

    def declare(self) -> str:
        v, t = self.value, self.tile
        if self.turn == "row":
            return f"var<workgroup> t{self.name}: array<array<vec4<{v}>, {self.quads + 1}>, {self.block}>;"
        cell, width = (f"array<{v}, 4>", self.block // 4 + 1) if self.turn == "s4" else (f"vec4<{v}>", self.block // 4)
        return f"var<workgroup> t{self.name}: array<array<array<{cell}, {width}>, {t.depth}>, {t.groups}>;"

    def cell(self, k: str, column: str) -> str:
        """The quad of row `k` (inside the whole tile) and quad column."""
        d = self.tile.depth
        if self.tile.groups > 1:
            return f"t{self.name}[({k}) / {d}u][({k}) % {d}u][{column}]"
        return f"t{self.name}[0][{k}][{column}]"

    # storage

    def unit(self, e: int) -> str:
        return f"({self.who} + {e * self.threads}u)" if e else self.who

    def setup(self) -> list[str]:
        """Lets: where each unit lies in the tile ({n}r row or k, {n}c quad) and in storage ({n}p, first tile at k_from)."""
        n, lines = self.name, []
        across = self.quads if self.along_k else self.block // 4
        for e in range(self.per):
            row = f"{self.unit(e)} / {across}u"
            if e and self.threads % across == 0:
                lines.append(f"let {n}r{e} = {n}r0 + {e * self.threads // across}u; let {n}c{e} = {n}c0;")
            else:
                lines.append(f"let {n}r{e} = {row}; let {n}c{e} = {self.unit(e)} % {across}u;")
            if self.turn == "s4":
                lines.append(f"let {n}q{e} = {n}r{e} / 4u; let {n}z{e} = {n}r{e} % 4u;")
            if self.turn == "quad":
                lines.append(f"let {n}x{e} = {n}r{e} ^ (({n}c{e} * {self.spread}u) & 7u);")
            lines += self._places(e)
        return lines

    def _places(self, e: int) -> Iterator[str]:
        n, p = self.name, f"p.{self.name}"
        if not self.along_k:
            start = f"{n}_at + (k_from + {n}r{e}) * {p}_k"
            if self.form == "f4":
                quad = f"{self.origin} / 4u + {n}c{e}"
                yield f"let {n}p{e} = {start} + {quad if self.full else f'min({quad}, {self.extent} / 4u - 1u)'};"
                return
            yield f"let {n}p{e} = {start};"
            for q in range(4):
                yield f"let {n}f{e}_{q} = {self._inside(f'{self.origin} + {n}c{e} * 4u + {q}u')} * {p}_free;"
            return
        along = f"k_from / 4u + {n}c{e}" if self.form == "k4" else f"(k_from + {n}c{e} * 4u) * {p}_k"
        if self.turn != "quad":
            yield f"let {n}p{e} = {n}_at + {self._inside(f'{self.origin} + {n}r{e}')} * {p}_free + {along};"
            return
        for i in range(4):
            if i and self.full:
                yield f"let {n}p{e}_{i} = {n}p{e}_0 + {i}u * {p}_free;"
            else:
                yield f"let {n}p{e}_{i} = {n}_at + {self._inside(f'{self.origin} + {n}r{e} * 4u + {i}u')} * {p}_free + {along};"

    def _inside(self, index: str) -> str:
        return f"({index})" if self.full else f"min({index}, {self.extent} - 1u)"

    def _element(self, place: str, run: str, e: int, q: int) -> str:
        """Element q of a unit's vec4, for forms without vec4 loads."""
        step = f"{self.name}f{e}_{q}" if self.form == "f1" else f"{q}u * p.{self.name}_k"
        text = f"{self.name}{self._dot}[{place}{run} + {step}]" if q or self.form == "f1" else f"{self.name}{self._dot}[{place}{run}]"
        return load(text, self.dtype, self.value)

    @property
    def _dot(self) -> str:
        return ".d" if self.tile.wrap else ""

    def _each(self) -> Iterator[tuple[int, str, str]]:
        """(unit, its place, the register it goes to)."""
        for e in range(self.per):
            if self.turn == "quad":
                for i in range(4):
                    yield e, f"{self.name}p{e}_{i}", self.registers[4 * e + i]
            else:
                yield e, f"{self.name}p{e}", self.registers[e]

    def _limited(self, e: int, text: str) -> str:
        """Units beyond the tile belong to nobody."""
        return f"if ({self.unit(e)} < {self.units}u) {{ {text} }}" if (e + 1) * self.threads > self.units else text

    def fetch(self, run: str = "") -> list[str]:
        """Loads of one whole tile; `run` is what was walked along k so far."""
        lines = []
        for e, place, register in self._each():
            if self.form.endswith("4"):
                value = load(f"{self.name}{self._dot}[{place}{run}]", self.dtype, self.value, True)
            else:
                value = f"vec4<{self.value}>({', '.join(self._element(place, run, e, q) for q in range(4))})"
            lines.append(self._limited(e, f"{register} = {value};"))
        return lines

    def fetch_rest(self) -> list[str]:
        """Loads of the first tile, of which only `rest` steps of K exist."""
        n, lines = self.name, []
        for e, place, register in self._each():
            text = f"{register} = {zero(self.value, True)}; "
            if self.form == "k1":
                parts = (f"if ({n}c{e} * 4u + {q}u < rest) {{ {register}.{XYZW[q]} = {self._element(place, '', e, q)}; }}" for q in range(4))
                text += " ".join(parts)
            else:
                if self.form == "f1":
                    value = f"vec4<{self.value}>({', '.join(self._element(place, '', e, q) for q in range(4))})"
                else:
                    value = load(f"{n}{self._dot}[{place}]", self.dtype, self.value, True)
                k = f"{n}c{e} * 4u" if self.along_k else f"{n}r{e}"
                text += f"if ({k} < rest) {{ {register} = {value}; }}"
            lines.append(self._limited(e, text))
        return lines

    def walked(self, steps: str) -> str:
        """How far `steps` of K (a text without operators) take a place."""
        return f"{steps} / 4u" if self.form == "k4" else f"{steps} * p.{self.name}_k"

    def put(self) -> list[str]:
        """Stores of the registers into workgroup memory."""
        n, lines = self.name, []
        for e in range(self.per):
            v = self.registers[4 * e : 4 * e + 4] if self.turn == "quad" else self.registers[e : e + 1]
            if self.turn == "direct":
                text = f"{self.cell(f'{n}r{e}', f'{n}c{e}')} = {v[0]};"
            elif self.turn == "row":
                text = f"t{n}[{n}r{e}][{n}c{e}] = {v[0]};"
            elif self.turn == "s4":
                cells = (self.cell(f"{n}c{e} * 4u + {i}u", f"{n}q{e}") + f"[{n}z{e}] = {v[0]}.{XYZW[i]};" for i in range(4))
                text = " ".join(cells)
            else:
                turned = (f"vec4<{self.value}>({', '.join(f'{x}.{XYZW[i]}' for x in v)})" for i in range(4))
                text = " ".join(f"{self.cell(f'{n}c{e} * 4u + {i}u', f'{n}x{e}')} = {t};" for i, t in enumerate(turned))
            lines.append(self._limited(e, text))
        return lines

    # fragments

    def fragment(self, i: int, k: int) -> str:
        """Quad i of an invocation's block at row k of its group's slice."""
        g = "team" if self.tile.groups > 1 else "0"
        at = f"{self.name}i{i}"
        if self.turn == "quad":
            shift = (k // 4 * self.spread) & 7
            base = f"({at} ^ turn_{self.name})" if self.tile.groups > 1 else at
            at = f"({base} ^ {shift}u)" if shift else base
        text = f"t{self.name}[{g}][{k}][{at}]"
        if self.turn == "s4":
            return f"vec4<{self.value}>({', '.join(f'{text}[{u}]' for u in range(4))})"
        return text


def _turn(form: str, turn: str) -> str:
    return turn if form.startswith("k") else "direct"


@dataclass(frozen=True, slots=True)
class Gemm:
    """Text of the tiled kernel. Grid: (ceil(N / bn), ceil(M / bm), matrices * split)."""

    tile: Tile
    form: Form
    full: bool

    def operands(self) -> tuple[Operand, Operand, bool]:
        """Both operands, and whether each half of the invocations loads one of them (small tiles turned 4x4)."""
        t, f = self.tile, self.form
        pairs = (("a", f.a, _turn(f.a, t.turn_a), t.bm, "row0", "p.m", f.types.a), ("b", f.b, _turn(f.b, t.turn_b), t.bn, "col0", "p.n", f.types.b))
        made = [Operand(*x, f.types.value, t, self.full, t.size, "tid") for x in pairs]
        half = t.size // 2
        halves = any(o.turn == "quad" and o.units < t.size for o in made) and all(o.units % half == 0 for o in made)
        if halves:
            made = [Operand(*x, f.types.value, t, self.full, half, "share") for x in pairs]
        names = [tuple(f"v{'' if halves else o.name}{i}" for i in range(o.loads)) for o in made]
        a, b = (
            Operand(o.name, o.form, o.turn, o.block, o.origin, o.extent, o.dtype, o.value, o.tile, o.full, o.threads, o.who, r)
            for o, r in zip(made, names, strict=True)
        )
        return a, b, halves

    def memory(self) -> int:
        """Bytes of workgroup memory, with the least that adding up groups needs."""
        a, b, _ = self.operands()
        least = self.tile.team * 16 * (self.tile.groups // 2)
        return (a.words() + b.words()) * 4 + least

    def source(self, profile: Profile) -> str:
        a, b, halves = self.operands()
        t = self.tile
        room = profile.max_workgroup_memory - (a.words() + b.words()) * 4
        globals_ = [a.declare(), b.declare(), *self._exchange(room)[0]]
        args = "@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) tid: u32"
        main = [*globals_, f"@compute @workgroup_size({t.size}) fn main({args}) {{", *self._place(), *self._thread(a, b)]
        if halves:
            half = t.size // 2
            main.append(f"let first_half = tid < {half}u; let share = select(tid - {half}u, tid, first_half);")
        setup = [*a.setup(), *b.setup()]
        if t.walk == "ptr":
            setup = [x.replace("let ap", "var ap").replace("let bp", "var bp") for x in setup]
        main += setup
        main += [f"var {v}: vec4<{f}>;" for f in (self.form.types.value,) for v in dict.fromkeys(a.registers + b.registers)]
        main += [f"var {c} = {zero(self.form.types.value, True)};" for c in self._sums()]
        main += [*self._loop(a, b, halves), *self._exchange(room)[1], *self._store(), "}"]
        return module(profile, self.form, main, wrap=t.wrap)

    def _place(self) -> Iterator[str]:
        """Which tile, matrix and slice of K this workgroup has."""
        t = self.tile
        if t.swizzle:
            yield f"let wide = (p.n + {t.bn - 1}u) / {t.bn}u; let high = (p.m + {t.bm - 1}u) / {t.bm}u;"
            yield f"let linear = w.y * wide + w.x; let band = linear / (wide * {t.swizzle}u); let inside = linear % (wide * {t.swizzle}u);"
            yield f"let rows = min({t.swizzle}u, high - band * {t.swizzle}u); let by = band * {t.swizzle}u + inside % rows; let bx = inside / rows;"
        else:
            yield "let by = w.y; let bx = w.x;"
        if self.full:
            yield f"let row0 = min(by * {t.bm}u, p.m - {t.bm}u); let col0 = min(bx * {t.bn}u, p.n - {t.bn}u);"
        else:
            yield f"let row0 = by * {t.bm}u; let col0 = bx * {t.bn}u;"
        yield "let slice = w.z % p.split; let mat = p.first + w.z / p.split; let mat0 = mat / p.inner; let mat1 = mat % p.inner;"
        yield "let a_at = p.a_off + mat0 * p.a_b0 + mat1 * p.a_b1; let b_at = p.b_off + mat0 * p.b_b0 + mat1 * p.b_b1;"
        yield "let k_from = slice * p.depth; let k_here = min(p.depth, p.k - k_from);"
        yield f"let turns = (k_here + {t.span - 1}u) / {t.span}u; let rest = k_here - (turns - 1u) * {t.span}u;"

    def _thread(self, a: Operand, b: Operand) -> Iterator[str]:
        """Where an invocation's block lies in the tile: ai, bi quads of rows and columns (ar rows when a is kept by rows)."""
        t = self.tile
        lanes_n = WARP // t.lanes
        teams_n = t.bn // (lanes_n * t.tn)
        if t.groups > 1:
            yield f"let team = tid / {t.team}u; let local = tid % {t.team}u;"
            for o in (a, b):
                if o.turn == "quad":
                    yield f"let turn_{o.name} = (team * {t.depth // 4 * o.spread}u) & 7u;"
        else:
            yield "let local = tid;"
        yield f"let lane = local % {WARP}u; let warp = local / {WARP}u; let wm = warp / {teams_n}u; let wn = warp % {teams_n}u;"
        yield f"let lm = lane / {lanes_n}u; let ln = lane % {lanes_n}u;"
        if a.turn == "row":
            for i in range(t.tm):
                yield f"let ai{i} = wm * {t.lanes * t.tm}u + lm + {i * t.lanes}u;"
        else:
            for i in range(t.tm // 4):
                yield f"let ai{i} = wm * {t.lanes * t.tm // 4}u + lm + {i * t.lanes}u;"
        for j in range(t.tn // 4):
            yield f"let bi{j} = wn * {lanes_n * t.tn // 4}u + ln + {j * lanes_n}u;"

    def _sums(self) -> list[str]:
        return [f"c{i}_{j}" for i in range(self.tile.tm) for j in range(self.tile.tn // 4)]

    def _loop(self, a: Operand, b: Operand, halves: bool) -> list[str]:
        def both(left: list[str], right: list[str]) -> list[str]:
            return ["if (first_half) {", *left, "} else {", *right, "}"] if halves else [*left, *right]

        t, barrier = self.tile, "workgroupBarrier();"
        ab = (a, b)
        if t.walk == "run":
            fetch = both(a.fetch(" + a_run"), b.fetch(" + b_run"))
            start = [f"var a_run = {a.walked('rest')}; var b_run = {b.walked('rest')};"]
            step = ["".join(f"{o.name}_run += {o.walked(f'{t.span}u')}; " for o in ab)]
        elif t.walk == "mul":
            now = "t" if not t.peel else "(t - 1u)"
            fetch = both(a.fetch(f" + (a_rest + {now} * {a.walked(f'{t.span}u')})"), b.fetch(f" + (b_rest + {now} * {b.walked(f'{t.span}u')})"))
            start = [f"let a_rest = {a.walked('rest')}; let b_rest = {b.walked('rest')};"]
            step = []
        else:
            fetch = both(a.fetch(), b.fetch())
            start = ["".join(f"{pl} += {o.walked('rest')}; " for o in ab for _, pl, _ in o._each())]
            step = ["".join(f"{pl} += {o.walked(f'{t.span}u')}; " for o in ab for _, pl, _ in o._each())]
        put = both(a.put(), b.put())
        lines = both(a.fetch_rest(), b.fetch_rest()) + start
        if t.peel:
            lines += [*put, barrier, "for (var t = 1u; t < turns; t++) {", *fetch, *step, *self._products(a, b, 0), barrier, *put, barrier, "}"]
            return lines + self._products(a, b, 1)
        top = "for (var t = 0u; t < turns; t++) {"
        if t.walk == "mul":
            lines += [top, *put, barrier, "if (t + 1u < turns) {", *fetch, *step, "}"]
        else:
            lines += [top, *put, barrier, "if (t + 1u < turns) {", *fetch, *step, "}"]
        return [*lines, *self._products(a, b, 0), barrier, "}"]

    def _products(self, a: Operand, b: Operand, copy: int) -> list[str]:
        """All products of one tile. Names are unique: a block scope costs naga a basic block each."""
        t, lines = self.tile, []
        for k in range(t.depth):
            x = f"_{copy}_{k}"
            if a.turn == "row":
                y = f"_{copy}_{k // 4}"
                if k % 4 == 0:
                    first = f"team * {t.depth // 4}u + {k // 4}u" if t.groups > 1 else f"{k // 4}"
                    lines += [f"let r{i}{y} = ta[ai{i}][{first}];" for i in range(t.tm)]
                rows = [f"r{i}{y}.{XYZW[k % 4]}" for i in range(t.tm)]
            else:
                lines += [f"let a{i}{x} = {a.fragment(i, k)};" for i in range(t.tm // 4)]
                rows = [f"a{i // 4}{x}.{XYZW[i % 4]}" for i in range(t.tm)]
            lines += [f"let b{j}{x} = {b.fragment(j, k)};" for j in range(t.tn // 4)]
            for i, row in enumerate(rows):
                for j in range(t.tn // 4):
                    lines.append(f"c{i}_{j} = {mac(self.form.types.value, f'vec4<{self.form.types.value}>({row})', f'b{j}{x}', f'c{i}_{j}')};")
        return lines

    def _exchange(self, room: int) -> tuple[list[str], list[str]]:
        """Adding up the groups' sums through workgroup memory, by halving."""
        t, sums = self.tile, self._sums()
        if t.groups == 1:
            return [], []
        tables = t.groups // 2
        chunk = max(1, min(len(sums), room // (t.team * 16 * tables)))
        while len(sums) % chunk:
            chunk -= 1
        lines, half = [], tables
        while half:
            for at in range(0, len(sums), chunk):
                part = list(enumerate(sums[at : at + chunk]))
                lines.append("workgroupBarrier();")
                lines.append(f"if (team >= {half}u && team < {2 * half}u) {{ " + " ".join(f"sums[team - {half}u][{x}][local] = {c};" for x, c in part) + " }")
                lines.append("workgroupBarrier();")
                lines.append(f"if (team < {half}u) {{ " + " ".join(f"{c} += sums[team][{x}][local];" for x, c in part) + " }")
            half //= 2
        v = self.form.types.value
        return [f"var<workgroup> sums: array<array<array<vec4<{v}>, {t.team}>, {chunk}>, {tables}>;"], lines

    def _store(self) -> list[str]:
        t, f = self.tile, self.form
        lines = ["let o_at = p.o_off + mat0 * p.o_b0 + mat1 * p.o_b1 + slice * p.o_slice;"]
        row_kept = _turn(f.a, t.turn_a) == "row"
        for i in range(t.tm):
            row = f"row0 + ai{i}" if row_kept else f"row0 + ai{i // 4} * 4u + {i % 4}u"
            text = "".join(self._store_quad(f"({row})", f"(col0 + bi{j} * 4u)", f"c{i}_{j}") for j in range(t.tn // 4))
            lines.append(text if self.full else f"if ({row} < p.m) {{ {text} }}")
        return ["if (team == 0u) {", *lines, "}"] if t.groups > 1 else lines

    def _store_quad(self, row: str, col: str, acc: str) -> str:
        """Four neighbours of a row."""
        o = "o.d" if self.tile.wrap else "o"
        if self.form.out == "v4":
            text = f"{o}[o_at + {row} * p.o_row + {col} / 4u] = {finish4(self.form, [acc], row, col)}; "
            return text if self.full else f"if ({col} < p.n) {{ {text}}} "
        text = ""
        for q in range(4):
            store = f"{o}[o_at + {row} * p.o_row + ({col} + {q}u) * p.o_col] = {finish(self.form, f'{acc}.{XYZW[q]}', row, f'({col} + {q}u)')};"
            text += store + " " if self.full else f"if ({col} + {q}u < p.n) {{ {store} }} "
        return text


# --- one row times a matrix -------------------------------------------------------------------------------------------

GEMV_SIZE = 256


def gemv_rows(f: Form, profile: Profile) -> str:
    """A row vector times a matrix whose columns are contiguous along k ('k4' both): 32 lanes a result.

    Grid: (ceil(N / (256 / lanes)), 1, matrices).
    """
    lanes = _lanes(profile)
    value, shuffle = f.types.value, profile.subgroups
    x, y = load("a[a_at + q]", f.types.a, value, True), load("b[b_row + q]", f.types.b, value, True)
    dot = "dot(x, y)" if value == "f32" else "x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w"
    four = " ".join(
        f"{{ let x = {x.replace('+ q', f'+ q + {u * lanes}u')}; let y = {y.replace('+ q', f'+ q + {u * lanes}u')}; s{u} += {dot}; }}" for u in range(4)
    )
    body = [] if shuffle else [f"var<workgroup> part: array<{value}, {GEMV_SIZE}>;"]
    body += [
        f"@compute @workgroup_size({GEMV_SIZE}) fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) tid: u32) {{",
        f"let lane = tid % {lanes}u; let c = w.x * {GEMV_SIZE // lanes}u + tid / {lanes}u;",
        *matrix_place("w.z"),
        "let b_row = b_at + min(c, p.n - 1u) * p.b_free; let quads = p.k / 4u;",
        " ".join(f"var s{u} = {value}();" for u in range(4)),
        f"var q = lane; for (; q + {3 * lanes}u < quads; q += {4 * lanes}u) {{ {four} }}",
        f"for (; q < quads; q += {lanes}u) {{ let x = {x}; let y = {y}; s0 += {dot}; }}",
        "var s = (s0 + s1) + (s2 + s3);",
    ]
    half = lanes // 2
    if not shuffle:
        body.append("part[tid] = s;")
    while half:
        if shuffle:
            body.append(f"s += subgroupShuffleXor(s, {half}u);")
        else:
            body.append(f"workgroupBarrier(); if (lane < {half}u) {{ s += part[tid + {half}u]; part[tid] = s; }}")
        half //= 2
    body.append(f"if (lane == 0u && c < p.n) {{ o[o_at + c * p.o_col] = {finish(f, 's', '0u', 'c')}; }} }}")
    return module(profile, f, body, subgroups=shuffle)


def _lanes(profile: Profile) -> int:
    """Lanes that share a result of gemv_rows: within a subgroup where one is used."""
    return min(32, profile.subgroup_size) if profile.subgroups else 32


def gemv_columns(f: Form, across: int, profile: Profile) -> str:
    """A row vector times a matrix that is contiguous along n ('f4'): `across` invocations of 4 columns each, the others share K.

    Grid: (ceil(N / (4 * across)), 1, matrices). The vector is read element by element ('k1').
    """
    value, size = f.types.value, GEMV_SIZE
    teams = size // across
    x, y = load("a[a_at + k * p.a_k]", f.types.a, value), load("b[b_col + k * p.b_k]", f.types.b, value, True)
    ahead = [f"(k + {u * teams}u) *" for u in range(4)]
    vectors = [f"vec4<{value}>({x.replace('k *', k)})" for k in ahead]
    four = " ".join(f"s{u} = {mac(value, vectors[u], y.replace('k *', k), f's{u}')};" for u, k in enumerate(ahead))
    body = [
        f"var<workgroup> part: array<vec4<{value}>, {size}>;",
        f"@compute @workgroup_size({size}) fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) tid: u32) {{",
        f"let quad = w.x * {across}u + tid % {across}u; let team = tid / {across}u;",
        *matrix_place("w.z"),
        "let b_col = b_at + min(quad, p.n / 4u - 1u);",
        " ".join(f"var s{u} = vec4<{value}>();" for u in range(4)),
        f"var k = team; for (; k + {3 * teams}u < p.k; k += {4 * teams}u) {{ {four} }}",
        f"for (; k < p.k; k += {teams}u) {{ s0 = {mac(value, f'vec4<{value}>({x})', y, 's0')}; }}",
        "var s = (s0 + s1) + (s2 + s3); part[tid] = s;",
    ]
    half = teams // 2
    while half:
        body.append(f"workgroupBarrier(); if (team < {half}u) {{ s += part[tid + {half * across}u]; part[tid] = s; }}")
        half //= 2
    if f.out == "v4":
        store = f"o[o_at + quad] = {finish4(f, ['s'], '0u', '(quad * 4u)')};"
    else:
        store = " ".join(f"o[o_at + (quad * 4u + {q}u) * p.o_col] = {finish(f, f's.{XYZW[q]}', '0u', f'(quad * 4u + {q}u)')};" for q in range(4))
    body.append(f"if (team == 0u && quad < p.n / 4u) {{ {store} }} }}")
    return module(profile, f, body)


# --- choice -----------------------------------------------------------------------------------------------------------


def plan(p: Problem, profile: Profile, temps: list[int]) -> list[Launch]:
    """The launches of one product; `temps` is the list of temporaries' sizes, extended by what they need."""
    if (p.m > 1 and p.n == 1) or (p.out.form(p.n) != "v4" and p.swapped().out.form(p.m) == "v4"):
        p = p.swapped()
    f = Form(p.a.form(p.k), p.b.form(p.k), p.out.form(p.n), Types.of(p))
    if p.m == 1 and GEMV_SIZE <= profile.max_workgroup_size:
        if f.b == "k4" and f.a == "k4":
            rows = replace(f, out="v1")
            grid = (-(-p.n // (GEMV_SIZE // _lanes(profile))), 1, p.matrices)
            return [_launch(("gemv_rows",), rows, p, grid, lambda profile: gemv_rows(rows, profile))]
        if f.b == "f4":
            across = 8 if p.n <= 8192 else 16
            columns = replace(f, a="k1")
            grid = (-(-p.n // (4 * across)), 1, p.matrices)
            return [_launch(("gemv_columns", across), columns, p, grid, lambda profile: gemv_columns(columns, across, profile))]
    kind = ("N" if f.a.startswith("k") else "T") + ("N" if f.b.startswith("f") else "T")
    point = choose(kind, p.m, p.n, p.k, p.matrices, profile.backend, lambda tile: _usable(tile, f, p, profile))
    return tiled(p, point.tile, point.split, temps)


def _usable(tile: Tile, f: Form, p: Problem, profile: Profile) -> bool:
    rows, cols = -(-p.m // tile.bm), -(-p.n // tile.bn)
    if tile.size > profile.max_workgroup_size or max(rows, cols) > profile.max_groups:
        return False
    return Gemm(tile, f, False).memory() <= profile.max_workgroup_memory


def tiled(p: Problem, tile: Tile, split: int, temps: list[int]) -> list[Launch]:
    """The tiled product with this tile, K cut into at most `split` slices that a second launch adds up."""
    turns = -(-p.k // tile.span)
    per = -(-turns // max(1, min(split, 65535 // p.matrices)))
    slices = -(-turns // per)
    q = p
    if slices > 1:
        result = partial(p, TEMP(len(temps)))
        size = slice_elements(p)
        temps.append(size * slices * 4)
        q = replace(p, out=result if p.out.part is None else replace(result, part=(0, size * slices * 4)))
    f = Form(q.a.form(q.k), q.b.form(q.k), q.out.form(q.n), Types.of(q))
    gemm = Gemm(tile, f, p.m >= tile.bm and p.n >= tile.bn)
    params = q.params(f.accesses, 0, slices, per * tile.span, slice_elements(p))
    grid = (-(-p.n // tile.bn), -(-p.m // tile.bm), p.matrices * slices)
    launches = [_launch(("gemm", tile, gemm.full), f, q, grid, gemm.source, params)]
    return [*launches, add_slices(p, q.out.binding, slices)] if slices > 1 else launches


def _launch(
    key: tuple[object, ...], f: Form, p: Problem, grid: tuple[int, int, int], source: Callable[[Profile], str], params: bytes = b""
) -> Launch:
    kernel = Kernel(("matmul", *key, f), source, ("read", "read", "read_write"), label=f"matmul_{key[0]}", trusted=True)
    return Launch(kernel, (p.a.binding, p.b.binding, p.out.binding), grid, params or p.params(f.accesses, 0), ranges=p.ranges())
