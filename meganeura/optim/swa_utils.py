"""Averages of a model's parameters over training, as torch.optim.swa_utils: equal weights, exponential, or a rule of yours.

The count of updates is a tensor of the model, so averaging waits for nothing, may be compiled, and is saved with the weights.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .. import dispatch
from ..dtype import int64
from ..nn.module import Module
from ..nn.norms import BatchNorm
from ..nn.parameter import Buffer
from ..ops.factory import full, ones, zeros
from ..ops.optimizer import average_update
from ..ops.pointwise import where
from ..tensor import Tensor
from .lr_scheduler.base import LRScheduler, per_group
from .optimizer import Optimizer

AvgFn = Callable[[Tensor, Tensor, Tensor], Tensor]
MultiAvgFn = Callable[[Sequence[Tensor], Sequence[Tensor], Tensor], None]


class _Weighted:
    """A rule by which every average goes a part of the way to the present value. `weight(n)`: that part, after n updates. -> []."""

    def __init__(self, weight: Callable[[Tensor], Tensor]) -> None:
        self.weight = weight

    def __call__(self, averages: Sequence[Tensor], current: Sequence[Tensor], num_averaged: Tensor) -> None:
        move(averages, current, self.weight(num_averaged))


def get_ema_multi_avg_fn(decay: float = 0.999) -> MultiAvgFn:
    """average = decay * average + (1 - decay) * value."""
    if not 0.0 <= decay <= 1.0:
        raise ValueError(f"invalid decay: {decay}; expected 0 <= decay <= 1")
    return _Weighted(lambda n: full((), 1.0 - decay))


def get_swa_multi_avg_fn() -> MultiAvgFn:
    """The mean of all values so far."""
    return _Weighted(lambda n: n.float().add(1.0).reciprocal())


def get_ema_avg_fn(decay: float = 0.999) -> AvgFn:
    """get_ema_multi_avg_fn for one tensor at a time."""
    if not 0.0 <= decay <= 1.0:
        raise ValueError(f"invalid decay: {decay}; expected 0 <= decay <= 1")
    return lambda average, current, n: decay * average + (1.0 - decay) * current


def get_swa_avg_fn() -> AvgFn:
    """get_swa_multi_avg_fn for one tensor at a time."""
    return lambda average, current, n: average + (current - average) / (n + 1)


def move(averages: Sequence[Tensor], current: Sequence[Tensor], weight: Tensor) -> None:
    """averages += weight * (current - averages) in place, in few dispatches. `weight`: []."""
    pairs = [(a, c) for a, c in zip(averages, current, strict=True) if a.numel()]
    if not pairs:
        return
    with dispatch.no_grad():
        dense = [a.contiguous() for a, _ in pairs]
        average_update(dense, [c.detach().contiguous() for _, c in pairs], weight)
        for (a, _), d in zip(pairs, dense, strict=True):
            if a is not d:
                a.copy_(d)


class AveragedModel(Module):
    """A copy of a model that holds averages of its parameters, as torch.optim.swa_utils.AveragedModel.

    Call `update_parameters(model)` after optimizer steps; the first call copies. Calling the averaged model evaluates the
    copy. The rule is the mean, or `avg_fn(average, value, n) -> average` a tensor, or `multi_avg_fn(averages, values, n)` for
    all in place. Buffers are copied, or averaged too with `use_buffers` (those that are floating point).
    """

    n_averaged: Tensor

    def __init__(
        self, model: Module, device: Any = None, avg_fn: AvgFn | None = None, multi_avg_fn: MultiAvgFn | None = None,
        use_buffers: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise TypeError("give avg_fn or multi_avg_fn, not both")
        self.module = copy.deepcopy(model)
        self.n_averaged = Buffer(zeros((), dtype=int64))
        self.avg_fn, self.multi_avg_fn = avg_fn, multi_avg_fn
        if avg_fn is None and multi_avg_fn is None:
            self.multi_avg_fn = get_swa_multi_avg_fn()
        self.use_buffers = use_buffers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def update_parameters(self, model: Module) -> None:
        """Take the model's present values into the averages."""
        for owner in (self, model):
            dispatch.current().observe(owner)
        with dispatch.no_grad():
            pairs = list(zip(self.module.parameters(), model.parameters(), strict=True))
            buffers: list[tuple[Tensor, Tensor]] = list(zip(self.module.buffers(), model.buffers(), strict=True))
            averaged: list[tuple[Tensor, Tensor]] = [*pairs, *(b for b in buffers if self.use_buffers and b[0].is_floating_point())]
            self._average([a.detach() for a, _ in averaged], [c.detach() for _, c in averaged])
            for mine, value in buffers:
                if not (self.use_buffers and mine.is_floating_point()):
                    mine.copy_(value)
            self.n_averaged.add_(1)

    def _average(self, averages: list[Tensor], current: list[Tensor]) -> None:
        n = self.n_averaged.clone()
        first = n == 0
        if isinstance(self.multi_avg_fn, _Weighted):
            move(averages, current, where(first, ones(()), self.multi_avg_fn.weight(n)))
        elif self.multi_avg_fn is not None:
            move(averages, current, first.float())
            self.multi_avg_fn(averages, current, n)
        elif self.avg_fn is not None:
            for a, c in zip(averages, current, strict=True):
                a.copy_(where(first, c, self.avg_fn(a, c, n)))


