"""Cross entropy as rows: one kernel over the logits forwards, one backwards, whatever the number of classes. Nothing of the
logits' size is made but their gradient.

All three (class indices, class indices with label smoothing, probabilities) take a weight for each class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..dispatch import is_grad_enabled
from ..dtype import int64
from .archetype import Row, Stage
from .creation import ramp
from .norm import _lse, log_softmax_row
from .reduce import spread
from .table import IntScalar, Sample, Scalar, op
from .views import reshape

if TYPE_CHECKING:
    from ..tensor import Tensor

_IGNORED = "{target} == {ignore_index}"
_LSE = "{z_max} + log_({z_sum})"


# ---- numpy ----


def _pick(input: Any, target: Any, dim: int, ignore_index: int) -> Any:
    safe = np.where(target == ignore_index, 0, target)
    return np.take_along_axis(input, np.expand_dims(safe, dim), dim).squeeze(dim)


def _along(weight: Any, ndim: int, dim: int) -> Any:
    """A value a class, shaped to multiply the logits."""
    return 1.0 if weight is None else weight.reshape([-1 if d == dim % ndim else 1 for d in range(ndim)])


def _hot(input: Any, target: Any, dim: int) -> Any:
    return np.arange(input.shape[dim]).reshape([-1 if d == dim % input.ndim else 1 for d in range(input.ndim)]) == np.expand_dims(
        target, dim
    )


def _kept(target: Any, weight: Any, ignore_index: int) -> Any:
    """Every row's weight, 0 where the target is ignored."""
    ignored = target == ignore_index
    return np.where(ignored, 0.0, 1.0 if weight is None else weight[np.where(ignored, 0, target)])


def _row_ref(input: Any, weight: Any, target: Any, dim: int, ignore_index: int) -> Any:
    lse, kept = np.squeeze(_lse(input, dim), dim), _kept(target, weight, ignore_index)
    return np.where(target == ignore_index, 0, kept * (lse - _pick(input, target, dim, ignore_index))), lse, kept


def _grad_ref(input: Any, target: Any, lse: Any, grad: Any, dim: int, ignore_index: int) -> Any:
    scale = np.expand_dims(np.where(target == ignore_index, 0, grad), dim)
    return (np.exp(input - np.expand_dims(lse, dim)) - _hot(input, target, dim)) * scale


def _smooth_ref(input: Any, weight: Any, target: Any, dim: int, ignore_index: int, smoothing: float) -> Any:
    w = _along(weight, input.ndim, dim) * np.ones_like(input)
    flat, total = np.sum(w * (input - _lse(input, dim)), dim), np.sum(w, dim)
    loss, lse, kept = _row_ref(input, weight, target, dim, ignore_index)
    loss = loss * (1 - smoothing) - flat * (smoothing / input.shape[dim])
    return np.where(target == ignore_index, 0, loss), lse, kept, total


def _smooth_grad_ref(
    input: Any, weight: Any, target: Any, lse: Any, kept: Any, total: Any, grad: Any, dim: int, ignore_index: int, smoothing: float
) -> Any:
    share, own = smoothing / input.shape[dim], np.expand_dims(kept * (1 - smoothing), dim)
    p, w = np.exp(input - np.expand_dims(lse, dim)), _along(weight, input.ndim, dim)
    d = p * (own + share * np.expand_dims(total, dim)) - _hot(input, target, dim) * own - share * w
    return d * np.expand_dims(np.where(target == ignore_index, 0, grad), dim)


def _dense_ref(input: Any, target: Any, weight: Any, dim: int, smoothing: float) -> Any:
    t = (target * (1 - smoothing) + smoothing / input.shape[dim]) * _along(weight, input.ndim, dim)
    lse = _lse(input, dim)
    return np.sum(t * (lse - input), dim), np.squeeze(lse, dim), np.sum(t, dim)


def _dense_grad_ref(input: Any, target: Any, weight: Any, lse: Any, total: Any, grad: Any, dim: int, smoothing: float) -> Any:
    t = (target * (1 - smoothing) + smoothing / input.shape[dim]) * _along(weight, input.ndim, dim)
    return (np.exp(input - np.expand_dims(lse, dim)) * np.expand_dims(total, dim) - t) * np.expand_dims(grad, dim)


# ---- gradients ----


def one_hot_like(input: Any, target: Any, dim: int) -> Any:
    """1 where the index along dim equals the target, else 0, in input's dtype and shape."""
    return (_classes(ramp(0, 1, (input.shape[dim],), int64), input, dim) == target.unsqueeze(dim)).to(input.dtype)


def _classes(weight: Any, input: Any, dim: int) -> Any:
    """A value a class, shaped to multiply the logits."""
    return reshape(weight, *(-1 if d == dim % input.ndim else 1 for d in range(input.ndim)))


def _dim(dim: Any) -> int:
    return dim if isinstance(dim, int) else dim[0]


