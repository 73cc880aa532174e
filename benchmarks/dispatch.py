"""What a dispatch costs the host: warm eager adds of 1,024 elements, and a compiled function of 300 dependent dispatches.

python benchmarks/dispatch.py [--backend wgpu|dawn] [--json FILE]
Host microseconds without waiting for the device, best of three rounds. The bare loop records, finishes and submits the
same number of dispatches in the same number of submissions through the backend's C functions and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import beside

import meganeura as mg
from meganeura import bench
from meganeura.gpu.replay import CHUNK

CHAIN = 300
_SHADER = """
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) i: vec3<u32>) { x[i.x] = x[i.x] + 1.0; }
"""


def bare_loop(count: int, chunk: int) -> Callable[[], None]:
    """Records and submits `count` dispatches that depend on each other, `chunk` a submission, with nothing around the C functions."""
    device = mg.device()
    n, api = device.native, device.wgpu
    module = api.create_shader_module(code=_SHADER)
    pipeline = api.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "main"})
    buffer = api.create_buffer(size=4096, usage=0x80 | 0x04 | 0x08)
    entries = [{"binding": 0, "resource": {"buffer": buffer, "offset": 0, "size": 4096}}]
    group = api.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
    keep = (pipeline, group, buffer)

    def submission(dispatches: int) -> None:
        null, dispatch, bind, p, g = n.NULL, n.dispatch, n.set_bind_group, keep[0]._internal, keep[1]._internal
        encoder = n.create_encoder(device.handle, null)
        work = n.begin_pass(encoder, null)
        n.set_pipeline(work, p)
        for _ in range(dispatches):
            bind(work, 0, g, 0, null)
            dispatch(work, 16, 1, 1)
        n.end_pass(work)
        n.release_pass(work)
        commands = n.finish(encoder)
        n.release_encoder(encoder)
        n.submit(device.queue, [commands], [])

    def run() -> None:
        for start in range(0, count, chunk):
            submission(min(chunk, count - start))

    return run


def chain() -> Callable[[], Any]:
    """A compiled function of 300 adds, each of the result of the last, kept apart by rewrite='off'."""
    x, y = mg.zeros(1024), mg.ones(1024)

    def run(x: mg.Tensor) -> mg.Tensor:
        for _ in range(CHAIN):
            x = x + y
        return x

    compiled = mg.compile(run, rewrite="off")
    assert abs(compiled(x)[0].item() - CHAIN) < 1e-3
    return lambda: compiled(x)


def each(call: Callable[[], Any], wait: Callable[[], Any], calls: int = 50) -> float:
    """Best host microseconds of one call, the device idle when it begins."""
    best = float("inf")
    for _ in range(calls):
        wait()
        begin = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begin)
    wait()
    return best * 1e6


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
    ours = each(chain(), mg.synchronize) / CHAIN
    for chunk in (CHUNK[mg.device().family], CHAIN):
        bare = each(bare_loop(CHAIN, chunk), mg.synchronize) / CHAIN
        case = f"replay of {CHAIN} dispatches, each; bare loop in {-(-CHAIN // chunk)} submissions"
        rows.append({"case": case, "host us": ours, "bare us": bare, "ours / bare": ours / bare})
    beside.finish(rows, args)


if __name__ == "__main__":
    main()
