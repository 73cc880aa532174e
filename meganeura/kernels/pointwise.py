"""Pointwise and Chain: one output element from the input elements at the same place.

In: a Call over any strided layouts. Out: one launch (several where tensors exceed a binding).

All operands and outputs are collapsed together. With the innermost size a multiple of 4 (or everything one run), an
invocation makes a quad: four elements, each operand read as a vec4 ('v': stride 1, aligned), as one value ('s':
stride 0) or as four elements ('g'). Where an operand runs along another dimension (a transpose), an invocation makes a
tile of four quads and reads that operand as four vec4 along its own dimension ('t'). Otherwise an invocation makes one
element. Expressions stay scalar: on software Vulkan a scalar already is a vector of lanes, and only the width of loads
and stores matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from ..dtype import DType
from ..errors import DeviceError, ShapeError
from ..ops.archetype import Chain, Pointwise
from ..shape import Shape, broadcast_strides, collapse
from ..storage import Layout
from . import template as T
from .kernel import Call, Kernel, Launch, Lowered, Profile

MAX_RANK = 8
# Runs on software Vulkan. A subgroup without work costs some 20 ns, so few quads take a small workgroup. Many quads of few operands gain
# from four an invocation in workgroups of 128, which build twice as long; with one operand, from loading all four before the first store.
BRIEF = 128  # quads that a workgroup of 64 makes alone
LONG = 1 << 18  # quads
STREAMS = 4  # vec4s an item loads and stores
SHORT = 700  # characters
PROVIDED = {"index": "u32", "block": "u32", "lane": "u32"}

Statement = tuple[str, str, str]  # name, WGSL type, expression


@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor as the kernel sees it: names read from it, its binding, and how a quad reaches it."""

    names: tuple[tuple[str, DType], ...]  # (input name, compute dtype); () for an output
    slot: int
    dtype: DType
    access: str  # 'v' vec4, 's' one value for the quad, 'g' element by element, 't' vec4 along the tile's dimension
    shifted: bool  # has an offset (adding 0 costs 6 % of a copy on software Vulkan)


@dataclass(frozen=True, slots=True)
class Form:
    """Everything the WGSL depends on, so also the pipeline key."""

    statements: tuple[Statement, ...]
    results: tuple[str, ...]
    reads: tuple[Operand, ...]
    writes: tuple[Operand, ...]
    slots: tuple[tuple[str, str], ...]  # (array element type, access) a binding
    numbers: tuple[tuple[str, str, DType], ...]  # Python numbers: name, scalar type, compute dtype
    scalars: tuple[tuple[str, str], ...]
    rank: int
    width: int  # elements an invocation makes at a time: 4 or 1
    tail: bool  # the last quad is not full and what lies behind it must be kept
    tile: int  # the dimension of which an invocation makes four, or -1
    fast: bool  # coordinates by reciprocals
    per: int  # items (tiles, quads or elements) an invocation
    size: int  # invocations of a workgroup
    swift: bool  # an invocation whose items all exist tests that once and loads first; the others make theirs in a loop


def lower(call: Call, profile: Profile) -> Lowered:
    """Launches for a Pointwise or Chain call. Raises DeviceError where the device's limits do not allow it."""
    return Lowered(launches(call, *statements_of(call), profile))


def launches(call: Call, statements: tuple[Statement, ...], results: tuple[str, ...], profile: Profile) -> tuple[Launch, ...]:
    """Launches that apply statements to a call's operands (its archetype is not looked at)."""
    if call.outputs[0].numel == 0:
        return ()
    large = T.large(call, profile)
    plan = _Plan(call, statements, results, profile, large)
    if not large or plan.divides():
        kernel = plan.kernel()
        return tuple(plan.launch(kernel, *part) for part in plan.parts())
    if plan.used & PROVIDED.keys():
        raise _numbered(call, profile)
    made: list[Launch] = []
    for piece in _cut(call, profile):
        plan = _Plan(piece, statements, results, profile, large)
        made.append(plan.launch(plan.kernel(), 0, piece.outputs[0].numel))
    return tuple(made)


