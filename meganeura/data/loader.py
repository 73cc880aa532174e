"""DataLoader: batches of a dataset, in order or shuffled, prepared ahead in background threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np

from ..random import Generator
from .collate import default_collate, to_tensors
from .dataset import host_rng
from .sampler import BatchSampler, RandomSampler, SequentialSampler


class DataLoader:
    """Iterates over a dataset in batches of tensors.

    The last batch is smaller if the samples do not divide, and left out with `drop_last`. Shuffling is a new permutation
    an epoch, from `generator` (a seed, a meganeura or numpy Generator; by default the generator of mg.manual_seed); a
    `sampler` gives another order of samples, a `batch_sampler` lists of them. A dataset with `__iter__` only (IterableDataset)
    is read in its own order. `num_workers` threads prepare up to `num_workers * prefetch_factor` batches ahead, as numpy; 0
    prepares each when it is asked for. Batches come in the same order whatever the number of threads. `collate_fn` gets a
    list of samples. `state_dict` tells where in which epoch the loader is; a loader that loads it goes on with the next batch.
    """

    def __init__(
        self, dataset: Any, batch_size: int = 1, shuffle: bool = False, *, sampler: Any = None, batch_sampler: Any = None,
        drop_last: bool = False, collate_fn: Callable[[list[Any]], Any] | None = None, generator: Any = None, num_workers: int = 1,
        prefetch_factor: int = 2,
    ) -> None:  # fmt: skip
        if num_workers < 0 or prefetch_factor < 1:
            raise ValueError(f"num_workers must be >= 0 and prefetch_factor >= 1, got {num_workers} and {prefetch_factor}")
        indexed = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        if not indexed and (not hasattr(dataset, "__iter__") or hasattr(dataset, "__next__")):
            raise TypeError(f"a dataset needs __getitem__ and __len__, or __iter__ for every epoch; {type(dataset).__name__} has neither")
        if not indexed and (shuffle or sampler is not None or batch_sampler is not None):
            raise ValueError(f"{type(dataset).__name__} can only be read in its own order: no shuffle, sampler or batch_sampler")
        if sampler is not None and shuffle:
            raise ValueError("give a sampler or shuffle, not both")
        if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
            raise ValueError("a batch_sampler takes the place of batch_size, shuffle, sampler and drop_last; give it alone")
        self.dataset, self.shuffle, self.drop_last, self.collate_fn = dataset, shuffle, drop_last, collate_fn
        if sampler is None:
            sampler = RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
        self.batch_sampler = BatchSampler(sampler, batch_size, drop_last) if batch_sampler is None else batch_sampler
        self.sampler: Any = getattr(self.batch_sampler, "sampler", None)
        self.batch_size: int | None = getattr(self.batch_sampler, "batch_size", None)
        self.generator = self._own_generator() if shuffle else generator
        self.num_workers, self.prefetch_factor = num_workers, prefetch_factor
        self._indexed = indexed
        self._position = 0  # batches handed out in the present epoch
        self._random: Any = None  # the state of the numpy generator that the present epoch's order was drawn from
        self._resumed: tuple[int, Any] | None = None  # position and random state to go on from

    def __len__(self) -> int:
        """Number of batches."""
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[Any]:
        """One epoch. The order is drawn here, at once, so it does not depend on when batches are asked for."""
        skipped, random = self._resumed or (0, None)
        self._resumed = None
        self._position, self._random = skipped, None
        tasks = self._tasks(random) if self._indexed else self._stream(skipped)
        if self._indexed:
            tasks = islice(tasks, skipped, None)
        workers = min(self.num_workers, 1) if not self._indexed else self.num_workers
        return self._counted(self._now(tasks) if workers == 0 else self._ahead(tasks, workers))

    def _tasks(self, random: Any) -> Iterator[Callable[[], Any]]:
        """A function that makes the batch, for each batch of an epoch: of the one that began with `random`, if that is given."""
        parts: Iterable[Any] = self.batch_sampler
        draw = getattr(self.sampler, "draw", None)
        if draw is not None and isinstance(self.batch_sampler, BatchSampler):
            rng = host_rng(self.sampler.generator) if random is None else _generator(random)
            self._random = rng.bit_generator.state
            parts = self.batch_sampler.split(draw(rng))
        return map(lambda part: lambda: self._fetch(part), iter(parts))

    def _fetch(self, indices: Any) -> Any:
        """One batch, in numpy. Runs in worker threads."""
        if self.collate_fn is None and hasattr(self.dataset, "batch"):
            return self.dataset.batch(indices)
        return (self.collate_fn or default_collate)([self.dataset[i] for i in indices])

    def _stream(self, skipped: int) -> Iterator[Callable[[], Any]]:
        """Functions that each take the next batch from an iterable dataset, without end; they return _END after the last."""
        size = self.batch_size or 1
        samples = islice(iter(self.dataset), skipped * size, None)

        def take() -> Any:
            batch = list(islice(samples, size))
            if not batch or (self.drop_last and len(batch) < size):
                return _END
            return (self.collate_fn or default_collate)(batch)

        while True:
            yield take

    def _counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Batches as tensors, counting those handed out."""
        for batch in batches:
            if batch is _END:
                break
            self._position += 1
            yield to_tensors(batch)
        self._position, self._random = 0, None

    def _now(self, tasks: Iterator[Callable[[], Any]]) -> Iterator[Any]:
        for task in tasks:
            yield task()

    def _ahead(self, tasks: Iterator[Callable[[], Any]], workers: int) -> Iterator[Any]:
        pool = ThreadPoolExecutor(workers, thread_name_prefix="meganeura-loader")
        waiting: deque[Future[Any]] = deque()
        try:
            for task in tasks:
                waiting.append(pool.submit(task))
                if len(waiting) > workers * self.prefetch_factor:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:  # also when the loop is left early: batches not begun are dropped, those in work are waited for
            pool.shutdown(wait=True, cancel_futures=True)

    # ---- state ----
    def _own_generator(self) -> Any:
        """The generator that orders are drawn from, unless it is that of mg.manual_seed."""
        return getattr(self.sampler, "generator", None)

    def state_dict(self) -> dict[str, Any]:
        """Batches handed out in the present epoch, the random state it began with, and that of the loader's own generator.

        A sampler without `draw` is asked for its order anew: it must give the same one then.
        """
        position, random = self._resumed or (self._position, self._random)
        own = self._own_generator()
        mine: Any = own.bit_generator.state if isinstance(own, np.random.Generator) else None
        if isinstance(own, Generator):
            mine = [int(v) for v in own.get_state()]
        return {"position": position, "random": random, "generator": mine}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a saved state: the next iteration gives the rest of that epoch."""
        self.prepare_state(state_dict)()

    def prepare_state(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """Check a saved state, changing nothing; the function returned takes it over."""
        position, random, mine, own = state["position"], state["random"], state["generator"], self._own_generator()
        if not isinstance(position, int) or position < 0:
            raise ValueError(f"position must be a whole number >= 0, got {position!r}")
        if random is not None:
            _generator(random)
        if isinstance(own, np.random.Generator):
            _generator(mine, type(own.bit_generator))
        elif isinstance(own, Generator) and len(mine) != 2:
            raise ValueError(f"a generator's state is a seed and an offset, got {mine!r}")

        def commit() -> None:
            self._resumed = (position, random) if position else None
            self._position, self._random = 0, None
            if isinstance(own, np.random.Generator):
                own.bit_generator.state = mine
            elif isinstance(own, Generator):
                own.set_state(mine)

        return commit


_END: Any = object()


def _generator(state: Any, kind: Any = None) -> np.random.Generator:
    """A numpy generator in a saved state of its bit generator."""
    found = getattr(np.random, str(state["bit_generator"]), None)
    if not (isinstance(found, type) and issubclass(found, np.random.BitGenerator)) or (kind is not None and found is not kind):
        raise ValueError(f"a random state of {state['bit_generator']!r}, expected one of {'numpy' if kind is None else kind.__name__}")
    bits = found()
    bits.state = state
    return np.random.Generator(bits)
