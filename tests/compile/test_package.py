"""`meganeura.compile` is a package and a function at once."""

from __future__ import annotations

import importlib
import inspect
import pickle
import sys
import threading
from typing import Any

import numpy as np

import meganeura as mg
from meganeura import nn


def test_module_is_callable() -> None:
    assert mg.compile is sys.modules["meganeura.compile"]
    assert importlib.import_module("meganeura.compile.api").compile is mg.compile.compile
    assert "precision" in inspect.signature(mg.compile).parameters
    assert callable(mg.compile)


def test_decorator_with_and_without_arguments() -> None:
    @mg.compile
    def one(x: Any) -> Any:
        """Adds one."""
        return x + 1

    @mg.compile(rewrite="off")
    def two(x: Any) -> Any:
        return x + 2

    x = mg.zeros(2)
    assert one(x).tolist() == [1, 1]
    assert two(x).tolist() == [2, 2]
    assert one.__name__ == "one"
    assert one.__doc__ == "Adds one."
    assert mg.compile(one) is one


def test_under_the_reference_it_is_plain_code() -> None:
    f = mg.compile(lambda x: x.exp())
    with mg.dispatch.use(mg.Reference(precise=True)):
        assert f(mg.tensor([0.0, 1.0])).numpy().dtype == np.float64
    assert f.traces == 0


def test_threads() -> None:
    """Calls from several threads, each with its own result."""
    f = mg.compile(lambda x, y: (x @ y).sum())
    eye = mg.eye(8)
    found: dict[int, list[float]] = {}

    def work(n: int) -> None:
        found[n] = [float(f(mg.full((8, 8), float(n)), eye)) for _ in range(20)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == {n: [64.0 * n] * 20 for n in range(4)}
    assert f.traces == 1


class Half(nn.Module):
    """A module that can be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(mg.full((3,), 0.5))

    def forward(self, x: Any) -> Any:
        return x * self.weight


def test_compiled_module_survives_pickling() -> None:
    model = mg.compile(Half())
    other = pickle.loads(pickle.dumps(model))
    assert other(mg.ones(3)).tolist() == [0.5, 0.5, 0.5]
    assert isinstance(other, Half)
    assert hasattr(other, "compiled")
