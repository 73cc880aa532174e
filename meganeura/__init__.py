"""meganeura: portable neural-network training and inference on any GPU that WebGPU reaches. `import meganeura as mg`.

Public names only. Importing this opens no device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import autograd as autograd
from . import compile as compile
from . import dispatch as _dispatch
from . import dtype as _dtype
from . import errors as errors
from . import ops as _ops
from . import tensor as _tensor_module
from ._version import __version__
from .autodiff import grad
from .dispatch import enable_grad, is_grad_enabled, no_grad, set_grad_enabled
from .dtype import bfloat16, bool_, float16, float32, int8, int32, int64, uint8, uint32
from .errors import (
    CheckpointError,
    DeviceError,
    DTypeError,
    GradientError,
    IndexOutOfRangeError,
    LoadError,
    MeganeuraError,
    NoGradientError,
    OutOfMemoryError,
    ShapeError,
    TraceError,
)
from .ops.composite import arange, empty, eye, from_numpy, full, linspace, ones, rand, randint, randn, tensor, zeros
from .ops.composite import empty_like, full_like, ones_like, rand_like, randn_like, zeros_like
from .ops.table import op
from .random import Generator, manual_seed
from .reference import Reference
from .tensor import Tensor

_tensor_module.install()
bool = bool_
float = float32
half = float16
int = int32
long = int64

for _name, _row in _ops.REGISTRY.items():
    if _row.public:
        globals()[_name] = _row
for _name, _fn in _ops.COMPOSITES.items():
    if not _name.endswith("_"):
        globals()[_name] = _fn

_LAZY = {"nn", "optim", "data", "load", "models", "gpu", "eager"}


def __getattr__(name: str) -> Any:
    import importlib

    if name in _LAZY:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module 'meganeura' has no attribute {name!r}")


def synchronize() -> None:
    """Wait until all work given to the device is done; raises what went wrong in it."""
    from . import gpu

    gpu.current().synchronize()


def use_device(wgpu_device: Any) -> Any:
    """Share a wgpu device (with a renderer, say); returns the Device that tensors live on from now on."""
    from . import gpu

    return gpu.use_device(wgpu_device)


def device() -> Any:
    """The device in use, opened now if none is."""
    from . import gpu

    return gpu.current()


def value_and_grad(fn: Any) -> Any:
    """A function that returns (fn(*args), gradient of its scalar result for the first argument)."""

    def call(*args: Any, **kwargs: Any) -> Any:
        first = args[0].detach().requires_grad_()
        out = fn(first, *args[1:], **kwargs)
        (g,) = grad(out, first)
        return out.detach(), g

    return call


def _eager() -> Any:
    from . import eager

    return eager.default()


_dispatch.hooks.eager = _eager
if TYPE_CHECKING:

    def __dir__() -> list[str]: ...
