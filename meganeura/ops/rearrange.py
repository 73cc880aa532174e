"""The same elements in another order: flips, rolls, repeats, sliding windows. Windows are views; the rest copies."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import dispatch
from ..dtype import int64
from ..errors import ShapeError
from ..provenance import site
from ..shape import Shape, normalize_dim, numel
from ..storage import Layout
from . import factory, index, move, pointwise, views
from .archetype import View
from .creation import fill, ramp
from .factory import sizes_of, whole
from .scan import cumsum
from .sorting import searchsorted
from .table import composite, op

if TYPE_CHECKING:
    from ..tensor import Tensor


def _reversed(input: Layout, dims: Shape) -> Layout:
    strides, offset = list(input.strides), input.offset
    for d in dims:
        offset += strides[d] * max(input.shape[d] - 1, 0)
        strides[d] = -strides[d]
    return input.with_(shape=input.shape, strides=tuple(strides), offset=offset)


@op(
    View(),
    layout=_reversed,
    ref=lambda input, dims: np.flip(input, dims),
    grad={"input": lambda grad, dims: reversed_view(grad, dims).clone()},
    public=False,
)
def reversed_view(input: Tensor, dims: Shape) -> Tensor:
    """Read backwards along dims, through negative strides: for ops that copy at once. [*] -> [*]."""


@composite
def flip(input: Tensor, *dims: Any) -> Tensor:
    """Elements in reverse order along dims; a copy. [*] -> [*]."""
    names = [views.located(normalize_dim, d, input.ndim) for d in sizes_of(dims)]
    if len(set(names)) != len(names):
        raise ShapeError(f"flip dims {names} name a dimension twice\n  at {site()}")
    return reversed_view(input, tuple(names) if input.ndim else ()).clone()  # type: ignore[no-any-return]


@composite
def fliplr(input: Tensor) -> Tensor:
    """Columns in reverse order. [n, m, *] -> same."""
    return flip(_at_least(input, 2, "fliplr"), 1)


@composite
def flipud(input: Tensor) -> Tensor:
    """Rows in reverse order. [n, *] -> same."""
    return flip(_at_least(input, 1, "flipud"), 0)


def _at_least(input: Tensor, rank: int, what: str) -> Tensor:
    if input.ndim < rank:
        raise ShapeError(f"{what} needs at least {rank} dimensions, got shape {list(input.shape)}\n  at {site()}")
    return input


@composite
def rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """Turned by k quarter turns from the first of dims towards the second. [*, n, *, m, *] -> [*, m, *, n, *] for odd k."""
    _at_least(input, 2, "rot90")
    pair = [views.located(normalize_dim, d, input.ndim) for d in dims]
    if len(pair) != 2 or pair[0] == pair[1]:
        raise ShapeError(f"rot90 turns in two different dimensions, got {list(dims)}\n  at {site()}")
    turns = whole(k, "k") % 4
    if turns == 0:
        return input.clone()  # type: ignore[no-any-return]
    if turns == 2:
        return flip(input, *pair)
    return views.transpose(flip(input, pair[1 if turns == 1 else 0]), *pair)


@composite
def roll(input: Tensor, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Tensor:
    """Elements moved along dims by shifts, those that leave at the end coming in at the front; flattened without dims. [*] -> [*]."""
    steps = sizes_of((shifts,))
    names = () if dims is None else sizes_of((dims,))
    if not steps:
        raise ShapeError(f"roll needs at least one shift\n  at {site()}")
    if not names and len(steps) == 1:
        return views.reshape(roll(views.reshape(input, -1 if input.numel() else 0), steps[0], 0), *input.shape)
    if len(names) != len(steps):
        raise ShapeError(f"roll got {len(steps)} shifts for {len(names)} dims\n  at {site()}")
    if not input.ndim:
        raise ShapeError(f"roll of a 0-d tensor along dims {list(names)}\n  at {site()}")
    out = input
    for step, name in zip(steps, names, strict=True):
        d = views.located(normalize_dim, name, input.ndim)
        n = input.shape[d]
        at = step % n if n else 0
        if at:
            out = move.cat_tensors([move.slice_dim(out, d, n - at, at, 1), move.slice_dim(out, d, 0, n - at, 1)], d)
    return out.clone() if out is input else out


@composite
def tile(input: Tensor, *dims: Any) -> Tensor:
    """Copies side by side: repeat(dims), with leading ones where dims are fewer than dimensions. [*] -> [* times dims]."""
    reps = sizes_of(dims)
    return views.repeat(input, *(1,) * (input.ndim - len(reps)), *reps)


@composite
def repeat_interleave(input: Tensor, repeats: Any = None, dim: int | None = None, *, output_size: int | None = None) -> Tensor:
    """Each element repeated: a times, or as often as `repeats` [n] says. [*, n, *] -> [*, m, *]. Without output_size
    such counts are read on the host: eager only. repeat_interleave(repeats) alone gives the indices."""
    if repeats is None:
        return _counted(input, input.numel(), output_size)
    x = views.reshape(input, -1 if input.numel() else 0) if dim is None else input
    d = views.located(normalize_dim, 0 if dim is None else dim, x.ndim)
    if not x.ndim:
        x = views.reshape(x, 1)
    if isinstance(repeats, dispatch.hooks.tensor):
        if repeats.numel() != 1 or x.shape[d] == 1:
            return index.index_select(x, d, _counted(repeats, x.shape[d], output_size))  # type: ignore[no-any-return]
        repeats = repeats.item()
    times = whole(repeats, "repeats")
    if times < 0:
        raise ShapeError(f"repeats must not be negative, got {times}\n  at {site()}")
    _check_total(times * x.shape[d], output_size)
    wide = views.unsqueeze(x, d + 1)
    wide = views.expand(wide, *x.shape[: d + 1], times, *x.shape[d + 1 :])
    return views.reshape(wide.clone(), *x.shape[:d], x.shape[d] * times, *x.shape[d + 1 :])


def _counted(repeats: Tensor, size: int, output_size: int | None) -> Tensor:
    """The index i as often as repeats[i] says. [n] -> [sum]."""
    move.check_dtype(repeats, "repeats")
    if repeats.ndim > 1 or repeats.numel() != size:
        raise ShapeError(f"repeats of shape {list(repeats.shape)} do not fit a dimension of size {size}\n  at {site()}")
    if output_size is not None:  # nothing has to be read; a wrong size is found as an index that is out of range, if at all
        return searchsorted(cumsum(views.reshape(repeats, size), 0), factory.arange(output_size), right=True)
    counts = repeats.detach().numpy().reshape(-1)
    if (counts < 0).any():
        raise ShapeError(f"repeats must not be negative, got {counts.min()}\n  at {site()}")
    return factory.tensor(np.repeat(np.arange(size), counts), int64)


def _check_total(total: int, output_size: int | None) -> None:
    if output_size is not None and output_size != total:
        raise ShapeError(f"repeats add up to {total}, not to output_size={output_size}\n  at {site()}")


@composite
def moveaxis(input: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """movedim. [*] -> [*]."""
    return views.movedim(input, source, destination)


@composite
def swapaxes(input: Tensor, axis0: int, axis1: int) -> Tensor:
    """transpose. [*] -> [*]."""
    return views.transpose(input, axis0, axis1)


@composite
def swapdims(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """transpose. [*] -> [*]."""
    return views.transpose(input, dim0, dim1)


@composite
def ravel(input: Tensor) -> Tensor:
    """All elements in a row: a view where the strides allow. [*] -> [n]."""
    return views.reshape(input, input.numel())


@composite
def reshape_as(input: Tensor, other: Tensor) -> Tensor:
    """reshape(other.shape)."""
    return views.reshape(input, *other.shape)


@composite
def clone(input: Tensor, *, memory_format: Any = None) -> Tensor:
    """A copy; always row-major, whatever memory_format says. [*] -> [*]."""
    return pointwise.clone(input)  # type: ignore[no-any-return]


@composite
def adjoint(input: Tensor) -> Tensor:
    """The last two dimensions swapped (numbers here are real). [*, n, m] -> [*, m, n]."""
    return views.transpose(_at_least(input, 2, "adjoint"), -2, -1)


@composite
def narrow_copy(input: Tensor, dim: int, start: int, length: int) -> Tensor:
    """A copy of narrow. [*, n, *] -> [*, length, *]."""
    return pointwise.clone(views.narrow(input, dim, start, length))  # type: ignore[no-any-return]


@composite
def unravel_index(indices: Tensor, shape: Any) -> tuple[Tensor, ...]:
    """The coordinates of places in the flattened shape. [*] -> [*]..."""
    move.check_dtype(indices, "indices")
    sizes = sizes_of((shape if isinstance(shape, (tuple, list)) else (shape,),))
    out, rest = [], indices
    for n in reversed(sizes):
        out.append(rest % n)
        rest = rest // n
    return tuple(reversed(out))


# ---- channels and pixels ----


@composite(method=False)
def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """Channels of all groups in turn: [g0c0, g0c1, g1c0, g1c1] -> [g0c0, g1c0, g0c1, g1c1]. [N, C, *] -> same."""
    channels = _at_least(input, 3, "channel_shuffle").shape[1]
    if whole(groups, "groups") < 1 or channels % groups:
        raise ShapeError(f"channel_shuffle: {channels} channels do not split into {groups} groups\n  at {site()}")
    x = views.reshape(input, input.shape[0], groups, channels // groups, *input.shape[2:])
    return views.reshape(views.transpose(x, 1, 2), *input.shape)


@composite(method=False)
def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """Channels become r x r pixels. [*, C * r * r, H, W] -> [*, C, H * r, W * r]. Source: arXiv:1609.05158."""
    r = whole(upscale_factor, "upscale_factor")
    *batch, c, h, w = _at_least(input, 3, "pixel_shuffle").shape
    if r < 1 or c % (r * r):
        raise ShapeError(f"pixel_shuffle: {c} channels do not split into squares of {r} x {r} pixels\n  at {site()}")
    x = views.reshape(input, *batch, c // (r * r), r, r, h, w)
    b = len(batch)
    x = views.permute(x, *range(b), b, b + 3, b + 1, b + 4, b + 2)
    return views.reshape(x, *batch, c // (r * r), h * r, w * r)


@composite(method=False)
def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """r x r pixels become channels. [*, C, H * r, W * r] -> [*, C * r * r, H, W]."""
    r = whole(downscale_factor, "downscale_factor")
    *batch, c, h, w = _at_least(input, 3, "pixel_unshuffle").shape
    if r < 1 or h % r or w % r:
        raise ShapeError(f"pixel_unshuffle: {h} x {w} pixels do not split into squares of {r} x {r}\n  at {site()}")
    x = views.reshape(input, *batch, c, h // r, r, w // r, r)
    b = len(batch)
    x = views.permute(x, *range(b), b, b + 2, b + 4, b + 1, b + 3)
    return views.reshape(x, *batch, c * r * r, h // r, w // r)


# ---- sliding windows ----


def _windows(input: Layout, dimension: int, size: int, step: int) -> Layout:
    d, stride = dimension, input.strides[dimension]
    count = (input.shape[d] - size) // step + 1
    return input.with_(
        shape=(*input.shape[:d], count, *input.shape[d + 1 :], size),
        strides=(*input.strides[:d], stride * step, *input.strides[d + 1 :], stride),
    )


MOST_PASSES = 16  # of windows that overlap, each pass adding those that do not; more are summed by index


def unwindow(grad: Any, input_meta: Layout, dimension: int, size: int, step: int) -> Any:
    """Sum of what each element was read into."""
    d, shape = dimension, input_meta.shape
    count = grad.shape[d]
    passes = min(-(-size // step), count) if size else 0
    if passes > MOST_PASSES:
        return _unwindow_by_index(grad, input_meta, d, size, step)
    whole_ = Layout(input_meta.dtype, shape)
    out = fill(0, shape, grad.dtype)
    for r in range(passes):
        part = move.slice_dim(grad, d, r, -(-(count - r) // passes), passes)
        stride = whole_.strides[d]
        strides = (*whole_.strides[:d], stride * step * passes, *whole_.strides[d + 1 :], stride)
        out.as_strided(part.shape, strides, r * step * stride).add_(part)
    return out


def _unwindow_by_index(grad: Any, input_meta: Layout, d: int, size: int, step: int) -> Any:
    shape = input_meta.shape
    rows = grad.movedim((d, -1), (0, 1))  # [count, size, rest]
    count, rest = grad.shape[d], tuple(rows.shape[2:])
    at = (ramp(0, step, (count,), int64).unsqueeze(1) + ramp(0, 1, (size,), int64)).reshape(-1)
    summed = index.segment_sum(rows.reshape(count * size, numel(rest)), at, shape[d])
    return summed.reshape(shape[d], *rest).movedim(0, d)


@op(
    View(),
    layout=_windows,
    ref=lambda input, dimension, size, step: np.lib.stride_tricks.sliding_window_view(input, size, dimension).take(
        range(0, np.shape(input)[dimension] - size + 1, step), dimension
    ),
    grad={"input": unwindow},
    public=False,
)
def windows(input: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Every step-th window of `size` elements. [*, n, *] -> [*, count, *, size]."""


@composite
def unfold(input: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """A view of all windows of `size` elements along a dimension, `step` apart. [*, n, *] -> [*, (n - size) // step + 1, *, size]."""
    d = views.located(normalize_dim, dimension, input.ndim)
    size, step = whole(size, "size"), whole(step, "step")
    n = input.shape[d] if input.ndim else 1
    if not 0 <= size <= n or step <= 0:
        raise ShapeError(
            f"unfold(size={size}, step={step}) does not fit dimension {d} of size {n} (shape {list(input.shape)})\n  at {site()}"
        )
    if not input.ndim:
        return views.narrow(views.view(input, 1), 0, 0, builtins.min(size, 1))
    return windows(input, d, size, step)  # type: ignore[no-any-return]
