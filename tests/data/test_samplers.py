"""Samplers, joined and iterable datasets, and the loader that uses them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import data, dispatch


@pytest.fixture(autouse=True)
def numpy_world() -> Iterator[None]:
    with dispatch.use(mg.Reference()):
        mg.manual_seed(0)
        yield


def test_orders() -> None:
    ten = list(range(10))
    assert list(data.SequentialSampler(ten)) == ten
    random = data.RandomSampler(ten, generator=1)
    first, second = list(random), list(random)
    assert sorted(first) == sorted(second) == ten
    assert first != second
    assert list(data.RandomSampler(ten, generator=1)) == first, "a seed decides"
    assert len(random) == 10
    more = list(data.RandomSampler(ten, num_samples=25, generator=1))
    assert len(more) == 25 and Counter(more).most_common()[-1][1] >= 2, "all samples before any comes again"
    assert len(set(data.RandomSampler(range(1000), replacement=True, generator=1))) < 700
    assert list(data.RandomSampler([])) == []
    subset = data.SubsetRandomSampler([3, 5, 9], generator=1)
    assert sorted(subset) == [3, 5, 9] and len(subset) == 3


def test_weights() -> None:
    drawn = Counter(data.WeightedRandomSampler([1, 0, 3], 4000, generator=0))
    assert drawn[1] == 0
    assert drawn[2] / drawn[0] == pytest.approx(3, rel=0.15)
    assert sorted(data.WeightedRandomSampler(mg.tensor([1.0, 0.0, 3.0]), 2, replacement=False)) == [0, 2]
    with pytest.raises(ValueError, match="3 samples without replacement need as many weights above 0, not 2"):
        data.WeightedRandomSampler([1, 0, 3], 3, replacement=False)
    with pytest.raises(ValueError, match="weights must be"):
        data.WeightedRandomSampler([1, -1], 3)


@pytest.mark.torch
def test_batches(torch: Any) -> None:
    for drop_last in (False, True):
        for count in (0, 3, 7, 9):
            ours, theirs = (p.BatchSampler(p.SequentialSampler(range(count)), 3, drop_last) for p in (data, torch.utils.data))
            assert list(ours) == list(theirs)
            assert len(ours) == len(theirs)


def test_loader_with_samplers() -> None:
    rows = data.TensorDataset(np.arange(10))
    loader = data.DataLoader(rows, 4, sampler=data.SubsetRandomSampler(range(5, 10), generator=2))
    assert sorted(v for (b,) in loader for v in b.tolist()) == [5, 6, 7, 8, 9]
    assert len(loader) == 2
    loader = data.DataLoader(rows, batch_sampler=[[1, 2], [3], [9, 0, 4]])
    assert [b.tolist() for (b,) in loader] == [[1, 2], [3], [9, 0, 4]]
    state_at = iter(loader)
    next(state_at)
    state = loader.state_dict()
    other = data.DataLoader(rows, batch_sampler=[[1, 2], [3], [9, 0, 4]])
    other.load_state_dict(state)
    assert [b.tolist() for (b,) in other] == [[3], [9, 0, 4]]
    assert len(list(other)) == 3, "the next epoch is whole"
    state_at.close()
    for wrong in (
        {"sampler": [1], "shuffle": True},
        {"batch_sampler": [[1]], "batch_size": 2},
        {"batch_sampler": [[1]], "drop_last": True},
    ):
        with pytest.raises(ValueError, match="give"):
            data.DataLoader(rows, **wrong)


def test_joined_datasets() -> None:
    joined = data.ConcatDataset([range(3), [], range(10, 12)])
    assert [joined[i] for i in range(5)] == [0, 1, 2, 10, 11]
    assert joined[-1] == 11 and len(joined) == 5
    with pytest.raises(IndexError, match="index 5 of a dataset of 5 samples"):
        joined[5]
    assert [b.tolist() for b in data.DataLoader(joined, 2)] == [[0, 1], [2, 10], [11]]
    with pytest.raises(TypeError, match="no len"):
        data.ConcatDataset([data.ChainDataset([[1]])])


class _Lines(data.IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        yield from (np.float32(i) for i in range(7))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_iterable_datasets(workers: int) -> None:
    chain = data.ChainDataset([_Lines(), [np.float32(99)]])
    loader = data.DataLoader(chain, 3, num_workers=workers)
    assert [b.tolist() for b in loader] == [[0, 1, 2], [3, 4, 5], [6, 99]]
    assert [b.tolist() for b in data.DataLoader(chain, 3, num_workers=workers, drop_last=True)] == [[0, 1, 2], [3, 4, 5]]
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    batches.close()  # type: ignore[attr-defined]
    other = data.DataLoader(chain, 3, num_workers=workers)
    other.load_state_dict(state)
    assert [b.tolist() for b in other] == [[3, 4, 5], [6, 99]]
    with pytest.raises(ValueError, match="only be read in its own order"):
        data.DataLoader(chain, shuffle=True)
