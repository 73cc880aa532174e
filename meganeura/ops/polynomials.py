"""Orthogonal polynomials of a degree, by their recurrences: a few elementwise ops a degree. As in PyTorch, negative degrees give 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import DTypeError
from ..provenance import site
from .factory import whole
from .table import composite

if TYPE_CHECKING:
    from ..tensor import Tensor

Step = Callable[[Any, Any, Any, int], Any]  # (x, P_k, P_(k-1), k) -> P_(k+1)


def _twice(x: Any, p: Any, before: Any, k: int) -> Any:
    return 2 * x * p - before


def _laguerre(x: Any, p: Any, before: Any, k: int) -> Any:
    return ((2 * k + 1 - x) * p - k * before) / (k + 1)


def _legendre(x: Any, p: Any, before: Any, k: int) -> Any:
    return ((2 * k + 1) * x * p - k * before) / (k + 1)


# Name -> P_1 as a function of x, and the step from two degrees to the next.
_FAMILIES: dict[str, tuple[Callable[[Any], Any], Step, str]] = {
    "chebyshev_polynomial_t": (lambda x: x, _twice, "Chebyshev polynomial of the first kind"),
    "chebyshev_polynomial_u": (lambda x: 2 * x, _twice, "Chebyshev polynomial of the second kind"),
    "chebyshev_polynomial_v": (lambda x: 2 * x - 1, _twice, "Chebyshev polynomial of the third kind"),
    "chebyshev_polynomial_w": (lambda x: 2 * x + 1, _twice, "Chebyshev polynomial of the fourth kind"),
    "hermite_polynomial_h": (lambda x: 2 * x, lambda x, p, q, k: 2 * x * p - 2 * k * q, "physicist's Hermite polynomial"),
    "hermite_polynomial_he": (lambda x: x, lambda x, p, q, k: x * p - k * q, "probabilist's Hermite polynomial"),
    "laguerre_polynomial_l": (lambda x: 1 - x, _laguerre, "Laguerre polynomial"),
    "legendre_polynomial_p": (lambda x: x, _legendre, "Legendre polynomial"),
}


def _polynomial(name: str, first: Callable[[Any], Any], step: Step, what: str, shifted: bool) -> None:
    def call(input: Tensor, n: int) -> Tensor:
        if hasattr(n, "layout"):
            raise DTypeError(f"{name} takes a number as its degree n, got a tensor {n.layout}\n  at {site()}")
        degree = whole(n, "the degree n")
        x: Tensor = input if input.is_floating_point() else input.float()
        x = 2 * x - 1 if shifted else x
        if degree < 1:
            return x.ones_like(requires_grad=False) if degree == 0 else x.zeros_like(requires_grad=False)  # type: ignore[no-any-return]
        before, p = 1, first(x)
        for k in range(1, degree):
            before, p = p, step(x, p, before, k)
        return p.clone() if p is input else p  # type: ignore[no-any-return]

    call.__name__ = name
    call.__doc__ = f"The {what} of degree n{', at 2x - 1' if shifted else ''}. [*] -> [*]."
    composite(method=False)(call)


for _name, _family in _FAMILIES.items():
    _polynomial(_name, *_family, shifted=False)
    if _name.startswith("chebyshev"):
        _polynomial(f"shifted_{_name}", *_family, shifted=True)
POLYNOMIALS = (*_FAMILIES, *(f"shifted_{n}" for n in _FAMILIES if n.startswith("chebyshev")))
