"""MultiheadAttention and the transformer layers against PyTorch's, with its state dicts; rotary and gated layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import nn

from .parity import close, compare, copied, tensors

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor", "ignore:The PyTorch API of nested")
RNG = np.random.default_rng(5)


def draw(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def hidden(*shape: int) -> Any:
    """A bool mask that hides some keys, never all of a row."""
    out = RNG.integers(0, 3, shape) == 0
    out[..., 0] = False
    return out


def both(layer: Any, twin: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Results, attention weights and gradients of both layers, in evaluation mode."""
    copied(layer, twin)
    layer.eval(), twin.eval()
    ours, theirs = tensors(torch, *args)
    if len(args) == 1:
        ours, theirs = ours * 3, theirs * 3
    got = layer(*ours, **{k: mg.tensor(v) if hasattr(v, "shape") else v for k, v in kwargs.items()})
    want = twin(*theirs, **{k: torch.tensor(v) if hasattr(v, "shape") else v for k, v in kwargs.items()})
    for a, b in zip(got, want, strict=True):
        assert (a is None) == (b is None)
        if b is not None:
            close(a, b, "result", rtol=2e-5, atol=5e-6)
    cotangent = draw(*want[0].shape)
    got[0].backward(mg.tensor(cotangent))
    want[0].backward(torch.tensor(cotangent))
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        close(a.grad, b.grad, f"gradient of input {i}", rtol=2e-4, atol=2e-5)
    grads = dict(twin.named_parameters())
    for name, p in layer.named_parameters():
        close(p.grad, grads[name].grad, f"gradient of {name}", rtol=2e-4, atol=5e-5)


OPTIONS = [
    {},
    {"batch_first": True},
    {"bias": False},
    {"add_bias_kv": True},
    {"add_zero_attn": True, "batch_first": True},
    {"add_bias_kv": True, "add_zero_attn": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("need_weights", [True, False])
def test_self_attention(options: dict[str, Any], need_weights: bool) -> None:
    layer, twin = nn.MultiheadAttention(24, 3, **options), torch.nn.MultiheadAttention(24, 3, **options)
    x = draw(2, 7, 24) if options.get("batch_first") else draw(7, 2, 24)
    both(layer, twin, [x], {"need_weights": need_weights})
    padding, mask = hidden(2, 7), hidden(7, 7)
    mask[np.arange(7), np.arange(7)] = False
    both(layer, twin, [x], {"need_weights": need_weights, "attn_mask": mask})
    if need_weights:
        both(layer, twin, [x], {"average_attn_weights": False, "key_padding_mask": padding})
        both(layer, twin, [x], {"attn_mask": draw(6, 7, 7), "key_padding_mask": np.where(padding, -1e4, 0).astype(np.float32)})


@pytest.mark.parametrize("options", [{}, {"kdim": 10, "vdim": 14}, {"kdim": 10, "vdim": 14, "add_bias_kv": True}], ids=str)
def test_cross_attention(options: dict[str, Any]) -> None:
    layer, twin = nn.MultiheadAttention(16, 4, **options), torch.nn.MultiheadAttention(16, 4, **options)
    kdim, vdim = options.get("kdim", 16), options.get("vdim", 16)
    both(layer, twin, [draw(5, 2, 16), draw(9, 2, kdim), draw(9, 2, vdim)], {"key_padding_mask": hidden(2, 9)})
    both(layer, twin, [draw(5, 2, 16), draw(9, 2, kdim), draw(9, 2, vdim)], {"need_weights": False})
    both(layer, twin, [draw(5, 16), draw(9, kdim), draw(9, vdim)], {"key_padding_mask": hidden(9)})


def test_causal() -> None:
    layer, twin = nn.MultiheadAttention(16, 4, batch_first=True), torch.nn.MultiheadAttention(16, 4, batch_first=True)
    mask = np.triu(np.ones((6, 6), bool), 1)
    for need in (True, False):
        both(layer, twin, [draw(2, 6, 16)], {"attn_mask": mask, "is_causal": True, "need_weights": need})
    x = mg.tensor(draw(2, 6, 16))
    close(layer(x, x, x, is_causal=True, need_weights=False)[0], layer(x, x, x, attn_mask=mg.tensor(mask))[0], "without a mask")


def test_initial_values_and_names() -> None:
    for options in ({}, {"kdim": 3}, {"add_bias_kv": True, "bias": False}):
        ours, theirs = nn.MultiheadAttention(8, 2, **options), torch.nn.MultiheadAttention(8, 2, **options)
        assert {k: tuple(v.shape) for k, v in ours.state_dict().items()} == {k: tuple(v.shape) for k, v in theirs.state_dict().items()}
    assert not nn.MultiheadAttention(8, 2).in_proj_bias.detach().numpy().any()
    with pytest.raises(AssertionError):
        nn.MultiheadAttention(8, 3)
    with pytest.raises(AssertionError):
        nn.MultiheadAttention(8, 2)(*[mg.zeros(3, 6)] * 3)


def test_shared_heads_and_window() -> None:
    layer = nn.MultiheadAttention(16, 4, batch_first=True, num_kv_heads=2, window=3)
    x = mg.tensor(draw(2, 9, 16))
    fast = layer(x, x, x, need_weights=False, is_causal=True)[0]
    slow, weights = layer(x, x, x, is_causal=True)
    close(fast, slow, "with and without weights")
    place = np.arange(9)
    seen = (place <= place[:, None]) & (place > place[:, None] - 3)
    assert not weights.detach().numpy()[:, ~seen].any()


def test_dropout_is_for_training() -> None:
    layer = nn.MultiheadAttention(16, 4, dropout=0.5, batch_first=True)
    x = mg.tensor(draw(2, 6, 16))
    a, b = (layer(x, x, x, need_weights=False)[0].detach().numpy() for _ in range(2))
    assert abs(a - b).max() > 1e-4
    layer.eval()
    a, b = (layer(x, x, x, need_weights=False)[0].detach().numpy() for _ in range(2))
    np.testing.assert_array_equal(a, b)


# ---- layers ----

LAYERS = [
    {"dropout": 0.0},
    {"dropout": 0.0, "norm_first": True, "activation": "gelu", "batch_first": True},
    {"dropout": 0.0, "bias": False, "layer_norm_eps": 1e-3},
]


@pytest.mark.parametrize("options", LAYERS, ids=str)
def test_encoder_and_decoder_layers(options: dict[str, Any]) -> None:
    made = [lib.TransformerEncoderLayer(16, 4, 24, **options) for lib in (nn, torch.nn)]
    x, memory = draw(2, 7, 16), draw(2, 7, 16)
    compare(torch, *made, x)
    made = [lib.TransformerDecoderLayer(16, 4, 24, **options) for lib in (nn, torch.nn)]
    compare(torch, *made, x, memory)


def masks(batch: int, rows: int) -> dict[str, Any]:
    causal = np.triu(np.full((rows, rows), -np.inf, np.float32), 1)
    return {"mask": causal, "src_key_padding_mask": np.where(hidden(batch, rows), -np.inf, 0).astype(np.float32)}


def test_encoder() -> None:
    ours = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 20, 0.0, batch_first=True), 3, nn.LayerNorm(16))
    theirs = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, 20, 0.0, batch_first=True), 3, torch.nn.LayerNorm(16))
    copied(ours, theirs)
    x, given = draw(3, 6, 16), masks(3, 6)
    got = ours(mg.tensor(x), **{k: mg.tensor(v) for k, v in given.items()})
    close(got, theirs(torch.tensor(x), **{k: torch.tensor(v) for k, v in given.items()}), "masked", rtol=1e-4, atol=1e-5)
    causal = ours(mg.tensor(x), mg.tensor(given["mask"]), is_causal=True)
    close(causal, theirs(torch.tensor(x), torch.tensor(given["mask"]), is_causal=True), "causal", rtol=1e-4, atol=1e-5)
    assert len({id(layer.linear1.weight) for layer in ours.layers}) == 3


