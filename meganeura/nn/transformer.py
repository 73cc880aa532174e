"""Transformer layers with PyTorch's arguments and parameter names. Source: arXiv:1706.03762."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from ..ops.factory import full
from ..tensor import Tensor
from . import functional as F
from . import init
from .attention import MultiheadAttention
from .basic import Dropout, LayerNorm, Linear
from .container import ModuleList
from .module import Module

Activation = str | Callable[[Any], Any]


def _activation(given: Activation) -> Callable[[Any], Any]:
    if not isinstance(given, str):
        return given
    if given not in ("relu", "gelu"):
        raise RuntimeError(f"activation should be relu/gelu, not {given}")
    return getattr(F, given)  # type: ignore[no-any-return]


def _copies(layer: Module, count: int) -> ModuleList:
    return ModuleList([copy.deepcopy(layer) for _ in range(count)])


class _Layer(Module):
    """What encoder and decoder layers share: self-attention and the feed-forward block."""

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int, dropout: float, activation: Activation, layer_norm_eps: float,
        batch_first: bool, norm_first: bool, bias: bool, device: Any, dtype: Any, cross: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        made = {"device": device, "dtype": dtype}
        self.norm_first = norm_first
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first, **made)
        if cross:
            self.multihead_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first, **made)
        self.linear1 = Linear(d_model, dim_feedforward, bias, **made)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, **made)
        for i in range(3 if cross else 2):
            setattr(self, f"norm{i + 1}", LayerNorm(d_model, layer_norm_eps, bias=bias, **made))
        for i in range(3 if cross else 2):
            setattr(self, f"dropout{i + 1}", Dropout(dropout))
        self.activation = _activation(activation)

    def _residual(self, i: int, x: Any, block: Callable[[Any], Any]) -> Any:
        """x + block(x), with the i-th norm before the block or after the sum."""
        norm, dropout = getattr(self, f"norm{i}"), getattr(self, f"dropout{i}")
        if self.norm_first:
            return x + dropout(block(norm(x)))
        return norm(x + dropout(block(x)))

    def _feed_forward(self, x: Any) -> Any:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class TransformerEncoderLayer(_Layer):
    """Self-attention and a feed-forward block, each with a residual and a norm. [L, N, d_model] (batch first: [N, L, ...]) -> same."""

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1, activation: Activation = "relu",
        layer_norm_eps: float = 1e-5, batch_first: bool = False, norm_first: bool = False, bias: bool = True,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias, device, dtype, False
        )  # fmt: skip

    def forward(
        self, src: Tensor, src_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None, is_causal: bool = False
    ) -> Any:  # fmt: skip
        def attend(x: Any) -> Any:
            return self.self_attn(x, x, x, src_key_padding_mask, False, src_mask, is_causal=is_causal)[0]

        x = self._residual(1, src, attend)
        return self._residual(2, x, self._feed_forward)


class TransformerDecoderLayer(_Layer):
    """As the encoder layer, with attention to `memory` between. tgt [L, N, d_model], memory [S, N, d_model] -> [L, N, d_model]."""

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1, activation: Activation = "relu",
        layer_norm_eps: float = 1e-5, batch_first: bool = False, norm_first: bool = False, bias: bool = True,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias, device, dtype, True
        )  # fmt: skip

    def forward(
        self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None, memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False, memory_is_causal: bool = False,
    ) -> Any:  # fmt: skip
        def attend(x: Any) -> Any:
            return self.self_attn(x, x, x, tgt_key_padding_mask, False, tgt_mask, is_causal=tgt_is_causal)[0]

        def cross(x: Any) -> Any:
            return self.multihead_attn(x, memory, memory, memory_key_padding_mask, False, memory_mask, is_causal=memory_is_causal)[0]

        x = self._residual(1, tgt, attend)
        x = self._residual(2, x, cross)
        return self._residual(3, x, self._feed_forward)


class TransformerEncoder(Module):
    """num_layers copies of a layer, one after another, and an optional norm."""

    def __init__(
        self, encoder_layer: Module, num_layers: int, norm: Module | None = None, enable_nested_tensor: bool = True, mask_check: bool = True
    ) -> None:
        super().__init__()
        self.layers, self.num_layers = _copies(encoder_layer, num_layers), num_layers
        self.norm = norm

    def forward(
        self, src: Tensor, mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None, is_causal: bool | None = None
    ) -> Any:
        x: Any = src
        for layer in self.layers:
            x = layer(x, src_mask=mask, src_key_padding_mask=src_key_padding_mask, is_causal=bool(is_causal))
        return x if self.norm is None else self.norm(x)


class TransformerDecoder(Module):
    """num_layers copies of a layer, one after another, and an optional norm."""

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers, self.num_layers = _copies(decoder_layer, num_layers), num_layers
        self.norm = norm

    def forward(
        self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None, memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None, memory_is_causal: bool = False,
    ) -> Any:  # fmt: skip
        x: Any = tgt
        for layer in self.layers:
            x = layer(
                x, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask, bool(tgt_is_causal), memory_is_causal
            )  # fmt: skip
        return x if self.norm is None else self.norm(x)


class Transformer(Module):
    """Encoder and decoder. src [S, N, d_model], tgt [T, N, d_model] (batch first: [N, ...]) -> shape of tgt."""

    def __init__(
        self, d_model: int = 512, nhead: int = 8, num_encoder_layers: int = 6, num_decoder_layers: int = 6, dim_feedforward: int = 2048,
        dropout: float = 0.1, activation: Activation = "relu", custom_encoder: Any = None, custom_decoder: Any = None,
        layer_norm_eps: float = 1e-5, batch_first: bool = False, norm_first: bool = False, bias: bool = True,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        given = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias, device, dtype)

        def norm() -> LayerNorm:
            return LayerNorm(d_model, layer_norm_eps, bias=bias, device=device, dtype=dtype)

        self.encoder = custom_encoder or TransformerEncoder(TransformerEncoderLayer(*given), num_encoder_layers, norm())
        self.decoder = custom_decoder or TransformerDecoder(TransformerDecoderLayer(*given), num_decoder_layers, norm())
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first
        for p in self.parameters():
            if p.ndim > 1:
                init.xavier_uniform_(p)

    def forward(
        self, src: Tensor, tgt: Tensor, src_mask: Tensor | None = None, tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None, tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None, src_is_causal: bool | None = None, tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Any:  # fmt: skip
        if src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            raise RuntimeError(f"the feature number of src and tgt must be d_model={self.d_model}, got {src.shape[-1]} and {tgt.shape[-1]}")
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
        return self.decoder(
            tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask, tgt_is_causal, memory_is_causal
        )  # fmt: skip

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: Any = None, dtype: Any = None) -> Any:
        """The causal mask [sz, sz]: -inf above the diagonal, 0 elsewhere."""
        return F.triu(full((sz, sz), float("-inf"), dtype=dtype, device=device), 1)
