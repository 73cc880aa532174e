"""What a dispatch costs the host: warm eager adds of 1,024 elements, and a compiled function of 300 dependent dispatches.

python benchmarks/dispatch.py [--backend wgpu|dawn] [--json FILE]
Host microseconds without waiting for the device, best of many rounds. The bare loop records, finishes and submits the very
same dispatches in as many submissions through the backend's C functions and does nothing else (bare.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import beside
from bare import bare_loop, chain

import meganeura as mg
from meganeura import bench

CHAIN = 300


def each(calls: list[Callable[[], Any]], wait: Callable[[], Any], rounds: int = 60) -> list[float]:
    """Best host microseconds of each call, taken in turns, the device idle when one begins."""
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for i, call in enumerate(calls):
            wait()
            begin = time.perf_counter()
            call()
            best[i] = min(best[i], time.perf_counter() - begin)
    wait()
    return [b * 1e6 for b in best]


def eager_rows(torch: Any) -> list[dict[str, Any]]:
    rows = []
    for name, gradient in (("eager add", False), ("eager add, gradient recorded", True)):
        row: dict[str, Any] = {"case": name, "host us": bench.host_us(bench.eager_add(gradient), mg.synchronize)}
        if torch:
            a = torch.randn(1024, device="cuda", requires_grad=gradient)
            b = torch.randn(1024, device="cuda")
            row["torch us"] = bench.host_us(lambda a=a, b=b: a + b, torch.cuda.synchronize)
        rows.append(row)
    return rows


def main() -> None:
    args = beside.start(__doc__ or "")
    bench.warm()
    rows = eager_rows(beside.cuda())
    compiled, x = chain(CHAIN)
    frozen = compiled.session(x).frozen
    whole, list_alone, bare = (us / CHAIN for us in each([lambda: compiled(x), frozen.run, bare_loop(frozen)], mg.synchronize))
    for name, us in (("its list replayed", list_alone), ("the whole call", whole)):
        case = f"compiled function of {CHAIN} dispatches, each: {name}"
        rows.append({"case": case, "host us": us, "bare us": bare, "ours / bare": us / bare})
    beside.finish(rows, args)


if __name__ == "__main__":
    main()
