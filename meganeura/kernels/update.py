"""Update: one dispatch that updates many parameters in place (optimizers, moving averages).

In: a Call whose inputs are the roles' tensors, role after role, all contiguous. Out: as few launches as the limits
allow. A launch takes segments (one parameter each, or a part of one). A table in the uniform says where each starts; a
workgroup finds its segment by bisection and branches to the segment's pattern: which bindings its tensors live in.
Segments in shared arenas share a pattern, so their number costs no code. Neither sizes nor counts are in the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ..dtype import DType
from ..errors import DeviceError
from ..ops.archetype import Update
from ..storage import Layout
from . import template as T
from .kernel import Call, Kernel, Launch, Lowered, Profile
from .pointwise import Statement

PATTERNS = {"cpu": 4, "gpu": 8}  # a launch; software Vulkan compiles a second for 40 memory accesses
QUADS = {"cpu": 8, "gpu": 1}  # an invocation
MAX_SEGMENTS = 512


@dataclass(frozen=True, slots=True)
class Part:
    """A run of elements of one parameter: the layout of each role's tensor there, and the inputs they belong to."""

    layouts: tuple[Layout, ...]
    inputs: tuple[int, ...]
    storages: tuple[int, ...]

    @property
    def count(self) -> int:
        return self.layouts[0].numel


@dataclass(frozen=True, slots=True)
class Form:
    """Everything the WGSL depends on, so also the pipeline key."""

    roles: tuple[str, ...]
    statements: tuple[Statement, ...]
    writes: tuple[tuple[int, str], ...]  # (role number, statement)
    reads: tuple[tuple[int, DType], ...]  # (role number, compute dtype) of the roles the statements name
    slots: tuple[tuple[DType, int, str], ...]  # (dtype, elements of an array entry, access) a binding
    patterns: tuple[tuple[int, ...], ...]  # the binding of every role
    capacity: int  # segments the table has room for, a power of two
    scalars: tuple[tuple[str, str], ...]
    quads: int


def lower(call: Call, profile: Profile) -> Lowered:
    """Launches for an Update call. Raises DeviceError for a tensor that is not contiguous or cannot be bound."""
    update = call.op.archetype
    assert isinstance(update, Update)
    parts = [p for segment in _segments(call, len(update.roles)) for p in _split(segment, profile)]
    narrow = not T.fits((x for p in parts for x in p.layouts), profile)
    return Lowered(tuple(_launch(call, update, batch, profile, narrow) for batch in _batches(parts, profile, repr(call.op))))


# --- segments -------------------------------------------------------------------------------------------------------


def _segments(call: Call, roles: int) -> list[Part]:
    k = len(call.inputs) // roles
    alias = call.alias or tuple(range(len(call.inputs)))
    out = []
    for i in range(k):
        inputs = tuple(r * k + i for r in range(roles))
        layouts = tuple(x for n in inputs if (x := call.inputs[n]) is not None)
        for x in layouts:
            if not x.contiguous or x.shape != layouts[0].shape:
                raise DeviceError(f"{call.op}: segment {i} needs contiguous tensors of one shape, got {', '.join(map(repr, layouts))}")
        if layouts[0].numel:
            out.append(Part(layouts, inputs, tuple(alias[n] for n in inputs)))
    return out


