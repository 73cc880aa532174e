"""Pooling as PyTorch has it: max, average, power, adaptive and fractional pooling of 1 to 3 dimensions, and max pooling undone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..dtype import int64
from ..errors import DTypeError, ShapeError
from ..provenance import site
from ..shape import Shape, numel
from . import arithmetic, factory, index, pointwise, reduce, scatter, views
from .creation import fill, ramp
from .factory import whole
from .table import composite
from .windows import Windows, max_windows, mean_windows

if TYPE_CHECKING:
    from ..tensor import Tensor

Sizes = int | Sequence[int]
_WIDE = 4096  # elements a window from which axes are pooled one after another


def _each(value: Sizes, axes: int, what: str, least: int) -> Shape:
    """One number for all axes, or one an axis."""
    sizes = tuple(whole(v, what) for v in value) if isinstance(value, (tuple, list)) else (whole(value, what),)
    if len(sizes) == 1:
        sizes *= axes
    if len(sizes) != axes or min(sizes) < least:
        raise ShapeError(f"{what} must be a number of at least {least}, or {axes} of them, got {value!r}\n  at {site()}")
    return sizes


def _check(input: Tensor, axes: int, what: str, numbers: bool = False) -> None:
    """[N, C, *axes] or [C, *axes], only the batch may be empty."""
    if input.ndim not in (axes + 1, axes + 2) or 0 in input.shape[input.ndim - axes - 1 :]:
        raise ShapeError(
            f"{what} takes [N, C, *] or [C, *] with {axes} dimension{'s' if axes > 1 else ''} in place of *, only N may be 0; got shape "
            f"{list(input.shape)}\n  at {site()}"
        )
    if not input.is_floating_point() and not numbers:
        raise DTypeError(f"{what} takes floating point tensors, got {input.layout}\n  at {site()}")


def _windows(
    input: Tensor, axes: int, kernel_size: Sizes, stride: Any, padding: Sizes, dilation: Sizes, ceil_mode: bool, what: str
) -> tuple[Windows, Shape]:
    """(kernel, stride, padding, dilation) an axis, and the sizes of the result."""
    kernel = _each(kernel_size, axes, f"{what}: kernel_size", 1)
    steps = kernel if stride is None or stride in ((), []) else _each(stride, axes, f"{what}: stride", 1)
    pads, spread = _each(padding, axes, f"{what}: padding", 0), _each(dilation, axes, f"{what}: dilation", 1)
    windows = tuple(zip(kernel, steps, pads, spread, strict=True))
    out = []
    for n, (k, s, p, d) in zip(input.shape[-axes:], windows, strict=True):
        reach = d * (k - 1) + 1
        if p > (reach if what.startswith("max") else k) // 2:
            raise ShapeError(f"{what}: padding {p} is more than half of a window of {k} elements\n  at {site()}")
        room = n + 2 * p - reach
        m = -(-room // s) + 1 if ceil_mode else room // s + 1
        if ceil_mode and (m - 1) * s >= n + p:  # the last window would begin in the padding
            m -= 1
        if m < 1:
            raise ShapeError(f"{what}: no window of {k} elements (dilation {d}, padding {p}) fits {n}\n  at {site()}")
        out.append(m)
    return windows, tuple(out)


def _largest(input: Tensor, windows: Windows, size: Shape) -> tuple[Tensor, Tensor]:
    """max_windows, axis by axis where windows are large."""
    if len(size) == 1 or _taps(input, windows, size) <= _WIDE:
        return max_windows(input, windows, size)  # type: ignore[no-any-return]
    lead, (first, *rest) = input.shape[: input.ndim - len(size)], input.shape[input.ndim - len(size) :]
    flat, inner = _largest(input, windows[1:], size[1:])
    columns = numel(size[1:])
    lines = views.transpose(views.reshape(flat, *lead, first, columns), -1, -2)
    values, outer = max_windows(lines, windows[:1], size[:1])  # [*lead, columns, m]
    outer = views.transpose(outer, -1, -2)
    near = index.gather(views.reshape(inner, numel(lead), first, columns), 1, views.reshape(outer, numel(lead), size[0], columns))
    places = outer * numel(rest) + views.reshape(near, *outer.shape)
    return views.reshape(views.transpose(values, -1, -2), *lead, *size), views.reshape(places, *lead, *size)


def _averaged(input: Tensor, windows: Windows, size: Shape, count: str) -> Tensor:
    """mean_windows, axis by axis where windows are large."""
    if len(size) == 1 or _taps(input, windows, size) <= _WIDE:
        return mean_windows(input, windows, size, count)  # type: ignore[no-any-return]
    flat = _averaged(input, windows[1:], size[1:], count)
    d = input.ndim - len(size)
    lines = views.movedim(flat, d, -1)
    return views.movedim(mean_windows(lines, windows[:1], size[:1], count), -1, d).contiguous()


def _taps(input: Tensor, windows: Windows, size: Shape) -> int:
    sizes = input.shape[input.ndim - len(size) :]
    return numel([min(w[0], n) if w else -(-n // max(m, 1)) + 1 for w, n, m in zip(windows, sizes, size, strict=True)])


# ---- maxima ----


def _max_pool(
    axes: int, input: Tensor, kernel_size: Sizes, stride: Any, padding: Sizes, dilation: Sizes, ceil_mode: bool
) -> tuple[Tensor, Tensor]:
    what = f"max_pool{axes}d"
    _check(input, axes, what, numbers=True)
    windows, size = _windows(input, axes, kernel_size, stride, padding, dilation, ceil_mode, what)
    return _largest(input, windows, size)


def _adaptive_size(input: Tensor, axes: int, output_size: Any, what: str) -> Shape:
    """None keeps an axis as it is."""
    wanted = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size,) * axes
    if len(wanted) == 1:
        wanted *= axes
    if len(wanted) != axes:
        raise ShapeError(f"{what}: output_size must be a number or {axes} of them, got {output_size!r}\n  at {site()}")
    return _each(tuple(n if w is None else w for w, n in zip(wanted, input.shape[-axes:], strict=True)), axes, f"{what}: output_size", 0)


def _adaptive_max_pool(axes: int, input: Tensor, output_size: Any) -> tuple[Tensor, Tensor]:
    what = f"adaptive_max_pool{axes}d"
    _check(input, axes, what)
    size = _adaptive_size(input, axes, output_size, what)
    return _largest(input, ((),) * axes, size)


def _first(pooled: tuple[Tensor, Tensor], both: bool) -> Any:
    return pooled if both else pooled[0]


@composite(method=False)
def max_pool1d(
    input: Tensor, kernel_size: Sizes, stride: Any = None, padding: Sizes = 0, dilation: Sizes = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:  # fmt: skip
    """The largest element of every window, and with return_indices its place. [N, C, L] or [C, L] -> [N, C, L'] or [C, L']."""
    return _first(_max_pool(1, input, kernel_size, stride, padding, dilation, ceil_mode), return_indices)


@composite(method=False)
def max_pool2d(
    input: Tensor, kernel_size: Sizes, stride: Any = None, padding: Sizes = 0, dilation: Sizes = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:  # fmt: skip
    """The largest element of every window, and with return_indices its row-major number in the image.
    [N, C, H, W] or [C, H, W] -> [N, C, H', W'] or [C, H', W']."""
    return _first(_max_pool(2, input, kernel_size, stride, padding, dilation, ceil_mode), return_indices)


@composite(method=False)
def max_pool3d(
    input: Tensor, kernel_size: Sizes, stride: Any = None, padding: Sizes = 0, dilation: Sizes = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:  # fmt: skip
    """The largest element of every window, and with return_indices its row-major number in the volume.
    [N, C, D, H, W] or [C, D, H, W] -> the same with D', H', W'."""
    return _first(_max_pool(3, input, kernel_size, stride, padding, dilation, ceil_mode), return_indices)


