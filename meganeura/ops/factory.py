"""Composites that make tensors: from data, constant, ranges, random. The default dtype is float32 (int64 for whole numbers)."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import dispatch
from .. import random as _random
from ..dtype import DType, float32, int64, scalar_dtype
from ..dtype import dtype as as_dtype
from ..errors import DTypeError, ShapeError
from ..provenance import site
from ..shape import Shape, numel
from . import creation
from .table import composite

if TYPE_CHECKING:
    from ..tensor import Tensor


def whole(value: Any, what: str) -> int:
    """A size, dimension or count as an int; TypeError for what is no whole number."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be an int, got {value!r} ({type(value).__name__})\n  at {site()}") from None


def sizes_of(size: Sequence[Any]) -> Shape:
    """Sizes given one by one or as one sequence. f(2, 3) or f((2, 3)) -> (2, 3)."""
    if len(size) == 1 and isinstance(size[0], (tuple, list)):
        size = size[0]
    return tuple(whole(s, "a size") for s in size)


def _shaped(size: Sequence[Any]) -> Shape:
    sizes = sizes_of(size)
    if min(sizes, default=0) < 0:
        raise ShapeError(f"a size of {list(sizes)} is negative\n  at {site()}")
    return sizes


def _leaf(t: Tensor, requires_grad: bool) -> Tensor:
    return t.requires_grad_() if requires_grad else t


# ---- from data ----


