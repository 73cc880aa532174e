"""LaProp."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ..ops import optimizer as rows
from .optimizer import Optimizer, ParamGroup, Rule, check_betas


class LaProp(Optimizer):
    """Momentum of the normalised gradient: v as Adam's, n = g / (sqrt(v_hat) + eps), m = beta1 * m + (1 - beta1) * n,
    p -= lr * m / (1 - beta1^t). Weight decay shrinks the parameters directly, as AdamW's. Source: arXiv:2002.04839.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 4e-4, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-15,
        weight_decay: float = 0.0, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, "maximize": maximize})

    def validate(self, group: ParamGroup) -> None:
        check_betas(group)

    def rule(self, group: ParamGroup) -> Rule:
        return Rule(rows.laprop_update, ("exp_avg", "exp_avg_sq"))

    def scalars(self, group: ParamGroup, step: int) -> Sequence[float]:
        lr, (beta1, beta2) = float(group["lr"]), group["betas"]
        return (
            -1.0 if group["maximize"] else 1.0, 1.0 - lr * group["weight_decay"], beta1, 1.0 - beta1, beta2, 1.0 - beta2,
            lr / (1.0 - beta1**step), 1.0 / math.sqrt(1.0 - beta2**step), float(group["eps"]),
        )  # fmt: skip
