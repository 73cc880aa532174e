"""The collector, stopped for a block: on again afterwards, whatever happens between any two steps of the interpreter."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from meganeura import quiet

MOST = 200  # opcodes of a block, with room


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    yield
    gc.enable()


def with_at(step: int, action: Callable[[], Any], way: Callable[[], Any] = quiet.paused) -> bool:
    """Run a block with `action` before opcode number `step` of `paused`; whether it has so many."""
    seen = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal seen
        if frame.f_code.co_name != "paused":
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            seen += 1
            if seen == step:
                action()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with way():
            pass
    finally:
        sys.settrace(before)
    return seen >= step


def test_another_thread_lets_it_go_on_at_any_step() -> None:
    """It had stopped it, and what found it stopped must not stop it again without noting so."""
    step = 0
    while True:
        gc.disable()
        if not with_at(step := step + 1, gc.enable):
            break
        assert gc.isenabled(), step
    assert 10 < step < MOST


def struck_at(event: int) -> int:
    """Run a block with Ctrl-C where the interpreter answers it: at the begin of a function or after a call of C, the one of this number.
    Returns how many there were."""
    seen = 0

    def look(frame: Any, kind: str, _: Any) -> None:
        nonlocal seen
        seen += kind in ("call", "c_return")
        if seen == event:
            raise KeyboardInterrupt

    before = sys.getprofile()
    try:
        sys.setprofile(look)
        with quiet.paused():
            pass
    finally:
        sys.setprofile(before)
    return seen


def test_ctrl_c_wherever_it_is_answered() -> None:
    event = 0
    while True:
        try:
            if struck_at(event := event + 1) < event:
                break
        except KeyboardInterrupt:
            pass
        assert gc.isenabled(), event
    assert 8 < event < MOST


def test_finding_and_stopping_in_two_steps_is_told_apart() -> None:
    """The first test above sees what it is there for."""

    @contextlib.contextmanager
    def paused() -> Iterator[None]:
        found = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if found:
                gc.enable()

    stayed_off = []
    for step in range(1, MOST):
        gc.disable()
        if not with_at(step, gc.enable, paused):
            break
        stayed_off.append(not gc.isenabled())
    assert any(stayed_off)


@pytest.mark.parametrize("on", [True, False])
def test_it_stays_as_it_was(on: bool) -> None:
    if not on:
        gc.disable()
    with quiet.paused(), quiet.paused():
        assert not gc.isenabled()
    assert gc.isenabled() == on
