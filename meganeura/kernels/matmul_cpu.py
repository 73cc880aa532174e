"""Matrix products for software Vulkan (lavapipe), whose subgroups are 8 lanes of one SIMD register.

A subgroup makes a tile of `rows` x `8 * wide` results in registers, 4 steps of K at a time: 8 lanes load different
elements of the row operand, which are then broadcast lane by lane; every lane holds its own columns of the other operand.
No barriers, no workgroup memory: both cost more there than they save. See docs/kernels.md for the measurements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..dtype import DType
from .kernel import Kernel, Launch, Profile
from .matmul_pack import PANEL, packed, packed_bytes
from .matmul_problem import Problem
from .matmul_wgsl import XYZW, Form, Stores, load, mac, matrix_place, module

LANES = 8
STEP = 4  # K elements a turn


@dataclass(frozen=True, slots=True)
class Tile:
    """Results of a subgroup: `rows` x `8 * wide` (wide 1, 2 or 4 columns a lane)."""

    rows: int
    wide: int = 4

    @property
    def cols(self) -> int:
        return LANES * self.wide


ARGS = "@builtin(workgroup_id) w: vec3<u32>, @builtin(subgroup_invocation_id) lane: u32, @builtin(subgroup_id) sub: u32"


def gemm(tile: Tile, f: Form, team: int, profile: Profile) -> str:
    """Grid: (ceil(N / cols) / team, ceil(M / rows), matrices); a workgroup is a team of subgroups with tiles side by side."""
    value = f.types.value
    setup_a, load_a, next_a = _row_operand(tile, f)
    across = "w.x" if team == 1 else "across"
    setup_b, load_b, next_b = _lane_operand(tile, f, across)
    accs = [[f"c{i}_{j}" for j in range(tile.wide)] for i in range(tile.rows)]
    body = [] if team == 1 else [f"let across = w.x * {team}u + sub;"]
    body += [f"let r = w.y * {tile.rows}u; let c = {across} * {tile.cols}u;"]
    body += [*matrix_place("w.z"), *setup_a, *setup_b]
    body += ["".join(f"var {c} = {value}();" for c in row) for row in accs]
    body += ["var k = 0u;", "loop {", *load_a, *load_b, *_products(tile, f)]
    body.append(f"continuing {{ k += {STEP}u; {next_a}{next_b}break if k >= p.k; }} }}")
    body += _stores(tile, f, accs)
    return module(profile, f, [f"@compute @workgroup_size({LANES * team}) fn main({ARGS}) {{", *body, "}"], subgroups=True)


def _guard(f: Form, k: str) -> str:
    return f"{k} < p.k" if f.tail else ""


def _at(f: Form, k: str) -> str:
    """k, kept inside the matrix."""
    return f"min({k}, p.k - 1u)" if f.tail else k


def _singles(name: str, at: str, step: str, dtype: DType, f: Form) -> str:
    """Four neighbours along k, loaded one by one."""
    parts = []
    for q in range(STEP):
        k = f"k + {q}u" if q else "k"
        parts.append(load(f"{name}[{at} + ({_at(f, k)}) * {step}]", dtype, f.types.value, guard=_guard(f, k)))
    return f"vec4<{f.types.value}>({', '.join(parts)})"


def _lanes_a_step(rows: int) -> int:
    """Lanes that hold one k of `rows` neighbouring rows, 4 rows each."""
    return max(1, rows // 4)


def _counted(names: list[str], ats: list[str], step: int) -> tuple[list[str], str]:
    """Indices that grow by a constant every turn, which is cheaper than finding them from k: definitions and increments."""
    return [f"var {n} = {at};" for n, at in zip(names, ats, strict=True)], "".join(f"{n} += {step}u; " for n in names)


def _row_operand(tile: Tile, f: Form) -> tuple[list[str], list[str], str]:
    """Setup, loads and increments of the operand whose elements are broadcast."""
    dtype, value = f.types.a, f.types.value
    if f.a == "p4":
        setup, after = _counted(["a_panel"], ["a_at + w.y * p.a_free + lane"], PANEL)
        return setup, [f"let x{i} = a[a_panel + {i * LANES}u];" for i in range(PANEL // LANES)], after
    if f.a == "f4":
        per = _lanes_a_step(tile.rows)
        together = min(STEP, LANES // per)  # steps of K that one load covers
        setup = [f"let a_k = lane / {per}u; let a_col = a_at + min(r / 4u + lane % {per}u, p.m / 4u - 1u);"]
        loads = []
        for h in range(STEP // together):
            k = f"k + a_k + {h * together}u" if h else "k + a_k"
            at = k if together * per == LANES and not f.tail else f"min({k}, p.k - 1u)"
            loads.append(f"let x{h} = {load(f'a[a_col + ({at}) * p.a_k]', dtype, value, True, _guard(f, k))};")
        return setup, loads, ""
    count = -(-tile.rows // LANES)
    names, ats = [f"a{i}" for i in range(count)], [f"a_at + min(r + lane + {i * LANES}u, p.m - 1u) * p.a_free" for i in range(count)]
    if f.a == "k4":
        setup, after = _counted(names, ats, 1)
        return setup, [f"let x{i} = {load(f'a[a{i}]', dtype, value, True)};" for i in range(count)], after
    setup = [f"let {n} = {at};" for n, at in zip(names, ats, strict=True)]
    return setup, [f"let x{i} = {_singles('a', f'a{i}', 'p.a_k', dtype, f)};" for i in range(count)], ""


def _broadcast(tile: Tile, f: Form, i: int, q: int) -> str:
    """Row i, step q of the row operand, in every lane."""
    if f.a == "f4":
        per = _lanes_a_step(tile.rows)
        together = min(STEP, LANES // per)
        return f"subgroupBroadcast(x{q // together}.{XYZW[i % 4]}, {q % together * per + i // 4}u)"
    return f"subgroupBroadcast(x{i // LANES}.{XYZW[q]}, {i % LANES}u)"


def _lane_operand(tile: Tile, f: Form, across: str) -> tuple[list[str], list[str], str]:
    """Setup, loads and increments of the operand of which a lane holds `wide` neighbouring columns; `across`: the tile's number."""
    dtype, value = f.types.b, f.types.value
    if f.b == "f4":
        return _lane_rows(f)
    if f.b == "p4":
        setup, after = _counted(["b_panel"], [f"b_at + {across} * p.b_free + lane * 4u"], PANEL)
        return setup, [f"let y{j} = b[b_panel + {j}u];" for j in range(4)], after
    first = f"c + lane * {tile.wide}u"
    names, ats = [f"b{j}" for j in range(tile.wide)], [f"b_at + min({first} + {j}u, p.n - 1u) * p.b_free" for j in range(tile.wide)]
    if f.b == "k4":
        setup, after = _counted(names, ats, 1)
        return setup, [f"let y{j} = {load(f'b[b{j}]', dtype, value, True)};" for j in range(tile.wide)], after
    setup = [f"let {n} = {at};" for n, at in zip(names, ats, strict=True)]
    return setup, [f"let y{j} = {_singles('b', f'b{j}', 'p.b_k', dtype, f)};" for j in range(tile.wide)], ""


