"""Text shared by the matrix product kernels: the module around `main`, the place of a matrix, loading and storing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..dtype import DType
from . import template
from .kernel import Profile
from .matmul_fusion import Epilogue
from .matmul_problem import FIELDS, Problem

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
    K leaves a rest at the kernel's step, dtypes, and what is done with the sums before they are stored."""

    a: str
    b: str
    out: str
    types: Types
    tail: bool = False
    epilogue: Epilogue | None = None

    @classmethod
    def of(cls, p: Problem, a: str, b: str, out: str, tail: bool = False) -> Form:
        """The form of a kernel that solves p, accessing its operands so."""
        return cls(a, b, out, Types.of(p), tail, p.fusion.epilogue(out == "v4") if p.fusion else None)

    @property
    def accesses(self) -> tuple[str, str, str]:
        return self.a, self.b, self.out

    @property
    def access(self) -> tuple[str, ...]:
        """Kernel.access of a kernel that reads both operands."""
        return ("read", "read", *(self.epilogue.access() if self.epilogue else ("read_write",)))

    @property
    def scalars(self) -> bool:
        return bool(self.epilogue and self.epilogue.scalars)


def module(profile: Profile, f: Form, main: Sequence[str], subgroups: bool = False, wrap: bool = False) -> str:
    """A whole module: bindings a, b, o (or an epilogue's), the parameters p, what the text calls, and `main`'s lines.

    `wrap` puts each array in a struct: naga then takes one access chain an access (fewer registers on NVIDIA).
    """
    text = f.epilogue.function(f.types.value) if f.epilogue else ""
    text += "\n".join(main)
    stored = f.epilogue.dtypes() if f.epilogue else [f.types.out]
    lines = [template.header(profile, (f.types.a, f.types.b, *stored), subgroups)]
    arrays = (("a", f.types.a), ("b", f.types.b), ("o", f.types.out))
    for i, (name, dtype) in enumerate(arrays[: 2 if f.epilogue else 3]):
        element = template.element(dtype, 4 if f.accesses[i].endswith("4") else 1)
        access = "read_write" if name == "o" else "read"
        if wrap:
            lines.append(f"struct Buffer_{name} {{ d: array<{element}> }}\n")
            lines.append(f"@group(0) @binding({i}) var<storage, {access}> {name}: Buffer_{name};\n")
        else:
            lines.append(template.storage(i, name, element, access))
    lines += [*interface(f, 2, FIELDS, wrap), template.prelude(text), text, "\n"]
    return "".join(lines)


def interface(f: Form, first: int, fields: Sequence[str], wrap: bool = False) -> list[str]:
    """Declarations of an epilogue's arrays (from binding `first` on) and of the parameters and scalars."""
    if f.epilogue is None:
        return [template.uniform(first + 1, fields)]
    e = f.epilogue
    uniform = template.uniform(first + len(e.arrays), [*fields, *e.fields()])
    return [e.declarations(first, wrap), uniform, template.scalar_block(e.scalars)]


def zero(value: str, wide: bool) -> str:
    return f"vec4<{value}>()" if wide else f"{value}()"


def mac(value: str, a: str, b: str, c: str) -> str:
    """a * b + c, fused for floats."""
    return f"fma({a}, {b}, {c})" if value == "f32" else f"{a} * {b} + {c}"


def load(place: str, dtype: DType, value: str, wide: bool = False, guard: str = "") -> str:
    """The element (or vec4) at `place` as the computed type; zero where `guard` is false."""
    text = f"vec4<f32>({place})" if wide and dtype.storage == "f16" else f"f32({place})" if dtype.storage == "f16" else place
    return f"select({zero(value, wide)}, {text}, {guard})" if guard else text


def finish(f: Form, acc: str) -> str:
    """One result as it is stored, from the text of its sum."""
    return template.store(f.types.value, acc, f.types.out)


