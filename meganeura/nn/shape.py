"""Modules that rearrange, compare or drop: Unflatten, pixel and channel shuffles, Bilinear, distances, dropout of channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..ops.factory import empty
from ..tensor import Tensor
from . import functional as F
from . import init
from .basic import Dropout
from .module import Module
from .parameter import Parameter


class Unflatten(Module):
    """Splits a dimension into several. [*, n, *] -> [*, *unflattened_size, *]."""

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        super().__init__()
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def forward(self, input: Tensor) -> Any:
        return F.unflatten(input, self.dim, self.unflattened_size)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


class PixelShuffle(Module):
    """Channels become r x r pixels. [*, C * r * r, H, W] -> [*, C, H * r, W * r]. Source: arXiv:1609.05158."""

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, input: Tensor) -> Any:
        return F.pixel_shuffle(input, self.upscale_factor)

    def extra_repr(self) -> str:
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """r x r pixels become channels. [*, C, H * r, W * r] -> [*, C * r * r, H, W]."""

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, input: Tensor) -> Any:
        return F.pixel_unshuffle(input, self.downscale_factor)

    def extra_repr(self) -> str:
        return f"downscale_factor={self.downscale_factor}"


class ChannelShuffle(Module):
    """Channels of all groups in turn. [N, C, *] -> same."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, input: Tensor) -> Any:
        return F.channel_shuffle(input, self.groups)

    def extra_repr(self) -> str:
        return f"groups={self.groups}"


class Bilinear(Module):
    """out[k] = input1 @ weight[k] @ input2 + bias[k]. [*, in1], [*, in2] -> [*, out].

    weight [out, in1, in2] and bias [out] start uniform in +-1/sqrt(in1).
    """

    def __init__(
        self, in1_features: int, in2_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.in1_features, self.in2_features, self.out_features = in1_features, in2_features, out_features
        self.weight = Parameter(empty((out_features, in1_features, in2_features), dtype=dtype, device=device))
        self.register_parameter("bias", Parameter(empty((out_features,), dtype=dtype, device=device)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias anew."""
        bound = 1 / math.sqrt(self.in1_features)
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Any:
        return F.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, "
            f"out_features={self.out_features}, bias={self.bias is not None}"
        )


class CosineSimilarity(Module):
    """Cosine of the angle between vectors along dim. [*, n, *], [*, n, *] -> [*, *]."""

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps

    def forward(self, x1: Tensor, x2: Tensor) -> Any:
        return F.cosine_similarity(x1, x2, self.dim, self.eps)


class PairwiseDistance(Module):
    """The p-norm of x1 - x2 + eps along the last dimension. [*, n], [*, n] -> [*]."""

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        super().__init__()
        self.norm, self.eps, self.keepdim = p, eps, keepdim

    def forward(self, x1: Tensor, x2: Tensor) -> Any:
        return F.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)


class Dropout1d(Dropout):
    """While training, zeroes whole channels with probability p. [N, C, L] or [C, L] -> same."""

    def forward(self, input: Tensor) -> Any:
        return F.dropout1d(input, self.p, self.training, self.inplace)


class Dropout2d(Dropout):
    """While training, zeroes whole channels with probability p. [N, C, H, W] -> same."""

    def forward(self, input: Tensor) -> Any:
        return F.dropout2d(input, self.p, self.training, self.inplace)


class Dropout3d(Dropout):
    """While training, zeroes whole channels with probability p. [N, C, D, H, W] or [C, D, H, W] -> same."""

    def forward(self, input: Tensor) -> Any:
        return F.dropout3d(input, self.p, self.training, self.inplace)


class AlphaDropout(Dropout):
    """Dropout that keeps mean 0 and variance 1, for SELU networks. [*] -> [*]. Source: arXiv:1706.02515."""

    def forward(self, input: Tensor) -> Any:
        return F.alpha_dropout(input, self.p, self.training, self.inplace)


class FeatureAlphaDropout(Dropout):
    """AlphaDropout of whole channels. [N, C, *] -> same."""

    def forward(self, input: Tensor) -> Any:
        return F.feature_alpha_dropout(input, self.p, self.training, self.inplace)


class Unfold(Module):
    """Every block of an image in a column. [N, C, H, W] or [C, H, W] -> [N, C * kh * kw, L] or [C * kh * kw, L]."""

    def __init__(self, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> None:
        super().__init__()
        self.kernel_size, self.dilation, self.padding, self.stride = kernel_size, dilation, padding, stride

    def forward(self, input: Tensor) -> Any:
        return F.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, dilation={self.dilation}, padding={self.padding}, stride={self.stride}"


class Fold(Unfold):
    """An image from columns of its blocks, overlaps added up. [N, C * kh * kw, L] or [C * kh * kw, L] -> [N, C, H, W] or [C, H, W]."""

    def __init__(self, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> None:
        super().__init__(kernel_size, dilation, padding, stride)
        self.output_size = output_size

    def forward(self, input: Tensor) -> Any:
        return F.fold(input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}, {super().extra_repr()}"
