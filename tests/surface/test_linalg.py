"""Products, contractions, distances and factorisations, against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura.autograd import gradcheck
from tests.surface.compare import SPECIAL, bools, check, floats, ints, torch

QUICK = ("plain", "transposed", "stepped")
PLAIN = ("plain", "transposed")
A, B, V = floats(3, 5), floats(5, 4), floats(5)
SCALAR = np.array(1.5, np.float32)

EQUATIONS = [
    ("ij,jk->ik", (3, 5), (5, 4)),
    ("ij,jk", (3, 5), (5, 4)),
    ("ij,jk->ki", (3, 5), (5, 4)),
    ("ij,kj->ik", (3, 5), (4, 5)),
    ("bij,bjk->bik", (2, 3, 5), (2, 5, 4)),
    ("bij,jk->bik", (2, 3, 5), (5, 4)),
    ("bhid,bhjd->bhij", (2, 2, 3, 4), (2, 2, 5, 4)),
    ("bhij,bhjd->bihd", (2, 2, 3, 5), (2, 2, 5, 4)),
    ("i,i->", (7,), (7,)),
    ("i,i", (7,), (7,)),
    ("i,j->ij", (3,), (4,)),
    ("i,i->i", (7,), (7,)),
    ("bi,bi->b", (3, 5), (3, 5)),
    ("ij->ji", (3, 5)),
    ("ij->", (3, 5)),
    ("ij->j", (3, 5)),
    ("ij", (3, 5)),
    ("ba", (3, 5)),
    ("ii->i", (4, 4)),
    ("ii->", (4, 4)),
    ("ii", (4, 4)),
    ("bii->bi", (2, 4, 4)),
    ("iji->j", (3, 4, 3)),
    ("iii->i", (3, 3, 3)),
    ("...ij,...jk->...ik", (2, 3, 5), (5, 4)),
    ("...ij,...jk->...ik", (2, 1, 3, 5), (4, 5, 4)),
    ("...ij->...ji", (2, 3, 5)),
    ("...", (2, 3)),
    ("...i->...", (2, 3)),
    ("...i->i", (2, 3)),
    ("i...->...", (2, 3)),
    ("i...,i...->...", (3, 2), (3, 2)),
    ("a...b,b...->a...", (3, 2, 4), (4, 2)),
    ("ij,jk,kl->il", (3, 5), (5, 4), (4, 2)),
    ("ij,jk,kl,lm->im", (3, 5), (5, 4), (4, 2), (2, 6)),
    ("ij,ij,jk->ik", (3, 5), (3, 5), (5, 4)),
    ("bn,anm,bm->ba", (2, 3), (4, 3, 5), (2, 5)),
    ("i,ij,j->", (3,), (3, 5), (5,)),
    ("ij,kl->ijkl", (2, 3), (2, 2)),
    ("ij,k->ij", (2, 3), (4,)),
    ("ij,jk->ik", (3, 1), (5, 4)),
    ("ij,ij->ij", (1, 5), (3, 5)),
    ("ijk,ijk->k", (2, 3, 4), (2, 3, 4)),
    ("Aa,aB->AB", (2, 3), (3, 4)),
    (" i j , j k -> i k ", (3, 5), (5, 4)),
    ("bqhd,bkhd->bhqk", (2, 3, 2, 4), (2, 5, 2, 4)),
    ("ij,jk->ik", (0, 5), (5, 4)),
    ("ij,jk->ik", (3, 0), (0, 4)),
    (",ij->ij", (), (2, 3)),
]
BAD = [
    ("ij,jk->ik", (3, 5), (4, 4)),
    ("ij->ik", (3, 5)),
    ("ij->iij", (3, 5)),
    ("ij", (3, 5, 2)),
    ("ij,jk", (3, 5)),
    ("i,j", (3,), (4,), (5,)),
    ("ii->i", (3, 4)),
    ("i1->i", (3, 4)),
    ("......", (3, 4)),
    ("i->...ii", (3,)),
]


@pytest.mark.parametrize("case", EQUATIONS, ids=lambda c: c[0])
def test_einsum(case: tuple[Any, ...]) -> None:
    equation, *shapes = case
    arrays = [floats(*s, seed=i) for i, s in enumerate(shapes)]
    check("einsum", equation.strip(), *arrays, layouts=PLAIN, rtol=5e-5)


@pytest.mark.parametrize("case", BAD, ids=lambda c: c[0])
def test_einsum_refuses(case: tuple[Any, ...]) -> None:
    equation, *shapes = case
    check("einsum", equation, *[floats(*s) for s in shapes], layouts=("plain",))


def test_einsum_forms() -> None:
    check("einsum", "ij,jk->ik", [A, B], layouts=PLAIN)
    check("einsum", "ij,jk->ik", ints(3, 5), ints(5, 4), layouts=("plain",))
    for name in ("i,i->", "ij,j->i"):
        check("einsum", name, *[ints(4, 4) if len(p) > 1 else ints(4) for p in name.partition("->")[0].split(",")])
    a, b = mg.tensor(A), mg.tensor(B)
    want = A @ B
    assert np.allclose(mg.einsum(a, [0, 1], b, [1, 2], [0, 2]).numpy(), want, rtol=1e-5)
    assert np.allclose(mg.einsum(a, [0, ...], b, [..., 2], [0, 2]).numpy(), A.sum(1)[:, None] * 0 + want, rtol=1e-5)
    assert np.allclose(mg.compile(lambda a, b: mg.einsum("ij,jk->ki", a, b))(a, b).numpy(), want.T, rtol=1e-5)
    gradcheck(lambda a, b, c: mg.einsum("bn,anm,bm->ba", a, b, c), [floats(2, 3), floats(4, 3, 2), floats(2, 2)])


def test_einsum_takes_the_cheap_order() -> None:
    """(n x n) (n x n) (n x 1): from the right it is n^2, from the left n^3; the long result is never made."""
    n = 64
    a = mg.tensor(floats(n, n))
    v = mg.tensor(floats(n, 1))
    order: list[tuple[int, ...]] = []
    from meganeura.ops import contraction

    real = contraction.batched_matmul
    try:
        contraction.batched_matmul = lambda x, y: order.append(real(x, y).shape) or real(x, y)  # type: ignore[assignment,func-returns-value]
        mg.einsum("ij,jk,kl->il", a, a, v)
    finally:
        contraction.batched_matmul = real
    assert order == [(n, 1), (n, 1)]


@pytest.mark.parametrize("dims", [0, 1, 2, 3, ([1], [0]), ([0, 1], [1, 0]), ([1], [5]), ([0, 0], [0, 1]), ([0], [0, 1])])
def test_tensordot(dims: Any) -> None:
    check("tensordot", floats(3, 4), floats(4, 3), dims, layouts=PLAIN)
    check("tensordot", floats(2, 3, 4), floats(3, 4, 2), dims, layouts=PLAIN)


def test_products_of_vectors() -> None:
    for name in ("dot", "vdot", "inner", "outer", "ger", "mv", "kron"):
        for a, b in ((V, V), (A, V), (V, A), (SCALAR, V), (V, floats(4)), (ints(5), ints(5)), (np.zeros(0, np.float32),) * 2):
            check(name, a, b, layouts=("plain",) if name == "kron" else QUICK, rtol=5e-5)  # PyTorch's kron views
    check("inner", A, floats(2, 5), layouts=QUICK)
    check("inner", SCALAR, SCALAR)
    check("inner", A, SCALAR)
    check("outer", V, ints(3), half=False)
    check("dot", V, ints(5), half=False)
    for a, b in ((A, B), (floats(2, 1, 3), floats(2, 2)), (SCALAR, A), (ints(2, 2), ints(3))):
        check("kron", a, b, layouts=("plain",))
    check("linalg.vecdot", A, A)


ADDED = {
    "addmm": (floats(3, 4), A, B),
    "addmv": (floats(3), A, V),
    "addbmm": (floats(3, 4), floats(2, 3, 5), floats(2, 5, 4)),
    "baddbmm": (floats(2, 3, 4), floats(2, 3, 5), floats(2, 5, 4)),
    "addr": (floats(3, 5), floats(3), V),
}


@pytest.mark.parametrize("name", list(ADDED))
def test_products_that_add(name: str) -> None:
    x, *rest = ADDED[name]
    check(name, x, *rest, layouts=QUICK, rtol=5e-5)
    check(name, x, *rest, beta=0.5, alpha=2, layouts=PLAIN, rtol=5e-5)
    check(name, np.full_like(x, np.nan), *rest, beta=0, layouts=("plain",), grad=False)
    check(name, x[:1], *rest, layouts=("plain",), rtol=5e-5)
    check(name, SCALAR, *rest, layouts=("plain",), rtol=5e-5)
    check(name, floats(9, 9), *rest, layouts=("plain",))
    check(name, x, *reversed(rest), layouts=("plain",))
    check(name, x.astype(np.int64), *rest, layouts=("plain",), half=False)
    whole = [a.astype(np.int64) for a in (x, *rest)]
    check(name, *whole, layouts=("plain",))
    check(name, *whole, beta=0.5, layouts=("plain",))
    check((lambda x, *r, n=name: getattr(x.clone(), n + "_")(*r, beta=2),) * 2, x, *rest, layouts=("plain",), rtol=5e-5)
    if name != "addbmm":  # where PyTorch grows the tensor
        check((lambda x, *r, n=name: getattr(x.clone(), n + "_")(*r),) * 2, x[:1], *rest, layouts=("plain",), rtol=5e-5)


def test_chains() -> None:
    mats = [floats(3, 5), floats(5, 2), floats(2, 6), floats(6, 4)]
    check("linalg.multi_dot", mats, layouts=PLAIN, rtol=1e-4)
    check("linalg.multi_dot", [V, floats(5, 2), floats(2)], rtol=1e-4)
    check("linalg.multi_dot", [V, V], rtol=1e-4)
    check("linalg.multi_dot", mats[:1])
    check("linalg.multi_dot", [A, A])
    check("linalg.multi_dot", [A, V, B])
    assert np.allclose(mg.chain_matmul(*map(mg.tensor, mats)).numpy(), np.linalg.multi_dot(mats), rtol=1e-4, atol=1e-4)
    for n in (0, 1, 2, 3, 5, -1, -2):
        check("matrix_power", np.eye(3, dtype=np.float32) * 2 + floats(3, 3) * 0.3, n, layouts=PLAIN, half=False, rtol=2e-4, grad=n != 0)
    check("matrix_power", floats(2, 3, 3), 3, layouts=PLAIN, half=False, rtol=2e-4)
    check("matrix_power", A, 2)


def test_cross() -> None:
    for shapes in (
        ((3,), (3,)),
        ((4, 3), (4, 3)),
        ((3, 4), (3, 4)),
        ((2, 3, 3), (2, 3, 3)),
        ((4, 3), (1, 3)),
        ((4, 3), (3,)),
        ((2, 2), (2, 2)),
    ):
        a, b = floats(*shapes[0]), floats(*shapes[1], seed=1)
        check("linalg.cross", a, b, layouts=PLAIN)
        check("cross", a, b, -1, layouts=PLAIN)
        check("linalg.cross", a, b, dim=0, layouts=PLAIN)
    check("linalg.cross", ints(4, 3), ints(4, 3, seed=1))


@pytest.mark.parametrize("p", [0, 0.5, 1, 1.5, 2, 3, float("inf"), -1])
def test_cdist(p: float) -> None:
    a, b = floats(3, 5), floats(4, 5, seed=1)
    check("cdist", a, b, p, layouts=PLAIN, half=False, rtol=1e-4, grad=p not in (0, 0.5))
    check("cdist", floats(2, 1, 3, 5), floats(4, 4, 5, seed=1), p, layouts=("plain",), half=False, rtol=1e-4, grad=p not in (0.5, 0))
    check("cdist", np.zeros((0, 5), np.float32), b, p, half=False, layouts=("plain",), grad=False)
    check("cdist", floats(3, 0), floats(4, 0), p, half=False, layouts=("plain",), grad=False)
    check("dist", a, floats(3, 5, seed=2), p, half=False, rtol=1e-4, grad=p != 0)
    check("nn.functional.pairwise_distance", a, floats(3, 5, seed=2), p, half=False, rtol=1e-4, grad=p != 0)


def test_cdist_more() -> None:
    same = floats(4, 5)
    check("cdist", same, same.copy(), half=False, layouts=("plain",))  # distances of 0 have gradients of 0
    check("cdist", floats(30, 5), floats(40, 5, seed=1), half=False, layouts=("plain",), rtol=2e-4, atol=1e-4)
    for mode in ("use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist", "other"):
        check("cdist", floats(3, 5), floats(4, 5, seed=1), 2.0, mode, half=False, layouts=("plain",), rtol=2e-4, atol=1e-4)
    check("cdist", A, B, half=False)
    check("cdist", V, V, half=False)
    check("cdist", ints(3, 5), ints(3, 5))
    for dim in (0, 1, -1):
        check("nn.functional.cosine_similarity", A, floats(3, 5, seed=1), dim)
        check("nn.functional.cosine_similarity", A, floats(1, 5, seed=1), dim)
    check("nn.functional.cosine_similarity", A, np.zeros_like(A), layouts=("plain",), grad=False)


def test_bilinear() -> None:
    w, bias = floats(4, 3, 5), floats(4)
    check("nn.functional.bilinear", floats(2, 3), floats(2, 5), w, bias, layouts=PLAIN, rtol=1e-4)
    check("nn.functional.bilinear", floats(2, 6, 3), floats(2, 6, 5), w, layouts=PLAIN, rtol=1e-4)
    check("nn.functional.bilinear", floats(3), floats(5), w, layouts=("plain",), rtol=1e-4)
    check("nn.functional.bilinear", floats(2, 3), floats(2, 4), w, layouts=("plain",))
    check("nn.functional.bilinear", floats(2, 3), floats(2, 5), w, floats(3), layouts=("plain",))


def test_modules() -> None:
    ours, theirs = mg.nn.Bilinear(3, 5, 4), torch.nn.Bilinear(3, 5, 4)
    theirs.load_state_dict({k: torch.tensor(v.numpy()) for k, v in ours.state_dict().items()})
    check((ours, theirs), floats(2, 3), floats(2, 5), layouts=("plain",), half=False, rtol=1e-4)
    for name, args in (("CosineSimilarity", (1, 1e-6)), ("PairwiseDistance", (1.0, 1e-5, True))):
        check((getattr(mg.nn, name)(*args), getattr(torch.nn, name)(*args)), A, floats(3, 5, seed=1), layouts=PLAIN)
    assert repr(ours) == repr(theirs)


# ---- on the host ----


def spd(*shape: int) -> Any:
    a = floats(*shape, shape[-1])
    return (a @ np.swapaxes(a, -1, -2) + np.eye(shape[-1]) * 2).astype(np.float32)


def regular(*shape: int) -> Any:
    return floats(*shape, shape[-1]) + 3 * np.eye(shape[-1], dtype=np.float32)


HOST: dict[str, Any] = {"layouts": PLAIN, "half": False, "rtol": 2e-4, "atol": 2e-5}


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_inverse_and_determinants(batch: tuple[int, ...]) -> None:
    a = regular(*batch, 4)
    for name in ("linalg.inv", "inverse", "linalg.det", "det", "linalg.slogdet", "slogdet", "logdet"):
        check(name, a, **HOST)
    b = floats(*batch, 4, 3)
    check("linalg.solve", a, b, **HOST)
    check("linalg.solve", a, b[..., 0], **HOST)
    check("linalg.solve", a, np.ascontiguousarray(np.swapaxes(b, -1, -2)), left=False, **HOST)
    for upper in (False, True):
        for unit in (False, True):
            check("linalg.solve_triangular", a, b, upper=upper, unitriangular=unit, **HOST)
    check("linalg.solve_triangular", a, np.ascontiguousarray(np.swapaxes(b, -1, -2)), upper=True, left=False, **HOST)


def test_inverse_refuses() -> None:
    singular = np.ones((3, 3), np.float32)
    for name in ("linalg.inv", "linalg.det", "linalg.slogdet", "linalg.cholesky", "linalg.eigvalsh"):
        for a in (A, V, ints(3, 3), regular(3).astype(np.float16)):
            check(name, a, half=False, layouts=("plain",))
    check("linalg.inv", singular, **HOST)
    check("linalg.solve", singular, np.ones((3, 1), np.float32), **HOST)
    check("linalg.cholesky", -np.eye(3, dtype=np.float32), **HOST)
    check("linalg.solve", regular(3), floats(4, 2), **HOST)
    check("linalg.det", np.diag([1, 0, 2]).astype(np.float32), grad=False, **HOST)  # PyTorch's gradient of it is 0, which is wrong
    gradcheck(lambda x: mg.linalg.det(x), [np.diag([1, 0, 2]).astype(np.float32)])
    check("linalg.det", np.zeros((0, 0), np.float32), **HOST)
    with pytest.raises(mg.TraceError, match="host"):
        mg.compile(lambda x: mg.linalg.inv(x))(mg.tensor(regular(3)))
    with pytest.raises(mg.linalg.LinAlgError, match="inverse of float32"):
        mg.linalg.inv(mg.tensor(singular))
    with pytest.raises(mg.DTypeError, match="complex"):
        mg.linalg.eig(mg.tensor(regular(3)))
    with pytest.raises(mg.NoGradientError, match="cofactor"):
        x = mg.tensor(np.diag([1, 0, 2]).astype(np.float32)).requires_grad_()
        (g,) = mg.grad(mg.linalg.det(x), x, create_graph=True)
        g.sum().backward()


@pytest.mark.parametrize("batch", [(), (2,)])
def test_cholesky(batch: tuple[int, ...]) -> None:
    a = spd(*batch, 4)
    check("linalg.cholesky", a, **HOST)
    check("linalg.cholesky", a, upper=True, **HOST)
    check((mg.cholesky, torch.linalg.cholesky), a, **HOST)  # torch.cholesky warns that it is old
    lower = np.linalg.cholesky(a).astype(np.float32)
    for upper in (False, True):
        factor = np.ascontiguousarray(np.swapaxes(lower, -1, -2)) if upper else lower
        check("cholesky_solve", floats(*batch, 4, 2), factor, upper, **HOST)
        check("cholesky_inverse", factor, upper, **HOST)


@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5), (2, 4, 3)])
def test_factorisations(shape: tuple[int, ...]) -> None:
    """Factors are unique up to signs: what is compared does not depend on them."""
    a = floats(*shape)
    for mode in ("reduced", "complete"):
        tall = shape[-2] >= shape[-1] and (mode == "reduced" or shape[-1] == shape[-2])
        check((lambda x, m=mode: _qr_parts(mg, x, m), lambda x, m=mode: _qr_parts(torch, x, m)), a, grad=tall, **HOST)
    check((lambda x: mg.linalg.qr(x, "r").R.abs(), lambda x: torch.linalg.qr(x, "r").R.abs()), a, grad=False, **HOST)
    check("linalg.svdvals", a, **HOST)
    for full in (False, True):
        differentiable = not full or shape[-1] == shape[-2]
        check((lambda x, f=full: _svd_parts(mg, x, f), lambda x, f=full: _svd_parts(torch, x, f)), a, grad=differentiable, **HOST)
    check((lambda x: mg.svd(x).V.abs(), lambda x: torch.svd(x).V.abs()), a, grad=False, **HOST)
    check("linalg.pinv", a, **HOST)
    check("linalg.matrix_rank", a, **HOST)
    check("linalg.cond", a, **HOST)


def _qr_parts(lib: Any, x: Any, mode: str) -> tuple[Any, ...]:
    q, r = lib.linalg.qr(x, mode)
    return q @ r, q**2, r**2


def _svd_parts(lib: Any, x: Any, full: bool) -> tuple[Any, ...]:
    u, s, vh = lib.linalg.svd(x, full_matrices=full)
    k = s.shape[-1]
    return s, u[..., :k] ** 2, vh[..., :k, :] ** 2, (u[..., :k] * s.unsqueeze(-2)) @ vh[..., :k, :]


def test_symmetric_eigenvalues() -> None:
    for a in (spd(4), spd(2, 3)):
        for side in ("L", "U"):
            check("linalg.eigvalsh", a, side, **HOST)
            check((lambda x, s=side: _eigen(mg, x, s), lambda x, s=side: _eigen(torch, x, s)), a, **HOST)
    check("linalg.eigvalsh", spd(3), "Q", **HOST)
    check("linalg.matrix_rank", np.diag([1, 1e-9, 2]).astype(np.float32), **HOST)
    check((lambda x: mg.linalg.matrix_rank(x, atol=0.5), lambda x: torch.linalg.matrix_rank(x, atol=0.5)), spd(3) * 0.1, **HOST)
    check("linalg.matrix_rank", spd(3), hermitian=True, **HOST)
    check("linalg.pinv", spd(3), hermitian=True, **HOST)
    check("linalg.pinv", np.ones((3, 2), np.float32), grad=False, **HOST)


def _eigen(lib: Any, x: Any, side: str) -> tuple[Any, ...]:
    values, vectors = lib.linalg.eigh(x, side)
    return values, vectors**2


def test_least_squares() -> None:
    a, b = floats(5, 3), floats(5, 2, seed=1)
    for driver in (None, "gels", "gelsy", "gelsd", "gelss"):
        got = mg.linalg.lstsq(mg.tensor(a), mg.tensor(b), driver=driver)
        for g, w in zip(got, torch.linalg.lstsq(torch.tensor(a), torch.tensor(b), driver=driver), strict=True):
            if tuple(w.shape) != tuple(g.shape):
                assert driver == "gels" and not w.shape[-1:][0]  # its rank is not computed there
                continue
            np.testing.assert_allclose(g.numpy(), w.numpy(), rtol=2e-4, atol=1e-5)
    check((lambda a, b: mg.linalg.lstsq(a, b).solution, lambda a, b: torch.linalg.lstsq(a, b).solution), a, b, **HOST)
    check((lambda a, b: mg.linalg.lstsq(a, b).solution, lambda a, b: torch.linalg.lstsq(a, b).solution), floats(3, 5), floats(3, 2), **HOST)
    check("linalg.lstsq", a, floats(4, 2), **HOST)


def test_host_gradients_twice() -> None:
    """Against differences, and the gradients' own gradients, in float64."""
    a, b = regular(3), floats(3, 2)
    gradcheck(lambda x: mg.linalg.inv(x), [a])
    gradcheck(lambda x: mg.linalg.det(x), [a])
    gradcheck(lambda x, y: mg.linalg.solve(x, y), [a, b])
    gradcheck(lambda x: mg.linalg.cholesky(x @ x.mT + 2 * mg.eye(3)), [a])
    gradcheck(lambda x: mg.linalg.pinv(x), [floats(4, 3)])
    gradcheck(lambda x: mg.linalg.eigh(x + x.mT).eigenvectors ** 2, [a])

    def gradient(x: Any) -> Any:
        with mg.enable_grad():
            x = x if x.requires_grad else x.requires_grad_()
            g = mg.grad(mg.linalg.inv(x).sum(), x, create_graph=True)[0]
        return g if mg.is_grad_enabled() else g.detach()

    gradcheck(gradient, [a])


