"""The list of rewrite rules, one for every engine. What a pair of functions cannot say is a pass of its own.

simplify.py: algebra and copies. recognise.py and attention.py: rows of the table that code
spelled out. Order: rules about one op are tried
in the order of the list, so a pattern stands before those that match parts of it.
"""

from __future__ import annotations

import functools

from ..rule import Rule


@functools.cache
def rules() -> tuple[Rule, ...]:
    """All rules; made at the first call, since a pattern comes from tracing its function."""
    from . import attention, recognise, simplify

    return tuple(r for module in (simplify, recognise, attention) for r in module.RULES)
