"""README and docs/: Python blocks run, commands exist, links lead somewhere."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from meganeura.__main__ import _parser
from tests.docs.blocks import blocks

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [p for p in PAGES if any(b.language == "python" for b in blocks(p))], ids=_name)
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(ROOT / "tests" / "docs" / "blocks.py"), str(page)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def _shell_lines() -> list[tuple[str, str]]:
    """(page, command) of every line of every shell block, comments cut off."""
    scripts = [(_name(p), b.code) for p in PAGES for b in blocks(p) if b.language == "sh"]
    lines = [(page, line.split("   #")[0].strip()) for page, code in scripts for line in code.splitlines()]
    return [pair for pair in lines if pair[1]]


@pytest.mark.parametrize(("page", "line"), _shell_lines())
def test_commands_exist(page: str, line: str) -> None:
    """./dev and python -m meganeura know their commands; scripts are there; package managers are not called."""
    words = shlex.split(line)
    if words[0] == "./dev":
        known = set(re.findall(r"^    (\w+)\)", (ROOT / "dev").read_text(), re.MULTILINE))
        assert words[1] in known
    elif words[1:3] == ["-m", "meganeura"]:
        _parser().parse_args(words[3:])
    elif words[0] in ("sh", "python") and not words[1].startswith("-"):
        assert (ROOT / words[1]).exists()
    else:
        assert words[0] in ("sudo", "python") or words[1:3] == ["-m", "pip"], f"{page}: what is {line!r}?"


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert not [t for t in targets if not (page.parent / t).exists()]


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_scripts_named_in_the_text_exist(page: Path) -> None:
    named = re.findall(r"\b(?:sh|python) ((?:benchmarks|examples)/[\w./]+)", page.read_text())
    assert not [n for n in named if not (ROOT / n).exists()]


def test_pages_named_in_the_source_exist() -> None:
    named = {n for p in (ROOT / "meganeura").rglob("*.py") for n in re.findall(r"\bdocs/[\w-]+\.md", p.read_text())}
    assert not [n for n in named if not (ROOT / n).exists()]