@pytest.mark.parametrize("batch_first", [False, True])
def test_transformer(batch_first: bool) -> None:
    options = {"nhead": 2, "num_encoder_layers": 2, "num_decoder_layers": 2, "dim_feedforward": 20, "dropout": 0.0}
    ours, theirs = (lib.Transformer(16, batch_first=batch_first, **options) for lib in (nn, torch.nn))
    copied(ours, theirs)
    src, tgt = (draw(2, 7, 16), draw(2, 5, 16)) if batch_first else (draw(7, 2, 16), draw(5, 2, 16))
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    np.testing.assert_array_equal(mask.numpy(), torch.nn.Transformer.generate_square_subsequent_mask(5).numpy())
    got = ours(mg.tensor(src), mg.tensor(tgt), tgt_mask=mask, tgt_is_causal=True)
    want = theirs(torch.tensor(src), torch.tensor(tgt), tgt_mask=torch.tensor(mask.numpy()), tgt_is_causal=True)
    close(got, want, "result", rtol=1e-4, atol=1e-5)
    with pytest.raises(RuntimeError):
        ours(mg.zeros(2, 7, 8), mg.zeros(2, 5, 8))


def test_compiled_training_step() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 24, 0.0, batch_first=True)
    optimizer = mg.optim.SGD(layer.parameters(), lr=0.1)
    x = mg.tensor(draw(2, 9, 16))

    def step() -> Any:
        optimizer.zero_grad()
        loss = layer(x, is_causal=True).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    start = {k: v.clone() for k, v in layer.state_dict().items()}
    eager = [step().item() for _ in range(3)]
    layer.load_state_dict(start)
    compiled = mg.compile(step)
    np.testing.assert_allclose([compiled().item() for _ in range(3)], eager, rtol=1e-4)


# ---- rotary and gated layers ----


def test_rotary_layer() -> None:
    rope = nn.RotaryEmbedding(8, 32)
    x = mg.tensor(draw(2, 3, 5, 8))
    assert not rope.state_dict()
    moved = rope(x, 4)
    close(rope(x, mg.tensor(np.arange(4, 9))), moved, "positions on the device")
    close(rope(x, mg.tensor(np.tile(np.arange(4, 9), (2, 1, 1)))), moved, "a position each")
    a = x.numpy()
    angle = np.arange(4, 9)[:, None] / 10000.0 ** (np.arange(0, 8, 2) / 8)
    want = np.concatenate(
        [a[..., :4] * np.cos(angle) - a[..., 4:] * np.sin(angle), a[..., 4:] * np.cos(angle) + a[..., :4] * np.sin(angle)], -1
    )
    np.testing.assert_allclose(moved.numpy(), want, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="outside"):
        rope(x, 28)


@pytest.mark.parametrize(("kind", "act"), [(nn.SwiGLU, "silu"), (nn.GeGLU, "gelu")])
def test_gated_layers(kind: Any, act: str) -> None:
    layer, x = kind(6, 10), mg.tensor(draw(3, 6))
    assert set(layer.state_dict()) == {"gate_proj.weight", "up_proj.weight", "down_proj.weight"}
    gate, up, down = (torch.tensor(layer.state_dict()[f"{n}_proj.weight"].numpy()) for n in ("gate", "up", "down"))
    t = torch.tensor(x.numpy())
    want = (getattr(torch.nn.functional, act)(t @ gate.T) * (t @ up.T)) @ down.T
    close(layer(x), want, act, rtol=1e-5, atol=1e-6)
