"""Update: one dispatch that updates many parameters in place (optimizers, moving averages).

In: a Call whose inputs are the roles' tensors, role after role, all contiguous. Out: as few launches as the limits
allow. A launch takes segments (one parameter each, or a part of one). A table in the uniform says where each starts; a
workgroup finds its segment by bisection and branches to the segment's pattern: which bindings its tensors live in. Roles
that live in one binding in all patterns, as moments in an arena do, are written once.
Segments in shared arenas share a pattern, so their number costs no code. Neither sizes nor counts are in the key.
Values (one number a segment, read from a tensor) count as further roles that do not move with the element.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..dtype import DType
from ..errors import DeviceError
from ..ops.archetype import Update
from ..storage import Layout
from . import template as T
from .kernel import Call, Kernel, Launch, Lowered, Profile
from .pointwise import Statement

ALONE = {"cpu": 16384, "gpu": 1 << 62}  # elements from which a segment shares a launch with none in other bindings
ACCESSES = {"cpu": 28, "gpu": 56}  # loads and stores of tensors in a launch's text; software Vulkan compiles 40 of them a second
QUADS = {"cpu": 8, "gpu": 1}  # an invocation
MAX_SEGMENTS = 512


@dataclass(frozen=True, slots=True)
class Part:
    """A run of elements of one parameter: the layout of each role's tensor there (and of each value), and their inputs."""

    layouts: tuple[Layout, ...]
    inputs: tuple[int, ...]
    storages: tuple[int, ...]

    @property
    def count(self) -> int:
        return self.layouts[0].numel


@dataclass(frozen=True, slots=True)
class Form:
    """Everything the WGSL depends on, so also the pipeline key."""

    roles: tuple[str, ...]  # the archetype's, then its values
    lists: int  # how many of them are lists of tensors
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
    parts = [p for segment in _segments(call, update) for p in _split(segment, len(update.roles), profile)]
    narrow = not T.fits((x for p in parts for x in p.layouts), profile)
    batches = _batches(parts, _costs(update), profile, repr(call.op))
    return Lowered(tuple(_launch(call, update, batch, profile, narrow) for batch in batches))


# --- segments -------------------------------------------------------------------------------------------------------


def _segments(call: Call, update: Update) -> list[Part]:
    roles = len(update.roles)
    k = (len(call.inputs) - len(update.values)) // roles
    alias = call.alias or tuple(range(len(call.inputs)))
    values = tuple(range(roles * k, len(call.inputs)))
    out = []
    for i in range(k):
        inputs = tuple(r * k + i for r in range(roles))
        layouts = tuple(x for n in inputs if (x := call.inputs[n]) is not None)
        for x in layouts:
            if not x.contiguous or x.shape != layouts[0].shape:
                raise DeviceError(f"{call.op}: segment {i} needs contiguous tensors of one shape, got {', '.join(map(repr, layouts))}")
        if layouts[0].numel:
            numbers = tuple(_number(x, i) for n in values if (x := call.inputs[n]) is not None)
            out.append(Part((*layouts, *numbers), (*inputs, *values), tuple(alias[n] for n in (*inputs, *values))))
    return out


def _number(values: Layout, segment: int) -> Layout:
    """Where a segment's value lies in a tensor [k], or in one [] for all segments."""
    return Layout(values.dtype, (), (), values.offset + (segment * values.strides[0] if values.shape else 0))


def _costs(update: Update) -> tuple[int, ...]:
    """Loads and stores of each role's tensor in the text for one binding of it."""
    used = {n for _, _, expr in update.statements for n in T.names_in(expr)}
    return tuple((role in used or role in update.writes) + (role in update.writes) for role in update.roles)


def _accesses(patterns: Collection[tuple[int, ...]], costs: Sequence[int]) -> int:
    """Loads and stores in the text: a role that has one binding in all patterns is written once."""
    return sum(cost * len(_texts(patterns, r)) for r, cost in enumerate(costs))


def _texts(patterns: Collection[tuple[int, ...]], role: int) -> Collection[Any]:
    """What the text of a role's accesses is written for: once, or for every pattern."""
    return patterns if len({pattern[role] for pattern in patterns}) > 1 else {0}


