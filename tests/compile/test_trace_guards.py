"""What a session was traced with is watched: a change is traced anew, and equals plain code again; nothing else is."""

from __future__ import annotations

import dataclasses
import functools
import gc
import sys
import types
import warnings
import weakref
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import nn, optim
from meganeura.optim import lr_scheduler
from tests.compile.agree import agree, numbers

A, B = numbers(3, 4), numbers(3, 4, seed=1)

SCALE = 2.0
WEIGHT = mg.tensor(A)
NET = nn.Linear(4, 4)
TABLE = {"shift": 1.0, "layers": [1, 2]}
counter = 0
log: list[str] = []


def helper(x: Any) -> Any:
    return x * SCALE


def other_helper(x: Any) -> Any:
    return x - SCALE


def module_of(**values: Any) -> Any:
    """A Python module of the user's, as imported from a file."""
    module = types.ModuleType("settings_of_the_user")
    module.__file__ = "/srv/settings_of_the_user.py"
    vars(module).update(values)
    return module


SETTINGS = module_of(rate=3.0)


def check(f: Any, g: Any, changes: list[Any], x: Any = None, traces: int | None = None) -> None:
    """g, compiled, equals f, now and after every change; each change is one trace more."""
    x = mg.tensor(B) if x is None else x
    for i, change in enumerate([lambda: None, *changes]):
        change()
        for _ in range(2):
            np.testing.assert_allclose(g(x).detach().numpy(), f(x).detach().numpy(), rtol=1e-5, atol=1e-6)
        assert g.traces == (i + 1 if traces is None else min(i + 1, traces))


def setting(name: str, value: Any) -> Any:
    return lambda: globals().__setitem__(name, value)


@pytest.fixture(autouse=True)
def as_before() -> Any:
    before = {k: globals()[k] for k in ("SCALE", "WEIGHT", "NET", "TABLE", "counter", "log", "helper", "SETTINGS")}
    yield
    globals().update(before)
    SETTINGS.rate = 3.0


def test_global_number() -> None:
    def f(x: Any) -> Any:
        return x * SCALE

    check(f, mg.compile(f), [setting("SCALE", 3.0), setting("SCALE", True), setting("SCALE", 1.0)])


def test_equal_number_is_no_change() -> None:
    def f(x: Any) -> Any:
        return x * SCALE

    g = mg.compile(f)
    for _ in range(3):
        globals()["SCALE"] = float("3.25")  # another object every time
        np.testing.assert_array_equal(g(mg.tensor(A)).numpy(), A * np.float32(3.25))
    assert g.traces == 1


def test_global_tensor_module_and_function() -> None:
    def f(x: Any) -> Any:
        return NET(x * WEIGHT) + helper(x)

    changes = [
        setting("WEIGHT", mg.tensor(B)), setting("NET", nn.Linear(4, 4)), setting("NET", nn.Sequential(nn.ReLU())),
        setting("helper", other_helper), setting("SCALE", 0.5),
    ]  # fmt: skip
    check(f, mg.compile(f), changes)


def test_tensor_changed_in_place_is_no_change() -> None:
    def f(x: Any) -> Any:
        return x * WEIGHT

    g = mg.compile(f)
    check(f, g, [lambda: WEIGHT.mul_(2), lambda: WEIGHT.copy_(mg.tensor(B))], traces=1)


def test_globals_of_functions_it_calls() -> None:
    def inner(x: Any) -> Any:
        return helper(x) + len(TABLE["layers"])

    def f(x: Any) -> Any:
        return functools.partial(inner)(x) + sum(map(lambda v: v * SCALE, [1.0]))  # noqa: C417

    check(f, mg.compile(f), [setting("SCALE", 4.0), lambda: TABLE["layers"].append(5)])
    TABLE["layers"].pop()


def test_closure_cells() -> None:
    scale, w = 2.0, mg.tensor(A)
    parts = [1.0, (2.0, {"k": 3.0})]

    def f(x: Any) -> Any:
        return x * scale * w + parts[0] + parts[1][1]["k"]

    def change(number: Any = None, tensor: Any = None) -> None:
        nonlocal scale, w
        scale, w = number or scale, w if tensor is None else tensor

    check(
        f,
        mg.compile(f),
        [
            lambda: change(3.0),
            lambda: change(tensor=mg.tensor(B)),
            lambda: parts.__setitem__(0, 9.0),
            lambda: parts[1][1].__setitem__("k", 0.5),
        ],
    )


def test_cell_that_is_filled_later() -> None:
    def make() -> Any:
        def f(x: Any) -> Any:
            try:
                return x * later
            except NameError:
                return x

        g = mg.compile(f)
        first = g(mg.ones(2)).tolist()
        later = 3.0
        return first, g(mg.ones(2)).tolist()

    assert make() == ([1, 1], [3, 3])


