"""Functions with a gradient of their own: `autograd.Function`, as torch.autograd.Function.

In: a subclass with `forward` and `backward`. Out: `apply`, whose results hang on one node of the tape. Both are written
in ops, so they work eagerly, by the references and compiled, and `backward` can be differentiated again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from . import dispatch
from .autodiff import Node, edge_of, fit, needs_grad
from .errors import GradientError, ShapeError
from .ops.factory import zeros
from .provenance import site
from .storage import Layout
from .tensor import Tensor


class Context:
    """What forward leaves for backward: saved tensors, any attributes, and what was said about the results."""

    needs_input_grad: tuple[bool, ...]

    def __init__(self) -> None:
        self._saved: tuple[Tensor | None, ...] = ()
        self._dirty: tuple[Tensor, ...] = ()
        self._constant: tuple[Tensor, ...] = ()
        self._zeros = True
        self._kept: list[_Saved | None] | None = None
        self._node: weakref.ref[FunctionNode] | None = None

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep inputs and results (or None) for `saved_tensors` in backward; a change in place until then is an error there."""
        self._saved = tensors

    def mark_dirty(self, *tensors: Tensor) -> None:
        """These inputs were changed in place; forward returns them."""
        self._dirty = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """These results have no gradient."""
        self._constant = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Whether backward gets zeros (usual) or None for results through which no gradient came."""
        self._zeros = value

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """What save_for_backward kept."""
        if self._kept is None:
            return self._saved
        node = None if self._node is None else self._node()
        if node is not None and node.freed:
            raise GradientError(f"the saved tensors of {node.name} were freed; pass retain_graph=True the first time\n  at {site()}")
        return tuple(None if s is None else s.unpack(node) for s in self._kept)


class _Saved:
    """A saved tensor: an input itself, or a result by its memory (the result refers to the node, which would keep it)."""

    __slots__ = ("layout", "number", "storage", "tensor", "version")

    def __init__(self, tensor: Tensor, number: int | None) -> None:
        self.tensor = tensor if number is None else None
        self.number, self.storage, self.layout, self.version = number, tensor._storage, tensor.layout, tensor._storage.version

    def unpack(self, node: FunctionNode | None) -> Tensor:
        if self.storage.version != self.version:
            name, where = (node.name, node.site) if node is not None else ("a function", "")
            raise GradientError(
                f"a tensor ({self.layout}) that {name} saved for backward was changed in place "
                f"{self.storage.version - self.version} time(s) since\n  recorded at {where}\n  clone() it before the change"
            )
        if self.tensor is not None:
            return self.tensor
        t = Tensor._make(self.storage, self.layout)
        if dispatch.state.grad and node is not None and self.number is not None:
            t._node, t._index = node, self.number
        return t


class FunctionNode(Node):
    """One application of a Function. `inputs`: the layout of each argument that is a tensor."""

    __slots__ = ("call", "context", "inputs")

    def __init__(self, name: str, call: Callable[..., Any], context: Context, args: Sequence[Any], metas: list[Layout | None]) -> None:
        edges = [edge_of(a) if isinstance(a, Tensor) and a.dtype.is_floating_point else None for a in args]
        super().__init__(name, edges, metas, site())
        self.call, self.context = call, context
        self.inputs = [a.layout if isinstance(a, Tensor) else None for a in args]

    def backward(self, grads: list[Tensor | None], create_graph: bool) -> Sequence[Tensor | None]:
        given = [
            zeros(m.shape, dtype=m.dtype) if g is None and m is not None and self.context._zeros else g
            for g, m in zip(grads, self.metas, strict=True)
        ]
        found = self.call(self.context, *given)
        found = found if isinstance(found, tuple) else (found,)
        if len(found) < len(self.inputs) or any(g is not None for g in found[len(self.inputs) :]):
            raise GradientError(
                f"{self.name}.backward returned {len(found)} gradients for {len(self.inputs)} inputs\n  recorded at {self.site}\n"
                f"  return one an input of forward, None for those without"
            )
        return [
            None if edge is None or layout is None else self._fit(i, g, layout)
            for i, (g, layout, edge) in enumerate(zip(found, self.inputs, self.edges))
        ]

    def _fit(self, number: int, g: Tensor | None, layout: Layout) -> Tensor | None:
        try:
            return fit(g, layout)
        except ShapeError:
            shape = None if g is None else list(g.shape)
            raise GradientError(
                f"{self.name}.backward returned a gradient of shape {shape} for input {number} ({layout})\n  recorded at {self.site}"
            ) from None

    def release(self) -> None:
        self.freed = True
        self.context._kept = []


class Function:
    """An operation with a gradient of your own. Subclass it and call `apply`; the arguments of all are PyTorch's:

    `forward(ctx, *args)`, or `forward(*args)` with `setup_context(ctx, inputs, output)`, computes without recording;
    `backward(ctx, *grads)` returns a gradient an argument of forward, None for those without.
    """

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """The result, or a tuple of them."""
        raise NotImplementedError("a Function needs a forward()")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """What to keep, where forward takes no ctx."""
        raise NotImplementedError("this Function's forward() takes ctx itself")

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Gradients of the arguments from those of the results."""
        raise NotImplementedError("a Function needs a backward() to be differentiated")

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """forward(*args), recorded as one node."""
        context = Context()
        recording = dispatch.is_grad_enabled()
        context.needs_input_grad = tuple(recording and isinstance(a, Tensor) and needs_grad(a) for a in args)
        with dispatch.no_grad():
            if cls.setup_context is not Function.setup_context:
                result = cls.forward(*args, **kwargs)
                cls.setup_context(context, args, result)
            else:
                result = cls.forward(context, *args, **kwargs)
        results = result if isinstance(result, tuple) else (result,)
        if any(context.needs_input_grad):
            results = cls._record(context, args, results)
        return results if isinstance(result, tuple) else results[0]

    @classmethod
    def _record(cls, context: Context, args: tuple[Any, ...], results: tuple[Any, ...]) -> tuple[Any, ...]:
        constant = {id(t) for t in context._constant}
        metas = [r.layout if isinstance(r, Tensor) and r.dtype.is_floating_point and id(r) not in constant else None for r in results]
        node = FunctionNode(cls.__name__, cls.backward, context, args, metas)
        places = {id(r): i for i, r in reversed(list(enumerate(results))) if isinstance(r, Tensor)}
        given = {id(a) for a in args if isinstance(a, Tensor)}
        context._kept = [None if t is None else _Saved(t, places.get(id(t)) if id(t) not in given else None) for t in context._saved]
        dirty = {id(t) for t in context._dirty}
        context._saved = context._dirty = context._constant = ()  # results refer to the node, and it to the context
        context._node = weakref.ref(node)
        out = []
        for i, r in enumerate(results):
            if metas[i] is not None:
                r = _placed(r, node, i, id(r) in dirty, id(r) in given)
            out.append(r)
        return tuple(out)


def _placed(r: Tensor, node: FunctionNode, number: int, dirty: bool, given: bool) -> Tensor:
    """A result on the node: an input that was changed is put there itself, one that was handed back as another tensor."""
    if dirty:
        if r._leaf or r._base is not None:
            kind = "leaf that requires grad" if r._leaf else "view"
            raise GradientError(f"{node.name}: a {kind} cannot be changed in place by a Function\n  at {site()}\n  clone() it")
        r._rewrites += 1
    elif given or r._base is not None:
        r = Tensor._make(r._storage, r.layout)
    r._node, r._index, r._leaf = node, number, False
    return r
