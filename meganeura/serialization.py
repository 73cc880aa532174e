"""Values to and from numpy, and mg.save / mg.load: pickles in which tensors are numpy arrays.

`load` by default builds nothing but tensors, containers, numbers, strings and numpy arrays, so a file from somebody else
can run no code; `weights_only=False` reads whole modules and optimizers, of files you trust.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


STALE = 60.0  # seconds after which a temporary file that nobody holds is what a killed process left


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
    _sweep(target)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    temporary = Path(name)
    held = _lock(handle)
    if not held:  # Windows would not rename over the target with the file open
        os.close(handle)
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
    finally:
        if held:
            os.close(handle)
    if os.name == "posix":
        _sync(target.parent)


def _lock(handle: int) -> bool:
    """Mark a temporary file as being written, until this process closes it or dies. False if another process does."""
    try:
        import fcntl
    except ImportError:  # Windows: leftovers stay
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sweep(target: Path) -> None:
    """Remove temporary files of writers of `target` that were killed: nobody holds them, and they are not just being made."""
    for path in target.parent.iterdir() if target.parent.is_dir() else ():
        if not (path.name.startswith(f".{target.name}.") and path.name.endswith(".tmp")):
            continue
        with suppress(OSError):
            handle = os.open(path, os.O_RDWR)
            try:
                if time.time() - path.stat().st_mtime > STALE and _lock(handle):
                    path.unlink()
            finally:
                os.close(handle)


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
