"""Every row: eager = float64 reference, gradient = finite differences = eager gradient, traced = eager; on all layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import dispatch
from meganeura.autograd import cotangents, gradcheck
from meganeura.ops import REGISTRY
from meganeura.ops.archetype import Update, View
from meganeura.ops.table import LIST, SCALAR, Op

from .variants import LAYOUTS, cases, laid_out, samples

ROWS = [r for r in REGISTRY.values() if not isinstance(r.archetype, (View, Update))]
FORWARD = list(cases(ROWS, list(LAYOUTS)))
SMOOTH = [r for r in ROWS if any(g is not None for g in r.grad.values())]
BACKWARD = [c for c in cases(SMOOTH, ["plain", "transposed", "stepped", "half"]) if c[3] != "half" or c[2] == 0]


def run(op: Op, make: Callable[[], list[Any]], kwargs: dict[str, Any], world: Any) -> list[Any]:
    with dispatch.use(world):
        out = op(*make(), **kwargs)
        return [o.numpy() for o in (out if isinstance(out, tuple) else (out,))]


def close(got: Any, want: Any, half: bool, what: str) -> None:
    assert got.shape == want.shape, what
    if want.dtype.kind != "f":
        np.testing.assert_array_equal(got, want, err_msg=what)
        return
    tolerance = 4e-3 if half or got.dtype == np.float16 else 2e-5
    scale = np.max(np.abs(want[np.isfinite(want)]), initial=1.0)
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * scale * (1 if tolerance > 1e-3 else 0.1), err_msg=what)


@pytest.mark.parametrize(("op", "number", "layout"), [c[1:] for c in FORWARD], ids=[c[0] for c in FORWARD])
def test_eager_equals_reference(op: Op, number: int, layout: str) -> None:
    found = laid_out(op, samples(op)[number], layout)
    assert found is not None
    _, make, kwargs = found
    want = run(op, make, kwargs, mg.Reference(precise=True))
    got = run(op, make, kwargs, None)
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        close(g, w, layout == "half", f"{op.name} output {i}")


def gradients(op: Op, make: Callable[[], list[Any]], kwargs: dict[str, Any], world: Any) -> list[Any]:
    """Gradients of all differentiable inputs for a fixed random cotangent."""
    with dispatch.use(world):
        args = make()
        leaves = []
        for p, v in zip(op.params, args, strict=False):
            if p.kind == LIST:
                for k, t in enumerate(v):
                    v[k] = t.detach().requires_grad_()
                    leaves.append(v[k])
            elif isinstance(v, mg.Tensor) and v.dtype.is_floating_point and op.grad.get(p.name) is not None:
                args[[a is v for a in args].index(True)] = leaf = v.detach().requires_grad_()
                leaves.append(leaf)
        out = op(*args, **kwargs)
        outs = [o for o in (out if isinstance(out, tuple) else (out,)) if o.requires_grad]
        seeds = [mg.tensor(c.astype(np.float32)).to(o.dtype) for o, c in zip(outs, cotangents(outs, 3), strict=True)]
        return [g.numpy() for g in mg.grad(outs, leaves, seeds)] if outs else []


@pytest.mark.parametrize(("op", "number", "layout"), [c[1:] for c in BACKWARD], ids=[c[0] for c in BACKWARD])
def test_gradient_equals_reference(op: Op, number: int, layout: str) -> None:
    found = laid_out(op, samples(op)[number], layout)
    assert found is not None
    _, make, kwargs = found
    for g, w in zip(gradients(op, make, kwargs, None), gradients(op, make, kwargs, mg.Reference(precise=True)), strict=True):
        close(g, w, layout == "half" or "float16" in str(samples(op)[number].args), f"gradient of {op.name}")


@pytest.mark.parametrize("op", SMOOTH, ids=lambda r: r.name)
def test_gradient_equals_differences(op: Op) -> None:
    for sample in samples(op):
        arrays, places = [], []
        for i, (p, v) in enumerate(zip(op.params, sample.args, strict=False)):
            if p.kind == LIST:
                arrays.extend(v)
                places.append((i, len(v)))
            elif isinstance(v, np.ndarray):
                arrays.append(v)
                places.append((i, 0))
        if sum(a.size for a in arrays if a.dtype.kind == "f") > 120:
            continue
        if "padding_idx" in op.names and sample.args[op.names.index("padding_idx")] is not None:
            continue  # that row gets no gradient by definition, whatever the derivative
        undifferentiated = {p.name for p in op.params if p.kind != SCALAR and op.grad.get(p.name) is None}

        def fn(*tensors: Any, sample: Any = sample, places: Any = places, skip: Any = undifferentiated) -> Any:
            args, it = list(sample.args), iter(tensors)
            for i, n in places:
                args[i] = [next(it) for _ in range(n)] if n else next(it)
                if op.params[i].name in skip and isinstance(args[i], mg.Tensor):
                    args[i] = args[i].detach()
            args = [mg.dtype(a) if op.params[i].name == "dtype" and isinstance(a, str) else a for i, a in enumerate(args)]
            out = op(*args, **dict(sample.kwargs))
            flags = op.differentiable
            return [o for i, o in enumerate(out) if not flags or flags[i]] if isinstance(out, tuple) else out

        fixed = _constant(op, sample)
        gradcheck(_freeze(fn, arrays, fixed), [a for i, a in enumerate(arrays) if i not in fixed])


def _constant(op: Op, sample: Any) -> set[int]:
    """Positions (among array operands) that have no gradient rule: they are held fixed."""
    out, at = set(), 0
    for p, v in zip(op.params, sample.args, strict=False):
        n = len(v) if p.kind == LIST else int(isinstance(v, np.ndarray))
        if op.grad.get(p.name) is None:
            out.update(range(at, at + n))
        at += n
    return out


def _freeze(fn: Callable[..., Any], arrays: list[Any], fixed: set[int]) -> Callable[..., Any]:
    def call(*free: Any) -> Any:
        it = iter(free)
        return fn(*(mg.tensor(a) if i in fixed else next(it) for i, a in enumerate(arrays)))

    return call


NAN_ROWS = [r for r in ROWS if type(r.archetype).__name__ in ("Pointwise", "Reduce") and r.samples is None and r.name not in ("cast",)]


@pytest.mark.parametrize("op", NAN_ROWS, ids=lambda r: r.name)
def test_nan_and_infinities(op: Op) -> None:
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 3.0e38, 1e-3, 2.5], np.float32)
    if op.name in ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"):
        return
    n = len([p for p in op.params if p.kind in (0, 2)])
    grids = np.meshgrid(*[special] * n, indexing="ij") if n < 3 else [special] * 3
    arrays = [g.reshape(-1).copy() for g in grids]
    if op.name == "where":
        arrays[0] = arrays[0] > 0
    want = run(op, lambda: [mg.tensor(a) for a in arrays], {}, mg.Reference())
    got = run(op, lambda: [mg.tensor(a) for a in arrays], {}, None)
    for g, w in zip(got, want, strict=True):
        if w.dtype.kind == "f":
            np.testing.assert_array_equal(np.isnan(g), np.isnan(w), err_msg=f"NaN of {op.name} at {arrays}")
            np.testing.assert_array_equal(np.isinf(g), np.isinf(w), err_msg=f"inf of {op.name} at {arrays}")
            np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6, err_msg=op.name)
        else:
            np.testing.assert_array_equal(g, w, err_msg=op.name)
