"""The WGSL of a recurrence's steps: gates forwards and backwards, and what a projected output needs besides.

In: a StepForm. Out: one kernel over [directions, sequences, units]. Which step it is stands in the parameters, so that every
step of every length runs the same pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..dtype import DType
from . import template as T
from .kernel import Profile

# where the entries (of `width` units) of sequence n lie, for direction d and time t
_AT = {
    "gates": "((d * p.length + t) * p.n + n) * {wide}u * p.units",
    "product": "(d * p.n + n) * {wide}u * p.units",
    "bias": "d * {biases}u * p.units",
    "kept": "((d * p.length + t) * p.n + n) * {kept}u * p.units",
    "row": "(d * p.n + n) * p.units",
    "out": "((t * p.n + n) * p.directions + d) * p.units",
    "all": "((d * p.length + t) * p.n + n) * p.units",
}
_PLACE = {
    "gates": "gates", "product": "product", "bias": "bias", "kept": "kept", "hidden": "row", "state": "row", "carry": "row",
    "arrived": "row", "made": "row", "out": "out", "whole": "all", "dx": "gates", "dg": "gates", "step": "product", "result": "row",
    "grad": "out", "output": "out", "past": "row",
}  # fmt: skip
TIMED = ("gates", "kept", "out", "whole", "dx", "dg", "grad", "output")  # buffers that have all steps
FIELDS = ("n", "units", "length", "directions", "step", "fresh", "folds", "depth", "base")


@dataclass(frozen=True, slots=True)
class StepForm:
    """Everything the source depends on: the pipeline key. `what`: forward, store, arrive, backward or end; `buffers`:
    (name, dtype, written) in the order of the bindings; blocks of products, bias and kept values."""

    what: str
    cell: str
    buffers: tuple[tuple[str, DType, bool], ...]
    width: int
    workgroup: int
    wide: int
    biases: int
    kept: int
    fused: int = 0  # sequences for which a team of `lanes` makes the products itself, 0: they were made before
    lanes: int = 0

    def has(self, name: str) -> bool:
        return any(b[0] == name for b in self.buffers)

    @property
    def product(self) -> str:
        """What the products with the weight are to the step."""
        return "product" if self.what == "forward" else "arrived"


class _Lines:
    """Statements for one entry of `width` neighbouring units."""

    def __init__(self, form: StepForm) -> None:
        self.form, self.text = form, ""
        self.types = {name: dtype for name, dtype, _ in form.buffers}
        self.count = 0
        self.made = {"product": form.wide, "arrived": 1}.get(form.product, 0) if form.fused else 0

    def at(self, name: str, block: int) -> str:
        f = self.form
        base = _AT[_PLACE[name]].format(wide=f.wide, biases=f.biases, kept=f.kept)
        return f"{base} + {f'{block}u * p.units + ' if block else ''}j"

    def read(self, name: str, block: int = 0) -> list[str]:
        """The lanes of one block of a buffer, or of the products that the kernel made itself."""
        if self.made and name == self.form.product:
            return [f"made_{block}"]
        name = "past" if name == "hidden" and self.form.has("past") else name
        made, dtype = f"{name}_{block}_{self.count}", self.types[name]
        self.count += 1
        if name == "past":  # bound as vec4s
            self.text += f"  let at_{made} = {self.at(name, block)};\n  let {made} = past[at_{made} / 4u][at_{made} % 4u];\n"
            return [T.load(dtype, made)]
        self.text += f"  let {made} = {name}[{self.at(name, block)}];\n"
        return [T.load(dtype, made + (f".{T.LANES[i]}" if self.form.width > 1 else "")) for i in range(self.form.width)]

    def let(self, values: list[str]) -> list[str]:
        """Names for values, so that each is computed once."""
        names = []
        for v in values:
            names.append(f"v{self.count}")
            self.text += f"  let v{self.count} = {v};\n"
            self.count += 1
        return names

    def write(self, name: str, values: list[str], block: int = 0) -> None:
        dtype, w = self.types[name], self.form.width
        stored = [T.store("f32", v, dtype) for v in values]
        value = f"{T.element(dtype, w)}({', '.join(stored)})" if w > 1 else stored[0]
        self.text += f"  {name}[{self.at(name, block)}] = {value};\n"

    def map(self, expr: str, **values: list[str]) -> list[str]:
        """An expression over names in braces, lane by lane, named."""
        return self.let([T.substitute(expr, {k: v[i] for k, v in values.items()}) for i in range(self.form.width)])

    def masked(self, values: list[str], rest: list[str] | None = None) -> list[str]:
        """Values while the sequence lasts; beyond it `rest`, or 0."""
        if not self.form.has("lengths"):
            return values
        return [f"select({'0.0' if rest is None else rest[i]}, {v}, on)" for i, v in enumerate(values)]


def _sums(s: _Lines, gate: int) -> list[str]:
    return s.map("{x} + {g} + {b}", x=s.read("gates", gate), g=s.read("product", gate), b=s.read("bias", gate))


def _forward(s: _Lines) -> None:
    f, kept = s.form, []
    if f.cell == "lstm":
        i, r, o = (s.map("sigmoid_({y})", y=_sums(s, k)) for k in (0, 1, 3))
        u = s.map("tanh_({y})", y=_sums(s, 2))
        c = s.read("state")
        kept = [i, r, u, o, c]
        new = s.map("{f} * {c} + {i} * {u}", f=r, c=c, i=i, u=u)
        h = s.map("{o} * tanh_({c})", o=o, c=new)
        s.write("state", s.masked(new, c))
    elif f.cell == "gru":
        r, z = (s.map("sigmoid_({y})", y=_sums(s, k)) for k in (0, 1))
        q = s.map("{g} + {b}", g=s.read("product", 2), b=s.read("bias", 3))
        n = s.map("tanh_({x} + {b} + {r} * {q})", x=s.read("gates", 2), b=s.read("bias", 2), r=r, q=q)
        before = s.read("hidden")
        kept = [r, z, n, q, before]
        h = s.map("{n} + {z} * ({h} - {n})", n=n, z=z, h=before)
    else:
        h = s.map("tanh_({y})" if f.cell == "tanh" else "relu_({y})", y=_sums(s, 0))
    if f.has("kept"):
        for k, values in enumerate(kept):
            s.write("kept", values, k)
    if f.has("made"):
        s.write("made", h)
    else:
        _output(s, h)


def _output(s: _Lines, h: list[str]) -> None:
    """A step's output into its place and as what the next step reads."""
    s.write("out", s.masked(h))
    s.write("hidden", s.masked(h, s.read("hidden")) if s.form.has("lengths") else h)


