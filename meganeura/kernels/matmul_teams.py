"""Thread groups of a tile that each took a slice of K: adding up their sums through workgroup memory.

In a product every group adds up a share of the sums and stores it (`Shares`); where the stores are written for one group,
the first gets all (`halved`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .choices import Tile


@dataclass(frozen=True, slots=True)
class Shares:
    """`sums`: names of an invocation's vec4s, the same in every group; `room`: bytes of workgroup memory that are free."""

    tile: Tile
    sums: tuple[str, ...]
    value: str
    room: int

    @property
    def senders(self) -> int:
        """Groups that hand over their part of a sum at a time: all others, or one where memory is short."""
        t = self.tile
        return t.groups - 1 if t.groups * (t.groups - 1) * t.team * 16 <= self.room else 1

    @property
    def chunk(self) -> int:
        """Sums that are added up at a time: as many as there is room for."""
        t, n = self.tile, len(self.sums)
        chunk = n
        while chunk > t.groups and (chunk * self.senders * t.team * 16 > self.room or n % chunk or chunk % t.groups):
            chunk -= 1
        return chunk

    @property
    def bytes(self) -> int:
        """Workgroup memory taken."""
        return 0 if self.tile.groups == 1 else self.chunk * self.senders * self.tile.team * 16

    def owners(self) -> dict[str, int]:
        """The group that has each sum in the end."""
        return {c: x % self.chunk * self.tile.groups // self.chunk for x, c in enumerate(self.sums)}

    def declare(self) -> list[str]:
        t = self.tile
        if t.groups == 1:
            return []
        table = f"array<array<vec4<{self.value}>, {t.team}>, {self.chunk // t.groups}>"
        return [f"var<workgroup> sums: array<array<{table}, {self.senders}>, {t.groups}>;"]

    def add(self) -> list[str]:
        """Statements after which each group holds its share."""
        t, lines = self.tile, []
        if t.groups == 1:
            return []
        owners = self.owners()
        lines += [f"let slot{g} = (team + {t.groups - g - 1}u) % {t.groups}u;" for g in range(t.groups)]
        for at in range(0, len(self.sums), self.chunk):
            part = self.sums[at : at + self.chunk]
            own = [[c for c in part if owners[c] == g] for g in range(t.groups)]
            for first in range(0, t.groups - 1, self.senders):
                lines += self._handed_over(own, first)
        return lines

    def _handed_over(self, own: list[list[str]], first: int) -> list[str]:
        """Each group takes what `senders` others have of its sums; slot n of a group is that of the group n + 1 after it."""
        lines = ["workgroupBarrier();"]
        for g, names in enumerate(own):
            turn = f"team != {g}u" if self.senders > 1 else f"slot{g} == {first}u"
            slot = f"slot{g}" if self.senders > 1 else "0"
            lines.append(f"if ({turn}) {{ {' '.join(f'sums[{g}][{slot}][{x}][local] = {c};' for x, c in enumerate(names))} }}")
        lines.append("workgroupBarrier();")
        for g, names in enumerate(own):
            take = " ".join(f"{c} += sums[{g}][{s}][{x}][local];" for x, c in enumerate(names) for s in range(self.senders))
            lines.append(f"if (team == {g}u) {{ {take} }}")
        return lines


def shares_memory(tile: Tile) -> int:
    """Bytes of workgroup memory that Shares needs at least."""
    return 0 if tile.groups == 1 else tile.groups * tile.team * 16


def halved(tile: Tile, sums: Sequence[str], value: str, room: int) -> tuple[list[str], list[str]]:
    """Declarations, and statements after which the first group has all sums."""
    if tile.groups == 1:
        return [], []
    tables = tile.groups // 2
    chunk = max(1, min(len(sums), room // (tile.team * 16 * tables)))
    while len(sums) % chunk:
        chunk -= 1
    lines, half = [], tables
    while half:
        for at in range(0, len(sums), chunk):
            part = list(enumerate(sums[at : at + chunk]))
            give = " ".join(f"sums[team - {half}u][{x}][local] = {c};" for x, c in part)
            take = " ".join(f"{c} += sums[team][{x}][local];" for x, c in part)
            lines += ["workgroupBarrier();", f"if (team >= {half}u && team < {2 * half}u) {{ {give} }}"]
            lines += ["workgroupBarrier();", f"if (team < {half}u) {{ {take} }}"]
        half //= 2
    return [f"var<workgroup> sums: array<array<array<vec4<{value}>, {tile.team}>, {chunk}>, {tables}>;"], lines
