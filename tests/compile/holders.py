"""Ways in which code may know a tensor [3, 5]: none of them may see it overwritten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import meganeura as mg

HOLDS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda t: t,
    "a list": lambda t: [t],
    "a closure": lambda t: lambda: t,
    "a row": lambda t: t[1],
    "the transpose": lambda t: t.T,
    "detached": lambda t: t.detach(),
    "its storage": lambda t: t._storage,
    "what another op saved": lambda t: t * mg.ones(3, 5, requires_grad=True),
}
