"""Which tile multiplies which sizes on a GPU: measured points as data, and the nearest one for everything between.

A tuner may add rows. Points were measured on an NVIDIA H200 through Vulkan (benchmarks/gemm.py); other GPUs take the same
tiles within their limits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log2


@dataclass(frozen=True, slots=True)
class Tile:
    """bm x bn results a workgroup, tm x tn an invocation, `groups` thread groups that each take a slice of K.

    turn_a, turn_b: how an operand contiguous along k enters workgroup memory: 's4' by element stores, 'quad' turned 4x4 in
    registers with an xor swizzle, 'row' as it lies (a only). swizzle: tile rows walked together, for the cache (0: none).
    wrap: storage arrays in structs. peel: the last tile's products stand after the loop (twice the text).
    walk: 'run' adds one running offset an operand to fixed places, 'ptr' moves every place.
    """

    bm: int
    bn: int
    tm: int
    tn: int
    groups: int = 1
    turn_a: str = "s4"
    turn_b: str = "quad"
    swizzle: int = 0
    wrap: bool = False
    peel: bool = True
    walk: str = "run"
    depth: int = 16  # of K, a group and turn
    lanes: int = 4  # of 32 invocations, along m

    @property
    def team(self) -> int:
        """Invocations that together make the tile once."""
        return (self.bm // self.tm) * (self.bn // self.tn)

    @property
    def size(self) -> int:
        """Invocations of a workgroup."""
        return self.team * self.groups

    @property
    def span(self) -> int:
        """K elements a turn of the loop."""
        return self.depth * self.groups


@dataclass(frozen=True, slots=True)
class Point:
    """A measured best: kinds ('N' or 'T' for each operand, as in BLAS), sizes, tile, slices of K, backend ('' for any).

    stores: 'v4' or 'v1' if it only holds for results stored as vec4s or as single elements. most: tiles up to which it holds (0: any).
    """

    kinds: str
    m: int
    n: int
    k: int
    tile: Tile
    split: int = 1
    backend: str = ""
    stores: str = ""
    most: int = 0


WHOLE_ROWS = 1 << 29  # products of a matrix from which operands with rows of odd length are copied into whole vec4s
USES = 256  # and how often their elements must be used

BIG = Tile(128, 128, 8, 8, wrap=True, turn_b="s4")
WIDE = Tile(64, 128, 8, 8)
TALL = Tile(128, 64, 8, 8)
PAIR = Tile(64, 128, 8, 8, groups=2)
PAIR8 = replace(PAIR, lanes=8)
LOW = Tile(64, 32, 8, 4, groups=2, turn_a="quad")
LOW4 = Tile(64, 32, 8, 4, groups=4, turn_a="quad")
ROWS = Tile(32, 64, 4, 8, groups=4, turn_a="row")
MID = Tile(64, 64, 4, 8)
SMALL = Tile(32, 32, 4, 4, groups=2)
SMALL4 = Tile(32, 32, 4, 4, groups=4, turn_a="row")
SQUARE = Tile(64, 64, 8, 8, groups=4)
SLIM = Tile(32, 48, 4, 4, groups=4, turn_b="s4", lanes=8)
TWO_ROWS = replace(ROWS, groups=2)
DEEP = Tile(32, 32, 4, 4, depth=32)
ONCE = 132  # multiprocessors of an H200: four groups a tile pay while every tile has one to itself

POINTS = (
    Point("NN TT", 4096, 4096, 4096, BIG),
    Point("NT", 4096, 4096, 4096, WIDE, backend="wgpu"),
    Point("NT", 4096, 4096, 4096, replace(WIDE, swizzle=8), backend="dawn"),
    Point("TN", 4096, 4096, 4096, replace(BIG, walk="ptr")),
    Point("NN NT TN TT", 2048, 2048, 2048, replace(BIG, walk="ptr")),
    Point("NN NT TN TT", 576, 1536, 4096, BIG, 4),
    Point("NN", 1024, 1024, 1024, PAIR8, stores="v4"),
    Point("NT", 1024, 1024, 1024, replace(PAIR8, walk="ptr"), backend="wgpu", stores="v4"),
    Point("NT", 1024, 1024, 1024, replace(PAIR, walk="ptr"), backend="dawn", stores="v4"),
    Point("NT", 1000, 1000, 1000, PAIR8, stores="v4"),
    Point("TN", 1024, 1024, 1024, replace(PAIR, wrap=True, walk="ptr"), backend="wgpu", stores="v4"),
    Point("TN", 1024, 1024, 1024, PAIR, backend="dawn", stores="v4"),
    Point("TT", 1024, 1024, 1024, PAIR, backend="wgpu", stores="v4"),
    Point("TT", 1024, 1024, 1024, PAIR8, backend="dawn", stores="v4"),
    Point("NN NT TT", 1024, 1024, 1024, replace(PAIR, walk="ptr"), stores="v1"),
    Point("TN", 1024, 1024, 1024, PAIR, stores="v1"),
    Point("TN", 128, 1536, 576, SLIM, most=ONCE),
    Point("NN TN", 128, 1536, 576, LOW4),
    Point("NT TT", 128, 1536, 576, ROWS),
    Point("NN NT TN TT", 128, 576, 1536, LOW, 7),
    Point("NN", 128, 49152, 576, replace(WIDE, walk="ptr"), backend="wgpu"),
    Point("NN", 128, 49152, 576, replace(WIDE, lanes=2), backend="dawn"),
    Point("TN", 128, 49152, 576, WIDE, backend="wgpu"),
    Point("TN", 128, 49152, 576, replace(WIDE, walk="ptr"), backend="dawn"),
    Point("NT TT", 128, 49152, 576, WIDE),
    Point("NN NT", 49152, 128, 576, replace(WIDE, walk="ptr")),
    Point("TN TT", 49152, 128, 576, replace(TALL, walk="ptr")),
    Point("NN NT TN TT", 768, 768, 768, replace(WIDE, walk="ptr"), 3, stores="v4"),
    Point("NN NT TN TT", 768, 768, 768, PAIR, 2, stores="v1"),
    Point("NN NT TN TT", 704, 704, 704, SQUARE, most=ONCE),
    Point("NN NT TN TT", 512, 2048, 512, PAIR),
    Point("NN NT", 50, 2048, 720, SMALL4, most=ONCE),
    Point("NN TN", 50, 2048, 720, SMALL),
    Point("NT TT", 50, 2048, 720, LOW, 4),
    Point("NN NT TN TT", 50, 720, 2048, ROWS, 6),
    Point("NN NT TN TT", 512, 512, 512, ROWS),
    Point("NN NT TN TT", 2048, 512, 128, MID),
    Point("NN NT TN TT", 256, 256, 256, SMALL),
    Point("NN NT", 256, 384, 384, SMALL4, most=ONCE),
    Point("TN", 384, 384, 256, SLIM, most=ONCE),
    Point("NT TT", 256, 1536, 384, TWO_ROWS),
    Point("NT TT", 256, 1152, 384, TWO_ROWS),
    Point("NN", 256, 1536, 384, LOW),
    Point("NN NT TN TT", 256, 384, 1536, LOW, 5),
    Point("TN", 1536, 384, 256, DEEP),
    Point("TN", 384, 1536, 256, DEEP),
    Point("TN", 128, 784, 128, SMALL),
    Point("NN NT TN TT", 128, 10, 128, SMALL),
    Point("NN NT TN TT", 128, 128, 784, SMALL, 8),
    Point("NN NT TN TT", 32, 128, 784, SMALL, 8),
    Point("NN NT TN TT", 784, 128, 32, SMALL),
    Point("NN NT TN TT", 32, 128, 64, SMALL),
)


def choose(
    kind: str, m: int, n: int, k: int, matrices: int, backend: str, usable: Callable[[Tile], bool], stores: str = "v4"
) -> tuple[Tile, int]:
    """Tile and slices of K of the usable point nearest to these sizes. Matrices of a batch count like further columns,
    results that a tile would make for nothing count twice."""

    def holds(x: Point) -> bool:
        few = not x.most or _tiles(x.tile, m, n) * matrices <= x.most
        return few and kind in x.kinds and x.backend in ("", backend) and x.stores in ("", stores) and usable(x.tile)

    def distance(x: Point) -> float:
        away = abs(log2(m / x.m)) + abs(log2(n * matrices / x.n)) + abs(log2(k / x.k)) / 2
        waste = log2(_tiles(x.tile, m, n) * x.tile.bm * x.tile.bn / (m * n))
        return away + 2 * waste

    x = min(filter(holds, POINTS), key=distance)
    if x.split == 1:
        return x.tile, 1
    groups = _tiles(x.tile, x.m, x.n) * x.split  # the measured number of workgroups, unless slices become too short for it
    slices = min(round(groups / (_tiles(x.tile, m, n) * matrices)), k // (2 * x.tile.span))
    return x.tile, max(1, slices)


def _tiles(tile: Tile, m: int, n: int) -> int:
    return -(-m // tile.bm) * -(-n // tile.bn)
