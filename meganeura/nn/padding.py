"""Borders around the last 1, 2 or 3 dimensions, as modules. [N, C, *] or [C, *] -> the same with * grown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ..errors import ShapeError
from ..tensor import Tensor
from . import functional as F
from .module import Module


class _Pad(Module):
    """Amounts are one number for all sides, or (before, after) pairs from the last dimension backwards."""

    dims: ClassVar[int]
    mode: ClassVar[str]

    def __init__(self, padding: int | Sequence[int]) -> None:
        super().__init__()
        self.padding = (padding,) * (2 * self.dims) if isinstance(padding, int) else tuple(padding)
        if len(self.padding) != 2 * self.dims:
            raise ShapeError(f"{type(self).__name__} takes {2 * self.dims} amounts, got {list(self.padding)}")

    def forward(self, input: Tensor) -> Any:
        return F.pad(input, self.padding, self.mode)

    def extra_repr(self) -> str:
        return str(self.padding)


class _ConstantPad(_Pad):
    mode = "constant"

    def __init__(self, padding: int | Sequence[int], value: float) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, input: Tensor) -> Any:
        return F.pad(input, self.padding, "constant", self.value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class ConstantPad1d(_ConstantPad):
    """One value around the last dimension. [*, n] -> [*, m]."""

    dims = 1


class ConstantPad2d(_ConstantPad):
    """One value around the last 2 dimensions. [*, h, w] -> [*, h', w']."""

    dims = 2


class ConstantPad3d(_ConstantPad):
    """One value around the last 3 dimensions. [*, d, h, w] -> [*, d', h', w']."""

    dims = 3


class _ZeroPad(_ConstantPad):
    def __init__(self, padding: int | Sequence[int]) -> None:
        super().__init__(padding, 0.0)

    def extra_repr(self) -> str:
        return str(self.padding)


class ZeroPad1d(_ZeroPad):
    """Zeros around the last dimension. [*, n] -> [*, m]."""

    dims = 1


class ZeroPad2d(_ZeroPad):
    """Zeros around the last 2 dimensions. [*, h, w] -> [*, h', w']."""

    dims = 2


class ZeroPad3d(_ZeroPad):
    """Zeros around the last 3 dimensions. [*, d, h, w] -> [*, d', h', w']."""

    dims = 3


class _ReflectionPad(_Pad):
    mode = "reflect"


class ReflectionPad1d(_ReflectionPad):
    """The last dimension mirrored at its edges, which are not repeated. [*, n] -> [*, m]."""

    dims = 1


class ReflectionPad2d(_ReflectionPad):
    """The last 2 dimensions mirrored at their edges. [*, h, w] -> [*, h', w']."""

    dims = 2


class ReflectionPad3d(_ReflectionPad):
    """The last 3 dimensions mirrored at their edges. [*, d, h, w] -> [*, d', h', w']."""

    dims = 3


class _ReplicationPad(_Pad):
    mode = "replicate"


class ReplicationPad1d(_ReplicationPad):
    """The edges of the last dimension repeated. [*, n] -> [*, m]."""

    dims = 1


class ReplicationPad2d(_ReplicationPad):
    """The edges of the last 2 dimensions repeated. [*, h, w] -> [*, h', w']."""

    dims = 2


class ReplicationPad3d(_ReplicationPad):
    """The edges of the last 3 dimensions repeated. [*, d, h, w] -> [*, d', h', w']."""

    dims = 3


class _CircularPad(_Pad):
    mode = "circular"


class CircularPad1d(_CircularPad):
    """The last dimension as a ring. [*, n] -> [*, m]."""

    dims = 1


class CircularPad2d(_CircularPad):
    """The last 2 dimensions as rings. [*, h, w] -> [*, h', w']."""

    dims = 2


class CircularPad3d(_CircularPad):
    """The last 3 dimensions as rings. [*, d, h, w] -> [*, d', h', w']."""

    dims = 3
