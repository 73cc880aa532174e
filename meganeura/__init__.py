"""meganeura: portable neural-network training and inference on any GPU that WebGPU reaches. `import meganeura as mg`.

Public names only. Importing this opens no device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import autograd as autograd
from . import dispatch as _dispatch
from . import dtype as _dtype
from . import errors as errors
from . import ops as _ops
from . import tensor as _tensor_module
from ._version import __version__
from .autodiff import grad
from .autograd import value_and_grad
from .devices import device, eager_interpreter, synchronize, use_device
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
from .ops.factory import arange, empty, eye, from_numpy, full, linspace, ones, rand, randint, randn, tensor, zeros
from .ops.factory import empty_like, full_like, ones_like, rand_like, randn_like, zeros_like
from .ops.table import op
from .random import Generator, manual_seed
from .reference import Reference
from .tensor import Tensor

if TYPE_CHECKING:
    from .compile.api import compile as compile
else:
    from . import compile as compile

_tensor_module.install()
_dispatch.hooks.eager = eager_interpreter
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

_LAZY = {"nn", "optim", "data", "load", "gpu", "eager"}
_FROM = {"save": "serialization", "save_safetensors": "load.safetensors", "load_safetensors": "load.safetensors"}


def __getattr__(name: str) -> Any:
    import importlib

    if name in _LAZY:
        return importlib.import_module(f".{name}", __name__)
    if name in _FROM:
        return getattr(importlib.import_module(f".{_FROM[name]}", __name__), name)
    raise AttributeError(f"module 'meganeura' has no attribute {name!r}")


if TYPE_CHECKING:

    def __dir__() -> list[str]: ...
