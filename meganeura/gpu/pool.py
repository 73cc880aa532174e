"""Device buffers by size class: what is freed is handed out again, what idles too long or too large is destroyed.

A buffer may be reused at once by later dispatches, because they run behind the earlier ones; only uploads, which run
before all unsubmitted work, need one whose last use was submitted (`epoch`). Destruction waits until that submit retired.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

MIN_CLASS = 256
HOT = 48  # buffers used last, among which an idle one is looked for: more than uploads are under way


class Buffer:
    """Device memory of `size` bytes (its class). `uid` never repeats; `epoch` is the submit that last uses it.

    `groups` are the cached bind groups that name it; they are dropped before it is destroyed. `error`: what kept it from
    being written, until it is handed out again.
    """

    __slots__ = ("__weakref__", "device", "epoch", "error", "groups", "handle", "idle", "shared", "size", "uid")

    def __init__(self, device: Any, handle: Any, size: int, uid: int) -> None:
        self.device, self.handle, self.size, self.uid = device, handle, size, uid
        self.epoch = -1
        self.error: Exception | None = None
        self.idle = False  # in the pool
        self.shared: Any = None  # the owner's GPUBuffer when the memory is not ours
        self.groups: set[Any] = set()

    def check(self) -> None:
        """Raise what kept this buffer from being written; a new exception, because a raised one keeps frames alive."""
        if self.error is not None:
            raise type(self.error)(*self.error.args)

    def __repr__(self) -> str:
        return f"<Buffer {self.uid}, {self.size} bytes{', destroyed' if self.handle is None else ''}>"


def size_class(nbytes: int) -> int:
    """The bytes to allocate for a request: four classes an octave, so at most a quarter more than asked (from 256 up)."""
    if nbytes <= MIN_CLASS:
        return MIN_CLASS
    step = 1 << ((nbytes - 1).bit_length() - 3)
    return -(-nbytes // step) * step


class Pool:
    """Free buffers by class and the accounting of all. Touches the device only through `create` and `destroy`."""

    def __init__(self, create: Callable[[int], Buffer], destroy: Callable[[Buffer], None], idle_limit: int, cap: int) -> None:
        self.create, self.destroy = create, destroy
        self.idle_limit = idle_limit  # bytes kept for reuse
        self.cap = cap  # largest size that one binding reaches; classes round up to it at most
        self.free: dict[int, deque[Buffer]] = {}
        self.classes: dict[int, int] = {}  # request -> class, bounded by clearing
        self.doomed: list[Buffer] = []  # to destroy once their last submit retired
        self.submitted = -1  # the last epoch that was submitted
        self.live = self.pooled = self.peak = self.count = 0

    def rounded(self, nbytes: int) -> int:
        """The class of a request; never past the binding limit when the request itself is within it."""
        size = self.classes.get(nbytes)
        if size is None:
            if len(self.classes) > 4096:
                self.classes.clear()
            size = size_class(nbytes)
            if size > self.cap >= nbytes:
                size = self.cap
            self.classes[nbytes] = size
        return size

    def take(self, nbytes: int, epoch: int, idle: bool, exact: bool = False) -> Buffer:
        """A buffer of at least nbytes, contents undefined; with `idle` one that no unsubmitted work (of `epoch` and later) uses. `exact`:
        of no class, only padded."""
        size = -(-nbytes // MIN_CLASS) * MIN_CLASS if exact else self.rounded(nbytes)
        queue = self.free.get(size)
        buffer = None
        if queue:
            if not idle:
                buffer = queue.pop()  # the hottest: caches and bind groups know it
            else:
                place = next((k for k in range(-1, -min(len(queue), HOT) - 1, -1) if queue[k].epoch < epoch), 0)
                if queue[place].epoch < epoch:
                    buffer = queue[place]
                    del queue[place]
        if buffer is None:
            buffer = self.create(size)
            self.count += 1
        else:
            self.pooled -= size
            buffer.idle = False
            buffer.error = None
        self.live += size
        self.peak = max(self.peak, self.live + self.pooled)
        return buffer

    def give(self, buffer: Buffer) -> None:
        """Take a buffer back. One that was given back already, or was destroyed, is left alone."""
        if buffer.idle or buffer.handle is None:
            return
        size = buffer.size
        self.live -= size
        self.pooled += size
        buffer.idle = True
        queue = self.free.get(size)
        if queue is None:
            queue = self.free[size] = deque()
        queue.append(buffer)
        if self.pooled > self.idle_limit:
            self.trim(self.idle_limit // 2)

    def trim(self, keep: int = 0) -> None:
        """Doom idle buffers, the largest classes' coldest first, until at most `keep` idle bytes are left."""
        for size in sorted(self.free, reverse=True):
            queue = self.free[size]
            while queue and self.pooled > keep:
                buffer = queue.popleft()
                self.pooled -= size
                buffer.epoch = max(buffer.epoch, self.submitted)  # replayed lists note no use
                self.doomed.append(buffer)
            if not queue:
                del self.free[size]

    def reap(self, retired: int) -> int:
        """Destroy the doomed buffers whose last submit is at most `retired`; returns how many bytes went."""
        if not self.doomed:
            return 0
        gone = [b for b in self.doomed if b.epoch <= retired]
        if gone:
            self.doomed = [b for b in self.doomed if b.epoch > retired]
        for buffer in gone:
            self.count -= 1
            self.destroy(buffer)
        return sum(b.size for b in gone)
