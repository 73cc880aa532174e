"""Window functions of signal processing. Computed by numpy in float64 once, then uploaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..dtype import dtype as as_dtype
from ..dtype import float32
from ..errors import DTypeError, ShapeError
from ..provenance import site
from .factory import tensor, whole
from .table import composite

if TYPE_CHECKING:
    from ..tensor import Tensor


def _window(name: str, length: int, periodic: bool, values: Callable[[Any], Any], dtype: Any, requires_grad: bool) -> Tensor:
    """The window of a function of 0 ... 1, where a periodic one leaves out the last point."""
    n = whole(length, "window_length")
    kind = as_dtype(dtype or float32)
    if n < 0 or not kind.is_floating_point:
        raise (ShapeError if n < 0 else DTypeError)(f"{name} makes floating point numbers, got length {n} and {kind.name}\n  at {site()}")
    points = np.arange(n) / max(n if periodic else n - 1, 1)
    return tensor(np.ones(n) if n == 1 else values(points), kind, requires_grad=requires_grad)


def _cosines(*weights: float) -> Callable[[Any], Any]:
    return lambda t: sum(w * np.cos(2 * np.pi * k * t) for k, w in enumerate(weights))


@composite(method=False)
def bartlett_window(
    window_length: int, periodic: bool = True, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A triangle. -> [window_length]."""
    return _window("bartlett_window", window_length, periodic, lambda t: 1 - np.abs(2 * t - 1), dtype, requires_grad)


@composite(method=False)
def blackman_window(
    window_length: int, periodic: bool = True, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """0.42 - 0.5 cos(2 pi t) + 0.08 cos(4 pi t). -> [window_length]."""
    return _window("blackman_window", window_length, periodic, _cosines(0.42, -0.5, 0.08), dtype, requires_grad)


@composite(method=False)
def hann_window(window_length: int, periodic: bool = True, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """0.5 - 0.5 cos(2 pi t). -> [window_length]."""
    return _window("hann_window", window_length, periodic, _cosines(0.5, -0.5), dtype, requires_grad)


@composite(method=False)
def hamming_window(
    window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, *,
    dtype: Any = None, device: Any = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """alpha - beta cos(2 pi t). -> [window_length]."""
    return _window("hamming_window", window_length, periodic, _cosines(alpha, -beta), dtype, requires_grad)


@composite(method=False)
def kaiser_window(
    window_length: int, periodic: bool = True, beta: float = 12.0, *,
    dtype: Any = None, device: Any = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """I0(beta sqrt(1 - (2t - 1)^2)) / I0(beta). -> [window_length]."""

    def values(t: Any) -> Any:
        return np.i0(beta * np.sqrt(np.maximum(1 - (2 * t - 1) ** 2, 0))) / np.i0(beta)

    return _window("kaiser_window", window_length, periodic, values, dtype, requires_grad)
