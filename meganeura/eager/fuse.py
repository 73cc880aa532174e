"""Eager's gradient rules as single kernels: a pointwise rule is recorded once on symbols and runs as one Chain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import dispatch
from ..dispatch import Interpreter
from ..dtype import scalar_dtype
from ..errors import MeganeuraError
from ..ops.archetype import Pointwise
from ..ops.chain import Statement, chain_op, statement
from ..ops.infer import infer, named
from ..ops.table import ATTR, SCALAR, Op
from ..shape import broadcast_shapes
from ..storage import Layout, Storage
from ..tensor import Tensor

MAX_RULES = 4096  # fused rules kept


class _NotFusable(Exception):
    """The rule does something that is no pointwise chain."""


class _Number:
    """A number argument of a rule: usable as an operand only; arithmetic on it in Python ends fusion."""

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.kind = name, type(value)

    def _refuse(self, *_: Any) -> Any:
        raise _NotFusable

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = __float__ = __int__ = _refuse
    __lt__ = __gt__ = __le__ = __ge__ = __bool__ = __pow__ = __rpow__ = _refuse
    __eq__ = __ne__ = _refuse
    __hash__ = object.__hash__


class Recorder(Interpreter):
    """Records pointwise ops on symbolic tensors as chain statements."""

    name = "recorder"

    def __init__(self) -> None:
        self.names: dict[int, tuple[str, Layout]] = {}
        self.statements: list[Statement] = []
        self.parts: list[str] = []  # names of the ops
        self.scalars: list[tuple[str, str]] = []
        self.sources: list[tuple[str, Any]] = []  # a scalar's value: ('argument', name) or ('constant', value)

    def symbol(self, name: str, layout: Layout) -> Tensor:
        """A symbolic tensor standing for a value of the chain."""
        dense = Layout(layout.dtype, layout.shape)
        storage = Storage(layout.dtype, dense.numel, None, self)
        self.names[storage.uid] = (name, dense)
        return Tensor._make(storage, dense)

    def _scalar(self, source: tuple[str, Any], kind: str) -> str:
        for (name, have), known in zip(self.scalars, self.sources, strict=True):
            if have == kind and known == source and type(known[1]) is type(source[1]):
                return name
        name = f"s{len(self.scalars)}"
        self.scalars.append((name, kind))
        self.sources.append(source)
        return name

    def apply(self, op: Op, values: Sequence[Any], out: Tensor | None) -> Any:
        if out is not None or not isinstance(op.archetype, Pointwise) or op.random:
            raise _NotFusable
        plain = [v.kind(1) if isinstance(v, _Number) else v for v in values]
        inferred = infer(op, named(op, plain))
        (spec,) = inferred.outputs
        if spec.dtype.name in ("int8", "uint8", "bfloat16"):
            raise _NotFusable
        arguments: dict[str, tuple[str, str]] = {}
        compute: dict[str, Any] = {}
        at = 0
        for p, v in zip(op.params, values, strict=True):
            if p.kind == ATTR:
                continue
            if p.kind == SCALAR:
                arguments[p.name] = (self._scalar(_source(v), p.scalar), p.scalar)
                continue
            compute[p.name] = inferred.compute[at]
            arguments[p.name] = self._operand(v, inferred.compute[at])
            at += 1
        name = f"t{len(self.statements)}"
        self.parts.append(op.shown)
        self.statements.append(statement(op, name, {k: ("{" + t + "}", w) for k, (t, w) in arguments.items()}, compute, spec.dtype))
        return self.symbol(name, Layout(spec.dtype, spec.shape))

    def _operand(self, v: Any, compute: Any) -> tuple[str, str]:
        if isinstance(v, Tensor):
            known = self.names.get(v._storage.uid)
            if known is None or known[1] is not v.layout:
                raise _NotFusable
            return known[0], v.dtype.value
        kind = {"f": "f32", "i": "i32", "u": "u32", "b": "u32"}[compute.kind]
        return self._scalar(_source(v), kind), kind

    def read(self, tensor: Tensor) -> Any:
        raise _NotFusable

    def upload(self, dtype: Any, array: Any) -> Tensor:
        raise _NotFusable

    def host_scalars(self, fn: Callable[[], Sequence[float | int]], count: int) -> Sequence[Any]:
        raise _NotFusable


def _source(v: Any) -> tuple[str, Any]:
    return ("argument", v.name) if isinstance(v, _Number) else ("constant", v)


class FusedRules:
    """Chains of gradient rules, by op, input and operand layouts."""

    def __init__(self) -> None:
        self.known: dict[Any, Any] = {}

    def evaluate(self, eager: Any, op: Op, name: str, rule: Callable[..., Any], args: dict[str, Any]) -> Any:
        """rule(**args), through one kernel where the rule is a pointwise chain of more than one op."""
        if not isinstance(op.archetype, Pointwise) or op.random:
            return rule(**args)
        key = (op, name, *(_facts(v) for v in args.values()))
        try:
            plan = self.known.get(key)
        except TypeError:
            return rule(**args)
        if plan is None:
            if len(self.known) >= MAX_RULES:
                self.known.clear()
            plan = self.known[key] = self._record(rule, args) or ()
        if not plan:  # no chain: the rule as it stands
            return rule(**args)
        chain, inputs, sources = plan
        operands = [args[n] for n in inputs]
        scalars = [args[v] if where == "argument" else v for where, v in sources]
        return eager.apply(chain, operands + scalars, None)

    def _record(self, rule: Callable[..., Any], args: dict[str, Any]) -> Any:
        recorder = Recorder()
        symbols: dict[str, Any] = {}
        for n, v in args.items():
            if isinstance(v, Tensor):
                symbols[n] = recorder.symbol(n, v.layout)
            elif isinstance(v, (int, float)) and not isinstance(v, bool):
                symbols[n] = _Number(n, v)
            else:
                symbols[n] = v
        try:
            with dispatch.use(recorder), dispatch.no_grad():
                out = rule(**symbols)
        except (_NotFusable, MeganeuraError, TypeError):
            return None
        if not isinstance(out, Tensor) or out._storage.uid not in recorder.names or len(recorder.statements) < 2:
            return None
        result, layout = recorder.names[out._storage.uid]
        inputs = [n for n, v in args.items() if isinstance(v, Tensor) and any("{" + n + "}" in s[2] for s in recorder.statements)]
        if out.layout is not layout or not inputs or broadcast_shapes(*(args[n].shape for n in inputs)) != layout.shape:
            return None
        chain = chain_op(recorder.statements, [result], inputs, recorder.scalars, [layout.dtype], recorder.parts)
        return chain, inputs, tuple(recorder.sources)


def _facts(v: Any) -> Any:
    if isinstance(v, Tensor):
        return v.dtype, v.shape
    return scalar_dtype(v) if isinstance(v, (int, float)) and not isinstance(v, bool) else v  # as in `_record`
