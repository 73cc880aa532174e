"""Datasets: anything with `len` and `[i]`. Values are numpy, so that worker threads can make batches of them.

A dataset may offer `batch(indices)`: a whole batch at once, already collated; the loader then asks for no single samples.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from ..errors import ShapeError
from ..provenance import site
from ..random import Generator, default_generator
from ..serialization import as_array


class Dataset:
    """Base of datasets; a class of your own needs only `__len__` and `__getitem__`."""

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no __getitem__")

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} has no __len__")


class IterableDataset:
    """Base of datasets that are read from their start to their end; a class of your own needs only `__iter__`."""

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")


class ChainDataset(IterableDataset):
    """Several iterable datasets, one after the other."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)

    def __iter__(self) -> Iterator[Any]:
        for dataset in self.datasets:
            yield from dataset


class ConcatDataset(Dataset):
    """Several datasets with `len` and `[i]` as one."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("ConcatDataset needs at least one dataset")
        for dataset in self.datasets:
            if not hasattr(dataset, "__len__"):
                raise TypeError(f"{type(dataset).__name__} has no len; join iterable datasets with ChainDataset")
        self.cumulative_sizes = list(accumulate(len(d) for d in self.datasets))

    def __getitem__(self, index: int) -> Any:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} of a dataset of {len(self)} samples")
        index %= len(self)
        number = bisect_right(self.cumulative_sizes, index)
        return self.datasets[number][index - (self.cumulative_sizes[number - 1] if number else 0)]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]


class TensorDataset(Dataset):
    """Rows of arrays of equal length: sample i is the tuple of their i-th rows. Tensors are read to the host once, here."""

    def __init__(self, *tensors: Any) -> None:
        if not tensors:
            raise TypeError("TensorDataset needs at least one tensor or array")
        self.tensors = tuple(as_array(t) for t in tensors)
        if any(t.ndim == 0 or len(t) != len(self.tensors[0]) for t in self.tensors):
            shapes = ", ".join(str(list(t.shape)) for t in self.tensors)
            raise ShapeError(f"TensorDataset needs arrays of one length, got shapes {shapes}\n  at {site()}")

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        return tuple(t[index] for t in self.tensors)

    def __len__(self) -> int:
        return len(self.tensors[0])

    def batch(self, indices: Sequence[int]) -> tuple[np.ndarray[Any, Any], ...]:
        """Several samples, stacked. -> one array [len(indices), *] a tensor."""
        return tuple(t[np.asarray(indices, np.intp)] for t in self.tensors)


class Subset(Dataset):
    """Some samples of a dataset, by index."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, [int(i) for i in indices]

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.indices[index]]

    def __len__(self) -> int:
        return len(self.indices)

    def __getattr__(self, name: str) -> Any:
        """`batch`, if the dataset has it."""
        if name == "batch" and hasattr(self.__dict__.get("dataset"), "batch"):
            return lambda indices: self.dataset.batch([self.indices[i] for i in indices])
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def host_rng(generator: Any) -> np.random.Generator:
    """A numpy generator from a numpy Generator (itself), a seed, a meganeura Generator or None (the one of manual_seed)."""
    if isinstance(generator, np.random.Generator):
        return generator
    if isinstance(generator, (int, np.integer)):
        return np.random.default_rng(int(generator))
    if generator is None or isinstance(generator, Generator):
        return np.random.default_rng((generator or default_generator).reserve(1))
    raise TypeError(f"generator must be a meganeura.Generator, a numpy.random.Generator, a seed or None, not {type(generator).__name__}")


def random_split(dataset: Any, lengths: Sequence[int | float], generator: Any = None) -> list[Subset]:
    """Disjoint random subsets of the given lengths, which must sum to len(dataset); or of fractions that sum to 1.

    With fractions, samples left over by rounding down go to the subsets one by one, as in PyTorch.
    """
    count = len(dataset)
    if any(isinstance(n, float) for n in lengths) and math.isclose(sum(lengths), 1.0):
        if any(not 0 <= n <= 1 for n in lengths):
            raise ValueError(f"fractions must lie in [0, 1], got {list(lengths)}")
        sizes = [math.floor(count * n) for n in lengths]
        for i in range(count - sum(sizes)):
            sizes[i % len(sizes)] += 1
    else:
        sizes = [int(n) for n in lengths]
    if sum(sizes) != count or any(n < 0 or n != int(n) for n in sizes):
        raise ValueError(f"lengths {list(lengths)} do not sum to the dataset's {count} samples")
    order = host_rng(generator).permutation(count).tolist()
    ends = np.cumsum([0, *sizes]).tolist()
    return [Subset(dataset, order[a:b]) for a, b in pairwise(ends)]
