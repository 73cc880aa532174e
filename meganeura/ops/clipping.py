"""What gradient clipping needs: norms of many tensors, and products of many tensors with a number each, in few dispatches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..dtype import float32
from ..errors import DTypeError
from ..storage import Layout
from .archetype import Kernel, Update
from .optimizer import _each, update
from .table import Inferred, Sample, Spec, op

if TYPE_CHECKING:
    from ..tensor import Tensor

    Array = np.ndarray[Any, Any]

NORMS = ("1", "2", "inf")


def _norms_rule(tensors: tuple[Layout, ...], kind: str) -> Inferred:
    for i, t in enumerate(tensors):
        if not t.dtype.is_floating_point:
            raise DTypeError(f"tensors[{i}] is {t}; norms are taken of floating point tensors")
    if kind not in NORMS:
        raise DTypeError(f"kind must be one of {', '.join(NORMS)}, got {kind!r}")
    return Inferred((Spec(float32, (len(tensors),)),), tuple(t.dtype for t in tensors), {"kind": kind})


def _norm(x: Array, kind: str) -> Any:
    if kind == "inf":
        return np.max(np.abs(x), initial=0.0)
    return np.sum(np.abs(x)) if kind == "1" else np.sqrt(np.sum(np.square(x)))


def _arrays() -> list[Array]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s).astype(np.float32) for s in ((5, 3), (), (70,), (0, 2), (9, 4))]


@op(
    Kernel("tensor_norms"),
    rule=_norms_rule,
    ref=lambda tensors, kind: np.array([_norm(x, kind) for x in tensors]),
    samples=lambda: [Sample.of(_arrays(), kind) for kind in NORMS],
    method=False,
    public=False,
    torch=None,
)
def tensor_norms(tensors: Sequence[Tensor], kind: str = "2") -> Tensor:
    """The norm of every tensor as one vector, in float32; kind '1', '2' or 'inf'. [*]... -> [k]."""


@update(
    Update(("tensors",), (("y", "f32", "{tensors} * {factor}"),), {"tensors": "y"}, ("factor",)),
    ref=_each(lambda x, factor: (x * factor,), 1, 1),
    samples=lambda: [Sample.of(_arrays(), np.float32(0.3)), Sample.of(_arrays(), np.linspace(-1, 2, 5, dtype=np.float32))],
)
def scale_update(tensors: Sequence[Tensor], factor: Tensor) -> Any:
    """tensors *= factor, in place. `factor`: [] or one for each."""
