"""What optimizers with running means of gradients and their squares share: options betas, eps, weight_decay, maximize."""

from __future__ import annotations

import math
from typing import ClassVar

from ..ops.table import Op
from .optimizer import Optimizer, ParamGroup, Rule, check_betas


class MomentOptimizer(Optimizer):
    """Base of the Adam family: one row, and moments under fixed names."""

    row: ClassVar[Op]
    moments: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")

    def validate(self, group: ParamGroup) -> None:
        check_betas(group)

    def rule(self, group: ParamGroup) -> Rule:
        return Rule(self.row, self.moments)


def signs(group: ParamGroup) -> tuple[float, float, float]:
    """sign, l2 and decay of a group (see ops/optimizer.py)."""
    decay, decoupled = group["weight_decay"], group["decoupled_weight_decay"]
    return -1.0 if group["maximize"] else 1.0, 0.0 if decoupled else float(decay), 1.0 - group["lr"] * decay if decoupled else 1.0


def shares(group: ParamGroup) -> tuple[float, float, float]:
    """1 - beta1, beta2 and 1 - beta2: how much of the new enters the means."""
    beta1, beta2 = group["betas"]
    return 1.0 - beta1, beta2, 1.0 - beta2


def corrections(group: ParamGroup, step: int) -> tuple[float, float]:
    """lr / (1 - beta1^t) and 1 / sqrt(1 - beta2^t): means of t gradients started at 0."""
    beta1, beta2 = group["betas"]
    return float(group["lr"]) / (1.0 - beta1**step), 1.0 / math.sqrt(1.0 - beta2**step)
