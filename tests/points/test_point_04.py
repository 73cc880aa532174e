"""Uploads cannot overtake: work that was asked for first sees the memory as it was then."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import gpu


@pytest.fixture(autouse=True)
def large_batch() -> Any:
    """No submit in between by itself: everything stays recorded until a read."""
    recorder = gpu.current().recorder
    batch, recorder.batch = recorder.batch, 10_000
    gpu.current().synchronize()
    yield
    recorder.batch = batch


def test_a_recycled_buffer_is_not_written_under_recorded_work() -> None:
    x = mg.tensor(np.full(500, 1, np.float32))
    gpu.current().synchronize()
    y = x + 1
    del x
    uploads = [mg.tensor(np.full(500, 9, np.float32)) for _ in range(5)]
    assert y[7].item() == 2
    assert all(u[7].item() == 9 for u in uploads)


def test_many_uploads_between_recorded_ops() -> None:
    outs = []
    for i in range(80):
        x = mg.tensor(np.full(300, i, np.float32))
        outs.append(x * 2)
        del x
    assert [int(o[299].item()) for o in outs] == [2 * i for i in range(80)]


def test_an_upload_into_a_storage_in_use_waits_for_what_was_recorded() -> None:
    x = mg.tensor(np.full(64, 1, np.float32))
    y = x + 1
    device = gpu.current()
    device.write(x._storage.buffer, 0, np.full(64, 5, np.float32))
    z = x + 1
    assert (y[0].item(), z[0].item()) == (2, 6)


def test_copy_and_assignment_from_the_host_keep_the_order() -> None:
    x = mg.tensor(np.full(64, 1, np.float32))
    y = x + 1
    x.copy_(mg.tensor(np.full(64, 5, np.float32)))
    z = x + 1
    x[:32] = np.full(32, 7, np.float32)
    w = x + 1
    assert (y[0].item(), z[0].item(), w[0].item(), w[63].item()) == (2, 6, 8, 6)


def test_uploads_take_idle_memory_and_do_not_submit() -> None:
    """With idle memory at hand nothing needs to be flushed."""
    device = gpu.current()
    for _ in range(3):
        mg.tensor(np.zeros(700, np.float32))
    device.synchronize()
    x = mg.ones(700) * 2
    submits = device.counters.submits
    del x
    mg.tensor(np.zeros(700, np.float32))
    assert device.counters.submits == submits


def test_parameter_slots_are_not_overtaken() -> None:
    """More scalars than a ring has slots, all recorded before one read."""
    x = mg.tensor(np.ones(16, np.float32))
    outs = [x * float(i) for i in range(700)]
    assert [int(o[15].item()) for o in outs] == list(range(700))


def test_slots_of_a_compiled_call_are_not_overtaken() -> None:
    p = mg.nn.Parameter(mg.zeros(16))
    opt = mg.optim.SGD([p], lr=1.0)

    @mg.compile
    def step() -> Any:
        p.sum().backward()
        opt.step()
        opt.zero_grad()
        return p.detach() * 1

    outs = []
    for i in range(20):
        opt.param_groups[0]["lr"] = float(i)
        outs.append(step())
    assert [int(o[0].item()) for o in outs] == [-sum(range(i + 1)) for i in range(20)]


def test_new_uniforms_are_there_when_their_dispatch_runs() -> None:
    x = mg.tensor(np.arange(5000, dtype=np.float32))
    outs = [x[i : i + 40 + i] * 1 for i in range(0, 900, 7)]
    assert [int(o[0].item()) for o in outs] == list(range(0, 900, 7))
