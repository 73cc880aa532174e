"""A reduction as numbers: collapsed kept and reduced dimensions, strides of every input over them, and slabs that fit a binding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..errors import DeviceError
from ..ops.archetype import Reduce
from ..shape import Shape, broadcast_shapes, broadcast_strides, collapse, extent, numel
from ..storage import Layout
from .kernel import Call, Profile
from .operand import Operand, mixed, stride_over


@dataclass(frozen=True, slots=True)
class Input:
    """One input: its strides over the collapsed kept and reduced dimensions, and the offset of its first element."""

    operand: Operand
    number: int
    kept: Shape
    inner: Shape
    offset: int

    def layout(self, sizes: Shape, inner: Shape) -> Layout:
        """What is read of it."""
        return Layout(self.operand.dtype, (*sizes, *inner), (*self.kept, *self.inner), self.offset)

    def entry(self, team: bool, width: int) -> int:
        """Elements an entry, where the others have `width`: 1 where one element serves them all."""
        along = self.inner if team else self.kept
        return width if width == 1 or (along and along[-1]) else 1


@dataclass(frozen=True, slots=True)
class Problem:
    """Reduce `inner` for each element of `sizes`. A slab of a larger problem has the numbers of its first result and element."""

    call: Call
    profile: Profile
    arch: Reduce
    sizes: Shape
    inner: Shape
    inputs: tuple[Input, ...]
    once: tuple[int, ...]  # numbers of the inputs with one value a result
    outs: tuple[Layout, ...]
    first_result: int = 0
    first_number: int = 0

    @property
    def kept(self) -> int:
        """Number of results."""
        return numel(self.sizes)

    @property
    def n(self) -> int:
        """Number of elements a result."""
        return numel(self.inner)

    @property
    def accumulator(self) -> str:
        """WGSL type that is accumulated (of the values compared, for argmax and argmin)."""
        return "u32" if self.reduced == "bool" else self.reduced

    @property
    def reduced(self) -> str:
        """WGSL type of what is reduced."""
        by_value = self.arch.kind in ("argmax", "argmin")
        return self.arch.type or (self.call.compute[0].value if by_value else self.outs[0].dtype.value)

    @property
    def values(self) -> tuple[str, ...]:
        """What is reduced."""
        return self.arch.values or (self.arch.pre or "{" + self.call.names[0] + "}",)

    @property
    def results(self) -> tuple[tuple[int, str], ...]:
        """What is stored."""
        return self.arch.results or ((0, self.arch.post),)

    def wide(self, team: bool) -> bool:
        """Whether entries of four elements can be loaded along the reduced (team) or kept dimensions."""
        sizes = self.inner if team else self.sizes
        if not sizes or sizes[-1] % 4 or self.n == 0:
            return False
        trial = []
        for x in self.inputs:
            along, others = (x.inner, x.kept) if team else (x.kept, x.inner)
            if along[-1] and (along[-1] != 1 or x.offset % 4 or any(s % 4 for s in (*along[:-1], *others))):
                return False
            trial.append((replace(x.operand, width=x.entry(team, 4)), x.number, x.layout(self.sizes, self.inner)))
        if all(o.width == 1 for o, _, _ in trial):
            return False
        return not mixed([*trial, *self.single()], self.call.alias)

    def single(self) -> list[tuple[Operand, int, Layout]]:
        """The operands with one value a result, inputs first."""
        call = self.call
        once = [(Operand(call.names[i], x.dtype, call.compute[i]), i, x) for i in self.once if (x := call.inputs[i]) is not None]
        return once + [(Operand(f"out.{j}", x.dtype, write=True), len(call.inputs) + j, x) for j, x in enumerate(self.outs)]

    def steps(self) -> list[int]:
        """Strides from result to result of the operands with one value a result."""
        found = [0 if x.numel == 1 else stride_over(x.shape, x.strides) for _, _, x in self.single()]
        if None in found:
            raise DeviceError(f"{self.call.op.name}: an operand with one value a result has no single stride")
        return [s for s in found if s is not None]

    def slabs(self) -> Iterator[list[Problem]]:
        """Groups of slabs whose inputs fit a binding; a group holds all slabs of some results. One group of one slab, usually."""
        a, b = self._chunks()
        kept_step = numel(self.sizes[1:])
        inner_step = numel(self.inner[1:])
        for k in range(0, self.sizes[0] if self.sizes else 1, a):
            group = []
            for i in range(0, max(self.inner[0], 1) if self.inner else 1, b):
                sizes = (min(a, self.sizes[0] - k), *self.sizes[1:]) if self.sizes else ()
                inner = (min(b, self.inner[0] - i), *self.inner[1:]) if self.inner else ()
                inputs = tuple(
                    replace(x, offset=x.offset + (k * x.kept[0] if k else 0) + (i * x.inner[0] if i else 0)) for x in self.inputs
                )
                slab = replace(self, sizes=sizes, inner=inner, inputs=inputs)
                group.append(replace(slab, first_result=k * kept_step, first_number=i * inner_step))
            yield group

    def _chunks(self) -> tuple[int, int]:
        """Indices of the outermost kept and reduced dimension a slab spans."""
        a, b = (self.sizes[0] if self.sizes else 1), (max(self.inner[0], 1) if self.inner else 1)
        while (worst := self._too_large(a, b)) is not None:
            along = (a - 1) * abs(worst.kept[0]) if worst.kept else 0
            across = (b - 1) * abs(worst.inner[0]) if worst.inner else 0
            if along == across == 0:
                raise DeviceError(
                    f"{self.call.op.name}: {self.call.inputs[worst.number]!r} is larger than a binding's {self.profile.max_binding} bytes, "
                    "and its outermost dimensions do not divide it; make it contiguous first"
                )
            a, b = (-(-a // 2), b) if along >= across else (a, -(-b // 2))
        return a, b

    def _too_large(self, a: int, b: int) -> Input | None:
        """The first input of which a slab exceeds a binding."""
        sizes = (a, *self.sizes[1:]) if self.sizes else ()
        inner = (b, *self.inner[1:]) if self.inner else ()
        if self.n == 0:
            return None
        for x in self.inputs:
            low, high = extent((*sizes, *inner), (*x.kept, *x.inner))
            whole = self.call.inputs[x.number]
            assert whole is not None
            end = (whole.span()[1] + 1) * x.operand.dtype.itemsize
            if end > self.profile.max_binding < (high - low + 1) * x.operand.dtype.itemsize + 512:
                return x
        return None


def problem_of(call: Call, profile: Profile) -> Problem:
    """The geometry of a call."""
    arch = call.op.archetype
    assert isinstance(arch, Reduce)
    tensors = [i for i, x in enumerate(call.inputs) if x is not None and call.names[i] not in arch.once]
    once = tuple(i for i, name in enumerate(call.names) if name in arch.once)
    layouts = [x for i in tensors if (x := call.inputs[i]) is not None]
    shape = broadcast_shapes(*(x.shape for x in layouts))
    dims = call.attrs["dim"]
    kept = [d for d in range(len(shape)) if d not in dims]
    strides = [broadcast_strides(x.shape, x.strides, shape) for x in layouts]
    sizes, kept_strides = collapse(tuple(shape[d] for d in kept), *(tuple(s[d] for d in kept) for s in strides))
    inner, inner_strides = collapse(tuple(shape[d] for d in dims), *(tuple(s[d] for d in dims) for s in strides))
    inputs = tuple(
        Input(Operand(call.names[i], x.dtype, call.compute[i]), i, k, r, x.offset)
        for i, x, k, r in zip(tensors, layouts, kept_strides, inner_strides, strict=True)
    )
    for out in call.outputs:
        if not out.contiguous:
            raise DeviceError(f"{call.op.name}: the result of a reduction must be contiguous, not {out!r}")
    return Problem(call, profile, arch, sizes, inner, inputs, once, call.outputs)