def _lane_rows(f: Form) -> tuple[list[str], list[str], str]:
    """Setup, loads and increments of a lane's operand whose columns are neighbours: a vec4 a step of K."""
    column = "b_at + min(c / 4u + lane, p.n / 4u - 1u)"
    if f.tail:
        setup, after = [f"let b_col = {column};"], ""
        steps = ["k", *(f"k + {q}u" for q in range(1, STEP))]
        places, guards = [f"b_col + {_at(f, k)} * p.b_k" for k in steps], [_guard(f, k) for k in steps]
    else:
        setup = [f"var b_row = {column}; let b_2 = 2u * p.b_k; let b_3 = 3u * p.b_k; let b_step = {STEP}u * p.b_k;"]
        places, guards, after = ["b_row", "b_row + p.b_k", "b_row + b_2", "b_row + b_3"], [""] * STEP, "b_row += b_step; "
    pairs = enumerate(zip(places, guards, strict=True))
    return setup, [f"let y{q} = {load(f'b[{at}]', f.types.b, f.types.value, True, guard)};" for q, (at, guard) in pairs], after


def _products(tile: Tile, f: Form) -> list[str]:
    lines = []
    for i in range(tile.rows):
        text = [f"let s{i}_{q} = {_broadcast(tile, f, i, q)};" for q in range(STEP)]
        for j in range(tile.wide):
            for q in range(STEP):
                y = f"y{q}.{XYZW[j]}" if f.b == "f4" else f"y{j}.{XYZW[q]}"
                text.append(f"c{i}_{j} = {mac(f.types.value, f's{i}_{q}', y, f'c{i}_{j}')};")
        lines.append(" ".join(text))
    return lines


