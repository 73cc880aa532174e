"""What PyTorch lets a program set once for everything: here the default dtype and device are fixed, printing is not."""

from __future__ import annotations

from typing import Any

from . import show
from .devices import device
from .dtype import DType, float32
from .dtype import dtype as as_dtype
from .errors import DeviceError, UnsupportedError
from .provenance import site

PRECISIONS = ("highest", "high", "medium")
_allowed = ["highest"]


def get_default_dtype() -> DType:
    """float32."""
    return float32


def set_default_dtype(d: Any) -> None:
    """float32 (for which float64 stands) is the only one; make other tensors with dtype=."""
    if as_dtype(d) is not float32:
        raise UnsupportedError(
            f"the default dtype is always float32, not {as_dtype(d).name}: give dtype= where tensors are made\n  at {site()}"
        )


def get_default_device() -> Any:
    """The device in use, opened now if none is."""
    return device()


def set_default_device(device: Any) -> None:
    """Only the device in use, by itself or its name, or None; use_device chooses one."""
    used = get_default_device()
    if device is not None and device is not used and device not in (str(used), getattr(used, "name", "")):
        raise DeviceError(f"there is no device {device!r}, tensors are on {used}; meganeura.use_device() chooses one\n  at {site()}")


def get_float32_matmul_precision() -> str:
    """What set_float32_matmul_precision last allowed."""
    return _allowed[0]


def set_float32_matmul_precision(precision: str) -> None:
    """How much precision float32 products may give up. Products here are of full float32 precision whatever is allowed."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision {precision!r} does not exist; there are {', '.join(PRECISIONS)}\n  at {site()}")
    _allowed[0] = precision


def set_printoptions(
    precision: int | None = None, threshold: float | None = None, edgeitems: int | None = None, linewidth: int | None = None,
    profile: str | None = None, sci_mode: bool | None = None,
) -> None:  # fmt: skip
    """How tensors show themselves; profile 'default', 'short' or 'full' sets all, the rest one by one."""
    if profile is not None and profile not in show.PROFILES:
        raise ValueError(f"profile {profile!r} does not exist; there are {', '.join(show.PROFILES)}\n  at {site()}")
    options = {} if profile is None else dict(show.PROFILES[profile])
    given = {"precision": precision, "threshold": threshold, "edgeitems": edgeitems, "linewidth": linewidth}
    show.OPTIONS.update(options | {k: v for k, v in given.items() if v is not None})
    if sci_mode is not None or profile is not None:
        show.OPTIONS["scientific"] = sci_mode
