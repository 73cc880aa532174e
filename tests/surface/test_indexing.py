"""Indexing and assignment equal PyTorch's, with gradients, on plain and strided tensors; what is a view shares memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meganeura as mg

torch = pytest.importorskip("torch")

A = np.arange(120, dtype=np.float32).reshape(4, 5, 6)
LAYOUTS = ("plain", "transposed", "stepped", "expanded")

# Lists stand for integer tensors, arrays of bools for masks; both are made in the library at hand.
VIEWS: tuple[Any, ...] = (
    0, -1, (1, 2), (1, 2, 3), (slice(None), 2), slice(1, 3), slice(None, None, 2), slice(-3, None), slice(3, 1), (..., 0), (0, ...),
    (..., slice(1, 4, 2)), None, (None, 1), (1, None, 2), (..., None), (slice(None), None, slice(2, 4)), (), ..., (0, ..., 1),
    (slice(5, 9), 0), np.int64(2), (slice(None, None, 3), -2, slice(1, None)),
)  # fmt: skip
COPIES: tuple[Any, ...] = (
    [0, 2], [-1], [], [[0, 1], [2, 3]], (slice(None), [4, 0]), ([0, 1], [2, 3]), ([0, 1], slice(None), [5, 0]), (1, [0, 1]),
    ([0, 1], 1), (0, slice(None), [1, 2]), (..., [0, -6]), ([[0], [1]], [[1, 2]]), (None, [1, 1]), ([3, 2], None, [1, 0]), True, False,
    (0, True), (slice(None), True), ([1, 2], [3, 4], [5, 0]), (slice(None), [0, 1], [1, 2]), (slice(1, 3), [0, 4], slice(None, None, 2)),
)  # fmt: skip
ROWS = np.array([True, False, True, False])
MASKS: tuple[Any, ...] = (
    ROWS, A > 50, (slice(None), np.array([True, False, True, True, False])), (ROWS, 1), (ROWS, [1, 2]), (0, A[0] > 12), A < 0,
    (..., np.array([True] * 6)),
)  # fmt: skip


def made(lib: Any, key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(made(lib, k) for k in key)
    if isinstance(key, list):
        return lib.tensor(key, dtype=lib.int64)
    return lib.tensor(key) if isinstance(key, np.ndarray) else key


def laid_out(lib: Any, layout: str) -> tuple[Any, Any]:
    """(leaf, tensor of shape [4, 5, 6]): the same values in every layout but 'expanded'."""
    base = {
        "plain": A,
        "transposed": np.ascontiguousarray(A.transpose(2, 1, 0)),
        "stepped": np.repeat(A, 2, axis=2),
        "expanded": A[:, :1],
    }[layout]
    leaf = lib.tensor(base.copy(), requires_grad=True)
    views = {"transposed": lambda x: x.permute(2, 1, 0), "stepped": lambda x: x[..., ::2], "expanded": lambda x: x.expand(4, 5, 6)}
    return leaf, views.get(layout, lambda x: x)(leaf)


def same(got: Any, want: Any) -> None:
    assert got.shape == tuple(want.shape)
    assert got.dtype.name == str(want.dtype).removeprefix("torch.")
    np.testing.assert_array_equal(got.detach().numpy(), want.detach().numpy())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("key", [*VIEWS, *COPIES, *MASKS], ids=lambda k: str(k).replace("\n", "")[:40])
def test_reading(key: Any, layout: str) -> None:
    (tl, t), (ml, m) = laid_out(torch, layout), laid_out(mg, layout)
    want, got = t[made(torch, key)], m[made(mg, key)]
    same(got, want)
    seed = np.arange(want.numel(), dtype=np.float32).reshape(tuple(want.shape))
    want.backward(torch.from_numpy(seed))
    got.backward(mg.tensor(seed))
    same(ml.grad, tl.grad)


@pytest.mark.parametrize("key", VIEWS, ids=str)
def test_views_share_memory(key: Any) -> None:
    x = mg.tensor(A)
    part = x[key]
    assert part._storage is x._storage
    part.zero_()
    want = A.copy()
    want[key] = 0
    np.testing.assert_array_equal(x.numpy(), want)


@pytest.mark.parametrize("key", [*COPIES, *MASKS], ids=lambda k: str(k).replace("\n", "")[:40])
def test_copies_do_not(key: Any) -> None:
    x = mg.tensor(A)
    part = x[made(mg, key)]
    assert part._storage is not x._storage
    part.zero_()
    np.testing.assert_array_equal(x.numpy(), A)


KEYS = [*VIEWS, *(k for k in COPIES if not any(isinstance(p, bool) for p in (k if isinstance(k, tuple) else (k,)))), *MASKS]


@pytest.mark.parametrize("kind", ["number", "one", "tensor"])
@pytest.mark.parametrize("layout", LAYOUTS[:3])
@pytest.mark.parametrize("key", KEYS, ids=lambda k: str(k).replace("\n", "")[:40])
def test_assignment(key: Any, layout: str, kind: str) -> None:
    results = []
    for lib in (torch, mg):
        leaf, x = laid_out(lib, layout)
        y = (leaf * 1.0).detach()
        x = {"plain": lambda x: x, "transposed": lambda x: x.permute(2, 1, 0), "stepped": lambda x: x[..., ::2]}[layout](y)
        k = made(lib, key)
        shape = tuple(x[k].shape)
        size = int(np.prod(shape))
        value = -7.0 if kind == "number" else lib.tensor(-7.0) if kind == "one" else lib.tensor(-np.arange(size, dtype=np.float32) - 1)
        x[k] = value.reshape(shape) if kind == "tensor" else value
        results.append(y)
    want, got = results
    same(got, want)


def test_the_last_of_equal_indices_wins() -> None:
    x = mg.zeros(4)
    x[mg.tensor([1, 1, -3, 2])] = mg.tensor([5.0, 6.0, 7.0, 8.0])
    assert x.tolist() == [0.0, 7.0, 8.0, 0.0]


@pytest.mark.parametrize("key", [1, (slice(None), [0, 2]), ([0, 1], [2, 3]), ROWS, (0, A[0] > 12), (..., slice(0, 4))], ids=str)
def test_gradient_through_assignment(key: Any) -> None:
    grads = []
    for lib in (torch, mg):
        x = lib.tensor(A.copy(), requires_grad=True)
        y = x * 2
        k = made(lib, key)
        shape = tuple(y[k].shape)
        v = lib.tensor(np.ones(shape, np.float32), requires_grad=True)
        y[k] = v * 3
        (y * lib.tensor(A)).sum().backward()
        grads.append((x.grad, v.grad))
    for want, got in zip(*grads, strict=True):
        same(got, want)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "int8", "bool", "float16"])
def test_dtypes(dtype: str) -> None:
    a = (A % 7).astype(dtype)
    for key in (1, [0, 2], (slice(None), [0, 2]), ROWS, (..., slice(None, None, 2))):
        t, m = torch.from_numpy(a.copy()), mg.tensor(a)
        same(m[made(mg, key)], t[made(torch, key)])
        t[made(torch, key)] = 1
        m[made(mg, key)] = 1
        same(m, t)


def test_values_are_converted_and_broadcast() -> None:
    for value in (np.ones((5, 6), np.float32), np.ones((1, 1, 6), np.float32), [[2]] * 5, 3, True, 2.5, mg.tensor(3, dtype=mg.int32)):
        want, got = A.copy(), mg.tensor(A)
        want[1] = value.item() if isinstance(value, mg.Tensor) else value
        got[1] = value
        np.testing.assert_array_equal(got.numpy(), want)


def test_index_tensors_of_other_dtypes() -> None:
    x = mg.tensor(A)
    for dtype in (mg.int32, mg.int8, mg.uint32):
        np.testing.assert_array_equal(x[mg.tensor([1, 3], dtype=dtype)].numpy(), A[[1, 3]])
    np.testing.assert_array_equal(x[mg.tensor([1, 0, 1, 0], dtype=mg.uint8)].numpy(), A[[0, 2]])  # a mask, as in PyTorch
    np.testing.assert_array_equal(x[mg.tensor(2)].numpy(), A[2])
    assert x[mg.tensor(2)]._storage is x._storage


def test_iteration_and_containment() -> None:
    x = mg.tensor(A[0])
    assert [r.tolist() for r in x] == A[0].tolist()
    assert [r.tolist() for r in reversed(x)] == A[0].tolist()[::-1]
    assert 7 in x and 99 not in x
    assert len(x) == 5
    first, *_, last = x
    assert (first[0].item(), last[-1].item()) == (0.0, 29.0)