def _stores(tile: Tile, f: Form, accs: list[list[str]]) -> list[str]:
    """Every lane stores its columns of every row; what an epilogue reads once a column is read before."""
    stores = Stores(f)
    steps = range(0, tile.wide, 4 if f.out == "v4" else 1)
    lines = [f"let col = c + lane * {tile.wide}u;", *stores.begin()]
    lines += [stores.column(f"(col + {j}u)", str(j)) for j in steps]
    e = f.epilogue
    later = e is not None and tile.rows > 2 and len(e.statements) >= LONG and e.keeps(f.types.value)
    for i, row in enumerate(accs):
        r = f"(r + {i}u)"
        text = stores.line(r)
        for j in steps:
            sums = row[j : j + 4] if f.out == "v4" else row[j : j + 1]
            put = stores.raw if later else stores.put
            text += f"if (col + {j}u < p.n) {{ {put(sums, r, f'(col + {j}u)', ('', str(j)))} }} "
        lines.append(f"if (r + {i}u < p.m) {{ {text}}}")
    return [*lines, *_looped(tile, stores, steps)] if later else lines


LONG = 2  # statements from which an epilogue is built once, in a loop: written out a row they take seconds to build


def _looped(tile: Tile, stores: Stores, steps: range) -> list[str]:
    """The epilogue of rows whose sums lie in the first result already, which an invocation reads back."""
    lines = [f"let rows = min({tile.rows}u, p.m - r); var i = 0u;", "loop {", "let row = r + i;", stores.line("row")]
    for j in steps:
        col = f"(col + {j}u)"
        lines.append(f"if (col + {j}u < p.n) {{ {stores.again('row', col, ('', str(j)))} }}")
    return [*lines, "continuing { i += 1u; break if i >= rows; } }"]


GEMV_ROWS = 6  # results a subgroup of `gemv_rows` makes
GEMV_SIZE = 64  # invocations of its workgroups: starting one costs more than a few loads


def gemv_rows(f: Form, profile: Profile) -> str:
    """A row vector (M = 1) times a matrix whose columns are contiguous along k: lanes share K, 6 results a subgroup.

    Grid: (ceil(N / 48), 1, matrices). Both operands 'k4'.
    """
    value, stores = f.types.value, Stores(f)
    body = [f"let c = (w.x * {GEMV_SIZE // LANES}u + sub) * {GEMV_ROWS}u;", "if (c >= p.n) { return; }", *matrix_place("w.z")]
    for j in range(GEMV_ROWS):
        body.append(f"let b{j} = b_at + min(c + {j}u, p.n - 1u) * p.b_free; var c{j} = {value}();")
    body += ["let quads = p.k / 4u; var q = lane;", "if (q < quads) { loop {", f"let x = {load('a[a_at + q]', f.types.a, value, True)};"]
    for j in range(GEMV_ROWS):
        body.append(f"let y{j} = {load(f'b[b{j} + q]', f.types.b, value, True)};")
        body.append(f"c{j} += (x.x * y{j}.x + x.y * y{j}.y) + (x.z * y{j}.z + x.w * y{j}.w);")
    body.append(f"continuing {{ q += {LANES}u; break if q >= quads; }} }} }}")
    body += [*stores.begin(), stores.line("0u")]
    body += [f"let t{j} = subgroupAdd(c{j});" for j in range(GEMV_ROWS)]
    mine = "t0"
    for j in range(1, GEMV_ROWS):
        mine = f"select({mine}, t{j}, lane == {j}u)"
    store = f"{stores.column('col', inside=True)}{stores.put(['sum'], '0u', 'col', single=True)}"
    body.append(f"let col = c + lane; let sum = {mine}; if (lane < {GEMV_ROWS}u && col < p.n) {{ {store} }}")
    return module(profile, f, [f"@compute @workgroup_size({GEMV_SIZE}) fn main({ARGS}) {{", *body, "}"], subgroups=True)


