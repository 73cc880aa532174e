"""Norms over channels: batch, instance, group and local response norm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import dispatch
from ..errors import DTypeError, ShapeError
from ..provenance import site
from ..shape import numel
from . import move, reduce, views
from .channel_rows import batch_norm_row, batch_scale_row, channel_moments, fixed_norm_row, group_norm_row
from .rearrange import windows
from .table import composite

if TYPE_CHECKING:
    from ..tensor import Tensor

# One row a channel is for tensors whose channels have runs of at least _SHORTEST elements, _LONGEST elements in all, and of _LARGEST bytes.
_SHORTEST, _LONGEST, _LARGEST = 16, 1 << 17, 1 << 27


def _per_channel(values: Tensor, ndim: int) -> Tensor:
    """[C] -> [1, C, 1, ...]."""
    return views.view(values.contiguous(), 1, values.shape[0], *(1,) * (ndim - 2))


def _check(input: Tensor, what: str, **vectors: Tensor | None) -> int:
    """The number of channels, which all vectors have."""
    if input.ndim < 2 or not input.is_floating_point():
        raise DTypeError(f"{what} takes floating point tensors [N, C, *], got {input.layout}\n  at {site()}")
    for name, v in vectors.items():
        if v is not None and v.shape != (input.shape[1],):
            raise ShapeError(f"{what}: {name} of shape {list(v.shape)} does not fit the channels of {input.layout}\n  at {site()}")
    return input.shape[1]


def _follow(average: Tensor | None, value: Tensor, momentum: Any) -> None:
    """average += momentum * (value - average), without history."""
    if average is not None:
        with dispatch.no_grad():
            average.lerp_(value.detach().to(average.dtype), momentum)


def _lifted(values: Tensor | None, ndim: int, otherwise: float) -> Any:
    """[C] -> [1, C, 1, ...], or a number for all channels."""
    return otherwise if values is None else _per_channel(values, ndim)


@composite(method=False)
def batch_norm(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None, bias: Tensor | None = None,
    training: bool = False, momentum: Any = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Each channel by its mean and variance over the batch while training, which the running ones follow in place; else by the running
    ones. [N, C, *], [C]... -> same. Source: arXiv:1502.03167."""
    c = _check(input, "batch_norm", running_mean=running_mean, running_var=running_var, weight=weight, bias=bias)
    nd = input.ndim
    scale, shift = _lifted(weight, nd, 1.0), _lifted(bias, nd, 0.0)
    if not training:
        if running_mean is None or running_var is None:
            raise ShapeError(f"batch_norm needs running_mean and running_var unless training\n  at {site()}")
        return fixed_norm_row(input, _per_channel(running_mean, nd), _per_channel(running_var, nd), scale, shift, eps)  # type: ignore[no-any-return]
    count = input.numel() // c if c else 0
    if count == 1:
        raise ShapeError(f"batch_norm in training needs more than 1 value a channel, got shape {list(input.shape)}\n  at {site()}")
    if count <= _LONGEST and input.numel() * 4 <= _LARGEST and numel(input.shape[2:]) >= _SHORTEST:
        x = views.reshape(input, input.shape[0], c, numel(input.shape[2:]))
        each = [None if v is None else views.view(v.contiguous(), 1, c, 1) for v in (weight, bias)]
        out, mean, _, var = batch_norm_row(x, *each, (0, 2), eps)
        out = views.reshape(out, *input.shape)
    else:
        with dispatch.no_grad():
            mean, rstd, var = channel_moments(input.detach(), (0, *range(2, nd)), eps)
        out = batch_scale_row(input, _per_channel(mean, nd), _per_channel(rstd, nd), scale, shift)
    _follow(running_mean, mean, momentum)
    _follow(running_var, var, momentum)
    return out  # type: ignore[no-any-return]


def _grouped(input: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Groups of channels, each by its own mean and variance."""
    n, c = input.shape[:2]
    rows = views.reshape(input, n, groups, c // groups, numel(input.shape[2:]))
    scale, shift = (None if v is None else views.view(v.contiguous(), 1, groups, c // groups, 1) for v in (weight, bias))
    return views.reshape(group_norm_row(rows, scale, shift, (2, 3), eps)[0], *input.shape)


@composite(method=False)
def instance_norm(
    input: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None, weight: Tensor | None = None,
    bias: Tensor | None = None, use_input_stats: bool = True, momentum: Any = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Each channel of each sample by its own mean and variance (the running ones unless use_input_stats). [N, C, *], [C]... -> same.
    Source: arXiv:1607.08022."""
    _check(input, "instance_norm", running_mean=running_mean, running_var=running_var, weight=weight, bias=bias)
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    n, c, *rest = input.shape
    count = numel(rest)
    if count <= 1:
        raise ShapeError(f"instance_norm needs more than 1 value a channel and sample, got shape {list(input.shape)}\n  at {site()}")
    if running_mean is not None or running_var is not None:
        flat = views.reshape(input.detach(), n, c, count).float()
        _follow(running_mean, reduce.mean(flat, (0, 2)), momentum)
        _follow(running_var, reduce.mean(reduce.var(flat, (2,), 1), (0,)), momentum)
    return _grouped(input, c, weight, bias, eps)


@composite(method=False)
def group_norm(input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Each group of channels of each sample by its mean and variance. [N, C, *], [C], [C] -> same. Source: arXiv:1803.08494."""
    c = _check(input, "group_norm", weight=weight, bias=bias)
    if num_groups < 1 or c % num_groups:
        raise ShapeError(f"group_norm: {c} channels do not split into {num_groups} groups\n  at {site()}")
    return _grouped(input, num_groups, weight, bias, eps)


@composite(method=False)
def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """input / (k + alpha * the mean square of `size` neighbouring channels)^beta. [N, C, *] -> same. Source: Krizhevsky et al. 2012."""
    if input.ndim < 3:
        raise ShapeError(f"local_response_norm takes [N, C, *] of at least 3 dimensions, got shape {list(input.shape)}\n  at {site()}")
    if size < 1:
        raise ShapeError(f"local_response_norm needs size >= 1, got {size}\n  at {site()}")
    if not input.numel():
        return input
    border = ((0, 0), (size // 2, (size - 1) // 2), *[(0, 0)] * (input.ndim - 2))
    squares = move.pad_constant(input * input, border, 0.0)
    near = reduce.mean(windows(squares, 1, size, 1), (input.ndim,))
    return input / (near * alpha + k) ** beta  # type: ignore[no-any-return]
