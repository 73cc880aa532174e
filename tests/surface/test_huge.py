"""Tensors larger than one binding: elementwise ops work in parts, some refuse with bytes and limit; and many rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura.nn import functional as F

N = 50 * 2**20 + 3  # 200 MiB of float32; the odd end catches tails
ROWS = 70000  # more than 65,535 workgroups


@pytest.fixture(scope="module")
def big() -> Any:
    """0, 1, 2... in float32 (exact below 2^24)."""
    x = mg.arange(N, dtype=mg.float32)
    if x.nbytes <= mg.device().limits["max-storage-buffer-binding-size"]:
        pytest.xfail("this device binds 200 MiB at once")
    return x


def ends(x: mg.Tensor) -> list[float]:
    """Elements around the borders of parts."""
    places = (0, 1, N // 2, N - 2, N - 1)
    return [x[i].item() for i in places]


WHOLE = [float(np.float32(i)) for i in (0, 1, N // 2, N - 2, N - 1)]


def test_elementwise(big: mg.Tensor) -> None:
    assert ends(big) == WHOLE
    assert ends(big * 2.0) == [2 * v for v in WHOLE]
    assert ends(mg.where(big > 1, big, -1.0)) == [-1.0, -1.0, *WHOLE[2:]]
    assert ends(big == big) == [True] * 5
    assert (big[::2] + 1.0)[-1].item() == np.float32(WHOLE[-1]) + np.float32(1)
    assert (big[:-3].view(1024, -1).T + 1.0)[-1, -1].item() == np.float32(N - 3)


def test_in_place_and_views(big: mg.Tensor) -> None:
    x = big.clone()
    x.mul_(2.0)
    assert ends(x) == [2 * v for v in WHOLE]
    x[N - 1] = 7.0
    x[1:3] = 5.0
    assert (x[-1].item(), x[1].item(), x[3].item()) == (7.0, 5.0, 6.0)
    assert x[:1000].sum().item() == 5 + 5 + 2 * sum(range(3, 1000))
    assert x[mg.tensor([0, N - 1])].tolist() == [0.0, 7.0]


REFUSED: dict[str, Callable[[mg.Tensor], Any]] = {
    "softmax": lambda x: F.softmax(x, 0),
    "cumsum": lambda x: x.cumsum(0),
    "layer_norm": lambda x: F.layer_norm(x, (N,)),
}


@pytest.mark.parametrize("fn", REFUSED.values(), ids=REFUSED)
def test_others_refuse(big: mg.Tensor, fn: Callable[[mg.Tensor], Any]) -> None:
    limit = mg.device().limits["max-storage-buffer-binding-size"]
    with pytest.raises(mg.DeviceError, match=rf"must bind \d+ bytes.*limit is {limit}") as caught:
        fn(big)
    assert __file__ in str(caught.value)
    assert (big[:3] + 1.0).tolist() == [1.0, 2.0, 3.0]


def test_no_memory_for_it() -> None:
    with pytest.raises(mg.OutOfMemoryError, match=str(2**42)) as caught:
        mg.empty(2**40)
    assert __file__ in str(caught.value)
    assert mg.ones(3).sum().item() == 3.0


MANY: dict[str, tuple[Callable[[Any], Any], Callable[[], Any]]] = {
    "outer": (lambda lib: lib.arange(ROWS).reshape(-1, 1) + lib.arange(3), lambda: np.add.outer(np.arange(ROWS), np.arange(3))),
    "transposed": (lambda lib: (lib.ones(3, ROWS).T * lib.arange(ROWS).reshape(-1, 1)).sum(1), lambda: 3.0 * np.arange(ROWS)),
    "sum of rows": (lambda lib: (lib.ones(ROWS, 5) * lib.arange(5)).sum(1), lambda: np.full(ROWS, 10.0)),
    "sum of columns": (lambda lib: lib.ones(ROWS, 5).sum(0), lambda: np.full(5, float(ROWS))),
    "argmax": (lambda lib: (lib.ones(ROWS, 4) * lib.arange(4)).argmax(1), lambda: np.full(ROWS, 3)),
    "any": (lambda lib: (lib.arange(ROWS).reshape(-1, 1) > 0).any(1), lambda: np.arange(ROWS) > 0),
    "matmul": (lambda lib: lib.ones(ROWS, 3) @ lib.ones(3, 2), lambda: np.full((ROWS, 2), 3.0)),
    "batches": (lambda lib: lib.bmm(lib.ones(ROWS, 2, 3), lib.ones(ROWS, 3, 2)), lambda: np.full((ROWS, 2, 2), 3.0)),
    "flat": (lambda lib: lib.arange(ROWS).expand(ROWS)[-1:] + 0, lambda: np.array([ROWS - 1])),
    "pick": (lambda lib: lib.arange(ROWS)[lib.arange(ROWS)], lambda: np.arange(ROWS)),
    "pairs": (lambda lib: lib.stack([lib.arange(ROWS)] * 2, 1), lambda: np.stack([np.arange(ROWS)] * 2, 1)),
}


@pytest.mark.parametrize(("fn", "want"), MANY.values(), ids=MANY)
def test_many_rows(fn: Callable[[Any], Any], want: Callable[[], Any]) -> None:
    np.testing.assert_array_equal(fn(mg).numpy(), want())


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "cross_entropy"])
def test_many_rows_of_rows(name: str) -> None:
    x = mg.ones(ROWS, 3, requires_grad=True)
    if name == "cross_entropy":
        out = F.cross_entropy(x, mg.zeros(ROWS, dtype=mg.int64), reduction="none")
    else:
        out = F.softmax(x, -1) if name == "softmax" else F.layer_norm(x, (3,))
    want = {"softmax": 1 / 3, "layer_norm": 0.0, "cross_entropy": np.log(3)}[name]
    np.testing.assert_allclose(out.detach().numpy(), want, rtol=1e-6)
    out.sum().backward()
    assert x.grad is not None and np.isfinite(x.grad.numpy()).all()


def test_gradient_of_many_broadcast_rows() -> None:
    a, b = mg.ones(ROWS, 1, requires_grad=True), mg.ones(3, requires_grad=True)
    (a * b).sum().backward()
    assert a.grad is not None and b.grad is not None
    assert a.grad.numpy().min() == a.grad.numpy().max() == 3.0
    assert b.grad.tolist() == [float(ROWS)] * 3
