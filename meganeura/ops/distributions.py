"""Random tensors of many distributions, all from uniform and normal Philox draws, and dropout of whole channels.

A draw depends on the generator and on each element's row-major place only: eager, compiled and reference runs agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import dispatch
from ..dtype import DType, float32, int64
from ..dtype import dtype as as_dtype
from ..errors import DTypeError, ShapeError
from ..provenance import site
from ..shape import broadcast_shapes, numel
from . import arithmetic, creation, factory, pointwise, reduce, views
from .factory import below, random_words, whole
from .scan import cumsum
from .sorting import searchsorted, sort_order, topk
from .table import composite

if TYPE_CHECKING:
    from ..tensor import Tensor


def _uniform(shape: Any, generator: Any, low: float = 0.0, high: float = 1.0) -> Tensor:
    """float32 numbers in [low, high). -> [shape]."""
    words = random_words(numel(shape), generator)
    return creation.uniform_bits(*words, low, high, below(high, low, float32), tuple(shape), float32)  # type: ignore[no-any-return]


def _positive(shape: Any, generator: Any) -> Tensor:
    """float32 numbers in (0, 1], of 24 bits: for logarithms. -> [shape]."""
    return 1.0 - _uniform(shape, generator)


def _floating(input: Tensor, what: str) -> None:
    if not input.dtype.is_floating_point:
        raise DTypeError(f"{what} fills floating point tensors, got {input.layout}\n  at {site()}")


def _require(good: bool, message: Callable[[], str]) -> None:
    if not good:
        raise ShapeError(f"{message()}\n  at {site()}")


# ---- in place ----


@composite
def exponential_(input: Tensor, lambd: float = 1.0, *, generator: Any = None) -> Tensor:
    """Fill in place with exponential numbers of rate lambd. [*] -> [*]."""
    _floating(input, "exponential_")
    _require(lambd > 0, lambda: f"exponential_ expects lambd > 0, got {lambd}")
    return arithmetic.copy_(input, _positive(input.shape, generator).log() * (-1.0 / lambd))


@composite
def geometric_(input: Tensor, p: float, *, generator: Any = None) -> Tensor:
    """Fill in place with the number of trials up to the first success of probability p. [*] -> [*]."""
    _require(0 < p < 1, lambda: f"geometric_ expects 0 < p < 1, got {p}")
    if input.dtype.kind == "b":
        raise DTypeError(f"geometric_ fills numbers, got {input.layout}\n  at {site()}")
    trials = (_positive(input.shape, generator).log() * (1.0 / math.log1p(-p))).ceil().clamp(min=1.0)
    return arithmetic.copy_(input, trials)


@composite
def cauchy_(input: Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: Any = None) -> Tensor:
    """Fill in place with Cauchy numbers. [*] -> [*]."""
    _floating(input, "cauchy_")
    _require(sigma > 0, lambda: f"cauchy_ expects sigma > 0, got {sigma}")
    angle = (_uniform(input.shape, generator) - 0.5) * math.pi
    return arithmetic.copy_(input, pointwise.sin(angle) / pointwise.cos(angle) * sigma + median)


@composite
def log_normal_(input: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: Any = None) -> Tensor:
    """Fill in place with exp of normal numbers. [*] -> [*]."""
    _floating(input, "log_normal_")
    _require(std > 0, lambda: f"log_normal_ expects std > 0, got {std}")
    words = random_words(input.numel(), generator)
    return arithmetic.copy_(input, creation.normal_bits(*words, mean, std, input.shape, float32).exp())


_EXACT = {"float16": 2**11, "bfloat16": 2**8, "float32": 2**24}  # up to which every whole number is representable


@composite
def random_(input: Tensor, from_: int = 0, to: int | None = None, *, generator: Any = None, **kwargs: Any) -> Tensor:
    """Fill in place with whole numbers in [from, to); random_(to) starts at 0, random_() takes all that the dtype holds from 0.
    [*] -> [*]."""
    low = whole(kwargs.pop("from", from_), "from")
    if kwargs:
        raise TypeError(f"random_() got an unexpected argument {sorted(kwargs)[0]!r}\n  at {site()}")
    whole_range = to is None and low == 0
    if to is None:
        low, high = 0, low if low else _beyond(input.dtype)
    else:
        high = whole(to, "to")
    _require(low < high, lambda: f"random_ expects from < to, got {low} and {high}")
    if not whole_range:
        for value in (low, high - 1):
            _in_range(value, input.dtype)
    drawn = creation.integer_bits(*random_words(input.numel(), generator), low, (high - low) & 0xFFFFFFFF, input.shape)
    return arithmetic.copy_(input, drawn)


def _beyond(kind: DType) -> int:
    if kind.kind == "f":
        return _EXACT[kind.name] + 1
    return 2 if kind.kind == "b" else min(factory.limits(kind, False)[1], 2**31 - 1) + 1


def _in_range(value: int, kind: DType) -> None:
    if kind.kind in "iu":
        factory.representable(value, kind)
    elif kind.kind == "b":
        _require(0 <= value <= 1, lambda: f"value {value} does not fit bool")


@composite
def bernoulli_(input: Tensor, p: Any = 0.5, *, generator: Any = None) -> Tensor:
    """Fill in place with 1 with probability p (a number or a tensor that broadcasts), else 0. [*] -> [*]."""
    if not isinstance(p, dispatch.hooks.tensor):
        _require(0 <= p <= 1, lambda: f"bernoulli_ expects 0 <= p <= 1, got {p}")
    elif not p.dtype.is_floating_point:
        raise DTypeError(f"bernoulli_ expects floating point probabilities, got {p.layout}\n  at {site()}")
    return arithmetic.copy_(input, _uniform(input.shape, generator) < p)


# ---- new tensors ----


@composite
def bernoulli(input: Tensor, p: float | None = None, *, generator: Any = None) -> Tensor:
    """1 with the probability given by each element (or p everywhere), else 0. [*] -> [*]."""
    if p is None and not input.dtype.is_floating_point:
        raise DTypeError(f"bernoulli expects floating point probabilities, got {input.layout}\n  at {site()}")
    if p is not None:
        _require(0 <= p <= 1, lambda: f"bernoulli expects 0 <= p <= 1, got {p}")
    chance: Any = input.detach().float() if p is None else p
    return (_uniform(input.shape, generator) < chance).to(input.dtype)  # type: ignore[no-any-return]


@composite(method=False)
def normal(mean: Any = 0.0, std: Any = 1.0, size: Any = None, *, generator: Any = None, dtype: Any = None, device: Any = None) -> Tensor:
    """Normal numbers; mean and std are numbers (with a size) or tensors that broadcast. -> [*]."""
    kind = dispatch.hooks.tensor
    if not isinstance(std, kind):
        _require(std >= 0, lambda: f"normal expects std >= 0, got {std}")
    given = [t for t in (mean, std) if isinstance(t, kind)]
    if not given:
        _require(size is not None, lambda: "normal of two numbers needs a size")
        plain: Tensor = factory.randn(size, generator=generator, dtype=dtype) * std + mean
        return plain
    for t in given:
        _floating(t, "normal")
    shape = views.located(broadcast_shapes, *(t.shape for t in given))
    drawn = factory.randn(shape, generator=generator, dtype=given[0].dtype)
    out: Tensor = drawn * _detached(std) + _detached(mean)
    return out


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, dispatch.hooks.tensor) else value


@composite
def randint_like(input: Tensor, low: int, high: int | None = None, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """randint of this shape and dtype. [*] -> [*]."""
    first, end = (0, low) if high is None else (low, high)
    return factory.randint(first, end, input.shape, dtype=dtype or input.dtype, requires_grad=requires_grad)


@composite(method=False)
def randperm(n: int, *, generator: Any = None, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """The numbers 0 ... n - 1 in random order: the order of n random words. -> [n]."""
    count, kind = whole(n, "n"), as_dtype(dtype or int64)
    _require(count >= 0, lambda: f"randperm expects n >= 0, got {n}")
    if kind.kind in "iu" and count:
        factory.representable(count - 1, kind)
    if kind.kind == "b":
        raise DTypeError(f"randperm gives numbers, not bools\n  at {site()}")
    words = creation.integer_bits(*random_words(count, generator), -(2**31), 0, (count,))
    order = sort_order(words, False)
    return factory._leaf(order if kind is int64 else order.to(kind), requires_grad)


MOST_CATEGORIES = 1 << 24


@composite
def multinomial(input: Tensor, num_samples: int, replacement: bool = False, *, generator: Any = None) -> Tensor:
    """Indices drawn with probabilities in proportion to the elements of each row. [*, n] -> [*, num_samples] int64.

    A race: the category whose exponential waiting time over its weight is shortest wins, the next is second. Weights are not
    looked at: negative ones and rows of zeros give meaningless indices where PyTorch raises.
    """
    if input.ndim not in (1, 2) or not input.dtype.is_floating_point:
        raise DTypeError(f"multinomial takes floating point weights of 1 or 2 dimensions, got {input.layout}\n  at {site()}")
    count, n = whole(num_samples, "num_samples"), input.shape[-1]
    _require(count > 0 and n > 0, lambda: f"multinomial: {count} samples of {n} categories")
    _require(n <= MOST_CATEGORIES, lambda: f"multinomial: {n} categories are more than 2^24")
    _require(replacement or count <= n, lambda: f"multinomial: {count} samples of {n} categories without replacement")
    weights = input.detach().float()
    if replacement and count > 1 and input.numel() * count > MOST_RACED:
        return _searched(weights, count, generator)
    if replacement or count == 1:
        scores = views.unsqueeze(weights, -2) / _waiting((*input.shape[:-1], count, n), generator)
        return reduce.argmax(scores, -1)  # type: ignore[no-any-return]
    found: Tensor = topk(weights / _waiting(input.shape, generator), count, -1).indices
    return found


MOST_RACED = 1 << 22  # elements of a race with replacement; beyond, samples are searched in the cumulative weights


def _waiting(shape: Any, generator: Any) -> Tensor:
    """Exponential waiting times, above 0. -> [shape]."""
    return -_positive(shape, generator).log().clamp(max=-1e-30)  # type: ignore[no-any-return]


def _searched(weights: Tensor, count: int, generator: Any) -> Tensor:
    """Places where uniform numbers fall among the cumulative weights. [*, n] -> [*, count]."""
    sums = cumsum(weights, -1)
    total = views.narrow(sums, -1, weights.shape[-1] - 1, 1) * (1.0 - 2.0**-22)  # no product may round up to the whole
    at = _uniform((*weights.shape[:-1], count), generator) * total
    found: Tensor = searchsorted(sums, at, right=True)
    return found


# ---- dropout ----


def _probability(p: float) -> None:
    _require(0.0 <= p <= 1.0, lambda: f"dropout probability must lie in [0, 1], got {p}")


def _finish(input: Tensor, out: Tensor, inplace: bool) -> Tensor:
    return arithmetic.copy_(input, out) if inplace and out is not input else out


def _scaled_mask(input: Tensor, shape: Any, p: float) -> Tensor:
    """1 / (1 - p) with probability 1 - p, else 0, spread over the input. -> [shape]."""
    if p == 1.0:
        return factory.zeros(shape, dtype=input.dtype)
    keep = _uniform(shape, None) >= p
    return keep.to(input.dtype) * (1.0 / (1.0 - p))


@composite(method=False)
def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zero each element with probability p while training, scale the rest by 1 / (1 - p). [*] -> [*]."""
    _probability(p)
    if not training or p == 0.0:
        return input
    if p == 1.0:
        return _finish(input, input * 0.0, inplace)
    out = creation.drop(input, *random_words(input.numel(), None), p, 1.0 / (1.0 - p))
    return _finish(input, out, inplace)


