"""The last step of a convolution made in slices: add up slices of sums in a temporary, add the bias, store in the result's layout."""

from __future__ import annotations

from dataclasses import dataclass

from .. import dtype as D
from ..dtype import DType
from ..shape import numel
from . import template as T
from .conv_problem import AXES, Field, Triple, ranges
from .kernel import Kernel, Launch, Profile

SLICES = 8  # that one turn of the loop adds up


@dataclass(frozen=True, slots=True)
class Form:
    """What decides the text. `plain`: the result lies without gaps, like a slice; `quads`: and is made by vec4."""

    target: DType
    bias: DType | None
    plain: bool
    quads: bool


def partial(channels: int, size: Triple, binding: int, offset: int, nbytes: int) -> Field:
    """Where a slice goes: [n, channels, *size] without gaps in float32. nbytes: of the temporary, where ranges are bound."""
    planes = (size[1] * size[2], size[2], 1)
    part = (0, nbytes) if nbytes else None
    return Field(binding, D.float32, offset, channels * numel(size), numel(size), planes, part)


def slice_elements(shape: tuple[int, int, Triple]) -> int:
    """Elements from one slice to the next: a multiple of 4."""
    n, channels, size = shape
    return -(-n * channels * numel(size) // 4) * 4


def add_slices(target: Field, bias: Field | None, shape: tuple[int, int, Triple], temp: int, slices: int) -> Launch:
    """target = bias + sum of `slices` slices lying in binding `temp`. shape: (n, channels, spatial sizes)."""
    n, channels, size = shape
    count = n * channels * numel(size)
    plain = target.plain(channels, size)
    quads = plain and target.offset % 4 == 0 and count % 4 == 0 and (bias is None or numel(size) % 4 == 0)
    f = Form(target.dtype, bias.dtype if bias else None, plain, quads)
    unit = 4 if quads else 1
    fields = [*([bias] if bias else []), target]
    words = [count // unit, slices, slice_elements(shape) // unit, channels, numel(size) // unit, *size]
    words += [target.offset // unit, *target.words()[1:], *(bias.words() if bias else [])]
    kernel = Kernel(
        ("conv", "sum", f),
        lambda profile: _source(f, profile),
        ("read",) * len(fields) + ("read_write",),
        label="conv_sum",
        trusted=True,
    )
    bound = ranges(fields)
    if bound is not None:
        bound = ((0, slice_elements(shape) * 4 * slices), *bound)
    return Launch(kernel, (temp, *(x.binding for x in fields)), T.grid(-(-(count // unit) // T.WORKGROUP)), T.pack(words), ranges=bound)


def _source(f: Form, profile: Profile) -> str:
    fields = ["count", "slices", "step", "channels", "inner", *(f"size_{a}" for a in AXES), *Field.names("o")]
    fields += Field.names("b") if f.bias else []
    value = "vec4<f32>" if f.quads else "f32"
    body = T.entry(profile) + f"  let i = group * {T.WORKGROUP}u + local;\n  if (i >= p.count) {{ return; }}\n"
    body += f"  var sum = {value}(); var at = i; var left = p.slices;\n"
    body += f"  while (left >= {SLICES}u) {{\n"
    body += "".join(f"    let v{k} = t[at + {k}u * p.step];\n" for k in range(SLICES))
    body += "    sum += " + _tree([f"v{k}" for k in range(SLICES)]) + f"; at += {SLICES}u * p.step; left -= {SLICES}u;\n  }}\n"
    body += "  while (left > 0u) { sum += t[at]; at += p.step; left -= 1u; }\n"
    if f.bias:
        element = T.load(f.bias, "b[p.b_off + i / p.inner % p.channels * p.b_c]", D.float32)
        body += f"  sum += {value}({element});\n"
    if f.plain:
        place = "p.o_off + i"
    else:
        body += "  " + T.decompose("i", ["0", "p.channels", *(f"p.size_{a}" for a in AXES)]) + "\n"
        place = "p.o_off + c0 * p.o_n + c1 * p.o_c" + "".join(f" + c{k + 2} * p.o_{a}" for k, a in enumerate(AXES))
    if f.quads:
        parts = ", ".join(T.store("f32", f"sum.{c}", f.target) for c in "xyzw")
        body += f"  o[{place}] = {T.element(f.target, 4)}({parts});\n}}\n"
    else:
        body += f"  o[{place}] = {T.store('f32', 'sum', f.target)};\n}}\n"
    out = T.header(profile, [f.target, *([f.bias] if f.bias else [])], T.lanes(profile) > 0)
    out += T.storage(0, "t", value, "read")
    out += T.storage(1, "b", T.element(f.bias), "read") if f.bias else ""
    n = 2 if f.bias else 1
    out += T.storage(n, "o", T.element(f.target, 4 if f.quads else 1), "read_write")
    return out + T.uniform(n + 1, fields) + T.prelude(body) + body


def _tree(names: list[str]) -> str:
    """A sum by halves."""
    if len(names) == 1:
        return names[0]
    half = len(names) // 2
    return f"({_tree(names[:half])} + {_tree(names[half:])})"
