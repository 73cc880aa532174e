"""`meganeura.compile`: the callable that users get, its sessions by signature, and what they can inspect."""

from __future__ import annotations

import functools
import inspect
import threading
import types
import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .. import config, dispatch
from ..errors import MeganeuraError, TraceError
from ..provenance import site
from ..quiet import paused
from ..storage import Layout, Storage
from ..tensor import Tensor, state_epoch
from . import debugging
from .arguments import hooks_of, is_dense, same_storage
from .egraph import needs_egglog
from .guard import Guard
from .ir import Graph
from .options import EGGLOG, Options
from .plan import Plan
from .program import Program
from .record import record
from .report import Report
from .session import Session
from .tree import flatten

SIGNATURES = 64  # kept a function; the one unused for longest goes first
CONSTANTS = 8  # values of one number argument before a warning
RETRACES = 8  # traces of one signature before a warning
REWRITES = ("off", "greedy", *EGGLOG)


@dataclass(slots=True)
class _Recent:
    """The last call's program, if it was called with tensors alone that share no memory, lie densely and have no history: the
    next call is mostly like it, and need not look it up."""

    program: Program
    key: Any
    layouts: list[Layout]
    sources: list[int]
    grad: bool
    world: Any

    @classmethod
    def of(cls, program: Program, key: Any, leaves: list[Tensor], sources: list[int]) -> _Recent | None:
        """What to remember of a call, if it is of this kind."""
        spec, _, grad, debugged, world = key
        usual = spec == len(leaves) and not debugged and not program.guard.shared and sources == list(range(len(leaves)))
        usual = usual and all(type(t) is Tensor and is_dense(t) and not _history(t) for t in leaves)
        return cls(program, key, [t.layout for t in leaves], sources, grad, world) if usual else None

    def storages(self, args: tuple[Any, ...]) -> list[Storage] | None:
        """Those of a call's arguments, if the call surely has the same signature and the program is valid."""
        if len(args) != len(self.layouts):
            return None
        found: list[Storage] = []
        for t, layout in zip(args, self.layouts):
            if type(t) is not Tensor or t.layout is not layout or t._node is not None or t._base is not None or t._leaf:
                return None
            storage = t._storage
            if storage in found:
                return None
            found.append(storage)
        if dispatch.state.grad is not self.grad or dispatch.hooks.eager() is not self.world or debugging.active() is not None:
            return None
        guard = self.program.guard
        if guard.changed(args):
            return None
        uids = guard.uids  # as `changed` left them
        for storage in found:
            if storage.uid in uids:
                return None
        return found


