"""A whole training step, compiled: equal to eager, nothing made anew at the second call, outputs that stay the caller's."""

from __future__ import annotations

import gc
import resource
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import gpu, optim
from tests.compile.training import batch, counts, setup, weights


def _run(step: Any, steps: int) -> list[float]:
    return [float(step(*batch(i))) for i in range(steps)]


@pytest.mark.parametrize("rewrite", ["off", "greedy"])
@pytest.mark.parametrize("zero_first", [False, True])
def test_dropout_and_clipping_as_eager(rewrite: str, zero_first: bool) -> None:
    """Compiled and eager draw the same bits, step after step, and clip by the same norm."""
    eager, compiled = setup(dropout=0.3, clip=0.5, zero_first=zero_first), setup(dropout=0.3, clip=0.5, zero_first=zero_first)
    mg.manual_seed(5)
    a = _run(eager.step, 6)
    mg.manual_seed(5)
    b = _run(mg.compile(compiled.step, rewrite=rewrite, debug=True), 6)
    np.testing.assert_allclose(b, a, rtol=2e-6)


@pytest.mark.parametrize("zero_first", [False, True])
def test_second_call_makes_nothing(zero_first: bool) -> None:
    """No retrace, no pipeline, no buffer, no bind group, when outputs are dropped."""
    step = mg.compile(setup(dropout=0.1, zero_first=zero_first).step)
    x, y = batch()
    step(x, y)
    before = counts()
    for _ in range(3):
        step(x, y)
    assert counts() == before
    assert (step.traces, step.retraces, step.sessions) == (1, 0, 1)


def test_inputs_that_take_turns_make_nothing() -> None:
    """Fresh batches reuse the pool's buffers, and buffers that take turns reuse their bind groups."""
    step = mg.compile(setup().step)
    for i in range(48):  # where runs share a submit, batches of many are under way
        step(*batch(i))
    before = counts()
    for i in range(12):
        step(*batch(i))
    assert counts() == before


def test_losses_that_are_kept_stay() -> None:
    step = mg.compile(setup().step)
    eager = setup().step
    x, y = batch()
    losses = [step(x, y) for _ in range(6)]
    values = [float(v) for v in losses]
    np.testing.assert_allclose(values, [float(eager(x, y)) for _ in range(6)], rtol=1e-5)
    assert len(set(values)) == 6


def test_scheduler_changes_lr_without_a_retrace() -> None:
    eager, compiled = setup(), setup()
    step = mg.compile(compiled.step)
    schedules = [optim.lr_scheduler.StepLR(s.opt, step_size=1, gamma=0.5) for s in (eager, compiled)]
    x, y = batch()
    for _ in range(5):
        assert float(step(x, y)) == pytest.approx(float(eager.step(x, y)), rel=1e-5)
        for schedule in schedules:
            schedule.step()
    assert step.traces == 1


def test_tail_batch_costs_one_session() -> None:
    step = mg.compile(setup().step)
    for _ in range(2):
        for rows in (16, 16, 7):
            step(*batch(rows, rows))
    assert step.sessions == step.traces == 2
    before = counts()
    for rows in (16, 16, 7):
        step(*batch(rows, rows))
    assert counts()[0] == before[0]
    assert step.traces == 2


def test_a_thousand_steps_are_flat() -> None:
    """Neither the pool nor the process grows."""
    step = mg.compile(setup(dropout=0.1).step)
    device = gpu.current()
    x, y = batch()

    def run(n: int) -> tuple[int, int, int]:
        for _ in range(n):
            loss = step(x, y)
        float(loss)
        gc.collect()
        device.synchronize()
        memory = device.memory()
        return memory.live + memory.pooled, memory.bind_groups, len(gc.get_objects())

    run(100)
    bytes_before, groups_before, objects_before = run(100)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    bytes_after, groups_after, objects_after = run(1000)
    assert bytes_after == bytes_before
    assert groups_after == groups_before
    assert objects_after <= objects_before + 50
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss <= peak + 4096  # KiB


def test_gradients_left_in_grad_are_the_callers() -> None:
    """A step that leaves .grad behind: equal to eager, fresh if the caller kept the last one, in place when accumulating."""
    eager, compiled = setup(), setup()

    def gradients(s: Any) -> Any:
        def run(x: Any) -> Any:
            s.model(x).sum().backward()

        return run

    x, _ = batch()
    a, b = gradients(eager), mg.compile(gradients(compiled), debug=True)
    a(x), b(x)
    kept = next(iter(compiled.model.parameters())).grad
    first = kept.numpy()
    for s in (eager, compiled):
        s.opt.zero_grad()
    b(x), a(x)
    np.testing.assert_array_equal(kept.numpy(), first)
    a(x), b(x), a(x), b(x)  # accumulates from now on
    assert b.traces == 2
    for p, q in zip(eager.model.parameters(), compiled.model.parameters(), strict=True):
        np.testing.assert_allclose(q.grad.numpy(), p.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_optimizer_step_alone() -> None:
    """Gradients from eager backward, in new tensors every time, updated by a compiled step."""
    eager, compiled = setup(), setup()
    step = mg.compile(lambda: compiled.opt.step(), debug=True)
    for i in range(4):
        for s, update in ((eager, eager.opt.step), (compiled, step)):
            x, y = batch(i)
            s.opt.zero_grad()
            mg.nn.functional.cross_entropy(s.model(x), y).backward()
            update()
    assert step.traces == 1
    for a, b in zip(weights(eager.model), weights(compiled.model), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-6)


def test_model_and_optimizer_as_arguments() -> None:
    def step(model: Any, opt: Any, x: Any, y: Any) -> Any:
        loss = mg.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        return {"loss": loss, "model": model}

    one, two, eager = setup(), setup(seed=1), setup()
    compiled = mg.compile(step)
    x, y = batch()
    for _ in range(3):
        out = compiled(one.model, one.opt, x, y)
        compiled(two.model, two.opt, x, y)
        assert out["model"] is one.model
        assert float(out["loss"]) == pytest.approx(float(eager.step(x, y)), rel=1e-5)
    assert compiled.sessions == 2


def test_accumulated_gradients() -> None:
    """Two backward passes in one step, and micro-batches over several calls."""
    eager, compiled = setup(), setup()

    def passes(s: Any) -> Any:
        def run(x: Any, u: Any, y: Any) -> None:
            for part in (x, u):
                (mg.nn.functional.cross_entropy(s.model(part), y) / 2).backward()

        return run

    a, b = passes(eager), mg.compile(passes(compiled), debug=True)
    (x, y), (u, _) = batch(1), batch(2)
    for _ in range(3):
        for _ in range(2):
            a(x, u, y), b(x, u, y)
        for p, q in zip(eager.model.parameters(), compiled.model.parameters(), strict=True):
            np.testing.assert_allclose(q.grad.numpy(), p.grad.numpy(), rtol=1e-4, atol=1e-6)
        for s in (eager, compiled):
            s.opt.step()
            s.opt.zero_grad()
    assert b.traces == 2


def test_gradient_of_an_argument() -> None:
    """A leaf argument gets its .grad, which then accumulates; the first one is not kept alive."""

    def f(x: Any) -> Any:
        loss = (x * x).sum()
        loss.backward()
        return loss.detach()

    g = mg.compile(f, debug=True)
    for _ in range(3):
        x = mg.tensor([1.0, 2.0]).requires_grad_()
        g(x)
        assert x.grad.tolist() == [2, 4]
        g(x)
        assert x.grad.tolist() == [4, 8]
    assert g.traces == 2
