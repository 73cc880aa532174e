"""Images read at given places: grid_sample. Places and weights are plain ops, elements are read by index_select, so that gradients for the
image are its deterministic sums by index."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from ..dtype import int64
from ..errors import DTypeError, ShapeError
from ..provenance import site
from ..shape import Shape, numel
from . import arithmetic, index, pointwise, views
from .creation import ramp
from .table import composite

if TYPE_CHECKING:
    from ..tensor import Tensor

_MODES = ("bilinear", "nearest", "bicubic")
_PADDINGS = ("zeros", "border", "reflection")
_CUBIC = -0.75


def _pixels(x: Any, n: int, align: bool) -> Any:
    """Coordinates in [-1, 1] as pixels: from the first centre to the last one, or from edge to edge."""
    return (x + 1) * ((n - 1) / 2) if align else ((x + 1) * n - 1) * 0.5


def _inside(x: Any, n: int, padding: str, align: bool) -> Any:
    """Pixels outside the image brought into it as the padding says."""
    if padding == "reflection":
        low, span = (0.0, n - 1.0) if align else (-0.5, float(n))
        if not span:
            return x * 0
        away = pointwise.abs(x - low)
        with_turns = (away / span).floor()
        rest = away - with_turns * span
        odd = with_turns - (with_turns * 0.5).floor() * 2
        x = pointwise.where(odd == 0, rest + low, (span - rest) + low)
    return x if padding == "zeros" else arithmetic.clamp(x, 0, n - 1)


def _cubic(t: Any) -> list[Any]:
    """Weights of the four pixels around, t beyond the second."""
    a = _CUBIC

    def near(x: Any) -> Any:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: Any) -> Any:
        return ((x * a - 5 * a) * x + 8 * a) * x - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _taps(x: Any, n: int, mode: str, padding: str, align: bool) -> list[tuple[Any, Any]]:
    """(pixel, weight) of each element along an axis that a place reads; pixels are whole numbers as floats."""
    if mode == "bicubic":
        low = x.detach().floor()
        return [(_inside(low + (i - 1), n, padding, align), w) for i, w in enumerate(_cubic(x - low))]
    x = _inside(x, n, padding, align)
    if mode == "nearest":
        pixel = x.detach().round()
        return [(pixel, pointwise.where(pixel < 1e30, 1.0, x))]  # 1; and a gradient, of 0, flows to x
    low = x.detach().floor()
    part = x - low
    return [(low, 1 - part), (low + 1, part)]


def _check(input: Tensor, grid: Tensor, mode: str, padding: str) -> Shape:
    """Sizes of the image's axes."""
    if mode not in _MODES or padding not in _PADDINGS:
        raise ShapeError(
            f"grid_sample: mode {mode!r} and padding_mode {padding!r} must be among {', '.join(_MODES)} and {', '.join(_PADDINGS)}"
            f"\n  at {site()}"
        )
    dims = input.ndim - 2
    if dims not in (2, 3) or grid.ndim != input.ndim or grid.shape[0] != input.shape[0] or grid.shape[-1] != dims:
        raise ShapeError(
            f"grid_sample takes [N, C, H, W] and a grid [N, H', W', 2], or [N, C, D, H, W] and [N, D', H', W', 3]; got "
            f"{list(input.shape)} and {list(grid.shape)}\n  at {site()}"
        )
    if 0 in input.shape[2:]:
        raise ShapeError(f"grid_sample of an empty image, shape {list(input.shape)}\n  at {site()}")
    if mode == "bicubic" and dims == 3:
        raise ShapeError(f"grid_sample: bicubic is for images [N, C, H, W]\n  at {site()}")
    if not input.is_floating_point() or input.dtype is not grid.dtype:
        raise DTypeError(f"grid_sample takes two floating point tensors of one dtype, got {input.layout} and {grid.layout}\n  at {site()}")
    return input.shape[2:]


@composite(method=False)
def grid_sample(
    input: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None
) -> Tensor:
    """The image at the grid's places, coordinates from -1 to 1, x first. [N, C, H, W], [N, H', W', 2] -> [N, C, H', W'], or with a depth
    [N, C, D, H, W], [N, D', H', W', 3] -> [N, C, D', H', W']. Source: arXiv:1506.02025."""
    sizes = _check(input, grid, mode, padding_mode)
    align, dims, (n, c) = bool(align_corners), len(sizes), input.shape[:2]
    inner = grid.shape[1:-1]
    count = numel(inner)
    places = views.reshape(grid.float(), n, count, dims)
    axes = []
    for d, size in enumerate(sizes):  # the last coordinate is the first axis
        x = _pixels(places.select(2, dims - 1 - d), size, align)
        axes.append(_taps(x, size, mode, padding_mode, align))
    images = views.reshape(ramp(0, 1, (n,), int64), n, 1) * numel(sizes)
    numbers, weights = [], []
    for taps in itertools.product(*axes):
        flat: Any = 0
        weight: Any = None
        for (pixel, w), size in zip(taps, sizes, strict=True):
            if padding_mode == "zeros":
                w = pointwise.where(pointwise.logical_and(pixel >= 0, pixel <= size - 1), w, 0.0)
            at = arithmetic.clamp(arithmetic.clamp(pixel, -1, size).to(int64), 0, size - 1)
            flat = at + flat * size
            weight = w if weight is None else weight * w
        numbers.append(flat + images)
        weights.append(weight)
    table = views.reshape(views.movedim(input, 1, -1), n * numel(sizes), c)
    which = views.reshape(views.stack(numbers, 0), -1)
    taken = views.reshape(index.index_select(table, 0, which), len(numbers), n, count, c)
    out = (taken.float() * views.unsqueeze(views.stack(weights, 0), -1)).sum(0).to(input.dtype)
    return views.reshape(views.transpose(out, 1, 2), n, c, *inner)


@composite(method=False)
def grid_sampler(input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Tensor:
    """grid_sample with numbers for its modes."""
    return grid_sample(input, grid, _MODES[interpolation_mode], _PADDINGS[padding_mode], align_corners)
