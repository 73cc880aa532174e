"""Results over parts of the keys, put together: each part has its own result and the log of its sum.

In: temporaries [parts, rows, width] (f32, rows padded to vec4s) and [parts, rows], a row for each batch entry, head and
query. Out: one launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ..dtype import DType, float32
from . import attention_problem as A
from . import template as T
from .attention_problem import Source
from .kernel import Kernel, Launch, Profile


@dataclass(frozen=True, slots=True)
class CombineForm:
    """Everything the text depends on."""

    dtype: DType
    wide: bool
    blank: str  # what a row without keys is multiplied by


def combine(values: int, sums: int, parts: int, out: Source, lse: Source, blank: str) -> Launch:
    """out [B, H, L, D] and lse [B, H, L], which is contiguous, from temporaries `values` and `sums`."""
    rows, (_, heads, length, width) = lse.layout.numel, out.layout.shape
    form = CombineForm(out.layout.dtype, out.wide(), blank)
    quads = -(-width // 4)
    words = [rows, heads, length, width, quads, parts, *out.words(form.wide)[:4], lse.layout.offset]
    access = ("read", "read", "read_write", "read_write")
    kernel = Kernel(("attention combine", form), partial(_source, form), access, "<attention combine>", trusted=True)
    return Launch(kernel, (values, sums, out.number, lse.number), T.grid(-(-rows * quads // 64)), T.pack(words))


def _source(form: CombineForm, profile: Profile) -> str:
    declared = [("values", "vec4<f32>", "read"), ("sums", "f32", "read"), ("o", T.element(form.dtype, 4 if form.wide else 1), "read_write")]
    code = A.writer("o", form.dtype, form.wide, True, "width")
    code += T.entry(profile, 64) + "  let id = group * 64u + local;\n  if (id >= p.rows * p.quads) { return; }\n"
    code += f"  let row = id / p.quads; let c = id % p.quads;\n  var top = {A.LOWEST};\n"
    code += "  for (var i = 0u; i < p.parts; i += 1u) { top = max(top, sums[i * p.rows + row]); }\n"
    code += "  var sum = 0.0; var x = vec4<f32>();\n  for (var i = 0u; i < p.parts; i += 1u) {\n"
    code += "    let w = exp(sums[i * p.rows + row] - top); sum += w; x += w * values[(i * p.rows + row) * p.quads + c];\n  }\n"
    code += "  let at = p.o_at + row / (p.heads * p.length) * p.o_b + row / p.length % p.heads * p.o_h + row % p.length * p.o_r;\n"
    code += f"  o_put(at, c, x * select(1.0 / sum, {form.blank}, sum == 0.0));\n"
    code += "  if (c == 0u) { lse[p.lse_at + row] = select(top + log(sum), -inf(), sum == 0.0); }\n}\n"
    fields = ["rows", "heads", "length", "width", "quads", "parts", *A.steps("o")[:4], "lse_at"]
    text = A.arrays([*declared, ("lse", "f32", "read_write")])
    return A.module(profile, code, text, fields, 4, (form.dtype, float32), T.lanes(profile) > 0, scalars=False)