def _numbered(call: Call, profile: Profile) -> DeviceError:
    """The error for a call that numbers its elements and is no run, so that parts would be numbered wrong."""
    sizes = [((x.span()[1] + 1) * x.dtype.itemsize, repr(x)) for x in (*call.inputs, *call.outputs) if x is not None]
    size, what = max(sizes)
    return DeviceError(
        f"{call.op!r} must bind {size} bytes of one tensor ({what}), but the limit is {profile.max_binding}; "
        "make its tensors contiguous first"
    )


def _cut(call: Call, profile: Profile) -> list[Call]:
    """A call in parts whose operands each fit a binding: halved along the dimension in which one reaches too far."""
    shape = call.outputs[0].shape
    operands = [x if x is None else x.with_(shape=shape, strides=broadcast_strides(x.shape, x.strides, shape)) for x in call.inputs]
    return _halves(replace(call, inputs=tuple(operands)), profile.max_binding - 512)


def _halves(call: Call, limit: int) -> list[Call]:
    shape = call.outputs[0].shape
    reaches = []
    for x in (*call.inputs, *call.outputs):
        if x is not None:
            low, high = x.span()
            if (high - low + 1) * x.dtype.itemsize > limit:
                reaches += [(abs(st) * (n - 1), d) for d, (n, st) in enumerate(zip(shape, x.strides, strict=True))]
    if not reaches:
        return [call]
    dim = max(reaches)[1]
    n = shape[dim]
    half = n // 2 if n < 16 else n // 16 * 8  # parts stay aligned for vec4 loads
    return [part for low, high in ((0, half), (half, n)) for part in _halves(_part(call, dim, low, high), limit)]


def _part(call: Call, dim: int, low: int, high: int) -> Call:
    """A call on indices low..high of one dimension."""

    def cut(x: Layout) -> Layout:
        shape = (*x.shape[:dim], high - low, *x.shape[dim + 1 :])
        return x.with_(shape=shape, strides=x.strides, offset=x.offset + low * x.strides[dim])

    inputs = tuple(x if x is None else cut(x) for x in call.inputs)
    return replace(call, inputs=inputs, outputs=tuple(cut(x) for x in call.outputs))


def statements_of(call: Call) -> tuple[tuple[Statement, ...], tuple[str, ...]]:
    """A call's statements and the names of the results, for either archetype."""
    archetype = call.op.archetype
    if isinstance(archetype, Chain):
        return archetype.statements, archetype.results
    assert isinstance(archetype, Pointwise)
    first = call.compute[0].kind if call.compute else call.outputs[0].dtype.kind
    expr = archetype.expression(first)
    types = PROVIDED | {n: c.value for n, c in zip(call.names, call.compute, strict=True)} | dict(call.scalars[_numbers(call) :])
    return (("result", T.type_of(expr, types), expr),), ("result",)


def _numbers(call: Call) -> int:
    """How many of the call's scalars are number inputs (they come first)."""
    return sum(x is None for x in call.inputs)


