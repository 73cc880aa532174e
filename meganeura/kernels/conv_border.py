"""Copies that convolutions on software Vulkan read: a tensor with its border of zeros, and weights with channels side by side.

Both are float32. A lane copies a stretch of a row: everything else in the address is then computed once.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from .. import dtype as D
from ..dtype import DType
from ..shape import numel
from . import template as T
from .conv_problem import AXES, Field, Triple, ranges
from .kernel import TEMP, Kernel, Launch, Profile

STRETCH = 64  # vec4s of a row that an invocation makes
SIZE = 64  # invocations a workgroup


@dataclass(frozen=True, slots=True)
class Bordered:
    """A copy [n, channels, *size] without gaps, size[2] a multiple of 4; element x of a row is x - front[2] of the source's."""

    binding: int
    size: Triple
    channels: int
    nbytes: int
    offset: int = 0

    @property
    def plane(self) -> int:
        """Elements of a channel."""
        return numel(self.size)

    def field(self, narrow: bool) -> Field:
        """It as a field, for launches."""
        strides = (self.size[1] * self.size[2], self.size[2], 1)
        part = (0, self.nbytes) if narrow else None
        return Field(self.binding, D.float32, self.offset, self.channels * self.plane, self.plane, strides, part)


@dataclass(frozen=True, slots=True)
class Form:
    source: DType
    quads: bool  # rows of the source are whole vec4s
    turn: int  # by how much the copy's vec4s are turned against the source's


