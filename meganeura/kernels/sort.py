"""A stable sort of u32 keys that remembers positions: the launches, for kernels that need one.

Few keys are ranked by comparing all of them; more are sorted digit by digit (least significant first): every invocation
counts the digits of its own run of keys, one workgroup turns the counts into places, and every invocation puts its keys
there in order. No atomics, so the result is the same on every device and every run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import template as T
from .kernel import Kernel, Launch, Profile

DIGIT = 4  # bits a pass
RADIX = 1 << DIGIT
TILE = 1024  # counts a workgroup of a GPU turns into places
RANKED = {"cpu": 256, "gpu": 1024}  # keys up to which comparing all of them is quicker


@dataclass(frozen=True, slots=True)
class SortPlan:
    """What a sort of `count` keys below 2**bits needs: sizes in bytes of its temporaries, besides the keys' own.

    Temporaries, in order: second keys, positions, second positions, counts. Each is there even if it is not used.
    """

    count: int
    bits: int
    ranked: bool
    run: int  # keys an invocation takes

    @property
    def runs(self) -> int:
        return -(-self.count // self.run)

    @property
    def counts(self) -> int:
        return RADIX * self.runs

    @property
    def tiles(self) -> int:
        """Tiles of counts; how many counts there are before each tile is kept behind the counts."""
        return -(-self.counts // TILE)

    @property
    def passes(self) -> int:
        return 1 if self.ranked else max(1, -(-self.bits // DIGIT))

    def temps(self) -> tuple[int, int, int, int]:
        """Bytes of the temporaries."""
        words = -(-self.count // 4) * 16
        return (words, words, 16 if self.passes == 1 else words, 16 if self.ranked else (self.counts + self.tiles) * 4)


def plan(count: int, bits: int, profile: Profile) -> SortPlan:
    """How to sort `count` keys of which only the low `bits` bits are set."""
    run = 64 if profile.family == "cpu" else max(16, min(256, count // 8192))
    return SortPlan(count, bits, count <= RANKED[profile.family], run)


def launches(sort: SortPlan, keys: int, temps: tuple[int, int, int, int], profile: Profile) -> tuple[list[Launch], int, int]:
    """Launches that sort the keys in binding `keys`, and the bindings of the sorted keys and their positions.

    `temps`: binding numbers of the temporaries that SortPlan.temps sizes. The keys' buffer must be filled up with
    0xffffffff to a multiple of four keys, and is overwritten.
    """
    other, positions, others, counts = temps
    if sort.ranked:
        return [_ranked(sort, (keys, other, positions))], other, positions
    out = []
    source, target = (keys, others), (other, positions)
    for i in range(sort.passes):
        params = T.pack([sort.count, sort.run, sort.runs, i * DIGIT])
        groups = T.grid(-(-sort.runs // 64))
        out.append(Launch(_kernel("count", ("read", "read_write"), _count), (source[0], counts), groups, params))
        out += _scan(sort, counts, profile)
        out.append(_scatter(i == 0, (source, target, counts), groups, params))
        source, target = target, source
    return out, source[0], source[1]


def _kernel(name: str, access: tuple[str, ...], source: Callable[[Profile], str]) -> Kernel:
    return Kernel(("sort", name), source, access, f"sort {name}", trusted=True)


def _ranked(sort: SortPlan, bindings: tuple[int, int, int]) -> Launch:
    kernel = _kernel("rank", ("read", "read_write", "read_write"), _rank)
    return Launch(kernel, bindings, T.grid(-(-sort.count // 64)), T.pack([sort.count]))


def _scan(sort: SortPlan, counts: int, profile: Profile) -> list[Launch]:
    """Counts to places: within tiles, then the tiles' totals, which `_put` adds. Software devices do it in one workgroup."""
    params = T.pack([sort.counts])
    if profile.family == "cpu":
        kernel = Kernel(("sort", "scan"), lambda profile: _places(64), ("read_write",), "sort scan", trusted=True)
        return [Launch(kernel, (counts,), (1, 1, 1), params)]
    tiles = Kernel(("sort", "tiles"), lambda profile: _tiles(), ("read_write",), "sort tiles", trusted=True)
    totals = Kernel(("sort", "totals"), lambda profile: _totals(), ("read_write",), "sort totals", trusted=True)
    return [Launch(tiles, (counts,), T.grid(sort.tiles), params), Launch(totals, (counts,), (1, 1, 1), T.pack([sort.counts, sort.tiles]))]


