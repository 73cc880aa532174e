"""A convolution as numbers: sizes, strides and offsets, brought to three spatial axes (the first of size 1 where there are fewer).

Two kinds. Gather makes a convolution's output, or its input gradient (`transposed`), from a source and weights. Weigh makes
the weight gradient. In a pipeline's key are dtypes and which terms exist; everything in `words` is data of a launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..dtype import DType
from ..shape import numel
from ..storage import Layout
from . import template as T
from .kernel import Call, Profile
from .matmul_fusion import Epilogue, Fusion

Triple = tuple[int, int, int]
AXES = "zyx"


def triple(values: Sequence[int], fill: int) -> Triple:
    """The numbers of 1 to 3 axes as those of three."""
    z, y, x = (fill,) * (3 - len(values)) + tuple(values)
    return z, y, x


@dataclass(frozen=True, slots=True)
class Field:
    """One tensor [N, C, z, y, x], or a bias [C] (only `c` counts): the element at n, c, z, y, x lies at offset + n * N + ...

    `c` are channels over all groups. part: (byte offset, byte size) bound, when not the whole buffer.
    """

    binding: int
    dtype: DType
    offset: int
    n: int
    c: int
    spatial: Triple
    part: tuple[int, int] | None = None

    def words(self) -> list[int]:
        return [self.offset, self.n, self.c, *self.spatial]

    def moved(self, n: int) -> Field:
        """From entry n of the batch on."""
        return replace(self, offset=self.offset + n * self.n)

    @staticmethod
    def names(stem: str) -> list[str]:
        return [f"{stem}_{x}" for x in ("off", "n", "c", *AXES)]

    def plain(self, channels: int, size: Triple) -> bool:
        """Whether it lies row-major without gaps, as [*, channels, *size]."""
        planes = ((size[1] * size[2], size[0]), (size[2], size[1]), (1, size[2]))
        inside = all(s == want or n == 1 for s, (want, n) in zip(self.spatial, planes, strict=True))
        return inside and (self.c == numel(size) or channels == 1) and self.n == channels * numel(size)


def field(layout: Layout, binding: int, part: tuple[int, int] | None, shift: int) -> Field:
    """The field of a tensor of rank 3 to 5, or of a bias."""
    if len(layout.shape) == 1:
        return Field(binding, layout.dtype, layout.offset - shift, 0, layout.strides[0], (0, 0, 0), part)
    strides = tuple(0 if n == 1 else s for n, s in zip(layout.shape, layout.strides, strict=True))
    n = layout.strides[0] if layout.shape[0] > 1 else numel(layout.shape[1:])
    c = layout.strides[1] if layout.shape[1] > 1 else numel(layout.shape[2:])
    return Field(binding, layout.dtype, layout.offset - shift, n, c, triple(strides[2:], 0), part)


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes shared by both kinds. `input` and `output` are the spatial sizes on the two sides of the convolution, m and c the
    channels of output and input a group."""

    n: int
    groups: int
    m: int
    c: int
    input: Triple
    output: Triple
    kernel: Triple
    stride: Triple
    padding: Triple
    dilation: Triple

    @property
    def taps(self) -> int:
        return numel(self.kernel)

    @property
    def pixels(self) -> int:
        """Output pixels of the whole batch."""
        return self.n * numel(self.output)

    @property
    def products(self) -> int:
        """Multiplications of each of the three directions."""
        return self.pixels * self.groups * self.m * self.c * self.taps

    @property
    def inside(self) -> bool:
        """Whether no tap of any output pixel falls outside the input."""
        return all(
            p <= 0 and (o - 1) * s + (k - 1) * d - p < i
            for i, o, k, s, p, d in zip(self.input, self.output, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        )

    @property
    def single(self) -> bool:
        """Whether it is a product at each pixel: one tap, no stride or border."""
        return self.taps == 1 and self.inside and self.input == self.output

    def words(self) -> list[int]:
        return [*self.kernel, *self.stride, *self.padding, *self.dilation]

    @staticmethod
    def names() -> list[str]:
        return [f"{stem}_{a}" for stem in ("k", "s", "p", "d") for a in AXES]


@dataclass(frozen=True, slots=True)
class Gather:
    """target[n, g, i] = bias + sum over j and taps of weight * source[n, g, j], where i are output channels (m) and j input
    channels (c), or the other way round if transposed. Weight channels: `i` and `j` are strides, `group` that of groups.

    With a fusion, whose rows are channels of all groups and whose columns are elements of their planes, results lie where that
    says; `target` then has no gaps and starts at 0, so that its spatial strides number the elements of a plane."""

    geometry: Geometry
    transposed: bool
    source: Field
    weight: Field  # its n and c strides are those of i and j
    group: int
    target: Field
    bias: Field | None
    fusion: Fusion | None = None

    @property
    def rows(self) -> int:
        """Target channels a group."""
        return self.geometry.c if self.transposed else self.geometry.m

    @property
    def depth(self) -> int:
        """Source channels a group."""
        return self.geometry.m if self.transposed else self.geometry.c

    @property
    def size(self) -> Triple:
        """Spatial sizes of the target."""
        return self.geometry.input if self.transposed else self.geometry.output

    @property
    def reach(self) -> Triple:
        """Spatial sizes of the source."""
        return self.geometry.output if self.transposed else self.geometry.input

    @property
    def channels(self) -> int:
        """Target channels of all groups."""
        return self.rows * self.geometry.groups

    @property
    def plain(self) -> bool:
        """Whether the target lies row-major without gaps."""
        return self.target.plain(self.channels, self.size)

    @property
    def quads(self) -> bool:
        """Whether what is fused can be done for four neighbours along x at a time, if there are whole fours."""
        return self.fusion is None or self.fusion.quads(numel(self.size))

    def epilogue(self, wide: bool) -> Epilogue | None:
        """What is fused, for a kernel that stores four neighbours at a time, or one."""
        return None if self.fusion is None else self.fusion.epilogue(wide)

    def into(self, target: Field) -> Gather:
        """The sums alone, for a later launch to finish."""
        return replace(self, target=target, bias=None, fusion=None)

    def batch(self, low: int, high: int) -> Gather:
        """Entries low to high of the batch."""
        target, fusion = (self.target.moved(low), None) if self.fusion is None else (self.target, self.fusion.moved(low))
        geometry = replace(self.geometry, n=high - low)
        return replace(self, geometry=geometry, source=self.source.moved(low), target=target, fusion=fusion)


@dataclass(frozen=True, slots=True)
class Weigh:
    """target[m, c, t] = sum over n and output pixels of grad[n, g, m] * input[n, g, c] at tap t."""

    geometry: Geometry
    input: Field
    grad: Field
    target: Field  # n and c are the strides of m (over all groups) and c

    @property
    def plain(self) -> bool:
        return self.target.plain(self.geometry.c, self.geometry.kernel)

    @property
    def elements(self) -> int:
        """Elements of the result."""
        g = self.geometry
        return g.groups * g.m * g.c * g.taps

    def batch(self, low: int, high: int) -> Weigh:
        """Entries low to high of the batch."""
        return replace(self, geometry=replace(self.geometry, n=high - low), input=self.input.moved(low), grad=self.grad.moved(low))


Problem = Gather | Weigh


def problem(call: Call, role: str, profile: Profile) -> Problem:
    """The problem of a call. Every operand must have elements."""
    layouts = [x for x in (*call.inputs, *call.outputs) if x is not None]
    ranges, shifts = T.windows([[x] for x in layouts], profile, call.op.name)
    parts = ranges or (None,) * len(layouts)
    fields = [field(x, i, part, shift) for i, (x, part, shift) in enumerate(zip(layouts, parts, shifts, strict=True))]
    geometry = _geometry(call, role, layouts)
    if role == "weight":
        return Weigh(geometry, fields[0], fields[1], fields[2])
    weight, transposed = fields[1], role == "input"
    group = weight.n * geometry.m
    if transposed:
        weight = replace(weight, n=weight.c, c=weight.n)
    return Gather(geometry, transposed, fields[0], weight, group, fields[-1], fields[2] if len(fields) == 4 else None)


def _geometry(call: Call, role: str, layouts: Sequence[Layout]) -> Geometry:
    first, second, result = layouts[0].shape, layouts[1].shape, layouts[-1].shape
    shapes = {"output": (first, second, result), "input": (result, second, first), "weight": (first, result, second)}
    x, w, o = shapes[role]
    groups, a = call.attrs["groups"], call.attrs
    geometry = (triple(a[name], fill) for name, fill in (("stride", 1), ("padding", 0), ("dilation", 1)))
    return Geometry(x[0], groups, w[0] // groups, w[1], triple(x[2:], 1), triple(o[2:], 1), triple(w[2:], 1), *geometry)


def ranges(fields: Sequence[Field | None]) -> tuple[tuple[int, int], ...] | None:
    """Launch.ranges of a launch that binds these fields."""
    parts = [x.part for x in fields if x is not None]
    if all(x is None for x in parts):
        return None
    return tuple(x or (0, 0) for x in parts)
