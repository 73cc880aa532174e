"""Kernels that only move elements: contiguous copies, cat, pad.

In: a Call named 'cat' or 'pad', or one layout. Out: copies made by the pointwise generator, and one kernel for pad.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast

from ..dtype import DType
from ..errors import DeviceError
from ..storage import Layout, padded_bytes
from . import pointwise
from . import template as T
from .kernel import TEMP, Call, Kernel, Launch, Lowered, Profile

if TYPE_CHECKING:
    from ..ops.table import Op


class _Copy:
    """Stands for the op of a copy that no op row asked for."""

    archetype = None

    def __repr__(self) -> str:
        return "<copy>"


_COPY = cast("Op", _Copy())


def copies(source: Layout, target: Layout, refs: tuple[int, int], profile: Profile) -> tuple[Launch, ...]:
    """Launches that copy a layout into another of the same shape, converting dtypes. `refs`: their binding numbers."""
    call = Call(_COPY, ("source",), (source,), (target,), (target.dtype,))
    made = pointwise.launches(call, (("result", target.dtype.value, "{source}"),), ("result",), profile)
    return tuple(replace(x, bindings=tuple(refs[b] for b in x.bindings)) for x in made)


def contiguous(layout: Layout, ref: int, temp_index: int, profile: Profile) -> tuple[Launch, int]:
    """A launch that copies operand `ref` row-major into TEMP(temp_index), and the temporary's size in bytes.

    The temporary's layout is Layout(layout.dtype, layout.shape). The layout must have elements and fit one binding.
    """
    target = Layout(layout.dtype, layout.shape)
    launches = copies(layout, target, (ref, TEMP(temp_index)), profile)
    size = padded_bytes(layout.numel, layout.dtype)
    if len(launches) > 1:
        raise DeviceError(f"{layout!r} must be copied to be read, and takes {size} bytes; the limit of a binding is {profile.max_binding}")
    return launches[0], size


def lower(call: Call, profile: Profile) -> Lowered:
    """Launches for cat or pad."""
    if call.outputs[0].numel == 0:
        return Lowered(())
    return _cat(call, profile) if getattr(call.op.archetype, "name", "") == "cat" else _pad(call, profile)


def _cat(call: Call, profile: Profile) -> Lowered:
    """Each input copied into its slice of the output."""
    out, dim = call.outputs[0], call.attrs["dim"]
    launches: list[Launch] = []
    start = 0
    for i, x in enumerate(call.inputs):
        assert x is not None
        n = x.shape[dim] if len(x.shape) == len(out.shape) else 0
        part = out.with_(shape=x.shape, strides=out.strides, offset=out.offset + start * out.strides[dim])
        if n:
            launches += copies(x, part, (i, len(call.inputs)), profile)
        start += n
    return Lowered(tuple(launches))


# --- pad ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dim:
    """A dimension, or several that pad leaves alone and both tensors walk as one: sizes, elements in front, strides."""

    size: int
    inner: int
    before: int
    stride: int
    step: int


@dataclass(frozen=True, slots=True)
class PadForm:
    """Everything the WGSL depends on, so also the pipeline key."""

    source: DType
    compute: DType
    target: DType
    scalar: str
    rank: int
    width: int  # elements an invocation makes
    vector: bool  # they are read as one vec4


def _dims(source: Layout, target: Layout, pads: tuple[tuple[int, int], ...]) -> list[Dim]:
    out: list[Dim] = []
    for n, m, (before, _), stride, step in zip(target.shape, source.shape, pads, source.strides, target.strides, strict=True):
        d = Dim(n, m, before, stride, step)
        last = out[-1] if out else None
        if last and before == 0 and m == n and last.stride == stride * n and last.step == step * n:
            out[-1] = Dim(last.size * n, last.inner * n, last.before * n, stride, step)
        else:
            out.append(d)
    return out or [Dim(1, 1, 0, 1, 1)]


def _pad(call: Call, profile: Profile) -> Lowered:
    """One launch over the output; elements outside the input are the scalar `value`."""
    source, target = call.inputs[0], call.outputs[0]
    assert source is not None
    dims = _dims(source, target, tuple(call.attrs["pad"]))
    last = dims[-1]
    quads = last.size % 4 == 0 and last.step == 1 and all(d.step % 4 == 0 for d in dims[:-1]) and target.offset % 4 == 0
    whole = last.before % 4 == 0 and last.inner % 4 == 0 and last.stride == 1
    vector = quads and whole and all(d.stride % 4 == 0 for d in dims[:-1]) and source.offset % 4 == 0
    form = PadForm(source.dtype, call.compute[0], target.dtype, dict(call.scalars)["value"], len(dims), 4 if quads else 1, vector)
    layouts = [[source if source.numel else source.with_(shape=(1,), offset=0)], [target]]
    ranges, shifts = T.windows(layouts, profile, repr(call.op))
    items = target.numel // form.width
    per, unit = (4 if vector else 1), form.width
    values = [items, (source.offset - shifts[0]) // per, (target.offset - shifts[1]) // unit]
    for i, d in enumerate(dims):
        inner = i == len(dims) - 1
        values += [d.size // unit if inner else d.size, d.inner // per if inner else d.inner, -d.before // per if inner else -d.before]
        values += [d.stride if inner else d.stride // per, d.step if inner else d.step // unit]
    kernel = Kernel(("pad", form), partial(_pad_source, form), ("read", "read_write"), repr(call.op), scalars=True, trusted=True)
    scalars = T.scalar_entries(call, T.used_scalars(call, ("value",)))
    return Lowered((Launch(kernel, (0, 1), T.grid(-(-items // T.WORKGROUP)), T.pack(values), scalars, ranges),))


def _pad_source(form: PadForm, profile: Profile) -> str:
    vector = T.element(form.source, 4 if form.vector else 1)
    fields = ["items", "at", "to", *(f"{n}{d}" for d in range(form.rank) for n in ("size", "inner", "shift", "stride", "step"))]
    body = T.entry(profile) + f"  let i = group * {T.WORKGROUP}u + local;\n  if (i >= p.items) {{ return; }}\n"
    body += "  " + T.decompose("i", [f"p.size{d}" for d in range(form.rank)]) + "\n" + _pad_body(form) + "}\n"
    out = T.header(profile, (form.source, form.target), subgroups=T.lanes(profile) > 0)
    out += T.storage(0, "source", vector, "read") + T.storage(1, "target_", T.element(form.target, form.width), "read_write")
    return out + T.uniform(2, fields) + T.scalar_block((("value", form.scalar),)) + T.prelude(body) + body


def _pad_body(form: PadForm) -> str:
    last = form.rank - 1
    inside = " && ".join(f"c{d} + p.shift{d} < p.inner{d}" for d in range(last)) or "true"
    at = " + ".join(["p.at", *(f"(c{d} + p.shift{d}) * p.stride{d}" for d in range(last))])
    to = " + ".join(["p.to", *(f"c{d} * p.step{d}" for d in range(last)), f"c{last}" if form.width == 4 else f"c{last} * p.step{last}"])
    fill = T.convert(form.scalar, form.compute, "s.v_value")
    zero = T.store(form.compute.value, "fill", form.target)
    out = f"  let fill = {fill};\n  let rows = {inside};\n  let at = {at};\n"
    for j in range(form.width):
        out += f"  var e{j} = {zero};\n"

    def value(code: str) -> str:
        return T.store(form.compute.value, T.load(form.source, code, form.compute), form.target)

    if form.vector:
        out += f"  let k = c{last} + p.shift{last};\n  if (rows && k < p.inner{last}) {{\n    let x = source[at + k];\n"
        out += "".join(f"    e{j} = {value(f'x.{T.LANES[j]}')};\n" for j in range(4)) + "  }\n"
    else:
        for j in range(form.width):
            out += f"  let k{j} = c{last}{f' * {form.width}u + {j}u' if form.width > 1 else ''} + p.shift{last};\n"
            out += f"  if (rows && k{j} < p.inner{last}) {{ e{j} = {value(f'source[at + k{j} * p.stride{last}]')}; }}\n"
    values = ", ".join(f"e{j}" for j in range(form.width))
    return out + f"  target_[{to}] = {f'{T.element(form.target, 4)}({values})' if form.width == 4 else values};\n"
