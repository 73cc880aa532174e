"""The last step of a convolution made in slices: add up slices of sums in a temporary, add the bias, apply what is fused, store in
the result's layout."""

from __future__ import annotations

from dataclasses import dataclass

from .. import dtype as D
from ..dtype import DType
from ..shape import numel
from . import template as T
from .conv_fusion import closing, dtypes, launch
from .conv_problem import AXES, Field, Triple
from .kernel import Launch, Profile
from .matmul_fusion import Epilogue, Fusion

SLICES = 8  # that one turn of the loop adds up


@dataclass(frozen=True, slots=True)
class Form:
    """What decides the text. `plain`: the result lies without gaps, like a slice; `quads`: and is made by vec4."""

    target: DType
    bias: DType | None
    plain: bool
    quads: bool
    epilogue: Epilogue | None = None


def partial(channels: int, size: Triple, binding: int, offset: int, nbytes: int) -> Field:
    """Where a slice goes: [n, channels, *size] without gaps in float32. nbytes: of the temporary, where ranges are bound."""
    planes = (size[1] * size[2], size[2], 1)
    part = (0, nbytes) if nbytes else None
    return Field(binding, D.float32, offset, channels * numel(size), numel(size), planes, part)


def slice_elements(shape: tuple[int, int, Triple]) -> int:
    """Elements from one slice to the next: a multiple of 4."""
    n, channels, size = shape
    return -(-n * channels * numel(size) // 4) * 4


def add_slices(
    target: Field, bias: Field | None, shape: tuple[int, int, Triple], temp: int, slices: int, fusion: Fusion | None = None
) -> Launch:  # fmt: skip
    """target = bias + sum of `slices` slices lying in binding `temp`, or what a fusion makes of it. shape: (n, channels, spatial
    sizes)."""
    n, channels, size = shape
    count = n * channels * numel(size)
    plain = target.plain(channels, size)
    quads = plain and target.offset % 4 == 0 and count % 4 == 0 and (bias is None or numel(size) % 4 == 0)
    if fusion is not None:
        quads = numel(size) % 4 == 0 and fusion.quads(numel(size))
    f = Form(target.dtype, bias.dtype if bias else None, plain, quads, None if fusion is None else fusion.epilogue(quads))
    unit = 4 if quads else 1
    words = [count // unit, slices, slice_elements(shape) // unit, channels, numel(size) // unit, *size]
    words += [target.offset // unit, *target.words()[1:], *(bias.words() if bias else [])]
    narrow = target.part or (bias and bias.part)
    sums = partial(channels, size, temp, 0, slice_elements(shape) * 4 * slices if narrow else 0)
    inputs, grid = [sums, *([bias] if bias else [])], T.grid(-(-(count // unit) // T.WORKGROUP))
    return launch(target, fusion, quads, ("conv", "sum", f), lambda profile: _source(f, profile), inputs, grid, words, "conv_sum")


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
    body += f"  {_stored(f)}\n}}\n"
    out = T.header(profile, [*dtypes(f.target, f.epilogue), *([f.bias] if f.bias else [])], T.lanes(profile) > 0)
    out += T.storage(0, "t", value, "read")
    out += T.storage(1, "b", T.element(f.bias), "read") if f.bias else ""
    return out + closing(f.target, f.epilogue, 2 if f.bias else 1, 4 if f.quads else 1, fields, body)


def _stored(f: Form) -> str:
    if f.epilogue is not None:
        pixel = "(i - line * p.inner)" + " * 4u" * f.quads
        return f"let line = i / p.inner; let image = line / p.channels; finish(image, line - image * p.channels, {pixel}, sum);"
    place, lets = "p.o_off + i", ""
    if not f.plain:
        lets = T.decompose("i", ["0", "p.channels", *(f"p.size_{a}" for a in AXES)]) + " "
        place = "p.o_off + c0 * p.o_n + c1 * p.o_c" + "".join(f" + c{k + 2} * p.o_{a}" for k, a in enumerate(AXES))
    value = T.store("f32", "sum", f.target)
    if f.quads:
        value = f"{T.element(f.target, 4)}({', '.join(T.store('f32', f'sum.{c}', f.target) for c in T.LANES)})"
    return f"{lets}o[{place}] = {value};"


def _tree(names: list[str]) -> str:
    """A sum by halves."""
    if len(names) == 1:
        return names[0]
    half = len(names) // 2
    return f"({_tree(names[:half])} + {_tree(names[half:])})"
