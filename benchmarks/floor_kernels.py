"""The kernels that the floors were measured with, to run beside this library's on the same operands, in turns, in one process.

In: floor_kernels.json.xz, WGSL texts with every size a literal (GPUs, 32 lanes a subgroup) or in a uniform (software Vulkan, 8 lanes),
their bindings and grids. Out: problems, and for each what to launch: the library's kernels for it and those references that fit the device.
A problem may have several kernels, the best of them depending on compiler and device: the fastest counts. Some of those of software
Vulkan take operands that were packed, padded or turned before, which is not timed, as it was not when the floors were measured.
"""

from __future__ import annotations

import json
import lzma
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from meganeura.dtype import float32
from meganeura.kernels import lower
from meganeura.kernels.call import make_call
from meganeura.kernels.kernel import Call, Kernel, Launch, Lowered, Profile
from meganeura.ops import REGISTRY
from meganeura.ops.conv import conv
from meganeura.ops.infer import infer
from meganeura.ops.matmul import batched_matmul
from meganeura.storage import Layout

DATA = Path(__file__).with_name("floor_kernels.json.xz")
LANES = {"gpu": 32, "cpu": 8}  # a subgroup, which kernels with subgroup operations were written for


class Step(NamedTuple):
    """A dispatch: its text, the names of the operands that it binds (it writes the last), its grid, the words of its uniform."""

    source: str
    bind: tuple[str, ...]
    grid: tuple[int, int, int]
    params: tuple[int, ...]


@dataclass(frozen=True)
class Reference:
    """A floor's kernel: one dispatch, or several that follow each other."""

    label: str
    backends: tuple[str, ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Problem:
    """A line of the table. `sizes` are the arguments of the op's function below; `scratch` counts the floats of what steps leave to
    later ones."""

    case: str
    family: str
    op: str
    sizes: tuple[Any, ...]
    scratch: dict[str, int]
    references: tuple[Reference, ...]


class Side(NamedTuple):
    """What is launched, the names of the operands in their order, and the values of the scalars."""

    label: str
    lowered: Lowered
    names: tuple[str, ...]
    scalars: tuple[float, ...]


@cache
def everything() -> tuple[Problem, ...]:
    """All problems of the file."""
    found = json.loads(lzma.decompress(DATA.read_bytes()))
    return tuple(Problem(**{**p, "sizes": tuple(p["sizes"]), "references": tuple(map(_reference, p["references"]))}) for p in found)


def _reference(r: dict[str, Any]) -> Reference:
    steps = (Step(s["source"], tuple(s["bind"]), tuple(s["grid"]), tuple(s.get("params", ()))) for s in r["steps"])
    return Reference(r["label"], tuple(r["backends"]), tuple(steps))


def problems(family: str, backend: str) -> dict[str, Problem]:
    """By case: those of a family ('gpu', 'cpu'), each with the references of this backend."""
    found = {}
    for p in everything():
        kept = tuple(r for r in p.references if backend in r.backends)
        if p.family == family and kept:
            found[p.case] = Problem(p.case, p.family, p.op, p.sizes, p.scratch, kept)
    return found


def alone(case: str, family: str, op: str, *sizes: Any) -> Problem:
    """A problem that no reference is known of."""
    return Problem(case, family, op, sizes, {}, ())


# --- ours: the call that the library makes, names of its operands, scalars. A, B, V, W are given, O is compared, X and Y are not ---

Ours = tuple[Call, str, tuple[float, ...]]


def _whole(*shape: int) -> Layout:
    return Layout(float32, shape)


def _row(name: str, alias: tuple[int, ...] = (), **args: Any) -> Call:
    op = REGISTRY[name]
    inferred = infer(op, args)
    return make_call(op, args, inferred, [Layout(s.dtype, s.shape) for s in inferred.outputs], alias)


def _matmul(kind: str, m: int, n: int, k: int) -> Ours:
    a = Layout(float32, (m, k), (1, m) if kind[0] == "T" else None)
    b = Layout(float32, (k, n), (1, k) if kind[1] == "T" else None)
    return Call(batched_matmul, ("input", "other"), (a, b), (_whole(m, n),), (float32,) * 2), "ABO", ()


def _conv(batch: int, channels: int, made: int, size: int) -> Ours:
    attrs = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1, "size": (size, size)}
    given = (_whole(batch, channels, size, size), _whole(made, channels, 3, 3))
    return Call(conv, conv.names[:2], given, (_whole(batch, made, size, size),), (float32,) * 2, attrs), "ABO", ()


