"""Modules over large tables: bags of embeddings, and a softmax over many classes in clusters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..errors import ShapeError
from ..ops.factory import empty
from ..ops.views import cat
from ..tensor import Tensor
from . import functional as F
from . import init
from .basic import Linear
from .container import ModuleList, Sequential
from .module import Module
from .parameter import Parameter


class EmbeddingBag(Module):
    """Sums, means or maxima of rows of weight [num_embeddings, embedding_dim]. [B, n] or [n] with offsets [B] -> [B, embedding_dim].

    weight starts standard normal; indices that are padding_idx count nothing.
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, max_norm: float | None = None, norm_type: float = 2.0,
        scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, _weight: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(f"padding_idx={padding_idx} lies outside the {num_embeddings} embeddings")
        self.num_embeddings, self.embedding_dim, self.max_norm, self.norm_type = num_embeddings, embedding_dim, max_norm, norm_type
        self.scale_grad_by_freq, self.mode, self.sparse, self.include_last_offset = scale_grad_by_freq, mode, sparse, include_last_offset
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        if _weight is not None and _weight.shape != (num_embeddings, embedding_dim):
            raise ShapeError(f"_weight of shape {list(_weight.shape)} is no table of {num_embeddings} x {embedding_dim}")
        self.weight = Parameter(empty((num_embeddings, embedding_dim), dtype=dtype, device=device) if _weight is None else _weight)
        if _weight is None:
            self.reset_parameters()

    @classmethod
    def from_pretrained(cls, embeddings: Tensor, freeze: bool = True, **options: Any) -> EmbeddingBag:
        """An EmbeddingBag over given rows; frozen by default."""
        rows, width = embeddings.shape
        layer = cls(rows, width, _weight=embeddings, **options)
        layer.weight.requires_grad_(not freeze)
        return layer

    def reset_parameters(self) -> None:
        """Draw the weight anew."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            init.zeros_(self.weight.detach()[self.padding_idx])

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Any:
        return F.embedding_bag(
            input, self.weight, offsets, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.mode, self.sparse,
            per_sample_weights, self.include_last_offset, self.padding_idx,
        )  # fmt: skip

    def extra_repr(self) -> str:
        tail = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}, mode={self.mode!r}{tail}"


class ClusteredLoss(NamedTuple):
    """The target's log probability of each sample, and minus their mean."""

    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Module):
    """A softmax over classes sorted by frequency: the first `cutoffs[0]` by themselves, rarer ones through clusters of narrower layers.

    Every cluster is computed for every sample here, so that no value is read on the host. [N, in_features], [N] -> [N], [].
    Source: arXiv:1609.04309.
    """

    def __init__(
        self, in_features: int, n_classes: int, cutoffs: Sequence[int], div_value: float = 4.0, head_bias: bool = False,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        ends = [int(c) for c in cutoffs]
        if not ends or ends != sorted(set(ends)) or ends[0] <= 0 or ends[-1] > n_classes - 1 or ends != list(cutoffs):
            raise ValueError(f"cutoffs must be rising whole numbers from 1 to n_classes - 1, got {list(cutoffs)} for {n_classes} classes")
        self.in_features, self.n_classes, self.div_value, self.head_bias = in_features, n_classes, div_value, head_bias
        self.cutoffs = [*ends, n_classes]
        self.shortlist_size, self.n_clusters = ends[0], len(ends)
        self.head_size = self.shortlist_size + self.n_clusters
        self.head = Linear(in_features, self.head_size, head_bias, device, dtype)
        self.tail = ModuleList()
        for i in range(self.n_clusters):
            hidden = int(in_features // div_value ** (i + 1))
            size = self.cutoffs[i + 1] - self.cutoffs[i]
            self.tail.append(Sequential(Linear(in_features, hidden, False, device, dtype), Linear(hidden, size, False, device, dtype)))

    def reset_parameters(self) -> None:
        """Draw all weights anew."""
        self.head.reset_parameters()
        for first, second in self.tail:
            first.reset_parameters()
            second.reset_parameters()

    def log_prob(self, input: Tensor) -> Any:
        """Log probabilities of all classes. [N, in_features] -> [N, n_classes]."""
        head = F.log_softmax(self.head(input), -1)
        n = self.shortlist_size
        clusters = [F.log_softmax(layer(input), -1) + head[:, n + i].unsqueeze(1) for i, layer in enumerate(self.tail)]
        return cat([head[:, :n], *clusters], 1)

    def forward(self, input: Tensor, target: Tensor) -> Any:
        if input.ndim not in (1, 2) or target.ndim != input.ndim - 1 or (target.ndim and target.shape[0] != input.shape[0]):
            raise ShapeError(f"AdaptiveLogSoftmaxWithLoss takes [N, in_features] and [N], got {list(input.shape)} and {list(target.shape)}")
        alone = input.ndim == 1
        x, wanted = (input.unsqueeze(0), target.unsqueeze(0)) if alone else (input, target)
        output = self.log_prob(x).gather(1, wanted.unsqueeze(1)).squeeze(1)
        return ClusteredLoss(output.squeeze(0) if alone else output, -output.mean())

    def predict(self, input: Tensor) -> Any:
        """The likeliest class. [N, in_features] -> [N]."""
        return self.log_prob(input).argmax(1)
