"""Which tile makes which convolution on a GPU, and in how many slices of K: by an estimate of the time that all tiles take.

The estimate counts what the busiest of `UNITS` multiprocessors does; `rate` is how near each tile comes to the device's peak,
measured on an NVIDIA H200 through both backends (benchmarks/conv.py). Other GPUs take the same tiles within their limits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from .choices import BIG, LOW, MID, PAIR, ROWS, TALL, WIDE, Tile

UNITS = 132  # multiprocessors of the device that the figures come from
RATE = 51e12 / 2 / UNITS  # products a second of a multiprocessor that a tile of rate 1 keeps busy
LAUNCH = 3e-6  # seconds of a launch that waits for the one before it
FULL = 16  # warps of these kernels that fit a multiprocessor at once
SLICE = RATE * LAUNCH  # cost of a second launch, in products of a multiprocessor
PACKING = 8e8  # products of a convolution from which its weights are packed first
WEIGHTS = 1 << 17  # and elements of the weights, where there is one tap: fewer stay in the cache as they lie


@dataclass(frozen=True, slots=True)
class Candidate:
    tile: Tile
    rate: float


THIN = Tile(8, 128, 4, 4, groups=2, lanes=2)
NARROW = Tile(32, 128, 4, 8)
GATHER = (
    Candidate(replace(BIG, wrap=True), 1.0),
    Candidate(replace(WIDE, wrap=True), 0.97),
    Candidate(PAIR, 0.85),
    Candidate(MID, 0.75),
    Candidate(NARROW, 0.7),
    Candidate(ROWS, 0.55),
    Candidate(THIN, 0.3),
)
WEIGH = (
    Candidate(replace(BIG, wrap=True), 0.67),
    Candidate(replace(WIDE, wrap=True), 0.52),
    Candidate(TALL, 0.52),
    Candidate(MID, 0.47),
    Candidate(LOW, 0.33),
    Candidate(THIN, 0.13),
)


def cost(x: Candidate, m: int, n: int, k: int, matrices: int, split: int, fill: float = 2.0) -> float:
    """Products that the busiest multiprocessor does, weighed by how well it does them. `fill`: turns that a tile takes to start."""
    t = x.tile
    groups = -(-m // t.bm) * -(-n // t.bn) * matrices * split
    depth = (-(-k // (t.span * split)) + fill) * t.span
    own = _rounds(-(-groups // UNITS), t.size / 32) * t.bm * t.bn * depth / x.rate
    return own + (SLICE + m * n * matrices * split / UNITS * 40 if split > 1 else 0.0)


def _rounds(each: int, warps: float) -> float:
    """Time that a multiprocessor takes for its tiles, in times of one among as many as fit at once.

    Fewer hide less: half as many warps do nine tenths of the work. Large tiles that end together are also replaced together, on the
    same multiprocessors: part of a last round then may take as long as a whole one.
    """
    at_once = max(1, int(FULL / warps))
    rest = each % at_once
    if not rest:
        return each
    last = rest / min(1.0, math.pow(rest * warps / FULL, 0.14))
    return each - rest + last + ((at_once - last) / 4 if each > at_once and warps > FULL / 4 else 0.0)


def slices(tiles: int, most: int) -> list[int]:
    """Numbers of slices worth looking at: those that come closest to whole rounds of tiles from below."""
    return sorted({min(most, max(1, UNITS * i // tiles)) for i in range(1, 13)} | {1})


def _best(
    candidates: tuple[Candidate, ...], m: int, n: int, k: int, matrices: int, most: int, usable: Callable[[Tile], bool]
) -> tuple[Candidate, int]:
    """`most`: slices."""
    options = []
    for x in candidates:
        t = x.tile
        if usable(t):
            few = slices(-(-m // t.bm) * -(-n // t.bn) * matrices, max(1, min(most, k // (4 * t.span))))
            options += [(cost(x, m, n, k, matrices, s), i, x, s) for i, s in enumerate(few)]
    _, _, x, split = min(options, key=lambda o: o[:2])
    return x, split


def choose_gather(
    rows: int, pixels: int, depth: int, taps: int, groups: int, parts: int, usable: Callable[[Tile], bool]
) -> tuple[Tile, int, bool]:
    """Tile, slices of K, and whether weights are packed first. parts: phases, launched beside each other and never cut."""
    x, split = _best(GATHER, rows, pixels, depth * taps, groups * parts, 16 if parts == 1 else 1, usable)
    return x.tile, split, _packs(rows, pixels, depth, taps, groups * parts)


def _packs(rows: int, pixels: int, depth: int, taps: int, matrices: int) -> bool:
    """Whether weights are used often enough, and lie so far apart or take so much room, that a copy of them pays."""
    often = rows >= 32 and rows * pixels * depth * taps * matrices >= PACKING
    return often and (taps > 1 or rows * depth * matrices >= WEIGHTS or rows >= 4 * depth)


def choose_weigh(m: int, columns: int, pixels: int, groups: int, usable: Callable[[Tile], bool]) -> tuple[Tile, int]:
    """Tile and slices of the pixels."""
    x, split = _best(WEIGH, m, columns, pixels, groups, 512, usable)
    return x.tile, split


def gather_seconds(rows: int, pixels: int, depth: int, taps: int, groups: int) -> float:
    """Estimated time of an output or an input gradient with its best tile."""
    x, split = _best(GATHER, rows, pixels, depth * taps, groups, 16, lambda _: True)
    launches = 2 if _packs(rows, pixels, depth, taps, groups) else 1
    return cost(x, rows, pixels, depth * taps, groups, split) / RATE + launches * LAUNCH


def weigh_seconds(m: int, columns: int, pixels: int, groups: int) -> float:
    """The same of a weight gradient."""
    x, split = _best(WEIGH, m, columns, pixels, groups, 512, lambda _: True)
    return cost(x, m, columns, pixels, groups, split) / RATE + LAUNCH
