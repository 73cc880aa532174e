"""Sample inputs of rows that also take numbers: float32 arrays away from whole numbers and halves, where functions have kinks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .table import Sample

SHAPES: tuple[tuple[int, ...], ...] = ((3, 5), (4, 8), (7,), (), (0, 3))


def draw(shape: Sequence[int], low: float = -2.5, high: float = 2.5, seed: int = 0) -> Any:
    """Values in [low, high] that are not within 0.04 of a multiple of a half."""
    x = np.random.default_rng(seed).uniform(low, high, shape)
    near = np.abs(2 * x - np.round(2 * x)) < 0.08
    return np.where(near, x + 0.06, x).astype(np.float32)


def with_numbers(*numbers: Any, arrays: int = 1, low: float = -2.5, high: float = 2.5) -> Callable[[], list[Sample]]:
    """A maker of samples: `arrays` drawn arrays of a shape, then the numbers."""
    return lambda: [Sample.of(*(draw(s, low, high, 10 * i + j) for j in range(arrays)), *numbers) for i, s in enumerate(SHAPES)]


def integers(*ranges: tuple[int, int], dtypes: Sequence[str] = ("int64", "int32", "uint8")) -> Callable[[], list[Sample]]:
    """A maker of samples of integer arrays, one for each (low, high)."""

    def make() -> list[Sample]:
        out = []
        for i, (dtype, shape) in enumerate((d, s) for d in dtypes for s in ((3, 5), (8,), ())):
            rng = np.random.default_rng(i)
            floor = 0 if dtype.startswith("u") else -(2**31)
            out.append(Sample.of(*(rng.integers(max(low, floor), high, shape).astype(dtype) for low, high in ranges)))
        return out

    return make
