"""One row times a matrix on GPUs: bound by reading the matrix once, and by latency where it is small.

Rows for a matrix contiguous along k (weights [N, K]), Columns for one contiguous along n. Both walk K with as many loads
in flight as registers allow, since each round of loads costs as much time as the first, and then add up what the
invocations that share a result have: by shuffles inside subgroups of known size, the rest PARTS at a time between barriers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .kernel import Profile
from .matmul_wgsl import Form, Stores, load, mac, matrix_place, module

SIZE = 256  # the least workgroup that a device must allow for these kernels
ONCE = 36  # vec4s that each of SIZE invocations may ask for at once: larger workgroups have fewer registers an invocation
TURN = 8  # units of each turn of a loop where there are more
PARTS = 32  # sums that an invocation adds up between barriers
VEC4 = 16  # bytes
ARGUMENTS = "@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) tid: u32"


@dataclass(frozen=True, slots=True)
class Walk:
    """How an invocation walks its share of K: `unroll` units at a time, which are all there are where `once` is set."""

    unroll: int
    once: bool

    @classmethod
    def over(cls, units: int, step: int, most: int) -> Walk:
        """A walk over `units` in steps of `step`: all at once if those are at most `most`, or turns that leave few over."""
        loads = -(-units // step)
        return cls(loads, True) if loads <= most else cls(-(-loads // -(-loads // TURN)), False)

    def text(self, first: str, step: int, zero: str, loads: str, product: Callable[[str], str]) -> Iterator[str]:
        """Text that makes `s` of the units first, first + step, ... below `units`, where `first` is a let below step.

        loads: text that loads what lies `at` a unit; product(s): the sum s with that unit's product added. A unit that
        does not exist is loaded from the last one's place and left out of the sum.
        """
        sums = [f"s{u}" for u in range(min(4, self.unroll))]

        def turn(sure: int) -> Iterator[str]:
            """A turn whose first `sure` units exist."""
            for u in range(self.unroll):
                place, s = f"base + {first} + {u * step}u", sums[u % len(sums)]
                if u < sure:
                    yield f"{{ let at = {place}; {loads} {s} = {product(s)}; }}"
                else:
                    new = f"select({s}, {product(s)}, {place} < units)"
                    yield f"{{ let at = min({place}, units - 1u); {loads} {s} = {new}; }}"

        yield from (f"var {s} = {zero};" for s in sums)
        if self.once:
            yield "let base = 0u;"
            yield from turn(self.unroll - 1)
        else:
            ahead = self.unroll * step
            yield from (f"var base = 0u; for (; base + {ahead}u <= units; base += {ahead}u) {{", *turn(self.unroll), "}")
            yield from ("if (base < units) {", *turn(0), "}")
        yield f"var s = {_sum(sums)};"


def _sum(terms: list[str]) -> str:
    """The sum of terms in pairs."""
    half = (len(terms) + 1) // 2
    return f"({_sum(terms[:half])} + {_sum(terms[half:])})" if half < len(terms) else terms[0]


def _shuffles(distance: int, end: int) -> Iterator[str]:
    """Add up `s` of the invocations of a subgroup whose numbers differ in the bits from `distance` to below `end`."""
    while distance < end:
        yield f"s += subgroupShuffleXor(s, {distance}u);"
        distance *= 2


def _place(single: bool) -> list[str]:
    """Where a workgroup's matrices start; without a division where there is one of each."""
    if single:
        return ["let mat0 = 0u; let mat1 = 0u; let a_at = p.a_off; let b_at = p.b_off; let o_at = p.o_off;"]
    return matrix_place("w.z")


def known_subgroup(profile: Profile) -> int:
    """Lanes of a subgroup, 0 where they are unknown."""
    return profile.subgroup_size if profile.subgroups and profile.subgroup_size in (4, 8, 16, 32, 64) else 0


