"""Sums of products over named dimensions: einsum, tensordot, and the products that are einsums. Lowers to permutes and matmul."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import dispatch
from ..errors import ShapeError
from ..provenance import site
from ..shape import normalize_dim, numel
from . import move, reduce, triangular, views
from .factory import whole
from .matmul import batched_matmul
from .table import composite

if TYPE_CHECKING:
    from ..tensor import Tensor

Label = Hashable  # a letter or number of the equation, or ('...', k): the k-th ellipsis dimension from the right
Labels = tuple[Label, ...]
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class Term(NamedTuple):
    """A tensor whose dimensions have distinct labels."""

    tensor: Tensor
    labels: Labels


@composite(method=False)
def einsum(equation: Any, *operands: Any) -> Tensor:
    """Sum of products as the equation says, 'bij,bjk->bik': letters are dimensions, those not on the right are summed, '...'
    broadcasts. Operands follow the equation, or alternate with lists of numbers. Pairs are contracted cheapest first."""
    tensors, inputs, output = _parsed(equation, operands)
    spread = [_spread(t, labels, i) for i, (t, labels) in enumerate(zip(tensors, inputs, strict=True))]
    ellipsis = max((len([k for k in labels if _dotted(k)]) for labels in spread), default=0)
    if output is None:
        output = _implicit(spread, ellipsis)
    elif Ellipsis in output:
        at = output.index(Ellipsis)
        output = (*output[:at], *_dots(ellipsis), *output[at + 1 :])
    _check_output(output, spread)
    sizes = _sizes(tensors, spread)
    terms = [_distinct(t, labels, sizes) for t, labels in zip(tensors, spread, strict=True)]
    return _arranged(contract(terms, output), output, sizes)


# ---- the equation ----


def _parsed(equation: Any, operands: Sequence[Any]) -> tuple[list[Tensor], list[Labels], Labels | None]:
    if not isinstance(equation, str):
        return _from_lists((equation, *operands))
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = operands[0]
    left, arrow, right = equation.replace(" ", "").partition("->")
    inputs = [_labels(part, equation) for part in left.split(",")]
    if len(inputs) != len(operands):
        raise ShapeError(f"einsum {equation!r} names {len(inputs)} operands, {len(operands)} were given\n  at {site()}")
    return _checked(operands), inputs, _labels(right, equation) if arrow else None


def _labels(text: str, equation: str) -> Labels:
    out: list[Label] = []
    rest = text
    while rest:
        if rest.startswith("..."):
            out.append(Ellipsis)
            rest = rest[3:]
        elif rest[0] in _LETTERS:
            out.append(rest[0])
            rest = rest[1:]
        else:
            raise ShapeError(f"einsum {equation!r}: {rest[0]!r} is no letter\n  at {site()}")
    if out.count(Ellipsis) > 1:
        raise ShapeError(f"einsum {equation!r}: more than one ellipsis in {text!r}\n  at {site()}")
    return tuple(out)


def _from_lists(operands: Sequence[Any]) -> tuple[list[Tensor], list[Labels], Labels | None]:
    """einsum(a, [0, 1], b, [1, 2], [0, 2])."""
    pairs = len(operands) // 2
    output = _numbers(operands[-1]) if len(operands) % 2 else None
    return _checked(operands[: 2 * pairs : 2]), [_numbers(operands[2 * i + 1]) for i in range(pairs)], output


def _numbers(labels: Any) -> Labels:
    out = tuple(k if k is Ellipsis else whole(k, "a label") for k in labels)
    if bad := [k for k in out if k is not Ellipsis and not 0 <= k < len(_LETTERS)]:
        raise ShapeError(f"einsum labels lie in [0, {len(_LETTERS)}), got {bad[0]}\n  at {site()}")
    return tuple(k if k is Ellipsis else _LETTERS[k] for k in out)


def _checked(operands: Sequence[Any]) -> list[Tensor]:
    for t in operands:
        if not isinstance(t, dispatch.hooks.tensor):
            raise TypeError(f"einsum expects tensors, got {t!r} ({type(t).__name__})\n  at {site()}")
    if not operands:
        raise ShapeError(f"einsum of no tensors\n  at {site()}")
    return list(operands)


def _dots(count: int) -> Labels:
    return tuple(("...", k) for k in range(count - 1, -1, -1))


def _dotted(label: Label) -> bool:
    return isinstance(label, tuple)


def _spread(t: Tensor, labels: Labels, number: int) -> Labels:
    """Labels with the ellipsis written out, one a dimension."""
    named = sum(k is not Ellipsis for k in labels)
    extra = t.ndim - named
    if extra < 0 or (extra and Ellipsis not in labels):
        raise ShapeError(f"einsum: operand {number} has shape {list(t.shape)}, its labels name {named} dimensions\n  at {site()}")
    if Ellipsis not in labels:
        return labels
    at = labels.index(Ellipsis)
    return (*labels[:at], *_dots(extra), *labels[at + 1 :])


def _implicit(spread: Sequence[Labels], ellipsis: int) -> Labels:
    """The ellipsis, then the letters that occur once, in order."""
    every = [k for labels in spread for k in labels if isinstance(k, str)]
    return (*_dots(ellipsis), *sorted(k for k in set(every) if every.count(k) == 1))


def _check_output(output: Labels, spread: Sequence[Labels]) -> None:
    for k in output:
        if output.count(k) > 1:
            raise ShapeError(f"einsum: output label {k!r} occurs twice\n  at {site()}")
        if not any(k in labels for labels in spread):
            raise ShapeError(f"einsum: output label {k!r} occurs in no operand\n  at {site()}")


def _sizes(tensors: Sequence[Tensor], spread: Sequence[Labels]) -> dict[Label, int]:
    sizes: dict[Label, int] = {}
    for i, (t, labels) in enumerate(zip(tensors, spread, strict=True)):
        for d, k in enumerate(labels):
            n = t.shape[d]
            if labels.count(k) > 1 and n != t.shape[labels.index(k)]:
                raise ShapeError(f"einsum: label {k!r} repeats with different sizes in operand {i} of shape {list(t.shape)}\n  at {site()}")
            if sizes.get(k, 1) == 1:
                sizes[k] = n
            elif n not in (1, sizes[k]):
                raise ShapeError(f"einsum: label {k!r} has size {sizes[k]} and, in operand {i}, {n}\n  at {site()}")
    return sizes


# ---- terms ----


def _distinct(t: Tensor, labels: Labels, sizes: dict[Label, int]) -> Term:
    """Diagonals for labels that repeat; sizes of 1 that broadcast dropped."""
    names = list(labels)
    for k in dict.fromkeys(labels):
        while names.count(k) > 1:
            a = names.index(k)
            b = names.index(k, a + 1)
            t = triangular.diagonal_view(t, 0, a, b)
            names = [*(n for d, n in enumerate(names) if d not in (a, b)), k]
    ones = [d for d, k in enumerate(names) if t.shape[d] == 1 and sizes[k] != 1]
    if ones:
        t = views.reshape(t, *(n for d, n in enumerate(t.shape) if d not in ones))
    return Term(t, tuple(k for d, k in enumerate(names) if d not in ones))


def _arranged(term: Term, output: Labels, sizes: dict[Label, int]) -> Tensor:
    """Dimensions in the order of the output; those that no term has any more are expanded."""
    t, labels = term
    order = [labels.index(k) for k in output if k in labels]
    if order != list(range(len(order))):
        t = move.permute_to(t, tuple(order))
    if len(order) != len(output):
        t = views.reshape(t, *(sizes[k] if k in labels else 1 for k in output))
        t = views.expand(t, *(sizes[k] for k in output))
    return t


def contract(terms: Sequence[Term], output: Labels) -> Term:
    """Contract to one term that has no labels outside `output`: the pair of the smallest result first, then of least work."""
    left = [_summed(t, {*output, *(k for j, o in enumerate(terms) if j != i for k in o.labels)}) for i, t in enumerate(terms)]
    while len(left) > 1:
        costs = [(*_cost(left, i, j, output), i, j) for i in range(len(left)) for j in range(i + 1, len(left))]
        *_, i, j = min(costs)
        kept = {*output, *(k for n, o in enumerate(left) if n not in (i, j) for k in o.labels)}
        joined = _joined(left[i], left[j], kept)
        left = [o for n, o in enumerate(left) if n not in (i, j)]
        left.insert(i, joined)
    return left[0]


def _cost(terms: Sequence[Term], i: int, j: int, output: Labels) -> tuple[int, int]:
    """(elements of the result less those of the pair, products) of contracting a pair."""
    sizes = {k: n for t in (terms[i], terms[j]) for k, n in zip(t.labels, t.tensor.shape, strict=True)}
    kept = {*output, *(k for n, o in enumerate(terms) if n not in (i, j) for k in o.labels)}
    result = numel([n for k, n in sizes.items() if k in kept])
    return result - terms[i].tensor.numel() - terms[j].tensor.numel(), numel(list(sizes.values()))


def _summed(term: Term, kept: set[Label]) -> Term:
    dims = tuple(d for d, k in enumerate(term.labels) if k not in kept)
    if not dims:
        return term
    return Term(reduce.sum(term.tensor, dims), tuple(k for k in term.labels if k in kept))


def _joined(a: Term, b: Term, kept: set[Label]) -> Term:
    """The product of two terms, summed over the labels that both have and nothing else needs."""
    shared = [k for k in a.labels if k in b.labels]
    summed = [k for k in shared if k not in kept]
    batch = [k for k in shared if k in kept]
    mine = [k for k in a.labels if k not in shared]
    theirs = [k for k in b.labels if k not in shared]
    labels = (*batch, *mine, *theirs)
    if not summed:
        return Term(_grouped(a, (batch, mine, [None] * len(theirs))) * _grouped(b, (batch, [None] * len(mine), theirs)), labels)
    size = {k: n for t in (a, b) for k, n in zip(t.labels, t.tensor.shape, strict=True)}
    x, y = _grouped(a, (batch, mine, summed)), _grouped(b, (batch, summed, theirs))
    lead, inner = [size[k] for k in batch], numel([size[k] for k in summed])
    rows, columns = [size[k] for k in mine], [size[k] for k in theirs]
    x = views.reshape(x, *lead, numel(rows), inner)
    y = views.reshape(y, *lead, inner, numel(columns))
    return Term(views.reshape(batched_matmul(x, y), *lead, *rows, *columns), labels)


def _grouped(term: Term, groups: Sequence[Sequence[Label | None]]) -> Tensor:
    """Dimensions in the order of groups of labels; None is a new dimension of size 1."""
    wanted = [k for g in groups for k in g]
    order = tuple(term.labels.index(k) for k in wanted if k is not None)
    t: Tensor = term.tensor if order == tuple(range(len(order))) else move.permute_to(term.tensor, order)
    if len(order) == len(wanted):
        return t
    sizes = iter(t.shape)
    return views.reshape(t, *(1 if k is None else next(sizes) for k in wanted))


# ---- named contractions ----


@composite(method=False)
def tensordot(a: Tensor, b: Tensor, dims: Any = 2) -> Tensor:
    """Products summed over the last `dims` dimensions of a and the first of b, or over two lists. [*, k], [k, *] -> [*, *]."""
    if isinstance(dims, dispatch.hooks.tensor):
        dims = dims.tolist()
    if isinstance(dims, int):
        if not 0 <= dims <= min(a.ndim, b.ndim):
            raise ShapeError(f"tensordot over {dims} dimensions of shapes {list(a.shape)} and {list(b.shape)}\n  at {site()}")
        dims = (list(range(a.ndim - dims, a.ndim)), list(range(dims)))
    first, second = ([d] if isinstance(d, int) else list(d) for d in dims)
    first = [views.located(normalize_dim, d, a.ndim) for d in first]
    second = [views.located(normalize_dim, d, b.ndim) for d in second]
    if len(first) != len(second) or len(set(first)) != len(first) or len(set(second)) != len(second):
        raise ShapeError(f"tensordot: dimensions {first} and {second} do not pair\n  at {site()}")
    for d, e in zip(first, second, strict=True):
        if a.shape[d] != b.shape[e] and 1 not in (a.shape[d], b.shape[e]):
            raise ShapeError(
                f"tensordot: dimension {d} of {list(a.shape)} and dimension {e} of {list(b.shape)} differ in size\n  at {site()}"
            )
    left: list[Label] = [("a", d) for d in range(a.ndim)]
    right: list[Label] = [("b", d) for d in range(b.ndim)]
    for d, e in zip(first, second, strict=True):
        right[e] = left[d]
    sizes = _sizes([a, b], [tuple(left), tuple(right)])
    output = (*(k for d, k in enumerate(left) if d not in first), *(k for d, k in enumerate(right) if d not in second))
    terms = [_distinct(a, tuple(left), sizes), _distinct(b, tuple(right), sizes)]
    return _arranged(contract(terms, output), output, sizes)


@composite
def inner(input: Tensor, other: Tensor) -> Tensor:
    """Products summed over the last dimension of both. [*, k], [*, k] -> [*, *]."""
    if not (input.ndim and other.ndim):
        return input * other
    if input.shape[-1] != other.shape[-1]:
        raise ShapeError(f"inner: the last sizes of shapes {list(input.shape)} and {list(other.shape)} differ\n  at {site()}")
    return tensordot(input, other, ([-1], [-1]))


@composite
def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """Every product of two vectors' elements. [n], [m] -> [n, m]."""
    if input.ndim != 1 or vec2.ndim != 1:
        raise ShapeError(f"outer takes two vectors, got shapes {list(input.shape)} and {list(vec2.shape)}\n  at {site()}")
    return views.unsqueeze(input, 1) * vec2


