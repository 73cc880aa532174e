"""The matrix product row. Transposed operands are read through their strides, without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .archetype import Matmul
from .table import Sample, op

if TYPE_CHECKING:
    from ..tensor import Tensor


def _f32(*shape: int) -> Any:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


@op(
    Matmul(),
    ref=lambda input, other: np.matmul(input, other),
    grad={
        "input": lambda grad, other: batched_matmul(grad, other.transpose(-2, -1)),
        "other": lambda grad, input: batched_matmul(input.transpose(-2, -1), grad),
    },
    samples=lambda: [
        Sample.of(_f32(3, 5), _f32(5, 4)),
        Sample.of(_f32(1, 7), _f32(7, 33)),
        Sample.of(_f32(33, 17), _f32(17, 1)),
        Sample.of(_f32(2, 3, 8), _f32(2, 8, 5)),
        Sample.of(_f32(2, 1, 3, 8), _f32(4, 8, 5)),
        Sample.of(_f32(3, 0), _f32(0, 4)),
        Sample.of(_f32(70, 36), _f32(36, 65)),
    ],
    public=False,
    torch="matmul",
)
def batched_matmul(input: Tensor, other: Tensor) -> Tensor:
    """Batched matrix product, float32 accumulation; leading dimensions broadcast. [*, M, K], [*, K, N] -> [*, M, N]."""
