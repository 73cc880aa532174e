"""Rows of norms over channels: statistics of channels over a batch, normalising by them, group norm, and their gradients.

Channels of a batch: one Row a channel, made of a run a sample; in very large tensors one reduction for all statistics, then a pointwise
row. Groups: one Row a sample and group, whose weight and bias have one value for neighbouring elements. The gradients of weight and bias
are sums that the input's gradient needs, too, or one reduction; when the backward pass is itself recorded, the same formulas in plain ops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import dispatch
from ..dtype import float32
from ..shape import Shape, broadcast_shapes
from ..storage import Layout
from .archetype import Pointwise, Reduce, Row, Stage
from .infer import reduced_shape
from .table import Inferred, Operand, Sample, Scalar, Spec, op

if TYPE_CHECKING:
    from ..tensor import Tensor


def _f32(*shape: int, seed: int = 3, low: float = -2.0, high: float = 2.0) -> Any:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


def _per_channel(seed: int, *shape: int) -> Any:
    return _f32(*shape, seed=seed, low=0.4, high=1.6)


# ---- statistics over the batch ----


def _moments_ref(input: Any, dim: Shape, eps: float) -> Any:
    n = np.prod([input.shape[d] for d in dim])
    var = np.var(input, axis=dim)
    return np.mean(input, axis=dim), 1 / np.sqrt(var + eps), var * (n / max(n - 1, 1))


def _moments_rule(input: Layout, dim: Shape, eps: Any) -> Inferred:
    return Inferred((Spec(float32, reduced_shape(input.shape, tuple(dim), False)),) * 3, (input.dtype,), {"dim": tuple(dim)})


@op(
    Reduce(
        "moments", values=("{input}",), results=((0, "{mean}"), (0, "inverseSqrt({m2} / {n} + {eps})"), (0, "{m2} / max({n} - 1.0, 1.0)"))
    ),
    rule=_moments_rule,
    ref=_moments_ref,
    differentiable=(False, False, False),
    samples=lambda: [
        Sample.of(_f32(3, 4, 5), (0, 2), 1e-5),
        Sample.of(_f32(7, 3), (0,), 1e-3),
        Sample.of(_f32(2, 3, 4, 6), (0, 2, 3), 1e-5),
    ],
    public=False,
    torch=None,
)
def channel_moments(input: Tensor, dim: Shape, eps: Scalar) -> Tensor:
    """Mean, 1/sqrt(variance + eps) and the variance with n - 1 in the denominator, over `dim`. [N, C, *] -> [C], [C], [C]."""


def _sums_ref(grad: Any, input: Any, mean: Any, rstd: Any, dim: Shape) -> Any:
    return np.sum(grad, axis=dim), np.sum(grad * (input - mean) * rstd, axis=dim)


def _sums_rule(grad: Layout, input: Layout, mean: Layout, rstd: Layout, dim: Shape) -> Inferred:
    spec = Spec(float32, reduced_shape(input.shape, tuple(dim), False))
    return Inferred((spec, spec), (grad.dtype, input.dtype, mean.dtype, rstd.dtype), {"dim": tuple(dim)})


@op(
    Reduce("sum", values=("{grad}", "{grad} * ({input} - {mean}) * {rstd}"), results=((0, "{acc}"), (1, "{acc}"))),
    rule=_sums_rule,
    ref=_sums_ref,
    differentiable=(False, False),
    samples=lambda: [
        Sample.of(_f32(3, 4, 5), _f32(3, 4, 5, seed=4), _f32(1, 4, 1, seed=5), _per_channel(6, 1, 4, 1), (0, 2)),
        Sample.of(_f32(7, 3), _f32(7, 3, seed=4), _f32(1, 3, seed=5), _per_channel(6, 1, 3), (0,)),
        Sample.of(_f32(2, 3, 2, 8), _f32(2, 3, 2, 8, seed=4), _f32(2, 3, 1, 1, seed=5), _per_channel(6, 2, 3, 1, 1), (0, 3)),
    ],
    public=False,
    torch=None,
)
def channel_sums(grad: Tensor, input: Tensor, mean: Tensor, rstd: Tensor, dim: Shape) -> Tensor:
    """Sums over `dim` of grad and of grad times the normalised input: the gradients of bias and weight.
    [*], [*], [1 or *], [1 or *] -> [kept], [kept]."""


_last: list[Any] = [None, None]  # what the last sums were of, and the sums


def _key(*tensors: Any) -> Any:
    return tuple((t._storage.uid, t._storage.version, t.layout) for t in tensors)


def _keep(key: Any, sums: tuple[Any, Any]) -> tuple[Any, Any]:
    """Sums that the rules of input, weight and bias share, which eager evaluates one after another; graphs merge equal nodes."""
    if dispatch.current().name == "eager":
        _last[:] = [key, sums]
    return sums


def _sums(grad: Any, input: Any, mean: Any, rstd: Any, dim: Shape) -> tuple[Any, Any]:
    """channel_sums, made once."""
    key = _key(grad, input, mean, rstd)
    return _last[1] if _last[0] == key else _keep(key, channel_sums(grad, input, mean, rstd, dim))


# ---- normalising by statistics of the batch ----


def _scale_rule(**args: Any) -> Inferred:
    tensors = [v for v in args.values() if isinstance(v, Layout)]
    shape = broadcast_shapes(*(t.shape for t in tensors))
    count = len(tensors) + sum(isinstance(args.get(n), (int, float)) for n in ("weight", "bias"))
    return Inferred((Spec(args["input"].dtype, shape),), (float32,) * count, {})


def _dims(input: Any) -> Shape:
    """All dimensions but the channels'."""
    return (0, *range(2, len(input.shape)))