@composite(method=False)
def adaptive_max_pool1d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """max_pool1d whose windows divide the input into output_size parts. [N, C, L] or [C, L] -> [N, C, L'] or [C, L']."""
    return _first(_adaptive_max_pool(1, input, output_size), return_indices)


@composite(method=False)
def adaptive_max_pool2d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """max_pool2d whose windows divide the image into output_size parts; None keeps a size. [N, C, H, W] -> [N, C, H', W']."""
    return _first(_adaptive_max_pool(2, input, output_size), return_indices)


@composite(method=False)
def adaptive_max_pool3d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """max_pool3d whose windows divide the volume into output_size parts; None keeps a size. [N, C, D, H, W] -> [N, C, D', H', W']."""
    return _first(_adaptive_max_pool(3, input, output_size), return_indices)


def _with_indices(axes: int) -> None:
    """max_pool*_with_indices and adaptive ones: both results."""

    def pool(
        input: Tensor, kernel_size: Sizes, stride: Any = None, padding: Sizes = 0, dilation: Sizes = 1, ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        return _max_pool(axes, input, kernel_size, stride, padding, dilation, ceil_mode)

    def adaptive(input: Tensor, output_size: Any, return_indices: bool = False) -> tuple[Tensor, Tensor]:
        return _adaptive_max_pool(axes, input, output_size)

    made: tuple[tuple[Callable[..., Any], str], ...] = ((pool, f"max_pool{axes}d"), (adaptive, f"adaptive_max_pool{axes}d"))
    for fn, name in made:
        fn.__name__, fn.__doc__ = f"{name}_with_indices", f"{name} with return_indices."
        composite(method=False)(fn)


for _axes in (1, 2, 3):
    _with_indices(_axes)


# ---- undone ----


def _unpool(axes: int, input: Tensor, indices: Tensor, kernel_size: Sizes, stride: Any, padding: Sizes, output_size: Any) -> Tensor:
    """Elements put back to where max_pool found them, zeros elsewhere."""
    what = f"max_unpool{axes}d"
    _check(input, axes, what)
    if indices.shape != input.shape or indices.dtype is not int64:
        raise ShapeError(f"{what}: indices {indices.layout} do not fit {input.layout}\n  at {site()}")
    kernel = _each(kernel_size, axes, f"{what}: kernel_size", 1)
    steps = kernel if stride is None else _each(stride, axes, f"{what}: stride", 1)
    pads = _each(padding, axes, f"{what}: padding", 0)
    size = tuple((n - 1) * s + k - 2 * p for n, k, s, p in zip(input.shape[-axes:], kernel, steps, pads, strict=True))
    if output_size is not None:
        wanted = tuple(whole(v, f"{what}: output_size") for v in output_size)
        wanted = wanted[2:] if len(wanted) == axes + 2 else wanted
        if len(wanted) != axes or any(not n - s < w < n + s for w, n, s in zip(wanted, size, steps, strict=True)):
            raise ShapeError(f"{what}: output_size {list(output_size)} does not fit, expected about {list(size)}\n  at {site()}")
        size = wanted
    lead = input.shape[:-axes]
    rows, inside = numel(lead), numel(input.shape[-axes:])
    blank = fill(0.0, (rows, numel(size)), input.dtype)
    out = scatter.scatter(blank, 1, views.reshape(indices, rows, inside), views.reshape(input, rows, inside))
    return views.reshape(out, *lead, *size)


@composite(method=False)
def max_unpool1d(
    input: Tensor, indices: Tensor, kernel_size: Sizes, stride: Any = None, padding: Sizes = 0, output_size: Any = None
) -> Tensor:
    """max_pool1d undone: elements where its indices say, zeros elsewhere. [N, C, L'] or [C, L'] -> [N, C, L] or [C, L]."""
    return _unpool(1, input, indices, kernel_size, stride, padding, output_size)


@composite(method=False)
def max_unpool2d(
    input: Tensor, indices: Tensor, kernel_size: Sizes, stride: Any = None, padding: Sizes = 0, output_size: Any = None
) -> Tensor:
    """max_pool2d undone. [N, C, H', W'] or [C, H', W'] -> the same with H, W."""
    return _unpool(2, input, indices, kernel_size, stride, padding, output_size)


@composite(method=False)
def max_unpool3d(
    input: Tensor, indices: Tensor, kernel_size: Sizes, stride: Any = None, padding: Sizes = 0, output_size: Any = None
) -> Tensor:
    """max_pool3d undone. [N, C, D', H', W'] or [C, D', H', W'] -> the same with D, H, W."""
    return _unpool(3, input, indices, kernel_size, stride, padding, output_size)


# ---- means ----


def _avg_pool(
    axes: int, input: Tensor, kernel_size: Sizes, stride: Any, padding: Sizes, ceil_mode: bool, count_include_pad: bool,
    divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    what = f"avg_pool{axes}d"
    _check(input, axes, what)
    windows, size = _windows(input, axes, kernel_size, stride, padding, 1, ceil_mode, what)
    if divisor_override is not None:
        if not divisor_override:
            raise ShapeError(f"{what}: divisor_override must not be zero\n  at {site()}")
        return _averaged(input, windows, size, "") / divisor_override
    return _averaged(input, windows, size, "all" if count_include_pad else "inside")


@composite(method=False)
def avg_pool1d(
    input: Tensor, kernel_size: Sizes, stride: Any = None, padding: Sizes = 0, ceil_mode: bool = False, count_include_pad: bool = True
) -> Tensor:
    """The mean of every window; padding counts as zeros, or not at all. [N, C, L] or [C, L] -> [N, C, L'] or [C, L']."""
    return _avg_pool(1, input, kernel_size, stride, padding, ceil_mode, count_include_pad)


@composite(method=False)
def avg_pool2d(
    input: Tensor, kernel_size: Sizes, stride: Any = None, padding: Sizes = 0, ceil_mode: bool = False, count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """The mean of every window, or its sum over divisor_override. [N, C, H, W] or [C, H, W] -> the same with H', W'."""
    return _avg_pool(2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


@composite(method=False)
def avg_pool3d(
    input: Tensor, kernel_size: Sizes, stride: Any = None, padding: Sizes = 0, ceil_mode: bool = False, count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """The mean of every window, or its sum over divisor_override. [N, C, D, H, W] or [C, D, H, W] -> the same with D', H', W'."""
    return _avg_pool(3, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def _adaptive_avg_pool(axes: int, input: Tensor, output_size: Any) -> Tensor:
    what = f"adaptive_avg_pool{axes}d"
    _check(input, axes, what)
    size = _adaptive_size(input, axes, output_size, what)
    if numel(size) == 1:
        return reduce.mean(input, tuple(range(input.ndim - axes, input.ndim)), True)  # type: ignore[no-any-return]
    return _averaged(input, ((),) * axes, size, "inside")


@composite(method=False)
def adaptive_avg_pool1d(input: Tensor, output_size: Any) -> Tensor:
    """Means of output_size parts of the input. [N, C, L] or [C, L] -> [N, C, L'] or [C, L']."""
    return _adaptive_avg_pool(1, input, output_size)


@composite(method=False)
def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """Means of output_size parts of the image; None keeps a size. [N, C, H, W] or [C, H, W] -> the same with H', W'."""
    return _adaptive_avg_pool(2, input, output_size)


@composite(method=False)
def adaptive_avg_pool3d(input: Tensor, output_size: Any) -> Tensor:
    """Means of output_size parts of the volume; None keeps a size. [N, C, D, H, W] or [C, D, H, W] -> the same with D', H', W'."""
    return _adaptive_avg_pool(3, input, output_size)


# ---- norms of windows ----


def _lp_pool(axes: int, input: Tensor, norm_type: float, kernel_size: Sizes, stride: Any, ceil_mode: bool) -> Tensor:
    """(sum over the window of x^p)^(1/p), as PyTorch: 0 where the sum is negative... times its sign."""
    kernel = _each(kernel_size, axes, f"lp_pool{axes}d: kernel_size", 1)
    mean = _avg_pool(axes, input**norm_type, kernel, stride, 0, ceil_mode, True)
    return ((pointwise.sign(mean) * pointwise.relu(pointwise.abs(mean))) * numel(kernel)) ** (1.0 / norm_type)  # type: ignore[no-any-return]


@composite(method=False)
def lp_pool1d(input: Tensor, norm_type: float, kernel_size: Sizes, stride: Any = None, ceil_mode: bool = False) -> Tensor:
    """The norm_type-norm of every window. [N, C, L] or [C, L] -> [N, C, L'] or [C, L']."""
    return _lp_pool(1, input, norm_type, kernel_size, stride, ceil_mode)


@composite(method=False)
def lp_pool2d(input: Tensor, norm_type: float, kernel_size: Sizes, stride: Any = None, ceil_mode: bool = False) -> Tensor:
    """The norm_type-norm of every window. [N, C, H, W] or [C, H, W] -> the same with H', W'."""
    return _lp_pool(2, input, norm_type, kernel_size, stride, ceil_mode)


@composite(method=False)
def lp_pool3d(input: Tensor, norm_type: float, kernel_size: Sizes, stride: Any = None, ceil_mode: bool = False) -> Tensor:
    """The norm_type-norm of every window. [N, C, D, H, W] or [C, D, H, W] -> the same with D', H', W'."""
    return _lp_pool(3, input, norm_type, kernel_size, stride, ceil_mode)


# ---- fractional ----


def _starts(samples: Tensor, n: int, k: int, m: int) -> Tensor:
    """Where the m windows of k elements in n start, by random numbers in [0, 1). [N, C] -> [N, C, m] int64."""
    last = fill(n - k, (1,), int64)
    if m == 1:
        return views.expand(last, *samples.shape, 1)
    alpha = (n - k) / (m - 1)
    u = views.unsqueeze(samples, -1)
    steps = ramp(0, 1, (m - 1,), int64).to(samples.dtype)
    found = ((steps + u) * alpha).to(int64) - (u * alpha).to(int64)
    return views.cat([found, views.expand(last, *samples.shape, 1)], -1)


def _fractional(
    axes: int, input: Tensor, kernel_size: Sizes, output_size: Any, output_ratio: Any, samples: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Windows of one size at random distances (pseudo-random ones of arXiv:1412.6071)."""
    what = f"fractional_max_pool{axes}d"
    _check(input, axes, what)
    sizes = input.shape[-axes:]
    if (output_size is None) == (output_ratio is None):
        raise ValueError(f"{what} needs either output_size or output_ratio\n  at {site()}")
    if output_size is None:
        ratio = tuple(output_ratio) if isinstance(output_ratio, (tuple, list)) else (output_ratio,) * axes
        output_size = tuple(int(n * r) for n, r in zip(sizes, ratio, strict=True))
    size, kernel = _each(output_size, axes, f"{what}: output_size", 1), _each(kernel_size, axes, f"{what}: kernel_size", 1)
    if any(m + k - 1 > n for m, k, n in zip(size, kernel, sizes, strict=True)):
        raise ShapeError(f"{what}: {list(size)} windows of {list(kernel)} do not fit {list(sizes)}\n  at {site()}")
    x = input if input.ndim == axes + 2 else views.unsqueeze(input, 0)
    n, c = x.shape[:2]
    u = factory.rand(n, c, axes, dtype=input.dtype) if samples is None else samples
    if u.shape != (n, c, axes):
        raise ShapeError(f"{what}: random samples must have shape {[n, c, axes]}, got {list(u.shape)}\n  at {site()}")
    flat: Any = 0
    for a in range(axes):
        # PyTorch's samples are for the last axis first
        start = _starts(u.select(2, a if axes == 3 else axes - 1 - a), sizes[a], kernel[a], size[a])
        near = views.unsqueeze(start, -1) + ramp(0, 1, (kernel[a],), int64)  # [n, c, m, k]
        shape = [n, c] + [1] * (2 * axes)
        shape[2 + a], shape[2 + axes + a] = size[a], kernel[a]
        flat = flat * sizes[a] + views.reshape(near, *shape)
    places = views.reshape(flat, n, c, numel(size), numel(kernel))
    taken = index.gather(views.reshape(x, n * c, -1), 1, views.reshape(places, n * c, -1))
    taken = views.reshape(taken, n, c, numel(size), numel(kernel))
    values, which = arithmetic.max(taken, -1)
    found = index.gather(places, 3, views.unsqueeze(which, -1))
    shape_out = (*input.shape[: input.ndim - axes], *size)
    return views.reshape(values, *shape_out), views.reshape(found, *shape_out)


def _fractionals(axes: int) -> None:
    def pool(
        input: Tensor, kernel_size: Sizes, output_size: Any = None, output_ratio: Any = None, return_indices: bool = False,
        _random_samples: Tensor | None = None,
    ) -> Any:  # fmt: skip
        return _first(_fractional(axes, input, kernel_size, output_size, output_ratio, _random_samples), return_indices)

    pool.__name__ = f"fractional_max_pool{axes}d"
    shapes = {2: "[N, C, H, W] or [C, H, W] -> the same with H', W'", 3: "[N, C, D, H, W] or [C, D, H, W] -> the same with D', H', W'"}
    pool.__doc__ = f"The largest elements of windows at random distances, as many as asked for. {shapes[axes]}. Source: arXiv:1412.6071."
    composite(method=False)(pool)


for _axes in (2, 3):
    _fractionals(_axes)