def _store(s: _Lines) -> None:
    _output(s, s.read("arrived"))


def _arriving(s: _Lines) -> tuple[list[str], list[str]]:
    """(the whole gradient of a step's output, what came from the step after)."""
    past = s.map("{c} + select({a}, 0.0, p.fresh != 0u)", c=s.read("carry"), a=s.read("arrived"))
    return s.map("{g} + {p}", g=s.read("grad"), p=past), past


def _arrive(s: _Lines) -> None:
    dh, past = _arriving(s)
    s.write("whole", s.masked(dh))
    s.write("result", s.masked(dh))
    s.write("carry", s.masked(["0.0"] * s.form.width, past))


def _backward(s: _Lines) -> None:
    f = s.form
    past = None
    if f.has("made"):
        dh = s.read("made")
    else:
        dh, past = _arriving(s)
    flowing = ["0.0"] * f.width
    if f.cell == "lstm":
        i, r, u, o, c = (s.read("kept", k) for k in range(5))
        dc = s.read("state")
        t = s.map("tanh_({f} * {c} + {i} * {u})", f=r, c=c, i=i, u=u)
        d = s.map("{dc} + {dh} * {o} * (1.0 - {t} * {t})", dc=dc, dh=dh, o=o, t=t)
        dx = [
            s.map("{d} * {u} * {i} * (1.0 - {i})", d=d, u=u, i=i),
            s.map("{d} * {c} * {f} * (1.0 - {f})", d=d, c=c, f=r),
            s.map("{d} * {i} * (1.0 - {u} * {u})", d=d, i=i, u=u),
            s.map("{dh} * {t} * {o} * (1.0 - {o})", dh=dh, t=t, o=o),
        ]
        dg = dx
        s.write("state", s.masked(s.map("{d} * {f}", d=d, f=r), dc))
    elif f.cell == "gru":
        r, z, n, q, h = (s.read("kept", k) for k in range(5))
        dn = s.map("{dh} * (1.0 - {z}) * (1.0 - {n} * {n})", dh=dh, z=z, n=n)
        dr = s.map("{dn} * {q} * {r} * (1.0 - {r})", dn=dn, q=q, r=r)
        dz = s.map("{dh} * ({h} - {n}) * {z} * (1.0 - {z})", dh=dh, h=h, n=n, z=z)
        dx, dg = [dr, dz, dn], [dr, dz, s.map("{dn} * {r}", dn=dn, r=r)]
        flowing = s.map("{dh} * {z}", dh=dh, z=z)
    else:
        y = s.read("output")
        slope = "{dh} * (1.0 - {y} * {y})" if f.cell == "tanh" else "select(0.0, {dh}, {y} > 0.0)"
        dx = dg = [s.map(slope, dh=dh, y=y)]
    for k, (x, g) in enumerate(zip(dx, dg, strict=True)):
        s.write("dx", s.masked(x), k)
        s.write("step", s.masked(g), k)
        if f.has("dg"):
            s.write("dg", s.masked(g), k)
    if past is not None:
        s.write("carry", s.masked(flowing, past))


def _end(s: _Lines) -> None:
    s.write("result", s.map("{c} + {a}", c=s.read("carry"), a=s.read("arrived")))


_BODIES = {"forward": _forward, "store": _store, "arrive": _arrive, "backward": _backward, "end": _end}