def _scatter(first: bool, bindings: tuple[tuple[int, int], tuple[int, int], int], grid: tuple[int, int, int], params: bytes) -> Launch:
    """The first pass makes up the positions, the others read them."""
    source, target, counts = bindings
    numbers = (source[0], counts, *target) if first else (source[0], counts, *target, source[1])
    access = ("read", "read", "read_write", "read_write", "read")[: len(numbers)]
    kernel = Kernel(("sort", "scatter", first), lambda profile: _put(first), access, "sort scatter", trusted=True)
    return Launch(kernel, numbers, grid, params)


_FIELDS = ("count", "run", "runs", "shift")
_HEAD = (
    "@compute @workgroup_size(64)\nfn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {\n"
    f"let id = (group.y * {T.FOLD}u + group.x) * 64u + thread;\n"
)
_RUN = _HEAD + "if (id >= p.runs) { return; }\nlet start = id * p.run;\nlet end = min(p.count, start + p.run);\n"


def _rank(profile: Profile) -> str:
    """Each key's place: how many are less, or equal and earlier. Filling keys count for none."""
    out = T.storage(0, "keys", "vec4<u32>", "read") + T.storage(1, "sorted", "u32", "read_write")
    out += T.storage(2, "positions", "u32", "read_write") + T.uniform(3, ("count",))
    return (
        out
        + _HEAD
        + (
            "if (id >= p.count) { return; }\nlet mine = keys[id / 4u][id & 3u];\nvar place = 0u;\nvar i = 0u;\n"
            "loop {\n  let k = keys[i / 4u];\n"
            "  let at = vec4<u32>(i, i + 1u, i + 2u, i + 3u);\n"
            "  let less = vec4<u32>(k < vec4<u32>(mine));\n"
            "  let tied = vec4<u32>(k == vec4<u32>(mine)) * vec4<u32>(at < vec4<u32>(id));\n"
            "  let sum = less + tied;\n  place = place + sum.x + sum.y + sum.z + sum.w;\n"
            "  continuing { i = i + 4u; break if i >= p.count; }\n}\nsorted[place] = mine;\npositions[place] = id;\n}\n"
        )
    )


def _count(profile: Profile) -> str:
    """How often each digit occurs in each run."""
    out = T.storage(0, "keys", "u32", "read") + T.storage(1, "counts", "u32", "read_write") + T.uniform(2, _FIELDS)
    return (
        out
        + _RUN
        + (
            f"var seen: array<u32, {RADIX}>;\nfor (var d = 0u; d < {RADIX}u; d = d + 1u) {{ seen[d] = 0u; }}\n"
            f"for (var i = start; i < end; i = i + 1u) {{ let d = (keys[i] >> p.shift) & {RADIX - 1}u; seen[d] = seen[d] + 1u; }}\n"
            f"for (var d = 0u; d < {RADIX}u; d = d + 1u) {{ counts[d * p.runs + id] = seen[d]; }}\n}}\n"
        )
    )


def _places(width: int) -> str:
    """Exclusive prefix sums of the counts, by one workgroup."""
    out = T.storage(0, "counts", "u32", "read_write") + T.uniform(1, ("count",)) + f"var<workgroup> sums: array<u32, {width}>;\n"
    return out + (
        f"@compute @workgroup_size({width})\nfn main(@builtin(local_invocation_index) thread: u32) {{\n"
        f"let each = (p.count + {width - 1}u) / {width}u;\n"
        "let start = min(p.count, thread * each);\nlet end = min(p.count, start + each);\n"
        "var sum = 0u;\nfor (var i = start; i < end; i = i + 1u) { sum = sum + counts[i]; }\nsums[thread] = sum;\nworkgroupBarrier();\n"
        "var place = 0u;\nfor (var t = 0u; t < thread; t = t + 1u) { place = place + sums[t]; }\n"
        "for (var i = start; i < end; i = i + 1u) { let c = counts[i]; counts[i] = place; place = place + c; }\n"
        f"if (thread == 0u) {{ for (var i = 0u; i * {TILE}u < p.count; i = i + 1u) {{ counts[p.count + i] = 0u; }} }}\n}}\n"
    )


