"""Convolutions for GPUs as products whose second operand is picked from the image while it is loaded (implicit GEMM).

A gather has channels as rows and pixels of the whole batch as columns; K runs over chunks of source channels, and for each over the
taps, so that a turn has one tap: an invocation checks once whether its pixel's tap lies inside and loads that element of several
channels. Where channels are too few for that ('flat'), K runs over channels and taps as one; of a single tap without stride or border
it loads four pixels as one vec4. Where a stride leaves elements of an input gradient that no tap meets, each result is stored with
those beside it. K may be cut into slices that a second launch adds up, always in the same order. Weight gradients are made by
conv_weigh.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .. import dtype as D
from ..shape import numel
from . import template as T
from .choices import Tile
from .conv_border import Taps, packed
from .conv_choices import choose_gather
from .conv_direct import axes_used, fill
from .conv_fusion import closing, dtypes, launch
from .conv_phases import Phase, phases
from .conv_problem import AXES, Field, Gather, Triple
from .conv_sum import add_slices, partial, slice_elements
from .conv_tiled import ARGS, ConvForm, Tiled, quad_operand, scalar_operand, usable
from .kernel import TEMP, Launch, Profile
from .matmul_stage import Operand
from .matmul_wgsl import XYZW, load

GATHER = (
    "m", "pixels", "plane", "depth", "groups", "turns", "per", "chunks", "taps", "o_slice", "w_group", "w_quads", "high",
    *(f"{stem}_{a}" for stem in ("size", "reach", "front", "stride", "spread", "count", "first", "step") for a in AXES),
    *Field.names("x"), *Field.names("w"), *Field.names("o"), "b_off", "b_c", "by_taps", "by_xy", "by_x", "k_y", "k_x",
    *(f"{stem}_{a}" for stem in ("block", "full", "raw") for a in AXES),
)  # fmt: skip


class GatherKernel(Tiled):
    """Text of the tiled gather. Grid: (ceil(pixels / bn), high = ceil(channels / bm), groups * slices), x folded into y above 65,535."""

    __slots__ = ()

    def source(self, profile: Profile) -> str:
        t, f = self.tile, self.form
        a = quad_operand("a", t.bm, D.float32, t) if f.packed else scalar_operand("a", t.bm, t)
        b = quad_operand("b", t.bn, f.right, t) if f.along else scalar_operand("b", t.bn, t)
        room = profile.max_workgroup_memory - (a.words() + b.words()) * 4
        declared, adding = self.gemm._exchange(room)
        lines = [a.declare(), b.declare(), *declared, *([self._block()] if f.beside else [])]
        lines += [f"@compute @workgroup_size({t.size}) fn main({ARGS}) {{"]
        lines += ["let slice = w.z % ((p.turns + p.per - 1u) / p.per); let grp = w.z / ((p.turns + p.per - 1u) / p.per);"]
        lines += [f"let row0 = w.y % p.high * {t.bm}u; let col0 = (w.y / p.high * {T.FOLD}u + w.x) * {t.bn}u; let from_ = slice * p.per;"]
        lines += ["if (col0 >= p.pixels) { return; }", "let turns = min(p.per, p.turns - from_);", *self.gemm._thread(a, b)]
        lines += [*self._setup_a(a), *(self._setup_along(b) if f.along else self._setup_b())]
        lines += self._start()
        lines += [f"var vb{e}: {'vec4<f32>' if f.along else 'f32'};" for e in range(b.per if f.along else self.rows)]
        lines += [f"var va{e}: {'vec4<f32>' if f.packed else 'f32'};" for e in range(a.per if f.packed else self.a_count)]
        lines += [f"var {c} = vec4<f32>();" for c in self.gemm._sums()]
        fetch = [*(self._fetch_along(b) if f.along else self._fetch_b()), *(self._fetch_packed(a) if f.packed else self._fetch_a())]
        put = b.put() if f.along else [*self.put_scalars(b, self.rows, "b_row", t.size // t.bn, "b_col")]
        put += a.put() if f.packed else self.put_scalars(a, self.a_count, "kk", t.size // t.span, "a_row")
        lines += [*self.loop(a, b, fetch, put, self._step()), *adding, *self._store(), "}"]
        arrays = [("x", f.right, 4 if f.along else 1), ("wt", D.float32 if f.packed else f.left, 4 if f.packed else 1)]
        arrays += [("b", f.bias, 1)] if f.bias else []
        out = T.header(profile, [*(d for _, d, _ in arrays), *dtypes(f.target, f.epilogue)]) + self.bind(arrays, "")
        text = "\n".join(lines) + "\n"
        return out + closing(f.target, f.epilogue, len(arrays), 4 if f.quads else 1, GATHER, text, t.wrap)

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

    def _setup_along(self, b: Operand) -> Iterator[str]:
        across = b.block // 4
        for e in range(b.per):
            same = e and b.threads % across == 0  # the column of every unit is that of the first
            yield f"let br{e} = {f'br0 + {e * b.threads // across}u' if same else f'{b.unit(e)} / {across}u'};"
            yield f"let bc{e} = {'bc0' if same else f'{b.unit(e)} % {across}u'};"
            if not same:
                yield f"let pix{e} = min(col0 + bc{e} * 4u, p.pixels - 4u); let n{e} = pix{e} / p.plane;"
                yield f"let x_at{e} = p.x_off + n{e} * p.x_n + grp * p.depth * p.x_c + (pix{e} - n{e} * p.plane) / 4u;"
            yield f"let bp{e} = x_at{0 if same else e} + br{e} * p.x_c;"

    def _fetch_along(self, b: Operand) -> Iterator[str]:
        even = self.form.even
        for e in range(b.per):
            there = "" if even else f"c0 + br{e} < p.depth"
            at = f"bp{e} + c0 * p.x_c"
            value = load(f"x{self.dot}[{at if even else f'select(bp{e}, {at}, {there})'}]", self.form.right, "f32", True, there)
            yield b._limited(e, f"vb{e} = {value};")

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
            yield f"let wk = {'(c0 + kk)' if f.even else 'min(c0 + kk, p.depth - 1u)'} * p.w_c{self._tap_place()};"
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
                if f.epilogue is not None:
                    at = f"in{tag}" if f.quads else "p.o_off" + "".join(f" + q{a}{tag} * p.o_{a}" for a in f.names)
                    yield f"let to{tag} = {at};"
                    continue
                if f.beside:
                    places = [(a, f"q{a}{tag} * p.o_{a}") for a in f.names[:-1]]
                    places += [("x", f"qx{tag} / 2u" if f.quads else f"qx{tag} * p.o_x")]
                    yield f"let to{tag} = o_at + n{tag} * p.o_n" + "".join(f" + {x}" for _, x in places) + ";"
                elif f.quads:
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
                if f.epilogue is not None:
                    values = [f"c{i}_{j}"] if f.quads else [f"c{i}_{j}.{c}" for c in XYZW]
                    for q, v in enumerate(values):
                        tag = f"_{j}{q}"
                        text += f"if (pix{tag} < p.pixels) {{ finish(n{tag}, grp * p.m + {row}, to{tag}, {v}{shift}); }} "
                elif f.beside:
                    text += self._store_beside(i, j, "shift" if f.bias else "0.0")
                elif f.quads:
                    text += f"if (pix_{j}0 < p.pixels) {{ o{self.dot}[to_{j}0 + line] = {T.element(f.target, 4)}({', '.join(parts)}); }} "
                else:
                    text += "".join(f"if (pix_{j}{q} < p.pixels) {{ o{self.dot}[to_{j}{q} + line] = {v}; }} " for q, v in enumerate(parts))
            yield f"if ({row} < p.m) {{ {text}}}"
        if t.groups > 1:
            yield "}"

    def _store_beside(self, i: int, j: int, rest: str) -> str:
        f, out = self.form, ""
        for q in range(1 if f.quads else 4):
            tag = f"_{j}{q}"
            value = f"c{i}_{j}" if f.quads else f"c{i}_{j}.{XYZW[q]}"
            at = ", ".join(f"q{a}{tag} * p.block_{a}" if a in f.names else "0u" for a in AXES)
            out += f"if (pix{tag} < p.pixels) {{ block(to{tag} + line, vec3<u32>({at}), {value}, {rest}); }} "
        return out

    def _block(self) -> str:
        """A function that stores a result (or four neighbours), and the bias alone in the rest of its block."""
        f = self.form
        if f.quads:
            parts = ["v.x + b", "b", "v.y + b", "b", "v.z + b", "b", "v.w + b", "b"]
            whole = [", ".join(T.store("f32", x, f.target) for x in parts[k : k + 4]) for k in (0, 4)]
            rest = f"{T.element(f.target, 4)}({T.store('f32', 'b', f.target)})"
            wide = T.element(f.target, 4)
            store = f"if (z + y == 0u) {{ o{self.dot}[to] = {wide}({whole[0]}); o{self.dot}[to + 1u] = {wide}({whole[1]}); }}"
            store += f" else {{ o{self.dot}[to] = {rest}; o{self.dot}[to + 1u] = {rest}; }}"
        else:
            value = T.store("f32", "select(b, v + b, z + y + x == 0u)", f.target)
            store = f"for (var x = 0u; x < end.x; x++) {{ o{self.dot}[to + x * p.raw_x] = {value}; }}"
        return f"""fn block(at: u32, q: vec3<u32>, v: {"vec4<f32>" if f.quads else "f32"}, b: f32) {{
let end = min(vec3<u32>(p.block_x, p.block_y, p.block_z), vec3<u32>(p.full_x, p.full_y, p.full_z) - q.zyx);
for (var z = 0u; z < end.z; z++) {{ for (var y = 0u; y < end.y; y++) {{ let to = at + z * p.raw_z + y * p.raw_y; {store} }} }} }}"""


def blocks(p: Gather) -> Triple | None:
    """Elements that a result stands for along each axis where a stride leaves some without taps: the result is the first of them.
    None if all have taps, or if they do not lie so."""
    found = []
    every = phases(p)
    if all(x.taps.number for x in every):
        return None
    for i in range(3):
        axes = {x.axes[i].start: x.axes[i] for x in every}
        met = [start for start, a in axes.items() if a.count]
        if len(met) == len(axes):
            found.append(1)
        elif met == [0]:
            found.append(p.geometry.stride[i])
        else:
            return None
    return found[0], found[1], found[2]


def gather(p: Gather, profile: Profile, temps: list[int]) -> list[Launch]:
    """The launches of a convolution's output or input gradient."""
    g = p.geometry
    parts = [x for x in phases(p) if x.taps.number]
    if p.fusion is not None and len(parts) < len(phases(p)):  # what makes elements without taps knows no epilogue
        shape, temp = (g.n, p.channels, p.size), TEMP(len(temps))
        temps.append(slice_elements(shape) * 4)
        sums = gather(p.into(partial(p.channels, p.size, temp, 0, 0)), profile, temps)
        return [*sums, add_slices(p.target, p.bias, shape, temp, 1, p.fusion)]
    if not parts:
        return fill(p)
    pixels = max(g.n * numel(x.of("size")) for x in parts)
    flat = p.depth < 12 and p.depth * g.taps < T.MAX_RECIPROCAL  # chunks of channels would be mostly empty
    tile, split, pack = choose_gather(
        p.rows, pixels, p.depth, max(x.taps.number for x in parts), g.groups, len(parts), lambda t: usable(t, profile)
    )
    holes = len(parts) < len(phases(p)) and blocks(p) is None
    return [*(fill(p) if holes else []), *tiled_gather(p, parts, tile, split, pack and not flat, flat, temps)]


