"""What the rewrites of one graph did: which rules and passes fired, how often, at which user lines.

In: notes from the passes. Out: a Report that prints itself; `Compiled.report(...)` hands it to the user.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ..provenance import Site


@dataclass
class Report:
    """`fired`: (pass or rule, user line) with how often; `nodes` and `nbytes` before the first and after the last pass."""

    name: str
    fired: Counter[tuple[str, str]] = field(default_factory=Counter)
    nodes: tuple[int, int] = (0, 0)
    nbytes: tuple[int, int] = (0, 0)

    def note(self, rule: str, where: Site, times: int = 1) -> None:
        """A rule or pass changed the graph at a user line."""
        self.fired[rule, str(where)] += times

    def count(self, rule: str) -> int:
        """How often a rule fired."""
        return sum(n for (r, _), n in self.fired.items() if r == rule)

    def __str__(self) -> str:
        before, after = self.nodes
        head = f"{self.name}: {before} -> {after} nodes, {self.nbytes[0]} -> {self.nbytes[1]} bytes read and written"
        return "\n".join([head, *(f"  {n:4}x {rule}  at {where}" for (rule, where), n in self.fired.most_common())])

    __repr__ = __str__