def gemv_columns(f: Form, blocks: int, profile: Profile) -> str:
    """A row vector times a matrix contiguous along n ('f4'): a lane walks down `blocks` vec4 columns, 8 vec4s apart.

    Grid: (ceil(N / (32 * blocks)), 1, matrices). The vector is read element by element ('k1').
    """
    value, stores = f.types.value, Stores(f)
    body = [f"let c = w.x * {LANES * blocks}u + lane;", *matrix_place("w.z")]
    for i in range(blocks):
        body.append(f"let b{i} = b_at + min(c + {i * LANES}u, p.n / 4u - 1u); var c{i} = vec4<{value}>();")
    body += ["var k = 0u;", "loop {", f"let x = vec4<{value}>({load('a[a_at + k * p.a_k]', f.types.a, value)}); let at = k * p.b_k;"]
    for i in range(blocks):
        body.append(f"c{i} = {mac(value, 'x', load(f'b[b{i} + at]', f.types.b, value, True), f'c{i}')};")
    body.append("continuing { k += 1u; break if k >= p.k; } }")
    body += [*stores.begin(), stores.line("0u")]
    for i in range(blocks):
        body.append(f"if (c + {i * LANES}u < p.n / 4u) {{ {stores.quad(f'c{i}', f'((c + {i * LANES}u) * 4u)')} }}")
    return module(profile, f, [f"@compute @workgroup_size({LANES}) fn main({ARGS}) {{", *body, "}"], subgroups=True)


PORTABLE = Tile(8, 4)  # of a workgroup of `portable`: 8 rows x (4 columns an invocation)
PORTABLE_SIZE = 16


def portable(f: Form, profile: Profile) -> str:
    """For software devices whose subgroups are not 8 lanes: no subgroup operations. An invocation makes 8 x 4 results.

    Grid: (ceil(N / 64), ceil(M / 8), matrices). The row operand is read element by element ('k1' or 'f1').
    """
    value, rows = f.types.value, PORTABLE.rows
    accs = [[f"c{i}.{c}" for c in XYZW] for i in range(rows)]
    body = [f"let r = w.y * {rows}u; let c = w.x * {4 * PORTABLE_SIZE}u;", *matrix_place("w.z")]
    body += [f"let a{i} = a_at + min(r + {i}u, p.m - 1u) * p.a_free; var c{i} = vec4<{value}>();" for i in range(rows)]
    if f.b == "f4":
        body.append("let b_col = b_at + min(c / 4u + lane, p.n / 4u - 1u);")
        y = load("b[b_col + k * p.b_k]", f.types.b, value, True)
    else:
        body += [f"let b{j} = b_at + min(c + lane * 4u + {j}u, p.n - 1u) * p.b_free;" for j in range(4)]
        y = f"vec4<{value}>({', '.join(load(f'b[b{j} + k * p.b_k]', f.types.b, value) for j in range(4))})"
    body += ["var k = 0u;", "loop {", f"let y = {y};"]
    for i in range(rows):
        x = f"vec4<{value}>({load(f'a[a{i} + k * p.a_k]', f.types.a, value)})"
        body.append(f"c{i} = {mac(value, x, 'y', f'c{i}')};")
    body.append("continuing { k += 1u; break if k >= p.k; } }")
    body += _stores(PORTABLE, f, accs)
    args = "@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) lane: u32"
    return module(profile, f, [f"@compute @workgroup_size({PORTABLE_SIZE}) fn main({args}) {{", *body, "}"])


# --- choice -------------------------------------------------------------------------------------------------------

ROWS = (1, 2, 4, 8, 16, 32)