def _softmax(rows: int, columns: int) -> Ours:
    return _row("softmax_row", input=_whole(rows, columns), dim=(1,)), "AO", ()


def _layer_norm(rows: int, columns: int, vectors: int) -> Ours:
    """One vector is gain and bias, or there are two."""
    alias = (0, 1, 1, 3, 4, 5) if vectors == 1 else ()
    given = {"input": _whole(rows, columns), "weight": _whole(columns), "bias": _whole(columns)}
    return _row("layer_norm_row", alias, **given, dim=(1,), eps=1e-5), "AVVOXY" if vectors == 1 else "AVWOXY", (1e-5,)


def _attention(heads: int, kv: int, positions: int, size: int) -> Ours:
    qkv, scale = tuple(_whole(1, h, positions, size) for h in (heads, kv, kv)), 1 / math.sqrt(size)
    plain = {"mask": None, "position": None, "window": 0, "offset": 0, "undefined": False}
    return _row("attention_row", qkv=qkv, scale=scale, causal=True, **plain), "ABVOX", (scale,)


OURS: dict[str, Callable[..., Ours]] = {
    "matmul": _matmul,
    "packed matmul": _matmul,
    "conv": _conv,
    "softmax": _softmax,
    "layer norm": _layer_norm,
    "attention": _attention,
    "sum": lambda n: (_row("sum", input=_whole(n), dim=None, keepdim=False), "AO", ()),
    "copy": lambda n: (_row("clone", input=_whole(n)), "AO", ()),
    "add": lambda n: (_row("add", input=_whole(n), other=_whole(n)), "ABO", ()),
    "gelu": lambda n: (_row("gelu_erf", input=_whole(n)), "AO", ()),
    "gelu tanh": lambda n: (_row("gelu_tanh", input=_whole(n)), "AO", ()),
}


def ours(problem: Problem, profile: Profile) -> tuple[Side, dict[str, Layout]]:
    """The library's kernels for a problem, and the layouts of their operands by name."""
    call, names, scalars = OURS[problem.op](*problem.sizes)
    layouts = {n: x for n, x in zip(names, (*call.inputs, *call.outputs), strict=True) if x is not None}
    side = Side("ours", lower(call, profile), tuple(names), scalars)
    return _last(side) if problem.op == "packed matmul" else side, layouts


def _last(side: Side) -> Side:
    """A product without the launches before it that each copy an operand into panels: it is given those."""
    *copies, product = side.lowered.launches
    panels = {launch.bindings[1]: f"{side.names[launch.bindings[0]]} panels" for launch in copies}
    names = tuple(panels.get(b) or side.names[b] for b in product.bindings)
    return Side(side.label, Lowered((replace(product, bindings=tuple(range(len(names)))),)), names, side.scalars)


# --- theirs ---


def theirs(problem: Problem, reference: Reference) -> Side:
    """All steps of a reference as one thing to launch: with naga's bounds checks on GPUs and without them on software Vulkan, as when
    the floors were measured."""
    names = tuple(dict.fromkeys(name for s in reference.steps for name in s.bind))
    launches = []
    for i, s in enumerate(reference.steps):
        access = ("read",) * (len(s.bind) - 1) + ("read_write",)
        key, label = ("floor", problem.case, reference.label, i, s.source), f"floor {problem.case} {reference.label} {i}"
        kernel = Kernel(key, _Text(s.source), access, label, bool(s.params), trusted=problem.family == "cpu")
        params = struct.pack(f"<{len(s.params)}I", *s.params)
        launches.append(Launch(kernel, tuple(map(names.index, s.bind)), s.grid, params))
    return Side(reference.label, Lowered(tuple(launches)), names, ())


@dataclass(frozen=True)
class _Text:
    """The text in the backend's dialect: Dawn wants subgroups to be enabled, naga does not know the word."""

    source: str

    def __call__(self, profile: Profile) -> str:
        return "enable subgroups;\n" * (profile.backend == "dawn" and "subgroup" in self.source) + self.source


def fits(problem: Problem, reference: Reference, profile: Profile) -> bool:
    """Whether subgroups are of the size that the reference was written for, where it has to do with them."""
    return profile.subgroup_size == LANES[problem.family] or not any("subgroup" in s.source for s in reference.steps)


def references(problem: Problem, profile: Profile) -> list[Side]:
    """The references that fit."""
    return [theirs(problem, r) for r in problem.references if fits(problem, r, profile)]
