"""Weight gradients of convolutions for GPUs as products whose operands are picked from image and gradient while they are loaded.

Output channels are rows, input channels x taps columns, and the pixels of the batch lie along K: so do both operands, and an
invocation has one pixel a turn. K is cut into slices that a second launch adds up, always in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..shape import numel
from . import template as T
from .choices import Tile
from .conv_choices import choose_weigh
from .conv_direct import axes_used
from .conv_problem import AXES, Field, Geometry, Weigh, ranges
from .conv_sum import add_slices, partial, slice_elements
from .conv_tiled import ARGS, ConvForm, Tiled, scalar_operand, usable
from .kernel import TEMP, Kernel, Launch, Profile
from .matmul_wgsl import XYZW, load

WEIGH = (
    "m", "c", "columns", "pixels", "plane", "per", "slices", "o_slice",
    *(f"{stem}_{a}" for stem in ("size", "reach") for a in AXES), *Geometry.names(),
    *Field.names("x"), *Field.names("g"), *Field.names("o"),
)  # fmt: skip


class WeighKernel(Tiled):
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
