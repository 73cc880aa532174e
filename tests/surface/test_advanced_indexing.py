"""Index tensors, lists, masks, slices and None mixed at random, read and assigned, compiled and not, against PyTorch."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import meganeura as mg

torch = pytest.importorskip("torch")
SHAPES = ((6,), (4, 5), (3, 4, 5), (2, 3, 4, 3), (1, 4, 1))


def key_of(rng: random.Random, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """A key in terms of numpy: several integer arrays that broadcast together, with ints, slices, None, Ellipsis, one mask."""
    out: list[Any] = []
    common = rng.choice([(), (2,), (3,), (2, 3), (1, 3)])
    masked, dim = False, 0
    while dim < len(shape):
        n = shape[dim]
        kind = rng.choice(["tensor", "tensor", "slice", "int", "none", "list", "mask", "stop"])
        if kind == "none":
            out.append(None)
            continue
        if kind == "stop":
            if dim and rng.random() < 0.5:
                break
            kind = "slice"
        if kind == "mask" and not masked and not any(isinstance(k, (np.ndarray, list)) for k in out):
            rank = rng.choice([1, 1, 2]) if dim + 1 < len(shape) else 1
            mask = np.random.default_rng(rng.randrange(1 << 30)).random(shape[dim : dim + rank]) < 0.5
            masked = True
            out.append(mask)
            dim += rank
            continue
        if kind in ("tensor", "mask") and not masked and common:
            own = tuple(1 if rng.random() < 0.3 else s for s in common[rng.randrange(len(common)) :])
            out.append(np.random.default_rng(rng.randrange(1 << 30)).integers(-n, n, own))
        elif kind == "list" and not masked:
            size = common[-1] if common else 1
            out.append([rng.randrange(-n, n) for _ in range(size)])
        elif kind == "int":
            out.append(rng.randrange(-n, n))
        else:
            out.append(slice(rng.choice([None, 0, 1, -2]), rng.choice([None, -1, 9]), rng.choice([None, 1, 2])))
        dim += 1
    if rng.random() < 0.3 and Ellipsis not in [k for k in out if not isinstance(k, (np.ndarray, list))]:
        out.append(Ellipsis)
    return tuple(out)


def made(lib: Any, key: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(lib.tensor(k) if isinstance(k, np.ndarray) else k for k in key)


def layouts(lib: Any, a: Any, layout: int) -> Any:
    if layout == 1:
        return lib.tensor(np.ascontiguousarray(a.transpose())).permute(*reversed(range(a.ndim)))
    if layout == 2:
        return lib.tensor(np.repeat(a, 2, axis=-1))[..., ::2]
    return lib.tensor(a.copy())


def attempt(fn: Any) -> tuple[Any, Exception | None]:
    try:
        return fn(), None
    except (RuntimeError, ValueError, TypeError, IndexError) as e:
        return None, e


def write(lib: Any, a: Any, key: tuple[Any, ...], seed: int) -> tuple[Any, Any, Any]:
    """An assignment: the result, and the gradients of what is written to and of what is written."""
    leaf = layouts(lib, a, seed % 3).clone().detach().requires_grad_()
    x = layouts(lib, a, seed % 3)
    x = x * 0 + leaf if seed % 2 else leaf * 1
    k = made(lib, key)
    shape = tuple(x[k].shape)
    if seed % 4 == 1 and shape:
        shape = shape[1:] if seed % 8 == 1 else (1, *shape[1:])
    v = lib.tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32)).requires_grad_()
    x[k] = v * 2
    cotangent = lib.tensor(np.random.default_rng(seed + 1).standard_normal(tuple(x.shape)).astype(np.float32))
    (x * cotangent).sum().backward()
    return x.detach().numpy(), *(np.zeros(tuple(t.shape), np.float32) if t.grad is None else t.grad.numpy() for t in (leaf, v))


def repeated(key: tuple[Any, ...], shape: tuple[int, ...]) -> bool:
    """Whether a key names one place twice: PyTorch then leaves any of the values."""
    places = np.arange(int(np.prod(shape))).reshape(shape)[tuple(np.asarray(k) if isinstance(k, list) else k for k in key)]
    return len(np.unique(places)) != places.size


@pytest.mark.parametrize("seed", range(150))
def test_any_key(seed: int) -> None:
    rng = random.Random(seed)
    shape = rng.choice(SHAPES)
    a = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    key = key_of(rng, shape)
    results = [attempt(lambda lib=lib: layouts(lib, a, seed % 3)[made(lib, key)].numpy()) for lib in (torch, mg)]
    (want, refused), (got, error) = results
    assert (refused is None) == (error is None), f"{shape} {key}: PyTorch {refused}, here {error}"
    if refused is not None:
        return
    assert got.shape == want.shape, f"{shape} {key}"
    np.testing.assert_array_equal(got, want, err_msg=f"{shape} {key}")
    if repeated(key, shape):
        return
    (want, refused), (got, error) = (attempt(lambda lib=lib: write(lib, a, key, seed)) for lib in (torch, mg))
    assert (refused is None) == (error is None), f"{shape} {key}: PyTorch {refused}, here {error}"
    for w, g in zip(want or (), got or (), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6, err_msg=f"{shape} {key}")


def test_of_equal_places_the_last_value_stays() -> None:
    rng = np.random.default_rng(0)
    for shape, key in (
        ((5,), (rng.integers(0, 5, 40),)),
        ((4, 5), (rng.integers(0, 4, (3, 20)), rng.integers(0, 5, 20))),
        ((3, 4, 5), (slice(None), rng.integers(0, 4, 30))),
        ((3, 4, 5), (rng.integers(0, 3, 30), slice(None), rng.integers(-5, 5, 30))),
    ):
        a = np.zeros(shape, np.float32)
        x = mg.tensor(a)
        values = rng.standard_normal(a[key].shape).astype(np.float32)
        a[key] = values
        x[made(mg, key)] = mg.tensor(values)
        np.testing.assert_array_equal(x.numpy(), a)


def test_add_where_places_meet() -> None:
    rng = np.random.default_rng(0)
    i, j = rng.integers(0, 4, (3, 20)), rng.integers(-5, 5, 20)
    a, values = np.zeros((4, 5, 3), np.float32), rng.standard_normal((3, 20, 3)).astype(np.float32)
    want = a.copy()
    np.add.at(want, (i, j), values)
    got = mg.tensor(a).index_put((mg.tensor(i), mg.tensor(j)), mg.tensor(values), accumulate=True)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-5)


def test_values_of_an_assignment() -> None:
    for value in (3, 2.5, True, np.ones((2, 5), np.float32), [[1.0], [2.0]], np.float32(4)):
        t, m = torch.zeros(4, 5), mg.zeros(4, 5)
        t[torch.tensor([2, 0])] = torch.tensor(value) if isinstance(value, (list, np.ndarray, np.generic)) else value
        m[mg.tensor([2, 0])] = value
        np.testing.assert_array_equal(m.numpy(), t.numpy())
    whole = mg.zeros(4, dtype=mg.int64)
    whole[mg.tensor([1, -1])] = mg.tensor([5, 6])
    assert whole.tolist() == [0, 5, 0, 6]
    for shape in ((3,), (2, 4), (2, 2, 5)):
        with pytest.raises(mg.ShapeError):
            mg.zeros(4, 5)[mg.tensor([2, 0])] = mg.ones(*shape)


def test_a_vector_overwrites_itself() -> None:
    a = np.arange(8, dtype=np.float32)
    x = mg.tensor(a)
    x[mg.tensor([0, 1, 2])] = x[1:4]
    a[[0, 1, 2]] = a[1:4].copy()
    np.testing.assert_array_equal(x.numpy(), a)


@pytest.mark.parametrize("bad", [(4, 0), (-5, 0), (0, 5), (0, -6), (1 << 29, 3)])
def test_out_of_range(bad: tuple[int, int]) -> None:
    x = mg.zeros(4, 5, 2)
    key = tuple(mg.tensor([0, b]) for b in bad)
    with pytest.raises(mg.IndexOutOfRangeError):
        x[key].numpy()
    with pytest.raises(mg.IndexOutOfRangeError):
        x[key] = 1.0
        x.numpy()
    with pytest.raises(mg.IndexOutOfRangeError):
        mg.zeros(0, 5)[mg.tensor([0])] = 1.0
    y = mg.zeros(4, 5, 2)
    y[mg.tensor([0, 1]), mg.tensor([-1, 4])] = 1.0
    assert y.sum().item() == 4.0


def test_refusals() -> None:
    x = mg.zeros(4, 5)
    for key in (
        (mg.tensor([0, 1]), mg.tensor([0, 1, 2])),
        (mg.tensor([0.5]),),
        (mg.tensor([0]), 0, 0),
        (mg.ones(3, dtype=mg.bool_),),
        ("a",),
    ):
        with pytest.raises(mg.MeganeuraError):
            x[key].numpy()
        with pytest.raises(mg.MeganeuraError):
            x[key] = 1.0
            x.numpy()
    leaf = mg.zeros(4).requires_grad_()
    with pytest.raises(mg.GradientError):
        leaf[mg.tensor([1])] = 1.0


# ---- compiled ----


def test_compiled() -> None:
    rng = np.random.default_rng(0)
    x = mg.tensor(rng.standard_normal((4, 5, 6)).astype(np.float32))
    i, j = mg.tensor(rng.permutation(4)[:3]), mg.tensor(rng.integers(-6, 6, (2, 3)))
    v = mg.tensor(rng.standard_normal((2, 3, 5)).astype(np.float32))

    def step(x: mg.Tensor, i: mg.Tensor, j: mg.Tensor, v: mg.Tensor) -> list[mg.Tensor]:
        y = x * 1
        y[i, 1:3, 0] = v[0, :, :2]
        y[:, 0, i] = 2.0
        y[y > 1.0] = 0.5
        return [y, x[i, :, j], x[:, [0, -1]], x[i[0], j[0, 1]]]

    want = [t.numpy() for t in step(x, i, j, v)]
    run = mg.compile(step)
    for _ in range(2):
        for g, w in zip(run(x, i, j, v), want, strict=True):
            np.testing.assert_array_equal(g.numpy(), w)


def test_a_compiled_cache_at_a_place_that_is_computed() -> None:
    cache = mg.zeros(2, 5, 3)

    @mg.compile
    def remember(at: mg.Tensor, new: mg.Tensor) -> mg.Tensor:
        cache[:, at] = new
        return cache[1, at]

    want = np.zeros((2, 5, 3), np.float32)
    for t in (3, 0, -1):
        new = np.random.default_rng(t + 5).standard_normal((2, 3)).astype(np.float32)
        want[:, t] = new
        np.testing.assert_array_equal(remember(mg.tensor(t), mg.tensor(new)).numpy(), new[1])
        np.testing.assert_array_equal(cache.numpy(), want)


def test_masks_of_unknown_count_cannot_be_compiled() -> None:
    with pytest.raises(mg.TraceError):
        mg.compile(lambda x: x[x > 0])(mg.ones(3))


def test_compiled_gradients() -> None:
    a = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    i, j = mg.tensor([0, 3, 0]), mg.tensor([1, -1, 1])

    def gradient(x: mg.Tensor) -> mg.Tensor:
        y = x * 1
        y[i] = y[j] * 2
        return mg.grad([(y * x[i][:, :1].sum()).sum()], [x])[0]

    x = mg.tensor(a).requires_grad_()
    np.testing.assert_allclose(mg.compile(gradient)(x).numpy(), gradient(x).numpy(), rtol=1e-5, atol=1e-6)