def _row_input(grad: Any, input: Any, target: Any, result1: Any, result2: Any, dim: Any, ignore_index: Any) -> Any:
    grad = grad * result2.detach()
    if not is_grad_enabled():
        return cross_entropy_grad(input, target, result1, grad, dim, ignore_index)
    scale = spread(grad, input.shape, dim, False)
    return (log_softmax_row(input, dim).exp() - one_hot_like(input, target, _dim(dim))) * scale


def _smooth_input(
    grad: Any, input: Any, weight: Any, target: Any, result1: Any, results: Any, dim: Any, ignore_index: Any, smoothing: Any
) -> Any:
    kept, total = results[2].detach(), results[3].detach()
    if not is_grad_enabled():
        return smooth_cross_entropy_grad(input, weight, target, result1, kept, total, grad, dim, ignore_index, smoothing)
    d, share = _dim(dim), smoothing / input.shape[_dim(dim)]
    own = (kept * (1.0 - smoothing)).unsqueeze(d)
    w = 1.0 if weight is None else _classes(weight, input, d)
    p = log_softmax_row(input, dim).exp()
    made = p * (own + total.unsqueeze(d) * share) - one_hot_like(input, target, d) * own - w * share
    return made * spread(grad * (target != ignore_index).to(grad.dtype), input.shape, dim, False)


def _smoothed_target(input: Any, target: Any, weight: Any, d: int, smoothing: float) -> Any:
    t = target * (1.0 - smoothing) + smoothing / input.shape[d]
    return t if weight is None else t * _classes(weight, input, d)


def _dense_input(grad: Any, input: Any, target: Any, weight: Any, result1: Any, result2: Any, dim: Any, smoothing: Any) -> Any:
    if not is_grad_enabled():
        return dense_cross_entropy_grad(input, target, weight, result1, result2, grad, dim, smoothing)
    t = _smoothed_target(input, target, weight, _dim(dim), smoothing)
    return (log_softmax_row(input, dim).exp() * t.sum(_dim(dim), True) - t) * spread(grad, input.shape, dim, False)


def _dense_target(grad: Any, input: Any, weight: Any, dim: Any, smoothing: Any) -> Any:
    terms = log_softmax_row(input, dim) * (smoothing - 1.0)
    terms = terms if weight is None else terms * _classes(weight, input, _dim(dim))
    return terms * spread(grad, input.shape, dim, False)


# ---- rows ----


def _samples(kind: str) -> list[Sample]:
    """Logits [rows, classes] and [2, classes, 3], with and without weights, some targets ignored."""
    out: list[Sample] = []
    for shape, dim, weighted in (((3, 5), 1, True), ((4, 12), 1, False), ((2, 7, 3), 1, True), ((9,), 0, False), ((2, 300), 1, True)):
        rng = np.random.default_rng(len(out))
        x, w = rng.uniform(-2, 2, shape).astype(np.float32), rng.uniform(0.3, 2, shape[dim]).astype(np.float32) if weighted else None
        kept = tuple(n for d, n in enumerate(shape) if d != dim)
        target = rng.integers(0, shape[dim], kept)
        if target.size > 1:
            target.reshape(-1)[0] = -100
        dense = rng.uniform(0, 1, shape).astype(np.float32)
        grad = rng.uniform(-1, 1, kept).astype(np.float32)
        args: dict[str, tuple[Any, ...]] = {
            "row": (x, w, target, dim, -100),
            "smooth": (x, w, target, dim, -100, 0.3),
            "dense": (x, dense, w, dim, 0.2),
        }
        base = kind.removesuffix("_grad")
        refs: dict[str, Any] = {"row": _row_ref, "smooth": _smooth_ref, "dense": _dense_ref}
        made = refs[base](*args[base])
        rows = [np.asarray(m, np.float32) for m in made]
        args["row_grad"] = (x, target, rows[1], grad, dim, -100)
        args["smooth_grad"] = (x, w, target, *rows[1:], grad, dim, -100, 0.3)
        args["dense_grad"] = (x, dense, w, *rows[1:], grad, dim, 0.2)
        out.append(Sample.of(*args[kind]))
    return out


@op(
    Row(
        full=("input",),
        column=("weight",),
        stages=(
            Stage("z", "softmax", "{input}"),
            Stage("t", "pick", "{input}", index="target"),
            Stage("w", "pick", "{weight}", index="target"),
        ),
        per_row=(f"select({{w}} * (({_LSE}) - {{t}}), 0.0, {_IGNORED})", _LSE, "{w}"),
        defaults={"weight": "1.0"},
    ),
    ref=_row_ref,
    grad={"input": _row_input},
    samples=lambda: _samples("row"),
    differentiable=(True, False, False),
    static_index=False,
    public=False,
    torch=None,
    shown="cross_entropy",
)
def cross_entropy_row(input: Tensor, weight: Tensor | None, target: Tensor, dim: int, ignore_index: IntScalar) -> Tensor:
    """-weight[target] log softmax(input)[target] along dim (0 where the target is ignored), log sum exp, and weight[target] (0
    for ignored ones). [*, C, *], [C], [*, *] -> [*, *], [*, *], [*, *]."""


