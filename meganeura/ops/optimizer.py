"""Optimizer steps: rows that update many parameters in place, in one dispatch.

Every number that may change from step to step (learning rate, bias corrections) is a scalar, computed on the host in
double precision; what changes the statements (nesterov, amsgrad) is a row of its own. In these formulas `sign` is -1
to maximise, `l2` adds weight decay to the gradient, `decay` = 1 - lr * weight_decay shrinks the parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DTypeError, ShapeError
from ..storage import Layout
from .archetype import Update
from .table import Inferred, Op, Sample, Scalar, Spec, op

if TYPE_CHECKING:
    from ..tensor import Tensor

    Array = np.ndarray[Any, Any]

GRADIENT = ("g", "f32", "{sign} * {grads} + {l2} * {params}")
DECAYED = ("d", "f32", "{decay} * {params}")
SECOND = ("v", "f32", "{beta2} * {exp_avg_sqs} + {rest2} * {g} * {g}")
STEP = "{d} - {step_size} * {m}"


def _rule(written: tuple[str, ...], /, **args: Any) -> Inferred:
    """Outputs of an Update row: the written roles' tensors, role after role. Checks that roles match in number and shape."""
    lists = {n: v for n, v in args.items() if isinstance(v, tuple)}
    first = next(iter(lists))
    params: tuple[Layout, ...] = lists[first]
    for role, layouts in lists.items():
        if len(layouts) != len(params):
            raise ShapeError(f"{len(params)} {first} but {len(layouts)} {role}")
        for i, (p, t) in enumerate(zip(params, layouts, strict=True)):
            if t.shape != p.shape:
                raise ShapeError(f"{role}[{i}] has shape {list(t.shape)}, {first}[{i}] {list(p.shape)}")
            if not t.dtype.is_floating_point:
                raise DTypeError(f"{role}[{i}] is {t.dtype.name}; optimizers update floating point tensors")
    values = {n: v for n, v in args.items() if isinstance(v, Layout)}
    for name, v in values.items():
        if v.shape not in ((), (len(params),)) or not v.dtype.is_floating_point:
            raise ShapeError(f"{name} must hold one floating point number, or {len(params)}: one for each of {first}; got {v}")
    outputs = tuple(Spec(t.dtype, t.shape) for role in written for t in lists[role])
    given = (*(t for layouts in lists.values() for t in layouts), *values.values())
    return Inferred(outputs, tuple(t.dtype for t in given), {})


def _each(segment: Callable[..., tuple[Array, ...]], roles: int, values: int = 0) -> Callable[..., tuple[list[Array], ...]]:
    """The numpy reference of a row from that of one segment: lists (and values) in, a list of new arrays a written role out."""

    def ref(*args: Any, **kwargs: Any) -> tuple[list[Array], ...]:
        args = (*args, *kwargs.values())
        numbers, scalars = args[roles : roles + values], args[roles + values :]
        rows = [
            segment(*arrays, *(v[i] if np.ndim(v) else v for v in numbers), *scalars)
            for i, arrays in enumerate(zip(*args[:roles], strict=True))
        ]
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
    return update(Update(("params", "grads", *roles), statements, writes), **fields)


def update(archetype: Update, **fields: Any) -> Callable[[Any], Op]:
    """The decorator of an Update row."""
    written = tuple(archetype.writes)
    return op(archetype, rule=partial(_rule, written), mutates=written, public=False, method=False, torch=None, **fields)


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


# ---- RMSprop -----------------------------------------------------------------------------------------------------

SQUARE = ("v", "f32", "{alpha} * {square_avgs} + {rest} * {g} * {g}")
CENTRE = ("a", "f32", "{grad_avgs} + {rest} * ({g} - {grad_avgs})")
PLAIN = ("n", "f32", "{g} / (sqrt({v}) + {eps})")
CENTRED = ("n", "f32", "{g} / (sqrt_({v} - {a} * {a}) + {eps})")
HEAVY = ("b", "f32", "{momentum} * {momentum_buffers} + {n}")
_RMS = (0.1, -1.0, 0.01, 0.9, 0.1, 1e-8)


def _rms(p: Array, g: Array, v: Array, lr: float, sign: float, l2: float, alpha: float, rest: float, eps: float) -> tuple[Array, ...]:
    g = sign * g + l2 * p
    v = alpha * v + rest * g * g
    return p - lr * (g / (np.sqrt(v) + eps)), v


