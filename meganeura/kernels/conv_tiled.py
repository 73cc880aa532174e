"""What the tiled convolution kernels for GPUs share: what decides their text, their operands in workgroup memory, the loop along K.

The products inside a tile are those of matmul_gpu.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .. import dtype as D
from ..dtype import DType
from . import template as T
from .choices import Tile
from .conv_choices import GATHER as GATHER_TILES
from .conv_choices import WEIGH as WEIGH_TILES
from .conv_problem import AXES
from .kernel import Profile
from .matmul_fusion import Epilogue
from .matmul_gpu import Gemm
from .matmul_stage import Operand
from .matmul_wgsl import Form, Types

PLAIN = Form("", "", "", Types(D.float32, D.float32, D.float32))
ARGS = "@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) tid: u32"


@dataclass(frozen=True, slots=True)
class ConvForm:
    """What decides the text besides the tile.

    `left`, `right`, `target`, `bias`: dtypes. `full`: rows fill whole tiles. `packed`: weights lie side by side by channel.
    `flat`: K runs over channels and taps as one. `even`: channels fill whole turns. `inside`: no tap lies outside. `axes`:
    trailing ones that are walked. `quads`: four results are stored as one vec4. `along`: four pixels of the image are loaded as one.
    `beside`: each result is stored with a block of elements around it that have no products. `epilogue`: what is fused.
    """

    left: DType
    right: DType
    target: DType
    bias: DType | None
    full: bool
    packed: bool
    flat: bool
    even: bool
    inside: bool
    axes: int
    quads: bool
    along: bool = False
    beside: bool = False
    epilogue: Epilogue | None = None

    @property
    def names(self) -> str:
        """Letters of the axes walked."""
        return AXES[3 - self.axes :]


def scalar_operand(name: str, block: int, tile: Tile) -> Operand:
    """An operand that is stored to workgroup memory element by element."""
    return Operand(name, "k1", "s4", block, D.float32, "f32", tile, False, tile.size)


def quad_operand(name: str, block: int, dtype: DType, tile: Tile) -> Operand:
    """An operand that is loaded and stored to workgroup memory by vec4."""
    return Operand(name, "f4", "direct", block, dtype, "f32", tile, False, tile.size)


def memory(tile: Tile) -> int:
    """Bytes of workgroup memory that any form needs."""
    a, b = scalar_operand("a", tile.bm, tile), scalar_operand("b", tile.bn, tile)
    return (a.words() + b.words()) * 4 + tile.bn * 16 + tile.team * 16 * (tile.groups // 2)


def usable(tile: Tile, profile: Profile) -> bool:
    return tile.size <= profile.max_workgroup_size and memory(tile) <= profile.max_workgroup_memory


def possible(profile: Profile) -> bool:
    """Whether any tile fits the device, for either kind of kernel."""
    return all(any(usable(x.tile, profile) for x in candidates) for candidates in (GATHER_TILES, WEIGH_TILES))


@dataclass(frozen=True, slots=True)
class Tiled:
    """What the text of both kernels shares."""

    tile: Tile
    form: ConvForm

    @property
    def gemm(self) -> Gemm:
        return Gemm(self.tile, PLAIN)

    @property
    def dot(self) -> str:
        return ".d" if self.tile.wrap else ""

    def bind(self, arrays: list[tuple[str, DType, int]], written: str = "o") -> str:
        """Declarations: (name, dtype, width); `written`: the name of the one that is."""
        out = ""
        for i, (name, dtype, width) in enumerate(arrays):
            access, element = "read_write" if name == written else "read", T.element(dtype, width)
            if self.tile.wrap:
                out += f"struct Buffer_{name} {{ d: array<{element}> }}\n"
                out += f"@group(0) @binding({i}) var<storage, {access}> {name}: Buffer_{name};\n"
            else:
                out += T.storage(i, name, element, access)
        return out

    def loop(self, a: Operand, b: Operand, fetch: list[str], put: list[str], step: str) -> list[str]:
        """Turns of the loop, each fetching the next tile before this one's products. `turns` is at least 1."""
        gemm, barrier = self.gemm, "workgroupBarrier();"
        lines = [*fetch, step, *put, barrier, "for (var turn = 1u; turn < turns; turn++) {", *fetch, step]
        return [*lines, *gemm._products(a, b, 0), barrier, *put, barrier, "}", *gemm._products(a, b, 1)]

    def put_scalars(self, o: Operand, count: int, row: str, step: int, column: str) -> Iterator[str]:
        """Stores of the registers v{name}{e}: element e lies `e * step` further along k (columns false) or along the block."""
        n, d = o.name, self.tile.depth
        for e in range(count):
            k, c = (f"{row} + {e * step}u", column) if row != "kk" else (row, f"{column} + {e * step}u")
            cell = f"t{n}[({k}) / {d}u][({k}) % {d}u]" if self.tile.groups > 1 else f"t{n}[0][{k}]"
            yield f"{cell}[({c}) / 4u][({c}) % 4u] = v{n}{e};"

    def module(self, profile: Profile, arrays: list[tuple[str, DType, int]], fields: list[str], lines: list[str]) -> str:
        text = "\n".join(lines) + "\n"
        out = T.header(profile, [d for _, d, _ in arrays]) + self.bind(arrays)
        return out + T.uniform(len(arrays), fields) + T.prelude(text) + text
