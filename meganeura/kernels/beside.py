"""Independent reductions in one dispatch (archetype Beside): each has its own workgroups, which run its kernel's text.

In: a Call of a Beside op. Out: one launch where every part is one launch and the device can bind them together, else the
launches of the parts one after another. The texts of the parts stay as they are but for their names: a part's parameters
and scalars become members of common ones, and its entry point a function that is told its workgroup's number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial

from ..ops.archetype import Beside
from . import reduce
from . import template as T
from .kernel import Call, Kernel, Launch, Lowered, Profile

MOST_SCALARS = 64  # words of a dispatch's scalar block
_DIRECTIVE = re.compile(r"^(?:enable|diagnostic)\b.*;\n", re.M)
_DECLARED = re.compile(r"\b(?:(?:fn|struct|const|alias)|var<[^>]*>)\s+(\w+)")
_BINDING = re.compile(r"@group\(0\) @binding\((\d+)\) var<storage")
_BLOCK = re.compile(r"@group\(\d\) @binding\(\d+\) var<uniform> [ps]: \w+;\n")
_MAIN = re.compile(r"@compute @workgroup_size\((\d+)\)\s*fn main\((.*?)\) \{")
_ARGUMENT = re.compile(r"@builtin\((\w+)\) (\w+): ([\w<>]+)")
_SHARED = re.compile(r"var<workgroup> \w+: array<\w+, (\d+)>")


def lower(call: Call, profile: Profile) -> Lowered:
    """The launch of a Beside op, or the launches of its parts."""
    made = [(reduce.lower(piece, profile), inputs, scalars) for piece, inputs, scalars in parts(call)]
    launches: list[Launch] = []
    temps: list[int] = []
    for lowered, numbers, first in made:
        below = len(temps)
        for x in lowered.launches:
            bindings = tuple(numbers[b] if b >= 0 else b - below for b in x.bindings)
            launches.append(replace(x, bindings=bindings, scalars=tuple((first + i, kind) for i, kind in x.scalars)))
        temps += lowered.temps
    if len(launches) == len(made) and not temps and _fit(launches, profile):
        return Lowered((_together(launches, call.op.name),))
    return Lowered(tuple(launches), tuple(temps))


def parts(call: Call) -> list[tuple[Call, tuple[int, ...], int]]:
    """The calls of the parts, for each the numbers that its operands have in the whole, and its first scalar's."""
    kind = call.op.archetype
    assert isinstance(kind, Beside)
    out = []
    at, made, scalar = 0, len(call.inputs), 0
    for part, attrs in zip(kind.parts, call.attrs["parts"], strict=True):
        n, end = len(part.inputs), made + part.outputs
        layouts, results = call.inputs[at : at + n], call.outputs[made - len(call.inputs) : end - len(call.inputs)]
        piece = Call(part.op, part.inputs, layouts, results, call.compute[at : at + n], attrs, part.scalars)
        out.append((piece, (*range(at, at + n), *range(made, end)), scalar))
        at, made, scalar = at + n, end, scalar + len(part.scalars)
    return out


