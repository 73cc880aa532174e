"""WGSL of window kernels. In: a WindowForm (all that the text depends on). Out: the source.

An invocation makes the results of one place in `rows` neighbours of the first leading dimension: it finds the place and the range of
source elements an axis once for all of them, and walks axis by axis. Sums have an accumulator an axis, so that weights of an axis are
applied once a line, not once an element. On software Vulkan it makes four neighbours along the last axis, where their windows are
short: what they are made of is then loaded without a loop, and results are stored at once.
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
    taps: int = 0  # elements along the last axis that are read without a loop, for four neighbours; 0: one result, in a loop
    masked: bool = False  # and some may lie outside
    window: tuple[int, int, int, int] | None = None  # size, step, padding, dilation there, where four neighbours fit the steps
    wide: bool = False  # and sources are read as vec4s
    lined: bool = False  # tables are read as vec4s
    span: bool = False  # four neighbours' first elements, by a table, lie at most three apart; sources are read as vec4s
    exact: bool = False  # every result is one element of the source
    summed: bool = False  # a vec4 of the source along the last axis counts as one element, its sum

    def fields(self) -> list[str]:
        """Parameter names, in the order of pool._launch."""
        lead, axes = range(self.lead), range(self.axes)
        out = ["items", "count", "apart", *(f"l{d}" for d in lead), *(f"m{a}" for a in axes), *(f"n{a}" for a in axes)]
        if self.fast:
            out += [*(f"rl{d}" for d in lead), *(f"rm{a}" for a in axes), *(f"rs{a}" for a in axes)]
        if self.taps:
            out += ["quads", "rquads"]
        if self.reach in ("strided", "spread"):
            out += [f"{x}{a}" for a in axes for x in "kspd"]
        if self.reach == "table":
            out += [f"{x}{a}" for a in axes for x in ("taps", "first", "weights")]
        for o in self.images:
            out += [f"{o.tag}_at", *(f"{o.tag}_l{d}" for d in lead), *(f"{o.tag}_s{a}" for a in axes)]
        out += [f"{o.tag}_{x}" for o in self.tables for x in ("at", "step")]
        return out + [f"{o.tag}_at" for o in self.results]

    @property
    def across(self) -> int:
        """Neighbours along the last axis that an invocation makes."""
        return 4 if self.taps else 1

    @property
    def cells(self) -> list[tuple[int, int, str]]:
        """Row, neighbour and name of what an invocation makes."""
        return [(r, q, f"{r}_{q}" if self.taps else f"{r}") for r in range(self.rows) for q in range(self.across)]

    def at(self, a: int, q: int) -> str:
        """The end of names that belong to neighbour q's place on an axis."""
        return f"{a}_{q}" if self.taps and a == self.axes - 1 else f"{a}"

    @property
    def last(self) -> int:
        return self.axes - 1

    def uses(self) -> list[tuple[int, str, int]]:
        """Neighbour, name and offset of what four neighbours read along the last axis, tap by tap. Offsets count from where the first
        would start without padding; without a window every neighbour's taps are its own."""
        if self.window is None:
            return [(q, f"{q}_{t}", t) for t in range(self.taps) for q in range(4)]
        k, s, p, d = self.window
        if self.reach == "strided":
            found = [(q, q * s - p + t * d) for t in range(k) for q in range(4)]
        else:
            found = [(q, (q + p) // s - t) for t in range(self.taps) for q in range(4) if (q + p) % s + t * s <= (k - 1) * d]
        return [(q, _signed(o), o) for q, o in found]

    def divide(self, value: str, divisor: str, a: int) -> str:
        """A quotient by p.s, p.m (a divisor of one letter) of an axis: software Vulkan divides lane by lane."""
        if not self.fast or divisor not in "sm":
            return f"({value}) / p.{divisor}{a}"
        return f"u32(f32({value}) * bitcast<f32>(p.r{divisor}{a}))"

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
    body += "".join(_range(form, a, q) for a in range(form.axes) for q in _neighbours(form, a))
    body += _start(form) + (_reads(form) if form.taps else "")
    full = " && ".join(f"lo{a} < hi{a}" for a in range(form.axes if not form.taps else form.axes - 1))
    code = WEIGHTED if form.reach == "table" else ""
    walk = _unrolled(form) if form.taps and form.axes == 1 else _walk(form, 0)
    code += T.entry(profile) + body + f"  if ({full or 'true'}) {{\n{walk}  }}\n{_stores(form)}}}\n"
    out = T.header(profile, (o.dtype for o in form.operands), subgroups=T.lanes(profile) > 0)
    out += declare(form.operands, form.access) + T.uniform(len(form.access), form.fields())
    return out + T.prelude(code) + code


# A weight of 0 stands for an element that is not in the window, whatever its value.
WEIGHTED = "fn weighted(x: f32, w: f32) -> f32 { return select(x * w, 0.0, w == 0.0); }\n"


def _neighbours(form: WindowForm, a: int) -> range:
    """Those with a place of their own on an axis."""
    return range(form.across if a == form.axes - 1 else 1)


def _places(form: WindowForm) -> str:
    """c0, c1... of the leading dimensions (c0 in steps of `rows`), o0, o1... of the axes, and where the sources' rows start."""
    sizes = [f"p.l{d}" for d in range(form.lead)] + [f"p.m{a}" for a in range(form.axes)]
    fast = [f"p.rl{d}" for d in range(form.lead)] + [f"p.rm{a}" for a in range(form.axes)] if form.fast else []
    if form.taps:
        sizes[-1], fast[-1:] = "p.quads", ["p.rquads"] if form.fast else []
    text = T.decompose("i", sizes, "c", fast)
    for a in range(form.axes):
        place = f"c{form.lead + a}"
        if form.taps and a == form.axes - 1:
            text += "".join(f" let o{form.at(a, q)} = {place} * 4u + {q}u;" for q in range(4))
        else:
            text += f" let o{a} = {place};"
    for o in form.images:
        for r in range(form.rows):
            first = f"min(c0 * {form.rows}u + {r}u, p.count - 1u)" if form.rows > 1 else "c0"
            steps = [first, *(f"c{d}" for d in range(1, form.lead))][: form.lead]
            text += f"\n  let {o.tag}_{r} = p.{o.tag}_at" + "".join(f" + {c} * p.{o.tag}_l{d}" for d, c in enumerate(steps)) + ";"
    return text


def _range(form: WindowForm, a: int, q: int) -> str:
    """lo and hi of an axis for a neighbour, and for strided windows t, where the window starts."""
    x = form.at(a, q)
    if form.taps and a == form.last and form.window and form.reach == "spread":
        return ""
    if form.reach == "table":
        o = next(o for o in form.tables if o.name == "first")
        if form.lined and a == form.last:
            entry = o.entry(f"(p.{o.tag}_at + p.first{a}) / 4u + c{form.lead + a}")
            start = f"{o.tag}_all.{T.LANES[q]}"
            text = f"  let {o.tag}_all = {entry};\n" if q == 0 else ""
            return f"{text}  let lo{x} = min(u32({start}), p.n{a} - p.taps{a}); let hi{x} = lo{x} + p.taps{a};\n"
        start = _table(o, f"p.{o.tag}_at + (p.first{a} + o{x}) * p.{o.tag}_step")
        return f"  let lo{x} = min(u32({start}), p.n{a} - p.taps{a}); let hi{x} = lo{x} + p.taps{a};\n"
    if form.reach == "adaptive":
        end = form.divide(f"(o{x} + 1u) * p.n{a} + p.m{a} - 1u", "m", a)
        return f"  let lo{x} = {form.divide(f'o{x} * p.n{a}', 'm', a)}; let hi{x} = {end};\n"
    if form.reach == "spread":
        return (
            f"  let u{x} = o{x} + p.p{a}; let w{x} = (p.k{a} - 1u) * p.d{a};\n"
            f"  let lo{x} = select(0u, {form.divide(f'u{x} - w{x} + p.s{a} - 1u', 's', a)}, u{x} > w{x});\n"
            f"  let hi{x} = min({form.divide(f'u{x}', 's', a)} + 1u, p.n{a});\n"
        )
    out = f"  let t{x} = i32(o{x} * p.s{a}) - i32(p.p{a});\n"
    if not form.dilated:
        return out + f"  let lo{x} = u32(max(t{x}, 0i)); let hi{x} = u32(max(min(t{x} + i32(p.k{a}), i32(p.n{a})), 0i));\n"
    return out + (
        f"  var lo{x} = u32(t{x}); if (t{x} < 0i) {{ let back = u32(-t{x}); lo{x} = (back + p.d{a} - 1u) / p.d{a} * p.d{a} - back; }}\n"
        f"  let hi{x} = u32(max(min(t{x} + i32((p.k{a} - 1u) * p.d{a} + 1u), i32(p.n{a})), 0i));\n"
    )


def _table(o: Operand, index: str) -> str:
    """An element of a table."""
    return o.part(o.entry(index), 0) if o.width == 1 else T.load(o.dtype, f"{o.entry(f'({index}) / 4u')}[({index}) % 4u]", o.compute)


def _start(form: WindowForm) -> str:
    """The accumulators."""
    if form.kind != "max":
        text = "".join(f"  let me_{q} = {_place(form, 'o', q, 'm')};\n" for q in range(form.across)) if form.kind == "routed" else ""
        return text + "".join(f"  var acc0_{name} = 0.0;\n" for _, _, name in form.cells)
    text = "".join(f"  let begin_{q} = {_place(form, 'lo', q, 'n')};\n" for q in range(form.across))
    return text + "".join(f"  var best_{name} = {LOWEST[_type(form)]}; var place_{name} = begin_{q};\n" for _, q, name in form.cells)


def _place(form: WindowForm, stem: str, q: int, size: str) -> str:
    """The number of a place in an image."""
    where = f"{stem}{form.at(0, q)}"
    for a in range(1, form.axes):
        where = f"({where}) * p.{size}{a} + {stem}{form.at(a, q)}"
    return where


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
    weight = _weight(form, a, f"j{a}", f"{a}")
    if weight:
        body += f"{pad}  let w{a} = {weight};\n"
    if a == form.axes - 1:
        body += "".join(f"{pad}  {_take(form, r)}\n" for r in range(form.rows))
    else:
        names = [name for _, _, name in form.cells] if form.kind != "max" else []
        body += "".join(f"{pad}  var acc{a + 1}_{n} = 0.0;\n" for n in names)
        body += _unrolled(form) if form.taps and a == form.axes - 2 else _walk(form, a + 1)
        body += "".join(f"{pad}  acc{a}_{n} = acc{a}_{n} + {_weighted(form, f'acc{a + 1}_{n}', f'w{a}')};\n" for n in names)
    if form.exact:
        return f"{pad}let j{a} = lo{a};\n{body}"
    return f"{pad}var j{a} = lo{a};\n{pad}loop {{\n{body}{pad}  continuing {{ j{a} = j{a} + {step}; break if j{a} >= hi{a}; }}\n{pad}}}\n"


def _reads(form: WindowForm) -> str:
    """Where four neighbours read along the last axis, which of that exists, and its weights: the same in every line."""
    a, text, done = form.last, "", set()
    o = next((o for o in form.tables if o.name == "weight" and not form.exact), None)
    if o is not None and form.lined:
        start = f"(p.{o.tag}_at + p.weights{a}) / 4u + c{form.lead + a} * {form.taps}u"
        text += "".join(f"  let {o.tag}_{k} = {o.entry(f'{start} + {k}u')};\n" for k in range(form.taps))
    if form.span:
        begin = f"lo{form.at(a, 0)}"
        text += "".join(f"  let turn{i} = {begin} % 4u == {i}u;" for i in range(1, 4)) + "\n"
        text += "".join(f"  let apart{q}_{i} = lo{form.at(a, q)} == {begin} + {i}u;" for q in range(1, 4) for i in range(1, q + 1)) + "\n"
    for q, name, offset in form.uses():
        if name in done:
            continue
        done.add(name)
        x = form.at(a, q)
        if form.window:
            step = 4 * form.window[1] if form.reach == "strided" else 4 // form.window[1]
            text += f"  let j_{name} = c{form.lead + a} * {step}u {'-' if offset < 0 else '+'} {abs(offset)}u;"
            here = f"j_{name} < p.n{a}"
        else:
            text += f"  let j_{name} = lo{x} + {offset}u{f' * p.d{a}' if form.reach == 'strided' and form.dilated else ''};"
            here = f"j_{name} < hi{x}"
        text += f" let here_{name} = {here}; let e_{name} = min(j_{name}, p.n{a} - 1u);" if form.masked else f" let e_{name} = j_{name};"
        if o is not None and form.lined:
            flat = q * form.taps + offset
            text += f" let w_{name} = {T.load(o.dtype, f'{o.tag}_{flat // 4}.{T.LANES[flat % 4]}', o.compute)};"
        else:
            weight = _weight(form, a, f"j_{name}", x)
            text += f" let w_{name} = {weight};" if weight else ""
        text += "\n"
    return text


def _unrolled(form: WindowForm) -> str:
    """The last axis: every tap of four neighbours, all elements of a row once."""
    last, uses = form.last, form.uses()
    names = {name: offset for _, name, offset in uses}
    text = ""
    if form.kind == "max":
        text += "".join(f"    let f_{n} = {f'f{last - 1} * p.n{last} + ' if last else ''}e_{n};\n" for n in names)
    for o in form.images:
        line = f"{o.tag}_j{last - 1} + " if last else ""
        if form.span:
            text += f"    let {o.tag}_e = {line}lo{form.at(last, 0)} / 4u; let {o.tag}_end = {line}p.n{last} / 4u - 1u;\n"
            continue
        if not form.wide:
            text += "".join(f"    let {o.tag}_e{n} = {line}e_{n} * p.{o.tag}_s{last};\n" for n in names)
            continue
        assert form.window is not None
        first = f"c{form.lead + last} * {form.window[1]}u"
        for v in sorted({offset // 4 for offset in names.values()}):
            at = f"{first} {'-' if v < 0 else '+'} {abs(v)}u"
            at = f"min({at}, p.n{last} / 4u - 1u)" if form.masked else at
            text += f"    let {o.tag}_e{_signed(v)} = {line}{at};\n"
    for r in range(form.rows):
        text += "    {\n"
        for o in form.images:
            if form.wide:
                for v in sorted({offset // 4 for offset in names.values()}):
                    text += f"      let {o.tag}_v{_signed(v)} = {o.entry(f'{o.tag}_{r} + {o.tag}_e{_signed(v)}')};\n"
            if form.span:
                text += _spanned(form, o, r)
                continue
            for n, offset in names.items():
                value = f"{o.tag}_v{_signed(offset // 4)}" if form.wide else o.entry(f"{o.tag}_{r} + {o.tag}_e{n}")
                text += f"      let {o.tag}_x{n} = {o.part(value, offset % 4 if form.wide else 0)};\n"
        text += "".join(f"      {_take_one(form, f'{r}_{q}', q, name)}\n" for q, name, _ in uses) + "    }\n"
    return text


def _spanned(form: WindowForm, o: Operand, r: int) -> str:
    """What four neighbours read from a row, out of the vec4s that it lies in: first turned to begin with the first element."""
    size = 3 + form.taps
    text = ""
    for v in range((size + 2) // 4 + 1):
        text += f"      let s{v} = {o.entry(f'{o.tag}_{r} + min({o.tag}_e + {v}u, {o.tag}_end)')};\n"
    for k in range(size):
        parts = [o.part(f"s{(k + i) // 4}", (k + i) % 4) for i in range(4)]
        text += f"      let y{k} = select(select(select({parts[0]}, {parts[1]}, turn1), {parts[2]}, turn2), {parts[3]}, turn3);\n"
    for q, name, tap in form.uses():
        value = f"y{tap}"
        for i in range(1, q + 1):
            value = f"select({value}, y{tap + i}, apart{q}_{i})"
        text += f"      let {o.tag}_x{name} = {value};\n"
    return text


def _signed(number: int) -> str:
    """A number as part of a name."""
    return f"{number}" if number >= 0 else f"m{-number}"


def _take_one(form: WindowForm, cell: str, q: int, name: str) -> str:
    """What happens with one source element of a row and a neighbour."""
    last = form.last
    value, *rest = form.images
    v, here = f"{value.tag}_x{name}", f"here_{name}" if form.masked else ""
    if form.kind == "max":
        test = f"{v} > best_{cell}" + (f" || is_nan({v})" if _type(form) == "f32" else "")
        test = f"({test}) && {here}" if here else test
        return f"{{ let m = {test}; best_{cell} = select(best_{cell}, {v}, m); place_{cell} = select(place_{cell}, f_{name}, m); }}"
    if form.kind == "routed":
        tests = [f"u32({rest[0].tag}_x{name}) == me_{q}", *([here] if here else [])]
        return f"acc{last}_{cell} = acc{last}_{cell} + select(0.0, {v}, {' && '.join(tests)});"
    made = _weighted(form, v, f"w_{name}")
    return f"acc{last}_{cell} = acc{last}_{cell} + {f'select(0.0, {made}, {here})' if here else made};"


def _take(form: WindowForm, r: int) -> str:
    """What happens with one source element of a row."""
    last = form.axes - 1
    value, *rest = form.images
    entry = value.entry(f"{value.tag}_{r} + {value.tag}_j{last}")
    if form.summed:
        x, y, z, w = (value.part(f"v{r}", k) for k in range(4))
        return f"let v{r} = {entry}; acc{last}_{r} = acc{last}_{r} + (({x} + {y}) + ({z} + {w}));"
    v = value.part(entry, 0)
    if form.kind == "max":
        test = f"v{r} > best_{r}" + (f" || is_nan(v{r})" if _type(form) == "f32" else "")
        return f"let v{r} = {v}; if ({test}) {{ best_{r} = v{r}; place_{r} = f{last}; }}"
    if form.kind == "routed":
        index = rest[0].part(rest[0].entry(f"{rest[0].tag}_{r} + {rest[0].tag}_j{last}"), 0)
        return f"if (u32({index}) == me_0) {{ acc{last}_{r} = acc{last}_{r} + {v}; }}"
    return f"acc{last}_{r} = acc{last}_{r} + {_weighted(form, v, f'w{last}')};"


def _weight(form: WindowForm, a: int, j: str, x: str) -> str:
    """The weight of element j of an axis, '' where there is none: from the table, or what the mean of window j divides by. x: the end
    of the names of the place."""
    if form.exact:
        return ""
    if form.reach == "table":
        o = next(o for o in form.tables if o.name == "weight")
        return _table(o, f"p.{o.tag}_at + (p.weights{a} + o{x} * p.taps{a} + ({j} - lo{x})) * p.{o.tag}_step")
    if not form.back or not form.count:
        return ""
    if form.reach == "adaptive":
        return f"f32((({j} + 1u) * p.m{a} + p.n{a} - 1u) / p.n{a} - {j} * p.m{a} / p.n{a})"
    start, end = f"(i32({j} * p.s{a}) - i32(p.p{a}))", f"p.m{a}"
    if form.count == "all":
        return f"f32(min({start} + i32(p.k{a}), i32({end} + p.p{a})) - {start})"
    return f"f32(min({start} + i32(p.k{a}), i32({end})) - max({start}, 0i))"


def _weighted(form: WindowForm, value: str, weight: str) -> str:
    """A sum of the later axes with the weight of this one."""
    if form.reach == "table" and not form.exact:
        return f"weighted({value}, {weight})"
    return f"{value} / {weight}" if form.back and form.count else value


def _stores(form: WindowForm) -> str:
    text, divide = "", ""
    if form.count and not form.back:
        for q in range(form.across):
            counts = []
            for a in range(form.axes):
                x = form.at(a, q)
                inside = form.reach == "adaptive" or form.count == "inside"
                counts.append(f"f32(hi{x} - lo{x})" if inside else f"f32(min(t{x} + i32(p.k{a}), i32(p.n{a} + p.p{a})) - t{x})")
            text += f"  let divisor_{q} = {' * '.join(counts)}{' * 4.0' if form.summed else ''};\n"
        divide = " / divisor_"
    if form.rows > 1:
        text += f"  let at = i + c0 * {form.rows - 1}u * p.apart;\n"
    for r in range(form.rows):
        at = f"at + {r}u * p.apart" if form.rows > 1 else "i"
        made = [("best", _type(form)), ("place", "u32")] if form.kind == "max" else [("acc0", "f32")]
        puts = ""
        for o, (stem, type_) in zip(form.results, made, strict=True):
            values = [f"{stem}_{name}{f'{divide}{q}' if divide and stem == 'acc0' else ''}" for row, q, name in form.cells if row == r]
            puts += o.put(f"p.{o.tag}_at + {at}", type_, values) + " "
        text += f"  if (c0 * {form.rows}u + {r}u < p.count) {{ {puts}}}\n" if r else f"  {puts}\n"
    return text
