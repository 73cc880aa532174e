"""Reductions of every kind against PyTorch: dims, keepdim, dtypes, ties, NaN, empty tensors, gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import meganeura as mg

from .compare import SPECIAL, bools, floats, ints, torch
from .compare import check as compare

pytestmark = pytest.mark.filterwarnings(
    "ignore:(var|std|std_mean|var_mean|cov).*degrees of freedom:UserWarning", "ignore:.*degrees of freedom.*"
)
PLAIN = ("plain", "transposed", "stepped")
DIMS: tuple[Any, ...] = (None, 0, 1, -1, (0, 2), (-1, 1))
INTEGERS = ("int64", "int32", "uint8", "int8", "bool")


def check(name: Any, *args: Any, **kwargs: Any) -> None:
    """compare.check on two layouts unless told: the kernels' tests walk all of them."""
    kwargs.setdefault("layouts", ("plain", "stepped"))
    compare(name, *args, **kwargs)


# ---- sums, means, products ----


@pytest.mark.parametrize("name", ["sum", "mean", "nansum", "nanmean"])
def test_sums_and_means(name: str) -> None:
    x = floats(3, 5, 4)
    for dim in DIMS:
        for keepdim in (False, True):
            check(name, x, dim, keepdim, layouts=PLAIN)
    check(name, x, dim=1, dtype="@float16", half=False, rtol=4e-3)
    check(name, ints(3, 4), dim=0, dtype="@float32")
    check(name, floats())
    check(name, floats(0, 3), dim=0)
    check(name, floats(0, 3), dim=1)
    check(name, floats(0))
    check(name, np.stack([SPECIAL, SPECIAL[::-1]]), 0, grad=False)
    check(name, np.where(bools(4, 6) & (np.arange(6) > 0), np.nan, floats(4, 6)).astype(np.float32), 1, grad=name.startswith("nan"))
    check(name, x, 3)
    check(name, x, (1, 1))
    if name == "sum":
        for dtype in INTEGERS:
            check(name, ints(3, 4, low=0, high=3).astype(dtype), 1)
        check(name, bools(3, 4), dtype="@int32")
    else:
        check(name, ints(3, 4)) if name != "nansum" else check(name, ints(3, 4), 1)


def test_prod() -> None:
    x = floats(3, 5, 4)
    for dim in (0, 1, -1):
        for keepdim in (False, True):
            check("prod", x, dim, keepdim, layouts=PLAIN)
    check("prod", floats(3, 4))
    check("prod", floats(3, 4), dtype="@float32")
    check("prod", ints(3, 4), 1, dtype="@float32")
    check("prod", floats())
    check("prod", floats(0, 3), 0)
    check("prod", floats(0))
    check("prod", SPECIAL.reshape(3, 4), 1, grad=False)
    for dtype in INTEGERS:
        check("prod", ints(3, 4, low=0, high=3).astype(dtype), 1)
    check("prod", x, 3)


def test_the_gradient_of_prod_with_zeros() -> None:
    x = floats(6, 5)
    x[1, 2] = x[2, 0] = x[2, 3] = x[4] = 0
    check("prod", x, 1)
    check("prod", x, 0)
    check("prod", np.float32([2, 0, 3]))
    check("prod", np.float32([2, 0, 0]))
    check("prod", np.float32(0).reshape(()))
    for row in ([2, 0, 3], [0, 0, 3], [1, 2, 3]):
        seconds = []
        for lib in (mg, torch):
            v = lib.tensor(np.float32(row)).requires_grad_()
            g = lib.autograd.grad(v.prod(), v, create_graph=True)[0] if lib is torch else mg.grad([v.prod()], [v], create_graph=True)[0]
            s = (g * lib.tensor(np.float32([1, -2, 3]))).sum()
            seconds.append(torch.autograd.grad(s, v)[0] if lib is torch else mg.grad([s], [v])[0])
        np.testing.assert_allclose(seconds[0].numpy(), seconds[1].numpy(), rtol=1e-5)


# ---- extremes ----


@pytest.mark.parametrize("name", ["amax", "amin"])
def test_amax(name: str) -> None:
    x = floats(3, 5, 4)
    for dim in (0, 1, -1, (0, 2), (), (-1, 1)):
        for keepdim in (False, True):
            check(name, x, dim, keepdim, layouts=PLAIN)
    check(name, x)
    check(name, floats())
    check(name, np.float32([[1, 3, 3], [2, 2, 2]]), 1)
    check(name, np.float32([[1, 3, 3], [2, 2, 2]]))
    check(name, SPECIAL.reshape(4, 3), 1, grad=False)
    check(name, SPECIAL[3:], grad=False)
    check(name, SPECIAL, grad=False)
    for dtype in INTEGERS:
        check(name, ints(3, 4, low=0, high=3).astype(dtype), 1)
    check(name, floats(0, 3), 0)
    check(name, floats(0, 3), 1)
    check(name, floats(0))
    check(name, x, 3)


