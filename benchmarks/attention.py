"""Attention forward, backward and decoding, PyTorch's SDPA beside it in the same process (CUDA if there is one, else CPU).

python benchmarks/attention.py [--backend wgpu|dawn] [--json FILE]
Causal, 9 query heads and 3 key heads of 64, float32. Milliseconds a call, best of three rounds: on a GPU timestamps around 20
calls of ours and CUDA events around a graph of 20 calls of PyTorch's, on a processor wall time. PyTorch gets keys and values
expanded to all heads, which it is faster with. Decoding: one query for a batch of 8 against a whole cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import beside

import meganeura as mg
from meganeura import bench

HEADS, KV, SIZE = 9, 3, 64
Ours = Callable[[], Any]


def ours(batch: int, rows: int, keys: int) -> tuple[Ours, Ours]:
    """Forward, and backward of the same."""
    q, k, v = (mg.randn(batch, h, n, SIZE, requires_grad=True) for h, n in ((HEADS, rows), (KV, keys), (KV, keys)))
    out, grad = mg.nn.functional.attention(q, k, v, causal=True, offset=keys - rows), mg.randn(batch, HEADS, rows, SIZE)

    def forward() -> Any:
        with mg.no_grad():
            return mg.nn.functional.attention(q, k, v, causal=True, offset=keys - rows)

    return forward, lambda: mg.grad(out, [q, k, v], grad, retain_graph=True)


def theirs(torch: Any, place: str, batch: int, rows: int, keys: int) -> tuple[Ours, Ours]:
    """The same in PyTorch, all heads with keys of their own."""
    made = [torch.randn(batch, HEADS, n, SIZE, device=place, requires_grad=True) for n in (rows, keys, keys)]
    sdpa, causal = torch.nn.functional.scaled_dot_product_attention, rows == keys
    out, grad = sdpa(*made, is_causal=causal), torch.randn(batch, HEADS, rows, SIZE, device=place)

    def forward() -> Any:
        with torch.no_grad():
            return sdpa(*made, is_causal=causal)

    return forward, lambda: torch.autograd.grad(out, made, grad, retain_graph=True)


def torch_milliseconds(torch: Any, call: Ours, graph: bool) -> float:
    """Milliseconds a call: of a CUDA graph, or of the calls themselves (for backward passes, which graphs do not hold here)."""
    if not torch.cuda.is_available():
        return bench.milliseconds(call, lambda: None)
    if graph:
        from rows import graph_milliseconds

        return graph_milliseconds(torch, call)
    call()
    best = float("inf")
    for _ in range(bench.ROUNDS + 1):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(20):
            call()
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end) / 20)
    return best


def milliseconds(call: Ours) -> float:
    return bench.gpu_milliseconds(call) if bench.is_gpu() else bench.milliseconds(call, mg.synchronize)


def main() -> None:
    args = beside.start(__doc__ or "")
    torch = beside.cuda()
    place = "cuda"
    if torch is None:
        place = "cpu"
        try:
            import torch
        except ImportError:
            torch = None
    bench.warm()
    rows: list[dict[str, Any]] = []
    lengths = (128, 2048) if bench.is_gpu() else (128, 512)
    for batch, queries, keys in (*((1, n, n) for n in lengths), (8, 1, lengths[1]), (8, 1, 4 * lengths[1])):
        mine = ours(batch, queries, keys)
        other = theirs(torch, place, batch, queries, keys) if torch else (None, None)
        what = f"{queries} of {keys}" if queries == keys else f"decode {batch} x 1 of {keys}"
        for i, name in enumerate(("forward", "backward")):
            if queries != keys and i:
                continue
            ms = milliseconds(mine[i])
            row: dict[str, Any] = {"case": f"{what}, {name}", "ms": ms}
            if other[i] is not None:
                row[f"torch {place} ms"] = torch_milliseconds(torch, other[i], graph=i == 0)
                row["torch / ours"] = row[f"torch {place} ms"] / ms
            rows.append(row)
    beside.finish(rows, args)


if __name__ == "__main__":
    main()
