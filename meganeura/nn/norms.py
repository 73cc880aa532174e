"""Norms over channels, as modules: batch, instance, group, local response."""

from __future__ import annotations

from typing import Any, ClassVar

from ..dtype import int64
from ..errors import ShapeError
from ..ops.factory import empty, ones, zeros
from ..tensor import Tensor
from . import functional as F
from . import init
from .module import Module
from .parameter import Buffer, Parameter


def _reset(module: Module) -> None:
    """Weight to ones and bias to zeros, where they exist."""
    if module.weight is not None:
        init.ones_(module.weight)
    if module.bias is not None:
        init.zeros_(module.bias)


class _ChannelNorm(Module):
    """Parameters and running statistics [num_features] of a norm; `ranks` are the numbers of dimensions it takes."""

    ranks: ClassVar[tuple[int, ...]]

    def __init__(
        self, num_features: int, eps: float, momentum: float | None, affine: bool, track_running_stats: bool, bias: bool, device: Any,
        dtype: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        for name, wanted in (("weight", affine), ("bias", affine and bias)):
            self.register_parameter(name, Parameter(empty((num_features,), dtype=dtype, device=device)) if wanted else None)
        made = {"running_mean": zeros(num_features), "running_var": ones(num_features), "num_batches_tracked": zeros((), dtype=int64)}
        for name, value in made.items():
            self.register_buffer(name, Buffer(value) if track_running_stats else None)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Mean 0 and variance 1, of no batches."""
        if self.track_running_stats:
            init.zeros_(self.running_mean)
            init.ones_(self.running_var)
            init.zeros_(self.num_batches_tracked)

    def reset_parameters(self) -> None:
        """Weight to ones, bias to zeros, and the running statistics."""
        self.reset_running_stats()
        _reset(self)

    def _checked(self, input: Tensor) -> None:
        if input.ndim not in self.ranks:
            takes = " or ".join(f"{r}" for r in self.ranks)
            raise ShapeError(f"{type(self).__name__} takes {takes} dimensions, got shape {list(input.shape)}")

    def _momentum(self) -> Any:
        """How far the running statistics go to the batch's: momentum, or the part of one in all batches so far."""
        if not (self.training and self.track_running_stats):
            return 0.0 if self.momentum is None else self.momentum
        self.num_batches_tracked.add_(1)
        return self.num_batches_tracked.float().reciprocal() if self.momentum is None else self.momentum

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


class BatchNorm(_ChannelNorm):
    """What BatchNorm1d, 2d and 3d share."""

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True, track_running_stats: bool = True,
        device: Any = None, dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(num_features, eps, momentum, affine, track_running_stats, bias, device, dtype)

    def forward(self, input: Tensor) -> Any:
        self._checked(input)
        own = self.training or not self.track_running_stats
        follow = self.training and self.track_running_stats
        momentum = self._momentum()
        mean, var = (self.running_mean, self.running_var) if follow or not own else (None, None)
        return F.batch_norm(input, mean, var, self.weight, self.bias, own, momentum, self.eps)


class BatchNorm1d(BatchNorm):
    """Each channel by its mean and variance over the batch, by running ones in eval. [N, C] or [N, C, L] -> same. Source:
    arXiv:1502.03167."""

    ranks = (2, 3)


class BatchNorm2d(BatchNorm):
    """BatchNorm1d for images. [N, C, H, W] -> same."""

    ranks = (4,)


class BatchNorm3d(BatchNorm):
    """BatchNorm1d for volumes. [N, C, D, H, W] -> same."""

    ranks = (5,)


class _InstanceNorm(_ChannelNorm):
    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = False, track_running_stats: bool = False,
        device: Any = None, dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(num_features, eps, momentum, affine, track_running_stats, bias, device, dtype)

    def forward(self, input: Tensor) -> Any:
        self._checked(input)
        alone = input.ndim == self.ranks[0]
        x = input.unsqueeze(0) if alone else input
        if self.affine and x.shape[1] != self.num_features:
            raise ShapeError(f"{type(self).__name__} of {self.num_features} features got {x.shape[1]} (shape {list(input.shape)})")
        own = self.training or not self.track_running_stats
        out = F.instance_norm(x, self.running_mean, self.running_var, self.weight, self.bias, own, self.momentum, self.eps)
        return out.squeeze(0) if alone else out


class InstanceNorm1d(_InstanceNorm):
    """Each channel of each sample by its own mean and variance. [N, C, L] or [C, L] -> same. Source: arXiv:1607.08022."""

    ranks = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    """InstanceNorm1d for images. [N, C, H, W] or [C, H, W] -> same."""

    ranks = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    """InstanceNorm1d for volumes. [N, C, D, H, W] or [C, D, H, W] -> same."""

    ranks = (4, 5)


class GroupNorm(Module):
    """Each group of channels of each sample by its mean and variance. [N, C, *] -> same. Source: arXiv:1803.08494."""

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, device: Any = None, dtype: Any = None, *,
        bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        if num_channels % num_groups:
            raise ValueError(f"num_channels={num_channels} must be a multiple of num_groups={num_groups}")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        for name, wanted in (("weight", affine), ("bias", affine and bias)):
            self.register_parameter(name, Parameter(empty((num_channels,), dtype=dtype, device=device)) if wanted else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weight to ones, bias to zeros."""
        _reset(self)

    def forward(self, input: Tensor) -> Any:
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, bias={self.bias is not None}"


class LocalResponseNorm(Module):
    """Divides by a power of the mean square of neighbouring channels. [N, C, *] -> same. Source: Krizhevsky et al. 2012."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input: Tensor) -> Any:
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
