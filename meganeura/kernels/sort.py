"""A stable sort of rows of u32 keys that remembers positions: the launches, for kernels that need one.

Few keys are ranked by comparing all of a row; more are sorted digit by digit, least significant first: the digits of each
run of keys are counted, the counts of all rows, digits and runs turned into places, and each run's keys put there in order.
A run belongs to one invocation of a software device, or to a workgroup of a GPU (sort_wgsl.py), which sorts it by the digit
in its own memory first. Rows of equal length need nothing else: what comes before a row's keys are the rows before it.
No float and no order that depends on timing, so the result is the same on every device and every run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import sort_wgsl as W
from . import template as T
from .kernel import Kernel, Launch, Profile

RANKED = {"cpu": 128, "gpu": 256}  # keys of a row up to which comparing all of them is quicker
ALONE = 1024  # the same for a single row on a GPU, where one launch counts more than its work


@dataclass(frozen=True, slots=True)
class SortPlan:
    """What a sort of `rows` rows of `count` keys below 2**bits needs: sizes in bytes of its temporaries, besides the keys' own.

    Temporaries, in order: second keys, positions, second positions, counts. Each is there even if it is not used.
    """

    count: int
    bits: int
    ranked: bool
    run: int  # keys of a run
    rows: int = 1
    digit: int = 4  # bits a pass
    team: bool = False  # a workgroup a run, or a row
    whole: bool = False  # a workgroup sorts a row at once

    @property
    def runs(self) -> int:
        """Runs a row."""
        return -(-self.count // self.run)

    @property
    def counts(self) -> int:
        return (self.rows * self.runs) << self.digit

    @property
    def tiles(self) -> int:
        """Tiles of counts; how many counts there are before each tile is kept behind the counts."""
        return -(-self.counts // W.TILE)

    @property
    def passes(self) -> int:
        return 1 if self.ranked or self.whole else max(1, -(-self.bits // self.digit))

    @property
    def carries(self) -> bool:
        """Whether words can be moved with the keys in place of positions."""
        return not self.ranked and not self.whole

    @property
    def pitch(self) -> int:
        """Keys from row to row: rows to be ranked are read by fours."""
        return -(-self.count // 4) * 4 if self.ranked else self.count

    def temps(self) -> tuple[int, int, int, int]:
        """Bytes of the temporaries."""
        words = -(-self.rows * self.pitch // 4) * 16
        return (words, words, 16 if self.passes == 1 else words, 16 if self.ranked or self.whole else (self.counts + self.tiles) * 4)


def plan(count: int, bits: int, profile: Profile, rows: int = 1) -> SortPlan:
    """How to sort rows of `count` keys of which only the low `bits` bits are set."""
    ranked = count <= (ALONE if profile.family == "gpu" and rows * count <= 8 * ALONE else RANKED[profile.family])
    if profile.family == "cpu":
        return SortPlan(count, bits, ranked, max(1024, -(-count // 4096)), rows, 8 if bits > 4 else 4)
    whole = not ranked and count <= W.longest_row(profile)
    return SortPlan(count, bits, ranked, W.run_of(profile), rows, 8 if bits > 4 else 4, True, whole)


def launches(
    sort: SortPlan, keys: int, temps: tuple[int, int, int, int], profile: Profile, payload: int | None = None
) -> tuple[list[Launch], int, int]:
    """Launches that sort the keys in binding `keys`, and the bindings of the sorted keys and their positions in their rows.
    With `payload`, a binding of a word a key, these words are moved in place of positions (by SortPlan.carries only).

    `temps`: binding numbers of the temporaries that SortPlan.temps sizes. Keys are `SortPlan.pitch` apart from row to row,
    sorted keys and positions as many as there are. The keys' buffer is overwritten.
    """
    other, positions, others, counts = temps
    if sort.ranked:
        return [_ranked(sort, (keys, other, positions))], other, positions
    if sort.whole:
        return [_whole(sort, (keys, other, positions))], other, positions
    out = []
    source, target = (keys, others), (other, positions)
    for i in range(sort.passes):
        bits = min(sort.digit, sort.bits - i * sort.digit)
        params = T.pack([sort.count, sort.run, sort.runs, i * sort.digit, sort.rows, bits])
        groups = T.grid(sort.rows * sort.runs if sort.team else -(-sort.rows * sort.runs // 64))
        out.append(_counted(sort, (source[0], counts), groups, params))
        out += _places(sort, counts, profile)
        if i == 0 and payload is not None:
            out.append(_scattered(sort, False, ((source[0], payload), target, counts), groups, params))
        else:
            out.append(_scattered(sort, i == 0, (source, target, counts), groups, params))
        source, target = target, source
    return out, source[0], source[1]


def _kernel(name: tuple[object, ...], access: tuple[str, ...], source: Callable[[Profile], str]) -> Kernel:
    return Kernel(("sort", *name), source, access, f"sort {name[0]}", trusted=True)


def _ranked(sort: SortPlan, bindings: tuple[int, int, int]) -> Launch:
    kernel = _kernel(("rank",), ("read", "read_write", "read_write"), lambda profile: W.rank())
    return Launch(kernel, bindings, T.grid(-(-sort.rows * sort.count // 64)), T.pack([sort.rows * sort.count, sort.count, sort.pitch]))


def _whole(sort: SortPlan, bindings: tuple[int, int, int]) -> Launch:
    each = 4 if sort.count <= 4 * W.TEAM else 8
    team = max(32, 1 << (-(-sort.count // each) - 1).bit_length())
    kernel = _kernel(("row", team, each), ("read", "read_write", "read_write"), lambda profile: W.row_team(team, each, profile))
    return Launch(kernel, bindings, T.grid(sort.rows), T.pack([sort.rows, sort.count, sort.bits]))


def _counted(sort: SortPlan, bindings: tuple[int, int], grid: tuple[int, int, int], params: bytes) -> Launch:
    digit, team = sort.digit, sort.team
    kernel = _kernel(("count", digit, team), ("read", "read_write"), lambda profile: W.count_team(digit) if team else W.count(digit))
    return Launch(kernel, bindings, grid, params)


def _places(sort: SortPlan, counts: int, profile: Profile) -> list[Launch]:
    """Counts to places: within tiles, then the tiles' totals, which the next launch adds."""
    alone = profile.family == "cpu"
    width = 64 if alone else 256
    tiles = _kernel(("tiles", alone), ("read_write",), lambda profile: W.tiles_alone() if alone else W.tiles(profile))
    totals = _kernel(("totals", width), ("read_write",), lambda profile: W.totals(width, profile))
    params = T.pack([sort.counts, sort.tiles])
    grid = T.grid(-(-sort.tiles // 64) if alone else sort.tiles)
    return [Launch(tiles, (counts,), grid, params), Launch(totals, (counts,), (1, 1, 1), params)]


def _scattered(
    sort: SortPlan, first: bool, bindings: tuple[tuple[int, int], tuple[int, int], int], grid: tuple[int, int, int], params: bytes
) -> Launch:
    """The first pass makes up the positions, the others read them."""
    source, target, counts = bindings
    numbers = (source[0], counts, *target) if first else (source[0], counts, *target, source[1])
    access = ("read", "read", "read_write", "read_write", "read")[: len(numbers)]
    digit, team = sort.digit, sort.team
    kernel = _kernel(
        ("scatter", first, digit, team), access, lambda profile: W.put_team(first, digit, profile) if team else W.put(first, digit)
    )
    return Launch(kernel, numbers, grid, params)
