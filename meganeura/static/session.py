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
        if not isinstance(graph, Graph) or not isinstance(config, SessionConfig):
            raise MeganeuraError(f"build_session takes a Graph and a SessionConfig, got {graph!r} and {config!r}\n  at {site()}")
        if not graph.outputs:
            raise MeganeuraError(f"graph {graph.name!r} has no outputs: set_outputs(...) first\n  at {site()}")
        if config.mode == "training" and graph.outputs[0].shape != ():
            raise mg.ShapeError(
                f"the first output of a training graph is the loss, a scalar; {graph.outputs[0]!r} is none\n  at {site()}\n"
                f"  reduce it with mean() or sum(), or build with SessionConfig.inference()"
            )
        self.graph, self.config = graph, config
        # As they are now: the graph may be added to, and its nodes renamed, for other sessions.
        self.given, self.results, self.calls = dict(graph.inputs), list(graph.outputs), graph.needed(graph.outputs)
        self.declared, self.constants = dict(graph.parameters), list(graph.constants.values())
        self.output_names = [n.name for n in graph.outputs]
        self.parameters: dict[str, Tensor] = {
            name: Parameter(p.make(), requires_grad=p.trainable and config.mode == "training") for name, p in self.declared.items()
        }
        self.inputs: dict[str, Tensor] = {}
        self.outputs: tuple[Tensor, ...] = ()
        self.optimizer: Any = None
        self.accumulation: GradientAccumulation | None = None
        self._optimize()
        self._compile()

    def _optimize(self) -> None:
        trained = [(n, p) for n, p in self.parameters.items() if self.declared[n].trainable]
        if self.config.optimizer is None:
            return
        if not trained:
            raise MeganeuraError(f"graph {self.graph.name!r} has no trainable parameter for an optimizer\n  at {site()}")
        if not callable(self.config.optimizer) or not hasattr(made := self.config.optimizer(trained), "param_groups"):
            raise MeganeuraError(
                f"SessionConfig(optimizer={self.config.optimizer!r}) must be a function that makes an optimizer\n  at {site()}\n"
                f"  optimizer=lambda params: optim.AdamW(params, lr=1e-3)"
            )
        self.optimizer = made
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
        values = {self.given[n].number: t for n, t in inputs.items()}
        values |= {self.declared[n].node.number: t if self._trains(n) else t.detach() for n, t in self.parameters.items()}
        values |= {node.number: t for node, t in self.constants}
        self.graph.run(values, self.calls)
        fixed = [t._storage for _, t in self.constants]
        results = [values[n.number] for n in self.results]
        return [t.clone() if any(t._storage is s for s in fixed) else t for t in results]  # what is handed out may be changed

    def _trains(self, name: str) -> bool:
        """Whether this session differentiates by a parameter; another that shares it may do otherwise."""
        return self.declared[name].trainable and self.config.mode == "training"

    def _infer(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        with mg.no_grad():
            return tuple(self._forward(inputs))

    def _train(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        if self.accumulation is None:
            for name, p in self.parameters.items():
                if self._trains(name):
                    p.grad = None
        loss, *others = self._forward(inputs)
        if self.accumulation is not None:
            self.accumulation.backward(loss)
            self.accumulation.step()
        else:
            loss.backward()
            if self.config.max_grad_norm is not None:
                clip_grad_norm_([p for n, p in self.parameters.items() if self._trains(n)], self.config.max_grad_norm)
            if self.optimizer is not None:
                self.optimizer.step()
        return (loss.detach(), *(t.detach() for t in others))

    # ---- running ----

    def set_input(self, name: str, value: Any) -> None:
        """Values of an input for the steps to come. value: array or tensor of its shape."""
        self.inputs[name] = fitted(lookup(self.given, "input", name, self.graph.name), value)

    def bind_external_buffer(self, name: str, buffer: Any) -> None:
        """Let an input read memory that somebody else fills, at every step: a tensor of its shape and dtype, or a GPUBuffer
        of the shared device with the usages STORAGE, COPY_SRC and COPY_DST, which must outlive the session."""
        node = lookup(self.given, "input", name, self.graph.name)
        if isinstance(buffer, Tensor):
            if buffer.shape != node.shape or buffer.dtype is not node.dtype:
                raise mg.ShapeError(f"input {name!r} is {node.dtype.name}{list(node.shape)}, the tensor is {buffer.layout}\n  at {site()}")
            self.inputs[name] = buffer.detach()
            return
        if not hasattr(buffer, "size") or not hasattr(buffer, "usage"):
            raise MeganeuraError(f"input {name!r} can be bound to a tensor or a GPUBuffer, not to {buffer!r}\n  at {site()}")
        elements = int(np.prod(node.shape, dtype=np.int64))
        need = padded_bytes(elements, node.dtype)
        if buffer.size < need:
            raise MeganeuraError(f"input {name!r} needs a buffer of {need} bytes (padded to 16), got one of {buffer.size}\n  at {site()}")
        world = mg.eager_interpreter()
        storage = Storage(node.dtype, elements, world.device.adopt(buffer), world)
        self.inputs[name] = Tensor._make(storage, mg.storage.Layout(node.dtype, node.shape))

    def step(self, /, **inputs: Any) -> tuple[Tensor, ...]:
        """Run once; returns the outputs without waiting for them. inputs: as for set_input, by name."""
        for name, value in inputs.items():
            self.set_input(name, value)
        self.outputs = self._step(self._complete())
        return self.outputs

    def _complete(self) -> dict[str, Tensor]:
        missing = [n for n in self.given if n not in self.inputs]
        if missing:
            raise MeganeuraError(f"no value yet for {', '.join(map(repr, missing))}: set_input(name, value) first\n  at {site()}")
        return {n: self.inputs[n] for n in self.given}

    def wait(self) -> None:
        """Wait for all work; raises what went wrong in it."""
        mg.synchronize()

    # ---- reading ----

    def read_output(self, which: int | str = 0) -> Any:
        """An output of the last step as a numpy array, by number or by its node's name."""
        if not self.outputs:
            raise MeganeuraError(f"no step was made yet\n  at {site()}")
        names = self.output_names
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
        tensor = fitted(self.declared[name].node, value)
        with mg.no_grad():
            self.parameters[name].copy_(tensor)

    def read_param(self, name: str) -> Any:
        """A parameter as a numpy array."""
        return lookup(self.parameters, "parameter", name, self.graph.name).detach().numpy()

    def read_param_grad(self, name: str) -> Any:
        """The gradient that the last step left for a parameter, as a numpy array."""
        p = lookup(self.parameters, "parameter", name, self.graph.name)
        if p.grad is None:
            why = "it is not trained" if not self._trains(name) else "no step was made, the loss does not need it, or an update took it"
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
        for name in shared:
            if self._trains(name):  # the other one may only infer, or keep it frozen
                self.parameters[name].requires_grad_(True)
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
        return self._step.session(self._complete())

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

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise MeganeuraError(
            f"a session cannot be copied or pickled: build another one and set_parameter(name, session.read_param(name))\n  at {site()}"
        )

    def __repr__(self) -> str:
        return f"<session of {self.graph.name}, {self.config.mode}: {len(self.parameters)} parameters, {len(self.calls)} calls>"


def _named(fn: Any, name: str) -> Any:
    def step(inputs: dict[str, Tensor]) -> Any:
        return fn(inputs)

    step.__name__ = step.__qualname__ = name
    return step


def _bytes(t: Tensor) -> int:
    return t.layout.numel * t.dtype.itemsize