class Compiled:
    """A compiled function. Call it as the function; `graph`, `plan` and `session` show what a call with these arguments does.

    `traces` counts how often the function was traced, `retraces` those after a guard broke, `sessions` what is cached,
    `cache_hits` the graphs that came from the plan cache on disk instead of being rewritten.
    """

    def __init__(self, fn: Callable[..., Any], options: Options, name: str = "") -> None:
        self.fn, self.options = fn, options
        self.name = name or getattr(fn, "__name__", type(fn).__name__)
        self.programs: OrderedDict[Any, list[Program]] = OrderedDict()
        self.traces = self.retraces = self.cache_hits = 0
        self._constants: dict[Any, set[Any]] = {}
        self._dropped: OrderedDict[int, None] = OrderedDict()  # signatures whose sessions had to go
        self._recent: _Recent | None = None
        self._lock = threading.RLock()
        functools.update_wrapper(self, fn, updated=())

    @property
    def sessions(self) -> int:
        """How many traced signatures are cached."""
        return sum(map(len, self.programs.values()))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if dispatch.state.interpreter is not None:  # inside another trace, or under the reference: plain code
            return self.fn(*args, **kwargs)
        with self._lock:
            recent = self._recent
            if recent is not None and not kwargs and (bound := recent.storages(args)) is not None:
                return recent.program.run(args, recent.sources, args, kwargs, bound)
            program, leaves, sources = self._find(args, kwargs)
            return program.run(leaves, sources, args, kwargs)

    def __deepcopy__(self, memo: Any) -> Compiled:
        return self  # as functions are

    def __copy__(self) -> Compiled:
        return self

    def __reduce__(self) -> str:
        return getattr(self, "__qualname__", self.name)  # by name, as functions are

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    # ---- finding the program ----

    def _find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Program, list[Tensor], list[int]]:
        """The program of a call, traced now if there is none that is valid."""
        recent = self._recent
        if recent is not None and recent.key in self.programs:
            self.programs.move_to_end(recent.key)
        self._recent = None
        leaves: list[Tensor] = list(args)
        spec: Any = len(args)  # the usual: tensors alone
        if kwargs or False in [isinstance(a, Tensor) for a in args]:
            leaves = []
            spec = flatten((args, kwargs), leaves)
        sources = same_storage(leaves)
        facts = [(t.layout.dtype, t.layout.shape, _history(t), leaves[s] is t, s) for t, s in zip(leaves, sources, strict=True)]
        world = dispatch.hooks.eager()
        key = (spec, tuple(facts), dispatch.state.grad, debugging.active() is not None, world)
        known = self.programs.get(key)
        reason = ""
        if known is not None:
            self.programs.move_to_end(key)
            for program in known:
                broken = program.guard.broken(leaves)
                if not broken:
                    self._recent = _Recent.of(program, key, leaves, sources)
                    return program, leaves, sources
                reason = reason or broken  # of the newest
        return self._trace(key, (args, kwargs), leaves, sources, reason), leaves, sources

    def _trace(self, key: Any, args: Any, leaves: list[Tensor], sources: list[int], reason: str) -> Program:
        self._warn(args, key, reason)
        world, epoch = key[-1], state_epoch[0]
        for i, t in enumerate(leaves):
            if t._storage.world is not world:
                raise TraceError(f"argument tensor {i} ({t.layout}) lives on {t._storage.world!r}, not on {world!r}\n  at {site()}")
        options = self.options if debugging.active() is None else debugging.OPTIONS
        with paused():
            found = record(self.fn, args, leaves, sources)
            program = Program(self.name, found, Guard(found, epoch), options, world, self.fn)
        self.traces += 1
        self.cache_hits += program.cache_hits
        known = self.programs.setdefault(key, [])
        self.retraces += bool(known)
        known.insert(0, program)
        del known[RETRACES:]
        while len(self.programs) > SIGNATURES:
            self._dropped[hash(self.programs.popitem(last=False)[0])] = None
            while len(self._dropped) > 16 * SIGNATURES:
                self._dropped.popitem(last=False)
        return program

    def _warn(self, args: tuple[tuple[Any, ...], dict[str, Any]], key: Any, reason: str) -> None:
        """Tell of numbers that should be tensors and of state that keeps changing."""
        if reason and len(self.programs[key]) == RETRACES:
            warnings.warn(
                f"{self.name} was traced {RETRACES} times for one signature; last because of {reason}. "
                f"What changes from call to call should be an argument, or a tensor that is changed in place",
                stacklevel=4,
            )
        if self._dropped.pop(hash(key), self) is None:
            warnings.warn(
                f"{self.name} is called with more than the {SIGNATURES} signatures whose sessions are kept, and traces dropped ones again; "
                f"{_varying([key, *self.programs])}",
                stacklevel=4,
            )
        for name, value in (*enumerate(args[0]), *args[1].items()):
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                values = self._constants.setdefault(name, set())
                values.add(value)
                if len(values) == CONSTANTS + 1:
                    warnings.warn(
                        f"{self.name} is traced for every value of its argument {name!r} ({CONSTANTS + 1} so far, now {value!r}); "
                        f"pass a tensor: meganeura.tensor({value!r})",
                        stacklevel=4,
                    )

    # ---- inspection ----

    def graph(self, *args: Any, **kwargs: Any) -> Graph:
        """The graph of a call with these arguments, after all passes. Traces it if need be; runs nothing."""
        with self._lock:
            return self._find(args, kwargs)[0].graph

    def backward_graph(self, *args: Any, **kwargs: Any) -> Graph | None:
        """The graph that turns gradients of all results into those of arguments and parameters, if the results have history."""
        with self._lock:
            parts = list(self._find(args, kwargs)[0].backward.values())
            return parts[0].graph if parts else None

    def report(self, *args: Any, **kwargs: Any) -> list[Report]:
        """What the rewrites did to the graphs of a call with these arguments: the forward one, then the backward ones."""
        with self._lock:
            *backward, forward = self._find(args, kwargs)[0].reports
            return [forward, *backward]

    def session(self, *args: Any, **kwargs: Any) -> Session:
        """The session of a call with these arguments."""
        with self._lock:
            return self._find(args, kwargs)[0].ensure_session()

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The memory plan of a call with these arguments: buffers, bytes with and without reuse, and each step's buffers."""
        return self.session(*args, **kwargs).plan

    def __repr__(self) -> str:
        return f"<compiled {self.name}: {self.sessions} sessions, {self.traces} traces>"


