"""Matrix products for GPUs: tiles of a and b go through workgroup memory, every invocation makes a block of results in registers.

What the measurements said (docs/kernels.md): k unrolled by hand inside a tile, the next tile fetched into registers
before the products, workgroup arrays nested so that every index in the unrolled text is a constant or a loop-invariant let.
The first tile takes the rest of K (filled up with zeros), so the loop needs no checks; a matrix at least as large as the
tile shifts its last tiles inwards instead of checking edges (neighbours then write equal values twice).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from . import matmul_gemv as gemv
from .choices import USES, WHOLE_ROWS, Tile, choose
from .kernel import TEMP, Kernel, Launch, Profile
from .matmul_pack import whole_rows, whole_rows_bytes
from .matmul_problem import Problem
from .matmul_stage import Operand
from .matmul_sum import add_slices, partial, slice_elements
from .matmul_teams import Shares, halved, shares_memory
from .matmul_wgsl import XYZW, Form, Stores, mac, module, zero

WARP = 32  # invocations that share a fragment pattern; nothing depends on the real subgroup size


def _turn(form: str, turn: str) -> str:
    return turn if form.startswith("k") else "direct"


@dataclass(frozen=True, slots=True)
class Gemm:
    """Text of the tiled kernel. Grid: (ceil(N / bn), ceil(M / bm), matrices * split).

    fit: 'exact' where tiles cover the matrix exactly, 'shifted' where the last ones are shifted inwards, 'cut' where they are
    checked. single: one matrix, K in one piece; otherwise a workgroup must find its own, and three registers fewer are left.
    """

    tile: Tile
    form: Form
    fit: str = "cut"
    single: bool = False

    @property
    def full(self) -> bool:
        """Whether every element of a tile exists."""
        return self.fit != "cut"

    def operands(self) -> tuple[Operand, Operand, bool]:
        """Both operands, and whether each half of the invocations loads one of them (small tiles turned 4x4)."""
        t, f = self.tile, self.form
        a = Operand("a", f.a, _turn(f.a, t.turn_a), t.bm, f.types.a, f.types.value, t, self.full, t.size)
        b = Operand("b", f.b, _turn(f.b, t.turn_b), t.bn, f.types.b, f.types.value, t, self.full, t.size)
        half = t.size // 2
        short = any(o.turn == "quad" and o.units < t.size for o in (a, b))
        halves = short and not a.units % half and not b.units % half
        return (replace(a, threads=half), replace(b, threads=half), True) if halves else (a, b, False)

    def memory(self) -> int:
        """Bytes of workgroup memory, with the least that adding up groups needs."""
        a, b, _ = self.operands()
        return (a.words() + b.words()) * 4 + shares_memory(self.tile)

    def source(self, profile: Profile) -> str:
        a, b, halves = self.operands()
        t = self.tile
        room = profile.max_workgroup_memory - (a.words() + b.words()) * 4
        shares = Shares(t, tuple(self._sums()), self.form.types.value, room)
        rows = self._rows_at_once(a, room - shares.bytes)
        globals_ = [a.declare(), b.declare(), *shares.declare()]
        if rows:
            globals_.append(f"var<workgroup> lines: array<array<vec4<{self.form.types.value}>, {t.bn // 4}>, {t.bm // t.tm * rows}>;")
        args = "@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) tid: u32"
        main = [*globals_, f"@compute @workgroup_size({t.size}) fn main({args}) {{", *self._place(), *self._thread(a, b)]
        if halves:
            half = t.size // 2
            main.append(f"let first_half = tid < {half}u; let share = select(tid - {half}u, tid, first_half);")
        main += [*a.setup(), *b.setup()]
        main += [f"var {v}: vec4<{self.form.types.value}>;" for v in dict.fromkeys(a.registers + b.registers)]
        main += [f"var {c} = {zero(self.form.types.value, True)};" for c in self._sums()]
        main += [*self._loop(a, b, halves), *shares.add(), *self._store(a, shares.owners(), rows), "}"]
        return module(profile, self.form, main, wrap=t.wrap)

    def _place(self) -> Iterator[str]:
        """Which tile, matrix and slice of K this workgroup has."""
        t = self.tile
        if t.swizzle:
            yield f"let wide = (p.n + {t.bn - 1}u) / {t.bn}u; let high = (p.m + {t.bm - 1}u) / {t.bm}u;"
            yield f"let linear = w.y * wide + w.x; let band = linear / (wide * {t.swizzle}u); let inside = linear % (wide * {t.swizzle}u);"
            yield f"let rows = min({t.swizzle}u, high - band * {t.swizzle}u);"
            yield f"let by = band * {t.swizzle}u + inside % rows; let bx = inside / rows;"
        else:
            yield "let by = w.y; let bx = w.x;"
        if self.fit == "shifted":
            yield f"let row0 = min(by * {t.bm}u, p.m - {t.bm}u); let col0 = min(bx * {t.bn}u, p.n - {t.bn}u);"
        else:
            yield f"let row0 = by * {t.bm}u; let col0 = bx * {t.bn}u;"
        if self.single:
            yield "let slice = 0u; let mat0 = 0u; let mat1 = 0u;"
        else:
            yield "var slice = w.z; var mat0 = 0u; var mat1 = 0u;"  # slices of one matrix need no division
            yield "if (w.z >= p.split) { let mat = w.z / p.split; slice = w.z % p.split; mat0 = mat / p.inner; mat1 = mat % p.inner; }"
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
        run = "" if t.walk == "ptr" else " + {0}_run"
        if t.walk == "ptr":
            start, step = ["".join(o.advance(x) for o in (a, b)) for x in ("rest", f"{t.span}u")]
        else:
            start = "".join(f"var {o.name}_run = {o.walked('rest')}; " for o in (a, b))
            step = "".join(f"{o.name}_run += {o.walked(f'{t.span}u')}; " for o in (a, b))
        fetch = both(a.fetch(run.format("a")), b.fetch(run.format("b")))
        put = both(a.put(), b.put())
        lines = [*both(a.fetch_rest(), b.fetch_rest()), start]
        if t.peel:
            lines += [*put, barrier, "for (var t = 1u; t < turns; t++) {", *fetch, step, *self._products(a, b, 0)]
            return [*lines, barrier, *put, barrier, "}", *self._products(a, b, 1)]
        lines += ["for (var t = 1u; t <= turns; t++) {", *put, barrier, "if (t < turns) {", *fetch, step, "}"]
        return [*lines, *self._products(a, b, 0), barrier, "}"]

    def _products(self, a: Operand, b: Operand, copy: int) -> list[str]:
        """All products of one tile. Names are unique: a block scope costs naga a basic block each."""
        t, v, lines = self.tile, self.form.types.value, []
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
                    lines.append(f"c{i}_{j} = {mac(v, f'vec4<{v}>({row})', f'b{j}{x}', f'c{i}_{j}')};")
        return lines

    def _exchange(self, room: int) -> tuple[list[str], list[str]]:
        """Adding up the groups' sums in the first group."""
        return halved(self.tile, self._sums(), self.form.types.value, room)

    def _rows_at_once(self, a: Operand, room: int) -> int:
        """Rows of an invocation that are stored through workgroup memory at a time, 0: directly. It pays for single elements
        of tiles whose groups share K, without an epilogue."""
        t = self.tile
        if t.groups == 1 or self.form.out != "v1" or self.form.epilogue is not None:
            return 0
        rows = 1 if a.turn == "row" else 4
        while rows and rows * (t.bm // t.tm) * t.bn * 4 > room:
            rows //= 2
        return rows

    def _store(self, a: Operand, owners: dict[str, int], rows: int) -> list[str]:
        """Stores of each group's sums."""
        t, f = self.tile, self.form
        start = "let o_at = p.o_off + mat0 * p.o_b0 + mat1 * p.o_b1 + slice * p.o_slice;"
        if rows:
            return [start, *self._through_memory(rows, owners, a.turn == "row")]
        stores = Stores(f, t.wrap)
        lines = [start, *stores.begin()]
        for j in range(t.tn // 4):
            for q in range(1 if stores.wide else 4):
                lines.append(stores.column(f"(col0 + bi{j} * 4u + {q}u)", f"{j}_{q}", self.full))
        for i in range(t.tm):
            row = f"row0 + ai{i}" if a.turn == "row" else f"row0 + ai{i // 4} * 4u + {i % 4}u"
            for g in range(t.groups):
                own = [j for j in range(t.tn // 4) if owners[f"c{i}_{j}"] == g]
                if not own:
                    continue
                text = stores.line(f"({row})", str(i))
                text += "".join(self._store_quad(stores, f"({row})", i, j) for j in own)
                text = text if self.full else f"if ({row} < p.m) {{ {text} }}"
                lines.append(f"if (team == {g}u) {{ {text} }}" if t.groups > 1 else text)
        return lines

    def _through_memory(self, rows: int, owners: dict[str, int], row_kept: bool) -> list[str]:
        """Stores of single elements, `rows` rows of every invocation at a time, neighbours by neighbouring invocations."""
        t, stores, lines = self.tile, Stores(self.form, self.tile.wrap), [f"let slot = wm * {self.tile.lanes}u + lm;"]
        count, unit = t.bm // t.tm * rows * t.bn, t.lanes * (t.tm if row_kept else t.tm // 4)
        place = f"spot / {t.lanes}u * {unit}u + spot % {t.lanes}u"
        for first in range(0, t.tm, rows):
            lines.append("workgroupBarrier();")
            for g in range(t.groups):
                own = [(i, j) for i in range(first, first + rows) for j in range(t.tn // 4) if owners[f"c{i}_{j}"] == g]
                if own:
                    put = "".join(f"lines[slot * {rows}u + {i - first}u][bi{j}] = c{i}_{j}; " for i, j in own)
                    lines.append(f"if (team == {g}u) {{ {put}}}")
            lines.append("workgroupBarrier();")
            if row_kept:
                row = f"row0 + {place} + {first * t.lanes}u"
            else:
                row = f"row0 + ({place} + {first // 4 * t.lanes}u) * 4u + {first % 4}u + line % {rows}u"
            store = stores.put(["lines[line][col / 4u][col % 4u]"], "row", "(col0 + col)")
            for e in range(-(-count // t.size)):
                guard = [f"at < {count}u"] if (e + 1) * t.size > count else []
                guard += [] if self.full else ["row < p.m", "col0 + col < p.n"]
                text = f"let at = tid + {e * t.size}u; let line = at / {t.bn}u; let col = at % {t.bn}u; let spot = line / {rows}u; "
                text += f"let row = {row}; " + (f"if ({' && '.join(guard)}) {{ {store} }}" if guard else store)
                lines.append(f"{{ {text} }}")
        return lines

    def _store_quad(self, stores: Stores, row: str, i: int, j: int) -> str:
        """Four neighbours of a row."""
        col, acc = f"(col0 + bi{j} * 4u)", f"c{i}_{j}"
        if stores.wide:
            text = stores.put([acc], row, col, (str(i), f"{j}_0")) + " "
            return text if self.full else f"if ({col} < p.n) {{ {text}}} "
        text = ""
        for q in range(4):
            store = stores.put([f"{acc}.{XYZW[q]}"], row, f"({col} + {q}u)", (str(i), f"{j}_{q}"))
            text += store + " " if self.full else f"if ({col} + {q}u < p.n) {{ {store} }} "
        return text


# --- choice -----------------------------------------------------------------------------------------------------------


def plan(p: Problem, profile: Profile, temps: list[int]) -> list[Launch]:
    """The launches of one product; `temps` is the list of temporaries' sizes, extended by what they need."""
    if (p.m > 1 and p.n == 1) or (p.out.form(p.n) != "v4" and p.swapped().out.form(p.m) == "v4"):
        p = p.swapped()
    f = Form.of(p, p.a.form(p.k), p.b.form(p.k), p.stores())
    if p.m == 1 and profile.max_workgroup_size >= gemv.SIZE and (f.b == "f4" or (f.a, f.b) == ("k4", "k4")):
        return [_gemv(p, f, profile)]
    p, launches = _whole_rows(p, profile, temps)
    f = replace(f, a=p.a.form(p.k), b=p.b.form(p.k))
    kind = ("N" if f.a.startswith("k") else "T") + ("N" if f.b.startswith("f") else "T")
    tile, split = choose(kind, p.m, p.n, p.k, p.matrices, profile.backend, lambda tile: usable(tile, f, p, profile), f.out)
    most = profile.max_binding // (4 * slice_elements(p))
    return [*launches, *tiled(p, tile, min(split, max(1, most)), temps)]


def _whole_rows(p: Problem, profile: Profile, temps: list[int]) -> tuple[Problem, list[Launch]]:
    """The problem with copies of operands that could only be read element by element, where products are many enough.

    A rest of K that an operand along k would leave is filled up with zeros, for which both are copied.
    """
    sides = {name: side for name, side in (("a", p.a), ("b", p.b)) if side.form(p.k) in ("k1", "f1")}
    if not sides or p.products // p.matrices < WHOLE_ROWS or min(p.m, p.n) < USES:
        return p, []
    if p.k % 4 and any(x.form(p.k) == "k1" for x in sides.values()):
        sides = {"a": p.a, "b": p.b}
    if any(whole_rows_bytes(p, x) > profile.max_binding for x in sides.values()) or len(sides) * p.matrices > profile.max_groups:
        return p, []
    q, launch = whole_rows(p, tuple(sides), profile.max_groups, temps)
    return q, [launch]


def _gemv(p: Problem, f: Form, profile: Profile) -> Launch:
    shape: gemv.Rows | gemv.Columns
    if f.b == "k4":
        name, used, shape = "gemv_rows", Form.of(p, f.a, f.b, "v1"), gemv.rows(p.k, p.matrices, profile)
    else:
        name, used, shape = "gemv_columns", replace(f, a="k1"), gemv.columns(p.n, p.k, p.matrices, profile)
    return _launch((name, shape), used, p, shape.grid(p.n, p.matrices), lambda profile: shape.source(used, profile))


def usable(tile: Tile, f: Form, p: Problem, profile: Profile) -> bool:
    """Whether the device can run the tiled product with this tile."""
    rows, cols = -(-p.m // tile.bm), -(-p.n // tile.bn)
    if tile.size > profile.max_workgroup_size or max(rows, cols) > profile.max_groups:
        return False
    return Gemm(tile, f).memory() <= profile.max_workgroup_memory


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
        q = replace(p, out=result if p.out.part is None else replace(result, part=(0, size * slices * 4)), fusion=None)
    f = Form.of(q, q.a.form(q.k), q.b.form(q.k), q.stores())
    even = p.m % tile.bm == 0 and p.n % tile.bn == 0
    once = q.fusion is not None and q.fusion.in_place() and not even  # last tiles must not be shifted over their neighbours
    cut = (f.a == "f4" and p.m % 4) or (f.b == "f4" and p.n % 4)  # a copy's rows: vec4s only begin where those of whole tiles do
    large = p.m >= tile.bm and p.n >= tile.bn and not once and not cut
    gemm = Gemm(tile, f, "exact" if even and not cut else "shifted" if large else "cut", p.matrices * slices == 1)
    params = q.params(f.accesses, slices, per * tile.span, slice_elements(p))
    grid = (-(-p.n // tile.bn), -(-p.m // tile.bm), p.matrices * slices)
    launches = [_launch(("gemm", tile, gemm.fit, gemm.single), f, q, grid, gemm.source, params)]
    return [*launches, add_slices(p, q.out.binding, slices)] if slices > 1 else launches


def _launch(
    key: tuple[object, ...], f: Form, p: Problem, grid: tuple[int, int, int], source: Callable[[Profile], str], params: bytes = b""
) -> Launch:
    kernel = Kernel(("matmul", *key, f), source, f.access, label=f"matmul_{key[0]}", scalars=f.scalars, trusted=True)
    bindings = (p.a.binding, p.b.binding, *p.bindings(f.out))
    return Launch(kernel, bindings, grid, params or p.params(f.accesses), p.scalars(), p.ranges())
