"""Plain code and the same code compiled, call by call: results, arguments and state must agree."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import meganeura as mg


def arrays(tree: Any) -> Any:
    """A tree of results with arrays in place of tensors."""
    if isinstance(tree, mg.Tensor):
        return tree.detach().numpy()
    if isinstance(tree, dict):
        return {k: arrays(v) for k, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [arrays(v) for v in tree]
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return {f.name: arrays(getattr(tree, f.name)) for f in dataclasses.fields(tree)}
    return tree


def same(got: Any, want: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Assert that two trees of arrays and plain values agree."""
    assert type(got) is type(want), (got, want)
    if isinstance(want, dict):
        assert list(got) == list(want)
        for k in want:
            same(got[k], want[k], rtol, atol)
    elif isinstance(want, list):
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            same(g, w, rtol, atol)
    elif isinstance(want, np.ndarray):
        assert got.shape == want.shape and got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
    else:
        assert got == want


def tensors(tree: Any) -> Any:
    """Fresh tensors for the arrays of an argument tree."""
    if isinstance(tree, np.ndarray):
        return mg.tensor(tree)
    if isinstance(tree, dict):
        return {k: tensors(v) for k, v in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*map(tensors, tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(map(tensors, tree))
    return tree


def agree(
    make: Callable[[], Any], calls: Sequence[tuple[Any, ...]], traces: int | None = 1, rewrite: str = "greedy", between: Any = None
) -> Any:
    """Run the functions of two make()s, one compiled, on the same calls. make() gives a function, or it and a look at its state;
    between(i, function) happens before call i. Returns the compiled function."""
    made = [make(), make()]
    (plain, look), (fn, other) = [m if isinstance(m, tuple) else (m, lambda: None) for m in made]
    compiled = mg.compile(fn, rewrite=rewrite, debug=True)
    for i, call in enumerate(calls):
        outs = []
        for which, f, state in ((plain, plain, look), (fn, compiled, other)):
            if between is not None:
                between(i, which)
            mg.manual_seed(i)
            given = tensors(call)
            named = given[-1] if given and type(given[-1]) is dict else {}
            result = f(*(given[:-1] if named else given), **named)
            outs.append([arrays(result), arrays(given), arrays(state())])
        same(outs[1], outs[0])
    counted = getattr(compiled, "compiled", compiled)
    assert traces is None or counted.traces == traces
    return compiled


def numbers(*shape: int, seed: int = 0) -> Any:
    """Random numbers of a shape."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
