"""Every example runs, with warnings as errors, and fits on a screen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SHORT = {"gpt": ["40"]}  # arguments that make an example quick
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.stem)
def test_example_runs(example: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(example), *SHORT.get(example.stem, ())]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    if "No module named" in done.stderr:
        pytest.importorskip(done.stderr.rsplit("No module named ", 1)[1].strip(" '\n"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.stem)
def test_example_fits_on_a_screen(example: Path) -> None:
    assert len(example.read_text().splitlines()) <= 60
