"""A profile as text."""

from __future__ import annotations

import os
from collections.abc import Sequence

from .limits import Ceiling
from .rows import Group

WIDEST = 48  # characters of a field


def table(groups: Sequence[Group], by: Sequence[str], head: str, limit: int, ceiling: Ceiling | None, unit: str, total: float) -> str:
    """A line a group, of `unit` ('GPU' or 'CPU') microseconds; `total` nanoseconds are 100 %."""
    shown = groups[:limit]
    titles = [*by, "calls", f"total {unit} us", "mean us", "min us", "share"]
    rates = unit == "GPU"
    titles += ["GB/s", "GFLOP/s"] * rates + ["of ceiling"] * (ceiling is not None)
    lines = [titles, *(_cells(g, total, rates, ceiling) for g in shown)]
    if len(shown) < len(groups):
        rest = groups[limit:]
        more = Group((f"{len(rest)} more", *("" for _ in by[1:])), [n for g in rest for n in g.samples])
        lines.append(_cells(more, total, False, None))
    whole = [n for g in groups for n in g.samples]
    lines.append(["total", *("" for _ in by[1:]), str(len(whole)), f"{total / 1e3:.1f}"])
    widths = [max(len(line[i]) for line in lines if i < len(line)) for i in range(len(titles))]
    return "\n".join([head, *(_line(line, widths, len(by)) for line in lines)])


def text(value: object, most: int = WIDEST) -> str:
    """A field's value, cut to a readable length; of a place in a file, the file's name, its line and the source."""
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    shown = str(value)
    path, _, rest = shown.partition(":")
    if os.sep in path and rest:
        shown = f"{os.path.basename(path)}:{rest}"
    return shown if len(shown) <= most else shown[: most - 3] + "..."


def _cells(g: Group, total: float, rates: bool, ceiling: Ceiling | None) -> list[str]:
    share = 100 * g.total / total if total else 0.0
    cells = [*map(text, g.key), str(g.calls), f"{g.total / 1e3:.1f}", f"{g.mean / 1e3:.2f}", f"{g.min / 1e3:.2f}", f"{share:.1f} %"]
    if rates:
        cells += [f"{g.gbs:.1f}" if g.nbytes else "", f"{g.gflops:.1f}" if g.flops else ""]
        if ceiling is not None:
            cells.append(f"{ceiling.percent(g.gbs, g.gflops):.0f} %" if g.nbytes or g.flops else "")
    return cells


def _line(cells: Sequence[str], widths: Sequence[int], words: int) -> str:
    return "  ".join(c.ljust(w) if i < words else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths))).rstrip()
