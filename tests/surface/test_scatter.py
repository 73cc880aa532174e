"""Writing by index: the scatter family, index_*, put, masks, and writing into views; out of place and in place, against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meganeura as mg

from .compare import SPECIAL, bools, check, floats, ints, torch

REDUCE = ("sum", "prod", "mean", "amax", "amin")
pytestmark = pytest.mark.filterwarnings("ignore:(index|scatter)_reduce:UserWarning", "ignore:The reduce argument:UserWarning")
PLAIN = ("plain", "transposed", "stepped")


def distinct(n: int, *shape: int, dim: int, seed: int = 0) -> Any:
    """Indices below n that differ along dim."""
    rng = np.random.default_rng(seed)
    return np.moveaxis(rng.permuted(np.broadcast_to(np.arange(n), (*shape[:dim], *shape[dim + 1 :], n)), axis=-1), -1, dim)[
        tuple(slice(s) for s in shape)
    ]


def inplace(name: str) -> Any:
    """x.name_ of a fresh copy of x, in both libraries."""

    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        y = x * 1
        got = getattr(y, name + "_")(*args, **kwargs)
        assert got is y
        return y

    return call, call


def into_part(name: str) -> Any:
    """The same through a view that is not contiguous."""

    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        y = x * 1
        wide = (x * 0).unsqueeze(-1).repeat(*(1,) * x.ndim, 2)
        wide[..., 0] = y
        getattr(wide[..., 0], name + "_")(*args, **kwargs)
        return wide

    return call, call


def both(name: str, x: Any, *args: Any, **kwargs: Any) -> None:
    check(name, x, *args, layouts=PLAIN, **kwargs)
    check(inplace(name), x, *args, layouts=("plain",), half=False, **kwargs)
    check(into_part(name), x, *args, layouts=("plain",), half=False, **kwargs)


# ---- scatter ----


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_scatter(dim: int) -> None:
    x, n = floats(4, 5, 3), (4, 5, 3)[dim]
    both("scatter", x, dim, distinct(n, 4, 5, 3, dim=dim % 3), floats(4, 5, 3, seed=1))
    both("scatter", x, dim, distinct(n, 2, 3, 3, dim=dim % 3), floats(4, 5, 3, seed=1), grad=False)
    both("scatter", x, dim, distinct(n, 2, 3, 3, dim=dim % 3), floats(2, 3, 3, seed=1))
    check("scatter", x, dim, ints(4, 5, 3, low=0, high=3), 1.5)
    check("scatter", x, dim, ints(2, 2, 2, low=0, high=3), value=2)


def test_scatter_of_vectors_and_scalars() -> None:
    both("scatter", floats(7), 0, np.array([6, 0, 3]), floats(3, seed=1))
    check("scatter", floats(7), 0, np.array([6, 0, 3]), floats(5, seed=1), grad=False)
    check("scatter", floats(), 0, np.array(0), floats(seed=1))
    check("scatter", floats(7), 0, np.zeros(0, np.int64), floats(3, seed=1), grad=False)
    check("scatter_add", floats(), 0, np.array([0]), floats(1, seed=1))
    check("scatter_add", floats(1), 0, np.array([0, 0, 0]), floats(3, seed=1))


def test_the_last_write_stays() -> None:
    index, src = ints(300, low=0, high=7), floats(300, seed=1)
    want = np.zeros(7, np.float32)
    want[index] = src
    x, at = mg.zeros(7), mg.tensor(index)
    assert np.array_equal(x.scatter(0, at, mg.tensor(src)).numpy(), want)
    assert np.array_equal(x.index_copy(0, at, mg.tensor(src)).numpy(), want)
    assert np.array_equal(x.index_put((at,), mg.tensor(src)).numpy(), want)
    assert np.array_equal(x.put(at, mg.tensor(src)).numpy(), want)
    rows, wide = floats(300, 8, seed=2), np.zeros((7, 8), np.float32)
    wide[index] = rows
    assert np.array_equal(mg.zeros(7, 8).index_copy(0, at, mg.tensor(rows)).numpy(), wide)


@pytest.mark.parametrize("dim", [0, 1])
def test_scatter_add(dim: int) -> None:
    both("scatter_add", floats(5, 4), dim, ints(5, 4, low=0, high=4), floats(5, 4, seed=1))
    both("scatter_add", floats(5, 4), dim, ints(3, 2, low=0, high=4), floats(4, 6, seed=1), grad=False)
    check("scatter_add", ints(5, 4), dim, ints(9, 4, low=0, high=4) if dim == 0 else ints(5, 9, low=0, high=4), ints(9, 9))


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", REDUCE)
def test_scatter_reduce(reduce: str, include_self: bool) -> None:
    fields: dict[str, Any] = {"reduce": reduce, "include_self": include_self}
    for dim in (0, 1):
        both("scatter_reduce", floats(4, 5), dim, ints(4, 5, low=0, high=4), floats(4, 5, seed=1), **fields)
    check("scatter_reduce", floats(3, 2, 4), 1, ints(2, 2, 3, low=0, high=2), floats(3, 5, 4, seed=1), grad=False, **fields)
    check("scatter_reduce", ints(6), 0, ints(20, low=0, high=6), ints(20, low=-3, high=4, seed=1), **fields)
    check("scatter_reduce", ints(6).astype(np.int32), 0, ints(3, low=0, high=6), ints(3, seed=1).astype(np.int32), **fields)


@pytest.mark.parametrize("reduce", ["prod", "amax", "amin"])
def test_scatter_reduce_with_zeros_ties_and_special_values(reduce: str) -> None:
    x, src = np.array([0, 2, 3, 0, 1], np.float32), np.array([0, 2, 0, 0, 5, 3, 3, 1, 4], np.float32)
    index = np.array([1, 1, 2, 2, 0, 2, 2, 4, 3])
    check("scatter_reduce", x, 0, index, src, reduce=reduce)
    # PyTorch gives the excluded self a share of the gradient where it ties with an extreme, and drops that share
    check("scatter_reduce", x, 0, index, src, reduce=reduce, include_self=False, grad=reduce == "prod")
    spread = np.repeat(np.arange(4), 3)
    check("scatter_reduce", floats(4), 0, spread, SPECIAL, reduce=reduce, grad=False)
    check("scatter_reduce", SPECIAL, 0, ints(30, low=0, high=12), floats(30, seed=1), reduce=reduce, grad=False)


def test_scatter_with_reduce() -> None:
    for reduce in ("add", "multiply"):
        check("scatter", floats(4, 5), 1, ints(4, 5, low=0, high=5), floats(4, 5, seed=1), reduce=reduce, grad=False)
        check("scatter", floats(4, 5), 0, ints(4, 5, low=0, high=4), value=2.5, reduce=reduce, grad=False)


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "int8", "bool", "float16"])
def test_dtypes(dtype: str) -> None:
    x, src = ints(6, low=0, high=2).astype(dtype), ints(20, low=0, high=2, seed=1).astype(dtype)
    index = ints(20, low=0, high=6)
    check("scatter", x, 0, np.array([5, 0, 3]), src[:3].copy(), half=False)
    check("scatter_add", x, 0, index, src, half=False)
    for reduce in ("prod", "amax", "amin"):
        check("scatter_reduce", x, 0, index, src, reduce=reduce, half=False, grad=False)
    check("index_fill", x, 0, np.array([1, -1]), 1, half=False)


def test_large_and_deterministic() -> None:
    rng = np.random.default_rng(0)
    index, src = rng.integers(0, 50, 9000), rng.standard_normal((9000, 3)).astype(np.float32)
    x = mg.zeros(50, 3)
    one = x.index_add(0, mg.tensor(index), mg.tensor(src)).numpy()
    assert np.array_equal(one, x.index_add(0, mg.tensor(index), mg.tensor(src)).numpy())
    want = np.zeros((50, 3))
    np.add.at(want, index, src)
    assert np.allclose(one, want, atol=1e-4)
    for reduce in ("amax", "mean"):
        check(
            "index_reduce",
            np.zeros((50, 3), np.float32),
            0,
            index,
            src,
            reduce,
            layouts=("plain",),
            half=False,
            include_self=False,
            grad=False,
        )


def test_scatter_refusals() -> None:
    x, i = floats(4, 5), ints(4, 5, low=0, high=4)
    check("scatter", x, 0, i[0], floats(4, 5, seed=1))
    check("scatter", x, 2, i, floats(4, 5, seed=1))
    check("scatter", x, 0, i, floats(4, 3, seed=1))
    check("scatter", x, 0, ints(4, 6, low=0, high=4), floats(4, 6, seed=1))
    check("scatter", x, 0, i, ints(4, 5))
    check("scatter", x, 0, floats(4, 5), floats(4, 5, seed=1))
    check("scatter", x, 0, i, floats(4, 5, seed=1), reduce="mean")
    check("scatter_reduce", x, 0, i, floats(4, 5, seed=1), reduce="max")
    check("index_add", x, 0, np.array([[0]]), floats(1, 5))
    check("index_add", x, 0, np.array([0, 1]), floats(1, 5))
    check("index_copy", x, 0, np.array([0, 1]), floats(2, 4))
    check("index_fill", x, 0, np.array([0, 1]), floats(2))


@pytest.mark.parametrize("dim", [0, 1])
def test_indices_out_of_range(dim: int) -> None:
    x = mg.zeros(4, 5)
    for bad in (x.shape[dim], -1, 1 << 30):
        index = mg.tensor(np.full((4, 5), bad))
        for call in (
            lambda: x.scatter(dim, index, mg.ones(4, 5)),  # noqa: B023
            lambda: x.scatter_reduce(dim, index, mg.ones(4, 5), "amax"),  # noqa: B023
            lambda: x.index_copy(dim, index[0, :1], mg.ones(*(1 if d == dim else n for d, n in enumerate(x.shape)))),  # noqa: B023
        ):
            with pytest.raises(mg.IndexOutOfRangeError):
                call().numpy()
    for bad in (x.shape[dim], -x.shape[dim] - 1):
        with pytest.raises(mg.IndexOutOfRangeError):
            x.index_fill(dim, mg.tensor([bad]), 1.0).numpy()
    with pytest.raises(mg.IndexOutOfRangeError, match=r"index 7 .* size 4"):
        x.index_add(0, mg.tensor([7]), mg.ones(1, 5)).numpy()


# ---- index_* ----


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_index_add_copy_fill(dim: int) -> None:
    x = floats(4, 6, 3)
    n, k = x.shape[dim], 5
    src = floats(*(k if d == dim else s for d, s in enumerate(x.shape)), seed=1)
    both("index_add", x, dim, ints(k, low=0, high=n), src)
    check("index_add", x, dim, ints(k, low=0, high=n), src, alpha=-0.5)
    both("index_copy", x, dim, np.random.default_rng(0).permutation(n)[:3], np.take(src, range(3), dim).copy())
    both("index_fill", x, dim, np.array([0, -1, 0]), 2.5)
    check("index_fill", x, dim, np.array([1, 0]), np.float32(3).reshape(()))
    for reduce in ("prod", "mean", "amax", "amin"):
        for include_self in (True, False):
            check(
                "index_reduce", x, dim, ints(k, low=0, high=n), src, reduce, include_self=include_self, layouts=PLAIN,
                grad=reduce != "prod" or include_self, half=include_self,
            )  # fmt: skip
    check(inplace("index_reduce"), x, dim, ints(k, low=0, high=n), src, "amax", layouts=("plain",), half=False)


def test_index_forms_of_small_tensors() -> None:
    check("index_add", floats(5), 0, np.array(3), floats(1, seed=1))
    check("index_add", floats(5), 0, np.array(3), floats(seed=1))
    check("index_add", floats(), 0, np.array([0]), floats(seed=1))
    check("index_add", floats(5, 2), 0, np.zeros(0, np.int64), floats(0, 2))
    check("index_copy", floats(5, 2), 1, np.array(1), floats(5, 1, seed=1))
    check("index_fill", floats(5, 0), 0, np.array([1]), 1.0)
    check("index_add", floats(5, 2), 0, np.array([1, 2], np.int32), floats(2, 2))


# ---- put, take ----


def test_put_and_take() -> None:
    x = floats(4, 5)
    for accumulate in (False, True):
        index = np.array([[0, -1, 7], [3, 12, 5]])
        both("put", x, index, floats(2, 3, seed=1), accumulate)
    both("put", x, np.array([3, 3, 3, -17]), floats(4, seed=1), True)
    check("take", x, np.array([[0, -1], [19, -20]]))
    check("take", x, np.array(3))
    check("take", x, np.zeros((0, 2), np.int64))
    check("take_along_dim", x, ints(4, 3, low=0, high=5), 1)
    check("take_along_dim", x, ints(1, 5, low=0, high=4), 0)
    check("take_along_dim", floats(1, 5), ints(4, 3, low=0, high=5), -1)
    check("take_along_dim", x, ints(7, low=0, high=20), layouts=("plain", "stepped"))
    check("take_along_dim", x, ints(7, low=0, high=5), 0)
    check("put", x, np.array([0, 1]), floats(3))
    check("put", x, np.array([0, 1]), ints(2))


def test_index_put() -> None:
    x = floats(4, 5, 3)
    i, j = np.array([0, 3, -1]), np.array([[1], [4]])
    for accumulate in (False, True):
        for fn in (".index_put", ".index_put_copy"):
            name: Any = fn
            if fn == ".index_put_copy":
                name = tuple((lambda t, *a: (t * 1).index_put_(*a)) for _ in range(2))
            check(name, x, [i[:2].copy()], floats(2, 5, 3, seed=1), accumulate)
            check(name, x, [i[:2].copy(), j], floats(2, 2, 3, seed=1), accumulate)
            check(name, x, [i[:2].copy(), j, np.array(1)], floats(seed=1), accumulate)
    check(".index_put", x, [np.array([1, 1, 1])], floats(3, 5, 3, seed=1), True)
    check(".index_put", x, [bools(4, 5)], floats(3, seed=1))
    check(".index_put", x, [bools(4)], floats(1, 5, 3, seed=1), True)
    check(".index_put", x, [np.array([1])], ints(5, 3))


# ---- masks ----


def test_masked_select_and_nonzero() -> None:
    for x in (floats(4, 5), floats(7), floats(), floats(0, 3)):
        check("masked_select", x, bools(*x.shape))
    check("masked_select", floats(4, 5), bools(5))
    check("masked_select", floats(5), bools(4, 1))
    check("masked_select", floats(5), ints(5))
    for x in (ints(4, 5, low=0, high=2), bools(3, 2, 2), np.float32([0, 1.5, np.nan]), np.array(3), np.array(0), np.zeros((0, 2))):
        check("nonzero", x)
        check("nonzero", x, as_tuple=True)
        check("argwhere", x)


def test_masks_are_counted_on_the_host() -> None:
    for fn in (mg.nonzero, mg.argwhere, lambda x: mg.masked_select(x, x > 0)):
        with pytest.raises(mg.TraceError):
            mg.compile(fn)(mg.ones(3))


def test_masked_scatter() -> None:
    x = floats(4, 5)
    both("masked_scatter", x, bools(4, 5), floats(30, seed=1))
    check("masked_scatter", x, bools(5), floats(4, 5, seed=1))
    check("masked_scatter", x, bools(4, 1), floats(4, 5, seed=1))
    check("masked_scatter", x, np.zeros((4, 5), bool), floats(1, seed=1))
    check("masked_scatter", x, bools(4, 5), ints(20))
    check("masked_scatter", x, ints(4, 5), floats(20))


# ---- views ----


def test_writing_into_views() -> None:
    x = floats(4, 6, 3)
    check("select_scatter", x, floats(4, 3, seed=1), 1, -2)
    check("select_scatter", x, floats(6, 3, seed=1), 0, 3)
    check("select_scatter", x, floats(6, 1, seed=1), 0, 3)
    check("select_scatter", x, floats(6, 3, seed=1), 0, 4)
    check("slice_scatter", x, floats(4, 2, 3, seed=1), 1, 1, 5, 2)
    check("slice_scatter", x, floats(2, 6, 3, seed=1), 0, -2)
    check("slice_scatter", x, floats(4, 6, 3, seed=1))
    check("slice_scatter", x, floats(4, 3, 3, seed=1), 1, 4)
    check("diagonal_scatter", x, floats(3, 4, seed=1))
    check("diagonal_scatter", x, floats(6, 2, seed=1), -1, 0, 2)
    check("diagonal_scatter", floats(4, 5), floats(4, seed=1), 1)
    check("diagonal_scatter", floats(4, 5), floats(3, seed=1), -1)
    check("diagonal_scatter", floats(4, 5), floats(2, seed=1), -1)


# ---- compiled ----


def test_compiled_is_eager() -> None:
    x, src, index = mg.tensor(floats(4, 5)), mg.tensor(floats(4, 5, seed=1)), mg.tensor(ints(4, 5, low=0, high=4))
    rows = mg.tensor([3, 0, 3])

    def step(x: mg.Tensor, src: mg.Tensor, index: mg.Tensor, rows: mg.Tensor) -> list[mg.Tensor]:
        y = x * 2.0
        y.scatter_add_(0, index, src)
        y.index_copy_(0, rows, src[:3])
        y[:, 1:4].scatter_(1, index[:, :2].clamp(max=2), src)
        return [
            y,
            x.scatter_reduce(0, index, src, "prod"),
            x.scatter_reduce(0, index, src, "mean", include_self=False),
            y.index_fill(1, rows, 7.0),
        ]

    want = [t.numpy() for t in step(x, src, index, rows)]
    run = mg.compile(step)
    for _ in range(2):
        for g, w in zip(run(x, src, index, rows), want, strict=True):
            np.testing.assert_array_equal(g.numpy(), w)


def test_compiled_cache_is_written_in_place() -> None:
    cache = mg.zeros(2, 6, 4)

    @mg.compile
    def write(at: mg.Tensor, new: mg.Tensor) -> mg.Tensor:
        cache.index_copy_(1, at, new)
        return cache.sum()

    want = np.zeros((2, 6, 4), np.float32)
    for t in range(3):
        new = floats(2, 1, 4, seed=t)
        want[:, t : t + 1] = new
        assert np.allclose(write(mg.tensor([t]), mg.tensor(new)).item(), want.sum(), atol=1e-5)
        assert np.array_equal(cache.numpy(), want)


def test_compiled_gradients() -> None:
    x, src = mg.tensor(floats(4, 5)).requires_grad_(), mg.tensor(floats(4, 5, seed=1)).requires_grad_()
    index = mg.tensor(ints(4, 5, low=0, high=4))

    def loss(x: mg.Tensor, src: mg.Tensor) -> mg.Tensor:
        return (x.scatter_reduce(0, index, src, "amax") * x.scatter_add(0, index, src * src)).sum()

    loss(x, src).backward()
    want = [x.grad.numpy(), src.grad.numpy()]  # type: ignore[union-attr]
    got = mg.compile(lambda a, b: mg.grad(loss(a, b), [a, b]))(x, src)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g.numpy(), w, rtol=1e-6)


def test_leaves_and_views() -> None:
    leaf = mg.zeros(4).requires_grad_()
    with pytest.raises(mg.GradientError):
        leaf.scatter_(0, mg.tensor([1]), 1.0)
    with pytest.raises(mg.GradientError):
        leaf.index_add_(0, mg.tensor([1]), mg.ones(1))
    x = mg.arange(6).float()
    x.index_copy_(0, mg.tensor([0, 1, 2]), x[3:])
    x.index_add_(0, mg.tensor([5, 4, 3, 2, 1, 0]), x)
    assert x.tolist() == [8.0, 8.0, 8.0, 8.0, 8.0, 8.0]
    assert torch is not None
