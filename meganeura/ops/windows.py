"""Rows over windows of the last one to three dimensions: maxima, means, and their gradients, which gather.

`windows` has (kernel, stride, padding, dilation) for every axis, or () for a division of the axis into `size` parts that may overlap
(adaptive pooling). `size` is the result's size, axis by axis. Numbers of elements are row-major within the axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..dtype import int64
from ..shape import Shape, numel
from ..storage import Layout
from . import index as indexing
from .archetype import Kernel
from .table import Inferred, Sample, Spec, op

if TYPE_CHECKING:
    from ..tensor import Tensor

Window = tuple[int, ...]
Windows = tuple[Window, ...]


def _reached(window: Window, n: int, size: int) -> tuple[Any, Any]:
    """The source elements of every result along one axis [size, taps] and which of them exist."""
    o = np.arange(size)[:, None]
    if window:
        k, s, p, d = window
        at = o * s - p + np.arange(k) * d
        return np.clip(at, 0, n - 1), (at >= 0) & (at < n)
    low, high = o * n // size, -(-(o + 1) * n // size)
    at = low + np.arange(np.max(high - low, initial=1))
    return np.clip(at, 0, n - 1), at < high


def _counts(window: Window, n: int, size: int, count: str) -> Any:
    """What an axis contributes to the divisor of every result."""
    o = np.arange(size)
    if not window:
        return -(-(o + 1) * n // size) - o * n // size
    start = o * window[1] - window[2]
    if count == "all":
        return np.minimum(start + window[0], n + window[2]) - start
    return np.minimum(start + window[0], n) - np.maximum(start, 0)


def _divisor(windows: Windows, sizes: Sequence[int], size: Shape, count: str) -> Any:
    out: Any = np.ones(())
    for a, (w, n, m) in enumerate(zip(windows, sizes, size, strict=True)):
        c = _counts(w, n, m, count) if count else np.ones(m)
        out = out * c.reshape((m,) + (1,) * (len(size) - a - 1))
    return out


def _boxes(windows: Windows, sizes: Sequence[int], size: Shape) -> tuple[Any, Any]:
    """Row-major numbers of the elements of every window [*size, taps], and which exist."""
    axes = len(size)
    flat: Any = 0
    found: Any = True
    for a, (w, n, m) in enumerate(zip(windows, sizes, size, strict=True)):
        at, some = _reached(w, n, m)
        shape = [1] * (2 * axes)
        shape[a], shape[axes + a] = at.shape
        flat = flat * n + at.reshape(shape)
        found = found & some.reshape(shape)
    flat, found = np.broadcast_arrays(flat, found)
    return flat.reshape(*size, -1), found.reshape(*size, -1)


def _flat(x: Any, axes: int) -> tuple[Any, Shape]:
    """[*, axes] -> [*, elements], and the axes."""
    sizes = x.shape[x.ndim - axes :]
    return x.reshape(*x.shape[: x.ndim - axes], numel(sizes)), sizes


def _max_ref(input: Any, windows: Windows, size: Shape) -> Any:
    x, sizes = _flat(input, len(size))
    flat, found = _boxes(windows, sizes, size)
    taken = x[..., flat]
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    values = np.where(found, taken, lowest)
    nans = np.isnan(values)
    last_nan = flat.shape[-1] - 1 - np.argmax(nans[..., ::-1], -1)
    same = np.where(found, values == np.max(np.where(nans, lowest, values), -1, keepdims=True), False)
    tap = np.where(np.any(nans, -1), last_nan, np.argmax(same, -1))[..., None]
    places = np.take_along_axis(np.broadcast_to(flat, values.shape), tap, -1)[..., 0]
    return np.take_along_axis(values, tap, -1)[..., 0], places


def _routed_ref(grad: Any, index: Any, windows: Windows, size: Shape) -> Any:
    axes = len(size)
    g, places = _flat(grad, axes)[0], _flat(index, axes)[0]
    out = np.zeros((numel(g.shape[:-1]), numel(size)), grad.dtype)
    both = (len(out), g.shape[-1])
    np.add.at(out, (np.arange(len(out))[:, None], places.reshape(both)), g.reshape(both))
    return out.reshape(*g.shape[:-1], *size)


def _mean_ref(input: Any, windows: Windows, size: Shape, count: str) -> Any:
    x, sizes = _flat(input, len(size))
    flat, found = _boxes(windows, sizes, size)
    return np.sum(np.where(found, x[..., flat], 0), -1) / _divisor(windows, sizes, size, count)


def _spread_ref(grad: Any, windows: Windows, size: Shape, count: str) -> Any:
    axes = len(size)
    sizes = grad.shape[grad.ndim - axes :]
    flat, found = _boxes(windows, size, sizes)
    g = grad / _divisor(windows, size, sizes, count)
    lead = g.shape[: g.ndim - axes]
    values = np.where(found, g[..., None], 0).reshape(numel(lead), flat.size)
    out = np.zeros((numel(lead), numel(size)), grad.dtype)
    np.add.at(out, (np.arange(len(out))[:, None], flat.reshape(1, -1)), values)
    return out.reshape(*lead, *size)


def _rule(*dtypes: Any) -> Callable[..., Inferred]:
    """Outputs of the first input's dtype (None) or of those given, with `size` as the last dimensions."""

    def rule(**args: Any) -> Inferred:
        tensors = [v for v in args.values() if isinstance(v, Layout)]
        x, size = tensors[0], tuple(args["size"])
        shape = (*x.shape[: len(x.shape) - len(size)], *size)
        return Inferred(tuple(Spec(d or x.dtype, shape) for d in dtypes), tuple(t.dtype for t in tensors), {})

    return rule


