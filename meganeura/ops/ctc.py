"""Connectionist temporal classification: a row for the loss, a row for its gradient, and torch's ctc_loss.

With L = 2S + 1 states a sequence (blanks around S labels), the forward row sums over all alignments step by step, in
logarithms; the backward row comes back with what it kept. Source: Graves et al. 2006.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import dispatch
from ..dtype import float32, int64
from ..errors import DTypeError, ShapeError
from ..provenance import site
from ..storage import Layout
from . import pointwise
from .archetype import Kernel
from .table import Sample, Spec, composite, op
from .views import reshape, unsqueeze

if TYPE_CHECKING:
    from ..tensor import Tensor


# ---- numpy ----


def _states(targets: Any, blank: int, n: int) -> tuple[Any, Any]:
    """Labels of one sequence's states, and whether each may be reached from two states before."""
    labels = np.full(2 * targets.shape[1] + 1, blank)
    labels[1::2] = targets[n]
    skip = np.zeros(labels.shape, bool)
    skip[2:] = (labels[2:] != blank) & (labels[2:] != labels[:-2])
    return labels, skip


def _merge(x: Any, skip: Any) -> Any:
    """Each state's logarithm of the sum over itself, the state before and, where it may be skipped, the one before that."""
    low = np.full(2, -np.inf)
    padded = np.concatenate([low, x])
    parts = np.stack([padded[2:], padded[1:-1], np.where(skip, padded[:-2], -np.inf)])
    return np.logaddexp.reduce(parts, 0)


def _forward_ref(log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int) -> Any:
    t_all, count = log_probs.shape[:2]
    alpha = np.full((t_all, count, 2 * targets.shape[1] + 1), -np.inf)
    nll = np.zeros(count)
    for n in range(count):
        steps, m = int(input_lengths[n]), 2 * int(target_lengths[n]) + 1
        labels, skip = _states(targets[:, : target_lengths[n]], blank, n)
        for t in range(steps):
            if t == 0:
                alpha[0, n, : min(m, 2)] = log_probs[0, n, labels[:2]]
            else:
                alpha[t, n, :m] = _merge(alpha[t - 1, n, :m], skip) + log_probs[t, n, labels]
        nll[n] = -np.logaddexp.reduce(alpha[steps - 1, n, max(0, m - 2) : m]) if steps else (np.inf if m > 1 else 0.0)
    return nll, alpha


def _backward_ref(
    grad: Any, log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, nll: Any, alpha: Any, blank: int, zero_infinity: bool
) -> Any:
    out = np.zeros_like(log_probs)
    for n in range(log_probs.shape[1]):
        steps, m = int(input_lengths[n]), 2 * int(target_lengths[n]) + 1
        if zero_infinity and np.isinf(nll[n]):
            continue
        labels, skip = _states(targets[:, : target_lengths[n]], blank, n)
        ahead = np.concatenate([skip[2:], [False, False]])[:m][::-1]  # whether the state two further may be reached
        beta = np.full(m, -np.inf)
        for t in reversed(range(steps)):
            if t == steps - 1:
                beta[max(0, m - 2) :] = log_probs[t, n, labels[max(0, m - 2) :]]
            else:
                beta = _merge(beta[::-1], ahead)[::-1] + log_probs[t, n, labels]
            np.subtract.at(out[t, n], labels, np.exp(alpha[t, n, :m] + beta - log_probs[t, n, labels] + nll[n]))
        out[:, n] *= grad[n]
    return out


# ---- shapes and samples ----


def _forward_rule(log_probs: Layout, targets: Layout, input_lengths: Layout, target_lengths: Layout, blank: int) -> Any:
    if len(log_probs.shape) != 3 or not log_probs.dtype.is_floating_point:
        raise ShapeError(f"expected floating point log_probs [T, N, C], got {log_probs}")
    t, n, c = log_probs.shape
    if len(targets.shape) != 2 or targets.shape[0] != n:
        raise ShapeError(f"expected targets [{n}, S], got {targets}")
    if any(x.shape != (n,) for x in (input_lengths, target_lengths)):
        raise ShapeError(f"expected {n} lengths of inputs and of targets, got {input_lengths} and {target_lengths}")
    if any(x.dtype.kind != "i" for x in (targets, input_lengths, target_lengths)):
        raise DTypeError(f"targets and lengths must be integers, got {targets}, {input_lengths} and {target_lengths}")
    if not 0 <= blank < c:
        raise ShapeError(f"blank must be one of {c} classes, got {blank}")
    return Spec(float32, (n,)), Spec(float32, (t, n, 2 * targets.shape[1] + 1))


def _samples() -> list[Sample]:
    out = []
    for t, n, c, s, blank, inputs, labels in (
        (4, 2, 3, 2, 0, [4, 3], [2, 1]),
        (6, 3, 5, 3, 2, [6, 5, 2], [3, 0, 1]),
        (1, 1, 4, 1, 3, [1], [1]),
        (12, 3, 40, 5, 0, [12, 11, 7], [5, 5, 2]),
    ):
        rng = np.random.default_rng(t)
        x = rng.uniform(-2, 2, (t, n, c))
        x = (x - np.log(np.exp(x).sum(-1, keepdims=True))).astype(np.float32)
        choice = np.array([k for k in range(c) if k != blank])
        out.append(Sample.of(x, choice[rng.integers(0, c - 1, (n, s))], np.array(inputs), np.array(labels), blank, False))
    return out


