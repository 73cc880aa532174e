"""WGSL of the sorting kernels: ranking, counting digits, turning counts into places, putting keys there.

In: bits a digit, and whether an invocation or a workgroup owns a run of keys. Out: sources. Counts lie as [row, digit, run];
behind them, for each tile of TILE counts, how many there are before the tile.
"""

from __future__ import annotations

import re

from . import template as T
from .kernel import Profile

TILE = 1024  # counts that are scanned together
TEAM = 256  # invocations that share a run on a GPU
LARGE = 8  # keys of a run for each of them, where memory allows
_FIELDS = ("count", "run", "runs", "shift", "rows", "bits")


def main(size: int, subgroups: bool = False) -> str:
    """Opens `main`: `number`, the workgroup's, and `thread`, the invocation's in it."""
    more = ", @builtin(subgroup_invocation_id) lane: u32, @builtin(subgroup_size) size: u32" if subgroups else ""
    return (
        f"@compute @workgroup_size({size})\n"
        f"fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32{more}) {{\n"
        f"let number = group.y * {T.FOLD}u + group.x;\n"
    )


EACH = "let id = number * 64u + thread;\n"
# `row`, `run` and the keys [start, end) of a run, which are numbered over all rows.
_SPAN = (
    "let row = id / p.runs;\nlet run = id - row * p.runs;\n"
    "let start = row * p.count + run * p.run;\nlet end = min((row + 1u) * p.count, start + p.run);\n"
)


def _base(digit: int, d: str) -> str:
    """How many keys come before the run's keys of digit d."""
    return f"counts[c] + counts[((p.rows * p.runs) << {digit}u) + c / {TILE}u]".replace("c]", f"{d}]").replace("c /", f"{d} /")


def rank() -> str:
    """Each key's place in its row: how many are less, or equal and earlier."""
    out = T.storage(0, "keys", "vec4<u32>", "read") + T.storage(1, "sorted", "u32", "read_write")
    out += T.storage(2, "positions", "u32", "read_write") + T.uniform(3, ("total", "count", "pitch"))
    return (
        out
        + main(64)
        + EACH
        + (
            "if (id >= p.total) { return; }\nlet row = id / p.count;\nlet own = id - row * p.count;\nlet at = row * (p.pitch / 4u);\n"
            "let mine = keys[at + own / 4u][own & 3u];\nvar place = 0u;\nvar i = 0u;\n"
            "loop {\n  let k = keys[at + i / 4u];\n"
            "  let n = vec4<u32>(i, i + 1u, i + 2u, i + 3u);\n"
            "  let less = vec4<u32>(k < vec4<u32>(mine)) * vec4<u32>(n < vec4<u32>(p.count));\n"
            "  let tied = vec4<u32>(k == vec4<u32>(mine)) * vec4<u32>(n < vec4<u32>(own));\n"
            "  let sum = less + tied;\n  place = place + sum.x + sum.y + sum.z + sum.w;\n"
            "  continuing { i = i + 4u; break if i >= p.count; }\n}\n"
            "sorted[row * p.count + place] = mine;\npositions[row * p.count + place] = own;\n}\n"
        )
    )


# --- an invocation owns a run ---


def count(digit: int) -> str:
    """How often each digit occurs in each run."""
    radix = 1 << digit
    out = T.storage(0, "keys", "u32", "read") + T.storage(1, "counts", "u32", "read_write") + T.uniform(2, _FIELDS)
    return (
        out
        + main(64)
        + EACH
        + "if (id >= p.rows * p.runs) { return; }\n"
        + _SPAN
        + (
            f"var seen: array<u32, {radix}>;\nfor (var d = 0u; d < {radix}u; d = d + 1u) {{ seen[d] = 0u; }}\n"
            f"for (var i = start; i < end; i = i + 1u) {{ let d = (keys[i] >> p.shift) & {radix - 1}u; seen[d] = seen[d] + 1u; }}\n"
            f"for (var d = 0u; d < {radix}u; d = d + 1u) {{ counts[((row << {digit}u) + d) * p.runs + run] = seen[d]; }}\n}}\n"
        )
    )


