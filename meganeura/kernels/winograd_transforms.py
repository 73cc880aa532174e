"""Winograd's transforms as exact matrices, and as straight-line WGSL.

F(m x m, r x r) makes m x m results of a kernel with r x r taps from a patch of n x n elements, n = m + r - 1, by n * n products:
A^T ((G k G^T) * (B^T d B)) A. The matrices come from interpolation at n - 1 points and infinity (arXiv:1509.09308).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

Matrix = tuple[tuple[Fraction, ...], ...]

POINTS = tuple(Fraction(x, 8) for x in (0, 5, -5, 12, -12))
"""Points of the transforms with n = 6. Relative errors of 1280 channels of normal data, rms and largest against rms of the result:
1.4e-6 and 1.5e-5 here, 3.1e-6 and 4.4e-5 with 0, 1, -1, 2, -2, 2.0e-6 and 1.7e-5 with 0, -1, 1, 1/2, -2; direct sums 3.4e-7 and 1.9e-6."""


LIMIT = "0x53800000u"
"""Bits of 2^40. Results of a tile share rounding errors of the largest: from this size on they are made without transforms."""


@dataclass(frozen=True, slots=True)
class Transforms:
    """The matrices of F(m, r): `results` A^T [m, n], `taps` G [n, r], `patch` B^T [n, n]."""

    results: Matrix
    taps: Matrix
    patch: Matrix


def transforms(m: int, r: int, points: Sequence[Fraction] = POINTS) -> Transforms:
    """F(m, r) for m + r - 2 distinct points and infinity. `patch` depends on the points alone."""
    assert len(points) == m + r - 2
    results = [[p**i for p in points] + [Fraction(i == m - 1)] for i in range(m)]
    taps, patch = [], []
    for p in points:
        others = [q for q in points if q != p]
        scale = Fraction(1)
        for q in others:
            scale *= p - q
        taps.append([p**k / scale for k in range(r)])
        patch.append([*_monic(others), Fraction(0)])
    taps.append([Fraction(k == r - 1) for k in range(r)])
    patch.append(_monic(points))
    return Transforms(_frozen(results), _frozen(taps), _frozen(patch))


def _frozen(rows: Sequence[Sequence[Fraction]]) -> Matrix:
    return tuple(tuple(row) for row in rows)


def _monic(roots: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients, the constant first, of the polynomial with these roots."""
    out = [Fraction(1)]
    for r in roots:
        out = [a - r * b for a, b in zip([Fraction(0), *out], [*out, Fraction(0)], strict=True)]
    return out


# --- text -------------------------------------------------------------------------------------------------------------------


def apply(matrix: Matrix, inputs: Sequence[str], outputs: Sequence[str], of: str = "") -> list[str]:
    """Statements that let `outputs` be matrix @ inputs, all f32 or of a vector type `of`. Points p and -p share their even and odd
    halves."""
    lines: list[str] = []
    terms = list(inputs)
    columns = [list(c) for c in zip(*matrix, strict=True)]
    for i, k in _pairs(columns):  # columns of p and -p: their sum serves even rows, their difference odd ones
        both, apart = f"{outputs[0]}_s{i}", f"{outputs[0]}_d{i}"
        lines += [f"let {both} = {terms[i]} + {terms[k]};", f"let {apart} = {terms[i]} - {terms[k]};"]
        terms[i], terms[k] = both, apart
        for row, (x, y) in enumerate(zip(columns[i], columns[k], strict=True)):
            columns[i][row], columns[k][row] = (x, Fraction(0)) if x == y else (Fraction(0), x)
    rows = [list(r) for r in zip(*columns, strict=True)]
    paired: set[int] = set()
    for i, k in _pairs(rows):
        even, odd = f"{outputs[i]}_e", f"{outputs[i]}_o"
        same = [x == y for x, y in zip(rows[i], rows[k], strict=True)]
        lines.append(f"let {even} = {_sum([x if s else Fraction(0) for x, s in zip(rows[i], same, strict=True)], terms, of)};")
        lines.append(f"let {odd} = {_sum([Fraction(0) if s else x for x, s in zip(rows[i], same, strict=True)], terms, of)};")
        lines += [f"let {outputs[i]} = {even} + {odd};", f"let {outputs[k]} = {even} - {odd};"]
        paired |= {i, k}
    lines += [f"let {outputs[i]} = {_sum(row, terms, of)};" for i, row in enumerate(rows) if i not in paired]
    return lines


def both_axes(matrix: Matrix, inputs: Sequence[Sequence[str]], stem: str) -> tuple[list[str], list[list[str]]]:
    """Statements for matrix @ X @ matrix^T with X given by names, and the names of the result's rows: {stem}{row}_{column}."""
    lines: list[str] = []
    high = len(matrix)
    half = [[f"{stem}h{i}_{j}" for j in range(high)] for i in range(len(inputs))]
    for given, made in zip(inputs, half, strict=True):
        lines += apply(matrix, given, made)
    out = [[f"{stem}{i}_{j}" for j in range(high)] for i in range(high)]
    for j in range(high):
        lines += apply(matrix, [row[j] for row in half], [row[j] for row in out])
    return lines, out


def _pairs(rows: Sequence[Sequence[Fraction]]) -> list[tuple[int, int]]:
    """Neighbours that differ in signs only, and have both equal and opposite entries."""
    out: list[tuple[int, int]] = []
    for i in range(len(rows) - 1):
        a, b = rows[i], rows[i + 1]
        taken = out and out[-1][1] == i
        pairs = [(x, y) for x, y in zip(a, b, strict=True) if x or y]
        if not taken and all(abs(x) == abs(y) for x, y in pairs) and {x == y for x, y in pairs} == {True, False}:
            out.append((i, i + 1))
    return out


def _sum(factors: Sequence[Fraction], terms: Sequence[str], of: str) -> str:
    """The expression of a sum of products; a term with factor 1 starts it."""
    used = sorted((abs(f) != 1, f < 0, i) for i, f in enumerate(factors) if f)
    text = ""
    for _, _, i in used:
        f, x = factors[i], terms[i]
        if not text:
            text = x if f == 1 else f"-{x}" if f == -1 else f"{x} * {number(f)}"
        elif abs(f) == 1:
            text = f"{text} {'+' if f > 0 else '-'} {x}"
        else:
            text = f"fma({x}, {of}{number(f) if f < 0 or not of else f'({number(f)})'}, {text})"
    return text or "0.0"


def number(f: Fraction) -> str:
    """An f32 literal; in parentheses if negative."""
    text = repr(float(f))
    return f"({text})" if f < 0 else text
