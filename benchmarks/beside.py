"""What the benchmarks here share: choosing the backend, PyTorch on CUDA where it is, and printing tables and JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import meganeura as mg
from meganeura import config


def start(description: str, more: Callable[[argparse.ArgumentParser], Any] = lambda parser: None) -> argparse.Namespace:
    """Parse --backend, --json and the options that `more` adds, and open that backend's device."""
    parser = argparse.ArgumentParser(description=description)
    more(parser)
    parser.add_argument("--backend", choices=("wgpu", "dawn"), default=None, help="default: as configured")
    parser.add_argument("--json", type=Path, default=None, help="also write the rows to this file")
    args = parser.parse_args()
    if args.backend:
        config.configure(backend=args.backend)
    print(f"{mg.device()}, torch: {torch_name()}\n")
    return args


def cuda() -> Any:
    """The torch module if it can use CUDA, else None. Strict float32 in products, convolutions and recurrences."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    return torch


def torch_name() -> str:
    torch = cuda()
    return f"{torch.__version__} on {torch.cuda.get_device_name()}" if torch else "no CUDA here"


def finish(rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """Print rows as a Markdown table, then as one line of JSON; write the file if asked."""
    names = list(dict.fromkeys(k for row in rows for k in row))
    print("| " + " | ".join(names) + " |\n|" + " --- |" * len(names))
    for row in rows:
        print("| " + " | ".join(_text(row.get(n)) for n in names) + " |")
    line = json.dumps({"device": mg.device().name, "backend": mg.device().backend, "torch": torch_name(), "rows": rows})
    print("\n" + line)
    if args.json:
        args.json.write_text(line + "\n")


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
