"""Special functions under their names in torch.special."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .ops.polynomials import POLYNOMIALS
from .ops.table import COMPOSITES, REGISTRY

# A name here and the function it stands for.
_NAMES = {name: name for name in (
    "digamma", "entr", "erf", "erfc", "erfcx", "erfinv", "exp2", "expm1", "i0", "i0e", "i1", "i1e", "log1p", "log_ndtr", "log_softmax",
    "logit", "logsumexp", "ndtr", "ndtri", "polygamma", "round", "sinc", "softmax", "xlog1py", "xlogy",
    "zeta",
)}  # fmt: skip
_NAMES |= {"expit": "sigmoid", "gammaln": "lgamma", "multigammaln": "mvlgamma", "psi": "digamma"}
_NAMES |= {"modified_bessel_i0": "i0", "modified_bessel_i1": "i1"} | {name: name for name in POLYNOMIALS}


def __getattr__(name: str) -> Callable[..., Any]:
    target = _NAMES.get(name, "")
    found: Any = COMPOSITES.get(target) or REGISTRY.get(target)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no function {name!r}")
    return found  # type: ignore[no-any-return]


def __dir__() -> list[str]:
    return sorted(n for n, target in _NAMES.items() if target in COMPOSITES or target in REGISTRY)
