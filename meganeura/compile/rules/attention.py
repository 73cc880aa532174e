"""Attention that code spelled out: softmax(q @ k.T * scale + mask) @ v, with the scale and the mask in the usual places.

Fires where nobody else reads the weights, so a training step, whose backward pass does, keeps its products. Where a mask hides
all keys of a query, the spelling gives NaN, and so does the row then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ...dtype import bool_
from ...ops.attention import attention_row
from ...ops.matmul import batched_matmul
from ...ops.norm import softmax_row
from ...ops.pointwise import where
from ...shape import Shape, broadcast_shapes
from ..rule import Number, Rule

if TYPE_CHECKING:
    from ...tensor import Tensor

Pair = tuple[Any, Any]
Spelling = Callable[..., Any]

_SCALES: dict[str, tuple[Spelling, Spelling]] = {  # scores from q, k.T and the number; the scale from the number
    "scaled": (lambda q, kt, scale: batched_matmul(q, kt) * scale, lambda scale: scale),
    "divided": (lambda q, kt, scale: batched_matmul(q, kt) / scale, lambda scale: 1.0 / scale),
    "scaled_query": (lambda q, kt, scale: batched_matmul(q * scale, kt), lambda scale: scale),
}
_MASKS: dict[str, tuple[Spelling, Spelling]] = {  # masked scores; the row's mask
    "added": (lambda s, mask: s + mask, lambda mask: mask),
    "seen": (lambda s, mask: where(mask, s, -math.inf), lambda mask: mask),
    "hidden": (lambda s, mask: where(mask, -math.inf, s), lambda mask: mask.logical_not()),
}


def _row(q: Any, kt: Any, v: Any, mask: Any, scale: Any) -> Any:
    """The row on three or four dimensions."""
    q, k, v = ((x if x.ndim == 4 else x.unsqueeze(0)) for x in (q, kt.transpose(-2, -1), v))
    if mask is not None:
        mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    return attention_row([q, k, v], mask, None, scale, False, 0, 0, mask is not None)[0]


def _matrices(q: Any, kt: Any, v: Any, **_: Any) -> bool:
    """Whether these are heads of one batch, of a floating dtype and not empty."""
    same = q.shape[:-2] == kt.shape[:-2] == v.shape[:-2] and q.dtype is kt.dtype is v.dtype
    return same and q.ndim in (3, 4) and q.dtype.is_floating_point and bool(q.numel() and kt.numel() and v.numel())


def _masked(kind: str) -> Callable[..., bool]:
    def guard(q: Any, kt: Any, v: Any, mask: Any, **numbers: Any) -> bool:
        if not _matrices(q, kt, v) or mask.ndim > q.ndim:
            return False
        scores = (*q.shape[:-1], kt.shape[-1])
        fits = broadcast_shapes(mask.shape, scores) == scores
        return fits and (mask.dtype.kind == "b" if kind != "added" else mask.dtype in (q.dtype,))

    return guard


def _turned(shape: Shape, **_: Any) -> Shape:
    return shape if len(shape) < 2 else (*shape[:-2], shape[-1], shape[-2] + 1)


def _under(shape: Shape, **_: Any) -> Shape:
    return shape if len(shape) < 2 else (*shape[:-2], shape[-2] + 1, shape[-1])


def _scores(shape: Shape, **_: Any) -> Shape:
    return shape if len(shape) < 2 else (*shape[:-1], shape[-2] + 1)


_OPERANDS = {"kt": _turned, "v": _under}


def _finished(out: Any, q: Any) -> Any:
    return out if q.ndim == 4 else out.squeeze(0)


def _with_mask(spelled: Spelling, scale_of: Spelling, masked: Spelling, mask_of: Spelling) -> Callable[..., Pair]:
    def pair(q: Tensor, kt: Tensor, v: Tensor, mask: Tensor, *, scale: Number) -> Pair:
        left = batched_matmul(softmax_row(masked(spelled(q, kt, scale), mask), -1), v)
        return left, _finished(_row(q, kt, v, mask_of(mask), scale_of(scale)), q)

    return pair


def _without_mask(spelled: Spelling, scale_of: Spelling) -> Callable[..., Pair]:
    def pair(q: Tensor, kt: Tensor, v: Tensor, *, scale: Number) -> Pair:
        return batched_matmul(softmax_row(spelled(q, kt, scale), -1), v), _finished(_row(q, kt, v, None, scale_of(scale)), q)

    return pair


def _plain(q: Tensor, kt: Tensor, v: Tensor) -> Pair:
    return batched_matmul(softmax_row(batched_matmul(q, kt), -1), v), _finished(_row(q, kt, v, None, 1.0), q)


def _rules() -> Iterator[Rule]:
    for name, (spelled, scale_of) in _SCALES.items():
        for kind, (masked, mask_of) in _MASKS.items():
            pair = _with_mask(spelled, scale_of, masked, mask_of)
            dtypes = {} if kind == "added" else {"mask": bool_}
            yield Rule(pair, _masked(kind), {**_OPERANDS, "mask": _scores}, name=f"attention_{name}_{kind}", dtypes=dtypes)
        yield Rule(_without_mask(spelled, scale_of), _matrices, _OPERANDS, name=f"attention_{name}")
    yield Rule(_plain, _matrices, _OPERANDS, name="attention_plain")


RULES: tuple[Rule, ...] = tuple(_rules())