@pytest.mark.parametrize("name", ["max", "min"])
def test_max(name: str) -> None:
    x = floats(3, 5, 4)
    for dim in (0, 1, -1):
        for keepdim in (False, True):
            check(name, x, dim, keepdim, layouts=PLAIN)
    check(name, x)
    check(name, floats())
    check(name, floats(), 0)
    check(name, floats(3, 4), floats(4, seed=1))
    check(name, np.float32([[1, 3, 3], [2, 2, 2]]), 1)
    check(name, np.float32([[1, 3, 3], [2, 2, 2]]))
    check(name, SPECIAL.reshape(4, 3), 1, grad=False)
    for dtype in INTEGERS:
        check(name, ints(3, 4, low=0, high=2).astype(dtype), 1)
        check(name, ints(3, 4, low=0, high=2).astype(dtype))
    check(name, floats(0, 3), 0)
    check(name, floats(0, 3), 1)
    check(name, floats(0))


def test_aminmax() -> None:
    x = floats(3, 5, 4)
    check("aminmax", x)
    for dim in (0, 1, -1):
        check("aminmax", x, dim=dim, layouts=PLAIN)
        check("aminmax", x, dim=dim, keepdim=True, layouts=PLAIN)
    check("aminmax", SPECIAL, grad=False)
    check("aminmax", ints(3, 4), dim=1)
    check("aminmax", floats())
    check("aminmax", floats(0, 3), dim=0)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_places_of_extremes(name: str) -> None:
    x = floats(3, 5, 4)
    for dim in (None, 0, 1, -1):
        for keepdim in (False, True):
            check(name, x, dim, keepdim)
    ties = np.float32([[1, 3, 3, 1], [2, 2, 2, 2], [np.nan, 1, np.nan, 5], [np.inf, -np.inf, np.inf, -np.inf], [0.0, -0.0, -0.0, 0.0]])
    check(name, ties, 1)
    check(name, ties)
    check(name, ties[:2], 0)
    for dtype in ("int64", "int32", "uint8", "int8"):
        check(name, ints(3, 9, low=0, high=3).astype(dtype), 1)
    check(name, floats())
    check(name, floats(0, 3), 0)
    check(name, floats(0, 3), 1)
    check(name, floats(0))


@pytest.mark.parametrize("name", ["any", "all"])
def test_any_and_all(name: str) -> None:
    for x in (
        bools(3, 5, 4),
        ints(3, 5, 4, low=0, high=2),
        floats(3, 5, 4) * bools(3, 5, 4),
        ints(3, 5, 4, low=0, high=2).astype(np.uint8),
    ):
        check(name, x, grad=False)
        for dim in (0, -1, (0, 2)):
            for keepdim in (False, True):
                check(name, x, dim, keepdim, grad=False, layouts=PLAIN)
    check(name, SPECIAL.reshape(4, 3), 1, grad=False)
    check(name, np.zeros((0, 3), bool), 0)
    check(name, np.zeros((0, 3), bool))
    check(name, bools())


def test_count_nonzero() -> None:
    for x in (ints(3, 5, 4, low=0, high=2), bools(3, 5, 4), SPECIAL, floats(), floats(0, 3)):
        check("count_nonzero", x, grad=False)
        if x.ndim:
            check("count_nonzero", x, 0, grad=False)
    check("count_nonzero", ints(3, 5, 4, low=0, high=2), (0, -1))


# ---- logsumexp and softmax ----


def test_logsumexp() -> None:
    x = floats(3, 5, 4)
    for dim in (0, 1, -1, (0, 2), (1, 2), (0, 1, 2)):
        for keepdim in (False, True):
            check("logsumexp", x, dim, keepdim, layouts=PLAIN)
    check("logsumexp", floats(2, 300), 1)
    check("logsumexp", floats(), 0)
    check("logsumexp", floats(3, 4) * 200, 1)
    check("logsumexp", floats(0, 3), 0)
    check("logsumexp", floats(0, 3), 1)
    check("logsumexp", ints(3, 4), 1)
    inf = np.inf
    rows = np.float32([[inf, 1, 2], [-inf, 1, 2], [-inf, -inf, -inf], [inf, -inf, 0], [np.nan, inf, 1], [inf, inf, 0]])
    check("logsumexp", rows, 1, grad=False)
    check("logsumexp", rows[1:2], 1)
    check("logsumexp", x, 3)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "nn.functional.softmin"])
