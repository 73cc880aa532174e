"""The pass: windows of a graph are saturated one by one, and what each e-graph chose is done in the graph.

In: a graph without chains. Out: the graph with rules applied, each match proved again where it is applied (rule.py, apply.py).
Windows that are alike share one e-graph in the mode egglog-outlined: rewrites name values by their number in the window, so they
can be done in any window of the same signature.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from ... import config
from ...errors import UnsupportedError
from ..apply import Index, apply
from ..ir import Graph, Node, Value
from ..rule import Match
from . import windows
from .windows import Window

if TYPE_CHECKING:
    from ..passes import Context
    from .extract import Extraction
    from .terms import Rewrite, Saturation

MODES = {"egglog-windowed": windows.windowed, "egglog-outlined": windows.outlined}
SECONDS = 30.0  # for all e-graphs of one graph; what is left then is rewritten greedily


def needs_egglog(mode: str) -> None:
    """Raise UnsupportedError if the package is not there."""
    if importlib.util.find_spec("egglog") is None:
        raise UnsupportedError(f"rewrite={mode!r} needs the package egglog: pip install 'meganeura[egglog]'")


def rewrite_by_egraph(graph: Graph, context: Context) -> None:
    """Apply the rules that the e-graphs of the mode, cost and cutoff in force choose."""
    needs_egglog(context.options.rewrite)
    _Engine(graph, context).run()


class Chosen:
    """What an e-graph chose: rewrites, the values by number that their sides are made of, and what it costs before and after."""

    def __init__(self, saturation: Saturation, found: Extraction) -> None:
        wanted, self.before, self.after = found.wanted, found.before[0], found.after[0]
        self.rewrites, self.applied, self.classes = wanted, saturation.applied, saturation.classes
        self.results = {
            id(w): {v for x in self.classes.applied[self.classes.node_of[w.left[w.rule.root]]] for v in self.applied[x].outputs}
            for w in wanted
        }


class _Engine:
    def __init__(self, graph: Graph, context: Context) -> None:
        from ..rules import rules

        self.graph, self.context = graph, context
        self.mode, settings = context.options.rewrite, config.current()
        self.cost, self.cutoff = settings.egraph_cost, max(settings.egraph_cutoff, 4)
        self.rules = rules()
        self.ops = {n.op for r in self.rules for n in r.pattern}
        self.index = Index(graph)
        self.known: dict[Any, Chosen] = {}
        self.deadline = monotonic() + SECONDS
        self.saturations = self.replays = self.missed = self.unfinished = 0
        self.before = self.after = 0.0
        self.late = False

    def run(self) -> None:
        """All windows, in program order."""
        nodes, count = self.graph.nodes, 0
        for begin, end in self._slices():
            if monotonic() > self.deadline:
                self.late = True
                break
            window = Window([n for n in nodes[begin:end] if n in self.index.keys], self.index, self.ops)
            ops = {n.op for n, _ in window.open}
            if any(ops.issuperset(n.op for n in r.pattern) for r in self.rules):
                chosen = self._chosen(window)
                self.before, self.after = self.before + chosen.before, self.after + chosen.after
                count += self._do(chosen, window.values)
        if count:
            self.graph.nodes = self.index.nodes()
        if self.late:
            apply(self.graph, self.rules, lambda match: self._note(match, match.nodes[match.rule.root]))
        self.context.report.engine = str(self)

    def _note(self, match: Match, node: Node) -> None:
        self.context.report.note(match.rule.name, node.site)

    def _slices(self) -> list[windows.Slice]:
        if self.mode in MODES:
            return MODES[self.mode](self.graph.nodes, self.cutoff)
        return windows.whole(self.graph.nodes, self.cutoff, self.graph.name)

    def _chosen(self, window: Window) -> Chosen:
        from .extract import Extraction
        from .terms import Saturation

        known = self.known.get(window.signature) if self.mode == "egglog-outlined" else None
        if known is not None:
            self.replays += 1
            return known
        saturation = Saturation(window, self.rules, self.deadline)
        found = Extraction(saturation, self.cost)
        self.saturations += 1
        self.unfinished += not saturation.complete
        self.known[window.signature] = chosen = Chosen(saturation, found)
        return chosen

    def _do(self, chosen: Chosen, values: Sequence[Value]) -> int:
        """Apply rewrites to the graph: first those that make something, as long as any of them can be applied, since a
        result that is read elsewhere may be what others look for."""
        there = dict(enumerate(values))
        making, moving = [w for w in chosen.rewrites if w.added], [w for w in chosen.rewrites if not w.added]
        count, left = 0, -1
        while left != len(making) + len(moving):
            left = len(making) + len(moving)
            failed = [w for w in making if not self._apply(w, chosen, there)]
            if len(failed) == len(making):
                moving = [w for w in moving if not self._apply(w, chosen, there)]
            making = failed
            count += left - len(making) - len(moving)
        self.missed += len(making) + sum(self._is_read(w, chosen, there) for w in moving)
        return count

    def _is_read(self, w: Rewrite, chosen: Chosen, there: dict[int, Value]) -> bool:
        """Whether a result is still computed for somebody."""
        makers = [self.index.maker(there[k]) for k in chosen.results[id(w)] if k in there]
        return any(n is not None and n.op is w.rule.op and self.index.users(o.value) for n in makers if n is not None for o in n.outputs)

    def _apply(self, w: Rewrite, chosen: Chosen, there: dict[int, Value]) -> bool:
        for k in sorted(chosen.results[id(w)]):
            node = self.index.maker(there[k]) if k in there else None
            if node is None or node.op is not w.rule.op:
                continue
            for match in w.rule.matches(node, self.index.maker):
                if len(match.added) == len(w.added) and self._is_there(match, w, chosen, there) and self.index.replace(match, True):
                    self._note(match, node)
                    for x, added in zip(w.added, match.added, strict=True):
                        there.update((v, o.value) for v, o in zip(chosen.applied[x].outputs, added.outputs, strict=True))
                    return True
        return False

    @staticmethod
    def _is_there(match: Match, w: Rewrite, chosen: Chosen, there: dict[int, Value]) -> bool:
        """Whether a match is of the same results."""
        values = chosen.classes.values
        return all(any(there.get(k) is old.value for k in values[chosen.classes.given[v]]) for old, v in zip(match.old, w.old, strict=True))

    def __str__(self) -> str:
        """A line for the report."""
        parts = [f"{self.mode}, {self.cost} {self.before:.0f} -> {self.after:.0f}", f"{self.saturations} e-graphs"]
        parts += [f"{self.replays} replayed"] if self.replays else []
        parts += [f"{self.missed} rewrites not possible"] if self.missed else []
        parts += [f"{self.unfinished} stopped at a limit"] if self.unfinished else []
        parts += [f"the rest greedily after {SECONDS:.0f} s"] if self.late else []
        return ", ".join(parts)
