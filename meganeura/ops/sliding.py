"""Blocks of images as columns and back: torch.nn.functional.unfold and fold. Windows are views; sums of overlaps go by passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ShapeError
from ..provenance import site
from ..storage import Layout
from . import move, views
from .factory import whole
from .rearrange import unwindow, windows

if TYPE_CHECKING:
    from ..tensor import Tensor

Pair = int | Sequence[int]


def pair(value: Pair, what: str, least: int) -> tuple[int, int]:
    """One number for both dimensions, or (height, width)."""
    sizes = tuple(whole(v, what) for v in value) if isinstance(value, (tuple, list)) else (whole(value, what),) * 2
    if len(sizes) == 1:
        sizes *= 2
    if len(sizes) != 2 or min(sizes) < least:
        raise ShapeError(f"{what} must be a number of at least {least}, or two of them, got {value!r}\n  at {site()}")
    return sizes[0], sizes[1]


class _Blocks:
    """Where the blocks of an image of a size lie."""

    def __init__(self, size: tuple[int, int], kernel_size: Pair, dilation: Pair, padding: Pair, stride: Pair) -> None:
        self.kernel, self.dilation = pair(kernel_size, "kernel_size", 1), pair(dilation, "dilation", 1)
        self.padding, self.stride = pair(padding, "padding", 0), pair(stride, "stride", 1)
        self.padded = size[0] + 2 * self.padding[0], size[1] + 2 * self.padding[1]
        self.reach = tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True))  # of one block
        self.counts = tuple((n - r) // s + 1 for n, r, s in zip(self.padded, self.reach, self.stride, strict=True))
        if min(self.counts) < 1:
            raise ShapeError(
                f"no block of kernel_size {self.kernel} and dilation {self.dilation} fits an image of {size[0]} x {size[1]} with "
                f"padding {self.padding}\n  at {site()}"
            )


def unfold(input: Tensor, kernel_size: Pair, dilation: Pair = 1, padding: Pair = 0, stride: Pair = 1) -> Tensor:
    """Every block of an image in a column, the blocks row by row. [N, C, H, W] or [C, H, W] -> [N, C * kh * kw, L] or [C * kh * kw, L]."""
    if input.ndim not in (3, 4) or 0 in input.shape[1 if input.ndim == 4 else 0 :]:
        raise ShapeError(f"unfold takes images [N, C, H, W] or [C, H, W], got shape {list(input.shape)}\n  at {site()}")
    x = input if input.ndim == 4 else views.unsqueeze(input, 0)
    n, c, h, w = x.shape
    b = _Blocks((h, w), kernel_size, dilation, padding, stride)
    (ph, pw), (dh, dw) = b.padding, b.dilation
    if ph or pw:
        x = move.pad_constant(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)), 0.0)
    rows = _thinned(windows(x, 2, b.reach[0], b.stride[0]), dh)
    both = _thinned(windows(rows, 3, b.reach[1], b.stride[1]), dw)  # [n, c, blocks down, blocks across, kh, kw]
    out = views.reshape(views.permute(both, 0, 1, 4, 5, 2, 3), n, c * b.kernel[0] * b.kernel[1], b.counts[0] * b.counts[1])
    return out if input.ndim == 4 else views.squeeze(out, 0)


def _thinned(x: Any, step: int) -> Any:
    """Every step-th element of the last dimension."""
    return x if step == 1 else move.slice_dim(x, x.ndim - 1, 0, -(-x.shape[-1] // step), step)


def _spread(x: Any, step: int) -> Any:
    """The elements of the last dimension with step - 1 zeros between them."""
    if step == 1:
        return x
    wide = move.pad_constant(views.unsqueeze(x, -1), (*[(0, 0)] * x.ndim, (0, step - 1)), 0.0)
    return views.narrow(views.reshape(wide, *x.shape[:-1], x.shape[-1] * step), -1, 0, step * (x.shape[-1] - 1) + 1)


def fold(input: Tensor, output_size: Pair, kernel_size: Pair, dilation: Pair = 1, padding: Pair = 0, stride: Pair = 1) -> Tensor:
    """An image from columns of its blocks; where blocks overlap they add up. [N, C * kh * kw, L] or [C * kh * kw, L] -> [N, C, H, W] or
    [C, H, W]."""
    if input.ndim not in (2, 3) or 0 in input.shape[1 if input.ndim == 3 else 0 :]:
        raise ShapeError(f"fold takes columns [N, C * kh * kw, L] or [C * kh * kw, L], got shape {list(input.shape)}\n  at {site()}")
    size = pair(output_size, "output_size", 1)
    b = _Blocks(size, kernel_size, dilation, padding, stride)
    (kh, kw), (down, across) = b.kernel, b.counts
    n, c = (input.shape[0] if input.ndim == 3 else 1), input.shape[-2] // (kh * kw)
    if c * kh * kw != input.shape[-2] or down * across != input.shape[-1]:
        raise ShapeError(
            f"fold: shape {list(input.shape)} does not fit blocks of {kh} x {kw}, {down} x {across} of them in {size[0]} x {size[1]}"
            f"\n  at {site()}"
        )
    blocks = views.permute(views.reshape(input, n, c, kh, kw, down, across), 0, 1, 4, 5, 2, 3)
    lines = Layout(input.dtype, (n, c, down, b.padded[1], kh))
    rows = unwindow(_spread(blocks, b.dilation[1]), lines, 3, b.reach[1], b.stride[1])
    image = unwindow(_spread(rows, b.dilation[0]), Layout(input.dtype, (n, c, *b.padded)), 2, b.reach[0], b.stride[0])
    out = views.narrow(views.narrow(image, 2, b.padding[0], size[0]), 3, b.padding[1], size[1])
    out = out if out.shape == image.shape else out.clone()
    return out if input.ndim == 3 else views.squeeze(out, 0)
