"""Gradient clipping, and parameters as one vector, without waiting for the device: norms and factors stay tensors, and many
gradients share a dispatch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from ..dispatch import no_grad
from ..dtype import float32, int64
from ..errors import GradientError
from ..ops.clipping import scale_update, tensor_norms
from ..ops.factory import zeros
from ..ops.views import cat, stack
from ..provenance import site
from ..tensor import Tensor, upload

_KINDS = {1.0: "1", 2.0: "2", math.inf: "inf"}  # norms that have a kernel over many tensors


def _members(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    """The parameters that have a gradient."""
    members = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    return [p for p in members if p.grad is not None]


def _grads(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    return [p.grad for p in _members(parameters) if p.grad is not None]


def _norms(tensors: Sequence[Tensor], norm_type: float) -> Tensor:
    """The norm of each tensor, in float32. -> [k]."""
    kind = _KINDS.get(norm_type)
    if kind is not None:
        return tensor_norms([t.detach() for t in tensors], kind)  # type: ignore[no-any-return]
    filled = [t.detach().float() for t in tensors]
    return stack([t.abs().pow(norm_type).sum().pow(1.0 / norm_type) for t in filled])


def get_total_norm(
    tensors: Tensor | Iterable[Tensor], norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
) -> Tensor:
    """The norm of all elements of all tensors as one vector. -> [].

    `error_if_nonfinite` raises GradientError for a NaN or infinite norm; it has to wait for the device. `foreach` changes nothing.
    """
    members = [t for t in ([tensors] if isinstance(tensors, Tensor) else tensors) if t.numel()]
    norm_type = float(norm_type)
    with no_grad():
        if not members:
            return zeros(())
        norms = _norms(members, norm_type)
        total = norms[0] if len(members) == 1 else _norms([norms], norm_type)[0]
        if error_if_nonfinite and not math.isfinite(float(total)):
            raise GradientError(f"the total norm of the gradients is {float(total)}; they cannot be clipped\n  at {site()}")
        return total


def _scale(tensors: Sequence[Tensor], factor: Tensor) -> None:
    """Multiply in place by one number [], or each by its own [k]."""
    together = [i for i, t in enumerate(tensors) if t.is_contiguous() and t.numel()]
    if together:
        if factor.ndim and len(together) < len(tensors):
            own = factor.index_select(0, upload(np.array(together), int64))
        else:
            own = factor
        scale_update([tensors[i] for i in together], own)
    for i, t in enumerate(tensors):
        if not t.is_contiguous():
            t.mul_((factor[i] if factor.ndim else factor).to(t.dtype))


def clip_grads_with_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float, total_norm: Tensor, foreach: bool | None = None) -> None:
    """Scale all gradients in place by max_norm / total_norm where that is below 1. `foreach` changes nothing."""
    with no_grad():
        grads = _grads(parameters)
        if grads:
            _scale(grads, total_norm.to(float32).add(1e-6).reciprocal().mul(float(max_norm)).clamp(max=1.0))


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:  # fmt: skip
    """Scale all gradients in place by one factor so that their total norm is at most max_norm; returns the norm before. -> [].

    `error_if_nonfinite` raises GradientError for a NaN or infinite norm; it has to wait for the device. `foreach` changes nothing.
    """
    members = _members(parameters)
    total = get_total_norm(_grads(members), norm_type, error_if_nonfinite)
    clip_grads_with_norm_(members, max_norm, total)
    return total


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None) -> None:
    """Clamp every element of every gradient in place to [-clip_value, clip_value]. `foreach` changes nothing."""
    with no_grad():
        for g in _grads(parameters):
            g.copy_(g.clamp(-float(clip_value), float(clip_value)))


def adaptive_clip_grad_(parameters: Tensor | Iterable[Tensor], clip: float = 0.01, pmin: float = 1e-3) -> None:
    """Clip each gradient on its own, to a norm of at most clip * max(pmin, norm of the parameter). Source: arXiv:2102.06171,
    with one norm a parameter. Nothing waits for the device.
    """
    if clip <= 0 or pmin < 0:
        raise ValueError(f"adaptive clipping needs clip > 0 and pmin >= 0, got {clip} and {pmin}")
    with no_grad():
        members = [p for p in _members(parameters) if p.numel()]
        if not members:
            return
        grads = [p.grad for p in members if p.grad is not None]
        most = _norms(members, 2.0).clamp(min=float(pmin)).mul(float(clip))
        _scale(grads, most.div(_norms(grads, 2.0).clamp(min=1e-6)).clamp(max=1.0))


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All parameters, one after another. -> [elements]."""
    return cat([p.reshape(-1) for p in parameters])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Write a vector's elements into the parameters, one after another. [elements]."""
    at = 0
    with no_grad():
        for p in parameters:
            p.copy_(vec.detach()[at : at + p.numel()].reshape(p.shape))
            at += p.numel()
