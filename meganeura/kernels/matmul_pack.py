"""Operands copied before a product, so that its kernel reads them well.

Panels, for software devices: a tile reads its operand from front to back. Panel q of a matrix holds rows 32q to 32q+31 of its
free dimension as [K/4][32] vec4s along k, filled up with zeros along k. It pays where rows lie a multiple of 4 KB apart:
then they share cache sets, and pages change with every load.

Whole rows, for GPUs: rows that each begin at a vec4, filled up with zeros, of one operand or both in one launch. It pays where rows
of another length would be read element by element, and each element is used often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..dtype import DType
from . import template
from .kernel import TEMP, Kernel, Launch, Profile
from .matmul_problem import Problem, Side
from .matmul_sum import computed
from .matmul_wgsl import Types, load

PANEL = 32
LANES = 8
RUN = 32  # vec4s of k a subgroup packs of each row
FIELDS = ("extent", "k", "inner", "offset", "free", "step", "b0", "b1", "panels")
ROWS_FAST, ROWS_SLOW = 64, 4  # invocations of `whole_rows` along rows and across
ROWS_FIELDS = ("lines", "length", "high", "quads", "inner", "at", "step", "unit", "b0", "b1", "count")


def packed_bytes(p: Problem, side: Side) -> int:
    """Bytes of the temporary that `packed` makes."""
    matrices = 1 if side.batch == (0, 0) else p.matrices
    return matrices * -(-side.extent // PANEL) * -(-p.k // 4) * PANEL * 16


def packed(p: Problem, side: Side, temps: list[int]) -> tuple[Launch, Side]:
    """The launch that packs one operand into a new temporary, and the operand as it then is (form 'p4')."""
    single = side.batch == (0, 0)
    matrices = 1 if single else p.matrices
    panels, quads = -(-side.extent // PANEL), -(-p.k // 4)
    dtype = computed(p)
    made = Side(TEMP(len(temps)), dtype, 0, quads * PANEL, PANEL, (0, 0), side.extent, panels=True)
    if not single:
        size = panels * quads * PANEL
        made = replace(made, batch=(p.batch[1] * size, size))
    temps.append(packed_bytes(p, side))
    if side.part is not None:
        made = replace(made, part=(0, temps[-1]))
    kind = side.form(p.k)
    kind = kind if kind in ("k4", "f4") else "k1"
    tail = kind == "f4" and p.k % 4 != 0
    params = template.pack([side.extent, p.k, 1 if single else p.batch[1], *side.words(kind), panels])
    value = Types.of(p).value
    kernel = Kernel(
        ("matmul", "pack", kind, tail, side.dtype, value),
        lambda profile: _source(kind, tail, side, value, profile),
        ("read", "read_write"),
        label="matmul_pack",
        trusted=True,
    )
    ranges = None if side.part is None or made.part is None else (side.part, made.part)
    return Launch(kernel, (side.binding, made.binding), (-(-quads // RUN), panels, matrices), params, ranges=ranges), made


def _source(kind: str, tail: bool, side: Side, value: str, profile: Profile) -> str:
    """A subgroup copies RUN vec4s of k of a panel's rows. tail: k is no whole vec4s, which matters to 'f4'."""
    lines = [
        template.header(profile, (side.dtype,), True),
        template.storage(0, "a", template.element(side.dtype, 1 if kind == "k1" else 4), "read"),
        template.storage(1, "o", f"vec4<{value}>", "read_write"),
        template.uniform(2, FIELDS),
        f"@compute @workgroup_size({LANES}) fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(subgroup_invocation_id) lane: u32) {{\n",
        "let quads = (p.k + 3u) / 4u; let at = p.offset + (w.z / p.inner) * p.b0 + (w.z % p.inner) * p.b1;\n",
        f"let end = min(w.x * {RUN}u + {RUN}u, quads); let first = w.y * {PANEL}u + lane; var q = w.x * {RUN}u;\n",
        f"var to = ((w.z * p.panels + w.y) * quads + q) * {PANEL}u + lane{' * 4u' if kind == 'f4' else ''};\n",
    ]
    lines += _turned(tail, side, value) if kind == "f4" else _copied(kind == "k4", side, value)
    return "".join([*lines, f"continuing {{ q += 1u; to += {PANEL}u; break if q >= end; }} }} }}\n"])


