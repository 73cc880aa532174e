"""The speeds that kernels must not fall below, and what this device reaches: a line a floor, of the device's kernel family.

python benchmarks/floors.py [--backend wgpu|dawn] [--json FILE]
Software Vulkan: speeds of two free cores, which is 2 x work / CPU time of the process, for PyTorch with 2 threads too; so other
programs disturb them little. The median over 3 separately built pipelines, because some copies of the same machine code stay
slow, of the best of 5 rounds taken in turns with PyTorch. LP_NUM_THREADS is 0 unless set. Floors: Mesa 25.0.7, AMD EPYC (Zen 5).
GPUs: GPU time against PyTorch on CUDA in the same process, as benchmarks/gemm.py and benchmarks/rows.py measure them; floors are
ratios to its time, measured on one NVIDIA H200 (with Dawn's bounds checks off, which they are not here). The floor of layer norm
was measured with one vector as gain and as bias; it holds for that line and, strictly, for the one with two vectors.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("LP_NUM_THREADS", "0")  # read when the Vulkan instance is made

import attention
import bare
import beside
import conv
import dispatch
import gemm
import numpy as np
import rows

import meganeura as mg
from meganeura import bench
from meganeura import dispatch as interpreters
from meganeura.gpu import current

COPIES, TURNS = 3, 5
SECONDS = 0.05  # of CPU time a measurement
SETTLE = 0.02  # seconds before one: PyTorch's threads spin for a while after their work, and a copy would pay for it


@dataclass(frozen=True)
class Floor:
    """A case; its speed in `unit` or None where only the ratio counts; torch's time over ours or None."""

    case: str
    unit: str
    speed: float | None = None
    ratio: float | None = None

    def row(self, speed: float | None, ratio: float | None) -> dict[str, Any]:
        """A line of the table; speeds in us are better when smaller."""
        reached = None
        if speed is not None and self.speed is not None:
            reached = self.speed / speed if self.unit == "us" else speed / self.speed
        elif ratio is not None and self.ratio is not None:
            reached = ratio / self.ratio
        return {
            "case": self.case,
            "ours": speed and f"{speed:.4g} {self.unit}",
            "floor": self.speed and f"{self.speed:g} {self.unit}",
            "ours / floor": reached,
            "torch / ours": ratio,
            "its floor": self.ratio,
        }


SOFTWARE = (
    Floor("matmul 512", "GFLOP/s", 82, 0.38),
    Floor("matmul 1024", "GFLOP/s", 90, 0.40),
    Floor("softmax 4096x1024", "GB/s", 12, 0.34),
    Floor("layer norm 4096x1024", "GB/s", 12.5, 0.18),
    Floor("add 4 Mi", "GB/s", 27, 0.17),
    Floor("gelu tanh 4 Mi", "GB/s", 19, 1.4),
    Floor("gelu 4 Mi", "GB/s"),
    Floor("tiny dispatch", "us", 1.4),
    Floor("conv 3x3, 64 to 64 channels, 56x56", "GFLOP/s", 99, 0.23),
)

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
    ("NT", 1000, 1000, 1000): (0.92, 0.95),  # no figure of their own: the least of all above
    ("NT", 1023, 1023, 1023): (0.92, 0.95),
    ("NN", 1023, 1023, 1023): (0.92, 0.95),
    ("TN", 1023, 1023, 1023): (0.92, 0.95),
}
STREAMS = {"softmax": 1.57, "layer norm": 1.46, "copy": 1.0, "add": 1.0, "gelu": 1.0, "sum": 1.0}
ATTENTION = {128: (2.1, 2.4), 2048: (1.8, 2.0)}  # positions; under naga, under Tint
CONVOLUTIONS = {(2, 64, 32): (1.26, 1.28), (4, 64, 56): (1.04, 1.13), (4, 256, 14): (1.25, 1.33)}  # batch, channels, size; the same

# --- software Vulkan --------------------------------------------------------------------------------------------------


