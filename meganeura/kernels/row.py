"""Rows (archetype Row): softmax, normalisations, cross-entropy and their gradients, one kernel each.

In: a Call of a Row op. Out: one launch, after copies of operands whose layout it cannot walk. A row belongs to a team
(monoid.Team): one invocation for short or strided rows, a subgroup on software Vulkan, a workgroup on GPUs, which keeps
the row in registers while it fits and otherwise reads it once a pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import DeviceError
from ..ops.archetype import Row
from ..shape import Shape, broadcast_strides, collapse, numel
from ..storage import Layout, padded_bytes
from . import row_split
from . import template as T
from .kernel import STATUS, TEMP, Call, Kernel, Launch, Lowered, Profile
from .monoid import Team
from .move import contiguous, copies
from .operand import Operand, bind, grouped, mixed, runs, stride_over
from .row_wgsl import RowForm, source
from .statements import Functions

SHORT = 32  # entries (elements, or vec4s) up to which one invocation takes a whole row
REGISTERS = 16  # vec4s a thread may hold of all full inputs
FEW = 256  # rows, too few to fill a GPU with workgroups of 256, of which long ones get larger workgroups
STREAMED = 8192  # entries from which a row is long
WIDE = 512  # invocations that then share it, without registers for the row,
HELD = 1024, 2048  # and numbers of entries between which they share a row of a single input, in registers
SINGLES = 8  # elements in flight an invocation where vec4s cannot be read


@dataclass(frozen=True, slots=True)
class _Walk:
    """How one operand is walked: `role` as in RowForm; `steps` a stride per kept dimension."""

    operand: Operand
    number: int
    layout: Layout
    role: str
    steps: Shape
    step: int
    inner: int = 0  # elements in a row that one element of a 'group' operand serves
    run: tuple[int, int] | None = None  # (elements, stride) of the runs that make up a row, where one stride does not walk it

    def aligned(self) -> bool:
        """Whether every row can be read as vec4s."""
        return self.step == 1 and self.layout.offset % 4 == 0 and all(s % 4 == 0 for s in (*self.steps, *(self.run or ())))


class _Rows:
    """The geometry of a call: row length, number of rows, collapsed kept dimensions, and the operands."""

    def __init__(self, call: Call, profile: Profile) -> None:
        arch = call.op.archetype
        assert isinstance(arch, Row)
        self.call, self.profile, self.arch = call, profile, arch
        self.copies: list[Launch] = []
        self.copies_back: list[Launch] = []
        self.temps: list[int] = []
        shape = self.shape = self._shape()
        dims = call.attrs["dim"]
        self.inside = tuple(shape[d] for d in dims)
        self.n = numel(self.inside)
        self.dims = dims
        self.kept = tuple(s for d, s in enumerate(shape) if d not in dims)
        self.rows = numel(self.kept)
        self.walks: list[_Walk] = []

    def _shape(self) -> Shape:
        for name, layout in zip(self.call.names, self.call.inputs, strict=True):
            if name == self.arch.full[0] and layout is not None:
                return layout.shape
        raise DeviceError(f"{self.call.op.name}: its first input must be a tensor")

    def collect(self) -> None:
        """Find how every operand is walked, copying those that a single stride does not reach."""
        call = self.call
        full = []
        for i, (name, layout) in enumerate(zip(call.names, call.inputs, strict=True)):
            if layout is None:
                continue
            if name in self.arch.full and layout.shape != self.shape:  # broadcast
                layout = layout.with_(shape=self.shape, strides=broadcast_strides(layout.shape, layout.strides, self.shape))
            role = "full" if name in self.arch.full else "column" if name in self.arch.column else "row"
            item = (Operand(name, layout.dtype, call.compute[i]), i, layout, role)
            if role == "full":
                full.append(item)
            else:
                self.walks.append(self._narrow(*item))
        for j, layout in enumerate(call.outputs):
            role = "element" if j < len(self.arch.element) else "per_row"
            o = Operand(f"out.{j}", layout.dtype, write=True)
            if role == "element":
                full.append((o, len(call.inputs) + j, layout, role))
            else:
                self.walks.append(_Walk(o, len(call.inputs) + j, layout, role, (), 1))
        self._full(full)

    def _narrow(self, o: Operand, number: int, layout: Layout, role: str) -> _Walk:
        """An operand with one value a column or a row (a single value is repeated)."""
        wanted = self.n if role == "column" else self.rows
        if layout.numel == 1 and wanted != 1:
            return _Walk(o, number, layout, role, (), 0)
        if layout.numel != wanted:
            what = f"{wanted} values, one a {role}"
            raise DeviceError(f"{self.call.op.name}: {o.name} has shape {list(layout.shape)}, expected {what}")
        step = stride_over(layout.shape, layout.strides)
        if step is None:
            number, layout = self._copy(number, layout)
            step = 1
        return _Walk(o, number, layout, role, (), step)

    def _full(self, items: list[tuple[Operand, int, Layout, str]]) -> None:
        """Operands with the full shape: one element stride each, the kept dimensions collapsed together."""
        found = []
        for o, number, layout, role in items:
            step, inner = stride_over(self.inside, [layout.strides[d] for d in self.dims]), 0
            run: tuple[int, int] | None = None
            if step is None and role == "full" and self.n < T.MAX_RECIPROCAL:
                step, inner = grouped(self.inside, [layout.strides[d] for d in self.dims]) or (None, 0)
                role = "group" if inner else role
            if step is None and self.n < T.MAX_RECIPROCAL and (both := runs(self.inside, [layout.strides[d] for d in self.dims])):
                step, run = both[0], both[1:]
            if step is None:
                number, layout = (self._copy_back if role == "element" else self._copy)(number, layout)
                step = 1
            if role == "full" and len(items) > 1 and self.n > 1 and run is None:
                role = self._lesser(layout, step)
            if role == "column":
                self.walks.append(_Walk(o, number, layout, role, (), step))
            else:
                found.append((o, number, layout, role, step, inner, run))
        kept = [tuple(s for d, s in enumerate(w[2].strides) if d not in self.dims) for w in found]
        self.sizes, steps = collapse(self.kept, *kept)
        for (o, number, layout, role, step, inner, run), st in zip(found, steps, strict=True):
            self.walks.append(_Walk(o, number, layout, role, st, step, inner, run))

    def _lesser(self, layout: Layout, step: int) -> str:
        """What an operand spread over rows or columns is: read once a row, or by columns."""
        if step == 0:
            return "fixed"
        return "column" if not any(s for d, s in enumerate(layout.strides) if d not in self.dims) else "full"

    def _copy(self, number: int, layout: Layout) -> tuple[int, Layout]:
        index = len(self.temps)
        launch, size = contiguous(layout, number, index, self.profile)
        self.copies.append(launch)
        self.temps.append(size)
        return TEMP(index), Layout(layout.dtype, layout.shape)

    def _copy_back(self, number: int, layout: Layout) -> tuple[int, Layout]:
        """A temporary in place of an output, copied into it afterwards."""
        index, plain = len(self.temps), Layout(layout.dtype, layout.shape)
        self.copies_back += copies(plain, layout, (TEMP(index), number), self.profile)
        self.temps.append(padded_bytes(layout.numel, layout.dtype))
        return TEMP(index), plain

    def widen(self) -> int:
        """4 if every row can be read as vec4s, else 1; sets the operands' widths."""
        wide = ("full", "element", "column")
        inner = [w for w in self.walks if w.role in wide]
        if self.n == 0 or self.n % 4 or not all(w.aligned() for w in inner) or any(w.inner % 4 for w in self.walks):
            return 1
        trial = [replace(w, operand=replace(w.operand, width=4)) if w.role in wide else w for w in self.walks]
        if mixed([(w.operand, w.number, w.layout) for w in trial], self.call.alias):
            return 1
        self.walks = trial
        return 4

    def neighbours(self) -> bool:
        """Whether neighbouring rows, not the elements of a row, lie side by side in memory."""
        full = [w for w in self.walks if w.role == "full"]
        return bool(full) and all(w.step != 1 and w.steps and w.steps[-1] == 1 for w in full) and self.sizes[-1] >= 8