@composite
def ger(input: Tensor, vec2: Tensor) -> Tensor:
    """outer. [n], [m] -> [n, m]."""
    return outer(input, vec2)


@composite
def kron(input: Tensor, other: Tensor) -> Tensor:
    """Kronecker product: input with every element replaced by its product with other. [n, m], [k, l] -> [n * k, m * l]."""
    rank = max(input.ndim, other.ndim)
    a, b = (views.reshape(t, *(1,) * (rank - t.ndim), *t.shape) for t in (input, other))
    wide = views.reshape(a, *(v for n in a.shape for v in (n, 1))) * views.reshape(b, *(v for n in b.shape for v in (1, n)))
    return views.reshape(wide, *(n * m for n, m in zip(a.shape, b.shape, strict=True)))


@composite(method=False)
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """out[k] = input1 @ weight[k] @ input2 + bias[k]. [*, n], [*, m], [out, n, m], [out] -> [*, out]."""
    fits = input1.ndim and input2.ndim and weight.ndim == 3 and input1.shape[:-1] == input2.shape[:-1]
    if not fits or (input1.shape[-1], input2.shape[-1]) != weight.shape[1:]:
        raise ShapeError(
            f"bilinear: inputs of shapes {list(input1.shape)} and {list(input2.shape)} do not fit weight {list(weight.shape)} "
            f"([out, n, m])\n  at {site()}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ShapeError(f"bilinear: bias of shape {list(bias.shape)} for {weight.shape[0]} outputs\n  at {site()}")
    out, n, m = weight.shape
    rows = numel(input1.shape[:-1])
    x = batched_matmul(views.reshape(input1, rows, n), views.reshape(move.permute_to(weight, (1, 0, 2)), n, out * m))
    y = batched_matmul(views.reshape(x, rows, out, m), views.reshape(input2, rows, m, 1))
    result = views.reshape(y, *input1.shape[:-1], out)
    return result if bias is None else result + bias
