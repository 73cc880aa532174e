"""Text shared by the matrix product kernels: the module around `main`, the place of a matrix, loading and storing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..dtype import DType
from . import template
from .kernel import Profile
from .matmul_problem import FIELDS, Problem

ACC = "{acc}"  # the epilogue that stores the sum as it is
XYZW = "xyzw"


@dataclass(frozen=True, slots=True)
class Types:
    """Logical dtypes of a, b and the result."""

    a: DType
    b: DType
    out: DType

    @classmethod
    def of(cls, p: Problem) -> Types:
        return cls(p.a.dtype, p.b.dtype, p.out.dtype)

    @property
    def value(self) -> str:
        """The WGSL type that products are summed in."""
        return "u32" if self.a.value == "bool" else self.a.value


@dataclass(frozen=True, slots=True)
class Form:
    """What decides the text of a kernel besides its tile: how a, b and the result are accessed (see Side.form), whether
    K leaves a rest at the kernel's step, dtypes, and the epilogue: an expression over {acc}, {row} and {col}."""

    a: str
    b: str
    out: str
    types: Types
    tail: bool = False
    epilogue: str = ACC

    @property
    def accesses(self) -> tuple[str, str, str]:
        return self.a, self.b, self.out


def module(profile: Profile, f: Form, main: Sequence[str], subgroups: bool = False, wrap: bool = False) -> str:
    """A whole module: bindings a, b, o, the parameters p, what the text calls, and `main`'s lines.

    `wrap` puts each array in a struct: naga then takes one access chain an access (fewer registers on NVIDIA).
    """
    text = "\n".join(main)
    lines = [template.header(profile, (f.types.a, f.types.b, f.types.out), subgroups)]
    for i, (name, dtype) in enumerate((("a", f.types.a), ("b", f.types.b), ("o", f.types.out))):
        element = template.element(dtype, 4 if f.accesses[i].endswith("4") else 1)
        access = "read_write" if name == "o" else "read"
        if wrap:
            lines.append(f"struct Buffer_{name} {{ d: array<{element}> }}\n")
            lines.append(f"@group(0) @binding({i}) var<storage, {access}> {name}: Buffer_{name};\n")
        else:
            lines.append(template.storage(i, name, element, access))
    lines += [template.uniform(3, FIELDS), template.prelude(text), text, "\n"]
    return "".join(lines)


def zero(value: str, wide: bool) -> str:
    return f"vec4<{value}>()" if wide else f"{value}()"


def mac(value: str, a: str, b: str, c: str) -> str:
    """a * b + c, fused for floats."""
    return f"fma({a}, {b}, {c})" if value == "f32" else f"{a} * {b} + {c}"


def load(place: str, dtype: DType, value: str, wide: bool = False, guard: str = "") -> str:
    """The element (or vec4) at `place` as the computed type; zero where `guard` is false."""
    text = f"vec4<f32>({place})" if wide and dtype.storage == "f16" else f"f32({place})" if dtype.storage == "f16" else place
    return f"select({zero(value, wide)}, {text}, {guard})" if guard else text


def finish(f: Form, acc: str, row: str, col: str) -> str:
    """One result as it is stored, from the text of its sum."""
    return template.store(f.types.value, f.epilogue.format(acc=acc, row=row, col=col), f.types.out)


def finish4(f: Form, accs: Sequence[str], row: str, col: str) -> str:
    """Four neighbours of a row as one vec4 of the storage type; `col` is the first one's column. `accs`: 4 values or one vec4."""
    if len(accs) == 1:
        if f.epilogue == ACC and f.types.out.name in ("float32", "int32", "int64", "uint32"):
            return accs[0]
        accs = [f"{accs[0]}.{c}" for c in XYZW]
    parts = [finish(f, acc, row, f"({col} + {j}u)") for j, acc in enumerate(accs)]
    return f"{template.element(f.types.out, 4)}({', '.join(parts)})"


def matrix_place(number: str) -> list[str]:
    """Lines giving the first element of a matrix of both operands and of the result, by its number: a_at, b_at, o_at."""
    return [
        f"let mat = {number}; let mat0 = mat / p.inner; let mat1 = mat % p.inner;",
        "let a_at = p.a_off + mat0 * p.a_b0 + mat1 * p.a_b1;",
        "let b_at = p.b_off + mat0 * p.b_b0 + mat1 * p.b_b1;",
        "let o_at = p.o_off + mat0 * p.o_b0 + mat1 * p.o_b1;",
    ]
