"""Scans (archetype Scan) along one dimension of any layout: cumulative sums, products, extremes and logarithms of sums.

In: a Call of a Scan op. Out: one launch where every row is scanned in one go; otherwise three: each part of a row is
reduced, the parts' accumulators are scanned in a temporary, and each part is scanned from what comes before it.
Either an invocation walks a row (or a part of it) alone, or a workgroup shares it, tile after tile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..dtype import DType, bool_, uint32
from ..errors import DeviceError
from ..ops.archetype import Scan
from ..shape import Shape, collapse, numel
from ..storage import Layout
from . import template as T
from .kernel import TEMP, Call, Kernel, Launch, Lowered, Profile
from .operand import Operand, bind
from .scan_wgsl import ScanForm, monoid_of, source

LONGEST = 16384  # entries an invocation takes in one after another at most: drivers stop long loops, and rounding adds up
CHUNK = 512  # entries of a part that a software device's invocation takes
ROWS = 131072  # rows, or parts of them, that fill a GPU with an invocation each
FEW = 8192  # rows from which on a GPU's invocations scan the accumulators of the parts alone
TEAMS = 2048  # workgroups that fill a GPU
SHORT = 32  # elements up to which a GPU gives a row to one invocation


@dataclass(frozen=True, slots=True)
class _Rows:
    """The geometry of a call: rows of `count` entries; strides in entries of input (x) and outputs (o) over them."""

    call: Call
    profile: Profile
    kind: str
    sizes: Shape
    x: Shape
    o: Shape
    steps: tuple[int, int]
    count: int
    width: int
    across: bool

    @property
    def rows(self) -> int:
        """Rows, or groups of `width` neighbouring ones."""
        return numel(self.sizes)

    @property
    def value(self) -> str:
        """WGSL type that is accumulated."""
        found = self.call.outputs[0].dtype.value
        return "u32" if found == "bool" else found


@dataclass(frozen=True, slots=True)
class _Plan:
    """Who scans: invocations a row (1: alone), of a workgroup, entries taken at a time, parts of a row and their length."""

    team: int
    workgroup: int
    items: int
    parts: int
    chunk: int


def lower(call: Call, profile: Profile) -> Lowered:
    """Launches for a Scan op."""
    out = call.outputs[0]
    if out.numel == 0:
        return Lowered(())
    if any(not o.contiguous for o in call.outputs):
        raise DeviceError(f"{call.op.name}: the results of a scan must be contiguous, not {call.outputs!r}")
    rows = _rows(call, profile)
    plan = _plan(rows)
    if plan.parts == 1:
        return Lowered((_launch(rows, plan, "whole"),))
    words = rows.rows * (rows.width if rows.across else 1) * plan.parts * len(monoid_of(rows.kind, rows.value).parts)
    return Lowered((_launch(rows, plan, "sums"), _carry(rows, plan), _launch(rows, plan, "final")), (words * 4,))


def _rows(call: Call, profile: Profile) -> _Rows:
    """How rows lie, and whether four neighbours along or across them are one entry."""
    x, out, arch = call.inputs[0], call.outputs[0], call.op.archetype
    assert x is not None
    assert isinstance(arch, Scan)
    dim = call.attrs["dim"]
    n, steps = (x.shape[dim], (x.strides[dim], out.strides[dim])) if x.shape else (1, (1, 1))
    rest = [d for d in range(len(x.shape)) if d != dim]
    sizes, (sx, so) = collapse(tuple(x.shape[d] for d in rest), tuple(x.strides[d] for d in rest), tuple(out.strides[d] for d in rest))
    offsets = (x.offset, *(o.offset for o in call.outputs))
    own = not call.alias or len({*call.alias}) == len(call.alias)
    even = own and all(v % 4 == 0 for v in offsets)
    if even and n % 4 == 0 and steps == (1, 1) and all(s % 4 == 0 for s in (*sx, *so)):
        return _Rows(call, profile, arch.kind, sizes, _quarter(sx), _quarter(so), (1, 1), n // 4, 4, False)
    beside = bool(sizes) and sizes[-1] % 4 == 0 and sx[-1] == so[-1] == 1
    if even and beside and all(s % 4 == 0 for s in (*sx[:-1], *so[:-1], *steps)):
        quads = (*sizes[:-1], sizes[-1] // 4)
        near = (*_quarter(sx[:-1]), 1), (*_quarter(so[:-1]), 1)
        return _Rows(call, profile, arch.kind, quads, *near, (steps[0] // 4, steps[1] // 4), n, 4, True)
    return _Rows(call, profile, arch.kind, sizes, sx, so, steps, n, 1, False)


def _quarter(strides: Shape) -> Shape:
    return tuple(s // 4 for s in strides)


def _plan(rows: _Rows) -> _Plan:
    """Choose who scans, by the device and by which neighbours lie side by side."""
    if rows.profile.family == "cpu":
        return _cpu_plan(rows)
    beside = rows.across or (bool(rows.x) and abs(rows.x[-1]) < abs(rows.steps[0]))
    if beside or rows.count * rows.width <= SHORT:
        return _alone(rows, max(1, -(-ROWS // rows.rows)), 32)
    items = 1 if rows.count < 2048 else 4  # entries of width 4 in one go; single elements are taken by fours in any case
    if rows.width == 1:
        items = 4 if rows.count < 8192 else 8
    most = min(256, rows.profile.max_workgroup_size)
    team = min(most, max(32, 1 << (max(1, -(-rows.count // items)) - 1).bit_length()))
    tile = team * items
    parts = min(-(-TEAMS // rows.rows), rows.count // (2 * tile))
    parts = max(1, parts, -(-rows.count // (LONGEST * tile)))
    chunk = -(-rows.count // (parts * tile)) * tile
    return _Plan(team, team, items, -(-rows.count // chunk), chunk)


def _alone(rows: _Rows, wanted: int, least: int) -> _Plan:
    """An invocation a row; up to `wanted` parts a row of at least `least` entries."""
    parts = max(1, min(wanted, rows.count // least), -(-rows.count // LONGEST))
    chunk = -(-rows.count // parts)
    workgroup = 64 if rows.rows * parts < 65536 or rows.profile.family == "cpu" else 128
    return _Plan(1, workgroup, 1 if chunk < 8 else 2 if rows.across and rows.profile.family == "cpu" else 4, -(-rows.count // chunk), chunk)


def _cpu_plan(rows: _Rows) -> _Plan:
    """Alone: a vector of invocations has that many rows or parts at work, and reads each in order."""
    lanes = max(T.lanes(rows.profile), 1)
    if rows.rows >= lanes or rows.count < 64:
        return _alone(rows, 1, 1)
    return _alone(rows, max(lanes, -(-rows.count // CHUNK)), 4)


def _form(rows: _Rows, plan: _Plan, stage: str) -> ScanForm:
    return ScanForm(
        kind=rows.kind,
        stage=stage,
        accumulator=rows.value,
        operands=(),
        access=(),
        team=plan.team,
        workgroup=plan.workgroup,
        subgroups=rows.profile.subgroups and plan.team > 1,
        width=rows.width,
        across=rows.across,
        items=plan.items,
        rank=len(rows.sizes),
        reverse=bool(rows.call.attrs.get("reverse", False)),
    )


def _sums(rows: _Rows, plan: _Plan) -> Layout:
    """The temporary of the parts' accumulators."""
    single = rows.rows * (rows.width if rows.across else 1)
    return Layout(uint32, (single * plan.parts * len(monoid_of(rows.kind, rows.value).parts),))


