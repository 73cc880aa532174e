"""Losses as modules, over the functions of the same names. reduction: 'mean', 'sum' or 'none'."""

from __future__ import annotations

from typing import Any

from ..tensor import Tensor
from . import functional as F
from .basic import Linear
from .linear_loss import LinearCrossEntropyOptions
from .module import Module


class _Loss(Module):
    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in ("none", "mean", "sum"):
            raise ValueError(f"reduction must be 'none', 'mean' or 'sum', not {reduction!r}")
        self.reduction = reduction


class CrossEntropyLoss(_Loss):
    """Cross entropy of logits. [N, C, *] with class indices [N, *] or probabilities [N, C, *] -> [] ([N, *] for 'none')."""

    def __init__(
        self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0
    ) -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing

    def forward(self, input: Tensor, target: Tensor) -> Any:
        return F.cross_entropy(
            input, target, weight=self.weight, ignore_index=self.ignore_index, reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )  # fmt: skip


class LinearCrossEntropyLoss(_Loss):
    """A linear layer [num_classes, in_features] and the cross entropy of the logits that it makes; with `options` some rows at a
    time, so that the logits never exist together. [N, in_features], [N] or [N, num_classes] -> [] ([N] for 'none')."""

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        bias: bool = False,
        device: Any = None,
        dtype: Any = None,
        weight: Tensor | None = None,
        reduction: str = "mean",
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
        options: LinearCrossEntropyOptions | None = None,
    ) -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.num_classes, self.ignore_index, self.label_smoothing, self.options = num_classes, ignore_index, label_smoothing, options
        self.linear = Linear(in_features, num_classes, bias=bias, device=device, dtype=dtype)

    def forward(self, input: Tensor, target: Tensor) -> Any:
        return F.linear_cross_entropy(
            input, self.linear.weight, target, linear_bias=self.linear.bias, weight=self.weight, reduction=self.reduction,
            ignore_index=self.ignore_index, label_smoothing=self.label_smoothing, options=self.options,
        )  # fmt: skip


class CTCLoss(_Loss):
    """Connectionist temporal classification. [T, N, C] log probabilities, [N, S] or [sum] targets, lengths [N] -> [] ([N])."""

    def __init__(self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False) -> None:
        super().__init__(reduction)
        self.blank, self.zero_infinity = blank, zero_infinity

    def forward(self, log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any) -> Any:
        return F.ctc_loss(log_probs, targets, input_lengths, target_lengths, self.blank, self.reduction, self.zero_infinity)


class NLLLoss(_Loss):
    """Negative log likelihood of log probabilities. [N, C, *], [N, *] -> [] ([N, *] for 'none')."""

    def __init__(self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index

    def forward(self, input: Tensor, target: Tensor) -> Any:
        return F.nll_loss(input, target, weight=self.weight, ignore_index=self.ignore_index, reduction=self.reduction)


class MSELoss(_Loss):
    """(input - target)^2. [*], [*] -> [] ([*] for 'none')."""

    def forward(self, input: Tensor, target: Tensor) -> Any:
        return F.mse_loss(input, target, reduction=self.reduction)


class L1Loss(_Loss):
    """|input - target|. [*], [*] -> [] ([*] for 'none')."""

    def forward(self, input: Tensor, target: Tensor) -> Any:
        return F.l1_loss(input, target, reduction=self.reduction)


class BCEWithLogitsLoss(_Loss):
    """Binary cross entropy of logits, without overflow. [*], [*] -> [] ([*] for 'none')."""

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean", pos_weight: Tensor | None = None) -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input: Tensor, target: Tensor) -> Any:
        return F.binary_cross_entropy_with_logits(input, target, weight=self.weight, reduction=self.reduction, pos_weight=self.pos_weight)


class BCELoss(_Loss):
    """Binary cross entropy of probabilities. [*], [*] -> [] ([*] for 'none')."""

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)

    def forward(self, input: Tensor, target: Tensor) -> Any:
        return F.binary_cross_entropy(input, target, weight=self.weight, reduction=self.reduction)


class SmoothL1Loss(_Loss):
    """Square where input and target differ by less than beta, else their distance. [*], [*] -> [] ([*] for 'none')."""

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        self.beta = beta

    def forward(self, input: Tensor, target: Tensor) -> Any:
        return F.smooth_l1_loss(input, target, reduction=self.reduction, beta=self.beta)


class HuberLoss(_Loss):
    """Square where input and target differ by at most delta, else delta times their distance. [*], [*] -> [] ([*] for 'none')."""

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        self.delta = delta

    def forward(self, input: Tensor, target: Tensor) -> Any:
        return F.huber_loss(input, target, reduction=self.reduction, delta=self.delta)


class KLDivLoss(_Loss):
    """Kullback-Leibler divergence of log probabilities from targets; reduction may be 'batchmean'. [*], [*] -> [] ([*])."""

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__("mean" if reduction == "batchmean" else reduction)
        self.reduction, self.log_target = reduction, log_target

    def forward(self, input: Tensor, target: Tensor) -> Any:
        return F.kl_div(input, target, reduction=self.reduction, log_target=self.log_target)


