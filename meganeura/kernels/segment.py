"""Rows that share an index brought together: segment_sum (the gradient of embedding and index_select) and the scatter family.

In: a Call with values [T, D] and indices [T], perhaps after a base [S, D]. Out: launches that sort the indices (sort.py),
clear the output or copy the base to it, combine runs of equal indices within blocks of tokens, and join the runs that cross
blocks. A block has about sqrt(T) tokens, so one index that owns every token costs 2*sqrt(T) steps in a row, not T. Where there
are few columns, a GPU's workgroup shares a block. Values of one word are sorted along with the indices; others are read by position.
Deterministic: no atomics, and tokens of one index are taken in their order ('last' keeps the last of them).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..dtype import DType, dtype, uint32
from ..errors import DeviceError
from ..shape import numel
from ..storage import Layout, padded_bytes
from . import sort
from . import template as T
from .kernel import STATUS, TEMP, Call, Kernel, Launch, Lowered, Profile
from .monoid import HIGHEST, LOWEST
from .move import contiguous, copies
from .operand import Operand, bind, declare, stride_over

NARROW = 4  # columns (fours of them) up to which a GPU's workgroup shares a block
TEAM = 256  # invocations of such a workgroup
EACH = 8  # tokens that each of them takes


@dataclass(frozen=True, slots=True)
class SegmentForm:
    """Everything the source of a summing kernel depends on. `stage`: clear, blocks, teams or join."""

    stage: str
    operands: tuple[Operand, ...]
    access: tuple[str, ...]
    width: int
    accumulator: str  # WGSL type
    unroll: int  # tokens loaded at a time: GPUs wait for loads
    combine: str = "sum"  # sum, prod, max, min (NaN wins) or last
    include: bool = False  # the base counts as one more value

    def fields(self) -> list[str]:
        """Parameter names, in the order of `_Segments.words`."""
        return ["total", "columns", "count", "block", "low", "high", "out_at", "values_at", "values_row", "values_step", "tails"]


@dataclass(frozen=True, slots=True)
class _Segments:
    """The geometry of a call and the temporaries' binding numbers."""

    call: Call
    profile: Profile
    values: Layout
    base: Layout | None
    number: int  # binding number of the values
    rows: int  # stride of a token's row
    step: int  # stride of a column
    columns: int
    count: int
    size: int
    width: int
    temps: tuple[int, ...]
    moved: bool = False  # the values were sorted with the keys

    @property
    def words(self) -> bool:
        """Whether the values are one word a token, side by side from the start of their buffer: then sorting moves them itself."""
        plain = not self.values.offset and self.rows == 1 and T.fits([self.values], self.profile)
        return self.columns == 1 and plain and self.values.dtype.itemsize == 4

    @property
    def accumulator(self) -> DType:
        return dtype({"f32": "float32", "i32": "int32", "u32": "uint32", "bool": "uint32"}[self.values.dtype.value])

    @property
    def target(self) -> int:
        """Binding number of the output."""
        return len(self.call.inputs)

    @property
    def teams(self) -> bool:
        """Whether a workgroup shares a block: neighbouring invocations have neighbouring tokens, as there are few columns."""
        return self.profile.family == "gpu" and self.columns // self.width <= NARROW

    @property
    def block(self) -> int:
        """Tokens a block."""
        if self.teams:
            return TEAM * EACH
        root = math.isqrt(self.count)
        return max(16, root) if self.profile.family == "cpu" else max(32, root // 8)  # a GPU wants more invocations

    @property
    def blocks(self) -> int:
        return -(-self.count // self.block)


def lower(call: Call, profile: Profile) -> Lowered:
    """Launches for segment_sum, segment_add, segment_put and segment_reduce."""
    first = int(call.names[0] == "base")
    base, values, index = (call.inputs[0] if first else None), call.inputs[first], call.inputs[first + 1]
    assert values is not None
    assert index is not None
    out, size, count = call.outputs[0], call.attrs["size"], index.numel
    if not out.contiguous:
        raise DeviceError(f"{call.op.name}: the output must be contiguous, not {out!r}")
    if out.numel == 0 and count == 0:
        return Lowered(())
    rank = len(index.shape)
    columns = numel(values.shape[rank:])
    temps: list[int] = []
    before: list[Launch] = []
    number = first
    rows, step = stride_over(values.shape[:rank], values.strides[:rank]), stride_over(values.shape[rank:], values.strides[rank:])
    if (rows is None or step is None) and values.numel:
        launch, nbytes = contiguous(values, first, 0, profile)
        before, temps, number, values = [launch], [nbytes], TEMP(0), Layout(values.dtype, values.shape)
        rows, step = columns, 1
    rows, step = rows or 0, step or 0
    shared = bool(call.alias) and len({call.alias[first], call.alias[first + 1], call.alias[-1]}) < 3
    wide = step == 1 and not (columns | rows | values.offset | out.offset) & 3 and not shared
    found = _Segments(call, profile, values, base, number, rows, step, columns, count, size, 4 if wide else 1, ())
    if count == 0 or columns == 0:
        return Lowered(tuple(_clear(found)) if out.numel else ())
    more, temps, keys, positions, moved = _sorted(found, index, first + 1, temps)
    if moved:
        found = replace(found, values=Layout(values.dtype, (count,)), number=positions, rows=1)
    partial = len(temps)
    temps.append(2 * padded_bytes(found.blocks * columns, found.accumulator))
    found = replace(found, temps=(keys, 0 if moved else positions, TEMP(partial)), moved=moved)
    sums = [x for window in _windows(found) for x in _sums(found, *window)]
    return Lowered((*before, *more, *_clear(found), *sums), tuple(temps))


def _sorted(found: _Segments, index: Layout, number: int, temps: list[int]) -> tuple[list[Launch], list[int], int, int, bool]:
    """Launches that make and sort the keys, all temporaries, the bindings of sorted keys and positions, and whether the latter are
    the values themselves."""
    before: list[Launch] = []
    temps = list(temps)
    stride = stride_over(index.shape, index.strides)
    if stride is None:
        launch, nbytes = contiguous(index, number, len(temps), found.profile)
        before, number, index, stride = [launch], TEMP(len(temps)), Layout(index.dtype, index.shape), 1
        temps.append(nbytes)
    bits = found.size.bit_length()  # the size itself is the key of what does not count
    plan = sort.plan(found.count, bits, found.profile)
    base = len(temps)
    temps += [-(-found.count // 4) * 16, *plan.temps()]
    payload = found.number if plan.carries and found.words else None
    before.append(_keys(found, index, number, stride, TEMP(base)))
    numbers = (TEMP(base + 1), TEMP(base + 2), TEMP(base + 3), TEMP(base + 4))
    made, keys, positions = sort.launches(plan, TEMP(base), numbers, found.profile, payload)
    return before + made, temps, keys, positions, payload is not None


def _keys(found: _Segments, index: Layout, number: int, stride: int, target: int) -> Launch:
    """Checked keys; what is ignored or out of range gets the key `size`, filling keys 0xffffffff."""
    call = found.call
    ignore = call.attrs.get("ignore")
    wrap = bool(call.attrs.get("wrap", False))
    operand = Operand("index", index.dtype, index.dtype)
    padded = -(-found.count // 4) * 4
    items = [(operand, number, index), (Operand("keys", uint32, write=True), target, Layout(uint32, (padded,)))]
    bound = bind(items, call.alias, found.profile, call.op.name, T.large(call, found.profile))
    words = [found.count, padded, found.size, index.offset - bound.shifts[0], stride, 0 if ignore is None else ignore]
    key = ("segment keys", bound.operands, bound.access, ignore is not None, wrap)
    kernel = Kernel(
        key,
        lambda profile: _keys_source(bound.operands, bound.access, ignore is not None, wrap),
        (*bound.access, "read_write"),
        call.op.name,
        scalars=True,
        trusted=True,
    )
    ranges = None if bound.ranges is None else (*bound.ranges, (0, 16))
    return Launch(kernel, (*bound.numbers, STATUS), T.grid(-(-padded // 256)), T.pack(words), T.scalar_entries(call, (), True), ranges)


def _keys_source(operands: tuple[Operand, ...], access: tuple[str, ...], ignore: bool, wrap: bool) -> str:
    index, keys = operands
    out = declare(operands, access) + T.uniform(len(access) + 1, ("count", "padded", "size", "at", "step", "ignored"))
    out += T.scalar_block((), True) + T.status(len(access))
    return (
        out
        + (
            "@compute @workgroup_size(64)\n"
            "fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {\n"
            "for (var j = 0u; j < 4u; j = j + 1u) {\n"  # workgroups cost more than turns
            f"let id = ((group.y * {T.FOLD}u + group.x) * 4u + j) * 64u + thread;\n"
            "if (id >= p.padded) { break; }\nvar key = 0xffffffffu;\n"
            f"if (id < p.count) {{\n  let asked = i32({index.part(index.entry('p.at + id * p.step'), 0)});\n  var found = asked;\n"
            + ("  if (found < 0i) { found = found + i32(p.size); }\n" if wrap else "")
            + ("  let counts = asked != i32(p.ignored);\n" if ignore else "  let counts = true;\n")
            + "  key = select(p.size, u32(found), counts && u32(found) < p.size);\n"
            "  if (counts && u32(found) >= p.size) { status_report(asked, i32(p.size)); }\n}\n"
            f"{keys.entry('id')} = key;\n}}\n}}\n"
        )
    )


def _windows(found: _Segments) -> list[tuple[int, int]]:
    """Ranges of output rows that fit one binding."""
    out = found.call.outputs[0]
    if T.fits([out], found.profile):
        return [(0, found.size)]
    row = found.columns * out.dtype.itemsize
    count = (found.profile.max_binding - 512) // row
    if count == 0:
        raise DeviceError(f"{found.call.op.name}: a row of {row} bytes exceeds a binding's {found.profile.max_binding} bytes")
    return [(low, min(low + count, found.size)) for low in range(0, found.size, count)]


def _bound_out(found: _Segments, low: int, high: int) -> Layout:
    """The output rows [low, high)."""
    out = found.call.outputs[0]
    return Layout(out.dtype, (high - low, found.columns), offset=out.offset + low * found.columns)


def _clear(found: _Segments) -> list[Launch]:
    """Launches that write zeros, or the base, to the whole output; none where it lies there already."""
    call, base = found.call, found.base
    if base is not None:
        there = bool(call.alias) and call.alias[0] == call.alias[-1] and base == call.outputs[0]
        return [] if there else list(copies(base, call.outputs[0], (0, found.target), found.profile))
    made = []
    for rows in _windows(found):
        out = _bound_out(found, *rows)
        operand = Operand("out", out.dtype, write=True, width=found.width)
        made.append(_launch(found, "clear", [(operand, found.target, out)], rows, out.numel // found.width))
    return made


def _sums(found: _Segments, low: int, high: int) -> list[Launch]:
    """Launches that sum rows [low, high) of the output."""
    keys, positions, partial = found.temps
    padded = Layout(uint32, (found.count,))
    operand = Operand("out", found.call.outputs[0].dtype, found.accumulator, write=True, width=found.width)
    out = (operand, found.target, _bound_out(found, low, high))
    kept = Layout(found.accumulator, (2 * found.blocks * found.columns,))
    total = found.blocks * (found.columns // found.width)
    sorted_keys = (Operand("keys", uint32), keys, padded)
    values = (Operand("values", found.values.dtype, found.accumulator, width=found.width), found.number, found.values)
    writes = (Operand("partial", found.accumulator, write=True, width=found.width), partial, kept)
    reads = (Operand("partial", found.accumulator, width=found.width), partial, kept)
    order = [] if found.moved else [(Operand("positions", uint32), positions, padded)]
    blocks = [sorted_keys, *order, values, writes, out]
    made = [_launch(found, "teams" if found.teams else "blocks", blocks, (low, high), total)]
    if found.blocks > 1:
        made.append(_launch(found, "join", [sorted_keys, reads, out], (low, high), total))
    return made


def _launch(found: _Segments, stage: str, items: list[tuple[Operand, int, Layout]], rows: tuple[int, int], total: int) -> Launch:
    bound = bind(items, found.call.alias, found.profile, found.call.op.name, T.large(found.call, found.profile))
    unroll = 1 if found.profile.family == "cpu" else 4
    combine, include = ("sum", False) if stage == "clear" else _combination(found.call)
    value = found.accumulator.value
    form = SegmentForm(stage, bound.operands, bound.access, found.width, value, unroll, combine, include)
    kernel = Kernel(("segment", form), lambda profile: _source(form, profile), form.access, found.call.op.name, trusted=True)
    shift = {o.name: s for o, s in zip(bound.operands, bound.shifts, strict=True)}
    low, high = rows
    w = found.width
    out_at = found.call.outputs[0].offset + low * found.columns - shift["out"]
    values_at = found.values.offset - shift.get("values", 0)
    words = [total, found.columns // w, found.count, found.block, low, high, out_at // w, values_at // w, found.rows // w]
    words += [found.step if w == 1 else 1, found.blocks * (found.columns // w)]
    each = {"clear": 4 * T.WORKGROUP, "teams": 1}.get(stage, 64)
    return Launch(kernel, bound.numbers, T.grid(-(-total // each)), T.pack(words), (), bound.ranges)


def _combination(call: Call) -> tuple[str, bool]:
    """How values are combined, and whether the base counts: attributes of the call, or options of the row."""
    options = getattr(call.op.archetype, "options", {})
    combine = call.attrs.get("combine", options.get("combine", "sum"))
    return str(combine), bool(call.attrs.get("include", options.get("include", False)))


def _source(form: SegmentForm, profile: Profile) -> str:
    named = {o.name: o for o in form.operands}
    out = named["out"]
    vector = form.accumulator if form.width == 1 else f"vec4<{form.accumulator}>"
    code = _combining(form, vector)
    code += "fn in_window(key: u32) -> bool { return key >= p.low && key < p.high; }\n"
    if form.stage != "clear":
        code += _give(form, out, vector)
    if form.stage == "clear":
        code += T.entry(profile) + _clear_body(out) + "}\n"
    elif form.stage == "teams":
        code += f"var<workgroup> sums: array<{vector}, {TEAM}>;\nvar<workgroup> begins: array<u32, {TEAM}>;\n"
        code += T.entry(profile, TEAM) + "let id = group;\nif (id >= p.total) { return; }\n" + _teams_body(named, vector) + "}\n"
    else:
        code += T.entry(profile, 64) + "let id = group * 64u + local;\nif (id >= p.total) { return; }\n"
        code += (_blocks_body(named, vector, form.unroll) if form.stage == "blocks" else _join_body(named)) + "}\n"
    front = T.header(profile, (o.dtype for o in form.operands), bool(T.lanes(profile))) + declare(form.operands, form.access)
    return front + T.uniform(len(form.access), form.fields()) + T.prelude(code) + code


def _combining(form: SegmentForm, vector: str) -> str:
    """The functions `nothing`, where a run starts, and `combine`."""
    of = form.accumulator
    identity = {"sum": "", "last": "", "prod": f"{of}(1)", "max": LOWEST[of], "min": HIGHEST[of]}[form.combine]
    merged = {"sum": "a + b", "last": "b", "prod": "a * b"}.get(form.combine, f"{form.combine}(a, b)")
    if form.combine in ("max", "min") and of == "f32":
        parts = [""] if form.width == 1 else [f".{c}" for c in T.LANES]
        merged = f"{vector}({', '.join(f'nan_{form.combine}(a{c}, b{c})' for c in parts)})"
    code = f"fn nothing() -> {vector} {{ return {vector}({identity}); }}\n"
    return code + f"fn combine(a: {vector}, b: {vector}) -> {vector} {{ return {merged}; }}\n"


def _give(form: SegmentForm, out: Operand, vector: str) -> str:
    """The function that stores what a run came to, after the base that lies there where it counts."""
    at = "p.out_at + (key - p.low) * p.columns + column"
    lanes = range(form.width)
    held = [out.part(out.entry(at), i) for i in lanes]
    value = f"combine({held[0] if form.width == 1 else f'{vector}({chr(44).join(held)})'}, sum)" if form.include else "sum"
    parts = ["value"] if form.width == 1 else [f"value.{T.LANES[i]}" for i in lanes]
    body = f"let value = {value}; {out.put(at, form.accumulator, parts)}"
    return f"fn give(key: u32, column: u32, sum: {vector}) {{ if (in_window(key)) {{ {body} }} }}\n"


def _clear_body(out: Operand) -> str:
    """Four entries an invocation: workgroups cost more than stores on software Vulkan."""
    zero = f"{T.element(out.dtype, out.width)}()"
    text = f"let id = group * {4 * T.WORKGROUP}u + local;\n"
    for i in range(4):
        at = f"id + {i * T.WORKGROUP}u"
        text += f"if ({at} < p.total) {{ {out.entry(f'p.out_at + {at}')} = {zero}; }}\n"
    return text


def _blocks_body(named: dict[str, Operand], vector: str, unroll: int) -> str:
    """Walk a block's tokens for one column (four): whole runs go to the output, cut ones to the partial sums.

    Partial sums: first the heads (runs that began in an earlier block), then the tails (runs that go on in the next).
    """
    keys, partial = named["keys"], named["partial"]
    loads = "".join(_token(named, vector, u) for u in range(unroll))
    steps = "".join(f"  {f'if (t + {u}u < end) ' if u else ''}{{ {_take(partial, u)} }}\n" for u in range(unroll))
    return f"""let block = id / p.columns;
let column = id - block * p.columns;
let start = block * p.block;
let end = min(p.count, start + p.block);
var key = {keys.entry("start")};
var begun = false;
if (start > 0u) {{ begun = {keys.entry("start - 1u")} == key; }}
var sum = nothing();
for (var t = start; t < end; t = t + {unroll}u) {{
{loads}{steps}}}
var goes_on = false;
if (end < p.count) {{ goes_on = {keys.entry("end")} == key; }}
if (begun) {{ {partial.entry("id")} = sum; return; }}
if (goes_on) {{ {partial.entry("p.tails + id")} = sum; }} else {{ give(key, column, sum); }}
"""


def _token(named: dict[str, Operand], vector: str, u: int) -> str:
    """Load the key and the value of token t + u (of the last one beyond the block's end)."""
    keys, values, positions = named["keys"], named["values"], named.get("positions")
    at = f"min(t + {u}u, end - 1u)" if u else "t"
    row = f"p.values_at + {positions.entry(f'at{u}') if positions else f'at{u}'} * p.values_row + column * p.values_step"
    parts = [values.part(f"row{u}", i) for i in range(values.width)]
    value = parts[0] if values.width == 1 else f"{vector}({', '.join(parts)})"
    return f"  let at{u} = {at}; let k{u} = {keys.entry(f'at{u}')}; let row{u} = {values.entry(row)}; let value{u} = {value};\n"


def _take(partial: Operand, u: int) -> str:
    """Take in token t + u, after settling the run that it ends."""
    settle = f"if (begun) {{ {partial.entry('id')} = sum; }} else {{ give(key, column, sum); }}"
    return f"if (k{u} != key) {{ {settle} key = k{u}; begun = false; sum = nothing(); }} sum = combine(sum, value{u});"


def _teams_body(named: dict[str, Operand], vector: str) -> str:
    """As _blocks_body, but each invocation takes EACH neighbouring tokens: what the last run in it and the invocations before it
    has come to is found by a segmented scan, and then its tokens are walked again from there."""
    keys, partial = named["keys"], named["partial"]
    out = "let block = id / p.columns;\nlet column = id - block * p.columns;\nlet start = block * p.block;\n"
    out += f"let end = min(p.count, start + p.block);\nlet t = start + local * {EACH}u;\n"
    out += f"var old = {keys.entry('start')};\nvar cut = false;\n"
    out += f"if (start > 0u) {{ cut = {keys.entry('start - 1u')} == old; }}\nlet since = cut;\n"
    out += f"if (local > 0u && t < end) {{ old = {keys.entry('t - 1u')}; }}\nlet before = old;\nvar sum = nothing();\nvar begun = 0u;\n"
    for u in range(EACH):
        out += _token(named, vector, u).replace("let at0 = t;", "let at0 = min(t, end - 1u);")
        renew = f"if (k{u} != old) {{ begun = 1u; sum = nothing(); old = k{u}; }}"
        out += f"  if (t + {u}u < end) {{ {renew} sum = combine(sum, value{u}); }}\n"
    out += "sums[local] = sum;\nbegins[local] = begun;\nworkgroupBarrier();\n"
    out += f"for (var h = 1u; h < {TEAM}u; h = h << 1u) {{\n  var other = nothing();\n  var flag = begins[local];\n  let own = flag;\n"
    out += "  if (local >= h) { other = sums[local - h]; flag = flag | begins[local - h]; }\n  workgroupBarrier();\n"
    out += "  if (own == 0u) { sums[local] = combine(other, sums[local]); }\n  begins[local] = flag;\n  workgroupBarrier();\n}\n"
    out += "sum = nothing();\nbegun = 0u;\nif (local > 0u) { sum = sums[local - 1u]; begun = begins[local - 1u]; }\n"
    out += "cut = since && begun == 0u;\nold = before;\n"
    for u in range(EACH):
        settle = f"if (cut) {{ {partial.entry('id')} = sum; }} else {{ give(old, column, sum); }}"
        renew = f"if (k{u} != old) {{ {settle} cut = false; sum = nothing(); old = k{u}; }}"
        out += f"if (t + {u}u < end) {{ {renew} sum = combine(sum, value{u}); }}\n"
    return out + (
        f"if (t >= end || t + {EACH}u < end) {{ return; }}\nvar goes_on = false;\n"
        f"if (end < p.count) {{ goes_on = {keys.entry('end')} == old; }}\n"
        f"if (cut) {{ {partial.entry('id')} = sum; return; }}\n"
        f"if (goes_on) {{ {partial.entry('p.tails + id')} = sum; }} else {{ give(old, column, sum); }}\n"
    )


def _join_body(named: dict[str, Operand]) -> str:
    """The block in which a run begins combines its tail and the heads of the blocks it goes on in.

    Invocations leave the loop at different turns and store before they do: lavapipe (Mesa 22.3) may go on computing what is used
    after a loop for those that left it.
    """
    keys, partial = named["keys"], named["partial"]
    return f"""let block = id / p.columns;
let column = id - block * p.columns;
let start = block * p.block;
var end = min(p.count, start + p.block);
if (end == p.count) {{ return; }}
let key = {keys.entry("end")};
if ({keys.entry("end - 1u")} != key || !in_window(key)) {{ return; }}
if (start > 0u) {{ if ({keys.entry("start - 1u")} == key) {{ return; }} }}
var sum = {partial.entry("p.tails + id")};
var at = id;
loop {{
  at = at + p.columns;
  sum = combine(sum, {partial.entry("at")});
  end = min(p.count, end + p.block);
  var done = end == p.count;
  if (!done) {{ done = {keys.entry("end")} != key; }}
  if (done) {{ give(key, column, sum); break; }}
}}
"""