def _lifted(values: Any, ndim: int) -> Any:
    """[C] -> [1, C, 1...]."""
    return values.reshape((1, values.shape[0], *(1,) * (ndim - 2)))


def _batch_input(grad: Any, input: Any, mean: Any, rstd: Any, weight: Any, bias: Any) -> Any:
    dim = _dims(input)
    n = input.numel() // input.shape[1]
    if dispatch.is_grad_enabled():
        return _smooth(grad, input, rstd, weight, dim)
    a, b = _sums(grad, input, mean, rstd, dim)
    return batch_scale_grad(grad, input, mean, rstd, weight, _lifted(a, input.ndim), _lifted(b, input.ndim), float(n))


def _centred(x: Any, rstd: Any, dim: Shape) -> tuple[Any, Any]:
    """x minus its mean over dim, and 1/std, both with history; eps is what the forward pass saw, a constant."""
    centred = x - x.mean(dim, True)
    square = (centred * centred).mean(dim, True)
    inverse = rstd.detach() * rstd.detach()
    return centred, (square - square.detach() + inverse.reciprocal()).rsqrt()


def _smooth(grad: Any, input: Any, rstd: Any, weight: Any, dim: Shape) -> Any:
    """The gradient of a norm over dim for its input, in plain ops."""
    centred, r = _centred(input.float(), rstd, dim)
    h, g = centred * r, grad * weight
    return (g - g.mean(dim, True) - h * (g * h).mean(dim, True)) * r


def _batch_weight(grad: Any, input: Any, mean: Any, rstd: Any) -> Any:
    dim = _dims(input)
    if dispatch.is_grad_enabled():
        centred, r = _centred(input.float(), rstd, dim)
        return (grad * centred * r).sum(dim, True)
    return _lifted(_sums(grad, input, mean, rstd, dim)[1], input.ndim)


def _batch_bias(grad: Any, input: Any, mean: Any, rstd: Any) -> Any:
    dim = _dims(input)
    return grad.float().sum(dim, True) if dispatch.is_grad_enabled() else _lifted(_sums(grad, input, mean, rstd, dim)[0], input.ndim)


def _batch_samples() -> list[Sample]:
    """More than 120 numbers each: finite differences would have to let the statistics follow."""
    out = []
    for shape in ((6, 4, 6), (40, 4), (2, 3, 4, 8)):
        x = _f32(*shape)
        dim = _dims(x)
        mean, rstd, _ = (np.asarray(v, np.float32) for v in _moments_ref(x, dim, 1e-5))
        each = (1, shape[1], *(1,) * (len(shape) - 2))
        out.append(
            Sample.of(x, mean.reshape(each), rstd.reshape(each), _per_channel(4, *each), _f32(*each, seed=5)),
        )
    return [*out, Sample.of(*out[0].args[:3], 1.0, 0.0)]


