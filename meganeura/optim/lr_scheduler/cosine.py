"""Schedules along a cosine."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..optimizer import Optimizer
from .base import LRScheduler


class CosineAnnealingLR(LRScheduler):
    """From the initial lr to `eta_min` and back along a cosine of half period `T_max`. Source: arXiv:1608.03983.

    The next lr is computed from the present one, so that schedules may be combined.
    """

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        if T_max < 1:
            raise ValueError(f"T_max must be at least 1, got {T_max}")
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Sequence[float]:
        t, half, low = self.last_epoch, self.T_max, self.eta_min
        if self._initial:
            return self._lrs()
        if (t - 1 - half) % (2 * half) == 0:  # just left the minimum, where the recursion divides by zero
            rise = (1 - math.cos(math.pi / half)) / 2
            return [lr + (base - low) * rise for lr, base in zip(self._lrs(), self.base_lrs, strict=True)]
        ratio = (1 + math.cos(math.pi * t / half)) / (1 + math.cos(math.pi * (t - 1) / half))
        return [ratio * (lr - low) + low for lr in self._lrs()]

    def _closed_form(self) -> Sequence[float]:
        part = (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2
        return [self.eta_min + (base - self.eta_min) * part for base in self.base_lrs]


class CosineAnnealingWarmRestarts(LRScheduler):
    """From the initial lr to `eta_min` along half a cosine, again and again: in T_0 epochs, then T_0 * T_mult, ...

    Source: arXiv:1608.03983. `step(epoch)` goes to an epoch, which may be a fraction.
    """

    def __init__(self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        if not isinstance(T_0, int) or T_0 < 1:
            raise ValueError(f"T_0 must be a whole number of at least 1, got {T_0}")
        if not isinstance(T_mult, int) or T_mult < 1:
            raise ValueError(f"T_mult must be a whole number of at least 1, got {T_mult}")
        self.T_0, self.T_i, self.T_mult, self.eta_min = T_0, T_0, T_mult, eta_min
        self.T_cur: float = last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Sequence[float]:
        part = (1 + math.cos(math.pi * self.T_cur / self.T_i)) / 2
        return [self.eta_min + (base - self.eta_min) * part for base in self.base_lrs]

    def step(self, epoch: float | None = None) -> None:
        """Go one epoch further, or to `epoch`."""
        if epoch is None and self.last_epoch >= 0:
            self.last_epoch += 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur %= self.T_i
                self.T_i *= self.T_mult
        else:
            self._go(epoch or 0)
        self._set(self.get_lr())

    def _go(self, epoch: float) -> None:
        if epoch < 0:
            raise ValueError(f"epoch must not be negative, got {epoch}")
        self.T_i, self.T_cur = self.T_0, epoch
        if epoch >= self.T_0:
            if self.T_mult == 1:
                self.T_cur = epoch % self.T_0
            else:
                n = int(math.log(epoch / self.T_0 * (self.T_mult - 1) + 1, self.T_mult))
                self.T_cur = epoch - self.T_0 * (self.T_mult**n - 1) / (self.T_mult - 1)
                self.T_i = self.T_0 * self.T_mult**n
        self.last_epoch = math.floor(epoch)


class WarmupCosineLR(LRScheduler):
    """A line up from `start_factor` * lr over `warmup_steps`, then half a cosine down to `min_lr` at `total_steps`, where it stays."""

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_steps: int,
        total_steps: int,
        min_lr: float = 0.0,
        start_factor: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        if not 0 <= warmup_steps <= total_steps:
            raise ValueError(f"expected 0 <= warmup_steps <= total_steps, got {warmup_steps} and {total_steps}")
        self.warmup_steps, self.total_steps, self.min_lr, self.start_factor = warmup_steps, total_steps, min_lr, start_factor
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Sequence[float]:
        step = self.last_epoch
        if step < self.warmup_steps:
            factor = self.start_factor + (1.0 - self.start_factor) * step / self.warmup_steps
            return [base * factor for base in self.base_lrs]
        done = min(1.0, (step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps))
        return [self.min_lr + (base - self.min_lr) * (1.0 + math.cos(math.pi * done)) / 2 for base in self.base_lrs]
