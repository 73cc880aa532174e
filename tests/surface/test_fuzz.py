"""Random programs in torch and in meganeura: the same values, dtypes, shapes, gradients, flags and errors."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from tests.surface import programs

torch = pytest.importorskip("torch")
QUICK, FULL, GROUP = 240, 4000, 20
_NAMES = {"int16": "int32"}  # PyTorch's int16 is held as int32
_LIMITS = ("not implemented for", "ZeroDivisionError")  # of torch's CPU kernels, or data that is not looked at here
_WIDER = (  # what torch refuses and meganeura takes
    "refer to a single memory location",  # a value that overlaps what is written is copied first
    'permute() missing 1 required positional arguments: "dims"',
)  # fmt: skip
_WIDER_STEPS = ("argmax", "argmin")  # take bools here
_NARROWER = ("cannot write to an expanded tensor",)  # torch lets some fills do it


class Pair:
    """One value in both libraries. `equal`: bit for bit, so that steps which jump may use it."""

    def __init__(self, t: Any, m: Any, text: str) -> None:
        self.t, self.m, self.text = t, m, text
        self.equal = True

    def __repr__(self) -> str:
        return f"{self.text} {self.m.dtype.name}{list(self.m.shape)}"


def _values(t: Any) -> Any:
    return t.detach().numpy()


def _tolerance(dtype: str) -> float:
    return 3e-2 if dtype == "float16" else 2e-3


def _matches(a: Any, b: Any) -> bool:
    """Equal to within a tolerance that grows with the largest number."""
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    tolerance = _tolerance(a.dtype.name)
    finite = np.abs(a[np.isfinite(a)].astype(np.float64))
    scale = max(1.0, float(finite.max()) if finite.size else 1.0)
    a, b = a.astype(np.float64), b.astype(np.float64)
    limit = 60000.0 if tolerance > 1e-2 else 3e38  # where one rounds to infinity and the other does not
    both = (np.abs(a) >= limit) & (np.abs(b) >= limit) & (np.sign(a) == np.sign(b))
    return bool((np.isclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True) | both).all())


def _input(rng: random.Random, seed: int) -> Pair:
    dtype, shape = rng.choice((*programs.DTYPES, "float32", "float32")), rng.choice(programs.SHAPES)
    values = programs.array(rng, dtype, shape, special=rng.random() < 0.08)
    t, m = torch.from_numpy(values.copy()), mg.tensor(values)
    text = f"array({dtype}{list(shape)})"
    if dtype.startswith("float") and rng.random() < 0.6:
        t.requires_grad_()
        m.requires_grad_()
    layout = rng.randrange(1 << 30)
    pair = Pair(programs.laid_out(random.Random(layout), t), programs.laid_out(random.Random(layout), m), text)
    pair.leaf = (t, m)  # type: ignore[attr-defined]
    return pair


def _try(fn: Any) -> tuple[Any, Exception | None]:
    try:
        return fn(), None
    except Exception as e:
        return None, e


def _settled(result: Any) -> Any:
    """The result, read once: an index out of range in data is reported when values are read."""
    if isinstance(result, mg.Tensor):
        result.detach().numpy()
    return result


def _fit(t: Any) -> bool:
    """Whether a result can be compared further: int64 within int32, floats far from overflow."""
    a = _values(t)
    if a.size == 0 or a.dtype.kind == "b":
        return True
    a = np.abs(a[np.isfinite(a)].astype(np.float64))
    return bool(a.size == 0 or a.max() < (1e9 if t.dtype == torch.int64 else 500 if t.dtype == torch.float16 else 1e5))


def _castable(call: programs.Call, args: list[Pair]) -> bool:
    """Conversions of NaN, infinities and numbers beyond the target are undefined in both libraries."""
    if not call.text.startswith("to ") or call.text.endswith(("bool", "float16", "float32")):
        return True
    a = _values(args[0].t)
    return bool(a.size == 0 or (np.isfinite(a.astype(np.float64)).all() and np.abs(a.astype(np.float64)).max() < 100))


def _step(rng: random.Random, pool: list[Pair], log: list[str]) -> None:
    call = programs.draw(rng)
    usable = [p for p in pool if p.equal] if call.jumps else pool
    if not usable:
        return
    args = [rng.choice(usable[-4:]) for _ in range(call.count)]
    if call.writes and rng.random() < 0.7:
        args = args[:1] + [rng.choice(usable) for _ in args[1:]]
    if not _castable(call, args):
        return
    log.append(f"{call.text}   of {args}")
    with np.errstate(all="ignore"):
        t, te = _try(lambda: call.run(torch, torch.nn.functional, *(p.t for p in args)))
    m, me = _try(lambda: _settled(call.run(mg, mg.nn.functional, *(p.m for p in args))))
    if te is not None or me is not None:
        _same_error(call, te, me, any(p.t.numel() == 0 for p in args))
        if call.writes:  # one of them may have written
            pool[:] = [p for p in pool if not (te is None) != (me is None)]
        return
    if not isinstance(t, torch.Tensor):
        return
    pair = Pair(t, m, call.text)
    _compare(pair)
    if call.writes:
        for p in pool:
            _compare(p)
        if not _fit(t):
            pool.clear()
    elif _fit(t) and str(t.dtype) != "torch.int16":
        pool.append(pair)


def _same_error(call: programs.Call, te: Exception | None, me: Exception | None, empty: bool) -> None:
    if me is not None and te is not None:
        if _raised_in(me, programs.__file__):  # the step itself, such as unbind(0)[0] of no parts
            return
        assert __file__ in str(me) or programs.__file__ in str(me), f"the error does not name the user's line: {type(me).__name__}: {me}"
        return
    if te is not None:
        wider = any(word in str(te) for word in (*_LIMITS, *_WIDER)) or call.text.startswith(_WIDER_STEPS)
        wider = wider or (empty and "out of" in str(te))
        assert wider, f"torch raises, meganeura does not: {type(te).__name__}: {te}"
        return
    if any(word in str(me) for word in _NARROWER) or (empty and isinstance(me, (mg.DTypeError, mg.IndexOutOfRangeError))):
        return
    if empty and call.text.startswith("cat"):  # torch takes any dim for empty vectors
        return
    raise AssertionError(f"meganeura raises, torch does not: {type(me).__name__}: {me}") from me


def _raised_in(error: BaseException, file: str) -> bool:
    """Whether the frame that raised belongs to a file."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename == file


