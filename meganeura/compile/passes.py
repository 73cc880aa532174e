"""The passes that turn a traced graph into the graph that runs, in order.

In: a graph in program order. Out: the same graph, changed in place: same inputs' effects, same kept values, same names.
A pass asks rows for their archetype and properties, never for their name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..kernels.kernel import Profile
from .chains import fuse_chains
from .horizontal import fuse_horizontal
from .ir import Cell, Graph, Node
from .prune import merge_equal, prune
from .report import Report
from .verify import verify


class Options:
    """How to compile: `rewrite` 'off' or 'greedy'; `debug` checks after every pass and keeps every value in its own buffer."""

    __slots__ = ("debug", "reuse", "rewrite")

    def __init__(self, rewrite: str, debug: bool, reuse: bool) -> None:
        self.rewrite, self.debug, self.reuse = rewrite, debug, reuse


@dataclass(frozen=True)
class Context:
    """What passes may know besides the graph, and where they note what they did."""

    profile: Profile
    options: Options
    report: Report


Pass = Callable[[Graph, Context], None]


def _prune(graph: Graph, context: Context) -> None:
    prune(graph)


def _merge_equal(graph: Graph, context: Context) -> None:
    merge_equal(graph)


def _chains(graph: Graph, context: Context) -> None:
    fuse_chains(graph, context.profile.max_storage_buffers)


ALWAYS: tuple[tuple[str, Pass], ...] = (("prune", _prune),)
GREEDY: tuple[tuple[str, Pass], ...] = (
    ("merge_equal", _merge_equal),
    ("horizontal", fuse_horizontal),
    ("chains", _chains),
)


def rewrite(graph: Graph, profile: Profile, options: Options) -> Report:
    """Run the passes that the options ask for, verifying the graph after each one when debugging."""
    report = Report(graph.name)
    context = Context(profile, options, report)
    before = len(graph.nodes), traffic(graph.nodes)
    _settle(graph, options, "tracing")
    for name, run in (*ALWAYS, *(GREEDY if options.rewrite != "off" else ())):
        run(graph, context)
        _settle(graph, options, name)
    report.nodes, report.nbytes = zip(before, (len(graph.nodes), traffic(graph.nodes)), strict=True)
    return report


def _settle(graph: Graph, options: Options, after: str) -> None:
    graph.inputs = inputs_of(graph.nodes)
    if options.debug:
        verify(graph, after)


def inputs_of(nodes: Iterable[Node]) -> list[Cell]:
    """Cells that nodes read or overwrite without having made them, in order."""
    made: set[Cell] = set()
    found: dict[Cell, None] = {}
    for node in nodes:
        cells = [o.value.cell for o in node.reads()] + [v.cell for v in node.previous if v is not None]
        found.update((c, None) for c in cells if c not in made)
        made.update(o.value.cell for o, v in zip(node.outputs, node.previous, strict=True) if v is None)
    return list(found)


def traffic(nodes: Iterable[Node]) -> int:
    """Bytes that nodes read and write, each operand of a node once."""
    return sum(o.layout.numel * o.layout.dtype.itemsize for n in nodes for o in dict.fromkeys((*n.reads(), *n.outputs)))
