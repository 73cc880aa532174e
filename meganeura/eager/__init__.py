"""Eager: runs each op when it is called, on the device. In: bound ops. Out: tensors whose work is recorded, not awaited.

Must not know compile. The tape itself is in autodiff, one for all interpreters.
"""

from __future__ import annotations

from .interpreter import Eager, default

__all__ = ["Eager", "default"]
