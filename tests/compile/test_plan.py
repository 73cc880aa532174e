"""The memory planner: no value overwrites one that is needed, in any order; what it saves; what is exported and dumped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from benchmarks.transformer import Block
from meganeura import nn, optim
from meganeura.compile import cache, plan
from meganeura.compile.lower import Lowering
from meganeura.compile.verify_plan import InvalidPlan, verify_plan
from meganeura.kernels.kernel import Profile
from tests.compile.training import batch, setup

ROOT = Path(__file__).parents[2]
ORDERS = ("program", "late", "early")
PROFILES = (Profile(family="cpu", subgroup_size=8, max_storage_buffers=16), Profile(max_storage_buffers=8))


def _program(seed: int) -> Callable[..., Any]:
    """A random function of two [4, 6] tensors: elementwise ops, rows, products, views, in-place writes, random numbers."""

    def run(x: Any, y: Any) -> Any:
        rng = np.random.default_rng(seed)
        live = [x * 1, y * 1, x + y]
        for _ in range(25):
            a, b = (live[rng.integers(len(live))] for _ in range(2))
            match int(rng.integers(11)):
                case 0:
                    live.append(a * 0.5 + b)
                case 1:
                    live.append(a.tanh())
                case 2:
                    live.append(nn.functional.softmax(a, -1))
                case 3:
                    live.append(nn.functional.layer_norm(a, (6,)))
                case 4:
                    live.append((a @ b.T) @ b * 0.1)
                case 5:
                    live.append(a - a.sum(1, keepdim=True) * 0.1)
                case 6:
                    a.add_(b.tanh(), alpha=0.5)
                case 7:
                    a[1:3].mul_(0.5)
                case 8:
                    live.append(mg.cat([a[:2], b[2:]]))
                case 9:
                    live.append(nn.functional.dropout(a, 0.3))
                case 10:
                    live.append(a.T.contiguous().T + b)
            if len(live) > 6:
                live.pop(int(rng.integers(len(live))))
        return tuple(live[: int(rng.integers(1, 4))])

    return run


def _arguments() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((4, 6)).astype(np.float32) for _ in range(2))
    return mg.tensor(x), mg.tensor(y)


def _plans(graph: Any, profile: Profile) -> list[plan.Plan]:
    """A plan an order, with and without writing over operands, and the one chosen."""
    lowering = Lowering(profile)
    steps = lowering.steps(graph.nodes)
    out = [plan.plan(graph, steps, True, lowering), plan.plan(graph, steps, False)]
    for how in (lowering, None):
        out += plan.candidates(graph, steps, how)
    for found in out:
        assert {s.node for s in found.steps} == {s.node for s in steps}
    return out


@pytest.mark.parametrize("rewrite", ["off", "greedy"])
def test_random_graphs_have_right_plans_in_every_order(rewrite: str) -> None:
    for seed in range(15):
        compiled = mg.compile(_program(seed), rewrite=rewrite)
        graph = compiled.graph(*_arguments())
        for profile in PROFILES:
            chosen, loose, *others = _plans(graph, profile)
            for found in (chosen, loose, *others):
                verify_plan(graph, found)
                assert found.bound <= found.peak
            assert chosen.peak <= loose.peak


def test_training_steps_have_right_plans_in_every_order() -> None:
    for zero_first in (False, True):
        step = mg.compile(setup(dropout=0.3, clip=1.0, zero_first=zero_first).step)
        graph = step.graph(*batch())
        for profile in PROFILES:
            for found in _plans(graph, profile):
                verify_plan(graph, found)


@pytest.mark.parametrize("name", ORDERS)
def test_every_order_computes_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wanted(graph: Any, steps: Any, reuse: bool, lowering: Any) -> plan.Plan:
        return next(p for p in plan.candidates(graph, steps, lowering) if p.order == name)

    monkeypatch.setattr(cache, "plan", wanted)
    for seed in range(8):
        function = _program(seed)
        mg.manual_seed(seed)
        want = [t.numpy() for t in function(*_arguments())]
        mg.manual_seed(seed)
        compiled = mg.compile(function)
        for got, expected in zip(compiled(*_arguments()), want, strict=True):
            np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5, atol=1e-5)
        assert compiled.plan(*_arguments()).order == name


def test_a_plan_that_overwrites_is_found() -> None:
    """The checker itself: two living values in one block, a result that is gone, steps out of order."""

    def f(x: Any, y: Any) -> Any:
        a, b = (x @ y.T).sum(), (y @ x.T).sum(0)
        return b * a, x.sum(0)

    compiled = mg.compile(f)
    graph = compiled.graph(*_arguments())

    def fresh() -> plan.Plan:
        lowering = Lowering(PROFILES[0])
        return plan.plan(graph, lowering.steps(graph.nodes), True, lowering)

    broken = fresh()
    for cell in broken.place:
        broken.place[cell] = 0
    broken.blocks[0] = 1 << 20
    with pytest.raises(InvalidPlan):
        verify_plan(graph, broken)
    broken = fresh()
    broken.place[graph.outputs[0]] = len(broken.blocks) - 1
    with pytest.raises(InvalidPlan):
        verify_plan(graph, broken)
    broken = fresh()
    broken.steps.reverse()
    broken.temps.reverse()
    with pytest.raises(InvalidPlan, match="its cell holds"):
        verify_plan(graph, broken)


def _transformer(layers: int, zero_first: bool) -> tuple[Any, Any, Any]:
    """A step of a transformer of width 384 with 6 heads and 256 positions, and its arguments."""
    mg.manual_seed(0)
    model = nn.Sequential(*(Block(384, 6) for _ in range(layers)))
    opt = optim.AdamW(model.parameters(), lr=1e-4)

    def step(x: Any, y: Any) -> Any:
        if zero_first:
            opt.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        opt.step()
        if not zero_first:
            opt.zero_grad()
        return loss

    x = mg.zeros(1, 256, 384)
    return step, x, mg.ones(1, 256, 384)


@pytest.mark.parametrize("zero_first", [True, False])
@pytest.mark.parametrize("rewrite", ["off", "greedy"])
def test_a_training_step_needs_half_of_its_values(rewrite: str, zero_first: bool) -> None:
    """Gradients that the caller keeps (zero_first) are in both sums; their buffers hold activations before."""
    step, x, y = _transformer(4, zero_first)
    found = mg.compile(step, rewrite=rewrite).plan(x, y)
    assert found.peak < 0.5 * (found.demanded + found.outputs)
    assert found.peak < 1.45 * found.bound
    assert found.over > (50 if rewrite == "off" else 0)


def test_gradients_stay_the_callers_until_the_next_step() -> None:
    """zero_grad at the start: .grad is there between steps, and a tensor taken from it keeps its values."""
    a, b = setup(zero_first=True), setup(zero_first=True)
    step = mg.compile(a.step)
    kept = []
    for i in range(4):
        step(*batch(i))
        b.step(*batch(i))
        for p, q in zip(a.model.parameters(), b.model.parameters(), strict=True):
            np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-5, atol=1e-6)
        kept.append((next(a.model.parameters()).grad, next(b.model.parameters()).grad))
    for mine, theirs in kept:
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-6)


def test_results_that_are_kept_keep_their_values() -> None:
    """A result's buffer holds other values first, so each kept one needs a buffer of its own."""

    def f(x: Any) -> Any:
        for _ in range(6):
            x = nn.functional.softmax(x @ x, -1) + 1
        return x

    compiled = mg.compile(f)
    xs = [mg.tensor(np.random.default_rng(i).standard_normal((64, 64)).astype(np.float32)) for i in range(5)]
    kept = [compiled(x) for x in xs]
    assert compiled.plan(xs[0]).nbytes <= 2 * 64 * 64 * 4 + 4096
    for x, got in zip(xs, kept, strict=True):
        np.testing.assert_allclose(got.numpy(), f(x).numpy(), rtol=1e-5)


