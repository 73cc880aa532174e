"""Random numbers: Philox4x32-10 in numpy (bit for bit what the kernels draw), and the counters that the host keeps.

A draw of n elements takes one number of the stream; element i uses word i % 4 of the block
Philox(counter = (i // 4, 0, offset lo, offset hi), key = seed). So a draw depends on the seed, on how many draws came
before, and on the element's row-major index: never on shapes of other tensors, kernels or devices.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ROUND = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF

Words = tuple[int, int, int, int]  # seed lo, seed hi, offset lo, offset hi


def philox4x32_10(counter: NDArray[np.uint32], key: tuple[int, int]) -> NDArray[np.uint32]:
    """Ten rounds of Philox4x32 on counters [n, 4]; gives [n, 4]. Source: Salmon et al., SC 2011."""
    c = [counter[:, i].astype(np.uint64) for i in range(4)]
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c[0] * np.uint64(_ROUND[0]), c[2] * np.uint64(_ROUND[1])
        (h0, l0), (h1, l1) = ((p >> np.uint64(32), p & np.uint64(_MASK)) for p in (p0, p1))
        c = [h1 ^ c[1] ^ np.uint64(k0), l1, h0 ^ c[3] ^ np.uint64(k1), l0]
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return np.stack(c, axis=1).astype(np.uint32)


def bits(count: int, words: Words) -> NDArray[np.uint32]:
    """The random words of elements 0..count-1 of a draw. [count]"""
    blocks = np.zeros((-(-count // 4), 4), np.uint32)
    blocks[:, 0] = np.arange(len(blocks), dtype=np.uint32)
    blocks[:, 2], blocks[:, 3] = words[2], words[3]
    return philox4x32_10(blocks, (words[0], words[1])).reshape(-1)[:count]


def uniform(count: int, words: Words) -> NDArray[np.float32]:
    """Uniform numbers in [0, 1) with 24 bits. [count]"""
    return (bits(count, words) >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def normal(count: int, words: Words) -> NDArray[np.float32]:
    """Normal numbers by Box and Muller, two from each pair of words. [count]"""
    drawn = (bits(-(-count // 4) * 4, words) >> np.uint32(8)).astype(np.float64).reshape(-1, 2)
    radius = np.sqrt(-2.0 * np.log((drawn[:, 0] + 1.0) * 2.0**-24))
    angle = drawn[:, 1] * (2.0 * np.pi * 2.0**-24)
    pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return pairs.reshape(-1)[:count].astype(np.float32)


class _Changes(threading.local):
    count = 0


changes = _Changes()  # seeds and positions set by this thread: a trace must see none


class Generator:
    """A seed and a position in its stream of draws. Thread-safe."""

    def __init__(self, seed: int | None = None) -> None:
        self._lock = threading.Lock()
        self.seed = self.offset = 0
        self.manual_seed(int.from_bytes(os.urandom(8), "little") if seed is None else seed)

    def manual_seed(self, seed: int) -> Generator:
        """Start the stream of a seed (any int, taken modulo 2^64) from its beginning."""
        changes.count += 1
        with self._lock:
            self.seed, self.offset = int(seed) & (1 << 64) - 1, 0
        return self

    def initial_seed(self) -> int:
        """The seed in use."""
        return self.seed

    def reserve(self, elements: int) -> Words:
        """Take the next draw, of so many elements: (seed lo, seed hi, offset lo, offset hi) for the kernel."""
        steps = max(1, -(-elements // (1 << 34)))  # one number of the stream covers 2^32 blocks of 4 elements
        with self._lock:
            offset = self.offset
            self.offset = (offset + steps) & (1 << 64) - 1
        return self.seed & _MASK, self.seed >> 32, offset & _MASK, offset >> 32

    def get_state(self) -> NDArray[np.uint64]:
        """Seed and offset. [2]"""
        with self._lock:
            return np.array([self.seed, self.offset], np.uint64)

    def set_state(self, state: Any) -> None:
        """Continue from a state that get_state gave."""
        seed, offset = np.asarray(state).reshape(2)
        changes.count += 1
        with self._lock:
            self.seed, self.offset = int(seed), int(offset)

    def __getstate__(self) -> tuple[int, int]:
        return self.seed, self.offset

    def __setstate__(self, state: tuple[int, int]) -> None:
        self._lock = threading.Lock()
        self.seed, self.offset = state

    def __repr__(self) -> str:
        return f"Generator(seed={self.seed}, offset={self.offset})"


default_generator = Generator()


def manual_seed(seed: int) -> Generator:
    """Seed the default generator and return it."""
    return default_generator.manual_seed(seed)


def seed() -> int:
    """Seed the default generator from the operating system; returns the seed."""
    return default_generator.manual_seed(int.from_bytes(os.urandom(8), "little")).seed


def initial_seed() -> int:
    """The default generator's seed."""
    return default_generator.seed


def get_rng_state() -> NDArray[np.uint64]:
    """The default generator's state. [2]"""
    return default_generator.get_state()


def set_rng_state(state: Any) -> None:
    """Restore the default generator's state."""
    default_generator.set_state(state)


@contextlib.contextmanager
def fork_rng(devices: Any = None, enabled: bool = True) -> Iterator[None]:
    """The default generator goes on after the block as if nothing had been drawn in it."""
    state = get_rng_state()
    try:
        yield
    finally:
        if enabled:
            set_rng_state(state)
