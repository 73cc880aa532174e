"""Reverse mode, once: the tape that every interpreter shares. Under Trace the same engine differentiates the IR.

A node keeps only what its gradient rules name. Rules are written in ops, so a backward pass may itself be recorded
(create_graph). Engine order: highest sequence number first, so every run adds up gradients in the same order.
"""

from __future__ import annotations

import heapq
import itertools
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from . import dispatch
from .dispatch import set_grad_enabled, state
from .errors import GradientError, NoGradientError, ShapeError
from .ops.table import ATTR, LIST, RESULTS, SCALAR, Op
from .provenance import WATCHERS, Site, phase, scope, site
from .shape import extent, numel
from .spans import span
from .storage import Layout
from .tensor import Tensor

_sequence = itertools.count(1)
Edge = tuple[Any, int] | None  # (Node or leaf Tensor, output number)


class Node:
    """One recorded operation. `edges[i]` says where the gradient of its i-th differentiable input goes."""

    __slots__ = ("__weakref__", "edges", "freed", "hooks", "metas", "name", "retain", "seq", "site")

    def __init__(self, name: str, edges: list[Edge], metas: list[Layout | None], where: Site) -> None:
        self.seq = next(_sequence)
        self.name, self.edges, self.metas, self.site = name, edges, metas, where
        self.hooks: dict[int, list[Callable[[Tensor], Tensor | None]]] | None = None
        self.retain: dict[int, weakref.ref[Tensor]] | None = None
        self.freed = False

    def backward(self, grads: list[Tensor | None], create_graph: bool) -> Sequence[Tensor | None]:
        """Gradients for the edges from the gradients of the outputs (None: no gradient arrived)."""
        raise NotImplementedError

    def release(self) -> None:
        """Drop what was saved; a second backward raises."""
        self.freed = True

    def __repr__(self) -> str:
        return f"<{self.name}Backward>"


class OpNode(Node):
    """A node of a row: its gradient rules give the input gradients."""

    __slots__ = ("args", "frame", "inputs", "op", "versions")

    def __init__(self, op: Op, edges: list[Edge], metas: list[Layout | None], where: Site) -> None:
        super().__init__(op.name, edges, metas, where)
        self.op = op
        self.inputs: list[tuple[str, Layout]] = []  # name and layout of each edge's input
        self.args: dict[str, Any] = {}
        self.versions: dict[str, int] = {}
        self.frame: Any = state.frame  # of a checkpoint, which has the arguments computed again
        if self.frame is not None:
            self.frame.add(self)
            self.frame = None  # until the checkpoint is left

    def save(self, values: Sequence[Any], results: tuple[Tensor, ...], inplace: bool) -> None:
        """Keep the arguments that the rules of the inputs needing a gradient name. The version counter of an in-place
        result is bumped right after this: its old value (an input) is then known to be gone, its new one is current."""
        op = self.op
        wanted: set[str] = set()
        for (name, _), edge in zip(self.inputs, self.edges, strict=True):
            if edge is not None:
                wanted.update(op.rule_args.get(name.split(".")[0], ()))
        for name in wanted:
            if name in ("grad", "grads"):
                continue
            if name == "results":
                self.args[name] = tuple(_Output(r, int(inplace)) for r in results)
            elif name in RESULTS:
                self.args[name] = _Output(results[RESULTS.index(name)], int(inplace))
            elif name == "result_meta":
                self.args[name] = results[0].layout
            elif name.endswith("_meta"):
                v = values[op.names.index(name[:-5])]
                self.args[name] = tuple(t.layout for t in v) if isinstance(v, (list, tuple)) else getattr(v, "layout", v)
            else:
                self._keep(name, values[op.names.index(name)])

    def _keep(self, name: str, value: Any) -> None:
        self.args[name] = value
        if isinstance(value, Tensor):
            self.versions[name] = value._storage.version
        elif isinstance(value, (list, tuple)) and value and isinstance(value[0], Tensor):
            self.versions[name] = sum(t._storage.version for t in value)  # versions only grow

    def _argument(self, name: str, grads: list[Tensor | None]) -> Any:
        if name == "grad":
            return grads[0]
        if name == "grads":
            return tuple(grads)
        if self.frame is not None:
            self.frame.restore()
        value = self.args[name]
        if name == "results":
            return tuple(v.unpack(self, i) for i, v in enumerate(value))
        if name in RESULTS:
            return value.unpack(self, RESULTS.index(name))
        if name in self.versions:
            now = value._storage.version if isinstance(value, Tensor) else sum(t._storage.version for t in value)
            if now != self.versions[name]:
                raise GradientError(_changed(self, name, now - self.versions[name]))
        return value

    def backward(self, grads: list[Tensor | None], create_graph: bool) -> Sequence[Tensor | None]:
        out: list[Tensor | None] = []
        lists: dict[str, Any] = {}
        for (name, layout), edge in zip(self.inputs, self.edges, strict=True):
            if edge is None:
                out.append(None)
                continue
            base, _, number = name.partition(".")
            rule = self.op.grad.get(base)
            if rule is None:
                raise NoGradientError(
                    f"{self.op.name} has no gradient rule for its input {base!r} ({layout})\n  recorded at {self.site}\n"
                    f"  detach() that input, or use an op with a gradient"
                )
            if number:
                if base not in lists:
                    lists[base] = rule(**{n: self._argument(n, grads) for n in self.op.rule_args[base]})
                g = lists[base][int(number)]
            else:
                args = {n: self._argument(n, grads) for n in self.op.rule_args[base]}
                g = dispatch.current().gradient(self.op, base, rule, args) if not create_graph else rule(**args)
            out.append(fit(g, layout))
        return out

    def release(self) -> None:
        self.freed = True
        self.args = {}
        self.frame = None