def finish4(f: Form, accs: Sequence[str]) -> str:
    """Four neighbours of a row as one vec4 of the storage type. `accs`: 4 values or one vec4."""
    if len(accs) == 1:
        if f.types.out.name in ("float32", "int32", "int64", "uint32"):
            return accs[0]
        accs = [f"{accs[0]}.{c}" for c in XYZW]
    return f"{template.element(f.types.out, 4)}({', '.join(finish(f, acc) for acc in accs)})"


@dataclass(frozen=True, slots=True)
class Stores:
    """Text that stores results: as they are to `o`, or through the epilogue. Rows and columns are first announced under a
    tag; what is announced must exist, so callers clamp it or guard the text. `wide`: four neighbours of a row at a time."""

    f: Form
    wrap: bool = False

    @property
    def wide(self) -> bool:
        return self.f.out == "v4"

    def begin(self) -> list[str]:
        """After `matrix_place`."""
        return self.f.epilogue.begin(self.wrap) if self.f.epilogue else []

    def line(self, row: str, tag: str = "") -> str:
        return self.f.epilogue.line(row, tag, self.wrap) if self.f.epilogue else ""

    def column(self, col: str, tag: str = "", inside: bool = False) -> str:
        """`col`: a column, or the first of four. inside: it exists."""
        if self.f.epilogue is None:
            return ""
        return self.f.epilogue.column(col if inside else f"min({col}, p.n - {4 if self.wide else 1}u)", tag, self.wrap)

    def put(self, accs: Sequence[str], row: str, col: str, tags: tuple[str, str] = ("", ""), single: bool = False) -> str:
        """Store at a row and column whose tags were announced. single: the result has one row, at o_at."""
        if self.f.epilogue is not None:
            return self.f.epilogue.put(accs, *tags, self.wrap)
        o = "o.d" if self.wrap else "o"
        start = "o_at" if single else f"o_at + {row} * p.o_row"
        if self.wide:
            return f"{o}[{start} + {col} / 4u] = {finish4(self.f, accs)};"
        return f"{o}[{start} + {col} * p.o_col] = {finish(self.f, accs[0])};"

    def raw(self, accs: Sequence[str], row: str, col: str, tags: tuple[str, str] = ("", "")) -> str:
        """Keep sums in the epilogue's first result, for `again`."""
        assert self.f.epilogue is not None
        return self.f.epilogue.keep(accs, *tags, self.wrap)

    def again(self, row: str, col: str, tags: tuple[str, str] = ("", "")) -> str:
        """Apply the epilogue to sums that `raw` kept."""
        assert self.f.epilogue is not None
        kept = self.f.epilogue.kept(*tags, self.wrap)
        names = [f"kept{q}" for q in range(len(kept))]
        lets = "".join(f"let {name} = {text}; " for name, text in zip(names, kept, strict=True))
        return lets + self.f.epilogue.put(names, *tags, self.wrap)

    def quad(self, acc: str, col: str) -> str:
        """Store a vec4 of sums of a result of one row; row "" was announced and the columns exist."""
        if self.wide:
            return self.column(col, inside=True) + self.put([acc], "0u", col, single=True)
        places = [f"({col} + {q}u)" for q in range(4)]
        texts = (
            self.column(x, str(q), inside=True) + self.put([f"{acc}.{XYZW[q]}"], "0u", x, ("", str(q)), single=True)
            for q, x in enumerate(places)
        )
        return " ".join(texts)


def matrix_place(number: str) -> list[str]:
    """Lines giving the first element of a matrix of both operands and of the result, by its number: a_at, b_at, o_at."""
    return [
        f"let mat = {number}; let mat0 = mat / p.inner; let mat1 = mat % p.inner;",
        "let a_at = p.a_off + mat0 * p.a_b0 + mat1 * p.a_b1;",
        "let b_at = p.b_off + mat0 * p.b_b0 + mat1 * p.b_b1;",
        "let o_at = p.o_off + mat0 * p.o_b0 + mat1 * p.o_b1;",
    ]