@op(
    Pointwise("({input} - {mean}) * {rstd} * {weight} + {bias}"),
    rule=_scale_rule,
    ref=lambda input, mean, rstd, weight, bias: (input - mean) * rstd * weight + bias,
    grad={"input": _batch_input, "weight": _batch_weight, "bias": _batch_bias},
    samples=_batch_samples,
    public=False,
    torch=None,
    shown="batch_norm",
)
def batch_scale_row(input: Tensor, mean: Tensor, rstd: Tensor, weight: Operand, bias: Operand) -> Tensor:
    """Channels by their statistics over this batch, which the input's gradient takes into account.
    [N, C, *], [1, C, 1...] four times -> [N, C, *]."""


def _batch_grad_samples() -> list[Sample]:
    return [Sample.of(_f32(*s.args[0].shape, seed=9), *s.args[:4], s.args[1], s.args[2], 7.0) for s in _batch_samples()]


@op(
    Pointwise("({grad} - ({a} + ({input} - {mean}) * {rstd} * {b}) / {n}) * {rstd} * {weight}"),
    rule=_scale_rule,
    ref=lambda grad, input, mean, rstd, weight, a, b, n: (grad - (a + (input - mean) * rstd * b) / n) * rstd * weight,
    samples=_batch_grad_samples,
    public=False,
    torch=None,
)
def batch_scale_grad(grad: Tensor, input: Tensor, mean: Tensor, rstd: Tensor, weight: Operand, a: Tensor, b: Tensor, n: Scalar) -> Tensor:
    """Backward of batch norm for its input; a and b are the sums of channel_sums over n elements. [N, C, *], [N, C, *], [1, C, 1...]
    five times -> [N, C, *]."""


@op(
    Pointwise("({input} - {mean}) * inverseSqrt({var} + {eps}) * {weight} + {bias}"),
    rule=_scale_rule,
    ref=lambda input, mean, var, weight, bias, eps: (input - mean) / np.sqrt(var + eps) * weight + bias,
    grad={
        "input": lambda grad, var, weight, eps: grad * (var + eps).rsqrt() * weight,
        "weight": lambda grad, input, mean, var, eps: grad * (input - mean) * (var + eps).rsqrt(),
        "bias": lambda grad: grad,
    },
    samples=lambda: [
        Sample.of(_f32(3, 2, 5), _f32(1, 2, 1, seed=4), _per_channel(5, 1, 2, 1), _per_channel(6, 1, 2, 1), _f32(1, 2, 1, seed=7), 1e-3),
        Sample.of(_f32(3, 4), _f32(1, 4, seed=4), _per_channel(5, 1, 4), 1.0, 0.0, 1e-3),
    ],
    public=False,
    torch=None,
    shown="batch_norm",
)
def fixed_norm_row(input: Tensor, mean: Tensor, var: Tensor, weight: Operand, bias: Operand, eps: Scalar) -> Tensor:
    """Channels by given statistics. [N, C, *], [1, C, 1...] four times -> [N, C, *]."""


# ---- the same in one row a channel ----


def _batch_row_ref(input: Any, weight: Any, bias: Any, dim: Shape, eps: float) -> Any:
    out, mean, rstd = _group_ref(input, weight, bias, dim, eps)
    n = input.shape[0] * input.shape[2]
    return out, mean, rstd, np.var(input, axis=dim) * (n / max(n - 1, 1))


def _across(values: Any) -> Any:
    """[C] -> [1, C, 1]."""
    return values.reshape((1, values.shape[0], 1))


def _row_input(grad: Any, input: Any, weight: Any, result1: Any, result2: Any, dim: Shape) -> Any:
    if dispatch.is_grad_enabled():
        return _smooth(grad, input, _across(result2), 1.0 if weight is None else weight, dim)
    made, a, b = batch_norm_grad(grad, input, weight, result1, result2, dim)
    _keep(_key(grad, input, result1, result2), (a, b))
    return made


def _row_sums(grad: Any, input: Any, weight: Any, mean: Any, rstd: Any, dim: Shape) -> tuple[Any, Any]:
    """The sums that the input's gradient has made or will make too, or on their own where the input needs none."""
    key = _key(grad, input, mean, rstd)
    if _last[0] == key:
        return _last[1]  # type: ignore[no-any-return]
    if input.requires_grad:  # a graph merges this node with the input's, for none of its results is one of the graph's own
        _, a, b = batch_norm_grad(grad, input, weight, mean, rstd, dim)
        return a.clone(), b.clone()
    return _keep(key, channel_sums(grad, input, _across(mean), _across(rstd), dim))


def _row_weight(grad: Any, input: Any, weight: Any, result1: Any, result2: Any, dim: Shape) -> Any:
    if dispatch.is_grad_enabled():
        centred, r = _centred(input.float(), _across(result2), dim)
        return (grad * centred * r).sum(dim, True)
    return _across(_row_sums(grad, input, weight, result1, result2, dim)[1])