def tensor(data: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of the given values. Python floats give float32, integers int64, float64 arrays float32."""
    kind = None if dtype is None else as_dtype(dtype)
    if isinstance(data, dispatch.hooks.tensor):
        out: Tensor = data.detach().clone()
        return _leaf(out if kind is None else out.to(kind), requires_grad)
    array = _array(data)
    if kind is None:
        kind = float32 if array.size == 0 and not isinstance(data, np.ndarray) else as_dtype(array.dtype)
    elif kind.bits == 8 and array.dtype.kind in "iuf" and not isinstance(data, (np.ndarray, np.generic)):
        _check_byte(array, kind)
    try:
        return _leaf(dispatch.current().upload(kind, array), requires_grad)
    except DTypeError as e:
        if "\n  at " in str(e):
            raise
        raise DTypeError(f"tensor: {e}\n  at {site()}") from None


def _check_byte(array: Any, kind: DType) -> None:
    low, high = limits(kind, array.dtype.kind != "f")
    bad = (array < low) | (array > high)
    if bad.any():
        raise DTypeError(f"value {array[bad].reshape(-1)[0]} does not fit {kind.name}\n  at {site()}")


def _array(data: Any) -> np.ndarray[Any, Any]:
    """Numbers, nested sequences of them, arrays and tensors in sequences as one array."""
    try:
        array = np.asarray(_plain(data))
    except ValueError as e:
        raise ShapeError(f"cannot make a tensor of sequences of unequal length: {e}\n  at {site()}") from None
    except OverflowError as e:
        raise DTypeError(f"cannot make a tensor of {type(data).__name__}: {e}\n  at {site()}") from None
    if array.dtype.kind not in "biuf":
        raise DTypeError(f"cannot make a tensor of {_shown(data)}: numpy finds dtype {array.dtype}\n  at {site()}")
    return array


def _plain(data: Any) -> Any:
    if isinstance(data, (list, tuple)):
        return [_plain(x) for x in data]
    return data.detach().numpy() if isinstance(data, dispatch.hooks.tensor) else data


def _shown(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 60 else text[:57] + "..."


def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor with a copy of the array's values (no shared memory: they go to the device)."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"from_numpy expects a numpy array, got {type(array).__name__}\n  at {site()}")
    return tensor(array)


# ---- constant ----


def full(*size: Any, fill_value: Any = None, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of one value: full((2, 3), 1.5). -> [size]."""
    if fill_value is None:
        if len(size) < 2:
            raise TypeError(f"full() needs a size and a fill_value, got {size}\n  at {site()}")
        *head, fill_value = size
        size = tuple(head)
    if isinstance(fill_value, dispatch.hooks.tensor):
        out: Tensor = fill_value.detach().reshape(()).expand(_shaped(size)).clone()
        return _leaf(out if dtype is None else out.to(as_dtype(dtype)), requires_grad)
    kind = as_dtype(dtype) if dtype is not None else scalar_dtype(fill_value)
    return _leaf(creation.fill(representable(fill_value, kind), _shaped(size), kind), requires_grad)


def representable(value: Any, kind: DType) -> Any:
    """A number as a fill takes it: floats lose their fraction for integer dtypes. DTypeError where it does not fit."""
    if not isinstance(value, (int, float, np.number, np.bool_)):
        raise TypeError(f"expected a number, got {value!r} ({type(value).__name__})\n  at {site()}")
    if kind.kind == "b":
        return bool(value)
    if kind.kind == "f":
        return float(value)
    if not math.isfinite(value):
        raise DTypeError(f"value {value} does not fit {kind.name}\n  at {site()}")
    low, high = limits(kind, isinstance(value, (int, np.integer)))
    if not low <= value <= high:
        stored = ", which is stored in 32 bits on the device" if kind is int64 else ""
        raise DTypeError(f"value {value} does not fit {kind.name}{stored}\n  at {site()}")
    return int(value)


def limits(kind: DType, whole_number: bool) -> tuple[int, int]:
    """The lowest and highest number that an integer dtype accepts; PyTorch lets the int -1 stand for the largest unsigned number."""
    bits = min(kind.bits, 32)
    if kind.kind == "u":
        high = 2**bits - 1
        return -high if whole_number else 0, high
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def zeros(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Zeros. -> [size]."""
    return full(_shaped(size), 0, dtype=dtype or float32, requires_grad=requires_grad)


def ones(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Ones. -> [size]."""
    return full(_shaped(size), 1, dtype=dtype or float32, requires_grad=requires_grad)


def empty(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor whose values do not matter (zeros here). -> [size]."""
    return zeros(*size, dtype=dtype, requires_grad=requires_grad)


# ---- ranges ----


def arange(start: Any, end: Any = None, step: Any = 1, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """start, start + step, ... before end. int64 for integers, else float32. -> [ceil((end - start) / step)]."""
    if end is None:
        start, end = 0, start
    start, end, step = (v.item() if isinstance(v, dispatch.hooks.tensor) else v for v in (start, end, step))
    for v in (start, end, step):
        if not isinstance(v, (int, float, np.number)):
            raise TypeError(f"arange expects numbers, got {v!r} ({type(v).__name__})\n  at {site()}")
    numbers = int64 if all(isinstance(v, (int, np.integer)) for v in (start, end, step)) else float32
    kind = numbers if dtype is None else as_dtype(dtype)
    if not all(math.isfinite(v) for v in (start, end, step)):
        raise ShapeError(f"arange({start}, {end}, {step}) has no end\n  at {site()}")
    if kind is int64:
        start, end, step = int(start), int(end), int(step)  # before anything is counted, as in PyTorch for this dtype
    if step == 0 or (end - start) / step < 0:
        raise ShapeError(f"arange({start}, {end}, {step}): the step must be nonzero and lead from start to end\n  at {site()}")
    count = math.ceil((end - start) / step)
    if kind.kind in "iu":
        start, step = representable(start, kind), representable(step, int64)
        representable(start + step * max(count - 1, 0), kind)
    return _leaf(creation.ramp(start, step, (count,), kind), requires_grad)


def linspace(start: float, end: float, steps: int, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """`steps` values from start to end, both included. -> [steps]."""
    if whole(steps, "steps") < 0:
        raise ShapeError(f"linspace needs steps >= 0, got {steps}\n  at {site()}")
    return tensor(evenly(start, end, steps, as_dtype(dtype or float32)), dtype or float32, requires_grad=requires_grad)


def evenly(start: Any, end: Any, steps: int, kind: DType) -> np.ndarray[Any, Any]:
    """`steps` float64 numbers from start to end; both lose their fractions first for integer dtypes, as in PyTorch. [steps]"""
    start, end = (v.item() if isinstance(v, dispatch.hooks.tensor) else v for v in (start, end))
    if not kind.is_floating_point:
        start, end = int(start), int(end)
    return np.linspace(start, end, steps)


def eye(n: int, m: int | None = None, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Ones on the diagonal. -> [n, m]."""
    m = n if m is None else m
    _shaped((n, m))
    diagonal = arange(n).reshape(n, 1) == arange(m)
    return _leaf(diagonal.to(as_dtype(dtype or float32)), requires_grad)


@composite
def one_hot(input: Tensor, num_classes: int) -> Tensor:
    """int64 ones at the class indices. [*] -> [*, num_classes]."""
    if input.dtype.kind not in "iu":
        raise DTypeError(f"one_hot expects integers, got {input.layout}\n  at {site()}")
    return (input.unsqueeze(-1) == arange(num_classes)).to(int64)  # type: ignore[no-any-return]


def _like(fn: Any) -> Any:
    def make(input: Tensor, *args: Any, dtype: Any = None, requires_grad: bool = False, **kwargs: Any) -> Tensor:
        kwargs.pop("device", None)
        out: Tensor = fn(input.shape, *args, dtype=dtype or input.dtype, **kwargs)
        return _leaf(out, requires_grad)

    make.__name__ = fn.__name__ + "_like"
    make.__doc__ = f"{fn.__name__} with the shape and dtype of input. [*] -> [*]."
    return composite(make)


# ---- random ----


def random_words(elements: int, generator: Any = None) -> Sequence[Any]:
    """The four words (seed, offset) of one draw, taken from the generator at every execution."""
    gen = generator or _random.default_generator

    def words() -> Sequence[Any]:
        return dispatch.current().host_scalars(lambda: gen.reserve(elements), 4)

    frame = dispatch.state.frame
    return words() if frame is None else frame.draw(words)


def _float(dtype: Any) -> DType:
    kind = as_dtype(dtype or float32)
    if not kind.is_floating_point:
        raise DTypeError(f"random numbers need a floating point dtype, not {kind.name}\n  at {site()}")
    return kind


_MANTISSA = {"float16": 10, "bfloat16": 7, "float32": 23}
_LOWEST = {"float16": -24, "bfloat16": -133, "float32": -149}  # exponent of the smallest step


def below(high: float, low: float, kind: DType) -> float:
    """The largest number of a floating point dtype below high, but not below low: rounding must not reach high."""
    if not math.isfinite(high) or high <= low:
        return high
    lowest = _LOWEST[kind.name]
    exponent = max(math.frexp(high)[1] - 1 - _MANTISSA[kind.name], lowest) if high else lowest
    top = math.floor(high / 2.0**exponent) * 2.0**exponent
    if top >= high:
        power = high > 0 and math.frexp(high)[0] == 0.5  # below a power of two the steps are half as wide
        top = high - 2.0 ** max(exponent - power, lowest)
    return max(top, low)


def rand(*size: Any, generator: Any = None, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Uniform numbers in [0, 1). -> [size]."""
    shape, kind = _shaped(size), _float(dtype)
    words = random_words(numel(shape), generator)
    return _leaf(creation.uniform_bits(*words, 0.0, 1.0, below(1.0, 0.0, kind), shape, kind), requires_grad)


def randn(*size: Any, generator: Any = None, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Standard normal numbers. -> [size]."""
    shape = _shaped(size)
    return _leaf(creation.normal_bits(*random_words(numel(shape), generator), 0.0, 1.0, shape, _float(dtype)), requires_grad)


def randint(
    low: int, high: Any = None, size: Any = None, generator: Any = None, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Integers in [low, high), each equally likely to within 2^-32 of the range. -> [size]."""
    if size is None:
        low, high, size = 0, low, high
    first, end = whole(low, "low"), whole(high, "high")
    if end <= first:
        raise ShapeError(f"randint needs low < high, got {low} and {high}\n  at {site()}")
    kind = as_dtype(dtype or int64)
    representable(first, int64), representable(end - 1, int64)
    if kind.kind in "iu":
        representable(first, kind), representable(end - 1, kind)
    shape = _shaped(size if isinstance(size, (tuple, list)) else (size,))
    drawn = creation.integer_bits(*random_words(numel(shape), generator), first, (end - first) & 0xFFFFFFFF, shape)
    return _leaf(drawn if kind is int64 else drawn.to(kind), requires_grad)


zeros_like, ones_like, full_like, rand_like, randn_like, empty_like = (_like(f) for f in (zeros, ones, full, rand, randn, empty))


# ---- in place ----


@composite
def uniform_(input: Tensor, a: float = 0.0, b: float = 1.0, generator: Any = None) -> Tensor:
    """Fill in place with uniform numbers in [a, b). [*] -> [*]."""
    if not a <= b:
        raise ShapeError(f"uniform_ expects a range [a, b) with a <= b, got {a} and {b}\n  at {site()}")
    kind = _float(input.dtype)
    words = random_words(input.numel(), generator)
    dispatch.bind(creation.uniform_bits, (*words, a, b, below(b, a, kind), input.shape, kind), {}, out=input)
    return input


@composite
def normal_(input: Tensor, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> Tensor:
    """Fill in place with normal numbers. [*] -> [*]."""
    if not std >= 0:
        raise ShapeError(f"normal_ expects std >= 0, got {std}\n  at {site()}")
    words = random_words(input.numel(), generator)
    dispatch.bind(creation.normal_bits, (*words, mean, std, input.shape, _float(input.dtype)), {}, out=input)
    return input


@composite
def zero_(input: Tensor) -> Tensor:
    """Fill in place with zeros. [*] -> [*]."""
    dispatch.bind(creation.fill, (0, input.shape, input.dtype), {}, out=input)
    return input


dispatch.hooks.make = tensor
