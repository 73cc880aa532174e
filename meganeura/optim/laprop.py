"""LaProp."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..ops import optimizer as rows
from .moments import MomentOptimizer, corrections, shares, signs
from .optimizer import ParamGroup


class LaProp(MomentOptimizer):
    """Momentum of the normalised gradient: v as Adam's, n = g / (sqrt(v_hat) + eps), m = beta1 * m + (1 - beta1) * n,
    p -= lr * m / (1 - beta1^t). Weight decay shrinks the parameters directly, as AdamW's. Source: arXiv:2002.04839.
    """

    row = rows.laprop_update

    def __init__(
        self, params: Iterable[Any], lr: float = 4e-4, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-15,
        weight_decay: float = 0.0, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, "maximize": maximize})

    def scalars(self, group: ParamGroup, step: int) -> Sequence[float]:
        sign, _, decay = signs({**group, "decoupled_weight_decay": True})
        return sign, decay, group["betas"][0], *shares(group), *corrections(group, step), float(group["eps"])
