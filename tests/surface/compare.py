"""One comparison with PyTorch for every function of the surface: values, dtypes, shapes, gradients and refusals, on many layouts.

`check("logsumexp", a, 1, keepdim=True)` runs `mg.logsumexp` and `torch.logsumexp` on the same arguments. Arrays become
tensors; everything else is passed on. A string names a function of both libraries ('nn.functional.elu'), or a method
('.flip'); a pair gives both explicitly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import meganeura as mg

torch = pytest.importorskip("torch")
LAYOUTS = ("plain", "transposed", "stepped", "shifted", "expanded")
Name = str | tuple[Callable[..., Any], Callable[..., Any]]


def functions(name: Name) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The function in this library and in PyTorch."""
    if not isinstance(name, str):
        return name
    if name.startswith("."):
        return (lambda x, *a, **k: getattr(x, name[1:])(*a, **k)), (lambda x, *a, **k: getattr(x, name[1:])(*a, **k))
    ours, theirs = mg, torch
    for part in name.split("."):
        ours, theirs = getattr(ours, part), getattr(theirs, part)
    return ours, theirs


def lay(lib: Any, a: Any, layout: str, grad: bool) -> tuple[Any, Any]:
    """(tensor in a layout, the leaf it is a view of) in either library."""
    base, view = a, None
    if a.size and a.ndim:
        if layout == "transposed" and a.ndim > 1:
            base, view = np.ascontiguousarray(np.swapaxes(a, 0, -1)), lambda t: t.transpose(0, -1)
        elif layout == "stepped":
            base = np.repeat(a, 2, axis=-1)
            base[..., 1::2] = 1
            view = lambda t: t[..., ::2]
        elif layout == "shifted":
            base = np.concatenate([a.reshape(-1)[:1], a.reshape(-1), a.reshape(-1)[:1]])
            view = lambda t: t[1:-1].reshape(a.shape)
        elif layout == "expanded":
            base, view = np.ascontiguousarray(a[:1]), lambda t: t.expand(*a.shape)
    leaf = lib.tensor(base.copy())
    if grad and base.dtype.kind == "f":
        leaf.requires_grad_()
    return (leaf if view is None else view(leaf)), leaf


def to_half(args: Sequence[Any]) -> list[Any]:
    return [a.astype(np.float16) if isinstance(a, np.ndarray) and a.dtype == np.float32 else a for a in args]


def run(
    lib: Any, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], layout: str, grad: bool
) -> tuple[list[Any], list[Any]]:
    """Outputs as arrays, and gradients of the float leaves for a fixed random cotangent."""
    leaves: list[Any] = []

    def convert(a: Any) -> Any:
        if isinstance(a, np.ndarray):
            t, leaf = lay(lib, a, layout, grad)
            if leaf.requires_grad:
                leaves.append(leaf)
            return t
        if isinstance(a, list) and any(isinstance(x, np.ndarray) for x in a):
            return [convert(x) for x in a]
        return getattr(lib, a[1:]) if isinstance(a, str) and a.startswith("@") else a  # '@float32': the library's dtype

    out = fn(*[convert(a) for a in args], **{k: convert(v) for k, v in kwargs.items()})
    outs = list(out) if isinstance(out, (tuple, list)) else [out]
    tensors = [o for o in outs if hasattr(o, "requires_grad")]
    values = [o.detach().numpy() if hasattr(o, "requires_grad") else np.asarray(o) for o in outs]
    grads: list[Any] = []
    wanted = [o for o in tensors if o.requires_grad]
    if grad and wanted and leaves:
        rng = np.random.default_rng(7)
        total: Any = 0
        for o in wanted:
            total = total + (o.float() * lib.tensor(rng.standard_normal(tuple(o.shape)).astype(np.float32))).sum()
        total.backward()
        grads = [None if leaf.grad is None else leaf.grad.numpy() for leaf in leaves]
    return values, grads


def same(got: Any, want: Any, what: str, rtol: float, atol: float) -> None:
    assert got.shape == want.shape, f"{what}: shape {got.shape}, PyTorch {want.shape}"
    assert got.dtype == want.dtype, f"{what}: dtype {got.dtype}, PyTorch {want.dtype}"
    if want.dtype.kind != "f":
        np.testing.assert_array_equal(got, want, err_msg=what)
        return
    scale = np.max(np.abs(want[np.isfinite(want)]), initial=0.0) if want.size else 0.0
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol + rtol * float(scale) * 0.1, err_msg=what)


def check(
    name: Name,
    *args: Any,
    layouts: Sequence[str] = LAYOUTS,
    grad: bool = True,
    half: bool = True,
    rtol: float = 2e-5,
    atol: float = 1e-6,
    grad_rtol: float | None = None,
    **kwargs: Any,
) -> None:
    """Compare on every layout, and once in float16 (`half`). Where PyTorch raises, this library must raise too."""
    ours, theirs = functions(name)
    plans = [(layout, list(args), rtol, atol) for layout in layouts]
    if half and any(isinstance(a, np.ndarray) and a.dtype == np.float32 for a in args):
        plans.append(("plain", to_half(args), 4e-3, 4e-3))
    for layout, values, r, a in plans:
        what = f"{name} {layout} {[getattr(v, 'shape', v) for v in values]} {kwargs}"
        try:
            want, want_grads = run(torch, theirs, values, kwargs, layout, grad)
        except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError) as e:
            with pytest.raises((mg.MeganeuraError, ValueError, TypeError, IndexError)):
                run(mg, ours, values, kwargs, layout, grad)
                pytest.fail(f"{what}: PyTorch raises {e}")
            continue
        got, got_grads = run(mg, ours, values, kwargs, layout, grad)
        assert len(got) == len(want), what
        for i, (g, w) in enumerate(zip(got, want, strict=True)):
            same(g, w, f"{what} output {i}", r, a)
        for i, (g, w) in enumerate(zip(got_grads, want_grads, strict=True)):
            assert (g is None) == (w is None), f"{what}: gradient {i} {g} PyTorch {w}"
            if w is not None:
                gr = max(grad_rtol or 10 * r, r)
                same(g, w, f"{what} gradient {i}", gr, max(a, gr * 0.1))


def floats(*shape: int, low: float = -2.5, high: float = 2.5, seed: int = 0) -> Any:
    """float32 values away from integers and halves, where many functions have kinks."""
    x = np.random.default_rng(seed).uniform(low, high, shape)
    near = np.abs(x * 2 - np.round(x * 2)) < 0.06
    return np.where(near, x + 0.05, x).astype(np.float32)


def ints(*shape: int, low: int = -9, high: int = 10, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(low, high, shape)


def bools(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 2, shape).astype(bool)


SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -2.5, 1e-3, 50.0], np.float32)
