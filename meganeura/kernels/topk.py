"""The first k places of each row's order, or the place at a rank: for topk, kthvalue and median.

In: a Call named 'top' (attrs k, descending) or 'rank' (ranks from the device), rows along the last dimension. Out: launches
that select (topk_wgsl.py), where rows are long: the k-th key is found digit by digit, the keys up to it are taken out in order,
and only they are sorted. Short rows, and those of which much is wanted, are sorted as a whole (sort.py). The result is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..errors import DeviceError
from ..shape import numel
from ..storage import Layout
from . import sort
from . import template as T
from . import topk_wgsl as W
from .kernel import TEMP, Call, Kernel, Launch, Lowered, Profile
from .move import contiguous
from .operand import stride_over
from .sort_rows import key_of, keys

PARTS = {"cpu": 1024, "gpu": 1024}  # parts of all rows that keep a device busy
LEAST = {"cpu": 64, "gpu": 1024}  # fours of keys of a part at least
LONGEST = 32768  # fours a part at most: lavapipe stops an invocation after 65,535 turns of its loops
SIFTED = 8  # fours of keys for each one wanted, from which on a software device sifts them
FEW = 32  # keys of a row up to which a software device compares all of them
SHARE = 4  # of a row: more wanted than this part of it, and the row is sorted


@dataclass(frozen=True, slots=True)
class _Rows:
    """The geometry of a call; numbers of bindings that are asked for by name."""

    call: Call
    profile: Profile
    rows: int
    count: int
    k: int  # 1 for a rank
    bits: int
    one: bool
    parts: int
    chunk: int
    sifts: bool  # keys that cannot be among the first k are left out before the search
    rank: tuple[int, int, int] = (0, 0, 0)  # binding, offset, step of the ranks

    @property
    def team(self) -> bool:
        """Whether workgroups share a part."""
        return self.profile.family != "cpu"

    @property
    def out(self) -> int:
        """Binding number of the result."""
        return len(self.call.inputs)

    def params(self, shift: int = 0, places: int = 0) -> bytes:
        """The uniform of topk_wgsl.FIELDS."""
        above = (0xFFFFFFFF << (shift + 8)) & 0xFFFFFFFF
        words = [self.rows, self.count, self.parts, self.chunk, shift, above, self.k, places, *self.rank[1:]]
        return T.pack(words)


def lower(call: Call, profile: Profile) -> Lowered:
    """Launches for top and rank: places, int64."""
    x, out = call.inputs[0], call.outputs[0]
    assert x is not None
    if out.numel == 0:
        return Lowered(())
    if not out.contiguous or out.offset or call.alias and call.alias[-1] != len(call.inputs):
        raise DeviceError(f"{call.op.name}: the output must be a tensor of its own, not {out!r}")
    one = len(call.inputs) > 1
    count, rows = x.shape[-1], numel(x.shape[:-1])
    bits, _ = key_of(x.dtype, False)
    fours = -(-count // 4) if rows == 1 or count % 4 == 0 else (count + 6) // 4  # a row may begin in the midst of a four
    family = profile.family
    parts = max(1, min(-(-PARTS[family] // rows), fours // LEAST[family]), -(-fours // LONGEST))
    sifts = family == "cpu" and not one and call.attrs["k"] * SIFTED <= fours
    if sifts:
        parts = max(parts, call.attrs["k"])
    chunk = -(-fours // parts)
    found = _Rows(call, profile, rows, count, 1 if one else call.attrs["k"], bits, one, -(-fours // chunk), chunk, sifts)
    return _Builder(found).sorted() if _sorts(found) else _Builder(found).selected()


def _sorts(found: _Rows) -> bool:
    """Whether sorting whole rows is quicker."""
    plan = sort.plan(found.count, found.bits, found.profile, found.rows)
    few = plan.ranked and (found.team or found.count <= FEW)
    return few or plan.whole or found.k * SHARE > found.count


class _Builder:
    """Collects launches and temporaries."""

    def __init__(self, found: _Rows) -> None:
        self.found = found
        self.launches: list[Launch] = []
        self.temps: list[int] = []

    def temp(self, nbytes: int) -> int:
        """The binding number of a new temporary."""
        self.temps.append(max(16, -(-nbytes // 16) * 16))
        return TEMP(len(self.temps) - 1)

    def launch(
        self,
        name: tuple[object, ...],
        source: Callable[[Profile], str],
        access: Sequence[str],
        bindings: Sequence[int],
        groups: int,
        params: bytes,
    ) -> None:
        kernel = Kernel(("topk", *name), source, tuple(access), f"topk {name[0]}", trusted=True)
        self.launches.append(Launch(kernel, tuple(bindings), T.grid(groups), params))

    def prepare(self, pitch: int) -> int:
        """Keys of all rows, `pitch` apart, and ranks that are `rank_step` apart. Returns the keys' binding."""
        found = self.found
        call, x = found.call, found.call.inputs[0]
        assert x is not None
        target = self.temp(found.rows * pitch * 4)
        self.launches += keys(x, pitch, bool(call.attrs.get("descending", False)), target, found.profile)
        if found.one:
            rank = call.inputs[1]
            assert rank is not None
            number, step = 1, stride_over(rank.shape, rank.strides)
            if step is None:
                launch, nbytes = contiguous(rank, 1, len(self.temps), found.profile)
                number, step, rank = self.temp(nbytes), 1, Layout(rank.dtype, rank.shape)
                self.launches.append(launch)
            self.found = replace(found, rank=(number, rank.offset, step))
        return target

    def order(self, plan: sort.SortPlan, source: int) -> int:
        """Launches that sort rows of keys. Returns the binding of the places in order."""
        temps = [self.temp(n) for n in plan.temps()]
        made, _, positions = sort.launches(plan, source, (temps[0], temps[1], temps[2], temps[3]), self.found.profile)
        self.launches += made
        return positions

    def sorted(self) -> Lowered:
        """All of every row is sorted."""
        plan = sort.plan(self.found.count, self.found.bits, self.found.profile, self.found.rows)
        order = self.order(plan, self.prepare(plan.pitch))
        kind = "rank" if self.found.one else "first"
        self.take(kind, [order, self.found.out, *([self.found.rank[0]] if self.found.one else [])])
        return self.done()

    def take(self, kind: str, bindings: list[int]) -> None:
        groups = -(-self.found.rows * self.found.k // 64)
        access = ("read", "read_write", "read")[: len(bindings)]
        self.launch(("take", kind), lambda profile: W.take(kind), access, bindings, groups, self.found.params())

    def selected(self) -> Lowered:
        """Only the keys that are wanted are sorted."""
        source = self.prepare(self.found.count)
        found, one = self.found, self.found.one
        state, counts = self.temp(found.rows * 16), self.temp(found.rows * found.parts * 16)
        if found.sifts:
            return self.collected(self.sift(source, state, counts), state, counts)
        (self.search_team if found.team else self.search_alone)(source, state, counts)
        groups = found.rows * found.parts if found.team else -(-found.rows * found.parts // 64)

        def collect(profile: Profile) -> str:
            return W.collect_team(one, profile) if found.team else W.collect_alone(one)

        name: tuple[object, ...] = ("collect", one, found.team)
        if one:
            access: tuple[str, ...] = ("read", "read", "read", "read_write")
            self.launch(name, collect, access, (source, state, counts, found.out), groups, found.params())
            return self.done()
        plan = sort.plan(found.k, found.bits, found.profile, found.rows)
        taken, places = self.temp(found.rows * plan.pitch * 4), self.temp(found.rows * found.k * 4)
        access = ("read", "read", "read", "read_write", "read_write")
        bindings = (source, state, counts, taken, places)
        self.launch(name, collect, access, bindings, groups, found.params(places=plan.pitch))
        self.take("of", [self.order(plan, taken), found.out, places])
        return self.done()

    def collected(self, among: tuple[int, int, int], state: int, counts: int) -> Lowered:
        """The first k of sifted keys, sorted."""
        found, (held, sifted, where) = self.found, among
        plan = sort.plan(found.k, found.bits, found.profile, found.rows)
        taken, places = self.temp(found.rows * plan.pitch * 4), self.temp(found.rows * found.k * 4)
        access = ("read", "read", "read", "read_write", "read_write", "read", "read")
        bindings = (sifted, state, counts, taken, places, held, where)
        groups = -(-found.rows * found.parts // 64)
        self.launch(("collect sifted",), lambda profile: W.collect_sifted(), access, bindings, groups, found.params(places=plan.pitch))
        self.take("of", [self.order(plan, taken), found.out, places])
        return self.done()

    def begin(self, state: int, digits: tuple[int, ...]) -> None:
        found = self.found
        numbers = (state, *digits, *([found.rank[0]] if found.one else []))
        access = ("read_write",) * (1 + len(digits)) + ("read",) * found.one
        one, team = found.one, found.team
        each = found.rows * 256 if team else found.rows
        self.launch(("begin", one, team), lambda profile: W.begin(one, team), access, numbers, -(-each // 64), found.params())

    def search_alone(self, source: int, state: int, counts: int) -> None:
        """The k-th key of each row by twos of bits, then how many keys of each part are below or equal."""
        found = self.found
        self.begin(state, ())
        groups, access = -(-found.rows * found.parts // 64), ("read", "read", "read_write")
        for shift in self.shifts():
            params = found.params(shift)
            self.launch(("count", 3), lambda profile: W.count_alone(3), access, (source, state, counts), groups, params)
            self.pick(state, counts, params)
        self.launch(("count", 2), lambda profile: W.count_alone(2), access, (source, state, counts), groups, found.params())

    def shifts(self) -> range:
        """Where the twos of bits stand, from the highest."""
        return range(-(-self.found.bits // 2) * 2 - 2, -1, -2)

    def pick(self, state: int, counts: int, params: bytes) -> None:
        groups = -(-self.found.rows // 64)
        self.launch(("pick", False), lambda profile: W.pick_alone(), ("read_write", "read"), (state, counts), groups, params)

    def sift(self, source: int, state: int, counts: int) -> tuple[int, int, int]:
        """Search among keys no larger than the k-th of the parts' smallest. Returns the bindings of how many each part holds, of them
        and of their places."""
        found = self.found
        groups = -(-found.rows * found.parts // 64)
        least, held, sifted, places = (
            self.temp(n * 4) for n in (found.rows * found.parts * 4, found.rows * found.parts, *[found.rows * found.count] * 2)
        )
        self.launch(("least",), lambda profile: W.least_alone(), ("read", "read_write"), (source, least), groups, found.params())
        self.found = replace(found, count=found.parts * 4, parts=1, chunk=found.parts)
        self.search_alone(least, state, counts)
        self.found = found
        access: tuple[str, ...] = ("read", "read", "read_write", "read_write", "read_write")
        bindings: tuple[int, ...] = (source, state, held, sifted, places)
        self.launch(("sift",), lambda profile: W.sift_alone(), access, bindings, groups, found.params())
        self.begin(state, ())
        access, bindings = ("read", "read", "read_write", "read"), (sifted, state, counts, held)
        for shift in self.shifts():
            params = found.params(shift)
            self.launch(("count sifted", 3), lambda profile: W.count_sifted(3), access, bindings, groups, params)
            self.pick(state, counts, params)
        self.launch(("count sifted", 2), lambda profile: W.count_sifted(2), access, bindings, groups, found.params())
        return held, sifted, places

    def search_team(self, source: int, state: int, counts: int) -> None:
        """The same by eights of bits."""
        found = self.found
        digits = self.temp(found.rows * 1024)
        self.begin(state, (digits,))
        groups, access = found.rows * found.parts, ("read", "read", "read_write")
        for shift in range(-(-found.bits // 8) * 8 - 8, -1, -8):
            params = found.params(shift)
            self.launch(("digits",), lambda profile: W.count_team(), access, (source, state, digits), groups, params)
            self.launch(("pick", True), W.pick_team, ("read_write", "read_write"), (state, digits), found.rows, params)
        self.launch(("tally",), lambda profile: W.tally_team(), access, (source, state, counts), groups, found.params())

    def done(self) -> Lowered:
        return Lowered(tuple(self.launches), tuple(self.temps))
