"""A profile as a piece of HTML for notebooks: one table with bars and a timeline, nothing from outside."""

from __future__ import annotations

import html
from collections.abc import Sequence

from .capture import Span
from .rows import Dispatch, Group, grouped
from .table import text

ROWS = 15
COLORS = {"forward": "#4c8bf5", "backward": "#e8833a", "optimizer": "#3aa76d"}
OTHER = "#8e7cc3"
HOST = {
    "trace": "#c2185b", "rewrite": "#ad1457", "plan": "#6d4c41", "pipeline": "#d84315", "pipelines": "#d84315",
    "read": "#9e9e9e", "synchronize": "#9e9e9e", "wait": "#757575", "op": "#78909c", "replay": "#5c6bc0",
}  # fmt: skip
SLICES = 1500  # of a lane of the timeline
WIDTH = 900


def page(rows: Sequence[Dispatch], spans: Sequence[Span], window: tuple[int, int], unit: str, head: str) -> str:
    """Heading, phases, timeline, and the rows that took longest."""
    total = sum(r.ns for r in rows)
    groups = grouped(rows, ("op", "kernel", "phase"))
    body = "".join(_row(g, total) for g in groups[:ROWS])
    more = f"<div style='opacity:.6'>and {len(groups) - ROWS} more rows</div>" if len(groups) > ROWS else ""
    cells = "".join(f"<th style='{_cell(i)};opacity:.7'>{t}</th>" for i, t in enumerate(_titles(unit)))
    return (
        "<div style='font:13px/1.5 system-ui,sans-serif;max-width:960px'>"
        f"<div style='font-weight:600'>{html.escape(head)}</div>{_phases(rows, total)}{_timeline(rows, spans, window, unit)}"
        "<div style='overflow-x:auto'><table style='border-collapse:collapse;width:100%;table-layout:auto'>"
        f"<tr>{cells}</tr>{body}</table></div>{more}</div>"
    )


def _titles(unit: str) -> list[str]:
    return ["op", "kernel", "phase", "calls", f"{unit} us", "mean us", "GB/s", "GFLOP/s", "share"]


def _cell(i: int) -> str:
    return f"text-align:{'left' if i < 3 or i == 8 else 'right'};padding:1px 7px;white-space:nowrap;background:none"


def _row(g: Group, total: float) -> str:
    op, kernel, phase = g.key
    share = 100 * g.total / total if total else 0.0
    bar = (
        f"<div style='display:flex;align-items:center;gap:6px'><div style='width:72px;background:rgba(128,128,128,.18)'>"
        f"<div style='height:9px;width:{share:.1f}%;background:{COLORS.get(phase, OTHER)}'></div></div>{share:.1f} %</div>"
    )
    cells = [
        *(html.escape(text(v, most)) for v, most in ((op, 32), (kernel, 20), (phase, 18))),
        str(g.calls),
        f"{g.total / 1e3:.1f}",
        f"{g.mean / 1e3:.2f}",
    ]
    cells += [f"{g.gbs:.1f}" if g.nbytes else "", f"{g.gflops:.1f}" if g.flops else "", bar]
    tip = html.escape(op, quote=True)
    return f"<tr title='{tip}'>" + "".join(f"<td style='{_cell(i)}'>{c}</td>" for i, c in enumerate(cells)) + "</tr>"


def _phases(rows: Sequence[Dispatch], total: float) -> str:
    """One bar: forward, backward, optimizer."""
    order = [*COLORS]
    groups = sorted(grouped(rows, ("phase",)), key=lambda g: order.index(g.key[0]) if g.key[0] in COLORS else len(order))
    parts = [(g.key[0], 100 * g.total / total) for g in groups] if total else []
    bar = "".join(f"<div style='width:{share:.2f}%;background:{COLORS.get(phase, OTHER)}'></div>" for phase, share in parts)
    keys = "".join(
        f"<span style='margin-right:14px'><span style='display:inline-block;width:9px;height:9px;background:{COLORS.get(phase, OTHER)}'>"
        f"</span> {html.escape(phase)} {share:.0f} %</span>"
        for phase, share in parts
    )
    return f"<div style='display:flex;height:9px;margin:4px 0'>{bar}</div><div style='margin-bottom:4px'>{keys}</div>"


def _timeline(rows: Sequence[Dispatch], spans: Sequence[Span], window: tuple[int, int], unit: str) -> str:
    """Two lanes of an SVG: the host's spans, and the device's dispatches."""
    start, length = window[0], max(window[1] - window[0], 1)
    lanes: list[tuple[str, list[tuple[float, float, str, str]]]] = []
    host = [s for s in spans if s.kind != "user"]
    lanes.append(("CPU", [(s.begin, s.end, HOST.get(s.kind, OTHER), s.title) for s in sorted(host, key=lambda s: -s.ns)]))
    if unit == "GPU":
        lanes.append(("GPU", [(r.begin, r.end, COLORS.get(r.phase, OTHER), r.op) for r in sorted(rows, key=lambda r: -r.ns)]))
    out = ""
    for i, (name, slices) in enumerate(lanes):
        y = 2 + 18 * i
        out += f"<text x='0' y='{y + 11}' fill='currentColor' font-size='11'>{name}</text>"
        out += f"<rect x='34' y='{y}' width='{WIDTH - 34}' height='14' fill='rgba(128,128,128,.1)'/>"
        for begin, end, color, title in slices[:SLICES]:
            x = 34 + (WIDTH - 34) * (begin - start) / length
            w = max((WIDTH - 34) * (end - begin) / length, 0.3)
            tip = f"<title>{html.escape(title)}: {(end - begin) / 1e3:.1f} us</title>"
            out += f"<rect x='{x:.1f}' y='{y}' width='{w:.1f}' height='14' fill='{color}'>{tip}</rect>"
    y = 2 + 18 * len(lanes)
    out += f"<text x='34' y='{y + 10}' fill='currentColor' font-size='10' opacity='.6'>0</text>"
    out += f"<text x='{WIDTH - 60}' y='{y + 10}' fill='currentColor' font-size='10' opacity='.6'>{length / 1e6:.2f} ms</text>"
    return f"<svg viewBox='0 0 {WIDTH} {y + 14}' style='width:100%;display:block'>{out}</svg>"
