"""Pictures are well-formed, hold what they should, and survive odd data."""

from __future__ import annotations

import math
import xml.etree.ElementTree as xml
from typing import Any

import pytest

import meganeura as mg
from meganeura import nn, svg
from meganeura.static import History


def parsed(text: str) -> Any:
    """The picture as a tree of elements."""
    return xml.fromstring(f"<div>{text}</div>")


def count(text: str, tag: str) -> int:
    return sum(e.tag.endswith(tag) for e in parsed(text).iter())


@pytest.mark.parametrize("values", [[], [1.0], [2.0, 2.0], [math.nan, 1.0, math.inf, 3.0], list(range(10000)), [0.0], [-1e30, 1e30]])
def test_curves(values: list[float]) -> None:
    text = svg.curves({"loss <a&b>": values, "other": [1.0, 2.0]})
    lines = [e for e in parsed(text).iter() if e.tag.endswith("polyline")]
    assert len(lines) == 2 and "nan" not in text and "inf" not in text
    points = [tuple(map(float, p.split(","))) for p in lines[0].get("points").split()]
    assert len(points) <= 1000 and all(0 <= x <= 560 and 0 <= y <= 220 for x, y in points)
    assert len(points) == sum(map(math.isfinite, values)) or len(values) > 1000


def test_thinning_keeps_the_extremes() -> None:
    values = [0.0] * 5000
    values[1234], values[4321] = 7.0, -3.0
    kept = dict(svg._thinned(values, 400))
    assert kept[1234] == 7.0 and kept[4321] == -3.0 and len(kept) < 1000


def test_lanes() -> None:
    spans = [svg.Span(0, 0, 5, "a<b", "value"), svg.Span(1, 2, 3, "c", "gradient", "made at x.py:3")]
    text = svg.lanes(spans, [100.0, 50.0], "step", "B")
    assert count(text, "rect") == 3 and "a&lt;b" in text and "made at x.py:3" in text
    parsed(svg.lanes([], [], "step", "B"))


def test_boxes_lie_below_what_points_to_them() -> None:
    boxes = [svg.Box(f"b{i}", "", i % 2, "<t>") for i in range(6)]
    edges = [(0, 2), (1, 2), (2, 3), (2, 4), (3, 5), (4, 5), (0, 5)]
    rows = svg._rows(6, edges)
    depth = {i: d for d, row in enumerate(rows) for i in row}
    assert sorted(depth) == list(range(6)) and all(depth[a] < depth[b] for a, b in edges)
    text = svg.layered(boxes, edges)
    assert count(text, "rect") == 6 and count(text, "path") == 7
    assert "and 4 more" in svg.layered(boxes, edges, 2) and count(svg.layered([], []), "rect") == 0


@pytest.mark.parametrize(("value", "text"), [(0.5, "0.5"), (1234.5, "1234"), (25000, "25k"), (3.3e6, "3.3M"), (2e9, "2G")])
def test_numbers(value: float, text: str) -> None:
    assert svg.number(value) in (text, "1235")


def test_graphs_and_histories_show_themselves() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    compiled = mg.compile(model)
    x = mg.ones(2, 3)
    html = compiled.graph(x)._repr_html_()
    assert count(html, "rect") == 1 + len(compiled.graph(x).nodes) and "test_svg.py" in html and "0.weight" in html
    history = History([3.0, 2.0, 1.0], [{"loss": 2.0, "accuracy": 0.5}])
    assert count(history._repr_html_(), "polyline") == 1 and "accuracy" in history._repr_html_()