@op(
    Row(
        full=("input",),
        element=(f"select((exp({{input}} - {{lse}}) - select(0.0, 1.0, i32({{column}}) == {{target}})) * {{grad}}, 0.0, {_IGNORED})",),
    ),
    ref=_grad_ref,
    samples=lambda: _samples("row_grad"),
    public=False,
    torch=None,
)
def cross_entropy_grad(input: Tensor, target: Tensor, lse: Tensor, grad: Tensor, dim: int, ignore_index: IntScalar) -> Tensor:
    """Backward of cross entropy for the logits, grad already times the rows' weights. [*, C, *], [*, *] three times -> [*, C, *]."""


@op(
    Row(
        full=("input",),
        column=("weight",),
        stages=(
            Stage("z", "softmax", "{input}"),
            Stage("a", "sum", "{weight} * ({input} - {z_max})"),
            Stage("b", "sum", "{weight}"),
            Stage("t", "pick", "{input}", index="target"),
            Stage("w", "pick", "{weight}", index="target"),
        ),
        per_row=(
            f"select((1.0 - {{smoothing}}) * {{w}} * (({_LSE}) - {{t}}) + {{smoothing}} * (log_({{z_sum}}) * {{b}} - {{a}}) / {{n}}, 0.0, "
            f"{_IGNORED})",
            _LSE,
            "{w}",
            "{b}",
        ),
        defaults={"weight": "1.0"},
    ),
    ref=_smooth_ref,
    grad={"input": _smooth_input},
    samples=lambda: _samples("smooth"),
    differentiable=(True, False, False, False),
    static_index=False,
    public=False,
    torch=None,
    shown="cross_entropy",
)
def smooth_cross_entropy_row(
    input: Tensor, weight: Tensor | None, target: Tensor, dim: int, ignore_index: IntScalar, smoothing: Scalar
) -> Tensor:
    """cross_entropy_row for targets of which the share `smoothing` is spread over all classes, and the sum of the weights.
    [*, C, *], [C], [*, *] -> [*, *] four times. Source: arXiv:1512.00567."""


@op(
    Row(
        full=("input",),
        column=("weight",),
        element=(
            "select((exp({input} - {lse}) * ((1.0 - {smoothing}) * {kept} + {smoothing} / {n} * {total}) - "
            "select(0.0, (1.0 - {smoothing}) * {kept}, i32({column}) == {target}) - {smoothing} / {n} * {weight}) * {grad}, 0.0, "
            f"{_IGNORED})",
        ),
        defaults={"weight": "1.0"},
    ),
    ref=_smooth_grad_ref,
    samples=lambda: _samples("smooth_grad"),
    public=False,
    torch=None,
)
def smooth_cross_entropy_grad(
    input: Tensor, weight: Tensor | None, target: Tensor, lse: Tensor, kept: Tensor, total: Tensor, grad: Tensor,
    dim: int, ignore_index: IntScalar, smoothing: Scalar,
) -> Tensor:  # fmt: skip
    """Backward of smooth_cross_entropy_row for the logits. [*, C, *], [C], [*, *] five times -> [*, C, *]."""


_TARGET = "({target} * (1.0 - {smoothing}) + {smoothing} / {n}) * {weight}"


@op(
    Row(
        full=("input", "target"),
        column=("weight",),
        stages=(
            Stage("z", "softmax", "{input}"),
            Stage("e", "sum", _TARGET),
            Stage("d", "sum", f"{_TARGET} * ({{input}} - {{z_max}})"),
        ),
        per_row=("log_({z_sum}) * {e} - {d}", _LSE, "{e}"),
        defaults={"weight": "1.0"},
    ),
    ref=_dense_ref,
    grad={"input": _dense_input, "target": _dense_target},
    samples=lambda: _samples("dense"),
    differentiable=(True, False, False),
    public=False,
    torch=None,
    shown="cross_entropy",
)
def dense_cross_entropy_row(input: Tensor, target: Tensor, weight: Tensor | None, dim: int, smoothing: Scalar) -> Tensor:
    """-sum(weight * target * log softmax(input)) along dim, log sum exp, and sum(weight * target), the share `smoothing` of the
    target spread over all classes. [*, C, *], [*, C, *], [C] -> [*, *] three times."""


@op(
    Row(
        full=("input", "target"),
        column=("weight",),
        element=(f"(exp({{input}} - {{lse}}) * {{total}} - {_TARGET}) * {{grad}}",),
        defaults={"weight": "1.0"},
    ),
    ref=_dense_grad_ref,
    samples=lambda: _samples("dense_grad"),
    public=False,
    torch=None,
)
def dense_cross_entropy_grad(
    input: Tensor, target: Tensor, weight: Tensor | None, lse: Tensor, total: Tensor, grad: Tensor, dim: int, smoothing: Scalar
) -> Tensor:
    """Backward of dense_cross_entropy_row for the logits. [*, C, *], [*, C, *], [C], [*, *] three times -> [*, C, *]."""
