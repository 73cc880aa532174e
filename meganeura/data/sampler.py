"""Samplers: the order in which a loader asks for samples. Names, arguments and meaning are PyTorch's.

A sampler of your own needs `__iter__` (indices; lists of them if it makes batches) and, for len(loader), `__len__`. One that
offers `draw(rng)`, a whole epoch's order from a numpy generator, lets a loader continue in the middle of an epoch exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from ..serialization import as_array
from .dataset import host_rng


class Sampler:
    """Base of samplers."""

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")


class _Drawing(Sampler):
    """A sampler whose order is drawn at once. `generator`: a seed, a meganeura or numpy Generator, or None (mg.manual_seed's)."""

    def __init__(self, generator: Any) -> None:
        self.generator = np.random.default_rng(generator) if isinstance(generator, (int, np.integer)) else generator

    def draw(self, rng: np.random.Generator) -> Sequence[int]:
        """An epoch's order."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[int]:
        return iter(self.draw(host_rng(self.generator)))


class SequentialSampler(Sampler):
    """All samples in order."""

    def __init__(self, data_source: Any) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(_Drawing):
    """All samples in a new random order an epoch; or `num_samples` of them, with `replacement` each drawn from all."""

    def __init__(self, data_source: Any, replacement: bool = False, num_samples: int | None = None, generator: Any = None) -> None:
        if num_samples is not None and num_samples < 1:
            raise ValueError(f"num_samples must be at least 1, got {num_samples}")
        super().__init__(generator)
        self.data_source, self.replacement, self._num_samples = data_source, replacement, num_samples

    @property
    def num_samples(self) -> int:
        """Samples an epoch."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def draw(self, rng: np.random.Generator) -> Sequence[int]:
        count, wanted = len(self.data_source), self.num_samples
        if self.replacement:
            return rng.integers(0, count, wanted).tolist()  # type: ignore[no-any-return]
        rounds = [rng.permutation(count) for _ in range(max(1, -(-wanted // count)))] if count else []
        return np.concatenate([*rounds, np.zeros(0, np.int64)])[:wanted].astype(np.int64).tolist()  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(_Drawing):
    """Some samples, by index, in a new random order an epoch."""

    def __init__(self, indices: Sequence[int], generator: Any = None) -> None:
        super().__init__(generator)
        self.indices = list(indices)

    def draw(self, rng: np.random.Generator) -> Sequence[int]:
        return [self.indices[i] for i in rng.permutation(len(self.indices))]

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(_Drawing):
    """`num_samples` indices below len(weights), each with a probability in proportion to its weight."""

    def __init__(self, weights: Any, num_samples: int, replacement: bool = True, generator: Any = None) -> None:
        super().__init__(generator)
        self.weights = as_array(weights).astype(np.float64)
        if self.weights.ndim != 1 or not np.isfinite(self.weights).all() or (self.weights < 0).any() or not self.weights.any():
            raise ValueError(f"weights must be one row of finite numbers >= 0, not all 0; got shape {list(self.weights.shape)}")
        if num_samples < 1:
            raise ValueError(f"num_samples must be at least 1, got {num_samples}")
        if not replacement and num_samples > np.count_nonzero(self.weights):
            raise ValueError(
                f"{num_samples} samples without replacement need as many weights above 0, not {np.count_nonzero(self.weights)}"
            )
        self.num_samples, self.replacement = num_samples, replacement

    def draw(self, rng: np.random.Generator) -> Sequence[int]:
        return rng.choice(len(self.weights), self.num_samples, self.replacement, self.weights / self.weights.sum()).tolist()  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler):
    """The indices of another sampler in lists of `batch_size`; the last may be shorter, or is left out with `drop_last`."""

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool = False) -> None:
        if not isinstance(batch_size, (int, np.integer)) or isinstance(batch_size, bool) or batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.sampler, self.batch_size, self.drop_last = sampler, int(batch_size), drop_last

    def split(self, order: Iterable[int]) -> Iterator[list[int]]:
        """An order in batches."""
        rest = iter(order)
        while batch := list(islice(rest, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __iter__(self) -> Iterator[list[int]]:
        return self.split(self.sampler)

    def __len__(self) -> int:
        count = len(self.sampler)  # type: ignore[arg-type]
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)
