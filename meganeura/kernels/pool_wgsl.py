"""WGSL of window kernels. In: a WindowForm (all that the text depends on). Out: the source.

An invocation makes the results of one place in `rows` neighbours of the first leading dimension: it finds the place and the range of
source elements an axis once for all of them, and walks axis by axis. Sums have an accumulator an axis, so that weights of an axis are
applied once a line, not once an element.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import template as T
from .kernel import Profile
from .monoid import LOWEST
from .operand import Operand, declare


@dataclass(frozen=True, slots=True)
class WindowForm:
    """Everything the source depends on: the pipeline key."""

    kind: str  # 'max', 'sum', 'routed' (sums what a maximum's indices send here)
    reach: str  # 'strided', 'spread', 'adaptive' or 'table'
    back: bool  # a gradient: results are the elements, sources the windows
    count: str  # what a sum is divided by: '' nothing, 'all' the window with padding, 'inside' what lies in the source
    operands: tuple[Operand, ...]
    access: tuple[str, ...]
    lead: int  # collapsed leading dimensions
    axes: int
    dilated: bool
    fast: bool  # numbers are small enough to divide by reciprocals
    rows: int  # results an invocation makes

    def fields(self) -> list[str]:
        """Parameter names, in the order of pool._launch."""
        lead, axes = range(self.lead), range(self.axes)
        out = ["items", "count", "apart", *(f"l{d}" for d in lead), *(f"m{a}" for a in axes), *(f"n{a}" for a in axes)]
        if self.fast:
            out += [*(f"rl{d}" for d in lead), *(f"rm{a}" for a in axes)]
        if self.reach in ("strided", "spread"):
            out += [f"{x}{a}" for a in axes for x in "kspd"]
        if self.reach == "table":
            out += [f"{x}{a}" for a in axes for x in ("taps", "first", "weights")]
        for o in self.images:
            out += [f"{o.tag}_at", *(f"{o.tag}_l{d}" for d in lead), *(f"{o.tag}_s{a}" for a in axes)]
        out += [f"{o.tag}_{x}" for o in self.tables for x in ("at", "step")]
        return out + [f"{o.tag}_at" for o in self.results]

    @property
    def images(self) -> list[Operand]:
        """The sources."""
        return [o for o in self.operands if not o.write and o.name not in ("first", "weight")]

    @property
    def tables(self) -> list[Operand]:
        return [o for o in self.operands if o.name in ("first", "weight")]

    @property
    def results(self) -> list[Operand]:
        return [o for o in self.operands if o.write]


def source(form: WindowForm, profile: Profile) -> str:
    """The WGSL of a form."""
    body = f"  let i = group * {T.WORKGROUP}u + local;\n  if (i >= p.items) {{ return; }}\n  {_places(form)}\n"
    body += "".join(_range(form, a) for a in range(form.axes)) + _start(form)
    full = " && ".join(f"lo{a} < hi{a}" for a in range(form.axes))
    code = WEIGHTED if form.reach == "table" else ""
    code += T.entry(profile) + body + f"  if ({full}) {{\n{_walk(form, 0)}  }}\n{_stores(form)}}}\n"
    out = T.header(profile, (o.dtype for o in form.operands), subgroups=T.lanes(profile) > 0)
    out += declare(form.operands, form.access) + T.uniform(len(form.access), form.fields())
    return out + T.prelude(code) + code


# A weight of 0 stands for an element that is not in the window, whatever its value.
WEIGHTED = "fn weighted(x: f32, w: f32) -> f32 { if (w == 0.0) { return 0.0; } return x * w; }\n"


def _places(form: WindowForm) -> str:
    """c0, c1... of the leading dimensions (c0 in steps of `rows`), o0, o1... of the axes, and where the sources' rows start."""
    sizes = [f"p.l{d}" for d in range(form.lead)] + [f"p.m{a}" for a in range(form.axes)]
    fast = [f"p.rl{d}" for d in range(form.lead)] + [f"p.rm{a}" for a in range(form.axes)] if form.fast else []
    text = T.decompose("i", sizes, "c", fast)
    text += "".join(f" let o{a} = c{form.lead + a};" for a in range(form.axes))
    for o in form.images:
        for r in range(form.rows):
            first = f"min(c0 * {form.rows}u + {r}u, p.count - 1u)" if form.rows > 1 else "c0"
            steps = [first, *(f"c{d}" for d in range(1, form.lead))][: form.lead]
            text += f"\n  let {o.tag}_{r} = p.{o.tag}_at" + "".join(f" + {c} * p.{o.tag}_l{d}" for d, c in enumerate(steps)) + ";"
    return text


