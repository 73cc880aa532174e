"""Programs whose shaders Tint compiles. Dawn's Null backend validates and runs none, so this needs no driver."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def printed(program: str, **env: str) -> list[str]:
    """The words that a program prints in a process of its own, on Dawn's Null backend. Printing none fails with its error output."""
    pytest.importorskip("wgpudawn")
    command, env = [sys.executable, "-c", program], {**os.environ, "WGPU_BACKEND_TYPE": "Null", **env}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.split(), done.stderr[-3000:]
    return done.stdout.split()
