"""Rotary embedding, and rows written into a cache at a position from the device.

In: a Call of Kernel 'rotary' or 'cache_write'. Out: a launch, or one a cache. Both walk [B, H, L, E] by strides: rotary a pair
(four pairs where rows are whole vec4s) an invocation, cache_write a vec4 or an element.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ..dtype import DType, float32
from ..shape import broadcast_strides
from ..storage import Layout
from . import attention_problem as A
from . import template as T
from .attention_problem import Source
from .kernel import STATUS, Call, Kernel, Launch, Lowered, Profile

SIZE = 128


def lower(call: Call, profile: Profile) -> Lowered:
    """Launches for one call."""
    if call.outputs[0].numel == 0:
        return Lowered(())
    if getattr(call.op.archetype, "name", "") == "rotary":
        return Lowered((_rotary(call),))
    n = len(call.outputs)
    return Lowered(tuple(_write(call, i, n) for i in range(n) if call.inputs[n + i].numel))  # type: ignore[union-attr]


@dataclass(frozen=True, slots=True)
class RotaryForm:
    """Everything the text depends on: dtypes of input, cos and sin; whether an invocation takes four pairs."""

    dtypes: tuple[DType, DType, DType]
    wide: bool
    interleaved: bool


def _rotary(call: Call) -> Launch:
    x, cos, sin = call.inputs
    out = call.outputs[0]
    assert x is not None
    assert cos is not None
    assert sin is not None
    shape = (*x.shape[:3], x.shape[3] // 2)
    tables = [
        Source(i + 1, Layout(t.dtype, shape, broadcast_strides(t.shape, t.strides, shape), t.offset)) for i, t in enumerate((cos, sin))
    ]
    source, target = Source(0, x), Source(3, out)
    wide = shape[3] % 4 == 0 and all(s.wide() for s in (source, target, *tables))
    form = RotaryForm((x.dtype, cos.dtype, sin.dtype), wide, call.attrs["interleaved"])
    entries = shape[3] // 4 if wide else shape[3]
    words = [x.shape[1], x.shape[2], entries, x.shape[0] * x.shape[1] * x.shape[2] * entries]
    words += [w for s in (source, *tables, target) for w in s.words(wide)]
    kernel = Kernel(("rotary", form), partial(_rotary_source, form), ("read", "read", "read", "read_write"), repr(call.op), trusted=True)
    return Launch(kernel, (0, 1, 2, 3), T.grid(-(-words[3] // SIZE)), T.pack(words))


def _rotary_source(f: RotaryForm, profile: Profile) -> str:
    width = 4 if f.wide else 1
    declared = [(n, T.element(d, width), "read") for n, d in zip(("x", "cos_", "sin_"), f.dtypes, strict=True)]
    declared.append(("o", T.element(f.dtypes[0], width), "read_write"))
    names = ("x", "c", "s", "o")
    code = T.entry(profile, SIZE) + f"  let id = group * {SIZE}u + local;\n  if (id >= p.total) {{ return; }}\n"
    code += "  let e = id % p.entries; let r = id / p.entries % p.rows; let h = id / (p.entries * p.rows) % p.heads;\n"
    code += "  let b = id / (p.entries * p.rows * p.heads);\n"
    code += "".join(f"  let {n}_row = p.{n}_at + b * p.{n}_b + h * p.{n}_h + r * p.{n}_r;\n" for n in names)
    value = "vec4<f32>" if f.wide else "f32"
    code += f"  let c = {value}(cos_[c_row + e * p.c_c]); let s = {value}(sin_[s_row + e * p.s_c]);\n"
    places = ("2u * e", "2u * e + 1u") if f.interleaved else ("e", "e + p.entries")
    code += "".join(f"  let {v} = {value}(x[x_row + ({at}) * p.x_c]);\n" for v, at in zip("mn", places, strict=True))
    if f.wide and f.interleaved:
        code += "  let a = vec4<f32>(m.xz, n.xz); let z = vec4<f32>(m.yw, n.yw);\n"
    else:
        code += "  let a = m; let z = n;\n"
    code += "  let first = a * c - z * s; let second = z * c + a * s;\n"
    if f.wide and f.interleaved:
        code += "  let low = vec4<f32>(first.x, second.x, first.y, second.y); let high = vec4<f32>(first.z, second.z, first.w, second.w);\n"
    else:
        code += "  let low = first; let high = second;\n"
    for v, at in zip(("low", "high"), places, strict=True):
        lanes = [T.store("f32", f"{v}.{c}" if f.wide else v, f.dtypes[0]) for c in (T.LANES if f.wide else ("",))]
        text = f"{T.element(f.dtypes[0], 4)}({', '.join(lanes)})" if f.wide else lanes[0]
        code += f"  o[o_row + ({at}) * p.o_c] = {text};\n"
    fields = ["heads", "rows", "entries", "total", *(s for n in names for s in A.steps(n))]
    return A.module(profile, code + "}\n", A.arrays(declared), fields, 4, (*f.dtypes, float32), T.lanes(profile) > 0, scalars=False)


# --- caches -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WriteForm:
    """Everything the text depends on."""

    storage: str
    dtype: DType
    wide: bool


def _write(call: Call, i: int, n: int) -> Launch:
    """The launch that writes values i into cache i of n."""
    cache, values, position = (call.inputs[j] for j in (i, n + i, 2 * n))
    assert cache is not None
    assert values is not None
    assert position is not None
    target, source = Source(i, cache), Source(n + i, values)
    wide = target.wide() and source.wide()
    entries = values.shape[3] // 4 if wide else values.shape[3]
    words = [values.shape[1], values.shape[2], entries, values.numel // values.shape[3] * entries, cache.shape[2]]
    words += [*source.words(wide), *target.words(wide), position.offset, position.strides[0] if position.numel > 1 else 0]
    form = WriteForm(T.element(cache.dtype, 4 if wide else 1), cache.dtype, wide)
    access = ("read", "read_write", "read", "read_write")
    kernel = Kernel(("cache_write", form), partial(_write_source, form), access, repr(call.op), scalars=True, trusted=True)
    numbers = (n + i, i, 2 * n, STATUS)
    return Launch(kernel, numbers, T.grid(-(-words[3] // SIZE)), T.pack(words), T.scalar_entries(call, (), True))


def _write_source(f: WriteForm, profile: Profile) -> str:
    declared = [("x", f.storage, "read"), ("o", f.storage, "read_write"), ("pos", "i32", "read")]
    code = T.entry(profile, SIZE) + f"  let id = group * {SIZE}u + local;\n  if (id >= p.total) {{ return; }}\n"
    code += "  let e = id % p.entries; let r = id / p.entries % p.rows; let h = id / (p.entries * p.rows) % p.heads;\n"
    code += "  let b = id / (p.entries * p.rows * p.heads); let place = pos[p.pos_at + b * p.pos_step] + i32(r);\n"
    code += "  if (place < 0 || place >= i32(p.limit)) { status_report(place, i32(p.limit)); return; }\n"
    code += "  o[p.o_at + b * p.o_b + h * p.o_h + u32(place) * p.o_r + e * p.o_c] = "
    code += "x[p.x_at + b * p.x_b + h * p.x_h + r * p.x_r + e * p.x_c];\n}\n"
    fields = ["heads", "rows", "entries", "total", "limit", *A.steps("x"), *A.steps("o"), "pos_at", "pos_step"]
    out = T.header(profile, (f.dtype,), T.lanes(profile) > 0) + A.arrays(declared)
    return out + T.uniform(4, fields) + T.scalar_block((), True) + T.status(3) + T.prelude(code) + code
