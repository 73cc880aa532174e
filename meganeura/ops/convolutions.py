"""PyTorch's convolution functions over the rows of ops/conv.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ShapeError
from ..provenance import site
from ..shape import Shape
from . import views
from .conv import conv, conv_input
from .factory import whole
from .table import composite

if TYPE_CHECKING:
    from ..tensor import Tensor

Sizes = int | Sequence[int]


def per_axis(value: Sizes, dims: int, what: str, least: int) -> Shape:
    """One number for all axes, or one an axis."""
    sizes = tuple(whole(v, what) for v in value) if isinstance(value, (tuple, list)) else (whole(value, what),)
    if len(sizes) == 1:
        sizes *= dims
    if len(sizes) != dims or min(sizes) < least:
        raise ShapeError(f"{what} must be a number of at least {least}, or {dims} of them, got {value!r}\n  at {site()}")
    return sizes


def _checked(name: str, input: Tensor, weight: Tensor, dims: int, groups: int) -> None:
    if input.ndim not in (dims + 1, dims + 2) or weight.ndim != dims + 2:
        raise ShapeError(
            f"{name} takes an input of {dims + 1} (no batch) or {dims + 2} dimensions and a weight of {dims + 2}, got shapes "
            f"{list(input.shape)} and {list(weight.shape)}\n  at {site()}"
        )
    if groups < 1 or weight.shape[0] % groups or 0 in weight.shape or 0 in input.shape[input.ndim - dims - 1 :]:
        raise ShapeError(
            f"{name} with groups={groups} cannot use an input of shape {list(input.shape)} and a weight of shape {list(weight.shape)}: the "
            f"first size of the weight must be a multiple of groups, and nothing but the batch may be empty\n  at {site()}"
        )


def _padding(name: str, padding: str | Sizes, kernel: Shape, stride: Shape, dilation: Shape) -> tuple[Shape, Shape]:
    """Zeros in front of and behind each axis."""
    dims = len(kernel)
    if not isinstance(padding, str):
        both = per_axis(padding, dims, "padding", 0)
        return both, both
    if padding == "valid":
        return (0,) * dims, (0,) * dims
    if padding != "same":
        raise ShapeError(f"{name}: padding must be a number, numbers, 'valid' or 'same', got {padding!r}\n  at {site()}")
    if max(stride) > 1:
        raise ShapeError(f"{name}: padding='same' needs stride 1, got {list(stride)}\n  at {site()}")
    total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    return tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)


def _convolve(
    name: str, input: Tensor, weight: Tensor, bias: Tensor | None, stride: Sizes, padding: str | Sizes, dilation: Sizes, groups: int
) -> Any:
    dims, groups = int(name[4]), whole(groups, "groups")
    _checked(name, input, weight, dims, groups)
    steps, spread = per_axis(stride, dims, "stride", 1), per_axis(dilation, dims, "dilation", 1)
    kernel = weight.shape[2:]
    front, back = _padding(name, padding, kernel, steps, spread)
    size = []
    for n, k, s, a, b, d in zip(input.shape[-dims:], kernel, steps, front, back, spread, strict=True):
        room = n + a + b - d * (k - 1) - 1
        if room < 0:
            raise ShapeError(
                f"{name}: a kernel of {list(kernel)} with dilation {list(spread)} is larger than the padded input: shape "
                f"{list(input.shape)}, padding {list(front)} and {list(back)}\n  at {site()}"
            )
        size.append(room // s + 1)
    x = input if input.ndim == dims + 2 else views.unsqueeze(input, 0)
    out = conv(x, weight, bias, steps, front, spread, groups, tuple(size))
    return out if input.ndim == dims + 2 else views.squeeze(out, 0)


def _transpose(
    name: str, input: Tensor, weight: Tensor, bias: Tensor | None, stride: Sizes, padding: Sizes, output_padding: Sizes, groups: int,
    dilation: Sizes,
) -> Any:  # fmt: skip
    dims, groups = int(name[-2]), whole(groups, "groups")
    _checked(name, input, weight, dims, groups)
    steps, spread = per_axis(stride, dims, "stride", 1), per_axis(dilation, dims, "dilation", 1)
    front, extra = per_axis(padding, dims, "padding", 0), per_axis(output_padding, dims, "output_padding", 0)
    size = []
    for n, k, s, p, e, d in zip(input.shape[-dims:], weight.shape[2:], steps, front, extra, spread, strict=True):
        if e >= max(s, d):
            raise ShapeError(
                f"{name}: output_padding {list(extra)} must be smaller than stride {list(steps)} or dilation {list(spread)}\n  at {site()}"
            )
        size.append((n - 1) * s - 2 * p + d * (k - 1) + e + 1)
    if min(size) < 1:
        raise ShapeError(f"{name} of shape {list(input.shape)}: the output would have sizes {size}\n  at {site()}")
    x = input if input.ndim == dims + 2 else views.unsqueeze(input, 0)
    out = conv_input(x, weight, bias, steps, front, spread, groups, tuple(size))
    return out if input.ndim == dims + 2 else views.squeeze(out, 0)


@composite(method=False)
def conv1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: str | Sizes = 0, dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:  # fmt: skip
    """Convolution along one axis. [N, C, L] or [C, L], weight [M, C / groups, k], bias [M] -> [N, M, L'] or [M, L']."""
    return _convolve("conv1d", input, weight, bias, stride, padding, dilation, groups)  # type: ignore[no-any-return]


@composite(method=False)
def conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: str | Sizes = 0, dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:  # fmt: skip
    """Convolution of images. [N, C, H, W] or [C, H, W], weight [M, C / groups, kh, kw], bias [M] -> [N, M, H', W'] or [M, H', W']."""
    return _convolve("conv2d", input, weight, bias, stride, padding, dilation, groups)  # type: ignore[no-any-return]


@composite(method=False)
def conv3d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: str | Sizes = 0, dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:  # fmt: skip
    """Convolution of volumes. [N, C, D, H, W] or [C, D, H, W], weight [M, C / groups, kd, kh, kw], bias [M] -> [N, M, D', H', W'] or
    without N."""
    return _convolve("conv3d", input, weight, bias, stride, padding, dilation, groups)  # type: ignore[no-any-return]


@composite(method=False)
def conv_transpose1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Sizes = 0, output_padding: Sizes = 0,
    groups: int = 1, dilation: Sizes = 1,
) -> Tensor:  # fmt: skip
    """Transposed convolution, the gradient of conv1d by its input. [N, C, L] or [C, L], weight [C, M / groups, k], bias [M] ->
    [N, M, L'] or [M, L']."""
    return _transpose("conv_transpose1d", input, weight, bias, stride, padding, output_padding, groups, dilation)  # type: ignore[no-any-return]


@composite(method=False)
def conv_transpose2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Sizes = 0, output_padding: Sizes = 0,
    groups: int = 1, dilation: Sizes = 1,
) -> Tensor:  # fmt: skip
    """Transposed convolution of images. [N, C, H, W] or [C, H, W], weight [C, M / groups, kh, kw], bias [M] -> [N, M, H', W'] or
    [M, H', W']."""
    return _transpose("conv_transpose2d", input, weight, bias, stride, padding, output_padding, groups, dilation)  # type: ignore[no-any-return]


@composite(method=False)
def conv_transpose3d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Sizes = 0, output_padding: Sizes = 0,
    groups: int = 1, dilation: Sizes = 1,
) -> Tensor:  # fmt: skip
    """Transposed convolution of volumes. [N, C, D, H, W] or [C, D, H, W], weight [C, M / groups, kd, kh, kw], bias [M] ->
    [N, M, D', H', W'] or without N."""
    return _transpose("conv_transpose3d", input, weight, bias, stride, padding, output_padding, groups, dilation)  # type: ignore[no-any-return]


@composite(method=False)
def convolution(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: Sizes, padding: Sizes, dilation: Sizes, transposed: bool,
    output_padding: Sizes, groups: int,
) -> Tensor:  # fmt: skip
    """conv1d, 2d or 3d, or their transposed forms, by the weight's dimensions. [N, C, *] -> [N, M, *]."""
    dims = weight.ndim - 2
    if not 1 <= dims <= 3:
        raise ShapeError(f"convolution takes a weight of 3 to 5 dimensions, got shape {list(weight.shape)}\n  at {site()}")
    if transposed:
        name = f"conv_transpose{dims}d"
        return _transpose(name, input, weight, bias, stride, padding, output_padding, groups, dilation)  # type: ignore[no-any-return]
    return _convolve(f"conv{dims}d", input, weight, bias, stride, padding, dilation, groups)  # type: ignore[no-any-return]