# ---- what is exported, and the switches ----


def test_export_describes_blocks_values_and_steps() -> None:
    step = mg.compile(setup(dropout=0.3).step)
    found = step.session(*batch())
    data = json.loads(json.dumps(found.export()))
    assert json.loads(found.plan_json()) == data
    assert data["totals"]["peak"] == sum(b["bytes"] for b in data["blocks"])
    assert data["totals"]["bound"] <= data["totals"]["peak"]
    names = {v["name"] for v in data["values"]}
    assert "0.weight" in names
    for value in data["values"]:
        assert value["first"] <= value["last"] < len(data["steps"])
        if value["block"] is not None:
            assert data["blocks"][value["block"]]["bytes"] >= value["bytes"]
    for one in data["steps"]:
        assert one["launches"]
        assert one["bytes"] > 0
        assert "training.py" in one["site"] or ".py" in one["site"]
    kernels = sum(len(s["launches"]) for s in data["steps"])
    step(*batch())
    assert found.frozen is not None
    assert kernels == len(found.frozen.steps)


_SCRIPT = """
import json, sys
import meganeura as mg
from tests.compile.training import setup, batch, weights
s = setup(zero_first=True)
step = mg.compile(s.step)
losses = [step(*batch(i)).detach().item() for i in range(3)]
session = step.session(*batch())
step2 = mg.compile(setup().step)
step2(*batch())
shared = {id(b) for b in session.blocks} & {id(b) for b in step2.session(*batch()).blocks}
print(json.dumps({"losses": losses, "own": session.plan.nbytes, "demanded": session.plan.demanded, "steps": len(session.plan.steps),
                  "submits": len(session.frozen.chunks), "shared": len(shared), "dispatches": len(session.frozen.steps)}))
"""


