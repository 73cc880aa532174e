"""The last step of a product made in pieces: add up slices of sums in a temporary and store them in the result's layout."""

from __future__ import annotations

from .. import dtype as D
from ..dtype import DType
from . import template
from .kernel import Kernel, Launch, Profile
from .matmul_problem import Problem, Result
from .matmul_wgsl import Form, Stores, Types, interface

FIELDS = ("count", "cols", "rows", "inner", "step", "o_off", "o_row", "o_col", "o_b0", "o_b1")


def computed(p: Problem) -> DType:
    """The dtype that holds sums as they are computed."""
    return {"f32": D.float32, "i32": D.int32}.get(Types.of(p).value, D.uint32)


def partial(p: Problem, binding: int, offset: int = 0) -> Result:
    """Where one slice of sums goes: [matrices, M, N] without gaps, in the type computed in."""
    return Result(binding, computed(p), offset, p.n, 1, (p.batch[1] * p.m * p.n, p.m * p.n))


def slice_elements(p: Problem) -> int:
    """Elements from one slice to the next: a multiple of 4."""
    return -(-p.matrices * p.m * p.n // 4) * 4


def add_slices(p: Problem, temp: int, split: int) -> Launch:
    """result = sum of `split` slices lying in binding `temp`; zero for no slices."""
    f = Form.of(p, "", "", p.stores())
    wide = f.out == "v4"
    cols = p.n // 4 if wide else p.n
    count = p.matrices * p.m * cols
    step = slice_elements(p) // 4 if wide else slice_elements(p)
    params = template.pack([count, cols, p.m, p.batch[1], step, *p.out.words(f.out), *p.fused_words(f.out)])
    kernel = Kernel(
        ("matmul", "sum", split, f),
        lambda profile: _source(f, split, partial(p, temp).dtype, profile),
        f.access[1:] if split else f.access[2:],
        label="matmul_sum",
        scalars=f.scalars,
        trusted=True,
    )
    bindings = (temp, *p.bindings(f.out)) if split else p.bindings(f.out)
    ranges = None if p.out.part is None else (((0, split * slice_elements(p) * 4),) if split else ()) + (p.out.part,)
    grid = template.grid(-(-count // template.WORKGROUP))
    return Launch(kernel, bindings, grid, params, p.scalars(), ranges)


def _source(f: Form, split: int, source: DType, profile: Profile) -> str:
    wide = f.out == "v4"
    value = f.types.value
    width = 4 if wide else 1
    terms = " + ".join(f"t[i + {s}u * p.step]" if s else "t[i]" for s in range(split)) or (f"vec4<{value}>()" if wide else f"{value}()")
    stores = Stores(f)
    col = "(col * 4u)" if wide else "col"
    body = f"""{f.epilogue.function(value) if f.epilogue else ""}{template.entry(profile)}  let i = group * {template.WORKGROUP}u + local;
  if (i < p.count) {{
    let col = i % p.cols; let line = i / p.cols; let row = line % p.rows; let mat = line / p.rows;
    let mat0 = mat / p.inner; let mat1 = mat % p.inner; let o_at = p.o_off + mat0 * p.o_b0 + mat1 * p.o_b1;
    let sum = {terms};
    {" ".join(stores.begin())} {stores.line("row")} {stores.column(col, inside=True)}
    {stores.put(["sum"], "row", col)}
  }}
}}
"""
    subgroups = template.lanes(profile) > 0
    text = template.header(profile, f.epilogue.dtypes() if f.epilogue else (f.types.out,), subgroups)
    if split:
        text += template.storage(0, "t", template.element(source, width), "read")
    n = 1 if split else 0
    if f.epilogue is None:
        text += template.storage(n, "o", template.element(f.types.out, width), "read_write")
    return text + "".join(interface(f, n, FIELDS)) + template.prelude(body) + body
