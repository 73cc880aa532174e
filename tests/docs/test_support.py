"""docs/support.md says what is here: it is what `python -m meganeura support` prints, and PyTorch has every name of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from meganeura import support

PAGE = Path(__file__).parents[2] / "docs" / "support.md"
FUNCTIONS = ("torch", "torch.Tensor", "torch.nn.functional", "torch.linalg", "torch.special")


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == support.page(), "run `python -m meganeura support > docs/support.md`"


def test_the_command_prints_it() -> None:
    done = subprocess.run([sys.executable, "-m", "meganeura", "support"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == support.page()


def test_enough_is_here() -> None:
    found = support.topics()
    here = {name for topic in FUNCTIONS for name, status in found[topic].items() if status == "yes"}
    assert len(here) >= 350


def test_no_name_is_listed_twice() -> None:
    for topic, names in support.NAMES.items():
        listed = names.split()
        assert len(listed) == len(set(listed)), topic


def test_statuses_of_known_names() -> None:
    found = support.topics()
    assert found["torch"]["add"] == found["torch.nn"]["Linear"] == found["torch.optim"]["AdamW"] == "yes"
    assert found["torch"]["nonzero"] == found["torch.linalg"]["svd"] == found["torch.Tensor"]["item"] == "eager only"
    assert found["torch"]["fft"] == found["torch"]["complex"] == found["torch.linalg"]["eig"] == "no"
    assert set(support.STATUSES) >= {s for names in found.values() for s in names.values()}


@pytest.mark.torch
@pytest.mark.parametrize("topic", support.NAMES)
@pytest.mark.filterwarnings("ignore")
def test_pytorch_has_every_name(torch: Any, topic: str) -> None:
    import importlib

    owner = torch
    for part in topic.split(".")[1:]:
        owner = getattr(owner, part, None) or importlib.import_module(f"{owner.__name__}.{part}")
    assert not [name for name in support.NAMES[topic].split() if not hasattr(owner, name)]
