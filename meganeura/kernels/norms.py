"""Norms of many tensors in few launches: sums (or maxima) over pieces of all tensors, then over the pieces of each.

In: a Call of Kernel 'tensor_norms'. Out: copies of what is not contiguous, launches over as many tensors as may be bound at once, which
write a partial result a piece to a temporary, and one that merges them. A table in the uniform says where each tensor's
pieces begin; sizes are not in the key. The order of additions depends on sizes only, so results repeat bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ..dtype import DType, float32, uint32
from ..errors import DeviceError
from ..storage import Layout
from . import template as T
from .kernel import TEMP, Call, Kernel, Launch, Lowered, Profile
from .monoid import Monoid, Team, extremum, total
from .move import contiguous

PIECE = 16384  # elements a team takes
STORAGES = {"cpu": 14, "gpu": 30}  # a launch, each with a loop of its own in the text
SEGMENTS = 512  # a launch's table
MERGED = 2048  # tensors the last launch takes


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor, or a part of one that fits a binding: elements, its binding (the first input in that storage, or a temporary), input."""

    layout: Layout
    storage: int
    tensor: int

    @property
    def teams(self) -> int:
        return -(-self.layout.numel // PIECE)


@dataclass(frozen=True, slots=True)
class NormForm:
    """Everything the text of the first kernel depends on."""

    kind: str
    slots: tuple[tuple[DType, int], ...]  # (dtype, elements of an array entry) a storage
    capacity: int


def lower(call: Call, profile: Profile) -> Lowered:
    """Launches for tensor_norms."""
    kind = call.attrs["kind"]
    pieces: list[Piece] = []
    launches: list[Launch] = []
    temps, first = [0], 0
    for i, x in enumerate(call.inputs):
        assert x is not None
        storage = call.alias[i] if call.alias else i
        if not x.contiguous:
            storage = TEMP(len(temps))
            copy, nbytes = contiguous(x, i, len(temps), profile)
            launches.append(copy)
            temps.append(nbytes)
            x = Layout(x.dtype, x.shape)
        pieces += _pieces(x, storage, i, profile)
    for batch in _batches(pieces, profile):
        launches.append(_partials(call, kind, batch, first, profile))
        first += sum(p.teams for p in batch)
    counts = [0] * len(call.inputs)
    for p in pieces:
        counts[p.tensor] += p.teams
    launches += _merge(call, kind, counts, max(first, 1), profile)
    temps[0] = max(first, 1) * 4
    return Lowered(tuple(launches), tuple(temps))


def _pieces(x: Layout, storage: int, number: int, profile: Profile) -> list[Piece]:
    """A contiguous tensor in pieces that each fit a binding."""
    step = max(PIECE, (profile.max_binding - 512) // x.dtype.itemsize // PIECE * PIECE)
    return [Piece(Layout(x.dtype, (min(step, x.numel - at),), None, x.offset + at), storage, number) for at in range(0, x.numel, step)]


def _batches(pieces: Sequence[Piece], profile: Profile) -> list[list[Piece]]:
    """Pieces in order, grouped within the limits on bindings and table size."""
    limit = min(STORAGES[profile.family], profile.max_storage_buffers - 1)
    out: list[list[Piece]] = []
    for piece in pieces:
        if not out or len(out[-1]) == SEGMENTS or not _fit([*out[-1], piece], limit, profile):
            out.append([])
        out[-1].append(piece)
    return out


def _fit(pieces: Sequence[Piece], limit: int, profile: Profile) -> bool:
    groups = _by_storage(pieces)
    if len(groups) > limit:
        return False
    try:
        T.windows(list(groups.values()), profile, "", narrow=True)
    except DeviceError:
        return False
    return True


def _by_storage(pieces: Sequence[Piece]) -> dict[int, list[Layout]]:
    groups: dict[int, list[Layout]] = {}
    for p in pieces:
        groups.setdefault(p.storage, []).append(p.layout)
    return groups


def _team(profile: Profile) -> Team:
    lanes = T.lanes(profile)
    if lanes:
        return Team("subgroup", lanes, lanes)
    return Team("group", 256, 256, subgroups=profile.subgroups)


def _monoid(kind: str) -> Monoid:
    return extremum("max", "f32") if kind == "inf" else total("f32")


def _partials(call: Call, kind: str, batch: Sequence[Piece], first: int, profile: Profile) -> Launch:
    """The launch that writes partial results `first` and on."""
    groups = _by_storage(batch)
    order = {storage: i for i, storage in enumerate(groups)}
    narrow = not T.fits((p.layout for p in batch), profile)
    ranges, shifts = T.windows(list(groups.values()), profile, repr(call.op), narrow)
    widths = [4 if all(x.offset % 4 == 0 for x in layouts) else 1 for layouts in groups.values()]
    slots = tuple((layouts[0].dtype, width) for layouts, width in zip(groups.values(), widths, strict=True))
    if any(x.dtype.storage != layouts[0].dtype.storage for layouts in groups.values() for x in layouts):
        raise DeviceError(f"{call.op}: one storage is used with several dtypes")
    form = NormForm(kind, slots, 1 << (len(batch) - 1).bit_length())
    at, words = 0, []
    for p in batch:
        slot = order[p.storage]
        words += [at, p.layout.numel, slot, (p.layout.offset - shifts[slot]) // widths[slot]]
        at += p.teams
    words += [0xFFFFFFFF] * (4 * (form.capacity - len(batch))) + [first, at, 0, 0]
    kernel = Kernel(("tensor_norms", form), partial(_source, form), (*["read"] * len(slots), "read_write"), repr(call.op), trusted=True)
    used = None if ranges is None else (*ranges, (0, -(-(first + at) // 4) * 16))
    return Launch(kernel, (*groups, TEMP(0)), T.grid(at), T.pack(words), ranges=used)


def _merge(call: Call, kind: str, counts: Sequence[int], partials: int, profile: Profile) -> list[Launch]:
    """Launches, nearly always one, that merge each tensor's partial results and finish the norm."""
    out = call.outputs[0]
    if max(partials, out.numel) * 4 > profile.max_binding:
        raise DeviceError(f"{call.op}: {partials} partial results exceed one binding")
    number, launches, at = len(call.inputs), [], 0
    for start in range(0, len(counts), MERGED):
        part = counts[start : start + MERGED]
        words = []
        for n in part:
            words += [at, n]
            at += n
        capacity = 1 << (max(len(part), 2) - 1).bit_length()
        words += [0] * (2 * (capacity - len(part))) + [len(part), start, 0, 0]
        kernel = Kernel(
            ("tensor_norms merge", kind, capacity), partial(_merge_source, kind, capacity), ("read", "read_write"), repr(call.op),
            trusted=True,
        )  # fmt: skip
        launches.append(Launch(kernel, (TEMP(0), number), T.grid(len(part)), T.pack(words)))
    return launches


# --- WGSL -----------------------------------------------------------------------------------------------------------


def _value(kind: str, x: str) -> str:
    return f"{x} * {x}" if kind == "2" else f"abs({x})"


def _walk(form: NormForm, slot: int) -> str:
    """`walk{slot}(at, count, from_, to, step)`: what one invocation finds in quads from_, from_ + step... below `to`."""
    dtype, width = form.slots[slot]
    m = _monoid(form.kind)
    lanes = []
    for j, c in enumerate(T.LANES):
        code = f"x.{c}" if width == 4 else f"b{slot}[at + min(i * 4u + {j}u, count - 1u)]"
        value = _value(form.kind, f"e{j}")
        lanes.append(f"    let e{j} = {T.load(dtype, code, float32)};\n")
        kept = value if j == 0 else f"select({m.identity}, {value}, i * 4u + {j}u < count)"
        lanes.append(f"    a{j} = merge_{m.name}(a{j}, {kept});\n")
    read = f"    let x = b{slot}[at + i];\n" if width == 4 else ""
    start = "".join(f"  var a{j} = {m.identity};\n" for j in range(4))
    both = [f"merge_{m.name}(a{j}, a{j + 2})" for j in range(2)]
    return (
        f"fn walk{slot}(at: u32, count: u32, from_: u32, to: u32, step: u32) -> f32 {{\n{start}"
        f"  for (var i = from_; i < to; i += step) {{\n{read}{''.join(lanes)}  }}\n  return merge_{m.name}({', '.join(both)});\n}}\n"
    )


def _bisect(capacity: int) -> str:
    out, step = "  var segment = 0u;\n", capacity // 2
    while step:
        out += f"  if (p.table[segment + {step}u].x <= id) {{ segment += {step}u; }}\n"
        step //= 2
    return out


def _source(form: NormForm, profile: Profile) -> str:
    """The WGSL of the kernel that reads the tensors. Slots branch uniformly: a team lies in one segment."""
    team, m, slots = _team(profile), _monoid(form.kind), len(form.slots)
    code = team.functions(m, 0, True) + "".join(_walk(form, i) for i in range(slots))
    number, first = team.place()
    calls = [f"walk{i}(row.w, row.y, start + {first}, end, {team.width}u)" for i in range(slots)]
    cases = "".join(f" case {i}u: {{ v = {call}; }}" for i, call in enumerate(calls) if i)
    last = f"p.table[{form.capacity}u]"
    body = f"  let id = (group.y * {T.FOLD}u + group.x) * {team.rows}u + {number};\n  if (id >= {last}.y) {{ return; }}\n"
    body += _bisect(form.capacity) + "  let row = p.table[segment];\n"
    body += f"  let start = (id - row.x) * {PIECE // 4}u;\n  let end = min((row.y + 3u) / 4u, start + {PIECE // 4}u);\n"
    body += f"  var v = 0.0;\n  switch row.z {{ default: {{ v = {calls[0]}; }}{cases} }}\n"
    body += f"  let r = {team.bring(m, 0, 'v')};\n  if ({first} == 0u) {{ partials[{last}.x + id] = r; }}\n"
    code += f"@compute @workgroup_size({team.workgroup})\nfn main({team.builtins()}) {{\n{body}}}\n"
    out = T.header(profile, (d for d, _ in form.slots), subgroups=team.subgroups)
    out += "".join(T.storage(i, f"b{i}", T.element(d, w), "read") for i, (d, w) in enumerate(form.slots))
    out += T.storage(slots, "partials", "f32", "read_write")
    out += f"struct Params {{ table: array<vec4<u32>, {form.capacity + 1}> }};\n"
    return out + f"@group(0) @binding({slots + 1}) var<uniform> p: Params;\n" + T.prelude(code) + code


def _merge_source(kind: str, capacity: int, profile: Profile) -> str:
    """The WGSL of the last kernel: a team a tensor."""
    team, m = _team(profile), _monoid(kind)
    number, first = team.place()
    body = f"  let id = (group.y * {T.FOLD}u + group.x) * {team.rows}u + {number};\n  let last = p.table[{capacity // 2}u];\n"
    body += "  if (id >= last.x) { return; }\n  let pair = p.table[id / 2u];\n  let row = select(pair.xy, pair.zw, id % 2u == 1u);\n"
    body += f"  var v = {m.identity};\n  for (var i = {first}; i < row.y; i += {team.width}u) {{\n"
    body += f"    v = merge_{m.name}(v, partials[row.x + i]);\n  }}\n  let r = {team.bring(m, 0, 'v')};\n"
    end = {"1": "r", "2": "sqrt(r)", "inf": "select(r, 0.0, row.y == 0u)"}[kind]
    body += f"  if ({first} == 0u) {{ norms[last.y + id] = {end}; }}\n"
    code = team.functions(m, 0, True) + f"@compute @workgroup_size({team.workgroup})\nfn main({team.builtins()}) {{\n{body}}}\n"
    out = T.header(profile, (float32, uint32), subgroups=team.subgroups)
    out += T.storage(0, "partials", "f32", "read") + T.storage(1, "norms", "f32", "read_write")
    out += f"struct Params {{ table: array<vec4<u32>, {capacity // 2 + 1}> }};\n@group(0) @binding(2) var<uniform> p: Params;\n"
    return out + T.prelude(code) + code
