"""Convolutions element by element: an invocation a result. For few channels a group, and for devices that the tiled kernels do
not suit; neither subgroups nor workgroup memory is needed, except by the weight gradient, where a workgroup makes a result."""

from __future__ import annotations

from dataclasses import dataclass

from .. import dtype as D
from ..dtype import DType
from . import template as T
from .conv_fusion import closing, dtypes, launch, plane
from .conv_problem import AXES, Field, Gather, Geometry, Weigh, ranges
from .conv_sum import add_slices, partial, slice_elements
from .kernel import TEMP, Kernel, Launch, Profile
from .matmul_fusion import Epilogue

TURNS = 60000  # loop iterations of an invocation, under what software devices stop at
TEAM = 64  # invocations that make one weight gradient


@dataclass(frozen=True, slots=True)
class Form:
    """What decides the text of a kernel."""

    source: DType
    weight: DType
    target: DType
    bias: DType | None
    transposed: bool
    inside: bool
    axes: int  # spatial axes that are not trivial
    epilogue: Epilogue | None = None


def axes_used(g: Geometry) -> int:
    """Trailing axes that must be walked: the others have one element everywhere and one tap."""
    for i in range(2):
        if (g.input[i], g.output[i], g.kernel[i], g.padding[i]) != (1, 1, 1, 0):
            return 3 - i
    return 1


