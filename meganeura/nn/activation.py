"""Activations as modules. All keep the shape, [*] -> [*], but for GLU, which halves a dimension."""

from __future__ import annotations

from typing import Any

from ..errors import ShapeError
from ..ops.factory import full
from ..provenance import site
from ..tensor import Tensor
from . import functional as F
from .module import Module
from .parameter import Parameter


class _Inplace(Module):
    """An activation that may write its result over its input."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def _shown(self, *parts: str) -> str:
        return ", ".join((*parts, "inplace=True") if self.inplace else parts)

    def extra_repr(self) -> str:
        return self._shown()


class ReLU(_Inplace):
    """max(x, 0)."""

    def forward(self, input: Tensor) -> Any:
        return F.relu(input, inplace=self.inplace)


class SiLU(_Inplace):
    """x * sigmoid(x). Source: arXiv:1702.03118."""

    def forward(self, input: Tensor) -> Any:
        return F.silu(input, inplace=self.inplace)


class Mish(_Inplace):
    """x * tanh(softplus(x)). Source: arXiv:1908.08681."""

    def forward(self, input: Tensor) -> Any:
        return F.mish(input, inplace=self.inplace)


class Hardswish(_Inplace):
    """x * clamp(x + 3, 0, 6) / 6. Source: arXiv:1905.02244."""

    def forward(self, input: Tensor) -> Any:
        return F.hardswish(input, inplace=self.inplace)


class Hardsigmoid(_Inplace):
    """clamp(x + 3, 0, 6) / 6."""

    def forward(self, input: Tensor) -> Any:
        return F.hardsigmoid(input, inplace=self.inplace)


class SELU(_Inplace):
    """elu with the scale and alpha that keep mean 0 and variance 1. Source: arXiv:1706.02515."""

    def forward(self, input: Tensor) -> Any:
        return F.selu(input, inplace=self.inplace)


class Hardtanh(_Inplace):
    """x limited to [min_val, max_val]."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        if min_val >= max_val:
            raise ShapeError(f"Hardtanh: max_val {max_val} is not above min_val {min_val}\n  at {site()}")
        self.min_val, self.max_val = min_val, max_val

    def forward(self, input: Tensor) -> Any:
        return F.hardtanh(input, self.min_val, self.max_val, inplace=self.inplace)

    def extra_repr(self) -> str:
        return self._shown(f"min_val={self.min_val}", f"max_val={self.max_val}")


class ReLU6(Hardtanh):
    """min(max(x, 0), 6)."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(0.0, 6.0, inplace)

    def extra_repr(self) -> str:
        return self._shown()


class Threshold(_Inplace):
    """x where it is above the threshold, else value."""

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.threshold, self.value = threshold, value

    def forward(self, input: Tensor) -> Any:
        return F.threshold(input, self.threshold, self.value, inplace=self.inplace)

    def extra_repr(self) -> str:
        return self._shown(f"threshold={self.threshold}", f"value={self.value}")


class LeakyReLU(_Inplace):
    """x where it is positive, else x * negative_slope."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.negative_slope = negative_slope

    def forward(self, input: Tensor) -> Any:
        return F.leaky_relu(input, self.negative_slope, inplace=self.inplace)

    def extra_repr(self) -> str:
        return self._shown(f"negative_slope={self.negative_slope}")


class RReLU(_Inplace):
    """LeakyReLU with slopes drawn from [lower, upper] while training, their mean otherwise. Source: arXiv:1505.00853."""

    def __init__(self, lower: float = 1.0 / 8, upper: float = 1.0 / 3, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.lower, self.upper = lower, upper

    def forward(self, input: Tensor) -> Any:
        return F.rrelu(input, self.lower, self.upper, self.training, inplace=self.inplace)

    def extra_repr(self) -> str:
        return self._shown(f"lower={self.lower}", f"upper={self.upper}")


class ELU(_Inplace):
    """x where it is positive, else alpha * expm1(x). Source: arXiv:1511.07289."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.alpha = alpha

    def forward(self, input: Tensor) -> Any:
        return F.elu(input, self.alpha, inplace=self.inplace)

    def extra_repr(self) -> str:
        return self._shown(f"alpha={self.alpha}")


class CELU(ELU):
    """x where it is positive, else alpha * expm1(x / alpha). Source: arXiv:1704.07483."""

    def forward(self, input: Tensor) -> Any:
        return F.celu(input, self.alpha, inplace=self.inplace)


class PReLU(Module):
    """x where it is positive, else x * weight, one weight or one a channel. [N, C, *] -> same. Source: arXiv:1502.01852."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.num_parameters, self.init = num_parameters, init
        self.weight = Parameter(full((num_parameters,), init, dtype=dtype, device=device))

    def reset_parameters(self) -> None:
        """Set all weights to the value given first."""
        self.weight.detach().fill_(self.init)

    def forward(self, input: Tensor) -> Any:
        return F.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


class GLU(Module):
    """The first half along dim times the sigmoid of the second. [*, 2N, *] -> [*, N, *]. Source: arXiv:1612.08083."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Any:
        return F.glu(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class GELU(Module):
    """Gaussian error linear unit; approximate 'none' (erf) or 'tanh'. Source: arXiv:1606.08415."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, input: Tensor) -> Any:
        return F.gelu(input, approximate=self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, input: Tensor) -> Any:
        return F.sigmoid(input)


class LogSigmoid(Module):
    """log(sigmoid(x))."""

    def forward(self, input: Tensor) -> Any:
        return F.logsigmoid(input)


class Tanh(Module):
    """Hyperbolic tangent."""

    def forward(self, input: Tensor) -> Any:
        return F.tanh(input)


class Tanhshrink(Module):
    """x - tanh(x)."""

    def forward(self, input: Tensor) -> Any:
        return F.tanhshrink(input)


class Softsign(Module):
    """x / (1 + |x|)."""

    def forward(self, input: Tensor) -> Any:
        return F.softsign(input)


class Softplus(Module):
    """log(1 + exp(beta * x)) / beta; x itself where beta * x is above the threshold."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta, self.threshold = beta, threshold

    def forward(self, input: Tensor) -> Any:
        return F.softplus(input, self.beta, self.threshold)

    def extra_repr(self) -> str:
        return f"beta={self.beta}, threshold={self.threshold}"


class Hardshrink(Module):
    """0 where |x| <= lambd, else x."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def forward(self, input: Tensor) -> Any:
        return F.hardshrink(input, self.lambd)

    def extra_repr(self) -> str:
        return f"{self.lambd}"


class Softshrink(Hardshrink):
    """x moved towards 0 by lambd, at most to 0."""

    def forward(self, input: Tensor) -> Any:
        return F.softshrink(input, self.lambd)


class Softmax(Module):
    """exp(x) / sum(exp(x)) along dim."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Any:
        return F.softmax(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class LogSoftmax(Softmax):
    """log(softmax(x)) along dim."""

    def forward(self, input: Tensor) -> Any:
        return F.log_softmax(input, self.dim)


class Softmin(Softmax):
    """softmax(-x) along dim."""

    def forward(self, input: Tensor) -> Any:
        return F.softmin(input, self.dim)


class Softmax2d(Module):
    """softmax over the channels of [N, C, H, W] or [C, H, W]."""

    def forward(self, input: Tensor) -> Any:
        if input.ndim not in (3, 4):
            raise ShapeError(f"Softmax2d takes [N, C, H, W] or [C, H, W], got {list(input.shape)}\n  at {site()}")
        return F.softmax(input, -3)