def _with(**variables: str) -> Any:
    """What a small training says in a process of its own with these MEGANEURA_ variables."""
    env = os.environ | {f"MEGANEURA_{k}": v for k, v in variables.items()}
    done = subprocess.run([sys.executable, "-W", "error", "-c", _SCRIPT], capture_output=True, text=True, env=env, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_switches_of_sessions(tmp_path: Path) -> None:
    plain = _with(DUMP_PLAN=str(tmp_path / "plans"), DUMP_WGSL=str(tmp_path / "shaders"))
    assert plain["own"] < plain["demanded"]
    assert plain["submits"] == 1
    assert plain["shared"]
    plans = sorted((tmp_path / "plans").iterdir())
    assert {p.suffix for p in plans} == {".json", ".txt"}
    assert "plan: " in next(p for p in plans if p.suffix == ".txt").read_text()
    assert json.loads(next(p for p in plans if p.suffix == ".json").read_text())["steps"]
    assert all("@compute" in p.read_text() for p in (tmp_path / "shaders").glob("*.wgsl"))
    assert list((tmp_path / "shaders").glob("*.wgsl"))
    others = {name: _with(**{name: "1"}) for name in ("NO_ALIAS", "PIN_BUFS", "SERIAL_DISPATCH", "DEBUG")}
    off, greedy = _with(OPTIMIZER="off"), _with(OPTIMIZER="greedy")
    assert off["steps"] > greedy["steps"] == plain["steps"]
    for found in (*others.values(), off, greedy):
        np.testing.assert_allclose(found["losses"], plain["losses"], rtol=1e-5)
    assert others["NO_ALIAS"]["own"] == others["NO_ALIAS"]["demanded"]
    assert others["PIN_BUFS"]["own"] == others["PIN_BUFS"]["demanded"]
    assert others["PIN_BUFS"]["shared"] == 0
    assert others["SERIAL_DISPATCH"]["submits"] == others["SERIAL_DISPATCH"]["dispatches"]