def _rms_momentum(
    p: Array, g: Array, v: Array, b: Array, lr: float, sign: float, l2: float, alpha: float, rest: float, eps: float, momentum: float
) -> tuple[Array, ...]:
    g = sign * g + l2 * p
    v = alpha * v + rest * g * g
    b = momentum * b + g / (np.sqrt(v) + eps)
    return p - lr * b, v, b


def _rms_centered(
    p: Array, g: Array, v: Array, a: Array, lr: float, sign: float, l2: float, alpha: float, rest: float, eps: float
) -> tuple[Array, ...]:
    g = sign * g + l2 * p
    v = alpha * v + rest * g * g
    a = a + rest * (g - a)
    return p - lr * (g / (np.sqrt(v - a * a) + eps)), v, a


def _rms_centered_momentum(
    p: Array, g: Array, v: Array, a: Array, b: Array,
    lr: float, sign: float, l2: float, alpha: float, rest: float, eps: float, momentum: float,
) -> tuple[Array, ...]:  # fmt: skip
    g = sign * g + l2 * p
    v = alpha * v + rest * g * g
    a = a + rest * (g - a)
    b = momentum * b + g / (np.sqrt(v - a * a) + eps)
    return p - lr * b, v, a, b


def _centred_samples(moments: int, *scalars: float) -> Callable[[], Sequence[Sample]]:
    """Samples in which the mean of squares exceeds the square of the mean, as it does for moments of real gradients."""

    def make() -> Sequence[Sample]:
        (sample,) = _samples(moments, *scalars)()
        params, grads, squares, means, *rest = sample.args
        return [Sample.of(params, grads, [v + a * a + np.float32(0.5) for v, a in zip(squares, means, strict=True)], means, *rest)]

    return make


@_update(
    ("square_avgs",), {"params": "p", "square_avgs": "v"}, GRADIENT, SQUARE, PLAIN, ("p", "f32", "{params} - {lr} * {n}"),
    ref=_each(_rms, 3), samples=_samples(1, *_RMS),
)  # fmt: skip
def rmsprop_update(
    params: Sequence[Tensor], grads: Sequence[Tensor], square_avgs: Sequence[Tensor],
    lr: Scalar, sign: Scalar, l2: Scalar, alpha: Scalar, rest: Scalar, eps: Scalar,
) -> Any:  # fmt: skip
    """v = alpha * v + rest * g^2, p -= lr * g / (sqrt(v) + eps); rest = 1 - alpha."""


@_update(
    ("square_avgs", "momentum_buffers"), {"params": "p", "square_avgs": "v", "momentum_buffers": "b"}, GRADIENT, SQUARE, PLAIN, HEAVY,
    ("p", "f32", "{params} - {lr} * {b}"), ref=_each(_rms_momentum, 4), samples=_samples(2, *_RMS, 0.9),
)  # fmt: skip
def rmsprop_momentum_update(
    params: Sequence[Tensor], grads: Sequence[Tensor], square_avgs: Sequence[Tensor], momentum_buffers: Sequence[Tensor],
    lr: Scalar, sign: Scalar, l2: Scalar, alpha: Scalar, rest: Scalar, eps: Scalar, momentum: Scalar,
) -> Any:  # fmt: skip
    """rmsprop_update with b = momentum * b + g / (sqrt(v) + eps), p -= lr * b."""


@_update(
    ("square_avgs", "grad_avgs"), {"params": "p", "square_avgs": "v", "grad_avgs": "a"}, GRADIENT, SQUARE, CENTRE, CENTRED,
    ("p", "f32", "{params} - {lr} * {n}"), ref=_each(_rms_centered, 4), samples=_centred_samples(2, *_RMS),
)  # fmt: skip
def rmsprop_centered_update(
    params: Sequence[Tensor], grads: Sequence[Tensor], square_avgs: Sequence[Tensor], grad_avgs: Sequence[Tensor],
    lr: Scalar, sign: Scalar, l2: Scalar, alpha: Scalar, rest: Scalar, eps: Scalar,
) -> Any:  # fmt: skip
    """rmsprop_update with the variance of the gradient, v - a^2, in the place of v; a += rest * (g - a)."""


