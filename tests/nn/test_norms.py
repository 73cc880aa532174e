"""Norms over channels, against PyTorch: values, gradients, running statistics, state, repr, errors, compiled training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meganeura as mg
from tests.surface.compare import check, floats, torch

PLAIN = ("plain", "transposed")
OPTIONS: list[dict[str, Any]] = [{}, {"affine": False}, {"track_running_stats": False}, {"momentum": 0.3, "eps": 1e-2}]
SHAPES = {"BatchNorm1d": [(6, 3), (4, 3, 5)], "BatchNorm2d": [(2, 3, 4, 5)], "BatchNorm3d": [(2, 3, 2, 3, 2)]}
SHAPES |= {"InstanceNorm1d": [(4, 3, 5), (3, 5)], "InstanceNorm2d": [(2, 3, 4, 5), (3, 4, 5)], "InstanceNorm3d": [(2, 3, 2, 3, 2)]}


def _pair(name: str, *args: Any, **options: Any) -> tuple[Any, Any]:
    ours, theirs = getattr(mg.nn, name)(*args, **options), getattr(torch.nn, name)(*args, **options)
    assert repr(ours) == repr(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for i, (p, q) in enumerate(zip(ours.parameters(), theirs.parameters(), strict=True)):
        value = floats(*p.shape, seed=i + 3)
        with mg.no_grad():
            p.copy_(mg.tensor(value))
        q.data.copy_(torch.tensor(value))
    return ours, theirs


def _step(layer: Any, lib: Any, x: Any) -> list[Any]:
    t = lib.tensor(x, requires_grad=True)
    y = layer(t)
    (y * lib.tensor(floats(*y.shape, seed=11))).sum().backward()
    return [y.detach().numpy(), t.grad.numpy(), *(p.grad.numpy() for p in layer.parameters())]


CASES = [
    (name, options)
    for options in [*OPTIONS, {"momentum": None}, {"affine": True, "track_running_stats": True}]
    for name in SHAPES
    if "Instance" not in name or options.get("momentum", 0.1) is not None  # which PyTorch's instance norm does not take
]


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_layer(name: str, options: dict[str, Any]) -> None:
    for shape in SHAPES[name]:
        ours, theirs = _pair(name, 3, **options)
        for i in range(3):
            x = floats(*shape, seed=i)
            for a, b in zip(_step(ours, mg, x), _step(theirs, torch, x), strict=True):
                np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
        for key, value in theirs.state_dict().items():
            np.testing.assert_allclose(ours.state_dict()[key].numpy(), value.numpy(), rtol=1e-5, atol=1e-6, err_msg=key)
        ours.eval(), theirs.eval()
        for a, b in zip(_step(ours, mg, x), _step(theirs, torch, x), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-4)


def test_group_norm_and_local_response_norm() -> None:
    for groups in (1, 2, 6):
        ours, theirs = _pair("GroupNorm", groups, 6)
        for shape in ((2, 6), (3, 6, 5), (2, 6, 3, 4)):
            x = floats(*shape)
            if shape == (2, 6) and groups == 6:
                continue  # groups of one value: PyTorch refuses in batch norm only, and all is 0
            for a, b in zip(_step(ours, mg, x), _step(theirs, torch, x), strict=True):
                np.testing.assert_allclose(a, b, rtol=2e-4, atol=5e-5)
    for size in (1, 2, 3, 5):
        check("nn.functional.local_response_norm", floats(2, 6, 4), size, 0.1, layouts=PLAIN, half=False)
        check("nn.functional.local_response_norm", floats(1, 3, 2, 4), size, 0.5, 0.6, 2.0, layouts=PLAIN, half=False)
    _pair("LocalResponseNorm", 2)
    _pair("GroupNorm", 2, 4, affine=False)


def test_functions() -> None:
    mean, var = floats(3), np.abs(floats(3, seed=1)) + 0.1
    w, b = floats(3, seed=2), floats(3, seed=3)
    check("nn.functional.batch_norm", floats(4, 3, 5), mean, var, w, b, layouts=PLAIN, grad=False)
    check("nn.functional.batch_norm", floats(4, 3, 5), None, None, w, b, True, layouts=PLAIN, grad_rtol=1e-3)
    check("nn.functional.batch_norm", floats(4, 3), None, None, None, b, True, layouts=PLAIN, half=False, grad_rtol=1e-3)
    check("nn.functional.instance_norm", floats(4, 3, 5), None, None, w, b, layouts=PLAIN, half=False, grad_rtol=1e-3)
    check("nn.functional.group_norm", floats(4, 6, 5), 3, layouts=PLAIN, half=False, grad_rtol=1e-3)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("batch_norm", (floats(4, 3), None, None)),
        ("batch_norm", (floats(1, 3), None, None, None, None, True)),
        ("batch_norm", (floats(4, 3), floats(2), floats(2))),
        ("instance_norm", (floats(4, 3, 1),)),
        ("group_norm", (floats(4, 5, 2), 2)),
        ("group_norm", (floats(4, 4, 2), 2, floats(3))),
        ("local_response_norm", (floats(4, 4), 2)),
    ],
)
def test_refusals(name: str, args: Any) -> None:
    check(f"nn.functional.{name}", *args, layouts=("plain",), half=False)


def test_layers_refuse() -> None:
    for name, shape in (("BatchNorm1d", (3,)), ("BatchNorm2d", (3, 3, 4)), ("InstanceNorm2d", (3, 4)), ("BatchNorm3d", (2, 3, 4, 4))):
        with pytest.raises(mg.ShapeError, match=name):
            getattr(mg.nn, name)(3)(mg.tensor(floats(*shape)))
    with pytest.raises(ValueError, match="multiple of num_groups"):
        mg.nn.GroupNorm(4, 6)


def test_compiled_training_follows_the_statistics() -> None:
    def build() -> tuple[Any, Any]:
        mg.manual_seed(0)
        net = mg.nn.Sequential(mg.nn.Linear(5, 4), mg.nn.BatchNorm1d(4), mg.nn.ReLU(), mg.nn.BatchNorm1d(4, momentum=None))
        return net, mg.optim.SGD(net.parameters(), lr=0.1)

    results = []
    for wrap in (lambda f: f, mg.compile):
        net, opt = build()

        def step(x: Any, net: Any = net, opt: Any = opt) -> Any:
            opt.zero_grad()
            loss = (net(x) ** 3).mean()
            loss.backward()
            opt.step()
            return loss

        run = wrap(step)
        losses = [run(mg.tensor(floats(8, 5, seed=i))).item() for i in range(4)]
        results.append((losses, {k: v.numpy() for k, v in net.state_dict().items()}))
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-4, atol=1e-6)
    for key, value in results[0][1].items():
        np.testing.assert_allclose(value, results[1][1][key], rtol=1e-4, atol=1e-5, err_msg=key)
