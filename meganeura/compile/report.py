"""What the rewrites of one graph did: which rules and passes fired, how often, at which user lines.

In: notes from the passes. Out: a Report that prints itself; `Compiled.report(...)` hands it to the user.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ..provenance import Site


@dataclass
class Report:
    """`notes`: (pass or rule, place, how often) in order; `nodes` and `nbytes` before the first and after the last pass;
    `engine`: what the e-graphs cost before and after, in the egglog modes."""

    name: str
    notes: list[tuple[str, Site, int]] = field(default_factory=list)
    nodes: tuple[int, int] = (0, 0)
    nbytes: tuple[int, int] = (0, 0)
    engine: str = ""

    def note(self, rule: str, where: Site, times: int = 1) -> None:
        """A rule or pass changed the graph at a user line."""
        self.notes.append((rule, where, times))

    @property
    def fired(self) -> Counter[tuple[str, str]]:
        """How often something fired, by pass or rule and user line."""
        out: Counter[tuple[str, str]] = Counter()
        for rule, where, times in self.notes:
            out[rule, str(where)] += times
        return out

    def count(self, rule: str) -> int:
        """How often a rule fired."""
        return sum(n for r, _, n in self.notes if r == rule)

    def __str__(self) -> str:
        before, after = self.nodes
        head = f"{self.name}: {before} -> {after} nodes, {self.nbytes[0]} -> {self.nbytes[1]} bytes read and written"
        head += f"\n  by {self.engine}" if self.engine else ""
        return "\n".join([head, *(f"  {n:4}x {rule}  at {where}" for (rule, where), n in self.fired.most_common())])

    __repr__ = __str__
