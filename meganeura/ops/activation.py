"""Activations, normalisations, dropout and embedding, with PyTorch's names and defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..dtype import dtype as as_dtype
from ..errors import DTypeError, ShapeError
from ..provenance import site
from ..shape import Shape, normalize_dim
from . import index, norm, pointwise
from .table import composite
from .views import located, reshape

if TYPE_CHECKING:
    from ..tensor import Tensor


@composite(method=False)
def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """Gaussian error linear unit; approximate 'none' (erf) or 'tanh'. [*] -> [*]."""
    if approximate not in ("none", "tanh"):
        raise DTypeError(f"approximate must be 'none' or 'tanh', not {approximate!r}\n  at {site()}")
    return pointwise.gelu_erf(input) if approximate == "none" else pointwise.gelu_tanh(input)  # type: ignore[no-any-return]


@composite
def softmax(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """exp(input) / sum(exp(input)) along dim. [*] -> [*]."""
    x = input if dtype is None else input.to(as_dtype(dtype))
    return norm.softmax_row(x, located(normalize_dim, dim, x.ndim))  # type: ignore[no-any-return]


@composite
def log_softmax(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """log(softmax(input)) along dim. [*] -> [*]."""
    x = input if dtype is None else input.to(as_dtype(dtype))
    return norm.log_softmax_row(x, located(normalize_dim, dim, x.ndim))  # type: ignore[no-any-return]


def _trailing(input: Tensor, shape: Any, what: str, *params: Tensor | None) -> Shape:
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if not sizes or tuple(input.shape[-len(sizes) :]) != sizes or any(p is not None and p.shape != sizes for p in params):
        got = [list(p.shape) for p in params if p is not None]
        raise ShapeError(
            f"{what}: normalized_shape {list(sizes)} does not fit input {list(input.shape)} or parameters {got}\n  at {site()}"
        )
    return tuple(range(input.ndim - len(sizes), input.ndim))


@composite(method=False)
def layer_norm(input: Tensor, normalized_shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Layer norm over the trailing dimensions. [*, normalized_shape] -> same."""
    dims = _trailing(input, normalized_shape, "layer_norm", weight, bias)
    return norm.layer_norm_row(input, weight, bias, dims, eps)[0]  # type: ignore[no-any-return]


@composite(method=False)
def rms_norm(input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """Root mean square norm over the trailing dimensions; eps defaults to the dtype's epsilon. [*, normalized_shape] -> same."""
    dims = _trailing(input, normalized_shape, "rms_norm", weight)
    eps = float(np.finfo(np.float16 if input.dtype.name == "float16" else np.float32).eps) if eps is None else eps
    return norm.rms_norm_row(input, weight, dims, eps)[0]  # type: ignore[no-any-return]


@composite(method=False)
def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """Rows of weight by index; the row padding_idx gets no gradient. [*], [V, D] -> [*, D]."""
    if weight.ndim != 2:
        raise ShapeError(f"embedding expects a [V, D] weight, got shape {list(weight.shape)}\n  at {site()}")
    if padding_idx is not None:
        padding_idx = located(normalize_dim, padding_idx, weight.shape[0], "padding_idx")
    rows = index.embedding_rows(weight, 0, reshape(input, -1) if input.numel() else reshape(input, 0), padding_idx)
    return reshape(rows, *input.shape, weight.shape[1])