def _launch(rows: _Rows, plan: _Plan, stage: str) -> Launch:
    """The launch that reads the input, and writes the outputs or the parts' accumulators."""
    call = rows.call
    x = call.inputs[0]
    assert x is not None
    items = [(Operand("input", x.dtype, _compute(call), width=rows.width), 0, x)]
    if stage != "sums":
        for i, (name, layout) in enumerate(zip(("out", "places"), call.outputs, strict=False)):
            items.append((Operand(name, layout.dtype, write=True, width=rows.width), 1 + i, layout))
    if stage != "whole":
        items.append((Operand("sums", uint32, write=stage == "sums"), TEMP(0), _sums(rows, plan)))
    bound = bind(items, call.alias, rows.profile, call.op.name)
    shift = {o.name: s for o, s in zip(bound.operands, bound.shifts, strict=True)}
    form = _with(_form(rows, plan, stage), bound.operands, bound.access)
    o_at = call.outputs[0].offset - shift.get("out", 0)
    total = rows.rows * plan.parts
    words = _words(rows, plan, total)
    words += [*rows.sizes, (x.offset - shift["input"]) // rows.width, rows.steps[0], *rows.x, o_at // rows.width, rows.steps[1], *rows.o]
    per = plan.workgroup if plan.team == 1 else 1
    return _made(call, form, bound.numbers, -(-total // per), words, bound.ranges)


def _compute(call: Call) -> DType:
    """What elements are loaded as: bools stay bools, everything else has the values' dtype."""
    return bool_ if call.outputs[0].dtype.kind == "b" else call.outputs[0].dtype


def _words(rows: _Rows, plan: _Plan, total: int) -> list[int]:
    """Parameters that every stage has; accumulators of neighbouring invocations lie side by side."""
    single = rows.rows * (rows.width if rows.across else 1)
    steps = [1, single] if plan.team == 1 else [plan.parts, 1]
    return [rows.rows, total, rows.count, plan.parts, plan.chunk, single * plan.parts, *steps]


def _carry(rows: _Rows, plan: _Plan) -> Launch:
    """The launch that turns the parts' accumulators into what comes before each part."""
    single = rows.rows * (rows.width if rows.across else 1)
    alone = rows.profile.family == "cpu" or single >= FEW or plan.parts <= 8
    team = 1 if alone else min(256, rows.profile.max_workgroup_size, max(32, 1 << (plan.parts - 1).bit_length()))
    made = _form(rows, _Plan(team, 64 if alone else team, 1, plan.parts, plan.chunk), "carry")
    bound = bind([(Operand("sums", uint32, write=True), TEMP(0), _sums(rows, plan))], rows.call.alias, rows.profile, rows.call.op.name)
    form = _with(made, bound.operands, bound.access, plain=True)
    words = _words(rows, plan, single)
    words[0] = single
    return _made(rows.call, form, bound.numbers, -(-single // 64) if alone else single, words, bound.ranges)


def _with(form: ScanForm, operands: tuple[Operand, ...], access: tuple[str, ...], plain: bool = False) -> ScanForm:
    """The form with its operands; `plain` drops what the stage does not look at, so that pipelines are shared."""
    if plain:
        return replace(form, operands=operands, access=access, width=1, across=False, items=1, rank=0, reverse=False)
    return replace(form, operands=operands, access=access)


def _made(
    call: Call, form: ScanForm, numbers: tuple[int, ...], groups: int, words: list[int], ranges: tuple[tuple[int, int], ...] | None
) -> Launch:
    kernel = Kernel(("scan", form), lambda profile: source(form, profile), form.access, call.op.name, trusted=True)
    return Launch(kernel, numbers, T.grid(groups), T.pack(words), (), ranges)
