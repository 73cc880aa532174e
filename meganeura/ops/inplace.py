"""Results written over a tensor: in-place forms of composites, and the `out=` argument of every function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from .. import dispatch
from ..errors import DTypeError, GradientError, ShapeError
from ..provenance import site
from ..storage import Layout
from .archetype import Pointwise
from .infer import check_inplace
from .pointwise import cast
from .table import Op, Spec, composite

if TYPE_CHECKING:
    from ..tensor import Tensor


def write(target: Tensor, result: Tensor, name: str) -> Tensor:
    """Replace target's values by result's, which must have its shape and a dtype that its dtype can hold."""
    try:
        check_inplace(Spec(result.dtype, result.shape), target.layout)
    except (ShapeError, DTypeError) as e:
        raise type(e)(f"{name}: {e}\n  at {site()}") from None
    dispatch.bind(cast, (result, target.dtype), {}, out=target)
    return target


def inplace(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Also enter the composite's in-place form, its name with an underscore."""

    def call(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        tracked = dispatch.state.grad and any(t.requires_grad for t in _tensors((input, *args, *kwargs.values())))
        before = input.clone() if tracked else input  # gradient rules may ask for the values that are overwritten
        return write(input, fn(before, *args, **kwargs), call.__name__)

    call.__name__ = f"{fn.__name__}_"
    call.__doc__ = f"In place: {(fn.__doc__ or '').strip()}"
    composite(call)
    return fn


def over(row: Op, input: Tensor, *args: Any, inplace: bool) -> Tensor:
    """The row of an input, in a new tensor or (inplace) over the input."""
    result = dispatch.bind(row, (input, *args), {}, out=input if inplace else None)
    return input if inplace else result


def into(out: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """function(*args, **kwargs) written into the tensor `out`, or the tensors of a tuple, which is returned. Records nothing for
    backward; an `out` without elements takes the result's shape."""
    name = getattr(function, "__name__", None) or function.name
    targets = tuple(out) if isinstance(out, (tuple, list)) else (out,)
    for t in targets:
        if not isinstance(t, dispatch.hooks.tensor):
            raise DTypeError(f"{name}: out must be a tensor, got {t!r} ({type(t).__name__})\n  at {site()}")
    if dispatch.state.grad and any(t.requires_grad for t in (*targets, *_tensors((*args, *kwargs.values())))):
        raise GradientError(f"{name}: out= records nothing for backward, but a tensor here requires grad; use no_grad()\n  at {site()}")
    with dispatch.no_grad():
        if isinstance(function, Op) and isinstance(function.archetype, Pointwise) and len(targets) == 1 and out.numel():
            dispatch.bind(function, args, kwargs, out=out)
            return out
        found = function(*args, **kwargs)
        results = found if isinstance(found, tuple) else (found,)
        if len(results) != len(targets):
            raise ShapeError(f"{name}: {len(results)} results do not fit {len(targets)} tensors in out\n  at {site()}")
        for t, r in zip(targets, results, strict=True):
            _place(t, r, name)
    return type(found)(*targets) if hasattr(found, "_fields") else out


def _place(target: Tensor, result: Tensor, name: str) -> None:
    if target.numel() or target.shape == result.shape:
        write(target, result, name)
        return
    check_inplace(Spec(result.dtype, ()), Layout(target.dtype, ()))
    target.data = result.to(target.dtype, copy=True)


def _tensors(values: Iterable[Any]) -> Iterable[Tensor]:
    for v in values:
        if isinstance(v, dispatch.hooks.tensor):
            yield v
        elif isinstance(v, (tuple, list)):
            yield from _tensors(v)


dispatch.hooks.into = into