def test_softmax_with_a_dtype(name: str) -> None:
    x = floats(3, 5)
    for dim in (0, 1, -1):
        check(name, x, dim)
        check(name, x.astype(np.float16), dim, dtype="@float32", half=False, rtol=1e-3)
        check(name, ints(3, 5), dim, dtype="@float32")
    check(name, ints(3, 5), 1)


# ---- norms ----

ORDERS = (1, 2, 3, 0.5, 1.5, -1, -2.5, 0, math.inf, -math.inf)


@pytest.mark.parametrize("order", ORDERS)
def test_vector_norm(order: float) -> None:
    x = floats(3, 5, 4)
    grad = order != 0  # PyTorch has no gradient there, not zeros
    for dim in (None, 1, (0, 2)):
        check("linalg.vector_norm", x, order, dim, layouts=PLAIN[: 2 if dim == 1 else 1], rtol=5e-5, grad=grad, half=dim == 1)
    check("norm", x, order, (0, 2), True, layouts=("plain",), rtol=5e-5, half=False, grad=grad)
    sparse = x * bools(3, 5, 4)
    sparse[1] = 0
    if order > 0 and order != 0.5:
        check("linalg.vector_norm", sparse, order, 1, rtol=5e-5, layouts=("plain",), half=False)
        check("linalg.vector_norm", sparse, order, (1, 2), rtol=5e-5, layouts=("plain",), half=False)
    check("linalg.vector_norm", floats(), order, rtol=5e-5, half=order > 0, grad=grad)
    check("linalg.vector_norm", floats(0, 3), order, 0, grad=False)
    check("linalg.vector_norm", SPECIAL[3:], order, grad=False, half=False)


def test_norm_forms() -> None:
    x = floats(3, 5)
    for p in ("fro", 1):
        check("norm", x, p)
        check("norm", x, p, 1)
        check("norm", x, p, (0, 1), True)
    check(".norm", x)
    check(".norm", x, 1, -1)
    check("norm", x, dtype="@float32")
    check("norm", x, "frobenius")
    check("norm", ints(3, 4))
    for args in ((), (2, 0), (None, 1), (None, (0, 1)), (1,), (math.inf,), ("fro",), (-1, (0, 1)), (-math.inf, (1, 0), True)):
        check("linalg.norm", x, *args)
    check("linalg.norm", floats(4), 3)
    check("linalg.norm", floats(2, 3, 4), 1)
    check("linalg.norm", floats(2, 3, 4))


@pytest.mark.parametrize("order", ["fro", 1, -1, math.inf, -math.inf])
def test_matrix_norm(order: Any) -> None:
    check("linalg.matrix_norm", floats(3, 5), order)
    check("linalg.matrix_norm", floats(2, 3, 5), order, layouts=PLAIN)
    check("linalg.matrix_norm", floats(2, 3, 5), order, (0, -1), True)
    check("linalg.matrix_norm", floats(4), order)
    check("linalg.matrix_norm", floats(2, 3, 4), order, (1, 1))


@pytest.mark.parametrize("order", [2, -2, "nuc"])
def test_matrix_norms_of_singular_values(order: Any) -> None:
    check("linalg.matrix_norm", floats(3, 5), order, layouts=PLAIN, half=False, rtol=1e-4, grad=False)
    check("linalg.matrix_norm", floats(2, 3, 5), order, (0, -1), True, layouts=("plain",), half=False, rtol=1e-4, grad=False)


def test_renorm() -> None:
    for p in (1, 2, 3):
        for dim in (0, 1, -1):
            check("renorm", floats(3, 5, 4), p, dim, 3.0, half=False, layouts=PLAIN)
    check("renorm", floats(3), 2, 0, 1.0)
    check("renorm", floats(3, 4), -1, 0, 1.0)


# ---- variances ----


@pytest.mark.parametrize("name", ["var", "std", "var_mean", "std_mean"])
def test_variances(name: str) -> None:
    x = floats(3, 5, 4)
    for dim in DIMS:
        check(name, x, dim, layouts=PLAIN)
        check(name, x, dim, correction=0, keepdim=True, layouts=("plain",))
    check(name, x)
    check(name, x, False)
    check(name, x, True)
    check(name, x, 1, False)
    check(name, x, 1, True, True)
    check(name, x, unbiased=False)
    check(name, x, dim=1, unbiased=False, keepdim=True)
    check(name, x, dim=0, correction=2)
    check(name, x, dim=0, correction=0.5)
    check(name, floats(1, 4), 0, grad=False)
    check(name, floats(0, 4), 0, grad=False)
    check(name, floats(3, 4) + 300, 1, rtol=1e-4, half=False)
    check(name, ints(3, 4))
    if not name.endswith("mean"):  # PyTorch gives NaN for the mean of infinities here
        check(name, np.stack([SPECIAL, SPECIAL]), 0, grad=False)


