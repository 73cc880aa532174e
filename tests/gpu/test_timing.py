from __future__ import annotations

import numpy as np

from meganeura import gpu
from meganeura.gpu.replay import Frozen
from meganeura.gpu.timing import measure, timestamps

from .handmade import floats, scale, scale_launch, upload


def test_each_dispatch_is_timed(device: gpu.Device) -> None:
    p = device.prepare(scale(64))
    x, y = upload(device, np.ones(64, np.float32)), device.alloc(256)
    frozen = Frozen(device, [(scale_launch(64), (y, x), None)], [("frozen", "t.py:2")])
    frozen.set_scalars(0, (1.0, 0.0))
    with timestamps(device, each=True) as timer:
        device.record(p, (x, y), (2.0, 0.0), "t.py:1", "eager")
        frozen.run()
    assert [(r.op, r.kernel, r.site) for r in timer.rows] == [("eager", "scale", "t.py:1"), ("frozen", "scale", "t.py:2")]
    assert all(r.ns >= 0 for r in timer.rows)
    assert timer.span >= 0
    assert floats(device, x, 1)[0] == 2


def test_measure_counts_more_for_more_work(device: gpu.Device) -> None:
    p = device.prepare(scale(1 << 20))
    x, y = device.alloc(4 << 20), device.alloc(4 << 20)

    def work(times: int) -> None:
        for _ in range(times):
            device.record(p, (x, y), (2.0, 0.0), None, "scale")

    work(2)
    device.synchronize()
    assert measure(device, lambda: work(8)) > measure(device, lambda: work(1)) > 0
    device.free(x)
    device.free(y)
