"""WGSL of selection: the k-th smallest key of each row found digit by digit, and the keys up to it taken out in order.

In: what a launch does. Out: sources. A row's state is (prefix of the k-th key, keys equal to it that count, k, smaller keys).
Rows lie one behind another and are read by fours; parts of `chunk` fours belong to an invocation or, on a GPU, to a workgroup.
"""

from __future__ import annotations

from . import template as T
from .kernel import Profile
from .sort_wgsl import EACH, TEAM, by_subgroups, front_matter, main, prefix

FIELDS = ("rows", "count", "parts", "chunk", "shift", "above", "k", "places", "rank_at", "rank_step")
_KEYS = T.storage(0, "keys", "vec4<u32>", "read")
# Fours [lo, hi) of the row from `at`. The first four of a row may begin with `skew` keys of the row before, the last one end with
# some of the next.
_SKEW = "let at = row * p.count / 4u;\nlet skew = (row * p.count) & 3u;\nlet lo = part * p.chunk;\n"
_PART = _SKEW + "let hi = min((skew + p.count + 3u) / 4u, lo + p.chunk);\n"
# Where the part's first key stands among all.
_FIRST = "let first = row * p.count + max(lo * 4u, skew) - skew;\n"
_ALONE = (
    "if (id >= p.rows * p.parts) { return; }\nlet part = id / p.rows;\nlet row = id - part * p.rows;\nlet slot = row * p.parts + part;\n"
)
_TEAM = "if (number >= p.rows * p.parts) { return; }\nlet row = number / p.parts;\nlet part = number - row * p.parts;\nlet slot = number;\n"
# What the parts before this one hold: `l` keys that are less than the k-th, `e` equal ones that count.
_AHEAD = (
    "let chosen = state[row];\nvar l = 0u;\nvar e = 0u;\n"
    "for (var q = 0u; q < part; q = q + 1u) { let c = counts[row * p.parts + q]; l = l + c.x; e = e + c.y; }\ne = min(e, chosen.y);\n"
)
_NUMBERS = "(vec4<u32>(i * 4u - skew) + vec4<u32>(0u, 1u, 2u, 3u))"  # of the keys of four i in the row; huge in front of it
_HELD = f"({_NUMBERS} < vec4<u32>(p.count))"


def begin(ranked: bool, team: bool) -> str:
    """Every row's first state; on a GPU also digits counted so far: none."""
    out = T.storage(0, "state", "vec4<u32>", "read_write")
    if team:
        out += T.storage(1, "digits", "u32", "read_write")
    if ranked:
        out += T.storage(1 + team, "ranks", "i32", "read")
    out += T.uniform(1 + team + ranked, FIELDS) + main(64) + EACH
    if team:
        out += "if (id < p.rows * 256u) { digits[id] = 0u; }\n"
    k = "u32(clamp(ranks[p.rank_at + id * p.rank_step], 0i, i32(p.count) - 1i)) + 1u" if ranked else "p.k"
    return out + f"if (id < p.rows) {{ let k = {k}; state[id] = vec4<u32>(0u, k, k, 0u); }}\n}}\n"


# --- an invocation a part: two bits a pass, by comparing ---


def _walk(whole: str, some: str) -> str:
    """Visit the part's fours: `whole` takes in the four k, `some` those of it that `held` (1 or 0) counts."""
    ends = f"let k = keys[at + i]; let held = vec4<u32>({_HELD}); {some}"
    return (
        "let full = min(hi, (skew + p.count) / 4u);\nvar i = lo;\n"
        f"if (lo == 0u && skew > 0u && lo < hi) {{ {ends} i = 1u; }}\n"
        f"if (i < full) {{ loop {{ let k = keys[at + i]; {whole} continuing {{ i = i + 1u; break if i >= full; }} }} }}\n"
        f"if (i < hi) {{ {ends} }}\n"
    )


