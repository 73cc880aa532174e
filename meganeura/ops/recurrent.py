"""Recurrences over time: one row runs a whole sequence of RNN, LSTM or GRU steps, and one row runs back through it.

What does not depend on the step before (the products with the inputs) is computed for all steps at once, outside. The rows
take D directions together (0 forwards, 1 backwards in time) and, for sequences of unequal lengths, how many steps each has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..dtype import int64
from ..errors import DTypeError, NoGradientError, ShapeError
from ..storage import Layout
from . import creation, pointwise
from .archetype import Kernel
from .matmul import batched_matmul
from .table import Sample, Spec, op
from .views import cat, reshape, stack, unsqueeze

if TYPE_CHECKING:
    from ..tensor import Tensor


@dataclass(frozen=True)
class Cell:
    """Sizes of one kind of step, in units of the hidden size: products a step, bias entries, values kept for backward."""

    gates: int
    biases: int
    kept: int
    state: bool = False  # an LSTM's second state


CELLS = {"tanh": Cell(1, 1, 0), "relu": Cell(1, 1, 0), "lstm": Cell(4, 4, 5, True), "gru": Cell(3, 4, 5)}
# kept: lstm i f g o and the state before; gru r z n, the hidden part of n, and the output before


# ---- numpy: one step forwards, one step backwards ----


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _forward(cell: str, x: Any, g: Any, b: Any, h: Any, c: Any) -> tuple[Any, Any, list[Any]]:
    """Output, state and what backward needs, from x and g [N, G*H], bias [B*H], output and state before [N, H]."""
    k = CELLS[cell]
    xs, gs, bs = np.split(x, k.gates, -1), np.split(g, k.gates, -1), np.split(b, k.biases, -1)
    if cell == "lstm":
        i, f, u, o = (np.tanh(v) if j == 2 else _sigmoid(v) for j, v in enumerate(p + q + r for p, q, r in zip(xs, gs, bs, strict=True)))
        new = f * c + i * u
        return o * np.tanh(new), new, [i, f, u, o, c]
    if cell == "gru":
        r, z = (_sigmoid(xs[j] + gs[j] + bs[j]) for j in range(2))
        q = gs[2] + bs[3]
        n = np.tanh(xs[2] + bs[2] + r * q)
        return n + z * (h - n), c, [r, z, n, q, h]
    y = x + g + b
    return (np.tanh(y) if cell == "tanh" else np.where(y <= 0, 0.0, y)), c, []


def _backward(cell: str, dh: Any, dc: Any, kept: Any) -> tuple[Any, Any, Any, Any]:
    """Gradients of x, of the hidden products, what of dh goes past them to the step before, and of the state before."""
    if cell == "lstm":
        i, f, u, o, c = np.split(kept, 5, -1)
        t = np.tanh(f * c + i * u)
        d = dc + dh * o * (1 - t * t)
        dx = np.concatenate([d * u * i * (1 - i), d * c * f * (1 - f), d * i * (1 - u * u), dh * t * o * (1 - o)], -1)
        return dx, dx, 0, d * f
    if cell == "gru":
        r, z, n, q, h = np.split(kept, 5, -1)
        dn = dh * (1 - z) * (1 - n * n)
        dr, dz = dn * q * r * (1 - r), dh * (h - n) * z * (1 - z)
        return np.concatenate([dr, dz, dn], -1), np.concatenate([dr, dz, dn * r], -1), dh * z, dc
    dx = dh * (1 - kept * kept) if cell == "tanh" else np.where(kept > 0, dh, 0)
    return dx, dx, 0, dc


def _times(length: int, direction: int) -> Any:
    return range(length) if direction == 0 else range(length - 1, -1, -1)


def _recurrence_ref(tensors: Sequence[Any], lengths: Any, cell: str, keep: bool) -> Any:
    k, (gates, weight, bias, hidden) = CELLS[cell], tensors[:4]
    state = tensors[4] if k.state else None
    projection = tensors[4 + k.state] if len(tensors) > 4 + k.state else None
    directions, length, n = gates.shape[:3]
    size, width = gates.shape[3] // k.gates, hidden.shape[2]
    out = np.zeros((length, n, directions * width), gates.dtype)
    kept = np.zeros((directions, length, n, k.kept * size), gates.dtype)
    hidden, state = hidden.copy(), None if state is None else state.copy()
    for d in range(directions):
        for t in _times(length, d):
            on = np.full((n, 1), True) if lengths is None else (t < lengths)[:, None]
            c = None if state is None else state[d].copy()
            h, new, saved = _forward(cell, gates[d, t], hidden[d] @ weight[d].T, bias[d], hidden[d].copy(), c)
            h = h if projection is None else h @ projection[d].T
            out[t, :, d * width : (d + 1) * width] = np.where(on, h, 0)
            hidden[d] = np.where(on, h, hidden[d])
            if state is not None:
                state[d] = np.where(on, new, c)
            if k.kept:
                kept[d, t] = np.concatenate(saved, -1)
    return (out, hidden, *([kept if keep else np.zeros(0)] if k.kept else []), *([state] if k.state else []))


def _recurrence_grad_ref(grad: Any, hidden: Any, state: Any, weight: Any, projection: Any, kept: Any, lengths: Any, cell: str) -> Any:
    k, directions = CELLS[cell], weight.shape[0]
    (length, n), width = grad.shape[:2], weight.shape[2]
    dx = np.zeros((directions, length, n, weight.shape[1]), grad.dtype)
    dg, whole = np.zeros(dx.shape, dx.dtype), np.zeros((directions, length, n, width), grad.dtype)
    hidden, state = hidden.copy(), None if state is None else state.copy()
    for d in range(directions):
        for t in reversed(_times(length, d)):
            on = np.full((n, 1), True) if lengths is None else (t < lengths)[:, None]
            span = slice(d * width, (d + 1) * width)
            dh = np.where(on, grad[t, :, span] + hidden[d], 0)
            whole[d, t] = dh
            dm = dh if projection is None else dh @ projection[d]
            values = kept[d, t] if k.kept else kept[t, :, span]
            x, g, past, dc = _backward(cell, dm, None if state is None else state[d], values)
            dx[d, t], dg[d, t] = np.where(on, x, 0), np.where(on, g, 0)
            hidden[d] = np.where(on, past + dg[d, t] @ weight[d], hidden[d])
            if state is not None:
                state[d] = np.where(on, dc, state[d])
    return (
        dx, hidden, *([state] if k.state else []), *([dg] if cell == "gru" else []), *([whole] if projection is not None else []),
    )  # fmt: skip


# ---- shapes ----


def _check(tensors: Sequence[Layout], lengths: Layout | None, cell: str) -> tuple[int, int, int, int, int]:
    """Directions, steps, sequences, hidden size and output size; ShapeError or DTypeError where they do not fit."""
    k = CELLS[cell]
    if len(tensors) not in ((5, 6) if k.state else (4,)) or len(tensors[0].shape) != 4:
        raise ShapeError(f"a recurrence of {cell!r} got {len(tensors)} tensors, the first of shape {list(tensors[0].shape)}")
    d, t, n, wide = tensors[0].shape
    size, width = wide // k.gates, tensors[3].shape[-1]
    wanted = [(d, t, n, k.gates * size), (d, k.gates * size, width), (d, k.biases * size), (d, n, width), (d, n, size), (d, width, size)]
    if len(tensors) < len(wanted) and width != size:
        raise ShapeError(f"a recurrence without projection has outputs of the hidden size {size}, not {width}")
    for x, shape in zip(tensors, wanted, strict=False):
        if x.shape != shape:
            raise ShapeError(f"a recurrence of {cell!r} expected a tensor of shape {list(shape)}, got {x}")
        if x.dtype is not tensors[0].dtype or not x.dtype.is_floating_point:
            raise DTypeError(f"a recurrence takes floating point tensors of one dtype, got {tensors[0]} and {x}")
    if lengths is not None and (lengths.shape != (n,) or lengths.dtype.kind != "i"):
        raise ShapeError(f"expected {n} integer lengths, got {lengths}")
    return d, t, n, size, width


def _recurrence_rule(tensors: Sequence[Layout], lengths: Layout | None, cell: str, keep: bool) -> Any:
    d, t, n, size, width = _check(tensors, lengths, cell)
    k, dtype = CELLS[cell], tensors[0].dtype
    out = [Spec(dtype, (t, n, d * width)), Spec(dtype, (d, n, width))]
    out += [Spec(dtype, (d, t, n, k.kept * size) if keep else (0,))] if k.kept else []
    return out + ([Spec(dtype, (d, n, size))] if k.state else [])


def _recurrence_grad_rule(
    grad: Layout, hidden: Layout, state: Layout | None, weight: Layout, projection: Layout | None, kept: Layout,
    lengths: Layout | None, cell: str,
) -> Any:  # fmt: skip
    k, dtype = CELLS[cell], grad.dtype
    (t, n), (d, wide, width) = grad.shape[:2], weight.shape
    out = [Spec(dtype, (d, t, n, wide)), Spec(dtype, (d, n, width))]
    out += [Spec(dtype, (d, n, wide // k.gates))] if k.state else []
    out += [Spec(dtype, (d, t, n, wide))] if cell == "gru" else []
    return out + ([Spec(dtype, (d, t, n, width))] if projection is not None else [])


# ---- samples ----


def _sample(cell: str, d: int, t: int, n: int, size: int, width: int = 0, lengths: Any = None) -> Sample:
    k, rng = CELLS[cell], np.random.default_rng(t * 7 + n + size + d)

    def draw(*shape: int) -> Any:
        return rng.uniform(-1, 1, shape).astype(np.float32)

    out = width or size
    tensors = [draw(d, t, n, k.gates * size), draw(d, k.gates * size, out), draw(d, k.biases * size), draw(d, n, out)]
    tensors += [draw(d, n, size)] if k.state else []
    tensors += [draw(d, out, size)] if width else []
    return Sample.of(tensors, None if lengths is None else np.array(lengths), cell, True)


def _samples() -> list[Sample]:
    out = [_sample("lstm", 1, 2, 2, 2), _sample("gru", 1, 2, 2, 2), _sample("tanh", 1, 3, 2, 3), _sample("relu", 2, 2, 1, 2)]
    out += [_sample("lstm", 1, 2, 1, 3, 1), _sample("lstm", 2, 5, 3, 4), _sample("gru", 2, 4, 3, 8, lengths=[4, 2, 3])]
    out += [_sample("lstm", 2, 4, 3, 8, 4, [1, 4, 3]), _sample("tanh", 2, 4, 2, 5, lengths=[4, 1])]
    return [*out, _sample("lstm", 1, 3, 5, 36), _sample("gru", 1, 1, 4, 12), _sample("gru", 1, 3, 1, 6)]


def _grad_samples() -> list[Sample]:
    out = []
    for s in _samples():
        tensors, lengths, cell, _ = s.args
        k = CELLS[cell]
        made = _recurrence_ref([x.astype(np.float64) for x in tensors], lengths, cell, True)
        rng = np.random.default_rng(3)
        seeds = [rng.uniform(-1, 1, x.shape).astype(np.float32) for x in made[:2] + made[3:]]
        projection = tensors[4 + k.state] if len(tensors) > 4 + k.state else None
        kept = made[2 if k.kept else 0].astype(np.float32)
        out.append(Sample.of(seeds[0], seeds[1], seeds[2] if k.state else None, tensors[1], projection, kept, lengths, cell))
    return out


# ---- gradients ----


def _previous(out: Tensor, hidden: Tensor, lengths: Tensor | None, d: int) -> tuple[list[tuple[slice, Any]], Any]:
    """Pairs (steps, the outputs before them [steps, N, R]) for one direction, from its outputs [T, N, R]."""
    last = out.shape[0] - 1
    if d == 0:
        return [(slice(1, None), out[:-1]), (slice(0, 1), hidden)], None
    if lengths is None:
        return [(slice(0, last), out[1:]), (slice(last, None), hidden)], None
    steps = reshape(creation.ramp(0, 1, (last + 1,), int64), -1, 1)
    first = unsqueeze(steps == lengths - 1, -1)
    return [(slice(0, last), out[1:]), (slice(None), pointwise.where(first, hidden, 0.0))], None


def _weight_gradient(dg: Tensor, out: Tensor, hidden: Tensor, lengths: Tensor | None) -> Any:
    """[D, G*H, R]: every step's gradient [D, T, N, G*H] times the output before it."""
    directions, _, _, wide = dg.shape
    width = hidden.shape[-1]
    made = []
    for d in range(directions):
        total: Any = None
        pairs, _ = _previous(out[..., d * width : (d + 1) * width], hidden[d], lengths, d)
        for steps, before in pairs:
            g = reshape(dg[d][steps], -1, wide)
            if g.shape[0]:
                product = batched_matmul(g.transpose(0, 1), reshape(before, -1, width))
                total = product if total is None else total + product
        made.append(total)
    return unsqueeze(made[0], 0) if directions == 1 else stack(made)


