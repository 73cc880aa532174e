"""Bags of embeddings: sums, means and maxima of rows of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..dtype import float32, int64
from ..errors import DTypeError, ShapeError, UnsupportedError
from ..provenance import site
from ..shape import normalize_dim
from . import creation, index, pointwise, scatter, views
from .sorting import searchsorted
from .table import composite

if TYPE_CHECKING:
    from ..tensor import Tensor


def _refused(mode: str, **options: Any) -> None:
    if mode not in ("sum", "mean", "max"):
        raise ShapeError(f"embedding_bag mode {mode!r} does not exist; there are 'sum', 'mean' and 'max'\n  at {site()}")
    for name, value in options.items():
        if value:
            raise UnsupportedError(f"embedding_bag has no {name}={value!r} here\n  at {site()}")


@composite(method=False)
def embedding_bag(
    input: Tensor, weight: Tensor, offsets: Tensor | None = None, max_norm: float | None = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False, padding_idx: int | None = None,
) -> Tensor:  # fmt: skip
    """The sum, mean or maximum of the rows of each bag of indices: the rows of input, or what lies between offsets. Empty bags give 0.
    [B, n] or [n] with offsets [B], [V, D] -> [B, D]."""
    _refused(mode, max_norm=max_norm, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse)
    if weight.ndim != 2 or input.dtype.kind not in "iu":
        raise DTypeError(f"embedding_bag takes integers and a table [V, D], got {input.layout} and {weight.layout}\n  at {site()}")
    if per_sample_weights is not None and (mode != "sum" or per_sample_weights.shape != input.shape):
        raise ShapeError(f"embedding_bag takes per_sample_weights of the indices' shape for mode 'sum' only\n  at {site()}")
    flat, bag, bags = _bags(input, offsets, include_last_offset)
    rows = index.embedding_rows(weight, 0, flat, None)
    if per_sample_weights is not None:
        rows = rows * views.reshape(per_sample_weights, flat.shape[0], 1)
    if padding_idx is not None:
        skipped = flat == views.located(normalize_dim, padding_idx, weight.shape[0])
        bag = pointwise.where(skipped, bags, bag)  # a bag that is left off
    return _gathered(rows, bag, bags, mode)


def _bags(input: Tensor, offsets: Tensor | None, include_last: bool) -> tuple[Tensor, Tensor, int]:
    """Flat indices, the bag of each, and the number of bags."""
    if input.ndim == 2:
        if offsets is not None:
            raise ShapeError(f"embedding_bag takes no offsets with a matrix of indices, got {offsets.layout}\n  at {site()}")
        b, n = input.shape
        bag = views.expand(creation.ramp(0, 1, (b,), int64).unsqueeze(1), b, n)
        return views.reshape(input, b * n), views.reshape(bag, b * n), b
    if input.ndim != 1 or offsets is None or offsets.ndim != 1 or (include_last and not offsets.shape[0]):
        raise ShapeError(f"embedding_bag takes indices [B, n], or [n] and offsets [B], got shape {list(input.shape)}\n  at {site()}")
    bags = offsets.shape[0] - include_last
    starts = views.narrow(offsets, 0, 0, bags)
    place = creation.ramp(0, 1, (input.shape[0],), int64)
    return input, searchsorted(starts.to(int64).contiguous(), place, right=True) - 1, bags


def _gathered(rows: Tensor, bag: Tensor, bags: int, mode: str) -> Tensor:
    d = rows.shape[1]
    if mode == "max":
        table = creation.fill(0.0, (bags + 1, d), rows.dtype)
        at = views.expand(bag.unsqueeze(1), *rows.shape)
        return views.narrow(scatter.scatter_reduce(table, 0, at, rows, "amax", include_self=False), 0, 0, bags)
    summed = views.narrow(index.segment_sum(rows, bag, bags + 1), 0, 0, bags)
    if mode == "sum":
        return summed
    ones = views.expand(creation.fill(1.0, (1, 1), float32), rows.shape[0], 1)
    counts = views.narrow(index.segment_sum(ones, bag, bags + 1), 0, 0, bags)
    return summed / counts.clamp(min=1.0).to(rows.dtype)  # type: ignore[no-any-return]
