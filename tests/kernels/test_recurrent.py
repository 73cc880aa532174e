"""Recurrences against their float64 reference, on both kernel families: cells, directions, projections, lengths, dtypes, layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meganeura import dtype as D
from meganeura import kernels
from meganeura.ops.recurrent import CELLS, recurrence, recurrence_grad

from .run_call import FAMILIES, profile
from .run_row import compare, row_call

# (cell, directions, steps, sequences, hidden size, projected size or 0, lengths)
CASES: list[tuple[str, int, int, int, int, int, list[int] | None]] = [
    ("tanh", 1, 3, 2, 5, 0, None),
    ("relu", 2, 2, 3, 8, 0, [2, 1, 2]),
    ("lstm", 1, 1, 1, 1, 0, None),
    ("lstm", 2, 4, 3, 12, 0, [4, 1, 3]),
    ("lstm", 2, 3, 5, 12, 8, [1, 3, 2, 3, 3]),
    ("lstm", 1, 2, 33, 40, 7, None),
    ("gru", 1, 3, 1, 64, 0, None),
    ("gru", 2, 3, 9, 36, 0, [3, 3, 1, 2, 2, 1, 3, 2, 1]),
    ("gru", 1, 2, 70, 300, 0, None),
    ("lstm", 2, 3, 6, 132, 0, [3, 1, 2, 3, 3, 1]),
    ("relu", 1, 4, 2, 20, 0, None),
]


def tensors_of(cell: str, d: int, t: int, n: int, size: int, width: int) -> list[Any]:
    k, rng, out = CELLS[cell], np.random.default_rng(n), width or size
    shapes = [(d, t, n, k.gates * size), (d, k.gates * size, out), (d, k.biases * size), (d, n, out)]
    shapes += ([(d, n, size)] if k.state else []) + ([(d, out, size)] if width else [])
    return [(rng.uniform(-1, 1, s) / (np.sqrt(out) if i in (1, 5) else 1)).astype(np.float32) for i, s in enumerate(shapes)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward_and_backward(family: str, case: Any) -> None:
    cell, d, t, n, size, width, steps = case
    lengths = None if steps is None else np.array(steps)
    tensors = tensors_of(cell, d, t, n, size, width)
    made = compare(recurrence, [tensors, lengths, cell, True], family)
    k, rng = CELLS[cell], np.random.default_rng(1)
    seeds = [rng.uniform(-1, 1, x.shape).astype(np.float32) for x in made[:2] + made[3:]]
    kept = made[2 if k.kept else 0].astype(np.float32)
    projection = tensors[-1] if width else None
    args = [seeds[0], seeds[1], seeds[2] if k.state else None, tensors[1], projection, kept, lengths, cell]
    compare(recurrence_grad, args, family)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_half(family: str, cell: str) -> None:
    for n in (4, 40):
        tensors = [x.astype(np.float16).astype(np.float32) for x in tensors_of(cell, 2, 3, n, 20, 0)]
        compare(recurrence, [tensors, None, cell, True], family, D.float16, 6e-3)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cell", list(CELLS))
def test_no_pipeline_depends_on_the_number_of_steps(family: str, cell: str) -> None:
    def keys(t: int) -> set[Any]:
        args: list[Any] = [tensors_of(cell, 1, t, 4, 16, 0), None, cell, True]
        return {launch.kernel.key for launch in kernels.lower(row_call(recurrence, args), profile(family)).launches}

    assert keys(2) == keys(3) == keys(50)


def launches(family: str, t: int, n: int) -> int:
    args: list[Any] = [tensors_of("lstm", 2, t, n, 64, 0), None, "lstm", False]
    return len(kernels.lower(row_call(recurrence, args), profile(family, max_storage_buffers=16)).launches)


def test_dispatches_a_step() -> None:
    """The product with the output before, in up to two, and the gates; a GPU makes both in one for few sequences."""
    assert launches("cpu", 12, 16) - launches("cpu", 11, 16) == 2
    assert launches("gpu", 12, 64) - launches("gpu", 11, 64) <= 3
    assert launches("gpu", 12, 16) - launches("gpu", 11, 16) == 1


def test_nothing_is_kept_when_not_asked() -> None:
    args: list[Any] = [tensors_of("lstm", 1, 3, 2, 4, 0), None, "lstm", False]
    assert [o.shape for o in row_call(recurrence, args).outputs] == [(3, 2, 4), (1, 2, 4), (0,), (1, 2, 4)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("cell", "n", "size"), [("lstm", 3, 8), ("gru", 5, 7), ("tanh", 40, 4)])
def test_all_steps_larger_than_a_binding(family: str, cell: str, n: int, size: int) -> None:
    """A step binds what it needs of them."""
    t, lengths = 90, np.arange(n) * 7 % 90 + 1
    tensors = tensors_of(cell, 1, t, n, size, 0)
    limit = {"max_binding": 4096}
    made = compare(recurrence, [tensors, lengths, cell, True], family, tolerance=5e-5, **limit)
    k, rng = CELLS[cell], np.random.default_rng(1)
    seeds = [rng.uniform(-1, 1, x.shape).astype(np.float32) for x in made[:2] + made[3:]]
    kept = made[2 if k.kept else 0].astype(np.float32)
    args = [seeds[0], seeds[1], seeds[2] if k.state else None, tensors[1], None, kept, lengths, cell]
    compare(recurrence_grad, args, family, tolerance=2e-4, **limit)
