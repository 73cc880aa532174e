"""Every mechanism has a test that fails without it: breaks them one by one (a few minutes), or some that take a second each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.points.broken import BREAKAGES, QUICK, ROOT, Breakage, notice, survivors


def test_every_point_is_broken_at_least_twice() -> None:
    for point in range(1, 13):
        assert sum(b.point == point for b in BREAKAGES) >= 2


def test_the_text_to_break_is_there() -> None:
    """A quick look, so that a moved line is noticed long before the long run."""
    wrong = [(b.what, file) for b in BREAKAGES for file, old, _ in b.edits if (ROOT / "meganeura" / file).read_text().count(old) != 1]
    assert not wrong


def test_the_tests_that_must_notice_are_there() -> None:
    for b in BREAKAGES:
        assert b.tests, b.what
        for test in b.tests:
            file, _, name = test.partition("::")
            assert re.search(rf"^def {re.escape(name.partition('[')[0])}\(", (ROOT / "tests" / file).read_text(), re.MULTILINE), test


def test_no_quick_breakage_survives() -> None:
    chosen = [b for b in BREAKAGES if b.what in QUICK]
    assert len(chosen) == len(QUICK)
    assert not survivors(chosen, report=False)


def test_what_nobody_tests_survives() -> None:
    """The script can say so: a breakage that changes nothing is not noticed, nor one whose text is gone."""
    file = str(Path("storage.py"))
    harmless = Breakage(
        1,
        "nothing",
        ((file, "self.uid = next(_uids)", "self.uid = next(_uids)  # as before"),),
        ("points/test_point_12.py::test_the_version_is_pinned",),
    )
    assert notice(harmless)[0] is False
    assert notice(Breakage(1, "gone", ((file, "no such text", ""),), harmless.tests))[0] is False


@pytest.mark.full
def test_no_breakage_survives() -> None:
    assert not survivors(BREAKAGES, report=False)