@_update(
    ("square_avgs", "grad_avgs", "momentum_buffers"),
    {"params": "p", "square_avgs": "v", "grad_avgs": "a", "momentum_buffers": "b"}, GRADIENT, SQUARE, CENTRE, CENTRED, HEAVY,
    ("p", "f32", "{params} - {lr} * {b}"), ref=_each(_rms_centered_momentum, 5), samples=_centred_samples(3, *_RMS, 0.9),
)  # fmt: skip
def rmsprop_centered_momentum_update(
    params: Sequence[Tensor], grads: Sequence[Tensor], square_avgs: Sequence[Tensor], grad_avgs: Sequence[Tensor],
    momentum_buffers: Sequence[Tensor],
    lr: Scalar, sign: Scalar, l2: Scalar, alpha: Scalar, rest: Scalar, eps: Scalar, momentum: Scalar,
) -> Any:  # fmt: skip
    """rmsprop_centered_update with momentum."""


# ---- Adagrad, Adadelta, Lion -------------------------------------------------------------------------------------


def _adagrad(p: Array, g: Array, v: Array, lr: float, sign: float, l2: float, eps: float) -> tuple[Array, ...]:
    g = sign * g + l2 * p
    v = v + g * g
    return p - lr * (g / (np.sqrt(v) + eps)), v


def _adadelta(
    p: Array, g: Array, v: Array, u: Array, lr: float, sign: float, l2: float, rho: float, rest: float, eps: float
) -> tuple[Array, ...]:
    g = sign * g + l2 * p
    v = rho * v + rest * g * g
    d = np.sqrt(u + eps) / np.sqrt(v + eps) * g
    return p - lr * d, v, rho * u + rest * d * d


def _lion(
    p: Array, g: Array, m: Array, lr: float, sign: float, decay: float, beta1: float, rest1: float, beta2: float, rest2: float
) -> tuple[Array, ...]:
    g = sign * g
    return decay * p - lr * np.sign(beta1 * m + rest1 * g), beta2 * m + rest2 * g


@_update(
    ("sums",), {"params": "p", "sums": "v"}, GRADIENT, ("v", "f32", "{sums} + {g} * {g}"),
    ("p", "f32", "{params} - {lr} * ({g} / (sqrt({v}) + {eps}))"), ref=_each(_adagrad, 3), samples=_samples(1, 0.1, -1.0, 0.01, 1e-10),
)  # fmt: skip
def adagrad_update(
    params: Sequence[Tensor], grads: Sequence[Tensor], sums: Sequence[Tensor], lr: Scalar, sign: Scalar, l2: Scalar, eps: Scalar
) -> Any:
    """v += g^2, p -= lr * g / (sqrt(v) + eps). Source: Duchi et al. 2011."""


@_update(
    ("square_avgs", "acc_deltas"), {"params": "p", "square_avgs": "v", "acc_deltas": "u"}, GRADIENT,
    ("v", "f32", "{rho} * {square_avgs} + {rest} * {g} * {g}"), ("d", "f32", "sqrt({acc_deltas} + {eps}) / sqrt({v} + {eps}) * {g}"),
    ("u", "f32", "{rho} * {acc_deltas} + {rest} * {d} * {d}"), ("p", "f32", "{params} - {lr} * {d}"),
    ref=_each(_adadelta, 4), samples=_samples(2, 1.0, -1.0, 0.01, 0.9, 0.1, 1e-6),
)  # fmt: skip
def adadelta_update(
    params: Sequence[Tensor], grads: Sequence[Tensor], square_avgs: Sequence[Tensor], acc_deltas: Sequence[Tensor],
    lr: Scalar, sign: Scalar, l2: Scalar, rho: Scalar, rest: Scalar, eps: Scalar,
) -> Any:  # fmt: skip
    """v = rho * v + rest * g^2, d = g * sqrt(u + eps) / sqrt(v + eps), u = rho * u + rest * d^2, p -= lr * d. Source: arXiv:1212.5701."""


