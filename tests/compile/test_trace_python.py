"""Python while tracing: control flow on what is known, calls of every form, containers of every kind, as plain code does."""

from __future__ import annotations

import copy
import functools
import pickle
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest

import meganeura as mg
from meganeura import nn
from tests.compile.agree import agree, numbers

A, B = numbers(3, 4), numbers(3, 4, seed=1)
CALLS = [(A,), (B,), (A * 2,)]


class Pair(NamedTuple):
    left: Any
    right: Any = None


@dataclass
class Batch:
    x: Any
    scale: float = 1.0
    more: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Frozen:
    x: Any
    n: int = 2


def by_shape(x: Any) -> Any:
    if x.shape[0] > 2 and x.ndim == 2 and x.dtype is mg.float32:
        x = x.T
    for _ in range(x.shape[-1]):
        x = x * 1.5 + 1
    return x if len(x) == 4 else x.sum()


def loops(x: Any) -> Any:
    total, i = x[0], 0
    while i < len(x):
        i += 1
        if i % 2:
            continue
        total = total + x[i - 1]
    for row in x:
        total = total * row
    for i, (a, b) in enumerate(zip(x, reversed(x), strict=True)):
        total = total + a * b * i
    total = total - 1
    first, *rest = x
    return total + first + sum(rest)


def exceptions(x: Any) -> Any:
    try:
        x @ x
    except mg.ShapeError:
        x = x * 3
    try:
        return x + 1
    finally:
        x.add_(1)


def generator(x: Any) -> Any:
    def rows() -> Any:
        for row in x:
            yield row * 2

    return sum(row.sum() for row in rows()), [r.exp() for r in rows()], dict(enumerate(rows()))


def recursion(x: Any) -> Any:
    def power(t: Any, n: int) -> Any:
        return t if n == 1 else power(t, n - 1) * t

    return power(x, 5)


@functools.lru_cache
def mask(n: int) -> Any:
    """A helper that keeps its result: made outside a trace it is state, inside it would escape."""
    return np.tril(np.ones((n, n), np.float32))


def cached_helper(x: Any) -> Any:
    return mg.tensor(mask(3)) @ x


def closures(x: Any) -> Any:
    scale = 2.0

    def inner(y: Any, *, shift: float = 1.0) -> Any:
        nonlocal scale
        scale += 1
        return y * scale + shift

    twice = functools.partial(inner, shift=0.5)
    return twice(x) + twice(x) + [lambda t: inner(t).relu()][0](x)