def plan(p: Problem, profile: Profile, temps: list[int]) -> list[Launch]:
    """The launches of one product; `temps` is the list of temporaries' sizes, extended by what they need."""
    if not (profile.subgroups and profile.subgroup_size == LANES):
        return [_portable(p)]
    if p.m > 1 and p.n == 1:
        p = p.swapped()
    f = form(p, Tile(1))
    if p.m == 1 and (f.a, f.b) == ("k4", "k4"):
        f = Form.of(p, "k4", "k4", "v1")
        return [_launch("gemv_rows", None, f, p, (-(-p.n // (GEMV_ROWS * GEMV_SIZE // LANES)), 1), lambda profile: gemv_rows(f, profile))]
    if p.m == 1 and f.b == "f4" and p.n >= 256:
        blocks = 8 if p.n >= 1024 else 4
        columns = Form.of(p, "k1", "f4", f.out)
        grid = (-(-p.n // (4 * LANES * blocks)), 1)
        return [_launch(f"gemv_columns{blocks}", None, columns, p, grid, lambda profile: gemv_columns(columns, blocks, profile))]
    tile, q = min(_options(p), key=lambda option: cost(*option))
    launches: list[Launch] = []
    if tile == PACKED:
        q, launches = _pack(q, profile, temps)
    g = form(q, tile)
    across, down = -(-q.n // tile.cols), -(-q.m // tile.rows)
    team = TEAM if across % TEAM == 0 and across * down * q.matrices >= TILES else 1
    grid = (across // team, down)
    return [*launches, _launch("gemm", tile, g, q, grid, lambda profile: gemm(tile, g, team, profile), team)]


TEAM = 4  # subgroups of a workgroup whose tiles share rows, which makes 512^3 1.5 % faster and 1024^3 2 %
TILES = 256  # from which on they do; fewer would leave threads without work


PACKED = Tile(PANEL, PANEL // LANES)
PAGE = 4096


def _pack(p: Problem, profile: Profile, temps: list[int]) -> tuple[Problem, list[Launch]]:
    """The problem with panels for operands whose rows lie whole pages apart and are read often enough."""
    launches = []
    for name, side, other in (("a", p.a, p.n), ("b", p.b, p.m)):
        kind = side.form(p.k)
        apart = abs(side.free if kind.startswith("k") else side.inner) * side.dtype.itemsize
        often = other >= (1024 if kind == "f4" else 256)
        fits = packed_bytes(p, side) <= profile.max_binding
        if fits and often and (kind.endswith("1") or (apart and apart % PAGE == 0)):
            launch, made = packed(p, side, temps)
            launches.append(launch)
            p = replace(p, a=made) if name == "a" else replace(p, b=made)
    return p, launches


def form(p: Problem, tile: Tile) -> Form:
    """How the kernels here access a problem's operands with this tile. Element loads do not care which
    dimension is contiguous, so there is one form of them."""
    a, b = (s.form(p.k) for s in (p.a, p.b))
    a = a if a in ("k4", "p4") or (a == "f4" and tile.rows >= 4) else "k1"
    b = b if b in ("k4", "p4") or (b == "f4" and tile.wide == 4) else "k1"
    out = p.stores() if tile.wide == 4 else "v1"
    return Form.of(p, a, b, out, tail=p.k % STEP != 0)


def _options(p: Problem) -> list[tuple[Tile, Problem]]:
    return [(Tile(rows, wide), q) for q in (p, p.swapped()) for rows in ROWS for wide in (1, 2, 4)]


def cost(tile: Tile, p: Problem) -> float:
    """Predicted nanoseconds of one core, from measured costs of loads, stores and products, and a share of the build time."""
    f = form(p, tile)
    quad, singles = 13.0, 22.0 if f.tail else 16.0  # a vec4 in every lane, loaded at once or one by one
    rows_loaded = 1 if f.a == "f4" and tile.rows <= 8 else -(-tile.rows // LANES)
    loads = rows_loaded * (singles if f.a == "k1" else quad)
    loads += {"k4": tile.wide * quad, "f4": STEP * quad, "k1": tile.wide * singles}[f.b]
    step = 25 + loads + 0.2 * tile.rows * tile.wide * STEP
    stores = tile.rows * (quad if f.out == "v4" else tile.wide * 5)
    groups = -(-p.m // tile.rows) * -(-p.n // tile.cols) * p.matrices
    build = 20e6 + 4e6 * tile.rows * (1 if f.out == "v4" else tile.wide)
    return groups * (130 + stores + -(-p.k // STEP) * step) + build / BUILD_SHARE


BUILD_SHARE = 5000  # uses over which a pipeline's build time is spread when tiles are compared


def _portable(p: Problem) -> Launch:
    f = form(p, PORTABLE)
    b = "k1" if f.b == "k4" else f.b
    f = Form.of(p, "k1", b, f.out)
    grid = (-(-p.n // (4 * PORTABLE_SIZE)), -(-p.m // PORTABLE.rows))
    return _launch("portable", None, f, p, grid, lambda profile: portable(f, profile))


def _launch(
    name: str, tile: Tile | None, f: Form, p: Problem, grid: tuple[int, int], source: Callable[[Profile], str], team: int = 1
) -> Launch:
    kernel = Kernel(("matmul", name, tile, f, team), source, f.access, label=f"matmul_{name}", scalars=f.scalars, trusted=True)
    bindings = (p.a.binding, p.b.binding, *p.bindings(f.out))
    return Launch(kernel, bindings, (*grid, p.matrices), p.params(f.accesses), p.scalars(), p.ranges())
