"""Rows that the host computes: small matrices go to numpy and back. They wait for the device and cannot be compiled, but are
recorded for backward like any other row."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import dispatch
from ..errors import LinAlgError, TraceError
from ..provenance import site
from .archetype import Archetype
from .table import TENSOR, Op, parameters


class Host(Archetype):
    """No kernel: the row's numpy reference is what runs, in float64, rounded to the inputs' dtype at the end."""


def host_row(grad: Mapping[str, Callable[..., Any] | None], differentiable: tuple[bool, ...] = ()) -> Callable[[Callable[..., Any]], Any]:
    """Make a callable from a numpy function of arrays and attributes. Tensors are the parameters annotated so; results
    that are integers become int64, all others take the first input's dtype."""

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        name = fn.__name__.strip("_")
        row = Op(
            name, fn.__module__, inspect.cleandoc(fn.__doc__ or ""), Host(), parameters(fn),
            ref=fn, grad=grad, differentiable=differentiable, public=False, torch=None,
        )  # fmt: skip

        def call(*args: Any, **kwargs: Any) -> Any:
            return run(row, dispatch.fill(row, args, kwargs))

        call.__name__, call.__doc__ = name, row.doc
        return call

    return decorate


def run(row: Op, values: Sequence[Any]) -> Any:
    """Compute a row on the host, in the world of the current interpreter, and record it."""
    top = dispatch.current()
    first = next(v for k, v in zip(row.kinds, values, strict=True) if k == TENSOR)
    try:
        arrays = [top.read(v).astype(np.float64) if k == TENSOR else v for k, v in zip(row.kinds, values, strict=True)]
    except TraceError:
        raise TraceError(
            f"{row.name} is computed by numpy on the host and cannot be compiled\n  at {site()}\n"
            f"  compute it outside the compiled function and pass the result as an argument"
        ) from None
    assert row.ref is not None
    with np.errstate(all="ignore"):
        try:
            got = row.ref(*arrays)
        except np.linalg.LinAlgError as e:
            raise LinAlgError(f"{row.name} of {first.layout}: {e}\n  at {site()}") from None
    results = tuple(_uploaded(top, np.asarray(g), first) for g in (got if isinstance(got, tuple) else (got,)))
    result = results if len(results) > 1 else results[0]
    if dispatch.state.grad:
        dispatch.hooks.record(row, values, result)
    return result


def _uploaded(top: Any, array: Any, like: Any) -> Any:
    from ..dtype import int64

    return top.upload(like.dtype if array.dtype.kind == "f" else int64, array)
