"""The IDX format of MNIST: big-endian magic (two zero bytes, type, rank), a size a dimension, then the values."""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from typing import Any

import numpy as np

from ..errors import LoadError
from ..shape import numel

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: str | os.PathLike[str]) -> np.ndarray[Any, Any]:
    """The array in an IDX file, plain or gzipped (told by its first bytes, not its name). Raises LoadError if it is damaged."""
    name = os.fspath(path)
    try:
        with open(path, "rb") as file:
            raw = file.read()
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
    except FileNotFoundError:
        raise LoadError(f"{name}: no such file") from None
    except (OSError, EOFError, zlib.error) as e:
        raise LoadError(f"{name}: cannot be read ({e})") from e
    if len(raw) < 4:
        raise LoadError(f"{name}: {len(raw)} bytes ({raw.hex(' ') or 'empty'}) are too few for an IDX header of 4")
    if raw[:2] != b"\0\0" or raw[2] not in _TYPES:
        raise LoadError(f"{name}: not an IDX file: it starts with {raw[:4].hex(' ')}, expected 00 00, a type ({_types()}) and the rank")
    rank = raw[3]
    start = 4 + 4 * rank
    if len(raw) < start:
        raise LoadError(f"{name}: the header of rank {rank} takes {start} bytes, the file has {len(raw)}")
    shape = struct.unpack(f">{rank}I", raw[4:start])
    dtype = np.dtype(_TYPES[raw[2]])
    expected = numel(shape) * dtype.itemsize
    if len(raw) - start != expected:
        found = len(raw) - start
        raise LoadError(f"{name}: shape {list(shape)} of {dtype.name} takes {expected} bytes after the header, the file has {found}")
    return np.frombuffer(raw, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="))


def _types() -> str:
    return ", ".join(f"{t:02x}" for t in _TYPES)
