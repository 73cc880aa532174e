"""Averaged models against PyTorch's, eager and compiled; gradient accumulation against the large batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import nn, optim
from meganeura.optim import swa_utils

RNG = np.random.default_rng(0)
STEPS = [(RNG.standard_normal((4, 3)).astype(np.float32), RNG.standard_normal(4).astype(np.float32)) for _ in range(5)]


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)
        self.mean = nn.Buffer(mg.zeros(2))
        self.calls = nn.Buffer(mg.tensor(0, dtype=mg.int64))


def _twin(torch: Any) -> Any:
    class Net(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 4)
            self.register_buffer("mean", torch.zeros(2))
            self.register_buffer("calls", torch.tensor(0))

    return Net()


def _set(net: Any, i: int, make: Any) -> None:
    net.layer.weight.copy_(make(STEPS[i][0]))
    net.layer.bias.copy_(make(STEPS[i][1]))
    net.mean.fill_(float(i + 1))
    net.calls.fill_(i)


RULES: dict[str, Any] = {
    "swa": lambda s: {},
    "ema": lambda s: {"multi_avg_fn": s.get_ema_multi_avg_fn(0.7)},
    "ema each": lambda s: {"avg_fn": s.get_ema_avg_fn(0.7)},
    "swa each": lambda s: {"avg_fn": s.get_swa_avg_fn()},
    "buffers": lambda s: {"multi_avg_fn": s.get_ema_multi_avg_fn(0.2), "use_buffers": True},
    "own": lambda s: {"avg_fn": lambda average, value, n: average * 0.5 + value * 0.5 / n},
}


@pytest.mark.torch
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("rule", RULES)
def test_averaged_model(torch: Any, rule: str, compiled: bool) -> None:
    net, twin = _Net(), _twin(torch)
    ours = swa_utils.AveragedModel(net, **RULES[rule](swa_utils))
    theirs = torch.optim.swa_utils.AveragedModel(twin, **RULES[rule](torch.optim.swa_utils))
    update = mg.compile(lambda: ours.update_parameters(net)) if compiled else lambda: ours.update_parameters(net)
    for i in range(5):
        with mg.no_grad(), torch.no_grad():
            _set(net, i, mg.tensor)
            _set(twin, i, torch.tensor)
        update()
        theirs.update_parameters(twin)
        expected = theirs.state_dict()
        assert set(ours.state_dict()) == set(expected)
        for name, value in ours.state_dict().items():
            if name == "module.calls" and rule == "buffers":  # PyTorch averages integers too, cutting off; here they are copied
                assert value.item() == i
                continue
            np.testing.assert_allclose(value.numpy(), expected[name].numpy(), rtol=1e-6, atol=1e-7, err_msg=f"{name} after {i + 1}")
    if compiled:
        assert update.traces == 1


def test_the_first_update_copies_and_the_call_evaluates() -> None:
    net = _Net()
    ema = optim.EMA(net, 0.9)
    with mg.no_grad():
        _set(net, 0, mg.tensor)
    ema.update_parameters(net)
    np.testing.assert_array_equal(ema.module.layer.weight.detach().numpy(), STEPS[0][0])
    assert ema.n_averaged.item() == 1
    net.layer.weight.data = mg.zeros(4, 3)
    assert ema.module.layer.weight.tolist() != net.layer.weight.tolist()
    plain = swa_utils.AveragedModel(nn.Linear(2, 2))
    np.testing.assert_array_equal(plain(mg.ones(1, 2)).detach().numpy(), plain.module(mg.ones(1, 2)).detach().numpy())
    with pytest.raises(TypeError, match="not both"):
        swa_utils.AveragedModel(net, avg_fn=swa_utils.get_swa_avg_fn(), multi_avg_fn=swa_utils.get_swa_multi_avg_fn())
    with pytest.raises(ValueError, match="invalid decay"):
        optim.EMA(net, 1.5)


# ---- accumulation ----

X = RNG.standard_normal((8, 4, 3)).astype(np.float32)


def _training(micro: int, max_norm: float | None = None) -> tuple[Any, Any, Any]:
    mg.manual_seed(0)
    net = nn.Linear(3, 2)
    opt = optim.Adam(net.parameters(), lr=0.1)
    accumulation = optim.GradientAccumulation(opt, micro, max_norm)

    def step(x: Any) -> Any:
        loss = (net(x) ** 2).mean()
        accumulation.backward(loss)
        accumulation.step()
        return loss

    return net, accumulation, step


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("max_norm", [None, 0.05])
def test_accumulation_is_the_large_batch(compiled: bool, max_norm: float | None) -> None:
    net, accumulation, plain = _training(3, max_norm)
    step = mg.compile(plain) if compiled else plain
    for x in X:
        step(mg.tensor(x))
    assert accumulation.count == 2
    assert accumulation.flush()
    assert not accumulation.flush()
    assert all(p.grad is None for p in net.parameters())
    if compiled:
        assert step.traces <= 3
    other, _, _ = _training(1)
    opt = optim.Adam(other.parameters(), lr=0.1)
    for part in (X[:3], X[3:6], X[6:]):
        (other(mg.tensor(part.reshape(-1, 3))) ** 2).mean().backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(other.parameters(), max_norm)
        opt.step()
        opt.zero_grad()
    for p, q in zip(net.parameters(), other.parameters(), strict=True):
        np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_accumulation_says_when_it_stepped_and_is_checked() -> None:
    net, accumulation, _ = _training(2)
    said = []
    for _ in range(5):
        accumulation.backward(net(mg.ones(1, 3)).sum())
        said.append(accumulation.step())
    assert said == [False, True, False, True, False]
    other = optim.GradientAccumulation(accumulation.optimizer, 2)
    other.load_state_dict(accumulation.state_dict())
    assert other.count == 1

    def twice(x: Any) -> Any:
        for _ in range(2):
            accumulation.backward(net(x).sum())
            accumulation.step()

    with pytest.raises(mg.TraceError, match="one backward pass a call"):
        mg.compile(twice)(mg.ones(1, 3))
    with pytest.raises(ValueError, match="steps must be at least 1"):
        optim.GradientAccumulation(accumulation.optimizer, 0)
    with pytest.raises(TypeError, match="is not an Optimizer"):
        optim.GradientAccumulation(net, 2)
