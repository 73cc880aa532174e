"""The device in use, for users: open it, share one, wait for it. Opening happens at first use, never at import."""

from __future__ import annotations

from typing import Any


def device() -> Any:
    """The device in use, opened now if none is. Raises DeviceError where there is no adapter."""
    from . import gpu

    return gpu.current()


def use_device(wgpu_device: Any) -> Any:
    """Share a wgpu device (with a renderer, say); returns the Device that tensors live on from now on."""
    from . import gpu

    return gpu.use_device(wgpu_device)


def synchronize() -> None:
    """Wait until all work given to the device is done; raises what went wrong in it."""
    from . import gpu

    gpu.current().synchronize()


def eager_interpreter() -> Any:
    """The eager interpreter of the device in use."""
    from . import eager

    return eager.default()
