"""Learning-rate schedules give PyTorch's sequences."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest

import meganeura as mg
from meganeura import dispatch, nn, optim


def _optimizer() -> Any:
    with dispatch.use(mg.Reference()):
        a, b = nn.Parameter(mg.zeros(1)), nn.Parameter(mg.zeros(1))
    return optim.SGD([{"params": [a]}, {"params": [b], "lr": 0.03}], lr=0.5, momentum=0.5)


def _twin(torch: Any) -> Any:
    a, b = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))
    return torch.optim.SGD([{"params": [a]}, {"params": [b], "lr": 0.03}], lr=0.5, momentum=0.5)


CASES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("LambdaLR", (lambda e: 0.95**e,), {}),
    ("LambdaLR", ([lambda e: 1 / (e + 1), lambda e: e],), {}),
    ("StepLR", (3,), {}),
    ("StepLR", (4,), {"gamma": 0.5}),
    ("CosineAnnealingLR", (10,), {}),
    ("CosineAnnealingLR", (7,), {"eta_min": 0.01}),
    ("CosineAnnealingLR", (1,), {}),
    ("MultiplicativeLR", (lambda e: 0.95 + 0.001 * e,), {}),
    ("MultiStepLR", ([3, 7, 7, 20],), {"gamma": 0.5}),
    ("ExponentialLR", (0.9,), {}),
    ("ConstantLR", (), {}),
    ("ConstantLR", (0.5, 9), {}),
    ("LinearLR", (), {}),
    ("LinearLR", (0.25, 0.75, 8), {}),
    ("PolynomialLR", (), {}),
    ("PolynomialLR", (20, 2.5), {}),
    ("CosineAnnealingWarmRestarts", (5,), {}),
    ("CosineAnnealingWarmRestarts", (3, 2, 0.001), {}),
    ("OneCycleLR", (0.1,), {"total_steps": 40}),
    (
        "OneCycleLR",
        ([0.1, 0.2],),
        {"epochs": 4, "steps_per_epoch": 10, "anneal_strategy": "linear", "three_phase": True, "pct_start": 0.25},
    ),
    ("OneCycleLR", (0.1,), {"total_steps": 40, "cycle_momentum": False}),
    ("CyclicLR", (0.01, 0.1), {"step_size_up": 4}),
    ("CyclicLR", ([0.01, 0.02], 0.1), {"step_size_up": 4, "step_size_down": 7, "mode": "triangular2"}),
    ("CyclicLR", (0.01, 0.1), {"step_size_up": 3, "mode": "exp_range", "gamma": 0.97, "cycle_momentum": False}),
    ("CyclicLR", (0.01, 0.1), {"step_size_up": 3, "scale_fn": lambda x: 1 / (1 + x), "scale_mode": "iterations"}),
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
        for option in ("initial_lr", "momentum"):
            assert [g[option] for g in opt.param_groups] == pytest.approx([g[option] for g in twin.param_groups], rel=1e-9), epoch
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


COMBINED: dict[str, Any] = {
    "warm": lambda s, o: s.SequentialLR(o, [s.LinearLR(o, 0.1, total_iters=4), s.CosineAnnealingLR(o, 12)], [4]),
    "three": lambda s, o: s.SequentialLR(
        o, [s.ConstantLR(o, 0.1, 2), s.ExponentialLR(o, 0.9), s.MultiStepLR(o, [0, 3]), s.PolynomialLR(o, 9)], [3, 10, 15]
    ),
    "restarts": lambda s, o: s.SequentialLR(
        o, [s.LambdaLR(o, lambda e: 0.5**e), s.CosineAnnealingWarmRestarts(o, 4), s.StepLR(o, 2)], [5, 9]
    ),
    "chained": lambda s, o: s.ChainedScheduler([s.ConstantLR(o, 0.1, 4), s.ExponentialLR(o, 0.9)], optimizer=o),
    "both": lambda s, o: s.ChainedScheduler([s.SequentialLR(o, [s.LinearLR(o), s.ExponentialLR(o, 0.8)], [5]), s.StepLR(o, 6)]),
}


@pytest.mark.torch
@pytest.mark.parametrize("name", COMBINED)
def test_combined(torch: Any, name: str) -> None:
    opt, twin = _optimizer(), _twin(torch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours, theirs = COMBINED[name](optim.lr_scheduler, opt), COMBINED[name](torch.optim.lr_scheduler, twin)
        for epoch in range(25):
            assert [g["lr"] for g in opt.param_groups] == pytest.approx([g["lr"] for g in twin.param_groups], rel=1e-9, abs=1e-12), epoch
            assert ours.get_last_lr() == pytest.approx(theirs.get_last_lr(), rel=1e-9, abs=1e-12)
            twin.step()
            theirs.step()
            ours.step()


@pytest.mark.parametrize("name", COMBINED)
def test_combined_resume(name: str) -> None:
    opt, other_opt = _optimizer(), _optimizer()
    schedule, other = COMBINED[name](optim.lr_scheduler, opt), COMBINED[name](optim.lr_scheduler, other_opt)
    for _ in range(7):
        schedule.step()
    other_opt.load_state_dict(opt.state_dict())
    other.load_state_dict(copy.deepcopy(schedule.state_dict()))
    for _ in range(9):
        schedule.step()
        other.step()
        assert other.get_last_lr() == schedule.get_last_lr()


@pytest.mark.torch
@pytest.mark.parametrize("kwargs", [
    {}, {"mode": "max", "patience": 2, "factor": 0.5}, {"patience": 1, "cooldown": 2, "min_lr": [0.001, 0.02]},
    {"mode": "max", "threshold_mode": "abs", "threshold": 0.3, "patience": 0}, {"threshold": 0.1, "patience": 2, "eps": 0.01},
])  # fmt: skip
def test_plateau(torch: Any, kwargs: Any) -> None:
    opt, twin = _optimizer(), _twin(torch)
    ours, theirs = optim.lr_scheduler.ReduceLROnPlateau(opt, **kwargs), torch.optim.lr_scheduler.ReduceLROnPlateau(twin, **kwargs)
    metrics = [3.0, 2.5, 2.6, 2.4, 2.4, 2.4, 2.4, 2.5, 9.0, float("nan"), 2.3, *([2.3] * 30)]
    for m in metrics:
        ours.step(m)
        theirs.step(m)
        assert [g["lr"] for g in opt.param_groups] == pytest.approx([g["lr"] for g in twin.param_groups], rel=1e-12)
        assert (ours.num_bad_epochs, ours.cooldown_counter) == (theirs.num_bad_epochs, theirs.cooldown_counter)


@pytest.mark.torch
def test_restarts_at_fractions(torch: Any) -> None:
    opt, twin = _optimizer(), _twin(torch)
    ours = optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, 3, 2)
    theirs = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(twin, 3, 2)
    for epoch in (0.5, 2.9, 3.0, 4.25, 8.75, 9.1, 20.0):
        ours.step(epoch)
        theirs.step(epoch)
        assert ours.get_last_lr() == pytest.approx(theirs.get_last_lr(), rel=1e-9)


@pytest.mark.torch
def test_warmup_cosine(torch: Any) -> None:
    """The formula of Hugging Face's get_cosine_schedule_with_warmup."""
    import math

    def factor(step: int) -> float:
        if step < 5:
            return step / 5
        return max(0.0, 0.5 * (1.0 + math.cos(math.pi * min(1.0, (step - 5) / 15))))

    opt, twin = _optimizer(), _twin(torch)
    ours, theirs = optim.lr_scheduler.WarmupCosineLR(opt, 5, 20), torch.optim.lr_scheduler.LambdaLR(twin, factor)
    for _ in range(25):
        assert ours.get_last_lr() == pytest.approx(theirs.get_last_lr(), rel=1e-12, abs=1e-15)
        twin.step()
        theirs.step()
        ours.step()
    other = optim.lr_scheduler.WarmupCosineLR(_optimizer(), 0, 10, min_lr=0.02)
    assert other.get_last_lr() == [0.5, 0.03]
    for _ in range(15):
        other.step()
    assert other.get_last_lr() == pytest.approx([0.02, 0.02])


