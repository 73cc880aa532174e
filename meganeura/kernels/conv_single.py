"""Convolutions of one tap without stride or border: at each pixel a product of channels, so a matrix product an image and group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..shape import collapse
from . import matmul_cpu, matmul_gpu
from .conv_problem import Field, Gather, Weigh
from .conv_sum import add_slices, partial, slice_elements
from .kernel import TEMP, Launch, Profile
from .matmul import AXIS
from .matmul_fusion import Fusion, Place
from .matmul_problem import Problem, Result, Side

MOST = 64 << 20  # bytes of weight gradients, one an image, that are added up


def plan(p: Gather | Weigh, profile: Profile, temps: list[int]) -> list[Launch] | None:
    """The launches, or None if the layouts or sizes are not a product's."""
    g = p.geometry
    fields = (p.source, p.target) if isinstance(p, Gather) else (p.input, p.grad)
    size, steps = collapse(g.output, *(x.spatial for x in fields))
    pixels, (s0, s1) = (size[0], (steps[0][0], steps[1][0])) if size else (1, (0, 0))
    if len(size) > 1 or g.n * g.groups > profile.max_groups or max(pixels, g.m, g.c) > AXIS:
        return None
    made = matmul_cpu.plan if profile.family == "cpu" else matmul_gpu.plan
    if isinstance(p, Gather):
        problem = _gather(p, pixels, s0, s1)
        return None if problem is None else made(problem, profile, temps)
    return _weigh(p, pixels, s0, s1, lambda problem: made(problem, profile, temps), temps)


def _side(x: Field, free: int, inner: int, batch: tuple[int, int], extent: int, depth: int) -> Side:
    return Side(x.binding, x.dtype, x.offset, free if extent > 1 else 0, inner if depth > 1 else 0, batch, extent, x.part)


def _gather(p: Gather, pixels: int, source: int, target: int) -> Problem | None:
    g = p.geometry
    batch = (g.n, g.groups)
    a = _side(p.weight, p.weight.n, p.weight.c, (0, p.group), p.rows, p.depth)
    b = _side(p.source, source, p.source.c, (p.source.n, p.depth * p.source.c), pixels, p.depth)
    steps = (p.target.n, p.rows * p.target.c)
    out = Result(p.target.binding, p.target.dtype, p.target.offset, p.target.c, target, steps, p.target.part)
    fusion = None if p.fusion is None else _by_group(p.fusion, p.rows, g.groups)
    if p.fusion is not None and fusion is None:
        return None
    if p.bias is not None:
        if p.target.part is not None:
            return None
        inner = fusion.row_inner if fusion else 0
        steps_b = (0, p.rows * p.bias.c), (inner * p.bias.c, p.bias.c)
        bias = Place("bias", p.bias.binding, p.bias.dtype, p.bias.offset, *steps_b, (0, 0))
        result = Place("", p.target.binding, p.target.dtype, p.target.offset, steps, (0, p.target.c), (0, target))
        fusion = fusion or Fusion((), ("shifted",), "shifted", (), (result,), (), ())
        statements = ((fusion.product, "f32", "{product} + {bias}"), *fusion.statements)
        fusion = replace(fusion, statements=statements, product="product", reads=(*fusion.reads, bias))
    if p.fusion is not None and fusion is not None:
        first = fusion.writes[0]
        out = Result(first.binding, first.dtype, first.offset, first.rows[1], first.cols[1], first.batch)
    return Problem(p.rows, pixels, p.depth, batch, a, b, out, fusion)


def _by_group(fusion: Fusion, rows: int, groups: int) -> Fusion | None:
    """A fusion over matrices of one group each: its rows are channels of all groups. None where split rows straddle groups."""
    inner = fusion.row_inner
    if groups > 1 and inner and rows % inner:
        return None

    def at(x: Place) -> Place:
        step = rows // inner * x.rows[0] if inner else rows * x.rows[1]
        return replace(x, batch=(x.batch[1], step if groups > 1 else 0))

    return replace(fusion, reads=tuple(map(at, fusion.reads)), writes=tuple(map(at, fusion.writes)))


def _weigh(p: Weigh, pixels: int, source: int, grad: int, made: Callable[[Problem], list[Launch]], temps: list[int]) -> list[Launch] | None:
    """One product an image, added up where there are several."""
    g = p.geometry
    shape = (g.groups * g.m, g.c, g.kernel)
    step = slice_elements(shape)
    if g.n > 1 and step * 4 * g.n > MOST:
        return None
    target, temp = p.target, TEMP(len(temps))
    if g.n > 1:
        temps.append(step * 4 * g.n)
        target = partial(g.c, g.kernel, temp, 0, temps[-1] if p.target.part else 0)
    a = _side(p.grad, p.grad.c, grad, (p.grad.n, g.m * p.grad.c), g.m, pixels)
    b = _side(p.input, p.input.c, source, (p.input.n, g.c * p.input.c), g.c, pixels)
    out = Result(target.binding, target.dtype, target.offset, target.n, target.c, (step if g.n > 1 else 0, g.m * target.n), target.part)
    launches = made(Problem(g.m, g.c, pixels, (g.n, g.groups), a, b, out))
    return [*launches, add_slices(p.target, None, shape, temp, g.n)] if g.n > 1 else launches
