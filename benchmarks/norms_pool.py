"""Norms over channels, pooling and resizing, forward and with gradients, PyTorch beside them in the same process.

python benchmarks/norms_pool.py [--backend wgpu|dawn] [--json FILE]
Milliseconds a call, best of three rounds after warming up. On a GPU: timestamps around 20 calls of ours, CUDA events around a graph of
20 calls of PyTorch's. On software Vulkan: wall time of smaller tensors, PyTorch on the CPU.
"torch / ours" above 1: ours is faster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import beside
from rows import graph_milliseconds

import meganeura as mg
from meganeura import bench

NORMS = ((32, 64, 56, 56), (32, 256, 14, 14), (4, 320, 64, 64), (8, 512, 7, 7))
POOLED, RESIZED = (32, 64, 112, 112), (32, 64, 56, 56)

Call = Callable[..., Any]


def cases(small: bool) -> list[tuple[str, tuple[int, ...], Call, bool]]:
    """(name, shape, function of nn.functional, input, weight and bias, whether it has weight and bias)."""
    out: list[tuple[str, tuple[int, ...], Call, bool]] = []
    for shape in NORMS:
        n, c, h, w = shape
        cut = (max(1, n // 8), c, h, w) if small else shape
        out.append(("batch norm", cut, lambda F, x, w, b: F.batch_norm(x, None, None, w, b, True), True))
        out.append(("group norm 32", cut, lambda F, x, w, b: F.group_norm(x, 32, w, b), True))
        out.append(("instance norm", cut, lambda F, x, w, b: F.instance_norm(x, None, None, w, b), True))
    pooled, resized = ((2, *s[1:]) if small else s for s in (POOLED, RESIZED))
    out += [
        ("max pool 3x3 step 2", pooled, lambda F, x, w, b: F.max_pool2d(x, 3, 2, 1), False),
        ("avg pool 2x2", pooled, lambda F, x, w, b: F.avg_pool2d(x, 2), False),
        ("adaptive avg pool 7x7", resized, lambda F, x, w, b: F.adaptive_avg_pool2d(x, 7), False),
        ("nearest 2x", resized, lambda F, x, w, b: F.interpolate(x, scale_factor=2), False),
        ("bilinear 2x", resized, lambda F, x, w, b: F.interpolate(x, scale_factor=2, mode="bilinear"), False),
        ("bicubic 2x", resized, lambda F, x, w, b: F.interpolate(x, scale_factor=2, mode="bicubic"), False),
    ]
    return out


def calls(lib: Any, shape: tuple[int, ...], fn: Call, affine: bool, place: dict[str, Any]) -> tuple[Call, Call]:
    """The forward pass, and that with the gradients of everything, in one of the libraries."""
    F, grad = lib.nn.functional, lib.autograd.grad
    x = lib.randn(*shape, **place)
    w, b = (lib.randn(shape[1], **place), lib.randn(shape[1], **place)) if affine else (None, None)
    leaves = [t.clone().requires_grad_() for t in (x, w, b) if t is not None]
    seed = fn(F, x, w, b)

    def both() -> Any:
        return grad([fn(F, *leaves, *([None, None] if not affine else []))], leaves, [seed])

    return (lambda: fn(F, x, w, b)), both


def main() -> None:
    args = beside.start(__doc__ or "")
    torch, small = beside.cuda(), not bench.is_gpu()
    place = {"device": "cuda"} if torch else {}
    if torch is None and small:
        try:
            import torch
        except ImportError:
            torch = None
    bench.warm()
    rows: list[dict[str, Any]] = []
    for name, shape, fn, affine in cases(small):
        ours = calls(mg, shape, fn, affine, {})
        theirs = calls(torch, shape, fn, affine, place) if torch else (None, None)
        row: dict[str, Any] = {"case": f"{name} {list(shape)}"}
        for what, mine, other in zip(("forward", "with gradients"), ours, theirs, strict=True):
            ms = bench.milliseconds(mine, mg.synchronize) if small else bench.gpu_milliseconds(mine)
            row[f"{what} ms"] = ms
            if torch:
                found = graph_milliseconds(torch, other) if place else bench.milliseconds(other, lambda: None)
                row[f"{what} torch ms"], row[f"{what} torch / ours"] = found, found / ms
        rows.append(row)
    beside.finish(rows, args)


if __name__ == "__main__":
    main()