def bordered(
    source: Field, n: int, channels: int, reach: Triple, front: Triple, size: Triple, temps: list[int]
) -> tuple[Bordered, list[Launch]]:
    """The copy of a source of spatial sizes `reach`, with `front` zeros before each axis (negative: that many cut off)."""
    plain = source.plain(channels, reach) and source.dtype is D.float32
    if plain and front == (0, 0, 0) and size == reach and source.offset % 4 == 0 and source.part is None:
        return Bordered(source.binding, size, channels, 0, source.offset), []
    made = Bordered(TEMP(len(temps)), size, channels, n * channels * numel(size) * 4)
    temps.append(made.nbytes)
    steps = (source.offset, source.n, source.c, *source.spatial[:2])
    quads = source.spatial[2] == 1 and source.dtype is not D.float16 and reach[2] % 4 == 0 and not any(s % 4 for s in steps)
    f = Form(source.dtype, quads, -front[2] % 4)
    unit = 4 if quads else 1
    words = [n * channels * size[0] * size[1], -(-size[2] // 4 // STRETCH), channels, *size[:2], size[2] // 4]
    words += [reach[0], reach[1], reach[2] // unit, front[0], front[1], -(front[2] // 4) if quads else front[2]]
    if quads:
        words[-1] = -front[2] // 4  # the source's vec4 that the first one begins in
    words += [x // unit for x in (source.offset, source.n, source.c, *source.spatial[:2])] + [source.spatial[2]]
    kernel = Kernel(
        ("conv", "border", f), lambda profile: _border_source(f, profile), ("read", "read_write"), label="conv_border", trusted=True
    )  # fmt: skip
    count = -(-words[0] * words[1] // SIZE)
    bound = ranges([source, made.field(source.part is not None)])
    return made, [Launch(kernel, (source.binding, made.binding), T.grid(count), T.pack(words), ranges=bound)]


def _border_source(f: Form, profile: Profile) -> str:
    fields = ["rows", "parts", "channels", "size_z", "size_y", "quads", "reach_z", "reach_y", "reach_x", "front_z", "front_y", "front_x"]
    fields += Field.names("x")
    body = T.entry(profile, SIZE) + f"  let i = group * {SIZE}u + local;\n  let row = i / p.parts;\n  if (row >= p.rows) {{ return; }}\n"
    body += "  " + T.decompose("row", ["0", "p.channels", "p.size_z", "p.size_y"]) + "\n"
    body += "  let z = c2 - p.front_z; let y = c3 - p.front_y; let there = z < p.reach_z && y < p.reach_y;\n"
    body += "  let at = p.x_off + c0 * p.x_n + c1 * p.x_c + select(0u, z * p.x_z + y * p.x_y, there);\n"
    body += f"  var q = (i % p.parts) * {STRETCH}u; let end = min(q + {STRETCH}u, p.quads); let to = row * p.quads;\n"
    if f.quads:
        quad = "select(vec4<f32>(), x[at + min({0}, p.reach_x - 1u)], there && {0} < p.reach_x)"
        body += "  var e = q + p.front_x;\n"
        if f.turn:
            body += f"  var last = {quad.format('e')};\n"
        body += "  loop {\n"
        if f.turn:
            parts = [f"last.{T.LANES[k]}" for k in range(f.turn, 4)] + [f"next.{T.LANES[k]}" for k in range(f.turn)]
            body += f"    e += 1u; let next = {quad.format('e')};\n    o[to + q] = vec4<f32>({', '.join(parts)}); last = next;\n"
        else:
            body += f"    o[to + q] = {quad.format('e')}; e += 1u;\n"
    else:
        body += "  loop {\n    let e = q * 4u - p.front_x;\n"
        for k in range(4):
            value = T.load(f.source, f"x[at + min(e + {k}u, p.reach_x - 1u) * p.x_x]", D.float32)
            body += f"    let v{k} = select(0.0, {value}, there && e + {k}u < p.reach_x);\n"
        body += "    o[to + q] = vec4<f32>(v0, v1, v2, v3);\n"
    body += "    continuing { q += 1u; break if q >= end; }\n  }\n}\n"
    out = T.header(profile, [f.source], T.lanes(profile) > 0) + T.storage(0, "x", T.element(f.source, 4 if f.quads else 1), "read")
    return out + T.storage(1, "o", "vec4<f32>", "read_write") + T.uniform(2, fields) + T.prelude(body) + body


@dataclass(frozen=True, slots=True)
class Taps:
    """The taps of one phase along each axis: `count` of them, weight's tap `first` + j * `step` for the j-th."""

    first: Triple
    step: Triple
    count: Triple

    @property
    def number(self) -> int:
        return numel(self.count)


def packed(
    weight: Field, group: int, sizes: tuple[int, int, int], taps: Taps, temps: list[int], panel: int = 0
) -> tuple[Field, list[Launch]]:
    """Weights as [group, taps, j, i], i filled up with zeros to a multiple of 4, in float32. With `panel`, a multiple of 4, as
    [group, i / panel, j, taps, panel]: a tile then reads from front to back.

    sizes: groups, i (rows), j (depth). The weight's n and c strides are those of i and j. An invocation makes all taps of four
    neighbours of i.
    """
    groups, rows, depth = sizes
    wide = panel // 4 or -(-rows // 4)
    quads = -(-rows // (4 * wide)) * wide
    nbytes = max(16, groups * depth * taps.number * quads * 16)
    made = Field(TEMP(len(temps)), D.float32, 0, 0, 0, (0, 0, 0), (0, nbytes) if weight.part else None)
    temps.append(nbytes)
    if not taps.number:
        return made, []
    count = groups * depth * quads
    steps = [a * b for a, b in zip(taps.step, weight.spatial, strict=True)]
    walked = [x for x in zip(taps.count, steps, strict=True) if x[0] > 1]  # taps that lie one step after another are one run
    run = all(a[1] == b[0] * b[1] for a, b in pairwise(walked))
    place = weight.offset + sum(a * b for a, b in zip(taps.first, weight.spatial, strict=True))
    words = [
        count,
        depth,
        rows,
        quads // wide,
        taps.number,
        group,
        place,
        weight.n,
        weight.c,
        walked[-1][1] if walked else 0,
        *taps.count,
        *steps,
    ]
    each = depth * taps.number
    words += [each * quads, wide, each * wide, *((taps.number * wide, wide) if panel else (quads, depth * quads))]
    kernel = Kernel(
        ("conv", "pack", weight.dtype, run),
        lambda profile: _pack_source(weight.dtype, run, profile),
        ("read", "read_write"),
        label="conv_pack",
        trusted=True,
    )
    bound = ranges([weight, made])
    return made, [Launch(kernel, (weight.binding, made.binding), T.grid(-(-count // SIZE)), T.pack(words), ranges=bound)]


def _pack_source(dtype: DType, run: bool, profile: Profile) -> str:
    fields = ["count", "depth", "rows", "panels", "taps", "group", "w_off", "w_n", "w_c", "w_t"]
    fields += [f"{stem}_{a}" for stem in ("count", "step") for a in AXES] + ["o_g", "wide", "o_panel", "o_c", "o_t"]
    body = T.entry(profile, SIZE) + f"  let n = group * {SIZE}u + local;\n  if (n >= p.count) {{ return; }}\n"
    body += "  " + T.decompose("n", ["0", "p.panels", "p.depth", "p.wide"]) + "\n"
    body += "  let i = (c1 * p.wide + c3) * 4u; let from_ = p.w_off + c0 * p.group + c2 * p.w_c;\n"
    body += "".join(f"  let at{k} = from_ + min(i + {k}u, p.rows - 1u) * p.w_n;\n" for k in range(4))
    body += "  var t = 0u; var tap = 0u; var to = c0 * p.o_g + c1 * p.o_panel + c2 * p.o_c + c3;\n  loop {\n"
    if not run:
        body += (
            "    " + T.decompose("t", [f"p.count_{a}" for a in AXES], "t") + "\n    tap = t0 * p.step_z + t1 * p.step_y + t2 * p.step_x;\n"
        )
    values = [T.load(dtype, f"weight[at{k} + tap]", D.float32) for k in range(4)]
    body += "    o[to] = vec4<f32>(" + ", ".join(f"select(0.0, {v}, i + {k}u < p.rows)" for k, v in enumerate(values)) + ");\n"
    body += f"    continuing {{ {'tap += p.w_t; ' if run else ''}to += p.o_t; t += 1u; break if t >= p.taps; }}\n  }}\n}}\n"
    out = T.header(profile, [dtype], T.lanes(profile) > 0) + T.storage(0, "weight", T.element(dtype), "read")
    return out + T.storage(1, "o", "vec4<f32>", "read_write") + T.uniform(2, fields) + T.prelude(body) + body
