"""More ways to make tensors: spaced numbers, powers, other objects' memory, and tensors made like another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import dispatch
from ..dtype import dtype as as_dtype
from ..dtype import float32, int64
from ..errors import DTypeError, ShapeError
from ..provenance import site
from . import factory, views
from .factory import whole
from .table import composite

if TYPE_CHECKING:
    from ..tensor import Tensor


@composite(method=False)
def logspace(
    start: Any, end: Any, steps: int, base: float = 10.0, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """base to the power of `steps` numbers from start to end. -> [steps]."""
    if whole(steps, "steps") < 0:
        raise ShapeError(f"logspace needs steps >= 0, got {steps}\n  at {site()}")
    kind = as_dtype(dtype or float32)
    with np.errstate(all="ignore"):
        powers = np.power(float(base), factory.evenly(start, end, steps, kind))
    return factory.tensor(powers if kind.is_floating_point else np.trunc(powers), kind, requires_grad=requires_grad)


def _powers(x: Tensor, count: int) -> Tensor:
    """x to the powers 0 ... count - 1, doubling how many there are. [*] -> [*, count]."""
    column = views.unsqueeze(x, -1)
    out: Tensor = column.ones_like(requires_grad=False)
    last = column  # x to the power of out's size
    while out.shape[-1] < count:
        out = views.cat([out, out * last], -1)
        last = last * last
    return views.narrow(out, -1, 0, count) if out.shape[-1] != count else out


def _columns(x: Tensor, count: int, what: str) -> Tensor:
    if whole(count, "N") < 0:
        raise ShapeError(f"{what} needs N >= 0, got {count}\n  at {site()}")
    if x.dtype.kind == "b":
        x = x.to(int64)
    return _powers(x, count)


@composite
def vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
    """Powers of every element in a row, the highest first unless increasing. [n] -> [n, N]."""
    if x.ndim != 1:
        raise ShapeError(f"vander takes a vector, got shape {list(x.shape)}\n  at {site()}")
    out = _columns(x, x.shape[0] if N is None else N, "vander")
    return out if increasing else out.flip(-1)


def linalg_vander(x: Tensor, *, N: int | None = None) -> Tensor:
    """Powers of every element, 0 ... N - 1, in a new last dimension. [*, n] -> [*, n, N]."""
    if not x.ndim or (N is not None and N <= 1):
        raise ShapeError(f"linalg.vander takes at least a vector and N > 1, got shape {list(x.shape)} and {N}\n  at {site()}")
    return _columns(x, x.shape[-1] if N is None else N, "vander")


# ---- from objects ----


@composite(method=False)
def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """The tensor itself where nothing has to change; other data is copied to the device."""
    if isinstance(data, dispatch.hooks.tensor):
        found: Tensor = data if dtype is None else data.to(as_dtype(dtype))
        return found
    return factory.tensor(data, dtype)


@composite(method=False)
def asarray(obj: Any, *, dtype: Any = None, device: Any = None, copy: bool | None = None, requires_grad: bool = False) -> Tensor:
    """A tensor of an object; a tensor stays itself unless copy, dtype or requires_grad ask for another."""
    if not isinstance(obj, dispatch.hooks.tensor):
        if copy is False:
            raise DTypeError(f"asarray(copy=False): data of the host is always copied to the device\n  at {site()}")
        return factory.tensor(obj, dtype, requires_grad=requires_grad)
    out: Tensor = obj if dtype is None else obj.to(as_dtype(dtype))
    if copy and out is obj:
        out = obj.clone()
    if copy is False and out is not obj:
        raise DTypeError(f"asarray(copy=False) cannot make {dtype} of {obj.layout}\n  at {site()}")
    return out.detach().requires_grad_() if requires_grad and not out.requires_grad else out


@composite(method=False)
def frombuffer(buffer: Any, *, dtype: Any, count: int = -1, offset: int = 0, requires_grad: bool = False) -> Tensor:
    """A copy of an object's memory read as a dtype. -> [count]."""
    kind = as_dtype(dtype)
    try:
        array = np.frombuffer(buffer, kind.numpy, count, offset)
    except ValueError as e:
        raise ShapeError(f"frombuffer: {e}\n  at {site()}") from None
    return factory.tensor(array, kind, requires_grad=requires_grad)


@composite(method=False)
def scalar_tensor(s: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A 0-d tensor of a number, float32 unless said otherwise. -> []."""
    return factory.full((), fill_value=s, dtype=dtype or float32, requires_grad=requires_grad)


@composite(method=False)
def from_dlpack(ext_tensor: Any, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """A copy of an array of the host that offers __dlpack__ (numpy, PyTorch on CPU, ...); a tensor stays itself."""
    if isinstance(ext_tensor, dispatch.hooks.tensor):
        return ext_tensor  # type: ignore[no-any-return]
    if copy is False:
        raise DTypeError(f"from_dlpack(copy=False): data of the host is always copied to the device\n  at {site()}")
    try:
        return factory.tensor(np.from_dlpack(ext_tensor))
    except (AttributeError, TypeError, RuntimeError, BufferError) as e:
        raise DTypeError(f"from_dlpack cannot take a {type(ext_tensor).__name__}: {e}\n  at {site()}") from None


@composite(method=False)
def empty_strided(size: Any, stride: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor whose values do not matter, with strides in elements. -> [size]."""
    shape, strides = factory.sizes_of((size,)), factory.sizes_of((stride,))
    if len(shape) != len(strides) or min((*shape, *strides), default=0) < 0:
        raise ShapeError(f"empty_strided: strides {list(strides)} do not fit size {list(shape)}\n  at {site()}")
    last = sum(s * (n - 1) for n, s in zip(shape, strides, strict=True)) if 0 not in shape else -1
    with dispatch.no_grad():
        out = views.as_strided(factory.zeros(last + 1, dtype=dtype), shape, strides, 0).detach()
    return out.requires_grad_() if requires_grad else out


# ---- like another tensor ----


@composite(method=False)
def detach(input: Tensor) -> Tensor:
    """The same memory without history. [*] -> [*]."""
    return input.detach()


@composite
def fill(input: Tensor, value: Any) -> Tensor:
    """A tensor like input with every element the value, a number or a 0-d tensor. [*] -> [*]."""
    if isinstance(value, dispatch.hooks.tensor) and value.ndim:
        raise ShapeError(f"fill expects a number or a 0-d tensor, got shape {list(value.shape)}\n  at {site()}")
    return input.masked_fill(factory.full((), True), value)  # type: ignore[no-any-return]


@composite
def new_tensor(input: Tensor, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """tensor(data) of this dtype."""
    return factory.tensor(data, dtype or input.dtype, requires_grad=requires_grad)


@composite
def new_full(input: Tensor, size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """full of this dtype. -> [size]."""
    return factory.full(size, fill_value=fill_value, dtype=dtype or input.dtype, requires_grad=requires_grad)


@composite
def new_zeros(input: Tensor, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """zeros of this dtype. -> [size]."""
    return factory.zeros(*size, dtype=dtype or input.dtype, requires_grad=requires_grad)


@composite
def new_ones(input: Tensor, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """ones of this dtype. -> [size]."""
    return factory.ones(*size, dtype=dtype or input.dtype, requires_grad=requires_grad)


@composite
def new_empty(input: Tensor, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """empty of this dtype. -> [size]."""
    return factory.empty(*size, dtype=dtype or input.dtype, requires_grad=requires_grad)