def _copied(wide: bool, side: Side, value: str) -> list[str]:
    """A lane has every eighth row; each vec4 is stored before the next is loaded, which is 1.1 times as fast."""
    if wide:
        quad = load("a[{row} + q]", side.dtype, value, True)
    else:
        steps = [f"q * 4u + {u}u" for u in range(4)]
        parts = (load(f"a[{{row}} + min({k}, p.k - 1u) * p.step]", side.dtype, value, guard=f"{k} < p.k") for k in steps)
        quad = f"vec4<{value}>({', '.join(parts)})"
    rows = range(0, PANEL, LANES)
    lines = [f"let row{i} = at + min(first + {i}u, p.extent - 1u) * p.free;\n" for i in rows]
    return [*lines, "loop {\n", *(f"o[to + {i}u] = {quad.replace('{row}', f'row{i}')};\n" for i in rows)]


def _turned(tail: bool, side: Side, value: str) -> list[str]:
    """A lane has four neighbouring rows, which lie side by side in memory: vec4s of four k, turned."""
    lines = [f"let column = at + min(w.y * {LANES}u + lane, p.extent / 4u - 1u);\nloop {{\n"]
    for u in range(4):
        k = f"(q * 4u + {u}u)"
        place = f"min({k}, p.k - 1u)" if tail else k
        lines.append(f"let x{u} = {load(f'a[column + {place} * p.step]', side.dtype, value, True, f'{k} < p.k' if tail else '')};\n")
    return [*lines, *(f"o[to + {i}u] = vec4<{value}>({', '.join(f'x{u}.{c}' for u in range(4))});\n" for i, c in enumerate("xyzw"))]


def _along_k(p: Problem, side: Side) -> bool:
    """Whether the rows that `whole_rows` makes lie along k."""
    return side.form(p.k).startswith("k")


