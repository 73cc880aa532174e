"""What profiling itself costs: estimated for a profile that was taken, measured for a step that can be repeated.

In: a profile, or a function. Out: wall time with and without.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import dispatch, gpu
from ..ops.factory import ones

if TYPE_CHECKING:
    from .api import Profile

DISPATCHES = 256  # of a calibration
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Overhead:
    """Wall milliseconds with profiling and without it, and the microseconds that it adds a dispatch. `estimated`: 'without' was
    not measured but computed from the cost of a dispatch on this device."""

    with_ms: float
    without_ms: float
    dispatches: int
    us_per_dispatch: float
    estimated: bool

    @property
    def factor(self) -> float:
        """How many times as long it took."""
        return self.with_ms / self.without_ms if self.without_ms > 0 else float("inf")

    def __str__(self) -> str:
        how = "estimated" if self.estimated else "measured"
        return (
            f"{self.with_ms:.3f} ms with profiling, {self.without_ms:.3f} ms without ({how}): {self.us_per_dispatch:.1f} us "
            f"for each of {self.dispatches} dispatches"
        )


_known: weakref.WeakKeyDictionary[Any, dict[bool, float]] = weakref.WeakKeyDictionary()


def estimate(profile: Profile) -> Overhead:
    """From the profile's wall time and what a small dispatch costs more while one is open, measured once a device."""
    extra = per_dispatch(profile.device, profile.gpu)
    count = len(profile.dispatches)
    wall = (profile.end - profile.begin) / 1e6
    return Overhead(wall, max(wall - extra * count / 1e3, 0.0), count, extra, True)


def per_dispatch(device: Any, timed: bool) -> float:
    """Microseconds that a profile adds to a small eager dispatch, the device's part included."""
    known = _known.setdefault(device, {})
    if timed not in known:
        with dispatch.use(None), dispatch.no_grad():
            x = ones(64)

            def many() -> None:
                for _ in range(DISPATCHES):
                    x + x

            found = overhead(many, ROUNDS, gpu_times=timed, device=device)
        known[timed] = found.us_per_dispatch
    return known[timed]


def overhead(fn: Callable[[], Any], steps: int = 5, gpu_times: bool | None = None, device: Any = None) -> Overhead:
    """Run fn `steps` times as it is and `steps` times under a profile; milliseconds a step, the best of each."""
    from .api import Profile

    device = gpu.current() if device is None else device
    fn()
    device.synchronize()
    plain, profiled, count = [], [], 0
    for _ in range(steps):
        begin = time.perf_counter_ns()
        fn()
        device.synchronize()
        plain.append((time.perf_counter_ns() - begin) / 1e6)
        with Profile(gpu=gpu_times) as p:
            fn()
        profiled.append((p.end - p.begin) / 1e6)
        count = len(p.dispatches)
    more = max(min(profiled) - min(plain), 0.0)
    return Overhead(min(profiled), min(plain), count, 1e3 * more / count if count else 0.0, False)