@composite(method=False)
def feature_dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """dropout of whole channels. [N, C, *] -> same."""
    _probability(p)
    if not training or p == 0.0 or not input.numel():
        return input
    _require(input.ndim >= 2, lambda: f"feature dropout needs at least 2 dimensions, got shape {list(input.shape)}")
    shape = (*input.shape[:2], *(1,) * (input.ndim - 2))
    return _finish(input, input * _scaled_mask(input, shape, p), inplace)


def _unbatched(input: Tensor, p: float, training: bool, inplace: bool, ranks: tuple[int, int], what: str) -> Tensor:
    """Channel dropout of [N, C, *], or of [C, *] as a batch of one."""
    _probability(p)
    _require(input.ndim in ranks, lambda: f"{what} takes {ranks[0]} or {ranks[1]} dimensions, got shape {list(input.shape)}")
    if input.ndim == ranks[1]:
        return feature_dropout(input, p, training, inplace)
    out = feature_dropout(views.unsqueeze(input, 0), p, training)
    return _finish(input, views.squeeze(out, 0), inplace)


@composite(method=False)
def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """dropout of whole channels. [N, C, L] or [C, L] -> same."""
    return _unbatched(input, p, training, inplace, (2, 3), "dropout1d")


@composite(method=False)
def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """dropout of whole channels; [N, C, L] is taken as batch and channels, as in PyTorch. [N, C, H, W] -> same."""
    return feature_dropout(input, p, training, inplace)