_PREFIX = (
    "sums[thread] = sum;\nworkgroupBarrier();\n"
    "for (var h = 1u; h < 256u; h = h << 1u) {\n  var other = 0u;\n  if (thread >= h) { other = sums[thread - h]; }\n"
    "  workgroupBarrier();\n  sums[thread] = sums[thread] + other;\n  workgroupBarrier();\n}\n"
)


def _tiles() -> str:
    """Exclusive prefix sums within each tile; the tile's total goes behind the counts."""
    out = T.storage(0, "counts", "u32", "read_write") + T.uniform(1, ("count",)) + "var<workgroup> sums: array<u32, 256>;\n"
    out += (
        "@compute @workgroup_size(256)\nfn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {\n"
    )
    out += f"let tile = group.y * {T.FOLD}u + group.x;\nif (tile * {TILE}u >= p.count) {{ return; }}\n"
    out += f"let at = tile * {TILE}u + thread * 4u;\nvar c = vec4<u32>();\n"
    out += "".join(f"if (at + {i}u < p.count) {{ c.{T.LANES[i]} = counts[at + {i}u]; }}\n" for i in range(4))
    out += "let sum = c.x + c.y + c.z + c.w;\n" + _PREFIX + "let place = sums[thread] - sum;\n"
    for i, before in enumerate(("", " + c.x", " + c.x + c.y", " + c.x + c.y + c.z")):
        out += f"if (at + {i}u < p.count) {{ counts[at + {i}u] = place{before}; }}\n"
    return out + "if (thread == 255u) { counts[p.count + tile] = sums[255]; }\n}\n"


def _totals() -> str:
    """Exclusive prefix sums of the tiles' totals, by one workgroup, 256 at a time."""
    out = T.storage(0, "counts", "u32", "read_write") + T.uniform(1, ("count", "tiles")) + "var<workgroup> sums: array<u32, 256>;\n"
    return out + (
        "@compute @workgroup_size(256)\nfn main(@builtin(local_invocation_index) thread: u32) {\nvar before = 0u;\n"
        "for (var start = 0u; start < p.tiles; start = start + 256u) {\n  let i = start + thread;\n  var sum = 0u;\n"
        "  if (i < p.tiles) { sum = counts[p.count + i]; }\n" + _PREFIX + "  let all = sums[255];\n"
        "  if (i < p.tiles) { counts[p.count + i] = before + sums[thread] - sum; }\n  before = before + all;\n  workgroupBarrier();\n}\n}\n"
    )


def _put(first: bool) -> str:
    """Each run's keys, in order, to the places of their digits."""
    out = T.storage(0, "keys", "u32", "read") + T.storage(1, "counts", "u32", "read")
    out += T.storage(2, "sorted", "u32", "read_write") + T.storage(3, "positions", "u32", "read_write")
    if not first:
        out += T.storage(4, "old", "u32", "read")
    return (
        out
        + T.uniform(4 if first else 5, _FIELDS)
        + _RUN
        + (
            f"var place: array<u32, {RADIX}>;\nfor (var d = 0u; d < {RADIX}u; d = d + 1u) {{\n  let c = d * p.runs + id;\n"
            f"  place[d] = counts[c] + counts[{RADIX}u * p.runs + c / {TILE}u];\n}}\n"
            "for (var i = start; i < end; i = i + 1u) {\n"
            f"  let k = keys[i];\n  let d = (k >> p.shift) & {RADIX - 1}u;\n  let at = place[d];\n  place[d] = at + 1u;\n"
            f"  sorted[at] = k;\n  positions[at] = {'i' if first else 'old[i]'};\n}}\n}}\n"
        )
    )
