"""Values to and from numpy, and mg.save / mg.load: pickles in which tensors are numpy arrays.

`load` by default builds nothing but tensors, containers, numbers, strings and numpy arrays, so a file from somebody else
can run no code; `weights_only=False` reads whole modules and optimizers, of files you trust.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from .errors import LoadError
from .tensor import Tensor

_ALLOWED = {
    ("collections", "OrderedDict"), ("collections", "defaultdict"), ("builtins", "dict"), ("builtins", "set"), ("builtins", "complex"),
    ("builtins", "bytearray"), ("_codecs", "encode"), ("meganeura.tensor", "_rebuild"), ("meganeura.tensor", "Tensor"),
    ("meganeura.nn.parameter", "Parameter"), ("meganeura.nn.parameter", "Buffer"), ("meganeura.nn.parameter", "_rebuild_buffer"),
    ("meganeura.dtype", "dtype"), ("meganeura.random", "Generator"),
    ("numpy", "ndarray"), ("numpy", "dtype"), ("numpy._core.multiarray", "_reconstruct"), ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"), ("numpy.core.multiarray", "scalar"), ("numpy._core.numeric", "_frombuffer"),
    ("numpy.core.numeric", "_frombuffer"),
}  # fmt: skip


def as_array(value: Any) -> np.ndarray[Any, Any]:
    """The values of a Tensor, a numpy array, a PyTorch tensor (bfloat16 as float32) or nested lists, as a numpy array."""
    if isinstance(value, Tensor):
        return value.detach().numpy()
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "detach") and hasattr(value, "cpu"):  # a PyTorch tensor, without importing PyTorch
        value = value.detach().cpu()
        return np.asarray(value.float().numpy() if "bfloat16" in str(value.dtype) else value.numpy())
    array = np.asarray(value)
    if array.dtype == object:
        raise TypeError(f"expected a tensor or an array of numbers, got {type(value).__name__}")
    return array


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place, durably, if the block succeeds; otherwise `path` stays as it was."""
    target = Path(path)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)  # mkstemp's files are private; give what open() would have given
        _sync(temporary)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if os.name == "posix":
        _sync(target.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def save(obj: Any, f: str | os.PathLike[str] | IO[bytes]) -> None:
    """Pickle anything (tensors, state dicts, modules, optimizers) to a file, atomically where `f` is a path."""
    if isinstance(f, (str, os.PathLike)):
        with replacing(f) as temporary, open(temporary, "wb") as file:
            pickle.dump(obj, file, protocol=4)
    else:
        pickle.dump(obj, f, protocol=4)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED or (module.startswith("numpy.dtypes") and name.endswith("DType")):
            return super().find_class(module, name)
        raise LoadError(
            f"the file holds a {module}.{name}, not only tensors and plain values; "
            f"load(..., weights_only=False) reads it, and may run code in it: do so only for files you trust"
        )


def load(f: str | os.PathLike[str] | IO[bytes], weights_only: bool = True) -> Any:
    """Read what `save` wrote. Raises LoadError naming the file if it is damaged or holds more than was allowed."""
    if isinstance(f, (str, os.PathLike)):
        with open(f, "rb") as file:
            return _read(file, str(f), weights_only)
    return _read(f, getattr(f, "name", "the stream"), weights_only)


def _read(file: IO[bytes], name: str, weights_only: bool) -> Any:
    try:
        return (_Unpickler if weights_only else pickle.Unpickler)(file).load()
    except LoadError as e:
        raise LoadError(f"{name}: {e}") from None
    except Exception as e:  # a damaged pickle may raise anything
        raise LoadError(f"{name}: not a file that meganeura.save wrote, or a damaged one ({type(e).__name__}: {e})") from e