class _Output:
    """A saved output: no reference to the tensor (which refers to the node)."""

    __slots__ = ("layout", "storage", "version")

    def __init__(self, t: Tensor, ahead: int) -> None:
        self.storage, self.layout, self.version = t._storage, t.layout, t._storage.version + ahead

    def unpack(self, node: OpNode, index: int) -> Tensor:
        if self.storage.version != self.version:
            raise GradientError(_changed(node, "result", self.storage.version - self.version))
        t = Tensor._make(self.storage, self.layout)
        if state.grad:
            t._node, t._index = node, index
        return t


def _changed(node: Node, name: str, times: int) -> str:
    return (
        f"the value {name!r} that {node.name} saved for backward was changed in place {times} time(s) since\n"
        f"  {node.name} recorded at {node.site}\n  use an out-of-place op there, or clone() the tensor before changing it"
    )


def fit(grad: Tensor | None, layout: Layout) -> Tensor | None:
    """Undo broadcasting and promotion: the gradient in the input's shape and dtype."""
    if grad is None:
        return None
    if grad.shape != layout.shape:
        grad = grad.sum_to_size(layout.shape)
    return grad if grad.dtype is layout.dtype else grad.to(layout.dtype)


# ---- recording ------------------------------------------------------------------------------------------------


def edge_of(t: Tensor) -> Edge:
    """Where the gradient of a tensor goes; brings a view of a changed base up to date first."""
    base = t._base
    if base is not None and t._seen != base._rewrites:
        _regenerate(t, base)
    if t._node is not None:
        return t._node, t._index
    return (t, 0) if t._leaf else None


def _tensor_inputs(op: Op, values: Sequence[Any]) -> Iterable[tuple[str, Tensor]]:
    for p, v in zip(op.params, values, strict=True):
        if p.kind in (ATTR, SCALAR):
            continue
        if p.kind == LIST:
            for i, t in enumerate(v):
                yield f"{p.name}.{i}", t
        elif isinstance(v, Tensor):
            yield p.name, v


def needs_grad(t: Tensor) -> bool:
    """Whether a gradient must flow to t."""
    return t._leaf or t._node is not None or (t._base is not None and t._seen != t._base._rewrites)


def record(op: Op, values: Sequence[Any], result: Any) -> None:
    """Extend the tape by one op, if anything it read needs a gradient."""
    for v in values:
        if v.__class__ in _PLAIN:
            continue
        if isinstance(v, Tensor):
            if needs_grad(v):
                break
        elif isinstance(v, (list, tuple)) and any(isinstance(t, Tensor) and needs_grad(t) for t in v):
            break
    else:
        return
    results = result if isinstance(result, tuple) else (result,)
    node = make_node(op, values, results)
    for i, r in enumerate(results):
        if node.metas[i] is not None:
            r._node, r._index = node, i


_PLAIN = (int, float, bool, str, type(None))