def lower(call: Call, profile: Profile) -> Lowered:
    """One launch for a Row op, after copies where needed; three for few long rows on a GPU."""
    shared = row_split.split(call, profile, lower)
    if shared is not None:
        return shared
    rows = _Rows(call, profile)
    if rows.rows == 0 or (rows.n == 0 and not rows.arch.per_row):
        return Lowered(())
    rows.collect()
    width = rows.widen()
    form = _form(rows, width)
    bound = bind([(w.operand, w.number, w.layout) for w in rows.walks], call.alias, profile, call.op.name)
    form = replace(form, operands=bound.operands, access=bound.access)
    access, numbers, ranges = bound.access, bound.numbers, bound.ranges
    if form.report:
        access, numbers = (*access, "read_write"), (*numbers, STATUS)
        ranges = None if ranges is None else (*ranges, (0, 16))
    kernel = Kernel(
        ("row", form), lambda profile: source(form, profile), access, call.op.name, scalars=bool(form.scalars) or form.report, trusted=True
    )
    launch = Launch(
        kernel,
        numbers,
        T.grid(-(-rows.rows // (form.team.rows * form.rows))),
        T.pack(_values(rows, width, bound.shifts)),
        T.scalar_entries(call, form.scalars, form.report),
        ranges,
    )
    return Lowered((*rows.copies, launch, *rows.copies_back), tuple(rows.temps))


def _values(rows: _Rows, width: int, shifts: tuple[int, ...]) -> list[int]:
    """Parameters in the order of row_wgsl.fields."""
    out = [rows.rows, rows.n, rows.n // width, *rows.sizes]
    for w, shift in zip(rows.walks, shifts, strict=True):
        scale = w.operand.width
        out += [(w.layout.offset - shift) // scale, *(s // scale for s in w.steps), w.step]
        out += [T.reciprocal(w.inner // width)] if w.role == "group" else []
        out += [T.reciprocal(w.run[0] // width), (w.run[1] - w.run[0] * w.step) // scale] if w.run else []
    return out


def _form(rows: _Rows, width: int) -> RowForm:
    """Choose team, unrolling and registers; gather what the source depends on."""
    arch, call = rows.arch, rows.call
    entries = rows.n // width
    team = _team(rows, entries, width)
    expressions = [s.expr for s in arch.stages] + list(arch.element) + list(arch.per_row)
    staged = Functions(arch.statements, {}).names(s.expr for s in arch.stages)
    full = max(1, sum(w.role == "full" and (not staged or w.operand.name in staged) for w in rows.walks))
    held = -(-entries // team.width)
    registers = 0
    if team.form in ("group", "cluster") and (team.width <= 256 or entries <= HELD[1]) and held * full * width <= REGISTERS * 4:
        registers = 1 << max(0, held - 1).bit_length()
    pair = team.form == "subgroup" and rows.rows % 2 == 0 and rows.rows >= 64 and any(w.role == "column" for w in rows.walks)
    ahead = SINGLES if width == 1 and team.form == "group" else 4
    unroll = max(1, ahead // full) if not pair and not registers and entries >= ahead * team.width else 1
    exact = entries == registers * team.width if registers else entries > 0 and entries % (unroll * team.width) == 0
    named = {n for e in (*expressions, *(x for _, _, x in arch.statements)) for n in T.names_in(e)}
    absent = [n for n in (*arch.full, *arch.defaults) if n not in call.names]
    return RowForm(
        stages=arch.stages,
        element=arch.element,
        per_row=arch.per_row,
        statements=arch.statements,
        defaults=tuple((n, arch.defaults[n]) for n in absent if n in arch.defaults),
        roles=tuple(w.role for w in rows.walks),
        runs=tuple(w.operand.name for w in rows.walks if w.run),
        operands=(),
        access=(),
        scalars=T.used_scalars(call, named | ({"ignore_index"} if any(s.kind == "pick" for s in arch.stages) else set())),
        team=team,
        registers=registers,
        unroll=unroll,
        exact=exact,
        rows=2 if pair else 1,
        width=width,
        rank=len(rows.sizes),
        report=any(s.kind == "pick" for s in arch.stages),
        apart=2 if pair and entries % (2 * team.width) == 0 else 1,
    )


def _team(rows: _Rows, entries: int, width: int) -> Team:
    """Who works on a row of this many entries of `width` elements."""
    profile = rows.profile
    alone = Team("lane", 1, 64 if rows.rows >= 64 else 8)
    if profile.family == "cpu":
        lanes = T.lanes(profile)
        if not lanes or (entries <= SHORT and rows.rows >= lanes) or (rows.neighbours() and rows.rows >= 64):
            return alone
        return Team("subgroup", lanes, 64 if rows.rows >= 8 else lanes)
    if (entries <= 4 and rows.rows >= 32) or (rows.neighbours() and rows.rows >= 1024):
        return Team("lane", 1, 64)
    cluster = min(32, profile.subgroup_size) if profile.subgroups else 0
    if cluster >= 4 and entries <= 4 * cluster and rows.rows >= 256:
        return Team("cluster", min(cluster, max(4, 1 << (-(-entries // 2) - 1).bit_length())), 128)
    held = width == 4 and HELD[0] <= entries <= HELD[1] and sum(w.role == "full" for w in rows.walks) == 1
    most = min(WIDE, profile.max_workgroup_size) if held or (entries >= STREAMED and rows.rows <= FEW) else 256
    size = min(most, max(32, 1 << (max(1, -(-entries // (2 if held else 4))) - 1).bit_length()))
    return Team("group", size, size, subgroups=profile.subgroups)