def count_alone(limits: int) -> str:
    """How many keys of each part are less than prefix + j << shift, for j = 1..3; with 2 limits: less than, and equal to, the key."""
    out = _KEYS + T.storage(1, "state", "vec4<u32>", "read") + T.storage(2, "counts", "vec4<u32>", "read_write") + T.uniform(3, FIELDS)
    out += main(64) + EACH + _ALONE + _PART + "let key = state[row].x;\n"
    names = [f"c{j}" for j in range(limits)]
    if limits == 3:
        out += "".join(f"let t{j} = vec4<u32>(key + ({j + 1}u << p.shift));\nvar c{j} = vec4<u32>();\n" for j in range(3))
        take = "".join(f"c{j} = c{j} + vec4<u32>(k < t{j}){{0}}; " for j in range(3))
        result = f"vec4<u32>({', '.join(f'dot({n}, vec4<u32>(1u))' for n in names)}, 0u)"
    else:
        out += "let t = vec4<u32>(key);\nvar c0 = vec4<u32>();\nvar c1 = vec4<u32>();\n"
        take = "c0 = c0 + vec4<u32>(k < t){0}; c1 = c1 + vec4<u32>(k == t){0}; "
        result = f"vec4<u32>({', '.join(f'dot({n}, vec4<u32>(1u))' for n in names)}, 0u, 0u)"
    return out + _walk(take.format(""), take.format(" * held")) + f"counts[slot] = {result};\n}}\n"


def least_alone() -> str:
    """The smallest keys of each part, one a lane of the fours. The k-th smallest of them is no less than the row's k-th key."""
    out = _KEYS + T.storage(1, "least", "vec4<u32>", "read_write") + T.uniform(2, FIELDS) + main(64) + EACH + _ALONE + _PART
    return out + ("var m = vec4<u32>(0xffffffffu);\n" + _walk("m = min(m, k);", "m = min(m, k | (held - 1u));") + "least[slot] = m;\n}\n")


def sift_alone() -> str:
    """Each part's keys that are no larger than the row's limit, with their places, from the part's start; how many they are.

    An invocation looks for its next such key in an inner loop, since stores for some of a vector's invocations are slow. What
    the loops leave behind must not change if lavapipe goes on computing it for those that left (see segment.py).
    """
    out = _KEYS + T.storage(1, "state", "vec4<u32>", "read") + T.storage(2, "held", "u32", "read_write")
    out += T.storage(3, "sifted", "u32", "read_write") + T.storage(4, "where_", "u32", "read_write") + T.uniform(5, FIELDS)
    out += main(64) + EACH + _ALONE + _PART + "if (lo >= hi) { held[slot] = 0u; return; }\nlet t = vec4<u32>(state[row].x);\n"
    out += _FIRST + "var i = lo;\nvar to = first;\nloop {\n"
    out += "  loop {\n    let hit = i >= hi || any(keys[at + min(i, hi - 1u)] <= t);\n"
    out += "    i = select(i + 1u, i, hit);\n    if (hit) { break; }\n  }\n"
    out += "  if (i >= hi) { held[slot] = to - first; break; }\n  let k = keys[at + i];\n"
    for lane, c in enumerate(T.LANES):
        out += f"  {{ let n = i * 4u + {lane}u - skew; let good = k.{c} <= t.x && n < p.count;\n"
        out += f"    if (good) {{ sifted[to] = k.{c}; where_[to] = n; }}\n    to = to + u32(good); }}\n"
    return out + "  i = i + 1u;\n}\n}\n"


_SIFTED = _SKEW + _FIRST + "let end = first + held[slot];\nvar i = first;\n"


