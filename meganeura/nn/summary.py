"""Modules as text: the nested repr of PyTorch, and a table of layers."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .module import Module


def _indent(text: str) -> str:
    first, *rest = text.split("\n")
    return "\n".join([first, *("  " + line for line in rest)])


def module_repr(module: Module) -> str:
    """Class name, extra_repr and children, as torch.nn.Module prints them."""
    extra = module.extra_repr()
    head = extra.split("\n") if extra else []
    parts = [f"({name}): {_indent(repr(child))}" for name, child in module._modules.items()]
    name = type(module).__name__
    if len(head) == 1 and not parts:
        return f"{name}({head[0]})"
    lines = head + parts
    return f"{name}(\n  " + "\n  ".join(lines) + "\n)" if lines else f"{name}()"


HEAD = ("layer", "type", "shapes", "parameters")


def _rows(module: Module) -> list[tuple[str, str, str, str]]:
    rows = []
    for path, part in module.named_modules():
        own = dict(part.named_parameters(recurse=False))
        shapes = ", ".join(f"{n}{list(p.shape)}" for n, p in own.items())
        rows.append((path or "(self)", type(part).__name__, shapes, f"{sum(p.numel() for p in own.values()):,}"))
    return rows


def _totals(module: Module) -> str:
    params, buffers = list(module.parameters()), list(module.buffers())
    total, trained = sum(p.numel() for p in params), sum(p.numel() for p in params if p.requires_grad)
    size = sum(t.nbytes for t in (*params, *buffers))
    return f"{total:,} parameters, {trained:,} trainable, {size:,} bytes with buffers"


def summary(module: Module) -> str:
    """One line a module with its own parameters, then the totals (shared parameters counted once)."""
    rows = [HEAD, *_rows(module)]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = [
        "  ".join([*(cell.ljust(w) for cell, w in zip(row[:3], widths, strict=False)), row[3].rjust(widths[3])]).rstrip() for row in rows
    ]
    lines.insert(1, "-" * max(len(line) for line in lines))
    return "\n".join([*lines, lines[1], _totals(module)])


def module_html(module: Module) -> str:
    """The summary as an HTML table."""
    head = "".join(f"<th style='text-align:left'>{name}</th>" for name in HEAD)
    sides = ("left", "left", "left", "right")
    cells = (
        "".join(f"<td style='text-align:{side}'>{html.escape(cell)}</td>" for side, cell in zip(sides, row, strict=True))
        for row in _rows(module)
    )
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<div><b>{html.escape(type(module).__name__)}</b><table><tr>{head}</tr>{body}</table>{_totals(module)}</div>"