def test_containers() -> None:
    layers = [nn.Linear(4, 4), nn.ReLU()]
    named = {"a": 1.0}
    chosen = {"a"}

    def f(x: Any) -> Any:
        for layer in layers:
            x = layer(x)
        for k, v in named.items():
            x = x + v if k in chosen else x - v
        return x

    check(
        f,
        mg.compile(f),
        [
            lambda: layers.append(nn.Linear(4, 4)),
            lambda: layers.__setitem__(1, nn.GELU()),
            lambda: named.update(b=2.0),
            lambda: named.__setitem__("a", 5.0),
            lambda: chosen.add("b"),
            lambda: layers.pop(),
        ],
    )


def test_attributes_of_plain_objects() -> None:
    class Config:
        gain = 2.0

        def __init__(self) -> None:
            self.by, self.unused, self.w = 1.5, 0, mg.tensor(A)

        def scaled(self, x: Any) -> Any:
            return x * self.by * self.gain + self.w * SCALE

    config = Config()

    def f(x: Any) -> Any:
        return config.scaled(x)

    g = mg.compile(f)
    check(
        f,
        g,
        [
            lambda: setattr(config, "by", 2.5),
            lambda: setattr(config, "w", mg.tensor(B)),
            lambda: setattr(Config, "gain", 3.0),
            setting("SCALE", 5.0),
            lambda: setattr(config, "gain", 4.0),
        ],
    )
    config.unused = 3
    g(mg.tensor(B))
    assert g.traces == 6


def test_attributes_of_self_and_of_arguments() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.by, self.net = 2.0, nn.Linear(4, 4)

        @mg.compile
        def run(self, x: Any, options: Any) -> Any:
            return self.net(x) * self.by + options.shift

    t, options = Trainer(), types.SimpleNamespace(shift=1.0)
    x = mg.tensor(B)
    for change in (
        lambda: None,
        lambda: setattr(t, "by", 3.0),
        lambda: setattr(options, "shift", 0.0),
        lambda: setattr(t, "net", nn.ReLU()),
    ):
        change()
        want = t.net(x) * t.by + options.shift
        np.testing.assert_allclose(t.run(x, options).detach().numpy(), want.detach().numpy(), rtol=1e-5, atol=1e-6)
    assert Trainer.run.traces == 4


def test_settings_in_a_module_of_the_user() -> None:
    def f(x: Any) -> Any:
        return x * SETTINGS.rate

    check(f, mg.compile(f), [lambda: setattr(SETTINGS, "rate", 4.0)])


def test_defaults_and_partials() -> None:
    config = {"k": 2.0}

    def f(x: Any, settings: Any = config) -> Any:
        return x * settings["k"]

    check(f, mg.compile(f), [lambda: config.update(k=3.0)])
    g = mg.compile(functools.partial(lambda s, x: x * s["k"], config))
    assert g(mg.ones(2)).tolist() == [3, 3]
    config["k"] = 4.0
    assert g(mg.ones(2)).tolist() == [4, 4]