def count_sifted(limits: int) -> str:
    """As count_alone, over sifted keys."""
    out = T.storage(0, "sifted", "u32", "read") + T.storage(1, "state", "vec4<u32>", "read")
    out += T.storage(2, "counts", "vec4<u32>", "read_write") + T.storage(3, "held", "u32", "read") + T.uniform(4, FIELDS)
    out += main(64) + EACH + _ALONE + "let key = state[row].x;\nvar c = vec4<u32>();\n" + _SIFTED
    steps = "vec3<u32>(1u << p.shift, 2u << p.shift, 3u << p.shift)"
    if limits == 3:
        out += f"let t = vec4<u32>(vec3<u32>(key) + {steps}, 0u);\n"
        take = "c = c + vec4<u32>(vec4<u32>(k) < t);"
    else:
        take = "c = c + vec4<u32>(u32(k < key), u32(k == key), 0u, 0u);"
    return out + f"for (; i < end; i = i + 1u) {{ let k = sifted[i]; {take} }}\ncounts[slot] = c;\n}}\n"


def collect_sifted() -> str:
    """As collect_alone, over sifted keys."""
    out = T.storage(0, "sifted", "u32", "read") + T.storage(1, "state", "vec4<u32>", "read") + T.storage(2, "counts", "vec4<u32>", "read")
    out += T.storage(3, "found", "u32", "read_write") + T.storage(4, "places", "u32", "read_write") + T.storage(5, "held", "u32", "read")
    out += T.storage(6, "where_", "u32", "read") + T.uniform(7, FIELDS) + main(64) + EACH + _ALONE + _AHEAD + _SIFTED
    return out + (
        "for (; i < end; i = i + 1u) {\n  let k = sifted[i];\n  let less = k < chosen.x;\n  let equal = k == chosen.x && e < chosen.y;\n"
        "  if (less || equal) { found[row * p.places + l + e] = k; places[row * p.k + l + e] = where_[i]; }\n"
        "  l = l + u32(less);\n  e = e + u32(equal);\n}\n}\n"
    )


def pick_alone() -> str:
    """The next two bits of each row's key."""
    out = T.storage(0, "state", "vec4<u32>", "read_write") + T.storage(1, "counts", "vec4<u32>", "read") + T.uniform(2, FIELDS)
    return out + (
        main(64) + EACH + "if (id >= p.rows) { return; }\nvar c = vec4<u32>();\nvar i = 0u;\n"
        "loop { c = c + counts[id * p.parts + i]; continuing { i = i + 1u; break if i >= p.parts; } }\n"
        "let old = state[id];\nlet less = vec3<u32>(c.xyz < vec3<u32>(old.z));\nlet digit = less.x + less.y + less.z;\n"
        "let before = select(select(select(old.w, c.x, digit == 1u), c.y, digit == 2u), c.z, digit == 3u);\n"
        "state[id] = vec4<u32>(old.x + (digit << p.shift), old.z - before, old.z, before);\n}\n"
    )


def collect_alone(one: bool) -> str:
    """Each part's keys up to the row's k-th with their places in the row, in order; `one`: the place of the k-th alone."""
    out, put = _collecting(one)
    out += main(64) + EACH + _ALONE + _PART + _AHEAD + "let mine = counts[slot];\n"
    none = "mine.y == 0u" if one else "mine.x + mine.y == 0u"
    out += f"if (lo >= hi || {none}) {{ return; }}\nvar i = lo;\nloop {{\n  let k = keys[at + i];\n"
    for lane, c in enumerate(T.LANES):
        out += f"  {{ let n = i * 4u + {lane}u - skew; let held = n < p.count; let less = held && k.{c} < chosen.x;\n"
        out += f"    let equal = held && k.{c} == chosen.x && e < chosen.y;\n"
        out += f"    if ({'equal && e + 1u == chosen.y' if one else 'less || equal'}) {{ {put.format(place='l + e', key=f'k.{c}')} }}\n"
        out += "    l = l + u32(less); e = e + u32(equal); }\n"
    return out + "  continuing { i = i + 1u; break if i >= hi; }\n}\n}\n"


