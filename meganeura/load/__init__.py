"""Reading and writing weights: this package's own files, and those of other programs.

In: files. Out: tensors by name. A file is checked before any of it is used, and an error names the file and the tensor.
The module is callable: `meganeura.load(path)` reads what `meganeura.save` wrote, as torch.load does.
"""

import inspect
import os
import sys
from types import ModuleType
from typing import IO, Any

from ..serialization import load as _load
from .checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from .safetensors import load_safetensors, save_safetensors


class _CallableModule(ModuleType):
    """`meganeura.load` is this package and PyTorch's function of that name at once."""

    __signature__ = inspect.signature(_load)

    def __call__(self, f: str | os.PathLike[str] | IO[bytes], weights_only: bool = True) -> Any:
        return _load(f, weights_only)


sys.modules[__name__].__class__ = _CallableModule

__all__ = ["Checkpoint", "load_checkpoint", "load_safetensors", "save_checkpoint", "save_safetensors"]
