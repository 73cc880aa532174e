"""Convolutions for GPUs as products whose second operand is picked from the image while it is loaded (implicit GEMM).

The products inside a tile are those of matmul_gpu. A gather has channels as rows and pixels of the whole batch as columns; K
runs over chunks of source channels, and for each over the taps, so that a turn has one tap: an invocation checks once whether
its pixel's tap lies inside and loads that element of several channels. Where channels are too few for that ('flat'), K runs over
channels and taps as one. A weight gradient has channels x taps as columns and pixels as K: both operands lie along K, and an
invocation has one pixel a turn. K is cut into slices that a second launch adds up, always in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from .. import dtype as D
from ..dtype import DType
from ..shape import numel
from . import template as T
from .choices import Tile
from .conv_border import Taps, packed
from .conv_choices import GATHER as GATHER_TILES
from .conv_choices import WEIGH as WEIGH_TILES
from .conv_choices import choose_gather, choose_weigh
from .conv_direct import axes_used
from .conv_phases import Phase, phases
from .conv_problem import AXES, Field, Gather, Geometry, Triple, Weigh, ranges
from .conv_sum import add_slices, partial, slice_elements
from .kernel import TEMP, Kernel, Launch, Profile
from .matmul_gpu import Gemm
from .matmul_stage import Operand
from .matmul_wgsl import XYZW, Form, Types, load

PLAIN = Form("", "", "", Types(D.float32, D.float32, D.float32))
ARGS = "@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) tid: u32"


@dataclass(frozen=True, slots=True)
class ConvForm:
    """What decides the text besides the tile.

    `left`, `right`, `target`, `bias`: dtypes. `full`: rows fill whole tiles. `packed`: weights lie side by side by channel.
    `flat`: K runs over channels and taps as one. `even`: channels fill whole turns. `inside`: no tap lies outside. `axes`:
    trailing ones that are walked. `quads`: four results are stored as one vec4.
    """

    left: DType
    right: DType
    target: DType
    bias: DType | None
    full: bool
    packed: bool
    flat: bool
    even: bool
    inside: bool
    axes: int
    quads: bool

    @property
    def names(self) -> str:
        """Letters of the axes walked."""
        return AXES[3 - self.axes :]


def scalar_operand(name: str, block: int, tile: Tile) -> Operand:
    """An operand that is stored to workgroup memory element by element."""
    return Operand(name, "k1", "s4", block, D.float32, "f32", tile, False, tile.size)


def packed_operand(tile: Tile) -> Operand:
    return Operand("a", "f4", "direct", tile.bm, D.float32, "f32", tile, False, tile.size)


def memory(tile: Tile) -> int:
    """Bytes of workgroup memory that any form needs."""
    a, b = scalar_operand("a", tile.bm, tile), scalar_operand("b", tile.bn, tile)
    return (a.words() + b.words()) * 4 + tile.bn * 16 + tile.team * 16 * (tile.groups // 2)


def usable(tile: Tile, profile: Profile) -> bool:
    return tile.size <= profile.max_workgroup_size and memory(tile) <= profile.max_workgroup_memory


def possible(profile: Profile) -> bool:
    """Whether any tile fits the device, for either kind of kernel."""
    return all(any(usable(x.tile, profile) for x in candidates) for candidates in (GATHER_TILES, WEIGH_TILES))


@dataclass(frozen=True, slots=True)
class _Tiled:
    """What the text of both kernels shares."""

    tile: Tile
    form: ConvForm

    @property
    def gemm(self) -> Gemm:
        return Gemm(self.tile, PLAIN, False)

    @property
    def dot(self) -> str:
        return ".d" if self.tile.wrap else ""

    def bind(self, arrays: list[tuple[str, DType, int]]) -> str:
        """Declarations: (name, dtype, width), the last one written."""
        out = ""
        for i, (name, dtype, width) in enumerate(arrays):
            access, element = "read_write" if i == len(arrays) - 1 else "read", T.element(dtype, width)
            if self.tile.wrap:
                out += f"struct Buffer_{name} {{ d: array<{element}> }}\n"
                out += f"@group(0) @binding({i}) var<storage, {access}> {name}: Buffer_{name};\n"
            else:
                out += T.storage(i, name, element, access)
        return out

    def loop(self, a: Operand, b: Operand, fetch: list[str], put: list[str], step: str) -> list[str]:
        """Turns of the loop, each fetching the next tile before this one's products. `turns` is at least 1."""
        gemm, barrier = self.gemm, "workgroupBarrier();"
        lines = [*fetch, step, *put, barrier, "for (var turn = 1u; turn < turns; turn++) {", *fetch, step]
        return [*lines, *gemm._products(a, b, 0), barrier, *put, barrier, "}", *gemm._products(a, b, 1)]

    def put_scalars(self, o: Operand, count: int, row: str, step: int, column: str) -> Iterator[str]:
        """Stores of the registers v{name}{e}: element e lies `e * step` further along k (columns false) or along the block."""
        n, d = o.name, self.tile.depth
        for e in range(count):
            k, c = (f"{row} + {e * step}u", column) if row != "kk" else (row, f"{column} + {e * step}u")
            cell = f"t{n}[({k}) / {d}u][({k}) % {d}u]" if self.tile.groups > 1 else f"t{n}[0][{k}]"
            yield f"{cell}[({c}) / 4u][({c}) % 4u] = v{n}{e};"

    def finish(self, row: str, text: str, acc: str) -> str:
        """The stored form of a sum."""
        return T.store("f32", f"{acc}{text}", self.form.target)

    def module(self, profile: Profile, arrays: list[tuple[str, DType, int]], fields: list[str], lines: list[str]) -> str:
        text = "\n".join(lines) + "\n"
        out = T.header(profile, [d for _, d, _ in arrays]) + self.bind(arrays)
        return out + T.uniform(len(arrays), fields) + T.prelude(text) + text


