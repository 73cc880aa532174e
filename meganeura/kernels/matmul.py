"""Matmul: batched matrix products [..., M, K] @ [..., K, N] on any layout, in f32 sums for floats.

lower() sees both operands as [free, k] matrices with strides, so transposed and strided operands are read as they lie; it
cuts what does not fit a binding or a grid into parts, and hands each part to the kernels of the device's family.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..errors import DeviceError
from ..ops.archetype import Epilogue, Matmul
from ..shape import Shape, broadcast_strides, numel
from ..storage import Layout
from . import matmul_cpu, matmul_gpu, template
from .kernel import TEMP, Call, Launch, Lowered, Profile
from .matmul_fusion import fusion_of
from .matmul_problem import Problem, Result, Side, assemble, problem
from .matmul_sum import add_slices, partial, slice_elements
from .move import contiguous

AXIS = 131072  # rows or columns of a part: within the grid for tiles of 2 and more
FEW = 8  # batch entries launched one by one rather than laid out in order first


def lower(call: Call, profile: Profile) -> Lowered:
    """Launches for one product. An output that shares its storage with an operand is stored last, from a temporary."""
    a, b = call.inputs[:2]
    out = call.outputs[0]
    if a is None or b is None:
        raise TypeError("matmul takes two tensors")
    if out.numel == 0:
        return Lowered(())
    if isinstance(call.op.archetype, Matmul) and call.op.archetype.epilogue is not None:
        return _fused(call, call.op.archetype.epilogue, profile)
    launches: list[Launch] = []
    temps: list[int] = []
    stores: list[Launch] = []
    shared = bool(call.alias) and call.alias[2] != 2
    plan = matmul_cpu.plan if profile.family == "cpu" else matmul_gpu.plan
    large = template.large(call, profile)
    for p in _problems(a, b, out, launches, temps, profile):
        for group in cut(p, profile, large):
            if p.k == 0:
                launches.append(add_slices(group[0], 0, 0))
            elif len(group) == 1 and not shared:
                launches += plan(group[0], profile, temps)
            else:
                stores.append(_through_temporary(group, plan, profile, launches, temps))
    return Lowered((*launches, *stores), tuple(temps))


def _fused(call: Call, epilogue: Epilogue, profile: Profile) -> Lowered:
    """Launches for a product with an epilogue."""
    p = fused_problem(call, epilogue, profile)
    if p is None:
        raise DeviceError(f"{call.op} does not fit this device in one piece")
    if p.k == 0:
        return Lowered((add_slices(p, 0, 0),))
    temps: list[int] = []
    launches = (matmul_cpu.plan if profile.family == "cpu" else matmul_gpu.plan)(p, profile, temps)
    return Lowered(tuple(launches), tuple(temps))


def fused_problem(call: Call, epilogue: Epilogue, profile: Profile) -> Problem | None:
    """The problem of a product with an epilogue (operands as ops.archetype.Epilogue says); None where it cannot be made in
    one piece: too many storage buffers or batch dimensions, an operand larger than a binding, or one that is overwritten."""
    a, b = (x for x in call.inputs[:2] if x is not None)
    if template.large(call, profile) or max(a.shape[-2], b.shape[-1]) > AXIS:
        return None
    found = fusion_of(call, epilogue, (a, b))
    if found is None:
        return None
    fusion, size, (sa, sb) = found
    if numel(size) > profile.max_groups or fusion.most() + 2 > profile.max_storage_buffers:
        return None
    first = fusion.writes[0]
    out = Result(first.binding, first.dtype, first.offset, first.rows[1], first.cols[1], first.batch)
    return replace(assemble(a, b, out, size, sa, sb, call.alias or tuple(range(len(call.inputs)))), fusion=fusion)


Plan = Callable[[Problem, Profile, list[int]], list[Launch]]


def _through_temporary(group: list[Problem], plan: Plan, profile: Profile, launches: list[Launch], temps: list[int]) -> Launch:
    """Products that add up to one result, each into its slice of a temporary; returns the launch that stores the sum."""
    size = slice_elements(group[0])
    index = TEMP(len(temps))
    temps.append(size * len(group) * 4)
    for i, p in enumerate(group):
        result = partial(p, index, i * size)
        part = None if p.out.part is None else (0, temps[-1 - index])
        launches += plan(replace(p, out=replace(result, part=part)), profile, temps)
    return add_slices(group[0], index, len(group))


def _problems(a: Layout, b: Layout, out: Layout, launches: list[Launch], temps: list[int], profile: Profile) -> list[Problem]:
    """The problem; several where more than two batch dimensions remain after merging those that all operands walk as one."""
    found = problem(a, b, out, (0, 1, 2))
    if found is not None:
        return [found]
    lead = out.shape[:-2]
    sides = [_spread(a, lead), _spread(b, lead)]
    if not out.contiguous or lead[0] <= FEW:
        return [
            p for i in range(lead[0]) for p in _problems(_entry(sides[0], i), _entry(sides[1], i), _entry(out, i), launches, temps, profile)
        ]  # fmt: skip
    bindings = [0, 1]
    for i, side in enumerate(sides):
        if not side.contiguous:
            launch, nbytes = contiguous(side, i, len(temps), profile)
            launches.append(launch)
            bindings[i] = TEMP(len(temps))
            temps.append(nbytes)
            sides[i] = Layout(side.dtype, side.shape)
    found = problem(sides[0], sides[1], out, (bindings[0], bindings[1], 2))
    assert found is not None, "contiguous operands always merge"
    return [found]


def _spread(layout: Layout, lead: Shape) -> Layout:
    """The operand with its leading dimensions broadcast."""
    shape = (*lead, *layout.shape[-2:])
    return Layout(layout.dtype, shape, broadcast_strides(layout.shape, layout.strides, shape), layout.offset)


def _entry(layout: Layout, i: int) -> Layout:
    """Entry i of the first dimension."""
    return Layout(layout.dtype, layout.shape[1:], layout.strides[1:], layout.offset + i * layout.strides[0])


# --- parts that fit ---------------------------------------------------------------------------------------------------


def cut(p: Problem, profile: Profile, large: bool = False) -> list[list[Problem]]:
    """Parts within the device's limits. Each inner list adds up to one part of the result (one entry unless K was cut).

    large: an operand exceeds a binding, so every part says what it binds.
    """
    groups = _cut([p], profile.max_binding - 512, profile.max_groups)
    return [[_narrow(q, profile.max_binding, large) for q in g] for g in groups]


def _cut(group: list[Problem], limit: int, groups: int) -> list[list[Problem]]:
    p = group[0]
    name = "m" if p.m > AXIS else "n" if p.n > AXIS else ""
    if p.matrices > groups:
        name = "b0" if p.batch[0] > 1 else "b1"
    for q in group:
        for operand in range(3):
            if not name and _bytes(q, operand) > limit:
                name = max((abs(s) * (n - 1), d) for d, (n, s) in _dims(q, operand).items())[1]
    if not name and len(group) > 1 and slice_elements(p) * 4 * len(group) > limit:
        name = "m" if p.m > p.n else "n"
    if not name:
        return [group]
    if name == "k":
        halves = [(q, _half(q.k)) for q in group]
        return _cut([x for q, half in halves for x in (_part(q, "k", 0, half), _part(q, "k", half, q.k))], limit, groups)
    extent = {"m": p.m, "n": p.n, "b0": p.batch[0], "b1": p.batch[1]}[name]
    low, high = ([_part(q, name, *r) for q in group] for r in ((0, _half(extent)), (_half(extent), extent)))
    return _cut(low, limit, groups) + _cut(high, limit, groups)


def _half(extent: int) -> int:
    """About half, a multiple of 64 where that is possible, so that parts keep their alignment."""
    return extent // 2 if extent < 128 else extent // 128 * 64


def _dims(p: Problem, operand: int) -> dict[str, tuple[int, int]]:
    """Size and stride of each dimension that an operand (0 a, 1 b, 2 the result) has."""
    x = (p.a, p.b, p.out)[operand]
    batch = {"b0": (p.batch[0], x.batch[0]), "b1": (p.batch[1], x.batch[1])}
    if isinstance(x, Result):
        return {**batch, "m": (p.m, x.row), "n": (p.n, x.col)}
    return {**batch, "mn"[operand]: (x.extent, x.free), "k": (p.k, x.inner)}


def _bytes(p: Problem, operand: int) -> int:
    """Bytes from the first to the last element that is touched."""
    reach = sum(abs(s) * (n - 1) for n, s in _dims(p, operand).values())
    return (reach + 1) * (p.a, p.b, p.out)[operand].dtype.itemsize


def _part(p: Problem, name: str, low: int, high: int) -> Problem:
    """Entries [low, high) of one dimension."""
    n = high - low
    at = [dims.get(name, (0, 0))[1] * low for dims in (_dims(p, i) for i in range(3))]
    a = replace(p.a, offset=p.a.offset + at[0], extent=n if name == "m" else p.m)
    b = replace(p.b, offset=p.b.offset + at[1], extent=n if name == "n" else p.n)
    batch = (n if name == "b0" else p.batch[0], n if name == "b1" else p.batch[1])
    sizes = [n if name == d else x for d, x in (("m", p.m), ("n", p.n), ("k", p.k))]
    return Problem(sizes[0], sizes[1], sizes[2], batch, a, b, replace(p.out, offset=p.out.offset + at[2]))


def _narrow(p: Problem, limit: int, large: bool) -> Problem:
    """Bind only what is touched where an operand reaches beyond the largest binding."""
    ends = []
    operands: tuple[Side | Result, ...] = (p.a, p.b, p.out)
    for i, x in enumerate(operands):
        reach = [s * (n - 1) for n, s in _dims(p, i).values()]
        ends.append((x.offset + sum(r for r in reach if r < 0), x.offset + sum(r for r in reach if r > 0) + 1))
    if not large and all(high * x.dtype.itemsize <= limit for (_, high), x in zip(ends, operands, strict=True)):
        return p
    parts = []
    for (low, high), x in zip(ends, operands, strict=True):
        start = low * x.dtype.itemsize // 256 * 256
        parts.append((start, -(-high * x.dtype.itemsize // 16) * 16 - start))
    a, b, out = (x.offset - s // x.dtype.itemsize for x, (s, _) in zip(operands, parts, strict=True))
    return replace(
        p, a=replace(p.a, offset=a, part=parts[0]), b=replace(p.b, offset=b, part=parts[1]), out=replace(p.out, offset=out, part=parts[2])
    )  # fmt: skip