def _fit(launches: Sequence[Launch], profile: Profile) -> bool:
    """Whether launches can be one."""
    buffers, words = sum(len(x.bindings) for x in launches), sum(-(-len(x.scalars) // 4) * 4 for x in launches)
    if buffers > profile.max_storage_buffers or words > MOST_SCALARS or sum(x.grid[0] for x in launches) > profile.max_groups:
        return False
    if any(x.ranges is not None or x.grid[1:] != (1, 1) or not x.kernel.params for x in launches):
        return False
    taken = [_workgroup(x.kernel, profile) for x in launches]
    return sum(memory for _, memory in taken) <= profile.max_workgroup_memory and len({size for size, _ in taken}) == 1


@lru_cache(4096)
def _workgroup(kernel: Kernel, profile: Profile) -> tuple[str, int]:
    """Invocations and bytes of memory of a kernel's workgroup. Kept, since fusion tries each kernel beside several others."""
    text = kernel.source(profile)
    return _main(text)[0], sum(4 * int(n) for n in _SHARED.findall(text))


def _together(launches: Sequence[Launch], label: str) -> Launch:
    """Launches as one: their workgroups one after another."""
    kernels = tuple(x.kernel for x in launches)
    starts = [sum(x.grid[0] for x in launches[:i]) for i in range(1, len(launches))]
    kernel = Kernel(
        ("beside", *(k.key for k in kernels)),
        partial(_source, kernels),
        tuple(access for k in kernels for access in k.access),
        label,
        scalars=any(k.scalars for k in kernels),
        trusted=all(k.trusted for k in kernels),
    )
    return Launch(
        kernel,
        tuple(b for x in launches for b in x.bindings),
        (sum(x.grid[0] for x in launches), 1, 1),
        b"".join(x.params for x in launches) + T.pack(starts),
        tuple(entry for x in launches for entry in _padded(x.scalars)),
    )


def _padded(entries: tuple[tuple[int, str], ...]) -> tuple[tuple[int, str], ...]:
    """Entries of the scalar block up to a whole vec4, as its members are laid out."""
    return entries + entries[:1] * (-len(entries) % 4)


# --- WGSL -----------------------------------------------------------------------------------------------------------


def _main(text: str) -> tuple[str, list[tuple[str, str, str]]]:
    """Workgroup size and arguments (builtin, name, type) of an entry point."""
    found = _MAIN.search(text)
    assert found is not None
    return found[1], _ARGUMENT.findall(found[2])


def _source(kernels: Sequence[Kernel], profile: Profile) -> str:
    """The WGSL of kernels as one."""
    texts = [k.source(profile) for k in kernels]
    directives = dict.fromkeys(d for text in texts for d in _DIRECTIVE.findall(text))
    bindings = sum(len(k.access) for k in kernels)
    bodies, blocks = "", {"Params": "", "Scalars": ""}
    arguments: dict[str, tuple[str, str]] = {}
    branches, first = "", 0
    for i, (kernel, text) in enumerate(zip(kernels, texts, strict=True)):
        size, mine = _main(text)
        bodies += _part(text, i, first)
        first += len(kernel.access)
        for block in blocks:
            blocks[block] += f"@align(16) part{i}: {block}_{i}, " if f"struct {block} " in text else ""
        for builtin, name, type_ in mine:
            arguments[builtin] = (name, type_)
        call = f"piece_{i}({', '.join('own' if b == 'workgroup_id' else arguments[b][0] for b, _, _ in mine)});"
        own = f"let own = vec3<u32>(group.x{f' - p.start{i}' if i else ''}, 0u, 0u);"
        last = i == len(kernels) - 1
        branches += f"{'else ' if i else ''}{'' if last else f'if (group.x < p.start{i + 1}) '}{{ {own} {call} }}\n"
    starts = "".join(f"{'@align(16) ' if i == 1 else ''}start{i}: u32, " for i in range(1, len(kernels)))
    out = "".join(directives) + bodies
    out += f"struct Params {{ {blocks['Params']}{starts}}};\n@group(0) @binding({bindings}) var<uniform> p: Params;\n"
    if blocks["Scalars"]:
        out += f"struct Scalars {{ {blocks['Scalars']}}};\n@group(1) @binding(0) var<uniform> s: Scalars;\n"
    given = ", ".join(f"@builtin({b}) {name}: {type_}" for b, (name, type_) in arguments.items())
    return f"{out}@compute @workgroup_size({size})\nfn main({given}) {{\n{branches}}}\n"


def _part(text: str, number: int, first: int) -> str:
    """A kernel's text as part `number`, whose arrays begin at binding `first`."""
    text = _BLOCK.sub("", _DIRECTIVE.sub("", text))
    for block, variable in (("Params", "p"), ("Scalars", "s")):
        found = re.search(rf"struct {block} \{{(.*?)\}}", text)
        fields = re.findall(r"(\w+):", found[1]) if found else []
        if fields:
            text = re.sub(rf"\b{variable}\.({'|'.join(fields)})\b", rf"{variable}.part{number}.\1", text)
    text = _BINDING.sub(lambda m: f"@group(0) @binding({int(m[1]) + first}) var<storage", text)
    arguments = ", ".join(f"{name}: {type_}" for _, name, type_ in _main(text)[1])
    text = _MAIN.sub(f"fn piece({arguments}) {{", text)
    names = sorted(set(_DECLARED.findall(text)))
    return re.sub(rf"\b({'|'.join(names)})\b", rf"\1_{number}", text)
