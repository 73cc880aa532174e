"""Images of another size and at given places, against PyTorch: every mode, gradients, refusals, compiled."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from tests.surface.compare import check, floats, torch

F = "nn.functional."
FEW = ("plain", "transposed", "stepped")
SHAPES = {1: (2, 3, 7), 2: (2, 3, 5, 8), 3: (1, 2, 3, 5, 4)}
SIZES: dict[int, list[Any]] = {1: [1, 13, (4,)], 2: [1, (9, 5), (3, 16), 8], 3: [(2, 7, 4), 5]}
FACTORS: dict[int, list[Any]] = {1: [2, 0.6], 2: [2, (1.7, 0.5), (0.4, 2.3)], 3: [(1.4, 2, 0.8)]}
LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}
MODES = [(d, m) for d in (1, 2, 3) for m in ("nearest", "nearest-exact", "area", LINEAR[d])] + [(2, "bicubic")]


def _corners(mode: str) -> list[dict[str, Any]]:
    return [{"align_corners": a} for a in (False, True)] if "linear" in mode or mode == "bicubic" else [{}]


@pytest.mark.parametrize(("dims", "mode"), MODES)
def test_sizes_and_factors(dims: int, mode: str) -> None:
    x = floats(*SHAPES[dims])
    half = not (dims == 3 and mode == "area") and mode != "bicubic"
    for options in _corners(mode):
        for i, size in enumerate(SIZES[dims]):
            check(F + "interpolate", x, size, mode=mode, layouts=FEW if i == 1 else ("plain",), half=half and i == 1, **options)
        for factor, again in itertools.product(FACTORS[dims], (None, True)):
            check(
                F + "interpolate",
                x,
                scale_factor=factor,
                mode=mode,
                recompute_scale_factor=again,
                layouts=("plain",),
                half=False,
                **options,
            )


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("align", [False, True])
def test_antialias(mode: str, align: bool) -> None:
    for shape, size in (((2, 3, 17, 20), (5, 31)), ((1, 2, 40, 9), (3, 4)), ((1, 1, 8, 8), (8, 4))):
        check(F + "interpolate", floats(*shape), size, None, mode, align, None, True, layouts=("plain", "transposed"), half=False)
    check(F + "interpolate", floats(1, 2, 12, 9), None, (0.3, 0.7), mode, align, None, True, layouts=("plain",), half=False)


def test_same_size_and_large_factors() -> None:
    for mode in ("nearest", "bilinear", "bicubic"):
        check(F + "interpolate", floats(1, 2, 6, 5), (6, 5), mode=mode, layouts=("plain",), half=False)
        if mode == "bilinear":  # a factor that leaves the size as it is changes nothing
            check(F + "interpolate", floats(1, 2, 3, 5), scale_factor=(1.3, 1.1), mode=mode, layouts=("plain",), half=False)
        check(F + "interpolate", floats(1, 2, 3, 2), (50, 41), mode=mode, layouts=("plain",), half=False)
        check(F + "interpolate", floats(1, 1, 50, 70), (3, 2), mode=mode, layouts=("plain",), half=False)


def test_bytes() -> None:
    x = np.random.default_rng(0).integers(0, 256, (2, 3, 6, 7)).astype(np.uint8)
    for mode in ("nearest", "nearest-exact"):
        check(F + "interpolate", x, (4, 11), mode=mode, layouts=("plain",))
    got = mg.nn.functional.interpolate(mg.tensor(x), (9, 5), mode="bilinear").numpy().astype(int)
    want = torch.nn.functional.interpolate(torch.tensor(x), (9, 5), mode="bilinear").numpy().astype(int)
    assert got.dtype == want.dtype
    assert np.max(np.abs(got - want)) <= 1


def test_infinities_stay_where_they_are() -> None:
    x = floats(1, 1, 4, 4)
    x[0, 0, 0, 0] = np.inf
    x[0, 0, 3, 2] = np.nan
    check(F + "interpolate", x, (8, 8), mode="nearest", layouts=("plain",), grad=False)


WRONG: list[dict[str, Any]] = [
    {"size": 3, "scale_factor": 2},
    {},
    {"size": (3, 4, 5)},
    {"scale_factor": (1.0, 2.0, 3.0)},
    {"size": 3, "mode": "linear"},
    {"size": 3, "mode": "trilinear"},
    {"size": 3, "mode": "cubic"},
    {"size": 3, "mode": "nearest", "align_corners": True},
    {"size": 3, "mode": "nearest", "antialias": True},
    {"size": 3, "recompute_scale_factor": True},
    {"size": 0},
    {"size": (2.5, 3)},
    {"scale_factor": 0.1, "mode": "bilinear"},
]


@pytest.mark.parametrize("options", WRONG, ids=str)
def test_refusals(options: dict[str, Any]) -> None:
    check(F + "interpolate", floats(1, 2, 5, 6), layouts=("plain",), half=False, **options)


def test_other_refusals() -> None:
    check(F + "interpolate", floats(5, 6), 3, layouts=("plain",), half=False)
    check(F + "interpolate", floats(1, 2, 5), 3, mode="bicubic", layouts=("plain",), half=False)
    check(F + "interpolate", np.arange(24).reshape(1, 2, 3, 4), 3, layouts=("plain",))


def test_upsample() -> None:
    x = floats(1, 2, 3, 4)
    for name, options in (("Upsample", {"scale_factor": 2}), ("Upsample", {"size": (5, 7), "mode": "bilinear", "align_corners": True}),
                          ("UpsamplingNearest2d", {"scale_factor": 3}), ("UpsamplingBilinear2d", {"size": (7, 5)}),
                          ("Upsample", {"scale_factor": (2, 1.5), "mode": "bicubic"})):  # fmt: skip
        ours, theirs = getattr(mg.nn, name)(**options), getattr(torch.nn, name)(**options)
        assert repr(ours) == repr(theirs)
        np.testing.assert_allclose(ours(mg.tensor(x)).numpy(), theirs(torch.tensor(x)).numpy(), rtol=1e-5, atol=1e-6)


def test_gradients_of_gradients_and_compiled() -> None:
    f = mg.nn.functional

    def step(x: Any) -> Any:
        y = f.interpolate(f.interpolate(x, (7, 5), mode="bicubic"), scale_factor=2, mode="bilinear")
        out = (f.interpolate(y, (5, 9), mode="nearest") ** 3).sum()
        return out, *mg.autograd.grad([out], [x])

    x = mg.tensor(floats(1, 2, 4, 6), requires_grad=True)
    for got, want in zip(mg.compile(step)(x), step(x), strict=True):
        np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=1e-4, atol=1e-5)
    assert mg.autograd.gradcheck(lambda t: f.interpolate(t * t, (3, 5), mode="bilinear"), (mg.tensor(floats(1, 2, 4, 3)),))
    leaf = mg.tensor(floats(1, 2, 4, 6), requires_grad=True)
    (g,) = mg.autograd.grad([(f.interpolate(leaf, (7, 5), mode="bilinear") ** 3).sum()], [leaf], create_graph=True)
    (h,) = mg.autograd.grad([(g * g).sum()], [leaf])
    t = torch.tensor(floats(1, 2, 4, 6), requires_grad=True)
    (tg,) = torch.autograd.grad((torch.nn.functional.interpolate(t, (7, 5), mode="bilinear") ** 3).sum(), t, create_graph=True)
    (th,) = torch.autograd.grad((tg * tg).sum(), t)
    np.testing.assert_allclose(h.numpy(), th.numpy(), rtol=1e-4, atol=1e-3)


# ---- grid_sample ----


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample(mode: str, padding: str) -> None:
    x, grid = floats(2, 3, 5, 7), floats(2, 4, 6, 2, low=-1.6, high=1.6, seed=1)
    for align in (False, True):
        layouts = FEW if align else ("plain",)
        check(F + "grid_sample", x, grid, mode, padding, align, layouts=layouts, half=False, rtol=5e-5, grad_rtol=1e-3)
        if mode != "bicubic":
            volume, places = floats(2, 2, 3, 4, 5, seed=2), floats(2, 2, 3, 2, 3, low=-1.6, high=1.6, seed=3)
            check(F + "grid_sample", volume, places, mode, padding, align, layouts=("plain",), half=False, rtol=5e-5, grad_rtol=1e-3)
    check(F + "grid_sample", floats(1, 1, 1, 1), floats(1, 2, 2, 2), mode, padding, False, layouts=("plain",), half=False)


def test_grid_sample_through_affine_grid_compiled() -> None:
    f = mg.nn.functional

    def step(theta: Any, x: Any) -> Any:
        out = (f.grid_sample(x, f.affine_grid(theta, (2, 3, 4, 6), False), align_corners=False) ** 2).sum()
        return out, *mg.autograd.grad([out], [theta, x])

    theta = mg.tensor(floats(2, 2, 3, low=-0.9, high=0.9), requires_grad=True)
    x = mg.tensor(floats(2, 3, 5, 7), requires_grad=True)
    for got, want in zip(mg.compile(step)(theta, x), step(theta, x), strict=True):
        np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=2e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("shapes", "options"),
    [
        (((2, 3, 4, 4), (1, 2, 2, 2)), {}),
        (((2, 3, 4, 4), (2, 2, 2, 3)), {}),
        (((2, 3, 4, 4), (2, 2, 2, 2)), {"mode": "cubic"}),
        (((2, 3, 4, 4), (2, 2, 2, 2)), {"padding_mode": "circular"}),
        (((2, 3, 4), (2, 2, 2)), {}),
        (((2, 3, 0, 4), (2, 2, 2, 2)), {}),
        (((1, 1, 2, 3, 4), (1, 2, 2, 2, 3)), {"mode": "bicubic"}),
    ],
)
def test_grid_sample_refusals(shapes: Any, options: Any) -> None:
    check(F + "grid_sample", floats(*shapes[0]), floats(*shapes[1]), layouts=("plain",), half=False, align_corners=False, **options)


@pytest.mark.parametrize("name", ["pixel_shuffle", "pixel_unshuffle"])
def test_pixel_shuffles(name: str) -> None:
    for shape in ((2, 8, 4, 6), (4, 2, 4)):
        check(F + name, floats(*shape), 2, layouts=FEW)


def test_channel_shuffle() -> None:
    check("channel_shuffle", floats(2, 6, 3, 4), 3, layouts=FEW, half=False)
