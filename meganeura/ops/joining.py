"""Joining and splitting under NumPy's names, grids of coordinates, and tensors brought to a common shape."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import dispatch
from ..errors import DTypeError, ShapeError
from ..provenance import site
from ..shape import broadcast_shapes
from . import factory, index, move, views
from .factory import whole
from .table import composite

if TYPE_CHECKING:
    from ..tensor import Tensor


def tensors_of(tensors: Sequence[Any]) -> list[Tensor]:
    """Tensors given one by one or as one sequence. f(a, b) or f([a, b]) -> [a, b]."""
    if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)):
        tensors = tensors[0]
    for t in tensors:
        if not isinstance(t, dispatch.hooks.tensor):
            raise TypeError(f"expected tensors, got {t!r} ({type(t).__name__})\n  at {site()}")
    return list(tensors)


# ---- ranks ----


def _each(input: tuple[Any, ...], fn: Any) -> Any:
    """fn of one tensor, or a tuple of fn of each of several."""
    if len(input) == 1 and not isinstance(input[0], (tuple, list)):
        return fn(tensors_of(input)[0])
    return tuple(fn(t) for t in tensors_of(input))


def _raised1(t: Tensor) -> Tensor:
    return t if t.ndim else views.reshape(t, 1)


def _raised2(t: Tensor) -> Tensor:
    return t if t.ndim > 1 else views.unsqueeze(_raised1(t), 0)


def _raised3(t: Tensor) -> Tensor:
    return t if t.ndim > 2 else views.unsqueeze(_raised2(t), -1)


@composite(method=False)
def atleast_1d(*tensors: Any) -> Any:
    """0-d tensors as vectors of one element. [] -> [1]."""
    return _each(tensors, _raised1)


@composite(method=False)
def atleast_2d(*tensors: Any) -> Any:
    """Scalars and vectors as one row. [n] -> [1, n]."""
    return _each(tensors, _raised2)


@composite(method=False)
def atleast_3d(*tensors: Any) -> Any:
    """Vectors and matrices as one layer. [n, m] -> [n, m, 1]."""
    return _each(tensors, _raised3)


# ---- joining ----


@composite(method=False)
def concat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """cat. [*, n_i, *]... -> [*, sum n_i, *]."""
    return views.cat(tensors, dim)


@composite(method=False)
def concatenate(tensors: Sequence[Tensor], axis: int = 0, *, dim: int | None = None) -> Tensor:
    """cat. [*, n_i, *]... -> [*, sum n_i, *]."""
    return views.cat(tensors, axis if dim is None else dim)


@composite(method=False)
def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Side by side: along dimension 1, vectors along 0. [n, m_i]... -> [n, sum m_i]."""
    parts = [_raised1(t) for t in tensors_of([tensors])]
    return views.cat(parts, 0 if parts and parts[0].ndim == 1 else 1)


@composite(method=False)
def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """One below the other, vectors as rows. [n_i, m]... -> [sum n_i, m]."""
    return views.cat([_raised2(t) for t in tensors_of([tensors])], 0)


@composite(method=False)
def row_stack(tensors: Sequence[Tensor]) -> Tensor:
    """vstack. [n_i, m]... -> [sum n_i, m]."""
    return vstack(tensors)


@composite(method=False)
def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """Behind each other, along dimension 2. [n, m, k_i]... -> [n, m, sum k_i]."""
    return views.cat([_raised3(t) for t in tensors_of([tensors])], 2)


