"""Reading and summing by index: index_select, gather and segment_sum.

In: a Call named so. Out: for the first two one kernel (several when the table exceeds a binding), after copies of
layouts it cannot walk; segment_sum is in segment.py. Indices come from data, so every one is checked in the kernel:
one outside the dimension is reported through the status words and reads as 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import DeviceError
from ..shape import Shape, collapse, extent
from ..storage import Layout
from . import segment
from . import template as T
from .kernel import STATUS, Call, Kernel, Launch, Lowered, Profile
from .monoid import Team
from .operand import Operand, bind, declare, mixed


@dataclass(frozen=True, slots=True)
class GatherForm:
    """Everything the source of an index_select or gather kernel depends on: the pipeline key."""

    operands: tuple[Operand, ...]  # table, index, output
    access: tuple[str, ...]
    team: Team  # an entry an invocation, or a row a subgroup
    rank: int  # collapsed output dimensions
    wrap: bool  # negative indices count from the end

    def fields(self) -> list[str]:
        """Parameter names, in the order of `_words`."""
        dims = range(self.rank)
        sizes = ["total", "limit", "low", "high", *(f"size{d}" for d in dims)]
        return [*sizes, "table_at", "table_step", *(f"t{d}" for d in dims), "index_at", *(f"i{d}" for d in dims), "out_at"]


@dataclass(frozen=True, slots=True)
class _Walk:
    """Collapsed output dimensions with the strides of table (0 along the indexed dimension) and index over them."""

    sizes: Shape
    table: Shape
    index: Shape
    step: int  # the table's stride along the indexed dimension
    limit: int  # size of that dimension
    width: int


def lower(call: Call, profile: Profile) -> Lowered:
    """Launches for index_select, gather or segment_sum."""
    name = getattr(call.op.archetype, "name", "")
    if name == "segment_sum":
        return segment.lower(call, profile)
    out = call.outputs[0]
    if out.numel == 0:
        return Lowered(())
    if not out.contiguous:
        raise DeviceError(f"{call.op.name}: the output must be contiguous, not {out!r}")
    walk = _walk(call, name)
    return Lowered(tuple(_launch(call, walk, w, profile) for w in _windows(call, walk, profile)))


def _walk(call: Call, name: str) -> _Walk:
    """How output, table and index are walked together."""
    table, index = call.inputs[0], call.inputs[1]
    assert table is not None
    assert index is not None
    dim = call.attrs["dim"] % max(len(table.shape), 1)
    step, limit = (table.strides[dim], table.shape[dim]) if table.shape else (0, 1)
    if name == "gather":
        shape, along = index.shape, index.strides
        fixed = tuple(0 if d == dim else s for d, s in enumerate(table.strides))
    else:
        before, after = table.shape[:dim], table.shape[dim + 1 :]
        shape = (*before, *index.shape, *after)
        along = ((0,) * len(before)) + index.strides + (0,) * len(after)
        fixed = table.strides[:dim] + (0,) * len(index.shape) + table.strides[dim + 1 :]
    sizes, (t, i) = collapse(shape, fixed, along)
    walk = _Walk(sizes, t, i, step, limit, 1)
    return replace(walk, width=4) if _wide(call, walk, table) else walk


def _wide(call: Call, walk: _Walk, table: Layout) -> bool:
    """Whether four neighbours share an index and lie side by side in table and output."""
    if not walk.sizes or walk.sizes[-1] % 4 or walk.index[-1] != 0 or walk.table[-1] != 1:
        return False
    if table.offset % 4 or call.outputs[0].offset % 4 or any(s % 4 for s in (*walk.table[:-1], walk.step)):
        return False
    widths = [(Operand(n, table.dtype, width=w), i, table) for n, i, w in (("t", 0, 4), ("i", 1, 1), ("o", 2, 4))]
    return not mixed(widths, call.alias)


@dataclass(frozen=True, slots=True)
class _Window:
    """Indices [low, high) and the elements of the table's storage that they need; None: all of it."""

    low: int
    high: int
    start: int = 0
    elements: int | None = None


