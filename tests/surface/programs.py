"""Random programs of 3 to 8 steps over random tensors, each step a function that runs with torch or with meganeura alike."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

DTYPES = ("bool", "uint8", "int8", "int32", "int64", "float16", "float32")
SHAPES: tuple[tuple[int, ...], ...] = (
    (), (0,), (1,), (3,), (5,), (33,), (2, 3), (3, 1), (1, 4), (4, 6), (0, 3), (3, 0), (2, 3, 4), (1, 3, 1), (2, 2, 3, 2), (6, 8), (3, 130),
)  # fmt: skip
SCALARS: tuple[Any, ...] = (True, False, 0, 1, 2, 3, -2, 0.5, -1.5, 2.0)

Step = Callable[..., Any]  # (library, its functional module, tensors...) -> tensor


@dataclass
class Call:
    """One step: its text for messages, how many tensors it takes, and the function. `jumps`: not continuous, so that inputs
    must be equal in both libraries; `writes`: the first tensor is changed."""

    text: str
    count: int
    run: Step
    jumps: bool = False
    writes: bool = False


def array(rng: random.Random, dtype: str, shape: tuple[int, ...], special: bool = False) -> np.ndarray[Any, Any]:
    """Small values that float16 holds exactly; with `special`, NaN and infinities among them."""
    values = np.array([rng.randint(-8, 8) for _ in range(int(np.prod(shape)))], np.float64).reshape(shape)
    if dtype == "bool":
        return np.asarray(values > 0)
    if dtype == "uint8":
        return np.asarray(np.abs(values).astype(np.uint8))
    if dtype.startswith("int"):
        return values.astype(dtype)
    values = np.asarray(values / 4)
    if special and values.size:
        flat = values.reshape(-1)
        for v in (np.nan, np.inf, -np.inf):
            flat[rng.randrange(flat.size)] = v
    return values.astype(dtype)


def laid_out(rng: random.Random, x: Any) -> Any:
    """A view of a tensor, chosen at random: transposed, stepped, from an offset, expanded, or views of those."""
    for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
        kind = rng.choice(("t", "step", "offset", "expand", "none"))
        if kind == "t" and x.ndim >= 2:
            a, b = rng.sample(range(x.ndim), 2)
            x = x.transpose(a, b)
        elif kind == "step" and x.ndim:
            x = x[..., rng.choice((0, 1)) :: rng.choice((2, 3))]
        elif kind == "offset" and x.ndim:
            x = x[1:]
        elif kind == "expand" and x.ndim < 4:
            x = x.unsqueeze(0).expand(2, *x.shape)
        elif kind == "none":
            x = x[None]
    return x


# ---- steps ----

_UNARY = (
    "exp",
    "log",
    "tanh",
    "erf",
    "relu",
    "sigmoid",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "neg",
    "abs",
    "sin",
    "cos",
    "expm1",
    "log1p",
    "square",
    "clone",
)
_UNARY_JUMPS = ("sign", "floor", "ceil", "trunc", "isnan", "isinf", "isfinite", "logical_not", "bitwise_not")
_BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "pow")
_BINARY_JUMPS = (
    "floor_divide", "remainder", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "bitwise_and",
    "bitwise_or", "bitwise_xor",
)  # fmt: skip
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b, "//": lambda a, b: a // b,
    "%": lambda a, b: a % b, "**": lambda a, b: a**b, "<": lambda a, b: a < b, ">=": lambda a, b: a >= b, "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b, "&": lambda a, b: a & b, "|": lambda a, b: a | b, "^": lambda a, b: a ^ b,
}  # fmt: skip
_SMOOTH_OPERATORS = ("+", "-", "*", "/", "**")


def _unary(rng: random.Random) -> Call:
    name = rng.choice((*_UNARY, *_UNARY_JUMPS))
    return Call(name, 1, lambda lib, F, x: getattr(lib, name)(x), name in _UNARY_JUMPS)


def _functional(rng: random.Random) -> Call:
    name = rng.choice(("gelu", "silu", "softplus", "relu", "tanh_gelu"))
    if name == "tanh_gelu":
        return Call(name, 1, lambda lib, F, x: F.gelu(x, approximate="tanh"))
    return Call(name, 1, lambda lib, F, x: getattr(F, name)(x))


def _binary(rng: random.Random) -> Call:
    name = rng.choice((*_BINARY, *_BINARY_JUMPS))
    return Call(name, 2, lambda lib, F, x, y: getattr(lib, name)(x, y), name in _BINARY_JUMPS)


def _scalar(rng: random.Random) -> Call:
    symbol, value, left = rng.choice(tuple(_OPERATORS)), rng.choice(SCALARS), rng.random() < 0.3
    fn = _OPERATORS[symbol]
    jumps = symbol not in _SMOOTH_OPERATORS
    if left:
        return Call(f"{value} {symbol} x", 1, lambda lib, F, x: fn(value, x), jumps)
    return Call(f"x {symbol} {value}", 1, lambda lib, F, x: fn(x, value), jumps)


def _alpha(rng: random.Random) -> Call:
    value, name = rng.choice((2, -1, 0.5)), rng.choice(("add", "sub"))
    return Call(f"{name} alpha={value}", 2, lambda lib, F, x, y: getattr(x, name)(y, alpha=value))


def _divide(rng: random.Random) -> Call:
    mode = rng.choice((None, "floor", "trunc"))
    return Call(f"div {mode}", 2, lambda lib, F, x, y: lib.div(x, y, rounding_mode=mode), mode is not None)


def _where(rng: random.Random) -> Call:
    kind = rng.choice(("tensors", "left", "right"))
    value = rng.choice(SCALARS)
    if kind == "tensors":
        return Call("where", 3, lambda lib, F, c, x, y: lib.where(c > 0, x, y), True)
    if kind == "left":
        return Call(f"where {value}", 2, lambda lib, F, c, x: lib.where(c > 0, value, x), True)
    return Call(f"where other {value}", 2, lambda lib, F, c, x: lib.where(c > 0, x, value), True)


def _clamp(rng: random.Random) -> Call:
    low, high = rng.choice((None, -1, 0, 0.5)), rng.choice((None, 1, 2, 1.5))
    return Call(f"clamp {low} {high}", 1, lambda lib, F, x: x.clamp(low, high))


def _masked_fill(rng: random.Random) -> Call:
    value = rng.choice(SCALARS)
    return Call(f"masked_fill {value}", 2, lambda lib, F, x, m: x.masked_fill(m > 0, value), True)


def _dims(rng: random.Random) -> Any:
    return rng.choice((None, 0, -1, 1, 2, -2, (0,), (0, 1), (0, -1), (1, 2), ()))


def _reduce(rng: random.Random) -> Call:
    name = rng.choice(("sum", "mean", "amax", "amin", "any", "all", "var", "std"))
    dim, keep = _dims(rng), rng.random() < 0.4
    if dim is None and name in ("amax", "amin"):
        dim = ()
    if name in ("any", "all") and dim == ():  # torch leaves such a tensor as it is
        dim = None
    if name in ("var", "std") and dim == ():  # torch's gradient is wrong there
        dim = None
    correction = rng.choice((0, 1)) if name in ("var", "std") else None
    extra = {} if correction is None else {"correction": correction}
    jumps = name in ("any", "all", "amax", "amin")
    return Call(f"{name} dim={dim} {keep} {extra}", 1, lambda lib, F, x: getattr(lib, name)(x, dim=dim, keepdim=keep, **extra), jumps)


def _extreme(rng: random.Random) -> Call:
    name, dim, keep = rng.choice(("max", "min", "argmax", "argmin")), rng.choice((None, 0, -1, 1)), rng.random() < 0.4
    part = rng.choice((0, 1))
    if name.startswith("arg"):
        return Call(f"{name} {dim} {keep}", 1, lambda lib, F, x: getattr(x, name)(dim=dim, keepdim=keep), True)
    if dim is None:
        return Call(f"{name}()", 1, lambda lib, F, x: getattr(x, name)(), True)
    return Call(f"{name} {dim} {keep} [{part}]", 1, lambda lib, F, x: getattr(x, name)(dim, keepdim=keep)[part], True)


def _softmax(rng: random.Random) -> Call:
    name, dim = rng.choice(("softmax", "log_softmax")), rng.choice((0, -1, 1))
    return Call(f"{name} {dim}", 1, lambda lib, F, x: getattr(F, name)(x, dim))


def _norm(rng: random.Random) -> Call:
    name = rng.choice(("layer_norm", "rms_norm"))
    return Call(name, 1, lambda lib, F, x: getattr(F, name)(x, x.shape[-1:] or (1,), eps=1e-3))


def _matmul(rng: random.Random) -> Call:
    name = rng.choice(("matmul", "self", "linear", "mm", "bmm"))
    if name == "self":
        return Call("x @ x.mT", 1, lambda lib, F, x: x @ x.transpose(-1, -2))
    if name == "linear":
        return Call("linear", 2, lambda lib, F, x, w: F.linear(x, w))
    return Call(name, 2, lambda lib, F, x, y: getattr(lib, name)(x, y))


def _view(rng: random.Random) -> Call:
    a, b, n = rng.randint(-3, 2), rng.randint(-3, 2), rng.randint(1, 4)
    options: tuple[tuple[str, Step], ...] = (
        ("reshape -1", lambda lib, F, x: x.reshape(-1)),
        (f"reshape {n},-1", lambda lib, F, x: x.reshape(n, -1)),
        ("view -1", lambda lib, F, x: x.view(-1)),
        (f"transpose {a} {b}", lambda lib, F, x: x.transpose(a, b)),
        ("permute reversed", lambda lib, F, x: x.permute(*reversed(range(x.ndim)))),
        (f"squeeze {a}", lambda lib, F, x: x.squeeze(a)),
        ("squeeze", lambda lib, F, x: x.squeeze()),
        (f"unsqueeze {a}", lambda lib, F, x: x.unsqueeze(a)),
        ("expand", lambda lib, F, x: x.expand(2, *x.shape)),
        (f"expand -1 {n}", lambda lib, F, x: x.expand(-1, n)),
        ("flatten", lambda lib, F, x: x.flatten()),
        (f"flatten {a} {b}", lambda lib, F, x: x.flatten(a, b)),
        (f"narrow {a} {n}", lambda lib, F, x: x.narrow(a, 1, n)),
        (f"select {a} {b}", lambda lib, F, x: x.select(a, b)),
        (f"movedim {a} {b}", lambda lib, F, x: x.movedim(a, b)),
        (f"repeat {n}", lambda lib, F, x: x.repeat(n, 2)),
        (f"split {n}", lambda lib, F, x: x.split(n, a)[-1]),
        (f"chunk {n}", lambda lib, F, x: x.chunk(n, a)[0]),
        (f"unbind {a}", lambda lib, F, x: x.unbind(a)[0]),
        ("contiguous", lambda lib, F, x: x.contiguous()),
        ("detach", lambda lib, F, x: x.detach()),
        (f"pad {a} {n}", lambda lib, F, x: F.pad(x, (a, n))),
        (f"pad value {n}", lambda lib, F, x: F.pad(x, (n, 0, 0, 1), value=2.0)),
    )
    return Call(*_pick(rng, options))


def _pick(rng: random.Random, options: tuple[tuple[str, Step], ...]) -> tuple[str, int, Step]:
    text, fn = rng.choice(options)
    return text, 1, fn


def _index(rng: random.Random) -> Call:
    i, j, k = rng.randint(-4, 3), rng.randint(-2, 3), rng.randint(1, 3)
    listed = [rng.randint(-2, 2) for _ in range(rng.randint(0, 4))]
    keys: tuple[Any, ...] = (
        i, (i, j), slice(i, j), slice(None, None, k), (Ellipsis, i), (None, i), (slice(None), None), (Ellipsis, slice(j, None, k), None),
        (slice(None), i), listed, (slice(None), listed), (listed, i), (i, listed), (listed, slice(None), listed), (listed, listed), True,
        False, (), Ellipsis, (None, listed, None), slice(5, 2),
    )  # fmt: skip
    key = rng.choice(keys)
    return Call(f"x[{key}]", 1, lambda lib, F, x: x[_tensors(lib, key)])


def _tensors(lib: Any, key: Any) -> Any:
    """Lists of a key as int64 tensors of the library."""
    if isinstance(key, tuple):
        return tuple(_tensors(lib, k) for k in key)
    return lib.tensor(key, dtype=lib.int64) if isinstance(key, list) else key


def _mask(rng: random.Random) -> Call:
    if rng.random() < 0.5:
        return Call("x[x > 0]", 1, lambda lib, F, x: x[x > 0], True)
    return Call("x[mask of rows]", 1, lambda lib, F, x: x[x.reshape(*x.shape[:1], -1).amax(1) > 0], True)


def _select(rng: random.Random) -> Call:
    dim, at = rng.choice((0, -1, 1)), [rng.randint(0, 2) for _ in range(rng.randint(1, 5))]
    kind = rng.choice(("index_select", "gather", "embedding"))
    if kind == "index_select":
        return Call(f"index_select {dim} {at}", 1, lambda lib, F, x: x.index_select(dim, lib.tensor(at)))
    if kind == "gather":
        return Call(f"gather {dim}", 1, lambda lib, F, x: x.gather(dim, lib.zeros(x.shape, dtype=lib.int64)))
    return Call(f"embedding {at}", 1, lambda lib, F, x: F.embedding(lib.tensor([at, at]), x))


def _join(rng: random.Random) -> Call:
    name, dim = rng.choice(("cat", "stack")), rng.choice((0, -1, 1))
    return Call(f"{name} {dim}", 2, lambda lib, F, x, y: getattr(lib, name)([x, y, x], dim))


def _cast(rng: random.Random) -> Call:
    name = rng.choice(DTYPES)
    return Call(f"to {name}", 1, lambda lib, F, x: x.to(getattr(lib, "bool_" if name == "bool" and hasattr(lib, "bool_") else name)), True)


def _create(rng: random.Random) -> Call:
    name = rng.choice(("zeros_like", "ones_like", "full_like", "arange", "eye", "linspace", "full"))
    options: dict[str, Step] = {
        "full_like": lambda lib, F, x: lib.full_like(x, 2),
        "arange": lambda lib, F, x: lib.arange(2, 9, 3) + x,
        "eye": lambda lib, F, x: lib.eye(3) * x,
        "linspace": lambda lib, F, x: lib.linspace(0, 2, 5) + x,
        "full": lambda lib, F, x: lib.full((2, 3), True) & (x > 0),
    }
    return Call(name, 1, options.get(name, lambda lib, F, x: getattr(lib, name)(x)), name == "full")


def _loss(rng: random.Random) -> Call:
    reduction = rng.choice(("mean", "sum", "none"))
    kind = rng.choice(("mse_loss", "l1_loss", "cross_entropy", "nll_loss", "binary_cross_entropy_with_logits"))
    if kind in ("cross_entropy", "nll_loss"):
        ignore = rng.choice((-100, 0))

        def run(lib: Any, F: Any, x: Any) -> Any:
            target = lib.zeros((*x.shape[:1], *x.shape[2:]) if x.ndim > 1 else (), dtype=lib.int64)
            return getattr(F, kind)(x, target, ignore_index=ignore, reduction=reduction)

        return Call(f"{kind} {reduction} {ignore}", 1, run)
    return Call(
        f"{kind} {reduction}", 2, lambda lib, F, x, y: getattr(F, kind)(x, (y > 0).to(x.dtype).expand_as(x), reduction=reduction), True
    )


def _changes(rng: random.Random) -> Call:
    value, i = rng.choice(SCALARS), rng.randint(-2, 2)
    listed = [rng.randint(-2, 2) for _ in range(rng.randint(0, 3))]
    distinct = rng.sample((0, 1, 2), rng.randint(0, 3))  # torch gives the gradient to all of equal indices, we to the one that won
    options: tuple[tuple[str, int, Step], ...] = (
        ("add_", 2, lambda lib, F, x, y: x.add_(y)),
        ("sub_", 2, lambda lib, F, x, y: x.sub_(y)),
        ("mul_", 2, lambda lib, F, x, y: x.mul_(y)),
        ("div_", 2, lambda lib, F, x, y: x.div_(y)),
        ("copy_", 2, lambda lib, F, x, y: x.copy_(y > 0)),
        (f"add_ {value}", 1, lambda lib, F, x: x.add_(value)),
        (f"mul_ {value}", 1, lambda lib, F, x: x.mul_(value)),
        (f"fill_ {value}", 1, lambda lib, F, x: x.fill_(value)),
        ("zero_", 1, lambda lib, F, x: x.zero_()),
        ("relu_", 1, lambda lib, F, x: x.relu_()),
        ("exp_", 1, lambda lib, F, x: x.exp_()),
        ("clamp_", 1, lambda lib, F, x: x.clamp_(-1, 1)),
        (f"masked_fill_ {value}", 2, lambda lib, F, x, y: x.masked_fill_(y > 0, value)),
        (f"x[{i}] = {value}", 1, lambda lib, F, x: _assigned(x, i, value)),
        (f"x[..., ::2] = {value}", 1, lambda lib, F, x: _assigned(x, (Ellipsis, slice(None, None, 2)), value)),
        ("x[0] = y", 2, lambda lib, F, x, y: _assigned(x, 0, y > 0)),
        (f"x[x > 0] = {value}", 1, lambda lib, F, x: _assigned(x, x > 0, value)),
        (f"x[{listed}] = {value}", 1, lambda lib, F, x: _assigned(x, _tensors(lib, listed), value)),
        (f"x[..., {distinct}] = 2 x", 1, lambda lib, F, x: _doubled(x, _tensors(lib, (..., distinct)))),
        (f"x[{i}, {distinct}] = 2 x", 1, lambda lib, F, x: _doubled(x, _tensors(lib, (i, distinct)))),
        ("x[x > 0] = 2 x", 1, lambda lib, F, x: _doubled(x, x > 0)),
        ("x.transpose.add_", 1, lambda lib, F, x: _through(x, x.transpose(0, -1))),
        ("x[1:].mul_", 1, lambda lib, F, x: _through(x, x[1:])),
    )
    text, count, fn = rng.choice(options)
    return Call(text, count, fn, "copy_" in text or "fill_" in text or "y" in text or "> 0" in text, True)


def _assigned(x: Any, key: Any, value: Any) -> Any:
    x[key] = value
    return x


def _doubled(x: Any, key: Any) -> Any:
    x[key] = x[key] * 2
    return x


def _through(x: Any, view: Any) -> Any:
    view.add_(view)
    return x


_KINDS: tuple[tuple[int, Callable[[random.Random], Call]], ...] = (
    (5, _unary), (2, _functional), (6, _binary), (5, _scalar), (1, _alpha), (1, _divide), (2, _where), (1, _clamp), (1, _masked_fill),
    (5, _reduce), (3, _extreme), (2, _softmax), (1, _norm), (2, _matmul), (7, _view), (6, _index), (1, _mask), (2, _select), (2, _join),
    (3, _cast), (1, _create), (2, _loss), (5, _changes),
)  # fmt: skip


def draw(rng: random.Random) -> Call:
    """One step."""
    return rng.choices([k for _, k in _KINDS], [w for w, _ in _KINDS])[0](rng)
