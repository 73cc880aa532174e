"""LU factors and what follows from them; Householder reflections; factorisations that report instead of raising.

Factors come from numpy on the host, in float64 (see host.py); products of reflections are ops and may be compiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import dispatch
from ..dtype import int32
from ..errors import LinAlgError, ShapeError, UnsupportedError
from ..provenance import site
from ..shape import numel
from . import pointwise, views
from .factory import eye
from .host import host_row
from .linalg import _cholesky, _inverse, _mm, _real, _solve_triangular, _square, _t, solve, solve_triangular
from .table import composite
from .triangular import tril, triu

if TYPE_CHECKING:
    from ..tensor import Tensor


class LUFactors(NamedTuple):
    """L and U in one matrix, and the row that each row was swapped with, counted from 1."""

    LU: Tensor
    pivots: Tensor


class LUFactorsInfo(NamedTuple):
    """LUFactors, and the first zero pivot, counted from 1 (0 if there is none)."""

    LU: Tensor
    pivots: Tensor
    info: Tensor


class PLU(NamedTuple):
    """A = P @ L @ U."""

    P: Tensor
    L: Tensor
    U: Tensor


class Checked(NamedTuple):
    """A result, and 0 where it is right."""

    result: Tensor
    info: Tensor


class CheckedInverse(NamedTuple):
    """An inverse, and 0 where it is right."""

    inverse: Tensor
    info: Tensor


class CheckedFactor(NamedTuple):
    """A Cholesky factor, and 0 where it is right."""

    L: Tensor
    info: Tensor


class Solution(NamedTuple):
    """What triangular_solve returns."""

    solution: Tensor
    cloned_coefficient: Tensor


class Reflections(NamedTuple):
    """R above vectors of Householder reflections, and their scales."""

    a: Tensor
    tau: Tensor


# ---- LU ----


def _eliminated(a: Any) -> tuple[Any, Any, Any]:
    """LU with the largest pivot of each column, pivots from 1, the first zero pivot. [b, n, m]"""
    lu = np.array(a)
    batch, n, m = lu.shape
    k, every = min(n, m), np.arange(batch)
    pivots, info = np.zeros((batch, k), np.int64), np.zeros(batch, np.int64)
    for i in range(k):
        at = i + np.abs(lu[:, i:, i]).argmax(-1)
        pivots[:, i] = at + 1
        swapped = lu[every, at].copy()
        lu[every, at] = lu[:, i]
        lu[:, i] = swapped
        pivot = lu[:, i, i]
        info = np.where((pivot == 0) & (info == 0), i + 1, info)
        lu[:, i + 1 :, i] /= np.where(pivot == 0, 1.0, pivot)[:, None]
        lu[:, i + 1 :, i + 1 :] -= lu[:, i + 1 :, i, None] * lu[:, i, None, i + 1 :]
    return lu, pivots, info


def _matrix_of(pivots: Any, n: int) -> Any:
    """The permutation of pivots. [b, k] -> [b, n, n]"""
    rows = np.tile(np.arange(n), (len(pivots), 1))
    every = np.arange(len(pivots))
    for i, at in enumerate(pivots.astype(np.int64).T - 1):
        rows[every, at], rows[every, i] = rows[every, i].copy(), rows[every, at].copy()
    return np.swapaxes(np.eye(n)[rows], -1, -2)


def _lu_grad(grads: Any, results: Any) -> Any:
    """Of the packed factors; for matrices that are not square the part beyond the square comes along."""
    g, lu, order = grads[1], results[1], results[0]
    if g is None:
        return None
    n, m = lu.shape[-2:]
    k = min(n, m)
    square = lu.narrow(-2, 0, k).narrow(-1, 0, k)
    lower, upper = tril(square, -1) + eye(k), triu(square)
    gs = g.narrow(-2, 0, k).narrow(-1, 0, k)
    below, above = _mm(_t(lower), tril(gs, -1)), _mm(triu(gs), _t(upper))
    parts = []
    if m > n:
        gu2 = g.narrow(-1, k, m - k)
        below = below - _mm(gu2, _t(lu.narrow(-1, k, m - k)))
        parts.append(_solve_triangular(_t(lower), gu2, True, True))
    if n > m:
        gl2 = g.narrow(-2, k, n - k)
        above = above - _mm(_t(lu.narrow(-2, k, n - k)), gl2)
        parts.append(_t(_solve_triangular(upper, _t(gl2), True, False)))
    inner = _solve_triangular(_t(lower), tril(below, -1) + triu(above), True, True)
    inner = _t(_solve_triangular(upper, _t(inner), True, False))
    return _mm(order, views.cat([inner, *parts], -1 if m > n else -2) if parts else inner)


@host_row({"input": _lu_grad}, differentiable=(False, True, False, False))
def _factored(input: Tensor) -> Any:
    """P, packed LU, pivots, info. [*, n, m] -> [*, n, n], [*, n, m], [*, k], [*]."""
    *batch, n, m = input.shape
    lu, pivots, info = _eliminated(input.reshape(numel(batch), n, m))
    order = _matrix_of(pivots, n)
    return order.reshape(*batch, n, n), lu.reshape(input.shape), pivots.reshape(*batch, min(n, m)), info.reshape(batch)


@host_row({}, differentiable=(False,))
def _permutation(input: Tensor, pivots: Tensor) -> Any:
    """The permutation matrix of pivots, in input's dtype. [*, n, m], [*, k] -> [*, n, n]."""
    n = input.shape[-2]
    return _matrix_of(pivots.reshape(numel(pivots.shape[:-1]), pivots.shape[-1]), n).reshape(*pivots.shape[:-1], n, n)