def make_node(op: Op, values: Sequence[Any], results: tuple[Tensor, ...], inplace: bool = False) -> OpNode:
    """The node of one op application."""
    flags = op.differentiable
    metas = [r.layout if r.dtype.is_floating_point and (not flags or flags[i]) else None for i, r in enumerate(results)]
    node = OpNode(op, [], metas, site())
    for name, t in _tensor_inputs(op, values):
        node.edges.append(edge_of(t) if t.dtype.is_floating_point else None)
        node.inputs.append((name, t.layout))
    node.save(values, results, inplace)
    return node


def before_inplace(op: Op, values: Sequence[Any], out: Tensor) -> tuple[Sequence[Any], tuple[Edge, dict[str, Tensor]]]:
    """Checks of an in-place op before it runs; returns the values (what overlaps `out` differently is copied first),
    the edge of out's present value, and copies of it under the names by which gradient rules will ask for it."""
    if out._leaf and state.grad:
        raise GradientError(f"{op.name}_: a leaf tensor that requires grad cannot be changed in place; use no_grad()\n  at {site()}")
    if any(st == 0 and n > 1 for st, n in zip(out.layout.strides, out.shape, strict=True)):
        raise ShapeError(
            f"{op.name}_: cannot write to an expanded tensor {out.layout}: several elements share memory; clone() it first\n  at {site()}"
        )
    if state.grad and out._base is not None:
        _check_view(op, values, out, out._base)
    if any(_clashes(t, out) for _, t in _tensor_inputs(op, values)):
        values = [v.clone() if isinstance(v, Tensor) and _clashes(v, out) else v for v in values]
    return values, (edge_of(out), _originals(op, values, out) if state.grad else {})


def _originals(op: Op, values: Sequence[Any], out: Tensor) -> dict[str, Tensor]:
    named = {n: v for n, v in zip(op.names, values, strict=True) if isinstance(v, Tensor)}
    wanted = {a for n, v in named.items() if needs_grad(v) for a in op.rule_args.get(n, ())}
    return {n: v.clone() for n, v in named.items() if v is out and n in wanted}


def _clashes(t: Tensor, out: Tensor) -> bool:
    if t._storage is not out._storage or t.layout is out.layout:
        return False
    (a, b), (c, d) = t.layout.span(), out.layout.span()
    return a <= d and c <= b


def _check_view(op: Op, values: Sequence[Any], out: Tensor, base: Tensor) -> None:
    tracked = needs_grad(out) or needs_grad(base) or any(needs_grad(t) for _, t in _tensor_inputs(op, values))
    if tracked and base._leaf:
        raise GradientError(f"{op.name}_: a view of a leaf tensor that requires grad cannot be changed in place\n  at {site()}")
    if tracked and out._view in ("multi", "no_grad"):
        kind = "an output of an op with several views" if out._view == "multi" else "a view made under no_grad()"
        raise GradientError(f"{op.name}_: {kind} cannot be changed in place while recording; use an out-of-place op\n  at {site()}")


def _record_inplace(op: Op, values: Sequence[Any], out: Tensor, before: tuple[Edge, dict[str, Tensor]]) -> None:
    if not state.grad or not out.dtype.is_floating_point:
        return
    base = out._base
    history, originals = before
    if history is None and not any(needs_grad(t) for _, t in _tensor_inputs(op, values)) and (base is None or not needs_grad(base)):
        return
    node = make_node(op, values, (out,), inplace=True)
    for name, original in originals.items():
        if name in node.args:
            node._keep(name, original)
    if base is None:
        out._node, out._index, out._leaf = node, 0, False
        out._rewrites += 1
        return
    own = [i for i, (_, t) in enumerate(_tensor_inputs(op, values)) if t is out]
    base._node, base._index, base._leaf = CopySlices(edge_of(base), base.layout, out.layout, node, own), 0, False
    base._rewrites += 1


