"""Bandwidth of row and elementwise kernels, PyTorch on CUDA beside them in the same process.

python benchmarks/rows.py [--backend wgpu|dawn] [--json FILE]
GPU milliseconds a call, best of three rounds after warming up: timestamps around 20 calls of ours, CUDA events around a
graph of 20 calls of PyTorch's. "call ms" is the wall time a call with many in flight, the host's part included.
GB/s counts the bytes that must move.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import beside

import meganeura as mg
from meganeura import bench


def torch_calls(torch: Any, rows: int, columns: int, elements: int, place: str = "cuda") -> list[Callable[[], Any]]:
    """The same five calls in PyTorch, in the order of bench.row_cases."""
    x = torch.randn(rows, columns, device=place)
    gain, bias = torch.ones(columns, device=place), torch.zeros(columns, device=place)
    a, b = torch.randn(elements, device=place), torch.randn(elements, device=place)
    F = torch.nn.functional
    return [
        lambda: torch.softmax(x, -1),
        lambda: F.layer_norm(x, (columns,), gain, bias),
        lambda: a + b,
        lambda: F.gelu(a),
        lambda: a.sum(),
    ]


def graph_milliseconds(torch: Any, call: Callable[[], Any], calls: int = 20) -> float:
    """GPU milliseconds a call of a CUDA graph of many calls: best of three rounds."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    best = float("inf")
    for _ in range(bench.ROUNDS + 1):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end) / calls)
    return best


def main() -> None:
    args = beside.start(__doc__ or "")
    torch = beside.cuda()
    size = (4096, 4096, 64 << 20) if bench.is_gpu() else (4096, 1024, 4 << 20)
    others = torch_calls(torch, *size) if torch else []
    bench.warm()
    rows: list[dict[str, Any]] = []
    for i, case in enumerate(bench.row_cases(*size)):
        ms = bench.gpu_milliseconds(case.start)
        wall = bench.milliseconds(case.start, mg.synchronize)
        row: dict[str, Any] = {"case": case.name, "ms": ms, "GB/s": case.nbytes / ms / 1e6, "call ms": wall}
        if torch:
            row["torch ms"] = graph_milliseconds(torch, others[i])
            row["torch / ours"] = row["torch ms"] / ms
            row["torch call ms"] = bench.milliseconds(others[i], torch.cuda.synchronize)
        rows.append(row)
    beside.finish(rows, args)


if __name__ == "__main__":
    main()
