"""Text of the attention kernels for GPUs: tiles of rows and columns in workgroup memory, scores and results in registers.

A tile has `rows` x `cols` scores. Every invocation makes tr x tc of them, `cols / tc` neighbours ("lanes") share their rows.
Results (rows x some vec4 columns) are spread over the invocations anew, `over` neighbours a row. Operands lie in workgroup
memory by rows of vec4s, their columns exchanged by an xor of the row, so that neighbours do not meet in a bank.

Tint clamps an index unless it can tell its range, and counts the turns of a loop unless it can tell that it ends. It follows
+, -, *, /, % and min from tid and from counters that step by one below a constant, but no xor: hence % and such counters.
naga takes trusted indices as they are, so that text for it is `plain`: neither.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from . import template as T


@dataclass(frozen=True, slots=True)
class Tile:
    """rows x cols scores a workgroup, tr x tc an invocation; `over` invocations share a row of the results."""

    rows: int
    cols: int
    tr: int
    tc: int
    over: int

    @property
    def lanes(self) -> int:
        return self.cols // self.tc

    @property
    def teams(self) -> int:
        """Invocations along the rows, for scores."""
        return self.rows // self.tr

    @property
    def size(self) -> int:
        """Invocations of a workgroup."""
        return self.lanes * self.teams

    @property
    def spread(self) -> int:
        """Invocations along the rows, for results."""
        return self.size // self.over

    @property
    def out_rows(self) -> int:
        """Rows of results an invocation has."""
        return self.rows // self.spread

    @property
    def same(self) -> bool:
        """Whether an invocation's results are in the rows of its scores."""
        return self.over == self.lanes

    def fits(self, quads: int) -> bool:
        """Whether results of this many vec4 columns can be spread so."""
        return not (self.size % self.over or self.rows % self.spread or quads % self.over)


