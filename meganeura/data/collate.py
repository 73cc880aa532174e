"""Samples to batches (numpy), and batches of numpy to tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..dtype import dtype as as_dtype
from ..errors import ShapeError
from ..tensor import Tensor, upload


def default_collate(samples: Sequence[Any]) -> Any:
    """Stack samples: arrays and numbers along a new first dimension; tuples, lists and dicts part by part; text as a list."""
    first = samples[0]
    if isinstance(first, Tensor):
        raise TypeError(
            "a sample holds a Tensor, but batches are made in worker threads, which may not touch the device; "
            "return numpy arrays from the dataset (t.numpy() once, when it is made)"
        )
    if isinstance(first, (str, bytes)) or first is None:
        return list(samples)
    if isinstance(first, Mapping):
        return {key: default_collate([s[key] for s in samples]) for key in first}
    if isinstance(first, (tuple, list)):
        if any(len(s) != len(first) for s in samples):
            raise ShapeError(f"samples have different numbers of parts: {sorted({len(s) for s in samples})}")
        parts = [default_collate(part) for part in zip(*samples, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    arrays = [np.asarray(s) for s in samples]
    if arrays[0].dtype == object:
        raise TypeError(f"cannot make a batch of {type(first).__name__}; give the loader a collate_fn")
    shapes = {a.shape for a in arrays}
    if len(shapes) > 1:
        raise ShapeError(f"samples of one batch have different shapes: {', '.join(str(list(s)) for s in sorted(shapes))}")
    return np.stack(arrays)


def to_tensors(batch: Any) -> Any:
    """The same structure with numpy arrays as tensors; everything else as it is."""
    return _mapped(batch, lambda a: upload(a, as_dtype(a.dtype)))


def _mapped(value: Any, fn: Callable[[np.ndarray[Any, Any]], Any]) -> Any:
    if isinstance(value, np.ndarray):
        return fn(value) if value.dtype.kind in "biuf" else value
    if isinstance(value, Mapping):
        return {k: _mapped(v, fn) for k, v in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(v, fn) for v in value))
    if isinstance(value, (tuple, list)):
        return type(value)(_mapped(v, fn) for v in value)
    return value
