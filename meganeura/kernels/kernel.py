"""What a kernel is: plain data between op rows (which say what to compute) and the gpu package (which runs it).

In: a Call (op, layouts, structural attributes) and a Profile (what the device is like).
Out: a Lowered: pipelines to run, in order, with their bindings, parameters and grid. No device is touched here.

Binding rules of every kernel's WGSL:
  @group(0) @binding(0..n-1)  the storage buffers of Launch.bindings, in order
  @group(0) @binding(n)       var<uniform> of Launch.params, present only if Kernel.params
  @group(1) @binding(0)       var<uniform> of the scalars, present only if Launch.scalars (dynamic offset)
  entry point `main`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..dtype import DType
from ..storage import Layout

if TYPE_CHECKING:
    from ..ops.table import Op

STATUS = 1 << 20  # binding number that stands for the device's status words (see kernels/template.py)


def TEMP(i: int) -> int:
    """Binding number of the i-th temporary of a Lowered."""
    return -1 - i


@dataclass(frozen=True, slots=True)
class Profile:
    """What kernels may know of a device. `family` is 'cpu' (software Vulkan) or 'gpu'; sizes in bytes."""

    family: str = "gpu"
    backend: str = "wgpu"  # or 'dawn'; the WGSL dialects differ (see template.header)
    subgroups: bool = True
    subgroup_size: int = 32  # measured, 0 if unknown or varying
    f16: bool = True
    max_binding: int = 128 << 20
    max_storage_buffers: int = 8
    max_workgroup_memory: int = 16384
    max_workgroup_size: int = 256
    max_groups: int = 65535  # an axis
    vendor: str = ""
    winograd: bool = True  # whether convolutions may go by it


@dataclass(frozen=True, slots=True)
class Call:
    """One application of an op to laid-out operands. Hash and equality go by identity of the op and the layouts."""

    op: Op
    names: tuple[str, ...]  # an input: its argument name; entries of a list argument: 'tensors.0', 'tensors.1', ...
    inputs: tuple[Layout | None, ...]  # None: a Python number, whose value is the scalar of the same name
    outputs: tuple[Layout, ...]
    compute: tuple[DType, ...]  # the dtype each input is converted to when loaded
    attrs: Mapping[str, Any] = field(default_factory=dict, hash=False)  # structural attributes only
    scalars: tuple[tuple[str, str], ...] = ()  # (name, 'f32' | 'i32' | 'u32'): number inputs, then scalar attributes
    alias: tuple[int, ...] = ()  # for inputs then outputs: first operand with the same storage; () means all distinct


@dataclass(frozen=True, slots=True)
class Kernel:
    """A pipeline to be: `key` identifies it completely (with the profile), `source` makes its WGSL when first needed."""

    key: tuple[Any, ...]
    source: Callable[[Profile], str] = field(compare=False, hash=False)
    access: tuple[str, ...]  # 'read' or 'read_write' an entry of Launch.bindings
    label: str = ""
    params: bool = True
    scalars: bool = False
    trusted: bool = False  # every index is right by construction: may run without clamps


@dataclass(frozen=True, slots=True)
class Launch:
    """One dispatch. Bindings: operand number (inputs then outputs), TEMP(i) or STATUS.

    `ranges` gives (byte offset, byte size) a binding when only a part may be bound; offsets are multiples of 256.
    `params`: the uniform's bytes (a multiple of 16). `scalars`: (index into the call's scalars, 'f'|'i'|'I') an entry
    of the scalar block, packed as consecutive 4-byte words; index -1 is the dispatch's number for the status words.
    """

    kernel: Kernel
    bindings: tuple[int, ...]
    grid: tuple[int, int, int]
    params: bytes = b""
    scalars: tuple[tuple[int, str], ...] = ()
    ranges: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class Lowered:
    """The launches of one call, the sizes in bytes of its temporaries, and the call itself, for those who measure."""

    launches: tuple[Launch, ...]
    temps: tuple[int, ...] = ()
    call: Call | None = field(default=None, compare=False, repr=False)