class CopySlices(Node):
    """A part of a base was overwritten by another node's result: splits the gradient between base and that node.
    `own` numbers the inner node's edges that read the overwritten part itself."""

    __slots__ = ("base", "inner", "own", "view")

    def __init__(self, base_edge: Edge, base: Layout, view: Layout, inner: OpNode, own: list[int]) -> None:
        super().__init__(f"CopySlices[{inner.name}]", [base_edge, *inner.edges], [base], inner.site)
        self.base, self.view, self.inner, self.own = base, relative(base, view), inner, own

    def backward(self, grads: list[Tensor | None], create_graph: bool) -> Sequence[Tensor | None]:
        grad = grads[0]
        assert grad is not None
        if not grad.layout.contiguous or grad.layout.offset:
            grad = grad.clone()  # the view's strides are those of a dense base; an expanded gradient has fewer elements
        view = self.view
        inner = list(self.inner.backward([grad.as_strided(view.shape, view.strides, view.offset).clone()], create_graph))
        flowing: Tensor | None = None
        for i in self.own:
            if (g := inner[i]) is not None:
                flowing = g if flowing is None else flowing + g
            inner[i] = None
        rest = grad.clone()
        part = rest.as_strided(view.shape, view.strides, view.offset)
        if flowing is None:
            part.zero_()
        else:
            part.copy_(flowing)
        return [rest, *inner]

    def release(self) -> None:
        self.freed = True
        self.inner.release()


class AsStrided(Node):
    """A view of a base whose history was rewritten: takes the gradient of the view to the base's shape."""

    __slots__ = ("base", "view")

    def __init__(self, base_edge: Edge, base: Layout, view: Layout) -> None:
        super().__init__("AsStrided", [base_edge], [view], site())
        self.base, self.view = base, relative(base, view)

    def backward(self, grads: list[Tensor | None], create_graph: bool) -> Sequence[Tensor | None]:
        grad = grads[0]
        return [None if grad is None else grad.as_strided_scatter(self.base.shape, self.view.strides, self.view.offset)]


def relative(base: Layout, view: Layout) -> Layout:
    """The view's place inside a contiguous tensor shaped like its base."""
    if not base.contiguous:
        raise GradientError(f"in-place changes through views of a non-contiguous base ({base}) cannot be recorded; clone() the base")
    low, high = extent(view.shape, view.strides)
    offset = view.offset - base.offset
    if numel(view.shape) and (offset + low < 0 or offset + high >= max(base.numel, 1)):
        raise GradientError(f"a view ({view}) reaches outside its base ({base})")
    return view.with_(offset=offset)


def _regenerate(t: Tensor, base: Tensor) -> None:
    t._seen = base._rewrites
    edge = edge_of(base)
    t._node, t._index = (AsStrided(edge, base.layout, t.layout), 0) if edge is not None else (None, 0)


# ---- the engine -----------------------------------------------------------------------------------------------


def backward(
    roots: Sequence[Tensor],
    grads: Sequence[Tensor | None] | None = None,
    *,
    retain_graph: bool | None = None,
    create_graph: bool = False,
) -> None:
    """Add the gradients of the roots to `.grad` of every leaf they depend on. Roots of one element need no gradient."""
    with span("backward"), phase("backward"):
        leaves = _run(roots, grads, None, bool(retain_graph) or create_graph, create_graph)
        taken: set[int] = set()
        for leaf, g in leaves.items():
            _accumulate(leaf, g, create_graph, taken, grads)


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool = False,
) -> tuple[Tensor | None, ...]:
    """Gradients of `outputs` with respect to `inputs`, as torch.autograd.grad; `.grad` is left alone."""
    outs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    ins = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    gos = [grad_outputs] if isinstance(grad_outputs, Tensor) else grad_outputs
    with span("backward"), phase("backward"):
        found = _run(outs, gos, ins, bool(retain_graph) or create_graph, create_graph)
    result = []
    for i, t in enumerate(ins):
        g = found.get(t)
        if g is None and not allow_unused:
            raise GradientError(
                f"input {i} ({t.layout}) was not used to compute the outputs; pass allow_unused=True to get None\n  at {site()}"
            )
        result.append(g)
    return tuple(result)


class _Identity(dict[Any, Any]):
    """A dict over tensors by identity (Tensor hashes by id)."""


def _seed(t: Tensor, given: Tensor | None) -> Tensor:
    if not needs_grad(t):
        raise GradientError(
            f"backward() on a tensor ({t.layout}) that does not require grad and has no history\n  at {site()}\n"
            f"  give an input requires_grad=True, and do not compute it under no_grad()"
        )
    if given is None:
        if t.numel() != 1:
            raise GradientError(f"backward() without a gradient needs a tensor of one element, got shape {list(t.shape)}\n  at {site()}")
        return t.ones_like(requires_grad=False)  # type: ignore[no-any-return]
    if given.shape != t.shape:
        raise ShapeError(f"the gradient has shape {list(given.shape)}, the tensor {list(t.shape)}\n  at {site()}")
    return given


