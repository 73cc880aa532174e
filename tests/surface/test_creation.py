"""Functions that make tensors of given values, against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meganeura as mg
from tests.surface.compare import check, floats, ints, torch

A = floats(3, 5)


def same(name: str, *args: Any, **kwargs: Any) -> None:
    check(name, *args, layouts=("plain",), half=False, rtol=2e-6, **kwargs)


RANGES = [(5,), (0,), (2, 9), (2, 9, 3), (9, 2, -2), (0.0, 1.0, 0.25), (1, 2, 0.3), (-1.5, 2), (3, 3), (5, 2),
    (1, 5, 0), (1, 5, -1), (2.5,), (-3,)]  # fmt: skip
DTYPES = ("float32", "float16", "int32", "int64")


def both(fn: Any, dtype: str) -> Any:
    """A function of a library and one of its dtypes, in both."""
    return lambda: fn(mg, getattr(mg, dtype)), lambda: fn(torch, getattr(torch, dtype))


@pytest.mark.parametrize("args", RANGES)
def test_arange(args: tuple[Any, ...]) -> None:
    same("arange", *args)
    for dtype in DTYPES:
        check(both(lambda lib, d: lib.arange(*args, dtype=d), dtype), layouts=("plain",), rtol=1e-3)


@pytest.mark.parametrize("args", [(0, 1, 5), (-2.5, 7, 11), (3, 3, 4), (1, 0, 3), (0, 1, 1), (0, 1, 0), (0, 1, -1)])
def test_spaces(args: tuple[Any, ...]) -> None:
    same("linspace", *args, atol=1e-6)
    same("logspace", *args)
    same("logspace", *args, base=2)
    for dtype in DTYPES:
        check(both(lambda lib, d: lib.linspace(*args, dtype=d), dtype), layouts=("plain",), rtol=5e-3)
        check(both(lambda lib, d: lib.logspace(*args, base=2, dtype=d), dtype), layouts=("plain",), rtol=1e-3)


@pytest.mark.parametrize("size", [((),), (3,), (2, 0), ((2, 3),), ([2, 3],), (-1,), (2, -3), (1.5,)])
def test_constants(size: tuple[Any, ...]) -> None:
    for name in ("zeros", "ones"):
        same(name, *size)
    for value in (2, 2.5, True, -7):
        if size and isinstance(size[0], (tuple, list)):
            same("full", size[0], value)
    for dtype in (*DTYPES, "bool", "uint8"):
        check(both(lambda lib, d: lib.ones(*size, dtype=d), dtype), layouts=("plain",))
    check((lambda: mg.empty(*size) * 0, lambda: torch.zeros(*size)), layouts=("plain",))


def test_eye() -> None:
    for args in ((3,), (3, 5), (5, 3), (0,), (0, 3), (-1,), (2, -1)):
        same("eye", *args)
    check((lambda: mg.eye(3, dtype=mg.int64), lambda: torch.eye(3, dtype=torch.int64)), layouts=("plain",))


def test_like() -> None:
    for a in (A, ints(3, 2), floats(2).astype(np.float16), np.zeros((0, 2), np.float32), np.array(True)):
        for name in ("zeros_like", "ones_like"):
            check(name, a, layouts=("plain", "transposed"), grad=False)
        check("full_like", a, 3, layouts=("plain", "transposed"), grad=False)
        for name in (".new_zeros", ".new_ones"):
            check(name, a, 2, 3, layouts=("plain",), grad=False)
            check(name, a, (2, 3), layouts=("plain",), grad=False)
            check(name, a, (-2, 3), layouts=("plain",), grad=False)
        check(".new_full", a, (2, 3), 1, layouts=("plain",), grad=False)
        check(".new_full", a, (2, 3), 1.5, layouts=("plain",), grad=False)
        check(".new_tensor", a, [[1, 0], [1, 1]], layouts=("plain",), grad=False)
        assert mg.tensor(a).new_empty(4, 2).shape == (4, 2)
    t = mg.tensor(A).requires_grad_()
    assert not t.new_zeros(2).requires_grad
    assert t.new_ones(2, requires_grad=True).requires_grad
    assert t.new_zeros(2, dtype=mg.int32).dtype is mg.int32


def test_from_objects() -> None:
    t = mg.tensor(A)
    assert mg.as_tensor(t) is t
    assert mg.asarray(t) is t
    assert mg.as_tensor(t, dtype=mg.float16).dtype is mg.float16
    assert mg.as_tensor([1, 2]).dtype is mg.int64
    assert mg.as_tensor(A).numpy().tolist() == A.tolist()
    assert mg.asarray(t, copy=True) is not t
    assert mg.asarray(A, requires_grad=True).requires_grad
    with pytest.raises(mg.DTypeError):
        mg.asarray(A, copy=False)
    with pytest.raises(mg.DTypeError):
        mg.asarray(t, dtype=mg.int64, copy=False)
    for value in (3, 2.5, True):
        same("scalar_tensor", value)
    raw = bytearray(np.arange(6, dtype=np.float32).tobytes())
    for kwargs in ({}, {"count": 2}, {"offset": 8}, {"offset": 4, "count": 9}, {"offset": 3}):
        check(both(lambda lib, d, k=kwargs: lib.frombuffer(raw, dtype=d, **k), "float32"), layouts=("plain",))
    assert mg.from_numpy(A).numpy().tolist() == A.tolist()


def test_made_while_compiling() -> None:
    f = mg.compile(lambda x: mg.cat([x, mg.vander(x, 3).reshape(-1), x.new_ones(2), mg.logspace(0, 2, 3), mg.scalar_tensor(4).reshape(1)]))
    x = np.array([2.0, 3.0], np.float32)
    want = [2, 3, 4, 2, 1, 9, 3, 1, 1, 1, 1, 10, 100, 4]
    assert np.allclose(f(mg.tensor(x)).numpy(), want)
