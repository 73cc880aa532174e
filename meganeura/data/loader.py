"""DataLoader: batches of a dataset, in order or shuffled, prepared ahead in background threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from .collate import default_collate, to_tensors
from .dataset import host_rng


class DataLoader:
    """Iterates over a dataset in batches of tensors.

    The last batch is smaller if the samples do not divide, and left out with `drop_last`. Shuffling is a new permutation
    an epoch, from `generator` (a seed, a meganeura or numpy Generator; by default the generator of mg.manual_seed).
    `num_workers` threads prepare up to `num_workers * prefetch_factor` batches ahead, as numpy; 0 prepares each when it is
    asked for. Batches come in the same order whatever the number of threads. `collate_fn` gets a list of samples.
    """

    def __init__(
        self, dataset: Any, batch_size: int = 1, shuffle: bool = False, *, drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None, generator: Any = None, num_workers: int = 1, prefetch_factor: int = 2,
    ) -> None:  # fmt: skip
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if num_workers < 0 or prefetch_factor < 1:
            raise ValueError(f"num_workers must be >= 0 and prefetch_factor >= 1, got {num_workers} and {prefetch_factor}")
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise TypeError(f"a dataset needs __getitem__ and __len__; {type(dataset).__name__} has not both")
        self.dataset, self.batch_size, self.shuffle, self.drop_last = dataset, batch_size, shuffle, drop_last
        self.collate_fn = collate_fn
        self.generator = np.random.default_rng(generator) if isinstance(generator, (int, np.integer)) else generator
        self.num_workers, self.prefetch_factor = num_workers, prefetch_factor

    def __len__(self) -> int:
        """Number of batches."""
        count = len(self.dataset)
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        """One epoch. The permutation is drawn here, at once, so it does not depend on when batches are asked for."""
        count = len(self.dataset)
        order = host_rng(self.generator).permutation(count).tolist() if self.shuffle else range(count)
        parts = [order[i * self.batch_size : (i + 1) * self.batch_size] for i in range(len(self))]
        return self._now(parts) if self.num_workers == 0 else self._ahead(parts)

    def _fetch(self, indices: Sequence[int]) -> Any:
        """One batch, in numpy. Runs in worker threads."""
        if self.collate_fn is None and hasattr(self.dataset, "batch"):
            return self.dataset.batch(indices)
        return (self.collate_fn or default_collate)([self.dataset[i] for i in indices])

    def _now(self, parts: Sequence[Sequence[int]]) -> Iterator[Any]:
        for part in parts:
            yield to_tensors(self._fetch(part))

    def _ahead(self, parts: Sequence[Sequence[int]]) -> Iterator[Any]:
        pool = ThreadPoolExecutor(self.num_workers, thread_name_prefix="meganeura-loader")
        waiting: deque[Future[Any]] = deque()
        try:
            for part in parts:
                waiting.append(pool.submit(self._fetch, part))
                if len(waiting) > self.num_workers * self.prefetch_factor:
                    yield to_tensors(waiting.popleft().result())
            while waiting:
                yield to_tensors(waiting.popleft().result())
        finally:  # also when the loop is left early: batches not begun are dropped, those in work are waited for
            pool.shutdown(wait=True, cancel_futures=True)