def _pivoted(pivot: bool, what: str) -> None:
    if not pivot:
        raise UnsupportedError(f"{what} without pivoting does not exist here: it fails for matrices that have factors\n  at {site()}")


def _refuse(info: Tensor, what: str) -> None:
    if bool((info != 0).any().item()):
        raise LinAlgError(f"{what}: a factor has a zero on its diagonal or the matrix is not positive definite\n  at {site()}")


def lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> LUFactorsInfo:
    """Packed LU, pivots and the first zero pivot. [*, n, m] -> [*, n, m], [*, k] int32, [*] int32."""
    _pivoted(pivot, "lu_factor")
    _, lu, pivots, info = _factored(_real(A, "lu_factor"))
    if check_errors:
        _refuse(info, "lu_factor")
    return LUFactorsInfo(lu, pivots.to(int32), info.to(int32))


def lu_factor(A: Tensor, *, pivot: bool = True) -> LUFactors:
    """Packed LU and pivots; LinAlgError if U has a zero on its diagonal. [*, n, m] -> [*, n, m], [*, k] int32."""
    return LUFactors(*lu_factor_ex(A, pivot=pivot, check_errors=True)[:2])


@composite
def lu(A: Tensor, pivot: bool = True, get_infos: bool = False) -> LUFactors | LUFactorsInfo:
    """linalg.lu_factor, or lu_factor_ex with get_infos; on the host. [*, n, m] -> [*, n, m], [*, k] int32."""
    found = lu_factor_ex(A, pivot=pivot)
    return found if get_infos else LUFactors(found.LU, found.pivots)


def _triangles(packed: Tensor) -> tuple[Tensor, Tensor]:
    n, m = packed.shape[-2:]
    k = min(n, m)
    return tril(views.narrow(packed, -1, 0, k), -1) + eye(n, k, packed.dtype), triu(views.narrow(packed, -2, 0, k))


def linalg_lu(A: Tensor, *, pivot: bool = True) -> PLU:
    """A = P @ L @ U. [*, n, m] -> [*, n, n], [*, n, k], [*, k, m]."""
    _pivoted(pivot, "lu")
    order, packed, _, _ = _factored(_real(A, "lu"))
    return PLU(order, *_triangles(packed))


@composite(method=False)
def lu_unpack(LU_data: Tensor, LU_pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True) -> PLU:
    """P, L and U of packed factors; empty ones where not asked for. [*, n, m], [*, k] -> [*, n, n], [*, n, k], [*, k, m]."""
    _fitting(LU_data, LU_pivots, "lu_unpack")
    none = LU_data.new_zeros(0)
    lower, upper = _triangles(LU_data) if unpack_data else (none, none)
    return PLU(_permutation(LU_data, LU_pivots) if unpack_pivots else none, lower, upper)


