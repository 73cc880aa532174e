"""The device's clock in terms of the host's.

In: moments known on both clocks (a device time between two host times), and what cause and effect say of the timed work.
Out: a straight line from device nanoseconds to host nanoseconds, and how far it may be off.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAX_DRIFT = 1e-4  # clocks drift by less; a slope is measured only where it can be told from the error of the moments

Pair = tuple[int, float, int]  # host before, device, host after, in nanoseconds


@dataclass(frozen=True, slots=True)
class Clock:
    """host = offset + rate * (device - origin). `error`: half the width of what the moments allow, in nanoseconds."""

    origin: float
    offset: float
    rate: float
    error: float

    def host(self, device: float) -> float:
        """A device time on the host's clock."""
        return self.offset + self.rate * (device - self.origin)


def fit(first: Sequence[Pair], last: Sequence[Pair], work: Iterable[tuple[float, float, int]] = (), end: float = float("inf")) -> Clock:
    """The clock from moments at the beginning and at the end, and timed work: (device begin, device end, host submission).

    Work begins after it was submitted and is over before `end`. Where bounds contradict each other, work after its submission wins.
    """
    a, b = (min(pairs, key=lambda p: p[2] - p[0]) for pairs in (first, last))
    origin, rate = a[1], 1.0
    width = (a[2] - a[0]) + (b[2] - b[0])
    if b[1] - a[1] > width / MAX_DRIFT:
        rate = ((b[0] + b[2]) - (a[0] + a[2])) / 2 / (b[1] - a[1])
    low = max(before - rate * (g - origin) for before, g, _ in (*first, *last))
    high = min(after - rate * (g - origin) for _, g, after in (*first, *last))
    causes = float("-inf")
    for begin, done, submitted in work:
        causes = max(causes, submitted - rate * (begin - origin))
        high = min(high, end - rate * (done - origin))
    low = max(low, causes)
    offset = (low + high) / 2 if low <= high else max(causes, high)
    return Clock(origin, offset, rate, abs(high - low) / 2)