@_update(
    ("exp_avgs",), {"params": "p", "exp_avgs": "m"}, ("g", "f32", "{sign} * {grads}"),
    ("u", "f32", "{beta1} * {exp_avgs} + {rest1} * {g}"), ("m", "f32", "{beta2} * {exp_avgs} + {rest2} * {g}"),
    ("p", "f32", "{decay} * {params} - {lr} * select(sign({u}), {u}, is_nan({u}))"),
    ref=_each(_lion, 3), samples=_samples(1, 0.1, -1.0, 0.999, 0.9, 0.1, 0.99, 0.01),
)  # fmt: skip
def lion_update(
    params: Sequence[Tensor], grads: Sequence[Tensor], exp_avgs: Sequence[Tensor],
    lr: Scalar, sign: Scalar, decay: Scalar, beta1: Scalar, rest1: Scalar, beta2: Scalar, rest2: Scalar,
) -> Any:  # fmt: skip
    """p = decay * p - lr * sign(beta1 * m + rest1 * g), m = beta2 * m + rest2 * g; NaN stays NaN. Source: arXiv:2302.06675."""


# ---- further members of the Adam family --------------------------------------------------------------------------


def _adamax(
    p: Array, g: Array, m: Array, u: Array, step_size: float, sign: float, l2: float, rest1: float, beta2: float, eps: float
) -> tuple[Array, ...]:
    g = sign * g + l2 * p
    m = m + rest1 * (g - m)
    u = np.maximum(beta2 * u, np.abs(g) + eps)
    return p - step_size * (m / u), m, u


def _nadam(
    p: Array, g: Array, m: Array, v: Array,
    sign: float, l2: float, decay: float, rest1: float, beta2: float, rest2: float, now: float, before: float, scale: float, eps: float,
) -> tuple[Array, ...]:  # fmt: skip
    g = sign * g + l2 * p
    m = m + rest1 * (g - m)
    v = beta2 * v + rest2 * g * g
    return decay * p - (now * g + before * m) / (np.sqrt(v) * scale + eps), m, v


def _radam(
    p: Array, g: Array, m: Array, v: Array,
    sign: float, l2: float, decay: float, rest1: float, beta2: float, rest2: float, plain: float, rectified: float, eps: float,
) -> tuple[Array, ...]:  # fmt: skip
    g = sign * g + l2 * p
    m = m + rest1 * (g - m)
    v = beta2 * v + rest2 * g * g
    return decay * p - m * (rectified / (np.sqrt(v) + eps) if rectified > 0 else plain), m, v


@_update(
    ("exp_avgs", "exp_infs"), {"params": "p", "exp_avgs": "m", "exp_infs": "u"}, GRADIENT, FIRST,
    ("u", "f32", "nan_max({beta2} * {exp_infs}, abs({g}) + {eps})"), ("p", "f32", "{params} - {step_size} * ({m} / {u})"),
    ref=_each(_adamax, 4), samples=_samples(2, 0.02, 1.0, 0.01, 0.1, 0.999, 1e-8),
)  # fmt: skip
def adamax_update(
    params: Sequence[Tensor], grads: Sequence[Tensor], exp_avgs: Sequence[Tensor], exp_infs: Sequence[Tensor],
    step_size: Scalar, sign: Scalar, l2: Scalar, rest1: Scalar, beta2: Scalar, eps: Scalar,
) -> Any:  # fmt: skip
    """m += rest1 * (g - m), u = max(beta2 * u, |g| + eps), p -= step_size * m / u; step_size = lr / (1 - beta1^t).

    Source: arXiv:1412.6980.
    """


@_update(
    ("exp_avgs", "exp_avg_sqs"), {"params": "p", "exp_avgs": "m", "exp_avg_sqs": "v"}, GRADIENT, DECAYED, FIRST, SECOND,
    ("p", "f32", "{d} - ({now} * {g} + {before} * {m}) / (sqrt({v}) * {scale} + {eps})"),
    ref=_each(_nadam, 4), samples=_samples(2, 1.0, 0.01, 0.999, 0.1, 0.999, 0.001, 0.02, 0.03, 2.0, 1e-8),
)  # fmt: skip
def nadam_update(
    params: Sequence[Tensor], grads: Sequence[Tensor], exp_avgs: Sequence[Tensor], exp_avg_sqs: Sequence[Tensor],
    sign: Scalar, l2: Scalar, decay: Scalar, rest1: Scalar, beta2: Scalar, rest2: Scalar, now: Scalar, before: Scalar, scale: Scalar,
    eps: Scalar,
) -> Any:  # fmt: skip
    """m and v as adam_update's, p = decay * p - (now * g + before * m) / (sqrt(v) * scale + eps).

    now = lr * (1 - mu_t) / (1 - mu_1 ... mu_t), before = lr * mu_t+1 / (1 - mu_1 ... mu_t+1), scale = 1 / sqrt(1 - beta2^t).
    Source: Dozat 2016, Incorporating Nesterov Momentum into Adam.
    """


