"""Views that replace the tensor they are of: t_, transpose_, squeeze_ and so on. No element moves; only the tensor's layout changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import dispatch
from ..errors import GradientError, TraceError
from ..provenance import site
from . import rearrange, views
from .table import composite

if TYPE_CHECKING:
    from ..tensor import Tensor


def _replacing(fn: Callable[..., Any], name: str) -> None:
    """Enter the form of a view that the tensor itself becomes."""

    def call(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        tracked = dispatch.state.grad
        if tracked and input._leaf:
            raise GradientError(f"{name}: a leaf tensor that requires grad cannot be changed in place; use no_grad()\n  at {site()}")
        seen: Tensor = fn(input, *args, **kwargs)
        try:
            input.data = seen
        except TraceError:
            raise TraceError(f"{name} changes a tensor's own shape and cannot be compiled\n  at {site()}\n  use {fn.__name__}") from None
        if tracked and seen is not input:
            input._node, input._index = seen._node, seen._index
            input._storage.version += 1  # what saved this tensor for backward would read it in another shape
        return input

    call.__name__ = name
    call.__doc__ = f"{fn.__name__}, after which the tensor itself has that shape; cannot be compiled. {(fn.__doc__ or '').strip()}"
    composite(call)


for _fn in (views.t, views.transpose, views.squeeze, views.unsqueeze, rearrange.swapaxes, rearrange.swapdims, views.as_strided):
    _replacing(_fn, f"{_fn.__name__}_")