def _history(t: Tensor) -> Any:
    """0: no gradient wanted, 1 (or its hooks): a leaf that wants one, 2: computed with history."""
    if t._node is None and t._base is None:  # nothing to bring up to date
        return (hooks_of(t) or 1) if t._leaf else 0
    return 0 if not t.requires_grad else (hooks_of(t) or 1) if t.grad_fn is None else 2


def _varying(keys: list[Any]) -> str:
    """What differs most between signatures of equally many tensors, and what to do about it."""
    facts = [k[1] for k in keys if len(k[1]) == len(keys[0][1])]
    shapes = [len({f[i][1] for f in facts}) for i in range(len(facts[0]))]
    if not shapes or max(shapes) < 2:
        return "constant arguments differ: pass numbers that change as tensors"
    most = max(range(len(shapes)), key=lambda i: shapes[i])
    return f"argument tensor {most} had {shapes[most]} shapes: pad to a few sizes, or bring batches to one"


def compile(fn: Any = None, *, precision: str = "highest", rewrite: str | None = None, debug: bool | None = None) -> Any:
    """Compile a function or Module of ordinary eager code: it is traced once a signature and replayed as one session.

    A signature is the arguments' shapes, dtypes and Python constants; a session stays valid while the state that the
    code read (training mode, requires_grad, parameter groups) is the same. Also a decorator, with or without arguments.
    precision: 'highest' (strict float32). rewrite: 'greedy', 'off', or with the extra `egglog` 'egglog-windowed',
    'egglog-outlined' or 'egglog-whole' (docs/compile.md says when). debug: check the graph after every pass and give every
    value a buffer of its own. Raises TraceError for code that cannot be traced.
    """
    if precision != "highest":
        raise MeganeuraError(f"precision={precision!r}: this version computes in 'highest' only")
    settings = config.current()
    mode = rewrite if rewrite is not None else settings.optimizer or "greedy"
    if mode not in REWRITES:
        raise MeganeuraError(f"rewrite={mode!r}: this version knows {', '.join(map(repr, REWRITES))}")
    if mode in EGGLOG:
        needs_egglog(mode)
    debug = settings.debug if debug is None else debug
    options = Options(mode, debug, not (debug or settings.no_alias or settings.pin_bufs))
    if fn is None:
        return functools.partial(compile, precision=precision, rewrite=rewrite, debug=debug)
    if isinstance(fn, Compiled):
        return fn
    if isinstance(fn, (staticmethod, classmethod)):
        return type(fn)(compile(fn.__func__, precision=precision, rewrite=rewrite, debug=debug))
    if isinstance(fn, type):
        raise TypeError(f"compile() takes a function or a Module, not the class {fn.__name__}: compile an instance, or its method")
    if hasattr(fn, "_fingerprint") and hasattr(fn, "forward"):
        return compiled_module(fn, options)
    if not callable(fn):
        raise TypeError(f"compile() takes a function or a Module, not {type(fn).__name__}")
    if inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
        raise TypeError("compile() cannot trace an async function, which runs in parts; compile the plain functions that it calls")
    return Compiled(fn, options)


def compiled_module(module: Any, options: Options) -> Any:
    """A Module over the same parameters, buffers and attributes as `module`, whose calls are compiled."""
    plain = type(module)
    compiled = Compiled(functools.partial(plain.__call__, module), options, plain.__name__)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return compiled(*args, **kwargs)

    def reduce(self: Any) -> Any:
        return _recompile, (module, options.rewrite, options.debug)

    members = {"__call__": call, "__reduce__": reduce, "__module__": plain.__module__, "__doc__": plain.__doc__, "compiled": compiled}
    members |= {"graph": compiled.graph, "plan": compiled.plan, "session": compiled.session}
    wrapper: Any = object.__new__(type(plain.__name__, (plain,), members))
    wrapper.__dict__ = module.__dict__
    return wrapper


def _recompile(module: Any, rewrite: str, debug: bool) -> Any:
    return compile(module, rewrite=rewrite, debug=debug)
