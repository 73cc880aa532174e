"""Output dtypes and shapes, compute dtypes and canonical attributes of an op, from its row or its archetype's default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..dispatch import HostScalar
from ..dtype import DType, bool_, float32, int64, promote, result_type, scalar_dtype, uint8
from ..errors import DTypeError, ShapeError
from ..shape import Shape, broadcast_shapes, normalize_dims
from ..storage import Layout
from .archetype import Chain, Matmul, Pointwise, Reduce, Row
from .table import ATTR, LIST, OPERAND, OPTIONAL, SCALAR, TENSOR, Inferred, Op, Spec


def named(op: Op, values: Sequence[Any]) -> dict[str, Any]:
    """Parameter name -> Layout (tensors), tuple of Layouts (lists), number or attribute; unhashable attributes made tuples."""
    out: dict[str, Any] = {}
    for p, v in zip(op.params, values, strict=True):
        if p.kind == LIST:
            out[p.name] = tuple(getattr(t, "layout", t) for t in v)
        elif p.kind in (ATTR, SCALAR):
            out[p.name] = freeze(v)
        else:
            out[p.name] = getattr(v, "layout", v)
    return out


def freeze(value: Any) -> Any:
    """A hashable form of an attribute: lists become tuples."""
    return tuple(freeze(v) for v in value) if isinstance(value, (list, tuple)) else value


def operands(op: Op, args: Mapping[str, Any]) -> list[Any]:
    """Layouts and numbers of the input operands in order, lists spread out, absent ones dropped."""
    out: list[Any] = []
    for p in op.params:
        if p.kind in (ATTR, SCALAR):
            continue
        v = args[p.name]
        if p.kind == LIST:
            out.extend(v)
        elif v is not None:
            out.append(v)
    return out


def common_dtype(ins: Sequence[Any]) -> DType:
    """PyTorch's result type of a mix of layouts and Python numbers."""
    dims = [x.dtype for x in ins if isinstance(x, Layout) and x.shape]
    zeros = [x.dtype for x in ins if isinstance(x, Layout) and not x.shape]
    return result_type(dims, zeros, [scalar_dtype(x) for x in ins if not isinstance(x, Layout)])


def infer(op: Op, args: Mapping[str, Any]) -> Inferred:
    """Apply the row's rule, or the archetype's default. `args` as from `named`."""
    _check_kinds(op, args)
    ins = operands(op, args)
    attrs = {p.name: args[p.name] for p in op.params if p.kind == ATTR}
    if op.rule is not None:
        found = op.rule(**args)
        if isinstance(found, Inferred):
            return Inferred(found.outputs, found.compute or _own(ins), {**attrs, **found.attrs})
        outs = (found,) if isinstance(found, Spec) else tuple(found)
        return Inferred(outs, _own(ins), attrs)
    kind = op.archetype
    if isinstance(kind, Pointwise):
        return _pointwise(kind, ins, attrs)
    if isinstance(kind, Chain):
        raise DTypeError(f"chain {op.name} carries no rule")
    if isinstance(kind, Reduce):
        return _reduce(kind, ins, attrs)
    if isinstance(kind, Row):
        return _row(kind, ins, attrs, args)
    if isinstance(kind, Matmul):
        return _matmul(ins, attrs)
    raise DTypeError(f"op {op.name} has no rule for its outputs")


def _check_kinds(op: Op, args: Mapping[str, Any]) -> None:
    """Tensors where the row wants tensors, numbers where it wants numbers."""
    for p in op.params:
        v = args[p.name]
        if p.kind == LIST:
            good, wanted = all(isinstance(x, Layout) for x in v), "tensors"
        elif p.kind == TENSOR or (p.kind == OPTIONAL and v is not None):
            good, wanted = isinstance(v, Layout), "a tensor"
        elif p.kind == OPERAND:
            good, wanted = isinstance(v, (Layout, *_NUMBERS)), "a tensor or a number"
        else:
            continue
        if not good:
            raise DTypeError(f"argument {p.name!r} must be {wanted}, got {v!r} ({type(v).__name__})")


_NUMBERS = (int, float, np.number, np.bool_, HostScalar)


def _own(ins: Sequence[Any]) -> tuple[DType, ...]:
    return tuple(x.dtype if isinstance(x, Layout) else scalar_dtype(x) for x in ins)


def _shape(ins: Sequence[Any]) -> Shape:
    return broadcast_shapes(*(x.shape for x in ins if isinstance(x, Layout)))