def put(first: bool, digit: int) -> str:
    """Each run's keys, in order, to the places of their digits."""
    radix = 1 << digit
    out = T.storage(0, "keys", "u32", "read") + T.storage(1, "counts", "u32", "read")
    out += T.storage(2, "sorted", "u32", "read_write") + T.storage(3, "positions", "u32", "read_write")
    if not first:
        out += T.storage(4, "old", "u32", "read")
    return (
        out
        + T.uniform(4 if first else 5, _FIELDS)
        + main(64)
        + EACH
        + "if (id >= p.rows * p.runs) { return; }\n"
        + _SPAN
        + (
            f"var place: array<u32, {radix}>;\nfor (var d = 0u; d < {radix}u; d = d + 1u) {{\n"
            f"  let c = ((row << {digit}u) + d) * p.runs + run;\n  place[d] = {_base(digit, 'c')};\n}}\n"
            "for (var i = start; i < end; i = i + 1u) {\n"
            f"  let k = keys[i];\n  let d = (k >> p.shift) & {radix - 1}u;\n  let at = place[d];\n  place[d] = at + 1u;\n"
            f"  sorted[at] = k;\n  positions[at] = {'i - row * p.count' if first else 'old[i]'};\n}}\n}}\n"
        )
    )


def tiles_alone() -> str:
    """Exclusive sums within each tile of counts, an invocation a tile; the tile's total goes behind the counts."""
    out = T.storage(0, "counts", "u32", "read_write") + T.uniform(1, ("count", "tiles")) + main(64) + EACH
    return out + (
        f"if (id >= p.tiles) {{ return; }}\nlet end = min(p.count, (id + 1u) * {TILE}u);\nvar place = 0u;\n"
        f"for (var i = id * {TILE}u; i < end; i = i + 1u) {{ let c = counts[i]; counts[i] = place; place = place + c; }}\n"
        "counts[p.count + id] = place;\n}\n"
    )


# --- a workgroup owns a run ---


def by_subgroups(profile: Profile) -> bool:
    """Whether sums over a workgroup go through its subgroups."""
    return profile.subgroups and profile.subgroup_size >= 4


def prefix(size: int, type_: str, profile: Profile) -> str:
    """Sums of `sum` over a workgroup: `front`, over the invocations before this one, and `all`. Uses `sums`, as many as invocations."""
    if not by_subgroups(profile):
        return (
            f"sums[thread] = sum;\nworkgroupBarrier();\nfor (var h = 1u; h < {size}u; h = h << 1u) {{\n"
            f"  var other = {type_}();\n  if (thread >= h) {{ other = sums[thread - h]; }}\n"
            "  workgroupBarrier();\n  sums[thread] = sums[thread] + other;\n  workgroupBarrier();\n}\n"
            f"let front = sums[thread] - sum;\nlet all = sums[{size - 1}];\nworkgroupBarrier();\n"
        )
    return (
        f"let upto = subgroupInclusiveAdd(sum);\nlet most = min(size, {size}u);\nlet team = thread / size;\n"
        "if (lane == most - 1u) { sums[team] = upto; }\nworkgroupBarrier();\n"
        f"var front = upto - sum;\nvar all = {type_}();\n"
        f"for (var i = 0u; i < {size}u / most; i = i + 1u) {{\n  let s = sums[i];\n"
        f"  front = front + select({type_}(), s, i < team);\n  all = all + s;\n}}\nworkgroupBarrier();\n"
    )


def front_matter(profile: Profile) -> str:
    """The header of a kernel that sums over workgroups."""
    return T.header(profile, (), by_subgroups(profile))


def tiles(profile: Profile) -> str:
    """Exclusive sums within each tile of counts; the tile's total goes behind the counts."""
    out = front_matter(profile) + T.storage(0, "counts", "u32", "read_write") + T.uniform(1, ("count", "tiles"))
    out += "var<workgroup> sums: array<u32, 256>;\n" + main(256, by_subgroups(profile))
    out += f"if (number >= p.tiles) {{ return; }}\nlet at = number * {TILE}u + thread * 4u;\nvar c = vec4<u32>();\n"
    out += "".join(f"if (at + {i}u < p.count) {{ c.{T.LANES[i]} = counts[at + {i}u]; }}\n" for i in range(4))
    out += "let sum = c.x + c.y + c.z + c.w;\n" + prefix(256, "u32", profile)
    for i, before in enumerate(("", " + c.x", " + c.x + c.y", " + c.x + c.y + c.z")):
        out += f"if (at + {i}u < p.count) {{ counts[at + {i}u] = front{before}; }}\n"
    return out + "if (thread == 255u) { counts[p.count + number] = all; }\n}\n"


