"""Losses with PyTorch's names, arguments and reductions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import DTypeError, ShapeError
from ..provenance import site
from . import index, move, norm, pointwise
from .activation import log_softmax
from .arithmetic import square
from .table import composite
from .views import reshape, squeeze, unsqueeze

if TYPE_CHECKING:
    from ..tensor import Tensor


def _reduced(values: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return values
    if reduction not in ("mean", "sum"):
        raise ShapeError(f"reduction must be 'none', 'mean' or 'sum', not {reduction!r}\n  at {site()}")
    return values.mean() if reduction == "mean" else values.sum()  # type: ignore[no-any-return]


def _classes(input: Tensor, target: Tensor) -> int:
    dim = 1 if input.ndim > 1 else 0
    expected = (*input.shape[:dim], *input.shape[dim + 1 :])
    if not input.ndim or target.shape != expected:
        raise ShapeError(
            f"target of shape {list(target.shape)} does not fit input {list(input.shape)}: expected {list(expected)}\n  at {site()}"
        )
    move.check_dtype(target, "target")
    return dim


@composite(method=False)
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross entropy of logits. [N, C, *] with class indices [N, *] or probabilities [N, C, *] -> [] (or [N, *] for 'none')."""
    dim = 1 if input.ndim > 1 else 0
    if target.is_floating_point():
        return _dense_cross_entropy(input, target, weight, reduction, label_smoothing, dim)
    _classes(input, target)
    if weight is not None or label_smoothing:
        logp = log_softmax(input, dim)
        loss = nll_loss(logp, target, weight, ignore_index, reduction)
        if not label_smoothing:
            return loss
        return _smoothed(loss, logp, target, weight, ignore_index, reduction, label_smoothing, dim)
    rows, _, kept = norm.cross_entropy_row(input, target, dim, ignore_index)
    if reduction == "mean":
        return _weighted_mean(rows, kept).to(input.dtype)
    return _reduced(rows.to(input.dtype), reduction)


def _weighted_mean(rows: Tensor, weights: Tensor) -> Tensor:
    """sum(rows) / sum(weights), in one kernel. [*], [*] -> []."""
    return norm.ratio_row(reshape(rows, -1), reshape(weights, -1), 0)[0]  # type: ignore[no-any-return]


def _smoothed(
    loss: Tensor, logp: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, smoothing: float, dim: int
) -> Tensor:
    spread = logp if weight is None else logp * reshape(weight, *(-1 if d == dim else 1 for d in range(logp.ndim)))
    kept = (target != ignore_index).to(logp.dtype)
    flat = -spread.sum(dim) * kept
    if reduction == "mean":
        total = kept.sum() if weight is None else (_class_weights(weight, target, ignore_index) * kept).sum()
        flat = flat.sum() / total
    elif reduction == "sum":
        flat = flat.sum()
    return loss * (1.0 - smoothing) + flat * (smoothing / logp.shape[dim])  # type: ignore[no-any-return]


def _dense_cross_entropy(input: Tensor, target: Tensor, weight: Tensor | None, reduction: str, smoothing: float, dim: int) -> Tensor:
    if target.shape != input.shape:
        raise ShapeError(f"probability target of shape {list(target.shape)} does not fit input {list(input.shape)}\n  at {site()}")
    if smoothing:
        target = target * (1.0 - smoothing) + smoothing / input.shape[dim]
    terms = log_softmax(input, dim) * target
    if weight is not None:
        terms = terms * reshape(weight, *(-1 if d == dim else 1 for d in range(input.ndim)))
    rows = -terms.sum(dim)
    if reduction == "mean":
        return rows.sum() / (rows.numel() or 1)  # type: ignore[no-any-return]
    return _reduced(rows, reduction)


def _class_weights(weight: Tensor, target: Tensor, ignore_index: int) -> Tensor:
    safe = pointwise.where(target == ignore_index, 0, target).to(target.dtype)
    return reshape(index.index_select(weight, 0, reshape(safe, -1)), *target.shape)


@composite(method=False)
def nll_loss(input: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean") -> Tensor:
    """Negative log likelihood from log probabilities. [N, C, *], [N, *] -> [] (or [N, *] for 'none')."""
    if not input.is_floating_point():
        raise DTypeError(f"nll_loss expects floating point log probabilities, got {input.layout}\n  at {site()}")
    dim = _classes(input, target)
    ignored = target == ignore_index
    kept = pointwise.logical_not(ignored).to(input.dtype)
    safe = pointwise.where(ignored, 0, target).to(target.dtype)
    rows = pointwise.where(ignored, 0.0, -squeeze(index.gather(input, dim, unsqueeze(safe, dim)), dim))
    if weight is not None:
        scale = _class_weights(weight, target, ignore_index)
        rows, kept = rows * scale, kept * scale
    if reduction == "mean":
        return _weighted_mean(rows, kept).to(input.dtype)
    return _reduced(rows, reduction)


@composite(method=False)
def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """(input - target)**2. [*], [*] -> [] (or [*] for 'none')."""
    return _reduced(square(input - target), reduction)


@composite(method=False)
def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """|input - target|. [*], [*] -> [] (or [*] for 'none')."""
    return _reduced((input - target).abs(), reduction)


@composite(method=False)
def binary_cross_entropy(input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean") -> Tensor:
    """Binary cross entropy of probabilities; logarithms are cut at -100. [*], [*] -> [] (or [*] for 'none')."""
    if input.shape != target.shape:
        raise ShapeError(f"target of shape {list(target.shape)} does not fit input {list(input.shape)}\n  at {site()}")
    rows = pointwise.bce_rows(input, target)
    return _reduced(rows if weight is None else rows * weight, reduction)


@composite(method=False)
def binary_cross_entropy_with_logits(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean", pos_weight: Tensor | None = None
) -> Tensor:
    """Binary cross entropy of logits, without overflow. [*], [*] -> [] (or [*] for 'none')."""
    log_weight = 1.0 if pos_weight is None else (pos_weight - 1.0) * target + 1.0
    rows = (1.0 - target) * input + log_weight * pointwise.softplus(-input)
    return _reduced(rows if weight is None else rows * weight, reduction)
