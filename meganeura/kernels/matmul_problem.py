"""A matrix product as numbers: sizes, strides and offsets of both operands and the result, and what a kernel may load as vec4.

Both operands are seen as [free, k] matrices (free is M for a and N for b), so that swapping them gives the transposed
product. Everything here that ends up in `words` is data of a launch; everything in `form` is part of a pipeline key.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..dtype import DType
from ..shape import Shape, broadcast_strides, collapse
from ..storage import Layout
from .matmul_fusion import Fusion
from .template import pack

FIELDS = (
    "m", "n", "k", "inner",
    "a_off", "a_free", "a_k", "a_b0", "a_b1",
    "b_off", "b_free", "b_k", "b_b0", "b_b1",
    "o_off", "o_row", "o_col", "o_b0", "o_b1",
    "split", "depth", "o_slice",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Side:
    """One operand: element [i, p] of matrix (b0, b1) lies at offset + b0*batch[0] + b1*batch[1] + i*free + p*inner."""

    binding: int
    dtype: DType
    offset: int
    free: int
    inner: int
    batch: tuple[int, int]
    extent: int  # size of the free dimension
    part: tuple[int, int] | None = None  # (byte offset, byte size) bound, when not the whole buffer
    panels: bool = False  # packed by matmul_pack: strides count vec4s, free from panel to panel

    def aligned(self) -> bool:
        """Whether every matrix and, along the dimension that is not contiguous, every row starts at a multiple of 4."""
        step = self.free if self.inner == 1 else self.inner
        return not (self.offset | step | self.batch[0] | self.batch[1]) & 3

    def form(self, k: int) -> str:
        """How a kernel may load it: 'k4' vec4 along k, 'f4' vec4 along the free dimension, 'k1' or 'f1' single elements
        (any strides; the letter is the dimension that neighbours should walk), 'p4' panels."""
        if self.panels:
            return "p4"
        if self.inner == 1 and k % 4 == 0 and self.aligned():
            return "k4"
        if self.free == 1 and self.extent % 4 == 0 and self.aligned():
            return "f4"
        return "k1" if abs(self.inner) <= abs(self.free) or self.extent == 1 else "f1"

    def words(self, form: str) -> list[int]:
        """offset, free, inner and batch strides as a kernel of this form counts them (vec4s for k4 and f4; panels already are)."""
        numbers = [self.offset, self.free, self.inner, *self.batch]
        return [x // 4 for x in numbers] if form in ("k4", "f4") else numbers


@dataclass(frozen=True, slots=True)
class Result:
    """The output: element [i, j] of matrix (b0, b1) lies at offset + b0*batch[0] + b1*batch[1] + i*row + j*col."""

    binding: int
    dtype: DType
    offset: int
    row: int
    col: int
    batch: tuple[int, int]
    part: tuple[int, int] | None = None

    def form(self, n: int) -> str:
        """'v4' where four neighbours of a row are one vec4, else 'v1'."""
        whole = self.col == 1 and n % 4 == 0 and not (self.offset | self.row | self.batch[0] | self.batch[1]) & 3
        return "v4" if whole else "v1"

    def words(self, form: str) -> list[int]:
        """offset, row, col and batch strides as a kernel of this form counts them."""
        numbers = [self.offset, self.row, self.col, *self.batch]
        return [x // 4 for x in numbers] if form == "v4" else numbers


@dataclass(frozen=True, slots=True)
class Problem:
    """result[b, i, j] = sum over p of a[b, i, p] * b[b, j, p], for batch[0] x batch[1] matrices.

    With a fusion, `out` is where its first output lies (apart from split rows and columns)."""

    m: int
    n: int
    k: int
    batch: tuple[int, int]
    a: Side
    b: Side
    out: Result
    fusion: Fusion | None = None

    @property
    def matrices(self) -> int:
        return self.batch[0] * self.batch[1]

    @property
    def products(self) -> int:
        """Multiplications to do."""
        return self.m * self.n * self.k * self.matrices

    def swapped(self) -> Problem:
        """The transposed product, into the same memory."""
        out = replace(self.out, row=self.out.col, col=self.out.row)
        fusion = self.fusion and self.fusion.swapped()
        return replace(self, m=self.n, n=self.m, a=self.b, b=self.a, out=out, fusion=fusion)

    def stores(self) -> str:
        """'v4' where results are made four neighbours of a row at a time, else 'v1'."""
        if self.fusion is None:
            return self.out.form(self.n)
        return "v4" if self.fusion.quads(self.n) else "v1"

    def bindings(self, form: str) -> tuple[int, ...]:
        """What a launch that stores in this form binds for its results."""
        return (self.out.binding,) if self.fusion is None else self.fusion.bindings(form == "v4")

    def ranges(self) -> tuple[tuple[int, int], ...] | None:
        """Launch.ranges: what is bound of each operand's buffer, None when whole buffers are."""
        parts = (self.a.part, self.b.part, self.out.part)
        if parts == (None, None, None):
            return None
        return tuple(x if x is not None else (0, 0) for x in parts)

    def params(self, forms: tuple[str, str, str], split: int = 1, depth: int = 0, slice_step: int = 0) -> bytes:
        """The uniform of one launch (see FIELDS): K in `split` slices of `depth`, whose results lie `slice_step` elements apart."""
        fa, fb, fo = forms
        step = slice_step // 4 if fo == "v4" else slice_step
        words = [self.m, self.n, self.k, self.batch[1], *self.a.words(fa), *self.b.words(fb), *self.out.words(fo)]
        return pack([*words, split, depth or self.k, step, *self.fused_words(fo)])

    def scalars(self) -> tuple[tuple[int, str], ...]:
        """Launch.scalars of the launch that stores the result."""
        return () if self.fusion is None else self.fusion.entries

    def fused_words(self, form: str) -> list[int]:
        """The fusion's parameters, after all others."""
        return [] if self.fusion is None else self.fusion.words(form == "v4")


