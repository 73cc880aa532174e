"""Pooling against PyTorch: windows of every kind, gradients, indices, NaN and infinities, refusals, compiled."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from tests.surface.compare import check, floats, torch

F = "nn.functional."
FEW = ("plain", "transposed", "stepped")
SHAPES = {1: [(2, 3, 11), (3, 8)], 2: [(2, 3, 7, 10), (3, 9, 5)], 3: [(1, 2, 5, 6, 7), (2, 4, 5, 3)]}


def distinct(*shape: int, seed: int = 0) -> Any:
    """float32 values that all differ, in float16 too."""
    n = int(np.prod(shape))
    return (np.random.default_rng(seed).permutation(n) / 64 - 1.5).reshape(shape).astype(np.float32)


MAX: dict[int, list[dict[str, Any]]] = {
    1: [
        {"kernel_size": 3},
        {"kernel_size": 2, "stride": 3, "padding": 1},
        {"kernel_size": 3, "stride": 2, "padding": 1, "dilation": 2},
        {"kernel_size": 3, "stride": 2, "ceil_mode": True},
        {"kernel_size": (4,), "stride": 1, "padding": 2, "ceil_mode": True},
    ],
    2: [
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": (2, 3)},
        {"kernel_size": (3, 2), "stride": (1, 3), "padding": (1, 0), "dilation": (1, 2)},
        {"kernel_size": (2, 3), "stride": (3, 2), "padding": (1, 1), "ceil_mode": True},
        {"kernel_size": 2, "stride": 3},
        {"kernel_size": 2, "stride": 1, "dilation": 3},
    ],
    3: [
        {"kernel_size": 2},
        {"kernel_size": (2, 3, 2), "stride": (1, 2, 1), "padding": (0, 1, 1)},
        {"kernel_size": 2, "stride": 2, "dilation": (1, 2, 1), "ceil_mode": True},
    ],
}
MAX_CASES = [(a, s, o) for a in (1, 2, 3) for s in SHAPES[a] for o in MAX[a]]


@pytest.mark.parametrize(("axes", "shape", "options"), MAX_CASES, ids=str)
def test_max_pool(axes: int, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    check(f"{F}max_pool{axes}d", distinct(*shape), layouts=FEW, return_indices=True, **options)
    check(f"{F}max_pool{axes}d", distinct(*shape, seed=1), layouts=("plain",), **options)


def test_ties_take_the_first_and_nan_wins() -> None:
    x = np.round(floats(2, 2, 9, 8)).astype(np.float32)
    check(F + "max_pool2d", x, 3, 2, 1, return_indices=True)
    for value in (np.nan, np.inf, -np.inf):
        y = x.copy()
        y[0, 0, 2:4, 3] = value
        y[1, 1, 5, 1:6] = value
        check(F + "max_pool2d", y, 3, 2, 1, return_indices=True, layouts=FEW, half=False)
        check(F + "adaptive_max_pool2d", y, (4, 3), return_indices=True, layouts=FEW, half=False)
    check(F + "max_pool2d", np.full((1, 1, 5, 5), -np.inf, np.float32), 3, 2, 1, return_indices=True, grad=False)


AVERAGE: dict[int, list[dict[str, Any]]] = {
    1: [
        {"kernel_size": 3},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": 4, "stride": 3, "padding": 2, "ceil_mode": True},
    ],
    2: [
        {"kernel_size": (3, 2), "stride": 2, "padding": 1},
        {"kernel_size": 2},
        {"kernel_size": (3, 4), "stride": (2, 3), "padding": (1, 2), "ceil_mode": True},
        {"kernel_size": 3, "stride": (1, 2), "divisor_override": 5},
        {"kernel_size": 1, "stride": 2},
    ],
    3: [
        {"kernel_size": 2},
        {"kernel_size": (2, 3, 2), "stride": (1, 2, 2), "padding": (1, 1, 0), "ceil_mode": True},
        {"kernel_size": 2, "divisor_override": 3},
    ],
}


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_avg_pool(axes: int, include: bool) -> None:
    for shape, options in itertools.product(SHAPES[axes], AVERAGE[axes]):
        check(f"{F}avg_pool{axes}d", floats(*shape), layouts=FEW, count_include_pad=include, half=axes < 3, **options)


ADAPTIVE: dict[int, list[Any]] = {1: [1, 3, 20, (4,)], 2: [1, (3, 4), (None, 2), (9, 13), 2, (1, 5)], 3: [1, (2, 3, 4), (None, 1, 2)]}


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("kind", ["avg", "max"])
def test_adaptive(kind: str, axes: int) -> None:
    for shape, size in itertools.product(SHAPES[axes], ADAPTIVE[axes]):
        check(f"{F}adaptive_{kind}_pool{axes}d", distinct(*shape), size, layouts=FEW)
        if kind == "max":
            check(f"{F}adaptive_max_pool{axes}d", distinct(*shape), size, True, layouts=("plain",))


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_unpool(axes: int) -> None:
    for shape in SHAPES[axes]:
        x = distinct(*shape)
        pooled, places = getattr(torch.nn.functional, f"max_pool{axes}d")(torch.tensor(x), 2, return_indices=True)
        check(f"{F}max_unpool{axes}d", pooled.numpy(), places.numpy(), 2, layouts=("plain",), output_size=shape[-axes:], half=axes < 2)
        check(f"{F}max_unpool{axes}d", pooled.numpy(), places.numpy(), 2, layouts=("plain",), output_size=[1] * axes, half=False)
        even = np.ascontiguousarray(x[(..., *[slice(None, 4)] * axes)]) if min(shape[-axes:]) >= 4 else None
        if even is not None:
            pooled, places = getattr(torch.nn.functional, f"max_pool{axes}d")(torch.tensor(even), 2, return_indices=True)
            check(f"{F}max_unpool{axes}d", pooled.numpy(), places.numpy(), 2, layouts=("plain",), half=False)


@pytest.mark.parametrize("norm", [1.0, 2.0, 3.0])
def test_lp_pool(norm: float) -> None:
    check(F + "lp_pool1d", floats(2, 3, 9, low=0.2), norm, 2, layouts=("plain",), half=False)
    check(F + "lp_pool2d", floats(2, 7, 9, low=0.2), norm, (2, 3), layouts=("plain",), ceil_mode=True, half=False)
    check(F + "lp_pool3d", floats(1, 2, 4, 5, 6, low=0.2), norm, 2, 1, layouts=("plain",), half=False)


def test_fractional() -> None:
    for axes, shape, size in ((2, (2, 3, 9, 11), (4, 5)), (3, (2, 2, 5, 6, 7), (2, 3, 4)), (2, (3, 9, 11), (1, 5))):
        samples = np.random.default_rng(0).random((*((1,) if len(shape) == axes + 1 else ()), *shape[: len(shape) - axes], axes))
        samples = samples.astype(np.float32)
        both = [getattr(lib.nn.functional, f"fractional_max_pool{axes}d") for lib in (mg, torch)]
        x = distinct(*shape)
        got = both[0](mg.tensor(x), 2, output_size=size, return_indices=True, _random_samples=mg.tensor(samples))
        want = both[1](torch.tensor(x), 2, output_size=size, return_indices=True, _random_samples=torch.tensor(samples))
        for g, w in zip(got, want, strict=True):
            np.testing.assert_array_equal(g.numpy(), w.numpy())
    mg.manual_seed(0)
    assert mg.nn.functional.fractional_max_pool2d(mg.randn(1, 2, 8, 8), 2, output_ratio=(0.5, 0.6)).shape == (1, 2, 4, 4)
    with pytest.raises((mg.MeganeuraError, ValueError)):
        mg.nn.functional.fractional_max_pool2d(mg.randn(1, 2, 8, 8), 2)


WRONG: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("max_pool2d", (2, 3, 4, 4), {"kernel_size": 5}),
    ("max_pool2d", (2, 3, 4, 4), {"kernel_size": 2, "padding": 2}),
    ("max_pool2d", (2, 3, 4, 4), {"kernel_size": 2, "stride": 0}),
    ("max_pool2d", (2, 3, 4, 4), {"kernel_size": (2, 2, 2)}),
    ("max_pool2d", (4, 4), {"kernel_size": 2}),
    ("max_pool1d", (4, 0), {"kernel_size": 2}),
    ("max_pool2d", (2, 3, 4, 4), {"kernel_size": 2, "dilation": 0}),
    ("max_pool3d", (2, 3, 4, 4), {"kernel_size": 4}),
    ("avg_pool2d", (2, 3, 4, 4), {"kernel_size": 5}),
    ("avg_pool2d", (2, 3, 4, 4), {"kernel_size": 3, "padding": 2}),
    ("avg_pool2d", (2, 3, 4, 4), {"kernel_size": 2, "divisor_override": 0}),
    ("avg_pool1d", (2, 3, 4, 4), {"kernel_size": 2}),
    ("adaptive_avg_pool2d", (2, 3, 4, 4), {"output_size": (1, 2, 3)}),
    ("adaptive_max_pool2d", (4, 4), {"output_size": 2}),
    ("adaptive_avg_pool2d", (2, 3, 0, 4), {"output_size": 2}),
]


@pytest.mark.parametrize(("name", "shape", "options"), WRONG, ids=str)
def test_refusals(name: str, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    check(F + name, floats(*shape), layouts=("plain",), half=False, **options)


def test_integers() -> None:
    x = np.random.default_rng(0).integers(-9, 9, (2, 3, 6, 8))
    check(F + "max_pool2d", x, 3, 2, 1, return_indices=True, layouts=FEW)
    check(F + "max_pool3d", x, 2, layouts=("plain",))


def test_empty_batches_and_sizes() -> None:
    check(F + "max_pool2d", floats(0, 3, 4, 4), 2, layouts=("plain",), half=False)
    check(F + "avg_pool2d", floats(0, 3, 4, 4), 2, layouts=("plain",), half=False)
    check(F + "adaptive_avg_pool2d", floats(2, 3, 4, 4), 0, layouts=("plain",), half=False, grad=False)


def test_large_windows_go_axis_by_axis() -> None:
    x = np.round(floats(1, 2, 90, 85) * 40).astype(np.float32)
    check(F + "max_pool2d", x, (80, 70), (3, 4), layouts=("plain",), return_indices=True, half=False)
    check(F + "adaptive_max_pool2d", x, (1, 1), layouts=("plain",), return_indices=True, half=False)
    check(F + "avg_pool2d", x, (80, 70), (3, 4), (9, 3), layouts=("plain",), half=False)
    check(F + "adaptive_avg_pool2d", x, (1, 2), layouts=("plain",), half=False)


def test_gradients_of_gradients() -> None:
    x = mg.tensor(distinct(1, 2, 5, 6))
    assert mg.autograd.gradcheck(lambda t: mg.nn.functional.max_pool2d(t * t, 3, 2, 1), (x,))
    for fn in (lambda t: mg.nn.functional.max_pool2d(t, 3, 2, 1), lambda t: mg.nn.functional.avg_pool2d(t, 3, 2, 1)):
        leaf = mg.tensor(distinct(1, 2, 5, 6), requires_grad=True)
        (g,) = mg.autograd.grad([(fn(leaf) ** 2).sum()], [leaf], create_graph=True)
        (h,) = mg.autograd.grad([(g * g).sum()], [leaf])
        t = torch.tensor(distinct(1, 2, 5, 6), requires_grad=True)
        f = torch.nn.functional
        y = f.max_pool2d(t, 3, 2, 1) if fn(leaf).sum().item() == f.max_pool2d(t, 3, 2, 1).sum().item() else f.avg_pool2d(t, 3, 2, 1)
        (tg,) = torch.autograd.grad((y**2).sum(), t, create_graph=True)
        (th,) = torch.autograd.grad((tg * tg).sum(), t)
        np.testing.assert_allclose(h.numpy(), th.numpy(), rtol=1e-4, atol=1e-5)


def test_compiled() -> None:
    f = mg.nn.functional

    def loss(x: Any) -> Any:
        y = f.max_pool2d(x * 2, 3, 2, 1).relu()
        return (f.adaptive_avg_pool2d(f.avg_pool2d(y, 2, 1), (2, 3)) ** 2).sum()

    def step(x: Any) -> Any:
        out = loss(x)
        return out, *mg.autograd.grad([out], [x])

    x = mg.tensor(distinct(2, 3, 9, 11), requires_grad=True)
    for got, want in zip(mg.compile(step)(x), step(x), strict=True):
        np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=1e-5, atol=1e-6)


MODULES: list[tuple[str, tuple[Any, ...], dict[str, Any], tuple[int, ...]]] = [
    ("MaxPool1d", (3,), {"stride": 2}, (2, 3, 9)),
    ("MaxPool2d", ((2, 3),), {"return_indices": True}, (2, 3, 6, 7)),
    ("MaxPool3d", (2,), {"ceil_mode": True}, (1, 2, 5, 5, 5)),
    ("AvgPool1d", (3, 2, 1), {}, (2, 3, 9)),
    ("AvgPool2d", (2,), {"count_include_pad": False, "padding": 1}, (2, 3, 6, 7)),
    ("AvgPool3d", (2,), {"divisor_override": 3}, (1, 2, 5, 5, 5)),
    ("AdaptiveAvgPool1d", (3,), {}, (2, 3, 9)),
    ("AdaptiveAvgPool2d", ((None, 3),), {}, (2, 3, 6, 7)),
    ("AdaptiveAvgPool3d", (2,), {}, (1, 2, 5, 5, 5)),
    ("AdaptiveMaxPool1d", (3,), {}, (2, 3, 9)),
    ("AdaptiveMaxPool2d", ((4, 3),), {"return_indices": True}, (2, 3, 6, 7)),
    ("AdaptiveMaxPool3d", (2,), {}, (1, 2, 5, 5, 5)),
    ("LPPool1d", (2, 3), {"stride": 2}, (2, 3, 9)),
    ("LPPool2d", (2, (2, 3)), {}, (2, 3, 6, 7)),
    ("LPPool3d", (2, 2), {"ceil_mode": True}, (1, 2, 5, 5, 5)),
]


@pytest.mark.parametrize(("name", "args", "options", "shape"), MODULES, ids=str)
def test_modules(name: str, args: Any, options: Any, shape: Any) -> None:
    ours, theirs = getattr(mg.nn, name)(*args, **options), getattr(torch.nn, name)(*args, **options)
    assert repr(ours) == repr(theirs)
    x = np.abs(distinct(*shape)) + 0.1
    got, want = ours(mg.tensor(x)), theirs(torch.tensor(x))
    for g, w in zip(got if isinstance(got, tuple) else (got,), want if isinstance(want, tuple) else (want,), strict=True):
        np.testing.assert_allclose(g.numpy(), w.numpy(), rtol=2e-5, atol=1e-6)


def test_unpool_modules() -> None:
    for axes in (1, 2, 3):
        x = distinct(1, 2, *[4] * axes)
        pool = [getattr(lib.nn, f"MaxPool{axes}d")(2, return_indices=True) for lib in (mg, torch)]
        back = [getattr(lib.nn, f"MaxUnpool{axes}d")(2, stride=2) for lib in (mg, torch)]
        assert repr(back[0]) == repr(back[1])
        got, want = back[0](*pool[0](mg.tensor(x))), back[1](*pool[1](torch.tensor(x)))
        np.testing.assert_array_equal(got.numpy(), want.numpy())
