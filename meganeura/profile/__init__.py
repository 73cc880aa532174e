"""`with meganeura.profile() as p:` where the time of a block goes, on the GPU by dispatch and on the host by span.

In: the work of the block, eager and compiled. Out: a Profile: `table()`, `json()`, `trace()` (for Perfetto), a picture in notebooks.
capture.py listens while the block runs; clock.py brings the device's clock to the host's; rows.py makes rows of both;
table.py, page.py and perfetto.py show them; limits.py and cost.py measure the device and the profile itself.
Must not know: how any op or kernel works; bytes and operations come from kernels/work.py.
This package is callable: the module itself is `meganeura.profile`.
"""

from __future__ import annotations

import inspect
import sys
import types
from typing import Any

from .api import Profile
from .cost import Overhead, overhead
from .limits import Ceiling, ceiling

__all__ = ["Ceiling", "Overhead", "Profile", "ceiling", "overhead", "span"]

span = Profile.span


class _Callable(types.ModuleType):
    """A package that is also the class of its name."""

    def __call__(self, **options: Any) -> Profile:
        return Profile(**options)


_module = sys.modules[__name__]
_module.__class__ = _Callable
_module.__signature__ = inspect.signature(Profile)  # type: ignore[attr-defined]
