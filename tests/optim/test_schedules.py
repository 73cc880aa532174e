"""Learning-rate schedules give PyTorch's sequences."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import meganeura as mg
from meganeura import dispatch, nn, optim


def _optimizer() -> Any:
    with dispatch.use(mg.Reference()):
        a, b = nn.Parameter(mg.zeros(1)), nn.Parameter(mg.zeros(1))
    return optim.SGD([{"params": [a]}, {"params": [b], "lr": 0.03}], lr=0.5)


def _twin(torch: Any) -> Any:
    a, b = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))
    return torch.optim.SGD([{"params": [a]}, {"params": [b], "lr": 0.03}], lr=0.5)


CASES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("LambdaLR", (lambda e: 0.95**e,), {}),
    ("LambdaLR", ([lambda e: 1 / (e + 1), lambda e: e],), {}),
    ("StepLR", (3,), {}),
    ("StepLR", (4,), {"gamma": 0.5}),
    ("CosineAnnealingLR", (10,), {}),
    ("CosineAnnealingLR", (7,), {"eta_min": 0.01}),
    ("CosineAnnealingLR", (1,), {}),
]


@pytest.mark.torch
@pytest.mark.parametrize(("name", "args", "kwargs"), CASES, ids=lambda v: v if isinstance(v, str) else "")
def test_sequence(torch: Any, name: str, args: Any, kwargs: Any) -> None:
    opt, twin = _optimizer(), _twin(torch)
    ours, theirs = getattr(optim.lr_scheduler, name)(opt, *args, **kwargs), getattr(torch.optim.lr_scheduler, name)(twin, *args, **kwargs)
    for epoch in range(35):
        if epoch == 12:  # changed from outside: schedules that go step by step carry it on
            for o in (opt, twin):
                o.param_groups[0]["lr"] *= 2
        assert [g["lr"] for g in opt.param_groups] == pytest.approx([g["lr"] for g in twin.param_groups], rel=1e-9, abs=1e-12), epoch
        assert [g["initial_lr"] for g in opt.param_groups] == [0.5, 0.03]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            twin.step()
            theirs.step()
        ours.step()
        assert ours.get_last_lr() == pytest.approx(theirs.get_last_lr(), rel=1e-9, abs=1e-12)
        assert ours.last_epoch == theirs.last_epoch


@pytest.mark.parametrize(("name", "args", "kwargs"), CASES, ids=lambda v: v if isinstance(v, str) else "")
def test_resume(name: str, args: Any, kwargs: Any) -> None:
    make = getattr(optim.lr_scheduler, name)
    opt = _optimizer()
    schedule = make(opt, *args, **kwargs)
    for _ in range(5):
        schedule.step()
    other_opt = _optimizer()
    other = make(other_opt, *args, **kwargs)
    other_opt.load_state_dict(opt.state_dict())
    other.load_state_dict(schedule.state_dict())
    assert other.optimizer is other_opt
    for _ in range(9):
        schedule.step()
        other.step()
        assert other.get_last_lr() == schedule.get_last_lr()
        assert other_opt.param_groups[1]["lr"] == opt.param_groups[1]["lr"]


def test_state_is_plain_and_arguments_are_checked() -> None:
    opt = _optimizer()

    class Factor:
        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, epoch: int) -> float:
            self.calls += 1
            return 1.0

    schedule = optim.lr_scheduler.LambdaLR(opt, [Factor(), lambda e: 1.0])
    assert schedule.state_dict()["lr_lambdas"] == [{"calls": 1}, None]
    with pytest.raises(ValueError, match="expected 2 lr_lambdas, got 1"):
        optim.lr_scheduler.LambdaLR(opt, [lambda e: 1.0])
    with pytest.raises(ValueError, match="step_size must be at least 1"):
        optim.lr_scheduler.StepLR(opt, 0)
    with pytest.raises(TypeError, match="int is not an Optimizer"):
        optim.lr_scheduler.StepLR(3, 1)  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="initial_lr"):
        optim.lr_scheduler.StepLR(_optimizer(), 1, last_epoch=3)