def test_what_forward_reads() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.settings = {"k": 2.0}
            self.sizes = [1, 2]

        def helper(self, x: Any) -> Any:
            return x * SCALE

        def forward(self, x: Any) -> Any:
            return self.helper(self.inner(x)) * self.settings["k"] + len(self.sizes)

    net = Scaled()
    f = mg.compile(net)
    x = mg.tensor(B)
    changes = [
        lambda: None, setting("SCALE", 3.0), lambda: setattr(net, "sizes", [1]), lambda: setattr(net, "inner", nn.Identity()),
        lambda: net.settings.update(k=4.0), lambda: net.sizes.append(1),
    ]  # fmt: skip
    for change in changes:
        change()
        np.testing.assert_allclose(f(x).detach().numpy(), net(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    assert f.compiled.traces == len(changes)


def test_attributes_of_a_module_that_is_not_called() -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = 2.0
            self.inner = nn.Linear(4, 4)

    holder = Holder()

    def f(x: Any) -> Any:
        return nn.functional.linear(x, holder.inner.weight) * holder.scale + (1 if holder.training else 0)

    check(
        f, mg.compile(f), [lambda: setattr(holder, "scale", 3.0), lambda: holder.eval(), lambda: setattr(holder, "inner", nn.Linear(4, 4))]
    )


def test_a_log_is_a_side_effect() -> None:
    """A container that the code itself fills is not watched: it is filled when the code is traced."""

    def f(x: Any) -> Any:
        log.append("traced")
        return x * 2

    g = mg.compile(f)
    for _ in range(3):
        assert g(mg.ones(2)).tolist() == [2, 2]
    assert log == ["traced"] and g.traces == 1
    log.clear()


def test_a_count_is_traced_again_with_a_warning() -> None:
    def f(x: Any) -> Any:
        global counter
        counter += 1
        return x * counter

    g = mg.compile(f)
    with pytest.warns(
        UserWarning, match=r"traced 8 times for one signature; last because of the global 'counter', which is now (.|\n)*tensor"
    ):
        for n in range(1, 11):
            assert g(mg.ones(2)).tolist() == [n, n]


def test_memory_of_rebound_tensors_is_bounded() -> None:
    def f(x: Any) -> Any:
        return x * WEIGHT

    g = mg.compile(f)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in range(12):
            globals()["WEIGHT"] = mg.full((3, 4), float(i))
            assert (g(mg.ones(3, 4)).numpy() == i).all()
    assert g.sessions == 8


def test_going_back_needs_no_trace() -> None:
    def f(x: Any) -> Any:
        return x * SCALE

    g = mg.compile(f)
    for value in (1.0, 2.0, 1.0, 2.0):
        globals()["SCALE"] = value
        assert g(mg.ones(2)).tolist() == [value] * 2
    assert g.traces == 2


def test_watching_costs_little() -> None:
    """What libraries and this package define is not watched."""

    def f(x: Any) -> Any:
        return nn.functional.relu(mg.exp(x)) + np.float32(1.0) + sys.maxsize * 0

    g = mg.compile(f)
    g(mg.tensor(A))
    (program,) = next(iter(g.programs.values()))
    assert not program.guard.names.names and not program.guard.names.containers


def test_callable_objects_and_bound_methods() -> None:
    class Scaled:
        def __init__(self) -> None:
            self.by = 2.0

        def __call__(self, x: Any) -> Any:
            return x * self.by * SCALE

        def method(self, x: Any) -> Any:
            return self(x) + self.by

    s = Scaled()
    changes = [lambda: setattr(s, "by", 3.0), setting("SCALE", 5.0)]
    check(s, mg.compile(s), changes)
    check(s.method, mg.compile(s.method), [lambda: setattr(s, "by", 4.0), setting("SCALE", 6.0)])


def test_objects_that_answer_to_every_name() -> None:
    class Anything:
        def __getattr__(self, name: str) -> Any:
            return 2.0

    anything = Anything()
    g = mg.compile(lambda x: x * anything.by)
    for _ in range(2):
        assert g(mg.ones(2)).tolist() == [2, 2]
    assert g.traces == 1


def test_batches_are_not_kept() -> None:
    """What only came as an argument is free after the call, also where the code names the attributes it came in."""

    @dataclasses.dataclass
    class Batch:
        x: Any

    g = mg.compile(lambda batch: batch.x * 2)
    x = mg.ones(2)
    seen = weakref.ref(x)
    g(Batch(x))
    del x
    gc.collect()
    assert seen() is None
    for n in (1.0, 2.0):
        assert g(Batch(mg.full((2,), n))).tolist() == [2 * n] * 2
    assert g.traces == 1


def test_inherited_code() -> None:
    class Base(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * SCALE

    class Derived(Base):
        def forward(self, x: Any) -> Any:
            return super().forward(x) + 1

    net = Derived()
    f = mg.compile(net)
    for change in (lambda: None, setting("SCALE", 3.0)):
        change()
        assert f(mg.ones(2)).tolist() == [SCALE + 1] * 2
    assert f.compiled.traces == 2


# ---- optimizers and schedules ----


SCHEDULES: dict[str, Any] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 3], 0.5),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.8),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, 2),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.5, total_iters=3),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 5),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 4),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.2, total_steps=10),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=2),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda e: 1 / (e + 1)),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda e: 0.9),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.1, 2), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[2]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.ConstantLR(o, 0.1, 2), lr_scheduler.ExponentialLR(o, 0.9)]),
    "WarmupCosineLR": lambda o: lr_scheduler.WarmupCosineLR(o, warmup_steps=2, total_steps=6),
}


def training(schedule: Any, inside: bool) -> Any:
    mg.manual_seed(0)
    net = nn.Linear(4, 2)
    opt = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = schedule(opt)

    def step(x: Any) -> Any:
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        if inside:
            plan.step()
        return loss.detach()

    step.plan = plan  # type: ignore[attr-defined]
    return step, lambda: [*net.parameters(), opt.param_groups[0]["lr"], plan.get_last_lr()]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside"])
