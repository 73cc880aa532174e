"""Muon."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from .. import dispatch
from ..ops import optimizer as rows
from ..ops.matmul import batched_matmul
from ..tensor import Tensor
from .optimizer import Factor, Optimizer, ParamGroup, Rule, check_options

ADJUSTMENTS = (None, "original", "match_rms_adamw")


def orthogonalized(x: Tensor, coefficients: Sequence[float], steps: int, eps: float) -> Tensor:
    """x with its singular values brought near 1, by Newton-Schulz steps of a quintic polynomial. [n, m] -> [n, m]."""
    a, b, c = coefficients
    tall = x.shape[0] > x.shape[1]
    y: Tensor = x.T if tall else x
    y = y / (y * y).sum().sqrt().clamp(min=eps)
    for _ in range(steps):
        gram = batched_matmul(y, y.T)
        y = a * y + batched_matmul(b * gram + c * batched_matmul(gram, gram), y)
    return y.T if tall else y


class Muon(Optimizer):
    """Momentum of matrices, orthogonalised before each step, as torch.optim.Muon; in float32, where PyTorch goes through bfloat16.

    For the matrices of hidden layers: give biases, embeddings and the rest to another optimizer. Source: Jordan et al. 2024.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, weight_decay: float = 0.1, momentum: float = 0.95, nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315), eps: float = 1e-7, ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:  # fmt: skip
        defaults = {
            "lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov,
            "ns_coefficients": tuple(ns_coefficients), "eps": eps, "ns_steps": ns_steps, "adjust_lr_fn": adjust_lr_fn,
        }  # fmt: skip
        super().__init__(params, defaults)

    def validate(self, group: ParamGroup) -> None:
        check_options(group, "lr", "momentum", "weight_decay")
        if group["adjust_lr_fn"] not in ADJUSTMENTS:
            raise ValueError(f"adjust_lr_fn {group['adjust_lr_fn']!r} does not exist; there are {ADJUSTMENTS[1:]}")
        if not 0 <= group["ns_steps"] < 100 or len(group["ns_coefficients"]) != 3:
            raise ValueError(
                f"Muon takes 3 ns_coefficients and fewer than 100 ns_steps, got {group['ns_coefficients']}, {group['ns_steps']}"
            )
        for p in group["params"]:
            if p.ndim != 2:
                raise ValueError(f"Muon takes matrices, got a parameter of shape {list(p.shape)}")

    def rule(self, group: ParamGroup) -> Rule:
        return Rule(rows.sgd_update, ("momentum_buffer",))

    def _fingerprint(self) -> Any:
        names = ("momentum", "nesterov", "ns_coefficients", "eps", "ns_steps")
        return super()._fingerprint(), tuple(tuple(group[n] for n in names) for group in self.param_groups)

    def _update(self, group: ParamGroup, rule: Rule, factor: Factor, members: list[Tensor]) -> None:
        for p in members:
            self._step_of(group, factor, p)

    def _step_of(self, group: ParamGroup, factor: Factor, p: Tensor) -> None:
        def numbers() -> Sequence[float]:
            self.advance(group, self.state[p])
            lr = group["lr"] * factor.now()
            step_size = lr * _ratio(group["adjust_lr_fn"], *p.shape)
            return step_size, 1.0, lr * group["weight_decay"] / step_size if step_size else 0.0

        grad, buffer, momentum = p.grad, self.state[p]["momentum_buffer"], float(group["momentum"])
        assert grad is not None
        buffer.lerp_(grad.float(), 1.0 - momentum)
        moved = grad.float().lerp(buffer, momentum) if group["nesterov"] else buffer
        update = orthogonalized(moved, group["ns_coefficients"], group["ns_steps"], float(group["eps"]))
        target = p.contiguous()
        rows.sgd_update([target], [update.contiguous()], *dispatch.current().host_scalars(numbers, 3))
        if target is not p:
            p.copy_(target)


def _ratio(adjustment: str | None, n: int, m: int) -> float:
    """What the learning rate is multiplied by for a matrix [n, m]."""
    return 0.2 * math.sqrt(max(n, m)) if adjustment == "match_rms_adamw" else math.sqrt(max(1.0, n / m))
