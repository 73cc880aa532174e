"""Optimizer state in few storages: tensors of many shapes as views of one flat piece of zeros.

Fewer storages mean fewer bindings a dispatch. A tensor starts at a multiple of 4 elements, so kernels may read it in vec4.
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import dispatch
from ..dtype import DType
from ..ops.factory import zeros as _zeros
from ..shape import Shape, numel
from ..storage import Layout
from ..tensor import Tensor

ALIGNMENT = 4  # elements
LIMIT = 1 << 24  # elements: 64 MiB of f32, below the 128 MiB that one binding may show on every device


def filled(shapes: Sequence[Shape], values: Sequence[float], dtype: DType) -> list[Tensor]:
    """As `zeros`, then each tensor filled with its value."""
    made = zeros(shapes, dtype)
    wanted = [(t, value) for t, value in zip(made, values, strict=True) if value]
    if wanted:
        dispatch.current().persistent(lambda: [t.fill_(value) for t, value in wanted])
    return made


def zeros(shapes: Sequence[Shape], dtype: DType) -> list[Tensor]:
    """One zeroed tensor a shape, packed in order into storages of at most LIMIT elements (or of one larger tensor)."""
    if not shapes:
        return []
    places: list[tuple[int, int]] = []  # storage number, offset
    sizes = [0]
    for shape in shapes:
        padded = -(-numel(shape) // ALIGNMENT) * ALIGNMENT
        if sizes[-1] and sizes[-1] + padded > LIMIT:
            sizes.append(0)
        places.append((len(sizes) - 1, sizes[-1]))
        sizes[-1] += padded
    flats: list[Tensor] = dispatch.current().persistent(lambda: [_zeros(n, dtype=dtype) for n in sizes])
    return [
        Tensor._make(flats[number]._storage, Layout(dtype, shape, None, offset))
        for shape, (number, offset) in zip(shapes, places, strict=True)
    ]