@_update(
    ("exp_avgs", "exp_avg_sqs"), {"params": "p", "exp_avgs": "m", "exp_avg_sqs": "v"}, GRADIENT, DECAYED, FIRST, SECOND,
    ("p", "f32", "{d} - {m} * select({plain}, {rectified} / (sqrt({v}) + {eps}), {rectified} > 0.0)"),
    ref=_each(_radam, 4), samples=lambda: [
        *_samples(2, 1.0, 0.01, 0.999, 0.1, 0.999, 0.001, 0.02, 0.0, 1e-8)(),
        *_samples(2, 1.0, 0.01, 0.999, 0.1, 0.999, 0.001, 0.02, 0.03, 1e-8)(),
    ],
)  # fmt: skip
def radam_update(
    params: Sequence[Tensor], grads: Sequence[Tensor], exp_avgs: Sequence[Tensor], exp_avg_sqs: Sequence[Tensor],
    sign: Scalar, l2: Scalar, decay: Scalar, rest1: Scalar, beta2: Scalar, rest2: Scalar, plain: Scalar, rectified: Scalar, eps: Scalar,
) -> Any:  # fmt: skip
    """m and v as adam_update's, p = decay * p - m * (rectified / (sqrt(v) + eps) where rectified > 0, else plain).

    Source: arXiv:1908.03265.
    """


# ---- Rprop -------------------------------------------------------------------------------------------------------


def _rprop(p: Array, g: Array, b: Array, s: Array, sign: float, down: float, up: float, low: float, high: float) -> tuple[Array, ...]:
    g = sign * g
    turned = g * b
    s = np.clip(s * np.where(turned > 0, up, np.where(turned < 0, down, 1.0)), low, high)
    g = np.where(turned < 0, 0.0, g)
    return p - np.sign(g) * s, g, s


@_update(
    ("prevs", "step_sizes"), {"params": "p", "prevs": "n", "step_sizes": "s"}, ("g", "f32", "{sign} * {grads}"),
    ("t", "f32", "{g} * {prevs}"),
    ("s", "f32", "min(max({step_sizes} * select(select(1.0, {up}, {t} > 0.0), {down}, {t} < 0.0), {low}), {high})"),
    ("n", "f32", "select({g}, 0.0, {t} < 0.0)"), ("p", "f32", "{params} - select(sign({n}), {n}, is_nan({n})) * {s}"),
    ref=_each(_rprop, 4), samples=_samples(2, 1.0, 0.5, 1.2, 1e-6, 50.0),
)  # fmt: skip
def rprop_update(
    params: Sequence[Tensor], grads: Sequence[Tensor], prevs: Sequence[Tensor], step_sizes: Sequence[Tensor],
    sign: Scalar, down: Scalar, up: Scalar, low: Scalar, high: Scalar,
) -> Any:  # fmt: skip
    """Each element's step grows by `up` while its gradient keeps its sign; where it turns, the step shrinks by `down` and is left out.
    Source: Riedmiller and Braun 1993."""


# ---- averages of parameters --------------------------------------------------------------------------------------


def _average(p: Array, q: Array, weight: Any) -> tuple[Array, ...]:
    return (np.where(weight < 0.5, p + weight * (q - p), q - (1.0 - weight) * (q - p)).astype(p.dtype),)


@update(
    Update(
        ("averages", "params"),
        (
            ("d", "f32", "{params} - {averages}"),
            ("m", "f32", "select({params} - (1.0 - {weight}) * {d}, {averages} + {weight} * {d}, {weight} < 0.5)"),
        ),
        {"averages": "m"},
        ("weight",),
    ),
    ref=_each(_average, 2, 1),
    samples=lambda: [
        Sample.of(*_samples(0)()[0].args, np.float32(0.25)), Sample.of(*_samples(0)()[0].args, np.array([0.25, 0.9, 1.0], np.float32)),
    ],
)  # fmt: skip
def average_update(averages: Sequence[Tensor], params: Sequence[Tensor], weight: Tensor) -> Any:
    """averages += weight * (params - averages), as lerp: weight 1 copies exactly. `weight`: [] or one for each."""


def scalar_count(row: Op) -> int:
    """How many scalars a step of this row takes."""
    return sum(bool(p.scalar) for p in row.params)