def _compare(pair: Pair) -> None:
    t, m = pair.t, pair.m
    name = str(t.dtype).removeprefix("torch.")
    assert m.dtype.name == _NAMES.get(name, name), f"dtype {m.dtype.name}, torch has {name}"
    assert m.shape == tuple(t.shape), f"shape {m.shape}, torch has {tuple(t.shape)}"
    assert m.requires_grad == t.requires_grad, f"requires_grad {m.requires_grad}, torch has {t.requires_grad}"
    assert m.is_leaf == t.is_leaf, f"is_leaf {m.is_leaf}, torch has {t.is_leaf}"
    a, b = _values(t), m.detach().numpy()
    if name == "int16":
        a = a.astype(np.int32)
    if _fit(t):
        assert _matches(a, b), f"values\n{b}\ntorch has\n{a}"
    pair.equal = bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))


def _backward(rng: random.Random, inputs: list[Pair], pool: list[Pair], log: list[str]) -> None:
    roots = [p for p in pool if p.t.requires_grad and p.t.numel() and not p.t.is_leaf]
    if not roots:
        return
    root = roots[-1]
    log.append(f"backward from {root}")
    seed = programs.array(rng, "float32", tuple(root.t.shape)).astype(_values(root.t).dtype)
    _, te = _try(lambda: root.t.backward(torch.from_numpy(seed)))
    _, me = _try(lambda: root.m.backward(mg.tensor(seed)))
    if te is not None and "not implemented" in str(te) and me is None:
        return
    assert (te is None) == (me is None), f"backward: torch {te}, meganeura {me}"
    if te is not None:
        return
    for p in inputs:
        t, m = p.leaf  # type: ignore[attr-defined]
        if not t.requires_grad:
            continue
        assert (t.grad is None) == (m.grad is None), f"gradient of {p}: torch {t.grad}, meganeura {m.grad}"
        if t.grad is not None and _fit(t.grad):
            assert m.grad.dtype.name == str(t.grad.dtype).removeprefix("torch.")
            assert _matches(_values(t.grad), m.grad.numpy()), f"gradient of {p}\n{m.grad.numpy()}\ntorch has\n{_values(t.grad)}"


def run(seed: int) -> None:
    """One program; the AssertionError of a difference shows its steps."""
    rng = random.Random(seed)
    inputs = [_input(rng, seed) for _ in range(rng.randint(2, 3))]
    pool = list(inputs)
    log = [f"program {seed} of {inputs}"]
    try:
        for _ in range(rng.randint(3, 8)):
            _step(rng, pool, log)
        _backward(rng, inputs, pool, log)
    except AssertionError as e:
        raise AssertionError("\n".join([*log, str(e)])) from e


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(0, QUICK, GROUP))
def test_programs(first: int) -> None:
    for seed in range(first, first + GROUP):
        run(seed)


@pytest.mark.full
@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(QUICK, FULL, 8 * GROUP))
def test_many_programs(first: int) -> None:
    for seed in range(first, first + 8 * GROUP):
        run(seed)
