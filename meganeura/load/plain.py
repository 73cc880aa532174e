"""Plain Python values as JSON and back, exactly: tuples, keys of any plain type, small arrays, infinities and NaN included.

Tensors and larger arrays are handed to a function that keeps them elsewhere; JSON holds what it returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..tensor import Tensor

TAG = "~"  # the only key of a JSON object that stands for something else


def encode(value: Any, keep: Callable[[Any], Any] | None = None, where: str = "") -> Any:
    """A JSON form. TypeError naming the place of a value that has none. `keep`: makes a text key of a Tensor or array."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return float(value)
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, list):
        return [encode(v, keep, f"{where}[{i}]") for i, v in enumerate(value)]
    if isinstance(value, dict):
        return _encode_dict(value, keep, where)
    if isinstance(value, (tuple, set, frozenset)):
        items = [encode(v, keep, f"{where}[{i}]") for i, v in enumerate(value)]
        return {TAG: [type(value).__name__ if type(value) in _SEQUENCES.values() else "tuple", items]}
    if isinstance(value, (Tensor, np.ndarray)):
        if keep is not None and (key := keep(value)) is not None:
            return {TAG: ["tensor", key]}
        array = value.detach().numpy() if isinstance(value, Tensor) else value
        if array.dtype.kind in "biuf":
            return {TAG: ["array", [array.dtype.str, list(array.shape), array.ravel().tolist()]]}
    raise TypeError(f"{where or 'the value'} is a {type(value).__name__}, which is neither a plain value nor a tensor")


def _encode_dict(value: dict[Any, Any], keep: Any, where: str) -> Any:
    if all(isinstance(k, str) for k in value) and TAG not in value:
        return {k: encode(v, keep, f"{where}[{k!r}]") for k, v in value.items()}
    pairs = [[encode(k, None, f"a key of {where}"), encode(v, keep, f"{where}[{k!r}]")] for k, v in value.items()]
    return {TAG: ["dict", pairs]}


_SEQUENCES: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset}


def decode(value: Any, kept: Callable[[str], Any] | None = None) -> Any:
    """What `encode` was given. ValueError for JSON that it did not make. `kept`: the value of a key that `keep` made."""
    if isinstance(value, list):
        return [decode(v, kept) for v in value]
    if not isinstance(value, dict):
        return value
    if TAG not in value:
        return {k: decode(v, kept) for k, v in value.items()}
    kind, content = value[TAG]
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](decode(v, kept) for v in content)
    if kind == "dict":
        return {decode(k): decode(v, kept) for k, v in content}
    if kind == "array":
        dtype, shape, items = content
        return np.array(items, np.dtype(dtype)).reshape(shape)
    if kind == "tensor" and kept is not None:
        return kept(content)
    raise ValueError(f"unknown mark {kind!r}")