def _collecting(one: bool) -> tuple[str, str]:
    """Declarations of a collecting kernel, and the statement that puts key number n of the row."""
    out = _KEYS + T.storage(1, "state", "vec4<u32>", "read") + T.storage(2, "counts", "vec4<u32>", "read")
    if one:
        return out + T.storage(3, "out", "i32", "read_write") + T.uniform(4, FIELDS), "out[row] = i32(n);"
    out += T.storage(3, "found", "u32", "read_write") + T.storage(4, "places", "u32", "read_write") + T.uniform(5, FIELDS)
    return out, "let w = {place}; found[row * p.places + w] = {key}; places[row * p.k + w] = n;"


# --- a workgroup a part: eight bits a pass, counted in its memory ---


def count_team() -> str:
    """How often the next eight bits occur in a row, among keys with its prefix. Sums of integers, in any order."""
    out = _KEYS + T.storage(1, "state", "vec4<u32>", "read") + T.storage(2, "digits", "atomic<u32>", "read_write") + T.uniform(3, FIELDS)
    out += "var<workgroup> seen: array<atomic<u32>, 256>;\n" + main(TEAM) + _TEAM + _PART
    out += "let key = state[row].x;\natomicStore(&seen[thread], 0u);\nworkgroupBarrier();\n"
    out += f"for (var i = lo + thread; i < hi; i = i + {TEAM}u) {{\n  let k = keys[at + i];\n"
    for lane, c in enumerate(T.LANES):
        out += (
            f"  if ((k.{c} & p.above) == key && i * 4u + {lane}u - skew < p.count) {{ atomicAdd(&seen[(k.{c} >> p.shift) & 255u], 1u); }}\n"
        )
    return out + (
        "}\nworkgroupBarrier();\nlet c = atomicLoad(&seen[thread]);\nif (c > 0u) { atomicAdd(&digits[row * 256u + thread], c); }\n}\n"
    )


def pick_team(profile: Profile) -> str:
    """The next eight bits of each row's key; counts start again from 0."""
    out = front_matter(profile) + T.storage(0, "state", "vec4<u32>", "read_write") + T.storage(1, "digits", "u32", "read_write")
    out += T.uniform(2, FIELDS) + f"var<workgroup> sums: array<u32, {TEAM}>;\n" + main(TEAM, by_subgroups(profile))
    out += "if (number >= p.rows) { return; }\nlet old = state[number];\nlet sum = digits[number * 256u + thread];\n"
    out += "storageBarrier();\n" + prefix(TEAM, "u32", profile)
    return out + (
        "digits[number * 256u + thread] = 0u;\nif (front < old.y && old.y <= front + sum) {\n"
        "  state[number] = vec4<u32>(old.x | (thread << p.shift), old.y - front, old.z, old.w + front);\n}\n}\n"
    )


def tally_team() -> str:
    """How many keys of each part are less than, and equal to, the row's k-th."""
    out = _KEYS + T.storage(1, "state", "vec4<u32>", "read") + T.storage(2, "counts", "vec4<u32>", "read_write") + T.uniform(3, FIELDS)
    out += "var<workgroup> seen: array<atomic<u32>, 2>;\n" + main(TEAM) + _TEAM + _PART
    out += "if (thread < 2u) { atomicStore(&seen[thread], 0u); }\nworkgroupBarrier();\nlet t = vec4<u32>(state[row].x);\n"
    out += f"var c = vec2<u32>();\nfor (var i = lo + thread; i < hi; i = i + {TEAM}u) {{\n  let k = keys[at + i];\n"
    out += f"  let held = vec4<u32>({_HELD});\n"
    out += "  c = c + vec2<u32>(dot(vec4<u32>(k < t), held), dot(vec4<u32>(k == t), held));\n}\n"
    return out + (
        "if (c.x > 0u) { atomicAdd(&seen[0], c.x); }\nif (c.y > 0u) { atomicAdd(&seen[1], c.y); }\nworkgroupBarrier();\n"
        "if (thread == 0u) { counts[slot] = vec4<u32>(atomicLoad(&seen[0]), atomicLoad(&seen[1]), 0u, 0u); }\n}\n"
    )


