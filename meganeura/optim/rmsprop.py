"""RMSprop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..ops import optimizer as rows
from .optimizer import Optimizer, ParamGroup, Rule, check_options


class RMSprop(Optimizer):
    """Gradients divided by the root of a running mean of their squares, as torch.optim.RMSprop.

    v = alpha * v + (1 - alpha) * g^2; n = g / (sqrt(v) + eps); p -= lr * n, or with momentum b = momentum * b + n, p -= lr * b.
    `centered` takes the variance, v less the square of the running mean of g, in the place of v.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-2, alpha: float = 0.99, eps: float = 1e-8, weight_decay: float = 0.0,
        momentum: float = 0.0, centered: bool = False, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        defaults = {
            "lr": lr, "momentum": momentum, "alpha": alpha, "eps": eps, "centered": centered, "weight_decay": weight_decay,
            "maximize": maximize,
        }  # fmt: skip
        super().__init__(params, defaults)

    def validate(self, group: ParamGroup) -> None:
        check_options(group, "lr", "eps", "momentum", "weight_decay", "alpha")

    def rule(self, group: ParamGroup) -> Rule:
        if group["centered"]:
            if group["momentum"] > 0:
                return Rule(rows.rmsprop_centered_momentum_update, ("square_avg", "grad_avg", "momentum_buffer"))
            return Rule(rows.rmsprop_centered_update, ("square_avg", "grad_avg"))
        if group["momentum"] > 0:
            return Rule(rows.rmsprop_momentum_update, ("square_avg", "momentum_buffer"))
        return Rule(rows.rmsprop_update, ("square_avg",))

    def scalars(self, group: ParamGroup, step: int) -> Sequence[float]:
        alpha, momentum = float(group["alpha"]), float(group["momentum"])
        first = (float(group["lr"]), -1.0 if group["maximize"] else 1.0, float(group["weight_decay"]), alpha, 1.0 - alpha, group["eps"])
        return (*first, momentum) if momentum > 0 else first
