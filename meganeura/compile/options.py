"""How a function is compiled."""

from __future__ import annotations

EGGLOG = ("egglog-windowed", "egglog-outlined", "egglog-whole")


class Options:
    """`rewrite` 'off', 'greedy' or one of EGGLOG; `debug` checks after every pass; `reuse`: whether values may share memory."""

    __slots__ = ("debug", "reuse", "rewrite")

    def __init__(self, rewrite: str, debug: bool, reuse: bool) -> None:
        self.rewrite, self.debug, self.reuse = rewrite, debug, reuse
