"""The device's clock on the host's: offset, drift, and cause before effect."""

from __future__ import annotations

import pytest

from meganeura.profile.clock import Pair, fit


def pairs(at: float, offset: float, rate: float, early: int = 20_000, late: int = 30_000) -> list[Pair]:
    """Moments around host time `at`: host = offset + rate * device."""
    return [(int(t - early), (t - offset) / rate, int(t + late)) for t in (at, at + 50_000)]


def test_offset() -> None:
    clock = fit(pairs(1e9, 5e8, 1.0), pairs(1.01e9, 5e8, 1.0))
    assert clock.rate == 1.0
    assert clock.error <= 25_001
    assert clock.host(4e8) == pytest.approx(9e8, abs=25_001)


def test_drift_over_a_long_profile() -> None:
    rate = 1 + 4e-5
    clock = fit(pairs(1e9, 0, rate), pairs(61e9, 0, rate))
    assert clock.rate == pytest.approx(rate, abs=2e-6)
    for t in (1e9, 20e9, 61e9):
        assert clock.host(t / rate) == pytest.approx(t, abs=60_000)


def test_short_profiles_do_not_guess_a_slope() -> None:
    """Moments that are 50 us wide say nothing of a slope over 3 ms."""
    first, last = pairs(1e9, 0, 1.0, 1_000, 49_000), pairs(1.003e9, 0, 1.0, 49_000, 1_000)
    assert fit(first, last).rate == 1.0


def test_work_comes_after_its_submission_and_before_the_end() -> None:
    first, last = pairs(1e9, 0, 1.0, 500, 90_000), pairs(1.01e9, 0, 1.0, 500, 90_000)
    work = [(1.002e9, 1.003e9, int(1.002e9) + 400), (1.004e9, 1.005e9, int(1.004e9) - 300)]
    clock = fit(first, last, work, 1.005e9 + 9_000)
    assert all(clock.host(begin) >= submitted and clock.host(end) <= 1.005e9 + 9_000 for begin, end, submitted in work)


def test_contradictions_favour_the_cause() -> None:
    clock = fit(pairs(1e9, 0, 1.0), pairs(1.01e9, 0, 1.0), [(1.002e9, 1.003e9, int(1.0025e9))], 1.0031e9)
    assert clock.host(1.002e9) >= 1.0025e9