def collect_team(one: bool, profile: Profile) -> str:
    """As collect_alone: tile after tile of four keys an invocation, whose counts a workgroup adds up."""
    out, put = _collecting(one)
    out += f"var<workgroup> sums: array<u32, {TEAM}>;\nvar<workgroup> ahead: array<atomic<u32>, 2>;\n"
    out = front_matter(profile) + out + main(TEAM, by_subgroups(profile)) + _TEAM + _PART
    none = "counts[slot].y == 0u" if one else "counts[slot].x + counts[slot].y == 0u"
    out += f"if ({none}) {{ return; }}\nlet chosen = state[row];\n"
    out += "if (thread < 2u) { atomicStore(&ahead[thread], 0u); }\nworkgroupBarrier();\nvar c = vec2<u32>();\n"
    out += f"for (var q = thread; q < part; q = q + {TEAM}u) {{ c = c + counts[row * p.parts + q].xy; }}\n"
    out += "if (c.x > 0u) { atomicAdd(&ahead[0], c.x); }\nif (c.y > 0u) { atomicAdd(&ahead[1], c.y); }\nworkgroupBarrier();\n"
    out += "var l = atomicLoad(&ahead[0]);\nvar e = atomicLoad(&ahead[1]);\n"
    out += f"for (var from_ = lo; from_ < hi; from_ = from_ + {TEAM}u) {{\n  let i = from_ + thread;\n  var k = vec4<u32>();\n"
    out += f"  if (i < hi) {{ k = keys[at + i]; }}\n  let held = vec4<bool>(i < hi) & ({_HELD});\n"
    out += "  let less = held & (k < vec4<u32>(chosen.x));\n  let equal = held & (k == vec4<u32>(chosen.x));\n"
    out += "  let sum = dot(vec4<u32>(less), vec4<u32>(1u)) | (dot(vec4<u32>(equal), vec4<u32>(1u)) << 16u);\n"
    out += prefix(TEAM, "u32", profile) + "  var l_ = l + (front & 0xffffu);\n  var e_ = e + (front >> 16u);\n"
    for lane, c in enumerate(T.LANES):
        n = f"let n = i * 4u + {lane}u - skew;"
        taken = f"if (e_ < chosen.y) {{ {n} {put.format(place='l_ + e_', key=f'k.{c}')} }}"
        if one:
            out += f"  if (equal.{c}) {{ if (e_ + 1u == chosen.y) {{ {n} {put} }} e_ = e_ + 1u; }}\n"
        else:
            out += f"  if (less.{c}) {{ {n} {put.format(place='l_ + min(e_, chosen.y)', key=f'k.{c}')} l_ = l_ + 1u; }}\n"
            out += f"  if (equal.{c}) {{ {taken} e_ = e_ + 1u; }}\n"
    return out + "  l = l + (all & 0xffffu);\n  e = e + (all >> 16u);\n}\n}\n"


# --- results ---


def take(kind: str) -> str:
    """Places from an order: its first k ('first'), those it gives of the keys taken out ('of'), or the one at a rank ('rank')."""
    out = T.storage(0, "order", "u32", "read") + T.storage(1, "out", "i32", "read_write")
    if kind != "first":
        out += T.storage(2, "other", "u32" if kind == "of" else "i32", "read")
    each = "p.rows" if kind == "rank" else "p.rows * p.k"
    out += T.uniform(2 if kind == "first" else 3, FIELDS) + main(64) + EACH + f"if (id >= {each}) {{ return; }}\n"
    if kind == "rank":
        rank = "u32(clamp(other[p.rank_at + id * p.rank_step], 0i, i32(p.count) - 1i))"
        return out + f"out[id] = i32(order[id * p.count + {rank}]);\n}}\n"
    place = "other[row * p.k + order[id]]" if kind == "of" else "order[row * p.count + id - row * p.k]"
    return out + f"let row = id / p.k;\nout[id] = i32({place});\n}}\n"
