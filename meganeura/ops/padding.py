"""Borders around tensors: constant, mirrored, repeated and wrapped round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import ShapeError
from ..provenance import site
from . import move, views
from .factory import sizes_of
from .rearrange import reversed_view
from .table import composite

if TYPE_CHECKING:
    from ..tensor import Tensor

MODES = ("constant", "reflect", "replicate", "circular")


@composite(method=False)
def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """A border of (before, after) elements, from the last dimension backwards; negative amounts cut off. [*] -> [*].

    'constant' sets `value`; 'reflect' mirrors without the edge, 'replicate' repeats the edge, 'circular' goes round: of the
    last 1, 2 or 3 dimensions, after one or two of batch and channels.
    """
    amounts = sizes_of((tuple(pad),))
    if mode not in MODES:
        raise ShapeError(f"pad mode {mode!r} does not exist; there are {', '.join(MODES)}\n  at {site()}")
    if len(amounts) % 2 or len(amounts) > 2 * input.ndim:
        raise ShapeError(f"pad {list(amounts)} does not fit shape {list(input.shape)}: pairs, at most one a dimension\n  at {site()}")
    pairs = [(amounts[i], amounts[i + 1]) for i in range(0, len(amounts), 2)]
    if mode == "constant":
        lead = [(0, 0)] * (input.ndim - len(pairs))
        return move.pad_constant(input, (*lead, *reversed(pairs)), float(value or 0.0))  # type: ignore[no-any-return]
    if value not in (None, 0):
        raise ShapeError(f"pad mode {mode!r} takes no value, got {value}\n  at {site()}")
    spatial = len(pairs)
    if not 1 <= spatial <= 3 or input.ndim not in (spatial + 1, spatial + 2):
        raise ShapeError(
            f"pad mode {mode!r} pads 1 to 3 dimensions after channels, got {spatial} pairs for shape {list(input.shape)}\n  at {site()}"
        )
    if any(n == 0 for n in input.shape[-spatial:]) or any(n == 0 for n in input.shape[input.ndim - spatial - 1 : -spatial]):
        raise ShapeError(f"pad mode {mode!r} of shape {list(input.shape)}: only the batch may be empty\n  at {site()}")
    out = input
    for i, (before, after) in enumerate(pairs):
        if before or after:
            out = _border(out, input.ndim - 1 - i, before, after, mode)
    return out.clone() if out is input else out


@composite
def constant_pad_nd(input: Tensor, pad: Sequence[int], value: float = 0) -> Tensor:
    """pad with a constant. [*] -> [*]."""
    return _pad(input, pad, "constant", value)


_pad = pad


def _border(x: Tensor, d: int, before: int, after: int, mode: str) -> Tensor:
    """One dimension: the borders are parts of x itself, joined to what is left of it by one copy."""
    n = x.shape[d]
    cut = max(-before, 0) + max(-after, 0)
    most = {"reflect": n - 1, "circular": n - cut}.get(mode, max(before, after))
    if max(before, after) > most or cut > n or n + before + after < 1:
        raise ShapeError(f"{mode} padding of ({before}, {after}) does not fit dimension {d} of shape {list(x.shape)}\n  at {site()}")
    if mode == "circular" and cut:  # what goes round is what the cut leaves
        x = move.slice_dim(x, d, max(-before, 0), n - cut, 1)
        n, before, after, cut = n - cut, max(before, 0), max(after, 0), 0
    middle = move.slice_dim(x, d, max(-before, 0), n - cut, 1) if cut else x
    parts = [_edge(x, d, before, True, mode), middle, _edge(x, d, after, False, mode)]
    kept = [p for p in parts if p is not None]
    return move.cat_tensors(kept, d) if len(kept) > 1 else kept[0].clone()  # type: ignore[no-any-return]


def _edge(x: Tensor, d: int, count: int, front: bool, mode: str) -> Tensor | None:
    n = x.shape[d]
    if count <= 0:
        return None
    if mode == "replicate":
        one = move.slice_dim(x, d, 0 if front else n - 1, 1, 1)
        return views.expand(one, *(count if e == d else m for e, m in enumerate(x.shape)))
    if mode == "circular":
        return move.slice_dim(x, d, n - count if front else 0, count, 1)  # type: ignore[no-any-return]
    part = move.slice_dim(x, d, 1 if front else n - 1 - count, count, 1)
    return reversed_view(part, (d,))  # type: ignore[no-any-return]
