"""Pictures as SVG text: curves, lanes over time, and layered graphs. Plain data in, a string out; no dependencies.

Text and axes take the page's colour, so that the pictures read on light and dark pages alike.
"""

from __future__ import annotations

import html
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

COLOURS = (
    "#4477aa",
    "#ee6677",
    "#228833",
    "#a07800",
    "#0e7c9b",
    "#aa3377",
    "#c0504d",
    "#555555",
)  # distinct to colour-blind readers, dark enough for white text
_STYLE = "font-family:system-ui,sans-serif;font-size:11px;max-width:100%;height:auto"


def colour(key: Hashable, keys: dict[Hashable, str]) -> str:
    """The colour of a kind of thing; `keys` remembers which were given."""
    return keys.setdefault(key, COLOURS[len(keys) % len(COLOURS)])


def legend(keys: Mapping[Hashable, str]) -> str:
    """What colours mean, as HTML."""
    spans = (
        f"<span style='background:{c};color:#fff;border-radius:3px;padding:0 .4em'>{html.escape(str(k))}</span>" for k, c in keys.items()
    )
    return f"<div style='display:flex;gap:.4em;flex-wrap:wrap;font-size:11px'>{''.join(spans)}</div>"


def _frame(width: float, height: float, body: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" '
        f'style="{_STYLE}">' + "".join(body) + "</svg>"
    )


