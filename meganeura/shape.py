"""Shape and stride arithmetic. Pure functions on tuples of ints; strides and offsets count elements."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from .errors import ShapeError

Shape = tuple[int, ...]


def numel(shape: Sequence[int]) -> int:
    """Number of elements of a shape; 1 for ()."""
    n = 1
    for s in shape:
        n *= s
    return n


def contiguous_strides(shape: Sequence[int]) -> Shape:
    """Row-major strides. [2, 3, 4] -> (12, 4, 1)."""
    strides, step = [], 1
    for s in reversed(shape):
        strides.append(step)
        step *= max(s, 1)
    return tuple(reversed(strides))


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements lie in row-major order without gaps (dimensions of size 1 do not matter)."""
    step = 1
    for s, st in zip(reversed(shape), reversed(strides), strict=True):
        if s == 0:
            return True
        if s != 1:
            if st != step:
                return False
            step *= s
    return True


def normalize_dim(dim: int, rank: int, what: str = "dim") -> int:
    """A dimension counted from the front. Raises ShapeError outside [-rank, rank-1] and for what is no int."""
    if not isinstance(dim, int):
        dim = _index(dim, what)
    low, high = (-rank, rank - 1) if rank else (-1, 0)
    if not low <= dim <= high:
        raise ShapeError(f"{what}={dim} is out of range for a tensor of rank {rank}: expected a value in [{low}, {high}]")
    return dim + max(rank, 1) if dim < 0 else dim


def _index(value: object, what: str) -> int:
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ShapeError(f"{what} must be an int, got {value!r}") from None


def normalize_dims(dim: int | Sequence[int] | None, rank: int) -> Shape:
    """Sorted distinct dimensions; None or () mean all."""
    if dim is None:
        return tuple(range(rank))
    dims = list(dim) if isinstance(dim, (tuple, list)) else [dim if isinstance(dim, int) else _index(dim, "dim")]
    if not dims:
        return tuple(range(rank))
    out = [normalize_dim(d, rank) for d in dims]
    if len(set(out)) != len(out):
        raise ShapeError(f"dim={tuple(dims)} names a dimension twice")
    return tuple(sorted(out)) if rank else ()


def broadcast_shapes(*shapes: Shape) -> Shape:
    """The common shape by NumPy's rules. Raises ShapeError naming the shapes and the dimension."""
    rank = max((len(s) for s in shapes), default=0)
    out = [1] * rank
    for s in shapes:
        for i, n in enumerate(s, rank - len(s)):
            if out[i] == n or n == 1:
                continue
            if out[i] != 1:
                raise ShapeError(
                    f"shapes {' and '.join(str(list(x)) for x in shapes)} do not broadcast: sizes {out[i]} and {n} at dimension {i - rank}"
                )
            out[i] = n
    return tuple(out)


def broadcast_strides(shape: Shape, strides: Shape, target: Shape) -> Shape:
    """Strides that read a tensor of `shape` as `target` (0 where it is repeated)."""
    pad = len(target) - len(shape)
    return (0,) * pad + tuple(0 if n == 1 and t != 1 else st for n, st, t in zip(shape, strides, target[pad:], strict=True))


def collapse(shape: Shape, *strides: Shape) -> tuple[Shape, tuple[Shape, ...]]:
    """Merge neighbouring dimensions that every operand walks as one; drop dimensions of size 1.

    Returns the merged shape and one stride tuple an operand; a single element gives ((), ((), ...)).
    """
    dims: list[int] = []
    outs: list[list[int]] = [[] for _ in strides]
    for d, n in enumerate(shape):
        if n == 1:
            continue
        if dims and all(o[-1] == s[d] * n for o, s in zip(outs, strides, strict=True)):
            dims[-1] *= n
            for o, s in zip(outs, strides, strict=True):
                o[-1] = s[d]
        else:
            dims.append(n)
            for o, s in zip(outs, strides, strict=True):
                o.append(s[d])
    return tuple(dims), tuple(tuple(o) for o in outs)


def view_strides(shape: Shape, strides: Shape, target: Shape) -> Shape | None:
    """Strides that show the same elements as `target`, or None if that needs a copy."""
    if numel(shape) == 0:
        return contiguous_strides(target)
    old, (old_strides,) = collapse(shape, strides)
    out = [0] * len(target)
    i = len(old) - 1
    left, step = (old[i], old_strides[i]) if old else (1, 1)
    for d in range(len(target) - 1, -1, -1):
        n = target[d]
        if n == 1:
            out[d] = step
            continue
        if left == 1 and i > 0:
            i -= 1
            left, step = old[i], old_strides[i]
        if left % n:
            return None
        out[d] = step
        step *= n
        left //= n
    return tuple(out)


def extent(shape: Shape, strides: Shape) -> tuple[int, int]:
    """Lowest and highest element offset touched, relative to the first element; (0, -1) for no elements."""
    if numel(shape) == 0:
        return 0, -1
    low = sum(st * (n - 1) for n, st in zip(shape, strides, strict=True) if st < 0)
    high = sum(st * (n - 1) for n, st in zip(shape, strides, strict=True) if st > 0)
    return low, high
