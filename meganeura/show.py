"""How a tensor shows itself: as text in a terminal, as a table with a small picture in a notebook."""

from __future__ import annotations

import base64
import contextlib
import html as _html
import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from . import dispatch
from .dtype import float32, int64
from .errors import DeviceError
from .ops.views import cat, narrow

# Digits after the point, elements up to which all are shown, elements shown at each end of a longer dimension, columns.
PROFILES: dict[str, dict[str, Any]] = {
    "default": {"precision": 4, "threshold": 1000, "edgeitems": 3, "linewidth": 75},
    "short": {"precision": 2, "threshold": 1000, "edgeitems": 2, "linewidth": 75},
    "full": {"precision": 4, "threshold": float("inf"), "edgeitems": 3, "linewidth": 75},
}
OPTIONS: dict[str, Any] = {**PROFILES["default"], "scientific": None}

if TYPE_CHECKING:
    from .tensor import Tensor


def text(t: Tensor) -> str:
    """tensor([...], dtype=..., grad_fn=...)."""
    tail = "" if t.dtype in (float32, int64) or t.dtype.kind == "b" else f", dtype={t.dtype!r}"
    if t.grad_fn is not None:
        tail += f", grad_fn={t.grad_fn!r}"
    elif t.requires_grad:
        tail += ", requires_grad=True"
    if t._storage.buffer is None:
        return f"tensor(<symbolic {t.layout}>{tail})"
    if not t.numel() and t.ndim > 1:
        tail = f", size={t.shape}{tail}"
    small = t.numel() <= OPTIONS["threshold"]
    digits, scientific = OPTIONS["precision"], OPTIONS["scientific"]
    written: Any = {"float_kind": f"{{:.{digits}e}}".format} if scientific else None
    values = np.array2string(
        t._read() if small else _edges(t)._read(), separator=", ", prefix="tensor(", edgeitems=OPTIONS["edgeitems"], precision=digits,
        threshold=max(t.numel(), 1) if small else 0, max_line_width=OPTIONS["linewidth"], formatter=written,
        suppress_small=None if scientific is None else not scientific,
    )  # fmt: skip
    return f"tensor({values}{tail})"


def _edges(t: Tensor) -> Tensor:
    """The elements that the shortened text shows, and one more along a dimension so that it is shortened: no more is read."""
    if not isinstance(t._storage.world, dispatch.hooks.eager().__class__):
        return t
    ends, edge = t.detach(), OPTIONS["edgeitems"]
    with dispatch.no_grad(), dispatch.use(None), contextlib.suppress(DeviceError):  # too large to be walked at once
        for d, n in enumerate(t.shape):
            if n > 2 * edge + 1:
                ends = cat([narrow(ends, d, 0, edge + 1), narrow(ends, d, n - edge, edge)], d)
        return ends
    return t


def html(t: Tensor) -> str:
    """Shape, dtype, name, min/mean/max, NaN and Inf counts and a picture of the values."""
    rows = [("shape", str(list(t.shape))), ("dtype", t.dtype.name)]
    if t.name:
        rows.insert(0, ("name", t.name))
    picture = ""
    if t._storage.buffer is not None and t.numel():
        a = np.asarray(t._read(), np.float64)
        good = a[np.isfinite(a)]
        if good.size:
            rows.append(("min / mean / max", f"{good.min():.4g} / {good.mean():.4g} / {good.max():.4g}"))
        rows.append(("NaN / Inf", f"{int(np.isnan(a).sum())} / {int(np.isinf(a).sum())}"))
        picture = f'<img style="image-rendering:pixelated;max-width:256px;min-width:64px" src="data:image/png;base64,{thumbnail(a)}">'
    cells = "".join(f"<tr><th style='text-align:left'>{k}</th><td>{_html.escape(v)}</td></tr>" for k, v in rows)
    return f"<div style='display:flex;gap:1em;align-items:center'><table>{cells}</table>{picture}</div>"


def thumbnail(a: np.ndarray[Any, Any], side: int = 128) -> str:
    """A grey PNG (base64) of an array: the last two dimensions, leading ones stacked; NaN and Inf are red."""
    image = np.atleast_2d(a).reshape(-1, a.shape[-1] if a.ndim else 1)
    image = image[:: max(1, -(-image.shape[0] // side)), :: max(1, -(-image.shape[1] // side))]
    good = np.isfinite(image)
    low, high = (image[good].min(), image[good].max()) if good.any() else (0.0, 1.0)
    grey = np.where(good, (np.where(good, image, 0) - low) / ((high - low) or 1) * 255, 0).astype(np.uint8)
    rgb = np.stack([np.where(good, grey, 255), grey, grey], -1).astype(np.uint8)
    return base64.b64encode(png(rgb)).decode()


def png(rgb: np.ndarray[Any, Any]) -> bytes:
    """An 8-bit RGB PNG file. [height, width, 3] uint8."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, _ = rgb.shape
    raw = b"".join(b"\0" + row.tobytes() for row in rgb)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(raw))
        + chunk(b"IEND", b"")
    )
