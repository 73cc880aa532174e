"""The stages of a row kernel, one class a kind: what they declare, what they do with each entry, and what they leave behind.

In: the source being written (row_wgsl.Source) and a stage. Out: WGSL statements. A stage keeps one accumulator a row of the
team; `begin` declares it, `turn` takes in some entries, `end` merges over the team and names the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..ops.archetype import Stage
from .monoid import HUGE, MOMENTS, NOT_NEGATIVE, SOFTMAX, Monoid, extremum, total, tree

if TYPE_CHECKING:
    from .row_wgsl import Source


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a walk: its number in the row (WGSL) and a suffix for names."""

    index: str
    tag: str


LARGEST = Monoid("largest", (("v", "f32"),), HUGE, "max(a, b)", "subgroupMax")  # for softmax, whose sum carries the NaN


class Sum:
    """Stage 'sum'."""

    def __init__(self, src: Source, stage: Stage) -> None:
        self.src, self.stage = src, stage
        self.rows = range(src.form.rows)

    def name(self, r: int, suffix: str = "") -> str:
        return f"st_{self.stage.name}{suffix}_{r}"

    def acc(self, r: int, suffix: str = "") -> str:
        return f"acc_{self.stage.name}{suffix}_{r}"

    def begin(self) -> str:
        return "".join(f"var {self.acc(r)} = {self.src.vector}();\n" for r in self.rows)

    def turn(self, entries: list[Entry]) -> str:
        return " ".join(self.add(r, [self.src.values(self.stage.expr, e, r) for e in entries]) for r in self.src.now)

    def add(self, r: int, values: list[str]) -> str:
        return f"{self.acc(r)} = {self.acc(r)} + {tree(values)};"

    def end(self) -> str:
        return "".join(f"let {self.name(r)} = {self.src.bring(total('f32'), self.src.fold(self.acc(r)))};\n" for r in self.rows)


class Max(Sum):
    """Stage 'max'; NaN wins."""

    def begin(self) -> str:
        low = extremum("max", "f32").identity
        return "".join(f"var {self.acc(r)} = {low};\n" for r in self.rows)

    def turn(self, entries: list[Entry]) -> str:
        width = range(self.src.form.width)
        out = []
        for r in self.src.now:
            for e in entries:
                out += [f"{self.acc(r)} = merge_max_f32({self.acc(r)}, {self.src.value(self.stage.expr, e, r, i)});" for i in width]
        return "\n  ".join(out)

    def end(self) -> str:
        return "".join(f"let {self.name(r)} = {self.src.bring(extremum('max', 'f32'), self.acc(r))};\n" for r in self.rows)


class Softmax(Sum):
    """Stage 'softmax': running maximum and sum of exponentials in one walk, or two walks over registers.

    The maximum starts at the lowest finite number, so that a row of -inf sums to 0 and log gives -inf; NaN and inf
    elements make the sum NaN through exp(x - maximum).
    """

    def begin(self) -> str:
        return "".join(f"var {self.acc(r, 'm')} = {HUGE}; var {self.acc(r, 's')} = 0.0;\n" for r in self.rows)

    def turn(self, entries: list[Entry]) -> str:
        if self.src.form.registers:
            value = self.src.values(self.stage.expr, entries[0], 0)
            return f"{{ let x = {value}; {self.acc(0, 'm')} = max({self.acc(0, 'm')}, {self.src.fold('x', 'max')}); }}"
        return " ".join(f"{{ {self.online(entries, r)} }}" for r in self.src.now)

    def online(self, entries: list[Entry], r: int) -> str:
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
        out = f"let {top} = {self.src.bring(LARGEST, self.acc(0, 'm'))};\nvar {s}v = {self.src.vector}();\n"

        def add(entries: list[Entry]) -> str:
            return f"{s}v = {s}v + exp({self.src.values(self.stage.expr, entries[0], 0)} - {top});"

        out += self.src.walk(add, self.src.names([self.stage.expr]))
        return out + f"let {self.name(0, '_sum')} = {self.src.bring(total('f32'), self.src.fold(f'{s}v'))};\n"


