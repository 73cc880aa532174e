"""Borders around the last 1, 2 or 3 dimensions, as modules. [N, C, *] or [C, *] -> the same with * grown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import ShapeError
from ..tensor import Tensor
from . import functional as F
from .module import Module

_SIZES = {1: "[*, n] -> [*, m]", 2: "[*, h, w] -> [*, h', w']", 3: "[*, d, h, w] -> [*, d', h', w']"}


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


class _ZeroPad(_ConstantPad):
    def __init__(self, padding: int | Sequence[int]) -> None:
        super().__init__(padding, 0.0)

    def extra_repr(self) -> str:
        return str(self.padding)


def _classes(name: str, base: type[_Pad], mode: str, what: str) -> None:
    """The classes of one kind of border, named name + '1d' and so on."""
    for dims, sizes in _SIZES.items():
        made = f"{name}{dims}d"
        doc = f"{what} of the last dimension{'s' if dims > 1 else ''}. {sizes}."
        globals()[made] = type(made, (base,), {"dims": dims, "mode": mode, "__doc__": doc, "__module__": __name__})


_classes("ConstantPad", _ConstantPad, "constant", "One value around the ends")
_classes("ZeroPad", _ZeroPad, "constant", "Zeros around the ends")
_classes("ReflectionPad", _Pad, "reflect", "A mirror image, which does not repeat the edges, at the ends")
_classes("ReplicationPad", _Pad, "replicate", "The edges repeated at the ends")
_classes("CircularPad", _Pad, "circular", "What comes round again at the ends")

if TYPE_CHECKING:

    class ConstantPad1d(_ConstantPad): ...

    class ConstantPad2d(_ConstantPad): ...

    class ConstantPad3d(_ConstantPad): ...

    class ZeroPad1d(_ZeroPad): ...

    class ZeroPad2d(_ZeroPad): ...

    class ZeroPad3d(_ZeroPad): ...

    class ReflectionPad1d(_Pad): ...

    class ReflectionPad2d(_Pad): ...

    class ReflectionPad3d(_Pad): ...

    class ReplicationPad1d(_Pad): ...

    class ReplicationPad2d(_Pad): ...

    class ReplicationPad3d(_Pad): ...

    class CircularPad1d(_Pad): ...

    class CircularPad2d(_Pad): ...

    class CircularPad3d(_Pad): ...