def walrus_and_match(x: Any) -> Any:
    match x.shape:
        case (3, n) if (half := n // 2) > 1:
            return x[:, :half] * half
        case _:
            return x


def containers(x: Any) -> Any:
    ordered = OrderedDict(b=x, a=x + 1)
    by_default: Any = defaultdict(list)
    by_default["k"].append(x * 2)
    return {"o": ordered, "d": by_default, "t": (x, [x - 1, None, 3, "s", 2.5, True]), "p": Pair(x.exp(), 2), "e": ()}


def formats(x: Any) -> Any:
    assert "float32" in f"{x.dtype}" and str(list(x.shape)) == "[3, 4]"
    return x * len(f"{tuple(x.shape)}")


PROGRAMS = [
    by_shape, loops, exceptions, generator, recursion, cached_helper, closures, walrus_and_match, containers, formats,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_python(program: Any) -> None:
    agree(lambda: program, CALLS)


@pytest.mark.parametrize("program", [by_shape, walrus_and_match], ids=lambda f: f.__name__)
def test_another_shape_is_another_session(program: Any) -> None:
    agree(lambda: program, [(A,), (numbers(5, 2),), (B,), (numbers(5, 2, seed=2),)], traces=2)


def test_arguments_of_every_form() -> None:
    def f(a: Any, /, b: Any = 2.0, *rest: Any, key: Any, other: Any = None, **more: Any) -> Any:
        total = a * b + key
        for r in rest:
            total = total - r
        if other is not None:
            total = total * other
        return {k: v + total for k, v in more.items()} or total

    calls = [
        (A, {"key": B}), (A, B, {"key": B}), (A, B, B, A, {"key": 1.0}), (A, {"key": B, "other": A}),
        (A, {"key": B, "z": A, "y": B}), (A, {"key": A}),
    ]  # fmt: skip
    agree(lambda: f, calls, traces=5)


def test_records() -> None:
    def f(b: Any) -> Any:
        return Batch(b.x * b.scale, b.scale + 1, [m + 1 for m in b.more]), Frozen(b.x), Pair(b.x - 1, b)

    g = mg.compile(f, debug=True)
    for scale in (2.0, 2.0, 3.0):
        batch, frozen, pair = g(Batch(mg.tensor(A), scale, [mg.tensor(B)]))
        np.testing.assert_allclose(batch.x.numpy(), A * scale)
        np.testing.assert_allclose(batch.more[0].numpy(), B + 1)
        np.testing.assert_array_equal(frozen.x.numpy(), A)
        np.testing.assert_array_equal(pair.left.numpy(), A - 1)
        assert isinstance(batch, Batch) and isinstance(frozen, Frozen) and isinstance(pair, Pair) and isinstance(pair.right, Batch)
        assert batch.scale == scale + 1
    assert g.traces == 2
    h = mg.compile(lambda f: f.x * f.n)
    assert h(Frozen(mg.ones(2), 3)).tolist() == [3, 3]
    assert h(Frozen(mg.ones(2), 4)).tolist() == [4, 4]


def test_named_tuples_and_other_mappings() -> None:
    Old = namedtuple("Old", "a b")

    def f(old: Any, ordered: Any, by_default: Any) -> Any:
        return Old(old.a + 1, old.b), OrderedDict((k, v * 2) for k, v in ordered.items()), by_default

    g = mg.compile(f)
    for n in (1.0, 2.0):
        x = mg.full((2,), n)
        old, ordered, kept = g(Old(x, "s"), OrderedDict(q=x, p=x), defaultdict(list, k=[x]))
        assert type(old).__name__ == "Old" and old.a.tolist() == [n + 1] * 2 and old.b == "s"
        assert list(ordered) == ["q", "p"] and ordered["q"].tolist() == [2 * n] * 2
        assert kept["k"][0] is x
        assert kept["missing"] == []
    assert g.traces == 1


def test_module_and_objects_as_arguments() -> None:
    class Config:
        def __init__(self, by: float) -> None:
            self.by = by

    def f(model: Any, config: Config, x: Any) -> Any:
        return model(x) * config.by

    g = mg.compile(f)
    mg.manual_seed(0)
    one, two = nn.Linear(4, 2), nn.Linear(4, 2)
    x = mg.tensor(A)
    configs = [Config(2.0), Config(3.0)]
    for model in (one, two, one):
        for config in configs:
            np.testing.assert_allclose(g(model, config, x).detach().numpy(), f(model, config, x).detach().numpy(), rtol=1e-5)
    assert g.traces == 4


def test_methods_properties_and_class_state() -> None:
    class Model:
        factor = 2.0

        def __init__(self) -> None:
            self.w = mg.tensor([1.0, 2.0])

        @property
        def doubled(self) -> Any:
            return self.w * 2

        @staticmethod
        def shifted(x: Any) -> Any:
            return x + 1

        @classmethod
        def scaled(cls, x: Any) -> Any:
            return x * cls.factor

        @mg.compile
        def run(self, x: Any) -> Any:
            return self.scaled(self.shifted(x)) * self.doubled

    m = Model()
    for n in (1.0, 3.0):
        assert m.run(mg.full((2,), n)).tolist() == [(n + 1) * 4, (n + 1) * 8]
    assert Model.run.traces == 1


def test_nested_compiled_functions_are_one_session() -> None:
    inner = mg.compile(lambda x: x.exp() * 2)

    def outer(x: Any) -> Any:
        return inner(x) + inner(x * 0.5)

    g = agree(lambda: outer, CALLS)
    assert g.sessions == 1 and len(g.graph(mg.tensor(A)).nodes) <= 2


def test_compiled_functions_in_turn_and_recursive() -> None:
    @mg.compile
    def f(x: Any, n: int) -> Any:
        return x if n == 0 else f(x * 2, n - 1) + 1

    for n in (0, 3, 3, 1):
        assert f(mg.ones(2), n).tolist() == [2.0**n + n] * 2
    assert f.traces == 3


def test_generator_that_is_returned_is_refused_or_consumed() -> None:
    """A list made of a generator is fine; the generator itself would run after the trace."""
    with pytest.raises(mg.TraceError, match="list of its items"):
        mg.compile(lambda x: (row * 2 for row in x))(mg.tensor(A))


def test_lru_cached_tensor() -> None:
    """A tensor that a cache made outside is state; one made by the trace would outlive it, and the error says so."""

    @functools.lru_cache
    def table(n: int) -> Any:
        return mg.arange(n).float()

    f = mg.compile(lambda x: x * table(4))
    with pytest.raises(mg.TraceError, match=r"outlived the trace(.|\n)*"):
        f(mg.tensor(A))
    table.cache_clear()
    table(4)
    np.testing.assert_array_equal(f(mg.tensor(A)).numpy(), A * np.arange(4, dtype=np.float32))


def test_results_that_are_arguments_constants_and_state() -> None:
    w = mg.tensor(A)

    def f(x: Any, y: Any) -> Any:
        return x, x, y[0], w, w[1], None, 3, "s", [x.T, (w.T, y)], mg.ones(2), x.shape, x.dtype

    g = mg.compile(f, debug=True)
    for _ in range(3):
        x, y = mg.tensor(A), mg.tensor(B)
        out = g(x, y)
        assert out[0] is x and out[1] is x and out[3] is w and out[8][1][1] is y
        np.testing.assert_array_equal(out[2].numpy(), B[0])
        np.testing.assert_array_equal(out[4].numpy(), A[1])
        np.testing.assert_array_equal(out[8][0].numpy(), A.T)
        out[2].zero_()  # views share memory with what they are views of
        assert not y.numpy()[0].any()
        assert out[5:8] == (None, 3, "s") and out[10] == (3, 4) and out[11] is mg.float32
        out[9].zero_()
    out[4].fill_(9.0)
    assert (w.numpy()[1] == 9).all()
    assert g.traces == 1


def test_outputs_stay_over_calls() -> None:
    g = mg.compile(lambda x: (x * 2, x.sum()))
    kept = [g(mg.full((4,), float(i))) for i in range(5)]
    for i, (double, total) in enumerate(kept):
        assert double.tolist() == [2.0 * i] * 4 and float(total) == 4.0 * i


def test_nothing_to_do() -> None:
    assert mg.compile(lambda: None)() is None
    assert mg.compile(lambda n: n + 1)(3) == 4
    x = mg.ones(2)
    assert mg.compile(lambda x: x)(x) is x
    assert mg.compile(lambda x: mg.zeros(2))(x).tolist() == [0, 0]
    assert mg.compile(lambda x: x.sum())(mg.zeros(0, 3)).item() == 0


def test_numbers_by_type() -> None:
    """True, 1 and 1.0 are different constants."""
    g = mg.compile(lambda x, n: x * n if isinstance(n, float) else (x + n, n))
    x = mg.ones(2)
    assert g(x, 1.0).tolist() == [1, 1]
    assert g(x, 1)[1] is not True and g(x, True)[1] is True
    assert g(x, float("nan")).isnan().all() and g(x, float("nan")).isnan().all()
    assert g.traces == 4
    assert mg.compile(lambda x, n: x * n)(x, np.float32(2)).tolist() == [2, 2]
    assert mg.compile(lambda x, n: x.to(n))(x, mg.float16).dtype is mg.float16


def test_slices_ranges_and_sets() -> None:
    g = mg.compile(lambda x, s, r, names: x[s].sum() * len(r) * ("a" in names))
    x = mg.tensor(A)
    for _ in range(3):
        got = [
            g(x, slice(0, 2), range(3), {"a", "b"}),
            g(x, slice(1, None, 2), range(3), frozenset("a")),
            g(x, slice(0, 2), range(3), {"b"}),
        ]
        np.testing.assert_allclose([float(v) for v in got], [A[:2].sum() * 3, A[1::2].sum() * 3, 0], rtol=1e-5)
    assert g.traces == 3


def test_kept_argument_lists_may_be_used_up() -> None:
    """Changing lists of its own, and *args and **kwargs, is plain Python."""

    def f(*xs: Any, **named: Any) -> Any:
        xs = list(xs)
        named["extra"] = xs.pop()
        return sum(xs) + sum(named.values())

    g = mg.compile(f)
    for n in (1.0, 2.0):
        x = mg.full((2,), n)
        assert g(x, x, x, a=x).tolist() == [4 * n] * 2
    assert g.traces == 1


def test_transformations_of_a_compiled_function() -> None:
    g = mg.compile(lambda x: (x * x).sum())
    _, slope = mg.value_and_grad(g)(mg.tensor(A))
    np.testing.assert_allclose(slope.numpy(), 2 * A, rtol=1e-6)
    x = mg.tensor(A).requires_grad_()
    y = mg.checkpoint(g, x) + mg.checkpoint(lambda x: g(x.exp()), x)
    y.backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * A + 2 * np.exp(2 * A), rtol=1e-5)
    assert mg.compile(g) is g


@mg.compile
def at_the_top(x: Any) -> Any:
    return x + 1


def test_what_can_be_compiled() -> None:
    class Holder:
        @mg.compile
        @staticmethod
        def plain(x: Any) -> Any:
            return x * 2

        @classmethod
        @mg.compile
        def of_class(cls, x: Any) -> Any:
            return x * 3

        @mg.compile
        @classmethod
        def of_class_too(cls, x: Any) -> Any:
            return x * 4

    x = mg.ones(2)
    for holder in (Holder, Holder()):
        assert holder.plain(x).tolist() == [2, 2]
        assert holder.of_class(x).tolist() == [3, 3]
        assert holder.of_class_too(x).tolist() == [4, 4]
    for f in (mg.exp, nn.functional.gelu, mg.softmax, functools.partial(mg.softmax, dim=-1)):
        args = (x, -1) if f is mg.softmax else (x,)
        np.testing.assert_allclose(mg.compile(f)(*args).numpy(), f(*args).numpy(), rtol=1e-6)
    assert mg.compile(x.add)(x).tolist() == [2, 2]
    with pytest.raises(TypeError, match="instance"):
        mg.compile(nn.Linear)
    with pytest.raises(TypeError, match="not int"):
        mg.compile(3)


def test_copies_and_pickles_are_the_function() -> None:
    assert copy.deepcopy(at_the_top) is at_the_top and copy.copy(at_the_top) is at_the_top
    assert pickle.loads(pickle.dumps(at_the_top)) is at_the_top

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(mg.ones(2))
            self.fast = mg.compile(lambda x: x * 2)

        def forward(self, x: Any) -> Any:
            return self.fast(x) * self.scale

    assert copy.deepcopy(Model())(mg.ones(2)).tolist() == [2, 2]
