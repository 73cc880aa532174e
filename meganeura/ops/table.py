"""The op table: one row an op. `@op(...)` on a signature-only function makes the row; everything else is derived.

A row holds: archetype, numpy reference, gradient rules (one an input), shape and dtype rule where the archetype's
default does not do, samples. Calling the row binds it (dispatch.bind) to the current interpreter.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeVar, overload

from .. import dispatch
from ..dtype import DType
from ..errors import DTypeError
from ..provenance import site
from ..shape import Shape
from ..storage import Layout
from .archetype import Archetype, View

# Annotations of op parameters, read by name. An Operand is a Tensor or a Python number; scalars reach kernels at run
# time and never enter a pipeline key; every other annotation is a structural attribute.
Operand = Annotated[Any, "Operand"]
Scalar = Annotated[Any, "Scalar"]
IntScalar = Annotated[Any, "IntScalar"]
UIntScalar = Annotated[Any, "UIntScalar"]

TENSOR, OPTIONAL, OPERAND, LIST, SCALAR, ATTR = range(6)
RESULTS = ("result", "result1", "result2")  # how gradient rules name one output; `results` is all of them
_KINDS = {
    "Tensor": (TENSOR, ""),
    "Tensor | None": (OPTIONAL, ""),
    "Operand": (OPERAND, ""),
    "Sequence[Tensor]": (LIST, ""),
    "Scalar": (SCALAR, "f32"),
    "IntScalar": (SCALAR, "i32"),
    "UIntScalar": (SCALAR, "u32"),
}


class Spec(NamedTuple):
    """dtype and shape of an output."""

    dtype: DType
    shape: Shape


class Inferred(NamedTuple):
    """What a rule finds: outputs, the compute dtype of each input operand, and the attributes in canonical form."""

    outputs: tuple[Spec, ...]
    compute: tuple[DType, ...]
    attrs: dict[str, Any]


class Param(NamedTuple):
    """One argument: name, kind code, WGSL type of a scalar, default (inspect.Parameter.empty if required)."""

    name: str
    kind: int
    scalar: str
    default: Any


@dataclass(frozen=True)
class Sample:
    """One generated test input: positional and keyword arguments. Arrays are numpy; `torch` overrides the oracle."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @staticmethod
    def of(*args: Any, **kwargs: Any) -> Sample:
        return Sample(args, kwargs)


