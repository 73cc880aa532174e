"""Optimizer steps: rows that update many parameters in place, in one dispatch; and the norm that clipping needs.

Every number that may change from step to step (learning rate, bias corrections) is a scalar, computed on the host in
double precision; what changes the statements (nesterov, amsgrad) is a row of its own. In these formulas `sign` is -1
to maximise, `l2` adds weight decay to the gradient, `decay` = 1 - lr * weight_decay shrinks the parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..dtype import float32
from ..errors import DTypeError, ShapeError
from ..storage import Layout
from .archetype import Reduce, Update
from .table import Inferred, Op, Sample, Scalar, Spec, op

if TYPE_CHECKING:
    from ..tensor import Tensor

    Array = np.ndarray[Any, Any]

GRADIENT = ("g", "f32", "{sign} * {grads} + {l2} * {params}")
DECAYED = ("d", "f32", "{decay} * {params}")
SECOND = ("v", "f32", "{beta2} * {exp_avg_sqs} + {rest2} * {g} * {g}")
STEP = "{d} - {step_size} * {m}"


def _rule(**args: Any) -> Inferred:
    """Outputs of an Update row: the written roles' tensors, role after role. Checks that roles match in number and shape."""
    lists = {n: v for n, v in args.items() if isinstance(v, tuple)}
    params: tuple[Layout, ...] = lists["params"]
    for role, layouts in lists.items():
        if len(layouts) != len(params):
            raise ShapeError(f"{len(params)} params but {len(layouts)} {role}")
        for i, (p, t) in enumerate(zip(params, layouts, strict=True)):
            if t.shape != p.shape:
                raise ShapeError(f"{role}[{i}] has shape {list(t.shape)}, params[{i}] {list(p.shape)}")
            if not t.dtype.is_floating_point:
                raise DTypeError(f"{role}[{i}] is {t.dtype.name}; optimizers update floating point tensors")
    written = [role for role in lists if role != "grads"]
    outputs = tuple(Spec(t.dtype, t.shape) for role in written for t in lists[role])
    return Inferred(outputs, tuple(t.dtype for layouts in lists.values() for t in layouts), {})


def _each(segment: Callable[..., tuple[Array, ...]], roles: int) -> Callable[..., tuple[list[Array], ...]]:
    """The numpy reference of a row from that of one segment: lists in, a list of new arrays a written role out."""

    def ref(*args: Any, **kwargs: Any) -> tuple[list[Array], ...]:
        args = (*args, *kwargs.values())
        rows = [segment(*arrays, *args[roles:]) for arrays in zip(*args[:roles], strict=True)]
        return tuple(list(role) for role in zip(*rows, strict=True))

    return ref


def _samples(moments: int, *scalars: float) -> Callable[[], Sequence[Sample]]:
    """Three segments of odd sizes; moments are positive, as second moments are."""

    def make() -> Sequence[Sample]:
        rng = np.random.default_rng(0)
        shapes = [(5, 3), (7,), ()]
        signed = [[rng.standard_normal(s).astype(np.float32) for s in shapes] for _ in range(2)]
        positive = [[np.abs(rng.standard_normal(s)).astype(np.float32) for s in shapes] for _ in range(moments)]
        return [Sample.of(*signed, *positive, *scalars)]

    return make


def _update(roles: tuple[str, ...], writes: dict[str, str], *statements: tuple[str, str, str], **fields: Any) -> Callable[[Any], Op]:
    archetype = Update(("params", "grads", *roles), statements, writes)
    return op(archetype, rule=_rule, mutates=tuple(writes), public=False, method=False, torch=None, **fields)


# ---- SGD ---------------------------------------------------------------------------------------------------------


def _sgd(p: Array, g: Array, lr: float, sign: float, l2: float) -> tuple[Array, ...]:
    return (p - lr * (sign * g + l2 * p),)


def _sgd_momentum(p: Array, g: Array, b: Array, lr: float, sign: float, l2: float, momentum: float, keep: float) -> tuple[Array, ...]:
    b = momentum * b + keep * (sign * g + l2 * p)
    return p - lr * b, b


def _sgd_nesterov(p: Array, g: Array, b: Array, lr: float, sign: float, l2: float, momentum: float, keep: float) -> tuple[Array, ...]:
    g = sign * g + l2 * p
    b = momentum * b + keep * g
    return p - lr * (g + momentum * b), b


