"""The passes that turn a traced graph into the graph that runs, in order.

In: a graph in program order. Out: the same graph, changed in place: same inputs' effects, same kept values, same names.
A pass asks rows for their archetype and properties, never for their name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..kernels.kernel import Profile
from ..spans import span
from .apply import rewrite_rules
from .chains import fuse_chains
from .constants import fold_constants
from .egraph import rewrite_by_egraph
from .fuse_matmul import fuse_matmul
from .fuse_rows import fuse_rows
from .horizontal import fuse_horizontal
from .ir import Cell, Graph, Node, traffic
from .laid_out import store_copies
from .options import EGGLOG, Options
from .prune import make_anew, merge_equal, prune
from .report import Report
from .values import traced_names
from .verify import verify
from .wait import let_reductions_wait


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
    let_reductions_wait(graph)
    fuse_chains(graph, context.profile.max_storage_buffers)


ALWAYS: tuple[tuple[str, Pass], ...] = (("prune", _prune),)
GREEDY: tuple[tuple[str, Pass], ...] = (
    ("merge_equal", _merge_equal),
    ("rules", rewrite_rules),
    ("constants", fold_constants),
    ("horizontal", fuse_horizontal),
    ("chains", _chains),
    ("matmul epilogues", fuse_matmul),
    ("rows", fuse_rows),
    ("copies", store_copies),
)


def rewrite(graph: Graph, profile: Profile, options: Options) -> Report:
    """Run the passes that the options ask for, verifying the graph after each one when debugging."""
    with span("rewrite", graph.name):
        return _rewrite(graph, profile, options)


def _rewrite(graph: Graph, profile: Profile, options: Options) -> Report:
    report = Report(graph.name)
    context = Context(profile, options, report)
    before = len(graph.nodes), traffic(graph.nodes)
    own = {o.value.cell for n in graph.nodes for o, v in zip(n.outputs, n.previous, strict=True) if v is None}
    _settle(graph, options, "tracing", own)
    graph.traced = traced_names(graph)
    passes = [(name, rewrite_by_egraph if run is rewrite_rules and options.rewrite in EGGLOG else run) for name, run in GREEDY]
    for name, run in (*ALWAYS, *(passes if options.rewrite != "off" else ())):
        run(graph, context)
        _settle(graph, options, name, own)
    report.nodes, report.nbytes = zip(before, (len(graph.nodes), traffic(graph.nodes)), strict=True)
    return report


def _settle(graph: Graph, options: Options, after: str, own: set[Cell]) -> None:
    make_anew(graph.nodes, own)
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
