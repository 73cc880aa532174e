"""Gradient clipping, without waiting for the device: the norm and the factor stay tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..dispatch import no_grad
from ..errors import GradientError
from ..ops.factory import zeros
from ..ops.optimizer import euclidean_norm
from ..ops.views import stack
from ..provenance import site
from ..tensor import Tensor


def _grads(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    members = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    return [p.grad for p in members if p.grad is not None]


def _norm(values: Tensor, norm_type: float) -> Tensor:
    if norm_type == 2.0:
        return euclidean_norm(values)  # type: ignore[no-any-return]
    if norm_type == math.inf:
        return values.abs().amax()  # type: ignore[no-any-return]
    if norm_type == 1.0:
        return values.abs().sum()  # type: ignore[no-any-return]
    return values.abs().pow(norm_type).sum().pow(1.0 / norm_type)  # type: ignore[no-any-return]


def get_total_norm(tensors: Iterable[Tensor], norm_type: float = 2.0) -> Tensor:
    """The norm of all elements of all tensors as one vector. -> []."""
    norms = [_norm(t.detach() if norm_type == 2.0 else t.detach().float(), float(norm_type)) for t in tensors if t.numel()]
    if not norms:
        return zeros(())
    return norms[0] if len(norms) == 1 else _norm(stack(norms), float(norm_type))


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Tensor:
    """Scale all gradients in place by one factor so that their total norm is at most max_norm; returns the norm before. -> [].

    `error_if_nonfinite` raises GradientError for a NaN or infinite norm; it has to wait for the device.
    """
    with no_grad():
        grads = _grads(parameters)
        total = get_total_norm(grads, norm_type)
        if error_if_nonfinite and not math.isfinite(float(total)):
            raise GradientError(f"the total norm of the gradients is {float(total)}; they cannot be clipped\n  at {site()}")
        factor = total.add(1e-6).reciprocal().mul(float(max_norm)).clamp(max=1.0)
        for g in grads:
            g.mul_(factor.to(g.dtype))
        return total


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """Clamp every element of every gradient in place to [-clip_value, clip_value]."""
    with no_grad():
        for g in _grads(parameters):
            g.copy_(g.clamp(-float(clip_value), float(clip_value)))
