"""Functions of the vectors along a dimension: glu, gumbel_softmax, normalize."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import DTypeError, ShapeError
from ..provenance import site
from ..shape import normalize_dim
from . import reduce
from .activation import softmax
from .factory import arange, rand_like
from .pointwise import log, neg, sigmoid
from .reductions import linalg_vector_norm
from .table import composite
from .views import located, narrow, reshape

if TYPE_CHECKING:
    from ..tensor import Tensor


@composite(method=False)
def glu(input: Tensor, dim: int = -1) -> Tensor:
    """The first half along dim times the sigmoid of the second. [*, 2N, *] -> [*, N, *]. Source: arXiv:1612.08083."""
    d = located(normalize_dim, dim, input.ndim)
    if not input.ndim or input.shape[d] % 2:
        raise ShapeError(f"glu: dimension {dim} of a tensor of shape {list(input.shape)} cannot be halved\n  at {site()}")
    half = input.shape[d] // 2
    return narrow(input, d, 0, half) * sigmoid(narrow(input, d, half, half))  # type: ignore[no-any-return]


@composite(method=False)
def gumbel_softmax(logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    """A softmax sample of the categories that logits weigh; hard gives one-hot values with the soft gradient. [*] -> [*].

    Source: arXiv:1611.01144. `eps` has no effect, as in PyTorch.
    """
    if not logits.is_floating_point():
        raise DTypeError(f"gumbel_softmax takes floating point logits, got {logits.layout}\n  at {site()}")
    noise = neg(log(neg(log(rand_like(logits) + 2.0**-25))))
    soft = softmax((logits + noise) / tau, dim)
    if not hard:
        return soft
    d = located(normalize_dim, dim, logits.ndim)
    places = reshape(arange(logits.shape[d]), *(-1 if i == d else 1 for i in range(logits.ndim)))
    one_hot = (places == reduce.argmax(soft.detach(), d, True)).to(soft.dtype)
    return one_hot - soft.detach() + soft  # type: ignore[no-any-return]


def _floats(name: str, *tensors: Tensor) -> None:
    for t in tensors:
        if not t.is_floating_point():
            raise DTypeError(f"{name} takes floating point tensors, got {t.layout}\n  at {site()}")


@composite(method=False)
def normalize(input: Tensor, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> Tensor:
    """input / max(its p-norm along dim, eps). [*] -> [*]."""
    _floats("normalize", input)
    return input / linalg_vector_norm(input, p, dim, True).clamp(min=eps)  # type: ignore[no-any-return]
