"""The op table. In: a row's arguments. Out: rows (REGISTRY) and composites (COMPOSITES) that everything else is derived from.

Rows say what an op computes (archetype, numpy reference, gradient, shape rule); they know no kernel, device or tape.
"""

from __future__ import annotations

from . import activation, arithmetic, creation, factory, index, losses, matmul, move, norm, optimizer, pointwise, products, reduce, views
from .table import COMPOSITES, REGISTRY, Op, Spec, op

__all__ = [
    "COMPOSITES", "REGISTRY", "Op", "Spec", "activation", "arithmetic", "creation", "factory", "index", "losses", "matmul", "move", "norm",
    "op", "optimizer", "pointwise", "products", "reduce", "views",
]  # fmt: skip