# --- gather -----------------------------------------------------------------------------------------------------------------

GATHER = (
    "m", "pixels", "plane", "depth", "groups", "turns", "per", "chunks", "taps", "o_slice", "w_group", "w_quads", "high",
    *(f"{stem}_{a}" for stem in ("size", "reach", "front", "stride", "spread", "count", "first", "step") for a in AXES),
    *Field.names("x"), *Field.names("w"), *Field.names("o"), "b_off", "b_c", "by_taps", "by_xy", "by_x", "k_y", "k_x",
)  # fmt: skip


class GatherKernel(_Tiled):
    """Text of the tiled gather. Grid: (ceil(pixels / bn), high = ceil(channels / bm), groups * slices), x folded into y above 65,535."""

    __slots__ = ()

    def source(self, profile: Profile) -> str:
        t, f = self.tile, self.form
        a = packed_operand(t) if f.packed else scalar_operand("a", t.bm, t)
        b = scalar_operand("b", t.bn, t)
        room = profile.max_workgroup_memory - (a.words() + b.words()) * 4
        declared, adding = self.gemm._exchange(room)
        lines = [a.declare(), b.declare(), *declared, f"@compute @workgroup_size({t.size}) fn main({ARGS}) {{"]
        lines += ["let slice = w.z % ((p.turns + p.per - 1u) / p.per); let grp = w.z / ((p.turns + p.per - 1u) / p.per);"]
        lines += [f"let row0 = w.y % p.high * {t.bm}u; let col0 = (w.y / p.high * {T.FOLD}u + w.x) * {t.bn}u; let from_ = slice * p.per;"]
        lines += ["if (col0 >= p.pixels) { return; }", "let turns = min(p.per, p.turns - from_);", *self.gemm._thread(a, b)]
        lines += [*self._setup_a(a), *self._setup_b()]
        lines += self._start()
        lines += [f"var vb{e}: f32;" for e in range(self.rows)]
        lines += [f"var va{e}: {'vec4<f32>' if f.packed else 'f32'};" for e in range(a.per if f.packed else self.a_count)]
        lines += [f"var {c} = vec4<f32>();" for c in self.gemm._sums()]
        fetch = [*self._fetch_b(), *(self._fetch_packed(a) if f.packed else self._fetch_a())]
        put = [*self.put_scalars(b, self.rows, "b_row", t.size // t.bn, "b_col")]
        put += a.put() if f.packed else self.put_scalars(a, self.a_count, "kk", t.size // t.span, "a_row")
        lines += [*self.loop(a, b, fetch, put, self._step()), *adding, *self._store(), "}"]
        arrays = [("x", f.right, 1), ("wt", D.float32 if f.packed else f.left, 4 if f.packed else 1)]
        arrays += [("b", f.bias, 1)] if f.bias else []
        return self.module(profile, [*arrays, ("o", f.target, 4 if f.quads else 1)], list(GATHER), lines)

    @property
    def rows(self) -> int:
        """Elements of the image that an invocation loads a turn."""
        return self.tile.span * self.tile.bn // self.tile.size

    @property
    def a_count(self) -> int:
        return self.tile.bm * self.tile.span // self.tile.size

    def _pixel(self, index: str, tag: str) -> str:
        """Lets n, qz, qy, qx of a pixel of the batch."""
        names = self.form.names
        out = f"let n{tag} = {index} / p.plane; let in{tag} = {index} - n{tag} * p.plane; "
        rest = f"in{tag}"
        for a in reversed(names[1:]):
            out += f"let r{a}{tag} = {rest} / p.size_{a}; let q{a}{tag} = {rest} - r{a}{tag} * p.size_{a}; "
            rest = f"r{a}{tag}"
        return out + f"let q{names[0]}{tag} = {rest};"

    def _setup_b(self) -> Iterator[str]:
        t = self.tile
        yield f"let b_col = tid % {t.bn}u; let b_row = tid / {t.bn}u;"
        yield "let pix = min(col0 + b_col, p.pixels - 1u);"
        yield self._pixel("pix", "")
        for a in self.form.names:
            yield f"let o{a} = q{a} * p.stride_{a} + p.front_{a};"
        yield "let x_at = p.x_off + n * p.x_n + grp * p.depth * p.x_c;"
        yield f"let x_step = {t.size // t.bn}u * p.x_c;"

    def _setup_a(self, a: Operand) -> Iterator[str]:
        t = self.tile
        if self.form.packed:
            for e in range(a.per):
                yield f"let ar{e} = {a.unit(e)} / {t.bm // 4}u; let ac{e} = {a.unit(e)} % {t.bm // 4}u;"
                yield f"let ap{e} = p.w_off + grp * p.w_group + ar{e} * p.w_quads + min(row0 / 4u + ac{e}, p.w_quads - 1u);"
            return
        yield f"let kk = tid % {t.span}u; let a_row = tid / {t.span}u;"
        for e in range(self.a_count):
            if e and self.form.full:  # one running place and multiples of a uniform number take fewer registers
                yield f"let ap{e} = ap0 + {e * t.size // t.span}u * p.w_n;"
            else:
                row = f"row0 + a_row + {e * t.size // t.span}u"
                yield f"let ap{e} = p.w_off + grp * p.w_group + {f'({row})' if self.form.full else f'min({row}, p.m - 1u)'} * p.w_n;"

    def _start(self) -> Iterator[str]:
        """The first turn's place along K."""
        if self.form.flat:
            yield f"var k_at = from_ * {self.tile.span}u;"
            return
        yield f"let chunk = from_ / p.taps; var c0 = chunk * {self.tile.span}u; var rest = from_ - chunk * p.taps;"
        for a in reversed(self.form.names):
            yield f"var j{a} = rest % p.count_{a}; rest = rest / p.count_{a};"

    def _step(self) -> str:
        if self.form.flat:
            return f"k_at += {self.tile.span}u;"
        out, wrapped = "", ""
        for a in reversed(self.form.names):
            add = f"select(0u, 1u, {wrapped})" if wrapped else "1u"
            out += f"j{a} += {add}; let end{a} = j{a} == p.count_{a}; j{a} = select(j{a}, 0u, end{a}); "
            wrapped = f"end{a}" if not wrapped else f"{wrapped} && end{a}"
        return f"{{ {out}c0 += select(0u, {self.tile.span}u, {wrapped}); }}"

    def _inside(self, tag: str = "") -> str:
        return " && ".join(f"i{a}{tag} < p.reach_{a}" for a in self.form.names)

    def _fetch_b(self) -> Iterator[str]:
        f, step = self.form, self.tile.size // self.tile.bn
        if f.flat:
            yield from self._fetch_flat()
            return
        yield "{ " + " ".join(f"let i{a} = o{a} + j{a} * p.spread_{a};" for a in f.names)
        place = "x_at + (c0 + b_row) * p.x_c" + "".join(f" + i{a} * p.x_{a}" for a in f.names)
        yield f"let ok = {'true' if f.inside else self._inside()}; let at = {place if f.inside else f'select(x_at, {place}, ok)'};"
        for e in range(self.rows):
            at = f"at + {e}u * x_step" if e else "at"
            there = "" if f.inside else "ok"
            if not f.even:
                row = f"c0 + b_row + {e * step}u < p.depth"
                at, there = f"select(x_at, {at}, {row})", f"{there} && {row}" if there else row
            yield f"vb{e} = {load(f'x{self.dot}[{at}]', f.right, 'f32', guard=there)};"
        yield "}"

    def _fetch_flat(self) -> Iterator[str]:
        f, step = self.form, self.tile.size // self.tile.bn
        yield "{"
        for e in range(self.rows):
            yield f"let k{e} = min(k_at + b_row + {e * step}u, p.depth * p.taps - 1u);"
            yield self._flat_taps(f"k{e}", str(e))
            yield " ".join(f"let i{a}{e} = o{a} + j{a}{e} * p.spread_{a};" for a in f.names)
            place = f"x_at + c{e} * p.x_c" + "".join(f" + i{a}{e} * p.x_{a}" for a in f.names)
            yield f"let ok{e} = k_at + b_row + {e * step}u < p.depth * p.taps{'' if f.inside else f' && {self._inside(str(e))}'};"
            yield f"vb{e} = {load(f'x{self.dot}[select(x_at, {place}, ok{e})]', f.right, 'f32', guard=f'ok{e}')};"
        yield "}"

    def _flat_taps(self, k: str, tag: str) -> str:
        """Lets c and jz, jy, jx of a number along K; below 2^21, so that products with reciprocals divide exactly."""
        names = self.form.names
        out = f"let c{tag} = u32(f32({k}) * bitcast<f32>(p.by_taps)); let t{tag} = {k} - c{tag} * p.taps; "
        rest = f"t{tag}"
        for a in reversed(names[1:]):
            by = {"x": "p.by_x", "y": "p.by_xy"}[a]
            out += f"let s{a}{tag} = u32(f32({rest}) * bitcast<f32>({by})); let j{a}{tag} = {rest} - s{a}{tag} * p.count_{a}; "
            rest = f"s{a}{tag}"
        return out + f"let j{names[0]}{tag} = {rest};"

    def _tap_place(self, tag: str = "") -> str:
        """Offset of a tap in the weight as it lies."""
        return "".join(f" + (p.first_{a} + j{a}{tag} * p.step_{a}) * p.w_{a}" for a in self.form.names)

    def _fetch_a(self) -> Iterator[str]:
        f = self.form
        if f.flat:
            yield f"{{ let ka = min(k_at + kk, p.depth * p.taps - 1u); {self._flat_taps('ka', 'a')}"
            yield f"let wk = ca * p.w_c{self._tap_place('a')}; let there = k_at + kk < p.depth * p.taps;"
        else:
            yield f"{{ let there = {'true' if f.even else 'c0 + kk < p.depth'};"
            yield f"let wk = {'c0 + kk' if f.even else 'min(c0 + kk, p.depth - 1u)'} * p.w_c{self._tap_place()};".replace(
                "c0 + kk *", "(c0 + kk) *"
            )
        guard = "" if f.even and not f.flat else "there"
        for e in range(self.a_count):
            yield f"va{e} = {load(f'wt{self.dot}[ap{e} + wk]', f.left, 'f32', guard=guard)};"
        yield "}"

    def _fetch_packed(self, a: Operand) -> Iterator[str]:
        """Of weights that lie as [group, taps, channel, quads]."""
        tap, n = "0u", 0
        for axis, size in zip(AXES, ("", "p.k_y", "p.k_x"), strict=True):
            if axis in self.form.names:
                j = f"(p.first_{axis} + j{axis} * p.step_{axis})"
                tap = j if n == 0 else f"({tap} * {size} + {j})"
                n += 1
        yield f"{{ let wk = ({tap} * p.depth + c0) * p.w_quads;"
        for e in range(a.per):
            there = "" if self.form.even else f"c0 + ar{e} < p.depth"
            yield a._limited(e, f"va{e} = {load(f'wt{self.dot}[ap{e} + wk]', D.float32, 'f32', True, there)};")
        yield "}"

    def _store(self) -> Iterator[str]:
        t, f = self.tile, self.form
        if t.groups > 1:
            yield "if (team == 0u) {"
        yield "let o_at = p.o_off + slice * p.o_slice + grp * p.m * p.o_c;"
        for j in range(t.tn // 4):
            for q in range(1 if f.quads else 4):
                col, tag = f"(col0 + bi{j} * 4u + {q}u)", f"_{j}{q}"
                yield f"let pix{tag} = {col}; {self._pixel(f'pix{tag}', tag)}"
                if f.quads:
                    yield f"let to{tag} = o_at + n{tag} * p.o_n + in{tag} / 4u;"
                else:
                    yield f"let to{tag} = o_at + n{tag} * p.o_n" + "".join(f" + q{a}{tag} * p.o_{a}" for a in f.names) + ";"
        for i in range(t.tm):
            row = f"(row0 + ai{i // 4} * 4u + {i % 4}u)"
            text = f"let line = {row} * p.o_c; "
            shift = ""
            if f.bias:
                value = T.load(f.bias, f"b{self.dot}[p.b_off + (grp * p.m + {row}) * p.b_c]", D.float32)
                text, shift = text + f"let shift = {value}; ", " + shift"
            for j in range(t.tn // 4):
                parts = [T.store("f32", f"c{i}_{j}.{XYZW[q]}{shift}", f.target) for q in range(4)]
                if f.quads:
                    text += f"if (pix_{j}0 < p.pixels) {{ o{self.dot}[to_{j}0 + line] = {T.element(f.target, 4)}({', '.join(parts)}); }} "
                else:
                    text += "".join(f"if (pix_{j}{q} < p.pixels) {{ o{self.dot}[to_{j}{q} + line] = {v}; }} " for q, v in enumerate(parts))
            yield f"if ({row} < p.m) {{ {text}}}"
        if t.groups > 1:
            yield "}"


def gather(p: Gather, profile: Profile, temps: list[int]) -> list[Launch]:
    """The launches of a convolution's output or input gradient. Phases without taps are left to the caller."""
    g = p.geometry
    parts = [x for x in phases(p) if x.taps.number]
    pixels = max(g.n * numel(x.of("size")) for x in parts)
    flat = p.depth < 12 and p.depth * g.taps < T.MAX_RECIPROCAL  # chunks of channels would be mostly empty
    tile, split, pack = choose_gather(
        p.rows, pixels, p.depth, max(x.taps.number for x in parts), g.groups, len(parts), lambda t: usable(t, profile)
    )
    return tiled_gather(p, parts, tile, split, pack and not flat, flat, temps)


def tiled_gather(p: Gather, parts: list[Phase], tile: Tile, split: int, pack: bool, flat: bool, temps: list[int]) -> list[Launch]:
    """The launches with this tile, K in at most `split` slices, weights packed first or read as they lie."""
    g = p.geometry
    weight, group = p.weight, p.group
    launches: list[Launch] = []
    if pack:
        whole = Taps((0, 0, 0), (1, 1, 1), g.kernel)
        weight, launches = packed(p.weight, p.group, (g.groups, p.rows, p.depth), whole, temps)
        group = g.taps * p.depth * -(-p.rows // 4)
    turns = [_turns(p, x, tile, flat) for x in parts]
    per = -(-max(turns) // max(1, min(split, 65535 // g.groups)))
    slices = -(-max(turns) // per)
    shape, temp = (g.n, p.channels, p.size), TEMP(len(temps))
    target = p.target
    if slices > 1:
        temps.append(slice_elements(shape) * 4 * slices)
        target = partial(p.channels, p.size, temp, 0, temps[-1] if p.target.part else 0)
        assert len(parts) == 1, "phases are not cut"
    for phase, n in zip(parts, turns, strict=True):
        launches.append(_gather(replace(p, target=target, weight=weight, group=group), phase, tile, pack, flat, n, per, slices, shape))
    return [*launches, add_slices(p.target, p.bias, shape, temp, slices)] if slices > 1 else launches


def _turns(p: Gather, phase: Phase, tile: Tile, flat: bool) -> int:
    if flat:
        return -(-p.depth * phase.taps.number // tile.span)
    return -(-p.depth // tile.span) * phase.taps.number


def _gather(
    p: Gather, phase: Phase, tile: Tile, pack: bool, flat: bool, turns: int, per: int, slices: int, shape: tuple[int, int, Triple]
) -> Launch:  # fmt: skip
    g = p.geometry
    size, count = phase.of("size"), phase.of("count")
    o = phase.part(p.target)
    plane = numel(size)
    joined = all(s == w or n == 1 for s, w, n in zip(o.spatial, (size[1] * size[2], size[2], 1), size, strict=True))
    quads = joined and plane % 4 == 0 and not any(v % 4 for v in (o.offset, o.n, o.c))
    bias = None if slices > 1 else p.bias
    inside = all(
        a.front >= 0 and a.front + (a.size - 1) * a.stride + (a.count - 1) * a.spread < n for a, n in zip(phase.axes, p.reach, strict=True)
    )
    even = not flat and p.depth % tile.span == 0
    axes = axes_used(g)
    f = ConvForm(
        p.weight.dtype, p.source.dtype, o.dtype, bias.dtype if bias else None, p.rows % tile.bm == 0, pack, flat, even, inside, axes, quads
    )
    unit = 4 if quads else 1
    words = [p.rows, g.n * plane, plane, p.depth, g.groups, turns, per if slices > 1 else turns, -(-p.depth // tile.span), numel(count)]
    high, wide = -(-p.rows // tile.bm), -(-g.n * plane // tile.bn)
    words += [slice_elements(shape) // unit, p.group, -(-p.rows // 4), high]
    for triple in (size, p.reach, phase.of("front"), phase.of("stride"), phase.of("spread"), count, phase.of("first"), phase.of("step")):
        words += triple
    weight = p.weight.words()
    words += [*p.source.words(), *weight, *(v // unit for v in o.words()), *((bias.offset, bias.c) if bias else (0, 0))]
    words += [T.reciprocal(numel(count)), T.reciprocal(count[1]), T.reciprocal(count[2]), g.kernel[1], g.kernel[2]]
    fields = [p.source, p.weight, *([bias] if bias else []), o]
    made = GatherKernel(tile, f)
    kernel = Kernel(
        ("conv", "gather gpu", tile, f), made.source, ("read",) * (len(fields) - 1) + ("read_write",), label="conv_gather", trusted=True
    )  # fmt: skip
    across, down, _ = T.grid(wide)
    grid = (across, down * high, g.groups * slices)
    return Launch(kernel, tuple(x.binding for x in fields), grid, T.pack(words), ranges=ranges(fields))


# --- weight gradient ----------------------------------------------------------------------------------------------------------

WEIGH = (
    "m", "c", "columns", "pixels", "plane", "per", "slices", "o_slice",
    *(f"{stem}_{a}" for stem in ("size", "reach") for a in AXES), *Geometry.names(),
    *Field.names("x"), *Field.names("g"), *Field.names("o"),
)  # fmt: skip


class WeighKernel(_Tiled):
    """Text of the tiled weight gradient. Grid: (ceil(c * taps / bn), ceil(m / bm), groups * slices)."""

    __slots__ = ()

    def source(self, profile: Profile) -> str:
        t, f = self.tile, self.form
        a, b = scalar_operand("a", t.bm, t), scalar_operand("b", t.bn, t)
        room = profile.max_workgroup_memory - (a.words() + b.words()) * 4 - t.bn * 16
        declared, adding = self.gemm._exchange(room)
        lines = [a.declare(), b.declare(), f"var<workgroup> columns: array<vec4<u32>, {t.bn}>;", *declared]
        lines += [f"@compute @workgroup_size({t.size}) fn main({ARGS}) {{"]
        lines += ["let slice = w.z % p.slices; let grp = w.z / p.slices;"]
        lines += [f"let row0 = w.y * {t.bm}u; let col0 = w.x * {t.bn}u; let from_ = slice * p.per;"]
        lines += [f"let last = min(from_ + p.per, p.pixels); let turns = (last - from_ + {t.span - 1}u) / {t.span}u;"]
        lines += [*self.gemm._thread(a, b), f"let kk = tid % {t.span}u; let r_row = tid / {t.span}u; var k0 = from_ + kk;"]
        lines += [*self._setup()]
        counts = t.bm * t.span // t.size, t.bn * t.span // t.size
        lines += [f"var va{e}: f32;" for e in range(counts[0])] + [f"var vb{e}: f32;" for e in range(counts[1])]
        lines += [f"var {c} = vec4<f32>();" for c in self.gemm._sums()]
        put = [*self.put_scalars(a, counts[0], "kk", t.size // t.span, "r_row")]
        put += self.put_scalars(b, counts[1], "kk", t.size // t.span, "r_row")
        lines += [*self.loop(a, b, [*self._fetch(counts)], put, f"k0 += {t.span}u;"), *adding, *self._store(), "}"]
        arrays = [("x", f.right, 1), ("g", f.left, 1), ("o", f.target, 4 if f.quads else 1)]
        return self.module(profile, arrays, list(WEIGH), lines)

    def _setup(self) -> Iterator[str]:
        """Places of the gradient's rows, and in workgroup memory of every column: its place, and how far its tap lies along each axis."""
        t, f = self.tile, self.form
        step = t.size // t.span
        for e in range(t.bm * t.span // t.size):
            if e and f.full:
                yield f"let ga{e} = ga0 + {e * step}u * p.g_c;"
            else:
                row = f"row0 + r_row + {e * step}u"
                yield f"let ga{e} = p.g_off + (grp * p.m + {f'({row})' if f.full else f'min({row}, p.m - 1u)'}) * p.g_c;"
        yield f"if (tid < {t.bn}u) {{ let column = min(col0 + tid, p.columns - 1u);"
        rest = "column"
        for a in reversed(f.names):
            yield f"let u{a} = {rest} / p.k_{a}; let t{a} = ({rest} - u{a} * p.k_{a}) * p.d_{a};"
            rest = f"u{a}"
        taps = "".join(f" + t{a} * p.x_{a}" for a in f.names)
        far = ", ".join(f"t{a}" if a in f.names else "0u" for a in AXES)
        yield f"columns[tid] = vec4<u32>((grp * p.c + {rest}) * p.x_c{taps}, {far}); }}"
        yield "workgroupBarrier();"

    def _fetch(self, counts: tuple[int, int]) -> Iterator[str]:
        f, names = self.form, self.form.names
        yield "{ let here = k0 < last; let k = min(k0, last - 1u); let n = k / p.plane; let inner = k - n * p.plane;"
        rest = "inner"
        for a in reversed(names[1:]):
            yield f"let r{a} = {rest} / p.size_{a}; let q{a} = {rest} - r{a} * p.size_{a};"
            rest = f"r{a}"
        yield f"let q{names[0]} = {rest};"
        yield "let g_at = n * p.g_n" + "".join(f" + q{a} * p.g_{a}" for a in names) + ";"
        for e in range(counts[0]):
            yield f"va{e} = {load(f'g{self.dot}[ga{e} + g_at]', f.left, 'f32', guard='here')};"
        for a in names:
            yield f"let i{a} = q{a} * p.s_{a} - p.p_{a};"
        yield "let x_safe = p.x_off + n * p.x_n;"
        yield "let x_at = x_safe" + "".join(f" + i{a} * p.x_{a}" for a in names) + ";"
        part = {"z": "y", "y": "z", "x": "w"}
        for e in range(counts[1]):
            column = f"columns[r_row + {e * self.tile.size // self.tile.span}u]"
            if f.inside:
                yield f"vb{e} = {load(f'x{self.dot}[x_at + {column}.x]', f.right, 'f32', guard='here')};"
                continue
            ok = " && ".join(f"i{a} + far{e}.{part[a]} < p.reach_{a}" for a in names)
            yield f"let far{e} = {column}; let ok{e} = here && {ok};"
            yield f"vb{e} = {load(f'x{self.dot}[select(x_safe, x_at + far{e}.x, ok{e})]', f.right, 'f32', guard=f'ok{e}')};"
        yield "}"

    def _store(self) -> Iterator[str]:
        t, f = self.tile, self.form
        if t.groups > 1:
            yield "if (team == 0u) {"
        yield "let o_at = p.o_off + slice * p.o_slice + grp * p.m * p.o_n;"
        for j in range(t.tn // 4):
            for q in range(1 if f.quads else 4):
                tag = f"_{j}{q}"
                yield f"let col{tag} = col0 + bi{j} * 4u + {q}u;"
                if f.quads:
                    yield f"let to{tag} = o_at + col{tag} / 4u;"
                    continue
                rest, terms = f"col{tag}", ""
                for a in reversed(f.names):
                    yield f"let u{a}{tag} = {rest} / p.k_{a}; let t{a}{tag} = {rest} - u{a}{tag} * p.k_{a};"
                    rest, terms = f"u{a}{tag}", f"{terms} + t{a}{tag} * p.o_{a}"
                yield f"let to{tag} = o_at + {rest} * p.o_c{terms};"
        for i in range(t.tm):
            row = f"(row0 + ai{i // 4} * 4u + {i % 4}u)"
            text = f"let line = {row} * p.o_n; "
            for j in range(t.tn // 4):
                parts = [T.store("f32", f"c{i}_{j}.{XYZW[q]}", f.target) for q in range(4)]
                if f.quads:
                    text += f"if (col_{j}0 < p.columns) {{ o{self.dot}[to_{j}0 + line] = {T.element(f.target, 4)}({', '.join(parts)}); }} "
                else:
                    text += "".join(f"if (col_{j}{q} < p.columns) {{ o{self.dot}[to_{j}{q} + line] = {v}; }} " for q, v in enumerate(parts))
            yield f"if ({row} < p.m) {{ {text}}}"
        if t.groups > 1:
            yield "}"


def weigh(p: Weigh, profile: Profile, temps: list[int]) -> list[Launch]:
    """The launches of a weight gradient."""
    g = p.geometry
    tile, split = choose_weigh(g.m, g.c * g.taps, g.pixels, g.groups, lambda t: usable(t, profile))
    most = max(1, profile.max_binding // (4 * slice_elements((g.groups * g.m, g.c, g.kernel))))
    return tiled_weigh(p, tile, min(split, most), temps)


def tiled_weigh(p: Weigh, tile: Tile, split: int, temps: list[int]) -> list[Launch]:
    """The launches with this tile, pixels in at most `split` slices."""
    g = p.geometry
    turns = -(-g.pixels // tile.span)
    per = -(-turns // max(1, min(split, 65535 // g.groups)))
    slices = -(-turns // per)
    shape, temp, target = (g.groups * g.m, g.c, g.kernel), TEMP(len(temps)), p.target
    if slices > 1:
        temps.append(slice_elements(shape) * 4 * slices)
        target = partial(g.c, g.kernel, temp, 0, temps[-1] if p.target.part else 0)
    columns = g.c * g.taps
    quads = target.plain(g.c, g.kernel) and columns % 4 == 0 and target.offset % 4 == 0
    f = ConvForm(p.grad.dtype, p.input.dtype, target.dtype, None, g.m % tile.bm == 0, False, False, False, g.inside, axes_used(g), quads)
    unit = 4 if quads else 1
    words = [g.m, g.c, columns, g.pixels, numel(g.output), per * tile.span, slices, slice_elements(shape) // unit, *g.output, *g.input]
    words += [*g.words(), *p.input.words(), *p.grad.words(), *(v // unit for v in target.words())]
    fields = [p.input, p.grad, target]
    kernel = Kernel(
        ("conv", "weigh gpu", tile, f), WeighKernel(tile, f).source, ("read", "read", "read_write"), label="conv_weigh", trusted=True
    )  # fmt: skip
    grid = (-(-columns // tile.bn), -(-g.m // tile.bm), g.groups * slices)
    launch = Launch(kernel, tuple(x.binding for x in fields), grid, T.pack(words), ranges=ranges(fields))
    return [launch, add_slices(p.target, None, shape, temp, slices)] if slices > 1 else [launch]
