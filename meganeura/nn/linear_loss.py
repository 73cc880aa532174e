"""Cross-entropy of logits that a linear layer makes: whole, or some rows at a time, so that the logits never exist together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import ShapeError
from ..ops.losses import cross_entropy
from ..ops.products import linear
from ..ops.views import cat
from ..provenance import site
from ..recompute import checkpoint
from ..tensor import Tensor

CHUNK = 64 << 20  # bytes of logits made together where options do not say


@dataclass(frozen=True)
class LinearCrossEntropyOptions:
    """Asks linear_cross_entropy to work on some rows at a time: batch_chunk_size of them, or as many as make 64 MiB of logits. The
    other fields are PyTorch's and make no difference: sums are float32, and gradients add up in the parameters' dtype."""

    allow_retain_graph: bool = False
    batch_chunk_size: int | None = None
    chunking_method: str | None = "auto"
    acc_policy: str = "auto"
    acc_dtype: Any = None


def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: LinearCrossEntropyOptions | None = None,
) -> Any:
    """cross_entropy(input @ linear_weight.T + linear_bias, target). [N, D], [C, D], [N] or [N, C] -> [] ([N] for 'none').

    With `options` each run of rows keeps nothing but its input for backward, which makes its logits again.
    """
    if input.ndim not in (1, 2) or linear_weight.ndim != 2:
        raise ShapeError(
            f"linear_cross_entropy expects an input [N, D] or [D] and a weight [C, D], got {list(input.shape)} and "
            f"{list(linear_weight.shape)}\n  at {site()}"
        )
    ignored = -100 if ignore_index is None else ignore_index

    def part(x: Tensor, y: Tensor, how: str) -> Any:
        return cross_entropy(linear(x, linear_weight, linear_bias), y, weight, ignored, how, label_smoothing)

    if options is None or input.ndim == 1:
        return part(input, target, reduction)
    n, c = input.shape[0], linear_weight.shape[0]
    size = options.batch_chunk_size or max(1, CHUNK // (c * input.dtype.itemsize))
    if size >= n:
        return part(input, target, reduction)
    runs = [slice(i, min(i + size, n)) for i in range(0, n, size)]
    if reduction == "none":
        return cat([checkpoint(part, input[r], target[r], "none") for r in runs])
    total: Any = 0
    for r in runs:
        total = total + checkpoint(part, input[r], target[r], "sum")
    return total / _kept(target, weight, ignored, n) if reduction == "mean" else total


def _kept(target: Tensor, weight: Tensor | None, ignored: int, n: int) -> Any:
    """What a mean divides by: the rows' weights, or their number."""
    if target.is_floating_point():
        return n
    kept = target != ignored
    if weight is None:
        return kept.sum()
    return (weight[kept.to(target.dtype) * target] * kept.to(weight.dtype)).sum()
