"""Names for values, to find them again in graphs, plans, profiles and messages.

In: a tensor and a name. Out: the same tensor, and whoever keeps names told: a trace its graph, an open profile its rows.
"""

from __future__ import annotations

from . import dispatch, spans
from .errors import DTypeError
from .provenance import site
from .tensor import Tensor


def named(x: Tensor, name: str) -> Tensor:
    """Give a value a name, such as "blk3.qkv"; returns x.  [*] -> [*].

    The name shows as `x.name`, labels the value in the graphs and plans of compiled code (a second value of that name there
    is `name_1`) and the dispatch that makes it in profiles and messages.
    """
    if not isinstance(x, Tensor):
        raise DTypeError(f"named() takes a tensor and a name, got {type(x).__name__}\n  at {site()}")
    if not isinstance(name, str) or not name or any(c.isspace() for c in name):
        raise ValueError(f"a name is text without spaces, got {name!r}")
    x._name = name
    dispatch.current().named(x, name)
    if spans.listener is not None:
        spans.listener.named(x._storage.uid, name)
    return x
