"""Operands copied before a product, so that its kernel reads them well.

Panels, for software devices: a tile reads its operand from front to back. Panel q of a matrix holds rows 32q to 32q+31 of its
free dimension as [K/4][32] vec4s along k, filled up with zeros along k. It pays where rows lie a multiple of 4 KB apart:
then they share cache sets, and pages change with every load.

Whole rows, for GPUs: rows along k that each begin at a vec4, filled up with zeros. It pays where rows of another length would
be read element by element, and each element is used often.
"""

from __future__ import annotations

from dataclasses import replace

from ..dtype import DType
from . import template
from .kernel import TEMP, Kernel, Launch, Profile
from .matmul_problem import Problem, Side
from .matmul_sum import computed
from .matmul_wgsl import Types, load

PANEL = 32
LANES = 8
RUN = 8  # vec4s of k a subgroup packs
FIELDS = ("extent", "k", "inner", "offset", "free", "step", "b0", "b1", "panels")
ROWS_FAST, ROWS_SLOW = 64, 4  # invocations of `whole_rows` along k and across


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
    wide = side.form(p.k) == "k4"
    words = side.words("k4") if wide else side.words("k1")
    params = template.pack([side.extent, p.k, 1 if single else p.batch[1], *words, panels])
    value = Types.of(p).value
    kernel = Kernel(
        ("matmul", "pack", wide, side.dtype, value),
        lambda profile: _source(wide, side, value, profile),
        ("read", "read_write"),
        label="matmul_pack",
        trusted=True,
    )
    ranges = None if side.part is None or made.part is None else (side.part, made.part)
    return Launch(kernel, (side.binding, made.binding), (-(-quads // RUN), panels, matrices), params, ranges=ranges), made


def _source(wide: bool, side: Side, value: str, profile: Profile) -> str:
    if wide:
        quad = load("a[row + q]", side.dtype, value, True)
    else:
        parts = (load(f"a[row + min(q * 4u + {u}u, p.k - 1u) * p.step]", side.dtype, value, guard=f"q * 4u + {u}u < p.k") for u in range(4))
        quad = f"vec4<{value}>({', '.join(parts)})"
    lines = [
        template.header(profile, (side.dtype,), True),
        template.storage(0, "a", template.element(side.dtype, 4 if wide else 1), "read"),
        template.storage(1, "o", f"vec4<{value}>", "read_write"),
        template.uniform(2, FIELDS),
        f"@compute @workgroup_size({LANES}) fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(subgroup_invocation_id) lane: u32) {{\n",
        "let quads = (p.k + 3u) / 4u; let at = p.offset + (w.z / p.inner) * p.b0 + (w.z % p.inner) * p.b1;\n",
        f"let end = min(w.x * {RUN}u + {RUN}u, quads); let first = w.y * {PANEL}u + lane;\n",
        f"var q = w.x * {RUN}u; loop {{ let to = ((w.z * p.panels + w.y) * quads + q) * {PANEL}u + lane;\n",
    ]
    for i in range(PANEL // LANES):
        place = f"let row = at + min(first + {i * LANES}u, p.extent - 1u) * p.free;"
        lines.append(f"{{ {place} o[to + {i * LANES}u] = {quad}; }}\n")
    return "".join([*lines, "continuing { q += 1u; break if q >= end; } } }\n"])


def whole_rows_bytes(p: Problem, side: Side) -> int:
    """Bytes of the temporary that `whole_rows` makes."""
    matrices = 1 if side.batch == (0, 0) else p.matrices
    return matrices * side.extent * -(-p.k // 4) * 4 * side.dtype.itemsize


def whole_rows(p: Problem, side: Side, temps: list[int]) -> tuple[Launch, Side]:
    """The launch that copies one operand into a new temporary as rows of whole vec4s along k, and the operand as it then is.

    It is of form 'k4' in a product whose K is rounded up to a multiple of 4.
    """
    single = side.batch == (0, 0)
    matrices = 1 if single else p.matrices
    quads = -(-p.k // 4)
    size = side.extent * quads * 4
    made = Side(TEMP(len(temps)), side.dtype, 0, quads * 4, 1, (0, 0) if single else (p.batch[1] * size, size), side.extent)
    temps.append(-(-whole_rows_bytes(p, side) // 16) * 16)
    if side.part is not None:
        made = replace(made, part=(0, temps[-1]))
    params = template.pack([side.extent, p.k, 1 if single else p.batch[1], *side.words("k1"), 0])
    kernel = Kernel(
        ("matmul", "rows", side.dtype),
        lambda profile: _rows_source(side.dtype, profile),
        ("read", "read_write"),
        label="matmul_rows",
        trusted=True,
    )
    ranges = None if side.part is None or made.part is None else (side.part, made.part)
    return Launch(
        kernel, (side.binding, made.binding), (-(-quads // ROWS_FAST), -(-side.extent // ROWS_SLOW), matrices), params, ranges=ranges
    ), made


def _rows_source(dtype: DType, profile: Profile) -> str:
    one, four = template.element(dtype, 1), template.element(dtype, 4)
    parts = (f"select({one}(0), a[row + min(q * 4u + {u}u, p.k - 1u) * p.step], q * 4u + {u}u < p.k)" for u in range(4))
    return "".join(
        (
            template.header(profile, (dtype,), False),
            template.storage(0, "a", one, "read"),
            template.storage(1, "o", four, "read_write"),
            template.uniform(2, FIELDS),
            f"@compute @workgroup_size({ROWS_FAST * ROWS_SLOW}) fn main(@builtin(workgroup_id) w: vec3<u32>, "
            "@builtin(local_invocation_index) tid: u32) {\n",
            f"let q = w.x * {ROWS_FAST}u + tid % {ROWS_FAST}u; let i = w.y * {ROWS_SLOW}u + tid / {ROWS_FAST}u;\n",
            "let quads = (p.k + 3u) / 4u; if (i >= p.extent || q >= quads) { return; }\n",
            "let row = p.offset + (w.z / p.inner) * p.b0 + (w.z % p.inner) * p.b1 + i * p.free;\n",
            f"o[(w.z * p.extent + i) * quads + q] = {four}({', '.join(parts)});\n}}\n",
        )
    )
