"""meganeura: portable neural-network training and inference on any GPU that WebGPU reaches. `import meganeura as mg`.

Public names only. Importing this opens no device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import autograd, errors
from . import dispatch as _dispatch
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
    UnsupportedError,
)
from .naming import named
from .ops.factory import (
    arange,
    empty,
    empty_like,
    eye,
    from_numpy,
    full,
    full_like,
    linspace,
    ones,
    ones_like,
    rand,
    rand_like,
    randint,
    randn,
    randn_like,
    tensor,
    zeros,
    zeros_like,
)
from .ops.table import op
from .random import Generator, get_rng_state, initial_seed, manual_seed, seed, set_rng_state
from .reference import Reference
from .tensor import Tensor

if TYPE_CHECKING:
    from . import data, linalg, load, nn, optim, special
    from .compile.api import compile as compile
    from .profile.api import Profile as profile
else:
    from . import compile as compile

# `compile` is left out: a star import would replace Python's own.
__all__ = [
    "CheckpointError",
    "DTypeError",
    "DeviceError",
    "Generator",
    "GradientError",
    "IndexOutOfRangeError",
    "LoadError",
    "MeganeuraError",
    "NoGradientError",
    "OutOfMemoryError",
    "Reference",
    "ShapeError",
    "Tensor",
    "TraceError",
    "UnsupportedError",
    "__version__",
    "arange",
    "autograd",
    "bfloat16",
    "bool_",
    "data",
    "device",
    "empty",
    "empty_like",
    "enable_grad",
    "errors",
    "eye",
    "float16",
    "float32",
    "from_numpy",
    "full",
    "full_like",
    "get_rng_state",
    "grad",
    "initial_seed",
    "int8",
    "int32",
    "int64",
    "is_grad_enabled",
    "linalg",
    "linspace",
    "load",
    "manual_seed",
    "named",
    "nn",
    "no_grad",
    "ones",
    "ones_like",
    "op",
    "optim",
    "profile",
    "rand",
    "rand_like",
    "randint",
    "randn",
    "randn_like",
    "seed",
    "set_grad_enabled",
    "set_rng_state",
    "special",
    "synchronize",
    "tensor",
    "uint8",
    "uint32",
    "use_device",
    "value_and_grad",
    "zeros",
    "zeros_like",
]  # fmt: skip

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
for _name, _target in _ops.ALIASES.items():
    globals()[_name] = globals()[_target]

_LAZY = {"special", "linalg", "nn", "optim", "data", "load", "gpu", "eager", "profile"}
_FROM = {
    "debug": "compile.debugging",
    **dict.fromkeys(("Eager", "Graph", "History", "SessionConfig", "TrainConfig", "Trainer", "build_session"), "static"),
    "checkpoint": "recompute",
    "save_checkpoint": "load.checkpoint",
    "load_checkpoint": "load.checkpoint",
    "save": "serialization",
    "save_safetensors": "load.safetensors",
    "load_safetensors": "load.safetensors",
    "get_default_device": "defaults",
    "get_default_dtype": "defaults",
    "get_float32_matmul_precision": "defaults",
    "set_default_device": "defaults",
    "set_default_dtype": "defaults",
    "set_float32_matmul_precision": "defaults",
    "set_printoptions": "defaults",
}


def __getattr__(name: str) -> Any:
    import importlib

    from .unsupported import refuse

    if name in _LAZY:
        return importlib.import_module(f".{name}", __name__)
    if name in _FROM:
        return getattr(importlib.import_module(f".{_FROM[name]}", __name__), name)
    if name.endswith("_") and not name.startswith("_") and hasattr(Tensor, name):
        return getattr(Tensor, name)  # relu_(x) is x.relu_(), as in PyTorch
    refuse(name)
    raise AttributeError(f"module 'meganeura' has no attribute {name!r}")
