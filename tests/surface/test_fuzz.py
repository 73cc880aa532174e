"""Random programs in torch and in meganeura: the same values, dtypes, shapes, gradients, flags and errors."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from tests.surface import programs

torch = pytest.importorskip("torch")
QUICK, FULL, GROUP = 240, 4000, 20
_NAMES = {"int16": "int32"}  # PyTorch's int16 is held as int32
# Limits of torch's CPU kernels, or data that is not looked at here.
_LIMITS = ("not implemented for", "ZeroDivisionError", "INTERNAL ASSERT", "grad_input must be contiguous")
_SEVERAL = "output of a function that returns multiple views"  # whose base was changed
_WIDER = (  # what torch refuses and meganeura takes
    "refer to a single memory location",  # a value that overlaps what is written is copied first
    "Index put requires the source and destination dtypes match",  # values are converted here
    _SEVERAL,
    "view size is not compatible",  # results are contiguous here
    'permute() missing 1 required positional arguments: "dims"',
)  # fmt: skip
_WIDER_STEPS = ("argmax", "argmin")  # take bools here
_NARROWER = ("cannot write to an expanded tensor", "index_select of a 0-d tensor")  # torch lets some fills do it


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


_MAY_COPY = ("reshape", "flatten", "contiguous", "to ", "x[")


def _shares(x: Any, others: list[Any]) -> bool:
    """Whether a tensor lies in the memory of one of others."""
    if isinstance(x, mg.Tensor):
        return any(x._storage is o._storage for o in others)
    return any(x.untyped_storage()._cdata == o.untyped_storage()._cdata for o in others)


def _moderate(t: Any) -> bool:
    return bool((_values(t).astype(np.float64).__abs__() < 1e30).all())


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
        if call.writes:  # torch may have written a part, or one of them all
            pool.clear()
        return
    if not isinstance(t, torch.Tensor):
        return
    if call.text == "gelu" and not _moderate(args[0].t):  # torch's vector code gives NaN for infinity
        return
    pair = Pair(t, m, call.text)
    _compare(pair)
    if _shares(t, [p.t for p in args]) != _shares(m, [p.m for p in args]):  # views, or reshapes of layouts that differ
        assert call.text.startswith(_MAY_COPY), f"shares memory: meganeura {not _shares(t, [p.t for p in args])}"
        return
    if call.writes:
        for p in pool:
            _compare(p)
        if not _fit(t):
            pool.clear()
    elif _fit(t) and str(t.dtype) != "torch.int16":
        pool.append(pair)


def _same_error(call: programs.Call, te: Exception | None, me: Exception | None, empty: bool) -> None:
    assert not isinstance(me, mg.DeviceError), f"{me}"
    if me is not None and te is not None:
        if _raised_in(me, programs.__file__):  # the step itself, such as unbind(0)[0] of no parts
            return
        assert __file__ in str(me) or programs.__file__ in str(me), f"the error does not name the user's line: {type(me).__name__}: {me}"
        return
    if te is not None:
        wider = any(word in str(te) for word in (*_LIMITS, *_WIDER)) or call.text.startswith(_WIDER_STEPS)
        wider = wider or (empty and ("out of" in str(te) or "size mismatch" in str(te)))
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
    try:
        leaf = t.is_leaf
    except RuntimeError:  # torch refuses to look at one of several views whose base was changed
        leaf = m.is_leaf
    assert m.is_leaf == leaf, f"is_leaf {m.is_leaf}, torch has {t.is_leaf}"
    a, b = _values(t), m.detach().numpy()
    if name == "int16":  # held as int32, which does not wrap as early
        a, b = a.astype(np.int32), b.astype(np.int16).astype(np.int32)
    if _fit(t):
        assert _matches(a, b), f"values\n{b}\ntorch has\n{a}"
    pair.equal = bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))


def _backward(rng: random.Random, inputs: list[Pair], pool: list[Pair], log: list[str]) -> None:
    roots = [p for p in pool if p.t.requires_grad and p.t.numel() and not p.m.is_leaf]
    if not roots:
        return
    root = roots[-1]
    log.append(f"backward from {root}")
    seed = programs.array(rng, "float32", tuple(root.t.shape)).astype(_values(root.t).dtype)
    _, te = _try(lambda: root.t.backward(torch.from_numpy(seed)))
    _, me = _try(lambda: root.m.backward(mg.tensor(seed)))
    if te is not None and me is None and "modified by an inplace operation" in str(te):
        raise _Again  # torch saves more, or no copy of what it overwrites
    if any(word in str(te) for word in (*_LIMITS, "is not implemented", _SEVERAL)) and me is None:
        return
    if "cross_entropy_row saved" in str(me):  # it keeps the logits; torch their log softmax
        return
    assert (te is None) == (me is None), f"backward: torch {te}, meganeura {me}"
    if te is not None:
        return
    rough = any("_norm" in line for line in log)  # torch's norms of float16 lose digits
    for p in inputs:
        t, m = p.leaf  # type: ignore[attr-defined]
        if not t.requires_grad or (rough and t.dtype == torch.float16):
            continue
        if t.grad is not None and m.grad is None and not t.grad.nan_to_num().any():
            continue  # what was overwritten as a whole passes nothing back; torch passes zeros
        assert (t.grad is None) == (m.grad is None), f"gradient of {p}: torch {t.grad}, meganeura {m.grad}"
        if t.grad is not None and _fit(t.grad):
            assert m.grad.dtype.name == str(t.grad.dtype).removeprefix("torch.")
            want, got = _values(t.grad), m.grad.numpy()
            choice = any(word in line for word in ("amax", "amin", "pow", "**") for line in log)
            skipped = (np.isnan(want) & (got == 0)) | (choice & (np.isnan(want) | np.isnan(got)))
            want = np.where(skipped, got, want)  # torch multiplies by 0 where a choice is meant
            assert _matches(want, got), f"gradient of {p}\n{m.grad.numpy()}\ntorch has\n{_values(t.grad)}"


class _Again(Exception):
    """The program needs a torch that keeps what is overwritten."""


def run(seed: int, keeping: bool = False) -> None:
    """One program; the AssertionError of a difference shows its steps. `keeping`: torch copies what it saved before it is
    overwritten, so that gradients exist which it refuses otherwise."""
    rng = random.Random(seed)
    inputs = [_input(rng, seed) for _ in range(rng.randint(2, 3))]
    pool = list(inputs)
    log = [f"program {seed} of {inputs}"]
    try:
        with torch.autograd.graph.allow_mutation_on_saved_tensors() if keeping else contextlib.nullcontext():
            for _ in range(rng.randint(3, 8)):
                _step(rng, pool, log)
            _backward(rng, inputs, pool, log)
    except AssertionError as e:
        raise AssertionError("\n".join([*log, str(e)])) from e
    except _Again:
        assert not keeping, "\n".join([*log, "torch refuses the backward pass, meganeura does not"])
        run(seed, keeping=True)


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
