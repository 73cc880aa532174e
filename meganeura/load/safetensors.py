"""safetensors files, single or sharded: validated by the safetensors package, read through a memory map tensor by tensor."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..dtype import DType, bfloat16, bool_, float16, float32, int8, int32, int64, uint8, uint32
from ..errors import LoadError, MeganeuraError
from ..serialization import as_array, replacing
from ..shape import numel
from ..tensor import Tensor, upload

Array = np.ndarray[Any, Any]
_DTYPES: dict[str, tuple[str, DType]] = {  # safetensors' name -> (numpy type of the bytes, dtype here)
    "F32": ("<f4", float32), "F16": ("<f2", float16), "BF16": ("<u2", bfloat16), "F64": ("<f8", float32),
    "I64": ("<i8", int64), "I32": ("<i4", int32), "I16": ("<i2", int32), "I8": ("<i1", int8),
    "U32": ("<u4", uint32), "U16": ("<u2", int32), "U8": ("<u1", uint8), "BOOL": ("?", bool_),
}  # fmt: skip
_SAVED = {
    float32: "F32",
    float16: "F16",
    bfloat16: "BF16",
    int64: "I64",
    int32: "I32",
    int8: "I8",
    uint32: "U32",
    uint8: "U8",
    bool_: "BOOL",
}


class Entry(NamedTuple):
    """Where a tensor lies: dtype by safetensors' name, shape, and bytes [begin, end) of the file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def logical(self) -> DType:
        """The dtype of the tensor it becomes here."""
        return _DTYPES[self.dtype][1]


class Stored(NamedTuple):
    """A tensor as a file holds it: contiguous values, dtype, that by safetensors' name, shape."""

    array: Array
    dtype: DType
    kind: str
    shape: tuple[int, ...]

    def raw(self) -> memoryview:
        """Its bytes."""
        return self.array.reshape(-1).view(np.uint8).data


