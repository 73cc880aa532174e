"""Small kernels written by hand, so that the gpu tests need no op and no generator."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from meganeura import gpu
from meganeura.kernels.kernel import STATUS, TEMP, Kernel, Launch, Lowered

ROOT = Path(__file__).resolve().parents[2]

_SCALE = """
struct P { n: u32, a: u32, b: u32, c: u32 }
struct S { factor: f32, term: f32 }
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> p: P;
@group(1) @binding(0) var<uniform> s: S;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) g: vec3<u32>) { if (g.x < p.n) { y[g.x] = x[g.x] * s.factor + s.term; } }
"""

_COPY = """
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) g: vec3<u32>) { if (g.x < arrayLength(&y)) { y[g.x] = x[g.x]; } }
"""

_TAKE = """
struct P { n: i32, a: u32, b: u32, c: u32 }
struct S { dispatch: u32 }
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> index: array<i32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@group(0) @binding(3) var<storage, read_write> status: array<atomic<u32>>;
@group(0) @binding(4) var<uniform> p: P;
@group(1) @binding(0) var<uniform> s: S;
@compute @workgroup_size(1)
fn main(@builtin(workgroup_id) w: vec3<u32>) {
  let i = index[w.x];
  if (i < 0 || i >= p.n) {
    if (atomicCompareExchangeWeak(&status[0], 0u, s.dispatch).exchanged) {
      atomicStore(&status[1], bitcast<u32>(i));
      atomicStore(&status[2], bitcast<u32>(p.n));
    }
    return;
  }
  y[w.x] = x[i];
}
"""

SCALE = Kernel(("handmade", "scale"), lambda _: _SCALE, ("read", "read_write"), "scale", params=True, scalars=True)
COPY = Kernel(("handmade", "copy"), lambda _: _COPY, ("read", "read_write"), "copy", params=False)
TAKE = Kernel(("handmade", "take"), lambda _: _TAKE, ("read", "read", "read_write", "read_write"), "take", params=True, scalars=True)
BROKEN = Kernel(("handmade", "broken"), lambda _: _COPY.replace("x[g.x]", "x[g.x] + 1i"), ("read", "read_write"), "broken", params=False)


def params(*words: int) -> bytes:
    return struct.pack(f"<{len(words)}i", *words) + bytes(-4 * len(words) % 16)


def scale_launch(n: int, bindings: tuple[int, int] = (0, 1), grid: tuple[int, int, int] | None = None) -> Launch:
    """y = x * scalars[0] + scalars[1] on n elements."""
    return Launch(SCALE, bindings, grid or (-(-n // 64), 1, 1), params(n), ((0, "f"), (1, "f")))


def scale(n: int, grid: tuple[int, int, int] | None = None) -> Lowered:
    return Lowered((scale_launch(n, grid=grid),))


def twice(n: int) -> Lowered:
    """scale into a temporary, then scale that: y = (x*f + t)*f + t."""
    return Lowered((scale_launch(n, (0, TEMP(0))), scale_launch(n, (TEMP(0), 1))), (4 * n,))


def copy(n: int) -> Lowered:
    return Lowered((Launch(COPY, (0, 1), (-(-n // 64), 1, 1)),))


def take_launch(n: int, count: int) -> Launch:
    return Launch(TAKE, (0, 1, 2, STATUS), (count, 1, 1), params(n), ((-1, "I"),))


def take(n: int, count: int) -> Lowered:
    """y[j] = x[index[j]] for count indices into n elements, with a status report."""
    return Lowered((take_launch(n, count),))


def upload(device: gpu.Device, values: Any) -> gpu.Buffer:
    array = np.ascontiguousarray(values)
    buffer = device.alloc(max(array.nbytes, 16), idle=True)
    device.write(buffer, 0, array)
    return buffer


def floats(device: gpu.Device, buffer: gpu.Buffer, n: int) -> np.ndarray:
    return np.frombuffer(device.read(buffer, 0, 4 * n), np.float32)


def struck(act: Callable[[], Any], at: int) -> bool:
    """Run act with Ctrl-C at the at-th call of Python or return of C below it, in gpu/ and the WebGPU packages. Whether it came so far.
    Not inside what the library calls back, and not where nothing is under way yet (`run`)."""
    left = at

    def profile(frame: Any, event: str, _: Any) -> None:
        nonlocal left
        if "/gpu/" not in frame.f_code.co_filename and "wgpu" not in frame.f_code.co_filename:
            return
        if event in ("call", "c_return") and frame.f_code.co_name not in ("run", "finish", "_text", "release_commands"):
            left -= 1
            if left == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(profile)
    try:
        act()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


def child(code: str, timeout: float = 60, **env: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter with the usual names imported; it must exit by itself."""
    head = (
        "import numpy as np, os, sys, time\nfrom meganeura import gpu\nfrom meganeura.errors import *\nfrom tests.gpu.handmade import *\n"
    )
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths, **env}
    return subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment,
        cwd=ROOT,
        check=False,
    )
