"""Determinants, inverses, solvers and Cholesky factors of small matrices, batched over leading dimensions, with PyTorch's names.

They run in numpy on the host, in float64 (see host.py): the caller waits for the device, and mg.compile refuses them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import dispatch
from ..errors import DTypeError, ShapeError
from ..provenance import site
from ..shape import broadcast_shapes, numel
from . import views
from .blas import square
from .host import host_row
from .matmul import batched_matmul
from .table import composite
from .triangular import diag_embed, tril, triu

if TYPE_CHECKING:
    from ..tensor import Tensor


class SignedLog(NamedTuple):
    """Sign and logarithm of the magnitude of a determinant."""

    sign: Tensor
    logabsdet: Tensor


def _real(input: Tensor, what: str) -> Tensor:
    if not isinstance(input, dispatch.hooks.tensor):
        raise TypeError(f"{what} takes a tensor, got {input!r} ({type(input).__name__})\n  at {site()}")
    if input.dtype.name != "float32":
        raise DTypeError(f"{what} takes float32 matrices, got {input.layout}\n  at {site()}")
    if input.ndim < 2:
        raise ShapeError(f"{what} takes matrices, got shape {list(input.shape)}\n  at {site()}")
    return input  # type: ignore[no-any-return]


def _square(input: Tensor, what: str) -> Tensor:
    return square(_real(input, what), what)


def _t(x: Any) -> Any:
    return x.transpose(-2, -1)


def _mm(*parts: Any) -> Any:
    out = parts[0]
    for p in parts[1:]:
        out = batched_matmul(out, p)
    return out


def _swap(x: Any) -> Any:
    return np.swapaxes(x, -1, -2)


# ---- inverse and determinants ----


def _inverse_grad(grad: Any, result: Any) -> Any:
    return -_mm(_t(result), grad, _t(result))


@host_row({"input": _inverse_grad})
def _inverse(input: Tensor) -> Any:
    """Inverse. [*, n, n] -> same."""
    return np.linalg.inv(input)


def inv(A: Tensor) -> Tensor:
    """Inverse of square matrices; LinAlgError for singular ones. [*, n, n] -> same."""
    return _inverse(_square(A, "inv"))  # type: ignore[no-any-return]


@composite
def inverse(input: Tensor) -> Tensor:
    """linalg.inv, on the host. [*, n, n] -> same."""
    return inv(input)


@host_row({})
def _cofactor(input: Tensor) -> Any:
    """The gradient of the determinant, also of singular matrices. [*, n, n] -> same."""
    u, s, vh = np.linalg.svd(input)
    n = s.shape[-1]
    others = np.where(np.eye(n, dtype=bool), 1.0, s[..., None, :]).prod(-1)
    return (np.linalg.det(u) * np.linalg.det(vh))[..., None, None] * ((u * others[..., None, :]) @ vh)


def _det_grad(grad: Any, input: Any, result: Any) -> Any:
    spread = grad.unsqueeze(-1).unsqueeze(-1)
    if input.numel() and (result.detach() == 0).any().item():
        return spread * _cofactor(input)
    return spread * result.unsqueeze(-1).unsqueeze(-1) * _t(_inverse(input))


@host_row({"input": _det_grad})
def _determinant(input: Tensor) -> Any:
    """Determinant. [*, n, n] -> [*]."""
    return np.linalg.det(input)


@composite
def det(input: Tensor) -> Tensor:
    """Determinant, on the host. [*, n, n] -> [*]."""
    return _determinant(_square(input, "det"))  # type: ignore[no-any-return]


def _slogdet_grad(grads: Any, input: Any) -> Any:
    g = grads[1]
    return None if g is None else g.unsqueeze(-1).unsqueeze(-1) * _t(_inverse(input))


@host_row({"input": _slogdet_grad})
def _sign_and_log(input: Tensor) -> Any:
    """Sign and logarithm of the determinant. [*, n, n] -> [*], [*]."""
    sign, log = np.linalg.slogdet(input)
    return np.asarray(sign), np.asarray(log)


@composite
def slogdet(input: Tensor) -> SignedLog:
    """(sign, log |det|), on the host. [*, n, n] -> [*], [*]."""
    return SignedLog(*_sign_and_log(_square(input, "slogdet")))


@composite
def logdet(input: Tensor) -> Tensor:
    """log of the determinant, NaN where it is negative; on the host. [*, n, n] -> [*]."""
    sign, log = slogdet(input)
    return log.masked_fill(sign < 0, float("nan"))  # type: ignore[no-any-return]


# ---- solvers ----


def _solve_input(grad: Any, input: Any, result: Any) -> Any:
    return -_mm(_solve(_t(input), grad), _t(result))


@host_row({"input": _solve_input, "other": lambda grad, input: _solve(_t(input), grad)})
def _solve(input: Tensor, other: Tensor) -> Any:
    """X with input @ X = other. [*, n, n], [*, n, k] -> [*, n, k]."""
    return np.linalg.solve(input, other)


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """X with A @ X = B (X @ A = B for left=False); LinAlgError for singular A. [*, n, n], [*, n, k] or [*, n] -> as B."""
    _square(A, "solve")
    vector = B.ndim == 1 or (A.ndim - 1 == B.ndim and B.shape == A.shape[:-1])
    if vector and not left:
        raise ShapeError(f"solve: left=False takes matrices, got shape {list(B.shape)}\n  at {site()}")
    rhs = _real(views.unsqueeze(B, -1) if vector else B, "solve")
    if not left:
        return _t(solve(_t(A), _t(rhs)))  # type: ignore[no-any-return]
    if rhs.shape[-2] != A.shape[-1]:
        raise ShapeError(f"solve: A of shape {list(A.shape)} does not fit B of shape {list(B.shape)}\n  at {site()}")
    views.located(broadcast_shapes, A.shape[:-2], rhs.shape[:-2])
    out = _solve(A, rhs)
    return views.squeeze(out, -1) if vector else out


def _triangle(a: Any, upper: bool, unit: bool) -> Any:
    kept = np.triu(a) if upper else np.tril(a)
    if unit:
        eye = np.eye(a.shape[-1], dtype=bool)
        kept = np.where(eye, 1.0, kept)
    return kept


def _triangular_input(grad: Any, input: Any, result: Any, upper: bool, unit: bool) -> Any:
    inside = -_mm(_solve_triangular(_t(input), grad, not upper, unit), _t(result))
    if upper:
        return triu(inside, 1 if unit else 0)
    return tril(inside, -1 if unit else 0)


@host_row(
    {
        "input": _triangular_input,
        "other": lambda grad, input, upper, unit: _solve_triangular(_t(input), grad, not upper, unit),
    }
)
def _solve_triangular(input: Tensor, other: Tensor, upper: bool, unit: bool) -> Any:
    """X with triangle(input) @ X = other. [*, n, n], [*, n, k] -> [*, n, k]."""
    a = _triangle(input, upper, unit)
    diagonal = np.diagonal(a, 0, -2, -1)
    if (diagonal == 0).any():  # PyTorch divides by zero and says nothing
        return _substituted(a, other, upper)
    return np.linalg.solve(a, other)


def _substituted(a: Any, b: Any, upper: bool) -> Any:
    shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    x = np.array(np.broadcast_to(b, (*shape, *b.shape[-2:])))
    n = a.shape[-1]
    for i in range(n - 1, -1, -1) if upper else range(n):
        done = slice(i + 1, n) if upper else slice(0, i)
        x[..., i, :] -= (a[..., i, done, None] * x[..., done, :]).sum(-2)
        x[..., i, :] /= a[..., i, i, None]
    return x


def solve_triangular(A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """X with A @ X = B (X @ A = B for left=False), reading one triangle of A. [*, n, n], [*, n, k] -> as B."""
    _square(A, "solve_triangular")
    _real(B, "solve_triangular")
    if not left:
        return _t(solve_triangular(_t(A), _t(B), upper=not upper, unitriangular=unitriangular))  # type: ignore[no-any-return]
    if B.shape[-2] != A.shape[-1]:
        raise ShapeError(f"solve_triangular: A of shape {list(A.shape)} does not fit B of shape {list(B.shape)}\n  at {site()}")
    views.located(broadcast_shapes, A.shape[:-2], B.shape[:-2])
    return _solve_triangular(A, B, bool(upper), bool(unitriangular))  # type: ignore[no-any-return]


# ---- Cholesky ----


def _cholesky_grad(grad: Any, result: Any) -> Any:
    inner = tril(_mm(_t(result), grad))
    inner = inner - diag_embed(inner.diagonal(0, -2, -1) * 0.5)
    left = _solve_triangular(_t(result), inner, True, False)  # L^-T inner
    both = _t(_solve_triangular(_t(result), _t(left), True, False))  # L^-T inner L^-1
    return (both + _t(both)) * 0.5


@host_row({"input": _cholesky_grad})
def _cholesky(input: Tensor) -> Any:
    """The lower triangle L with L L^T = input. [*, n, n] -> same."""
    return np.linalg.cholesky(np.tril(input) + _swap(np.tril(input, -1)))


def linalg_cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """L with L L^T = A (or its transpose); LinAlgError unless positive definite. [*, n, n] -> same."""
    _square(A, "cholesky")
    return _t(_cholesky(_t(A))) if upper else _cholesky(A)  # type: ignore[no-any-return]


@composite
def cholesky(input: Tensor, upper: bool = False) -> Tensor:
    """linalg.cholesky, on the host. [*, n, n] -> same."""
    return linalg_cholesky(input, upper=upper)


def _factor_grad(grad: Any, other: Any, result: Any, upper: bool) -> Any:
    """As PyTorch has it: of the whole factor, not of its triangle alone."""
    common = _mm(_cholesky_solve(grad, other, upper), _t(result))
    common = common + _t(common)
    return -(_mm(other, common) if upper else _mm(common, other))


@host_row({"input": lambda grad, other, upper: _cholesky_solve(grad, other, upper), "other": _factor_grad})
def _cholesky_solve(input: Tensor, other: Tensor, upper: bool) -> Any:
    """X with (L L^T) X = input for L = other. [*, n, k], [*, n, n] -> [*, n, k]."""
    lower = _swap(np.triu(other)) if upper else np.tril(other)
    return np.linalg.solve(lower @ _swap(lower), input)


@composite
def cholesky_solve(input: Tensor, L: Tensor, upper: bool = False) -> Tensor:
    """X with (L L^T) X = input (L^T L for upper), on the host. [*, n, k], [*, n, n] -> [*, n, k]."""
    _square(L, "cholesky_solve")
    if _real(input, "cholesky_solve").shape[-2] != L.shape[-1]:
        raise ShapeError(f"cholesky_solve: L of shape {list(L.shape)} does not fit {list(input.shape)}\n  at {site()}")
    views.located(broadcast_shapes, L.shape[:-2], input.shape[:-2])
    return _cholesky_solve(input, L, bool(upper))  # type: ignore[no-any-return]


@composite
def cholesky_inverse(input: Tensor, upper: bool = False) -> Tensor:
    """(L L^T)^-1, on the host. [*, n, n] -> same."""
    eye = dispatch.hooks.make(np.eye(_square(input, "cholesky_inverse").shape[-1], dtype=np.float32))
    return cholesky_solve(views.expand(eye, *input.shape), input, upper)


def tensorinv(A: Tensor, ind: int = 2) -> Tensor:
    """Inverse of A as a map from its last dimensions to its first `ind`. [*first, *last] -> [*last, *first]."""
    first, last = A.shape[:ind], A.shape[ind:]
    if ind < 1 or numel(first) != numel(last):
        raise ShapeError(f"tensorinv(ind={ind}): the first sizes of shape {list(A.shape)} hold other counts than the last\n  at {site()}")
    return views.reshape(inv(views.reshape(A, numel(first), numel(last))), *last, *first)


def tensorsolve(A: Tensor, B: Tensor, dims: Any = None) -> Tensor:
    """X with tensordot(A, X, X.ndim) = B. [*b, *x], [*b] -> [*x]."""
    if dims is not None:
        A = views.movedim(A, tuple(dims), tuple(range(A.ndim - len(dims), A.ndim)))
    shape = A.shape[B.ndim :]
    if A.numel() != B.numel() ** 2 or numel(shape) != B.numel():
        raise ShapeError(f"tensorsolve: A of shape {list(A.shape)} does not fit B of shape {list(B.shape)}\n  at {site()}")
    flat = solve(views.reshape(A, B.numel(), B.numel()), views.reshape(B, B.numel()))
    return views.reshape(flat, *shape)


def refused(name: str) -> Any:
    """A function of complex results, which do not exist here."""

    def call(*args: Any, **kwargs: Any) -> Any:
        raise DTypeError(f"linalg.{name} has complex results, and there are no complex dtypes; symmetric matrices have eigh\n  at {site()}")

    call.__name__ = name
    call.__doc__ = "Not here: its results are complex. [*] -> [*]."
    return call