@composite(method=False)
def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """dropout of whole channels. [N, C, D, H, W] or [C, D, H, W] -> same."""
    return _unbatched(input, p, training, inplace, (4, 5), "dropout3d")


ALPHA = -1.7580993408473766  # SELU's value far to the left


def _alpha(input: Tensor, shape: Any, p: float) -> Tensor:
    """Dropped elements become ALPHA, then mean and variance are put back. Source: arXiv:1706.02515."""
    if p == 1.0:
        return input * 0.0
    a = 1.0 / math.sqrt((1.0 - p) * (1.0 + p * ALPHA * ALPHA))
    keep = _uniform(shape, None) >= p
    return pointwise.where(keep, input, ALPHA) * a + (-a * ALPHA * p)  # type: ignore[no-any-return]


@composite(method=False)
def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """dropout that keeps mean 0 and variance 1, for SELU networks. [*] -> [*]."""
    _probability(p)
    if not training or p == 0.0:
        return input
    return _finish(input, _alpha(input, input.shape, p), inplace)


@composite(method=False)
def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """alpha_dropout of whole channels. [N, C, *] -> same."""
    _probability(p)
    if not training or p == 0.0 or not input.numel():
        return input
    _require(input.ndim >= 2, lambda: f"feature dropout needs at least 2 dimensions, got shape {list(input.shape)}")
    return _finish(input, _alpha(input, (*input.shape[:2], *(1,) * (input.ndim - 2)), p), inplace)
