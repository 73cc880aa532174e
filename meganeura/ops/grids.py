"""Sampling grids of affine maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..dtype import DType
from ..errors import DTypeError, ShapeError
from ..provenance import site
from . import views
from .factory import linspace, sizes_of
from .matmul import batched_matmul
from .table import composite

if TYPE_CHECKING:
    from ..tensor import Tensor


def _centres(n: int, align_corners: bool, kind: DType) -> Tensor:
    """Places of n pixels in [-1, 1]: of their centres, or from end to end. -> [n]."""
    end = 1.0 if align_corners else 1.0 - 1.0 / n
    return linspace(-end, end, n, dtype=kind) if n > 1 else linspace(0.0, 0.0, 1, dtype=kind)


@composite(method=False)
def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """Where an affine map takes each pixel of an image of `size`, in coordinates from -1 to 1, x first.
    [N, 2, 3] -> [N, H, W, 2], [N, 3, 4] -> [N, D, H, W, 3]."""
    sizes = sizes_of((tuple(size),))
    dims = len(sizes) - 2
    if not theta.is_floating_point():
        raise DTypeError(f"affine_grid takes floating point maps, got {theta.layout}\n  at {site()}")
    if dims not in (2, 3) or theta.ndim != 3 or theta.shape != (sizes[0], dims, dims + 1) or min(sizes) < 1:
        raise ShapeError(f"affine_grid: maps of shape {list(theta.shape)} do not fit images of {list(sizes)}\n  at {site()}")
    spatial = sizes[2:]
    axes: list[Any] = []
    for d in reversed(range(dims)):  # x, y, z
        line = views.view(_centres(spatial[d], bool(align_corners), theta.dtype), *(spatial[d] if e == d else 1 for e in range(dims)))
        axes.append(views.expand(line, *spatial))
    axes.append(axes[0].ones_like())
    points = views.reshape(views.stack(axes, -1), 1, -1, dims + 1)
    out = batched_matmul(views.expand(points, sizes[0], -1, -1), views.transpose(theta, 1, 2))
    return views.reshape(out, sizes[0], *spatial, dims)


@composite(method=False)
def affine_grid_generator(theta: Tensor, size: Sequence[int], align_corners: bool) -> Tensor:
    """affine_grid."""
    return affine_grid(theta, size, align_corners)