def _products(form: StepForm) -> str:
    """The products of a team's unit with `fused` sequences: every lane takes part of them, and lane b keeps those of the b-th."""
    types = {name: dtype for name, dtype, _ in form.buffers}
    count, blocks, lanes = form.fused, form.wide if form.what == "forward" else 1, form.lanes
    vector = "past" if form.what == "forward" else "before"

    def load(name: str, at: str) -> str:
        return f"vec4<f32>({name}[{at}])" if types[name].storage == "f16" else f"{name}[{at}]"

    grid = [(k, b) for k in range(blocks) for b in range(count)]
    out = "".join(f"  var sum_{k}_{b} = 0.0;\n" for k, b in grid)
    out += "".join(f"  let row_{b} = (d * p.n + min(first + {b}u, p.n - 1u)) * p.depth;\n" for b in range(count))
    out += "".join(f"  let weight_{k} = ((d * {blocks}u + {k}u) * p.units + j) * p.depth;\n" for k in range(blocks))
    turn = "".join(f"    let x_{b} = {load(vector, f'row_{b} + q')};\n" for b in range(count))
    turn += "".join(f"    let w_{k} = {load('weight', f'weight_{k} + q')};\n" for k in range(blocks))
    turn += "".join(f"    sum_{k}_{b} += dot(w_{k}, x_{b});\n" for k, b in grid)
    fresh = "p.fresh == 0u" if form.what == "backward" else "true"
    out += f"  if ({fresh}) {{\n  for (var q = lane; q < p.depth; q += {lanes}u) {{\n{turn}  }}\n  }}\n"
    half = lanes // 2
    while half:
        out += "".join(f"  sum_{k}_{b} += subgroupShuffleXor(sum_{k}_{b}, {half}u);\n" for k, b in grid)
        half //= 2
    for k in range(blocks):
        out += f"  var made_{k} = sum_{k}_0;\n"
        out += "".join(f"  if (lane == {b}u) {{ made_{k} = sum_{k}_{b}; }}\n" for b in range(1, count))
    return out + f"  let n = first + lane;\n  if (lane >= {count}u || n >= p.n || !inside) {{ return; }}\n"


def _fused_source(form: StepForm, s: _Lines, profile: Profile) -> str:
    teams = form.workgroup // form.lanes
    args = "@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) local: u32"
    body = f"@compute @workgroup_size({form.workgroup}) fn main({args}) {{\n"
    body += f"  let lane = local % {form.lanes}u;\n  let unit = w.x * {teams}u + local / {form.lanes}u;\n  let inside = unit < p.units;\n"
    body += f"  let j = min(unit, p.units - 1u);\n  let d = w.z;\n  let first = w.y * {form.fused}u;\n"
    body += "  let time = select(p.step, p.length - 1u - p.step, d == 1u);\n  let t = time - p.base;\n" + _products(form)
    body += "  let on = i32(time) < lengths[n];\n" if form.has("lengths") else ""
    body += s.text + "}\n"
    out = T.header(profile, [dtype for _, dtype, _ in form.buffers], True)
    for i, (name, dtype, written) in enumerate(form.buffers):
        wide = 4 if name in ("weight", "before", "past") else 1
        out += T.storage(i, name, T.element(dtype, wide), "read_write" if written else "read")
    return out + T.uniform(len(form.buffers), FIELDS) + T.prelude(body) + body


def source(form: StepForm, profile: Profile) -> str:
    """The WGSL of one step."""
    s = _Lines(form)
    _BODIES[form.what](s)
    if form.fused:
        return _fused_source(form, s, profile)
    lanes = T.lanes(profile)
    args = "@builtin(workgroup_id) w: vec3<u32>, " + (
        "@builtin(subgroup_id) sid: u32, @builtin(subgroup_invocation_id) lane: u32"
        if lanes
        else "@builtin(local_invocation_index) local: u32"
    )
    body = f"@compute @workgroup_size({form.workgroup}) fn main({args}) {{\n"
    body += f"  let local = sid * {lanes}u + lane;\n" if lanes else ""
    body += f"  let j = w.x * {form.workgroup}u + local;\n  let d = w.z / p.folds;\n  let n = w.y + (w.z % p.folds) * {T.FOLD}u;\n"
    body += "  if (j >= p.units || n >= p.n) { return; }\n"
    body += "  let time = select(p.step, p.length - 1u - p.step, d == 1u);\n  let t = time - p.base;\n"
    if form.has("lengths"):
        body += "  let on = i32(time) < lengths[n];\n"
    body += s.text + "}\n"
    out = T.header(profile, [dtype for _, dtype, _ in form.buffers], lanes > 0)
    for i, (name, dtype, written) in enumerate(form.buffers):
        out += T.storage(i, name, T.element(dtype, 1 if name == "lengths" else form.width), "read_write" if written else "read")
    return out + T.uniform(len(form.buffers), FIELDS) + T.prelude(body) + body
