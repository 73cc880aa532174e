"""Lines of the table of floors: ours beside the floor's kernel, PyTorch and the figure that was written down."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

TIMES = {"us": 1e6, "ms": 1e3}
RATES = {"GB/s": 1e-9, "GFLOP/s": 1e-9, "TFLOP/s": 1e-12}
RATIO = "ours / its kernel"


@dataclass(frozen=True)
class Floor:
    """A case: its unit, the bytes or operations of a call where that is a rate; what was written down: a speed, PyTorch's time / ours."""

    case: str
    unit: str
    work: float = 0
    speed: float | None = None
    ratio: float | None = None

    def value(self, seconds: float) -> float:
        """The speed in this line's unit."""
        return seconds * TIMES[self.unit] if self.unit in TIMES else self.work / seconds * RATES[self.unit]

    def text(self, seconds: float | None) -> str | None:
        return None if seconds is None else f"{self.value(seconds):.4g} {self.unit}"

    def written(self) -> str:
        speed = f"{self.speed:g} {self.unit}" if self.speed else ""
        ratio = f"{self.ratio:g} x torch" if self.ratio else ""
        return ", ".join(filter(None, (speed, ratio)))

    def reached(self, mine: float, torch: float | None) -> float | None:
        """Ours over what was written, more than 1 where ours is faster: the speed if there is one, else the ratio to PyTorch."""
        if self.speed is not None:
            return self.speed / self.value(mine) if self.unit in TIMES else self.value(mine) / self.speed
        return torch / mine / self.ratio if torch and self.ratio else None

    def row(self, seconds: Sequence[float], torch: float | None) -> dict[str, Any]:
        """A line of the table from seconds a call: ours, then those of the floor's kernels, of which the fastest counts; PyTorch's."""
        mine, its = seconds[0], min(seconds[1:], default=None)
        return {
            "case": self.case,
            "ours": self.text(mine),
            "its kernel": self.text(its),
            RATIO: its and its / mine,
            "torch / ours": torch and torch / mine,
            "floor": self.written(),
            "of the floor": self.reached(mine, torch),
        }


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The last line: the geometric mean and the worst of all that have a kernel of their own."""
    found = [(r[RATIO], r["case"]) for r in rows if r[RATIO]]
    if not found:
        return {"case": "no line has a kernel of its own on this device"}
    mean = math.exp(statistics.fmean(math.log(x) for x, _ in found))
    worst, case = min(found)
    return {"case": f"{len(found)} lines with a kernel: geometric mean; the worst is {worst:.3f}, {case}", RATIO: mean}
