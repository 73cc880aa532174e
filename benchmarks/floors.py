"""The speeds that kernels must not fall below, and what this device reaches: a line a floor, of the device's kernel family.

python benchmarks/floors.py [--backend wgpu|dawn] [--json FILE]
"its kernel": the kernel that the floor was measured with (floor_kernels.py), on the same operands, in turns, in this process; the
ratio of speeds beside it is more than 1 where ours is faster. "floor" is what was written down then: a speed, or PyTorch's time over the
kernel's. Small kernels repeat it within 10 to 15 % in another process, so the former ratio is the one to go by, where there is one.
Software Vulkan (floors_software.py): speeds of two free cores, Mesa 25.0.7, AMD EPYC (Zen 5). LP_NUM_THREADS is 0 unless set.
GPUs (floors_gpu.py): GPU time, one NVIDIA H200 (with Dawn's bounds checks off, which they are not here).
"""

from __future__ import annotations

import os

os.environ.setdefault("LP_NUM_THREADS", "0")  # read when the Vulkan instance is made

import beside
import floor_lines
import floors_gpu
import floors_software

from meganeura import bench


def main() -> None:
    args = beside.start(__doc__ or "")
    rows = list(floors_gpu.rows() if bench.is_gpu() else floors_software.rows())
    beside.finish([*rows, floor_lines.summary(rows)], args)


if __name__ == "__main__":
    main()