class _Plan:
    """The form of one call and the numbers that go with it."""

    def __init__(
        self, call: Call, statements: tuple[Statement, ...], results: tuple[str, ...], profile: Profile, narrow: bool = False
    ) -> None:
        self.call, self.profile, self.narrow = call, profile, narrow
        self.statements, self.results = statements, results
        self.used = {n for _, _, expr in self.statements for n in T.names_in(expr)}
        self.layouts: list[Layout] = []  # distinct (storage, layout) operands read, then the outputs
        self.storages: list[int] = []  # storage class of each
        self.where: list[int] = []  # operand number in the call of each
        self.names: list[list[tuple[str, DType]]] = []
        self._gather()
        self.shape, self.strides = self._collapsed()
        self.form = self._form()

    # --- which tensors

    def _gather(self) -> None:
        call = self.call
        alias = call.alias or tuple(range(len(call.inputs) + len(call.outputs)))
        for i, layout in enumerate(call.inputs):
            if layout is None or call.names[i] not in self.used:
                continue
            entry = (call.names[i], call.compute[i])
            same = next((k for k, x in enumerate(self.layouts) if x is layout and self.storages[k] == alias[i]), None)
            if same is None:
                self._add(layout, alias[i], i, [entry])
            else:
                self.names[same].append(entry)
        self.n_reads = len(self.layouts)
        for k, layout in enumerate(call.outputs):
            self._add(layout, alias[len(call.inputs) + k], len(call.inputs) + k, [])

    def _add(self, layout: Layout, storage: int, where: int, names: list[tuple[str, DType]]) -> None:
        self.layouts.append(layout)
        self.storages.append(storage)
        self.where.append(where)
        self.names.append(names)

    def _collapsed(self) -> tuple[Shape, list[Shape]]:
        target = self.call.outputs[0].shape
        strides = [broadcast_strides(x.shape, x.strides, target) for x in self.layouts]
        shape, merged = collapse(target, *strides)
        if len(shape) > MAX_RANK:
            raise ShapeError(f"{self.call.op}: at most {MAX_RANK} dimensions that cannot be merged are supported, got {len(shape)}")
        return shape, list(merged)

    # --- which form

    def _form(self) -> Form:
        quads = bool(self.shape) and (self.shape[-1] % 4 == 0 or self._is_run())
        accesses = [self._access(k) for k in range(len(self.layouts))] if quads else ["g"] * len(self.layouts)
        tile, accesses = self._tiled(accesses) if quads and "g" in accesses else (-1, accesses)
        written = set(self.storages[self.n_reads :])
        for storage in written:  # bound once, so with one element type: all vec4 or all scalar
            mine = [k for k, s in enumerate(self.storages) if s == storage]
            if any(accesses[k] not in "vt" for k in mine):
                for k in mine:
                    accesses[k] = "g" if accesses[k] in "vt" else accesses[k]
                tile = -1
        if tile < 0:
            accesses = ["g" if a == "t" else a for a in accesses]
        if quads and self.shape[-1] % 4 and "g" in accesses:
            quads, accesses = False, ["g"] * len(self.layouts)
        kinds = [(s, s not in written and a in "vt") for s, a in zip(self.storages, accesses, strict=True)]
        self.slots = list(dict.fromkeys(kinds))
        self.slot_of = [self.slots.index(kind) for kind in kinds]
        operands = [Operand(tuple(self.names[k]), self.slot_of[k], x.dtype, accesses[k], x.offset != 0) for k, x in enumerate(self.layouts)]
        T.check_bindings(len(self.slots), self.profile, f"{self.call.op}")
        numbers = tuple(
            (name, dict(self.call.scalars)[name], c)
            for name, x, c in zip(self.call.names, self.call.inputs, self.call.compute, strict=True)
            if x is None and name in self.used
        )
        cpu = self.profile.family == "cpu"
        items = self.call.outputs[0].numel // (16 if tile >= 0 else 4 if quads else 1)
        run = bool(quads and len(self.shape) == 1 and T.lanes(self.profile))
        streams = accesses.count("v")
        long = run and items >= LONG and streams <= STREAMS and not {*accesses} - {"v", "s"} and self._short()
        return Form(
            self.statements,
            self.results,
            tuple(operands[: self.n_reads]),
            tuple(operands[self.n_reads :]),
            tuple(self._slot(s, operands) for s in range(len(self.slots))),
            numbers,
            T.used_scalars(self.call, self.used),
            len(self.shape),
            4 if quads else 1,
            bool(quads and self.shape[-1] % 4),
            tile,
            cpu and len(self.shape) > 1 and items < T.MAX_RECIPROCAL // 2,
            4 if long else 2 if cpu and tile < 0 else 1,
            128 if long else 64 if run and items <= BRIEF else T.WORKGROUP,
            long and accesses[: self.n_reads].count("v") <= 1,
        )

    def _short(self) -> bool:
        """Whether the statements take so little code that it may be written out five times."""
        code = "".join(expr for _, _, expr in self.statements)
        return len(code) + len(T.prelude(code)) <= SHORT

    def _tiled(self, accesses: list[str]) -> tuple[int, list[str]]:
        """The dimension to tile and the accesses then, or -1 and the accesses as they are.

        Every operand must be read by vectors along the innermost dimension ('v'), along the tile's ('t'), or be constant
        along the innermost ('s'); writes go along the innermost.
        """
        if self.used & PROVIDED.keys() or len(self.shape) < 2:
            return -1, accesses
        first = accesses.index("g")
        dim = next((d for d, st in enumerate(self.strides[first][:-1]) if st == 1 and self.shape[d] % 4 == 0), -1)
        if dim < 0:
            return -1, accesses
        out = []
        for k, access in enumerate(accesses):
            strides = self.strides[k]
            along = strides[dim] == 1 and self.layouts[k].offset % 4 == 0
            along = along and all(st % 4 == 0 for d, st in enumerate(strides) if d != dim)
            out.append("t" if access == "g" and along and k < self.n_reads else access)
        return (-1, accesses) if "g" in out else (dim, out)

    def _is_run(self) -> bool:
        """Whether every operand is one contiguous run from an aligned offset, or a single value."""
        return len(self.shape) == 1 and all(
            st == (0,) or (st == (1,) and x.offset % 4 == 0) for st, x in zip(self.strides, self.layouts, strict=True)
        )

    def _access(self, k: int) -> str:
        strides, inner = self.strides[k], self.strides[k][-1]
        if inner == 0 and k < self.n_reads:
            return "s"
        aligned = self.layouts[k].offset % 4 == 0 and all(st % 4 == 0 for st in strides[:-1])
        return "v" if inner == 1 and aligned else "g"

    def _slot(self, slot: int, operands: Sequence[Operand]) -> tuple[str, str]:
        mine = [(k, o) for k, o in enumerate(operands) if o.slot == slot]
        first = mine[0][1]
        if any(o.dtype.storage != first.dtype.storage for _, o in mine):
            raise DeviceError(f"{self.call.op} reads one storage both as {first.dtype} and as another dtype")
        written = any(k >= self.n_reads for k, _ in mine)
        return T.element(first.dtype, 4 if first.access in "vt" else 1), "read_write" if written else "read"

    # --- launches

    def kernel(self) -> Kernel:
        form = self.form
        return Kernel(
            ("pointwise", form),
            partial(source, form),
            tuple(access for _, access in form.slots),
            label=repr(self.call.op),
            scalars=bool(form.scalars),
            trusted=True,
        )

    def parts(self) -> list[tuple[int, int]]:
        """(first element, elements) of every launch: everything at once unless a run exceeds a binding."""
        n = self.call.outputs[0].numel
        limit = self.profile.max_binding
        if self.form.width == 1 or self.form.rank != 1 or self._narrow(0, n):
            return [(0, n)]
        step = (limit - 512) // max(x.dtype.itemsize for x in self.layouts) // 256 * 256
        if step <= 0:
            raise DeviceError(f"{self.call.op} needs bindings of 1024 bytes or more, but the limit is {limit}")
        return [(i, min(step, n - i)) for i in range(0, n, step)]

    def divides(self) -> bool:
        """Whether `parts` gives launches that fit: operands that fit already, or aligned runs, which are cut anywhere."""
        run = self.form.width == 4 and all(st in ((0,), (1,)) for st in self.strides)
        return run or self._narrow(0, self.call.outputs[0].numel)

    def _narrow(self, first: int, count: int) -> bool:
        """Whether elements first..first+count of every operand fit one launch."""
        try:
            self._windows(first, count)
        except DeviceError:
            return False
        return True

    def _windows(self, first: int, count: int) -> tuple[T.Window | None, tuple[int, ...]]:
        pieces = self.layouts
        if count != self.call.outputs[0].numel:
            pieces = [
                x.with_(shape=(count,), strides=st, offset=x.offset + first * st[0])
                for x, st in zip(self.layouts, self.strides, strict=True)
            ]
        groups = [[x for x, s in zip(pieces, self.slot_of, strict=True) if s == slot] for slot in range(len(self.slots))]
        return T.windows(groups, self.profile, repr(self.call.op), narrow=self.narrow)

    def launch(self, kernel: Kernel, first: int, count: int) -> Launch:
        form = self.form
        ranges, shifts = self._windows(first, count)
        items = -(-count // (form.width * (4 if form.tile >= 0 else 1)))
        sizes = self._sizes()
        values = [items, count, first, *sizes, *(map(T.reciprocal, sizes) if form.fast else ())]
        for k, operand in enumerate((*form.reads, *form.writes)):
            start = first * self.strides[k][0] if form.rank else 0
            offset = self.layouts[k].offset + start - shifts[operand.slot]
            assert operand.shifted or offset == 0
            values += self._addressing(k, operand, offset)
        bindings = tuple(self.where[self.slot_of.index(s)] for s in range(len(self.slots)))
        groups = -(-items // (form.size * form.per))
        return Launch(kernel, bindings, T.grid(groups), T.pack(values), T.scalar_entries(self.call, form.scalars), ranges)

    def _sizes(self) -> list[int]:
        """Sizes in items of the collapsed dimensions after the first."""
        sizes = list(self.shape)
        if sizes and self.form.width == 4:
            sizes[-1] = -(-sizes[-1] // 4)
        if self.form.tile >= 0:
            sizes[self.form.tile] //= 4
        return sizes[1:]

    def _addressing(self, k: int, operand: Operand, offset: int) -> list[int]:
        """Offset and strides of one operand in entries of its array, for the dimensions that `stepped` names."""
        unit = 4 if operand.access in "vt" else 1
        return [offset // unit, *(self.strides[k][d] // unit for d in stepped(self.form, operand))]


# --- WGSL -----------------------------------------------------------------------------------------------------------


def fields(form: Form) -> list[str]:
    """Names of the parameters, in the order in which `_Plan.launch` packs them."""
    out = ["items", "count", "first", *(f"n{d}" for d in range(1, form.rank))]
    if form.fast:
        out += [f"r{d}" for d in range(1, form.rank)]
    for k, operand in enumerate((*form.reads, *form.writes)):
        out += [f"o{k}", *(f"s{k}_{d}" for d in stepped(form, operand))]
    return out


def stepped(form: Form, operand: Operand) -> list[int]:
    """The dimensions along which an operand has a stride: all but the one that its vectors or its one value cover."""
    covered = {"v": form.rank - 1, "t": form.tile, "s": form.rank - 1, "g": -1}[operand.access]
    return [d for d in range(form.rank) if d != covered]


def source(form: Form, profile: Profile) -> str:
    """The WGSL of a form."""
    dtypes = [o.dtype for o in (*form.reads, *form.writes)]
    body = _element_function(form) + _main(form, profile)
    out = T.header(profile, dtypes, subgroups=T.lanes(profile) > 0)
    for i, (type_, access) in enumerate(form.slots):
        out += T.storage(i, f"b{i}", type_, access)
    out += T.uniform(len(form.slots), fields(form)) + T.scalar_block(form.scalars)
    return out + T.prelude(body) + body


def _element_function(form: Form) -> str:
    """`element(values..., index, block, lane)`: the statements for one element, returning a Results struct."""
    types = {name: t for name, t, _ in form.statements}
    names = {n: T.identifier(n) for n in (*types, *PROVIDED)}
    names |= {n: f"s.{T.identifier(n)}" for n, _ in form.scalars}
    names |= {n: T.convert(t, c, f"s.{T.identifier(n)}") for n, t, c in form.numbers}
    args = []
    for operand in form.reads:
        for name, compute in operand.names:
            names[name] = T.identifier(name)
            args.append(f"{T.identifier(name)}: {compute.value}")
    args += [f"{T.identifier(n)}: u32" for n in provided(form)]
    lines = "".join(f"  let {T.identifier(n)}: {t} = {T.substitute(expr, names)};\n" for n, t, expr in form.statements)
    results = ", ".join(T.store(types[r], T.identifier(r), o.dtype) for r, o in zip(form.results, form.writes, strict=True))
    members = ", ".join(f"r{k}: {o.dtype.storage}" for k, o in enumerate(form.writes))
    return f"struct Results {{ {members} }};\nfn element({', '.join(args)}) -> Results {{\n{lines}  return Results({results});\n}}\n"


def provided(form: Form) -> list[str]:
    """Which of the provided variables the statements name."""
    used = {n for _, _, expr in form.statements for n in T.names_in(expr)}
    return [n for n in PROVIDED if n in used]


def _main(form: Form, profile: Profile) -> str:
    n = T.lanes(profile)
    out = T.entry(profile, form.size)
    if form.per == 1:
        return out + f"  let i0 = group * {form.size}u + local;\n" + _item(form, "i0") + "}\n"
    step = n or form.size  # items of a subgroup lie together: sid * per * n + e * n + lane
    first = f"group * {form.size * form.per}u + " + (f"sid * {n * form.per}u + lane" if n else "local")
    out += f"  let i0 = {first};\n"
    if form.swift:
        return out + _swift(form, step) + "}\n"
    for e in range(form.per):
        name = f"i{e}"
        out += (f"  let {name} = i0 + {e * step}u;\n" if e else "") + _item(form, name)
    return out + "}\n"


def _swift(form: Form, step: int) -> str:
    """All items of an invocation if the last of them exists, else those that do, in a loop that tests at its end."""
    last = f"(i0 + {(form.per - 1) * step}u)"
    out = f"  if ({f'{last} * 4u + 4u <= p.count' if form.tail else f'{last} < p.items'}) {{\n"
    for e in range(form.per):
        out += f"    let q{e}_c0 = i0 + {e * step}u;\n"
        for k, operand in enumerate(form.reads):
            out += f"    let q{e}_x{k} = b{operand.slot}[{_address(form, k, operand, f'q{e}_c')}];\n"
    for e in range(form.per):
        out += f"  {{\n    let i = q{e}_c0;\n{_made(form, 'i', f'q{e}_')}  }}\n"
    out += "  } else if (i0 < p.items) {\n  var i = i0;\n  loop {\n" + _made(form, "i")
    return out + f"    continuing {{ i = i + {step}u; break if i >= p.items; }}\n  }}\n  }}\n"


def _item(form: Form, i: str) -> str:
    """The statements that make item (quad or element) number `i` if it exists."""
    return f"  if ({i} < p.items) {{\n{_made(form, i)}  }}\n"


def _made(form: Form, i: str, ahead: str = "") -> str:
    """The statements that make item number `i`. ahead: it is known to be full, and what it reads was loaded under this prefix."""
    reads, writes = form.reads, form.writes
    reciprocals = [f"p.r{d}" for d in range(form.rank)] if form.fast else []
    coords = T.decompose(i, [f"p.n{d}" for d in range(form.rank)], "c", reciprocals) if form.rank > 1 else f"let c0 = {i};"
    out = f"    {coords}\n"
    for k, operand in enumerate((*reads, *writes)):
        out += f"    let a{k} = {_address(form, k, operand)};\n"
    for k, operand in enumerate(reads):
        for name, at in _loads(form, k, operand):
            out += f"    let {name} = {f'{ahead}{name}' if ahead else f'b{operand.slot}[{at}]'};\n"
    for row in range(4 if form.tile >= 0 else 1):
        for lane in range(form.width):
            out += f"    let e{row * 4 + lane} = element({', '.join(_arguments(form, i, lane, row))});\n"
    for k, operand in enumerate(writes):
        out += _write(form, k, operand, i, bool(ahead))
    return out


def _address(form: Form, k: int, operand: Operand, c: str = "c") -> str:
    """The entry of an operand's array at which item (c0, c1...) starts; `c`: what coordinates are called."""
    terms = [f"p.o{k}"] if operand.shifted else []
    steps = stepped(form, operand)
    for d in range(form.rank):
        many = (form.width == 4 and d == form.rank - 1) or d == form.tile  # the item spans four of this dimension
        if d in steps:
            terms.append(f"{c}{d} * {'4u * ' if many else ''}p.s{k}_{d}")
        elif operand.access != "s":
            terms.append(f"{c}{d}")
    return " + ".join(terms) or "0u"


def _loads(form: Form, k: int, operand: Operand) -> list[tuple[str, str]]:
    """(variable, index) of every load of an operand."""
    last, access = form.rank - 1, operand.access
    if form.tile >= 0:
        step = f"p.s{k}_{last if access == 't' else form.tile}"
        return [(f"x{k}_{j}", f"a{k}" + (f" + {j}u * {step}" if j else "")) for j in range(4)]
    if form.width == 1 or access in "vs":
        return [(f"x{k}", f"a{k}")]
    return [(f"x{k}{c}", f"a{k}" + (f" + {j}u * p.s{k}_{last}" if j else "")) for j, c in enumerate(T.LANES)]


def _element(form: Form, k: int, access: str, lane: int, row: int) -> str:
    """The variable that holds an operand's stored element for a lane and a row of the item."""
    if form.tile >= 0:
        return {"v": f"x{k}_{row}.{T.LANES[lane]}", "t": f"x{k}_{lane}.{T.LANES[row]}", "s": f"x{k}_{row}"}[access]
    if form.width == 1 or access == "s":
        return f"x{k}"
    return f"x{k}.{T.LANES[lane]}" if access == "v" else f"x{k}{T.LANES[lane]}"


def _arguments(form: Form, i: str, lane: int, row: int) -> list[str]:
    args = []
    for k, operand in enumerate(form.reads):
        code = _element(form, k, operand.access, lane, row)
        args += [T.load(operand.dtype, code, compute) for _, compute in operand.names]
    number = f"p.first + {i}" if form.width == 1 else f"p.first + {i} * 4u + {lane}u"
    block = f"({number}) / 4u" if form.width == 1 else f"p.first / 4u + {i}"
    values = {"index": number, "block": block, "lane": f"({number}) % 4u" if form.width == 1 else f"{lane}u"}
    return args + [values[n] for n in provided(form)]


def _write(form: Form, k: int, operand: Operand, i: str, full: bool) -> str:
    target, a = f"b{operand.slot}", f"a{len(form.reads) + k}"
    if form.width == 1:
        return f"    {target}[{a}] = e0.r{k};\n"
    if form.tile >= 0:
        out, step = "", f"p.s{len(form.reads) + k}_{form.tile}"
        for row in range(4):
            values = ", ".join(f"e{row * 4 + j}.r{k}" for j in range(4))
            out += f"    {target}[{a}{f' + {row}u * {step}' if row else ''}] = {T.element(operand.dtype, 4)}({values});\n"
        return out
    if operand.access == "g":
        step = f"p.s{len(form.reads) + k}_{form.rank - 1}"
        return "".join(f"    {target}[{a}" + (f" + {j}u * {step}" if j else "") + f"] = e{j}.r{k};\n" for j in range(4))
    values = ", ".join(f"e{j}.r{k}" for j in range(4))
    whole = f"{target}[{a}] = {T.element(operand.dtype, 4)}({values});"
    if full or not form.tail:
        return f"    {whole}\n"
    part = " ".join(f"if ({i} * 4u + {j}u < p.count) {{ {target}[{a}].{T.LANES[j]} = e{j}.r{k}; }}" for j in range(3))
    return f"    if ({i} * 4u + 4u <= p.count) {{ {whole} }} else {{ {part} }}\n"
