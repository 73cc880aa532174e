"""Schedules that go up and down, with the momentum going the other way."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..optimizer import Optimizer
from .base import LRScheduler, MomentumCycle, per_group


class OneCycleLR(LRScheduler):
    """One rise from max_lr / div_factor to max_lr over `pct_start` of the steps, then one fall to that / final_div_factor.

    Source: arXiv:1708.07120. Momentum goes from `max_momentum` to `base_momentum` and back. `three_phase` first falls as far
    as it rose. Step it after every batch, `total_steps` (or epochs * steps_per_epoch) times at most.
    """

    def __init__(
        self, optimizer: Optimizer, max_lr: float | Sequence[float], total_steps: int | None = None, epochs: int | None = None,
        steps_per_epoch: int | None = None, pct_start: float = 0.3, anneal_strategy: str = "cos", cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.85, max_momentum: float | Sequence[float] = 0.95, div_factor: float = 25.0,
        final_div_factor: float = 1e4, three_phase: bool = False, last_epoch: int = -1,
    ) -> None:  # fmt: skip
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")
        self.total_steps = _total_steps(total_steps, epochs, steps_per_epoch)
        if not 0 <= pct_start <= 1:
            raise ValueError(f"pct_start must lie in [0, 1], got {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy must be 'cos' or 'linear', not {anneal_strategy!r}")
        self.anneal_strategy, self.cycle_momentum = anneal_strategy, cycle_momentum
        self._phases = self._phases_of(pct_start, three_phase)
        if last_epoch == -1:
            for group, lr in zip(optimizer.param_groups, per_group("max_lr", optimizer, max_lr), strict=True):
                group["initial_lr"], group["max_lr"] = lr / div_factor, lr
                group["min_lr"] = group["initial_lr"] / final_div_factor
        if cycle_momentum:
            momentum = MomentumCycle(optimizer)
            high = per_group("max_momentum", optimizer, max_momentum)
            low = per_group("base_momentum", optimizer, base_momentum)
            for group, top, bottom in zip(optimizer.param_groups, high, low, strict=True):
                if last_epoch == -1:
                    momentum.set(group, top)
                    group["max_momentum"], group["base_momentum"] = top, bottom
        super().__init__(optimizer, last_epoch)

    def _phases_of(self, pct_start: float, three_phase: bool) -> list[tuple[float, str, str, str, str]]:
        """(last step, lr from, lr to, momentum from, momentum to) of each phase, by names of group options."""
        top, end = pct_start * self.total_steps - 1, self.total_steps - 1
        up = (top, "initial_lr", "max_lr", "max_momentum", "base_momentum")
        if not three_phase:
            return [up, (end, "max_lr", "min_lr", "base_momentum", "max_momentum")]
        down = (2 * pct_start * self.total_steps - 2, "max_lr", "initial_lr", "base_momentum", "max_momentum")
        return [up, down, (end, "initial_lr", "min_lr", "max_momentum", "max_momentum")]

    def _between(self, start: float, end: float, part: float) -> float:
        if self.anneal_strategy == "linear":
            return (end - start) * part + start
        return end + (start - end) / 2.0 * (math.cos(math.pi * part) + 1)

    def get_lr(self) -> Sequence[float]:
        step = self.last_epoch
        if step > self.total_steps:
            raise ValueError(f"step {step + 1} of a OneCycleLR of {self.total_steps} steps")
        begin = 0.0
        for i, phase in enumerate(self._phases):
            if step <= phase[0] or i == len(self._phases) - 1:
                break
            begin = phase[0]
        end, lr0, lr1, momentum0, momentum1 = phase
        part = (step - begin) / (end - begin)
        if self.cycle_momentum:
            momentum = MomentumCycle(self.optimizer)
            for group in self.optimizer.param_groups:
                momentum.set(group, self._between(group[momentum0], group[momentum1], part))
        return [self._between(group[lr0], group[lr1], part) for group in self.optimizer.param_groups]


def _total_steps(total: int | None, epochs: int | None, per_epoch: int | None) -> int:
    if total is None:
        if epochs is None or per_epoch is None:
            raise ValueError("OneCycleLR needs total_steps, or epochs and steps_per_epoch")
        total = epochs * per_epoch
    if not isinstance(total, int) or total < 1:
        raise ValueError(f"OneCycleLR needs a whole number of at least 1 steps, got {total}")
    return total


class CyclicLR(LRScheduler):
    """Between `base_lr` and `max_lr`, up in `step_size_up` steps and down in `step_size_down`. Source: arXiv:1506.01186.

    mode 'triangular' keeps the height, 'triangular2' halves it every cycle, 'exp_range' multiplies it by gamma every step;
    `scale_fn` of the cycle or (scale_mode 'iterations') the step takes their place. Step it after every batch.
    """

    def __init__(
        self, optimizer: Optimizer, base_lr: float | Sequence[float], max_lr: float | Sequence[float], step_size_up: int = 2000,
        step_size_down: int | None = None, mode: str = "triangular", gamma: float = 1.0, scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle", cycle_momentum: bool = True, base_momentum: float | Sequence[float] = 0.8,
        max_momentum: float | Sequence[float] = 0.9, last_epoch: int = -1,
    ) -> None:  # fmt: skip
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")
        if mode not in ("triangular", "triangular2", "exp_range") and scale_fn is None:
            raise ValueError(f"mode must be 'triangular', 'triangular2' or 'exp_range', not {mode!r}")
        low = per_group("base_lr", optimizer, base_lr)
        if last_epoch == -1:
            for group, lr in zip(optimizer.param_groups, low, strict=True):
                group["lr"] = lr
        self.max_lrs = per_group("max_lr", optimizer, max_lr)
        down = step_size_up if step_size_down is None else step_size_down
        self.total_size = float(step_size_up + down)
        self.step_ratio = step_size_up / self.total_size
        self.mode, self.gamma, self._scale_fn = mode, gamma, scale_fn
        self.scale_mode = scale_mode if scale_fn is not None else "iterations" if mode == "exp_range" else "cycle"
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            momentum = MomentumCycle(optimizer)
            self.base_momentums = per_group("base_momentum", optimizer, base_momentum)
            self.max_momentums = per_group("max_momentum", optimizer, max_momentum)
            for group, top, bottom in zip(optimizer.param_groups, self.max_momentums, self.base_momentums, strict=True):
                if last_epoch == -1:
                    momentum.set(group, top)
                    group["max_momentum"], group["base_momentum"] = top, bottom
        super().__init__(optimizer, last_epoch)
        self.base_lrs = low

    def scale_fn(self, x: float) -> float:
        """The height of a cycle, as a part of the first's."""
        if self._scale_fn is not None:
            return self._scale_fn(x)
        if self.mode == "triangular2":
            return float(1 / (2.0 ** (x - 1)))
        return float(self.gamma**x) if self.mode == "exp_range" else 1.0

    def get_lr(self) -> Sequence[float]:
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        height = x / self.step_ratio if x <= self.step_ratio else (x - 1) / (self.step_ratio - 1)
        height *= self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            momentum = MomentumCycle(self.optimizer)
            for group, low, top in zip(self.optimizer.param_groups, self.base_momentums, self.max_momentums, strict=True):
                momentum.set(group, top - (top - low) * height)
        return [low + (top - low) * height for low, top in zip(self.base_lrs, self.max_lrs, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        """As the base's; of a function only the attributes of a callable object are kept, as in PyTorch."""
        state = super().state_dict()
        fn = state.pop("_scale_fn")
        state["_scale_fn"] = None if fn is None or isinstance(fn, type(lambda: 0)) else dict(fn.__dict__)
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "_scale_fn"})
        if state_dict.get("_scale_fn") is not None and self._scale_fn is not None:
            self._scale_fn.__dict__.update(state_dict["_scale_fn"])
