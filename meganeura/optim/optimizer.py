"""Optimizer: parameter groups, per-parameter state and the step that hands them to an Update row.

Parameters with the same step count and dtypes update together: normally all of a group, so one dispatch a group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .. import dispatch
from ..dtype import float32
from ..errors import GradientError
from ..nn.parameter import drop_grad
from ..ops.optimizer import scalar_count
from ..ops.table import Op
from ..tensor import Tensor
from . import arena
from .checkpoint import load_state_dict, pack, state_dict

State = dict[str, Any]
ParamGroup = dict[str, Any]  # options, and the parameters they are for under 'params'


class Rule(NamedTuple):
    """How a group updates: the row, and the state names of its moments in the order of the row's roles."""

    row: Op
    moments: tuple[str, ...]


class Optimizer:
    """Base of all optimizers, as torch.optim.Optimizer. A subclass gives `rule` and `scalars`."""

    def __init__(self, params: Iterable[Any], defaults: Mapping[str, Any]) -> None:
        if isinstance(params, Tensor):
            raise TypeError("params should be an iterable of tensors, groups (dicts) or (name, tensor) pairs, not one tensor")
        self.defaults = dict(defaults)
        self.param_groups: list[ParamGroup] = []
        self.state: defaultdict[Tensor, State] = defaultdict(dict)
        groups = list(params)
        if not groups:
            raise ValueError("optimizer got an empty parameter list")
        for group in groups if isinstance(groups[0], dict) else [{"params": groups}]:
            self.add_param_group(group)

    # ---- what a subclass says ----
    def rule(self, group: ParamGroup) -> Rule:
        """The row and moments of a group's options."""
        raise NotImplementedError

    def scalars(self, group: ParamGroup, step: int) -> Sequence[float]:
        """The row's scalars in its order, at a group's step (counted from 1)."""
        raise NotImplementedError

    def validate(self, group: ParamGroup) -> None:
        """ValueError if an option of a group has no meaning."""

    # ---- groups ----
    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """Add parameters with options of their own; what is not given comes from the defaults."""
        group = dict(param_group)
        members = group["params"]
        members = [members] if isinstance(members, Tensor) else list(members)
        names = [m[0] for m in members if isinstance(m, tuple)]
        if names and len(names) != len(members):
            raise TypeError("give names for all parameters of a group or for none")
        params = [m[1] for m in members] if names else members
        taken = {id(p) for g in self.param_groups for p in g["params"]}
        for i, p in enumerate(params):
            _check_parameter(p, names[i] if names else f"number {i}")
            if id(p) in taken:
                raise ValueError(f"parameter {names[i] if names else f'number {i}'} of shape {list(p.shape)} appears twice in the groups")
            taken.add(id(p))
        group["params"] = params
        if names:
            group["param_names"] = names
        for key, value in self.defaults.items():
            group.setdefault(key, value)
        self.validate(group)
        self.param_groups.append(group)

    # ---- stepping ----
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients, or fill them with zeros."""
        dispatch.current().observe(self)
        for group in self.param_groups:
            for p in group["params"]:
                drop_grad(p, set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient. `closure`, if given, is run first; its result is returned."""
        loss = None
        if closure is not None:
            with dispatch.enable_grad():
                loss = closure()
        dispatch.current().observe(self)
        with dispatch.no_grad():
            for group in self.param_groups:
                rule = self.rule(group)
                self._prepare([p for p in group["params"] if p.grad is not None], rule)
                for members in self._cohorts(group, rule):
                    self._update(group, rule, members)
        return loss

    def _prepare(self, params: Sequence[Tensor], rule: Rule) -> None:
        """Allocate the moments that are missing, in float32: squares of small float16 gradients would vanish."""
        if not rule.moments:
            return
        missing = [(p, name) for p in params for name in rule.moments if name not in self.state[p]]
        if missing:
            for (p, name), moment in zip(missing, arena.zeros([p.shape for p, _ in missing], float32), strict=True):
                self.state[p][name] = moment
                self.state[p].setdefault("step", 0)

    def _cohorts(self, group: ParamGroup, rule: Rule) -> list[list[Tensor]]:
        """The group's parameters with gradients, by step count and dtypes."""
        found: dict[Any, list[Tensor]] = {}
        for p in group["params"]:
            if p.grad is not None:
                step = self.state[p]["step"] if rule.moments else 0
                found.setdefault((step, p.dtype, p.grad.dtype), []).append(p)
        return list(found.values())

    def _update(self, group: ParamGroup, rule: Rule, members: list[Tensor]) -> None:
        def numbers() -> Sequence[float]:
            """Advances the step count: runs once an executed step, also when a compiled session replays it."""
            step = 0
            if rule.moments:
                for p in members:
                    state = self.state[p]
                    step = state["step"] = state["step"] + 1
            return self.scalars(group, step)

        scalars = dispatch.current().host_scalars(numbers, scalar_count(rule.row))
        params = [p.contiguous() for p in members]
        grads = [p.grad.contiguous() for p in members if p.grad is not None]
        moments = [[self.state[p][name] for p in members] for name in rule.moments]
        rule.row(params, grads, *moments, *scalars)
        for p, updated in zip(members, params, strict=True):
            if p is not updated:
                p.copy_(updated)

    # ---- state ----
    def state_dict(self) -> dict[str, Any]:
        """Groups and state in torch.optim's format: parameters are numbers, in the order of the groups."""
        return state_dict(self)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over groups and state (also torch.optim's). Raises CheckpointError, changing nothing, if they do not fit."""
        load_state_dict(self, state_dict)

    def _fingerprint(self) -> Any:
        """What a compiled step depends on: the groups' members, rules, and which parameters share a step count."""
        parts = []
        for group in self.param_groups:
            rule = self.rule(group)
            order: dict[int, int] = {}
            steps = tuple(order.setdefault(self.state[p].get("step", 0) if p in self.state else 0, len(order)) for p in group["params"])
            parts.append((rule.row.name, tuple(p._storage.uid for p in group["params"]), steps))
        return tuple(parts)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        pack(self)

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for i, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {i}")
            lines += [f"    {key}: {group[key]}" for key in sorted(group) if key not in ("params", "param_names")]
        return "\n".join([*lines, ")"])


def _check_parameter(p: Any, name: str) -> None:
    if not isinstance(p, Tensor):
        raise TypeError(f"parameter {name} is a {type(p).__name__}, not a Tensor")
    if not p.is_leaf:
        raise GradientError(f"parameter {name} ({p.layout}) is the result of an operation; only leaf tensors can be optimized")
    if not p.is_floating_point():
        raise TypeError(f"parameter {name} ({p.layout}) is not floating point")


def check_betas(group: Mapping[str, Any]) -> None:
    """ValueError unless lr, eps, betas and weight_decay of an Adam-like group are in range."""
    check_options(group, "lr", "eps", "weight_decay")
    for i, beta in enumerate(group["betas"]):
        if not 0.0 <= beta < 1.0:
            raise ValueError(f"invalid beta parameter at index {i}: {beta}; expected 0 <= beta < 1")


def check_options(group: Mapping[str, Any], *names: str) -> None:
    """ValueError unless each named option is a number that is not negative."""
    for name in names:
        if not group[name] >= 0.0:
            raise ValueError(f"invalid {name}: {group[name]}; expected a number >= 0")
