"""Learning-rate schedules: they set each group's 'lr' on the host, which reaches the device as a scalar of the next step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .optimizer import Optimizer


class LRScheduler:
    """Base of all schedules, as torch.optim.lr_scheduler.LRScheduler. A subclass gives `get_lr`.

    `last_epoch` counts calls of `step`; -1 starts anew, another value continues from groups that hold 'initial_lr'.
    """

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
        self._initial = True
        self.step()
        self._initial = False

    def get_lr(self) -> Sequence[float]:
        """The learning rate of each group at `last_epoch`."""
        raise NotImplementedError

    def step(self) -> None:
        """Go one epoch (or whatever the caller counts) further."""
        self.last_epoch += 1
        for group, lr in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
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


class LambdaLR(LRScheduler):
    """lr = initial lr * lr_lambda(epoch); one function, or a list of one a group."""

    def __init__(
        self, optimizer: Optimizer, lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]], last_epoch: int = -1
    ) -> None:
        groups = len(optimizer.param_groups)
        self.lr_lambdas = [lr_lambda] * groups if callable(lr_lambda) else list(lr_lambda)
        if len(self.lr_lambdas) != groups:
            raise ValueError(f"expected {groups} lr_lambdas, got {len(self.lr_lambdas)}")
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Sequence[float]:
        return [base * f(self.last_epoch) for base, f in zip(self.base_lrs, self.lr_lambdas, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        """As the base's; of the functions only the attributes of callable objects are kept, as in PyTorch."""
        state = super().state_dict()
        state["lr_lambdas"] = [None if isinstance(f, type(lambda: 0)) else dict(f.__dict__) for f in self.lr_lambdas]
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "lr_lambdas"})
        for f, attributes in zip(self.lr_lambdas, state_dict["lr_lambdas"], strict=True):
            if attributes is not None:
                f.__dict__.update(attributes)


class StepLR(LRScheduler):
    """lr *= gamma every `step_size` epochs."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        if step_size < 1:
            raise ValueError(f"step_size must be at least 1, got {step_size}")
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Sequence[float]:
        if self._initial or self.last_epoch % self.step_size:
            return self._lrs()
        return [lr * self.gamma for lr in self._lrs()]


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