def save_safetensors(tensors: Mapping[str, Any], path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors (or arrays) by name, with text metadata. Atomic: on any error the file at `path` is what it was."""
    write_stored({name: stored(name, value) for name, value in tensors.items()}, path, metadata)


def write_stored(values: Mapping[str, Stored], path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors that are on the host already.

    Written here, because the package's own writer leaves files behind under names of its own when it is killed.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    order = sorted(values, key=lambda n: (-values[n].array.itemsize, n))  # so that every tensor is aligned
    end = 0
    for name in order:
        v = values[name]
        header[name] = {"dtype": v.kind, "shape": list(v.shape), "data_offsets": [end, end := end + v.array.nbytes]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in order:
            file.write(values[name].raw())


def stored(name: str, value: Any) -> Stored:
    """A Tensor, array or nested list as a file holds it. Tensors are read from the device."""
    try:
        array = as_array(value)
    except TypeError as e:
        raise LoadError(f"tensor {name!r} cannot be saved: {e}") from e
    if isinstance(value, Tensor):
        kind = value.dtype
        if kind is bfloat16:
            array = (np.ascontiguousarray(array, np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    elif array.dtype.kind in "biuf":
        kind = next((d for d in _SAVED if d is not bfloat16 and d.numpy == array.dtype), float32)
        array = array.astype(kind.numpy)
    else:
        raise LoadError(f"tensor {name!r} cannot be saved: numpy dtype {array.dtype}")
    shape = value.shape if isinstance(value, Tensor) else array.shape
    return Stored(np.ascontiguousarray(array, array.dtype.newbyteorder("<")), kind, _SAVED[kind], tuple(shape))


def load_safetensors(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Tensors by name from a .safetensors file, a sharded model's index.json, or a folder that holds either.

    Every header is checked before the first tensor is made. LoadError names the file and the tensor.
    """
    entries = read_entries(Path(path))
    return {name: _tensor(name, entry) for name, entry in entries.items()}


def read_entries(path: Path) -> dict[str, Entry]:
    """What a file, an index or a folder holds, by name; all headers are read and checked."""
    file = _resolve(path)
    if file.suffix != ".json":
        return _entries(file)
    found: dict[str, Entry] = {}
    shards: dict[str, dict[str, Entry]] = {}
    for name, shard in _weight_map(file).items():
        if shard not in shards:
            if Path(shard).name != shard:
                raise LoadError(f"{file}: tensor {name!r} is said to lie outside the folder, in {shard!r}")
            shards[shard] = _entries(file.parent / shard)
        if name not in shards[shard]:
            raise LoadError(f"{file.parent / shard}: tensor {name!r} is missing, which {file.name} says is there")
        found[name] = shards[shard][name]
    return found


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The text metadata of a .safetensors file."""
    header, _ = _header(Path(path))
    found = header.get("__metadata__", {})
    return dict(found) if isinstance(found, dict) else {}


def _resolve(path: Path) -> Path:
    if not path.is_dir():
        return path
    for pattern in ("model.safetensors", "*.safetensors.index.json", "*.safetensors"):
        files = sorted(path.glob(pattern))
        if len(files) == 1:
            return files[0]
        if files:
            raise LoadError(f"{path}: holds several files {pattern}: {', '.join(f.name for f in files)}; name one")
    raise LoadError(f"{path}: holds no .safetensors file")


def _weight_map(file: Path) -> dict[str, str]:
    try:
        index = json.loads(file.read_bytes())
        weights = index["weight_map"]
        if not all(isinstance(v, str) for v in weights.values()):
            raise TypeError("weight_map must map names to file names")
    except FileNotFoundError:
        raise LoadError(f"{file}: no such file") from None
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise LoadError(f"{file}: not an index of safetensors shards ({type(e).__name__}: {e})") from e
    return dict(weights)


def _entries(file: Path) -> dict[str, Entry]:
    """Check one file's header with the safetensors package; then its entries."""
    import safetensors

    if not file.is_file():
        raise LoadError(f"{file}: no such file")
    try:
        with safetensors.safe_open(str(file), framework="np"):
            pass
    except (safetensors.SafetensorError, OSError) as e:
        raise LoadError(f"{file}: {_culprit(file)}{e}") from e
    header, start = _header(file)
    out = {}
    for name, fields in header.items():
        if name == "__metadata__":
            continue
        if fields["dtype"] not in _DTYPES:
            raise LoadError(f"{file}: tensor {name!r} has dtype {fields['dtype']}; there are {', '.join(_DTYPES)}")
        begin, end = fields["data_offsets"]
        out[name] = Entry(file, fields["dtype"], tuple(fields["shape"]), start + begin, start + end)
    return out


def _header(file: Path) -> tuple[dict[str, Any], int]:
    """The JSON header, and where the data begins."""
    with open(file, "rb") as f:
        (size,) = struct.unpack("<Q", f.read(8))
        return json.loads(f.read(size)), 8 + size


def _culprit(file: Path) -> str:
    """'tensor NAME: ' for the first tensor whose place in a damaged file cannot be right, if one can be told."""
    try:
        header, start = _header(file)
        size = file.stat().st_size - start
        for name, fields in header.items():
            if name == "__metadata__":
                continue
            begin, end = fields["data_offsets"]
            kind = _DTYPES.get(fields["dtype"])
            wanted = None if kind is None else numel(fields["shape"]) * np.dtype(kind[0]).itemsize
            if kind is None:
                return f"tensor {name!r} has dtype {fields['dtype']}: "
            if end > size or end - begin != wanted:
                return f"tensor {name!r} of {fields['dtype']}{fields['shape']} needs {wanted} bytes at [{begin}, {end}) of {size}: "
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, OSError, MemoryError, OverflowError):
        pass
    return ""


def read_array(entry: Entry) -> Array:
    """A tensor's values; bfloat16 as float32. Reads only its own bytes."""
    kind = np.dtype(_DTYPES[entry.dtype][0])
    if entry.begin == entry.end:
        return np.zeros(entry.shape, np.float32 if entry.dtype == "BF16" else kind)
    raw: Any = np.memmap(entry.file, kind, "r", offset=entry.begin, shape=entry.shape or (1,)).reshape(entry.shape)
    if entry.dtype == "BF16":
        raw = (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
    elif entry.dtype == "BOOL":
        raw = raw.view(np.uint8) != 0
    return np.asarray(raw)


def _tensor(name: str, entry: Entry) -> Tensor:
    try:
        return upload(read_array(entry), _DTYPES[entry.dtype][1])
    except (MeganeuraError, OSError, ValueError) as e:
        raise LoadError(f"{entry.file}: tensor {name!r}: {e}") from e