class Op:
    """A row of the table."""

    __slots__ = (
        "__weakref__", "archetype", "built", "commutes", "differentiable", "doc", "domain", "grad", "inputs", "is_view", "kinds", "known",
        "layout", "method", "module", "mutates", "name", "names", "params", "public", "random", "ref", "rule", "rule_args", "samples",
        "shown", "static_index", "torch",
    )  # fmt: skip

    def __init__(self, name: str, module: str, doc: str, archetype: Archetype, params: Sequence[Param], **fields: Any) -> None:
        self.name, self.module, self.doc = name, module, doc
        self.archetype = archetype
        self.is_view = isinstance(archetype, View)
        self.params = tuple(params)
        self.kinds = tuple(p.kind for p in params)
        self.names = tuple(p.name for p in params)
        self.inputs = tuple(p.name for p in params if p.kind in (TENSOR, OPTIONAL, OPERAND, LIST))
        self.ref: Callable[..., Any] | None = fields.pop("ref", None)
        self.grad: Mapping[str, Callable[..., Any] | None] = fields.pop("grad", {})
        self.rule: Callable[..., Inferred | Sequence[Spec] | Spec] | None = fields.pop("rule", None)
        self.layout: Callable[..., Layout] | None = fields.pop("layout", None)
        # by the names of the arguments, tensors of known values as numpy arrays: the arguments that may change for it, or None
        self.known: Callable[..., Mapping[str, Any] | None] | None = fields.pop("known", None)
        self.samples: Callable[[], Sequence[Sample]] | None = fields.pop("samples", None)
        self.differentiable: tuple[bool, ...] = fields.pop("differentiable", ())
        self.mutates: tuple[str, ...] = fields.pop("mutates", ())
        self.random: bool = fields.pop("random", False)
        self.commutes: bool = fields.pop("commutes", False)  # the first two inputs may change places
        self.static_index: bool = fields.pop("static_index", True)
        self.public: bool = fields.pop("public", True)
        self.method: bool = fields.pop("method", True)
        self.torch: str | None = fields.pop("torch", self.name)
        self.shown: str = fields.pop("shown", self.name.removesuffix("_row"))  # its name in messages
        self.domain: tuple[float, float] | None = fields.pop("domain", None)
        self.built: tuple[Any, ...] = fields.pop("built", ())  # for rows made by fusion: the function and its arguments
        if fields:
            raise TypeError(f"op {self.name}: unknown row fields {sorted(fields)}")
        self.rule_args = {n: tuple(inspect.signature(g).parameters) for n, g in self.grad.items() if g is not None}
        self._check()

    def _check(self) -> None:
        known = {"grad", "grads", *RESULTS, "results", *self.names, *(f"{n}_meta" for n in self.inputs), "result_meta"}
        for name, args in self.rule_args.items():
            if name not in self.inputs:
                raise TypeError(f"op {self.name}: gradient for {name!r}, which is no input")
            if unknown := set(args) - known:
                raise TypeError(f"op {self.name}: the gradient rule of {name!r} names unknown arguments {sorted(unknown)}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs and kwargs.get("out") is not None and "out" not in self.names:
            return dispatch.hooks.into(kwargs.pop("out"), self, args, kwargs)
        return dispatch.bind(self, args, kwargs)

    def __repr__(self) -> str:
        return f"<op {self.name}>"


def parameters(fn: Callable[..., Any]) -> list[Param]:
    """The parameters of a signature-only function, their kinds taken from the annotations."""
    out = []
    for p in inspect.signature(fn).parameters.values():
        kind, scalar = _KINDS.get(_written(p.annotation), (ATTR, ""))
        out.append(Param(p.name, kind, scalar, p.default))
    return out


def _written(annotation: Any) -> str:
    """An annotation as the table spells it, whether it was kept as text or evaluated, with or without a module before it."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"(?:typing\.)?Annotated\[(?:typing\.)?Any, '(\w+)'\]", r"\1", text.strip("'\""))
    return re.sub(r"\b(?:\w+\.)+(?=[A-Z])", "", text)


REGISTRY: dict[str, Op] = {}


def op(archetype: Archetype, **fields: Any) -> Callable[[Callable[..., Any]], Op]:
    """Make a row from a signature-only function and enter it in the table (see Op for the fields)."""

    def decorate(fn: Callable[..., Any]) -> Op:
        row = Op(fn.__name__, fn.__module__, inspect.cleandoc(fn.__doc__ or ""), archetype, parameters(fn), **fields)
        if row.name in REGISTRY:
            raise TypeError(f"op {row.name} is already in the table (from {REGISTRY[row.name].module})")
        REGISTRY[row.name] = row
        return row

    return decorate


COMPOSITES: dict[str, Callable[..., Any]] = {}
F = TypeVar("F", bound=Callable[..., Any])


def _checked(f: Callable[..., Any]) -> Callable[..., Any]:
    """A composite as users call it: an argument that is no tensor, where one is needed, is named,
    and `out` takes the result."""
    own = "out" in inspect.signature(f).parameters

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs and kwargs.get("out") is not None and not own:
            return dispatch.hooks.into(kwargs.pop("out"), f, args, kwargs)
        try:
            return f(*args, **kwargs)
        except AttributeError as e:
            wrong = e.obj
            if isinstance(wrong, dispatch.hooks.tensor) or not any(wrong is a for a in (*args, *kwargs.values())):
                raise
            raise DTypeError(f"{f.__name__} expects a tensor, got {wrong!r} ({type(wrong).__name__})\n  at {site()}") from None

    return call


@overload
def composite(fn: F) -> F: ...
@overload
def composite(*, method: bool) -> Callable[[F], F]: ...
def composite(fn: Any = None, *, method: bool = True) -> Any:
    """Enter a plain function of ops under its name: `mg.name` and, unless method=False, `Tensor.name`."""

    def decorate(f: F) -> F:
        public = _checked(f)
        public.__meganeura_method__ = method  # type: ignore[attr-defined]
        COMPOSITES[f.__name__] = public
        return f

    return decorate if fn is None else decorate(fn)
