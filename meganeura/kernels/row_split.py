"""Long rows of which there are few, shared by several workgroups each: partial stages, a merge, and the elements.

In: a Call of a Row op. Out: a Lowered of three Row calls over parts of the rows (rows of their own), or None where one workgroup a row
is right or where stages do not merge. Every part has the same number of elements: parts are divisors of the reduced dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from ..dtype import float32
from ..ops.archetype import Row, Stage
from ..ops.table import Op
from ..shape import Shape, broadcast_strides, numel
from ..storage import Layout, padded_bytes
from . import template as T
from .kernel import TEMP, Call, Launch, Lowered, Profile

LONG = 8192  # elements from which a row is worth sharing
FEW = 512  # rows that keep a GPU busy
TEAMS = 1024  # parts wanted in all
LEAST = 2048  # elements a part
MERGED = ("sum", "moments")


@dataclass(frozen=True)
class _Named:
    """Stands for the op of a step."""

    name: str
    archetype: Row

    def __repr__(self) -> str:
        return f"<op {self.name}>"


@dataclass(frozen=True, slots=True)
class _Operand:
    """An operand of a step: name, layout, its number in the whole call or TEMP(i), compute dtype (index into the call's, or f32)."""

    name: str
    layout: Layout
    number: int
    source: int = -1


class _Split:
    """A call, cut: `kept` and `inside` sizes, `cut` the sizes of the parts' dimensions before and after the division."""

    def __init__(self, call: Call, arch: Row, shape: Shape) -> None:
        self.call, self.arch, self.shape = call, arch, shape
        self.dims: Shape = call.attrs["dim"]
        self.kept = tuple(n for d, n in enumerate(shape) if d not in self.dims)
        self.inside = tuple(shape[d] for d in self.dims)
        self.rows, self.n = numel(self.kept), numel(self.inside)
        self.names = dict(zip(call.names, range(len(call.names)), strict=True))

    def division(self) -> tuple[int, int] | None:
        """(reduced dimensions that become part numbers, parts of the next one) so that there are about as many parts as wanted."""
        wanted = min(-(-TEAMS // self.rows), self.n // LEAST)
        whole = 1
        for i, n in enumerate(self.inside):
            fit = [p for p in range(1, n + 1) if n % p == 0 and whole * p <= wanted]
            best = max(fit)
            if best < n or whole * n >= wanted:
                return (i, best) if whole * best >= min(4, wanted) and whole * best > 1 else None
            whole *= n
        return None

    # --- layouts ---

    def divide(self, division: tuple[int, int]) -> None:
        axis, parts = division
        self.first = axis
        before, n = self.inside[:axis], self.inside[axis]
        self.outer: Shape = (*before, parts)
        self.inner: Shape = (n // parts, *self.inside[axis + 1 :])
        self.parts = numel(self.outer)

    def full(self, x: Layout) -> Layout:
        """An operand with the rows' elements, as [*kept, *outer, *inner]."""
        strides = broadcast_strides(x.shape, x.strides, self.shape)
        return self._cut(x, [s for d, s in enumerate(strides) if d not in self.dims], [strides[d] for d in self.dims])

    def column(self, x: Layout) -> Layout | None:
        """One with a value a column."""
        if x.shape != self.inside:
            return None if x.numel != 1 else self._cut(x, [0] * len(self.kept), [0] * len(self.inside))
        return self._cut(x, [0] * len(self.kept), list(x.strides))

    def row(self, x: Layout) -> Layout | None:
        """One with a value a row."""
        if x.shape != self.kept:
            return None if x.numel != 1 else self._cut(x, [0] * len(self.kept), [0] * len(self.inside))
        return self._cut(x, list(x.strides), [0] * len(self.inside))

    def _cut(self, x: Layout, kept: Sequence[int], inside: Sequence[int]) -> Layout:
        a = self.first
        step = inside[a] * self.inner[0]
        strides = (*kept, *inside[:a], step, *inside[a:])
        return x.with_(shape=(*self.kept, *self.outer, *self.inner), strides=strides, offset=x.offset)

    @property
    def inner_dims(self) -> Shape:
        rank = len(self.kept) + len(self.outer)
        return tuple(range(rank, rank + len(self.inner)))

    def values(self) -> Layout:
        """One value a row."""
        return Layout(float32, (self.rows,))

    def spread(self) -> Layout:
        """The same, shown to every element."""
        plain = Layout(float32, self.kept)
        return self._cut(plain, list(plain.strides), [0] * len(self.inside))

    def partials(self) -> Layout:
        """One value a part."""
        return Layout(float32, (self.rows, self.parts))


def split(call: Call, profile: Profile, lower: Callable[[Call, Profile], Lowered]) -> Lowered | None:
    """Launches that share rows, if that is worth it."""
    arch = call.op.archetype
    assert isinstance(arch, Row)
    where = call.names.index(arch.full[0]) if arch.full[0] in call.names else -1
    x = call.inputs[where] if where >= 0 else None
    if profile.family != "gpu" or x is None or not arch.stages or not arch.element or T.large(call, profile):
        return None
    s = _Split(call, arch, x.shape)
    if (
        s.n < LONG
        or s.rows >= FEW
        or not s.rows
        or not _merges(arch, call)
        or any(not o.contiguous for o in call.outputs[len(arch.element) :])
    ):
        return None
    division = s.division()
    if division is None:
        return None
    s.divide(division)
    shown = _inputs(s)
    return None if shown is None else _steps(s, shown, profile, lower)


def _stage_names(stages: Iterable[Stage]) -> list[str]:
    return [x.name + e for x in stages for e in (("_mean", "_var") if x.kind == "moments" else ("",))]


def _merges(arch: Row, call: Call) -> bool:
    """Whether all stages are sums over elements alone, and the row's results functions of them."""
    made = set(_stage_names(arch.stages))
    early = [x.expr for x in arch.stages]
    used = _reached(early, arch)
    scalars = {n for n, _ in call.scalars}
    reported = _reached(arch.per_row, arch) - {n for n, _, _ in arch.statements} - set(_of_rows(arch, call))
    every = _reached([*early, *arch.element], arch)
    return (
        all(x.kind in MERGED for x in arch.stages)
        and not used & (made | {"n", "column"})
        and "column" not in every
        and reported <= made | scalars | {"n"}
    )


def _of_rows(arch: Row, call: Call) -> list[str]:
    """Inputs with one value a row that its results name."""
    named = _reached(arch.per_row, arch)
    return [n for n in call.names if n in named and n not in arch.full and n not in arch.column]


def _reached(expressions: Iterable[str], arch: Row) -> set[str]:
    """Names that expressions use, through statements too."""
    texts = {n: e for n, _, e in arch.statements}
    todo, seen = [n for e in expressions for n in T.names_in(e)], set()
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += T.names_in(texts[name]) if name in texts else ()
    return seen


def _inputs(s: _Split) -> dict[str, _Operand] | None:
    """Every input as elements of the parts, or None where one cannot be shown so."""
    out = {}
    for i, (name, x) in enumerate(zip(s.call.names, s.call.inputs, strict=True)):
        if x is None:
            return None
        layout = s.full(x) if name in s.arch.full else s.column(x) if name in s.arch.column else s.row(x)
        if layout is None:
            return None
        out[name] = _Operand(name, layout, i, i)
    return out


def _steps(s: _Split, shown: dict[str, _Operand], profile: Profile, lower: Callable[[Call, Profile], Lowered]) -> Lowered:
    """Partial stages, their merge, and the elements."""
    arch, call = s.arch, s.call
    stages = _stage_names(arch.stages)
    counted = "n" in _reached((*arch.per_row, *arch.element), arch)
    partial = [*stages, *(["n"] if counted else [])]
    temps = [padded_bytes(s.rows * s.parts, float32)] * len(partial) + [padded_bytes(s.rows, float32)] * len(partial)
    launches: list[Launch] = []

    def step(what: str, kind: Row, ins: Sequence[_Operand], outs: Sequence[_Operand], dim: Shape) -> None:
        made = lower(_call(call, what, kind, ins, outs, dim), profile)
        numbers, first = [o.number for o in (*ins, *outs)], len(temps)
        for x in made.launches:
            launches.append(replace(x, bindings=tuple(numbers[b] if b >= 0 else TEMP(first - 1 - b) for b in x.bindings)))
        temps.extend(made.temps)

    early = _reached([x.expr for x in arch.stages], arch)
    ins = [shown[n] for n in call.names if n in early]
    parts = [_Operand(f"out{i}", s.partials(), TEMP(i)) for i in range(len(partial))]
    names = tuple(o.name for o in ins)
    first = Row(
        names, (), arch.stages, (), tuple("{" + n + "}" for n in partial), arch.defaults, tuple(x for x in arch.statements if x[0] in early)
    )
    step("parts", first, ins, parts, s.inner_dims)
    merged = [_Operand("", s.values(), TEMP(len(partial) + i)) for i in range(len(partial))]
    whole, texts = _merge(arch.stages, counted)
    reports = tuple(_renamed(e, texts) for e in arch.per_row)
    at = len(call.inputs) + len(arch.element)
    outs = [_Operand("", x, at + j) for j, x in enumerate(call.outputs[len(arch.element) :])]
    named = _reached(arch.per_row, arch)
    statements = tuple((n, t, _renamed(e, texts)) for n, t, e in arch.statements if n in named)
    second = Row(tuple(f"{n}_part" for n in partial), (), whole, (), (*(texts[n] for n in partial), *reports), statements=statements)
    ins = [replace(o, name=f"{n}_part") for n, o in zip(partial, parts, strict=True)]
    for name in _of_rows(arch, call):
        i = call.names.index(name)
        layout = call.inputs[i]
        assert layout is not None
        ins.append(_Operand(name, layout, i, i))
    step("merge", second, ins, [*merged, *outs], (1,))
    late = _reached(arch.element, arch)
    ins = [shown[n] for n in call.names if n in late]
    ins += [_Operand(_whole(n), s.spread(), m.number) for n, m in zip(partial, merged, strict=True) if n in late]
    rename = {"n": "{n_whole}"}
    third = Row(
        tuple(o.name for o in ins),
        element=tuple(_renamed(e, rename) for e in arch.element),
        defaults=arch.defaults,
        statements=tuple((n, t, _renamed(e, rename)) for n, t, e in arch.statements if n in late),
    )
    outs = [_Operand("", s.full(x), len(call.inputs) + j) for j, x in enumerate(call.outputs[: len(arch.element)])]
    step("elements", third, ins, outs, s.inner_dims)
    return Lowered(tuple(launches), tuple(temps))


def _whole(name: str) -> str:
    """The name under which elements read a merged value."""
    return "n_whole" if name == "n" else name


def _renamed(expr: str, texts: dict[str, str]) -> str:
    return T.substitute(expr, {n: texts.get(n, "{" + n + "}") for n in T.names_in(expr)})


def _merge(stages: Sequence[Stage], counted: bool) -> tuple[tuple[Stage, ...], dict[str, str]]:
    """Stages over the parts of a row, all of one size, and what the whole's values are of them. {n} is the number of parts."""
    out: list[Stage] = []
    texts = {}
    for x in stages:
        if x.kind == "sum":
            out.append(Stage(x.name, "sum", "{" + x.name + "_part}"))
            texts[x.name] = "{" + x.name + "}"
            continue
        m, v = "{" + x.name + "_mean_part}", "{" + x.name + "_var_part}"
        mean = "({" + x.name + "_m} / {n})"
        out += [Stage(f"{x.name}_m", "sum", m), Stage(f"{x.name}_q", "sum", f"{v} + ({m} - {mean}) * ({m} - {mean})")]
        texts |= {f"{x.name}_mean": mean, f"{x.name}_var": "({" + x.name + "_q} / {n})"}
    if counted:
        out.append(Stage("n_sum", "sum", "{n_part}"))
        texts["n"] = "{n_sum}"
    return tuple(out), texts


def _call(whole: Call, what: str, kind: Row, ins: Sequence[_Operand], outs: Sequence[_Operand], dim: Shape) -> Call:
    """The call of one step. Operands of one storage in the whole call are of one here."""
    roots: dict[int, int] = {}
    alias = []
    for i, o in enumerate((*ins, *outs)):
        root = whole.alias[o.number] if whole.alias and o.number >= 0 else o.number
        alias.append(roots.setdefault(root, i))
    compute = tuple(float32 if o.source < 0 else whole.compute[o.source] for o in ins)
    op = cast("Op", _Named(f"{whole.op.name} ({what})", kind))
    names = tuple(o.name for o in ins)
    return Call(op, names, tuple(o.layout for o in ins), tuple(o.layout for o in outs), compute, {"dim": dim}, whole.scalars, tuple(alias))