def as_it_lies(p: Gather) -> Field | None:
    """The weight, in vec4s, if it lies as `packed` would copy it: one tap, rows side by side."""
    w = p.weight
    side_by_side = (w.n == 1 or p.rows == 1) and (w.c == p.rows or p.depth == 1)
    whole = not any(x % 4 for x in (p.rows, w.offset, p.group))
    if p.geometry.taps > 1 or w.dtype.storage != "f32" or not side_by_side or not whole:
        return None
    return replace(w, offset=w.offset // 4)


def tiled_gather(p: Gather, parts: list[Phase], tile: Tile, split: int, pack: bool, flat: bool, temps: list[int]) -> list[Launch]:
    """The launches with this tile, K in at most `split` slices, weights packed first or read as they lie."""
    g = p.geometry
    weight, group = p.weight, p.group
    launches: list[Launch] = []
    lying = None if flat else as_it_lies(p)
    if lying is not None:
        weight, group, pack = lying, p.group // 4, True
    elif pack:
        whole = Taps((0, 0, 0), (1, 1, 1), g.kernel)
        weight, launches = packed(p.weight, p.group, (g.groups, p.rows, p.depth), whole, temps)
        group = g.taps * p.depth * -(-p.rows // 4)
    turns = [_turns(p, x, tile, flat) for x in parts]
    per = -(-max(turns) // max(1, min(split, 65535 // g.groups)))
    slices = -(-max(turns) // per)
    shape, temp, target = (g.n, p.channels, p.size), TEMP(len(temps)), p.target
    q = replace(p, weight=weight, group=group)
    if slices > 1:
        assert len(parts) == 1, "phases are not cut"
        if len(phases(p)) > 1 and blocks(p) is None:  # other elements have no sums to add up
            target, parts = parts[0].part(target), [parts[0].alone()]
            shape = (g.n, p.channels, parts[0].of("size"))
        temps.append(slice_elements(shape) * 4 * slices)
        q = q.into(partial(p.channels, shape[2], temp, 0, temps[-1] if p.target.part else 0))
    for phase, n in zip(parts, turns, strict=True):
        launches.append(_gather(q, phase, tile, pack, flat, n, per, slices, shape))
    return [*launches, add_slices(target, p.bias, shape, temp, slices, p.fusion)] if slices > 1 else launches


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
    raw, block, start = p.target.spatial, blocks(p), phase.of("start")
    if block is not None:
        quads = block[2] == 2 and size[2] % 4 == 0 and p.size[2] == 2 * size[2] and (raw[2] == 1)
        quads = quads and not any(v % 4 for v in (o.offset, o.n, o.c, *raw[:2]))
    else:
        quads = p.quads and joined and plane % 4 == 0 and not any(v % 4 for v in (o.offset, o.n, o.c))
    bias = p.bias
    inside = all(
        a.front >= 0 and a.front + (a.size - 1) * a.stride + (a.count - 1) * a.spread < n for a, n in zip(phase.axes, p.reach, strict=True)
    )
    even = not flat and p.depth % tile.span == 0
    axes = axes_used(g)
    along = not flat and inside and _along(p, phase)
    f = ConvForm(
        p.weight.dtype, p.source.dtype, o.dtype, bias.dtype if bias else None, p.rows % tile.bm == 0, pack, flat, even, inside, axes, quads,
        along, block is not None, p.epilogue(quads),
    )  # fmt: skip
    unit = 4 if quads else 1
    words = [p.rows, g.n * plane, plane, p.depth, g.groups, turns, per if slices > 1 else turns, -(-p.depth // tile.span), numel(count)]
    high, wide = -(-p.rows // tile.bm), -(-g.n * plane // tile.bn)
    words += [slice_elements(shape) // unit, p.group, -(-p.rows // 4), high]
    for triple in (size, p.reach, phase.of("front"), phase.of("stride"), phase.of("spread"), count, phase.of("first"), phase.of("step")):
        words += triple
    weight = p.weight.words()
    source = p.source.words()
    words += [*((v // 4 for v in source) if along else source), *weight, *(v // unit for v in o.words())]
    words += (bias.offset, bias.c) if bias else (0, 0)
    words += [T.reciprocal(numel(count)), T.reciprocal(count[1]), T.reciprocal(count[2]), g.kernel[1], g.kernel[2]]
    words += [*(block or (1, 1, 1)), *(n - s for n, s in zip(p.size, start, strict=True)), *(v // unit for v in raw)]
    inputs, made = [p.source, p.weight, *([bias] if bias else [])], GatherKernel(tile, f)
    across, down, _ = T.grid(wide)
    grid = (across, down * high, g.groups * slices)
    return launch(o, p.fusion, quads, ("conv", "gather gpu", tile, f), made.source, inputs, grid, words, "conv_gather")


def _along(p: Gather, phase: Phase) -> bool:
    """Whether the image lies as the phase's pixels do, in vec4s."""
    x, size = p.source, phase.of("size")
    if phase.taps.number != 1 or any(a.front or (a.stride != 1 and a.size > 1) for a in phase.axes) or size != p.reach:
        return False
    joined = all(s == w or n == 1 for s, w, n in zip(x.spatial, (size[1] * size[2], size[2], 1), size, strict=True))
    return joined and not any(v % 4 for v in (numel(size), x.offset, x.n, x.c))