def _row_bias(grad: Any, input: Any, weight: Any, result1: Any, result2: Any, dim: Shape) -> Any:
    if dispatch.is_grad_enabled():
        return grad.float().sum(dim, True)
    return _across(_row_sums(grad, input, weight, result1, result2, dim)[0])


def _batch_row_samples() -> list[Sample]:
    out = []
    for shape in ((3, 2, 4), (2, 3, 5), (7, 3, 1), (5, 2, 12), (70, 2, 3)):
        each = (1, shape[1], 1)
        out.append(Sample.of(_f32(*shape), _per_channel(4, *each), _f32(*each, seed=5), (0, 2), 1e-3))
    return [*out, Sample.of(_f32(4, 2, 4), None, None, (0, 2), 1e-3)]


@op(
    Row(
        full=("input", "weight", "bias"),
        stages=(Stage("v", "moments", "{input}"),),
        element=("({input} - {v_mean}) * inverseSqrt({v_var} + {eps}) * {weight} + {bias}",),
        per_row=("{v_mean}", "inverseSqrt({v_var} + {eps})", "{v_var} * {n} / max({n} - 1.0, 1.0)"),
        defaults={"weight": "1.0", "bias": "0.0"},
    ),
    ref=_batch_row_ref,
    grad={"input": _row_input, "weight": _row_weight, "bias": _row_bias},
    differentiable=(True, False, False, False),
    samples=_batch_row_samples,
    public=False,
    torch=None,
    shown="batch_norm",
)
def batch_norm_row(input: Tensor, weight: Tensor | None, bias: Tensor | None, dim: Shape, eps: Scalar) -> Tensor:
    """Each channel by its mean and variance over the batch, then scaled; and the channels' mean, 1/std, and variance with n - 1 in the
    denominator. [N, C, L], [1, C, 1], [1, C, 1] -> [N, C, L], [C], [C], [C]. Source: arXiv:1502.03167."""


def _batch_row_grad_ref(grad: Any, input: Any, weight: Any, mean: Any, rstd: Any, dim: Shape) -> Any:
    m, r = np.expand_dims(mean, dim), np.expand_dims(rstd, dim)
    h = (input - m) * r
    a, b = np.sum(grad, axis=dim, keepdims=True), np.sum(grad * h, axis=dim, keepdims=True)
    out = (grad - (a + h * b) / (input.shape[0] * input.shape[2])) * r
    return out if weight is None else out * weight, np.squeeze(a, dim), np.squeeze(b, dim)


def _batch_row_grad_samples() -> list[Sample]:
    out = []
    for s in _batch_row_samples():
        mean, rstd, _ = _moments_ref(s.args[0], (0, 2), 1e-5)
        out.append(Sample.of(_f32(*s.args[0].shape, seed=9), *s.args[:2], np.float32(mean), np.float32(rstd), (0, 2)))
    return out


@op(
    Row(
        full=("grad", "input", "weight"),
        stages=(Stage("a", "sum", "{grad}"), Stage("b", "sum", "{grad} * ({input} - {mean}) * {rstd}")),
        element=("({grad} - ({a} + ({input} - {mean}) * {rstd} * {b}) / {n}) * {rstd} * {weight}",),
        per_row=("{a}", "{b}"),
        defaults={"weight": "1.0"},
    ),
    ref=_batch_row_grad_ref,
    samples=_batch_row_grad_samples,
    public=False,
    torch=None,
)
def batch_norm_grad(grad: Tensor, input: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor, dim: Shape) -> Tensor:
    """Backward of batch norm for its input, bias and weight. [N, C, L] twice, [1, C, 1], [C], [C] -> [N, C, L], [C], [C]."""


# ---- groups of channels ----


def _group_ref(input: Any, weight: Any, bias: Any, dim: Shape, eps: float) -> Any:
    mean = np.mean(input, axis=dim, keepdims=True)
    rstd = 1 / np.sqrt(np.var(input, axis=dim, keepdims=True) + eps)
    out = (input - mean) * rstd
    out = out if weight is None else out * weight
    return out if bias is None else out + bias, np.squeeze(mean, dim), np.squeeze(rstd, dim)


def _one_a_row(values: Any) -> Any:
    """[N, G] -> [N, G, 1, 1]."""
    return values.reshape((*values.shape, 1, 1))


