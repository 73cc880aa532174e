"""Multi-head attention, rotary embedding and gated feed-forward layers."""

from __future__ import annotations

import math
from typing import Any

from ..dtype import bool_
from ..ops.attention import attention_weights
from ..ops.factory import empty, ones, zeros
from ..tensor import Tensor
from . import functional as F
from . import init
from .basic import Linear
from .module import Module
from .parameter import Buffer, Parameter


class MultiheadAttention(Module):
    """Attention of several heads over projections of query, key and value, as torch.nn.MultiheadAttention.

    query [L, N, E], key [S, N, kdim], value [S, N, vdim] (batch first: [N, L, E]...; without a batch: [L, E]...) ->
    ([L, N, E], weights [N, L, S] or None). Masks as PyTorch's modules have them: True hides a key, floats are added.
    A query that sees no key gives the bias of out_proj. Beyond PyTorch: num_kv_heads heads of keys shared by groups of query
    heads, and a sliding window of keys. Source: arXiv:1706.03762.
    """

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, add_bias_kv: bool = False,
        add_zero_attn: bool = False, kdim: int | None = None, vdim: int | None = None, batch_first: bool = False,
        device: Any = None, dtype: Any = None, *, num_kv_heads: int | None = None, window: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        if embed_dim <= 0 or num_heads <= 0:
            raise ValueError(f"embed_dim and num_heads must be greater than 0, got embed_dim={embed_dim} and num_heads={num_heads}")
        if embed_dim % num_heads:
            raise AssertionError(f"embed_dim={embed_dim} must be divisible by num_heads={num_heads}")
        self.embed_dim, self.num_heads, self.dropout, self.batch_first = embed_dim, num_heads, dropout, batch_first
        self.kdim, self.vdim = embed_dim if kdim is None else kdim, embed_dim if vdim is None else vdim
        self.head_dim, self.add_zero_attn, self.window = embed_dim // num_heads, add_zero_attn, window
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads={num_heads} must be a multiple of num_kv_heads={self.num_kv_heads}")
        kv = self.num_kv_heads * self.head_dim
        same = self.kdim == self.vdim == embed_dim

        def made(*shape: int) -> Parameter:
            return Parameter(empty(shape, dtype=dtype, device=device))

        self.register_parameter("q_proj_weight", None if same else made(embed_dim, embed_dim))
        self.register_parameter("k_proj_weight", None if same else made(kv, self.kdim))
        self.register_parameter("v_proj_weight", None if same else made(kv, self.vdim))
        self.register_parameter("in_proj_weight", made(embed_dim + 2 * kv, embed_dim) if same else None)
        self.register_parameter("in_proj_bias", made(embed_dim + 2 * kv) if bias else None)
        self.out_proj = Linear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
        self.register_parameter("bias_k", made(1, 1, kv) if add_bias_kv else None)
        self.register_parameter("bias_v", made(1, 1, kv) if add_bias_kv else None)
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)
        for bias in (self.bias_k, self.bias_v):
            if bias is not None:
                init.xavier_normal_(bias)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None, need_weights: bool = True,
        attn_mask: Tensor | None = None, average_attn_weights: bool = True, is_causal: bool = False,
    ) -> tuple[Any, Any]:  # fmt: skip
        self._check(query, key, value)
        batched = query.ndim == 3
        if not batched:
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        heads = self._projected(query, key, value, batched)
        q, k, v = heads
        columns = k.shape[2]
        q, k, v = self._extended(q, k, v)
        extra = k.shape[2] - columns
        causal = is_causal and not extra
        if is_causal and extra and attn_mask is None:
            attn_mask = _upper(q.shape[2], columns)
        mask = None if causal else _seen(attn_mask, (q.shape[0], self.num_heads), extra)
        padding = _seen(None if key_padding_mask is None else key_padding_mask.unsqueeze(1).unsqueeze(1), None, extra)
        mask = _joined(mask, padding)
        weights = None
        dropout = self.dropout if self.training else 0.0
        if need_weights:
            weights = attention_weights(q, k, mask, None, 1.0 / math.sqrt(self.head_dim), causal, self.window, 0).to(q.dtype)
            weights = F.dropout(weights, dropout)
            group = self.num_heads // self.num_kv_heads
            out = weights @ (v if group == 1 else v.repeat_interleave(group, 1))
        else:
            out = F.attention(q, k, v, mask, causal=causal, window=self.window, dropout_p=dropout)
        return self._merged(out, batched), self._shown(weights, batched, average_attn_weights)

    def _check(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        if query.ndim not in (2, 3) or key.ndim != query.ndim or value.ndim != query.ndim:
            shapes = f"{list(query.shape)}, {list(key.shape)}, {list(value.shape)}"
            raise ValueError(f"MultiheadAttention expects query, key and value of 2 or 3 dimensions each, got {shapes}")
        if query.shape[-1] != self.embed_dim:
            raise AssertionError(f"was expecting embedding dimension of {self.embed_dim}, but got {query.shape[-1]}")

    def _projected(self, query: Tensor, key: Tensor, value: Tensor, batched: bool) -> list[Any]:
        """Heads of query, key and value, [N, H, L, D] each, without a copy."""
        e, kv = self.embed_dim, self.num_kv_heads * self.head_dim
        bias = self.in_proj_bias
        if self.in_proj_weight is not None and query is key and key is value:
            made = list(F.linear(query, self.in_proj_weight, bias).split([e, kv, kv], -1))
        else:
            weights = (
                (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
                if self.in_proj_weight is None
                else self.in_proj_weight.split([e, kv, kv], 0)
            )
            biases = (None, None, None) if bias is None else bias.split([e, kv, kv], 0)
            if self.in_proj_weight is not None and key is value:
                both = F.linear(key, self.in_proj_weight[e:], None if bias is None else bias[e:])
                made = [F.linear(query, weights[0], biases[0]), *both.split([kv, kv], -1)]
            else:
                made = [F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True)]
        return [self._split(x, batched) for x in made]

    def _split(self, x: Any, batched: bool) -> Any:
        x = x.unflatten(-1, (-1, self.head_dim))
        if not batched:
            return x.transpose(0, 1).unsqueeze(0)
        return x.transpose(1, 2) if self.batch_first else x.permute(1, 2, 0, 3)

    def _extended(self, q: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
        """One learned key and value more, and one of zeros, where the layer has them."""
        for name in ("bias_k", "bias_v"):
            row = getattr(self, name)
            if row is not None:
                row = row.reshape((1, 1, self.num_kv_heads, self.head_dim)).transpose(1, 2).expand((k.shape[0], -1, -1, -1))
                k, v = (F.cat([k, row], 2), v) if name == "bias_k" else (k, F.cat([v, row], 2))
        if self.add_zero_attn:
            k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
        return q, k, v

    def _merged(self, out: Any, batched: bool) -> Any:
        """Heads side by side again, through out_proj."""
        if not batched:
            out = out.squeeze(0).transpose(0, 1)
        else:
            out = out.transpose(1, 2) if self.batch_first else out.permute(2, 0, 1, 3)
        return self.out_proj(out.flatten(-2))

    def _shown(self, weights: Any, batched: bool, average: bool) -> Any:
        if weights is None:
            return None
        weights = weights.mean(1) if average else weights
        return weights if batched else weights.squeeze(0)

    def extra_repr(self) -> str:
        return f"{self.embed_dim}, {self.num_heads}, dropout={self.dropout}, batch_first={self.batch_first}"


def _upper(rows: int, columns: int) -> Any:
    """The causal mask: True hides."""
    return F.triu(ones((rows, columns)), 1) > 0


def _seen(mask: Any, batch: tuple[int, int] | None, extra: int) -> Any:
    """A module's mask as functions take it, [.., L, S + extra]: True shows, floats are added."""
    if mask is None:
        return None
    if batch is not None and mask.ndim == 3:
        mask = mask.unflatten(0, batch) if mask.shape[0] == batch[0] * batch[1] else mask.unsqueeze(1)
    if not mask.is_floating_point():
        mask = mask.logical_not()
    if not extra:
        return mask
    shape = (*mask.shape[:-1], extra)
    shown = zeros(shape, dtype=mask.dtype) if mask.is_floating_point() else ones(shape, dtype=bool_)
    return F.cat([mask, shown], -1)


def _joined(a: Any, b: Any) -> Any:
    """Both masks at once."""
    if a is None or b is None:
        return b if a is None else a
    if not a.is_floating_point() and not b.is_floating_point():
        return a & b
    a, b = (x if x.is_floating_point() else F.where(x, 0.0, -math.inf) for x in (a, b))
    return a + b


class RotaryEmbedding(Module):
    """Turns pairs of a head's elements by angles that grow with the position, from tables for `max_positions` positions.

    forward(x [..., L, D], position): position is the number of the first row, or whole numbers [L] (or [..., L]) on the device,
    which may change without a new kernel. Pairs are halves of the first `dim` elements, or neighbours if `interleaved`.
    Source: arXiv:2104.09864.
    """

    def __init__(self, dim: int, max_positions: int = 2048, base: float = 10000.0, interleaved: bool = False, scale: float = 1.0) -> None:
        super().__init__()
        self.dim, self.max_positions, self.base, self.interleaved = dim, max_positions, base, interleaved
        cos, sin = F.rotary_tables(max_positions, dim, base, scale)
        self.cos, self.sin = Buffer(cos, persistent=False), Buffer(sin, persistent=False)

    def forward(self, input: Tensor, position: int | Tensor = 0) -> Any:
        if isinstance(position, Tensor):
            shape = (*position.shape, self.dim // 2)
            cos, sin = (t.index_select(0, position.reshape((-1,))).reshape(shape) for t in (self.cos, self.sin))
        else:
            rows = input.shape[-2]
            if position < 0 or position + rows > self.max_positions:
                raise ValueError(f"positions {position} to {position + rows - 1} lie outside the table of {self.max_positions}")
            cos, sin = self.cos[position : position + rows], self.sin[position : position + rows]
        return F.rotary_embedding(input, cos, sin, self.interleaved)

    def extra_repr(self) -> str:
        return f"{self.dim}, max_positions={self.max_positions}, base={self.base}, interleaved={self.interleaved}"


class GatedMLP(Module):
    """down_proj(activation(gate_proj(x)) * up_proj(x)). [*, dim] -> [*, dim]. Source: arXiv:2002.05202."""

    def __init__(
        self, dim: int, hidden: int, activation: str = "silu", bias: bool = False, device: Any = None, dtype: Any = None
    ) -> None:  # fmt: skip
        super().__init__()
        self.activation = activation
        self.gate_proj = Linear(dim, hidden, bias, device, dtype)
        self.up_proj = Linear(dim, hidden, bias, device, dtype)
        self.down_proj = Linear(hidden, dim, bias, device, dtype)

    def forward(self, input: Tensor) -> Any:
        gate = self.gate_proj(input)
        gate = F.gelu(gate, approximate="tanh") if self.activation == "gelu_tanh" else getattr(F, self.activation)(gate)
        return self.down_proj(gate * self.up_proj(input))


class SwiGLU(GatedMLP):
    """GatedMLP with silu."""

    def __init__(self, dim: int, hidden: int, bias: bool = False, device: Any = None, dtype: Any = None) -> None:
        super().__init__(dim, hidden, "silu", bias, device, dtype)


class GeGLU(GatedMLP):
    """GatedMLP with gelu."""

    def __init__(self, dim: int, hidden: int, bias: bool = False, device: Any = None, dtype: Any = None) -> None:
        super().__init__(dim, hidden, "gelu", bias, device, dtype)
