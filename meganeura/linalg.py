"""mg.linalg: linear algebra with the names of torch.linalg. Factorisations and solvers run in numpy on the host (eager only)."""

from __future__ import annotations

from typing import Any

from .errors import LinAlgError
from .ops.blas import cross_along as cross
from .ops.blas import matrix_power, multi_dot, vecdot
from .ops.factorization import cond, eigh, eigvalsh, lstsq, matrix_exp, matrix_rank, svdvals
from .ops.factorization import linalg_pinv as pinv
from .ops.factorization import linalg_qr as qr
from .ops.factorization import linalg_svd as svd
from .ops.linalg import det, inv, refused, slogdet, solve, solve_triangular, tensorinv, tensorsolve
from .ops.linalg import linalg_cholesky as cholesky
from .ops.lu import cholesky_ex, householder_product, inv_ex, lu_factor, lu_factor_ex, solve_ex
from .ops.lu import linalg_lu as lu
from .ops.lu import linalg_lu_solve as lu_solve
from .ops.products import matmul
from .ops.sequences import linalg_vander as vander
from .ops.table import COMPOSITES
from .ops.triangular import diagonal as _diagonal
from .tensor import Tensor

__all__ = [
    "LinAlgError", "cholesky", "cholesky_ex", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh",
    "householder_product", "inv", "inv_ex", "lstsq", "lu", "lu_factor", "lu_factor_ex", "lu_solve", "matmul", "matrix_exp",
    "matrix_power", "matrix_rank", "multi_dot", "pinv", "qr", "slogdet", "solve", "solve_ex", "solve_triangular", "svd", "svdvals",
    "tensorinv", "tensorsolve", "vander", "vecdot",
]  # fmt: skip

eig, eigvals = refused("eig"), refused("eigvals")


def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """A view of the diagonals of matrices. [*, n, m] -> [*, k]."""
    return _diagonal(A, offset, dim1, dim2)


def __getattr__(name: str) -> Any:
    """The norms, which reductions define."""
    found = COMPOSITES.get(f"linalg_{name}") or (COMPOSITES.get(name) if name.endswith("norm") else None)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no function {name!r}")
    return found
