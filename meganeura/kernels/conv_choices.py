"""Which tile makes which convolution on a GPU, and in how many slices of K: by an estimate of the time that all tiles take.

The estimate counts what the busiest of `UNITS` multiprocessors does; `rate` is how near each tile comes to the device's peak,
measured on an NVIDIA H200 (benchmarks/conv.py). Other GPUs take the same tiles within their limits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from .choices import BIG, LOW, MID, PAIR, ROWS, TALL, WIDE, Tile

UNITS = 132  # multiprocessors of the device that the figures come from
FULL = 8  # warps that keep a multiprocessor busy
SLICE = 3e5  # cost of a second launch, in products of a multiprocessor
PACKING = 2e9  # products of a convolution from which its weights are packed first


@dataclass(frozen=True, slots=True)
class Candidate:
    tile: Tile
    rate: float


THIN = Tile(8, 128, 4, 4, groups=2, lanes=2)
NARROW = Tile(32, 128, 4, 8)
GATHER = (
    Candidate(replace(BIG, wrap=True), 1.0),
    Candidate(replace(WIDE, wrap=True), 1.0),
    Candidate(PAIR, 0.9),
    Candidate(MID, 0.75),
    Candidate(NARROW, 0.7),
    Candidate(ROWS, 0.55),
    Candidate(THIN, 0.3),
)
WEIGH = (
    Candidate(replace(BIG, wrap=True), 1.0),
    Candidate(replace(WIDE, wrap=True), 0.95),
    Candidate(TALL, 0.95),
    Candidate(MID, 0.7),
    Candidate(LOW, 0.45),
    Candidate(THIN, 0.2),
)


def cost(x: Candidate, m: int, n: int, k: int, matrices: int, split: int) -> float:
    """Products that the busiest multiprocessor does, weighed by how well it does them."""
    t = x.tile
    groups = -(-m // t.bm) * -(-n // t.bn) * matrices * split
    each = -(-groups // UNITS)
    busy = min(1.0, each * t.size / 32 / FULL)
    depth = -(-k // (t.span * split)) * t.span + 2 * t.span
    return each * t.bm * t.bn * depth / (x.rate * busy) + (SLICE + m * n * matrices * split / UNITS * 40 if split > 1 else 0.0)


SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


def _best(
    candidates: tuple[Candidate, ...], m: int, n: int, k: int, matrices: int, splits: tuple[int, ...], usable: Callable[[Tile], bool]
) -> tuple[Tile, int]:
    options = [(x, s) for x in candidates if usable(x.tile) for s in splits if s == 1 or k // s >= 4 * x.tile.span]
    x, split = min(options, key=lambda o: cost(o[0], m, n, k, matrices, o[1]))
    return x.tile, split


def choose_gather(
    rows: int, pixels: int, depth: int, taps: int, groups: int, parts: int, usable: Callable[[Tile], bool]
) -> tuple[Tile, int, bool]:
    """Tile, slices of K, and whether weights are packed first. parts: phases, launched beside each other and never cut."""
    splits = SPLITS[:8] if parts == 1 else (1,)
    tile, split = _best(GATHER, rows, pixels, depth * taps, groups * parts, splits, usable)
    return tile, split, rows * pixels * depth * taps * groups * parts >= PACKING and rows >= 32


def choose_weigh(m: int, columns: int, pixels: int, groups: int, usable: Callable[[Tile], bool]) -> tuple[Tile, int]:
    """Tile and slices of the pixels."""
    return _best(WEIGH, m, columns, pixels, groups, SPLITS, usable)
