"""What is known of tensors and dtypes without a value, as functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import dispatch
from ..dtype import DType, promote, scalar_dtype
from ..dtype import dtype as as_dtype
from ..errors import ShapeError
from ..provenance import site
from ..shape import Shape
from ..shape import broadcast_shapes as _broadcast
from .factory import sizes_of
from .infer import common_dtype
from .table import composite
from .views import located

if TYPE_CHECKING:
    from ..tensor import Tensor


@composite(method=False)
def is_tensor(obj: Any) -> bool:
    """Whether an object is a tensor."""
    return isinstance(obj, dispatch.hooks.tensor)


@composite
def is_floating_point(input: Tensor) -> bool:
    """Whether the dtype is a floating point one."""
    return input.dtype.is_floating_point


@composite
def is_complex(input: Tensor) -> bool:
    """False: there are no complex dtypes."""
    return False


@composite
def is_signed(input: Tensor) -> bool:
    """Whether the dtype holds negative numbers."""
    return input.dtype.kind in "if"


@composite
def is_same_size(input: Tensor, other: Tensor) -> bool:
    """Whether the shapes are the same."""
    return input.shape == other.shape


@composite
def is_nonzero(input: Tensor) -> bool:
    """Whether the one element is not zero; read on the host."""
    if input.numel() != 1:
        raise ShapeError(f"is_nonzero needs a tensor of one element, got shape {list(input.shape)}\n  at {site()}")
    return bool(input)


@composite
def numel(input: Tensor) -> int:
    """Number of elements."""
    return input.layout.numel


@composite
def nelement(input: Tensor) -> int:
    """Number of elements."""
    return input.layout.numel


@composite
def ndimension(input: Tensor) -> int:
    """Number of dimensions."""
    return input.ndim


@composite
def element_size(input: Tensor) -> int:
    """Bytes an element takes on the device."""
    return input.dtype.itemsize


@composite(method=False)
def broadcast_shapes(*shapes: Any) -> Shape:
    """The common shape of shapes, or of sizes of vectors."""
    found = located(_broadcast, *(sizes_of((s,)) for s in shapes))
    return tuple(found)


@composite(method=False)
def promote_types(type1: Any, type2: Any) -> DType:
    """The dtype that holds both."""
    return promote(as_dtype(type1), as_dtype(type2))


@composite(method=False)
def result_type(tensor1: Any, tensor2: Any) -> DType:
    """The dtype of arithmetic between tensors and numbers."""
    pair = [getattr(v, "layout", v) for v in (tensor1, tensor2)]
    if not any(is_tensor(v) for v in (tensor1, tensor2)):
        return promote(*(scalar_dtype(v) for v in pair))
    return common_dtype(pair)


_ORDER = {"b": 0, "u": 1, "i": 1, "f": 2}


@composite(method=False)
def can_cast(from_: Any, to: Any) -> bool:
    """Whether a result of one dtype may be stored in another: not in a lower kind of bool, integer, float."""
    a, b = as_dtype(from_), as_dtype(to)
    return _ORDER[a.kind] <= _ORDER[b.kind]