@dataclass(frozen=True, slots=True)
class Rows:
    """A row vector times a matrix whose columns are contiguous along k ('k4' both): `lanes` invocations, a power of two, share
    a result and its K. single: there is one matrix."""

    lanes: int
    walk: Walk
    single: bool

    def grid(self, n: int, matrices: int) -> tuple[int, int, int]:
        """Workgroups for n results."""
        return -(-n // (SIZE // self.lanes)), 1, matrices

    def source(self, f: Form, profile: Profile) -> str:
        value, lanes, stores = f.types.value, self.lanes, Stores(f)
        shuffle = known_subgroup(profile) >= lanes
        loads = f"let x = {load('a[a_at + at]', f.types.a, value, True)}; let y = {load('b[b_row + at]', f.types.b, value, True)};"
        dot = "dot(x, y)" if value == "f32" else " + ".join(f"x.{c} * y.{c}" for c in "xyzw")
        body = [] if shuffle else [f"var<workgroup> part: array<{value}, {SIZE}>;"]
        body += [f"@compute @workgroup_size({SIZE}) fn main({ARGUMENTS}) {{", *_place(self.single)]
        body.append(f"let lane = tid % {lanes}u; let col = w.x * {SIZE // lanes}u + tid / {lanes}u;")
        body.append("let b_row = b_at + min(col, p.n - 1u) * p.b_free; let units = p.k / 4u;")
        body += self.walk.text("lane", lanes, f"{value}()", loads, lambda s: f"{s} + {dot}")
        if shuffle:
            body += _shuffles(1, lanes)
        else:
            parts = [f"part[tid + {i}u]" for i in range(lanes)]
            body.append(f"part[tid] = s; workgroupBarrier(); if (lane == 0u) {{ s = {_sum(parts)}; }}")
        store = stores.column("col", inside=True) + stores.put(["s"], "0u", "col", single=True)
        body.append(f"if (lane == 0u && col < p.n) {{ {' '.join(stores.begin())} {stores.line('0u')}{store} }} }}")
        return module(profile, f, body, subgroups=shuffle)


@dataclass(frozen=True, slots=True)
class Columns:
    """A row vector times a matrix that is contiguous along n ('f4'): `across` invocations of 4 columns each, `size` / `across`
    such teams share K. The vector is read element by element ('k1'). single: there is one matrix. All numbers but the
    walk's are powers of two."""

    across: int
    size: int
    walk: Walk
    single: bool

    def grid(self, n: int, matrices: int) -> tuple[int, int, int]:
        """Workgroups for n results, a multiple of 4."""
        return -(-n // (4 * self.across)), 1, matrices

    def source(self, f: Form, profile: Profile) -> str:
        value, across, stores = f.types.value, self.across, Stores(f)
        teams = self.size // across
        merged = max(1, min(teams, known_subgroup(profile) // across))  # neighbouring teams that are in one subgroup
        loads = f"let x = {load('a[a_at + at * p.a_k]', f.types.a, value)}; "
        loads += f"let y = {load('b[b_col + at * p.b_k]', f.types.b, value, True)};"
        body = [f"var<workgroup> part: array<vec4<{value}>, {self.size // merged}>;"] if merged < teams else []
        body += [f"@compute @workgroup_size({self.size}) fn main({ARGUMENTS}) {{", *_place(self.single)]
        body.append(f"let team = tid / {across}u; let lane = tid % {across}u; let quad = w.x * {across}u + lane;")
        body.append("let b_col = b_at + min(quad, p.n / 4u - 1u); let units = p.k;")
        body += self.walk.text("team", teams, f"vec4<{value}>()", loads, lambda s: mac(value, f"vec4<{value}>(x)", "y", s))
        body += _shuffles(across, across * merged)
        if merged < teams:
            body.append(f"if (team % {merged}u == 0u) {{ part[team / {merged}u * {across}u + lane] = s; }}")
        left = teams // merged
        while left > 1:
            parts = min(PARTS, left)
            left //= parts
            terms = [f"part[tid + {i * left * across}u]" for i in range(parts)]
            keep = "part[tid] = s;" if left > 1 else ""
            body.append(f"workgroupBarrier(); if (tid < {left * across}u) {{ s = {_sum(terms)}; {keep} }}")
        store = f"{' '.join(stores.begin())} {stores.line('0u')}{stores.quad('s', '(quad * 4u)')}"
        body.append(f"if (team == 0u && quad < p.n / 4u) {{ {store} }} }}")
        return module(profile, f, body, subgroups=merged > 1)


# --- choice -----------------------------------------------------------------------------------------------------------


def rows(k: int, matrices: int, profile: Profile) -> Rows:
    """How a matrix of rows of k elements is read: a subgroup has a row. A unit takes a vec4 of the vector besides."""
    lanes = min(PARTS, known_subgroup(profile) or PARTS)  # without subgroups, one of them adds up all sums
    return Rows(lanes, Walk.over(k // 4, lanes, ONCE // 2), matrices == 1)


def columns(n: int, k: int, matrices: int, profile: Profile) -> Columns:
    """How a matrix of k rows of n elements is read: few columns leave multiprocessors idle, so more invocations share K."""
    across = 2 if n <= 1024 else 8 if n <= 8192 else 16
    size = SIZE if n > 8192 else 1024 if k >= 2048 else 512
    most = min(size, profile.max_workgroup_size, profile.max_workgroup_memory // VEC4, across * k)
    size = 1 << most.bit_length() - 1
    return Columns(across, size, Walk.over(k, size // across, ONCE * SIZE // size), matrices == 1)
