"""Triangles and diagonals of matrices. Diagonals are views where PyTorch's are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import dispatch
from ..dtype import dtype as as_dtype
from ..dtype import int64
from ..errors import ShapeError
from ..provenance import site
from ..shape import normalize_dim
from ..storage import Layout
from . import factory, move, reduce, views
from .archetype import Pointwise, View
from .arithmetic import fill_
from .creation import fill
from .factory import whole
from .rearrange import _at_least
from .table import IntScalar, Sample, UIntScalar, composite, op

if TYPE_CHECKING:
    from ..tensor import Tensor

_COLUMN = "i32({index} % {columns})"
_ROW = "i32({index} / {columns} % {rows})"
_KEPT = f"{_COLUMN} - {_ROW} >= {{low}} && {_COLUMN} - {_ROW} <= {{high}}"
_FAR = 1 << 30  # further from the diagonal than any element


def _band_ref(input: Any, rows: int, columns: int, low: int, high: int) -> Any:
    a = np.asarray(input)
    shape = (*a.shape[:-2], int(rows), int(columns))
    away = np.arange(shape[-1]) - np.arange(shape[-2])[:, None]
    return np.where((away >= low) & (away <= high), a, np.zeros((), a.dtype))


@op(
    Pointwise(
        {
            "f": f"select(0.0, {{input}}, {_KEPT})",
            "i": f"select(0, {{input}}, {_KEPT})",
            "u": f"select(0u, {{input}}, {_KEPT})",
            "b": f"{{input}} && {_KEPT}",
        }
    ),
    ref=_band_ref,
    grad={"input": lambda grad, rows, columns, low, high: band(grad, rows, columns, low, high)},
    public=False,
    torch=None,
    samples=lambda: [
        Sample.of(np.random.default_rng(0).standard_normal(shape).astype(np.float32), *shape[-2:], low, high)
        for shape in ((3, 5), (4, 4), (2, 7, 3), (0, 3))
        for low, high in ((-_FAR, 0), (1, _FAR), (-1, 2))
    ],
)
def band(input: Tensor, rows: UIntScalar, columns: UIntScalar, low: IntScalar, high: IntScalar) -> Tensor:
    """Zero but where low <= column - row <= high. [*, rows, columns] -> same."""


def _band(input: Tensor, low: int, high: int, what: str, out: Tensor | None = None) -> Tensor:
    if input.ndim < 2:
        raise ShapeError(f"{what} needs at least 2 dimensions, got shape {list(input.shape)}\n  at {site()}")
    low, high = (max(-_FAR, min(_FAR, whole(v, "diagonal"))) for v in (low, high))
    values = (input, max(input.shape[-2], 1), max(input.shape[-1], 1), low, high)
    return dispatch.bind(band, values, {}, out=out)  # type: ignore[no-any-return]


@composite
def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """Zero above a diagonal. [*, n, m] -> same."""
    return _band(input, -_FAR, diagonal, "tril")


@composite
def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """Zero below a diagonal. [*, n, m] -> same."""
    return _band(input, diagonal, _FAR, "triu")


@composite
def tril_(input: Tensor, diagonal: int = 0) -> Tensor:
    """tril in place. [*, n, m] -> same."""
    return _band(input, -_FAR, diagonal, "tril_", input)


@composite
def triu_(input: Tensor, diagonal: int = 0) -> Tensor:
    """triu in place. [*, n, m] -> same."""
    return _band(input, diagonal, _FAR, "triu_", input)


def _places(found: Any, row: int, col: int, dtype: Any) -> Tensor:
    if whole(row, "row") < 0 or whole(col, "col") < 0:
        raise ShapeError(f"a matrix of {row} rows and {col} columns does not exist\n  at {site()}")
    return factory.tensor(np.stack(found(row)).astype(np.int64).reshape(2, -1), as_dtype(dtype or int64))


@composite(method=False)
def tril_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Rows and columns of the elements on and below a diagonal. -> [2, count]."""
    return _places(lambda n: np.tril_indices(n, offset, col), row, col, dtype)


