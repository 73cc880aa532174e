"""Random counts. Drawn by numpy on the host, from the same generators as everything: they wait for the device and cannot be compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import dispatch
from .. import random as _random
from ..errors import DTypeError, ShapeError
from ..provenance import site
from ..shape import broadcast_shapes, numel
from . import views
from .table import composite

if TYPE_CHECKING:
    from ..tensor import Tensor


def _drawn(what: str, inputs: tuple[Tensor, ...], generator: Any, draw: Callable[..., Any]) -> Tensor:
    for t in inputs:
        if not t.is_floating_point():
            raise DTypeError(f"{what} takes floating point tensors, got {t.layout}\n  at {site()}")
    shape = views.located(broadcast_shapes, *(t.shape for t in inputs))
    top = dispatch.current()
    arrays = [np.asarray(top.read(t.detach()), np.float64) for t in inputs]
    rng = np.random.default_rng((generator or _random.default_generator).reserve(numel(shape)))
    try:
        return top.upload(inputs[0].dtype, np.asarray(draw(rng, *arrays), np.float64))
    except ValueError as e:
        raise ShapeError(f"{what}: {e}\n  at {site()}") from None


@composite(method=False)
def poisson(input: Tensor, generator: Any = None) -> Tensor:
    """Counts of Poisson distributions with these rates. [*] -> [*]."""
    return _drawn("poisson", (input,), generator, lambda rng, rate: rng.poisson(rate))


@composite(method=False)
def binomial(count: Tensor, prob: Tensor, generator: Any = None) -> Tensor:
    """Successes among count tries of probability prob. [*], [*] -> [*]."""
    return _drawn("binomial", (count, prob), generator, lambda rng, n, p: rng.binomial(n.astype(np.int64), p))
