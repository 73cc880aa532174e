"""Matrix products with PyTorch's rules for vectors and batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ShapeError
from ..provenance import site
from ..shape import numel
from .matmul import batched_matmul
from .table import composite
from .views import reshape, squeeze, transpose, unsqueeze

if TYPE_CHECKING:
    from ..tensor import Tensor


@composite
def matmul(input: Tensor, other: Tensor) -> Tensor:
    """PyTorch's matmul: vectors, matrices and batches. [*, M, K], [*, K, N] -> [*, M, N]."""
    a = input if input.ndim != 1 else unsqueeze(input, 0)
    b = other if other.ndim != 1 else unsqueeze(other, 1)
    if not (a.shape and b.shape):
        raise ShapeError(f"matmul needs at least 1 dimension each, got shapes {list(input.shape)} and {list(other.shape)}\n  at {site()}")
    if b.ndim == 2 and a.ndim > 2 and a.shape[-1] == b.shape[0]:
        out = batched_matmul(reshape(a, numel(a.shape[:-1]), a.shape[-1]), b)
        out = reshape(out, *a.shape[:-1], b.shape[-1])
    else:
        out = batched_matmul(a, b)
    if input.ndim == 1:
        out = squeeze(out, -2)
    return squeeze(out, -1) if other.ndim == 1 else out


@composite
def mm(input: Tensor, mat2: Tensor) -> Tensor:
    """Product of two matrices. [M, K], [K, N] -> [M, N]."""
    if input.ndim != 2 or mat2.ndim != 2:
        raise ShapeError(f"mm expects two matrices, got shapes {list(input.shape)} and {list(mat2.shape)}\n  at {site()}")
    return batched_matmul(input, mat2)  # type: ignore[no-any-return]


@composite
def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    """Batched product. [B, M, K], [B, K, N] -> [B, M, N]."""
    if input.ndim != 3 or mat2.ndim != 3 or input.shape[0] != mat2.shape[0]:
        raise ShapeError(
            f"bmm expects two 3-D tensors with as many matrices, got shapes {list(input.shape)} and {list(mat2.shape)}\n  at {site()}"
        )
    return batched_matmul(input, mat2)  # type: ignore[no-any-return]


@composite(method=False)
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input @ weight.T + bias. [*, in], [out, in] (or [in]), [out] -> [*, out] (or [*])."""
    if weight.ndim not in (1, 2) or input.shape[-1:] != weight.shape[-1:]:
        raise ShapeError(f"linear: input of shape {list(input.shape)} does not fit weight {list(weight.shape)} ([out, in])\n  at {site()}")
    out = matmul(input, transpose(weight, 0, 1) if weight.ndim == 2 else weight)
    return out if bias is None else out + bias