def _kept_output(kept: Tensor, size: int) -> Any:
    """An LSTM's output before projection, o * tanh(f c + i g). [D, T, N, 5H] -> [D, T, N, H]."""
    i, f, u, o, c = (kept[..., j * size : (j + 1) * size] for j in range(5))
    return o * pointwise.tanh(f * c + i * u)


def _recurrence_gradients(grads: Any, results: Any, tensors: Any, lengths: Any, cell: str, keep: bool) -> Any:
    k = CELLS[cell]
    if not keep and k.kept:
        raise NoGradientError(f"a recurrence of {cell!r} ran with keep=False, so nothing was kept for its gradient")
    given = [
        creation.fill(0.0, r.shape, r.dtype) if g is None else g for i, (g, r) in enumerate(zip(grads, results, strict=True)) if i != 2
    ]
    projection = tensors[4 + k.state] if len(tensors) > 4 + k.state else None
    kept = results[2 if k.kept else 0]
    state = given[2] if k.state else None
    dx, dh, *more = recurrence_grad(given[0], given[1], state, tensors[1], projection, kept, lengths, cell)
    dg = more[0] if cell == "gru" else dx
    bias = dx.sum((1, 2))
    if cell == "gru":
        bias = cat([bias, dg[..., 2 * dg.shape[-1] // 3 :].sum((1, 2))], 1)
    out = [dx, _weight_gradient(dg, results[0], tensors[3], lengths), bias, dh, *more[: int(k.state)]]
    if projection is not None:
        d, width, size = projection.shape
        m = reshape(_kept_output(kept, size), d, -1, size)
        out.append(batched_matmul(reshape(more[-1], d, -1, width).transpose(1, 2), m))
    return out


@op(
    Kernel("recurrence"),
    ref=_recurrence_ref,
    grad={"tensors": _recurrence_gradients},
    rule=_recurrence_rule,
    samples=_samples,
    differentiable=(True, True, False, True),
    public=False,
    torch=None,
    shown="recurrence",
)
def recurrence(tensors: Sequence[Tensor], lengths: Tensor | None, cell: str, keep: bool) -> Any:
    """All steps of a recurrent layer in D directions. tensors: gates [D, T, N, G*H], the inputs' products; weight [D, G*H, R]
    for the output before; bias [D, B*H]; first output [D, N, R]; for 'lstm' first state [D, N, H]; maybe a projection
    [D, R, H] of the LSTM's output (else R = H). lengths [N]: steps that a sequence has; beyond them it rests and gives 0.
    -> outputs [T, N, D*R], last outputs [D, N, R], except for plain cells what backward needs (empty unless `keep`), for 'lstm'
    last states [D, N, H]."""


@op(
    Kernel("recurrence"),
    ref=_recurrence_grad_ref,
    rule=_recurrence_grad_rule,
    samples=_grad_samples,
    public=False,
    torch=None,
    shown="recurrence",
)
def recurrence_grad(
    grad: Tensor,
    hidden: Tensor,
    state: Tensor | None,
    weight: Tensor,
    projection: Tensor | None,
    kept: Tensor,
    lengths: Tensor | None,
    cell: str,
) -> Any:
    """Backward of recurrence from the gradients of its outputs [T, N, D*R], last outputs and last states. -> gradients of gates
    [D, T, N, G*H], first outputs [D, N, R], for 'lstm' first states; for 'gru' of the hidden products [D, T, N, G*H]; with a
    projection of its results [D, T, N, R]."""
