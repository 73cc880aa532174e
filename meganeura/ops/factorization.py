"""QR, singular values, eigenvalues, and what follows from them: pseudo-inverse, rank, least squares; the matrix exponential.

They run in numpy on the host, in float64 (see host.py): the caller waits for the device, and mg.compile refuses them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import dispatch
from ..errors import ShapeError
from ..provenance import site
from . import views
from .host import host_row
from .linalg import _mm, _real, _solve_triangular, _square, _swap, _t
from .lu import inv_ex
from .matmul import batched_matmul
from .table import COMPOSITES, composite
from .triangular import diag_embed, tril

if TYPE_CHECKING:
    from ..tensor import Tensor


class QR(NamedTuple):
    """Orthonormal columns and an upper triangle."""

    Q: Tensor
    R: Tensor


class SVD(NamedTuple):
    """U diag(S) Vh."""

    U: Tensor
    S: Tensor
    Vh: Tensor


class OldSVD(NamedTuple):
    """U diag(S) V^T."""

    U: Tensor
    S: Tensor
    V: Tensor


class Eigen(NamedTuple):
    """Eigenvalues in ascending order, and eigenvectors in columns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class LeastSquares(NamedTuple):
    """What lstsq finds."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


# ---- orthogonal factorisations ----


def _qr_grad(grads: Any, results: Any, mode: str) -> Any:
    q, r = results
    if mode == "complete" and q.shape[-1] != r.shape[-1]:
        raise NotImplementedError  # PyTorch has none either
    if r.shape[-2] < r.shape[-1]:
        raise NotImplementedError
    gq, gr = grads
    m = None if gr is None else _mm(r, _t(gr))
    if gq is not None:
        mq = _mm(_t(gq), q)
        m = -mq if m is None else m - mq
    assert m is not None
    below = tril(m, -1)
    inner = _mm(q, tril(m) + _t(below))
    inner = inner if gq is None else gq + inner
    return _t(_solve_triangular(r, _t(inner), True, False))


@host_row({"input": _qr_grad})
def _qr(input: Tensor, mode: str) -> Any:
    """Q and R. [*, n, m] -> [*, n, k], [*, k, m]."""
    q, r = _batched_qr(input, mode)
    return q, r


def _batched_qr(a: Any, mode: str) -> tuple[Any, Any]:
    n, m = a.shape[-2:]
    k = n if mode == "complete" else min(n, m)
    if 0 in a.shape:
        q = np.broadcast_to(np.eye(n, k), (*a.shape[:-2], n, k))
        return q, np.zeros((*a.shape[:-2], k, m))
    got: Any = np.linalg.qr(a, "complete" if mode == "complete" else "reduced")
    return np.asarray(got[0]), np.asarray(got[1])


def linalg_qr(A: Tensor, mode: str = "reduced") -> QR:
    """A = Q R; mode 'reduced', 'complete' or 'r' (an empty Q). [*, n, m] -> [*, n, k], [*, k, m]."""
    _real(A, "qr")
    if mode not in ("reduced", "complete", "r"):
        raise ShapeError(f"qr mode {mode!r} does not exist; there are 'reduced', 'complete' and 'r'\n  at {site()}")
    if mode == "r":
        with dispatch.no_grad():
            _, r = _qr(A, "reduced")
        return QR(dispatch.current().upload(A.dtype, np.zeros(0)), r)
    return QR(*_qr(A, mode))


@composite
def qr(input: Tensor, some: bool = True) -> QR:
    """linalg.qr, on the host. [*, n, m] -> [*, n, k], [*, k, m]."""
    return linalg_qr(input, "reduced" if some else "complete")


def _svd_grad(grads: Any, results: Any, full: bool) -> Any:
    u, s, vh = results
    gu, gs, gvh = grads
    out = None
    if gu is not None or gvh is not None:
        if full and u.shape[-1] != vh.shape[-1]:
            raise NotImplementedError
        out = _svd_vectors(u, s, vh, gu, gvh)
    if gs is not None:
        k = s.shape[-1]
        direct = _mm(u[..., :k] * gs.unsqueeze(-2), vh[..., :k, :])
        out = direct if out is None else out + direct
    return out


def _svd_vectors(u: Any, s: Any, vh: Any, gu: Any, gvh: Any) -> Any:
    """The part of the gradient that comes through U and V (the usual formula, for distinct singular values)."""
    squares = s * s
    gaps = squares.unsqueeze(-2) - squares.unsqueeze(-1)
    eye = gaps == 0
    turned = (1.0 / gaps.masked_fill(eye, 1.0)).masked_fill(eye, 0.0)
    total: Any = 0.0
    middle: Any = None
    if gu is not None:
        ug = _mm(_t(u), gu)
        middle = (ug - _t(ug)) * turned * s.unsqueeze(-2)
        total = _mm((gu - _mm(u, ug)) / s.unsqueeze(-2), vh)
    if gvh is not None:
        vg = _mm(vh, _t(gvh))
        right = s.unsqueeze(-1) * ((vg - _t(vg)) * turned)
        middle = right if middle is None else middle + right
        total = total + _mm(u, (gvh - _mm(_t(vg), vh)) / s.unsqueeze(-1))
    return total + _mm(u, middle, vh)


@host_row({"input": _svd_grad})
def _svd(input: Tensor, full: bool) -> Any:
    """U, S, Vh. [*, n, m] -> [*, n, k], [*, min(n, m)], [*, k, m]."""
    u, s, vh = np.linalg.svd(input, full_matrices=full)
    return np.asarray(u), np.asarray(s), np.asarray(vh)


def linalg_svd(A: Tensor, full_matrices: bool = True, *, driver: str | None = None) -> SVD:
    """A = U diag(S) Vh. [*, n, m] -> [*, n, n], [*, min(n, m)], [*, m, m]."""
    return SVD(*_svd(_real(A, "svd"), bool(full_matrices)))


@composite
def svd(input: Tensor, some: bool = True, compute_uv: bool = True) -> OldSVD:
    """input = U diag(S) V^T, on the host. [*, n, m] -> [*, n, k], [*, k], [*, m, k]."""
    u, s, vh = _svd(_real(input, "svd"), not some)
    return OldSVD(u, s, _t(vh)) if compute_uv else OldSVD(u.detach() * 0, s, _t(vh).detach() * 0)


def svdvals(A: Tensor, *, driver: str | None = None) -> Tensor:
    """Singular values in descending order. [*, n, m] -> [*, min(n, m)]."""
    return _svd(_real(A, "svdvals"), False)[1]  # type: ignore[no-any-return]


def _eigh_grad(grads: Any, results: Any) -> Any:
    values, vectors = results
    gl, gv = grads
    inner = None if gl is None else diag_embed(gl)
    if gv is not None:
        gaps = values.unsqueeze(-2) - values.unsqueeze(-1)
        same = gaps == 0
        turned = _mm(_t(vectors), gv) * (1.0 / gaps.masked_fill(same, 1.0)).masked_fill(same, 0.0)
        inner = turned if inner is None else inner + turned
    full = _mm(vectors, inner, _t(vectors))
    return (full + _t(full)) * 0.5


@host_row({"input": _eigh_grad})
def _eigh(input: Tensor, upper: bool) -> Any:
    """Eigenvalues and eigenvectors of a symmetric matrix. [*, n, n] -> [*, n], [*, n, n]."""
    values, vectors = np.linalg.eigh(input, "U" if upper else "L")
    return np.asarray(values), np.asarray(vectors)


def _triangle_name(UPLO: str) -> bool:
    if UPLO not in ("L", "U", "l", "u"):
        raise ShapeError(f"UPLO must be 'L' or 'U', got {UPLO!r}\n  at {site()}")
    return UPLO in "Uu"


def eigh(A: Tensor, UPLO: str = "L") -> Eigen:
    """Eigenvalues (ascending) and eigenvectors of symmetric matrices, reading one triangle. [*, n, n] -> [*, n], [*, n, n]."""
    return Eigen(*_eigh(_square(A, "eigh"), _triangle_name(UPLO)))


def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """Eigenvalues of symmetric matrices, ascending. [*, n, n] -> [*, n]."""
    return _eigh(_square(A, "eigvalsh"), _triangle_name(UPLO))[0]  # type: ignore[no-any-return]


# ---- rank, pseudo-inverse, least squares ----


def _pinv_grad(grad: Any, input: Any, result: Any) -> Any:
    gt, pt = _t(grad), _t(result)
    outer = gt - _mm(input, result, gt)  # (I - A P) G^T
    first = _mm(outer, result, pt)
    inner = gt - _mm(gt, result, input)  # G^T (I - P A)
    return first + _mm(pt, result, inner) - _mm(pt, grad, pt)


@host_row({"input": _pinv_grad})
def _pinv(input: Tensor, rtol: Any, atol: float, hermitian: bool) -> Any:
    """Pseudo-inverse. [*, n, m] -> [*, m, n]."""
    if hermitian:
        input = np.tril(input) + _swap(np.tril(input, -1))
    if 0 in input.shape:
        return np.zeros((*input.shape[:-2], input.shape[-1], input.shape[-2]))
    u, s, vh = np.linalg.svd(input, full_matrices=False)
    small = s <= _tolerance(s, input.shape, rtol, atol)
    return _swap(vh) @ (np.where(small, 0.0, 1.0 / np.where(small, 1.0, s))[..., None] * _swap(u))


def _tolerance(s: Any, shape: Any, rtol: Any, atol: float) -> Any:
    if rtol is None:
        rtol = max(shape[-2:]) * float(np.finfo(np.float32).eps) if not atol else 0.0
    return np.maximum(atol, rtol * s.max(-1, keepdims=True, initial=0.0))


def linalg_pinv(A: Tensor, rcond: Any = None, hermitian: bool = False, *, atol: float | None = None, rtol: float | None = None) -> Tensor:
    """Pseudo-inverse; singular values up to max(atol, rtol * the largest) count as 0. [*, n, m] -> [*, m, n]."""
    (_square if hermitian else _real)(A, "pinv")
    return _pinv(A, rcond if rtol is None else rtol, 0.0 if atol is None else float(atol), hermitian)  # type: ignore[no-any-return]


@composite
def pinverse(input: Tensor, rcond: float = 1e-15) -> Tensor:
    """linalg.pinv, on the host. [*, n, m] -> [*, m, n]."""
    return linalg_pinv(input, rcond)


@host_row({})
def _rank(input: Tensor, rtol: Any, atol: float, hermitian: bool) -> Any:
    """Number of singular values that count. [*, n, m] -> [*] int64."""
    s = np.abs(np.linalg.eigvalsh(input)) if hermitian else np.linalg.svd(input, compute_uv=False)
    return (s > _tolerance(s, input.shape, rtol, atol)).sum(-1).astype(np.int64)


def matrix_rank(
    A: Tensor, tol: float | None = None, hermitian: bool = False, *, atol: float | None = None, rtol: float | None = None
) -> Tensor:
    """Number of singular values above max(atol, rtol * the largest). [*, n, m] -> [*] int64."""
    if tol is not None:
        atol, rtol = tol, 0.0
    (_square if hermitian else _real)(A, "matrix_rank")
    return _rank(A.detach(), rtol, 0.0 if atol is None else float(atol), hermitian)  # type: ignore[no-any-return]


def lstsq(A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None) -> LeastSquares:
    """The X of least |A X - B|, and of least |X| among those. [*, n, m], [*, n, k] or [*, n] -> [*, m, k] or [*, m]."""
    _real(A, "lstsq")
    vector = B.ndim == 1 or (A.ndim - 1 == B.ndim and B.shape == A.shape[:-1])
    rhs = _real(views.unsqueeze(B, -1) if vector else B, "lstsq")
    if rhs.shape[-2] != A.shape[-2]:
        raise ShapeError(f"lstsq: A of shape {list(A.shape)} does not fit B of shape {list(B.shape)}\n  at {site()}")
    if driver not in (None, "gels", "gelsy", "gelsd", "gelss"):
        raise ShapeError(f"lstsq driver {driver!r} does not exist\n  at {site()}")
    solution = batched_matmul(linalg_pinv(A, rcond), rhs)
    rank = matrix_rank(A, rtol=rcond)
    n, m = A.shape[-2:]
    none = dispatch.current().upload(A.dtype, np.zeros(0))
    left = batched_matmul(A, solution) - rhs
    full = driver not in (None, "gelsy") and n > m and bool((rank == m).all().item())
    residuals = (left * left).sum(-2) if full else none
    values = svdvals(A.detach()) if driver in ("gelsd", "gelss") else none
    return LeastSquares(views.squeeze(solution, -1) if vector else solution, residuals, rank, values)


@host_row({"input": lambda grad, input: _exponential_grad(grad, input)})
def _exponential(input: Tensor) -> Any:
    """Matrix exponential. [*, n, n] -> same."""
    size = np.abs(input).sum(-2).max(initial=0.0)
    halvings = max(0, int(np.ceil(np.log2(size))) + 1) if size > 0 and np.isfinite(size) else 0
    x = input / 2.0**halvings
    out = term = np.broadcast_to(np.eye(x.shape[-1]), x.shape)
    for k in range(1, 20):  # of a norm up to 1/2: the rest is below 2^-80
        term = term @ x / k
        out = out + term
    for _ in range(halvings):
        out = out @ out
    return out


def _exponential_grad(grad: Any, input: Any) -> Any:
    """The corner of the exponential of [[A^T, G], [0, A^T]]."""
    n = input.shape[-1]
    top = views.cat([_t(input), grad], -1)
    below = views.cat([grad * 0.0, _t(input)], -1)
    return _exponential(views.cat([top, below], -2)).narrow(-2, 0, n).narrow(-1, n, n)


@composite
def matrix_exp(input: Tensor) -> Tensor:
    """Exponential of square matrices, on the host. [*, n, n] -> same."""
    return _exponential(_square(input, "matrix_exp"))  # type: ignore[no-any-return]


def cond(A: Tensor, p: Any = None) -> Tensor:
    """Condition number: the largest over the smallest singular value (p None or 2), the inverse for -2; for other norms ('fro', 'nuc', 1,
    -1, inf, -inf) the norm of square matrices times that of their inverses, infinite for singular ones. [*, n, m] -> [*]."""
    if p in (None, 2, -2):
        s = svdvals(A)
        return s[..., -1] / s[..., 0] if p == -2 else s[..., 0] / s[..., -1]
    norm = COMPOSITES["linalg_matrix_norm"]  # of reductions, which need this file
    inverse, info = inv_ex(_square(A, "cond"))
    return (norm(A, p) * norm(inverse, p)).masked_fill(info != 0, float("inf"))  # type: ignore[no-any-return]