def test_schedules(name: str, inside: bool) -> None:
    between = None if inside else (lambda i, f: f.plan.step())
    agree(lambda: training(SCHEDULES[name], inside), [(numbers(3, 4, seed=i),) for i in range(5)], between=between)


def test_plateau() -> None:
    between = lambda i, f: f.plan.step(1.0)
    agree(lambda: training(lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1), False), [(A,)] * 5, between=between)
    mg.manual_seed(0)
    opt = optim.SGD([nn.Parameter(mg.ones(2))], lr=0.1)
    plan = lr_scheduler.ReduceLROnPlateau(opt)

    def f(x: Any) -> None:
        plan.step(x.sum())

    with pytest.raises(mg.TraceError, match=r"test_trace_guards.py"):
        mg.compile(f)(mg.ones(2))


def groups() -> Any:
    mg.manual_seed(0)
    nets = [nn.Linear(4, 4), nn.Linear(4, 2)]
    opt = optim.AdamW([{"params": nets[0].parameters(), "lr": 0.1}], lr=0.01)

    def step(x: Any) -> Any:
        loss = nets[1](nets[0](x).relu()).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss.detach()

    step.opt, step.nets = opt, nets  # type: ignore[attr-defined]
    return step, lambda: [p for n in nets for p in n.parameters()]


def test_groups_that_come_and_go() -> None:
    def between(i: int, f: Any) -> None:
        if i == 2:
            f.opt.add_param_group({"params": f.nets[1].parameters(), "weight_decay": 0.5})
        if i == 4:
            del f.opt.param_groups[1]
        if i == 6:
            f.nets[0].weight.requires_grad_(False)
        if i == 7:
            f.opt.param_groups[0].update(lr=0.5, betas=(0.5, 0.9), eps=1e-3, weight_decay=0.3)

    agree(groups, [(numbers(3, 4, seed=i),) for i in range(9)], traces=None, between=between)


def test_hyper_parameters_of_every_kind() -> None:
    changes = {
        "SGD": [
            {"lr": 0.2},
            {"momentum": 0.5},
            {"weight_decay": 0.1},
            {"nesterov": True},
            {"maximize": True},
            {"dampening": 0.3, "nesterov": False},
        ],
        "AdamW": [{"lr": 0.2}, {"betas": (0.5, 0.9)}, {"eps": 1e-2}, {"weight_decay": 0.1}, {"amsgrad": True}, {"maximize": True}],
        "RMSprop": [{"lr": 0.2}, {"alpha": 0.5}, {"centered": True}, {"momentum": 0.4}, {"eps": 0.1}],
        "Lion": [{"lr": 0.2}, {"betas": (0.5, 0.8)}, {"weight_decay": 0.2}],
    }
    for kind, updates in changes.items():

        def make(kind: str = kind) -> Any:
            p = nn.Parameter(mg.tensor(A))
            opt = getattr(optim, kind)([p], lr=0.1)

            def step(g: Any) -> None:
                p.grad = g * 1
                opt.step()

            step.opt = opt  # type: ignore[attr-defined]
            return step, lambda: p

        def between(i: int, f: Any, updates: Any = updates) -> None:
            if i:
                f.opt.param_groups[0].update({k: v for k, v in updates[i - 1].items() if k in f.opt.param_groups[0]})

        agree(make, [(numbers(3, 4, seed=i),) for i in range(len(updates) + 1)], traces=None, between=between)


def test_numbers_of_a_group_that_the_code_reads() -> None:
    p = nn.Parameter(mg.ones(2))
    opt = optim.SGD([p], lr=0.5)

    def f(x: Any) -> Any:
        return x * opt.param_groups[0]["lr"]

    check(f, mg.compile(f), [lambda: opt.param_groups[0].update(lr=0.25), lambda: opt.param_groups[0].update(lr=0.125)])

    def norms(x: Any) -> Any:
        return sum(q.detach().sum() for g in opt.param_groups for q in g["params"]) * x

    check(norms, mg.compile(norms), [lambda: opt.param_groups[0].update(lr=0.5)], traces=1)


# ---- the cache ----


def test_dropped_sessions_that_come_back_warn() -> None:
    f = mg.compile(lambda x, y: x + 1)
    y = mg.ones(1)
    for n in range(1, 71):
        f(mg.ones(n), y)
    with pytest.warns(UserWarning, match=r"more than the 64 signatures(.|\n)*argument tensor 0 had \d+ shapes: pad"):
        f(mg.ones(1), y)
    assert f.sessions == 64


def test_signature_that_is_used_stays() -> None:
    f = mg.compile(lambda x: x + 1)
    for n in range(2, 100):
        f(mg.ones(n))
        f(mg.ones(1))
    assert f.traces == 99