def _text(x: float, y: float, text: str, anchor: str = "start", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor"{more}>{html.escape(text)}</text>'


def number(value: float) -> str:
    """A short number with a unit prefix."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.3g}{unit}"
    return f"{value:.4g}"


# ---- curves ----


def curves(series: Mapping[str, Sequence[float]], x: str = "step", width: int = 560, height: int = 220) -> str:
    """Lines over their index, NaN and Inf left out; a line of many points is drawn by its lowest and highest ones."""
    finite = [v for values in series.values() for v in values if v - v == 0]
    if not finite:
        return _frame(width, 40, [_text(8, 24, "no finite values to draw")])
    low, high = min(finite), max(finite)
    high = high if high > low else low + (abs(low) or 1) * 1e-3
    longest = max(map(len, series.values()))
    left, right, top, bottom = 52, 18, 10, 34
    w, h = width - left - right, height - top - bottom

    def place(i: float, v: float) -> str:
        return f"{left + w * i / max(longest - 1, 1):.1f},{top + h * (high - v) / (high - low):.1f}"

    body = []
    for k in range(5):
        v = low + (high - low) * k / 4
        y = top + h * (1 - k / 4)
        body.append(f'<line x1="{left}" x2="{left + w}" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor" stroke-opacity=".15"/>')
        body.append(_text(left - 5, y + 4, number(v), "end"))
    for k in range(5):
        body.append(_text(left + w * k / 4, height - 18, number(round((longest - 1) * k / 4)), "middle"))
    body.append(_text(left + w / 2, height - 4, x, "middle"))
    keys: dict[Hashable, str] = {}
    for name, values in series.items():
        points = [place(i, v) for i, v in _thinned(values, w) if v - v == 0]
        body.append(f'<polyline fill="none" stroke="{colour(name, keys)}" stroke-width="1.5" points="{" ".join(points)}"/>')
    return _frame(width, height, body) + (legend(keys) if len(series) > 1 else "")


def _thinned(values: Sequence[float], width: float) -> list[tuple[int, float]]:
    """At most two points a pixel: the extremes."""
    step = max(1, round(len(values) / width))
    if step == 1:
        return list(enumerate(values))
    out = []
    for start in range(0, len(values), step):
        part = sorted(range(start, min(start + step, len(values))), key=lambda i: values[i])
        out += [(i, values[i]) for i in sorted({part[0], part[-1]})]
    return out


# ---- lanes over time ----


class Span(NamedTuple):
    """Something that takes part of a lane from `begin` to `end`. `kind` gives its colour, `title` is shown on pointing at it."""

    lane: int
    begin: float
    end: float
    label: str
    kind: Hashable
    title: str = ""


def lanes(spans: Sequence[Span], sizes: Sequence[float], x: str, unit: str, width: int = 860, height: int = 320) -> str:
    """Lanes stacked by their sizes over time: memory blocks and what they hold, say."""
    total, end = sum(sizes) or 1.0, max((s.end for s in spans), default=1.0)
    left, bottom = 60, 30
    w, h = width - left - 8, height - bottom
    starts = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    body, keys = [], dict[Hashable, str]()
    for k in range(5):
        body.append(_text(left - 5, h * (1 - k / 4) + (10 if k == 4 else 0), number(total * k / 4) + unit, "end"))
        body.append(_text(left + w * k / 4, height - 14, number(end * k / 4), "middle" if k < 4 else "end"))
    body.append(_text(left + w / 2, height - 2, x, "middle"))
    body.append(f'<rect x="{left}" y="0" width="{w}" height="{h}" fill="currentColor" fill-opacity=".06"/>')
    for s in spans:
        y, tall = h * (1 - starts[s.lane + 1] / total), h * sizes[s.lane] / total
        at, wide = left + w * s.begin / end, w * (s.end - s.begin) / end
        fill = colour(s.kind, keys)
        inside = f"<title>{html.escape(s.title or s.label)}</title>"
        body.append(
            f'<g><rect x="{at:.1f}" y="{y:.1f}" width="{max(wide - 0.3, 0.5):.1f}" height="{max(tall - 0.3, 0.3):.1f}" '
            f'fill="{fill}">{inside}</rect>'
        )
        if tall > 12 and wide > 7 * len(s.label):
            body.append(
                f'<text x="{at + 3:.1f}" y="{y + tall / 2 + 4:.1f}" fill="#fff" pointer-events="none">{html.escape(s.label)}</text>'
            )
        body.append("</g>")
    return _frame(width, height, body) + legend(keys)


# ---- graphs ----


class Box(NamedTuple):
    """A node of a graph picture."""

    label: str
    below: str
    kind: Hashable
    title: str = ""


_W, _H, _DX, _DY = 172, 34, 18, 22


def layered(boxes: Sequence[Box], edges: Sequence[tuple[int, int]], most: int = 160) -> str:
    """A directed graph from top to bottom: every box below all that point to it. `edges` go from lower to higher numbers."""
    shown = min(len(boxes), most)
    edges = [(a, b) for a, b in edges if b < shown]
    rows = _rows(shown, edges)
    wide = max(map(len, rows), default=1)
    width = wide * (_W + _DX) + _DX
    at: dict[int, tuple[float, float]] = {}
    for depth, row in enumerate(rows):
        offset = (width - len(row) * (_W + _DX) + _DX) / 2
        for k, i in enumerate(row):
            at[i] = offset + k * (_W + _DX), _DY / 2 + depth * (_H + _DY)
    body, keys = [], dict[Hashable, str]()
    for a, b in edges:
        x0, y0, x1, y1 = at[a][0] + _W / 2, at[a][1] + _H, at[b][0] + _W / 2, at[b][1]
        bend = (y1 - y0) / 2 if y1 - y0 < 3 * _H else _H
        aside = 0 if y1 - y0 < 2 * (_H + _DY) or abs(x1 - x0) > _W / 2 else _W * 0.62
        body.append(
            f'<path d="M{x0:.1f} {y0:.1f}C{x0 + aside:.1f} {y0 + bend:.1f} {x1 + aside:.1f} {y1 - bend:.1f} {x1:.1f} {y1:.1f}" '
            f'fill="none" stroke="currentColor" stroke-opacity=".35"/>'
        )
    for i, (x, y) in at.items():
        body.append(_box(boxes[i], x, y, colour(boxes[i].kind, keys)))
    height = len(rows) * (_H + _DY) + _DY
    rest = f"<div style='font-size:11px'>and {len(boxes) - shown} more</div>" if len(boxes) > shown else ""
    return f"<div style='max-height:600px;overflow:auto'>{_frame(width, height, body)}</div>{rest}{legend(keys)}"


def _rows(count: int, edges: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Box numbers by depth, each row ordered by the middle of what points to it."""
    parents: dict[int, list[int]] = defaultdict(list)
    for a, b in edges:
        parents[b].append(a)
    depth = [0] * count
    for b in range(count):
        depth[b] = max((depth[a] + 1 for a in parents[b]), default=0)
    children: dict[int, list[int]] = defaultdict(list)
    for a, b in edges:
        children[a].append(b)
    for a in range(count):  # what begins nothing late is drawn right above where it is used
        if not parents[a] and children[a]:
            depth[a] = max(0, min(depth[b] for b in children[a]) - 1)
    rows: list[list[int]] = [[] for _ in range(max(depth, default=-1) + 1)]
    for i in range(count):
        rows[depth[i]].append(i)
    place: dict[int, float] = {}
    for row in rows:
        middle = {i: sum(place[p] for p in parents[i] if p in place) / max(1, len(parents[i])) for i in row}
        row.sort(key=lambda i: middle[i])
        place.update((i, k - len(row) / 2) for k, i in enumerate(row))
    return rows


def _box(box: Box, x: float, y: float, fill: str) -> str:
    return (
        f"<g><title>{html.escape(box.title or box.label)}</title>"
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{_W}" height="{_H}" rx="4" fill="{fill}"/>'
        f'<text x="{x + 6:.1f}" y="{y + 14:.1f}" fill="#fff">{html.escape(_cut(box.label))}</text>'
        f'<text x="{x + 6:.1f}" y="{y + 28:.1f}" fill="#fff" fill-opacity=".8">{html.escape(_cut(box.below))}</text></g>'
    )


def _cut(text: str, most: int = 25) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