def _pointwise(kind: Pointwise, ins: Sequence[Any], attrs: dict[str, Any]) -> Inferred:
    shape = _shape(ins)
    types = kind.types
    if types == "bool":
        return Inferred((Spec(bool_, shape),), (bool_,) * len(ins), attrs)
    common = ins[0].dtype if types == "first" else common_dtype(ins)
    if types == "float" and not common.is_floating_point:
        common = float32
    if not isinstance(kind.expr, str) and common.kind not in kind.expr:
        raise DTypeError(f"not defined for {common.name} (operands {', '.join(str(x) for x in ins)})")
    return Inferred((Spec(bool_ if types == "compare" else common, shape),), (common,) * len(ins), attrs)


def reduced_shape(shape: Shape, dims: Shape, keepdim: bool) -> Shape:
    """The shape left after reducing `dims`."""
    if keepdim:
        return tuple(1 if d in dims else n for d, n in enumerate(shape))
    return tuple(n for d, n in enumerate(shape) if d not in dims)


def _reduce(kind: Reduce, ins: Sequence[Any], attrs: dict[str, Any]) -> Inferred:
    x: Layout = ins[0]
    dims = normalize_dims(attrs.get("dim"), len(x.shape))
    if kind.kind in ("max", "min", "argmax", "argmin"):
        for d in dims or range(len(x.shape)):
            if x.shape[d] == 0:
                raise ShapeError(f"{kind.kind} over dimension {d} of size 0 of a tensor of shape {list(x.shape)} has no value")
    shape = reduced_shape(x.shape, dims, bool(attrs.get("keepdim", False)))
    if kind.kind in ("argmax", "argmin"):
        out, compute = int64, x.dtype
    elif kind.kind in ("any", "all"):
        out, compute = uint8 if x.dtype is uint8 else bool_, bool_  # as in PyTorch
    elif kind.kind in ("sum", "prod"):
        out = compute = x.dtype if x.dtype.is_floating_point else int64
    else:
        out = compute = x.dtype
    return Inferred((Spec(out, shape),), (compute,), {**attrs, "dim": dims})


def _row(kind: Row, ins: Sequence[Any], attrs: dict[str, Any], args: Mapping[str, Any]) -> Inferred:
    x: Layout = args[kind.full[0]]
    dims = normalize_dims(attrs.get("dim"), len(x.shape))
    for v in (args[n] for n in (*kind.full, *kind.column) if args[n] is not None):
        if not v.dtype.is_floating_point:
            raise DTypeError(f"expected a floating point tensor, got {v.dtype.name}{list(v.shape)}; convert it with .float() first")
    kept = reduced_shape(x.shape, dims, False)
    absent = tuple(n for n in (*kind.full, *kind.defaults) if args.get(n) is None)
    outs = tuple(Spec(x.dtype, x.shape) for _ in kind.element) + tuple(Spec(float32, kept) for _ in kind.per_row)
    return Inferred(outs, _own(ins), {**attrs, "dim": dims, "absent": absent})


def _matmul(ins: Sequence[Any], attrs: dict[str, Any]) -> Inferred:
    a, b = ins
    if len(a.shape) < 2 or len(b.shape) < 2 or a.shape[-1] != b.shape[-2]:
        raise ShapeError(f"cannot multiply matrices of shapes {list(a.shape)} and {list(b.shape)}: inner sizes differ")
    if a.dtype is not b.dtype:
        raise DTypeError(f"expected two matrices of one dtype, got {a.dtype.name}{list(a.shape)} and {b.dtype.name}{list(b.shape)}")
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return Inferred((Spec(a.dtype, (*batch, a.shape[-2], b.shape[-1])),), (a.dtype, b.dtype), attrs)


def check_inplace(spec: Spec, out: Layout) -> None:
    """An in-place result must have out's shape and a dtype that out's can hold, as in PyTorch."""
    if spec.shape != out.shape:
        raise ShapeError(f"the result of shape {list(spec.shape)} does not fit the tensor of shape {list(out.shape)} it is written to")
    if _CATEGORY[spec.dtype.kind] > _CATEGORY[out.dtype.kind] and promote(spec.dtype, out.dtype) is not out.dtype:
        raise DTypeError(f"a {spec.dtype.name} result cannot be written to a {out.dtype.name} tensor in place")


_CATEGORY = {"b": 0, "u": 1, "i": 1, "f": 2}