class PoissonNLLLoss(_Loss):
    """Negative log likelihood of counts under a Poisson distribution of rate exp(input). [*], [*] -> [] ([*] for 'none')."""

    def __init__(self, log_input: bool = True, full: bool = False, eps: float = 1e-8, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.log_input, self.full, self.eps = log_input, full, eps

    def forward(self, log_input: Tensor, target: Tensor) -> Any:
        return F.poisson_nll_loss(
            log_input, target, log_input=self.log_input, full=self.full, eps=self.eps, reduction=self.reduction
        )  # fmt: skip


class GaussianNLLLoss(_Loss):
    """Negative log likelihood under a normal distribution of given mean and variance. [*], [*], [*] -> [] ([*] for 'none')."""

    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.full, self.eps = full, eps

    def forward(self, input: Tensor, target: Tensor, var: Any) -> Any:
        return F.gaussian_nll_loss(input, target, var, full=self.full, eps=self.eps, reduction=self.reduction)


class SoftMarginLoss(_Loss):
    """log(1 + exp(-target * input)) for targets of 1 and -1. [*], [*] -> [] ([*] for 'none')."""

    def forward(self, input: Tensor, target: Tensor) -> Any:
        return F.soft_margin_loss(input, target, reduction=self.reduction)


class _MarginLoss(_Loss):
    def __init__(self, margin: float, reduction: str) -> None:
        super().__init__(reduction)
        self.margin = margin


class HingeEmbeddingLoss(_MarginLoss):
    """The distance where the target is 1, what it lacks to the margin where it is -1. [*], [*] -> [] ([*] for 'none')."""

    def __init__(self, margin: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(margin, reduction)

    def forward(self, input: Tensor, target: Tensor) -> Any:
        return F.hinge_embedding_loss(input, target, margin=self.margin, reduction=self.reduction)


class MarginRankingLoss(_MarginLoss):
    """max(0, margin - target * (input1 - input2)). [*], [*], [*] -> [] ([*] for 'none')."""

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(margin, reduction)

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Any:
        return F.margin_ranking_loss(input1, input2, target, margin=self.margin, reduction=self.reduction)


class CosineEmbeddingLoss(_MarginLoss):
    """1 - cos where the target is 1, max(0, cos - margin) where it is -1. [N, D], [N, D], [N] -> [] ([N] for 'none')."""

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(margin, reduction)

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Any:
        return F.cosine_embedding_loss(input1, input2, target, margin=self.margin, reduction=self.reduction)


class TripletMarginLoss(_MarginLoss):
    """max(0, |anchor - positive| - |anchor - negative| + margin). [*, D] each -> [] ([*] for 'none')."""

    def __init__(self, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6, swap: bool = False, reduction: str = "mean") -> None:
        super().__init__(margin, reduction)
        if margin <= 0:
            raise ValueError(f"TripletMarginLoss: expected margin to be greater than 0, got {margin}")
        self.p, self.eps, self.swap = p, eps, swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Any:
        return F.triplet_margin_loss(
            anchor, positive, negative, margin=self.margin, p=self.p, eps=self.eps, swap=self.swap, reduction=self.reduction
        )


class TripletMarginWithDistanceLoss(_MarginLoss):
    """max(0, d(anchor, positive) - d(anchor, negative) + margin) for any distance. [*, D] each -> [] ([*] for 'none')."""

    def __init__(self, *, distance_function: Any = None, margin: float = 1.0, swap: bool = False, reduction: str = "mean") -> None:
        super().__init__(margin, reduction)
        if margin <= 0:
            raise ValueError(f"TripletMarginWithDistanceLoss: expected margin to be greater than 0, got {margin}")
        self.distance_function, self.swap = distance_function, swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Any:
        return F.triplet_margin_with_distance_loss(
            anchor, positive, negative, distance_function=self.distance_function, margin=self.margin, swap=self.swap,
            reduction=self.reduction,
        )  # fmt: skip


class MultiMarginLoss(_MarginLoss):
    """sum of max(0, margin - input[target] + input)^p / C over the other classes. [N, C], [N] -> [] ([N] for 'none')."""

    def __init__(self, p: int = 1, margin: float = 1.0, weight: Tensor | None = None, reduction: str = "mean") -> None:
        super().__init__(margin, reduction)
        if p not in (1, 2):
            raise ValueError(f"only p == 1 and p == 2 supported, got {p}")
        self.p = p
        self.register_buffer("weight", weight)

    def forward(self, input: Tensor, target: Tensor) -> Any:
        return F.multi_margin_loss(input, target, p=self.p, margin=self.margin, weight=self.weight, reduction=self.reduction)


class MultiLabelMarginLoss(_Loss):
    """sum over labels and other classes of max(0, 1 - input[label] + input) / C. [N, C], [N, C] -> [] ([N] for 'none')."""

    def forward(self, input: Tensor, target: Tensor) -> Any:
        return F.multilabel_margin_loss(input, target, reduction=self.reduction)


class MultiLabelSoftMarginLoss(_Loss):
    """Binary cross entropy of logits, averaged over the classes. [N, C], [N, C] -> [] ([N] for 'none')."""

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)

    def forward(self, input: Tensor, target: Tensor) -> Any:
        return F.multilabel_soft_margin_loss(input, target, weight=self.weight, reduction=self.reduction)
