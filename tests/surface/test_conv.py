"""Convolutions, transposed convolutions and their modules, against PyTorch on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meganeura as mg
from tests.surface.compare import check, floats, torch

pytestmark = pytest.mark.filterwarnings("ignore:Using padding=.same.")
F = "nn.functional."
Case = tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]
FORWARD: list[Case] = [
    ((2, 3, 9), (4, 3, 3), {}),
    ((3, 9), (4, 3, 2), {"stride": 2, "padding": 1}),
    ((2, 4, 11), (6, 2, 3), {"groups": 2, "dilation": 2, "padding": 3}),
    ((2, 3, 9), (2, 3, 4), {"padding": "same"}),
    ((2, 3, 7, 9), (4, 3, 3, 3), {"padding": 1}),
    ((2, 3, 8, 8), (4, 3, 3, 3), {"padding": 1}),
    ((2, 3, 7, 9), (5, 3, 3, 2), {"stride": (2, 3), "padding": (1, 0), "dilation": (1, 2)}),
    ((3, 7, 9), (5, 3, 1, 1), {}),
    ((2, 3, 8, 8), (5, 3, 1, 1), {"stride": 2}),
    ((2, 6, 7, 8), (6, 1, 3, 3), {"groups": 6, "padding": 1}),
    ((2, 4, 7, 8), (8, 1, 3, 5), {"groups": 4, "padding": (1, 2), "stride": (1, 2)}),
    ((1, 6, 8, 8), (9, 2, 3, 3), {"groups": 3, "padding": "same"}),
    ((1, 2, 9, 10), (3, 2, 2, 4), {"padding": "same", "dilation": (3, 1)}),
    ((1, 3, 21, 20), (4, 3, 7, 7), {"stride": 2, "padding": 3}),
    ((2, 3, 12, 8), (5, 3, 4, 4), {"stride": 4}),
    ((1, 2, 5, 5), (3, 2, 5, 5), {}),
    ((1, 2, 4, 4), (3, 2, 3, 3), {"padding": 4, "stride": 3}),
    ((0, 3, 7, 9), (4, 3, 3, 3), {}),
    ((2, 37, 10, 12), (35, 37, 3, 3), {"padding": 1}),
    ((1, 2, 4, 5, 6), (3, 2, 2, 3, 3), {"padding": (0, 1, 2), "stride": (1, 2, 1)}),
    ((2, 4, 5, 6), (6, 2, 3, 1, 2), {"groups": 2, "dilation": (1, 1, 2)}),
    ((1, 3, 4, 4, 4), (2, 3, 3, 3, 3), {"padding": "same"}),
]
TRANSPOSED: list[Case] = [
    ((2, 3, 9), (3, 4, 3), {}),
    ((3, 9), (3, 4, 2), {"stride": 2, "padding": 1, "output_padding": 1}),
    ((2, 4, 7), (4, 3, 3), {"groups": 2, "dilation": 2, "padding": 3, "stride": 2}),
    ((2, 3, 7, 9), (3, 4, 3, 3), {"padding": 1}),
    ((2, 3, 5, 4), (3, 4, 4, 4), {"stride": 2, "padding": 1}),
    ((2, 3, 5, 4), (3, 4, 2, 2), {"stride": 2}),
    ((1, 3, 5, 4), (3, 2, 3, 2), {"stride": (3, 2), "padding": (0, 1), "output_padding": (2, 1), "dilation": (2, 3)}),
    ((1, 3, 5, 4), (3, 2, 2, 1), {"stride": (3, 2), "output_padding": (1, 0)}),
    ((3, 5, 4), (3, 2, 1, 1), {}),
    ((2, 6, 5, 6), (6, 1, 3, 3), {"groups": 6, "stride": 2}),
    ((0, 3, 5, 4), (3, 2, 3, 3), {}),
    ((1, 36, 9, 8), (36, 33, 3, 3), {"padding": 1}),
    ((1, 2, 3, 4, 3), (2, 3, 2, 3, 3), {"padding": (0, 1, 2), "stride": (1, 2, 1), "output_padding": (0, 1, 0)}),
    ((2, 3, 2, 3), (2, 3, 2, 2, 2), {"stride": 2}),
]


def _id(case: Case) -> str:
    return f"{'x'.join(map(str, case[0]))} {'x'.join(map(str, case[1]))} {case[2]}"


@pytest.mark.parametrize("case", FORWARD, ids=_id)
def test_convolution(case: Case) -> None:
    shape, kernel, options = case
    for bias in (None, floats(kernel[0], seed=2)):
        layouts = ("plain", "transposed", "stepped", "shifted", "expanded") if bias is None else ("plain",)
        check(f"{F}conv{len(kernel) - 2}d", floats(*shape), floats(*kernel, seed=1), bias, layouts=layouts, **options)


@pytest.mark.parametrize("case", TRANSPOSED, ids=_id)
def test_transposed(case: Case) -> None:
    shape, kernel, options = case
    for bias in (None, floats(kernel[1] * options.get("groups", 1), seed=2)):
        layouts = ("plain", "transposed", "stepped", "expanded") if bias is None else ("plain",)
        check(f"{F}conv_transpose{len(kernel) - 2}d", floats(*shape), floats(*kernel, seed=1), bias, layouts=layouts, **options)


WRONG: list[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ("conv2d", (2, 3, 7, 9), (4, 2, 3, 3), {}),
    ("conv2d", (2, 3, 7, 9), (4, 3, 3), {}),
    ("conv2d", (7, 9), (4, 3, 3, 3), {}),
    ("conv2d", (2, 3, 7, 9), (4, 3, 8, 3), {}),
    ("conv2d", (2, 3, 7, 9), (4, 3, 3, 3), {"dilation": 4}),
    ("conv2d", (2, 3, 7, 9), (4, 3, 3, 3), {"stride": 0}),
    ("conv2d", (2, 3, 7, 9), (4, 3, 3, 3), {"stride": (1, 2, 3)}),
    ("conv2d", (2, 3, 7, 9), (4, 3, 3, 3), {"padding": -1}),
    ("conv2d", (2, 3, 7, 9), (4, 3, 3, 3), {"padding": "full"}),
    ("conv2d", (2, 3, 7, 9), (4, 3, 3, 3), {"padding": "same", "stride": 2}),
    ("conv2d", (2, 3, 7, 9), (4, 3, 3, 3), {"dilation": 0}),
    ("conv2d", (2, 3, 7, 9), (4, 3, 3, 3), {"groups": 2}),
    ("conv2d", (2, 4, 7, 9), (3, 2, 3, 3), {"groups": 2}),
    ("conv2d", (2, 3, 7, 9), (4, 3, 3, 3), {"groups": 0}),
    ("conv2d", (2, 3, 7, 9), (0, 3, 3, 3), {}),
    ("conv1d", (2, 3, 7, 9), (4, 3, 3), {}),
    ("conv_transpose2d", (2, 3, 7, 9), (4, 3, 3, 3), {}),
    ("conv_transpose2d", (2, 3, 7, 9), (3, 4, 3, 3), {"output_padding": 1}),
    ("conv_transpose2d", (2, 3, 1, 1), (3, 4, 1, 1), {"padding": 2}),
    ("conv_transpose2d", (2, 3, 7, 9), (3, 4, 3, 3), {"groups": 2}),
]


@pytest.mark.parametrize("case", WRONG, ids=str)
def test_errors(case: tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]) -> None:
    name, shape, kernel, options = case
    for lib, errors in ((torch, (RuntimeError, ValueError)), (mg, (mg.MeganeuraError,))):
        with pytest.raises(errors):
            getattr(lib.nn.functional, name)(lib.tensor(floats(*shape)), lib.tensor(floats(*kernel)), **options)


def test_wrong_operands() -> None:
    x, w = mg.tensor(floats(1, 3, 5, 5)), mg.tensor(floats(2, 3, 3, 3))
    for args in ((x, w.half()), (x, w, mg.tensor(floats(3))), (x, w, mg.tensor(floats(2)).half()), (x.long(), w.long())):
        with pytest.raises(mg.MeganeuraError):
            mg.nn.functional.conv2d(*args)


@pytest.mark.parametrize("kind", ["conv2d", "conv_transpose2d"])
def test_second_gradients(kind: str) -> None:
    grads: list[list[Any]] = []
    for lib in (mg, torch):
        fn = getattr(lib.nn.functional, kind)
        leaves = [lib.tensor(floats(*s, seed=i), requires_grad=True) for i, s in enumerate([(2, 4, 7, 6), (4, 2, 3, 2), (4,)])]
        out = fn(*leaves, stride=(2, 1), padding=1, groups=2)
        total = (out * out * out).sum()
        first = lib.autograd.grad([total], leaves, create_graph=True)
        second = sum(((g * g).sum() for g in first), start=lib.zeros(()))
        grads.append([g.detach().numpy() for g in (*first, *lib.autograd.grad([second], leaves))])
    for a, b in zip(*grads, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(b).max())


LAYERS: list[tuple[str, tuple[Any, ...], dict[str, Any], tuple[int, ...]]] = [
    ("Conv1d", (3, 4, 3), {"padding": 2, "padding_mode": "circular"}, (2, 3, 7)),
    ("Conv2d", (3, 4, 3), {}, (2, 3, 7, 6)),
    ("Conv2d", (4, 6, (3, 2)), {"stride": (2, 1), "padding": (1, 2), "dilation": 2, "groups": 2, "bias": False}, (4, 9, 8)),
    ("Conv2d", (3, 4, (3, 4)), {"padding": "same", "padding_mode": "reflect"}, (2, 3, 7, 6)),
    ("Conv2d", (3, 4, 3), {"padding": "valid", "padding_mode": "replicate"}, (2, 3, 7, 6)),
    ("Conv3d", (2, 3, (1, 2, 3)), {"padding": (0, 1, 1), "padding_mode": "replicate"}, (1, 2, 3, 4, 5)),
    ("ConvTranspose1d", (3, 4, 3), {"stride": 2, "output_padding": 1}, (2, 3, 7)),
    ("ConvTranspose2d", (4, 6, (3, 2)), {"stride": (2, 3), "padding": 1, "groups": 2, "bias": False}, (2, 4, 5, 4)),
    ("ConvTranspose3d", (2, 3, 2), {"dilation": (1, 2, 1)}, (1, 2, 2, 3, 2)),
]


@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_layers(case: Any) -> None:
    name, args, options, shape = case
    mine, their = getattr(mg.nn, name)(*args, **options), getattr(torch.nn, name)(*args, **options)
    assert repr(mine) == repr(their)
    assert [(k, tuple(v.shape)) for k, v in mine.state_dict().items()] == [(k, tuple(v.shape)) for k, v in their.state_dict().items()]
    bound = float(np.prod(their.weight.shape[1:])) ** -0.5
    assert all(0.5 * bound < abs(p.detach().numpy()).max() <= bound * 1.0001 for p in mine.parameters() if p.numel() > 8)
    their.load_state_dict({k: torch.tensor(v.detach().numpy()) for k, v in mine.state_dict().items()})
    x = floats(*shape)
    a, b = mg.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    out, want = mine(a), their(b)
    np.testing.assert_allclose(out.detach().numpy(), want.detach().numpy(), rtol=2e-5, atol=2e-5)
    (out * out).sum().backward(), (want * want).sum().backward()
    for p, q in zip([a, *mine.parameters()], [b, *their.parameters()], strict=True):
        np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=2e-4, atol=2e-4)


def test_output_size() -> None:
    x = floats(1, 3, 5, 4)
    mine, their = mg.nn.ConvTranspose2d(3, 2, 3, stride=3), torch.nn.ConvTranspose2d(3, 2, 3, stride=3)
    for size in ((15, 12), (17, 13), (1, 2, 16, 14)):
        assert mine(mg.tensor(x), output_size=size).shape == tuple(their(torch.tensor(x), output_size=size).shape)
    with pytest.raises(mg.MeganeuraError):
        mine(mg.tensor(x), output_size=(18, 12))


def test_wrong_layers() -> None:
    for name, args, options in (
        ("Conv2d", (3, 4, 3), {"groups": 2}), ("Conv2d", (3, 4, 3), {"padding_mode": "same"}), ("Conv2d", (3, 4, 3), {"padding": "all"}),
        ("Conv2d", (3, 4, 3), {"padding": "same", "stride": 2}), ("ConvTranspose2d", (3, 4, 3), {"padding_mode": "reflect"}),
    ):  # fmt: skip
        for lib in (mg, torch):
            with pytest.raises(ValueError):
                getattr(lib.nn, name)(*args, **options)


def _model() -> Any:
    mg.manual_seed(3)
    nn = mg.nn
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8), nn.Conv2d(8, 12, 1), nn.GELU(),
        nn.ConvTranspose2d(12, 5, 4, stride=2, padding=1),
    )  # fmt: skip


def test_compiled_training_equals_eager() -> None:
    x, t = mg.tensor(floats(2, 3, 8, 10)), mg.tensor(floats(2, 5, 8, 10, seed=5))
    results = []
    for compiled in (False, True):
        model = _model()
        optimizer = mg.optim.SGD(model.parameters(), lr=0.05)

        def step(a: Any, b: Any, model: Any = model, optimizer: Any = optimizer) -> Any:
            loss = ((model(a) - b) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        run = mg.compile(step) if compiled else step
        losses = [run(x, t).item() for _ in range(3)]
        results.append((losses, [p.detach().numpy() for p in model.parameters()]))
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-5)
    assert results[0][0][-1] < results[0][0][0]
    for a, b in zip(results[0][1], results[1][1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
