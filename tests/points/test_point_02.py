"""No native abort: whatever an op asks of the driver, the process lives and the next op works. tests/gpu has the raw cases."""

from __future__ import annotations

import ast
import gc

import numpy as np
import pytest

from meganeura import gpu
from meganeura.gpu.replay import Frozen
from tests.gpu.handmade import child, copy, floats, scale_launch, upload
from tests.points.failing import survives, survives_alone
from tests.style.package import PACKAGE


def test_a_bad_dispatch_of_an_eager_op_is_an_error() -> None:
    survives("""
    x = mg.ones(100)
    y = x.exp()
    mg.synchronize()
    fails("exp")
    y = x.exp()
    back()
    raises(mg.synchronize, "exp", "70000")
    assert (x + 1).sum().item() == 200
    for i in range(3):
        fails("exp")
        y = x.exp()
        back()
        raises(y.numpy, "exp")
        assert abs(x.exp()[0].item() - 2.718) < 1e-2
    """)


def test_a_bad_dispatch_before_a_compiled_call_is_an_error() -> None:
    survives("""
    f = mg.compile(lambda x: (x * 2).sum())
    x = mg.ones(100)
    y = x.exp()
    assert f(x).item() == 200
    fails("exp")
    y = x.exp()
    back()
    out = f(x)
    raises(mg.synchronize, "exp")
    assert out.item() == 200
    assert f(x).item() == 200
    """)


def test_leaving_with_bad_work_recorded_is_no_abort() -> None:
    survives_alone("""
    x = mg.ones(100)
    y = x.exp()
    fails("exp")
    y = x.exp()
    """)


