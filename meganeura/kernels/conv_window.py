"""Convolutions of few channels a group for GPUs: an invocation reads a window of the image and makes a block of results of all its
channels from registers. Depthwise ones read and write little more than what they must; few output channels (the input gradient of a
network's first layer) would leave a tile of a product mostly empty.

A block is a few neighbours along y, and along x one element, or as many as the stride of a transposed convolution: all its phases are
then made from one window. Which element of the window meets which result through which tap is written into the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from .. import dtype as D
from ..dtype import DType
from . import template as T
from .conv_fusion import closing, dtypes, launch
from .conv_problem import Field, Gather, Geometry
from .conv_sum import add_slices, partial, slice_elements
from .kernel import TEMP, Launch
from .matmul_fusion import Epilogue

SIZE = 128  # invocations a workgroup
ROWS = 8  # target channels a group at most
SUMS = 32  # results of an invocation at most
PRODUCTS = 640  # and of its products of one source channel
OWN = 72  # weights of a source channel at most where every invocation reads its own
SHARED = 8192  # bytes of weights in workgroup memory
ENOUGH = 1 << 15  # invocations from which blocks are large
FILL = 1 << 17  # invocations below which source channels are cut into slices: each waits for its loads channel by channel
SLICES = 16  # at most
LEAST = 8  # source channels of a slice


@dataclass(frozen=True, slots=True)
class Span:
    """One axis of a block: `meets` are (result, tap, element of the window), `window` where its elements lie after the first."""

    block: int
    taps: int
    meets: tuple[tuple[int, int, int], ...]
    window: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Walk:
    """An axis and its numbers: the first block's window starts at source element `front`, the next one's `step` further."""

    span: Span
    front: int
    step: int
    blocks: int


def walk(g: Geometry, i: int, transposed: bool, repeat: int) -> Walk:
    """Axis i in blocks of `repeat` results, or of `repeat` times the stride."""
    k, s, pad, d = g.kernel[i], g.stride[i], g.padding[i], g.dilation[i]
    block = repeat * s if transposed else repeat
    if transposed:
        met = [(u, t, (u + pad - t * d) // s) for u in range(block) for t in range(k) if (u + pad - t * d) % s == 0]
    else:
        met = [(u, t, u * s + t * d - pad) for u in range(block) for t in range(k)]
    window = sorted({e for _, _, e in met})
    first = window[0] if window else 0
    span = Span(block, k, tuple((u, t, window.index(e)) for u, t, e in met), tuple(e - first for e in window))
    size = g.input[i] if transposed else g.output[i]
    return Walk(span, first, repeat if transposed else repeat * s, -(-size // block))


def flat(g: Geometry) -> bool:
    """Whether only two axes are walked."""
    return (g.input[0], g.output[0], g.kernel[0], g.padding[0]) == (1, 1, 1, 0)


@dataclass(frozen=True, slots=True)
class Form:
    """What decides the text. `shared`: one group, whose weights pass through workgroup memory."""

    source: DType
    weight: DType
    target: DType
    bias: DType | None
    rows: int
    y: Span
    x: Span
    shared: bool
    epilogue: Epilogue | None = None

    @property
    def taps(self) -> int:
        return self.y.taps * self.x.taps

    @property
    def quads(self) -> int:
        """vec4s of a source channel's weights."""
        return -(-self.taps * self.rows // 4)

    @property
    def chunk(self) -> int:
        """Source channels whose weights are in workgroup memory at once."""
        return max(1, min(16, SHARED // (16 * self.quads)))


FIELDS = (
    "count", "blocks", "wide", "by_wide", "groups", "by_groups", "depth", "per", "o_slice", "w_group",
    "size_y", "size_x", "reach_y", "reach_x", "front_y", "front_x", "step_y", "step_x",
    *Field.names("x"), *Field.names("w"), *Field.names("o"), "b_off", "b_c",
)  # fmt: skip


def _walks(p: Gather) -> tuple[Walk, Walk] | None:
    """Both axes, in the largest blocks that are not too large."""
    g = p.geometry
    for repeat in (4, 2, 1):
        if p.transposed and repeat > 1 and repeat * g.stride[1] > 4:
            continue
        y, x = walk(g, 1, p.transposed, repeat), walk(g, 2, p.transposed, 1)
        sums = y.span.block * x.span.block * p.rows
        products = len(y.span.meets) * len(x.span.meets) * p.rows
        few = g.n * g.groups * y.blocks * x.blocks * _most(p) < ENOUGH
        if sums <= SUMS and products <= PRODUCTS and (repeat == 1 or not few):
            return y, x
    return None


def _most(p: Gather) -> int:
    """Slices that source channels may be cut into."""
    return 1 if p.geometry.groups > 1 else max(1, min(SLICES, p.depth // LEAST))


def suits(p: Gather) -> bool:
    """Whether this kernel is for the problem."""
    g = p.geometry
    if not flat(g) or p.rows > ROWS or (g.groups > 1 and p.rows * g.taps > OWN):
        return False
    walks = _walks(p)
    return walks is not None and walks[0].blocks * walks[1].blocks < T.MAX_RECIPROCAL and g.n * g.groups < T.MAX_RECIPROCAL


def gather(p: Gather, temps: list[int]) -> list[Launch]:
    """The launches of a problem that suits; `temps` is extended by what they need."""
    g, walks = p.geometry, _walks(p)
    assert walks is not None
    y, x = walks
    f = Form(
        p.source.dtype, p.weight.dtype, p.target.dtype, p.bias.dtype if p.bias else None, p.rows, y.span, x.span, g.groups == 1,
        p.epilogue(False),
    )  # fmt: skip
    count = g.n * g.groups * y.blocks * x.blocks
    per = -(-p.depth // min(_most(p), -(-FILL // count)))
    slices = -(-p.depth // per)
    shape, temp = (g.n, p.channels, p.size), TEMP(len(temps))
    if slices == 1:
        return [_launch(p, f, y, x, per, 1)]
    temps.append(slice_elements(shape) * 4 * slices)
    target = partial(p.channels, p.size, temp, 0, temps[-1] if p.target.part else 0)
    sums = replace(f, target=D.float32, bias=None, epilogue=None)
    return [_launch(p.into(target), sums, y, x, per, slices), add_slices(p.target, p.bias, shape, temp, slices, p.fusion)]


def _launch(p: Gather, f: Form, y: Walk, x: Walk, per: int, slices: int) -> Launch:
    g, bias = p.geometry, p.bias
    blocks = y.blocks * x.blocks
    count = g.n * g.groups * blocks
    words = [count, blocks, x.blocks, T.reciprocal(x.blocks), g.groups, T.reciprocal(g.groups), p.depth, per]
    words += [slice_elements((g.n, p.channels, p.size)), p.group, *p.size[1:], *p.reach[1:], y.front, x.front, y.step, x.step]
    words += [*p.source.words(), *p.weight.words(), *p.target.words(), *((bias.offset, bias.c) if bias else (0, 0))]
    across, down, _ = T.grid(-(-count // SIZE))
    inputs, key = [p.source, p.weight, *([bias] if bias else [])], ("conv", "window", f)
    return launch(p.target, p.fusion, False, key, lambda _: _source(f), inputs, (across, down, slices), words, "conv_window")


def _source(f: Form) -> str:
    inputs = [f.source, f.weight, *([f.bias] if f.bias else [])]
    body = "\n".join(_lines(f)) + "\n"
    out = "enable f16;\n" if any(d.storage == "f16" for d in (*inputs, *dtypes(f.target, f.epilogue))) else ""
    out += "".join(T.storage(i, name, T.element(d), "read") for i, (name, d) in enumerate(zip(("x", "weight", "b"), inputs, strict=False)))
    return out + closing(f.target, f.epilogue, len(inputs), 1, FIELDS, body)


def _lines(f: Form) -> Iterator[str]:
    if f.shared:
        yield f"var<workgroup> shared_weights: array<array<array<f32, 4>, {f.quads}>, {f.chunk}>;"
    yield f"@compute @workgroup_size({SIZE}) fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) local: u32) {{"
    yield f"let number = (w.y * {T.FOLD}u + w.x) * {SIZE}u + local; let i = min(number, p.count - 1u);"
    if not f.shared:
        yield "if (number >= p.count) { return; }"
    yield "let plane = i / p.blocks; let in_plane = i - plane * p.blocks;"
    yield "let by = u32(f32(in_plane) * bitcast<f32>(p.by_wide)); let bx = in_plane - by * p.wide;"
    yield "let n = u32(f32(plane) * bitcast<f32>(p.by_groups)); let grp = plane - n * p.groups;"
    yield "let low = w.z * p.per; let high = min(low + p.per, p.depth);"
    yield "var x_at = p.x_off + n * p.x_n + (grp * p.depth + low) * p.x_c;"
    yield from places(f.y, "y", "by")
    yield from places(f.x, "x", "bx")
    for u, v, row in _results(f):
        yield f"var s{u}_{v}_{row} = 0.0;"
    yield from _shared_loop(f) if f.shared else _own_loop(f)
    yield from _stores(f)
    yield "}"


def places(span: Span, axis: str, block: str) -> Iterator[str]:
    """Lets of a window's elements along one axis: `ok` whether they lie in the image, `at` how far from its start."""
    for e, rel in enumerate(span.window):
        yield f"let i{axis}{e} = {block} * p.step_{axis} + p.front_{axis} + {rel}u; let ok{axis}{e} = i{axis}{e} < p.reach_{axis};"
        yield f"let at{axis}{e} = select(0u, i{axis}{e} * p.x_{axis}, ok{axis}{e});"


def window(y: Span, x: Span, source: DType, start: str) -> Iterator[str]:
    """Lets v{row}_{column} of a window of the channel that begins at `start`."""
    for a in range(len(y.window)):
        for b in range(len(x.window)):
            value = T.load(source, f"x[{start} + aty{a} + atx{b}]", D.float32)
            yield f"let v{a}_{b} = select(0.0, {value}, oky{a} && okx{b});"


def _results(f: Form) -> Iterator[tuple[int, int, int]]:
    return ((u, v, row) for u in range(f.y.block) for v in range(f.x.block) for row in range(f.rows))


def _products(f: Form) -> Iterator[str]:
    """Products of one source channel, tap by tap; weights are w{number}."""
    for ty in range(f.y.taps):
        for tx in range(f.x.taps):
            for u, t, a in f.y.meets:
                for v, s, b in f.x.meets:
                    if (t, s) == (ty, tx):
                        for row in range(f.rows):
                            weight = _weight(f, (ty * f.x.taps + tx) * f.rows + row)
                            yield f"s{u}_{v}_{row} = fma(v{a}_{b}, {weight}, s{u}_{v}_{row});"


def _weight(f: Form, number: int) -> str:
    return f"w{number // 4}.{T.LANES[number % 4]}" if f.shared else f"w{number}"


def _shared_loop(f: Form) -> Iterator[str]:
    """Weights of `chunk` channels at a time lie in workgroup memory as [channel, tap, row]."""
    each = f.quads * 4
    yield f"for (var first = low; first < high; first += {f.chunk}u) {{"
    yield f"workgroupBarrier(); for (var e = local; e < {f.chunk * each}u; e += {SIZE}u) {{"
    yield f"let channel = e / {each}u; let k = e % {each}u; let tap = k / {f.rows}u; let row = k % {f.rows}u;"
    yield f"let there = k < {f.taps * f.rows}u && first + channel < high;"
    place = f"row * p.w_n + (first + channel) * p.w_c + tap / {f.x.taps}u * p.w_y + tap % {f.x.taps}u * p.w_x"
    value = T.load(f.weight, f"weight[p.w_off + select(0u, {place}, there)]", D.float32)
    yield f"shared_weights[channel][k / 4u][k % 4u] = select(0.0, {value}, there); }} workgroupBarrier();"
    yield f"let here = min({f.chunk}u, high - first); for (var j = 0u; j < here; j++) {{"
    yield from window(f.y, f.x, f.source, "x_at")
    for q in range(f.quads):
        parts = ", ".join(f"shared_weights[j][{q}][{c}]" for c in range(4))
        yield f"let w{q} = vec4<f32>({parts});"
    yield from _products(f)
    yield "x_at += p.x_c; } }"


def _own_loop(f: Form) -> Iterator[str]:
    yield "var w_at = p.w_off + grp * p.w_group + low * p.w_c; for (var j = low; j < high; j++) {"
    yield from window(f.y, f.x, f.source, "x_at")
    for ty in range(f.y.taps):
        for tx in range(f.x.taps):
            for row in range(f.rows):
                place = (
                    "w_at"
                    + (f" + {row}u * p.w_n" if row else "")
                    + (f" + {ty}u * p.w_y" if ty else "")
                    + (f" + {tx}u * p.w_x" if tx else "")
                )
                yield f"let w{(ty * f.x.taps + tx) * f.rows + row} = {T.load(f.weight, f'weight[{place}]', D.float32)};"
    yield from _products(f)
    yield "x_at += p.x_c; w_at += p.w_c; }"


def _stores(f: Form) -> Iterator[str]:
    if f.shared:
        yield "if (number >= p.count) { return; }"
    yield f"let y0 = by * {f.y.block}u; let x0 = bx * {f.x.block}u; let channel0 = grp * {f.rows}u;"
    yield "let o_at = p.o_off + w.z * p.o_slice + n * p.o_n + channel0 * p.o_c + y0 * p.o_y + x0 * p.o_x;"
    for row in range(f.rows):
        shift = ""
        if f.bias:
            yield f"let shift{row} = {T.load(f.bias, f'b[p.b_off + (channel0 + {row}u) * p.b_c]', D.float32)};"
            shift = f" + shift{row}"
        for u in range(f.y.block):
            for v in range(f.x.block):
                inside = [f"y0 + {u}u < p.size_y"] * (u > 0) + [f"x0 + {v}u < p.size_x"] * (v > 0)
                place = "o_at" + f" + {row}u * p.o_c" * (row > 0) + f" + {u}u * p.o_y" * (u > 0) + f" + {v}u * p.o_x" * (v > 0)
                store = f"o[{place}] = {T.store('f32', f's{u}_{v}_{row}{shift}', f.target)};"
                if f.epilogue is not None:
                    pixel = f"(y0 + {u}u) * p.size_x + x0 + {v}u"
                    store = f"finish(n, channel0 + {row}u, {pixel}, s{u}_{v}_{row}{shift});"
                yield f"if ({' && '.join(inside)}) {{ {store} }}" if inside else store