def totals(width: int, profile: Profile) -> str:
    """Exclusive sums of the tiles' totals, by one workgroup: each invocation a stretch of them."""
    out = front_matter(profile) + T.storage(0, "counts", "u32", "read_write") + T.uniform(1, ("count", "tiles"))
    return out + (
        f"var<workgroup> sums: array<u32, {width}>;\n"
        + main(width, by_subgroups(profile))
        + f"let each = (p.tiles + {width - 1}u) / {width}u;\n"
        "let start = p.count + min(p.tiles, thread * each);\nlet end = min(p.count + p.tiles, start + each);\n"
        "var sum = 0u;\nfor (var i = start; i < end; i = i + 1u) { sum = sum + counts[i]; }\n"
        + prefix(width, "u32", profile)
        + "var place = front;\n"
        "for (var i = start; i < end; i = i + 1u) { let c = counts[i]; counts[i] = place; place = place + c; }\n}\n"
    )


def run_of(profile: Profile) -> int:
    """Keys of a run: those a workgroup can turn around in its memory beside its sums."""
    return TEAM * (LARGE if profile.max_workgroup_memory >= 1024 * LARGE + 3072 else 4)


def count_team(digit: int) -> str:
    """How often each digit occurs in each run. The order of the counting does not matter."""
    radix = 1 << digit
    out = T.storage(0, "keys", "u32", "read") + T.storage(1, "counts", "u32", "read_write") + T.uniform(2, _FIELDS)
    return (
        out
        + f"var<workgroup> seen: array<atomic<u32>, {radix}>;\n"
        + main(TEAM)
        + "let id = number;\nif (id >= p.rows * p.runs) { return; }\n"
        + _SPAN
        + (
            f"if (thread < {radix}u) {{ atomicStore(&seen[thread], 0u); }}\nworkgroupBarrier();\n"
            f"for (var i = start + thread; i < end; i = i + {TEAM}u) {{ atomicAdd(&seen[(keys[i] >> p.shift) & {radix - 1}u], 1u); }}\n"
            f"workgroupBarrier();\nif (thread < {radix}u) {{\n"
            f"  counts[((row << {digit}u) + thread) * p.runs + run] = atomicLoad(&seen[thread]);\n}}\n}}\n"
        )
    )


