"""The matrix product row. Transposed operands are read through their strides, without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..storage import Layout
from .archetype import Matmul
from .table import Sample, op

if TYPE_CHECKING:
    from ..tensor import Tensor


def _f32(*shape: int) -> Any:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def _column_major(x: Layout) -> bool:
    return not x.contiguous and x.strides[-2] == 1


def _product(a: Any, b: Any, like: Layout) -> Any:
    """a @ b, laid out as the operand whose gradient it is: the gradient of a transposed view is then contiguous."""
    if _column_major(like):
        return batched_matmul(b.transpose(-2, -1), a.transpose(-2, -1)).transpose(-2, -1)
    return batched_matmul(a, b)


@op(
    Matmul(),
    ref=lambda input, other: np.matmul(input, other),
    grad={
        "input": lambda grad, other, input_meta: _product(grad, other.transpose(-2, -1), input_meta),
        "other": lambda grad, input, other_meta: _product(input.transpose(-2, -1), grad, other_meta),
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
    shown="matmul",
)
def batched_matmul(input: Tensor, other: Tensor) -> Tensor:
    """Batched matrix product, float32 accumulation; leading dimensions broadcast. [*, M, K], [*, K, N] -> [*, M, N]."""
