"""One bind for every op, and the stack of interpreters it goes to (Eager, Trace, Reference, and fusion's recorder).

In: an op row and its arguments. Out: what the current interpreter returns: a Tensor or a tuple of them. Knows no
device, no kernel and no gradient rule: those arrive through `hooks`, set by the layers above.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from .errors import MeganeuraError, TraceError
from .provenance import Site, site

if TYPE_CHECKING:
    from .ops.table import Op
    from .tensor import Tensor


class Interpreter:
    """What an op means. `apply` gets canonical positional values (one a parameter) and an output tensor for in-place."""

    name = "?"
    reads = True  # whether values can be read now

    def apply(self, op: Op, values: Sequence[Any], out: Tensor | None) -> Any:
        """Run (or note) one op; returns a Tensor, or a tuple of them for several outputs."""
        raise NotImplementedError

    def host_scalars(self, fn: Callable[[], Sequence[float | int]], count: int) -> Sequence[Any]:
        """Numbers the host computes anew at every execution (learning rates, step counts, random offsets)."""
        return fn()

    def gradient(self, op: Op, name: str, rule: Callable[..., Any], args: dict[str, Any]) -> Any:
        """Evaluate one gradient rule that need not be recorded itself; Eager fuses pointwise rules into one kernel."""
        return rule(**args)

    def persistent(self, fn: Callable[[], Any]) -> Any:
        """Run fn for real, now, whatever the interpreter: allocation of state that outlives this call."""
        return fn()

    def recomputing(self) -> contextlib.AbstractContextManager[None]:
        """A block that computes again what was computed before, so that it need not be kept."""
        return contextlib.nullcontext()

    def observe(self, owner: Any) -> None:
        """Called when a Module or Optimizer is used, so that a trace can guard what it read, and when a tensor gets a hook."""

    def named(self, tensor: Tensor, name: str) -> None:
        """Called when the user names a value."""

    def picked(self, tensor: Tensor) -> Tensor:
        """Called for x[i] with an i whose value cannot be read: a copy where eager has a view."""
        return tensor

    def upload(self, dtype: Any, array: Any) -> Tensor:
        """Make a tensor of this world from a numpy array."""
        raise NotImplementedError

    def read(self, tensor: Tensor) -> Any:
        """The tensor's values as a numpy array of its shape, in the dtype's numpy type."""
        raise NotImplementedError


class _State(threading.local):
    grad = True
    frame: Any = None  # of the checkpoint (recompute.py) that is running
    interpreter: Interpreter | None = None


class _Hooks:
    """Filled in by upper layers: the Tensor class, tensors from data, the tape, the view rule, what `out=` does and the default
    interpreter."""

    tensor: Any = None
    make: Callable[[Any], Tensor]
    record: Callable[..., Any]
    record_inplace: Callable[..., Any]
    view: Callable[..., Any]
    before_inplace: Callable[..., Any]
    into: Callable[..., Any]
    eager: Callable[[], Interpreter]


p_empty = inspect.Parameter.empty
state = _State()
hooks = _Hooks()


def current() -> Interpreter:
    """The interpreter on top of this thread's stack; Eager when there is none."""
    top = state.interpreter
    return hooks.eager() if top is None else top


@contextlib.contextmanager
def use(interpreter: Interpreter | None) -> Iterator[None]:
    """Run a block under another interpreter (None: Eager)."""
    before = state.interpreter
    state.interpreter = interpreter
    try:
        yield
    finally:
        state.interpreter = before


class set_grad_enabled(contextlib.ContextDecorator):
    """Turn recording for backward on or off for this thread; a context manager and a decorator, as in PyTorch."""

    def __init__(self, mode: bool) -> None:
        self.mode = mode
        self.before: list[bool] = []
        self.called = [state.grad] if type(self) is set_grad_enabled else []
        if self.called:  # as a plain call it stays in force
            state.grad = mode

    def __call__(self, fn: Any) -> Any:
        if self.called:
            state.grad = self.called.pop()
        return super().__call__(fn)

    def __enter__(self) -> None:
        self.before.append(self.called.pop() if self.called else state.grad)
        state.grad = self.mode

    def __exit__(self, *exc: object) -> None:
        state.grad = self.before.pop()


class no_grad(set_grad_enabled):
    """Operations inside record nothing for backward."""

    def __init__(self) -> None:
        super().__init__(False)


class enable_grad(set_grad_enabled):
    """Operations inside record for backward again."""

    def __init__(self) -> None:
        super().__init__(True)


def is_grad_enabled() -> bool:
    """Whether operations record for backward now."""
    return state.grad


def bind(op: Op, args: Sequence[Any], kwargs: dict[str, Any], out: Tensor | None = None) -> Any:
    """Bind arguments to an op's parameters and hand it to the current interpreter; extends the tape where needed."""
    values = args if not kwargs and len(args) == len(op.params) else fill(op, args, kwargs)
    if op.is_view:
        return hooks.view(op, values)
    top = state.interpreter
    if top is None:
        top = hooks.eager()
    if out is not None:
        values, history = hooks.before_inplace(op, values, out)
        result = top.apply(op, values, out)
        hooks.record_inplace(op, values, out, history)
        out._storage.version += 1
        return result
    result = top.apply(op, values, None)
    if op.mutates:
        for role in op.mutates:
            for t in values[op.names.index(role)]:
                t._storage.version += 1
    elif state.grad:
        hooks.record(op, values, result)
    return result


def fill(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Positional values for every parameter, with defaults; TypeError as for a plain Python function."""
    if len(args) > len(op.params):
        raise TypeError(f"{op.name}() takes {len(op.params)} arguments but {len(args)} were given\n  at {site()}")
    values = list(args)
    used = 0
    for p in op.params[len(args) :]:
        if p.name in kwargs:
            values.append(kwargs[p.name])
            used += 1
        elif p.default is not p_empty:
            values.append(p.default)
        else:
            raise TypeError(f"{op.name}() is missing the argument {p.name!r}\n  at {site()}")
    if used != len(kwargs):
        taken = set(op.names[: len(args)]) & set(kwargs)
        extra = sorted(set(kwargs) - set(op.names)) or sorted(taken)
        raise TypeError(f"{op.name}() got {'an unexpected' if not taken else 'two values for'} argument {extra[0]!r}\n  at {site()}")
    return values


def located(error: MeganeuraError, op: Op, where: Site) -> MeganeuraError:
    """The same error with the op's name and the user's line."""
    return type(error)(f"{op.shown}: {error}\n  at {where}")


class HostScalar:
    """A number that a compiled session asks the host for at every call. Arithmetic on it cannot be traced."""

    __slots__ = ("index", "source")

    def __init__(self, source: Callable[[], Sequence[float | int]], index: int) -> None:
        self.source, self.index = source, index

    def _refuse(self, *_: object) -> NoReturn:
        raise TraceError(f"a value computed by the host at every call was used as a Python number while tracing\n  at {site()}")

    __float__ = __int__ = __index__ = __bool__ = __neg__ = __abs__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __pow__ = __rpow__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse
