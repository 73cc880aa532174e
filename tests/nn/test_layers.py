"""Every layer against PyTorch's of the same name: forward, backward, repr, state dict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import dispatch, nn
from tests.nn.parity import close, compare

pytestmark = pytest.mark.torch


def _floats(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


LAYERS: list[tuple[str, tuple[Any, ...], dict[str, Any], Any]] = [
    ("Linear", (5, 7), {}, _floats(3, 4, 5)),
    ("Linear", (5, 7), {"bias": False}, _floats(6, 5)),
    ("Linear", (4, 1), {}, _floats(4)),
    ("LayerNorm", (6,), {}, _floats(2, 3, 6)),
    ("LayerNorm", ((3, 6),), {"eps": 1e-3}, _floats(4, 3, 6)),
    ("LayerNorm", (6,), {"bias": False}, _floats(5, 6)),
    ("LayerNorm", (6,), {"elementwise_affine": False}, _floats(5, 6)),
    ("RMSNorm", (6,), {}, _floats(2, 3, 6)),
    ("RMSNorm", ((3, 6),), {"eps": 1e-2}, _floats(4, 3, 6)),
    ("RMSNorm", (6,), {"elementwise_affine": False}, _floats(5, 6)),
    ("Embedding", (10, 4), {}, np.array([[1, 2, 2], [9, 0, 5]])),
    ("Embedding", (10, 4), {"padding_idx": 2}, np.array([[1, 2, 2], [9, 0, 5]])),
    ("Embedding", (10, 4), {"padding_idx": -1}, np.array([9, 3])),
    ("Dropout", (0.0,), {}, _floats(4, 5)),
    ("Dropout", (1.0,), {}, _floats(4, 5)),
    ("Flatten", (), {}, _floats(2, 3, 4)),
    ("Flatten", (0, 1), {}, _floats(2, 3, 4)),
    ("Identity", (), {}, _floats(2, 3)),
    ("ReLU", (), {}, _floats(4, 9)),
    ("GELU", (), {}, _floats(4, 9)),
    ("GELU", (), {"approximate": "tanh"}, _floats(4, 9)),
    ("SiLU", (), {}, _floats(4, 9)),
    ("Sigmoid", (), {}, _floats(4, 9)),
    ("Tanh", (), {}, _floats(4, 9)),
    ("Softmax", (), {"dim": -1}, _floats(4, 9)),
    ("Softmax", (), {"dim": 0}, _floats(4, 9)),
    ("LogSoftmax", (), {"dim": 1}, _floats(4, 9, 3)),
]


def _id(row: Any) -> str:
    return f"{row[0]}{row[1]}{row[2] or ''}"


@pytest.mark.parametrize("row", LAYERS, ids=_id)
def test_layer(torch: Any, row: Any) -> None:
    name, args, kwargs, x = row
    mg.manual_seed(1)
    layer, twin = getattr(nn, name)(*args, **kwargs), getattr(torch.nn, name)(*args, **kwargs)
    assert list(layer.state_dict()) == list(twin.state_dict())
    if name != "LayerNorm":  # shows its bias in some versions of PyTorch only
        assert repr(layer) == repr(twin)
    compare(torch, layer, twin, x)


LOGITS, PICKS = _floats(6, 5), np.array([0, 4, 2, -100, 1, 1])
SPATIAL, MAP = _floats(2, 5, 3), np.array([[0, 1, 4], [2, -100, 3]])
WEIGHT = np.abs(_floats(5, seed=3))
LOSSES: list[tuple[str, dict[str, Any], Any, Any]] = [
    ("CrossEntropyLoss", {}, LOGITS, PICKS),
    ("CrossEntropyLoss", {}, SPATIAL, MAP),
    ("CrossEntropyLoss", {"reduction": "none"}, SPATIAL, MAP),
    ("CrossEntropyLoss", {"reduction": "sum", "label_smoothing": 0.1}, LOGITS, PICKS),
    ("CrossEntropyLoss", {"label_smoothing": 0.2}, LOGITS, PICKS),
    ("CrossEntropyLoss", {"weight": WEIGHT, "ignore_index": 1}, LOGITS, np.abs(PICKS) % 5),
    ("CrossEntropyLoss", {"weight": WEIGHT, "label_smoothing": 0.1}, LOGITS, PICKS),
    ("CrossEntropyLoss", {"label_smoothing": 0.1}, LOGITS, np.abs(_floats(6, 5, seed=4))),
    ("CrossEntropyLoss", {}, _floats(5), np.array(3)),
    ("NLLLoss", {}, LOGITS, PICKS),
    ("NLLLoss", {"weight": WEIGHT, "reduction": "none"}, SPATIAL, MAP),
    ("NLLLoss", {"reduction": "sum"}, SPATIAL, MAP),
    ("MSELoss", {}, LOGITS, _floats(6, 5, seed=5)),
    ("MSELoss", {"reduction": "none"}, LOGITS, _floats(6, 5, seed=5)),
    ("L1Loss", {"reduction": "sum"}, LOGITS, _floats(6, 5, seed=5)),
    ("BCEWithLogitsLoss", {}, 30 * LOGITS, np.abs(np.sin(_floats(6, 5, seed=5)))),
    ("BCEWithLogitsLoss", {"weight": WEIGHT, "pos_weight": 2 * WEIGHT, "reduction": "sum"}, LOGITS, np.abs(np.sin(_floats(6, 5, seed=5)))),
]


@pytest.mark.parametrize("row", LOSSES, ids=lambda row: f"{row[0]}-{'-'.join(row[1])}-{row[2].ndim}d")
def test_loss(torch: Any, row: Any) -> None:
    name, kwargs, x, target = row
    ours = {k: mg.tensor(v) if isinstance(v, np.ndarray) else v for k, v in kwargs.items()}
    theirs = {k: torch.tensor(v) if isinstance(v, np.ndarray) else v for k, v in kwargs.items()}
    compare(torch, getattr(nn, name)(**ours), getattr(torch.nn, name)(**theirs), x, target)


def test_inplace_activation(torch: Any) -> None:
    x = _floats(3, 4)
    for name in ("ReLU", "SiLU"):
        t = mg.tensor(x)
        out = getattr(nn, name)(inplace=True)(t)
        assert out is t
        close(t, getattr(torch.nn, name)()(torch.tensor(x)), name)


def test_float16_layer(torch: Any) -> None:
    layer = nn.Linear(8, 4).half()
    assert all(p.dtype is mg.float16 and p.requires_grad for p in layer.parameters())
    twin = torch.nn.Linear(8, 4).half()
    twin.load_state_dict({k: torch.from_numpy(v.numpy()) for k, v in layer.state_dict().items()})
    x = _floats(3, 8).astype(np.float16)
    close(layer(mg.tensor(x)), twin(torch.tensor(x)), "half", rtol=2e-3, atol=2e-3)


def test_a_network_under_every_interpreter(torch: Any) -> None:
    """Eager and both references give PyTorch's loss and gradients."""
    x, y = _floats(6, 5), np.array([0, 1, 2, 0, 1, 2])
    twin = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3))
    expected = torch.nn.functional.cross_entropy(twin(torch.tensor(x)), torch.tensor(y))
    expected.backward()
    for interpreter in (None, mg.Reference(), mg.Reference(precise=True)):
        with dispatch.use(interpreter):
            net = nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
            net.load_state_dict(twin.state_dict())
            loss = nn.functional.cross_entropy(net(mg.tensor(x)), mg.tensor(y))
            loss.backward()
            assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
            for (name, p), q in zip(net.named_parameters(), twin.parameters(), strict=True):
                close(p.grad, q.grad, f"{name} under {interpreter}")
