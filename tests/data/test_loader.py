"""DataLoader and datasets: order, batches, threads, errors."""

from __future__ import annotations

import gc
import threading
import time
from collections import namedtuple
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import dispatch
from meganeura.data import DataLoader, Dataset, Subset, TensorDataset, random_split


class Watching(mg.Reference):
    """Notes the threads that make tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()

    def upload(self, dtype: Any, array: Any) -> Any:
        self.threads.add(threading.get_ident())
        return super().upload(dtype, array)


@pytest.fixture(autouse=True)
def world() -> Any:
    interpreter = Watching()
    with dispatch.use(interpreter):
        yield interpreter
    assert interpreter.threads <= {threading.get_ident()}, "a worker thread made a tensor"
    assert not _workers(), "a worker thread is left"


def _workers() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("meganeura-loader")]


class Squares(Dataset):
    """Samples i -> (i, i squared), slow for even i so that threads finish out of order."""

    def __init__(self, n: int, fail_at: int = -1) -> None:
        self.n, self.fail_at = n, fail_at
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Any:
        self.asked.append(i)
        if i == self.fail_at:
            raise RuntimeError(f"sample {i} is broken")
        time.sleep(0.002 * (i % 2 == 0))
        return np.float32(i), i * i


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize(("drop_last", "sizes"), [(False, [4, 4, 2]), (True, [4, 4])])
def test_order_and_tail(workers: int, drop_last: bool, sizes: list[int]) -> None:
    loader = DataLoader(Squares(10), batch_size=4, drop_last=drop_last, num_workers=workers)
    batches = list(loader)
    assert [len(x) for x, _ in batches] == sizes
    assert len(loader) == len(sizes)
    x, y = batches[0]
    assert [x.dtype, y.dtype] == [mg.float32, mg.int64]
    assert [v for x, _ in batches for v in x.tolist()] == list(range(sum(sizes)))
    assert y.tolist() == [0, 1, 4, 9]
    assert len(list(loader)) == len(sizes), "a loader can be used again"


def test_shuffle_by_seed() -> None:
    data = TensorDataset(np.arange(50))

    def epochs(**kwargs: Any) -> list[list[int]]:
        loader = DataLoader(data, batch_size=7, shuffle=True, **kwargs)
        return [[v for (x,) in loader for v in x.tolist()] for _ in range(2)]

    first, second = epochs(generator=3)
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    assert first != list(range(50))
    assert epochs(generator=3, num_workers=0) == [first, second] == epochs(generator=np.random.default_rng(3), num_workers=4)
    mg.manual_seed(1)
    a = epochs()
    mg.manual_seed(1)
    assert epochs() == a
    assert epochs(generator=mg.Generator(1)) == epochs(generator=mg.Generator(1))
    with pytest.raises(TypeError, match="generator must be"):
        epochs(generator="x")


def test_structures() -> None:
    pair = namedtuple("pair", "left right")

    class Mixed:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, i: int) -> Any:
            image = np.full((2, 3), i, np.float64)
            return {"x": image, "meta": (i, f"name{i}", [i > 1]), "pair": pair(1.5 * i, None)}

    (batch,) = DataLoader(Mixed(), batch_size=4)
    assert batch["x"].shape == (4, 2, 3)
    assert batch["x"].dtype is mg.float32
    number, names, (flag,) = batch["meta"]
    assert number.tolist() == [0, 1, 2, 3]
    assert names == ["name0", "name1", "name2", "name3"]
    assert flag.dtype is mg.bool_
    assert batch["pair"].left.tolist() == [0.0, 1.5, 3.0, 4.5]
    assert batch["pair"].right == [None] * 4


def test_collate_fn() -> None:
    loader = DataLoader(Squares(4), batch_size=2, collate_fn=lambda samples: np.array([b for _, b in samples], np.int32))
    assert [b.tolist() for b in loader] == [[0, 1], [4, 9]]
    assert next(iter(loader)).dtype is mg.int32


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_reach_the_caller(workers: int) -> None:
    seen = []
    with pytest.raises(RuntimeError, match="sample 5 is broken"):
        for x, _ in DataLoader(Squares(20, fail_at=5), batch_size=2, num_workers=workers):
            seen.append(x.tolist())
    assert seen == [[0, 1], [2, 3]]


def test_leaving_early_stops_the_threads() -> None:
    data = Squares(1000)
    for x, _ in DataLoader(data, batch_size=1, num_workers=2, prefetch_factor=2):
        assert x.tolist() == [0]
        break
    gc.collect()
    assert not _workers()
    assert len(data.asked) <= 2 * 2 + 2 + 1
    unfinished = iter(DataLoader(data))
    next(unfinished)
    assert _workers()
    del unfinished
    gc.collect()


def test_prefetch_runs_ahead_by_what_was_asked() -> None:
    data = Squares(40)
    batches = iter(DataLoader(data, batch_size=1, num_workers=1, prefetch_factor=3))
    next(batches)
    deadline = time.monotonic() + 10
    while len(data.asked) < 4 and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(0.02)
    assert len(data.asked) == 4
    batches.close()  # type: ignore[attr-defined]


def test_bad_samples_and_arguments() -> None:
    with dispatch.use(mg.Reference()):
        held = [mg.zeros(2)]
    with pytest.raises(TypeError, match="may not touch the device"):
        list(DataLoader(held))
    with pytest.raises(mg.ShapeError, match=r"different shapes: \[2\], \[3\]"):
        list(DataLoader([np.zeros(2), np.zeros(3)], batch_size=2))
    with pytest.raises(mg.ShapeError, match="different numbers of parts"):
        list(DataLoader([(1,), (1, 2)], batch_size=2))
    with pytest.raises(TypeError, match="cannot make a batch of object"):
        list(DataLoader([object()]))
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        DataLoader([1], batch_size=0)
    with pytest.raises(TypeError, match="needs __getitem__ and __len__"):
        DataLoader(iter([1]))
    assert list(DataLoader([], batch_size=3)) == []
    assert len(DataLoader([], batch_size=3)) == 0


def test_tensor_dataset() -> None:
    x = mg.tensor(np.arange(6, dtype=np.float32).reshape(3, 2))
    data = TensorDataset(x, np.array([7, 8, 9]))
    assert len(data) == 3
    row, label = data[1]
    assert row.tolist() == [2.0, 3.0]
    assert label == 8
    (batch, labels), last = DataLoader(data, batch_size=2)
    assert batch.tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert labels.tolist() == [7, 8]
    assert last[1].tolist() == [9]
    with pytest.raises(mg.ShapeError, match=r"one length, got shapes \[3, 2\], \[2\]"):
        TensorDataset(x, np.zeros(2))
    with pytest.raises(TypeError, match="at least one"):
        TensorDataset()


def test_random_split() -> None:
    data = TensorDataset(np.arange(10))
    parts = random_split(data, [7, 3], generator=0)
    assert [len(p) for p in parts] == [7, 3]
    assert sorted(int(p[i][0]) for p in parts for i in range(len(p))) == list(range(10))
    assert [p.indices for p in random_split(data, [7, 3], generator=0)] == [p.indices for p in parts]
    assert [len(p) for p in random_split(data, [0.5, 0.25, 0.25])] == [6, 2, 2]
    assert [len(p) for p in random_split(data, [0.9, 0.1])] == [9, 1]
    with pytest.raises(ValueError, match="do not sum to the dataset's 10 samples"):
        random_split(data, [7, 4])
    assert isinstance(parts[0], Subset)
    (batch,) = DataLoader(parts[1], batch_size=3)
    assert batch[0].tolist() == parts[1].indices
    assert not hasattr(Subset(Squares(3), [0]), "batch")


@pytest.mark.torch
def test_fractions_round_as_torch(torch: Any) -> None:
    for fractions in ([0.3, 0.3, 0.4], [1 / 3, 1 / 3, 1 / 3], [0.1, 0.9]):
        for n in (10, 11, 97):
            ours = [len(p) for p in random_split(range(n), fractions)]
            assert ours == [len(p) for p in torch.utils.data.random_split(range(n), fractions)]
