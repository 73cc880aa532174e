"""Floors on software Vulkan: speeds of two free cores, which is 2 x work / CPU time of the process, for PyTorch with 2 threads too; so
other programs disturb them little, PyTorch's apart, whose threads wait for each other. The median over 15 separately built pipelines,
because copies of the same machine code differ by several percent and some stay slow, of the best of 3 rounds taken in turns by ours and the
floor's kernels; PyTorch's best of 10.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import bare
import dispatch
import floor_kernels
import floor_stand
import rows as row_kernels
from floor_lines import Floor

import meganeura as mg
from meganeura import dispatch as interpreters
from meganeura.gpu import current

COPIES, TURNS = 15, 3
FEW, CHAIN = 5, 1000  # copies of the tiny dispatch, and how many of it a submission carries
SECONDS = 0.03  # of CPU time a measurement
APART, LONGER = 3, 0.05  # copies from one measurement of PyTorch's to the next, and what that takes
SETTLE = 0.02  # seconds before and after PyTorch: its threads spin for a while after their work, and what comes next would pay for it
ROWS, COLUMNS, ELEMENTS = 4096, 1024, 4 << 20

TINY = Floor("tiny dispatch", "us", speed=1.4)
FLOORS = (
    Floor("matmul 512", "GFLOP/s", 2 * 512**3, 82, 0.38),
    Floor("matmul 1024, packed before", "GFLOP/s", 2 * 1024**3, 90, 0.40),
    Floor("matmul 1024", "GFLOP/s", 2 * 1024**3),
    Floor("softmax 4096x1024", "GB/s", 8 * ROWS * COLUMNS, 12, 0.34),
    Floor("layer norm 4096x1024", "GB/s", 8 * ROWS * COLUMNS, 12.5, 0.18),
    Floor("add 4 Mi", "GB/s", 12 * ELEMENTS, 27, 0.17),
    Floor("gelu tanh 4 Mi", "GB/s", 8 * ELEMENTS, 19, 1.4),
    Floor("gelu 4 Mi", "GB/s", 8 * ELEMENTS),
    Floor("conv 3x3, 64 to 64 channels, 56x56", "GFLOP/s", 2 * 64 * 64 * 9 * 56 * 56, 99, 0.23),
)
ALONE = floor_kernels.alone("gelu 4 Mi", "cpu", "gelu", ELEMENTS)

Start = Callable[[], Any]


def cpu_seconds(start: Start, calls: int) -> float:
    """Seconds a call if two cores were free: half the CPU time of the process."""
    begin = time.process_time()
    for _ in range(calls):
        start()
    mg.synchronize()
    return (time.process_time() - begin) / calls / 2


def settled(start: Start, calls: int) -> float:
    """The same of PyTorch's kernels."""
    time.sleep(SETTLE)
    return cpu_seconds(start, calls)


def calls_for(once: float, seconds: float) -> int:
    """How many calls of `once` seconds each take so much CPU time."""
    return max(1, int(seconds / 2 / max(once, 1e-6)))


def rebuild() -> None:
    """Forget pipelines, so that the next call builds its own again."""
    mg.synchronize()
    interpreters.current().plans.clear()  # type: ignore[attr-defined]
    current().pipelines.pipelines.clear()


def in_turns(starts: Callable[[], Sequence[Start]], other: Start | None) -> tuple[list[float], float | None]:
    """Seconds a call of each of `starts()`, which prepares them anew for every copy of their pipelines, and of `other`.

    All are called as often as each other in a measurement, whose end costs some 0.1 ms."""
    copies, others = [], []
    often = calls_for(min(cpu_seconds(call, 1) for call in starts() for _ in range(3)), SECONDS)
    longer = calls_for(min(settled(other, 1) for _ in range(5)), LONGER) if other else 0
    for copy in range(COPIES):
        if other and copy % APART == 0:
            others += [settled(other, longer) for _ in range(2)]
            time.sleep(SETTLE)
        rebuild()
        calls = starts()
        best = [float("inf")] * len(calls)
        for call in calls:
            cpu_seconds(call, 1)  # the first use compiles
        for turn in range(TURNS):
            for i in _order(len(calls), copy + turn):
                best[i] = min(best[i], cpu_seconds(calls[i], often))
        copies.append(best)
    return [statistics.median(x) for x in zip(*copies, strict=True)], min(others, default=None)


def _order(n: int, turn: int) -> Sequence[int]:
    """0 to n - 1, begun at another one every turn, and backwards in every other one: what a kernel leaves in the cache serves the next."""
    begun = [(i + turn) % n for i in range(n)]
    return begun[::-1] if turn % 2 else begun


def torch_calls() -> dict[str, Start]:
    """The same in PyTorch with two threads, by case; nothing where it is not installed."""
    try:
        import torch
    except ImportError:
        return {}
    torch.set_num_threads(2)
    softmax, layer_norm, add, gelu, _ = row_kernels.torch_calls(torch, ROWS, COLUMNS, ELEMENTS, place="cpu")
    x, image, kernels = torch.randn(ELEMENTS), torch.randn(1, 64, 56, 56), torch.randn(64, 64, 3, 3)
    small, large = ([torch.randn(n, n) for _ in range(2)] for n in (512, 1024))
    F = torch.nn.functional
    return {
        "matmul 512": lambda: small[0] @ small[1],
        "matmul 1024, packed before": lambda: large[0] @ large[1],
        "matmul 1024": lambda: large[0] @ large[1],
        "softmax 4096x1024": softmax,
        "layer norm 4096x1024": layer_norm,
        "add 4 Mi": add,
        "gelu tanh 4 Mi": lambda: F.gelu(x, approximate="tanh"),
        "gelu 4 Mi": gelu,
        "conv 3x3, 64 to 64 channels, 56x56": lambda: F.conv2d(image, kernels, padding=1),
    }


def tiny_dispatch() -> float:
    """Seconds a dispatch of a list of 1000, waited for, as when its floor was measured; the median over copies of its pipeline of the
    best replay."""
    return statistics.median(_tiny_dispatch() for _ in range(FEW))


def _tiny_dispatch() -> float:
    rebuild()
    compiled, x = bare.chain(CHAIN, 8)
    frozen = compiled.session(x).frozen

    def replay() -> None:
        frozen.run()
        mg.synchronize()

    return dispatch.each([replay], mg.synchronize)[0] / CHAIN * 1e-6


def rows() -> Iterator[dict[str, Any]]:
    device, tiny = current(), tiny_dispatch()
    others = torch_calls()
    problems = floor_kernels.problems("cpu", device.backend) | {ALONE.case: ALONE}
    for floor in FLOORS:
        stand, other = floor_stand.Stand(device, problems[floor.case]), others.get(floor.case)
        stand.check()
        yield floor.row(*in_turns(stand.starts, other))
    yield TINY.row([tiny], None)
