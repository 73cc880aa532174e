"""Adagrad and Adadelta: learning rates of single elements from the sizes of their gradients so far."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..ops import optimizer as rows
from .optimizer import Optimizer, ParamGroup, Rule, check_options


class Adagrad(Optimizer):
    """As torch.optim.Adagrad: v += g^2; p -= lr / (1 + (t - 1) * lr_decay) * g / (sqrt(v) + eps)."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-2, lr_decay: float = 0.0, weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0, eps: float = 1e-10, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        defaults = {
            "lr": lr, "lr_decay": lr_decay, "eps": eps, "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value, "maximize": maximize,
        }  # fmt: skip
        super().__init__(params, defaults)

    def validate(self, group: ParamGroup) -> None:
        check_options(group, "lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps")

    def rule(self, group: ParamGroup) -> Rule:
        return Rule(rows.adagrad_update, ("sum",))

    def initial(self, group: ParamGroup, name: str) -> float:
        return float(group["initial_accumulator_value"])

    def scalars(self, group: ParamGroup, step: int) -> Sequence[float]:
        lr = group["lr"] / (1.0 + (step - 1) * group["lr_decay"])
        return lr, -1.0 if group["maximize"] else 1.0, float(group["weight_decay"]), float(group["eps"])


class Adadelta(Optimizer):
    """As torch.optim.Adadelta: steps in units of past steps.

    v = rho * v + (1 - rho) * g^2; d = g * sqrt(u + eps) / sqrt(v + eps); u = rho * u + (1 - rho) * d^2; p -= lr * d.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1.0, rho: float = 0.9, eps: float = 1e-6, weight_decay: float = 0.0, *,
        maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay, "maximize": maximize})

    def validate(self, group: ParamGroup) -> None:
        check_options(group, "lr", "eps", "weight_decay")
        if not 0.0 <= group["rho"] <= 1.0:
            raise ValueError(f"invalid rho: {group['rho']}; expected 0 <= rho <= 1")

    def rule(self, group: ParamGroup) -> Rule:
        return Rule(rows.adadelta_update, ("square_avg", "acc_delta"))

    def scalars(self, group: ParamGroup, step: int) -> Sequence[float]:
        rho, sign = float(group["rho"]), -1.0 if group["maximize"] else 1.0
        return float(group["lr"]), sign, float(group["weight_decay"]), rho, 1.0 - rho, float(group["eps"])
