"""LU factors, Householder reflections and factorisations that report, against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meganeura as mg
from tests.surface.compare import check, floats, torch

pytestmark = pytest.mark.filterwarnings("ignore:torch.*deprecated")
PLAIN = ("plain", "transposed")
SHAPES = [(4, 4), (3, 5), (5, 3), (2, 3, 3), (1, 1), (2, 2, 4, 3), (0, 0), (0, 3, 3)]
LOOSE: dict[str, Any] = {"rtol": 2e-4, "atol": 2e-5, "half": False}


def spd(*shape: int) -> Any:
    a = floats(*shape)
    return (a @ np.swapaxes(a, -1, -2) + 0.5 * np.eye(shape[-1])).astype(np.float32)


def factors(a: Any) -> tuple[Any, Any]:
    lu, pivots = torch.linalg.lu_factor(torch.tensor(a))
    return lu.numpy(), pivots.numpy()


@pytest.mark.parametrize("shape", SHAPES)
def test_lu(shape: tuple[int, ...]) -> None:
    a = floats(*shape)
    check("linalg.lu", a, layouts=PLAIN, **LOOSE)
    check("linalg.lu_factor_ex", a, layouts=PLAIN, **LOOSE)
    check("linalg.lu_factor", a, layouts=("plain",), **LOOSE)
    check("lu", a, layouts=("plain",), **LOOSE)


@pytest.mark.parametrize("shape", SHAPES[:6])
def test_lu_unpack(shape: tuple[int, ...]) -> None:
    lu, pivots = factors(floats(*shape))
    check("lu_unpack", lu, pivots, layouts=("plain",), **LOOSE)
    check("lu_unpack", lu, pivots, unpack_data=False, layouts=("plain",), grad=False, **LOOSE)
    check("lu_unpack", lu, pivots, unpack_pivots=False, layouts=("plain",), **LOOSE)


def test_lu_of_singular_matrices_and_errors() -> None:
    a = np.stack([np.ones((3, 3), np.float32), floats(3, 3)])
    check("linalg.lu_factor_ex", a, layouts=("plain",), grad=False, half=False)
    for wrong in (np.zeros((2, 2), np.float32), floats(3), np.arange(4).reshape(2, 2)):
        check("linalg.lu_factor", wrong, layouts=("plain",), half=False)
    check("lu", np.zeros((2, 2), np.float32), get_infos=True, layouts=("plain",), grad=False, half=False)
    with pytest.raises(mg.UnsupportedError, match="without pivoting"):
        mg.linalg.lu(mg.zeros(2, 2), pivot=False)
    with pytest.raises(mg.TraceError, match="on the host"):
        mg.compile(lambda t: mg.linalg.lu(t)[1])(mg.zeros(2, 2))


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("adjoint", [True, False])
def test_lu_solve(left: bool, adjoint: bool) -> None:
    for shape, other in (((4, 4), (4, 4)), ((2, 3, 3), (2, 3, 3)), ((2, 3, 3), (3, 3))):
        lu, pivots = factors(floats(*shape))
        b, options = floats(*other, seed=3), {"left": left, "adjoint": adjoint}
        check("linalg.lu_solve", lu, pivots, b, layouts=("plain",), grad_rtol=2e-3, **options, **LOOSE)


def test_lu_solve_old_and_errors() -> None:
    lu, pivots = factors(floats(4, 4))
    check("lu_solve", floats(4, 2), lu, pivots, layouts=("plain",), grad_rtol=2e-3, **LOOSE)
    check("lu_solve", floats(3, 2), lu, pivots, layouts=("plain",), half=False)
    check("lu_solve", floats(4, 2), lu, pivots[:2], layouts=("plain",), half=False)
    check("linalg.lu_solve", lu, pivots.astype(np.float32), floats(4, 2), layouts=("plain",), half=False)


def test_gradient_through_a_solve_by_factors() -> None:
    def solve(lib: Any) -> Any:
        return lambda a, b: lib.linalg.lu_solve(*lib.linalg.lu_factor(a), b)

    check((solve(mg), solve(torch)), floats(4, 4), floats(4, 2, seed=2), layouts=PLAIN, grad_rtol=2e-3, **LOOSE)
    a = mg.tensor(floats(4, 3), requires_grad=True)
    assert mg.autograd.gradcheck(lambda t: mg.linalg.lu(t)[1:], (a,))


@pytest.mark.parametrize("upper", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
def test_triangular_solve(upper: bool, transpose: bool) -> None:
    a = floats(3, 3) + 3 * np.eye(3, dtype=np.float32)
    for unit in (True, False):
        check("triangular_solve", floats(3, 2), a, upper, transpose, unit, layouts=PLAIN, **LOOSE)
    check("triangular_solve", floats(4, 2), a, layouts=("plain",), half=False)


def test_results_that_say_whether_they_are_right() -> None:
    a = floats(2, 3, 3)
    check("linalg.inv_ex", a, layouts=PLAIN, grad_rtol=5e-3, **LOOSE)
    check("linalg.solve_ex", a, floats(2, 3, 2), layouts=PLAIN, grad_rtol=5e-3, **LOOSE)
    check("linalg.solve_ex", a[0], floats(3), layouts=PLAIN, grad_rtol=5e-3, **LOOSE)
    check("linalg.solve_ex", a, floats(2, 3, 3), left=False, layouts=PLAIN, grad_rtol=5e-3, **LOOSE)
    for upper in (True, False):
        check("linalg.cholesky_ex", spd(2, 3, 3), upper=upper, layouts=("plain",), **LOOSE)


@pytest.mark.parametrize("name", ["inv_ex", "cholesky_ex", "solve_ex"])
def test_info(name: str) -> None:
    """Matrices that fail are counted as in PyTorch; the others of a batch are right."""
    bad = np.array([[1.0, 2.0, 0.0], [2.0, 4.0, 0.0], [0.0, 0.0, 1.0]], np.float32)
    a = np.stack([spd(3, 3), bad])
    args = (a, floats(2, 3, 2)) if name == "solve_ex" else (a,)
    got = getattr(mg.linalg, name)(*map(mg.tensor, args))
    want = getattr(torch.linalg, name)(*map(torch.tensor, args))
    assert got.info.tolist() == want.info.tolist() and got.info.dtype is mg.int32
    np.testing.assert_allclose(got[0][0].numpy(), want[0][0].numpy(), rtol=1e-4, atol=1e-5)
    assert np.isnan(got[0][1].numpy()).all()
    with pytest.raises(mg.linalg.LinAlgError):
        getattr(mg.linalg, name)(*map(mg.tensor, args), check_errors=True)


@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5), (2, 4, 2), (0, 0), (2, 0, 3)])
def test_reflections(shape: tuple[int, ...]) -> None:
    check("geqrf", floats(*shape), layouts=PLAIN, grad=False, **LOOSE)
    packed, tau = (t.numpy() for t in torch.geqrf(torch.tensor(floats(*shape))))
    n, m = shape[-2:]
    check("linalg.householder_product", packed, tau, layouts=("plain",), grad=0 not in shape, **LOOSE)
    check("orgqr", packed, tau, layouts=("plain",), grad=0 not in shape, **LOOSE)
    if min(n, m) and m <= n:
        for left in (True, False):
            other = floats(*shape[:-2], *((n, 2) if left else (2, n)), seed=4)
            for transpose in (True, False):
                check("ormqr", packed, tau, other, left, transpose, layouts=("plain",), **LOOSE)
        q = mg.linalg.qr(mg.tensor(floats(*shape))).Q
        np.testing.assert_allclose(mg.linalg.householder_product(mg.tensor(packed), mg.tensor(tau)).numpy(), q.numpy(), atol=1e-5)


def test_reflections_compile_and_errors() -> None:
    packed, tau = (mg.tensor(t.numpy()) for t in torch.geqrf(torch.tensor(floats(4, 3))))
    want = mg.linalg.householder_product(packed, tau).numpy()
    np.testing.assert_allclose(mg.compile(mg.linalg.householder_product)(packed, tau).numpy(), want, rtol=1e-5, atol=1e-6)
    check("orgqr", floats(3, 4), floats(3), layouts=("plain",), half=False)
    check("orgqr", floats(4, 3), floats(4), layouts=("plain",), half=False)
    check("ormqr", floats(4, 3), floats(3), floats(3, 2), layouts=("plain",), half=False)
    with pytest.raises(mg.NoGradientError):
        mg.geqrf(mg.tensor(floats(3, 3), requires_grad=True))[0].sum().backward()


@pytest.mark.parametrize("p", [None, 2, -2, 1, -1, float("inf"), float("-inf"), "fro", "nuc"])
def test_condition_number(p: Any) -> None:
    by_inverse = p not in (None, 2, -2, "nuc")  # whose backward fails in PyTorch, which writes into the inverse
    check("linalg.cond", floats(2, 3, 3), p, layouts=("plain",), grad=not by_inverse, grad_rtol=1e-2, **LOOSE)
    check("linalg.cond", floats(3, 4), p, layouts=("plain",), grad_rtol=1e-2, **LOOSE)
    a = mg.tensor(floats(3, 3) + 2 * np.eye(3, dtype=np.float32), requires_grad=True)
    assert mg.autograd.gradcheck(lambda t: mg.linalg.cond(t, p), (a,))
    if by_inverse:
        assert mg.linalg.cond(mg.ones(2, 2), p).item() == float("inf")
