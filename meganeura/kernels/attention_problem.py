"""What the attention kernels share: the problem of a call, its parameters, and the text that loads, masks and stores.

In: a Call of Kernel 'attention' or 'attention_grad'. Out: sizes and operands by name, and pieces of WGSL. Scores are kept in
units of log(2), so that weights are exp2 of a difference: masks are multiplied by log2(e) when they are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..dtype import DType
from ..shape import broadcast_strides
from ..storage import Layout
from . import template as T
from .kernel import Call, Profile

LOG2E, LN2 = "1.4426950408889634", "0.6931471805599453"
LOWEST = "-3.4028234663852886e38"  # where running maxima start, so that a row without keys has weights 0 and not NaN


@dataclass(frozen=True, slots=True)
class Source:
    """An operand [B, H, L, E]: its number in the call (or TEMP(i)) and how it lies there."""

    number: int
    layout: Layout

    def wide(self) -> bool:
        """Whether rows can be read as vec4s."""
        x = self.layout
        whole = x.strides[3] == 1 or x.shape[3] == 1
        return whole and x.shape[3] % 4 == 0 and not (x.offset | x.strides[0] | x.strides[1] | x.strides[2]) & 3

    def words(self, wide: bool) -> list[int]:
        """Offset and strides of batch, head, row and column, in vec4s if wide."""
        x = self.layout
        steps = [x.offset, *(0 if n == 1 else s for n, s in zip(x.shape[:3], x.strides[:3], strict=True))]
        return [*(s // 4 for s in steps), 1] if wide else [*steps, x.strides[3]]


@dataclass(frozen=True, slots=True)
class Rules:
    """Which keys a query sees, as far as it changes the text. mask: its dtype, and whether it is 'row' (the same for all
    queries), 'quad' (four neighbours are one vec4) or 'each'. undefined: a row without keys is NaN, not 0."""

    mask: DType | None
    form: str
    position: bool
    causal: bool
    window: bool
    undefined: bool = False

    @property
    def blank(self) -> str:
        """What a row without keys is multiplied by."""
        return "nan()" if self.undefined else "0.0"


@dataclass(frozen=True, slots=True)
class Problem:
    """Sizes and operands of a call: q [B, heads, rows, size], k [B, kv, keys, size], v [B, kv, keys, width]."""

    call: Call
    q: Source
    k: Source
    v: Source
    mask: Source | None
    position: Source | None
    batch: int
    heads: int
    kv: int
    rows: int
    keys: int
    size: int
    width: int

    @property
    def group(self) -> int:
        """Query heads that share a head of keys."""
        return self.heads // self.kv

    @property
    def rules(self) -> Rules:
        attrs = self.call.attrs
        dtype = None if self.mask is None else self.mask.layout.dtype
        undefined = attrs.get("undefined", False)
        return Rules(dtype, self._mask_form(), self.position is not None, attrs["causal"], attrs["window"] > 0, undefined)

    def _mask_form(self) -> str:
        if self.mask is None:
            return ""
        x = self.mask.layout
        if x.strides[2] == 0 or x.shape[2] == 1:
            return "row"
        whole = x.strides[3] == 1 and not (x.offset | x.strides[0] | x.strides[1] | x.strides[2]) & 3
        return "quad" if whole else "each"

    def words(self) -> list[int]:
        """Parameters of RULES and SIZES."""
        form = self.rules.form
        mask = self.mask.words(form == "quad") if self.mask else [0] * 5
        step = 0
        if self.position is not None and self.position.layout.shape:
            step = 0 if self.position.layout.shape[0] == 1 else self.position.layout.strides[0]
        at = self.position.layout.offset if self.position else 0
        rules = [*mask, at, step, self.call.attrs["offset"], self.call.attrs["window"]]
        return [self.rows, self.keys, self.size, self.width, self.heads, self.group, *rules]

    def scalars(self) -> tuple[tuple[int, str], ...]:
        """Launch.scalars of a kernel that reads the scale."""
        return T.scalar_entries(self.call, (("scale", "f32"),))


FIELDS = (
    "rows", "keys", "size", "width", "heads", "group",
    "m_at", "m_b", "m_h", "m_r", "m_c", "pos_at", "pos_step", "offset", "window",
)  # fmt: skip


def steps(name: str) -> list[str]:
    """Fields of Source.words."""
    return [f"{name}_{x}" for x in ("at", "b", "h", "r", "c")]


def find(call: Call) -> tuple[Problem, Mapping[str, Source]]:
    """The problem of a call, and all its operands by name (outputs 'out.0', ...)."""
    found = {n: Source(i, x) for i, (n, x) in enumerate(zip(call.names, call.inputs, strict=True)) if x is not None}
    found |= {f"out.{j}": Source(len(call.inputs) + j, x) for j, x in enumerate(call.outputs)}
    q, k, v = (found[f"qkv.{i}"] for i in range(3))
    (batch, heads, rows, size), (_, kv, keys, width) = q.layout.shape, v.layout.shape
    mask = found.get("mask")
    if mask is not None:
        shape, x = (batch, heads, rows, keys), mask.layout
        mask = Source(mask.number, Layout(x.dtype, shape, broadcast_strides(x.shape, x.strides, shape), x.offset))
    return Problem(call, q, k, v, mask, found.get("position"), batch, heads, kv, rows, keys, size, width), found


# --- text -----------------------------------------------------------------------------------------------------------


def arrays(declared: Sequence[tuple[str, str, str]]) -> str:
    """Storage arrays (name, element type, access) from binding 0 on."""
    return "".join(T.storage(i, *entry) for i, entry in enumerate(declared))


def rules_arrays(rules: Rules) -> list[tuple[str, str, str]]:
    """Arrays that `rules_text` reads."""
    out = []
    if rules.mask is not None:
        out.append(("mask", T.element(rules.mask, 4 if rules.form == "quad" else 1), "read"))
    return [*out, ("pos", "i32", "read")] if rules.position else out


def rules_numbers(p: Problem) -> list[int]:
    """Bindings of `rules_arrays`."""
    return [x.number for x in (p.mask, p.position) if x is not None]


def reader(name: str, dtype: DType, wide: bool, exact: bool, limit: str) -> str:
    """`{name}_quad(at, c)`: four elements from column 4c on of the row at `at`, zeros past the row's end (p.{limit})."""
    head = f"fn {name}_quad(at: u32, c: u32) -> vec4<f32> {{ "
    if wide:
        guard = "" if exact else f"if (c * 4u >= p.{limit}) {{ return vec4<f32>(); }} "
        return f"{head}{guard}return vec4<f32>({name}[at + c]); }}\n"
    parts = [f"select(0.0, f32({name}[at + min(c * 4u + {j}u, p.{limit} - 1u) * p.{name}_c]), c * 4u + {j}u < p.{limit})" for j in range(4)]
    return f"{head}return vec4<f32>({', '.join(parts)}); }}\n"


