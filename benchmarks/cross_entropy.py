"""Cross-entropy over large vocabularies, PyTorch beside it: the loss alone, and with the gradient of the logits.

Run: python benchmarks/cross_entropy.py [--backend dawn] [--json FILE]. GPU milliseconds a call (see rows.py), on software
Vulkan by the clock and on smaller sizes. GB/s counts the logits read once for the loss, and read twice and written once for both.
"""

from __future__ import annotations

from typing import Any

import beside
import numpy as np
from scan_sort import ours, peer, timed

import meganeura as mg
from meganeura import bench

SIZES = ((8, 49152), (128, 49152), (2048, 50257))


def calls(lib: Any, logits: Any, target: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    """The loss alone, and with the gradient."""
    leaf = logits.detach().requires_grad_()
    loss = lib.nn.functional.cross_entropy

    def forward() -> Any:
        with lib.no_grad():
            return loss(logits, target, **options)

    def both() -> Any:
        return lib.autograd.grad([loss(leaf, target, **options)], [leaf])

    return forward, both


def main() -> None:
    args = beside.start(__doc__ or "")
    torch, device = peer()
    bench.warm()
    rng = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for n, c in SIZES:
        n = n if bench.is_gpu() else max(1, n // 16)
        x, target = rng.standard_normal((n, c), np.float32), rng.integers(0, c, n)
        for dtype, smoothing in (("float32", 0.0), ("float32", 0.1), ("float16", 0.0)):
            options = {"label_smoothing": smoothing}
            a = calls(mg, mg.tensor(x).to(getattr(mg, dtype)), mg.tensor(target), options)
            t = (
                calls(torch, torch.tensor(x, device=device).to(getattr(torch, dtype)), torch.tensor(target, device=device), options)
                if torch
                else None
            )
            for i, name in enumerate(("loss", "loss and gradient")):
                ms = ours(a[i])
                nbytes = x.size * (4 if dtype == "float32" else 2) * (1, 3)[i]
                row: dict[str, Any] = {"case": f"{name} {n}x{c} {dtype} smoothing {smoothing}", "ms": ms, "GB/s": nbytes / ms / 1e6}
                if t:
                    row[f"torch {device} ms"] = timed(torch, device, t[i])
                    row["torch / ours"] = row[f"torch {device} ms"] / ms
                rows.append(row)
    beside.finish(rows, args)


if __name__ == "__main__":
    main()
