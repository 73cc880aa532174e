"""Fifty steps of every optimizer against PyTorch's (LaProp: against its formula in float64), and how state is kept."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import dispatch, nn, optim
from tests.optim.trajectory import give, gradients, parameters, same, starts, twins

CASES: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "weight_decay": 0.05}),
    ("SGD", {"lr": 0.05, "momentum": 0.9}),
    ("SGD", {"lr": 0.05, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.05, "momentum": 0.8, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.01, "momentum": 0.9, "maximize": True}),
    ("Adam", {"lr": 0.01}),
    ("Adam", {"lr": 0.01, "weight_decay": 0.1, "betas": (0.8, 0.95), "eps": 1e-6}),
    ("Adam", {"lr": 0.01, "amsgrad": True, "maximize": True}),
    ("AdamW", {"lr": 0.01}),
    ("AdamW", {"lr": 0.02, "weight_decay": 0.3, "amsgrad": True}),
    ("RMSprop", {"lr": 0.01}),
    ("RMSprop", {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1, "alpha": 0.9}),
    ("RMSprop", {"lr": 0.01, "centered": True, "eps": 1e-4}),
    ("RMSprop", {"lr": 0.01, "centered": True, "momentum": 0.5, "maximize": True, "eps": 1e-4}),
    ("Adagrad", {"lr": 0.1}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.01, "weight_decay": 0.1, "initial_accumulator_value": 0.3, "maximize": True}),
    ("Adadelta", {}),
    ("Adadelta", {"lr": 0.5, "rho": 0.8, "weight_decay": 0.1, "maximize": True}),
    ("Adamax", {"lr": 0.01}),
    ("Adamax", {"lr": 0.01, "weight_decay": 0.1, "betas": (0.8, 0.95), "maximize": True}),
    ("NAdam", {"lr": 0.01}),
    ("NAdam", {"lr": 0.01, "weight_decay": 0.1, "momentum_decay": 0.1}),
    ("NAdam", {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}),
    ("Rprop", {"lr": 0.01}),
    ("Rprop", {"lr": 0.02, "etas": (0.4, 1.5), "step_sizes": (1e-3, 0.1), "maximize": True}),
    ("RAdam", {"lr": 0.01}),
    ("RAdam", {"lr": 0.01, "weight_decay": 0.1, "betas": (0.8, 0.95)}),
    ("RAdam", {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}),
]


def _name(value: Any) -> str:
    return value if isinstance(value, str) else ""


_ids = [f"{name}-{'-'.join(k for k in kwargs if k != 'lr')}" for name, kwargs in CASES]


@pytest.mark.torch
@pytest.mark.parametrize(("name", "kwargs"), CASES, ids=_ids)
def test_fifty_steps(torch: Any, name: str, kwargs: dict[str, Any]) -> None:
    ours, theirs = parameters(), twins(torch)
    opt, twin = getattr(optim, name)(ours, **kwargs), getattr(torch.optim, name)(theirs, **kwargs)
    for step in range(50):
        give(ours, step, mg.tensor)
        give(theirs, step, torch.tensor)
        opt.step()
        twin.step()
    same(ours, theirs)


def _laprop(step_count: int, lr: float, beta1: float, beta2: float, eps: float, decay: float) -> list[Any]:
    """The formula, in float64. Source: arXiv:2002.04839."""
    params = [a.astype(np.float64) for a in starts()]
    m, v = [np.zeros_like(p) for p in params], [np.zeros_like(p) for p in params]
    for t in range(1, step_count + 1):
        for i, g in enumerate(gradients(t - 1)):
            v[i] = beta2 * v[i] + (1 - beta2) * g.astype(np.float64) ** 2
            n = g / (np.sqrt(v[i] / (1 - beta2**t)) + eps)
            m[i] = beta1 * m[i] + (1 - beta1) * n
            params[i] = params[i] * (1 - lr * decay) - lr * m[i] / (1 - beta1**t)
    return params


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_laprop(decay: float) -> None:
    params = parameters()
    opt = optim.LaProp(params, lr=0.01, betas=(0.9, 0.99), eps=1e-12, weight_decay=decay)
    for step in range(50):
        give(params, step, mg.tensor)
        opt.step()
    same(params, _laprop(50, 0.01, 0.9, 0.99, 1e-12, decay))


def _lion(step_count: int, lr: float, beta1: float, beta2: float, decay: float) -> list[Any]:
    """The formula, in float64. Source: arXiv:2302.06675."""
    params = [a.astype(np.float64) for a in starts()]
    m = [np.zeros_like(p) for p in params]
    for t in range(step_count):
        for i, g in enumerate(gradients(t)):
            params[i] = params[i] * (1 - lr * decay) - lr * np.sign(beta1 * m[i] + (1 - beta1) * g)
            m[i] = beta2 * m[i] + (1 - beta2) * g
    return params


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_lion(decay: float) -> None:
    params = parameters()
    opt = optim.Lion(params, lr=0.01, weight_decay=decay)
    for step in range(50):
        give(params, step, mg.tensor)
        opt.step()
    same(params, _lion(50, 0.01, 0.9, 0.99, decay))
    params[0].grad = mg.tensor(np.full((3, 5), np.nan, np.float32))
    opt.step()
    assert np.isnan(params[0].detach().numpy()).all(), "NaN has no sign, but must be seen"


@pytest.mark.parametrize("name", ["SGD", "Adam", "LaProp", "Lion", "NAdam", "RAdam", "Adagrad"])
def test_reference_agrees_with_eager(name: str) -> None:
    def run() -> list[Any]:
        params = parameters()
        opt = getattr(optim, name)(params, lr=0.01, **({"momentum": 0.9} if name == "SGD" else {}))
        for step in range(5):
            give(params, step, mg.tensor)
            opt.step()
        return [p.detach().numpy() for p in params]

    with dispatch.use(mg.Reference(precise=True)):
        expected = run()
    for a, b in zip(run(), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.torch
def test_parameters_without_gradient_are_skipped(torch: Any) -> None:
    """They are neither changed nor counted, so later their bias corrections start from one."""
    ours, theirs = parameters(), twins(torch)
    opt, twin = optim.Adam(ours, lr=0.05, weight_decay=0.1), torch.optim.Adam(theirs, lr=0.05, weight_decay=0.1)
    for step in range(6):
        give(ours, step, mg.tensor)
        give(theirs, step, torch.tensor)
        for params in (ours, theirs):
            if step < 3:
                params[1].grad = None
            if step % 2:
                params[2].grad = None
        opt.step()
        twin.step()
    same(ours, theirs)
    assert [opt.state[p]["step"] for p in ours] == [6, 3, 3, 6]


@pytest.mark.torch
def test_groups_and_changing_lr(torch: Any) -> None:
    ours, theirs = parameters(), twins(torch)

    def build(package: Any, params: Sequence[Any]) -> Any:
        opt = package.SGD([{"params": params[:2], "lr": 0.5}, {"params": [params[2]], "momentum": 0.5}], lr=0.1, weight_decay=0.01)
        opt.add_param_group({"params": params[3], "weight_decay": 0.0})
        return opt

    opt, twin = build(optim, ours), build(torch.optim, theirs)
    for step in range(8):
        give(ours, step, mg.tensor)
        give(theirs, step, torch.tensor)
        for o in (opt, twin):
            o.param_groups[0]["lr"] *= 0.9
            o.step()
            o.zero_grad()
    same(ours, theirs)
    assert all(p.grad is None for p in ours)


def test_one_dispatch_for_many_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Counting(mg.Reference):
        def apply(self, op: Any, values: Any, out: Any) -> Any:
            calls.append(op.name)
            return super().apply(op, values, out)

    with dispatch.use(Counting()):
        params = parameters()
        opt = optim.AdamW(params)
        for step in range(2):
            give(params, step, mg.tensor)
            calls.clear()
            opt.step()
    assert calls == ["adam_update"]


def test_moments_share_one_storage() -> None:
    params = parameters()
    opt = optim.Adam(params)
    assert not opt.state
    give(params, 0, mg.tensor)
    opt.step()
    moments = [m for p in params for m in (opt.state[p]["exp_avg"], opt.state[p]["exp_avg_sq"])]
    assert len({m._storage.uid for m in moments}) == 1
    assert all(m.storage_offset() % 4 == 0 and m.is_contiguous() for m in moments)
    spans = sorted(m.layout.span() for m in moments)
    assert all(a[1] < b[0] for a, b in pairwise(spans))


def test_strided_parameters_and_gradients() -> None:
    base = np.arange(12, dtype=np.float32).reshape(3, 4)
    p = nn.Parameter(mg.tensor(base).t())
    p.grad = mg.tensor(np.ones((3, 4), np.float32)).t()
    assert not p.is_contiguous()
    optim.SGD([p], lr=1.0).step()
    np.testing.assert_array_equal(p.detach().numpy(), base.T - 1)


def test_float16_parameters_keep_float32_moments() -> None:
    p = nn.Parameter(mg.tensor(np.ones(3, np.float16)))
    opt = optim.Adam([p], lr=0.1)
    p.grad = mg.tensor(np.full(3, 1e-4, np.float16))  # its square is 0 in float16
    opt.step()
    assert opt.state[p]["exp_avg_sq"].dtype is mg.float32
    np.testing.assert_allclose(p.detach().numpy(), 0.9, rtol=1e-3)


def test_closure() -> None:
    p = nn.Parameter(mg.tensor([3.0]))
    opt = optim.SGD([p], lr=0.1)

    def closure() -> Any:
        opt.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    with mg.no_grad():
        assert opt.step(closure).item() == 9.0
    assert p.item() == pytest.approx(2.4)
    opt.zero_grad(set_to_none=False)
    assert p.grad is not None
    assert p.grad.item() == 0.0


# ---- state ----


@pytest.mark.torch
@pytest.mark.parametrize(("name", "kwargs"), [CASES[i] for i in (4, 8, 9, 12, 16, 17, 20, 22, 25)], ids=_name)
def test_state_from_torch(torch: Any, name: str, kwargs: dict[str, Any]) -> None:
    """Half the steps by PyTorch, the rest by both."""
    theirs = twins(torch)
    twin = getattr(torch.optim, name)(theirs, **kwargs)
    for step in range(10):
        give(theirs, step, torch.tensor)
        twin.step()
    ours = [nn.Parameter(mg.tensor(q.detach().numpy())) for q in theirs]
    opt = getattr(optim, name)(ours, lr=99.0)
    opt.load_state_dict(twin.state_dict())
    assert opt.param_groups[0]["lr"] == kwargs.get("lr", 1.0)
    for step in range(10, 20):
        give(ours, step, mg.tensor)
        give(theirs, step, torch.tensor)
        opt.step()
        twin.step()
    same(ours, theirs)


@pytest.mark.torch
@pytest.mark.parametrize(("name", "kwargs"), [CASES[i] for i in (4, 8, 12, 16, 22)], ids=_name)
def test_state_to_torch(torch: Any, name: str, kwargs: dict[str, Any]) -> None:
    ours = parameters()
    opt = getattr(optim, name)(ours, **kwargs)
    for step in range(5):
        give(ours, step, mg.tensor)
        opt.step()
    saved = opt.state_dict()
    saved["state"] = {
        i: {k: torch.from_numpy(v.numpy()) if isinstance(v, mg.Tensor) else torch.tensor(float(v)) for k, v in s.items()}
        for i, s in saved["state"].items()
    }
    theirs = [torch.nn.Parameter(torch.from_numpy(p.detach().numpy())) for p in ours]
    twin = getattr(torch.optim, name)(theirs, **kwargs)
    twin.load_state_dict(saved)
    for step in range(5, 10):
        give(ours, step, mg.tensor)
        give(theirs, step, torch.tensor)
        opt.step()
        twin.step()
    same(ours, theirs)


@pytest.mark.parametrize("copier", ["state_dict", "deepcopy", "pickle"])
def test_a_copy_continues_bit_for_bit(copier: str) -> None:
    params = parameters()
    opt = optim.AdamW(params, lr=0.01)
    for step in range(4):
        give(params, step, mg.tensor)
        opt.step()
    opt.zero_grad()
    if copier == "state_dict":
        others = [nn.Parameter(p.detach().clone()) for p in params]
        other = optim.AdamW(others)
        other.load_state_dict(copy.deepcopy(opt.state_dict()))
    else:
        both: Any = copy.deepcopy((params, opt)) if copier == "deepcopy" else pickle.loads(pickle.dumps((params, opt)))
        others, other = both
    for step in range(4, 7):
        for p, o in ((params, opt), (others, other)):
            give(p, step, mg.tensor)
            o.step()
    for a, b in zip(params, others, strict=True):
        assert a is not b
        np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy())
    assert other.state[others[0]]["step"] == 7
    assert len({m._storage.uid for s in other.state.values() for m in s.values() if isinstance(m, mg.Tensor)}) == 1


def test_load_keeps_the_moments_memory_and_checks_first() -> None:
    params = parameters()
    opt = optim.Adam(params, lr=0.01)
    give(params, 0, mg.tensor)
    opt.step()
    saved = copy.deepcopy(opt.state_dict())
    moment = opt.state[params[0]]["exp_avg"]
    before = moment.numpy()
    give(params, 1, mg.tensor)
    opt.step()
    broken = copy.deepcopy(saved)
    broken["state"][1]["exp_avg"] = np.zeros((2, 2), np.float32)
    broken["param_groups"][0]["lr"] = 5.0
    with pytest.raises(mg.CheckpointError, match=r"state 'exp_avg' of parameter 1 has shape \[2, 2\], the parameter \[7\]"):
        opt.load_state_dict(broken)
    assert opt.param_groups[0]["lr"] == 0.01
    assert opt.state[params[0]]["step"] == 2
    opt.load_state_dict(saved)
    assert opt.state[params[0]]["exp_avg"] is moment
    np.testing.assert_array_equal(moment.numpy(), before)
    assert opt.state[params[0]]["step"] == 1
    with pytest.raises(mg.CheckpointError, match="2 parameter groups, this one 1"):
        opt.load_state_dict({**saved, "param_groups": saved["param_groups"] * 2})
    with pytest.raises(mg.CheckpointError, match="group 0: 4 parameters were saved, this optimizer has 1"):
        optim.Adam(params[:1]).load_state_dict(saved)


def test_arguments_are_checked() -> None:
    p = nn.Parameter(mg.zeros(2))
    bad: list[tuple[Any, type, str]] = [
        (lambda: optim.SGD([], lr=0.1), ValueError, "empty parameter list"),
        (lambda: optim.SGD(p, lr=0.1), TypeError, "not one tensor"),
        (lambda: optim.SGD([p], lr=-1.0), ValueError, "invalid lr: -1.0"),
        (lambda: optim.SGD([p], lr=0.1, nesterov=True), ValueError, "nesterov momentum requires"),
        (lambda: optim.Adam([p], betas=(0.9, 1.0)), ValueError, "invalid beta parameter at index 1"),
        (lambda: optim.Lion([p], betas=(-0.1, 0.9)), ValueError, "invalid beta parameter at index 0"),
        (lambda: optim.Adadelta([p], rho=1.5), ValueError, "invalid rho"),
        (lambda: optim.Adagrad([p], lr_decay=-1.0), ValueError, "invalid lr_decay"),
        (lambda: optim.RMSprop([p], momentum=-1.0), ValueError, "invalid momentum"),
        (lambda: optim.NAdam([p], momentum_decay=-1.0), ValueError, "invalid momentum_decay"),
        (lambda: optim.Adam([p, p]), ValueError, "appears twice"),
        (lambda: optim.Adam([{"params": [p]}, {"params": [p]}]), ValueError, "appears twice"),
        (lambda: optim.Adam([3]), TypeError, "is a int, not a Tensor"),
        (lambda: optim.Adam([p * 2]), mg.GradientError, "only leaf tensors"),
        (lambda: optim.Adam([mg.zeros(2, dtype=mg.int32)]), TypeError, "not floating point"),
    ]
    for make, kind, text in bad:
        with pytest.raises(kind, match=text):
            make()


def test_lr_multipliers() -> None:
    """The longest prefix counts; it is as if the parameters had groups with these learning rates, also after saving."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def build() -> Any:
        mg.manual_seed(0)
        return Net()

    net, twin = build(), build()
    opt = optim.AdamW(net.named_parameters(), lr=0.1, weight_decay=0.1)
    opt.set_lr_multipliers({"": 0.5, "head.": 0.1, "head.bias": 0.0})
    rates = [("body.weight", 0.05), ("body.bias", 0.05), ("head.weight", 0.01), ("head.bias", 0.0)]
    other = optim.AdamW([{"params": [twin.get_parameter(n)], "lr": lr} for n, lr in rates], weight_decay=0.1)
    before = net.head.bias.tolist()
    for step in range(4):
        if step == 2:
            again = optim.AdamW(net.named_parameters())
            again.load_state_dict(copy.deepcopy(opt.state_dict()))
            opt = again
        for n, o in ((net, opt), (twin, other)):
            (n.head(n.body(mg.ones(2, 3))) ** 2).sum().backward()
            o.step()
            o.zero_grad()
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        np.testing.assert_array_equal(p.detach().numpy(), q.detach().numpy())
    assert net.head.bias.tolist() == before
    with pytest.raises(ValueError, match=r"no parameter's name begins with 'tail'; there are body\.weight"):
        opt.set_lr_multipliers({"tail": 1.0})
    with pytest.raises(ValueError, match="go by names"):
        optim.SGD(net.parameters()).set_lr_multipliers({"head": 1.0})