def problem(a: Layout, b: Layout, out: Layout, bindings: tuple[int, int, int]) -> Problem | None:
    """The problem of layouts [..., M, K] @ [..., K, N] -> [..., M, N]; None if more than two batch dimensions remain
    after merging (the caller then copies an operand)."""
    m, n = out.shape[-2:]
    lead = out.shape[:-2]
    strides = (_lead(a, lead), _lead(b, lead), out.strides[:-2])
    sizes, merged = collapse(lead, *strides)
    if len(sizes) > 2:
        return None
    pad = 2 - len(sizes)
    batch = (1,) * pad + sizes
    sa, sb, so = ((0,) * pad + s for s in merged)
    result = Result(bindings[2], out.dtype, out.offset, _step(m, out.strides[-2]), _step(n, out.strides[-1]), (so[0], so[1]))
    return assemble(a, b, result, (batch[0], batch[1]), (sa[0], sa[1]), (sb[0], sb[1]), bindings)


def assemble(
    a: Layout, b: Layout, out: Result, batch: tuple[int, int], sa: tuple[int, int], sb: tuple[int, int], bindings: tuple[int, ...]
) -> Problem:
    """The problem of matrices [..., M, K] and [..., K, N] whose batch strides over `batch` are sa and sb."""
    (m, k), n = a.shape[-2:], b.shape[-1]
    side_a = Side(bindings[0], a.dtype, a.offset, _step(m, a.strides[-2]), _step(k, a.strides[-1]), sa, m)
    side_b = Side(bindings[1], b.dtype, b.offset, _step(n, b.strides[-1]), _step(k, b.strides[-2]), sb, n)
    return Problem(m, n, k, batch, side_a, side_b, out)


def _lead(layout: Layout, lead: Shape) -> Shape:
    return broadcast_strides(layout.shape[:-2], layout.strides[:-2], lead)


def _step(size: int, stride: int) -> int:
    """The stride of a dimension; 0 where it has one entry and the stride says nothing."""
    return 0 if size == 1 else stride
