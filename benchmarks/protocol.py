"""One protocol for every library that is timed; each bench_<peer>.py uses it and prints a JSON line a case.

Cases, all float32:
  matmul_1024          C = A @ B at 1024^3, left on the device; wait for it at every call
  matmul_1024_pipe     the same, 10 calls, then wait; ms a call
  mlp_train_b32, b128  784-128-10 ReLU network, cross entropy, SGD lr 0.01: a whole step, the loss read at every step
  mlp_train_*_pipe     the same, the loss read every 10 steps; ms a step
  block_forward        a transformer block (width 384, 6 heads, causal, 256 positions, GELU, two layer norms): wait at every call
  block_train          the same block, mean squared error, SGD lr 0.01: a whole step, the loss read at every step
`err`: largest error of the product against numpy, or of the first losses against SGD in float64 numpy (of the block: of its
output and of the first loss).
Variables: BENCH_N timed calls (10), BENCH_WARM calls before (3), BENCH_CASES comma-separated parts of case names (all).
"""

from __future__ import annotations

import json
import math
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


# ---- the transformer block ----

WIDTH, HEADS, LENGTH = 384, 6, 256


def block_data() -> tuple[Array, Array]:
    """Input and target [1, 256, 384]."""
    r = np.random.default_rng(5)
    return r.standard_normal((1, LENGTH, WIDTH)).astype(np.float32), r.standard_normal((1, LENGTH, WIDTH)).astype(np.float32)


def block_weights() -> dict[str, Array]:
    """Products as [in, out]: wq wk wv wo [384, 384], w1 [384, 1536], w2 [1536, 384], each with a bias bq ...; norms g1 n1 g2 n2."""
    r = np.random.default_rng(9)
    shapes = dict.fromkeys("qkvo", (WIDTH, WIDTH)) | {"1": (WIDTH, 4 * WIDTH), "2": (4 * WIDTH, WIDTH)}
    out: dict[str, Array] = {}
    for name, (i, o) in shapes.items():
        out["w" + name] = (r.standard_normal((i, o)) / i**0.5).astype(np.float32)
        out["b" + name] = (r.standard_normal(o) * 0.1).astype(np.float32)
    for k in "12":
        out["g" + k] = (1 + 0.1 * r.standard_normal(WIDTH)).astype(np.float32)
        out["n" + k] = (0.1 * r.standard_normal(WIDTH)).astype(np.float32)
    return out


def block_reference() -> Array:
    """The block's output in float64."""
    w = {k: v.astype(np.float64) for k, v in block_weights().items()}
    x = block_data()[0][0].astype(np.float64)

    def norm(v: Array, k: str) -> Array:
        return (v - v.mean(-1, keepdims=True)) / np.sqrt(v.var(-1, keepdims=True) + 1e-5) * w["g" + k] + w["n" + k]

    def heads(v: Array, k: str) -> Array:
        return (v @ w["w" + k] + w["b" + k]).reshape(LENGTH, HEADS, -1).transpose(1, 0, 2)

    h = norm(x, "1")
    q, k, v = (heads(h, name) for name in "qkv")
    scores = q @ k.transpose(0, 2, 1) / (WIDTH // HEADS) ** 0.5
    scores = np.where(np.tril(np.ones((LENGTH, LENGTH), bool)), scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    a = ((p / p.sum(-1, keepdims=True)) @ v).transpose(1, 0, 2).reshape(LENGTH, WIDTH)
    x = x + a @ w["wo"] + w["bo"]
    u = norm(x, "2") @ w["w1"] + w["b1"]
    t = np.abs(u) / 2**0.5
    erf = np.sign(u) * np.vectorize(math.erf)(t)
    out: Array = x + (u * 0.5 * (1 + erf)) @ w["w2"] + w["b2"]
    return out[None]


def block(
    peer: str, device: str, forward: Callable[[], Any], wait: Callable[[Any], Any], result: Callable[[Any], Array],
    step: Callable[[], Any], read: Callable[[Any], float],
) -> None:  # fmt: skip
    """Both block cases. forward() starts the block, wait(y) waits for it, result(y) reads it; step() and read() as in training."""
    losses: list[float] = []

    def one() -> None:
        losses.append(read(step()))

    def error() -> float:
        return abs(losses[0] - float(((block_reference() - block_data()[1]) ** 2).mean()))

    run(peer, "block_forward", lambda: wait(forward()), device, lambda: float(np.abs(result(forward()) - block_reference()).max()))
    run(peer, "block_train", one, device, error)


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
