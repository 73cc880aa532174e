"""Storage (memory with an identity) and Layout (how a tensor lies in it). Knows no device and no op."""

from __future__ import annotations

import itertools
from typing import Any

from .dtype import DType
from .shape import Shape, contiguous_strides, extent, is_contiguous, numel

_uids = itertools.count(1)


class Layout:
    """dtype, shape, strides and offset of one operand, in elements. Interned: equal layouts are one object."""

    __slots__ = ("__weakref__", "_span", "contiguous", "dtype", "numel", "offset", "shape", "strides")
    _interned: dict[tuple[Any, ...], Layout] = {}
    dtype: DType
    shape: Shape
    strides: Shape
    offset: int
    numel: int
    contiguous: bool
    _span: tuple[int, int] | None

    def __new__(cls, dtype: DType, shape: Shape, strides: Shape | None = None, offset: int = 0) -> Layout:
        strides = contiguous_strides(shape) if strides is None else strides
        key = (dtype, shape, strides, offset)
        found = cls._interned.get(key)
        if found is not None:
            return found
        self = object.__new__(cls)
        self.dtype, self.shape, self.strides, self.offset = key
        self.numel = numel(shape)
        self.contiguous = is_contiguous(shape, strides)
        self._span = None
        if len(cls._interned) > 65536:  # layouts compare by identity, so a dropped one only costs a second entry in caches
            cls._interned.clear()
        cls._interned[key] = self
        return self

    def with_(
        self, dtype: DType | None = None, shape: Shape | None = None, strides: Shape | None = None, offset: int | None = None
    ) -> Layout:
        """A copy with some fields replaced; a new shape without strides is contiguous."""
        if shape is not None and strides is None:
            strides = contiguous_strides(shape)
        return Layout(
            dtype or self.dtype,
            self.shape if shape is None else shape,
            self.strides if strides is None else strides,
            self.offset if offset is None else offset,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return Layout, (self.dtype, self.shape, self.strides, self.offset)  # copies are the interned one

    def span(self) -> tuple[int, int]:
        """First and last element index touched in the storage; last < first when there are no elements."""
        found = self._span
        if found is None:
            low, high = extent(self.shape, self.strides)
            found = self._span = self.offset + low, self.offset + high
        return found

    def __repr__(self) -> str:
        tail = "" if self.contiguous and self.offset == 0 else f", strides={list(self.strides)}, offset={self.offset}"
        return f"{self.dtype.name}{list(self.shape)}{tail}"


def padded_bytes(elements: int, dtype: DType) -> int:
    """Bytes to allocate for a number of elements: padded to 16, at least 16, so that vec4 tails stay inside."""
    return max(16, -(-elements * dtype.itemsize // 16) * 16)


class Storage:
    """A piece of memory: `buffer` is a device buffer, a numpy array (Reference) or None (symbolic, under Trace).

    `uid` never repeats; with `generation` (bumped when the buffer is replaced) it keys every cache. `version` counts
    in-place writes. `release` is called with the buffer when the storage dies; it must only append to a queue.
    """

    __slots__ = ("__weakref__", "buffer", "dtype", "elements", "generation", "release", "uid", "version", "world")
    __weakref__: Any

    def __init__(self, dtype: DType, elements: int, buffer: Any = None, world: Any = None, release: Any = None) -> None:
        self.uid = next(_uids)
        self.generation = 0
        self.version = 0
        self.dtype = dtype
        self.elements = elements
        self.buffer = buffer
        self.world = world
        self.release = release

    def renew(self) -> None:
        """Become another storage over the same buffer, for one who knows that nobody else knows this one and will write it: that write
        makes it a new one, at version 0."""
        self.uid, self.version = next(_uids), -1

    @property
    def nbytes(self) -> int:
        return padded_bytes(self.elements, self.dtype)

    def __del__(self) -> None:
        try:
            release = self.release
        except AttributeError:  # Ctrl-C struck before __init__
            return
        if release is not None and self.buffer is not None:
            release(self.buffer)
