"""Floors on GPUs: GPU time of passes of dependent dispatches by timestamps, ours and the floor's kernels in turns, then PyTorch on CUDA in
the same process, as benchmarks/gemm.py, rows.py, attention.py and conv.py measure it. The floor of layer norm was measured with one
vector as gain and as bias; it holds for that line and, strictly, for the one with two vectors.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import attention
import beside
import conv
import floor_kernels
import floor_stand
import gemm
import numpy as np
import rows as row_kernels
from floor_kernels import Problem
from floor_lines import Floor
from floor_stand import Stand

from meganeura.gpu import Device, current

PRODUCTS = {  # kind, M, N, K: cuBLAS strict float32 over ours, under naga and under Tint
    ("NN", 4096, 4096, 4096): (0.97, 1.00),
    ("NT", 4096, 4096, 4096): (0.92, 0.97),
    ("TN", 4096, 4096, 4096): (0.95, 0.98),
    ("TT", 4096, 4096, 4096): (0.97, 0.98),
    ("NN", 1024, 1024, 1024): (1.04, 1.03),
    ("NT", 1024, 1024, 1024): (1.03, 1.09),
    ("TN", 1024, 1024, 1024): (1.02, 1.03),
    ("TT", 1024, 1024, 1024): (0.99, 1.01),
    ("NN", 128, 1536, 576): (0.98, 1.02),
    ("NT", 128, 1536, 576): (0.97, 1.00),
    ("TN", 128, 1536, 576): (1.10, 1.17),
    ("NN", 128, 576, 1536): (1.06, 1.11),
    ("NT", 128, 576, 1536): (1.11, 1.16),
    ("TN", 128, 576, 1536): (1.25, 1.31),
    ("NN", 128, 49152, 576): (1.03, 1.03),
    ("NT", 128, 49152, 576): (1.06, 1.07),
    ("TN", 128, 49152, 576): (1.02, 1.02),
    ("NN", 50, 2048, 720): (1.10, 1.12),
    ("NT", 50, 2048, 720): (1.04, 1.00),
    ("NN", 50, 720, 2048): (0.95, 0.95),
    ("NT", 50, 720, 2048): (1.04, 1.03),
    ("NN", 1, 1536, 576): (None, None),  # what was written down had its weights in memory, which a cache holds here
    ("NN", 1, 49152, 576): (1.08, 1.08),
    ("NT", 1, 49152, 576): (1.23, 1.23),
    ("NT", 1000, 1000, 1000): (0.92, 0.95),  # no figure of their own: the least of all of the large ones above
    ("NT", 1023, 1023, 1023): (0.92, 0.95),
    ("NN", 1023, 1023, 1023): (0.92, 0.95),
    ("TN", 1023, 1023, 1023): (0.92, 0.95),
}
STREAMS = {"softmax": 1.57, "layer norm": 1.46, "add": 1.0, "gelu": 1.0, "sum": 1.0, "copy": 1.0}
ATTENTION = {128: (2.1, 2.4), 2048: (1.8, 2.0)}  # positions; under naga, under Tint
CONVOLUTIONS = {(2, 64, 32): (1.26, 1.28), (4, 64, 56): (1.04, 1.13), (4, 256, 14): (1.25, 1.33)}  # batch, channels, size; the same
ROWS, ELEMENTS = 4096, 64 << 20
BUDGET = 0.012  # seconds of a pass
WARM = 0.1  # seconds before a line, whose operands and checks may have left the GPU idle


@dataclass(frozen=True)
class Line:
    """A floor, the op and sizes that it is of, PyTorch's seconds a call of the same, and how to sum up passes: as those of PyTorch."""

    floor: Floor
    op: str
    sizes: tuple[Any, ...]
    torch: Callable[[Any, Stand], float]
    of: Callable[[list[float]], float] = statistics.median

    def problem(self, known: dict[str, Problem]) -> Problem:
        return known.get(self.floor.case) or floor_kernels.alone(self.floor.case, "gpu", self.op, *self.sizes)


def stored(stand: Stand, sizes: gemm.Sizes) -> list[np.ndarray]:
    """A and B as they lie in memory."""
    return [(x.t() if kind == "T" else x).numpy() for kind, x in zip(sizes[0], (stand.tensors["A"], stand.tensors["B"]), strict=True)]


def product(sizes: gemm.Sizes, ratio: float | None) -> Line:
    kind, m, n, k = sizes
    floor = Floor(f"matmul {m}x{k}x{n} {kind}", "TFLOP/s", 2.0 * m * n * k, ratio=ratio)
    return Line(floor, "matmul", sizes, lambda torch, stand: gemm.theirs(torch, "cuda", sizes, *stored(stand, sizes), BUDGET))


