"""Schedules made of schedules."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from ..optimizer import Optimizer
from .base import LRScheduler
from .plateau import ReduceLROnPlateau


class _Combined(LRScheduler):
    """A schedule that steps others."""

    _schedulers: list[LRScheduler]

    def _adopt(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None) -> None:
        """Check that all are schedules of one optimizer, and keep them."""
        name = type(self).__name__
        if not schedulers:
            raise ValueError(f"{name} needs at least one schedule")
        for i, s in enumerate(schedulers):
            if not isinstance(s, LRScheduler):
                raise TypeError(f"{name}: number {i} is a {type(s).__name__}, not a schedule")
            if isinstance(s, ReduceLROnPlateau):
                raise ValueError(f"{name} cannot step a ReduceLROnPlateau (number {i}), which needs a metric")
            optimizer = optimizer or s.optimizer
            if s.optimizer is not optimizer:
                raise ValueError(f"{name}: number {i} belongs to another optimizer")
        assert optimizer is not None
        self._schedulers, self.optimizer = list(schedulers), optimizer

    def state_dict(self) -> dict[str, Any]:
        """As the base's, with the states of all parts."""
        own = {k: v for k, v in self.__dict__.items() if k not in ("optimizer", "_schedulers")}
        return {**own, "_schedulers": [s.state_dict() for s in self._schedulers]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        parts = state_dict["_schedulers"]
        if len(parts) != len(self._schedulers):
            raise ValueError(f"{len(parts)} schedules were saved, this {type(self).__name__} has {len(self._schedulers)}")
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "_schedulers"})
        for s, state in zip(self._schedulers, parts, strict=True):
            s.load_state_dict(state)


class SequentialLR(_Combined):
    """One schedule after another; the i-th takes over at epoch milestones[i - 1]."""

    def __init__(self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int], last_epoch: int = -1) -> None:
        self._adopt(schedulers, optimizer)
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(f"{len(schedulers)} schedules need {len(schedulers) - 1} milestones, got {len(milestones)}")
        self._milestones = list(milestones)
        self.last_epoch = last_epoch + 1
        for group in optimizer.param_groups:  # each schedule set them when it was made
            group["lr"] = group["initial_lr"]
        for s in self._schedulers:
            _undo(s)
        first = self._schedulers[bisect_right(self._milestones, 0)]
        first._initial_step()
        self._last_lr = first.get_last_lr()

    def step(self) -> None:
        """Go one epoch further."""
        self.last_epoch += 1
        i = bisect_right(self._milestones, self.last_epoch)
        now = self._schedulers[i]
        if i > 0 and self._milestones[i - 1] == self.last_epoch:
            now._begin()
        else:
            now.step()
        self._last_lr = now.get_last_lr()


def _undo(schedule: LRScheduler) -> None:
    """Take back the step that a schedule made when it was made."""
    if isinstance(schedule, _Combined):
        for s in schedule._schedulers:
            _undo(s)
    else:
        schedule.last_epoch -= 1


class ChainedScheduler(_Combined):
    """Several schedules at once, each changing what those before it set."""

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None) -> None:
        self._adopt(schedulers, optimizer)
        self._last_lr = self._lrs()

    def step(self) -> None:
        """Step all, in order."""
        for s in self._schedulers:
            s.step()
        self._last_lr = self._lrs()

    def _initial_step(self) -> None:
        for s in self._schedulers:
            s._initial_step()
        self._last_lr = self._lrs()