BUFFER = ("b", "f32", "{momentum} * {momentum_buffers} + {keep} * {g}")


@_update((), {"params": "p"}, GRADIENT, ("p", "f32", "{params} - {lr} * {g}"), ref=_each(_sgd, 2), samples=_samples(0, 0.1, -1.0, 0.01))
def sgd_update(params: Sequence[Tensor], grads: Sequence[Tensor], lr: Scalar, sign: Scalar, l2: Scalar) -> Any:
    """p -= lr * (sign * g + l2 * p)."""


@_update(
    ("momentum_buffers",), {"params": "p", "momentum_buffers": "b"}, GRADIENT, BUFFER, ("p", "f32", "{params} - {lr} * {b}"),
    ref=_each(_sgd_momentum, 3), samples=_samples(1, 0.1, 1.0, 0.01, 0.9, 0.8),
)  # fmt: skip
def sgd_momentum_update(
    params: Sequence[Tensor], grads: Sequence[Tensor], momentum_buffers: Sequence[Tensor],
    lr: Scalar, sign: Scalar, l2: Scalar, momentum: Scalar, keep: Scalar,
) -> Any:  # fmt: skip
    """b = momentum * b + keep * g, p -= lr * b. `keep` is 1 - dampening, and 1 at the first step (b is zero then)."""


@_update(
    ("momentum_buffers",), {"params": "p", "momentum_buffers": "b"}, GRADIENT, BUFFER,
    ("p", "f32", "{params} - {lr} * ({g} + {momentum} * {b})"),
    ref=_each(_sgd_nesterov, 3), samples=_samples(1, 0.1, 1.0, 0.01, 0.9, 1.0),
)  # fmt: skip
def sgd_nesterov_update(
    params: Sequence[Tensor], grads: Sequence[Tensor], momentum_buffers: Sequence[Tensor],
    lr: Scalar, sign: Scalar, l2: Scalar, momentum: Scalar, keep: Scalar,
) -> Any:  # fmt: skip
    """b = momentum * b + keep * g, p -= lr * (g + momentum * b)."""


# ---- Adam family -------------------------------------------------------------------------------------------------


def _adam(
    p: Array, g: Array, m: Array, v: Array,
    sign: float, l2: float, decay: float, rest1: float, beta2: float, rest2: float, step_size: float, scale: float, eps: float,
) -> tuple[Array, ...]:  # fmt: skip
    g = sign * g + l2 * p
    m = m + rest1 * (g - m)
    v = beta2 * v + rest2 * g * g
    return decay * p - step_size * (m / (np.sqrt(v) * scale + eps)), m, v


def _adam_amsgrad(
    p: Array, g: Array, m: Array, v: Array, top: Array,
    sign: float, l2: float, decay: float, rest1: float, beta2: float, rest2: float, step_size: float, scale: float, eps: float,
) -> tuple[Array, ...]:  # fmt: skip
    g = sign * g + l2 * p
    m = m + rest1 * (g - m)
    v = beta2 * v + rest2 * g * g
    top = np.maximum(top, v)
    return decay * p - step_size * (m / (np.sqrt(top) * scale + eps)), m, v, top


def _laprop(
    p: Array, g: Array, m: Array, v: Array,
    sign: float, decay: float, beta1: float, rest1: float, beta2: float, rest2: float, step_size: float, scale: float, eps: float,
) -> tuple[Array, ...]:  # fmt: skip
    g = sign * g
    v = beta2 * v + rest2 * g * g
    m = beta1 * m + rest1 * (g / (np.sqrt(v) * scale + eps))
    return decay * p - step_size * m, m, v


FIRST = ("m", "f32", "{exp_avgs} + {rest1} * ({g} - {exp_avgs})")
_ADAM = (1.0, 0.01, 0.999, 0.1, 0.999, 0.001, 0.02, 2.0, 1e-8)


