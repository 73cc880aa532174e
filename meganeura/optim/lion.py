"""Lion."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..ops import optimizer as rows
from .optimizer import Optimizer, ParamGroup, Rule, check_betas


class Lion(Optimizer):
    """Steps of one size in the direction of the momentum's sign. Source: arXiv:2302.06675.

    p *= 1 - lr * weight_decay; p -= lr * sign(beta1 * m + (1 - beta1) * g); m = beta2 * m + (1 - beta2) * g.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0, *,
        maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "weight_decay": weight_decay, "maximize": maximize})

    def validate(self, group: ParamGroup) -> None:
        check_betas(group, "lr", "weight_decay")

    def rule(self, group: ParamGroup) -> Rule:
        return Rule(rows.lion_update, ("exp_avg",))

    def scalars(self, group: ParamGroup, step: int) -> Sequence[float]:
        lr, (beta1, beta2) = float(group["lr"]), group["betas"]
        sign = -1.0 if group["maximize"] else 1.0
        return lr, sign, 1.0 - lr * group["weight_decay"], beta1, 1.0 - beta1, beta2, 1.0 - beta2
