"""Further losses with PyTorch's names, arguments and reductions. Inputs that broadcast do; 'none' gives one loss an element or a row."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import dispatch
from ..dtype import int64
from ..errors import ShapeError
from ..provenance import site
from . import creation, index, pointwise, reduce
from .distance import pairwise_distance
from .exponential import xlogy
from .losses import _reduced
from .move import check_dtype
from .table import composite
from .views import reshape, unsqueeze

if TYPE_CHECKING:
    from ..tensor import Tensor


def _same_shape(what: str, **tensors: Tensor) -> None:
    if len({t.shape for t in tensors.values()}) > 1:
        shown = ", ".join(f"{name} {list(t.shape)}" for name, t in tensors.items())
        raise ShapeError(f"{what} expects tensors of one shape, got {shown}\n  at {site()}")


def _positive(value: float, name: str, what: str, zero: bool = False) -> None:
    if value < 0 or (value == 0 and not zero):
        raise ShapeError(f"{what} expects {name} {'>= 0' if zero else '> 0'}, got {value}\n  at {site()}")


# ---- distances between input and target ----


@composite(method=False)
def smooth_l1_loss(input: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """(input - target)^2 / (2 beta) where they differ by less than beta, else |input - target| - beta / 2. [*], [*] -> [] ([*])."""
    _positive(beta, "beta", "smooth_l1_loss", zero=True)
    d = pointwise.abs(input - target)
    rows = d if beta == 0 else pointwise.where(d < beta, d * d * (0.5 / beta), d - 0.5 * beta)
    return _reduced(rows, reduction)


@composite(method=False)
def huber_loss(input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, weight: Tensor | None = None) -> Tensor:
    """(input - target)^2 / 2 where they differ by at most delta, else delta (|input - target| - delta / 2). [*], [*] -> [] ([*])."""
    _positive(delta, "delta", "huber_loss")
    d = pointwise.abs(input - target)
    rows = pointwise.where(d <= delta, d * d * 0.5, (d - 0.5 * delta) * delta)
    if weight is None:
        return _reduced(rows, reduction)
    _same_shape("huber_loss", input=input, weight=weight)
    rows = rows * weight
    return rows.sum() / weight.sum() if reduction == "mean" else _reduced(rows, reduction)


@composite(method=False)
def kl_div(input: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """Kullback-Leibler divergence of log probabilities from target probabilities (or their logarithms). reduction 'batchmean' divides
    the sum by the size of the first dimension. [*], [*] -> [] ([*])."""
    rows = pointwise.exp(target) * (target - input) if log_target else xlogy(target, target) - target * input
    if reduction == "batchmean":
        return rows.sum() / input.shape[0] if input.ndim else rows.sum()  # type: ignore[no-any-return]
    return _reduced(rows, reduction)


@composite(method=False)
def poisson_nll_loss(
    input: Tensor, target: Tensor, log_input: bool = True, full: bool = False, eps: float = 1e-8, reduction: str = "mean"
) -> Tensor:
    """Negative log likelihood of counts under a Poisson distribution of rate exp(input) (or input). full adds Stirling's
    approximation of log(target!). [*], [*] -> [] ([*])."""
    rows = pointwise.exp(input) - target * input if log_input else input - target * pointwise.log(input + eps)
    if full:
        stirling = target * pointwise.log(target) - target + pointwise.log(target * (2 * math.pi)) * 0.5
        rows = rows + pointwise.where(target <= 1, 0.0, stirling)
    return _reduced(rows, reduction)


@composite(method=False)
def gaussian_nll_loss(input: Tensor, target: Tensor, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> Tensor:
    """Negative log likelihood under a normal distribution of mean input and variance var (at least eps; its gradient passes the
    clamp). [*], [*], [*] -> [] ([*])."""
    if not isinstance(var, dispatch.hooks.tensor):
        var = creation.fill(float(var), input.shape, input.dtype)
    if var.shape != input.shape:
        if var.shape == input.shape[:-1]:
            var = unsqueeze(var, -1)
        elif var.shape != (*input.shape[:-1], 1):
            raise ShapeError(f"var of shape {list(var.shape)} does not fit input {list(input.shape)}\n  at {site()}")
    _positive(eps, "eps", "gaussian_nll_loss", zero=True)
    held = var.detach()
    var = var + (held.clamp(min=eps) - held)
    difference = input - target
    rows = (pointwise.log(var) + difference * difference / var) * 0.5
    if full:
        rows = rows + 0.5 * math.log(2 * math.pi)
    return _reduced(rows, reduction)


# ---- margins ----


@composite(method=False)
def soft_margin_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """log(1 + exp(-target * input)) for targets of 1 and -1. [*], [*] -> [] ([*])."""
    return _reduced(pointwise.softplus(-target * input), reduction)


@composite(method=False)
def hinge_embedding_loss(input: Tensor, target: Tensor, margin: float = 1.0, reduction: str = "mean") -> Tensor:
    """input where the target is 1, max(0, margin - input) where it is -1. [*], [*] -> [] ([*])."""
    far = pointwise.where(target != 1, (margin - input).clamp(min=0), 0.0)
    return _reduced(far + pointwise.where(target != -1, input, 0.0), reduction)


@composite(method=False)
def margin_ranking_loss(input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean") -> Tensor:
    """max(0, margin - target * (input1 - input2)) for targets of 1 and -1. [*], [*], [*] -> [] ([*])."""
    if not input1.ndim == input2.ndim == target.ndim:
        shapes = [list(t.shape) for t in (input1, input2, target)]
        raise ShapeError(f"margin_ranking_loss expects tensors of one rank, got {shapes}\n  at {site()}")
    return _reduced((-target * (input1 - input2) + margin).clamp(min=0), reduction)


@composite(method=False)
def cosine_embedding_loss(input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean") -> Tensor:
    """1 - cos(input1, input2) where the target is 1, max(0, cos - margin) where it is -1. [N, D], [N, D], [N] (or [D], [D], [])."""
    _same_shape("cosine_embedding_loss", input1=input1, input2=input2)
    if target.ndim not in (0, 1) or input1.ndim != target.ndim + 1 or (target.ndim and target.shape[0] != input1.shape[0]):
        raise ShapeError(f"target of shape {list(target.shape)} does not fit inputs {list(input1.shape)}\n  at {site()}")
    d = target.ndim
    sizes = (reduce.sum(input1 * input1, d) + 1e-12) * (reduce.sum(input2 * input2, d) + 1e-12)
    cos = reduce.sum(input1 * input2, d) / pointwise.sqrt(sizes)
    near = pointwise.where(target == 1, 1.0 - cos, 0.0)
    return _reduced(near + pointwise.where(target == -1, (cos - margin).clamp(min=0), 0.0), reduction)


@composite(method=False)
def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """max(0, |anchor - positive| - |anchor - negative| + margin), distances over the last dimension. [*, D] each -> [] ([*])."""
    if not anchor.ndim == positive.ndim == negative.ndim:
        shapes = [list(t.shape) for t in (anchor, positive, negative)]
        raise ShapeError(f"triplet_margin_loss expects tensors of one rank, got {shapes}\n  at {site()}")
    _positive(margin, "margin", "triplet_margin_loss")
    return triplet_margin_with_distance_loss(
        anchor, positive, negative, distance_function=lambda a, b: pairwise_distance(a, b, p, eps), margin=margin, swap=swap,
        reduction=reduction,
    )  # fmt: skip


@composite(method=False)
def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """max(0, d(anchor, positive) - d(anchor, negative) + margin) for any distance. [*, D] each -> [] ([*])."""
    distance = pairwise_distance if distance_function is None else distance_function
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = pointwise.minimum(far, distance(positive, negative))
    return _reduced((near - far + margin).clamp(min=0), reduction)


# ---- several classes ----


def _rows_of_classes(input: Tensor, target: Tensor, what: str, labels: bool) -> tuple[Tensor, Tensor]:
    """input as [N, C] and target as [N] (or [N, C] for `labels`), from those or a single row."""
    good = input.ndim in (1, 2) and target.shape == (input.shape if labels else input.shape[:-1])
    single = input.ndim == 1 and not labels and target.shape == (1,)
    if not (good or single):
        raise ShapeError(f"{what}: target of shape {list(target.shape)} does not fit input {list(input.shape)}\n  at {site()}")
    check_dtype(target, "target")
    c = input.shape[-1]
    return reshape(input, -1, c), reshape(target, *((-1, c) if labels else (-1,)))


def _per_row(rows: Tensor, input: Tensor, reduction: str) -> Tensor:
    return _reduced(rows if input.ndim == 2 else reshape(rows, ()), reduction)


@composite(method=False)
def multi_margin_loss(
    input: Tensor, target: Tensor, p: int = 1, margin: float = 1.0, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """sum over the other classes of max(0, margin - input[target] + input)^p / C, p 1 or 2. [N, C], [N] -> [] ([N])."""
    if p not in (1, 2):
        raise ShapeError(f"multi_margin_loss expects p 1 or 2, got {p}\n  at {site()}")
    x, y = _rows_of_classes(input, target, "multi_margin_loss", labels=False)
    c = x.shape[1]
    y = y.to(int64)
    terms = pointwise.relu(x - index.gather(x, 1, unsqueeze(y, 1)) + margin)
    terms = terms * terms if p == 2 else terms
    own = unsqueeze(y, 1) == creation.ramp(0, 1, (c,), int64)
    rows = reduce.sum(pointwise.where(own, 0.0, terms), 1) / c
    if weight is not None:
        if weight.shape != (c,):
            raise ShapeError(f"multi_margin_loss expects {c} weights, got shape {list(weight.shape)}\n  at {site()}")
        rows = rows * index.index_select(weight, 0, y)
    return _per_row(rows, input, reduction)


@composite(method=False)
def multilabel_margin_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """sum over labels y and other classes i of max(0, 1 - input[y] + input[i]) / C; the first -1 of a row of labels ends it.
    [N, C], [N, C] -> [] ([N])."""
    x, y = _rows_of_classes(input, target, "multilabel_margin_loss", labels=True)
    c = x.shape[1]
    if not x.numel():
        return _per_row(reduce.sum(x, 1), input, reduction)
    numbers = creation.ramp(0, 1, (c,), int64)
    ends = reduce.amin(pointwise.where(y < 0, numbers, c), 1, True)
    counts = numbers < ends  # [N, C]: this label is one
    labels = pointwise.where(counts, y, 0).to(int64)
    taken = reduce.any((unsqueeze(labels, 2) == numbers) & unsqueeze(counts, 2), 1)  # [N, C]: this class is labelled
    margins = pointwise.relu(1.0 - unsqueeze(index.gather(x, 1, labels), 2) + unsqueeze(x, 1))
    pairs = unsqueeze(counts, 2) & unsqueeze(pointwise.logical_not(taken), 1)
    rows = reduce.sum(pointwise.where(pairs, margins, 0.0), (1, 2)) / c
    return _per_row(rows, input, reduction)


@composite(method=False)
def multilabel_soft_margin_loss(input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean") -> Tensor:
    """Binary cross entropy of logits, averaged over the last dimension. [*, C], [*, C] -> [] ([*])."""
    if not input.ndim:
        raise ShapeError(f"multilabel_soft_margin_loss expects at least 1 dimension\n  at {site()}")
    rows = target * pointwise.softplus(-input) + (1 - target) * pointwise.softplus(input)
    rows = rows if weight is None else rows * weight
    return _reduced(reduce.mean(rows, -1), reduction)
