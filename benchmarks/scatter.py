"""Reading and writing by index: GPU time beside PyTorch where it has the GPU, call time beside PyTorch on the CPU otherwise.

Run: python benchmarks/scatter.py [--backend dawn] [--json FILE]. On software Vulkan the sizes shrink.
Sums of ours come in the same order every time: indices are sorted first. PyTorch's on CUDA are float atomics, in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import beside
import numpy as np
from scan_sort import ours, peer, timed

import meganeura as mg
from meganeura import bench

Start = Callable[[], Any]
COLUMNS = 64


def cases(lib: Any, place: Callable[[Any], Any], scale: int) -> list[tuple[str, Start, int]]:
    """(name, call of either library, bytes that must move). `place` makes a tensor of an array; `scale` multiplies rows."""
    rows, into, scalars = scale << 16, scale << 12, scale << 20
    rng = np.random.default_rng(0)
    index = place(rng.integers(0, into, rows))
    spread = place(rng.integers(0, into, scalars))
    table, values = (place(rng.standard_normal((n, COLUMNS), np.float32)) for n in (into, rows))
    sums, numbers = (place(rng.standard_normal(n, np.float32)) for n in (into, scalars))
    wide = index.unsqueeze(1).expand(rows, COLUMNS)
    weight = table.clone().requires_grad_()
    out = lib.nn.functional.embedding(index, weight)
    row, size = 4 * COLUMNS, f"{rows >> 10} Ki rows of {COLUMNS}"
    return [
        (f"index_add_ {size} into {into >> 10} Ki", lambda: table.index_add_(0, index, values), rows * (row + 8) + 2 * into * row),
        (f"scatter_add_ of {scalars >> 20} Mi into {into >> 10} Ki", lambda: sums.scatter_add_(0, spread, numbers), scalars * 12),
        (f"embedding gradient, {size}", lambda: _gradient(lib, out, weight, values), rows * (row + 8) + into * row),
        (f"index_select {size}", lambda: table.index_select(0, index), rows * (2 * row + 8)),
        (f"gather {size}", lambda: table.gather(0, wide), rows * (2 * row + 8)),
    ]


def _gradient(lib: Any, out: Any, weight: Any, grad: Any) -> Any:
    return lib.autograd.grad(out, weight, grad, retain_graph=True)


def main() -> None:
    args = beside.start(__doc__ or "")
    torch, device = peer()
    bench.warm()
    scale = 16 if bench.is_gpu() else 1
    others = cases(torch, lambda x: torch.tensor(x, device=device), scale) if torch else []
    rows: list[dict[str, Any]] = []
    for i, (name, start, nbytes) in enumerate(cases(mg, mg.tensor, scale)):
        ms = ours(start)
        row: dict[str, Any] = {"case": name, "ms": ms, "GB/s": nbytes / ms / 1e6}
        if torch:
            row[f"torch {device} ms"] = timed(torch, device, others[i][1])
            row["torch / ours"] = row[f"torch {device} ms"] / ms
        rows.append(row)
    beside.finish(rows, args)


if __name__ == "__main__":
    main()
