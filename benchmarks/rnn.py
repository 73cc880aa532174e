"""Recurrent networks: a call and a training step, eager and compiled, beside PyTorch; then what a new sequence length costs.

Run: python benchmarks/rnn.py [--backend dawn] [--json FILE]. Milliseconds by the clock with many calls in flight; PyTorch on
CUDA (cuDNN) where it is, else on the CPU. On software Vulkan the sizes shrink.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import beside
import numpy as np
from meganeura.nn.utils.rnn import pad_to_bucket
from scan_sort import peer

import meganeura as mg
from meganeura import bench, nn

Case = tuple[str, int, int, int, dict[str, Any]]


def cases(gpu: bool) -> list[Case]:
    """(kind, steps, sequences, size of input and state, options)."""
    if not gpu:
        return [("LSTM", 32, 8, 64, {}), ("GRU", 32, 8, 64, {}), ("RNN", 32, 8, 64, {}), ("LSTM", 16, 16, 128, {"bidirectional": True})]
    return [
        ("LSTM", 128, 64, 512, {}),
        ("GRU", 128, 64, 512, {}),
        ("RNN", 128, 64, 512, {}),
        ("LSTM", 128, 1, 256, {}),
        ("LSTM", 128, 32, 256, {"num_layers": 2, "bidirectional": True}),
        ("LSTM", 64, 256, 1024, {}),
    ]


def step_of(lib: Any, net: Any) -> Callable[[Any], Any]:
    """Forward and backward of the sum of squares of the outputs."""

    def step(x: Any) -> Any:
        out, _ = net(x)
        loss = (out * out).sum()
        for p in net.parameters():
            p.grad = None
        loss.backward()
        return loss

    return step


def ours(fn: Callable[[Any], Any], x: Any) -> float:
    return bench.milliseconds(lambda: fn(x), mg.synchronize)


def measure(case: Case, torch: Any, device: str) -> dict[str, Any]:
    kind, steps, n, size, options = case
    net = getattr(nn, kind)(size, size, **options)
    x = np.random.default_rng(0).standard_normal((steps, n, size)).astype(np.float32)
    a, step = mg.tensor(x), step_of(mg, net)

    def forward(x: Any) -> Any:
        with mg.no_grad():
            return net(x)[0]

    row: dict[str, Any] = {"case": f"{kind} {steps}x{n}x{size} {' '.join(f'{k}={v}' for k, v in options.items())}".strip()}
    row["forward ms"], row["compiled ms"] = ours(forward, a), ours(mg.compile(forward), a)
    row["train ms"], row["compiled train ms"] = ours(step, a), ours(mg.compile(step), a)
    if torch:
        theirs = getattr(torch.nn, kind)(size, size, **options).to(device)
        t, wait = torch.tensor(x, device=device), torch.cuda.synchronize if device == "cuda" else lambda: None
        with torch.no_grad():
            row[f"torch {device} ms"] = bench.milliseconds(lambda: theirs(t), wait)
        their_step = step_of(torch, theirs)
        row[f"torch {device} train ms"] = bench.milliseconds(lambda: their_step(t), wait)
        row["torch / compiled"] = row[f"torch {device} ms"] / row["compiled ms"]
        row["train: torch / compiled"] = row[f"torch {device} train ms"] / row["compiled train ms"]
    return row


def new_lengths(lengths: list[int]) -> dict[str, Any]:
    """Milliseconds of a compiled training step's calls on lengths that come for the first time, and again; then in buckets."""
    net = nn.LSTM(64, 64)

    def step(x: Any, lengths: Any) -> Any:
        out, _ = net(x, lengths=lengths)
        loss = (out * out).sum()
        net.zero_grad()
        loss.backward()
        return loss

    row: dict[str, Any] = {"case": f"{len(lengths)} new lengths"}
    inputs = [mg.randn(t, 8, 64) for t in lengths]
    for name, prepare in (("exact", lambda x: (x, mg.full((8,), x.shape[0], dtype=mg.int64))), ("buckets", pad_to_bucket)):
        compiled = mg.compile(step)
        compiled(*prepare(mg.randn(100, 8, 64))).item()
        for when in ("first", "again"):
            begin = time.perf_counter()
            for x in inputs:
                compiled(*prepare(x)).item()
            row[f"{name} {when} ms"] = (time.perf_counter() - begin) / len(inputs) * 1e3
        row[f"{name} sessions"] = compiled.sessions
    return row


def main() -> None:
    args = beside.start(__doc__ or "")
    torch, device = peer()
    bench.warm()
    rows = [measure(case, torch, device) for case in cases(bench.is_gpu())]
    rows.append(new_lengths([int(t) for t in np.random.default_rng(0).integers(33, 129, 24)]))
    beside.finish(rows, args)


if __name__ == "__main__":
    main()
