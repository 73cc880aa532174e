"""Parameter and Buffer: tensors that a Module registers when they are assigned to an attribute."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtype import DType
from ..dtype import dtype as as_dtype
from ..errors import DTypeError
from ..provenance import site
from ..tensor import Tensor, upload


def _adopt(cls: type, data: Any) -> Any:
    """A tensor of class `cls` over the memory of `data`, without history. Array-likes are uploaded."""
    if data is None:
        data = np.empty(0, np.float32)
    if not isinstance(data, Tensor):
        array = np.asarray(data)
        data = upload(array, as_dtype(array.dtype))
    t = Tensor._make(data._storage, data.layout)
    t.__class__ = cls  # the classes below add no slots, so the layout in memory is Tensor's
    return t


class Parameter(Tensor):
    """A tensor to be trained: requires grad, and is registered by the Module it becomes an attribute of."""

    __slots__ = ()

    def __new__(cls, data: Any = None, requires_grad: bool = True) -> Parameter:
        t: Parameter = _adopt(cls, data)
        if requires_grad and not t.dtype.is_floating_point:
            raise DTypeError(f"only floating point tensors can require grad, not {t.layout}; use a Buffer\n  at {site()}")
        t._leaf = requires_grad
        return t

    def __init__(self, data: Any = None, requires_grad: bool = True) -> None:
        """Everything was done by __new__."""

    def __repr__(self) -> str:
        return "Parameter containing:\n" + super().__repr__()


class Buffer(Tensor):
    """A tensor that is state but not trained. `persistent=False` keeps it out of state dicts."""

    __slots__ = ()
    persistent = True

    def __new__(cls, data: Any = None, *, persistent: bool = True) -> Buffer:
        return _adopt(cls if persistent else TransientBuffer, data)  # type: ignore[no-any-return]

    def __init__(self, data: Any = None, *, persistent: bool = True) -> None:
        """Everything was done by __new__."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        out = memo[id(self)] = _rebuild_buffer(self._read(), self.dtype, self.persistent)
        return out

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_buffer, (self._read(), self.dtype, self.persistent)


class TransientBuffer(Buffer):
    """A Buffer that state dicts leave out; made by Buffer(data, persistent=False)."""

    __slots__ = ()
    persistent = False


def _rebuild_buffer(array: np.ndarray[Any, Any], dtype: DType, persistent: bool) -> Buffer:
    return Buffer(upload(array, dtype), persistent=persistent)


def drop_grad(tensor: Tensor, set_to_none: bool) -> None:
    """Forget a gradient, or fill it with zeros."""
    if set_to_none or tensor.grad is None:
        tensor.grad = None
    else:
        tensor.grad = tensor.grad.detach()
        tensor.grad.zero_()