def test_exponential_and_tensor_equations() -> None:
    for a in (floats(3, 3), floats(2, 4, 4) * 3, np.zeros((2, 2), np.float32), np.zeros((0, 0), np.float32)):
        check("linalg.matrix_exp", a, **HOST)
        check("matrix_exp", a, **HOST)
    check("linalg.matrix_exp", A, **HOST)
    gradcheck(lambda x: mg.linalg.matrix_exp(x), [floats(3, 3)])
    check("linalg.tensorinv", floats(4, 6, 8, 3) + np.eye(24, dtype=np.float32).reshape(4, 6, 8, 3) * 9, **HOST)
    check("linalg.tensorinv", floats(6, 2, 3) + np.eye(6, dtype=np.float32).reshape(6, 2, 3) * 9, 1, **HOST)
    check("linalg.tensorinv", floats(6, 2, 4), 1, **HOST)
    check("linalg.tensorsolve", floats(2, 3, 6) + np.eye(6, dtype=np.float32).reshape(2, 3, 6) * 9, floats(2, 3), **HOST)
    check("linalg.tensorsolve", floats(3, 6, 2) + 9 * np.eye(6, dtype=np.float32).reshape(2, 3, 6).transpose(1, 2, 0), floats(3, 2),
          dims=None, **HOST)  # fmt: skip
    check("linalg.tensorsolve", floats(2, 3, 5), floats(2, 3), **HOST)


def test_vander() -> None:
    for x in (V, ints(4), bools(3)):
        for n in (None, 0, 1, 3, 6, -1):
            for increasing in (False, True):
                check("vander", x, n, increasing, layouts=("plain", "stepped"), rtol=1e-4, half=False, grad=False)
    gradcheck(lambda x: mg.vander(x, 4), [V])  # PyTorch fails to go backward
    check("vander", A)
    check("linalg.vander", A, N=4, rtol=1e-4, half=False, grad=False)
    check("linalg.vander", A, rtol=1e-4, half=False, grad=False)
    check("linalg.vander", A, N=1)
    check("linalg.diagonal", floats(2, 3, 4))
    check("linalg.matmul", A, B)
    check("vander", SPECIAL, 3, layouts=("plain",), grad=False, half=False)