def cpu_seconds(start: Callable[[], Any], calls: int) -> float:
    """Seconds a call if two cores were free: half the CPU time of the process."""
    time.sleep(SETTLE)
    begin = time.process_time()
    for _ in range(calls):
        start()
    mg.synchronize()
    return (time.process_time() - begin) / calls / 2


def calls_for(start: Callable[[], Any]) -> int:
    start()
    return max(1, int(SECONDS / 2 / max(cpu_seconds(start, 1), 1e-6)))


def rebuild() -> None:
    """Forget pipelines, so that the next call builds its own again."""
    mg.synchronize()
    interpreters.current().plans.clear()  # type: ignore[attr-defined]
    current().pipelines.pipelines.clear()


def against(ours: bench.Case, theirs: Callable[[], Any] | None) -> tuple[float, float | None]:
    """Seconds of ours and of PyTorch's."""
    both = [ours.start, theirs] if theirs else [ours.start]
    copies = []
    for _ in range(COPIES):
        rebuild()
        counts = [calls_for(call) for call in both]
        turns = [[cpu_seconds(call, n) for call, n in zip(both, counts, strict=True)] for _ in range(TURNS)]
        copies.append([min(x) for x in zip(*turns, strict=True)])
    mine, *other = (statistics.median(x) for x in zip(*copies, strict=True))
    return mine, other[0] if other else None


