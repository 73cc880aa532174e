"""Every mechanism has a test that fails without it: breaks them one by one (a few minutes)."""

from __future__ import annotations

import pytest

from tests.points.broken import BREAKAGES, ROOT, survivors


def test_every_point_is_broken_at_least_twice() -> None:
    for point in range(1, 13):
        assert sum(b.point == point for b in BREAKAGES) >= 2


def test_the_text_to_break_is_there() -> None:
    """A quick look, so that a moved line is noticed long before the long run."""
    wrong = [(b.what, file) for b in BREAKAGES for file, old, _ in b.edits if (ROOT / "meganeura" / file).read_text().count(old) != 1]
    assert not wrong


@pytest.mark.full
def test_no_breakage_survives() -> None:
    assert not survivors(BREAKAGES, report=False)