def _run(
    roots: Sequence[Tensor], grads: Sequence[Tensor | None] | None, targets: list[Tensor] | None, retain: bool, create_graph: bool
) -> _Identity:
    pending: dict[Any, list[Tensor | None]] = {}
    heap: list[tuple[int, Node]] = []
    leaves = _Identity()
    wanted: dict[tuple[int, int], list[Tensor]] = {}
    wanted_leaves: set[int] | None = None
    if targets is not None:
        wanted_leaves = set()
        for t in targets:
            edge = edge_of(t)
            if edge is not None and isinstance(edge[0], Node):
                wanted.setdefault((id(edge[0]), edge[1]), []).append(t)
            else:
                wanted_leaves.add(id(t))

    def send(edge: Edge, g: Tensor | None) -> None:
        if edge is None or g is None:
            return
        target, index = edge
        if isinstance(target, Tensor):
            if target._hooks:
                g = _call_hooks(target._hooks, g)
            if wanted_leaves is None or id(target) in wanted_leaves:
                leaves[target] = g if target not in leaves else leaves[target] + g
            return
        slots = pending.get(target)
        if slots is None:
            slots = pending[target] = [None] * len(target.metas)
            heapq.heappush(heap, (-target.seq, target))
        have = slots[index]
        slots[index] = g if have is None else have + g

    watched, path = WATCHERS[0], scope.path
    with set_grad_enabled(create_graph):
        for i, t in enumerate(roots):
            send(edge_of(t), _seed(t, grads[i] if grads is not None else None))
        while heap:
            node = heapq.heappop(heap)[1]
            slots = pending.pop(node)
            _observe(node, slots, wanted, leaves)
            if node.freed:
                raise GradientError(
                    f"backward through {node.name} a second time: its saved values were freed; pass retain_graph=True the first time\n"
                    f"  recorded at {node.site}"
                )
            if all(s is None for s in slots):
                continue
            if watched:
                scope.path = node.site.path
            try:
                results = node.backward(slots, create_graph)
            except NotImplementedError:
                raise NoGradientError(f"{node.name} cannot be differentiated\n  recorded at {node.site}") from None
            if not retain:
                node.release()
            for edge, g in zip(node.edges, results, strict=True):
                send(edge, g)
    if watched:
        scope.path = path
    return leaves


def _observe(node: Node, slots: list[Tensor | None], wanted: dict[tuple[int, int], list[Tensor]], found: _Identity) -> None:
    """Hooks, retain_grad and gradients asked for by `grad`, now that a node's output gradients are complete."""
    for i, g in enumerate(slots):
        if g is None:
            continue
        if node.hooks and i in node.hooks:
            g = slots[i] = _call_hooks(node.hooks[i], g)
        if node.retain and i in node.retain:
            t = node.retain[i]()
            if t is not None:
                t.grad = g if t.grad is None else t.grad + g
        for t in wanted.get((id(node), i), ()):
            found[t] = g


def _call_hooks(hooks: list[Callable[[Tensor], Tensor | None]], g: Tensor) -> Tensor:
    for hook in list(hooks):
        replaced = hook(g)
        g = g if replaced is None else replaced
    return g


def _sole(g: Tensor) -> bool:
    """Whether nothing but this tensor (and the bases it is a view of) refers to its storage."""
    base, owners = g._base, 1
    if base is not None:
        owners = 2
        if sys.getrefcount(base) > 3:  # g's reference, the local name and the call's argument
            return False
    return sys.getrefcount(g._storage) <= owners + 1


def _accumulate(leaf: Tensor, g: Tensor, create_graph: bool, taken: set[int], given: Sequence[Tensor | None] | None) -> None:
    """`.grad += g`: a fresh gradient of its own becomes `.grad` itself, anything shared is copied first."""
    if leaf.grad is None:
        mine = g.layout.contiguous and g.numel() == g._storage.elements and g._storage.uid not in taken
        mine = mine and not any(t is not None and t._storage is g._storage for t in given or ())
        if not mine or not _sole(g):
            g = g.clone()
        taken.add(g._storage.uid)
        leaf.grad = g if create_graph else g.detach()
    elif create_graph:
        leaf.grad = leaf.grad + g
    else:
        with dispatch.no_grad():
            leaf.grad.add_(g)


dispatch.hooks.record = record
dispatch.hooks.record_inplace = _record_inplace
dispatch.hooks.before_inplace = before_inplace
