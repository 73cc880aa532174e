"""The epilogue of a convolution: a matrix product's (matmul_fusion.py), whose matrices are images, rows channels of all groups, and
columns elements of a channel's plane. Kernels reach it by one function, `finish`, which takes the place of their stores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..dtype import DType, float32
from ..ops import archetype
from ..storage import Layout
from . import template as T
from .conv_problem import Field, Gather, problem, ranges
from .kernel import Call, Kernel, Launch, Profile
from .matmul_fusion import Epilogue, Fusion, fusion_of

MOST = 4  # buffers that a kernel which applies an epilogue reads besides: products, image, weight, bias


def fused_problem(call: Call, epilogue: archetype.Epilogue, profile: Profile) -> Gather | None:
    """The problem of a convolution with an epilogue (operands as ops.archetype.Epilogue says); None where it cannot be made:
    too many storage buffers, a batch that is walked in two ways, an operand larger than a binding or without elements."""
    kind, own = call.op.archetype, 3 if call.names[2:3] == ("bias",) else 2
    assert isinstance(kind, archetype.Conv)
    source, weight = call.inputs[:2]
    if source is None or weight is None or T.large(call, profile) or any(x is not None and x.numel == 0 for x in call.inputs):
        return None
    found = fusion_of(call, epilogue, (), own)
    if found is None or found[1][0] > 1 or found[0].most() + MOST - (own == 2) > profile.max_storage_buffers:
        return None
    fusion, first = found[0], found[0].writes[0]
    channels = weight.shape[0] if kind.role == "output" else weight.shape[1] * call.attrs["groups"]
    result = Layout(first.dtype, (source.shape[0], channels, *call.attrs["size"]))
    plain = replace(call, names=call.names[:own], inputs=call.inputs[:own], outputs=(result,), compute=call.compute[:own], alias=())
    p = problem(plain, kind.role, profile)
    assert isinstance(p, Gather)
    return replace(p, target=replace(p.target, binding=first.binding), fusion=fusion)


def launch(
    target: Field,
    fusion: Fusion | None,
    wide: bool,
    key: tuple[Any, ...],
    source: Callable[[Profile], str],
    inputs: Sequence[Field],
    grid: tuple[int, int, int],
    words: Sequence[int],
    label: str,
) -> Launch:  # fmt: skip
    """A launch that binds `inputs`, then where its results go. wide: it stores four neighbours at a time."""
    bindings = tuple(x.binding for x in inputs)
    access = ("read",) * len(inputs)
    if fusion is None:
        kernel = Kernel(key, source, (*access, "read_write"), label=label, trusted=True)
        return Launch(kernel, (*bindings, target.binding), grid, T.pack(words), ranges=ranges([*inputs, target]))
    e = fusion.epilogue(wide)
    kernel = Kernel(key, source, (*access, *e.access()), label=label, scalars=bool(e.scalars), trusted=True)
    return Launch(kernel, (*bindings, *fusion.bindings(wide)), grid, T.pack([*words, *fusion.words(wide)]), fusion.entries)


# --- text ---------------------------------------------------------------------------------------------------------------------


def dtypes(target: DType, e: Epilogue | None) -> list[DType]:
    """Those of the arrays that results go to and that an epilogue reads."""
    return [target] if e is None else e.dtypes()


def closing(target: DType, e: Epilogue | None, first: int, width: int, fields: Sequence[str], body: str, wrap: bool = False) -> str:
    """The rest of a module: from binding `first` on the array `o` of results or an epilogue's arrays, the parameters, what the text
    calls, and the text itself."""
    if e is None:
        element = T.element(target, width)
        if wrap:
            declared = f"struct Buffer_o {{ d: array<{element}> }}\n@group(0) @binding({first}) var<storage, read_write> o: Buffer_o;\n"
        else:
            declared = T.storage(first, "o", element, "read_write")
        return declared + T.uniform(first + 1, fields) + T.prelude(body) + body
    text = finish(e, wrap) + body
    uniform = T.uniform(first + len(e.arrays), [*fields, *e.fields()])
    return e.declarations(first, wrap) + uniform + T.scalar_block(e.scalars) + T.prelude(text) + text


def finish(e: Epilogue, wrap: bool = False) -> str:
    """`finish(image, channel, pixel, sum)`: apply the epilogue to a sum, or to those of four pixels from this one on, and store."""
    lines = [*e.begin(wrap), e.line("channel", "", wrap), e.column("pixel", "", wrap), e.put(["sum"], "", "", wrap)]
    value = "vec4<f32>" if e.quads else "f32"
    head = f"fn finish(image: u32, channel: u32, pixel: u32, sum: {value}) {{ let mat0 = 0u; let mat1 = image;\n"
    return e.function(float32.value) + head + "\n".join(lines) + "\n}\n"


def plane(axes: str, at: Callable[[str], str]) -> str:
    """The number of an element in its plane. axes: those walked; at(axis): its place along one."""
    out = at(axes[0])
    for a in axes[1:]:
        out = f"({out}) * p.size_{a} + {at(a)}"
    return out