def test_cov_and_corrcoef() -> None:
    x = floats(3, 7)
    for v in (x, floats(7), floats()):
        check("cov", v, half=False, grad=v.ndim == 2)
    check("cov", x, correction=0)
    check("cov", x, fweights=ints(7, low=1, high=4), half=False)
    check("cov", x, aweights=floats(7, low=0.2, high=2), half=False, grad=False)
    check("cov", x, fweights=ints(7, low=1, high=4), aweights=floats(7, low=0.2, high=2), half=False, grad=False)
    check("cov", ints(3, 7))
    check("cov", floats(2, 2, 2))
    check("cov", x, fweights=floats(7))
    check("corrcoef", x, half=False, rtol=5e-5)
    check("corrcoef", floats(7), half=False)


# ---- histograms ----


def test_histc() -> None:
    x = floats(200)
    check("histc", x, grad=False, half=False)
    check("histc", x, 7, -1, 1.5, grad=False, half=False)
    check("histc", x.reshape(10, 20), 13, grad=False, half=False)
    check("histc", np.float32([1, 1, 1]), 4, grad=False)
    check("histc", np.float32([0, 1, 2, 3, 4]), 4, 0, 4, grad=False)
    check("histc", floats(0), 4, grad=False)
    check("histc", x, 0, grad=False)
    check("histc", x, 4, 2, 1, grad=False)


def test_bincount() -> None:
    x = ints(50, low=0, high=9)
    check("bincount", x)
    check("bincount", x.astype(np.int32), minlength=20)
    check("bincount", x, minlength=3)
    check("bincount", np.zeros(0, np.int64))
    check("bincount", np.zeros(0, np.int64), minlength=4)
    check("bincount", x, floats(50), grad=False, half=False)
    check("bincount", x, floats(49))
    check("bincount", -x)
    check("bincount", floats(3))
    check("bincount", ints(2, 2))
    with pytest.raises(mg.TraceError):
        mg.compile(mg.bincount)(mg.tensor([1, 2]))


# ---- compiled ----


def test_compiled_is_eager() -> None:
    x = mg.tensor(floats(4, 6))

    def all_of_them(x: mg.Tensor) -> list[mg.Tensor]:
        return [
            x.prod(1), x.logsumexp(0), mg.linalg.vector_norm(x, 3, 1), x.norm(), *mg.std_mean(x, 1), mg.cov(x), x.nansum(0),
            mg.histc(x, 5), x.count_nonzero(1), *mg.aminmax(x, dim=0), x.renorm(2, 0, 1.0),
        ]  # fmt: skip

    for g, w in zip(mg.compile(all_of_them)(x), all_of_them(x), strict=True):
        np.testing.assert_allclose(g.numpy(), w.numpy(), rtol=1e-5, atol=1e-6)


SECOND: dict[str, Any] = {
    "prod": lambda lib, x: x.prod(1),
    "prod of zeros": lambda lib, x: (x * lib.tensor(np.float32([1, 0, 1, 0, 1]))).prod(1),
    "logsumexp": lambda lib, x: x.logsumexp(1),
    "norm": lambda lib, x: x.norm(),
    "norm 1.5": lambda lib, x: lib.linalg.vector_norm(x, 1.5, 1),
    "norm 3": lambda lib, x: lib.linalg.vector_norm(x, 3, 1),
    "std": lambda lib, x: x.std(1),
    "cov": lambda lib, x: lib.cov(x),
    "renorm": lambda lib, x: x.renorm(2, 0, 1.0),
    "nansum": lambda lib, x: (x * x).nansum(1),
    "scatter_reduce": lambda lib, x: (x * x).scatter_reduce(1, lib.tensor(ints(4, 5, low=0, high=5)), x * x * x, "prod"),
    "index_put": lambda lib, x: (x * x).index_put((lib.tensor([0, 2]),), x[1:3] ** 3),
}


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives(name: str) -> None:
    found = []
    for lib in (mg, torch):
        x = lib.tensor(floats(4, 5)).requires_grad_()
        y = SECOND[name](lib, x)
        y = (y * y).sum()
        grad = torch.autograd.grad if lib is torch else mg.grad
        (first,) = grad([y], [x], create_graph=True)
        (second,) = grad([(first * first).sum()], [x])
        found.append((first.detach().numpy(), second.numpy()))
    for got, want in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-4 * float(np.abs(want).max() + 1))