def _fitting(packed: Tensor, pivots: Tensor, what: str) -> None:
    _real(packed, what)
    if pivots.dtype.kind not in "iu" or pivots.shape != (*packed.shape[:-2], min(packed.shape[-2:])):
        raise ShapeError(f"{what}: pivots {pivots.layout} do not fit factors {packed.layout}\n  at {site()}")


def linalg_lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    """X with A @ X = B (A^T for adjoint, X @ A = B for left=False) from A's factors. [*, n, n], [*, n], [*, n, k] -> as B."""
    _square(LU, "lu_solve")
    _fitting(LU, pivots, "lu_solve")
    _real(B, "lu_solve")
    if not left:
        return _t(linalg_lu_solve(LU, pivots, _t(B), adjoint=not adjoint))  # type: ignore[no-any-return]
    if B.shape[-2] != LU.shape[-1]:
        raise ShapeError(f"lu_solve: factors of shape {list(LU.shape)} do not fit B of shape {list(B.shape)}\n  at {site()}")
    order = _permutation(LU, pivots)
    if adjoint:
        inner = solve_triangular(_t(LU), B, upper=False)
        return _mm(order, solve_triangular(_t(LU), inner, upper=True, unitriangular=True))  # type: ignore[no-any-return]
    inner = solve_triangular(LU, _mm(_t(order), B), upper=False, unitriangular=True)
    return solve_triangular(LU, inner, upper=True)


@composite
def lu_solve(b: Tensor, LU_data: Tensor, LU_pivots: Tensor) -> Tensor:
    """X with A @ X = b from A's factors, on the host. [*, n, k], [*, n, n], [*, n] -> [*, n, k]."""
    return linalg_lu_solve(LU_data, LU_pivots, b)


@composite
def triangular_solve(b: Tensor, A: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False) -> Solution:
    """linalg.solve_triangular and a copy of A, on the host. [*, n, k], [*, n, n] -> [*, n, k], [*, n, n]."""
    _square(A, "triangular_solve")
    matrix, side = (_t(A), not upper) if transpose else (A, upper)
    return Solution(solve_triangular(matrix, b, upper=side, unitriangular=unitriangular), A.clone())


# ---- results that say whether they are right ----


def inv_ex(A: Tensor, *, check_errors: bool = False) -> CheckedInverse:
    """Inverse (NaN for singular matrices) and info. [*, n, n] -> [*, n, n], [*] int32."""
    with dispatch.no_grad():
        info = _factored(_square(A, "inv_ex"))[3]
    if check_errors:
        _refuse(info, "inv")
    return CheckedInverse(_where_right(info, A, _inverse), info.to(int32))


def solve_ex(A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False) -> Checked:
    """solve (NaN for singular matrices) and info. [*, n, n], [*, n, k] or [*, n] -> as B, [*] int32."""
    with dispatch.no_grad():
        info = _factored(_square(A, "solve_ex"))[3]
    if check_errors:
        _refuse(info, "solve")
    good = pointwise.where(_column(info == 0), A, eye(A.shape[-1]))
    out = solve(good, B, left=left)
    right = views.view(info == 0, *info.shape, *(1,) * (out.ndim - info.ndim)) if out.ndim > info.ndim else info == 0
    return Checked(out.masked_fill(pointwise.logical_not(right), float("nan")), info.to(int32))


@host_row({})
def _minors(input: Tensor) -> Any:
    """The first leading minor that is not positive, counted from 1. [*, n, n] -> [*] int64."""
    n = input.shape[-1]
    flat: Any = (np.tril(input) + np.swapaxes(np.tril(input, -1), -1, -2)).reshape(numel(input.shape[:-2]), n, n)
    found = np.zeros(len(flat), np.int64)
    for i, a in enumerate(flat):
        rest = a.copy()
        for k in range(n):
            if not rest[k, k] > 0:
                found[i] = k + 1
                break
            rest[k + 1 :, k + 1 :] -= np.outer(rest[k + 1 :, k], rest[k, k + 1 :]) / rest[k, k]
    return found.reshape(input.shape[:-2])


