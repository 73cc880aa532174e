"""Adamax, NAdam and RAdam."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ..ops import optimizer as rows
from .moments import MomentOptimizer, corrections, shares, signs
from .optimizer import ParamGroup, State, check_options


class Adamax(MomentOptimizer):
    """Adam with the largest recent gradient in the place of the root of squares, as torch.optim.Adamax. Source: arXiv:1412.6980."""

    row, moments = rows.adamax_update, ("exp_avg", "exp_inf")

    def __init__(
        self, params: Iterable[Any], lr: float = 2e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0.0, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, "maximize": maximize})

    def scalars(self, group: ParamGroup, step: int) -> Sequence[float]:
        sign, (rest1, beta2, _) = -1.0 if group["maximize"] else 1.0, shares(group)
        return corrections(group, step)[0], sign, float(group["weight_decay"]), rest1, beta2, float(group["eps"])


class NAdam(MomentOptimizer):
    """Adam with Nesterov momentum that warms up, as torch.optim.NAdam. Source: Dozat 2016."""

    row = rows.nadam_update
    numbers = {"step": 0, "mu_product": 1.0}

    def __init__(
        self, params: Iterable[Any], lr: float = 2e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0.0, momentum_decay: float = 4e-3, decoupled_weight_decay: bool = False, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        defaults = {
            "lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, "momentum_decay": momentum_decay,
            "decoupled_weight_decay": decoupled_weight_decay, "maximize": maximize,
        }  # fmt: skip
        super().__init__(params, defaults)

    def validate(self, group: ParamGroup) -> None:
        super().validate(group)
        check_options(group, "momentum_decay")

    def advance(self, group: ParamGroup, state: State) -> None:
        state["step"] += 1
        state["mu_product"] *= _mu(group, state["step"])

    def scalars_at(self, group: ParamGroup, state: State) -> Sequence[float]:
        lr, step = float(group["lr"]), state["step"]
        mu, ahead, product = _mu(group, step), _mu(group, step + 1), state["mu_product"]
        weights = lr * (1.0 - mu) / (1.0 - product), lr * ahead / (1.0 - product * ahead)
        return *signs(group), *shares(group), *weights, corrections(group, step)[1], float(group["eps"])


class RAdam(MomentOptimizer):
    """Adam that goes by momentum alone until the variance of its squares is known, as torch.optim.RAdam. Source: arXiv:1908.03265."""

    row = rows.radam_update

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0.0, decoupled_weight_decay: bool = False, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        defaults = {
            "lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay, "maximize": maximize,
        }  # fmt: skip
        super().__init__(params, defaults)

    def scalars(self, group: ParamGroup, step: int) -> Sequence[float]:
        beta2 = group["betas"][1]
        plain, rest = corrections(group, step)[0], 1.0 - beta2**step
        most = 2.0 / (1.0 - beta2) - 1.0
        known = most - 2.0 * step * beta2**step / rest  # about the number of squares averaged so far
        rectified = 0.0
        if known > 5.0:
            variance = (known - 4.0) * (known - 2.0) * most / ((most - 4.0) * (most - 2.0) * known)
            rectified = plain * math.sqrt(variance) * math.sqrt(rest)
        return *signs(group), *shares(group), plain, rectified, float(group["eps"])


def _mu(group: ParamGroup, step: int) -> float:
    """NAdam's momentum at a step."""
    return float(group["betas"][0] * (1.0 - 0.5 * 0.96 ** (step * group["momentum_decay"])))
