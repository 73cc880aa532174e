"""Profiles in the hands of a hostile user: threads that come and go, odd names, blocks left twice."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

import meganeura as mg
from meganeura import spans


def together(*works: Any) -> None:
    """Run functions in threads; what one raises is raised here."""
    errors: list[BaseException] = []

    def run(work: Any) -> None:
        try:
            work()
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=run, args=(w,), name="<t>\ud800") for w in works]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]


def test_left_without_being_entered_and_entered_twice() -> None:
    with pytest.raises(mg.MeganeuraError, match="not open"):
        mg.profile().__exit__(None, None, None)
    with mg.profile() as p:
        with pytest.raises(mg.MeganeuraError, match="do not nest"):
            p.__enter__()
        with pytest.raises(mg.MeganeuraError, match="must end first"):
            p.table()
    with pytest.raises(mg.MeganeuraError, match="not open"):
        p.__exit__(None, None, None)
    assert spans.listener is None


def test_odd_names_in_every_view(tmp_path: Any) -> None:
    pytest.importorskip("perfetto")

    def work() -> None:
        for name in ("ü💥", "<b>&\"'", "{index}", "a\0b", "c\ud800"):
            mg.named(mg.ones(4) * 2, name).numpy()

    with mg.profile() as p:
        together(work)
        with p.span("<script>\0\ud800"):
            mg.ones(3).numpy()
    assert "<script>" not in p._repr_html_() and "<b>&" not in p._repr_html_()
    assert "c\ud800" in p.table(by="value")
    p.json(tmp_path / "p.json")
    p.trace(tmp_path / "p.pftrace")


def test_threads_that_go_on_over_the_end_of_profiles() -> None:
    fn, x, stop = mg.compile(lambda x: (x @ x).exp().sum()), mg.ones(4, 4), threading.Event()
    fn(x)

    def worker() -> None:
        while not stop.is_set():
            (mg.ones(5) * 3 + 1).numpy()
            fn(x).item()

    def profiles() -> None:
        try:
            for _ in range(4):
                with mg.profile() as p:
                    fn(x).item()
                p.table()
                assert all(s.end >= s.begin for s in p.spans)
        finally:
            stop.set()

    together(worker, profiles)
    assert spans.listener is None and "apply" not in vars(mg.eager_interpreter())


def test_profiles_leave_nothing_behind() -> None:
    fn, x = mg.compile(lambda x: (x * 2).sum()), mg.ones(4)

    def go(n: int) -> int:
        for _ in range(n):
            with mg.profile():
                fn(x).item()
        gc.collect()
        return len(gc.get_objects())

    go(3)
    before = go(3)
    assert go(30) - before < 200
