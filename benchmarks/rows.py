"""Bandwidth of row and elementwise kernels, PyTorch on CUDA beside them in the same process.

python benchmarks/rows.py [--backend wgpu|dawn] [--json FILE]
Milliseconds a call with many in flight, best of three rounds after warming up; GB/s of the bytes that must move.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import beside

import meganeura as mg
from meganeura import bench


def torch_calls(torch: Any, rows: int, columns: int, elements: int) -> list[Callable[[], Any]]:
    """The same five calls in PyTorch, in the order of bench.row_cases."""
    x = torch.randn(rows, columns, device="cuda")
    gain, bias = torch.ones(columns, device="cuda"), torch.zeros(columns, device="cuda")
    a, b = torch.randn(elements, device="cuda"), torch.randn(elements, device="cuda")
    F = torch.nn.functional
    return [
        lambda: torch.softmax(x, -1),
        lambda: F.layer_norm(x, (columns,), gain, bias),
        lambda: a + b,
        lambda: F.gelu(a),
        lambda: a.sum(),
    ]


def main() -> None:
    args = beside.start(__doc__ or "")
    torch = beside.cuda()
    size = (4096, 4096, 64 << 20) if bench.is_gpu() else (4096, 1024, 4 << 20)
    others = torch_calls(torch, *size) if torch else []
    bench.warm()
    rows: list[dict[str, Any]] = []
    for i, case in enumerate(bench.row_cases(*size)):
        ms = bench.milliseconds(case.start, mg.synchronize)
        row: dict[str, Any] = {"case": case.name, "ms": ms, "GB/s": case.nbytes / ms / 1e6}
        if torch:
            row["torch ms"] = bench.milliseconds(others[i], torch.cuda.synchronize)
            row["torch / ours"] = row["torch ms"] / ms
        rows.append(row)
    beside.finish(rows, args)


if __name__ == "__main__":
    main()
