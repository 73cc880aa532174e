"""What a device can do at best: the bandwidth of a large copy and the rate of a large product, measured once a device.

In: nothing but the open device. Out: GB/s and GFLOP/s, the yardstick of the tables.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from .. import dispatch, gpu
from ..gpu import timing
from ..ops.factory import ones
from ..ops.pointwise import clone

COPY = {"gpu": 128 << 20, "cpu": 16 << 20}  # bytes; larger than caches
SIDE = {"gpu": 4096, "cpu": 512}  # of the square float32 matrices
WARM = {"gpu": 10, "cpu": 1}  # rounds before the ones that count: clocks go up slowly
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Ceiling:
    """GB/s of a copy (read and written bytes) and GFLOP/s of a float32 matrix product."""

    gbs: float
    gflops: float

    def percent(self, gbs: float, gflops: float) -> float:
        """How near work at these rates comes to the nearer of the two limits, in percent."""
        return 100 * max(gbs / self.gbs, gflops / self.gflops)


_known: weakref.WeakKeyDictionary[Any, Ceiling] = weakref.WeakKeyDictionary()


def ceiling(device: Any = None) -> Ceiling:
    """The device's measured limits; about a second the first time. DeviceError without timestamp queries."""
    device = gpu.current() if device is None else device
    found = _known.get(device)
    if found is None:
        found = _known[device] = _measure(device)
    return found


def _measure(device: Any) -> Ceiling:
    family = device.family
    with dispatch.use(None), dispatch.no_grad():
        line = ones(COPY[family] // 4)
        copy = _best(device, lambda: clone(line), WARM[family])
        side = SIDE[family]
        a = ones(side, side)
        product = _best(device, lambda: a @ a, WARM[family])
    return Ceiling(2 * COPY[family] / copy, 2 * side**3 / product)


def _best(device: Any, call: Any, warm: int) -> float:
    """Nanoseconds of the quickest of several calls."""
    for _ in range(warm):
        call()
    device.synchronize()
    return max(1.0, min(timing.measure(device, call) for _ in range(ROUNDS)))