class Moments(Sum):
    """Stage 'moments': two walks over registers, otherwise one walk over differences from a value near the row's elements.

    A subgroup takes the mean of its invocations' first entries for that, and then only adds two sums. An invocation
    elsewhere shifts by its own first entry, and Chan's combination merges means counted from a reference that the whole
    row shares. Either way a large mean does not cost the small differences their digits.
    """

    @property
    def shared(self) -> bool:
        """Whether all invocations shift by the same value."""
        return not self.src.form.registers and self.src.form.team.form == "subgroup"

    def begin(self) -> str:
        if self.src.form.registers:
            return super().begin()
        used, e = self.src.names([self.stage.expr]), Entry("first", "_z")
        out = ""
        for r in self.rows:
            out += f"var {self.acc(r, 'c')} = {self.src.vector}(); var {self.acc(r, 'd')} = {self.src.vector}(); "
            out += f"var {self.acc(r, 'q')} = {self.src.vector}();\n"
        first = " ".join(f"{self.acc(r, 'c')} = {self.src.values(self.stage.expr, e, r)};" for r in self.rows)
        out += f"if (first < p.entries) {{ {self.src.loads(e, used)}{first} }}\n"
        return out + "".join(self.centre(r) if self.shared else self.reference(r) for r in self.rows)

    def centre(self, r: int) -> str:
        """The mean of the first entries, all of which exist; in a shorter row the first element."""
        c, lanes = self.acc(r, "c"), self.src.form.team.width
        mean = self.src.bring(total("f32"), f"{self.src.fold(c)} * {1 / (lanes * self.src.form.width)}")
        first = f"subgroupBroadcastFirst({c}{'.x' if self.src.form.width == 4 else ''})"
        return f"let {self.acc(r, 'z')} = select({first}, {mean}, p.entries >= {lanes}u);\n"

    def reference(self, r: int) -> str:
        """A value near the row's elements, the same for all of the team."""
        c = self.acc(r, "c") + (".x" if self.src.form.width == 4 else "")
        form = self.src.form.team.form
        if form == "subgroup":
            return f"let {self.acc(r, 'z')} = subgroupBroadcastFirst({c});\n"
        if form == "lane":
            return f"let {self.acc(r, 'z')} = {c};\n"
        e = Entry("0u", "_y")
        value = f"{self.acc(r, 'z')} = {self.src.value(self.stage.expr, e, r, 0)};"
        loads = self.src.loads(e, self.src.names([self.stage.expr]))
        return f"var {self.acc(r, 'z')} = 0.0; if (p.entries > 0u) {{ {loads}{value} }}\n"

    def turn(self, entries: list[Entry]) -> str:
        if self.src.form.registers:
            return super().turn(entries)
        out = []
        for r in self.src.now:
            c, d, q = (self.acc(r, x) for x in ("z" if self.shared else "c") + "dq")
            lets = "".join(f"let d{i} = {self.src.values(self.stage.expr, e, r)} - {c}; " for i, e in enumerate(entries))
            sums = tree([f"d{i}" for i in range(len(entries))])
            squares = tree([f"d{i} * d{i}" for i in range(len(entries))])
            out.append(f"{{ {lets}{d} = {d} + {sums}; {q} = {q} + {squares}; }}")
        return "\n  ".join(out)

    def end(self) -> str:
        if self.src.form.registers:
            return self.second()
        if self.shared:
            return "".join(self.sums(r) for r in self.rows)
        out = ""
        for r in self.rows:
            both, count = f"both_{self.stage.name}_{r}", f"count_{self.stage.name}_{r}"
            c, d, q = (self.acc(r, x) for x in "cdq")
            turns = f"(p.entries + {self.src.step - 1}u - first) / {self.src.step}u"
            out += f"let {count} = f32({turns}); let {c}t = {d} / max({count}, 1.0);\n"
            out += f"let {c}m = ({c} - {self.acc(r, 'z')}) + {c}t; let {c}q = {q} - {d} * {c}t;\n"
            if self.src.form.width == 1:
                value = f"Moments({count}, {c}m, {c}q)"
            else:
                out += f"let {c}a = {self.src.fold(f'{c}m')} * 0.25; let {c}e = {c}m - {c}a;\n"
                value = f"Moments({count} * 4.0, {c}a, {self.src.fold(f'{c}q')} + {count} * dot({c}e, {c}e))"
            out += f"let {both} = {self.src.bring(MOMENTS, value)};\n"
            var = f"{both}.m2 / n"
            out += f"let {self.name(r, '_mean')} = {self.acc(r, 'z')} + {both}.mean;\n"
            out += f"let {self.name(r, '_var')} = not_negative({var});\n"
        return out

    def sums(self, r: int) -> str:
        """Mean and variance from the sums of differences from a shared value and of their squares."""
        d, q = (self.src.bring(total("f32"), self.src.fold(self.acc(r, x))) for x in "dq")
        shift, mean = self.name(r, "_shift"), self.name(r, "_mean")
        if "not_negative" not in self.src.seen:
            self.src.seen.add("not_negative")
            self.src.functions.append(NOT_NEGATIVE)
        out = f"let {shift} = {d} / n; let {mean} = {self.acc(r, 'z')} + {shift};\n"
        return out + f"let {self.name(r, '_var')} = not_negative({q} / n - {shift} * {shift});\n"

    def second(self) -> str:
        mean, q = self.name(0, "_mean"), self.acc(0, "q")
        out = f"let {mean} = {self.src.bring(total('f32'), self.src.fold(self.acc(0)))} / n;\nvar {q} = {self.src.vector}();\n"

        def add(entries: list[Entry]) -> str:
            return f"{{ let d = {self.src.values(self.stage.expr, entries[0], 0)} - {mean}; {q} = {q} + d * d; }}"

        out += self.src.walk(add, self.src.names([self.stage.expr]))
        return out + f"let {self.name(0, '_var')} = {self.src.bring(total('f32'), self.src.fold(q))} / n;\n"


MAKERS = {"sum": Sum, "max": Max, "softmax": Softmax, "moments": Moments}
