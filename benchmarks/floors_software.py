"""Floors on software Vulkan: speeds of two free cores, which is 2 x work / CPU time of the process, for PyTorch with 2 threads too; so
other programs disturb them little. The median over 5 separately built pipelines, because some copies of the same machine code stay
slow, of the best of 5 rounds taken in turns by ours, the floor's kernels and PyTorch.
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

COPIES, TURNS = 5, 5
SECONDS = 0.05  # of CPU time a measurement
SETTLE = 0.02  # seconds before one: PyTorch's threads spin for a while after their work, and a copy would pay for it
ROWS, COLUMNS, ELEMENTS = 4096, 1024, 4 << 20

TINY = Floor("tiny dispatch", "us", speed=1.4)
FLOORS = (
    Floor("matmul 512", "GFLOP/s", 2 * 512**3, 82, 0.38),
    Floor("matmul 1024", "GFLOP/s", 2 * 1024**3, 90, 0.40),
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
    time.sleep(SETTLE)
    begin = time.process_time()
    for _ in range(calls):
        start()
    mg.synchronize()
    return (time.process_time() - begin) / calls / 2


def calls_for(start: Start) -> int:
    start()
    return max(1, int(SECONDS / 2 / max(cpu_seconds(start, 1), 1e-6)))


def rebuild() -> None:
    """Forget pipelines, so that the next call builds its own again."""
    mg.synchronize()
    interpreters.current().plans.clear()  # type: ignore[attr-defined]
    current().pipelines.pipelines.clear()


def in_turns(starts: Callable[[], Sequence[Start]]) -> list[float]:
    """Seconds a call of each of `starts()`, which prepares them anew for every copy of their pipelines."""
    copies = []
    for _ in range(COPIES):
        rebuild()
        calls = starts()
        counts = [calls_for(call) for call in calls]
        best = [float("inf")] * len(calls)
        for turn in range(TURNS):
            for i in range(len(calls))[:: -1 if turn % 2 else 1]:  # so that not always the same one follows PyTorch
                best[i] = min(best[i], cpu_seconds(calls[i], counts[i]))
        copies.append(best)
    return [statistics.median(x) for x in zip(*copies, strict=True)]


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
        "matmul 1024": lambda: large[0] @ large[1],
        "softmax 4096x1024": softmax,
        "layer norm 4096x1024": layer_norm,
        "add 4 Mi": add,
        "gelu tanh 4 Mi": lambda: F.gelu(x, approximate="tanh"),
        "gelu 4 Mi": gelu,
        "conv 3x3, 64 to 64 channels, 56x56": lambda: F.conv2d(image, kernels, padding=1),
    }


def tiny_dispatch() -> float:
    """Seconds a dispatch of a list of 300, waited for; the best replay."""
    compiled, x = bare.chain(dispatch.CHAIN, 8)
    frozen = compiled.session(x).frozen

    def replay() -> None:
        frozen.run()
        mg.synchronize()

    return dispatch.each([replay], mg.synchronize)[0] / dispatch.CHAIN * 1e-6


def rows() -> Iterator[dict[str, Any]]:
    device, others = current(), torch_calls()
    problems = floor_kernels.problems("cpu", device.backend) | {ALONE.case: ALONE}
    for floor in FLOORS:
        stand, other = floor_stand.Stand(device, problems[floor.case]), others.get(floor.case)
        stand.check()
        seconds = in_turns(lambda: [*stand.starts(), *([other] if other else [])])
        yield floor.row(seconds[: len(stand.sides)], seconds[-1] if other else None)
    yield TINY.row([tiny_dispatch()], None)
