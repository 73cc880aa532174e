"""Which 3x3 convolutions a GPU makes by Winograd's algorithm, with which tile and slices of the products: by an estimate of both ways.

Figures were fitted to 300 products with these tiles, and to the launches beside them, on an NVIDIA H200 through both backends
(benchmarks/conv.py): on those shapes the products chosen take at most 7 % longer than the fastest, slices' reading aside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from .choices import BIG, LOW, MID, PAIR, ROWS, TALL, WIDE, Tile
from .conv_choices import LAUNCH, RATE, Candidate, cost, gather_seconds, slices, weigh_seconds
from .conv_problem import Geometry

BYTES = 3.4e12  # a second, to and from memory, of the transforms
CACHE = 26e12  # of the products, beside their work
START = 4.6e-6  # seconds of the products' launch
FILL = 0.66  # turns that a tile takes to start
GAIN = 1.1  # factor by which Winograd must be estimated faster

TILES = (
    Candidate(replace(BIG, walk="ptr"), 0.99),
    Candidate(replace(WIDE, wrap=True), 1.03),
    Candidate(TALL, 1.01),
    Candidate(PAIR, 0.81),
    Candidate(MID, 0.83),
    Candidate(LOW, 0.45),
    Candidate(ROWS, 0.55),
)
DEEP = (
    Candidate(replace(BIG, walk="ptr"), 0.99),
    Candidate(replace(WIDE, wrap=True), 0.99),
    Candidate(TALL, 0.87),
    Candidate(PAIR, 0.77),
    Candidate(MID, 0.72),
    Candidate(LOW, 0.45),
    Candidate(ROWS, 0.55),
)  # both operands lie along K


@dataclass(frozen=True, slots=True)
class Products:
    """Matrix products of one size, f32. `deep`: of a weight gradient, both operands along K."""

    m: int
    n: int
    k: int
    matrices: int
    deep: bool = False

    def seconds(self, x: Candidate, split: int) -> float:
        """Estimated, with K in slices whose results are all stored."""
        done = cost(x, self.m, self.n, -(-self.k // split), self.matrices * split, 1, FILL) / RATE
        return done + self.matrices * 4 * (self.m * self.k + self.k * self.n + split * self.m * self.n) / CACHE + START

    def more(self, split: int) -> float:
        """Seconds in which the last launch reads the slices."""
        return 4 * self.matrices * split * self.m * self.n / BYTES

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        return DEEP if self.deep else TILES


def choose(sizes: Products, splits: tuple[int, ...], most: int, usable: Callable[[Tile], bool]) -> tuple[Tile, int] | None:
    """Tile and slices of K, None where no tile can be used. Slices are `splits`, or up to `most` that fill the device where there
    are none."""
    options = []
    for x in sizes.candidates:
        if usable(x.tile):
            t = x.tile
            few = splits or slices(-(-sizes.m // t.bm) * -(-sizes.n // t.bn) * sizes.matrices, most)
            options += [(x, s) for s in few if s == 1 or sizes.k // s >= 2 * t.span]
    if not options:
        return None
    x, split = min(options, key=lambda o: sizes.seconds(*o) + sizes.more(o[1]))
    return x.tile, split


def gather_pays(tile: Tile, split: int, sizes: Products, g: Geometry, itemsize: int, parts: int) -> bool:
    """Whether it is faster for a result or an input gradient whose 36 products a group have these sizes, in `parts` of the batch."""
    pixels = g.n * g.output[1] * g.output[2]
    elements = pixels * (sizes.m + sizes.k) + 9 * sizes.m * sizes.k
    return GAIN * _total(tile, split, sizes, elements, g, itemsize, parts) < gather_seconds(sizes.m, pixels, sizes.k, 9, g.groups)


def weigh_pays(tile: Tile, split: int, sizes: Products, g: Geometry, itemsize: int, parts: int) -> bool:
    """The same for a weight gradient."""
    pixels = g.n * g.output[1] * g.output[2]
    elements = pixels * (sizes.m + sizes.n) + 9 * sizes.m * sizes.n
    return GAIN * _total(tile, split, sizes, elements, g, itemsize, parts) < weigh_seconds(sizes.m, sizes.n * 9, pixels, g.groups)


def _total(tile: Tile, split: int, sizes: Products, elements: int, g: Geometry, itemsize: int, parts: int) -> float:
    """Seconds; `elements` of all operands a group are read or written once."""
    candidate = next(x for x in sizes.candidates if x.tile == tile)
    moved = 4 * sizes.matrices * (sizes.k * sizes.n + sizes.m * sizes.k) + itemsize * g.groups * elements
    return sizes.seconds(candidate, split) + sizes.more(split) + moved / BYTES + 3 * parts * LAUNCH
