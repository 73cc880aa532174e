"""The package's source, parsed once for the style tests."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "meganeura"


@cache
def sources() -> dict[str, ast.Module]:
    """Parsed modules of the package by dotted name; packages by their own name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text(), str(path))
    return found


def is_package(module: str) -> bool:
    return (ROOT / module.replace(".", "/") / "__init__.py").exists()


def project_files(*suffixes: str) -> list[Path]:
    """Files of the project with these suffixes, without environments, caches and hidden folders."""
    skip = {"__pycache__", "build", "dist"}
    out = []
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        hidden = any(p.startswith(".") and p != ".ci" for p in parts)
        if path.is_file() and not hidden and not skip & set(parts) and path.suffix in suffixes:
            out.append(path)
    return out