@dataclass(frozen=True, slots=True)
class Staged:
    """An operand in workgroup memory: `count` rows of `quads` vec4s, swizzled by row / step or, step 0, row % teams;
    flat: not at all, because it is read by columns only."""

    name: str
    count: int
    quads: int
    step: int = 0
    teams: int = 1
    flat: bool = False
    plain: bool = False  # for naga

    def declare(self, room: int = 0) -> str:
        """Its array; `room`: vec4s that must fit, if more."""
        return f"var<workgroup> {self.name}: array<vec4<f32>, {max(self.count * self.quads, room)}>;\n"

    @property
    def mask(self) -> int:
        if self.flat:
            return 0
        return 7 if self.quads % 8 == 0 else 3 if self.quads % 4 == 0 else 0

    def turn(self, row: str) -> str:
        """What a row's columns are exchanged by."""
        if not self.mask:
            return "0u"
        key = f"({row}) / {self.step}u" if self.step else f"({row}) % {self.teams}u"
        return f"(({key}) & {self.mask}u)"

    def column(self, col: str, turn: str) -> str:
        """Where column `col` of a row that is turned by `turn` lies."""
        return turned(col, turn, self.mask, self.quads, self.plain)

    def even(self, size: int) -> bool:
        """Whether `size` invocations have whole rows to fetch at a time, all of them each time."""
        return size % self.quads == 0 and self.count * self.quads % size == 0

    def fetch(self, size: int, address: str, tag: str) -> tuple[list[str], list[str]]:
        """Lines that read the operand into registers, and lines that put these into workgroup memory. `address` gives the
        quad from {row} and {col}, or from {down}: how many rows below that of the invocation's first quad it lies (see `even`)."""
        total = self.count * self.quads
        read, put = [], []
        for e in range(-(-total // size)):
            at = f"(tid + {e * size}u)"
            guard = f"if ({at} < {total}u) " if (e + 1) * size > total else ""
            row, col = f"({at} / {self.quads}u)", f"({at} % {self.quads}u)"
            if guard:
                last = f"min({at}, {total - 1}u)"
                row, col = f"({last} / {self.quads}u)", f"({last} % {self.quads}u)"
            read.append(f"let {tag}{e} = {address.format(row=row, col=col, down=e * size // self.quads)};")
            place = at if self.plain and self.flat and not guard else f"{row} * {self.quads}u + {self.column(col, self.turn(row))}"
            put.append(f"{guard}{{ {self.name}[{place}] = {tag}{e}; }}")
        return read, put


def turned(col: str, turn: str, mask: int, quads: int, plain: bool) -> str:
    """col ^ turn, in the form that Tint sees the range of unless plain."""
    return f"({col} ^ {turn})" if plain and mask else T.exchanged(col, turn, mask, quads)


def steps(name: str, count: int, step: int, plain: bool = False) -> list[str]:
    """The head of a loop: {name} = 0, step, ... below count, a multiple of step. Tint follows counters that grow by one."""
    assert count % step == 0, (count, step)
    if plain:
        return [f"for (var {name} = 0u; {name} < {count}u; {name} += {step}u) {{"]
    return [f"for (var turn_{name} = 0u; turn_{name} < {count // step}u; turn_{name} += 1u) {{ let {name} = turn_{name} * {step}u;"]


def walk(step: int, plain: bool = False) -> list[str]:
    """The head of a loop: t = from_, from_ + step, ... below to_. Tint counts turns of every loop whose end it does not see."""
    if plain:
        return [f"for (var t = from_; t < to_; t += {step}u) {{"]
    head = f"for (var turn = 0u; turn < {(1 << 31) // step - 1}u; turn += 1u) {{"
    return [f"{head} let t = from_ + turn * {step}u; if (t >= to_) {{ break; }}"]


def scores(t: Tile, a: Staged, b: Staged, acc: str, unroll: int = 4) -> list[str]:
    """{acc}i_j += row i of a times row j of b, up to `unroll` quads a turn; a's rows are tq + i * teams, b's tk * tc + j."""
    unroll = math.gcd(unroll, a.quads)
    out = steps("c", a.quads, unroll, a.plain)
    for u in range(unroll):
        left, right = (x.column(f"(c + {u}u)", f"z{n}_{x.name}") for n, x in (("a", a), ("b", b)))
        out += [f"let a{i}_{u} = {a.name}[(tq + {i * t.teams}u) * {a.quads}u + {left}];" for i in range(t.tr)]
        for j in range(t.tc):
            out.append(f"let b{j}_{u} = {b.name}[(tk * {t.tc}u + {j}u) * {b.quads}u + {right}];")
            for i in range(t.tr):
                x = f"{acc}{i}_{j}"
                for z in T.LANES:
                    x = f"fma(a{i}_{u}.{z}, b{j}_{u}.{z}, {x})"
                out.append(f"{acc}{i}_{j} = {x};")
    return [*out, "}"]


def score_places(a: Sequence[Staged], b: Sequence[Staged]) -> list[str]:
    """Lets that `scores` reads."""
    return [f"let za_{x.name} = tq & {x.mask}u;" for x in a] + [f"let zb_{x.name} = tk & {x.mask}u;" for x in b]


@dataclass(frozen=True, slots=True)
class Weights:
    """Scores on their way to other invocations: rows x cols in workgroup memory."""

    name: str
    tile: Tile
    plain: bool = False  # for naga

    @property
    def quads(self) -> int:
        return self.tile.cols // 4

    @property
    def mask(self) -> int:
        return min(7, (self.quads & -self.quads) - 1)

    def put(self, value: str) -> list[str]:
        """Store the invocation's scores {value}i_j."""
        t, out = self.tile, []
        for i in range(t.tr):
            for g in range(t.tc // 4):
                four = ", ".join(f"{value}{i}_{g * 4 + j}" for j in range(4))
                col = turned(f"(tk * {t.tc // 4}u + {g}u)", f"(tq & {self.mask}u)", self.mask, self.quads, self.plain)
                out.append(f"{self.name}[(tq + {i * t.teams}u) * {self.quads}u + {col}] = vec4<f32>({four});")
        return out

    def times(self, b: Staged, acc: str, swizzled: bool) -> list[str]:
        """{acc}i_x += row of the weights times vec4 column x of b; rows no + i * spread, columns lo + x * over."""
        t = self.tile
        unroll = min(2, self.quads)
        out = steps("c", self.quads, unroll, self.plain)
        for u in range(unroll):
            for i in range(t.out_rows):
                row = f"(no + {i * t.spread}u)"
                col = turned(f"(c + {u}u)", f"(({row} % {t.teams}u) & {self.mask}u)", self.mask, self.quads, self.plain)
                out.append(f"let p{i}_{u} = {self.name}[{row} * {self.quads}u + {col}];")
            for z, lane in enumerate(T.LANES):
                row = f"((c + {u}u) * 4u + {z}u)"
                for x in range(b.quads // t.over):
                    col = f"(lo + {x * t.over}u)"
                    if swizzled:
                        col = b.column(col, b.turn(row))
                    out.append(f"let y{u}_{z}_{x} = {b.name}[{row} * {b.quads}u + {col}];")
                    for i in range(t.out_rows):
                        out.append(f"{acc}{i}_{x} = fma(vec4<f32>(p{i}_{u}.{lane}), y{u}_{z}_{x}, {acc}{i}_{x});")
        return [*out, "}"]


def places(t: Tile) -> list[str]:
    """tq, tk: the invocation's scores; no, lo: its results."""
    lines = [f"let tk = tid % {t.lanes}u; let tq = tid / {t.lanes}u;"]
    return [*lines, f"let lo = tid % {t.over}u; let no = tid / {t.over}u;"]


def zeros(names: Sequence[str], quads: bool = False) -> list[str]:
    return [f"var {n} = {'vec4<f32>()' if quads else '0.0'};" for n in names]


def classes(n: int) -> int:
    """A head size as the tiles count it: a multiple of 16."""
    return -(-n // 16) * 16