def _windows(call: Call, walk: _Walk, profile: Profile) -> list[_Window]:
    """Ranges of indices whose part of the table fits one binding: one range unless the table is larger than that."""
    table = call.inputs[0]
    assert table is not None
    size = table.dtype.itemsize
    if T.fits([table], profile):
        return [_Window(0, walk.limit)]
    low, high = extent(walk.sizes, walk.table)
    room = profile.max_binding // size - (high - low + 1) - 256 // size
    if low < 0 or walk.step <= 0 or room < walk.step:
        raise DeviceError(
            f"{call.op.name} reads {(table.span()[1] + 1) * size} bytes of {table!r}, more than a binding's {profile.max_binding} bytes; "
            "make it contiguous with the indexed dimension first"
        )
    count = room // walk.step
    out = []
    for first in range(0, walk.limit, count):
        last = min(first + count, walk.limit)
        start = (table.offset + first * walk.step) * size // 256 * 256 // size
        end = table.offset + (last - 1) * walk.step + high + 1
        out.append(_Window(first, last, start, -(-(end - start) * size // 16) * 16 // size))
    return out


def _launch(call: Call, walk: _Walk, window: _Window, profile: Profile) -> Launch:
    """The launch for indices of one window."""
    table, index = call.inputs[0], call.inputs[1]
    assert table is not None
    assert index is not None
    out, width = call.outputs[0], walk.width
    seen = table if window.elements is None else Layout(table.dtype, (window.elements,))
    bound = bind(
        [
            (Operand("table", table.dtype, width=width), 0, seen),
            (Operand("index", index.dtype, index.dtype), 1, index),
            (Operand("out", out.dtype, write=True, width=width), 2, out),
        ],
        call.alias,
        profile,
        call.op.name,
    )
    entries = walk.sizes[-1] // width if walk.sizes else 1
    lanes = T.lanes(profile)
    row = bool(lanes and walk.sizes) and walk.index[-1] == 0 and entries >= lanes
    team = Team("subgroup", lanes, 64) if row else Team("lane", 1, 64 if profile.family == "cpu" else 256)
    form = GatherForm(bound.operands, bound.access, team, len(walk.sizes), bool(call.attrs.get("wrap", False)))
    kernel = Kernel(
        ("gather", form),
        lambda profile: gather_source(form, profile),
        (*bound.access, "read_write"),
        call.op.name,
        scalars=True,
        trusted=True,
    )
    total = out.numel // (width * (entries if row else 1))
    sizes, steps = list(walk.sizes), [s // width for s in walk.table]
    if sizes:
        sizes[-1] = entries
        steps[-1] = 1 if width == 4 else walk.table[-1]
    ranges = bound.ranges
    if window.elements is not None:
        ranges = tuple(ranges or [(0, -(-(x.span()[1] + 1) * x.dtype.itemsize // 16) * 16) for x in (seen, index, out)])
        ranges = ((window.start * table.dtype.itemsize, window.elements * table.dtype.itemsize), *ranges[1:])
    words = [total, walk.limit, window.low, window.high, *sizes]
    words += [(table.offset - window.start - bound.shifts[0]) // width, walk.step // width, *steps]
    words += [index.offset - bound.shifts[1], *walk.index, (out.offset - bound.shifts[2]) // width]
    return Launch(
        kernel,
        (*bound.numbers, STATUS),
        T.grid(-(-total // team.rows)),
        T.pack(words),
        T.scalar_entries(call, (), True),
        None if ranges is None else (*ranges, (0, 16)),
    )


def gather_source(form: GatherForm, profile: Profile) -> str:
    """The WGSL of an index_select or gather kernel."""
    table, index, out = form.operands
    rank, row = form.rank, form.team.form == "subgroup"
    count, names = (rank - 1 if row else rank), [f"p.size{d}" for d in range(rank)]
    number, first = form.team.place()
    body = f"let id = (group.y * {T.FOLD}u + group.x) * {form.team.rows}u + {number};\nif (id >= p.total) {{ return; }}\n"
    body += T.decompose("id", names[:count], "c") + "\n"
    body += f"var at = p.table_at{''.join(f' + c{d} * p.t{d}' for d in range(count))};\n"
    body += f"let asked = i32({index.part(index.entry('p.index_at' + ''.join(f' + c{d} * p.i{d}' for d in range(count))), 0)});\n"
    body += "var found = asked;\n" + ("if (found < 0i) { found = found + i32(p.limit); }\n" if form.wrap else "")
    body += "let inside = u32(found) < p.limit;\nif (inside && (u32(found) < p.low || u32(found) >= p.high)) { return; }\n"
    body += f"if (!inside) {{ if (p.low != 0u) {{ return; }} if ({first} == 0u) {{ status_report(asked, i32(p.limit)); }} }}\n"
    body += "at = at + u32(found) * p.table_step;\n"
    zero = f"{T.element(table.dtype, table.width)}()"
    value = "value" if not row else f"value{rank}"
    if row:
        near = "i" if table.width == 4 else f"i * p.t{rank - 1}"
        target = f"p.out_at + id * p.size{rank - 1} + i"
        body += (
            f"var i = {first};\nloop {{\n  var {value} = {zero};\n  if (inside) {{ {value} = {table.entry(f'at + {near}')}; }}\n"
            f"  {out.entry(target)} = {value};\n  continuing {{ i = i + {form.team.width}u; break if i >= p.size{rank - 1}; }}\n}}\n"
        )
    else:
        body += f"var {value} = {zero};\nif (inside) {{ {value} = {table.entry('at')}; }}\n{out.entry('p.out_at + id')} = {value};\n"
    front = T.header(profile, (table.dtype,), row) + declare(form.operands, form.access)
    front += T.uniform(len(form.access) + 1, form.fields()) + T.scalar_block((), True) + T.status(len(form.access))
    main = f"@compute @workgroup_size({form.team.workgroup})\nfn main({form.team.builtins()}) {{\n{body}}}\n"
    return front + T.prelude(main) + main