def host_torch() -> Any:
    """torch with two threads, or None where it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(2)
    return torch


def tiny_dispatch() -> float:
    """Microseconds a dispatch of a list of 300, waited for; the best replay."""
    compiled, x = bare.chain(dispatch.CHAIN, 8)
    frozen = compiled.session(x).frozen

    def replay() -> None:
        frozen.run()
        mg.synchronize()

    return dispatch.each([replay], mg.synchronize)[0] / dispatch.CHAIN


def software() -> Iterator[dict[str, Any]]:
    torch = host_torch()
    size = (4096, 1024, 4 << 20)
    x, lines = mg.randn(size[2]), bench.row_cases(*size)
    smooth = bench.Case("gelu tanh 4 Mi", lambda: mg.gelu(x, approximate="tanh"), 8 * size[2])
    image, kernels = mg.randn(1, 64, 56, 56), mg.randn(64, 64, 3, 3)
    made = bench.Case(SOFTWARE[-1].case, lambda: mg.nn.functional.conv2d(image, kernels, padding=1), flops=2 * 64 * 64 * 9 * 56 * 56)
    cases = {c.name: c for c in (*bench.matmul_cases(512), *bench.matmul_cases(1024), *lines, smooth, made)}
    others: dict[str, Callable[[], Any]] = {}
    if torch:
        others = dict(zip([c.name for c in lines], rows.torch_calls(torch, *size, place="cpu"), strict=True))
        y = torch.randn(size[2])
        others[smooth.name] = lambda: torch.nn.functional.gelu(y, approximate="tanh")
        z, w = torch.randn(1, 64, 56, 56), torch.randn(64, 64, 3, 3)
        others[made.name] = lambda: torch.nn.functional.conv2d(z, w, padding=1)
        for n in (512, 1024):
            a, b = torch.randn(n, n), torch.randn(n, n)
            others[f"matmul {n}"] = lambda a=a, b=b: a @ b
    for floor in SOFTWARE:
        if floor.case in cases:
            case = cases[floor.case]
            ours, theirs = against(case, others.get(floor.case))
            yield floor.row((case.flops or case.nbytes) / ours / 1e9, theirs and theirs / ours)
        else:
            yield floor.row(tiny_dispatch() if floor.case == "tiny dispatch" else None, None)


# --- GPUs -------------------------------------------------------------------------------------------------------------


def product_rows(torch: Any, which: int) -> Iterator[dict[str, Any]]:
    device, rng, budget = current(), np.random.default_rng(0), 0.012
    device.prepare_all([gemm.product(device, sizes) for sizes in PRODUCTS])
    gemm.warm(device, 2.5)
    for sizes, ratios in PRODUCTS.items():
        kind, m, n, k = sizes
        a, b = gemm.data(sizes, rng)
        target = gemm.upload(device, np.full(m * n, np.nan, np.float32))
        buffers = [gemm.upload(device, a), gemm.upload(device, b), target]
        mine = gemm.ours(device, device.prepare(gemm.product(device, sizes)), buffers, budget)
        theirs = gemm.theirs(torch, "cuda", sizes, a, b, budget) if torch else None
        wrong = gemm.error(device, target, sizes, a, b, rng)
        assert wrong < 5e-6, (sizes, wrong)
        yield Floor(f"matmul {m}x{k}x{n} {kind}", "TFLOP/s", None, ratios[which]).row(2 * m * n * k / mine / 1e12, theirs and theirs / mine)


def one_vector(lines: int, columns: int) -> bench.Case:
    """Layer norm with one vector as gain and as bias: as its floor was measured."""
    x, v = mg.randn(lines, columns), mg.ones(columns)
    name = f"layer norm {lines}x{columns}, gain as bias"
    return bench.Case(name, lambda: mg.nn.functional.layer_norm(x, (columns,), v, v), 8 * lines * columns)


def stream_rows(torch: Any) -> Iterator[dict[str, Any]]:
    size = (4096, 4096, 64 << 20)
    a = mg.randn(size[2])
    cases = [*bench.row_cases(*size), bench.Case("copy 64 Mi", a.clone, 8 * size[2]), one_vector(*size[:2])]
    others: list[Callable[[], Any]] = []
    if torch:
        others = [*rows.torch_calls(torch, *size), torch.randn(size[2], device="cuda").clone]
        y, v = torch.randn(size[:2], device="cuda"), torch.ones(size[1], device="cuda")
        others.append(lambda: torch.nn.functional.layer_norm(y, (size[1],), v, v))
    bench.warm()
    for i, case in enumerate(cases):
        ms = bench.gpu_milliseconds(case.start)
        theirs = rows.graph_milliseconds(torch, others[i]) if torch else None
        ratio = next(r for name, r in STREAMS.items() if case.name.startswith(name))
        yield Floor(case.name, "GB/s", None, ratio).row(case.nbytes / ms / 1e6, theirs and theirs / ms)


def attention_rows(torch: Any, which: int) -> Iterator[dict[str, Any]]:
    for n, ratios in ATTENTION.items():
        ms = attention.milliseconds(attention.ours(1, n, n)[0])
        theirs = attention.torch_milliseconds(torch, attention.theirs(torch, "cuda", 1, n, n)[0], graph=True) if torch else None
        yield Floor(f"attention, {n} positions", "ms", None, ratios[which]).row(ms, theirs and theirs / ms)


def conv_rows(torch: Any, which: int) -> Iterator[dict[str, Any]]:
    device, rng = current(), np.random.default_rng(0)
    conv.strict(torch)
    for (n, channels, size), ratios in CONVOLUTIONS.items():
        s = conv.Shape(n, channels, channels, size, 3)
        mine, theirs, _ = conv.timed(torch, device, s, "output", conv.given(torch, device, s, rng), 0.012)
        yield Floor(f"conv 3x3, {n}x{channels}x{size}x{size}", "GFLOP/s", None, ratios[which]).row(s.flops / mine / 1e9, theirs / mine)


def gpu() -> Iterator[dict[str, Any]]:
    torch, which = beside.cuda(), 1 if current().backend == "dawn" else 0
    yield from product_rows(torch, which)
    yield from stream_rows(torch)
    yield from attention_rows(torch, which)
    if torch:
        yield from conv_rows(torch, which)


def main() -> None:
    args = beside.start(__doc__ or "")
    beside.finish(list(gpu() if bench.is_gpu() else software()), args)


if __name__ == "__main__":
    main()
