"""Measuring this library on this device: a few kernels, a training step and the host's cost of a dispatch.

In: nothing but the open device. Out: numbers, best of five rounds; `report` prints them. benchmarks/ builds on `Case`,
`milliseconds`, `host_us` and the case lists, and sets other libraries beside them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import meganeura as mg
from meganeura import nn, optim

ROUNDS, ROUND_SECONDS = 5, 0.2
_MOST_CALLS = 2000  # a round
_WARM_SECONDS = 2.5  # GPUs clock up slowly after being idle


@dataclass(frozen=True)
class Case:
    """Something to time: `start()` queues it once. `nbytes` and `flops` are what it has to move and compute."""

    name: str
    start: Callable[[], Any]
    nbytes: int = 0
    flops: int = 0

    def rates(self, ms: float) -> str:
        """GB/s and GFLOP/s at a time in milliseconds, where they mean something."""
        gbs = f"{self.nbytes / ms / 1e6:8.1f} GB/s" if self.nbytes else ""
        return gbs + (f"{self.flops / ms / 1e6:8.1f} GFLOP/s" if self.flops else "")


def milliseconds(start: Callable[[], Any], wait: Callable[[], Any], round_seconds: float = ROUND_SECONDS) -> float:
    """Milliseconds a call with many calls in flight: best of five rounds, each ending in wait()."""

    def seconds(calls: int) -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            start()
        wait()
        return time.perf_counter() - begin

    seconds(1)
    calls = 1
    while calls < _MOST_CALLS and (taken := seconds(calls)) < round_seconds / 10:  # few calls would mostly measure the wait
        calls *= 4
    calls = max(1, min(_MOST_CALLS, int(calls * round_seconds / max(taken, 1e-6))))
    return min(seconds(calls) for _ in range(ROUNDS)) / calls * 1e3


def gpu_milliseconds(start: Callable[[], Any], most: int = 20) -> float:
    """GPU milliseconds a call, the sum of the passes of up to `most` calls by timestamps: best of five rounds. Eager ops are one
    pass, a compiled call has its own. Device clocks stay warm between."""
    from .gpu import timing

    start()
    mg.synchronize()
    begin = time.perf_counter()
    start()
    mg.synchronize()
    calls = max(1, min(most, int(1 / max(time.perf_counter() - begin, 1e-6))))  # software devices take seconds for some

    def many() -> None:
        for _ in range(calls):
            start()

    many()
    mg.synchronize()
    return min(timing.measure(mg.device(), many) for _ in range(ROUNDS)) / calls * 1e-6


def host_us(call: Callable[[], Any], wait: Callable[[], Any], calls: int = 1000) -> float:
    """Microseconds the host spends in a warm call, without waiting for the device: best of five rounds."""
    for _ in range(100):
        call()
    wait()
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - begin) / calls)
        wait()
    return best * 1e6


def is_gpu() -> bool:
    """Whether the device is a GPU, not a processor that plays one."""
    return bool(mg.device().profile.family == "gpu")


def warm() -> None:
    """Keep a GPU busy until its clocks are up."""
    if not is_gpu():
        return
    a = mg.randn(2048, 2048)
    end = time.perf_counter() + _WARM_SECONDS
    while time.perf_counter() < end:
        for _ in range(10):
            a @ a
        mg.synchronize()


def matmul_cases(size: int = 1024) -> list[Case]:
    """One square float32 product."""
    a, b = mg.randn(size, size), mg.randn(size, size)
    return [Case(f"matmul {size}", lambda: a @ b, flops=2 * size**3)]


def row_cases(rows: int, columns: int, elements: int) -> list[Case]:
    """Softmax and layer norm of [rows, columns], and add, gelu and sum of `elements` numbers; all float32."""
    x, gain, bias = mg.randn(rows, columns), mg.ones(columns), mg.zeros(columns)
    a, b = mg.randn(elements), mg.randn(elements)
    matrix, line = 4 * rows * columns, 4 * elements
    return [
        Case(f"softmax {rows}x{columns}", lambda: mg.softmax(x, -1), 2 * matrix),
        Case(f"layer norm {rows}x{columns}", lambda: nn.functional.layer_norm(x, (columns,), gain, bias), 2 * matrix),
        Case(f"add {elements >> 20} Mi", lambda: a + b, 3 * line),
        Case(f"gelu {elements >> 20} Mi", lambda: mg.gelu(a), 2 * line),
        Case(f"sum {elements >> 20} Mi", lambda: a.sum(), line),
    ]


def default_row_cases(quick: bool = False) -> list[Case]:
    """Row cases that fit the device: 64 Mi elements on a GPU, 4 Mi on software Vulkan."""
    if is_gpu() and not quick:
        return row_cases(4096, 4096, 64 << 20)
    return row_cases(4096, 1024, 4 << 20)


def training_case(compiled: bool, batch: int = 128) -> Case:
    """A whole step of a 784-128-10 network: forward, backward, SGD."""
    model = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    x, y = mg.randn(batch, 784), mg.randint(0, 10, (batch,))

    def step() -> mg.Tensor:
        optimizer.zero_grad()
        loss: mg.Tensor = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return Case(f"training step, batch {batch}, {'compiled' if compiled else 'eager'}", mg.compile(step) if compiled else step)


def eager_add(gradient: bool) -> Callable[[], Any]:
    """An add of two vectors of 1,024 elements, recorded for backward or not."""
    a, b = mg.randn(1024), mg.randn(1024)
    if gradient:
        a.requires_grad_()
    return lambda: a + b


def report(quick: bool = False) -> int:
    """Print everything above for this device."""
    print(f"device: {mg.device()}")
    warm()
    cases = [*matmul_cases(512 if quick else 1024), *default_row_cases(quick), training_case(False), training_case(True)]
    for case in cases:
        ms = milliseconds(case.start, mg.synchronize, 0.05 if quick else 0.2)
        print(f"{case.name:36}{ms:10.3f} ms  {case.rates(ms)}".rstrip())
    for name, gradient in (("eager add, host", False), ("eager add with gradient, host", True)):
        print(f"{name:36}{host_us(eager_add(gradient), mg.synchronize, 200 if quick else 1000):10.2f} us")
    return 0
