"""A graph under construction: inputs, parameters, constants, and calls of the public ops on them.

In: calls of methods named like ops. Out: Nodes, whose shapes are known at once, so that a mistake is raised at its line.
A Graph never computes values; `Graph.run` repeats its calls on tensors, under whichever interpreter is current.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import meganeura as mg

from .. import dispatch
from ..compile.trace import Trace
from ..compile.tree import rebuild
from ..dtype import DType
from ..dtype import dtype as as_dtype
from ..errors import MeganeuraError
from ..provenance import Site, site
from ..random import default_generator
from ..shape import Shape
from ..storage import Layout
from ..tensor import Tensor

_OPERATORS = (
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod", "pow", "rpow"),
    *("matmul", "rmatmul", "and", "rand", "or", "ror", "xor", "rxor", "lshift", "rshift", "neg", "invert", "abs", "getitem"),
    *("lt", "le", "gt", "ge", "eq", "ne"),
)


class Node:
    """A value of a graph. `shape` and `dtype` are known; values exist only in a session. Operators and methods as for tensors."""

    __array_ufunc__ = None  # numpy leaves `array * node` to the node

    def __init__(self, graph: Graph, number: int, layout: Layout, kind: str, name: str, where: Site) -> None:
        self.graph, self.number, self.kind, self.name, self.site = graph, number, kind, name, where
        self.said = kind != "op"  # whether the user gave the name
        self.dtype: DType = layout.dtype
        self.shape: Shape = layout.shape

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
        return len(self.shape)

    def __getattr__(self, name: str) -> Any:
        found = getattr(Tensor, name, None)
        if found is None or name.startswith("_"):
            raise AttributeError(f"a graph node has no attribute {name!r}")
        if isinstance(found, property):
            return self.graph.call(name, lambda t: getattr(t, name), self)
        if not callable(found):
            raise AttributeError(f"a graph node has no {name!r}, which belongs to tensors that have values")
        return functools.partial(self.graph.call, name, found, self)

    def named(self, name: str) -> Node:
        """The same node under a name of the user's, by which a session knows it."""
        self.graph.rename(self, name)
        self.said = True
        return self

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"{self!r} has no length: it has no dimensions")
        return self.shape[0]

    def __iter__(self) -> Iterator[Node]:
        return iter([self.graph.call("getitem", Tensor.__getitem__, self, i) for i in range(len(self))])

    def __hash__(self) -> int:
        return id(self)

    def __bool__(self) -> bool:
        raise MeganeuraError(f"{self!r} has no value while its graph is built; use where(), or build two graphs\n  at {site()}")

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}: {self.dtype.name}{list(self.shape)}>"


def _operator(name: str) -> Any:
    method = getattr(Tensor, name)

    def apply(self: Node, *args: Any) -> Any:
        return self.graph.call(name.strip("_"), method, self, *args)

    apply.__name__ = name
    return apply


for _name in _OPERATORS:
    if hasattr(Tensor, f"__{_name}__"):
        setattr(Node, f"__{_name}__", _operator(f"__{_name}__"))


class Parameter:
    """What a graph knows of a parameter before a session makes it."""

    def __init__(self, node: Node, init: Any, trainable: bool) -> None:
        self.node, self.init, self.trainable = node, init, trainable

    def make(self) -> Tensor:
        """Its first values, as a new tensor."""
        node, init = self.node, self.init
        made: Tensor
        if init is None or isinstance(init, (bool, int, float)):
            made = mg.full(node.shape, init or 0, dtype=node.dtype)
            return made
        if not callable(init) or isinstance(init, Tensor):
            made = fitted(node, init).clone()
            return made
        made = mg.empty(node.shape, dtype=node.dtype)
        before = made._storage.version
        with dispatch.no_grad():
            init(made)
        if made._storage.version == before and node.shape and 0 not in node.shape:
            raise MeganeuraError(
                f"the init of parameter {node.name!r} did not change the tensor that it was given\n  parameter made at {node.site}\n"
                f"  an init fills its argument in place, as nn.init.ones_ does; what it returns is not looked at"
            )
        return made


class _Call:
    """One call: `fn(*args, **kwargs)` with Nodes in place of tensors, giving the nodes `results` in the order of its tensors."""

    __slots__ = ("args", "fn", "kwargs", "name", "results", "site")

    def __init__(self, name: str, fn: Callable[..., Any], args: Any, kwargs: Any, where: Site) -> None:
        self.name, self.fn, self.args, self.kwargs, self.site = name, fn, args, kwargs, where
        self.results: list[Node] = []