def cholesky_ex(A: Tensor, *, upper: bool = False, check_errors: bool = False) -> CheckedFactor:
    """Cholesky factor (NaN unless positive definite) and the first minor that is not positive. [*, n, n] -> [*, n, n], [*] int32."""
    _square(A, "cholesky_ex")
    matrix = _t(A) if upper else A
    with dispatch.no_grad():
        info = _minors(matrix)
    if check_errors:
        _refuse(info, "cholesky")
    factor = _where_right(info, matrix, _cholesky)
    return CheckedFactor(_t(factor) if upper else factor, info.to(int32))


def _column(flags: Tensor) -> Tensor:
    return views.unsqueeze(views.unsqueeze(flags, -1), -1)


def _where_right(info: Tensor, A: Tensor, row: Any) -> Tensor:
    """row(A) where info is 0, NaN elsewhere."""
    right = _column(info == 0)
    return row(pointwise.where(right, A, eye(A.shape[-1]))).masked_fill(pointwise.logical_not(right), float("nan"))  # type: ignore[no-any-return]


# ---- reflections ----


@host_row({})
def _reflected(input: Tensor) -> Any:
    """R and the vectors of reflections, as LAPACK packs them. [*, n, m] -> [*, n, m], [*, k]."""
    *batch, n, m = input.shape
    flat = input.reshape(numel(batch), n, m)
    packed, scales = np.zeros(flat.shape), np.zeros((len(flat), min(n, m)))
    for i, a in enumerate(flat):
        if a.size:
            turned, scales[i] = np.linalg.qr(a, "raw")
            packed[i] = turned.T
    return packed.reshape(input.shape), scales.reshape(*batch, min(n, m))


@composite
def geqrf(input: Tensor) -> Reflections:
    """R above the vectors of reflections whose product is Q, and their scales; on the host. [*, n, m] -> [*, n, m], [*, k]."""
    return Reflections(*_reflected(_real(input, "geqrf")))


def _vectors(input: Tensor, tau: Tensor, what: str) -> list[tuple[Tensor, Tensor]]:
    """(scale [*, 1, 1], vector [*, n, 1]) of each reflection."""
    _real(input, what)
    n, m = input.shape[-2:]
    if not tau.ndim or tau.shape[:-1] != input.shape[:-2] or not tau.shape[-1] <= m or (what != "ormqr" and m > n):
        raise ShapeError(f"{what}: scales {tau.layout} do not fit reflections {input.layout}\n  at {site()}")
    below = tril(input, -1) + eye(n, m, input.dtype)
    return [(_column(views.select(tau, -1, i)), views.narrow(below, -1, i, 1)) for i in range(tau.shape[-1])]


def _applied(reflections: Any, x: Tensor) -> Tensor:
    for scale, v in reflections:
        x = x - _mm(v * scale, _mm(_t(v), x))
    return x


def householder_product(input: Tensor, tau: Tensor) -> Tensor:
    """The first columns of the product of Householder reflections. [*, n, m], [*, k] -> [*, n, m]."""
    reflections = _vectors(input, tau, "householder_product")
    start = views.expand(eye(input.shape[-2], input.shape[-1], input.dtype), *input.shape)
    return _applied(reversed(reflections), start) if reflections else start.clone()


@composite
def orgqr(input: Tensor, input2: Tensor) -> Tensor:
    """linalg.householder_product. [*, n, m], [*, k] -> [*, n, m]."""
    return householder_product(input, input2)


@composite
def ormqr(input: Tensor, input2: Tensor, input3: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    """Q @ input3 (Q^T for transpose, input3 @ Q for left=False), Q being the whole product of reflections input with scales input2.
    [*, n, k], [*, k], [*, n, m] -> [*, n, m]."""
    if not left:
        return _t(ormqr(input, input2, _t(input3), True, not transpose))  # type: ignore[no-any-return]
    if _real(input3, "ormqr").shape[-2] != input.shape[-2]:
        raise ShapeError(f"ormqr: reflections {input.layout} do not fit {input3.layout}\n  at {site()}")
    reflections = _vectors(input, input2, "ormqr")
    return _applied(reflections if transpose else reversed(reflections), input3)
