"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..ops import optimizer as rows
from .optimizer import Optimizer, ParamGroup, Rule, check_options

_PLAIN = Rule(rows.sgd_update, ())
_MOMENTUM, _NESTEROV = (Rule(row, ("momentum_buffer",)) for row in (rows.sgd_momentum_update, rows.sgd_nesterov_update))


class SGD(Optimizer):
    """Stochastic gradient descent with momentum, as torch.optim.SGD.

    g += weight_decay * p; b = momentum * b + (1 - dampening) * g (b = g at the first step); p -= lr * b, or with
    nesterov lr * (g + momentum * b). `maximize` climbs instead.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0,
        nesterov: bool = False, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        defaults = {
            "lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay, "nesterov": nesterov,
            "maximize": maximize,
        }  # fmt: skip
        super().__init__(params, defaults)

    def validate(self, group: ParamGroup) -> None:
        check_options(group, "lr", "momentum", "weight_decay")
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ValueError("nesterov momentum requires a momentum and zero dampening")

    def rule(self, group: ParamGroup) -> Rule:
        if group["momentum"] == 0:
            return _PLAIN
        return _NESTEROV if group["nesterov"] else _MOMENTUM

    def scalars(self, group: ParamGroup, step: int) -> Sequence[float]:
        first = (float(group["lr"]), -1.0 if group["maximize"] else 1.0, float(group["weight_decay"]))
        if group["momentum"] == 0:
            return first
        keep = 1.0 if step == 1 else 1.0 - group["dampening"]
        return *first, float(group["momentum"]), keep
