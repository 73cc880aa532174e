"""What tests of epilogues share: a function compiled, against itself unfused and in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import meganeura as mg
from meganeura import dispatch, gpu
from meganeura.compile.lower import lower


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def _tuple(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def _run(f: Callable[..., Any], args: list[Any]) -> list[np.ndarray]:
    """The results as float64, drawn from one seed."""
    mg.manual_seed(5)
    return [t.numpy().astype(np.float64) for t in _tuple(f(*args))]


def check(name: str, f: Callable[..., Any], *arrays: np.ndarray, fused: int = 1, dtype: str = "float32", label: str = "") -> Any:
    """f compiled against f unfused and in float64; returns the compiled graph. name: of what the report counts `fused`
    times; label: of a kernel that must have run."""
    args = [mg.tensor(a).to(getattr(mg, dtype)) if a.dtype == np.float32 else mg.tensor(a) for a in arrays]
    g, off = mg.compile(f, debug=True), mg.compile(f, rewrite="off")
    got, plain, again = (_run(h, args) for h in (g, off, g))
    count = sum(r.count(name) for r in g.report(*args))
    graph = g.graph(*args)
    held = [a.numpy() for a in args]
    with dispatch.use(mg.Reference(precise=True)), np.errstate(all="ignore"):
        want = _run(f, [mg.tensor(a) for a in held])
    eps = {"float32": 1e-6, "float16": 1e-3}[dtype]
    for a, b, c, w in zip(got, plain, again, want, strict=True):
        assert a.shape == w.shape
        np.testing.assert_array_equal(a, c)
        finite = np.isfinite(w)
        np.testing.assert_array_equal(a[~finite], w[~finite])
        a, b, w = a[finite], b[finite], w[finite]
        scale = np.abs(w).max(initial=1)
        assert np.abs(a - w).max(initial=0) <= 2 * np.abs(b - w).max(initial=0) + eps * scale
    assert count == fused, graph
    labels = launches(graph)
    assert not label or label in labels, labels
    return graph


def launches(graph: Any) -> list[str]:
    """Labels of the kernels of a graph."""
    return [x.kernel.label for step in lower(graph.nodes, gpu.current().profile) for x in step.lowered.launches]