def _backward_samples() -> list[Sample]:
    out = []
    for s in _samples():
        x, targets, inputs, labels, blank, _ = s.args
        nll, alpha = (v.astype(np.float32) for v in _forward_ref(x.astype(np.float64), targets, inputs, labels, blank))
        alpha = np.maximum(alpha, np.float32(-1e30))
        grad = np.random.default_rng(1).uniform(0.5, 1, nll.shape).astype(np.float32)
        out.append(Sample.of(grad, x, targets, inputs, labels, nll, alpha, blank, True))
    return out


def _input(
    grad: Any, log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, result: Any, result1: Any, blank: int,
    zero_infinity: bool,
) -> Any:  # fmt: skip
    return ctc_backward(grad, log_probs, targets, input_lengths, target_lengths, result, result1, blank, zero_infinity)


@op(
    Kernel("ctc"),
    ref=lambda log_probs, targets, input_lengths, target_lengths, blank, zero_infinity: _forward_ref(
        log_probs, targets, input_lengths, target_lengths, blank
    ),
    rule=lambda log_probs, targets, input_lengths, target_lengths, blank, zero_infinity: _forward_rule(
        log_probs, targets, input_lengths, target_lengths, blank
    ),
    grad={"log_probs": _input},
    samples=_samples,
    differentiable=(True, False),
    static_index=False,
    public=False,
    torch=None,
    shown="ctc_loss",
)
def ctc_forward(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int, zero_infinity: bool
) -> Tensor:
    """-log of the probability of each target over all alignments, and the logarithms kept for backward.
    [T, N, C], [N, S], [N], [N] -> [N], [T, N, 2S+1]."""


@op(
    Kernel("ctc"),
    ref=_backward_ref,
    rule=lambda grad, log_probs, targets, input_lengths, target_lengths, nll, alpha, blank, zero_infinity: Spec(
        log_probs.dtype, log_probs.shape
    ),
    samples=_backward_samples,
    public=False,
    torch=None,
    shown="ctc_loss",
)
def ctc_backward(
    grad: Tensor, log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, nll: Tensor, alpha: Tensor,
    blank: int, zero_infinity: bool,
) -> Tensor:  # fmt: skip
    """Backward of ctc_forward: minus the probability of being at each class, given the target. -> [T, N, C]."""


# ---- torch's function ----


def _counts(x: Any, like: Tensor, name: str) -> Any:
    """Lengths as an int64 tensor [N]."""
    if isinstance(x, dispatch.hooks.tensor):
        if x.dtype.kind not in "iu":
            raise DTypeError(f"ctc_loss: {name} must be integers, got {x.layout}\n  at {site()}")
        return reshape(x, -1).to(int64)
    values = np.atleast_1d(np.asarray(x, np.int64))
    if name == "input_lengths" and values.size and (values.max() > like.shape[0] or values.min() < 0):
        raise ShapeError(f"ctc_loss: input_lengths must lie between 0 and {like.shape[0]}, got {values.tolist()}\n  at {site()}")
    return dispatch.current().upload(int64, values)


def _rows(targets: Tensor, target_lengths: Any) -> Any:
    """Targets one after another [sum] as [N, S], on the host's lengths."""
    lengths = target_lengths.numpy() if isinstance(target_lengths, dispatch.hooks.tensor) else np.atleast_1d(target_lengths)
    if lengths.sum() > targets.shape[0] or (lengths.size and lengths.min() < 0):
        raise ShapeError(f"ctc_loss: {targets.shape[0]} targets do not hold sequences of {lengths.tolist()}\n  at {site()}")
    starts, longest = np.cumsum(lengths) - lengths, max(int(lengths.max(initial=0)), 1)
    places = np.minimum(starts[:, None] + np.arange(longest), max(targets.shape[0] - 1, 0))
    return targets[dispatch.current().upload(int64, places)] if targets.shape[0] else reshape(targets, lengths.size, 0)


@composite(method=False)
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Connectionist temporal classification loss. log_probs [T, N, C] (or [T, C]) after log_softmax, targets [N, S] padded or [sum]
    one after another, lengths [N] -> [] ([N] for 'none'). 'mean' divides by the target lengths first. Compiled code needs
    padded targets: where concatenated ones start is computed by the host. The gradient for log_probs is the derivative;
    PyTorch's has exp(log_probs) added, which the backward of log_softmax removes."""
    if reduction not in ("none", "mean", "sum"):
        raise ShapeError(f"reduction must be 'none', 'mean' or 'sum', not {reduction!r}\n  at {site()}")
    single = log_probs.ndim == 2
    x = unsqueeze(log_probs, 1) if single else log_probs
    if single and targets.ndim == 1:
        targets = unsqueeze(targets, 0)
    inputs, labels = _counts(input_lengths, x, "input_lengths"), _counts(target_lengths, x, "target_lengths")
    rows = _rows(targets, target_lengths) if targets.ndim == 1 else targets
    nll, _ = ctc_forward(x, rows, inputs, labels, blank, zero_infinity)
    if zero_infinity:
        nll = pointwise.where(pointwise.isinf(nll), 0.0, nll)
    nll = nll.to(log_probs.dtype)
    if reduction == "mean":
        return (nll / labels.clamp(min=1)).mean()  # type: ignore[no-any-return]
    if reduction == "sum":
        return nll.sum()  # type: ignore[no-any-return]
    return reshape(nll, ()) if single else nll
