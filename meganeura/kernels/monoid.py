"""Accumulators of reductions, and how the lanes of a team bring theirs together.

A Monoid is a WGSL value type with a `merge` function. A Team is the invocations that share one row: one invocation
('lane'), one subgroup ('subgroup') or one workgroup ('group'). Merging is a butterfly through the subgroup, then, in a
workgroup, one exchange through workgroup memory; the order is fixed, so results repeat bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HUGE = "-3.4028234663852886e38"  # where a running maximum starts: -inf would give -inf - -inf


@dataclass(frozen=True)
class Monoid:
    """`parts` are (field, WGSL type) of the value; a single part is held bare. `merge` is an expression over a and b."""

    name: str
    parts: tuple[tuple[str, str], ...]
    identity: str
    merge: str
    builtin: str = ""  # the subgroup function that does the butterfly at once
    struct: str = ""  # name of the struct when there are several parts
    extra: str = ""  # further functions, for those who read the value

    @property
    def type(self) -> str:
        """WGSL type of the value."""
        return self.struct or self.parts[0][1]

    def field(self, value: str, part: str) -> str:
        """The text of one part of a value."""
        return f"{value}.{part}" if self.struct else value

    def make(self, *values: str) -> str:
        """The text of a value from its parts."""
        return f"{self.struct}({', '.join(values)})" if self.struct else values[0]

    def declarations(self) -> str:
        """The struct, if any, and the merge function."""
        fields = ", ".join(f"{n}: {t}" for n, t in self.parts)
        struct = f"struct {self.struct} {{ {fields} }}\n" if self.struct else ""
        body = self.merge if "return" in self.merge else f"return {self.merge};"
        return f"{struct}{self.extra}fn merge_{self.name}(a: {self.type}, b: {self.type}) -> {self.type} {{ {body} }}\n"


_NAN = "(bitcast<u32>({}) & 0x7fffffffu) > 0x7f800000u"
_ZERO = {"f32": "0.0", "i32": "0i", "u32": "0u"}
_ONE = {"f32": "1.0", "i32": "1i", "u32": "1u"}
LOWEST = {"f32": "-inf()", "i32": "(-2147483647i - 1i)", "u32": "0u"}
HIGHEST = {"f32": "inf()", "i32": "2147483647i", "u32": "0xffffffffu"}


def extremum(kind: str, type_: str) -> Monoid:
    """'max' or 'min' of f32 (NaN wins), i32 or u32."""
    identity = (LOWEST if kind == "max" else HIGHEST)[type_]
    builtin = "" if type_ == "f32" else f"subgroup{kind.capitalize()}"
    sign = ">" if kind == "max" else "<"
    merge = f"select(b, a, a {sign} b || ({_NAN.format('a')}))" if type_ == "f32" else f"{kind}(a, b)"
    return Monoid(f"{kind}_{type_}", (("v", type_),), identity, merge, builtin)


PLACE = Monoid(  # of arguments: the key of order_key with its number; an empty one has number 0xffffffff
    "place",
    (("k", "u32"), ("i", "u32")),
    "Place(0u, 0xffffffffu)",
    "let first = a.k > b.k || (a.k == b.k && a.i < b.i); return Place(select(b.k, a.k, first), select(b.i, a.i, first));",
    struct="Place",
)


def order_key(kind: str, type_: str) -> str:
    """A function `order_key` to u32 whose larger values win 'argmax' or 'argmin': NaN first, -0 equal to 0."""
    flip = "~" if kind == "argmin" else ""
    if type_ == "f32":
        body = (
            "let b = bitcast<u32>(x); let m = b & 0x7fffffffu; if (m > 0x7f800000u) { return 0xffffffffu; } "
            f"return {flip}select(m | 0x80000000u, ~b, b > 0x80000000u);"
        )
    else:
        body = f"return {flip}" + ("(bitcast<u32>(x) ^ 0x80000000u);" if type_ == "i32" else "x;")
    return f"fn order_key(x: {type_}) -> u32 {{ {body} }}\n"


def total(type_: str) -> Monoid:
    """Sum."""
    return Monoid(f"sum_{type_}", (("v", type_),), _ZERO[type_], "a + b", "subgroupAdd")


def product(type_: str) -> Monoid:
    """Product."""
    return Monoid(f"prod_{type_}", (("v", type_),), _ONE[type_], "a * b")


ANY = Monoid("any", (("v", "u32"),), "0u", "a | b", "subgroupOr")
ALL = Monoid("all", (("v", "u32"),), "1u", "a & b", "subgroupAnd")
# Rounding may leave a small negative sum of squares. By its bits, since select(x, 0.0, x < 0.0) gave 0 for NaN on a GPU.
NOT_NEGATIVE = "fn not_negative(x: f32) -> f32 { let b = bitcast<u32>(x); return select(x, 0.0, b > 0x80000000u && b <= 0xff800000u); }\n"
# Chan's combination of counts, means and sums of squared deviations; symmetric in a and b so that all lanes agree.
MOMENTS = Monoid(
    "moments",
    (("n", "f32"), ("mean", "f32"), ("m2", "f32")),
    "Moments(0.0, 0.0, 0.0)",
    "let n = a.n + b.n; let k = 1.0 / max(n, 1.0); let d = b.mean - a.mean; "
    "return Moments(n, a.mean * (a.n * k) + b.mean * (b.n * k), a.m2 + b.m2 + d * d * (a.n * b.n * k));",
    struct="Moments",
    extra=NOT_NEGATIVE,
)
# The same with means counted from `near`, a value near all elements of the reduction, so that large means cost no digits.
REFERRED = Monoid(
    "referred",
    (("n", "f32"), ("mean", "f32"), ("m2", "f32"), ("near", "f32")),
    "Referred(0.0, 0.0, 0.0, 0.0)",
    "let near = select(b.near, a.near, a.n > 0.0); let mean = select(b.mean + (b.near - near), 0.0, b.n == 0.0); "
    "let n = a.n + b.n; let k = 1.0 / max(n, 1.0); let d = mean - a.mean; "
    "return Referred(n, a.mean * (a.n * k) + mean * (b.n * k), a.m2 + b.m2 + d * d * (a.n * b.n * k), near);",
    struct="Referred",
    extra=NOT_NEGATIVE,
)
SOFTMAX = Monoid(
    "softmax",
    (("m", "f32"), ("s", "f32")),
    f"Softmax({HUGE}, 0.0)",
    "let m = max(a.m, b.m); return Softmax(m, a.s * exp(a.m - m) + b.s * exp(b.m - m));",
    struct="Softmax",
)


@dataclass(frozen=True)
class Team:
    """The invocations that share a row. `form`: lane, subgroup, cluster, group or column; `width` its invocations; `workgroup` all.

    A cluster is a power of two of neighbouring lanes, at most a subgroup: several short rows share a workgroup.
    In a column the invocations of a row are `rows` apart, so that neighbours work on neighbouring rows: `merged` brings theirs together.

    `size` is the known subgroup size, or 0 to read it at run time (`subgroup_size`). `subgroups` says whether the device
    has subgroup functions.
    """

    form: str
    width: int
    workgroup: int
    size: int = 0
    subgroups: bool = True

    @property
    def rows(self) -> int:
        """Rows a workgroup works on."""
        return self.workgroup // self.width

    def builtins(self) -> str:
        """Entry point arguments."""
        subgroup = ", @builtin(subgroup_invocation_id) lane: u32"
        if self.form == "cluster":
            return "@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32"
        if self.form == "subgroup":
            return "@builtin(workgroup_id) group: vec3<u32>, @builtin(subgroup_id) sid: u32" + subgroup
        tail = subgroup + ", @builtin(subgroup_size) size: u32" if self.form == "group" and self.subgroups else ""
        return "@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32" + tail

    def place(self) -> tuple[str, str]:
        """(number of the row within the workgroup, number of the invocation within the team)."""
        cluster = (f"thread / {self.width}u", f"thread % {self.width}u")
        column = (f"thread % {self.rows}u", f"thread / {self.rows}u")
        forms = {"lane": ("thread", "0u"), "cluster": cluster, "subgroup": ("sid", "lane"), "group": ("0u", "thread"), "column": column}
        return forms[self.form]

    def bring(self, monoid: Monoid, use: int, value: str) -> str:
        """The text that merges `value` over the team; `use` numbers the call (each has its own workgroup memory)."""
        if self.form == "lane":
            return value
        if self.form in ("subgroup", "cluster"):
            return f"lanes_{monoid.name}({value})"
        return f"team_{use}({value}, thread{', lane, size' if self.subgroups else ''})"

    def functions(self, monoid: Monoid, use: int, first: bool) -> str:
        """WGSL functions that `bring` calls; `first`: this monoid was not seen before in the source."""
        out = monoid.declarations() if first else ""
        if self.form in ("lane", "column"):
            return out
        if self.form in ("subgroup", "cluster") or self.subgroups:
            out += self._lanes(monoid) if first else ""
        return out + (self._exchange(monoid, use) if self.form == "group" else "")

    def memory(self, monoid: Monoid, count: int) -> str:
        """The workgroup memory by which a column merges `count` values at a time."""
        return "".join(f"var<workgroup> shared_{p}: array<{t}, {self.workgroup * count}>;\n" for p, t in monoid.parts)

    def merged(self, monoid: Monoid, names: Sequence[str]) -> str:
        """Statements after which the variables `names` hold what their column has, in its first invocation. All invocations
        must come by."""
        halves = "".join(
            f"{name} = merge_{monoid.name}({name}, {self._other(monoid, i)}); {self._put(monoid, i, name)}" for i, name in enumerate(names)
        )
        return (
            f"workgroupBarrier();\n{''.join(self._put(monoid, i, name) for i, name in enumerate(names))}\n"
            f"for (var h = {self.width // 2}u; h > 0u; h = h >> 1u) {{\n  workgroupBarrier();\n"
            f"  if (thread < h * {self.rows}u) {{ {halves}}}\n}}\n"
        )

    def _put(self, monoid: Monoid, i: int, name: str) -> str:
        at = f"thread + {i * self.workgroup}u"
        return "".join(f"shared_{p}[{at}] = {monoid.field(name, p)}; " for p, _ in monoid.parts)

    def _other(self, monoid: Monoid, i: int) -> str:
        return monoid.make(*(f"shared_{p}[thread + h * {self.rows}u + {i * self.workgroup}u]" for p, _ in monoid.parts))

    def _lanes(self, m: Monoid) -> str:
        sized = self.form in ("subgroup", "cluster")  # whole subgroups are teams on software Vulkan, whose subgroupAdd goes lane by lane
        head = f"fn lanes_{m.name}(v: {m.type}{'' if sized else ', size: u32'}) -> {m.type} {{ "
        if m.builtin and not sized:  # takes active invocations only, so a workgroup narrower than a subgroup is right too
            return f"{head}return {m.builtin}(v); }}\n"
        other = m.make(*(f"subgroupShuffleXor({m.field('a', p)}, {{}})" for p, _ in m.parts))
        step = f"a = merge_{m.name}(a, {other}); "
        if sized:
            steps = "".join(step.replace("{}", f"{1 << i}u") for i in range(self.width.bit_length() - 1))
            return f"{head}var a = v; {steps}return a; }}\n"
        most = f"min(size, {self.width}u)"
        return f"{head}var a = v; for (var h = 1u; h < {most}; h = h << 1u) {{ {step.replace('{}', 'h')}}} return a; }}\n"

    def _exchange(self, m: Monoid, use: int) -> str:
        names = [f"shared_{use}_{p}" for p, _ in m.parts]
        entries = max(self.width // 4, 1) if self.subgroups else self.width
        out = "".join(f"var<workgroup> {n}: array<{t}, {entries}>;\n" for n, (_, t) in zip(names, m.parts, strict=True))
        put = "".join(f"{n}[{{}}] = {m.field('a', p)}; " for n, (p, _) in zip(names, m.parts, strict=True))
        get = m.make(*(f"{n}[{{}}]" for n in names))
        if self.subgroups:
            if m.builtin:  # every subgroup brings the parts together again, a lane each; more parts than lanes in several turns
                merging = (
                    f"  a = {m.identity};\n  let parts = max({self.width}u / size, 1u);\n"
                    f"  if (lane < parts) {{ a = {get.replace('{}', 'lane')}; }}\n"
                    f"  for (var i = size; i < parts; i = i + size) {{\n"
                    f"    if (i + lane < parts) {{ a = merge_{m.name}(a, {get.replace('{}', 'i + lane')}); }}\n  }}\n"
                    f"  return lanes_{m.name}(a, size);\n"
                )
            else:
                merging = (
                    f"  a = {get.replace('{}', '0')};\n  let parts = {self.width}u / size;\n"
                    f"  for (var i = 1u; i < parts; i = i + 1u) {{ a = merge_{m.name}(a, {get.replace('{}', 'i')}); }}\n  return a;\n"
                )
            return out + (
                f"fn team_{use}(v: {m.type}, thread: u32, lane: u32, size: u32) -> {m.type} {{\n"
                f"  var a = lanes_{m.name}(v, size);\n"
                f"  if (lane == 0u) {{ {put.replace('{}', 'thread / size')}}}\n  workgroupBarrier();\n{merging}}}\n"
            )
        return out + (
            f"fn team_{use}(v: {m.type}, thread: u32) -> {m.type} {{\n  var a = v;\n  {put.replace('{}', 'thread')}\n"
            f"  for (var h = {self.width // 2}u; h > 0u; h = h >> 1u) {{\n    workgroupBarrier();\n"
            f"    if (thread < h) {{ a = merge_{m.name}(a, {get.replace('{}', 'thread + h')}); {put.replace('{}', 'thread')}}}\n  }}\n"
            f"  workgroupBarrier();\n  return {get.replace('{}', '0')};\n}}\n"
        )


def tree(values: list[str], sign: str = "+") -> str:
    """A sum (or product) taken pairwise."""
    while len(values) > 1:
        values = [f"({a} {sign} {b})" for a, b in zip(values[::2], values[1::2], strict=False)] + values[len(values) // 2 * 2 :]
    return values[0]