@composite(method=False)
def triu_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Rows and columns of the elements on and above a diagonal. -> [2, count]."""
    return _places(lambda n: np.triu_indices(n, offset, col), row, col, dtype)


# ---- diagonals ----


def _diagonal(input: Layout, offset: int, dim1: int, dim2: int) -> Layout:
    rest = [d for d in range(len(input.shape)) if d not in (dim1, dim2)]
    n, m = input.shape[dim1], input.shape[dim2]
    size = max(min(n, m - offset) if offset >= 0 else min(n + offset, m), 0)
    first = input.strides[dim2] * offset if offset >= 0 else -offset * input.strides[dim1]
    return input.with_(
        shape=(*(input.shape[d] for d in rest), size),
        strides=(*(input.strides[d] for d in rest), input.strides[dim1] + input.strides[dim2]),
        offset=input.offset + (first if size else 0),
    )


def _undiagonal(grad: Any, input_meta: Layout, offset: int, dim1: int, dim2: int) -> Any:
    full = Layout(input_meta.dtype, input_meta.shape)
    part = _diagonal(full, offset, dim1, dim2)
    return move.embed(grad, full.shape, part.strides, part.offset)


@op(
    View(),
    layout=_diagonal,
    ref=lambda input, offset, dim1, dim2: np.diagonal(input, offset, dim1, dim2),
    grad={"input": _undiagonal},
    public=False,
)
def diagonal_view(input: Tensor, offset: int, dim1: int, dim2: int) -> Tensor:
    """A diagonal of two dimensions, as the last one. [*, n, m] -> [*, k]."""


def _pair(rank: int, dim1: int, dim2: int, what: str) -> tuple[int, int]:
    a, b = (views.located(normalize_dim, d, rank) for d in (dim1, dim2))
    if a == b or rank < 2:
        raise ShapeError(f"{what} needs two different dimensions, got {dim1} and {dim2} of {rank}\n  at {site()}")
    return a, b


@composite
def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A view of a diagonal of two dimensions, `offset` above the main one. [*, n, m] -> [*, k]."""
    a, b = _pair(input.ndim, dim1, dim2, "diagonal")
    return diagonal_view(input, whole(offset, "offset"), a, b)  # type: ignore[no-any-return]


@composite
def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Zeros with the last dimension on a diagonal of two new ones. [*, n] -> [*, n + |offset|, n + |offset|]."""
    if not input.ndim:
        raise ShapeError(f"diag_embed of a 0-d tensor\n  at {site()}")
    a, b = _pair(input.ndim + 1, dim1, dim2, "diag_embed")
    n = input.shape[-1] + abs(whole(offset, "offset"))
    sizes = list(input.shape[:-1])
    for d in sorted((a, b)):
        sizes.insert(d, n)
    out: Tensor = fill(0, tuple(sizes), input.dtype)
    diagonal(out, offset, a, b).copy_(input)
    return out


@composite
def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """The matrix with a vector on a diagonal, or a copy of a matrix's diagonal. [n] -> [n, n] or [n, m] -> [k]."""
    if input.ndim not in (1, 2):
        raise ShapeError(f"diag takes a vector or a matrix, got shape {list(input.shape)}\n  at {site()}")
    if input.ndim == 1:
        return diag_embed(input, diagonal)
    return diagonal_view(input, whole(diagonal, "diagonal"), 0, 1).clone()  # type: ignore[no-any-return]


@composite
def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """The matrix with all elements on a diagonal. [*] -> [n, n]."""
    return diag_embed(views.reshape(input, input.numel()), offset)


@composite
def trace(input: Tensor) -> Tensor:
    """Sum of the diagonal of a matrix. [n, m] -> []."""
    if input.ndim != 2:
        raise ShapeError(f"trace takes a matrix, got shape {list(input.shape)}\n  at {site()}")
    return reduce.sum(diagonal_view(input, 0, 0, 1))  # type: ignore[no-any-return]


@composite
def fill_diagonal_(input: Tensor, fill_value: Any, wrap: bool = False) -> Tensor:
    """One value on the main diagonal, in place; wrap starts again below a tall matrix. [n, m] -> same."""
    _at_least(input, 2, "fill_diagonal_")
    if input.ndim > 2 and len(set(input.shape)) != 1:
        raise ShapeError(f"fill_diagonal_ needs equal sizes beyond 2 dimensions, got shape {list(input.shape)}\n  at {site()}")
    step = sum(input.layout.strides)
    size = min(input.shape)
    fill_(move.strided(input, (size,), (step,), input.storage_offset()), fill_value)
    n, m = input.shape[:2]
    if wrap and input.ndim == 2 and n > m + 1 and m:
        fill_diagonal_(views.narrow(input, 0, m + 1, n - m - 1), fill_value, True)
    return input
