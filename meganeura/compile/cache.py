"""The plan cache: what rewriting and planning made of a traced graph, kept on disk for processes to come.

In: a traced graph. Out: the rewritten graph, its report and its plan, loaded where the same was made before by the same
sources for the same device. A key covers all of that (`_key`), so what is found needs no further checks. A file that is
damaged, foreign or old counts as missing and is written again; one that cannot be written is left out.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .. import config
from .._version import __version__
from ..errors import MeganeuraError
from ..kernels.kernel import Profile
from ..spans import span
from .ir import Cell, Graph
from .loaded import load_graph, load_plan
from .lower import Lowering
from .options import Options
from .passes import rewrite
from .plain import Unplain
from .plan import Plan, plan
from .report import Report
from .written import Traced, graph_data, plan_data

FORMAT = "meganeura plan 1"
SMALLEST = 48  # nodes; rewriting fewer takes about as long as reading a file
FILES, BYTES = 256, 128 << 20  # kept in a folder; those not used for longest go
STALE = 3600  # seconds after which a temporary file was left by a process that died
BROKEN = (LookupError, TypeError, ValueError, AttributeError, MeganeuraError)

_started = time.time()


class Entry:
    """A graph's place in the cache. `hit`: the graph was found there."""

    def __init__(self, path: Path, key: str, traced: Traced, reuse: bool) -> None:
        self.path, self.key, self.traced, self.reuse = path, key, traced, reuse
        self.hit = False
        self.cells: list[Cell] = []  # by number
        self.digest = b""  # of the graph's line of the file
        self.plan = ""  # the plan's line

    # ---- graphs ----

    def load(self, graph: Graph) -> Report | None:
        """Make the graph what it was made before; None if that is not known."""
        found = read(self.path, self.key)
        if found is None:
            return None
        try:
            report, self.cells = load_graph(graph, json.loads(found[0]), self.traced)
        except BROKEN as e:
            _complain(f"the plan cache holds {self.path}, which cannot be used: {e!r}")
            return None
        self.hit, self.digest, self.plan = True, _digest(found[0]), found[1]
        return report

    def store(self, graph: Graph, report: Report) -> bool:
        """Write what the passes made of the graph. False if it has no form as data."""
        try:
            text = json.dumps(graph_data(graph, report, self.traced), separators=(",", ":"))
        except Unplain:
            return False
        self.cells, self.digest = list(self.traced.known.cells), _digest(text)
        write(self.path, self.key, text, "")
        return True

    # ---- plans ----

    def load_plan(self, graph: Graph, lowering: Lowering) -> Plan | None:
        """The plan that was made before; None if there is none."""
        if not self.plan:
            return None
        try:
            found = load_plan(graph, json.loads(self.plan), self.cells, lowering)
        except BROKEN as e:
            _complain(f"the plan cache holds {self.path}, whose plan cannot be used: {e!r}")
            return None
        return found

    def store_plan(self, graph: Graph, made: Plan) -> None:
        """Write the plan beside the graph, if the very same is still there."""
        found = read(self.path, self.key)
        if found is not None and _digest(found[0]) == self.digest:
            numbers = {c: i for i, c in enumerate(self.cells)}
            write(self.path, self.key, found[0], json.dumps(plan_data(made, graph.nodes, numbers), separators=(",", ":")))


# ---- what programs and sessions call ----


def rewritten(graph: Graph, device: Any, options: Options) -> Report:
    """Rewrite a graph, or load it rewritten. `graph.entry` then says what became of it."""
    folder = None if options.debug or options.rewrite == "off" or len(graph.nodes) < SMALLEST else config.plan_folder()
    entry = None
    if folder is not None:
        with span("rewrite", graph.name):
            entry = _entry(Path(folder), graph, device, options)
            report = None if entry is None else entry.load(graph)
        if report is not None:
            graph.entry = entry
            return report
    report = rewrite(graph, device.profile, options)
    if entry is not None:
        with span("store", graph.name):
            graph.entry = entry if entry.store(graph, report) else None
    return report


