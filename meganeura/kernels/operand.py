"""Operands of a row or reduction kernel: the buffer each is bound to, how it is loaded and stored, where its elements lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..dtype import DType
from ..shape import collapse
from ..storage import Layout
from . import template as T
from .kernel import Profile


@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor as a kernel sees it; part of a pipeline key, so sizes, strides and offsets are not here.

    `compute` is the dtype its elements are converted to when loaded (None for outputs); `width` the elements of one
    array entry (1 or 4); `binding` the array it lives in.
    """

    name: str
    dtype: DType
    compute: DType | None = None
    write: bool = False
    width: int = 1
    binding: int = 0

    @property
    def tag(self) -> str:
        """The stem of its names in WGSL."""
        return T.identifier(self.name)

    def entry(self, index: str) -> str:
        """The array entry `index`."""
        return f"b{self.binding}[{index}]"

    def part(self, entry: str, lane: int) -> str:
        """Element `lane` of an entry, converted to the compute dtype."""
        return T.load(self.dtype, f"{entry}.{T.LANES[lane]}" if self.width > 1 else entry, self.compute)

    def part_of(self, type_: str, value: str) -> str:
        """One element to be stored, from a value of WGSL type `type_`."""
        return T.store(type_, value, self.dtype)

    def put(self, index: str, type_: str, values: Sequence[str]) -> str:
        """The statement that stores an entry from the values (of WGSL type `type_`) of its elements."""
        stored = [T.store(type_, v, self.dtype) for v in values]
        text = stored[0] if self.width == 1 else f"{T.element(self.dtype, self.width)}({', '.join(stored)})"
        return f"{self.entry(index)} = {text};"


@dataclass(frozen=True, slots=True)
class Bound:
    """Operands with their bindings, and what a Launch needs to know of them."""

    operands: tuple[Operand, ...]
    access: tuple[str, ...]
    numbers: tuple[int, ...]
    ranges: tuple[tuple[int, int], ...] | None
    shifts: tuple[int, ...]  # elements to take off the offset of each operand

    def declarations(self) -> str:
        """The storage arrays."""
        return declare(self.operands, self.access)


def declare(operands: Sequence[Operand], access: Sequence[str]) -> str:
    """WGSL declarations of the arrays that operands live in."""
    seen = {o.binding: o for o in operands}
    return "".join(T.storage(b, f"b{b}", T.element(o.dtype, o.width), access[b]) for b, o in sorted(seen.items()))


def bind(
    operands: Sequence[tuple[Operand, int, Layout]], alias: tuple[int, ...], profile: Profile, what: str, narrow: bool = False
) -> Bound:
    """Give each storage one binding. `operands`: (operand, its number in the call or TEMP(i), layout).

    narrow: the layouts are parts of operands that exceed a binding, so every binding gets its range.
    """
    roots: dict[int, int] = {}
    groups: list[list[Layout]] = []
    numbers: list[int] = []
    access: list[str] = []
    out: list[Operand] = []
    for o, number, layout in operands:
        root = alias[number] if alias and number >= 0 else number
        if root not in roots:
            roots[root] = len(roots)
            groups.append([])
            numbers.append(number)
            access.append("read")
        b = roots[root]
        groups[b].append(layout)
        if o.write:
            access[b] = "read_write"
        out.append(replace(o, binding=b))
    T.check_bindings(len(groups), profile, what)
    ranges, shifts = T.windows(groups, profile, what, narrow)
    return Bound(tuple(out), tuple(access), tuple(numbers), ranges, tuple(shifts[o.binding] for o in out))


def mixed(operands: Sequence[tuple[Operand, int, Layout]], alias: tuple[int, ...]) -> bool:
    """Whether operands of one storage want array entries of different widths."""
    widths: dict[int, int] = {}
    return any(widths.setdefault(alias[n] if alias and n >= 0 else n, o.width) != o.width for o, n, _ in operands)


def grouped(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int] | None:
    """(stride, elements that one serves) of an operand that repeats each of its elements, as channels in a group; or None."""
    dims, (steps,) = collapse(tuple(shape), tuple(strides))
    return (steps[0], dims[1]) if len(dims) == 2 and steps[1] == 0 else None


def runs(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int, int] | None:
    """(stride, elements a run, stride from run to run) of dimensions that two strides walk, as one channel of a batch; or None."""
    dims, (steps,) = collapse(tuple(shape), tuple(strides))
    return (steps[1], dims[1], steps[0]) if len(dims) == 2 else None


def stride_over(shape: Sequence[int], strides: Sequence[int]) -> int | None:
    """The one stride that walks these dimensions in row-major order; 1 for a single element, None if there is none."""
    dims, (steps,) = collapse(tuple(shape), tuple(strides))
    return 1 if not dims else steps[0] if len(dims) == 1 else None
