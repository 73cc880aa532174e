"""Optimizer: parameter groups, per-parameter state and the step that hands them to an Update row.

Parameters with the same counts, dtypes and learning-rate multiplier update together: normally all of a group.
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
from ..provenance import phase
from ..spans import span
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

    numbers: Mapping[str, float] = {"step": 0}  # Python numbers of a parameter's state, with their values before the first step

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

    def scalars_at(self, group: ParamGroup, state: State) -> Sequence[float]:
        """The row's scalars from a parameter's counts, for optimizers that keep more of them than the step."""
        return self.scalars(group, state.get("step", 0))

    def advance(self, group: ParamGroup, state: State) -> None:
        """Move a parameter's counts one step on."""
        state["step"] += 1

    def initial(self, group: ParamGroup, name: str) -> float:
        """What a moment holds before the first step."""
        return 0.0

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

    def set_lr_multipliers(self, multipliers: Mapping[str, float]) -> None:
        """Multiply the learning rate of each parameter by the factor of the longest prefix of its name; {} takes all off.

        Needs names: `SGD(model.named_parameters(), ...)`. Schedules go on setting the groups' 'lr', to which factors apply.
        """
        names = [n for group in self.param_groups for n in group.get("param_names", ())]
        if multipliers and len(names) != sum(len(group["params"]) for group in self.param_groups):
            raise ValueError("lr multipliers go by names: give the optimizer model.named_parameters()")
        for prefix, factor in multipliers.items():
            if not any(n.startswith(prefix) for n in names):
                raise ValueError(
                    f"no parameter's name begins with {prefix!r}; there are {', '.join(names[:8])}{', ...' * (len(names) > 8)}"
                )
            if not factor >= 0.0:
                raise ValueError(f"invalid lr multiplier of {prefix!r}: {factor}; expected a number >= 0")
        for group in self.param_groups:
            group["lr_multipliers"] = {prefix: float(factor) for prefix, factor in multipliers.items()}

    # ---- stepping ----
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients, or fill them with zeros."""
        dispatch.current().observe(self)
        with phase("optimizer"):
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
        with span("optimizer"), phase("optimizer"), dispatch.no_grad():
            for group in self.param_groups:
                rule = self.rule(group)
                self._prepare(group, rule)
                for factor, members in self._cohorts(group, rule):
                    self._update(group, rule, factor, members)
        return loss

    def _prepare(self, group: ParamGroup, rule: Rule) -> None:
        """Allocate the moments that are missing, in float32: squares of small float16 gradients would vanish."""
        if not rule.moments:
            return
        params = [p for p in group["params"] if p.grad is not None]
        missing = [(p, name) for p in params for name in rule.moments if name not in self.state[p]]
        starts = [self.initial(group, name) for _, name in missing]
        for (p, name), moment in zip(missing, arena.filled([p.shape for p, _ in missing], starts, float32), strict=True):
            self.state[p][name] = moment
            for count, start in self.numbers.items():
                self.state[p].setdefault(count, start)

    def _cohorts(self, group: ParamGroup, rule: Rule) -> list[tuple[Factor, list[Tensor]]]:
        """The group's parameters with gradients, by counts, dtypes and learning-rate multiplier."""
        found: dict[Any, tuple[Factor, list[Tensor]]] = {}
        for p, factor, counts in zip(group["params"], factors(group), self._counts(group), strict=True):
            if p.grad is not None:
                key = (factor.value, counts if rule.moments else (), p.layout.dtype, p.grad.layout.dtype)
                found.setdefault(key, (factor, []))[1].append(p)
        return list(found.values())

    def _counts(self, group: ParamGroup) -> list[tuple[float, ...]]:
        """The counts of each parameter."""
        start = tuple(self.numbers.values())
        states = map(self.state.get, group["params"])
        if len(start) == 1:  # the usual: the step
            return [(s["step"],) if s else start for s in states]
        return [tuple(s.get(name, value) for name, value in self.numbers.items()) if s else start for s in states]

    def _update(self, group: ParamGroup, rule: Rule, factor: Factor, members: list[Tensor]) -> None:
        def numbers() -> Sequence[float]:
            """Advances the step count: runs once an executed step, also when a compiled session replays it."""
            options = group if factor.prefix is None else {**group, "lr": group["lr"] * factor.now()}
            if not rule.moments:
                return self.scalars_at(options, {})
            for p in members:
                self.advance(options, self.state[p])
            return self.scalars_at(options, self.state[members[0]])

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
        """What a compiled step depends on: the groups' members, rules, and which parameters share counts and multipliers."""
        parts = []
        for group in self.param_groups:
            uids = tuple([p._storage.uid for p in group["params"]])
            parts.append((self.rule(group).row.name, uids, self._sharing(group) if self.state or group.get("lr_multipliers") else ()))
        return tuple(parts)

    def _sharing(self, group: ParamGroup) -> tuple[Any, ...]:
        """Which parameters of a group share counts and multipliers, and by which prefixes they have these: a step looks up their values."""
        counts = self._counts(group)
        if not group.get("lr_multipliers"):
            return _pattern(counts)
        found = factors(group)
        return *(f.prefix for f in found), *_pattern(list(zip(counts, (f.value for f in found), strict=True)))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        pack(self)

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for i, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {i}")
            lines += [f"    {key}: {group[key]}" for key in sorted(group) if key not in ("params", "param_names")]
        return "\n".join([*lines, ")"])