def writer(name: str, dtype: DType, wide: bool, exact: bool, limit: str) -> str:
    """`{name}_put(at, c, x)`: stores four elements from column 4c on of the row at `at`, as far as the row goes."""
    head = f"fn {name}_put(at: u32, c: u32, value: vec4<f32>) {{ "
    if wide:
        text = (
            "value"
            if dtype.name == "float32"
            else f"{T.element(dtype, 4)}({', '.join(T.store('f32', f'value.{c}', dtype) for c in T.LANES)})"
        )
        store = f"{name}[at + c] = {text};"
        return f"{head}{store} }}\n" if exact else f"{head}if (c * 4u < p.{limit}) {{ {store} }} }}\n"
    parts = [
        f"if (c * 4u + {j}u < p.{limit}) {{ {name}[at + c * 4u + {j}u] = {T.store('f32', f'value.{lane}', dtype)}; }}"
        for j, lane in enumerate(T.LANES)
    ]
    return f"{head}{' '.join(parts)} }}\n"


def rules_text(rules: Rules) -> str:
    """`start(b)`: the place of query 0. `mask_quad(at, col)`: what a mask row adds. `seen(x, add, place, col)`: scores of
    four keys from `col` on, -inf for those out of sight. `begin(low)`, `end(high)`: keys that places low to high may see."""
    where = " + pos[p.pos_at + b * p.pos_step]" if rules.position else ""
    out = f"fn start(b: u32) -> i32 {{ return bitcast<i32>(p.offset){where}; }}\n"
    if rules.mask is not None:
        out += _mask(rules)
    ok = "c < vec4<i32>(i32(p.keys))"
    if rules.causal:
        ok = f"({ok}) & (c <= vec4<i32>(place))"
    if rules.window:
        ok = f"({ok}) & (c > vec4<i32>(place - i32(p.window)))"
        if not rules.causal:
            ok = f"({ok}) & (c < vec4<i32>(place + i32(p.window)))"
    out += "fn seen(x: vec4<f32>, place: i32, col: u32) -> vec4<f32> {\n"
    out += f"  let c = vec4<i32>(i32(col)) + vec4<i32>(0, 1, 2, 3);\n  return select(vec4<f32>(-inf()), x, {ok});\n}}\n"
    low = "u32(max(low - i32(p.window) + 1, 0))" if rules.window else "0u"
    high = "high + 1" if rules.causal else "high + i32(p.window)"
    last = f"u32(clamp({high}, 0, i32(p.keys)))" if rules.causal or rules.window else "p.keys"
    return out + f"fn begin(low: i32) -> u32 {{ return {low}; }}\nfn end(high: i32) -> u32 {{ return {last}; }}\n"


def _mask(rules: Rules) -> str:
    assert rules.mask is not None
    if rules.form == "quad":
        out = "let x = mask[at + col / 4u]; "
    else:
        parts = [f"mask[at + min(col + {j}u, p.keys - 1u) * p.m_c]" for j in range(4)]
        out = f"let x = vec4<{rules.mask.storage}>({', '.join(parts)}); "
    return f"fn mask_quad(at: u32, col: u32) -> vec4<f32> {{ {out}{mask_value(rules.mask)} }}\n"


def mask_value(mask: DType) -> str:
    """Statements that return what four mask elements x add. The least finite numbers stay finite: they stand for -inf in much code,
    but a row of them has equal weights."""
    if mask.kind == "b":
        return "return select(vec4<f32>(), vec4<f32>(-inf()), x == vec4<u32>());"
    lowest = f"vec4<f32>({LOWEST})"
    return f"let y = vec4<f32>(x); let z = y * {LOG2E}; return select(z, {lowest}, (z < {lowest}) & (y >= {lowest}));"


def mask_row(head: str, row: str) -> str:
    """Where a mask row starts, for a head (of the batch b) and a query."""
    return f"p.m_at + b * p.m_b + {head} * p.m_h + {row} * p.m_r"


def module(profile: Profile, code: str, arrays_text: str, fields: Sequence[str], binding: int, dtypes: Sequence[DType],
           subgroups: bool, scalars: bool = True) -> str:  # fmt: skip
    """A whole module around `code`."""
    out = T.header(profile, dtypes, subgroups)
    if subgroups and profile.backend == "dawn":  # whole clusters of lanes take each branch
        out += "diagnostic(off, subgroup_uniformity);\n"
    out += arrays_text + T.uniform(binding, fields)
    out += T.scalar_block((("scale", "f32"),)) if scalars else ""
    return out + T.prelude(code) + code
