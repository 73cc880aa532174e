"""Gradients of samples, histograms, distances of pairs, places of what is not zero, orthogonal polynomials."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura.ops.polynomials import POLYNOMIALS
from tests.surface.compare import SPECIAL, bools, check, floats, ints, torch

QUICK = ("plain", "transposed", "stepped")
PLACES = np.cumsum(np.abs(floats(6, seed=5)) + 0.3).astype(np.float32)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(
    "options", [{}, {"dim": 1}, {"dim": (1, 0)}, {"spacing": 0.5}, {"spacing": (2.0, 3.0)}, {"dim": -1, "spacing": 2.0}], ids=str
)
def test_gradient(order: int, options: dict[str, Any]) -> None:
    check("gradient", floats(5, 6), edge_order=order, layouts=QUICK, **options)
    check("gradient", ints(4, 3), edge_order=order, layouts=("plain",), **options)


def test_gradient_at_places_and_errors() -> None:
    check("gradient", floats(6), spacing=[PLACES], layouts=QUICK)
    check("gradient", floats(6), spacing=[PLACES], edge_order=2, layouts=QUICK, rtol=1e-4)
    check("gradient", floats(5, 6), spacing=[PLACES], dim=1, layouts=QUICK)
    check("gradient", floats(2), layouts=("plain",))
    for wrong in ({"edge_order": 3}, {"spacing": (1.0, 2.0)}, {"dim": 3}, {"dim": (0, 0)}):
        check("gradient", floats(6), layouts=("plain",), **wrong)
    check("gradient", floats(2), edge_order=2, layouts=("plain",))


@pytest.mark.parametrize("bins", [1, 7, np.array([-1.0, 0.0, 0.25, 2.0], np.float32)])
@pytest.mark.parametrize("density", [False, True])
def test_histogram(bins: Any, density: bool) -> None:
    x = np.concatenate([floats(40), np.float32([0, 0.25, 2, -1, 2.4])])
    check("histogram", x, bins, density=density, grad=False, layouts=QUICK, half=False)
    check("histogram", x, bins, weight=np.abs(floats(45, seed=2)), density=density, grad=False, layouts=("plain",), half=False)
    if isinstance(bins, int):
        check("histogram", x, bins, range=(-1.0, 1.0), density=density, grad=False, layouts=("plain",), half=False)
        check("histogram", np.float32([2.0, 2.0]), bins, grad=False, layouts=("plain",), half=False)


def test_histogram_of_points() -> None:
    x = floats(50, 3)
    check_dd(x, [3, 4, 2])
    check_dd(x, [3, 4, 2], range=[-1.0, 1.0, -2.0, 2.0, 0.0, 1.0], density=True)
    check_dd(x, 2, weight=np.abs(floats(50, seed=9)))
    with pytest.raises(mg.ShapeError):
        mg.histogramdd(mg.tensor(x), [3, 4])


def check_dd(x: Any, bins: Any, **options: Any) -> None:
    found = []
    for lib in (mg, torch):
        given = {k: lib.tensor(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
        hist, edges = lib.histogramdd(lib.tensor(x), bins, **given)
        found.append([hist.numpy(), *(e.numpy() for e in edges)])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_histogram_errors() -> None:
    for wrong in ((floats(4), 0), (ints(4), 3), (floats(4), floats(2, 2))):
        check("histogram", *wrong, grad=False, layouts=("plain",), half=False)
    check("histogram", floats(4), 3, range=(1.0, 0.0), grad=False, layouts=("plain",), half=False)


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.5, float("inf")])
def test_pdist(p: float) -> None:
    check("pdist", floats(6, 4), p, layouts=QUICK, half=False, rtol=1e-4, grad=p != 0)
    check("nn.functional.pdist", floats(1, 4), p, layouts=("plain",), half=False, grad=False)
    check("pdist", floats(0, 4), p, layouts=("plain",), half=False, grad=False)  # PyTorch's backward of nothing crashes


def test_pdist_errors() -> None:
    check("pdist", floats(3), layouts=("plain",))
    check("pdist", ints(3, 2), layouts=("plain",))


@pytest.mark.parametrize("size", [0, 3, 9, 40])
def test_nonzero_static(size: int) -> None:
    for x in (bools(4, 5), ints(3, 2, 4, low=-1, high=2), SPECIAL, np.zeros((3, 0), np.float32), np.zeros(4, np.float32)):
        check("nonzero_static", x, size=size, grad=False, layouts=QUICK, half=False)
        check("nonzero_static", x, size=size, fill_value=7, grad=False, layouts=("plain",), half=False)
    check("nonzero_static", bools(3), size=-1, layouts=("plain",))


def test_compiled_without_reading() -> None:
    x = mg.tensor(bools(4, 5))
    assert mg.compile(lambda t: mg.nonzero_static(t, size=6))(x).tolist() == mg.nonzero_static(x, size=6).tolist()
    y = mg.tensor(floats(4, 5))
    assert mg.compile(lambda t: mg.histogram(t, 4).hist)(y).tolist() == mg.histogram(y, 4).hist.tolist()


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_polynomial(name: str) -> None:
    x = floats(3, 7, low=-1.0, high=1.0)
    for n in (-1, 0, 1, 2, 5, 9):
        check(f"special.{name}", x, n, grad=False, layouts=("plain", "stepped"), half=False, rtol=1e-4, atol=1e-4)
    check(f"special.{name}", ints(5, low=-1, high=2), 3, grad=False, layouts=("plain",))
    assert mg.autograd.gradcheck(lambda t: getattr(mg.special, name)(t, 4), (mg.tensor(x[0], requires_grad=True),))
    with pytest.raises(mg.DTypeError, match="a number as its degree"):
        getattr(mg.special, name)(mg.tensor(x), mg.tensor([1, 2]))
