"""The epilogue of a matrix product: pointwise statements on its results, with further operands read and several results stored.

Fusion is data of one call: where every operand lies, along matrices, rows and columns. Epilogue is what of it decides the
text of a kernel (and its key): statements, dtypes, along which axes an operand varies, which are read as vec4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..dtype import DType, uint32
from ..ops import archetype
from ..shape import Shape, broadcast_strides, collapse
from ..storage import Layout
from . import template as T
from .kernel import Call

PROVIDED = ("index", "block", "lane")  # names that statements may use without reading them: the element's number, and its quad
NUMBER = -1  # binding of a place that is the element's number itself

XYZW = "xyzw"


@dataclass(frozen=True, slots=True)
class Place:
    """One operand: element [i, j] of matrix (b0, b1) lies at offset + b0*batch[0] + b1*batch[1], plus a row term, plus a column
    term. Where the fusion splits rows, i counts (i / inner, i % inner) and `rows` holds a stride for each, else only rows[1]."""

    name: str  # in the statements; '' for an output
    binding: int
    dtype: DType
    offset: int
    batch: tuple[int, int]
    rows: tuple[int, int]
    cols: tuple[int, int]

    def wide(self) -> bool:
        """Whether four neighbours of a row are one vec4."""
        return self.cols[1] == 1 and not (self.offset | self.batch[0] | self.batch[1] | self.rows[0] | self.rows[1] | self.cols[0]) & 3


@dataclass(frozen=True, slots=True)
class Access:
    """How the text reaches one operand: the array it lies in, whether by vec4, whether it varies along rows and columns."""

    name: str
    dtype: DType
    array: int
    wide: bool
    rows: bool
    cols: bool


@dataclass(frozen=True, slots=True)
class Fusion:
    """What a product goes on to do. `row_inner`, `col_inner`: sizes of the inner part of split rows and columns, or 0."""

    statements: tuple[tuple[str, str, str], ...]
    results: tuple[str, ...]
    product: str
    reads: tuple[Place, ...]
    writes: tuple[Place, ...]
    scalars: tuple[tuple[str, str], ...]
    entries: tuple[tuple[int, str], ...]  # Launch.scalars
    row_inner: int = 0
    col_inner: int = 0

    def swapped(self) -> Fusion:
        """The same for the transposed product."""
        reads, writes = (tuple(replace(x, rows=x.cols, cols=x.rows) for x in xs) for xs in (self.reads, self.writes))
        return replace(self, reads=reads, writes=writes, row_inner=self.col_inner, col_inner=self.row_inner)

    def moved(self, n: int) -> Fusion:
        """The same from matrix n on, of matrices that batch[1] walks."""
        reads, writes = (tuple(replace(x, offset=x.offset + n * x.batch[1]) for x in xs) for xs in (self.reads, self.writes))
        return replace(self, reads=reads, writes=writes)

    def quads(self, n: int) -> bool:
        """Whether four neighbours of a row can be made at a time."""
        return n % 4 == 0 and self.col_inner % 4 == 0

    def in_place(self) -> bool:
        """Whether an output overwrites an operand, so that every result must be made exactly once."""
        return bool({x.binding for x in self.reads} & {x.binding for x in self.writes})

    def bindings(self, quads: bool) -> tuple[int, ...]:
        """Operand numbers of the epilogue's arrays, in order."""
        return tuple(binding for binding, _ in self._arrays(quads))

    def most(self) -> int:
        """Arrays that are bound, at most."""
        return max(len(self._arrays(True)), len(self._arrays(False)))

    def _arrays(self, quads: bool) -> list[tuple[int, bool]]:
        """(binding, read as vec4): outputs, then operands that are no outputs too."""
        written = {x.binding: quads and x.wide() for x in self.writes}
        reads = [x for x in self.reads if x.binding != NUMBER]
        for x in reads:
            if x.binding in written:
                written[x.binding] = written[x.binding] and x.wide()
        others = dict.fromkeys((x.binding, quads and x.wide()) for x in reads if x.binding not in written)
        return [*written.items(), *others]

    def epilogue(self, quads: bool) -> Epilogue:
        """The part that decides the text, for kernels that store four neighbours at a time, or one."""
        arrays = self._arrays(quads)
        written = {x.binding for x in self.writes}

        def access(x: Place) -> Access:
            wide = quads and x.wide()
            if x.binding == NUMBER:
                return Access(x.name, x.dtype, NUMBER, wide, x.rows != (0, 0), x.cols != (0, 0))
            array = next(i for i, (b, w) in enumerate(arrays) if b == x.binding and (b in written or w == wide))
            return Access(x.name, x.dtype, array, arrays[array][1], x.rows != (0, 0), x.cols != (0, 0))

        reads, writes = tuple(map(access, self.reads)), tuple(map(access, self.writes))
        kinds = {a.array: (a.dtype, a.wide, "read") for a in reads if a.array != NUMBER}
        kinds |= {a.array: (a.dtype, a.wide, "read_write") for a in writes}
        return Epilogue(
            self.statements, self.results, self.product, reads, writes, tuple(kinds[i] for i in range(len(arrays))),
            self.scalars, quads, self.row_inner > 0, self.col_inner > 0,
        )  # fmt: skip

    def words(self, quads: bool) -> list[int]:
        """Parameters in the order of Epilogue.fields."""
        e = self.epilogue(quads)
        out = [self.row_inner] * e.split_rows + [self.col_inner] * e.split_cols
        for x, a in zip((*self.reads, *self.writes), (*e.reads, *e.writes), strict=True):
            unit = 4 if a.wide else 1
            numbers = [x.offset, *x.batch]
            numbers += [*x.rows[not e.split_rows :]] if a.rows else []
            numbers += [*x.cols[not e.split_cols :]] if a.cols else []
            if a.wide:
                numbers.pop()  # neighbours
            out += [v // unit for v in numbers]
        return out


Pair = tuple[int, int]


def fusion_of(call: Call, epilogue: archetype.Epilogue, matrices: Sequence[Layout], own: int = 2) -> tuple[Fusion, Pair, list[Pair]] | None:
    """The fusion of a call whose first `own` inputs are the product's, the sizes of two batch dimensions, and for each of
    `matrices` its strides over them. None if more than two remain, or if an operand of the product is overwritten."""
    extra = [x for x in (*call.inputs[own:], *call.outputs) if x is not None]
    alias = call.alias or tuple(range(len(call.inputs) + len(call.outputs)))
    names = (*call.names[own:], *("" for _ in call.outputs))
    at = len(extra[-1].shape) - epilogue.rows - epilogue.cols
    lead, inner = extra[-1].shape[:at], extra[-1].shape[at:]
    operands, n = list(zip(names, alias[own:], extra, strict=True)), len(call.inputs) - own
    if "index" in call.attrs:  # the elements' numbers, as if they lay somewhere
        operands.insert(n, ("index", NUMBER, Layout(uint32, extra[-1].shape, call.attrs["index"])))
        n += 1
    leads = [broadcast_strides(x.shape[:-2], x.strides[:-2], lead) for x in matrices]
    batch, merged = collapse(lead, *leads, *(x.strides[:at] for _, _, x in operands))
    if len(batch) > 2:
        return None
    size, *steps = (((fill,) * (2 - len(s)) + s) for fill, s in ((1, batch), *((0, s) for s in merged)))
    k = len(matrices)
    places = [_placed(x, name, operand, step, at, epilogue) for (name, operand, x), step in zip(operands, steps[k:], strict=True)]
    split = inner[1] if epilogue.rows == 2 else 0, inner[-1] if epilogue.cols == 2 else 0
    entries = T.scalar_entries(call, call.scalars)
    fusion = Fusion(
        epilogue.statements, epilogue.results, epilogue.product, tuple(places[:n]), tuple(places[n:]), call.scalars, entries, *split
    )  # fmt: skip
    if {x.binding for x in fusion.writes} & set(alias[:own]):
        return None
    return fusion, (size[0], size[1]), [(s[0], s[1]) for s in steps[:k]]


def _placed(x: Layout, name: str, operand: int, batch: Shape, at: int, epilogue: archetype.Epilogue) -> Place:
    """Where an operand of an epilogue lies; its dimensions from `at` on are rows, then columns."""
    middle = at + epilogue.rows
    rows, cols = _steps(x, at, epilogue.rows), _steps(x, middle, epilogue.cols)
    return Place(name, operand, x.dtype, x.offset, (batch[0], batch[1]), rows, cols)


def _steps(x: Layout, start: int, n: int) -> tuple[int, int]:
    """Strides of the outer and the inner part of split rows or columns; only the second counts where they are not split."""
    strides = [0 if size == 1 else st for size, st in zip(x.shape[start : start + n], x.strides[start : start + n], strict=True)]
    return (strides[0], strides[1]) if n == 2 else (0, strides[0])


@dataclass(frozen=True, slots=True)
class Epilogue:
    """The text of an epilogue. A kernel calls `begin` once, `line` for every row, `column` for every quad of columns (or
    single column), and `put` where a row and a column meet."""

    statements: tuple[tuple[str, str, str], ...]
    results: tuple[str, ...]
    product: str
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    arrays: tuple[tuple[DType, bool, str], ...]  # dtype, vec4, access
    scalars: tuple[tuple[str, str], ...]
    quads: bool
    split_rows: bool
    split_cols: bool

    # --- module

    def access(self) -> tuple[str, ...]:
        """Kernel.access of the arrays."""
        return tuple(access for _, _, access in self.arrays)

    def dtypes(self) -> list[DType]:
        return [dtype for dtype, _, _ in self.arrays]

    def fields(self) -> list[str]:
        """Names of the parameters."""
        out = ["row_inner"] * self.split_rows + ["col_inner"] * self.split_cols
        for k, a in enumerate((*self.reads, *self.writes)):
            names = ["off", "b0", "b1"]
            names += (["rq"] * self.split_rows + ["r"]) if a.rows else []
            names += (["cq"] * self.split_cols + ["c"]) if a.cols else []
            out += [f"e{k}_{n}" for n in (names[:-1] if a.wide else names)]
        return out

    def declarations(self, first: int, wrap: bool) -> str:
        """Arrays x0, x1... from binding `first` on."""
        out = ""
        for i, (dtype, wide, access) in enumerate(self.arrays):
            element = T.element(dtype, 4 if wide else 1)
            if wrap:
                out += f"struct Buffer_x{i} {{ d: array<{element}> }}\n"
                out += f"@group(0) @binding({first + i}) var<storage, {access}> x{i}: Buffer_x{i};\n"
            else:
                out += T.storage(first + i, f"x{i}", element, access)
        return out

    def provided(self) -> list[str]:
        """The provided names that statements use."""
        used = {n for _, _, expr in self.statements for n in T.names_in(expr)}
        return [n for n in PROVIDED if n in used]

    def function(self, value: str) -> str:
        """`fused(sum, operands...)`: the statements for one element, returning a Fused struct. `value`: the type of sums."""
        types = {self.product: value} | {name: t for name, t, _ in self.statements}
        args = (
            {self.product: value} | {a.name: a.dtype.value for a in self.reads if a.array != NUMBER} | dict.fromkeys(self.provided(), "u32")
        )
        names = {n: T.identifier(n) for n in (*args, *types)} | {n: f"s.{T.identifier(n)}" for n, _ in self.scalars}
        lines = "".join(f"  let {T.identifier(n)}: {t} = {T.substitute(expr, names)};\n" for n, t, expr in self.statements)
        results = ", ".join(T.store(types[r], T.identifier(r), a.dtype) for r, a in zip(self.results, self.writes, strict=True))
        members = ", ".join(f"r{k}: {a.dtype.storage}" for k, a in enumerate(self.writes))
        given = ", ".join(f"{T.identifier(n)}: {t}" for n, t in args.items())
        return f"struct Fused {{ {members} }};\nfn fused({given}) -> Fused {{\n{lines}  return Fused({results});\n}}\n"

    # --- main

    def _array(self, a: Access, wrap: bool) -> str:
        return f"x{a.array}{'.d' if wrap else ''}"

    def _read(self, a: Access, at: str, wrap: bool) -> str:
        """The stored element (or vec4) of an operand at a place. A number is its place."""
        return at if a.array == NUMBER else f"{self._array(a, wrap)}[{at}]"

    def begin(self, wrap: bool) -> list[str]:
        """Where every operand's matrix starts (after mat0 and mat1 are known), and operands that are one value a matrix."""
        lines = []
        for k, a in enumerate((*self.reads, *self.writes)):
            lines.append(f"let e{k}_at = p.e{k}_off + mat0 * p.e{k}_b0 + mat1 * p.e{k}_b1;")
            if k < len(self.reads) and not a.rows and not a.cols:
                lines.append(f"let g{k} = {self._read(a, f'e{k}_at', wrap)};")
        return lines

    def line(self, row: str, tag: str, wrap: bool) -> str:
        """Places in a row, and operands that are one value a row. `row` must exist."""
        out = f"let rq{tag} = {row} / p.row_inner; let rr{tag} = {row} - rq{tag} * p.row_inner; " if self.split_rows else ""
        for k, a in enumerate((*self.reads, *self.writes)):
            if not a.rows:
                continue
            term = f"rq{tag} * p.e{k}_rq + rr{tag} * p.e{k}_r" if self.split_rows else f"{row} * p.e{k}_r"
            out += f"let e{k}_r{tag} = e{k}_at + {term}; "
            if k < len(self.reads) and not a.cols:
                out += f"let g{k}_r{tag} = {self._read(a, f'e{k}_r{tag}', wrap)}; "
        return out

    def column(self, col: str, tag: str, wrap: bool) -> str:
        """Terms of a column (of the first of four), and operands that have one value a column. `col` must exist."""
        out = f"let cq{tag} = {col} / p.col_inner; let cr{tag} = {col} - cq{tag} * p.col_inner; " if self.split_cols else ""
        for k, a in enumerate((*self.reads, *self.writes)):
            if not a.cols:
                continue
            inner = f"cr{tag}" if self.split_cols else col
            term = f"{inner} / 4u" if a.wide else f"{inner} * p.e{k}_c"
            out += f"let e{k}_c{tag} = {f'cq{tag} * p.e{k}_cq + ' if self.split_cols else ''}{term}; "
            if k < len(self.reads) and not a.rows:
                out += self._loads(k, a, f"g{k}_c{tag}", f"e{k}_at + e{k}_c{tag}", wrap)
        return out

    def _loads(self, k: int, a: Access, name: str, at: str, wrap: bool) -> str:
        if a.wide or not self.quads:
            return f"let {name} = {self._read(a, at, wrap)}; "
        places = [at, *(f"{at} + {q}u * p.e{k}_c" for q in range(1, 4))]
        return "".join(f"let {name}{XYZW[q]} = {self._read(a, x, wrap)}; " for q, x in enumerate(places))

    def _place(self, k: int, a: Access, row: str, col: str) -> str:
        base = f"e{k}_r{row}" if a.rows else f"e{k}_at"
        return f"{base} + e{k}_c{col}" if a.cols else base

    def put(self, accs: Sequence[str], row: str, col: str, wrap: bool) -> str:
        """Make and store the results of a row and a column known by their tags. `accs`: 4 sums, a vec4 of them, or 1 sum."""
        if self.quads and len(accs) == 1:
            accs = [f"{accs[0]}.{c}" for c in XYZW]
        out, n = "{ ", len(self.reads)
        for k, a in enumerate(self.reads):
            if a.rows and a.cols:
                out += self._loads(k, a, f"g{k}", self._place(k, a, row, col), wrap)
        for q, acc in enumerate(accs):
            given = [acc]
            for k, a in enumerate(self.reads):
                given += self._given(a, self._element(k, a, row, col, q), q)
            out += f"let y{q} = fused({', '.join(given)}); "
        for k, a in enumerate(self.writes):
            at, array = self._place(n + k, a, row, col), self._array(a, wrap)
            if a.wide:
                out += f"{array}[{at}] = {T.element(a.dtype, 4)}({', '.join(f'y{q}.r{k}' for q in range(4))}); "
            else:
                out += "".join(f"{array}[{at}{f' + {q}u * p.e{n + k}_c' if q else ''}] = y{q}.r{k}; " for q in range(len(accs)))
        return out + "}"

    def _given(self, a: Access, element: str, q: int) -> list[str]:
        """Arguments of `fused` from one operand. A number that lies in vec4s counts quads."""
        if a.array != NUMBER:
            return [T.load(a.dtype, element)]
        if a.wide:
            values = {"index": f"{element} * 4u + {q}u", "block": element, "lane": f"{q}u"}
        else:
            values = {"index": element, "block": f"{element} / 4u", "lane": f"{element} % 4u"}
        return [values[n] for n in self.provided()]

    # --- sums kept in memory

    def keeps(self, value: str) -> bool:
        """Whether the first result can hold sums for a while: it is of their type and nothing is read from it."""
        first = self.writes[0]
        return (
            first.dtype.storage == value == first.dtype.value
            and first.dtype.kind != "b"
            and all(a.array != first.array for a in self.reads)
        )

    def keep(self, accs: Sequence[str], row: str, col: str, wrap: bool) -> str:
        """Store sums as they are to the first result."""
        a = self.writes[0]
        at, n = self._place(len(self.reads), a, row, col), len(self.reads)
        if a.wide:
            return f"{self._array(a, wrap)}[{at}] = {T.element(a.dtype, 4)}({', '.join(accs)});"
        return " ".join(f"{self._array(a, wrap)}[{at}{f' + {q}u * p.e{n}_c' if q else ''}] = {acc};" for q, acc in enumerate(accs))

    def kept(self, row: str, col: str, wrap: bool) -> list[str]:
        """The sums that `keep` stored: a vec4, four, or one."""
        a = self.writes[0]
        at, n, array = self._place(len(self.reads), a, row, col), len(self.reads), self._array(a, wrap)
        if a.wide or not self.quads:
            return [f"{array}[{at}]"]
        return [f"{array}[{at}{f' + {q}u * p.e{n}_c' if q else ''}]" for q in range(4)]

    def _element(self, k: int, a: Access, row: str, col: str, q: int) -> str:
        """The variable that holds an operand's stored element."""
        name = f"g{k}" if a.rows == a.cols else f"g{k}_r{row}" if a.rows else f"g{k}_c{col}"
        if not a.cols or not self.quads:
            return name
        if a.wide:
            return name if a.array == NUMBER else f"{name}.{XYZW[q]}"
        return f"{name}{XYZW[q]}"
