"""3x3 convolutions of stride 1 by Winograd's F(4x4, 3x3), for software Vulkan: 36 products where 144 would be needed.

Every 4x4 tile of the result comes from a 6x6 patch of the source: patches and kernels are transformed, their 36 values multiplied
as matrices over channels, and the products transformed back (`conv_winograd_wgsl.py`). Sums that are NaN or vast are made anew, tap by
tap: a transform would spread them, or their rounding errors, over whole patches. Source: arXiv:1509.09308.
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import dtype as D
from . import conv_winograd_wgsl as W
from . import template as T
from .conv_blocks import APART, DISPATCH, LANES, PANEL, SIZE, Image, Products, Rows, Weights, image, launch, panelled, product, row_time
from .conv_fusion import launch as stored
from .conv_phases import Phase
from .conv_problem import Field, Gather, Triple, Weigh
from .kernel import TEMP, Launch

LEAST, MOST = 16, 1300  # channels from which it pays, and up to which making sums anew stays under 65,535 turns
TURNS = 2  # of loops over halves of a patch; a number of the uniform, so that no compiler unrolls them
M, VALUES = W.M, W.VALUES


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of results: `down` rows of `across` in each of n images."""

    n: int
    down: int
    across: int

    @staticmethod
    def of(n: int, size: Triple) -> Tiles:
        return Tiles(n, -(-size[1] // M), -(-size[2] // M))

    @property
    def count(self) -> int:
        return self.n * self.down * self.across

    def words(self) -> list[int]:
        return [self.n, self.down, self.across]

    def reciprocals(self) -> list[int]:
        return [T.reciprocal(v) for v in self.words()]


def suits(p: Gather, parts: list[Phase]) -> bool:
    """Whether it is such a convolution, with enough channels and pixels."""
    if len(parts) != 1 or p.reach[0] != 1 or p.size[0] != 1 or p.target.part or p.source.part:
        return False
    phase = parts[0]
    if phase.of("count") != (1, 3, 3) or any(phase.of(x) != (1, 1, 1) for x in ("stride", "spread", "every")):
        return False
    return min(p.rows, p.depth) >= LEAST and p.depth <= MOST


def time(p: Gather) -> float:
    """Nanoseconds that one core takes, about."""
    tiles, deep, quads, groups = Tiles.of(p.geometry.n, p.size).count, -(-p.depth // 4), -(-p.rows // 4), p.geometry.groups
    weights = -(-p.rows // PANEL) * PANEL * deep * VALUES * 5
    elementwise = tiles * (deep * (215 + 10 * M * M) + quads * 180)
    return 5 * DISPATCH + groups * (weights + elementwise + VALUES * -(-p.rows // PANEL) * deep * row_time(tiles))


def nbytes(p: Gather) -> int:
    """Of the largest temporary for one image."""
    tiles, deep, panels = Tiles.of(1, p.size).count, -(-p.depth // 4), -(-p.rows // PANEL)
    vectors = max(panels * PANEL * deep, (tiles + 49) * max(deep, panels * LANES))
    return p.geometry.groups * vectors * VALUES * 16


def gather(p: Gather, phase: Phase, temps: list[int]) -> list[Launch]:
    """The launches."""
    g = p.geometry
    tiles = Tiles.of(g.n, p.size)
    front = phase.of("front")
    size = (M * tiles.down + 2, M * tiles.across + 2)
    x, copied = image(p.source, (g.n, g.groups, p.depth), p.reach, (-front[0], -front[1], -front[2]), size, temps)
    deep, panels = x.deep, -(-p.rows // PANEL)
    kernels, patches = TEMP(len(temps)), TEMP(len(temps) + 1)
    steps = (g.groups * panels * deep * PANEL + APART, g.groups * deep * tiles.count + APART)
    temps += [VALUES * v * 16 for v in steps]
    along, weights = _weights(p, phase, kernels, steps[0])
    turned = _patches("source", x, tiles, g.groups, patches, steps[1])
    rows = Rows(patches, tiles.count, steps[1], deep * tiles.count, tiles.count)
    panel = panelled(kernels, along, steps[0], panels * deep * PANEL, deep)
    made, multiplied = product(rows, panel, (VALUES, g.groups, deep, panels), temps)
    return [copied, weights, turned, multiplied, _results(p, phase, tiles, x, made)]


def _patches(what: str, x: Image, tiles: Tiles, groups: int, target: int, step: int) -> Launch:
    """[values, groups, channels / 4, tiles] of what is transformed."""
    count = groups * x.deep * tiles.count
    f = W.PatchForm(what, count < T.MAX_RECIPROCAL)
    words = [count, *tiles.words(), x.deep, groups, x.plane, x.width, step, *tiles.reciprocals(), T.reciprocal(x.deep), TURNS]
    return launch("patches", f, lambda profile: W.patches_source(f, profile), (x.binding, target), count, words)


def _taps(p: Gather, phase: Phase) -> list[int]:
    """Where the first tap of a kernel lies, and its steps: w_off, w_m, w_k, w_y, w_x."""
    first, steps = phase.kernel(p.weight)
    return [p.weight.offset + first, p.weight.n, p.weight.c, *steps[1:]]


def _weights(p: Gather, phase: Phase, target: int, step: int) -> tuple[str, Launch]:
    """The transformed kernels, and along which channels their vec4s lie."""
    w, taps = p.weight, _taps(p, phase)
    flipped = taps[3:] == [-3, -1]
    along, other, channels = ("m", w.c, p.rows) if w.n == 9 else ("k", w.n, p.depth)
    run = (flipped or taps[3:] == [3, 1]) and w.dtype is not D.float16 and 9 in (w.n, w.c) and channels % 4 == 0
    run = run and not any(v % 4 for v in (taps[0] - 8 * flipped, other, p.group))
    f = W.WeightForm(w.dtype, along, run, run and flipped)
    deep, panels = -(-p.depth // 4), -(-p.rows // PANEL)
    count = p.geometry.groups * panels * deep * PANEL
    words = [count, panels, deep, p.depth, p.rows, p.group, *taps, step, TURNS]
    return along, launch("weights", f, lambda profile: W.weights_source(f, profile), (w.binding, target), count, words)


def _results(p: Gather, phase: Phase, tiles: Tiles, x: Image, t: Products) -> Launch:
    g, o = p.geometry, p.target
    quads = -(-p.rows // 4)
    count = g.groups * quads * tiles.count
    whole = p.quads and o.spatial[2] == 1 and p.size[2] % M == 0 and not any(v % M for v in (o.offset, o.n, o.c, o.spatial[1]))
    f = W.ResultForm(o.dtype, p.weight.dtype, p.bias.dtype if p.bias else None, whole, count < T.MAX_RECIPROCAL, p.epilogue(whole))
    words = [count, quads, *tiles.words(), p.rows, t.wide, t.group, t.value, p.size[1], p.size[2]]
    words += [o.offset, o.n, o.c, o.spatial[1], o.spatial[2], *([p.bias.offset, p.bias.c] if p.bias else [0, 0])]
    words += [T.reciprocal(quads), *tiles.reciprocals(), p.group, *_taps(p, phase), p.depth, x.deep, g.groups, x.plane, x.width, TURNS]
    own = [Field(v, D.float32, 0, 0, 0, (0, 0, 0)) for v in (t.binding, x.binding)]
    inputs, key, grid = [*own, p.weight, *([p.bias] if p.bias else [])], ("conv", "results", f), T.grid(-(-count // SIZE))
    return stored(o, p.fusion, whole, key, lambda profile: W.results_source(f, profile), inputs, grid, words, "conv_results")


# --- weight gradients ---------------------------------------------------------------------------------------------------------

PIXELS = 60000  # of all images, up to which making sums anew stays under 65,535 turns


def suits_weigh(p: Weigh) -> bool:
    """Whether it is the weight gradient of such a convolution."""
    g = p.geometry
    ones = all(x == (1, 1, 1) for x in (g.stride, g.dilation)) and (g.input[0], g.output[0]) == (1, 1)
    return ones and g.kernel == (1, 3, 3) and min(g.m, g.c) >= LEAST and g.pixels <= PIXELS and not (p.target.part or p.input.part)


def _weigh_tiles(p: Weigh) -> Tiles:
    """Tiles of the gradient, as many more rows of them as make whole fours."""
    g = p.geometry
    tiles = Tiles.of(g.n, g.output)
    down = next(d for d in range(tiles.down, tiles.down + 4) if d * tiles.n * tiles.across % 4 == 0)
    return Tiles(tiles.n, down, tiles.across)


def weigh_time(p: Weigh) -> float:
    """Nanoseconds that one core takes, about."""
    g, tiles = p.geometry, _weigh_tiles(p).count
    elementwise = tiles * (-(-g.c // 4) * (215 + 10 * M * M) + -(-g.m // 4) * (160 + 10 * M * M)) + g.m * -(-g.c // 4) * 180
    products = VALUES * -(-g.m // 32) * -(-g.c // PANEL) * (tiles // 4 * row_time(32, 32) + 1000)
    return 6 * DISPATCH + g.groups * (elementwise + products)


def weigh_nbytes(p: Weigh) -> int:
    """Of the largest temporary for one image."""
    g, tiles = p.geometry, _weigh_tiles(p).count // p.geometry.n + 4
    quads = max(tiles * (max(g.c, g.m) // 4 + LANES), (g.m + 32) * -(-g.c // PANEL) * LANES)
    return g.groups * quads * VALUES * 16


def weigh(p: Weigh, temps: list[int]) -> list[Launch]:
    """The launches of a weight gradient: K of its products are tiles, rows channels of the output, columns those of the input."""
    g, tiles = p.geometry, _weigh_tiles(p)
    size = (M * tiles.down, M * tiles.across)
    x, copied = image(p.input, (g.n, g.groups, g.c), g.input, (0, g.padding[1], g.padding[2]), (size[0] + 2, size[1] + 2), temps)
    grad, more = image(p.grad, (g.n, g.groups, g.m), g.output, (0, 0, 0), size, temps)
    patches, grads = TEMP(len(temps)), TEMP(len(temps) + 1)
    steps = [g.groups * v.deep * tiles.count + APART for v in (x, grad)]
    temps += [(VALUES * v + LANES * tiles.count) * 16 for v in steps]  # the last panel may reach beyond its channels
    launches = [copied, more, _patches("source", x, tiles, g.groups, patches, steps[0])]
    launches.append(_patches("grad", grad, tiles, g.groups, grads, steps[1]))
    rows = Rows(grads, g.m, steps[1], grad.deep * tiles.count, 4, tiles.count, 0, True)
    columns = Weights(patches, "m", 0, steps[0], x.deep * tiles.count, LANES * tiles.count, 1, tiles.count, 4)
    made, multiplied = product(rows, columns, (VALUES, g.groups, tiles.count // 4, -(-g.c // PANEL)), temps)
    o, quads = p.target, x.deep
    count = g.groups * g.m * quads
    f = W.GradForm(o.dtype, count < T.MAX_RECIPROCAL)
    words = [count, g.m, quads, g.c, made.wide, made.group, made.value, o.offset, o.n, o.c, *o.spatial[1:]]
    words += [T.reciprocal(g.m), T.reciprocal(quads), g.n, g.groups, *g.output[1:], x.deep, x.plane, x.width]
    words += [grad.deep, grad.plane, grad.width, g.pixels, TURNS]
    bindings = (made.binding, x.binding, grad.binding, o.binding)
    return [*launches, multiplied, launch("grads", f, lambda profile: W.grads_source(f, profile), bindings, count, words)]
