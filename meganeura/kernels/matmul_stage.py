"""How one operand of a tiled product gets from storage into workgroup memory and from there into registers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..dtype import DType
from . import template as T
from .choices import Tile
from .matmul_wgsl import XYZW, load, zero


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand's way from storage to workgroup memory, loaded by `threads` invocations."""

    name: str  # 'a' or 'b'
    form: str
    turn: str  # 'direct' for operands that are contiguous along their free dimension
    block: int  # tile size along the free dimension
    dtype: DType
    value: str
    tile: Tile
    full: bool  # the matrix is at least as large as the tile: nothing is out of range
    threads: int

    @property
    def shared(self) -> bool:
        """Whether the other half of the invocations loads the other operand."""
        return self.threads < self.tile.size

    @property
    def who(self) -> str:
        return "share" if self.shared else "tid"

    @property
    def registers(self) -> tuple[str, ...]:
        return tuple(f"v{'' if self.shared else self.name}{i}" for i in range(self.loads))

    @property
    def origin(self) -> str:
        return {"a": "row0", "b": "col0"}[self.name]

    @property
    def extent(self) -> str:
        return {"a": "p.m", "b": "p.n"}[self.name]

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

    def turned(self, column: str, turn: str) -> str:
        """A quad column exchanged with one of the eight it lies among."""
        return T.exchanged(column, f"({turn})", 7, self.block // 4)

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
                lines.append(f"let {n}x{e} = {self.turned(f'{n}r{e}', f'({n}c{e} * {self.spread}u) & 7u')};")
            lines += self._places(e)
        return lines

    def _places(self, e: int) -> Iterator[str]:
        n, p = self.name, f"p.{self.name}"
        let = "var" if self.tile.walk == "ptr" else "let"
        if not self.along_k:
            start = f"{n}_at + (k_from + {n}r{e}) * {p}_k"
            if self.form == "f4":
                quad = f"{self.origin} / 4u + {n}c{e}"
                yield f"{let} {n}p{e} = {start} + {quad if self.full else f'min({quad}, ({self.extent} + 3u) / 4u - 1u)'};"
                return
            yield f"{let} {n}p{e} = {start};"
            for q in range(4):
                yield f"let {n}f{e}_{q} = {self._inside(f'{self.origin} + {n}c{e} * 4u + {q}u')} * {p}_free;"
            return
        along = f"k_from / 4u + {n}c{e}" if self.form == "k4" else f"(k_from + {n}c{e} * 4u) * {p}_k"
        if self.turn != "quad":
            yield f"{let} {n}p{e} = {n}_at + {self._inside(f'{self.origin} + {n}r{e}')} * {p}_free + {along};"
            return
        for i in range(4):
            if i and self.full:
                yield f"{let} {n}p{e}_{i} = {n}p{e}_0 + {i}u * {p}_free;"
            else:
                yield f"{let} {n}p{e}_{i} = {n}_at + {self._inside(f'{self.origin} + {n}r{e} * 4u + {i}u')} * {p}_free + {along};"

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
                for q in range(4):
                    text += f"if ({n}c{e} * 4u + {q}u < rest) {{ {register}.{XYZW[q]} = {self._element(place, '', e, q)}; }} "
            else:
                if self.form == "f1":
                    value = f"vec4<{self.value}>({', '.join(self._element(place, '', e, q) for q in range(4))})"
                else:
                    value = load(f"{n}{self._dot}[{place}]", self.dtype, self.value, True)
                k = f"{n}c{e} * 4u" if self.along_k else f"{n}r{e}"
                text += f"if ({k} < rest) {{ {register} = {value}; }}"
            lines.append(self._limited(e, text))
        return lines

    def advance(self, steps: str) -> str:
        """Move every place itself along k."""
        return "".join(f"{place} += {self.walked(steps)}; " for _, place, _ in self._each())

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
            turns = [f"turn_{self.name}"] * (self.tile.groups > 1) + [f"{shift}u"] * bool(shift)
            at = self.turned(at, " ^ ".join(turns)) if turns else at
        text = f"t{self.name}[{g}][{k}][{at}]"
        if self.turn == "s4":
            return f"vec4<{self.value}>({', '.join(f'{text}[{u}]' for u in range(4))})"
        return text
