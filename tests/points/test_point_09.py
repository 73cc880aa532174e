"""Random numbers: Philox bits that depend on seed, draw and logical index only, in every interpreter and on every kernel."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import dispatch, gpu, random
from meganeura.eager import Eager
from meganeura.gpu import adapter

# Known answers of Random123 (kat_vectors, philox4x32, 10 rounds): counter, key, result.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]


@pytest.mark.parametrize("case", KNOWN, ids=["zeros", "ones", "pi"])
def test_philox_gives_the_known_answers(case: Any) -> None:
    counter, key, result = case
    assert tuple(int(w) for w in random.philox4x32_10(np.array([counter], np.uint32), key)[0]) == result


def test_the_device_draws_the_bits_of_the_host() -> None:
    for n in (1, 3, 4, 5, 64, 1001):
        mg.manual_seed(1234567890123)
        got = mg.rand(n).numpy()
        words = random.Generator(1234567890123).reserve(n)
        assert (got == random.uniform(n, words)).all()


def test_bits_do_not_depend_on_shape_layout_or_kernel() -> None:
    """The same draw as a run of vectors, an odd run, a matrix, a strided and a transposed view."""

    def draw(make: Callable[[], Any]) -> Any:
        mg.manual_seed(7)
        return make().numpy().reshape(-1)

    want = draw(lambda: mg.rand(120))
    makes: dict[str, Callable[[], Any]] = {
        "matrix": lambda: mg.rand(8, 15),
        "deep": lambda: mg.rand(2, 3, 4, 5),
        "in place": lambda: mg.empty(120).uniform_(),
        "strided": lambda: mg.zeros(120, 3)[:, 1].uniform_(),
        "odd offset": lambda: mg.zeros(125)[5:].uniform_(),
        "transposed": lambda: mg.zeros(15, 8).t().uniform_(),
    }
    for name, make in makes.items():
        assert (draw(make) == want).all(), name
    assert (draw(lambda: mg.rand(119)) == want[:119]).all(), "odd length"


def test_dropout_goes_by_logical_index() -> None:
    x = mg.ones(12, 10)
    masks = []
    for view in (x, mg.ones(10, 12).t(), mg.ones(12, 20)[:, ::2], mg.ones(12, 11)[:, 1:], mg.ones(12, 1).expand(12, 10)):
        mg.manual_seed(3)
        masks.append(mg.dropout(view, 0.4).numpy() != 0)
    assert all((m == masks[0]).all() for m in masks[1:])
    assert 0 < masks[0].mean() < 1


def test_backward_of_dropout_draws_the_same_bits() -> None:
    for view in (lambda t: t, lambda t: t.t(), lambda t: t[:, ::3]):
        x = mg.ones(9, 9, requires_grad=True)
        y = mg.dropout(view(x), 0.5)
        y.sum().backward()
        mask = view(x.detach()).numpy() * 0 + (y.detach().numpy() != 0) * 2.0
        assert (view(x.grad).numpy() == mask).all()


@pytest.fixture(scope="module")
def other_family() -> Any:
    """A device of its own whose kernels are chosen as on the other family of devices."""
    config = gpu.current().config
    device = gpu.Device(adapter.open_device(config), config)
    device.family = "gpu" if device.family == "cpu" else "cpu"
    device.profile = dataclasses.replace(device.profile, family=device.family)
    return Eager(device)


def _draws() -> list[Any]:
    mg.manual_seed(11)
    x = mg.ones(6, 7)
    return [
        t.numpy()
        for t in (
            mg.rand(33),
            mg.randint(0, 1000, (25,)),
            mg.dropout(x, 0.3),
            mg.bernoulli(x * 0.5),
            mg.rand(4, 9),
            mg.zeros(5, 3)[:, 1].uniform_(),
        )
    ]


def test_bits_do_not_depend_on_the_device_family(other_family: Any) -> None:
    here = _draws()
    with dispatch.use(other_family):
        there = _draws()
    for a, b in zip(here, there, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_reference_draws_the_same() -> None:
    here = _draws()
    with dispatch.use(mg.Reference()):
        there = _draws()
    for a, b in zip(here, there, strict=True):
        np.testing.assert_array_equal(a, b)


def _step(x: Any) -> Any:
    a = mg.rand(5)
    dead = mg.rand(1000)
    b = mg.dropout(x, 0.5)
    _ = dead * 2
    mg.randn(3)
    c = mg.rand(5)
    return a, b, c


@pytest.mark.parametrize("rewrite", ["off", "greedy"])
def test_compiled_draws_what_eager_draws_also_past_dead_draws(rewrite: str) -> None:
    x = mg.ones(40)
    f = mg.compile(_step, rewrite=rewrite)
    mg.manual_seed(5)
    want = [[t.numpy() for t in _step(x)] for _ in range(3)]
    end = mg.rand(3).numpy()
    mg.manual_seed(5)
    got = [[t.numpy() for t in f(x)] for _ in range(3)]
    for a, b in zip(want, got, strict=True):
        for u, v in zip(a, b, strict=True):
            np.testing.assert_array_equal(u, v)
    np.testing.assert_array_equal(end, mg.rand(3).numpy(), "the host's counter went as far")
    assert not (got[0][0] == got[1][0]).all()
    assert not (got[0][0] == got[0][2]).all()


def test_every_draw_takes_a_fixed_range() -> None:
    """However large, so that a later draw does not depend on an earlier one's size, and none overlap."""
    generator = random.Generator(1)
    taken = [generator.reserve(n) for n in (0, 1, 5, 10**6, 2**34, 2**34 + 1, 7)]
    assert [w[2] for w in taken] == [0, 1, 2, 3, 4, 5, 7]
    generator.set_state(np.array([1, 2**32 - 1], np.uint64))
    assert [generator.reserve(1)[2:] for _ in range(2)] == [(0xFFFFFFFF, 0), (0, 1)]


def test_state_goes_round() -> None:
    mg.manual_seed(2)
    mg.rand(3)
    state = random.get_rng_state()
    a = mg.rand(4).numpy()
    random.set_rng_state(state)
    np.testing.assert_array_equal(a, mg.rand(4).numpy())


def test_each_generator_has_its_own_stream() -> None:
    g, h = mg.Generator(9), mg.Generator(9)
    mg.manual_seed(1)
    a = mg.rand(6, generator=g).numpy()
    np.testing.assert_array_equal(a, mg.rand(6, generator=h).numpy())
    b = mg.rand(6).numpy()
    mg.manual_seed(1)
    np.testing.assert_array_equal(b, mg.rand(6).numpy())