def _pattern(keys: list[Any]) -> tuple[int, ...]:
    """Which keys are equal: for each the number of the first like it among those that differ; () where all are equal."""
    if not keys or keys.count(keys[0]) == len(keys):  # the usual, before every call of a compiled step
        return ()
    order: dict[Any, int] = {}
    return tuple([order.setdefault(key, len(order)) for key in keys])


class Factor(NamedTuple):
    """A parameter's learning-rate multiplier: what it was when looked up, and whence it comes."""

    value: float
    group: ParamGroup
    prefix: str | None

    def now(self) -> float:
        """The present value."""
        return 1.0 if self.prefix is None else float(self.group.get("lr_multipliers", {}).get(self.prefix, 1.0))


def factors(group: ParamGroup) -> list[Factor]:
    """The multiplier of each parameter of a group, by the longest prefix of its name."""
    table = group.get("lr_multipliers")
    if not table:
        return [Factor(1.0, group, None)] * len(group["params"])
    longest = sorted(table, key=len, reverse=True)
    found = (next((prefix for prefix in longest if name.startswith(prefix)), None) for name in group["param_names"])
    return [Factor(1.0 if prefix is None else table[prefix], group, prefix) for prefix in found]


def _check_parameter(p: Any, name: str) -> None:
    if not isinstance(p, Tensor):
        raise TypeError(f"parameter {name} is a {type(p).__name__}, not a Tensor")
    if not p.is_leaf:
        raise GradientError(f"parameter {name} ({p.layout}) is the result of an operation; only leaf tensors can be optimized")
    if not p.is_floating_point():
        raise TypeError(f"parameter {name} ({p.layout}) is not floating point")


def check_betas(group: Mapping[str, Any], *names: str) -> None:
    """ValueError unless the betas of an Adam-like group, and lr, eps and weight_decay (or the options named) are in range."""
    check_options(group, *(names or ("lr", "eps", "weight_decay")))
    for i, beta in enumerate(group["betas"]):
        if not 0.0 <= beta < 1.0:
            raise ValueError(f"invalid beta parameter at index {i}: {beta}; expected 0 <= beta < 1")


def check_options(group: Mapping[str, Any], *names: str) -> None:
    """ValueError unless each named option is a number that is not negative."""
    for name in names:
        if not group[name] >= 0.0:
            raise ValueError(f"invalid {name}: {group[name]}; expected a number >= 0")
