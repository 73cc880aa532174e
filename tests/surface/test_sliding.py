"""Blocks of images as columns, and back, against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meganeura as mg
from tests.surface.compare import check, floats, torch

F = "nn.functional."
CASES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 7, 9), {"kernel_size": 3}),
    ((2, 3, 7, 9), {"kernel_size": (2, 3), "stride": 2, "padding": (1, 2)}),
    ((3, 7, 9), {"kernel_size": (3, 2), "dilation": (2, 3), "padding": 1}),
    ((1, 2, 8, 8), {"kernel_size": 2, "dilation": 3, "stride": 2}),
    ((1, 2, 8, 8), {"kernel_size": 2, "stride": 3}),
    ((2, 1, 5, 5), {"kernel_size": 5}),
    ((2, 1, 5, 4), {"kernel_size": 1, "stride": (1, 3)}),
    ((0, 2, 5, 4), {"kernel_size": 2}),
]
WRONG: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 7, 9), {"kernel_size": 8}),
    ((2, 3, 7, 9), {"kernel_size": 0}),
    ((2, 3, 7, 9), {"kernel_size": 2, "stride": 0}),
    ((2, 3, 7, 9), {"kernel_size": 2, "dilation": 0}),
    ((7, 9), {"kernel_size": 2}),
    ((2, 0, 7, 9), {"kernel_size": 2}),
]


@pytest.mark.parametrize(("shape", "options"), CASES + WRONG)
def test_unfold(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    check(F + "unfold", floats(*shape), layouts=("plain", "transposed", "stepped"), **options)


@pytest.mark.parametrize(("shape", "options"), CASES)
def test_fold(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    columns = torch.nn.functional.unfold(torch.zeros(shape), **options).shape
    check(F + "fold", floats(*columns), shape[-2:], layouts=("plain", "transposed", "stepped"), **options)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((2, 12, 6), {"output_size": (4, 4), "kernel_size": 2}),
        ((2, 11, 9), {"output_size": (4, 4), "kernel_size": 2}),
        ((12,), {"output_size": (4, 4), "kernel_size": 2}),
        ((2, 12, 9), {"output_size": (4, 4), "kernel_size": 2, "stride": 0}),
        ((2, 12, 9), {"output_size": (1, 1), "kernel_size": 2}),
    ],
)
def test_fold_refuses(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    check(F + "fold", floats(*shape), layouts=("plain",), half=False, **options)


def test_modules() -> None:
    x = floats(2, 3, 6, 7)
    for name, args in (("Unfold", ((2, 3), 1, 1, 2)), ("Fold", ((8, 9), (2, 3), 1, 1, 2))):
        ours, theirs = getattr(mg.nn, name)(*args), getattr(torch.nn, name)(*args)
        assert repr(ours) == repr(theirs)
        x = ours(mg.tensor(x)).numpy() if name == "Unfold" else x
    want = torch.nn.Unfold((2, 3), 1, 1, 2)(torch.tensor(floats(2, 3, 6, 7))).numpy()
    np.testing.assert_array_equal(x, want)


def test_compiled_and_second_gradients() -> None:
    x = mg.tensor(floats(1, 2, 5, 6), requires_grad=True)

    def there_and_back(t: Any) -> Any:
        return mg.nn.functional.fold(mg.nn.functional.unfold(t, 3, padding=1) ** 2, (5, 6), 3, padding=1)

    with mg.no_grad():
        np.testing.assert_allclose(mg.compile(there_and_back)(x).numpy(), there_and_back(x).numpy(), rtol=1e-6)
    assert mg.autograd.gradcheck(there_and_back, (x,))
    (g,) = mg.grad([there_and_back(x).sum()], [x], create_graph=True)
    (gg,) = mg.grad([g.sum()], [x])
    assert g is not None and gg is not None
    np.testing.assert_allclose((gg * x.detach()).numpy(), g.detach().numpy(), rtol=1e-5)
