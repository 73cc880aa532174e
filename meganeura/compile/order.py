"""Orders in which steps may run: those that keep reads, writes and overwrites of every cell as they are.

In: lowered steps, and the cells that outlive them. Out: candidate orders, as lists of step numbers. Random numbers need
no order: their positions come from the host. Each order takes O(n log n) time in the number of operands.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Container, Sequence

from .ir import Cell
from .lower import Step

Order = list[int]


def dependencies(steps: Sequence[Step]) -> list[list[int]]:
    """For each step the earlier ones that it must stay behind."""
    writer: dict[Cell, int] = {}
    readers: dict[Cell, list[int]] = defaultdict(list)
    out = []
    for i, step in enumerate(steps):
        before: dict[int, None] = {}
        for cell in step.reads:
            if cell is not None:
                if cell in writer:
                    before[writer[cell]] = None
                readers[cell].append(i)
        for cell in step.writes:
            before.update(dict.fromkeys(readers.pop(cell, ())))
            if cell in writer:
                before[writer[cell]] = None
            writer[cell] = i
        before.pop(i, None)
        out.append(list(before))
    return out


def forward(steps: Sequence[Step], before: Sequence[Sequence[int]], given: Container[Cell], lasting: Container[Cell]) -> Order:
    """From the start on: what frees memory at once, else program order."""

    def size(cell: Cell) -> tuple[int, int]:
        return (0, 0) if cell in given else (cell.nbytes, 0 if cell in lasting else cell.nbytes)

    return _greedy(steps, before, size)


def backward(steps: Sequence[Step], before: Sequence[Sequence[int]], given: Container[Cell], lasting: Container[Cell]) -> Order:
    """From the end back: everything as late as its users allow, preferring what then need not be kept."""

    def size(cell: Cell) -> tuple[int, int]:
        return (0, 0) if cell in given else (0 if cell in lasting else cell.nbytes, cell.nbytes)

    n = len(steps)
    after: list[list[int]] = [[] for _ in range(n)]
    for i, earlier in enumerate(before):
        for j in earlier:
            after[n - 1 - j].append(n - 1 - i)
    return [n - 1 - i for i in reversed(_greedy(steps[::-1], after, size))]


def _greedy(steps: Sequence[Step], before: Sequence[Sequence[int]], size: Callable[[Cell], tuple[int, int]]) -> Order:
    """List scheduling. `size(cell)`: bytes that its first user takes and its last one frees. Among the steps that may run
    the one that shrinks memory most, if any does not grow it; else the first in the given order."""
    scheduler = _Scheduler(steps, before, size)
    return [scheduler.next() for _ in steps]


class _Scheduler:
    """The state of one list scheduling. What a step grows memory by only ever falls, so old entries of `shrinking` are
    pessimistic, never wrong."""

    def __init__(self, steps: Sequence[Step], before: Sequence[Sequence[int]], size: Callable[[Cell], tuple[int, int]]) -> None:
        self.touched = [list(s.touched()) for s in steps]
        self.users: dict[Cell, list[int]] = defaultdict(list)
        for i, cells in enumerate(self.touched):
            for c in cells:
                self.users[c].append(i)
        self.sizes = {c: size(c) for c in self.users}
        self.left = {c: len(u) for c, u in self.users.items()}
        self.waiting = [len(b) for b in before]
        self.after: list[list[int]] = [[] for _ in steps]
        for i, earlier in enumerate(before):
            for j in earlier:
                self.after[j].append(i)
        self.done = [False] * len(steps)
        self.ready: list[int] = []  # heap in the given order
        self.shrinking: list[tuple[int, int]] = []  # heap of (growth, step)
        for i, n in enumerate(self.waiting):
            if n == 0:
                self._offer(i)

    def _growth(self, i: int) -> int:
        out = 0
        for c in self.touched[i]:
            left = self.left[c]
            if left == len(self.users[c]):
                out += self.sizes[c][0]
            if left == 1:
                out -= self.sizes[c][1]
        return out

    def _offer(self, i: int, again: bool = False) -> None:
        if not again:
            heapq.heappush(self.ready, i)
        growth = self._growth(i)
        if growth <= 0:
            heapq.heappush(self.shrinking, (growth, i))

    def next(self) -> int:
        """The step to run now."""
        while True:
            i = heapq.heappop(self.shrinking)[1] if self.shrinking else heapq.heappop(self.ready)
            if not self.done[i]:
                break
        self.done[i] = True
        for c in self.touched[i]:
            self.left[c] -= 1
            left, users = self.left[c], self.users[c]
            if left == 1 or left == len(users) - 1:  # others now free it, or need not take it
                for j in users:
                    if not self.done[j] and self.waiting[j] == 0:
                        self._offer(j, True)
        for j in self.after[i]:
            self.waiting[j] -= 1
            if self.waiting[j] == 0:
                self._offer(j)
        return i