def _split(segment: Part, profile: Profile) -> list[Part]:
    """The segment in pieces that each fit a binding."""
    size = max(x.dtype.itemsize for x in segment.layouts)
    step = max(256, (profile.max_binding - 512) // size // 256 * 256)
    n = segment.count
    if n <= step:
        return [segment]
    return [
        Part(
            tuple(Layout(x.dtype, (min(step, n - i),), None, x.offset + i) for x in segment.layouts),
            segment.inputs,
            segment.storages,
        )
        for i in range(0, n, step)
    ]


def _batches(parts: Sequence[Part], profile: Profile, what: str) -> list[list[Part]]:
    """Parts grouped into launches, in order, within the limits on bindings, code and table size."""
    out: list[list[Part]] = []
    for part in parts:
        T.check_bindings(len(set(part.storages)), profile, what)
        if not out or not _fit([*out[-1], part], profile):
            out.append([])
        out[-1].append(part)
    return out


def _fit(parts: Sequence[Part], profile: Profile) -> bool:
    groups = _by_storage(parts)
    if len(groups) > profile.max_storage_buffers or len(parts) > MAX_SEGMENTS:
        return False
    if len({p.storages for p in parts}) > PATTERNS[profile.family]:
        return False
    try:
        T.windows(list(groups.values()), profile, "", narrow=not T.fits((x for p in parts for x in p.layouts), profile))
    except DeviceError:
        return False
    return True


def _by_storage(parts: Sequence[Part]) -> dict[int, list[Layout]]:
    groups: dict[int, list[Layout]] = {}
    for part in parts:
        for storage, layout in zip(part.storages, part.layouts, strict=True):
            groups.setdefault(storage, []).append(layout)
    return groups


# --- launches -------------------------------------------------------------------------------------------------------


def _launch(call: Call, update: Update, parts: Sequence[Part], profile: Profile, narrow: bool) -> Launch:
    groups = _by_storage(parts)
    order = {storage: i for i, storage in enumerate(groups)}
    ranges, shifts = T.windows(list(groups.values()), profile, repr(call.op), narrow)
    form = _form(call, update, parts, groups, order, profile)
    first, words = 0, []
    width = _row_words(len(form.roles))
    patterns = {pattern: i for i, pattern in enumerate(form.patterns)}
    for part in parts:
        slots = tuple(order[s] for s in part.storages)
        offsets = [(x.offset - shifts[s]) // form.slots[s][1] for x, s in zip(part.layouts, slots, strict=True)]
        words += [first, part.count, patterns[slots], *offsets] + [0] * (width - 3 - len(offsets))
        first += -(-part.count // (4 * T.WORKGROUP * form.quads))
    words += [0xFFFFFFFF] * (width * (form.capacity - len(parts)))
    where = {s: n for part in parts for s, n in zip(part.storages, part.inputs, strict=True)}
    kernel = Kernel(
        ("update", form),
        partial(source, form),
        tuple(access for _, _, access in form.slots),
        label=repr(call.op),
        scalars=bool(form.scalars),
        trusted=True,
    )
    return Launch(kernel, tuple(where[s] for s in groups), T.grid(first), T.pack(words), T.scalar_entries(call, form.scalars), ranges)


def _form(
    call: Call, update: Update, parts: Sequence[Part], groups: dict[int, list[Layout]], order: dict[int, int], profile: Profile
) -> Form:
    used = {n for _, _, expr in update.statements for n in T.names_in(expr)}
    k = len(call.inputs) // len(update.roles)
    writes = tuple((r, update.writes[role]) for r, role in enumerate(update.roles) if role in update.writes)
    written = {part.storages[r] for part in parts for r, _ in writes}
    slots = []
    for storage, layouts in groups.items():
        if any(x.dtype.storage != layouts[0].dtype.storage for x in layouts):
            raise DeviceError(f"{call.op}: one storage is used with several dtypes ({', '.join(map(repr, layouts))})")
        aligned = all(x.offset % 4 == 0 for x in layouts)
        slots.append((layouts[0].dtype, 4 if aligned else 1, "read_write" if storage in written else "read"))
    return Form(
        update.roles,
        update.statements,
        writes,
        tuple((r, call.compute[r * k]) for r, role in enumerate(update.roles) if role in used),
        tuple(slots),
        tuple(dict.fromkeys(tuple(order[s] for s in part.storages) for part in parts)),
        1 << (len(parts) - 1).bit_length(),
        T.used_scalars(call, used),
        QUADS[profile.family],
    )


def _row_words(roles: int) -> int:
    return -(-(3 + roles) // 4) * 4


# --- WGSL -----------------------------------------------------------------------------------------------------------


def source(form: Form, profile: Profile) -> str:
    """The WGSL of a form."""
    n = T.lanes(profile)
    body = _element_function(form) + "".join(_pattern(form, i) for i in range(len(form.patterns))) + _main(form, profile)
    out = T.header(profile, (d for d, _, _ in form.slots), subgroups=n > 0)
    for i, (dtype, width, access) in enumerate(form.slots):
        out += T.storage(i, f"b{i}", T.element(dtype, width), access)
    vectors = form.capacity * _row_words(len(form.roles)) // 4
    out += f"struct Params {{ table: array<vec4<u32>, {vectors}> }};\n@group(0) @binding({len(form.slots)}) var<uniform> p: Params;\n"
    return out + T.scalar_block(form.scalars) + T.prelude(body) + body


def _element_function(form: Form) -> str:
    """`element(roles...)`: the statements for one element; returns the values of the written roles."""
    types = {name: t for name, t, _ in form.statements}
    names = {n: T.identifier(n) for n in types} | {n: f"s.{T.identifier(n)}" for n, _ in form.scalars}
    names |= {form.roles[r]: T.identifier(form.roles[r]) for r, _ in form.reads}
    args = ", ".join(f"{T.identifier(form.roles[r])}: {c.value}" for r, c in form.reads)
    lines = "".join(f"  let {T.identifier(n)}: {t} = {T.substitute(expr, names)};\n" for n, t, expr in form.statements)
    members = ", ".join(f"r{r}: {types[n]}" for r, n in form.writes)
    values = ", ".join(T.identifier(n) for _, n in form.writes)
    return f"struct Results {{ {members} }};\nfn element({args}) -> Results {{\n{lines}  return Results({values});\n}}\n"


def _offset(role: int) -> str:
    """Where the table has a role's offset, relative to the segment's row."""
    return f"p.table[row + {(3 + role) // 4}u].{T.LANES[(3 + role) % 4]}"


def _pattern(form: Form, number: int) -> str:
    """`update{number}(i, row, count)`: quad i of a segment whose tensors live in this pattern's bindings.

    A vec4 that the segment ends in is written back with what was there: no other segment of the launch starts in it.
    """
    pattern = form.patterns[number]
    written = {r for r, _ in form.writes}
    touched = sorted({r for r, _ in form.reads} | written)
    out = f"fn update{number}(i: u32, row: u32, count: u32) {{\n"
    for r in touched:
        width = form.slots[pattern[r]][1]
        out += f"  let a{r} = {_offset(r)} + i{'' if width == 4 else ' * 4u'};\n"
        if width == 4:
            out += f"  let x{r} = b{pattern[r]}[a{r}];\n"
        elif any(r == read for read, _ in form.reads):
            out += "".join(f"  let x{r}{c} = b{pattern[r]}[{_inside(r, j)}];\n" for j, c in enumerate(T.LANES))
    for j, c in enumerate(T.LANES):
        args = [T.load(form.slots[pattern[r]][0], f"x{r}{'.' if form.slots[pattern[r]][1] == 4 else ''}{c}", to) for r, to in form.reads]
        out += f"  let e{j} = element({', '.join(args)});\n"
    types = {name: t for name, t, _ in form.statements}
    for r, name in form.writes:
        dtype, width, _ = form.slots[pattern[r]]
        values = [T.store(types[name], f"e{j}.r{r}", dtype) for j in range(4)]
        out += _store(f"b{pattern[r]}", r, values, T.element(dtype, 4) if width == 4 else "")
    return out + "}\n"


def _inside(role: int, lane: int) -> str:
    """Element `lane` of a quad read one by one: the last of the segment where the quad sticks out."""
    return f"a{role} + min({lane}u, count - 1u - i * 4u)" if lane else f"a{role}"


def _store(target: str, r: int, values: Sequence[str], vector: str) -> str:
    if vector:
        kept = [f"select(x{r}.{c}, {v}, i * 4u + {j}u < count)" if j else v for j, (c, v) in enumerate(zip(T.LANES, values, strict=True))]
        return f"  {target}[a{r}] = {vector}({', '.join(kept)});\n"
    out = f"  {target}[a{r}] = {values[0]};\n"
    return out + "".join(f"  if (i * 4u + {j}u < count) {{ {target}[a{r} + {j}u] = {values[j]}; }}\n" for j in range(1, 4))


def _main(form: Form, profile: Profile) -> str:
    vectors = _row_words(len(form.roles)) // 4
    out = T.entry(profile) + "  var segment = 0u;\n"
    step = form.capacity // 2
    while step:
        out += f"  if (p.table[(segment + {step}u) * {vectors}u].x <= group) {{ segment += {step}u; }}\n"
        step //= 2
    out += f"  let row = segment * {vectors}u;\n  let count = p.table[row].y;\n  let quads = (count + 3u) / 4u;\n"
    out += f"  let start = (group - p.table[row].x) * {T.WORKGROUP * form.quads}u;\n"
    n = T.lanes(profile)
    if form.quads == 1:
        return out + "  let i = start + local;\n  if (i < quads) {\n" + _switch(form) + "  }\n}\n"
    stride = n or T.WORKGROUP
    out += f"  var i = start + {f'sid * {n * form.quads}u + lane' if n else 'local'};\n  var turn = 0u;\n  loop {{\n    if (i < quads) {{\n"
    out += _switch(form) + "    }\n    continuing {\n"
    return out + f"      i += {stride}u;\n      turn += 1u;\n      break if turn >= {form.quads}u || i >= quads;\n    }}\n  }}\n}}\n"


def _switch(form: Form) -> str:
    if len(form.patterns) == 1:
        return "    update0(i, row, count);\n"
    cases = "".join(f" case {k}u: {{ update{k}(i, row, count); }}" for k in range(1, len(form.patterns)))
    return f"    switch p.table[row].z {{ default: {{ update0(i, row, count); }}{cases} }}\n"
