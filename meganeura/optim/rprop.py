"""Rprop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..ops import optimizer as rows
from .optimizer import Optimizer, ParamGroup, Rule, check_options


class Rprop(Optimizer):
    """Steps by the signs of gradients alone, as torch.optim.Rprop: `etas` shrink and grow each element's step within `step_sizes`.

    Source: Riedmiller and Braun 1993.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-2, etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50.0), *, maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, {"lr": lr, "etas": tuple(etas), "step_sizes": tuple(step_sizes), "maximize": maximize})

    def validate(self, group: ParamGroup) -> None:
        check_options(group, "lr")
        down, up = group["etas"]
        if not 0.0 < down < 1.0 < up:
            raise ValueError(f"invalid etas: {down}, {up}; expected 0 < the first < 1 < the second")

    def rule(self, group: ParamGroup) -> Rule:
        return Rule(rows.rprop_update, ("prev", "step_size"))

    def initial(self, group: ParamGroup, name: str) -> float:
        return float(group["lr"]) if name == "step_size" else 0.0

    def scalars(self, group: ParamGroup, step: int) -> Sequence[float]:
        return -1.0 if group["maximize"] else 1.0, *map(float, (*group["etas"], *group["step_sizes"]))
