"""`meganeura.autograd`: gradients, Functions with a gradient of their own, and checking gradients: analytic against finite
differences, both in float64 through the numpy references."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import dispatch
from .autodiff import backward, grad
from .dispatch import enable_grad, no_grad
from .errors import GradientError
from .function import Function
from .reference import Reference
from .tensor import Tensor, upload

__all__ = ["Function", "backward", "enable_grad", "grad", "gradcheck", "no_grad", "value_and_grad"]


def value_and_grad(fn: Callable[..., Any]) -> Callable[..., tuple[Tensor, Tensor]]:
    """A function that returns (fn(*args), the gradient of that scalar for the first argument). The argument itself is left alone."""

    def call(first: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        leaf = first.detach().requires_grad_()
        with dispatch.enable_grad():
            out = fn(leaf, *args, **kwargs)
        (g,) = grad(out, leaf)
        assert g is not None
        return out.detach(), g

    return call


def gradcheck(
    fn: Callable[..., Any], inputs: Sequence[Any], eps: float = 1e-6, atol: float = 1e-5, rtol: float = 1e-3, seed: int = 0
) -> bool:
    """Compare fn's gradients for its floating point inputs (arrays or tensors) with central differences.

    Outputs are contracted with a random cotangent. Runs in float64 references, so small eps are fine. Raises
    GradientError naming input, place and both values; returns True otherwise.
    """
    arrays = [np.asarray(x.detach().numpy() if isinstance(x, Tensor) else x) for x in inputs]
    wanted = [i for i, a in enumerate(arrays) if a.dtype.kind == "f"]
    with dispatch.use(Reference(precise=True)):
        analytic = _analytic(fn, arrays, wanted, seed)
        for i, got in zip(wanted, analytic, strict=True):
            _compare(i, got, _numeric(fn, arrays, i, eps, seed), atol, rtol)
    return True


def cotangents(outputs: Sequence[Tensor], seed: int) -> list[Any]:
    """A fixed random cotangent for each floating point output, None for the others."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(o.shape) if o.dtype.is_floating_point else None for o in outputs]


def _outputs(fn: Callable[..., Any], arrays: Sequence[Any], leaves: Sequence[int]) -> tuple[list[Tensor], list[Tensor]]:
    tensors = [_tensor(a) for a in arrays]
    for i in leaves:
        tensors[i].requires_grad_()
    out = fn(*tensors)
    return tensors, list(out) if isinstance(out, (tuple, list)) else [out]


def _tensor(a: Any) -> Tensor:
    from .dtype import dtype

    return upload(a, dtype(a.dtype))


def _analytic(fn: Callable[..., Any], arrays: Sequence[Any], wanted: Sequence[int], seed: int) -> list[Any]:
    tensors, outs = _outputs(fn, arrays, wanted)
    pairs = [(o, _tensor(c)) for o, c in zip(outs, cotangents(outs, seed), strict=True) if c is not None and o.requires_grad]
    got = grad([o for o, _ in pairs], [tensors[i] for i in wanted], [c for _, c in pairs], allow_unused=True)
    return [np.zeros(arrays[i].shape) if g is None else g.detach().numpy() for i, g in zip(wanted, got, strict=True)]


def _contracted(fn: Callable[..., Any], arrays: Sequence[Any], seed: int) -> float:
    with dispatch.no_grad():
        _, outs = _outputs(fn, arrays, ())
    return float(sum((o.numpy() * c).sum() for o, c in zip(outs, cotangents(outs, seed), strict=True) if c is not None))


def _numeric(fn: Callable[..., Any], arrays: Sequence[Any], i: int, eps: float, seed: int) -> Any:
    out = np.zeros(arrays[i].shape)
    work = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
    for place in np.ndindex(*arrays[i].shape):
        values = []
        for step in (eps, -eps):
            moved = list(work)
            moved[i] = work[i].copy()
            moved[i][place] += step
            values.append(_contracted(fn, moved, seed))
        out[place] = (values[0] - values[1]) / (2 * eps)
    return out


def _compare(i: int, analytic: Any, numeric: Any, atol: float, rtol: float) -> None:
    bad = ~np.isclose(analytic, numeric, atol=atol, rtol=rtol)
    if bad.any():
        place = tuple(int(v) for v in np.argwhere(np.atleast_1d(bad))[0])
        raise GradientError(
            f"gradcheck: input {i} at {list(place)}: backward gives {np.atleast_1d(analytic)[place]}, "
            f"differences give {np.atleast_1d(numeric)[place]}"
        )