def planned(graph: Graph, device: Any, reuse: bool) -> tuple[Plan, bool]:
    """Plan a graph, or load its plan; and whether it was loaded."""
    entry, graph.entry = graph.entry, None
    lowering = Lowering(device.profile)
    usable = entry is not None and entry.reuse == reuse
    with span("plan", graph.name):
        found = entry.load_plan(graph, lowering) if entry is not None and usable else None
        if found is not None:
            return found, True
        made = plan(graph, lowering.steps(graph.nodes), reuse, lowering)
    if entry is not None and usable:
        with span("store", graph.name):
            entry.store_plan(graph, made)
    return made, False


def _entry(folder: Path, graph: Graph, device: Any, options: Options) -> Entry | None:
    """The graph's place, if it can have one."""
    sources = _sources()
    if not sources:
        return None
    try:
        traced = Traced(graph)
        key = _key(traced, sources, device, options)
    except Unplain:
        return None
    return Entry(folder / f"{key}.plan", key, traced, options.reuse)


# ---- keys ----


def _key(traced: Traced, sources: str, device: Any, options: Options) -> str:
    """A digest of everything that rewriting, planning and kernels depend on."""
    world = [sources, options.rewrite, options.reuse, *_device(device.name, device.backend, device.profile)]
    text = json.dumps([world, traced.data], separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


def _device(name: str, backend: str, profile: Profile) -> tuple[str, ...]:
    return name, backend, repr(profile), config.computing()


@functools.cache
def _sources() -> str:
    """The package's version and files by size and times; '' where that does not tell what runs here: files that were
    changed since they were loaded, or no files at all."""
    root = Path(__file__).parents[1]
    try:
        found = sorted(_files(str(root)))
    except OSError:
        return ""
    if not found or max(changed for _, _, *times in found for changed in times) > _started * 1e9:
        return ""
    text = repr([(name[len(str(root)) :], *facts) for name, *facts in found])
    return f"{__version__} {sys.version_info[:3]} {np.__version__} {hashlib.blake2b(text.encode(), digest_size=20).hexdigest()}"


def _files(folder: str) -> Iterator[tuple[str, int, int, int]]:
    with os.scandir(folder) as entries:
        for e in entries:
            if e.is_dir(follow_symlinks=False):
                if e.name != "__pycache__":
                    yield from _files(e.path)
            elif e.name.endswith((".py", ".wgsl")):
                facts = e.stat()
                yield e.path, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


# ---- files ----


def read(path: Path, key: str) -> tuple[str, str] | None:
    """The graph and the plan ('' if it was not written yet) in a file; None if it is not there or not whole."""
    try:
        text = path.read_bytes()
        os.utime(path)  # it was used now
    except OSError:
        return None
    head, _, body = text.partition(b"\n")
    if head != _head(key, body):
        return None
    graph, _, made = body.decode().partition("\n")
    return graph, made


def write(path: Path, key: str, graph: str, made: str) -> None:
    """Write a file at one go, so that others see the old one or the new one."""
    body = f"{graph}\n{made}".encode()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(suffix=".part", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_head(key, body) + b"\n" + body)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
        _clear(path.parent)
    except OSError as e:
        _complain(f"the plan cache cannot write {path}: {e}")


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=20).digest()


def _head(key: str, body: bytes) -> bytes:
    return f"{FORMAT} {key} {hashlib.blake2b(body, digest_size=20).hexdigest()}".encode()


def _clear(folder: Path) -> None:
    """Remove the files that were not used for longest, beyond the number and bytes that are kept."""
    found = []
    for e in os.scandir(folder):
        with contextlib.suppress(OSError):  # another process removed it
            facts = e.stat()
            if e.name.endswith(".part") and facts.st_mtime < time.time() - STALE:
                os.unlink(e.path)
            elif e.name.endswith(".plan"):
                found.append((facts.st_mtime, facts.st_size, e.path))
    left = BYTES
    for i, (_, size, path) in enumerate(sorted(found, reverse=True)):
        left -= size
        if i >= FILES or left < 0:
            with contextlib.suppress(OSError):
                os.unlink(path)


def _complain(what: str) -> None:
    """Failures of the cache only cost time, so only those who debug hear of them."""
    if config.current().debug:
        warnings.warn(what, stacklevel=3)
