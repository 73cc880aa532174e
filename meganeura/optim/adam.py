"""Adam and AdamW."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ..ops import optimizer as rows
from .optimizer import Optimizer, ParamGroup, Rule, check_betas


class Adam(Optimizer):
    """Adam, as torch.optim.Adam: weight decay is added to the gradient, unless `decoupled_weight_decay`.

    Source: arXiv:1412.6980; amsgrad: Reddi et al. 2018.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0.0, amsgrad: bool = False, *, maximize: bool = False, decoupled_weight_decay: bool = False,
    ) -> None:  # fmt: skip
        defaults = {
            "lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad, "maximize": maximize,
            "decoupled_weight_decay": decoupled_weight_decay,
        }  # fmt: skip
        super().__init__(params, defaults)

    def validate(self, group: ParamGroup) -> None:
        check_betas(group)

    def rule(self, group: ParamGroup) -> Rule:
        if group["amsgrad"]:
            return Rule(rows.adam_amsgrad_update, ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"))
        return Rule(rows.adam_update, ("exp_avg", "exp_avg_sq"))

    def scalars(self, group: ParamGroup, step: int) -> Sequence[float]:
        lr, (beta1, beta2), decay = float(group["lr"]), group["betas"], group["weight_decay"]
        decoupled = group["decoupled_weight_decay"]
        return (
            -1.0 if group["maximize"] else 1.0, 0.0 if decoupled else float(decay), 1.0 - lr * decay if decoupled else 1.0,
            1.0 - beta1, beta2, 1.0 - beta2, lr / (1.0 - beta1**step), 1.0 / math.sqrt(1.0 - beta2**step), float(group["eps"]),
        )  # fmt: skip


class AdamW(Adam):
    """Adam whose weight decay shrinks the parameters directly, as torch.optim.AdamW. Source: arXiv:1711.05101."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 1e-2, amsgrad: bool = False, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize, decoupled_weight_decay=True)