def _split(segment: Part, roles: int, profile: Profile) -> list[Part]:
    """The segment in pieces that each fit a binding."""
    size = max(x.dtype.itemsize for x in segment.layouts)
    step = max(256, (profile.max_binding - 512) // size // 256 * 256)
    n = segment.count
    if n <= step:
        return [segment]
    return [
        Part(
            (*(Layout(x.dtype, (min(step, n - i),), None, x.offset + i) for x in segment.layouts[:roles]), *segment.layouts[roles:]),
            segment.inputs,
            segment.storages,
        )
        for i in range(0, n, step)
    ]


def _batches(parts: Sequence[Part], costs: Sequence[int], profile: Profile, what: str) -> list[list[Part]]:
    """Parts grouped into launches, in order, within the limits on bindings, code and table size."""
    out: list[list[Part]] = []
    for part in parts:
        T.check_bindings(len(set(part.storages)), profile, what)
        if not out or not _fit([*out[-1], part], costs, profile):
            out.append([])
        out[-1].append(part)
    return out


def _fit(parts: Sequence[Part], costs: Sequence[int], profile: Profile) -> bool:
    groups = _by_storage(parts)
    if len(groups) > profile.max_storage_buffers or len(parts) > MAX_SEGMENTS:
        return False
    patterns = {p.storages for p in parts}
    if len(patterns) > 1 and (_accesses(patterns, costs) > ACCESSES[profile.family] or _apart(parts, ALONE[profile.family])):
        return False
    try:
        T.windows(list(groups.values()), profile, "", narrow=not T.fits((x for p in parts for x in p.layouts), profile))
    except DeviceError:
        return False
    return True


def _apart(parts: Sequence[Part], limit: int) -> bool:
    """Whether the last part or those before it are too large to share a launch: software Vulkan walks all branches of a switch."""
    return max(parts[-1].count, parts[0].count) >= limit


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
    lists, roles = len(update.roles), (*update.roles, *update.values)
    writes = tuple((r, update.writes[role]) for r, role in enumerate(update.roles) if role in update.writes)
    written = {part.storages[r] for part in parts for r, _ in writes}
    numbers = {storage for part in parts for storage in part.storages[lists:]}
    if written & numbers:
        raise DeviceError(f"{call.op}: {' and '.join(update.values)} may not share memory with the tensors that are updated")
    slots = []
    for storage, layouts in groups.items():
        if any(x.dtype.storage != layouts[0].dtype.storage for x in layouts):
            raise DeviceError(f"{call.op}: one storage is used with several dtypes ({', '.join(map(repr, layouts))})")
        aligned = storage not in numbers and all(x.offset % 4 == 0 for x in layouts)
        slots.append((layouts[0].dtype, 4 if aligned else 1, "read_write" if storage in written else "read"))
    return Form(
        roles,
        lists,
        update.statements,
        writes,
        tuple((r, call.compute[parts[0].inputs[r]]) for r, role in enumerate(roles) if role in used),
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
    body = _element_function(form) + _accessors(form) + _update(form) + _main(form, profile)
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


def _touched(form: Form) -> list[int]:
    """The roles whose tensors are read or written."""
    return sorted({r for r, _ in form.reads} | {r for r, _ in form.writes})


def _bindings(form: Form, role: int) -> list[int]:
    """The slots that a role's accesses are written for: one a pattern, or only one if it is the same in all."""
    slots = [pattern[role] for pattern in form.patterns]
    return slots if len(set(slots)) > 1 else slots[:1]


def _accessors(form: Form) -> str:
    """`load{role}_{k}` and `store{role}_{k}`: a quad of a role's tensor in the k-th of its bindings."""
    compute, names = dict(form.reads), dict(form.writes)
    types = {name: t for name, t, _ in form.statements}
    out = ""
    for r in _touched(form):
        for k, slot in enumerate(_bindings(form, r)):
            out += _load(form, r, k, slot, compute.get(r))
            if r in names:
                out += _store(form, r, k, slot, types[names[r]], r in compute)
    return out


def _load(form: Form, r: int, k: int, slot: int, compute: DType | None) -> str:
    dtype, width, _ = form.slots[slot]
    to = compute or dtype
    head = f"fn load{r}_{k}(i: u32, row: u32, count: u32) -> vec4<{to.value}> {{\n"
    if r >= form.lists:
        return f"{head}  return vec4<{to.value}>({T.load(dtype, f'b{slot}[{_offset(r)}]', to)});\n}}\n"
    if width == 4:
        values = ", ".join(T.load(dtype, f"x.{c}", to) for c in T.LANES)
        return f"{head}  let x = b{slot}[{_offset(r)} + i];\n  return vec4<{to.value}>({values});\n}}\n"
    places = [f"a + min({j}u, count - 1u - i * 4u)" if j else "a" for j in range(4)]  # where the quad sticks out, the last again
    values = ", ".join(T.load(dtype, f"b{slot}[{place}]", to) for place in places)
    return f"{head}  let a = {_offset(r)} + i * 4u;\n  return vec4<{to.value}>({values});\n}}\n"


def _store(form: Form, r: int, k: int, slot: int, type_: str, read: bool) -> str:
    """A vec4 that the segment ends in is written back with what was there: no other segment of the launch starts in it.

    `old` is what was loaded, if the role is read: exact where storage is f32, and cheaper than a second load behind a branch.
    """
    dtype, width, _ = form.slots[slot]
    values = [T.store(type_, f"v.{c}", dtype) for c in T.LANES]
    out = f"fn store{r}_{k}(i: u32, row: u32, count: u32, v: vec4<{type_}>{', old: vec4<f32>' if read else ''}) {{\n"
    if width == 4 and read and dtype.storage == "f32":
        kept = [f"select(old.{c}, {v}, i * 4u + {j}u < count)" if j else v for j, (c, v) in enumerate(zip(T.LANES, values, strict=True))]
        return f"{out}  b{slot}[{_offset(r)} + i] = vec4<f32>({', '.join(kept)});\n}}\n"
    if width == 4:
        out += f"  let a = {_offset(r)} + i;\n  var y = {T.element(dtype, 4)}({', '.join(values)});\n"
        tail = "".join(f" if (i * 4u + {j}u >= count) {{ y.{T.LANES[j]} = x.{T.LANES[j]}; }}" for j in range(1, 4))
        return f"{out}  if (i * 4u + 3u >= count) {{ let x = b{slot}[a];{tail} }}\n  b{slot}[a] = y;\n}}\n"
    out += f"  let a = {_offset(r)} + i * 4u;\n  b{slot}[a] = {values[0]};\n"
    return out + "".join(f"  if (i * 4u + {j}u < count) {{ b{slot}[a + {j}u] = {values[j]}; }}\n" for j in range(1, 4)) + "}\n"


def _update(form: Form) -> str:
    """`update(i, row, count)`: quad i of a segment. Only roles with several bindings are told apart by the segment's pattern."""
    compute, types = dict(form.reads), {name: t for name, t, _ in form.statements}
    several = {r for r in _touched(form) if len(_bindings(form, r)) > 1}
    out = "fn update(i: u32, row: u32, count: u32) {\n"
    reads = [r for r, _ in form.reads]
    out += "".join(f"  var x{r}: vec4<{compute[r].value}>;\n" for r in reads if r in several)
    out += _by_pattern(form, [lambda k, r=r: f"x{r} = load{r}_{k}(i, row, count);" for r in reads if r in several])  # type: ignore[misc]
    out += "".join(f"  let x{r} = load{r}_0(i, row, count);\n" for r in reads if r not in several)
    for j, c in enumerate(T.LANES):
        out += f"  let e{j} = element({', '.join(f'x{r}.{c}' for r in reads)});\n"
    for r, name in form.writes:
        out += f"  let y{r} = vec4<{types[name]}>({', '.join(f'e{j}.r{r}' for j in range(4))});\n"
    written = [r for r, _ in form.writes]
    given = {r: f"y{r}, x{r}" if r in compute else f"y{r}" for r in written}
    out += "".join(f"  store{r}_0(i, row, count, {given[r]});\n" for r in written if r not in several)
    out += _by_pattern(form, [lambda k, r=r: f"store{r}_{k}(i, row, count, {given[r]});" for r in written if r in several])  # type: ignore[misc]
    return out + "}\n"


def _by_pattern(form: Form, statements: Sequence[Callable[[int], str]]) -> str:
    """The statements for a segment's pattern."""
    if not statements:
        return ""
    cases = "".join(f" case {k}u: {{ {' '.join(f(k) for f in statements)} }}" for k in range(1, len(form.patterns)))
    return f"  switch p.table[row].z {{ default: {{ {' '.join(f(0) for f in statements)} }}{cases} }}\n"


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
        return out + "  let i = start + local;\n  if (i < quads) {\n" + "    update(i, row, count);\n" + "  }\n}\n"
    stride = n or T.WORKGROUP
    out += f"  var i = start + {f'sid * {n * form.quads}u + lane' if n else 'local'};\n  var turn = 0u;\n  loop {{\n    if (i < quads) {{\n"
    out += "    update(i, row, count);\n" + "    }\n    continuing {\n"
    return out + f"      i += {stride}u;\n      turn += 1u;\n      break if turn >= {form.quads}u || i >= quads;\n    }}\n  }}\n}}\n"
