"""Norms over channels against PyTorch: sizes of every kind, gradients, gradients of gradients, running statistics, refusals; compiled."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import gpu
from tests.surface.compare import check, floats, torch

F = "nn.functional."
FEW = ("plain", "transposed", "stepped")
SHAPES = [(6, 3), (4, 3, 5), (2, 3, 4, 5), (3, 6, 8, 8), (2, 3, 2, 3, 2), (1, 2, 9, 7), (5, 1, 3, 3)]


@pytest.fixture(params=["cpu", "gpu"])
def family(request: Any) -> Iterator[str]:
    """Kernels are chosen for another profile: all of them are right on every device."""
    device = gpu.current()
    own = device.profile
    device.profile = dataclasses.replace(own, family=request.param)
    yield request.param
    device.profile = own


def _vectors(c: int) -> list[Any]:
    return [floats(c, seed=1), floats(c, low=0.3, seed=2), floats(c, seed=3), floats(c, seed=4)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_batch_norm(shape: tuple[int, ...], family: str) -> None:
    mean, var, w, b = _vectors(shape[1])
    x = floats(*shape) + 1
    kinds = {"layouts": FEW, "rtol": 5e-5, "grad_rtol": 1e-3, "half": False}
    for weight, bias in ((w, b), (None, None), (w, None), (None, b)):
        check(F + "batch_norm", x, None, None, weight, bias, True, **kinds)
        check(_normed, x, mean, var, weight, bias, **kinds)
    check(F + "batch_norm", x, None, None, None, None, True, 0.1, 0.3, **kinds)


def _fixed(lib: Any) -> Any:
    """batch_norm in eval, whose statistics take no gradients."""

    def call(x: Any, mean: Any, var: Any, w: Any, b: Any) -> Any:
        return lib.nn.functional.batch_norm(x, mean.detach(), var.detach(), w, b, False, 0.1, 1e-3)

    return call


_normed = (_fixed(mg), _fixed(torch))


@pytest.mark.parametrize("shape", [(4, 3, 5), (2, 3, 4, 5), (3, 6, 8, 8), (2, 3, 2, 3, 2)], ids=str)
def test_instance_and_group_norm(shape: tuple[int, ...], family: str) -> None:
    _, _, w, b = _vectors(shape[1])
    kinds = {"layouts": FEW, "rtol": 5e-5, "grad_rtol": 1e-3, "half": False}
    for weight, bias in ((w, b), (None, None), (w, None)):
        check(F + "instance_norm", floats(*shape), None, None, weight, bias, **kinds)
        for groups in (1, 3):
            check(F + "group_norm", floats(*shape), groups, weight, bias, **kinds)


def test_float16() -> None:
    x, w, b = floats(4, 6, 5, 8).astype(np.float16), floats(6, seed=1), floats(6, seed=2)
    for name, args in (("batch_norm", (None, None, w, b, True)), ("instance_norm", (None, None, w, b)), ("group_norm", (3, w, b))):
        ours = getattr(mg.nn.functional, name)(mg.tensor(x), *(mg.tensor(a) if isinstance(a, np.ndarray) else a for a in args))
        wide = [torch.tensor(a) if isinstance(a, np.ndarray) else a for a in args]
        theirs = getattr(torch.nn.functional, name)(torch.tensor(x.astype(np.float32)), *wide)
        assert ours.dtype is mg.float16
        np.testing.assert_allclose(ours.float().numpy(), theirs.numpy(), rtol=4e-3, atol=4e-3)


def test_large_means_cost_no_digits(family: str) -> None:
    x = (floats(4, 3, 40, 40) * 0.1 + 300).astype(np.float32)
    got = mg.nn.functional.batch_norm(mg.tensor(x), None, None, training=True).numpy()
    wide = x.astype(np.float64)
    want = (wide - wide.mean((0, 2, 3), keepdims=True)) / np.sqrt(wide.var((0, 2, 3), keepdims=True) + 1e-5)
    np.testing.assert_allclose(got, want, atol=2e-3)


def test_long_rows(family: str) -> None:
    """Few groups of many elements: several workgroups a row on GPUs."""
    for shape, groups in (((2, 4, 64, 65), 2), ((1, 6, 90, 91), 1)):
        x, w, b = floats(*shape), floats(shape[1], seed=1), floats(shape[1], seed=2)
        check(F + "group_norm", x, groups, w, b, layouts=("plain", "stepped"), half=False, rtol=1e-4, grad_rtol=3e-3, atol=1e-5)
        check(F + "batch_norm", x, None, None, w, b, True, layouts=("plain",), half=False, rtol=1e-4, grad_rtol=3e-3, atol=1e-5)


def test_nan_and_infinities_stay_in_their_channel(family: str) -> None:
    x = floats(2, 3, 4, 5)
    x[0, 1, 2, 3] = np.nan
    x[1, 2, 0, 0] = np.inf
    check(F + "batch_norm", x, None, None, None, None, True, layouts=("plain",), half=False, grad=False)
    check(F + "group_norm", x, 3, layouts=("plain",), half=False, grad=False)


def test_running_statistics() -> None:
    x = floats(4, 3, 5)
    for momentum in (0.1, 0.7):
        both = []
        for lib in (mg, torch):
            mean, var = lib.tensor(floats(3, seed=1)), lib.tensor(floats(3, low=0.3, seed=2))
            for _ in range(3):
                lib.nn.functional.batch_norm(lib.tensor(x), mean, var, None, None, True, momentum)
            lib.nn.functional.instance_norm(lib.tensor(x), mean, var, None, None, True, momentum)
            both.append((mean.numpy(), var.numpy()))
        for a, b in zip(*both, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("batch_norm", (floats(1, 3), None, None, None, None, True)),
        ("batch_norm", (floats(4, 3), None, None, floats(2), None, True)),
        ("instance_norm", (floats(2, 3, 1),)),
        ("group_norm", (floats(2, 6, 4), 4)),
        ("group_norm", (floats(2, 6, 4), 3, floats(5))),
    ],
)
def test_refusals(name: str, args: Any) -> None:
    check(F + name, *args, layouts=("plain",), half=False)


def test_gradients_of_gradients() -> None:
    def second(lib: Any, fn: Any) -> list[Any]:
        x = lib.tensor(floats(3, 4, 6), requires_grad=True)
        w = lib.tensor(floats(4, seed=1), requires_grad=True)
        (g, gw) = lib.autograd.grad([(fn(lib, x, w) ** 3).sum()], [x, w], create_graph=True)
        return [t.detach().numpy() for t in lib.autograd.grad([(g * g).sum() + (gw * gw).sum()], [x, w])]

    for fn in (
        lambda lib, x, w: lib.nn.functional.batch_norm(x, None, None, w, None, True, eps=0.1),
        lambda lib, x, w: lib.nn.functional.group_norm(x, 2, w, None, 0.1),
        lambda lib, x, w: lib.nn.functional.instance_norm(x, None, None, w, None, eps=0.1),
    ):
        for got, want in zip(second(mg, fn), second(torch, fn), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3 * float(np.abs(want).max()))


def test_compiled(family: str) -> None:
    f = mg.nn.functional

    def step(x: Any, w: Any, b: Any) -> Any:
        y = f.silu(f.group_norm(x, 2, w, b))
        y = f.relu(f.batch_norm(y, None, None, w, b, True))
        out = (f.instance_norm(y, None, None, w) * y).sum()
        return out, *mg.autograd.grad([out], [x, w, b])

    for shape in ((2, 4, 5, 7), (1, 4, 96, 80)):
        args = [mg.tensor(v, requires_grad=True) for v in (floats(*shape), floats(4, seed=1), floats(4, seed=2))]
        for got, want in zip(mg.compile(step)(*args), step(*args), strict=True):
            scale = float(np.abs(want.detach().numpy()).max())
            np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=1e-3, atol=1e-4 * max(scale, 1))
