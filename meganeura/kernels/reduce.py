"""Reductions (archetype Reduce) over any dimensions of any layout.

In: a Call of a Reduce op. Out: one launch, or two where the work is split in parts whose partial results meet in a
temporary. Either a team (monoid.Team) shares the elements of one result, or an invocation owns one result (four
neighbouring ones) and walks the reduced dimensions alone; kept and reduced dimensions are collapsed first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..dtype import uint32
from ..errors import DeviceError
from ..ops.archetype import Reduce
from ..shape import Shape, broadcast_shapes, broadcast_strides, collapse, numel
from ..storage import Layout
from . import template as T
from .kernel import TEMP, Call, Kernel, Launch, Lowered, Profile
from .monoid import Team
from .operand import Operand, bind, mixed
from .reduce_wgsl import BLOCK, ReduceForm, monoid_of, source

DEPTH = 512  # elements one accumulator takes in (four at a time) before partial results are merged: numpy's accuracy
SHALLOW = 32  # rows of a wide matrix a software device adds up at a time: more streams than it can prefetch cost 2.5 times
TEAMS = 1024  # teams that fill a GPU
LANES = 65536  # invocations that fill a GPU


@dataclass(frozen=True, slots=True)
class _Input:
    operand: Operand
    number: int
    layout: Layout
    kept: Shape  # strides over the collapsed kept dimensions
    inner: Shape  # strides over the collapsed reduced dimensions


@dataclass(frozen=True, slots=True)
class _Plan:
    """Who reduces what: `width` elements an entry, along the reduced dimensions (team) or the kept ones (lane)."""

    team: Team
    width: int
    nested: bool
    unroll: int
    parts: tuple[int, int]  # parts of the outer and of the inner reduced dimensions
    chunks: tuple[int, int]  # sizes of a part: outer indices, inner entries
    adds: int  # entries an invocation takes in
    exact: bool = False  # every part is a whole number of unrolled turns

    @property
    def turns(self) -> int:
        """About how often an accumulator is added to."""
        return self.adds // self.unroll


class _Problem:
    """The geometry of a call."""

    def __init__(self, call: Call, profile: Profile) -> None:
        arch = call.op.archetype
        assert isinstance(arch, Reduce)
        self.call, self.profile, self.arch = call, profile, arch
        layouts = [x for x in call.inputs if x is not None]
        shape = broadcast_shapes(*(x.shape for x in layouts))
        dims = call.attrs["dim"]
        kept = [d for d in range(len(shape)) if d not in dims]
        strides = [broadcast_strides(x.shape, x.strides, shape) for x in layouts]
        self.sizes, kept_strides = collapse(tuple(shape[d] for d in kept), *(tuple(s[d] for d in kept) for s in strides))
        self.inner, inner_strides = collapse(tuple(shape[d] for d in dims), *(tuple(s[d] for d in dims) for s in strides))
        self.kept, self.n = numel(self.sizes), numel(self.inner)
        tensors = [i for i, x in enumerate(call.inputs) if x is not None]
        self.inputs = [
            _Input(Operand(call.names[i], x.dtype, call.compute[i]), i, x, k, r)
            for i, x, k, r in zip(tensors, layouts, kept_strides, inner_strides, strict=True)
        ]
        self.out = call.outputs[0]
        if not self.out.contiguous:
            raise DeviceError(f"{call.op.name}: the result of a reduction must be contiguous, not {self.out!r}")

    def wide(self, team: bool) -> bool:
        """Whether entries of four elements can be loaded along the reduced (team) or kept dimensions."""
        sizes = self.inner if team else self.sizes
        if not sizes or sizes[-1] % 4 or self.n == 0:
            return False
        for x in self.inputs:
            along, others = (x.inner, x.kept) if team else (x.kept, x.inner)
            if along[-1] != 1 or x.layout.offset % 4 or any(s % 4 for s in (*along[:-1], *others)):
                return False
        trial = [(replace(x.operand, width=4), x.number, x.layout) for x in self.inputs]
        return not mixed([*trial, (Operand("out", self.out.dtype), len(self.call.inputs), self.out)], self.call.alias)


def lower(call: Call, profile: Profile) -> Lowered:
    """One or two launches for a Reduce op."""
    problem = _Problem(call, profile)
    if problem.kept == 0:
        return Lowered(())
    plan = _plan(problem)
    parts = plan.parts[0] * plan.parts[1]
    if parts == 1:
        return Lowered((_first(problem, plan, None),))
    form_parts = len(monoid_of(problem.arch.kind, _accumulator(problem)).parts)
    total = problem.kept * parts
    return Lowered((_first(problem, plan, TEMP(0)), _second(problem, plan, total)), (total * form_parts * 4,))


def _accumulator(problem: _Problem) -> str:
    """WGSL type that is accumulated (of the values compared, for argmax and argmin)."""
    if problem.arch.kind in ("argmax", "argmin"):
        value = problem.call.compute[0].value
    else:
        value = problem.out.dtype.value
    return "u32" if value == "bool" else value


def _plan(problem: _Problem) -> _Plan:
    """Choose who reduces: by which dimension is contiguous, and how many results there are."""
    x = problem.inputs[0]
    n, kept, profile = problem.n, problem.kept, problem.profile
    step = abs(x.inner[-1]) if x.inner else 0
    neighbour = abs(x.kept[-1]) if x.kept else 0
    along = kept < 32 if step != 1 and neighbour != 1 else step == 1 or kept == 1
    lanes = T.lanes(profile)
    able = lanes > 0 if profile.family == "cpu" else True
    if able and n > 1 and (kept == 1 or (along and n > (32 if kept >= lanes else 8))):
        return _team_plan(problem, lanes)
    return _lane_plan(problem)


def _team_plan(problem: _Problem, lanes: int) -> _Plan:
    profile, kept = problem.profile, problem.kept
    width = 4 if problem.wide(True) else 1
    entries = problem.n // width
    inner = problem.inner[-1] // width if problem.inner else 1
    outer = max(1, entries // max(inner, 1))
    if profile.family == "cpu":
        parts = -(-entries // (DEPTH * lanes)) if entries > 2 * DEPTH * lanes else 1
        team = Team("subgroup", lanes, 64 if kept * parts >= 8 else lanes)
        nested = outer == 1 or inner >= 4 * lanes
    else:
        size = min(256, max(32, 1 << (max(1, entries // 4) - 1).bit_length()))
        team = Team("group", size, size, subgroups=profile.subgroups)
        nested = outer == 1
        parts = min(-(-TEAMS // kept), -(-problem.n // 4096))
        parts = max(1, parts, -(-entries // (DEPTH * size)))
    unroll = 4 if (inner if nested else entries) >= 4 * team.width else 1
    exact = entries > 0 and (inner if nested else entries) % (unroll * team.width) == 0
    if not nested:
        chunk = _round(-(-entries // parts), team.width * unroll)
        return _Plan(team, width, False, unroll, (1, -(-entries // chunk) if entries else 1), (1, chunk), chunk // team.width, exact)
    outer_parts = min(outer, parts)
    outer_chunk = -(-outer // outer_parts)
    chunk = _round(-(-inner // -(-parts // outer_parts)), team.width * unroll)
    return _Plan(team, width, True, unroll, (-(-outer // outer_chunk), max(1, -(-inner // chunk))), (outer_chunk, chunk), outer_chunk * chunk // team.width, exact)


def _lane_plan(problem: _Problem) -> _Plan:
    profile, n = problem.profile, problem.n
    width = 4 if problem.wide(False) else 1
    entries = problem.kept // width
    fill = 64 if profile.family == "cpu" else LANES
    depth = SHALLOW if profile.family == "cpu" and entries >= 64 else DEPTH
    parts = max(1, min(-(-fill // entries), n // 16), -(-n // depth) if n > depth + depth // 2 else 1)
    size = 64 if profile.family == "cpu" else 256 if entries * parts >= LANES else 64
    unroll = 4 if n >= 4 * parts else 1
    return _Plan(Team("lane", 1, size), width, False, unroll, (1, parts), (1, parts), n // parts, n > 0 and n % (parts * unroll) == 0)


def _round(value: int, step: int) -> int:
    return max(1, -(-value // step)) * step


def _form(problem: _Problem, plan: _Plan, partial: bool) -> ReduceForm:
    arch = problem.arch
    named = {*T.names_in(arch.pre), *T.names_in(arch.post)}
    return ReduceForm(
        kind=arch.kind,
        accumulator=_accumulator(problem),
        pre=arch.pre or "{" + problem.call.names[0] + "}",
        post=arch.post,
        operands=(),
        access=(),
        scalars=T.used_scalars(problem.call, named),
        team=plan.team,
        width=plan.width,
        nested=plan.nested,
        unroll=plan.unroll,
        exact=plan.exact,
        blocked=arch.kind == "sum" and _accumulator(problem) == "f32" and plan.turns > 2 * BLOCK,
        split=plan.parts != (1, 1),
        ranks=(len(problem.sizes), len(problem.inner)),
        partial=partial,
        partials=False,
    )


def _first(problem: _Problem, plan: _Plan, temp: int | None) -> Launch:
    """The launch that reads the inputs; it writes partial results to `temp`, or the results."""
    form = _form(problem, plan, temp is not None)
    ins = [(replace(x.operand, width=plan.width), x.number, x.layout) for x in problem.inputs]
    parts = plan.parts[0] * plan.parts[1]
    if temp is None:
        out = (Operand("out", problem.out.dtype, write=True), len(problem.call.inputs), problem.out)
    else:
        out = (Operand("out", uint32, write=True), temp, Layout(uint32, (problem.kept * parts,)))
    bound = bind([*ins, out], problem.call.alias, problem.profile, problem.call.op.name)
    form = replace(form, operands=bound.operands, access=bound.access)
    lane = plan.team.form == "lane"
    along, across = (plan.width, 1) if lane else (1, plan.width)
    sizes, inner = list(problem.sizes), list(problem.inner)
    if sizes:
        sizes[-1] //= along
    if inner:
        inner[-1] //= across
    kept = problem.kept // along
    words = [kept, kept * parts, problem.n, *plan.parts, *plan.chunks, *sizes, *inner]
    for x, shift in zip(problem.inputs, bound.shifts, strict=False):
        words += [(x.layout.offset - shift) // plan.width, *_entries(x.kept, lane, plan.width), *_entries(x.inner, not lane, plan.width)]
    words += [0 if temp is not None else problem.out.offset - bound.shifts[-1]]
    return _launch(problem, form, bound.numbers, words, kept * parts, bound.ranges)


def _entries(strides: Shape, along: bool, width: int) -> list[int]:
    """Strides in array entries; the last one of the dimension that entries lie along is 1 already."""
    if width == 1:
        return list(strides)
    return [1 if along and d == len(strides) - 1 else s // width for d, s in enumerate(strides)]


def _second(problem: _Problem, plan: _Plan, total: int) -> Launch:
    """The launch that merges the partial results."""
    profile, kept = problem.profile, problem.kept
    parts = total // kept
    lanes = T.lanes(profile)
    if kept >= (64 if profile.family == "cpu" else 4096) or parts <= 16 or (profile.family == "cpu" and not lanes):
        team = Team("lane", 1, 64)
    elif profile.family == "cpu":
        team = Team("subgroup", lanes, 64 if kept >= 8 else lanes)
    else:
        size = min(256, max(32, 1 << (parts - 1).bit_length()))
        team = Team("group", size, size, subgroups=profile.subgroups)
    second = _Plan(team, 1, False, 4, (1, 1), (1, parts), parts // team.width)
    form = replace(_form(problem, second, False), partials=True)
    temp = (Operand("partials", uint32, uint32), TEMP(0), Layout(uint32, (total,)))
    out = (Operand("out", problem.out.dtype, write=True), len(problem.call.inputs), problem.out)
    bound = bind([temp, out], problem.call.alias, profile, problem.call.op.name)
    form = replace(form, operands=bound.operands, access=bound.access, ranks=(0, 0))
    steps = (1, kept) if plan.team.form == "lane" else (parts, 1)
    words = [kept, kept, problem.n, 1, 1, 1, second.chunks[1], total, parts, *steps, problem.out.offset - bound.shifts[1]]
    return _launch(problem, form, bound.numbers, words, kept, bound.ranges)


def _launch(
    problem: _Problem, form: ReduceForm, numbers: tuple[int, ...], words: list[int], teams: int, ranges: tuple[tuple[int, int], ...] | None
) -> Launch:
    kernel = Kernel(("reduce", form), lambda profile: source(form, profile), form.access, problem.call.op.name, scalars=bool(form.scalars))
    grid = T.grid(-(-teams // form.team.rows))
    return Launch(kernel, numbers, grid, T.pack(words), T.scalar_entries(problem.call, form.scalars), ranges)


