"""Adam and AdamW."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..ops import optimizer as rows
from .moments import MomentOptimizer, corrections, shares, signs
from .optimizer import ParamGroup, Rule


class Adam(MomentOptimizer):
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

    row = rows.adam_update

    def rule(self, group: ParamGroup) -> Rule:
        return Rule(rows.adam_amsgrad_update, (*self.moments, "max_exp_avg_sq")) if group["amsgrad"] else super().rule(group)

    def scalars(self, group: ParamGroup, step: int) -> Sequence[float]:
        return *signs(group), *shares(group), *corrections(group, step), float(group["eps"])


class AdamW(Adam):
    """Adam whose weight decay shrinks the parameters directly, as torch.optim.AdamW. Source: arXiv:1711.05101."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 1e-2, amsgrad: bool = False, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize, decoupled_weight_decay=True)
