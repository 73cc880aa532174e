"""Cumulative sums and sorts: GPU time beside PyTorch where it has the GPU, call time beside PyTorch on the CPU otherwise.

Run: python benchmarks/scan_sort.py [--backend dawn] [--json FILE]. On software Vulkan the sizes shrink.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import beside
import numpy as np
from rows import graph_milliseconds

import meganeura as mg
from meganeura import bench

BUSY = 0.3  # seconds that a GPU works on a case before it is timed
LONGEST = 0.1  # seconds that the calls of a CUDA graph take together

Case = tuple[str, tuple[int, ...], Callable[[Any], Any], int]


def cases(scale: int) -> list[Case]:
    """(name, shape, call on a tensor of either library, bytes an element that must move). `scale` multiplies the long rows."""
    return [
        (f"cumsum {4 * scale} Mi", (scale << 22,), lambda x: x.cumsum(0), 8),
        (f"cumsum rows {4096 * scale}x1024", (4096 * scale, 1024), lambda x: x.cumsum(1), 8),
        (f"cumsum columns {4096 * scale}x1024", (4096 * scale, 1024), lambda x: x.cumsum(0), 8),
        ("cumsum rows 70000x7", (70000, 7), lambda x: x.cumsum(1), 8),
        (f"cumprod {4 * scale} Mi", (scale << 22,), lambda x: x.cumprod(0), 8),
        (f"cummax {4 * scale} Mi", (scale << 22,), lambda x: x.cummax(0), 16),
        (f"logcumsumexp {4 * scale} Mi", (scale << 22,), lambda x: x.logcumsumexp(0), 8),
        (f"sort {scale} Mi", (scale << 20,), lambda x: x.sort(), 16),
        ("sort rows 70000x7", (70000, 7), lambda x: x.sort(), 16),
        ("sort rows 4096x100", (4096, 100), lambda x: x.sort(), 16),
        (f"sort rows {512 * scale}x1024", (512 * scale, 1024), lambda x: x.sort(), 16),
        (f"sort rows {128 * scale}x5000", (128 * scale, 5000), lambda x: x.sort(), 16),
        ("topk 50 of 64x50257", (64, 50257), lambda x: x.topk(50), 4),
        (f"topk 100 of {scale} Mi", (scale << 20,), lambda x: x.topk(100), 4),
        (f"median of {scale} Mi", (scale << 20,), lambda x: x.median(), 4),
    ]


def peer() -> tuple[Any, str]:
    """PyTorch and the device it runs on here, or (None, '')."""
    torch = beside.cuda()
    if torch:
        return torch, "cuda"
    try:
        import torch as found
    except ImportError:
        return None, ""
    return found, "cpu"


def timed(torch: Any, device: str, call: Callable[[], Any]) -> float:
    """PyTorch's milliseconds a call: by a CUDA graph on a GPU, by the clock on a CPU."""
    if device == "cpu":
        return bench.milliseconds(call, lambda: None)
    call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    calls = max(1, min(20, int(LONGEST / (time.perf_counter() - begin))))
    try:
        return graph_milliseconds(torch, call, calls)
    except RuntimeError:  # calls that wait for the GPU cannot be captured
        torch.cuda.synchronize()
        return bench.milliseconds(call, torch.cuda.synchronize)


def ours(start: Callable[[], Any]) -> float:
    """Our milliseconds a call: by timestamps on a GPU that has been busy with it, by the clock on software Vulkan."""
    if not bench.is_gpu():
        return bench.milliseconds(start, mg.synchronize)
    end = time.perf_counter() + BUSY
    while time.perf_counter() < end:  # clocks fall while the host draws numbers
        start()
        mg.synchronize()
    return bench.gpu_milliseconds(start, 10)


def main() -> None:
    args = beside.start(__doc__ or "")
    torch, device = peer()
    bench.warm()
    rng = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    drawn: dict[tuple[int, ...], Any] = {}
    for name, shape, call, width in cases(16 if bench.is_gpu() else 1):
        if shape not in drawn:
            drawn[shape] = rng.standard_normal(shape, np.float32)
        x = drawn[shape]
        a = mg.tensor(x)
        ms = ours(lambda a=a, call=call: call(a))
        row: dict[str, Any] = {"case": name, "ms": ms, "GB/s": width * x.size / ms / 1e6}
        if torch:
            t = torch.tensor(x, device=device)
            row[f"torch {device} ms"] = timed(torch, device, lambda t=t, call=call: call(t))
            row["torch / ours"] = row[f"torch {device} ms"] / ms
        rows.append(row)
    beside.finish(rows, args)


if __name__ == "__main__":
    main()
