"""The base of learning-rate schedules."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ... import dispatch
from ...errors import TraceError
from ...provenance import site
from ...tensor import Tensor
from ..optimizer import Optimizer


def at_every_run(step: Callable[..., None]) -> Callable[..., None]:
    """A schedule's `step` that a compiled function takes at every run, in the order of what the host does for it."""

    @functools.wraps(step)
    def call(self: LRScheduler, *args: Any, **kwargs: Any) -> None:
        if dispatch.current().reads:
            return step(self, *args, **kwargs)
        if any(isinstance(a, Tensor) for a in (*args, *kwargs.values())):
            raise TraceError(
                f"{type(self).__name__}.step() needs the value of a tensor, which is not there while tracing\n  at {site()}\n"
                f"  return the metric and call step(metric.item()) outside"
            )

        def now() -> Sequence[float]:
            step(self, *args, **kwargs)
            return (0.0,)

        dispatch.current().host_scalars(now, 1)

    return call


class LRScheduler:
    """Base of all schedules, as torch.optim.lr_scheduler.LRScheduler. A subclass gives `get_lr`.

    `last_epoch` counts calls of `step`; -1 starts anew, another value continues from groups that hold 'initial_lr'.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "step" in cls.__dict__:
            cls.step = at_every_run(cls.__dict__["step"])  # type: ignore[method-assign]

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")
        self.optimizer = optimizer
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                raise KeyError(f"param_groups[{i}] has no 'initial_lr', which is needed to continue from last_epoch={last_epoch}")
        self.base_lrs: list[float] = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._last_lr: list[float] = []
        self._initial = False
        self._initial_step()

    def _initial_step(self) -> None:
        """The step that sets the learning rates of epoch 0 (or of where `last_epoch` continues)."""
        self._initial = True
        self.step()
        self._initial = False

    def get_lr(self) -> Sequence[float]:
        """The learning rate of each group at `last_epoch`."""
        raise NotImplementedError

    @at_every_run
    def step(self) -> None:
        """Go one epoch (or whatever the caller counts) further."""
        self.last_epoch += 1
        self._set(self.get_lr())

    def _closed_form(self) -> Sequence[float]:
        """The learning rates at `last_epoch`, whatever came before, where a schedule knows them."""
        return self.get_lr()

    def _begin(self) -> None:
        """Start at epoch 0, in the place of another schedule."""
        self.last_epoch = 0
        self._set(self._closed_form())

    def _set(self, lrs: Sequence[float]) -> None:
        for group, lr in zip(self.optimizer.param_groups, lrs, strict=True):
            group["lr"] = lr
        self._last_lr = self._lrs()

    def get_last_lr(self) -> list[float]:
        """The learning rates that the last `step` set."""
        return self._last_lr

    def _lrs(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer, as plain Python values."""
        return {k: v for k, v in self.__dict__.items() if k != "optimizer"}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a saved schedule. Groups' learning rates come with the optimizer's own state."""
        self.__dict__.update({k: v for k, v in state_dict.items() if k in self.__dict__ and k != "optimizer"})


def per_group(name: str, optimizer: Optimizer, value: float | Sequence[float]) -> list[float]:
    """One number for all groups, or a list of one a group."""
    groups = len(optimizer.param_groups)
    if isinstance(value, (list, tuple)):
        if len(value) != groups:
            raise ValueError(f"{name} needs {groups} values, one a group, got {len(value)}")
        return [float(v) for v in value]
    return [float(value)] * groups  # type: ignore[arg-type]


class MomentumCycle:
    """Where an optimizer keeps the momentum that a cycle moves: 'momentum', or the first of 'betas'."""

    def __init__(self, optimizer: Optimizer) -> None:
        if "momentum" not in optimizer.defaults and "betas" not in optimizer.defaults:
            raise ValueError(f"cycle_momentum needs an optimizer with momentum or betas; {type(optimizer).__name__} has neither")
        self.first_beta = "betas" in optimizer.defaults

    def set(self, group: dict[str, Any], value: float) -> None:
        """Set a group's momentum."""
        if self.first_beta:
            group["betas"] = (value, *group["betas"][1:])
        else:
            group["momentum"] = value
