"""Muon against PyTorch's steps in float32; SWALR and update_bn against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import nn, optim


def _gradient(step: int, shape: tuple[int, ...]) -> Any:
    return np.random.default_rng(step).standard_normal(shape).astype(np.float32)


def _wanted(p: Any, steps: int, lr: float, decay: float, momentum: float, nesterov: bool, ratio: float) -> Any:
    """PyTorch's rule in float64."""
    p, b = p.astype(np.float64), np.zeros(p.shape)
    for step in range(steps):
        g = _gradient(step, p.shape).astype(np.float64)
        b = b + (1 - momentum) * (g - b)
        u = g + momentum * (b - g) if nesterov else b
        x = u.T if u.shape[0] > u.shape[1] else u
        x = x / max(np.linalg.norm(x), 1e-7)
        for _ in range(5):
            gram = x @ x.T
            x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
        u = x.T if u.shape[0] > u.shape[1] else x
        p = p * (1 - lr * decay) - lr * ratio * u
    return p


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4)])
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("adjust", [None, "match_rms_adamw"])
@pytest.mark.parametrize("compiled", [False, True])
def test_muon(shape: tuple[int, int], nesterov: bool, adjust: str | None, compiled: bool) -> None:
    start = _gradient(99, shape)
    p = nn.Parameter(mg.tensor(start))
    opt = optim.Muon([p], lr=0.05, nesterov=nesterov, adjust_lr_fn=adjust)

    def step(g: Any) -> None:
        p.grad = g
        opt.step()

    run = mg.compile(step) if compiled else step
    for i in range(6):
        run(mg.tensor(_gradient(i, shape)))
    ratio = 0.2 * max(shape) ** 0.5 if adjust else max(1, shape[0] / shape[1]) ** 0.5
    want = _wanted(start, 6, 0.05, 0.1, 0.95, nesterov, ratio)
    np.testing.assert_allclose(p.detach().numpy(), want, rtol=1e-4, atol=2e-5)


@pytest.mark.torch
def test_muon_is_near_pytorch(torch: Any) -> None:
    """Which goes through bfloat16: three digits."""
    start = _gradient(99, (6, 4))
    ours, theirs = nn.Parameter(mg.tensor(start)), torch.nn.Parameter(torch.tensor(start))
    opt, twin = optim.Muon([ours]), torch.optim.Muon([theirs])
    for i in range(5):
        ours.grad, theirs.grad = mg.tensor(_gradient(i, (6, 4))), torch.tensor(_gradient(i, (6, 4)))
        opt.step()
        twin.step()
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), atol=3e-4)
    assert opt.state_dict()["param_groups"][0].keys() == twin.state_dict()["param_groups"][0].keys()
    again = optim.Muon([nn.Parameter(mg.tensor(start))])
    again.load_state_dict(twin.state_dict())


def test_muon_checks() -> None:
    matrix, vector = nn.Parameter(mg.zeros(2, 2)), nn.Parameter(mg.zeros(2))
    for params, options in (([vector], {}), ([matrix], {"adjust_lr_fn": "best"}), ([matrix], {"ns_steps": 100}), ([matrix], {"lr": -1.0})):
        with pytest.raises(ValueError):
            optim.Muon(params, **options)


@pytest.mark.torch
@pytest.mark.parametrize("strategy", ["cos", "linear"])
@pytest.mark.parametrize("epochs", [0, 1, 5])
@pytest.mark.filterwarnings("ignore")
def test_swalr(torch: Any, strategy: str, epochs: int) -> None:
    def rates(lib: Any, o: Any, p: Any) -> list[Any]:
        opt = o.SGD([{"params": [p], "lr": 0.5}], lr=0.1)
        first = o.lr_scheduler.ExponentialLR(opt, 0.9)
        swa = o.swa_utils.SWALR(opt, 0.05, epochs, strategy)
        out = []
        for i in range(12):
            (swa if i > 3 else first).step()
            out.append(opt.param_groups[0]["lr"])
        return [*out, *swa.get_last_lr()]

    ours = rates(mg, optim, nn.Parameter(mg.zeros(2)))
    theirs = rates(torch, torch.optim, torch.nn.Parameter(torch.zeros(2)))
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    for wrong in ({"anneal_strategy": "fast"}, {"anneal_epochs": -1}):
        with pytest.raises(ValueError):
            optim.swa_utils.SWALR(optim.SGD([nn.Parameter(mg.zeros(2))], lr=0.1), 0.05, **wrong)


@pytest.mark.torch
def test_update_bn(torch: Any) -> None:
    batches = [_gradient(i, (6, 3)) + i for i in range(4)]
    ours, theirs = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.0)), torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.0))
    ours.eval(), theirs.eval()
    optim.swa_utils.update_bn([(mg.tensor(b), None) for b in batches], ours)
    torch.optim.swa_utils.update_bn([(torch.tensor(b), None) for b in batches], theirs)
    for key, value in theirs.state_dict().items():
        np.testing.assert_allclose(ours.state_dict()[key].numpy(), value.numpy(), rtol=1e-5, err_msg=key)
    assert not ours.training and ours[0].momentum == 0.1
    optim.swa_utils.update_bn([], nn.Linear(2, 2))
