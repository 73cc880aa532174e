"""Attention: one row for the product of softmax weights and values without the weights, its gradient, and the functions on top.

Queries [B, H, L, E] meet keys [B, Hk, S, E] and values [B, Hk, S, D]; H is a multiple of Hk, and neighbouring heads share keys
(grouped queries). Query i stands at place = offset + position + i, key j at j:
causal: keys up to the place. window w > 0: keys after place - w and, unless causal, before place + w.
A query that sees no key gives 0, on every path and device; it and queries whose scores all lie below -1e37 (masks of the least
float) have no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..dispatch import is_grad_enabled
from ..dtype import float32, int64
from ..errors import DTypeError, ShapeError
from ..provenance import site
from ..shape import broadcast_shapes, numel
from ..storage import Layout
from .archetype import Kernel
from .creation import ramp
from .distributions import dropout
from .matmul import batched_matmul
from .norm import softmax_row
from .pointwise import where
from .table import Inferred, Sample, Scalar, Spec, composite, op

if TYPE_CHECKING:
    from ..tensor import Tensor


def _rule(
    qkv: Sequence[Layout], mask: Layout | None, position: Layout | None, scale: Any, causal: bool, window: int, offset: int,
    undefined: bool = False,
) -> Inferred:  # fmt: skip
    q, k, v = qkv
    _check_operands(q, k, v)
    batch, heads, rows, _ = q.shape
    if mask is not None:
        if broadcast_shapes(mask.shape, (batch, heads, rows, k.shape[2])) != (batch, heads, rows, k.shape[2]):
            raise ShapeError(f"mask of shape {list(mask.shape)} does not fit scores {[batch, heads, rows, k.shape[2]]}")
        if mask.dtype.kind not in "bf":
            raise DTypeError(f"an attention mask must be bool or floating point, got {mask.dtype.name}")
    if position is not None and (position.dtype.kind not in "iu" or position.shape not in ((), (1,), (batch,))):
        raise ShapeError(f"position must be whole numbers of shape [] or [{batch}], got {position!r}")
    if window < 0:
        raise ShapeError(f"window must be positive, or 0 for none, got {window}")
    outs = (Spec(q.dtype, (batch, heads, rows, v.shape[3])), Spec(float32, (batch, heads, rows)))
    present = [x.dtype for x in (*qkv, mask, position) if x is not None]
    attrs = {"causal": bool(causal), "window": int(window), "offset": int(offset), "undefined": bool(undefined)}
    return Inferred(outs, tuple(present), attrs)


def _check_operands(q: Layout, k: Layout, v: Layout) -> None:
    shapes = f"query {list(q.shape)}, key {list(k.shape)}, value {list(v.shape)}"
    if any(len(x.shape) != 4 for x in (q, k, v)):
        raise ShapeError(f"attention expects [B, H, L, E]: {shapes}")
    if not (q.dtype is k.dtype is v.dtype) or not q.dtype.is_floating_point:
        raise DTypeError(f"attention expects one floating point dtype, got {q.dtype.name}, {k.dtype.name}, {v.dtype.name}")
    if q.shape[0] != k.shape[0] or k.shape[:3] != v.shape[:3] or q.shape[3] != k.shape[3] or not q.shape[3]:
        raise ShapeError(f"attention: shapes do not fit: {shapes}")
    if not k.shape[1] or q.shape[1] % k.shape[1]:
        raise ShapeError(f"attention: the heads of the query must be a multiple of the key's: {shapes}")


# ---- numpy ----


def _scores_ref(q: Any, k: Any, mask: Any, position: Any, scale: float, causal: bool, window: int, offset: int) -> Any:
    """Scores [B, H, L, S], -inf for keys out of sight."""
    s = np.matmul(q, np.swapaxes(np.repeat(k, q.shape[1] // k.shape[1], 1), -1, -2)) * scale
    low = np.asarray(-np.inf, s.dtype)
    if mask is not None:
        s = np.where(mask, s, low) if mask.dtype == np.bool_ else s + mask
    start = 0 if position is None else np.reshape(position, (-1, 1, 1, 1)).astype(np.int64)
    place, col = np.arange(q.shape[2])[:, None] + offset + start, np.arange(k.shape[2])
    if causal:
        s = np.where(col <= place, s, low)
    if window:
        s = np.where((col > place - window) & (col < place + window), s, low)
    return s


def _ref(qkv: Any, mask: Any, position: Any, scale: float, causal: bool, window: int, offset: int, undefined: bool = False) -> Any:
    q, k, v = qkv
    s = _scores_ref(q, k, mask, position, scale, causal, window, offset)
    top = np.max(s, -1, keepdims=True, initial=-np.inf)
    e = np.exp(s - np.where(top == -np.inf, 0, top))
    total = e.sum(-1, keepdims=True)
    alive = total != 0
    total = np.where(alive, total, 1)
    lse = np.where(alive, np.log(total) + top, -np.inf)[..., 0]
    out = np.matmul(e / total, np.repeat(v, q.shape[1] // v.shape[1], 1))
    return np.where(alive | (not undefined), out, np.nan), lse


def _grad_ref(
    grad: Any, qkv: Any, out: Any, lse: Any, mask: Any, position: Any, scale: float, causal: bool, window: int, offset: int
) -> Any:
    q, k, v = qkv
    group = q.shape[1] // k.shape[1]
    s = _scores_ref(q, k, mask, position, scale, causal, window, offset)
    w = np.exp(s - np.where(lse == -np.inf, np.inf, lse)[..., None])
    dp = np.matmul(grad, np.swapaxes(np.repeat(v, group, 1), -1, -2))
    ds = w * (dp - np.sum(grad * out, -1, keepdims=True)) * scale

    def over_group(x: Any) -> Any:
        return x.reshape(x.shape[0], k.shape[1], group, *x.shape[2:]).sum(2)

    dk, dv = np.matmul(np.swapaxes(ds, -1, -2), q), np.matmul(np.swapaxes(w, -1, -2), grad)
    return np.matmul(ds, np.repeat(k, group, 1)), over_group(dk), over_group(dv)


# ---- the same in plain ops: for dropout, weights that are asked for, gradients of masks and of gradients ----


def _seen(rows: int, keys: int, position: Any, causal: bool, window: int, offset: int) -> Any:
    """Which keys a query may see, [.., L, S] bool, or None: all."""
    if not causal and not window:
        return None
    place = ramp(offset, 1, (rows,), int64).reshape((rows, 1))
    if position is not None:
        place = place + position.to(int64).reshape((-1, 1, 1, 1))
    col = ramp(0, 1, (keys,), int64)
    seen = col <= place if causal else col < place + window
    return seen & (col > place - window) if window else seen


def attention_weights(q: Any, k: Any, mask: Any, position: Any, scale: float, causal: bool, window: int, offset: int) -> Any:
    """The weights in float32, by plain ops. [B, H, L, E], [B, Hk, S, E] -> [B, H, L, S]."""
    (batch, heads, rows, size), (_, kv, keys, _) = q.shape, k.shape
    a = q.to(float32).reshape((batch, kv, heads // kv * rows, size))
    s = (batched_matmul(a, k.to(float32).transpose(-2, -1)) * scale).reshape((batch, heads, rows, keys))
    seen = _seen(rows, keys, position, causal, window, offset)
    if mask is not None and mask.dtype.kind == "b":
        seen = mask if seen is None else mask & seen
    elif mask is not None:
        s = s + mask
    if seen is not None:
        s = where(seen, s, -math.inf)
    if mask is None and not window and position is None and offset >= 0:
        return softmax_row(s, -1)  # every query sees the first key
    alive = s.detach().amax(-1, True) != -math.inf
    return softmax_row(where(alive, s, 0.0), -1) * alive.to(float32)


def _values(w: Any, v: Any) -> Any:
    """Weights [B, H, L, S] times values [B, Hk, S, D] -> [B, H, L, D]."""
    (batch, heads, rows, keys), kv = w.shape, v.shape[1]
    out = batched_matmul(w.reshape((batch, kv, heads // kv * rows, keys)), v.to(w.dtype))
    return out.reshape((batch, heads, rows, v.shape[3]))


def _backward_in_ops(
    grad: Any, qkv: Any, mask: Any, position: Any, scale: float, causal: bool, window: int, offset: int
) -> tuple[Any, Any, Any]:
    q, k, v = (x.to(float32) for x in qkv)
    (batch, heads, rows, size), (_, kv, keys, _) = q.shape, k.shape
    merged = (batch, kv, heads // kv * rows)
    w = attention_weights(q, k, mask, position, scale, causal, window, offset).reshape((*merged, keys))
    g = grad.to(float32).reshape((*merged, v.shape[3]))
    dp = batched_matmul(g, v.transpose(-2, -1))
    ds = w * (dp - (w * dp).sum(-1, True)) * scale
    dq = batched_matmul(ds, k).reshape(q.shape)
    dk = batched_matmul(ds.transpose(-2, -1), q.reshape((*merged, size)))
    return dq, dk, batched_matmul(w.transpose(-2, -1), g)


def _backward(
    grad: Any, qkv: Any, result: Any, result1: Any, mask: Any, position: Any, scale: float, causal: bool, window: int, offset: int
) -> Any:
    """Gradients of query, key and value, which are computed together."""
    if is_grad_enabled():
        return _backward_in_ops(grad, qkv, mask, position, scale, causal, window, offset)
    return attention_grad_row(grad, qkv, result, result1, mask, position, scale, causal, window, offset)


# ---- rows ----


def _draw(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _qkv(b: int, h: int, kv: int, rows: int, keys: int, e: int, d: int) -> list[Any]:
    return [_draw(1, b, h, rows, e), _draw(2, b, kv, keys, e), _draw(3, b, kv, keys, d)]


def _samples() -> list[Sample]:
    some = np.random.default_rng(5).integers(0, 4, (2, 1, 3, 5)) > 0
    some[1, 0, 2] = False
    return [
        Sample.of(_qkv(1, 1, 1, 3, 4, 2, 2), None, None, 0.7, False, 0, 0),
        Sample.of(_qkv(1, 2, 1, 3, 3, 2, 3), None, None, 0.5, True, 0, 0),
        Sample.of(_qkv(2, 2, 2, 3, 5, 2, 1), some, None, 0.5, False, 0, 0),
        Sample.of(_qkv(2, 2, 2, 3, 5, 2, 1), _draw(6, 3, 5), None, 0.5, False, 0, 0, True),
        Sample.of(_qkv(1, 2, 1, 4, 4, 2, 2), _draw(6, 4, 4), None, 0.5, True, 2, 0),
        Sample.of(_qkv(2, 4, 2, 9, 17, 8, 12), None, np.array([3, 8]), 0.3, True, 0, 0),
        Sample.of(_qkv(1, 3, 3, 33, 40, 32, 16), _draw(6, 1, 3, 33, 40), None, 0.2, False, 7, 7),
        Sample.of(_qkv(1, 4, 2, 1, 70, 64, 64), None, np.array(41), 0.125, True, 0, 0),
    ]


def _known(qkv: Sequence[Any], mask: Any, position: Any, causal: bool, window: int, offset: int, **rest: Any) -> Mapping[str, Any] | None:
    """A mask that hides the keys behind a query's own place needs no reading: that is `causal`. (Not one that is added: what it
    hides may be NaN, which a sum keeps.)"""
    area = (qkv[0].layout.shape[2], qkv[1].layout.shape[2])
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape[-2:] != area or area[0] < 2:
        return None
    if causal or window or offset or position is not None or (mask != np.tri(*area, dtype=np.bool_)).any():
        return None
    return {"mask": None, "causal": True, "undefined": False}


@op(
    Kernel("attention", anywhere=(0,)),
    rule=_rule,
    ref=_ref,
    known=_known,
    grad={"qkv": _backward},
    differentiable=(True, False),
    samples=_samples,
    public=False,
    torch=None,
    shown="attention",
)
def attention_row(
    qkv: Sequence[Tensor],
    mask: Tensor | None,
    position: Tensor | None,
    scale: Scalar,
    causal: bool = False,
    window: int = 0,
    offset: int = 0,
    undefined: bool = False,
) -> Tensor:
    """softmax(query @ key.T * scale + mask) @ value without its weights in memory, and log(sum(exp(scores))) a row, float32.

    A row that sees no key is 0 or, where `undefined`, NaN as the softmax of nothing is.

    qkv: [B, H, L, E], [B, Hk, S, E], [B, Hk, S, D]; mask bool (True: seen) or added, broadcast to [B, H, L, S];
    position [] or [B] whole numbers on the device -> [B, H, L, D], [B, H, L]. Source: arXiv:2205.14135, arXiv:2307.08691.
    """


def _grad_rule(grad: Layout, qkv: Sequence[Layout], out: Layout, lse: Layout, mask: Layout | None, position: Layout | None,
               scale: Any, causal: bool, window: int, offset: int) -> Inferred:  # fmt: skip
    found = _rule(qkv, mask, position, scale, causal, window, offset)
    if grad.shape != found.outputs[0].shape or out.shape != grad.shape or lse.shape != found.outputs[1].shape:
        raise ShapeError(f"attention gradient: {grad!r}, {out!r}, {lse!r} do not fit {found.outputs}")
    rest = [x.dtype for x in (mask, position) if x is not None]
    compute = (grad.dtype, *(x.dtype for x in qkv), out.dtype, lse.dtype, *rest)
    return Inferred(tuple(Spec(x.dtype, x.shape) for x in qkv), compute, found.attrs)


def _grad_samples() -> list[Sample]:
    out = []
    for i, s in enumerate(_samples()):
        o, lse = _ref([x.astype(np.float64) for x in s.args[0]], *s.args[1:])
        out.append(Sample.of(_draw(9 + i, *o.shape), s.args[0], o.astype(np.float32), lse.astype(np.float32), *s.args[1:]))
    return out


@op(
    Kernel("attention_grad", anywhere=(0, 1, 2)),
    rule=_grad_rule,
    ref=_grad_ref,
    samples=_grad_samples,
    public=False,
    torch=None,
    shown="attention",
)
def attention_grad_row(
    grad: Tensor,
    qkv: Sequence[Tensor],
    out: Tensor,
    lse: Tensor,
    mask: Tensor | None,
    position: Tensor | None,
    scale: Scalar,
    causal: bool = False,
    window: int = 0,
    offset: int = 0,
) -> Tensor:
    """Backward of attention from its results, in a fixed order of additions.

    grad, out [B, H, L, D], lse [B, H, L]; the rest as in attention_row -> the shapes of query, key, value.
    """


# ---- functions ----


def _spread(x: Any, lead: tuple[int, ...]) -> Any:
    """[..., H, L, E] with its leading dimensions broadcast and merged: [B, H, L, E]."""
    if x.ndim < 4:
        return x.reshape((1,) * (4 - x.ndim) + x.shape)
    if x.shape[:-3] != lead:
        x = x.expand((*lead, *x.shape[-3:]))
    return x if x.ndim == 4 else x.reshape((numel(lead), *x.shape[-3:]))


def _spread_mask(mask: Any, lead: tuple[int, ...]) -> Any:
    if mask.ndim <= 4:
        return mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    return mask.expand((*lead, *mask.shape[-3:])).reshape((numel(lead), *mask.shape[-3:]))


@composite(method=False)
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    position: Tensor | None = None,
    causal: bool = False,
    window: int = 0,
    offset: int = 0,
    scale: float | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    """softmax(query @ key.T * scale + mask) @ value, keys and values shared by groups of query heads.

    query [..., H, L, E], key [..., Hk, S, E], value [..., Hk, S, D] with H a multiple of Hk; mask bool (True: seen) or added,
    broadcast to [..., H, L, S] -> [..., H, L, D]. Query i stands at offset + position + i, key j at j: causal shows keys up
    to there (offset S - L aligns the last query with the last key), window w only the last w of them (without causal, w - 1
    to either side). position is a tensor [] or [B] of whole numbers on the device, as a cache's length: it may change
    without a new kernel. scale None: 1 / sqrt(E). A query that sees no key gives 0.
    """
    if query.ndim < 2 or key.ndim != query.ndim or value.ndim != query.ndim:
        raise ShapeError(
            f"attention expects query, key and value of equal rank >= 2, got {list(query.shape)}, {list(key.shape)}, "
            f"{list(value.shape)}\n  at {site()}"
        )
    lead = broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
    q, k, v = (_spread(x, lead) for x in (query, key, value))
    scale = 1.0 / math.sqrt(max(q.shape[-1], 1)) if scale is None else scale
    m = None if mask is None else _spread_mask(mask, lead)
    in_ops = dropout_p > 0.0 or (m is not None and m.requires_grad and is_grad_enabled())
    if in_ops and numel(k.shape) and numel(q.shape):
        w = attention_weights(q, k, m, position, scale, causal, window, offset)
        out = _values(dropout(w, dropout_p), v).to(query.dtype)
    else:
        out = attention_row([q, k, v], m, position, scale, causal, window, offset)[0]
    return out.reshape((*_lead(query, lead), *out.shape[-2:]))  # type: ignore[no-any-return]


def _lead(query: Any, lead: tuple[int, ...]) -> tuple[int, ...]:
    """Dimensions before the last two of a result."""
    return (*lead, query.shape[-3]) if query.ndim > 2 else ()


@composite(method=False)
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """PyTorch's attention: softmax(query @ key.T * scale + attn_mask) @ value. [..., L, E], [..., S, E], [..., S, D] -> [..., L, D].

    attn_mask: bool (True: seen) or added. is_causal: query i sees keys up to i. enable_gqa: the query's heads (dimension -3)
    are a multiple of the key's. A query that sees no key gives 0 (PyTorch: NaN or 0, by backend). dropout_p applies always.
    """
    if is_causal and attn_mask is not None:
        raise ShapeError(f"scaled_dot_product_attention takes attn_mask or is_causal, not both; attention() takes both\n  at {site()}")
    if query.ndim > 2 and query.ndim == key.ndim == value.ndim and not (query.shape[-3] == key.shape[-3] == value.shape[-3]):
        if enable_gqa and key.shape[-3] != value.shape[-3]:
            times = query.shape[-3]
            key, value = (_repeat_heads(x, times) for x in (key, value))
        elif not enable_gqa:
            heads = broadcast_shapes(query.shape[-3:-2], key.shape[-3:-2], value.shape[-3:-2])
            query = _expand_heads(query, heads[0])
            if not (key.shape[-3] == value.shape[-3] == 1):
                key, value = _expand_heads(key, heads[0]), _expand_heads(value, heads[0])
    return attention(query, key, value, attn_mask, causal=is_causal, scale=scale, dropout_p=dropout_p)


def _expand_heads(x: Any, heads: int) -> Any:
    return x if x.shape[-3] == heads else x.expand((*x.shape[:-3], heads, *x.shape[-2:]))


def _repeat_heads(x: Any, heads: int) -> Any:
    if not x.shape[-3] or heads % x.shape[-3]:
        raise ShapeError(f"{heads} query heads are no multiple of {x.shape[-3]} key or value heads\n  at {site()}")
    return x.repeat_interleave(heads // x.shape[-3], -3)
