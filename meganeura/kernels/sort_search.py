"""searchsorted: where values go in sorted rows, by bisection, an invocation a value.

In: a Call with sorted rows [*, n] (or [n] for all) and values [*, m]. Out: one launch. With attrs['nan_last'], NaN in the
rows counts as larger than all else; otherwise, as PyTorch has it, a search that meets NaN goes on behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import DeviceError
from ..shape import broadcast_strides, collapse
from . import template as T
from .kernel import Call, Kernel, Launch, Lowered, Profile
from .operand import Operand, bind, declare


@dataclass(frozen=True, slots=True)
class SearchForm:
    """Everything the source depends on: the pipeline key."""

    operands: tuple[Operand, ...]  # rows, values, output
    access: tuple[str, ...]
    rank: int
    right: bool
    nan_last: bool

    def fields(self) -> list[str]:
        """Parameter names."""
        dims = range(self.rank)
        names = ["total", "count", *(f"size{d}" for d in dims), "r_at", "r_step", *(f"r{d}" for d in dims)]
        return [*names, "v_at", *(f"v{d}" for d in dims), "o_at"]


def lower(call: Call, profile: Profile) -> Lowered:
    """A launch for searchsorted."""
    rows, values = call.inputs
    out = call.outputs[0]
    assert rows is not None
    assert values is not None
    if out.numel == 0:
        return Lowered(())
    if not out.contiguous:
        raise DeviceError(f"{call.op.name}: the output must be contiguous, not {out!r}")
    row_shape, row_strides = (*rows.shape[:-1], 1), (*rows.strides[:-1], 0)
    if len(rows.shape) == 1:
        row_shape, row_strides = (1,) * len(values.shape), (0,) * len(values.shape)
    over = broadcast_strides(row_shape, row_strides, values.shape)
    sizes, (r, v) = collapse(values.shape, over, values.strides)
    count = rows.shape[-1]
    seen = rows if count else rows.with_(shape=(1,), strides=(1,), offset=0)
    bound = bind(
        [
            (Operand("rows", rows.dtype, call.compute[0]), 0, seen),
            (Operand("values", values.dtype, call.compute[1]), 1, values),
            (Operand("out", out.dtype, write=True), 2, out),
        ],
        call.alias,
        profile,
        call.op.name,
    )
    form = SearchForm(bound.operands, bound.access, len(sizes), bool(call.attrs["right"]), bool(call.attrs["nan_last"]))
    shifts = bound.shifts
    words = [out.numel, count, *sizes, rows.offset - shifts[0] if count else 0, rows.strides[-1], *r]
    words += [values.offset - shifts[1], *v, out.offset - shifts[2]]
    kernel = Kernel(("searchsorted", form), lambda profile: source(form, profile), form.access, call.op.name, trusted=True)
    return Lowered((Launch(kernel, bound.numbers, T.grid(-(-out.numel // T.WORKGROUP)), T.pack(words), (), bound.ranges),))


def source(form: SearchForm, profile: Profile) -> str:
    """The WGSL: [low, low + left) holds the place; each step halves it."""
    rows, values, out = form.operands
    dims = range(form.rank)
    body = f"let id = group * {T.WORKGROUP}u + local;\nif (id >= p.total) {{ return; }}\n"
    body += T.decompose("id", [f"p.size{d}" for d in dims], "c") + "\n"
    body += f"let base = p.r_at{''.join(f' + c{d} * p.r{d}' for d in dims)};\n"
    body += f"let v = {values.part(values.entry('p.v_at' + ''.join(f' + c{d} * p.v{d}' for d in dims)), 0)};\n"
    body += "var low = 0u;\nvar left = p.count;\n"
    body += f"for (; left > 0u; ) {{\n  let half = left / 2u;\n  let m = {rows.part(rows.entry('base + (low + half) * p.r_step'), 0)};\n"
    body += f"  if ({_behind(form)}) {{ low = low + half + 1u; left = left - half - 1u; }} else {{ left = half; }}\n}}\n"
    body += out.put("p.o_at + id", "u32", ["low"]) + "\n}\n"
    front = T.header(profile, (o.dtype for o in form.operands), bool(T.lanes(profile))) + declare(form.operands, form.access)
    return front + T.uniform(len(form.access), form.fields()) + T.prelude(body) + T.entry(profile) + body


def _behind(form: SearchForm) -> str:
    """Whether the value belongs behind the element m."""
    compute = form.operands[0].compute
    value = compute.value if compute else "f32"
    if value == "bool":
        return "!m || v" if form.right else "!m && v"
    sign = "<=" if form.right else "<"
    if value != "f32":
        return f"m {sign} v"
    if not form.nan_last:
        return f"is_nan(m) || is_nan(v) || m {sign} v"
    return f"!is_nan(m) && (is_nan(v) || m {sign} v)" if not form.right else f"is_nan(v) || (!is_nan(m) && m {sign} v)"
