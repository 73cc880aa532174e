"""Tensors of 200 MiB on a device whose bindings reach 128 MiB, and grids of millions: right results, or bytes and limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura.nn import functional as F

ROWS, COLUMNS = 51200, 1024
N = ROWS * COLUMNS  # 200 MiB of float32
HOST = (np.arange(N, dtype=np.int32) % 7).astype(np.float32)
TABLE = HOST.reshape(ROWS, COLUMNS)
PICKED = [0, ROWS - 1, ROWS // 2, 3, 3]


@pytest.fixture(scope="module")
def flat() -> Iterator[mg.Tensor]:
    """0, 1, ... 6, 0, 1, ... in float32; the memory is given back after the last test."""
    yield mg.arange(N, dtype=mg.int32).remainder(7).float()
    _give_back()


@pytest.fixture(scope="module")
def table(flat: mg.Tensor) -> mg.Tensor:
    return flat.view(ROWS, COLUMNS)


@pytest.fixture(autouse=True)
def freed() -> Iterator[None]:
    """What one test made does not wait in the pool for the next ones."""
    yield
    _give_back()


def _give_back() -> None:
    device = mg.device()
    device.drain()
    with device.lock:
        device.pool.trim(64 << 20)
    device.synchronize()


def ends(x: mg.Tensor) -> list[float]:
    """Elements at the borders of parts."""
    return [x[i].item() for i in (0, 1, N // 2 - 1, N // 2, N - 2, N - 1)]


ENDS = [float(HOST[i]) for i in (0, 1, N // 2 - 1, N // 2, N - 2, N - 1)]


def test_elementwise(flat: mg.Tensor) -> None:
    assert ends(flat + flat) == [2 * v for v in ENDS]
    assert ends(F.relu(flat - 3)) == [max(v - 3, 0) for v in ENDS]


def test_in_place(flat: mg.Tensor) -> None:
    x = flat.clone()
    x.add_(1)
    assert ends(x) == [v + 1 for v in ENDS]
    x.view(ROWS, COLUMNS).mul_(mg.arange(COLUMNS))
    assert x[N - 1].item() == (ENDS[-1] + 1) * (COLUMNS - 1)


def test_parts_that_start_anywhere(flat: mg.Tensor) -> None:
    out = flat[1:] * 2 + flat[:-1]
    for i in (0, 1, N // 2, N // 3, N - 2):
        assert out[i].item() == HOST[i + 1] * 2 + HOST[i]
    assert (flat[::2] + 1)[-1].item() == HOST[N - 2] + 1


def test_broadcast_operands(table: mg.Tensor) -> None:
    row, column = mg.arange(COLUMNS, dtype=mg.float32), mg.arange(ROWS, dtype=mg.float32).view(ROWS, 1)
    out = table + row * 2 + column
    for i, j in ((0, 0), (0, 5), (ROWS // 2, 1023), (ROWS - 1, 0), (ROWS - 1, 1023)):
        assert out[i, j].item() == TABLE[i, j] + 2 * j + i


@pytest.mark.parametrize("dim", [0, 1])
def test_sums_along_a_dimension(table: mg.Tensor, dim: int) -> None:
    np.testing.assert_array_equal(table.sum(dim).numpy(), TABLE.sum(dim, dtype=np.float64))
    np.testing.assert_array_equal((table == 6).sum(dim).numpy(), (TABLE == 6).sum(dim))


def test_whole_reductions(flat: mg.Tensor) -> None:
    assert abs(flat.sum().item() / HOST.sum(dtype=np.float64) - 1) < 1e-6
    assert abs(flat.mean().item() - HOST.mean(dtype=np.float64)) < 1e-5
    assert abs(flat.var().item() - 4) < 1e-4
    assert flat.max().item() == 6
    assert flat.argmax().item() == 6
    marked = flat.clone()
    marked[N - 5] = 9
    assert marked.argmax().item() == N - 5


def test_reductions_of_few_long_rows(flat: mg.Tensor) -> None:
    rows = HOST.reshape(5, -1)
    np.testing.assert_allclose(flat.view(5, -1).sum(1).numpy(), rows.sum(1, dtype=np.float64), rtol=1e-6)
    np.testing.assert_array_equal(flat.view(5, -1).sum(0).numpy(), rows.sum(0))


@pytest.mark.parametrize("dim", [0, 1])
def test_largest_along_a_dimension(table: mg.Tensor, dim: int) -> None:
    np.testing.assert_array_equal(table.argmax(dim).numpy(), TABLE.argmax(dim))
    values, where = table.max(dim)
    np.testing.assert_array_equal(values.numpy(), TABLE.max(dim))
    np.testing.assert_array_equal(where.numpy(), TABLE.argmax(dim))


def _softmax(x: np.ndarray) -> Any:
    e = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_softmax_of_many_rows(table: mg.Tensor) -> None:
    out = F.softmax(table, 1)
    np.testing.assert_allclose(out[PICKED].numpy(), _softmax(TABLE[PICKED]), rtol=1e-5)
    np.testing.assert_allclose(out.sum(1).numpy(), 1, rtol=1e-5)


def test_losses_and_norms_of_many_rows(table: mg.Tensor) -> None:
    target = mg.arange(ROWS) % COLUMNS
    losses = F.cross_entropy(table, target, reduction="none")
    want = -np.log(_softmax(TABLE[PICKED])[range(5), np.array(PICKED) % COLUMNS])
    np.testing.assert_allclose(losses[PICKED].numpy(), want, rtol=1e-5)
    weight, bias = mg.full((COLUMNS,), 2.0), mg.ones(COLUMNS)
    normed = F.layer_norm(table, (COLUMNS,), weight, bias)[PICKED].numpy()
    x = TABLE[PICKED].astype(np.float64)
    np.testing.assert_allclose(
        normed, 2 * (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) + 1, rtol=1e-4, atol=1e-5
    )


@pytest.mark.full
def test_gradient_of_many_rows(table: mg.Tensor) -> None:
    logits = table.detach().clone().requires_grad_()
    F.cross_entropy(logits, mg.zeros(ROWS, dtype=mg.int64)).backward()
    want = _softmax(TABLE[PICKED])
    want[:, 0] -= 1
    assert logits.grad is not None
    np.testing.assert_allclose(logits.grad[PICKED].numpy(), want / ROWS, rtol=1e-4, atol=1e-10)


def test_rows_picked_from_a_table(table: mg.Tensor) -> None:
    index = mg.tensor(PICKED)
    np.testing.assert_array_equal(table.index_select(0, index).numpy(), TABLE[PICKED])
    np.testing.assert_array_equal(table[index].numpy(), TABLE[PICKED])
    np.testing.assert_array_equal(F.embedding(index, table).numpy(), TABLE[PICKED])


@pytest.mark.parametrize("dim", [0, 1])
def test_gather(table: mg.Tensor, dim: int) -> None:
    index = np.random.default_rng(0).integers(0, TABLE.shape[dim], (3, COLUMNS) if dim == 0 else (ROWS, 3))
    np.testing.assert_array_equal(table.gather(dim, mg.tensor(index)).numpy(), np.take_along_axis(TABLE, index, dim))


def test_gradient_into_a_table() -> None:
    weight = mg.zeros(ROWS, COLUMNS, requires_grad=True)
    out = F.embedding(mg.tensor(PICKED), weight)
    (out * mg.arange(1, 6, dtype=mg.float32).view(5, 1)).sum().backward()
    assert weight.grad is not None
    assert weight.grad[PICKED].numpy()[:, (0, 511, 1023)].tolist() == [[v] * 3 for v in (1, 2, 3, 9, 9)]
    assert weight.grad.sum().item() == 15 * COLUMNS
    assert weight.grad[4 : ROWS // 2].any().item() is False


def test_products(table: mg.Tensor) -> None:
    right, left = mg.ones(COLUMNS, 4), mg.ones(3, ROWS)
    np.testing.assert_array_equal((table @ right).numpy()[:, 2], TABLE.sum(1))
    np.testing.assert_array_equal((left @ table).numpy()[1], TABLE.sum(0, dtype=np.float64))
    np.testing.assert_array_equal((table @ mg.ones(COLUMNS)).numpy(), TABLE.sum(1))
    np.testing.assert_array_equal((mg.ones(ROWS) @ table).numpy(), TABLE.sum(0, dtype=np.float64))


def test_transposed_products(table: mg.Tensor) -> None:
    np.testing.assert_array_equal((mg.ones(4, COLUMNS) @ table.T).numpy()[2], TABLE.sum(1))
    np.testing.assert_array_equal((table.T @ mg.ones(ROWS, 3)).numpy()[:, 1], TABLE.sum(0, dtype=np.float64))


def test_a_product_of_200_mib() -> None:
    rows, columns = np.arange(ROWS, dtype=np.float32) % 11, np.arange(COLUMNS, dtype=np.float32) % 13
    out = mg.tensor(rows).view(ROWS, 1) @ mg.tensor(columns).view(1, COLUMNS)
    np.testing.assert_array_equal(out[PICKED].numpy(), np.outer(rows[PICKED], columns))
    np.testing.assert_array_equal(out.sum(1).numpy(), rows * columns.sum())


UPDATES: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda p: mg.optim.SGD(p, lr=0.5),
    "momentum": lambda p: mg.optim.SGD(p, lr=0.5, momentum=0.9),
    "AdamW": lambda p: mg.optim.AdamW(p, lr=0.5, weight_decay=0.0),
}


@pytest.mark.parametrize("name", ["SGD", pytest.param("momentum", marks=pytest.mark.full), pytest.param("AdamW", marks=pytest.mark.full)])
def test_update_of_a_large_parameter(flat: mg.Tensor, name: str) -> None:
    parameter = mg.nn.Parameter(flat.detach().clone())
    parameter.grad = mg.ones(N)
    UPDATES[name]([parameter]).step()
    np.testing.assert_allclose(ends(parameter.detach()), [v - 0.5 for v in ENDS], rtol=1e-5)


def test_copies(flat: mg.Tensor, table: mg.Tensor) -> None:
    assert ends(mg.empty(N).copy_(flat)) == ENDS
    turned = table.T.contiguous()
    assert turned[5, ROWS - 1].item() == TABLE[ROWS - 1, 5]
    assert turned[1023, 3].item() == TABLE[3, 1023]
    np.testing.assert_array_equal(turned.sum(0).numpy(), TABLE.sum(1))
    assert flat.flip(0)[0].item() == ENDS[-1]
    joined = mg.cat([flat, flat[:8]])
    assert joined[-8:].tolist() == HOST[:8].tolist()


REFUSED: dict[str, Callable[[mg.Tensor], Any]] = {
    "softmax along columns": lambda x: F.softmax(x, 0),
    "one row": lambda x: F.softmax(x.view(-1), 0),
    "cumsum": lambda x: x.view(-1).cumsum(0),
    "sort": lambda x: x.view(-1).sort(),
}


@pytest.mark.parametrize("fn", REFUSED.values(), ids=REFUSED)
def test_refused_with_bytes_and_limit(table: mg.Tensor, fn: Callable[[mg.Tensor], Any]) -> None:
    limit = mg.device().limits["max-storage-buffer-binding-size"]
    if limit >= 4 * N:
        fn(table)
        return
    with pytest.raises(mg.DeviceError, match=rf"{4 * N} bytes.*limit is {limit}") as caught:
        fn(table)
    assert __file__ in str(caught.value)
    assert (table[0, :3] + 1.0).tolist() == [1.0, 2.0, 3.0]


def test_more_bytes_than_a_buffer_holds() -> None:
    limit = mg.device().limits["max-buffer-size"]
    elements = limit // 16 * 4 + 16
    for make in (mg.empty, mg.zeros, mg.ones):
        with pytest.raises(mg.OutOfMemoryError, match=rf"{4 * elements} bytes.*{limit}") as caught:
            make(elements)
        assert __file__ in str(caught.value)
    assert mg.ones(3).sum().item() == 3


def test_five_million_elements() -> None:
    n = 5_000_000
    host = np.arange(n, dtype=np.int32)
    x = mg.arange(n, dtype=mg.int32)
    np.testing.assert_array_equal((x * 3 + 1).numpy(), host * 3 + 1)
    np.testing.assert_array_equal((x[::3] % 10).numpy(), host[::3] % 10)
    np.testing.assert_array_equal(x.view(-1, 1).float().sum(1).numpy(), host.astype(np.float32))
    np.testing.assert_array_equal(x.view(2, -1).T.contiguous().numpy(), host.reshape(2, -1).T)
    assert x[x.flip(0)][:3].tolist() == [n - 1, n - 2, n - 3]


def test_seventy_thousand_small_problems() -> None:
    count = 70_000
    rng = np.random.default_rng(0)
    a, b = rng.integers(-4, 5, (count, 3, 2)).astype(np.float32), rng.integers(-4, 5, (count, 2, 5)).astype(np.float32)
    np.testing.assert_array_equal((mg.tensor(a) @ mg.tensor(b)).numpy(), a @ b)
    np.testing.assert_allclose(F.softmax(mg.tensor(a), 2).numpy(), _softmax(a), rtol=1e-5)
    np.testing.assert_allclose(F.softmax(mg.tensor(a), 1).numpy(), _softmax(a.swapaxes(1, 2)).swapaxes(1, 2), rtol=1e-5)
