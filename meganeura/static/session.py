"""A built graph: parameters, inputs and one compiled step, fed and read by name.

In: a Graph and a SessionConfig. Out: steps. Everything is done by a compiled function over the graph's calls, so that a
static session is the same IR, planner and replay as `meganeura.compile`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import meganeura as mg

from ..errors import MeganeuraError
from ..nn.clip import clip_grad_norm_
from ..nn.parameter import Parameter
from ..optim.accumulate import GradientAccumulation
from ..provenance import site
from ..storage import Storage, padded_bytes
from ..tensor import Tensor
from .config import SessionConfig
from .graph import Graph, fitted, lookup


def build_session(graph: Graph, config: SessionConfig | None = None) -> StaticSession:
    """Make parameters for a graph and compile its step. config: training by default."""
    return StaticSession(graph, config or SessionConfig())


class StaticSession:
    """One built graph. `set_input` and `step` run it; `read_*` wait for what they return."""

    def __init__(self, graph: Graph, config: SessionConfig) -> None:
        if not graph.outputs:
            raise MeganeuraError(f"graph {graph.name!r} has no outputs: set_outputs(...) first\n  at {site()}")
        if config.mode == "training" and graph.outputs[0].shape != ():
            raise mg.ShapeError(
                f"the first output of a training graph is the loss, a scalar; {graph.outputs[0]!r} is none\n  at {site()}\n"
                f"  reduce it with mean() or sum(), or build with SessionConfig.inference()"
            )
        self.graph, self.config = graph, config
        self.parameters: dict[str, Tensor] = {
            name: Parameter(p.make(), requires_grad=p.trainable and config.mode == "training") for name, p in graph.parameters.items()
        }
        self.inputs: dict[str, Tensor] = {}
        self.outputs: tuple[Tensor, ...] = ()
        self.optimizer: Any = None
        self.accumulation: GradientAccumulation | None = None
        self._optimize()
        self._compile()

    def _optimize(self) -> None:
        trained = [(n, p) for n, p in self.parameters.items() if p.requires_grad]
        if self.config.optimizer is None:
            return
        if not trained:
            raise MeganeuraError(f"graph {self.graph.name!r} has no trainable parameter for an optimizer\n  at {site()}")
        self.optimizer = self.config.optimizer(trained)
        if self.config.lr_multipliers:
            self.optimizer.set_lr_multipliers(self.config.lr_multipliers)
        if self.config.accumulate > 1:
            self.accumulation = GradientAccumulation(self.optimizer, self.config.accumulate, self.config.max_grad_norm)

    def _compile(self) -> None:
        step = self._train if self.config.mode == "training" else self._infer
        debug = self.config.debug_values
        rewrite = "off" if debug else self.config.rewrite
        self._step = mg.compile(_named(step, self.graph.name), precision=self.config.precision, rewrite=rewrite, debug=debug or None)

    # ---- what is compiled ----

    def _forward(self, inputs: Mapping[str, Tensor]) -> list[Tensor]:
        graph = self.graph
        values = {graph.inputs[n].number: t for n, t in inputs.items()}
        values |= {graph.parameters[n].node.number: t for n, t in self.parameters.items()}
        values |= {node.number: t for node, t in graph.constants.values()}
        graph.run(values, graph.needed(graph.outputs))
        return [values[n.number] for n in graph.outputs]

    def _infer(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        with mg.no_grad():
            return tuple(self._forward(inputs))

    def _train(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        if self.accumulation is None:
            for p in self.parameters.values():
                p.grad = None
        loss, *others = self._forward(inputs)
        if self.accumulation is not None:
            self.accumulation.backward(loss)
            self.accumulation.step()
        else:
            loss.backward()
            if self.config.max_grad_norm is not None:
                clip_grad_norm_([p for p in self.parameters.values() if p.requires_grad], self.config.max_grad_norm)
            if self.optimizer is not None:
                self.optimizer.step()
        return (loss.detach(), *(t.detach() for t in others))

    # ---- running ----

    def set_input(self, name: str, value: Any) -> None:
        """Values of an input for the steps to come. value: array or tensor of its shape."""
        self.inputs[name] = fitted(lookup(self.graph.inputs, "input", name, self.graph.name), value)

    def bind_external_buffer(self, name: str, buffer: Any) -> None:
        """Let an input read memory that somebody else fills, at every step: a tensor of its shape and dtype, or a GPUBuffer
        of the shared device with the usages STORAGE, COPY_SRC and COPY_DST, which must outlive the session."""
        node = lookup(self.graph.inputs, "input", name, self.graph.name)
        if isinstance(buffer, Tensor):
            if buffer.shape != node.shape or buffer.dtype is not node.dtype:
                raise mg.ShapeError(f"input {name!r} is {node.dtype.name}{list(node.shape)}, the tensor is {buffer.layout}\n  at {site()}")
            self.inputs[name] = buffer.detach()
            return
        elements = int(np.prod(node.shape, dtype=np.int64))
        need = padded_bytes(elements, node.dtype)
        if buffer.size < need:
            raise MeganeuraError(f"input {name!r} needs a buffer of {need} bytes (padded to 16), got one of {buffer.size}\n  at {site()}")
        world = mg.eager_interpreter()
        storage = Storage(node.dtype, elements, world.device.adopt(buffer), world)
        self.inputs[name] = Tensor._make(storage, mg.storage.Layout(node.dtype, node.shape))

    def step(self, **inputs: Any) -> tuple[Tensor, ...]:
        """Run once; returns the outputs without waiting for them. inputs: as for set_input, by name."""
        for name, value in inputs.items():
            self.set_input(name, value)
        missing = [n for n in self.graph.inputs if n not in self.inputs]
        if missing:
            raise MeganeuraError(f"no value yet for {', '.join(map(repr, missing))}: set_input(name, value) first\n  at {site()}")
        self.outputs = self._step({n: self.inputs[n] for n in self.graph.inputs})
        return self.outputs

    def wait(self) -> None:
        """Wait for all work; raises what went wrong in it."""
        mg.synchronize()

    # ---- reading ----

    def read_output(self, which: int | str = 0) -> Any:
        """An output of the last step as a numpy array, by number or by its node's name."""
        if not self.outputs:
            raise MeganeuraError(f"no step was made yet\n  at {site()}")
        names = [n.name for n in self.graph.outputs]
        if isinstance(which, str):
            which = names.index(lookup({n: n for n in names}, "output", which, self.graph.name))
        if not -len(names) <= which < len(names):
            raise MeganeuraError(f"output {which} of graph {self.graph.name!r}, which has {len(names)}: {', '.join(names)}\n  at {site()}")
        return self.outputs[which].numpy()

    def read_loss(self) -> float:
        """The loss of the last step."""
        if self.config.mode != "training":
            raise MeganeuraError(f"an inference session has no loss; read_output(...) reads its outputs\n  at {site()}")
        return float(self.read_output(0))

    @property
    def param_names(self) -> list[str]:
        """Names of all parameters, in the order they were declared."""
        return list(self.parameters)

    def set_parameter(self, name: str, value: Any) -> None:
        """Give a parameter values, in place. value: array or tensor of its shape."""
        lookup(self.parameters, "parameter", name, self.graph.name)
        tensor = fitted(self.graph.parameters[name].node, value)
        with mg.no_grad():
            self.parameters[name].copy_(tensor)

    def read_param(self, name: str) -> Any:
        """A parameter as a numpy array."""
        return lookup(self.parameters, "parameter", name, self.graph.name).detach().numpy()

    def read_param_grad(self, name: str) -> Any:
        """The gradient that the last step left for a parameter, as a numpy array."""
        p = lookup(self.parameters, "parameter", name, self.graph.name)
        if p.grad is None:
            why = "it is not trained" if not p.requires_grad else "no step was made, the loss does not need it, or an update took it"
            raise MeganeuraError(f"parameter {name!r} has no gradient: {why}\n  at {site()}")
        return p.grad.numpy()

    def share_parameters_from(self, other: StaticSession) -> None:
        """Use the other session's parameters of the same names and shapes from now on, without copying: what one trains, both see."""
        shared = [n for n in self.parameters if n in other.parameters]
        if not shared:
            raise MeganeuraError(f"graphs {self.graph.name!r} and {other.graph.name!r} have no parameter name in common\n  at {site()}")
        for name in shared:
            mine, theirs = self.parameters[name], other.parameters[name]
            if mine.shape != theirs.shape or mine.dtype is not theirs.dtype:
                raise mg.ShapeError(f"parameter {name!r} is {mine.layout} here and {theirs.layout} there\n  at {site()}")
        self.parameters |= {n: other.parameters[n] for n in shared}
        self._optimize()
        self._compile()

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate of every group; nothing is recompiled."""
        if self.optimizer is None:
            raise MeganeuraError(f"this session has no optimizer\n  at {site()}")
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    # ---- inspection ----

    @property
    def session(self) -> Any:
        """The compiled session of the step, once all inputs are set."""
        return self._step.session({n: self.inputs[n] for n in self.graph.inputs})

    def memory_summary(self) -> dict[str, int]:
        """Bytes of parameters, of gradients held now, of optimizer state, of the session's own values with and without
        reuse of memory, and of outputs."""
        plan = self.session.plan
        moments = [v for s in (self.optimizer.state.values() if self.optimizer else ()) for v in s.values() if isinstance(v, Tensor)]
        return {
            "parameters": sum(_bytes(p) for p in self.parameters.values()),
            "gradients": sum(_bytes(p.grad) for p in self.parameters.values() if p.grad is not None),
            "optimizer": sum(map(_bytes, moments)),
            "values": plan.nbytes,
            "values without reuse": plan.demanded,
            "outputs": plan.outputs,
        }

    def __repr__(self) -> str:
        return f"<session of {self.graph.name}, {self.config.mode}: {len(self.parameters)} parameters, {len(self.graph.calls)} calls>"


def _named(fn: Any, name: str) -> Any:
    def step(inputs: dict[str, Tensor]) -> Any:
        return fn(inputs)

    step.__name__ = step.__qualname__ = name
    return step


def _bytes(t: Tensor) -> int:
    return t.layout.numel * t.dtype.itemsize
