"""Special functions against PyTorch: error, gamma, Bessel and normal-distribution functions, and torch.special's names."""

from __future__ import annotations

import numpy as np
import pytest

import meganeura as mg
from tests.surface.compare import SPECIAL, check, floats, ints

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

DOMAINS = {
    "erf": (-3, 3), "erfc": (-3, 3), "erfcx": (-2, 4), "erfinv": (-0.95, 0.95), "expit": (-4, 4), "logit": (0.05, 0.95), "expm1": (-3, 3),
    "log1p": (-0.9, 4), "exp2": (-4, 4), "entr": (0.1, 3), "gammaln": (0.2, 6), "digamma": (0.2, 6), "psi": (0.2, 6), "i0": (-12, 12),
    "i0e": (-12, 12), "i1": (-12, 12), "i1e": (-12, 12), "ndtr": (-4, 4), "ndtri": (0.02, 0.98), "log_ndtr": (-6, 4), "sinc": (-3, 3),
}  # fmt: skip


@pytest.mark.parametrize("name", DOMAINS)
def test_function(name: str) -> None:
    low, high = DOMAINS[name]
    x = floats(5, 7, low=low, high=high)
    check(f"special.{name}", x, half=name not in ("erfcx", "i1", "i1e", "ndtri", "log_ndtr"))  # PyTorch has no such kernels
    check(f"special.{name}", floats(low=low, high=high), layouts=("plain",), half=False)
    check(f"special.{name}", floats(0, 3), layouts=("plain",), half=False)
    check(f"special.{name}", ints(4, low=0, high=3), layouts=("plain",), grad=False)


@pytest.mark.parametrize("name", sorted({*DOMAINS} - {"psi", "expit"}))
def test_special_values(name: str) -> None:
    x = SPECIAL[np.isfinite(SPECIAL) | np.isnan(SPECIAL)] if name in ("i0", "i1", "sinc") else SPECIAL  # PyTorch's i0(inf) is NaN
    check(f"special.{name}", x, layouts=("plain",), grad=False, half=False, rtol=1e-5)


def test_gamma_below_zero() -> None:
    x = np.float32([-0.1, -0.3, -0.5, -0.7, -1.5, -2.3, -3.75, -10.25, -1, -2, -0.0, 0.0, -100.5, 1e-30, -1e-30])
    check("lgamma", x, layouts=("plain",), grad=False, half=False)
    check("digamma", x, layouts=("plain",), grad=False, half=False)
    check("lgamma", x[:8], layouts=("plain",), half=False)
    check("polygamma", 1, x[:8], layouts=("plain",), half=False)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 5])
def test_polygamma(n: int) -> None:
    check("polygamma", n, floats(4, 5, low=0.3, high=6), half=n < 2)
    check((lambda x: x.polygamma(n), lambda x: x.polygamma(n)), floats(5, low=0.5, high=3), layouts=("plain",), half=False)
    check("polygamma", n, np.float32([30, 200, 1e4, 0.01, 3.5]), layouts=("plain",), half=False)


def test_polygamma_refuses() -> None:
    check("polygamma", -1, floats(3, low=1))


def test_second_derivatives() -> None:
    x = floats(6, low=0.4, high=3)
    for name in ("lgamma", "digamma", "erfc", "erfinv", "i0", "sinc", "atan", "logit"):
        values = x * 0.3 if name in ("erfinv", "logit") else x
        out = []
        for lib, grad in ((mg, mg.grad), (torch, torch.autograd.grad)):
            t = lib.tensor(values).requires_grad_()
            (g,) = grad([getattr(lib, name)(t).sum()], [t], create_graph=True)
            g.sum().backward()
            out.append(t.grad.numpy())
        np.testing.assert_allclose(out[0], out[1], rtol=1e-4, atol=1e-5, err_msg=name)


def test_multigammaln() -> None:
    check("special.multigammaln", floats(5, low=2, high=6), 3)
    check("mvlgamma", floats(5, low=2, high=6), 2, layouts=("plain",))
    check("special.multigammaln", floats(5, low=2, high=6), 0)


def test_logit_and_logs() -> None:
    check("logit", floats(5, 7, low=0.02, high=0.9), eps=0.1)
    check("logit", floats(5, 7, low=0.02, high=0.9), 1e-6, layouts=("plain",))
    check("special.xlog1py", floats(5, 7), floats(7, low=0.3, seed=1))
    check("special.xlog1py", ints(5), 2.5, layouts=("plain",))
    check("special.xlogy", 2.5, floats(5, low=0.3), layouts=("plain",))
    check("special.xlogy", floats(5), 0.5, layouts=("plain",))
    check("special.round", floats(5), layouts=("plain",))


def test_namespace() -> None:
    with pytest.raises(AttributeError):
        mg.special.nothing
    assert {"erfcx", "psi", "multigammaln", "log_ndtr"} <= set(dir(mg.special))
    assert set(dir(mg.special)) <= set(dir(torch.special))


def test_compiled() -> None:
    x = floats(5, 7, low=0.1, high=0.9)

    def f(a):
        s = mg.special
        return (mg.lgamma(a) + mg.digamma(a) + s.i0e(a) + s.i1(a) + s.ndtri(a) + s.log_ndtr(a) + mg.erfinv(a) + mg.polygamma(2, a)).sum()

    step = mg.compile(f)
    for _ in range(2):
        np.testing.assert_allclose(step(mg.tensor(x)).numpy(), f(mg.tensor(x)).numpy(), rtol=1e-5)
