"""Initialisations, in place, with torch.nn.init's names, arguments and distributions. Values come from mg.manual_seed's generator."""

from __future__ import annotations

import math
import warnings

import numpy as np
from numpy.typing import NDArray

from ..dispatch import no_grad
from ..dtype import float32
from ..errors import ShapeError
from ..ops.factory import eye
from ..provenance import site
from ..random import Generator, default_generator
from ..shape import numel
from ..tensor import Tensor, upload

_GAINS = {"linear": 1.0, "conv1d": 1.0, "conv2d": 1.0, "conv3d": 1.0, "sigmoid": 1.0, "tanh": 5.0 / 3, "relu": math.sqrt(2.0), "selu": 0.75}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor that keeps the variance through a nonlinearity; `param` is leaky_relu's slope (0.01)."""
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else float(param)
        return math.sqrt(2.0 / (1 + slope**2))
    if nonlinearity not in _GAINS:
        raise ValueError(f"no gain for nonlinearity {nonlinearity!r}; there are leaky_relu, {', '.join(_GAINS)}")
    return _GAINS[nonlinearity]


def fans(tensor: Tensor) -> tuple[int, int]:
    """Inputs and outputs an element of a weight [out, in, *kernel] connects."""
    if tensor.ndim < 2:
        raise ShapeError(f"fan in and fan out need at least 2 dimensions, got shape {list(tensor.shape)}\n  at {site()}")
    field = numel(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Uniform in [a, b)."""
    with no_grad():
        return tensor.uniform_(a, b, generator=generator)  # type: ignore[no-any-return]


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Normal with mean and standard deviation."""
    with no_grad():
        return tensor.normal_(mean, std, generator=generator)  # type: ignore[no-any-return]


def constant_(tensor: Tensor, val: float) -> Tensor:
    """One value everywhere."""
    with no_grad():
        return tensor.fill_(val)  # type: ignore[no-any-return]


def zeros_(tensor: Tensor) -> Tensor:
    """Zeros."""
    return constant_(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    """Ones."""
    return constant_(tensor, 1.0)


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Uniform with variance gain^2 * 2 / (fan in + fan out). Source: Glorot and Bengio 2010."""
    bound = gain * math.sqrt(6.0 / sum(fans(tensor)))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Normal with variance gain^2 * 2 / (fan in + fan out). Source: Glorot and Bengio 2010."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(fans(tensor))), generator)


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"mode must be 'fan_in' or 'fan_out', not {mode!r}")
    return calculate_gain(nonlinearity, a) / math.sqrt(fans(tensor)[mode == "fan_out"])


def kaiming_uniform_(
    tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", generator: Generator | None = None
) -> Tensor:
    """Uniform with variance gain^2 / fan. Source: arXiv:1502.01852."""
    if 0 in tensor.shape:
        return tensor
    bound = math.sqrt(3.0) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", generator: Generator | None = None
) -> Tensor:
    """Normal with variance gain^2 / fan. Source: arXiv:1502.01852."""
    if 0 in tensor.shape:
        return tensor
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity), generator)


def trunc_normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0, generator: Generator | None = None
) -> Tensor:
    """Normal with mean and std, of which only values in [a, b] are kept. Drawn on the host, by rejection."""
    if a > b:
        raise ValueError(f"trunc_normal_ needs a <= b, got a={a}, b={b}")
    if mean < a - 2 * std or mean > b + 2 * std:
        warnings.warn("the mean lies more than 2 std outside [a, b]; the distribution of values may be wrong", stacklevel=2)
    rng = np.random.default_rng((generator or default_generator).reserve(tensor.numel()))
    with no_grad():
        tensor.copy_(upload(_truncated(rng, tensor.numel(), mean, std, a, b).astype(np.float32).reshape(tensor.shape), float32))
    return tensor


def _truncated(rng: np.random.Generator, count: int, mean: float, std: float, a: float, b: float) -> NDArray[np.float64]:
    """`count` values. Where [a, b] holds little of the normal, uniform candidates are accepted by its density instead."""
    low, high = (math.erf((x - mean) / (std * math.sqrt(2.0))) for x in (a, b))
    narrow = (high - low) / 2 < 0.3
    peak = ((max(a, min(mean, b)) - mean) / std) ** 2
    out = np.empty(count)
    filled = 0
    while filled < count:
        need = max(2 * (count - filled), 64)
        if narrow:
            x = rng.uniform(a, b, need)
            x = x[np.log1p(-rng.random(need)) <= 0.5 * (peak - ((x - mean) / std) ** 2)]
        else:
            x = rng.normal(mean, std, need)
            x = x[(x >= a) & (x <= b)]
        x = x[: count - filled]
        out[filled : filled + len(x)] = x
        filled += len(x)
    return out


def eye_(tensor: Tensor) -> Tensor:
    """The identity matrix; more rows or columns are zero. [n, m]."""
    if tensor.ndim != 2:
        raise ShapeError(f"eye_ needs 2 dimensions, got shape {list(tensor.shape)}\n  at {site()}")
    with no_grad():
        tensor.copy_(eye(tensor.shape[0], tensor.shape[1]).to(tensor.dtype))
    return tensor


def orthogonal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Orthonormal rows (columns, if there are more rows), times gain, of the matrix [out, in * kernel]. Drawn on the host.

    Source: arXiv:1312.6120; the signs of R's diagonal make the distribution uniform (Mezzadri 2007).
    """
    if tensor.ndim < 2:
        raise ShapeError(f"orthogonal_ needs at least 2 dimensions, got shape {list(tensor.shape)}\n  at {site()}")
    if tensor.numel() == 0:
        return tensor
    rows = tensor.shape[0]
    columns = tensor.numel() // rows
    rng = np.random.default_rng((generator or default_generator).reserve(tensor.numel()))
    q, r = np.linalg.qr(rng.normal(size=(max(rows, columns), min(rows, columns))))
    q = q * np.where(np.diag(r) < 0, -1.0, 1.0)
    values = np.ascontiguousarray(q.T if rows < columns else q) * gain
    with no_grad():
        tensor.copy_(upload(values.astype(np.float32).reshape(tensor.shape), float32))
    return tensor


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Kernels that pass channels on unchanged, within each group. [out, in, *kernel] of 3 to 5 dimensions."""
    if tensor.ndim not in (3, 4, 5):
        raise ShapeError(f"dirac_ needs 3 to 5 dimensions, got shape {list(tensor.shape)}\n  at {site()}")
    if tensor.shape[0] % groups:
        raise ShapeError(f"dirac_: {tensor.shape[0]} outputs do not split into {groups} groups\n  at {site()}")
    values = np.zeros(tensor.shape, np.float32)
    out = tensor.shape[0] // groups
    middle = tuple(k // 2 for k in tensor.shape[2:])
    for g in range(groups):
        for d in range(min(out, tensor.shape[1])):
            values[(g * out + d, d, *middle)] = 1.0
    with no_grad():
        tensor.copy_(upload(values, float32))
    return tensor


def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Generator | None = None) -> Tensor:
    """Normal values, of which the part `sparsity` of each column is 0. Drawn on the host. [n, m]. Source: Martens 2010."""
    if tensor.ndim != 2:
        raise ShapeError(f"sparse_ needs 2 dimensions, got shape {list(tensor.shape)}\n  at {site()}")
    rows, columns = tensor.shape
    rng = np.random.default_rng((generator or default_generator).reserve(tensor.numel()))
    values = rng.normal(0.0, std, (rows, columns))
    for j in range(columns):
        values[rng.permutation(rows)[: math.ceil(sparsity * rows)], j] = 0.0
    with no_grad():
        tensor.copy_(upload(values.astype(np.float32), float32))
    return tensor