def stream_call(torch: Any, case: str) -> Callable[[], Any]:
    """PyTorch's call of the same."""
    calls = row_kernels.torch_calls(torch, ROWS, ROWS, ELEMENTS)
    if case.startswith("copy"):
        return torch.randn(ELEMENTS, device="cuda").clone  # type: ignore[no-any-return]
    if case.endswith("gain as bias"):
        y, v = torch.randn(ROWS, ROWS, device="cuda"), torch.ones(ROWS, device="cuda")
        return lambda: torch.nn.functional.layer_norm(y, (ROWS,), v, v)
    return calls[list(STREAMS).index(next(name for name in STREAMS if case.startswith(name)))]


def stream(case: str, op: str, *sizes: int) -> Line:
    arrays, ratio = {"add": 3, "sum": 1}.get(op, 2), STREAMS[op]
    elements = ELEMENTS if len(sizes) == 1 else ROWS * ROWS
    floor = Floor(case, "GB/s", 4.0 * arrays * elements, ratio=ratio)
    seconds = lambda torch, _: row_kernels.graph_milliseconds(torch, stream_call(torch, case)) * 1e-3
    return Line(floor, op, sizes, seconds, of=min)


def attended(positions: int, ratio: float) -> Line:
    def seconds(torch: Any, _: Stand) -> float:
        call = attention.theirs(torch, "cuda", 1, positions, positions)[0]
        return attention.torch_milliseconds(torch, call, graph=True) * 1e-3

    floor = Floor(f"attention, {positions} positions", "ms", ratio=ratio)
    return Line(floor, "attention", (attention.HEADS, attention.KV, positions, attention.SIZE), seconds, of=min)


def convolved(batch: int, channels: int, size: int, ratio: float) -> Line:
    shape = conv.Shape(batch, channels, channels, size, 3)

    def seconds(torch: Any, _: Stand) -> float:
        conv.strict(torch)
        tensors = {name: torch.randn(s, device="cuda") for name, s in shape.arrays().items()}
        with torch.no_grad():
            run = lambda: conv.call(torch, shape, "output", tensors)
            for _ in range(3):  # cuDNN chooses
                run()
            return gemm.cuda_seconds(torch, run, BUDGET)

    floor = Floor(f"conv 3x3, {batch}x{channels}x{size}x{size}", "GFLOP/s", shape.flops, ratio=ratio)
    return Line(floor, "conv", (batch, channels, channels, size), seconds)


def lines(which: int) -> Iterator[Line]:
    """All; `which`: the ratios under naga (0) or Tint (1)."""
    for sizes, ratios in PRODUCTS.items():
        yield product(sizes, ratios[which])
    yield stream(f"softmax {ROWS}x{ROWS}", "softmax", ROWS, ROWS)
    yield stream(f"layer norm {ROWS}x{ROWS}", "layer norm", ROWS, ROWS, 2)
    for name in ("add", "gelu", "sum", "copy"):
        yield stream(f"{name} {ELEMENTS >> 20} Mi", name, ELEMENTS)
    yield stream(f"layer norm {ROWS}x{ROWS}, gain as bias", "layer norm", ROWS, ROWS, 1)
    for positions, both in ATTENTION.items():
        yield attended(positions, both[which])
    for shape, both in CONVOLUTIONS.items():
        yield convolved(*shape, both[which])


def verify(device: Device, stand: Stand, sizes: gemm.Sizes) -> None:
    """Some rows of our product against float64."""
    [target] = stand.buffers("O")
    wrong = gemm.error(device, target, sizes, *stored(stand, sizes), np.random.default_rng(0))
    assert wrong < 5e-6, (sizes, wrong)


def row(device: Device, torch: Any, line: Line, problem: Problem) -> dict[str, Any]:
    """A line of the table."""
    stand = Stand(device, problem)
    stand.check()
    if line.op == "matmul":
        verify(device, stand, line.sizes)
    gemm.warm(device, WARM)
    seconds = stand.gpu_seconds(BUDGET, line.of)
    return line.floor.row(seconds, line.torch(torch, stand) if torch else None)


def rows() -> Iterator[dict[str, Any]]:
    device, torch = current(), beside.cuda()
    known = floor_kernels.problems("gpu", device.backend)
    chosen = [(line, line.problem(known)) for line in lines(device.backend == "dawn")]
    floor_stand.build(device, [problem for _, problem in chosen])
    gemm.warm(device, 2.5)
    for line, problem in chosen:
        yield row(device, torch, line, problem)