@_update(
    ("exp_avgs", "exp_avg_sqs"), {"params": "p", "exp_avgs": "m", "exp_avg_sqs": "v"}, GRADIENT, DECAYED, FIRST, SECOND,
    ("p", "f32", "{d} - {step_size} * ({m} / (sqrt({v}) * {scale} + {eps}))"),
    ref=_each(_adam, 4), samples=_samples(2, *_ADAM),
)  # fmt: skip
def adam_update(
    params: Sequence[Tensor], grads: Sequence[Tensor], exp_avgs: Sequence[Tensor], exp_avg_sqs: Sequence[Tensor],
    sign: Scalar, l2: Scalar, decay: Scalar, rest1: Scalar, beta2: Scalar, rest2: Scalar, step_size: Scalar, scale: Scalar, eps: Scalar,
) -> Any:  # fmt: skip
    """m += rest1 * (g - m), v = beta2 * v + rest2 * g^2, p = decay * p - step_size * m / (sqrt(v) * scale + eps).

    step_size = lr / (1 - beta1^t), scale = 1 / sqrt(1 - beta2^t), rest = 1 - beta. Source: arXiv:1412.6980, arXiv:1711.05101.
    """


@_update(
    ("exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs"), {"params": "p", "exp_avgs": "m", "exp_avg_sqs": "v", "max_exp_avg_sqs": "top"},
    GRADIENT, DECAYED, FIRST, SECOND, ("top", "f32", "nan_max({max_exp_avg_sqs}, {v})"),
    ("p", "f32", "{d} - {step_size} * ({m} / (sqrt({top}) * {scale} + {eps}))"),
    ref=_each(_adam_amsgrad, 5), samples=_samples(3, *_ADAM),
)  # fmt: skip
def adam_amsgrad_update(
    params: Sequence[Tensor], grads: Sequence[Tensor], exp_avgs: Sequence[Tensor], exp_avg_sqs: Sequence[Tensor],
    max_exp_avg_sqs: Sequence[Tensor],
    sign: Scalar, l2: Scalar, decay: Scalar, rest1: Scalar, beta2: Scalar, rest2: Scalar, step_size: Scalar, scale: Scalar, eps: Scalar,
) -> Any:  # fmt: skip
    """adam_update with the largest v so far in the denominator."""


@_update(
    ("exp_avgs", "exp_avg_sqs"), {"params": "p", "exp_avgs": "m", "exp_avg_sqs": "v"},
    ("g", "f32", "{sign} * {grads}"), DECAYED, SECOND,
    ("m", "f32", "{beta1} * {exp_avgs} + {rest1} * ({g} / (sqrt({v}) * {scale} + {eps}))"), ("p", "f32", STEP),
    ref=_each(_laprop, 4), samples=_samples(2, 1.0, 0.999, 0.9, 0.1, 0.999, 0.001, 0.02, 2.0, 1e-15),
)  # fmt: skip
def laprop_update(
    params: Sequence[Tensor], grads: Sequence[Tensor], exp_avgs: Sequence[Tensor], exp_avg_sqs: Sequence[Tensor],
    sign: Scalar, decay: Scalar, beta1: Scalar, rest1: Scalar, beta2: Scalar, rest2: Scalar, step_size: Scalar, scale: Scalar, eps: Scalar,
) -> Any:  # fmt: skip
    """v = beta2 * v + rest2 * g^2, m = beta1 * m + rest1 * g / (sqrt(v) * scale + eps), p = decay * p - step_size * m.

    Source: arXiv:2002.04839 (momentum of the normalised gradient, not the normalised momentum).
    """


def _norm_rule(input: Layout) -> Inferred:
    return Inferred((Spec(float32, ()),), (input.dtype,), {"dim": tuple(range(len(input.shape))), "keepdim": False})


@op(
    Reduce("sum", pre="{input} * {input}", post="sqrt({acc})"),
    rule=_norm_rule,
    ref=lambda input: np.sqrt(np.sum(np.square(input))),
    grad={"input": lambda grad, input, result: input * (grad / result)},
    samples=lambda: [Sample.of(np.linspace(-1.5, 2.0, n, dtype=np.float32).reshape(s)) for n, s in ((24, (2, 3, 4)), (7, (7,)), (1, ()))],
    public=False,
    torch=None,
)
def euclidean_norm(input: Tensor) -> Tensor:
    """Square root of the sum of squares of all elements, in float32. [*] -> []."""


def scalar_count(row: Op) -> int:
    """How many scalars a step of this row takes."""
    return sum(bool(p.scalar) for p in row.params)
