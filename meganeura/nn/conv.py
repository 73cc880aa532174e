"""Convolutions and transposed convolutions of 1 to 3 spatial dimensions, as modules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from ..errors import ShapeError
from ..ops.convolutions import Sizes, per_axis
from ..ops.factory import empty
from ..tensor import Tensor
from . import functional as F
from . import init
from .module import Module
from .parameter import Parameter

MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "replicate", "circular": "circular"}


class _Conv(Module):
    """What convolutions and transposed ones share: arguments, parameters and how they are drawn and shown.

    weight [out, in / groups, *kernel] ([in, out / groups, *kernel] if transposed) and bias [out] start uniform in
    +-1 / sqrt(weight[0].numel()).
    """

    dims: ClassVar[int]
    transposed: ClassVar[bool] = False

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes, padding: str | Sizes, output_padding: Sizes,
        dilation: Sizes, groups: int, bias: bool, padding_mode: str, device: Any, dtype: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ValueError(f"in_channels={in_channels} and out_channels={out_channels} must be multiples of groups={groups}, at least 1")
        if padding_mode not in MODES:
            raise ValueError(f"padding_mode must be one of {', '.join(map(repr, MODES))}, got {padding_mode!r}")
        dims = self.dims
        self.in_channels, self.out_channels, self.groups, self.padding_mode = in_channels, out_channels, groups, padding_mode
        self.kernel_size, self.stride = per_axis(kernel_size, dims, "kernel_size", 1), per_axis(stride, dims, "stride", 1)
        self.dilation, self.output_padding = per_axis(dilation, dims, "dilation", 1), per_axis(output_padding, dims, "output_padding", 0)
        if isinstance(padding, str):
            if padding not in ("valid", "same"):
                raise ValueError(f"padding must be a number, numbers, 'valid' or 'same', got {padding!r}")
            if padding == "same" and max(self.stride) > 1:
                raise ValueError(f"padding='same' needs stride 1, got {self.stride}")
            self.padding: Any = padding
        else:
            self.padding = per_axis(padding, dims, "padding", 0)
        channels = (in_channels, out_channels // groups) if self.transposed else (out_channels, in_channels // groups)
        self.weight = Parameter(empty((*channels, *self.kernel_size), dtype=dtype, device=device))
        self.register_parameter("bias", Parameter(empty((out_channels,), dtype=dtype, device=device)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias anew."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan = math.prod(self.weight.shape[1:])
            bound = 1 / math.sqrt(fan) if fan else 0.0
            init.uniform_(self.bias, -bound, bound)

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        shown = {
            "padding": (self.padding, (0,) * self.dims),
            "dilation": (self.dilation, (1,) * self.dims),
            "output_padding": (self.output_padding, (0,) * self.dims),
            "groups": (self.groups, 1),
        }
        text += "".join(f", {name}={value}" for name, (value, usual) in shown.items() if value != usual)
        text += "" if self.bias is not None else ", bias=False"
        return text if self.padding_mode == "zeros" else f"{text}, padding_mode={self.padding_mode}"


class _Convolution(_Conv):
    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1, padding: str | Sizes = 0, dilation: Sizes = 1,
        groups: int = 1, bias: bool = True, padding_mode: str = "zeros", device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, 0, dilation, groups, bias, padding_mode, device, dtype
        )  # fmt: skip

    def forward(self, input: Tensor) -> Any:
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            input, padding = F.pad(input, self._border(), MODES[self.padding_mode]), 0
        return self._function()(input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)

    def _function(self) -> Any:
        return getattr(F, f"conv{self.dims}d")

    def _border(self) -> list[int]:
        """Amounts for F.pad."""
        if self.padding == "valid":
            return [0] * (2 * self.dims)
        if self.padding != "same":
            return [p for p in reversed(self.padding) for _ in range(2)]
        totals = [d * (k - 1) for d, k in zip(reversed(self.dilation), reversed(self.kernel_size), strict=True)]
        return [amount for t in totals for amount in (t // 2, t - t // 2)]


class Conv1d(_Convolution):
    """Convolution along one axis. [N, C, L] or [C, L] -> [N, M, L'] or [M, L']."""

    dims = 1


class Conv2d(_Convolution):
    """Convolution of images. [N, C, H, W] or [C, H, W] -> [N, M, H', W'] or [M, H', W']."""

    dims = 2


class Conv3d(_Convolution):
    """Convolution of volumes. [N, C, D, H, W] or [C, D, H, W] -> [N, M, D', H', W'] or [M, D', H', W']."""

    dims = 3


class _Transposed(_Conv):
    transposed = True

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1, padding: Sizes = 0, output_padding: Sizes = 0,
        groups: int = 1, bias: bool = True, dilation: Sizes = 1, padding_mode: str = "zeros", device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        if padding_mode != "zeros":
            raise ValueError(f"{type(self).__name__} takes only padding_mode='zeros', got {padding_mode!r}")
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, output_padding, dilation, groups, bias, padding_mode, device, dtype
        )  # fmt: skip

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Any:
        """output_size: the spatial sizes wanted (or all sizes), among those that the stride leaves open."""
        extra = self.output_padding if output_size is None else self._extra(input, list(output_size))
        return self._function()(input, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation)

    def _function(self) -> Any:
        return getattr(F, f"conv_transpose{self.dims}d")

    def _extra(self, input: Tensor, wanted: list[int]) -> list[int]:
        """The output_padding that makes the output as large as wanted."""
        if len(wanted) == input.ndim:
            wanted = wanted[-self.dims :]
        if len(wanted) != self.dims:
            raise ShapeError(f"output_size must have {self.dims} or {input.ndim} sizes, got {wanted}")
        least = [
            (n - 1) * s - 2 * p + d * (k - 1) + 1
            for n, s, p, d, k in zip(input.shape[-self.dims :], self.stride, self.padding, self.dilation, self.kernel_size, strict=True)
        ]
        extra = [w - a for w, a in zip(wanted, least, strict=True)]
        if any(not 0 <= e < s for e, s in zip(extra, self.stride, strict=True)):
            most = [a + s - 1 for a, s in zip(least, self.stride, strict=True)]
            raise ShapeError(f"output_size {wanted} cannot be made from shape {list(input.shape)}: sizes lie between {least} and {most}")
        return extra


class ConvTranspose1d(_Transposed):
    """Transposed convolution along one axis. [N, C, L] or [C, L] -> [N, M, L'] or [M, L']."""

    dims = 1


class ConvTranspose2d(_Transposed):
    """Transposed convolution of images. [N, C, H, W] or [C, H, W] -> [N, M, H', W'] or [M, H', W']."""

    dims = 2


class ConvTranspose3d(_Transposed):
    """Transposed convolution of volumes. [N, C, D, H, W] or [C, D, H, W] -> [N, M, D', H', W'] or [M, D', H', W']."""

    dims = 3
