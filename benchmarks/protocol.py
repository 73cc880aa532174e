"""One protocol for every library that is timed; each bench_<peer>.py uses it and prints a JSON line a case.

Cases, all float32:
  matmul_1024          C = A @ B at 1024^3, left on the device; wait for it at every call
  matmul_1024_pipe     the same, 10 calls, then wait; ms a call
  mlp_train_b32, b128  784-128-10 ReLU network, cross entropy, SGD lr 0.01: a whole step, the loss read at every step
  mlp_train_*_pipe     the same, the loss read every 10 steps; ms a step
`err`: largest error of the product against numpy, or of the first losses against SGD in float64 numpy.
Variables: BENCH_N timed calls (10), BENCH_WARM calls before (3), BENCH_CASES comma-separated parts of case names (all).
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())  # some drivers insist on one
TIMED = int(os.environ.get("BENCH_N", "10"))
WARM = int(os.environ.get("BENCH_WARM", "3"))
ONLY = [part for part in os.environ.get("BENCH_CASES", "").split(",") if part]
LONGEST_PIPE_MS = 3500.0  # a submission of over 5 s makes wgpu 0.19 (ferrotensor 0.3.0) return zeros and crash
PIPE = 10
BATCHES = (32, 128)
LEARNING_RATE = 0.01

Array = np.ndarray[Any, Any]
_rng = np.random.default_rng(0)
A: Array = _rng.standard_normal((1024, 1024)).astype(np.float32)
B: Array = _rng.standard_normal((1024, 1024)).astype(np.float32)
_medians: dict[str, float] = {}


def data(batch: int) -> tuple[Array, Array]:
    """Inputs [batch, 784] and class indices [batch]."""
    r = np.random.default_rng(batch)
    return r.standard_normal((batch, 784)).astype(np.float32), r.integers(0, 10, batch)


def weights() -> dict[str, Array]:
    """w1 [784, 128], b1 [128], w2 [128, 10], b2 [10]."""
    r = np.random.default_rng(7)
    w1, w2 = r.standard_normal((784, 128)) * 0.05, r.standard_normal((128, 10)) * 0.1
    return {"w1": w1.astype(np.float32), "b1": np.zeros(128, np.float32), "w2": w2.astype(np.float32), "b2": np.zeros(10, np.float32)}


def reference_losses(batch: int, steps: int) -> list[float]:
    """The losses that plain SGD in float64 sees at its first steps."""
    w = {k: v.astype(np.float64) for k, v in weights().items()}
    x, y = data(batch)
    x = x.astype(np.float64)
    losses = []
    for _ in range(steps):
        z = x @ w["w1"] + w["b1"]
        h = np.maximum(z, 0)
        logits = h @ w["w2"] + w["b2"]
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        losses.append(float(-np.log(p[np.arange(batch), y]).mean()))
        g = p
        g[np.arange(batch), y] -= 1
        g /= batch
        dz = (g @ w["w2"].T) * (z > 0)
        for name, gradient in (("w2", h.T @ g), ("b2", g.sum(0)), ("w1", x.T @ dz), ("b1", dz.sum(0))):
            w[name] -= LEARNING_RATE * gradient
    return losses


def loss_error(losses: Sequence[float], batch: int) -> float:
    """Largest error of the first losses, six at most."""
    seen = losses[:6]
    return max(abs(a - b) for a, b in zip(seen, reference_losses(batch, len(seen)), strict=True))


def emit(peer: str, case: str, **fields: Any) -> None:
    print(json.dumps({"peer": peer, "case": case, **fields}), flush=True)


def run(peer: str, case: str, call: Callable[[], Any], device: str, error: Callable[[], float], per: int = 1) -> None:
    """Time one case and print its line; what fails is a line with the error, so that the others go on."""
    if ONLY and not any(part in case for part in ONLY):
        return
    if per > 1 and _medians.get(case.removesuffix("_pipe"), 0.0) * per > LONGEST_PIPE_MS:
        emit(peer, case, median_ms=None, device=device, error=f"left out: {per} calls would take over {LONGEST_PIPE_MS:.0f} ms")
        return
    try:
        start = time.perf_counter()
        call()
        first = (time.perf_counter() - start) * 1e3
        for _ in range(WARM):
            call()
        times = []
        for _ in range(TIMED):
            start = time.perf_counter()
            call()
            times.append((time.perf_counter() - start) * 1e3 / per)
        _medians[case] = statistics.median(times)
        emit(peer, case, median_ms=_medians[case], min_ms=min(times), first_ms=first, n=len(times), device=device, err=error())
    except Exception as e:
        emit(peer, case, median_ms=None, device=device, error=f"{type(e).__name__}: {str(e)[:300]}")


def matmul(peer: str, device: str, product: Callable[[], Any], wait: Callable[[Any], Any], result: Callable[[Any], Array]) -> None:
    """Both matmul cases. product() starts A @ B, wait(c) waits for it, result(c) reads it."""

    def error() -> float:
        return float(np.abs(result(product()) - A @ B).max())

    def several() -> None:
        for _ in range(PIPE):
            c = product()
        wait(c)

    run(peer, "matmul_1024", lambda: wait(product()), device, error)
    run(peer, "matmul_1024_pipe", several, device, error, per=PIPE)


def training(peer: str, device: str, batch: int, step: Callable[[], Any], read: Callable[[Any], float]) -> None:
    """Both training cases of a batch size. step() gives the loss on the device, read(loss) its value."""
    losses: list[float] = []

    def one() -> None:
        losses.append(read(step()))

    def several() -> None:
        for _ in range(PIPE):
            loss = step()
        read(loss)

    run(peer, f"mlp_train_b{batch}", one, device, lambda: loss_error(losses, batch))
    run(peer, f"mlp_train_b{batch}_pipe", several, device, lambda: loss_error(losses, batch) if losses else float("nan"), per=PIPE)