def _group_input(grad: Any, input: Any, weight: Any, result1: Any, result2: Any, dim: Shape) -> Any:
    if dispatch.is_grad_enabled():
        return _smooth(grad, input, _one_a_row(result2), 1.0 if weight is None else weight, dim)
    return group_norm_grad(grad, input, weight, result1, result2, dim)


def _group_weight(grad: Any, input: Any, result1: Any, result2: Any, dim: Shape) -> Any:
    mean, rstd = _one_a_row(result1), _one_a_row(result2)
    if dispatch.is_grad_enabled():
        centred, r = _centred(input.float(), rstd, dim)
        return (grad * centred * r).sum((0, 3), True)
    return _each_channel(_sums(grad, input, mean, rstd, (0, 3))[1])


def _group_bias(grad: Any, input: Any, result1: Any, result2: Any) -> Any:
    if dispatch.is_grad_enabled():
        return grad.float().sum((0, 3), True)
    return _each_channel(_sums(grad, input, _one_a_row(result1), _one_a_row(result2), (0, 3))[0])


def _each_channel(values: Any) -> Any:
    """[G, Cg] -> [1, G, Cg, 1]."""
    return values.reshape((1, *values.shape, 1))


def _group_samples() -> list[Sample]:
    out = []
    for shape in ((2, 2, 3, 4), (1, 3, 1, 10), (2, 2, 2, 9), (3, 2, 4, 1)):
        each = (1, shape[1], shape[2], 1)
        out.append(Sample.of(_f32(*shape), _per_channel(4, *each), _f32(*each, seed=5), (2, 3), 1e-5))
    return [*out, Sample.of(_f32(2, 3, 2, 4), None, None, (2, 3), 1e-5)]


@op(
    Row(
        full=("input", "weight", "bias"),
        stages=(Stage("v", "moments", "{input}"),),
        element=("({input} - {v_mean}) * inverseSqrt({v_var} + {eps}) * {weight} + {bias}",),
        per_row=("{v_mean}", "inverseSqrt({v_var} + {eps})"),
        defaults={"weight": "1.0", "bias": "0.0"},
    ),
    ref=_group_ref,
    grad={"input": _group_input, "weight": _group_weight, "bias": _group_bias},
    differentiable=(True, False, False),
    samples=_group_samples,
    public=False,
    torch=None,
    shown="group_norm",
)
def group_norm_row(input: Tensor, weight: Tensor | None, bias: Tensor | None, dim: Shape, eps: Scalar) -> Tensor:
    """Each group of each sample by its mean and variance, then scaled channel by channel; and the groups' mean and 1/std.
    [N, G, C/G, L], [1, G, C/G, 1], [1, G, C/G, 1] -> [N, G, C/G, L], [N, G], [N, G]. Source: arXiv:1803.08494."""


def _group_grad_ref(grad: Any, input: Any, weight: Any, mean: Any, rstd: Any, dim: Shape) -> Any:
    m, r = np.expand_dims(mean, dim), np.expand_dims(rstd, dim)
    h, g = (input - m) * r, grad if weight is None else grad * weight
    return (g - np.mean(g, axis=dim, keepdims=True) - h * np.mean(g * h, axis=dim, keepdims=True)) * r


def _group_grad_samples() -> list[Sample]:
    out = []
    for s in _group_samples():
        _, mean, rstd = _group_ref(s.args[0], None, None, (2, 3), 1e-5)
        stats = (np.asarray(mean, np.float32), np.asarray(rstd, np.float32))
        out.append(Sample.of(_f32(*s.args[0].shape, seed=9), s.args[0], s.args[1], *stats, (2, 3)))
    return out


@op(
    Row(
        full=("grad", "input", "weight"),
        stages=(Stage("a", "sum", "{grad} * {weight}"), Stage("b", "sum", "{grad} * {weight} * ({input} - {mean}) * {rstd}")),
        element=("({grad} * {weight} - ({a} + ({input} - {mean}) * {rstd} * {b}) / {n}) * {rstd}",),
        defaults={"weight": "1.0"},
    ),
    ref=_group_grad_ref,
    samples=_group_grad_samples,
    public=False,
    torch=None,
)
def group_norm_grad(grad: Tensor, input: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor, dim: Shape) -> Tensor:
    """Backward of group norm for its input. [N, G, C/G, L] twice, [1, G, C/G, 1], [N, G], [N, G] -> [N, G, C/G, L]."""