def test_named_parameters() -> None:
    net = nn.Linear(2, 2)
    opt = optim.SGD(net.named_parameters(), lr=0.1)
    assert opt.param_groups[0]["param_names"] == ["weight", "bias"]
    assert opt.state_dict()["param_groups"][0]["param_names"] == ["weight", "bias"]
    assert "lr: 0.1" in repr(opt)


def test_what_guards_read() -> None:
    """A compiled step depends on options that choose statements, on the groups and on which step counts are equal; not on numbers."""
    with dispatch.use(mg.Reference()):
        params = parameters()
        opt = optim.SGD(params, lr=0.1, momentum=0.9)

        def changed(action: Any) -> bool:
            seen = opt._fingerprint()
            action()
            return bool(opt._fingerprint() != seen)

        give(params, 0, mg.tensor)
        assert hash(opt._fingerprint()) == hash(opt._fingerprint())
        assert not changed(opt.step), "the first step allocates, but changes nothing that a trace depends on"
        assert not changed(opt.step)
        assert not changed(lambda: opt.param_groups[0].update(lr=0.5, weight_decay=0.1))
        assert changed(lambda: opt.param_groups[0].update(nesterov=True))
        params[0].grad = None
        assert changed(opt.step)
        assert changed(lambda: opt.add_param_group({"params": nn.Parameter(mg.zeros(1))}))


def test_host_scalars_count_steps_when_called() -> None:
    """A trace asks for numbers without computing them; every replay computes them anew and so advances the step count."""
    asked: list[Any] = []

    class Tracing(mg.Reference):
        def host_scalars(self, fn: Any, count: int) -> Any:
            asked.append(fn)
            assert len(fn()) == count
            return fn()

    with dispatch.use(Tracing()):
        params = parameters()
        opt = optim.Adam(params, lr=0.1)
        give(params, 0, mg.tensor)
        opt.step()
        assert opt.state[params[0]]["step"] == 2
        opt.param_groups[0]["lr"] = 1.0
        first = asked[0]()
        assert opt.state[params[0]]["step"] == 3
        assert first[6] == pytest.approx(1.0 / (1 - 0.9**3))
        opt.load_state_dict({**opt.state_dict(), "state": {}})
        assert asked[0]()[6] == pytest.approx(1.0 / (1 - 0.9))