def _range(form: WindowForm, a: int) -> str:
    """lo and hi of an axis, and for strided windows t, where the window starts."""
    if form.reach == "table":
        o = next(o for o in form.tables if o.name == "first")
        start = o.part(o.entry(f"p.{o.tag}_at + (p.first{a} + o{a}) * p.{o.tag}_step"), 0)
        return f"  let lo{a} = min(u32({start}), p.n{a} - p.taps{a}); let hi{a} = lo{a} + p.taps{a};\n"
    if form.reach == "adaptive":
        return f"  let lo{a} = o{a} * p.n{a} / p.m{a}; let hi{a} = ((o{a} + 1u) * p.n{a} + p.m{a} - 1u) / p.m{a};\n"
    if form.reach == "spread":
        return (
            f"  let u{a} = o{a} + p.p{a}; let w{a} = (p.k{a} - 1u) * p.d{a};\n"
            f"  var lo{a} = 0u; if (u{a} > w{a}) {{ lo{a} = (u{a} - w{a} + p.s{a} - 1u) / p.s{a}; }}\n"
            f"  let hi{a} = min(u{a} / p.s{a} + 1u, p.n{a});\n"
        )
    out = f"  let t{a} = i32(o{a} * p.s{a}) - i32(p.p{a});\n"
    if not form.dilated:
        return out + f"  let lo{a} = u32(max(t{a}, 0i)); let hi{a} = u32(max(min(t{a} + i32(p.k{a}), i32(p.n{a})), 0i));\n"
    return out + (
        f"  var lo{a} = u32(t{a}); if (t{a} < 0i) {{ let back = u32(-t{a}); lo{a} = (back + p.d{a} - 1u) / p.d{a} * p.d{a} - back; }}\n"
        f"  let hi{a} = u32(max(min(t{a} + i32((p.k{a} - 1u) * p.d{a} + 1u), i32(p.n{a})), 0i));\n"
    )


def _start(form: WindowForm) -> str:
    """The accumulators."""
    if form.kind != "max":
        return "".join(f"  var acc0_{r} = 0.0;\n" for r in range(form.rows))
    type_ = _type(form)
    where = "lo0"
    for a in range(1, form.axes):
        where = f"({where}) * p.n{a} + lo{a}"
    text = f"  let begin = {where};\n"
    return text + "".join(f"  var best_{r} = {LOWEST[type_]}; var place_{r} = begin;\n" for r in range(form.rows))


def _type(form: WindowForm) -> str:
    compute = form.images[0].compute
    assert compute is not None
    return compute.value


def _walk(form: WindowForm, a: int) -> str:
    """The loop over an axis and those after it."""
    step = f"p.d{a}" if form.reach == "strided" and form.dilated else "1u"
    pad = "  " * (a + 2)
    body = ""
    for o in form.images:
        before = "" if a == 0 else f"{o.tag}_j{a - 1} + "
        body += f"{pad}  let {o.tag}_j{a} = {before}j{a} * p.{o.tag}_s{a};\n"
    if form.kind == "max":
        body += f"{pad}  let f{a} = {'j0' if a == 0 else f'f{a - 1} * p.n{a} + j{a}'};\n"
    weight = _weight(form, a)
    if weight:
        body += f"{pad}  let w{a} = {weight};\n"
    if a == form.axes - 1:
        body += "".join(f"{pad}  {_take(form, r)}\n" for r in range(form.rows))
    else:
        if form.kind != "max":
            body += "".join(f"{pad}  var acc{a + 1}_{r} = 0.0;\n" for r in range(form.rows))
        body += _walk(form, a + 1)
        if form.kind != "max":
            body += "".join(f"{pad}  acc{a}_{r} = acc{a}_{r} + {_weighted(form, a, f'acc{a + 1}_{r}')};\n" for r in range(form.rows))
    return f"{pad}var j{a} = lo{a};\n{pad}loop {{\n{body}{pad}  continuing {{ j{a} = j{a} + {step}; break if j{a} >= hi{a}; }}\n{pad}}}\n"