def test_betas_are_cycled() -> None:
    with dispatch.use(mg.Reference()):
        opt = optim.AdamW([nn.Parameter(mg.zeros(1))])
        schedule = optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=10)
        assert opt.param_groups[0]["betas"] == (0.95, 0.999)
        for _ in range(2):
            schedule.step()
        assert opt.param_groups[0]["betas"] == pytest.approx((0.85, 0.999))
        for _ in range(8):
            schedule.step()
        with pytest.raises(ValueError, match="step 12 of a OneCycleLR of 10 steps"):
            schedule.step()
        with pytest.raises(ValueError, match="neither"):
            optim.lr_scheduler.OneCycleLR(optim.Adagrad([nn.Parameter(mg.zeros(1))]), 0.1, total_steps=10)


def test_wrong_arguments() -> None:
    s, opt = optim.lr_scheduler, _optimizer()
    bad: list[tuple[Any, type, str]] = [
        (lambda: s.ConstantLR(opt, 1.5), ValueError, "factor must lie"),
        (lambda: s.LinearLR(opt, 0.0), ValueError, "start_factor must lie"),
        (lambda: s.CosineAnnealingWarmRestarts(opt, 0), ValueError, "T_0 must be"),
        (lambda: s.OneCycleLR(opt, 0.1), ValueError, "needs total_steps"),
        (lambda: s.OneCycleLR(opt, [0.1], total_steps=5), ValueError, "max_lr needs 2 values"),
        (lambda: s.CyclicLR(opt, 0.1, 0.2, mode="square"), ValueError, "not 'square'"),
        (lambda: s.ReduceLROnPlateau(opt, mode="least"), ValueError, "mode must be"),
        (lambda: s.ReduceLROnPlateau(opt).step(), TypeError, "needs the metric"),
        (lambda: s.SequentialLR(opt, [s.StepLR(opt, 1)], [3]), ValueError, "need 0 milestones"),
        (lambda: s.ChainedScheduler([]), ValueError, "at least one"),
        (lambda: s.ChainedScheduler([s.StepLR(opt, 1), s.StepLR(_optimizer(), 1)]), ValueError, "another optimizer"),
        (lambda: s.ChainedScheduler([s.ReduceLROnPlateau(opt)]), ValueError, "needs a metric"),
        (lambda: s.WarmupCosineLR(opt, 5, 4), ValueError, "warmup_steps <= total_steps"),
    ]
    for make, kind, text in bad:
        with pytest.raises(kind, match=text):
            make()
