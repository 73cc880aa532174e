"""Phases: a transposed convolution of stride s as s plain ones an axis, each making every s-th element from a part of the taps.

Element q * s + r of the target meets source element q + front + j * spread through tap first + j * step, j < count. A plain
convolution is one phase: element q meets q * stride + front + j * dilation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import gcd

from .conv_border import Taps
from .conv_problem import Field, Gather, Triple


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a phase."""

    size: int  # elements of the target
    start: int  # the first of them
    every: int  # from one to the next
    front: int  # the source element that the first meets with its first tap
    stride: int  # source elements from one to the next
    spread: int  # source elements from tap to tap
    count: int
    first: int
    step: int


@dataclass(frozen=True, slots=True)
class Phase:
    axes: tuple[Axis, Axis, Axis]

    def of(self, name: str) -> Triple:
        z, y, x = (getattr(a, name) for a in self.axes)
        return z, y, x

    def part(self, target: Field) -> Field:
        """The elements of a target that this phase makes."""
        start = sum(a.start * s for a, s in zip(self.axes, target.spatial, strict=True))
        z, y, x = (a.every * s for a, s in zip(self.axes, target.spatial, strict=True))
        return replace(target, offset=target.offset + start, spatial=(z, y, x))

    def alone(self) -> Phase:
        """The phase of a target that holds only its elements."""
        z, y, x = (replace(a, start=0, every=1) for a in self.axes)
        return Phase((z, y, x))

    def kernel(self, weight: Field) -> tuple[int, Triple]:
        """Where the first tap of a weight's kernels lies after their beginning, and by how much each axis goes on to the next."""
        first = sum(a.first * s for a, s in zip(self.axes, weight.spatial, strict=True))
        z, y, x = (a.step * s for a, s in zip(self.axes, weight.spatial, strict=True))
        return first, (z, y, x)

    @property
    def taps(self) -> Taps:
        return Taps(self.of("first"), self.of("step"), self.of("count"))


def phases(p: Gather) -> list[Phase]:
    """All phases whose part of the target is not empty."""
    return [Phase((z, y, x)) for z, y, x in product(*(_axes(p, i) for i in range(3)))]


def _axes(p: Gather, i: int) -> list[Axis]:
    g, size = p.geometry, p.size[i]
    k, s, pad, d = g.kernel[i], g.stride[i], g.padding[i], g.dilation[i]
    if not p.transposed:
        return [Axis(size, 0, 1, -pad, s, d, k, 0, 1)]
    step, spread = s // gcd(s, d), d // gcd(s, d)
    out = []
    for r in range(min(s, size)):
        first = next((t for t in range(min(step, k)) if (r + pad - t * d) % s == 0), k)
        count = -(-(k - first) // step)
        base = (r + pad - first * d) // s if count else 0
        # taps from the last to the first, so that source elements go up
        last = max(count - 1, 0)
        out.append(Axis(-(-(size - r) // s), r, s, base - last * spread, 1, spread, count, first + last * step, -step))
    return out
