"""Sample inputs for every row: its own samples, or drawn from its archetype; each in several memory layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import meganeura as mg
from meganeura.dtype import dtype as as_dtype
from meganeura.ops.archetype import Pointwise, Reduce, Row
from meganeura.ops.infer import freeze
from meganeura.ops.table import LIST, OPERAND, OPTIONAL, SCALAR, TENSOR, Op, Sample

# Rows with integer or special operands that a draw from the archetype cannot know.
_INT_ROWS = {"bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"}


def floats(op: Op, shape: Sequence[int], salt: int = 0) -> Any:
    """float32 values inside the row's domain, never on a kink."""
    rng = np.random.default_rng(sum(map(ord, op.name)) * 31 + salt)
    low, high = op.domain or (-2.5, 2.5)
    values = rng.uniform(low, high, shape)
    if op.domain is None:
        values = np.where(np.abs(values - np.round(values)) < 0.05, values + 0.1, values)
    return values.astype(np.float32)


def samples(op: Op) -> list[Sample]:
    """Arguments that exercise a row: shapes with odd sizes, broadcasting, 0-d and zero-size."""
    if op.samples is not None:
        return list(op.samples())
    kind = op.archetype
    if isinstance(kind, Pointwise):
        return _pointwise(op)
    if isinstance(kind, Reduce):
        return _reduce(op)
    if isinstance(kind, Row):
        return _row(op)
    if op.name == "cat_tensors":
        parts = [floats(op, (2, 3), 1), floats(op, (2, 5), 2), floats(op, (2, 1), 3)]
        return [Sample.of(parts, 1), Sample.of(parts[:1], 0), Sample.of([floats(op, (2, 0)), parts[0]], 1)]
    raise NotImplementedError(f"row {op.name} needs samples")


def _pointwise(op: Op) -> list[Sample]:
    tensors = [p for p in op.params if p.kind in (TENSOR, OPERAND)]
    shapes: list[list[tuple[int, ...]]] = [
        [(3, 5)] * len(tensors),
        [(4, 8), (8,), (4, 1)][: len(tensors)],
        [(7,)] + [()] * (len(tensors) - 1),
        [()] * len(tensors),
        [(0, 3)] * len(tensors),
        [(2, 3, 4), (3, 1), (2, 1, 4)][: len(tensors)],
    ]
    out = []
    for i, group in enumerate(shapes):
        args: list[Any] = []
        for j, shape in enumerate(group):
            args.append(_operand(op, j, shape, i))
        rest = [as_dtype("int32" if i % 2 else "float16")] if op.name == "cast" else []
        out.append(Sample(tuple(args + rest), {}))
    return out


def _operand(op: Op, position: int, shape: tuple[int, ...], salt: int) -> Any:
    rng = np.random.default_rng(salt * 7 + position)
    if op.name in _INT_ROWS:
        return rng.integers(-9, 9, shape)
    if getattr(op.archetype, "types", "") == "bool" or (op.name == "where" and position == 0):
        return rng.integers(0, 2, shape).astype(bool)
    if op.name == "clamp_both":
        return floats(op, shape, salt) if position == 0 else np.full(shape, (-0.73, 0.81)[position - 1], np.float32)
    return floats(op, shape, salt * 10 + position)


def _reduce(op: Op) -> list[Sample]:
    single = op.name.startswith("arg")
    out = [Sample.of(floats(op, (3, 5, 4), 1)), Sample.of(floats(op, (3, 5, 4), 2), -1), Sample.of(floats(op, (3, 5, 4), 3), 0)]
    out += [Sample.of(floats(op, (6, 7), 4), 1, keepdim=True), Sample.of(floats(op, (33,), 5)), Sample.of(floats(op, (2, 130), 6), 1)]
    if not single:
        out += [Sample.of(floats(op, (3, 5, 4), 7), (0, 2)), Sample.of(floats(op, (2, 3, 4, 5), 8), (1, 2), keepdim=True)]
    if op.name in ("sum", "mean", "any", "all"):
        out += [Sample.of(floats(op, (0, 3))), Sample.of(floats(op, (0, 3)), 0), Sample.of(floats(op, ()))]
    if op.name in ("any", "all"):
        out = [Sample((np.asarray(s.args[0]) > 1.5, *s.args[1:]), s.kwargs) for s in out]
    return out


def _row(op: Op) -> list[Sample]:
    shapes: list[tuple[tuple[int, ...], Any]] = [((3, 5), 1), ((4, 10), 1), ((2, 40), 1), ((3, 4, 5), 1), ((6, 3), 0), ((1, 1), 1)]
    if "weight" in op.inputs or op.name.startswith(("layer_norm", "rms_norm")):
        shapes = [((3, 5), (1,)), ((2, 40), (1,)), ((2, 3, 4), (1, 2)), ((2, 1, 7), (2,)), ((9,), (0,))]
    out = []
    for i, (shape, dim) in enumerate(shapes):
        out.append(_row_sample(op, shape, dim, i, absent=False))
        if any(p.kind == OPTIONAL for p in op.params):
            out.append(_row_sample(op, shape, dim, i, absent=True))
    return out


