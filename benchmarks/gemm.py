"""Matrix products C = A B in strict float32, PyTorch beside them in the same process (cuBLAS from a CUDA graph, or its CPU kernels).

python benchmarks/gemm.py [--backend wgpu|dawn] [--json FILE]
Ours: GPU timestamps around passes of dependent dispatches, split sums included, median of 5 after 2.5 s of warming up.
Kinds as in BLAS: NT means that B is stored [N, K]. Errors: Frobenius norm against float64, relative, on 16 sampled rows.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import beside
import numpy as np

from meganeura.dtype import float32
from meganeura.gpu import Buffer, Device, Prepared, current
from meganeura.gpu.timing import measure
from meganeura.kernels.kernel import Call, Lowered
from meganeura.kernels.matmul import lower
from meganeura.ops.matmul import batched_matmul
from meganeura.storage import Layout, padded_bytes

Sizes = tuple[str, int, int, int]

SHAPES: tuple[tuple[str, int, int, int], ...] = (
    ("NN NT TN TT", 4096, 4096, 4096),
    ("NN NT TN TT", 1024, 1024, 1024),
    ("NN NT TN", 128, 1536, 576),
    ("NN NT TN", 128, 576, 1536),
    ("NN NT TN", 128, 49152, 576),
    ("NN NT", 50, 2048, 720),
    ("NN NT", 50, 720, 2048),
)  # the transformer shapes that the kernel table is judged by: kinds, M, N, K
MORE: tuple[tuple[str, int, int, int], ...] = (
    ("NT NN TN", 2048, 2048, 2048),
    ("NT", 512, 512, 512),
    ("NT NN", 256, 256, 256),
    ("NN TN", 49152, 128, 576),
    ("TN", 576, 1536, 4096),
    ("NN NT", 1000, 1000, 1000),
    ("NT", 1023, 1023, 1023),
    ("NT", 32, 128, 784),
    ("NT", 128, 128, 784),
    ("TN", 784, 128, 128),
    ("NT", 128, 10, 128),
    ("NN", 64, 64, 8192),
    ("NN NT", 1, 1536, 576),
    ("NN NT", 1, 49152, 576),
)
SOFTWARE_LIMIT = 1 << 28  # most products (M N K) of a shape on software devices


def layouts(sizes: Sizes) -> tuple[Layout, Layout, Layout]:
    kind, m, n, k = sizes
    a = Layout(float32, (m, k), (1, m) if kind[0] == "T" else None)
    b = Layout(float32, (k, n), (1, k) if kind[1] == "T" else None)
    return a, b, Layout(float32, (m, n))


def product(device: Device, sizes: Sizes) -> Lowered:
    a, b, c = layouts(sizes)
    return lower(Call(batched_matmul, ("input", "other"), (a, b), (c,), (float32, float32)), device.profile)


def data(sizes: Sizes, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A and B as they are stored: [K, M] and [N, K] where the kind says T."""
    kind, m, n, k = sizes
    shapes = (k, m) if kind[0] == "T" else (m, k), (n, k) if kind[1] == "T" else (k, n)
    return rng.standard_normal(shapes[0], np.float32), rng.standard_normal(shapes[1], np.float32)


def upload(device: Device, values: np.ndarray) -> Buffer:
    buffer = device.alloc(padded_bytes(values.size, float32))
    device.write(buffer, 0, values.tobytes())
    return buffer


def ours(device: Device, prepared: Prepared, buffers: list[Buffer], budget: float) -> float:
    """Seconds a product: median of 5."""

    def seconds(n: int) -> float:
        return measure(device, lambda: [device.record(prepared, buffers, ()) for _ in range(n)]) * 1e-9 / n

    once = min(seconds(1), seconds(2))
    n = max(1, min(256, int(budget / max(once, 1e-7))))
    return statistics.median(seconds(n) for _ in range(5))