def _sizes(p: Problem, side: Side) -> tuple[int, int, int]:
    """Of what `whole_rows` makes of one matrix: rows, their vec4s, and the K that it has then."""
    k = -(-p.k // 4) * 4 if _along_k(p, p.a) or _along_k(p, p.b) else p.k
    return (side.extent, k // 4, k) if _along_k(p, side) else (k, -(-side.extent // 4), k)


def whole_rows_bytes(p: Problem, side: Side) -> int:
    """Bytes of the temporary that `whole_rows` makes of one operand."""
    matrices = 1 if side.batch == (0, 0) else p.matrices
    rows, quads, _ = _sizes(p, side)
    return -(-matrices * rows * quads * 4 * side.dtype.itemsize // 16) * 16


def whole_rows(p: Problem, names: tuple[str, ...], most: int, temps: list[int]) -> tuple[Problem, Launch]:
    """The problem in which operands 'a', 'b' or both are copies with rows of whole vec4s, and the launch that makes them.

    If any operand lies along k, K is rounded up to a multiple of 4: then an operand that is not copied must have such a K.
    Copies along the free dimension have the extent of their rows, while M and N stay. most: workgroups along an axis of the grid.
    """
    sides = [p.a if name == "a" else p.b for name in names]
    words, ranges, bindings, wide, grid, q = [], [], [], [], [0, 0, 0], p
    for name, side in zip(names, sides, strict=True):
        along, single = _along_k(p, side), side.batch == (0, 0)
        high, quads, k = _sizes(p, side)
        count = 1 if single else p.matrices
        lines, length = (side.extent, p.k) if along else (p.k, side.extent)
        step, unit = (side.free, side.inner) if along else (side.inner, side.free)
        words += [lines, length, high, quads, 1 if single else p.batch[1], side.offset, step, unit, *side.batch, count]
        wide.append(unit == 1 and side.part is None)
        grid = [max(grid[0], -(-quads // ROWS_FAST)), max(grid[1], -(-high // ROWS_SLOW)), grid[2] + count]
        temp, size = TEMP(len(temps)), high * quads * 4
        temps.append(whole_rows_bytes(p, side))
        batch = (0, 0) if single else (p.batch[1] * size, size)
        free, inner = (quads * 4, 1) if along else (1, quads * 4)
        made = Side(temp, side.dtype, 0, free, inner, batch, side.extent if along else quads * 4)
        made = made if side.part is None else replace(made, part=(0, temps[-1]))
        q = replace(q, a=made, k=k) if name == "a" else replace(q, b=made, k=k)
        bindings += [side.binding, temp]
        ranges += [side.part or (0, 0), made.part or (0, 0)]
    dtypes = tuple(x.dtype for x in sides)
    kernel = Kernel(
        ("matmul", "rows", dtypes, tuple(wide)),
        lambda profile: _rows_source(dtypes, wide, profile),
        ("read", "read_write") * len(sides),
        label="matmul_rows",
        trusted=True,
    )
    across, down, deep = grid[0], min(grid[1], most), grid[2]
    params = template.pack([*words, down * ROWS_SLOW])
    whole = all(x == (0, 0) for x in ranges)
    return q, Launch(kernel, tuple(bindings), (across, down, deep), params, ranges=None if whole else tuple(ranges))


def _rows_source(dtypes: tuple[DType, ...], wide: Sequence[bool], profile: Profile) -> str:
    """Matrices of the first operand, then those of the second. `wide`: elements of a row lie side by side, and are loaded as two
    vec4s of which four elements are taken."""
    out, fields, main = template.header(profile, dtypes, False), [], ""
    for i, (dtype, quick) in enumerate(zip(dtypes, wide, strict=True)):
        one, four, s = template.element(dtype, 1), template.element(dtype, 4), "ab"[i]
        out += template.storage(2 * i, s, four if quick else one, "read") + template.storage(2 * i + 1, f"{s}_o", four, "read_write")
        fields += [f"{s}_{name}" for name in ROWS_FIELDS]
        parts = "p." + s + "_"
        if quick:
            out += (
                f"fn take_{s}(x: {four}, y: {four}, n: u32) -> {four} {{ let two = (n & 2u) != 0u;\n"
                f"  let f = select(x, {four}(x.zw, y.xy), two); let g = select(y.x, y.z, two);\n"
                f"  return select(f, {four}(f.yzw, g), (n & 1u) != 0u); }}\n"
            )
            value = f"let e = row + q * 4u; let last = at + ({parts}lines - 1u) * {parts}step + {parts}length - 1u;\n"
            value += f"let v = take_{s}({s}[min(e, last) / 4u], {s}[min(e + 3u, last) / 4u], e & 3u);\n"
        else:
            reads = (f"{s}[row + min(q * 4u + {u}u, {parts}length - 1u) * {parts}unit]" for u in range(4))
            value = f"let v = {four}({', '.join(reads)});\n"
        main += (
            f"if (z < {parts}count) {{\nif (q >= {parts}quads) {{ return; }}\n"
            f"let at = {parts}at + z / {parts}inner * {parts}b0 + z % {parts}inner * {parts}b1;\n"
            f"for (; i < {parts}high; i += p.down) {{\n"
            f"let row = at + min(i, {parts}lines - 1u) * {parts}step;\n{value}"
            f"let exists = vec4<u32>(0u, 1u, 2u, 3u) + q * 4u < vec4<u32>(select(0u, {parts}length, i < {parts}lines));\n"
            f"{s}_o[(z * {parts}high + i) * {parts}quads + q] = select({four}(), v, exists);\n}}\nreturn;\n}}\nz -= {parts}count;\n"
        )
    return (
        f"{out}{template.uniform(2 * len(dtypes), [*fields, 'down'])}@compute @workgroup_size({ROWS_FAST * ROWS_SLOW})\n"
        "fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) tid: u32) {\n"
        f"let q = w.x * {ROWS_FAST}u + tid % {ROWS_FAST}u; var i = w.y * {ROWS_SLOW}u + tid / {ROWS_FAST}u; var z = w.z;\n{main}}}\n"
    )