def _row_sample(op: Op, shape: tuple[int, ...], dim: Any, salt: int, absent: bool) -> Sample:
    kind = op.archetype
    assert isinstance(kind, Row)
    dims = dim if isinstance(dim, tuple) else (dim,)
    kept = tuple(n for d, n in enumerate(shape) if d not in dims)
    x = floats(op, shape, salt)
    args: list[Any] = []
    for j, p in enumerate(op.params):
        if p.name in ("input",):
            args.append(x)
        elif p.name == "result":
            e = np.exp(x - x.max(dims, keepdims=True))
            p_ = e / e.sum(dims, keepdims=True)
            args.append((np.log(p_) if op.name.startswith("log") else p_).astype(np.float32))
        elif p.name in kind.full:
            args.append(floats(op, shape, salt * 10 + j))
        elif p.name in kind.column:
            args.append(None if absent else floats(op, tuple(shape[d] for d in dims), salt * 10 + j))
        elif p.name == "target":
            t = np.random.default_rng(salt).integers(0, shape[dims[0]], kept)
            if t.size > 1:
                t.reshape(-1)[0] = -100
            args.append(t)
        elif p.name == "mean":
            args.append(x.mean(dims).astype(np.float32))
        elif p.name == "rstd":
            args.append((1 / np.sqrt(x.var(dims) + 1e-5)).astype(np.float32))
        elif p.name == "lse":
            args.append(np.log(np.exp(x).sum(dims)).astype(np.float32))
        elif p.kind in (TENSOR, OPTIONAL):
            args.append(floats(op, kept, salt * 10 + j))
        elif p.kind == SCALAR:
            args.append(-100 if p.name == "ignore_index" else 1e-5)
        else:
            args.append(dim)
    return Sample(tuple(args), {})


# ---- layouts ----


def plain(a: Any) -> tuple[Any, Callable[[], mg.Tensor]]:
    return a, lambda: make(a)


def transposed(a: Any) -> tuple[Any, Callable[[], mg.Tensor]]:
    return a, lambda: make(np.ascontiguousarray(np.swapaxes(a, 0, -1))).transpose(0, -1)


def stepped(a: Any) -> tuple[Any, Callable[[], mg.Tensor]]:
    wide = np.repeat(a, 2, axis=-1)
    wide[..., 1::2] = 99 if wide.dtype.kind != "b" else True
    return a, lambda: make(wide)[..., ::2]


def shifted(a: Any) -> tuple[Any, Callable[[], mg.Tensor]]:
    long = np.concatenate([np.full(3, 77).astype(a.dtype), a.reshape(-1), np.full(2, 55).astype(a.dtype)])
    return a, lambda: make(long)[3 : 3 + a.size].reshape(a.shape)


def expanded(a: Any) -> tuple[Any, Callable[[], mg.Tensor]]:
    one = np.ascontiguousarray(a[:1])
    return np.ascontiguousarray(np.broadcast_to(one, a.shape)), lambda: make(one).expand(*a.shape)


def half(a: Any) -> tuple[Any, Callable[[], mg.Tensor]]:
    if a.dtype != np.float32:
        return plain(a)
    with np.errstate(over="ignore"):
        small = a.astype(np.float16)
    return small, lambda: make(small)


LAYOUTS: dict[str, Callable[[Any], tuple[Any, Callable[[], mg.Tensor]]]] = {
    "plain": plain, "transposed": transposed, "stepped": stepped, "shifted": shifted, "expanded": expanded, "half": half,
}  # fmt: skip


def make(a: Any) -> mg.Tensor:
    return mg.tensor(np.asarray(a))


def laid_out(op: Op, sample: Sample, layout: str) -> tuple[list[Any], Callable[[], list[Any]], dict[str, Any]] | None:
    """(arguments as arrays, a maker of the same arguments as tensors, keywords), or None if the layout does not apply."""
    arrays: list[Any] = []
    makers: list[Callable[[], Any]] = []
    changed = layout == "plain"
    for p, v in zip(op.params, sample.args, strict=False):
        v = np.asarray(v) if isinstance(v, np.generic) else v
        if p.kind == LIST:
            pairs = [_lay(a, layout) for a in v]
            arrays.append([a for a, _ in pairs])
            makers.append(lambda pairs=pairs: [m() for _, m in pairs])
            changed = True
        elif isinstance(v, np.ndarray):
            a, m = _lay(v, layout)
            changed |= v.ndim >= (1 if layout in ("stepped", "shifted", "half", "expanded") else 2) and v.size > 0
            arrays.append(a)
            makers.append(m)
        else:
            value = as_dtype(v) if p.name == "dtype" else freeze(v)
            arrays.append(value)
            makers.append(lambda value=value: value)
    return (arrays, lambda: [m() for m in makers], dict(sample.kwargs)) if changed else None


def _lay(a: Any, layout: str) -> tuple[Any, Callable[[], mg.Tensor]]:
    if a.ndim == 0 or a.size == 0 or (a.ndim < 2 and layout == "transposed"):
        return plain(a)
    return LAYOUTS[layout](a)


def cases(ops: Sequence[Op], layouts: Sequence[str]) -> Iterator[tuple[str, Op, int, str]]:
    """(test id, row, sample number, layout)."""
    for op in ops:
        for i, _ in enumerate(samples(op)):
            for layout in layouts:
                if laid_out(op, samples(op)[i], layout) is not None:
                    yield f"{op.name}-{i}-{layout}", op, i, layout