def test_deep_garbage_at_exit_is_no_abort() -> None:
    """Tensors, tapes and compiled sessions alive at interpreter exit, in a cycle and in a module."""
    done = child("""
        import meganeura as mg
        x = mg.ones(100, requires_grad=True)
        y = x
        for i in range(200):
            y = y * 1.01
        cycle = [y]
        cycle.append(cycle)
        f = mg.compile(lambda x: (x * 2).sum())
        out = f(x)
        print("alive")
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["alive"]
    assert not done.stderr


def test_frozen_lists_own_what_they_name() -> None:
    """Pipelines, uniforms and bind groups of a list outlive everything else that knew them."""
    device = gpu.current()
    x, y = upload(device, np.full(64, 3, np.float32)), device.alloc(256)
    launch = scale_launch(61)
    frozen = Frozen(device, [(launch, (x, y), None)], [("scale", None)])
    frozen.set_scalars(0, (2.0, 1.0))
    del launch
    most, device.pipelines.most_recent = device.pipelines.most_recent, 1
    try:
        for n in range(300, 340):
            device.prepare(copy(n))
            device.pipelines.uniform(n.to_bytes(16, "little"))
        gc.collect()
        device.drain()
        device.pool.trim()
        device.synchronize()
        frozen.run()
        assert floats(device, y, 61)[60] == 7
    finally:
        device.pipelines.most_recent = most
        frozen.close()


UNSAFE = ("create_encoder", "begin_pass", "set_pipeline", "set_bind_group", "dispatch")


def test_finish_create_and_submit_take_the_raising_form() -> None:
    """In the shim, whatever creates, finishes or submits is called through `safe`; the plain form is for encoding only."""
    tree = ast.parse((PACKAGE / "gpu" / "native.py").read_text())
    plain = [
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("wgpu")
        and (
            (isinstance(node.value, ast.Name) and node.value.id == "lib")
            or (isinstance(node.value, ast.Attribute) and node.value.attr == "lib")
        )
    ]
    words = ("Finish", "Submit", "CreateB", "CreateS", "MapAsync", "WriteBuffer", "Unmap", "Destroy")
    harmful = sorted(n for n in plain if any(w in n for w in words))
    assert harmful == ["wgpuCommandEncoderFinish", *["wgpuQueueSubmit"] * 2], "the courier's two; wrapped by the raising form"
    assert {"wgpuComputePassEncoderDispatchWorkgroups", "wgpuComputePassEncoderSetBindGroup"} <= set(plain)


def test_an_adopted_buffer_that_its_owner_destroyed_is_an_error() -> None:
    """wgpu aborts at a submit that uses one, so it must be found before: in records, replays, reads and uploads."""
    survives("""
    from meganeura.gpu.replay import Frozen
    theirs = d.wgpu.create_buffer(size=256, usage=0x80 | 4 | 8)
    x, y, z = d.adopt(theirs), d.alloc(256), d.alloc(256)
    p = d.prepare(scale(64))
    frozen = Frozen(d, [(scale_launch(64), (x, y), None)], [("scale", None)])
    frozen.set_scalars(0, (2.0, 1.0))
    frozen.run()
    assert floats(d, y, 1)[0] == 1
    w = mg.ones(3) * 2
    d.record(p, (x, z), (2.0, 1.0), "u.py:2", "reader")
    theirs.destroy()
    raises(d.flush, "reader", "destroyed", "u.py:2")
    raises(z.check, "reader")
    raises(frozen.run, "destroyed")
    raises(lambda: d.read(x, 0, 4), "destroyed")
    raises(lambda: d.write(x, 0, bytes(4)), "destroyed")
    assert w.tolist() == [2, 2, 2]
    d.record(p, (y, d.alloc(256)), (2.0, 1.0), "u.py:3", "other")
    d.synchronize()
    del x, frozen
    gc.collect()
    mg.synchronize()
    """)


def test_a_submit_that_the_driver_refuses_marks_what_it_would_have_written() -> None:
    """Dawn raises there; so does a driver of which this process pretends it does."""
    survives("""
    x, y = upload(d, np.ones(64, np.float32)), d.alloc(256)
    p, native = d.prepare(scale(64)), d.native
    d.flush()
    d.record(p, (x, y), (2.0, 1.0), "u.py:2", "scale")
    submit = native._submit
    def refuse(queue, count, array, sent):
        sent.append(None)
        raise native.errors[0]("no")
    native._submit = refuse
    raises(d.flush, "submitting")
    native._submit = submit
    raises(y.check, "submitting")
    assert (mg.ones(3) * 2).tolist() == [2, 2, 2]
    """)


@pytest.mark.parametrize("size", [0, 1, 3])
def test_zero_sizes_dispatch_nothing_wrong(size: int) -> None:
    import meganeura as mg

    x = mg.zeros(size, 4)
    assert (x + 1).sum().item() == 4 * size
    assert x.sum(0).tolist() == [0] * 4
    assert (x @ mg.ones(4, 2)).shape == (size, 2)
    assert mg.cat([x, x]).shape == (2 * size, 4)
    mg.synchronize()


def test_buffers_of_a_replayed_list_wait_for_its_last_run() -> None:
    """A replay notes no use on its buffers, so what is let go of waits for everything submitted by then."""
    device = gpu.current()
    x, y = upload(device, np.full(64, 3, np.float32)), device.alloc(1 << 18)
    frozen = Frozen(device, [(scale_launch(64), (x, y), None)], [("scale", None)])
    frozen.set_scalars(0, (2.0, 1.0))
    frozen.run()
    device.synchronize()
    frozen.run()
    device.free(y)
    device.pool.trim()
    device.pool.reap(device.recorder.retired)
    assert y.handle is not None
    device.synchronize()
    assert y.handle is None
    frozen.close()


def test_a_compiled_call_that_fails_keeps_no_memory() -> None:
    survives("""
    f = mg.compile(lambda x: x * 2)
    x = mg.ones(5000)
    y = x.exp()
    z = f(x)
    kept = []
    for i in range(6):
        fails("exp")
        y = x.exp()
        back()
        raises(lambda: (f(y), mg.synchronize()), "exp")  # on GPUs short runs are submitted later
        del y
        gc.collect()
        d.drain()
        kept.append(d.memory().live)
    assert kept[2:] == kept[2:3] * 4, kept
    assert f(x).sum().item() == 10000
    """)


@pytest.mark.parametrize("_", range(4))
def test_leaving_with_work_under_way_is_no_abort(_: int) -> None:
    survives_alone("""
    from meganeura import nn, optim
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))
    opt = optim.Adam(model.parameters())
    x = mg.ones(512, 256)
    def step(x):
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        opt.step()
        return loss
    step = mg.compile(step)
    for _ in range(5):
        step(x)
    """)


def test_what_fails_after_the_last_line_is_told_at_exit() -> None:
    done = child("import meganeura as mg\nx = mg.arange(4.0)\ny = x[mg.tensor([7])]\n")
    assert done.returncode == 0 and "index 7 is out of range" in done.stderr, done.stderr
