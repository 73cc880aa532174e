"""Convolutions: three rows that are the three gradients of one trilinear form, and PyTorch's functions over them.

    sum over n, g, m, c, t, y of  out[n, g, m, y] * weight[g, m, c, t] * input[n, g, c, y * stride + t * dilation - padding]

conv is its gradient by `out`, conv_input (also the transposed convolution) by `input`, conv_weight by `weight`; so each
row's gradients are the other two. What lies outside the input counts as zero. Every row takes 1 to 3 spatial dimensions,
and `size`, the spatial sizes of its result, which decides how much padding there is at the far end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DTypeError, ShapeError
from ..shape import Shape, numel
from ..storage import Layout
from .archetype import Conv
from .table import Sample, Spec, op

if TYPE_CHECKING:
    from ..tensor import Tensor


# --- numpy references -------------------------------------------------------------------------------------------------


def _taps(kernel: Sequence[int]) -> Any:
    return np.ndindex(*kernel)


def _window(x: Any, t: Sequence[int], size: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Any:
    """The elements of a bordered array that tap t of a kernel meets. [..., *bordered] -> [..., *size]."""
    cuts = [slice(i * d, i * d + (n - 1) * s + 1, s) if n else slice(0, 0) for i, n, s, d in zip(t, size, stride, dilation, strict=True)]
    return x[(..., *cuts)]


def _reach(size: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """Elements from the first that the kernel meets to the last, along each dimension."""
    return [max(n - 1, 0) * s + max(k - 1, 0) * d + 1 for n, k, s, d in zip(size, kernel, stride, dilation, strict=True)]


def _bordered(x: Any, reach: Sequence[int], padding: Sequence[int]) -> Any:
    """x with zeros in front (or cut off) and at the end, so that it is `reach` long along the last dimensions."""
    lead = x.ndim - len(reach)
    out = np.zeros((*x.shape[:lead], *reach), x.dtype)
    places = [slice(min(max(p, 0), r), min(max(p + n, 0), r)) for n, p, r in zip(x.shape[lead:], padding, reach, strict=True)]
    taken = [slice(w.start - p, w.stop - p) for w, p in zip(places, padding, strict=True)]
    to: Any = (..., *places)
    out[to] = x[(..., *taken)]
    return out


def _grouped(x: Any, dim: int, groups: int) -> Any:
    """Dimension `dim` split into groups and the rest."""
    return x.reshape(*x.shape[:dim], groups, x.shape[dim] // groups, *x.shape[dim + 1 :])


def _conv_ref(input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int, size: Any) -> Any:
    kernel = weight.shape[2:]
    x = _grouped(_bordered(input, _reach(size, kernel, stride, dilation), padding), 1, groups)
    w = _grouped(weight, 0, groups)
    out = np.zeros((input.shape[0], groups, w.shape[1], *size), np.result_type(input, weight))
    for t in _taps(kernel):
        out += np.einsum("ngc...,gmc->ngm...", _window(x, t, size, stride, dilation), w[(..., *t)])
    out = out.reshape(input.shape[0], weight.shape[0], *size)
    return out if bias is None else out + bias.reshape(-1, *[1] * len(size))


def _conv_input_ref(input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int, size: Any) -> Any:
    kernel, spatial = weight.shape[2:], input.shape[2:]
    o, w = _grouped(input, 1, groups), _grouped(weight, 0, groups)
    reach = _reach(spatial, kernel, stride, dilation)
    wide = np.zeros((input.shape[0], groups, w.shape[2], *reach), np.result_type(input, weight))
    for t in _taps(kernel):
        _window(wide, t, spatial, stride, dilation)[...] += np.einsum("ngm...,gmc->ngc...", o, w[(..., *t)])
    out = _bordered(wide.reshape(input.shape[0], groups * w.shape[2], *reach), size, [-p for p in padding])
    return out if bias is None else out + bias.reshape(-1, *[1] * len(size))


def _conv_weight_ref(input: Any, grad_out: Any, stride: Any, padding: Any, dilation: Any, groups: int, size: Any) -> Any:
    spatial = grad_out.shape[2:]
    x = _grouped(_bordered(input, _reach(spatial, size, stride, dilation), padding), 1, groups)
    o = _grouped(grad_out, 1, groups)
    out = np.zeros((groups, o.shape[2], x.shape[2], *size), np.result_type(input, grad_out))
    for t in _taps(size):
        seen = _window(x, t, spatial, stride, dilation)
        flat = (*seen.shape[:3], numel(spatial))
        out[(..., *t)] = np.einsum("ngcy,ngmy->gmc", seen.reshape(flat), o.reshape(*o.shape[:3], numel(spatial)))
    return out.reshape(grad_out.shape[1], x.shape[2], *size)


# --- rules --------------------------------------------------------------------------------------------------------------


def _check(rank: int, dtypes: Sequence[Layout | None], **numbers: Any) -> None:
    """Dtypes are one floating point dtype, and per-axis attributes have one number an axis."""
    present = [x for x in dtypes if x is not None]
    if not present[0].dtype.is_floating_point or any(x.dtype is not present[0].dtype for x in present):
        kinds = ", ".join(str(x) for x in present)
        raise DTypeError(f"a convolution takes tensors of one floating point dtype, got {kinds}; convert them with .float() or .to(dtype)")
    for name, value in numbers.items():
        if len(value) != rank or (name != "padding" and min(value) < 1):
            raise ShapeError(f"{name}={tuple(value)} does not fit {rank} spatial dimensions")


def _spatial(input: Layout, weight: Layout) -> int:
    rank = len(input.shape) - 2
    if not 1 <= rank <= 3 or len(weight.shape) != rank + 2:
        raise ShapeError(
            f"expected [N, C, 1 to 3 dimensions] and a weight of as many, got shapes {list(input.shape)} and {list(weight.shape)}"
        )
    return rank


def _bias_fits(bias: Layout | None, channels: int) -> None:
    if bias is not None and bias.shape != (channels,):
        raise ShapeError(f"the bias must have shape [{channels}], one value an output channel, got {list(bias.shape)}")


def _conv_rule(
    input: Layout, weight: Layout, bias: Layout | None, stride: Shape, padding: Shape, dilation: Shape, groups: int, size: Shape
) -> Spec:
    _check(_spatial(input, weight), (input, weight, bias), stride=stride, padding=padding, dilation=dilation)
    if groups < 1 or input.shape[1] != weight.shape[1] * groups or weight.shape[0] % groups:
        raise ShapeError(
            f"a weight of shape {list(weight.shape)} with groups={groups} takes {weight.shape[1] * groups} input channels and makes a "
            f"multiple of {groups}, got an input of shape {list(input.shape)}"
        )
    _bias_fits(bias, weight.shape[0])
    return Spec(input.dtype, (input.shape[0], weight.shape[0], *size))


def _conv_input_rule(
    input: Layout, weight: Layout, bias: Layout | None, stride: Shape, padding: Shape, dilation: Shape, groups: int, size: Shape
) -> Spec:
    _check(_spatial(input, weight), (input, weight, bias), stride=stride, padding=padding, dilation=dilation)
    if groups < 1 or input.shape[1] != weight.shape[0] or weight.shape[0] % groups:
        raise ShapeError(
            f"a transposed weight of shape {list(weight.shape)} with groups={groups} takes {weight.shape[0]} input channels, a multiple of "
            f"{groups}, got an input of shape {list(input.shape)}"
        )
    _bias_fits(bias, weight.shape[1] * groups)
    return Spec(input.dtype, (input.shape[0], weight.shape[1] * groups, *size))


def _conv_weight_rule(input: Layout, grad_out: Layout, stride: Shape, padding: Shape, dilation: Shape, groups: int, size: Shape) -> Spec:
    _check(_spatial(input, grad_out), (input, grad_out), stride=stride, padding=padding, dilation=dilation)
    if groups < 1 or input.shape[0] != grad_out.shape[0] or input.shape[1] % groups or grad_out.shape[1] % groups:
        raise ShapeError(
            f"shapes {list(input.shape)} and {list(grad_out.shape)} are no input and output of a convolution of {groups} groups"
        )
    return Spec(input.dtype, (grad_out.shape[1], input.shape[1] // groups, *size))


# --- gradients ----------------------------------------------------------------------------------------------------------


def _over_channels(grad: Tensor) -> Any:
    """The gradient of a bias. [N, C, *] -> [C]."""
    return grad.sum((0, *range(2, grad.ndim)))


def _f32(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype(np.float32)


def _conv_samples() -> list[Sample]:
    return [
        Sample.of(_f32(2, 3, 7, 6), _f32(4, 3, 3, 3), _f32(4), (1, 1), (1, 1), (1, 1), 1, (7, 6)),
        Sample.of(_f32(1, 4, 9, 8), _f32(6, 2, 3, 2), None, (2, 1), (1, 0), (1, 2), 2, (5, 6)),
        Sample.of(_f32(2, 3, 8), _f32(2, 3, 1), _f32(2), (1,), (0,), (1,), 1, (8,)),
        Sample.of(_f32(1, 2, 3, 4, 5), _f32(3, 2, 2, 3, 3), None, (1, 2, 1), (0, 1, 1), (1, 1, 1), 1, (2, 2, 5)),
        Sample.of(_f32(2, 5, 6, 5), _f32(5, 1, 3, 3), _f32(5), (1, 1), (1, 1), (1, 1), 5, (6, 5)),
    ]


def _conv_input_samples() -> list[Sample]:
    return [
        Sample.of(_f32(2, 4, 5, 6), _f32(4, 3, 3, 3), _f32(3), (1, 1), (1, 1), (1, 1), 1, (5, 6)),
        Sample.of(_f32(1, 4, 4, 5), _f32(4, 3, 3, 2), None, (2, 3), (1, 0), (1, 1), 2, (7, 15)),
        Sample.of(_f32(2, 3, 4), _f32(3, 2, 4), _f32(2), (2,), (1,), (3,), 1, (14,)),
        Sample.of(_f32(1, 2, 2, 3, 2), _f32(2, 3, 2, 2, 3), None, (1, 2, 1), (0, 0, 1), (1, 1, 1), 1, (3, 6, 2)),
    ]


def _conv_weight_samples() -> list[Sample]:
    return [
        Sample.of(_f32(2, 3, 7, 6), _f32(2, 4, 7, 6), (1, 1), (1, 1), (1, 1), 1, (3, 3)),
        Sample.of(_f32(1, 4, 9, 8), _f32(1, 6, 5, 6), (2, 1), (1, 0), (1, 2), 2, (3, 2)),
        Sample.of(_f32(2, 3, 8), _f32(2, 2, 8), (1,), (0,), (1,), 1, (1,)),
        Sample.of(_f32(1, 2, 3, 4, 5), _f32(1, 3, 2, 2, 5), (1, 2, 1), (0, 1, 1), (1, 1, 1), 1, (2, 3, 3)),
        Sample.of(_f32(2, 5, 6, 5), _f32(2, 5, 6, 5), (1, 1), (1, 1), (1, 1), 5, (3, 3)),
    ]


@op(
    Conv("output"),
    ref=_conv_ref,
    rule=_conv_rule,
    grad={
        "input": lambda grad, weight, input_meta, stride, padding, dilation, groups: conv_input(
            grad, weight, None, stride, padding, dilation, groups, input_meta.shape[2:]
        ),
        "weight": lambda grad, input, weight_meta, stride, padding, dilation, groups: conv_weight(
            input, grad, stride, padding, dilation, groups, weight_meta.shape[2:]
        ),
        "bias": lambda grad: _over_channels(grad),
    },
    samples=_conv_samples,
    public=False,
    torch=None,
    shown="convolution",
)
def conv(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: Shape, padding: Shape, dilation: Shape, groups: int, size: Shape
) -> Tensor:
    """Convolution (correlation), float32 accumulation. `padding`: zeros in front.
    [N, C, *in], [M, C / groups, *kernel], [M] -> [N, M, *size]."""


@op(
    Conv("input"),
    ref=_conv_input_ref,
    rule=_conv_input_rule,
    grad={
        "input": lambda grad, weight, input_meta, stride, padding, dilation, groups: conv(
            grad, weight, None, stride, padding, dilation, groups, input_meta.shape[2:]
        ),
        "weight": lambda grad, input, weight_meta, stride, padding, dilation, groups: conv_weight(
            grad, input, stride, padding, dilation, groups, weight_meta.shape[2:]
        ),
        "bias": lambda grad: _over_channels(grad),
    },
    samples=_conv_input_samples,
    public=False,
    torch=None,
    shown="transposed convolution",
)
def conv_input(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: Shape, padding: Shape, dilation: Shape, groups: int, size: Shape
) -> Tensor:
    """What a convolution's input gets from its output's gradient: the transposed convolution.
    [N, M, *out], [M, C / groups, *kernel], [C] -> [N, C, *size]."""


@op(
    Conv("weight"),
    ref=_conv_weight_ref,
    rule=_conv_weight_rule,
    grad={
        "input": lambda grad, input_meta, grad_out, stride, padding, dilation, groups: conv_input(
            grad_out, grad, None, stride, padding, dilation, groups, input_meta.shape[2:]
        ),
        "grad_out": lambda grad, input, grad_out_meta, stride, padding, dilation, groups: conv(
            input, grad, None, stride, padding, dilation, groups, grad_out_meta.shape[2:]
        ),
    },
    samples=_conv_weight_samples,
    public=False,
    torch=None,
    shown="convolution weight gradient",
)
def conv_weight(input: Tensor, grad_out: Tensor, stride: Shape, padding: Shape, dilation: Shape, groups: int, size: Shape) -> Tensor:
    """What a convolution's weight gets from its output's gradient. [N, C, *in], [N, M, *out] -> [M, C / groups, *size]."""