def put_team(first: bool, digit: int, profile: Profile) -> str:
    """Each run's keys to the places of their digits. The workgroup sorts the run by the digit first: words of (digit, number
    in the run) move through its memory. Words beyond the keys have the largest digit, and stay last."""
    radix, run = 1 << digit, run_of(profile)
    out = front_matter(profile) + T.storage(0, "keys", "u32", "read") + T.storage(1, "counts", "u32", "read")
    out += T.storage(2, "sorted", "u32", "read_write") + T.storage(3, "positions", "u32", "read_write")
    if not first:
        out += T.storage(4, "old", "u32", "read")
    out += T.uniform(4 if first else 5, _FIELDS)
    out += f"var<workgroup> words: array<u32, {run}>;\nvar<workgroup> sums: array<vec2<u32>, {TEAM}>;\n"
    out += f"var<workgroup> firsts: array<u32, {radix}>;\n" + main(TEAM, by_subgroups(profile))
    out += "let id = number;\nif (id >= p.rows * p.runs) { return; }\n" + _SPAN
    out += f"for (var j = thread; j < {run}u; j = j + {TEAM}u) {{\n  var d = {radix - 1}u;\n"
    out += f"  if (start + j < end) {{ d = (keys[start + j] >> p.shift) & {radix - 1}u; }}\n  words[j] = (d * {run}u) | j;\n}}\n"
    out += _split(TEAM, run // TEAM, f"w >> (bit + {run.bit_length() - 1}u)", profile)
    out += f"for (var j = thread; j < {run}u; j = j + {TEAM}u) {{\n  let d = words[j] / {run}u;\n"
    out += (
        f"  if (j == 0u) {{ firsts[d] = 0u; }} else {{ if (words[j - 1u] / {run}u != d) {{ firsts[d] = j; }} }}\n}}\nworkgroupBarrier();\n"
    )
    out += (
        f"for (var j = thread; j < {run}u; j = j + {TEAM}u) {{\n  let d = words[j] / {run}u;\n  let i = start + (words[j] & {run - 1}u);\n"
    )
    out += f"  if (i < end) {{\n    let c = ((row << {digit}u) + d) * p.runs + run;\n    let at = {_base(digit, 'c')} + j - firsts[d];\n"
    out += f"    sorted[at] = keys[i];\n    positions[at] = {'i - row * p.count' if first else 'old[i]'};\n  }}\n}}\n}}\n"
    return out


def _split(team: int, each: int, digit: str, profile: Profile) -> str:
    """Sort `words` stably by two bits at a time of `digit` (an expression over a word w and `bit`), p.bits bits in all.

    An invocation has `each` neighbouring words. Four counts of 16 bits fill two words: values 0 and 1, values 2 and 3.
    """
    out = "for (var bit = 0u; bit < p.bits; bit = bit + 2u) {\nworkgroupBarrier();\nvar sum = vec2<u32>();\n"
    for i in range(each):
        code = re.sub(r"\bw\b", f"w{i}", digit)
        out += f"let w{i} = words[thread * {each}u + {i}u]; let v{i} = ({code}) & 3u; let n{i} = sum; "
        out += f"{{ let one = 1u << ((v{i} & 1u) * 16u); sum = sum + select(vec2<u32>(one, 0u), vec2<u32>(0u, one), v{i} > 1u); }}\n"
    out += prefix(team, "vec2<u32>", profile)
    out += "let from1 = all.x & 0xffffu;\nlet from2 = from1 + (all.x >> 16u);\nlet from3 = from2 + (all.y & 0xffffu);\n"
    for i in range(each):
        front = f"select(select(0u, from1, v{i} == 1u), select(from2, from3, v{i} == 3u), v{i} > 1u)"
        out += f"{{ let n = front + n{i}; let half = select(n.x, n.y, v{i} > 1u);\n"
        out += f"  words[{front} + ((half >> ((v{i} & 1u) * 16u)) & 0xffffu)] = w{i}; }}\n"
    return out + "}\nworkgroupBarrier();\n"


def longest_row(profile: Profile) -> int:
    """Keys of the longest row that a workgroup sorts in its memory, beside numbers and sums."""
    return TEAM * (8 if profile.max_workgroup_memory >= 20480 else 4)


def row_team(team: int, each: int, profile: Profile) -> str:
    """A row a workgroup, sorted in its memory: numbers move, keys stay."""
    size = team * each
    out = front_matter(profile) + T.storage(0, "keys", "u32", "read") + T.storage(1, "sorted", "u32", "read_write")
    out += T.storage(2, "positions", "u32", "read_write") + T.uniform(3, ("rows", "count", "bits"))
    out += f"var<workgroup> own: array<u32, {size}>;\nvar<workgroup> words: array<u32, {size}>;\n"
    out += f"var<workgroup> sums: array<vec2<u32>, {team}>;\n" + main(team, by_subgroups(profile))
    out += "if (number >= p.rows) { return; }\nlet at = number * p.count;\n"
    out += f"for (var j = thread; j < {size}u; j = j + {team}u) {{\n  var k = 0xffffffffu;\n"
    out += "  if (j < p.count) { k = keys[at + j]; }\n  own[j] = k;\n  words[j] = j;\n}\n"
    out += _split(team, each, "own[w] >> bit", profile)
    return out + (
        f"for (var j = thread; j < p.count; j = j + {team}u) {{\n  let i = words[j];\n"
        "  sorted[at + j] = own[i];\n  positions[at + j] = i;\n}\n}\n"
    )
