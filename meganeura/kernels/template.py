"""WGSL text that every kernel shares: header, bindings, uniforms, conversions between dtypes, indexing, prelude, status.

In: dtypes, names and sizes. Out: pieces of WGSL and the bytes that go with them. Knows no op and no device.
Values in kernels have one of four WGSL types: f32, i32, u32, bool (dtype.value). Elements in storage have the
dtype's storage type; `load` and `store` go between the two. Names in generated code: `p` the parameters,
`s` the scalars, `group` the folded workgroup number, `local` the invocation in it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from importlib.resources import files

from .. import dtype as D
from ..dtype import DType
from ..errors import DeviceError, DTypeError
from ..storage import Layout
from .kernel import Call, Profile

FOLD = 32768  # workgroups in x once a grid is folded
WORKGROUP = 256  # invocations of kernels that have no reason for another number
LANES = "xyzw"
PACK = {"f32": "f", "i32": "i", "u32": "I"}

Window = tuple[tuple[int, int], ...]

# --- header and interface -----------------------------------------------------------------------------------------


def header(profile: Profile, dtypes: Iterable[DType] = (), subgroups: bool = False) -> str:
    """The enable directives that a kernel over these dtypes needs. Raises DTypeError for float16 without device support."""
    out = ""
    if any(d.storage == "f16" for d in dtypes):
        if not profile.f16:
            raise DTypeError("float16 tensors need a device with the shader-f16 feature; use float32 here")
        out += "enable f16;\n"
    if subgroups and profile.backend == "dawn":  # naga knows them without the directive and rejects it
        out += "enable subgroups;\n"
    return out


def element(dtype: DType, width: int = 1) -> str:
    """The WGSL type of one array element in storage: f32, vec4<f32>, f16..."""
    return dtype.storage if width == 1 else f"vec{width}<{dtype.storage}>"


def storage(binding: int, name: str, type_: str, access: str) -> str:
    """Declaration of a storage array at group 0."""
    return f"@group(0) @binding({binding}) var<storage, {access}> {name}: array<{type_}>;\n"


def uniform(binding: int, fields: Sequence[str]) -> str:
    """Declaration of `p`, the parameters: u32 fields in order, matched by `pack`."""
    body = ", ".join(f"{f}: u32" for f in fields)
    return f"struct Params {{ {body} }};\n@group(0) @binding({binding}) var<uniform> p: Params;\n"


def pack(values: Sequence[int]) -> bytes:
    """Parameter bytes for `uniform`: little-endian u32 words, padded to 16 bytes. Negative values wrap."""
    words = [v & 0xFFFFFFFF for v in values]
    return struct.pack(f"<{len(words)}I", *words).ljust(-(-len(words) // 4) * 16, b"\0")


def identifier(name: str) -> str:
    """A WGSL name for an input, scalar or statement; prefixed, since many argument names are reserved in WGSL."""
    return "v_" + name.replace(".", "_")


def scalar_block(scalars: Sequence[tuple[str, str]], report: bool = False) -> str:
    """Declaration of `s`, the scalars at group 1: (name, type) in order, then `dispatch` for status_report."""
    fields = [f"{identifier(n)}: {t}" for n, t in scalars] + (["dispatch: u32"] if report else [])
    if not fields:
        return ""
    return f"struct Scalars {{ {', '.join(fields)} }};\n@group(1) @binding(0) var<uniform> s: Scalars;\n"


def used_scalars(call: Call, names: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """The call's scalars that are among `names`, in the call's order."""
    wanted = set(names)
    return tuple(entry for entry in call.scalars if entry[0] in wanted)


def scalar_entries(call: Call, scalars: Sequence[tuple[str, str]], report: bool = False) -> tuple[tuple[int, str], ...]:
    """Launch.scalars that fill `scalar_block(scalars, report)`."""
    where = {name: i for i, (name, _) in enumerate(call.scalars)}
    entries = tuple((where[name], PACK[t]) for name, t in scalars)
    return (*entries, (-1, "I")) if report else entries


def status(binding: int) -> str:
    """The status words and `status_report(value, limit)`: the first report since the last sync wins.

    Word 0 is the dispatch's number (never 0), words 1 and 2 the bits of value and limit. Needs scalar_block(report=True).
    """
    return f"""@group(0) @binding({binding}) var<storage, read_write> status_words: array<atomic<u32>>;