def gather(p: Gather, temps: list[int]) -> list[Launch]:
    """The launches of a gather; `temps` is extended by what they need."""
    g = p.geometry
    per = max(1, TURNS // (g.taps + sum(g.kernel)))
    slices = -(-p.depth // per)
    if slices == 1:
        return [_gather(p, 0, p.depth)]
    shape = (g.n, p.channels, p.size)
    temp = TEMP(len(temps))
    temps.append(slice_elements(shape) * 4 * slices)
    launches = []
    for i in range(slices):
        target = partial(p.channels, p.size, temp, i * slice_elements(shape), temps[-1] if p.target.part else 0)
        launches.append(_gather(p.into(target), i * per, min(p.depth, (i + 1) * per)))
    return [*launches, add_slices(p.target, p.bias, shape, temp, slices, p.fusion)]


def fill(p: Gather) -> list[Launch]:
    """The bias, or zero, in the whole target."""
    return [_gather(p, 0, 0)]


def _gather(p: Gather, low: int, high: int) -> Launch:
    g = p.geometry
    f = Form(
        p.source.dtype, p.weight.dtype, p.target.dtype, p.bias.dtype if p.bias else None, p.transposed, g.inside, axes_used(g),
        p.epilogue(False),
    )  # fmt: skip
    inputs: list[Field] = [p.source, p.weight, *([p.bias] if p.bias else [])]
    count = g.n * p.channels * p.size[0] * p.size[1] * p.size[2]
    words = [count, p.channels, p.rows, p.depth, low, high, p.group, *p.size, *p.reach, *g.words()]
    for x in (*inputs, p.target):
        words += x.words()
    grid, key = T.grid(-(-count // T.WORKGROUP)), ("conv", "direct", f)
    return launch(p.target, p.fusion, False, key, lambda profile: _gather_source(f, profile), inputs, grid, words, "conv_direct")


def _names(f: Form) -> list[str]:
    return ["x", "w", *(["b"] if f.bias else []), "o"]


def _gather_source(f: Form, profile: Profile) -> str:
    names = _names(f)
    stored = [f.source, f.weight, *([f.bias] if f.bias else []), *dtypes(f.target, f.epilogue)]
    sizes = ["count", "channels", "rows", "depth", "low", "high", "group"]
    sizes += [f"size_{a}" for a in AXES] + [f"reach_{a}" for a in AXES]
    fields = [*sizes, *Geometry.names(), *(n for name in names for n in Field.names(name))]
    axes = AXES[3 - f.axes :]
    body = T.entry(profile) + f"  let i = group * {T.WORKGROUP}u + local;\n  if (i >= p.count) {{ return; }}\n"
    body += "  " + T.decompose("i", ["0", "p.channels", *(f"p.size_{a}" for a in axes)]) + "\n"
    body += "  let grp = c1 / p.rows; let row = c1 - grp * p.rows;\n"
    body += "  let x_at = p.x_off + c0 * p.x_n + (grp * p.depth + p.low) * p.x_c;\n"
    body += "  let w_at = p.w_off + grp * p.group + row * p.w_n + p.low * p.w_c;\n  var sum = 0.0;\n"
    ends = ""
    for i, a in enumerate(axes):
        at = f"c{i + 2}"
        body += f"  for (var t{a} = 0u; t{a} < p.k_{a}; t{a}++) {{\n"
        if f.transposed:
            body += f"  let far{a} = {at} + p.p_{a} - t{a} * p.d_{a}; let at{a} = far{a} / p.s_{a};\n"
            body += f"  if (far{a} < 0x80000000u && at{a} * p.s_{a} == far{a} && at{a} < p.reach_{a}) {{\n"
            ends += "}"
        else:
            body += f"  let at{a} = {at} * p.s_{a} + t{a} * p.d_{a} - p.p_{a};\n"
            if not f.inside:
                body += f"  if (at{a} < p.reach_{a}) {{\n"
                ends += "}"
        ends += "}"
    body += "  var xi = x_at" + "".join(f" + at{a} * p.x_{a}" for a in axes) + ";\n"
    body += "  var wi = w_at" + "".join(f" + t{a} * p.w_{a}" for a in axes) + ";\n"
    body += "  for (var j = p.low; j < p.high; j++) {\n"
    body += f"    sum = fma({T.load(f.source, 'x[xi]', D.float32)}, {T.load(f.weight, 'weight[wi]', D.float32)}, sum);\n"
    body += "    xi += p.x_c; wi += p.w_c;\n  }\n" + ends + "\n"
    if f.bias:
        body += f"  sum += {T.load(f.bias, 'b[p.b_off + c1 * p.b_c]', D.float32)};\n"
    if f.epilogue is not None:
        places = {a: f"c{i + 2}" for i, a in enumerate(axes)}
        body += f"  finish(c0, c1, {plane(axes, places.__getitem__)}, sum);\n}}\n"
    else:
        body += "  o[p.o_off + c0 * p.o_n + c1 * p.o_c" + "".join(f" + c{i + 2} * p.o_{a}" for i, a in enumerate(axes))
        body += f"] = {T.store('f32', 'sum', f.target)};\n}}\n"
    out = T.header(profile, stored, T.lanes(profile) > 0)
    for i, (name, dtype) in enumerate(zip(names[:-1], stored, strict=False)):
        out += T.storage(i, "weight" if name == "w" else name, T.element(dtype), "read")
    return out + closing(f.target, f.epilogue, len(names) - 1, 1, fields, body)


def weigh(p: Weigh) -> list[Launch]:
    """The weight gradient: a workgroup a result, whose invocations share the pixels."""
    g = p.geometry
    f = Form(p.input.dtype, p.grad.dtype, p.target.dtype, None, False, g.inside, axes_used(g))
    fields = [p.input, p.grad, p.target]
    words = [p.elements, g.pixels, g.m, g.c, *g.output, *g.input, *g.words()]
    for x in fields:
        words += x.words()
    kernel = Kernel(
        ("conv", "direct weight", f), lambda profile: _weigh_source(f, profile), ("read", "read", "read_write"), label="conv_direct_weight",
        trusted=True,
    )  # fmt: skip
    return [Launch(kernel, tuple(x.binding for x in fields), T.grid(p.elements), T.pack(words), ranges=ranges(fields))]


def _weigh_source(f: Form, profile: Profile) -> str:
    names, stored = ["x", "g", "o"], [f.source, f.weight, f.target]
    sizes = ["count", "pixels", "m", "c", *(f"size_{a}" for a in AXES), *(f"reach_{a}" for a in AXES)]
    fields = [*sizes, *Geometry.names(), *(n for name in names for n in Field.names(name))]
    axes = AXES[3 - f.axes :]
    body = f"var<workgroup> sums: array<f32, {TEAM}>;\n@compute @workgroup_size({TEAM}) fn main("
    body += "@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) local: u32) {\n"
    body += f"  let i = w.y * {T.FOLD}u + w.x;\n  if (i >= p.count) {{ return; }}\n"
    body += "  " + T.decompose("i", ["0", "p.c", *(f"p.k_{a}" for a in axes)], "t") + "\n"
    body += "  let grp = t0 / p.m;\n  let x_at = p.x_off + (grp * p.c + t1) * p.x_c; let g_at = p.g_off + t0 * p.g_c;\n"
    body += f"  var sum = 0.0;\n  for (var j = local; j < p.pixels; j += {TEAM}u) {{\n"
    body += "  " + T.decompose("j", ["0", *(f"p.size_{a}" for a in axes)]) + "\n"
    for i, a in enumerate(axes):
        body += f"  let at{a} = c{i + 1} * p.s_{a} + t{i + 2} * p.d_{a} - p.p_{a};\n"
    guard = "true" if f.inside else " && ".join(f"at{a} < p.reach_{a}" for a in axes)
    xi = "x_at + c0 * p.x_n" + "".join(f" + at{a} * p.x_{a}" for a in axes)
    gi = "g_at + c0 * p.g_n" + "".join(f" + c{i + 1} * p.g_{a}" for i, a in enumerate(axes))
    x, grad = T.load(f.source, f"x[{xi}]", D.float32), T.load(f.weight, f"g[{gi}]", D.float32)
    body += f"  if ({guard}) {{ sum = fma({x}, {grad}, sum); }}\n  }}\n"
    body += "  sums[local] = sum;\n"
    half = TEAM // 2
    while half:
        body += f"  workgroupBarrier();\n  if (local < {half}u) {{ sums[local] += sums[local + {half}u]; }}\n"
        half //= 2
    body += "  if (local == 0u) { o[p.o_off + t0 * p.o_n + t1 * p.o_c" + "".join(f" + t{i + 2} * p.o_{a}" for i, a in enumerate(axes))
    body += f"] = {T.store('f32', 'sums[0]', f.target)}; }}\n}}\n"
    out = T.header(profile, stored)
    for i, (name, dtype) in enumerate(zip(names[:-1], stored, strict=False)):
        out += T.storage(i, name, T.element(dtype), "read")
    return out + closing(f.target, None, 2, 1, fields, body)
