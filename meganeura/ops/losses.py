"""Losses with PyTorch's names, arguments and reductions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import DTypeError, ShapeError
from ..provenance import site
from . import index, move, norm, pointwise
from .arithmetic import square
from .cross_entropy import cross_entropy_row, dense_cross_entropy_row, smooth_cross_entropy_row
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
    if weight is not None and weight.shape != (input.shape[dim] if input.ndim else 1,):
        raise ShapeError(f"expected a weight for each of {input.shape[dim]} classes, got shape {list(weight.shape)}\n  at {site()}")
    if target.is_floating_point():
        return _dense_cross_entropy(input, target, weight, reduction, label_smoothing, dim)
    _classes(input, target)
    if label_smoothing:
        rows, _, kept, _ = smooth_cross_entropy_row(input, weight, target, dim, ignore_index, label_smoothing)
    else:
        rows, _, kept = cross_entropy_row(input, weight, target, dim, ignore_index)
    if reduction == "mean":
        return _weighted_mean(rows, kept).to(input.dtype)
    return _reduced(rows.to(input.dtype), reduction)


def _weighted_mean(rows: Tensor, weights: Tensor) -> Tensor:
    """sum(rows) / sum(weights), in one kernel. [*], [*] -> []."""
    return norm.ratio_row(reshape(rows, -1), reshape(weights, -1), 0)[0]  # type: ignore[no-any-return]


def _dense_cross_entropy(input: Tensor, target: Tensor, weight: Tensor | None, reduction: str, smoothing: float, dim: int) -> Tensor:
    if target.shape != input.shape:
        raise ShapeError(f"probability target of shape {list(target.shape)} does not fit input {list(input.shape)}\n  at {site()}")
    rows, _, _ = dense_cross_entropy_row(input, target, weight, dim, smoothing)
    if reduction == "mean":
        return (rows.sum() / (rows.numel() or 1)).to(input.dtype)  # type: ignore[no-any-return]
    return _reduced(rows.to(input.dtype), reduction)


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