fn status_report(value: i32, limit: i32) {{
  loop {{
    let r = atomicCompareExchangeWeak(&status_words[0], 0u, s.dispatch);
    if (r.exchanged) {{
      atomicStore(&status_words[1], bitcast<u32>(value));
      atomicStore(&status_words[2], bitcast<u32>(limit));
      break;
    }}
    if (r.old_value != 0u) {{ break; }}
  }}
}}
"""


# --- grid and invocation ------------------------------------------------------------------------------------------


def grid(groups: int) -> tuple[int, int, int]:
    """A grid of at least `groups` workgroups, folded into y above 65,535. `entry` computes the folded number."""
    return (groups, 1, 1) if groups <= 65535 else (FOLD, -(-groups // FOLD), 1)


def lanes(profile: Profile) -> int:
    """Invocations that a software device runs as one vector, 0 if kernels should index by local_invocation_index."""
    known = profile.family == "cpu" and profile.subgroups and profile.subgroup_size in (4, 8, 16, 32)
    return profile.subgroup_size if known else 0


def entry(profile: Profile, workgroup: int = WORKGROUP) -> str:
    """Opens `main`: `group`, the folded workgroup number, and `local`, the invocation, both u32.

    Software Vulkan computes local_invocation_index by divisions; its subgroup number and lane are free.
    """
    start = f"@compute @workgroup_size({workgroup}) fn main(@builtin(workgroup_id) w: vec3<u32>, "
    fold = f"  let group = w.y * {FOLD}u + w.x;\n"
    n = lanes(profile)
    if n:
        args = "@builtin(subgroup_id) sid: u32, @builtin(subgroup_invocation_id) lane: u32"
        return f"{start}{args}) {{\n{fold}  let local = sid * {n}u + lane;\n"
    return f"{start}@builtin(local_invocation_index) local: u32) {{\n{fold}"


MAX_RECIPROCAL = 1 << 21  # numbers below which `reciprocal` divides exactly


def reciprocal(size: int) -> int:
    """Bits of 1 / size, a little too large, so that floor(i * it) is i // size for i < MAX_RECIPROCAL.

    The product lies above i / size by at most i / size * 2^-21.4, less than the 1 / size to the next whole number.
    """
    return int(struct.unpack("<I", struct.pack("<f", (1 + 2**-22) / size))[0])


def decompose(index: str, sizes: Sequence[str], name: str = "c", reciprocals: Sequence[str] = ()) -> str:
    """Statements that split the row-major number `index` into {name}0..{name}k-1 over `sizes` (the first is not needed).

    With `reciprocals` (bits, one a size) it multiplies: software Vulkan divides integers lane by lane.
    """
    out, rest = "", index
    for d in range(len(sizes) - 1, 0, -1):
        quotient = f"u32(f32({rest}) * bitcast<f32>({reciprocals[d]}))" if reciprocals else f"({rest}) / {sizes[d]}"
        out += f"let {name}{d}q = {quotient}; let {name}{d} = ({rest}) - {name}{d}q * {sizes[d]}; "
        rest = f"{name}{d}q"
    return f"{out}let {name}0 = {rest};" if sizes else out


# --- conversions --------------------------------------------------------------------------------------------------


def load(stored: DType, code: str, to: DType | None = None) -> str:
    """The WGSL value of the storage element `code`, converted to the dtype `to` (default: as it is)."""
    if stored.kind == "b":
        code = f"({code} != 0u)"
    elif stored.storage == "f16":
        code = f"f32({code})"
    return code if to is None else convert(stored.value, to, code, fits=_fits(stored, to))


def store(type_: str, code: str, to: DType) -> str:
    """The storage element of dtype `to` for a WGSL value `code` of type f32, i32, u32 or bool."""
    code = convert(type_, to, code)
    if to.kind == "b":
        return f"select(0u, 1u, {code})"
    if to.storage == "f16":
        return f"f16({code})"
    return f"round_bf16({code})" if to is D.bfloat16 else code


def convert(type_: str, to: DType, code: str, fits: bool = False) -> str:
    """A value of WGSL type `type_` as PyTorch converts it to `to`: truncation to integers, wrap to 8 bits, NaN is true."""
    if to.kind == "b":
        return {"bool": code, "f32": f"truth({code})"}.get(type_, f"({code} != {type_}(0))")
    if to.kind == "f":
        return code if type_ == "f32" else f"f32({code})"
    if to.value == "u32" and type_ == "f32":
        code = f"f32_to_u32({code})"
    elif type_ != to.value:
        code = f"{to.value}({code})"
    if to.bits == 8 and type_ != "bool" and not fits:
        return f"({code} & 0xffu)" if to.kind == "u" else f"wrap_i8({code})"
    return code


def _fits(stored: DType, to: DType) -> bool:
    return stored is to or stored.kind == "b"


# --- expressions --------------------------------------------------------------------------------------------------

_BRACED = re.compile(r"\{([A-Za-z_][A-Za-z_0-9]*(?:\.\d+)?)\}")
_CALLED = re.compile(r"\b([A-Za-z_][A-Za-z_0-9]*)\s*\(")


@lru_cache(4096)
def names_in(expr: str) -> tuple[str, ...]:
    """Distinct names in braces, in order of appearance."""
    return tuple(dict.fromkeys(_BRACED.findall(expr)))


def substitute(expr: str, names: Mapping[str, str]) -> str:
    """The expression with every name in braces replaced. KeyError for a name that `names` lacks."""
    return _BRACED.sub(lambda m: names[m.group(1)], expr)


_TOKEN = re.compile(
    r"\s*(?:(bitcast)<(\w+)>|([A-Za-z_]\w*)"
    r"|(0[xX][0-9a-fA-F]+[iu]?|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[iufh]?)|(&&|\|\||==|!=|<=|>=|<<|>>|\S))"
)
_FIRST_ARGUMENT = (
    "abs min max clamp floor ceil round trunc fract exp exp2 log log2 sqrt inverseSqrt sign sin cos tan pow select fma saturate "
    "sinh cosh tanh asin acos atan atan2 asinh acosh atanh countOneBits reverseBits subgroupBroadcast subgroupShuffle"
)
_SAME = frozenset(_FIRST_ARGUMENT.split(" "))
_COMPARISONS = frozenset(("&&", "||", "==", "!=", "<=", ">=", "<", ">"))


def type_of(expr: str, types: Mapping[str, str]) -> str:
    """The WGSL type (f32, i32, u32, bool) of an expression whose names in braces have `types`. Abstract integers are i32."""
    tokens = list(_tokens(_BRACED.sub(lambda m: f" {identifier(m.group(1))} ", expr)))
    return _type(tokens, {identifier(k): v for k, v in types.items()}) or "i32"


def _tokens(text: str) -> Iterable[str]:
    for m in _TOKEN.finditer(text):
        bitcast, target, word, number, symbol = m.groups()
        yield target if bitcast else word or number or symbol or ""


def _type(tokens: Sequence[str], types: Mapping[str, str]) -> str:
    """Type of a token list; '' for an abstract integer. A comparison outside parentheses makes it bool, else the first
    operand with a concrete type decides."""
    depth, found, i = 0, "", 0
    for t in tokens:
        depth += (t in "([") - (t in ")]")
        if depth == 0 and t in _COMPARISONS:
            return "bool"
    while i < len(tokens) and not found:
        end = i + 1
        if i + 1 < len(tokens) and _WORD.match(tokens[i]) and tokens[i + 1] == "(":
            end = _closing(tokens, i + 1)
            found = _call_type(tokens[i], tokens[i + 2 : end - 1], types)
        elif tokens[i] == "(":
            end = _closing(tokens, i)
            found = _type(tokens[i + 1 : end - 1], types)
        elif tokens[i] == "[":
            end = _closing(tokens, i)
        else:
            found = _atom_type(tokens[i], types)
        i = end
    return found


_WORD = re.compile(r"[A-Za-z_]")


def _closing(tokens: Sequence[str], start: int) -> int:
    """Position after the bracket that closes tokens[start]."""
    depth = 0
    for i in range(start, len(tokens)):
        depth += (tokens[i] in "([") - (tokens[i] in ")]")
        if depth == 0:
            return i + 1
    return len(tokens)


def _arguments(tokens: Sequence[str]) -> list[list[str]]:
    """The tokens of an argument list, an argument each."""
    out: list[list[str]] = [[]]
    depth = 0
    for t in tokens:
        depth += (t in "([") - (t in ")]")
        if t == "," and depth == 0:
            out.append([])
        else:
            out[-1].append(t)
    return out


def _call_type(name: str, args: Sequence[str], types: Mapping[str, str]) -> str:
    if name in ("f32", "i32", "u32", "bool"):
        return name
    if name in _SAME:
        values = _arguments(args)[: 2 if name == "select" else None]
        return next((t for t in (_type(v, types) for v in values) if t), "")
    known = returns(name)
    return {"vec4<u32>": "u32", "vec2<f32>": "f32"}.get(known, known)


def _atom_type(token: str, types: Mapping[str, str]) -> str:
    if token in types:
        return types[token]
    if token in ("true", "false"):
        return "bool"
    if token[:1].isdigit() or token[:1] == ".":
        if token[-1] in "iu":
            return {"i": "i32", "u": "u32"}[token[-1]]
        return "f32" if not token.startswith("0x") and re.search(r"[.eEf]", token) else ""
    return ""


# --- prelude ------------------------------------------------------------------------------------------------------


@cache
def _prelude() -> dict[str, str]:
    """Function name -> source text of both files of functions, in order."""
    written = "".join((files(__package__) / "wgsl" / name).read_text() for name in ("prelude.wgsl", "special.wgsl"))
    text = re.sub(r"^\s*//.*\n", "", written, flags=re.MULTILINE)
    sources = re.split(r"^(?=fn )", text, flags=re.MULTILINE)[1:]
    return {source[3 : source.index("(")]: source.rstrip() + "\n" for source in sources}


@cache
def returns(name: str) -> str:
    """The return type of a prelude function, '' if there is no such function."""
    m = re.search(r"->\s*([^{]+?)\s*\{", _prelude().get(name, ""))
    return m.group(1) if m else ""


@lru_cache(1024)
def _needed(called: frozenset[str]) -> str:
    table, todo, seen = _prelude(), list(called), set()
    while todo:
        name = todo.pop()
        if name in table and name not in seen:
            seen.add(name)
            todo += _CALLED.findall(table[name])
    return "".join(source for name, source in table.items() if name in seen)


def prelude(code: str) -> str:
    """The functions of wgsl/prelude.wgsl and wgsl/special.wgsl that `code` calls, and those they call."""
    return _needed(frozenset(_CALLED.findall(code)))


# --- limits -------------------------------------------------------------------------------------------------------


def check_bindings(count: int, profile: Profile, what: str) -> None:
    """Raises DeviceError when a kernel needs more storage buffers than a shader stage may bind."""
    if count > profile.max_storage_buffers:
        raise DeviceError(f"{what} binds {count} storage buffers, but this device allows {profile.max_storage_buffers} a shader stage")


def fits(layouts: Iterable[Layout], profile: Profile) -> bool:
    """Whether every operand lies inside the largest binding, counted from the start of its storage."""
    return all((layout.span()[1] + 1) * layout.dtype.itemsize <= profile.max_binding for layout in layouts)


def large(call: Call, profile: Profile) -> bool:
    """Whether some operand of a call reaches beyond the largest binding, so that kernels see parts of it."""
    return not fits((x for x in (*call.inputs, *call.outputs) if x is not None), profile)


def windows(groups: Sequence[Sequence[Layout]], profile: Profile, what: str, narrow: bool = False) -> tuple[Window | None, tuple[int, ...]]:
    """Launch.ranges for bindings that each hold some layouts, and the elements to take off the offsets of each.

    (None, zeros) while everything fits from offset 0; otherwise, or when `narrow` says that a storage is known to be too
    large to bind whole, each binding is narrowed to what its layouts touch.
    Raises DeviceError with bytes and limit where that is still too much.
    """
    if not narrow and all(fits(g, profile) for g in groups):
        return None, (0,) * len(groups)
    ranges, shifts = [], []
    for g in groups:
        size = g[0].dtype.itemsize
        start = min(x.span()[0] for x in g) * size // 256 * 256
        end = -(-(max(x.span()[1] for x in g) + 1) * size // 16) * 16
        if end - start > profile.max_binding:
            raise DeviceError(f"{what} must bind {end - start} bytes of one tensor ({g[0]!r}), but the limit is {profile.max_binding}")
        ranges.append((start, end - start))
        shifts.append(start // size)
    return tuple(ranges), tuple(shifts)


def exchanged(col: str, turn: str, mask: int, quads: int) -> str:
    """col ^ turn, where col < quads and turn <= mask, so that Tint sees it to be less than quads and does not clamp. `quads` is a
    power of two or a multiple of mask + 1, itself a power of two."""
    assert quads & (quads - 1) == 0 or quads % (mask + 1) == 0, (quads, mask)
    if not mask:
        return col
    if quads & (quads - 1) == 0:
        return f"(({col} ^ {turn}) % {quads}u)"
    return f"({col} / {mask + 1}u * {mask + 1}u + ({col} ^ {turn}) % {mask + 1}u)"