def _f32(*shape: int) -> Any:
    return np.random.default_rng(6).permutation(np.linspace(-2, 2, numel(shape))).reshape(shape).astype(np.float32)


# (input shape, windows, size): every number differs from its neighbours
_CASES: tuple[tuple[Shape, Windows, Shape], ...] = (
    ((2, 3, 5, 7), ((3, 2, 1, 1), (2, 1, 0, 1)), (3, 6)),
    ((2, 11), ((3, 2, 1, 1),), (6,)),
    ((1, 2, 4, 5, 6), ((2, 2, 1, 1), (3, 1, 1, 1), (2, 3, 0, 1)), (3, 5, 2)),
    ((2, 7, 5), ((), ()), (3, 4)),
    ((3, 9), ((2, 3, 0, 1),), (3,)),
    ((0, 5, 5), ((2, 2, 0, 1), (2, 2, 0, 1)), (2, 2)),
)
_DILATED = (((2, 8, 9), ((2, 2, 1, 3), (3, 1, 2, 2)), (4, 9)),)


def _max_samples() -> list[Sample]:
    return [Sample.of(_f32(*shape), windows, size) for shape, windows, size in _CASES + _DILATED]


def _routed_samples() -> list[Sample]:
    out = []
    for shape, windows, size in _CASES + _DILATED:
        places = _max_ref(_f32(*shape), windows, size)[1]
        out.append(Sample.of(_f32(*places.shape), places, windows, shape[len(shape) - len(size) :]))
    return out


def _mean_samples() -> list[Sample]:
    return [Sample.of(_f32(*s), w, m, count) for s, w, m in _CASES for count in (("inside",) if not w[0] else ("all", "inside", ""))]


def _spread_samples() -> list[Sample]:
    return [
        Sample.of(_f32(*s[: len(s) - len(m)], *m), w, s[len(s) - len(m) :], count)
        for s, w, m in _CASES
        for count in (("inside",) if not w[0] else ("all", "inside", ""))
    ]


def _picked(grad: Any, index: Any, size: Shape) -> Any:
    """The elements of [*, axes] at row-major numbers [*, size]."""
    axes = len(size)
    lead = tuple(grad.shape[: grad.ndim - axes])
    flat = grad.reshape((numel(lead), numel(grad.shape[grad.ndim - axes :])))
    out = indexing.gather(flat, 1, index.reshape((numel(lead), numel(index.shape[index.ndim - axes :]))))
    return out.reshape(index.shape)


def _inner(layout: Any, size: Shape) -> Shape:
    return tuple(layout.shape[len(layout.shape) - len(size) :])


@op(
    Kernel("window", {"kind": "max", "reach": "strided"}),
    rule=_rule(None, int64),
    ref=_max_ref,
    grad={
        "input": lambda grad, result1, windows, size, input_meta: max_windows_grad(grad, result1, windows, _inner(input_meta, size)),
    },
    differentiable=(True, False),
    samples=_max_samples,
    public=False,
    torch=None,
    shown="max_pool",
)
def max_windows(input: Tensor, windows: Windows, size: Shape) -> Tensor:
    """The largest element of every window and its number; the first of equals, and the last NaN if there is one.
    [*, axes] -> [*, size], [*, size] int64."""


@op(
    Kernel("window", {"kind": "routed", "reach": "spread", "back": "yes"}),
    rule=_rule(None),
    ref=_routed_ref,
    grad={"grad": lambda grad, places, size: _picked(grad, places, size)},
    samples=_routed_samples,
    public=False,
    torch=None,
)
def max_windows_grad(grad: Tensor, places: Tensor, windows: Windows, size: Shape) -> Tensor:
    """Backward of max_windows: each element sums over the windows whose largest it was. [*, axes], [*, axes] int64 -> [*, size]."""


@op(
    Kernel("window", {"kind": "sum", "reach": "strided"}),
    rule=_rule(None),
    ref=_mean_ref,
    grad={"input": lambda grad, windows, size, count, input_meta: mean_windows_grad(grad, windows, _inner(input_meta, size), count)},
    samples=_mean_samples,
    public=False,
    torch=None,
    shown="avg_pool",
)
def mean_windows(input: Tensor, windows: Windows, size: Shape, count: str) -> Tensor:
    """The sum of every window, divided by the elements of the window with its padding ('all'), by those in the input ('inside'), or not
    ('').  [*, axes] -> [*, size]."""


@op(
    Kernel("window", {"kind": "sum", "reach": "spread", "back": "yes"}),
    rule=_rule(None),
    ref=_spread_ref,
    grad={"grad": lambda grad, windows, size, count, grad_meta: mean_windows(grad, windows, _inner(grad_meta, size), count)},
    samples=_spread_samples,
    public=False,
    torch=None,
)
def mean_windows_grad(grad: Tensor, windows: Windows, size: Shape, count: str) -> Tensor:
    """Backward of mean_windows: each element sums over the windows it is in. [*, axes] -> [*, size]."""
