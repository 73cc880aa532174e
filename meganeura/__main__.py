"""`python -m meganeura info | ops | support | demo | bench`: what is here, what it can do, and how fast."""

from __future__ import annotations

import argparse
import importlib.metadata
import inspect
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from ._version import __version__


def table(rows: Sequence[Sequence[Any]], indent: str = "") -> str:
    """Rows of cells as aligned columns; the last column is not padded."""
    texts = [[str(c) for c in row] for row in rows]
    widths = [max(len(row[i]) for row in texts) for i in range(len(texts[0]))] if texts else []
    lines = (indent + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in texts)
    return "\n".join(lines)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def info(_args: argparse.Namespace) -> int:
    """Print versions, adapters, the chosen device with its limits and profile, and the options."""
    from . import config, gpu

    print(f"meganeura {__version__}, Python {platform.python_version()} on {platform.platform()}")
    print(table([(p, _version(p)) for p in ("wgpu", "wgpudawn", "numpy")], "  "))
    print("\nadapters, best first")
    found = [("id", "name", "type", "backend", "driver")]
    found += [(a["id"], a["name"], a["type"], a["backend"], a["driver"]) for a in gpu.adapters()]
    print(table(found, "  "))
    device = gpu.current()
    print(f"\ndevice: {device.name}, {device.info['adapter_type']}, {device.info['backend_type']} through {device.backend}")
    print("\nprofile (what kernels know of it)")
    print(table([(f.name, getattr(device.profile, f.name)) for f in fields(device.profile)], "  "))
    print("\nlimits")
    print(table(sorted(device.limits.items()), "  "))
    print("\noptions (variable, value now, meaning)")
    now = config.current()
    print(table([(name, repr(getattr(now, name.removeprefix(config.PREFIX).lower())), doc) for name, _, doc in config.describe()], "  "))
    return 0


def _dtype_rule(row: Any) -> str:
    """Where an op's result dtype comes from: the row's own rule, or its archetype's default."""
    if row.rule is not None:
        return "own rule"
    types = getattr(row.archetype, "types", "")
    kind = getattr(row.archetype, "kind", "")
    return types or ("int64" if kind.startswith("arg") else "bool" if kind in ("any", "all") else "as input")


def _gradient(row: Any) -> str:
    """yes, no, or the inputs that have a gradient where others have none."""
    have = [n for n in row.inputs if row.grad.get(n) is not None]
    return "no" if not have else "yes" if len(have) == len(row.inputs) else ", ".join(have)


def op_rows() -> list[tuple[str, str, str, str, str, str]]:
    """(name, archetype, inputs, gradient, dtype rule, first line of the docstring) of every public op and composite."""
    import meganeura  # fills the table

    from .ops.table import COMPOSITES, REGISTRY

    assert meganeura.__name__
    rows = []
    for name, row in REGISTRY.items():
        if row.public:
            kind = type(row.archetype).__name__
            rows.append((name, kind, ", ".join(row.inputs), _gradient(row), _dtype_rule(row), row.doc.split("\n")[0]))
    for name, fn in COMPOSITES.items():
        if name in REGISTRY and REGISTRY[name].public:  # more arguments for the row above
            continue
        doc = inspect.cleandoc(fn.__doc__ or "").split("\n")[0]
        rows.append((name, "composite", ", ".join(inspect.signature(fn).parameters), "by its ops", "by its ops", doc))
    return sorted(rows)


def ops(args: argparse.Namespace) -> int:
    """Print the op table."""
    rows = [r for r in op_rows() if not args.word or any(args.word in cell for cell in r)]
    head = ("name", "archetype", "inputs", "gradient", "dtype", "what")
    if args.markdown:
        print("| " + " | ".join(head) + " |\n|" + " --- |" * len(head))
        print("\n".join("| " + " | ".join(c.replace("|", "\\|") for c in r) + " |" for r in rows))
    else:
        print(table([head, *rows]))
        print(f"\n{len(rows)} ops")
    return 0


def support(_args: argparse.Namespace) -> int:
    """Print which of PyTorch's names are here, as Markdown."""
    from .support import page

    print(page(), end="")
    return 0


def demo(args: argparse.Namespace) -> int:
    """Train on MNIST digits."""
    from .demo import run

    return run(epochs=args.epochs, batch=args.batch, folder=args.out, only=args.only)


def bench(args: argparse.Namespace) -> int:
    """Measure this device."""
    from .bench import report

    return report(quick=args.quick)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m meganeura", description=__doc__)
    parser.add_argument("--version", action="version", version=f"meganeura {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=(run.__doc__ or "").rstrip("."))
        made.set_defaults(run=run)
        return made

    command("info", info)
    table_of_ops = command("ops", ops)
    table_of_ops.add_argument("word", nargs="?", default="", help="show only rows with this word in any column")
    table_of_ops.add_argument("--markdown", action="store_true", help="as a Markdown table")
    command("support", support)
    show = command("demo", demo)
    show.add_argument("--epochs", type=int, default=None, help="passes over the 8,500 training digits (default 12, convolutional 5)")
    show.add_argument("--batch", type=int, default=None, help="digits a step (default 100, convolutional 50)")
    show.add_argument("--only", choices=("eager", "compiled", "convolutional"), nargs="+", help="of the three trainings")
    show.add_argument("--out", default="demo", help="folder for the two pictures (default demo)")
    command("bench", bench).add_argument("--quick", action="store_true", help="smaller sizes and fewer rounds")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    from .errors import MeganeuraError

    args = _parser().parse_args(argv)
    try:
        return int(args.run(args))
    except MeganeuraError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 0


if __name__ == "__main__":
    sys.exit(main())
