"""What a hostile user finds in compiled functions: numbers that are equal and not the same, dtypes that wrap, names that clash."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import nn
from meganeura.compile import debugging

INTEGERS: dict[str, Any] = {
    "uint8": [0, 1, 5, 128, 200, 255],
    "int8": [-128, -1, 0, 1, 100, 127],
    "int32": [1, -2, 2000, -2147483648, 2147483647, 70000],
    "bool": [True, False, True, True, False, False],
}
FLOATS: dict[str, Any] = {k: [-0.0, 0.0, 1.5, float("inf"), float("-inf"), float("nan")] for k in ("float32", "float16")}


def drawn(name: str) -> Any:
    return mg.tensor({**INTEGERS, **FLOATS}[name], dtype=name)


def alike(fn: Any, *args: Any, rtol: float = 0.0) -> None:
    """Compiled gives what eager gives, signs of zeros included; if eager raises, so does compiled."""
    try:
        want = fn(*args)
    except mg.MeganeuraError as e:
        with pytest.raises(type(e)):
            mg.compile(fn)(*args)
        return
    got = mg.compile(fn)(*args)
    assert got.dtype is want.dtype
    a, b = got.numpy(), want.numpy()
    np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * 0.1)
    if rtol == 0 and a.dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(a) & ~np.isnan(a), np.signbit(b) & ~np.isnan(b))


@pytest.mark.parametrize("name", [*INTEGERS, *FLOATS])
def test_what_does_nothing_in_one_dtype_and_something_in_another(name: str) -> None:
    x = drawn(name)
    for fn in (
        lambda x: (-x).abs(),
        lambda x: x * 1.0,
        lambda x: x * True,
        lambda x: x / 1,
        lambda x: x - (-0.0),
        lambda x: mg.where(x > 0, x, x),
        lambda x: x + -mg.full((6,), 1, dtype=mg.uint8),
        lambda x: x + mg.full((6,), 70000.0, dtype=mg.float16),
    ):
        alike(fn, x)


@pytest.mark.parametrize("other", ["uint8", "int8", "float32"])
@pytest.mark.parametrize("name", ["uint8", "int8", "int32", "float32"])
def test_negation_wraps_before_a_wider_dtype_takes_it(name: str, other: str) -> None:
    x, y = drawn(name), drawn(other)
    for fn in (lambda x, y: x + (-y), lambda x, y: x - (-y), lambda x, y: (-x) * (-y)):
        alike(fn, x, y)


@pytest.mark.parametrize("name", ["uint8", "int8"])
def test_spelled_out_activations_of_integers_stay_as_written(name: str) -> None:
    x = drawn(name)
    for fn in (
        lambda x: 1 / (1 + mg.exp(-x)),
        lambda x: x / (1 + mg.exp(-x)),
        lambda x: 2 * mg.sigmoid(2 * x) - 1,
        lambda x: x * 0.5 * (1 + mg.tanh(0.7978845608028654 * (x + 0.044715 * x**3))),
    ):
        alike(fn, x, rtol=1e-3)


def test_patterns_do_not_reach_over_a_change_in_place() -> None:
    def negated(x: Any) -> Any:
        y = -x
        x.add_(1)
        return -y + x * 1

    def softmax(x: Any) -> Any:
        e = mg.exp(x - x.amax(0, keepdim=True))
        s = e.sum(0, keepdim=True)
        e.mul_(2)
        return e / s

    for fn in (negated, softmax):
        a, b = mg.arange(4.0), mg.arange(4.0)
        np.testing.assert_allclose(mg.compile(fn)(a).numpy(), fn(b).numpy(), rtol=1e-6)


# ---- numbers as arguments, in closures, in modules ----


def test_negative_zero_and_nan_are_numbers_of_their_own() -> None:
    divide = mg.compile(lambda x, a: x / a["k"][0])
    one = mg.ones(1)
    for a in (0.0, -0.0, np.float32(0.0), np.float32(-0.0), 0, True, 1.0):
        np.testing.assert_array_equal(divide(one, {"k": (a,)}).numpy(), (one / a).numpy())
    traces = divide.traces
    for a in (float("nan"), np.float32("nan")):
        for _ in range(3):
            assert np.isnan(divide(one, {"k": (a,)}).numpy()).all()
    assert divide.traces == traces + 2


def test_negative_zero_in_a_closure_and_in_a_module() -> None:
    k = 0.0

    def fn(x: Any) -> Any:
        return x / k

    class Divide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.k = 0.0

        def forward(self, x: Any) -> Any:
            return x / self.k

    module, one = Divide(), mg.ones(1)
    compiled, whole = mg.compile(fn), mg.compile(module)
    assert compiled(one).item() == whole(one).item() == float("inf")
    k = module.k = -0.0
    assert module(one).item() == compiled(one).item() == whole(one).item() == float("-inf")


def test_a_numpy_array_changed_in_place_is_seen() -> None:
    scale, log = np.ones(3, np.float32), np.zeros(1)

    def fn(x: Any, shift: Any = np.zeros(3, np.float32)) -> Any:  # noqa: B008
        log[0] += 1
        return x * mg.tensor(scale) + mg.tensor(shift)

    compiled, x = mg.compile(fn), mg.ones(3)
    compiled(x), compiled(x)
    assert compiled.traces == 1  # what the function itself writes is not watched
    scale[1] = 7.0
    np.testing.assert_array_equal(compiled(x).numpy(), [1, 7, 1])
    fn.__defaults__[0][0] = 50.0  # type: ignore[index]
    np.testing.assert_array_equal(compiled(x).numpy(), [51, 7, 1])


# ---- results, weights ----


def test_results_may_be_changed_without_harm() -> None:
    w = mg.ones(3)
    fn = mg.compile(lambda x: (w * 1, w.clone(), mg.neg(-w), mg.arange(3) * 2, x + 0))
    x = mg.zeros(3)
    for t in fn(x):
        t.add_(5)
    np.testing.assert_array_equal(w.numpy(), 1)
    np.testing.assert_array_equal(x.numpy(), 0)
    np.testing.assert_array_equal(fn(x)[3].numpy(), [0, 2, 4])


def test_packed_weights_follow_every_kind_of_write() -> None:
    class Three(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = nn.Linear(4, 4), nn.Linear(4, 6), nn.Linear(4, 5)

        def forward(self, x: Any) -> Any:
            return self.q(x).tanh(), self.k(x), self.v(x)

    m, x = Three(), mg.randn(3, 4)
    compiled = mg.compile(m)
    writes: list[Any] = [
        lambda: None,
        lambda: m.q.weight[0].fill_(5.0),
        lambda: m.k.weight.T[1:].mul_(3),
        lambda: m.v.weight.detach().view(-1)[::2].add_(1),
        lambda: m.q.bias.__setitem__(slice(1, 2), 9.0),
        lambda: setattr(m.q.weight, "data", mg.randn(8, 4)[::2]),
        lambda: setattr(m.k, "weight", nn.Parameter(mg.randn(6, 4))),
        lambda: compiled.load_state_dict({k: t * 2 for k, t in m.state_dict().items()}),
        lambda: mg.compile(lambda: m.v.weight.mul_(2))(),
    ]
    with mg.no_grad():
        assert "together" in str(compiled.compiled.report(x))
        for write in writes:
            write()
            for got, want in zip(compiled(x), m(x), strict=True):
                np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-4, atol=1e-5)


# ---- meganeura.debug and names ----


def test_debug_blocks_may_be_entered_again() -> None:
    block, fn = mg.debug(), mg.compile(lambda x: mg.named(x * 2, "double") + 1)
    with block, block:
        fn(mg.ones(2))
    assert debugging.active() is None
    with block:
        fn(mg.ones(2))
    assert debugging.active() is None
    fn(mg.ones(2) * 9)
    np.testing.assert_array_equal(block.read_node_by_name("double"), 2)


def test_every_value_has_a_name_of_its_own() -> None:
    @mg.compile
    def fn(x: Any) -> Any:
        a = mg.named(x + 1, "add#2") * (x + 2) * (x + 3)
        return a * mg.named(x + 4, "add") * mg.named(x * 6, "argument0")

    with mg.debug() as d:
        fn(mg.ones(1))
    names = d.value_names
    assert len(set(names)) == len(names)
    found = {n: float(d.read_node_by_name(n)[0]) for n in names}
    assert found["add#2"] == 2 and found["add"] == 5 and found["argument0"] == 6
    assert {1.0, 2.0, 3.0, 4.0, 5.0, 6.0} <= set(found.values())
    with pytest.raises(mg.MeganeuraError, match="text"):
        d.read_node_by_name(5)  # type: ignore[arg-type]


def test_debug_keeps_arguments_as_long_as_the_block_and_says_what_changed() -> None:
    fn, x = mg.compile(lambda x: mg.named(x * 2, "double")), mg.ones(4)
    kept = weakref.ref(x._storage)
    with mg.debug() as d:
        y = fn(x)
    y.add_(100)
    with pytest.raises(mg.MeganeuraError, match="changed in place after the run"):
        d.read_node_by_name("double")
    del x
    np.testing.assert_array_equal(d.read_node_by_name("argument0"), 1)
    del d
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("name", ["ü💥", "<q>&\"'", "{index}", "%s{}", "a\0b", "//*/", "b\udfff", "x" * 100_000])
def test_odd_names(name: str) -> None:
    fn, x = mg.compile(lambda x: mg.named(x * 2, name) + mg.named(x.sum(), name)), mg.ones(4)
    np.testing.assert_array_equal(fn(x).numpy(), 6)
    assert "<q>" not in fn.graph(x)._repr_html_() + fn.session(x)._repr_html_()
    fn.session(x).plan_json()


def test_sessions_and_layouts_that_are_copied() -> None:
    fn, x = mg.compile(lambda x: x * 2), mg.ones(2, 3).T
    session = fn.session(x)
    for call in (copy.deepcopy, pickle.dumps):
        with pytest.raises(mg.MeganeuraError, match="cannot be copied"):
            call(session)
    assert copy.deepcopy(x.layout) is x.layout is pickle.loads(pickle.dumps(x.layout))


# ---- checkpoints ----


def test_a_checkpoint_notices_that_what_it_closes_over_was_changed() -> None:
    linear, x = nn.Linear(2, 2), mg.ones(1, 2, requires_grad=True)
    y = mg.checkpoint(lambda t: linear(t).exp(), x).sum()
    with mg.no_grad():
        linear.weight.add_(1)
    with pytest.raises(mg.GradientError, match="inside a checkpoint was changed in place"):
        y.backward()


def test_a_checkpoint_with_buffers_of_its_own_is_no_change() -> None:
    norm, x = nn.BatchNorm1d(4), mg.randn(5, 4)
    x.requires_grad_(True)
    mg.checkpoint(lambda t: norm(t).tanh(), x).sum().backward()
    assert x.grad is not None


def test_calls_leave_nothing_behind() -> None:
    fn, x = mg.compile(lambda x: (x @ x).exp().sum()), mg.ones(4, 4)

    def go(n: int) -> int:
        for i in range(n):
            fn(x)
            if i % 10 == 0:
                with mg.debug() as d:
                    fn(x)
                d.step_debug()
        gc.collect()
        return len(gc.get_objects())

    go(30)
    before = go(30)
    assert go(500) - before < 100 and fn.traces == 2