class Graph:
    """A network written down before it runs.

    `input`, `parameter` and `constant` begin it; every op of `meganeura`, `meganeura.nn.functional` and Tensor is a
    method; `set_outputs` ends it. Build it with `build_session`, or try nodes out with `Eager(graph).eval(node)`.
    Ops are functional: in-place ops are refused.
    """

    def __init__(self, name: str = "graph") -> None:
        if not isinstance(name, str) or not name:
            raise MeganeuraError(f"a graph's name must be text, not {name!r}\n  at {site()}")
        self.name = name
        self.nodes: list[Node] = []
        self.calls: list[_Call] = []
        self.inputs: dict[str, Node] = {}
        self.parameters: dict[str, Parameter] = {}
        self.constants: dict[str, tuple[Node, Tensor]] = {}
        self.outputs: list[Node] = []
        self._trace = Trace()
        self._tensors: dict[int, Tensor] = {}  # symbolic ones that give shapes
        self._names: dict[str, Node] = {}

    # ---- beginnings ----

    def input(self, name: str, shape: Sequence[int], dtype: Any = "float32") -> Node:
        """Something that every step is given by name. shape: sizes; dtype: as for tensors."""
        node = self._begin(name, "input", shape, as_dtype(dtype))
        self.inputs[name] = node
        return node

    def parameter(self, name: str, shape: Sequence[int] | None = None, init: Any = None, trainable: bool = True, dtype: Any = None) -> Node:
        """Something that sessions keep and train. init: an array or tensor, a number, a function that fills a tensor in
        place (`nn.init.xavier_uniform_`), or None for zeros. shape may be left out where init has one."""
        if shape is None:
            if init is None or not hasattr(init, "shape"):
                raise MeganeuraError(f"parameter {name!r} needs a shape, or an init that has one\n  at {site()}")
            shape = init.shape
        sizes = _sizes("parameter", name, shape)
        if hasattr(init, "shape") and tuple(init.shape) != sizes:
            raise mg.ShapeError(f"parameter {name!r} of shape {list(sizes)} got an init of shape {list(init.shape)}\n  at {site()}")
        if isinstance(init, (list, tuple)):
            init = mg.tensor(init)
            if init.shape != sizes:
                raise mg.ShapeError(f"parameter {name!r} of shape {list(sizes)} got an init of shape {list(init.shape)}\n  at {site()}")
        node = self._begin(name, "parameter", sizes, as_dtype(dtype or "float32"))
        self.parameters[name] = Parameter(node, init, trainable)
        return node

    def constant(self, data: Any, name: str = "") -> Node:
        """Fixed values. data: anything `meganeura.tensor` takes."""
        tensor = data.detach().clone() if isinstance(data, Tensor) else mg.tensor(data)
        node = self._begin(name or self._unused("constant", len(self.constants)), "constant", tensor.shape, tensor.dtype)
        self.constants[node.name] = node, tensor
        return node

    def set_outputs(self, outputs: Node | Iterable[Node]) -> None:
        """What a session computes. In training the first one is the loss."""
        nodes = [outputs] if isinstance(outputs, Node) else list(outputs)
        if not nodes:
            raise MeganeuraError(f"graph {self.name!r} needs at least one output\n  at {site()}")
        for node in nodes:
            if not isinstance(node, Node) or node.graph is not self:
                raise MeganeuraError(f"{node!r} is no node of graph {self.name!r}\n  at {site()}")
        self.outputs = nodes

    def _begin(self, name: str, kind: str, shape: Any, dtype: DType) -> Node:
        layout = Layout(dtype, _sizes(kind, name, shape))
        cell = self._trace.numbers.cell(dtype, layout.numel, "input", name)
        tensor = Tensor._make(self._trace.new_storage(cell, name, site()), layout)
        return self._node(tensor, kind, name)

    def _node(self, tensor: Tensor, kind: str, name: str) -> Node:
        node = Node(self, len(self.nodes), tensor.layout, kind, "", site())
        self.rename(node, name)
        self.nodes.append(node)
        self._tensors[node.number] = tensor
        return node

    def _unused(self, base: str, number: int) -> str:
        """A name of the graph's own making that no node has."""
        while f"{base}{number}" in self._names:
            number += 1
        return f"{base}{number}"

    def rename(self, node: Node, name: str) -> None:
        """Give a node a name that no other one has."""
        if not isinstance(name, str) or not name:
            raise MeganeuraError(f"a node's name must be text, not {name!r}\n  at {site()}")
        other = self._names.get(name)
        if other is not None and other is not node:
            raise MeganeuraError(f"graph {self.name!r} already has a node named {name!r}, made at {other.site}\n  at {site()}")
        self._names.pop(node.name, None)
        tables: dict[str, dict[str, Any]] = {"input": self.inputs, "parameter": self.parameters, "constant": self.constants}
        table = tables.get(node.kind, {})
        if node.name in table:
            table[name] = table.pop(node.name)
        node.name = name
        self._names[name] = node

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise MeganeuraError(
            f"graph {self.name!r} holds functions and cannot be copied or pickled: call the code that builds it again\n  at {site()}"
        )

    def node(self, name: str) -> Node:
        """The node of a name. Raises MeganeuraError with the names that look like it."""
        if name not in self._names:
            import difflib

            close = difflib.get_close_matches(name, self._names, 3) or list(self._names)[:5]
            raise MeganeuraError(f"graph {self.name!r} has no node named {name!r}; it has {', '.join(map(repr, close))}\n  at {site()}")
        return self._names[name]

    # ---- calls ----

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(mg.nn.functional, name, None) or getattr(mg, name, None) or getattr(Tensor, name, None)
        if not callable(found) or isinstance(found, type):
            raise AttributeError(f"a graph has no op {name!r}; see `python -m meganeura ops`")
        return functools.partial(self.call, name, found)

    def call(self, name: str, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Write down fn(*args, **kwargs), any function of tensors, on Nodes. Returns what it returns, with Nodes for tensors."""
        if name.endswith("_") and not name.endswith("__"):
            raise MeganeuraError(f"{name} changes a tensor in place, which graphs cannot: use {name.rstrip('_')}\n  at {site()}")
        _each(args, kwargs, self._own)
        kept = rebuild((args, kwargs), np.ndarray, np.array)  # as they are now: the caller's lists and arrays may change
        call = _Call(name, fn, kept[0], kept[1], site())
        before = default_generator.get_state()
        fixed = [self._tensors[n.number] for n in _nodes(args, kwargs) if n.kind != "parameter"]
        versions = [t._storage.version for t in fixed]
        try:
            with dispatch.use(self._trace), dispatch.no_grad():
                result = self._apply(call, self._tensors)
        finally:
            default_generator.set_state(before)  # shapes were wanted, no random numbers
            self._trace.nodes.clear()
        if [t._storage.version for t in fixed] != versions:
            raise MeganeuraError(
                f"{name} changes its input in place, which graphs cannot: use it without inplace= or out=, or on a copy\n  at {site()}"
            )

        def take(t: Tensor) -> Node:
            node = self._node(t, "op", self._unused(name, len(self.nodes)))
            call.results.append(node)
            return node

        made = rebuild(result, Tensor, take)
        self.calls.append(call)
        return made

    def _own(self, node: Node) -> None:
        if node.graph is not self:
            raise MeganeuraError(f"{node!r} belongs to graph {node.graph.name!r}, not to {self.name!r}\n  at {site()}")

    @staticmethod
    def _apply(call: _Call, values: Mapping[int, Tensor]) -> Any:
        args, kwargs = rebuild((call.args, call.kwargs), Node, lambda n: values[n.number])
        return call.fn(*args, **kwargs)

    def needed(self, wanted: Iterable[Node]) -> list[_Call]:
        """The calls that these nodes need, in order."""
        numbers = {n.number for n in wanted}
        out = []
        for call in reversed(self.calls):
            if any(r.number in numbers for r in call.results):
                out.append(call)
                _each(call.args, call.kwargs, lambda n: numbers.add(n.number))
        return out[::-1]

    def run(self, values: dict[int, Tensor], calls: Iterable[_Call]) -> None:
        """Repeat calls on tensors; `values` (by node number) gets their results."""
        for call in calls:
            found: list[Tensor] = []
            rebuild(self._apply(call, values), Tensor, found.append)
            for node, t in zip(call.results, found, strict=True):
                values[node.number] = t
                if node.said:
                    mg.named(t, "_".join(node.name.split()))

    def __str__(self) -> str:
        lines = [f"graph {self.name}: {len(self.inputs)} inputs, {len(self.parameters)} parameters, {len(self.calls)} calls"]
        lines += [f"  {n!r}" for n in self.nodes if n.kind != "op"]
        for call in self.calls:
            args = rebuild((call.args, call.kwargs), Node, lambda n: _Name(n.name))
            shown = ", ".join([*map(repr, args[0]), *(f"{k}={v!r}" for k, v in args[1].items())])
            lines.append(f"  {', '.join(f'{r.name}: {r.dtype.name}{list(r.shape)}' for r in call.results)} = {call.name}({shown})")
        lines.append("  outputs " + ", ".join(n.name for n in self.outputs))
        return "\n".join(lines)

    __repr__ = __str__


class _Name(str):
    """Text that shows without quotes."""

    def __repr__(self) -> str:
        return str(self)


def _sizes(kind: str, name: str, shape: Any) -> Shape:
    """A shape as a tuple of ints. Raises ShapeError."""
    try:
        sizes = tuple(map(operator.index, shape)) if isinstance(shape, Iterable) else (operator.index(shape),)
    except TypeError:
        sizes = (-1,)
    if any(n < 0 for n in sizes):
        shown = list(shape) if isinstance(shape, Iterable) else shape
        raise mg.ShapeError(f"{kind} {name!r} has shape {shown}; sizes must be non-negative ints\n  at {site()}")
    return sizes


def _nodes(args: Any, kwargs: Any) -> list[Node]:
    found: list[Node] = []
    _each(args, kwargs, found.append)
    return found


def _each(args: Any, kwargs: Any, fn: Callable[[Node], Any]) -> None:
    def visit(n: Node) -> Node:
        fn(n)
        return n

    rebuild((args, kwargs), Node, visit)


class Eager:
    """Runs a graph under construction, op by op. Values are remembered until an input or parameter is set."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.given: dict[str, Tensor] = {}
        self._values: dict[int, Tensor] = {}

    def set_input(self, name: str, value: Any) -> None:
        """Give an input its values (an array or tensor of its shape)."""
        self._set(self.graph.inputs, "input", name, value)

    def set_parameter(self, name: str, value: Any) -> None:
        """Give a parameter other values than its init."""
        self._set({k: p.node for k, p in self.graph.parameters.items()}, "parameter", name, value)

    def _set(self, known: Mapping[str, Node], kind: str, name: str, value: Any) -> None:
        self.given[name] = fitted(lookup(known, kind, name, self.graph.name), value)
        self._values.clear()

    def eval(self, node: Node, /, **inputs: Any) -> Tensor:
        """The value of a node. inputs: as for set_input, by name."""
        if not isinstance(node, Node):
            raise MeganeuraError(f"eval takes a node of graph {self.graph.name!r}, not {node!r}\n  at {site()}")
        self.graph._own(node)
        for name, value in inputs.items():
            self.set_input(name, value)
        with dispatch.no_grad():
            calls = [c for c in self.graph.needed([node]) if any(r.number not in self._values for r in c.results)]
            _each([c.args for c in calls], [c.kwargs for c in calls], self._begin)
            self._begin(node)
            self.graph.run(self._values, calls)
        made: Tensor = self._values[node.number].clone()  # the one kept is for later nodes
        return made

    def _begin(self, node: Node) -> None:
        if node.number in self._values or node.kind == "op":
            return
        if node.name in self.given:
            self._values[node.number] = self.given[node.name]
        elif node.kind == "constant":
            self._values[node.number] = self.graph.constants[node.name][1]
        elif node.kind == "parameter":
            self._values[node.number] = self.graph.parameters[node.name].make()
        else:
            raise MeganeuraError(f"input {node.name!r} has no value yet: set_input({node.name!r}, ...)\n  at {site()}")


def lookup(known: Mapping[str, Any], kind: str, name: str, graph: str) -> Any:
    """The entry of a name, or an error that lists what there is."""
    if name not in known:
        listed = ", ".join(map(repr, known)) or "none"
        raise MeganeuraError(f"graph {graph!r} has no {kind} named {name!r}; it has {listed}\n  at {site()}")
    return known[name]


def fitted(node: Node, value: Any) -> Tensor:
    """A value as a tensor of a node's dtype. Raises ShapeError."""
    tensor = value.detach() if isinstance(value, Tensor) else mg.tensor(value)
    if tensor.shape != node.shape:
        raise mg.ShapeError(f"{node.kind} {node.name!r} has shape {list(node.shape)}, got {list(tensor.shape)}\n  at {site()}")
    return tensor.to(node.dtype)