@composite(method=False)
def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Side by side, vectors as columns. [n]... -> [n, count]."""
    return hstack([views.reshape(t, t.numel(), 1) if t.ndim < 2 else t for t in tensors_of([tensors])])


@composite(method=False)
def block_diag(*tensors: Tensor) -> Tensor:
    """Matrices along the diagonal, zeros elsewhere. [n_i, m_i]... -> [sum n_i, sum m_i]."""
    blocks = [_raised2(t) for t in tensors_of(tensors)] if tensors else [factory.empty(1, 0)]
    if wrong := [b for b in blocks if b.ndim > 2]:
        raise ShapeError(f"block_diag joins matrices, got shape {list(wrong[0].shape)}\n  at {site()}")
    width, at = sum(b.shape[1] for b in blocks), 0
    rows = []
    for b in blocks:
        rows.append(move.pad_constant(b, ((0, 0), (at, width - at - b.shape[1])), 0.0))
        at += b.shape[1]
    return rows[0] if len(rows) == 1 else move.cat_tensors(rows, 0)  # type: ignore[no-any-return]


# ---- splitting ----


@composite
def tensor_split(input: Tensor, indices_or_sections: Any = None, dim: int = 0, *, indices: Any = None, sections: Any = None) -> Any:
    """Views of so many parts of nearly equal size, or of the parts between the given indices. [*, n, *] -> [*, n_i, *]..."""
    given = next((v for v in (indices_or_sections, indices, sections) if v is not None), None)
    d, n = views._sized(input, dim, "tensor_split")
    if isinstance(given, dispatch.hooks.tensor):
        given = given.tolist()  # read on the host: eager only
    if isinstance(given, (tuple, list)):
        cuts = [0, *(whole(i, "an index") for i in given), n]
    else:
        parts = whole(given, "indices_or_sections")
        if parts < 1:
            raise ShapeError(f"tensor_split needs at least one section, got {parts}\n  at {site()}")
        small, larger = divmod(n, parts)
        cuts = [i * small + min(i, larger) for i in range(parts + 1)]
    spans = [range(n)[a:b] for a, b in itertools.pairwise(cuts)]
    out = tuple(views.narrow(input, d, s.start, len(s)) for s in spans)
    for part in out:
        part._view = "multi"
    return out


@composite
def split_with_sizes(input: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """split into parts of the given sizes. [*, n, *] -> [*, n_i, *]..."""
    return views.split(input, list(split_sizes), dim)


@composite
def unsafe_split(input: Tensor, split_size: int, dim: int = 0) -> tuple[Tensor, ...]:
    """split. [*, n, *] -> [*, n_i, *]..."""
    return views.split(input, split_size, dim)


@composite
def unsafe_chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """chunk. [*, n, *] -> [*, n_i, *]..."""
    return views.chunk(input, chunks, dim)


def _split_along(input: Tensor, indices_or_sections: Any, dim: int, what: str) -> Any:
    if isinstance(indices_or_sections, int) and indices_or_sections > 0 and input.shape[dim] % indices_or_sections:
        raise ShapeError(
            f"{what}: dimension {dim} of shape {list(input.shape)} does not split into {indices_or_sections} equal parts\n  at {site()}"
        )
    return tensor_split(input, indices_or_sections, dim)


@composite
def hsplit(input: Tensor, indices_or_sections: Any) -> Any:
    """Parts side by side: along dimension 1, of vectors along 0. [n, m] -> [n, m_i]..."""
    if not input.ndim:
        raise ShapeError(f"hsplit of a 0-d tensor\n  at {site()}")
    return _split_along(input, indices_or_sections, 0 if input.ndim == 1 else 1, "hsplit")


@composite
def vsplit(input: Tensor, indices_or_sections: Any) -> Any:
    """Parts along dimension 0. [n, m] -> [n_i, m]..."""
    if input.ndim < 2:
        raise ShapeError(f"vsplit needs at least 2 dimensions, got shape {list(input.shape)}\n  at {site()}")
    return _split_along(input, indices_or_sections, 0, "vsplit")


@composite
def dsplit(input: Tensor, indices_or_sections: Any) -> Any:
    """Parts along dimension 2. [n, m, k] -> [n, m, k_i]..."""
    if input.ndim < 3:
        raise ShapeError(f"dsplit needs at least 3 dimensions, got shape {list(input.shape)}\n  at {site()}")
    return _split_along(input, indices_or_sections, 2, "dsplit")


# ---- grids ----


@composite(method=False)
def broadcast_tensors(*tensors: Any) -> tuple[Tensor, ...]:
    """All expanded to their common shape. [*]... -> [*]..."""
    parts = tensors_of(tensors)
    shape = views.located(broadcast_shapes, *(t.shape for t in parts))
    return tuple(views.expand(t, *shape) for t in parts)


@composite(method=False)
def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Coordinates of every point of a grid; indexing 'xy' has the second vector's dimension first. [n_i]... -> [n_0, n_1, ...]..."""
    parts = tensors_of(tensors)
    if not parts or indexing not in ("ij", "xy"):
        raise ShapeError(f"meshgrid needs tensors and an indexing of 'ij' or 'xy', got {len(parts)} and {indexing!r}\n  at {site()}")
    if wrong := [t for t in parts if t.ndim > 1]:
        raise ShapeError(f"meshgrid takes vectors, got shape {list(wrong[0].shape)}\n  at {site()}")
    if any(t.dtype is not parts[0].dtype for t in parts):
        raise DTypeError(f"meshgrid takes tensors of one dtype, got {', '.join(t.dtype.name for t in parts)}\n  at {site()}")
    swapped = indexing == "xy" and len(parts) > 1
    if swapped:
        parts[0], parts[1] = parts[1], parts[0]
    sizes = [t.numel() for t in parts]
    grids = [views.expand(views.reshape(t, *(t.numel() if e == d else 1 for e in range(len(parts)))), *sizes) for d, t in enumerate(parts)]
    if swapped:
        grids[0], grids[1] = grids[1], grids[0]
    return tuple(grids)


@composite(method=False)
def cartesian_prod(*tensors: Any) -> Tensor:
    """Every choice of one element of each, the last changing fastest. [n_i]... -> [product of n_i, count]."""
    parts = tensors_of(tensors)
    if wrong := [t for t in parts if t.ndim != 1]:
        raise ShapeError(f"cartesian_prod takes vectors, got shape {list(wrong[0].shape)}\n  at {site()}")
    if len(parts) == 1:
        return parts[0]
    rows = views.stack(meshgrid(*parts), -1)
    return views.reshape(rows, rows.numel() // len(parts), len(parts))


@composite
def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """Every choice of r elements in order. [n] -> [count, r]."""
    if input.ndim != 1 or whole(r, "r") < 0:
        raise ShapeError(f"combinations takes a vector and r >= 0, got shape {list(input.shape)} and {r}\n  at {site()}")
    if r == 0:
        return factory.empty(0, dtype=input.dtype)
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    chosen = np.array(list(choose(range(input.shape[0]), r)), np.int64).reshape(-1, r)
    picked = index.index_select(input, 0, factory.tensor(chosen.reshape(-1)))
    return views.reshape(picked, *chosen.shape)