class SWALR(LRScheduler):
    """lr goes from where it is to `swa_lr` over `anneal_epochs`, by 'cos' or 'linear', and stays, as torch.optim.swa_utils.SWALR."""

    def __init__(
        self, optimizer: Optimizer, swa_lr: float | Sequence[float], anneal_epochs: int = 10, anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ) -> None:  # fmt: skip
        for group, lr in zip(optimizer.param_groups, per_group("swa_lr", optimizer, swa_lr), strict=True):
            group["swa_lr"] = lr
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy must be 'cos' or 'linear', got {anneal_strategy!r}")
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ValueError(f"anneal_epochs must be a whole number of at least 0, got {anneal_epochs!r}")
        self.anneal_epochs, self.anneal_strategy, self.first_epoch = anneal_epochs, anneal_strategy, last_epoch + 1
        super().__init__(optimizer, last_epoch)

    def _part(self, step: int) -> float:
        """How much of the way is gone after a number of steps."""
        t = max(0.0, min(1.0, step / max(1, self.anneal_epochs)))
        return (1.0 - math.cos(math.pi * t)) / 2.0 if self.anneal_strategy == "cos" else t

    def get_lr(self) -> Sequence[float]:
        step = self.last_epoch - self.first_epoch
        step = max(1, step) if self.anneal_epochs == 0 else step
        before, now = self._part(step - 1), self._part(step)
        ends = [(group["lr"], group["swa_lr"]) for group in self.optimizer.param_groups]
        starts = [end if before == 1.0 else (lr - before * end) / (1.0 - before) for lr, end in ends]
        return [end * now + start * (1.0 - now) for start, (_, end) in zip(starts, ends, strict=True)]


def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Set the running statistics of all batch norms of a model to the plain means over the batches of a loader. A batch is the model's
    input, or a tuple or list that begins with it."""
    norms = [m for m in model.modules() if isinstance(m, BatchNorm)]
    if not norms:
        return
    momenta, training = [m.momentum for m in norms], model.training
    for m in norms:
        m.reset_running_stats()
        m.momentum = None
    model.train()
    with dispatch.no_grad():
        for batch in loader:
            model(batch[0] if isinstance(batch, (tuple, list)) else batch)
    for m, momentum in zip(norms, momenta, strict=True):
        m.momentum = momentum
    model.train(training)


class EMA(AveragedModel):
    """An AveragedModel with an exponential mean: average = decay * average + (1 - decay) * value."""

    def __init__(self, model: Module, decay: float = 0.999, use_buffers: bool = False) -> None:
        super().__init__(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=use_buffers)
        self.decay = decay
