"""Lists of the smallest kind, and their runs with the courier."""

from __future__ import annotations

from typing import Any

import numpy as np

from meganeura import gpu
from meganeura.gpu.recorder import SHARED
from meganeura.gpu.replay import Frozen

from .handmade import scale_launch, upload


def pair(device: gpu.Device, value: float = 0.0, **options: Any) -> tuple[Frozen, gpu.Buffer, gpu.Buffer]:
    """A list that adds 1 twice to a buffer, by way of another, proved by one run; and both."""
    x, y = upload(device, np.full(64, value, np.float32)), device.alloc(256)
    steps = [(scale_launch(64), (x, y), None), (scale_launch(64), (y, x), None)]
    frozen = Frozen(device, steps, [("there", "c.py:1"), ("back", "c.py:2")], **{"ahead": True, **options})
    for i in range(2):
        frozen.set_scalars(i, (1.0, 1.0))
    frozen.run()
    return frozen, x, y


def sent_away(device: gpu.Device, frozen: Frozen, runs: int = SHARED) -> None:
    """So many runs, the last batch of them with the courier."""
    device.flush()
    for _ in range(runs):
        frozen.run()
    assert device.recorder.outbox.away is not None
    assert device.recorder.records == []
