"""A problem's kernels side by side: operands, a check that they agree, and GPU time in turns.

In: a problem of floor_kernels.py. Out: a `Stand`: what starts each side, errors, seconds a call. Operands are random numbers, the same
for all sides; C is what references write, O what ours does.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import floor_kernels
from floor_kernels import Problem, Side

import meganeura as mg
from meganeura.errors import DeviceError
from meganeura.gpu import Buffer, Device
from meganeura.gpu.timing import measure
from meganeura.kernels.kernel import Profile
from meganeura.storage import Layout

# of the relative error between theirs and ours; else 1e-5
LIMITS = {"matmul": 5e-6, "packed matmul": 5e-6, "conv": 2e-5, "sum": 1e-6, "add": 0.0}
ROUNDS, MOST = 5, 256  # timed passes, and dispatches in one


def build(device: Device, chosen: Sequence[Problem]) -> None:
    """Build the pipelines of all these problems at once. One that is refused is told of where it is used."""
    try:
        mine = [floor_kernels.ours(p, device.profile)[0] for p in chosen]
        device.prepare_all([s.lowered for s in (*mine, *(r for p in chosen for r in floor_kernels.references(p, device.profile)))])
    except DeviceError:
        pass


def _panels(x: mg.Tensor) -> mg.Tensor:
    """[M, K] -> [M / 32, K / 4, 32, 4]: 32 rows of four columns lie together."""
    m, k = x.shape
    return x.reshape(m // 32, 32, k // 4, 4).permute(0, 2, 1, 3)


PREPARED: dict[str, Callable[[mg.Tensor], mg.Tensor]] = {
    "A panels": _panels,
    "B panels": lambda b: _panels(b.t()),
    "A padded": lambda x: mg.nn.functional.pad(x, (1, 3, 1, 1)),
    "B turned": lambda w: w.reshape(w.shape[0], -1).t(),
}


def _given(layout: Layout) -> mg.Tensor:
    """Random numbers that lie as the layout says: those of a matrix that is read transposed, too."""
    turned = layout.strides and layout.strides[0] == 1 < layout.strides[-1]
    return mg.randn(*reversed(layout.shape)).t() if turned else mg.randn(*layout.shape)


class Stand:
    """A problem's kernels made ready, ours first, with operands of their own."""

    def __init__(self, device: Device, problem: Problem, profile: Profile | None = None) -> None:
        self.device, self.problem = device, problem
        self.profile = profile or device.profile
        mine, layouts = floor_kernels.ours(problem, self.profile)
        self.tensors = {n: _given(x) if n in "ABVW" else mg.zeros(*x.shape) for n, x in layouts.items()}
        self.tensors["C"] = mg.zeros(*layouts["O"].shape)
        self.tensors |= {n: mg.zeros(count) for n, count in problem.scratch.items()}
        self.sides = [mine, *filter(self._runs, floor_kernels.references(problem, self.profile))]
        for name in {n for s in self.sides for n in s.names} & PREPARED.keys():
            self.tensors[name] = PREPARED[name](self.tensors[name[0]]).contiguous()

    def _runs(self, side: Side) -> bool:
        """Whether this device can run a reference; if not, why is printed."""
        why = ""
        if 4 * max(t.numel() for t in self.tensors.values()) > self.profile.max_binding:
            why = "the device does not bind its operands whole"
        try:
            self.device.prepare(side.lowered)
        except DeviceError as error:
            why = str(error).splitlines()[0]
        if why:
            print(f"left out: {side.label} of {self.problem.case}: {why}", file=sys.stderr)
        return not why

    def buffers(self, names: Iterable[str]) -> list[Buffer]:
        return [self.tensors[n]._storage.buffer for n in names]

    def starts(self) -> list[Callable[[], Any]]:
        """What queues each side once, all of them writing the same result: where memory lies makes some percent on software Vulkan.
        Pipelines are built unless they are there."""
        return [self._start(s, "O") for s in self.sides]

    def _start(self, side: Side, result: str) -> Callable[[], Any]:
        """`result`: the operand that takes the place of C."""
        prepared = self.device.prepare(side.lowered)
        buffers = self.buffers(result if n == "C" else n for n in side.names)
        return lambda: self.device.record(prepared, buffers, side.scalars)

    def check(self) -> dict[str, float]:
        """Errors of the references by label. AssertionError where one is not what ours is, or where something was not written."""
        self.tensors["O"].fill_(math.nan)
        mine, *others = (self._start(s, "C") for s in self.sides)
        mine()
        errors = {}
        for side, start in zip(self.sides[1:], others, strict=True):
            for name in ("C", *self.problem.scratch):
                self.tensors[name].fill_(math.nan)
            start()
            wrong = errors[side.label] = self._error()
            limit = LIMITS.get(self.problem.op, 1e-5)
            assert wrong <= limit, f"{self.problem.case}: {side.label} and ours differ by {wrong:.1e} (limit {limit:.0e})"
        return errors

    def _error(self) -> float:
        """Frobenius norm of the difference, relative; of a sum, relative to that of the magnitudes."""
        got, want = self.tensors["C"], self.tensors["O"]
        if self.problem.op == "sum":
            return abs(float((got - want).item())) / float(self.tensors["A"].abs().sum().item())
        return _norm(got - want) / _norm(want)

    def gpu_seconds(self, budget: float = 0.012, of: Callable[[list[float]], float] = statistics.median) -> list[float]:
        """Seconds of GPU time a call of each side: `of` those of passes of `budget` seconds, taken in turns."""
        starts = self.starts()
        counts = [_count(self.device, start, budget) for start in starts]
        passes: list[list[float]] = [[] for _ in starts]
        for turn in range(ROUNDS):
            for i in range(len(starts))[:: -1 if turn % 2 else 1]:
                _repeat(starts[i], max(1, counts[i] // 8))  # not timed, so that the timed pass follows work of its kind
                passes[i].append(measure(self.device, lambda: _repeat(starts[i], counts[i])) * 1e-9 / counts[i])
        return [of(p) for p in passes]


def _norm(x: mg.Tensor) -> float:
    return float((x * x).sum().item()) ** 0.5


def _repeat(start: Callable[[], Any], n: int) -> None:
    for _ in range(n):
        start()


def _count(device: Device, start: Callable[[], Any], budget: float) -> int:
    once = min(measure(device, lambda: _repeat(start, n)) / n for n in (1, 2)) * 1e-9
    return max(1, min(MOST, int(budget / max(once, 1e-7))))