def _take(form: WindowForm, r: int) -> str:
    """What happens with one source element of a row."""
    last = form.axes - 1
    value, *rest = form.images
    v = value.part(value.entry(f"{value.tag}_{r} + {value.tag}_j{last}"), 0)
    if form.kind == "max":
        test = f"v{r} > best_{r}" + (f" || is_nan(v{r})" if _type(form) == "f32" else "")
        return f"let v{r} = {v}; if ({test}) {{ best_{r} = v{r}; place_{r} = f{last}; }}"
    if form.kind == "routed":
        index = rest[0].part(rest[0].entry(f"{rest[0].tag}_{r} + {rest[0].tag}_j{last}"), 0)
        me = "o0"
        for a in range(1, form.axes):
            me = f"({me}) * p.m{a} + o{a}"
        return f"if (u32({index}) == {me}) {{ acc{last}_{r} = acc{last}_{r} + {v}; }}"
    return f"acc{last}_{r} = acc{last}_{r} + {_weighted(form, last, v)};"


def _weight(form: WindowForm, a: int) -> str:
    """The weight of element j of an axis, '' where there is none: from the table, or what the mean of window j divides by."""
    if form.reach == "table":
        o = next(o for o in form.tables if o.name == "weight")
        return o.part(o.entry(f"p.{o.tag}_at + (p.weights{a} + o{a} * p.taps{a} + (j{a} - lo{a})) * p.{o.tag}_step"), 0)
    if not form.back or not form.count:
        return ""
    if form.reach == "adaptive":
        return f"f32(((j{a} + 1u) * p.m{a} + p.n{a} - 1u) / p.n{a} - j{a} * p.m{a} / p.n{a})"
    start, end = f"(i32(j{a} * p.s{a}) - i32(p.p{a}))", f"p.m{a}"
    if form.count == "all":
        return f"f32(min({start} + i32(p.k{a}), i32({end} + p.p{a})) - {start})"
    return f"f32(min({start} + i32(p.k{a}), i32({end})) - max({start}, 0i))"


def _weighted(form: WindowForm, a: int, value: str) -> str:
    """A sum of the later axes with the weight of this one."""
    if form.reach == "table":
        return f"weighted({value}, w{a})"
    return f"{value} / w{a}" if form.back and form.count else value


def _stores(form: WindowForm) -> str:
    text, divisor = "", ""
    if form.count and not form.back:
        counts = []
        for a in range(form.axes):
            inside = form.reach == "adaptive" or form.count == "inside"
            counts.append(f"f32(hi{a} - lo{a})" if inside else f"f32(min(t{a} + i32(p.k{a}), i32(p.n{a} + p.p{a})) - t{a})")
        text, divisor = f"  let divisor = {' * '.join(counts)};\n", " / divisor"
    if form.rows > 1:
        text += f"  let at = i + c0 * {form.rows - 1}u * p.apart;\n"
    for r in range(form.rows):
        at = f"at + {r}u * p.apart" if form.rows > 1 else "i"
        made = [("best", _type(form)), ("place", "u32")] if form.kind == "max" else [("acc0", "f32")]
        puts = ""
        for o, (name, type_) in zip(form.results, made, strict=True):
            value = f"{name}_{r}{divisor if name == 'acc0' else ''}"
            puts += o.put(f"p.{o.tag}_at + {at}", type_, [value]) + " "
        text += f"  if (c0 * {form.rows}u + {r}u < p.count) {{ {puts}}}\n" if r else f"  {puts}\n"
    return text
