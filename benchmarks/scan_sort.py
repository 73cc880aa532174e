"""Cumulative sums and sorts: GPU time beside PyTorch where it has the GPU, call time beside PyTorch on the CPU otherwise.

Run: python benchmarks/scan_sort.py [--backend dawn] [--json FILE]. On software Vulkan the sizes shrink.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import beside
import numpy as np
from rows import graph_milliseconds

import meganeura as mg
from meganeura import bench

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


def theirs(torch: Any, device: str, x: Any, call: Callable[[Any], Any]) -> float:
    """PyTorch's milliseconds: by a CUDA graph on a GPU, by the clock on a CPU."""
    t = torch.tensor(x, device=device)
    if device == "cpu":
        return bench.milliseconds(lambda: call(t), lambda: None)
    try:
        return graph_milliseconds(torch, lambda: call(t))
    except RuntimeError:  # calls that wait for the GPU cannot be captured
        torch.cuda.synchronize()
        return bench.milliseconds(lambda: call(t), torch.cuda.synchronize)


def main() -> None:
    args = beside.start(__doc__ or "")
    torch, device = peer()
    bench.warm()
    rng = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for name, shape, call, width in cases(16 if bench.is_gpu() else 1):
        x = rng.standard_normal(shape, np.float32)
        a = mg.tensor(x)

        def start(a: Any = a, call: Any = call) -> Any:
            return call(a)

        ms = bench.gpu_milliseconds(start, 10) if bench.is_gpu() else bench.milliseconds(start, mg.synchronize)
        row: dict[str, Any] = {"case": name, "ms": ms, "GB/s": width * x.size / ms / 1e6}
        if torch:
            row[f"torch {device} ms"] = theirs(torch, device, x, call)
            row["torch / ours"] = row[f"torch {device} ms"] / ms
        rows.append(row)
    beside.finish(rows, args)


if __name__ == "__main__":
    main()
