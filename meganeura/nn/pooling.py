"""Pooling as modules. [N, C, *] or [C, *] -> the same with * shrunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ..tensor import Tensor
from . import functional as F
from .module import Module

_AXES = {1: "[N, C, L] or [C, L]", 2: "[N, C, H, W] or [C, H, W]", 3: "[N, C, D, H, W] or [C, D, H, W]"}


class _Pool(Module):
    """`axes`: how many dimensions are pooled."""

    axes: ClassVar[int]


class _MaxPool(_Pool):
    def __init__(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel_size, self.stride = kernel_size, stride if stride is not None else kernel_size
        self.padding, self.dilation, self.return_indices, self.ceil_mode = padding, dilation, return_indices, ceil_mode

    def forward(self, input: Tensor) -> Any:
        pool = getattr(F, f"max_pool{self.axes}d")
        return pool(input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices)

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
            f"ceil_mode={self.ceil_mode}"
        )


class _MaxUnpool(_Pool):
    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0) -> None:
        super().__init__()
        each = [v if isinstance(v, (tuple, list)) else (v,) * self.axes for v in (kernel_size, stride or kernel_size, padding)]
        self.kernel_size, self.stride, self.padding = (tuple(v) for v in each)

    def forward(self, input: Tensor, indices: Tensor, output_size: Any = None) -> Any:
        return getattr(F, f"max_unpool{self.axes}d")(input, indices, self.kernel_size, self.stride, self.padding, output_size)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class _AvgPool(_Pool):
    def __init__(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel_size, self.stride = kernel_size, stride if stride is not None else kernel_size
        self.padding, self.ceil_mode, self.count_include_pad = padding, ceil_mode, count_include_pad
        self.divisor_override = divisor_override

    def forward(self, input: Tensor) -> Any:
        pool = getattr(F, f"avg_pool{self.axes}d")
        return pool(input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad, self.divisor_override)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool1d(_AvgPool):
    """Means of windows. [N, C, L] or [C, L] -> [N, C, L'] or [C, L']."""

    axes = 1

    def __init__(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True
    ) -> None:
        one = [(v,) if isinstance(v, int) else v for v in (kernel_size, stride, padding)]
        super().__init__(one[0], one[1], one[2], ceil_mode, count_include_pad)

    def forward(self, input: Tensor) -> Any:
        return F.avg_pool1d(input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)


class _AdaptiveAvgPool(_Pool):
    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Tensor) -> Any:
        return getattr(F, f"adaptive_avg_pool{self.axes}d")(input, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class _AdaptiveMaxPool(_AdaptiveAvgPool):
    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__(output_size)
        self.return_indices = return_indices

    def forward(self, input: Tensor) -> Any:
        return getattr(F, f"adaptive_max_pool{self.axes}d")(input, self.output_size, self.return_indices)


class _LPPool(_Pool):
    def __init__(self, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> None:
        super().__init__()
        self.norm_type, self.kernel_size, self.stride, self.ceil_mode = norm_type, kernel_size, stride, ceil_mode

    def forward(self, input: Tensor) -> Any:
        return getattr(F, f"lp_pool{self.axes}d")(input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)

    def extra_repr(self) -> str:
        return f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, ceil_mode={self.ceil_mode}"


class _FractionalMaxPool(_Pool):
    def __init__(
        self, kernel_size: Any, output_size: Any = None, output_ratio: Any = None, return_indices: bool = False,
        _random_samples: Tensor | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if (output_size is None) == (output_ratio is None):
            raise ValueError(f"{type(self).__name__} needs either output_size or output_ratio")
        self.kernel_size, self.output_size, self.output_ratio = kernel_size, output_size, output_ratio
        self.return_indices, self._random_samples = return_indices, _random_samples

    def forward(self, input: Tensor) -> Any:
        pool = getattr(F, f"fractional_max_pool{self.axes}d")
        return pool(input, self.kernel_size, self.output_size, self.output_ratio, self.return_indices, self._random_samples)


def _classes(name: str, base: type[_Pool], what: str, axes: Sequence[int] = (1, 2, 3)) -> None:
    """The classes of one kind of pooling, named name + '1d' and so on."""
    for a in axes:
        made, doc = f"{name}{a}d", f"{what} {_AXES[a]} -> the same with other sizes."
        globals()[made] = type(made, (base,), {"axes": a, "__doc__": doc, "__module__": __name__})


_classes("MaxPool", _MaxPool, "The largest elements of windows, and with return_indices their places.")
_classes("MaxUnpool", _MaxUnpool, "Elements back where MaxPool found them, zeros elsewhere.")
_classes("AvgPool", _AvgPool, "Means of windows.", (2, 3))
_classes("AdaptiveAvgPool", _AdaptiveAvgPool, "Means of as many parts as asked for; None keeps a size.")
_classes("AdaptiveMaxPool", _AdaptiveMaxPool, "The largest elements of as many parts as asked for; None keeps a size.")
_classes("LPPool", _LPPool, "The norms of windows.")
_classes("FractionalMaxPool", _FractionalMaxPool, "The largest elements of windows at random distances. Source: arXiv:1412.6071.", (2, 3))

if TYPE_CHECKING:

    class MaxPool1d(_MaxPool): ...

    class MaxPool2d(_MaxPool): ...

    class MaxPool3d(_MaxPool): ...

    class MaxUnpool1d(_MaxUnpool): ...

    class MaxUnpool2d(_MaxUnpool): ...

    class MaxUnpool3d(_MaxUnpool): ...

    class AvgPool2d(_AvgPool): ...

    class AvgPool3d(_AvgPool): ...

    class AdaptiveAvgPool1d(_AdaptiveAvgPool): ...

    class AdaptiveAvgPool2d(_AdaptiveAvgPool): ...

    class AdaptiveAvgPool3d(_AdaptiveAvgPool): ...

    class AdaptiveMaxPool1d(_AdaptiveMaxPool): ...

    class AdaptiveMaxPool2d(_AdaptiveMaxPool): ...

    class AdaptiveMaxPool3d(_AdaptiveMaxPool): ...

    class LPPool1d(_LPPool): ...

    class LPPool2d(_LPPool): ...

    class LPPool3d(_LPPool): ...

    class FractionalMaxPool2d(_FractionalMaxPool): ...

    class FractionalMaxPool3d(_FractionalMaxPool): ...
