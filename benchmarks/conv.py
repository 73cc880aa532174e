"""2-D convolutions and their two gradients in strict float32, PyTorch beside them in the same process (cuDNN with benchmark=True from a
CUDA graph, or its CPU kernels with two threads).

python benchmarks/conv.py [--backend wgpu|dawn] [--sets resnet unet more] [--json FILE]
Ours: GPU timestamps around passes of dependent dispatches, everything included that one op launches; median of 5.
Errors: Frobenius norm against PyTorch's result in float64, relative, on the first entry of the batch (all of it for weights).
"""

from __future__ import annotations

import argparse
import math
import statistics
from dataclasses import dataclass
from typing import Any

import beside
import gemm
import numpy as np

from meganeura.dtype import float32
from meganeura.gpu import Buffer, Device, current
from meganeura.kernels import lower
from meganeura.kernels.kernel import Call, Lowered
from meganeura.ops.conv import conv, conv_input, conv_weight
from meganeura.storage import Layout

DIRECTIONS = ("output", "input", "weight")


@dataclass(frozen=True)
class Shape:
    """Batch, input channels, output channels, size of the image, of the kernel, stride, groups; padding keeps the size."""

    n: int
    c: int
    m: int
    size: int
    kernel: int
    stride: int = 1
    groups: int = 1

    @property
    def padding(self) -> int:
        return self.kernel // 2

    @property
    def out(self) -> int:
        return (self.size + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def flops(self) -> float:
        return 2.0 * self.n * self.m * self.out**2 * self.c // self.groups * self.kernel**2

    def arrays(self) -> dict[str, tuple[int, ...]]:
        return {
            "input": (self.n, self.c, self.size, self.size),
            "weight": (self.m, self.c // self.groups, self.kernel, self.kernel),
            "output": (self.n, self.m, self.out, self.out),
        }

    def __str__(self) -> str:
        extra = ("" if self.stride == 1 else f" /{self.stride}") + ("" if self.groups == 1 else f" g{self.groups}")
        return f"{self.n}x{self.c}x{self.size}^2->{self.m} {self.kernel}x{self.kernel}{extra}"


SETS = {
    "resnet": [
        Shape(32, 64, 64, 56, 3), Shape(32, 128, 128, 28, 3), Shape(32, 256, 256, 14, 3), Shape(32, 512, 512, 7, 3),
        Shape(32, 3, 64, 224, 7, 2), Shape(32, 64, 256, 56, 1), Shape(32, 256, 64, 56, 1), Shape(32, 512, 128, 28, 1),
        Shape(32, 1024, 256, 14, 1), Shape(32, 512, 2048, 7, 1), Shape(32, 128, 128, 56, 3, 2), Shape(32, 256, 512, 56, 1, 2),
    ],
    "unet": [Shape(4, 320, 320, 64, 3), Shape(4, 640, 640, 32, 3), Shape(4, 1280, 1280, 16, 3)],
    "more": [
        Shape(32, 128, 128, 28, 3, 1, 128), Shape(32, 128, 128, 28, 3, 1, 32), Shape(2, 64, 64, 32, 3), Shape(4, 64, 64, 56, 3),
        Shape(32, 64, 64, 28, 5),
    ],
    "small": [
        Shape(1, 64, 64, 56, 3), Shape(1, 128, 128, 28, 3), Shape(1, 256, 256, 14, 3), Shape(1, 512, 512, 7, 3), Shape(1, 64, 64, 56, 1),
        Shape(1, 3, 64, 112, 7, 2), Shape(1, 64, 64, 56, 3, 2), Shape(1, 128, 128, 28, 3, 1, 128), Shape(4, 16, 32, 28, 3),
    ],
}  # fmt: skip


def product(device: Device, s: Shape, direction: str, bias: bool = False) -> Lowered:
    """The launches of one direction, without bias."""
    layouts = {name: Layout(float32, shape) for name, shape in s.arrays().items()}
    row = {"output": conv, "input": conv_input, "weight": conv_weight}[direction]
    names = [x for x in ("input", "output", "weight") if x != direction]
    if direction != "weight":
        names = ["input" if direction == "output" else "output", "weight"]
    attrs = {"stride": (s.stride,) * 2, "padding": (s.padding,) * 2, "dilation": (1, 1), "groups": s.groups}
    attrs["size"] = s.arrays()[direction][2:]
    given = tuple(layouts[n] for n in names)
    return lower(Call(row, row.names[: len(names)], given, (layouts[direction],), (float32,) * len(names), attrs), device.profile)


def operands(direction: str) -> tuple[str, str]:
    return {"output": ("input", "weight"), "input": ("output", "weight"), "weight": ("input", "output")}[direction]


def call(torch: Any, s: Shape, direction: str, t: dict[str, Any]) -> Any:
    """PyTorch's kernel for one direction."""
    if direction == "output":
        return torch.nn.functional.conv2d(t["input"], t["weight"], None, s.stride, s.padding, 1, s.groups)
    mask = [direction == "input", direction == "weight", False]
    fn = torch.ops.aten.convolution_backward
    made = fn(t["output"], t["input"], t["weight"], None, [s.stride] * 2, [s.padding] * 2, [1, 1], False, [0, 0], s.groups, mask)
    return made[0 if direction == "input" else 1]


def error(torch: Any, device: Device, s: Shape, direction: str, arrays: dict[str, np.ndarray], target: Buffer) -> float:
    """Relative error; inf where an element was not written."""
    shape = s.arrays()[direction]
    got = np.frombuffer(device.read(target, 0, math.prod(shape) * 4), np.float32).reshape(shape)
    few = s.n if direction == "weight" else 1
    place = "cuda" if torch.cuda.is_available() else "cpu"
    t = {k: torch.from_numpy(v[:few] if k != "weight" else v).to(place).double() for k, v in arrays.items()}
    tuned, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, False
    want = call(torch, s, direction, t).cpu().numpy()
    torch.backends.cudnn.benchmark = tuned
    part = got if direction == "weight" else got[:few]
    return float(np.linalg.norm(part - want) / np.linalg.norm(want)) if np.isfinite(got).all() else math.inf


@dataclass(frozen=True)
class Given:
    """The three tensors of a shape: as arrays, PyTorch's, and ours."""

    arrays: dict[str, np.ndarray]
    tensors: dict[str, Any]
    stored: dict[str, Buffer]


def given(torch: Any, device: Device, s: Shape, rng: np.random.Generator) -> Given:
    place = "cuda" if torch.cuda.is_available() else "cpu"
    arrays = {name: rng.standard_normal(shape, np.float32) for name, shape in s.arrays().items()}
    tensors = {name: torch.from_numpy(a).to(place) for name, a in arrays.items()}
    return Given(arrays, tensors, {name: gemm.upload(device, a) for name, a in arrays.items()})


def strict(torch: Any) -> None:
    """No TF32; the fastest of cuDNN's kernels."""
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = False, True


def timed(torch: Any, device: Device, s: Shape, direction: str, x: Given, budget: float) -> tuple[float, float, float]:
    """Seconds of ours and of PyTorch's, and the relative error. Raises AssertionError where ours is wrong."""
    target = gemm.upload(device, np.full(math.prod(s.arrays()[direction]), np.nan, np.float32))
    buffers = [*(x.stored[name] for name in operands(direction)), target]
    mine = gemm.ours(device, device.prepare(product(device, s, direction)), buffers, budget)
    cuda = torch.cuda.is_available()
    with torch.no_grad():
        run = lambda: call(torch, s, direction, x.tensors)
        for _ in range(3 if cuda else 0):
            run()
        other = gemm.cuda_seconds(torch, run, budget) if cuda else gemm.host_seconds(run, budget)
    wrong = error(torch, device, s, direction, x.arrays, target)
    assert wrong < 2e-5, (s, direction, wrong)
    return mine, other, wrong


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sets", nargs="+", choices=tuple(SETS), default=None, help="default: resnet and unet on GPUs, small on software")
    parser.add_argument("--directions", nargs="+", choices=DIRECTIONS, default=DIRECTIONS)


def main() -> None:
    args = beside.start(__doc__ or "", arguments)
    device, cuda, rng = current(), beside.cuda(), np.random.default_rng(0)
    software = device.family == "cpu"
    torch = cuda or __import__("torch")
    strict(torch)
    if not cuda:
        torch.set_num_threads(2)
    shapes = [s for name in args.sets or (["small"] if software else ["resnet", "unet"]) for s in SETS[name]]
    device.prepare_all([product(device, s, d) for s in shapes for d in args.directions])
    gemm.warm(device, 0.1 if software else 2.5)
    budget = 0.05 if software else 0.012
    rows: list[dict[str, Any]] = []
    ratios: dict[str, list[float]] = {d: [] for d in args.directions}
    for s in shapes:
        tensors = given(torch, device, s, rng)
        for d in args.directions:
            mine, other, wrong = timed(torch, device, s, d, tensors, budget)
            ratios[d].append(other / mine)
            label = "+".join(x.kernel.label.removeprefix("conv_") for x in product(device, s, d).launches)
            rate = {"us": mine * 1e6, "GFLOP/s": s.flops / mine * 1e-9, "torch us": other * 1e6, "ratio": other / mine}
            rows.append({"shape": str(s), "made": d, **rate, "error": wrong, "kernels": label})
    for d, values in ratios.items():
        mean = math.exp(statistics.fmean(map(math.log, values)))
        rows.append({"shape": "all of these", "made": d, "ratio": mean, "kernels": f"worst {min(values):.3f}"})
    beside.finish(rows, args)


if __name__ == "__main__":
    main()
