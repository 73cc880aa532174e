"""Reductions (archetype Reduce) over any dimensions of any layout.

In: a Call of a Reduce op. Out: one launch, or two where the work is split in parts whose partial results meet in a
temporary (more where an input exceeds a binding). Either a team (monoid.Team) shares the elements of one result, or an
invocation owns one result (four neighbouring ones) and walks the reduced dimensions alone, or on GPUs together with the others
of its column in a workgroup; kept and reduced dimensions are collapsed first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..dtype import uint32
from ..shape import Shape
from ..storage import Layout
from . import template as T
from .kernel import TEMP, Call, Kernel, Launch, Lowered, Profile
from .monoid import Team
from .operand import Operand, bind
from .reduce_problem import Problem, problem_of
from .reduce_wgsl import BLOCK, ReduceForm, monoid_of, source

DEPTH = 512  # elements one accumulator takes in (four at a time) before partial results are merged: numpy's accuracy
SHALLOW = 32  # rows of a wide matrix a software device adds up at a time: more streams than it can prefetch cost 2.5 times
WHOLE = 256  # rows that a software device adds up in one launch, which then takes less time than a second one to merge parts,
CACHED = 1 << 20  # if there are no more elements than this
ALONE = 64  # rows that an invocation of a column takes in, or up to twice as many, before columns are split among workgroups
TEAMS = 1024  # teams that fill a GPU
LANES = 65536  # invocations that fill a GPU


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
    def lane(self) -> bool:
        """Whether entries lie along the kept dimensions."""
        return self.team.form in ("lane", "column")

    @property
    def turns(self) -> int:
        """About how often an accumulator is added to."""
        return self.adds // self.unroll


@dataclass(frozen=True, slots=True)
class _Store:
    """Where partial results go: word `at + result * results + part * parts + lane * lanes` of each part of the accumulator,
    whose words are `total` apart; values (of several reduced at once) are `values` apart."""

    total: int
    at: int
    results: int
    parts: int
    lanes: int
    values: int


def lower(call: Call, profile: Profile) -> Lowered:
    """A launch for a Reduce op, or several whose partial results another one merges."""
    whole = problem_of(call, profile)
    launches: list[Launch] = []
    temps: list[int] = []
    if whole.kept == 0:
        return Lowered(())
    for group in whole.slabs():
        plans = [_plan(slab) for slab in group]
        counts = [plan.parts[0] * plan.parts[1] for plan in plans]
        kept, parts = group[0].kept, sum(counts)
        if parts == 1:
            launches.append(_first(group[0], plans[0], None, 0))
            continue
        along = plans[0].lane  # the parts of a result are far apart, as its elements were
        many = kept * len(whole.values)
        step, near = (1, many) if along else (parts, 1)
        for i, (slab, plan) in enumerate(zip(group, plans, strict=True)):
            lane = plan.width if plan.lane else 1
            store = _Store(many * parts, sum(counts[:i]) * near, step * lane, near, step, kept * step)
            launches.append(_first(slab, plan, store, TEMP(len(temps))))
        launches.append(_second(group[0], whole.n, TEMP(len(temps)), parts, (step, near)))
        temps.append(_words(whole, many * parts).numel * 4)
    return Lowered(tuple(launches), tuple(temps))


def _words(problem: Problem, total: int) -> Layout:
    """The temporary of `total` partial results."""
    return Layout(uint32, (total * len(monoid_of(problem.arch.kind, problem.accumulator).parts),))


def _plan(problem: Problem) -> _Plan:
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


def _team_plan(problem: Problem, lanes: int) -> _Plan:
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
    return _Plan(
        team,
        width,
        True,
        unroll,
        (-(-outer // outer_chunk), max(1, -(-inner // chunk))),
        (outer_chunk, chunk),
        outer_chunk * chunk // team.width,
        exact,
    )


def _lane_plan(problem: Problem) -> _Plan:
    profile, n = problem.profile, problem.n
    width = 4 if problem.wide(False) else 1
    entries = problem.kept // width
    if profile.family != "cpu" and entries < LANES and n > 32:
        return _column_plan(problem, width, entries)
    fill = 64 if profile.family == "cpu" else LANES
    depth = max(8, SHALLOW // len(problem.inputs)) if profile.family == "cpu" and entries >= 64 else DEPTH
    parts = max(1, min(-(-fill // entries), n // 16), -(-n // depth) if n > depth + depth // 2 else 1)
    if profile.family == "cpu" and n <= WHOLE and n * problem.kept * len(problem.inputs) <= CACHED:
        parts = 1
    size = 64 if profile.family == "cpu" else 256 if entries * parts >= LANES else 64
    unroll = 4 if n >= 4 * parts else 1
    return _Plan(Team("lane", 1, size), width, False, unroll, (1, parts), (1, parts), n // parts, n > 0 and n % (parts * unroll) == 0)


def _column_plan(problem: Problem, width: int, entries: int) -> _Plan:
    """A workgroup for as many neighbouring columns as one memory transaction has; few and long ones are shared by several."""
    n, size = problem.n, 256
    share = min(size // min(32 // width, _power(entries)), _power(-(-LANES // entries)), _power(n // 4 + 1) // 2)
    parts = 1 if n < 2 * share * ALONE else max(1, min(-(-LANES // (entries * share)), n // (share * 16)), -(-n // (share * DEPTH)))
    adds = n // (parts * share)
    unroll = 4 if adds >= 4 else 1
    exact = n % (parts * share * unroll) == 0
    return _Plan(Team("column", share, size), width, False, unroll, (1, parts), (1, parts), adds, exact)


def _power(value: int) -> int:
    """The least power of two that is not smaller."""
    return 1 << (value - 1).bit_length()


def _round(value: int, step: int) -> int:
    return max(1, -(-value // step)) * step


def _form(problem: Problem, plan: _Plan, partial: bool) -> ReduceForm:
    arch = problem.arch
    expressions = [*problem.values, *(e for _, e in problem.results), *(e for _, _, e in arch.statements)]
    named = {n for e in expressions for n in T.names_in(e)}
    return ReduceForm(
        kind=arch.kind,
        accumulator=problem.accumulator,
        truth=problem.reduced == "bool",
        values=problem.values,
        results=problem.results,
        statements=arch.statements,
        operands=(),
        once=0 if partial else len(problem.once),
        outs=1 if partial else len(problem.outs),
        access=(),
        scalars=T.used_scalars(problem.call, named),
        team=plan.team,
        width=plan.width,
        nested=plan.nested,
        unroll=plan.unroll,
        exact=plan.exact,
        blocked=arch.kind == "sum" and problem.accumulator == "f32" and plan.turns > 2 * BLOCK,
        split=plan.parts != (1, 1),
        ranks=(len(problem.sizes), len(problem.inner)),
        partial=partial,
        partials=False,
    )


def _first(problem: Problem, plan: _Plan, store: _Store | None, temp: int) -> Launch:
    """The launch that reads the inputs; it stores partial results in `temp`, or the results."""
    form = _form(problem, plan, store is not None)
    lane = plan.lane
    widths = [x.entry(not lane, plan.width) for x in problem.inputs]
    ins = [
        (replace(x.operand, width=width), x.number, x.layout(problem.sizes, problem.inner))
        for x, width in zip(problem.inputs, widths, strict=True)
    ]
    rest = problem.single() if store is None else [(Operand("out", uint32, write=True), temp, _words(problem, store.total))]
    bound = bind([*ins, *rest], problem.call.alias, problem.profile, problem.call.op.name, T.large(problem.call, problem.profile))
    form = replace(form, operands=bound.operands, access=bound.access)
    along, across = (plan.width, 1) if lane else (1, plan.width)
    sizes, inner = list(problem.sizes), list(problem.inner)
    if sizes:
        sizes[-1] //= along
    if inner:
        inner[-1] //= across
    kept = problem.kept // along
    teams = kept * plan.parts[0] * plan.parts[1]
    words = [kept, teams, problem.n, problem.first_number, *plan.parts, *plan.chunks, *sizes, *inner]
    for x, width, shift in zip(problem.inputs, widths, bound.shifts, strict=False):
        words += [(x.offset - shift) // width, *_entries(x.kept, lane, width), *_entries(x.inner, not lane, width)]
    if store is None:
        words += _results(problem, bound.shifts[len(ins) :])
    else:
        words += [store.at, store.total, store.results, store.parts, store.lanes, store.values]
    return _launch(problem, form, bound.numbers, words, teams, bound.ranges)


def _results(problem: Problem, shifts: tuple[int, ...]) -> list[int]:
    """First element and stride of the operands with one value a result."""
    words = []
    for (_, _, x), step, shift in zip(problem.single(), problem.steps(), shifts, strict=True):
        words += [x.offset + problem.first_result * step - shift, step]
    return words


def _entries(strides: Shape, along: bool, width: int) -> list[int]:
    """Strides in array entries; the last one of the dimension that entries lie along is 1 already."""
    if width == 1:
        return list(strides)
    return [1 if along and d == len(strides) - 1 else s // width for d, s in enumerate(strides)]


def _second(problem: Problem, n: int, temp: int, parts: int, steps: tuple[int, int]) -> Launch:
    """The launch that merges the partial results of `n` elements each; `steps` from result to result and from part to part."""
    profile, kept = problem.profile, problem.kept * len(problem.values)
    lanes = T.lanes(profile)
    if kept >= (64 if profile.family == "cpu" else 4096) or parts <= 16 or (profile.family == "cpu" and not lanes):
        team = Team("lane", 1, 64)
    elif profile.family == "cpu":
        team = Team("subgroup", lanes, 64 if kept >= 8 else lanes)
    else:
        size = min(256, max(32, 1 << (parts - 1).bit_length()))
        team = Team("group", size, size, subgroups=profile.subgroups)
    plan = _Plan(team, 1, False, 4, (1, 1), (1, parts), parts // team.width)
    total = kept * parts
    partials = (Operand("partials", uint32, uint32), temp, _words(problem, total))
    bound = bind([partials, *problem.single()], problem.call.alias, profile, problem.call.op.name, T.large(problem.call, profile))
    form = replace(_form(problem, plan, False), partials=True, operands=bound.operands, access=bound.access, ranks=(0, 0))
    words = [kept, kept, n, 0, 1, 1, 1, parts, total, parts, *steps, problem.kept, *_results(problem, bound.shifts[1:])]
    return _launch(problem, form, bound.numbers, words, kept, bound.ranges)


def _launch(
    problem: Problem, form: ReduceForm, numbers: tuple[int, ...], words: list[int], teams: int, ranges: tuple[tuple[int, int], ...] | None
) -> Launch:
    kernel = Kernel(
        ("reduce", form), lambda profile: source(form, profile), form.access, problem.call.op.name, scalars=bool(form.scalars), trusted=True
    )
    grid = T.grid(-(-teams // form.team.rows))
    return Launch(kernel, numbers, grid, T.pack(words), T.scalar_entries(problem.call, form.scalars), ranges)