def cuda_seconds(torch: Any, multiply: Callable[[], Any], budget: float) -> float:
    """Seconds a call, from replays of a CUDA graph; median of 5."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def timed(run: Callable[[], Any]) -> float:
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) * 1e-3

    timed(multiply)
    n = max(2, min(256, int(budget / max(timed(multiply), 1e-6))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(n):
            multiply()
    timed(graph.replay)
    return statistics.median(timed(graph.replay) / n for _ in range(5))


def host_seconds(multiply: Callable[[], Any], budget: float) -> float:
    """Seconds a call on the CPU: the best of 5."""

    def timed(n: int) -> float:
        start = time.perf_counter()
        for _ in range(n):
            multiply()
        return (time.perf_counter() - start) / n

    n = max(1, min(1000, int(budget / max(timed(2), 1e-7))))
    return min(timed(n) for _ in range(5))


def theirs(torch: Any, place: str, sizes: Sizes, a: np.ndarray, b: np.ndarray, budget: float) -> float:
    left, right = torch.from_numpy(a).to(place), torch.from_numpy(b).to(place)
    left, right = left.t() if sizes[0][0] == "T" else left, right.t() if sizes[0][1] == "T" else right
    out = torch.empty(sizes[1], sizes[2], device=place)

    def multiply() -> Any:
        return torch.mm(left, right, out=out)

    return cuda_seconds(torch, multiply, budget) if place == "cuda" else host_seconds(multiply, budget)


def error(device: Device, target: Buffer, sizes: Sizes, a: np.ndarray, b: np.ndarray, rng: np.random.Generator) -> float:
    """Relative error of sampled rows; inf where any element was not written."""
    kind, m, n, _ = sizes
    got = np.frombuffer(device.read(target, 0, m * n * 4), np.float32).reshape(m, n)
    rows = rng.integers(0, m, 16)
    left = (a.T if kind[0] == "T" else a)[rows].astype(np.float64)
    want = left @ (b.T if kind[1] == "T" else b).astype(np.float64)
    return float(np.linalg.norm(got[rows] - want) / np.linalg.norm(want)) if np.isfinite(got).all() else math.inf


def warm(device: Device, seconds: float) -> None:
    """Idle GPUs run the first seconds of work at lower clocks."""
    sizes = ("NN", 1024, 1024, 1024)
    buffers = [upload(device, np.ones(1 << 20, np.float32)) for _ in range(3)]
    prepared, end = device.prepare(product(device, sizes)), time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(16):
            device.record(prepared, buffers, ())
        device.synchronize()


def main() -> None:
    args = beside.start(__doc__ or "")
    device, cuda, rng = current(), beside.cuda(), np.random.default_rng(0)
    software = device.family == "cpu"
    groups = [[(kind, m, n, k) for kinds, m, n, k in group for kind in kinds.split()] for group in (SHAPES, MORE)]
    if software:
        groups = [[s for s in group if s[1] * s[2] * s[3] <= SOFTWARE_LIMIT] for group in groups]
    device.prepare_all([product(device, s) for group in groups for s in group])
    warm(device, 0.1 if software else 2.5)
    torch = cuda or __import__("torch")
    place, budget = ("cuda" if cuda else "cpu"), 0.05 if software else 0.012
    rows: list[dict[str, Any]] = []
    for group in groups:
        ratios = []
        for sizes in group:
            a, b = data(sizes, rng)
            target = upload(device, np.full(sizes[1] * sizes[2], np.nan, np.float32))
            mine = ours(device, device.prepare(product(device, sizes)), [upload(device, a), upload(device, b), target], budget)
            other = theirs(torch, place, sizes, a, b, budget)
            wrong = error(device, target, sizes, a, b, rng)
            ratios.append(other / mine)
            shape = "x".join(map(str, (sizes[1], sizes[3], sizes[2])))
            rows.append({"MxKxN": shape, "kind": sizes[0], "us": mine * 1e6, "torch us": other * 1e6, "ratio": ratios[-1], "error": wrong})
            assert wrong < 5e-6, rows[-1]
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        rows.append({"MxKxN": "all of these", "kind": f"worst {min(ratios):.3f}", "ratio": mean})
    beside.finish(rows, args)


if __name__ == "__main__":
    main()
