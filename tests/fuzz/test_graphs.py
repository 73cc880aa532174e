"""Random programs, compiled: no further from float64 than eager code is, forward and backward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import dispatch
from meganeura.reference import Reference
from tests.fuzz.graphs import Program, draw

GRAPHS, QUICK, TOGETHER = 500, 60, 20


def _run(program: Program, call: Any, gradient: bool) -> list[Any]:
    mg.manual_seed(program.seed)
    return [t.numpy() for t in call([mg.tensor(a) for a in program.leaves])]


def check(seed: int) -> bool:
    """One program: results alone, and with gradients; whether it had any to compare."""
    program = draw(seed)
    for gradient in (False, True) if program.smooth else (False,):
        call = program.train if gradient else program.run
        eager = _run(program, call, gradient)
        compiled = _run(program, mg.compile(call, debug=bool(seed % 2)), gradient)
        with dispatch.use(Reference(precise=True)):
            exact = _run(program, call, gradient)
        for number, (e, c, x) in enumerate(zip(eager, compiled, exact, strict=True)):
            assert e.shape == c.shape == x.shape and e.dtype == c.dtype, f"{program}\nresult {number}"
            scale = np.abs(x).max(initial=1e-3)
            near, far = np.abs(c - x).max(initial=0), np.abs(e - x).max(initial=0)
            assert near <= 2 * far + 3e-6 * scale, f"{program}\nresult {number}, gradients {gradient}: {near} against {far} at {scale}"
    return program.smooth


@pytest.mark.parametrize("first", range(0, QUICK, TOGETHER))
def test_random_graphs(first: int) -> None:
    assert sum(check(seed) for seed in range(first, first + TOGETHER)) > TOGETHER // 2


@pytest.mark.full
@pytest.mark.parametrize("first", range(QUICK, GRAPHS, TOGETHER))
def test_more_random_graphs(first: int) -> None:
    assert sum(check(seed) for seed in range(first, first + TOGETHER)) > TOGETHER // 2
